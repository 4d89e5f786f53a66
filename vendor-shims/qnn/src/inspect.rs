//! Describes the vendor's context binaries: in an artefact of this shim, or on their own.

use serde::Serialize;
use shardwright_shim_abi::{Inspection, Result};
use shardwright_shim_npu::shim::inspection;

use crate::QnnShim;
use crate::artefact::{Artefact, Descriptor};
use crate::session::{BinaryDescription, describe_binary};

/// The report on an artefact.
#[derive(Serialize)]
struct Inspected {
    #[serde(flatten)]
    descriptor: Descriptor,
    /// Why the binary was not inspected, if it was not.
    #[serde(skip_serializing_if = "Option::is_none")]
    unread: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    context_binary: Option<BinaryDescription>,
}

/// Describes an artefact of this shim.
///
/// # Errors
///
/// Returns an error if the bytes are damaged.
pub fn inspect(shim: &QnnShim, bytes: &[u8]) -> Result<impl Serialize> {
    let artefact = Artefact::read(bytes)?;
    let (context_binary, unread) = match described(shim, artefact.binary()?) {
        Ok(description) => (Some(description), None),
        Err(error) => (None, Some(error.message)),
    };
    Ok(Inspected { descriptor: artefact.descriptor, unread, context_binary })
}

/// First bytes of the library's binaries, in every known version.
const CONTEXT_BINARY: &[u8] = &[0, 0, 0, 2, 0, 0, 0];

/// Describes a context binary. Returns `None` if the bytes do not begin like one. The library is
/// opened only if they do.
///
/// # Errors
///
/// Returns an error if the bytes are damaged, or if no library is available to read them.
pub fn inspect_foreign(shim: &QnnShim, bytes: &[u8]) -> Result<Option<Inspection>> {
    if !bytes.starts_with(CONTEXT_BINARY) {
        return Ok(None);
    }
    inspection("qnn-context-binary".to_owned(), &described(shim, bytes)?).map(Some)
}

fn described(shim: &QnnShim, binary: &[u8]) -> Result<BinaryDescription> {
    let driver = shim.driver()?;
    let system = driver.backend().library().system()?.clone();
    Ok(describe_binary(&system, binary)?)
}
