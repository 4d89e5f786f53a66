//! Verifies plans as they are compiled, and says of those that do not hold where.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use shardwright::{Model, join};
use shardwright_build::{Candidate, CompiledGraphs, Feedback, MeasuredTime, Prover, Stage, feedback_of};
use shardwright_bundle::{Bundle, Digest};
use shardwright_models::Checkpoint;
use shardwright_shims::{Part, Watch};
use shardwright_vocabulary::{Beforehand, EntryKind, Error, ErrorKind, Result};

use super::search::Search;
use super::{FaultyPlace, RepairAttempt};
use crate::goldens::{self, Golden};
use crate::options::VerifyOptions;
use crate::report::{BoundaryVerification, ShardVerification, VerifyReport};
use crate::verification::Verification;

/// How far a proof is when the plan was verified, in thousandths; the search for its faults
/// follows.
const VERIFIED: u32 = 500;

/// Proves the plans of a bundle's first chain.
pub(super) struct BundleProver<'b> {
    /// The bundle that is repaired, for its texts.
    bundle: &'b Arc<Bundle>,
    intact: &'b Checkpoint,
    directory: &'b Path,
    goldens: Vec<Golden>,
    options: &'b VerifyOptions,
    attempts: Vec<RepairAttempt>,
    held: Option<(VerifyReport, usize)>,
}

impl<'b> BundleProver<'b> {
    pub(super) fn new(
        bundle: &'b Arc<Bundle>,
        intact: &'b Checkpoint,
        directory: &'b Path,
        options: &'b VerifyOptions,
    ) -> Result<Self> {
        let goldens = goldens::read_goldens(directory)?;
        Ok(BundleProver { bundle, intact, directory, goldens, options, attempts: Vec::new(), held: None })
    }

    /// The plans that did not hold, the verification of the one that does, and compilations.
    pub(super) fn finish(self) -> Result<(Vec<RepairAttempt>, VerifyReport, usize)> {
        let missing = || Error::new(ErrorKind::Internal, "a plan was accepted that nothing proved");
        let (report, compilations) = self.held.ok_or_else(missing)?;
        Ok((self.attempts, report, compilations))
    }

    /// Remembers why a plan did not hold.
    fn refuse(
        &mut self,
        candidate: &Candidate<'_>,
        faults: Vec<FaultyPlace>,
        feedback: Vec<Feedback>,
    ) -> Vec<Feedback> {
        self.attempts.push(RepairAttempt {
            shards: candidate.shards().len(),
            faults,
            reasons: feedback.iter().map(|feedback| feedback.message.clone()).collect(),
            compilations: candidate.compilations(),
        });
        feedback
    }
}

impl Prover for BundleProver<'_> {
    fn prove(&mut self, candidate: &mut Candidate<'_>, watch: &mut dyn Watch) -> Result<Vec<Feedback>> {
        let mut all = Part::new(watch, 0..1000);
        let mut parts = Vec::new();
        for (index, shard) in candidate.shards().iter().enumerate() {
            let executor = candidate.executor(shard);
            if !executor.loads && !executor.simulated {
                let what = format!("shard {} is compiled for a device that is not here", shard.name);
                return Err(Error::new(ErrorKind::Missing, what)
                    .with_help("`--on simulator` or `--on cpu` verify it in its place"));
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
        let id = Digest::of(&candidate.plan().plan().canonical_bytes()).to_string();
        let model = Model::of_chain(chain, self.bundle, candidate.report().clone(), id)?;
        let compiled: Vec<CompiledGraphs> =
            candidate.shards().iter().map(|shard| shard.compiled.clone()).collect();
        let verification =
            Verification { model: &model, compiled: &compiled, intact: self.intact, options: self.options };
        let report = verification.run(self.directory, &mut all.then(VERIFIED))?;
        // A chip may hold few shards at a time.
        drop(model);
        let judged = report.boundaries.iter().find(|boundaries| boundaries.judged);
        let measured: Vec<Vec<MeasuredTime>> = (0..candidate.shards().len())
            .map(|index| judged.map_or_else(Vec::new, |judged| times(candidate, judged, index)))
            .collect();
        if report.passed {
            let told = too_slow(candidate, measured);
            if told.is_empty() {
                let chain = self.bundle.manifest().chains.first().map(|chain| chain.name.clone());
                let report = VerifyReport { bundle_chain: chain, ..report };
                self.held = Some((report, candidate.compilations()));
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
                "no shard alone is out of bounds, and all of them together are: {}",
                report.summary()
            );
            return Err(Error::new(ErrorKind::Planning, what).with_help(
                "`--threshold nll=SHARE` accepts a larger loss; `--quality good` has a plan of less loss made",
            ));
        }
        let (mut faults, mut feedback) = (Vec::new(), Vec::new());
        for (index, shard) in failed {
            let search = Search {
                intact: self.intact,
                goldens: &self.goldens,
                exact: report.exact,
                thresholds: judged.map_or(crate::Thresholds::VENDOR, |judged| judged.thresholds),
                index,
                failed: shard,
            };
            for place in search.run(candidate, &mut all.most_of_the_rest())? {
                feedback.push(place.feedback(index, measured[index].clone()));
                faults.push(place);
            }
        }
        Ok(self.refuse(candidate, faults, feedback))
    }
}

/// How long the entry points of a shard took with all their rows; nothing of what another device
/// stands in for, or a simulator.
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

/// The measured times, if by them a token takes longer than the goal.
fn too_slow(candidate: &Candidate<'_>, measured: Vec<Vec<MeasuredTime>>) -> Vec<Feedback> {
    let Some(goal) = candidate.request().goals.token_microseconds else { return Vec::new() };
    let of_a_token = |measured: &Vec<MeasuredTime>| {
        let mut steps = measured.iter().filter(|time| {
            time.entry.kind == EntryKind::Encode
                || (time.entry.kind, time.entry.rows) == (EntryKind::Decode, 1)
        });
        steps.next().map_or(0, |time| time.microseconds)
    };
    let token = measured.iter().map(of_a_token).fold(0, u64::saturating_add);
    if token <= goal {
        return Vec::new();
    }
    let told = measured.into_iter().enumerate().filter(|(_, times)| !times.is_empty());
    told.map(|(index, times)| Feedback {
        shard: Some(index as u32),
        class: None,
        message: format!("a token takes {token} µs as measured, where the goal is {goal} µs"),
        details: Vec::new(),
        times,
        drift_per_mille: None,
    })
    .collect()
}
