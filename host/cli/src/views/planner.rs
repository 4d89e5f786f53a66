//! Shows planners: their own descriptions, the rules that they follow, and their plans.

use std::fmt::Write;

use shardwright_doctor::{AskedShardReport, CheckReport, PlannerChoice, PlannerReport, ReplayReport};
use shardwright_planning::conformance::{MostUsed, RuleVerdict};

use super::table;

/// Shows a planner's own description, and what was done with it.
pub fn planner(report: &PlannerReport) -> String {
    let mut text = format!("{} {}: {}\n", report.name, report.version, report.summary);
    for option in &report.options {
        let _ = writeln!(text, "  --planner-option {}={}  {}", option.name, option.values, option.summary);
    }
    for notice in &report.notices {
        let _ = writeln!(text, "note: {notice}");
    }
    if let Some(outcome) = &report.outcome {
        let _ = writeln!(text, "{outcome}");
    }
    text
}

/// Shows a planner and which rules it follows.
pub fn checked(report: &CheckReport) -> String {
    let mut text = planner(&report.planner);
    let conformance = &report.conformance;
    let mut rules = table(&["", "rule", "verdict", "observed"]);
    for rule in &conformance.rules {
        rules.add_row([rule.id, rule.rule, rule.verdict.name(), &rule.seen]);
    }
    let _ = writeln!(text, "{rules}");
    for (what, most) in [("fuel", &conformance.fuel), ("memory", &conformance.memory)] {
        if let Some(MostUsed { used, limit, request }) = most {
            let _ = writeln!(text, "{what:<10}at most {used} of {limit}, for request `{request}`");
        }
    }
    let counts = [RuleVerdict::Held, RuleVerdict::Broken, RuleVerdict::NotApplicable]
        .map(|verdict| format!("{} {}", conformance.count(verdict), verdict.name()));
    let _ = writeln!(text, "{} rules: {}", conformance.rules.len(), counts.join(", "));
    text
}

/// Shows a plan, and the resources that planning needed.
pub fn replayed(report: &ReplayReport) -> String {
    let why = match report.chosen {
        PlannerChoice::Named => "named by `--planner`",
        PlannerChoice::Recorded => "recorded in the request",
        PlannerChoice::Default => "built-in, as the request records no planner",
    };
    let mut text = format!("{} {}, {why}\n", report.name, report.version);
    for line in &report.log {
        let _ = writeln!(text, "log: {}: {}", line.level, line.message);
    }
    let ReplayReport { request, model, fuel, fuel_limit, memory, memory_limit, .. } = report;
    let targets = report.targets.join(", ");
    let _ = writeln!(text, "request   {request}: {model} on {targets}");
    let took = shardwright_build::units::seconds(report.seconds);
    let _ = writeln!(text, "used      {fuel} of {fuel_limit} units of fuel, {took}");
    let _ = writeln!(text, "          {memory} of {memory_limit} bytes of memory");
    for (index, AskedShardReport { shard, target, formats }) in report.shards.iter().enumerate() {
        let begin = if index == 0 { "plan" } else { "" };
        let _ = writeln!(text, "{begin:<10}{shard} on {target}, {formats}");
    }
    for (index, reason) in report.plan.reasons.iter().enumerate() {
        let begin = if index == 0 { "reasons" } else { "" };
        let _ = writeln!(text, "{begin:<10}{}: {} ({})", reason.choice, reason.because, reason.cause);
    }
    text
}
