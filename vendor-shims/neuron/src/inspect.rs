//! Describes the compiled networks of an artefact of this shim, and containers in which code for
//! MediaTek chips is shipped.

use serde::Serialize;
use shardwright_neuron_files::blob::{self, BlobDocument, Compilation};
use shardwright_neuron_files::budget::Budget;
use shardwright_neuron_files::bytes::Bytes;
use shardwright_neuron_files::{ContainerError, inspect as containers};
use shardwright_shim_abi::{Error, ErrorClass, Inspection, Result};
use shardwright_shim_npu::artefact::incompatible;

use crate::artefact::{Artefact, Descriptor};

/// The report on an artefact.
#[derive(Serialize)]
struct Inspected {
    #[serde(flatten)]
    descriptor: Descriptor,
    blobs: Vec<BlobDocument>,
    compilations: Vec<Compilation>,
    warnings: Vec<String>,
}

/// Describes an artefact of this shim.
///
/// # Errors
///
/// For damaged bytes, or compiled networks of an unknown version.
pub(crate) fn inspect(bytes: &[u8]) -> Result<impl Serialize> {
    let artefact = Artefact::read(bytes)?;
    let Descriptor { head, entries } = &artefact.descriptor;
    let (mut blobs, mut compilations, mut warnings) = (Vec::new(), Vec::new(), Vec::new());
    let mut budget = Budget::of(bytes.len());
    for entry in entries {
        let read = blob::read(Bytes::new(artefact.blob(entry)?), &mut budget).map_err(unreadable)?;
        blobs.push(read.document());
        compilations.push(read.compilation(&entry.name, Some(&head.soc)));
        warnings.extend(read.warnings(&entry.name));
    }
    Ok(Inspected { descriptor: artefact.descriptor, blobs, compilations, warnings })
}

/// Identifies a container. Returns `None` if the bytes are in no format of this vendor.
///
/// # Errors
///
/// For a damaged file, or a file of an unknown version.
pub(crate) fn inspect_foreign(bytes: &[u8]) -> Result<Option<Inspection>> {
    let found = containers::inspect(bytes).map_err(unreadable)?;
    let reported = |found: containers::Inspected| Inspection {
        format: found.format.to_owned(),
        document: found.document.to_string(),
    };
    Ok(found.map(reported))
}

fn unreadable(error: ContainerError) -> Error {
    let help = error.help();
    match error {
        ContainerError::UnknownVersion { .. } => incompatible(error.to_string(), help),
        error => Error::new(ErrorClass::CorruptArtefact, error.to_string()).help(help),
    }
}
