//! `shardwright verify` on all recorded outputs, whole and cut: the numbers, the tokens, the texts,
//! and every shard alone.

use serde_json::Value;
use shardwright_test_checkpoints::cases;
use shardwright_tests::bundles::Compiled;
use shardwright_tests::checkpoints::{
    Copy, DEMO_MODEL, EMBEDDING_FIXTURES, FURTHER_FIXTURES, TEXT_FIXTURES, text_fixtures,
};
use shardwright_tests::program::{self, Run, shardwright};
use shardwright_tests::tree;

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

/// Asserts that every shard alone gives the results of the reference.
fn assert_exact(report: &Value) {
    assert_eq!((&report["passed"], &report["exact"]), (&true.into(), &true.into()), "{report}");
    assert_eq!(report["emulated_on"], "cpu", "{report}");
    assert!(report["decoder_shards"].as_u64() > Some(1), "{report}");
    assert_eq!(list(report, "boundaries").len(), 1, "{report}");
    let boundaries = judged(report);
    assert!(boundaries["first_divergent_layer"].is_null(), "{report}");

    let shards = list(boundaries, "shards");
    assert_eq!(shards.len() as u64, report["shards"].as_u64().expect("a count"), "{report}");
    let (mut layers_seen, mut states_seen) = (Vec::new(), 0);
    for (entry, output) in shards.iter().flat_map(outputs) {
        assert!(output["rows"].as_u64() > Some(0), "{entry} {output}");
        assert!(output["relative_worst"].as_f64().is_some_and(|worst| worst < 1e-4), "{entry} {output}");
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
    layers_seen.sort_unstable();
    let all: Vec<u64> = (0..layers_seen.len() as u64).collect();
    assert_eq!(layers_seen, all, "every layer once, by tap or as what leaves its shard: {report}");
    assert!(states_seen >= 4, "{report}");
}

/// Asserts that in other formats every shard alone gives the results of the quantised graph.
fn assert_quantised(report: &Value) {
    assert_eq!((&report["passed"], &report["exact"]), (&true.into(), &false.into()), "{report}");
    assert!(report["decoder_shards"].as_u64() > Some(1), "{report}");
    // Numbers of the float checkpoint are shown, but do not affect the result.
    for comparison in list(report, "comparisons") {
        let what = comparison["what"].as_str().expect("a name");
        assert_eq!(comparison["judged"], ["tokenizer", "chat"].contains(&what), "{comparison}");
    }
    let boundaries = list(report, "boundaries");
    assert_eq!(boundaries.len(), 2, "{report}");
    let worst = |boundaries: &Value| {
        let shards = list(boundaries, "shards").iter().flat_map(outputs);
        shards.filter_map(|(_, output)| output["relative_worst"].as_f64()).fold(0.0, f64::max)
    };
    let (same, float) = (worst(judged(report)), worst(&boundaries[1]));
    assert_eq!(boundaries[1]["judged"], false, "{report}");
    assert!(same < 0.02 && same * 5.0 < float, "{same} against the same graph, {float} against float");
}

#[test]
fn every_shard_alone_gives_what_its_graph_gives() {
    for fixture in cases(vec![FURTHER_FIXTURES[5]], text_fixtures().collect()) {
        assert_exact(&cut_exactly(fixture).json());
    }
    for fixture in cases(vec![TEXT_FIXTURES[0]], text_fixtures().collect()) {
        assert_quantised(&cut(fixture).json());
    }
}

/// Returns the layer that was broken, the shard of the broken model that contains it, and the
/// verification of the intact model.
fn self_tested(run: Run) -> (u64, Value, Value) {
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
    (layer, shard.clone(), report["intact"].clone())
}

#[test]
fn verify_finds_the_layer_it_broke_itself() {
    // Only thorough runs run all 111 held-out rows twice.
    let rows = cases("4", "111");
    let (layer, shard, _) = self_tested(shardwright(["verify", DEMO_MODEL, "--evaluation", rows]));
    assert_eq!(shard["first_divergent_layer"], layer, "{shard}");
}

#[test]
fn verify_finds_the_layer_within_its_shard() {
    type Check = fn(&Value);
    let checks: [(Run, Check); 2] =
        [(cut_exactly(TEXT_FIXTURES[1]), assert_exact), (cut(TEXT_FIXTURES[1]), assert_quantised)];
    for (run, check) in checks {
        let (layer, shard, intact) = self_tested(run);
        check(&intact);
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

    verify("speed=1").refuses_with(2, &["row-p95"]);
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
    let few = ["--rows", "24", "--steps", "1", "--greedy", "4", "--formats", "w4-block32/f32/f32"];
    let verify = || shardwright(["verify", TEXT_FIXTURES[3]]).arguments(few);
    let report = verify().json();
    let (divergence, tokens) = (&report["divergence"], &report["tokens"]);
    let number = |name: &str| divergence[name].as_f64().unwrap_or_else(|| panic!("no {name}: {divergence}"));
    assert_eq!((&report["passed"], &divergence["tokens"]), (&true.into(), &24.into()), "{report}");
    assert!(number("nats") > 0.0 && number("nats") < number("bound"), "{divergence}");
    assert!(divergence["bound_from"].as_str().is_some_and(|from| from.contains("lose on the CPU")));
    // Tokens of rounded weights do not count, which is reported.
    assert_eq!((&tokens["greedy_judged"], &tokens["greedy_passed"]), (&false.into(), &true.into()));
    let text = verify().succeeds();
    for begins in ["ok   KL divergence from the model as stored: ", "not judged greedy: "] {
        assert!(text.lines().any(|line| line.starts_with(begins)), "{text}");
    }

    // Every threshold of the user counts, and passing the likelihood is not enough.
    let tight = ["--threshold", "kl=1e-9", "--threshold", "nll=9", "--threshold", "greedy=0.01"];
    let tight = verify().arguments(tight).outcome();
    assert_eq!(tight.code, Some(1), "{}", tight.stderr);
    let text = tight.stdout;
    assert!(text.contains("FAIL KL divergence") && text.contains(" greedy: "), "{text}");
    assert!(!text.contains("not judged greedy: "), "{text}");

    // Without text there is no divergence, which is reported.
    let none = ["--rows", "0", "--formats", "w4-block32/f32/f32", "--format", "json"];
    let none = shardwright(["verify", TEXT_FIXTURES[3]]).arguments(none).outcome();
    let report: Value = serde_json::from_str(&none.stdout).unwrap_or_else(|_| panic!("{}", none.stderr));
    assert_eq!(report["divergence"], Value::Null);
    assert!(report["skipped"].to_string().contains("--rows 0"), "{report}");

    // A model with unchanged values is compared with recorded numbers and tokens, and with a
    // divergence only on request.
    let exact = || shardwright(["verify", TEXT_FIXTURES[3]]).arguments(&few[..6]);
    let report = exact().json();
    assert_eq!((&report["divergence"], &report["tokens"]["greedy_judged"]), (&Value::Null, &true.into()));
    let asked = exact().arguments(["--threshold", "kl=1e-3"]).json();
    assert_eq!(asked["divergence"]["passed"], true, "{asked}");
}

#[test]
fn attention_in_16_bits_is_held_to_its_own_graph() {
    let few = ["--rows", "24", "--steps", "1", "--greedy", "4"];
    let run = shardwright(["verify", TEXT_FIXTURES[3]]).arguments(few);
    let report = run.arguments(["--formats", "as-stored/f32/f32/attention-bf16"]).json();
    assert_eq!((&report["passed"], &report["exact"]), (&true.into(), &false.into()), "{report}");
    assert_eq!(report["divergence"]["tokens"], 24, "{report}");
    let boundaries = list(&report, "boundaries");
    assert_eq!((boundaries.len(), &boundaries[0]["judged"]), (2, &true.into()), "{report}");
    assert_eq!(boundaries[1]["judged"], false, "{report}");
}

#[test]
fn without_recorded_outputs_the_reference_says_what_is_right() {
    // A broken layer is found too.
    let text = Copy::of(TEXT_FIXTURES[1]).without("goldens.safetensors");
    let (_, _, of_text) = self_tested(shardwright(["verify"]).argument(text.path()));
    let encoder = Copy::of(EMBEDDING_FIXTURES[0]).without("goldens.safetensors");
    let of_encoder = shardwright(["verify"]).argument(encoder.path()).json();
    for report in [of_text, of_encoder] {
        assert_eq!((&report["passed"], &report["recorded"]), (&true.into(), &Value::Null), "{report}");
        let rows = list(judged(&report), "shards").iter().flat_map(outputs);
        assert!(rows.map(|(_, output)| output["rows"].as_u64().unwrap_or(0)).sum::<u64>() > 0, "{report}");
        let notices = report["notices"].to_string();
        assert!(notices.contains("pass recorded outputs with `--golden DIR`"), "{notices}");
    }
    // A named folder must contain goldens.
    let named = shardwright(["verify"]).argument(text.path()).argument("--golden").argument(text.path());
    let (_, stderr) = named.refuses();
    assert!(stderr.contains("goldens.safetensors"), "{stderr}");
}

#[test]
fn a_bundles_own_artefacts_are_proved_and_the_proof_is_kept_in_it() {
    const OPTIONS: [&str; 6] = ["--soc", "mt6989", "--on", "cpu", "--limit", "ops=400"];
    let bundle = Compiled::from(TEXT_FIXTURES[1], OPTIONS);
    let bundle = bundle.path().display().to_string();
    // The options of compiling come from the bundle, and may be repeated.
    let recorded = || shardwright(["verify", TEXT_FIXTURES[1], "--bundle", &bundle]);
    let verify = || recorded().arguments(OPTIONS);
    let report = recorded().argument("--store").json();
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
    let words = ["work order", "the bundle has no artefact for", "drop the compile options"];
    recorded().arguments(["--context", "32"]).refuses_with(6, &words);
    let other = shardwright(["verify", TEXT_FIXTURES[0], "--bundle", &bundle]).arguments(OPTIONS);
    other.refuses_with(6, &["compiled from checkpoint"]);
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
    let checkpoint = tree::root().join(TEXT_FIXTURES[3]);
    let open = shardwright::OpenOptions::new().search_path(program::search_path());
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
fn what_was_not_run_is_not_taken_for_proved() {
    let less = ["--rows", "16", "--steps", "0", "--planner-option", "join=off"];
    let verify = || shardwright(["verify", TEXT_FIXTURES[3]]).arguments(less);
    let report = verify().json();
    assert_eq!(report["passed"], true, "{report}");
    let entries = list(judged(&report), "shards").iter().flat_map(|shard| list(shard, "entries"));
    let not_run: Vec<&Value> = entries.filter(|entry| entry["runs"] == 0).collect();
    assert!(!not_run.is_empty(), "{report}");
    for entry in &not_run {
        assert!(entry["not_run"].as_str().is_some_and(|why| why.contains("--steps 0")), "{entry}");
    }
    let strict = verify().argument("--strict").outcome();
    let (count, text) = (not_run.len(), &strict.stdout);
    assert!(text.trim_end().ends_with(&format!("passed, with {count} entry points not run")), "{text}");
    assert!(text.contains("not run: `--steps 0`") && !text.contains("no prompt fits"), "{text}");
    assert_eq!(strict.code, Some(9), "{}", strict.stderr);
    assert!(strict.stderr.contains("was not run") && strict.stderr.contains("help:"), "{}", strict.stderr);
    // If everything was run, there is no further message.
    let all = shardwright(["verify", TEXT_FIXTURES[3], "--strict"]).succeeds();
    assert!(all.trim_end().ends_with("\npassed"), "{all}");
}

/// Formats, tables and how weights are rounded come from the bundle.
#[test]
fn a_bundle_is_verified_by_the_options_that_it_records() {
    let fixture = TEXT_FIXTURES[3];
    // Random weights in 4 and 8 bits, over a few tokens. The likelihood is not tested here.
    let few = ["--rows", "8", "--steps", "1", "--greedy", "1", "--evaluation", "1", "--threshold", "nll=1"];
    let verify = |bundle: &Compiled| {
        shardwright(["verify", fixture, "--bundle"]).argument(bundle.path()).arguments(few)
    };
    for options in [
        "--formats w8-per-channel/a8-dynamic/f32 --context 64 --planner-option effort=simple",
        "--formats w4-block32/f32/f32 --rounding nearest --table embedding=w8-per-channel",
    ] {
        let report = verify(&Compiled::from(fixture, options.split(' '))).json();
        assert!(report["passed"] == true && report["bundle_chain"] == "primary", "{options}: {report:#}");
    }
    // The bundle only records the digest of a calibration text.
    let own = ["--formats", "w8-per-channel/a16/a8", "--calibration-text", "README.md"];
    let bundle = Compiled::from(fixture, own);
    verify(&bundle).refuses_with(2, &["was calibrated on a text with SHA-256"]);
    assert_eq!(verify(&bundle).arguments(own).json()["passed"], true);
}
