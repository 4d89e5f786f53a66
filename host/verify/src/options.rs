use shardwright_vocabulary::Result;

use crate::effort::AskedEffort;
use crate::thresholds::Thresholds;

/// What a verification takes for agreement, and how much it runs.
///
/// Unless something else is set that is [`Effort::USUAL`], and [`Effort::SIMULATED`] where a
/// vendor's simulator runs a shard; the report says what was left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VerifyOptions {
    thresholds: Vec<(String, f64)>,
    pub(crate) asked: AskedEffort,
}

impl VerifyOptions {
    /// The defaults.
    pub fn new() -> Self {
        VerifyOptions::default()
    }

    /// Sets a bound of [`Thresholds`] by name. Default: [`Thresholds::SAME_FLOATS`], or as the
    /// formats of the plan and what runs them are [`Thresholds::SAME_ENCODED`] or
    /// [`Thresholds::VENDOR`].
    #[must_use]
    pub fn threshold(mut self, name: impl Into<String>, value: f64) -> Self {
        self.thresholds.push((name.into(), value));
        self
    }

    /// [`Effort::USUAL`] on simulators too, in all that is not set by itself. That may take hours.
    #[must_use]
    pub fn all(mut self) -> Self {
        self.asked.all = true;
        self
    }

    /// Most rows of each prompt that shards are run over. Memory and time grow with it.
    #[must_use]
    pub fn rows(mut self, rows: usize) -> Self {
        self.asked.rows = Some(rows);
        self
    }

    /// Positions of each prompt at which entry points of one row are run, evenly apart.
    #[must_use]
    pub fn steps(mut self, steps: usize) -> Self {
        self.asked.steps = Some(steps);
        self
    }

    /// Tokens of each prompt that are chosen greedily, at most as many as were recorded.
    #[must_use]
    pub fn greedy(mut self, tokens: usize) -> Self {
        self.asked.greedy = Some(tokens);
        self
    }

    /// Most evaluation rows whose likelihood is compared, of each as many tokens as
    /// [`VerifyOptions::rows`] says; the reference computes what is wanted of them. Where there are
    /// no more rows than this all are taken whole: their likelihood is recorded.
    #[must_use]
    pub fn evaluation(mut self, rows: usize) -> Self {
        self.asked.evaluation = Some(rows);
        self
    }

    pub(crate) fn sets(&self, name: &str) -> bool {
        self.thresholds.iter().any(|(set, _)| set == name)
    }

    pub(crate) fn thresholds(&self, default: Thresholds) -> Result<Thresholds> {
        let mut thresholds = default;
        for (name, value) in &self.thresholds {
            thresholds.set(name, *value)?;
        }
        Ok(thresholds)
    }
}
