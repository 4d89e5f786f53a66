use std::fmt;
use std::io::{self, Read};
use std::ops::ControlFlow;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use sha2::{Digest as _, Sha256};
use shardwright_files::hex;
use shardwright_vocabulary::Error;

/// Bytes per read when a file is hashed or copied. It is large enough to make the cost of system
/// calls negligible.
pub(crate) const CHUNK: usize = 1 << 20;

/// A SHA-256 hash. Its only text form is 64 lower-case hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Digest([u8; 32]);

impl Digest {
    /// Computes the digest of bytes.
    pub fn of(bytes: &[u8]) -> Digest {
        Digest(Sha256::digest(bytes).into())
    }

    /// Returns the 32 bytes.
    pub const fn bytes(&self) -> &[u8; 32] {
        &self.0
    }

    /// Computes the digest of a reader's content, and returns it with the number of bytes.
    pub(crate) fn of_reader(reader: impl Read) -> io::Result<(Digest, u64)> {
        Digest::of_blocks(reader, &mut |_| ControlFlow::Continue(())).map_err(|stop| match stop {
            Stop::Io(error) => error,
            Stop::Cancelled => io::ErrorKind::Interrupted.into(),
        })
    }

    /// Like [`of_reader`](Digest::of_reader), with progress. `blocks` is called before each block
    /// with the number of bytes before it, and at the end with the total. It may stop the hashing.
    pub(crate) fn of_blocks(
        mut reader: impl Read,
        blocks: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<(Digest, u64), Stop> {
        let mut hasher = Hasher::default();
        let mut chunk = vec![0; CHUNK];
        loop {
            if blocks(hasher.bytes()).is_break() {
                return Err(Stop::Cancelled);
            }
            match reader.read(&mut chunk) {
                Ok(0) => return Ok(hasher.finish()),
                Ok(count) => hasher.update(&chunk[..count]),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(Stop::Io(error)),
            }
        }
    }
}

/// Reasons why hashing ended early.
#[derive(Debug)]
pub(crate) enum Stop {
    /// The caller cancelled.
    Cancelled,
    /// The bytes could not be read.
    Io(io::Error),
}

/// A hash in progress.
#[derive(Default)]
pub(crate) struct Hasher {
    sum: Sha256,
    bytes: u64,
}

impl Hasher {
    pub(crate) fn update(&mut self, bytes: &[u8]) {
        self.sum.update(bytes);
        self.bytes += bytes.len() as u64;
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    pub(crate) fn finish(self) -> (Digest, u64) {
        (Digest(self.sum.finalize().into()), self.bytes)
    }
}

/// Converts 32 bytes that another crate computed.
impl From<[u8; 32]> for Digest {
    fn from(bytes: [u8; 32]) -> Digest {
        Digest(bytes)
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&hex::encode(&self.0))
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Digest({self})")
    }
}

impl FromStr for Digest {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self, Error> {
        // Accept only one spelling, as the hashes of files that contain this text depend on it.
        let lower = !text.bytes().any(|byte| byte.is_ascii_uppercase());
        hex::decode(text).filter(|_| lower).map(Digest).ok_or_else(|| {
            Error::invalid("not a SHA-256: expected 64 digits of 0-9 and a-f")
                .with_help("`sha256sum` prints this form")
        })
    }
}

impl Serialize for Digest {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for Digest {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::ErrorKind;

    use super::*;

    #[test]
    fn a_digest_has_one_spelling() {
        let empty = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(Digest::of(b"").to_string(), empty);
        assert_eq!(empty.parse::<Digest>().unwrap(), Digest::of(b""));
        assert_eq!(Digest::from(*Digest::of(b"").bytes()), Digest::of(b""));
        for wrong in
            [&empty.to_uppercase(), &empty[1..], &format!("{empty}0"), &format!("{}é", &empty[2..]), ""]
        {
            let error = wrong.parse::<Digest>().unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.help().is_some());
        }
    }

    #[test]
    fn a_stream_has_the_digest_of_its_bytes() {
        let bytes: Vec<u8> = (0..3 * CHUNK as u32 + 7).map(|index| (index % 251) as u8).collect();
        assert_eq!(Digest::of_reader(&bytes[..]).unwrap(), (Digest::of(&bytes), bytes.len() as u64));
    }
}
