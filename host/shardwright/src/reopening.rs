//! A model that is opened again, so that a session continues after its device was lost.

use std::sync::Arc;

use shardwright_runtime::{Chain, NextChain, PlacementRecord, SessionError};

use crate::policy::NextChainMaker;
use crate::{Error, Result};

/// The compiled shards of a model and of its fallbacks
/// ([`Model::chains`](crate::Model::chains)).
pub struct Chains {
    pub(crate) chain: Chain,
    pub(crate) next: Option<Arc<NextChainMaker>>,
}

/// Opens the model of a session again after its device was lost, or gives up with `None`. The
/// argument is the loss. See [`Session::set_reopen`](crate::Session::set_reopen).
pub type Reopen = Box<dyn FnMut(&Error) -> Option<Result<Chains>> + Send>;

/// The fallback chains of a plan, and after them the chains of the model opened again.
pub(crate) struct Reopened {
    planned: Option<Box<dyn NextChain>>,
    reopen: Reopen,
    /// Number of moves of the session when a model was last opened again.
    reopened_at: Option<usize>,
}

impl Reopened {
    /// Creates the chains. `planned` has the fallback chains of the model that is open now.
    pub(crate) fn new(planned: Option<Box<dyn NextChain>>, reopen: Reopen) -> Self {
        Reopened { planned, reopen, reopened_at: None }
    }
}

impl NextChain for Reopened {
    fn next(&mut self, lost: &SessionError, so_far: &PlacementRecord) -> Option<Result<Chain>> {
        if let Some(planned) = &mut self.planned
            && let Some(next) = planned.next(lost, so_far)
        {
            return Some(next);
        }
        self.planned = None;
        // A model that the session could not use after this same loss would not help again.
        if self.reopened_at == Some(so_far.moves.len()) {
            return None;
        }
        let error = Error::new(lost.kind(), lost.to_string()).of_lost_device();
        let Chains { chain, next } = match (self.reopen)(&error)? {
            Ok(chains) => chains,
            Err(error) => return Some(Err(error)),
        };
        self.reopened_at = Some(so_far.moves.len());
        self.planned = next.map(|next| next());
        Some(Ok(chain))
    }
}
