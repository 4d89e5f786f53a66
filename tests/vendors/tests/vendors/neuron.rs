//! MediaTek's shim over the simulator of its library, from a checkpoint to text, compared with the
//! reference in both lowerings.
//!
//! A simulator tests the calls of the shim and how it reads results, not the behaviour of a chip.

use std::ops::Range;
use std::sync::{PoisonError, RwLock};

use shardwright::Pass;
use shardwright_graph::{ComponentKind, Encodings, EntryGraph, EntryOptions, EntryPoint, legalise_encoded};
use shardwright_models::Checkpoint;
use shardwright_shims::ShimRegistry;
use shardwright_test_checkpoints::cases;
use shardwright_tests::cache::Cache;
use shardwright_tests::checkpoints::{
    DEMO_MODEL, EMBEDDING_FIXTURE, EMBEDDING_FIXTURES, MULTIMODAL_FIXTURE, further_cases, text_fixtures,
};
use shardwright_tests::formats::{Effort, Recorded};
use shardwright_tests::neuron::{A16W8, Case, Shim};
use shardwright_tests::program::shardwright;
use shardwright_tests::qnn::{Finding, LOSS, float_nll};
use shardwright_tests::tower_cases::tower;
use shardwright_tests::{profiles, tree};
use shardwright_vocabulary::{EntryKind, EntryName, FormatTuple, Provenance};

use crate::{assert_close, context, cosine, vector};

const EFFORT: Effort = Effort { rows: 32, steps: 2, greedy: 8 };

/// Clients name the processor in an environment variable of the process, so tests of two processors
/// must not run at the same time. Tests of `mt6989` share this lock. Tests of another processor
/// lock it exclusively.
pub static PROCESSOR: RwLock<()> = RwLock::new(());

fn fixture(checkpoint: &'static str, lowering: &'static str) {
    let _usual = PROCESSOR.read().unwrap_or_else(PoisonError::into_inner);
    let cache = Cache::for_test();
    let case = Case { checkpoint, pieces: 2, lowering, soc: "mt6989", context: context() };
    let finding = Finding::of(&case.verify(None, EFFORT, cache.path()));
    println!("{lowering}: {}", finding.row(&case.table_case()));
    assert_close(&finding, &case);
}

#[test]
fn gemma3_gives_the_reference_s_numbers() {
    fixture("tests/fixtures/gemma3_text", "lean");
}

#[test]
fn gemma4_gives_the_reference_s_numbers() {
    fixture("tests/fixtures/gemma4_text", "lean");
}

#[test]
fn gemma4_without_fused_operations_gives_the_reference_s_numbers() {
    fixture("tests/fixtures/gemma4_text", "plain");
}

#[test]
fn qwen3_gives_the_reference_s_numbers() {
    fixture("tests/fixtures/qwen3", "lean");
}

#[test]
fn further_families_give_the_reference_s_numbers() {
    further_cases().iter().for_each(|checkpoint| fixture(checkpoint, "lean"));
}

/// Covers biases of queries, keys and values, and a window in half of the layers.
#[test]
fn qwen2_without_fused_operations_gives_the_reference_s_numbers() {
    fixture("tests/fixtures/qwen2", "plain");
}

#[test]
fn encoders_give_the_reference_s_numbers() {
    EMBEDDING_FIXTURES.into_iter().for_each(|checkpoint| fixture(checkpoint, "lean"));
}

/// Whole towers. A thorough run covers both lowerings.
#[test]
fn towers_give_the_reference_s_numbers() {
    let _usual = PROCESSOR.read().unwrap_or_else(PoisonError::into_inner);
    let cache = Cache::for_test();
    for lowering in &["lean", "plain"][..cases(1, 2)] {
        let case =
            Case { checkpoint: MULTIMODAL_FIXTURE, pieces: 1, lowering, soc: "mt6989", context: context() };
        let shim = Shim::with(lowering);
        let open = case.options(&shim, cache.path());
        for (pass, formats, cosine) in [
            (Pass::Clip, A16W8, 0.999),
            (Pass::Clip, "f16/f16/f16", 0.9999),
            (Pass::Picture, A16W8, 0.999),
            (Pass::Picture, "f16/f16/f16", 0.9999),
        ] {
            let tower = tower(&open, pass, formats);
            assert!(tower.soft_rows.cosine_mean >= cosine, "{lowering}: {:?}", tower.soft_rows);
        }
    }
}

#[test]
fn the_demo_model_keeps_its_likelihood() {
    let _alone = PROCESSOR.write().unwrap_or_else(PoisonError::into_inner);
    let cache = Cache::for_test();
    let case =
        Case { checkpoint: DEMO_MODEL, pieces: 2, lowering: "lean", soc: "mt6991", context: context() };
    // One prompt, and the beginnings of some held-out rows.
    let part = Recorded::some(1, cases(32, 24), cases(32, 48));
    assert!(part.rows().len() >= 4, "{}", part.rows().len());
    let report = case.verify(Some(&part), Effort { greedy: 32, ..EFFORT }, cache.path());
    let finding = Finding::of(&report).against(float_nll(DEMO_MODEL, &part, cache.path()));
    println!("lean: {}", finding.row(&case.table_case()));
    assert_close(&finding, &case);
    assert!(finding.nll.1.abs() <= LOSS, "{finding:?}");
    assert_eq!(finding.greedy.1, 32, "{finding:?}");
}

/// A simulator is slow. By default only a small part of the recorded outputs is run, and the
/// omitted part is reported.
#[test]
fn on_a_simulator_little_is_run_unasked_and_that_is_said() {
    // Not the simulator's default chip. It is compiled for in one process and loaded in another.
    let shim = Shim::with("lean");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = folder.path().join("text");
    std::fs::write(&text, "What is a shard?\nAnd it came to pass.\n").expect("written");
    let verify = |arguments: &[&str]| {
        let run =
            shardwright(["verify", DEMO_MODEL, "--soc", "mt6991", "--formats", A16W8, "--planner", "even"]);
        let run = run.argument("--shims").argument(shim.folder()).arguments(["--context", "128"]);
        run.argument("--calibration-text").argument(&text).arguments(arguments)
    };
    let report = verify(&["--on", "simulator"]).json();
    let effort = &report["effort"];
    assert_eq!((&effort["simulated"], &effort["evaluation"]), (&true.into(), &4.into()), "{effort}");
    assert_eq!((&effort["rows"], &effort["steps"], &effort["greedy"]), (&32.into(), &2.into(), &8.into()));
    let left_out = effort["left_out"].as_array().expect("a list");
    let rows = left_out.iter().find(|left| left["what"] == "evaluation rows").expect("rows are left out");
    assert_eq!((&rows["taken"], &rows["of"]), (&4.into(), &111.into()), "{effort}");
    // Exactly that many rows were run.
    assert_eq!(report["tokens"]["text"], "the first evaluation rows", "{report}");
    assert!(
        report["tokens"]["predicted"].as_u64().is_some_and(|tokens| (1..=4 * 31).contains(&tokens)),
        "{report}"
    );
    let greedy = report["tokens"]["greedy_tokens"].as_u64().expect("tokens");
    let prompts = left_out.iter().find(|left| left["what"] == "recorded tokens, chosen greedily");
    assert_eq!(prompts.expect("tokens are left out")["taken"], greedy, "{effort}");

    let text =
        verify(&["--on", "simulator", "--evaluation", "1", "--rows", "8", "--steps", "1", "--greedy", "1"])
            .succeeds();
    for words in [
        "compared on a simulator: at most 8 rows",
        "left out: 110 of 111 evaluation rows",
        "for more: `--all`",
    ] {
        assert!(text.contains(words), "no `{words}` in {text}");
    }
}

#[test]
fn a_sentence_vector_is_that_of_the_model_in_float() {
    let shim = Shim::with("lean");
    let embed = |arguments: &[&str]| {
        let run = shardwright(["embed", EMBEDDING_FIXTURE, "a text", "--context", "32", "--shims"]);
        vector(&run.argument(shim.folder()).arguments(arguments).json())
    };
    let chip = ["--soc", "mt6989", "--on", "simulator", "--formats", A16W8, "--planner", "even"];
    let cosine = cosine(&embed(&[]), &embed(&chip));
    println!("cosine {cosine}");
    assert!(cosine >= 0.999, "cosine {cosine}");
}

/// A planner adds up the operation counts of single layers. For any cut, the sum must equal the
/// number of operations sent to the library.
#[test]
fn the_operations_of_layers_add_up_in_both_lowerings() {
    let tuple: FormatTuple = A16W8.parse().expect("formats");
    let mut counted = Vec::new();
    for lowering in ["lean", "plain"] {
        let shim = Shim::with(lowering);
        let registry = ShimRegistry::builder().directory(shim.folder()).build();
        let instance = registry.open("neuron", "counting", &[]).expect("an instance");
        instance.know(&profiles::chip("mt6989")).expect("a chip");
        let device = instance.devices(Some("mt6989")).expect("answered").remove(0);
        assert!(device.detail.as_ref().is_some_and(|detail| detail.contains(lowering)), "{device:?}");
        let mut sums = Vec::new();
        for checkpoint in text_fixtures().chain([DEMO_MODEL]).chain(EMBEDDING_FIXTURES) {
            let opened = Checkpoint::open(tree::root().join(checkpoint)).expect("a checkpoint");
            let graph = opened.graph().planned(&tuple).expect("planned");
            let layers = graph.layers();
            let points = match graph.is_generative() {
                true => vec![(EntryKind::Prefill, 16), (EntryKind::Decode, 1), (EntryKind::Decode, 4)],
                false => vec![(EntryKind::Encode, 16)],
            };
            for (kind, rows) in points {
                let context = if kind == EntryKind::Encode { 0 } else { 64 };
                let name = EntryName { kind, rows, context };
                let operations = |layers: Range<u32>| -> u64 {
                    let options = EntryOptions::default();
                    let entry =
                        graph.entry(ComponentKind::Decoder, layers, EntryPoint::of(name, 16), options);
                    let Some(entry) = entry.expect("an entry") else { return 0 };
                    let check = |shown: &EntryGraph| instance.check(&device.name, shown, &graph.weights);
                    let legal = legalise_encoded(&entry, &Encodings::counting(&tuple), check);
                    let legal = legal.unwrap_or_else(|error| panic!("{checkpoint} {name}: {error}"));
                    let estimate = instance.estimate(&device.name, &legal.graph, &graph.weights);
                    let estimate = estimate.expect("answered").expect("an estimate");
                    // The estimate uses the roofline of the chip's profile.
                    assert!(estimate.uncosted.is_empty() && estimate.time_microseconds > 0, "{estimate:?}");
                    assert_eq!(estimate.provenance, Provenance::Modelled);
                    estimate.operations
                };
                let sum: u64 = (0..layers).map(|layer| operations(layer..layer + 1)).sum();
                let halves = operations(0..layers / 2) + operations(layers / 2..layers);
                assert_eq!((operations(0..layers), halves), (sum, sum), "{checkpoint} {name} {lowering}");
                sums.push(sum);
            }
        }
        counted.push(sums);
    }
    assert!(counted[0].iter().zip(&counted[1]).all(|(lean, plain)| lean < plain), "{counted:?}");
}
