//! What formats cost the demo model on the CPU shim: a table in Markdown, or JSON after `--format json`.
//!
//! Every combination runs all held-out rows, chooses tokens after every recorded prompt, runs every layer alone, and is run again by the
//! reference on a few rows. `BENCHMARKS.md` holds a run of it.

use shardwright_tests::formats::{
    AgainstReference, CASES, Cost, Effort, Recorded, W4_BLOCK32_LOSS_MAX, W8_PER_CHANNEL_LOSS_MAX,
};

/// Rows the reference runs too: every so many-th held-out row, and so many tokens of it.
const REFERENCE_EVERY: usize = 16;
const REFERENCE_TOKENS: usize = 64;

/// Rows of each prompt through every shard alone, positions of it at which every shard takes one row, tokens chosen after it.
const EFFORT: Effort = Effort { rows: 48, steps: 24, greedy: 64 };

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let as_json = arguments.windows(2).any(|pair| pair == ["--format", "json"]);
    let cache = tempfile::tempdir().expect("a temporary folder");
    let costs: Vec<Cost> = CASES
        .iter()
        .map(|&case| {
            eprintln!("{} {}", case.formats, case.tables());
            Cost::of(case, &Recorded::All, EFFORT, cache.path())
        })
        .collect();
    eprintln!("through the reference");
    let part = Recorded::some(1, REFERENCE_EVERY, REFERENCE_TOKENS);
    let reference = AgainstReference::of(&CASES, &part, cache.path());
    let stored = &costs[0];
    match as_json {
        true => {
            let rows = costs.iter().zip(&reference);
            let rows: Vec<_> = rows.map(|(cost, both)| cost.json(stored, Some(both))).collect();
            println!("{:#}", serde_json::Value::from(rows));
        }
        false => markdown(&costs, &reference),
    }
    let loss = |formats: &str| {
        let plain = |cost: &&Cost| cost.case.formats == formats && cost.case.tables() == "stored";
        costs.iter().find(plain).map(|cost| cost.loss(stored)).expect("it is among the cases")
    };
    assert!(costs.iter().all(|cost| cost.nll.is_finite()));
    assert!(loss("w8-per-channel/f32/f32") <= W8_PER_CHANNEL_LOSS_MAX);
    assert!(loss("w4-block32/f32/f32") <= W4_BLOCK32_LOSS_MAX);
}

fn markdown(costs: &[Cost], reference: &[AgainstReference]) {
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
