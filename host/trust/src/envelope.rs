//! The envelope: 256 bytes that state which bytes a key signed, of which kind, and as which
//! release.
//!
//! All fields have fixed lengths, so it can be read without parsing. Integers are little endian.
//!
//! | offset | bytes | |
//! |---|---|---|
//! | 0 | 8 | magic `SWSIGN\0` and the version of this layout, 1 |
//! | 8 | 8 | kind of signed file: 1 bundle, 2 shim, 3 planner, 4 profile, 5 list of revocations |
//! | 16 | 8 | number of the release |
//! | 24 | 8 | length of the signed bytes |
//! | 32 | 32 | their SHA-256 |
//! | 64 | 64 | name, then zeros |
//! | 128 | 32 | public key |
//! | 160 | 32 | zeros |
//! | 192 | 64 | Ed25519 signature of the 192 bytes before it |

use std::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use shardwright_files::hex;
use shardwright_vocabulary::{Error, ErrorKind, Result};

use crate::{PublicKey, SecretKey};

/// Size of an envelope in bytes.
pub const ENVELOPE_BYTES: usize = 256;

/// Suffix of files with an envelope, appended to the name of the signed file.
pub const SUFFIX: &str = ".sig";

/// Help for a signature that does not belong to its file.
pub(crate) const AGAIN: &str = "get the file and its signature again from their source";

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

/// Kind of a signed file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// The manifest of a bundle, which has the hash of every file.
    Bundle,
    /// The manifest of a shim, which has the hash of its library.
    Shim,
    /// The component of a planner.
    Planner,
    /// A SoC profile.
    Profile,
    /// A list of revocations.
    Revocations,
}

impl Kind {
    const ALL: [Kind; 5] = [Kind::Bundle, Kind::Shim, Kind::Planner, Kind::Profile, Kind::Revocations];

    fn number(self) -> u64 {
        self as u64 + 1
    }

    /// Returns the name in kebab case, as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Bundle => "bundle",
            Kind::Shim => "shim",
            Kind::Planner => "planner",
            Kind::Profile => "profile",
            Kind::Revocations => "revocations",
        }
    }

    /// Returns the kind with that name.
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

/// The statement of a signature about some bytes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Statement {
    /// Kind of the signed file.
    pub kind: Kind,
    /// Name under which releases are counted: 1 to 64 of a-z, 0-9, `-`, `_` and `.`.
    pub name: String,
    /// Number of the release, which grows. A host may require a minimum.
    pub release: u64,
    /// Number of signed bytes.
    pub bytes: u64,
    /// Their SHA-256, in hexadecimal.
    pub sha256: String,
    #[serde(skip)]
    hash: [u8; 32],
}

impl Statement {
    /// Creates the statement about `payload`.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Argument`] for an invalid name.
    pub fn of(kind: Kind, name: &str, release: u64, payload: &[u8]) -> Result<Statement> {
        if !is_name(name) {
            let name: String = name.chars().take(64).collect();
            let what = format!("invalid name `{name}`: expected 1 to 64 of a-z, 0-9, `-`, `_`, `.`");
            return Err(Error::argument(what).with_help("use a name such as `gemma-3-1b`"));
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

    /// Checks whether the statement is about these bytes.
    pub fn is_about(&self, payload: &[u8]) -> bool {
        self.bytes == payload.len() as u64 && <[u8; 32]>::from(Sha256::digest(payload)) == self.hash
    }
}

fn is_name(name: &str) -> bool {
    let legal = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
    (1..=KEY - NAME).contains(&name.len()) && name.bytes().all(legal)
}

/// A statement with the claimed key of its signer, and the signature.
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

    /// Returns whether these bytes begin like an envelope of this version.
    pub fn begins(bytes: &[u8]) -> bool {
        bytes.starts_with(MAGIC)
    }

    /// Reads an envelope without verifying it. `path` is used in messages.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Invalid`] if a field is invalid.
    pub fn parse(path: &Path, bytes: &[u8]) -> Result<Envelope> {
        let damaged = |offset: usize, reason: &str| {
            Error::invalid(format!("the signature is damaged at offset {offset}: {reason}"))
                .at(path.display())
                .with_help(AGAIN)
        };
        let bytes: [u8; ENVELOPE_BYTES] =
            bytes.try_into().map_err(|_| damaged(bytes.len().min(ENVELOPE_BYTES), "expected 256 bytes"))?;
        if bytes[..KIND] != *MAGIC {
            return Err(damaged(0, "not a signature of this version"));
        }
        let number = |at: usize| {
            let field = bytes[at..].first_chunk().copied().unwrap_or_default();
            u64::from_le_bytes(field)
        };
        let kind = Kind::ALL.into_iter().find(|kind| kind.number() == number(KIND));
        let kind = kind.ok_or_else(|| damaged(KIND, "unknown kind of signed file"))?;
        let field = &bytes[NAME..KEY];
        let length = field.iter().position(|byte| *byte == 0).unwrap_or(field.len());
        let (name, rest) = field.split_at(length);
        let name = std::str::from_utf8(name).ok().filter(|name| is_name(name));
        let name = name.filter(|_| rest.iter().all(|byte| *byte == 0));
        let name = name.ok_or_else(|| damaged(NAME, "invalid name"))?.to_owned();
        let key = bytes[KEY..].first_chunk().copied().unwrap_or_default();
        let key = PublicKey::from_bytes(key).map_err(|_| damaged(KEY, "invalid key"))?;
        if bytes[ZEROS..SIGNATURE].iter().any(|byte| *byte != 0) {
            return Err(damaged(ZEROS, "expected zeros"));
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

    /// Returns the bytes of the envelope.
    pub fn to_bytes(&self) -> [u8; ENVELOPE_BYTES] {
        self.bytes
    }

    /// Returns the statement.
    pub fn statement(&self) -> &Statement {
        &self.statement
    }

    /// Returns the claimed key of the signer.
    pub fn key(&self) -> PublicKey {
        self.key
    }

    /// Checks that the statement is about these bytes, which were found at `path`.
    pub(crate) fn expect_about(&self, path: &Path, payload: &[u8]) -> Result<()> {
        if self.statement.is_about(payload) {
            return Ok(());
        }
        let key = self.key;
        let what = format!("changed after {key} signed it, or the signature belongs to another file");
        Err(Error::new(ErrorKind::Untrusted, what).at(path.display()).with_help(AGAIN))
    }

    /// Checks whether that key made the signature.
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
            let refused = Statement::of(Kind::Bundle, name, 0, b"").unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::Argument, "{name}");
            assert!(refused.message().starts_with("invalid name"), "{refused}");
        }
    }

    /// Returns the offset in the error of a damaged signature.
    fn offset_of(error: &Error) -> usize {
        assert_eq!((error.kind(), error.place()), (ErrorKind::Invalid, Some("x")), "{error}");
        let rest = error.message().strip_prefix("the signature is damaged at offset ").unwrap();
        rest.split(':').next().unwrap().parse().unwrap()
    }

    #[test]
    fn no_bit_can_be_changed() {
        let sealed = envelope().to_bytes();
        for bit in 0..8 * ENVELOPE_BYTES {
            let mut bytes = sealed;
            bytes[bit / 8] ^= 1 << (bit % 8);
            match Envelope::parse("x".as_ref(), &bytes) {
                Err(error) => assert!(offset_of(&error) < SIGNATURE, "{bit}: {error}"),
                Ok(read) => assert!(!read.is_signed(), "{bit}"),
            }
        }
        for length in (0..ENVELOPE_BYTES).chain([ENVELOPE_BYTES + 1]) {
            let mut bytes = sealed.to_vec();
            bytes.resize(length, 0);
            let refused = Envelope::parse("x".as_ref(), &bytes).unwrap_err();
            assert_eq!(offset_of(&refused), length.min(ENVELOPE_BYTES), "{refused}");
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
