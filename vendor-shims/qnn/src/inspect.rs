//! Identifies a file: an artefact of this shim, or any QNN context binary.

use std::sync::Arc;

use serde::Serialize;
use shardwright_shim_abi::{Error, ErrorClass, Inspection, Result};

use crate::artefact::{Artefact, Entry, FORMAT, Head};
use crate::driver::Driver;
use crate::session::{BinaryDescription, describe_binary};

/// The report on an artefact.
#[derive(Serialize)]
struct Inspected<'a> {
    head: &'a Head,
    entries: &'a [Entry],
    /// Why the binary was not inspected, if it was not.
    #[serde(skip_serializing_if = "Option::is_none")]
    unread: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    context_binary: Option<BinaryDescription>,
}

fn document(format: &str, content: &impl Serialize) -> Result<Option<Inspection>> {
    let document = serde_json::to_string(content).map_err(|error| Error::internal(error.to_string()))?;
    Ok(Some(Inspection { format: format.to_owned(), document }))
}

/// Describes an artefact or a context binary. Returns `None` if the bytes are neither. The library
/// is opened only for bytes that resemble its own format.
///
/// # Errors
///
/// Returns an error if the bytes are damaged, or if no library is available to read a foreign
/// binary.
pub fn inspect(bytes: &[u8], driver: impl FnOnce() -> Result<Arc<Driver>>) -> Result<Option<Inspection>> {
    let describe = |binary: &[u8]| -> Result<BinaryDescription> {
        let driver = driver()?;
        let system = driver.backend().library().system()?.clone();
        Ok(describe_binary(&system, binary)?)
    };
    if is_context_binary(bytes) {
        return document("qnn-context-binary", &describe(bytes)?);
    }
    let artefact = match Artefact::read(bytes) {
        Ok(artefact) => artefact,
        Err(error) if error.class == ErrorClass::IncompatibleArtefact && !FORMAT.is_ours(bytes) => {
            return Ok(None);
        }
        Err(error) => return Err(error),
    };
    let described = artefact.binary()?;
    let (context_binary, unread) = match describe(described) {
        Ok(description) => (Some(description), None),
        Err(error) => (None, Some(error.message)),
    };
    let descriptor = &artefact.descriptor;
    let inspected =
        Inspected { head: &descriptor.head, entries: &descriptor.entries, unread, context_binary };
    document("qnn-artefact", &inspected)
}

/// First bytes of the library's binaries, in every known version.
const CONTEXT_BINARY: &[u8] = &[0, 0, 0, 2, 0, 0, 0];

/// Checks whether bytes begin like one of the library's binaries.
fn is_context_binary(bytes: &[u8]) -> bool {
    bytes.starts_with(CONTEXT_BINARY)
}
