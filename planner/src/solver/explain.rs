//! Conversion of a solution to a plan with reasons.

use std::collections::BTreeSet;

use super::{Effort, Forbidden, Goal, Placement, Solution, TargetBounds, is_admitted, prefills, ranks};
use crate::names::{self, Named};
use crate::table::{CostTable, Interval, Prefix, prefill_runs, takes_part, units_of};
use crate::{Cause, Entry, EntryKind, Flag, Plan, Reason, Request, Segment, Shard, flow};

mod ceilings;
mod formats;
mod rivals;
mod softcap;
#[cfg(test)]
mod tests;

impl Solution {
    /// Converts the solution to a plan: every boundary in its shard's activation format, the flags
    /// set for each target, other targets that support the whole model as fallbacks, and a reason
    /// for every choice.
    pub fn into_plan(self, request: &Request) -> Plan {
        let mut plan = Plan {
            shards: vec![],
            tables: self.tables.clone(),
            fallback: self.fallback(request),
            speculation: self.speculation.clone(),
            reasons: vec![],
            lessons: vec![],
            extensions: vec![],
        };
        self.explain_chain(request, &mut plan.reasons);
        plan.reasons.extend(self.note.clone());
        self.explain_tables(request, &mut plan.reasons);
        self.explain_reserve(request, &mut plan.reasons);
        self.explain_ceilings(request, &mut plan.reasons);
        let segments: Vec<&[Segment]> = self.shards.iter().map(|shard| &shard.segments[..]).collect();
        let boundaries = flow::boundaries(request, &segments);
        for ((placement, (inputs, outputs)), index) in self.shards.iter().zip(boundaries).zip(0_u32..) {
            let target = &request.targets[placement.target as usize];
            plan.shards.push(Shard {
                segments: placement.segments.clone(),
                target: placement.target,
                context: self.context,
                entries: self.entries_of(request, placement),
                inputs,
                outputs,
                softcap: placement.softcap,
                flags: target
                    .recommended
                    .iter()
                    .cloned()
                    .chain(self.relieving_flags(placement.target))
                    .collect(),
                build: self.settings.build,
                extensions: vec![],
            });
            self.explain_shard(request, placement, index, &mut plan.reasons);
        }
        plan
    }

    /// Returns flags of a target in addition to the flags that are set for it.
    fn relieving_flags(&self, target: u32) -> Vec<Flag> {
        let own = self.relieving.iter().filter(|(existing, _)| *existing == target);
        own.map(|(_, flag)| flag.clone()).collect()
    }

    fn entries_of(&self, request: &Request, placement: &Placement) -> Vec<Entry> {
        let units = units_of(request, &placement.segments, placement.softcap);
        let active = |entry: &&Entry| units.iter().any(|&(kind, _)| takes_part(request, kind, **entry));
        let verifying = self.speculation.as_ref().map(|speculation| Entry {
            kind: EntryKind::Decode,
            rows: speculation.rows,
            context: self.context,
        });
        self.entries.iter().filter(active).copied().chain(verifying).collect()
    }

    fn explain_chain(&self, request: &Request, reasons: &mut Vec<Reason>) {
        if self.context > 0 {
            reasons.push(Reason {
                shard: None,
                choice: format!("context {}", self.context),
                because: format!("the smallest offered for at least {} tokens", request.goals.context),
                cause: Cause::Goal("context".to_owned()),
            });
        }
        if let Some(reason) = prefills::explain(request, &self.entries) {
            reasons.push(reason);
        } else if let Some(entry) =
            self.entries.iter().filter(|entry| entry.kind != EntryKind::Decode).max_by_key(|entry| entry.rows)
        {
            let because =
                format!("the largest within the limits and at most {} rows", request.goals.max_prefill_rows);
            reasons.push(Reason {
                shard: None,
                choice: names::entry(*entry),
                because,
                cause: Cause::Goal("max-prefill-rows".to_owned()),
            });
        }
        let mut because = self.leaves(request);
        let wider = self.wider(request).join(", ");
        if !wider.is_empty() {
            because.push_str(&format!("; not compared with {wider}, whose times are less certain"));
        }
        let calls = self.shards.iter().map(|shard| shard.cost.call).fold(Interval::default(), Interval::and);
        if calls.high > 0 {
            because.push_str(&format!("; this includes {calls} for calls, one per shard"));
        }
        if let Some(goal) = request.goals.token_microseconds() {
            because.push_str(&keeps(self.time, "token-microseconds", goal));
        }
        reasons.push(Reason {
            shard: None,
            choice: format!("{} per run", self.time),
            because,
            cause: Cause::Cost("time".to_owned()),
        });
        self.explain_first_token(request, reasons);
        if !self.settings.order.is_empty() {
            let first: Vec<&str> = self.settings.order.iter().map(|goal| goal.name()).collect();
            reasons.push(Reason {
                shard: None,
                choice: format!("goals {} first", first.join(", ")),
                because: "the planner ranks them above the other goals".to_owned(),
                cause: Cause::Preference("order".to_owned()),
            });
        }
        if !self.exact {
            reasons.push(Reason {
                shard: None,
                choice: "an approximation".to_owned(),
                because: format!(
                    "the search was cut short, because there were too many alternatives to keep or to \
                     compare; {}",
                    self.distance()
                ),
                cause: Cause::Preference("labels-per-cut".to_owned()),
            });
        }
        if self.settings.effort == Effort::Simple {
            reasons.push(Reason {
                shard: None,
                choice: "a simple plan".to_owned(),
                because:
                    "the first legal target and formats, in the fewest shards within the limits; times were \
                          ignored, as requested"
                        .to_owned(),
                cause: Cause::Preference("effort".to_owned()),
            });
        }
        self.explain_admission(request, reasons);
    }

    /// Returns the names of the targets of a later rank than all shards.
    fn wider(&self, request: &Request) -> Vec<String> {
        if self.settings.effort == Effort::Simple {
            return Vec::new();
        }
        let ranks = ranks(&self.intervals);
        let rank = |shard: &Placement| ranks.get(shard.target as usize).copied();
        let used = self.shards.iter().filter_map(rank).max();
        let others = request.targets.iter().zip(&ranks).filter(|(_, rank)| Some(**rank) > used);
        others.map(|(target, _)| format!("`{}`", target.name)).collect()
    }

    /// Describes the set of plans among which the time is the least.
    fn leaves(&self, request: &Request) -> String {
        let goals = &request.goals;
        let settings = &self.settings;
        if settings.effort == Effort::Simple {
            return "not compared: times were ignored, as requested".to_owned();
        }
        let least = if self.exact { "the least" } else { "the least found" };
        let asked = settings.formats.is_some()
            || !settings.wanted.is_empty()
            || !settings.place.is_empty()
            || !settings.most_shards.is_empty()
            || !settings.join;
        let first_is_time = settings.order.first().is_none_or(|goal| *goal == Goal::Time);
        let of = match request.formats.len() {
            _ if !first_is_time => "that the higher-ranked goals allow",
            2.. if goals.least_loss => "of the plans with the least loss",
            2.. if goals.quality_micronats().is_none() || settings.gain_within_goal > 0 => {
                "that the limits and the order of formats allow"
            }
            _ if asked => "of all legal plans with the requested settings",
            _ => "of all legal plans",
        };
        let each = self.decided.boundary / 1000;
        // If there is no cut, limits and preferences left no reason to consider one.
        let saves = match (each, self.shards.len()) {
            (0, _) | (_, ..2) => String::new(),
            _ => format!("; each additional shard must save {}", names::microseconds(each)),
        };
        format!("{least} {of}{saves}")
    }

    /// Explains the time to the first token if it counts.
    fn explain_first_token(&self, request: &Request, reasons: &mut Vec<Reason>) {
        let goals = &request.goals;
        if goals.first_token_microseconds().is_none() && goals.answer_tokens == 0 {
            return;
        }
        let prefill = self.shards.iter().map(|shard| shard.cost.prefill);
        let prefill = prefill.fold(Interval::default(), Interval::and);
        let runs = prefill_runs(&self.entries, goals.prompt_tokens);
        let ran: Vec<(Entry, u64)> =
            self.entries.iter().copied().zip(runs).filter(|(_, runs)| *runs > 0).collect();
        let runs = match ran[..] {
            [] => "no prefill".to_owned(),
            [(_, runs)] => {
                let [low, likely, high] = [prefill.low, prefill.likely, prefill.high].map(|sum| sum / runs);
                format!("{} of {}", names::count(runs, "run"), Interval { low, likely, high }.figure())
            }
            _ => {
                let each = ran.iter().map(|(entry, runs)| {
                    format!("{} of {}", names::count(*runs, "run"), names::entry(*entry))
                });
                format!("{prefill} of prefill ({})", each.collect::<Vec<_>>().join(", "))
            }
        };
        let mut because = format!("{runs} for a prompt of {} tokens", goals.prompt_tokens);
        if let Some(goal) = goals.first_token_microseconds() {
            because.push_str(&keeps(self.first_token, "first-token-microseconds", goal));
        }
        if goals.answer_tokens > 0 {
            because.push_str(&format!(
                "; each of the {} tokens of a usual answer counts a share of it",
                goals.answer_tokens
            ));
        }
        reasons.push(Reason {
            shard: None,
            choice: format!("{} to the first token", self.first_token),
            because,
            cause: Cause::Goal("first-token-microseconds".to_owned()),
        });
    }

    fn explain_shard(&self, request: &Request, placement: &Placement, index: u32, reasons: &mut Vec<Reason>) {
        let target = &request.targets[placement.target as usize];
        let mut push = |choice: String, because: String, cause| {
            reasons.push(Reason { shard: Some(index), choice, because, cause });
        };

        let of = |segment: &Segment| &request.model.components[segment.component as usize];
        if let names @ [_, _, ..] =
            &placement.segments.iter().map(|segment| of(segment).name.as_str()).collect::<Vec<_>>()[..]
        {
            push(
                format!("{} in one shard", names.join(", ")),
                "needs one call per step, and values between them stay inside the shard".to_owned(),
                Cause::Preference("fewest-shards".to_owned()),
            );
        }
        for segment in placement.segments.iter().filter(|segment| of(segment).layer_count() > 0) {
            let (because, cause) = self.explain_layers(request, (placement, index), segment);
            push(format!("layers {}..{}", segment.first, segment.end), because, cause);
        }

        let (because, cause) = self.explain_target(request, (placement, index));
        push(format!("target {}", target.name), because, cause);

        if placement.cost.weight_bytes > 0 {
            let (formats, because, cause) = self.explain_formats(request, (placement, index));
            push(formats, because, cause);
        }

        let softcap = placement.segments.iter().find_map(|segment| of(segment).softcap.as_ref());
        if let (Some(softcap), Some(place)) = (softcap, placement.softcap) {
            let (choice, because, cause) =
                self.explain_softcap(request, (placement, index), (softcap, place));
            push(choice, because, cause);
        }

        for flag in &target.recommended {
            push(
                format!("{}={}", flag.name, flag.value),
                "set for the target by its profile or by the user".to_owned(),
                Cause::Preference("flags".to_owned()),
            );
        }
    }

    /// Explains the cuts of a component with layers.
    fn explain_layers(
        &self,
        request: &Request,
        (placement, index): (&Placement, u32),
        segment: &Segment,
    ) -> (String, Cause) {
        let component = &request.model.components[segment.component as usize];
        let target = &request.targets[placement.target as usize];
        let limits = TargetBounds::new(target, &self.relieving_flags(placement.target));
        let layers = component.layer_count();
        let table = CostTable::new(request);
        let (of, formats) = (placement.target, segment.formats.first().copied().unwrap_or(0));
        let prefix = Prefix::new(request, &table, component, of, formats, &self.entries);
        let siblings = || {
            let shards = self.shards.iter();
            shards.filter_map(|shard| Some((shard, shard.segment(segment.component)?)))
        };
        if (segment.first, segment.end) == (0, layers) {
            let because = "the whole component is within the limits".to_owned();
            return (because, Cause::Preference("fewest-shards".to_owned()));
        }
        if let Some((bound, value)) = prefix.range(0, layers as usize).and_then(|cost| limits.exceeded(&cost))
        {
            let limit = bound.limit;
            let (what, own) = self.balance_value(placement);
            let largest = siblings().map(|(shard, _)| self.balance_value(shard).1).max().unwrap_or(own);
            let [value, most] = names::apart(&limit.name, [value, bound.value]);
            let (own, largest) = (self.balanced(what, own), self.balanced(what, largest));
            let share = match own == largest {
                true => format!("{own}, like the largest"),
                false => format!("{own}, the largest {largest}"),
            };
            let because = format!(
                "all {layers} layers have {} {value}, the limit is {most} ({}); {} shards, balanced by \
                 {what}: this one has {share}",
                limit.name,
                limit.provenance.name(),
                siblings().count(),
            );
            return (because, Cause::Limit(limit.name.clone()));
        }
        if let Some(elsewhere) = self.elsewhere(request, (placement, index), segment.component) {
            return elsewhere;
        }
        // The whole component would fit, but not together with the components that share its
        // shards.
        let whole = siblings().map(|(shard, _)| shard.cost.clone()).reduce(|sum, cost| sum.joined(&cost));
        if let Some((bound, value)) = whole.and_then(|cost| limits.exceeded(&cost)) {
            let limit = bound.limit;
            let [value, most] = names::apart(&limit.name, [value, bound.value]);
            let because = format!(
                "one shard instead of {} would have {} {value}, the limit is {most} ({})",
                siblings().count(),
                limit.name,
                limit.provenance.name(),
            );
            return (because, Cause::Limit(limit.name.clone()));
        }
        if let Some(others) = self.other_formats(request, (placement, index), segment) {
            return others;
        }
        let whole = |shard: &&Forbidden| {
            let mut own = shard.segments.iter().filter(|own| own.component == segment.component);
            shard.target == placement.target && own.any(|own| (own.first, own.end) == (0, layers))
        };
        if self.settings.forbidden.iter().any(|shard| whole(&shard)) {
            let because = "a shard of all its layers was refused before".to_owned();
            return (because, Cause::Feedback("unsupported-op".to_owned()));
        }
        let (what, own) = self.balance_value(placement);
        (format!("balanced by {what}: {}", self.balanced(what, own)), Cause::Cost(what.to_owned()))
    }

    /// Explains why other layers of a component are on another target.
    fn elsewhere(
        &self,
        request: &Request,
        (placement, index): (&Placement, u32),
        component: u32,
    ) -> Option<(String, Cause)> {
        let mut others = self.shards.iter().zip(0_u32..).filter(|(_, place)| *place != index);
        let (other, place) = others
            .find(|(shard, _)| shard.segment(component).is_some() && shard.target != placement.target)?;
        let rivals = self.rivals(place);
        let rival = rivals.targets.iter().find(|rival| rival.target == placement.target)?;
        let name = &request.targets[other.target as usize].name;
        let (why, cause) = self.of_target(request, other, &rivals, rival);
        Some((format!("the other layers are on `{name}`: {why}"), cause))
    }

    /// Explains why other layers of a component on the same target are in other formats.
    fn other_formats(
        &self,
        request: &Request,
        (placement, index): (&Placement, u32),
        segment: &Segment,
    ) -> Option<(String, Cause)> {
        let distinct = |segment: &Segment| segment.formats.iter().copied().collect::<BTreeSet<u32>>();
        let mut others = self.shards.iter().zip(0_u32..).filter(|(_, place)| *place != index);
        let (other, place) = others.find(|(shard, _)| {
            shard.segment(segment.component).is_some_and(|own| distinct(own) != distinct(segment))
        })?;
        let because = "the other layers are in other formats, to meet the goals together".to_owned();
        let decided = placement.uniform_formats().and_then(|formats| {
            let rivals = self.rivals(place);
            let rival = rivals.formats.iter().find(|rival| rival.formats == formats)?;
            let (why, cause) = self.of_formats(request, other, &rivals, rival);
            Some((format!("the other layers are in other formats: {why}"), cause))
        });
        Some(decided.unwrap_or_else(|| (because, formats::goal_or_time(request))))
    }

    /// Describes how far the plan may be from the best one.
    fn distance(&self) -> String {
        if self.settings.effort == Effort::Simple {
            return "its distance from the best plan is not known".to_owned();
        }
        let Some(gap) = self.gap else { return "the plan is proven to be the best nevertheless".to_owned() };
        let (name, value) = (gap.goal.name(), gap.value);
        let shown = match gap.goal {
            Goal::Time => names::time_in(value, self.time.digits()),
            Goal::Loss => names::micronats(value),
            _ => value.to_string(),
        };
        let above = value.saturating_sub(gap.least);
        match gap.least {
            0 => format!("{name} is {shown}, and no lower bound is known"),
            least if above > least => {
                format!("{name} is {shown}, at most about {} the best", names::factor(value, least))
            }
            least => {
                format!("{name} is {shown}, at most {} above the best", names::percent_at_most(above, least))
            }
        }
    }

    /// Explains formats that were excluded regardless of their cost.
    fn explain_admission(&self, request: &Request, reasons: &mut Vec<Reason>) {
        if self.settings.formats.is_some() {
            return;
        }
        for (_, index) in request.formats.iter().zip(0_u32..) {
            if !is_admitted(request, index) {
                reasons.push(Reason {
                    shard: None,
                    choice: format!("not {}", request.formats_name(index)),
                    because: "two-bit weights lose so much that they are used only under a quality goal"
                        .to_owned(),
                    cause: Cause::Goal("quality".to_owned()),
                });
            }
        }
    }

    /// Formats an amount of the quantity by which shards are balanced.
    fn balanced(&self, what: &str, amount: u64) -> String {
        match what {
            "time" => names::time_in(amount.saturating_mul(1000), self.time.digits()),
            _ => names::quantity(what, amount),
        }
    }

    /// Returns the quantity by which the solution is balanced, and the shard's amount of it.
    fn balance_value(&self, placement: &Placement) -> (&'static str, u64) {
        match self.balanced_by {
            super::Balance::Time => ("time", placement.cost.computed().time.likely),
            super::Balance::Operations => ("ops", placement.cost.ops),
            super::Balance::Bytes | super::Balance::Automatic => {
                ("weight-bytes", placement.cost.weight_bytes)
            }
        }
    }
}

/// Describes how a time keeps its goal.
pub(super) fn keeps(time: Interval, name: &str, goal: u64) -> String {
    let how = match time {
        Interval { high, .. } if high <= goal => "within",
        Interval { likely, .. } if likely <= goal => "likely within",
        _ => "only the lowest time is within",
    };
    format!("; {how} the goal of {}", names::goal(name, goal))
}
