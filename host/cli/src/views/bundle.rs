use std::fmt::Write;

use serde_json::Value;
use shardwright::{CompileReport, Pass};
use shardwright_build::units;
use shardwright_bundle as bundle;
use shardwright_doctor::{FlagAdvice, Inspected, ShimAnswer};

use super::{Detail, bytes, table};
use crate::commands::{DryRunReport, DryRunVariant};

/// Shows the result of compiling.
pub fn compiled(report: &CompileReport, detail: Detail) -> String {
    let mut text = String::new();
    for variant in &report.variants {
        if report.variants.len() > 1 {
            let _ = writeln!(text, "\n== {}", variant.soc);
        }
        // Required notices were printed on standard error.
        text.push_str(&super::plan_without_notices(&variant.plan, detail));
    }
    match report.variants.as_slice() {
        [only] if report.failed.is_empty() => {
            let size = bytes(report.bytes);
            let _ = writeln!(text, "\n{size} in {}: chains {}", report.directory, only.chains.join(", "));
        }
        _ => {
            let mut rows = table(&["variant", "shards", "chains", "on a device", "not shared"]);
            for variant in &report.variants {
                rows.add_row([
                    variant.soc.clone(),
                    variant.plan.shards.len().to_string(),
                    variant.chains.join(", "),
                    bytes(variant.bytes),
                    bytes(variant.own_bytes),
                ]);
            }
            for failed in &report.failed {
                let why = super::printable(&failed.error);
                rows.add_row([
                    failed.soc.clone(),
                    "not compiled".to_owned(),
                    why,
                    String::new(),
                    String::new(),
                ]);
            }
            let _ = writeln!(text, "\n{rows}\n{} in {}", bytes(report.bytes), report.directory);
        }
    }
    for variant in report.variants.iter().filter(|variant| variant.hedge_bytes > 0) {
        let (soc, more) = (&variant.soc, bytes(variant.hedge_bytes));
        let _ = writeln!(text, "hedges for {soc}, if a device cannot load the first chain: {more}");
    }
    if report.artefacts_reused > 0 {
        let were = if report.artefacts_reused == 1 { "was" } else { "were" };
        let reused = units::count(report.artefacts_reused as u64, "artefact");
        let _ = writeln!(text, "{reused} {were} already there");
    }
    let _ = writeln!(text, "bundle {}", report.bundle);
    text
}

/// Shows what each chip would get: a table of variants, and a table of all their chains.
pub fn dry_run(report: &DryRunReport) -> String {
    let mut rows = table(&["variant", "shards", "tables", "on a device", "memory", "speed", "loss"]);
    let mut chains = table(&["variant", "chain", "formats", "artefacts"]);
    for DryRunVariant { plan, chains: own, bytes: on_a_device } in &report.variants {
        let tables = plan.tables.iter().map(|table| format!("{} {}", table.name, table.format));
        let memory = super::forecast::memory_source(plan);
        rows.add_row([
            plan.soc.clone(),
            plan.shards.len().to_string(),
            tables.collect::<Vec<_>>().join("; "),
            format!("{} ({})", bytes(*on_a_device), plan.totals.artefacts.provenance),
            format!("{} ({memory})", bytes(plan.forecast.verdict.held_bytes)),
            super::forecast::speed(&plan.forecast.speed, Pass::Step),
            plan.totals.loss.micronats().map_or_else(|| "not known".to_owned(), units::micronats),
        ]);
        for chain in own {
            let formats = match &chain.lacking {
                Some(why) => format!("left out: {}", super::printable(why)),
                None => chain.formats.join("; "),
            };
            let source = chain.provenance.map_or_else(String::new, |source| format!(" ({source})"));
            let artefacts = bytes(chain.bytes) + &source;
            chains.add_row([plan.soc.clone(), chain.name.clone(), formats, artefacts]);
        }
    }
    for failed in &report.failed {
        let why = super::printable(&failed.error);
        let nothing = String::new;
        rows.add_row([
            failed.soc.clone(),
            "no plan".to_owned(),
            why,
            nothing(),
            nothing(),
            nothing(),
            nothing(),
        ]);
    }
    format!(
        "{rows}\n{chains}\nOn a device: the artefacts of all chains, each a fallback for the one before it, and the \
         gathered tables, without the tokenizer. No artefact was compiled.\n"
    )
}

/// Shows the result of packing.
pub fn packed(report: &bundle::PackReport) -> String {
    format!(
        "{} of {} in {}, {}\nbundle {}\n",
        units::count(report.parts as u64, "part"),
        bytes(report.part_bytes),
        report.path.display(),
        bytes(report.bytes),
        report.bundle
    )
}

/// Shows the contents of a file or directory.
pub fn inspected(inspected: &Inspected) -> String {
    match inspected {
        Inspected::Bundle(report) => {
            let mut text = bundle_view(&report.inspection);
            let is_listed = report.inspection.intact == Some(false);
            if let Some(fault) = report.unopened.as_ref().filter(|_| !is_listed) {
                let _ = writeln!(text, "damaged: {}", super::printable(&fault.error));
            }
            text.push_str(&super::ignored(&report.ignored, report.unread.as_ref()));
            for artefact in &report.artefacts {
                let _ = writeln!(
                    text,
                    "\nshard {} of chain {} for {}",
                    artefact.shard, artefact.chain, artefact.soc
                );
                text.push_str(&shim_answer(&artefact.told));
            }
            for advice in &report.advice {
                let _ = writeln!(text, "\nchain {} for {}", advice.chain, advice.soc);
                text.push_str(&flag_advice(&advice.advice));
            }
            text
        }
        Inspected::Foreign(report) => format!(
            "{} of {}, according to shim {}\n{}{}",
            report.format,
            bytes(report.bytes),
            report.shim,
            super::document(&report.document),
            report.advice.iter().map(flag_advice).collect::<String>()
        ),
        Inspected::Checkpoint(report) => super::show(report),
        Inspected::Artefact(report) => {
            let head = &report.head;
            let mut text = format!(
                "artefact by {} {} for {}, {}\nsha256 {}\nwork order {}\n",
                head.shim,
                head.shim_version,
                head.device,
                bytes(head.payload_length),
                report.sha256,
                head.work_order
            );
            for entry in &head.entries {
                let _ = writeln!(text, "  {} of {}", entry.name, entry.segments);
            }
            for flag in &head.flags {
                let _ = writeln!(text, "  flag {}: {}", flag.flag, flag.verdict);
            }
            text.extend(report.told.as_ref().map(shim_answer));
            text
        }
        Inspected::WorkOrder(report) => {
            let mut text = format!(
                "work order, {} weights of {}\nsha256 {}\n",
                report.weights,
                bytes(report.weight_bytes),
                report.sha256
            );
            for entry in &report.entries {
                let _ =
                    writeln!(text, "  {} of {}, {} operations", entry.name, entry.segments, entry.operations);
            }
            for flag in &report.flags {
                let _ = writeln!(text, "  flag {flag}");
            }
            text
        }
    }
}

/// Shows a shim's description of an artefact.
fn shim_answer(answer: &ShimAnswer) -> String {
    match (&answer.format, &answer.error) {
        (Some(format), _) => format!(
            "{format}, according to shim {}\n{}{}",
            answer.shim,
            super::document(&answer.document),
            answer.advice.iter().map(flag_advice).collect::<String>()
        ),
        (None, error) => {
            let reason = error.as_deref().unwrap_or("it gave no reason");
            format!("shim {} cannot describe it: {reason}\n", answer.shim)
        }
    }
}

/// Compares the flags of a compilation with the recommended ones.
fn flag_advice(advice: &FlagAdvice) -> String {
    let mut text = format!("flags of {}: {}\n", super::printable(&advice.name), advice.summary());
    for advised in advice.missing.iter().filter(|advised| !advised.note.is_empty()) {
        let _ = writeln!(text, "  {} ({}): {}", advised.flag, advised.provenance, advised.note);
    }
    if let Some(cost) = &advice.cost {
        let _ = writeln!(text, "  cost elsewhere: {cost}");
    }
    text
}

/// Returns the names of the shards of a chain.
fn chain_shards<'v>(variant: &'v bundle::Variant, chain: &str) -> impl Iterator<Item = &'v str> {
    let shards = variant.chain(chain).into_iter().flat_map(|chain| &chain.shards);
    shards.map(|shard| shard.name.as_str())
}

/// Shows a chain and its shards.
fn chain_view(chain: &bundle::ChainEntry) -> String {
    let mut text = String::new();
    let emulated = chain.emulated_on.as_ref().map(|on| format!(" *emulated on {on}*"));
    let _ = writeln!(text, "\nchain {}{}", chain.name, emulated.unwrap_or_default());
    if chain.is_hedge() {
        let limit = |(name, value): &(String, u64)| format!("{name} ≤ {}", units::quantity(name, *value));
        let limits: Vec<String> = chain.within.iter().map(limit).collect();
        let _ = writeln!(text, "hedge within {}", super::printable(&limits.join(", ")));
    }
    if let Some(planner) = &chain.planner {
        let _ = writeln!(text, "planned by {}", super::printable(&planner.to_string()));
    }
    let mut shards = table(&["shard", "target", "shim", "formats", "entry points", "artefact", "flags"]);
    for shard in &chain.shards {
        let entries: Vec<String> = shard.entries.iter().map(ToString::to_string).collect();
        let compiled = shard.flags.iter();
        let compiled = compiled.map(|existing| format!("{} {}", existing.flag, existing.verdict.name()));
        let loaded = shard.load_flags.iter().map(|flag| format!("{flag} at loading"));
        let flags: Vec<String> = compiled.chain(loaded).collect();
        shards.add_row([
            shard.name.clone(),
            shard.target.name.clone(),
            format!("{} {}", shard.compiled_by.shim, shard.compiled_by.version),
            shard.formats.to_string(),
            entries.join(" "),
            bytes(shard.artefact.bytes),
            flags.join(", "),
        ]);
    }
    let _ = writeln!(text, "{shards}");
    if let Some(speculation) = &chain.speculation {
        let _ = writeln!(text, "proposals: {}", super::printable(&speculation.to_string()));
    }
    for shard in &chain.shards {
        if let Some(cap) = shard.logits_softcap {
            let _ = writeln!(text, "soft-cap {cap} of the output of {}: by the runtime, in f32", shard.name);
        }
    }
    text
}

/// Adds a line for an option. An option with members, such as `limit`, has a line for each.
fn option_view(text: &mut String, name: &str, value: &Value) {
    if let Value::Object(members) = value {
        members.iter().for_each(|(member, value)| option_view(text, &format!("{name}.{member}"), value));
        return;
    }
    let items = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    let items: Vec<String> =
        items.iter().map(|item| item.as_str().map_or_else(|| item.to_string(), str::to_owned)).collect();
    let _ = writeln!(text, "option: {name}={}", items.join(","));
}

fn variant_view(variant: &bundle::Variant) -> String {
    let mut text = format!("\nplanned for {} by {}\n", variant.soc, variant.planner);
    if let Some(calibration) = &variant.calibration {
        let _ = writeln!(text, "calibration {calibration}");
    }
    for (name, value) in &variant.options {
        option_view(&mut text, name, value);
    }
    for model in variant.models() {
        if model.pass != Pass::Step {
            let _ = writeln!(text, "\ntower of a {}", model.pass);
        }
        model.chains.iter().for_each(|chain| text.push_str(&chain_view(chain)));
        for asset in model.assets {
            let _ = writeln!(
                text,
                "table {} [{}, {}] {}, {}",
                asset.name,
                asset.entries,
                asset.width,
                asset.dtype,
                bytes(asset.table.bytes)
            );
        }
    }
    for verification in &variant.verifications {
        let outcome = if verification.passed { "passed" } else { "FAILED" };
        let _ = writeln!(text, "verification {} {outcome}: {}", verification.name, verification.summary);
        if let Some(twin) = &verification.twin {
            let _ = writeln!(
                text,
                "  by a twin compiled from its work orders for {}: {}",
                twin.device, twin.differs
            );
            for (artefact, shard) in twin.artefacts.iter().zip(chain_shards(variant, &verification.chain)) {
                let _ = writeln!(text, "  {shard}: {artefact}");
            }
        }
    }
    for notice in &variant.notices {
        let _ = writeln!(text, "note: {}", super::printable(&notice.text));
    }
    text
}

fn bundle_view(inspection: &bundle::BundleInspection) -> String {
    let manifest = &inspection.manifest;
    let model = &manifest.model;
    let mut text = format!(
        "bundle of {} ({}), {}, by {}\nsha256 {}\ncheckpoint {}\n",
        model.name,
        model.family,
        bytes(inspection.total_bytes),
        manifest.program,
        inspection.sha256,
        model.checkpoint
    );
    if let Some(signature) = &inspection.signature {
        let holds = if signature.holds { "" } else { "; the signature is invalid" };
        let (name, release) = (&signature.statement.name, signature.statement.release);
        let _ = writeln!(text, "signed as `{name}`, release {release}, by {}{holds}", signature.key);
    }
    for variant in &manifest.variants {
        text.push_str(&variant_view(variant));
    }
    for file in &inspection.files {
        if let bundle::FileState::Damaged { reason, .. } = &file.state {
            let _ = writeln!(text, "damaged: {} ({}): {reason}", file.used_as.join(", "), file.file.sha256);
        }
    }
    let all = inspection.files.len();
    let unread = inspection.files.iter().filter(|file| file.state == bundle::FileState::Present);
    let sizes: Vec<u64> = unread.map(|file| file.file.bytes).collect();
    let _ = match (inspection.intact, inspection.verified) {
        (Some(true), _) => {
            writeln!(text, "verified byte by byte: all {all} files, {}", bytes(inspection.total_bytes))
        }
        (_, false) if !sizes.is_empty() => writeln!(
            text,
            "not verified: {} of {all} files, {}, have the right size, and `--verify` hashes them",
            sizes.len(),
            bytes(sizes.iter().sum())
        ),
        _ => Ok(()),
    };
    for stray in &inspection.unreferenced {
        let _ = writeln!(text, "not part of the bundle: {}", stray.name);
    }
    text
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn options_are_shown_by_name_with_lists_joined() {
        let mut text = String::new();
        for (name, value) in [
            ("context", json!(64)),
            ("limit", json!({"ops": 400, "tensors": 9})),
            ("on", json!("simulator")),
            ("tower", json!({"formats": ["w8-per-channel/a16/a8", "stored"], "passes": []})),
            ("without-flag", json!({"fast": true})),
        ] {
            option_view(&mut text, name, &value);
        }
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(
            lines,
            [
                "option: context=64",
                "option: limit.ops=400",
                "option: limit.tensors=9",
                "option: on=simulator",
                "option: tower.formats=w8-per-channel/a16/a8,stored",
                "option: tower.passes=",
                "option: without-flag.fast=true",
            ]
        );
    }
}
