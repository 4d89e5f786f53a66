use serde::Serialize;

/// Largest absolute differences that pass, from what two f32 implementations of the same network differ by.
///
/// The recorded outputs have logits of magnitude 30 to 60; two independent f32 evaluations differ by at most 2e-4 in hidden
/// states and 1e-3 in logits there. The limits leave a factor of ten and more, and a wrong equation is far beyond them.
pub mod tolerance {
    /// Hidden states, per-layer inputs, final norm.
    pub const HIDDEN: f64 = 5e-3;
    /// Logits.
    pub const LOGITS: f64 = 1e-2;
    /// Unit sentence vectors, and what leads to them.
    pub const EMBEDDING: f64 = 1e-5;
    /// Nats per token over the evaluation rows.
    pub const NLL: f64 = 1e-3;
}

/// One kind of output compared.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Comparison {
    /// `hidden`, `logits`, `greedy`, `tokenizer`, …
    pub what: String,
    /// How many items were compared: values, tokens or texts.
    pub compared: u64,
    /// Largest absolute difference; for tokens and texts the number that differ.
    pub worst: f64,
    /// The largest that passes.
    pub tolerance: f64,
    /// Where the worst one is.
    pub place: String,
    /// Whether it passes.
    pub passed: bool,
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
    /// Shards of the chain, and how many of them hold decoder layers.
    pub shards: usize,
    /// Shards that hold decoder layers.
    pub decoder_shards: usize,
    /// What was compared.
    pub comparisons: Vec<Comparison>,
    /// The first layer whose output is beyond the tolerance in any prompt.
    pub first_divergent_layer: Option<u32>,
    /// Recorded outputs that were not compared, with the reason.
    pub skipped: Vec<String>,
    /// Whether everything passed.
    pub passed: bool,
    /// Things that were done in another way than asked.
    pub notices: Vec<String>,
}

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
                });
                self.comparisons.len() - 1
            }
        };
        &mut self.comparisons[index]
    }

    /// Compares two arrays; returns their largest difference. Arrays of different length differ without bound.
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

    pub(crate) fn finish(self) -> Vec<Comparison> {
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
        let comparisons = tally.finish();
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
            ]
        );
    }
}
