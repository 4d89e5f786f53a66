//! Chooses among several ways of doing the same work, by timing them during real work.
//!
//! Processors differ in which way is fastest, and no bit of a result depends on it. The ways
//! alternate in rounds. A way is chosen when it was always the fastest for at least [`LEAST`]
//! rounds. Otherwise each way is timed for [`ROUNDS`] rounds and the best median wins. After some
//! more work the measurement is repeated, since a thread may have moved to another core, or memory
//! may have become busy.

use std::fmt::Display;
use std::time::Duration;

/// Most rounds of each way. One interrupted round does not change the median of five.
const ROUNDS: usize = 5;
/// Fewest rounds of each way.
const LEAST: usize = 2;
/// Work after which the choice is measured again, in rounds. 15 rounds of measuring are a
/// two-hundredth of it.
const AGAIN: u64 = 3200;

/// A choice that is in progress or complete.
#[derive(Debug)]
pub struct Choice<W> {
    /// The ways. The last one is used first.
    ways: Vec<W>,
    /// Least work of a round.
    round: u64,
    /// Nanoseconds per unit of work in each round so far, for each way.
    paces: Vec<[f64; ROUNDS]>,
    /// Completed rounds of all ways together.
    done: usize,
    /// Whether the first round, which touches the pages, is over.
    is_warm: bool,
    /// Whether a choice was made and is in use.
    is_made: bool,
    /// Whether a choice was ever made by measuring.
    was_made: bool,
    /// Work and time of the round in progress, or since the choice was made.
    work: u64,
    time: Duration,
    chosen: W,
}

/// The result of a measurement.
#[derive(Debug, PartialEq)]
pub struct Found<W> {
    /// The fastest way.
    pub way: W,
    /// Each way with its nanoseconds per unit of work.
    pub paces: Vec<(W, f64)>,
}

impl<W: Copy + PartialEq> Choice<W> {
    /// Creates a choice among `ways`, whose last element is the best guess. Each round has at least
    /// `round` units of work.
    ///
    /// # Panics
    /// If `ways` is empty.
    pub fn among(ways: &[W], round: u64) -> Choice<W> {
        let chosen = *ways.last().expect("a way");
        Choice {
            ways: ways.to_vec(),
            round,
            paces: vec![[0.0; ROUNDS]; ways.len()],
            done: 0,
            is_warm: false,
            is_made: ways.len() < 2,
            was_made: false,
            work: 0,
            time: Duration::ZERO,
            chosen,
        }
    }

    /// Returns the way for the next work.
    pub fn now(&self) -> W {
        match self.is_made {
            true => self.chosen,
            // The best guess comes first, since it is used alone if there is little work.
            false => self.ways[self.turn()],
        }
    }

    /// Returns the best way so far: the chosen one, or the initial guess.
    pub fn best(&self) -> W {
        self.chosen
    }

    /// Reports whether the best way was found by measuring. Stays true while the choice is measured
    /// again.
    pub fn was_made(&self) -> bool {
        self.was_made
    }

    /// Returns the index of the way whose round it is.
    fn turn(&self) -> usize {
        self.ways.len() - 1 - self.done % self.ways.len()
    }

    /// Records that `work` units took `time` with `way`. Returns the result if that completes a
    /// measurement.
    pub fn took(&mut self, way: W, work: u64, time: Duration) -> Option<Found<W>> {
        // Another thread may have ended the round in the meantime.
        if way != self.now() {
            return None;
        }
        self.work = self.work.saturating_add(work);
        self.time += time;
        if self.is_made {
            if self.work >= self.round.saturating_mul(AGAIN) && self.ways.len() > 1 {
                (self.done, self.is_made, self.work, self.time) = (0, false, 0, Duration::ZERO);
            }
            return None;
        }
        if self.work < self.round {
            return None;
        }
        if !self.is_warm {
            (self.is_warm, self.work, self.time) = (true, 0, Duration::ZERO);
            return None;
        }
        let (turn, round) = (self.turn(), self.done / self.ways.len());
        self.paces[turn][round] = self.time.as_nanos() as f64 / self.work as f64;
        (self.work, self.time) = (0, Duration::ZERO);
        self.done += 1;
        if !self.done.is_multiple_of(self.ways.len()) {
            return None;
        }
        let rounds = self.done / self.ways.len();
        let mut paces = self.paces.clone();
        paces.iter_mut().for_each(|paces| paces[..rounds].sort_unstable_by(f64::total_cmp));
        let best = (0..paces.len())
            .min_by(|one, other| paces[*one][rounds / 2].total_cmp(&paces[*other][rounds / 2]))?;
        let mut others = paces.iter().enumerate().filter(|(way, _)| *way != best);
        let is_clear = others.all(|(_, other)| paces[best][rounds - 1] < other[0]);
        if rounds < ROUNDS && !(rounds >= LEAST && is_clear) {
            return None;
        }
        (self.chosen, self.is_made, self.was_made) = (self.ways[best], true, true);
        let paces = self.ways.iter().zip(&paces).map(|(way, paces)| (*way, paces[rounds / 2]));
        Some(Found { way: self.chosen, paces: paces.collect() })
    }
}

impl<W: Display> Found<W> {
    /// Formats the speed of each way for log messages. `unit` names 10⁹ units of work per second,
    /// for example GB/s for bytes.
    pub fn speeds(&self, unit: &str) -> String {
        let each =
            self.paces.iter().map(|(way, pace)| format!("{:.1} {unit} with {way}", 1.0 / pace.max(1e-9)));
        each.collect::<Vec<_>>().join(", ")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROUND: u64 = 64 << 20;
    const WAYS: [u32; 3] = [1, 4, 8];

    /// Records `units` pieces of work. `pace` returns the nanoseconds per 1,000 units of work.
    /// Returns the result and the piece that completed it.
    fn run(
        choice: &mut Choice<u32>,
        units: usize,
        work: u64,
        pace: impl Fn(usize, u32) -> u64,
    ) -> Option<(usize, Found<u32>)> {
        let mut found = None;
        for unit in 0..units {
            let way = choice.now();
            let time = Duration::from_nanos(pace(unit, way) * work / 1000);
            found = choice.took(way, work, time).map(|text| (unit, text)).or(found);
        }
        found
    }

    /// Creates a choice among all ways, after the round that touches pages.
    fn all() -> Choice<u32> {
        let mut choice = Choice::among(&WAYS, ROUND);
        assert_eq!(choice.took(8, ROUND, Duration::from_secs(1)), None);
        choice
    }

    #[test]
    fn the_fastest_way_is_kept() {
        for fastest in WAYS {
            let mut choice = all();
            assert_eq!((choice.now(), choice.best(), choice.was_made()), (8, 8, false));
            let pace = |_, way| if way == fastest { 25 } else { 30 };
            let (last, found) = run(&mut choice, 100, ROUND, pace).expect("it is found");
            assert_eq!(last, 5, "two rounds of each are enough where one is always faster");
            assert_eq!(found.way, fastest);
            let said = found.speeds("GB/s");
            assert!(
                said.contains(&format!("40.0 GB/s with {fastest}")) && said.contains("33.3 GB/s"),
                "{said}"
            );
            assert_eq!((choice.now(), choice.best(), choice.was_made()), (fastest, fastest, true));
        }
    }

    #[test]
    fn rounds_that_were_interrupted_do_not_count() {
        let mut choice = all();
        // In its first two rounds the fastest way is slightly slower than the others.
        let pace = |unit, way| match way {
            1 if unit < 6 => 31 - u64::from(unit < 3) * 2,
            1 => 25,
            _ => 30,
        };
        let (last, _) = run(&mut choice, 15, ROUND, pace).expect("it is found");
        assert_eq!((last, choice.now()), (14, 1));
        // One round of each way is interrupted.
        let mut choice = all();
        let pace = |unit: usize, way| match way {
            _ if unit / 3 == way as usize / 3 => 250,
            1 => 25,
            _ => 30,
        };
        let (last, _) = run(&mut choice, 15, ROUND, pace).expect("it is found");
        assert_eq!((last, choice.now()), (14, 1));
    }

    #[test]
    fn small_work_shares_a_round_and_the_choice_is_confirmed() {
        let mut choice = all();
        let pace = |_, way| if way == 4 { 25 } else { 30 };
        let (last, _) = run(&mut choice, 1000, ROUND / 4, pace).expect("it is found");
        assert_eq!(last, 4 * 6 - 1);
        // The previously fastest way is no longer the fastest.
        let again = ROUND * AGAIN / 4;
        let pace = |_, way| if way == 1 { 25 } else { 30 };
        assert_eq!(run(&mut choice, 3, again, pace), None);
        assert_eq!(choice.now(), 4);
        run(&mut choice, 1, again, pace);
        assert_eq!((choice.is_made, choice.was_made(), choice.best()), (false, true, 4));
        assert!(run(&mut choice, 16, ROUND, pace).is_some());
        assert_eq!(choice.now(), 1);
    }

    #[test]
    fn work_of_a_round_that_is_over_and_a_single_way_are_not_measured() {
        let mut choice = all();
        assert_eq!(choice.took(4, ROUND, Duration::from_secs(1)), None);
        assert_eq!((choice.now(), choice.work), (8, 0));
        let mut choice = Choice::among(&[4], ROUND);
        assert_eq!(run(&mut choice, 20, u64::MAX / 2000, |_, _| 25), None);
        assert_eq!((choice.now(), choice.was_made()), (4, false));
    }
}
