use std::fmt::Write;

use shardwright::Pass;
use shardwright_build::units;
use shardwright_doctor::{ExplainReport, ExplainedChain};

use super::{forecast, table, wrapped};

/// Shows the chains that run, the best first, and the chains that do not.
pub fn explained(report: &ExplainReport) -> String {
    let on = match (&report.machine, &report.chip) {
        (Some(machine), _) if machine.chips.is_empty() => {
            format!("the described machine, {}", machine.system)
        }
        (Some(machine), _) => {
            format!("the described machine, {}, {}", machine.system, machine.chips.join(", "))
        }
        (None, Some(chip)) => format!("a machine with {chip}"),
        (None, None) => "this machine".to_owned(),
    };
    let mut text = format!(
        "bundle {}: {}, variants for {}; on {on}:\n",
        report.path,
        report.model,
        report.variants.join(", ")
    );
    let planned = report.variants.iter().zip(&report.planners);
    let planned = planned.map(|(variant, planner)| format!("{variant} by {planner}"));
    let _ = writeln!(text, "planned: {}", super::printable(&planned.collect::<Vec<_>>().join(", ")));
    let mut rows = table(&["", "variant", "chain", "as", "devices", "why"]);
    let mut place = 0;
    for candidate in &report.selection.candidates {
        let mut devices: Vec<&str> = Vec::new();
        for shard in &candidate.shards {
            if !devices.contains(&shard.device.as_str()) {
                devices.push(&shard.device);
            }
        }
        let skipped = report.skips(candidate);
        place += usize::from(skipped.is_none());
        rows.add_row([
            match (skipped, place) {
                (Some(_), _) => "skipped".to_owned(),
                (None, 1) => "runs".to_owned(),
                (None, place) => format!("{place}."),
            },
            candidate.soc.clone(),
            candidate.name.clone(),
            candidate.tier.meaning().to_owned() + hedge(report, &candidate.soc, &candidate.name, ", hedge"),
            devices.join(", "),
            super::printable(skipped.or(candidate.reason()).unwrap_or_default()),
        ]);
    }
    for passed in &report.selection.passed {
        let why = passed.standing.reason.as_deref().unwrap_or_default();
        rows.add_row([
            "no".to_owned(),
            passed.soc.clone(),
            passed.name.clone(),
            hedge(report, &passed.soc, &passed.name, "hedge").to_owned(),
            passed.standing.device.clone(),
            format!("{}: {}", passed.shard, super::printable(why)),
        ]);
    }
    let _ = writeln!(text, "{rows}");
    text.push_str(&predicted(report));
    let _ = writeln!(text, "not checked: {}", report.unchecked.join(", and "));
    let mut helps: Vec<&str> = Vec::new();
    for help in report.selection.passed.iter().filter_map(|passed| passed.standing.help.as_deref()) {
        if !helps.contains(&help) {
            helps.push(help);
            let _ = writeln!(text, "{}", wrapped(&format!("help: {}", super::printable(help)), 2));
        }
    }
    text
}

/// Returns `words` for a hedge, and an empty text for any other chain.
fn hedge<'w>(report: &ExplainReport, soc: &str, name: &str, words: &'w str) -> &'w str {
    report.chain(soc, name).filter(|chain| !chain.within.is_empty()).map_or("", |_| words)
}

/// Shows the predicted times of the chains that run, the best first.
fn predicted(report: &ExplainReport) -> String {
    let candidates = report.selection.candidates.iter();
    let chains = candidates.filter_map(|own| report.chain(&own.soc, &own.name));
    let lines: Vec<String> = chains.map(|chain| wrapped(&times(chain), 4)).collect();
    match lines.as_slice() {
        [] => String::new(),
        lines => format!("predicted times on the planned targets\n{}\n", lines.join("\n")),
    }
}

/// Shows a chain with its predicted times.
fn times(chain: &ExplainedChain) -> String {
    let limit = |(name, value): &(String, u64)| format!("{name} ≤ {}", units::quantity(name, *value));
    let limits: Vec<String> = chain.within.iter().map(limit).collect();
    let limits = super::printable(&limits.join(", "));
    let role = if limits.is_empty() { String::new() } else { format!(", hedge within {limits}") };
    let speed = match &chain.speed {
        Some(speed) => forecast::speed(speed, Pass::Step),
        None => "not recorded in the bundle".to_owned(),
    };
    format!("  {} {}{role}: {speed}", chain.soc, chain.chain)
}
