//! Checkpoints through Qualcomm's compiler and its simulation of a chip: results compared with the
//! reference's numbers.

use std::path::Path;

use serde_json::{Value, json};
use shardwright::{Executor, FormatChoice, OpenOptions};
use shardwright_verify::{VerifyOptions, VerifyReport};

use crate::formats::{Effort, Recorded};
use crate::{program, skipped, tree};

/// Relative error of a row against the same quantised graph that 95 of 100 rows keep, after the
/// norm that reads them. The vendor's products and functions round at different places.
pub const ROW_P95: f64 = 0.03;
/// The same of the worst row.
pub const ROW_WORST: f64 = 0.1;
/// Least cosine of a row.
pub const COSINE: f64 = 0.999;
/// Largest acceptable loss of the demo model's likelihood with 8-bit weights.
pub const LOSS: f64 = 0.02;

/// Whether the vendor's library is set. Without it nothing is tested, which is reported
/// conspicuously.
pub fn library() -> bool {
    let is_set = std::env::var_os("SHARDWRIGHT_QNN_LIB").is_some_and(|path| !path.is_empty());
    if !is_set {
        skipped(
            "Qualcomm's library: SHARDWRIGHT_QNN_LIB is not set; `cargo xtask vendor qnn` fetches it and says what to set",
        );
    }
    is_set
}

/// A checkpoint in formats, its decoder cut into pieces, for a chip.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    /// Folder of the checkpoint, from the root.
    pub checkpoint: &'static str,
    /// As the program takes them.
    pub formats: &'static str,
    /// Decoder shards.
    pub pieces: u32,
    /// The chip.
    pub soc: &'static str,
    /// Positions of the context; none for those of the checkpoint.
    pub context: Option<u32>,
}

impl Case {
    /// How it is opened.
    ///
    /// # Panics
    /// If the formats are none.
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

    /// Compares every shard alone with the reference and the chain as a whole with recorded
    /// outputs, on the vendor's simulation.
    ///
    /// # Panics
    /// If it cannot be run, or another plan than the one asked for is.
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

/// Nats per token of the float model on the same text, on this machine's CPU. A part of the
/// recorded rows has no recorded likelihood.
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

/// The results of a verification, in a line.
#[derive(Clone, Debug)]
pub struct Finding {
    /// Of every result of every shard against the same quantised graph: the largest error that 95
    /// of 100 rows keep.
    pub row_p95: f64,
    /// The largest of any row.
    pub row_worst: f64,
    /// The least cosine of any row.
    pub cosine: f64,
    /// Largest error that 95 of 100 rows keep, and the least cosine, of the decoder's results
    /// against the checkpoint in float.
    pub float: (f64, f64),
    /// Least mean cosine of a decoder result against the checkpoint in float.
    pub float_cosine_mean: f64,
    /// Rows compared.
    pub rows: u64,
    /// Nats per token, the increase over the checkpoint in float, and the number of tokens: zeros
    /// for an encoder.
    pub nll: (f64, f64, u64),
    /// Tokens chosen as the float model chose them after its own, of how many; and those before the
    /// first difference of their prompt.
    pub greedy: (u64, u64, u64),
}

impl Finding {
    /// The same with likelihoods compared with those of the float model on the same text.
    #[must_use]
    pub fn against(self, float_nll: f64) -> Finding {
        let (nll, _, predicted) = self.nll;
        Finding { nll: (nll, nll / float_nll - 1.0, predicted), ..self }
    }

    /// Reads a report.
    ///
    /// # Panics
    /// If nothing was compared.
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

    /// For programs.
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

    /// The head of the table that [`Finding::row`] makes lines of.
    pub const HEAD: &str = "| checkpoint | formats | shards | rows | against the same graph: 95 % | worst | least cosine | against float: 95 % | mean cosine, least | nats per token | loss | chosen as in float |\n|---|---|---|---|---|---|---|---|---|---|---|---|";

    /// For people, in Markdown.
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
