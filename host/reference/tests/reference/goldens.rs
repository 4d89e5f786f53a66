//! Compares the evaluator with Hugging Face transformers, on every text fixture and on the demo
//! model, in every form.

use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use shardwright_graph::Graph;
use shardwright_models::Checkpoint;
use shardwright_reference::{Arrangement, Form, ReferenceModel, Trace};

/// Largest absolute difference of a residual stream, final norm or per-layer input. Two careful f32
/// implementations differ by up to 2e-4 on these random networks, which amplify rounding.
const HIDDEN_BOUND: f32 = 5e-3;
/// Largest absolute difference of a logit. Logits reach 30 to 60.
const LOGIT_BOUND: f32 = 1e-2;
/// Largest absolute difference of a unit vector's value.
const EMBEDDING_BOUND: f32 = 1e-5;
/// Largest absolute difference between the semantic and a decomposed form. Each primitive rounds to
/// f32 once more.
const FORM_BOUND: f32 = 2e-3;

const FORMS: [Form; 3] = [Form::Semantic, Form::Decomposed, Form::ByRuntime];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

fn fixture(name: &str) -> PathBuf {
    root().join("tests/fixtures").join(name)
}

fn graph(directory: &Path) -> Graph {
    Checkpoint::open(directory).unwrap().into_graph()
}

struct Goldens {
    bytes: Vec<u8>,
}

impl Goldens {
    fn read(path: &Path) -> Self {
        Goldens { bytes: std::fs::read(path).unwrap() }
    }

    fn floats(&self, name: &str) -> Option<(Vec<usize>, Vec<f32>)> {
        let tensors = SafeTensors::deserialize(&self.bytes).unwrap();
        let tensor = tensors.tensor(name).ok()?;
        let values =
            tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
        Some((tensor.shape().to_vec(), values))
    }

    fn integers(&self, name: &str) -> Option<Vec<u32>> {
        let tensors = SafeTensors::deserialize(&self.bytes).unwrap();
        let tensor = tensors.tensor(name).ok()?;
        let values = tensor.data().chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()));
        Some(values.map(|value| u32::try_from(value).unwrap()).collect())
    }
}

fn difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).fold(0.0, |worst, (a, b)| {
        let difference = (a - b).abs();
        if difference.is_nan() { f32::INFINITY } else { difference.max(worst) }
    })
}

/// Compares all results in a trace with the goldens of one prompt. Returns the largest hidden and
/// logit difference.
fn compare(case: &str, trace: &Trace, goldens: &Goldens, prompt: &str) -> (f32, f32) {
    let key = |what: &str| format!("{prompt}.{what}");
    let mut worst = 0.0_f32;
    let mut check = |what: String, ours: &[f32], theirs: &[f32], bound: f32| {
        let difference = difference(ours, theirs);
        assert!(difference <= bound, "{case} {what}: {difference} > {bound}");
        if bound == HIDDEN_BOUND {
            worst = worst.max(difference);
        }
    };
    if let Some((shape, theirs)) = goldens.floats(&key("hidden")) {
        assert_eq!(trace.hidden.len(), shape[0], "{case}");
        for (layer, theirs) in theirs.chunks_exact(shape[1] * shape[2]).enumerate() {
            check(format!("hidden {layer}"), &trace.hidden[layer].floats(), theirs, HIDDEN_BOUND);
        }
    }
    if let Some((_, theirs)) = goldens.floats(&key("final_norm")) {
        check("final norm".to_owned(), &trace.taps["final-norm"].floats(), &theirs, HIDDEN_BOUND);
    }
    if let Some((shape, theirs)) = goldens.floats(&key("per_layer")) {
        let (rows, layers, width) = (shape[0], shape[1], shape[2]);
        let ours = trace.per_layer.as_ref().unwrap();
        assert_eq!(ours.shape(), [layers, rows, width]);
        let ours = ours.floats();
        let by_row: Vec<f32> = (0..rows)
            .flat_map(|row| {
                (0..layers).flat_map(move |layer| (0..width).map(move |i| (layer * rows + row) * width + i))
            })
            .map(|index| ours[index])
            .collect();
        check("per-layer inputs".to_owned(), &by_row, &theirs, HIDDEN_BOUND);
    }
    if let Some((_, theirs)) = goldens.floats(&key("embedding")) {
        let ours = trace.embedding.as_ref().unwrap().floats();
        check("embedding".to_owned(), &ours, &theirs, EMBEDDING_BOUND);
    }
    let mut worst_logit = 0.0;
    if let Some((shape, theirs)) = goldens.floats(&key("logits")) {
        let start = goldens.integers(&key("logits_start")).map_or(0, |start| start[0] as usize);
        let ours = trace.logits.as_ref().unwrap().floats();
        assert_eq!(ours.len(), (start + shape[0]) * shape[1], "{case}");
        let ours = &ours[start * shape[1]..];
        check("logits".to_owned(), ours, &theirs, LOGIT_BOUND);
        worst_logit = difference(ours, &theirs);
    }
    (worst, worst_logit)
}

/// Checks every text-only prompt of a folder, in every form. The forms in `generating` also
/// generate.
fn check_folder(directory: &Path, prompts: &[&str], rows: u64, generating: &[Form]) {
    let graph = graph(directory);
    let goldens = Goldens::read(&directory.join("goldens.safetensors"));
    let cuts: Vec<u32> =
        [graph.layers() / 3, 2 * graph.layers() / 3].into_iter().filter(|&cut| cut > 0).collect();
    for prompt in prompts {
        let ids = goldens.integers(&format!("{prompt}.input_ids")).unwrap();
        let mut semantic: Option<Trace> = None;
        for form in FORMS {
            let case = format!("{} {prompt} {form:?}", directory.file_name().unwrap().to_string_lossy());
            let rows = if graph.is_generative() { rows } else { ids.len() as u64 + 3 };
            let arrangement = Arrangement { context: 256, rows, cuts: cuts.clone(), form };
            let model = ReferenceModel::new(&graph, arrangement).unwrap();
            let trace = model.trace(&ids).unwrap();
            let (hidden, logits) = compare(&case, &trace, &goldens, prompt);
            let mut apart = 0.0_f32;
            if let Some(semantic) = &semantic {
                for (a, b) in semantic.hidden.iter().zip(&trace.hidden) {
                    apart = apart.max(difference(&a.floats(), &b.floats()));
                }
                assert!(apart <= FORM_BOUND, "{case}: {apart} from the semantic form");
            }
            if generating.contains(&form)
                && let Some(greedy) = goldens.integers(&format!("{prompt}.greedy"))
            {
                assert_eq!(model.greedy(&ids, greedy.len()).unwrap(), greedy, "{case}");
            }
            println!("{case}: hidden {hidden:.1e}, logits {logits:.1e}, from the semantic form {apart:.1e}");
            semantic.get_or_insert(trace);
        }
    }
}

#[test]
fn gemma3_text() {
    check_folder(&fixture("gemma3_text"), &["p0", "p1", "p2"], 32, &FORMS);
}

#[test]
fn gemma4_text() {
    check_folder(&fixture("gemma4_text"), &["p0", "p1", "p2"], 32, &FORMS);
}

#[test]
fn text_of_a_multimodal_gemma4() {
    check_folder(&fixture("gemma4_mm"), &["p0"], 32, &FORMS);
}

#[test]
fn qwen3() {
    check_folder(&fixture("qwen3"), &["p0", "p1", "p2"], 32, &FORMS);
}

#[test]
fn embeddinggemma() {
    check_folder(&fixture("embeddinggemma"), &["p0", "p1", "p2"], 32, &[]);
}

#[test]
fn embeddinggemma2() {
    check_folder(&fixture("embeddinggemma2"), &["p0", "p1", "p2"], 32, &[]);
}

#[test]
fn demo_model() {
    // In decomposed form, every token reads every weight through a general product, so only the
    // semantic form generates.
    check_folder(&root().join("demo-model"), &["p0", "p1", "p2", "p3", "p4", "p5"], 128, &[Form::Semantic]);
}

/// Mean negative log-likelihood of the held-out rows, in nats per predicted token.
const HELD_OUT: f64 = 4.204_872_883_778_972;

#[test]
#[ignore = "17 351 tokens take half a minute on two cores; `--ignored` runs it"]
fn demo_model_likelihood() {
    let directory = root().join("demo-model");
    let graph = graph(&directory);
    let rows = Goldens::read(&directory.join("eval.safetensors"));
    let (ids, lengths) = (rows.integers("input_ids").unwrap(), rows.integers("lengths").unwrap());
    let arrangement = Arrangement { rows: 256, ..Arrangement::whole(256) };
    let model = ReferenceModel::new(&graph, arrangement).unwrap();
    let (mut sum, mut count) = (0.0, 0);
    for (row, &length) in ids.chunks_exact(256).zip(&lengths) {
        let nats = model.negative_log_likelihoods(&row[..length as usize]).unwrap();
        sum += nats.iter().sum::<f64>();
        count += nats.len();
    }
    let mean = sum / count as f64;
    println!("{count} tokens, {mean} nats, {HELD_OUT} expected");
    assert!((mean - HELD_OUT).abs() < 1e-3, "{mean} nats instead of {HELD_OUT}");
}
