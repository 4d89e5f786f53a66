//! One piece of compiled code, as a Neuron library stores it, and its metadata.
//!
//! * **DLA**: four 32-bit words, `length − 4`, 12, 8 and a magic number. The meaning of 12 and 8 is
//!   unknown. They are the same in all observed files.
//! * **Adapter cache** (from adapter 8): a number (212205 in both observed files), 608, a
//!   description of inputs and outputs, then a DLA up to the end.
//! * **Simulator**: output of this project's simulator of the compiler, with its own magic
//!   ([`simulated`]).

use serde::Serialize;
use shardwright_neuron_adapter::RuntimeVersion;

use crate::budget::Budget;
use crate::bytes::Bytes;
use crate::options::{CompilerOption, OptionString};
use crate::record::{self, Compiler, Trailer};
use crate::{ContainerError, Result, simulated};

/// The fourth word of a DLA.
pub const DLA_MAGIC: u32 = 0x3852_fd1a;
/// Words between the length and the magic number of a DLA.
const DLA_WORDS: [u32; 2] = [12, 8];
/// Total bytes of a DLA's four words.
const DLA_HEAD: usize = 16;
/// Maximum offset in an adapter cache at which a DLA is searched. It was observed at 678.
const MAX_DESCRIPTION: usize = 64 << 10;

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
    pub version: Option<RuntimeVersion>,
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
    if bytes.get().starts_with(&simulated::MAGIC) {
        let (head, trailer) = simulated::read(bytes, budget)?;
        return Ok(Blob {
            kind: Kind::Simulator,
            offset: bytes.offset(0),
            bytes: bytes.len() as u64,
            stamp: None,
            dla_at: None,
            soc: Some(head.soc).filter(|soc| !soc.is_empty()),
            trailer: Some(trailer),
            version: Some(head.version),
            operations: Some(head.operations),
            code: head.code,
        });
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
                found.push(format!("{name}: the first bytes of the compiled code are unknown"))
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
            found.push(format!("{name}: the compiler's record is not a JSON object"));
        }
        match trailer.parsed_options() {
            None => found.push(format!("{name}: no option string follows the compiler's record")),
            Some(Err(error)) => found.push(format!("{name}: {error}")),
            Some(Ok(options)) => {
                let contradictions = options.contradictions();
                if !contradictions.is_empty() {
                    let names = contradictions.join(", ");
                    found.push(format!("{name}: set more than once with different values: {names}"));
                }
                for path in record::paths(&options) {
                    found.push(format!("{name}: `{path}` is a path of the machine that compiled it"));
                }
            }
        }
        found
    }
}
