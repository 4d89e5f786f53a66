use shardwright_build::{FallbackChain, PlanOptions};
use shardwright_runtime::{Chain, NextChain, PlacementRecord, SessionError};
use shardwright_vocabulary::At;

use crate::Result;

/// Returns the fallback chains of a plan, in order. Each is built when the one before it is lost.
pub(crate) fn on_demand(
    chains: Vec<FallbackChain>,
    built: impl Fn(&PlanOptions) -> Result<Chain> + Send + 'static,
) -> Box<dyn NextChain> {
    let mut rest = chains.into_iter();
    Box::new(move |_: &SessionError, _: &PlacementRecord| {
        let FallbackChain { name, options } = rest.next()?;
        Some(built(&options).at(format_args!("chain `{name}`")))
    })
}
