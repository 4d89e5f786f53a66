//! Giving the memory of a session back, and filling it again from the history.

use super::Session;
use crate::error::SessionError;

impl Session {
    /// Gives the memory of states, buffers and drafts back to the system and to the chain's budget;
    /// the history stays, with its soft rows. The next call takes the memory again and runs the
    /// history again, to the same logits. [`Session::logits`] are unknown until then.
    pub fn release(&mut self) {
        self.logits.clear();
        self.engine.release();
        if let Some(speculation) = &mut self.speculation {
            speculation.release();
        }
        self.lose_states();
    }

    /// Whether it is released.
    pub fn is_released(&self) -> bool {
        self.engine.is_released()
    }

    /// Takes the memory of a released session and runs its history again now, instead of within
    /// the next call; gives the number of tokens that were run. [`Session::logits`] are then those
    /// after the last. A session whose states are complete runs nothing.
    ///
    /// # Errors
    ///
    /// [`SessionError::Budget`] if the chain's budget leaves too little; those of allocating and
    /// running. It stays released, or partly filled, and can be resumed again.
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

    /// Tokens of the history that were run again so far because their states were released or lost.
    pub fn recomputed(&self) -> usize {
        self.recomputed
    }
}
