//! Bounds of the differences that a verification accepts.

use serde::Serialize;

use shardwright_vocabulary::{Error, ErrorKind, Result};

/// Largest differences that count as agreement.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Thresholds {
    /// Relative error that 95 of 100 rows must not exceed: length of the difference over length of
    /// the wanted row.
    pub row_p95: f64,
    /// Largest relative error of the worst row.
    pub row_worst: f64,
    /// Cosine between a row and the wanted one that 95 of 100 rows must reach.
    pub cosine: f64,
    /// Largest relative difference of the negative log-likelihood.
    pub nll: f64,
    /// Minimum share of greedily chosen tokens that are the wanted ones.
    pub greedy: f64,
    /// Largest KL divergence from the model as stored in nats per token. `None` derives it from the
    /// measured loss of the plan. Models that keep all values are not judged by it.
    pub kl: Option<f64>,
}

impl Thresholds {
    /// A shard in float against the same graph: two orders of summation in f32 differ by some 1e-6
    /// after a few layers.
    pub const SAME_FLOATS: Thresholds =
        Thresholds { row_p95: 1e-4, row_worst: 1e-3, cosine: 0.999_99, nll: 2.5e-4, greedy: 1.0, kl: None };

    /// A shard in other formats than the checkpoint's against the same quantised graph. A value
    /// near the middle between two steps is rounded to either side, and values computed from it
    /// differ by a step. Likelihoods are compared with the float model: four bits with a scale per
    /// channel cost the demo model 1.35 %. The number of tokens that agree is reported and not
    /// judged, because one near tie that is decided differently changes everything after it.
    pub const SAME_ENCODED: Thresholds =
        Thresholds { row_p95: 1e-2, row_worst: 5e-2, cosine: 0.999, nll: 0.015, greedy: 0.0, kl: None };

    /// A shard in other formats on a chip or its simulator, which rounds differently between
    /// operations, so that the errors of a shard's layers add up. No bound is tighter than
    /// [`Thresholds::SAME_ENCODED`].
    pub const VENDOR: Thresholds =
        Thresholds { row_p95: 3e-2, row_worst: 0.2, cosine: 0.999, nll: 0.02, greedy: 0.0, kl: None };

    /// Names of the bounds, as in options.
    pub const NAMES: [&str; 6] = ["row-p95", "row-worst", "cosine", "nll", "greedy", "kl"];

    /// Sets the bound of that name.
    pub(crate) fn set(&mut self, name: &str, value: f64) -> Result<()> {
        let (bound, range) = match name {
            "row-p95" => (&mut self.row_p95, 0.0..=f64::MAX),
            "row-worst" => (&mut self.row_worst, 0.0..=f64::MAX),
            "cosine" => (&mut self.cosine, -1.0..=1.0),
            "nll" => (&mut self.nll, 0.0..=f64::MAX),
            "greedy" => (&mut self.greedy, 0.0..=1.0),
            "kl" => (self.kl.get_or_insert(0.0), 0.0..=f64::MAX),
            _ => {
                return Err(Error::new(ErrorKind::Argument, format!("unknown bound `{name}`"))
                    .with_help(format!("available bounds: {}", Thresholds::NAMES.join(", "))));
            }
        };
        if !range.contains(&value) {
            return Err(Error::argument(format!("`{value}` is not a valid bound for `{name}`"))
                .with_help(format!("use a value from {} to {}", range.start(), range.end())));
        }
        *bound = value;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A quantity closer to the reference must not have a looser bound than one farther from it.
    #[test]
    fn bounds_widen_from_floats_to_formats_to_chips() {
        for (near, far) in [
            (Thresholds::SAME_FLOATS, Thresholds::SAME_ENCODED),
            (Thresholds::SAME_ENCODED, Thresholds::VENDOR),
        ] {
            assert!(near.row_p95 < far.row_p95 && near.row_worst < far.row_worst && near.nll < far.nll);
            assert!(near.cosine >= far.cosine && near.greedy >= far.greedy, "{near:?} {far:?}");
        }
    }

    #[test]
    fn every_named_bound_can_be_set_within_its_range() {
        let mut thresholds = Thresholds::SAME_FLOATS;
        for name in Thresholds::NAMES {
            thresholds.set(name, 0.5).unwrap();
            for impossible in [f64::NAN, f64::INFINITY, -1.5] {
                let error = thresholds.set(name, impossible).unwrap_err();
                assert_eq!(error.kind(), ErrorKind::Argument, "{name} {impossible}");
            }
        }
        let all =
            Thresholds { row_p95: 0.5, row_worst: 0.5, cosine: 0.5, nll: 0.5, greedy: 0.5, kl: Some(0.5) };
        assert_eq!(thresholds, all);
        assert!(thresholds.set("greedy", 1.5).is_err() && thresholds.set("cosine", 1.5).is_err());
        let unknown = thresholds.set("speed", 1.0).unwrap_err();
        assert!(unknown.help().is_some_and(|help| help.contains("row-p95")), "{unknown:?}");
    }
}
