//! The signed list of keys and releases that must not be used any more.
//!
//! ```text
//! an envelope, whose release is the number of the list
//! {"revocations":1,"keys":["<64 digits>"],"least":[{"kind":"bundle","name":"gemma-3-1b","release":4}]}
//! ```

use std::path::Path;

use serde::{Deserialize, Serialize};
use shardwright_vocabulary::{Error, Result};

use crate::{ENVELOPE_BYTES, Envelope, Kind, PublicKey, SecretKey, Statement};

/// Largest size of a list in bytes, enough for some ten thousand entries.
pub const REVOCATIONS_BYTES: u64 = 1 << 20;

/// Version of the format.
const VERSION: u32 = 1;

/// A list of revocations with its number. A later list has a higher number, and contains all
/// earlier revocations.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Revocations {
    /// Name of the list. Lists with the same name are numbered together.
    pub name: String,
    /// Number of the list.
    pub sequence: u64,
    /// Key that signed the list.
    pub key: PublicKey,
    /// Keys whose signatures are not accepted any more, whenever they were made.
    pub keys: Vec<PublicKey>,
    /// Smallest releases that may still be used.
    pub least: Vec<LeastRelease>,
}

/// The smallest release under a name that may still be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeastRelease {
    /// Kind of the signed file.
    pub kind: Kind,
    /// Name in the signatures.
    pub name: String,
    /// Number of the smallest release.
    pub release: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Listed {
    revocations: u32,
    keys: Vec<PublicKey>,
    least: Vec<LeastRelease>,
}

impl Revocations {
    /// Returns the signed list `sequence` of `name`. Equal arguments give equal bytes.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Argument`](shardwright_vocabulary::ErrorKind) for an invalid name.
    pub fn sign(
        name: &str,
        sequence: u64,
        keys: &[PublicKey],
        least: &[LeastRelease],
        key: &SecretKey,
    ) -> Result<Vec<u8>> {
        let listed = Listed { revocations: VERSION, keys: keys.to_vec(), least: least.to_vec() };
        // Text, numbers and lists can always be written as JSON.
        let mut payload = serde_json::to_vec(&listed).unwrap_or_default();
        payload.push(b'\n');
        let statement = Statement::of(Kind::Revocations, name, sequence, &payload)?;
        let mut bytes = Envelope::sign(&statement, key).to_bytes().to_vec();
        bytes.append(&mut payload);
        Ok(bytes)
    }

    /// Reads a list without trusting it, and returns whether its signature is valid.
    ///
    /// # Errors
    ///
    /// If the list is invalid.
    pub fn inspect(path: &Path, bytes: &[u8]) -> Result<(Revocations, bool)> {
        let mut holds = false;
        let list = Revocations::parse(path, bytes, |envelope| {
            holds = envelope.is_signed() && envelope.statement().kind == Kind::Revocations;
            Ok(())
        })?;
        Ok((list, holds))
    }

    /// Parses a list after `admits` has accepted its envelope. `path` is used in messages.
    ///
    /// # Errors
    ///
    /// The errors of `admits`. Also if the list is not the signed one, or invalid.
    pub(crate) fn parse(
        path: &Path,
        bytes: &[u8],
        admits: impl FnOnce(&Envelope) -> Result<()>,
    ) -> Result<Revocations> {
        let (head, payload) = bytes.split_at(bytes.len().min(ENVELOPE_BYTES));
        let envelope = Envelope::parse(path, head)?;
        admits(&envelope)?;
        envelope.expect_about(path, payload)?;
        let (statement, key) = (envelope.statement(), envelope.key());
        let listed: Listed =
            serde_json::from_slice(payload).map_err(|error| invalid(path, error.to_string()))?;
        if listed.revocations != VERSION {
            let found = listed.revocations;
            return Err(invalid(path, format!("expected version {VERSION} of the format, got {found}")));
        }
        if listed.keys.contains(&key) {
            return Err(invalid(path, format!("it revokes {key}, which signed it")));
        }
        Ok(Revocations {
            name: statement.name.clone(),
            sequence: statement.release,
            key,
            keys: listed.keys,
            least: listed.least,
        })
    }

    /// Returns the smallest release that may be used under a statement's kind and name.
    pub fn least(&self, statement: &Statement) -> Option<u64> {
        let about = |least: &&LeastRelease| least.kind == statement.kind && least.name == statement.name;
        self.least.iter().filter(about).map(|least| least.release).max()
    }
}

/// Returns the error for an invalid list.
pub(crate) fn invalid(path: &Path, reason: String) -> Error {
    Error::invalid(format!("invalid list of revocations: {reason}"))
        .at(path.display())
        .with_help("get the list again from its source")
}
