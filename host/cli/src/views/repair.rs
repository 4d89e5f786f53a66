use shardwright_build::units;
use std::collections::BTreeMap;
use std::fmt::Write;

use shardwright::Pass;
use shardwright_verify::RepairReport;

/// Shows the problems, the effort of the repair, and the verification of the repaired bundle.
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
        let _ = writeln!(text, "plan {number}{of} failed:");
        for reason in &attempt.reasons {
            let _ = writeln!(text, "  {}", super::printable(reason));
        }
    }
    if report.attempts.is_empty() {
        text.push_str("no repair needed: the bundle passes as it is\n");
    }
    let compilations = units::count(report.compilations as u64, "compilation");
    let compiled = &report.compiled;
    let _ = writeln!(
        text,
        "{}: {}, {}, identity {}\n{compilations}, {} reused\n",
        compiled.directory,
        units::count(compiled.shards as u64, "shard"),
        units::bytes(compiled.bytes),
        compiled.bundle,
        units::count(compiled.artefacts_reused as u64, "artefact")
    );
    text.push_str(&super::verify(&report.verification));
    text
}
