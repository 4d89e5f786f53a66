//! Uses drafts: chooses the draft and the number of tokens, and evaluates the results.

use std::time::{Duration, Instant};

use serde::Serialize;
use shardwright_text::{Distribution, SamplingParameters};
use shardwright_vocabulary::{Error, Result};

use crate::acceptance::Acceptance;
use crate::draft::{DRAFTED_MAX, Draft, Evidence, Proposal};
use crate::draft_thread::{Answered, Detached, PATIENCE};
use crate::lookup::PromptLookup;
use crate::pace::Pace;
use crate::times::StepTimes;

/// Counts and times of speculation.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct SpeculationStatistics {
    /// Number of drafted tokens that were verified.
    pub drafted: u64,
    /// Number of verified tokens that were accepted.
    pub accepted: u64,
    /// Number of steps that generated tokens, with and without drafted ones.
    pub steps: u64,
    /// Number of steps that verified drafted tokens, by the number of accepted tokens.
    pub by_accepted: [u64; DRAFTED_MAX + 1],
    /// Time spent in drafts.
    pub draft_time: Duration,
}

impl SpeculationStatistics {
    /// Converts to an acceptance.
    pub fn acceptance(&self) -> Acceptance {
        let with: u64 = self.by_accepted.iter().sum();
        Acceptance { without: self.steps.saturating_sub(with), accepted: self.by_accepted }
    }

    /// Returns the counts since `before`.
    #[must_use]
    pub fn since(&self, before: &SpeculationStatistics) -> SpeculationStatistics {
        let mut by_accepted = self.by_accepted;
        for (own, less) in by_accepted.iter_mut().zip(&before.by_accepted) {
            *own = own.saturating_sub(*less);
        }
        SpeculationStatistics {
            drafted: self.drafted.saturating_sub(before.drafted),
            accepted: self.accepted.saturating_sub(before.accepted),
            steps: self.steps.saturating_sub(before.steps),
            by_accepted,
            draft_time: self.draft_time.saturating_sub(before.draft_time),
        }
    }
}

/// A draft that is not used any more, with the reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct DroppedDraft {
    pub draft: String,
    pub because: String,
    /// A suggestion for the user.
    pub help: String,
}

/// Help for a draft with a fault.
pub(crate) const CONTINUE: &str = "continue without the draft: the text is the same, in more steps";

/// Tokens to verify.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Drafted {
    /// The tokens. Empty if a step of one row is as good.
    pub tokens: Vec<u32>,
    /// The distribution of each token, see [`Proposal::drawn_from`].
    pub drawn_from: Vec<Distribution>,
    /// The proposal for a later comparison.
    proposed: Option<Proposed>,
}

impl Drafted {
    /// Creates a proposal of tokens that follow in any case, because a grammar allows no others.
    pub fn certain(tokens: Vec<u32>) -> Self {
        Drafted { tokens, ..Drafted::default() }
    }
}

/// Maximum number of tokens in a proposal while the draft's cost is unknown. With fewer tokens each
/// costs more, since the draft reads the accepted tokens for any number of them.
const TRIED_TOKENS: usize = 4;

/// Number of proposals after which the cost is known.
const TRIALS: u32 = 3;

/// Weight of a new measurement in a known cost.
const NEW_PART: f64 = 0.2;

#[derive(Clone, Copy, Debug, PartialEq)]
struct Proposed {
    slot: usize,
    evidence: Evidence,
    /// The first token, if the draft costs nothing.
    first: Option<u32>,
}

enum Source {
    /// Fast, and certain to answer.
    Lookup(Box<PromptLookup>),
    Other(Box<Detached>),
}

/// The cost of a drafted token.
#[derive(Clone, Copy, Debug, Default)]
struct Cost {
    nanoseconds: f64,
    /// Number of measured proposals.
    count: u32,
}

impl Cost {
    /// Returns whether there are enough measurements. A single proposal may have waited for
    /// something else.
    fn is_known(self) -> bool {
        self.count >= TRIALS
    }

    fn record(&mut self, each: f64) {
        self.nanoseconds = match self.count {
            0 => each,
            count if count < TRIALS => self.nanoseconds.min(each),
            _ => self.nanoseconds + NEW_PART * (each - self.nanoseconds),
        };
        self.count = self.count.saturating_add(1);
    }
}

struct Slot {
    source: Source,
    pace: Pace,
    cost: Cost,
}

impl Slot {
    fn name(&self) -> String {
        match &self.source {
            Source::Lookup(lookup) => lookup.name(),
            Source::Other(draft) => draft.name().to_owned(),
        }
    }
}

/// The drafts of a session, in the order of use. If a draft has no proposal, the next one is used.
///
/// The number of verified tokens is chosen for every step. It maximises the tokens per second,
/// based on the acceptance of proposals with similar evidence, and on the times of steps with that
/// number of rows. If a step of one row is as good, the step verifies no tokens. Proposals of
/// prompt lookup are then still compared with the chosen tokens. A draft that costs time pauses,
/// and is tried again after some tokens.
pub struct Speculation {
    slots: Vec<Slot>,
    times: StepTimes,
    length: Option<usize>,
    patience: Duration,
    dropped: Vec<DroppedDraft>,
    statistics: SpeculationStatistics,
}

impl std::fmt::Debug for Speculation {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let drafts: Vec<String> = self.slots.iter().map(Slot::name).collect();
        f.debug_struct("Speculation").field("drafts", &drafts).finish_non_exhaustive()
    }
}

impl Default for Speculation {
    fn default() -> Self {
        Speculation::new()
    }
}

impl Speculation {
    /// Creates a speculation without drafts, where every step has one row.
    pub fn new() -> Self {
        Speculation {
            slots: Vec::new(),
            times: StepTimes::default(),
            length: None,
            patience: PATIENCE,
            dropped: Vec::new(),
            statistics: SpeculationStatistics::default(),
        }
    }

    /// Adds prompt lookup.
    #[must_use]
    pub fn lookup(mut self) -> Self {
        let source = Source::Lookup(Box::default());
        self.slots.push(Slot { source, pace: Pace::default(), cost: Cost::default() });
        self
    }

    /// Adds a draft on a separate thread. It is dropped if its thread cannot be started.
    #[must_use]
    pub fn draft(mut self, draft: Box<dyn Draft>) -> Self {
        let name = draft.name();
        let expected = draft.expected().and_then(|acceptance| acceptance.rates());
        match Detached::new(draft, self.patience) {
            Ok(detached) => {
                let source = Source::Other(Box::new(detached));
                let pace = expected.map_or_else(Pace::default, Pace::expecting);
                self.slots.push(Slot { source, pace, cost: Cost::default() });
            }
            Err(error) => self.dropped.push(dropped(name, error)),
        }
        self
    }

    /// Sets the time limit for drafts that are added afterwards. The default is [`PATIENCE`].
    #[must_use]
    pub fn patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Fixes the number of tokens to verify in every step with enough proposed tokens, even if it
    /// does not pay off. `None`, the default, chooses the best number. For measurements.
    #[must_use]
    pub fn fixed_length(mut self, tokens: Option<usize>) -> Self {
        self.length = tokens.map(|tokens| tokens.min(DRAFTED_MAX));
        self
    }

    /// Returns whether there is no usable draft.
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty()
    }

    /// Returns the names of the usable drafts, in order.
    pub fn drafts(&self) -> Vec<String> {
        self.slots.iter().map(Slot::name).collect()
    }

    /// Returns the drafts dropped so far, with the reasons.
    pub fn dropped(&self) -> &[DroppedDraft] {
        &self.dropped
    }

    /// Returns the counts and times so far.
    pub fn statistics(&self) -> &SpeculationStatistics {
        &self.statistics
    }

    /// Returns the memory used by the drafts in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let of = |slot: &Slot| match &slot.source {
            Source::Lookup(lookup) => lookup.memory_bytes(),
            Source::Other(draft) => draft.memory,
        };
        self.slots.iter().map(of).fold(0, u64::saturating_add)
    }

    /// Releases memory that drafts can allocate again.
    pub fn release(&mut self) {
        for slot in &mut self.slots {
            match &mut slot.source {
                Source::Lookup(lookup) => lookup.release(),
                Source::Other(draft) => draft.release(),
            }
        }
    }

    /// Begins a reply with these sampling parameters.
    pub fn begin(&mut self, sampling: &SamplingParameters) {
        for slot in &mut self.slots {
            if let Source::Other(draft) = &mut slot.source {
                draft.begin(sampling);
            }
        }
    }

    /// Returns the tokens that the next step should verify after `history`, at most `most` ids
    /// below `vocabulary`. Returns none if `interrupted` returns true. A draft with a fault is
    /// dropped, and the next one is used.
    pub fn propose(
        &mut self,
        history: &[u32],
        most: usize,
        vocabulary: usize,
        interrupted: &dyn Fn() -> bool,
    ) -> Drafted {
        let most = most.min(DRAFTED_MAX);
        let mut unverified = None;
        let mut index = 0;
        while index < self.slots.len() && most > 0 && !interrupted() {
            match self.asked(index, history, most, vocabulary, interrupted) {
                Ok(Some(drafted)) if !drafted.tokens.is_empty() => return drafted,
                Ok(other) => {
                    unverified = unverified.or(other.and_then(|drafted| drafted.proposed));
                    index += 1;
                }
                Err(error) => {
                    let dropped = dropped(self.slots.remove(index).name(), error);
                    tracing::info!("{}; the draft is not used again", dropped.because);
                    self.dropped.push(dropped);
                }
            }
        }
        Drafted { proposed: unverified, ..Drafted::default() }
    }

    /// Requests a proposal from one draft. Returns `None` if it is not worth the time, or if the
    /// draft has no proposal.
    fn asked(
        &mut self,
        index: usize,
        history: &[u32],
        most: usize,
        vocabulary: usize,
        interrupted: &dyn Fn() -> bool,
    ) -> Result<Option<Drafted>> {
        let slot = &mut self.slots[index];
        let start = Instant::now();
        let (asked, Answered { proposal, reads }) = match &mut slot.source {
            // It has to read every token anyway.
            Source::Lookup(lookup) => {
                let proposal = lookup.propose(history, self.length.unwrap_or(most).min(most))?;
                (most, Answered { proposal, reads: false })
            }
            Source::Other(draft) => {
                let asked = match self.length {
                    Some(length) => length.min(most),
                    None if slot.pace.pauses() => return Ok(None),
                    None => {
                        let (most, each) = match slot.cost.is_known() {
                            true => (most, slot.cost.nanoseconds),
                            false => (most.min(TRIED_TOKENS), 0.0),
                        };
                        slot.pace.worth(&self.times, Evidence::Unmeasured, most, each)
                    }
                };
                if asked == 0 {
                    // Times are unknown before the first step.
                    if let Some(step) = self.times.expected(1) {
                        slot.pace.lost(std::mem::take(&mut slot.cost).nanoseconds / step);
                    }
                    return Ok(None);
                }
                (asked, draft.propose(history, asked, interrupted)?)
            }
        };
        let time = start.elapsed();
        self.statistics.draft_time += time;
        check(&proposal, asked, vocabulary)?;
        if proposal.tokens.is_empty() {
            return Ok(None);
        }
        let is_free = matches!(slot.source, Source::Lookup(_));
        if !is_free && !reads {
            slot.cost.record(time.as_secs_f64() * 1e9 / proposal.tokens.len() as f64);
        }
        let Proposal { mut tokens, mut drawn_from, evidence } = proposal;
        let proposed = Proposed { slot: index, evidence, first: tokens.first().copied().filter(|_| is_free) };
        let count = match self.length {
            Some(length) => length.min(tokens.len()),
            // For a draft with a cost, the number was chosen before.
            None if !is_free => tokens.len(),
            None => slot.pace.worth(&self.times, evidence, tokens.len(), 0.0),
        };
        tokens.truncate(count);
        drawn_from.truncate(count);
        Ok(Some(Drafted { tokens, drawn_from, proposed: Some(proposed) }))
    }

    /// Records the result of a step. `chosen` are the accepted drafted tokens and the token after
    /// them. `time` is the time of the step for the row before and all drafted ones.
    pub fn stepped(&mut self, drafted: &Drafted, chosen: &[u32], time: Duration) {
        let (verified, accepted) = (drafted.tokens.len(), chosen.len().saturating_sub(1));
        self.times.record(verified + 1, time);
        self.statistics.steps += 1;
        if verified > 0 {
            self.statistics.drafted += verified as u64;
            self.statistics.accepted += accepted as u64;
            self.statistics.by_accepted[accepted.min(DRAFTED_MAX)] += 1;
        }
        // If a draft was dropped, another one may have its place.
        let Some(Proposed { slot, evidence, first }) = drafted.proposed else { return };
        let Some(slot) = self.slots.get_mut(slot) else { return };
        match (verified, first) {
            (0, Some(first)) => slot.pace.record(evidence, 1, usize::from(chosen.first() == Some(&first))),
            _ => slot.pace.record(evidence, verified, accepted),
        }
        if 2 * accepted > verified {
            slot.pace.won();
        }
    }
}

fn dropped(draft: String, error: Error) -> DroppedDraft {
    let error = error.at(format_args!("the draft `{draft}`")).or_help(CONTINUE);
    let help = error.help().unwrap_or_default().to_owned();
    DroppedDraft { draft, because: error.to_string(), help }
}

fn check(proposal: &Proposal, most: usize, vocabulary: usize) -> Result<()> {
    const CORRECT: &str = "correct the draft, or continue without it: the text is the same, in more steps";
    let Proposal { tokens, drawn_from, .. } = proposal;
    let count = tokens.len();
    if count > most {
        let what = format!("expected at most {most} proposed tokens, got {count}");
        return Err(Error::invalid(what).with_help(CORRECT));
    }
    if let Some(&id) = tokens.iter().find(|&&id| id as usize >= vocabulary) {
        let what = format!("proposed token {id}, but the model's vocabulary has {vocabulary} tokens");
        return Err(Error::incompatible(what).with_help("use a draft model with the tokenizer of the model"));
    }
    if drawn_from.is_empty() {
        return Ok(());
    }
    let has_none =
        |index: &usize| drawn_from.get(*index).is_none_or(|q| q.probability(tokens[*index]) <= 0.0);
    let longer = (drawn_from.len() > tokens.len()).then_some(tokens.len());
    match (0..tokens.len()).find(has_none).or(longer) {
        Some(index) => {
            let what = format!("gives no distribution that token {index} of its proposal was drawn from");
            Err(Error::invalid(what).with_help(CORRECT))
        }
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::ErrorKind;

    use super::*;

    /// A draft that always gives the same answer.
    struct Says(fn(usize) -> Result<Proposal>);

    impl Draft for Says {
        fn name(&self) -> String {
            "says".to_owned()
        }

        fn propose(&mut self, _: &[u32], most: usize) -> Result<Proposal> {
            (self.0)(most)
        }
    }

    fn tokens(tokens: Vec<u32>) -> Result<Proposal> {
        Ok(Proposal { tokens, ..Proposal::default() })
    }

    fn one_of(id: u32) -> Distribution {
        Distribution::new([(id, 1.0)]).unwrap()
    }

    /// Returns the error for dropping a draft.
    fn fault(answer: fn(usize) -> Result<Proposal>) -> Error {
        let patience = Duration::from_millis(400);
        let mut speculation =
            Speculation::new().patience(patience).draft(Box::new(Says(answer))).fixed_length(Some(4));
        speculation.asked(0, &[1, 2], 4, 100, &|| false).unwrap_err()
    }

    #[test]
    fn each_fault_has_an_error() {
        type Fault = (fn(usize) -> Result<Proposal>, &'static str, ErrorKind);
        let faults: [Fault; 7] = [
            (
                |_| tokens(vec![99, 100]),
                "proposed token 100, but the model's vocabulary has 100 tokens",
                ErrorKind::Incompatible,
            ),
            (
                |most| tokens(vec![1; most + 1]),
                "expected at most 4 proposed tokens, got 5",
                ErrorKind::Invalid,
            ),
            (
                |_| Ok(Proposal { drawn_from: vec![one_of(1)], ..tokens(vec![1, 2])? }),
                "gives no distribution that token 1 of its proposal was drawn from",
                ErrorKind::Invalid,
            ),
            (
                |_| Ok(Proposal { drawn_from: vec![one_of(1); 2], ..tokens(vec![1])? }),
                "gives no distribution that token 1 of its proposal was drawn from",
                ErrorKind::Invalid,
            ),
            (
                |_| {
                    std::thread::sleep(Duration::from_secs(3));
                    tokens(Vec::new())
                },
                "gave no answer within 400 ms",
                ErrorKind::Shim,
            ),
            (|_| panic!("on purpose"), "died: on purpose", ErrorKind::Shim),
            (|_| Err(Error::new(ErrorKind::Memory, "full")), "full", ErrorKind::Memory),
        ];
        for (answer, message, kind) in faults {
            let error = fault(answer);
            assert_eq!((error.kind(), error.message()), (kind, message));
            let dropped = dropped("says".to_owned(), error);
            assert_eq!(dropped.because, format!("the draft `says`: {message}"));
            assert!(!dropped.help.is_empty(), "{message}");
        }
    }

    #[test]
    fn the_next_draft_is_asked_where_one_expects_nothing() {
        let nothing = Box::new(Says(|_| tokens(Vec::new())));
        let wrong = Box::new(Says(|_| tokens(vec![100])));
        let right = Box::new(Says(|_| tokens(vec![7, 8])));
        let mut speculation =
            Speculation::new().lookup().draft(nothing).draft(wrong).draft(right).fixed_length(Some(4));
        assert_eq!(speculation.drafts(), ["lookup", "says", "says", "says"]);
        let drafted = speculation.propose(&[1, 2, 3], 4, 100, &|| false);
        assert_eq!(drafted.tokens, [7, 8]);
        assert_eq!(speculation.dropped().len(), 1);
        assert_eq!(speculation.drafts().len(), 3);
        assert_eq!(speculation.propose(&[1, 2, 3, 1, 2], 1, 100, &|| false).tokens, [3]);
        assert_eq!(speculation.propose(&[1, 2], 0, 100, &|| false), Drafted::default());
        assert_eq!(speculation.propose(&[1, 2], 4, 100, &|| true), Drafted::default());
    }

    /// Allocates memory for a proposal.
    struct Holds(u64);

    impl Draft for Holds {
        fn name(&self) -> String {
            "holds".to_owned()
        }

        fn propose(&mut self, _: &[u32], _: usize) -> Result<Proposal> {
            self.0 = 1000;
            tokens(vec![7])
        }

        fn release(&mut self) {
            self.0 = 0;
        }

        fn memory_bytes(&self) -> u64 {
            self.0
        }
    }

    #[test]
    fn drafts_give_their_memory_back_and_go_on() {
        let mut speculation = Speculation::new().lookup().draft(Box::new(Holds(0))).fixed_length(Some(4));
        for _ in 0..2 {
            assert_eq!(speculation.propose(&[1, 2, 3], 4, 100, &|| false).tokens, [7]);
            assert!(speculation.memory_bytes() > 1000);
            speculation.release();
            assert!(speculation.memory_bytes() < 1000, "{}", speculation.memory_bytes());
        }
        let panics: fn(usize) -> Result<Proposal> = |_| panic!("on purpose");
        let mut speculation = Speculation::new().draft(Box::new(Says(panics))).fixed_length(Some(4));
        assert_eq!(speculation.propose(&[1], 4, 100, &|| false), Drafted::default());
        speculation.release();
    }

    /// Needs some time for a history that is new to it, possibly forever.
    struct Reads(Duration, usize);

    impl Draft for Reads {
        fn name(&self) -> String {
            "reads".to_owned()
        }

        fn begin(&mut self, _: &SamplingParameters) {
            self.1 = 0;
        }

        fn propose(&mut self, history: &[u32], most: usize) -> Result<Proposal> {
            if history.len() > self.1 + 16 {
                std::thread::sleep(self.0);
            }
            self.1 = history.len();
            tokens(vec![7; most])
        }
    }

    #[test]
    fn a_reply_does_not_wait_until_its_prompt_is_read() {
        let reads = |time, patience| {
            let patience = Duration::from_millis(patience);
            let draft = Box::new(Reads(Duration::from_millis(time), 0));
            Speculation::new().patience(patience).draft(draft).fixed_length(Some(4))
        };
        // Ten times its time limit. Thirty times are allowed for reading.
        let (mut speculation, mut history) = (reads(400, 40), vec![1; 300]);
        let start = Instant::now();
        let mut without = 0;
        while speculation.propose(&history, 4, 100, &|| false).tokens.is_empty() {
            assert!(start.elapsed() < Duration::from_secs(30) && speculation.dropped().is_empty());
            without += 1;
            // So few tokens that it may catch up in a step.
            if without <= 8 {
                history.push(1);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(without > 8, "{without}");
        assert_eq!(speculation.propose(&history, 4, 100, &|| false).tokens, [7; 4]);
        // The prompt of the next reply may have the same length but differ.
        speculation.begin(&SamplingParameters::greedy());
        assert!(speculation.propose(&history, 4, 100, &|| false).tokens.is_empty());
        assert!(speculation.dropped().is_empty());
        let mut never = reads(600_000, 1);
        while never.dropped().is_empty() {
            assert!(never.propose(&history, 4, 100, &|| false).tokens.is_empty());
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(never.dropped()[0].because.contains("gave no answer"), "{:?}", never.dropped());
    }

    #[test]
    fn what_a_draft_costs_is_found_with_a_few_tokens_and_forgotten_where_it_lost() {
        // A token of it costs at least two steps, and is right.
        let slow = Box::new(Says(|most| {
            std::thread::sleep(Duration::from_millis(20) * most as u32);
            tokens(vec![50; most])
        }));
        let mut speculation = Speculation::new().draft(slow);
        let mut asked = Vec::new();
        for token in 0..1200_u32 {
            let drafted = speculation.propose(&vec![50; token as usize + 1], 15, 100, &|| false);
            if !drafted.tokens.is_empty() {
                asked.push((token, drafted.tokens.len()));
            }
            let chosen = vec![50; drafted.tokens.len() + 1];
            speculation.stepped(&drafted, &chosen, Duration::from_millis(10));
        }
        assert!(asked.iter().all(|(_, tokens)| (1..=4).contains(tokens)), "{asked:?}");
        // At the start, and after a pause of at least 960 steps.
        assert!((4..9).contains(&asked.len()), "{asked:?}");
        assert!(asked.last().is_some_and(|(last, _)| *last >= 960), "{asked:?}");
    }

    #[test]
    fn a_draft_that_loses_is_left_alone_and_asked_again() {
        // Always wrong, and each step of several rows is slow.
        let mut speculation = Speculation::new().draft(Box::new(Says(|most| tokens(vec![50; most]))));
        let mut history = vec![1];
        let (mut verified, mut last) = (0, 0);
        for token in 0..400 {
            let drafted = speculation.propose(&history, 15, 100, &|| false);
            let rows = drafted.tokens.len() as u64 + 1;
            (verified, last) = if rows > 1 { (verified + 1, token) } else { (verified, last) };
            speculation.stepped(&drafted, &[token % 40], Duration::from_millis(80 + 20 * rows));
            history.push(token % 40);
        }
        assert!((3..60).contains(&verified), "{verified}");
        assert!(last > 20, "it was never tried again");
        let counted = *speculation.statistics();
        assert_eq!((counted.steps, counted.accepted), (400, 0));
        assert_eq!(counted.by_accepted[0], verified);
        assert_eq!(counted.acceptance().without, 400 - verified);
        assert_eq!(counted.since(&counted), SpeculationStatistics::default());
    }
}
