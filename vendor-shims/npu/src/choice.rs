//! Session flags with a fixed set of values: reading a value, and reporting the flag to a host.

use shardwright_shim_abi::{Error, Flag, FlagKind, FlagStage, Options};

/// A value of such a flag.
pub(crate) trait Choice: Copy + 'static {
    const FLAG: &'static str;
    /// Every value, in the order in which a host lists them.
    const ALL: &'static [Self];

    fn name(self) -> &'static str;
}

/// Returns the value with this name, if any.
pub(crate) fn named<C: Choice>(name: &str) -> Option<C> {
    C::ALL.iter().copied().find(|choice| choice.name() == name)
}

/// Lists the names of all values, for a message.
pub(crate) fn names<C: Choice>() -> String {
    C::ALL.iter().map(|choice| choice.name()).collect::<Vec<_>>().join(", ")
}

/// Returns the value that a load requests, or `None` if unset.
///
/// # Errors
///
/// `ErrorClass::InvalidArgument` for an unknown value.
pub(crate) fn read<C: Choice>(options: &Options<'_>) -> Result<Option<C>, Error> {
    let Some(value) = options.get(C::FLAG) else { return Ok(None) };
    named(value).map(Some).ok_or_else(|| Error::invalid_value(C::FLAG, value, names::<C>()))
}

/// Returns the flag as it is reported to a host.
pub(crate) fn schema<C: Choice>(stage: FlagStage, default: Option<C>, description: &str) -> Flag {
    Flag {
        name: C::FLAG.to_owned(),
        description: description.to_owned(),
        kind: FlagKind::Choice(C::ALL.iter().map(|choice| choice.name().to_owned()).collect()),
        default: default.map(|default| default.name().to_owned()),
        stage,
    }
}
