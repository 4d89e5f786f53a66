//! Every command that accepts a bundle checks its signature first.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::json;
use shardwright_tests::bundles::Compiled;
use shardwright_tests::checkpoints::{EMBEDDING_FIXTURE, TEXT_FIXTURES};
use shardwright_tests::program::{Outcome, Run, shardwright};
use shardwright_tests::serving::Server;

use super::{Bench, INVALID, UNTRUSTED, refused};
use crate::cli_options::help_of;
use crate::serve::client::{get, post};

/// The checkpoint of the bundle.
const CHECKPOINT: &str = TEXT_FIXTURES[0];

/// Placeholders for the bundle, for a bundle that embeds, and for a new path.
const BUNDLE: &str = "BUNDLE";
const EMBEDS: &str = "EMBEDS";
const NEW: &str = "NEW";

/// All commands that accept a bundle, each with its ways.
const COMMANDS: &[(&str, &[&[&str]])] = &[
    ("run", &[&[BUNDLE, "--prompt", "a b", "--max-tokens", "4", "--greedy"]]),
    ("chat", &[&[BUNDLE, "--max-tokens", "4", "--greedy"]]),
    ("bench", &[&[BUNDLE, "-p", "4", "-n", "2", "-r", "1"]]),
    ("compile", &[&[CHECKPOINT, "--reuse", BUNDLE, "-o", NEW, "--context", "64"]]),
    (
        "pack",
        &[
            &[BUNDLE, "-o", NEW],
            &[BUNDLE, "--ai-pack", NEW, "--name", "demo"],
            &[BUNDLE, "--adb", NEW],
            &[BUNDLE, "--hf", NEW, "--licence", "apache-2.0"],
        ],
    ),
    ("needs", &[&[BUNDLE]]),
    ("explain", &[&[BUNDLE]]),
    ("calibration-text", &[&[BUNDLE, "-o", NEW, "--tokens", "4", "--longest", "4"]]),
    ("inspect", &[&[BUNDLE], &[BUNDLE, "--verify"]]),
    ("plan diff", &[&[BUNDLE, BUNDLE]]),
    (
        "perplexity",
        &[
            &[BUNDLE, "--text", "README.md", "--window", "16", "--chunks", "1"],
            &[CHECKPOINT, "--against", BUNDLE, "--text", "README.md", "--window", "16", "--chunks", "1"],
        ],
    ),
    ("tune", &[&[BUNDLE, "--checkpoint", CHECKPOINT, "--minutes", "0"]]),
    ("embed", &[&[EMBEDS, "a text"]]),
    (
        "verify",
        &[
            &[CHECKPOINT, "--bundle", BUNDLE, "--rows", "4", "--steps", "1", "--greedy", "1"],
            &[CHECKPOINT, "--bundle", BUNDLE, "--repair", "-o", NEW, "--rows", "4", "--greedy", "1"],
        ],
    ),
    ("doctor", &[&[BUNDLE]]),
];

/// All other commands. The `trust` commands are among them, because they work on unsigned files.
/// `serve` runs until it is stopped, so it has a test of its own.
const OTHERS: &str = "serve, plan, sensitivity, show, shim list, shim hash, shim new, planner new, planner build, \
    planner compose, planner check, planner replay, planner pack, trust key, trust sign, trust revoke, \
    trust show, completions, pull";

/// Adds the subcommands of a command, as the program lists them.
pub(crate) fn listed(above: &[&str], found: &mut Vec<String>) {
    let help = help_of(&above.join(" "));
    let lines = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let names = lines.take_while(|line| !line.is_empty()).filter(|line| !line.starts_with("   "));
    let names: Vec<&str> = names.filter_map(|line| line.split_whitespace().next()).collect();
    if !above.is_empty() && (names.is_empty() || help.contains("<CHECKPOINT>")) {
        found.push(above.join(" "));
    }
    for name in names.into_iter().filter(|name| *name != "help") {
        listed(&[above, &[name]].concat(), found);
    }
}

#[test]
fn the_table_has_every_command() {
    let mut found = Vec::new();
    listed(&[], &mut found);
    let mut expected: Vec<&str> = COMMANDS.iter().map(|(name, _)| *name).chain(OTHERS.split(", ")).collect();
    found.sort();
    expected.sort_unstable();
    assert_eq!(found, expected);
}

/// Bundles to use as arguments, and a folder for outputs.
struct Taken<'b> {
    bench: &'b Bench,
    text: PathBuf,
    embeds: PathBuf,
    made: usize,
}

impl Taken<'_> {
    /// Calls `check` with the words and a run for each way to accept a bundle.
    fn each(&mut self, check: impl Fn(&str, &dyn Fn() -> Run)) {
        for (command, ways) in COMMANDS {
            for way in *ways {
                self.made += 1;
                let new = self.bench.path(&format!("new-{}", self.made));
                let run = || {
                    let run = way.iter().fold(shardwright(command.split(' ')), |run, word| match *word {
                        BUNDLE => run.argument(&self.text),
                        EMBEDS => run.argument(&self.embeds),
                        NEW => run.argument(&new),
                        word => run.argument(word),
                    });
                    run.environment("XDG_CACHE_HOME", self.bench.path("cache"))
                };
                check(&format!("{command} {}", way.join(" ")), &run);
            }
        }
    }
}

/// Copies a bundle with a truncated manifest, which is recognised but invalid.
fn garbled(bundle: &Path, to: PathBuf) -> PathBuf {
    const BEGIN: usize = 64;
    fs::create_dir(&to).expect("a folder");
    let mut bytes = fs::read(bundle.join("bundle.json")).expect("a manifest");
    bytes.truncate(BEGIN);
    fs::write(to.join("bundle.json"), bytes).expect("written");
    to
}

#[test]
fn every_command_that_takes_a_bundle_asks_for_its_signature_first() {
    let bench = Bench::new();
    let compiled = [CHECKPOINT, EMBEDDING_FIXTURE].map(Compiled::of);
    let [text, embeds] = [compiled[0].path(), compiled[1].path()];
    let require = |words: &str, run: Run| {
        let run = run.arguments(["--signatures", "require", "--trust", &bench.public]);
        // `plan diff` loads no shim.
        match words.starts_with("plan diff") {
            true => run,
            false => run.argument("--shims").argument(bench.path("shims")),
        }
    };

    // An unsigned bundle is refused before parsing, so its invalid manifest is not reported.
    let nonsense = garbled(&text, bench.path("garbled"));
    let mut taken = Taken { bench: &bench, text: nonsense.clone(), embeds: nonsense, made: 0 };
    taken.each(|words, run| {
        refused(require(words, run()), UNTRUSTED, &["garbled: not signed"]);
        refused(run(), INVALID, &[]);
    });

    // With `warn` the bundle is used, and that is reported.
    let mut taken = Taken { bench: &bench, text: text.clone(), embeds: embeds.clone(), made: 100 };
    taken.each(|words, run| {
        let warned = run().arguments(["--signatures", "warn"]).outcome();
        assert_eq!(warned.code, Some(0), "{words}: {}{}", warned.stdout, warned.stderr);
        let notes = |shown: &str| shown.lines().any(|line| line.contains("bundle: not signed"));
        assert!(notes(&warned.stderr) || notes(&warned.stdout), "{words}: {}", warned.stderr);
    });

    for bundle in [&text, &embeds] {
        bench.signs(bundle).arguments(["--name", "demo", "--release", "1"]).succeeds();
    }
    shardwright(["shim", "hash"]).argument(bench.manifest()).succeeds();
    bench.signs(&bench.manifest()).succeeds();
    let mut taken = Taken { bench: &bench, text, embeds, made: 200 };
    taken.each(|words, run| {
        // Outputs of `compile` and `verify --repair` differ in name from the bundle that is read.
        let named = !words.starts_with("compile") && !words.contains("--repair");
        let expects = |name: &str| match named {
            true => require(words, run()).arguments(["--expect", name]),
            false => require(words, run()),
        };
        if named {
            // Another bundle signed with the same key is not the expected one.
            refused(expects("gemma"), UNTRUSTED, &["signed as `demo`, expected `gemma`"]);
        }
        let Outcome { code, stdout, stderr } = expects("demo").outcome();
        assert_eq!(code, Some(0), "{words}: {stdout}{stderr}");
        assert!(!stderr.contains("bundle: not signed"), "{words}: {stderr}");
    });
}

#[test]
fn a_server_asks_for_the_signature_of_a_bundle_first() {
    let bench = Bench::new();
    let bundle = bench.bundle.path();
    let served = || {
        let run = shardwright(["serve", "--port", "0", "--signatures", "require", "--trust", &bench.public]);
        run.argument("--shims").argument(bench.path("shims")).argument(&bundle)
    };
    refused(served(), UNTRUSTED, &["not signed"]);
    bench.signs(&bundle).arguments(["--name", "demo", "--release", "1"]).succeeds();
    shardwright(["shim", "hash"]).argument(bench.manifest()).succeeds();
    bench.signs(&bench.manifest()).succeeds();
    let server = Server::of(served());
    let address = server.host().parse().expect("an address");
    let id = get(address, "/v1/models").json()["data"][0]["id"].clone();
    let request = json!({ "model": id, "prompt": "a b", "max_tokens": 4 });
    let answered = post(address, "/v1/completions", &request);
    assert_eq!(answered.status, 200, "{answered:?}");
}

#[test]
fn an_expected_name_needs_a_bundle() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let plan = folder.path().join("plan.json");
    fs::write(&plan, shardwright(["plan", CHECKPOINT, "--format", "json"]).succeeds()).expect("written");
    let plan = plan.display().to_string();
    let commands: [&[&str]; 11] = [
        &["run", CHECKPOINT, "-p", "a"],
        &["inspect", CHECKPOINT],
        &["doctor"],
        &["verify", CHECKPOINT],
        &["tune", CHECKPOINT],
        &["bench", CHECKPOINT],
        &["embed", EMBEDDING_FIXTURE, "a text"],
        // The output is another file, which is not looked at.
        &["calibration-text", CHECKPOINT, "-o", &plan],
        &["perplexity", CHECKPOINT, "--text", "README.md"],
        &["perplexity", CHECKPOINT, "--text", "README.md", "--against", CHECKPOINT],
        &["plan", "diff", &plan, &plan],
    ];
    for command in commands {
        refused(shardwright(command).arguments(["--expect", "demo"]), 2, &["--expect needs a bundle"]);
    }
}

/// JSON reports about bundles contain the warning too.
#[test]
fn reports_carry_what_signatures_are_warned_of() {
    let compiled = Compiled::from(CHECKPOINT, ["--context", "64"]);
    let bundle = compiled.path();
    let of_bundle = [bundle.as_path()];
    let twice = [bundle.as_path(), bundle.as_path()];
    let cases: [(&[&str], &[&Path]); 5] = [
        (&["inspect"], &of_bundle),
        (&["explain"], &of_bundle),
        (&["needs"], &of_bundle),
        (&["doctor"], &of_bundle),
        (&["plan", "diff"], &twice),
    ];
    for (command, paths) in cases {
        let run = || paths.iter().fold(shardwright(command), |run, path| run.argument(path));
        let report = run().arguments(["--signatures", "warn"]).json();
        let notices =
            report["signature_notices"].as_array().unwrap_or_else(|| panic!("{command:?}: {report}"));
        let about = |notice: &serde_json::Value| notice.to_string().contains("bundle: not signed");
        assert_eq!(notices.iter().filter(|notice| about(notice)).count(), 1, "{command:?}: {notices:?}");
        // Otherwise the document is the same.
        let mut without = report.clone();
        without.as_object_mut().expect("an object").remove("signature_notices");
        let unasked = run().json();
        let names = |report: &serde_json::Value| -> Vec<String> {
            report.as_object().expect("an object").keys().cloned().collect()
        };
        assert_eq!(names(&without), names(&unasked), "{command:?}");
    }
}
