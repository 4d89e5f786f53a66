//! One bundle for several chips: the data that variants share, which variant runs on which chip,
//! and the reports on the others.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use serde_json::Value;
use shardwright_bundle::{Bundle, BundleWriter, FileReference, Manifest};
use shardwright_test_checkpoints::cases;
use shardwright_tests::bundles::{Compiled, contents, write_contents};
use shardwright_tests::checkpoints::DEMO_MODEL;
use shardwright_tests::chip::{CHIP, TestChip};
use shardwright_tests::neuron::{A16W8, Shim};
use shardwright_tests::program::{Run, shardwright};
use shardwright_tests::qnn::library;
use tempfile::TempDir;

/// A fixture that compiles in a second. Its CPU chains have the formats of MediaTek's chips.
pub const CHECKPOINT: &str = "tests/fixtures/gemma3_text";

/// Two MediaTek chips on the simulator of its library, and any machine.
pub struct Bench {
    shim: Shim,
    folder: TempDir,
}

impl Bench {
    fn new() -> Self {
        Bench { shim: Shim::with("plain"), folder: tempfile::tempdir().expect("a temporary folder") }
    }

    /// Returns a bench with a bundle for the three, and the report of its compilation. It is
    /// compiled once for all tests.
    pub fn with_bundle() -> (Self, &'static Value) {
        static MADE: OnceLock<(BTreeMap<PathBuf, Vec<u8>>, Value)> = OnceLock::new();
        let (files, report) = MADE.get_or_init(|| {
            let bench = Bench::new();
            let report = bench.compiles("mt6989,mt6993,generic", "bundle").json();
            (contents(&bench.bundle()), report)
        });
        let bench = Bench::new();
        write_contents(files, &bench.bundle());
        (bench, report)
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    pub fn bundle(&self) -> PathBuf {
        self.path("bundle")
    }

    pub fn run<'a>(&self, arguments: impl IntoIterator<Item = &'a str>) -> Run {
        shardwright(arguments).argument("--shims").argument(self.shim.folder())
    }

    fn compiles(&self, socs: &str, name: &str) -> Run {
        let formats = ["--formats", A16W8, "--context", "64", "--on", "simulator", "-o"];
        self.run(["compile", CHECKPOINT, "--soc", socs]).arguments(formats).argument(self.path(name))
    }

    fn explains(&self, bundle: &Path, soc: Option<&str>) -> Value {
        let run = self.run(["explain"]).argument(bundle);
        match soc {
            Some(soc) => run.arguments(["--soc", soc]).json(),
            None => run.json(),
        }
    }

    pub fn generates(&self, bundle: &Path, soc: &str) -> String {
        let run = self.run(["run", "--prompt", "a b", "--max-tokens", "4", "--greedy", "--soc", soc]);
        run.argument(bundle).succeeds()
    }
}

fn chosen(report: &Value) -> (&str, &str, &str) {
    let first = &report["candidates"][0];
    let text = |name: &str| first[name].as_str().unwrap_or_else(|| panic!("{report}"));
    (text("soc"), text("name"), text("tier"))
}

/// Writes the manifest with its variants in another order, and updates its hash.
fn reordered(bundle: &Path, change: impl FnOnce(&mut Manifest)) {
    let writer = BundleWriter::create(bundle).unwrap_or_else(|error| panic!("{error}"));
    let mut manifest = writer.previous().cloned().expect("a manifest");
    change(&mut manifest);
    writer.finish(&manifest).unwrap_or_else(|error| panic!("{error}"));
}

#[test]
fn every_chip_runs_its_variant_whatever_the_order_and_the_form() {
    let (bench, report) = Bench::with_bundle();
    let bundle = bench.bundle();
    assert_eq!(report["variants"].as_array().map(Vec::len), Some(3), "{report}");
    // Equal inputs give equal bundles, in any order and with any number of parallel jobs.
    bench.compiles("generic,mt6993,mt6989", "again").arguments(["--jobs", "3"]).succeeds();
    assert!(contents(&bundle) == contents(&bench.path("again")));

    let expected = bench.generates(&bundle, "mt6993");
    let packed = bench.path("bundle.swb");
    shardwright(["pack"]).argument(&bundle).argument("-o").argument(&packed).succeeds();
    for turn in 0..3 {
        for form in [&bundle, &packed] {
            for soc in ["mt6989", "mt6993"] {
                let report = bench.explains(form, Some(soc));
                assert_eq!(chosen(&report), (soc, "primary", "own"), "{report}");
            }
            // Neither chip is in this machine. A simulator must not be chosen by itself, because it
            // is slow.
            assert_eq!(chosen(&bench.explains(form, None)), ("generic", "primary", "general"));
            assert_eq!(chosen(&bench.explains(form, Some("generic"))), ("generic", "primary", "own"));
            // A chip without a variant.
            let report = bench.explains(form, Some("mt6991"));
            assert_eq!(chosen(&report), ("generic", "primary", "general"), "{report}");
            let passed = report["passed"].as_array().expect("passed");
            let said = passed.iter().map(|passed| passed["reason"].as_str().expect("a reason"));
            assert!(said.clone().any(|reason| reason.contains("mt6989")), "{report}");
            let helps: Vec<&str> = passed.iter().filter_map(|passed| passed["help"].as_str()).collect();
            assert!(helps.contains(&"compile the checkpoint for `mt6991` too"), "{report}");
            // A chip of another vendor. Its profile is not at fault.
            let report = bench.explains(form, Some("sm8850"));
            assert_eq!(chosen(&report), ("generic", "primary", "general"), "{report}");
            let own = report["passed"].as_array().expect("passed").iter();
            let own: Vec<&Value> = own.filter(|passed| passed["name"] == "primary").collect();
            assert_eq!(own.len(), 2, "{report}");
            for passed in own {
                let reason = "shim `neuron` does not support sm8850, whose shim is `qnn`";
                let help = "compile the checkpoint for `sm8850` too";
                assert_eq!((&passed["reason"], &passed["help"]), (&reason.into(), &help.into()), "{report}");
            }
        }
        assert_eq!(bench.generates(&packed, "mt6993"), expected);
        if turn < 2 {
            reordered(&bundle, |manifest| manifest.variants.rotate_left(1));
            shardwright(["pack"]).argument(&bundle).argument("-o").argument(&packed).succeeds();
        }
    }
}

/// The demo model for two chips of either vendor and any machine. Two compilations give the same
/// bytes, in both forms. Every chip finds its variant, chips with the same fallback share an
/// artefact, and there are no other files. Qualcomm's compiler occasionally gives other bytes, so
/// it compiles once.
#[test]
fn the_demo_model_for_two_vendors_is_one_bundle() {
    if !library() {
        return;
    }
    let bench = Bench::new();
    let chips = ["mt6989", "mt6993", "sm8750", "sm8850"];
    let compile = |socs: &[&str], name: &str, reused: Option<&str>| {
        let socs = [socs, &["generic"]].concat().join(",");
        let target = ["--context", "64", "--on", "simulator", "--rounding", "nearest", "-o"];
        let mut run = bench.run(["compile", DEMO_MODEL, "--soc", &socs]).arguments(target);
        run = run.argument(bench.path(name));
        if let Some(reused) = reused {
            run = run.argument("--reuse").argument(bench.path(reused));
        }
        let reused = run.json()["artefacts_reused"].as_u64().expect("a number");
        let packed = bench.path(&format!("{name}.swb"));
        shardwright(["pack"]).argument(bench.path(name)).argument("-o").argument(&packed).succeeds();
        (packed, reused)
    };
    let (packed, shared) = compile(&chips, "bundle", None);
    let (again, reused) = compile(&["sm8850", "mt6993", "sm8750", "mt6989"], "again", Some("bundle"));
    assert!(contents(&bench.path("bundle")) == contents(&bench.path("again")));
    assert!(fs::read(&packed).expect("read") == fs::read(again).expect("read"));

    let directory = bench.path("bundle");
    let turns = cases(1, chips.len());
    for turn in 0..=turns {
        for form in [&directory, &packed] {
            for soc in chips {
                let report = bench.explains(form, Some(soc));
                assert_eq!(chosen(&report), (soc, "primary", "own"), "{report}");
            }
            assert_eq!(chosen(&bench.explains(form, None)), ("generic", "primary", "general"));
        }
        if turn < turns {
            reordered(&directory, |manifest| manifest.variants.rotate_left(1));
            shardwright(["pack"]).argument(&directory).argument("-o").argument(&packed).succeeds();
        }
    }
    for soc in ["mt6993", "sm8850"] {
        assert_eq!(bench.generates(&packed, soc), bench.generates(&directory, soc), "{soc}");
    }

    let bundle = Bundle::open(&directory).expect("a bundle");
    let manifest = bundle.manifest();
    let artefacts = |of_cpu: bool| -> BTreeSet<FileReference> {
        let shards = manifest.all_chains().flat_map(|chain| &chain.shards);
        let of = shards.filter(|shard| (shard.compiled_by.shim == "cpu") == of_cpu);
        of.map(|shard| shard.artefact).collect()
    };
    // MediaTek's chips have the same fallback. Of Qualcomm's chips, one plans floats and one four
    // bits here, and the CPU follows. The variant for any machine has the weights as stored.
    let all = manifest.all_chains().map(|chain| chain.shards.len() as u64).sum::<u64>();
    let own = artefacts(true).len() + artefacts(false).len();
    assert_eq!(own as u64, all - shared);
    // Each pair of work order and device has exactly one artefact.
    let orders = manifest.all_chains().flat_map(|chain| &chain.shards);
    let orders: BTreeSet<(String, &str)> =
        orders.map(|shard| (shard.work_order.to_string(), shard.compiled_by.device.as_str())).collect();
    assert_eq!(own, orders.len());
    let fallback = |soc: &str| {
        let variant = manifest.variants.iter().find(|variant| variant.soc == soc).expect("a variant");
        let shards = variant.chains.last().expect("a chain").shards.iter();
        shards.map(|shard| (shard.compiled_by.shim.clone(), shard.artefact)).collect::<Vec<_>>()
    };
    assert_eq!(fallback("mt6989"), fallback("mt6993"));
    assert!(fallback("mt6989").iter().all(|(shim, _)| shim == "cpu") && shared >= 1, "{shared} of {all}");
    assert_eq!(reused, all, "nothing is compiled again");
    let tables = manifest.variants.iter().flat_map(|variant| &variant.assets).map(|asset| asset.table);
    let shared = manifest.texts.values().copied().chain(manifest.tokenizer_index).chain(manifest.goldens);
    let all: BTreeSet<FileReference> =
        artefacts(true).into_iter().chain(artefacts(false)).chain(tables).chain(shared).collect();
    let bytes: u64 = all.iter().map(|file| file.bytes).sum();
    let parts = bundle.manifest().references().len() as u64 + 2;
    let most = bytes + 64 * 1024 * parts;
    let length = fs::metadata(&packed).expect("it").len();
    assert!(length <= most, "{length} bytes, of {parts} parts at most {most}");
}

#[test]
fn what_variants_share_is_there_once() {
    let (bench, report) = Bench::with_bundle();
    let bundle = Bundle::open(bench.bundle()).expect("a bundle");
    let manifest = bundle.manifest();
    let variant = |soc: &str| manifest.variant(soc).expect("a variant");
    let files = |soc: &str| -> BTreeSet<FileReference> {
        variant(soc).references().into_iter().map(|(_, file)| file).collect()
    };
    let shared: BTreeSet<FileReference> = files("mt6989").intersection(&files("mt6993")).copied().collect();
    // Both gather from the same tables, and fall back to the same CPU shards.
    for asset in &variant("mt6989").assets {
        assert!(shared.contains(&asset.table), "{}", asset.name);
    }
    let cpu = variant("mt6989").chain("cpu").expect("a chain to fall back to");
    for shard in &cpu.shards {
        assert!(shared.contains(&shard.artefact), "{}", shard.name);
    }
    // The reported sizes add up.
    let sum = |files: &BTreeSet<FileReference>| files.iter().map(|file| file.bytes).sum::<u64>();
    let texts = manifest.texts.values().copied().chain(manifest.tokenizer_index).chain(manifest.goldens);
    let texts: BTreeSet<FileReference> = texts.collect();
    for said in report["variants"].as_array().expect("variants") {
        let soc = said["soc"].as_str().expect("a chip");
        assert_eq!(said["bytes"], sum(&files(soc)) + sum(&texts), "{soc}");
        assert!(said["own_bytes"].as_u64() < said["bytes"].as_u64(), "{soc}");
    }
    assert_eq!(report["bytes"], bundle.total_bytes());
    let apart: u64 = ["mt6989", "mt6993", "generic"].iter().map(|soc| sum(&files(soc))).sum();
    assert!(bundle.total_bytes() < apart, "{} of {apart}", bundle.total_bytes());
}

/// Returns a chip of this machine, and a bundle for it and any machine.
fn on_a_chip() -> (TestChip, Compiled) {
    let chip = TestChip::new();
    let compile = shardwright(["compile", CHECKPOINT, "--context", "64", "--formats", "stored"]);
    let bundle = Compiled::by(chip.found_by(compile.arguments(["--soc", &format!("{CHIP},generic")])));
    (chip, bundle)
}

#[test]
fn a_present_chip_runs_its_own_and_falls_back_with_its_reasons() {
    let (chip, bundle) = on_a_chip();
    let explain = || chip.found_by(shardwright(["explain"]).argument(bundle.path())).json();
    assert_eq!(chosen(&explain()), (CHIP, "primary", "own"));
    let run = || {
        let run = shardwright(["run", "--prompt", "a b", "--max-tokens", "4", "--greedy"]);
        chip.found_by(run.argument(bundle.path()))
    };
    let expected = run().succeeds();
    for (answer, soc, name, tier, word) in [
        ("recompile", CHIP, "primary", "own-recompile", "differently today"),
        // The chip is here but supports no shard of its variant, so the fallback of its plan runs.
        ("unsupported", CHIP, "cpu", "fallback", "of the variant for testchip runs: testchip primary shard"),
        // The chip is unknown here.
        ("broken", "generic", "primary", "general", "the variant for generic runs: testchip primary shard"),
    ] {
        chip.behaves_as(answer);
        assert_eq!(chosen(&explain()), (soc, name, tier), "{answer}: {}", explain());
        let outcome = run().outcome();
        assert_eq!((outcome.code, &outcome.stdout), (Some(0), &expected), "{answer}: {}", outcome.stderr);
        assert!(outcome.stderr.contains("fallback: ") && outcome.stderr.contains(word), "{}", outcome.stderr);
        run().argument("--strict").refuses_with(9, &[word]);
    }
    chip.behaves_as("works");
    assert_eq!(run().succeeds(), expected);
}

#[test]
fn a_machine_elsewhere_is_asked_about_by_what_its_doctor_wrote() {
    let (chip, bundle) = on_a_chip();
    let folder = tempfile::tempdir().expect("a temporary folder");
    let file = folder.path().join("phone.json");
    chip.found_by(shardwright(["doctor", "--report"]).argument(&file)).succeeds();
    // The chip is unknown here.
    let explain = || shardwright(["explain"]).argument(bundle.path());
    assert_eq!(chosen(&explain().json()).0, "generic");
    let about = || explain().argument("--device").argument(&file);
    let report = about().json();
    assert_eq!(chosen(&report), (CHIP, "primary", "own"), "{report}");
    assert!(about().succeeds().contains("the described machine"));

    let written: Value = serde_json::from_slice(&std::fs::read(&file).expect("read")).expect("JSON");
    let with = |change: &dyn Fn(&mut Value)| {
        let mut changed = written.clone();
        for shim in changed["shims"].as_array_mut().expect("shims") {
            if shim["name"] == CHIP {
                change(shim);
            }
        }
        std::fs::write(&file, changed.to_string()).expect("written");
        about().json()
    };
    let report = with(&|shim| shim["version"] = "9.9.9".into());
    assert_eq!(chosen(&report), (CHIP, "primary", "own-recompile"), "{report}");
    assert!(report["candidates"][0]["shards"][0]["reason"].to_string().contains("9.9.9 is there"));
    for (change, word) in [
        (
            &(|shim: &mut Value| shim["devices"] = Value::Array(Vec::new())) as &dyn Fn(&mut Value),
            "no device",
        ),
        (&|shim: &mut Value| shim["error"] = "no driver".into(), "no driver"),
        (&|shim: &mut Value| shim["name"] = "another".into(), "is missing there"),
        (&|shim: &mut Value| shim["devices"][0]["kind"] = "offline".into(), "only compiles"),
    ] {
        let report = with(change);
        assert_eq!(chosen(&report).0, "generic", "{report}");
        assert!(report["passed"].to_string().contains(word), "no `{word}` in {report}");
    }
    // A machine with another chip has no use for the shim of this one.
    let phone = written.to_string().replace(CHIP, "another");
    let phone = phone.replace(&format!("\"chips\":{}", written["chips"]), "\"chips\":[\"sm8850\"]");
    std::fs::write(&file, phone).expect("written");
    let passed = about().json()["passed"].to_string();
    assert!(passed.contains("compile the checkpoint for sm8850 too"), "{passed}");
    for (text, word) in [
        ("{}", "not a machine description"),
        ("[", "not a machine description"),
        (&written.to_string().replacen(":1,", ":7,", 1), "version 7"),
    ] {
        std::fs::write(&file, text).expect("written");
        about().refuses_with(4, &[word, "doctor --report"]);
    }
}
