//! Version of the Neuron library: three numbers.

use std::fmt;
use std::str::FromStr;

use serde::{Serialize, Serializer};

/// Version of a Neuron library, for example `8.2.28`. The library stores each number in a byte.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// Major version. Libraries of different major versions refuse each other's code.
    pub major: u8,
    pub minor: u8,
    pub patch: u8,
}

impl Version {
    /// Creates a version from its numbers.
    pub const fn new(major: u8, minor: u8, patch: u8) -> Self {
        Version { major, minor, patch }
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

/// The error for a text that is not a version.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{0}` is not three numbers of at most 255 with dots between")]
pub struct NotAVersion(pub String);

impl FromStr for Version {
    type Err = NotAVersion;

    fn from_str(text: &str) -> Result<Self, NotAVersion> {
        let number = |part: &str| {
            let plain = !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
            plain.then(|| part.parse::<u8>().ok()).flatten()
        };
        let parts: Vec<Option<u8>> = text.split('.').take(4).map(number).collect();
        match parts.as_slice() {
            [Some(major), Some(minor), Some(patch)] => Ok(Version::new(*major, *minor, *patch)),
            _ => Err(NotAVersion(text.chars().take(32).collect())),
        }
    }
}

impl Serialize for Version {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_three_bytes_in_order() {
        let version: Version = "8.2.28".parse().expect("a version");
        assert_eq!((version, version.to_string().as_str()), (Version::new(8, 2, 28), "8.2.28"));
        assert!(Version::new(8, 2, 3) < version && version < Version::new(9, 0, 0));
        for text in ["", "8", "8.2", "8.2.28.1", "8.2.256", "8.2.-1", "8.+2.1", "8.2.a"] {
            assert!(text.parse::<Version>().is_err(), "{text}");
        }
    }
}
