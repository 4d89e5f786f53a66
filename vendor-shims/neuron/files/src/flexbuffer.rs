//! Reads FlexBuffers, as far as options of a custom operation need them: a map at the root that
//! contains numbers and texts.
//!
//! Layout: <https://flatbuffers.dev/flexbuffers/>. The last byte is the width of the root in bytes,
//! the byte before it is the root's type, and the root precedes both. Offsets point backwards from
//! their own position. A map is a vector of values. It is preceded by its length, the width of its
//! keys and the offset of the vector of keys, and followed by a type byte for each value.

use crate::bytes::Bytes;
use crate::{ContainerError, Result};

/// Maximum number of entries of a map.
const MAX_ENTRIES: usize = 64;
/// Maximum length of a key in bytes.
const MAX_KEY: usize = 256;
/// Maximum length of a text in bytes.
const MAX_TEXT: usize = 4096;

const INT: u8 = 1;
const UINT: u8 = 2;
const KEY: u8 = 4;
const STRING: u8 = 5;
const INDIRECT_INT: u8 = 6;
const INDIRECT_UINT: u8 = 7;
const MAP: u8 = 9;
const BOOL: u8 = 26;

/// A value of a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Number(i128),
    Text(String),
    /// A value of another type, with the type's number.
    Other(u8),
}

/// Returns the entries of the map at the root, in the file's order.
pub fn map(file: Bytes<'_>) -> Result<Vec<(String, Value)>> {
    let Some(type_at) = file.len().checked_sub(2) else {
        file.slice(0, 2, "FlexBuffer")?;
        return Ok(Vec::new());
    };
    let width = width_of(file, type_at + 1, file.u8(type_at + 1, "width of the root")?)?;
    let packed = file.u8(type_at, "type of the root")?;
    if packed >> 2 != MAP {
        return Err(file.malformed(
            type_at,
            "FlexBuffer",
            format!("expected a map, got a value of type {}", packed >> 2),
        ));
    }
    let Some(root) = type_at.checked_sub(width) else {
        file.slice(0, width + 2, "FlexBuffer")?;
        return Ok(Vec::new());
    };
    let values = back(file, root, width)?;
    entries(file, values, 1 << (packed & 3))
}

/// Returns the entries of the map whose values start at `values` and have `width` bytes each.
fn entries(file: Bytes<'_>, values: usize, width: usize) -> Result<Vec<(String, Value)>> {
    let before = |count: usize| {
        values.checked_sub(count * width).ok_or_else(|| {
            file.malformed(values, "map", "its length and keys would be before the FlexBuffer")
        })
    };
    let count = usize::try_from(unsigned(file, before(1)?, width)?).unwrap_or(usize::MAX);
    if count > MAX_ENTRIES {
        return Err(ContainerError::TooMany {
            what: "entries of a map",
            offset: file.offset(values),
            count: count as u64,
            most: MAX_ENTRIES as u64,
        });
    }
    let key_width = unsigned(file, before(2)?, width)?;
    let key_width = width_of(file, before(2)?, u8::try_from(key_width).unwrap_or(u8::MAX))?;
    let keys = back(file, before(3)?, width)?;
    let mut found = Vec::with_capacity(count);
    for index in 0..count {
        let key = zero_ended(file, back(file, keys.saturating_add(index * key_width), key_width)?)?;
        let packed = file.u8(values + count * width + index, "type of a value")?;
        found.push((key, value(file, values + index * width, width, packed)?));
    }
    Ok(found)
}

fn value(file: Bytes<'_>, at: usize, width: usize, packed: u8) -> Result<Value> {
    let inner = 1 << (packed & 3);
    Ok(match packed >> 2 {
        INT => Value::Number(signed(file, at, width)?.into()),
        UINT | BOOL => Value::Number(unsigned(file, at, width)?.into()),
        INDIRECT_INT => Value::Number(signed(file, back(file, at, width)?, inner)?.into()),
        INDIRECT_UINT => Value::Number(unsigned(file, back(file, at, width)?, inner)?.into()),
        KEY => Value::Text(zero_ended(file, back(file, at, width)?)?),
        STRING => {
            let start = back(file, at, width)?;
            let Some(length_at) = start.checked_sub(inner) else {
                return Err(file.malformed(start, "text", "its length would be before the FlexBuffer"));
            };
            let length = usize::try_from(unsigned(file, length_at, inner)?).unwrap_or(usize::MAX);
            if length > MAX_TEXT {
                return Err(ContainerError::TooMany {
                    what: "bytes of a text",
                    offset: file.offset(start),
                    count: length as u64,
                    most: MAX_TEXT as u64,
                });
            }
            let bytes = file.slice(start, length, "text")?;
            let text = std::str::from_utf8(bytes.get());
            Value::Text(
                text.map_err(|error| bytes.malformed(error.valid_up_to(), "text", "it is not UTF-8"))?
                    .to_owned(),
            )
        }
        other => Value::Other(other),
    })
}

fn width_of(file: Bytes<'_>, at: usize, width: u8) -> Result<usize> {
    match width {
        1 | 2 | 4 | 8 => Ok(width.into()),
        _ => Err(file.malformed(at, "width", format!("{width} is not one of 1, 2, 4, 8"))),
    }
}

fn unsigned(file: Bytes<'_>, at: usize, width: usize) -> Result<u64> {
    Ok(match width {
        1 => file.u8(at, "number")?.into(),
        2 => file.u16(at, "number")?.into(),
        4 => file.u32(at, "number")?.into(),
        _ => file.u64(at, "number")?,
    })
}

fn signed(file: Bytes<'_>, at: usize, width: usize) -> Result<i64> {
    Ok(match width {
        1 => file.i8(at, "number")?.into(),
        2 => file.i16(at, "number")?.into(),
        4 => file.i32(at, "number")?.into(),
        _ => file.i64(at, "number")?,
    })
}

/// Returns the position to which the offset at `at` points back.
fn back(file: Bytes<'_>, at: usize, width: usize) -> Result<usize> {
    let offset = unsigned(file, at, width)?;
    let target = usize::try_from(offset).ok().and_then(|offset| at.checked_sub(offset));
    target.ok_or_else(|| file.malformed(at, "offset", format!("{offset} points before the FlexBuffer")))
}

fn zero_ended(file: Bytes<'_>, at: usize) -> Result<String> {
    let rest = file.get().get(at..).unwrap_or_default();
    let rest = &rest[..rest.len().min(MAX_KEY)];
    let end = rest
        .iter()
        .position(|byte| *byte == 0)
        .ok_or_else(|| file.malformed(at, "key", format!("it does not end within {MAX_KEY} bytes")))?;
    let text = std::str::from_utf8(&rest[..end]);
    text.map(str::to_owned).map_err(|_| file.malformed(at, "key", "it is not UTF-8"))
}
