//! The plan that each profile gets by default for Gemma 4 E2B and E4B, from `config.json` alone: a
//! table in Markdown.
//!
//! ```text
//! cargo test -p shardwright-tests --bench plans -- [e2b] [e4b] [SOC …] [size=BYTES]
//! ```
//!
//! `size` is a goal for artefacts and tables together, in which the plan that loses least is shown.
//!
//! Losses are expected, of normally distributed weights. Times of MediaTek's chips follow from the
//! roofline of its shim, over the simulator of its library; those of Qualcomm's are simulated where
//! its library is named by the environment and the profile says which chip it estimates, which
//! takes minutes the first time. A time that nothing is known of is a dash.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use shardwright::OpenOptions;
use shardwright_build::{LossReport, PlanReport, Predicted, Speed};
use shardwright_planning::profile::{GENERIC, Preference, ProfileRegistry};
use shardwright_test_checkpoints::Spec;
use shardwright_tests::neuron::Shim;
use shardwright_tests::program;
use shardwright_vocabulary::EntryKind;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let asked = |name: &str| arguments.iter().any(|argument| argument == name);
    let models = [("e2b", Spec::e2b()), ("e4b", Spec::e4b())];
    let any_model = models.iter().any(|(name, _)| asked(name));
    let profiles = ProfileRegistry::new().list().expect("the built-in profiles");
    let chips: Vec<String> = profiles.found.iter().map(|found| found.profile.name.clone()).collect();
    let any_chip = chips.iter().any(|name| asked(name));
    let size = arguments.iter().find_map(|argument| argument.strip_prefix("size="));
    let size: Option<u64> = size.map(|size| size.parse().expect("bytes"));
    let shim = Shim::with("lean");
    println!(
        "| chip | model | calls a token | formats, by layers | artefacts | tables | KV cache | expected loss | first token of 512; each further one |"
    );
    println!("|---|---|---:|---|---:|---|---:|---:|---|");
    for (model, spec) in models.iter().filter(|(name, _)| !any_model || asked(name)) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        spec.write(folder.path()).expect("written");
        let without = tempfile::tempdir().expect("a temporary folder");
        fs::copy(folder.path().join("config.json"), without.path().join("config.json")).expect("copied");
        for chip in chips.iter().filter(|chip| *chip != GENERIC && (!any_chip || asked(chip))) {
            eprintln!("{model} on {chip}");
            println!("| {chip} | {model} | {} |", row(without.path(), chip, &shim, size));
        }
    }
}

fn row(checkpoint: &Path, chip: &str, shim: &Shim, size: Option<u64>) -> String {
    let mut path = program::search_path();
    path.shims.insert(0, shim.folder());
    let options = OpenOptions::new().search_path(path).soc(chip);
    let options = match size {
        Some(size) => options.size(size).prefer(Preference::Quality),
        None => options,
    };
    let report = match options.plan(checkpoint) {
        Ok(planned) => planned.report,
        Err(error) => return format!("- | {error} | | | | |"),
    };
    let decodes = |shard: &&shardwright_build::ShardReport| {
        shard.entries.iter().any(|part| part.entry.kind == EntryKind::Decode)
    };
    let calls = report.shards.iter().filter(decodes).count();
    let loss = match report.totals.loss {
        LossReport::Expected { micronats, .. } | LossReport::Measured { micronats } => {
            format!("{} mnat", micronats / 1000)
        }
        LossReport::None => "none".to_owned(),
        LossReport::NotMeasured { .. } => "-".to_owned(),
    };
    let times = match report.forecast.speed {
        Speed::Tokens { first, each, .. } => format!("{}; {}", time(first), time(each)),
        Speed::Vector { each, .. } => time(each),
    };
    let gigabytes = |bytes: u64| format!("{:.2} GB", bytes as f64 / 1e9);
    let tables = report.tables.iter().map(|table| table.format.name()).collect::<Vec<_>>().join(", ");
    format!(
        "{calls} | {} | {} | {} ({tables}) | {} | {loss} | {times}",
        mix(&report),
        gigabytes(report.totals.artefacts.bytes),
        gigabytes(report.totals.table_bytes),
        gigabytes(report.totals.state_bytes),
    )
}

/// How many layers, and components without layers that have weights, are in which formats.
fn mix(report: &PlanReport) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let layers = report.shards.iter().flat_map(|shard| &shard.by_layer);
    for layer in layers.filter(|layer| layer.weight_bytes > 0) {
        *counts.entry(&layer.formats).or_default() += 1;
    }
    let parts = counts.iter().map(|(formats, count)| format!("{count} {formats}"));
    parts.collect::<Vec<_>>().join(", ")
}

fn time(time: Option<Predicted>) -> String {
    time.map_or("-".to_owned(), |time| {
        let rest = match time.uncosted_ops {
            0 => String::new(),
            count => format!(", without {count} operations"),
        };
        format!("{:.1} ms ({}{rest})", time.microseconds as f64 / 1e3, time.provenance)
    })
}
