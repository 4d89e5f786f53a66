//! The head of a file: metadata, which is skipped but for two entries, and what it says of tensors.

use std::collections::HashSet;
use std::path::Path;

use super::types;
use crate::weight_file::StoredTensor;
use crate::{CheckpointError, limits};

/// Bytes of the smallest head: magic number, version, two counts.
pub(super) const LEAST_BYTES: u64 = 24;

const MAGIC: &[u8; 4] = b"GGUF";

/// Versions that are laid out alike. The first had counts of four bytes, and was used for weeks.
const VERSIONS: [u32; 2] = [2, 3];

const ARCHITECTURE: &str = "general.architecture";
const ALIGNMENT: &str = "general.alignment";

/// Alignment of files that say none.
const USUAL_ALIGNMENT: u32 = 32;

/// Numbers of the format's value types.
const U32: u32 = 4;
const STRING: u32 = 8;
const ARRAY: u32 = 9;

/// What a head says.
pub(super) struct Head<'f> {
    /// `general.architecture`.
    pub architecture: &'f str,
    /// Bytes whose multiples tensors begin at.
    pub alignment: u64,
    /// In the order of the file.
    pub tensors: Vec<Described<'f>>,
    /// First byte after the head and its padding.
    pub data: u64,
}

/// One tensor's description.
pub(super) struct Described<'f> {
    name: &'f str,
    /// Place of the description.
    at: u64,
    /// Outermost extent first.
    shape: Vec<u64>,
    number: u32,
    /// Counted from the first byte after the head.
    offset: u64,
}

/// Reads a head and proves that counts, lengths and names hold together.
pub(super) fn read<'f>(path: &'f Path, bytes: &'f [u8]) -> Result<Head<'f>, CheckpointError> {
    let mut cursor = Cursor { path, bytes, at: 0 };
    if cursor.take(MAGIC.len() as u64)? != MAGIC {
        return Err(cursor.invalid(0, "does not begin with `GGUF`".to_owned()));
    }
    let version = cursor.u32()?;
    if !VERSIONS.contains(&version) {
        return Err(CheckpointError::GgufVersion { path: path.to_owned(), version });
    }
    let (tensors, entries) = (cursor.u64()?, cursor.u64()?);
    cursor.capped("tensors", tensors, limits::TENSORS as u64)?;
    cursor.capped("metadata entries", entries, limits::GGUF_METADATA)?;
    let mut keys = HashSet::new();
    let (mut architecture, mut alignment) = (None, USUAL_ALIGNMENT);
    for _ in 0..entries {
        let at = cursor.at;
        let key = cursor.text()?;
        if !keys.insert(key) {
            return Err(cursor.invalid(at, format!("metadata has a second `{}`", short(key))));
        }
        let kind = cursor.u32()?;
        match (key, kind) {
            (ARCHITECTURE, STRING) => architecture = Some(cursor.text()?),
            (ALIGNMENT, U32) => {
                alignment = cursor.u32()?;
                if !(alignment.is_power_of_two() && (8..=limits::GGUF_ALIGNMENT).contains(&alignment)) {
                    return Err(cursor.invalid(at, format!("an alignment of {alignment} is not possible")));
                }
            }
            (ARCHITECTURE | ALIGNMENT, _) => {
                return Err(cursor.invalid(at, format!("`{key}` has the value type {kind}")));
            }
            _ => cursor.skip(kind, 0)?,
        }
    }
    let Some(architecture) = architecture else {
        return Err(cursor.invalid(0, format!("metadata has no `{ARCHITECTURE}`")));
    };
    let mut names = HashSet::new();
    let mut described = Vec::new();
    for _ in 0..tensors {
        let tensor = cursor.tensor()?;
        if !names.insert(tensor.name) {
            return Err(CheckpointError::DuplicateTensor {
                path: path.to_owned(),
                tensor: tensor.name.to_owned(),
            });
        }
        described.push(tensor);
    }
    let alignment = u64::from(alignment);
    let data = cursor.at.next_multiple_of(alignment);
    if data > limits::HEADER_BYTES {
        let cap = limits::HEADER_BYTES;
        return Err(CheckpointError::HeaderTooLarge { path: path.to_owned(), bytes: data, cap });
    }
    Ok(Head { architecture, alignment, tensors: described, data })
}

impl Described<'_> {
    /// The tensor in a file of so many bytes whose data begin at `data`.
    pub fn stored(
        &self,
        path: &Path,
        data: u64,
        alignment: u64,
        available: u64,
    ) -> Result<StoredTensor, CheckpointError> {
        let begin = data.saturating_add(self.offset);
        let invalid = |reason: String| CheckpointError::InvalidTensor {
            path: path.to_owned(),
            tensor: self.name.to_owned(),
            offset: self.at,
            reason,
        };
        let Some(known) = types::find(self.number) else {
            return Err(invalid(format!("element type {} is not one of the format", self.number)));
        };
        if !self.offset.is_multiple_of(alignment) {
            let reason = format!("data begin at {}, no multiple of {alignment}", self.offset);
            return Err(invalid(reason));
        }
        let row = self.shape.last().copied().unwrap_or(1);
        if !row.is_multiple_of(known.values) {
            let (name, values) = (known.stored.name, known.values);
            return Err(invalid(format!("rows of {row} values are no whole {name} blocks of {values}")));
        }
        let elements = self.shape.iter().try_fold(1_u64, |count, &extent| count.checked_mul(extent));
        let length = elements.and_then(|count| (count / known.values).checked_mul(known.bytes));
        let end = length.and_then(|length| begin.checked_add(length));
        let (Some(length), Some(end)) = (length, end) else {
            return Err(invalid(format!("the product of its shape {:?} overflows", self.shape)));
        };
        if length > 0 && end > available {
            return Err(CheckpointError::Truncated {
                path: path.to_owned(),
                what: format!("tensor `{}`", self.name),
                needed: end,
                available,
            });
        }
        Ok(StoredTensor {
            name: self.name.to_owned(),
            alias: None,
            dtype: known.stored,
            shape: self.shape.clone(),
            begin,
            length,
        })
    }
}

/// A place in the head. Whatever is read is proved to be there.
struct Cursor<'f> {
    path: &'f Path,
    bytes: &'f [u8],
    at: u64,
}

impl<'f> Cursor<'f> {
    fn invalid(&self, offset: u64, reason: String) -> CheckpointError {
        CheckpointError::InvalidGguf { path: self.path.to_owned(), offset, reason }
    }

    fn capped(&self, what: &'static str, count: u64, cap: u64) -> Result<(), CheckpointError> {
        if count <= cap {
            return Ok(());
        }
        Err(CheckpointError::TooMany {
            path: self.path.to_owned(),
            what,
            count: usize::try_from(count).unwrap_or(usize::MAX),
            cap: cap as usize,
        })
    }

    /// So many bytes, and the place after them.
    fn take(&mut self, count: u64) -> Result<&'f [u8], CheckpointError> {
        let end = self.at.saturating_add(count);
        let range = usize::try_from(self.at).ok().zip(usize::try_from(end).ok());
        let found = range.and_then(|(at, end)| self.bytes.get(at..end));
        let found = found.ok_or_else(|| CheckpointError::Truncated {
            path: self.path.to_owned(),
            what: "the head".to_owned(),
            needed: end,
            available: self.bytes.len() as u64,
        })?;
        self.at = end;
        Ok(found)
    }

    fn u32(&mut self) -> Result<u32, CheckpointError> {
        Ok(self.take(4)?.first_chunk().map_or(0, |bytes| u32::from_le_bytes(*bytes)))
    }

    fn u64(&mut self) -> Result<u64, CheckpointError> {
        Ok(self.take(8)?.first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes)))
    }

    fn text(&mut self) -> Result<&'f str, CheckpointError> {
        let length = self.u64()?;
        let at = self.at;
        let bytes = self.take(length)?;
        std::str::from_utf8(bytes).map_err(|error| CheckpointError::NotUtf8 {
            path: self.path.to_owned(),
            offset: at + error.valid_up_to() as u64,
        })
    }

    /// Passes over a value. What it costs is bounded by the bytes it takes.
    fn skip(&mut self, kind: u32, depth: u32) -> Result<(), CheckpointError> {
        if let Some(bytes) = fixed_bytes(kind) {
            return self.take(bytes).map(|_| ());
        }
        let at = self.at;
        match kind {
            // Tokens need not be UTF-8.
            STRING => {
                let length = self.u64()?;
                self.take(length).map(|_| ())
            }
            ARRAY if depth < limits::GGUF_NESTING => {
                let (kind, count) = (self.u32()?, self.u64()?);
                if let Some(bytes) = fixed_bytes(kind) {
                    return self.take(count.saturating_mul(bytes)).map(|_| ());
                }
                (0..count).try_for_each(|_| self.skip(kind, depth + 1))
            }
            ARRAY => Err(self.invalid(at, format!("lists are nested deeper than {depth}"))),
            _ => Err(self.invalid(at, format!("value type {kind} is not one of the format"))),
        }
    }

    fn tensor(&mut self) -> Result<Described<'f>, CheckpointError> {
        let at = self.at;
        let name = self.text()?;
        if name.len() > limits::GGUF_NAME {
            let reason = format!("a name of {} bytes, more than {}", name.len(), limits::GGUF_NAME);
            return Err(self.invalid(at, reason));
        }
        let rank = self.u32()?;
        if rank > limits::GGUF_RANK {
            let reason = format!("tensor `{name}` has {rank} axes, more than {}", limits::GGUF_RANK);
            return Err(self.invalid(at, reason));
        }
        let mut shape = (0..rank).map(|_| self.u64()).collect::<Result<Vec<_>, _>>()?;
        // The file has the innermost extent first.
        shape.reverse();
        let (number, offset) = (self.u32()?, self.u64()?);
        Ok(Described { name, at, shape, number, offset })
    }
}

/// Bytes of a value of a type, where all have the same.
fn fixed_bytes(kind: u32) -> Option<u64> {
    match kind {
        0 | 1 | 7 => Some(1),
        2 | 3 => Some(2),
        4..=6 => Some(4),
        10..=12 => Some(8),
        _ => None,
    }
}

/// A key for a message.
fn short(text: &str) -> String {
    text.chars().take(80).collect()
}
