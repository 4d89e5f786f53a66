//! Stable kebab-case names of the members of closed lists, and texts of amounts, for reasons and
//! messages.

use shardwright_amounts::significant;
#[doc(inline)]
pub use shardwright_amounts::{
    against_goal, apart, bytes, count, goal, micronats, microseconds, nearest_goal, quantity,
};
pub(crate) use shardwright_amounts::{is_narrow, time_in, times_apart, within};

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

/// Formats a part of a whole in whole percent: `19 %`, `less than 1 %`.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    let whole = u128::from(whole.max(1));
    match (u128::from(part) * 100 + whole / 2) / whole {
        0 if part > 0 => "less than 1 %".to_owned(),
        percent => format!("{percent} %"),
    }
}

/// Formats a part of a whole in percent, rounded up: `20 %`.
pub(crate) fn percent_at_most(part: u64, whole: u64) -> String {
    format!("{} %", (u128::from(part) * 100).div_ceil(whole.max(1).into()))
}

/// Formats how many times as large as another value, which is not 0, a value is: `9.1x`.
pub(crate) fn factor(value: u64, other: u64) -> String {
    format!("{}x", significant(value.into(), other.into(), 2))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentages_and_factors_have_no_digits_that_estimates_lack() {
        assert_eq!([percent(192, 1000), percent(1, 1000), percent(0, 9)], ["19 %", "less than 1 %", "0 %"]);
        assert_eq!([percent_at_most(192, 1000), percent_at_most(1, 1000)], ["20 %", "1 %"]);
        assert_eq!([factor(9136, 1000), factor(100, 10), factor(5, 2)], ["9.1x", "10x", "2.5x"]);
    }
}
