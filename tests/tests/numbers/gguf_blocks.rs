//! Models whose matrices are stored as GGUF blocks of one type run with activations in 8 bits. Each
//! plan compiles, the results are near the oracle, and no cut, chunk or thread changes a bit.

use std::fs;

use shardwright_build::stored_formats;
use shardwright_gguf::TensorType;
use shardwright_graph::{Encodings, Graph, Ranges};
use shardwright_models::Checkpoint;
use shardwright_reference::{Arrangement, ReferenceModel};
use shardwright_test_checkpoints::{GgufHead, Random};
use shardwright_tests::chain::{Bench, Cut, menu, tokens};
use shardwright_vocabulary::{ActivationFormat, FormatTuple, StateFormat, WeightFormat};

/// Largest allowed difference from the oracle, relative to its largest value, if every activation
/// is rounded to the same step.
const BOUND: f64 = 1e-5;

/// The bound if an activation near the middle between two steps is rounded to the other side.
const OTHER_STEP: f64 = 1e-1;

/// Numbers that the weights of one type are generated from. In at least one of these models, no
/// activation is that near the middle.
const SEEDS: [u64; 3] = [1, 2, 3];

const LAYERS: usize = 2;

const CONFIG: &str = r#"{
  "model_type": "qwen3",
  "architectures": ["Qwen3ForCausalLM"],
  "vocab_size": 40,
  "hidden_size": 256,
  "intermediate_size": 256,
  "num_hidden_layers": 2,
  "num_attention_heads": 2,
  "num_key_value_heads": 1,
  "head_dim": 128,
  "max_position_embeddings": 64,
  "rms_norm_eps": 1e-06,
  "tie_word_embeddings": true,
  "layer_types": ["full_attention", "full_attention"]
}"#;

/// Returns the tensors with their extents, the innermost first.
fn tensors() -> Vec<(String, Vec<u64>)> {
    let of_layer: [(&str, &[u64]); 11] = [
        ("attn_norm", &[256]),
        ("attn_q", &[256, 256]),
        ("attn_k", &[256, 128]),
        ("attn_v", &[256, 128]),
        ("attn_output", &[256, 256]),
        ("attn_q_norm", &[128]),
        ("attn_k_norm", &[128]),
        ("ffn_norm", &[256]),
        ("ffn_gate", &[256, 256]),
        ("ffn_up", &[256, 256]),
        ("ffn_down", &[256, 256]),
    ];
    let layers = (0..LAYERS).flat_map(|layer| {
        of_layer.iter().map(move |(name, shape)| (format!("blk.{layer}.{name}.weight"), shape.to_vec()))
    });
    let around =
        [("token_embd.weight".to_owned(), vec![256, 40]), ("output_norm.weight".to_owned(), vec![256])];
    around.into_iter().chain(layers).collect()
}

/// Returns the offsets of the binary16 numbers of a block: the scale, and the factor of minimums.
fn numbers(kind: TensorType) -> &'static [usize] {
    match kind {
        TensorType::Q4_1 | TensorType::Q5_1 | TensorType::Q4_K | TensorType::Q5_K => &[0, 2],
        TensorType::Q2_K => &[80, 82],
        TensorType::Q3_K => &[108],
        TensorType::Q6_K => &[208],
        TensorType::MXFP4 => &[],
        _ => &[0],
    }
}

/// Returns the bits of a normal binary16, rounded towards zero.
fn half(value: f32) -> u16 {
    let bits = value.to_bits();
    ((bits >> 16) & 0x8000) as u16 | (((bits & 0x7fff_ffff) >> 13) - 0x1_c000) as u16
}

/// Returns random blocks of `count` values. The values have a mean near 0 and a deviation of a
/// sixteenth to an eighth. Products of their scales have more digits than a binary16.
fn blocks(kind: TensorType, count: u64, random: &mut Random) -> Vec<u8> {
    let (values, bytes) = kind.block();
    let grouping = kind.grouping().expect("a type of blocks");
    let middle = (f32::from(grouping.range.0) + f32::from(grouping.range.1)) / 2.0;
    // Types without a superblock add their minimum, the others subtract it.
    let of_minimum = if grouping.superblock == 0 { -middle } else { middle };
    let mut blocks: Vec<u8> = (0..count / values * bytes).map(|_| random.bits() as u8).collect();
    let scaled = |blocks: &mut [u8], exponent: i32| {
        let scale = (1.0 + 333.0 / 1024.0) * 2.0_f32.powi(exponent);
        for block in blocks.chunks_exact_mut(bytes as usize) {
            for (&at, factor) in numbers(kind).iter().zip([1.0, of_minimum]) {
                block[at..at + 2].copy_from_slice(&half(scale * factor).to_le_bytes());
            }
            if kind == TensorType::MXFP4 {
                block[0] = (127 + exponent) as u8;
            }
        }
    };
    scaled(&mut blocks, 0);
    let decoded = kind.values(&blocks).expect("values");
    let squares: f64 = decoded.iter().map(|value| f64::from(*value).powi(2)).sum();
    let deviation = (squares / count as f64).sqrt();
    scaled(&mut blocks, -((8.0 * deviation).log2().ceil().min(14.0) as i32));
    blocks
}

/// Reads a model whose matrices are random blocks of a type.
fn stored_in(kind: TensorType, seed: u64) -> Graph {
    let (tensors, mut random) = (tensors(), Random::new(seed, kind.name()));
    let mut file = GgufHead::new("qwen3").bytes();
    file[8..16].copy_from_slice(&(tensors.len() as u64).to_le_bytes());
    let mut data: Vec<u8> = Vec::new();
    for (name, shape) in &tensors {
        let (is_matrix, count) = (shape.len() == 2, shape.iter().product::<u64>());
        file.extend((name.len() as u64).to_le_bytes());
        file.extend(name.bytes());
        file.extend((shape.len() as u32).to_le_bytes());
        shape.iter().for_each(|extent| file.extend(extent.to_le_bytes()));
        file.extend(if is_matrix { kind as u32 } else { TensorType::F32 as u32 }.to_le_bytes());
        file.extend((data.len() as u64).to_le_bytes());
        match is_matrix {
            true => data.extend(blocks(kind, count, &mut random)),
            false => data.extend((0..count).flat_map(|_| 1.0_f32.to_le_bytes())),
        }
        data.resize(data.len().next_multiple_of(32), 0);
    }
    file.resize(file.len().next_multiple_of(32), 0);
    file.extend(data);
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("config.json"), CONFIG).expect("written");
    fs::write(folder.path().join("model.gguf"), file).expect("written");
    // The mapped file stays readable after the folder is deleted.
    Checkpoint::open(folder.path()).unwrap_or_else(|error| panic!("{kind}: {error}")).into_graph()
}

/// Plans, compiles and runs the model. Returns the last logits, and whether the shim rewrote
/// products that it does not support.
fn logits(
    graph: &Graph,
    formats: &FormatTuple,
    ids: &[u32],
    threads: u32,
    rows: u32,
    cut: &Cut,
) -> (Vec<f32>, bool) {
    let tuples = std::slice::from_ref(formats);
    let bench = Bench::cpu_in_formats(graph, &menu(64, &[rows], &[1]), threads, tuples);
    let built = bench.build(cut);
    let is_rewritten = built.iter().any(|shard| !shard.rewritten.is_empty());
    let chain = bench.assemble(&built, &vec![0; built.len()]).unwrap_or_else(|error| panic!("{error}"));
    let mut session = chain.session().expect("a session");
    session.append(ids).unwrap_or_else(|error| panic!("{error}"));
    (session.logits().expect("logits follow an append").to_vec(), is_rewritten)
}

/// Runs a model twice, and returns the largest difference of its logits from the oracle, relative
/// to the largest logit, and whether products were rewritten. The runs differ in threads, rows and
/// cut, but not in a bit.
fn difference(graph: &Graph, formats: &FormatTuple) -> (f64, bool) {
    let ids = tokens(graph, 4);
    let (found, is_rewritten) = logits(graph, formats, &ids, 1, 4, &Cut::default());
    let (other, _) = logits(graph, formats, &ids, 3, 3, &Cut::before(&[1]));
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<u32>>();
    assert!(bits(&found) == bits(&other), "{formats}");
    let none = Ranges::new();
    let encodings = Encodings::of(formats, &none);
    let model = ReferenceModel::new_encoded(graph, Arrangement::whole(64), encodings);
    let all = model.and_then(|model| model.logits(&ids)).expect("the oracle's logits").into_floats();
    let expected = &all[all.len() - found.len()..];
    let largest = expected.iter().fold(0.0, |largest: f32, value| largest.max(value.abs()));
    assert!(largest > 0.0 && largest.is_finite(), "{formats}: {largest}");
    let differences = found.iter().zip(expected).map(|(found, expected)| f64::from(found - expected).abs());
    (differences.fold(0.0, f64::max) / f64::from(largest), is_rewritten)
}

/// A plan for a CPU has these formats by default.
#[test]
fn stored_blocks_of_32_run_in_their_rounded_formats() {
    for (kind, name) in [(TensorType::Q8_0, "w8-block32"), (TensorType::Q4_0, "w4-block32")] {
        let graph = stored_in(kind, SEEDS[0]);
        let formats = stored_formats(&graph).rounded().expect("blocks of integers");
        assert_eq!(formats.to_string(), format!("{name}/a8-dynamic-block32/f16"));
        // A state near the middle between two 16-bit floats may be rounded to the other one.
        let (found, is_rewritten) = difference(&graph, &formats);
        assert!(!is_rewritten && found <= OTHER_STEP, "{kind}: {found}");
    }
}

#[test]
fn every_type_of_blocks_runs_with_activations_in_8_bits() {
    for kind in TensorType::ALL.iter().copied().filter(|kind| kind.grouping().is_some()) {
        let graphs = SEEDS.map(|seed| stored_in(kind, seed));
        for activations in [ActivationFormat::A8Dynamic, ActivationFormat::A8DynamicBlock32] {
            let formats = FormatTuple::uniform(WeightFormat::AsStored, activations, StateFormat::F32);
            let found = graphs.each_ref().map(|graph| difference(graph, &formats));
            assert!(found.iter().all(|(_, rewritten)| !rewritten), "{kind} in {formats}: {found:?}");
            let least = found.iter().fold(f64::INFINITY, |least, (found, _)| found.min(least));
            assert!(least <= BOUND, "{kind} in {formats}: {found:?}");
            assert!(found.iter().all(|(found, _)| *found <= OTHER_STEP), "{kind} in {formats}: {found:?}");
        }
    }
}
