//! The flag `power`: how much power a session asks for. It takes effect when a shard is loaded, and
//! no artefact depends on it.

use shardwright_shim_abi::{Flag, FlagKind, FlagOutcome, FlagReport, FlagStage, Options};

use crate::ShimError;

/// The flag's name.
pub const POWER: &str = "power";

/// How much power a session asks for; what a vendor's library is told for each is its shim's to
/// say.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Power {
    /// The fastest there is, for seconds.
    Burst,
    /// As fast as can be kept up.
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

    /// What a load asks for; none when it does not say.
    ///
    /// # Errors
    ///
    /// [`ShimError::InvalidValue`].
    pub fn read(options: &Options<'_>) -> Result<Option<Power>, ShimError> {
        let Some(value) = options.get(POWER) else { return Ok(None) };
        let found = Power::ALL.into_iter().find(|power| power.name() == value);
        found.map(Some).ok_or_else(|| ShimError::InvalidValue {
            name: POWER.to_owned(),
            value: value.to_owned(),
            expected: Power::ALL.map(Power::name).join(", "),
        })
    }

    /// The flag as a host is told of it. `default` is what is done unasked.
    pub fn schema(default: Option<Power>, description: &str) -> Flag {
        Flag {
            name: POWER.to_owned(),
            description: description.to_owned(),
            kind: FlagKind::Choice(Power::ALL.map(|power| power.name().to_owned()).to_vec()),
            default: default.map(|power| power.name().to_owned()),
            stage: FlagStage::Load,
        }
    }

    /// What became of it.
    pub fn report(outcome: FlagOutcome, evidence: String) -> FlagReport {
        FlagReport { name: POWER.to_owned(), outcome, evidence }
    }
}
