//! Prepares the planner's request, and collects the notices about its answer.

use std::path::PathBuf;
use std::sync::Arc;

use shardwright_bundle::Digest;
use shardwright_graph::Graph;
use shardwright_planning::plan::Cause;
use shardwright_planning::profile::{GENERIC, Profile, ProfileRegistry, fact_names};
use shardwright_planning::request::{Goals, PlannerOption, Request, caps};
use shardwright_planning::sandbox::LogLevel;
use shardwright_planning::session::{Planned, PlanningSession};
use shardwright_shims::{Part, Watch};
use shardwright_vocabulary::units;
use shardwright_vocabulary::{
    DeviceKind, EntryKind, Error, ErrorKind, Flag, FlagVerdict, FormatTuple, Notice, NoticeKind,
    PlannerIdentity, Provenance, TargetKind, limit_names,
};
use shardwright_worker::Shims;

use crate::executors::{OwnShim, demand, executor, unusable};
use crate::offers::{
    Offered, complete, known_formats, merged, offered_formats, override_limits, targets, unchecked_flags,
};
use crate::options::{FORMAT_OPTION, LossGoal, NO_FALLBACKS, USUAL_QUALITY_OPTION, placed};
use crate::places::RunPlaces;
use crate::planners::planning_session;
use crate::ranges::boundary_ranges;
use crate::request::make_keyed_request;
use crate::tables::gathered_tables;
use crate::times::timer;
use crate::{
    BuiltShard, Compiler, Costs, EntryMenu, Executor, Judge, LEARNED, Learned, LossGround, ModelFormats,
    PlanHeading, PlanOptions, PlanReport, PlanSource, PrimitiveCount, Purpose, Question, Result, ShimJudge,
    TargetExecutor, TargetOffer, Weighed, forecast, report_plan,
};

/// Context in tokens if none is requested and the model allows more: long enough for a
/// conversation, small enough for a phone.
const DEFAULT_CONTEXT: u32 = 4096;

/// Index of the profile's own chip among a request's targets.
const CHIP: u32 = 0;

/// The results of all steps up to the planner's request.
pub(crate) struct Preparation {
    pub(crate) profile: Profile,
    shims: Shims,
    pub(crate) offers: Vec<TargetOffer>,
    /// The model in each format of the request, counted.
    pub(crate) formats: ModelFormats,
    /// Properties of the model for a forecast.
    weighed: Weighed,
    /// One executor per target. Empty if the plan is not going to run.
    pub(crate) executors: Vec<TargetExecutor>,
    /// Limits learned from refusals, and the compilers that they belong to. There is one compiler
    /// per target, `None` if a substitute replaces the target.
    pub(crate) learned: Learned,
    pub(crate) compilers: Vec<Option<Compiler>>,
    pub(crate) request: Request,
    /// For each row of the cost table, the key of its measured time, if it has one.
    pub(crate) time_keys: Vec<Option<Digest>>,
    pub(crate) session: PlanningSession,
    notices: Vec<Notice>,
    /// Notices about this machine and run only.
    pub(crate) passing: Vec<Notice>,
    /// Notices about skipped shims, if the shim of a target is missing, because it may be among
    /// them.
    skipped: Vec<Notice>,
    emulated_on: Option<String>,
    threads: Option<u32>,
    strict: bool,
    /// Whether a planner other than the built-in one was requested.
    asked_planner: bool,
    /// Flags of the chip's compiler that the user set or left out.
    asked_flags: Vec<Flag>,
    left_out_flags: Vec<String>,
    /// The user's calibration text.
    calibration_text: Option<PathBuf>,
}

impl Preparation {
    pub(crate) fn new(
        source: &mut dyn PlanSource,
        options: &PlanOptions,
        purpose: Purpose,
        watch: &mut dyn Watch,
    ) -> Result<Self> {
        let trust = options.rules()?;
        let directories = options.profiles.iter();
        let profiles =
            directories.fold(ProfileRegistry::new(), |existing, path| existing.with_directory(path));
        let profiles = profiles.trusting(trust.clone());
        let chip = profiles.find(options.soc.as_deref().unwrap_or(GENERIC))?;
        let further = if options.alone { Vec::new() } else { profiles.fallbacks(&chip)? };
        let profile = chip.profile.clone();
        let (options, taken) = options.completed_by(&profile);
        let options = &options;
        let graph = source.graph();
        check_asked(graph, &profile, options)?;
        let shims = options.shims_by(&trust)?;

        let mut passing: Vec<Notice> = shims.notice.iter().map(Notice::note).collect();
        let skipped = profiles.list()?.skipped;
        passing.extend(skipped.iter().map(|error| Notice::note(format!("{error}; the profile is skipped"))));
        let ignored = source.ignored().iter();
        let mut notices: Vec<Notice> = ignored.map(|field| Notice::fallback(field.to_string())).collect();
        if !taken.is_empty() {
            let taken = taken.join(", ");
            notices.push(Notice::making(format!(
                "profile {} says, where nothing else was asked for: {taken}",
                profile.name
            )));
        }
        let asked = options.planner_options.iter().any(|(name, _)| name == FORMAT_OPTION);
        let own_formats: Vec<Vec<FormatTuple>> = std::iter::once(&chip)
            .chain(&further)
            .map(|found| offered_formats(graph, &found.profile, options, asked))
            .collect();
        let tuples = merged(graph, &own_formats);
        let mut targets = targets(&chip, &further, options.alone);
        override_limits(&mut targets, &options.limits);
        let on = options.on;
        let mut offers = Vec::new();
        let mut executors = Vec::new();
        let mut emulated_on = None;
        let costs = Arc::new(match &options.cache {
            Some(cache) => Costs::kept_in(cache.join("costs")),
            None => Costs::unkept(),
        });
        let learned = match &options.cache {
            Some(cache) => Learned::kept_in(cache.join(LEARNED)),
            None => Learned::unkept(),
        };
        let mut compilers = Vec::new();
        let needs_keys = options.times.need_keys(options.cache.as_deref());
        let mut timers = Vec::new();
        let mut chip_is_here = !options.elsewhere;
        let mut is_any_missing = false;
        // The user's compiler options apply only to the chip's compiler.
        let of_others = options.without_settings();
        for (index, (mut summary, found)) in targets.into_iter().enumerate() {
            let (profile, own_options) = (&found.profile, if index == 0 { options } else { &of_others });
            let is_further = (1..=further.len()).contains(&index);
            is_any_missing |= shims.registry.get(&summary.target.shim).is_none();
            let own = OwnShim::of(&shims, &summary.target, found, options)?;
            let mut said: Vec<Notice> = Vec::new();
            // Why the simulator answers. A notice that a bundle stores leaves it out, because the
            // reason is of this machine.
            let mut because = String::new();
            if let OwnShim::Unusable { error, stand_in } = &own {
                if let Some(Err(error)) = stand_in {
                    let (target, shim) = (&summary.target.name, &summary.target.shim);
                    passing.push(Notice::note(format!(
                        "target {target}: the simulator that comes with shim `{shim}` cannot answer either: {error}"
                    )));
                }
                // The chip's shim is not needed to run on the CPU. A notice below names its
                // replacement in the plan.
                if options.on != Some(Executor::Cpu) && (!is_further || purpose == Purpose::Plan) {
                    match stand_in {
                        Some(Ok(_)) if purpose == Purpose::Plan => {
                            because = format!(", because the shim cannot be used: {error}");
                        }
                        _ => passing.push(Notice::note(unusable(&summary.target, error))),
                    }
                }
            }
            let judged = own.judge();
            // If the chip is in another machine, so is the CPU next to it. Times measured here do
            // not help to distribute work there.
            if index == 0 && summary.target.kind != TargetKind::Cpu {
                let known = judged.or(own.stand_in());
                chip_is_here = known.is_none_or(|(_, device)| device.kind == DeviceKind::Present);
            }
            let is_timed = needs_keys && (summary.target.kind != TargetKind::Cpu || chip_is_here);
            let timer = is_timed.then(|| timer(&summary.target, judged, &shims, options)).flatten();
            said.extend(complete(&mut summary, judged, profile, own_options)?);
            if judged.is_none() && summary.target.shim == profile.shim {
                let why = own.why_it_does_not_answer();
                said.extend(unchecked_flags(&summary.target, own.stand_in(), &why, &own_options.flags));
            }
            let compiler =
                judged.map(|(instance, device)| Compiler::of(instance, device, &summary.target.name));
            if let Some(compiler) = &compiler {
                let decided: Vec<&str> = options.limits.iter().map(|(name, _)| name.as_str()).collect();
                passing.extend(learned.offer(compiler, &mut summary, &decided).into_iter().map(Notice::note));
            }
            let judge: Box<dyn Judge> = match judged {
                // The CPU shim estimates with a formula that depends on its number of threads.
                Some((instance, device)) if summary.target.kind == TargetKind::Cpu => {
                    let judge = ShimJudge::new(instance.clone(), &device.name).reporting_to(&costs);
                    Box::new(if chip_is_here { judge } else { judge.without_times() })
                }
                Some((instance, device)) => {
                    Box::new(ShimJudge::keeping(instance.clone(), device.clone(), costs.clone()))
                }
                None if let Some((instance, device)) = own.stand_in() => {
                    let (target, shim) = (&summary.target.name, &summary.target.shim);
                    said.push(Notice::making(format!(
                        "target {target}: costs come from the simulator of shim `{shim}`{because}"
                    )));
                    Box::new(ShimJudge::new(instance.clone(), &device.name))
                }
                None => {
                    let (known, trusted) = known_formats(profile, &tuples, &options.formats);
                    let judge = PrimitiveCount::knowing(known).since(&own.why_it_does_not_answer());
                    let (target, costs) = (&summary.target.name, judge.describe());
                    said.push(Notice::making(format!("target {target}: {costs}")));
                    said.extend(trusted);
                    Box::new(judge)
                }
            };
            let carried_out = match purpose {
                Purpose::Plan => demand(&summary.target, &own, on).map(|()| None),
                _ => executor(&shims, &summary.target, own, purpose, options).map(Some),
            };
            let executor = match carried_out {
                // The chip can be used without this fallback.
                Err(error) if is_further && error.kind() == ErrorKind::Missing => {
                    passing.push(Notice::note(format!("{error}; nothing falls back to it")));
                    continue;
                }
                carried_out => carried_out?,
            };
            if let Some(executor) = executor {
                if !executor.is_target && summary.target.kind != TargetKind::Cpu {
                    emulated_on = Some(Executor::Cpu.name().to_owned());
                }
                // Refusals by a substitute do not reveal limits of the chip.
                compilers.push(compiler.filter(|_| executor.is_target));
                if executor.simulated {
                    let (shim, device) = (&summary.target.shim, &executor.device);
                    let target = &summary.target.name;
                    said.push(Notice::note(format!(
                        "target {target} is simulated: `{device}` of shim `{shim}` computes what the chip would, and takes its own time"
                    )));
                }
                executors.push(executor);
            }
            let judge = match own_formats.get(index) {
                Some(own) if own.len() < tuples.len() => {
                    let profile = profile.name.clone();
                    Box::new(Offered { judge, profile, formats: own.clone() })
                }
                _ => judge,
            };
            notices.append(&mut said);
            timers.push(timer);
            offers.push(TargetOffer { summary, judge });
        }
        if purpose == Purpose::Plan && on == Some(Executor::Cpu) {
            let foreign = offers.iter().any(|offer| offer.summary.target.kind != TargetKind::Cpu);
            emulated_on = foreign.then(|| Executor::Cpu.name().to_owned());
        }
        let context = context(graph, options)?;
        let (mut prompts, prompt_tokens) = options.usual_prompts(context);
        let mut encode_rows = options.encode_rows.clone();
        if profile.kind == TargetKind::Cpu {
            // A CPU computes only the rows that are filled, so the largest entry point is best.
            prompts.clear();
            encode_rows = encode_rows.into_iter().max().into_iter().collect();
        }
        let menu = match graph.is_generative() {
            true => EntryMenu::for_prompts(graph, context, &prompts),
            false => EntryMenu::for_rows(graph, context, &encode_rows),
        };
        let menu = if profile.kind == TargetKind::Cpu { menu } else { menu.for_a_chip() };
        let loss_goal = options.loss_goal(&profile, graph);
        let goals = Goals {
            quality_micronats: options.quality_micronats,
            least_loss: loss_goal == LossGoal::Least,
            memory_bytes: options.memory_bytes,
            context: if graph.is_generative() { context } else { 0 },
            max_prefill_rows: menu.largest_rows(),
            size_bytes: options.size_bytes,
            token_microseconds: options.token_microseconds,
            first_token_microseconds: options.first_token_microseconds,
            prompt_tokens,
            answer_tokens: options.answer_tokens.unwrap_or(0),
        };
        let mut planner_options: Vec<PlannerOption> = options
            .planner_options
            .iter()
            // Options that place components of other passes belong to the plans of those passes.
            .filter(|(name, _)| placed(name).is_none_or(|pass| pass == graph.pass))
            .map(|(name, value)| PlannerOption { name: name.clone(), value: value.clone() })
            .collect();
        let usual = options.usual_quality(&profile, graph);
        planner_options.extend(usual.map(|millinats| PlannerOption {
            name: USUAL_QUALITY_OPTION.to_owned(),
            value: millinats.to_string(),
        }));
        // Without fallbacks, the plan needs no share of a size goal for them.
        if options.strict && options.size_bytes.is_some() && options.planner.is_none() {
            let (name, value) = NO_FALLBACKS;
            planner_options.push(PlannerOption { name: name.to_owned(), value: value.to_owned() });
        }
        let model = source.name();
        let formats = ModelFormats::counted(graph, &tuples)?;
        let weighed = Weighed::of(source);
        let (stated, said) = options.usual_drafts(source, &profile.name, context)?;
        passing.extend(said);
        let drafts = stated.iter().map(|draft| draft.estimate.clone()).collect();
        let question =
            Question { model: &model, menu: &menu, goals, prompts, drafts, options: planner_options };
        let mut watch = Part::new(watch, 0..1000);
        let asked = if matches!(loss_goal, LossGoal::Most(_)) { 500 } else { 1000 };
        let (mut request, time_keys) =
            make_keyed_request(graph, &offers, &formats, question, &timers, &mut watch.then(asked))?;
        passing.extend(costs.notices());
        passing.extend(options.times.apply(&mut request, &time_keys, options.cache.as_deref()));
        request.drafts = stated.iter().map(|draft| draft.estimate_in(&request)).collect();
        let ground = match loss_goal {
            LossGoal::None => LossGround::Expected,
            LossGoal::Least => LossGround::Kept,
            LossGoal::Most(_) => LossGround::Measured,
        };
        let losses = source.losses(&tuples, ground, &mut watch)?;
        let graph = source.graph();
        request.tables = gathered_tables(graph, options.tables, source.remakes_tables(), &losses.tables)?;
        (request.sensitivities, request.value_sensitivities) = (losses.layers, losses.values);
        request.ranges = boundary_ranges(graph, &losses.ranges);
        if loss_goal != LossGoal::None {
            passing.extend(source.take_notices());
        }
        let session = planning_session(options, &trust)?;
        passing.extend(session.load_notices().map(Notice::note));
        passing.extend(trust.take_notices());
        let skipped = shims.skipped_notices(&passing);
        passing.extend(skipped.iter().cloned());
        Ok(Preparation {
            profile,
            shims,
            offers,
            formats,
            weighed,
            executors,
            learned,
            compilers,
            request,
            time_keys,
            session,
            notices,
            passing,
            skipped: if is_any_missing { skipped } else { Vec::new() },
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

    /// Returns the plan with all its notices. Under `strict`, a fallback is an error instead.
    pub(crate) fn report(
        &self,
        planned: &Planned,
        refused_plans: usize,
        more: Vec<Notice>,
    ) -> Result<PlanReport> {
        let mut notices = self.notices.clone();
        if let Some(error) = &planned.fallback {
            notices.push(Notice::fallback(format!("{error}; the built-in planner took over")));
        }
        if let Some(error) = &planned.floor {
            notices.push(Notice::fallback(format!(
                "{error}; no planner took its place: the plan has the first target and formats that are legal, cut where a limit is reached"
            )));
        }
        for line in &planned.log {
            match line.level {
                LogLevel::Warn | LogLevel::Error => {
                    notices.push(Notice::making(format!("planner: {}", line.message)));
                }
                LogLevel::Info => tracing::info!(planner = planned.by.name, "{}", line.message),
                LogLevel::Debug => tracing::debug!(planner = planned.by.name, "{}", line.message),
            }
        }
        let flags: usize = planned.plan.plan().shards.iter().map(|shard| shard.flags.len()).sum();
        if self.emulated_on.is_some() && flags > 0 {
            notices.push(Notice::note(format!(
                "the plan's {} reach no compiler and no driver here",
                units::count(flags as u64, "flag")
            )));
        }
        notices.extend(self.left_the_chip(planned));
        notices.extend(self.otherwise_planned(planned));
        notices.extend(self.calibration_unused(planned));
        notices.extend(self.longer_than_polled(planned));
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
                built_in: !self.asked_planner || planned.fallback.is_some() || planned.floor.is_some(),
            },
            refused_plans,
            notices,
            emulated_on: self.emulated_on.clone(),
        };
        let forecast = forecast(&self.request, &planned.plan, self.formats.graph(0), &self.weighed);
        let report = report_plan(&self.request, &planned.plan, forecast, heading);
        Ok(PlanReport { soc_title: Some(self.profile.title.clone()), ..report })
    }

    /// Adds the notices about skipped shims to an error of planning without a shim. A planner that
    /// is refused before it plans needs no shim.
    pub(crate) fn without_shims(&self, error: Error) -> Error {
        match error.kind() {
            ErrorKind::Planning => {
                self.skipped.iter().fold(error, |error, skipped| error.with_more(&skipped.text))
            }
            _ => error,
        }
    }

    /// Returns a fallback notice, once per shard, if the shim deviated from the work order: nodes
    /// that run elsewhere than on the device, or flags that it refused or does not know.
    pub(crate) fn otherwise_notice(&self, shard: &BuiltShard) -> Option<Notice> {
        let executor = &self.executors[shard.target];
        let place = executor.instance.place(&executor.device);
        let origin = shard.origin(&self.request);
        let mut found = origin.fallbacks(&place, self.emulated_on.is_some());
        if self.emulated_on.is_none() {
            // A profile's flag may have no effect on a shard. A flag of the user is meant to have
            // one.
            let inert = origin.flags.iter().filter(|existing| {
                existing.verdict == FlagVerdict::Inert && self.asked_flags.contains(&existing.flag)
            });
            found.extend(inert.map(|existing| {
                (
                    format!("flag {}, which you set, is {}", existing.flag, existing.verdict.name()),
                    existing.reason.clone(),
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

    /// Returns a notice, once per shard, with the shim's remarks on nodes that run where they were
    /// planned to run.
    pub(crate) fn remarked_notice(&self, shard: &BuiltShard) -> Option<Notice> {
        let origin = shard.origin(&self.request);
        let first = origin.remarks().next()?;
        Some(Notice::making(format!(
            "shard {}: the compiler's remarks on {} operations, first {} `{}`: {}",
            shard.name,
            origin.remarks().count(),
            first.entry,
            first.node,
            first.reason
        )))
    }

    /// Returns notices about shards that are planned for another target than the chip that the user
    /// named, unless the user named that target for them.
    fn left_the_chip(&self, planned: &Planned) -> Vec<Notice> {
        if self.profile.kind == TargetKind::Cpu {
            return Vec::new();
        }
        let plan = planned.plan.plan();
        let mut notices = Vec::new();
        for (index, shard) in planned.plan.shards().iter().enumerate() {
            let (name, target) = (&shard.name, &shard.target.name);
            let asked = shard.segments.iter().all(|segment| {
                let wanted = format!("place.{}", segment.component);
                self.request.options.iter().any(|option| option.name == wanted && option.value == *target)
            });
            if shard.planned.target == CHIP || asked {
                continue;
            }
            let place = if shard.target.kind == TargetKind::Cpu { "the CPU" } else { target };
            let mut reasons = plan.reasons.iter().filter(|reason| reason.shard == Some(index as u32));
            let why = reasons.find(|reason| reason.choice.starts_with("target"));
            let said = why.map_or("the plan gives no reason", |reason| reason.because.as_str());
            let chip = &self.profile.name;
            // Targets are in order of preference. A later target runs a shard only if no earlier
            // one could.
            let preferred = why.is_some_and(
                |reason| matches!(&reason.cause, Cause::Preference(name) if name != "target-order"),
            );
            notices.push(match preferred {
                true => Notice::note(format!(
                    "{name} runs on {place}, not on {chip}, as the planner prefers: {said}"
                )),
                false => Notice::fallback(format!("{name} runs on {place}, not on {chip}: {said}")),
            });
        }
        notices
    }

    /// Returns notices about flags that the planner set differently from the user.
    fn otherwise_planned(&self, planned: &Planned) -> Vec<Notice> {
        let mut notices = Vec::new();
        for shard in planned.plan.shards() {
            if shard.planned.target != CHIP {
                continue;
            }
            let (name, flags) = (&shard.name, &shard.planned.flags);
            let dropped = self.asked_flags.iter().filter(|flag| !flags.contains(flag));
            notices.extend(
                dropped.map(|flag| format!("{name}: the planner left flag {flag} out, which you set")),
            );
            let kept = flags.iter().filter(|flag| self.left_out_flags.contains(&flag.name));
            notices
                .extend(kept.map(|flag| format!("{name}: the planner set flag {flag}, which you left out")));
        }
        notices.into_iter().map(Notice::fallback).collect()
    }

    /// Returns a notice if one call for a token lasts longer than callers poll for on the chip.
    fn longer_than_polled(&self, planned: &Planned) -> Option<Notice> {
        let fact = self.profile.fact(fact_names::POLLING_MICROSECONDS)?;
        let polled: u64 = fact.value.parse().ok()?;
        let long = planned.plan.shards().iter().filter_map(|shard| {
            let runs = shard.cost.entries.iter();
            let runs = runs.filter(|run| run.entry.kind == EntryKind::Decode && run.entry.rows == 1);
            let longest = runs.map(|run| run.known_microseconds).max()?;
            let on_the_chip = shard.planned.target == CHIP;
            (on_the_chip && longest > polled)
                .then(|| format!("{} {}", shard.name, units::microseconds(longest)))
        });
        let long: Vec<String> = long.collect();
        if long.is_empty() {
            return None;
        }
        Some(Notice::making(format!(
            "a token takes {}, more than the {} for which callers poll on {}: the processor's clock may drop, \
             which no figure here counts; `--limit {}={polled}` cuts for it ({})",
            long.join(", "),
            units::microseconds(polled),
            self.profile.name,
            limit_names::CALL_MICROSECONDS,
            fact.provenance,
        )))
    }

    /// Returns a notice if a calibration text was passed but the plan needs no calibration.
    fn calibration_unused(&self, planned: &Planned) -> Option<Notice> {
        let path = self.calibration_text.as_ref()?;
        let measured = self.request.sensitivities.iter().any(|row| row.provenance == Provenance::Measured);
        let is_used = ModelFormats::needs_ranges(&planned.plan) || measured;
        (!is_used).then(|| {
            Notice::making(format!(
                "{} is not calibrated on: the plan has no integers with ranges to be found",
                path.display()
            ))
        })
    }

    /// Returns the parts that are needed once everything is compiled.
    pub(crate) fn let_go(self) -> (Request, Profile, RunPlaces) {
        // A chip may be open only once, so the instances that answered questions are closed.
        drop(self.offers);
        let places = RunPlaces::of(self.shims, self.executors, self.threads);
        (self.request, self.profile, places)
    }
}

/// Rejects options that do not apply to this model and chip, before any slow step.
fn check_asked(graph: &Graph, profile: &Profile, options: &PlanOptions) -> Result<()> {
    if profile.kind == TargetKind::Cpu && options.on == Some(Executor::Simulator) {
        let what = format!("profile {} is for a CPU, of which there is no simulator", profile.name);
        return Err(Error::new(ErrorKind::Argument, what)
            .with_help("name a chip with `--soc`, or leave `--on simulator` out"));
    }
    let (count, cap) = (options.prompts.len(), caps::PROMPTS);
    if count > cap {
        let what = format!("{count} lengths of usual prompts, at most {cap} are taken");
        return Err(Error::new(ErrorKind::Argument, what).with_help("name lengths that are close as one"));
    }
    // Tables are identified by position: first the embedding, then the per-layer embedding.
    if options.tables.per_layer.is_some() && graph.assets.len() < 2 {
        return Err(Error::new(ErrorKind::Argument, "this model has no per-layer embedding")
            .with_help("leave `--table per-layer=…` out"));
    }
    options.read_calibration_text()?;
    let known = limit_names::ALL;
    // Another planner may support limits that this host does not know.
    let unknown = options.limits.iter().find(|(name, _)| !known.contains(&name.as_str()));
    match unknown.filter(|_| options.planner.is_none()) {
        None => Ok(()),
        Some((name, _)) => Err(Error::new(ErrorKind::Argument, format!("there is no limit `{name}`"))
            .with_help(format!("limits are: {}", known.join(", ")))),
    }
}

fn context(graph: &Graph, options: &PlanOptions) -> Result<u32> {
    let model = u32::try_from(graph.context).unwrap_or(u32::MAX);
    match options.context {
        None => Ok(model.min(DEFAULT_CONTEXT)),
        Some(context) if context >= 1 && context <= model => Ok(context),
        Some(context) => {
            Err(Error::new(ErrorKind::Argument, format!("a context of {context} tokens is not possible"))
                .with_help(format!("this model supports 1 to {model}")))
        }
    }
}
