//! Flags of a session with a few values: reads one, and lists them for a host.

use shardwright_shim_abi::{Flag, FlagKind, FlagStage, Options};

use crate::ShimError;

/// A value of such a flag.
pub(crate) trait Choice: Copy + 'static {
    /// The flag's name.
    const FLAG: &'static str;
    /// Every value, in the order in which a host lists them.
    const ALL: &'static [Self];

    /// The value's name.
    fn name(self) -> &'static str;
}

/// The value of that name; `None` if there is none.
pub(crate) fn named<C: Choice>(name: &str) -> Option<C> {
    C::ALL.iter().copied().find(|choice| choice.name() == name)
}

/// The names of all, for a message.
pub(crate) fn names<C: Choice>() -> String {
    C::ALL.iter().map(|choice| choice.name()).collect::<Vec<_>>().join(", ")
}

/// The value that a load requests; `None` if unset.
///
/// # Errors
///
/// [`ShimError::InvalidValue`].
pub(crate) fn read<C: Choice>(options: &Options<'_>) -> Result<Option<C>, ShimError> {
    let Some(value) = options.get(C::FLAG) else { return Ok(None) };
    named(value).map(Some).ok_or_else(|| ShimError::InvalidValue {
        name: C::FLAG.to_owned(),
        value: value.to_owned(),
        expected: names::<C>(),
    })
}

/// The flag as reported to a host.
pub(crate) fn schema<C: Choice>(stage: FlagStage, default: Option<C>, description: &str) -> Flag {
    Flag {
        name: C::FLAG.to_owned(),
        description: description.to_owned(),
        kind: FlagKind::Choice(C::ALL.iter().map(|choice| choice.name().to_owned()).collect()),
        default: default.map(|default| default.name().to_owned()),
        stage,
    }
}
