use std::fmt::Write;

use shardwright_build::units;

use super::{bytes, table};
use crate::commands::{BenchReport, DraftsReport, Logits, MeasuredReport};

/// Shows speeds like `llama-bench`, then their parts.
pub fn bench(report: &BenchReport) -> String {
    let mut text = String::new();
    if let Some(executor) = &report.emulated_on {
        let _ = writeln!(text, "*emulated on {executor}*\n");
    }
    let soc = report.soc.as_ref().map_or(String::new(), |soc| format!(" for {soc}"));
    let formats = match report.formats.as_slice() {
        [] => String::new(),
        formats => format!(", {}", formats.join(", ")),
    };
    let _ = writeln!(
        text,
        "{}{soc}{formats}, {} threads, context {}, plan {}",
        report.model,
        report.threads,
        report.context,
        short(&report.plan_id)
    );

    let mut speeds =
        table(&["test", "logits", "repetitions", "tok/s", "median", "best", "worst", "median step"]);
    for work in &report.results {
        let existing = &work.tokens_per_second;
        speeds.add_row([
            work.test.clone(),
            match work.logits {
                Logits::All => "all".to_owned(),
                Logits::Largest => "the largest".to_owned(),
            },
            existing.samples.len().to_string(),
            format!("{} ± {}", rate(existing.mean), rate(existing.deviation)),
            rate(existing.median),
            rate(existing.best),
            rate(existing.worst),
            work.steps.map_or_else(|| "-".to_owned(), |steps| rate(steps.median)),
        ]);
    }
    let _ = writeln!(text, "\n{speeds}");

    let mut phases = table(&["test", "shard", "runs", "time", "share"]);
    for work in &report.results {
        let all: f64 = work.seconds.iter().sum();
        let mut row = |shard: &str, runs: String, seconds: f64| {
            let share = format!("{:.1} %", 100.0 * seconds / all.max(1e-9));
            phases.add_row([work.test.clone(), shard.to_owned(), runs, units::seconds(seconds), share]);
        };
        for shard in &work.shards {
            row(&shard.shard, shard.runs.to_string(), shard.seconds);
        }
        row("between shards", "-".to_owned(), work.outside_seconds);
    }
    let _ = writeln!(text, "\n{phases}");

    if let Some(drafts) = &report.drafts {
        let _ = writeln!(text, "\n{}", with_drafts(drafts));
    }

    for MeasuredReport { place, flags } in &report.measured {
        let shown = flags.iter().map(|measured| match measured.kept {
            true => format!("{}, measured before", measured.flag),
            false => format!("{}, measured now", measured.flag),
        });
        let shown = shown.collect::<Vec<_>>().join("; ");
        let _ = writeln!(text, "\nfastest on {place}: {shown}");
    }
    let opening = &report.opening;
    let _ = writeln!(
        text,
        "\nopened in {}: reading {}, planning {}, quantising {}, compiling {}, loading {}",
        units::seconds(opening.total_seconds),
        units::seconds(opening.reading_seconds),
        units::seconds(opening.planning_seconds),
        units::seconds(opening.quantising_seconds),
        units::seconds(opening.compiling_seconds),
        units::seconds(opening.loading_seconds)
    );
    let first = &report.first_token;
    let _ = writeln!(
        text,
        "first token after {} prompt ids: {} from the start of the program, {} of them in the step",
        first.tokens,
        units::seconds(first.since_start_seconds),
        units::seconds(first.run_seconds)
    );
    if let Some(ready) = first.tokenizer_since_start_seconds {
        let _ = writeln!(text, "tokenizer ready: {} from the start of the program", units::seconds(ready));
    }
    let memory = &report.memory;
    let known = |size: Option<u64>| size.map_or_else(|| "unknown".to_owned(), bytes);
    let _ = writeln!(
        text,
        "memory: weights {}, tables {}, states {}, resident {}, at most {}",
        known(memory.weight_bytes),
        bytes(memory.table_bytes),
        bytes(memory.state_bytes),
        known(memory.resident_bytes),
        known(memory.peak_resident_bytes)
    );
    if let (Some(resident), Some(huge)) = (memory.artefact_resident_bytes, memory.huge_bytes)
        && let Some(pages) = pages(resident, huge)
    {
        let _ = writeln!(text, "{pages}");
    }
    if let Some(nodes) = memory.node_bytes.as_deref().and_then(nodes) {
        let _ = writeln!(text, "{nodes}");
    }
    if !report.probes.is_empty() {
        let probes: Vec<String> = report.probes.iter().map(|probe| format!("{:.1}", probe.median)).collect();
        let _ = writeln!(text, "memory read by two threads, GB/s: {}", probes.join(" "));
    }
    text
}

/// Formats `a reply of 128 tokens to a prompt of 12 with lookup: 2.10x (1.90 to 2.31), 412.0 tok/s
/// instead of 196.2; …`.
fn with_drafts(report: &DraftsReport) -> String {
    let DraftsReport { ratios, with, without, .. } = report;
    format!(
        "a reply of {} tokens to a prompt of {} with {}: {:.2}x ({:.2} to {:.2}), {} tok/s instead of {}; {} \
         steps, {} of {} drafted tokens accepted, drafts use {}",
        report.generated_tokens,
        report.prompt_tokens,
        report.drafts.join(" and "),
        ratios.median,
        ratios.worst,
        ratios.best,
        rate(with.median),
        rate(without.median),
        report.steps,
        report.accepted,
        report.drafted,
        bytes(report.memory_bytes)
    )
}

/// Fewest resident bytes of artefacts for which the size of their pages matters.
const PAGED_BYTES: u64 = 32 << 20;

/// Describes the pages of the artefacts, of which `huge` bytes of `resident` are in huge pages.
/// Returns `None` for small artefacts.
fn pages(resident: u64, huge: u64) -> Option<String> {
    let share = 100.0 * huge as f64 / resident.max(1) as f64;
    (resident >= PAGED_BYTES).then(|| match share >= 50.0 {
        true => format!("weights in huge pages: {share:.0} %"),
        false => format!(
            "weights in small pages: {:.0} %\nhelp: compile the bundle again when memory is free",
            100.0 - share
        ),
    })
}

/// Largest share of the weights on one memory node, in per cent, for which the nodes share the work
/// well.
const MOST_ON_A_NODE: f64 = 75.0;

/// Describes the memory nodes of the artefacts. Returns `None` for small artefacts.
fn nodes(bytes: &[u64]) -> Option<String> {
    let all: u64 = bytes.iter().sum();
    if all < PAGED_BYTES {
        return None;
    }
    let shares: Vec<f64> = bytes.iter().map(|bytes| 100.0 * *bytes as f64 / all as f64).collect();
    let listed = shares.iter().map(|share| format!("{share:.0} %")).collect::<Vec<_>>().join(", ");
    let text = format!("weights by memory node: {listed}");
    Some(match shares.iter().any(|share| *share > MOST_ON_A_NODE) {
        true => format!(
            "{text}\nhelp: run on the cores of that node (`numactl --cpunodebind`), or read the bundle for \
             the first time with `numactl --interleave=all`"
        ),
        false => text,
    })
}

/// Returns the beginning of a hash.
fn short(identity: &str) -> &str {
    identity.get(..12).unwrap_or(identity)
}

/// Formats a rate with three digits or more.
fn rate(value: f64) -> String {
    let digits = if value >= 100.0 { 1 } else { 2 };
    format!("{value:.digits$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn weights_in_small_pages_are_reported_with_help() {
        const MIB: u64 = 1 << 20;
        assert_eq!(pages(PAGED_BYTES - 1, 0), None);
        assert_eq!(pages(100 * MIB, 97 * MIB).as_deref(), Some("weights in huge pages: 97 %"));
        let small = pages(100 * MIB, 20 * MIB).unwrap();
        assert!(small.starts_with("weights in small pages: 80 %\nhelp: "), "{small}");
    }

    #[test]
    fn weights_on_one_of_two_memory_nodes_are_reported_with_help() {
        const MIB: u64 = 1 << 20;
        assert_eq!(nodes(&[PAGED_BYTES - 1, 0]), None);
        assert_eq!(nodes(&[60 * MIB, 40 * MIB]).as_deref(), Some("weights by memory node: 60 %, 40 %"));
        let one = nodes(&[3 * MIB, 97 * MIB]).unwrap();
        assert!(one.starts_with("weights by memory node: 3 %, 97 %\nhelp: "), "{one}");
    }
}
