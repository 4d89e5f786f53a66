//! Diagnosis of a request without solution: finds the first constraint whose removal gives a
//! solution.

use super::search::{exists, search};
use super::tables::Tables;
use super::{Goal, Part, Problem, Relaxed, Settings, Solution, is_admitted};
use crate::table::{CostTable, Interval, unit_kinds_at};
use crate::{Goals, Refusal, RefusalKind, Request, names};

/// Finds the refusal for a problem whose goals are the rest of `goals` after `tables`, in the stage
/// that allows most plans. `lost` is the least known loss of a plan without a goal for it.
pub(super) fn diagnose(
    problem: &Problem<'_>,
    tables: &Tables,
    (goals, lost): (&Goals, Option<u64>),
) -> Refusal {
    let none = problem.relaxed;
    let solvable = |relaxed| {
        let easier = Problem::new(problem.request, problem.settings, problem.entries.clone(), relaxed);
        easier.is_ok_and(|easier| exists(&easier))
    };
    let count = u32::try_from(problem.request.formats.len()).unwrap_or(u32::MAX);
    let left_out = (0..count).any(|formats| !is_admitted(problem.request, formats));
    if left_out && solvable(Relaxed { admission: true, ..none }) {
        let message = "only two-bit weights fit the limits, and these are used only under a quality goal";
        return Refusal::new(RefusalKind::OverQuality, message);
    }
    for part in &problem.parts {
        for unit in 0..part.units {
            if let Some(refusal) = single_unit(problem, part, unit) {
                return refusal;
            }
        }
    }
    // A constraint that alone prevents a plan is the reason. Otherwise it is the first one whose
    // removal, together with all before it, gives a plan.
    let steps = steps(problem);
    let mut all = none;
    let alone = steps.iter().map(|step| {
        let mut relaxed = none;
        (step.relax)(&mut relaxed);
        (step, relaxed)
    });
    let together = steps.iter().map(|step| {
        (step.relax)(&mut all);
        (step, all)
    });
    for (step, relaxed) in alone.chain(together) {
        if solvable(relaxed) {
            let refusal = Refusal::new(step.kind, step.message);
            return with_least(problem, relaxed, refusal, (tables, goals, lost));
        }
    }
    Refusal::new(RefusalKind::OverLimit, "no plan meets the limits")
}

/// Removes one constraint.
type Relax = fn(&mut Relaxed);

/// A constraint that may be removed.
struct Step {
    relax: Relax,
    kind: RefusalKind,
    message: &'static str,
}

/// Returns the constraints of the request and the settings.
fn steps(problem: &Problem<'_>) -> Vec<Step> {
    let settings = problem.settings;
    let goals = &problem.goals;
    let totals = |limits: &super::TargetBounds<'_>| limits.shards.is_some() || limits.memory_bytes.is_some();
    let steps: [(bool, Relax, RefusalKind, &'static str); 8] = [
        (
            !settings.wanted.is_empty() || !settings.most_shards.is_empty(),
            |relaxed| relaxed.preferences = true,
            RefusalKind::Unsupported,
            "no plan within the limits has the required formats and numbers of shards",
        ),
        (
            !settings.forbidden.is_empty() || !settings.barred.is_empty(),
            |relaxed| relaxed.forbidden = true,
            RefusalKind::Exhausted,
            "every plan within the limits contains a shard that was refused before",
        ),
        (
            goals.bounds_times(),
            |relaxed| relaxed.times = true,
            RefusalKind::TooSlow,
            "no plan within the limits meets the goals for times",
        ),
        (
            goals.size.is_some(),
            |relaxed| relaxed.size = true,
            RefusalKind::OverSize,
            "no plan within the limits meets the size goal for artefacts and tables",
        ),
        (
            goals.quality.is_some(),
            |relaxed| relaxed.quality = true,
            RefusalKind::OverQuality,
            "no plan within the limits meets the quality goal, or sensitivities were not measured",
        ),
        (
            goals.memory.is_some(),
            |relaxed| relaxed.memory = true,
            RefusalKind::OverMemory,
            "no plan within the limits meets the memory goal",
        ),
        (
            problem.limits.iter().any(totals),
            |relaxed| relaxed.target_totals = true,
            RefusalKind::OverLimit,
            "no plan meets the limits on all shards of a target together (shards, memory-bytes)",
        ),
        (
            problem.parts.iter().any(|part| part.donors.iter().any(Option::is_some)),
            |relaxed| relaxed.donors = true,
            RefusalKind::StateNotShareable,
            "layers that read the state of another layer cannot have its shim, device and format of states",
        ),
    ];
    let present = steps.into_iter().filter(|(present, ..)| *present);
    present.map(|(_, relax, kind, message)| Step { relax, kind, message }).collect()
}

/// A quantity that a goal limits.
struct Bounded {
    kind: RefusalKind,
    what: &'static str,
    goal: Option<u64>,
    of: fn(&Problem<'_>, &Solution) -> Interval,
    name: &'static str,
}

/// Adds to the refusal of a goal the least amount of its quantity that a search finds, which is the
/// nearest goal that can be met: with the quantity as the objective, in one format tuple, and, for
/// bytes and times, on one target, because a search by other objectives may not find the least.
fn with_least(
    problem: &Problem<'_>,
    relaxed: Relaxed,
    refusal: Refusal,
    (tables, goals, lost): (&Tables, &Goals, Option<u64>),
) -> Refusal {
    let bounded = [
        Bounded {
            kind: RefusalKind::OverMemory,
            what: "memory",
            goal: goals.memory_bytes(),
            of: |_, plan| sum(plan, |shard| shard.cost.context_bytes()),
            name: "memory-bytes",
        },
        Bounded {
            kind: RefusalKind::OverSize,
            what: "size",
            goal: goals.size_bytes(),
            of: |_, plan| sum(plan, |shard| shard.cost.artefact_bytes),
            name: "size",
        },
        Bounded {
            kind: RefusalKind::TooSlow,
            what: "time of a token",
            goal: goals.token_microseconds(),
            of: |_, plan| plan.time,
            name: "token-microseconds",
        },
        Bounded {
            kind: RefusalKind::TooSlow,
            what: "time to the first token",
            goal: goals.first_token_microseconds(),
            of: |_, plan| plan.first_token,
            name: "first-token-microseconds",
        },
        Bounded {
            kind: RefusalKind::OverQuality,
            what: "loss",
            goal: goals.quality_micronats(),
            of: |problem, plan| {
                let losses = &problem.losses;
                sum(plan, |shard| losses.of_shard(shard))
            },
            name: "quality",
        },
    ];
    let kind = refusal.kind;
    let mut refusal = refusal;
    let indices = |count: usize| 0..u32::try_from(count).unwrap_or(u32::MAX);
    let components = problem.request.model.components.len();
    let on = |target: u32| indices(components).map(|component| (component, target)).collect();
    let by_target = [RefusalKind::TooSlow, RefusalKind::OverSize, RefusalKind::OverMemory].contains(&kind);
    let targets = if by_target { problem.request.targets.len() } else { 0 };
    let places: Vec<Vec<(u32, u32)>> = indices(targets).map(on).collect();
    for Bounded { what, goal, of, name, .. } in bounded.into_iter().filter(|bounded| bounded.kind == kind) {
        let Some(goal) = goal else { continue };
        let value = |request: &Request, relaxed: Relaxed, settings: &Settings| {
            let mut easier = Problem::new(request, settings, problem.entries.clone(), relaxed).ok()?;
            let mut found = search(&mut easier)?.into_solution(&easier);
            if kind == RefusalKind::OverQuality {
                super::mix::polish(&easier, &mut found);
            }
            // An unknown loss must not be offered as a goal.
            let known = kind != RefusalKind::OverQuality
                || found.shards.iter().all(|shard| problem.losses.knows(shard));
            known.then(|| of(problem, &found))
        };
        let in_formats = |formats: u32, place: &[(u32, u32)]| {
            // A requested target comes first.
            let place = [&problem.settings.place[..], place].concat();
            let settings = Settings { formats: Some(formats), place, ..problem.settings.clone() };
            value(problem.request, relaxed, &settings)
        };
        let mut found: Vec<(Interval, u32)> = Vec::new();
        for &formats in &problem.usable {
            if found.is_empty() || !problem.settings.budget.is_spent() {
                found.extend(in_formats(formats, &[]).map(|value| (value, formats)));
            }
        }
        let least = |found: &[(Interval, u32)]| {
            found.iter().copied().min_by_key(|(value, _)| (value.low, value.likely))
        };
        // The least bytes may be in other formats on another target.
        let tried: Vec<u32> = match kind {
            RefusalKind::TooSlow => least(&found).map(|(_, formats)| formats).into_iter().collect(),
            _ => problem.usable.clone(),
        };
        for (&formats, place) in
            tried.iter().flat_map(|formats| places.iter().map(move |place| (formats, place)))
        {
            found.extend(in_formats(formats, place).map(|value| (value, formats)));
        }
        if let Some((request, relaxed, settings)) = mixing(problem, relaxed, what) {
            found.extend(value(&request, relaxed, &settings).map(|value| (value, 0)));
        }
        let nearest = least(&found).map(|(value, _)| value.and(Interval::exact(tables.part_of(kind))));
        let lost = lost.filter(|_| kind == RefusalKind::OverQuality).map(Interval::exact);
        let nearest = nearest.into_iter().chain(lost).min_by_key(|value| value.low);
        let Some(nearest) = nearest.filter(|value| value.low > goal) else { continue };
        let [asked, least] = names::nearest_goal(name, goal, nearest.low);
        refusal.message.push_str(&match nearest.low == nearest.high {
            true => {
                format!("; the goal for the {what} is {asked}, and the nearest that a plan meets is {least}")
            }
            false => format!(
                "; the goal for the {what} is {asked}, and the nearest plan takes {nearest}, at least {least}"
            ),
        });
        refusal = refusal.with("goal", goal).with("least", nearest.low);
        if nearest.low < nearest.high {
            refusal = refusal.with("likely", nearest.likely);
        }
    }
    refusal
}

/// Returns a problem whose objective is the quantity that a goal limits, with any formats. Returns
/// `None` for bytes, which are not a part of the objective.
fn mixing(problem: &Problem<'_>, relaxed: Relaxed, what: &str) -> Option<(Request, Relaxed, Settings)> {
    let mut request = problem.request.clone();
    let mut settings = Settings { gain: 0, gain_within_goal: 0, ..problem.settings.clone() };
    let mut relaxed = relaxed;
    let first = match what {
        "loss" => {
            request.goals.least_loss = true;
            request.goals.bounds.retain(|bound| !matches!(bound, crate::Goal::QualityMicronats(_)));
            // Without a bound, losses need not be ignored.
            relaxed.quality = false;
            Goal::Loss
        }
        "time of a token" => Goal::Time,
        "time to the first token" => {
            request.goals.answer_tokens = 1;
            Goal::Time
        }
        _ => return None,
    };
    settings.order.insert(0, first);
    Some((request, relaxed, settings))
}

fn sum(plan: &Solution, of: impl Fn(&super::Placement) -> u64) -> Interval {
    Interval::exact(plan.shards.iter().map(of).fold(0, u64::saturating_add))
}

/// Returns the refusal for a layer that cannot be placed even alone.
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
                    let [shown, most] = names::apart(&limit.name, [value, bound.value]);
                    let message = format!(
                        "{what} alone has {} {shown} on `{target}`, the limit is {most} ({})",
                        limit.name,
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
            whys.push(format!("`{target}` in {formats}: {why}"));
        }
    }
    // A few reasons are enough, because there can be many.
    whys.truncate(4);
    let message = format!("no target supports {what}: {}", whys.join("; "));
    Some(
        Refusal::new(RefusalKind::Unsupported, message).with("component", &component.name).with("unit", unit),
    )
}
