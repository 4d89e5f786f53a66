pub(crate) mod failover;
mod logits;
mod prefix;
mod release;
pub(crate) mod saved_states;
pub(crate) mod verify;

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Instant;

use crate::cancel::CancelHandle;
use crate::chain::Chain;
use crate::engine::{Engine, StepRows};
use crate::error::{SessionError, no_tokens, not_generative};
use crate::next_chain::NextChain;
use crate::placement::PlacementRecord;
use crate::soft_rows::{Prompt, SoftParts};
use crate::softcap::softcap;
use crate::step::Given;
use failover::Failover;
use logits::Logits;
use prefix::Prefixes;
use shardwright_drafting::Speculation;
use shardwright_vocabulary::{EntryKind, Error, ErrorClass, ErrorKind};

/// A sequence of tokens with the states of a chain.
///
/// If a run fails, is cancelled or passes the deadline, the session stays at its last complete
/// position. Repeating the call continues from there. The next call recomputes states that a shim
/// lost from the history, and reports it. If a device or the process of a shim is lost, a session
/// with a [`NextChain`](crate::NextChain) fails over to another chain within the same call.
pub struct Session {
    engine: Engine,
    /// The history, with placeholders at the positions of soft rows.
    tokens: Vec<u32>,
    /// Soft rows by position, including the rows of a call in progress.
    soft: SoftParts,
    /// Number of positions with valid state rows. Shorter than the history after states were lost.
    filled: usize,
    /// One past the last position that any run may have written since the states were last cleared.
    high_water: usize,
    /// Logits of the last token, empty if unknown.
    logits: Logits,
    /// Number of exact top logits in `logits`, `None` for all.
    exact_top_k: Option<NonZeroUsize>,
    /// Number of exact top logits requested for the next steps.
    largest_logits: Option<NonZeroUsize>,
    /// Failover policy and history.
    failover: Failover,
    /// Number of tokens that were run again because their states were gone.
    recomputed: usize,
    speculation: Option<Speculation>,
    /// Called before each step.
    before_step: Option<BeforeStep>,
    /// Cache of the states of prompts.
    prefixes: Prefixes,
}

/// Callback before each step of a session, on the thread that runs the session.
pub type BeforeStep = Arc<dyn Fn() + Send + Sync>;

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("chain", &self.engine.chain)
            .field("tokens", &self.tokens.len())
            .field("filled", &self.filled)
            .finish_non_exhaustive()
    }
}

/// Stores the states in the prefix cache, and the shims' measurements for later processes, when a
/// session ends.
impl Drop for Session {
    fn drop(&mut self) {
        self.keep_prefix();
        self.engine.chain.keep_measured();
    }
}

/// Result of [`Session::append`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Appended {
    /// Number of new tokens.
    pub tokens: usize,
    /// Number of tokens whose states were lost and recomputed. If a chain was lost within this
    /// call, this includes tokens of the call.
    pub recomputed: usize,
}

/// Result of [`Session::prompt`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Prompted {
    /// Number of leading tokens whose states were reused.
    pub reused: usize,
    /// Number of tokens that were run.
    pub run: usize,
}

/// Cost of a truncation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Truncation {
    /// No cost: all states before the new end are kept.
    Free,
    /// The states of sliding-window layers were overwritten (`state-lost`). The next call runs
    /// `recompute` tokens of the history again.
    StateLost {
        /// Tokens that will be run again.
        recompute: usize,
    },
}

/// A named tensor after a step, for verification.
#[derive(Clone, Debug, PartialEq)]
pub struct StepTensor {
    /// Extents, including rows beyond the valid ones.
    pub shape: Vec<u64>,
    /// Dense values in row-major order.
    pub values: Vec<f32>,
}

/// A completed step.
pub struct StepView<'a> {
    engine: &'a mut Engine,
    schedule: usize,
    position: usize,
    rows: usize,
    logits: &'a [f32],
}

impl StepView<'_> {
    /// Returns the position of the first row.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Returns the number of valid rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Returns the name of the entry point, for example `decode_4@512`.
    pub fn entry(&self) -> &str {
        &self.engine.chain.layout().schedules[self.schedule].name
    }

    /// Returns the logits after a valid row, or `None` if the entry does not return logits.
    pub fn logits(&self, row: usize) -> Option<&[f32]> {
        if row >= self.rows || self.logits.is_empty() {
            return None;
        }
        self.logits.chunks_exact(self.logits.len() / self.rows).nth(row)
    }

    /// Returns the names for [`StepView::tensor`]: taps, and the residual streams between shards
    /// (`embed`, `layer.3`).
    pub fn names(&self) -> Vec<String> {
        let named = &self.engine.chain.layout().schedules[self.schedule].named;
        named.iter().map(|(name, _)| name.clone()).collect()
    }

    /// Returns the values of a named tensor, or `None` if the chain was built without it. Rows
    /// beyond the valid ones are undefined.
    pub fn tensor(&mut self, name: &str) -> Option<StepTensor> {
        let chain = self.engine.chain.clone();
        let named = &chain.layout().schedules[self.schedule].named;
        let (_, located) = named.iter().find(|(existing, _)| existing == name)?;
        let elements = located.shape.iter().product::<u64>() as usize;
        let mut values = Vec::new();
        self.engine.read(located, elements, &mut values).ok()?;
        Some(StepTensor { shape: located.shape.clone(), values })
    }
}

type Visit<'v> = &'v mut dyn FnMut(&mut StepView<'_>);

type Run<'r> = &'r mut dyn FnMut(&mut Session, &[u32], usize) -> Result<(), SessionError>;

impl Chain {
    /// Creates a session at position 0 with its own states.
    pub fn session(&self) -> Result<Session, SessionError> {
        Session::new(self.clone())
    }

    /// Creates a session like [`Chain::session`] that fails over to the next chain if its chain is
    /// lost, now or later.
    pub fn session_with(&self, next: Box<dyn NextChain>) -> Result<Session, SessionError> {
        Session::with_next(self.clone(), next)
    }
}

impl Session {
    fn new(chain: Chain) -> Result<Self, SessionError> {
        Ok(Session::over(Engine::new(chain)?))
    }

    /// Creates a session whose memory is released.
    fn released(chain: Chain) -> Self {
        Session::over(Engine::released(chain))
    }

    fn over(engine: Engine) -> Self {
        Session {
            engine,
            tokens: Vec::new(),
            soft: SoftParts::default(),
            filled: 0,
            high_water: 0,
            logits: Logits::default(),
            exact_top_k: None,
            largest_logits: None,
            failover: Failover::default(),
            recomputed: 0,
            speculation: None,
            before_step: None,
            prefixes: Prefixes::default(),
        }
    }

    /// Creates a session with this history on another chain, for use after a device is lost. The
    /// next call runs the history there. The number of exact top logits is kept. Cancellation
    /// handles, the deadline and drafts stay with this session.
    pub fn resume_on(&self, chain: &Chain) -> Result<Session, SessionError> {
        let mut session = chain.session()?;
        session.largest_logits = self.largest_logits;
        session.share_prefix_cache(self);
        if !self.tokens.is_empty() {
            session.check_generative(&self.tokens)?;
            session.tokens.clone_from(&self.tokens);
            session.soft.clone_from(&self.soft);
            session.soft.trim(self.tokens.len());
        }
        Ok(session)
    }

    /// Returns the chain that the session runs on.
    pub fn chain(&self) -> &Chain {
        &self.engine.chain
    }

    /// Returns the history, with placeholders at the positions of soft rows.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Returns the number of unused positions in the context.
    pub fn remaining(&self) -> usize {
        self.context().saturating_sub(self.tokens.len())
    }

    fn context(&self) -> usize {
        self.engine.chain.context() as usize
    }

    /// Returns the logits after the last token, one for each entry of the vocabulary. Returns
    /// `None` before the first token, after a truncation, and after an error.
    /// [`Session::exact_top_k`] reports how many are exact.
    pub fn logits(&self) -> Option<&[f32]> {
        Some(self.logits.values()).filter(|values| !values.is_empty())
    }

    /// Returns the number of top values of [`Session::logits`] that are exact. Among equal values,
    /// lower ids come first. Every other value may be lower than its true value, but never higher.
    /// `None` means that all are exact. This is always true unless a
    /// [`Generation`](crate::Generation) ran or [`Session::set_largest_logits`] requested fewer.
    pub fn exact_top_k(&self) -> Option<NonZeroUsize> {
        self.exact_top_k
    }

    /// Sets the number of top logits per row that must be exact from now on, which saves work in
    /// shims that support it. `None`, the default of a new session, requests all.
    /// [`Session::logits`] keeps its current contents. If the runtime caps logits, all are computed
    /// regardless, because capping may make unequal logits equal.
    pub fn set_largest_logits(&mut self, count: Option<NonZeroUsize>) {
        self.largest_logits = count;
    }

    /// Runs an operation that needs only this number of exact top logits.
    pub(crate) fn looking_at<T>(
        &mut self,
        count: Option<NonZeroUsize>,
        does: impl FnOnce(&mut Session) -> T,
    ) -> T {
        let before = std::mem::replace(&mut self.largest_logits, count);
        let done = does(self);
        self.largest_logits = before;
        done
    }

    /// Returns a handle that cancels operations of this session from other threads.
    pub fn cancel_handle(&self) -> CancelHandle {
        self.engine.cancel.clone()
    }

    /// Sets the handle that cancels this session's operations from now on.
    pub fn set_cancel_handle(&mut self, handle: CancelHandle) {
        self.engine.cancel = handle;
    }

    /// Checks whether the next operation would end immediately, because cancellation is requested
    /// or the deadline has passed.
    pub(crate) fn is_interrupted(&self) -> bool {
        let late = self.engine.deadline.is_some_and(|deadline| Instant::now() >= deadline);
        late || self.engine.cancel.is_requested()
    }

    /// Sets the time after which operations fail with [`SessionError::Deadline`], `None` for no
    /// limit.
    pub fn set_deadline(&mut self, deadline: Option<Instant>) {
        self.engine.deadline = deadline;
    }

    /// Sets a callback that runs before each step, `None` (the default) for none. Sessions of
    /// several threads can wait there for their turn, also within a long prompt. Vectors of texts
    /// are computed without it.
    pub fn set_before_step(&mut self, before: Option<BeforeStep>) {
        self.before_step = before;
    }

    /// Returns the record of all placements so far, the copied tensors, and every failover.
    pub fn placement(&self) -> PlacementRecord {
        let mut record = self.engine.counters.record(&self.engine.chain);
        record.moves.clone_from(&self.failover.moves);
        record
    }

    /// Runs `ids` after the history. [`Session::logits`] are then the logits after the last of
    /// them. All tokens but the last use prefill entries, the largest completely filled one first.
    pub fn append(&mut self, ids: &[u32]) -> Result<Appended, SessionError> {
        self.append_with(ids, &mut |_| {})
    }

    /// Runs `ids` like [`Session::append`] and passes every completed step to `visit`.
    pub fn append_with(&mut self, ids: &[u32], visit: Visit<'_>) -> Result<Appended, SessionError> {
        self.soft.trim(self.tokens.len());
        self.append_placed(ids, visit)
    }

    /// Runs `ids` like [`Session::append_with`], if the soft rows of these positions are already
    /// stored.
    fn append_placed(&mut self, ids: &[u32], visit: Visit<'_>) -> Result<Appended, SessionError> {
        self.extend(ids, &mut |session, work, _| {
            let last = work.len() - 1;
            session.prefill(work, last, visit)?;
            session.decode(&work[last..], visit)
        })
    }

    /// Runs a prompt of tokens and soft rows like [`Session::append`].
    ///
    /// # Errors
    ///
    /// The errors of [`Session::append`], and of soft rows with another width than the embedding.
    pub fn append_parts(&mut self, prompt: &Prompt) -> Result<Appended, SessionError> {
        self.place(prompt)?;
        self.append_placed(prompt.ids(), &mut |_| {})
    }

    /// Runs `ids` after the history through decode entries and passes every step to `visit`.
    /// [`StepView::logits`] are available for each token.
    pub fn score(&mut self, ids: &[u32], visit: Visit<'_>) -> Result<Appended, SessionError> {
        self.score_parts(&ids.into(), visit)
    }

    /// Runs a prompt of tokens and soft rows like [`Session::score`].
    ///
    /// # Errors
    ///
    /// The errors of [`Session::score`], and of soft rows with another width than the embedding.
    pub fn score_parts(&mut self, prompt: &Prompt, visit: Visit<'_>) -> Result<Appended, SessionError> {
        self.place(prompt)?;
        self.extend(prompt.ids(), &mut |session, work, recomputed| {
            session.prefill(work, recomputed, &mut |_| {})?;
            session.decode(&work[recomputed..], visit)
        })
    }

    /// Stores the soft rows of the next positions.
    fn place(&mut self, prompt: &Prompt) -> Result<(), SessionError> {
        let soft = SoftParts::of(prompt, self.tokens.len());
        self.check_width(&soft)?;
        // Checked before state of an earlier failed call is discarded.
        self.check_generative(prompt.ids())?;
        self.soft.take(soft, self.tokens.len());
        Ok(())
    }

    /// Calls `run` with all tokens without states, old and new, and with the number of old ones. If
    /// a chain is lost, `run` is called with the remaining tokens on the next chain.
    fn extend(&mut self, ids: &[u32], run: Run<'_>) -> Result<Appended, SessionError> {
        self.check_generative(ids)?;
        let before = self.tokens.len();
        let mut recomputed = 0;
        self.with_failover(before + ids.len(), &mut |session| {
            recomputed = session.tokens.len() - session.filled;
            // A call that failed half-way has kept its completed tokens in the history.
            let left = &ids[session.tokens.len() - before..];
            let work = [&session.tokens[session.filled..], left].concat();
            run(session, &work, recomputed)
        })?;
        Ok(Appended { tokens: ids.len(), recomputed })
    }

    /// Makes the history equal to `ids`, and [`Session::logits`] the logits after them, without
    /// running their common prefix again.
    pub fn prompt(&mut self, ids: &[u32]) -> Result<Prompted, SessionError> {
        self.prompt_parts(&ids.into())
    }

    /// Makes the history equal to a prompt of tokens and soft rows, like [`Session::prompt`]. Soft
    /// rows belong to the common prefix if their origins are equal, and only as a whole.
    ///
    /// # Errors
    ///
    /// The errors of [`Session::prompt`], and of soft rows with another width than the embedding.
    pub fn prompt_parts(&mut self, prompt: &Prompt) -> Result<Prompted, SessionError> {
        let (ids, soft) = (prompt.ids(), SoftParts::of(prompt, 0));
        if !self.engine.chain.is_generative() {
            return Err(not_generative());
        }
        let Some(last) = ids.len().checked_sub(1) else { return Err(no_tokens()) };
        // Checked before anything is discarded.
        self.check_tokens(ids, 0)?;
        self.check_width(&soft)?;
        let is_common = |&position: &usize| {
            self.tokens[position] == ids[position] && self.soft.identity(position) == soft.identity(position)
        };
        let shorter = self.tokens.len().min(ids.len());
        let common = (0..shorter).take_while(is_common).count();
        if common == ids.len() && common == self.tokens.len() && self.holds_logits() {
            return Ok(Prompted { reused: common, run: 0 });
        }
        // The last token always runs, because its logits are needed.
        self.truncate(common.min(last))?;
        self.soft.take(soft.clone(), self.tokens.len());
        self.restore_prefix(ids, &soft, last);
        let reused = self.filled;
        self.append_placed(&ids[self.tokens.len()..], &mut |_| {})?;
        self.keep_prefix();
        Ok(Prompted { reused, run: ids.len() - reused })
    }

    /// Checks whether the logits are valid, and exact as far as requested.
    fn holds_logits(&self) -> bool {
        let enough = match (self.exact_top_k, self.largest_logits) {
            (None, _) => true,
            (Some(_), None) => false,
            (Some(right), Some(wanted)) => right >= wanted,
        };
        enough && self.logits().is_some()
    }

    /// Returns the sentence vector of `ids`, for encoders. All its values are finite.
    pub fn encode(&mut self, ids: &[u32]) -> Result<Vec<f32>, SessionError> {
        self.encode_with(ids, &mut |_| {})
    }

    /// Encodes `ids` like [`Session::encode`] and passes the completed step to `visit`.
    pub fn encode_with(&mut self, ids: &[u32], visit: Visit<'_>) -> Result<Vec<f32>, SessionError> {
        if self.engine.chain.is_generative() {
            let message = "the model generates text and does not return an embedding";
            return Err(Error::unsupported(message).into());
        }
        if ids.is_empty() {
            return Err(no_tokens());
        }
        self.check_vocabulary(ids)?;
        self.with_failover(ids.len(), &mut |session| session.encode_once(ids, visit))
    }

    fn encode_once(&mut self, ids: &[u32], visit: Visit<'_>) -> Result<Vec<f32>, SessionError> {
        let chain = self.engine.chain.clone();
        let rows = |index: usize| chain.layout().schedules[index].point.rows;
        let Some(schedule) =
            chain.schedules(EntryKind::Encode).find(|&index| rows(index) >= ids.len() as u64)
        else {
            let (tokens, rows) = (ids.len(), chain.context());
            let message = format!("{tokens} tokens exceed the {rows} rows of the largest encode entry");
            return Err(Error::new(ErrorKind::Context, message)
                .with_help("split the text, or plan an encode entry of more rows")
                .into());
        };
        let given = Given::Tokens { ids, soft: &self.soft };
        self.engine.step(schedule, StepRows { position: 0, count: ids.len(), given }, None)?;
        self.stepped();
        let mut embedding = Vec::new();
        if let Some(located) = &chain.layout().schedules[schedule].embedding {
            let elements = located.shape.iter().product::<u64>() as usize;
            let read = self.engine.read(located, elements, &mut embedding);
            read.map_err(|source| self.engine.not_read(schedule, 0, source))?;
        }
        let (engine, rows) = (&mut self.engine, ids.len());
        visit(&mut StepView { engine, schedule, position: 0, rows, logits: &[] });
        match embedding.iter().position(|value| !value.is_finite()) {
            None => Ok(embedding),
            Some(index) => {
                let shard = self.engine.first_not_finite(schedule, rows as u64);
                let shard = &chain.description().shards[shard];
                let (value, (first, end)) = (embedding[index], shard.segments.layers());
                let (name, place) = (&shard.name, &shard.place);
                let error = Error::invalid(format!(
                    "value {index} of the embedding is {value}; shard `{name}` (layers {first}..{end}) on \
                     {place}, {}, is the first to return such values",
                    chain.layout().schedules[schedule].name
                ));
                Err(SessionError::NotFinite(error.with_help(
                    "the checkpoint has such values, or a format overflows (f16 ends at 65504): verify the \
                     model, and plan other formats or run it on the CPU",
                )))
            }
        }
    }

    /// Removes everything from position `length` on.
    ///
    /// Linear states keep every position, so this has no cost. Rings keep the window plus as many
    /// rows as the largest entry has. Truncation by up to that many rows, counted from the farthest
    /// position ever written, also has no cost. Further truncation loses the states.
    ///
    /// Soft rows are not split: a cut within a part moves to the start of the part.
    pub fn truncate(&mut self, length: usize) -> Result<Truncation, SessionError> {
        if length > self.tokens.len() {
            let message = format!("cannot truncate {} tokens to {length}", self.tokens.len());
            return Err(Error::argument(message).into());
        }
        // Soft rows of a call that failed half-way continue where they are.
        let whole = length == self.tokens.len();
        let length = if whole { length } else { self.soft.boundary(length) };
        if length == self.tokens.len() {
            return Ok(Truncation::Free);
        }
        self.keep_prefix();
        self.prefixes.stored = self.prefixes.stored.min(length);
        self.tokens.truncate(length);
        self.soft.trim(length);
        self.logits.clear();
        if self.filled <= length {
            return Ok(Truncation::Free);
        }
        if length == 0 || self.keeps(length) {
            self.filled = length;
            if length == 0 {
                self.high_water = 0;
            }
            return Ok(Truncation::Free);
        }
        tracing::info!(length, high_water = self.high_water, "state-lost: the history will be run again");
        self.lose_states();
        Ok(Truncation::StateLost { recompute: length })
    }

    /// Checks whether all states keep the rows that a run at position `length` reads.
    fn keeps(&self, length: usize) -> bool {
        self.engine.chain.layout().states.iter().all(|state| state.keeps(length, self.high_water))
    }

    /// Removes all tokens and states.
    pub fn clear(&mut self) {
        self.keep_prefix();
        self.tokens.clear();
        self.soft = SoftParts::default();
        self.logits.clear();
        self.lose_states();
    }

    /// Marks all states as unwritten. A run from position 0 sees only rows written since then.
    fn lose_states(&mut self) {
        self.filled = 0;
        self.high_water = 0;
        self.prefixes.stored = 0;
    }

    fn check_generative(&self, ids: &[u32]) -> Result<(), SessionError> {
        if !self.engine.chain.is_generative() {
            return Err(not_generative());
        }
        if ids.is_empty() {
            return Err(no_tokens());
        }
        self.check_tokens(ids, self.tokens.len())
    }

    fn check_width(&self, soft: &SoftParts) -> Result<(), SessionError> {
        let width = self.engine.chain.description().structure.hidden as usize;
        match soft.other_width(width) {
            Some(found) => Err(Error::invalid(format!("expected soft rows of {width} values, got {found}"))
                .with_help("run the tower of the same checkpoint")
                .into()),
            None => Ok(()),
        }
    }

    fn check_tokens(&self, ids: &[u32], position: usize) -> Result<(), SessionError> {
        if ids.len() > self.context().saturating_sub(position) {
            let (tokens, context) = (ids.len(), self.engine.chain.context());
            let message = format!("{tokens} tokens at position {position} exceed the context of {context}");
            return Err(Error::new(ErrorKind::Context, message)
                .with_help("shorten the prompt, or plan with a larger context")
                .into());
        }
        self.check_vocabulary(ids)
    }

    fn check_vocabulary(&self, ids: &[u32]) -> Result<(), SessionError> {
        for asset in self.engine.chain.assets() {
            let beyond = ids
                .iter()
                .map(|&id| (id, asset.row_of(id)))
                .find(|(_, row)| u64::from(*row) >= asset.entries());
            if let Some((token, row)) = beyond {
                let (name, entries) = (&asset.name, asset.entries());
                let message = format!("token {token} reads row {row} of `{name}`, which has {entries} rows");
                return Err(Error::invalid(message)
                    .with_help("the tokenizer and the checkpoint do not belong together")
                    .into());
            }
        }
        Ok(())
    }

    /// Fills the states of the first `count` tokens of `work`.
    fn prefill(&mut self, work: &[u32], count: usize, visit: Visit<'_>) -> Result<(), SessionError> {
        let mut done = 0;
        while done < count {
            let left = (count - done) as u64;
            let chain = &self.engine.chain;
            let Some(schedule) =
                chain.choose(EntryKind::Prefill, left).or_else(|| chain.choose(EntryKind::Decode, left))
            else {
                return Ok(());
            };
            done += self.step(schedule, &work[done..count], visit)?;
        }
        Ok(())
    }

    /// Runs all of `work` through decode entries, which return logits.
    fn decode(&mut self, work: &[u32], visit: Visit<'_>) -> Result<(), SessionError> {
        let mut done = 0;
        while done < work.len() {
            let Some(schedule) = self.engine.chain.choose(EntryKind::Decode, (work.len() - done) as u64)
            else {
                return Ok(());
            };
            done += self.step(schedule, &work[done..], visit)?;
        }
        Ok(())
    }

    /// Runs as many tokens as the schedule accepts, directly after the filled positions, and
    /// returns their number.
    fn step(&mut self, schedule: usize, work: &[u32], visit: Visit<'_>) -> Result<usize, SessionError> {
        self.step_keeping(schedule, work, &mut |view| {
            visit(view);
            view.rows()
        })
    }

    /// Runs a step like [`Session::step`], but keeps only as many leading rows as `visit` returns.
    /// The state is as if the other rows had not been run.
    fn step_keeping(
        &mut self,
        schedule: usize,
        work: &[u32],
        visit: &mut dyn FnMut(&mut StepView<'_>) -> usize,
    ) -> Result<usize, SessionError> {
        if let Some(before) = &self.before_step {
            before();
        }
        let chain = self.engine.chain.clone();
        let plan = &chain.layout().schedules[schedule];
        let rows = work.len().min(usize::try_from(plan.point.rows).unwrap_or(usize::MAX));
        let (position, work) = (self.filled, &work[..rows]);
        self.logits.clear();
        self.keep_prefix_before(rows);
        // A failed run may have written all of its rows.
        self.high_water = self.high_water.max(position + rows);
        let cap = chain.description().logits_softcap();
        // Capping may make two different logits equal, and the lower id would then rank first.
        let largest_logits = self.largest_logits.filter(|_| cap.is_none());
        let given = Given::Tokens { ids: work, soft: &self.soft };
        let step = StepRows { position, count: rows, given };
        if let Err(error) = self.engine.step(schedule, step, largest_logits) {
            self.engine.clear_state_rows(position, rows);
            if let SessionError::Run { source, .. } = &error
                && matches!(source.class(), Some(ErrorClass::StateLost | ErrorClass::DeviceLost))
            {
                tracing::info!(position, "state-lost: the history will be run again");
                self.engine.clear_states();
                self.lose_states();
            }
            return Err(error);
        }
        let kept = if let Some(located) = &plan.logits {
            let width = located.shape.last().copied().unwrap_or(0) as usize;
            let Session { engine, logits, .. } = self;
            let taken = logits.take(engine, located, rows * width, cap);
            taken.map_err(|source| engine.not_read(schedule, position, source))?;
            let kept = visit(&mut StepView { engine, schedule, position, rows, logits: logits.values() });
            // Only the logits of the last kept row stay.
            logits.keep_row(kept.saturating_sub(1), width);
            self.exact_top_k = largest_logits;
            kept
        } else {
            visit(&mut StepView { engine: &mut self.engine, schedule, position, rows, logits: &[] })
        };
        let known = self.tokens.len() - position;
        self.recomputed += known.min(kept);
        self.tokens.extend_from_slice(work[..kept].get(known..).unwrap_or(&[]));
        self.filled = position + kept;
        // At most as many rows are discarded as the largest entry has, and rings keep as many.
        debug_assert!(kept == rows || self.keeps(self.filled));
        self.stepped();
        Ok(kept)
    }
}
