//! How many panels are read side by side for one row, chosen where it runs.
//!
//! One row is bound by memory, and processors differ in what they read fastest: an Intel Xeon with
//! eight streams, an AMD EPYC (Zen 5) with one, by a tenth to a third. No bit of a result depends
//! on it. So the engine measures while it runs: tokens take turns in the ways there are until one
//! was always the fastest, at least [`LEAST`] times, or each was timed [`ROUNDS`] times, of which
//! the best median counts. After [`AGAIN`] bytes the question is asked again, since a thread may
//! have moved to another core, or the memory become busy.

use std::time::Duration;

use crate::simd::dot::DotLevel;

/// Most rounds of each way. The median of five is not moved by one that was interrupted.
const ROUNDS: usize = 5;
/// Fewest rounds of each way.
const LEAST: usize = 2;
/// Fewest bytes of a round, so that caches hold little of it and the clock is fine enough.
const ROUND: u64 = 64 << 20;
/// Bytes after which the choice is confirmed: 15 rounds are a two-hundredth of it.
const AGAIN: u64 = 200 << 30;

/// Panels that are read side by side for one row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Streams {
    /// One after the other, each with several sums.
    One,
    /// Four; where registers are few, two of blocks with scales.
    Four,
    /// Eight, where their sums fit into registers.
    Eight,
}

impl Streams {
    /// All, fewest first.
    pub const ALL: [Streams; 3] = [Streams::One, Streams::Four, Streams::Eight];

    /// How many.
    pub const fn count(self) -> usize {
        match self {
            Streams::One => 1,
            Streams::Four => 4,
            Streams::Eight => 8,
        }
    }

    /// Those that kernels of this level have, of which the last is the one to begin with.
    pub fn of(level: DotLevel) -> &'static [Streams] {
        match level {
            DotLevel::Scalar => &Streams::ALL[..1],
            #[cfg(target_arch = "x86_64")]
            DotLevel::Avx512Vnni | DotLevel::Amx => &Streams::ALL,
            _ => &Streams::ALL[..2],
        }
    }
}

/// A choice in progress, or made.
#[derive(Debug)]
pub struct Choice {
    ways: &'static [Streams],
    /// Nanoseconds per gibibyte of the rounds so far, of each way.
    rounds: [[f64; ROUNDS]; Streams::ALL.len()],
    /// Rounds that are done, of all ways together.
    done: usize,
    /// Whether pages were touched, which the first round does.
    is_warm: bool,
    /// Whether a choice was made and stands.
    is_made: bool,
    /// Of the round in progress, or since the choice was made.
    bytes: u64,
    time: Duration,
    chosen: Streams,
}

impl Choice {
    /// Among the ways of a level.
    pub fn of(level: DotLevel) -> Choice {
        Choice::among(Streams::of(level))
    }

    /// Of this way alone, or of the nearest that the level has.
    pub fn forced(level: DotLevel, wanted: Streams) -> Choice {
        let ways = Streams::of(level);
        let at = ways.iter().position(|way| *way == wanted).unwrap_or(ways.len() - 1);
        Choice::among(&ways[at..=at])
    }

    fn among(ways: &'static [Streams]) -> Choice {
        let chosen = ways.last().copied().unwrap_or(Streams::One);
        let rounds = [[0.0; ROUNDS]; Streams::ALL.len()];
        let (is_made, time) = (ways.len() < 2, Duration::ZERO);
        Choice { ways, rounds, done: 0, is_warm: false, is_made, bytes: 0, time, chosen }
    }

    /// The way for the next token.
    pub fn now(&self) -> Streams {
        match self.is_made {
            true => self.chosen,
            // The one to begin with comes first: it is the best guess for a model of few tokens.
            false => self.ways[self.turn()],
        }
    }

    /// Whose round it is.
    fn turn(&self) -> usize {
        self.ways.len() - 1 - self.done % self.ways.len()
    }

    /// So many bytes of weights were read for a token in so much time. Where that ends a
    /// measurement, what was measured, for the log.
    pub fn took(&mut self, bytes: u64, time: Duration) -> Option<String> {
        self.bytes += bytes;
        self.time += time;
        if self.is_made {
            if self.bytes >= AGAIN && self.ways.len() > 1 {
                (self.done, self.is_made, self.bytes, self.time) = (0, false, 0, Duration::ZERO);
            }
            return None;
        }
        if self.bytes < ROUND {
            return None;
        }
        if !self.is_warm {
            (self.is_warm, self.bytes, self.time) = (true, 0, Duration::ZERO);
            return None;
        }
        let pace = self.time.as_nanos() as f64 / self.bytes as f64;
        self.rounds[self.turn()][self.done / self.ways.len()] = pace;
        (self.bytes, self.time) = (0, Duration::ZERO);
        self.done += 1;
        if !self.done.is_multiple_of(self.ways.len()) {
            return None;
        }
        let rounds = self.done / self.ways.len();
        let mut paces = self.rounds;
        paces.iter_mut().for_each(|paces| paces[..rounds].sort_unstable_by(f64::total_cmp));
        let paces = &paces[..self.ways.len()];
        let best = (0..paces.len())
            .min_by(|one, other| paces[*one][rounds / 2].total_cmp(&paces[*other][rounds / 2]))?;
        let others = || paces.iter().enumerate().filter(|(way, _)| *way != best);
        let is_clear = others().all(|(_, other)| paces[best][rounds - 1] < other[0]);
        if rounds < ROUNDS && !(rounds >= LEAST && is_clear) {
            return None;
        }
        (self.chosen, self.is_made) = (self.ways[best], true);
        let shown: Vec<String> = self
            .ways
            .iter()
            .zip(paces)
            .map(|(way, paces)| format!("{} with {}", gigabytes(paces[rounds / 2]), way.count()))
            .collect();
        Some(format!(
            "weights of one row are read with streams={} from now on: {}",
            self.chosen.count(),
            shown.join(", ")
        ))
    }
}

/// From nanoseconds a byte.
fn gigabytes(pace: f64) -> String {
    format!("{:.1} GB/s", 1.0 / pace.max(1e-9))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Tokens of `bytes`, each as fast as `pace` says, in nanoseconds for 1,000 bytes; gives what
    /// was said and by which token.
    fn run(
        choice: &mut Choice,
        tokens: usize,
        bytes: u64,
        pace: impl Fn(usize, Streams) -> u64,
    ) -> Option<(usize, String)> {
        let mut said = None;
        for token in 0..tokens {
            let time = Duration::from_nanos(pace(token, choice.now()) * bytes / 1000);
            said = choice.took(bytes, time).map(|text| (token, text)).or(said);
        }
        said
    }

    /// Of all, once pages were touched.
    fn all() -> Choice {
        let mut choice = Choice::among(&Streams::ALL);
        assert_eq!(choice.took(ROUND, Duration::from_secs(1)), None);
        choice
    }

    #[test]
    fn the_fastest_way_is_kept() {
        for fastest in Streams::ALL {
            let mut choice = all();
            assert_eq!(choice.now(), Streams::Eight);
            let pace = |_, way| if way == fastest { 25 } else { 30 };
            let (last, said) = run(&mut choice, 100, ROUND, pace).expect("it is said");
            assert_eq!(last, 5, "two rounds of each are enough where one is always faster");
            assert!(said.contains(&format!("streams={} ", fastest.count())), "{said}");
            assert!(said.contains("40.0 GB/s") && said.contains("33.3 GB/s"), "{said}");
            assert_eq!(choice.now(), fastest);
        }
    }

    #[test]
    fn rounds_that_were_interrupted_do_not_count() {
        let mut choice = all();
        // The first two rounds of the fastest way take a little longer than the others'.
        let pace = |token, way| match way {
            Streams::One if token < 6 => 31 - u64::from(token < 3) * 2,
            Streams::One => 25,
            _ => 30,
        };
        let (last, _) = run(&mut choice, 15, ROUND, pace).expect("it is said");
        assert_eq!((last, choice.now()), (14, Streams::One));
        // Or one of each is interrupted.
        let mut choice = all();
        let pace = |token, way| match way {
            _ if token / 3 == way.count() / 3 => 250,
            Streams::One => 25,
            _ => 30,
        };
        let (last, _) = run(&mut choice, 15, ROUND, pace).expect("it is said");
        assert_eq!((last, choice.now()), (14, Streams::One));
    }

    #[test]
    fn small_tokens_share_a_round_and_the_choice_is_confirmed() {
        let mut choice = all();
        let pace = |_, way| if way == Streams::Four { 25 } else { 30 };
        let (last, _) = run(&mut choice, 1000, ROUND / 4, pace).expect("it is said");
        assert_eq!(last, 4 * 6 - 1);
        // What was fastest is so no more.
        let pace = |_, way| if way == Streams::One { 25 } else { 30 };
        assert_eq!(run(&mut choice, 3, AGAIN / 4, pace), None);
        assert_eq!(choice.now(), Streams::Four);
        run(&mut choice, 1, AGAIN / 4, pace);
        assert!(run(&mut choice, 16, ROUND, pace).is_some());
        assert_eq!(choice.now(), Streams::One);
    }

    #[test]
    fn a_forced_way_is_not_measured() {
        for level in DotLevel::available() {
            for wanted in Streams::ALL {
                let mut choice = Choice::forced(level, wanted);
                let expected = match Streams::of(level) {
                    ways if ways.contains(&wanted) => wanted,
                    ways => ways[ways.len() - 1],
                };
                assert_eq!(choice.now(), expected);
                assert_eq!(run(&mut choice, 20, AGAIN, |_, _| 25), None);
                assert_eq!(choice.now(), expected);
            }
        }
    }
}
