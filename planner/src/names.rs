//! Stable kebab-case names of the members of closed lists, for reasons and messages.

use crate::{Entry, EntryKind, ErrorClass, Provenance};

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

/// Formats bytes as in a goal, rounded up: `2.9 GiB`.
pub fn bytes(value: u64) -> String {
    let (unit, name) = match value {
        0..0x10_0000 => return count(value, "byte"),
        0x10_0000..0x4000_0000 => (1_u64 << 20, "MiB"),
        _ => (1 << 30, "GiB"),
    };
    let tenths = (u128::from(value) * 10).div_ceil(unit.into());
    format!("{}.{} {name}", tenths / 10, tenths % 10)
}

/// Formats microseconds as in a goal, with three digits, rounded up: `513 ms`.
pub fn microseconds(value: u64) -> String {
    match value {
        0..1000 => format!("{value} µs"),
        1000..1_000_000 => format!("{} ms", thousandths(value)),
        _ => format!("{} s", thousandths(value.div_ceil(1000))),
    }
}

/// Rounds a number to two significant digits.
pub fn two_digits(value: u64) -> u64 {
    let mut step = 1_u64;
    while value / step >= 100 {
        step *= 10;
    }
    let up = u64::from(step > 1 && value % step >= step / 2);
    (value / step + up).saturating_mul(step)
}

/// Formats millionths of a nat as in a goal, with three digits, rounded up: `12.1 millinats`.
pub fn micronats(value: u64) -> String {
    let plural = if value == 1000 { "" } else { "s" };
    format!("{} millinat{plural}", thousandths(value))
}

/// Formats a count with its noun: `1 shard`, `2 shards`.
pub fn count(count: u64, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// Formats the value of a limit or goal in the unit that its name implies.
pub fn quantity(name: &str, value: u64) -> String {
    match name {
        "quality" => micronats(value),
        "size" => bytes(value),
        name if name.ends_with("-bytes") => bytes(value),
        name if name.ends_with("microseconds") => microseconds(value),
        _ => value.to_string(),
    }
}

/// Formats thousandths as a number of at most three digits, or of all digits before the point if
/// there are more.
fn thousandths(value: u64) -> String {
    let step = match value {
        0..1000 => 1,
        1000..10_000 => 10,
        10_000..100_000 => 100,
        _ => 1000,
    };
    let value = value.div_ceil(step).saturating_mul(step);
    let rest = format!("{:03}", value % 1000);
    match rest.trim_end_matches('0') {
        "" => (value / 1000).to_string(),
        rest => format!("{}.{rest}", value / 1000),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_rounded_up_so_that_the_goal_they_name_holds() {
        assert_eq!(
            [1, 999_999, 1 << 20, (1 << 30) + 1].map(bytes),
            ["1 byte", "999999 bytes", "1.0 MiB", "1.1 GiB"]
        );
        assert_eq!(
            [999, 1001, 512_301, 9_726_500].map(microseconds),
            ["999 µs", "1.01 ms", "513 ms", "9.73 s"]
        );
        assert_eq!([0, 1000, 12_001].map(micronats), ["0 millinats", "1 millinat", "12.1 millinats"]);
        assert_eq!([7, 99, 104, 995, 52_499].map(two_digits), [7, 99, 100, 1000, 52_000]);
        let named = [("context-bytes", 1 << 20), ("call-microseconds", 50), ("ops", 2600), ("size", 7)];
        let shown = named.map(|(name, value)| quantity(name, value));
        assert_eq!(shown, ["1.0 MiB", "50 µs", "2600", "7 bytes"]);
    }
}
