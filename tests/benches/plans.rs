//! The default plan of each profile for Gemma 4 E2B and E4B, from `config.json` alone. Prints a
//! table in Markdown.
//!
//! ```text
//! cargo test -p shardwright-tests --bench plans -- [e2b] [e4b] [SOC …] [size=BYTES] [texts=GROUP]
//! ```
//!
//! `texts` is a group of [`shardwright_tests::texts`] with a given text, such as `rewriting`. The
//! acceptance of prompt lookup in that text, in the demo model's tokens, replaces the default
//! guess.
//!
//! `size` is a goal for all data on a device. The table then shows the plan that loses least, with
//! its fallback.
//!
//! Losses are expected values for normally distributed weights. Times are intervals by the factors
//! of the profiles. The times of three MediaTek chips start from the roofline model of their shim,
//! with the simulator of its library. Times of Qualcomm chips start from the rates of the profile,
//! or from a simulator if the environment names the vendor's library, which takes minutes the first
//! time. The generic profile has the times of this machine. If a plan verifies proposed tokens, the
//! expected effect follows the times.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

use shardwright::OpenOptions;
use shardwright_build::{IntervalText, LossReport, PlanReport, Predicted, Speed};
use shardwright_checkpoints::ChainPlan;
use shardwright_planning::profile::{Preference, ProfileRegistry};
use shardwright_planning::request::DraftEstimate;
use shardwright_runtime::{Acceptance, acceptance_of_lookup};
use shardwright_test_checkpoints::Spec;
use shardwright_tests::neuron::Shim;
use shardwright_tests::texts::{Text, groups};
use shardwright_tests::{program, tree};
use shardwright_text::Tokenizer;
use shardwright_vocabulary::{ChosenSpeculation, EntryKind, Provenance, TimeCost};

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
    let texts = arguments.iter().find_map(|argument| argument.strip_prefix("texts="));
    let accepted = texts.map(accepted);
    let shim = Shim::with("lean");
    let last = if size.is_some() {
        "falls back to | on a device |\n|---|---|---:|---|---:|---|---:|---:|---|---:|"
    } else {
        "first token of 512; each further one |\n|---|---|---:|---|---:|---|---:|---:|---|"
    };
    println!(
        "| chip | model | calls a token | formats, by layers | artefacts | tables | KV cache | expected loss | {last}"
    );
    for (model, spec) in models.iter().filter(|(name, _)| !any_model || asked(name)) {
        let folder = tempfile::tempdir().expect("a temporary folder");
        spec.write(folder.path()).expect("written");
        let without = tempfile::tempdir().expect("a temporary folder");
        fs::copy(folder.path().join("config.json"), without.path().join("config.json")).expect("copied");
        for chip in chips.iter().filter(|chip| !any_chip || asked(chip)) {
            eprintln!("{model} on {chip}");
            println!("| {chip} | {model} | {} |", row(without.path(), chip, &shim, size, accepted.as_ref()));
        }
    }
}

/// Returns the acceptance of prompt lookup in a group of texts.
fn accepted(group: &str) -> Acceptance {
    let tokenizer = Tokenizer::from_file(tree::root().join("demo-model/tokenizer.json"));
    let tokenizer = tokenizer.expect("the demo model's tokenizer");
    let groups = groups(&tokenizer);
    let (_, texts) = groups.iter().find(|(name, _)| *name == group).expect("a group of texts");
    let of = |text: &Text| acceptance_of_lookup(&text.prompt, text.given.as_ref().expect("a given text"));
    let accepted = texts.iter().map(of).fold(Acceptance::default(), |all, one| all.and(&one));
    eprintln!("{accepted:?}");
    accepted
}

fn row(
    checkpoint: &Path,
    chip: &str,
    shim: &Shim,
    size: Option<u64>,
    accepted: Option<&Acceptance>,
) -> String {
    let mut path = program::search_path();
    path.shims.insert(0, shim.folder());
    let options = OpenOptions::new().search_path(path).soc(chip);
    let options = match accepted {
        Some(accepted) => options.drafts([DraftEstimate {
            name: ChosenSpeculation::LOOKUP.to_owned(),
            silent_steps: accepted.without as u32,
            accepted_steps: accepted.accepted.map(|steps| steps as u32).to_vec(),
            provenance: Provenance::Measured,
            token_time: TimeCost::ZERO,
            memory_bytes: 0,
            row_bytes: 0,
        }]),
        None => options,
    };
    let options = match size {
        Some(size) => options.size(size).prefer(Preference::Quality),
        None => options,
    };
    let (report, chains) = match options.plan_all_chains(checkpoint, &mut ()) {
        Ok((planned, chains)) => (planned.report, chains),
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
        Speed::Tokens { first, each, .. } => {
            let verifies = report.speculation.as_ref();
            let verifies = verifies.map_or_else(String::new, |own| format!("; {own}"));
            format!("{}; {}{verifies}", first.map_or_else(|| "-".to_owned(), time), time(each))
        }
        Speed::Vector { each, .. } => time(each),
    };
    let tables = report.tables.iter().map(|table| table.format.name()).collect::<Vec<_>>().join(", ");
    let last = match size {
        Some(size) => beside(&report, &chains, size),
        None => times,
    };
    format!(
        "{calls} | {} | {} | {} ({tables}) | {} | {loss} | {last}",
        mix(&report),
        gigabytes(report.totals.artefacts.bytes),
        gigabytes(report.totals.table_bytes),
        gigabytes(report.totals.state_bytes),
    )
}

fn gigabytes(bytes: u64) -> String {
    format!("{:.2} GB", bytes as f64 / 1e9)
}

/// Formats the fallback of a plan, and the size of all data on a device.
fn beside(report: &PlanReport, chains: &[ChainPlan], size: u64) -> String {
    let mut bytes = report.totals.table_bytes;
    let mut later = Vec::new();
    for (index, chain) in chains.iter().enumerate() {
        let plan = chain.made.as_ref().expect("a chain that has room is planned");
        bytes += plan.totals.artefacts.bytes;
        if index > 0 {
            later.push(format!("{}, {}: {}", chain.name, gigabytes(plan.totals.artefacts.bytes), mix(plan)));
        }
    }
    assert!(bytes <= size, "{bytes} of {size} bytes");
    let later = if later.is_empty() { "nothing".to_owned() } else { later.join("; ") };
    format!("{later} | {}", gigabytes(bytes))
}

/// Formats the number of layers, and of components with weights but without layers, for each
/// format.
fn mix(report: &PlanReport) -> String {
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    let layers = report.shards.iter().flat_map(|shard| &shard.by_layer);
    for layer in layers.filter(|layer| layer.weight_bytes > 0) {
        *counts.entry(&layer.formats).or_default() += 1;
    }
    let parts = counts.iter().map(|(formats, count)| format!("{count} {formats}"));
    parts.collect::<Vec<_>>().join(", ")
}

fn time(time: Predicted) -> String {
    let source = match time.uncosted_ops {
        0 => time.provenance.to_string(),
        count => format!("{}, {count} operations estimated by share", time.provenance),
    };
    IntervalText::time(&time.time()).with(&source)
}
