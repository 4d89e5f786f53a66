//! Shows the demands of a plan on a device in words: the verdict, memory, download, speed.

use shardwright::{Pass, PlanReport};
use shardwright_build::units;
use shardwright_build::{Download, DownloadBasis, Figure, Fits, Phase, PhaseMemory, Predicted, Speed};

use super::plan::MEMBER;
use super::{Detail, bytes};

/// Reports in one sentence whether the plan fits, and on what basis.
pub fn verdict(report: &PlanReport) -> String {
    let (soc, verdict) = (&report.soc, &report.forecast.verdict);
    let asked = |asked: Option<u64>| asked.map_or_else(String::new, |most| format!(" in {}", bytes(most)));
    let mut line = match verdict.fits {
        Fits::Whole => format!("fits {soc}{}: ", asked(verdict.asked_bytes)),
        Fits::InPart => format!("fits {soc}{} in part: ", asked(verdict.asked_bytes)),
        Fits::No => format!("does not fit {soc}{}: ", asked(verdict.asked_bytes)),
    };
    if !verdict.elsewhere.is_empty() {
        let each = verdict.elsewhere.iter().map(|(shard, target)| format!("{shard} runs on {target}"));
        line += &(each.collect::<Vec<_>>().join(", ") + "; ");
    }
    let phase = verdict.largest.map_or("it", Phase::name);
    line += &format!("{phase} needs {}", bytes(verdict.held_bytes));
    if verdict.mapped_bytes > 0 {
        line += &format!(", and tables of {} are mapped", bytes(verdict.mapped_bytes));
    }
    if verdict.asked_bytes.is_some_and(|asked| {
        verdict.fits != Fits::No && verdict.held_bytes.saturating_add(verdict.mapped_bytes) > asked
    }) {
        line += ": more than the goal if they stay in memory";
    }
    if !verdict.memory_limit_known {
        line += "; no limit on its memory is known";
    }
    line
}

/// Shows the memory of each phase in a line, or with `-v` in a line for each part.
pub fn memory(phases: &[PhaseMemory], detail: Detail) -> Vec<String> {
    let sum = |phase: &PhaseMemory| {
        let mut text = match (phase.held_bytes, phase.provenance) {
            (0, _) => String::new(),
            (held, None) => format!("{} (counted)", bytes(held)),
            (held, Some(provenance)) => format!("{} ({provenance})", bytes(held)),
        };
        if phase.mapped_bytes > 0 {
            let joined = if text.is_empty() { "" } else { " + " };
            text += &format!("{joined}{} mapped", bytes(phase.mapped_bytes));
        }
        format!("{} {text}", phase.phase.name())
    };
    let unknown: Vec<&str> = phases.iter().flat_map(PhaseMemory::unknown).collect();
    let on_top = if unknown.is_empty() { "" } else { "; driver and compiler memory is not known" };
    let sums = phases.iter().map(sum).collect::<Vec<_>>().join(", ");
    let mut lines = vec![format!(
        "{:<MEMBER$}{sums}; mapped pages stay resident only as memory allows{on_top}",
        "memory"
    )];
    for phase in phases.iter().filter(|_| detail.is_full()) {
        let part = |figure| match figure {
            Figure::Counted { bytes: count } => format!("{} (counted)", bytes(count)),
            Figure::Estimated { bytes: count, provenance } => format!("{} ({provenance})", bytes(count)),
            Figure::Mapped { bytes: count } => format!("{} at most (mapped)", bytes(count)),
            Figure::Unknown => "not known".to_owned(),
        };
        let parts = phase.parts.iter().map(|of| format!("{} {}", of.name, part(of.figure)));
        let parts = parts.collect::<Vec<_>>().join("; ");
        lines.push(format!("{:<MEMBER$}{}: {parts}", "", phase.phase.name()));
    }
    lines
}

/// Shows the size of the download.
pub fn download(download: &Download) -> String {
    let size = bytes(download.bytes);
    match download.rests_on {
        DownloadBasis::Headers => format!("{size} of weight files (counted in their headers)"),
        DownloadBasis::Index => format!("{size} of weights (from their index)"),
        DownloadBasis::Configuration => {
            format!("at least {size} of weights (implied by config.json; files may contain more)")
        }
    }
}

/// Shows a predicted time and its provenance.
pub fn predicted(time: &Predicted) -> String {
    let left_out = match time.uncosted_ops {
        0 => String::new(),
        operations => format!(", without {}", units::count(operations, "operation")),
    };
    format!("{} ({}{left_out})", units::microseconds(time.microseconds), time.provenance)
}

/// Shows predicted times of a plan for a pass.
pub fn speed(speed: &Speed, pass: Pass) -> String {
    let time = |time: &Option<Predicted>| time.as_ref().map_or_else(|| "not known".to_owned(), predicted);
    match speed {
        Speed::Tokens { prompt_tokens, first, each, per_1000_seconds } => {
            let rate = per_1000_seconds.map_or_else(String::new, |rate| {
                format!(", {}", units::tokens_per_second(rate as f64 / 1000.0))
            });
            let (first, each) = (time(first), time(each));
            format!("first token {first} after a prompt of {prompt_tokens}; each further token {each}{rate}")
        }
        Speed::Vector { tokens, each } => {
            let what = match pass {
                Pass::Step => format!("a text of up to {tokens} tokens"),
                Pass::Picture => format!("a picture of up to {tokens} patches"),
                Pass::Clip => format!("a clip of up to {tokens} soft tokens"),
            };
            format!("{what} {}", time(each))
        }
    }
}
