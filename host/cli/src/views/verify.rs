use std::fmt::Write;

use shardwright::{SelfTestReport, VerifyReport};

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
    for notice in &report.notices {
        let _ = writeln!(text, "note: {notice}");
    }
    let mut rows = table(&["", "compared", "worst", "tolerance", "at"]);
    for comparison in &report.comparisons {
        rows.add_row([
            format!("{} {}", if comparison.passed { "ok  " } else { "FAIL" }, comparison.what),
            comparison.compared.to_string(),
            format!("{:.2e}", comparison.worst),
            format!("{:.0e}", comparison.tolerance),
            comparison.place.clone(),
        ]);
    }
    let _ = writeln!(text, "\n{rows}");
    for skipped in &report.skipped {
        let _ = writeln!(text, "not compared: {skipped}");
    }
    if let Some(layer) = report.first_divergent_layer {
        let _ = writeln!(text, "first divergent layer: {layer}");
    }
    let _ = writeln!(text, "\n{}", if report.passed { "passed" } else { "FAILED" });
    text
}

/// Both verifications and whether the broken layer was named.
pub fn self_test(report: &SelfTestReport) -> String {
    let named =
        report.broken.first_divergent_layer.map_or_else(|| "none".to_owned(), |layer| layer.to_string());
    format!(
        "intact\n{}\nwith one norm scale of layer {} changed\n{}\nself-test {}: layer {} was broken, layer {named} was named\n",
        verify(&report.intact),
        report.broken_layer,
        verify(&report.broken),
        if report.passed { "passed" } else { "FAILED" },
        report.broken_layer,
    )
}
