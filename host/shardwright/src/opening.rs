//! From a checkpoint directory to loaded shards: read, plan, compile, load.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Instant;

use shardwright_build::bundle::Digest;
use shardwright_build::graph::{ComponentKind, EntryOptions, Graph, Op, Ranges, ValueSource, WeightData};
use shardwright_build::models::Checkpoint;
use shardwright_build::planning::builtin;
use shardwright_build::planning::check::CheckedPlan;
use shardwright_build::planning::error::{PlannerError, PlannerErrorKind};
use shardwright_build::planning::feedback::Attempt;
use shardwright_build::planning::pack::PublicKey;
use shardwright_build::planning::plan::Cause;
use shardwright_build::planning::profile::{FoundProfile, GENERIC, Profile, ProfileRegistry, ProfileSource};
use shardwright_build::planning::registry::{PlannerEntry, PlannerRegistry};
use shardwright_build::planning::request::{Goals, PlannerOption, Request, TargetSummary};
use shardwright_build::planning::sandbox::{CompiledCache, EngineKind, LogLevel, Planner, Sandbox};
use shardwright_build::planning::session::{Planned as PlannedBy, PlanningSession, RevisionLoop, Trial};
use shardwright_build::shims::{Chip, Part, ShimError, ShimInstance, Shims, Watch};
use shardwright_build::{
    ArtefactStore, BuildError, BuildSite, BuiltShard, Compiler, Costs, EntryMenu, Executor as TargetExecutor,
    Judge, Learned, ModelFormats, ModelName, NoArtefactStore, PlanHeading, PlanReport, PrimitiveCount,
    Question, ShimJudge, TargetOffer, compile_plan, make_request, report_plan, shard_name, stored_formats,
};
use shardwright_runtime::{
    Beforehand, Chain, ChainDescription, NextChainError, PlacementRecord, SessionError, ShardDescription,
    ShardExecutor, ShardOrigin, ShimShard,
};
use shardwright_vocabulary::{
    DType, Device, DeviceKind, Flag, FlagSchema, FlagStage, FlagType, FlagVerdict, FormatTuple, Limit,
    Notice, NoticeKind, PlannerIdentity, Provenance, Target, TargetKind, limit_names,
};

use crate::chips::{about_profile, chip_of, made_otherwise};
use crate::isolation::open_shims;
use crate::kept::KeptArtefacts;
use crate::load_flags;
use crate::making::Making;
use crate::measuring;
use crate::model::{BuiltOrigin, NextChainMaker, OpeningTimes, Origin};
use crate::text_side::{TextSide, TokenizerStart};
use crate::{Error, ErrorKind, Executor, FormatChoice, Model, OpenOptions, Result, user_cache_directory};

/// Context taken when none is asked for, where the model allows more: long enough for a
/// conversation, small enough for a phone.
const DEFAULT_CONTEXT: u32 = 4096;

/// Folder in the cache directory of limits that refusals taught.
pub(crate) const LEARNED: &str = "limits";

/// Name of the shim that stands in for others under [`Executor::Cpu`].
pub(crate) const CPU_SHIM: &str = "cpu";

/// The planner option that names a format; where it is given, a CPU's are offered too.
const FORMAT_OPTION: &str = "format";

/// A plan that was made and checked, but not carried out.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The plan beside its tables.
    pub report: PlanReport,
    /// The request the planner was asked, as canonical JSON.
    pub request: Vec<u8>,
}

/// Plans without compiling.
pub(crate) fn plan(checkpoint: &Path, options: &OpenOptions, watch: &mut dyn Watch) -> Result<Planned> {
    let checkpoint = crate::given::checkpoint(checkpoint)?;
    let preparation = Preparation::new(&checkpoint, checkpoint.graph(), options, Purpose::Plan, watch)?;
    let planned = preparation.session.plan(&preparation.request)?;
    let mut report = preparation.report(&planned, 0, Vec::new())?;
    report.notices.extend(preparation.passing);
    Ok(Planned { report, request: preparation.request.canonical_bytes() })
}

/// How far opening is when everything is compiled and nothing loaded, of 1000.
const SETTLED: u32 = 950;

/// Plans, compiles, revises what is refused, and loads.
pub(crate) fn open(directory: &Path, options: &OpenOptions, watch: &mut dyn Watch) -> Result<Model> {
    let started = Instant::now();
    crate::given::none_but_checkpoints(directory)?;
    // Its thread begins before the checkpoint is read.
    let text = TextSide::load(directory, TokenizerStart::of(options.tokenizer_when_asked))?;
    let checkpoint = Checkpoint::open(directory)?;
    let reading = started.elapsed();
    watch.progress(0, "reading");
    let mut all = Part::new(watch, 0..1000);
    let (mut kept, not_kept) = match KeptArtefacts::of(options, checkpoint.graph()) {
        Some(Ok(kept)) => (Some(kept), None),
        Some(Err(why)) => (None, Some(why)),
        None => (None, None),
    };
    let store: &mut dyn ArtefactStore = match &mut kept {
        Some(kept) => kept,
        None => &mut NoArtefactStore,
    };
    let settled = settle(&checkpoint, options, Purpose::Run, store, &mut all.then(SETTLED))?;
    all.progress(SETTLED, "loading");
    let loading = Instant::now();
    let chain = settled.preparation.load(&settled.graph, &settled.shards)?;
    let flags = told_flags(&chain, options.strict)?;
    let times = OpeningTimes { reading, loading: loading.elapsed(), ..settled.times };
    let plan_id = settled.plan_id();
    let next = failover(directory, options, &settled);
    let mut plan = settled.told();
    plan.notices.extend(flags);
    let prepared = times.planning + times.quantising + times.compiling;
    plan.notices.extend(kept.as_ref().and_then(|kept| kept.told(prepared)).or(not_kept));
    let compiled = match options.taps {
        true => settled.shards.into_iter().map(|shard| shard.compiled).collect(),
        false => Vec::new(),
    };
    let origin = BuiltOrigin { plan, plan_id, broken_layer: settled.broken_layer, compiled };
    Ok(Model::new(chain, next, text, Origin::Built(Box::new(origin)), times))
}

/// What became of the flags that a chain was loaded with; under `strict` one that was not done is
/// an error.
fn told_flags(chain: &Chain, strict: bool) -> Result<Vec<Notice>> {
    let told = load_flags::told(&chain.description().shards).into_iter();
    told.map(|(otherwise, text)| match (otherwise, strict) {
        (true, true) => Err(Error::new(ErrorKind::Strict, text)),
        (true, false) => Ok(Notice::fallback(text)),
        (false, _) => Ok(Notice::note(text)),
    })
    .collect()
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
    /// What planning, quantising and compiling took.
    pub(crate) times: OpeningTimes,
}

impl Settled {
    /// Hash of the plan, as a bundle names it.
    pub(crate) fn plan_id(&self) -> String {
        Digest::of(&self.plan.plan().canonical_bytes()).to_string()
    }

    /// The report with everything that is to be said now.
    pub(crate) fn told(&self) -> PlanReport {
        let mut report = self.report.clone();
        report.notices.extend(self.passing.iter().cloned());
        report
    }
}

/// How far carrying a plan out is when the shims were asked what it would cost, of 1000.
const ASKED: u32 = 200;
/// How far an attempt is when its materials are made, of 1000.
const MADE: u32 = 400;

/// Plans and compiles, and revises what is refused.
pub(crate) fn settle(
    checkpoint: &Checkpoint,
    options: &OpenOptions,
    purpose: Purpose,
    store: &mut dyn ArtefactStore,
    watch: &mut dyn Watch,
) -> Result<Settled> {
    let started = Instant::now();
    let mut times = OpeningTimes::default();
    let mut graph = checkpoint.graph().clone();
    let broken_layer = if options.break_middle_layer { break_middle_layer(&mut graph) } else { None };
    let mut all = Part::new(watch, 0..1000);
    let preparation = Preparation::new(checkpoint, &graph, options, purpose, &mut all.then(ASKED))?;

    let entry_options = EntryOptions { taps: options.taps };
    let mut making = Making::new(checkpoint, &graph, options);
    let settled = RevisionLoop::new(&preparation.session).run(&preparation.request, |planned| {
        let Preparation { request, offers, executors, formats, .. } = &preparation;
        let quantising = Instant::now();
        let mut attempt = all.most_of_the_rest();
        let made = making.materials(formats, request, &planned.plan, &mut attempt.then(MADE))?;
        times.quantising += quantising.elapsed();
        let compiling = Instant::now();
        let site = BuildSite { formats: &made, request, offers, executors, options: entry_options };
        let compiled = compile_plan(&site, &planned.plan, store, &mut attempt);
        times.compiling += compiling.elapsed();
        match compiled {
            Ok(shards) => Ok(Trial::Accepted(shards)),
            Err(BuildError::Refused(feedback)) => Ok(Trial::Refused(vec![*feedback])),
            Err(error) => Err(Error::from(error)),
        }
    })?;

    times.planning = started.elapsed().saturating_sub(times.quantising + times.compiling);
    let mut notices: Vec<Notice> = revised_notice(&settled.history).into_iter().collect();
    let quantising = Instant::now();
    let assets = making.tables(&mut all)?;
    times.quantising += quantising.elapsed();
    let measured = making.notices();
    let ranges = making.ranges().cloned();
    graph.assets = assets;
    for shard in &settled.result {
        notices.extend(rewritten_notice(shard));
        notices.extend(preparation.remarked_notice(shard));
        notices.extend(made_otherwise(shard));
        notices.extend(preparation.otherwise_notice(shard));
        notices.extend(shard.unpromised_size.iter().map(Notice::note));
    }
    let report = preparation.report(&settled.planned, settled.history.len(), notices)?;
    let plan = settled.planned.plan;
    let mut preparation = preparation;
    let Preparation { learned, request, compilers, .. } = &preparation;
    let lessons = learned.keep(request, &settled.history, &plan, compilers);
    preparation.passing.extend(lessons.into_iter().map(Notice::note));
    preparation.let_go();
    let passing = std::mem::take(&mut preparation.passing).into_iter().chain(measured).collect();
    Ok(Settled {
        preparation,
        graph,
        plan,
        shards: settled.result,
        report,
        passing,
        ranges,
        broken_layer,
        times,
    })
}

/// What a session goes on with when the chip is lost: everything on this machine's CPU, built when
/// it is needed. `None` where the plan names no other target, and under `strict`.
fn failover(directory: &Path, options: &OpenOptions, settled: &Settled) -> Option<Arc<NextChainMaker>> {
    let cpu = on_the_cpu(options, settled)?;
    let directory = directory.to_owned();
    Some(Arc::new(move || {
        let (directory, options) = (directory.clone(), cpu.clone());
        let mut tried = false;
        Box::new(move |_: &SessionError, _: &PlacementRecord| {
            (!std::mem::replace(&mut tried, true)).then(|| {
                let built = Checkpoint::open(&directory)
                    .map_err(Error::from)
                    .and_then(|checkpoint| {
                        settle(&checkpoint, &options, Purpose::Run, &mut NoArtefactStore, &mut ())
                    })
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
    let cpu = OpenOptions {
        soc: None,
        on: None,
        limits: Vec::new(),
        // Flags are for the chip's compiler.
        flags: Vec::new(),
        flags_left_out: Vec::new(),
        formats,
        ..options.clone()
    };
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

/// What a plan is made for, which decides what a target must have here.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// To be looked at.
    Plan,
    /// To be compiled, for devices that may be elsewhere.
    Compile,
    /// To be compiled and run here.
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
    /// One list per target: flags that its shards are loaded with, in which no plan has a part.
    load_flags: Vec<Vec<Flag>>,
    /// What refusals taught, and whose they are: one per target, none where something stands in for
    /// it.
    learned: Learned,
    compilers: Vec<Option<Compiler>>,
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
    /// What the user set and left out of the flags of the chip's compiler.
    asked_flags: Vec<Flag>,
    left_out_flags: Vec<String>,
    /// What the user would have calibrated on.
    calibration_text: Option<PathBuf>,
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
        let FoundProfile { profile, source } = profiles.find(options.soc.as_deref().unwrap_or(GENERIC))?;
        check_asked(graph, &profile, options)?;
        let shims = open_shims(&search, options.isolation)?;

        let mut passing: Vec<Notice> = shims.notice.iter().map(Notice::note).collect();
        let skipped = profiles.list()?.skipped;
        passing.extend(skipped.iter().map(|error| Notice::note(format!("{error}; the profile is skipped"))));
        let mut notices: Vec<Notice> = Vec::new();
        let asked = options.planner_options.iter().any(|(name, _)| name == FORMAT_OPTION);
        let tuples = offered_formats(graph, &profile, options, asked);
        let mut targets = targets(&profile);
        override_limits(&mut targets, &options.limits);
        let on = options.on;
        let mut offers = Vec::new();
        let mut executors = Vec::new();
        let mut load_flags = Vec::new();
        let mut emulated_on = None;
        let costs = Arc::new(match options.cache_directory_path() {
            Some(cache) => Costs::kept_in(cache.join("costs")),
            None => Costs::unkept(),
        });
        let learned = match options.cache_directory_path() {
            Some(cache) => Learned::kept_in(cache.join(LEARNED)),
            None => Learned::unkept(),
        };
        let mut compilers = Vec::new();
        let mut chip_is_here = true;
        for mut summary in targets {
            let own = OwnShim::of(&shims, &summary.target, (&profile, &source), options)?;
            if let OwnShim::Unusable(error) = &own {
                // On the CPU its shim is not needed, and what the plan rests on instead is said
                // below.
                if options.on != Some(Executor::Cpu) {
                    passing.push(Notice::note(unusable(&summary.target, error)));
                }
            }
            let judged = own.judge();
            // The CPU beside a chip that is elsewhere is not the one here: its times say nothing
            // about where work belongs.
            if summary.target.kind != TargetKind::Cpu {
                chip_is_here = judged.is_none_or(|(_, device)| device.kind == DeviceKind::Present);
            }
            let (said, loaded_with) = complete(&mut summary, judged, &profile, options, purpose)?;
            notices.extend(said);
            let compiler =
                judged.map(|(instance, device)| Compiler::of(instance, device, &summary.target.name));
            if let Some(compiler) = &compiler {
                let decided: Vec<&str> = options.limits.iter().map(|(name, _)| name.as_str()).collect();
                passing.extend(learned.offer(compiler, &mut summary, &decided).into_iter().map(Notice::note));
            }
            let judge: Box<dyn Judge> = match judged {
                // What the CPU's own says is a formula, and follows from the threads it has.
                Some((instance, device)) if summary.target.kind == TargetKind::Cpu => {
                    let judge = ShimJudge::new(instance.clone(), &device.name);
                    Box::new(if chip_is_here { judge } else { judge.without_times() })
                }
                Some((instance, device)) => {
                    Box::new(ShimJudge::keeping(instance.clone(), device.clone(), costs.clone()))
                }
                None => {
                    let (known, trusted) = known_formats(&profile, &tuples, &options.formats);
                    let judge = PrimitiveCount::knowing(known).since(&own.why_it_does_not_answer());
                    notices.push(Notice::note(format!(
                        "target {}: {}",
                        summary.target.name,
                        judge.describe()
                    )));
                    notices.extend(trusted);
                    Box::new(judge)
                }
            };
            if purpose == Purpose::Plan {
                demand(&summary.target, &own, on)?;
            } else {
                let executor = executor(&shims, &summary.target, own, purpose, options)?;
                if !executor.is_target && summary.target.kind != TargetKind::Cpu {
                    emulated_on = Some(Executor::Cpu.name().to_owned());
                    notices.extend(loaded_with.iter().map(|flag| {
                        let target = &summary.target.name;
                        Notice::note(format!("flag {flag} reaches nothing here: {target} is emulated"))
                    }));
                }
                // What stands in for a chip teaches nothing about it.
                compilers.push(compiler.filter(|_| executor.is_target));
                if executor.simulated {
                    let (shim, device) = (&summary.target.shim, &executor.device);
                    let target = &summary.target.name;
                    notices.push(Notice::note(format!(
                        "target {target} is simulated: `{device}` of shim `{shim}` computes what the chip would, and takes its own time"
                    )));
                }
                executors.push(executor);
            }
            load_flags.push(loaded_with);
            offers.push(TargetOffer { summary, judge });
        }
        if purpose == Purpose::Plan && on == Some(Executor::Cpu) {
            let foreign = offers.iter().any(|offer| offer.summary.target.kind != TargetKind::Cpu);
            emulated_on = foreign.then(|| Executor::Cpu.name().to_owned());
        }
        let context = context(graph, options)?;
        let menu = EntryMenu::usual(graph, context);
        let goals = Goals {
            quality_per_million: options.quality_per_million,
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
        let question = Question { model: &model, menu: &menu, goals, options: planner_options };
        let mut watch = Part::new(watch, 0..1000);
        let asked = if options.quality_per_million.is_some() { 500 } else { 1000 };
        let mut request = make_request(graph, &offers, &formats, question, &mut watch.then(asked))?;
        passing.extend(costs.notices());
        if options.quality_per_million.is_some() {
            request.sensitivities =
                measuring::sensitivities(checkpoint, graph, options, &tuples, &mut passing, &mut watch)?;
        }
        let session = planning_session(options)?;
        passing.extend(session.disbelieved().map(Notice::note));
        Ok(Preparation {
            profile,
            shims,
            offers,
            formats,
            executors,
            load_flags,
            learned,
            compilers,
            places: Vec::new(),
            request,
            session,
            notices,
            passing,
            emulated_on,
            threads: options.threads,
            strict: options.strict,
            asked_planner: options.planner.is_some(),
            asked_flags: options
                .flags
                .iter()
                .map(|(name, value)| Flag { name: name.clone(), value: value.clone() })
                .collect(),
            left_out_flags: options.flags_left_out.clone(),
            calibration_text: options.calibration_text.clone(),
        })
    }

    /// The plan with everything that must be said of it; under `strict` a fallback is an error
    /// instead.
    fn report(&self, planned: &PlannedBy, refused_plans: usize, more: Vec<Notice>) -> Result<PlanReport> {
        let mut notices = self.notices.clone();
        if let Some(error) = &planned.fallback {
            notices.push(Notice::fallback(format!("{error}; the built-in planner took over")));
        }
        if let Some(error) = &planned.simple {
            notices.push(Notice::fallback(format!(
                "{error}; a simple plan took its place: the first target and formats that are legal, in the fewest shards"
            )));
        }
        for line in &planned.log {
            match line.level {
                LogLevel::Warn | LogLevel::Error => {
                    notices.push(Notice::note(format!("planner: {}", line.message)));
                }
                LogLevel::Info => tracing::info!(planner = planned.by.name, "{}", line.message),
                LogLevel::Debug => tracing::debug!(planner = planned.by.name, "{}", line.message),
            }
        }
        let flags: usize = planned.plan.plan().shards.iter().map(|shard| shard.flags.len()).sum();
        if self.emulated_on.is_some() && flags > 0 {
            notices.push(Notice::note(format!("{flags} planned compiler flags reach no compiler here")));
        }
        notices.extend(self.left_the_chip(planned));
        notices.extend(self.otherwise_planned(planned));
        notices.extend(self.calibration_unused(planned));
        notices.extend(more);
        if self.strict
            && let Some(fallback) = notices.iter().find(|notice| notice.kind == NoticeKind::Fallback)
        {
            return Err(Error::new(ErrorKind::Strict, fallback.text.clone()));
        }
        let heading = PlanHeading {
            soc: self.profile.name.clone(),
            planner: PlannerIdentity {
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

    /// What a shim did otherwise than it was asked when it compiled a shard, said once per shard:
    /// nodes that run elsewhere than on the device, flags it refused or does not know.
    fn otherwise_notice(&self, shard: &BuiltShard) -> Option<Notice> {
        let executor = &self.executors[shard.target];
        let place = executor.instance.place(&executor.device);
        let origin = shard.origin(&self.request);
        let mut found = origin.fallbacks(&place, self.emulated_on.is_some());
        if self.emulated_on.is_none() {
            // A flag of the profile may be of no use to a shard; one that the user set was to do
            // something.
            let inert = origin
                .flags
                .iter()
                .filter(|held| held.verdict == FlagVerdict::Inert && self.asked_flags.contains(&held.flag));
            found.extend(inert.map(|held| {
                (
                    format!("flag {}, which you set, is {}", held.flag, held.verdict.name()),
                    held.reason.clone(),
                )
            }));
        }
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

    /// What the shim says of nodes that run where they were planned to, once per shard.
    fn remarked_notice(&self, shard: &BuiltShard) -> Option<Notice> {
        let origin = shard.origin(&self.request);
        let first = origin.remarks().next()?;
        Some(Notice::note(format!(
            "shard {}: the compiler's remarks on {} operations, first {} `{}`: {}",
            shard.name,
            origin.remarks().count(),
            first.entry,
            first.node,
            first.reason
        )))
    }

    /// Shards that were planned for the CPU although a chip was asked for and nobody asked for the
    /// CPU.
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
            let said = why.map_or("the plan gives no reason", |reason| reason.because.as_str());
            let chip = &self.profile.name;
            // By the order of targets it is the last: it has a shard that no other could have.
            let preferred = why.is_some_and(
                |reason| matches!(&reason.cause, Cause::Preference(name) if name != "target-order"),
            );
            notices.push(match preferred {
                true => Notice::note(format!(
                    "{name} runs on the CPU, not on {chip}, as the planner prefers: {said}"
                )),
                false => Notice::fallback(format!("{name} runs on the CPU, not on {chip}: {said}")),
            });
        }
        notices
    }

    /// Flags that the planner set otherwise than the user did.
    fn otherwise_planned(&self, planned: &PlannedBy) -> Vec<Notice> {
        let mut notices = Vec::new();
        for shard in &planned.plan.plan().shards {
            let target = &self.request.targets[shard.target as usize].target;
            if target.shim != self.profile.shim {
                continue;
            }
            let name = shard_name(&self.request, shard);
            let dropped = self.asked_flags.iter().filter(|flag| !shard.flags.contains(flag));
            notices.extend(
                dropped.map(|flag| format!("{name}: the planner left flag {flag} out, which you set")),
            );
            let kept = shard.flags.iter().filter(|flag| self.left_out_flags.contains(&flag.name));
            notices
                .extend(kept.map(|flag| format!("{name}: the planner set flag {flag}, which you left out")));
        }
        notices.into_iter().map(Notice::fallback).collect()
    }

    /// That a calibration text was given and nothing is calibrated.
    fn calibration_unused(&self, planned: &PlannedBy) -> Option<Notice> {
        let path = self.calibration_text.as_ref()?;
        let is_used = self.formats.needs_ranges(&planned.plan) || !self.request.sensitivities.is_empty();
        (!is_used).then(|| {
            Notice::note(format!(
                "{} is not calibrated on: the plan has no integers with ranges to be found",
                path.display()
            ))
        })
    }

    /// Closes what was opened for questions and compiling, as far as running opens its own: a chip
    /// may be open only once.
    fn let_go(&mut self) {
        let keeps = self.shims.compiles_where_it_runs();
        self.offers.clear();
        self.places = std::mem::take(&mut self.executors)
            .into_iter()
            .zip(std::mem::take(&mut self.load_flags))
            .map(|(executor, flags)| RunPlace {
                flags: if executor.is_target { flags } else { Vec::new() },
                shim: executor.instance.shim().name().to_owned(),
                name: executor.instance.name().to_owned(),
                chip: executor.instance.chip_of(&executor.device),
                device: executor.device,
                simulated: executor.simulated,
                instance: keeps.then_some(executor.instance),
            })
            .collect();
    }

    /// Loads every artefact on the executor of its target and joins them to a chain.
    pub(crate) fn load(&self, graph: &Graph, shards: &[BuiltShard]) -> Result<Chain> {
        self.load_after(graph, shards, Beforehand::default())
    }

    /// [`Preparation::load`] after something that must not be kept silent.
    pub(crate) fn load_after(
        &self,
        graph: &Graph,
        shards: &[BuiltShard],
        beforehand: Beforehand,
    ) -> Result<Chain> {
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
                    let opened =
                        self.shims.open_to_run(&place.shim, &place.name, &options, place.simulated)?;
                    if let Some(chip) = &place.chip {
                        opened.know(chip)?;
                    }
                    runners[shard.target].insert(opened).clone()
                }
            };
            let artefact = runner.load_with(&place.device, &shard.artefact, &options, &place.flags)?;
            let mut description = ShardDescription::of(&shard.name, &artefact).ok_or_else(|| {
                Error::new(
                    ErrorKind::Shim,
                    format!("shard {} was compiled to nothing that can run", shard.name),
                )
            })?;
            let loaded_with = std::mem::take(&mut description.origin.loaded_with);
            description.origin = ShardOrigin { loaded_with, ..shard.origin(&self.request) };
            description.logits_softcap = shard.logits_softcap;
            descriptions.push(description);
            loaded.push(Box::new(ShimShard::new(artefact)));
        }
        let mut description = ChainDescription::of(graph, descriptions);
        description.emulated_on.clone_from(&self.emulated_on);
        description.beforehand = beforehand;
        Ok(Chain::new(description, loaded, graph.assets.clone())?)
    }
}

/// What the planner may choose from, best first: what the user names, else what the chip is known
/// to take, then every weight as it is stored. `asked` is whether the planner was asked for a
/// format.
fn offered_formats(graph: &Graph, profile: &Profile, options: &OpenOptions, asked: bool) -> Vec<FormatTuple> {
    let stored = stored_formats(graph);
    let mut offered: Vec<FormatTuple> = Vec::new();
    // Who asks for a format by name says what may be lost.
    let known = profile.offered_formats(asked || options.quality_per_million.is_some()).cloned();
    let candidates: Vec<FormatTuple> = match options.formats.as_slice() {
        // A processor takes every format; which of them is faster is no reason to round somebody's
        // weights unasked.
        [] if profile.kind == TargetKind::Cpu && !asked => vec![stored.clone()],
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

/// What a chip whose shim is not here is taken to accept: what its profile says, and what the user
/// names beyond that, which is said.
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
    /// What its shards are loaded with.
    flags: Vec<Flag>,
    shim: String,
    name: String,
    device: String,
    /// What the shim reads of the chip.
    chip: Option<Chip>,
    /// Whether it is a simulator's.
    simulated: bool,
    /// The instance that compiled, where it runs too.
    instance: Option<ShimInstance>,
}

/// Options of a shim that has threads.
fn thread_options(shim: &str, threads: Option<u32>) -> Vec<(String, String)> {
    match threads {
        Some(threads) if shim == CPU_SHIM => vec![("threads".to_owned(), threads.to_string())],
        _ => Vec::new(),
    }
}

/// The chip of the profile and, where that is no CPU, this machine's CPU, which takes what the chip
/// does not and what is left when the chip is lost.
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

/// Adds what the target's own shim says: limits the profile does not have, the schema of its flags.
/// Flags of the profile that the shim does not know are left out, and that is said. Without the
/// shim they are passed on as they are: nothing here can check them. What the user sets joins the
/// profile's flags, and takes the place of one alone. Gives what is to be said, and the flags that
/// shards of the target are loaded with: those take effect then, and only what runs here takes
/// them.
fn complete(
    summary: &mut TargetSummary,
    own: Option<(&ShimInstance, &Device)>,
    profile: &Profile,
    options: &OpenOptions,
    purpose: Purpose,
) -> Result<(Vec<Notice>, Vec<Flag>)> {
    let mut notices = Vec::new();
    let mut loaded_with: Vec<Flag> = Vec::new();
    let mut at_load: Vec<FlagSchema> = Vec::new();
    if let Some((instance, device)) = own {
        for limit in instance.limits(&device.name)? {
            if summary.limits.iter().all(|held| held.name != limit.name) {
                summary.limits.push(limit);
            }
        }
        let schema = instance.flags(&device.name)?;
        (at_load, summary.schema) = schema.into_iter().partition(|known| known.stage == FlagStage::Load);
        summary.target.device.clone_from(&device.name);
    }
    if summary.target.shim != profile.shim {
        return Ok((notices, loaded_with));
    }
    let word = |name: &str, description: &str| FlagSchema {
        name: name.to_owned(),
        values: FlagType::Text { max_bytes: 256 },
        default: None,
        description: description.to_owned(),
        stage: FlagStage::Compile,
    };
    for flag in &profile.flags {
        let is_left_out = options.flags_left_out.contains(&flag.name);
        if own.is_none() {
            summary.schema.push(word(&flag.name, &flag.note));
        } else if !is_left_out && !summary.schema.iter().any(|known| known.name == flag.name) {
            let (flag, name) = (flag.flag(), &profile.name);
            let notice = match at_load.iter().any(|known| known.name == flag.name) {
                true => Notice::note(format!(
                    "flag {flag} of profile {name} is left out: it is set when a session is opened"
                )),
                false => Notice::fallback(format!(
                    "flag {flag} of profile {name} is left out: shim `{}` does not know it",
                    summary.target.shim
                )),
            };
            notices.push(notice);
            continue;
        }
        if is_left_out {
            let (flag, name) = (flag.flag(), &profile.name);
            notices.push(Notice::note(format!("flag {flag} of profile {name} is left out, as you ask")));
            continue;
        }
        summary.recommended.push(flag.flag());
    }
    for name in &options.flags_left_out {
        if profile.flags.iter().all(|flag| flag.name != *name) {
            let set: Vec<&str> = profile.flags.iter().map(|flag| flag.name.as_str()).collect();
            let help = match set.as_slice() {
                [] => "it sets none".to_owned(),
                set => format!("it sets {}", set.join(", ")),
            };
            let what = format!("flag {name} cannot be left out: profile {} does not set it", profile.name);
            return Err(Error::new(ErrorKind::Argument, what).with_help(help));
        }
    }
    for (name, value) in &options.flags {
        let flag = Flag { name: name.clone(), value: value.clone() };
        if load_flags::taken(&flag, &at_load, None)? {
            if purpose != Purpose::Run {
                let what =
                    format!("flag {flag} is set when a session is opened: no plan and no bundle decides it");
                return Err(Error::new(ErrorKind::Argument, what).with_help("give it to `run`"));
            }
            loaded_with.retain(|held| held.name != flag.name);
            loaded_with.push(flag);
            continue;
        }
        let refused = |why: String| Error::new(ErrorKind::Argument, format!("flag {flag}: {why}"));
        if own.is_none() && summary.schema.iter().all(|known| known.name != *name) {
            summary.schema.push(word(name, ""));
        }
        let Some(known) = summary.schema.iter().find(|known| known.name == *name) else {
            let known = summary.schema.iter().chain(&at_load);
            let known: Vec<&str> = known.map(|known| known.name.as_str()).collect();
            let help = match known.as_slice() {
                [] => "it takes none".to_owned(),
                known => format!("it knows {}", known.join(", ")),
            };
            return Err(
                refused(format!("shim `{}` knows none of that name", summary.target.shim)).with_help(help)
            );
        };
        let takes = |expected: String| {
            refused(format!("it takes {expected}")).with_help("`shardwright shim list` tells of every flag")
        };
        known.accepts(value).map_err(takes)?;
        match summary.recommended.iter_mut().find(|held| held.name == *name) {
            Some(held) if *held == flag => {}
            Some(held) => {
                let name = &profile.name;
                notices.push(Notice::note(format!(
                    "flag {flag}, as you ask, in place of {held} of profile {name}"
                )));
                *held = flag;
            }
            None => {
                let name = &profile.name;
                notices
                    .push(Notice::note(format!("flag {flag}, as you ask, beside those of profile {name}")));
                summary.recommended.push(flag);
            }
        }
    }
    Ok((notices, loaded_with))
}

/// Refuses what says nothing about this model and chip, before anything takes long.
fn check_asked(graph: &Graph, profile: &Profile, options: &OpenOptions) -> Result<()> {
    if profile.kind == TargetKind::Cpu && options.on == Some(Executor::Simulator) {
        let what = format!("profile {} is for a CPU, of which there is no simulator", profile.name);
        return Err(Error::new(ErrorKind::Argument, what)
            .with_help("name a chip with `--soc`, or leave `--on simulator` out"));
    }
    // Tables are named by their place: the embedding, then that of the layers.
    if options.tables.per_layer.is_some() && graph.assets.len() < 2 {
        return Err(Error::new(ErrorKind::Argument, "this model has no per-layer embedding")
            .with_help("leave `--table per-layer=…` out"));
    }
    if let Some(path) = &options.calibration_text {
        measuring::read_text(path)?;
    }
    let known = [
        limit_names::OPS,
        limit_names::WEIGHT_BYTES,
        limit_names::ARTEFACT_BYTES,
        limit_names::CONTEXT_BYTES,
        limit_names::SHARDS,
        limit_names::MEMORY_BYTES,
    ];
    // Another planner may keep limits that this host does not know.
    let unknown = options.limits.iter().find(|(name, _)| !known.contains(&name.as_str()));
    match unknown.filter(|_| options.planner.is_none()) {
        None => Ok(()),
        Some((name, _)) => Err(Error::new(ErrorKind::Argument, format!("nothing keeps a limit `{name}`"))
            .with_help(format!("limits are: {}", known.join(", ")))),
    }
}

/// Refuses a setting that the planner does not list.
fn check_settings(planner: &Planner, asked: &[(String, String)]) -> Result<()> {
    let described = planner.description();
    let Some((name, _)) =
        asked.iter().find(|(name, _)| !described.options.iter().any(|known| is_setting(&known.name, name)))
    else {
        return Ok(());
    };
    let known: Vec<&str> = described.options.iter().map(|known| known.name.as_str()).collect();
    let help = match known.as_slice() {
        [] => "it has none".to_owned(),
        known => format!("it has {}", known.join(", ")),
    };
    let what = format!("planner `{}` has no option `{name}`", described.name);
    Err(Error::new(ErrorKind::Argument, what).with_help(help))
}

/// Whether a planner lists this setting: by its name, or by one with a part in capitals that stands
/// for any other (`place.COMPONENT`).
fn is_setting(known: &str, asked: &str) -> bool {
    let stands_for_any = |part: &str| !part.is_empty() && part.chars().all(|c| c.is_ascii_uppercase());
    match known.rsplit_once('.') {
        Some((head, last)) if stands_for_any(last) => asked
            .strip_prefix(head)
            .and_then(|rest| rest.strip_prefix('.'))
            .is_some_and(|rest| !rest.is_empty()),
        _ => known == asked,
    }
}

/// The shim of a target.
enum OwnShim {
    /// There is none.
    Absent,
    /// It is here, and its vendor's library is not, or does not work.
    Unusable(Error),
    /// It is open. Its devices for the target may be none.
    Open { instance: ShimInstance, devices: Vec<Device> },
}

impl OwnShim {
    /// Looks for it, and makes the profile's chip known to it. That the CPU's own does not open is
    /// an error: nothing stands in for it; so is a profile that the shim says against.
    fn of(
        shims: &Shims,
        target: &Target,
        (profile, source): (&Profile, &ProfileSource),
        options: &OpenOptions,
    ) -> Result<OwnShim> {
        if shims.registry.get(&target.shim).is_none() {
            return Ok(OwnShim::Absent);
        }
        let is_chip = target.kind != TargetKind::Cpu;
        let given = thread_options(&target.shim, options.threads);
        let simulated = options.on == Some(Executor::Simulator) && is_chip;
        let instance = match shims.open_to_compile(&target.shim, &target.name, &given, simulated) {
            Err(error) if is_chip => return Ok(OwnShim::Unusable(error)),
            opened => opened?,
        };
        let asked = || -> std::result::Result<Vec<Device>, ShimError> {
            if is_chip {
                instance.know(&chip_of(profile))?;
            }
            instance.devices(is_chip.then_some(target.device.as_str()))
        };
        match asked() {
            Ok(mut devices) => {
                devices.retain(|device| {
                    device.name == target.device || device.soc.as_deref() == Some(target.device.as_str())
                });
                Ok(OwnShim::Open { instance, devices })
            }
            Err(error @ ShimError::Chip(_)) => Err(about_profile(error, source)),
            Err(error) if is_chip => Ok(OwnShim::Unusable(crate::shims::in_its_words(error))),
            Err(error) => Err(error.into()),
        }
    }

    /// Why somebody else answers for the target.
    fn why_it_does_not_answer(&self) -> String {
        match self {
            OwnShim::Absent => "the target's shim is not at hand".to_owned(),
            OwnShim::Unusable(_) => "the target's shim cannot be used".to_owned(),
            OwnShim::Open { instance, .. } => {
                format!("shim `{}` is here and has no device for the target", instance.shim().name())
            }
        }
    }

    /// The first device of one of these kinds, those named first being preferred.
    fn device(&self, kinds: &[DeviceKind]) -> Option<(&ShimInstance, &Device)> {
        let OwnShim::Open { instance, devices } = self else { return None };
        let found = kinds.iter().find_map(|kind| devices.iter().find(|device| device.kind == *kind));
        found.map(|device| (instance, device))
    }

    /// Who answers for the target: the same whether it is to run on the device or in a simulator,
    /// so that the plan is the same.
    fn judge(&self) -> Option<(&ShimInstance, &Device)> {
        self.device(&[DeviceKind::Present, DeviceKind::Offline, DeviceKind::Simulated])
    }
}

fn unusable(target: &Target, error: &Error) -> String {
    format!("target {}: shim `{}` cannot be used: {error}", target.name, target.shim)
}

/// Who asks for the device or its simulator and has a shim that cannot be used wants to know, also
/// where nothing is to run.
fn demand(target: &Target, own: &OwnShim, on: Option<Executor>) -> Result<()> {
    match own {
        OwnShim::Unusable(error) if matches!(on, Some(Executor::Device | Executor::Simulator)) => {
            Err(not_here(target, &unusable(target, error), error.help()))
        }
        _ => Ok(()),
    }
}

/// No executor was found for the target.
fn not_here(target: &Target, what: &str, help: Option<&str>) -> Error {
    let instead = format!("`--on cpu` runs the plan for {} on this machine's CPU", target.name);
    let help = help.map_or_else(|| instead.clone(), |help| format!("{help}; {instead}"));
    Error::new(ErrorKind::Missing, what).with_help(help)
}

/// What compiles and runs a target: the target itself, a simulator of it, or the CPU in its stead.
fn executor(
    shims: &Shims,
    target: &Target,
    own: OwnShim,
    purpose: Purpose,
    options: &OpenOptions,
) -> Result<TargetExecutor> {
    let on = options.on;
    let kinds: &[DeviceKind] = match (target.kind, on, purpose) {
        (TargetKind::Cpu, ..) => &[DeviceKind::Present],
        (_, Some(Executor::Cpu), _) => &[],
        (_, Some(Executor::Simulator), _) => &[DeviceKind::Simulated],
        (_, None | Some(Executor::Device), Purpose::Compile) => &[DeviceKind::Present, DeviceKind::Offline],
        (_, None | Some(Executor::Device), _) => &[DeviceKind::Present],
    };
    let kept = purpose == Purpose::Compile;
    if let Some((instance, device)) = own.device(kinds) {
        return Ok(TargetExecutor {
            instance: instance.clone(),
            device: device.name.clone(),
            detail: device.detail.clone(),
            simulated: device.kind == DeviceKind::Simulated,
            loads: kept && device.kind == DeviceKind::Present,
            is_target: true,
        });
    }
    if on != Some(Executor::Cpu) && target.kind != TargetKind::Cpu {
        let named = format!("target {} ({} through shim `{}`)", target.name, target.device, target.shim);
        let offline = own.device(&[DeviceKind::Offline]).is_some();
        let simulated = own.device(&[DeviceKind::Simulated]).is_some();
        let (what, help) = match (&own, on) {
            (OwnShim::Unusable(error), on) => {
                let stands_in = on != Some(Executor::Simulator) && shims.has_simulator(&target.shim);
                let simulator =
                    stands_in.then_some("`--on simulator` runs it in the one that comes with the shim");
                let help: Vec<&str> = error.help().into_iter().chain(simulator).collect();
                (unusable(target, error), (!help.is_empty()).then(|| help.join("; ")))
            }
            (OwnShim::Absent, _) => {
                let missing = shims.registry.missing(&target.shim);
                let help = missing.help();
                (format!("target {}: {missing}", target.name), help)
            }
            (_, Some(Executor::Simulator)) => (
                format!("{named}: no simulator of it was found"),
                Some("`--on device` needs the chip".to_owned()),
            ),
            (OwnShim::Open { devices, .. }, _) if devices.is_empty() => (
                format!("{named}: the shim tells no device of that chip"),
                Some(
                    "what it tells without a chip (`shardwright shim list`) runs under a profile whose `kind` is `cpu`"
                        .to_owned(),
                ),
            ),
            _ => {
                let mut help = Vec::new();
                if offline && purpose == Purpose::Run {
                    help.push("`shardwright compile` makes a bundle for the device here".to_owned());
                }
                help.push(match simulated {
                    true => "`--on simulator` runs it in its vendor's simulator".to_owned(),
                    false => "`--on simulator` needs a shim that simulates it".to_owned(),
                });
                (format!("{named}: the device was not found"), Some(help.join("; ")))
            }
        };
        return Err(not_here(target, &what, help.as_deref()));
    }
    let threads = thread_options(CPU_SHIM, options.threads);
    let instance = shims.open_to_compile(CPU_SHIM, &target.name, &threads, false).map_err(|error| {
        error.with_help("`shardwright shim list` shows where shims were looked for; `cargo xtask build` builds the CPU shim")
    })?;
    let devices = instance.devices(None)?;
    let device = devices.iter().find(|device| device.kind == DeviceKind::Present).ok_or_else(|| {
        Error::new(ErrorKind::Shim, format!("shim `{CPU_SHIM}` has no device in this machine"))
    })?;
    let (device, detail) = (device.name.clone(), device.detail.clone());
    Ok(TargetExecutor { instance, device, detail, simulated: false, loads: kept, is_target: false })
}

/// A limit of the user replaces the profile's of that name on every accelerator that has it; a new
/// one goes to all accelerators, or to the CPU where there is none.
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
                limit.relief = held.relief;
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
        None => {
            let planner = tools.built_in()?;
            check_settings(&planner, &options.planner_options)?;
            PlanningSession::new(planner)
        }
        Some(named) => {
            let directories = options.search().planners;
            let found = match options.planner_by_name {
                true => planner_named(named, &directories),
                false => find_planner(named, &directories),
            };
            let asked = match found {
                Ok(entry) => match tools.load(&entry) {
                    // Whoever names a file wants that one.
                    Err(error)
                        if !options.planner_by_name
                            && matches!(error.kind, PlannerErrorKind::MissingFile { .. }) =>
                    {
                        return Err(error.into());
                    }
                    loaded => loaded,
                },
                // A bundle names the planner of whoever compiled it; a person one that should be
                // here.
                Err(error) if options.strict || !options.planner_by_name => return Err(error),
                Err(error) => Err(PlannerError {
                    planner: named.clone(),
                    version: None,
                    kind: PlannerErrorKind::MissingFile {
                        path: PathBuf::from(named),
                        source: std::io::Error::new(std::io::ErrorKind::NotFound, error.to_string()).into(),
                    },
                }),
            };
            if let Ok(planner) = &asked {
                check_settings(planner, &options.planner_options)?;
            }
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
    planner_named(named, directories)
}

/// A name in one of the directories, never a path.
fn planner_named(named: &str, directories: &[PathBuf]) -> Result<PlannerEntry> {
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
                Error::caused_by(
                    ErrorKind::Argument,
                    error,
                    Some("`planner pack` prints the public key".to_owned()),
                )
            })
        };
        let trusted = trusted.iter().map(key).collect::<Result<_>>()?;
        let cache = cache
            .or_else(user_cache_directory)
            .map(|directory| CompiledCache::new(directory.join("planners")));
        Ok(PlannerTools { sandbox: Sandbox::new(EngineKind::Native)?, cache, trusted })
    }

    pub(crate) fn built_in(&self) -> Result<Planner> {
        Ok(builtin::load(&self.sandbox, self.cache.as_ref())?)
    }

    pub(crate) fn load(&self, entry: &PlannerEntry) -> std::result::Result<Planner, PlannerError> {
        entry.load(&self.sandbox, self.cache.as_ref(), &self.trusted)
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What a bundle calls its planner must not choose a file.
    #[test]
    fn a_planner_by_name_is_never_a_path() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("odd.wasm");
        std::fs::write(&file, b"").unwrap();
        let shown = file.display().to_string();
        assert_eq!(find_planner(&shown, &[]).unwrap().path, file);
        let directories = [folder.path().to_owned()];
        assert_eq!(planner_named("odd", &directories).unwrap().path, file);
        // `Cargo.toml` lies where this test runs.
        for named in [shown.as_str(), "odd.wasm", "./odd", "../odd", "Cargo.toml"] {
            assert!(find_planner(named, &directories).is_ok());
            let error = planner_named(named, &directories).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
        }
    }
}
