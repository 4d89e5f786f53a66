//! Identifies a file: an artefact of this shim, or a container in which code for MediaTek chips is
//! shipped.

use serde::Serialize;
use shardwright_neuron_containers::blob::{self, BlobDocument, Compilation};
use shardwright_neuron_containers::budget::Budget;
use shardwright_neuron_containers::bytes::Bytes;
use shardwright_neuron_containers::{ContainerError, inspect as containers};
use shardwright_shim_abi::{Error, ErrorClass, Inspection, Result};
use shardwright_shim_npu::artefact::incompatible;

use crate::artefact::{Artefact, Entry, FORMAT, Head};

/// Report on an artefact.
#[derive(Serialize)]
struct Inspected<'a> {
    head: &'a Head,
    entries: &'a [Entry],
    blobs: Vec<BlobDocument>,
    compilations: Vec<Compilation>,
    warnings: Vec<String>,
}

/// Identifies the bytes. Returns `None` if they are in no format of this vendor.
///
/// # Errors
///
/// For a damaged file, or a file of an unknown version.
pub(crate) fn inspect(bytes: &[u8]) -> Result<Option<Inspection>> {
    if !FORMAT.is_ours(bytes) {
        let found = containers::inspect(bytes).map_err(unreadable)?;
        let reported = |found: containers::Inspected| Inspection {
            format: found.format.to_owned(),
            document: found.document.to_string(),
        };
        return Ok(found.map(reported));
    }
    let artefact = Artefact::read(bytes)?;
    let head = &artefact.descriptor.head;
    let (mut blobs, mut compilations, mut warnings) = (Vec::new(), Vec::new(), Vec::new());
    let mut budget = Budget::of(bytes.len());
    for entry in &artefact.descriptor.entries {
        let read = blob::read(Bytes::new(artefact.blob(entry)?), &mut budget).map_err(unreadable)?;
        blobs.push(read.document());
        compilations.push(read.compilation(&entry.name, Some(&head.soc)));
        warnings.extend(read.warnings(&entry.name));
    }
    let entries = &artefact.descriptor.entries;
    let inspected = Inspected { head, entries, blobs, compilations, warnings };
    let document = serde_json::to_string(&inspected).map_err(|error| Error::internal(error.to_string()))?;
    Ok(Some(Inspection { format: "neuron-artefact".to_owned(), document }))
}

fn unreadable(error: ContainerError) -> Error {
    let help = error.help();
    match error {
        ContainerError::UnknownVersion { .. } => incompatible(error.to_string(), help),
        error => Error::new(ErrorClass::CorruptArtefact, error.to_string()).help(help),
    }
}
