use std::fmt::Write;
use std::path::Path;

use shardwright_delivery::{AdbReport, AiPackReport, HubReport, NeedsReport};
use shardwright_files::shell_quoted;

use super::{bytes, printable, table, wrapped};

/// Shows the AI packs that were written.
pub fn ai_packs(report: &AiPackReport) -> String {
    let mut rows = table(&["device group", "variant", "files", "on a device", "chips"]);
    for audience in &report.audiences {
        let chips: Vec<String> =
            audience.chips.iter().map(|chip| format!("{} {}", chip.manufacturer, chip.model)).collect();
        rows.add_row([
            audience.group.clone(),
            audience.soc.clone().unwrap_or_else(|| "none".to_owned()),
            audience.volumes.to_string(),
            bytes(audience.bytes),
            if chips.is_empty() { "all others".to_owned() } else { chips.join(", ") },
        ]);
    }
    let names: Vec<&str> = report.packs.iter().map(|pack| pack.name.as_str()).collect();
    let mode = report.mode.name();
    format!(
        "{rows}\nAI packs {} ({mode}) in {}; its README.md lists the entries for the app\'s own files\n",
        names.join(", "),
        report.path
    )
}

/// Shows the folder for adb that was written.
pub fn adb(report: &AdbReport) -> String {
    let mut text = format!(
        "{} for {} in {}\nbundle {}\nshims: {}\n",
        bytes(report.bytes),
        report.variants.join(", "),
        report.path,
        report.bundle,
        report.shims.join(", ")
    );
    if !report.libraries.is_empty() {
        let _ = writeln!(text, "vendor libraries, from your folder: {}", report.libraries.join(", "));
    }
    let script = shell_quoted(Path::new(&report.path).join(&report.script));
    let _ = writeln!(text, "SHARDWRIGHT_ANDROID=FOLDER sh {script} --prompt ...");
    text
}

/// Shows the folder for a hub that was written.
pub fn hub(report: &HubReport) -> String {
    let mut rows = table(&["file", "chip", "bytes", "sha256"]);
    for file in &report.files {
        rows.add_row([file.name.to_string(), file.soc.clone(), bytes(file.bytes), file.sha256.clone()]);
    }
    format!("{rows}\n{} with its card in {}\n", printable(&report.model), report.path)
}

/// Shows the requirements of a bundle.
pub fn needs(report: &NeedsReport) -> String {
    let mut text = String::new();
    for variant in &report.variants {
        let _ = writeln!(text, "== {}", variant.soc);
        for shim in &variant.shims {
            let licence = shim.licence.as_deref().unwrap_or("licence not stated");
            let compiled = shim.compiled_by.join(", ");
            let _ = writeln!(text, "shim {} ({}), compiled by {compiled}: {licence}", shim.name, shim.vendor);
            for library in &shim.libraries {
                let versions = library.versions.as_ref().map_or_else(String::new, |range| {
                    let below =
                        range.below.as_ref().map_or_else(String::new, |below| format!(", below {below}"));
                    format!(", {} from {}{below}", range.of, range.min)
                });
                let by = library.brought_by.name();
                let _ = writeln!(text, "  {} (provided by the {by}{versions})", library.file);
                for (what, said) in
                    [("licence", &library.licence), ("from", &library.obtained), ("", &library.note)]
                {
                    let said = if what.is_empty() { said.clone() } else { format!("{what}: {said}") };
                    if !said.is_empty() {
                        let _ = writeln!(text, "{}", wrapped(&format!("    {}", printable(&said)), 4));
                    }
                }
            }
        }
    }
    let android = &report.android;
    text.push_str("== an Android app declares\n");
    if android.manifest.is_empty() && !android.extracted_libraries && android.variables.is_empty() {
        text.push_str("no entries\n");
    }
    for line in &android.manifest {
        let _ = writeln!(text, "{line}");
    }
    if android.extracted_libraries {
        text.push_str("packaging { jniLibs { useLegacyPackaging = true } }\n");
    }
    for (name, value) in &android.variables {
        let _ = writeln!(text, "{name}={value}");
    }
    for note in &android.notes {
        let _ = writeln!(text, "{}", wrapped(&format!("note: {}", printable(note)), 2));
    }
    for skipped in &report.skipped {
        let _ = writeln!(text, "{}", wrapped(&format!("skipped: {}", printable(skipped)), 2));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_of_a_folder_can_be_pasted() {
        let report = AdbReport {
            path: "my phone's folder".to_owned(),
            script: "push.sh".to_owned(),
            variants: Vec::new(),
            bundle: String::new(),
            bytes: 1,
            shims: Vec::new(),
            libraries: Vec::new(),
            there: String::new(),
        };
        let text = adb(&report);
        assert!(text.ends_with("sh 'my phone'\\''s folder/push.sh' --prompt ...\n"), "{text}");
    }
}
