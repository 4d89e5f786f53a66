//! Verifies plans after they are compiled, and reports the faulty places of plans that fail.

use std::time::Duration;

use shardwright::tools::join;
use shardwright_build::{
    Candidate, CompiledGraphs, Feedback, MeasuredTime, Prover, Stage, feedback_of, plan_times,
};
use shardwright_vocabulary::{
    Beforehand, EntryKind, EntryName, Error, ErrorKind, GoalVerdict, Part, Result, TimeCost, Watch,
};

use super::search::Search;
use super::subject::{Proved, Subject};
use super::{FaultyPlace, RepairAttempt};
use crate::report::{BoundaryVerification, ShardVerification};

/// Progress after the plan was verified, in thousandths. The search for its faults follows.
const VERIFIED: u32 = 500;

/// Proves the plans of a model of a bundle.
pub(super) struct ModelProver<S: Subject> {
    subject: S,
    attempts: Vec<RepairAttempt>,
    held: Option<S::Report>,
}

impl<S: Subject> ModelProver<S> {
    pub(super) fn new(subject: S) -> Self {
        ModelProver { subject, attempts: Vec::new(), held: None }
    }

    /// Returns the plans that failed, and the verification of the plan that passed.
    pub(super) fn finish(self) -> Result<(Vec<RepairAttempt>, S::Report)> {
        let missing = || Error::new(ErrorKind::Internal, "an unverified plan was accepted");
        Ok((self.attempts, self.held.ok_or_else(missing)?))
    }

    /// Records why a plan failed.
    fn refuse(
        &mut self,
        candidate: &Candidate<'_>,
        faults: Vec<FaultyPlace>,
        feedback: Vec<Feedback>,
    ) -> Vec<Feedback> {
        self.attempts.push(RepairAttempt {
            pass: self.subject.pass(),
            shards: candidate.shards().len(),
            faults,
            reasons: feedback.iter().map(|feedback| feedback.message.clone()).collect(),
            compilations: candidate.compilations(),
        });
        feedback
    }
}

impl<S: Subject> Prover for ModelProver<S> {
    fn prove(&mut self, candidate: &mut Candidate<'_>, watch: &mut dyn Watch) -> Result<Vec<Feedback>> {
        let mut all = Part::new(watch, 0..1000);
        let mut parts = Vec::new();
        for (index, shard) in candidate.shards().iter().enumerate() {
            let executor = candidate.executor(shard);
            if !executor.loads && !executor.simulated {
                let what = format!("shard {} is compiled for a device that is not here", shard.name);
                return Err(Error::new(ErrorKind::Missing, what)
                    .with_help("use `--on simulator` or `--on cpu` to verify it"));
            }
            match candidate.load(shard) {
                Ok(part) => parts.push(part),
                Err(error) => {
                    let told = feedback_of(index, &shard.name, &error, Stage::Load);
                    let told = told.ok_or_else(|| Error::from(error))?;
                    return Ok(self.refuse(candidate, Vec::new(), vec![told]));
                }
            }
        }
        let emulated_on = candidate.report().emulated_on.clone();
        let chain = join(parts, candidate.graph(), emulated_on, Beforehand::default())?;
        let compiled: Vec<CompiledGraphs> =
            candidate.shards().iter().map(|shard| shard.compiled.clone()).collect();
        // The chain is dropped afterwards, because a chip may have room for few shards at a time.
        let report = self.subject.run(candidate, chain, &compiled, &mut all.then(VERIFIED))?;
        let judged = report.boundaries().iter().find(|boundaries| boundaries.judged);
        let measured: Vec<Vec<MeasuredTime>> = (0..candidate.shards().len())
            .map(|index| judged.map_or_else(Vec::new, |judged| times(candidate, judged, index)))
            .collect();
        if report.passed() {
            let told = too_slow(candidate, measured);
            if told.is_empty() {
                self.held = Some(report);
                return Ok(told);
            }
            return Ok(self.refuse(candidate, Vec::new(), told));
        }
        let failed: Vec<(usize, &ShardVerification)> = judged
            .iter()
            .flat_map(|judged| judged.shards.iter().enumerate())
            .filter(|(_, shard)| !shard.passed)
            .collect();
        if failed.is_empty() {
            let what = format!(
                "each shard alone is within bounds, but all of them together are not: {}",
                report.summary()
            );
            return Err(Error::new(ErrorKind::Planning, what).with_help(self.subject.help()));
        }
        let prompts = self.subject.prompts();
        let (mut faults, mut feedback) = (Vec::new(), Vec::new());
        for (index, shard) in failed {
            let search = Search {
                graph: self.subject.graph(),
                prompts: &prompts,
                exact: report.exact(),
                thresholds: judged.map_or(crate::Thresholds::VENDOR, |judged| judged.thresholds),
                index,
                failed: shard,
            };
            for place in search.run(candidate, &mut all.most_of_the_rest())? {
                feedback.push(place.feedback(index, measured[index].clone()));
                faults.push(place);
            }
        }
        drop(prompts);
        Ok(self.refuse(candidate, faults, feedback))
    }
}

/// Returns the times of a shard's entry points with all their rows. Empty if a simulator or a
/// substitute device runs the shard.
fn times(candidate: &Candidate<'_>, judged: &BoundaryVerification, index: usize) -> Vec<MeasuredTime> {
    let shard = &candidate.shards()[index];
    let executor = candidate.executor(shard);
    if executor.simulated || !executor.is_target {
        return Vec::new();
    }
    let planned = candidate.plan().plan().shards.get(index).map_or(&[][..], |shard| &shard.entries);
    let entries = judged.shards.get(index).map_or(&[][..], |shard| &shard.entries).iter();
    let measured = entries.filter_map(|entry| {
        let name = planned.iter().find(|planned| planned.to_string() == entry.entry)?;
        Some(MeasuredTime { entry: *name, microseconds: microseconds(entry.fastest?) })
    });
    measured.collect()
}

fn microseconds(time: Duration) -> u64 {
    u64::try_from(time.as_micros()).unwrap_or(u64::MAX).max(1)
}

/// Returns the time of a token of a plan, in which measured times of shards replace the predicted
/// ones.
fn measured_token(candidate: &Candidate<'_>, measured: &[Vec<MeasuredTime>]) -> TimeCost {
    let is_step = |entry: EntryName| match entry.kind {
        EntryKind::Encode => true,
        EntryKind::Decode => entry.rows == 1,
        EntryKind::Prefill => false,
    };
    let predicted = plan_times(candidate.request(), candidate.plan()).token;
    candidate.plan().shards().iter().zip(measured).fold(predicted, |token, (shard, measured)| {
        let steps = measured.iter().filter(|time| is_step(time.entry));
        let Some(step) = steps.max_by_key(|time| time.entry.rows) else { return token };
        let part = shard.cost.entries.iter().find(|part| part.entry == step.entry);
        let own = part.map_or(TimeCost::ZERO, |part| part.time.saturating_add(shard.cost.call));
        let [low, likely, high] =
            [(token.low, own.low), (token.microseconds, own.microseconds), (token.high, own.high)]
                .map(|(all, own)| all.saturating_sub(own).saturating_add(step.microseconds));
        TimeCost::within(low, likely, high, token.provenance)
    })
}

/// Returns the measured times as feedback, if no run of a token keeps the goal according to them.
fn too_slow(candidate: &Candidate<'_>, measured: Vec<Vec<MeasuredTime>>) -> Vec<Feedback> {
    let Some(goal) = candidate.request().goals.token_microseconds else { return Vec::new() };
    let token = measured_token(candidate, &measured);
    if token.verdict(goal) != GoalVerdict::Missed {
        return Vec::new();
    }
    let token = token.low;
    let told = measured.into_iter().enumerate().filter(|(_, times)| !times.is_empty());
    told.map(|(index, times)| Feedback {
        shard: Some(index as u32),
        class: None,
        message: format!("a token takes {token} µs (measured), above the goal of {goal} µs"),
        details: Vec::new(),
        times,
        drift_per_mille: None,
    })
    .collect()
}
