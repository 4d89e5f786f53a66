use std::collections::VecDeque;

use crate::chain::Chain;
use crate::error::SessionError;
use crate::placement::PlacementRecord;

/// Where a session goes on when what it runs on is lost. Whoever opens chains fills it: the runtime
/// knows no plans and no compilers.
///
/// `FnMut(&SessionError, &PlacementRecord) -> Option<Result<Chain, NextChainError>>` is one.
pub trait NextChain: Send {
    /// The next chain to try, loaded and of the same model; `None` when there is no further one. An
    /// error passes one over: it is recorded, and this is asked again.
    ///
    /// It may take as long as building takes. Cancellation and deadline are looked at before and
    /// after; whoever builds holds the session's [`CancelHandle`](crate::CancelHandle) to end it
    /// earlier.
    fn next(
        &mut self,
        lost: &SessionError,
        so_far: &PlacementRecord,
    ) -> Option<Result<Chain, NextChainError>>;
}

impl<F> NextChain for F
where
    F: FnMut(&SessionError, &PlacementRecord) -> Option<Result<Chain, NextChainError>> + Send,
{
    fn next(
        &mut self,
        lost: &SessionError,
        so_far: &PlacementRecord,
    ) -> Option<Result<Chain, NextChainError>> {
        self(lost, so_far)
    }
}

/// Why a fallback chain could not be had.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct NextChainError {
    /// One sentence.
    pub message: String,
}

impl NextChainError {
    /// Of whatever failed.
    pub fn new(error: impl std::fmt::Display) -> Self {
        NextChainError { message: error.to_string() }
    }
}

/// Chains that are loaded already, in the order in which to try them. Those with a shard on the
/// very place that was lost are left out: what was loaded there is lost too.
#[derive(Clone, Debug, Default)]
pub struct FallbackChains {
    chains: VecDeque<Chain>,
}

impl FallbackChains {
    /// Of chains.
    pub fn new(chains: impl IntoIterator<Item = Chain>) -> Self {
        FallbackChains { chains: chains.into_iter().collect() }
    }
}

impl NextChain for FallbackChains {
    fn next(&mut self, lost: &SessionError, _: &PlacementRecord) -> Option<Result<Chain, NextChainError>> {
        let chain = self.chains.pop_front()?;
        let same = |name: &str| NextChainError::new(format!("`{name}` would run on the same, lost place"));
        let shards = &chain.description().shards;
        match lost.at().and_then(|(_, lost)| shards.iter().find(|shard| shard.place == *lost)) {
            Some(shard) => Some(Err(same(&shard.name))),
            None => Some(Ok(chain)),
        }
    }
}
