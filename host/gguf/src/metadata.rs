//! Metadata: named values of a few kinds.

use std::collections::HashMap;
use std::path::Path;

use shardwright_vocabulary::{Error, Result};

use crate::cursor::Cursor;
use crate::limits;

const CONVERT: &str = "convert the model again with a current converter, or use its Hugging Face folder";

/// Numbers of the format's value types.
mod kind {
    pub const BOOL: u32 = 7;
    pub const STRING: u32 = 8;
    pub const ARRAY: u32 = 9;
}

/// A value of the metadata. Integers of all widths share one variant, and so do both floats.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value<'f> {
    /// An integer of 8 to 64 bits.
    Integer(i128),
    /// A float of 32 or 64 bits.
    Float(f64),
    /// A boolean.
    Flag(bool),
    /// A string, which need not be UTF-8: tokens may be parts of characters.
    Text(&'f [u8]),
    /// A list of values of one type.
    List(List<'f>),
}

/// A list of values of one type. The values are parsed only when they are used.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct List<'f> {
    kind: u32,
    count: u64,
    bytes: &'f [u8],
}

impl<'f> List<'f> {
    pub fn len(&self) -> u64 {
        self.count
    }

    /// Checks whether the list has no values.
    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Iterates over the values in order.
    pub fn iter(&self) -> impl Iterator<Item = Value<'f>> + 'f {
        let (kind, count) = (self.kind, self.count);
        let mut cursor = Cursor { path: Path::new(""), bytes: self.bytes, at: 0 };
        // The whole list was parsed when the head was read, so parsing cannot fail here.
        (0..count).map_while(move |_| value(&mut cursor, kind, 1).ok())
    }

    /// Iterates over the strings of a list of strings. Returns `None` for other lists.
    pub fn texts(&self) -> Option<impl Iterator<Item = &'f [u8]> + 'f> {
        (self.kind == kind::STRING).then(|| {
            self.iter().filter_map(|value| match value {
                Value::Text(text) => Some(text),
                _ => None,
            })
        })
    }

    /// Iterates over the numbers of a list of integers or floats. Returns `None` for other lists.
    pub fn numbers(&self) -> Option<impl Iterator<Item = f64> + 'f> {
        (fixed_bytes(self.kind).is_some() && self.kind != kind::BOOL).then(|| {
            self.iter().filter_map(|value| match value {
                Value::Integer(number) => Some(number as f64),
                Value::Float(number) => Some(number),
                _ => None,
            })
        })
    }
}

impl Value<'_> {
    /// Formats the value for a message, with at most about forty characters.
    pub fn shown(&self) -> String {
        let text = match self {
            Value::Integer(number) => number.to_string(),
            Value::Float(number) => number.to_string(),
            Value::Flag(flag) => flag.to_string(),
            Value::Text(text) => format!("`{}`", String::from_utf8_lossy(text)),
            Value::List(list) => return format!("a list of {}", list.count),
        };
        if text.chars().count() <= 40 { text } else { text.chars().take(39).chain(['…']).collect() }
    }
}

/// The metadata of a file, in the order of the file.
#[derive(Clone, Debug)]
pub struct Metadata<'f> {
    path: &'f Path,
    entries: Vec<(&'f str, Value<'f>)>,
    places: HashMap<&'f str, usize>,
}

impl<'f> Metadata<'f> {
    /// Parses `count` entries.
    pub(crate) fn read(cursor: &mut Cursor<'f>, count: u64) -> Result<Self> {
        let mut metadata = Metadata { path: cursor.path, entries: Vec::new(), places: HashMap::new() };
        for _ in 0..count {
            let at = cursor.at;
            let key = cursor.text()?;
            if metadata.places.insert(key, metadata.entries.len()).is_some() {
                let key: String = key.chars().take(80).collect();
                return Err(cursor.invalid(at, format!("metadata has a second `{key}`")));
            }
            let kind = cursor.u32()?;
            metadata.entries.push((key, value(cursor, kind, 0)?));
        }
        Ok(metadata)
    }

    pub fn path(&self) -> &'f Path {
        self.path
    }

    /// Iterates over all entries in the order of the file.
    pub fn entries(&self) -> impl Iterator<Item = (&'f str, Value<'f>)> + '_ {
        self.entries.iter().copied()
    }

    /// Returns the value of a key.
    pub fn get(&self, key: &str) -> Option<Value<'f>> {
        self.places.get(key).map(|&place| self.entries[place].1)
    }

    /// Returns the error of a key whose value is not of the `expected` kind.
    pub fn wrong(&self, key: &str, expected: &str) -> Error {
        let found = self.get(key).map_or_else(|| "absent".to_owned(), |value| value.shown());
        let message = format!("metadata `{key}` is {found}, expected {expected}");
        Error::invalid(message).at(self.path.display()).with_help(CONVERT)
    }

    /// Returns the error of a required key that is missing.
    pub fn missing(&self, key: &str) -> Error {
        Error::missing(format!("metadata has no `{key}`")).at(self.path.display()).with_help(CONVERT)
    }

    /// Returns the UTF-8 string of a key.
    pub fn text(&self, key: &str) -> Result<Option<&'f str>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Text(text)) => match std::str::from_utf8(text) {
                Ok(text) => Ok(Some(text)),
                Err(_) => Err(self.wrong(key, "UTF-8")),
            },
            Some(_) => Err(self.wrong(key, "a string")),
        }
    }

    /// Returns the integer of a key, which must be at least 0.
    pub fn whole(&self, key: &str) -> Result<Option<u64>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Integer(number)) => match u64::try_from(number) {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(self.wrong(key, "a number from 0 on")),
            },
            Some(_) => Err(self.wrong(key, "a whole number")),
        }
    }

    /// Returns the number of a key, integer or float.
    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Float(number)) => Ok(Some(number)),
            Some(Value::Integer(number)) => Ok(Some(number as f64)),
            Some(_) => Err(self.wrong(key, "a number")),
        }
    }

    /// Returns the boolean of a key.
    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::Flag(flag)) => Ok(Some(flag)),
            Some(_) => Err(self.wrong(key, "true or false")),
        }
    }

    /// Returns the list of a key.
    pub fn list(&self, key: &str) -> Result<Option<List<'f>>> {
        match self.get(key) {
            None => Ok(None),
            Some(Value::List(list)) => Ok(Some(list)),
            Some(_) => Err(self.wrong(key, "a list")),
        }
    }
}

/// Parses a value of a type. The time is bounded by the bytes of the value.
fn value<'f>(cursor: &mut Cursor<'f>, kind: u32, depth: u32) -> Result<Value<'f>> {
    let at = cursor.at;
    if let Some(bytes) = fixed_bytes(kind) {
        let bytes = cursor.take(bytes)?;
        return fixed(kind, bytes).ok_or_else(|| cursor.invalid(at, "a flag is neither 0 nor 1"));
    }
    match kind {
        kind::STRING => Ok(Value::Text(cursor.string()?)),
        kind::ARRAY if depth < limits::NESTING => {
            let (kind, count) = (cursor.u32()?, cursor.u64()?);
            let begin = cursor.at;
            match fixed_bytes(kind) {
                Some(bytes) => {
                    let bytes = cursor.take(count.saturating_mul(bytes))?;
                    if kind == kind::BOOL && bytes.iter().any(|flag| *flag > 1) {
                        return Err(cursor.invalid(begin, "a flag is neither 0 nor 1"));
                    }
                }
                None => (0..count).try_for_each(|_| value(cursor, kind, depth + 1).map(|_| ()))?,
            }
            let bytes = cursor.bytes.get(begin as usize..cursor.at as usize).unwrap_or_default();
            Ok(Value::List(List { kind, count, bytes }))
        }
        kind::ARRAY => Err(cursor.invalid(at, format!("lists are nested deeper than {depth}"))),
        _ => Err(cursor.invalid(at, format!("value type {kind} is not one of the format"))),
    }
}

/// Returns the number of bytes of a value, if all values of the type have the same.
fn fixed_bytes(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | kind::BOOL => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

/// Parses a value from exactly the bytes of its type. Returns `None` for a boolean other than 0 or
/// 1.
fn fixed<'f>(kind: u32, bytes: &[u8]) -> Option<Value<'f>> {
    let mut wide = [0; 8];
    wide[..bytes.len()].copy_from_slice(bytes);
    let number = u64::from_le_bytes(wide);
    Some(match kind {
        1 => Value::Integer((number as i8).into()),
        3 => Value::Integer((number as i16).into()),
        5 => Value::Integer((number as i32).into()),
        11 => Value::Integer((number as i64).into()),
        6 => Value::Float(f32::from_bits(number as u32).into()),
        12 => Value::Float(f64::from_bits(number)),
        kind::BOOL if number > 1 => return None,
        kind::BOOL => Value::Flag(number == 1),
        _ => Value::Integer(number.into()),
    })
}
