use std::collections::VecDeque;

use crate::chain::Chain;
use crate::error::SessionError;
use crate::placement::PlacementRecord;

/// The failover of a session whose chain is lost. The code that opens chains implements it: the
/// runtime knows no plans and no compilers.
///
/// `FnMut(&SessionError, &PlacementRecord) -> Option<Result<Chain, NextChainError>>` implements it.
pub trait NextChain: Send {
    /// The next chain to try, loaded and of the same model; `None` when there is none left. An
    /// error skips one chain: it is recorded, and this is called again.
    ///
    /// It may take as long as building takes. Cancellation and deadline are checked before and
    /// after; to stop earlier, the implementation polls the session's
    /// [`CancelHandle`](crate::CancelHandle).
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

/// Why a fallback chain is unavailable.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct NextChainError {
    /// One sentence.
    pub message: String,
}

impl NextChainError {
    /// From any error.
    pub fn new(error: impl std::fmt::Display) -> Self {
        NextChainError { message: error.to_string() }
    }
}

/// Chains that are loaded already, in the order in which to try them. Those with a shard on the
/// lost place are skipped: their shards there are lost too.
#[derive(Clone, Debug, Default)]
pub struct FallbackChains {
    chains: VecDeque<Chain>,
}

impl FallbackChains {
    /// From chains.
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
