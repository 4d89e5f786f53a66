//! Tests interrupted quantisation at the real shapes of Gemma 4 E2B or E4B. Quantises every matrix
//! and table, with weights generated on the fly, in a child process that is killed at 20 random
//! moments. Then runs once more without interruption and compares every byte.
//!
//! ```text
//! cargo run --release -p shardwright-quantisation --example real_shapes -- e2b w4-block32 DIRECTORY
//! ```
//!
//! `DIRECTORY` needs room for one copy of the result (E4B in 8 bits: 9 GB). It is removed at the
//! end.

#[path = "../tests/support/mod.rs"]
mod support;

#[path = "../tests/support/killed.rs"]
mod killed;

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use shardwright_graph::Graph;
use shardwright_models::Checkpoint;
use shardwright_test_checkpoints::Spec;
use shardwright_vocabulary::WeightFormat;
use support::Synthetic;

const KILLS: usize = 20;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [model, format, directory, rest @ ..] = &arguments[..] else {
        panic!("real_shapes e2b|e4b FORMAT DIRECTORY");
    };
    let format: WeightFormat = format.parse().unwrap();
    let directory = PathBuf::from(directory);
    let sources = sources(&shapes(model));
    if rest.first().is_some_and(|word| word == "child") {
        return killed::make_all(&sources, format, None, &directory, Duration::ZERO);
    }
    let total = sources.iter().map(|source| bytes(source, format)).sum::<u64>();
    let rows: u64 = sources.iter().map(|source| source.shape[0]).sum();
    let values: u64 = sources.iter().map(Synthetic::elements).sum();
    println!(
        "{model} in {format}: {values} values in {rows} rows of {} matrices and tables, {total} bytes",
        sources.len()
    );

    let program = std::env::current_exe().unwrap();
    let child = || {
        let mut command = Command::new(&program);
        command.args(&arguments[..3]).arg("child");
        command
    };
    let started = Instant::now();
    let outcome = killed::until_done(child, total, KILLS, 1);
    println!(
        "killed {} times and ended: {:.1?}, peak {} MiB",
        outcome.kills,
        started.elapsed(),
        outcome.peak_kib / 1024
    );
    let interrupted = killed::files_and_hashes(&directory);
    std::fs::remove_dir_all(&directory).unwrap();

    let started = Instant::now();
    let outcome = killed::until_done(child, total, 0, 1);
    let elapsed = started.elapsed();
    println!(
        "uninterrupted: {elapsed:.1?}, {:.0} rows/s, {:.0} million values/s, peak {} MiB",
        rows as f64 / elapsed.as_secs_f64(),
        values as f64 / elapsed.as_secs_f64() / 1e6,
        outcome.peak_kib / 1024
    );
    let same = interrupted == killed::files_and_hashes(&directory);
    std::fs::remove_dir_all(&directory).unwrap();
    assert!(same, "the files differ");
    println!("{} files, all bytes the same", interrupted.len());
}

/// Returns the graph of a checkpoint that uses no disk space.
fn shapes(model: &str) -> Graph {
    let spec = match model {
        "e2b" => Spec::e2b(),
        "e4b" => Spec::e4b(),
        // For trying out this program.
        "toy" => Spec { vocabulary: 4096, hidden: 512, ..Spec::gemma4() },
        _ => panic!("no model {model}"),
    };
    let directory = tempfile::tempdir().unwrap();
    spec.write(directory.path()).unwrap();
    Checkpoint::open(directory.path()).unwrap().into_graph()
}

fn sources(graph: &Graph) -> Vec<Synthetic> {
    let matrices = graph.weights.iter().zip(graph.matrices()).filter(|(_, matrix)| *matrix);
    let tables = graph.assets.iter().map(|asset| &asset.table);
    matrices.map(|(weight, _)| weight).chain(tables).map(|weight| Synthetic::like(weight, 1)).collect()
}

fn bytes(source: &Synthetic, format: WeightFormat) -> u64 {
    support::planned(source, format).bytes()
}
