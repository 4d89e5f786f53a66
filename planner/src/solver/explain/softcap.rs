//! Reasons for the place of a soft-cap.

use super::super::decided::{Rival, Verdict};
use super::super::{Goal, Placement, Solution};
use crate::table::Interval;
use crate::{Cause, Request, Softcap, SoftcapPlace, names};

impl Solution {
    /// Returns the choice, its reason and the cause.
    pub(super) fn explain_softcap(
        &self,
        request: &Request,
        (placement, index): (&Placement, u32),
        (softcap, place): (&Softcap, SoftcapPlace),
    ) -> (String, String, Cause) {
        let preferred = || Cause::Preference("softcap-in-graph".to_owned());
        let choice = match place {
            SoftcapPlace::Graph => "soft-cap in the graph",
            SoftcapPlace::Runtime => "soft-cap by the runtime",
        };
        let rival = self.rivals(index).softcap;
        let (because, cause) = match rival {
            _ if self.settings.softcap.is_some() => {
                ("requested".to_owned(), Cause::Preference("softcap".to_owned()))
            }
            Some(rival) if !rival.verdict.is_legal() => self.prevented(request, placement, (place, &rival)),
            Some(rival) => self.preferred((index, place, softcap), &rival),
            None => ("the only place that may be chosen".to_owned(), preferred()),
        };
        (choice.to_owned(), because, cause)
    }

    /// Explains why the soft-cap cannot be at the other place.
    fn prevented(
        &self,
        request: &Request,
        placement: &Placement,
        (place, rival): (SoftcapPlace, &Rival),
    ) -> (String, Cause) {
        let preferred = Cause::Preference("softcap-in-graph".to_owned());
        let name = &request.targets[placement.target as usize].name;
        let (why, cause) = self.hindrance(request, rival);
        match (place, &rival.verdict) {
            (SoftcapPlace::Graph, _) => (format!("it cannot move to the runtime: {why}"), preferred),
            (SoftcapPlace::Runtime, Verdict::Illegal(_)) => {
                (format!("`{name}` does not support it in the graph: {why}"), preferred)
            }
            (SoftcapPlace::Runtime, Verdict::Limit { name, value, most }) => {
                let [value, most] = names::apart(name, [*value, *most]);
                (format!("in the graph {name} would be {value}, the limit is {most}"), cause)
            }
            (SoftcapPlace::Runtime, Verdict::Refused) => {
                (format!("`{name}` refused the shard with the soft-cap in the graph before"), cause)
            }
            (SoftcapPlace::Runtime, _) => (format!("it cannot be in the graph: {why}"), cause),
        }
    }

    /// Explains why the soft-cap is not at the other place, which is possible too.
    fn preferred(
        &self,
        (index, place, softcap): (u32, SoftcapPlace, &Softcap),
        rival: &Rival,
    ) -> (String, Cause) {
        let by_time = || Cause::Cost("time".to_owned());
        let order = || Cause::Preference("softcap-in-graph".to_owned());
        let [own, there] = self.times(&self.rivals(index).own, &rival.amounts.unwrap_or_default());
        let decides = matches!(rival.verdict, Verdict::Worse(Goal::Time));
        match place {
            SoftcapPlace::Graph if decides => (format!("{own} instead of {there} by the runtime"), by_time()),
            SoftcapPlace::Runtime if decides => (
                format!(
                    "{own}, including {} per row in the runtime, instead of {there} in the graph",
                    Interval::from(softcap.runtime)
                ),
                by_time(),
            ),
            SoftcapPlace::Graph if matches!(rival.verdict, Verdict::Better) => {
                (self.undecided("the runtime"), order())
            }
            SoftcapPlace::Graph => {
                ("the target supports it, and the runtime is no better".to_owned(), order())
            }
            SoftcapPlace::Runtime => (self.undecided("the graph"), order()),
        }
    }
}
