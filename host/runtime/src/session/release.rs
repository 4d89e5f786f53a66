//! Releases the memory of a session and restores it from the history.

use super::Session;
use crate::error::SessionError;

impl Session {
    /// Returns the memory of states, buffers and drafts to the system and to the chain's budget.
    /// The history stays, with its soft rows. The next call allocates the memory again and runs the
    /// history again, with the same logits as a result. [`Session::logits`] are unknown until then.
    pub fn release(&mut self) {
        self.keep_prefix();
        self.release_memory();
    }

    /// Releases the memory without storing states in the prefix cache.
    pub(super) fn release_memory(&mut self) {
        self.logits.clear();
        self.engine.release();
        if let Some(speculation) = &mut self.speculation {
            speculation.release();
        }
        self.lose_states();
    }

    /// Reports whether the session is released.
    pub fn is_released(&self) -> bool {
        self.engine.is_released()
    }

    /// Allocates the memory of a released session and runs its history again now, instead of within
    /// the next call. Returns the number of tokens that were run. [`Session::logits`] are then the
    /// logits after the last token. If all states are complete, no token is run.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`ErrorKind::Memory`] if the chain's budget is too small, and
    /// the errors of allocation and of running. The session then stays released or partly filled,
    /// and can be resumed again.
    ///
    /// [`ErrorKind::Memory`]: shardwright_vocabulary::ErrorKind::Memory
    pub fn resume(&mut self) -> Result<usize, SessionError> {
        let (tokens, before) = (self.tokens.len(), self.recomputed);
        self.with_failover(tokens, &mut |session| {
            let Some(last) = session.tokens.len().checked_sub(1) else { return Ok(()) };
            if session.filled > last {
                return Ok(());
            }
            let work = session.tokens[session.filled..].to_vec();
            session.prefill(&work, work.len() - 1, &mut |_| {})?;
            session.decode(&work[work.len() - 1..], &mut |_| {})
        })?;
        Ok(self.recomputed - before)
    }

    /// Returns the number of tokens of the history that were run again so far because their states
    /// were released or lost.
    pub fn recomputed(&self) -> usize {
        self.recomputed
    }
}
