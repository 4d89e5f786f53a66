//! Qualcomm's compiler and simulator behind the shim, from a checkpoint to text: results compared
//! with the reference, bundles for chips that are not here, and files of the vendor's own tools.
//! `cargo xtask bench qnn` produces tables over more cases.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;
use shardwright::Pass;
use shardwright_shims::Artefact;
use shardwright_test_checkpoints::cases;
use shardwright_tests::bundles::{Compiled, contents, with_goldens};
use shardwright_tests::cache::Cache;
use shardwright_tests::checkpoints::{DEMO_MODEL, EMBEDDING_FIXTURES, further_cases};
use shardwright_tests::formats::{Effort, Recorded};
use shardwright_tests::plans;
use shardwright_tests::program::shardwright;
use shardwright_tests::qnn::{Case, Finding, LOSS, float_nll, library};
use shardwright_tests::tower_cases::tower;

use crate::{assert_close, context, cosine, vector};

const GEMMA3: &str = "tests/fixtures/gemma3_text";
const GEMMA4: &str = "tests/fixtures/gemma4_text";
const FORMATS: &str = "w8-per-channel/a16/a8";

/// Options for the chip alone. Models this small are as fast on a CPU, where the planner would put
/// them.
const TARGET: [&str; 8] = ["--soc", "sm8850", "--formats", FORMATS, "--planner", "even", "--context", "64"];

/// Returns the member of every list item that is text.
fn texts(list: &Value, member: &str) -> Vec<String> {
    let list = list.as_array().expect("a list").iter();
    list.filter_map(|item| item[member].as_str().map(str::to_owned)).collect()
}

/// Verifies two shards with this many rows, which is fewer than in `cargo xtask bench qnn`, because
/// the simulator needs seconds for a row.
fn two_shards(checkpoint: &'static str, rows: usize) {
    let cache = Cache::for_test();
    // States of 8 bits are occasionally rounded to the neighbouring step, and a random model
    // amplifies that. With them, the error of 95 of 100 rows is 0.06, compared with 0.01 for a
    // trained model.
    for formats in &["w8-per-channel/a16/a16", "f16/f16/f16"][..cases(1, 2)] {
        let case = Case { checkpoint, formats, pieces: 2, soc: "sm8850", context: context() };
        let finding = Finding::of(&case.verify(None, Effort { rows, steps: 1, greedy: 2 }, cache.path()));
        println!("{finding:#?}");
        assert_close(&finding, &case);
    }
}

#[test]
fn two_shards_of_a_random_model_give_the_reference_s_numbers() {
    if library() {
        two_shards(GEMMA4, cases(8, 32));
    }
}

#[test]
fn two_shards_of_further_families_give_the_reference_s_numbers() {
    if library() {
        further_cases().iter().for_each(|checkpoint| two_shards(checkpoint, cases(4, 32)));
    }
}

#[test]
fn two_shards_of_the_demo_model_give_the_reference_s_numbers_and_keep_its_likelihood() {
    if !library() {
        return;
    }
    let cache = Cache::for_test();
    let case =
        Case { checkpoint: DEMO_MODEL, formats: FORMATS, pieces: 2, soc: "sm8850", context: context() };
    // One prompt, and the beginnings of some held-out rows. Every token is a step of the simulator.
    let part = Recorded::some(1, cases(32, 24), cases(20, 48));
    assert!(part.rows().len() >= 4, "{}", part.rows().len());
    let greedy = cases(8, 32);
    let effort = Effort { rows: cases(16, 64), steps: cases(1, 2), greedy };
    let report = case.verify(Some(&part), effort, cache.path());
    let finding = Finding::of(&report).against(float_nll(DEMO_MODEL, &part, cache.path()));
    println!("{finding:#?}");
    assert_close(&finding, &case);
    assert!(finding.float_cosine_mean >= 0.99, "{finding:?}");
    assert!(finding.nll.1.abs() <= LOSS, "{finding:?}");
    assert_eq!(finding.greedy.1, greedy as u64, "{finding:?}");
}

/// Whole towers on the chip: 16-bit activations with 8-bit weights, and half floats.
#[test]
fn towers_give_the_reference_s_numbers() {
    if !library() {
        return;
    }
    let cache = Cache::for_test();
    let case = Case { checkpoint: GEMMA4, formats: FORMATS, pieces: 1, soc: "sm8850", context: context() };
    let open = case.options(cache.path());
    let all = [
        (Pass::Clip, FORMATS, 0.999),
        (Pass::Clip, "f16/f16/f16", 0.9999),
        (Pass::Picture, FORMATS, 0.999),
        (Pass::Picture, "f16/f16/f16", 0.9999),
    ];
    // The last case needs most of the time.
    for (pass, formats, cosine) in &all[..cases(3, 4)] {
        let tower = tower(&open, *pass, formats);
        assert!(tower.soft_rows.cosine_mean >= *cosine, "{:?}", tower.soft_rows);
    }
}

#[test]
fn a_sentence_vector_is_that_of_the_model_in_float() {
    if !library() {
        return;
    }
    let embed = |checkpoint: &str, arguments: &[&str]| {
        let run = shardwright(["embed", checkpoint, "a text", "--context", "32"]);
        vector(&run.arguments(arguments).json())
    };
    let chip = ["--soc", "sm8850", "--on", "simulator", "--formats", FORMATS, "--planner", "even"];
    for checkpoint in EMBEDDING_FIXTURES {
        let cosine = cosine(&embed(checkpoint, &[]), &embed(checkpoint, &chip));
        assert!(cosine >= 0.99, "{checkpoint}: cosine {cosine}");
    }
}

/// Compiles a bundle for the chip itself, which is not in this machine.
fn bundle() -> Compiled {
    Compiled::from(GEMMA4, TARGET)
}

#[test]
fn a_bundle_for_a_chip_is_made_without_the_chip_and_says_what_it_is() {
    if !library() {
        return;
    }
    let bundle = bundle();
    let shown = bundle.path().display().to_string();
    let (code, message) = shardwright(["run", &shown, "--prompt", "a"]).refuses();
    assert!(code != 0 && message.contains("sm8850") && message.contains("help:"), "{code}: {message}");

    let document = shardwright(["inspect", &shown]).json().to_string();
    for word in ["qnn-artefact", "\"arch\":81", "\"soc_model\":87", "decode_1@64", "build_id"] {
        assert!(document.contains(word), "no {word} in {document}");
    }
}

#[test]
fn a_context_binary_of_other_tools_is_shown() {
    if !library() {
        return;
    }
    let bundle = bundle();
    let folder = tempfile::tempdir().expect("a temporary folder");
    // A file as the vendor's own tools write it: the part of an artefact that the library reads.
    let binary = context_binary(&bundle.path());
    let path = folder.path().join("model.bin");
    fs::write(&path, &binary).expect("written");
    let shown = path.display().to_string();
    let document = shardwright(["inspect", &shown]).json().to_string();
    for word in ["qnn-context-binary", "\"arch\":81", "\"soc_model\":87", "build_id", "decode_1@64"] {
        assert!(document.contains(word), "no {word} in {document}");
    }
    let table = shardwright(["inspect", &shown]).succeeds();
    assert!(table.contains("decode_1@64") && table.contains("87"), "{table}");

    fs::write(&path, &binary[..binary.len() / 3]).expect("written");
    let (code, message) = shardwright(["inspect", &shown]).refuses();
    assert!(code == 4 && message.contains("help:"), "{code}: {message}");
}

/// Returns the context binary of a bundle's decoder. It begins on a page of its artefact and
/// extends to the end.
fn context_binary(bundle: &Path) -> Vec<u8> {
    let files = contents(bundle).into_keys().map(|path| bundle.join(path));
    let artefacts =
        files.filter_map(|path| Artefact::open(&path).ok()).filter(|made| made.head().shim == "qnn");
    let decoder = artefacts.max_by_key(|made| made.payload().len()).expect("an artefact of the shim");
    let payload = decoder.payload();
    // The first page is the artefact's head, and the next ones are text. A context binary begins
    // with numbers.
    let mut pages = (4096..payload.len()).step_by(4096);
    let is_text = |start: &usize| payload[*start..].iter().take(8).all(|byte| (b' '..=b'~').contains(byte));
    payload[pages.find(|start| !is_text(start)).expect("a binary")..].to_vec()
}

#[test]
fn a_compilation_that_was_killed_is_taken_up() {
    if !library() {
        return;
    }
    let whole = bundle();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let into = folder.path().join("bundle");
    let started = Instant::now();
    let mut killed = 0;
    loop {
        assert!(started.elapsed() < Duration::from_secs(240), "never done; killed {killed} times");
        let run = shardwright(["compile", GEMMA4]).arguments(TARGET).argument("-o").argument(&into);
        // The time increases with each try, so that the program is killed in many places and
        // finally ends.
        if run.killed_after(Duration::from_millis(cases(1500, 700) * (killed + 1))) {
            break;
        }
        killed += 1;
    }
    assert!(killed > 0);
    assert!(contents(&into) == contents(&whole.path()), "killed {killed} times, and another bundle");
}

/// A chip without a shipped profile. Its processor, v69, cannot multiply two 16-bit activations,
/// which only the compiler reports.
const OLDER_CHIP: &str = r#"{"schema": 1, "name": "sm8450", "title": "Snapdragon 8 Gen 1", "vendor": "Qualcomm", "shim": "qnn", "kind": "npu",
    "facts": [{"name": "hexagon-arch", "value": "v69", "provenance": "declared"}, {"name": "soc-id", "value": "36", "provenance": "declared"}]}"#;

#[test]
fn what_the_compiler_refuses_is_planned_anew_in_other_formats_and_runs() {
    if !library() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("sm8450.json"), OLDER_CHIP).expect("written");
    let bundle = folder.path().join("bundle");
    let run = shardwright([
        "compile",
        GEMMA3,
        "--soc",
        "sm8450",
        "--on",
        "simulator",
        "--context",
        "32",
        "--strict",
    ])
    // With 16-bit states, attention multiplies two 16-bit activations. With 8-bit states it does
    // not.
    .arguments(["--formats", "w8-per-channel/a16/a16", "--formats", FORMATS])
    .arguments(["--planner-option", "place.decoder=sm8450", "--profiles"])
    .argument(folder.path())
    .argument("-o")
    .argument(&bundle);
    let plan = run.json()["variants"][0]["plan"].clone();
    assert_eq!(plan["refused_plans"], 1, "{plan}");

    // The vendor's own message, with the function, the operation and its layer.
    let refusal = ["backendValidateOpConfig failed", "layer.0.attention", "expected >= 73"];
    let says = |text: &String| refusal.iter().all(|words| text.contains(words));
    let notices = texts(&plan["notices"], "text");
    assert!(
        notices.iter().any(|text| text.starts_with("1 plan was refused and revised") && says(text)),
        "{plan}"
    );
    // The planner got the refusal, and explains its reaction.
    let reasons = plan["reasons"].as_array().expect("reasons").iter();
    let learned: Vec<&Value> =
        reasons.filter(|reason| reason["cause"]["feedback"] == "unsupported-op").collect();
    assert_eq!(learned.len(), 1, "{plan}");
    assert!(texts(&plan["reasons"], "because").iter().any(says), "{plan}");
    let choice = learned[0]["choice"].as_str().expect("a choice");
    assert!(choice.starts_with("not w8-per-channel/a16/a16 on sm8450"), "{choice}");

    // Another plan for the same chip, compiled by the same library, runs.
    let shards = plan["shards"].as_array().expect("shards").iter();
    let decoder: Vec<&Value> = shards.filter(|shard| plans::holds(shard, "decoder")).collect();
    assert!(!decoder.is_empty());
    for shard in decoder {
        assert_eq!((&shard["target"], &shard["formats"]), (&"sm8450".into(), &FORMATS.into()), "{plan}");
    }
    let shown = bundle.display().to_string();
    let outcome = shardwright(["run", &shown, "--prompt", "a", "-n", "2", "--greedy", "--strict"]).outcome();
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(!outcome.stdout.trim().is_empty(), "{}", outcome.stderr);
}

/// Times of the chip are simulated, and times of the CPU follow from the rates of the profile. No
/// work moves to the CPU, and the reasons give the differences. The library compiles everything in
/// the menu.
#[test]
fn simulated_times_decide_between_the_formats_of_a_chip() {
    if !library() {
        return;
    }
    let formats = "w4-block32-stepped[head=w8-per-channel]/a16/a8";
    let by_channel = "w4-per-channel[head=w8-per-channel]/a16/a8";
    let plan = |more: &[&str]| {
        let run = shardwright(["plan", GEMMA3, "--soc", "soc-72", "--context", "32"]);
        run.arguments(["--formats", formats, "--formats", by_channel]).arguments(more).json()
    };
    let first = plan(&[]);
    let shards = |plan: &Value| plan["shards"].as_array().expect("shards").clone();
    for shard in shards(&first) {
        assert_eq!((&shard["target"], &shard["formats"]), (&"soc-72".into(), &formats.into()), "{first}");
    }
    let decoder = |plan: &Value| {
        let of_decoder = |shard: &Value| plans::holds(shard, "decoder");
        shards(plan).into_iter().find(of_decoder).expect("a decoder")
    };
    let because = texts(&decoder(&first)["reasons"], "because");
    assert!(
        because.iter().any(|text| text.starts_with("the formats listed first; ") && text.contains(" saves ")),
        "{first}"
    );
    let step = &first["totals"]["times"][0];
    assert!(step["entry"].as_str().is_some_and(|entry| entry.starts_with("decode_1")), "{first}");
    let summed: u64 = shards(&first)
        .iter()
        .map(|shard| shard["entries"][0]["time"]["microseconds"].as_u64().expect("a time"))
        .sum();
    let number = |value: &Value| value.as_u64().expect("a number");
    let hand_off = number(&step["hand_off_nanoseconds"]).div_ceil(1000);
    let all = summed + number(&step["calls"]["microseconds"]) + hand_off;
    assert_eq!(step["time"]["microseconds"], all, "{first}");
    assert_eq!(first["totals"]["loss"]["known"], "expected", "{first}");
    // A user who wants the last microsecond can have it.
    let fast = plan(&["--planner-option", "format-gain=0"]);
    let time = |plan: &Value| decoder(plan)["entries"][0]["time"]["microseconds"].as_u64().expect("a time");
    assert!(time(&fast) < time(&first), "{fast}");
    // Without a quality goal, a plan does not accept the loss of two-bit weights or a four-bit
    // head.
    let chosen = shardwright(["plan", GEMMA3, "--soc", "soc-72", "--context", "32"]).json();
    for shard in shards(&chosen) {
        assert!(!shard["formats"].as_str().is_some_and(|formats| formats.contains("w2")), "{shard}");
    }
    // Other formats of the chip are clearly faster for this model than the first ones. The reason
    // compares the times.
    let because = texts(&decoder(&chosen)["reasons"], "because");
    assert!(because.iter().any(|text| text.contains("µs instead of")), "{chosen}");
}

#[test]
fn the_first_formats_of_every_chip_compile_to_what_was_planned() {
    if !library() {
        return;
    }
    // The first chip of each architecture comes first.
    let chips = ["sm8550", "sm8650", "sm8750", "sm8850", "sc8380xp", "soc-72"];
    for soc in &chips[..cases(4, chips.len())] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let bundle = folder.path().join("bundle").display().to_string();
        let formats = "w4-block32-stepped[head=w8-per-channel]/a16-f16-stream/a8";
        let report =
            shardwright(["compile", GEMMA3, "--soc", soc, "--context", "32", "-o", &bundle, "--strict"])
                .arguments(["--formats", formats])
                .json();
        let plan = &report["variants"][0]["plan"];
        assert_eq!(plan["refused_plans"], 0, "{soc}: {plan}");
        for shard in plan["shards"].as_array().expect("shards") {
            assert_eq!((&shard["target"], &shard["formats"]), (&(*soc).into(), &formats.into()), "{plan}");
        }
        // Within the tolerance that is documented for unmeasured sizes.
        assert!(
            !texts(&plan["notices"], "text").iter().any(|text| text.contains("its artefact has")),
            "{plan}"
        );
    }
}

#[test]
fn without_the_library_the_chip_is_judged_without_it_and_that_is_said() {
    let nowhere = "/nowhere/libQnnHtp.so";
    let run = |arguments: &[&str]| {
        shardwright(arguments.iter().copied()).environment("SHARDWRIGHT_QNN_LIB", nowhere)
    };
    let planned = run(&["plan", GEMMA4, "--soc", "sm8850", "--formats", FORMATS]).outcome();
    assert_eq!(planned.code, Some(0), "{}", planned.stderr);
    let said = format!("{}{}", planned.stdout, planned.stderr);
    assert!(said.contains("cannot be used") && said.contains(nowhere), "{said}");
    let (_, message) =
        run(&["run", GEMMA4, "--soc", "sm8850", "--on", "simulator", "--prompt", "a"]).refuses();
    assert!(message.contains(nowhere) && message.contains("help:"), "{message}");
}

#[test]
fn two_chips_are_compiled_for_at_once_and_a_third_runs_the_nearest_if_it_says_the_same() {
    if !library() {
        return;
    }
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bundle = folder.path().join("bundle");
    let target = ["--formats", FORMATS, "--planner", "even", "--context", "32", "--on", "simulator"];
    let compile = |into: &Path, jobs: &str| {
        let run = shardwright(["compile", GEMMA3, "--soc", "sm8750,sm8850,generic", "--jobs", jobs, "-o"]);
        run.argument(into).arguments(target).succeeds();
    };
    compile(&bundle, "2");
    // Two of the library's compilers at once, each in its own process, and one after the other.
    let apart = folder.path().join("apart");
    compile(&apart, "1");
    assert!(contents(&bundle) == contents(&apart), "another bundle with one job");

    // Another chip number of this architecture.
    let explain = || shardwright(["explain"]).argument(&bundle).arguments(["--soc", "soc-72"]).json();
    let report = explain();
    let first = &report["candidates"][0];
    assert_eq!((&first["soc"], &first["tier"]), (&"sm8850".into(), &"sibling".into()), "{report}");
    let reason = first["shards"][0]["reason"].as_str().expect("a reason");
    assert!(reason.contains("same architecture"), "{report}");
    assert!(report["passed"].to_string().contains("v79"), "the other architecture: {report}");

    let run = || {
        let run = shardwright(["run", "--prompt", "a b", "--max-tokens", "2", "--greedy", "--soc", "soc-72"]);
        // A passed self-test is remembered there, for a bundle with the same bytes whenever it is
        // compiled.
        run.argument(&bundle).environment("XDG_CACHE_HOME", folder.path().join("cache"))
    };
    let tested = "self-test of chain `primary` on this machine";
    let first = run().outcome();
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    assert!(first.stderr.contains("no variant of its own"), "{}", first.stderr);
    assert!(first.stderr.contains(tested), "{}", first.stderr);
    let again = run().outcome();
    assert_eq!((again.code, again.stdout), (Some(0), first.stdout), "{}", again.stderr);
    assert!(!again.stderr.contains(tested), "it was remembered: {}", again.stderr);

    // The goldens record another token, so the chain fails its self-test and generates no text.
    let other_token = |mut goldens: Value| {
        for row in goldens["rows"].as_array_mut().expect("rows") {
            row["largest"] = serde_json::json!([[7, 0]]);
        }
        Some(goldens)
    };
    with_goldens(&bundle, other_token);
    let failed = run().outcome();
    assert_eq!(failed.code, Some(0), "{}", failed.stderr);
    assert!(failed.stderr.contains("fallback: ") && failed.stderr.contains("its self-test failed"));
    run().argument("--strict").refuses_with(6, &["at most 1 nats", "help: "]);
    // Goldens of an unknown version, and a bundle without goldens.
    with_goldens(&bundle, |_| Some(serde_json::json!({ "goldens": 7, "ids": [], "rows": [] })));
    run().refuses_with(4, &["invalid goldens: expected version 2, got 7"]);
    with_goldens(&bundle, |_| None);
    run().argument("--strict").refuses_with(6, &["no goldens to test it with"]);
}
