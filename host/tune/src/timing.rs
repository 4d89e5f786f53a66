//! Times loaded plans alternately.

use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use shardwright_bundle::Digest;
use shardwright_measure::median;
use shardwright_runtime::{Chain, PlacementRecord, Session};
use shardwright_vocabulary::{EntryKind, EntryName, Error, ErrorKind, Result, Watch};

use crate::table::ShardRows;
use crate::trial::{Sample, TimedPart, Trial, Turn};

/// Number of measured turns, unless they are slow.
const TURNS: usize = 9;
/// Minimum number of measured turns.
const LEAST_TURNS: usize = 3;
/// Time after which no more turns begin.
const LONG: Duration = Duration::from_secs(30);
/// Number of tokens after the prompt in a turn.
pub const STEPS: u32 = 4;

/// A built and loaded plan.
pub struct Loaded {
    /// Identity of the plan's build.
    pub plan: Digest,
    /// Identity of the actual build, which differs if a compiler refused the plan.
    pub built: Digest,
    session: Session,
    rows: Vec<ShardRows>,
    /// Measured run times in nanoseconds for each entry of `rows`.
    nanoseconds: Vec<Vec<u64>>,
}

impl Loaded {
    /// Creates a loaded plan with a new session.
    ///
    /// # Errors
    ///
    /// Errors of the runtime, such as states that cannot be allocated.
    pub fn new(plan: Digest, built: Digest, chain: &Chain, rows: Vec<ShardRows>) -> Result<Self> {
        let mut session = chain.session()?;
        // As in greedy sampling.
        session.set_largest_logits(NonZeroUsize::new(1));
        let nanoseconds = vec![Vec::new(); rows.len()];
        Ok(Loaded { plan, built, session, rows, nanoseconds })
    }

    /// Runs a prompt and some tokens. If measured, records the times of shards.
    fn run(&mut self, prompt: &[u32], is_measured: bool, watch: &dyn Watch) -> Result<Sample> {
        self.session.clear();
        let before = self.session.placement();
        let started = Instant::now();
        self.session.append(prompt)?;
        let first = nanoseconds(started.elapsed());
        let between = self.session.placement();
        let mut steps = Vec::new();
        for step in 0..STEPS {
            interrupted(watch)?;
            let id = prompt.get(step as usize).copied().unwrap_or(0);
            let started = Instant::now();
            self.session.append(&[id])?;
            steps.push(nanoseconds(started.elapsed()) as f64);
        }
        let after = self.session.placement();
        if is_measured {
            let verified = self.verify()?;
            self.add([&before, &between, &after], verified.as_ref());
        }
        Ok(Sample { prompt: first, token: median(&steps) as u64 })
    }

    /// Runs the entry point that verifies proposals with all its rows filled, if the plan has one
    /// and the context has room. Returns the placement record after that run.
    fn verify(&mut self) -> Result<Option<PlacementRecord>> {
        let entries = self.rows.iter().map(|place| place.entry).filter(verifies);
        let Some(entry) = entries.max_by_key(|entry| entry.rows) else { return Ok(None) };
        let (rows, context) = (entry.rows as usize, entry.context as usize);
        if self.session.tokens().len().saturating_add(rows) > context {
            return Ok(None);
        }
        self.session.score(&vec![0; rows], &mut |_| {})?;
        Ok(Some(self.session.placement()))
    }

    /// Records the time of each shard for the tokens and for the step that verified. For the
    /// prompt, only if a single entry point ran it with all its rows filled.
    fn add(&mut self, [before, between, after]: [&PlacementRecord; 3], verified: Option<&PlacementRecord>) {
        let took = |shard: usize, from: &PlacementRecord, to: &PlacementRecord| {
            let of = |record: &PlacementRecord| record.shards.get(shard).map(|shard| shard.nanoseconds);
            Some(of(to)?.saturating_sub(of(from)?))
        };
        let mut ran = before.entries.iter().zip(&between.entries).filter_map(|(before, between)| {
            let steps = between.steps.saturating_sub(before.steps);
            let rows = between.rows.saturating_sub(before.rows);
            (steps > 0 && between.entry.starts_with(EntryKind::Prefill.name())).then_some((
                between.entry.as_str(),
                steps,
                rows,
            ))
        });
        let prefill = match (ran.next(), ran.next()) {
            (Some(only), None) => Some(only),
            _ => None,
        };
        for (place, times) in self.rows.iter().zip(&mut self.nanoseconds) {
            let Some(token) = took(place.shard, between, after).map(|time| time / u64::from(STEPS)) else {
                continue;
            };
            let time = match place.entry.kind {
                EntryKind::Decode if place.entry.rows == 1 => Some(token),
                EntryKind::Decode => verified.and_then(|verified| took(place.shard, after, verified)),
                EntryKind::Prefill => prefill.and_then(|(entry, steps, rows)| {
                    let filled = rows == steps * u64::from(place.entry.rows);
                    // The last token of the prompt is not part of its prefill.
                    let prompt = took(place.shard, before, between)?.saturating_sub(token);
                    (filled && entry == place.entry.to_string()).then(|| prompt / steps)
                }),
                _ => None,
            };
            times.extend(time.map(|time| time.saturating_sub(place.call)));
        }
    }

    /// Returns the measured times of shards and resets them.
    fn parts(&mut self) -> Vec<TimedPart> {
        let times = self.nanoseconds.iter_mut().map(std::mem::take);
        let parts = self.rows.iter().zip(times).filter(|(_, times)| !times.is_empty());
        parts.map(|(place, nanoseconds)| TimedPart { rows: place.rows.clone(), nanoseconds }).collect()
    }
}

/// Returns whether an entry point verifies proposed tokens.
fn verifies(entry: &EntryName) -> bool {
    entry.kind == EntryKind::Decode && entry.rows > 1
}

/// Times only the default plan.
///
/// # Errors
///
/// Errors of a run, and cancellation.
pub fn time_alone(baseline: &mut Loaded, prompt: &[u32], watch: &mut dyn Watch) -> Result<Trial> {
    baseline.run(prompt, false, watch)?;
    let mut turns = Vec::new();
    let started = Instant::now();
    while turns.len() < LEAST_TURNS || (turns.len() < TURNS && started.elapsed() < LONG) {
        interrupted(watch)?;
        watch.progress(turns_done(turns.len()), "timing the default plan");
        let sample = baseline.run(prompt, true, watch)?;
        turns.push(Turn { baseline: sample, own: sample });
    }
    let (plan, built) = (baseline.plan, baseline.built);
    Ok(Trial { plan, baseline: plan, built, turns, parts: baseline.parts() })
}

/// Times a plan alternately with the default plan. The plan that begins also alternates. Each runs
/// once before the measurement.
///
/// # Errors
///
/// Errors of a run, and cancellation.
pub fn time_in_turns(
    baseline: &mut Loaded,
    own: &mut Loaded,
    prompt: &[u32],
    watch: &mut dyn Watch,
) -> Result<Trial> {
    baseline.run(prompt, false, watch)?;
    own.run(prompt, false, watch)?;
    let mut turns = Vec::new();
    let started = Instant::now();
    while turns.len() < LEAST_TURNS || (turns.len() < TURNS && started.elapsed() < LONG) {
        interrupted(watch)?;
        watch.progress(turns_done(turns.len()), "timing alternately with the default plan");
        let turn = match turns.len() % 2 {
            0 => {
                let before = baseline.run(prompt, false, watch)?;
                Turn { baseline: before, own: own.run(prompt, true, watch)? }
            }
            _ => {
                let first = own.run(prompt, true, watch)?;
                Turn { baseline: baseline.run(prompt, false, watch)?, own: first }
            }
        };
        turns.push(turn);
    }
    let (plan, baseline, built) = (own.plan, baseline.plan, own.built);
    Ok(Trial { plan, baseline, built, turns, parts: own.parts() })
}

fn turns_done(turns: usize) -> u32 {
    (turns * 1000 / TURNS) as u32
}

fn nanoseconds(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX).max(1)
}

/// Returns an error if the user cancelled.
pub fn interrupted(watch: &dyn Watch) -> Result<()> {
    match watch.cancelled() {
        false => Ok(()),
        true => Err(Error::new(ErrorKind::Cancelled, "tuning was interrupted")
            .with_help("run the command again to resume: finished measurements are stored")),
    }
}
