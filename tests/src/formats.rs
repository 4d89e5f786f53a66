//! Cost of formats for the demo model on the CPU shim: bytes, likelihood of held-out text, chosen
//! tokens, and errors by layer.
//!
//! All results of the running model come from [`shardwright_verify::verify`]. They are also
//! compared with the reference evaluator, which quantises and runs the same formats by itself.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use safetensors::tensor::TensorView;
use safetensors::{Dtype, SafeTensors};
use serde_json::{Value, json};
use shardwright::{FormatChoice, Model, OpenOptions, TableFormats, WeightFormat, WeightRounding};
use shardwright_build::PlanOptions;
use shardwright_checkpoints::{calibration_text, checkpoint_moments, open_checkpoint};
use shardwright_graph::{Graph, Ranges, state_key};
use shardwright_quantisation::{
    Calibration, Calibrator, Candidate, IntegerBits, Moments, RangeMethod, Rounding, content_hash, evaluate,
    quantise_weight,
};
use shardwright_shims::ShimRegistry;
use shardwright_verify::{VerifyOptions, VerifyReport};
use shardwright_vocabulary::{FormatTuple, StateFormat};
use tempfile::TempDir;

use crate::checkpoints::DEMO_MODEL;
use crate::{chain, program, tree};

/// Number of decoder layers of the demo model.
const LAYERS: &str = "8";

/// Largest allowed loss of likelihood with W8 per channel, in per cent of nats.
pub const W8_PER_CHANNEL_LOSS_MAX: f64 = 0.5;

/// Largest allowed loss of likelihood with W4 in blocks of 32, in per cent of nats.
pub const W4_BLOCK32_LOSS_MAX: f64 = 3.0;

/// A combination of formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Weights, activations and states, in the syntax of the program.
    pub formats: &'static str,
    /// Format of the embedding. `stored` keeps it unchanged.
    pub embedding: &'static str,
    /// Format of the per-layer embeddings. `stored` keeps them unchanged.
    pub per_layer: &'static str,
}

const fn case(formats: &'static str) -> Case {
    tabled(formats, "stored", "stored")
}

const fn tabled(formats: &'static str, embedding: &'static str, per_layer: &'static str) -> Case {
    Case { formats, embedding, per_layer }
}

/// All reported combinations. The first one is the model as it is.
pub const CASES: [Case; 36] = [
    case("stored"),
    // Weights.
    case("w8-per-channel/f32/f32"),
    case("w8-per-tensor/f32/f32"),
    case("w4-block32/f32/f32"),
    case("w4-block32-stepped/f32/f32"),
    case("w4-per-channel/f32/f32"),
    case("w4-per-tensor/f32/f32"),
    case("w2-per-channel/f32/f32"),
    case("w4-block32[head=w8-per-channel]/f32/f32"),
    case("w4-per-channel[head=w8-per-channel]/f32/f32"),
    case("w2-per-channel[head=w8-per-channel]/f32/f32"),
    // Activations.
    case("bf16/f16/f32"),
    case("bf16/a16/f32"),
    case("bf16/a16-symmetric/f32"),
    case("w8-per-channel/a8-dynamic/f32"),
    case("w8-per-channel/a8-dynamic-block32/f32"),
    // States.
    case("bf16/f32/f16"),
    case("bf16/f32/a16"),
    case("bf16/f32/a8"),
    // Tables.
    tabled("stored", "w8-per-channel", "stored"),
    tabled("stored", "stored", "w8-per-channel"),
    tabled("stored", "w4-block32", "stored"),
    tabled("stored", "stored", "w4-block32"),
    tabled("stored", "w4-per-channel", "w4-per-channel"),
    // Combinations.
    case("w8-per-channel/f16/f16"),
    case("w8-per-channel/a16/a16"),
    case("w8-per-channel/a16/a8"),
    case("w8-per-channel/a8-dynamic/a8"),
    case("w4-block32/a16/a16"),
    case("w4-block32/a8-dynamic/f32"),
    case("w4-block32/a8-dynamic-block32/f32"),
    case("w4-per-channel[head=w8-per-channel]/a16/a8"),
    tabled("w8-per-channel/f32/f32", "w8-per-channel", "w8-per-channel"),
    tabled("w8-per-channel/a16/a8", "w8-per-channel", "w8-per-channel"),
    tabled("w4-block32[head=w8-per-channel]/a8-dynamic/a8", "w8-per-channel", "w4-block32"),
    tabled("w4-block32/a16/a8", "w4-block32", "w4-block32"),
];

impl Case {
    /// Returns the formats of the embedding and the per-layer embeddings, as one word if they are
    /// equal.
    pub fn tables(&self) -> String {
        match self.embedding == self.per_layer {
            true => self.embedding.to_owned(),
            false => format!("{}, {}", self.embedding, self.per_layer),
        }
    }

    fn table(name: &str) -> Option<WeightFormat> {
        (name != "stored").then(|| name.parse().expect("a weight format"))
    }

    /// Returns options to open the model with one layer per shard, so that each layer can be fed
    /// exact values.
    fn options(&self, cache: &Path) -> OpenOptions {
        let choice: FormatChoice = self.formats.parse().expect("formats");
        OpenOptions::new()
            .search_path(program::search_path())
            .cache_directory(cache)
            .planner("even")
            .planner_option("pieces", LAYERS)
            .strict(true)
            .rounding(WeightRounding::Nearest)
            .formats(choice)
            .tables(TableFormats {
                embedding: Case::table(self.embedding),
                per_layer: Case::table(self.per_layer),
            })
    }

    fn tuple(&self) -> FormatTuple {
        match self.formats {
            "stored" => FormatTuple::F32,
            formats => formats.parse().expect("formats"),
        }
    }
}

/// Recorded outputs to verify against.
pub enum Recorded {
    /// All recorded outputs of the demo model.
    All,
    /// A part of them.
    Some(Part),
}

/// The first recorded prompts, and the beginnings of some held-out rows.
pub struct Part {
    folder: TempDir,
    /// The held-out rows, as token ids.
    pub rows: Vec<Vec<u32>>,
}

impl Recorded {
    /// Selects the first `prompts` recorded prompts, and the first `length` tokens of every
    /// `every`-th held-out row.
    ///
    /// # Panics
    /// If the demo model's files are not as its page documents.
    pub fn some(prompts: usize, every: usize, length: usize) -> Recorded {
        let rows: Vec<Vec<u32>> =
            held_out().into_iter().step_by(every).map(|row| row[..row.len().min(length)].to_vec()).collect();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let bytes = std::fs::read(recorded("goldens.safetensors")).expect("recorded outputs");
        let all = SafeTensors::deserialize(&bytes).expect("recorded outputs");
        let of_prompt = |name: &str| (0..prompts).any(|prompt| name.starts_with(&format!("p{prompt}.")));
        let kept = all.tensors().into_iter().filter(|(name, _)| of_prompt(name));
        write(kept, folder.path().join("goldens.safetensors"));

        let integers = |values: Vec<i64>| values.into_iter().flat_map(i64::to_le_bytes).collect::<Vec<u8>>();
        let padded = |row: &Vec<u32>| {
            let ids = row.iter().map(|&id| i64::from(id));
            ids.chain(std::iter::repeat(0)).take(length).collect::<Vec<i64>>()
        };
        let ids = integers(rows.iter().flat_map(padded).collect());
        let lengths = integers(rows.iter().map(|row| row.len() as i64).collect());
        let view = |shape: Vec<usize>, bytes| TensorView::new(Dtype::I64, shape, bytes).expect("a tensor");
        let tensors = [
            ("input_ids".to_owned(), view(vec![rows.len(), length], &ids)),
            ("lengths".to_owned(), view(vec![rows.len()], &lengths)),
        ];
        write(tensors, folder.path().join("eval.safetensors"));
        // The recorded values apply to all rows. A part is compared with the stored model on the
        // same part.
        std::fs::copy(recorded("eval.json"), folder.path().join("eval.json")).expect("copied");
        Recorded::Some(Part { folder, rows })
    }

    /// Returns the folder of the recorded files.
    pub fn folder(&self) -> PathBuf {
        match self {
            Recorded::All => tree::root().join(DEMO_MODEL),
            Recorded::Some(part) => part.folder.path().to_owned(),
        }
    }

    /// Returns the held-out rows to score.
    pub fn rows(&self) -> Vec<Vec<u32>> {
        match self {
            Recorded::All => held_out(),
            Recorded::Some(part) => part.rows.clone(),
        }
    }
}

fn recorded(name: &str) -> PathBuf {
    tree::root().join(DEMO_MODEL).join(name)
}

fn write<'d>(tensors: impl IntoIterator<Item = (String, TensorView<'d>)>, path: PathBuf) {
    let none: Option<HashMap<String, String>> = None;
    let bytes = safetensors::serialize(tensors, none).expect("serialised");
    std::fs::write(path, bytes).expect("written");
}

/// Reads the rows that the demo model was not trained on.
///
/// # Panics
/// If its files are not as its page documents.
pub fn held_out() -> Vec<Vec<u32>> {
    let bytes = std::fs::read(recorded("eval.safetensors")).expect("held-out rows");
    let tensors = SafeTensors::deserialize(&bytes).expect("held-out rows");
    let integers = |name: &str| -> Vec<i64> {
        let data = tensors.tensor(name).expect("a recorded tensor").data().to_vec();
        data.as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes)).collect()
    };
    let (ids, lengths) = (integers("input_ids"), integers("lengths"));
    let rows = ids.chunks(ids.len() / lengths.len()).zip(&lengths);
    rows.map(|(row, &length)| row[..length as usize].iter().map(|&id| id as u32).collect()).collect()
}

/// Amount of work in a verification.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Rows of each prompt to run through every shard alone.
    pub rows: usize,
    /// Positions of each prompt at which every shard runs a single row alone.
    pub steps: usize,
    /// Tokens of each prompt to choose greedily.
    pub greedy: usize,
}

/// The cost of a combination of formats.
#[derive(Clone, Debug)]
pub struct Cost {
    pub case: Case,
    /// Bytes of the shards' constants, scales included.
    pub weight_bytes: u64,
    /// Bytes of the gathered tables, scales included.
    pub table_bytes: u64,
    /// Bytes of the states at the model's context.
    pub state_bytes: u64,
    /// Number of predicted tokens.
    pub predicted: u64,
    /// Nats per predicted token.
    pub nll: f64,
    /// Number of tokens chosen greedily, each after the tokens that the float model chose.
    pub chosen: u64,
    /// How many of these equal the choice of the float model.
    pub as_float: u64,
    /// How many of these come before the first difference in their prompt.
    pub before_first_difference: u64,
    /// Error of each layer when fed the hidden rows and states of the float reference: the relative
    /// error that 95 of 100 output rows do not exceed, after the norm that reads them.
    pub layers: Vec<f64>,
    /// The largest relative error of any result of any shard, and the largest error that 95 of 100
    /// rows of a result do not exceed. The reference runs the graph that the shard was compiled
    /// from, on the same values.
    pub off_reference: (f64, f64),
}

impl Cost {
    /// Verifies the model in these formats.
    ///
    /// # Panics
    /// If anything fails, or the plan does not have the requested formats.
    pub fn of(case: Case, recorded: &Recorded, effort: Effort, cache: &Path) -> Cost {
        let options = case.options(cache);
        let checkpoint = tree::root().join(DEMO_MODEL);
        let failed = |error: shardwright::Error| -> ! { panic!("{case:?}: {error} ({:?})", error.help()) };
        let plan = options.plan(&checkpoint).unwrap_or_else(|error| failed(error)).report;
        for shard in plan.shards.iter().filter(|_| case.formats != "stored") {
            assert_eq!(shard.formats, case.tuple().to_string(), "{case:?}");
        }
        let graph = chain::committed(DEMO_MODEL);
        let formats = [Case::table(case.embedding), Case::table(case.per_layer)];
        let tables = graph.assets.iter().zip(formats).map(|(asset, format)| match format {
            Some(format) => asset.table.planned(format).expect("a table in any format").bytes(),
            None => asset.table.bytes(),
        });
        let verify = VerifyOptions::new().rows(effort.rows).steps(effort.steps).greedy(effort.greedy);
        let report =
            shardwright_verify::verify(&checkpoint, Some(&recorded.folder()), &options, &verify, &mut ())
                .unwrap_or_else(|error| failed(error));
        let tokens = report.tokens.as_ref().expect("a model that generates");
        let greedy = report.comparisons.iter().find(|comparison| comparison.what == "greedy");
        let greedy = greedy.expect("recorded tokens");
        Cost {
            case,
            weight_bytes: plan.shards.iter().map(|shard| shard.weight_bytes).sum(),
            table_bytes: tables.sum(),
            state_bytes: plan.shards.iter().map(|shard| shard.state_bytes).sum(),
            predicted: tokens.predicted,
            nll: tokens.nll,
            chosen: greedy.compared,
            as_float: greedy.compared - greedy.worst as u64,
            before_first_difference: tokens.greedy_agreed,
            layers: layers(&report),
            off_reference: off_reference(&report),
        }
    }

    /// Returns the increase in nats over `stored`, in per cent.
    pub fn loss(&self, stored: &Cost) -> f64 {
        100.0 * (self.nll / stored.nll - 1.0)
    }

    /// Returns the layer with the largest error when fed the float reference's values, and that
    /// error. Returns `None` if no layer differs by more than the order of summation causes.
    pub fn worst_layer(&self) -> Option<(usize, f64)> {
        let worst = self.layers.iter().copied().enumerate().max_by(|a, b| a.1.total_cmp(&b.1));
        worst.filter(|&(_, error)| error > 1e-5)
    }

    /// Returns all fields as JSON.
    pub fn json(&self, stored: &Cost, reference: &AgainstReference) -> Value {
        json!({
            "formats": self.case.formats,
            "embedding": self.case.embedding,
            "per_layer": self.case.per_layer,
            "weight_bytes": self.weight_bytes,
            "table_bytes": self.table_bytes,
            "state_bytes": self.state_bytes,
            "predicted": self.predicted,
            "nll": self.nll,
            "loss_per_cent": self.loss(stored),
            "greedy_tokens": self.chosen,
            "greedy_as_float": self.as_float,
            "greedy_before_first_difference": self.before_first_difference,
            "layer_errors": self.layers,
            "worst_layer": self.worst_layer().map(|(layer, _)| layer),
            "off_reference_worst": self.off_reference.0,
            "off_reference_p95": self.off_reference.1,
            "reference_nll": reference.reference,
            "shim_nll_on_its_rows": reference.shim,
            "divergence": reference.divergence,
        })
    }
}

/// Returns the errors of shards of one layer each against the float reference.
fn layers(report: &VerifyReport) -> Vec<f64> {
    let float = report.boundaries.last().expect("shards are run alone");
    let mut layers = BTreeMap::new();
    for shard in &float.shards {
        let Some((first, end)) = shard.layers else { continue };
        assert_eq!(end, first + 1, "one layer to a shard");
        let entries = shard.entries.iter().filter(|entry| entry.entry.starts_with("decode_1@"));
        let hidden = entries.flat_map(|entry| &entry.outputs).filter(|output| output.what == "hidden");
        for output in hidden {
            assert!(output.after.is_some() && output.rows > 0, "{output:?}");
            layers.insert(first, output.relative_p95);
        }
    }
    assert_eq!(layers.len().to_string(), LAYERS);
    layers.into_values().collect()
}

fn off_reference(report: &VerifyReport) -> (f64, f64) {
    let judged = report.boundaries.iter().filter(|boundaries| boundaries.judged);
    let shards = judged.flat_map(|boundaries| &boundaries.shards);
    let outputs = shards.flat_map(|shard| &shard.entries).flat_map(|entry| &entry.outputs);
    outputs.fold((0.0, 0.0), |(worst, most): (f64, f64), output| {
        (worst.max(output.relative_worst), most.max(output.relative_p95))
    })
}

/// Nats per token of the same rows, from the chain on the CPU shim and from the reference.
#[derive(Clone, Copy, Debug)]
pub struct AgainstReference {
    /// Nats per token on the CPU shim.
    pub shim: f64,
    /// Nats per token of the reference evaluator, which quantises the graph itself.
    pub reference: f64,
    /// Mean KL divergence of the reference's predictions from the float model's, in nats.
    pub divergence: f64,
}

impl AgainstReference {
    /// Returns the relative difference between shim and reference.
    pub fn difference(&self) -> f64 {
        (self.shim / self.reference - 1.0).abs()
    }

    /// Runs these cases on a part of the held-out rows.
    ///
    /// # Panics
    /// If anything fails.
    pub fn of(cases: &[Case], part: &Recorded, cache: &Path) -> Vec<AgainstReference> {
        let graph = chain::committed(DEMO_MODEL);
        let calibration = calibrate(&graph);
        let found = reference(&graph, cases, &calibration, &part.rows());
        let least = Effort { rows: 1, steps: 1, greedy: 1 };
        let both = cases.iter().zip(found).map(|(&case, (reference, divergence))| AgainstReference {
            shim: Cost::of(case, part, least, cache).nll,
            reference,
            divergence,
        });
        both.collect()
    }
}

/// Computes likelihoods and divergences with the reference, in the order of the cases.
fn reference(graph: &Graph, cases: &[Case], calibration: &Calibration, rows: &[Vec<u32>]) -> Vec<(f64, f64)> {
    let mut found = vec![(f64::NAN, f64::NAN); cases.len()];
    for narrow in [false, true] {
        let is_of = |case: &Case| (case.tuple().states == StateFormat::A8) == narrow;
        let chosen: Vec<usize> = (0..cases.len()).filter(|&index| is_of(&cases[index])).collect();
        if chosen.is_empty() {
            continue;
        }
        let candidates: Vec<Candidate> = chosen.iter().map(|&index| candidate(&cases[index])).collect();
        let mut on = |_: u64, _: u64| ControlFlow::Continue(());
        let table = evaluate(graph, &candidates, &ranges(calibration, narrow), rows, &mut on);
        for (index, row) in chosen.into_iter().zip(table.expect("the reference runs it").rows) {
            found[index] = (row.nll.expect("a model that generates"), row.divergence);
        }
    }
    found
}

/// The reference's results for one weight format: nats per token and divergence from the float
/// model.
#[derive(Clone, Copy, Debug)]
pub struct Roundings {
    /// The format of all matrices.
    pub format: WeightFormat,
    /// Each value rounded to the nearest.
    pub nearest: (f64, f64),
    /// Rounding with error compensation (GPTQ), using moments over the built-in texts.
    pub compensated: (f64, f64),
    /// Rounding with error compensation (GPTQ), using moments over text that the model generated.
    pub by_own_text: (f64, f64),
}

impl Roundings {
    /// Returns all fields as JSON, with the error of the matrices and the nats of the stored model.
    pub fn json(&self, weight_error: f64, stored_nll: f64) -> Value {
        json!({
            "format": self.format.to_string(),
            "weight_error": weight_error,
            "stored_nll": stored_nll,
            "nll": self.nearest.0,
            "divergence": self.nearest.1,
            "compensated_nll": self.compensated.0,
            "compensated_divergence": self.compensated.1,
            "own_text_nll": self.by_own_text.0,
            "own_text_divergence": self.by_own_text.1,
        })
    }
}

/// Text generated by the demo model, with `shardwright calibration-text demo-model --tokens 28000`.
pub const OWN_TEXT: &str = "tests/fixtures/own-text/demo-model.txt";

/// Measures how much error compensation by moments over calibration text helps each format. The
/// first value is the nats of the stored model.
///
/// # Panics
/// If the reference cannot run it.
pub fn roundings(formats: &[WeightFormat], part: &Recorded) -> (f64, Vec<Roundings>) {
    let graph = chain::committed(DEMO_MODEL);
    let checkpoint = open_checkpoint(&tree::root().join(DEMO_MODEL)).expect("the demo model");
    let moments = [None, Some(tree::root().join(OWN_TEXT))].map(|text| {
        let shims = ShimRegistry::builder().directory(program::folder().join("shims"));
        let options = PlanOptions { shims, calibration_text: text, ..PlanOptions::default() };
        let (moments, _) = checkpoint_moments(&checkpoint, &options, &mut ()).expect("moments");
        Arc::new(moments)
    });
    let of = |format: WeightFormat, moments: Option<Arc<Moments>>| Candidate {
        formats: FormatTuple { weights: format, ..FormatTuple::F32 },
        tables: shardwright_quantisation::TableFormats::default(),
        moments,
    };
    let ways = |&format: &WeightFormat| {
        [None, Some(&moments[0]), Some(&moments[1])].map(|moments| of(format, moments.cloned()))
    };
    let candidates: Vec<Candidate> = formats.iter().flat_map(ways).collect();
    let mut on = |_: u64, _: u64| ControlFlow::Continue(());
    let table = evaluate(&graph, &candidates, &Ranges::new(), &part.rows(), &mut on).expect("it runs");
    let ways = table.rows.as_chunks::<3>().0.iter().zip(formats);
    let found = ways.map(|(rows, &format)| {
        let costs = |row: &shardwright_quantisation::Evaluation| {
            (row.nll.expect("a model that generates"), row.divergence)
        };
        let [nearest, compensated, by_own_text] = [&rows[0], &rows[1], &rows[2]].map(costs);
        Roundings { format, nearest, compensated, by_own_text }
    });
    let found = found.collect();
    (table.nll.expect("a model that generates"), found)
}

/// Measures the cost of methods to choose ranges for 16-bit activations with the reference: nats
/// per token and divergence from the float model. The first value is the nats of the stored model.
///
/// # Panics
/// If the reference cannot run it.
pub fn ranging(part: &Recorded) -> (f64, Vec<(RangeMethod, f64, f64)>) {
    let graph = chain::committed(DEMO_MODEL);
    let calibration = calibrate(&graph);
    let candidate = Candidate {
        formats: "bf16/a16/a16".parse().expect("formats"),
        tables: shardwright_quantisation::TableFormats::default(),
        moments: None,
    };
    let mut stored = f64::NAN;
    let methods = [
        RangeMethod::Percentile(0.9999),
        RangeMethod::MeanSquaredError,
        RangeMethod::MinMax,
        RangeMethod::Ample,
    ];
    let found = methods.map(|method| {
        let ranges = calibration.ranges(method, IntegerBits::Sixteen).expect("ranges");
        let mut on = |_: u64, _: u64| ControlFlow::Continue(());
        let candidates = std::slice::from_ref(&candidate);
        let table = evaluate(&graph, candidates, &ranges, &part.rows(), &mut on).expect("it runs");
        stored = table.nll.expect("a model that generates");
        (method, table.rows[0].nll.expect("a model that generates"), table.rows[0].divergence)
    });
    (stored, found.into())
}

/// Computes the relative error of the demo model's matrices in a format: the norm of all
/// differences over the norm of all values.
///
/// # Panics
/// If a matrix cannot be quantised.
pub fn weight_error(format: WeightFormat) -> f64 {
    let graph = chain::committed(DEMO_MODEL);
    let matrices = graph.weights.iter().zip(graph.matrices()).filter(|(_, is_matrix)| *is_matrix);
    let (mut off, mut of) = (0.0_f64, 0.0_f64);
    for (matrix, _) in matrices {
        let made =
            quantise_weight(matrix, format, Rounding::Nearest, &mut ()).expect("a matrix in any format");
        let (mut wanted, mut got) = (vec![0.0; matrix.row_width()], vec![0.0; matrix.row_width()]);
        for row in 0..matrix.rows() {
            assert!(matrix.decode_row(row, &mut wanted) && made.decode_row(row, &mut got));
            for (&wanted, &got) in wanted.iter().zip(&got) {
                off += f64::from(wanted - got).powi(2);
                of += f64::from(wanted).powi(2);
            }
        }
    }
    (off / of).sqrt()
}

fn candidate(case: &Case) -> Candidate {
    Candidate {
        formats: case.tuple(),
        tables: shardwright_quantisation::TableFormats {
            embedding: Case::table(case.embedding),
            per_layer: Case::table(case.per_layer),
        },
        moments: None,
    }
}

/// Returns ranges as the public crate computes them: ample ones for 16 bits, and least squared
/// error for 8-bit states.
fn ranges(calibration: &Calibration, narrow: bool) -> Ranges {
    let mut ranges = calibration.ranges(RangeMethod::Ample, IntegerBits::Sixteen).expect("ranges");
    if narrow {
        let least = calibration.ranges(RangeMethod::MeanSquaredError, IntegerBits::Eight).expect("ranges");
        ranges.extend(least.into_iter().filter(|(key, _)| key.starts_with(&state_key(""))));
    }
    ranges
}

fn calibrate(graph: &Graph) -> Calibration {
    calibrate_on(graph, &calibration())
}

fn calibrate_on(graph: &Graph, conversations: &[Vec<u32>]) -> Calibration {
    let mut calibrator = Calibrator::new(graph, content_hash(graph).expect("a hash")).expect("a calibrator");
    for ids in conversations {
        calibrator.add(ids).expect("a conversation runs");
    }
    calibrator.finish().expect("conversations")
}

/// Texts to calibrate on: the texts that come with the program, each of them alone, and the model's
/// own. `None` selects all texts that come with the program.
const TEXTS: [(&str, Option<&str>); 7] = [
    ("all that come with the program", None),
    ("turns alone", Some("host/checkpoints/src/texts/turns.txt")),
    ("code alone", Some("host/checkpoints/src/texts/code.txt")),
    ("numbers alone", Some("host/checkpoints/src/texts/numbers.txt")),
    ("languages alone", Some("host/checkpoints/src/texts/languages.txt")),
    ("long texts alone", Some("host/checkpoints/src/texts/long.txt")),
    ("the model's own", Some(OWN_TEXT)),
];

/// Loss of a model that was calibrated on a text: nats per token and divergence from the float
/// model.
#[derive(Clone, Debug)]
pub struct ByText {
    /// Name of the text.
    pub name: &'static str,
    /// Number of tokens used for ranges, and for moments.
    pub tokens: [usize; 2],
    /// Loss with 16-bit activations and an 8-bit KV cache, with ranges from this text.
    pub ranges: (f64, f64),
    /// Loss with W4 per channel weights, rounded using moments of this text.
    pub rounding: (f64, f64),
}

/// Measures the cost of calibrating on texts unlike the model's usual input, with the reference.
/// The first value is the nats of the stored model.
///
/// # Panics
/// If the reference cannot run it, or moments cannot be computed.
pub fn by_texts(part: &Recorded) -> (f64, Vec<ByText>) {
    let graph = chain::committed(DEMO_MODEL);
    let checkpoint = open_checkpoint(&tree::root().join(DEMO_MODEL)).expect("the demo model");
    let mut stored = f64::NAN;
    let found = TEXTS.map(|(name, path)| {
        let shims = ShimRegistry::builder().directory(program::folder().join("shims"));
        let calibration_text = path.map(|path| tree::root().join(path));
        let options = PlanOptions { shims, calibration_text, ..PlanOptions::default() };
        let conversations =
            shardwright_checkpoints::calibration_text(&checkpoint, &options).expect("conversations");
        let moved = shardwright_checkpoints::moment_text(&checkpoint, &options).expect("conversations");
        let (moments, _) = checkpoint_moments(&checkpoint, &options, &mut ()).expect("moments");
        let of = |formats: &str, moments: Option<Moments>| Candidate {
            formats: formats.parse().expect("formats"),
            tables: shardwright_quantisation::TableFormats::default(),
            moments: moments.map(Arc::new),
        };
        let candidates = [of("bf16/a16/a8", None), of("w4-per-channel/f32/f32", Some(moments))];
        let ranges = ranges(&calibrate_on(&graph, &conversations), true);
        let mut on = |_: u64, _: u64| ControlFlow::Continue(());
        let table = evaluate(&graph, &candidates, &ranges, &part.rows(), &mut on).expect("it runs");
        stored = table.nll.expect("a model that generates");
        let cost =
            |row: usize| (table.rows[row].nll.expect("a model that generates"), table.rows[row].divergence);
        let tokens = [&conversations, &moved].map(|text| text.iter().map(Vec::len).sum());
        ByText { name, tokens, ranges: cost(0), rounding: cost(1) }
    });
    (stored, found.into())
}

/// Returns the conversations that ranges are calibrated on, as rendered by the demo model's chat
/// template.
///
/// # Panics
/// If a conversation cannot be rendered.
pub fn calibration() -> Vec<Vec<u32>> {
    let checkpoint = open_checkpoint(&tree::root().join(DEMO_MODEL)).expect("the demo model");
    calibration_text(&checkpoint, &PlanOptions::default()).expect("conversations")
}

/// Returns the conversations for moments, as the demo model sees them: the built-in ones, and its
/// own.
///
/// # Panics
/// If a conversation cannot be rendered.
pub fn moment_texts() -> [Vec<Vec<u32>>; 2] {
    let checkpoint = open_checkpoint(&tree::root().join(DEMO_MODEL)).expect("the demo model");
    [None, Some(tree::root().join(OWN_TEXT))].map(|text| {
        let options = PlanOptions { calibration_text: text, ..PlanOptions::default() };
        shardwright_checkpoints::moment_text(&checkpoint, &options).expect("conversations")
    })
}

/// Returns the conversations that losses are measured on, as the demo model sees them.
///
/// # Panics
/// If a conversation cannot be rendered.
pub fn loss_text() -> Vec<Vec<u32>> {
    let checkpoint = open_checkpoint(&tree::root().join(DEMO_MODEL)).expect("the demo model");
    shardwright_checkpoints::sensitivity_text(&checkpoint, &PlanOptions::default()).expect("conversations")
}

/// Opens the demo model in these formats, with one layer per shard.
///
/// # Panics
/// If it does not open.
pub fn open(case: &Case, cache: &Path) -> Model {
    case.options(cache)
        .open(tree::root().join(DEMO_MODEL))
        .unwrap_or_else(|error| panic!("{case:?}: {error}"))
}
