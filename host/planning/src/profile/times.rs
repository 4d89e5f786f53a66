//! Times that a profile states: the error of a shim's estimates, and rates of the chip and of its
//! CPU for layers that no shim estimates.

use serde::{Deserialize, Deserializer, Serialize, Serializer, de::Error as _};
use shardwright_vocabulary::{Provenance, TimeCost};

/// Times of a chip. Members that are missing have defaults of the host, which are less certain.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ProfileTimes {
    /// How the times of runs relate to the estimates of the chip's shim.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub estimates: Option<TimeFactors>,
    /// Rates of the chip, for layers without an estimate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub roofline: Option<Roofline>,
    /// Rates of the CPU in the same machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu: Option<Roofline>,
}

/// Factors from a computed time to an interval of times. 1 is the computed time.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimeFactors {
    pub low: Decimal,
    pub likely: Decimal,
    pub high: Decimal,
    /// Source of the factors.
    pub provenance: Provenance,
    /// The figures behind the factors.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

/// Rates of a device, and factors for the share of them that runs reach.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
pub struct Roofline {
    /// Memory bandwidth in 10⁹ bytes per second.
    pub gigabytes_per_second: Decimal,
    /// Multiplications with additions in 10¹² per second.
    pub tera_operations: Decimal,
    /// Factor of the fastest run that is expected. 1 means that the rates are reached.
    pub low: Decimal,
    /// Factor of a likely run.
    pub likely: Decimal,
    /// Factor of the slowest run that is expected.
    pub high: Decimal,
    /// Source of rates and factors.
    pub provenance: Provenance,
    /// The figures behind rates and factors.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub note: String,
}

impl ProfileTimes {
    pub(super) fn is_empty(&self) -> bool {
        *self == ProfileTimes::default()
    }

    /// Returns the first fault.
    pub(super) fn fault(&self) -> Option<String> {
        let rooflines = [("roofline", &self.roofline), ("cpu", &self.cpu)];
        let rooflines = rooflines.into_iter().filter_map(|(name, own)| Some((name, own.as_ref()?.factors())));
        let estimates = self.estimates.clone().map(|own| ("estimates", own));
        estimates.into_iter().chain(rooflines).find_map(|(name, factors)| {
            let TimeFactors { low, likely, high, .. } = factors;
            if low > likely || likely > high {
                let got = format!("got {low}, {likely}, {high}");
                return Some(format!("times of `{name}`: expected low ≤ likely ≤ high, {got}"));
            }
            let is_wide = high.thousandths() > low.thousandths().saturating_mul(WIDEST);
            is_wide.then(|| format!("times of `{name}`: `high` is more than {WIDEST} times `low`"))
        })
    }
}

/// Maximum ratio of the slowest and the fastest run in a profile.
const WIDEST: u64 = 1000;

impl TimeFactors {
    /// Returns the interval of times around a computed time. It has the weaker provenance of both.
    pub fn around(&self, microseconds: u64, provenance: Provenance) -> TimeCost {
        let factors = [self.low, self.likely, self.high];
        interval(u128::from(microseconds) * 1000, factors, self.provenance.weaker(provenance))
    }
}

/// Returns an interval around a time. Its bounds are rounded outwards, and the likely time to the
/// nearest microsecond.
fn interval(nanoseconds: u128, [low, likely, high]: [Decimal; 3], provenance: Provenance) -> TimeCost {
    /// Thousandths of a nanosecond in a microsecond.
    const UNIT: u128 = 1_000_000;
    let scaled = |factor: Decimal| nanoseconds.saturating_mul(factor.thousandths().into());
    let narrow = |microseconds: u128| u64::try_from(microseconds).unwrap_or(u64::MAX);
    let (low, high) = (narrow(scaled(low) / UNIT), narrow(scaled(high).div_ceil(UNIT)));
    let likely = narrow(scaled(likely).saturating_add(UNIT / 2) / UNIT);
    TimeCost::within(low, likely, high, provenance)
}

impl Roofline {
    /// Returns the factors of the rates.
    pub fn factors(&self) -> TimeFactors {
        let Roofline { low, likely, high, provenance, .. } = *self;
        TimeFactors { low, likely, high, provenance, note: self.note.clone() }
    }

    /// Returns the time of a run that moves `bytes` from and to memory and computes
    /// `multiplications`: the longer of the two at the stated rates, times the factors.
    pub fn time(&self, bytes: u64, multiplications: u64) -> TimeCost {
        // Rates are in thousandths per nanosecond.
        let nanoseconds = |amount: u64, rate: u128| (u128::from(amount) * 1000).div_ceil(rate.max(1));
        let moving = nanoseconds(bytes, self.gigabytes_per_second.thousandths().into());
        let computing = nanoseconds(multiplications, u128::from(self.tera_operations.thousandths()) * 1000);
        interval(moving.max(computing), [self.low, self.likely, self.high], self.provenance)
    }
}

/// A positive decimal number with at most three digits after the point, so that equal profiles have
/// equal numbers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Decimal(u64);

impl Decimal {
    /// Largest number that a profile may have.
    const MAX: f64 = 1e9;

    /// Creates the number of this many thousandths.
    pub const fn of_thousandths(thousandths: u64) -> Self {
        Decimal(thousandths)
    }

    /// Returns the number in thousandths.
    pub const fn thousandths(self) -> u64 {
        self.0
    }
}

impl std::fmt::Display for Decimal {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "{}", self.0 as f64 / 1000.0)
    }
}

impl Serialize for Decimal {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_f64(self.0 as f64 / 1000.0)
    }
}

impl<'de> Deserialize<'de> for Decimal {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = f64::deserialize(deserializer)?;
        let thousandths = (value * 1000.0).round();
        let is_exact = (value * 1000.0 - thousandths).abs() < 1e-6 * thousandths.max(1.0);
        match thousandths >= 1.0 && value <= Decimal::MAX && is_exact {
            true => Ok(Decimal(thousandths as u64)),
            false => {
                let expected = "expected a number above 0 with at most three digits after the point";
                Err(D::Error::custom(format!("{expected}, got {value}")))
            }
        }
    }
}
