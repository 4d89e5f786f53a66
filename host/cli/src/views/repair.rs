use std::fmt::Write;

use shardwright_verify::RepairReport;

/// What was wrong, what it took, and the verification of the bundle that holds.
pub fn repair(report: &RepairReport) -> String {
    let mut text = String::new();
    for (index, attempt) in report.attempts.iter().enumerate() {
        let _ = writeln!(text, "plan {} does not hold:", index + 1);
        for reason in &attempt.reasons {
            let _ = writeln!(text, "  {}", super::printable(reason));
        }
    }
    if report.attempts.is_empty() {
        text.push_str("nothing to repair: the bundle holds as it is\n");
    }
    let compilations = match report.compilations {
        1 => "1 compilation".to_owned(),
        count => format!("{count} compilations"),
    };
    let compiled = &report.compiled;
    let _ = writeln!(
        text,
        "{}: {} shards, {:.1} MiB, identity {}\n{compilations}, {} artefacts reused\n",
        compiled.directory,
        compiled.shards,
        compiled.bytes as f64 / f64::from(1 << 20),
        compiled.bundle,
        compiled.artefacts_reused
    );
    text.push_str(&super::verify(&report.verification));
    text
}
