//! Output of this project's simulator of the compiler. The layout and its magic are the project's
//! own:
//!
//! | at | content |
//! |---|---|
//! | 0 | `SWNEURON` |
//! | 8 | u32 layout, 1 |
//! | 12 | u8 major, minor, patch of the emulated adapter, u8 0 |
//! | 16 | the chip, 16 bytes, padded with zeros |
//! | 32, 40 | u64 offset and length of the code |
//! | 48 | u64 offset of the trailer, which extends to the end |
//! | 56 | u32 operations |
//! | 60 | u32 checksum (CRC-32) of everything from 64 on |
//!
//! The trailer has the form that real compilers use: identifier, [record](crate::record) and
//! options, each after a u32 length and four zero bytes.

use std::ops::Range;

use shardwright_neuron_adapter::RuntimeVersion;

use crate::budget::Budget;
use crate::bytes::{Bytes, crc32};
use crate::record::{Compiler, Trailer};
use crate::sequence::Writer;
use crate::{ContainerError, Result};

/// First bytes of the output.
pub const MAGIC: [u8; 8] = *b"SWNEURON";
/// The only layout version.
const LAYOUT: u32 = 1;
/// Range of the chip's name.
const SOC: Range<usize> = 16..32;
/// Offset of the first byte that the checksum covers.
pub const HEAD: usize = 64;
/// Number of texts in the trailer.
const TEXTS: usize = 3;

/// The content of the head, except for the checksum.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The emulated adapter.
    pub version: RuntimeVersion,
    /// Name of the chip. Empty if unknown.
    pub soc: String,
    /// Range of the code in the output.
    pub code: Range<usize>,
    /// Number of operations.
    pub operations: u32,
}

impl Head {
    /// Writes the head over the first [`HEAD`] bytes of an output that is complete otherwise. The
    /// trailer follows the code. A long name of a chip is truncated.
    ///
    /// # Panics
    ///
    /// If there are fewer bytes.
    pub fn write(&self, output: &mut [u8]) {
        let mut head = Writer::default();
        head.bytes(&MAGIC);
        head.u32(LAYOUT);
        head.bytes(&[self.version.major, self.version.minor, self.version.patch, 0]);
        head.bytes(&self.soc.as_bytes()[..self.soc.len().min(SOC.len())]);
        head.align(SOC.end);
        head.u64(self.code.start as u64);
        head.u64(self.code.len() as u64);
        head.u64(self.code.end as u64);
        head.u32(self.operations);
        head.u32(crc32(&output[HEAD..]));
        output[..HEAD].copy_from_slice(&head.bytes);
    }
}

/// Reads the head and the trailer.
///
/// # Errors
///
/// For output that is truncated, damaged or of another layout, and for a file whose read budget is
/// used up.
pub fn read(bytes: Bytes<'_>, budget: &mut Budget) -> Result<(Head, Trailer)> {
    let head = bytes.slice(0, HEAD, "head of the simulator's code")?;
    let layout = head.u32(8, "layout")?;
    if layout != LAYOUT {
        return Err(ContainerError::UnknownVersion {
            what: "layout of the simulator's code",
            offset: head.offset(8),
            version: layout.to_string(),
            supported: "1",
        });
    }
    let [major, minor, patch] = [12, 13, 14].map(|at| head.get()[at]);
    let said = head.u32(60, "check sum")?;
    let rest = bytes.from(HEAD, "the simulator's code")?;
    let (code_at, code_length) = (head.u64(32, "place of the code")?, head.u64(40, "length of the code")?);
    let trailer_at = head.u64(48, "place of the trailer")?;
    let code = bytes.slice_u64(code_at, code_length, "the simulator's code")?;
    let trailer_length = (bytes.len() as u64).saturating_sub(trailer_at);
    let trailer = bytes.slice_u64(trailer_at, trailer_length, "the simulator's trailer")?;
    // Both are within the bytes, so the conversions cannot overflow.
    let (code_at, trailer_at) = (code_at as usize, trailer_at as usize);
    if code_at < HEAD || trailer_at < code_at + code.len() {
        return Err(head.malformed(32, "head of the simulator's code", "its parts overlap"));
    }
    budget.summed(rest.len() as u64, rest.offset(0))?;
    let found = crc32(rest.get());
    if found != said {
        return Err(ContainerError::Damaged {
            what: "the simulator's code",
            offset: rest.offset(0),
            found,
            said,
        });
    }
    budget.searched(trailer.len() as u64, trailer.offset(0))?;
    let [identifier, record, options] = texts(trailer)?;
    let soc = &head.get()[SOC];
    let soc = &soc[..soc.iter().position(|byte| *byte == 0).unwrap_or(soc.len())];
    let soc =
        std::str::from_utf8(soc).ok().filter(|soc| soc.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    let soc = soc.ok_or_else(|| head.malformed(SOC.start, "chip", "it is not the name of a chip"))?;
    let head = Head {
        version: RuntimeVersion::new(major, minor, patch),
        soc: soc.to_owned(),
        code: code_at..code_at + code.len(),
        operations: head.u32(56, "operations")?,
    };
    let trailer = Trailer {
        start: trailer_at,
        end: bytes.len(),
        identifier: Some(identifier),
        compiler: Compiler::read(&record),
        options: Some(options),
        records: 1,
    };
    Ok((head, trailer))
}

/// Reads the texts of a trailer.
fn texts(trailer: Bytes<'_>) -> Result<[String; TEXTS]> {
    let mut found = <[String; TEXTS]>::default();
    let mut at = 0;
    for text in &mut found {
        let length = trailer.u64(at, "length of a text")?;
        let bytes = trailer.from(at + 8, "text")?.slice_u64(0, length, "text")?;
        let read = std::str::from_utf8(bytes.get());
        read.map_err(|error| bytes.malformed(error.valid_up_to(), "text", "it is not UTF-8"))?
            .clone_into(text);
        at += 8 + bytes.len();
    }
    if at != trailer.len() {
        return Err(trailer.malformed(at, "the simulator's trailer", "there are bytes after its last text"));
    }
    Ok(found)
}
