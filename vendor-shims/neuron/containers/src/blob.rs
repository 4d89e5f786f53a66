//! One piece of compiled code, as a Neuron library stores it, and its metadata.
//!
//! * **DLA**: four 32-bit words, `length − 4`, 12, 8 and a magic number. The meaning of 12 and 8 is
//!   unknown. They are the same in all observed files.
//! * **Adapter cache** (from adapter 8): a number (212205 in both observed files), 608, a
//!   description of inputs and outputs, then a DLA up to the end.
//! * **Simulator**: output of this project's simulator of the compiler, with its own magic
//!   ([`simulated`]).

use serde::Serialize;

use crate::budget::Budget;
use crate::bytes::{Bytes, crc32};
use crate::options::{CompilerOption, OptionString};
use crate::record::{self, Compiler, Trailer};
use crate::{ContainerError, Result, Version};

/// The fourth word of a DLA.
pub const DLA_MAGIC: u32 = 0x3852_fd1a;
/// Words between the length and the magic number of a DLA.
const DLA_WORDS: [u32; 2] = [12, 8];
/// Total bytes of a DLA's four words.
const DLA_HEAD: usize = 16;
/// Maximum offset in an adapter cache at which a DLA is searched. It was observed at 678.
const MAX_DESCRIPTION: usize = 64 << 10;

/// First bytes of the simulator's output.
pub const SIMULATOR_MAGIC: [u8; 8] = *b"SWNEURON";
/// The only layout version of the simulator's output.
pub const SIMULATOR_LAYOUT: u32 = 1;
/// Offset of the first byte that the checksum covers.
pub const SIMULATOR_HEAD: usize = 64;
/// Number of texts in the simulator's trailer.
const SIMULATOR_TEXTS: usize = 3;

/// Kind of compiled code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A DLA without a wrapper.
    Dla,
    /// A description of inputs and outputs, followed by a DLA.
    AdapterCache,
    /// Code of this project's simulator, which is not MediaTek code.
    Simulator,
    /// Any other code.
    Unrecognised,
}

/// One piece of compiled code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Blob {
    pub kind: Kind,
    /// Offset of the code in the file.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    /// The first word of an adapter cache.
    pub stamp: Option<u32>,
    /// Offset of the DLA in the code.
    pub dla_at: Option<u64>,
    /// The chip, if the code names it. The simulator's code does, and options may.
    pub soc: Option<String>,
    /// The compiler's record about itself and its options.
    pub trailer: Option<Trailer>,
    /// The adapter's version, from a header if there is one, otherwise from the compiler's record.
    pub version: Option<Version>,
    /// Number of operations, if the code states it.
    pub operations: Option<u32>,
    /// Range of the code itself, without the compiler's record. To compare the code of two blobs,
    /// compare [`code_of`].
    pub code: std::ops::Range<usize>,
}

/// Reads one piece of compiled code.
///
/// # Errors
///
/// For empty input, for a simulator's blob that is truncated, damaged or of another layout, and for
/// a file whose read budget is used up. Unrecognised code is not an error: its kind is
/// [`Kind::Unrecognised`].
pub fn read(bytes: Bytes<'_>, budget: &mut Budget) -> Result<Blob> {
    budget.blob(bytes.offset(0))?;
    if bytes.is_empty() {
        return Err(ContainerError::Empty { what: "compiled code", offset: bytes.offset(0) });
    }
    if bytes.get().starts_with(&SIMULATOR_MAGIC) {
        return simulated(bytes, budget);
    }
    let dla_at = dla_in(bytes)?;
    let kind = match dla_at {
        Some(0) => Kind::Dla,
        Some(_) => Kind::AdapterCache,
        None => Kind::Unrecognised,
    };
    let trailer = record::search(bytes, budget)?;
    let code = 0..trailer.as_ref().map_or(bytes.len(), |trailer| trailer.start);
    let options = trailer.as_ref().and_then(|trailer| trailer.parsed_options()?.ok());
    Ok(Blob {
        kind,
        offset: bytes.offset(0),
        bytes: bytes.len() as u64,
        stamp: match kind {
            Kind::AdapterCache => Some(bytes.u32(0, "stamp")?),
            _ => None,
        },
        dla_at: dla_at.map(|at| at as u64),
        soc: options.as_ref().and_then(platform),
        version: trailer.as_ref().and_then(|trailer| trailer.compiler.as_ref()?.parsed_version()),
        operations: None,
        trailer,
        code,
    })
}

/// Returns the chip that the options name.
fn platform(options: &OptionString) -> Option<String> {
    let named = options.get("platform-config")?;
    let plain =
        named.starts_with("mt") && named.len() <= 16 && named.bytes().all(|b| b.is_ascii_alphanumeric());
    plain.then(|| named.to_owned())
}

/// Returns the offset of a DLA that ends at the end of the bytes.
fn dla_in(bytes: Bytes<'_>) -> Result<Option<usize>> {
    let all = bytes.get();
    let magic = DLA_MAGIC.to_le_bytes();
    let end = all.len().min(MAX_DESCRIPTION + DLA_HEAD);
    for (at, words) in all[..end].windows(DLA_HEAD).enumerate() {
        if words[12..] != magic {
            continue;
        }
        let rest = bytes.from(at, "DLA")?;
        let length = u64::from(rest.u32(0, "length of the DLA")?) + 4;
        let others = [rest.u32(4, "DLA")?, rest.u32(8, "DLA")?];
        if length == rest.len() as u64 && others == DLA_WORDS && (at == 0 || at >= 8) {
            return Ok(Some(at));
        }
    }
    Ok(None)
}

/// Reads the simulator's format:
///
/// | at | what |
/// |---|---|
/// | 0 | `SWNEURON` |
/// | 8 | u32 layout, 1 |
/// | 12 | u8 major, minor, patch of the emulated adapter, u8 0 |
/// | 16 | the chip, 16 bytes, padded with zeros |
/// | 32, 40 | u64 offset and length of the code |
/// | 48 | u64 offset of the trailer, which extends to the end |
/// | 56 | u32 operations |
/// | 60 | u32 checksum (CRC-32) of everything from 64 on |
///
/// The trailer has the form that real compilers use: identifier, record and options, each after a
/// u32 length and four zero bytes.
pub fn simulated(bytes: Bytes<'_>, budget: &mut Budget) -> Result<Blob> {
    let head = bytes.slice(0, SIMULATOR_HEAD, "head of the simulator's code")?;
    let layout = head.u32(8, "layout")?;
    if layout != SIMULATOR_LAYOUT {
        return Err(ContainerError::UnknownVersion {
            what: "layout of the simulator's code",
            offset: head.offset(8),
            version: layout.to_string(),
            supported: "1",
        });
    }
    let [major, minor, patch] = [12, 13, 14].map(|at| head.get()[at]);
    let said = head.u32(60, "check sum")?;
    let rest = bytes.from(SIMULATOR_HEAD, "the simulator's code")?;
    let (code_at, code_length) = (head.u64(32, "place of the code")?, head.u64(40, "length of the code")?);
    let trailer_at = head.u64(48, "place of the trailer")?;
    let code = bytes.slice_u64(code_at, code_length, "the simulator's code")?;
    let trailer_length = (bytes.len() as u64).saturating_sub(trailer_at);
    let trailer = bytes.slice_u64(trailer_at, trailer_length, "the simulator's trailer")?;
    // Both are within the bytes, so the conversions cannot overflow.
    let (code_at, trailer_at) = (code_at as usize, trailer_at as usize);
    if code_at < SIMULATOR_HEAD || trailer_at < code_at + code.len() {
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
    let soc = &head.get()[16..32];
    let soc = &soc[..soc.iter().position(|byte| *byte == 0).unwrap_or(soc.len())];
    let soc =
        std::str::from_utf8(soc).ok().filter(|soc| soc.bytes().all(|byte| byte.is_ascii_alphanumeric()));
    let soc = soc.ok_or_else(|| head.malformed(16, "chip", "it is no name of one"))?;
    Ok(Blob {
        kind: Kind::Simulator,
        offset: bytes.offset(0),
        bytes: bytes.len() as u64,
        stamp: None,
        dla_at: None,
        soc: (!soc.is_empty()).then(|| soc.to_owned()),
        version: Some(Version::new(major, minor, patch)),
        operations: Some(head.u32(56, "operations")?),
        trailer: Some(Trailer {
            start: trailer_at,
            end: bytes.len(),
            identifier: Some(identifier),
            compiler: Compiler::read(&record),
            options: Some(options),
            records: 1,
        }),
        code: code_at..code_at + code.len(),
    })
}

/// Reads the texts of the simulator's trailer.
fn texts(trailer: Bytes<'_>) -> Result<[String; SIMULATOR_TEXTS]> {
    let mut found = <[String; SIMULATOR_TEXTS]>::default();
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

/// Returns the code itself, without the compiler's record (identifier, record and options) and
/// without the lengths that depend on the record.
///
/// Returns an empty vector if the bytes cannot be read.
pub fn code_of(bytes: &[u8]) -> Vec<u8> {
    let Ok(blob) = read(Bytes::new(bytes), &mut Budget::of(bytes.len())) else { return Vec::new() };
    let mut code = bytes.get(blob.code.clone()).unwrap_or_default().to_vec();
    if blob.kind != Kind::Simulator
        && let Some(trailer) = &blob.trailer
    {
        code.extend_from_slice(bytes.get(trailer.end..).unwrap_or_default());
    }
    // The length of a DLA includes its trailer.
    if let Some(length) = blob.dla_at.and_then(|at| code.get_mut(at as usize..at as usize + 4)) {
        length.fill(0);
    }
    code
}

/// Report on a piece of code.
#[derive(Clone, Debug, Serialize)]
pub struct BlobDocument {
    /// Kind of the code, for example `adapter-cache`.
    pub kind: Kind,
    /// Offset of the code in the file.
    pub offset: u64,
    /// Length in bytes.
    pub bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    stamp: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dla_offset: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    operations: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    identifier: Option<String>,
}

/// The compiler, the chip and the options of a piece of code. A host compares this part of a
/// document with the chip's profile.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Compilation {
    /// Name of the piece, for example `Partition_0`.
    pub name: String,
    /// Name of the chip, for example `mt6989`. `None` if unknown.
    pub soc: Option<String>,
    /// The compiler, or `None` if the code has no record.
    pub compiler: Option<Compiler>,
    /// The option string in the file, or `None` if there is none.
    pub options: Option<String>,
    /// The parsed options, or `None` if they are missing or cannot be parsed.
    pub flags: Option<Vec<CompilerOption>>,
}

impl Blob {
    /// Creates the report on the code.
    pub fn document(&self) -> BlobDocument {
        BlobDocument {
            kind: self.kind,
            offset: self.offset,
            bytes: self.bytes,
            stamp: self.stamp,
            dla_offset: self.dla_at.map(|at| self.offset + at),
            operations: self.operations,
            identifier: self.trailer.as_ref().and_then(|trailer| trailer.identifier.clone()),
        }
    }

    /// Returns the compiler, chip and options. `soc` comes from the surrounding file and is used if
    /// the code itself does not name a chip.
    pub fn compilation(&self, name: &str, soc: Option<&str>) -> Compilation {
        let options = self.trailer.as_ref().and_then(|trailer| trailer.options.clone());
        let flags = options.as_deref().and_then(|options| OptionString::parse(options).ok());
        Compilation {
            name: name.to_owned(),
            soc: self.soc.clone().or_else(|| soc.map(str::to_owned)),
            compiler: self.trailer.as_ref().and_then(|trailer| trailer.compiler.clone()),
            options,
            flags: flags.map(|flags| flags.0),
        }
    }

    /// Lists anomalies, one sentence each.
    pub fn warnings(&self, name: &str) -> Vec<String> {
        let mut found = Vec::new();
        match self.kind {
            Kind::Simulator => found
                .push(format!("{name}: compiled by a simulator of the compiler; no MediaTek chip runs it")),
            Kind::Unrecognised => {
                found.push(format!("{name}: the compiled code begins like none that is known"))
            }
            Kind::Dla | Kind::AdapterCache => {}
        }
        let Some(trailer) = &self.trailer else {
            found.push(format!("{name}: no record of a compiler in the last {} bytes", record::SEARCHED));
            return found;
        };
        if trailer.records > 1 {
            found.push(format!("{name}: {} records of a compiler; the last was read", trailer.records));
        }
        if trailer.compiler.is_none() {
            found.push(format!("{name}: the compiler's record is no JSON object"));
        }
        match trailer.parsed_options() {
            None => found.push(format!("{name}: no option string follows the compiler's record")),
            Some(Err(error)) => found.push(format!("{name}: {error}")),
            Some(Ok(options)) => {
                let contradictions = options.contradictions();
                if !contradictions.is_empty() {
                    let names = contradictions.join(", ");
                    found.push(format!("{name}: given more than once with different values: {names}"));
                }
                for path in record::paths(&options) {
                    found.push(format!("{name}: `{path}` is a path of the machine it was compiled on"));
                }
            }
        }
        found
    }
}
