use shardwright::OpenOptions;
use shardwright_build::options_of;
use shardwright_bundle::Bundle;
use shardwright_models::Checkpoint;
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
    recorded: bool,
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

    /// Verifies a bundle by the options of compiling that are recorded in it, in place of those it
    /// is verified with.
    #[must_use]
    pub fn as_recorded(mut self) -> Self {
        self.recorded = true;
        self
    }

    /// Returns the options that a bundle is verified by.
    pub(crate) fn as_compiled(
        &self,
        bundle: &Bundle,
        checkpoint: &Checkpoint,
        open: &OpenOptions,
    ) -> Result<OpenOptions> {
        match bundle.variant().chains.first().filter(|_| self.recorded) {
            Some(chain) => {
                let plan = options_of(bundle, chain, checkpoint, &open.plan_options())?;
                Ok(open.clone().with_plan_options(plan))
            }
            None => Ok(open.clone()),
        }
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
