//! The file of a saved session. It is hostile input: every length is checked against the file and
//! the model before anything is allocated.
//!
//! ```text
//! offset  0  magic "SWSAVED\0", version (u32), length of the head (u32)
//!        16  head: JSON, at most 4 MiB
//!            ids of the history: u32 each
//!            turns: JSON
//!            rows of pictures and sounds: f32, in the order of the head
//!            rows of states
//!            SHA-256 of everything before it
//! ```
//!
//! All numbers are little-endian. The hash finds damage. It does not prove who wrote the file.

use std::io::{self, Read, Write};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};
use shardwright_bundle::Digest;
use shardwright_runtime::SavedStates;
use shardwright_vocabulary::{Error, Result, UniqueKeys};

/// First bytes of a file.
pub(super) const MAGIC: [u8; 8] = *b"SWSAVED\0";

/// Version of the format. Files of other versions are rejected.
const VERSION: u32 = 1;

/// Bytes before the head.
const PREFIX_BYTES: usize = 16;

/// Bytes of the hash at the end.
const HASH_BYTES: u64 = 32;

/// Most bytes of the head. It lists pictures, sounds and states, some hundred bytes each.
pub(super) const HEAD_BYTES_MAX: usize = 4 << 20;

/// Most bytes of turns as JSON. Many small parts need a hundred times their bytes in memory.
pub(super) const TURNS_BYTES_MAX: u64 = 16 << 20;

/// The head of a file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Head {
    /// Version of the program that wrote the file.
    pub saved_by: String,
    /// Name of the model.
    pub model: String,
    /// Hash of the vocabulary.
    pub vocabulary: Digest,
    /// Hash of the model's tables. Missing if the identity of the chain is unknown.
    pub tables: Option<Digest>,
    /// Hash of the plan, see `Model::plan_id`.
    pub plan: String,
    /// Hash of everything else that determines the bits of states. Missing like `tables`.
    pub engine: Option<Digest>,
    /// Number of tokens of the history.
    pub tokens: u64,
    /// Bytes of the turns.
    pub turns_bytes: u64,
    /// Pictures and sounds of the turns and of the history, each once.
    pub parts: Vec<PartHead>,
    /// Rows of states, or the reason why there are none.
    pub states: StatesHead,
}

/// A picture or sound.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct PartHead {
    pub sense: SavedSense,
    /// Hash of its content.
    pub origin: Digest,
    pub rows: u64,
    /// First positions in the history.
    pub begins: Vec<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum SavedSense {
    Picture,
    Sound,
}

/// The states of a saved session.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum StatesHead {
    Saved(SavedStates),
    LeftOut(String),
}

/// Properties of the model that bound the lengths in a file.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Number of positions of the context.
    pub context: u64,
    /// Values of a row of a picture or sound.
    pub width: u64,
}

/// Returns the error of a file that no session can be restored from.
pub(super) fn damaged(message: impl Into<String>) -> Error {
    Error::invalid(message).with_help("the file was truncated or changed: save the session again")
}

impl Head {
    /// Returns the number of bytes between the head and the hash. Returns `None` if a sum
    /// overflows, or if numbers contradict each other.
    fn body_bytes(&self, width: u64) -> Option<u64> {
        let mut sum = self.tokens.checked_mul(4)?.checked_add(self.turns_bytes)?;
        sum = sum.checked_add(self.rows()?.checked_mul(width)?.checked_mul(4)?)?;
        match &self.states {
            StatesHead::Saved(states) => sum.checked_add(states.bytes()?),
            StatesHead::LeftOut(_) => Some(sum),
        }
    }

    /// Returns the number of rows of all pictures and sounds.
    fn rows(&self) -> Option<u64> {
        self.parts.iter().try_fold(0_u64, |sum, part| sum.checked_add(part.rows))
    }

    /// Checks every length before anything is allocated for it.
    pub(super) fn expect_bounds(&self, bounds: Bounds, length: u64, head_bytes: u64) -> Result<()> {
        let Bounds { context, width } = bounds;
        if self.tokens > context {
            let what =
                format!("the saved session has {} tokens, more than the context of {context}", self.tokens);
            return Err(Error::new(shardwright_vocabulary::ErrorKind::Context, what)
                .with_help("open the model with a longer context"));
        }
        if self.turns_bytes > TURNS_BYTES_MAX {
            let found = self.turns_bytes;
            return Err(damaged(format!("expected at most {TURNS_BYTES_MAX} bytes of turns, got {found}")));
        }
        // The turns and the history each have at most a row for each position.
        let most = context.saturating_mul(2);
        if self.rows().is_none_or(|rows| rows > most) {
            return Err(damaged(format!("expected at most {most} rows of pictures and sounds")));
        }
        let before = (PREFIX_BYTES as u64).saturating_add(head_bytes).saturating_add(HASH_BYTES);
        let expected = self.body_bytes(width).and_then(|body| body.checked_add(before));
        match expected {
            Some(expected) if expected == length => Ok(()),
            Some(expected) => Err(damaged(format!("expected {expected} bytes, got {length}"))),
            None => Err(damaged("the lengths in the head contradict each other")),
        }
    }
}

/// A reader that hashes everything that it reads.
pub(super) struct Reader<R> {
    inner: R,
    sum: Sha256,
    /// Number of bytes read so far.
    bytes: u64,
}

impl<R: Read> Read for Reader<R> {
    fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(into)?;
        self.sum.update(&into[..count]);
        self.bytes += count as u64;
        Ok(count)
    }
}

impl<R: Read> Reader<R> {
    pub(super) fn new(inner: R) -> Self {
        Reader { inner, sum: Sha256::new(), bytes: 0 }
    }

    fn exact(&mut self, count: u64) -> Result<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(count).map_err(|_| damaged("a length is too large"))?];
        self.read_exact(&mut bytes).map_err(cut)?;
        Ok(bytes)
    }

    /// Reads the prefix and the head. Returns the number of the head's bytes too.
    pub(super) fn head(&mut self) -> Result<(Head, u64)> {
        let mut prefix = [0; PREFIX_BYTES];
        let mut found = 0;
        while found < PREFIX_BYTES {
            match self.read(&mut prefix[found..]).map_err(cut)? {
                0 => break,
                count => found += count,
            }
        }
        if found < MAGIC.len() || prefix[..MAGIC.len()] != MAGIC {
            return Err(
                Error::invalid("not a saved session: wrong magic at offset 0").with_help("check the path")
            );
        }
        if found < PREFIX_BYTES {
            return Err(damaged(format!("expected a prefix of {PREFIX_BYTES} bytes, got {found}")));
        }
        let number = |at: usize| u32::from_le_bytes(prefix[at..at + 4].try_into().unwrap_or_default());
        let (version, length) = (number(8), number(12));
        if version != VERSION {
            let what = format!("expected format version {VERSION}, got {version}");
            return Err(Error::incompatible(what).with_help("save the session again with this release"));
        }
        if length as usize > HEAD_BYTES_MAX {
            return Err(damaged(format!("expected a head of at most {HEAD_BYTES_MAX} bytes, got {length}")));
        }
        // A claimed length is not trusted: memory grows with the bytes that exist.
        let mut json = Vec::new();
        self.take(length.into()).read_to_end(&mut json).map_err(cut)?;
        if json.len() < length as usize {
            return Err(damaged(format!("expected a head of {length} bytes, got {}", json.len())));
        }
        let head = serde_json::from_slice(&json).map_err(|error| damaged(format!("the head: {error}")))?;
        Ok((head, length.into()))
    }

    pub(super) fn tokens(&mut self, head: &Head) -> Result<Vec<u32>> {
        let bytes = self.exact(head.tokens.saturating_mul(4))?;
        Ok(bytes.as_chunks().0.iter().map(|id| u32::from_le_bytes(*id)).collect())
    }

    pub(super) fn turns<T: serde::de::DeserializeOwned>(&mut self, head: &Head) -> Result<T> {
        let bytes = self.exact(head.turns_bytes)?;
        // Arguments of calls are a map, which keeps the last of two equal keys.
        let unique = serde_json::from_slice::<UniqueKeys>(&bytes);
        let turns = unique.and_then(|UniqueKeys| serde_json::from_slice(&bytes));
        turns.map_err(|error| damaged(format!("the turns: {error}")))
    }

    pub(super) fn rows(&mut self, part: &PartHead, width: u64) -> Result<Vec<f32>> {
        let bytes = self.exact(part.rows.saturating_mul(width).saturating_mul(4))?;
        Ok(bytes.as_chunks().0.iter().map(|value| f32::from_le_bytes(*value)).collect())
    }

    /// Reads the rest of a file of `length` bytes, and compares the hash with the content.
    pub(super) fn finish(mut self, length: u64) -> Result<()> {
        let left = length.saturating_sub(HASH_BYTES).saturating_sub(self.bytes);
        if io::copy(&mut (&mut self).take(left), &mut io::sink()).map_err(cut)? < left {
            return Err(cut(io::ErrorKind::UnexpectedEof.into()));
        }
        let found: [u8; 32] = self.sum.finalize().into();
        let mut expected = [0; 32];
        self.inner.read_exact(&mut expected).map_err(cut)?;
        if found != expected {
            return Err(damaged("the SHA-256 at the end does not match the content"));
        }
        Ok(())
    }
}

/// Converts an error of reading.
fn cut(error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => damaged("the file ends too early"),
        _ => Error::from(error).or_help("check the disk and its permissions"),
    }
}

/// A writer that hashes everything that it writes.
pub(super) struct Writer<W> {
    inner: W,
    sum: Sha256,
    pub bytes: u64,
}

impl<W: Write> Write for Writer<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let count = self.inner.write(bytes)?;
        self.sum.update(&bytes[..count]);
        self.bytes += count as u64;
        Ok(count)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<W: Write> Writer<W> {
    /// Writes the prefix, the head, the tokens and the turns.
    pub(super) fn begin(inner: W, head: &Head, tokens: &[u32], turns: &[u8]) -> Result<Writer<W>> {
        let json = serde_json::to_vec(head).map_err(|error| Error::internal(error.to_string()))?;
        if json.len() > HEAD_BYTES_MAX {
            let what = format!("the session has too many pictures and sounds ({})", head.parts.len());
            return Err(Error::unsupported(what).with_help("forget the oldest turns before saving"));
        }
        let mut writer = Writer { inner, sum: Sha256::new(), bytes: 0 };
        writer.write_all(&MAGIC)?;
        writer.write_all(&VERSION.to_le_bytes())?;
        writer.write_all(&(json.len() as u32).to_le_bytes())?;
        writer.write_all(&json)?;
        let ids: Vec<u8> = tokens.iter().flat_map(|id| id.to_le_bytes()).collect();
        writer.write_all(&ids)?;
        writer.write_all(turns)?;
        Ok(writer)
    }

    /// Writes the rows of a picture or sound.
    pub(super) fn rows(&mut self, values: &[f32]) -> Result<()> {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        Ok(self.write_all(&bytes)?)
    }

    /// Writes the hash. Returns the number of all bytes.
    pub(super) fn finish(mut self) -> Result<u64> {
        let hash: [u8; 32] = self.sum.finalize_reset().into();
        self.inner.write_all(&hash)?;
        self.inner.flush()?;
        Ok(self.bytes + HASH_BYTES)
    }
}

/// Checks that turns can be read again, before a file is written.
pub(super) fn expect_readable<T: serde::de::DeserializeOwned>(turns: &[u8]) -> Result<()> {
    let help = "forget the turn before saving";
    if turns.len() as u64 > TURNS_BYTES_MAX {
        let what = format!("the turns have {} bytes, more than {TURNS_BYTES_MAX}", turns.len());
        return Err(Error::unsupported(what).with_help(help));
    }
    match serde_json::from_slice::<T>(turns) {
        Ok(_) => Ok(()),
        Err(error) => Err(Error::unsupported(format!("a turn cannot be saved: {error}")).with_help(help)),
    }
}
