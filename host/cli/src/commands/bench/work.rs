//! The measured works: prompts at once, or tokens one by one, each at a given depth.

use std::fmt;
use std::num::NonZeroUsize;
use std::time::{Duration, Instant};

use serde::Serialize;
use shardwright::Error;
use shardwright_measure::{Speeds, percentile};
use shardwright_runtime::{PlacementRecord, Session};

use super::interrupted;
use crate::arguments::BenchArguments;
use crate::outcome::Failure;

/// Tokens per chunk when a depth is filled. Cancellation is checked between chunks.
const DEPTH_CHUNK: u32 = 2048;

/// One size of one kind of work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Work {
    pub kind: Kind,
    pub tokens: u32,
    pub depth: u32,
    pub logits: Logits,
}

/// Which logits of every step are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Logits {
    /// All logits, as in `llama-bench`.
    All,
    /// Only the largest logit, as for a greedy choice.
    Largest,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// All tokens at once, with logits after the last.
    Prompt,
    /// One token after the other, with logits after each.
    Generation,
}

impl fmt::Display for Work {
    /// Formats the name like `llama-bench`: `pp512`, `tg128 @ d4096`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            Kind::Prompt => "pp",
            Kind::Generation => "tg",
        };
        write!(f, "{kind}{}", self.tokens)?;
        if self.depth > 0 { write!(f, " @ d{}", self.depth) } else { Ok(()) }
    }
}

impl Work {
    /// Returns the works that the command line requests, in the order of `llama-bench`: depth by
    /// depth, prompts first.
    pub fn asked(arguments: &BenchArguments) -> Result<Vec<Work>, Failure> {
        let (prompts, generated) = (&arguments.prompt_tokens, &arguments.generated_tokens);
        for (name, sizes) in [("-p", prompts), ("-n", generated)] {
            if sizes.contains(&0) {
                let what =
                    format!("sizes of {name} must be at least 1; leave {name} out to measure only the other");
                return Err(Failure::Arguments(what));
            }
        }
        let least = [("-r", arguments.repetitions), ("--first-tokens", arguments.first_tokens)];
        if let Some((name, _)) = least.into_iter().find(|(_, value)| *value == 0) {
            return Err(Failure::Arguments(format!("{name} must be at least 1")));
        }
        let (prompts, generated): (&[u32], &[u32]) = match (&prompts[..], &generated[..]) {
            ([], []) => (&[512], &[128]),
            asked => asked,
        };
        let mut works = Vec::new();
        for &depth in &arguments.depth {
            let of = |kind, sizes: &[u32]| -> Vec<Work> {
                let logits = match kind {
                    Kind::Generation if !arguments.all_logits => Logits::Largest,
                    _ => Logits::All,
                };
                sizes.iter().map(|&tokens| Work { kind, tokens, depth, logits }).collect()
            };
            works.extend(of(Kind::Prompt, prompts));
            works.extend(of(Kind::Generation, generated));
        }
        Ok(works)
    }

    /// Returns the number of positions of a session that the work needs.
    pub fn positions(&self) -> u64 {
        u64::from(self.depth) + u64::from(self.tokens)
    }

    /// Runs the whole prompt, or one token, before measurements.
    pub fn warm_up(&self, session: &mut Session, tokens: &mut Tokens) -> Result<(), Failure> {
        interrupted()?;
        session.clear();
        let count = match self.kind {
            Kind::Prompt => self.tokens,
            Kind::Generation => 1,
        };
        self.look(session);
        session.append(&tokens.next(count)).map_err(Error::from)?;
        Ok(())
    }

    fn look(&self, session: &mut Session) {
        session.set_largest_logits(match self.logits {
            Logits::All => None,
            Logits::Largest => NonZeroUsize::new(1),
        });
    }

    /// Fills an empty session up to the depth.
    fn descend(&self, session: &mut Session, tokens: &mut Tokens) -> Result<(), Failure> {
        session.clear();
        let mut left = self.depth;
        while left > 0 {
            interrupted()?;
            let count = left.min(DEPTH_CHUNK);
            session.append(&tokens.next(count)).map_err(Error::from)?;
            left -= count;
        }
        Ok(())
    }
}

/// Random ids, the same in every run of the program.
pub struct Tokens {
    state: u64,
    vocabulary: u64,
}

impl Tokens {
    pub fn new(vocabulary: u64) -> Self {
        Tokens { state: 1, vocabulary: vocabulary.max(1) }
    }

    /// Returns the next `count` ids.
    pub fn next(&mut self, count: u32) -> Vec<u32> {
        let mut draw = || {
            // splitmix64
            self.state = self.state.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let mut bits = self.state;
            bits = (bits ^ (bits >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            bits = (bits ^ (bits >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            ((bits ^ (bits >> 31)) % self.vocabulary) as u32
        };
        (0..count).map(|_| draw()).collect()
    }
}

/// A work with its measurements so far.
pub struct Measured {
    work: Work,
    /// Logits that are really read: all, if the runtime caps logits.
    logits: Logits,
    seconds: Vec<f64>,
    /// Seconds of each token, if they are generated one by one.
    steps: Vec<f64>,
    shards: Vec<ShardTime>,
    entries: Vec<EntrySteps>,
}

/// The share of one shard in a work.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ShardTime {
    pub shard: String,
    pub runs: u64,
    pub seconds: f64,
}

/// Steps of a work under one entry point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct EntrySteps {
    pub entry: String,
    pub steps: u64,
    pub rows: u64,
}

/// The measurements of one work.
#[derive(Debug, Serialize)]
pub struct WorkReport {
    /// Name in the form of `llama-bench`.
    pub test: String,
    pub tokens: u32,
    pub depth: u32,
    /// Logits that every step had to compute.
    pub logits: Logits,
    /// Seconds of each repetition, in order.
    pub seconds: Vec<f64>,
    pub tokens_per_second: Speeds,
    /// Speeds of single tokens, if they are generated one by one.
    pub steps: Option<Steps>,
    /// Time of the shards over all repetitions.
    pub shards: Vec<ShardTime>,
    /// Remaining time: inputs, copies between shards, and everything else outside of them.
    pub outside_seconds: f64,
    pub entries: Vec<EntrySteps>,
}

/// Tokens per second if every step were like the given one. On a busy machine the median is more
/// reliable than a mean.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Steps {
    /// Speed at the quickest decile of steps.
    pub quick: f64,
    pub median: f64,
    /// Speed at the slowest decile of steps.
    pub slow: f64,
}

impl Measured {
    pub fn new(work: Work) -> Self {
        let logits = work.logits;
        Measured {
            work,
            logits,
            seconds: Vec::new(),
            steps: Vec::new(),
            shards: Vec::new(),
            entries: Vec::new(),
        }
    }

    /// Adds one measurement.
    pub fn sample(&mut self, session: &mut Session, tokens: &mut Tokens) -> Result<(), Failure> {
        interrupted()?;
        self.work.look(session);
        self.work.descend(session, tokens)?;
        let ids = tokens.next(self.work.tokens);
        let before = session.placement();
        let started = Instant::now();
        match self.work.kind {
            Kind::Prompt => {
                session.append(&ids).map_err(Error::from)?;
            }
            Kind::Generation => {
                let mut last = started;
                for id in &ids {
                    session.append(std::slice::from_ref(id)).map_err(Error::from)?;
                    let now = Instant::now();
                    self.steps.push((now - last).as_secs_f64());
                    last = now;
                }
            }
        }
        let took = started.elapsed().max(Duration::from_nanos(1)).as_secs_f64();
        self.add(&before, &session.placement());
        if session.exact_top_k().is_none() {
            self.logits = Logits::All;
        }
        self.seconds.push(took);
        Ok(())
    }

    /// Adds the work of the shards between two records.
    fn add(&mut self, before: &PlacementRecord, after: &PlacementRecord) {
        if self.shards.is_empty() {
            let none = |shard: &str| ShardTime { shard: shard.to_owned(), runs: 0, seconds: 0.0 };
            self.shards = after.shards.iter().map(|shard| none(&shard.shard)).collect();
            let none = |entry: &str| EntrySteps { entry: entry.to_owned(), steps: 0, rows: 0 };
            self.entries = after.entries.iter().map(|entry| none(&entry.entry)).collect();
        }
        for ((sum, before), after) in self.shards.iter_mut().zip(&before.shards).zip(&after.shards) {
            sum.runs += after.runs.saturating_sub(before.runs);
            sum.seconds +=
                Duration::from_nanos(after.nanoseconds.saturating_sub(before.nanoseconds)).as_secs_f64();
        }
        for ((sum, before), after) in self.entries.iter_mut().zip(&before.entries).zip(&after.entries) {
            sum.steps += after.steps.saturating_sub(before.steps);
            sum.rows += after.rows.saturating_sub(before.rows);
        }
    }

    pub fn report(mut self) -> WorkReport {
        let speeds: Vec<f64> =
            self.seconds.iter().map(|seconds| f64::from(self.work.tokens) / seconds).collect();
        self.steps.sort_unstable_by(f64::total_cmp);
        let step = |share: f64| 1.0 / percentile(&self.steps, share).max(1e-9);
        let steps =
            (!self.steps.is_empty()).then(|| Steps { quick: step(0.1), median: step(0.5), slow: step(0.9) });
        let inside: f64 = self.shards.iter().map(|shard| shard.seconds).sum();
        let all: f64 = self.seconds.iter().sum();
        self.entries.retain(|entry| entry.steps > 0);
        WorkReport {
            test: self.work.to_string(),
            tokens: self.work.tokens,
            depth: self.work.depth,
            logits: self.logits,
            tokens_per_second: Speeds::of(speeds),
            steps,
            shards: self.shards,
            outside_seconds: (all - inside).max(0.0),
            entries: self.entries,
            seconds: self.seconds,
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::arguments::{Arguments, Command};

    #[test]
    fn nothing_of_no_size_is_measured() {
        for (option, sizes) in [("-p", "0"), ("-p", "8,0"), ("-n", "0"), ("-r", "0"), ("--first-tokens", "0")]
        {
            let parsed = Arguments::try_parse_from(["shardwright", "bench", "model", option, sizes]);
            let Command::Bench(arguments) = parsed.unwrap().command else { panic!("another command") };
            let refused = Work::asked(&arguments).err();
            assert!(matches!(refused, Some(Failure::Arguments(said)) if said.contains(option)), "{option}");
        }
    }

    #[test]
    fn works_are_named_as_llama_bench_names_them() {
        let work = |kind, tokens, depth| Work { kind, tokens, depth, logits: Logits::All };
        assert_eq!(work(Kind::Prompt, 512, 0).to_string(), "pp512");
        assert_eq!(work(Kind::Generation, 128, 4096).to_string(), "tg128 @ d4096");
        assert_eq!(work(Kind::Generation, 128, 4096).positions(), 4224);
    }

    #[test]
    fn ids_are_of_the_vocabulary_and_come_again() {
        let (mut one, mut other) = (Tokens::new(7), Tokens::new(7));
        let ids = one.next(1000);
        assert_eq!(ids, other.next(1000));
        assert_ne!(ids, one.next(1000));
        assert!((0..7).all(|id| ids.contains(&id)) && ids.iter().all(|&id| id < 7), "{ids:?}");
    }

    #[test]
    fn single_steps_are_sorted_by_quickness() {
        let mut measured =
            Measured::new(Work { kind: Kind::Generation, tokens: 10, depth: 0, logits: Logits::All });
        measured.steps = (1..=10).map(|tenth| f64::from(tenth) / 10.0).collect();
        measured.seconds = vec![5.5];
        let report = measured.report();
        let steps = report.steps.unwrap();
        assert!(steps.quick > steps.median && steps.median > steps.slow, "{steps:?}");
        assert_eq!(report.tokens_per_second.median, 10.0 / 5.5);
        assert_eq!(report.outside_seconds, 5.5);
    }
}
