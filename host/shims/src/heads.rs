//! An artefact's heads, stored in a separate file.
//!
//! A host selects one of several artefacts by these heads. They are stored separately so that the
//! host can verify them without hashing the payload.

use std::path::Path;

use shardwright_shim_abi::raw::SW_HEAD_LIMIT;
use shardwright_vocabulary::{Error, Result};

use crate::artefact::{Artefact, ArtefactHead};

/// Everything in an artefact except its payload.
#[derive(Clone, Debug, PartialEq)]
pub struct Heads {
    pub head: ArtefactHead,
    /// The head that the shim wrote.
    pub shim_head: Vec<u8>,
}

impl Heads {
    /// Returns the heads of an artefact.
    pub fn of(artefact: &Artefact) -> Heads {
        Heads { head: artefact.head().clone(), shim_head: artefact.shim_head().to_vec() }
    }

    /// Parses the output of [`to_bytes`](Self::to_bytes). The caller has verified the bytes of
    /// `path`.
    ///
    /// # Errors
    ///
    /// If the bytes differ from the output of [`to_bytes`](Self::to_bytes).
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Heads> {
        let invalid = |reason: String| {
            let error = Error::invalid(format!("heads of an artefact: {reason}"));
            error.at(path.display()).with_help("compile the bundle again")
        };
        let mut values = serde_json::Deserializer::from_slice(bytes).into_iter::<ArtefactHead>();
        let head = values.next().ok_or_else(|| invalid("empty".to_owned()))?;
        let head = head.map_err(|error| invalid(error.to_string()))?;
        let (json, shim_head) = bytes.split_at(values.byte_offset());
        let found = shim_head.len() as u64;
        if serde_json::to_vec(&head).ok().as_deref() != Some(json) {
            return Err(invalid("not in canonical spelling".to_owned()));
        }
        if found != head.head_length || found > u64::from(SW_HEAD_LIMIT) {
            let expected = head.head_length;
            return Err(invalid(format!("expected {expected} bytes of the shim's head, got {found}")));
        }
        Ok(Heads { head, shim_head: shim_head.to_vec() })
    }

    /// Returns the JSON head in canonical spelling, then the shim's head.
    ///
    /// # Errors
    ///
    /// Returns an error if the head cannot be serialised as JSON.
    pub fn to_bytes(&self) -> Result<Vec<u8>, serde_json::Error> {
        let mut bytes = serde_json::to_vec(&self.head)?;
        bytes.extend_from_slice(&self.shim_head);
        Ok(bytes)
    }
}
