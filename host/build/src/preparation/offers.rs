//! Third stage of a preparation: the answers of the shims about each target, and the executor of
//! each.

use std::sync::Arc;

use shardwright_bundle::Digest;
use shardwright_vocabulary::{DeviceKind, ErrorKind, FormatTuple, Notice, Target, TargetKind};

use super::Notices;
use super::candidates::{Candidate, Candidates, Role};
use super::chip_choice::ChipChoice;
use crate::executors::{OwnShim, demand, executor, unusable};
use crate::offers::{Offered, complete, known_formats, unchecked_flags};
use crate::roofline::TimeModel;
use crate::times::timer;
use crate::{
    Compiler, Costs, Executor, Judge, LEARNED, Learned, PlanOptions, PrimitiveCount, Purpose, Result,
    ShimJudge, TargetExecutor, TargetOffer,
};

pub(super) struct Offers {
    pub(super) each: Vec<TargetOffer>,
    /// For each offer, the identity of the executor whose times are measured, if there is one.
    pub(super) timers: Vec<Option<Digest>>,
    /// One executor per target. Empty if the plan is not going to run.
    pub(super) executors: Vec<TargetExecutor>,
    /// The compiler of each executor. `None` if a substitute replaces the target.
    pub(super) compilers: Vec<Option<Compiler>>,
    pub(super) learned: Learned,
    pub(super) costs: Arc<Costs>,
    pub(super) emulated_on: Option<String>,
    /// Whether the shim of a target is missing.
    pub(super) is_any_missing: bool,
    chip_is_here: bool,
}

/// The data that queries about all targets share.
struct Site<'s> {
    chosen: &'s ChipChoice,
    purpose: Purpose,
    /// The formats of the request.
    tuples: &'s [FormatTuple],
    /// The options without the user's compiler options, which apply only to the chip's compiler.
    of_others: PlanOptions,
    /// Whether measured times are used.
    needs_keys: bool,
}

impl Offers {
    pub(super) fn of(
        candidates: &Candidates<'_>,
        chosen: &ChipChoice,
        purpose: Purpose,
        notices: &mut Notices,
    ) -> Result<Offers> {
        let options = &chosen.options;
        let cache = options.cache.as_deref();
        let site = Site {
            chosen,
            purpose,
            tuples: &candidates.tuples,
            of_others: options.without_settings(),
            needs_keys: options.times.need_keys(cache),
        };
        let costs = cache.map_or_else(Costs::unkept, |cache| Costs::kept_in(cache.join("costs")));
        let mut offers = Offers {
            each: Vec::new(),
            timers: Vec::new(),
            executors: Vec::new(),
            compilers: Vec::new(),
            learned: cache.map_or_else(Learned::unkept, |cache| Learned::kept_in(cache.join(LEARNED))),
            costs: Arc::new(costs),
            emulated_on: None,
            is_any_missing: false,
            chip_is_here: !options.elsewhere,
        };
        for candidate in &candidates.each {
            offers.add(&site, candidate, notices)?;
        }
        if purpose == Purpose::Plan && options.recorded.on == Some(Executor::Cpu) {
            let foreign = offers.each.iter().any(|offer| offer.summary.target.kind != TargetKind::Cpu);
            offers.emulated_on = foreign.then(|| Executor::Cpu.name().to_owned());
        }
        Ok(offers)
    }

    /// Queries the target's own shim, and adds the target unless it is a fallback that cannot be
    /// used.
    fn add(&mut self, site: &Site<'_>, candidate: &Candidate<'_>, notices: &mut Notices) -> Result<()> {
        let ChipChoice { options, shims, .. } = site.chosen;
        let profile = &candidate.found.profile;
        let own_options = if candidate.role == Role::Chip { options } else { &site.of_others };
        let mut summary = candidate.summary.clone();
        self.is_any_missing |= shims.registry.get(&summary.target.shim).is_none();
        let own = OwnShim::of(shims, &summary.target, candidate.found, options)?;
        let because = site.without_its_shim(candidate, &own, &mut notices.passing);
        let judged = own.judge();
        // If the chip is in another machine, so is the CPU next to it. The rates of its profile
        // replace times that apply to this machine's CPU.
        if candidate.role == Role::Chip && summary.target.kind != TargetKind::Cpu {
            let known = judged.or(own.stand_in());
            self.chip_is_here = known.is_some_and(|(_, device)| device.kind == DeviceKind::Present);
        }
        let is_timed = site.needs_keys && (summary.target.kind != TargetKind::Cpu || self.chip_is_here);
        let timer = is_timed.then(|| timer(&summary.target, judged, shims, options)).flatten();
        let mut said = complete(&mut summary, judged, profile, own_options)?;
        if judged.is_none() && summary.target.shim == profile.shim {
            let why = own.why_it_does_not_answer();
            said.extend(unchecked_flags(&summary.target, own.stand_in(), &why, &own_options.recorded.flags));
        }
        let compiler = judged.map(|(instance, device)| Compiler::of(instance, device, &summary.target.name));
        if let Some(compiler) = &compiler {
            let decided: Vec<&str> = options.recorded.limits.iter().map(|(name, _)| name.as_str()).collect();
            let learned = self.learned.offer(compiler, &mut summary, &decided);
            notices.passing.extend(learned.into_iter().map(Notice::note));
        }
        let judge = self.judge(site, candidate, &own, &because, &mut said);
        let carried_out = match site.purpose {
            Purpose::Plan => demand(&summary.target, &own, options.recorded.on).map(|()| None),
            purpose => executor(shims, &summary.target, own, purpose, options).map(Some),
        };
        let executor = match carried_out {
            // The chip can be used without this fallback.
            Err(error) if candidate.role == Role::Fallback && error.kind() == ErrorKind::Missing => {
                notices.passing.push(Notice::note(format!("{error}; not used as a fallback")));
                return Ok(());
            }
            carried_out => carried_out?,
        };
        if let Some(executor) = executor {
            said.extend(self.carry_out(&summary.target, executor, compiler));
        }
        notices.lasting.append(&mut said);
        self.timers.push(timer);
        let times = TimeModel::of(summary.target.kind, profile);
        self.each.push(TargetOffer { summary, judge, times });
        Ok(())
    }

    /// Returns the judge of a target. `because` is the reason why a simulator replaces its shim.
    fn judge(
        &self,
        site: &Site<'_>,
        candidate: &Candidate<'_>,
        own: &OwnShim,
        because: &str,
        said: &mut Vec<Notice>,
    ) -> Box<dyn Judge> {
        let (target, profile) = (&candidate.summary.target, &candidate.found.profile);
        let judge: Box<dyn Judge> = match own.judge() {
            // The CPU shim estimates with a formula that depends on its number of threads.
            Some((instance, device)) if target.kind == TargetKind::Cpu => {
                let judge = ShimJudge::new(instance.clone(), &device.name).reporting_to(&self.costs);
                Box::new(if self.chip_is_here { judge } else { judge.without_times() })
            }
            Some((instance, device)) => {
                Box::new(ShimJudge::keeping(instance.clone(), device.clone(), self.costs.clone()))
            }
            None if let Some((instance, device)) = own.stand_in() => {
                let (target, shim) = (&target.name, &target.shim);
                said.push(Notice::making(format!(
                    "target {target}: costs come from the simulator of shim `{shim}`{because}"
                )));
                Box::new(ShimJudge::new(instance.clone(), &device.name))
            }
            None => {
                let (known, trusted) = known_formats(profile, site.tuples, &site.chosen.options.formats);
                let judge = PrimitiveCount::knowing(known).since(&own.why_it_does_not_answer());
                let (target, costs) = (&target.name, judge.describe());
                said.push(Notice::making(format!("target {target}: {costs}")));
                said.extend(trusted);
                Box::new(judge)
            }
        };
        match &candidate.formats {
            Some(own) if own.len() < site.tuples.len() => {
                Box::new(Offered { judge, profile: profile.name.clone(), formats: own.clone() })
            }
            _ => judge,
        }
    }

    /// Adds the executor of a target, with the compiler that answers for the target. Returns a
    /// notice if the executor is a simulator.
    fn carry_out(
        &mut self,
        target: &Target,
        executor: TargetExecutor,
        compiler: Option<Compiler>,
    ) -> Option<Notice> {
        if !executor.is_target && target.kind != TargetKind::Cpu {
            self.emulated_on = Some(Executor::Cpu.name().to_owned());
        }
        // Refusals by a substitute do not reveal limits of the chip.
        self.compilers.push(compiler.filter(|_| executor.is_target));
        let simulated = executor.simulated.then(|| {
            let (target, shim, device) = (&target.name, &target.shim, &executor.device);
            Notice::note(format!(
                "target {target} is simulated by `{device}` of shim `{shim}`: results are those of the chip, \
                 but times are not"
            ))
        });
        self.executors.push(executor);
        simulated
    }
}

impl Site<'_> {
    /// Adds notices if the shim of a target cannot be used. Returns the reason for the notice about
    /// the simulator that answers instead. The reason is empty in notices that a bundle stores,
    /// because it is of this machine.
    fn without_its_shim(
        &self,
        candidate: &Candidate<'_>,
        own: &OwnShim,
        passing: &mut Vec<Notice>,
    ) -> String {
        let OwnShim::Unusable { error, stand_in } = own else { return String::new() };
        let target = &candidate.summary.target;
        if let Some(Err(error)) = stand_in {
            let (target, shim) = (&target.name, &target.shim);
            passing.push(Notice::note(format!(
                "target {target}: the simulator of shim `{shim}` does not work either: {error}"
            )));
        }
        // The chip's shim is not needed to run on the CPU. Another notice names its replacement in
        // the plan.
        let is_plan = self.purpose == Purpose::Plan;
        let on = self.chosen.options.recorded.on;
        if on == Some(Executor::Cpu) || candidate.role == Role::Fallback && !is_plan {
            return String::new();
        }
        match stand_in {
            Some(Ok(_)) if is_plan => format!(", because the shim cannot be used: {error}"),
            _ => {
                passing.push(Notice::note(unusable(target, error)));
                String::new()
            }
        }
    }
}
