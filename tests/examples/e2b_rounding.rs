//! Compiles a checkpoint of Gemma 4 E2B's layers at their real shapes with error compensation
//! (GPTQ). The weights are random and the vocabulary is small. Reports the time, and the peak of
//! the program's own memory.
//!
//! ```text
//! cargo run -p shardwright-tests --example e2b_rounding -- DIRECTORY [layers]
//! ```
//!
//! `DIRECTORY` needs room for 4 GB of weights, the cache (9 GB of moments) and a bundle.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use shardwright_test_checkpoints::{Spec, write_real};
use shardwright_tests::program;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [directory, rest @ ..] = &arguments[..] else { panic!("e2b_rounding DIRECTORY [layers]") };
    let directory = PathBuf::from(directory);
    let mut spec = Spec { vocabulary: 32_768, multimodal: false, ..Spec::e2b() };
    if let [layers] = rest {
        // Layers that share keys and values at the end, after five that have their own.
        let count: usize = layers.parse().expect("a number of layers, ten at least");
        spec.layers = "SSSSF".repeat(count.div_ceil(5));
        spec.kv_shared = spec.layers.len() - 5;
    }
    let checkpoint = directory.join("checkpoint");
    std::fs::create_dir_all(&checkpoint).expect("a folder");
    write_real(&spec, &checkpoint).expect("a checkpoint");
    let started = Instant::now();
    let mut child = Command::new(program::executable())
        .arg("compile")
        .arg(&checkpoint)
        .args(["--formats", "w4-block32/f32/f32", "--rounding", "compensated", "-o"])
        .arg(directory.join("bundle"))
        .env("XDG_CACHE_HOME", directory.join("cache"))
        .spawn()
        .expect("it starts");
    let mut most = 0;
    let status = loop {
        if let Some(status) = child.try_wait().expect("a child") {
            break status;
        }
        most = most.max(anonymous_kib(child.id()));
        std::thread::sleep(Duration::from_millis(200));
    };
    assert!(status.success(), "{status}");
    println!("{:.1} minutes, at most {} MiB of its own", started.elapsed().as_secs_f64() / 60.0, most / 1024);
}

/// Returns the memory of a process that is not backed by a file, in KiB, or 0 if the system does
/// not report it.
fn anonymous_kib(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"));
    line.and_then(|line| line.trim().split(' ').next()?.parse().ok()).unwrap_or(0)
}
