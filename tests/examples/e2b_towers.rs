//! Runs the towers of Gemma 4 E2B at their real shapes, with random weights, on the CPU shim: a
//! picture of 280 soft tokens and a clip of 30 seconds. Weights are as stored, and in 8 bits with
//! activations quantised per row at run time, or in the named formats. Prints times, memory, and
//! the distance of the rows from the rows with stored weights.
//!
//! ```text
//! cargo run --release -p shardwright-tests --example e2b_towers -- \
//!     DIRECTORY [runs] [threads] [deviation] [FORMATS…]
//! ```
//!
//! `DIRECTORY` needs room for 1 GB of weights. Features and the stored towers' rows are left there
//! for `e2b_towers.py`, which runs the same on PyTorch and compares.

use std::path::PathBuf;
use std::time::Instant;

use shardwright_graph::Pass;
use shardwright_models::Checkpoint;
use shardwright_runtime::Tower;
use shardwright_test_checkpoints::{Random, Spec, Towers, write_real};
use shardwright_tests::chain::{Bench, Cut, encode_menu};
use shardwright_tests::towers::FrontEnd;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, rest @ ..] = &arguments[..] else {
        panic!("e2b_towers DIRECTORY [runs] [threads] [deviation] [FORMATS…]")
    };
    let number = |at: usize, other: u32| rest.get(at).map_or(other, |text| text.parse().expect("a number"));
    let (runs, threads) = (number(0, 5), number(1, 2));
    let deviation: f64 = rest.get(2).map_or(1.5, |text| text.parse().expect("a number"));
    let named: Vec<&str> = rest.iter().skip(3).map(String::as_str).collect();
    let formats = if named.is_empty() { vec!["w8-per-channel/a8-dynamic/f32"] } else { named };
    let directory = PathBuf::from(directory);
    // The text model has its real width and is otherwise small.
    let spec = Spec {
        towers: Some(Towers { deviation, ..Towers::e2b() }),
        vocabulary: 1024,
        layers: "SF".to_owned(),
        kv_shared: 0,
        ..Spec::e2b()
    };
    std::fs::create_dir_all(&directory).expect("a folder");
    // Existing weights are reused.
    let of_these = directory.join("deviation");
    match std::fs::read_to_string(&of_these) {
        Ok(before) => assert_eq!(before, deviation.to_string(), "these weights need another directory"),
        Err(_) => std::fs::write(of_these, deviation.to_string()).expect("written"),
    }
    write_real(&spec, &directory).expect("a checkpoint");
    let before = resident_kib("RssAnon:");
    let keep = |name: String, values: &[f32]| {
        let bytes: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        std::fs::write(directory.join(name), bytes).expect("written");
    };
    for (pass, rows, given) in [(Pass::Picture, 2520, patches()), (Pass::Clip, 750, frames())] {
        let checkpoint = Checkpoint::open_for(&directory, &[Pass::Step, pass]).expect("a checkpoint");
        let graph = checkpoint.graph_of(pass).expect("a tower");
        let mut stored = Vec::new();
        for format in ["stored"].iter().chain(&formats) {
            let bench = match *format {
                "stored" => Bench::cpu(graph, &encode_menu(rows), threads),
                tuple => {
                    let tuple = tuple.parse().expect("a tuple of formats");
                    Bench::cpu_in_formats(graph, &encode_menu(rows), threads, &[tuple])
                }
            };
            let mut tower = bench.chain(&Cut::default()).tower().expect("a tower");
            let loaded = resident_kib("RssAnon:");
            let (rows, times) = timed(&given, &mut tower, runs);
            let quartile = |of: usize| times[times.len() * of / 4];
            println!(
                "{pass}, {format}, {threads} threads: {:.0} ms ({:.0} to {:.0}); {} MiB when loaded, {} MiB after",
                quartile(2),
                quartile(1),
                quartile(3),
                loaded.saturating_sub(before) / 1024,
                resident_kib("RssAnon:").saturating_sub(before) / 1024,
            );
            if stored.is_empty() {
                keep(format!("{pass}.features.f32"), &given.values);
                keep(format!("{pass}.rows.f32"), &rows);
                stored = rows;
                continue;
            }
            let of_rows = rows.chunks(1536).zip(stored.chunks(1536)).map(|(a, b)| cosine(a, b));
            println!(
                "  cosine {:.6}, least of a row {:.6}",
                cosine(&rows, &stored),
                of_rows.fold(1.0, f64::min)
            );
        }
    }
}

/// Returns the output of a tower, and the milliseconds of each run, ascending.
fn timed(given: &FrontEnd, tower: &mut Tower, runs: u32) -> (Vec<f32>, Vec<f64>) {
    let mut values = Vec::new();
    let mut times: Vec<f64> = (0..=runs)
        .map(|_| {
            let start = Instant::now();
            let rows = given.encoded(tower).expect("it runs");
            values = rows.values().to_vec();
            start.elapsed().as_secs_f64() * 1e3
        })
        .collect();
    // The first run includes page faults.
    times.remove(0);
    times.sort_by(f64::total_cmp);
    (values, times)
}

/// Returns 60 by 42 patches of noise, grouped by soft token.
fn patches() -> FrontEnd {
    let mut random = Random::new(1, "patches");
    let places = (0..14).flat_map(|row| (0..20).map(move |column| (column, row)));
    let places =
        places.flat_map(|(column, row)| (0..9).map(move |at| (3 * column + at % 3, 3 * row + at / 3)));
    let (columns, rows): (Vec<i32>, Vec<i32>) = places.unzip();
    let values = (0..2520 * 768).map(|_| random.uniform() as f32).collect();
    FrontEnd { count: 2520, values, columns, rows, origin: [1; 32] }
}

/// Returns 30 seconds of noise.
fn frames() -> FrontEnd {
    let mut random = Random::new(1, "frames");
    let values = (0..2998 * 128).map(|_| 1.5 * random.normal() as f32 - 3.0).collect();
    FrontEnd { count: 2998, values, columns: Vec::new(), rows: Vec::new(), origin: [2; 32] }
}

fn cosine(a: &[f32], b: &[f32]) -> f64 {
    let dot = |a: &[f32], b: &[f32]| a.iter().zip(b).map(|(x, y)| f64::from(*x) * f64::from(*y)).sum::<f64>();
    dot(a, b) / (dot(a, a) * dot(b, b)).sqrt()
}

/// Returns the value of a line of this process's status in KiB, or 0 if the system has none.
fn resident_kib(line: &str) -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let found = status.lines().find_map(|text| text.strip_prefix(line));
    found.and_then(|text| text.trim().split(' ').next()?.parse().ok()).unwrap_or(0)
}
