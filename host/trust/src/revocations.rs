//! The signed list of what must not be used any more.
//!
//! ```text
//! an envelope, whose release is the number of the list
//! {"revocations":1,"keys":["<64 digits>"],"least":[{"kind":"bundle","name":"gemma-3-1b","release":4}]}
//! ```

use std::path::Path;

use serde::{Deserialize, Serialize};

use crate::{ENVELOPE_BYTES, Envelope, Kind, PublicKey, SecretKey, Statement, TrustError};

/// Most bytes of a list that are read: some ten thousand entries.
pub const REVOCATIONS_BYTES: u64 = 1 << 20;

/// Version of the format.
const VERSION: u32 = 1;

/// A list of what is revoked, with its number: a later list has a higher one, and says all that is
/// revoked by then.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Revocations {
    /// Whose list: lists of one name are numbered together.
    pub name: String,
    /// Its number.
    pub sequence: u64,
    /// Who signed it.
    pub key: PublicKey,
    /// Keys whose signatures count no more, whenever they were made.
    pub keys: Vec<PublicKey>,
    /// The least releases that may still be used.
    pub least: Vec<LeastRelease>,
}

/// The least release of something that may still be used.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LeastRelease {
    /// What it is.
    pub kind: Kind,
    /// Its name, as signatures have it.
    pub name: String,
    /// The release.
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
    /// The signed list `sequence` of `name`; equal arguments give equal bytes.
    ///
    /// # Errors
    ///
    /// [`TrustError::IllegalName`].
    pub fn sign(
        name: &str,
        sequence: u64,
        keys: &[PublicKey],
        least: &[LeastRelease],
        key: &SecretKey,
    ) -> Result<Vec<u8>, TrustError> {
        let listed = Listed { revocations: VERSION, keys: keys.to_vec(), least: least.to_vec() };
        // Text, numbers and lists are always JSON.
        let mut payload = serde_json::to_vec(&listed).unwrap_or_default();
        payload.push(b'\n');
        let statement = Statement::of(Kind::Revocations, name, sequence, &payload)?;
        let mut bytes = Envelope::sign(&statement, key).to_bytes().to_vec();
        bytes.append(&mut payload);
        Ok(bytes)
    }

    /// What a list says, of which nothing is believed, and whether its signature is one of it.
    ///
    /// # Errors
    ///
    /// Those of a list that makes no sense.
    pub fn inspect(path: &Path, bytes: &[u8]) -> Result<(Revocations, bool), TrustError> {
        let mut holds = false;
        let list = Revocations::parse(path, bytes, |envelope| {
            holds = envelope.is_signed() && envelope.statement().kind == Kind::Revocations;
            Ok(())
        })?;
        Ok((list, holds))
    }

    /// Takes a list apart once `admits` has found its envelope good; `path` is for messages.
    ///
    /// # Errors
    ///
    /// Those of `admits`, [`TrustError::Altered`] and [`TrustError::List`].
    pub(crate) fn parse(
        path: &Path,
        bytes: &[u8],
        admits: impl FnOnce(&Envelope) -> Result<(), TrustError>,
    ) -> Result<Revocations, TrustError> {
        let (head, payload) = bytes.split_at(bytes.len().min(ENVELOPE_BYTES));
        let envelope = Envelope::parse(path, head)?;
        admits(&envelope)?;
        let (statement, key) = (envelope.statement(), envelope.key());
        if !statement.is_about(payload) {
            return Err(TrustError::Altered { path: path.to_owned(), key });
        }
        let invalid = |reason: String| TrustError::List { path: path.to_owned(), reason };
        let listed: Listed =
            serde_json::from_slice(payload).map_err(|error| invalid(format!("it is none: {error}")))?;
        if listed.revocations != VERSION {
            let found = listed.revocations;
            return Err(invalid(format!("version {found} of the format, this host reads {VERSION}")));
        }
        if listed.keys.contains(&key) {
            return Err(invalid(format!("it revokes {key}, which signed it")));
        }
        Ok(Revocations {
            name: statement.name.clone(),
            sequence: statement.release,
            key,
            keys: listed.keys,
            least: listed.least,
        })
    }

    /// The least release that may be used of what a statement is about.
    pub fn least(&self, statement: &Statement) -> Option<u64> {
        let about = |least: &&LeastRelease| least.kind == statement.kind && least.name == statement.name;
        self.least.iter().filter(about).map(|least| least.release).max()
    }
}
