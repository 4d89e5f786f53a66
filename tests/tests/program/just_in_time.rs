//! A bundle whose artefacts cannot be used here. They are recompiled on this machine if the plan
//! allows that and the checkpoint is available. Otherwise the plan's next chain runs, or opening
//! fails. In each case the reason is reported.

use std::fs;
use std::path::PathBuf;

use shardwright::{BundleOptions, ErrorKind, Model, OpenOptions, PlacementRecord, WeightFormat};
use shardwright_bundle::Bundle;
use shardwright_checkpoints::CompileReport;
use shardwright_tests::bundles;
use shardwright_tests::checkpoints::TEXT_FIXTURES;
use shardwright_tests::chip::{CHIP, TestChip};
use shardwright_tests::program::{Outcome, shardwright};
use shardwright_tests::tree;
use tempfile::TempDir;

const CHECKPOINT: &str = TEXT_FIXTURES[3];

/// A bundle for a chip, compiled ahead. Its plan may allow recompiling.
struct Made {
    chip: TestChip,
    folder: TempDir,
}

impl Made {
    fn with(build: &str) -> Made {
        let made = Made { chip: TestChip::new(), folder: tempfile::tempdir().expect("a temporary folder") };
        made.compile_options(build).compile(checkpoint(), made.path(), &mut ()).expect("compiled");
        made
    }

    fn compile_options(&self, build: &str) -> OpenOptions {
        OpenOptions::new()
            .soc(CHIP)
            .search_path(self.chip.search_path())
            .cache_directory(self.cache())
            .planner_option("build", build)
            .context(64)
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("bundle")
    }

    fn cache(&self) -> PathBuf {
        self.folder.path().join("cache")
    }

    fn options(&self) -> BundleOptions {
        BundleOptions::new().search_path(self.chip.search_path()).cache_directory(self.cache())
    }

    /// Changes a byte of the first artefact.
    fn damage(&self) {
        let bundle = Bundle::open(self.path()).expect("a bundle");
        let artefact = bundle.variant().chains[0].shards[0].artefact.sha256.to_string();
        bundles::damage(&self.path().join("files").join(artefact));
    }

    /// Starts `run BUNDLE` on this chip, with further arguments.
    fn start(&self, more: &[&str]) -> Outcome {
        let run = shardwright(["run"]).argument(self.path()).environment("XDG_CACHE_HOME", self.cache());
        let run = run.arguments(["--greedy", "-n", "4", "--prompt", "hello"]);
        self.chip.found_by(run).arguments(more).outcome()
    }
}

fn checkpoint() -> PathBuf {
    tree::root().join(CHECKPOINT)
}

fn reply(model: &Model) -> (String, PlacementRecord) {
    let mut session = model.session().expect("a session");
    session.options.max_tokens = Some(8);
    let reply = session.complete("hello world").expect("a prompt").text().expect("a reply");
    (reply, session.placement())
}

fn notices(model: &Model) -> String {
    model.report().bundle_notices().map(|notice| format!("{}\n", notice.text)).collect()
}

#[test]
fn where_the_plan_allows_it_a_chain_is_compiled_here_and_its_cost_is_reported() {
    let made = Made::with("just-in-time");
    let (expected, ahead) = reply(&made.options().strict(true).open(made.path()).expect("it loads"));
    assert!(ahead.beforehand.is_nothing(), "what was compiled ahead is used: {ahead:?}");

    for (what, words) in
        [("unsupported", "the chip's compiler has moved on"), ("damage", "damaged: expected SHA-256")]
    {
        match what {
            "damage" => {
                made.chip.behaves_as("well");
                made.damage();
            }
            answer => made.chip.behaves_as(answer),
        }
        // Recompiling is part of the plan, not a fallback.
        let options = made.options().strict(true).checkpoint(checkpoint());
        let model = options.open(made.path()).unwrap_or_else(|error| panic!("{what}: {error}"));
        let (text, record) = reply(&model);
        assert_eq!(text, expected, "{what}");
        let compiled =
            record.beforehand.compiled_here.as_ref().unwrap_or_else(|| panic!("{what}: {record:?}"));
        assert!(compiled.because.contains(words) && compiled.nanoseconds > 0, "{what}: {compiled:?}");
        assert!(record.shards.iter().all(|shard| shard.place.shim == CHIP), "{what}: {record:?}");
        let json = serde_json::to_value(&record).expect("JSON");
        assert!(json["beforehand"]["compiled_here"]["nanoseconds"].is_u64(), "{json}");
        let said = notices(&model);
        assert!(said.contains("was compiled on this machine") && said.contains(words), "{what}: {said}");
    }
}

#[test]
fn without_the_checkpoint_the_next_chain_runs_and_a_suggestion_is_reported() {
    let made = Made::with("just-in-time");
    made.chip.behaves_as("unsupported");
    let model = made.options().open(made.path()).expect("the next chain");
    let (_, record) = reply(&model);
    let passed = &record.beforehand.passed_over[0];
    assert_eq!((passed.chain.as_str(), passed.kind.as_str()), ("primary", "incompatible"), "{record:?}");
    assert!(passed.error.contains("requires the checkpoint"), "{passed:?}");
    assert!(record.shards.iter().all(|shard| shard.place.shim == "cpu"), "{record:?}");
    let error = made.options().strict(true).open(made.path()).err().expect("strict");
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    assert!(error.help().is_some_and(|help| help.contains("--checkpoint")), "{error:?}");

    // Another checkpoint is refused.
    let other =
        made.options().checkpoint(tree::root().join(TEXT_FIXTURES[0])).open(made.path()).expect("the next");
    assert!(notices(&other).contains("the bundle was not made from"), "{}", notices(&other));
    // A compiler that refuses here too does not help. Both failures are reported.
    let model = made.options().checkpoint("nowhere").open(made.path()).expect("the next chain");
    let said = notices(&model);
    assert!(said.contains("moved on") && said.contains("compiling it here failed too"), "{said}");

    // The program reports the same. If the chip is named, one notice contains both reasons.
    let Outcome { stderr, .. } = made.start(&[]);
    assert!(stderr.contains("fallback: chain `primary` does not run here"), "{stderr}");
    let Outcome { code, stderr, .. } = made.start(&["--soc", CHIP]);
    assert_eq!((code, stderr.matches("moved on").count()), (Some(0), 1), "{stderr}");
    assert!(stderr.contains("but that requires the checkpoint"), "{stderr}");
    let (_, stderr) = shardwright(["run", CHECKPOINT, "--checkpoint", CHECKPOINT, "--prompt", "x"]).refuses();
    assert!(stderr.contains("--checkpoint needs a bundle"), "{stderr}");
}

#[test]
fn where_the_plan_does_not_allow_it_nothing_is_compiled() {
    let made = Made::with("ahead");
    made.chip.behaves_as("unsupported");
    let with_checkpoint = || made.options().checkpoint(checkpoint());
    let (_, record) = reply(&with_checkpoint().open(made.path()).expect("the next chain"));
    assert_eq!(
        (record.beforehand.passed_over.len(), &record.beforehand.compiled_here),
        (1, &None),
        "{record:?}"
    );
    assert!(with_checkpoint().strict(true).open(made.path()).is_err());
    let named = made.start(&["--soc", CHIP, "--checkpoint", CHECKPOINT]);
    assert_eq!(named.code, Some(0), "{}", named.stderr);
    assert!(!named.stderr.contains("compiled on this machine"), "{}", named.stderr);

    made.chip.behaves_as("well");
    made.damage();
    let error = with_checkpoint().open(made.path()).err().expect("damage ends it");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
}

/// Each start plans again, but the shards are compiled once: their artefacts are found by key.
#[test]
fn a_chain_compiled_here_is_kept_for_the_next_start() {
    let made = Made::with("just-in-time");
    made.chip.behaves_as("unsupported");
    let notes = made.folder.path().join("notes");
    made.chip.has_faults(&[&format!("meets {} 1 0", notes.display())]);
    let compilations = || match fs::read_to_string(&notes) {
        Ok(text) => text.lines().filter(|line| line.starts_with("begin ")).count(),
        Err(_) => 0,
    };
    let start = || made.start(&["--checkpoint", CHECKPOINT, "--strict"]);
    let first = start();
    assert_eq!(first.code, Some(0), "{}", first.stderr);
    for words in [
        "note: chain `primary` was compiled on this machine in",
        "the chip's compiler has moved on",
        ", cached for the next start in ",
    ] {
        assert!(first.stderr.contains(words), "no `{words}` in {}", first.stderr);
    }
    let made_first = compilations();
    assert!(made_first > 0);
    let second = start();
    assert_eq!((second.code, &second.stdout), (Some(0), &first.stdout), "{}", second.stderr);
    assert_eq!(compilations(), made_first, "the second start calls no compiler: {}", second.stderr);
    assert!(second.stderr.contains("was compiled on this machine earlier"), "{}", second.stderr);

    // A machine that the user names as a chip compiles for it like a machine with that chip.
    let named = made.start(&["--soc", CHIP, "--checkpoint", CHECKPOINT, "--strict"]);
    assert_eq!(named.code, Some(0), "{}", named.stderr);
    assert!(named.stderr.contains("note: chain `primary` was compiled on this machine"), "{}", named.stderr);
}

/// All chains of a bundle gather from one table, even if the plan quantises it, and so does a
/// recompiled chain.
#[test]
fn a_table_that_the_plan_rounds_is_the_bundles() {
    let made = Made::with("just-in-time");
    let compile = |size: u64| {
        let options = made.compile_options("just-in-time").size(size);
        options.compile(checkpoint(), made.path(), &mut ()).expect("compiled")
    };
    let format = |report: &CompileReport| report.variants[0].plan.tables[0].format;
    let whole = compile(1 << 40);
    let totals = &whole.variants[0].plan.totals;
    assert_eq!(format(&whole), WeightFormat::Bf16, "{:?}", whole.variants[0].plan.tables);
    // A tenth less leaves no room for the step that verifies proposals, and both chains fit.
    let plain = compile(totals.artefacts.bytes * 9 / 5 + totals.table_bytes);
    let artefacts = plain.variants[0].plan.totals.artefacts.bytes;
    assert!(artefacts < totals.artefacts.bytes && plain.variants[0].chains == ["primary", "cpu"]);
    // The bytes fit both chains in their stored formats, and three quarters of the tables.
    let rounded = compile(2 * artefacts + totals.table_bytes * 3 / 4);
    assert_eq!(format(&rounded), WeightFormat::W8PerChannel, "{:?}", rounded.variants[0].plan.tables);
    assert_eq!(rounded.variants[0].chains, ["primary", "cpu"]);
    assert!(rounded.bytes < whole.bytes, "{} of {}", rounded.bytes, whole.bytes);

    let (expected, _) = reply(&made.options().strict(true).open(made.path()).expect("it loads"));
    made.damage();
    let model = made.options().strict(true).checkpoint(checkpoint()).open(made.path()).expect("anew");
    let (text, record) = reply(&model);
    assert!(record.beforehand.compiled_here.is_some(), "{record:?}");
    assert_eq!(text, expected);
}
