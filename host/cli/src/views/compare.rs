//! Plans for several chips side by side.

use std::fmt::Write;

use shardwright::{Notice, NoticeKind};
use shardwright_build::{Fits, units};

use super::{Detail, bytes, printable, table, wrapped};
use crate::commands::{ComparedChip, Comparison};

/// Shows a row for each chip, then the errors of the other chips. With `-v`, also the plans.
pub fn compared(report: &Comparison, detail: Detail) -> String {
    let mut rows = table(&["chip", "verdict", "speed", "size", "loss", "shards", "memory"]);
    for chip in &report.chips {
        rows.add_row(row(chip));
    }
    for failed in &report.failed {
        let nothing = || "-".to_owned();
        rows.add_row([
            printable(&failed.soc),
            "no plan".to_owned(),
            nothing(),
            nothing(),
            nothing(),
            nothing(),
            nothing(),
        ]);
    }
    let mut text = format!("{rows}\n");
    for failed in &report.failed {
        let line = format!("{}: {}", printable(&failed.soc), printable(&failed.error));
        let _ = writeln!(text, "{}", wrapped(&line, 2));
        if let Some(help) = &failed.help {
            let _ = writeln!(text, "{}", wrapped(&format!("  help: {}", printable(help)), 4));
        }
    }
    text.push_str(&notices(&report.chips));
    let plans = report.chips.iter().filter_map(|chip| chip.plan.as_ref());
    for plan in plans {
        let _ = write!(text, "\n== {}\n{}", plan.soc, super::plan(plan, detail));
    }
    if !detail.is_full() {
        text.push_str("size: artefacts and tables; memory: the largest phase; full plans: -v\n");
    }
    text
}

fn row(chip: &ComparedChip) -> [String; 7] {
    let unknown = || "not known".to_owned();
    let fits = match chip.fits {
        Fits::Whole => "fits",
        Fits::InPart => "fits in part",
        Fits::No => "does not fit",
    };
    let rate = chip.tokens_per_1000_seconds.map(|rate| units::tokens_per_second(rate as f64 / 1000.0));
    [
        chip.soc.clone(),
        fits.to_owned(),
        rate.unwrap_or_else(unknown),
        bytes(chip.bytes),
        chip.loss_micronats.map_or_else(unknown, units::micronats),
        chip.shards.to_string(),
        bytes(chip.held_bytes),
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
