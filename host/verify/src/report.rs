use serde::Serialize;

use crate::divergence::DivergenceVerification;
use crate::effort::EffortReport;
use crate::thresholds::Thresholds;
use shardwright_vocabulary::Pass;
use shardwright_vocabulary::units;

/// Largest accepted differences, based on the differences between two f32 implementations of the
/// same network.
///
/// Rows of hidden states are compared relative to their own length, since published models have
/// rows of length 100,000 and rows of length 100. An absolute bound is too tight for the first or
/// too loose for the second. Two independent f32 evaluations differ by some 1e-6 of a row there,
/// and by at most 1e-3 in logits, which have a magnitude of 30 to 60. The limits leave a factor of
/// ten and more, and a wrong equation is far beyond them.
pub mod tolerance {
    /// Rows of hidden states, per-layer inputs and the final norm: relative error.
    pub const HIDDEN: f64 = 1e-4;
    /// Logits: absolute difference.
    pub const LOGITS: f64 = 1e-2;
    /// Unit sentence vectors, and the values before them: absolute difference.
    pub const EMBEDDING: f64 = 1e-5;
}

/// Comparison of one kind of output.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// `hidden`, `logits`, `greedy`, `tokenizer`, …
    pub what: String,
    /// Number of items that were compared: values, tokens or texts.
    pub compared: u64,
    /// Largest absolute difference. For hidden states and other outputs compared by rows, the
    /// largest relative error of a row. For tokens and texts, the number of different ones.
    pub worst: f64,
    /// The largest accepted value of `worst`.
    pub tolerance: f64,
    /// Where the worst one is.
    pub place: String,
    pub passed: bool,
    /// Whether the comparison counts. Numbers recorded from the checkpoint in float do not apply to
    /// a model in other formats.
    pub judged: bool,
}

/// The outcome of a verification.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VerifyReport {
    /// Name of the model.
    pub model: String,
    /// The profile planned for.
    pub soc: String,
    /// The executor, if it is not the planned targets.
    pub emulated_on: Option<String>,
    /// Number of shards of the chain.
    pub shards: usize,
    /// Number of shards that contain decoder layers.
    pub decoder_shards: usize,
    /// Whether every shard keeps the checkpoint's values: weights as stored, and f32 for
    /// activations, states and the products of attention.
    pub exact: bool,
    /// Comparisons with recorded outputs.
    pub comparisons: Vec<Comparison>,
    /// The first layer whose output is beyond the tolerance in any prompt, when the chain runs as a
    /// whole.
    pub first_divergent_layer: Option<u32>,
    /// Likelihoods and chosen tokens of the chain running by itself. `None` for encoders.
    pub tokens: Option<TokenVerification>,
    /// How far the chain is from the model as stored on text. `None` for exact models.
    pub divergence: Option<DivergenceVerification>,
    /// Every shard alone, once for each graph it is compared with.
    pub boundaries: Vec<BoundaryVerification>,
    /// Where the recorded outputs are, or `None` without recorded outputs.
    pub recorded: Option<String>,
    /// How much of the recorded data was run.
    pub effort: EffortReport,
    /// Recorded outputs that were not compared, with the reason.
    pub skipped: Vec<String>,
    /// Whether every judged comparison passed.
    pub passed: bool,
    /// Notices about deviations from the request.
    pub notices: Vec<String>,
    /// Warnings of the signature rules about the bundle. They are not stored in a bundle.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub signature_notices: Vec<String>,
    /// The proved chain of the bundle, if a bundle was proved.
    pub bundle_chain: Option<String>,
    /// The chip of the bundle's variant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bundle_variant: Option<String>,
    /// The artefacts that ran in place of the bundle's, if those do not run here.
    pub twin: Option<TwinReport>,
    /// The towers for pictures and sounds, each proved separately.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub towers: Vec<TowerVerification>,
}

/// Verification of a tower over recorded pictures or sounds and over generated ones. These differ
/// from the ones that it was calibrated on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TowerVerification {
    /// Pass of the tower.
    pub pass: Pass,
    /// Number of pictures or sounds.
    pub samples: usize,
    /// Whether every shard keeps the checkpoint's values.
    pub exact: bool,
    /// The tower running by itself, compared with the checkpoint in float. It is judged only if the
    /// tower is exact.
    pub soft_rows: RowComparison,
    /// The tower running by itself, compared with recorded rows, if there are any. It is judged
    /// only if the tower is exact.
    pub recorded: Option<RowComparison>,
    /// Every shard alone, once for each graph it is compared with.
    pub boundaries: Vec<BoundaryVerification>,
    /// Whether every judged comparison passed.
    pub passed: bool,
}

impl TowerVerification {
    /// Returns one sentence with numbers.
    pub fn summary(&self) -> String {
        let cosine = self.soft_rows.cosine_mean;
        format!("the rows of a {} at a cosine of {cosine:.5} to float", self.pass)
    }
}

/// Artefacts compiled from the work orders of a bundle for another device than the bundle's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TwinReport {
    pub device: String,
    /// The artefacts, in the order of the chain.
    pub artefacts: Vec<TwinArtefact>,
    /// The shim's description of the differences from the bundle's artefacts.
    pub differs: String,
}

/// One artefact of a twin.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TwinArtefact {
    /// Name of the shard.
    pub shard: String,
    /// Hash of its contents.
    pub sha256: String,
}

impl VerifyReport {
    /// Returns the entry points of shards that were not run, each with the reason.
    pub fn not_run(&self) -> impl Iterator<Item = NotRun<'_>> {
        // All boundaries describe the same runs.
        let towers = self.towers.iter().filter_map(|tower| tower.boundaries.first());
        let shards = self.boundaries.first().into_iter().chain(towers);
        let shards = shards.flat_map(|boundaries| &boundaries.shards);
        shards.flat_map(|shard| {
            shard.entries.iter().filter_map(|entry| {
                let reason = entry.not_run.as_deref()?;
                Some(NotRun { shard: &shard.shard, entry: &entry.entry, reason })
            })
        })
    }

    /// Returns one sentence with numbers.
    pub fn summary(&self) -> String {
        let outputs = |boundaries: &BoundaryVerification| {
            let entries = boundaries.shards.iter().flat_map(|shard| &shard.entries);
            entries.flat_map(|entry| &entry.outputs).fold((0, 0.0), |(rows, worst): (u64, f64), output| {
                (rows + output.rows, worst.max(output.relative_worst))
            })
        };
        let mut parts: Vec<String> = Vec::new();
        parts.extend(self.twin.as_ref().map(|twin| format!("by a twin on {}", twin.device)));
        for boundaries in self.boundaries.iter().filter(|boundaries| boundaries.judged) {
            let (rows, worst) = outputs(boundaries);
            let shards = boundaries.shards.len();
            let (rows, shards) = (units::count(rows, "row"), units::count(shards as u64, "shard"));
            parts.push(format!("{rows} of {shards} off by at most {worst:.1e}"));
        }
        if let Some(tokens) = &self.tokens {
            parts.push(format!("{:.4} nats per token ({:+.2} %)", tokens.nll, tokens.loss * 100.0));
            parts.push(format!("{} of {} tokens as expected", tokens.greedy_agreed, tokens.greedy_tokens));
        }
        if let Some(divergence) = &self.divergence {
            let (nats, tokens) = (1e3 * divergence.nats, divergence.tokens);
            parts.push(format!("{nats:.2} millinats of KL divergence over {tokens} tokens"));
        }
        parts.extend(self.towers.iter().map(TowerVerification::summary));
        let failed = self.comparisons.iter().filter(|comparison| comparison.judged && !comparison.passed);
        parts.extend(failed.map(|comparison| format!("{} differ", comparison.what)));
        parts.join("; ")
    }
}

/// The result of a self-test.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SelfTestReport {
    /// The verification of the checkpoint as it is.
    pub intact: VerifyReport,
    /// The layer with the changed norm scale.
    pub broken_layer: u32,
    /// The verification of the broken model.
    pub broken: VerifyReport,
    /// Whether the intact model passes, the broken one fails, and the layer is named.
    pub passed: bool,
}

/// Likelihoods and chosen tokens of the chain running by itself.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenVerification {
    /// The predicted text: `evaluation rows`, `recorded prompts`.
    pub text: String,
    /// Source of the wanted likelihood: `recorded`, `reference`.
    pub source: String,
    /// Number of predicted tokens.
    pub predicted: u64,
    /// Nats per predicted token.
    pub nll: f64,
    /// Nats per predicted token as recorded, or of the reference.
    pub wanted_nll: f64,
    /// `nll / wanted_nll − 1`.
    pub loss: f64,
    /// Number of tokens to be chosen greedily after the prompts.
    pub greedy_tokens: u64,
    /// Number of these tokens before the first difference of each prompt.
    pub greedy_agreed: u64,
    /// Place of the first difference.
    pub first_difference: Option<String>,
    /// Largest accepted `loss` in either direction: the bound of the thresholds, or the loss of
    /// likelihood that the bound of the KL divergence allows, if that is more.
    pub nll_bound: f64,
    /// Whether the likelihood is within its bound.
    pub nll_passed: bool,
    /// Whether enough tokens are the wanted ones. True if that is not judged.
    pub greedy_passed: bool,
    /// Whether the chosen tokens count. No share of them is required if the formats differ from the
    /// checkpoint's or a chip runs the model.
    pub greedy_judged: bool,
}

/// Results of every shard alone, run on boundary values of the reference.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BoundaryVerification {
    /// The graph the reference runs.
    pub against: String,
    /// Whether the outcome counts.
    pub judged: bool,
    /// The accepted differences.
    pub thresholds: Thresholds,
    /// The shards, in the order of the chain.
    pub shards: Vec<ShardVerification>,
    /// The first layer that is out of bounds in its own shard.
    pub first_divergent_layer: Option<u32>,
    /// Whether every shard passed, and at least one result was compared.
    pub passed: bool,
}

/// Results of one shard.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ShardVerification {
    /// Name by components and layers: `decoder.0-12`, `head`.
    pub shard: String,
    /// First layer and one past the last, or `None` for components without layers.
    pub layers: Option<(u32, u32)>,
    /// Device that ran the shard.
    pub place: String,
    /// Formats as one word.
    pub formats: String,
    pub entries: Vec<EntryVerification>,
    /// The first layer whose output, or a state it writes, is out of bounds. Errors add up from the
    /// shard's first layer on, which gets exact values.
    pub first_divergent_layer: Option<u32>,
    /// Whether all of its results are within the bounds.
    pub passed: bool,
}

impl ShardVerification {
    /// Returns the number of rows with an infinity or NaN, and the first place that has one: a
    /// layer, or else the name of a result. Returns `None` if all rows are finite.
    pub fn not_finite(&self) -> Option<(u64, String)> {
        let outputs = self.entries.iter().flat_map(|entry| &entry.outputs);
        let found = outputs.filter(|output| output.not_finite > 0);
        let first = found.clone().min_by_key(|output| output.layer.unwrap_or(u32::MAX))?;
        let place = first.layer.map_or_else(|| first.what.clone(), |layer| format!("layer {layer}"));
        Some((found.map(|output| output.not_finite).sum(), place))
    }
}

/// Results of one entry point of a shard.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EntryVerification {
    /// Name of the entry point: `prefill_128@4096`.
    pub entry: String,
    /// Number of runs.
    pub runs: u64,
    /// The shortest run with all rows. It depends on this machine and moment, so it is not in JSON.
    #[serde(skip)]
    pub fastest: Option<std::time::Duration>,
    /// Why the entry point was not run, if it was not. Its results were then not compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_run: Option<String>,
    pub outputs: Vec<RowComparison>,
}

/// An entry point that was not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotRun<'r> {
    pub shard: &'r str,
    pub entry: &'r str,
    pub reason: &'r str,
}

/// Comparison of one result of an entry point, over all its runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RowComparison {
    /// Name of the result: `hidden`, `layer.3`, `per-layer`, `logits`, `embedding`,
    /// `state layer.3.k`.
    pub what: String,
    /// The layer of the result, if it comes from one layer.
    pub layer: Option<u32>,
    /// The norm after which rows were compared, or `None` if they were compared without one.
    pub after: Option<String>,
    /// Number of compared rows.
    pub rows: u64,
    /// Number of these rows with an infinity or NaN, in the result or in the wanted row. They never
    /// pass.
    pub not_finite: u64,
    /// Relative error that 95 of 100 rows do not exceed: length of the difference over length of
    /// the wanted row.
    pub relative_p95: f64,
    /// Relative error of the worst row. Null in JSON if it is infinite.
    pub relative_worst: f64,
    /// Effect of rounding to steps on rows of the reference, which 95 of 100 rows do not exceed.
    /// Bounds are wider by this. `None` if no run needed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounding_p95: Option<f64>,
    /// Where the worst row is.
    pub worst_at: String,
    /// Prompt and position of the worst row.
    #[serde(skip)]
    pub worst_place: Option<(String, usize)>,
    /// Mean cosine between a row and the wanted one.
    pub cosine_mean: f64,
    /// Cosine that 95 of 100 rows reach.
    pub cosine_p95: f64,
    /// Smallest cosine.
    pub cosine_worst: f64,
    /// Whether the result is within the bounds.
    pub passed: bool,
}

/// Comparisons that do not depend on the format of a weight or activation.
pub(crate) const TEXTS: [&str; 2] = ["tokenizer", "chat"];

/// Collects the worst difference per kind of output.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    comparisons: Vec<Comparison>,
}

impl Tally {
    fn entry(&mut self, what: &str, tolerance: f64) -> &mut Comparison {
        let index = match self.comparisons.iter().position(|comparison| comparison.what == what) {
            Some(index) => index,
            None => {
                self.comparisons.push(Comparison {
                    what: what.to_owned(),
                    compared: 0,
                    worst: 0.0,
                    tolerance,
                    place: String::new(),
                    passed: true,
                    judged: true,
                });
                self.comparisons.len() - 1
            }
        };
        &mut self.comparisons[index]
    }

    /// Compares two arrays and returns their largest difference. It is infinite if their lengths
    /// differ.
    pub(crate) fn arrays(
        &mut self,
        what: &str,
        tolerance: f64,
        place: &str,
        got: &[f32],
        wanted: &[f32],
    ) -> f64 {
        let worst = if got.len() == wanted.len() {
            got.iter().zip(wanted).map(|(a, b)| difference(*a, *b)).fold(0.0, f64::max)
        } else {
            f64::INFINITY
        };
        self.number(what, tolerance, place, worst, wanted.len() as u64);
        worst
    }

    /// Enters one difference for `count` items.
    pub(crate) fn number(&mut self, what: &str, tolerance: f64, place: &str, worst: f64, count: u64) {
        let entry = self.entry(what, tolerance);
        entry.compared += count;
        if worst > entry.worst || entry.place.is_empty() {
            entry.worst = worst.max(entry.worst);
            entry.place = place.to_owned();
        }
        entry.passed = entry.worst <= tolerance;
    }

    /// Counts an item that must be equal.
    pub(crate) fn equal(&mut self, what: &str, place: &str, equal: bool) {
        let entry = self.entry(what, 0.0);
        entry.compared += 1;
        if !equal {
            if entry.worst == 0.0 {
                entry.place = place.to_owned();
            }
            entry.worst += 1.0;
        }
        entry.passed = entry.worst == 0.0;
    }

    /// Returns the comparisons. Texts are always judged, numbers only if the model is exactly the
    /// recorded one.
    pub(crate) fn finish(mut self, exact: bool) -> Vec<Comparison> {
        for comparison in &mut self.comparisons {
            comparison.judged = exact || TEXTS.contains(&comparison.what.as_str());
        }
        self.comparisons
    }
}

/// Returns the absolute difference. It is infinite for NaN.
fn difference(a: f32, b: f32) -> f64 {
    let difference = (f64::from(a) - f64::from(b)).abs();
    if difference.is_nan() { f64::INFINITY } else { difference }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_worst_difference_decides_and_is_placed() {
        let mut tally = Tally::default();
        tally.arrays("hidden", 0.1, "layer 0", &[1.0, 2.0], &[1.0, 2.05]);
        tally.arrays("hidden", 0.1, "layer 1", &[1.0, 2.0], &[1.0, 3.0]);
        tally.arrays("hidden", 0.1, "layer 2", &[1.0], &[1.0]);
        tally.arrays("logits", 0.1, "p0", &[f32::NAN], &[1.0]);
        tally.arrays("embedding", 0.1, "p0", &[1.0], &[1.0, 2.0]);
        tally.equal("greedy", "p0 token 3", true);
        tally.equal("greedy", "p0 token 4", false);
        tally.equal("greedy", "p0 token 5", false);
        tally.equal("chat", "conversation 0", true);
        let lossy: Vec<bool> = Tally { comparisons: tally.comparisons.clone() }
            .finish(false)
            .iter()
            .map(|comparison| comparison.judged)
            .collect();
        assert_eq!(lossy, [false, false, false, false, true]);
        let comparisons = tally.finish(true);
        assert!(comparisons.iter().all(|comparison| comparison.judged));
        let summary: Vec<_> = comparisons
            .iter()
            .map(|c| (c.what.as_str(), c.compared, c.worst, c.place.as_str(), c.passed))
            .collect();
        assert_eq!(
            summary,
            [
                ("hidden", 5, 1.0, "layer 1", false),
                ("logits", 1, f64::INFINITY, "p0", false),
                ("embedding", 2, f64::INFINITY, "p0", false),
                ("greedy", 3, 2.0, "p0 token 4", false),
                ("chat", 1, 0.0, "", true),
            ]
        );
    }
}
