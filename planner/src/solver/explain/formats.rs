//! Reasons for the formats of a shard.

use std::collections::BTreeMap;

use super::super::decided::{Amounts, Rival, Rivals, Verdict};
use super::super::{GAIN, Goal, Placement, Solution, Trade};
use crate::table::{CostTable, units_of};
use crate::{Cause, Cost, Request, names};

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
        let weighing = self.formats_of_weights(request, placement);
        weighing.into_iter().for_each(|formats| *counts.entry(formats).or_default() += 1);
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
                "the faster formats go to the layers that lose least for the time they save; no mixture of \
                 formats for these shards saves more than {} of this time within the quality goal",
                names::percent_at_most(bound.value - bound.least, bound.value)
            ),
            Some(bound) if bound.value <= bound.least.saturating_add(1) => {
                format!("the finer formats go to the layers that gain most; {LEAST_LOSS}")
            }
            Some(bound) => {
                let [own, least] = names::apart("quality", [bound.value, bound.least]);
                format!(
                    "the finer formats go to the layers that gain most; this loses {own}, and no mixture of \
                     formats for these shards loses less than {least} within the goals"
                )
            }
            None if request.goals.least_loss => "the least loss of the whole chain".to_owned(),
            None => "the layers meet the quality goal together".to_owned(),
        };
        (choice, because, goal_in_losses(request))
    }

    /// Returns the format tuple of each layer of a shard that has weights, and of each component
    /// without layers that has some.
    fn formats_of_weights(&self, request: &Request, placement: &Placement) -> Vec<u32> {
        let table = CostTable::new(request);
        let target = placement.target;
        let has_weights = |&(kind, formats): &(u32, u32)| {
            let mut entries = self.entries.iter();
            let weighs = |row: &Cost| row.weight_bytes > 0;
            entries.any(|entry| table.row(kind, target, formats, *entry).is_some_and(weighs))
        };
        let units = units_of(request, &placement.segments, placement.softcap);
        units.into_iter().filter(has_weights).map(|(_, formats)| formats).collect()
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
        let [time, other_time] = self.times(&own, &other);
        let is_slower = |rival: &Rival| {
            let amounts = rival.amounts.filter(|_| rival.verdict.is_legal());
            amounts.is_none_or(|amounts| amounts.nanoseconds >= own.nanoseconds)
        };
        match &rival.verdict {
            Verdict::Worse(Goal::Loss) => {
                let [own, other] = names::apart("quality", [own.loss, other.loss]);
                (format!("loses {own}, {name} would lose {other}"), goal_in_losses(request))
            }
            Verdict::Worse(Goal::Time) if other.nanoseconds >= own.nanoseconds => {
                let no_faster = match other.nanoseconds == own.nanoseconds {
                    true => format!("{name}{first} takes as long"),
                    false => format!("{time}, {name} takes {other_time}"),
                };
                match rival.formats {
                    0 if other.nanoseconds > own.nanoseconds => (
                        format!("{time} instead of {other_time} in {name}, listed first"),
                        goal_or_time(request),
                    ),
                    1.. if own_first && rivals.formats.iter().all(is_slower) => (
                        format!("{named}, and no others are faster: {no_faster}"),
                        Cause::Cost("time".to_owned()),
                    ),
                    _ => (no_faster, goal_or_time(request)),
                }
            }
            Verdict::Worse(Goal::Time | Goal::Formats) if other.nanoseconds < own.nanoseconds => {
                (format!("{named}; {name}{first} {}", self.saves(request, &own, &other)), order())
            }
            Verdict::Worse(Goal::Formats) => (format!("{name} is listed later, and no better"), order()),
            Verdict::Worse(goal) => (format!("{name} is worse by the goal `{}`", goal.name()), order()),
            Verdict::Equal => (format!("{named}; {name} is no better"), order()),
            _ => {
                let both = format!("{named}, {time}; {name}{first} takes {other_time}");
                (format!("{both}; {}", self.undecided(&name)), Cause::Cost("time".to_owned()))
            }
        }
    }

    /// Explains what speaks against other formats of a shard, in a clause whose subject they are.
    pub(super) fn against(&self, request: &Request, own: &Amounts, rival: &Rival) -> String {
        let other = rival.amounts.unwrap_or_default();
        let [time, other_time] = self.times(own, &other);
        match &rival.verdict {
            Verdict::Worse(Goal::Loss) => {
                let [own, other] = names::apart("quality", [own.loss, other.loss]);
                format!("loses {other} instead of {own}")
            }
            Verdict::Worse(Goal::Time) if other.nanoseconds > own.nanoseconds => {
                format!("takes {other_time} instead of {time}")
            }
            Verdict::Worse(Goal::Time | Goal::Formats) if other.nanoseconds < own.nanoseconds => {
                self.saves(request, own, &other)
            }
            Verdict::Worse(Goal::Time | Goal::Formats) | Verdict::Equal => "is no better".to_owned(),
            Verdict::Worse(goal) => format!("is worse by the goal `{}`", goal.name()),
            Verdict::Better if self.exact => "is not better for the whole chain".to_owned(),
            Verdict::Better => "was not compared for the whole chain, as the search was cut short".to_owned(),
            _ => format!("cannot be used here: {}", self.hindrance(request, rival).0),
        }
    }

    /// Explains that faster formats save too little, in a clause whose subject they are.
    fn saves(&self, request: &Request, own: &Amounts, other: &Amounts) -> String {
        let gain = match request.weighs_losses() {
            true => self.stage.gain(&self.settings),
            false => self.settings.gain,
        };
        let saved = names::percent(own.nanoseconds.saturating_sub(other.nanoseconds), own.nanoseconds);
        match gain {
            ..=GAIN => format!("saves {saved}, which is within the error of the times"),
            _ => format!("saves {saved}, and more than {gain} % is required"),
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
