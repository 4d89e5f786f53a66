//! Flags with a fixed set of values: reading a value, and reporting the flag to a host.

use shardwright_shim_abi::{Error, Flag, FlagKind, FlagOutcome, FlagReport, FlagStage, Options};

/// A value of such a flag.
pub trait Choice: Copy + 'static {
    /// Name of the flag.
    const FLAG: &'static str;
    /// Every value, in the order in which a host lists them.
    const ALL: &'static [Self];

    /// Returns the flag's text for this value.
    fn name(self) -> &'static str;

    /// Returns the value with this name, if any.
    fn named(name: &str) -> Option<Self> {
        Self::ALL.iter().copied().find(|choice| choice.name() == name)
    }

    /// Lists the names of all values, for a message.
    fn names() -> String {
        Self::ALL.iter().map(|choice| choice.name()).collect::<Vec<_>>().join(", ")
    }

    /// Returns the value that a load requests, or `None` if unset.
    ///
    /// # Errors
    ///
    /// `ErrorClass::InvalidArgument` for an unknown value.
    fn read(options: &Options<'_>) -> Result<Option<Self>, Error> {
        let Some(value) = options.get(Self::FLAG) else { return Ok(None) };
        Self::named(value).map(Some).ok_or_else(|| Error::invalid_value(Self::FLAG, value, Self::names()))
    }

    /// Returns the flag as it is reported to a host. `default` is the value used if unset.
    fn schema(stage: FlagStage, default: Option<Self>, description: &str) -> Flag {
        Flag {
            name: Self::FLAG.to_owned(),
            description: description.to_owned(),
            kind: FlagKind::Choice(Self::ALL.iter().map(|choice| choice.name().to_owned()).collect()),
            default: default.map(|default| default.name().to_owned()),
            stage,
        }
    }

    /// Creates a report of the flag's outcome.
    fn report(outcome: FlagOutcome, evidence: String) -> FlagReport {
        FlagReport { name: Self::FLAG.to_owned(), outcome, evidence }
    }
}
