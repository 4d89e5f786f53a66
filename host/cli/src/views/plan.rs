use std::fmt::Write;

use shardwright::{NoticeKind, PlanReport, ReasonReport};

use super::{bytes, table};

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
        let _ = writeln!(text, "{kind}: {}", notice.text);
    }

    let mut shards = table(&["shard", "component", "layers", "target", "ops", "weights", "states", "formats", "entries", "build"]);
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
            bytes(shard.state_bytes),
            shard.formats.clone(),
            entries.join(" "),
            shard.build.clone(),
        ]);
    }
    let _ = writeln!(text, "\n{shards}");

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

    let mut flags = table(&["shard", "flag", "value"]);
    for shard in &report.shards {
        for flag in &shard.flags {
            flags.add_row([shard.index.to_string(), flag.name.clone(), flag.value.clone()]);
        }
    }
    if !flags.is_empty() {
        let _ = writeln!(text, "\n{flags}");
    }

    let mut reasons = String::new();
    let mut reason = |place: &str, reason: &ReasonReport| {
        let _ = writeln!(reasons, "  {place}{}: {} ({})", reason.choice, reason.because, reason.cause);
    };
    report.reasons.iter().for_each(|entry| reason("", entry));
    for shard in &report.shards {
        shard.reasons.iter().for_each(|entry| reason(&format!("shard {}: ", shard.index), entry));
    }
    if !reasons.is_empty() {
        let _ = write!(text, "\nreasons\n{reasons}");
    }
    if !report.fallback.is_empty() {
        let _ = writeln!(text, "\nif a target is lost: {}", report.fallback.join(", then "));
    }
    text
}
