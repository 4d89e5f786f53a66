use std::collections::VecDeque;

use shardwright_vocabulary::{Error, ErrorKind, Result};

use crate::chain::Chain;
use crate::error::SessionError;
use crate::placement::PlacementRecord;

/// Source of the next chain for a session whose chain is lost. The code that opens chains
/// implements it, because the runtime knows no plans and no compilers.
///
/// Closures of type `FnMut(&SessionError, &PlacementRecord) -> Option<Result<Chain>>` implement it.
pub trait NextChain: Send {
    /// Returns the next chain to try, loaded and of the same model, or `None` if none is left. An
    /// error skips one chain: the session records it and calls this method again.
    ///
    /// The method may build a chain, which may need a long time. Cancellation and deadline are
    /// checked before and after. To stop earlier, the implementation must poll the session's
    /// [`CancelHandle`](crate::CancelHandle).
    fn next(&mut self, lost: &SessionError, so_far: &PlacementRecord) -> Option<Result<Chain>>;
}

impl<F> NextChain for F
where
    F: FnMut(&SessionError, &PlacementRecord) -> Option<Result<Chain>> + Send,
{
    fn next(&mut self, lost: &SessionError, so_far: &PlacementRecord) -> Option<Result<Chain>> {
        self(lost, so_far)
    }
}

/// Chains that are already loaded, in the order in which to try them. A chain with a shard on the
/// lost place is skipped, because that shard is lost too.
#[derive(Clone, Debug, Default)]
pub struct FallbackChains {
    chains: VecDeque<Chain>,
}

impl FallbackChains {
    /// Creates the list from chains.
    pub fn new(chains: impl IntoIterator<Item = Chain>) -> Self {
        FallbackChains { chains: chains.into_iter().collect() }
    }
}

impl NextChain for FallbackChains {
    fn next(&mut self, lost: &SessionError, _: &PlacementRecord) -> Option<Result<Chain>> {
        let chain = self.chains.pop_front()?;
        let same =
            |name: &str| Error::new(ErrorKind::Shim, format!("`{name}` would run on the lost device too"));
        let shards = &chain.description().shards;
        match lost.at().and_then(|(_, lost)| shards.iter().find(|shard| shard.place == *lost)) {
            Some(shard) => Some(Err(same(&shard.name))),
            None => Some(Ok(chain)),
        }
    }
}
