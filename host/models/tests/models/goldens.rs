//! Compares the translations with numbers of the library that defines the families: hidden states
//! of every layer, logits, greedy tokens, sentence vectors. The fixtures' generator defines the key
//! names: `p0.hidden`, `p0.logits`, …

use std::path::{Path, PathBuf};

use safetensors::{Dtype, SafeTensors};
use shardwright_models::{Checkpoint, Family};
use shardwright_reference::{Arrangement, Array, Form, ReferenceModel};

/// Largest accepted differences. Two float32 implementations differ by a tenth of these on random
/// networks.
const HIDDEN: f32 = 5e-3;
const LOGITS: f32 = 1e-2;
const EMBEDDING: f32 = 1e-5;

fn project() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..")
}

struct Goldens<'b>(SafeTensors<'b>);

impl Goldens<'_> {
    fn has(&self, name: &str) -> bool {
        self.0.tensor(name).is_ok()
    }

    fn floats(&self, name: &str) -> Vec<f32> {
        let tensor = self.0.tensor(name).unwrap();
        assert_eq!(tensor.dtype(), Dtype::F32, "{name}");
        tensor.data().as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes)).collect()
    }

    fn ids(&self, name: &str) -> Vec<u32> {
        let tensor = self.0.tensor(name).unwrap();
        assert_eq!(tensor.dtype(), Dtype::I64, "{name}");
        tensor.data().as_chunks::<8>().0.iter().map(|bytes| i64::from_le_bytes(*bytes) as u32).collect()
    }
}

/// Returns the largest absolute difference. NaN counts as infinite.
fn difference(found: &[f32], wanted: &[f32]) -> f32 {
    assert_eq!(found.len(), wanted.len());
    let each = found.iter().zip(wanted).map(|(a, b)| (a - b).abs());
    each.fold(0.0, |worst: f32, d| if d.is_nan() { f32::INFINITY } else { worst.max(d) })
}

fn check(what: &str, found: &[f32], wanted: &[f32], limit: f32) {
    let worst = difference(found, wanted);
    assert!(worst <= limit, "{what} differs by {worst:e}, more than {limit:e}");
    println!("{what}: {worst:.1e}");
}

/// Reorders the combined per-layer inputs: `[layer, row, P]` here, `[row, layer, P]` in the
/// goldens.
fn by_row(array: &Array) -> Vec<f32> {
    let [layers, rows, width] = array.shape()[..] else { panic!("{:?}", array.shape()) };
    let values = array.floats();
    let row_of = |row, layer| &values[(layer * rows + row) * width..][..width];
    (0..rows).flat_map(|row| (0..layers).flat_map(move |layer| row_of(row, layer).iter().copied())).collect()
}

/// Checks every prompt of text alone. Generates `tokens` greedy tokens for each.
fn check_generating(directory: PathBuf, tokens: usize) {
    check_generating_of(&Checkpoint::open(&directory).unwrap(), &directory, tokens);
}

/// Like [`check_generating`], but with the goldens of another directory.
fn check_generating_of(checkpoint: &Checkpoint, directory: &Path, tokens: usize) {
    let bytes = std::fs::read(directory.join("goldens.safetensors")).unwrap();
    let goldens = Goldens(SafeTensors::deserialize(&bytes).unwrap());
    let mut compared = 0;
    for prompt in (0..).take_while(|prompt| goldens.has(&format!("p{prompt}.input_ids"))) {
        let key = |name: &str| format!("p{prompt}.{name}");
        let name = |what: &str| format!("{} prompt {prompt} {what}", checkpoint.facts().name);
        let ids = goldens.ids(&key("input_ids"));
        let placeholders = &checkpoint.graph().assets[0].redirect;
        if ids.iter().any(|id| placeholders.iter().any(|(placeholder, _)| placeholder == id)) {
            // Rows that a tower computes from a picture or sound.
            continue;
        }
        let context = (ids.len() + tokens) as u64;
        let model = ReferenceModel::new(checkpoint.graph(), Arrangement::whole(context)).unwrap();
        let trace = model.trace(&ids).unwrap();
        if goldens.has(&key("hidden")) {
            let wanted = goldens.floats(&key("hidden"));
            let per_layer = wanted.len() / trace.hidden.len();
            for (layer, hidden) in trace.hidden.iter().enumerate() {
                let wanted = &wanted[layer * per_layer..][..per_layer];
                check(&name(&format!("hidden {layer}")), &hidden.floats(), wanted, HIDDEN);
            }
        }
        if goldens.has(&key("final_norm")) {
            let found = &trace.taps["final-norm"];
            check(&name("final norm"), &found.floats(), &goldens.floats(&key("final_norm")), HIDDEN);
        }
        if goldens.has(&key("per_layer")) {
            let found = by_row(trace.per_layer.as_ref().unwrap());
            check(&name("per-layer inputs"), &found, &goldens.floats(&key("per_layer")), 1e-4);
        }
        let start = goldens.ids(&key("logits_start"))[0] as usize;
        let logits = trace.logits.unwrap();
        let vocabulary = logits.shape()[1];
        let found = &logits.floats()[start * vocabulary..];
        check(&name("logits"), found, &goldens.floats(&key("logits")), LOGITS);

        let wanted = &goldens.ids(&key("greedy"))[..tokens];
        assert_eq!(model.greedy(&ids, tokens).unwrap(), wanted, "{}", name("greedy tokens"));
        compared += 1;
    }
    assert!(compared > 0, "no prompt of text alone");
}

#[test]
fn gemma3_text() {
    check_generating(project().join("tests/fixtures/gemma3_text"), 64);
}

#[test]
fn gemma4_text() {
    check_generating(project().join("tests/fixtures/gemma4_text"), 64);
}

#[test]
fn the_text_part_of_gemma4_mm() {
    check_generating(project().join("tests/fixtures/gemma4_mm"), 64);
}

#[test]
fn qwen3() {
    check_generating(project().join("tests/fixtures/qwen3"), 64);
}

#[test]
fn llama_with_linear_scaling_of_positions() {
    check_generating(project().join("tests/fixtures/llama"), 64);
}

#[test]
fn llama_with_slow_pairs_divided() {
    check_generating(project().join("tests/fixtures/llama3"), 64);
}

#[test]
fn llama_with_an_output_matrix_of_its_own() {
    check_generating(project().join("tests/fixtures/tinyllama"), 64);
}

#[test]
fn ministral_with_layers_of_both_types() {
    check_generating(project().join("tests/fixtures/ministral"), 64);
}

#[test]
fn mistral_with_heads_of_their_own_width_and_a_window() {
    check_generating(project().join("tests/fixtures/mistral"), 64);
}

#[test]
fn qwen2_with_biases_and_a_window_in_its_last_layers() {
    check_generating(project().join("tests/fixtures/qwen2"), 64);
}

#[test]
fn smollm3_with_a_layer_that_does_not_turn() {
    check_generating(project().join("tests/fixtures/smollm3"), 64);
}

#[test]
fn granite_with_its_four_factors() {
    check_generating(project().join("tests/fixtures/granite"), 64);
}

#[test]
fn granite4_without_experts_and_recurrent_layers() {
    check_generating(project().join("tests/fixtures/granite4"), 64);
}

#[test]
fn phi4mini_with_heads_that_turn_in_part() {
    check_generating(project().join("tests/fixtures/phi4mini"), 64);
}

#[test]
fn functiongemma() {
    check_generating(project().join("tests/fixtures/functiongemma"), 64);
}

#[test]
fn demo_model() {
    check_generating(project().join("demo-model"), 16);
}

/// Uses the file that llama.cpp's converter makes of the fixture `llama3`: pairs in its order, and
/// the scaling as divisors.
#[test]
fn llama_with_slow_pairs_divided_from_a_gguf_file() {
    let checkpoint = Checkpoint::open(project().join("tests/fixtures/gguf/llama3.gguf")).unwrap();
    check_generating_of(&checkpoint, &project().join("tests/fixtures/llama3"), 64);
}

/// Uses the files that llama.cpp's converter makes of fixtures of other families, with the number
/// of facts that each omits.
#[test]
fn other_families_from_gguf_files() {
    for (name, assumed) in [("smollm3", 2), ("granite", 1), ("granite4", 1), ("phi4mini", 1)] {
        let path = project().join(format!("tests/fixtures/gguf/{name}.gguf"));
        let checkpoint = Checkpoint::open(path).unwrap();
        let of_folder = Checkpoint::open(project().join("tests/fixtures").join(name)).unwrap();
        let families = (checkpoint.family(), checkpoint.graph().context);
        assert_eq!(families, (of_folder.family(), of_folder.graph().context), "{name}");
        let notes = checkpoint.notes().iter().filter(|note| note.starts_with("assumed: ")).count();
        assert_eq!(notes, assumed, "{name}: {:?}", checkpoint.notes());
        assert!(checkpoint.unused_tensors().iter().all(|tensor| tensor.name.starts_with("rope_factors_")));
        check_generating_of(&checkpoint, &project().join("tests/fixtures").join(name), 64);
    }
}

#[test]
fn embeddinggemma() {
    check_embedding(
        &Checkpoint::open(project().join("tests/fixtures/embeddinggemma")).unwrap(),
        "embeddinggemma",
    );
}

#[test]
fn embeddinggemma2() {
    let checkpoint = Checkpoint::open(project().join("tests/fixtures/embeddinggemma2")).unwrap();
    assert_eq!(checkpoint.family(), Family::EmbeddingGemma2);
    check_embedding(&checkpoint, "embeddinggemma2");
}

#[test]
fn embeddinggemma_from_a_gguf_file() {
    let checkpoint = Checkpoint::open(project().join("tests/fixtures/gguf/embeddinggemma.gguf")).unwrap();
    assert_eq!(checkpoint.family(), Family::EmbeddingGemma);
    let notes = checkpoint.notes();
    for assumed in
        ["layer of number 6", "sliding layers of 10000.0", "the root of 32", "divided by their length"]
    {
        assert!(notes.iter().any(|note| note.contains(assumed)), "no {assumed} in {notes:?}");
    }
    assert_eq!(notes.len(), 4, "{notes:?}");
    check_embedding(&checkpoint, "embeddinggemma");
}

/// Compares a model with the goldens of a fixture.
fn check_embedding(checkpoint: &Checkpoint, fixture: &str) {
    let directory = project().join("tests/fixtures").join(fixture);
    let bytes = std::fs::read(directory.join("goldens.safetensors")).unwrap();
    let goldens = Goldens(SafeTensors::deserialize(&bytes).unwrap());
    for prompt in 0..3 {
        let key = |name: &str| format!("p{prompt}.{name}");
        let name = |what: &str| format!("prompt {prompt} {what}");
        let ids = goldens.ids(&key("input_ids"));
        // More rows than the text has. The extra rows must not affect the result.
        let model =
            ReferenceModel::new(checkpoint.graph(), Arrangement::whole(ids.len() as u64 + 7)).unwrap();
        let trace = model.trace(&ids).unwrap();
        let wanted = goldens.floats(&key("hidden"));
        let per_layer = wanted.len() / trace.hidden.len();
        for (layer, hidden) in trace.hidden.iter().enumerate() {
            let wanted = &wanted[layer * per_layer..][..per_layer];
            check(&name(&format!("hidden {layer}")), &hidden.floats(), wanted, HIDDEN);
        }
        if goldens.has(&key("per_layer")) {
            let found = by_row(trace.per_layer.as_ref().unwrap());
            check(&name("per-layer inputs"), &found, &goldens.floats(&key("per_layer")), 1e-4);
        }
        for (tap, golden) in [
            ("final-norm", "final_norm"),
            ("pooled", "pooled"),
            ("projected", "projected"),
            ("dense.1", "dense1"),
            ("dense.2", "dense2"),
        ] {
            assert_eq!(trace.taps.contains_key(tap), goldens.has(&key(golden)), "{tap}");
            if !goldens.has(&key(golden)) {
                continue;
            }
            check(&name(tap), &trace.taps[tap].floats(), &goldens.floats(&key(golden)), HIDDEN);
        }
        let vector = trace.embedding.unwrap();
        check(&name("embedding"), &vector.floats(), &goldens.floats(&key("embedding")), EMBEDDING);
    }
}

#[test]
fn cut_chunked_and_decomposed_graphs_compute_the_same_model() {
    for fixture in [
        "gemma3_text",
        "gemma4_text",
        "gemma4_mm",
        "llama",
        "llama3",
        "tinyllama",
        "mistral",
        "ministral",
        "qwen2",
        "qwen3",
        "smollm3",
        "granite",
        "granite4",
        "phi4mini",
    ] {
        let checkpoint = Checkpoint::open(project().join("tests/fixtures").join(fixture)).unwrap();
        let graph = checkpoint.graph();
        // Longer than the window, and ending in the middle of a chunk.
        let ids: Vec<u32> = (0..45).map(|index| 24 + index * 13 % 350).collect();
        let logits = |cuts: Vec<u32>, form| {
            let arrangement = Arrangement { context: 64, rows: 8, cuts, form };
            let model = ReferenceModel::new(graph, arrangement).unwrap();
            let mut sequence = model.start();
            model.prefill(&mut sequence, &ids[..44]).unwrap();
            model.decode(&mut sequence, &ids[44..], false).unwrap().logits.unwrap().into_floats()
        };
        let whole = logits(vec![], Form::Semantic);
        for cut in 1..graph.layers() {
            assert!(logits(vec![cut], Form::Semantic) == whole, "{fixture} cut at {cut}");
        }
        for form in [Form::Decomposed, Form::ByRuntime] {
            check(&format!("{fixture} {form:?}"), &logits(vec![2], form), &whole, LOGITS / 10.0);
        }
    }
}
