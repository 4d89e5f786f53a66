use std::fmt;
use std::str::FromStr;

use ed25519_dalek::{Signature, Signer, VerifyingKey};
use serde::{Deserialize, Serialize};
use shardwright_files::hex;
use shardwright_vocabulary::{Error, Result};

/// The public half of a signing key, written as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey([u8; 32]);

/// The secret half of a signing key. Whoever has it can run code in every host that trusts it.
pub struct SecretKey(ed25519_dalek::SigningKey);

// `SigningKey` wipes itself when it is dropped.
impl SecretKey {
    /// Creates a key from a seed of 32 bytes, which must come from a good source of randomness.
    pub fn from_seed(seed: [u8; 32]) -> Self {
        Self(ed25519_dalek::SigningKey::from_bytes(&seed))
    }

    /// Creates a key from the system's randomness.
    pub fn generate() -> std::io::Result<Self> {
        let mut seed = [0_u8; 32];
        getrandom::fill(&mut seed).map_err(|error| std::io::Error::other(error.to_string()))?;
        Ok(Self::from_seed(seed))
    }

    /// Returns the public key, which hosts are configured to trust.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key().to_bytes())
    }

    /// Computes the Ed25519 signature (RFC 8032) of some bytes. Equal bytes give equal signatures.
    pub fn sign(&self, bytes: &[u8]) -> [u8; 64] {
        self.0.sign(bytes).to_bytes()
    }

    /// Returns the seed as 64 hexadecimal digits, which must be kept secret.
    pub fn to_hex(&self) -> String {
        hex::encode(self.0.as_bytes())
    }
}

impl PublicKey {
    /// Reads a key from its 32 bytes.
    ///
    /// # Errors
    ///
    /// If they are not a point on the curve. That is detected here instead of at the first
    /// signature.
    pub fn from_bytes(bytes: [u8; 32]) -> Result<Self> {
        VerifyingKey::from_bytes(&bytes).map_err(|_| not_a_key())?;
        Ok(Self(bytes))
    }

    /// Returns the 32 bytes of the key.
    pub fn to_bytes(&self) -> [u8; 32] {
        self.0
    }

    /// Checks whether the secret half of this key signed exactly these bytes.
    pub fn has_signed(&self, bytes: &[u8], signature: &[u8; 64]) -> bool {
        let signature = Signature::from_bytes(signature);
        VerifyingKey::from_bytes(&self.0).is_ok_and(|key| key.verify_strict(bytes, &signature).is_ok())
    }
}

/// Returns the error for a key or seed that is not 64 hexadecimal digits, or not a point on the
/// curve. It does not contain the text, which may be a secret.
fn not_a_key() -> Error {
    Error::argument("not a key: expected 64 hexadecimal digits")
}

impl FromStr for SecretKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        hex::decode(text.trim()).map(Self::from_seed).ok_or_else(not_a_key)
    }
}

impl fmt::Debug for SecretKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "SecretKey(of {})", self.public())
    }
}

impl fmt::Display for PublicKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&hex::encode(&self.0))
    }
}

impl fmt::Debug for PublicKey {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "PublicKey({self})")
    }
}

impl FromStr for PublicKey {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        Self::from_bytes(hex::decode(text.trim()).ok_or_else(not_a_key)?)
    }
}

impl Serialize for PublicKey {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for PublicKey {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}
