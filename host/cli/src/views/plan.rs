use std::fmt::Write;

use shardwright::{LossReport, NoticeKind, PlanReport, PlanTotals, ReasonReport};

use super::{bytes, ranges, table};

/// The plan as a table with its limits and reasons.
pub fn plan(report: &PlanReport) -> String {
    let mut text = String::new();
    if let Some(executor) = &report.emulated_on {
        let _ = writeln!(text, "*emulated on {executor}*\n");
    }
    let planner = &report.planner;
    let built_in = if planner.built_in { ", built-in" } else { "" };
    let _ = writeln!(
        text,
        "{} ({}) for {}, planned by {} {}{built_in}",
        report.model, report.family, report.soc, planner.name, planner.version
    );
    if report.refused_plans > 0 {
        let _ = writeln!(text, "{} earlier plans were refused and revised", report.refused_plans);
    }
    for notice in &report.notices {
        let kind = match notice.kind {
            NoticeKind::Fallback => "fallback",
            _ => "note",
        };
        let _ = writeln!(text, "{kind}: {}", super::printable(&notice.text));
    }

    let mut shards = table(&[
        "shard",
        "component",
        "layers",
        "target",
        "ops",
        "weights",
        "artefact",
        "states",
        "formats",
        "entries",
        "build",
    ]);
    for shard in &report.shards {
        let entries: Vec<String> =
            shard.entries.iter().filter(|entry| entry.ops > 0).map(|entry| entry.entry.to_string()).collect();
        shards.add_row([
            shard.index.to_string(),
            shard.component.clone(),
            shard.layers.map_or_else(|| "-".to_owned(), |(first, end)| format!("[{first}, {end})")),
            shard.target.clone(),
            shard.ops.to_string(),
            bytes(shard.weight_bytes),
            bytes(shard.artefact_bytes),
            bytes(shard.state_bytes),
            shard.formats.clone(),
            entries.join(" "),
            shard.build.clone(),
        ]);
    }
    let _ = writeln!(text, "\n{shards}");
    let _ = write!(text, "\n{}", totals(&report.totals));

    if !report.limits.is_empty() {
        let mut limits = table(&["target", "limit", "value", "provenance", "note"]);
        for entry in &report.limits {
            limits.add_row([
                entry.target.clone(),
                entry.limit.name.clone(),
                entry.limit.value.to_string(),
                entry.limit.provenance.to_string(),
                entry.limit.note.clone(),
            ]);
        }
        let _ = writeln!(text, "\n{limits}");
    }

    for shard in report.shards.iter() {
        if let Some(place) = shard.softcap {
            let by = match place.name() {
                "runtime" => "by the runtime, in f32",
                _ => "in the graph",
            };
            let _ = writeln!(text, "\nsoft-cap of what the {} gives: {by}", shard.component);
        }
    }

    let flags = grouped(
        report
            .shards
            .iter()
            .enumerate()
            .flat_map(|(index, shard)| shard.flags.iter().map(move |flag| (index, flag.to_string()))),
    );
    if !flags.is_empty() {
        let _ = writeln!(text, "\nflags");
        for (shards, flag) in &flags {
            let _ = writeln!(text, "  {shards}: {flag}");
        }
    }

    let sentence =
        |reason: &ReasonReport| format!("{}: {} ({})", reason.choice, reason.because, reason.cause);
    let reasons = grouped(
        report
            .shards
            .iter()
            .enumerate()
            .flat_map(|(index, shard)| shard.reasons.iter().map(move |reason| (index, sentence(reason)))),
    );
    if !report.reasons.is_empty() || !reasons.is_empty() {
        let _ = writeln!(text, "\nreasons");
        for reason in &report.reasons {
            let _ = writeln!(text, "  {}", sentence(reason));
        }
        for (shards, reason) in &reasons {
            let _ = writeln!(text, "  {shards}: {reason}");
        }
    }
    if !report.fallback.is_empty() {
        let _ = writeln!(text, "\nif a target is lost: {}", report.fallback.join(", then "));
    }
    text
}

/// What the shards come to together, a line each, with what it rests on.
fn totals(totals: &PlanTotals) -> String {
    let mut text = String::from("in all\n");
    let mut line = |what: &str, how_much: String| {
        let _ = writeln!(text, "  {what}: {how_much}");
    };
    line("weights", format!("{} (counted)", bytes(totals.weight_bytes)));
    line("artefacts", format!("{} ({})", bytes(totals.artefacts.bytes), totals.artefacts.provenance));
    line("states", format!("{} (counted)", bytes(totals.state_bytes)));
    line(
        "peak memory",
        format!(
            "{} ({}): artefacts and states, without tables and what a driver takes",
            bytes(totals.peak.bytes),
            totals.peak.provenance
        ),
    );
    for entry in &totals.times {
        let time = match (&entry.time, entry.uncosted_ops) {
            (None, _) => "not known".to_owned(),
            (Some(time), 0) => format!("{} µs ({})", time.microseconds, time.provenance),
            (Some(time), uncosted) => {
                format!("{} µs ({}), without {uncosted} operations", time.microseconds, time.provenance)
            }
        };
        line(&format!("time of {}", entry.entry), time);
    }
    line(
        "handing over",
        format!("{:.1} µs a step (modelled), not in the times", totals.boundary_nanoseconds as f64 / 1000.0),
    );
    line(
        "loss",
        match totals.loss {
            LossReport::None => "none: every weight is a float".to_owned(),
            LossReport::Measured { per_million } => {
                format!("{:.2} ‰ of the likelihood (measured, of weights alone)", per_million as f64 / 1000.0)
            }
            LossReport::NotMeasured { places } => {
                format!("not measured, in {places} places with integer weights; `--quality` measures it")
            }
        },
    );
    text
}

/// Equal sentences of several shards once, with the shards they hold for, in the order of the first of them.
fn grouped(sentences: impl Iterator<Item = (usize, String)>) -> Vec<(String, String)> {
    let mut groups: Vec<(Vec<u32>, String)> = Vec::new();
    for (shard, sentence) in sentences {
        match groups.iter_mut().find(|(_, held)| *held == sentence) {
            Some((shards, _)) => shards.push(shard as u32),
            None => groups.push((vec![shard as u32], sentence)),
        }
    }
    let named = |(shards, sentence): (Vec<u32>, String)| {
        let what = if shards.len() == 1 { "shard" } else { "shards" };
        (format!("{what} {}", ranges(&shards)), sentence)
    };
    groups.into_iter().map(named).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_holds_for_several_shards_is_said_once() {
        let sentences =
            [(0, "a"), (0, "b"), (1, "a"), (3, "a"), (3, "c")].map(|(shard, text)| (shard, text.to_owned()));
        let wanted = [("shards 0-1, 3", "a"), ("shard 0", "b"), ("shard 3", "c")];
        let grouped = super::grouped(sentences.into_iter());
        assert!(grouped.iter().map(|(shards, text)| (shards.as_str(), text.as_str())).eq(wanted));
    }
}
