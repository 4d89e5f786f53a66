//! Plans, quantises, legalises and compiles, and revises the plan when a compiler refuses it.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use shardwright_bundle::Digest;
use shardwright_files::output::OutputKind;
use shardwright_graph::{EntryOptions, Graph, Ranges};
use shardwright_planning::check::CheckedPlan;
use shardwright_planning::error::{PlannerError, PlannerErrorKind, RefusalKind};
use shardwright_planning::feedback::Attempt;
use shardwright_planning::plan::Plan;
use shardwright_planning::profile::Profile;
use shardwright_planning::request::{RecordedRequest, Request};
use shardwright_planning::session::{RevisionLoop, Trial};
use shardwright_vocabulary::{Error, Notice, Part, Pass, Watch};

use crate::chips::made_otherwise;
use crate::fallback::fallbacks;
use crate::loop_start::LoopStart;
use crate::placement::{LoadedPart, NotLoaded, RunPlaces};
use crate::preparation::Preparation;
use crate::store::{Compilations, RevisedStore};
use crate::{
    ArtefactStore, BuildError, BuildSite, BuiltShard, Candidate, FallbackChain, ModelSource, PlanMeasuring,
    PlanOptions, PlanReport, PlanSource, Purpose, Result, TableFormats, compile_plan,
};

/// A plan that was made and checked, but not carried out.
#[derive(Clone, Debug)]
pub struct Planned {
    /// The report: the plan with the tables it was made from.
    pub report: PlanReport,
    /// The planner's request, as canonical JSON.
    pub request: Vec<u8>,
    /// The plan as the planner returned it.
    pub plan: Plan,
    /// For each row of the request's cost table, the key of its measured time, if it has one.
    pub time_keys: Vec<Option<Digest>>,
    /// Settings of the planner that made the plan, each with a description of its legal values.
    pub settings: Vec<(String, String)>,
    /// The fallback chains of the plan, in order.
    pub fallbacks: Vec<FallbackChain>,
    /// The plans of the model's towers.
    pub towers: Vec<Planned>,
}

/// Makes a plan without compiling. The constants of the model need not be available.
pub fn plan(source: &mut dyn PlanSource, options: &PlanOptions, watch: &mut dyn Watch) -> Result<Planned> {
    let mut all = Part::new(watch, 0..1000);
    let request_file = options.request_file.as_deref().map(|path| request_path(path, source.graph().pass));
    if let Some(path) = &request_file {
        REQUEST.expect_at(path)?;
    }
    let prepared = if options.measuring == PlanMeasuring::Never { 1000 } else { PREPARED };
    let preparation = Preparation::new(source, options, Purpose::Plan, &mut all.then(prepared))?;
    let request = preparation.request.canonical_bytes();
    if let Some(path) = &request_file {
        let planner = preparation.session.first().map(|planner| planner.description().name.clone());
        let recorded = RecordedRequest { request: preparation.request.clone(), planner };
        REQUEST.write(path, &recorded.canonical_bytes())?;
    }
    let planned = match preparation.session.plan(&preparation.request) {
        Ok(planned) => planned,
        Err(error) => {
            let why = refusal(&error);
            let refused = preparation.without_shims(does_not_fit(error, &preparation.profile.name));
            return Err(match why {
                Some(RefusalKind::OverMemory) if options.memory_bytes.is_some() => {
                    with_less_context(refused, preparation.request.goals.context, source, options, &mut all)
                }
                Some(RefusalKind::OverSize) if options.recorded.tables != TableFormats::default() => {
                    with_other_tables(refused, source, options, &mut all)
                }
                _ => refused,
            });
        }
    };
    let measured = source.measured(&preparation.formats, &planned.plan, &mut all.then(1000))?;
    let mut report = preparation.report(&planned, 0, Vec::new())?.with_measured(measured);
    report.notices.splice(0..0, source.take_notices());
    report.notices.extend(preparation.passing);
    let described = preparation.session.options();
    Ok(Planned {
        report,
        request,
        plan: planned.plan.plan().clone(),
        time_keys: preparation.time_keys,
        settings: described.map(|option| (option.name.clone(), option.values.clone())).collect(),
        fallbacks: fallbacks(&preparation.request, &planned.plan, source.graph(), options),
        towers: Vec::new(),
    })
}

/// Returns the file for the request of a pass. The file of a tower is next to the file of the text
/// and has the name of the pass before its extension: `request.picture.json`.
fn request_path(path: &Path, pass: Pass) -> PathBuf {
    match (pass, path.extension().and_then(|extension| extension.to_str())) {
        (Pass::Step, _) => path.to_owned(),
        (pass, Some(extension)) => path.with_extension(format!("{pass}.{extension}")),
        (pass, None) => path.with_extension(pass.to_string()),
    }
}

/// A recorded request of a planner, as `RecordedRequest::canonical_bytes` writes it.
const REQUEST: OutputKind = OutputKind {
    name: "a recorded request",
    is_earlier: |begin| begin.starts_with(br#"{"model":{"name":"#) && contains(begin, br#","max_context":"#),
};

fn contains(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// Progress of a plan that is going to be measured when its preparation ends, in thousandths.
const PREPARED: u32 = 200;

/// Shortest context that is tried if a longer one does not fit, in tokens.
const SHORTEST_CONTEXT: u32 = 256;

/// Adds to the refusal of a memory goal the longest of a few shorter contexts that meets it.
fn with_less_context(
    refused: Error,
    context: u32,
    source: &mut dyn PlanSource,
    options: &PlanOptions,
    watch: &mut dyn Watch,
) -> Error {
    let shorter = std::iter::successors(Some(context / 2), |context| Some(context / 2));
    for context in shorter.take_while(|context| *context >= SHORTEST_CONTEXT) {
        let mut options = options.clone();
        options.recorded.context = Some(context);
        let Ok(preparation) = Preparation::new(source, &options, Purpose::Plan, watch) else { break };
        if preparation.session.plan(&preparation.request).is_ok() {
            let fits = format!("`--context {context}` meets the goal");
            let help = refused.help().map_or_else(|| fits.clone(), |help| format!("{fits}; {help}"));
            return refused.with_help(help);
        }
    }
    refused
}

/// Adds to the refusal of a size goal the table formats that meet it, if the user named other ones.
fn with_other_tables(
    refused: Error,
    source: &mut dyn PlanSource,
    options: &PlanOptions,
    watch: &mut dyn Watch,
) -> Error {
    let mut options = options.clone();
    options.recorded.tables = TableFormats::default();
    let Ok(preparation) = Preparation::new(source, &options, Purpose::Plan, watch) else { return refused };
    let Ok(planned) = preparation.session.plan(&preparation.request) else { return refused };
    let fits = TableFormats::planned(source.graph(), &planned.plan);
    let named = [("embedding", fits.embedding), ("per-layer", fits.per_layer)];
    let named = named.into_iter().filter_map(|(table, format)| Some((table, format?)));
    let asked: Vec<String> = named.map(|(table, format)| format!("`--table {table}={format}`")).collect();
    if asked.is_empty() {
        return refused;
    }
    let other = format!("the goal can be met with {}", asked.join(" "));
    let help = refused.help().map_or_else(|| other.clone(), |help| format!("{other}; {help}"));
    refused.with_help(help)
}

/// Returns the kind of refusal, if the planner refused.
fn refusal(error: &PlannerError) -> Option<RefusalKind> {
    match &error.kind {
        PlannerErrorKind::Refused { kind, .. } => Some(*kind),
        _ => None,
    }
}

/// Turns refusals that are about the model and the chip, not about the request, into "does not
/// fit".
fn does_not_fit(error: PlannerError, soc: &str) -> Error {
    let Some(refused) = refusal(&error) else { return error.into() };
    match refused {
        RefusalKind::InvalidRequest | RefusalKind::Exhausted => error.into(),
        RefusalKind::Unsupported
        | RefusalKind::OverLimit
        | RefusalKind::OverMemory
        | RefusalKind::OverSize
        | RefusalKind::OverQuality
        | RefusalKind::TooSlow
        | RefusalKind::StateNotShareable => {
            let error = Error::from(error);
            let verdict = Error::new(error.kind(), format!("does not fit {soc}: {error}"));
            error.help().map(str::to_owned).into_iter().fold(verdict, Error::with_help)
        }
    }
}

/// A plan that was carried out, before anything is loaded.
pub struct Settled {
    pub request: Request,
    /// The chip it is for.
    pub profile: Profile,
    /// The model, with its tables in the requested formats.
    pub graph: Graph,
    pub plan: CheckedPlan,
    /// The compiled shards, in order of execution.
    pub shards: Vec<BuiltShard>,
    /// The report: the plan with the tables it was made from. It is equal for equal inputs.
    pub report: PlanReport,
    /// The plans that were refused before this one, oldest first.
    pub history: Vec<Attempt>,
    /// The calibrated ranges, if they were needed.
    pub ranges: Option<Ranges>,
    pub times: BuildTimes,
    /// Notices about this machine and run, which do not go into a bundle.
    passing: Vec<Notice>,
    places: RunPlaces,
}

/// Durations of the steps of carrying out a plan.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BuildTimes {
    /// Querying shims and the planner, including for refused plans.
    pub planning: Duration,
    /// Quantising weights to the formats of the plan, or finding them in the cache.
    pub quantising: Duration,
    pub compiling: Duration,
}

impl Settled {
    /// Returns the hash of the plan, as in a bundle.
    pub fn plan_id(&self) -> String {
        Digest::of(&self.plan.plan().canonical_bytes()).to_string()
    }

    /// Returns the report with all current notices.
    pub fn report_now(&self) -> PlanReport {
        let mut report = self.report.clone();
        report.notices.extend(self.passing.iter().cloned());
        report
    }

    /// Loads every artefact where its shards run.
    ///
    /// # Errors
    ///
    /// Fails with the error of a shim, also if none of a shard's entry points can be loaded.
    pub fn load(&self) -> Result<Vec<LoadedPart>> {
        self.places.load(&self.shards, &self.request).map_err(|not| not.error)
    }

    /// Loads every artefact like [`Settled::load`]. If loading fails but another plan may be
    /// loaded, returns every attempt so far, with this one as the last, for [`LoopStart::before`].
    ///
    /// # Errors
    ///
    /// Fails if no other plan avoids the problem.
    pub fn load_or_history(&self) -> Result<std::result::Result<Vec<LoadedPart>, Vec<Attempt>>> {
        match self.places.load(&self.shards, &self.request) {
            Ok(parts) => Ok(Ok(parts)),
            Err(NotLoaded { feedback: Some(feedback), .. }) => {
                let mut history = self.history.clone();
                history.push(Attempt { plan: self.plan.plan().clone(), feedback: vec![feedback] });
                Ok(Err(history))
            }
            Err(NotLoaded { error, feedback: None }) => Err(error),
        }
    }
}

/// Progress when the shims have estimated all costs, in thousandths.
const ASKED: u32 = 200;

/// Progress of an attempt when its constants are made, in thousandths.
const MADE: u32 = 400;

/// Plans and compiles, and revises refused plans.
pub fn settle(
    source: &mut dyn ModelSource,
    options: &PlanOptions,
    purpose: Purpose,
    store: &mut dyn ArtefactStore,
    watch: &mut dyn Watch,
) -> Result<Settled> {
    settle_from(source, options, purpose, store, LoopStart::default(), watch)
}

/// Plans and compiles like [`settle`], but plans also have to be proved, or other plans were tried
/// before.
pub fn settle_from(
    source: &mut dyn ModelSource,
    options: &PlanOptions,
    purpose: Purpose,
    store: &mut dyn ArtefactStore,
    LoopStart { mut proving, before, first }: LoopStart<'_>,
    watch: &mut dyn Watch,
) -> Result<Settled> {
    let started = Instant::now();
    let mut times = BuildTimes::default();
    let mut all = Part::new(watch, 0..1000);
    let mut preparation = Preparation::new(source, options, purpose, &mut all.then(ASKED))?;

    let entry_options = EntryOptions { taps: options.taps };
    let is_recorded = first.is_some();
    let first = first.and_then(|first| first.for_request(&preparation.request));
    if is_recorded && first.is_none() {
        preparation.passing.push(Notice::note(
            "the recorded plan does not match this machine's targets, formats or tables, so it was replanned",
        ));
    }
    let uncounted = Compilations::at_most(usize::MAX);
    let compilations = proving.as_ref().map_or(&uncounted, |proving| proving.compilations);
    let mut store = RevisedStore::new(store, compilations);
    let mut tried = before.len();
    let settled = RevisionLoop::new(&preparation.session).after(before).first(first).run(
        &preparation.request,
        |planned| {
            let Preparation { request, offers, executors, formats, .. } = &preparation;
            let quantising = Instant::now();
            let mut attempt = all.most_of_the_rest();
            let made = source.made(formats, &planned.plan, &mut attempt.then(MADE))?;
            times.quantising += quantising.elapsed();
            let compiling = Instant::now();
            let site = BuildSite { formats: &made, request, offers, executors, options: entry_options };
            let compiled = compile_plan(&site, &planned.plan, &mut store, &mut attempt);
            times.compiling += compiling.elapsed();
            tried += 1;
            match (compiled, &mut proving) {
                (Ok(shards), Some(proving)) => {
                    let mut graph = source.graph().clone();
                    let tables = TableFormats::planned(source.graph(), &planned.plan);
                    graph.assets = source.tables(tables, &mut attempt)?;
                    let mut candidate = Candidate {
                        site,
                        plan: &planned.plan,
                        shards: &shards,
                        graph: &graph,
                        report: preparation.report(planned, tried - 1, Vec::new())?,
                        threads: options.threads,
                        store: &mut store,
                        compilations,
                    };
                    let feedback = proving.prover.prove(&mut candidate, &mut attempt)?;
                    Ok(if feedback.is_empty() { Trial::Accepted(shards) } else { Trial::Refused(feedback) })
                }
                (compiled, _) => trial(compiled),
            }
        },
    );
    let settled = settled.map_err(|error| preparation.without_shims(error.into()))?;

    times.planning = started.elapsed().saturating_sub(times.quantising + times.compiling);
    let mut notices: Vec<Notice> = revised_notice(&settled.history).into_iter().collect();
    let quantising = Instant::now();
    let mut graph = source.graph().clone();
    graph.assets = source.tables(TableFormats::planned(source.graph(), &settled.planned.plan), &mut all)?;
    times.quantising += quantising.elapsed();
    for shard in &settled.result {
        notices.extend(rewritten_notice(shard));
        notices.extend(preparation.remarked_notice(shard));
        notices.extend(made_otherwise(shard));
        notices.extend(preparation.otherwise_notice(shard));
        notices.extend(shard.unpromised_size.iter().map(Notice::making));
    }
    let measured = source.measured(&preparation.formats, &settled.planned.plan, &mut all.then(1000))?;
    if purpose == Purpose::Compile {
        preparation.passing.extend(measured.as_ref().map(|measured| Notice::note(measured.to_string())));
    }
    let report = preparation.report(&settled.planned, settled.history.len(), notices)?;
    let report = report.with_measured(measured);
    let plan = settled.planned.plan;
    let Preparation { learned, request, compilers, .. } = &preparation;
    let lessons = learned.keep(request, &settled.history, &plan.plan().lessons, compilers);
    let mut passing = std::mem::take(&mut preparation.passing);
    passing.extend(lessons.into_iter().map(Notice::note));
    passing.extend(source.take_notices());
    let (request, profile, places) = preparation.let_go();
    Ok(Settled {
        request,
        profile,
        graph,
        plan,
        shards: settled.result,
        history: settled.history,
        report,
        ranges: source.ranges().cloned(),
        times,
        passing,
        places,
    })
}

/// Converts the result of compiling a plan for the loop that revises it.
fn trial(compiled: std::result::Result<Vec<BuiltShard>, BuildError>) -> Result<Trial<Vec<BuiltShard>>> {
    match compiled {
        Ok(shards) => Ok(Trial::Accepted(shards)),
        Err(BuildError::Refused(feedback)) => Ok(Trial::Refused(vec![*feedback])),
        Err(error) => Err(Error::from(error)),
    }
}

/// Returns a notice with the last refusal if the plan that runs is not the first one.
fn revised_notice(history: &[Attempt]) -> Option<Notice> {
    let last =
        history.last()?.feedback.first().map_or("no reason given", |feedback| feedback.message.as_str());
    let plans =
        if history.len() == 1 { "1 plan was".to_owned() } else { format!("{} plans were", history.len()) };
    Some(Notice::making(format!("{plans} refused and revised; last: {last}")))
}

/// Returns a notice about nodes that run in another form than the graph's, once per shard.
fn rewritten_notice(shard: &BuiltShard) -> Option<Notice> {
    let first = shard.rewritten.first()?;
    Some(Notice::making(format!(
        "shard {}: {} operations run in another form than in the graph, first `{}`: {}",
        shard.name,
        shard.rewritten.len(),
        first.name,
        first.reason
    )))
}
