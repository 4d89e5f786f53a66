//! `shardwright verify` on all recorded outputs, whole and cut: the numbers, the tokens, the texts,
//! and every shard alone.

use serde_json::Value;
use shardwright_test_checkpoints::cases;
use shardwright_tests::bundles::Compiled;
use shardwright_tests::checkpoints::{
    Copy, DEMO_MODEL, EMBEDDING_FIXTURES, FURTHER_FIXTURES, TEXT_FIXTURES, text_fixtures,
};
use shardwright_tests::program::{Run, shardwright};

/// Prepares a run on a fixture that is cut into several shards for a phone, emulated.
fn cut(checkpoint: &str) -> Run {
    // Further fixtures have fewer layers, and each fewer operations.
    let limit = if FURTHER_FIXTURES.contains(&checkpoint) { "ops=100" } else { "ops=200" };
    shardwright(["verify", checkpoint, "--soc", "mt6989", "--on", "cpu", "--limit", limit])
}

/// Like [`cut`], but in floats that the chip supports and that represent the checkpoint's values
/// exactly.
fn cut_exactly(checkpoint: &str) -> Run {
    cut(checkpoint).arguments(["--formats", "f32/f32/f32"])
}

fn list<'v>(value: &'v Value, name: &str) -> &'v [Value] {
    value[name].as_array().unwrap_or_else(|| panic!("no list `{name}` in {value}"))
}

/// Returns the comparison of every shard alone that affects the result.
fn judged(report: &Value) -> &Value {
    let mut judged = list(report, "boundaries").iter().filter(|boundaries| boundaries["judged"] == true);
    let found = judged.next().unwrap_or_else(|| panic!("nothing is judged: {report}"));
    assert!(judged.next().is_none(), "{report}");
    found
}

/// Returns all results of a shard, by name of the entry point.
fn outputs(shard: &Value) -> impl Iterator<Item = (&str, &Value)> {
    list(shard, "entries").iter().flat_map(|entry| {
        let name = entry["entry"].as_str().expect("a name");
        list(entry, "outputs").iter().map(move |output| (name, output))
    })
}

#[test]
fn every_text_fixture_agrees_with_its_goldens() {
    for fixture in text_fixtures() {
        shardwright(["verify", fixture]).succeeds();
    }
}

#[test]
fn embedding_fixtures_agree_with_their_goldens() {
    for fixture in EMBEDDING_FIXTURES {
        shardwright(["verify", fixture]).succeeds();
        let report = cut_exactly(fixture).json();
        assert_eq!(report["passed"], true, "{report}");
        let shards = list(judged(&report), "shards");
        let pooling = shards.last().expect("shards");
        assert!(outputs(pooling).any(|(_, output)| output["what"] == "embedding"), "{pooling}");
    }
}

#[test]
fn some_evaluation_rows_are_compared_with_the_reference() {
    let few = ["--evaluation", "2", "--rows", "24", "--steps", "1", "--greedy", "1"];
    let report = shardwright(["verify", "demo-model"]).arguments(few).json();
    let tokens = &report["tokens"];
    assert_eq!(
        (&tokens["text"], &tokens["source"]),
        (&"the first evaluation rows".into(), &"reference".into())
    );
    assert_eq!((&tokens["predicted"], &tokens["nll_passed"]), (&(2 * 23).into(), &true.into()), "{tokens}");
}

#[test]
fn the_demo_model_agrees_with_its_goldens_and_its_evaluation() {
    let report = shardwright(["verify", DEMO_MODEL]).json();
    assert_eq!((&report["passed"], &report["exact"]), (&true.into(), &true.into()), "{report}");
    let tokens = &report["tokens"];
    assert_eq!((&tokens["text"], &tokens["source"]), (&"evaluation rows".into(), &"recorded".into()));
    assert!(tokens["predicted"].as_u64() > Some(17_000), "{tokens}");
    assert_eq!(tokens["greedy_agreed"], tokens["greedy_tokens"], "{tokens}");
    assert!(tokens["greedy_tokens"].as_u64() > Some(300), "{tokens}");
}

#[test]
fn every_shard_alone_gives_what_the_reference_gives() {
    let sampled = vec![TEXT_FIXTURES[1], FURTHER_FIXTURES[5]];
    for fixture in cases(sampled, text_fixtures().collect()) {
        let report = cut_exactly(fixture).json();
        assert_eq!((&report["passed"], &report["exact"]), (&true.into(), &true.into()), "{report}");
        assert_eq!(report["emulated_on"], "cpu", "{report}");
        assert!(report["decoder_shards"].as_u64() > Some(1), "{report}");
        assert_eq!(list(&report, "boundaries").len(), 1, "{report}");
        let boundaries = judged(&report);
        assert!(boundaries["first_divergent_layer"].is_null(), "{report}");

        let shards = list(boundaries, "shards");
        assert_eq!(shards.len() as u64, report["shards"].as_u64().expect("a count"), "{report}");
        let (mut layers_seen, mut states_seen) = (Vec::new(), 0);
        for shard in shards {
            for (entry, output) in outputs(shard) {
                assert!(output["rows"].as_u64() > Some(0), "{shard}");
                assert!(
                    output["relative_worst"].as_f64().is_some_and(|worst| worst < 1e-4),
                    "{entry} {output}"
                );
                let what = output["what"].as_str().expect("a name");
                if what.starts_with("state ") {
                    states_seen += usize::from(entry.starts_with("prefill"));
                }
                if entry.starts_with("decode_1@") && (what == "hidden" || what.starts_with("layer.")) {
                    layers_seen.extend(output["layer"].as_u64());
                    // The stream is compared as the next layer sees it.
                    assert!(output["after"].as_str().is_some_and(|norm| norm.contains("norm")), "{output}");
                }
            }
        }
        layers_seen.sort_unstable();
        let all: Vec<u64> = (0..layers_seen.len() as u64).collect();
        assert_eq!(layers_seen, all, "every layer once, by tap or as what leaves its shard: {report}");
        assert!(states_seen >= 4, "{report}");
    }
}

#[test]
fn in_other_formats_shards_give_what_the_quantised_graph_gives() {
    let sampled = vec![TEXT_FIXTURES[0], FURTHER_FIXTURES[5]];
    for fixture in cases(sampled, text_fixtures().collect()) {
        let report = cut(fixture).json();
        assert_eq!((&report["passed"], &report["exact"]), (&true.into(), &false.into()), "{report}");
        assert!(report["decoder_shards"].as_u64() > Some(1), "{report}");
        // Numbers of the float checkpoint are shown, but do not affect the result.
        for comparison in list(&report, "comparisons") {
            let what = comparison["what"].as_str().expect("a name");
            assert_eq!(comparison["judged"], ["tokenizer", "chat"].contains(&what), "{comparison}");
        }
        let boundaries = list(&report, "boundaries");
        assert_eq!(boundaries.len(), 2, "{report}");
        let worst = |boundaries: &Value| {
            let shards = list(boundaries, "shards").iter().flat_map(outputs);
            shards.filter_map(|(_, output)| output["relative_worst"].as_f64()).fold(0.0, f64::max)
        };
        let (same, float) = (worst(judged(&report)), worst(&boundaries[1]));
        assert_eq!(boundaries[1]["judged"], false, "{report}");
        assert!(same < 0.02 && same * 5.0 < float, "{same} against the same graph, {float} against float");
    }
}

/// Returns the layer that was broken, and the shard of the broken model that contains it.
fn self_tested(run: Run) -> (u64, Value) {
    let report = run.argument("--self-test").json();
    assert_eq!(report["passed"], true, "{report}");
    let layer = report["broken_layer"].as_u64().expect("a layer");
    let broken = &report["broken"];
    assert_eq!(broken["passed"], false);
    let boundaries = judged(broken);
    assert_eq!(boundaries["first_divergent_layer"], layer, "{boundaries}");
    let holds = |shard: &&Value| match shard["layers"].as_array().map(Vec::as_slice) {
        Some([first, end]) => (first.as_u64()..end.as_u64()).contains(&Some(layer)),
        _ => false,
    };
    for shard in list(boundaries, "shards") {
        // Each shard gets exact values, so no other shard sees the fault.
        assert_eq!(shard["passed"], !holds(&shard), "{shard}");
    }
    let shard = list(boundaries, "shards").iter().find(holds).expect("a shard holds the layer");
    (layer, shard.clone())
}

#[test]
fn verify_finds_the_layer_it_broke_itself() {
    for checkpoint in [TEXT_FIXTURES[1], DEMO_MODEL] {
        // Only thorough runs run all 111 held-out rows twice.
        let rows = cases("4", "111");
        let (layer, shard) = self_tested(shardwright(["verify", checkpoint, "--evaluation", rows]));
        assert_eq!(shard["first_divergent_layer"], layer, "{shard}");
    }
}

#[test]
fn verify_finds_the_layer_within_its_shard() {
    for run in [cut_exactly(TEXT_FIXTURES[1]), cut(TEXT_FIXTURES[1]), cut_exactly(TEXT_FIXTURES[3])] {
        let (layer, shard) = self_tested(run);
        let first = shard["layers"][0].as_u64().expect("a layer");
        for (entry, output) in outputs(&shard) {
            // The shard's embedding and logits belong to no layer.
            let Some(of) = output["layer"].as_u64() else { continue };
            assert!(of >= first);
            assert_eq!(output["passed"], of < layer, "{entry} {output}");
        }
    }
}

#[test]
fn bounds_decide_and_are_named() {
    let verify = |bound: &str| shardwright(["verify", TEXT_FIXTURES[3], "--threshold", bound]);
    let tight = verify("row-worst=1e-12").argument("--format").argument("json").outcome();
    assert_eq!(tight.code, Some(1), "{}", tight.stderr);
    let report: Value = serde_json::from_str(&tight.stdout).expect("JSON");
    let boundaries = judged(&report);
    assert_eq!((&report["passed"], &boundaries["passed"]), (&false.into(), &false.into()), "{report}");
    assert_eq!(boundaries["thresholds"]["row_worst"], 1e-12, "{boundaries}");
    assert_eq!(boundaries["first_divergent_layer"], 0, "{boundaries}");

    for (bound, word) in [("speed=1", "row-p95"), ("greedy=2", "greedy"), ("cosine=NaN", "cosine")] {
        let (code, stderr) = verify(bound).refuses();
        assert!(code == 2 && stderr.contains(word), "{bound}: {stderr}");
    }
}

#[test]
fn how_much_is_run_can_be_said() {
    let few = |arguments: [&str; 6]| shardwright(["verify", TEXT_FIXTURES[3]]).arguments(arguments).json();
    let report = few(["--rows", "3", "--steps", "1", "--greedy", "2"]);
    assert_eq!(report["passed"], true, "{report}");
    let prompts = 3;
    assert_eq!(report["tokens"]["greedy_tokens"], 2 * prompts, "{report}");
    for shard in list(judged(&report), "shards") {
        for (entry, output) in outputs(shard) {
            let rows = if entry.starts_with("decode_1@") { prompts } else { 3 * prompts };
            assert_eq!(output["rows"], rows, "{entry} {output}");
        }
    }
}

#[test]
fn goldens_of_another_model_are_a_difference_not_a_failure_to_compare() {
    // All compared tensors have the same shapes, but the weights differ.
    let outcome = shardwright(["verify", TEXT_FIXTURES[0], "--golden", TEXT_FIXTURES[3]]).outcome();
    assert!(matches!(outcome.code, Some(code) if code != 0), "{}", outcome.stdout);
    assert!(!outcome.stdout.is_empty() || outcome.stderr.contains("error:"), "{}", outcome.stderr);
}

#[test]
fn a_model_in_other_formats_is_held_to_what_these_formats_lose() {
    let few = ["--rows", "24", "--steps", "1", "--greedy", "1", "--formats", "w4-block32/f32/f32"];
    let verify = || shardwright(["verify", TEXT_FIXTURES[3]]).arguments(few);
    let report = verify().json();
    let divergence = &report["divergence"];
    let number = |name: &str| divergence[name].as_f64().unwrap_or_else(|| panic!("no {name}: {divergence}"));
    assert_eq!((&report["passed"], &divergence["tokens"]), (&true.into(), &24.into()), "{report}");
    assert!(number("nats") > 0.0 && number("nats") < number("bound"), "{divergence}");
    assert!(divergence["bound_from"].as_str().is_some_and(|from| from.contains("lose on the CPU")));
    let text = verify().succeeds();
    assert!(text.contains("ok   KL divergence from the model as stored: "), "{text}");

    // Every threshold of the user counts, and passing the likelihood is not enough.
    let tight = verify().arguments(["--threshold", "kl=1e-9", "--threshold", "nll=9"]).outcome();
    assert_eq!(tight.code, Some(1), "{}", tight.stderr);
    assert!(tight.stdout.contains("FAIL KL divergence"), "{}", tight.stdout);

    // Without text there is no divergence, which is reported.
    let none = ["--rows", "0", "--formats", "w4-block32/f32/f32", "--format", "json"];
    let none = shardwright(["verify", TEXT_FIXTURES[3]]).arguments(none).outcome();
    let report: Value = serde_json::from_str(&none.stdout).unwrap_or_else(|_| panic!("{}", none.stderr));
    assert_eq!(report["divergence"], Value::Null);
    assert!(
        list(&report, "skipped")
            .iter()
            .any(|text| text.as_str().is_some_and(|text| text.contains("--rows 0")))
    );

    // A model with unchanged values is compared with recorded numbers, and with a divergence only
    // on request.
    let exact = || shardwright(["verify", TEXT_FIXTURES[3]]).arguments(&few[..6]);
    assert_eq!(exact().json()["divergence"], Value::Null);
    let asked = exact().arguments(["--threshold", "kl=1e-3"]).json();
    assert_eq!(asked["divergence"]["passed"], true, "{asked}");
}

#[test]
fn without_recorded_outputs_the_reference_says_what_is_right() {
    let few = ["--rows", "24", "--steps", "1", "--greedy", "2"];
    for fixture in [TEXT_FIXTURES[3], EMBEDDING_FIXTURES[0]] {
        let checkpoint = Copy::of(fixture).without("goldens.safetensors");
        let path = checkpoint.path().to_str().expect("a path");
        let report = shardwright(["verify", path]).arguments(few).json();
        assert_eq!((&report["passed"], &report["recorded"]), (&true.into(), &Value::Null), "{report}");
        let rows = list(judged(&report), "shards").iter().flat_map(outputs);
        assert!(rows.map(|(_, output)| output["rows"].as_u64().unwrap_or(0)).sum::<u64>() > 0, "{report}");
        let text = shardwright(["verify", path]).arguments(few).succeeds();
        assert!(text.contains("pass recorded outputs with `--golden DIR`"), "{text}");
        // A named folder must contain goldens.
        let (code, stderr) = shardwright(["verify", path, "--golden", path]).refuses();
        assert!(code != 0 && stderr.contains("goldens.safetensors"), "{stderr}");
    }
    // A broken layer is found without goldens too.
    let checkpoint = Copy::of(TEXT_FIXTURES[1]).without("goldens.safetensors");
    self_tested(shardwright(["verify"]).argument(checkpoint.path()));
}

/// Compiles a bundle and returns its path.
fn compiled(folder: &std::path::Path, options: &[&str]) -> String {
    let bundle = folder.join("bundle").display().to_string();
    shardwright(["compile", TEXT_FIXTURES[1], "-o", &bundle]).arguments(options).succeeds();
    bundle
}

#[test]
fn a_bundles_own_artefacts_are_proved_and_the_proof_is_kept_in_it() {
    const OPTIONS: [&str; 6] = ["--soc", "mt6989", "--on", "cpu", "--limit", "ops=400"];
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bundle = compiled(folder.path(), &OPTIONS);
    let verify = || shardwright(["verify", TEXT_FIXTURES[1], "--bundle", &bundle]).arguments(OPTIONS);
    let report = verify().argument("--store").json();
    assert_eq!((&report["passed"], &report["bundle_chain"]), (&true.into(), &"primary".into()), "{report}");
    // A shipped bundle exposes no layers within a shard. The shard's outputs are compared anyway.
    let shards = list(judged(&report), "shards");
    let decoders = shards.iter().filter(|shard| !shard["layers"].is_null());
    for shard in decoders {
        assert!(
            outputs(shard).all(|(_, output)| !output["what"].to_string().contains("layer.")
                || output["what"].to_string().contains("state")),
            "{shard}"
        );
        let passed_on = |what: &Value| what == "hidden" || what == "logits";
        assert!(outputs(shard).any(|(_, output)| passed_on(&output["what"])), "{shard}");
    }

    let doctor = shardwright(["doctor", &bundle]).json();
    let proofs = list(&doctor["bundle"]["variants"][0], "verifications");
    assert_eq!(proofs.len(), 1, "{doctor}");
    assert_eq!((&proofs[0]["passed"], &proofs[0]["chain"]), (&true.into(), &"primary".into()), "{doctor}");
    // A repeated proof replaces the first, and the bundle stays the same.
    let stored = || verify().argument("--store").outcome().stderr;
    let (first, second) = (stored(), stored());
    assert!(first.contains("stored in") && first == second, "{first}{second}");
    shardwright(["inspect", &bundle, "--verify"]).succeeds();

    // Other options give other work orders, and another checkpoint does not match.
    let (code, stderr) =
        shardwright(["verify", TEXT_FIXTURES[1], "--bundle", &bundle, "--context", "32"]).refuses();
    assert!(code == 6 && stderr.contains("work order"), "{stderr}");
    let (code, stderr) =
        shardwright(["verify", TEXT_FIXTURES[0], "--bundle", &bundle]).arguments(OPTIONS).refuses();
    assert!(code == 6 && stderr.contains("compiled from checkpoint"), "{stderr}");
}

/// A watcher that stops at the first stage whose name contains a word.
struct Impatient {
    word: &'static str,
    seen: std::cell::Cell<bool>,
}

impl shardwright::Watch for Impatient {
    fn progress(&mut self, per_mille: u32, stage: &str) {
        assert!(per_mille <= 1000, "{per_mille} {stage}");
        self.seen.set(self.seen.get() || stage.contains(self.word));
    }

    fn cancelled(&self) -> bool {
        self.seen.get()
    }
}

#[test]
fn it_tells_how_far_it_is_and_can_be_stopped_there() {
    let root = shardwright_tests::tree::root();
    let (checkpoint, open) = (
        root.join(TEXT_FIXTURES[3]),
        shardwright::OpenOptions::new().search_path(shardwright_tests::program::search_path()),
    );
    // During the run of the whole model, and then during the run of single shards.
    for word in ["p1 as a whole", "p0 through embed", "p2 through embed"] {
        let mut watch = Impatient { word, seen: false.into() };
        let options = shardwright_verify::VerifyOptions::new();
        let error = shardwright_verify::verify(&checkpoint, Some(&checkpoint), &open, &options, &mut watch)
            .expect_err(word);
        assert_eq!(error.kind(), shardwright::ErrorKind::Cancelled, "{word}: {error}");
    }
}

#[test]
fn tokens_that_do_not_count_are_said_not_to() {
    let few = ["--rows", "16", "--steps", "1", "--greedy", "4", "--formats", "w8-per-channel/f32/f32"];
    let verify = || shardwright(["verify", TEXT_FIXTURES[3]]).arguments(few);
    let tokens = verify().json()["tokens"].clone();
    assert_eq!((&tokens["greedy_judged"], &tokens["greedy_passed"]), (&false.into(), &true.into()));
    let text = verify().succeeds();
    let greedy = text.lines().find(|line| line.contains(" greedy: ")).expect("a line of tokens");
    assert!(greedy.starts_with("not judged greedy: "), "{greedy}");
    // With a bound from the user, tokens affect the result. They also do for the unchanged
    // checkpoint.
    let bound = verify().arguments(["--threshold", "greedy=0.01"]).argument("--format=json").outcome();
    let report: Value = serde_json::from_str(&bound.stdout).expect("JSON");
    assert_eq!(report["tokens"]["greedy_judged"], true, "{report}");
    let exact = shardwright(["verify", TEXT_FIXTURES[3]]).arguments(&few[..6]);
    assert_eq!(exact.json()["tokens"]["greedy_judged"], true);
}

#[test]
fn what_was_not_run_is_not_taken_for_proved() {
    let verify = || {
        shardwright(["verify", TEXT_FIXTURES[3], "--rows", "16", "--steps", "0"])
            .arguments(["--planner-option", "join=off"])
    };
    let report = verify().json();
    assert_eq!(report["passed"], true, "{report}");
    let entries = list(judged(&report), "shards").iter().flat_map(|shard| list(shard, "entries"));
    let not_run: Vec<&Value> = entries.filter(|entry| entry["runs"] == 0).collect();
    assert!(!not_run.is_empty(), "{report}");
    for entry in &not_run {
        assert!(entry["not_run"].as_str().is_some_and(|why| why.contains("--steps 0")), "{entry}");
    }
    let text = verify().succeeds();
    let count = not_run.len();
    assert!(text.trim_end().ends_with(&format!("passed, with {count} entry points not run")), "{text}");
    assert!(text.contains("not run: `--steps 0`") && !text.contains("no prompt fits"), "{text}");
    let strict = verify().argument("--strict").outcome();
    assert_eq!(strict.code, Some(9), "{}", strict.stderr);
    assert!(strict.stderr.contains("was not run") && strict.stderr.contains("help:"), "{}", strict.stderr);
    // If everything was run, there is no further message.
    let all = shardwright(["verify", TEXT_FIXTURES[3], "--strict"]).succeeds();
    assert!(all.trim_end().ends_with("\npassed"), "{all}");
}

/// The options of compiling come from the bundle. Other options give other work orders.
#[test]
fn a_bundle_is_verified_by_the_options_that_it_records() {
    let fixture = TEXT_FIXTURES[3];
    // Random weights in 4 and 8 bits, over a few tokens. The likelihood is not tested here.
    let few = ["--rows", "8", "--steps", "1", "--greedy", "1", "--evaluation", "1", "--threshold", "nll=1"];
    for options in [
        &["--soc", "mt6989", "--on", "cpu", "--limit", "ops=200", "--context", "96"][..],
        &[
            "--formats",
            "w8-per-channel/a8-dynamic/f32",
            "--context",
            "64",
            "--planner-option",
            "effort=simple",
        ],
        &["--formats", "w4-block32/f32/f32", "--rounding", "nearest", "--table", "embedding=w8-per-channel"],
    ] {
        let bundle = Compiled::from(fixture, options.iter().copied());
        let verify = || shardwright(["verify", fixture, "--bundle"]).argument(bundle.path()).arguments(few);
        let report = verify().json();
        assert!(report["passed"] == true && report["bundle_chain"] == "primary", "{options:?}: {report:#}");
        let (code, stderr) = verify().arguments(["--context", "48"]).refuses();
        let said = ["the bundle has no artefact for", "drop the compile options"];
        assert!(code == 6 && said.iter().all(|said| stderr.contains(said)), "{options:?}: {stderr}");
    }
    // The bundle only records the digest of a calibration text.
    let own = ["--formats", "w8-per-channel/a16/a8", "--calibration-text", "README.md"];
    let bundle = Compiled::from(fixture, own);
    let verify = || shardwright(["verify", fixture, "--bundle"]).argument(bundle.path()).arguments(few);
    let (code, stderr) = verify().refuses();
    assert!(code == 2 && stderr.contains("was calibrated on a text with SHA-256"), "{stderr}");
    assert_eq!(verify().arguments(own).json()["passed"], true);
}
