//! Chains that may run instead of the first: their policy and their maker.

use shardwright_bundle::Bundle;
use shardwright_runtime::NextChain;

use crate::{Error, ErrorKind, Result};

/// Creates the fallback chains of a session.
pub(crate) type NextChainMaker = dyn Fn() -> Box<dyn NextChain> + Send + Sync;

/// Whether another chain of a bundle may run if the one that suits the machine best cannot, usually
/// the CPU's chain instead of a chip's.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum FallbackPolicy {
    /// Allow any later chain of the bundle, when it is opened and when a device is lost during a
    /// session.
    #[default]
    Allow,
    /// Allow any later chain when the bundle is opened. In a session, the loss of a device is an
    /// error.
    AtOpening,
    /// Allow only later chains with these names, at both times. Include the names of tower chains.
    Only(Vec<String>),
    /// Allow none: every fallback is an error, as under `strict`.
    Refuse,
}

impl FallbackPolicy {
    /// Returns whether a later chain may be tried when a bundle or a tower is opened.
    pub(crate) fn opens(&self, name: &str) -> bool {
        match self {
            FallbackPolicy::Allow | FallbackPolicy::AtOpening => true,
            FallbackPolicy::Only(names) => names.iter().any(|known| known == name),
            FallbackPolicy::Refuse => false,
        }
    }

    /// Returns whether a session may continue with another chain.
    pub(crate) fn goes_on(&self) -> bool {
        matches!(self, FallbackPolicy::Allow | FallbackPolicy::Only(_))
    }

    /// Checks that every name belongs to a chain of the bundle.
    pub(crate) fn expect_known(&self, bundle: &Bundle) -> Result<()> {
        let FallbackPolicy::Only(names) = self else { return Ok(()) };
        let mut known: Vec<&str> = bundle.manifest().all_chains().map(|chain| chain.name.as_str()).collect();
        known.sort_unstable();
        known.dedup();
        match names.iter().find(|name| !known.contains(&name.as_str())) {
            None => Ok(()),
            Some(name) => {
                let what = format!("no chain of {} is named `{name}`", bundle.path().display());
                let help = format!("available chains: {}", known.join(", "));
                Err(Error::new(ErrorKind::Argument, what).with_help(help))
            }
        }
    }
}
