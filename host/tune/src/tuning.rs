//! The tuning loop: requests, builds and times a plan, and uses the measurements for the next
//! request.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::{Duration, Instant};

use shardwright::OpenOptions;
use shardwright::tools::{IgnoredFields, OpenTools, expect_no_strays, load, stray_notices};
use shardwright_build::{
    LoopStart, LossReport, PlanOptions, PlanReport, Planned, RecordedPlan, Settled, TIMES, Times,
};
use shardwright_bundle::{Bundle, Digest, is_bundle};
use shardwright_checkpoints::{Builder, open_adapted, options_of};
use shardwright_doctor::compare_reports;
use shardwright_files::private_files;
use shardwright_planning::plan::{BuildTime, Plan};
use shardwright_planning::request::Request;
use shardwright_vocabulary::{
    Beforehand, EntryKind, Error, ErrorKind, Notice, Part, Pass, Result, TimeCost, Watch,
};

use crate::journal::Journal;
use crate::plan_variants::{PlanVariant, formats, settings};
use crate::report::{Outcome, TimedPlan, TriedPlan, TuneReport};
use crate::spread::Spread;
use crate::table::Base;
use crate::timing::{Loaded, STEPS, interrupted, time_alone, time_in_turns};
use crate::trial::{Measure, Trial};

/// Maximum number of timed plans, for a planner that never stops returning new ones.
const TRIALS_MAX: usize = 32;

/// The inputs for opening and running a checkpoint.
struct Site<'s> {
    checkpoint: &'s Path,
    asked: PlanOptions,
    until: Option<Instant>,
    /// The plan of the bundle whose checkpoint is tuned.
    bundled: Option<RecordedPlan>,
    /// Notices about that bundle and about fields of the checkpoint.
    notices: Vec<Notice>,
}

/// The default plan and all measurements compared with it.
struct Tuning<'s> {
    site: Site<'s>,
    base: Base,
    journal: Journal,
    default: Digest,
    measure: Measure,
    prompt: Vec<u32>,
    /// Loaded when the first trial needs it.
    baseline: Option<Loaded>,
    trials: Vec<Trial>,
    tried: Vec<TriedPlan>,
    notices: Vec<Notice>,
}

/// Times plans of a checkpoint on the targets of `open`, for at most `time` (`None`: until the
/// planner returns no other plan). Stores the trials in the cache, so that the next call continues
/// where this one ended. At the end, stores the times that later plans with the same chip, library,
/// flags and machine use. Returns the results of all trials so far, and notices.
///
/// Times are stored only if they lead the planner to the default plan, or to a plan that was timed
/// and is faster by more than the spread.
///
/// # Errors
///
/// If the path is not a checkpoint, if the model does not generate, if planning, building or
/// running the default plan fails, if the cache cannot be written, and [`ErrorKind::Cancelled`].
pub fn tune(
    checkpoint: &Path,
    open: &OpenOptions,
    time: Option<Duration>,
    watch: &mut dyn Watch,
) -> Result<(TuneReport, Vec<Notice>)> {
    if is_bundle(checkpoint) {
        return tune_bundle(checkpoint, None, open, time, watch);
    }
    let site = Site {
        checkpoint,
        asked: open.plan_options(),
        until: until(time),
        bundled: None,
        notices: Vec::new(),
    };
    begin(site, watch)
}

/// Tunes the checkpoint of a bundle like [`tune`], with the options that the bundle was compiled
/// with. `open` provides all other options. The plan of its first chain is timed too.
///
/// # Errors
///
/// If the bundle's checkpoint is missing or another one, and the errors of [`tune`].
pub fn tune_bundle(
    bundle: &Path,
    checkpoint: Option<&Path>,
    open: &OpenOptions,
    time: Option<Duration>,
    watch: &mut dyn Watch,
) -> Result<(TuneReport, Vec<Notice>)> {
    let until = until(time);
    let Some(checkpoint) = checkpoint else {
        let what = format!("{} is a bundle, and tuning it requires its checkpoint", bundle.display());
        return Err(Error::new(ErrorKind::Argument, what)
            .with_help("name the checkpoint that it was compiled from with `--checkpoint DIR`"));
    };
    let options = open.plan_options();
    let rules = options.rules()?;
    let bundle = Bundle::open_trusting(bundle, &rules)?.choosing(options.soc.as_deref())?;
    let Some(chain) = bundle.variant().chains.first() else {
        let what = format!("{} has no chain", bundle.path().display());
        return Err(Error::new(ErrorKind::Invalid, what).with_help("compile the checkpoint again"));
    };
    let opened = open_adapted(checkpoint, &[Pass::Step], &options)?;
    let asked = options_of(&bundle, chain, &opened, &options)?;
    let plan = RecordedPlan::of(&bundle, chain)?;
    if options.strict {
        expect_no_strays(&bundle)?;
    }
    let notices = rules.take_notices().into_iter().chain(stray_notices(&bundle)).collect();
    let site = Site { checkpoint, asked, until, bundled: Some(plan), notices };
    begin(site, watch)
}

/// Returns whether a plan replaces the default one, based on its relative time. `None` means that
/// it was not timed.
fn replaces(ratio: Option<&Spread>) -> bool {
    ratio.is_some_and(Spread::is_below_one)
}

/// Returns the end of the available time.
fn until(time: Option<Duration>) -> Option<Instant> {
    time.and_then(|time| Instant::now().checked_add(time))
}

fn begin(mut site: Site<'_>, watch: &mut dyn Watch) -> Result<(TuneReport, Vec<Notice>)> {
    let checkpoint = open_adapted(site.checkpoint, &[Pass::Step], &site.asked)?;
    let ignored = IgnoredFields::of_checkpoint(&checkpoint, site.asked.cache.as_deref());
    match site.asked.strict {
        true => ignored.expect_none()?,
        false => site.notices.extend(ignored.into_notices()?),
    }
    let default = site.plan(&PlanVariant::Default, &BTreeMap::new(), watch)?;
    let request: Request = serde_json::from_slice(&default.request)
        .map_err(|error| Error::new(ErrorKind::Internal, format!("invalid planner request: {error}")))?;
    if request.goals.context == 0 {
        return Err(Error::new(
            ErrorKind::Unsupported,
            "this model embeds; only models that generate can be tuned",
        )
        .with_help("plan it from estimates with `shardwright plan`"));
    }
    let measure = Measure { answer_tokens: request.goals.answer_tokens };
    let prompt = prompt(&request)?;
    let base = Base { request, keys: default.time_keys.clone() };
    let journal = Journal::of(site.asked.cache.as_deref(), base.question());
    let notices = std::mem::take(&mut site.notices);
    let mut tuning = Tuning {
        site,
        base,
        journal,
        default: identity(&default.plan),
        measure,
        prompt,
        baseline: None,
        trials: Vec::new(),
        tried: Vec::new(),
        notices,
    };
    let is_finished = tuning.run(&default, watch)?;
    tuning.report(&default, is_finished, watch)
}

impl Site<'_> {
    fn plan(
        &self,
        naming: &PlanVariant,
        times: &BTreeMap<Digest, TimeCost>,
        watch: &mut dyn Watch,
    ) -> Result<Planned> {
        let options = naming.options(&self.asked, times);
        let checkpoint = open_adapted(self.checkpoint, &[Pass::Step], &options)?;
        Builder::new(&checkpoint, None).plan(&options, watch)
    }

    fn settle(
        &self,
        naming: &PlanVariant,
        times: &BTreeMap<Digest, TimeCost>,
        watch: &mut dyn Watch,
    ) -> Result<Settled> {
        let options = naming.options(&self.asked, times);
        let checkpoint = open_adapted(self.checkpoint, &[Pass::Step], &options)?;
        let first = self.bundled.clone().filter(|_| *naming == PlanVariant::Bundled);
        let trying = LoopStart { first, ..LoopStart::default() };
        let (settled, _) = Builder::new(&checkpoint, None).kept_chain(&options, trying, watch)?;
        Ok(settled)
    }

    fn is_over(&self) -> bool {
        self.until.is_some_and(|until| Instant::now() >= until)
    }
}

impl Tuning<'_> {
    /// Times the default plan and all further plans. Returns whether none is left.
    fn run(&mut self, default: &Planned, watch: &mut dyn Watch) -> Result<bool> {
        let trial = match self.recall(self.default) {
            Some(trial) => trial,
            None => {
                self.load_baseline(watch)?;
                let trial = match &mut self.baseline {
                    Some(baseline) => time_alone(baseline, &self.prompt, watch)?,
                    None => return Ok(false),
                };
                self.keep(&trial)?;
                trial
            }
        };
        self.add(&PlanVariant::Default, Some(default.report.totals.loss), Ok(trial));
        let offered = formats(&default.settings, &self.site.asked, &self.base.request.formats);
        let mut others = settings(&default.settings, &self.site.asked).into_iter().chain(offered);
        loop {
            let named = match self.named_by_bundle() {
                Some(named) => Some(named),
                None => self.named_by_times(watch)?,
            };
            let named = match named {
                Some(named) => Some(named),
                None => self.named_by_setting(&mut others, watch)?,
            };
            let Some((naming, plan, loss)) = named else { return Ok(true) };
            if self.trials.len() >= TRIALS_MAX {
                return Ok(true);
            }
            match self.recall(plan) {
                Some(trial) => self.add(&naming, loss, Ok(trial)),
                None if self.site.is_over() => return Ok(false),
                None => {
                    let trial = self.time(&naming, plan, watch);
                    interrupted(watch)?;
                    if let Ok(trial) = &trial {
                        self.keep(trial)?;
                    }
                    self.add(&naming, loss, trial.map_err(|error| (plan, error)));
                }
            }
        }
    }

    /// Returns the bundle's plan, if it was not tried.
    fn named_by_bundle(&self) -> Option<(PlanVariant, Digest, Option<LossReport>)> {
        let plan = identity(self.site.bundled.as_ref()?.plan());
        (!self.is_tried(plan)).then_some((PlanVariant::Bundled, plan, None))
    }

    /// Returns an untried plan that the planner makes from the measurements. The plan that later
    /// commands would use comes first.
    fn named_by_times(
        &mut self,
        watch: &mut dyn Watch,
    ) -> Result<Option<(PlanVariant, Digest, Option<LossReport>)>> {
        let times = self.base.times(&self.trials);
        for naming in [PlanVariant::Measured, PlanVariant::Hopeful] {
            interrupted(watch)?;
            let Ok(planned) = self.site.plan(&naming, &times, &mut Part::new(watch, 0..1)) else { continue };
            let plan = identity(&planned.plan);
            if !self.is_tried(plan) {
                return Ok(Some((naming, plan, Some(planned.report.totals.loss))));
            }
        }
        Ok(None)
    }

    /// Returns the next untried plan that results from a setting of the planner.
    fn named_by_setting(
        &mut self,
        others: &mut impl Iterator<Item = PlanVariant>,
        watch: &mut dyn Watch,
    ) -> Result<Option<(PlanVariant, Digest, Option<LossReport>)>> {
        for naming in others {
            interrupted(watch)?;
            let asked = naming.words();
            match self.site.plan(&naming, &BTreeMap::new(), &mut Part::new(watch, 0..1)) {
                Ok(planned) if !self.is_tried(identity(&planned.plan)) => {
                    return Ok(Some((naming, identity(&planned.plan), Some(planned.report.totals.loss))));
                }
                Ok(_) => {}
                Err(error) => {
                    let result = format!("no plan: {error}");
                    self.tried.push(TriedPlan { asked, plan: None, ratio: None, loss: None, result });
                }
            }
        }
        Ok(None)
    }

    fn is_tried(&self, plan: Digest) -> bool {
        let plan = plan.to_string();
        self.tried.iter().any(|tried| tried.plan.as_ref() == Some(&plan))
    }

    fn load_baseline(&mut self, watch: &mut dyn Watch) -> Result<()> {
        if self.baseline.is_none() {
            let settled = self.site.settle(&PlanVariant::Default, &BTreeMap::new(), watch)?;
            self.baseline = Some(self.load(self.default, &settled)?);
        }
        Ok(())
    }

    fn load(&self, plan: Digest, settled: &Settled) -> Result<Loaded> {
        let chain = load(settled, Beforehand::default())?;
        // Rows have the same meaning in requests with the same offers.
        let (own, base) = (&settled.request, &self.base.request);
        let is_same =
            own.formats == base.formats && own.entries == base.entries && own.costs.len() == base.costs.len();
        let rows = if is_same { self.base.rows_of(&settled.plan) } else { Vec::new() };
        Loaded::new(plan, identity(settled.plan.plan()), &chain, rows)
    }

    /// Builds and times a plan.
    fn time(&mut self, naming: &PlanVariant, plan: Digest, watch: &mut dyn Watch) -> Result<Trial> {
        let times = self.base.times(&self.trials);
        let settled = self.site.settle(naming, &times, watch)?;
        if *naming == PlanVariant::Bundled && identity(settled.plan.plan()) != plan {
            let what =
                "the plan does not match the targets, formats or tables here, or does not compile unchanged";
            return Err(Error::new(ErrorKind::Incompatible, what));
        }
        let mut own = self.load(plan, &settled)?;
        self.load_baseline(watch)?;
        match &mut self.baseline {
            Some(baseline) => time_in_turns(baseline, &mut own, &self.prompt, watch),
            None => Err(Error::new(ErrorKind::Internal, "the default plan is not loaded")),
        }
    }

    fn recall(&mut self, plan: Digest) -> Option<Trial> {
        self.journal.recall(plan, self.default).unwrap_or_else(|fault| {
            self.notices.push(Notice::note(fault));
            None
        })
    }

    fn keep(&self, trial: &Trial) -> Result<()> {
        let Some(directory) = self.journal.directory() else { return Ok(()) };
        self.journal.keep(trial).map_err(|error| {
            private_files::not_kept(error, directory, "use a cache folder of your own to store measurements")
        })
    }

    /// Adds the result for a plan.
    fn add(
        &mut self,
        naming: &PlanVariant,
        loss: Option<LossReport>,
        trial: std::result::Result<Trial, (Digest, Error)>,
    ) {
        let asked = naming.words();
        let (plan, ratio, result) = match trial {
            Err((plan, error)) => (plan, None, format!("cannot be built and run: {error}")),
            Ok(trial) => {
                let is_default = *naming == PlanVariant::Default;
                let ratio = trial.ratio(self.measure).filter(|_| !is_default);
                let result = match &ratio {
                    None => "baseline for the others",
                    Some(ratio) if ratio.is_below_one() => "faster",
                    Some(ratio) if ratio.is_above_one() => "slower",
                    Some(_) => "within the spread",
                };
                let plan = trial.plan;
                self.trials.push(trial);
                (plan, ratio, result.to_owned())
            }
        };
        self.tried.push(TriedPlan { asked, plan: Some(plan.to_string()), ratio, loss, result });
    }

    /// Stores the times if they lead to the default plan, or to one that is faster by more than the
    /// spread. Returns the report.
    fn report(
        mut self,
        default: &Planned,
        is_finished: bool,
        watch: &mut dyn Watch,
    ) -> Result<(TuneReport, Vec<Notice>)> {
        let times = self.base.times(&self.trials);
        let made = self.site.plan(&PlanVariant::Measured, &times, watch)?;
        let after = identity(&made.plan);
        let trial = self.trials.iter().find(|trial| trial.plan == after);
        let ratio = trial.filter(|_| after != self.default).and_then(|trial| trial.ratio(self.measure));
        let is_good = after == self.default || replaces(ratio.as_ref());
        let kept = self.publish(if is_good { &times } else { const { &BTreeMap::new() } })?;
        let (made, after, ratio) =
            if is_good { (&made, after, ratio) } else { (default, self.default, None) };
        let is_faster = ratio.is_some_and(|ratio| ratio.is_below_one());
        let reached = ratio.map_or(1.0, |ratio| ratio.median);
        let allowed = micronats(default.report.totals.loss);
        let is_allowed = |tried: &TriedPlan| {
            let loss = tried.loss.and_then(micronats);
            loss.zip(allowed).is_some_and(|(loss, allowed)| loss <= allowed)
        };
        let advice = self.advice(after, reached, is_allowed);
        let trade = self.advice(after, reached, |tried| !is_allowed(tried));
        let outcome = match is_finished {
            false => Outcome::Unfinished,
            true if is_faster => Outcome::Faster,
            true if advice.is_some() => Outcome::FasterWithSetting,
            true => Outcome::NothingToWin,
        };
        // Notices of this run are not changes of the plan.
        let quiet = |planned: &Planned| PlanReport { notices: Vec::new(), ..planned.report.clone() };
        let report = TuneReport {
            model: default.report.model.clone(),
            soc: default.report.soc.clone(),
            emulated_on: default.report.emulated_on.clone(),
            outcome,
            prompt_tokens: self.prompt.len() as u32,
            answer_tokens: self.measure.answer_tokens,
            before: self.timed(default, self.default),
            after: self.timed(made, after),
            advice,
            trade,
            ratio,
            measured_rows: if kept.is_some() { times.len() } else { 0 },
            rows: self.base.keys.iter().flatten().count(),
            kept,
            drafts: Vec::new(),
            change: compare_reports(("default", &quiet(default)), ("tuned", &quiet(made))),
            tried: explained(std::mem::take(&mut self.tried), after),
        };
        Ok((report, self.notices))
    }

    /// Stores these times and removes all other times of the request's rows. Returns the folder, if
    /// the times are stored.
    fn publish(&self, times: &BTreeMap<Digest, TimeCost>) -> Result<Option<String>> {
        let Some(cache) = &self.site.asked.cache else { return Ok(None) };
        let kept = Times::of_cache(cache);
        let unkept = |error: Error| {
            let help = "use a cache folder of your own to store measurements";
            private_files::not_kept(error, &cache.join(TIMES), help)
        };
        for key in self.base.keys.iter().flatten() {
            match times.get(key) {
                Some(time) => kept.keep(*key, *time).map_err(unkept)?,
                None => kept.forget(*key).map_err(unkept)?,
            }
        }
        Ok((!times.is_empty()).then(|| kept.directory().display().to_string()))
    }

    fn timed(&self, planned: &Planned, plan: Digest) -> TimedPlan {
        let trial = self.trials.iter().find(|trial| trial.plan == plan);
        TimedPlan {
            plan: plan.to_string(),
            loss: planned.report.totals.loss,
            shards: planned.report.shards.iter().map(|shard| shard.segments.to_string()).collect(),
            prompt_seconds: trial.and_then(Trial::prompt),
            token_seconds: trial.and_then(Trial::token),
        }
    }

    /// Returns the fastest plan of a setting, among plans for which `counts` returns true. It must
    /// be faster than the default plan by more than the spread, and faster than the plan that later
    /// commands use.
    fn advice(&self, after: Digest, reached: f64, counts: impl Fn(&TriedPlan) -> bool) -> Option<TriedPlan> {
        let after = after.to_string();
        let by_setting = self.tried.iter().filter(|tried| tried.asked.starts_with("--") && counts(tried));
        let better = by_setting.filter(|tried| {
            let ratio = tried.ratio.filter(|ratio| ratio.is_below_one() && ratio.high < reached);
            ratio.is_some() && tried.plan.as_ref() != Some(&after)
        });
        let median = |tried: &&TriedPlan| tried.ratio.map_or(1.0, |ratio| ratio.median);
        better.min_by(|one, other| median(one).total_cmp(&median(other))).cloned()
    }
}

/// Returns the tried plans, and explains for faster ones why later commands do not use them.
fn explained(mut tried: Vec<TriedPlan>, after: Digest) -> Vec<TriedPlan> {
    let after = after.to_string();
    for tried in &mut tried {
        let is_faster = tried.ratio.is_some_and(|ratio| ratio.is_below_one());
        if is_faster && tried.plan.as_ref() != Some(&after) && !tried.asked.starts_with("--") {
            tried.result += "; with its goals and the other times, the planner makes another plan";
        }
    }
    tried
}

/// Returns a loss in millionths of a nat per token, or `None` if it is unknown.
fn micronats(loss: LossReport) -> Option<u64> {
    match loss {
        LossReport::None => Some(0),
        LossReport::Measured { micronats } | LossReport::Expected { micronats, .. } => Some(micronats),
        LossReport::NotMeasured { .. } => None,
    }
}

/// Computes the identity of a plan's build and run, independent of its reasons and of the time of
/// compilation.
fn identity(plan: &Plan) -> Digest {
    let mut plan = plan.clone();
    plan.reasons.clear();
    plan.lessons.clear();
    plan.fallback.clear();
    if let Some(speculation) = &mut plan.speculation {
        speculation.gain_thousandths = None;
    }
    plan.shards.iter_mut().for_each(|shard| shard.build = BuildTime::Ahead);
    Digest::of(&plan.canonical_bytes())
}

/// Returns the ids of a prompt that fills the largest prefill, and one more token whose logits are
/// needed. The prefill leaves room in the context for the tokens after it and for a step that
/// verifies some.
fn prompt(request: &Request) -> Result<Vec<u32>> {
    let rows = |kind: EntryKind| {
        let own = request.entries.iter().filter(move |entry| entry.kind == kind);
        own.map(|entry| entry.rows)
    };
    let verified = rows(EntryKind::Decode).max().unwrap_or(0);
    let room = request.goals.context.saturating_sub(STEPS + 1).saturating_sub(verified);
    let rows = rows(EntryKind::Prefill).filter(|rows| *rows <= room).max().unwrap_or(0);
    if request.goals.context <= STEPS {
        let what = format!("a context of {} tokens is too short for timing", request.goals.context);
        return Err(Error::new(ErrorKind::Context, what).with_help("raise --context"));
    }
    // Ids below the size of any vocabulary, in an order that does not profit from caching table
    // rows.
    Ok((0..=rows).map(|index| (index * 7 + 3) % 61).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_replaces_the_default_only_if_it_is_faster_beyond_the_spread() {
        let ratio = |values: [f64; 3]| Spread::of(values);
        assert!(replaces(ratio([0.8, 0.85, 0.9]).as_ref()));
        // 1.5 % slower, and 1.5 % faster, within a spread from 0.921 to 1.159.
        for none in [[0.921, 1.015, 1.159], [0.921, 0.985, 1.159], [1.0; 3], [1.1, 1.2, 1.3]] {
            assert!(!replaces(ratio(none).as_ref()), "{none:?}");
        }
        assert!(!replaces(None), "a plan that was not timed");
    }
}
