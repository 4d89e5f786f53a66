//! Reasons about limits: why a component was cut instead of changed otherwise, and how far a limit
//! reported for another lowering applies here.

use super::super::bounds::{Bound, TargetBounds};
use super::super::{Solution, is_admitted, relief};
use crate::names::{self, Named};
use crate::table::{CostTable, Prefix};
use crate::{Cause, Flag, Provenance, Reason, Request, Target};

impl Solution {
    /// Explains limits for every target and component with layers. For each limit that caused a
    /// cut, gives the alternatives considered before. For a limit on operations that was reported
    /// for another lowering, adds the operations of this lowering.
    pub(super) fn explain_ceilings(&self, request: &Request, reasons: &mut Vec<Reason>) {
        for (target, index) in request.targets.iter().zip(0_u32..) {
            let more = self.relieving_flags(index);
            let bounds = TargetBounds::new(target, &more);
            let mut set = target.recommended.clone();
            set.extend(more);
            let binding = relief::binding(request, self, index, &bounds);
            for (component, bound, _) in &binding {
                let instead = alternative(&bound.limit.name);
                let alike = binding
                    .iter()
                    .filter(|(of, own, _)| of == component && alternative(&own.limit.name) == instead);
                let alike: Vec<(Bound<'_>, u64)> = alike.map(|(_, own, value)| (*own, *value)).collect();
                // Limits with the same alternative share a reason.
                if alike.first().is_some_and(|(first, _)| first.limit.name == bound.limit.name) {
                    self.explain_width(request, (*component, index), &alike, reasons);
                }
                let name = &request.model.components[*component as usize].name;
                explain_flags(bound, &set, name, reasons);
            }
            explain_raised(target, &set, reasons);
            self.explain_reported(request, index, &bounds, reasons);
        }
    }

    /// Returns the format tuple of the first layer of a component that is on a target.
    fn first_formats(&self, component: u32, target: u32) -> Option<u32> {
        let mut own = self.shards.iter().filter(|shard| shard.target == target);
        own.find_map(|shard| shard.segment(component)?.formats.first().copied())
    }

    /// Explains what speaks against other formats of the first shard of a component on a target.
    /// Returns `None` if they were not compared.
    fn against_narrower(
        &self,
        request: &Request,
        (component, target): (u32, u32),
        formats: u32,
    ) -> Option<String> {
        let mut shards = self.shards.iter().zip(0_u32..);
        let (_, index) =
            shards.find(|(shard, _)| shard.target == target && shard.segment(component).is_some())?;
        let rivals = self.rivals(index);
        let rival = rivals.formats.iter().find(|rival| rival.formats == formats)?;
        Some(self.against(request, &rivals.own, rival))
    }

    /// Explains whether other formats would have avoided the cut at limits that have the same
    /// alternative, based on the cost table. Lists the amounts of the first limit.
    fn explain_width(
        &self,
        request: &Request,
        (component, target): (u32, u32),
        limits: &[(Bound<'_>, u64)],
        reasons: &mut Vec<Reason>,
    ) {
        let Some((first, value)) = limits.first() else { return };
        let name = &first.limit.name;
        let Some(used) = self.first_formats(component, target) else { return };
        let part = &request.model.components[component as usize];
        let table = CostTable::new(request);
        let mut others: Vec<(u32, u64, bool)> = Vec::new();
        let other = |format: u32| format != used && is_admitted(request, format);
        let tuples = 0..u32::try_from(request.formats.len()).unwrap_or(u32::MAX);
        for format in tuples.filter(|format| other(*format)) {
            let prefix = Prefix::new(request, &table, part, target, format, &self.entries);
            let Some(whole) = prefix.range(0, part.layer_count() as usize) else { continue };
            let fits = limits.iter().all(|(bound, _)| {
                TargetBounds::value_of(&bound.limit.name, &whole).is_none_or(|own| own <= bound.value)
            });
            others.extend(TargetBounds::value_of(name, &whole).map(|own| (format, own, fits)));
        }
        let formats = request.formats_name(used);
        let shown = names::quantity(name, *value);
        let mut because = match (name.as_str(), limits) {
            ("ops", _) => format!("the limit counts operations, {shown} in {formats}"),
            ("call-microseconds", _) => format!("one call for all its layers takes {shown} in {formats}"),
            (_, [_]) => format!("the limit counts bytes, not operations: {shown} in {formats}"),
            _ => {
                let named: Vec<&str> = limits.iter().map(|(bound, _)| bound.limit.name.as_str()).collect();
                format!(
                    "the limits {} count bytes, not operations: {name} are {shown} in {formats}",
                    named.join(" and ")
                )
            }
        };
        let mut before = Some(shown);
        if name == "ops" && !others.is_empty() && others.iter().all(|(_, other, _)| other == value) {
            because.push_str(", which the width of weights does not change");
            before = None;
        }
        for (format, other, fits) in &others {
            let against = self.against_narrower(request, (component, target), *format).filter(|_| *fits);
            let shown = names::quantity(name, *other);
            let format = request.formats_name(*format);
            // Formats with the same amount share its figure.
            match before.as_ref() == Some(&shown) && against.is_none() {
                true => because.push_str(&format!(", {format}")),
                false => because.push_str(&format!("; {shown} in {format}")),
            }
            before = Some(shown).filter(|_| against.is_none());
            if let Some(why) = against {
                because.push_str(&format!(", which would fit, but {why}"));
            }
        }
        let choice = format!("{} is cut instead of using {}", part.name, alternative(name));
        reasons.push(reason(choice, because, name));
    }

    /// Warns that a reported count of operations comes from a different lowering of the model.
    fn explain_reported(
        &self,
        request: &Request,
        target: u32,
        bounds: &TargetBounds<'_>,
        reasons: &mut Vec<Reason>,
    ) {
        let reported = |bound: &Bound<'_>| bound.limit.provenance == Provenance::Reported;
        let Some(bound) = bounds.ops.filter(reported) else { return };
        let table = CostTable::new(request);
        for (component, index) in request.model.components.iter().zip(0_u32..) {
            let placed = self.first_formats(index, target);
            let (Some(formats), layers @ 1..) = (placed, component.layer_count() as usize) else { continue };
            let prefix = Prefix::new(request, &table, component, target, formats, &self.entries);
            let Some(whole) = prefix.range(0, layers) else { continue };
            let each = (0..layers).filter_map(|layer| Some(prefix.range(layer, layer + 1)?.ops));
            let (Some(least), Some(most)) = (each.clone().min(), each.max()) else { continue };
            let verdict = if whole.ops > bound.value { "more than" } else { "within" };
            let because = format!(
                "the limit was reported for another lowering; here a layer has {least} to {most} operations \
                 and all {layers} layers have {}, {verdict} {}, so the limit may not apply{}",
                whole.ops,
                bound.value,
                note_after(&bound.limit.note)
            );
            let name = &request.targets[target as usize].name;
            reasons.push(reason(format!("{name}: ops ≤ {} (reported)", bound.value), because, "ops"));
        }
    }
}

/// Returns the alternative to a cut at the limit of this name.
fn alternative(limit: &str) -> &'static str {
    match limit {
        "ops" => "narrower weights",
        "call-microseconds" => "other formats",
        _ => "fewer operations",
    }
}

/// Explains flags that were considered for a limit and do not raise it.
fn explain_flags(bound: &Bound<'_>, set: &[Flag], component: &str, reasons: &mut Vec<Reason>) {
    for relief in bound.limit.relief.iter().filter(|relief| relief.value.is_none()) {
        let flag = format!("{}={}", relief.flag.name, relief.flag.value);
        let choice = match set.contains(&relief.flag) {
            true => format!("{component} is cut although {flag} is set"),
            false => format!("{component} is cut instead of setting {flag}"),
        };
        let because = format!("the flag does not raise {}{}", bound.limit.name, note_after(&relief.note));
        reasons.push(reason(choice, because, &bound.limit.name));
    }
}

/// Explains flags in use that raise a limit.
fn explain_raised(target: &Target, set: &[Flag], reasons: &mut Vec<Reason>) {
    for limit in &target.limits {
        for relief in limit.relief.iter().filter(|relief| set.contains(&relief.flag)) {
            let Some(value) = relief.value.filter(|value| *value > limit.value) else { continue };
            let flag = format!("{}={}", relief.flag.name, relief.flag.value);
            let [value, before] = names::apart(&limit.name, [value, limit.value]);
            let because = format!(
                "the flag raises {} to {value} from {before} ({}){}",
                limit.name,
                limit.provenance.name(),
                note_after(&relief.note)
            );
            reasons.push(reason(format!("{}: {flag}", target.name), because, &limit.name));
        }
    }
}

fn note_after(note: &str) -> String {
    if note.is_empty() { String::new() } else { format!(": {note}") }
}

fn reason(choice: String, because: String, limit: &str) -> Reason {
    Reason { shard: None, choice, because, cause: Cause::Limit(limit.to_owned()) }
}
