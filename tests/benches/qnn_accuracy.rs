//! Accuracy of small models in several formats and cuts under Qualcomm's compiler and simulator.
//! Prints a table in Markdown, or JSON after `--format json`.
//!
//! Every shard alone gets the reference's values and is compared with it. The whole chain scores
//! held-out text and chooses tokens. Names of formats or checkpoints select cases.

use std::path::Path;

use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde_json::Value;
use shardwright_test_checkpoints::{Fill, Spec, write_real};
use shardwright_tests::checkpoints::DEMO_MODEL;
use shardwright_tests::formats::{Effort, Recorded};
use shardwright_tests::qnn::{Case, Finding, float_nll, library};

const RANDOM: &str = "tests/fixtures/gemma4_text";
const W8: &str = "w8-per-channel/a16/a8";
const W8_WIDE_STATES: &str = "w8-per-channel/a16/a16";
const W4: &str = "w4-per-channel[head=w8-per-channel]/a16/a8";
const W4_BLOCKS: &str = "w4-block32-stepped[head=w8-per-channel]/a16/a8";
const MIX: &str =
    "w4-per-channel[mlp-input=w2-per-channel][mlp-output=w2-per-channel][head=w8-per-channel]/a16/a8";
const F16: &str = "f16/f16/f16";

const fn case(checkpoint: &'static str, formats: &'static str, pieces: u32) -> Case {
    Case { checkpoint, formats, pieces, soc: "sm8850", context: None }
}

const CASES: [Case; 17] = [
    case(DEMO_MODEL, W8, 1),
    case(DEMO_MODEL, W8, 2),
    case(DEMO_MODEL, W8, 3),
    case(DEMO_MODEL, W8_WIDE_STATES, 2),
    case(DEMO_MODEL, W4, 2),
    case(DEMO_MODEL, W4_BLOCKS, 2),
    case(DEMO_MODEL, MIX, 2),
    case(DEMO_MODEL, F16, 2),
    case(RANDOM, W8_WIDE_STATES, 1),
    case(RANDOM, W8_WIDE_STATES, 2),
    case(RANDOM, W8_WIDE_STATES, 3),
    case(RANDOM, W8, 1),
    case(RANDOM, W8, 2),
    case(RANDOM, W8, 3),
    case(RANDOM, F16, 2),
    case(RANDOM, W4, 2),
    case(RANDOM, MIX, 2),
];

/// The name that selects two layers of Gemma 4 E2B: sliding and full attention, at their real
/// widths, with random weights and a small vocabulary.
const E2B_LAYERS: &str = "e2b-layers";

/// One block and some single rows of each prompt through every shard alone.
const EFFORT: Effort = Effort { rows: 64, steps: 2, greedy: 32 };

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    let as_json = arguments.windows(2).any(|pair| pair == ["--format", "json"]);
    let named: Vec<&String> =
        arguments.iter().filter(|word| !["--format", "json"].contains(&word.as_str())).collect();
    if !library() {
        return;
    }
    let cache = tempfile::tempdir().expect("a temporary folder");
    if named.iter().any(|word| *word == E2B_LAYERS) {
        return layers_of_e2b(cache.path());
    }
    // One recorded prompt, and the beginnings of some held-out rows, because a simulated step is
    // slow.
    let part = Recorded::some(1, 24, 32);
    let float = float_nll(DEMO_MODEL, &part, cache.path());
    eprintln!("the demo model in float: {float:.4} nats per token of the same text");
    let mut rows = Vec::new();
    if !as_json {
        println!("{}", Finding::HEAD);
    }
    for case in &CASES {
        let is_named =
            |word: &&&String| case.checkpoint == ***word || case.formats.starts_with(word.as_str());
        if !named.is_empty() && !named.iter().any(|word| is_named(&word)) {
            continue;
        }
        let recorded = (case.checkpoint == DEMO_MODEL).then_some(&part);
        let finding = Finding::of(&case.verify(recorded, EFFORT, cache.path()));
        let finding = if recorded.is_some() { finding.against(float) } else { finding };
        match as_json {
            true => rows.push(finding.json(case)),
            false => println!("{}", finding.row(case)),
        }
        // The measured formats that keep the model's quality must be accurate.
        if [W8_WIDE_STATES, F16].contains(&case.formats)
            || (case.formats == W8 && case.checkpoint == DEMO_MODEL)
        {
            assert!(finding.row_p95 <= shardwright_tests::qnn::ROW_P95, "{case:?}: {finding:?}");
        }
    }
    if as_json {
        println!("{:#}", Value::from_iter(rows));
    }
}

/// Compares layers of Gemma 4 E2B with the same quantised graph. Simulating one of their steps
/// takes minutes.
fn layers_of_e2b(cache: &Path) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let spec = Spec {
        vocabulary: 1024,
        layers: "SF".to_owned(),
        kv_shared: 0,
        multimodal: false,
        fill: Fill::Random,
        ..Spec::e2b()
    };
    write_real(&spec, folder.path()).expect("written");
    let ids: Vec<u8> = (0..24_i64).flat_map(|token| (3 + token * 37 % 1000).to_le_bytes()).collect();
    let view = TensorView::new(Dtype::I64, vec![ids.len() / 8], &ids).expect("a list of numbers");
    let goldens = folder.path().join("goldens.safetensors");
    safetensors::serialize_to_file([("p0.input_ids", view)], None, &goldens).expect("written");
    let checkpoint: &'static str = folder.path().to_string_lossy().into_owned().leak();
    println!("{}", Finding::HEAD);
    for formats in [W8, W4] {
        let case = Case { checkpoint, formats, pieces: 1, soc: "soc-72", context: Some(32) };
        let effort = Effort { rows: 24, steps: 1, greedy: 1 };
        let finding = Finding::of(&case.verify(None, effort, cache));
        println!("{}", finding.row(&Case { checkpoint: E2B_LAYERS, ..case }));
        assert!(finding.row_p95 <= shardwright_tests::qnn::ROW_P95, "{finding:?}");
    }
}
