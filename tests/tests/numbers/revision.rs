//! A compiler has undocumented limits. The C example, built with a limit that it does not announce,
//! represents one. After a refusal the model is planned again using only the refusal. The new plan
//! is reported, gives the right results, and is remembered.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use shardwright_build::{ArtefactStore, PlanOptions, Purpose, TargetExecutor, settle};
use shardwright_checkpoints::{CheckpointSource, open_checkpoint};
use shardwright_shims::{Artefact, ArtefactDestination, ShimRegistry, WorkOrder};
use shardwright_tests::checkpoints::TEXT_FIXTURES;
use shardwright_tests::chip::{CHIP, TestChip};
use shardwright_tests::program::{self, Run, shardwright};
use shardwright_tests::{plans, tree};
use shardwright_vocabulary::Result;
use shardwright_worker::Isolation;
use tempfile::TempDir;

/// The fixture that is hardest to cut: layers share keys and values, and there are per-layer
/// inputs.
const CHECKPOINT: &str = TEXT_FIXTURES[1];

/// Returns a folder with the shim `stingy`, which silently supports only entries of at most `ops`
/// nodes, and the profile of the chip `tightchip` that it serves.
fn tight_chip(ops: u32) -> TempDir {
    let folder = tempfile::tempdir().expect("a temporary folder");
    compile_shim(folder.path(), ops);
    let template = tree::root().join("vendor-shims/template/c/template_c.shim.json");
    let mut manifest: Value = serde_json::from_slice(&fs::read(template).expect("read")).expect("JSON");
    manifest["name"] = "stingy".into();
    manifest["library"] = "stingy.so".into();
    fs::write(folder.path().join("stingy.shim.json"), manifest.to_string()).expect("written");
    let profile = r#"{"schema": 1, "name": "tightchip", "title": "Tight", "vendor": "Nobody", "shim": "stingy", "kind": "npu",
        "overheads": [{"name": "call-microseconds", "value": 0, "provenance": "measured", "note": "the chip is this CPU"}]}"#;
    fs::create_dir(folder.path().join("profiles")).expect("made");
    fs::write(folder.path().join("profiles/tightchip.json"), profile).expect("written");
    folder
}

fn compile_shim(folder: &Path, ops: u32) {
    let source = tree::root().join("vendor-shims/template/c");
    let mut compile = Command::new("cc");
    compile
        .args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared"])
        .args(["-DSW_TEMPLATE_NAME=\"stingy\"", "-DSW_TEMPLATE_SOC=\"tightchip\""])
        .arg(format!("-DSW_TEMPLATE_OPS_LIMIT={ops}"))
        .arg("-I")
        .arg(tree::root().join("vendor-shims/abi/include"));
    for entry in fs::read_dir(source).expect("the template") {
        let path = entry.expect("a file of the template").path();
        if path.extension().is_some_and(|extension| extension == "c") {
            compile.arg(path);
        }
    }
    let status = compile.arg("-o").arg(folder.join("stingy.so")).arg("-lm").status().expect("a C compiler");
    assert!(status.success(), "the template does not compile with a limit");
}

fn on_the_chip(command: &str, chip: &TempDir) -> Run {
    runs_on_the_chip(command, CHECKPOINT, chip)
}

fn runs_on_the_chip(command: &str, checkpoint: &str, chip: &TempDir) -> Run {
    shardwright([command, checkpoint, "--soc", "tightchip", "--shims"])
        .argument(chip.path())
        .argument("--profiles")
        .argument(chip.path().join("profiles"))
        // Limits learned from one chip are not visible to the next test.
        .environment("XDG_CACHE_HOME", cache(chip))
}

fn cache(chip: &TempDir) -> PathBuf {
    chip.path().join("cache")
}

/// Returns the files of limits that were learned on the chip.
fn lessons(chip: &TempDir) -> Vec<PathBuf> {
    let folder = cache(chip).join("shardwright/limits");
    let entries = fs::read_dir(folder).into_iter().flatten();
    entries.map(|entry| entry.expect("an entry").path()).collect()
}

fn decoder_shards_on<'plan>(plan: &'plan Value, target: &str) -> Vec<&'plan Value> {
    let shards = plan["shards"].as_array().expect("a list of shards").iter();
    shards.filter(|shard| plans::holds(shard, "decoder") && shard["target"] == target).collect()
}

/// Returns the notice about plans that were refused.
fn revised(report: &Value) -> Option<&str> {
    let notices = report["notices"].as_array().expect("a list of notices").iter();
    notices.filter_map(Value::as_str).find(|text| text.contains("refused and revised"))
}

#[test]
fn a_refused_plan_is_revised_and_then_right() {
    const OPS: u32 = 120;
    let chip = tight_chip(OPS);

    // The limit is not visible before a shard is compiled.
    let plan = on_the_chip("plan", &chip).json();
    let whole = decoder_shards_on(&plan, "tightchip");
    assert_eq!(whole.len(), 1, "{plan}");
    assert!(whole[0]["ops"].as_u64() > Some(u64::from(OPS)), "{plan}");
    let limits = plan["limits"].as_array().expect("a list of limits");
    assert!(limits.iter().all(|limit| limit["value"] != OPS), "{plan}");

    let report = on_the_chip("verify", &chip).json();
    assert_eq!(report["passed"], true, "{report}");
    assert!(report["emulated_on"].is_null(), "it runs on the shim itself: {report}");
    assert!(report["decoder_shards"].as_u64() >= Some(3), "292 operations by 120: {report}");
    let said = revised(&report).unwrap_or_else(|| panic!("no word of the refusal: {report}"));
    assert!(
        said.starts_with("1 plan was refused"),
        "the maximum was reported, one revision is enough: {said}"
    );
    assert!(said.contains("decoder.0-10") && said.contains("more than the 120"), "{said}");
}

#[test]
fn a_revised_chain_says_what_the_cpu_says() {
    let chip = tight_chip(120);
    let answer =
        |run: Run| run.arguments(["--greedy", "--max-tokens", "12", "--prompt", "hello world"]).outcome();
    let revised = answer(on_the_chip("run", &chip));
    assert_eq!(revised.code, Some(0), "{}", revised.stderr);
    let note = revised.stderr.lines().find(|line| line.contains("refused and revised"));
    assert!(note.is_some_and(|line| line.starts_with("note: 1 plan was")), "{}", revised.stderr);

    let plain = answer(shardwright(["run", CHECKPOINT]));
    assert_eq!(plain.code, Some(0), "{}", plain.stderr);
    assert!(!plain.stderr.contains("refused"), "{}", plain.stderr);
    assert_eq!(revised.stdout, plain.stdout);
}

/// A revised plan counts as a plan, not as a fallback, as long as all of it runs on its target. The
/// shim supports all operations of this model.
#[test]
fn strictly_a_revised_plan_is_fine_and_another_place_is_not() {
    let verify = |chip: &TempDir| runs_on_the_chip("verify", TEXT_FIXTURES[0], chip).argument("--strict");
    let report = verify(&tight_chip(60)).json();
    assert_eq!(report["passed"], true, "{report}");
    assert!(report["decoder_shards"].as_u64() >= Some(3), "{report}");
    assert!(revised(&report).is_some(), "{report}");

    let (_, stderr) = verify(&tight_chip(12)).refuses();
    assert!(stderr.contains("decoder"), "{stderr}");
}

/// A limit learned from a refusal is stored, so that the next plan is right the first time. It
/// applies until its file is removed or damaged or the user overrides it.
#[test]
fn what_was_learned_makes_the_next_plan_right_first_time() {
    const OPS: u32 = 120;
    let chip = tight_chip(OPS);
    assert_eq!(lessons(&chip), Vec::<PathBuf>::new());
    let first = on_the_chip("verify", &chip).json();
    assert!(revised(&first).is_some(), "{first}");
    let [kept] = &lessons(&chip)[..] else { panic!("one file: {:?}", lessons(&chip)) };

    let plan = on_the_chip("plan", &chip).json();
    assert!(decoder_shards_on(&plan, "tightchip").len() >= 3, "{plan}");
    let limits = plan["limits"].as_array().expect("a list of limits").iter();
    let learned: Vec<&Value> = limits.filter(|limit| limit["provenance"] == "learned").collect();
    assert_eq!(learned.len(), 1, "{plan}");
    assert_eq!((&learned[0]["name"], &learned[0]["target"]), (&"ops".into(), &"tightchip".into()), "{plan}");
    assert_eq!(learned[0]["value"], OPS, "the shim counts as the table does: {plan}");
    assert!(learned[0]["note"].to_string().contains("the maximum is 120"), "{plan}");
    assert!(plan["shards"].to_string().contains("the limit is 120 (learned)"), "{plan}");
    assert!(plan["notices"].to_string().contains("to forget it"), "{plan}");

    let second = on_the_chip("verify", &chip).json();
    assert_eq!((&second["passed"], revised(&second)), (&true.into(), None), "{second}");
    assert_eq!(second["decoder_shards"], first["decoder_shards"]);

    let doctor =
        || shardwright(["doctor", "--format", "json"]).environment("XDG_CACHE_HOME", cache(&chip)).outcome();
    let report: Value = serde_json::from_str(&doctor().stdout).expect("JSON");
    let file = &report["learned"][0];
    assert_eq!(file["path"], kept.display().to_string(), "{report}");
    assert_eq!(
        (&file["limits"][0]["value"], &file["learned_of"]["shim"]),
        (&OPS.into(), &"stingy".into()),
        "{report}"
    );

    // The user's limit overrides it. The refusal occurs again and is handled.
    let overridden = on_the_chip("verify", &chip).arguments(["--limit", "ops=100000"]).json();
    assert!(
        revised(&overridden).is_some() && overridden["notices"].to_string().contains("you set another"),
        "{overridden}"
    );

    let whole = fs::read_to_string(kept).expect("read");
    fs::write(kept, &whole[..whole.len() / 2]).expect("written");
    let plan = on_the_chip("plan", &chip).json();
    assert_eq!(decoder_shards_on(&plan, "tightchip").len(), 1, "{plan}");
    assert!(plan["notices"].to_string().contains("the file is ignored"), "{plan}");
    let report: Value = serde_json::from_str(&doctor().stdout).expect("JSON");
    assert!(report["problems"].to_string().contains("not a file of learned limits"), "{report}");

    fs::remove_file(kept).expect("removed");
    let plan = on_the_chip("plan", &chip).json();
    assert_eq!(decoder_shards_on(&plan, "tightchip").len(), 1, "{plan}");
    assert!(!plan["notices"].to_string().contains("learned"), "{plan}");
}

/// If the limit is set in advance, the first plan is already valid.
#[test]
fn a_limit_set_in_advance_needs_no_refusal() {
    let chip = tight_chip(120);
    let limited = |run: Run| run.arguments(["--limit", "ops=120"]);
    let plan = limited(on_the_chip("plan", &chip)).json();
    assert!(decoder_shards_on(&plan, "tightchip").len() >= 3, "{plan}");
    let report = limited(on_the_chip("verify", &chip)).json();
    assert_eq!(report["passed"], true, "{report}");
    assert_eq!(revised(&report), None, "{report}");
}

/// A layer has more nodes than this. No cut helps, so the decoder runs elsewhere.
#[test]
fn what_no_cut_makes_small_enough_runs_elsewhere() {
    let chip = tight_chip(12);
    let report = on_the_chip("verify", &chip).json();
    assert_eq!(report["passed"], true, "{report}");
    assert_eq!(report["decoder_shards"], 1, "{report}");
    assert!(revised(&report).is_some(), "{report}");
}

/// The example planner only cuts finer after a refusal, without the built-in planner. It gives up
/// when shards of one layer are refused. A planner that repeats its plan is replaced: see
/// `a_planner_that_goes_in_circles_is_replaced` of the planning crate.
#[test]
fn a_planner_of_its_own_revises_and_gives_up_by_itself() {
    let verify = |chip: &TempDir| {
        runs_on_the_chip("verify", TEXT_FIXTURES[0], chip)
            .argument("--planner")
            .argument(program::folder().join("planners/even.wasm"))
            .arguments(["--planner-option", "pieces=1"])
    };
    let report = verify(&tight_chip(120)).json();
    assert_eq!(report["passed"], true, "{report}");
    assert!(!report["notices"].to_string().contains("the built-in planner took over"), "{report}");
    assert!(revised(&report).is_some(), "{report}");

    let (code, stderr) = verify(&tight_chip(20)).refuses();
    assert!(code == 7 && stderr.contains("shards of one layer cannot be cut"), "{code}: {stderr}");
}

/// Builds a command for a chip that fails as `tests/shims/faults.h` specifies.
fn fails(chip: &TestChip, command: &str, faults: &[&str]) -> Run {
    chip.has_faults(faults);
    let cache = chip.shims().join("cache");
    chip.planned_by(shardwright([command, CHECKPOINT])).environment("XDG_CACHE_HOME", cache)
}

/// The planner handles timeouts and exhausted memory of the compiler like refusals: it plans shards
/// with fewer operations, and the results are right.
#[test]
fn what_a_compiler_fails_in_is_planned_otherwise() {
    let chip = TestChip::new();
    for (fault, said) in [
        ("deadline - 120 0", "the compiler gave up after its time"),
        ("memory - 120 0", "the compiler's memory is exhausted"),
    ] {
        let report = fails(&chip, "verify", &[fault]).json();
        assert_eq!(report["passed"], true, "{report}");
        assert!(report["emulated_on"].is_null(), "{report}");
        assert!(report["decoder_shards"].as_u64() >= Some(3), "{report}");
        assert!(revised(&report).is_some_and(|text| text.contains(said)), "{report}");
    }
}

/// A compiler that uses up the memory of its process ends the process.
#[test]
fn memory_that_ends_the_worker_reaches_the_planner() {
    let chip = TestChip::new();
    let run = fails(&chip, "verify", &["eats - 120 0"]);
    let report = run.environment("SHARDWRIGHT_WORKER_MEMORY", "512MiB").json();
    assert_eq!(report["passed"], true, "{report}");
    assert!(report["decoder_shards"].as_u64() >= Some(3), "{report}");
    let said = revised(&report).unwrap_or_else(|| panic!("no word of the refusal: {report}"));
    assert!(said.contains("memory"), "{said}");
}

/// A shard that compiles but cannot be loaded is planned differently, by commands that run the
/// model and by commands that only compile it.
#[test]
fn what_cannot_be_loaded_is_planned_otherwise() {
    let chip = TestChip::new();
    let whole = fails(&chip, "plan", &[]).json();
    let bytes = decoder_shards_on(&whole, CHIP)[0]["artefact_bytes"].as_u64().expect("bytes");
    let fault = format!("load - {} 0", bytes / 2);
    let report = fails(&chip, "verify", &[&fault]).json();
    assert_eq!(report["passed"], true, "{report}");
    assert!(report["decoder_shards"].as_u64() >= Some(2), "{report}");
    let said = revised(&report).unwrap_or_else(|| panic!("no word of the refusal: {report}"));
    assert!(said.contains("no memory left for the artefact"), "{said}");

    let bundle = tempfile::tempdir().expect("a temporary folder");
    let compiled = fails(&chip, "compile", &[&fault]).argument("-o").argument(bundle.path()).json();
    assert!(decoder_shards_on(&compiled["variants"][0]["plan"], CHIP).len() >= 2, "{compiled}");
    assert!(
        compiled["variants"][0]["plan"]["notices"].to_string().contains("refused and revised"),
        "{compiled}"
    );
}

/// A store that keeps no artefacts and records the names of compiled shards.
#[derive(Default)]
struct Compiled(Vec<String>);

impl ArtefactStore for Compiled {
    fn place(&self) -> Result<ArtefactDestination<'_>> {
        Ok(ArtefactDestination::Temporary)
    }

    fn recall(&mut self, _: &WorkOrder, _: &TargetExecutor) -> Result<Option<Artefact>> {
        Ok(None)
    }

    fn keep(&mut self, order: &WorkOrder, _: &TargetExecutor, made: Artefact) -> Result<Artefact> {
        self.0.push(order.name().to_owned());
        Ok(made)
    }
}

#[test]
fn shards_that_the_next_plan_keeps_are_not_compiled_again() {
    let chip = tight_chip(120);
    let options = PlanOptions {
        soc: Some("tightchip".to_owned()),
        shims: ShimRegistry::builder().directory(chip.path()).directory(program::folder().join("shims")),
        profiles: vec![chip.path().join("profiles")],
        isolation: Isolation::Off,
        ..PlanOptions::default()
    };
    let checkpoint = open_checkpoint(&tree::root().join(CHECKPOINT)).expect("a checkpoint");
    let mut source = CheckpointSource::new(&checkpoint, &options);
    let mut compiled = Compiled::default();
    let settled = settle(&mut source, &options, Purpose::Run, &mut compiled, &mut ()).expect("a plan holds");
    let notices = &settled.report.notices;
    assert!(notices.iter().any(|notice| notice.text.contains("refused and revised")), "{notices:?}");
    // The components before the decoder were compiled before it was refused, and only once.
    assert_eq!(compiled.0.len(), settled.shards.len(), "{:?}", compiled.0);
}
