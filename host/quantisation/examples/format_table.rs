//! Measures the cost of formats on the demo model: bytes, and likelihood of the held-out rows under
//! the reference implementation. Prints a table or JSON.
//!
//! ```text
//! cargo run --release -p shardwright-quantisation --example format_table -- [ROWS] [--json | --places]
//! ```
//!
//! `--places` prints the measured and the expected loss of each layer and role in each format, in
//! millionths of a nat per token. The constants of the expected losses are fitted to these
//! measurements.
//!
//! `ROWS` limits the run to that many evenly spaced rows. Running all rows is slow.

#[path = "../tests/support/demo.rs"]
mod demo;

use std::ops::ControlFlow;

use shardwright_quantisation::{Baseline, IntegerBits, RangeMethod, evaluate, priors};
use shardwright_vocabulary::WeightFormat;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| arguments.iter().any(|argument| argument == word);
    let rows = arguments.iter().find_map(|argument| argument.parse().ok()).unwrap_or(usize::MAX);
    let graph = demo::graph();
    let (calibration_rows, evaluation_rows) = demo::rows();
    let step = (evaluation_rows.len() / rows.min(evaluation_rows.len())).max(1);
    let chosen: Vec<Vec<u32>> = evaluation_rows.into_iter().step_by(step).take(rows).collect();

    if has("--places") {
        let formats = [WeightFormat::W8PerChannel, WeightFormat::W4Block32, WeightFormat::W4PerChannel];
        let short: Vec<Vec<u32>> = chosen.iter().map(|ids| ids[..ids.len().min(96)].to_vec()).collect();
        let baseline = Baseline::of(&graph, &short).unwrap();
        for prior in priors(&graph, &formats, None).unwrap() {
            let rows = baseline.divergences(&prior.change().recipe(&graph)).unwrap();
            let (sum, count) = rows.iter().fold((0.0, 0), |all, own| (all.0 + own.0, all.1 + own.1));
            let (measured, expected) = (1e6 * sum / count as f64, prior.micronats);
            println!(
                "{} {} {} {} {measured:.1} {expected}",
                prior.component, prior.layer, prior.role, prior.format
            );
        }
        return;
    }
    let calibration = demo::calibrate(&graph, &calibration_rows);
    eprintln!("calibrated with {} sequences, {} tokens", calibration.sequences(), calibration.tokens());
    let mut progress = |done: u64, total: u64| {
        eprint!("\r{done} of {total}   ");
        ControlFlow::Continue(())
    };
    let ranges = calibration.ranges(RangeMethod::Ample, IntegerBits::Sixteen).unwrap();
    let candidates = demo::candidates(&demo::moments(&graph, &calibration_rows));
    let table = evaluate(&graph, &candidates, &ranges, &chosen, &mut progress).unwrap();
    eprintln!();
    if has("--json") {
        println!("{}", serde_json::to_string_pretty(&table).unwrap());
        return;
    }
    println!(
        "{} rows, {} predictions; as stored {:.4} nats, {} bytes",
        table.sequences,
        table.predictions,
        table.nll.unwrap_or_default(),
        table.stored_bytes
    );
    println!(
        "| weights/activations/states | tables | rounding | bytes | nll | loss ‰ | divergence | worst layer |"
    );
    println!("|---|---|---|---|---|---|---|---|");
    for (row, candidate) in table.rows.iter().zip(&candidates) {
        let rounding = if candidate.moments.is_none() { "nearest" } else { "compensated" };
        let worst = row.worst_layer.map_or("-".to_owned(), |(layer, error)| format!("{layer} ({error:.4})"));
        println!(
            "| {} | {} | {rounding} | {} | {:.4} | {:+.2} | {:.5} | {worst} |",
            row.formats,
            row.tables,
            row.weight_bytes + row.table_bytes,
            row.nll.unwrap_or_default(),
            row.loss_per_mille,
            row.divergence,
        );
    }
}
