use shardwright_hub::PullReport;

use super::{bytes, table};

/// Shows a pulled model: its files, its licence, and the path that opens it.
pub fn pulled(report: &PullReport) -> String {
    let mut files = table(&["file", "size", ""]);
    for file in &report.files {
        let fetched = if file.fetched { "fetched" } else { "already there" };
        files.add_row([file.name.clone(), bytes(file.bytes), fetched.to_owned()]);
    }
    let licence = report.licence.as_deref().unwrap_or("not stated in its model card");
    let gated = match &report.gated {
        Some(how) => format!(", gated ({how}): its owner requires users to accept terms"),
        None => String::new(),
    };
    format!(
        "{} at {} ({})\n\n{files}\nlicence: {licence}{gated}\npath: {}\n",
        report.id,
        report.revision,
        report.commit,
        report.path.display()
    )
}
