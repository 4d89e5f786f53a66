//! Failover: when its chain is lost, a session continues on the next chain and runs its history
//! there.

use std::time::Instant;

use shardwright_bundle::Structure;
use shardwright_vocabulary::{Error, ErrorClass, ErrorKind, Place};

use super::Session;
use crate::chain::Chain;
use crate::engine::Engine;
use crate::error::SessionError;
use crate::next_chain::NextChain;
use crate::placement::{Counters, Move, PlacementRecord};

/// Most chains that one call requests. A plan names two or three. The limit stops an implementation
/// that returns the same broken chain forever.
const CHAINS_MAX: usize = 16;

#[derive(Default)]
pub(super) struct Failover {
    next: Option<Box<dyn NextChain>>,
    pub(super) moves: Vec<Move>,
    /// Time when the previous chain was lost. Set until the history is complete again.
    since: Option<Instant>,
}

/// A replacement chain with its memory allocated.
pub(crate) struct Successor {
    pub(crate) engine: Engine,
    pub(crate) passed_over: Vec<String>,
}

/// Checks whether a device, or the worker process that serves it, was lost.
pub(crate) fn is_loss(error: &SessionError) -> bool {
    error.class() == Some(ErrorClass::DeviceLost) && error.at().is_some()
}

impl Session {
    /// Starts a session on `chain`, or on a next chain if its devices are already lost.
    pub(crate) fn with_next(chain: Chain, mut next: Box<dyn NextChain>) -> Result<Session, SessionError> {
        let lost = match Session::new(chain.clone()) {
            Ok(mut session) => {
                session.failover.next = Some(next);
                return Ok(session);
            }
            Err(error) if is_loss(&error) => error,
            Err(error) => return Err(error),
        };
        let (since, record) = (Instant::now(), Counters::new(&chain).record(&chain));
        let mut asked = 0;
        let taken = take(
            next.as_mut(),
            lost,
            &record,
            &mut asked,
            &mut |next| fits(&chain, next, 0),
            &mut || Ok(()),
        )?;
        let (lost, successor) = taken;
        let mut session = Session::over(successor.engine);
        session.failover.next = Some(next);
        session.moved(&lost, since, record, successor.passed_over);
        Ok(session)
    }

    /// Sets the source of chains to fail over to. With `None`, the loss of the chain is an error.
    pub fn set_next_chain(&mut self, next: Option<Box<dyn NextChain>>) {
        self.failover.next = next;
    }

    /// Runs `attempt`, and repeats it on the next chain each time a chain is lost. `positions` is
    /// the number of positions that the whole call needs.
    pub(super) fn with_failover<T>(
        &mut self,
        positions: usize,
        attempt: &mut dyn FnMut(&mut Session) -> Result<T, SessionError>,
    ) -> Result<T, SessionError> {
        let mut asked = 0;
        loop {
            // A released session allocates its memory again.
            match self.engine.acquire().and_then(|()| attempt(self)) {
                Err(error) if is_loss(&error) => self.go_on(error, positions, &mut asked)?,
                done => return done,
            }
        }
    }

    fn go_on(&mut self, lost: SessionError, positions: usize, asked: &mut usize) -> Result<(), SessionError> {
        let Some(mut next) = self.failover.next.take() else { return Err(lost) };
        let (since, record) = (Instant::now(), self.placement());
        // Memory on the lost device is useless, and the next chain may need the budget.
        self.release_memory();
        let taken = take(
            next.as_mut(),
            lost,
            &record,
            asked,
            &mut |chain| fits(&self.engine.chain, chain, positions),
            &mut || self.engine.interrupted(self.tokens.len()),
        );
        self.failover.next = Some(next);
        let (lost, Successor { mut engine, passed_over }) = taken?;
        // The cancel handle must keep working across chains.
        engine.cancel = self.engine.cancel.clone();
        engine.deadline = self.engine.deadline;
        self.engine = engine;
        self.moved(&lost, since, PlacementRecord { moves: Vec::new(), ..record }, passed_over);
        Ok(())
    }

    fn moved(
        &mut self,
        lost: &SessionError,
        since: Instant,
        before: PlacementRecord,
        passed_over: Vec<String>,
    ) {
        let mut to: Vec<Place> = Vec::new();
        for shard in &self.engine.chain.description().shards {
            if !to.contains(&shard.place) {
                to.push(shard.place.clone());
            }
        }
        let tokens = self.tokens.len();
        tracing::info!(tokens, error = %lost, "failing over: the history will be run again");
        let Some((shard, from)) = lost.at().map(|(shard, place)| (shard.to_owned(), place.clone())) else {
            return;
        };
        self.failover.since = Some(since);
        self.failover.moves.push(Move {
            tokens,
            shard,
            from,
            to,
            error: lost.to_string(),
            passed_over,
            seconds_to_first_step: None,
            seconds_to_catch_up: None,
            before,
        });
    }

    /// Updates the times of a failover. Called after each completed step.
    pub(super) fn stepped(&mut self) {
        let (Some(since), Some(moved)) = (self.failover.since, self.failover.moves.last_mut()) else {
            return;
        };
        let seconds = since.elapsed().as_secs_f64();
        moved.seconds_to_first_step.get_or_insert(seconds);
        if self.filled >= self.tokens.len() {
            moved.seconds_to_catch_up = Some(seconds);
            self.failover.since = None;
        }
    }
}

/// Returns the first usable next chain, and the loss that it replaces. If no chain is left, the
/// error names the loss and the unusable chains.
pub(crate) fn take(
    next: &mut dyn NextChain,
    lost: SessionError,
    record: &PlacementRecord,
    asked: &mut usize,
    fits: &mut dyn FnMut(&Chain) -> Result<(), String>,
    interrupted: &mut dyn FnMut() -> Result<(), SessionError>,
) -> Result<(SessionError, Successor), SessionError> {
    let mut passed_over = Vec::new();
    while *asked < CHAINS_MAX {
        interrupted()?;
        *asked += 1;
        let chain = match next.next(&lost, record) {
            None => break,
            Some(Err(error)) => {
                passed_over.push(error.to_string());
                continue;
            }
            Some(Ok(chain)) => chain,
        };
        match fits(&chain).and_then(|()| Engine::new(chain).map_err(|error| error.to_string())) {
            Ok(engine) => return Ok((lost, Successor { engine, passed_over })),
            Err(reason) => passed_over.push(reason),
        }
    }
    let reasons = match passed_over.is_empty() {
        true => String::new(),
        false => format!(" ({})", passed_over.join("; ")),
    };
    Err(Error::new(ErrorKind::Shim, format!("{lost}; no fallback chain is left{reasons}"))
        .with_help("open the model again; sessions of a plan with a fallback target recover automatically")
        .of_lost_device()
        .into())
}

/// Checks that a session on `old` can continue on `next`.
fn fits(old: &Chain, next: &Chain, positions: usize) -> Result<(), String> {
    let (one, other) = (old.description(), next.description());
    let sizes = |of: &Structure| (of.hidden, of.vocabulary, of.layers, of.is_generative());
    if one.model != other.model || sizes(&one.structure) != sizes(&other.structure) {
        return Err(format!("the next chain belongs to another model, `{}`", other.model));
    }
    if positions as u64 > next.context() {
        return Err(format!("{positions} positions are needed, but the next chain has {}", next.context()));
    }
    Ok(())
}
