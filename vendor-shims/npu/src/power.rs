//! The flag `power`: how much power a session requests. It applies when a shard is loaded, and
//! artefacts do not depend on it.

use shardwright_shim_abi::{Error, Flag, FlagOutcome, FlagReport, FlagStage, Options};

use crate::choice::{self, Choice};

pub const POWER: &str = "power";

/// Power mode of a session. Each shim defines the corresponding settings of its vendor's library.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Power {
    /// Highest speed, for a few seconds.
    Burst,
    /// Highest sustainable speed.
    Sustained,
    /// Between the highest speed and the lowest power.
    Balanced,
    /// Lowest power.
    Saver,
}

impl Power {
    /// All modes, highest power first.
    pub const ALL: [Power; 4] = [Power::Burst, Power::Sustained, Power::Balanced, Power::Saver];

    /// Returns the flag's value for this mode.
    pub const fn name(self) -> &'static str {
        match self {
            Power::Burst => "burst",
            Power::Sustained => "sustained",
            Power::Balanced => "balanced",
            Power::Saver => "saver",
        }
    }

    /// Returns the power mode that a load requests, or `None` if unset.
    ///
    /// # Errors
    ///
    /// `ErrorClass::InvalidArgument` for an unknown mode.
    pub fn read(options: &Options<'_>) -> Result<Option<Power>, Error> {
        choice::read(options)
    }

    /// Returns the flag as it is reported to a host. `default` is the mode used if unset.
    pub fn schema(default: Option<Power>, description: &str) -> Flag {
        choice::schema(FlagStage::Load, default, description)
    }

    /// Creates a report of the flag's outcome.
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
