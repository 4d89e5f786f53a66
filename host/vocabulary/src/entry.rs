use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::UnknownName;
use crate::names::names;

names! {
    /// The three kinds of entry point.
    EntryKind, "kind of entry point" {
        /// Only fills states. Stops at the last state write, and returns hidden rows only if a
        /// later shard has states to fill.
        Prefill = "prefill",
        /// Runs rows through every layer. One row generates a token, several rows score tokens or
        /// verify drafts.
        Decode = "decode",
        /// One pass without states, for encoders.
        Encode = "encode",
    }
}

/// Name of an entry point: `prefill_128@4096`, `decode_1@4096`, `encode_256`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryName {
    /// Kind of entry point.
    pub kind: EntryKind,
    /// Static number of rows, at least one.
    pub rows: u32,
    /// Context capacity in tokens. Zero for `encode`, which has no state.
    pub context: u32,
}

impl fmt::Display for EntryName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind {
            EntryKind::Encode => write!(formatter, "{}_{}", self.kind, self.rows),
            _ => write!(formatter, "{}_{}@{}", self.kind, self.rows, self.context),
        }
    }
}

impl FromStr for EntryName {
    type Err = UnknownName;

    fn from_str(text: &str) -> Result<Self, UnknownName> {
        let unknown = || {
            let forms = "prefill_ROWS@CONTEXT, decode_ROWS@CONTEXT, encode_ROWS".to_owned();
            UnknownName::new("entry point", text, forms)
        };
        // Only the canonical spelling of a number is accepted, so that formatting and parsing are
        // inverse.
        let number = |digits: &str| match digits.parse::<u32>() {
            Ok(value) if value > 0 && value.to_string() == digits => Ok(value),
            _ => Err(unknown()),
        };
        let (kind, sizes) = text.split_once('_').ok_or_else(unknown)?;
        let kind = match kind {
            "prefill" => EntryKind::Prefill,
            "decode" => EntryKind::Decode,
            "encode" => EntryKind::Encode,
            _ => return Err(unknown()),
        };
        match (kind, sizes.split_once('@')) {
            (EntryKind::Encode, None) => Ok(Self { kind, rows: number(sizes)?, context: 0 }),
            (EntryKind::Prefill | EntryKind::Decode, Some((rows, context))) => {
                Ok(Self { kind, rows: number(rows)?, context: number(context)? })
            }
            _ => Err(unknown()),
        }
    }
}

impl Serialize for EntryName {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for EntryName {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}
