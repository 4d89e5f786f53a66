//! Which chains may run in the place of the first.

use shardwright_bundle::Bundle;

use crate::{Error, ErrorKind, Result};

/// Whether another chain of a bundle may run where the one that suits the machine best does not:
/// most often the CPU's in the place of a chip's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FallbackPolicy {
    /// Any later chain of the bundle, when it is opened and when a device is lost during a session.
    #[default]
    Allow,
    /// Any later chain when it is opened; in a session the loss of a device is an error.
    AtOpening,
    /// The later chains of these names alone, at both times; those of towers are named too.
    Only(Vec<String>),
    /// None: every fallback is an error, as under `strict`.
    Refuse,
}

impl FallbackPolicy {
    /// Whether a later chain may be tried when a bundle or a tower is opened.
    pub(crate) fn opens(&self, name: &str) -> bool {
        match self {
            FallbackPolicy::Allow | FallbackPolicy::AtOpening => true,
            FallbackPolicy::Only(names) => names.iter().any(|known| known == name),
            FallbackPolicy::Refuse => false,
        }
    }

    /// Whether a session may go on with another chain.
    pub(crate) fn goes_on(&self) -> bool {
        matches!(self, FallbackPolicy::Allow | FallbackPolicy::Only(_))
    }

    /// Refuses names that no chain has.
    pub(crate) fn expect_known(&self, bundle: &Bundle) -> Result<()> {
        let FallbackPolicy::Only(names) = self else { return Ok(()) };
        let mut known: Vec<&str> = bundle.manifest().all_chains().map(|chain| chain.name.as_str()).collect();
        known.sort_unstable();
        known.dedup();
        match names.iter().find(|name| !known.contains(&name.as_str())) {
            None => Ok(()),
            Some(name) => {
                let what = format!("no chain of {} is named `{name}`", bundle.path().display());
                Err(Error::new(ErrorKind::Argument, what).with_help(format!("it has {}", known.join(", "))))
            }
        }
    }
}
