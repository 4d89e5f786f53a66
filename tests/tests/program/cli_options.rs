//! No option is silently ignored: it has an effect, or is refused with a suggestion.

use std::fs;
use std::path::Path;

use serde_json::{Value, json};
use shardwright_tests::bundles::Compiled;
use shardwright_tests::checkpoints::{DEMO_MODEL, EMBEDDING_FIXTURE, MULTIMODAL_FIXTURE, TEXT_FIXTURES};
use shardwright_tests::chip::{CHIP, Chip};
use shardwright_tests::program::{Run, shardwright};

mod covered;

/// Exit codes of invalid arguments and unsupported requests.
const ARGUMENT: i32 = 2;
const UNSUPPORTED: i32 = 5;
const STRICT: i32 = 9;

/// Asserts a refusal of bad input, with the name of the fault, and help.
fn refused(run: Run, code: i32, words: &[&str]) {
    let (actual, stderr) = run.refuses();
    assert_eq!(actual, code, "{stderr}");
    for word in words {
        assert!(stderr.contains(word), "no `{word}` in {stderr}");
    }
}

/// Returns the options of a command as clap prints them, each with the placeholder of its value.
fn options_of(command: &str) -> Vec<(String, Option<String>)> {
    /// Columns before an option. Its description begins further to the right.
    const MARGIN: usize = 6;
    let help = shardwright(command.split(' ').chain(["--help"])).succeeds();
    let is_option = |line: &&str| {
        let text = line.trim_start();
        text.starts_with('-') && line.len() - text.len() <= MARGIN
    };
    let options = help.lines().filter(is_option).map(str::trim_start);
    let options = options.filter_map(|line| {
        let mut words = line.split([' ', ',']).filter(|word| !word.is_empty());
        let name = words.by_ref().find(|word| word.starts_with("--"))?;
        let value = words.next().filter(|word| word.starts_with('<'));
        Some((name.trim_end_matches("...").to_owned(), value.map(str::to_owned)))
    });
    options.collect()
}

/// Options that apply to a bundle too.
const OF_A_BUNDLE: &[(&str, &[&str])] = &[
    (
        "run",
        &[
            "--prompt",
            "--image",
            "--audio",
            "--soft-tokens",
            "--chat",
            "--raw",
            "--control-tokens-in-text",
            "--system",
            "--thinking",
            "--max-tokens",
            "--greedy",
            "--temperature",
            "--top-k",
            "--top-p",
            "--min-p",
            "--repetition-penalty",
            "--seed",
            "--stop",
            "--quiet",
            "--draft",
        ],
    ),
    ("embed", &["--prompt-name", "--dimensions"]),
    (
        "bench",
        &[
            "--prompt-tokens",
            "--generated-tokens",
            "--depth",
            "--repetitions",
            "--all-logits",
            "--first-tokens",
            "--text",
            "--probe",
            "--probe-mebibytes",
            "--draft",
            "--draft-prompt",
        ],
    ),
];

/// Options about the machine that runs the command, for every command.
const OF_THIS_MACHINE: [&str; 18] = [
    "--soc",
    "--flag",
    "--checkpoint",
    "--memory-budget",
    "--strict",
    "--shims",
    "--planners",
    "--profiles",
    "--trust",
    "--signatures",
    "--revocations",
    "--expect",
    "--threads",
    "--isolation",
    "--format",
    "--verbose",
    "--help",
    "--version",
];

/// Values to try. Each option accepts one of them.
const VALUES: [&str; 9] =
    ["ops=400", "embedding=w8-per-channel", "stored", "128", "cpu", "500ms", "speed", "nearest", "picture"];

/// Returns the command with an option and the first value that it accepts.
fn with_option(command: &[&str], name: &str, has_value: bool) -> Run {
    if !has_value {
        return shardwright(command).argument(name);
    }
    for value in VALUES {
        let run = || shardwright(command).arguments([name, value]);
        if !run().outcome().stderr.contains("invalid value") {
            return run();
        }
    }
    panic!("{name} takes none of {VALUES:?}");
}

#[test]
fn every_option_is_refused_of_which_a_bundle_leaves_no_choice() {
    let bundle = Compiled::from(TEXT_FIXTURES[3], [] as [&str; 0]);
    let path = bundle.path().display().to_string();
    for (command, of_a_bundle) in OF_A_BUNDLE {
        let options = options_of(command);
        let stays = || of_a_bundle.iter().chain(&OF_THIS_MACHINE);
        for name in stays() {
            assert!(options.iter().any(|(known, _)| known == name), "{command} has no {name}: {options:?}");
        }
        let decided: Vec<_> =
            options.iter().filter(|(name, _)| !stays().any(|stays| stays == name)).collect();
        assert!(decided.len() >= 11, "{decided:?}");
        for (name, value) in decided {
            let run = with_option(&[command, &path], name, value.is_some());
            refused(run.argument("--strict"), ARGUMENT, &[name, "was decided when"]);
        }
    }
    // A command for checkpoints names the way to verify a bundle.
    refused(
        shardwright(["verify", &path]),
        ARGUMENT,
        &["is a bundle", "`verify CHECKPOINT --bundle BUNDLE`"],
    );
    let help = shardwright(["verify", "--help"]).succeeds();
    let words = help.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("For a bundle, name the checkpoint"), "{help}");
}

/// `--format` is the format of reports, `--formats` the formats of weights.
#[test]
fn format_and_formats_are_distinguished() {
    for (option, value, says) in [
        ("--format", "w8-per-channel/a16/a8", "--formats w8-per-channel/a16/a8"),
        ("--formats", "json", "--format json"),
        ("--format", "yaml", "text or json"),
    ] {
        let outcome = shardwright(["plan", TEXT_FIXTURES[0], option, value]).outcome();
        assert_eq!((outcome.code, outcome.stdout.as_str()), (Some(2), ""), "{option} {value}");
        assert!(outcome.stderr.contains(says), "{option} {value}: {}", outcome.stderr);
    }
}

#[test]
fn an_option_is_refused_where_it_says_nothing() {
    let generates = TEXT_FIXTURES[0];
    let cases: &[(&[&str], i32, &[&str])] = &[
        // Sampling options without sampling.
        (&["run", generates, "--prompt", "x", "--greedy", "--seed", "3"], 2, &["--seed"]),
        (&["run", generates, "--prompt", "x", "--temperature", "0", "--top-k", "3"], 2, &["--top-k"]),
        // A template without that feature.
        (&["run", generates, "--thinking", "on", "--prompt", "x"], 5, &["enable_thinking"]),
        // A simulator that does not exist.
        (&["run", generates, "--prompt", "x", "--on", "simulator"], 2, &["generic", "--soc"]),
        (&["plan", generates, "--on", "simulator"], 2, &["generic", "--soc"]),
        // Limits that are not learned, tables that are not listed, and unknown names.
        (&["plan", generates, "--limit", "speed=3"], 2, &["speed", "weight-bytes"]),
        (&["plan", generates, "--planner-option", "nonsense=1"], 2, &["nonsense", "place.COMPONENT"]),
        (&["plan", generates, "--planner", "even", "--planner-option", "balance=ops"], 2, &["pieces"]),
        (&["plan", generates, "--table", "per-layer=w8-per-channel"], 2, &["per-layer"]),
        (
            &["plan", generates, "--planner-option", "weights.decoder.0-99=w8-per-channel"],
            7,
            &["layers of it"],
        ),
        (&["plan", generates, "--planner-option", "order=beauty"], 7, &["names of goals"]),
        // Options set twice.
        (&["plan", generates, "--limit", "ops=400", "--limit", "ops=500"], 2, &["--limit", "ops"]),
        (&["plan", DEMO_MODEL, "--soc", "mt6989", "--flag", "opt=1", "--flag", "opt=2"], 2, &["opt"]),
        (&["plan", DEMO_MODEL, "--soc", "mt6989", "--flag", "opt=1", "--without-flag", "opt"], 2, &["opt"]),
        (&["plan", generates, "--table", "embedding=f16", "--table", "embedding=f32"], 2, &["embedding"]),
        (
            &["plan", generates, "--planner-option", "build=ahead", "--planner-option", "build=ahead"],
            2,
            &["build"],
        ),
        (&["verify", generates, "--threshold", "nll=1", "--threshold", "nll=2"], 2, &["nll"]),
        // A repair needs a bundle and writes another one.
        (&["verify", generates, "--repair"], 2, &["--bundle"]),
        (&["verify", generates, "--bundle", "x", "--repair"], 2, &["--output"]),
        (&["verify", generates, "--compilations", "3"], 2, &["--repair"]),
        // Paths that do not exist.
        (&["plan", generates, "--profiles", "no/such/folder"], 3, &["--profiles", "no/such/folder"]),
        (&["plan", generates, "--planners", "README.md"], 3, &["--planners", "README.md"]),
        (&["run", generates, "--prompt", "x", "--shims", "no/such/folder"], 3, &["--shims"]),
        (&["plan", generates, "--calibration-text", "no/such/text"], 3, &["no/such/text"]),
        // Options for other input.
        (&["inspect", generates, "--verify"], 2, &["--verify"]),
        (&["inspect", generates, "--soc", "mt6989"], 2, &["--soc"]),
        (&["run", generates, "--prompt", "x", "--checkpoint", generates], 2, &["--checkpoint"]),
        (
            &["run", generates, "--prompt", "x", "--memory-budget", "3GB"],
            2,
            &["--memory-budget", "`--memory`"],
        ),
        (&["bench", generates, "--memory-budget", "3GB"], 2, &["--memory-budget", "needs a bundle"]),
        // Settings of towers that the model does not have, or that are left out.
        (&["plan", generates, "--tower-formats", "stored"], 2, &["--tower-formats", "has no tower"]),
        (
            &["compile", generates, "--picture-sizes", "70", "--dry-run"],
            2,
            &["--picture-sizes", "no tower of a picture"],
        ),
        (
            &["run", generates, "--prompt", "x", "--clip-lengths", "5"],
            2,
            &["--clip-lengths", "no tower of a clip"],
        ),
        (
            &["plan", MULTIMODAL_FIXTURE, "--towers", "none", "--tower-formats", "stored"],
            2,
            &["--tower-formats", "--towers leaves out"],
        ),
        (
            &["plan", MULTIMODAL_FIXTURE, "--towers", "clip", "--picture-sizes", "70"],
            2,
            &["--picture-sizes", "--towers leaves out"],
        ),
    ];
    for (arguments, code, words) in cases {
        refused(shardwright(*arguments), *code, words);
    }
    let completions = shardwright(["completions", "bash", "--format", "json"]).outcome();
    assert!(completions.code == Some(2) && completions.stderr.contains("as JSON"), "{}", completions.stderr);
    // Options that the parser itself refuses, because they need another option or belong to another
    // command.
    for (arguments, word) in [
        (&["bench", generates, "--probe-mebibytes", "3"][..], "--probe"),
        (&["run", generates, "--raw", "--system", "x"], "--raw"),
        (&["run", generates, "--thinking", "much"], "a number of tokens"),
        (&["run", generates, "--image", "x"], "--prompt"),
        (&["run", generates, "--prompt", "x", "--soft-tokens", "70"], "--image"),
        (&["run", generates, "--threads", "0"], "--threads"),
        (&["shim", "list", "--planners", "x"], "--planners"),
        (&["shim", "list", "--trust", "x"], "--trust"),
        (&["inspect", generates, "--planners", "x"], "--planners"),
        (&["planner", "check", "generic", "--shims", "x"], "--shims"),
    ] {
        let outcome = shardwright(arguments).outcome();
        assert_eq!(outcome.code, Some(2), "{arguments:?}: {}", outcome.stderr);
        assert!(outcome.stderr.contains(word), "{arguments:?}: {}", outcome.stderr);
    }
}

#[test]
fn a_wrong_command_line_is_json_where_it_asks_for_that() {
    for arguments in [&["run", "--nonsense", "--format", "json"][..], &["run", "--format=json"]] {
        let outcome = shardwright(arguments).outcome();
        assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
        let report: Value = serde_json::from_str(&outcome.stderr).expect("JSON");
        assert_eq!(report["error"]["kind"], "argument", "{report}");
        assert!(report["error"]["message"].as_str().is_some_and(|text| text.len() > 10), "{report}");
    }
}

#[test]
fn a_wrong_command_line_ends_with_help() {
    for arguments in [&["run", "--nonsense"][..], &["nonsense"], &["plan"]] {
        let outcome = shardwright(arguments).outcome();
        assert_eq!(outcome.code, Some(2), "{}", outcome.stderr);
        let last = outcome.stderr.lines().last();
        assert!(last.is_some_and(|line| line.starts_with("help: ")), "{}", outcome.stderr);
    }
}

/// A command of another program, or a typing error, is answered with the intended command.
#[test]
fn an_unknown_command_is_answered_with_the_one_that_is_meant() {
    for (name, meant) in [
        ("rnu", "`run`"),
        ("plann", "`plan`"),
        ("chat", "`run MODEL`"),
        ("profiles", "`doctor`"),
        ("qqqq", "list"),
    ] {
        let (code, says) = shardwright([name]).refuses();
        assert!(code == 2 && says.contains(&format!("unknown command `{name}`")), "{says}");
        let help = says.lines().last().expect("help");
        assert!(help.starts_with("help: ") && help.contains(meant), "{says}");
    }
}

#[test]
fn how_much_is_logged_is_what_the_command_line_says() {
    let list = |level: &str| shardwright(["shim", "list"]).environment("SHARDWRIGHT_LOG", level);
    refused(list("loud,["), 2, &["SHARDWRIGHT_LOG", "loud"]);
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
    for arguments in [&["plan", checkpoint][..], &["plan", checkpoint, "--soc", "mt6989"], &generate] {
        let outcome = on(arguments).outcome();
        let said = format!("{}{}", outcome.stdout, outcome.stderr);
        assert_eq!(outcome.code, Some(0), "{said}");
        let lines: Vec<&str> = said.lines().filter(|line| line.contains("acme")).collect();
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(
            lines[0].starts_with("note: ")
                && lines[0].contains("acme.shim.json: invalid manifest: ")
                && lines[0].ends_with("; it is skipped"),
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
    assert!(on(&generate).argument("-v").outcome().stderr.contains(&raw));
    assert!(on(&generate).environment("SHARDWRIGHT_LOG", "info").outcome().stderr.contains(&raw));
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
    assert!(plan("stored").contains("is not calibrated on"));
    assert!(!plan("w8-per-channel/a16-symmetric/a16").contains("is not calibrated on"));
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
    assert!(notices.contains("the planner left flag opt=1 out, which you set"), "{notices}");
    refused(plan(&["--planner", "even", "--strict"]), STRICT, &["opt=1"]);
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
    refused(plan(&[], &unknown), ARGUMENT, &words);
    let chip = Chip::new();
    let on_chip = || chip.planned_by(shardwright(["plan", "--no-measure", DEMO_MODEL]));
    refused(on_chip().arguments(unknown), ARGUMENT, &["has no flag `nope`"]);

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
        refused(plan(&target, &["--flag", flag, "--strict"]), STRICT, &words);
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
    assert!(said.to_string().contains("is unknown: the target's shim is not at hand"), "{said}");
}

fn change(file: &Path, change: impl FnOnce(&mut Value)) {
    let mut value = serde_json::from_slice(&fs::read(file).expect("read")).expect("JSON");
    change(&mut value);
    fs::write(file, value.to_string()).expect("written");
}

#[test]
fn a_flag_of_a_profile_that_the_shim_does_not_know_is_a_fallback() {
    let chip = Chip::new();
    let profile = chip.shims().with_file_name("profiles").join(format!("{CHIP}.json"));
    change(&profile, |profile| {
        profile["flags"] = json!([
            {"name": "invented", "value": "1", "provenance": "reported", "note": "by nobody"}
        ]);
    });
    let plan = || chip.planned_by(shardwright(["plan", TEXT_FIXTURES[3]]));
    let report = plan().json();
    let notices = report["notices"].as_array().expect("notices").iter();
    let notices: Vec<&Value> = notices.filter(|notice| notice.to_string().contains("invented=1")).collect();
    assert!(notices.len() == 1 && notices[0]["kind"] == "fallback", "{report}");
    refused(plan().argument("--strict"), STRICT, &["invented=1", "does not know it"]);
    plan().arguments(["--strict", "--without-flag", "invented"]).succeeds();
}

#[test]
fn a_prompt_with_a_picture_token_is_refused() {
    let multimodal = TEXT_FIXTURES[2];
    let bundle = Compiled::from(multimodal, [] as [&str; 0]);
    for what in [multimodal, &bundle.path().display().to_string()] {
        for (token, position) in [("<|image|>", "position 1"), ("<|audio|>", "position 1")] {
            let prompt = format!("{token} what is this?");
            let run = shardwright(["run", what, "--raw", "--prompt", &prompt, "-n", "2"]);
            refused(run, UNSUPPORTED, &[token, position, "picture or sound"]);
        }
        shardwright(["run", what, "--prompt", "what is this?", "-n", "2", "--greedy"]).succeeds();
    }
}

/// Uses the folder layout of `cargo xtask build`, without any variable set.
#[test]
fn the_simulator_beside_the_program_is_found_where_one_is_asked_for_and_nowhere_else() {
    let target = ["--soc", "mt6989", "--formats", "w8-per-channel/a16-symmetric/a16", "--context", "64"];
    let generate = |what: &str| shardwright(["run", what, "--prompt", "hello", "-n", "2", "--greedy"]);
    for on in [&["--on", "device"][..], &[]] {
        let run = generate(TEXT_FIXTURES[1]).arguments(target).arguments(on);
        refused(run, 3, &["no MediaTek library was found", "`--on simulator`"]);
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

#[test]
fn what_is_logged_of_a_file_is_shown_and_not_obeyed() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("a\u{1b}[31m\nerror: b\u{9b}2J.shim.json"), "{").expect("written");
    let run = shardwright(["plan", TEXT_FIXTURES[3], "--shims"]).argument(folder.path()).argument("-v");
    let outcome = run.outcome();
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("shim skipped"), "{}", outcome.stderr);
    assert!(!outcome.stderr.contains(|c: char| c.is_control() && c != '\n'), "{:?}", outcome.stderr);
    assert!(!outcome.stderr.lines().any(|line| line.starts_with("error:")), "{:?}", outcome.stderr);
}
