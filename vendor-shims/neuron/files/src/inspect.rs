//! Identifies a file and reports on it: the format's name and a JSON document.
//!
//! In addition to the fields of its format, every document has `compilations`, a list of compilers
//! with chip and options ([`Compilation`]), and `warnings`, a list of sentences.

use serde::Serialize;

use crate::blob::{self, Blob, Compilation, Kind};
use crate::budget::Budget;
use crate::bytes::Bytes;
use crate::{ContainerError, Result, executorch, litertlm, neuron_schema, simulated, tflite};

/// Maximum length of a document in bytes, the same as in the shims' contract.
const MAX_DOCUMENT: usize = 4 << 20;

/// A recognised file.
#[derive(Clone, Debug, PartialEq)]
pub struct Inspected {
    /// One of `tflite`, `litertlm`, `neuron-container`, `neuron-adapter-cache`, `neuron-dla`,
    /// `executorch-neuron-payload`, `shardwright-neuron-simulator`.
    pub format: &'static str,
    pub document: serde_json::Value,
}

#[derive(Serialize)]
struct Document<T: Serialize> {
    #[serde(flatten)]
    particular: T,
    compilations: Vec<Compilation>,
    warnings: Vec<String>,
}

fn inspected(
    format: &'static str,
    offset: u64,
    particular: impl Serialize,
    compilations: Vec<Compilation>,
    warnings: Vec<String>,
) -> Result<Option<Inspected>> {
    let document = serde_json::to_value(Document { particular, compilations, warnings });
    let document = document.map_err(|error| ContainerError::Malformed {
        what: "document",
        offset,
        reason: error.to_string(),
    })?;
    let bytes = document.to_string().len();
    if bytes > MAX_DOCUMENT {
        return Err(ContainerError::TooMany {
            what: "bytes of the report",
            offset,
            count: bytes as u64,
            most: MAX_DOCUMENT as u64,
        });
    }
    Ok(Some(Inspected { format, document }))
}

/// Report on a single piece of code.
#[derive(Clone, Debug, Serialize)]
struct Alone {
    code: blob::BlobDocument,
}

fn alone(blob: &Blob, format: &'static str) -> Result<Option<Inspected>> {
    let compilations = vec![blob.compilation("code", None)];
    inspected(format, 0, Alone { code: blob.document() }, compilations, blob.warnings("code"))
}

/// Identifies a file. Returns `None` for a format outside this family.
///
/// # Errors
///
/// For a file of this family that cannot be read because it is damaged or of an unknown version.
pub fn inspect(bytes: &[u8]) -> Result<Option<Inspected>> {
    let file = Bytes::new(bytes);
    let mut budget = Budget::of(bytes.len());
    if litertlm::is(bytes) {
        let read = litertlm::read(file, &mut budget)?;
        return inspected("litertlm", 0, read.document(), read.compilations(), read.warnings());
    }
    if tflite::is(bytes) {
        let read = tflite::read(file, &mut budget)?;
        return inspected("tflite", 0, read.document(), read.compilations(), read.warnings());
    }
    if bytes.starts_with(&simulated::MAGIC) {
        return alone(&blob::read(file, &mut budget)?, "shardwright-neuron-simulator");
    }
    if bytes.is_empty() {
        return Ok(None);
    }
    let blob = blob::read(file, &mut budget)?;
    if blob.kind == Kind::Dla {
        return alone(&blob, "neuron-dla");
    }
    // These two formats have no magic number, and both end with code as an adapter cache does.
    // Files that do not parse are treated as another format.
    if let Ok(Some(payload)) = executorch::read(file, &mut Budget::of(bytes.len())) {
        let compilations = vec![payload.blob.compilation("code", None)];
        let warnings = payload.blob.warnings("code");
        return inspected("executorch-neuron-payload", 0, payload.document(), compilations, warnings);
    }
    if let Ok(container) = neuron_schema::read(file, &mut Budget::of(bytes.len()))
        && container.subgraphs.iter().any(|subgraph| subgraph.blob.kind != Kind::Unrecognised)
    {
        let compilations = container.compilations(None);
        return inspected("neuron-container", 0, container.document(), compilations, container.warnings());
    }
    if blob.kind == Kind::AdapterCache { alone(&blob, "neuron-adapter-cache") } else { Ok(None) }
}
