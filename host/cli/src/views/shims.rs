use std::fmt::Write;

use shardwright_doctor::{ShimReport, ShimsReport};

use super::{Detail, table, wrapped};

/// Shows a line for each shim: whether it can be used, or else what to do. Then shows skipped files
/// and the reasons. With full detail, also shows the path and the declarations of each shim.
pub fn shims(report: &ShimsReport, detail: Detail) -> String {
    let mut text = String::new();
    let mut rows = table(&["shim", "version", "state"]);
    for shim in &report.shims {
        rows.add_row([shim.name.clone(), shim.version.clone(), state(shim)]);
    }
    if rows.is_empty() {
        text.push_str("no usable shim was found\n");
    } else {
        let _ = writeln!(text, "{rows}");
    }
    if detail.is_full() {
        report.shims.iter().for_each(|shim| declared(&mut text, shim));
    }
    if !report.skipped.is_empty() {
        text.push_str("\nskipped\n");
        for skipped in &report.skipped {
            let _ = writeln!(text, "{}", wrapped(&format!("  {}: {}", skipped.path, skipped.reason), 4));
            if let Some(help) = &skipped.help {
                let _ = writeln!(text, "{}", wrapped(&format!("    help: {help}"), 6));
            }
        }
    }
    text
}

/// Formats `ready: cpu (present)`, or the obstacle.
fn state(shim: &ShimReport) -> String {
    if let Some(error) = &shim.error {
        return error.clone();
    }
    let devices = shim.devices.iter().map(|device| format!("{} ({})", device.name, device.kind));
    match devices.collect::<Vec<_>>().join(", ") {
        devices if devices.is_empty() => "ready, for chips with a profile".to_owned(),
        devices => format!("ready: {devices}"),
    }
}

fn declared(text: &mut String, shim: &ShimReport) {
    let mut line = |what: String| {
        let _ = writeln!(text, "{}", wrapped(&what, 4));
    };
    line(format!("\n{} {} of {}", shim.name, shim.version, shim.vendor));
    line(format!("  library: {}, found {}", shim.path, shim.search));
    line(format!("  contract {}, layout {}, queried {}", shim.abi, shim.layout, shim.asked));
    if let Some(library) = &shim.vendor_library {
        line(format!("  drives {library}"));
    }
    let facts = shim.facts.iter().map(|schema| match schema.required {
        true => format!("{} (required)", schema.fact.name),
        false => schema.fact.name.clone(),
    });
    let facts = facts.collect::<Vec<_>>();
    if !facts.is_empty() {
        line(format!("  uses from a chip's profile: {}", facts.join(", ")));
    }
    for device in &shim.devices {
        for limit in &device.limits {
            line(format!("  {}: {limit}", device.name));
        }
        if !device.measured.is_empty() {
            let flags: Vec<String> =
                device.measured.iter().map(|measured| measured.flag.to_string()).collect();
            line(format!("  {}: measured as fastest: {}", device.name, flags.join(", ")));
        }
    }
}
