//! From a checkpoint directory to loaded shards: read, plan, compile, load.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use shardwright_build::bundle::RewriteEntry;
use shardwright_build::graph::target::{
    FlagSchema, FlagType, FormatTuple, Limit, Provenance, Target, TargetKind,
};
use shardwright_build::graph::{
    ComponentKind, DType, EntryOptions, Graph, Op, Ranges, ValueSource, WeightData,
};
use shardwright_build::models::Checkpoint;
use shardwright_build::planning::builtin;
use shardwright_build::planning::check::CheckedPlan;
use shardwright_build::planning::error::{PlannerError, PlannerErrorKind};
use shardwright_build::planning::feedback::Attempt;
use shardwright_build::planning::pack::PublicKey;
use shardwright_build::planning::profile::{GENERIC, Profile, ProfileRegistry};
use shardwright_build::planning::registry::{PlannerEntry, PlannerRegistry};
use shardwright_build::planning::request::{Goals, PlannerOption, Request, TargetSummary};
use shardwright_build::planning::sandbox::{CompiledCache, EngineKind, LogLevel, Planner, Sandbox};
use shardwright_build::planning::session::{Planned as PlannedBy, PlanningSession, RevisionLoop, Trial};
use shardwright_build::shims::{DeviceKind, ShimInstance, Watch};
use shardwright_build::{
    BuildError, BuildSite, BuiltShard, EntryMenu, Executor as TargetExecutor, Judge, ModelFormats, ModelName,
    Notice, NoticeKind, PlanHeading, PlanReport, PlannerName, PrimitiveCount, Shelf, ShimJudge, TargetOffer,
    Unkept, compile_plan, make_request, report_plan, shard_name, stored_formats,
};
use shardwright_runtime::{
    Chain, ChainDescription, NextChainError, Place, PlacementRecord, SessionError, ShardDescription,
    ShardExecutor, ShardOrigin, ShimShard,
};

use crate::isolation::Shims;
use crate::making::Making;
use crate::measuring;
use crate::model::{BuiltOrigin, NextOf, Origin};
use crate::text_side::TextSide;
use crate::{Error, ErrorKind, Executor, FormatChoice, Model, OpenOptions, Result};

/// Context taken when none is asked for, where the model allows more: long enough for a conversation, small enough for a phone.
const DEFAULT_CONTEXT: u32 = 4096;

/// Name of the shim that stands in for others under [`Executor::Cpu`].
const CPU_SHIM: &str = "cpu";

/// A plan that was made and checked, but not carried out.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The plan beside its tables.
    pub report: PlanReport,
    /// The request the planner was asked, as canonical JSON.
    pub request: Vec<u8>,
}

/// Plans without compiling.
pub(crate) fn plan(checkpoint: &Path, options: &OpenOptions) -> Result<Planned> {
    let checkpoint = Checkpoint::open(checkpoint)?;
    let preparation = Preparation::new(&checkpoint, checkpoint.graph(), options, Purpose::PlanOnly, &mut ())?;
    let planned = preparation.session.plan(&preparation.request)?;
    let mut report = preparation.report(&planned, 0, Vec::new())?;
    report.notices.extend(preparation.passing);
    Ok(Planned { report, request: preparation.request.canonical_bytes() })
}

/// Plans, compiles, revises what is refused, and loads.
pub(crate) fn open(directory: &Path, options: &OpenOptions, watch: &mut dyn Watch) -> Result<Model> {
    let text = TextSide::load(directory)?;
    let checkpoint = Checkpoint::open(directory)?;
    let settled = settle(&checkpoint, options, &mut Unkept, watch)?;
    let chain = settled.preparation.load(&settled.graph, &settled.shards)?;
    let next = going_on(directory, options, &settled);
    let plan = settled.told();
    let compiled = match options.taps {
        true => settled.shards.into_iter().map(|shard| shard.compiled).collect(),
        false => Vec::new(),
    };
    let origin = BuiltOrigin { plan, broken_layer: settled.broken_layer, compiled };
    Ok(Model::new(chain, next, text, Origin::Built(Box::new(origin))))
}

/// A plan that was carried out, before anything is loaded.
pub(crate) struct Settled {
    pub(crate) preparation: Preparation,
    /// The model, its tables in the formats asked for.
    pub(crate) graph: Graph,
    pub(crate) plan: CheckedPlan,
    pub(crate) shards: Vec<BuiltShard>,
    /// The same for the same inputs.
    pub(crate) report: PlanReport,
    /// What is to be said of this machine and this time, and is none of a bundle's business.
    passing: Vec<Notice>,
    pub(crate) ranges: Option<Ranges>,
    broken_layer: Option<u32>,
}

impl Settled {
    /// The report with everything that is to be said now.
    pub(crate) fn told(&self) -> PlanReport {
        let mut report = self.report.clone();
        report.notices.extend(self.passing.iter().cloned());
        report
    }
}

/// Plans and compiles, and revises what is refused.
pub(crate) fn settle(
    checkpoint: &Checkpoint,
    options: &OpenOptions,
    shelf: &mut dyn Shelf,
    watch: &mut dyn Watch,
) -> Result<Settled> {
    let mut graph = checkpoint.graph().clone();
    let broken_layer = if options.break_middle_layer { break_middle_layer(&mut graph) } else { None };
    let preparation = Preparation::new(checkpoint, &graph, options, Purpose::Run, watch)?;

    let entry_options = EntryOptions { taps: options.taps };
    let mut making = Making::new(checkpoint, &graph, options);
    let settled = RevisionLoop::new(&preparation.session).run(&preparation.request, |planned| {
        let Preparation { request, offers, executors, formats, .. } = &preparation;
        let made = making.materials(formats, request, &planned.plan, watch)?;
        let site = BuildSite { formats: &made, request, offers, executors, options: entry_options };
        match compile_plan(&site, &planned.plan, shelf, watch) {
            Ok(shards) => Ok(Trial::Accepted(shards)),
            Err(BuildError::Refused(feedback)) => Ok(Trial::Refused(vec![*feedback])),
            Err(error) => Err(Error::from(error)),
        }
    })?;

    let mut notices: Vec<Notice> = revised_notice(&settled.history).into_iter().collect();
    let assets = making.tables(watch)?;
    let measured = making.notices();
    let ranges = making.ranges().cloned();
    graph.assets = assets;
    for shard in &settled.result {
        notices.extend(rewritten_notice(shard));
        notices.extend(preparation.otherwise_notice(shard));
    }
    let report = preparation.report(&settled.planned, settled.history.len(), notices)?;
    let plan = settled.planned.plan;
    let mut preparation = preparation;
    preparation.let_go();
    let passing = std::mem::take(&mut preparation.passing).into_iter().chain(measured).collect();
    Ok(Settled { preparation, graph, plan, shards: settled.result, report, passing, ranges, broken_layer })
}

/// What a session goes on with when the chip is lost: everything on this machine's CPU, built when it is needed. `None` where the plan
/// names no other target, and under `strict`.
fn going_on(directory: &Path, options: &OpenOptions, settled: &Settled) -> Option<Arc<NextOf>> {
    let cpu = on_the_cpu(options, settled)?;
    let directory = directory.to_owned();
    Some(Arc::new(move || {
        let (directory, options) = (directory.clone(), cpu.clone());
        let mut tried = false;
        Box::new(move |_: &SessionError, _: &PlacementRecord| {
            (!std::mem::replace(&mut tried, true)).then(|| {
                let built = Checkpoint::open(&directory)
                    .map_err(Error::from)
                    .and_then(|checkpoint| settle(&checkpoint, &options, &mut Unkept, &mut ()))
                    .and_then(|settled| settled.preparation.load(&settled.graph, &settled.shards));
                built.map_err(NextChainError::new)
            })
        })
    }))
}

/// The options of the chain that a plan falls back to, in the formats of the plan.
pub(crate) fn on_the_cpu(options: &OpenOptions, settled: &Settled) -> Option<OpenOptions> {
    if options.strict || settled.plan.plan().fallback.is_empty() {
        return None;
    }
    let mut formats = Vec::new();
    for shard in &settled.plan.plan().shards {
        let choice = FormatChoice::Tuple(settled.preparation.request.formats[shard.formats as usize].clone());
        if !formats.contains(&choice) {
            formats.push(choice);
        }
    }
    formats.push(FormatChoice::Stored);
    let cpu = OpenOptions { soc: None, on: None, limits: Vec::new(), formats, ..options.clone() };
    Some(OpenOptions { planner: None, planner_options: Vec::new(), ..cpu })
}

/// That the plan which runs is not the first one is said, with the last refusal.
fn revised_notice(history: &[Attempt]) -> Option<Notice> {
    let last =
        history.last()?.feedback.first().map_or("no reason given", |feedback| feedback.message.as_str());
    let plans =
        if history.len() == 1 { "1 plan was".to_owned() } else { format!("{} plans were", history.len()) };
    Some(Notice::note(format!("{plans} refused and revised; last: {last}")))
}

/// Nodes that run otherwise than the graph has them are said once per shard.
fn rewritten_notice(shard: &BuiltShard) -> Option<Notice> {
    let first = shard.rewritten.first()?;
    Some(Notice::note(format!(
        "shard {}: {} operations run in another form than the graph has them, first `{}`: {}",
        shard.name,
        shard.rewritten.len(),
        first.name,
        first.reason
    )))
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Purpose {
    PlanOnly,
    Run,
}

/// Everything up to the question to the planner.
pub(crate) struct Preparation {
    pub(crate) profile: Profile,
    shims: Shims,
    offers: Vec<TargetOffer>,
    /// The model in each format of the request, counted.
    formats: ModelFormats,
    /// One per target; empty when nothing is to be run.
    executors: Vec<TargetExecutor>,
    /// Where shards run, one per target, once everything is compiled.
    places: Vec<RunPlace>,
    pub(crate) request: Request,
    session: PlanningSession,
    notices: Vec<Notice>,
    /// Of this machine and this time alone.
    passing: Vec<Notice>,
    emulated_on: Option<String>,
    threads: Option<u32>,
    strict: bool,
    /// Whether another planner than the built-in one was asked for.
    asked_planner: bool,
}

impl Preparation {
    fn new(
        checkpoint: &Checkpoint,
        graph: &Graph,
        options: &OpenOptions,
        purpose: Purpose,
        watch: &mut dyn Watch,
    ) -> Result<Self> {
        let search = options.search();
        let mut profiles = ProfileRegistry::new();
        for directory in &search.profiles {
            profiles = profiles.with_directory(directory);
        }
        let profile = profiles.find(options.soc.as_deref().unwrap_or(GENERIC))?.profile;
        let shims = Shims::open(&search, options.isolation)?;

        let mut passing: Vec<Notice> = shims.notice.iter().map(Notice::note).collect();
        let mut notices: Vec<Notice> = Vec::new();
        let tuples = offered_formats(graph, &profile, &options.formats);
        let mut targets = targets(&profile);
        override_limits(&mut targets, &options.limits);
        let on = options.on;
        let mut offers = Vec::new();
        let mut executors = Vec::new();
        let mut emulated_on = None;
        for mut summary in targets {
            let own = open_target(&shims, &summary.target, options)?;
            notices.extend(complete(&mut summary, own.as_ref(), &profile)?);
            let judge: Box<dyn Judge> = match &own {
                Some(own) => Box::new(ShimJudge::new(own.instance.clone(), &own.device)),
                None => {
                    notices.push(Notice::note(format!(
                        "target {}: {}",
                        summary.target.name,
                        PrimitiveCount::default().describe()
                    )));
                    let (known, trusted) = known_formats(&profile, &tuples, &options.formats);
                    notices.extend(trusted);
                    Box::new(PrimitiveCount::knowing(known))
                }
            };
            if purpose == Purpose::Run {
                let (executor, emulated) = executor(&shims, &summary.target, own, on, options)?;
                if emulated {
                    emulated_on = Some(Executor::Cpu.name().to_owned());
                }
                executors.push(executor);
            }
            offers.push(TargetOffer { summary, judge });
        }
        if purpose == Purpose::PlanOnly && on == Some(Executor::Cpu) {
            let foreign = offers.iter().any(|offer| offer.summary.target.kind != TargetKind::Cpu);
            emulated_on = foreign.then(|| Executor::Cpu.name().to_owned());
        }
        let context = context(graph, options)?;
        let menu = EntryMenu::usual(graph, context);
        let goals = Goals {
            quality_per_mille: options.quality_per_mille,
            memory_bytes: None,
            context: if graph.is_generative() { context } else { 0 },
            max_prefill_rows: menu.largest_rows(),
            latency_microseconds: None,
        };
        let planner_options = options
            .planner_options
            .iter()
            .map(|(name, value)| PlannerOption { name: name.clone(), value: value.clone() })
            .collect();
        let facts = checkpoint.facts();
        let model = ModelName { name: facts.name.clone(), family: facts.family.to_string() };
        let formats = ModelFormats::counted(graph, &tuples)?;
        let mut request = make_request(graph, &model, &offers, &formats, &menu, goals, planner_options)?;
        if options.quality_per_mille.is_some() {
            request.sensitivities =
                measuring::sensitivities(checkpoint, graph, options, &tuples, &mut passing, watch)?;
        }
        Ok(Preparation {
            profile,
            shims,
            offers,
            formats,
            executors,
            places: Vec::new(),
            request,
            session: planning_session(options)?,
            notices,
            passing,
            emulated_on,
            threads: options.threads,
            strict: options.strict,
            asked_planner: options.planner.is_some(),
        })
    }

    /// The plan with everything that must be said of it; under `strict` a fallback is an error instead.
    fn report(&self, planned: &PlannedBy, refused_plans: usize, more: Vec<Notice>) -> Result<PlanReport> {
        let mut notices = self.notices.clone();
        if let Some(error) = &planned.fallback {
            notices.push(Notice::fallback(format!("{error}; the built-in planner took over")));
        }
        for line in planned.log.iter().filter(|line| matches!(line.level, LogLevel::Warn | LogLevel::Error)) {
            notices.push(Notice::note(format!("planner: {}", line.message)));
        }
        let flags: usize = planned.plan.plan().shards.iter().map(|shard| shard.flags.len()).sum();
        if self.emulated_on.is_some() && flags > 0 {
            notices.push(Notice::note(format!("{flags} planned compiler flags reach no compiler here")));
        }
        notices.extend(self.left_the_chip(planned));
        notices.extend(more);
        if self.strict
            && let Some(fallback) = notices.iter().find(|notice| notice.kind == NoticeKind::Fallback)
        {
            return Err(Error::new(ErrorKind::Strict, fallback.text.clone()));
        }
        let heading = PlanHeading {
            soc: self.profile.name.clone(),
            planner: PlannerName {
                name: planned.by.name.clone(),
                version: planned.by.version.clone(),
                built_in: !self.asked_planner || planned.fallback.is_some(),
            },
            refused_plans,
            notices,
            emulated_on: self.emulated_on.clone(),
        };
        Ok(report_plan(&self.request, &planned.plan, heading))
    }

    /// What a shim did otherwise than it was asked when it compiled a shard, said once per shard: nodes that run elsewhere than on the
    /// device, flags it refused or does not know.
    fn otherwise_notice(&self, shard: &BuiltShard) -> Option<Notice> {
        let executor = &self.executors[shard.target];
        let place = Place {
            instance: executor.instance.name().to_owned(),
            shim: executor.instance.shim().name().to_owned(),
            device: executor.device.clone(),
        };
        let origin = told_of(ShardOrigin::of_artefact(shard.artefact.head()), shard, &self.request);
        let found = origin.fallbacks(&place, self.emulated_on.is_some());
        let (what, because) = found.first()?;
        let mut text = format!("shard {}: {what}", shard.name);
        if !because.is_empty() {
            text += &format!(": {because}");
        }
        if found.len() > 1 {
            text += &format!("; and {} more", found.len() - 1);
        }
        Some(Notice::fallback(text))
    }

    /// Shards that were planned for the CPU although a chip was asked for and nobody asked for the CPU.
    fn left_the_chip(&self, planned: &PlannedBy) -> Vec<Notice> {
        let target = |index: u32| &self.request.targets[index as usize].target;
        if self.profile.kind == TargetKind::Cpu {
            return Vec::new();
        }
        let plan = planned.plan.plan();
        let mut notices = Vec::new();
        for (index, shard) in plan.shards.iter().enumerate() {
            let name = shard_name(&self.request, shard);
            let component = &self.request.model.components[shard.component as usize].name;
            let wanted = format!("place.{component}");
            let asked =
                self.request.options.iter().any(|option| option.name == wanted && option.value == CPU_SHIM);
            if target(shard.target).kind != TargetKind::Cpu || asked {
                continue;
            }
            let mut reasons = plan.reasons.iter().filter(|reason| reason.shard == Some(index as u32));
            let why = reasons.find(|reason| reason.choice.starts_with("target"));
            let why = why.map_or("the plan gives no reason", |reason| reason.because.as_str());
            notices.push(Notice::fallback(format!(
                "{name} runs on the CPU, not on {}: {why}",
                self.profile.name
            )));
        }
        notices
    }

    /// Closes what was opened for questions and compiling, as far as running opens its own: a chip may be open only once.
    fn let_go(&mut self) {
        let keeps = self.shims.compiles_where_it_runs();
        self.offers.clear();
        self.places = std::mem::take(&mut self.executors)
            .into_iter()
            .map(|executor| RunPlace {
                shim: executor.instance.shim().name().to_owned(),
                name: executor.instance.name().to_owned(),
                device: executor.device,
                instance: keeps.then_some(executor.instance),
            })
            .collect();
    }

    /// Loads every artefact on the executor of its target and joins them to a chain.
    pub(crate) fn load(&self, graph: &Graph, shards: &[BuiltShard]) -> Result<Chain> {
        let mut runners: Vec<Option<ShimInstance>> =
            self.places.iter().map(|place| place.instance.clone()).collect();
        let mut descriptions = Vec::new();
        let mut loaded: Vec<Box<dyn ShardExecutor>> = Vec::new();
        for shard in shards {
            let place = &self.places[shard.target];
            let options = thread_options(&place.shim, self.threads);
            let runner = match &runners[shard.target] {
                Some(runner) => runner.clone(),
                None => {
                    let opened = self.shims.open_to_run(&place.shim, &place.name, &options)?;
                    runners[shard.target].insert(opened).clone()
                }
            };
            let artefact = runner.load(&place.device, &shard.artefact, &options)?;
            let mut description = ShardDescription::of(&shard.name, &artefact).ok_or_else(|| {
                Error::new(
                    ErrorKind::Shim,
                    format!("shard {} was compiled to nothing that can run", shard.name),
                )
            })?;
            let origin = std::mem::take(&mut description.origin);
            description.origin = told_of(origin, shard, &self.request);
            descriptions.push(description);
            loaded.push(Box::new(ShimShard::new(artefact)));
        }
        let mut description = ChainDescription::of(graph, descriptions);
        description.emulated_on.clone_from(&self.emulated_on);
        Ok(Chain::new(description, loaded, graph.assets.clone())?)
    }
}

/// What the planner may choose from, best first: what the user names, else what the chip is known to take, then every weight as it is
/// stored.
fn offered_formats(graph: &Graph, profile: &Profile, named: &[FormatChoice]) -> Vec<FormatTuple> {
    let stored = stored_formats(graph);
    let mut offered: Vec<FormatTuple> = Vec::new();
    let known = profile.formats.iter().filter(|known| known.legal).map(|known| known.formats.clone());
    let candidates: Vec<FormatTuple> = match named {
        // A processor takes every format; which of them is faster is no reason to round somebody's weights.
        [] if profile.kind == TargetKind::Cpu => vec![stored.clone()],
        [] => known.chain([stored]).collect(),
        named => named
            .iter()
            .map(|choice| match choice {
                FormatChoice::Stored => stored.clone(),
                FormatChoice::Tuple(tuple) => tuple.clone(),
            })
            .collect(),
    };
    for tuple in candidates {
        if !offered.contains(&tuple) {
            offered.push(tuple);
        }
    }
    offered
}

/// What a chip whose shim is not here is taken to accept: what its profile says, and what the user names beyond that, which is said.
#[expect(clippy::type_complexity, reason = "what `PrimitiveCount` takes, beside the notices")]
fn known_formats(
    profile: &Profile,
    offered: &[FormatTuple],
    named: &[FormatChoice],
) -> (Vec<(FormatTuple, std::result::Result<(), String>)>, Vec<Notice>) {
    let mut known: Vec<_> = profile
        .formats
        .iter()
        .map(|known| {
            let refused = || Err(format!("profile {} says it is refused: {}", profile.name, known.note));
            (known.formats.clone(), if known.legal { Ok(()) } else { refused() })
        })
        .collect();
    let mut notices = Vec::new();
    if !named.is_empty() && !known.is_empty() {
        for tuple in offered {
            if known.iter().all(|(held, _)| held != tuple) {
                notices.push(Notice::note(format!(
                    "profile {} does not say whether the chip takes {tuple}; it is taken at your word",
                    profile.name
                )));
                known.push((tuple.clone(), Ok(())));
            }
        }
    }
    (known, notices)
}

/// Where the shards of a target run.
struct RunPlace {
    shim: String,
    name: String,
    device: String,
    /// The instance that compiled, where it runs too.
    instance: Option<ShimInstance>,
}

/// What was asked for a shard and what became of it, beyond what its artefact says.
fn told_of(origin: ShardOrigin, shard: &BuiltShard, request: &Request) -> ShardOrigin {
    let rewritten = shard.rewritten.iter().map(|rewritten| RewriteEntry {
        entry: rewritten.entry,
        name: rewritten.name.clone(),
        rewrite: rewritten.rewrite,
        reason: rewritten.reason.clone(),
    });
    ShardOrigin {
        requested: request.targets.get(shard.target).map(|target| target.target.clone()),
        formats: request.formats.get(shard.formats).cloned(),
        rewritten: rewritten.collect(),
        ..origin
    }
}

/// Options of a shim that has threads.
fn thread_options(shim: &str, threads: Option<u32>) -> Vec<(String, String)> {
    match threads {
        Some(threads) if shim == CPU_SHIM => vec![("threads".to_owned(), threads.to_string())],
        _ => Vec::new(),
    }
}

/// The chip of the profile and, where that is no CPU, this machine's CPU, which takes what the chip does not and what is left when
/// the chip is lost.
fn targets(profile: &Profile) -> Vec<TargetSummary> {
    let target = |name: &str, shim: &str, device: &str, kind| TargetSummary {
        target: Target { name: name.to_owned(), shim: shim.to_owned(), device: device.to_owned(), kind },
        limits: Vec::new(),
        schema: Vec::new(),
        recommended: Vec::new(),
    };
    let chip = match profile.kind {
        TargetKind::Cpu => target(CPU_SHIM, &profile.shim, CPU_SHIM, TargetKind::Cpu),
        kind => target(&profile.name, &profile.shim, &profile.name, kind),
    };
    let limits = profile.limits.clone();
    let mut targets = vec![TargetSummary { limits, ..chip }];
    if profile.kind != TargetKind::Cpu {
        targets.push(target(CPU_SHIM, CPU_SHIM, CPU_SHIM, TargetKind::Cpu));
    }
    targets
}

/// Adds what the target's own shim says: limits the profile does not have, the schema of its flags. Flags of the profile that the
/// shim does not know are left out, and that is said. Without the shim they are taken at their word: nobody can check them.
fn complete(summary: &mut TargetSummary, own: Option<&OwnShim>, profile: &Profile) -> Result<Vec<Notice>> {
    let mut notices = Vec::new();
    if let Some(own) = own {
        for limit in own.instance.limits(&own.device)? {
            if summary.limits.iter().all(|held| held.name != limit.name) {
                summary.limits.push(limit);
            }
        }
        summary.schema = own.instance.flags(&own.device)?;
        summary.target.device.clone_from(&own.device);
    }
    if summary.target.shim == profile.shim {
        for flag in &profile.flags {
            if own.is_none() {
                summary.schema.push(FlagSchema {
                    name: flag.name.clone(),
                    values: FlagType::Text { max_bytes: 256 },
                    default: None,
                    description: flag.note.clone(),
                });
            } else if !summary.schema.iter().any(|known| known.name == flag.name) {
                notices.push(Notice::note(format!(
                    "flag {} of profile {} is left out: shim `{}` does not know it",
                    flag.flag(),
                    profile.name,
                    summary.target.shim
                )));
                continue;
            }
            summary.recommended.push(flag.flag());
        }
    }
    Ok(notices)
}

struct OwnShim {
    instance: ShimInstance,
    device: String,
    kind: DeviceKind,
}

/// The target's own shim with its device, where both are there.
fn open_target(shims: &Shims, target: &Target, options: &OpenOptions) -> Result<Option<OwnShim>> {
    if shims.registry.get(&target.shim).is_none() {
        return Ok(None);
    }
    let instance =
        shims.open_to_compile(&target.shim, &target.name, &thread_options(&target.shim, options.threads))?;
    let soc = (target.kind != TargetKind::Cpu).then_some(target.device.as_str());
    let devices = instance.devices(soc)?;
    let wanted = |kind: DeviceKind| {
        devices.iter().find(|device| {
            device.kind == kind
                && (device.name == target.device || device.soc.as_deref() == Some(target.device.as_str()))
        })
    };
    // In order of preference: what is really here, what can at least run, what can at least compile.
    let kinds = match options.on {
        Some(Executor::Simulator) => [DeviceKind::Simulated, DeviceKind::Present, DeviceKind::Offline],
        _ => [DeviceKind::Present, DeviceKind::Simulated, DeviceKind::Offline],
    };
    let found = kinds.into_iter().find_map(wanted);
    Ok(found.map(|device| OwnShim {
        device: device.name.clone(),
        kind: device.kind,
        instance: instance.clone(),
    }))
}

/// What runs a target, and whether it is a stand-in.
fn executor(
    shims: &Shims,
    target: &Target,
    own: Option<OwnShim>,
    on: Option<Executor>,
    options: &OpenOptions,
) -> Result<(TargetExecutor, bool)> {
    if let Some(own) = own {
        let fits = match on {
            _ if target.kind == TargetKind::Cpu => own.kind == DeviceKind::Present,
            None | Some(Executor::Device) => own.kind == DeviceKind::Present,
            Some(Executor::Simulator) => own.kind == DeviceKind::Simulated,
            Some(Executor::Cpu) => false,
        };
        if fits {
            return Ok((
                TargetExecutor { instance: own.instance, device: own.device, is_target: true },
                false,
            ));
        }
    }
    if on != Some(Executor::Cpu) && target.kind != TargetKind::Cpu {
        let (what, help) = match on {
            Some(Executor::Simulator) => (
                "no simulator of it was found",
                "`--on cpu` runs its plan on this machine's CPU; `--on device` needs the chip",
            ),
            _ => (
                "the device was not found",
                "`--on cpu` runs its plan on this machine's CPU, `--on simulator` on the vendor's simulator where a shim has one",
            ),
        };
        return Err(Error::new(
            ErrorKind::Missing,
            format!("target {} ({} through shim `{}`): {what}", target.name, target.device, target.shim),
        )
        .with_help(help));
    }
    let instance = shims.open_to_compile(CPU_SHIM, &target.name, &thread_options(CPU_SHIM, options.threads)).map_err(|error| {
        error.with_help("`shardwright shim list` shows where shims were looked for; `cargo xtask build` builds the CPU shim")
    })?;
    let devices = instance.devices(None)?;
    let device = devices.iter().find(|device| device.kind == DeviceKind::Present).ok_or_else(|| {
        Error::new(ErrorKind::Shim, format!("shim `{CPU_SHIM}` has no device in this machine"))
    })?;
    let device = device.name.clone();
    Ok((TargetExecutor { instance, device, is_target: false }, target.kind != TargetKind::Cpu))
}

/// A limit of the user replaces the profile's of that name on every accelerator that has it; a new one goes to all accelerators, or
/// to the CPU where there is none.
fn override_limits(targets: &mut [TargetSummary], limits: &[(String, u64)]) {
    let accelerated = targets.iter().any(|target| target.target.kind != TargetKind::Cpu);
    for (name, value) in limits {
        for target in
            targets.iter_mut().filter(|target| !accelerated || target.target.kind != TargetKind::Cpu)
        {
            let mut limit = Limit::new(name, *value, Provenance::User);
            if let Some(position) = target.limits.iter().position(|held| held.name == *name) {
                let held = target.limits.remove(position);
                limit.note = format!("instead of {} ({})", held.value, held.provenance);
            }
            target.limits.push(limit);
        }
    }
}

fn context(graph: &Graph, options: &OpenOptions) -> Result<u32> {
    let model = u32::try_from(graph.context).unwrap_or(u32::MAX);
    match options.context {
        None => Ok(model.min(DEFAULT_CONTEXT)),
        Some(context) if context >= 1 && context <= model => Ok(context),
        Some(context) => {
            Err(Error::new(ErrorKind::Argument, format!("a context of {context} tokens is not possible"))
                .with_help(format!("this model takes from 1 to {model}")))
        }
    }
}

/// The planner asked for, with the built-in one behind it.
fn planning_session(options: &OpenOptions) -> Result<PlanningSession> {
    let tools = PlannerTools::new(options.cache.clone(), &options.trusted_keys)?;
    let session = match &options.planner {
        None => PlanningSession::new(tools.built_in()?),
        Some(named) => {
            let asked = match find_planner(named, &options.search().planners) {
                Ok(entry) => tools.load(&entry),
                Err(error) if options.strict => return Err(error),
                Err(error) => Err(PlannerError {
                    planner: named.clone(),
                    version: None,
                    kind: PlannerErrorKind::MissingFile {
                        path: PathBuf::from(named),
                        source: std::io::Error::new(std::io::ErrorKind::NotFound, error.to_string()).into(),
                    },
                }),
            };
            PlanningSession::with_planner(asked, Some(tools.built_in()?))
        }
    };
    Ok(session.strict(options.strict))
}

/// A path, or a name in one of the directories.
pub(crate) fn find_planner(named: &str, directories: &[PathBuf]) -> Result<PlannerEntry> {
    let path = Path::new(named);
    if path.exists() || named.contains(std::path::MAIN_SEPARATOR) || path.extension().is_some() {
        return Ok(PlannerEntry::from_path(path));
    }
    let registry =
        directories.iter().fold(PlannerRegistry::new(), |registry, dir| registry.with_directory(dir));
    Ok(registry.find(named)?)
}

/// The sandbox with its cache of compiled planners.
pub(crate) struct PlannerTools {
    pub(crate) sandbox: Sandbox,
    cache: Option<CompiledCache>,
    trusted: Vec<PublicKey>,
}

impl PlannerTools {
    pub(crate) fn new(cache: Option<PathBuf>, trusted: &[String]) -> Result<Self> {
        let key = |key: &String| {
            key.parse().map_err(|error| {
                Error::from_room(
                    ErrorKind::Argument,
                    error,
                    Some("`planner pack` prints the public key".to_owned()),
                )
            })
        };
        let trusted = trusted.iter().map(key).collect::<Result<_>>()?;
        let cache = cache.or_else(user_cache).map(|directory| CompiledCache::new(directory.join("planners")));
        Ok(PlannerTools { sandbox: Sandbox::new(EngineKind::Native)?, cache, trusted })
    }

    pub(crate) fn built_in(&self) -> Result<Planner> {
        Ok(builtin::load(&self.sandbox, self.cache.as_ref())?)
    }

    pub(crate) fn load(&self, entry: &PlannerEntry) -> std::result::Result<Planner, PlannerError> {
        entry.load(&self.sandbox, self.cache.as_ref(), &self.trusted)
    }
}

/// `$XDG_CACHE_HOME/shardwright`, else `~/.cache/shardwright`.
pub(crate) fn user_cache() -> Option<PathBuf> {
    let absolute = |path: PathBuf| path.is_absolute().then_some(path);
    let given = std::env::var_os("XDG_CACHE_HOME").map(PathBuf::from).and_then(absolute);
    let home =
        || std::env::var_os("HOME").map(PathBuf::from).and_then(absolute).map(|home| home.join(".cache"));
    given.or_else(home).map(|directory| directory.join("shardwright"))
}

/// Adds a half to the first norm scale of the layer in the middle; gives that layer.
fn break_middle_layer(graph: &mut Graph) -> Option<u32> {
    let middle = graph.layers() / 2;
    let decoder = graph.component(ComponentKind::Decoder).ok()?;
    let norm = decoder
        .nodes
        .iter()
        .find(|node| node.layer == Some(middle) && matches!(node.op, Op::RmsNorm { .. }))?;
    let scale = norm.inputs.get(1)?;
    let ValueSource::Constant(weight) = decoder.values[scale.0 as usize].source else { return None };
    let weight = graph.weights.get_mut(weight.0 as usize)?;
    let bytes = weight.data.bytes();
    let widened: Vec<f32> = match weight.dtype {
        DType::F32 => bytes.chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect(),
        DType::Bf16 => {
            bytes.chunks_exact(2).map(|b| half::bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
        }
        DType::F16 => {
            bytes.chunks_exact(2).map(|b| half::f16::from_le_bytes([b[0], b[1]]).to_f32()).collect()
        }
        _ => return None,
    };
    weight.data =
        WeightData::from_vec(widened.iter().flat_map(|value| (value + 0.5).to_le_bytes()).collect());
    weight.dtype = DType::F32;
    for component in &mut graph.components {
        let name = &weight.name;
        component
            .values
            .iter_mut()
            .filter(|value| value.name == *name)
            .for_each(|value| value.dtype = DType::F32);
    }
    Some(middle)
}
