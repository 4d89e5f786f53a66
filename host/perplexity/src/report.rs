//! The figures of a measurement.

use serde::Serialize;
use shardwright::Model;
use shardwright::tools::ModelTools;

use crate::bootstrap::{RESAMPLES, SEED, Sorted, with_errors};
use crate::predictor::name;
use crate::score::{Against, WindowScore};

/// The likelihood of a text by one model, and its distance from another.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct PerplexityReport {
    /// The measured model.
    pub model: ModelReport,
    /// The text and its windows.
    pub text: TextReport,
    /// The likelihood of the scored tokens.
    pub likelihood: Likelihood,
    /// Comparison with the reference. `None` without one.
    pub against: Option<AgainstReport>,
    /// Method of estimating errors.
    pub errors: ResamplingReport,
}

/// A model that was run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ModelReport {
    /// Name of the model.
    pub name: String,
    /// The profile it was planned for. `None` for a bundle without a plan report.
    pub soc: Option<String>,
    /// Hash of the plan.
    pub plan_id: String,
    /// Hash of the bundle. `None` for a checkpoint.
    pub bundle: Option<String>,
    /// The substitute for the planned targets, if any.
    pub emulated_on: Option<String>,
    /// Formats of weights, activations and states of the shards, without duplicates.
    pub formats: Vec<String>,
}

/// The text and how it was cut.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TextReport {
    /// Path of the file.
    pub path: String,
    /// SHA-256 of the text without the line end at its end.
    pub sha256: String,
    /// Tokens of the text, with the BOS token if there is one.
    pub tokens: usize,
    /// Whether every window begins with the BOS token.
    pub bos: bool,
    /// Tokens in a window.
    pub window: usize,
    /// Distance between the beginnings of windows in tokens. `None` for adjacent windows, half of
    /// which is scored.
    pub stride: Option<u32>,
    /// Number of windows.
    pub windows: usize,
    /// Windows resumed from an interrupted call.
    pub resumed: usize,
    /// Scored tokens of all windows.
    pub scored: usize,
    /// Tokens after the last window, which were not run.
    pub left: usize,
}

/// A figure with its standard error.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Estimate {
    /// The figure over all windows.
    pub value: f64,
    /// Standard error by resampled windows. `None` with a single window.
    pub error: Option<f64>,
}

impl From<(f64, Option<f64>)> for Estimate {
    fn from((value, error): (f64, Option<f64>)) -> Self {
        Estimate { value, error }
    }
}

/// The likelihood of the scored tokens by one model.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Likelihood {
    /// Mean nats of a token.
    pub nll: Estimate,
    /// exp(nll).
    pub perplexity: f64,
    /// Standard error of the perplexity as `llama-perplexity` prints it, as if all n tokens were
    /// independent: exp(nll) · √(σ² / (n − 1)). `None` with a single token.
    pub perplexity_error: Option<f64>,
}

/// Comparison with a reference.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct AgainstReport {
    /// The reference model.
    pub model: ModelReport,
    /// The likelihood of the same tokens by the reference.
    pub likelihood: Likelihood,
    /// Mean nats of a token by the model, minus those by the reference.
    pub nll_difference: Estimate,
    /// KL(reference ‖ model) in thousandths of a nat.
    pub kl: Divergence,
    /// Share of tokens at which both models have the same likeliest token, 0 to 1.
    pub same_top: Estimate,
}

/// KL divergence over all scored tokens, in thousandths of a nat.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Divergence {
    /// Mean of all tokens.
    pub mean: Estimate,
    /// Median of all tokens.
    pub median: Estimate,
    /// 95th percentile.
    pub p95: Estimate,
    /// 99th percentile.
    pub p99: Estimate,
    /// Largest. It has no error: resamples never exceed it.
    pub max: f64,
}

/// Method of estimating errors.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct ResamplingReport {
    /// The resampled unit, drawn with replacement, because tokens of one window are not
    /// independent.
    pub unit: &'static str,
    /// Number of resamples.
    pub resamples: usize,
    /// Seed of the draws.
    pub seed: u64,
}

impl ResamplingReport {
    /// Resampling of windows.
    pub(crate) const OF_WINDOWS: ResamplingReport =
        ResamplingReport { unit: "windows", resamples: RESAMPLES, seed: SEED };
}

impl ModelReport {
    pub(crate) fn of(model: &Model) -> Self {
        let mut formats: Vec<String> = Vec::new();
        for shard in model.plan().iter().flat_map(|plan| &plan.shards) {
            if !formats.contains(&shard.formats) {
                formats.push(shard.formats.clone());
            }
        }
        ModelReport {
            name: name(model).to_owned(),
            soc: model.plan().map(|plan| plan.soc.clone()),
            plan_id: model.plan_id(),
            bundle: model.bundle().map(|bundle| bundle.sha256().to_string()),
            emulated_on: model.chain().description().emulated_on.clone(),
            formats,
        }
    }
}

impl Likelihood {
    /// Computes the likelihood of windows with equally many tokens.
    pub(crate) fn of(windows: &[&[f64]]) -> Self {
        let [nll] = with_errors(windows.len(), |times| [mean(windows, times)]);
        let values = || windows.iter().copied().flatten();
        let count = values().count() as f64;
        let squares = values().map(|value| value * value).sum::<f64>() / count;
        let variance = (squares - nll.0 * nll.0).max(0.0) / (count - 1.0);
        let perplexity = nll.0.exp();
        let perplexity_error = (count > 1.0).then(|| perplexity * variance.sqrt());
        Likelihood { nll: nll.into(), perplexity, perplexity_error }
    }
}

impl AgainstReport {
    /// Compares with the reference `model`. Returns `None` if the windows have no comparison.
    pub(crate) fn of(model: ModelReport, windows: &[WindowScore]) -> Option<Self> {
        let against: Vec<&Against> =
            windows.iter().map(|window| window.against.as_ref()).collect::<Option<_>>()?;
        let own: Vec<&[f64]> = windows.iter().map(|window| &window.nll[..]).collect();
        let others: Vec<&[f64]> = against.iter().map(|against| &against.nll[..]).collect();
        let kl: Vec<&[f64]> = against.iter().map(|against| &against.kl[..]).collect();
        let same: Vec<Vec<f64>> = against
            .iter()
            .map(|against| against.same_top.iter().map(|&same| f64::from(u8::from(same))).collect())
            .collect();
        let same: Vec<&[f64]> = same.iter().map(Vec::as_slice).collect();
        let sorted = Sorted::of(kl.iter().copied());
        let figures = with_errors(windows.len(), |times| {
            let [median, p95, p99, max] = sorted.quantiles(times, [0.5, 0.95, 0.99, 1.0]);
            let difference = mean(&own, times) - mean(&others, times);
            [difference, mean(&same, times), mean(&kl, times), median, p95, p99, max]
        });
        let [nll_difference, same_top, mean, median, p95, p99, max] = figures;
        let millinats = |(value, error): (f64, Option<f64>)| Estimate {
            value: 1000.0 * value,
            error: error.map(|error| 1000.0 * error),
        };
        Some(AgainstReport {
            model,
            likelihood: Likelihood::of(&others),
            nll_difference: nll_difference.into(),
            kl: Divergence {
                mean: millinats(mean),
                median: millinats(median),
                p95: millinats(p95),
                p99: millinats(p99),
                max: 1000.0 * max.0,
            },
            same_top: same_top.into(),
        })
    }
}

/// Computes the mean of a resample of windows with equally many values.
fn mean(windows: &[&[f64]], times: &[usize]) -> f64 {
    let sum: f64 =
        windows.iter().zip(times).map(|(values, &times)| times as f64 * values.iter().sum::<f64>()).sum();
    let count: usize = windows.iter().zip(times).map(|(values, times)| times * values.len()).sum();
    sum / count as f64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn likelihoods_have_the_error_that_llama_perplexity_prints() {
        let found = Likelihood::of(&[&[1.0, 2.0], &[4.0, 1.0]]);
        assert_eq!(found.nll.value, 2.0);
        // Mean of squares 5.5, less 4, by n − 1 = 3.
        assert!(
            (found.perplexity_error.expect("an error") / (2f64.exp() * 0.5f64.sqrt()) - 1.0).abs() < 1e-12
        );
        assert_eq!(found.perplexity, 2f64.exp());
        let one = Likelihood::of(&[&[3.0]]);
        assert_eq!((one.nll, one.perplexity_error), (Estimate { value: 3.0, error: None }, None));
    }

    #[test]
    fn a_comparison_counts_every_token() {
        let window = |nll: [f64; 2], others: [f64; 2], kl: [f64; 2], same_top: [bool; 2]| WindowScore {
            nll: nll.to_vec(),
            against: Some(Against { nll: others.to_vec(), kl: kl.to_vec(), same_top: same_top.to_vec() }),
        };
        let windows = [
            window([2.0, 3.0], [1.0, 3.0], [0.010, 0.0], [true, true]),
            window([1.0, 2.0], [1.0, 1.0], [0.002, 0.004], [false, true]),
        ];
        let model = ModelReport {
            name: "m".to_owned(),
            soc: None,
            plan_id: String::new(),
            bundle: None,
            emulated_on: None,
            formats: Vec::new(),
        };
        let found = AgainstReport::of(model.clone(), &windows).expect("a comparison");
        assert_eq!((found.nll_difference.value, found.same_top.value), (0.5, 0.75));
        let Divergence { mean, median, p95, p99, max } = found.kl;
        for (got, wanted) in
            [(mean.value, 4.0), (median.value, 3.0), (p95.value, 9.1), (p99.value, 9.82), (max, 10.0)]
        {
            assert!((got - wanted).abs() < 1e-9, "{got}, expected {wanted}");
        }
        // Of two windows a resample has the first never, once or twice: the difference of their
        // means of KL is 2 millinats.
        let error = mean.error.expect("an error");
        assert!((error - 1.0 / 2f64.sqrt()).abs() < 0.05, "{error}");
        let alone = WindowScore { nll: vec![1.0], against: None };
        assert_eq!(AgainstReport::of(model, &[alone]), None);
    }
}
