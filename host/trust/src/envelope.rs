//! The envelope: 256 bytes that say which bytes a key signed, as what, and as which release.
//!
//! Nothing in it has a length of its own, so that it is read without parsing. Integers are little
//! endian.
//!
//! | offset | bytes | |
//! |---|---|---|
//! | 0 | 8 | magic `SWSIGN\0` and the version of this layout, 1 |
//! | 8 | 8 | what is signed: 1 bundle, 2 shim, 3 planner, 4 profile, 5 list of revocations |
//! | 16 | 8 | number of the release |
//! | 24 | 8 | length of what is signed |
//! | 32 | 32 | its SHA-256 |
//! | 64 | 64 | its name, then zeros |
//! | 128 | 32 | public key |
//! | 160 | 32 | zeros |
//! | 192 | 64 | Ed25519 signature of the 192 bytes before it |

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use shardwright_files::hex;

use crate::{PublicKey, SecretKey, TrustError};

/// Bytes of an envelope.
pub const ENVELOPE_BYTES: usize = 256;

/// End of the names of files with an envelope, behind the name of what is signed.
pub const SUFFIX: &str = ".sig";

/// A planner pack's signature covers other first bytes, so that neither can pass for the other.
const MAGIC: &[u8; 8] = b"SWSIGN\0\x01";
const KIND: usize = 8;
const RELEASE: usize = 16;
const LENGTH: usize = 24;
const HASH: usize = 32;
const NAME: usize = 64;
const KEY: usize = 128;
const ZEROS: usize = 160;
const SIGNATURE: usize = 192;

/// What is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The manifest of a bundle, which has the hash of every file.
    Bundle,
    /// The manifest of a shim, which has the hash of its library.
    Shim,
    /// A planner's component.
    Planner,
    /// A SoC profile.
    Profile,
    /// A list of what is revoked.
    Revocations,
}

impl Kind {
    const ALL: [Kind; 5] = [Kind::Bundle, Kind::Shim, Kind::Planner, Kind::Profile, Kind::Revocations];

    fn number(self) -> u64 {
        self as u64 + 1
    }

    /// Kebab-case name, as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Bundle => "bundle",
            Kind::Shim => "shim",
            Kind::Planner => "planner",
            Kind::Profile => "profile",
            Kind::Revocations => "revocations",
        }
    }

    /// The kind of that name.
    pub fn of_name(name: &str) -> Option<Kind> {
        Kind::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Kind::Bundle => "a bundle",
            Kind::Shim => "a shim",
            Kind::Planner => "a planner",
            Kind::Profile => "a profile",
            Kind::Revocations => "a list of revocations",
        })
    }
}

/// What a signature says of some bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Statement {
    /// What they are.
    pub kind: Kind,
    /// Name under which releases are counted: 1 to 64 of a-z, 0-9, `-`, `_` and `.`.
    pub name: String,
    /// Number of the release, which grows; a host may ask for at least some number.
    pub release: u64,
    /// How many bytes they are.
    pub bytes: u64,
    /// Their SHA-256, in hexadecimal.
    pub sha256: String,
    #[serde(skip)]
    hash: [u8; 32],
}

impl Statement {
    /// The statement about `payload`.
    ///
    /// # Errors
    ///
    /// [`TrustError::IllegalName`].
    pub fn of(kind: Kind, name: &str, release: u64, payload: &[u8]) -> Result<Statement, TrustError> {
        if !is_name(name) {
            return Err(TrustError::IllegalName { name: name.chars().take(64).collect() });
        }
        let hash: [u8; 32] = Sha256::digest(payload).into();
        Ok(Statement {
            kind,
            name: name.to_owned(),
            release,
            bytes: payload.len() as u64,
            sha256: hex::encode(&hash),
            hash,
        })
    }

    /// Whether it is about these bytes.
    pub fn is_about(&self, payload: &[u8]) -> bool {
        self.bytes == payload.len() as u64 && <[u8; 32]>::from(Sha256::digest(payload)) == self.hash
    }
}

fn is_name(name: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
    (1..=KEY - NAME).contains(&name.len()) && name.bytes().all(legal)
}

/// A statement with the key that is said to have signed it, and the signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    bytes: [u8; ENVELOPE_BYTES],
    statement: Statement,
    key: PublicKey,
}

impl Envelope {
    /// Signs a statement.
    pub fn sign(statement: &Statement, key: &SecretKey) -> Envelope {
        let mut bytes = [0; ENVELOPE_BYTES];
        bytes[..KIND].copy_from_slice(MAGIC);
        bytes[KIND..RELEASE].copy_from_slice(&statement.kind.number().to_le_bytes());
        bytes[RELEASE..LENGTH].copy_from_slice(&statement.release.to_le_bytes());
        bytes[LENGTH..HASH].copy_from_slice(&statement.bytes.to_le_bytes());
        bytes[HASH..NAME].copy_from_slice(&statement.hash);
        bytes[NAME..NAME + statement.name.len()].copy_from_slice(statement.name.as_bytes());
        bytes[KEY..ZEROS].copy_from_slice(&key.public().to_bytes());
        let signature = key.sign(&bytes[..SIGNATURE]);
        bytes[SIGNATURE..].copy_from_slice(&signature);
        Envelope { bytes, statement: statement.clone(), key: key.public() }
    }

    /// Reads an envelope, of which nothing is believed yet; `path` is for messages.
    ///
    /// # Errors
    ///
    /// [`TrustError::Damaged`].
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Envelope, TrustError> {
        let damaged = |offset: usize, reason: &'static str| TrustError::Damaged {
            path: path.to_owned(),
            offset: offset as u64,
            reason,
        };
        let bytes: [u8; ENVELOPE_BYTES] =
            bytes.try_into().map_err(|_| damaged(bytes.len().min(ENVELOPE_BYTES), "it has not 256 bytes"))?;
        if bytes[..KIND] != *MAGIC {
            return Err(damaged(0, "it does not begin as a signature of this version does"));
        }
        let number = |at: usize| {
            let field = bytes[at..].first_chunk().copied().unwrap_or_default();
            u64::from_le_bytes(field)
        };
        let kind = Kind::ALL.into_iter().find(|kind| kind.number() == number(KIND));
        let kind = kind.ok_or_else(|| damaged(KIND, "it is for nothing that is known"))?;
        let field = &bytes[NAME..KEY];
        let length = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
        let (name, rest) = field.split_at(length);
        let name = std::str::from_utf8(name).ok().filter(|name| is_name(name));
        let name = name.filter(|_| rest.iter().all(|byte| *byte == 0));
        let name = name.ok_or_else(|| damaged(NAME, "its name is none"))?.to_owned();
        let key = bytes[KEY..].first_chunk().copied().unwrap_or_default();
        let key = PublicKey::from_bytes(key).map_err(|_| damaged(KEY, "its key is none"))?;
        if bytes[ZEROS..SIGNATURE].iter().any(|byte| *byte != 0) {
            return Err(damaged(ZEROS, "there is something where zeros must be"));
        }
        let hash: [u8; 32] = bytes[HASH..].first_chunk().copied().unwrap_or_default();
        let statement = Statement {
            kind,
            name,
            release: number(RELEASE),
            bytes: number(LENGTH),
            sha256: hex::encode(&hash),
            hash,
        };
        Ok(Envelope { bytes, statement, key })
    }

    /// Its bytes.
    pub fn to_bytes(&self) -> [u8; ENVELOPE_BYTES] {
        self.bytes
    }

    /// What it says.
    pub fn statement(&self) -> &Statement {
        &self.statement
    }

    /// Who is said to have signed it.
    pub fn key(&self) -> PublicKey {
        self.key
    }

    /// Whether that key did.
    pub fn is_signed(&self) -> bool {
        let signature = self.bytes[SIGNATURE..].first_chunk().copied().unwrap_or([0; 64]);
        self.key.has_signed(&self.bytes[..SIGNATURE], &signature)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key() -> SecretKey {
        SecretKey::from_seed([1; 32])
    }

    fn envelope() -> Envelope {
        Envelope::sign(&Statement::of(Kind::Shim, "cpu", 7, b"manifest").unwrap(), &key())
    }

    #[test]
    fn what_was_signed_is_read() {
        for kind in Kind::ALL {
            for name in ["a", "gemma-3_1b.it", &"z".repeat(64)] {
                let statement = Statement::of(kind, name, u64::MAX, b"payload").unwrap();
                let sealed = Envelope::sign(&statement, &key());
                let read = Envelope::parse("x".as_ref(), &sealed.to_bytes()).unwrap();
                assert_eq!((read.statement(), read.key()), (&statement, key().public()));
                assert!(read == sealed && read.is_signed());
                assert!(statement.is_about(b"payload") && !statement.is_about(b"payloaf"));
                assert_eq!(Kind::of_name(kind.name()), Some(kind));
            }
        }
        for name in ["", "A", "a b", "é", "a/b", &"z".repeat(65)] {
            let refused = Statement::of(Kind::Bundle, name, 0, b"");
            assert!(matches!(refused, Err(TrustError::IllegalName { .. })), "{name}");
        }
    }

    #[test]
    fn no_bit_can_be_changed() {
        let sealed = envelope().to_bytes();
        for bit in 0..8 * ENVELOPE_BYTES {
            let mut bytes = sealed;
            bytes[bit / 8] ^= 1 << (bit % 8);
            match Envelope::parse("x".as_ref(), &bytes) {
                Err(TrustError::Damaged { offset, .. }) => assert!(offset < SIGNATURE as u64, "{bit}"),
                Err(other) => panic!("{bit}: {other}"),
                Ok(read) => assert!(!read.is_signed(), "{bit}"),
            }
        }
        for length in (0..ENVELOPE_BYTES).chain([ENVELOPE_BYTES + 1]) {
            let mut bytes = sealed.to_vec();
            bytes.resize(length, 0);
            let refused = Envelope::parse("x".as_ref(), &bytes);
            assert!(matches!(refused, Err(TrustError::Damaged { .. })), "{length}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_an_envelope_in_one_spelling_or_refused(
            changes in proptest::collection::vec((8..ENVELOPE_BYTES, any::<u8>()), 1..8),
        ) {
            let mut bytes = envelope().to_bytes();
            for (at, byte) in changes {
                bytes[at] = byte;
            }
            if let Ok(read) = Envelope::parse("x".as_ref(), &bytes) {
                prop_assert_eq!(read.to_bytes(), bytes);
                prop_assert_eq!(read.is_signed(), bytes == envelope().to_bytes());
            }
        }
    }
}
