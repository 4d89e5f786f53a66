use shardwright::OpenOptions;
use shardwright::tools::OpenTools;
use shardwright_bundle::Bundle;
use shardwright_checkpoints::options_of;
use shardwright_models::Checkpoint;
use shardwright_vocabulary::Result;

use crate::effort::AskedEffort;
use crate::thresholds::Thresholds;

/// Which differences a verification accepts, and how much it runs.
///
/// By default it runs [`Effort::USUAL`], or [`Effort::SIMULATED`] if a vendor's simulator runs a
/// shard. The report lists the data that was left out.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct VerifyOptions {
    thresholds: Vec<(String, f64)>,
    pub(crate) asked: AskedEffort,
    recorded: bool,
}

impl VerifyOptions {
    /// Creates the default options.
    pub fn new() -> Self {
        VerifyOptions::default()
    }

    /// Sets a bound of [`Thresholds`] by name. The default is [`Thresholds::SAME_FLOATS`],
    /// [`Thresholds::SAME_ENCODED`] or [`Thresholds::VENDOR`], depending on the formats of the plan
    /// and the devices that run them.
    #[must_use]
    pub fn threshold(mut self, name: impl Into<String>, value: f64) -> Self {
        self.thresholds.push((name.into(), value));
        self
    }

    /// Verifies a bundle with the compile options that are recorded in it, instead of the options
    /// of the call.
    #[must_use]
    pub fn as_recorded(mut self) -> Self {
        self.recorded = true;
        self
    }

    /// Returns the options that a bundle is verified with.
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

    /// Uses [`Effort::USUAL`] on simulators too, for all amounts that are not set separately. That
    /// may need hours.
    #[must_use]
    pub fn all(mut self) -> Self {
        self.asked.all = true;
        self
    }

    /// Sets the largest number of rows of each prompt that shards are run over. Memory and time
    /// grow with it.
    #[must_use]
    pub fn rows(mut self, rows: usize) -> Self {
        self.asked.rows = Some(rows);
        self
    }

    /// Sets the number of evenly spaced positions of each prompt at which entry points of one row
    /// are run.
    #[must_use]
    pub fn steps(mut self, steps: usize) -> Self {
        self.asked.steps = Some(steps);
        self
    }

    /// Sets the number of tokens of each prompt that are chosen greedily, at most as many as were
    /// recorded.
    #[must_use]
    pub fn greedy(mut self, tokens: usize) -> Self {
        self.asked.greedy = Some(tokens);
        self
    }

    /// Sets the largest number of evaluation rows whose likelihood is compared.
    ///
    /// If there are more rows, only this number is used, each with at most [`VerifyOptions::rows`]
    /// tokens, and the reference computes the wanted likelihood. Otherwise all rows are used whole,
    /// with their recorded likelihood.
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
