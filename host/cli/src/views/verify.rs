use std::fmt::Write;

use shardwright_build::units;
use shardwright_verify::{
    BoundaryVerification, DivergenceVerification, EffortReport, RowComparison, SelfTestReport,
    TokenVerification, VerifyReport,
};

use super::table;

/// Shows the compared results, the worst of each kind, and the verdict.
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
        let _ = match &report.twin {
            None => writeln!(text, "the artefacts of chain {chain} of the bundle"),
            Some(twin) => writeln!(
                text,
                "a twin of chain {chain} of the bundle, whose chip is not available: the same work orders, compiled for {} ({})",
                twin.device, twin.differs
            ),
        };
    }
    for notice in report.signature_notices.iter().chain(&report.notices) {
        let _ = writeln!(text, "note: {}", super::printable(notice));
    }

    text.push_str(&effort_lines(&report.effort));

    let against = if report.recorded.is_some() { "recorded outputs" } else { "the reference evaluator" };
    let _ = writeln!(text, "\nthe chain as a whole, against {against}");
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
    if let Some(divergence) = &report.divergence {
        text.push_str(&divergence_line(divergence));
    }
    if let Some(layer) = report.first_divergent_layer {
        let _ = writeln!(text, "first divergent layer: {layer}");
    }
    text.push_str(&boundary_tables(&report.boundaries));
    for tower in &report.towers {
        let _ = writeln!(text, "\ntower of a {}, over {} of them", tower.pass, tower.samples);
        let against =
            [("the checkpoint in float", Some(&tower.soft_rows)), ("recorded ones", tower.recorded.as_ref())];
        for (against, rows) in against.into_iter().filter_map(|(against, rows)| Some((against, rows?))) {
            let _ = writeln!(
                text,
                "{} soft rows against {against}: {} rows, error of 95 % {:.1e}, worst {:.1e} at {}, mean cosine {:.6}",
                verdict(rows.passed, tower.exact),
                rows.rows,
                rows.relative_p95,
                rows.relative_worst,
                rows.worst_at,
                rows.cosine_mean
            );
        }
        text.push_str(&boundary_tables(&tower.boundaries));
    }
    let outcome = match (report.passed, report.not_run().count()) {
        (false, _) => "FAILED".to_owned(),
        (true, 0) => "passed".to_owned(),
        (true, 1) => "passed, with 1 entry point not run".to_owned(),
        (true, entries) => format!("passed, with {entries} entry points not run"),
    };
    let _ = writeln!(text, "\n{outcome}");
    text
}

/// Shows every shard alone. If there is a second comparison with the error of the formats alone, it
/// is shown in the same table.
fn boundary_tables(all: &[BoundaryVerification]) -> String {
    match all {
        [judged, float] if judged.judged && !float.judged => boundary_table(judged, Some(float)),
        all => all.iter().map(|boundaries| boundary_table(boundaries, None)).collect(),
    }
}

/// Shows how much was verified, and how much was left out.
fn effort_lines(effort: &EffortReport) -> String {
    let most = &effort.most;
    let rows = match most.evaluation {
        Some(rows) => format!("at most {rows} evaluation rows"),
        None => "all evaluation rows".to_owned(),
    };
    let mut text = format!(
        "compared{}: at most {} rows, {} positions and {} greedy tokens of each prompt; {rows}\n",
        if effort.simulated { " on a simulator" } else { "" },
        most.rows,
        most.steps,
        most.greedy,
    );
    for left in &effort.left_out {
        let _ = writeln!(text, "left out: {} of {} {}", left.of - left.taken, left.of, left.what);
    }
    if let Some(more) = &effort.for_more {
        let _ = writeln!(text, "for more: {more}");
    }
    text
}

/// A result that is not judged may still be within the tolerance.
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
            "{} greedy: {} of {} tokens as expected{first}",
            if tokens.greedy_judged { verdict(tokens.greedy_passed, true) } else { "not judged" },
            tokens.greedy_agreed,
            tokens.greedy_tokens,
        );
    }
    text
}

fn divergence_line(divergence: &DivergenceVerification) -> String {
    let DivergenceVerification { nats, error, tokens, text, bound, bound_from, passed } = divergence;
    if !nats.is_finite() {
        return format!(
            "{} KL divergence from the model as stored: not finite over {tokens} tokens\n",
            verdict(false, true)
        );
    }
    let (verdict, at_most) = match bound {
        Some(bound) => (verdict(*passed, true), format!("at most {:.2}", 1e3 * bound)),
        None => ("not judged", "no bound".to_owned()),
    };
    format!(
        "{} KL divergence from the model as stored: {:.2} ± {:.2} millinats per token over {tokens} tokens of {text}; {at_most}: {bound_from}\n",
        verdict,
        1e3 * nats,
        1e3 * error
    )
}

/// Shows one line per entry point and kind of result: all states together, and all layers within
/// the shard. `float` has the errors caused by the formats, for comparison.
fn boundary_table(boundaries: &BoundaryVerification, float: Option<&BoundaryVerification>) -> String {
    let mut text = format!("\nshard by shard, fed exact boundary values, against {}\n", boundaries.against);
    let bounds = &boundaries.thresholds;
    match boundaries.judged {
        true => {
            let _ = writeln!(
                text,
                "bounds: relative error {:.0e} and cosine {} for 95 % of rows, {:.0e} for the worst row",
                bounds.row_p95, bounds.cosine, bounds.row_worst
            );
        }
        false => text.push_str("not judged: the errors of the formats\n"),
    }
    let moved = boundaries.shards.iter().flat_map(|shard| &shard.entries).flat_map(|entry| &entry.outputs);
    let moved = moved.filter_map(|output| output.rounding_p95).fold(0.0, f64::max);
    if moved > 0.0 {
        let _ = writeln!(
            text,
            "rounding changes 95 % of the rows by up to {moved:.1e} of their length. A row may differ by √2 times its own change"
        );
    }
    if let Some(float) = float {
        let _ = writeln!(text, "the last two columns: against {}, not judged", float.against);
    }
    let mut columns =
        vec!["shard", "entry", "result", "rows", "95 %", "worst", "cosine", "after", "worst at"];
    if float.is_some() {
        columns.extend(["float 95 %", "cosine"]);
    }
    let mut rows = table(&columns);
    for (index, shard) in boundaries.shards.iter().enumerate() {
        let mut name = shard.shard.as_str();
        for entry in &shard.entries {
            let mut entry_name = entry.entry.as_str();
            let beside = float.and_then(|float| float.shards.get(index)).and_then(|shard| {
                shard
                    .entries
                    .iter()
                    .find(|existing| existing.entry == entry.entry)
                    .map(|entry| groups(&entry.outputs))
            });
            for group in groups(&entry.outputs) {
                let worst = group.worst;
                let mut row = vec![
                    name.to_owned(),
                    entry_name.to_owned(),
                    format!("{} {}", verdict(group.passed, boundaries.judged), group.what),
                    group.rows.to_string(),
                    format!("{:.1e}", group.relative_p95),
                    format!("{:.1e}", worst.relative_worst),
                    format!("{:.6}", group.cosine),
                    worst.after.clone().unwrap_or_default(),
                    worst.worst_at.clone(),
                ];
                let beside = beside.iter().flatten().find(|existing| existing.kind == group.kind);
                row.extend(beside.into_iter().flat_map(|existing| {
                    [format!("{:.1e}", existing.relative_p95), format!("{:.6}", existing.cosine)]
                }));
                rows.add_row(row);
                (name, entry_name) = ("", "");
            }
            if let Some(reason) = &entry.not_run {
                rows.add_row([name, &entry.entry, &format!("not run: {reason}")]);
                name = "";
            }
        }
    }
    let _ = writeln!(text, "{rows}");
    for shard in boundaries.shards.iter().filter(|_| boundaries.judged) {
        if let Some(layer) = shard.first_divergent_layer {
            let _ = writeln!(text, "{}: first divergent layer {layer}", shard.shard);
        }
        if let Some((rows, place)) = shard.not_finite() {
            let rows = units::count(rows, "row");
            let _ = writeln!(text, "{}: {rows} not finite, first in {place}", shard.shard);
        }
    }
    text
}

/// Results of one kind.
struct Group<'r> {
    /// `states`, `layers within`, or else the name of the only result.
    kind: String,
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
                        kind: if kind.is_empty() { output.what.clone() } else { kind.to_owned() },
                        what: output.what.clone(),
                        rows: output.rows,
                        relative_p95: output.relative_p95,
                        cosine: output.cosine_p95,
                        worst: output,
                        passed: output.passed,
                    });
                }
                Some(group) => {
                    group.rows += output.rows;
                    group.relative_p95 = group.relative_p95.max(output.relative_p95);
                    group.cosine = group.cosine.min(output.cosine_p95);
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

/// Shows both verifications and whether the broken layer was named.
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
