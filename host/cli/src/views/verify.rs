use std::fmt::Write;

use shardwright::{BoundaryVerification, RowComparison, SelfTestReport, TokenVerification, VerifyReport};

use super::table;

/// What was compared, the worst of each, and the verdict.
pub fn verify(report: &VerifyReport) -> String {
    let mut text = String::new();
    if let Some(executor) = &report.emulated_on {
        let _ = writeln!(text, "*emulated on {executor}*\n");
    }
    let _ = writeln!(
        text,
        "{} for {}: {} shards, {} of them with layers",
        report.model, report.soc, report.shards, report.decoder_shards
    );
    if let Some(chain) = &report.bundle_chain {
        let _ = writeln!(text, "the artefacts of chain {chain} of the bundle");
    }
    for notice in &report.notices {
        let _ = writeln!(text, "note: {notice}");
    }

    let _ = writeln!(text, "\nthe chain as a whole, against recorded outputs");
    let mut rows = table(&["", "compared", "worst", "tolerance", "at"]);
    for comparison in &report.comparisons {
        rows.add_row([
            format!("{} {}", verdict(comparison.passed, comparison.judged), comparison.what),
            comparison.compared.to_string(),
            format!("{:.2e}", comparison.worst),
            format!("{:.0e}", comparison.tolerance),
            comparison.place.clone(),
        ]);
    }
    let _ = writeln!(text, "{rows}");
    for skipped in &report.skipped {
        let _ = writeln!(text, "not compared: {skipped}");
    }
    if let Some(tokens) = &report.tokens {
        text.push_str(&token_lines(tokens));
    }
    if let Some(layer) = report.first_divergent_layer {
        let _ = writeln!(text, "first divergent layer: {layer}");
    }
    for boundaries in &report.boundaries {
        text.push_str(&boundary_table(boundaries));
    }
    let _ = writeln!(text, "\n{}", if report.passed { "passed" } else { "FAILED" });
    text
}

fn verdict(passed: bool, judged: bool) -> &'static str {
    match (passed, judged) {
        (true, _) => "ok  ",
        (false, true) => "FAIL",
        (false, false) => "off ",
    }
}

fn token_lines(tokens: &TokenVerification) -> String {
    let mut text = String::new();
    if tokens.predicted > 0 {
        let _ = writeln!(
            text,
            "{} {}: {:.6} nats per token, {} {:.6}, loss {:+.3} % ({} tokens)",
            verdict(tokens.nll_passed, true),
            tokens.text,
            tokens.nll,
            tokens.source,
            tokens.wanted_nll,
            tokens.loss * 100.0,
            tokens.predicted
        );
    }
    if tokens.greedy_tokens > 0 {
        let first = tokens.first_difference.as_ref();
        let first = first.map_or_else(String::new, |place| format!(", first difference at {place}"));
        let _ = writeln!(
            text,
            "{} greedy: {} of {} tokens as wanted{first}",
            verdict(tokens.greedy_passed, true),
            tokens.greedy_agreed,
            tokens.greedy_tokens,
        );
    }
    text
}

/// One line per entry point and kind of result: all states together, and all layers within the shard.
fn boundary_table(boundaries: &BoundaryVerification) -> String {
    let mut text = format!("\nshard by shard, fed exact boundary values, against {}\n", boundaries.against);
    let bounds = &boundaries.thresholds;
    match boundaries.judged {
        true => {
            let _ = writeln!(
                text,
                "bounds: relative error of 95 % of rows {:.0e}, of the worst {:.0e}, cosine {}",
                bounds.row_p95, bounds.row_worst, bounds.cosine
            );
        }
        false => text.push_str("not judged: what the formats cost\n"),
    }
    let mut rows =
        table(&["shard", "entry", "result", "rows", "95 %", "worst", "cosine", "after", "worst at"]);
    for shard in &boundaries.shards {
        let mut name = shard.shard.as_str();
        for entry in &shard.entries {
            let mut entry_name = entry.entry.as_str();
            for group in groups(&entry.outputs) {
                let worst = group.worst;
                rows.add_row([
                    name.to_owned(),
                    entry_name.to_owned(),
                    format!("{} {}", verdict(group.passed, boundaries.judged), group.what),
                    group.rows.to_string(),
                    format!("{:.1e}", group.relative_p95),
                    format!("{:.1e}", worst.relative_worst),
                    format!("{:.6}", group.cosine),
                    worst.after.clone().unwrap_or_default(),
                    worst.worst_at.clone(),
                ]);
                (name, entry_name) = ("", "");
            }
            if entry.runs == 0 {
                rows.add_row([name, &entry.entry, "not run: no prompt fits"]);
                name = "";
            }
        }
    }
    let _ = writeln!(text, "{rows}");
    for shard in boundaries.shards.iter().filter(|_| boundaries.judged) {
        if let Some(layer) = shard.first_divergent_layer {
            let _ = writeln!(text, "{}: first divergent layer {layer}", shard.shard);
        }
    }
    text
}

/// Results of a kind.
struct Group<'r> {
    what: String,
    rows: u64,
    relative_p95: f64,
    cosine: f64,
    worst: &'r RowComparison,
    passed: bool,
}

fn groups(outputs: &[RowComparison]) -> Vec<Group<'_>> {
    let kind_of = |output: &RowComparison| match output.what.as_str() {
        what if what.starts_with("layer.") => "layers within",
        what if what.starts_with("state ") => "states",
        _ => "",
    };
    let mut groups: Vec<Group<'_>> = Vec::new();
    for kind in ["", "layers within", "states"] {
        let mut group: Option<Group<'_>> = None;
        let mut members = 0;
        for output in outputs.iter().filter(|output| kind_of(output) == kind) {
            members += 1;
            match group.as_mut().filter(|_| !kind.is_empty()) {
                None => {
                    groups.extend(group.take());
                    group = Some(Group {
                        what: output.what.clone(),
                        rows: output.rows,
                        relative_p95: output.relative_p95,
                        cosine: output.cosine_worst,
                        worst: output,
                        passed: output.passed,
                    });
                }
                Some(group) => {
                    group.rows += output.rows;
                    group.relative_p95 = group.relative_p95.max(output.relative_p95);
                    group.cosine = group.cosine.min(output.cosine_worst);
                    group.passed &= output.passed;
                    if output.relative_worst > group.worst.relative_worst {
                        group.worst = output;
                    }
                }
            }
        }
        if let Some(mut group) = group {
            if members > 1 && !kind.is_empty() {
                group.what = format!("{members} {kind}, worst {}", group.worst.what);
            }
            groups.push(group);
        }
    }
    groups
}

/// Both verifications and whether the broken layer was named.
pub fn self_test(report: &SelfTestReport) -> String {
    let named = |layer: Option<u32>| layer.map_or_else(|| "none".to_owned(), |layer| layer.to_string());
    let alone = report.broken.boundaries.iter().find(|boundaries| boundaries.judged);
    format!(
        "intact\n{}\nwith one norm scale of layer {} changed\n{}\nself-test {}: layer {} was broken, layer {} was named by the chain, layer {} by its shard\n",
        verify(&report.intact),
        report.broken_layer,
        verify(&report.broken),
        if report.passed { "passed" } else { "FAILED" },
        report.broken_layer,
        named(report.broken.first_divergent_layer),
        named(alone.and_then(|boundaries| boundaries.first_divergent_layer)),
    )
}
