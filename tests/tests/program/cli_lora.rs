//! `--lora` as a user passes it: adapters change replies, bundles record them, and wrong ones are
//! refused.

use std::fs;
use std::path::Path;

use serde_json::Value;
use sha2::{Digest, Sha256};
use shardwright_tests::bundles::Compiled;
use shardwright_tests::checkpoints::Copy;
use shardwright_tests::program::{Run, shardwright};
use shardwright_tests::tree;
use tempfile::TempDir;

use crate::trust::refused;

const BASE: &str = "tests/fixtures/tinyllama";
const ADAPTER: &str = "tests/fixtures/lora/tinyllama";
const FUSED: &str = "tests/fixtures/phi4mini";
const FUSED_ADAPTER: &str = "tests/fixtures/lora/phi4mini";

const ARGUMENT: i32 = 2;
const MISSING: i32 = 3;
const INVALID: i32 = 4;
const UNSUPPORTED: i32 = 5;
const INCOMPATIBLE: i32 = 6;
const STRICT: i32 = 9;

fn reply(model: impl AsRef<std::ffi::OsStr>) -> Run {
    let greedy = ["--raw", "--prompt", "In the beginning", "--greedy", "--max-tokens", "12"];
    shardwright(["run"]).argument(model).arguments(greedy)
}

fn hash(adapter: &str, file: &str) -> String {
    let bytes = fs::read(tree::root().join(adapter).join(file)).expect("a file");
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Returns a copy of an adapter with changed settings.
fn with(adapter: &str, change: impl FnOnce(&mut Value)) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for name in ["adapter_config.json", "adapter_model.safetensors"] {
        fs::copy(tree::root().join(adapter).join(name), folder.path().join(name)).expect("copied");
    }
    let path = folder.path().join("adapter_config.json");
    let mut config = serde_json::from_slice(&fs::read(&path).expect("settings")).expect("JSON");
    change(&mut config);
    fs::write(&path, config.to_string()).expect("written");
    folder
}

#[test]
fn adapters_change_replies_and_bundles_record_them() {
    let plain = reply(FUSED).succeeds();
    let adapted = reply(FUSED).arguments(["--lora", FUSED_ADAPTER]).outcome();
    assert_eq!(adapted.code, Some(0), "{}", adapted.stderr);
    assert_ne!(adapted.stdout, plain);
    let note = "adapter `phi4mini` is merged into 16 tensors with scale 1";
    assert!(adapted.stderr.contains(note), "{}", adapted.stderr);
    // A scale of 0 changes no weight, and two halves are not a whole one in floats of 16 bits.
    let none = reply(FUSED).arguments(["--lora", &format!("{FUSED_ADAPTER}=0")]).succeeds();
    assert_eq!(none, plain);

    let half = format!("{FUSED_ADAPTER}=0.5");
    let compile = || shardwright(["compile", FUSED, "--lora", FUSED_ADAPTER, "--lora", &half]);
    let bundle = Compiled::by(compile());
    let both = ["--lora", FUSED_ADAPTER, "--lora", &half];
    assert_eq!(reply(bundle.path()).succeeds(), reply(FUSED).arguments(both).succeeds());
    let recorded = bundle.variant_json()["options"]["lora"].clone();
    let expected = |scale: f64| {
        serde_json::json!({
            "name": "phi4mini", "scale": scale,
            "config": hash(FUSED_ADAPTER, "adapter_config.json"),
            "weights": hash(FUSED_ADAPTER, "adapter_model.safetensors"),
        })
    };
    assert_eq!(recorded, serde_json::json!([expected(1.0), expected(0.5)]));
    let inspected = shardwright(["inspect"]).argument(bundle.path()).succeeds();
    let hash = hash(FUSED_ADAPTER, "adapter_model.safetensors");
    assert!(inspected.contains("phi4mini") && inspected.contains(&hash), "{inspected}");

    // Equal inputs give an equal bundle, wherever the adapter is.
    let again = Compiled::by(compile());
    assert_eq!(fs::read(bundle.manifest()).expect("read"), fs::read(again.manifest()).expect("read"));

    let words = ["--lora was decided when", "compile the checkpoint again with --lora"];
    refused(reply(bundle.path()).arguments(["--lora", FUSED_ADAPTER]), ARGUMENT, &words);
    let verify = || shardwright(["verify", FUSED, "--bundle"]).argument(bundle.path());
    verify().arguments(both).succeeds();
    refused(verify(), INCOMPATIBLE, &["LoRA adapters `phi4mini`, `phi4mini`", "`--lora`"]);
    refused(verify().arguments(["--lora", FUSED_ADAPTER]), INCOMPATIBLE, &["was compiled from checkpoint"]);
}

#[test]
fn every_command_that_reads_weights_merges_adapters() {
    // The reference evaluator reads the merged weights too, and recorded outputs of the base
    // differ.
    let verified = shardwright(["verify", BASE, "--lora", ADAPTER]).outcome();
    assert_eq!(verified.code, Some(0), "{}{}", verified.stdout, verified.stderr);
    assert!(verified.stderr.contains("without adapters"), "{}", verified.stderr);
    let differs = shardwright(["verify", BASE, "--lora", ADAPTER, "--golden", BASE]).outcome();
    assert_eq!(differs.code, Some(1), "{}{}", differs.stdout, differs.stderr);

    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = folder.path().join("text");
    fs::write(&text, "In the beginning God created the heaven and the earth. ".repeat(8)).expect("written");
    let measured = shardwright(["perplexity", BASE, "--lora", ADAPTER, "--against", BASE, "--window", "32"])
        .argument("--text")
        .argument(&text)
        .json();
    let divergence = measured["against"]["kl"]["mean"]["value"].as_f64();
    let divergence = divergence.unwrap_or_else(|| panic!("{measured}"));
    assert!(divergence > 0.1, "the reference has no adapter: {measured}");
    let planned = shardwright(["plan", BASE, "--lora", ADAPTER]).succeeds();
    assert!(planned.contains("adapter `tinyllama` is merged into"), "{planned}");
    let bench = ["--prompt-tokens", "8", "--generated-tokens", "2", "--repetitions", "1"];
    let timed = shardwright(["bench", BASE, "--lora", ADAPTER]).arguments(bench).outcome();
    let shown = timed.stdout + &timed.stderr;
    assert!(timed.code == Some(0) && shown.contains("adapter `tinyllama` is merged into"), "{shown}");
    let losses = |more: &[&str]| {
        let formats = ["sensitivity", BASE, "--formats", "w4-block32/f32/f32", "--minutes", "0"];
        shardwright(formats).arguments(more).json()["losses"].clone()
    };
    assert_ne!(losses(&["--lora", ADAPTER]), losses(&[]));
}

#[test]
fn wrong_adapters_are_refused() {
    let run = |adapter: &Path| reply(BASE).argument("--lora").argument(adapter);
    let dora = with(ADAPTER, |config| config["use_dora"] = true.into());
    refused(run(dora.path()), UNSUPPORTED, &["DoRA", "adapter_config.json", "merge_and_unload"]);
    let other = with(ADAPTER, |config| config["peft_type"] = "IA3".into());
    refused(run(other.path()), UNSUPPORTED, &["`peft_type` is `IA3`"]);
    let rank = with(ADAPTER, |config| config["r"] = 5.into());
    refused(run(rank.path()), INVALID, &["rank 5", "adapter_model.safetensors"]);
    refused(run(Path::new(FUSED_ADAPTER)), INCOMPATIBLE, &["gate_up_proj", "trained on"]);
    refused(run(Path::new("no/such/folder")), MISSING, &["adapter_config.json", "save_pretrained"]);
    refused(run(Path::new(&format!("{FUSED_ADAPTER}=half"))), ARGUMENT, &["`half` is not a number"]);
    refused(run(Path::new(&format!("{BASE}/config.json"))), ARGUMENT, &["is a file", "name the folder"]);
    let other = with(ADAPTER, |config| config["base_model_name_or_path"] = "owner/other".into());
    // Another base model is reported.
    let reported = run(other.path()).outcome();
    assert!(reported.stderr.contains("`owner/other`"), "{}", reported.stderr);
    refused(run(other.path()).argument("--strict"), STRICT, &["`base_model_name_or_path`"]);
}

/// Next to the weights, an adapter is neither applied nor dropped.
#[test]
fn an_adapter_in_the_folder_of_the_model_is_refused() {
    for name in ["adapter_config.json", "adapter_model.safetensors", "adapter_model.bin"] {
        let beside = Copy::of(BASE).with(name, "{}");
        for run in [reply(beside.path()), shardwright(["plan"]).argument(beside.path())] {
            refused(run, UNSUPPORTED, &["has an adapter, which is not applied", name, "--lora"]);
        }
    }
}
