//! Checkpoints through Qualcomm's compiler and its chip simulator, compared with the reference's
//! numbers.

use std::path::Path;

use serde_json::{Value, json};
use shardwright::{Executor, FormatChoice, OpenOptions};
use shardwright_verify::{VerifyOptions, VerifyReport};

use crate::formats::{Effort, Recorded};
use crate::{program, skipped, tree};

/// Relative error against the same quantised graph that 95 of 100 rows must not exceed, after the
/// norm that reads them. The vendor's products and functions round at different places.
pub const ROW_P95: f64 = 0.03;
/// Relative error that the worst row must not exceed.
pub const ROW_WORST: f64 = 0.1;
/// Smallest allowed cosine of a row.
pub const COSINE: f64 = 0.999;
/// Largest allowed loss of the demo model's likelihood with 8-bit weights.
pub const LOSS: f64 = 0.02;

/// Checks whether the vendor's library is set. If not, reports conspicuously that tests are
/// skipped.
pub fn library() -> bool {
    let is_set = std::env::var_os("SHARDWRIGHT_QNN_LIB").is_some_and(|path| !path.is_empty());
    if !is_set {
        skipped(
            "Qualcomm's library: SHARDWRIGHT_QNN_LIB is not set; `cargo xtask vendor qnn` fetches it and says what to set",
        );
    }
    is_set
}

/// A checkpoint in formats for a chip, with its decoder cut into pieces.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Folder of the checkpoint, relative to the root.
    pub checkpoint: &'static str,
    /// Formats in the syntax of the program.
    pub formats: &'static str,
    /// Number of decoder shards.
    pub pieces: u32,
    /// Name of the chip's profile.
    pub soc: &'static str,
    /// Positions of the context. `None` uses the context of the checkpoint.
    pub context: Option<u32>,
}

impl Case {
    /// Returns options to open the case.
    ///
    /// # Panics
    /// If the formats are invalid.
    pub fn options(&self, cache: &Path) -> OpenOptions {
        let choice: FormatChoice = self.formats.parse().expect("formats");
        let open = match self.context {
            Some(tokens) => OpenOptions::new().context(tokens),
            None => OpenOptions::new(),
        };
        open.search_path(program::search_path())
            .cache_directory(cache)
            .soc(self.soc)
            .on(Executor::Simulator)
            .planner("even")
            .planner_option("pieces", self.pieces.to_string())
            .strict(true)
            .formats(choice)
    }

    /// Compares every shard alone with the reference, and the whole chain with recorded outputs, on
    /// the vendor's simulator.
    ///
    /// # Panics
    /// If it cannot be run, or the plan differs from the case.
    pub fn verify(&self, recorded: Option<&Recorded>, effort: Effort, cache: &Path) -> VerifyReport {
        let checkpoint = tree::root().join(self.checkpoint);
        let goldens = recorded.map_or(checkpoint.clone(), Recorded::folder);
        let options = VerifyOptions::new()
            .all()
            .rows(effort.rows)
            .steps(effort.steps)
            .greedy(effort.greedy)
            .threshold("row-p95", ROW_P95)
            .threshold("row-worst", ROW_WORST)
            .threshold("cosine", COSINE);
        let report =
            shardwright_verify::verify(&checkpoint, Some(&goldens), &self.options(cache), &options, &mut ());
        let report = report.unwrap_or_else(|error| panic!("{self:?}: {error} ({:?})", error.help()));
        assert_eq!(report.decoder_shards, self.pieces as usize, "{self:?}");
        assert_eq!(report.emulated_on, None, "{self:?}");
        report
    }
}

/// Computes the nats per token of the float model on the same text, on this machine's CPU. This is
/// needed for a part of the recorded rows, which has no recorded likelihood.
///
/// # Panics
/// If it cannot be run.
pub fn float_nll(checkpoint: &str, recorded: &Recorded, cache: &Path) -> f64 {
    let options = OpenOptions::new().search_path(program::search_path()).cache_directory(cache);
    let least = VerifyOptions::new().rows(1).steps(1).greedy(1);
    let checkpoint = tree::root().join(checkpoint);
    let report = shardwright_verify::verify(&checkpoint, Some(&recorded.folder()), &options, &least, &mut ());
    report.expect("the model in float").tokens.expect("a model that generates").nll
}

/// A summary of a verification.
#[derive(Clone, Debug)]
pub struct Finding {
    /// The largest error of any result of any shard against the same quantised graph that 95 of 100
    /// rows do not exceed.
    pub row_p95: f64,
    /// The largest error of any row.
    pub row_worst: f64,
    /// The smallest cosine of any row.
    pub cosine: f64,
    /// The decoder's results against the float checkpoint: the largest error that 95 of 100 rows do
    /// not exceed, and the smallest cosine.
    pub float: (f64, f64),
    /// Smallest mean cosine of a decoder result against the float checkpoint.
    pub float_cosine_mean: f64,
    /// Number of compared rows.
    pub rows: u64,
    /// Nats per token, the increase over the float checkpoint, and the number of tokens. All are
    /// zero for an encoder.
    pub nll: (f64, f64, u64),
    /// Number of tokens that equal the float model's choice, the number of compared tokens, and the
    /// number before the first difference of their prompt.
    pub greedy: (u64, u64, u64),
}

impl Finding {
    /// Replaces the loss with the increase over the float model's nats on the same text.
    #[must_use]
    pub fn against(self, float_nll: f64) -> Finding {
        let (nll, _, predicted) = self.nll;
        Finding { nll: (nll, nll / float_nll - 1.0, predicted), ..self }
    }

    /// Summarises a report.
    ///
    /// # Panics
    /// If the report compares no results.
    pub fn of(report: &VerifyReport) -> Finding {
        let outputs = |judged: bool| {
            let compared = report.boundaries.iter().filter(move |boundaries| boundaries.judged == judged);
            let shards = compared.flat_map(|boundaries| &boundaries.shards);
            shards.flat_map(|shard| {
                let entries = shard.entries.iter().flat_map(|entry| &entry.outputs);
                entries.map(move |output| (shard.layers.is_some(), output))
            })
        };
        let same: Vec<_> = outputs(true).map(|(_, output)| output).collect();
        let float: Vec<_> =
            outputs(false).filter(|(decoder, _)| *decoder).map(|(_, output)| output).collect();
        assert!(!same.is_empty() && !float.is_empty());
        let most = |values: Vec<f64>| values.into_iter().fold(0.0, f64::max);
        let least = |values: Vec<f64>| values.into_iter().fold(f64::INFINITY, f64::min);
        let tokens = report.tokens.as_ref();
        let greedy = report.comparisons.iter().find(|comparison| comparison.what == "greedy");
        let greedy = greedy.map_or((0, 0), |one| (one.compared - one.worst as u64, one.compared));
        Finding {
            row_p95: most(same.iter().map(|output| output.relative_p95).collect()),
            row_worst: most(same.iter().map(|output| output.relative_worst).collect()),
            cosine: least(same.iter().map(|output| output.cosine_worst).collect()),
            float: (
                most(float.iter().map(|output| output.relative_p95).collect()),
                least(float.iter().map(|output| output.cosine_worst).collect()),
            ),
            float_cosine_mean: least(float.iter().map(|output| output.cosine_mean).collect()),
            rows: same.iter().map(|output| output.rows).sum(),
            nll: tokens.map_or((0.0, 0.0, 0), |tokens| (tokens.nll, tokens.loss, tokens.predicted)),
            greedy: (greedy.0, greedy.1, tokens.map_or(0, |tokens| tokens.greedy_agreed)),
        }
    }

    /// Returns all fields as JSON.
    pub fn json(&self, case: &Case) -> Value {
        json!({
            "checkpoint": case.checkpoint,
            "formats": case.formats,
            "shards": case.pieces,
            "soc": case.soc,
            "rows": self.rows,
            "row_p95": self.row_p95,
            "row_worst": self.row_worst,
            "cosine_worst": self.cosine,
            "float_p95": self.float.0,
            "float_cosine_worst": self.float.1,
            "float_cosine_mean": self.float_cosine_mean,
            "nll": self.nll.0,
            "loss": self.nll.1,
            "predicted": self.nll.2,
            "greedy_as_float": self.greedy.0,
            "greedy_tokens": self.greedy.1,
            "greedy_before_first_difference": self.greedy.2,
        })
    }

    /// Head of the Markdown table with the rows of [`Finding::row`].
    pub const HEAD: &str = "| checkpoint | formats | shards | rows | against the same graph: 95 % | worst | least cosine | against float: 95 % | mean cosine, least | nats per token | loss | chosen as in float |\n|---|---|---|---|---|---|---|---|---|---|---|---|";

    /// Formats a row of a Markdown table.
    pub fn row(&self, case: &Case) -> String {
        let (nats, loss, predicted) = self.nll;
        let tokens = match predicted {
            0 => "| | ".to_owned(),
            _ => format!(
                "{nats:.4} ({predicted} tokens) | {:+.2} % | {} of {}",
                loss * 100.0,
                self.greedy.0,
                self.greedy.1
            ),
        };
        format!(
            "| {} | {} | {} | {} | {:.1e} | {:.1e} | {:.6} | {:.1e} | {:.6} | {tokens} |",
            case.checkpoint.rsplit('/').next().unwrap_or(case.checkpoint),
            case.formats,
            case.pieces,
            self.rows,
            self.row_p95,
            self.row_worst,
            self.cosine,
            self.float.0,
            self.float_cosine_mean,
        )
    }
}
