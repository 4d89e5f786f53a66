use std::fmt::Write;

use shardwright::{NoticeKind, PlanReport};
use shardwright_build::units;
use shardwright_build::{
    EntryTime, FallbackReport, Goal, GoalReport, IntervalText, LossReport, PlanTotals, ReasonReport,
    ShardReport,
};

use super::forecast::{download, memory, predicted, source, speed, verdict};
use super::{Detail, bytes, ranges, table, wrapped};

/// Columns for the names of a plan's members, which is also the indentation of continued lines.
pub(super) const MEMBER: usize = 10;

/// Shows the plan with its required notices.
pub fn plan(report: &PlanReport, detail: Detail) -> String {
    let mut text = head(report);
    for notice in &report.notices {
        let kind = match notice.kind {
            NoticeKind::Fallback => "fallback",
            _ => "note",
        };
        let _ = writeln!(text, "{}", wrapped(&format!("{kind}: {}", super::printable(&notice.text)), 2));
    }
    text + &body(report, detail) + &towers(report, &|tower| plan(tower, detail))
}

/// Shows the plan without notices, after they were shown.
pub fn plan_without_notices(report: &PlanReport, detail: Detail) -> String {
    head(report) + &body(report, detail) + &towers(report, &|tower| plan_without_notices(tower, detail))
}

/// Shows the plans of the towers of a model, each under its name.
fn towers(report: &PlanReport, show: &dyn Fn(&PlanReport) -> String) -> String {
    let shown = report.towers.iter().map(|tower| format!("\ntower of a {}\n{}", tower.pass(), show(tower)));
    shown.collect()
}

fn head(report: &PlanReport) -> String {
    let mut text = String::new();
    if let Some(executor) = &report.emulated_on {
        let _ = writeln!(text, "*emulated on {executor}*\n");
    }
    let PlanReport { model, family, soc, planner, .. } = report;
    let _ = writeln!(text, "{model} ({family}) for {soc}, planned by {planner}");
    let _ = writeln!(text, "{}", wrapped(&verdict(report), 2));
    match report.refused_plans {
        0 => {}
        1 => text.push_str("1 earlier plan was refused and revised\n"),
        plans => {
            let _ = writeln!(text, "{plans} earlier plans were refused and revised");
        }
    }
    text
}

/// Shows the shards as a table, shared properties and totals in a line each, and reasons, those
/// about limits first.
fn body(report: &PlanReport, detail: Detail) -> String {
    let artefact = format!("artefact\n({})", report.totals.artefacts.provenance);
    let mut shards =
        table(&["shard", "components", "layers", "target", "ops", "weights", artefact.as_str(), "states"]);
    for shard in &report.shards {
        shards.add_row([
            shard.index.to_string(),
            shard.segments.iter().map(|segment| segment.component.name()).collect::<Vec<_>>().join(", "),
            match shard.segments.layers() {
                (_, 0) => "-".to_owned(),
                (first, end) => layers(first, end),
            },
            shard.target.clone(),
            shard.ops.to_string(),
            bytes(shard.weight_bytes),
            bytes(shard.artefact_bytes),
            bytes(shard.state_bytes),
        ]);
    }
    let mut text = format!("\n{shards}\n\n");

    member(&mut text, "formats", &shared(report, by_formats));
    member(
        &mut text,
        "entries",
        &shared(report, |shard| {
            let existing = shard.entries.iter().filter(|entry| entry.ops > 0);
            existing.map(|entry| entry.entry.to_string()).collect::<Vec<_>>().join(" ")
        }),
    );
    member(&mut text, "build", &shared(report, |shard| shard.build.clone()));
    member(
        &mut text,
        "flags",
        &shared(report, |shard| shard.flags.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")),
    );
    // On a screen, lossless tables are only part of the sums.
    let lossy = report.tables.iter().any(|table| table.loss != LossReport::None);
    if lossy || (detail.is_full() && !report.tables.is_empty()) {
        let tables = report.tables.iter().map(|table| {
            let lost = match table.loss {
                LossReport::None => String::new(),
                LossReport::Measured { micronats } => {
                    format!(", {} lost", units::micronats(micronats))
                }
                LossReport::Expected { micronats, .. } => {
                    format!(", about {} lost", units::micronats(micronats))
                }
                LossReport::NotMeasured { .. } => ", loss not measured".to_owned(),
            };
            format!("{} {} ({}, counted{lost})", table.name, table.format, bytes(table.bytes))
        });
        member(&mut text, "tables", &tables.collect::<Vec<_>>().join("; "));
    }
    for shard in &report.shards {
        if let Some(place) = shard.softcap {
            let by = match place.name() {
                "runtime" => "by the runtime, in f32",
                _ => "in the graph",
            };
            member(&mut text, "soft-cap", &format!("{by}, of the logits"));
        }
    }

    text.push('\n');
    totals(&mut text, &report.totals);
    let forecast = &report.forecast;
    for line in memory(&forecast.memory, detail) {
        let _ = writeln!(text, "{}", wrapped(&line, MEMBER));
    }
    if let Some(of) = &forecast.download {
        member(&mut text, "download", &download(of));
    }
    times(&mut text, &report.totals);
    let loading = forecast.loading.as_ref();
    let loading = loading.map_or_else(String::new, |loading| format!("; loading {}", predicted(loading)));
    member(&mut text, "speed", &(speed(&forecast.speed, report.pass()) + &loading));
    if let Some(speculation) = &report.speculation {
        member(&mut text, "proposals", &super::printable(&speculation.to_string()));
    }
    loss(&mut text, report);
    member(&mut text, "goals", &goals(&report.goals, detail));
    if !report.limits.is_empty() {
        let limits = report.limits.iter().map(|entry| {
            let limit = &entry.limit;
            let value = units::quantity(&limit.name, limit.value);
            format!("{} {} ≤ {value} ({})", entry.target, limit.name, limit.provenance)
        });
        member(&mut text, "limits", &limits.collect::<Vec<_>>().join("; "));
    }
    for entry in report.limits.iter().filter(|entry| detail.is_full() && !entry.limit.note.is_empty()) {
        let line = format!("  {} {}: {}", entry.target, entry.limit.name, entry.limit.note);
        let _ = writeln!(text, "{}", wrapped(&line, 4));
    }
    for (name, is_hedge) in [("hedge", true), ("if lost", false)] {
        let chain = |chain: &FallbackReport| match detail {
            Detail::Full => chain.to_string(),
            Detail::Screen => chain.role(),
        };
        let chains = report.fallback.iter().filter(|chain| chain.is_hedge() == is_hedge).map(chain);
        member(&mut text, name, &chains.collect::<Vec<_>>().join(", then "));
    }

    let reasons = reasons(report, detail);
    match detail {
        Detail::Full => text.push_str("\nreasons\n"),
        Detail::Screen => text.push_str("\nreasons (preferences, details, notes of limits: -v)\n"),
    }
    for reason in reasons {
        let _ = writeln!(text, "{}", wrapped(&format!("  {reason}"), 4));
    }
    text
}

/// Formats a half-open range of layers, as in the texts of a plan.
fn layers(first: u32, end: u32) -> String {
    format!("{first}..{end}")
}

/// Writes a line of the plan, unless `what` is empty.
fn member(text: &mut String, name: &str, what: &str) {
    if !what.is_empty() {
        let _ = writeln!(text, "{}", wrapped(&format!("{name:<MEMBER$}{what}"), MEMBER));
    }
}

/// Stands for the formats of components without weights.
const NO_WEIGHTS: &str = "no weights";

/// Names each format tuple of a shard once, with the places that have it. Components without
/// weights come last.
fn by_formats(shard: &ShardReport) -> String {
    let places = shard.formats.split(", ").map(|part| part.rsplit_once(' '));
    let places = places.collect::<Option<Vec<(&str, &str)>>>().filter(|_| shard.weight_bytes > 0);
    let Some(places) = places else { return shard.shown_formats() };
    let mut tuples: Vec<(&str, Vec<&str>)> = Vec::new();
    for (place, tuple) in places {
        let component = place.split('.').next().unwrap_or(place);
        let tuple = if shard.has_weights(component) { tuple } else { NO_WEIGHTS };
        match tuples.iter_mut().find(|(own, _)| *own == tuple) {
            Some((_, own)) => own.push(place),
            None => tuples.push((tuple, vec![place])),
        }
    }
    tuples.sort_by_key(|(tuple, _)| *tuple == NO_WEIGHTS);
    let each = tuples.iter().map(|(tuple, places)| format!("{tuple} ({})", places.join(", ")));
    each.collect::<Vec<_>>().join(", ")
}

/// Returns a value once if all shards have it. Otherwise returns each value with its shards.
fn shared(report: &PlanReport, of: impl Fn(&ShardReport) -> String) -> String {
    let values = report.shards.iter().enumerate().map(|(index, shard)| (index, of(shard)));
    let groups = grouped(values.filter(|(_, value)| !value.is_empty()));
    match groups.as_slice() {
        [(shards, value)] if shards.len() == report.shards.len() => value.clone(),
        groups => {
            let each = groups.iter().map(|(shards, value)| format!("{}: {value}", named(shards)));
            each.collect::<Vec<_>>().join("; ")
        }
    }
}

/// Returns the reasons, a sentence each. Choices with the same ground share a sentence. Choices
/// forced by a limit or a refusal come first. Mere preferences, details and the notes of limits
/// are shown with `-v` only.
fn reasons(report: &PlanReport, detail: Detail) -> Vec<String> {
    let of_all = report.reasons.iter().map(|reason| (None, reason));
    let of_shards = report.shards.iter().enumerate();
    let of_shards =
        of_shards.flat_map(|(index, shard)| shard.reasons.iter().map(move |reason| (Some(index), reason)));
    let mut grounds: Vec<(u8, Vec<u32>, Vec<&str>, String)> = Vec::new();
    for (shard, reason) in of_all.chain(of_shards) {
        let cause = reason.cause.to_string();
        if !detail.is_full() && (rank(&cause) == PREFERRED || is_detail(reason, &cause)) {
            continue;
        }
        let ground = format!("{} ({cause})", because(report, reason, detail));
        let shard: Vec<u32> = shard.map(|shard| shard as u32).into_iter().collect();
        match grounds
            .iter_mut()
            .find(|(_, shards, _, existing)| *existing == ground && shards.is_empty() == shard.is_empty())
        {
            Some((_, shards, choices, _)) => {
                shards.extend(
                    shard.iter().filter(|shard| !shards.contains(shard)).copied().collect::<Vec<_>>(),
                );
                if !choices.contains(&reason.choice.as_str()) {
                    choices.push(&reason.choice);
                }
            }
            None => grounds.push((rank(&cause), shard, vec![&reason.choice], ground)),
        }
    }
    grounds.sort_by_key(|(rank, ..)| *rank);
    grounds
        .into_iter()
        .map(|(_, shards, choices, ground)| {
            let shards = if shards.is_empty() { String::new() } else { format!("{}: ", named(&shards)) };
            // A choice that is a list, such as a mixture of formats, needs another separator.
            let separator = if choices.iter().any(|choice| choice.contains(", ")) { "; " } else { ", " };
            format!("{shards}{}: {ground}", choices.join(separator))
        })
        .collect()
}

/// Returns the order of a cause: limits and refusals, then costs and goals, then mere preferences.
fn rank(cause: &str) -> u8 {
    match cause.split(' ').next() {
        Some("limit" | "feedback") => 0,
        Some("cost" | "goal") => 1,
        _ => PREFERRED,
    }
}

/// Returns whether a reason follows from a default, or is about a choice that changes no shard.
fn is_detail(reason: &ReasonReport, cause: &str) -> bool {
    let by_default = ["goal context", "goal max-prefill-rows", "goal usual-quality"].contains(&cause);
    let apart = reason.choice == "no proposals"
        || reason.choice.starts_with("soft-cap ")
        || reason.choice.contains(" verifies the proposals of ");
    by_default || apart && cause.starts_with("cost ")
}

/// The rank of a choice that was only preferred.
const PREFERRED: u8 = 2;

/// Returns the ground. Without full detail, the note of a limit at its end is left out.
fn because<'r>(report: &PlanReport, reason: &'r ReasonReport, detail: Detail) -> &'r str {
    let noted = |note: &str| reason.because.strip_suffix(note)?.strip_suffix(": ");
    let notes = report.limits.iter().map(|entry| entry.limit.note.as_str()).filter(|note| !note.is_empty());
    match detail {
        Detail::Full => &reason.because,
        Detail::Screen => {
            let because = notes.into_iter().find_map(noted).unwrap_or(&reason.because);
            // The line of times has the calls too.
            because.split_once("; this includes ").map_or(because, |(because, _)| because)
        }
    }
}

/// Shows the totals of all shards with their provenance.
fn totals(text: &mut String, totals: &PlanTotals) {
    member(
        text,
        "in all",
        &format!(
            "{} of weights (counted), {} of artefacts ({}), {} of states (counted)",
            bytes(totals.weight_bytes),
            bytes(totals.artefacts.bytes),
            totals.artefacts.provenance,
            bytes(totals.state_bytes)
        ),
    );
}

/// Returns the provenance of an entry point's time: the share of each provenance if there are
/// several, then the parts that are not computation, from a hundredth of the time on.
pub fn rests_on(entry: &EntryTime) -> String {
    let known = || entry.shares.iter().filter(|share| share.microseconds > 0);
    let sum = known().fold(0_u64, |sum, share| sum.saturating_add(share.microseconds));
    let shares = known().map(|share| match known().count() {
        1 => share.provenance.name().to_owned(),
        _ => format!("{} {}", units::share(share.microseconds, sum), share.provenance),
    });
    let shares = shares.collect::<Vec<_>>().join(", ");
    let origin = if shares.is_empty() { entry.time.provenance.name() } else { shares.as_str() };
    let mut text = source(origin, entry.uncosted_ops);
    let parts = [
        (entry.calls.microseconds.saturating_mul(1000), "calls"),
        (entry.hand_off_nanoseconds, "shard hand-off"),
    ];
    // A hundredth of a microsecond is ten nanoseconds.
    let least = entry.time.microseconds.saturating_mul(10).max(1);
    for (nanoseconds, what) in parts.into_iter().filter(|(nanoseconds, _)| *nanoseconds >= least) {
        text += &format!("; {} of it {what}", units::seconds(nanoseconds as f64 / 1e9));
    }
    text
}

/// Shows the time of one run of each entry point.
fn times(text: &mut String, totals: &PlanTotals) {
    let times = totals.times.iter().map(|part| {
        let time = IntervalText::time(&part.time).with(&rests_on(part));
        format!("{}: {time}", part.entry)
    });
    member(text, "time", &times.collect::<Vec<_>>().join("; "));
}

/// Shows how the plan keeps its goals. The bounds on context and rows, which every plan has, are
/// shown with `-v` only.
pub fn goals(goals: &[GoalReport], detail: Detail) -> String {
    let is_shown =
        |goal: &&GoalReport| detail.is_full() || !matches!(goal.goal, Goal::Context | Goal::PrefillRows);
    let shown = goals.iter().filter(is_shown).map(|goal| {
        let verdict = goal.verdict.map_or("not known", |verdict| verdict.name());
        let of = match goal.goal {
            Goal::Memory => " of artefacts and KV cache",
            Goal::Size => " of artefacts and tables",
            _ => "",
        };
        let prediction = goal.prediction().map_or_else(String::new, |amount| format!(", {amount}{of}"));
        format!("{}: {verdict}{prediction}", goal.bound())
    });
    shown.collect::<Vec<_>>().join("; ")
}

/// Shows the loss of the formats.
fn loss(text: &mut String, report: &PlanReport) {
    let of_totals = report.totals.loss;
    let expected = match of_totals {
        LossReport::None => "none: weights are as stored or floats, values are f32".to_owned(),
        LossReport::Measured { micronats } => {
            format!("{} of KL divergence per token (the sum of measured losses)", units::micronats(micronats))
        }
        LossReport::Expected { micronats, .. } => {
            let ground = match of_totals.measured_percent() {
                Some(percent) => format!("expected, {percent} % of it measured; see `sensitivity`"),
                None => "expected".to_owned(),
            };
            format!("about {} of KL divergence per token ({ground})", units::micronats(micronats))
        }
        LossReport::NotMeasured { places } => {
            format!("not known in {}; `--quality` measures it", units::count(places, "place"))
        }
    };
    let Some(measured) = &report.measured else { return member(text, "loss", &expected) };
    member(text, "loss", &measured.to_string());
    member(text, "", &format!("before measuring: {expected}"));
}

/// Groups equal texts of several shards. Each text has its shards, in the order of the first one.
fn grouped(texts: impl Iterator<Item = (usize, String)>) -> Vec<(Vec<u32>, String)> {
    let mut groups: Vec<(Vec<u32>, String)> = Vec::new();
    for (shard, text) in texts {
        match groups.iter_mut().find(|(_, existing)| *existing == text) {
            Some((shards, _)) => shards.push(shard as u32),
            None => groups.push((vec![shard as u32], text)),
        }
    }
    groups
}

/// Formats numbers of shards: `shard 3`, `shards 0-1, 3`.
fn named(shards: &[u32]) -> String {
    let what = if shards.len() == 1 { "shard" } else { "shards" };
    format!("{what} {}", ranges(shards))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_holds_for_several_shards_is_said_once() {
        let texts =
            [(0, "a"), (0, "b"), (1, "a"), (3, "a"), (3, "c")].map(|(shard, text)| (shard, text.to_owned()));
        let wanted = [("shards 0-1, 3", "a"), ("shard 0", "b"), ("shard 3", "c")];
        let grouped = grouped(texts.into_iter());
        let named: Vec<_> = grouped.iter().map(|(shards, text)| (named(shards), text.as_str())).collect();
        assert!(named.iter().map(|(shards, text)| (shards.as_str(), *text)).eq(wanted));
    }

    #[test]
    fn what_forces_comes_before_what_is_preferred() {
        let mut causes = ["preference flags", "goal context", "limit ops", "cost time", "feedback drift"];
        causes.sort_by_key(|cause| rank(cause));
        assert_eq!(causes, ["limit ops", "feedback drift", "goal context", "cost time", "preference flags"]);
    }
}
