//! Drafts as a user sees them: the reply is the same, their effect is reported, and a draft that
//! does not fit is refused.

use std::fs;
use std::sync::OnceLock;

use serde_json::Value;
use shardwright_test_checkpoints::cases;
use shardwright_tests::bundles::Compiled;
use shardwright_tests::cache::Cache;
use shardwright_tests::checkpoints::{Copy, DEMO_MODEL, EMBEDDING_FIXTURE};
use shardwright_tests::deeper::deeper;
use shardwright_tests::program::{Run, shardwright};

/// A prompt whose greedy reply repeats itself.
const PROMPT: &str = "In the beginning God created";

/// Returns a reply of 48 tokens, and its statistics.
fn reply(run: Run) -> (String, Value) {
    let output = run.arguments(["--raw", "--prompt", PROMPT, "-n", "48", "--format", "json"]).succeeds();
    let last = output.lines().last().expect("a last line");
    let done: Value = serde_json::from_str(last).expect("JSON");
    (done["reply"].as_str().expect("a reply").to_owned(), done["statistics"].clone())
}

fn count(statistics: &Value, name: &str) -> u64 {
    statistics[name].as_u64().unwrap_or_else(|| panic!("no {name} in {statistics}"))
}

/// Prepares a run with entry points of several rows, whatever the estimated times are.
fn verifying(arguments: &[&str]) -> Run {
    shardwright(["run", DEMO_MODEL, "--planner-option", "speculation=16"]).arguments(arguments)
}

/// Returns the greedy reply of the demo model without drafts.
fn greedy() -> &'static str {
    static REPLY: OnceLock<String> = OnceLock::new();
    REPLY.get_or_init(|| {
        let (text, statistics) = reply(verifying(&["--draft", "off", "--greedy"]));
        assert_eq!((count(&statistics, "drafted_tokens"), count(&statistics, "steps")), (0, 47));
        text
    })
}

#[test]
fn a_reply_with_drafts_is_the_reply_without() {
    let sampled = &["--temperature", "0.9", "--top-k", "40", "--seed", "4"][..];
    let (drawn, statistics) = reply(verifying(&["--draft", "off"]).arguments(sampled));
    assert_eq!((count(&statistics, "drafted_tokens"), count(&statistics, "steps")), (0, 47));
    for (sampling, expected, drafts) in [
        (&["--greedy"][..], greedy(), &[][..]),
        (&["--greedy"], greedy(), &["--draft", "lookup"]),
        (sampled, &*drawn, &["--draft", "auto"]),
        (sampled, &*drawn, &["--draft", "lookup"]),
    ] {
        for isolation in &["process", "off"][..cases(1, 2)] {
            let run = verifying(drafts).arguments(sampling).arguments(["--isolation", isolation]);
            let (text, statistics) = reply(run);
            assert_eq!(text, expected, "{drafts:?} {sampling:?} {isolation}");
            let accepted = count(&statistics, "accepted_tokens");
            assert_eq!(count(&statistics, "steps") + accepted, 47, "{statistics}");
        }
    }
    // The model as its own draft proposes exactly its reply. With lookup in front of it, it gets
    // fewer requests.
    for drafts in [&["--draft", DEMO_MODEL][..], &["--draft", "lookup", "--draft", DEMO_MODEL]] {
        let (text, statistics) = reply(verifying(drafts).argument("--greedy"));
        assert_eq!(text, greedy(), "{drafts:?}");
        assert!(count(&statistics, "drafted_tokens") > 0, "{drafts:?}: {statistics}");
    }
}

#[test]
fn a_bundle_verifies_where_its_plan_does() {
    let bundle = |option: &str| Compiled::from(DEMO_MODEL, ["--planner-option", option]);
    let (with, without) = (bundle("speculation=16"), bundle("speculation=none"));
    let run = |bundle: &Compiled, drafts: &[&str]| {
        shardwright(["run"]).argument(bundle.path()).argument("--greedy").arguments(drafts)
    };
    for (bundle, drafts) in [
        (&with, &[][..]),
        (&with, &["--draft", "lookup"]),
        (&with, &["--draft", &without.path().display().to_string()]),
        (&without, &[]),
        (&without, &["--draft", "off"]),
    ] {
        assert_eq!(reply(run(bundle, drafts)).0, greedy(), "{drafts:?}");
    }
    let refused = run(&without, &["--draft", "lookup", "--prompt", "x"]);
    refused.refuses_with(5, &["no entry point that verifies", "help:", "speculation="]);
}

/// Returns the demo model with another token under one id: the vocabulary has the same size but
/// differs.
fn other_vocabulary() -> Copy {
    let copy = Copy::of(DEMO_MODEL);
    let path = copy.path().join("tokenizer.json");
    let mut tokenizer: Value = serde_json::from_slice(&fs::read(&path).expect("read")).expect("JSON");
    let vocabulary = tokenizer["model"]["vocab"].as_object_mut().expect("a vocabulary");
    let (one, other) = ("▁bet", "▁gl");
    let (first, second) = (vocabulary[one].clone(), vocabulary[other].clone());
    vocabulary.insert(one.to_owned(), second);
    vocabulary.insert(other.to_owned(), first);
    fs::write(&path, tokenizer.to_string()).expect("written");
    copy
}

#[test]
fn a_draft_that_does_not_fit_is_refused() {
    let other = other_vocabulary();
    let other = other.path().display().to_string();
    let cases: &[(&[&str], i32, &[&str])] = &[
        (&["--draft", &other], 6, &["a different vocabulary", "1000", "▁bet", "▁gl", "help:"]),
        (&["--draft", EMBEDDING_FIXTURE], 5, &["computes embeddings"]),
        (&["--draft", "no/such/model"], 3, &["no/such/model"]),
        (&["--draft", "off", "--draft", "lookup"], 2, &["cannot be combined"]),
    ];
    for (drafts, code, words) in cases {
        verifying(drafts).arguments(["--prompt", "x"]).refuses_with(*code, words);
    }
    // Nor is it measured.
    let folder = tempfile::tempdir().expect("a folder");
    let long = folder.path().join("long.txt");
    fs::write(&long, format!("{}\tyes\n", "word ".repeat(400))).expect("written");
    let long = long.display().to_string();
    let tune = |more: &[&str]| {
        let run = shardwright(["tune", DEMO_MODEL, "--minutes", "0", "--context", "128", "--draft"]);
        run.arguments(more).environment("XDG_CACHE_HOME", folder.path())
    };
    tune(&[&other]).refuses_with(6, &["a different vocabulary", "help:"]);
    tune(&[DEMO_MODEL, "--usual-text", &long]).refuses_with(2, &["no prompt", "context of 128", "help:"]);
    let twice = tune(&[DEMO_MODEL, "--draft", DEMO_MODEL]);
    twice.refuses_with(2, &["two drafts have the name `demo-model`", "help:"]);
}

#[test]
fn a_bench_shows_a_reply_with_drafts_beside_one_without() {
    let folder = tempfile::tempdir().expect("a folder");
    let prompt = folder.path().join("prompt.txt");
    fs::write(&prompt, PROMPT).expect("written");
    let bench = |more: &[&str]| {
        let bench = ["bench", DEMO_MODEL, "-n", "40", "-r", "2", "--planner-option", "speculation=16"];
        shardwright(bench).arguments(more)
    };
    let prompted = ["--draft-prompt", prompt.to_str().expect("a name")];
    for (draft, name) in [("lookup", "lookup"), (DEMO_MODEL, "demo-model")] {
        let report = bench(&["--draft", draft]).arguments(prompted).json();
        let drafts = &report["drafts"];
        assert!(drafts["drafts"][0].as_str().is_some_and(|found| found.contains(name)), "{drafts}");
        assert_eq!(drafts["generated_tokens"], 40);
        for speeds in ["with", "without", "ratios"] {
            let samples = drafts[speeds]["samples"].as_array().expect("samples");
            assert!(samples.len() == 2 && samples.iter().all(|one| one.as_f64() > Some(0.0)), "{drafts}");
        }
        let steps = drafts["steps"].as_u64().zip(drafts["accepted"].as_u64()).map(|(a, b)| a + b);
        assert_eq!(steps, Some(39), "{drafts}");
        assert!(drafts["memory_bytes"].as_u64() > Some(0), "{drafts}");
    }
    let shown = bench(&["--draft", "lookup"]).arguments(prompted).succeeds();
    assert!(shown.contains("a reply of 40 tokens to") && shown.contains("with lookup"), "{shown}");
    for (more, word) in [
        (&["--draft", "lookup"][..], "--draft-prompt"),
        (&["--draft", "off", "--draft-prompt", "x"], "x"),
        (&["--draft-prompt", "x"], "--draft"),
    ] {
        let outcome = bench(more).outcome();
        assert!(outcome.code.is_some_and(|code| code == 2 || code == 3), "{}", outcome.stderr);
        assert!(outcome.stderr.contains(word), "{more:?}: {}", outcome.stderr);
    }
}

#[test]
fn a_draft_with_a_shorter_context_expects_nothing_beyond_it() {
    let small = Compiled::from(DEMO_MODEL, ["--context", "24"]);
    let small = small.path().display().to_string();
    let (text, statistics) = reply(verifying(&["--draft", &small, "--greedy", "--strict"]));
    assert_eq!(text, greedy());
    assert!((1..40).contains(&count(&statistics, "drafted_tokens")), "{statistics}");
}

#[test]
fn a_draft_that_fails_is_told_and_under_strict_an_error() {
    let broken = Copy::of(DEMO_MODEL).overflowing();
    let draft = ["--draft", broken.path().to_str().expect("a name"), "--greedy"];
    let arguments = ["--raw", "--prompt", PROMPT, "-n", "48"];
    let told = verifying(&draft).arguments(arguments).outcome();
    assert_eq!((told.code, told.stdout.trim_end()), (Some(0), greedy()), "{}", told.stderr);
    for words in ["fallback: the draft", "the logit of token 0 is NaN", "continues without it", "help:"] {
        assert!(told.stderr.contains(words), "no `{words}` in {}", told.stderr);
    }
    let json = verifying(&draft).arguments(arguments).arguments(["--format", "json"]).succeeds();
    let dropped = json.lines().find(|line| line.contains("draft_dropped")).expect("an event");
    assert!(dropped.contains("because") && dropped.contains("help"), "{dropped}");
    verifying(&draft)
        .arguments(arguments)
        .argument("--strict")
        .refuses_with(9, &["the logit of token 0 is NaN"]);
}

#[test]
fn a_plan_rests_on_conversations_like_the_usual_ones() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        let path = folder.path().join(name);
        fs::write(&path, text).expect("written");
        path.display().to_string()
    };
    let passage = "In the beginning God created the heaven and the earth, and the earth was without form";
    let repeats = write("repeats.txt", &format!("Say again: {passage}\t{passage}, and void.\n").repeat(3));
    let new = write("new.txt", "What is a hacker?\tOne who writes programs well.\n");
    // An empty cache makes the plan use estimates, whatever was measured on this machine.
    let plan = |text: &str| {
        shardwright(["plan", "--no-measure", DEMO_MODEL, "--usual-text", text])
            .environment("XDG_CACHE_HOME", folder.path())
    };
    let planned = |text: &str| plan(text).json();
    let (one, other) = (planned(&repeats), planned(&new));
    let speculation = &one["speculation"];
    assert_eq!(speculation["draft"], "lookup", "{one}");
    let gain = speculation["gain_thousandths"].as_u64().expect("a gain");
    assert!(gain > 1500 && one.to_string().contains("measured"), "{speculation}");
    let gain = other["speculation"]["gain_thousandths"].as_u64();
    assert!(gain.is_none_or(|gain| gain < 1100), "{other}");
    let bundle = Compiled::from(DEMO_MODEL, ["--usual-text", &repeats]);
    let shown = shardwright(["inspect"]).argument(bundle.path()).succeeds();
    assert!(shown.contains("lookup, up to") && shown.contains("expected (measured)"), "{shown}");
    for (text, code, words) in [
        (write("questions.txt", "What is a hacker?\n"), 4, "no reply"),
        (folder.path().join("none.txt").display().to_string(), 3, "none.txt"),
    ] {
        shardwright(["plan", DEMO_MODEL, "--usual-text", &text]).refuses_with(code, &[words, "help:"]);
    }
}

/// The demo model is a perfect draft of a model that is several times as slow. Once that is
/// measured, the slow model's plan verifies its proposals.
#[test]
fn a_smaller_model_that_was_measured_is_what_a_plan_counts_on() {
    let (deeper, cache) = (deeper(24), Cache::empty());
    let deeper = deeper.path().display().to_string();
    let ask = |arguments: &[&str]| cache.run(arguments);
    let plan = ["plan", &deeper, "--context", "256", "--draft", DEMO_MODEL];
    let before = ask(&plan).json();
    assert!(before.to_string().contains("draft demo-model was not measured"), "{before}");
    assert_ne!(before["speculation"]["draft"], "demo-model");

    let tune = ["tune", &deeper, "--context", "256", "--minutes", "0", "--draft", DEMO_MODEL];
    let tuned = ask(&tune).json();
    let draft = &tuned["drafts"][0];
    let right = draft["accepted_steps"].as_array().expect("a histogram");
    let steps = |from: usize| right[from..].iter().filter_map(Value::as_u64).sum::<u64>();
    assert!(right.len() == 16 && steps(15) * 10 > steps(0) * 7 && steps(15) > 10, "{draft}");
    assert_eq!(draft["silent_steps"], 0, "{draft}");
    let times = &draft["times"]["generic"];
    assert!(times["proposed_nanoseconds"].as_u64() < times["model_nanoseconds"].as_u64(), "{draft}");
    assert!(draft["memory_bytes"].as_u64() > Some(1 << 20), "{draft}");

    let request = cache.home().join("request.json");
    let after = ask(&plan).argument("--write-request").argument(&request).json();
    let speculation = &after["speculation"];
    assert_eq!(
        (&speculation["draft"], &speculation["provenance"]),
        (&"demo-model".into(), &"measured".into())
    );
    assert!(speculation["gain_thousandths"].as_u64() > Some(1000), "{speculation}");
    // The plan derives the draft's time from its times of the model.
    let request: Value = serde_json::from_slice(&fs::read(&request).expect("read")).expect("JSON");
    let drafts = request["drafts"].as_array().expect("drafts");
    let stated = drafts.iter().find(|draft| draft["name"] == "demo-model").expect("the draft");
    let entries = after["shards"][0]["entries"].as_array().expect("entry points");
    let one = entries.iter().find(|entry| entry["entry"] == "decode_1@256").expect("a decode");
    let number = |value: &Value| value.as_f64().expect("a number");
    let measured = number(&times["proposed_nanoseconds"]) / number(&times["model_nanoseconds"]);
    let planned = measured * number(&one["time"]["microseconds"]);
    let microseconds = number(&stated["token_time"]["microseconds"]);
    assert!((microseconds - planned).abs() <= 1.0 + planned / 100.0, "{stated} {one} {times}");
    // The draft must be named: its path is not stored anywhere else.
    let unnamed = ask(&plan[..4]).json();
    assert_ne!(unnamed["speculation"]["draft"], "demo-model");
    let off = ask(&["plan", &deeper, "--draft", "off"]).json();
    assert!(off.get("speculation").is_none(), "{off}");

    let bundle = cache.home().join("bundle");
    let bundle = bundle.to_str().expect("a name");
    ask(&["compile", &deeper, "--context", "256", "--draft", DEMO_MODEL, "-o", bundle]).succeeds();
    let run = |drafts: &[&str]| ask(&["run", bundle, "--greedy"]).arguments(drafts);
    let (expected, _) = reply(run(&["--draft", "off"]));
    assert_eq!(expected, greedy());
    let (text, statistics) = reply(run(&["--draft", DEMO_MODEL]));
    assert_eq!(text, expected);
    assert!(count(&statistics, "accepted_tokens") > 0, "{statistics}");
    let unnamed = run(&[]).arguments(["--raw", "--prompt", PROMPT, "-n", "48"]).outcome();
    assert_eq!((unnamed.code, unnamed.stdout.trim_end()), (Some(0), expected.as_str()));
    for words in ["uses `demo-model` as a draft", "lookup replaces it"] {
        assert!(unnamed.stderr.contains(words), "no `{words}` in {}", unnamed.stderr);
    }
    // A checkpoint that is run with the draft is planned for it.
    let (text, statistics) =
        reply(ask(&["run", &deeper, "--context", "256", "--greedy", "--draft", DEMO_MODEL]));
    assert_eq!(text, expected);
    assert!(count(&statistics, "accepted_tokens") > 0, "{statistics}");
}

/// An emulated chip shows how often a draft is right, but not the draft's time on the chip.
#[test]
fn times_beside_what_only_stands_in_for_a_chip_are_not_kept() {
    let cache = Cache::for_test();
    let bundle = cache.home().join("bundle");
    let bundle = bundle.to_str().expect("a name");
    let ask = |arguments: &[&str]| cache.run(arguments);
    let emulated = ["--soc", "mt6989", "--on", "cpu", "--context", "256"];
    ask(&["compile", DEMO_MODEL, "-o", bundle]).arguments(emulated).succeeds();
    let tune = ["tune", bundle, "--checkpoint", DEMO_MODEL, "--minutes", "0", "--draft", DEMO_MODEL];
    let draft = &ask(&tune).json()["drafts"][0];
    let right = draft["accepted_steps"].as_array().expect("a histogram");
    assert!(right.iter().filter_map(Value::as_u64).sum::<u64>() > 10, "{draft}");
    assert_eq!(draft["times"], serde_json::json!({}), "{draft}");
    // This applies to the checkpoint too. On the CPU itself, times are stored.
    let tune = ["tune", DEMO_MODEL, "--minutes", "0", "--draft", DEMO_MODEL];
    if cases(false, true) {
        let again = ask(&tune).arguments(emulated).json();
        assert_eq!(again["drafts"][0]["times"], serde_json::json!({}));
    }
    let beside = ask(&tune).arguments(["--context", "256"]).json();
    assert!(beside["drafts"][0]["times"]["generic"].is_object(), "{}", beside["drafts"]);
}
