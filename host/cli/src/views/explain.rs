use std::fmt::Write;

use shardwright_doctor::ExplainReport;

use super::{table, wrapped};

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
            candidate.tier.meaning().to_owned(),
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
            String::new(),
            passed.standing.device.clone(),
            format!("{}: {}", passed.shard, super::printable(why)),
        ]);
    }
    let _ = writeln!(text, "{rows}");
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
