//! How the work of one model grows: prompts with their length, generation and memory with the
//! context, and both with threads.

use std::fmt::Write;

use serde_json::{Value, json};

use super::Workshop;
use super::cases::{INT8, SMALLEST};
use crate::error::Error;

/// Lengths of prompts, and context depths before generation.
const LENGTHS: &str = "128,256,512,1024,2048,4096,8192";
/// Tokens generated at each depth.
const GENERATED: &str = "32";
/// Capacities of bundles whose memory is reported.
const CONTEXTS: [&str; 4] = ["1024", "2048", "4096", "8448"];
const REPETITIONS: &str = "3";
const THREADS: [&str; 2] = ["1", "2"];

/// Returns reports by thread count and by context.
pub fn measure(workshop: &Workshop<'_>) -> Result<Value, Error> {
    let mut memory = Vec::new();
    let mut largest = None;
    for context in CONTEXTS {
        let bundle = workshop.bundle(SMALLEST, INT8, context)?;
        let report = workshop.measure(&bundle, &["-p", "16", "-n", "32", "-r", "1", "-t", "2"])?;
        memory.push(json!({ "context": context, "memory": report["memory"] }));
        largest = Some(bundle);
    }
    let [bundle] = largest.as_slice() else { unreachable!("there are contexts") };
    let mut threads = Vec::new();
    for count in THREADS {
        let run = |work: [&str; 4]| {
            let arguments: Vec<&str> = work.into_iter().chain(["-t", count, "-r", REPETITIONS]).collect();
            Ok::<_, Error>(workshop.measure(bundle, &arguments)?["results"].take())
        };
        let prefill = run(["-p", LENGTHS, "-d", "0"])?;
        let decode = run(["-n", GENERATED, "-d", LENGTHS])?;
        threads.push(json!({ "threads": count, "prefill": prefill, "decode": decode }));
    }
    Ok(json!({ "model": SMALLEST, "format": INT8, "threads": threads, "memory": memory }))
}

/// Returns the milliseconds of the best repetition, for a whole prompt or one token. The best is
/// least disturbed by other load.
fn milliseconds(result: &Value, tokens: f64) -> Option<f64> {
    result["tokens_per_second"]["best"].as_f64().map(|speed| tokens * 1e3 / speed)
}

/// Formats tables, and the same data as diagrams that repository web pages render.
pub fn markdown(figures: &Value) -> String {
    let lengths: Vec<&str> = LENGTHS.split(',').collect();
    let mut text = String::new();
    let _ = writeln!(
        text,
        "{}, {}, random weights; the best of {REPETITIONS} each.\n",
        figures["model"].as_str().unwrap_or("?"),
        figures["format"].as_str().unwrap_or("?")
    );
    let line = |kind: &str, name: &str, thread: &Value| -> Vec<f64> {
        let results = thread[kind].as_array().map_or(&[][..], Vec::as_slice);
        let times = results.iter().map(|result| {
            let tokens = if name == "prompt" { result["tokens"].as_f64().unwrap_or(0.0) } else { 1.0 };
            milliseconds(result, tokens).unwrap_or(f64::NAN)
        });
        times.collect()
    };
    let threads = figures["threads"].as_array().map_or(&[][..], Vec::as_slice);
    let _ = writeln!(text, "| | {} |", lengths.join(" | "));
    let _ = writeln!(text, "|---|{}", "---:|".repeat(lengths.len()));
    let mut pictures = String::new();
    for (kind, name, title) in [
        ("prefill", "prompt", "a prompt of so many tokens, ms"),
        ("decode", "token", "a token after so many, ms"),
    ] {
        let mut lines = Vec::new();
        for thread in threads {
            let times = line(kind, name, thread);
            let shown: Vec<String> = times.iter().map(|time| format!("{time:.1}")).collect();
            let count = thread["threads"].as_str().unwrap_or("?");
            let plural = if count == "1" { "" } else { "s" };
            let _ = writeln!(text, "| {title}, {count} thread{plural} | {} |", shown.join(" | "));
            lines.push(format!("    line [{}]", shown.join(", ")));
        }
        let _ = writeln!(
            pictures,
            "\n```mermaid\nxychart-beta\n    title \"{title}: 1 thread above, 2 below\"\n    x-axis [{}]\n    y-axis \"ms\"\n{}\n```",
            lengths.join(", "),
            lines.join("\n")
        );
    }
    let _ = writeln!(text, "\n| capacity | states MB | most resident MB |\n|---:|---:|---:|");
    for entry in figures["memory"].as_array().map_or(&[][..], Vec::as_slice) {
        let megabytes = |name: &str| entry["memory"][name].as_f64().unwrap_or(f64::NAN) / 1e6;
        let _ = writeln!(
            text,
            "| {} | {:.1} | {:.1} |",
            entry["context"].as_str().unwrap_or("?"),
            megabytes("state_bytes"),
            megabytes("peak_resident_bytes")
        );
    }
    text + &pictures
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_become_tables_and_pictures() {
        let result =
            |tokens: u32, best: f64| json!({ "tokens": tokens, "tokens_per_second": { "best": best } });
        let threads = json!({ "threads": "2", "prefill": [result(128, 1000.0), result(256, 1000.0)], "decode": [result(32, 100.0)] });
        let memory = json!({ "context": "1024", "memory": { "state_bytes": 13_000_000, "peak_resident_bytes": 300_000_000 } });
        let text =
            markdown(&json!({ "model": "m", "format": "f", "threads": [threads], "memory": [memory] }));
        for line in [
            "| a prompt of so many tokens, ms, 2 threads | 128.0 | 256.0 |",
            "| a token after so many, ms, 2 threads | 10.0 |",
            "    line [128.0, 256.0]",
            "| 1024 | 13.0 | 300.0 |",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(markdown(&json!({})).contains('?'));
    }
}
