//! The payload of ExecuTorch's MediaTek backend: a byte 1, the numbers of inputs and outputs and
//! the length of the code in 32 bits each, the code.

use serde::Serialize;

use crate::Result;
use crate::blob::{self, Blob, Kind};
use crate::budget::Budget;
use crate::bytes::Bytes;

/// The only version.
const VERSION: u8 = 1;
/// Bytes before the code.
const HEAD: usize = 13;
/// Files with more inputs or outputs are taken for another format: the first byte alone is a weak
/// sign.
const MAX_PORTS: u32 = 4096;

/// A payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    /// Number of inputs.
    pub inputs: u32,
    /// Number of outputs.
    pub outputs: u32,
    /// The code.
    pub blob: Blob,
}

/// Reads a payload; `None` for bytes that are none: another version, a length that does not match,
/// or no known code.
///
/// # Errors
///
/// If the code is damaged.
pub fn read(bytes: Bytes<'_>, budget: &mut Budget) -> Result<Option<Payload>> {
    if bytes.len() <= HEAD || bytes.u8(0, "version")? != VERSION {
        return Ok(None);
    }
    let [inputs, outputs, length] = [1, 5, 9].map(|at| bytes.u32(at, "head of the payload"));
    let (inputs, outputs, length) = (inputs?, outputs?, length?);
    let code = bytes.from(HEAD, "code")?;
    if code.len() as u64 != u64::from(length) || inputs > MAX_PORTS || outputs > MAX_PORTS {
        return Ok(None);
    }
    let blob = blob::read(code, budget)?;
    Ok((blob.kind != Kind::Unrecognised).then_some(Payload { inputs, outputs, blob }))
}

/// Report on a payload.
#[derive(Clone, Debug, Serialize)]
pub struct Document {
    version: u8,
    inputs: u32,
    outputs: u32,
    code: blob::BlobDocument,
}

impl Payload {
    /// Its report.
    pub fn document(&self) -> Document {
        Document { version: VERSION, inputs: self.inputs, outputs: self.outputs, code: self.blob.document() }
    }
}
