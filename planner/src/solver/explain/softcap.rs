//! Why a soft-cap is computed where it is.

use super::super::bounds::TargetBounds;
use super::super::{Forbidden, Placement, Solution};
use crate::table::{CostTable, Prefix, call_of, runtime_of, units_of};
use crate::{Cause, Request, Softcap, SoftcapPlace};

impl Solution {
    /// The choice, its reason, and the cause.
    pub(super) fn explain_softcap(
        &self,
        request: &Request,
        placement: &Placement,
        (softcap, place): (&Softcap, SoftcapPlace),
    ) -> (String, String, Cause) {
        let preferred = || Cause::Preference("softcap-in-graph".to_owned());
        let choice = match place {
            SoftcapPlace::Graph => "soft-cap in the graph",
            SoftcapPlace::Runtime => "soft-cap by the runtime",
        };
        let (because, cause) = if self.settings.softcap.is_some() {
            ("asked for".to_owned(), Cause::Preference("softcap".to_owned()))
        } else {
            let other = match place {
                SoftcapPlace::Graph => SoftcapPlace::Runtime,
                SoftcapPlace::Runtime => SoftcapPlace::Graph,
            };
            match (self.obstacle(request, placement, other), place) {
                (Err(obstacle), SoftcapPlace::Runtime) => obstacle,
                (Ok((Some(other), own)), SoftcapPlace::Runtime) if own < other => (
                    format!(
                        "{own} µs, of which the runtime takes {} for a row, instead of {other} µs in the graph",
                        softcap.runtime.microseconds
                    ),
                    Cause::Cost("time".to_owned()),
                ),
                (_, SoftcapPlace::Runtime) => {
                    ("what is left of the goals and limits needs it".to_owned(), preferred())
                }
                (Err((obstacle, _)), SoftcapPlace::Graph) => {
                    (format!("the target takes it, and not what is left without it: {obstacle}"), preferred())
                }
                (Ok((Some(other), own)), SoftcapPlace::Graph) => (
                    format!("{own} µs, by the runtime it would be {other} µs"),
                    Cause::Cost("time".to_owned()),
                ),
                (Ok((None, _)), SoftcapPlace::Graph) => {
                    ("the target takes it, and times to compare are not known".to_owned(), preferred())
                }
            }
        };
        (choice.to_owned(), because, cause)
    }

    /// The shard's time with its soft-cap elsewhere, as far as times are known, and its current
    /// time; or why that is impossible.
    fn obstacle(
        &self,
        request: &Request,
        placement: &Placement,
        other: SoftcapPlace,
    ) -> Result<(Option<u64>, u64), (String, Cause)> {
        let target = &request.targets[placement.target as usize];
        let units = units_of(request, &placement.segments, Some(other));
        let table = CostTable::new(request);
        let name = &target.name;
        let prefix = Prefix::of_units(request, &table, &units, placement.target, &self.entries);
        let Some(cost) = prefix.range(0, units.len()) else {
            let illegal = |&(kind, formats): &(u32, u32)| {
                table.illegal(request, kind, placement.target, formats, &self.entries)
            };
            let why = units.iter().find_map(illegal).unwrap_or_default();
            let cause = Cause::Preference("softcap-in-graph".to_owned());
            return Err((format!("`{name}` does not take it in the graph: {why}"), cause));
        };
        let bounds = TargetBounds::new(target, &self.relieving_flags(placement.target));
        if let Some((bound, value)) = bounds.exceeded(&cost) {
            let limit = &bound.limit.name;
            let because = format!("in the graph {limit} would be {value}, the limit is {}", bound.value);
            return Err((because, Cause::Limit(limit.clone())));
        }
        let shard = Forbidden { softcap: Some(other), ..placement.forbidden() };
        if self.settings.forbidden.contains(&shard) {
            let cause = Cause::Feedback("unsupported-op".to_owned());
            return Err((format!("`{name}` refused the shard with it in the graph before"), cause));
        }
        let runtime = runtime_of(request, &placement.segments, Some(other));
        let cost = cost.called(call_of(request, placement.target));
        let (other, own) = (cost.time.map(|time| time.saturating_add(runtime)), placement.cost.time);
        Ok((other.filter(|_| self.time.is_some()), own.unwrap_or(0)))
    }
}
