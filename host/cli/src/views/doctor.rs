use std::fmt::Write;

use shardwright_build::LearnedFile;
use shardwright_bundle::UnloadedFile;
use shardwright_doctor::{BundlePrognosis, ChosenChain, DoctorReport, MachineReport, VariantPrognosis};

use super::{Detail, bytes, table, wrapped};

/// Shows the machine, items that were found, items that were skipped, and problems. Paths are shown
/// only with full detail.
pub fn doctor(report: &DoctorReport, detail: Detail) -> String {
    let mut text = format!("shardwright {}\n", report.version);
    text.push_str(&machine(&report.machine));
    let worker = report.worker.path.as_deref().unwrap_or("not found");
    let _ = writeln!(text, "{}", wrapped(&format!("worker: {worker}; {}", report.worker.meaning), 2));

    let places: Vec<_> = report.places.iter().filter(|place| detail.is_full() || !place.exists).collect();
    if !places.is_empty() || report.places.is_empty() {
        text.push_str("\nsearched directories\n");
    }
    for place in places {
        let there = if place.exists { "" } else { " (missing)" };
        let _ = writeln!(text, "  {}: {}{there}", place.what, place.path);
    }
    if report.places.is_empty() {
        text.push_str("  no directories\n");
    }

    text.push('\n');
    text.push_str(&super::shims(&report.shims, detail));
    text.push('\n');
    text.push_str(&profiles(report, detail));
    text.push('\n');
    text.push_str(&planners(report, detail));

    let header: &[&str] =
        if detail.is_full() { &["cache", "files", "bytes", "path"] } else { &["cache", "files", "bytes"] };
    let mut rows = table(header);
    for cache in report.caches.iter().filter(|cache| detail.is_full() || cache.files > 0) {
        let size = format!("{}{}", bytes(cache.bytes), if cache.partial { " or more" } else { "" });
        let mut row = vec![cache.what.clone(), cache.files.to_string(), size];
        if detail.is_full() {
            row.push(format!("{}{}", cache.path, if cache.exists { "" } else { " (missing)" }));
        }
        rows.add_row(row);
    }
    if !rows.is_empty() {
        let _ = writeln!(text, "\n{rows}");
    }

    text.push_str(&learned(&report.learned));
    text.push_str(&unloaded(&report.unloaded));

    let set: Vec<_> = report.environment.iter().filter(|variable| variable.value.is_some()).collect();
    if !set.is_empty() {
        text.push_str("\nenvironment\n");
    }
    for variable in set {
        let value = variable.value.as_deref().unwrap_or_default();
        let line = format!("  {}={value}  {}", variable.name, variable.meaning);
        let _ = writeln!(text, "{}", wrapped(&line, 4));
    }

    if let Some(bundle) = &report.bundle {
        text.push_str(&prognosis(bundle));
    }
    if !report.problems.is_empty() {
        text.push_str("\nproblems\n");
    }
    for problem in &report.problems {
        let _ = writeln!(text, "{}", wrapped(&format!("  {}", problem.what), 4));
        if let Some(help) = &problem.help {
            let _ = writeln!(text, "{}", wrapped(&format!("    help: {help}"), 6));
        }
    }
    let verdict = match &report.bundle {
        Some(bundle) if bundle.damaged_file.is_some() => "the bundle is damaged",
        Some(bundle) if bundle.would_run.is_none() => "the bundle cannot run here",
        Some(_) => "the bundle can run here",
        None if report.can_run => "models can run here",
        None => "no model can run here",
    };
    let _ = writeln!(text, "\n{verdict}");
    text
}

/// Shows the chips that have profiles, by the shim that serves them. With full detail, one line
/// each.
fn profiles(report: &DoctorReport, detail: Detail) -> String {
    if detail.is_full() {
        let mut rows = table(&["profile", "chip", "shim", "source"]);
        for profile in &report.profiles {
            let shim = format!("{}{}", profile.shim, if profile.shim_found { "" } else { " (not found)" });
            rows.add_row([&profile.name, &profile.title, &shim, &profile.source]);
        }
        return format!("{rows}\n");
    }
    let mut by_shim: Vec<(String, Vec<&str>)> = Vec::new();
    for profile in &report.profiles {
        let shim = format!("{}{}", profile.shim, if profile.shim_found { "" } else { " (not found)" });
        match by_shim.iter_mut().find(|(existing, _)| *existing == shim) {
            Some((_, names)) => names.push(&profile.name),
            None => by_shim.push((shim, vec![&profile.name])),
        }
    }
    let mut text = String::from("profiles of chips\n");
    for (shim, names) in by_shim {
        let _ = writeln!(text, "{}", wrapped(&format!("  {shim}: {}", names.join(", ")), 4));
    }
    text
}

fn planners(report: &DoctorReport, detail: Detail) -> String {
    if detail.is_full() {
        let mut rows = table(&["planner", "kind", "path"]);
        for planner in &report.planners {
            rows.add_row([&planner.name, &planner.kind, planner.path.as_deref().unwrap_or("")]);
        }
        return format!("{rows}\n");
    }
    let names = report.planners.iter().map(|planner| format!("{} ({})", planner.name, planner.kind));
    let line = format!("planners: {}", names.collect::<Vec<_>>().join(", "));
    format!("{}\n", wrapped(&line, 2))
}

/// Shows learned limits, by chip, with the file to remove to forget them.
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
            "learned limits of {} (shim {} {}{more}{settings})",
            compiler.chip, compiler.shim, compiler.shim_version
        );
        for limit in &file.limits {
            let _ = writeln!(text, "  {} ≤ {}: {}", limit.name, limit.value, limit.because);
        }
        let _ = writeln!(text, "  to forget them, remove {}", file.path);
    }
    if text.is_empty() { text } else { format!("\n{text}") }
}

/// Shows the chains that could not be loaded, with the file to remove to try each again.
fn unloaded(files: &[UnloadedFile]) -> String {
    let mut text = String::new();
    for file in files {
        let Some(chain) = &file.unloaded else { continue };
        let trial = &chain.trial;
        let drivers = trial.drivers.iter().map(|driver| {
            let more = [&driver.library, &driver.detail].into_iter().flatten();
            let more: String = more.map(|what| format!(", {what}")).collect();
            format!("shim {} {}{more}", driver.shim, driver.shim_version)
        });
        let bundle = trial.bundle.to_string();
        let line = format!(
            "chain {} of bundle {} for {} was not loaded ({}): {}: {}",
            trial.chain,
            &bundle[..16],
            trial.chip,
            drivers.collect::<Vec<_>>().join("; "),
            chain.class,
            chain.message
        );
        let _ = writeln!(text, "{}", wrapped(&super::printable(&line), 2));
        let _ = writeln!(text, "  to try it again, remove {}", file.path);
    }
    if text.is_empty() { text } else { format!("\n{text}") }
}

fn machine(machine: &MachineReport) -> String {
    let mut text = String::new();
    let known = |value: &Option<String>| value.clone().unwrap_or_else(|| "unknown".to_owned());
    let size = |count: Option<u64>| count.map_or_else(|| "unknown".to_owned(), bytes);
    let system = format!(
        "{}, kernel {}, {} cores: {}",
        machine.system,
        known(&machine.kernel),
        machine.cores,
        known(&machine.cpu)
    );
    let _ = writeln!(text, "{}", wrapped(&system, 2));
    let features = match machine.features.as_slice() {
        [] => "no known vector instructions".to_owned(),
        features => features.join(" "),
    };
    let memory = format!(
        "memory {}, {} free; page size {}; {features}",
        size(machine.memory_bytes),
        size(machine.memory_available_bytes),
        size(machine.page_bytes),
    );
    let _ = writeln!(text, "{}", wrapped(&memory, 2));
    for identity in &machine.identities {
        let _ = writeln!(text, "{}: {}", identity.source, identity.value);
    }
    match machine.profiles.as_slice() {
        [] => text.push_str("chip: no profile matches\n"),
        profiles => {
            let _ = writeln!(text, "chip: {}", profiles.join(", "));
        }
    }
    text
}

fn prognosis(bundle: &BundlePrognosis) -> String {
    let mut text = format!("\nbundle {}: {}, by {}\n", bundle.directory, bundle.model, bundle.program);
    for variant in &bundle.variants {
        text.push_str(&variant_prognosis(variant));
    }
    match &bundle.would_run {
        Some(ChosenChain { soc, chain }) if bundle.variants.len() > 1 => {
            let _ = writeln!(text, "chain {chain} of the variant for {soc} would run");
        }
        Some(ChosenChain { chain, .. }) => {
            let _ = writeln!(text, "chain {chain} would run");
        }
        None => text.push_str("no chain would run\n"),
    }
    text
}

fn variant_prognosis(variant: &VariantPrognosis) -> String {
    let mut text = format!("for {}\n", variant.soc);
    let towers = variant.towers.iter().flat_map(|tower| &tower.chains);
    let mut rows = table(&["chain", "shard", "", "compiled by", "shim here", "device", "why"]);
    for chain in variant.chains.iter().chain(towers) {
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
                shard.shim_here.clone().unwrap_or_else(|| "not found".to_owned()),
                shard.device.clone(),
                shard.reason.clone().unwrap_or_default(),
            ]);
        }
    }
    let _ = writeln!(text, "{rows}");
    for chain in variant.chains.iter().chain(variant.towers.iter().flat_map(|tower| &tower.chains)) {
        if let Some(skipped) = &chain.skipped {
            let line = format!("chain {} is skipped: {}", chain.name, super::printable(skipped));
            let _ = writeln!(text, "{}", wrapped(&line, 2));
        }
    }
    for chain in &variant.chains {
        if let Some(speculation) = &chain.speculation {
            let speculation = super::printable(&speculation.to_string());
            let _ = writeln!(text, "proposals in chain {}: {speculation}", chain.name);
        }
    }
    for proof in &variant.verifications {
        let verdict = if proof.passed { "passed" } else { "FAILED" };
        let _ = writeln!(
            text,
            "verification {} of chain {} {verdict}: {}",
            proof.name, proof.chain, proof.summary
        );
    }
    for tower in &variant.towers {
        let _ = match (&tower.would_run, &tower.damaged_table) {
            (Some(chain), _) => writeln!(text, "tower of a {}: chain {chain} would run", tower.pass),
            (None, Some(why)) => writeln!(text, "tower of a {}: no chain would run: {why}", tower.pass),
            (None, None) => writeln!(text, "tower of a {}: no chain would run", tower.pass),
        };
    }
    text
}
