//! Cost of formats for the demo model on the CPU shim. Prints tables in Markdown, or JSON after
//! `--format json`. Naming `combinations`, `weights`, `ranges` or `texts` selects that part.
//!
//! Every combination runs all held-out rows, chooses tokens after every recorded prompt, and runs
//! every layer alone. The reference runs it again on a few rows. `docs/benchmarks/quality.md`
//! contains the output of one run.

use std::path::Path;

use serde_json::{Value, json};
use shardwright::WeightFormat;
use shardwright_quantisation::RangeMethod;
use shardwright_tests::formats::{
    AgainstReference, ByText, CASES, Case, Cost, Effort, Recorded, Roundings, W4_BLOCK32_LOSS_MAX,
    W8_PER_CHANNEL_LOSS_MAX, by_texts, ranging, roundings, weight_error,
};

/// Weight formats that are compared separately.
const WEIGHTS: [WeightFormat; 7] = [
    WeightFormat::W8PerChannel,
    WeightFormat::W8PerTensor,
    WeightFormat::W4Block32,
    WeightFormat::W4Block32Stepped,
    WeightFormat::W4PerChannel,
    WeightFormat::W4PerTensor,
    WeightFormat::W2PerChannel,
];

/// Rows of the reference for weight formats: every `ROUNDING_EVERY`-th held-out row, up to
/// `ROUNDING_TOKENS` tokens.
const ROUNDING_EVERY: usize = 2;
const ROUNDING_TOKENS: usize = 128;

/// Rows that the reference runs too: every `REFERENCE_EVERY`-th held-out row, up to
/// `REFERENCE_TOKENS` tokens.
const REFERENCE_EVERY: usize = 16;
const REFERENCE_TOKENS: usize = 64;

/// Rows of each prompt through every shard alone, positions at which every shard runs a single row,
/// and tokens chosen after the prompt.
const EFFORT: Effort = Effort { rows: 48, steps: 24, greedy: 64 };

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let as_json = arguments.windows(2).any(|pair| pair == ["--format", "json"]);
    let parts = ["combinations", "weights", "ranges", "texts"];
    let named = |part: &str| arguments.iter().any(|argument| argument == part);
    let cache = tempfile::tempdir().expect("a temporary folder");
    for part in parts {
        if !named(part) && parts.iter().any(|other| named(other)) {
            continue;
        }
        if !named(part) && part != parts[0] && !as_json {
            println!();
        }
        match part {
            "combinations" => combinations(as_json, cache.path()),
            "weights" => weights(as_json),
            "ranges" => ranges(as_json),
            _ => texts(as_json),
        }
    }
}

/// Prints every combination as a whole.
fn combinations(as_json: bool, cache: &Path) {
    let cost = |&case: &Case| {
        eprintln!("{} {}", case.formats, case.tables());
        Cost::of(case, &Recorded::All, EFFORT, cache)
    };
    let costs: Vec<Cost> = CASES.iter().map(cost).collect();
    eprintln!("through the reference");
    let part = Recorded::some(1, REFERENCE_EVERY, REFERENCE_TOKENS);
    let reference = AgainstReference::of(&CASES, &part, cache);
    let stored = &costs[0];
    match as_json {
        true => {
            let rows = costs.iter().zip(&reference).map(|(cost, both)| cost.json(stored, both));
            println!("{:#}", Value::from_iter(rows));
        }
        false => table_of_combinations(&costs, &reference),
    }
    let loss = |formats: &str| {
        let plain = |cost: &&Cost| cost.case.formats == formats && cost.case.tables() == "stored";
        costs.iter().find(plain).map(|cost| cost.loss(stored)).expect("it is among the cases")
    };
    assert!(costs.iter().all(|cost| cost.nll.is_finite()));
    assert!(loss("w8-per-channel/f32/f32").abs() <= W8_PER_CHANNEL_LOSS_MAX);
    assert!(loss("w4-block32/f32/f32").abs() <= W4_BLOCK32_LOSS_MAX);
    assert!(loss("w4-block32/f32/f32") < loss("w4-per-channel/f32/f32"));
    assert!(loss("w4-per-channel/f32/f32") < loss("w2-per-channel/f32/f32"));
}

/// Prints weight formats separately.
fn weights(as_json: bool) {
    eprintln!("weights");
    let part = Recorded::some(1, ROUNDING_EVERY, ROUNDING_TOKENS);
    let (float, roundings) = roundings(&WEIGHTS, &part);
    let errors = WEIGHTS.map(weight_error);
    match as_json {
        true => {
            let rows = roundings.iter().zip(errors).map(|(rounding, error)| rounding.json(error, float));
            println!("{:#}", Value::from_iter(rows));
        }
        false => table_of_weights(&roundings, &errors, float),
    }
}

/// Prints methods of choosing ranges at 16 bits.
fn ranges(as_json: bool) {
    eprintln!("ranges");
    let (float, found) = ranging(&Recorded::some(1, REFERENCE_EVERY, REFERENCE_TOKENS));
    let loss = |nll: f64| 100.0 * (nll / float - 1.0);
    if as_json {
        let row = |(method, nll, divergence): &(RangeMethod, f64, f64)| json!({ "method": format!("{method:?}"), "stored_nll": float, "nll": nll, "divergence": divergence });
        println!("{:#}", Value::from_iter(found.iter().map(row)));
        return;
    }
    println!("| ranges | loss % | divergence |");
    println!("|---|---:|---:|");
    for (method, nll, divergence) in &found {
        println!("| {method:?} | {:+.3} | {divergence:.1e} |", loss(*nll));
    }
}

/// Prints the losses of ranges and rounding for each calibration text.
fn texts(as_json: bool) {
    eprintln!("texts");
    let (float, found) = by_texts(&Recorded::some(1, ROUNDING_EVERY, ROUNDING_TOKENS));
    if as_json {
        let row = |text: &ByText| {
            json!({
                "text": text.name,
                "range_tokens": text.tokens[0],
                "moment_tokens": text.tokens[1],
                "stored_nll": float,
                "ranges": { "nll": text.ranges.0, "divergence": text.ranges.1 },
                "rounding": { "nll": text.rounding.0, "divergence": text.rounding.1 },
            })
        };
        println!("{:#}", Value::from_iter(found.iter().map(row)));
        return;
    }
    println!("| text | tokens | ranges: loss % | divergence | tokens | rounding: loss % | divergence |");
    println!("|---|---:|---:|---:|---:|---:|---:|");
    for text in &found {
        let loss = |(nll, _): (f64, f64)| 100.0 * (nll / float - 1.0);
        println!(
            "| {} | {} | {:+.3} | {:.1e} | {} | {:+.2} | {:.4} |",
            text.name,
            text.tokens[0],
            loss(text.ranges),
            text.ranges.1,
            text.tokens[1],
            loss(text.rounding),
            text.rounding.1,
        );
    }
}

fn table_of_combinations(costs: &[Cost], reference: &[AgainstReference]) {
    let stored = &costs[0];
    println!(
        "| weights/activations/states | tables (embedding, per-layer) | weights kB | tables kB | states kB | nats | loss % | divergence \
         | tokens as in float | before the first difference | worst layer | off reference | of its nats |"
    );
    println!("|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|");
    for (cost, both) in costs.iter().zip(reference) {
        let thousands = |bytes: u64| (bytes + 500) / 1000;
        let worst = cost
            .worst_layer()
            .map_or("-".to_owned(), |(layer, error)| format!("{layer} ({:.1} %)", 100.0 * error));
        println!(
            "| {} | {} | {} | {} | {} | {:.4} | {:+.2} | {:.4} | {} of {} | {} | {worst} | {:.0e} | {:.0e} |",
            cost.case.formats,
            cost.case.tables(),
            thousands(cost.weight_bytes),
            thousands(cost.table_bytes),
            thousands(cost.state_bytes),
            cost.nll,
            cost.loss(stored),
            both.divergence,
            cost.as_float,
            cost.chosen,
            cost.before_first_difference,
            cost.off_reference.0,
            both.difference(),
        );
    }
}

fn table_of_weights(roundings: &[Roundings], errors: &[f64], float: f64) {
    println!(
        "| weights | off by | loss %, nearest | divergence | loss %, compensated | divergence | loss %, by own text | divergence |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|");
    for (rounding, error) in roundings.iter().zip(errors) {
        let loss = |(nll, _): (f64, f64)| 100.0 * (nll / float - 1.0);
        println!(
            "| {} | {:.2} % | {:+.2} | {:.4} | {:+.2} | {:.4} | {:+.2} | {:.4} |",
            rounding.format,
            100.0 * error,
            loss(rounding.nearest),
            rounding.nearest.1,
            loss(rounding.compensated),
            rounding.compensated.1,
            loss(rounding.by_own_text),
            rounding.by_own_text.1,
        );
    }
}
