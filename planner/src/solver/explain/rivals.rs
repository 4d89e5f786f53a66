//! Sentences about alternatives, derived from the comparison that rejected them.

use super::super::decided::{Amounts, Rival, Rivals, Verdict};
use super::super::{Effort, Placement, Solution};
use super::formats::goal_in_losses;
use crate::table::Interval;
use crate::{Cause, Request, names};

impl Solution {
    /// Returns the alternatives to a shard.
    pub(super) fn rivals(&self, index: u32) -> Rivals {
        self.decided.shards.get(index as usize).cloned().unwrap_or_default()
    }

    /// Explains why a shard is on its target, compared with every other target.
    pub(super) fn explain_target(
        &self,
        request: &Request,
        (placement, index): (&Placement, u32),
    ) -> (String, Cause) {
        let order = || Cause::Preference("target-order".to_owned());
        let asked = |segment: &crate::Segment| {
            self.settings.place.iter().any(|(component, _)| *component == segment.component)
        };
        if placement.segments.iter().any(asked) {
            return ("requested".to_owned(), Cause::Preference("place".to_owned()));
        }
        let rivals = self.rivals(index);
        let clauses = rivals.targets.iter().map(|rival| self.of_target(request, placement, &rivals, rival));
        let clauses: Vec<(String, Cause)> = clauses.collect();
        match clauses.first() {
            None => ("the only target of the request".to_owned(), order()),
            Some((_, cause)) => {
                let words: Vec<&str> = clauses.iter().map(|(words, _)| words.as_str()).collect();
                (words.join("; "), cause.clone())
            }
        }
    }

    /// Explains why a shard is not on another target.
    pub(super) fn of_target(
        &self,
        request: &Request,
        placement: &Placement,
        rivals: &Rivals,
        rival: &Rival,
    ) -> (String, Cause) {
        let name = format!("`{}`", request.targets[rival.target as usize].name);
        let cause = Cause::Preference("target-order".to_owned());
        if !rival.verdict.is_legal() {
            let (why, own) = self.hindrance(request, rival);
            let cause = if matches!(rival.verdict, Verdict::Goal { .. }) { own } else { cause };
            return (format!("{name} cannot be used: {why}"), cause);
        }
        match &rival.verdict {
            Verdict::Worse(super::Goal::Targets) => {
                let interval =
                    |target: u32| self.intervals.get(target as usize).copied().flatten().unwrap_or_default();
                let (here, there) = (interval(placement.target), interval(rival.target));
                let why = if self.settings.effort == Effort::Simple {
                    "; times were ignored, as requested".to_owned()
                } else if there.is_wider_than(&here) {
                    let (there, here) = (spread(there), spread(here));
                    format!("; the times of {name} are less certain: {there}, here {here}")
                } else {
                    "; a target listed between them has more certain times".to_owned()
                };
                (format!("listed before {name}{why}"), cause)
            }
            Verdict::Equal => (format!("no worse than {name}, which is listed later"), cause),
            Verdict::Better => (self.undecided(&name), cause),
            _ => {
                let (own, other) = (&rivals.own, rival.amounts.unwrap_or_default());
                let (words, own) = self.worse(request, own, (&other, rival), &name);
                (words, own)
            }
        }
    }

    /// Formats the times of a shard and of an alternative to it.
    pub(super) fn times(&self, own: &Amounts, other: &Amounts) -> [String; 2] {
        names::times_apart([own.nanoseconds, other.nanoseconds], self.time.digits())
    }

    /// Returns the reason if neither a check nor the objective of the single shard decided.
    pub(super) fn undecided(&self, name: &str) -> String {
        match self.exact {
            true => format!("{name} would be better for this shard alone, but not for the whole chain"),
            false => format!("{name} would be better for this shard alone, but the search was cut short"),
        }
    }

    /// Explains why an alternative is not a legal plan.
    pub(super) fn hindrance(&self, request: &Request, rival: &Rival) -> (String, Cause) {
        let order = || Cause::Preference("formats-order".to_owned());
        match &rival.verdict {
            Verdict::Illegal(why) => (why.clone(), order()),
            Verdict::Unwanted => {
                ("some layers require other formats".to_owned(), Cause::Preference("wanted".to_owned()))
            }
            Verdict::Barred => {
                ("it computes some layers wrongly".to_owned(), Cause::Feedback("drift".to_owned()))
            }
            Verdict::UnknownLoss => ("its loss is not known".to_owned(), goal_in_losses(request)),
            Verdict::Limit { name, value, most } => {
                let [value, most] = names::apart(name, [*value, *most]);
                (format!("{name} would be {value}, the limit is {most}"), Cause::Limit(name.clone()))
            }
            Verdict::Refused => {
                ("the shard was refused before".to_owned(), Cause::Feedback("unsupported-op".to_owned()))
            }
            Verdict::States => {
                let why = "other shards share its states, so their device and format must not change";
                (why.to_owned(), Cause::Preference("states".to_owned()))
            }
            Verdict::Goal { name, value, most } => {
                let is_least = self.stage.by_low && name.ends_with("microseconds");
                let at_least = if is_least { "at least " } else { "" };
                let [value, most] = names::against_goal(name, *value, *most);
                let words = format!("{name} would be {at_least}{value}, the goal is {most}");
                (words, Cause::Goal((*name).to_owned()))
            }
            Verdict::Worse(_) | Verdict::Equal | Verdict::Better => (String::new(), order()),
        }
    }

    /// Explains in which part of the objective an alternative is worse, with both amounts.
    fn worse(
        &self,
        request: &Request,
        own: &Amounts,
        (other, rival): (&Amounts, &Rival),
        name: &str,
    ) -> (String, Cause) {
        let Verdict::Worse(goal) = rival.verdict else { return (String::new(), goal_in_losses(request)) };
        let [time, other_time] = self.times(own, other);
        match goal {
            super::Goal::Loss => {
                let [own, other] = names::apart("quality", [own.loss, other.loss]);
                (format!("loses {own}, {name} would lose {other}"), goal_in_losses(request))
            }
            super::Goal::Time if other.nanoseconds > own.nanoseconds => {
                (format!("{time} instead of {other_time} on {name}"), Cause::Cost("time".to_owned()))
            }
            super::Goal::Time if other.nanoseconds == own.nanoseconds => (
                format!("{name} would take as long, but in formats that are not listed first"),
                Cause::Preference("formats-order".to_owned()),
            ),
            super::Goal::Time => (
                format!("{time}, {name} would take {other_time}, but in formats that are not listed first"),
                Cause::Preference("formats-order".to_owned()),
            ),
            goal => {
                let words = format!("{name} is worse by the goal `{}`", goal.name());
                (words, Cause::Preference("order".to_owned()))
            }
        }
    }
}

/// Formats how far the bounds of a time are apart: `up to 2.5x apart`.
fn spread(time: Interval) -> String {
    match time.low {
        0 if time.high == 0 => "up to 1x apart".to_owned(),
        0 => "without a lower bound".to_owned(),
        low => format!("up to {} apart", names::factor(time.high, low)),
    }
}
