use std::fmt::Write;

use shardwright::ShimsReport;

use super::table;

/// Usable shims with their devices, then what was skipped and why.
pub fn shims(report: &ShimsReport) -> String {
    let mut text = String::new();
    let mut rows = table(&["shim", "version", "vendor", "contract", "layout", "devices", "library"]);
    for shim in &report.shims {
        let devices: Vec<String> =
            shim.devices.iter().map(|device| format!("{} ({})", device.name, device.kind)).collect();
        rows.add_row([
            shim.name.clone(),
            shim.version.clone(),
            shim.vendor.clone(),
            shim.abi.clone(),
            shim.layout.clone(),
            shim.error.clone().unwrap_or_else(|| devices.join(", ")),
            shim.path.clone(),
        ]);
    }
    if rows.is_empty() {
        text.push_str("no usable shim was found\n");
    } else {
        let _ = writeln!(text, "{rows}");
    }
    for shim in report.shims.iter().filter(|shim| !shim.facts.is_empty()) {
        let facts = shim.facts.iter().map(|schema| match schema.required {
            true => format!("{} (required)", schema.fact.name),
            false => schema.fact.name.clone(),
        });
        let facts: Vec<String> = facts.collect();
        let _ = writeln!(text, "{} reads of a chip's profile: {}", shim.name, facts.join(", "));
    }
    for shim in &report.shims {
        for device in &shim.devices {
            for limit in &device.limits {
                let _ = writeln!(text, "{} {}: {limit}", shim.name, device.name);
            }
        }
    }
    if !report.skipped.is_empty() {
        text.push_str("\nskipped\n");
        for skipped in &report.skipped {
            let _ = writeln!(text, "  {}: {}", skipped.path, skipped.reason);
            if let Some(help) = &skipped.help {
                let _ = writeln!(text, "    help: {help}");
            }
        }
    }
    text
}
