//! The flag `power`: how much power a session asks for. It takes effect when a shard is loaded, and
//! no artefact depends on it.

use shardwright_shim_abi::{Flag, FlagOutcome, FlagReport, FlagStage, Options};

use crate::ShimError;
use crate::choice::{self, Choice};

/// The flag's name.
pub const POWER: &str = "power";

/// Power mode of a session; each shim defines what it passes to its vendor's library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Power {
    /// The highest speed, for seconds.
    Burst,
    /// The highest sustainable speed.
    Sustained,
    /// Between the two ends.
    Balanced,
    /// As little as possible.
    Saver,
}

impl Power {
    /// Every one, most power first.
    pub const ALL: [Power; 4] = [Power::Burst, Power::Sustained, Power::Balanced, Power::Saver];

    /// The flag's value.
    pub const fn name(self) -> &'static str {
        match self {
            Power::Burst => "burst",
            Power::Sustained => "sustained",
            Power::Balanced => "balanced",
            Power::Saver => "saver",
        }
    }

    /// The power mode that a load requests; `None` if unset.
    ///
    /// # Errors
    ///
    /// [`ShimError::InvalidValue`].
    pub fn read(options: &Options<'_>) -> Result<Option<Power>, ShimError> {
        choice::read(options)
    }

    /// The flag as reported to a host. `default` is the mode used if unset.
    pub fn schema(default: Option<Power>, description: &str) -> Flag {
        choice::schema(FlagStage::Load, default, description)
    }

    /// A report of the flag's outcome.
    pub fn report(outcome: FlagOutcome, evidence: String) -> FlagReport {
        FlagReport { name: POWER.to_owned(), outcome, evidence }
    }
}

impl Choice for Power {
    const FLAG: &'static str = POWER;
    const ALL: &'static [Power] = &Power::ALL;

    fn name(self) -> &'static str {
        Power::name(self)
    }
}
