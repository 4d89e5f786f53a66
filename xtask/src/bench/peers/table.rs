//! The comparison as a Markdown page.

use std::fmt::Write;

use serde_json::Value;

/// Formats the figures as Markdown. A ratio is bold only if the loss of our formats is known and
/// not larger than the peer's.
pub fn markdown(figures: &Value) -> String {
    let mut text = String::new();
    let peer = |name: &str| {
        let cases = list(&figures["cases"]).iter();
        let mut values = cases.filter_map(|case| case["report"]["pairs"]["peer"][name].as_str());
        values.next().unwrap_or("unknown").to_owned()
    };
    let _ = writeln!(
        text,
        "Processor: {}; llama.cpp {} ({}; {}; pinned by {}). Weights are random if the first column does not name published ones. Ratios are of medians, ours to the peer's, with the least and the largest of single pairs. \"Of it\" is the speed at which every token reads the artefacts, divided by the probes. \"Huge\" is the share of them that is in huge pages. Losses are in thousandths of a nat of KL divergence on the published weights, or on Gemma 3 270M if weights are random. A ratio is bold if our loss is known and not larger.\n",
        figures["processor"].as_str().unwrap_or("unknown"),
        peer("build"),
        figures["llama_cpp"]["source"].as_str().unwrap_or("?"),
        figures["llama_cpp"]["built"].as_str().unwrap_or("?"),
        peer("pinning"),
    );
    text += "| model, ours | peer | test | threads | memory | pairs | load | GB/s | of it | huge | ours tok/s | peer tok/s | ratio | of single pairs | loss, ours | loss, peer |\n";
    text += "|---|---|---|---:|---|---:|---:|---:|---:|---:|---:|---:|---:|---|---:|---:|\n";
    for case in list(&figures["cases"]) {
        let (name, peer) = (word(&case["case"]), word(&case["peer"]));
        let threads = number(&case["threads"], 0);
        let losses = [&case["loss"]["ours"], &case["loss"]["peer"]];
        let is_equal = losses[0].as_f64().zip(losses[1].as_f64()).is_some_and(|(ours, peer)| ours <= peer);
        let bold = if is_equal { "**" } else { "" };
        let percent =
            |value: &Value| value.as_f64().map_or("-".to_owned(), |part| format!("{:.0} %", 100.0 * part));
        for (index, work) in list(&case["report"]["pairs"]["works"]).iter().enumerate() {
            let largest = case["report"]["results"][index]["logits"] == "largest";
            let test = format!("{}{}", word(&work["test"]), if largest { ", the largest logit" } else { "" });
            let flash = if work["flash_attention"] == true { " (flash attention)" } else { "" };
            for memory in ["slow", "fast"] {
                let share = &work[memory];
                if share.is_null() {
                    continue;
                }
                let _ = writeln!(
                    text,
                    "| {name} | {peer}{flash} | {test} | {threads} | {memory} | {} | {} | {} | {} | {} | {} | {} | {bold}{}{bold} | {} to {} | {} | {} |",
                    share["pairs"],
                    number(&share["load"], 1),
                    number(&share["probe"], 1),
                    percent(&share["of_probe"]),
                    percent(&share["huge"]),
                    number(&share["ours"], 1),
                    number(&share["peer"], 1),
                    number(&share["ratio"], 2),
                    number(&share["least_ratio"], 2),
                    number(&share["largest_ratio"], 2),
                    number(losses[0], 2),
                    number(losses[1], 2),
                );
            }
            if work["discarded"].as_u64().is_some_and(|discarded| discarded > 0) {
                let discarded = &work["discarded"];
                let _ = writeln!(
                    text,
                    "| {name} | {peer} | {test} | {threads} | discarded | {discarded} | - | - | - | - | - | - | - | - | - | - |"
                );
            }
        }
    }
    text += "\n| model, ours | first token after 16 ids, ms from the start | of it loading | artefacts MB | tables MB | states MB | most resident MB |\n";
    text += "|---|---:|---:|---:|---:|---:|---:|\n";
    for case in list(&figures["cases"]) {
        let report = &case["report"];
        let milliseconds = |value: &Value| number(&Value::from(value.as_f64().unwrap_or(0.0) * 1e3), 1);
        let megabytes =
            |name: &str| number(&Value::from(report["memory"][name].as_f64().unwrap_or(0.0) / 1e6), 0);
        let _ = writeln!(
            text,
            "| {} | {} | {} | {} | {} | {} | {} |",
            word(&case["case"]),
            milliseconds(&report["first_token"]["since_start_seconds"]),
            milliseconds(&report["opening"]["total_seconds"]),
            megabytes("artefact_bytes"),
            megabytes("table_bytes"),
            megabytes("state_bytes"),
            megabytes("peak_resident_bytes"),
        );
    }
    let litert = &figures["litert_lm"];
    if let Some(why) = litert["skipped"].as_str() {
        let _ = writeln!(text, "\nLiteRT-LM ({}), {why}", word(&litert["package"]));
    }
    text
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Returns a text escaped for the table.
fn word(value: &Value) -> String {
    value.as_str().unwrap_or("?").replace('|', "/")
}

fn number(value: &Value, digits: usize) -> String {
    value.as_f64().map_or_else(|| "?".to_owned(), |value| format!("{value:.digits$}"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn pairs_become_lines_and_those_discarded_are_counted() {
        let share = json!({
            "pairs": 5, "load": 0.5, "of_probe": 0.612, "huge": 0.9, "probe": 50.25, "ours": 150.04, "peer": 100.0, "ratio": 1.5004, "least_ratio": 1.25, "largest_ratio": 1.75
        });
        let figures = json!({
            "processor": "a processor",
            "llama_cpp": { "source": "source==1", "built": "Release" },
            "litert_lm": { "package": "litert-lm==1", "skipped": "not measured: why" },
            "cases": [{
                "case": "model, format",
                "peer": "Q8_0",
                "threads": 2,
                "loss": { "ours": 2.5, "peer": 2.58 },
                "report": {
                    "first_token": { "since_start_seconds": 0.1234 },
                    "opening": { "total_seconds": 0.1 },
                    "memory": { "artefact_bytes": 270_000_000, "table_bytes": 1_000_000, "state_bytes": 2_000_000, "peak_resident_bytes": 300_000_000 },
                    "results": [{ "logits": "largest" }, { "logits": "all" }],
                    "pairs": {
                        "peer": { "build": "abc", "pinning": "taskset" },
                        "works": [
                            { "test": "tg128", "flash_attention": true, "slow": share, "fast": null, "discarded": 2 },
                            { "test": "tg128", "slow": null, "fast": share, "discarded": 0 },
                        ],
                    },
                },
            }],
        });
        let text = markdown(&figures);
        for line in [
            "| model, format | Q8_0 (flash attention) | tg128, the largest logit | 2 | slow | 5 | 0.5 | 50.2 | 61 % | 90 % | 150.0 | 100.0 | **1.50** | 1.25 to 1.75 | 2.50 | 2.58 |",
            "| model, format | Q8_0 | tg128 | 2 | fast | 5 | 0.5 | 50.2 | 61 % | 90 % | 150.0 | 100.0 | **1.50** | 1.25 to 1.75 | 2.50 | 2.58 |",
            "| model, format | Q8_0 | tg128, the largest logit | 2 | discarded | 2 | - | - | - | - | - | - | - | - | - | - |",
            "| model, format | 123.4 | 100.0 | 270 | 1 | 2 | 300 |",
            "LiteRT-LM (litert-lm==1), not measured: why",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(text.contains("a processor") && text.contains("llama.cpp abc"), "{text}");

        // A ratio at a larger or an unknown loss is not bold.
        for (loss, columns) in [
            (json!({ "ours": 36.0, "peer": 2.58 }), "36.00 | 2.58"),
            (json!({ "ours": null, "peer": 2.58 }), "? | 2.58"),
            (json!({ "ours": 2.5, "peer": null }), "2.50 | ?"),
        ] {
            let mut figures = figures.clone();
            figures["cases"][0]["loss"] = loss;
            let text = markdown(&figures);
            let line = format!("| 1.50 | 1.25 to 1.75 | {columns} |");
            assert!(text.contains(&line) && !text.contains("**"), "{line}\n{text}");
        }
    }

    #[test]
    fn figures_that_are_not_there_are_no_panic() {
        assert!(markdown(&json!({})).contains("unknown"));
        assert!(markdown(&json!({ "cases": [{}] })).contains('?'));
    }
}
