//! The payload of ExecuTorch's MediaTek backend: a byte 1, the numbers of inputs and outputs and
//! the length of the code in 32 bits each, then the code.

use serde::Serialize;

use crate::Result;
use crate::blob::{self, Blob, Kind};
use crate::budget::Budget;
use crate::bytes::Bytes;

/// The only version.
const VERSION: u8 = 1;
/// Number of bytes before the code.
const HEAD: usize = 13;
/// Maximum number of inputs or outputs. Files with more are treated as another format, because the
/// first byte alone is weak evidence.
const MAX_PORTS: u32 = 4096;

/// A parsed payload.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Payload {
    pub inputs: u32,
    pub outputs: u32,
    /// The compiled code.
    pub blob: Blob,
}

/// Reads a payload. Returns `None` for bytes that are not a payload: another version, a length that
/// does not match, or unknown code.
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
    /// Creates the report on the payload.
    pub fn document(&self) -> Document {
        Document { version: VERSION, inputs: self.inputs, outputs: self.outputs, code: self.blob.document() }
    }
}
