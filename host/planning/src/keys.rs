use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use shardwright_files::hex;

/// A key or seed that is not 64 hexadecimal digits, or no point of the curve.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("not a key: expected 64 hexadecimal digits")]
pub struct KeyError;

/// The public half of a signing key; written as 64 hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct PublicKey(pub(crate) [u8; 32]);

/// The secret half. Whoever has it can run code in every host that trusts it.
pub struct SecretKey(pub(crate) ed25519_dalek::SigningKey);

// `SigningKey` wipes itself when it is dropped.
impl SecretKey {
    /// From a seed of 32 bytes, which must come from a good source of randomness.
    pub fn from_seed(seed: [u8; 32]) -> Self {
        Self(ed25519_dalek::SigningKey::from_bytes(&seed))
    }

    /// A new key from the randomness of the system.
    pub fn generate() -> std::io::Result<Self> {
        let mut seed = [0_u8; 32];
        getrandom::fill(&mut seed).map_err(|error| std::io::Error::other(error.to_string()))?;
        Ok(Self::from_seed(seed))
    }

    /// The public key, which hosts are configured to trust.
    pub fn public(&self) -> PublicKey {
        PublicKey(self.0.verifying_key().to_bytes())
    }

    /// The seed as 64 hexadecimal digits, to be kept secret.
    pub fn to_hex(&self) -> String {
        hex::encode(self.0.as_bytes())
    }
}

impl FromStr for SecretKey {
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        hex::decode(text.trim()).map(Self::from_seed).ok_or(KeyError)
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
    type Err = KeyError;

    fn from_str(text: &str) -> Result<Self, KeyError> {
        let bytes = hex::decode(text.trim()).ok_or(KeyError)?;
        // Whether it is a point of the curve is found here rather than at the first pack.
        ed25519_dalek::VerifyingKey::from_bytes(&bytes).map_err(|_| KeyError)?;
        Ok(Self(bytes))
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
