use std::fmt::Write;

use shardwright::{BundlePrognosis, DoctorReport, LearnedFile, MachineReport};

use super::{bytes, table};

/// The machine, what was found, what was passed over, and what is wrong.
pub fn doctor(report: &DoctorReport) -> String {
    let mut text = format!("shardwright {}\n", report.version);
    text.push_str(&machine(&report.machine));
    let worker = report.worker.path.as_deref().unwrap_or("not found");
    let _ = writeln!(text, "worker: {worker}; {}", report.worker.meaning);

    text.push_str("\nlooked into\n");
    for place in &report.places {
        let there = if place.exists { "" } else { " (not there)" };
        let _ = writeln!(text, "  {}: {}{there}", place.what, place.path);
    }
    if report.places.is_empty() {
        text.push_str("  no directory\n");
    }

    text.push('\n');
    text.push_str(&super::shims(&report.shims));
    for shim in &report.shims.shims {
        let library = shim.vendor_library.as_deref().unwrap_or("none of a vendor");
        let _ =
            writeln!(text, "{}: library {library}; found {}, asked {}", shim.name, shim.search, shim.asked);
    }

    let mut rows = table(&["profile", "", "shim", "from"]);
    for profile in &report.profiles {
        let shim = format!("{}{}", profile.shim, if profile.shim_found { "" } else { " (not here)" });
        rows.add_row([&profile.name, &profile.title, &shim, &profile.source]);
    }
    let _ = writeln!(text, "\n{rows}");

    let mut rows = table(&["planner", "", "path"]);
    for planner in &report.planners {
        rows.add_row([&planner.name, &planner.kind, planner.path.as_deref().unwrap_or("")]);
    }
    let _ = writeln!(text, "\n{rows}");

    let mut rows = table(&["cache", "files", "bytes", "path"]);
    for cache in &report.caches {
        let (files, size) = match cache.files {
            0 => (String::new(), String::new()),
            files => (files.to_string(), bytes(cache.bytes)),
        };
        let size = format!("{size}{}", if cache.partial { " or more" } else { "" });
        let path = format!("{}{}", cache.path, if cache.exists { "" } else { " (not there)" });
        rows.add_row([cache.what.clone(), files, size, path]);
    }
    let _ = writeln!(text, "\n{rows}");

    text.push_str(&learned(&report.learned));

    let set: Vec<_> = report.environment.iter().filter(|variable| variable.value.is_some()).collect();
    if !set.is_empty() {
        text.push_str("\nenvironment\n");
    }
    for variable in set {
        let value = variable.value.as_deref().unwrap_or_default();
        let _ = writeln!(text, "  {}={value}  {}", variable.name, variable.meaning);
    }

    if let Some(bundle) = &report.bundle {
        text.push_str(&prognosis(bundle));
    }
    if !report.problems.is_empty() {
        text.push_str("\nproblems\n");
    }
    for problem in &report.problems {
        let _ = writeln!(text, "  {}", problem.what);
        if let Some(help) = &problem.help {
            let _ = writeln!(text, "    help: {help}");
        }
    }
    let verdict = if report.can_run { "models can run here" } else { "no model can run here" };
    let _ = writeln!(text, "\n{verdict}");
    text
}

/// Limits that refusals taught, by chip, with the file to remove to forget them.
fn learned(files: &[LearnedFile]) -> String {
    let mut text = String::new();
    for file in files {
        let Some(compiler) = &file.learned_of else { continue };
        let more = [&compiler.library, &compiler.device].into_iter().flatten();
        let more: String = more.map(|what| format!(", {what}")).collect();
        let settings = compiler.settings.iter().map(|(name, value)| format!(", {name}={value}"));
        let settings: String = settings.collect();
        let _ = writeln!(
            text,
            "learned of {} (shim {} {}{more}{settings})",
            compiler.chip, compiler.shim, compiler.shim_version
        );
        for limit in &file.limits {
            let _ = writeln!(
                text,
                "  {} ≤ {}: {} was refused: {}",
                limit.name, limit.value, limit.refused, limit.evidence
            );
        }
        let _ = writeln!(text, "  to forget it, remove {}", file.path);
    }
    if text.is_empty() { text } else { format!("\n{text}") }
}

fn machine(machine: &MachineReport) -> String {
    let mut text = String::new();
    let known = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".to_owned());
    let size = |count: Option<u64>| count.map_or_else(|| "unknown".to_owned(), bytes);
    let _ = writeln!(
        text,
        "{}, kernel {}, {} cores: {}",
        machine.system,
        known(&machine.kernel),
        machine.cores,
        known(&machine.cpu)
    );
    let features = match machine.features.as_slice() {
        [] => "no vector instructions that are known here".to_owned(),
        features => features.join(" "),
    };
    let _ = writeln!(
        text,
        "memory {}, {} of it free; pages of {}; {features}",
        size(machine.memory_bytes),
        size(machine.memory_available_bytes),
        size(machine.page_bytes),
    );
    for identity in &machine.identities {
        let _ = writeln!(text, "{}: {}", identity.source, identity.value);
    }
    match machine.profiles.as_slice() {
        [] => text.push_str("chip: none that a profile names\n"),
        profiles => {
            let _ = writeln!(text, "chip: {}", profiles.join(", "));
        }
    }
    text
}

fn prognosis(bundle: &BundlePrognosis) -> String {
    let mut text = format!(
        "\nbundle {}: {} for {}, by {}\n",
        bundle.directory, bundle.model, bundle.soc, bundle.program
    );
    let mut rows = table(&["chain", "shard", "", "compiled by", "here", "device", "why"]);
    for chain in &bundle.chains {
        let mut name = match &chain.emulated_on {
            Some(executor) => format!("{} (emulated on {executor})", chain.name),
            None => chain.name.clone(),
        };
        for shard in &chain.shards {
            rows.add_row([
                std::mem::take(&mut name),
                shard.name.clone(),
                shard.state.name().to_owned(),
                shard.compiled_by.clone(),
                shard.shim_here.clone().unwrap_or_else(|| "not here".to_owned()),
                shard.device.clone(),
                shard.reason.clone().unwrap_or_default(),
            ]);
        }
    }
    let _ = writeln!(text, "{rows}");
    for proof in &bundle.verifications {
        let verdict = if proof.passed { "held" } else { "did NOT hold" };
        let _ = writeln!(text, "proof {} of chain {} {verdict}: {}", proof.name, proof.chain, proof.summary);
    }
    match &bundle.would_run {
        Some(chain) => {
            let _ = writeln!(text, "chain {chain} would run");
        }
        None => text.push_str("no chain would run\n"),
    }
    text
}
