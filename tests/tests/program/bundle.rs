//! A bundle equals its checkpoint: the same bits in every format, and the same files from the same
//! inputs. Damaged bundles, and bundles of a missing shim or another version, are refused by name.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::Value;
use shardwright::tools::ModelTools;
use shardwright::{
    BundleOptions, EmbedOptions, ErrorKind, Executor, Isolation, Model, NoticeKind, OpenOptions, SearchPath,
    TableFormats,
};
use shardwright_bundle::BundleWriter;
use shardwright_test_checkpoints::cases;
use shardwright_tests::bundles::{Compiled, contents, logits, some_tokens};
use shardwright_tests::checkpoints::{
    Copy, EMBEDDING_FIXTURE, EMBEDDING_FIXTURES, FURTHER_FIXTURES, TEXT_FIXTURES,
};
use shardwright_tests::chip::{CHIP, TestChip};
use shardwright_tests::{program, tree};
use tempfile::TempDir;

/// Returns options to run in this process, without messages about a worker.
fn here() -> OpenOptions {
    OpenOptions::new().search_path(program::search_path()).isolation(Isolation::Off)
}

fn bundle_here() -> BundleOptions {
    BundleOptions::new().search_path(program::search_path()).isolation(Isolation::Off)
}

fn opened(bundle: &Path) -> Model {
    bundle_here().open(bundle).unwrap_or_else(|error| panic!("{}: {error}", bundle.display()))
}

fn refusal(options: &BundleOptions, bundle: &Path) -> shardwright::Error {
    match options.open(bundle) {
        Ok(_) => panic!("{} was opened", bundle.display()),
        Err(error) => error,
    }
}

/// Returns all results of a model as bits.
fn answers(model: &Model) -> Vec<Vec<u32>> {
    if model.chain().is_generative() {
        let ids = some_tokens(model, 44);
        return logits(model, &ids[..40], &ids[40..]);
    }
    let embed = |text: &str| {
        let vector = model.embed(text, &EmbedOptions::default()).unwrap_or_else(|error| panic!("{error}"));
        vector.iter().map(|value| value.to_bits()).collect()
    };
    ["a text", "another one, rather longer than the first"].map(embed).to_vec()
}

/// Compiles and opens with the same options, and compares the results.
fn is_its_checkpoint(checkpoint: &str, options: &OpenOptions, what: &str) {
    let path = tree::root().join(checkpoint);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bundle = folder.path().join("bundle");
    options.compile(&path, &bundle, &mut ()).unwrap_or_else(|error| panic!("{checkpoint}, {what}: {error}"));
    let built = options.open(&path).unwrap_or_else(|error| panic!("{checkpoint}, {what}: {error}"));
    let bundled = opened(&bundle);
    assert!(answers(&built) == answers(&bundled), "{checkpoint}, {what}");
    assert_eq!(bundled.report().bundle_chain, Some("primary"));
    let (one, other) = (built.plan().expect("a plan"), bundled.plan().expect("its report"));
    let json = |plan: &shardwright::PlanReport| serde_json::to_value(&plan.shards).expect("JSON");
    assert_eq!(json(one), json(other), "{checkpoint}, {what}");
}

#[test]
fn a_bundle_gives_the_bits_of_its_checkpoint() {
    for checkpoint in TEXT_FIXTURES.into_iter().chain(EMBEDDING_FIXTURES) {
        is_its_checkpoint(checkpoint, &here(), "as stored");
    }
    let cut = here().soc("mt6989").on(Executor::Cpu).limit("ops", 400);
    // `cli_bundle` asks the demo model.
    for checkpoint in [TEXT_FIXTURES[1], EMBEDDING_FIXTURE] {
        is_its_checkpoint(checkpoint, &cut, "cut for a chip in the formats of its profile");
    }
}

#[test]
fn so_it_does_in_every_kind_of_format() {
    let formats = [
        (TEXT_FIXTURES[3], "w8-per-channel"),
        (TEXT_FIXTURES[1], "w4-block32[head=w8-per-channel]"),
        (TEXT_FIXTURES[0], "w8-per-channel/a8-dynamic/f32"),
        (TEXT_FIXTURES[3], "f16/f16/f16"),
        (TEXT_FIXTURES[1], "w8-per-channel/a16/a16"),
        (TEXT_FIXTURES[3], "w8-per-channel/a16/a8"),
        (EMBEDDING_FIXTURE, "w8-per-channel/a16/f32"),
        (EMBEDDING_FIXTURES[1], "w8-per-channel/a16/f32"),
        (TEXT_FIXTURES[2], "w2-per-channel"),
    ];
    for (checkpoint, formats) in formats {
        let choice = formats.parse().unwrap_or_else(|error| panic!("{formats}: {error}"));
        is_its_checkpoint(checkpoint, &here().formats(choice), formats);
    }
    // Each further family in one of the formats, or in all and as stored.
    for (index, checkpoint) in FURTHER_FIXTURES.into_iter().enumerate() {
        for (_, formats) in formats.iter().cycle().skip(index).take(cases(1, formats.len())) {
            let choice = formats.parse().unwrap_or_else(|error| panic!("{formats}: {error}"));
            is_its_checkpoint(checkpoint, &here().formats(choice), formats);
        }
        if cases(false, true) {
            is_its_checkpoint(checkpoint, &here(), "as stored");
        }
    }
    let w8 = "w8-per-channel".parse().expect("a format");
    let w4 = "w4-block32".parse().expect("a format");
    let tables = here().tables(TableFormats { embedding: Some(w8), per_layer: Some(w4) });
    is_its_checkpoint(TEXT_FIXTURES[1], &tables, "tables in integers");
}

#[test]
fn the_same_inputs_give_the_same_files() {
    let compile = |checkpoint: &str, options: &OpenOptions| {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let bundle = folder.path().join("bundle");
        let path = tree::root().join(checkpoint);
        options.compile(path, &bundle, &mut ()).unwrap_or_else(|error| panic!("{checkpoint}: {error}"));
        contents(&bundle)
    };
    let static_integers = "w8-per-channel/a16/a16".parse().expect("a format");
    let blocks = "w4-block32/a8-dynamic/f32".parse().expect("a format");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let text = folder.path().join("conversations");
    fs::write(&text, "What is an NPU?\tA chip for networks.\nHello.\tHello, what do you need?\n")
        .expect("written");
    // `cli_bundle` compiles the demo model twice.
    let cases = [
        (TEXT_FIXTURES[1], here().formats(static_integers).calibration_text(&text)),
        (TEXT_FIXTURES[3], here().formats(blocks)),
        (EMBEDDING_FIXTURE, here()),
    ];
    for (checkpoint, options) in cases {
        // The contents of a cache make no difference.
        let cache = tempfile::tempdir().expect("a temporary folder");
        program::share_planner(cache.path());
        let options = options.cache_directory(cache.path().join("shardwright"));
        assert!(compile(checkpoint, &options) == compile(checkpoint, &options), "{checkpoint}");
    }
}

fn flip(path: &Path, bit: usize) {
    let mut bytes = fs::read(path).expect("read");
    bytes[bit / 8] ^= 1 << (bit % 8);
    fs::write(path, bytes).expect("written");
}

#[test]
fn a_changed_bit_of_any_file_that_is_used_is_found() {
    let compiled = Compiled::from(TEXT_FIXTURES[1], ["--soc", "mt6989", "--limit", "ops=400", "--on", "cpu"]);
    let expected = answers(&opened(&compiled.path()));
    let mut found = 0;
    for (used_as, path, file) in compiled.references().into_iter().filter(|(_, _, file)| file.bytes > 0) {
        // The tests of the crate change more bits of each file.
        let bits = 8 * file.bytes as usize;
        for bit in [0, bits / 3, bits - 1] {
            flip(&path, bit);
            match bundle_here().open(compiled.path()) {
                Err(error) => {
                    found += 1;
                    assert_eq!(error.kind(), ErrorKind::Invalid, "{used_as}, bit {bit}: {error}");
                    assert!(error.help().is_some(), "{used_as}, bit {bit}: {error}");
                }
                Ok(model) => {
                    // The request and the plan are stored for people, and later chains are checked
                    // when they are needed.
                    let unused = [".request", ".plan"].iter().any(|end| used_as.ends_with(end));
                    assert!(
                        unused || used_as.starts_with("variants[0].chains[1]"),
                        "{used_as}, bit {bit}: not found"
                    );
                    assert!(answers(&model) == expected, "{used_as}, bit {bit}");
                    let error = refusal(&bundle_here().verify_all(true), &compiled.path());
                    assert_eq!(error.kind(), ErrorKind::Invalid, "{used_as}, bit {bit}: {error}");
                }
            }
            flip(&path, bit);
        }
    }
    assert!(found > 30, "{found}");
    assert!(answers(&opened(&compiled.path())) == expected, "as it was");
}

/// Rewrites the manifest with changes that its own hash covers, as a faulty writer could.
fn rewritten(compiled: &Compiled, change: impl FnOnce(&mut Value)) {
    let mut manifest = compiled.manifest_json();
    change(&mut manifest["variants"][0]);
    let manifest = serde_json::from_value(manifest).expect("a manifest");
    let writer = BundleWriter::create(compiled.path()).unwrap_or_else(|error| panic!("{error}"));
    writer.finish(&manifest).unwrap_or_else(|error| panic!("{error}"));
}

/// A change of a manifest.
type Change = Box<dyn FnOnce(&mut Value)>;

#[test]
fn a_manifest_that_is_not_of_its_artefacts_is_incompatible() {
    let compiled = Compiled::from(TEXT_FIXTURES[3], ["--planner-option", "join=off"]);
    let manifest = compiled.manifest_json();
    let shard =
        |change: fn(&mut Value)| move |manifest: &mut Value| change(&mut manifest["chains"][0]["shards"][1]);
    let shared = |field: &'static str| {
        move |manifest: &mut Value| {
            let shards = &mut manifest["chains"][0]["shards"];
            shards[1][field] = shards[0][field].clone();
        }
    };
    let changes: [(&str, Change); 6] = [
        ("version", Box::new(shard(|shard| shard["compiled_by"]["version"] = "99.0.0".into()))),
        ("work order", Box::new(shard(|shard| shard["work_order"] = "0".repeat(64).into()))),
        ("device", Box::new(shard(|shard| shard["compiled_by"]["device"] = "npu".into()))),
        ("name", Box::new(shard(|shard| shard["segments"][0]["layers"] = serde_json::json!([0, 1])))),
        ("heads", Box::new(shared("head"))),
        ("artefact", Box::new(shared("artefact"))),
    ];
    for (what, change) in changes {
        let copy = compiled.copied();
        rewritten(&copy, change);
        let error = refusal(&bundle_here(), &copy.path());
        let known = [ErrorKind::Incompatible, ErrorKind::Invalid];
        assert!(known.contains(&error.kind()), "{what}: {:?} {error}", error.kind());
        if what == "heads" {
            assert!(error.to_string().contains("heads in the manifest"), "{error}");
        }
        if what == "version" {
            assert_eq!(error.kind(), ErrorKind::Incompatible, "{error}");
            assert!(error.to_string().contains("99.0.0"), "{error}");
        }
        assert!(error.help().is_some(), "{what}: {error}");
    }
    assert_eq!(manifest, compiled.manifest_json(), "the bundle that was copied is as it was");
    opened(&compiled.path());
}

/// A plan's load flag that the shim here does not support is ignored, which is reported.
#[test]
fn a_load_flag_that_no_shim_knows_is_passed_over_and_said() {
    let compiled = Compiled::of(TEXT_FIXTURES[3]);
    let expected = answers(&opened(&compiled.path()));
    rewritten(&compiled, |manifest| {
        let flags = serde_json::json!([{"name": "power", "value": "saver"}]);
        manifest["chains"][0]["shards"][0]["load_flags"] = flags;
    });
    let model = opened(&compiled.path());
    assert!(answers(&model) == expected, "it runs all the same");
    let said = fallbacks(&model);
    assert!(said.iter().any(|text| text.contains("flag power=saver is unknown")), "{said:?}");
    let error = refusal(&bundle_here().strict(true), &compiled.path());
    assert_eq!(error.kind(), ErrorKind::Strict, "{error}");
}

/// Compiles a bundle for a chip on a machine with the chip's shim.
pub(crate) fn for_the_chip(chip: &TestChip, strict: bool) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bundle = folder.path().join("bundle");
    let options = here().search_path(chip.search_path()).soc(CHIP).strict(strict);
    let report = options.compile(tree::root().join(TEXT_FIXTURES[3]), &bundle, &mut ());
    let report = report.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(report.variants[0].chains, if strict { vec!["primary"] } else { vec!["primary", "cpu"] });
    (folder, bundle)
}

/// All chains of a bundle are made from the same checkpoint, so its fields are reported once.
#[test]
fn a_field_without_effect_is_reported_once_for_all_chains() {
    let chip = TestChip::new();
    let folder = tempfile::tempdir().expect("a folder");
    let copy = Copy::of(TEXT_FIXTURES[3])
        .json("config.json", |config| config["novel_setting"] = 3.into())
        .json("generation_config.json", |config| config["num_beams"] = 4.into());
    let options = here().search_path(chip.search_path()).soc(CHIP);
    let report = options.compile(copy.path(), folder.path().join("bundle"), &mut ());
    let report = report.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(report.variants[0].chains, ["primary", "cpu"]);
    let notices = &report.variants[0].plan.notices;
    for field in ["`novel_setting`", "`num_beams`"] {
        let about = notices.iter().filter(|notice| notice.text.contains(field)).count();
        assert_eq!(about, 1, "{field}: {notices:?}");
    }
}

fn fallbacks(model: &Model) -> Vec<&str> {
    let notices = model.report().bundle_notices();
    notices.filter(|notice| notice.kind == NoticeKind::Fallback).map(|notice| notice.text.as_str()).collect()
}

#[test]
fn without_a_shim_that_takes_it_the_second_chain_runs_and_that_is_said() {
    let chip = TestChip::new();
    let (_kept, bundle) = for_the_chip(&chip, false);
    let with = bundle_here().search_path(chip.search_path());
    let on_chip = with.open(&bundle).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(on_chip.report().bundle_chain, Some("primary"));
    assert_eq!(fallbacks(&on_chip), Vec::<&str>::new());
    assert!(on_chip.chain().description().shards.iter().any(|shard| shard.place.shim == CHIP));

    let elsewhere = opened(&bundle);
    assert_eq!(elsewhere.report().bundle_chain, Some("cpu"));
    let said = fallbacks(&elsewhere);
    assert!(said.len() == 1 && said[0].contains("primary") && said[0].contains(CHIP), "{said:?}");
    assert!(answers(&elsewhere) == answers(&on_chip));
    drop((elsewhere, on_chip));

    let error = refusal(&bundle_here().strict(true), &bundle);
    assert!([ErrorKind::Missing, ErrorKind::Strict].contains(&error.kind()), "{:?} {error}", error.kind());
    assert!(error.to_string().contains(CHIP), "{error}");

    // Compiled under `strict`, the bundle has no second chain.
    let (_only, only) = for_the_chip(&chip, true);
    let error = refusal(&bundle_here(), &only);
    assert_eq!(error.kind(), ErrorKind::Missing, "{error}");
    assert!(error.to_string().contains(CHIP) && error.help().is_some(), "{error}");

    // Its compiler would now produce other artefacts, but it accepts existing ones.
    chip.behaves_as("recompile");
    let model = with.open(&bundle).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(model.report().bundle_chain, Some("primary"));
    let said = fallbacks(&model);
    assert!(
        !said.is_empty() && said.iter().all(|text| text.contains("the chip's compiler has moved on")),
        "{said:?}"
    );
    let mut session = model.session().unwrap_or_else(|error| panic!("{error}"));
    session.complete("text").and_then(shardwright::Reply::text).unwrap_or_else(|error| panic!("{error}"));
    let placement = session.placement();
    assert!(!placement.fallbacks().is_empty(), "{placement:?}");
    let error = refusal(&with.clone().strict(true), &bundle);
    assert_eq!(error.kind(), ErrorKind::Strict, "{error}");

    // It does not accept the artefact any more.
    for answer in ["unsupported", "not-mine"] {
        chip.behaves_as(answer);
        let model = with.open(&bundle).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(model.report().bundle_chain, Some("cpu"), "{answer}");
        let error = refusal(&with.clone().strict(true), &bundle);
        assert_eq!(error.kind(), ErrorKind::Incompatible, "{answer}: {error}");
        let error = refusal(&with, &only);
        assert_eq!(error.kind(), ErrorKind::Incompatible, "{answer}: {error}");
        assert!(error.to_string().contains("the chip's compiler has moved on"), "{error}");
        assert!(error.help().is_some(), "{error}");
    }
}

#[test]
fn strict_refuses_what_a_compiler_does_otherwise_than_asked() {
    let chip = TestChip::new();
    chip.behaves_as("slip");
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bundle = folder.path().join("bundle");
    let checkpoint = tree::root().join(TEXT_FIXTURES[3]);
    let options = here().search_path(chip.search_path()).soc(CHIP);
    let word = "the chip was not in the mood";

    let report = options.compile(&checkpoint, &bundle, &mut ()).unwrap_or_else(|error| panic!("{error}"));
    let said = report.variants[0].plan.notices.iter().filter(|notice| notice.text.contains(word)).count();
    assert_eq!(said, report.variants[0].plan.shards.len(), "{:?}", report.variants[0].plan.notices);
    let model = options.open(&checkpoint).unwrap_or_else(|error| panic!("{error}"));
    let plan = model.plan().expect("a plan");
    let mut fallback = plan.notices.iter().filter(|notice| notice.kind == NoticeKind::Fallback);
    assert!(fallback.any(|notice| notice.text.contains(word)), "{:?}", plan.notices);

    let with = bundle_here().search_path(chip.search_path());
    let model = with.open(&bundle).unwrap_or_else(|error| panic!("{error}"));
    let said = fallbacks(&model);
    assert!(!said.is_empty() && said.iter().all(|text| text.contains(word)), "{said:?}");
    let fallbacks = model.session().expect("a session").placement().fallbacks();
    assert!(fallbacks.iter().any(|fallback| fallback.because == word), "{fallbacks:?}");

    let strict = options.strict(true);
    let compiled = strict.compile(&checkpoint, folder.path().join("strict"), &mut ()).map(|_| ());
    let opened = strict.open(&checkpoint).map(|_| ());
    let bundled = with.strict(true).open(&bundle).map(|_| ());
    for refused in [compiled, opened, bundled] {
        let error = refused.expect_err("strict");
        assert_eq!(error.kind(), ErrorKind::Strict, "{error}");
        assert!(error.to_string().contains(word), "{error}");
    }
}

/// If only libraries can be stored, as in an Android package, the manifest is part of the program.
#[test]
fn a_library_alone_runs_a_bundle_by_a_manifest_in_code() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let shims = program::folder().join("shims");
    let file =
        format!("{}shardwright_shim_cpu{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX);
    let alone = folder.path().join("libanything.so");
    fs::copy(shims.join(&file), &alone).expect("copied");
    let manifest = r#"{"manifest": 1, "name": "cpu", "vendor": "Shardwright",
        "abi": {"min": "0.1", "max": "0.1"}, "library": "not_looked_at"}"#;
    let path = |manifest: &str, library: &Path| SearchPath {
        libraries: vec![(library.to_owned(), manifest.to_owned())],
        ..SearchPath::default()
    };
    let bundle = Compiled::of(TEXT_FIXTURES[3]);
    let options = |path| BundleOptions::new().search_path(path).isolation(Isolation::Off);
    let model = options(path(manifest, &alone)).open(bundle.path()).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(answers(&model), answers(&opened(&bundle.path())));
    assert!(model.report().notices_of_opening.is_empty(), "{:?}", model.report().notices_of_opening);

    let changed = manifest.replace("\"library\"", "\"sha256\": \"00\", \"library\"");
    for (text, library, says) in [
        ("{", alone.as_path(), "EOF"),
        (changed.as_str(), alone.as_path(), "64 lower-case hexadecimal digits"),
        (manifest, Path::new("/nowhere/libcpu.so"), "/nowhere/libcpu.so"),
    ] {
        let error = refusal(&options(path(text, library)), &bundle.path());
        assert_eq!(error.kind(), ErrorKind::Missing, "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}
