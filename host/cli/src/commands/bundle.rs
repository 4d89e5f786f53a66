use std::path::{Path, PathBuf};

use serde::Serialize;
use shardwright::{
    ChainPlan, ErrorKind, FailedVariant, Notice, OpenOptions, PlanMeasuring, PlanReport, Provenance,
    SearchPath,
};
use shardwright_build::BytesReport;
use shardwright_doctor::Inspected;
use shardwright_trust::Trust;

use super::{draft, open_options, print, print_by};
use crate::arguments::{CompileArguments, Format};
use crate::outcome::{Failure, Outcome, help_of};
use crate::views;

/// Compiles a checkpoint into a bundle.
pub fn compile(
    arguments: &CompileArguments,
    format: Format,
    detail: views::Detail,
) -> Result<Outcome, Failure> {
    let options = open_options(&arguments.target, &arguments.execution)?;
    let mut options = draft::planned(&arguments.drafts.drafts, options)?;
    let mut socs = arguments.target.socs();
    if socs.is_empty() {
        socs.push(String::new());
    }
    let Some(output) = arguments.output.as_ref().filter(|_| !arguments.dry_run) else {
        return dry_run(&options, &socs, &arguments.checkpoint, format);
    };
    if let Some(jobs) = arguments.jobs {
        if socs.len() < 2 {
            let what = "--jobs needs several chips (`--soc sm8850,sm8750`), got one";
            return Err(Failure::Arguments(what.to_owned()));
        }
        options = options.jobs(usize::try_from(jobs).unwrap_or(usize::MAX));
    }
    if let Some(bytes) = arguments.jobs_memory {
        options = options.jobs_memory(bytes);
    }
    if arguments.measure {
        options = options.measuring(PlanMeasuring::Always);
    }
    if let Some(bundle) = &arguments.reuse {
        options = options.reuse(bundle);
    }
    let mut watch = views::ProgressLine::new("compiling", &arguments.checkpoint);
    let mut report = match socs.as_slice() {
        [_] => options.compile(&arguments.checkpoint, output, &mut watch)?,
        several => options.compile_for(several, &arguments.checkpoint, output, &mut watch)?,
    };
    drop(watch);
    let several = report.variants.len() + report.failed.len() > 1;
    let plans = report.variants.iter().map(|variant| (&*variant.soc, &variant.plan));
    let notices = plans.flat_map(|(soc, plan)| plan.notices.iter().map(move |notice| (soc, notice)));
    say_of_chips(notices, several);
    report.failed.iter_mut().for_each(say_failed);
    let outcome = print(format, &report, |report| views::compiled(report, detail))?;
    Ok(if report.failed.is_empty() { outcome } else { Outcome::Different })
}

/// Prints each notice once, with the chips that it applies to if there are several.
fn say_of_chips<'n>(notices: impl Iterator<Item = (&'n str, &'n Notice)>, several: bool) {
    let mut said: Vec<(&Notice, Vec<&str>)> = Vec::new();
    for (soc, notice) in notices {
        match said.iter_mut().find(|(known, _)| *known == notice) {
            Some((_, socs)) if socs.contains(&soc) => {}
            Some((_, socs)) => socs.push(soc),
            None => said.push((notice, vec![soc])),
        }
    }
    for (notice, socs) in said {
        let of = if several { format!("{}: ", socs.join(", ")) } else { String::new() };
        views::say(&format!("{}: {of}{}", super::loudness(notice.kind), notice.text));
    }
}

/// Prints why a chip is left out, and adds the default help to an error without its own.
fn say_failed(failed: &mut FailedVariant) {
    let help = help_of(failed.kind, failed.help.take());
    views::say(&format!("not compiled for {}: {}", failed.soc, failed.error));
    views::say(&format!("help: {help}"));
    failed.help = Some(help);
}

/// The result of a dry run.
#[derive(Serialize)]
pub struct DryRunReport {
    /// The plans for each chip, in the requested order.
    pub variants: Vec<DryRunVariant>,
    /// Chips for which planning failed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failed: Vec<FailedVariant>,
}

/// The plans for one chip.
#[derive(Serialize)]
pub struct DryRunVariant {
    /// The plan of its first chain.
    #[serde(flatten)]
    pub plan: PlanReport,
    /// All chains in the order of a bundle.
    pub chains: Vec<DryRunChain>,
    /// Bytes of all artefacts and of the gathered tables. Tables of towers and texts are not
    /// included.
    pub bytes: u64,
}

/// A chain that would be compiled.
#[derive(Serialize)]
pub struct DryRunChain {
    /// Name of the chain in the bundle.
    pub name: String,
    /// The formats of its shards with weights, without duplicates.
    pub formats: Vec<String>,
    /// Bytes of its artefacts.
    pub bytes: u64,
    /// Where these bytes come from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub provenance: Option<Provenance>,
    /// Why the bundle would not contain the chain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub lacking: Option<String>,
}

impl DryRunChain {
    fn of(ChainPlan { name, made }: ChainPlan) -> DryRunChain {
        match made {
            Ok(plan) => {
                let shards = plan.shards.iter().filter(|shard| shard.weight_bytes > 0);
                let mut formats: Vec<String> = shards.map(|shard| shard.formats.clone()).collect();
                formats.dedup();
                let BytesReport { bytes, provenance } = plan.totals.artefacts;
                DryRunChain { name, formats, bytes, provenance: Some(provenance), lacking: None }
            }
            Err(error) => {
                let (formats, lacking) = (Vec::new(), Some(error.to_string()));
                DryRunChain { name, formats, bytes: 0, provenance: None, lacking }
            }
        }
    }
}

impl DryRunVariant {
    fn of(plan: PlanReport, chains: Vec<ChainPlan>) -> DryRunVariant {
        let chains: Vec<DryRunChain> = chains.into_iter().map(DryRunChain::of).collect();
        let artefacts = chains.iter().map(|chain| chain.bytes);
        let bytes = artefacts.chain([plan.totals.table_bytes]).fold(0, u64::saturating_add);
        DryRunVariant { plan, chains, bytes }
    }
}

/// Plans for each chip without compiling.
fn dry_run(
    options: &OpenOptions,
    socs: &[String],
    checkpoint: &Path,
    format: Format,
) -> Result<Outcome, Failure> {
    let mut watch = views::ProgressLine::new("planning", checkpoint);
    let mut report = DryRunReport { variants: Vec::new(), failed: Vec::new() };
    let mut first_error = None;
    for soc in socs {
        // A single chip keeps the options exactly as requested.
        let own = if socs.len() == 1 { options.clone() } else { options.for_chip(soc) };
        match own.plan_all_chains(checkpoint, &mut watch) {
            Ok((planned, chains)) => report.variants.push(DryRunVariant::of(planned.report, chains)),
            // With a single chip the error is the result. After an interrupt the other chips are
            // skipped.
            Err(error) if socs.len() == 1 || error.kind() == ErrorKind::Cancelled => return Err(error.into()),
            Err(error) => {
                report.failed.push(FailedVariant::of(soc.clone(), &error));
                first_error.get_or_insert(error);
            }
        }
    }
    drop(watch);
    if let Some(error) = first_error.filter(|_| report.variants.is_empty()) {
        return Err(error.into());
    }
    let plans = report.variants.iter().map(|variant| &variant.plan);
    let notices = plans.flat_map(|plan| plan.notices.iter().map(move |notice| (&*plan.soc, notice)));
    say_of_chips(notices, socs.len() > 1);
    report.failed.iter_mut().for_each(say_failed);
    let outcome = print(format, &report, views::dry_run)?;
    Ok(if report.failed.is_empty() { outcome } else { Outcome::Different })
}

/// Shows the contents of a file or directory. Damage, and with `strict` a field without effect,
/// fails after the readable parts are shown.
pub fn inspect(
    path: &PathBuf,
    (verify, strict): (bool, bool),
    soc: Option<&str>,
    search: &SearchPath,
    rules: &Trust,
    format: Format,
) -> Result<Outcome, Failure> {
    let busy = views::Busy::new("reading");
    let inspected = shardwright_doctor::inspect(path, verify, soc, search, rules, |_| ())?;
    drop(busy);
    if let Some(unused) = unused(&inspected, (verify, strict), soc) {
        return Err(Failure::Arguments(format!("{unused}, and {} is not one", path.display())));
    }
    let done = print_by(rules, format, &inspected, views::inspected)?;
    inspected.verdict(strict)?;
    Ok(done)
}

/// Returns the correct use of an option that does not apply here.
fn unused(inspected: &Inspected, (verify, strict): (bool, bool), soc: Option<&str>) -> Option<&'static str> {
    match inspected {
        Inspected::Bundle(_) => None,
        Inspected::Checkpoint(_) if verify => Some("--verify needs a bundle"),
        Inspected::Checkpoint(_) => soc.map(|_| "--soc needs a compiled file or a bundle"),
        _ if strict => Some("--strict needs a checkpoint or a bundle"),
        // The hash of an artefact is always checked, and so is the hash of a work order.
        Inspected::Artefact(_) => None,
        Inspected::WorkOrder(_) => soc.map(|_| "--soc needs a compiled file or a bundle"),
        Inspected::Foreign(_) => verify.then_some("--verify needs a bundle"),
    }
}
