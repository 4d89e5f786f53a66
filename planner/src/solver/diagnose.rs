//! Why a request has no solution: the first constraint without which it would have one.

use super::search::{exists, search};
use super::{Part, Problem, Relaxed, is_admitted};
use crate::table::{CostTable, unit_kinds_at};
use crate::{Refusal, RefusalKind, names};

pub(super) fn diagnose(problem: &Problem<'_>) -> Refusal {
    let solvable = |relaxed| {
        let easier = Problem::new(problem.request, problem.settings, problem.entries.clone(), relaxed);
        easier.is_ok_and(|easier| exists(&easier))
    };
    let count = u32::try_from(problem.request.formats.len()).unwrap_or(u32::MAX);
    let left_out = (0..count).any(|formats| !is_admitted(problem.request, formats));
    if left_out && solvable(Relaxed { admission: true, ..Relaxed::default() }) {
        let message =
            "only weights of two bits fit within the limits, and nothing but a quality goal admits them";
        return Refusal::new(RefusalKind::OverQuality, message);
    }
    for part in &problem.parts {
        for unit in 0..part.units {
            if let Some(refusal) = single_unit(problem, part, unit) {
                return refusal;
            }
        }
    }
    let mut relaxed = Relaxed::default();
    type Relax = fn(&mut Relaxed);
    let steps: [(Relax, RefusalKind, &str); 6] = [
        (
            |relaxed| relaxed.preferences = true,
            RefusalKind::Unsupported,
            "no plan within the limits has the formats and as few shards as the planner wants",
        ),
        (
            |relaxed| relaxed.forbidden = true,
            RefusalKind::Exhausted,
            "every plan within the limits contains a shard that was refused before",
        ),
        (
            |relaxed| relaxed.quality = true,
            RefusalKind::OverQuality,
            "no plan within the limits loses as little quality as the goal asks, or sensitivities were not measured",
        ),
        (
            |relaxed| relaxed.memory = true,
            RefusalKind::OverMemory,
            "no plan within the limits fits the memory goal",
        ),
        (
            |relaxed| relaxed.target_totals = true,
            RefusalKind::OverLimit,
            "no plan fits the limits on all shards of a target together (shards, memory-bytes)",
        ),
        (
            |relaxed| relaxed.donors = true,
            RefusalKind::StateNotShareable,
            "layers that read the state of another layer cannot be placed on its shim and device",
        ),
    ];
    for (relax, kind, message) in steps {
        relax(&mut relaxed);
        if solvable(relaxed) {
            let refusal = Refusal::new(kind, message);
            return match kind {
                RefusalKind::OverMemory => with_least_memory(problem, relaxed, refusal),
                _ => refusal,
            };
        }
    }
    Refusal::new(RefusalKind::OverLimit, "no plan fits the limits")
}

/// The refusal of a memory goal with the least that plans in one format tuple take.
fn with_least_memory(problem: &Problem<'_>, relaxed: Relaxed, refusal: Refusal) -> Refusal {
    let bytes = |formats: u32| {
        let settings = super::Settings { formats: Some(formats), ..problem.settings.clone() };
        let easier = Problem::new(problem.request, &settings, problem.entries.clone(), relaxed).ok()?;
        let found = search(&easier)?.into_solution(&easier);
        let shards = found.shards.iter();
        Some(shards.fold(0_u64, |sum, shard| sum.saturating_add(shard.cost.context_bytes())))
    };
    let Some(least) = problem.usable.iter().filter_map(|&formats| bytes(formats)).min() else {
        return refusal;
    };
    let goal = problem.request.goals.memory_bytes.unwrap_or(0);
    let message =
        format!("{}: it allows {goal} bytes, and the smallest plan found takes {least}", refusal.message);
    Refusal { message, ..refusal }.with("goal", goal).with("least", least)
}

/// A layer that cannot be placed even alone, and why.
fn single_unit(problem: &Problem<'_>, part: &Part, unit: usize) -> Option<Refusal> {
    let request = problem.request;
    let component = &request.model.components[part.component as usize];
    let what = if part.layered {
        format!("layer {unit} of `{}`", component.name)
    } else {
        format!("component `{}`", component.name)
    };
    let mut over = None;
    for choice in &part.choices {
        let Some(cost) = choice.prefix.range(unit, unit + 1) else { continue };
        match problem.limits[choice.target as usize].exceeded(&cost) {
            None => return None,
            Some((bound, value)) => {
                let limit = bound.limit;
                let target = &request.targets[choice.target as usize].name;
                over.get_or_insert_with(|| {
                    let message = format!(
                        "{what} alone has {} {value} on `{target}`, the limit is {} ({})",
                        limit.name,
                        bound.value,
                        names::Named::name(&limit.provenance)
                    );
                    Refusal::new(RefusalKind::OverLimit, message)
                        .with("limit", &limit.name)
                        .with("value", value)
                        .with("max", bound.value)
                        .with("target", target)
                });
            }
        }
    }
    if let Some(refusal) = over {
        return Some(refusal);
    }
    let table = CostTable::new(request);
    let mut whys: Vec<String> = Vec::new();
    for choice in &part.choices {
        let target = &request.targets[choice.target as usize].name;
        let formats = request.formats_name(choice.formats[unit]);
        let kind = unit_kinds_at(component, choice.softcap)[unit];
        if let Some(why) = table.illegal(request, kind, choice.target, choice.formats[unit], &problem.entries)
        {
            whys.push(format!("`{target}` as {formats}: {why}"));
        }
    }
    // A handful of reasons says it; all of them can be many.
    whys.truncate(4);
    let message = format!("no target takes {what}: {}", whys.join("; "));
    Some(
        Refusal::new(RefusalKind::Unsupported, message).with("component", &component.name).with("unit", unit),
    )
}
