use serde::Serialize;

use crate::divergence::DivergenceVerification;
use crate::effort::EffortReport;
use crate::thresholds::Thresholds;
use shardwright_vocabulary::Pass;
use shardwright_vocabulary::units;

/// Largest differences that pass, from what two f32 implementations of the same network differ by.
///
/// Rows of hidden states are compared relative to their own length, since published models have
/// rows of a hundred thousand beside rows of a hundred: an absolute bound is too tight for the
/// first or too loose for the second. Two independent f32 evaluations differ by some 1e-6 of a row
/// there, and by at most 1e-3 in logits, which have a magnitude of 30 to 60. The limits leave a
/// factor of ten and more, and a wrong equation is far beyond them.
pub mod tolerance {
    /// Rows of hidden states, per-layer inputs and the final norm: relative error.
    pub const HIDDEN: f64 = 1e-4;
    /// Logits: absolute difference.
    pub const LOGITS: f64 = 1e-2;
    /// Unit sentence vectors, and what leads to them.
    pub const EMBEDDING: f64 = 1e-5;
}

/// One kind of output compared.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// `hidden`, `logits`, `greedy`, `tokenizer`, …
    pub what: String,
    /// How many items were compared: values, tokens or texts.
    pub compared: u64,
    /// Largest absolute difference; of hidden states and what else is compared by rows the largest
    /// relative error of a row; for tokens and texts the number that differ.
    pub worst: f64,
    /// The largest that passes.
    pub tolerance: f64,
    /// Where the worst one is.
    pub place: String,
    /// Whether it passes.
    pub passed: bool,
    /// Whether it counts. Numbers recorded from the checkpoint in float say nothing on a model in
    /// other formats.
    pub judged: bool,
}

/// The outcome of a verification.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct VerifyReport {
    /// Name of the model.
    pub model: String,
    /// The profile planned for.
    pub soc: String,
    /// The executor, when it is not the planned targets.
    pub emulated_on: Option<String>,
    /// Shards of the chain.
    pub shards: usize,
    /// Shards that hold decoder layers.
    pub decoder_shards: usize,
    /// Whether every shard keeps the checkpoint's values: weights as stored, activations and states
    /// in f32.
    pub exact: bool,
    /// What was compared with recorded outputs.
    pub comparisons: Vec<Comparison>,
    /// The first layer whose output is beyond the tolerance in any prompt, the chain running as a
    /// whole.
    pub first_divergent_layer: Option<u32>,
    /// Likelihoods and chosen tokens of the chain running by itself; none for encoders.
    pub tokens: Option<TokenVerification>,
    /// How far the chain is from the model as stored on text; none for exact models.
    pub divergence: Option<DivergenceVerification>,
    /// Every shard alone, once for each graph it is compared with.
    pub boundaries: Vec<BoundaryVerification>,
    /// Where the recorded outputs are; `None` if nothing was recorded.
    pub recorded: Option<String>,
    /// How much of what was recorded was run.
    pub effort: EffortReport,
    /// Recorded outputs that were not compared, with the reason.
    pub skipped: Vec<String>,
    /// Whether everything that is judged passed.
    pub passed: bool,
    /// Things that were done in another way than asked.
    pub notices: Vec<String>,
    /// What the rules of signatures warn of in the bundle. It is not stored in a bundle.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub signature_notices: Vec<String>,
    /// The chain of the bundle that was proved, if one was.
    pub bundle_chain: Option<String>,
    /// The chip of its variant.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bundle_variant: Option<String>,
    /// What ran in place of the bundle's artefacts, if they do not run here.
    pub twin: Option<TwinReport>,
    /// The towers for pictures and sounds, each proved by itself.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub towers: Vec<TowerVerification>,
}

/// A tower over recorded pictures or sounds and those of the project's own making, other ones than
/// it was calibrated on.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TowerVerification {
    /// When it runs.
    pub pass: Pass,
    /// Pictures or sounds.
    pub samples: usize,
    /// Whether every shard keeps the checkpoint's values.
    pub exact: bool,
    /// The tower running by itself, against the checkpoint in float. It is judged where the tower
    /// is exact.
    pub soft_rows: RowComparison,
    /// The same against recorded rows, where pictures or sounds were recorded; judged alike.
    pub recorded: Option<RowComparison>,
    /// Every shard alone, once for each graph it is compared with.
    pub boundaries: Vec<BoundaryVerification>,
    /// Whether everything that is judged passed.
    pub passed: bool,
}

impl TowerVerification {
    /// One sentence with numbers.
    pub fn summary(&self) -> String {
        let cosine = self.soft_rows.cosine_mean;
        format!("the rows of a {} at a cosine of {cosine:.5} to float", self.pass)
    }
}

/// Artefacts made of the work orders of a bundle for another device than the bundle's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TwinReport {
    /// The device.
    pub device: String,
    /// In the order of the chain.
    pub artefacts: Vec<TwinArtefact>,
    /// In what they differ from the bundle's, in the words of the shim.
    pub differs: String,
}

/// One of them.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TwinArtefact {
    /// Name of the shard.
    pub shard: String,
    /// Hash of its content.
    pub sha256: String,
}

impl VerifyReport {
    /// Entry points of shards that nothing was run through, each with the reason.
    pub fn not_run(&self) -> impl Iterator<Item = NotRun<'_>> {
        // All boundaries are of the same runs.
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

    /// One sentence with numbers.
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
            parts.push(format!("{} of {} tokens as wanted", tokens.greedy_agreed, tokens.greedy_tokens));
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

/// What a self-test found.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct SelfTestReport {
    /// The verification of the checkpoint as it is.
    pub intact: VerifyReport,
    /// The layer one of whose norm scales was changed.
    pub broken_layer: u32,
    /// The verification of the broken model.
    pub broken: VerifyReport,
    /// Whether the intact model passes, the broken one fails, and the layer is named.
    pub passed: bool,
}

/// Tokens of the chain running by itself.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct TokenVerification {
    /// What was predicted: `evaluation rows`, `recorded prompts`.
    pub text: String,
    /// Where the wanted likelihood is from: `recorded`, `reference`.
    pub source: String,
    /// Tokens predicted.
    pub predicted: u64,
    /// Nats per predicted token.
    pub nll: f64,
    /// The same as recorded, or of the reference.
    pub wanted_nll: f64,
    /// `nll / wanted_nll − 1`.
    pub loss: f64,
    /// Tokens to be chosen greedily after the prompts.
    pub greedy_tokens: u64,
    /// Those chosen as wanted, of each prompt those before the first difference.
    pub greedy_agreed: u64,
    /// Where the first difference is.
    pub first_difference: Option<String>,
    /// Largest `loss` in either direction that passes: that of the thresholds, or what the bound of
    /// the KL divergence allows of the likelihood if that is more.
    pub nll_bound: f64,
    /// Whether the likelihood is within its bound.
    pub nll_passed: bool,
    /// Whether enough tokens are the wanted ones; true where that is not judged.
    pub greedy_passed: bool,
    /// Whether the tokens chosen count: no share of them is wanted where the formats or the chip
    /// are not the checkpoint's and the reference's.
    pub greedy_judged: bool,
}

/// Every shard alone, fed boundary values of the reference.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BoundaryVerification {
    /// The graph the reference runs.
    pub against: String,
    /// Whether the outcome counts.
    pub judged: bool,
    /// What was taken for agreement.
    pub thresholds: Thresholds,
    /// In the order of the chain.
    pub shards: Vec<ShardVerification>,
    /// The first layer that is out of bounds in its own shard.
    pub first_divergent_layer: Option<u32>,
    /// Whether every shard passed, and anything was run.
    pub passed: bool,
}

/// One shard.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct ShardVerification {
    /// `decoder.0-12`, `head`
    pub shard: String,
    /// First layer and one past the last; none for components without layers.
    pub layers: Option<(u32, u32)>,
    /// Where it ran.
    pub place: String,
    /// Formats as one word.
    pub formats: String,
    /// Its entry points.
    pub entries: Vec<EntryVerification>,
    /// The first layer whose output, or a state it writes, is out of bounds. Errors add up from the
    /// shard's first layer on, which is fed exact values.
    pub first_divergent_layer: Option<u32>,
    /// Whether all of its results are within the bounds.
    pub passed: bool,
}

/// One entry point of a shard.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct EntryVerification {
    /// `prefill_128@4096`
    pub entry: String,
    /// Runs.
    pub runs: u64,
    /// The shortest of those with all its rows; of this machine and moment, so not in JSON.
    #[serde(skip)]
    pub fastest: Option<std::time::Duration>,
    /// Why there were none, if so: what it computes was not compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub not_run: Option<String>,
    /// Its results.
    pub outputs: Vec<RowComparison>,
}

/// An entry point that nothing was run through.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotRun<'r> {
    /// The shard.
    pub shard: &'r str,
    /// The entry point.
    pub entry: &'r str,
    /// Why.
    pub reason: &'r str,
}

/// One result of an entry point, over all its runs.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct RowComparison {
    /// `hidden`, `layer.3`, `per-layer`, `logits`, `embedding`, `state layer.3.k`
    pub what: String,
    /// The layer it comes from, if from one.
    pub layer: Option<u32>,
    /// The norm after which rows were compared; `None` if they were compared as they are.
    pub after: Option<String>,
    /// Rows compared.
    pub rows: u64,
    /// Length of the difference over length of the wanted row, which 95 of 100 rows do not exceed.
    pub relative_p95: f64,
    /// The same of the worst row; null in JSON where it has no bound.
    pub relative_worst: f64,
    /// How far rounding to steps moves rows of the reference, which 95 of 100 rows do not exceed:
    /// bounds are wider by that. None where no run needed it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rounding_p95: Option<f64>,
    /// Where the worst row is.
    pub worst_at: String,
    /// The same: its prompt and position.
    #[serde(skip)]
    pub worst_place: Option<(String, usize)>,
    /// Mean cosine between a row and the wanted one.
    pub cosine_mean: f64,
    /// What 95 of 100 rows reach.
    pub cosine_p95: f64,
    /// The least.
    pub cosine_worst: f64,
    /// Whether it is within the bounds.
    pub passed: bool,
}

/// Comparisons that no format of a weight or activation touches.
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

    /// Compares two arrays; returns their largest difference. Arrays of different length differ
    /// without bound.
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

    /// Enters one difference that stands for `count` items.
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

    /// Texts are judged always, numbers where the model is exactly the recorded one.
    pub(crate) fn finish(mut self, exact: bool) -> Vec<Comparison> {
        for comparison in &mut self.comparisons {
            comparison.judged = exact || TEXTS.contains(&comparison.what.as_str());
        }
        self.comparisons
    }
}

/// NaN differs from everything without bound.
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
