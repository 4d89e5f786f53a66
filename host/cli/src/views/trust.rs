//! Shows signatures.

use std::fmt::Write;

use shardwright_doctor::SignatureReport;

/// Shows a signature, and the entries of a list of revocations.
pub fn signature(report: &SignatureReport) -> String {
    let statement = &report.statement;
    let mut text = format!(
        "{}\nsigns {} `{}`, release {}, {} of sha256 {}\nby {}\n",
        report.path.display(),
        statement.kind,
        statement.name,
        statement.release,
        super::bytes(statement.bytes),
        statement.sha256,
        report.key
    );
    if !report.holds {
        text.push_str("invalid: that key did not sign these bytes\n");
    }
    for key in report.revokes.iter().flat_map(|list| &list.keys) {
        let _ = writeln!(text, "revoked: {key}");
    }
    for least in report.revokes.iter().flat_map(|list| &list.least) {
        let _ = writeln!(text, "minimum release of {} `{}`: {}", least.kind, least.name, least.release);
    }
    text
}
