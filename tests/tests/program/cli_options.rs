//! No option is silently ignored: it has an effect, or is refused with a suggestion.

use std::collections::BTreeMap;
use std::fs;
use std::sync::{Mutex, PoisonError};

use serde_json::{Value, json};
use shardwright_tests::bundles::Compiled;
use shardwright_tests::checkpoints::{DEMO_MODEL, EMBEDDING_FIXTURE, MULTIMODAL_FIXTURE, TEXT_FIXTURES};
use shardwright_tests::chip::{CHIP, TestChip};
use shardwright_tests::program::{Run, shardwright};

mod covered;

/// Returns the long help of a command. The program is started once for each command.
pub(crate) fn help_of(command: &str) -> String {
    static HELPS: Mutex<BTreeMap<String, String>> = Mutex::new(BTreeMap::new());
    let mut helps = HELPS.lock().unwrap_or_else(PoisonError::into_inner);
    let help = || shardwright(command.split_whitespace().chain(["--help"])).succeeds();
    helps.entry(command.to_owned()).or_insert_with(help).clone()
}

/// Returns the options of a command as clap prints them.
fn options_of(command: &str) -> Vec<String> {
    /// Columns before an option. Its description begins further to the right.
    const MARGIN: usize = 6;
    let help = help_of(command);
    let is_option = |line: &&str| {
        let text = line.trim_start();
        text.starts_with('-') && line.len() - text.len() <= MARGIN
    };
    let options = help.lines().filter(is_option).map(str::trim_start);
    let options = options.filter_map(|line| {
        let name = line.split([' ', ',']).find(|word| word.starts_with("--"))?;
        Some(name.trim_end_matches("...").to_owned())
    });
    options.collect()
}

#[test]
fn an_option_that_a_bundle_has_decided_is_refused() {
    let bundle = Compiled::of(TEXT_FIXTURES[3]);
    let path = bundle.path().display().to_string();
    for command in ["run", "embed", "bench"] {
        let run = shardwright([command, &path, "--limit", "ops=400", "--strict"]);
        run.refuses_with(2, &["--limit was decided when"]);
    }
    // A command for checkpoints names the way to verify a bundle.
    let way = ["is a bundle", "`verify CHECKPOINT --bundle BUNDLE`"];
    shardwright(["verify", &path]).refuses_with(2, &way);
    let words = help_of("verify").split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("For a bundle, name the checkpoint"), "{words}");
}

#[test]
fn an_option_is_refused_where_it_says_nothing() {
    let cases: &[(&str, i32, &[&str])] = &[
        // Sampling options without sampling.
        ("run MODEL --prompt x --greedy --seed 3", 2, &["--seed"]),
        ("run MODEL --prompt x --temperature 0 --top-k 3", 2, &["--top-k"]),
        // A template without that feature.
        ("run MODEL --thinking on --prompt x", 5, &["enable_thinking"]),
        // A simulator that does not exist.
        ("run MODEL --prompt x --on simulator", 2, &["generic", "--soc"]),
        ("plan MODEL --on simulator", 2, &["generic", "--soc"]),
        // Limits that are not learned, tables that are not listed, and unknown names.
        ("plan MODEL --limit speed=3", 2, &["speed", "weight-bytes"]),
        ("plan MODEL --planner-option nonsense=1", 2, &["nonsense", "place.COMPONENT"]),
        ("plan MODEL --planner even --planner-option balance=ops", 2, &["pieces"]),
        ("plan MODEL --table per-layer=w8-per-channel", 2, &["--table", "per-layer"]),
        ("plan MODEL --planner-option weights.decoder.0-99=w8-per-channel", 7, &["optionally with layers"]),
        ("plan MODEL --planner-option order=beauty", 7, &["names of goals"]),
        // Options set twice.
        ("plan MODEL --limit ops=400 --limit ops=500", 2, &["--limit", "ops"]),
        ("verify MODEL --threshold nll=1 --threshold nll=2", 2, &["nll"]),
        // A repair needs a bundle and writes another one.
        ("verify MODEL --repair", 2, &["--bundle"]),
        ("verify MODEL --bundle x --repair", 2, &["--output"]),
        ("verify MODEL --compilations 3", 2, &["--repair"]),
        // Paths that do not exist.
        ("plan MODEL --planners README.md", 3, &["--planners", "README.md"]),
        ("plan MODEL --shims no/such", 3, &["--shims no/such: no such directory"]),
        ("run MODEL --prompt x --profiles no/such", 3, &["--profiles no/such: no such directory"]),
        ("plan MODEL --calibration-text no/such/text", 3, &["no/such/text"]),
        // Options for other input.
        ("inspect MODEL --verify", 2, &["--verify"]),
        ("inspect MODEL --soc mt6989", 2, &["--soc"]),
        ("run MODEL --prompt x --checkpoint MODEL", 2, &["--checkpoint"]),
        ("run MODEL --prompt x --memory-budget 3GB", 2, &["--memory-budget", "`--memory`"]),
        ("bench MODEL --memory-budget 3GB", 2, &["--memory-budget", "needs a bundle"]),
        // Settings of towers that the model does not have, or that are left out.
        ("plan MODEL --tower-formats stored", 2, &["--tower-formats", "has no tower"]),
        ("compile MODEL --picture-sizes 70 --dry-run", 2, &["--picture-sizes", "no tower of a picture"]),
        ("run MODEL --prompt x --clip-lengths 5", 2, &["--clip-lengths", "no tower of a clip"]),
        ("plan SEES --towers none --tower-formats stored", 2, &["--tower-formats", "--towers", "leaves out"]),
    ];
    for (line, code, words) in cases {
        let words_of_line = line.split(' ').map(|word| match word {
            "MODEL" => TEXT_FIXTURES[0],
            "SEES" => MULTIMODAL_FIXTURE,
            word => word,
        });
        shardwright(words_of_line).refuses_with(*code, words);
    }
    let completions = shardwright(["completions", "bash", "--format", "json"]).outcome();
    assert!(completions.code == Some(2) && completions.stderr.contains("as JSON"), "{}", completions.stderr);
}

/// A command of another program, or a typing error, is answered with the intended command. The
/// answer is JSON if the arguments request it, even if they are wrong.
#[test]
fn a_wrong_command_line_ends_with_help() {
    for (arguments, says, help) in [
        (&["run", "--nonsense"][..], "--nonsense", "help: "),
        (&["plan"], "CHECKPOINT", "help: "),
        (&["plann"], "unknown command `plann`", "help: did you mean `plan`?"),
        (&["plan", "x", "--size", "-1"], "expected 1 byte to 9 PB", "help: run `shardwright COMMAND"),
        (&["plan", "x", "--context", "many"], "expected a whole number from 0 up", "help: "),
    ] {
        let stderr = shardwright(arguments).refuses_with(2, &[says]);
        assert!(stderr.lines().last().is_some_and(|line| line.starts_with(help)), "{stderr}");
    }
    for arguments in [
        &["run", "--nonsense", "--format", "json"][..],
        &["run", "--format=json"],
        &["plan", "x", "--size", "0", "--format=json"],
    ] {
        let outcome = shardwright(arguments).outcome();
        assert_eq!((outcome.code, &*outcome.stdout), (Some(2), ""), "{}", outcome.stderr);
        let report: Value = serde_json::from_str(&outcome.stderr).expect("JSON");
        assert_eq!(report["error"]["kind"], "argument", "{report}");
        for name in ["message", "help"] {
            assert!(report["error"][name].as_str().is_some_and(|text| text.len() > 10), "{report}");
        }
    }
}

#[test]
fn how_much_is_logged_is_what_the_command_line_says() {
    let list = |level: &str| shardwright(["shim", "list"]).environment("SHARDWRIGHT_LOG", level);
    list("loud,[").refuses_with(2, &["SHARDWRIGHT_LOG", "loud"]);
    assert!(list("error").outcome().stderr.is_empty());
    let said = list("error").argument("-vv").outcome().stderr;
    assert!(said.contains("DEBUG"), "the variable counts where -v does not: {said}");
}

/// Creates a folder with a library and a truncated manifest of another name.
fn broken_shim() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("acme.shim.json"), r#"{ "manifest": 1,"#).expect("written");
    fs::write(folder.path().join("libacme.so"), b"no library").expect("written");
    folder
}

/// The original log lines need `-v` or the variable. Otherwise each problem is reported once, as a
/// note.
#[test]
fn a_skipped_shim_is_reported_once_and_as_a_note() {
    let folder = broken_shim();
    let on = |arguments: &[&str]| shardwright(arguments).argument("--shims").argument(folder.path());
    let checkpoint = TEXT_FIXTURES[1];
    let generate = ["run", checkpoint, "--prompt", "hello", "-n", "1", "--greedy"];
    for arguments in [&["plan", checkpoint, "--soc", "mt6989"][..], &generate] {
        let outcome = on(arguments).outcome();
        let said = format!("{}{}", outcome.stdout, outcome.stderr);
        assert_eq!(outcome.code, Some(0), "{said}");
        let lines: Vec<&str> = said.lines().filter(|line| line.contains("acme")).collect();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(
            lines[0].starts_with("note: ")
                && lines[0].contains("acme.shim.json: invalid manifest: ")
                && lines[0].ends_with("; skipped"),
            "{lines:?}"
        );
    }
    // Lists contain the skipped shim themselves.
    for list in [&["shim", "list"][..], &["doctor"]] {
        let outcome = on(list).outcome();
        assert_eq!(outcome.stderr, "", "{list:?}");
        assert!(!outcome.stdout.contains("has no manifest"), "{}", outcome.stdout);
        assert!(outcome.stdout.contains("acme.shim.json"), "{}", outcome.stdout);
    }
    let raw = format!("shim skipped: {}: invalid", folder.path().join("acme.shim.json").display());
    assert!(on(&generate).environment("SHARDWRIGHT_LOG", "info").outcome().stderr.contains(&raw));
    // A terminal does not obey the logged name of a file.
    fs::write(folder.path().join("a\u{1b}[31m\nerror: b\u{9b}2J.shim.json"), "{").expect("written");
    let said = on(&generate).argument("-v").outcome().stderr;
    assert!(said.contains(&raw) && said.matches("shim skipped").count() > 1, "{said}");
    assert!(!said.contains(|c: char| c.is_control() && c != '\n'), "{said:?}");
    assert!(!said.lines().any(|line| line.starts_with("error:")), "{said:?}");
}

/// If the skipped shim is needed, the error or notice has the reason, and there is no second
/// message.
#[test]
fn a_skipped_shim_that_a_plan_needs_is_reported_once() {
    let folder = broken_shim();
    let profiles = tempfile::tempdir().expect("a temporary folder");
    for (name, kind) in [("acme-1", "npu"), ("acme-2", "cpu")] {
        let profile = json!({
            "schema": 1, "name": name, "title": name, "vendor": "test", "shim": "acme", "kind": kind,
        });
        fs::write(profiles.path().join(format!("{name}.json")), profile.to_string()).expect("written");
    }
    let prompt = ["--prompt", "x"];
    for (command, soc, more, code) in [
        ("plan", "acme-1", &[][..], 0),
        ("run", "acme-1", &prompt, 3),
        // No target accepts the model. Operations are counted without the shim.
        ("plan", "acme-2", &["--limit", "ops=60"], 7),
    ] {
        let run = shardwright([command, TEXT_FIXTURES[1], "--soc", soc, "--shims"]).argument(folder.path());
        let outcome = run.argument("--profiles").argument(profiles.path()).arguments(more).outcome();
        let said = format!("{}{}", outcome.stdout, outcome.stderr);
        assert_eq!(outcome.code, Some(code), "{said}");
        assert_eq!(said.matches("acme.shim.json").count(), 1, "{said}");
    }
}

/// A warning that is in no report is a note too.
#[test]
fn a_damaged_cache_of_a_tokenizer_is_a_note() {
    let cache = tempfile::tempdir().expect("a temporary folder");
    let generate = || {
        let run = shardwright(["run", TEXT_FIXTURES[1], "--prompt", "hello", "-n", "1", "--greedy"]);
        run.environment("XDG_CACHE_HOME", cache.path()).outcome()
    };
    assert_eq!(generate().code, Some(0));
    let folder = cache.path().join("shardwright/tokenizers");
    let mut damaged = 0;
    for file in fs::read_dir(&folder).expect("a cache").map(|file| file.expect("a file").path()) {
        fs::write(file, b"damaged").expect("written");
        damaged += 1;
    }
    assert!(damaged > 0);
    let outcome = generate();
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let told = outcome.stderr.lines().filter(|line| line.contains("index of the tokenizer is made anew"));
    let told: Vec<&str> = told.collect();
    assert!(told.len() == 1 && told[0].starts_with("note: "), "{}", outcome.stderr);
}

#[test]
fn an_unused_calibration_text_is_reported() {
    let plan = |formats: &str| {
        let run =
            shardwright(["plan", "--no-measure", TEXT_FIXTURES[1], "--soc", "mt6989", "--formats", formats]);
        run.arguments(["--calibration-text", "README.md"]).json()["notices"].to_string()
    };
    assert!(plan("stored").contains("is not used: no integers"));
    assert!(!plan("w8-per-channel/a16-symmetric/a16").contains("is not used: no integers"));
}

#[test]
fn effort_options_of_a_generating_model_are_refused_for_an_embedding_one() {
    let report = shardwright(["verify", EMBEDDING_FIXTURE, "--steps", "1", "--all"]).json();
    let notices = report["notices"].to_string();
    assert!(notices.contains("`--steps` is ignored") && notices.contains("`--all` is ignored"), "{report}");
}

/// The example planner ignores all flags.
#[test]
fn a_flag_that_the_planner_leaves_out_is_a_fallback() {
    let plan = |planner: &[&str]| {
        let run = shardwright(["plan", "--no-measure", DEMO_MODEL, "--soc", "mt6989", "--flag", "opt=1"]);
        run.arguments(planner)
    };
    let notices = plan(&["--planner", "even"]).json()["notices"].to_string();
    assert!(notices.contains("the planner dropped flag opt=1, which you set"), "{notices}");
    plan(&["--planner", "even", "--strict"]).refuses_with(9, &["opt=1"]);
    plan(&["--strict"]).succeeds();
}

#[test]
fn a_flag_without_effect_is_reported_by_a_plan() {
    // The shim answers.
    let unknown = ["--flag", "nope=1"];
    let plan = |target: &[&str], flag: &[&str]| {
        shardwright(["plan", "--no-measure", DEMO_MODEL]).arguments(target).arguments(flag)
    };
    let words = ["flag nope=1: shim `cpu` has no flag `nope`", "available flags: threads, streams"];
    plan(&[], &unknown).refuses_with(2, &words);

    // There is no vendor's library, and the shim's own simulator answers in its place.
    let target = ["--soc", "mt6989"];
    let notice = |plan: Run| {
        let plan = plan.json();
        let notices = plan["notices"].as_array().expect("notices").iter();
        let of_flag = notices.filter(|notice| notice.to_string().contains(", which you set, is"));
        let [notice] = &of_flag.cloned().collect::<Vec<_>>()[..] else { panic!("{plan}") };
        notice.clone()
    };
    for (flag, words) in [
        ("nope=1", ["nope=1, which you set, is unknown to shim `neuron`", "available flags: opt, "]),
        ("opt=9", ["opt=9, which you set, is refused", "an integer from 0 to 3"]),
    ] {
        let said = notice(plan(&target, &["--flag", flag]));
        assert_eq!(said["kind"], "fallback", "{said}");
        assert!(words.iter().all(|word| said.to_string().contains(word)), "{said}");
        plan(&target, &["--flag", flag, "--strict"]).refuses_with(9, &words);
    }
    plan(&target, &["--flag", "opt=1", "--strict"]).succeeds();

    // No shim answers.
    let profiles = tempfile::tempdir().expect("a temporary folder");
    let profile = json!({
        "schema": 1, "name": "acme-1", "title": "acme-1", "vendor": "test", "shim": "acme", "kind": "npu",
    });
    fs::write(profiles.path().join("acme-1.json"), profile.to_string()).expect("written");
    let said =
        notice(plan(&["--soc", "acme-1", "--profiles"], &[]).argument(profiles.path()).arguments(unknown));
    assert_eq!(said["kind"], "making", "{said}");
    assert!(said.to_string().contains("is unknown: the target's shim was not found"), "{said}");
}

#[test]
fn a_flag_of_a_profile_that_the_shim_does_not_know_is_a_fallback() {
    let chip = TestChip::new();
    let plan = || chip.planned_by(shardwright(["plan", TEXT_FIXTURES[3]]));
    plan().arguments(["--flag", "nope=1"]).refuses_with(2, &["has no flag `nope`"]);
    let file = chip.shims().with_file_name("profiles").join(format!("{CHIP}.json"));
    let mut profile: Value = serde_json::from_slice(&fs::read(&file).expect("read")).expect("JSON");
    profile["flags"] =
        json!([{"name": "invented", "value": "1", "provenance": "reported", "note": "by nobody"}]);
    fs::write(&file, profile.to_string()).expect("written");
    let report = plan().json();
    let notices = report["notices"].as_array().expect("notices").iter();
    let notices: Vec<&Value> = notices.filter(|notice| notice.to_string().contains("invented=1")).collect();
    assert!(notices.len() == 1 && notices[0]["kind"] == "fallback", "{report}");
    plan().argument("--strict").refuses_with(9, &["invented=1", "does not have it"]);
    plan().arguments(["--strict", "--without-flag", "invented"]).succeeds();
}

#[test]
fn a_prompt_with_a_picture_token_is_refused() {
    let bundle = Compiled::of(MULTIMODAL_FIXTURE);
    let bundle = bundle.path().display().to_string();
    for (what, token) in [(MULTIMODAL_FIXTURE, "<|image|>"), (&bundle, "<|audio|>")] {
        let prompt = format!("{token} what is this?");
        let run = shardwright(["run", what, "--raw", "--prompt", &prompt, "-n", "2"]);
        run.refuses_with(5, &[token, "position 1", "picture or sound"]);
    }
}

/// Uses the folder layout of `cargo xtask build`, without any variable set.
#[test]
fn the_simulator_beside_the_program_is_found_where_one_is_asked_for_and_nowhere_else() {
    let target = ["--soc", "mt6989", "--formats", "w8-per-channel/a16-symmetric/a16", "--context", "64"];
    let generate = |what: &str| shardwright(["run", what, "--prompt", "hello", "-n", "2", "--greedy"]);
    for on in [&["--on", "device"][..], &[]] {
        let run = generate(TEXT_FIXTURES[1]).arguments(target).arguments(on);
        run.refuses_with(3, &["no MediaTek library was found", "`--on simulator`"]);
    }
    let bundle = Compiled::from(TEXT_FIXTURES[1], target.into_iter().chain(["--on", "simulator"]));
    let chip = bundle.variant_json()["chains"][0]["shards"].as_array().expect("shards").clone();
    let chip = chip.iter().find(|shard| shard["compiled_by"]["shim"] == "neuron").expect("a shard").clone();
    assert_eq!(chip["compiled_by"]["device"], "mt6989.simulated", "{chip}");
    assert_eq!(chip["compiled_by"]["simulated"], true, "{chip}");
    let path = bundle.path().display().to_string();
    let outcome = generate(&path).argument("--strict").outcome();
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("mt6989 is simulated"), "{}", outcome.stderr);
    shardwright(["doctor", &path]).succeeds();
}
