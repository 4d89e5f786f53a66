//! Decides how many drafted tokens are worth verifying.

use crate::draft::{DRAFTED_MAX, Evidence};
use crate::times::StepTimes;

/// Weight of the initial expectation, in proposals.
const PRIOR_WEIGHT: f64 = 3.0;

/// Factor on the weight of older proposals for each new one. A change of the text is noticed within
/// about ten proposals.
const KEPT: f64 = 0.9;

/// Minimum expected gain for choosing a step of several rows, since estimates are not more precise.
const LEAST_GAIN: f64 = 1.02;

/// Pause in tokens after a draft that costs time did not pay off. It doubles each time, up to the
/// longest.
const FIRST_PAUSE: u32 = 16;
const LONGEST_PAUSE: u32 = 512;

/// Factor for the pause in tokens: it is multiplied by the cost of a drafted token, in steps of one
/// row. A trial drafts twelve tokens, so it needs a fortieth of the time.
const TRIED: f64 = 480.0;

/// A rate of accepted tokens.
#[derive(Clone, Copy, Debug)]
struct Rate {
    accepted: f64,
    tried: f64,
}

impl Rate {
    fn expected(rate: f64) -> Rate {
        Rate { accepted: rate * PRIOR_WEIGHT, tried: PRIOR_WEIGHT }
    }

    fn record(&mut self, accepted: f64, tried: f64) {
        self.accepted = self.accepted * KEPT + accepted;
        self.tried = self.tried * KEPT + tried;
    }

    fn rate(self) -> f64 {
        if self.tried > 0.0 { (self.accepted / self.tried).min(1.0) } else { 0.0 }
    }
}

/// Rates of proposals with similar evidence.
#[derive(Clone, Copy, Debug)]
struct Class {
    /// Rate of the first token.
    first: Rate,
    /// Rate of each later token if all tokens before it were accepted.
    later: Rate,
}

/// Expected rates of the first and of later tokens for a draft without a measure.
const UNMEASURED: (f64, f64) = (0.6, 0.7);

/// Expected rates for a repetition that continues after a difference.
const RESUMED: (f64, f64) = (0.5, 0.75);

/// Classes of repetitions: the maximum number of repeated tokens, and the expected rates of the
/// first and of later tokens. Modelled after prompt lookup in conversations, where longer
/// repetitions are more likely to continue.
const REPEATED: [(usize, f64, f64); 6] =
    [(1, 0.15, 0.4), (2, 0.3, 0.6), (4, 0.5, 0.75), (8, 0.7, 0.85), (16, 0.85, 0.9), (usize::MAX, 0.9, 0.95)];

/// The acceptance of one draft.
#[derive(Clone, Debug)]
pub(crate) struct Pace {
    unmeasured: Class,
    /// The initial expectation for unmeasured proposals.
    expected: (f64, f64),
    resumed: Class,
    repeated: [Class; REPEATED.len()],
    pause: u32,
    next_pause: u32,
}

impl Default for Pace {
    fn default() -> Self {
        Pace::expecting(UNMEASURED)
    }
}

impl Pace {
    /// Creates a pace with the expected rates of the first and of later tokens, for proposals
    /// without a measure.
    pub(crate) fn expecting(expected: (f64, f64)) -> Self {
        let class = |(first, later)| Class { first: Rate::expected(first), later: Rate::expected(later) };
        Pace {
            unmeasured: class(expected),
            expected,
            resumed: class(RESUMED),
            repeated: REPEATED.map(|(_, first, later)| class((first, later))),
            pause: 0,
            next_pause: FIRST_PAUSE,
        }
    }

    fn class(&self, evidence: Evidence) -> &Class {
        match evidence {
            Evidence::Unmeasured => &self.unmeasured,
            Evidence::Resumed => &self.resumed,
            Evidence::Repeated(tokens) => &self.repeated[class_of(tokens)],
        }
    }

    fn class_mut(&mut self, evidence: Evidence) -> &mut Class {
        match evidence {
            Evidence::Unmeasured => &mut self.unmeasured,
            Evidence::Resumed => &mut self.resumed,
            Evidence::Repeated(tokens) => &mut self.repeated[class_of(tokens)],
        }
    }

    /// Returns how many of `proposed` tokens with that evidence a step should verify. Each token
    /// costs `each` nanoseconds in addition to the step. Returns 0 if a step of one row is expected
    /// to be as good.
    pub(crate) fn worth(&self, times: &StepTimes, evidence: Evidence, proposed: usize, each: f64) -> usize {
        let Some(alone) = times.expected(1) else { return 0 };
        let class = *self.class(evidence);
        let (mut best, mut best_rate) = (0, LEAST_GAIN / alone);
        let (mut tokens, mut likely) = (1.0, class.first.rate());
        for count in 1..=proposed.min(DRAFTED_MAX) {
            tokens += likely;
            likely *= class.later.rate();
            let Some(time) = times.expected(count + 1) else { break };
            let rate = tokens / (time + each * count as f64);
            if rate > best_rate {
                (best, best_rate) = (count, rate);
            }
        }
        best
    }

    /// Records that the first `accepted` of `verified` tokens were accepted.
    pub(crate) fn record(&mut self, evidence: Evidence, verified: usize, accepted: usize) {
        if verified == 0 {
            return;
        }
        let class = self.class_mut(evidence);
        class.first.record(f64::from(accepted > 0), 1.0);
        if accepted > 0 && verified > 1 {
            let tried = accepted.min(verified - 1);
            class.later.record((accepted - 1) as f64, tried as f64);
        }
    }

    /// Returns whether to skip a draft that costs time for this token, and counts down the pause.
    pub(crate) fn pauses(&mut self) -> bool {
        let pauses = self.pause > 0;
        self.pause = self.pause.saturating_sub(1);
        pauses
    }

    /// Begins a pause, as the draft is not expected to pay off. `each` is the cost of a drafted
    /// token, in steps of one row.
    pub(crate) fn lost(&mut self, each: f64) {
        let worth = (each * TRIED).min(f64::from(u32::MAX)) as u32;
        self.pause = self.next_pause.max(worth);
        self.next_pause = (2 * self.next_pause).min(LONGEST_PAUSE);
        // After the pause the draft is tried again, and only new observations count. If it does not
        // pay off again, its measured expectation was from other texts and is dropped.
        let expected = if self.next_pause > 2 * FIRST_PAUSE { UNMEASURED } else { self.expected };
        let again = Pace { expected: self.expected, ..Pace::expecting(expected) };
        *self = Pace { pause: self.pause, next_pause: self.next_pause, ..again };
    }

    /// Shortens the next pause, as the draft paid off.
    pub(crate) fn won(&mut self) {
        self.next_pause = (self.next_pause / 2).max(FIRST_PAUSE);
    }
}

fn class_of(repeated: usize) -> usize {
    REPEATED.iter().position(|(longest, ..)| repeated <= *longest).unwrap_or(REPEATED.len() - 1)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::draft::Evidence::Repeated;

    /// Returns step times in milliseconds by the number of rows.
    fn times(of: impl Fn(usize) -> u64) -> StepTimes {
        let mut times = StepTimes::default();
        for _ in 0..4 {
            (1..=16).for_each(|rows| times.record(rows, Duration::from_millis(of(rows))));
        }
        times
    }

    #[test]
    fn length_follows_acceptance_and_cost() {
        let (flat, steep) = (times(|_| 100), times(|rows| 100 * rows as u64));
        let mut pace = Pace::default();
        assert_eq!(pace.worth(&flat, Repeated(9), 15, 0.0), 15);
        assert_eq!(pace.worth(&flat, Repeated(9), 3, 0.0), 3);
        assert_eq!(pace.worth(&steep, Repeated(9), 15, 0.0), 0);
        assert_eq!(pace.worth(&StepTimes::default(), Repeated(9), 15, 0.0), 0);
        // Each token costs a tenth of a step.
        let dear = times(|rows| 90 + 10 * rows as u64);
        let long = pace.worth(&dear, Repeated(9), 15, 0.0);
        (0..6).for_each(|_| pace.record(Repeated(9), 8, 1));
        let short = pace.worth(&dear, Repeated(9), 15, 0.0);
        assert!(short < long && short > 0, "{short} {long}");
        assert!(pace.worth(&dear, Repeated(9), 15, 20e6) < short);
    }

    #[test]
    fn a_draft_that_loses_is_stopped_within_a_few_tokens_and_taken_up_again() {
        let dear = times(|rows| 80 + 20 * rows as u64);
        let mut pace = Pace::default();
        let losses = (0..20).take_while(|_| {
            let length = pace.worth(&dear, Repeated(20), 15, 0.0);
            pace.record(Repeated(20), length, 0);
            length > 0
        });
        assert!(losses.count() < 15);
        // Unverified proposals are compared with the chosen tokens too.
        let refused = (0..20).take_while(|_| {
            pace.record(Repeated(20), 1, 1);
            pace.worth(&dear, Repeated(20), 15, 0.0) == 0
        });
        assert!(refused.count() < 15);
        // Other evidence has separate rates.
        assert!(pace.worth(&dear, Repeated(5), 15, 0.0) > 0);
    }

    #[test]
    fn what_is_expected_of_a_draft_is_expected_again_after_one_loss_and_not_after_two() {
        // A step of several rows needs three times the time of one row.
        let wide = times(|rows| if rows > 1 { 300 } else { 100 });
        let mut pace = Pace::expecting((1.0, 0.95));
        for length in [15, 15, 0] {
            assert_eq!(pace.worth(&wide, Evidence::Unmeasured, 15, 0.0), length);
            pace.lost(0.0);
        }
        (0..3).for_each(|_| pace.won());
        pace.lost(0.0);
        assert_eq!(pace.worth(&wide, Evidence::Unmeasured, 15, 0.0), 15);
    }

    #[test]
    fn pauses_grow_and_end() {
        let mut pace = Pace::default();
        assert!(!pace.pauses());
        for length in [16, 32, 64] {
            pace.lost(0.0);
            assert_eq!((0..1000).take_while(|_| pace.pauses()).count(), length);
        }
        pace.won();
        pace.lost(0.0);
        assert_eq!((0..1000).take_while(|_| pace.pauses()).count(), 64);
        (0..3).for_each(|_| pace.won());
        pace.lost(0.0);
        assert_eq!((0..1000).take_while(|_| pace.pauses()).count(), 16);
        // A draft that costs four steps per token is tried less often.
        pace.lost(4.0);
        assert_eq!((0..5000).take_while(|_| pace.pauses()).count(), 1920);
        pace.lost(f64::INFINITY);
        assert!(pace.pauses());
    }
}
