use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::UnknownName;
use crate::names::names;

names! {
    /// The three kinds of entry point.
    EntryKind, "kind of entry point" {
        /// Fills states and nothing else: stops at the last state write, returns hidden rows only
        /// if a later shard has states to fill.
        Prefill = "prefill",
        /// Takes rows through every layer: 1 generates, more score or check drafts.
        Decode = "decode",
        /// One pass without states (encoders).
        Encode = "encode",
    }
}

/// Name of an entry point: `prefill_128@4096`, `decode_1@4096`, `encode_256`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct EntryName {
    /// Kind.
    pub kind: EntryKind,
    /// Static number of rows, at least one.
    pub rows: u32,
    /// Context capacity in tokens; zero for `encode`, which has no state.
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
        // A number in its one canonical spelling, so that reading and writing a name are inverse.
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
