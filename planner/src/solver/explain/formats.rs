//! Reasons for the formats of a shard.

use std::collections::BTreeMap;

use super::super::decided::{Rival, Rivals, Verdict};
use super::super::{GAIN, Goal, Placement, Solution, Trade};
use crate::{Cause, Request, names};

const LEAST_LOSS: &str = "no mixture of formats for these shards loses less within the goals";

/// Returns the goal that decides between formats.
pub(super) fn goal_in_losses(request: &Request) -> Cause {
    let goals = &request.goals;
    let name = match goals.least_loss {
        false => "quality",
        true if goals.size_bytes().is_some() => "size",
        true if goals.memory_bytes().is_some() => "memory-bytes",
        true => "time",
    };
    Cause::Goal(name.to_owned())
}

impl Solution {
    /// Returns the formats of a shard, the reason from the comparison with other formats, and its
    /// cause.
    pub(super) fn explain_formats(
        &self,
        request: &Request,
        (placement, index): (&Placement, u32),
    ) -> (String, String, Cause) {
        match placement.uniform_formats() {
            Some(formats) => {
                let (because, cause) = self.explain_uniform(request, (placement, index), formats);
                (request.formats_name(formats), because, cause)
            }
            None => self.explain_mixture(request, (placement, index)),
        }
    }

    /// Explains layers in different formats, and how good the mixture is.
    fn explain_mixture(
        &self,
        request: &Request,
        (placement, index): (&Placement, u32),
    ) -> (String, String, Cause) {
        let mut counts: BTreeMap<u32, usize> = BTreeMap::new();
        placement.formats().for_each(|formats| *counts.entry(formats).or_default() += 1);
        let parts = counts.iter().map(|(formats, count)| {
            // A component without layers counts as one.
            let layers = if *count == 1 { "layer" } else { "layers" };
            format!("{count} {layers} in {}", request.formats_name(*formats))
        });
        let choice = parts.collect::<Vec<_>>().join(", ");
        if !request.weighs_losses() {
            let (because, cause) = self.explain_parts(request, (placement, index), &counts);
            return (choice, because, cause);
        }
        let because = match self.mixed {
            Some(bound) if bound.trade == Trade::LossForTime && self.settings.gain_within_goal > 0 => {
                format!(
                    "the faster formats go to the layers that lose least for the time they save; formats not \
                 listed first must save {} %",
                    self.settings.gain_within_goal
                )
            }
            Some(bound)
                if bound.trade == Trade::LossForTime && bound.value <= bound.least.saturating_add(1) =>
            {
                "the faster formats go to the layers that lose least for the time they save; no mixture \
                 of formats for these shards is faster within the quality goal"
                    .to_owned()
            }
            Some(bound) if bound.trade == Trade::LossForTime => format!(
                "the faster formats go to the layers that lose least for the time they save; this takes {}, \
                 and no mixture of formats for these shards takes less than {} within the quality goal",
                names::microseconds(bound.value),
                names::microseconds(bound.least)
            ),
            Some(bound) if bound.value <= bound.least.saturating_add(1) => {
                format!("the finer formats go to the layers that gain most; {LEAST_LOSS}")
            }
            Some(bound) => format!(
                "the finer formats go to the layers that gain most; this loses {}, and no mixture of formats \
                 for these shards loses less than {} within the goals",
                names::micronats(bound.value),
                names::micronats(bound.least)
            ),
            None if request.goals.least_loss => "the least loss of the whole chain".to_owned(),
            None => "the layers meet the quality goal together".to_owned(),
        };
        (choice, because, goal_in_losses(request))
    }

    /// Explains why a shard is not in one of its formats alone, if losses do not count.
    fn explain_parts(
        &self,
        request: &Request,
        (placement, index): (&Placement, u32),
        used: &BTreeMap<u32, usize>,
    ) -> (String, Cause) {
        let rivals = self.rivals(index);
        let alone = rivals.formats.iter().filter(|rival| used.contains_key(&rival.formats));
        let verdict = |verdict: Verdict| alone.clone().any(|rival| rival.verdict == verdict);
        if verdict(Verdict::Unwanted) {
            let because = "some of its layers require other formats".to_owned();
            return (because, Cause::Preference("wanted".to_owned()));
        }
        if verdict(Verdict::Barred) {
            let because = "the target computes some of its layers wrongly in the formats of the others";
            return (because.to_owned(), Cause::Feedback("drift".to_owned()));
        }
        let reasons: Vec<(String, Cause)> = alone
            .map(|rival| {
                let (why, cause) = match &rival.verdict {
                    Verdict::Worse(Goal::Formats) => (
                        "more layers would be in formats listed later".to_owned(),
                        Cause::Preference("formats-order".to_owned()),
                    ),
                    verdict if verdict.is_legal() => self.of_formats(request, placement, &rivals, rival),
                    _ => self.hindrance(request, rival),
                };
                (format!("in {} alone: {why}", request.formats_name(rival.formats)), cause)
            })
            .collect();
        let words: Vec<&str> = reasons.iter().map(|(words, _)| words.as_str()).collect();
        let cause = reasons.first().map_or_else(|| goal_or_time(request), |(_, cause)| cause.clone());
        (words.join("; "), cause)
    }

    /// Explains why all layers of a shard have one format tuple.
    fn explain_uniform(
        &self,
        request: &Request,
        (placement, index): (&Placement, u32),
        formats: u32,
    ) -> (String, Cause) {
        let order = || Cause::Preference("formats-order".to_owned());
        if self.settings.formats == Some(formats) {
            return ("requested".to_owned(), Cause::Preference("format".to_owned()));
        }
        if request.formats.len() == 1 {
            return ("the only formats offered".to_owned(), order());
        }
        let rivals = self.rivals(index);
        let unwanted = |rival: &&Rival| rival.verdict == Verdict::Unwanted;
        if !rivals.formats.is_empty() && rivals.formats.iter().all(|rival| unwanted(&rival)) {
            return ("some of its layers require them".to_owned(), Cause::Preference("wanted".to_owned()));
        }
        if request.goals.least_loss {
            return self.explain_loss(request, placement, &rivals);
        }
        if formats != 0 {
            let first = rivals.formats.iter().find(|rival| rival.formats == 0);
            return match first {
                Some(first) => self.of_formats(request, placement, &rivals, first),
                None => ("the first formats that are allowed".to_owned(), order()),
            };
        }
        self.explain_first(request, placement, &rivals)
    }

    /// Explains the first formats: compared with the fastest other legal ones, otherwise with
    /// illegal ones.
    fn explain_first(&self, request: &Request, placement: &Placement, rivals: &Rivals) -> (String, Cause) {
        let legal = rivals.formats.iter().filter(|rival| rival.verdict.is_legal());
        let time = |rival: &&Rival| rival.amounts.map_or(u64::MAX, |amounts| amounts.nanoseconds);
        if let Some(rival) = legal.min_by_key(time) {
            return self.of_formats(request, placement, rivals, rival);
        }
        let order = Cause::Preference("formats-order".to_owned());
        let Some(first) = rivals.formats.first() else {
            return ("the only formats that are allowed".to_owned(), order);
        };
        let (why, cause) = self.hindrance(request, first);
        let name = request.formats_name(first.formats);
        (format!("the formats listed first; {name} cannot be used here: {why}"), cause)
    }

    /// Explains formats whose loss decided: compared with formats that lose less by themselves.
    fn explain_loss(&self, request: &Request, placement: &Placement, rivals: &Rivals) -> (String, Cause) {
        let own = names::micronats(rivals.own.loss);
        let loss = |rival: &&Rival| rival.amounts.map(|amounts| amounts.loss);
        let less = |rival: &&Rival| loss(rival).is_some_and(|loss| loss < rivals.own.loss);
        match rivals.formats.iter().filter(less).min_by_key(loss) {
            Some(rival) => {
                let (why, cause) = self.of_formats(request, placement, rivals, rival);
                (format!("loses {own}; {why}"), cause)
            }
            None => (format!("no formats offered here lose less: {own}"), goal_in_losses(request)),
        }
    }

    /// Explains why a shard is not in other formats on its target.
    pub(super) fn of_formats(
        &self,
        request: &Request,
        placement: &Placement,
        rivals: &Rivals,
        rival: &Rival,
    ) -> (String, Cause) {
        let order = || Cause::Preference("formats-order".to_owned());
        let name = request.formats_name(rival.formats);
        let own_first = placement.uniform_formats() == Some(0);
        let named = if own_first { "the formats listed first" } else { "formats listed later" };
        let first = if rival.formats == 0 { ", listed first," } else { "" };
        if !rival.verdict.is_legal() {
            let (why, cause) = self.hindrance(request, rival);
            return (format!("{name}{first} cannot be used here: {why}"), cause);
        }
        let (own, other) = (rivals.own, rival.amounts.unwrap_or_default());
        let both = format!("{}; {name}{first} takes {}", own.time(), other.time());
        let is_slower = |rival: &Rival| {
            let amounts = rival.amounts.filter(|_| rival.verdict.is_legal());
            amounts.is_none_or(|amounts| amounts.nanoseconds >= own.nanoseconds)
        };
        match &rival.verdict {
            Verdict::Worse(Goal::Loss) => {
                let (own, other) = (names::micronats(own.loss), names::micronats(other.loss));
                (format!("loses {own}, {name} would lose {other}"), goal_in_losses(request))
            }
            Verdict::Worse(Goal::Time) if other.nanoseconds >= own.nanoseconds => match rival.formats {
                0 => (
                    format!("{} instead of {} in {name}, listed first", own.time(), other.time()),
                    goal_or_time(request),
                ),
                _ if own_first && rivals.formats.iter().all(is_slower) => (
                    format!(
                        "{named}, and no others are faster: {}, {name} takes {}",
                        own.time(),
                        other.time()
                    ),
                    Cause::Cost("time".to_owned()),
                ),
                _ => (format!("{}, {name} takes {}", own.time(), other.time()), goal_or_time(request)),
            },
            Verdict::Worse(Goal::Time | Goal::Formats) if other.nanoseconds < own.nanoseconds => {
                let gain = match request.weighs_losses() {
                    true => self.settings.gain_within_goal,
                    false => self.settings.gain,
                };
                let error = if gain <= GAIN { ", within the error of the times" } else { "" };
                (format!("{named}, {both}, which saves no more than {gain} %{error}"), order())
            }
            Verdict::Worse(Goal::Formats) => (format!("{name} is listed later, and no better"), order()),
            Verdict::Worse(goal) => (format!("{name} is worse by the goal `{}`", goal.name()), order()),
            Verdict::Equal => (format!("{named}; {name} is no better"), order()),
            _ => (format!("{named}, {both}; {}", self.undecided(&name)), Cause::Cost("time".to_owned())),
        }
    }
}

/// Returns the goal for losses if there is one, otherwise the time.
pub(super) fn goal_or_time(request: &Request) -> Cause {
    match request.weighs_losses() {
        true => goal_in_losses(request),
        false => Cause::Cost("time".to_owned()),
    }
}
