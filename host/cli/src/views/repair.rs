use std::collections::BTreeMap;
use std::fmt::Write;

use shardwright::Pass;
use shardwright_verify::RepairReport;

/// What was wrong, what it took, and the verification of the bundle that holds.
pub fn repair(report: &RepairReport) -> String {
    let mut text = String::new();
    let mut counted: BTreeMap<Pass, usize> = BTreeMap::new();
    for attempt in &report.attempts {
        let number = counted.entry(attempt.pass).or_default();
        *number += 1;
        let of = match attempt.pass {
            Pass::Step => String::new(),
            pass => format!(" of the tower of a {pass}"),
        };
        let _ = writeln!(text, "plan {number}{of} does not hold:");
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
