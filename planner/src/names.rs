//! The stable kebab-case names of the closed lists, for reasons and messages.

use crate::{Entry, EntryKind, ErrorClass, Provenance};

/// A member of a closed list with a stable name.
pub trait Named {
    /// The name, as profiles, reports and the command line write it.
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

/// `prefill_128@4096`.
pub fn entry(entry: Entry) -> String {
    match entry.kind {
        EntryKind::Encode => format!("encode_{}", entry.rows),
        kind => format!("{}_{}@{}", kind.name(), entry.rows, entry.context),
    }
}

/// Bytes as a goal spells them: `2.9 GB`, rounded up.
pub fn bytes(value: u64) -> String {
    let (unit, name) = match value {
        0..1_000_000 => return format!("{value} bytes"),
        1_000_000..1_000_000_000 => (100_000, "MB"),
        _ => (100_000_000, "GB"),
    };
    tenths(value.div_ceil(unit), name)
}

/// Microseconds as a goal spells them: `512.3 ms`, rounded up.
pub fn microseconds(value: u64) -> String {
    if value < 1000 { format!("{value} µs") } else { tenths(value.div_ceil(100), "ms") }
}

/// Millionths of a nat as a goal spells them: `12.1 millinats`, rounded up.
pub fn micronats(value: u64) -> String {
    tenths(value.div_ceil(100), "millinats")
}

fn tenths(value: u64, unit: &str) -> String {
    format!("{}.{} {unit}", value / 10, value % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_rounded_up_so_that_the_goal_they_name_holds() {
        assert_eq!([999_999, 1_000_001, 2_890_000_001].map(bytes), ["999999 bytes", "1.1 MB", "2.9 GB"]);
        assert_eq!([999, 1001, 512_301].map(microseconds), ["999 µs", "1.1 ms", "512.4 ms"]);
        assert_eq!([0, 12_001].map(micronats), ["0.0 millinats", "12.1 millinats"]);
    }
}
