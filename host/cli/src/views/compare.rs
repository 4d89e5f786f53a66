//! Plans for several chips side by side.

use std::fmt::Write;

use shardwright::{Notice, NoticeKind};
use shardwright_build::units;

use super::{Detail, bytes, forecast, plan, printable, table, wrapped};
use crate::commands::{ComparedChip, Comparison};

const HEADER: [&str; 8] = ["chip", "verdict", "speed", "size", "hedge", "loss", "shards", "memory"];

/// Shows a row for each chip, then the errors of the other chips. With `-v`, also the plans.
pub fn compared(report: &Comparison, detail: Detail) -> String {
    let mut rows = table(&HEADER);
    for chip in &report.chips {
        rows.add_row(row(chip));
    }
    for failed in &report.failed {
        let [chip, verdict] = [printable(&failed.soc), "no plan".to_owned()];
        let nothing = std::iter::repeat_n("-".to_owned(), HEADER.len() - 2);
        rows.add_row([chip, verdict].into_iter().chain(nothing));
    }
    let mut text = format!("{rows}\n");
    for failed in &report.failed {
        let line = format!("{}: {}", printable(&failed.soc), printable(&failed.error));
        let _ = writeln!(text, "{}", wrapped(&line, 2));
        let _ = writeln!(text, "{}", wrapped(&format!("  help: {}", printable(&failed.help)), 4));
    }
    text.push_str(&notices(&report.chips));
    for chip in &report.chips {
        let goals = plan::goals(&chip.goals, Detail::Screen);
        if !goals.is_empty() {
            let _ = writeln!(text, "{}", wrapped(&format!("{}: {goals}", chip.soc), 2));
        }
    }
    let plans = report.chips.iter().filter_map(|chip| chip.plan.as_ref());
    for own in plans {
        let _ = write!(text, "\n== {}\n{}", own.soc, super::plan(own, detail));
    }
    if !detail.is_full() {
        let hedge = "hedge: a second chain for a driver that refuses the first, in addition to size";
        let size = basis(&report.chips, |chip| chip.artefact_provenance.name());
        let memory = |chip: &ComparedChip| chip.memory_provenance.map_or("counted", |own| own.name());
        let memory = basis(&report.chips, memory);
        let line = format!(
            "size: artefacts{size} and tables (counted); {hedge}; memory: the largest phase{memory}; full \
             plans: -v"
        );
        let _ = writeln!(text, "{}", wrapped(&line, 2));
    }
    text
}

/// Formats the source of a figure of all chips: ` (modelled)`. If it differs, each source has its
/// chips: ` (modelled for a, b, declared for c)`. Empty without chips.
fn basis(chips: &[ComparedChip], of: impl Fn(&ComparedChip) -> &'static str) -> String {
    let mut sources: Vec<(&str, Vec<&str>)> = Vec::new();
    for chip in chips {
        let source = of(chip);
        match sources.iter_mut().find(|(known, _)| *known == source) {
            Some((_, socs)) => socs.push(&chip.soc),
            None => sources.push((source, vec![chip.soc.as_str()])),
        }
    }
    match sources.as_slice() {
        [] => String::new(),
        [(source, _)] => format!(" ({source})"),
        sources => {
            let each = sources.iter().map(|(source, socs)| format!("{source} for {}", socs.join(", ")));
            format!(" ({})", each.collect::<Vec<_>>().join(", "))
        }
    }
}

fn row(chip: &ComparedChip) -> [String; 8] {
    let unknown = || "not known".to_owned();
    let none = || "-".to_owned();
    let rate = chip.token.as_ref().and_then(forecast::rate);
    [
        chip.soc.clone(),
        forecast::short_verdict(&chip.verdict),
        rate.map_or_else(none, |rate| rate.to_string()),
        bytes(chip.bytes),
        chip.hedge_bytes.map_or_else(none, |more| format!("+{}", bytes(more))),
        chip.loss_micronats.map_or_else(unknown, units::micronats),
        chip.shards.to_string(),
        bytes(chip.verdict.held_bytes),
    ]
}

/// Shows each notice once, with the chips that it applies to. Notes are shown with `-v` only.
fn notices(chips: &[ComparedChip]) -> String {
    let mut said: Vec<(&Notice, Vec<&str>)> = Vec::new();
    for chip in chips {
        for notice in chip.notices.iter().filter(|notice| !notice.kind.is_note()) {
            match said.iter_mut().find(|(known, _)| *known == notice) {
                Some((_, socs)) => socs.push(&chip.soc),
                None => said.push((notice, vec![&chip.soc])),
            }
        }
    }
    let mut text = String::new();
    for (notice, socs) in said {
        let kind = if notice.kind == NoticeKind::Warning { "warning" } else { "fallback" };
        let line = format!("{kind}: {}: {}", socs.join(", "), printable(&notice.text));
        let _ = writeln!(text, "{}", wrapped(&line, 2));
    }
    text
}
