//! Drafts as a user has them: the reply is the same, what they did is told, and one that does not
//! fit is refused.

use std::fs;

use serde_json::Value;
use shardwright_tests::bundles::Compiled;
use shardwright_tests::checkpoints::{Copy, DEMO_MODEL, EMBEDDING_FIXTURE};
use shardwright_tests::program::{Run, shardwright};

/// A prompt whose greedy reply repeats itself.
const PROMPT: &str = "In the beginning God created";

/// A reply of 48 tokens, and its statistics.
fn reply(run: Run) -> (String, Value) {
    let output = run.arguments(["--prompt", PROMPT, "-n", "48", "--format", "json"]).succeeds();
    let last = output.lines().last().expect("a last line");
    let done: Value = serde_json::from_str(last).expect("JSON");
    (done["reply"].as_str().expect("a reply").to_owned(), done["statistics"].clone())
}

fn count(statistics: &Value, name: &str) -> u64 {
    statistics[name].as_u64().unwrap_or_else(|| panic!("no {name} in {statistics}"))
}

/// With entry points of several rows, whatever times say.
fn verifying(arguments: &[&str]) -> Run {
    shardwright(["run", DEMO_MODEL, "--planner-option", "speculation=16"]).arguments(arguments)
}

#[test]
fn a_reply_with_drafts_is_the_reply_without() {
    for sampling in [&["--greedy"][..], &["--temperature", "0.9", "--top-k", "40", "--seed", "4"]] {
        let (expected, statistics) = reply(verifying(&["--draft", "off"]).arguments(sampling));
        assert_eq!(count(&statistics, "drafted_tokens"), 0);
        assert_eq!(count(&statistics, "steps"), 47);
        for drafts in [&[][..], &["--draft", "auto"], &["--draft", "lookup"]] {
            for isolation in ["off", "process"] {
                let run = verifying(drafts).arguments(sampling).arguments(["--isolation", isolation]);
                let (text, statistics) = reply(run);
                assert_eq!(text, expected, "{drafts:?} {sampling:?} {isolation}");
                let accepted = count(&statistics, "accepted_tokens");
                assert_eq!(count(&statistics, "steps") + accepted, 47, "{statistics}");
            }
        }
    }
    // The same model expects just what it says itself, and with lookup before it is asked for less.
    let (expected, _) = reply(verifying(&["--draft", "off", "--greedy"]));
    for drafts in [&["--draft", DEMO_MODEL][..], &["--draft", "lookup", "--draft", DEMO_MODEL]] {
        let (text, statistics) = reply(verifying(drafts).argument("--greedy"));
        assert_eq!(text, expected, "{drafts:?}");
        assert!(count(&statistics, "drafted_tokens") > 0, "{drafts:?}: {statistics}");
    }
}

#[test]
fn a_bundle_verifies_where_its_plan_does() {
    let bundle = |option: &str| Compiled::from(DEMO_MODEL, ["--planner-option", option]);
    let (with, without) = (bundle("speculation=16"), bundle("speculation=none"));
    let run = |bundle: &Compiled, drafts: &[&str]| {
        shardwright(["run", &bundle.path().display().to_string(), "--greedy"]).arguments(drafts)
    };
    let (expected, _) = reply(run(&with, &["--draft", "off"]));
    for (bundle, drafts) in [
        (&with, &[][..]),
        (&with, &["--draft", "lookup"]),
        (&with, &["--draft", &without.path().display().to_string()]),
        (&without, &[]),
        (&without, &["--draft", "off"]),
    ] {
        assert_eq!(reply(run(bundle, drafts)).0, expected, "{drafts:?}");
    }
    let (code, stderr) = run(&without, &["--draft", "lookup", "--prompt", "x"]).refuses();
    assert_eq!(code, 5, "{stderr}");
    for word in ["no entry point that verifies", "help:", "speculation="] {
        assert!(stderr.contains(word), "no `{word}` in {stderr}");
    }
}

/// The demo model with another token under one id: as many tokens, and another vocabulary.
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
        (&["--draft", &other], 6, &["another vocabulary", "1000", "▁bet", "▁gl", "help:"]),
        (&["--draft", EMBEDDING_FIXTURE], 5, &["embeds"]),
        (&["--draft", "no/such/model"], 3, &["no/such/model"]),
        (&["--draft", "off", "--draft", "lookup"], 2, &["stand alone"]),
        (&["--draft", ""], 2, &["lookup"]),
    ];
    for (drafts, code, words) in cases {
        let (actual, stderr) = verifying(drafts).arguments(["--prompt", "x"]).refuses();
        assert_eq!(actual, *code, "{drafts:?}: {stderr}");
        for word in *words {
            assert!(stderr.contains(word), "{drafts:?}: no `{word}` in {stderr}");
        }
    }
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
    let (expected, _) = reply(verifying(&["--draft", "off", "--greedy"]));
    let (text, statistics) = reply(verifying(&["--draft", &small, "--greedy", "--strict"]));
    assert_eq!(text, expected);
    assert!((1..40).contains(&count(&statistics, "drafted_tokens")), "{statistics}");
}

/// The demo model with a last norm that is no number.
fn broken() -> Copy {
    let copy = Copy::of(DEMO_MODEL);
    let path = copy.path().join("model.safetensors");
    let mut bytes = fs::read(&path).expect("read");
    let head = 8 + u64::from_le_bytes(bytes[..8].try_into().expect("eight bytes")) as usize;
    let tensors: Value = serde_json::from_slice(&bytes[8..head]).expect("JSON");
    let (_, norm) = tensors
        .as_object()
        .expect("tensors")
        .iter()
        .find(|(name, _)| name.ends_with(".norm.weight") && !name.contains("layers"))
        .expect("a last norm");
    let at = |side: usize| norm["data_offsets"][side].as_u64().expect("an offset") as usize + head;
    // Of every floating-point type.
    bytes[at(0)..at(1)].fill(0xff);
    fs::write(&path, bytes).expect("written");
    copy
}

#[test]
fn a_draft_that_fails_is_told_and_under_strict_an_error() {
    let broken = broken();
    let draft = ["--draft", broken.path().to_str().expect("a name"), "--greedy"];
    let (expected, _) = reply(verifying(&["--draft", "off", "--greedy"]));
    let arguments = ["--prompt", PROMPT, "-n", "48"];
    let told = verifying(&draft).arguments(arguments).outcome();
    assert_eq!((told.code, told.stdout.trim_end()), (Some(0), expected.as_str()), "{}", told.stderr);
    for words in ["fallback: the draft", "failed", "goes on without it", "help:"] {
        assert!(told.stderr.contains(words), "no `{words}` in {}", told.stderr);
    }
    let json = verifying(&draft).arguments(arguments).arguments(["--format", "json"]).succeeds();
    let dropped = json.lines().find(|line| line.contains("draft_dropped")).expect("an event");
    assert!(dropped.contains("because") && dropped.contains("help"), "{dropped}");
    let (code, stderr) = verifying(&draft).arguments(arguments).argument("--strict").refuses();
    assert!(code == 9 && stderr.contains("failed"), "{code}: {stderr}");
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
    let planned = |text: &str| shardwright(["plan", DEMO_MODEL, "--usual-text", text]).json();
    let (one, other) = (planned(&repeats), planned(&new));
    let speculation = &one["speculation"];
    assert_eq!(speculation["draft"], "lookup", "{one}");
    let gain = speculation["gain_thousandths"].as_u64().expect("a gain");
    assert!(gain > 1500 && one.to_string().contains("measured"), "{speculation}");
    let gain = other["speculation"]["gain_thousandths"].as_u64();
    assert!(gain.is_none_or(|gain| gain < 1100), "{other}");
    for (text, code, words) in [
        (write("empty.txt", "\n"), 2, "no reply"),
        (write("questions.txt", "What is a hacker?\n"), 2, "no reply"),
        (folder.path().join("none.txt").display().to_string(), 3, "none.txt"),
    ] {
        let (actual, stderr) = shardwright(["plan", DEMO_MODEL, "--usual-text", &text]).refuses();
        assert!(actual == code && stderr.contains(words) && stderr.contains("help:"), "{actual}: {stderr}");
    }
}
