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
use shardwright_build::{PlanOptions, calibration_text, checkpoint_moments, open_checkpoint};
use shardwright_graph::{Graph, Ranges, state_key};
use shardwright_quantisation::{
    Calibration, Calibrator, Candidate, IntegerBits, Moments, RangeMethod, Rounding, Unwatched, content_hash,
    evaluate, quantise_weight,
};
use shardwright_shims::ShimRegistry;
use shardwright_verify::{VerifyOptions, VerifyReport};
use shardwright_vocabulary::{FormatTuple, StateFormat};
use tempfile::TempDir;

use crate::checkpoints::DEMO_MODEL;
use crate::{chain, program, tree};

/// Decoder layers of the demo model.
const LAYERS: &str = "8";

/// What W8 per channel may lose of the likelihood, in per cent of nats.
pub const W8_PER_CHANNEL_LOSS_MAX: f64 = 0.5;

/// What W4 in blocks of 32 may lose.
pub const W4_BLOCK32_LOSS_MAX: f64 = 3.0;

/// A combination of formats.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    /// Weights, activations and states as the program takes them.
    pub formats: &'static str,
    /// Format of the embedding, `stored` for none.
    pub embedding: &'static str,
    /// Format of the per-layer embeddings, `stored` for none.
    pub per_layer: &'static str,
}

const fn case(formats: &'static str) -> Case {
    tabled(formats, "stored", "stored")
}

const fn tabled(formats: &'static str, embedding: &'static str, per_layer: &'static str) -> Case {
    Case { formats, embedding, per_layer }
}

/// The model as it is, first, and in every other combination that is reported.
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
    // Together.
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
    /// Formats of embedding and per-layer embeddings as one word.
    pub fn tables(&self) -> String {
        match self.embedding == self.per_layer {
            true => self.embedding.to_owned(),
            false => format!("{}, {}", self.embedding, self.per_layer),
        }
    }

    fn table(name: &str) -> Option<WeightFormat> {
        (name != "stored").then(|| name.parse().expect("a weight format"))
    }

    /// Options to open it with: one shard to a layer, so that each layer can be fed exact values.
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
    /// All of the demo model's.
    All,
    /// A part.
    Some(Part),
}

/// The first recorded prompts, and the beginnings of some held-out rows.
pub struct Part {
    folder: TempDir,
    /// The rows.
    pub rows: Vec<Vec<u32>>,
}

impl Recorded {
    /// The first `prompts` recorded prompts and of every `every`-th held-out row the first `length`
    /// tokens.
    ///
    /// # Panics
    /// If the demo model's files are not what its page says.
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
        // Recorded for all rows: a part is compared with the model as stored on the same part.
        std::fs::copy(recorded("eval.json"), folder.path().join("eval.json")).expect("copied");
        Recorded::Some(Part { folder, rows })
    }

    /// The folder they lie in.
    pub fn folder(&self) -> PathBuf {
        match self {
            Recorded::All => tree::root().join(DEMO_MODEL),
            Recorded::Some(part) => part.folder.path().to_owned(),
        }
    }

    /// The held-out rows that are scored.
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

/// The rows that the demo model was never trained on.
///
/// # Panics
/// If its files are not what its page says.
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

/// How much of it is run.
#[derive(Clone, Copy, Debug)]
pub struct Effort {
    /// Rows of each prompt through every shard alone.
    pub rows: usize,
    /// Positions of each prompt at which every shard alone takes one row.
    pub steps: usize,
    /// Tokens of each prompt chosen greedily.
    pub greedy: usize,
}

/// What a combination of formats costs.
#[derive(Clone, Debug)]
pub struct Cost {
    /// Which.
    pub case: Case,
    /// Bytes of the shards' constants, scales included.
    pub weight_bytes: u64,
    /// Bytes of the gathered tables, scales included.
    pub table_bytes: u64,
    /// Bytes of the states at the model's context.
    pub state_bytes: u64,
    /// Tokens predicted.
    pub predicted: u64,
    /// Nats per predicted token.
    pub nll: f64,
    /// Tokens chosen greedily, each after those the model in float chose.
    pub chosen: u64,
    /// How many of these are what the model in float chose.
    pub as_float: u64,
    /// How many of these come before the first difference of their prompt.
    pub before_first_difference: u64,
    /// Of each layer fed the hidden rows and states of the float reference: relative error that 95
    /// of 100 of its output rows do not exceed, after the norm that reads them.
    pub layers: Vec<f64>,
    /// The largest relative error of any result of any shard against the reference on the graph the
    /// shard was compiled from, fed the same values; and the one that 95 of 100 rows keep, of the
    /// result where that is largest.
    pub off_reference: (f64, f64),
}

impl Cost {
    /// Runs it all.
    ///
    /// # Panics
    /// If anything fails, or the plan is not what was asked.
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

    /// How much more nats than `stored`, in per cent.
    pub fn loss(&self, stored: &Cost) -> f64 {
        100.0 * (self.nll / stored.nll - 1.0)
    }

    /// The layer that is farthest from the float reference when fed its values, and how far; `None`
    /// where none differs by more than orders of summation do.
    pub fn worst_layer(&self) -> Option<(usize, f64)> {
        let worst = self.layers.iter().copied().enumerate().max_by(|a, b| a.1.total_cmp(&b.1));
        worst.filter(|&(_, error)| error > 1e-5)
    }

    /// Everything, for programs.
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

/// Results of shards of one layer each, against the float reference.
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

/// Nats per token of the same rows, of the chain on the CPU shim and of the reference.
#[derive(Clone, Copy, Debug)]
pub struct AgainstReference {
    /// Of the CPU shim.
    pub shim: f64,
    /// Of the reference evaluator on the same quantised graph, which it makes for itself.
    pub reference: f64,
    /// Mean relative entropy of the reference's predictions to those of the model in float, in
    /// nats.
    pub divergence: f64,
}

impl AgainstReference {
    /// Relative difference.
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

/// Likelihoods and divergences by the reference, in the order of the cases.
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

/// What the reference makes of one format of weights: nats per token and divergence from the model
/// in float.
#[derive(Clone, Copy, Debug)]
pub struct Roundings {
    /// The format, of all matrices.
    pub format: WeightFormat,
    /// Each value to the nearest.
    pub nearest: (f64, f64),
    /// Errors making up for each other, by moments over the built-in texts.
    pub compensated: (f64, f64),
    /// The same by moments over what the model itself says.
    pub by_own_text: (f64, f64),
}

impl Roundings {
    /// Everything, for programs; besides the matrices' own error, beside nats of the model as
    /// stored.
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

/// What the demo model itself says, drawn by `shardwright calibration-text demo-model --tokens
/// 28000`.
pub const OWN_TEXT: &str = "tests/fixtures/own-text/demo-model.txt";

/// How much it helps that errors make up for each other, by moments over the calibration text;
/// besides, nats of the model as stored.
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

/// Ways to ranges of 16 bits, and what each costs by the reference when activations are integers:
/// nats per token and divergence from the model in float; besides, nats of the model as stored.
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

/// How far the demo model's matrices are from themselves in a format: length of all differences
/// over length of all values.
///
/// # Panics
/// If a matrix cannot be made.
pub fn weight_error(format: WeightFormat) -> f64 {
    let graph = chain::committed(DEMO_MODEL);
    let matrices = graph.weights.iter().zip(graph.matrices()).filter(|(_, is_matrix)| *is_matrix);
    let (mut off, mut of) = (0.0_f64, 0.0_f64);
    for (matrix, _) in matrices {
        let made = quantise_weight(matrix, format, Rounding::Nearest, &mut Unwatched)
            .expect("a matrix in any format");
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

/// Ranges as the public crate takes them: ample ones for 16 bits, least squared error for states of
/// 8.
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

/// Texts to calibrate on: those that come with the program, each of them alone, and the model's
/// own. `None` is all that come with it.
const TEXTS: [(&str, Option<&str>); 7] = [
    ("all that come with the program", None),
    ("turns alone", Some("host/build/src/checkpoint/texts/turns.txt")),
    ("code alone", Some("host/build/src/checkpoint/texts/code.txt")),
    ("numbers alone", Some("host/build/src/checkpoint/texts/numbers.txt")),
    ("languages alone", Some("host/build/src/checkpoint/texts/languages.txt")),
    ("long texts alone", Some("host/build/src/checkpoint/texts/long.txt")),
    ("the model's own", Some(OWN_TEXT)),
];

/// What a model loses that was calibrated on a text: nats per token and divergence from it in
/// float.
#[derive(Clone, Debug)]
pub struct ByText {
    /// The text.
    pub name: &'static str,
    /// Tokens that ranges are of, and moments.
    pub tokens: [usize; 2],
    /// With activations in 16 bits and a KV cache in 8, in ranges by this text.
    pub ranges: (f64, f64),
    /// With weights in W4 per channel, rounded by moments of this text.
    pub rounding: (f64, f64),
}

/// What a text costs that is not like what the model reads, by the reference; besides, nats of the
/// model as stored.
///
/// # Panics
/// If the reference cannot run it, or moments cannot be taken.
pub fn by_texts(part: &Recorded) -> (f64, Vec<ByText>) {
    let graph = chain::committed(DEMO_MODEL);
    let checkpoint = open_checkpoint(&tree::root().join(DEMO_MODEL)).expect("the demo model");
    let mut stored = f64::NAN;
    let found = TEXTS.map(|(name, path)| {
        let shims = ShimRegistry::builder().directory(program::folder().join("shims"));
        let calibration_text = path.map(|path| tree::root().join(path));
        let options = PlanOptions { shims, calibration_text, ..PlanOptions::default() };
        let conversations =
            shardwright_build::calibration_text(&checkpoint, &options).expect("conversations");
        let moved = shardwright_build::moment_text(&checkpoint, &options).expect("conversations");
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

/// The conversations that ranges are calibrated on, as the demo model sees them: through its chat
/// template.
///
/// # Panics
/// If one of them cannot be rendered.
pub fn calibration() -> Vec<Vec<u32>> {
    let checkpoint = open_checkpoint(&tree::root().join(DEMO_MODEL)).expect("the demo model");
    calibration_text(&checkpoint, &PlanOptions::default()).expect("conversations")
}

/// The conversations that moments are taken over, as the demo model sees them: built in, and its
/// own.
///
/// # Panics
/// If one of them cannot be rendered.
pub fn moment_texts() -> [Vec<Vec<u32>>; 2] {
    let checkpoint = open_checkpoint(&tree::root().join(DEMO_MODEL)).expect("the demo model");
    [None, Some(tree::root().join(OWN_TEXT))].map(|text| {
        let options = PlanOptions { calibration_text: text, ..PlanOptions::default() };
        shardwright_build::moment_text(&checkpoint, &options).expect("conversations")
    })
}

/// The conversations that losses are measured on, as the demo model sees them.
///
/// # Panics
/// If one of them cannot be rendered.
pub fn loss_text() -> Vec<Vec<u32>> {
    let checkpoint = open_checkpoint(&tree::root().join(DEMO_MODEL)).expect("the demo model");
    shardwright_build::sensitivity_text(&checkpoint, &PlanOptions::default()).expect("conversations")
}

/// Opens the demo model in these formats, in one piece to a layer.
///
/// # Panics
/// If it does not open.
pub fn open(case: &Case, cache: &Path) -> Model {
    case.options(cache)
        .open(tree::root().join(DEMO_MODEL))
        .unwrap_or_else(|error| panic!("{case:?}: {error}"))
}
