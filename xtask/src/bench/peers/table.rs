//! The comparison as a Markdown page.

use std::fmt::Write;

use serde_json::Value;

/// Formats the figures as Markdown.
pub fn markdown(figures: &Value) -> String {
    let mut text = String::new();
    let peer = |name: &str| {
        let cases = list(&figures["cases"]).iter();
        let mut values = cases.filter_map(|case| case["report"]["pairs"]["peer"][name].as_str());
        values.next().unwrap_or("unknown").to_owned()
    };
    let _ = writeln!(
        text,
        "Processor: {}; {} threads, llama.cpp {} ({}; {}; pinned by {}), random weights. Ratios are of medians, ours to the peer's, with the least and the largest of single pairs; \"of it\" is what the weights that every token reads are of the probes.\n",
        peer("processor"),
        figures["threads"].as_str().unwrap_or("?"),
        peer("build"),
        figures["llama_cpp"]["source"].as_str().unwrap_or("?"),
        figures["llama_cpp"]["built"].as_str().unwrap_or("?"),
        peer("pinning"),
    );
    text += "| model, ours | peer | test | memory | pairs | load | GB/s | of it | ours tok/s | peer tok/s | ratio | of single pairs |\n";
    text += "|---|---|---|---|---:|---:|---:|---:|---:|---:|---:|---|\n";
    for case in list(&figures["cases"]) {
        let (name, peer) = (word(&case["case"]), word(&case["peer"]));
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
                    "| {name} | {peer}{flash} | {test} | {memory} | {} | {} | {} | {} | {} | {} | **{}** | {} to {} |",
                    share["pairs"],
                    number(&share["load"], 1),
                    number(&share["probe"], 1),
                    share["of_probe"]
                        .as_f64()
                        .map_or("-".to_owned(), |part| format!("{:.0} %", 100.0 * part)),
                    number(&share["ours"], 1),
                    number(&share["peer"], 1),
                    number(&share["ratio"], 2),
                    number(&share["least_ratio"], 2),
                    number(&share["largest_ratio"], 2),
                );
            }
            if work["discarded"].as_u64().is_some_and(|discarded| discarded > 0) {
                let discarded = &work["discarded"];
                let _ = writeln!(
                    text,
                    "| {name} | {peer} | {test} | discarded | {discarded} | - | - | - | - | - | - | - |"
                );
            }
        }
    }
    text += "\n| model, ours | first token after 16 ids, ms from the start | of it loading | weights MB | tables MB | states MB | most resident MB |\n";
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
            megabytes("weight_bytes"),
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
            "pairs": 5, "load": 0.5, "of_probe": 0.612, "probe": 50.25, "ours": 150.04, "peer": 100.0, "ratio": 1.5004, "least_ratio": 1.25, "largest_ratio": 1.75
        });
        let figures = json!({
            "threads": "2",
            "llama_cpp": { "source": "source==1", "built": "Release" },
            "litert_lm": { "package": "litert-lm==1", "skipped": "not measured: why" },
            "cases": [{
                "case": "model, format",
                "peer": "Q8_0",
                "report": {
                    "first_token": { "since_start_seconds": 0.1234 },
                    "opening": { "total_seconds": 0.1 },
                    "memory": { "weight_bytes": 270_000_000, "table_bytes": 1_000_000, "state_bytes": 2_000_000, "peak_resident_bytes": 300_000_000 },
                    "results": [{ "logits": "largest" }, { "logits": "all" }],
                    "pairs": {
                        "peer": { "processor": "a processor", "build": "abc", "pinning": "taskset" },
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
            "| model, format | Q8_0 (flash attention) | tg128, the largest logit | slow | 5 | 0.5 | 50.2 | 61 % | 150.0 | 100.0 | **1.50** | 1.25 to 1.75 |",
            "| model, format | Q8_0 | tg128 | fast | 5 | 0.5 | 50.2 | 61 % | 150.0 | 100.0 | **1.50** | 1.25 to 1.75 |",
            "| model, format | Q8_0 | tg128, the largest logit | discarded | 2 | - | - | - | - | - | - | - |",
            "| model, format | 123.4 | 100.0 | 270 | 1 | 2 | 300 |",
            "LiteRT-LM (litert-lm==1), not measured: why",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\n{text}");
        }
        assert!(text.contains("a processor") && text.contains("llama.cpp abc"), "{text}");
    }

    #[test]
    fn figures_that_are_not_there_are_no_panic() {
        assert!(markdown(&json!({})).contains("unknown"));
        assert!(markdown(&json!({ "cases": [{}] })).contains('?'));
    }
}
