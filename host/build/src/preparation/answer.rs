//! The report on the planner's answer, with the notices about it.

use shardwright_planning::plan::Cause;
use shardwright_planning::profile::fact_names;
use shardwright_planning::sandbox::LogLevel;
use shardwright_planning::session::Planned;
use shardwright_vocabulary::{
    EntryKind, Error, ErrorKind, Flag, FlagVerdict, Notice, NoticeKind, PlannerIdentity, Provenance,
    TargetKind, limit_names, units,
};

use super::Preparation;
use crate::options::USUAL_QUALITY_OPTION;
use crate::{
    BuiltShard, GoalReport, IntervalText, ModelFormats, PlanHeading, PlanReport, Result, forecast,
    report_plan,
};

/// Index of the profile's own chip among a request's targets.
const CHIP: u32 = 0;

/// Why a shard is not on the chip: the place where it runs, the planner's reason, and whether the
/// user prefers that place.
type Ground<'a> = (&'a str, &'a str, bool);

impl Preparation {
    /// Returns the plan with all its notices. Under `strict`, a fallback is an error instead, and
    /// so is a goal that is unlikely to be met.
    pub(crate) fn report(
        &self,
        planned: &Planned,
        refused_plans: usize,
        more: Vec<Notice>,
    ) -> Result<PlanReport> {
        let mut notices: Vec<Notice> = self.defaults(planned).into_iter().collect();
        notices.extend(self.notices.iter().cloned());
        if let Some(error) = &planned.fallback {
            notices.push(Notice::fallback(format!("{error}; the built-in planner took over")));
        }
        if let Some(error) = &planned.floor {
            notices.push(Notice::fallback(format!(
                "{error}; planned without a planner: the first supported target and formats, and a new shard \
                 at each limit"
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
                "the plan's {} have no effect here, as no compiler or driver of the chip is used",
                units::count(flags as u64, "flag")
            )));
        }
        notices.extend(self.left_the_chip(planned));
        notices.extend(self.otherwise_planned(planned));
        notices.extend(self.rounding_by_default(planned));
        notices.extend(self.calibration_unused(planned));
        notices.extend(self.longer_than_polled(planned));
        notices.extend(more);
        let heading = PlanHeading {
            soc: self.profile.name.clone(),
            planner: PlannerIdentity {
                name: planned.by.name.clone(),
                version: planned.by.version.clone(),
                built_in: self.session.is_built_in() || planned.fallback.is_some() || planned.floor.is_some(),
            },
            refused_plans,
            notices: Vec::new(),
            emulated_on: self.emulated_on.clone(),
        };
        let forecast = forecast(&self.request, &planned.plan, self.formats.graph(0), &self.weighed);
        let report = report_plan(&self.request, &planned.plan, forecast, heading);
        notices.extend(report.goals.iter().filter_map(GoalReport::notice));
        notices.extend(self.beyond_usual_loss(&report));
        if self.options.strict
            && let Some(fallback) = notices.iter().find(|notice| notice.kind == NoticeKind::Fallback)
        {
            return Err(Error::new(ErrorKind::Strict, fallback.text.clone()));
        }
        Ok(PlanReport { soc_title: Some(self.profile.title.clone()), notices, ..report })
    }

    /// Returns a notice with the planner and the goals that come from the profile. A planner that
    /// did not decide, because it is missing or failed, is left out.
    fn defaults(&self, planned: &Planned) -> Option<Notice> {
        let own = self.options.planner.as_ref().filter(|_| self.options.planner_of_profile);
        let own = own.filter(|own| **own == planned.by.name).map(|own| format!("planner {own}"));
        let defaults: Vec<String> = own.into_iter().chain(self.goals.iter().cloned()).collect();
        let (profile, defaults) = (&self.profile.name, defaults.join(", "));
        (!defaults.is_empty()).then(|| Notice::making(format!("defaults from profile {profile}: {defaults}")))
    }

    /// Returns a notice if the plan loses more than is usual without a goal, because other goals
    /// need that.
    fn beyond_usual_loss(&self, report: &PlanReport) -> Option<Notice> {
        let option = self.request.options.iter().find(|option| option.name == USUAL_QUALITY_OPTION)?;
        let most = option.value.parse::<u64>().ok()?.saturating_mul(1000);
        let lost = report.totals.loss.micronats().filter(|lost| *lost > most)?;
        let [lost, most] = units::apart("quality", [lost, most]);
        Some(Notice::note(format!(
            "the plan loses {lost}, more than the {most} that are usual without `--quality`: the other goals \
             need that"
        )))
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
            let asked = self.asked_flags();
            let inert = origin
                .flags
                .iter()
                .filter(|existing| existing.verdict == FlagVerdict::Inert && asked.contains(&existing.flag));
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
    /// named, unless the user named that target for them. Shards with one reason share a notice.
    fn left_the_chip(&self, planned: &Planned) -> Vec<Notice> {
        if self.profile.kind == TargetKind::Cpu {
            return Vec::new();
        }
        let plan = planned.plan.plan();
        let mut grounds: Vec<(Ground<'_>, Vec<&str>)> = Vec::new();
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
            // Targets are in order of preference. A later target runs a shard only if no earlier
            // one could.
            let preferred = why.is_some_and(
                |reason| matches!(&reason.cause, Cause::Preference(name) if name != "target-order"),
            );
            let ground = (place, said, preferred);
            match grounds.iter_mut().find(|(known, _)| *known == ground) {
                Some((_, names)) => names.push(name),
                None => grounds.push((ground, vec![name.as_str()])),
            }
        }
        let notices = grounds.into_iter().map(|((place, said, preferred), names)| {
            let verb = if names.len() == 1 { "runs" } else { "run" };
            let what = format!("{} {verb} on {place}, not on {}", names.join(", "), self.profile.name);
            match preferred {
                true => Notice::note(format!("{what}, as the planner prefers: {said}")),
                false => Notice::fallback(format!("{what}: {said}")),
            }
        });
        notices.collect()
    }

    /// Returns the flags of the chip's compiler that the user set.
    fn asked_flags(&self) -> Vec<Flag> {
        let flags = self.options.recorded.flags.iter();
        flags.map(|(name, value)| Flag { name: name.clone(), value: value.clone() }).collect()
    }

    /// Returns notices about flags that the planner set differently from the user.
    fn otherwise_planned(&self, planned: &Planned) -> Vec<Notice> {
        let (asked, mut notices) = (self.asked_flags(), Vec::new());
        for shard in planned.plan.shards() {
            if shard.planned.target != CHIP {
                continue;
            }
            let (name, flags) = (&shard.name, &shard.planned.flags);
            let dropped = asked.iter().filter(|flag| !flags.contains(flag));
            notices.extend(
                dropped.map(|flag| format!("{name}: the planner dropped flag {flag}, which you set")),
            );
            let left_out = &self.options.recorded.flags_left_out;
            let kept = flags.iter().filter(|flag| left_out.contains(&flag.name));
            notices
                .extend(kept.map(|flag| format!("{name}: the planner set flag {flag}, which you left out")));
        }
        notices.into_iter().map(Notice::fallback).collect()
    }

    /// Returns a notice about activations of stored integers, if no option decides whether they are
    /// rounded.
    fn rounding_by_default(&self, planned: &Planned) -> Option<Notice> {
        let rounded = self.rounded.as_ref()?;
        let mut formats = planned.plan.shards().iter().flat_map(|shard| shard.formats.tuples());
        Some(Notice::making(match formats.any(|formats| formats == rounded) {
            true => format!(
                "the checkpoint has integers in blocks, so activations are rounded to 8 bits and the KV cache \
                 to 16, as in llama.cpp ({rounded}); `--formats stored` keeps floats"
            ),
            false => format!(
                "the checkpoint has integers in blocks, and the plan multiplies them with floats; \
                 `--formats {rounded}` rounds activations as llama.cpp does"
            ),
        }))
    }

    /// Returns a notice if one call for a token lasts longer than callers poll for on the chip.
    fn longer_than_polled(&self, planned: &Planned) -> Option<Notice> {
        let fact = self.profile.fact(fact_names::POLLING_MICROSECONDS)?;
        let polled: u64 = fact.value.parse().ok()?;
        let long = planned.plan.shards().iter().filter_map(|shard| {
            let runs = shard.cost.entries.iter();
            let runs = runs.filter(|run| run.entry.kind == EntryKind::Decode && run.entry.rows == 1);
            let longest = runs.map(|run| run.time).max_by_key(|time| time.microseconds)?;
            let on_the_chip = shard.planned.target == CHIP;
            (on_the_chip && longest.microseconds > polled)
                .then(|| format!("{} {}", shard.name, IntervalText::time(&longest)))
        });
        let long: Vec<String> = long.collect();
        if long.is_empty() {
            return None;
        }
        Some(Notice::making(format!(
            "a token takes {}, more than the {} for which callers poll on {}: the processor's clock may \
             drop, which the predicted times ignore; `--limit {}={polled}` keeps calls shorter ({})",
            long.join(", "),
            units::microseconds(polled),
            self.profile.name,
            limit_names::CALL_MICROSECONDS,
            fact.provenance,
        )))
    }

    /// Returns a notice if a calibration text was passed but the plan needs no calibration.
    fn calibration_unused(&self, planned: &Planned) -> Option<Notice> {
        let path = self.options.calibration_text.as_ref()?;
        let measured = self.request.sensitivities.iter().any(|row| row.provenance == Provenance::Measured);
        let is_used = ModelFormats::needs_ranges(&planned.plan) || measured;
        (!is_used).then(|| {
            Notice::making(format!(
                "{} is not used: no integers of the plan need calibrated ranges",
                path.display()
            ))
        })
    }
}
