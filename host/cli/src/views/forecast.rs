//! Shows the demands of a plan on a device in words: the verdict, memory, download, speed.

use shardwright::{Pass, PlanReport};
use shardwright_build::units;
use shardwright_build::{
    Download, DownloadBasis, Figure, Fits, ForecastVerdict, IntervalText, Phase, PhaseMemory, Predicted,
    Speed,
};

use super::plan::MEMBER;
use super::{Detail, bytes};

/// Reports in a few words whether the plan fits and is fast enough: `fits in part, too slow`.
pub fn short_verdict(verdict: &ForecastVerdict) -> String {
    let fits = match verdict.fits {
        Fits::Whole => "fits",
        Fits::InPart => "fits in part",
        Fits::No => "does not fit",
        Fits::Unknown if verdict.elsewhere.is_empty() => "memory unknown",
        Fits::Unknown => "in part, memory unknown",
    };
    if verdict.too_slow { format!("{fits}, too slow") } else { fits.to_owned() }
}

/// Reports in one sentence whether the plan fits, and on what basis.
pub fn verdict(report: &PlanReport) -> String {
    let (soc, verdict) = (&report.soc, &report.forecast.verdict);
    let held = verdict.held_bytes;
    let compared = |most: u64| units::against_goal("memory", held, most);
    let device = verdict.device_bytes.map(|most| units::apart("memory", [held, most]));
    let (needed, asked) = match (verdict.asked_bytes.map(compared), &device) {
        (Some([needed, asked]), _) => (needed, Some(asked)),
        (None, Some([needed, _])) => (needed.clone(), None),
        (None, None) => (bytes(held), None),
    };
    // The goal is for artefacts and KV cache, and `held` also has buffers and logits.
    let (within, beyond) = match verdict.asked_bytes {
        Some(most) if held > most => (None, asked),
        _ => (asked, None),
    };
    let within = within.map_or_else(String::new, |asked| format!(" in {asked}"));
    let mut line = match verdict.fits {
        Fits::Whole => format!("fits {soc}{within}"),
        Fits::InPart => format!("fits {soc}{within} in part"),
        Fits::No => format!("does not fit {soc}"),
        Fits::Unknown => soc.clone(),
    };
    if verdict.too_slow {
        line += ", too slow";
    }
    line += ": ";
    if !verdict.elsewhere.is_empty() {
        line += &(elsewhere(&verdict.elsewhere) + "; ");
    }
    let phase = verdict.largest.map_or("it", Phase::name);
    line += &format!("{phase} needs {needed} of memory ({})", memory_source(report));
    if let Some([_, device]) = device {
        line += &format!(", of {device} that an app can use");
    }
    if verdict.mapped_bytes > 0 {
        line += &format!(", and tables of {} (counted) are mapped", bytes(verdict.mapped_bytes));
    }
    let all = held.saturating_add(verdict.mapped_bytes);
    let exceeded = |most: Option<u64>| verdict.fits != Fits::No && most.is_some_and(|most| all > most);
    if beyond.is_none() && exceeded(verdict.asked_bytes) {
        line += ": more than the goal if they stay in memory";
    } else if exceeded(verdict.device_bytes) {
        line += ": more than that if they stay in memory";
    }
    if let Some(asked) = beyond {
        line += &format!("; the goal of {asked} is for artefacts and KV cache alone");
    }
    if verdict.device_bytes.is_none() {
        line += "; memory unknown for this chip, `--device-memory` sets it";
    }
    line
}

/// Returns the weakest source of the memory of the phase that needs most.
pub fn memory_source(report: &PlanReport) -> &'static str {
    let largest = report.forecast.largest().and_then(|memory| memory.provenance);
    largest.map_or("counted", |provenance| provenance.name())
}

/// Names the shards on other targets, grouped by target: `embed, head run on cpu`.
fn elsewhere(shards: &[(String, String)]) -> String {
    let mut targets: Vec<(&str, Vec<&str>)> = Vec::new();
    for (shard, target) in shards {
        match targets.iter_mut().find(|(known, _)| known == target) {
            Some((_, own)) => own.push(shard.as_str()),
            None => targets.push((target.as_str(), vec![shard.as_str()])),
        }
    }
    let each = targets.iter().map(|(target, own)| {
        let verb = if own.len() == 1 { "runs" } else { "run" };
        format!("{} {verb} on {target}", own.join(", "))
    });
    each.collect::<Vec<_>>().join(", ")
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
    let on_top = if unknown.is_empty() { "" } else { "; driver and compiler: unknown" };
    let mapped = if detail.is_full() { "; mapped pages stay resident only as memory allows" } else { "" };
    let sums = phases.iter().map(sum).collect::<Vec<_>>().join(", ");
    let mut lines = vec![format!("{:<MEMBER$}{sums}{mapped}{on_top}", "memory")];
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

/// Shows a predicted time with its interval and its provenance.
pub fn predicted(time: &Predicted) -> String {
    IntervalText::time(&time.time()).with(&source(time.provenance.name(), time.uncosted_ops))
}

/// Shows the source of a time, and the number of operations whose time was estimated.
pub fn source(source: &str, uncosted_ops: u64) -> String {
    match uncosted_ops {
        0 => source.to_owned(),
        operations => format!("{source}, {} estimated by share", units::count(operations, "operation")),
    }
}

/// Shows predicted times of a plan for a pass.
pub fn speed(speed: &Speed, pass: Pass) -> String {
    match speed {
        Speed::Tokens { prompt_tokens, first, each, .. } => {
            let first = first.as_ref().map_or_else(String::new, |first| {
                format!("first token {} after a prompt of {prompt_tokens}; ", predicted(first))
            });
            let rate = rate(each).map_or_else(String::new, |rate| format!(", {rate}"));
            format!("{first}each further token {}{rate}", predicted(each))
        }
        Speed::Vector { tokens, each } => {
            let what = match pass {
                Pass::Step => format!("a text of up to {tokens} tokens"),
                Pass::Picture => format!("a picture of up to {tokens} patches"),
                Pass::Clip => format!("a clip of up to {tokens} soft tokens"),
            };
            format!("{what} {}", predicted(each))
        }
    }
}

/// Shows the rate of tokens that need this time each, unless it is zero.
pub fn rate(each: &Predicted) -> Option<IntervalText> {
    IntervalText::rate(&each.time())
}
