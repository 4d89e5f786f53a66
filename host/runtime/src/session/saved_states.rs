//! The rows of a session's states as bytes, to write them to a file and read them back, or to copy
//! them into another session.

use std::io::{Read, Write};
use std::ops::Range;

use serde::{Deserialize, Serialize};
use shardwright_vocabulary::{Error, ErrorKind};

use super::Session;
use crate::chain::layout::StatePlan;
use crate::engine::state_rows::pieces;
use crate::error::{SessionError, not_generative};
use crate::soft_rows::{Prompt, SoftParts};
use crate::storage::Storage;

/// The shape of one state (keys or values of a layer) of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedState {
    /// Storage of its values.
    pub storage: Storage,
    /// Number of rows. A position is stored in the row `position mod capacity`.
    pub capacity: u64,
    /// Number of positions that a query sees.
    pub window: u64,
    /// Bytes of a row.
    pub row_bytes: u64,
}

/// Rows of states: what [`Session::write_states`] writes and [`Session::read_states`] reads. Their
/// bytes follow each other by state, and within a state by position.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SavedStates {
    /// Number of positions with valid rows.
    pub filled: u64,
    /// One past the last position that was ever written.
    pub high_water: u64,
    /// States in the order of the chain.
    pub states: Vec<SavedState>,
}

impl SavedState {
    fn of(plan: &StatePlan) -> SavedState {
        let StatePlan { storage, capacity, window, row_bytes, .. } = *plan;
        SavedState { storage, capacity, window, row_bytes }
    }

    /// Returns the positions whose rows are saved, or `None` if the numbers contradict each other.
    fn positions(&self, filled: u64, high_water: u64) -> Option<Range<u64>> {
        let first = high_water.saturating_sub(self.capacity);
        (first <= filled && filled <= high_water).then_some(first..filled)
    }
}

impl SavedStates {
    /// Returns the number of bytes of all rows. Returns `None` if the numbers contradict each
    /// other.
    pub fn bytes(&self) -> Option<u64> {
        self.states.iter().try_fold(0_u64, |sum, state| {
            let positions = state.positions(self.filled, self.high_water)?;
            sum.checked_add((positions.end - positions.start).checked_mul(state.row_bytes)?)
        })
    }
}

/// Reason why the states of a session cannot be used for a chain.
fn unusable(message: String) -> SessionError {
    Error::new(ErrorKind::Incompatible, message)
        .with_help("run the tokens of the session again instead")
        .into()
}

impl Session {
    /// Returns the history as a prompt. If the last call failed within a picture or sound, the
    /// prompt ends before that part.
    pub fn history(&self) -> Prompt {
        let length = self.soft.whole(self.tokens.len());
        self.soft.prompt(&self.tokens[..length])
    }

    /// Describes the rows of states that belong to [`Session::history`]. A released session has
    /// none, and neither does a session whose states were lost.
    pub fn state_rows(&self) -> SavedStates {
        let history = self.soft.whole(self.tokens.len());
        let length = self.filled.min(history);
        let layout = self.engine.chain.layout();
        let states = layout.states.iter().map(SavedState::of).collect();
        let (filled, high_water) = match self.keeps(length) {
            true => (length as u64, self.high_water as u64),
            false => (0, 0),
        };
        SavedStates { filled, high_water, states }
    }

    /// Returns the number of bytes that [`Session::write_states`] writes.
    pub fn state_bytes(&self) -> u64 {
        self.state_rows().bytes().unwrap_or(0)
    }

    /// Writes the rows that [`Session::state_rows`] describes.
    ///
    /// # Errors
    ///
    /// Errors of the writer, and [`SessionError::Run`] if a shim does not give access to its
    /// memory.
    pub fn write_states(&self, to: &mut dyn Write) -> Result<(), SessionError> {
        let saved = self.state_rows();
        let filled = saved.filled as usize;
        if filled == 0 {
            return Ok(());
        }
        for (state, plan) in self.engine.chain.layout().states.iter().enumerate() {
            let Some(bytes) = self.engine.read_state(state)? else { continue };
            let (capacity, row_bytes) = plan.extents();
            for piece in pieces(plan.first_kept(self.high_water)..filled, capacity, row_bytes) {
                to.write_all(&bytes[piece]).map_err(Error::from)?;
            }
        }
        Ok(())
    }

    /// Checks that every shim gives access to the memory of its states.
    ///
    /// # Errors
    ///
    /// [`SessionError::Run`] with the first shard that does not.
    pub fn expect_readable_states(&self) -> Result<(), SessionError> {
        let states = 0..self.engine.chain.layout().states.len();
        states.into_iter().try_for_each(|state| self.engine.read_state(state).map(drop))
    }

    /// Replaces the history by `prompt`, whose states are unknown. The next call runs it, or
    /// [`Session::read_states`] provides its states.
    ///
    /// # Errors
    ///
    /// The errors of [`Session::prompt_parts`] about the prompt itself. The session is unchanged
    /// then. An empty prompt clears the session.
    pub fn remember(&mut self, prompt: &Prompt) -> Result<(), SessionError> {
        let soft = SoftParts::of(prompt, 0);
        if !self.engine.chain.is_generative() {
            return Err(not_generative());
        }
        self.check_width(&soft)?;
        self.check_tokens(prompt.ids(), 0)?;
        self.clear();
        self.tokens.extend_from_slice(prompt.ids());
        self.soft = soft;
        Ok(())
    }

    /// Reads rows of states that another session with an equal history wrote, on a chain with the
    /// same [identity](crate::Chain::identity). Afterwards the session continues as the other one
    /// would.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`ErrorKind::Incompatible`] if the states have other shapes,
    /// and of the kind [`ErrorKind::Invalid`] if the numbers contradict each other or the history.
    /// Both are found before anything is read. If reading fails half-way, no state is kept and the
    /// next call runs the history.
    pub fn read_states(&mut self, saved: &SavedStates, from: &mut dyn Read) -> Result<(), SessionError> {
        self.expect_states(saved)?;
        self.engine.acquire()?;
        self.lose_states();
        let (filled, high_water) = (saved.filled as usize, saved.high_water as usize);
        let chain = self.engine.chain.clone();
        for (state, plan) in chain.layout().states.iter().enumerate() {
            let Some(mut bytes) = self.engine.write_state(state)? else { continue };
            let (capacity, row_bytes) = plan.extents();
            for piece in pieces(plan.first_kept(high_water)..filled, capacity, row_bytes) {
                if let Err(error) = from.read_exact(&mut bytes[piece]) {
                    drop(bytes);
                    // Rows of a damaged file may hold NaN, which masks do not remove.
                    self.engine.clear_states();
                    return Err(Error::from(error).into());
                }
            }
        }
        (self.filled, self.high_water) = (filled, high_water);
        Ok(())
    }

    /// Checks that saved states fit this session, before anything is allocated or read.
    fn expect_states(&self, saved: &SavedStates) -> Result<(), SessionError> {
        let states = &self.engine.chain.layout().states;
        if saved.states.len() != states.len() {
            let (found, expected) = (saved.states.len(), states.len());
            return Err(unusable(format!("expected {expected} states, got {found}")));
        }
        let own = states.iter().map(SavedState::of);
        if let Some((index, (own, found))) =
            own.zip(&saved.states).enumerate().find(|(_, (own, found))| own != *found)
        {
            let name = &self.engine.chain.description().structure.states[index].name;
            let shown = |state: &SavedState| {
                let SavedState { storage, capacity, window, row_bytes } = state;
                format!("{capacity} rows of {row_bytes} bytes ({storage}) and a window of {window}")
            };
            let message = format!("expected {} in the state `{name}`, got {}", shown(&own), shown(found));
            return Err(unusable(message));
        }
        let (filled, high_water) = (saved.filled, saved.high_water);
        let fits = |plan: &StatePlan| plan.keeps(filled as usize, high_water as usize);
        let is_known = filled <= self.tokens.len() as u64 && high_water <= self.engine.chain.context();
        if !is_known || filled > high_water || saved.bytes().is_none() || !states.iter().all(fits) {
            let tokens = self.tokens.len();
            let message = format!(
                "states of {filled} positions, with {high_water} positions written, do not belong to {tokens} \
                 tokens"
            );
            return Err(Error::invalid(message).with_help("save the session again").into());
        }
        Ok(())
    }

    /// Creates a session with the same history and its own copy of the states. The memory counts
    /// like that of any session. Logits and the number of requested exact logits are copied. The
    /// cancel handle, the deadline, the callback before steps, drafts and fallback chains stay with
    /// this session.
    ///
    /// The fork of a released session is released. If a shim does not give access to its states,
    /// the fork runs the history with its next call, which [`Session::recomputed`] counts.
    ///
    /// # Errors
    ///
    /// Returns an error of the kind [`ErrorKind::Memory`] if the budget leaves too little, and
    /// errors of allocation.
    pub fn fork(&self) -> Result<Session, SessionError> {
        let chain = self.engine.chain.clone();
        let mut fork = match self.is_released() {
            true => Session::released(chain),
            false => Session::new(chain)?,
        };
        fork.largest_logits = self.largest_logits;
        fork.share_prefix_cache(self);
        fork.tokens.clone_from(&self.tokens);
        fork.soft.clone_from(&self.soft);
        fork.soft.trim(self.tokens.len());
        if self.filled == 0 {
            return Ok(fork);
        }
        match self.copy_states(&fork) {
            Ok(()) => {
                (fork.filled, fork.high_water) = (self.filled, self.high_water);
                fork.prefixes.stored = self.prefixes.stored;
                fork.logits.copy_from(self.logits.values());
                fork.exact_top_k = self.exact_top_k;
            }
            Err(error) => {
                tracing::info!(%error, "the states cannot be copied: the fork runs the history again");
            }
        }
        Ok(fork)
    }

    /// Copies all kept rows into the memory of another session on the same chain.
    fn copy_states(&self, into: &Session) -> Result<(), SessionError> {
        for (state, plan) in self.engine.chain.layout().states.iter().enumerate() {
            let (source, target) = (self.engine.read_state(state)?, into.engine.write_state(state)?);
            let (Some(source), Some(mut target)) = (source, target) else { continue };
            let (capacity, row_bytes) = plan.extents();
            for piece in pieces(plan.first_kept(self.high_water)..self.filled, capacity, row_bytes) {
                target[piece.clone()].copy_from_slice(&source[piece]);
            }
        }
        Ok(())
    }
}
