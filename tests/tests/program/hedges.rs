//! A bundle with a hedge: a chain on the same chip in smaller shards, for a device whose driver
//! refuses the first chain. A device tries the first chain once and remembers the result, until the
//! driver or the bundle changes.

use std::fs;
use std::path::PathBuf;

use serde_json::{Value, json};
use shardwright::OpenOptions;
use shardwright::tools::OpenTools;
use shardwright_build::{BundleLoopStart, LoopStart, RecordedPlan};
use shardwright_bundle::{Bundle, BundleWriter, ChainEntry};
use shardwright_checkpoints::{CompileReport, compile_trying};
use shardwright_shims::Artefact;
use shardwright_tests::checkpoints::TEXT_FIXTURES;
use shardwright_tests::chip::{CHIP, TestChip};
use shardwright_tests::program::{Outcome, Run, shardwright};
use shardwright_tests::tree;
use tempfile::TempDir;

const CHECKPOINT: &str = TEXT_FIXTURES[3];
const HEDGE: &str = "primary-within-ops";

/// A bundle for a chip, with a hedge of its first chain.
struct Hedged {
    chip: TestChip,
    folder: TempDir,
    report: CompileReport,
    /// Most operations of a shard of the hedge.
    ops: u64,
}

impl Hedged {
    /// Compiles a bundle by the plan of the built-in planner, to which a hedge is added as a
    /// planner would add it.
    fn new(build: &str) -> Hedged {
        let chip = TestChip::new();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let checkpoint = tree::root().join(CHECKPOINT);
        let options = OpenOptions::new()
            .soc(CHIP)
            .search_path(chip.search_path())
            .cache_directory(folder.path().join("build"))
            .planner_option("build", build)
            .context(64);
        let plain = folder.path().join("plain");
        let report = options.compile(&checkpoint, &plain, &mut ()).expect("compiled");
        let used = report.variants[0].plan.shards.iter().map(|shard| shard.ops).max().expect("shards");
        let ops = used / 2;

        let bundle = Bundle::open(&plain).expect("a bundle");
        let plan = bundle.read(&bundle.variant().chains[0].plan).expect("read");
        let mut plan: Value = serde_json::from_slice(&plan).expect("JSON");
        let hedge = json!({ "target": 0, "formats": [], "limits": [["ops", ops]] });
        plan["fallback"].as_array_mut().expect("a list").insert(0, hedge);
        let mut writer = BundleWriter::create(&plain).expect("a bundle");
        let mut manifest = writer.previous().cloned().expect("a manifest");
        let plan = writer.add_bytes(plan.to_string().as_bytes()).expect("added");
        manifest.variants[0].chains[0].plan = plan;
        let plain = writer.finish(&manifest).expect("written");
        let recorded = RecordedPlan::of(&plain, &plain.variant().chains[0]).expect("a plan");
        let text = LoopStart { first: Some(recorded), ..LoopStart::default() };
        let trying = BundleLoopStart { text, ..BundleLoopStart::default() };
        let into = folder.path().join("bundle");
        let report = compile_trying(&checkpoint, &into, &options.plan_options(), None, trying, &mut ());
        Hedged { chip, folder, report: report.expect("compiled"), ops }
    }

    fn path(&self) -> PathBuf {
        self.folder.path().join("bundle")
    }

    fn open(&self) -> Bundle {
        Bundle::open(self.path()).expect("a bundle")
    }

    /// Returns the file that notes attempts to load an artefact.
    fn loads(&self) -> PathBuf {
        self.folder.path().join("loads")
    }

    /// Returns the files that remember chains.
    fn remembered(&self) -> Vec<PathBuf> {
        let folder = self.folder.path().join("run/shardwright/unloaded");
        let entries = fs::read_dir(folder).into_iter().flatten();
        let mut files: Vec<PathBuf> = entries.map(|entry| entry.expect("an entry").path()).collect();
        files.sort();
        files
    }

    /// Makes the driver refuse the largest artefact of the first chain, and note every attempt.
    fn refuses(&self, more: &[&str]) {
        let bundle = self.open();
        let largest = |chain: &ChainEntry| {
            let bytes = chain.shards.iter().map(|shard| {
                let path = bundle.place(&shard.artefact).expect("a file").path;
                Artefact::open(&path).expect("an artefact").payload().len()
            });
            bytes.max().expect("shards")
        };
        let chains = &bundle.variant().chains;
        let (first, hedge) = (largest(&chains[0]), largest(&chains[1]));
        assert!(hedge < first, "{hedge} of {first} bytes");
        let load = format!("load - {} 0", hedge + (first - hedge) / 2);
        let notes = format!("loads {} 0 0", self.loads().display());
        self.chip.has_faults(&[&[load.as_str(), notes.as_str()][..], more].concat());
    }

    /// Returns the number of attempts to load an artefact since the last call.
    fn attempts(&self) -> usize {
        let text = fs::read_to_string(self.loads()).unwrap_or_default();
        let _ = fs::remove_file(self.loads());
        text.lines().count()
    }

    fn finds(&self, run: Run) -> Run {
        self.chip.found_by(run).environment("XDG_CACHE_HOME", self.folder.path().join("run"))
    }

    fn start(&self, more: &[&str]) -> Outcome {
        let run = shardwright(["run", "--greedy", "-n", "8", "--prompt", "hello world"]);
        self.finds(run.argument(self.path())).arguments(more).outcome()
    }
}

/// Asserts success and that a line of the output of errors has these words.
fn says(outcome: &Outcome, words: &[&str]) {
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let mut lines = outcome.stderr.lines();
    let has = |line: &str| words.iter().all(|word| line.contains(word));
    assert!(lines.any(has), "no line with {words:?} in {}", outcome.stderr);
}

#[test]
fn a_hedge_of_the_plan_is_planned_within_its_limits_and_compiled() {
    let hedged = Hedged::new("ahead");
    let variant = &hedged.report.variants[0];
    assert_eq!(variant.chains, ["primary", HEDGE, "cpu"]);
    let fallback = &variant.plan.fallback[0];
    assert_eq!((fallback.target.as_str(), &fallback.within), (CHIP, &vec![("ops".to_owned(), hedged.ops)]));
    let predicted = fallback.bytes.expect("bytes");
    assert!(predicted <= variant.plan.totals.artefacts.bytes, "{predicted}");

    let bundle = hedged.open();
    let [first, hedge, cpu] = bundle.variant().chains.as_slice() else { panic!("three chains") };
    assert_eq!((first.is_hedge(), hedge.is_hedge(), cpu.is_hedge()), (false, true, false));
    assert_eq!(hedge.within, [("ops".to_owned(), hedged.ops)]);
    assert!(hedge.shards.len() > first.shards.len(), "{} shards", hedge.shards.len());
    assert!(hedge.shards.iter().all(|shard| shard.target.name == CHIP));
    let report = bundle.read(&hedge.report.expect("a report")).expect("read");
    let report: Value = serde_json::from_slice(&report).expect("JSON");
    assert_eq!(report["fallback"], json!([]), "{report}");
    let shards = report["shards"].as_array().expect("shards");
    assert!(shards.iter().all(|shard| shard["ops"].as_u64() <= Some(hedged.ops)), "{report}");
    let limit = &report["limits"][0];
    assert_eq!((&limit["name"], &limit["provenance"]), (&json!("ops"), &json!("learned")), "{limit}");
    assert_eq!(limit["note"], "hedge of the main chain");
    // Artefacts that only the hedge has.
    let of_first: Vec<_> = first.shards.iter().map(|shard| shard.artefact).collect();
    let own = hedge.shards.iter().map(|shard| shard.artefact).filter(|file| !of_first.contains(file));
    assert_eq!(variant.hedge_bytes, own.map(|file| file.bytes).sum::<u64>());
    assert!(variant.hedge_bytes > 0);
    let shown = shardwright(["inspect"]).argument(hedged.path()).succeeds();
    assert!(shown.contains(&format!("hedge within ops ≤ {}", hedged.ops)), "{shown}");
}

#[test]
fn a_device_tries_the_first_chain_once_and_remembers_that_it_needs_the_hedge() {
    let hedged = Hedged::new("ahead");
    let undisturbed = hedged.start(&["--strict"]);
    assert_eq!(undisturbed.code, Some(0), "{}", undisturbed.stderr);
    assert!(hedged.remembered().is_empty());
    let shards = hedged.open().variant().chains[1].shards.len();

    hedged.refuses(&[]);
    let first = hedged.start(&[]);
    assert_eq!(first.stdout, undisturbed.stdout, "smaller shards change no bit: {}", first.stderr);
    let why = "the chip has no memory left for the artefact";
    let runs = &format!("; chain `{HEDGE}` runs")[..];
    says(&first, &["fallback: chain `primary` does not run here: ", why, runs]);
    let [file] = &hedged.remembered()[..] else { panic!("one file: {:?}", hedged.remembered()) };
    let shown = file.display().to_string();
    says(&first, &["note: later starts skip chain `primary`; remove ", &shown]);
    assert!(hedged.attempts() > shards, "the first chain was tried");

    let earlier = "an earlier start could not load this chain (resource-limit): ";
    for more in [&[][..], &["--soc", CHIP]] {
        let second = hedged.start(more);
        assert_eq!(second.stdout, undisturbed.stdout, "{}", second.stderr);
        says(&second, &["fallback: chain `primary` does not run here: ", earlier, why, &shown]);
        says(&second, &["fallback: chain ", &format!("`{HEDGE}`"), " runs"]);
        assert_eq!(hedged.attempts(), shards, "only the hedge was loaded: {}", second.stderr);
    }
    // Under `--strict` a hedge is not allowed.
    let strict = hedged.start(&["--strict"]);
    assert_ne!(strict.code, Some(0));
    assert!(strict.stderr.contains("error: ") && strict.stderr.contains(earlier), "{}", strict.stderr);
    let help = "help: leave `--strict` out to run the chain's hedge, or remove the file";
    assert!(strict.stderr.contains(help), "{}", strict.stderr);
    assert_eq!((hedged.attempts(), hedged.remembered().len()), (0, 1));

    let doctor = hedged.finds(shardwright(["doctor"]).argument(hedged.path())).json();
    let known = &doctor["unloaded"][0];
    assert_eq!((&known["path"], &known["unloaded"]["trial"]["chain"]), (&json!(shown), &json!("primary")));
    assert_eq!(doctor["bundle"]["would_run"]["chain"], HEDGE, "{doctor}");
    let skipped = doctor["bundle"]["variants"][0]["chains"][0]["skipped"].as_str().expect("a reason");
    assert!(skipped.contains(why) && skipped.contains(&shown), "{skipped}");
    let explained = hedged.finds(shardwright(["explain"]).argument(hedged.path())).json();
    assert_eq!(explained["skipped"][0]["chain"], "primary", "{explained}");
    let text = |candidate: &Value, name: &str| candidate[name].as_str().expect("a text").to_owned();
    let candidates = explained["candidates"].as_array().expect("a list").iter();
    let tiers: Vec<_> = candidates.map(|own| [text(own, "name"), text(own, "tier")]).collect();
    assert_eq!(tiers, [["primary", "own"], [HEDGE, "own"], ["cpu", "fallback"]]);
    let chains = explained["chains"].as_array().expect("a list");
    assert!(chains.iter().all(|own| own["speed"]["each"]["high"].is_u64()), "{explained}");
    let within: Vec<&Value> = chains.iter().map(|own| &own["within"]).collect();
    assert_eq!(within, [&Value::Null, &json!([["ops", hedged.ops]]), &Value::Null]);
    let shown = hedged.finds(shardwright(["explain"]).argument(hedged.path())).succeeds();
    let line = |words: &[&str]| shown.lines().any(|line| words.iter().all(|word| line.contains(word)));
    assert!(line(&["runs", HEDGE, "own variant, hedge"]), "{shown}");
    let limit = format!("{HEDGE}, hedge within ops ≤ {}: first token ", hedged.ops);
    for words in ["primary: first token ", limit.as_str()] {
        assert!(line(&[words, "; each further token "]), "no `{words}` in {shown}");
    }

    // Removing the file forgets the result. The chip works again.
    fs::remove_file(file).expect("removed");
    hedged.chip.has_faults(&[]);
    assert_eq!(hedged.start(&["--strict"]).code, Some(0));
}

#[test]
fn another_driver_and_a_damaged_file_try_the_first_chain_again() {
    let hedged = Hedged::new("ahead");
    let shards = hedged.open().variant().chains[1].shards.len();
    hedged.refuses(&[]);
    says(&hedged.start(&[]), &["later starts skip chain `primary`"]);
    let [file] = &hedged.remembered()[..] else { panic!("one file: {:?}", hedged.remembered()) };
    hedged.attempts();

    hedged.refuses(&["driver 2 0 0"]);
    says(&hedged.start(&[]), &["later starts skip chain `primary`"]);
    assert!(hedged.attempts() > shards, "another driver tries the first chain");
    assert_eq!(hedged.remembered().len(), 2);
    hedged.chip.has_faults(&["driver 3 0 0"]);
    let updated = hedged.start(&["--strict"]);
    assert_eq!(updated.code, Some(0), "the driver loads the first chain now: {}", updated.stderr);
    assert_eq!(hedged.remembered().len(), 2);

    hedged.refuses(&[]);
    let whole = fs::read_to_string(file).expect("read");
    fs::write(file, &whole[..whole.len() / 2]).expect("written");
    let doctor = hedged.finds(shardwright(["doctor"])).json();
    assert!(doctor["problems"].to_string().contains("not a file about a chain"), "{doctor}");
    let damaged = hedged.start(&[]);
    says(&damaged, &["the file is ignored, and chain `primary` is tried", &file.display().to_string()]);
    says(&damaged, &["later starts skip chain `primary`"]);
    assert_eq!(fs::read_to_string(file).expect("read"), whole);

    // If the hedge does not run either, something else is wrong, and no chain is remembered.
    hedged.remembered().iter().for_each(|file| fs::remove_file(file).expect("removed"));
    hedged.chip.has_faults(&["load - 0 0"]);
    says(&hedged.start(&[]), &["chain `primary-within-ops` does not run here: ", "; chain `cpu` runs"]);
    assert!(hedged.remembered().is_empty());
}

/// A chain that may be compiled on the device is compiled there once, before its hedge runs.
#[test]
fn a_skipped_chain_is_not_compiled_again() {
    let hedged = Hedged::new("just-in-time");
    let notes = hedged.folder.path().join("notes");
    let compilations = || fs::read_to_string(&notes).unwrap_or_default().matches("begin ").count();
    hedged.refuses(&[&format!("meets {} 1 0", notes.display())]);
    let start = || hedged.start(&["--checkpoint", CHECKPOINT]);
    says(&start(), &["later starts skip chain `primary`"]);
    let first = compilations();
    assert!(first > 0, "the plan allows compiling here");
    let second = start();
    says(&second, &["chain `primary` does not run here: an earlier start could not load this chain"]);
    assert_eq!(compilations(), first, "{}", second.stderr);
}
