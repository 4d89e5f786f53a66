//! Stable kebab-case names of the members of closed lists, and texts of amounts, for reasons and
//! messages.

use crate::{Entry, EntryKind, ErrorClass, Provenance};

mod amounts;

pub use amounts::{against_goal, apart, bytes, goal, micronats, microseconds, nearest_goal, quantity};
pub(crate) use amounts::{factor, is_narrow, percent, percent_at_most, time_in, times_apart, within};

/// A member of a closed list with a stable name.
pub trait Named {
    /// Returns the name, as used in profiles, reports and on the command line.
    fn name(&self) -> &'static str;
}

macro_rules! named {
    ($type:ident { $($case:ident = $name:literal,)+ }) => {
        impl Named for $type {
            fn name(&self) -> &'static str {
                match self {
                    $($type::$case => $name,)+
                }
            }
        }
    };
}

named!(Provenance {
    Declared = "declared",
    Reported = "reported",
    Probed = "probed",
    Learned = "learned",
    User = "user",
    Measured = "measured",
    Simulated = "simulated",
    Modelled = "modelled",
});
named!(EntryKind {
    Prefill = "prefill",
    Decode = "decode",
    Encode = "encode",
});
named!(ErrorClass {
    UnsupportedOp = "unsupported-op",
    Unmappable = "unmappable",
    ResourceLimit = "resource-limit",
    IncompatibleArtefact = "incompatible-artefact",
    CorruptArtefact = "corrupt-artefact",
    DeviceLost = "device-lost",
    Deadline = "deadline",
    StateLost = "state-lost",
    InvalidArgument = "invalid-argument",
    Internal = "internal",
});

/// The roles of weights that formats and sensitivities distinguish.
pub const ROLES: [&str; 7] =
    ["attention-input", "attention-output", "mlp-input", "mlp-output", "per-layer", "head", "other"];

/// Formats the name of an entry point: `prefill_128@4096`.
pub fn entry(entry: Entry) -> String {
    match entry.kind {
        EntryKind::Encode => format!("encode_{}", entry.rows),
        kind => format!("{}_{}@{}", kind.name(), entry.rows, entry.context),
    }
}

/// Formats a count with its noun: `1 shard`, `2 shards`.
pub fn count(count: u64, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}
