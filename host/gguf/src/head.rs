//! The head of a file: metadata and descriptions of tensors.

use std::collections::HashSet;
use std::path::Path;

use shardwright_vocabulary::{Error, Result};

use crate::cursor::{Cursor, DAMAGED, truncated};
use crate::limits;
use crate::metadata::Metadata;
use crate::types::TensorType;

const MAGIC: &[u8; 4] = b"GGUF";

/// Bytes of the smallest head: magic number, version, two counts.
const LEAST_BYTES: u64 = 24;

/// Versions with the same layout. Version 1 had counts of four bytes, and was used for weeks only.
const VERSIONS: [u32; 2] = [2, 3];

pub const ARCHITECTURE: &str = "general.architecture";

const PART: &str = "split.no";
const PARTS: &str = "split.count";

const ALIGNMENT: &str = "general.alignment";

/// Alignment of files that do not specify one.
const USUAL_ALIGNMENT: u64 = 32;

/// The head of a file, parsed and checked.
#[derive(Clone, Debug)]
pub struct Head<'f> {
    /// `general.architecture`, for example `gemma3`. Only parts of a split model after the first
    /// may lack it.
    pub architecture: Option<&'f str>,
    /// The file's place in a split model, or `None` for a model in one file.
    pub part: Option<Part>,
    pub metadata: Metadata<'f>,
    /// All tensors, ordered by their place in the file.
    pub tensors: Vec<Tensor<'f>>,
    /// First byte after the head and its padding, counted from the start of the file.
    pub data: u64,
}

/// A file's place in a split model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The value of `split.no`, counted from 0.
    pub number: u64,
    /// The value of `split.count`.
    pub count: u64,
}

/// A tensor as the head describes it. Its bytes are within the file and shared with no other
/// tensor.
#[derive(Clone, Debug)]
pub struct Tensor<'f> {
    pub name: &'f str,
    /// Extents, outermost first.
    pub shape: Vec<u64>,
    pub kind: TensorType,
    /// First byte, counted from the start of the file.
    pub begin: u64,
    /// Length in bytes.
    pub length: u64,
}

impl<'f> Head<'f> {
    /// Parses the head of a file with these `bytes`. `path` is for messages.
    ///
    /// # Errors
    /// If the head is damaged, contradicts the format or the length of the file, or is of an
    /// unsupported version.
    pub fn read(path: &'f Path, bytes: &'f [u8]) -> Result<Self> {
        let length = bytes.len() as u64;
        if length < LEAST_BYTES {
            return Err(truncated(path, "the head", LEAST_BYTES, length));
        }
        let mut cursor = Cursor { path, bytes, at: 0 };
        if cursor.take(MAGIC.len() as u64)? != MAGIC {
            return Err(cursor.invalid(0, "does not begin with `GGUF`"));
        }
        let version = cursor.u32()?;
        if !VERSIONS.contains(&version) {
            // Big-endian files appear as a huge number.
            let message = format!("GGUF version {version} is not supported");
            let help = "versions 2 and 3 are supported, little-endian; convert the file again with a current converter";
            return Err(Error::unsupported(message).at(path.display()).with_help(help));
        }
        let (tensors, entries) = (cursor.u64()?, cursor.u64()?);
        limits::expect_at_most(limits::TENSORS, "tensors", tensors, path)?;
        limits::expect_at_most(limits::METADATA, "metadata entries", entries, path)?;
        let metadata = Metadata::read(&mut cursor, entries)?;
        let part = part(&metadata)?;
        let architecture = metadata.text(ARCHITECTURE)?;
        // The tools that split a model write all other metadata into the first part only.
        if architecture.is_none() && part.is_none_or(|part| part.number == 0) {
            return Err(cursor.invalid(0, format!("metadata has no `{ARCHITECTURE}`")));
        }
        let alignment = alignment(&metadata)?;
        let described = (0..tensors).map(|_| Described::read(&mut cursor)).collect::<Result<Vec<_>, _>>()?;
        let mut names = HashSet::new();
        if let Some(twice) = described.iter().find(|tensor| !names.insert(tensor.name)) {
            let message = format!("a second tensor `{}`", twice.name);
            return Err(Error::invalid(message).at(path.display()).with_help(DAMAGED));
        }
        let data = cursor.at.next_multiple_of(alignment);
        if data > limits::HEAD_BYTES {
            let message = format!("a head of {data} bytes, more than {}", limits::HEAD_BYTES);
            return Err(Error::invalid(message).at(path.display()));
        }
        let placed = described.into_iter().map(|tensor| tensor.placed(path, data, alignment, length));
        let mut tensors = placed.collect::<Result<Vec<_>, _>>()?;
        check_places(path, &mut tensors, data, alignment, length)?;
        Ok(Head { architecture, part, metadata, tensors, data })
    }
}

fn part(metadata: &Metadata<'_>) -> Result<Option<Part>> {
    match (metadata.whole(PART)?, metadata.whole(PARTS)?) {
        // Converters also number files that were not split.
        (None, None | Some(0 | 1)) | (Some(0), Some(0 | 1)) => Ok(None),
        (None, Some(_)) => Err(metadata.missing(PART)),
        (Some(_), None) => Err(metadata.missing(PARTS)),
        (Some(number), Some(count)) if number < count => Ok(Some(Part { number, count })),
        (Some(_), Some(_)) => Err(metadata.wrong(PART, "a number below `split.count`")),
    }
}

fn alignment(metadata: &Metadata<'_>) -> Result<u64> {
    let alignment = metadata.whole(ALIGNMENT)?.unwrap_or(USUAL_ALIGNMENT);
    match alignment.is_power_of_two() && (8..=u64::from(limits::ALIGNMENT)).contains(&alignment) {
        true => Ok(alignment),
        false => Err(metadata.wrong(ALIGNMENT, "a power of two from 8 to 1,048,576")),
    }
}

/// A tensor's description whose place is not checked yet.
struct Described<'f> {
    name: &'f str,
    /// Offset of the description in the file.
    at: u64,
    /// Outermost extent first.
    shape: Vec<u64>,
    number: u32,
    /// Offset of the data, counted from the first byte after the head.
    offset: u64,
}

impl<'f> Described<'f> {
    fn read(cursor: &mut Cursor<'f>) -> Result<Self> {
        let at = cursor.at;
        let name = cursor.text()?;
        if name.len() > limits::NAME {
            let reason = format!("a name of {} bytes, more than {}", name.len(), limits::NAME);
            return Err(cursor.invalid(at, reason));
        }
        let rank = cursor.u32()?;
        if rank > limits::RANK {
            let reason = format!("tensor `{name}` has {rank} axes, more than {}", limits::RANK);
            return Err(cursor.invalid(at, reason));
        }
        let mut shape = (0..rank).map(|_| cursor.u64()).collect::<Result<Vec<_>, _>>()?;
        // The file lists the innermost extent first.
        shape.reverse();
        let (number, offset) = (cursor.u32()?, cursor.u64()?);
        Ok(Described { name, at, shape, number, offset })
    }

    /// Checks the tensor's place in a file of `available` bytes whose data begin at `data`.
    fn placed(self, path: &Path, data: u64, alignment: u64, available: u64) -> Result<Tensor<'f>> {
        let begin = data.saturating_add(self.offset);
        let invalid = |reason: String| {
            let place = format!("tensor `{}` at byte {}", self.name, self.at);
            Error::invalid(reason).at(place).at(path.display())
        };
        let Some(kind) = TensorType::from_number(self.number) else {
            return Err(invalid(format!("element type {} is not one of the format", self.number)));
        };
        if !self.offset.is_multiple_of(alignment) {
            return Err(invalid(format!("data begin at {}, not a multiple of {alignment}", self.offset)));
        }
        let row = self.shape.last().copied().unwrap_or(1);
        let (values, bytes) = kind.block();
        if !row.is_multiple_of(values) {
            return Err(invalid(format!("rows of {row} values are not whole {kind} blocks of {values}")));
        }
        let elements = self.shape.iter().try_fold(1_u64, |count, &extent| count.checked_mul(extent));
        let length = elements.and_then(|count| (count / values).checked_mul(bytes));
        let end = length.and_then(|length| begin.checked_add(length));
        let (Some(length), Some(end)) = (length, end) else {
            return Err(invalid(format!("the product of its shape {:?} overflows", self.shape)));
        };
        if length > 0 && end > available {
            return Err(truncated(path, &format!("tensor `{}`", self.name), end, available));
        }
        Ok(Tensor { name: self.name, shape: self.shape, kind, begin, length })
    }
}

/// Sorts tensors by place and checks that only padding is between them.
fn check_places(
    path: &Path,
    tensors: &mut [Tensor<'_>],
    data: u64,
    alignment: u64,
    length: u64,
) -> Result<()> {
    tensors.sort_by_key(|tensor| (tensor.begin, tensor.length));
    let mut last: Option<&Tensor<'_>> = None;
    // A file without tensors may end before the padding of its head.
    let mut position = data.min(length);
    let unclaimed = |offset: u64, bytes: u64| {
        let message = format!("{bytes} bytes at byte {offset} belong to no tensor");
        Err(Error::invalid(message).at(path.display()))
    };
    for tensor in tensors.iter().filter(|tensor| tensor.length > 0) {
        if tensor.begin < position {
            let (first, second) = (last.map_or("", |tensor| tensor.name), tensor.name);
            let message = format!("tensors `{first}` and `{second}` overlap at byte {}", tensor.begin);
            return Err(Error::invalid(message).at(path.display()));
        }
        if tensor.begin - position >= alignment {
            return unclaimed(position, tensor.begin - position);
        }
        // The end was checked to be within the file.
        position = tensor.begin + tensor.length;
        last = Some(tensor);
    }
    match length - position {
        padding if padding < alignment => Ok(()),
        bytes => unclaimed(position, bytes),
    }
}
