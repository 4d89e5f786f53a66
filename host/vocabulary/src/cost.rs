use serde::{Deserialize, Serialize};

use crate::names::names;
use crate::{EntryName, Provenance};

/// Whether a target supports a layer kind in a format tuple.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Legality {
    /// The target supports it.
    Legal,
    /// The target does not support it, for this reason.
    Illegal(String),
}

names! {
    /// How a plan keeps a bound on a time.
    GoalVerdict, "goal verdict" {
        /// Even the slowest run keeps the bound.
        Met = "met",
        /// The likely time keeps the bound, the slowest run does not.
        Likely = "likely",
        /// Only the fastest run keeps the bound.
        Unlikely = "unlikely",
        /// No run keeps the bound.
        Missed = "missed",
    }
}

/// Execution time of one run: a likely value within an interval, with the source of the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimeCost {
    /// Microseconds of the fastest run that is expected.
    pub low: u64,
    /// Likely microseconds of one run.
    pub microseconds: u64,
    /// Microseconds of the slowest run that is expected.
    pub high: u64,
    /// Source of the numbers.
    pub provenance: Provenance,
}

impl TimeCost {
    /// The empty sum. Its provenance is *measured*, the strongest, so that it does not weaken a
    /// sum.
    pub const ZERO: TimeCost = TimeCost::exact(0, Provenance::Measured);

    /// Creates a time that does not vary.
    pub const fn exact(microseconds: u64, provenance: Provenance) -> Self {
        TimeCost::within(microseconds, microseconds, microseconds, provenance)
    }

    /// Creates a time with a likely value between `low` and `high`. Does not check their order, see
    /// [`is_ordered`](Self::is_ordered).
    pub const fn within(low: u64, microseconds: u64, high: u64, provenance: Provenance) -> Self {
        TimeCost { low, microseconds, high, provenance }
    }

    /// Returns whether the likely time is between both bounds.
    pub const fn is_ordered(&self) -> bool {
        self.low <= self.microseconds && self.microseconds <= self.high
    }

    /// Adds two times. The sum has the weaker provenance. Returns `None` if it exceeds 64 bits.
    pub fn checked_add(self, other: Self) -> Option<Self> {
        Some(TimeCost {
            low: self.low.checked_add(other.low)?,
            microseconds: self.microseconds.checked_add(other.microseconds)?,
            high: self.high.checked_add(other.high)?,
            provenance: self.provenance.weaker(other.provenance),
        })
    }

    /// Adds two times like [`checked_add`](Self::checked_add), but limits the sum to 64 bits.
    pub fn saturating_add(self, other: Self) -> Self {
        TimeCost {
            low: self.low.saturating_add(other.low),
            microseconds: self.microseconds.saturating_add(other.microseconds),
            high: self.high.saturating_add(other.high),
            provenance: self.provenance.weaker(other.provenance),
        }
    }

    /// Returns the time of this many runs, limited to 64 bits.
    pub fn times(self, runs: u64) -> Self {
        TimeCost {
            low: self.low.saturating_mul(runs),
            microseconds: self.microseconds.saturating_mul(runs),
            high: self.high.saturating_mul(runs),
            provenance: self.provenance,
        }
    }

    /// Returns how this time keeps an inclusive bound in microseconds.
    pub const fn verdict(&self, bound: u64) -> GoalVerdict {
        if self.high <= bound {
            GoalVerdict::Met
        } else if self.microseconds <= bound {
            GoalVerdict::Likely
        } else if self.low <= bound {
            GoalVerdict::Unlikely
        } else {
            GoalVerdict::Missed
        }
    }

    /// Returns `high` divided by `low`, in thousandths: 4000 means that the slowest run needs four
    /// times as long as the fastest. `u64::MAX` if only `low` is 0.
    pub fn width(&self) -> u64 {
        match (self.low, self.high) {
            (0, 0) => 1000,
            (0, _) => u64::MAX,
            (low, high) => u64::try_from(u128::from(high) * 1000 / u128::from(low)).unwrap_or(u64::MAX),
        }
    }
}

impl Default for TimeCost {
    /// Returns [`TimeCost::ZERO`].
    fn default() -> Self {
        TimeCost::ZERO
    }
}

/// Returns the default provenance of a number of bytes.
const fn modelled() -> Provenance {
    Provenance::Modelled
}

/// One row of the cost table: one layer kind on one target in one format tuple at one entry point.
/// The costs of a shard are the sums over its layers, so a planner can compute the cost of any cut
/// exactly.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CostRow {
    /// Layer kind. Layers of equal structure share one.
    pub kind: u32,
    /// Index of the target in the request.
    pub target: u32,
    /// Index of the format tuple in the request.
    pub formats: u32,
    /// Entry point that the row is for.
    pub entry: EntryName,
    /// Operations after legalisation. Zero if this kind is not part of the entry point.
    pub ops: u64,
    /// Weight bytes. Entry points share one set, so a shard counts the maximum over its entry
    /// points.
    pub weight_bytes: u64,
    /// Bytes that this entry point adds to the compiled artefact, on top of one set of weights: its
    /// instructions, and another set of weights if the artefact stores weights per entry point.
    pub artefact_bytes: u64,
    /// Source of `artefact_bytes`.
    #[serde(default = "modelled")]
    pub artefact_provenance: Provenance,
    /// State bytes at the entry point's context capacity. A shard counts the maximum over its entry
    /// points.
    pub state_bytes: u64,
    /// Whether the target supports this layer kind in these formats.
    pub legality: Legality,
    /// Time of one run, which covers all operations. `None` only if the target does not support the
    /// layer kind.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub time: Option<TimeCost>,
    /// Number of operations whose part of `time` is estimated by their share of all operations.
    #[serde(default)]
    pub uncosted_ops: u64,
}
