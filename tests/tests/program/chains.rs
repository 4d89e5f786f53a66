//! A plan that falls back to another chip and then to the CPU. Each has a chain in its own formats,
//! and a person sees which of them runs, and why the others do not. Both chips are the CPU shim
//! under another name.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use shardwright::{BundleOptions, ChatPart, Isolation, Model, OpenOptions};
use shardwright_bundle::{Bundle, BundleWriter, ChainEntry, Manifest};
use shardwright_tests::bundles::damage;
use shardwright_tests::checkpoints::MULTIMODAL_FIXTURE;
use shardwright_tests::chip::TestChip;
use shardwright_tests::program::{Outcome, Run, shardwright};
use shardwright_tests::towers::Goldens;
use shardwright_tests::{program, tree};
use tempfile::TempDir;

const CHECKPOINT: &str = "tests/fixtures/gemma3_text";

/// A machine with two chips and a CPU. `alpha` falls back to `beta`.
struct Machine {
    alpha: TestChip,
    beta: TestChip,
    folder: TempDir,
}

/// The chips that are present in the machine.
#[derive(Clone, Copy, Debug)]
enum Here {
    Both,
    Beta,
    Neither,
}

fn formats(all: &[(&str, bool)]) -> Value {
    let each = all.iter().map(|(weights, legal)| {
        let formats = json!({ "weights": weights, "activations": "f32", "states": "f32" });
        json!({ "formats": formats, "legal": legal, "provenance": "declared" })
    });
    Value::Array(each.collect())
}

impl Machine {
    fn new() -> Machine {
        let alpha = json!({
            "fallback": ["beta"], "formats": formats(&[("w8-per-channel", true), ("w4-block32", false)]),
        });
        Machine::of(&alpha)
    }

    fn of(alpha: &Value) -> Machine {
        Machine {
            alpha: TestChip::named("alpha", alpha),
            beta: TestChip::named(
                "beta",
                &json!({ "kind": "gpu", "formats": formats(&[("w4-block32", true)]) }),
            ),
            folder: tempfile::tempdir().expect("a temporary folder"),
        }
    }

    fn bundle(&self) -> PathBuf {
        self.folder.path().join("bundle")
    }

    /// Adds the options with which a command finds these chips.
    fn with(&self, here: Here, run: Run) -> Run {
        match here {
            Here::Both => self.alpha.found_by(self.beta.found_by(run)),
            Here::Beta => self.beta.found_by(run),
            Here::Neither => run,
        }
    }

    fn compiles(&self, socs: &str, more: &[&str]) -> Run {
        let run = shardwright(["compile", CHECKPOINT, "--context", "64", "--soc", socs, "-o"]);
        self.with(Here::Both, run.argument(self.bundle())).arguments(more)
    }

    fn generates(&self, here: Here, from: &Path) -> Run {
        let run = shardwright(["run", "--prompt", "a b", "--max-tokens", "12", "--greedy"]);
        self.with(here, run.argument(from))
    }

    fn runs(&self, here: Here) -> Run {
        self.generates(here, &self.bundle())
    }

    /// Changes the manifest of the bundle.
    fn rewrites(&self, change: impl FnOnce(&mut Manifest)) {
        let writer = BundleWriter::create(self.bundle()).unwrap_or_else(|error| panic!("{error}"));
        let mut manifest = writer.previous().cloned().expect("a manifest");
        change(&mut manifest);
        writer.finish(&manifest).unwrap_or_else(|error| panic!("{error}"));
    }
}

fn fallbacks(outcome: &Outcome) -> Vec<&str> {
    outcome.stderr.lines().filter(|line| line.starts_with("fallback:")).collect()
}

/// Asserts success and exactly these fallback messages, each with its words.
fn says(outcome: &Outcome, expected: &[&[&str]]) {
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    let found = fallbacks(outcome);
    assert_eq!(found.len(), expected.len(), "{}", outcome.stderr);
    for (line, words) in found.iter().zip(expected) {
        for word in *words {
            assert!(line.contains(word), "no `{word}` in {line}");
        }
    }
}

fn chain_formats(chain: &ChainEntry) -> Vec<String> {
    let mut all: Vec<String> = chain.shards.iter().map(|shard| shard.formats.to_string()).collect();
    all.dedup();
    all
}

#[test]
fn every_target_of_the_plan_has_a_chain_in_its_own_formats_and_the_next_one_runs() {
    let machine = Machine::new();
    let report = machine.compiles("alpha", &[]).json();
    let variant = &report["variants"][0];
    assert_eq!(variant["chains"], json!(["primary", "beta", "cpu"]), "{report}");
    let (eight, four) = ("w8-per-channel/f32/f32", "w4-block32/f32/f32");
    let planned = json!([
        { "target": "beta", "formats": [four, "f32/f32/f32"] },
        { "target": "cpu", "formats": [] },
    ]);
    assert_eq!(variant["plan"]["fallback"], planned, "{report}");
    // Own formats: the formats of the profile for any machine.
    let own = "w8-block32/a8-dynamic-block32/f16";

    let bundle = Bundle::open(machine.bundle()).expect("a bundle");
    let chains = &bundle.variant().chains;
    let seen: Vec<_> = chains
        .iter()
        .map(|chain| {
            let shims = chain.shards.iter().map(|shard| shard.compiled_by.shim.as_str());
            let targets = chain.shards.iter().map(|shard| shard.target.name.as_str());
            let mut all: Vec<_> = shims.zip(targets).collect();
            all.dedup();
            (chain.name.as_str(), all, chain_formats(chain))
        })
        .collect();
    let expected = vec![
        ("primary", vec![("alpha", "alpha")], vec![eight.to_owned()]),
        ("beta", vec![("beta", "beta")], vec![four.to_owned()]),
        ("cpu", vec![("cpu", "cpu")], vec![own.to_owned()]),
    ];
    assert_eq!(seen, expected);

    // A dry run reports the same chains.
    let dry = || {
        let run = shardwright(["compile", CHECKPOINT, "--context", "64", "--soc", "alpha", "--dry-run"]);
        machine.with(Here::Both, run)
    };
    let dried = &dry().json()["variants"][0];
    assert_eq!(dried["fallback"], planned);
    let said = |chain: &Value| (chain["name"].clone(), chain["formats"].clone());
    let chains: Vec<_> = dried["chains"].as_array().expect("chains").iter().map(said).collect();
    let expected = [("primary", eight), ("beta", four), ("cpu", own)];
    assert_eq!(chains, expected.map(|(name, formats)| (json!(name), json!([formats]))), "{dried}");
    let sum = |value: &Value| value["bytes"].as_u64().expect("bytes");
    let artefacts: u64 = dried["chains"].as_array().expect("chains").iter().map(sum).sum();
    assert_eq!(sum(dried), artefacts + dried["totals"]["table_bytes"].as_u64().expect("bytes"));
    let screen = dry().succeeds();
    for words in [&["alpha", "beta", four][..], &["alpha", "cpu", own]] {
        assert!(screen.lines().any(|line| words.iter().all(|word| line.contains(word))), "{screen}");
    }

    what_is_missing_is_said_and_the_next_chain_runs(&machine);
    let artefact = bundle.variant().chains[0].shards[0].artefact.sha256.to_string();
    let artefact = machine.bundle().join("files").join(artefact);
    // Damage is an error and no reason to fall back.
    damage(&artefact);
    for more in [&[][..], &["--strict"]] {
        let (code, said) = machine.runs(Here::Both).arguments(more).refuses();
        assert!(code == 4 && said.contains(": damaged: "), "{more:?}: {code} {said}");
        assert!(!said.contains("fallback:"), "{more:?}: {said}");
    }
    damage(&artefact);
    // `--strict` allows no fallback chain, so none is compiled.
    let strict = machine.compiles("alpha", &["--strict"]).json();
    assert_eq!(strict["variants"][0]["chains"], json!(["primary"]), "{strict}");
}

/// A size goal applies to all data on a device. If it is too small, the last chain is left out
/// first.
#[test]
fn a_goal_for_the_size_holds_with_every_chain() {
    let chip = json!({ "formats": formats(&[("w8-per-channel", true), ("w4-block32", true)]) });
    let machine = Machine::of(&chip);
    let formats = ["--formats", "w8-per-channel/f32/f32", "--formats", "w4-block32/f32/f32"];
    let within = |size: u64| {
        let asked = machine.compiles("alpha", &formats).arguments(["--prefer", "quality", "--size"]);
        let report = asked.argument(size.to_string()).json();
        let bytes = report["bytes"].as_u64().expect("bytes") - texts(&machine.bundle());
        assert!(bytes <= size, "{report}");
        report["variants"][0].clone()
    };
    let names = |variant: &Value| -> Vec<String> {
        let chains = variant["chains"].as_array().expect("chains").iter();
        chains.map(|name| name.as_str().expect("a name").to_owned()).collect()
    };
    let whole = within(1 << 40);
    assert_eq!(names(&whole), ["primary", "cpu"]);
    let artefacts = whole["plan"]["totals"]["artefacts"]["bytes"].as_u64().expect("bytes");
    let tables = whole["plan"]["totals"]["table_bytes"].as_u64().expect("bytes");
    for (size, chains) in [
        (2 * artefacts + tables, &["primary", "cpu"][..]),
        (2 * artefacts + tables - artefacts / 4, &["primary", "cpu"]),
        (artefacts + tables, &["primary"]),
    ] {
        let variant = within(size);
        assert_eq!(names(&variant), chains, "{variant}");
        let reasons = variant["plan"]["reasons"].to_string();
        let lacks = reasons.contains("no fallback to `cpu`");
        assert_eq!(lacks, chains.len() == 1, "{reasons}");
    }
}

/// Returns the bytes of files that are neither artefacts nor tables.
fn texts(bundle: &Path) -> u64 {
    let bundle = Bundle::open(bundle).expect("a bundle");
    let manifest = bundle.manifest();
    let texts = manifest.texts.values().chain(&manifest.tokenizer_index).chain(&manifest.goldens);
    texts.map(|file| file.bytes).sum()
}

fn what_is_missing_is_said_and_the_next_chain_runs(machine: &Machine) {
    says(&machine.runs(Here::Both).outcome(), &[]);
    machine.runs(Here::Both).argument("--strict").succeeds();

    let no_alpha = "chain `primary` does not run here: no shim is named `alpha`";
    says(&machine.runs(Here::Beta).outcome(), &[&[no_alpha, "; chain `beta` runs"]]);
    let no_beta: &[&str] = &["chain `beta` does not run here: no shim is named `beta`", "; chain `cpu` runs"];
    let outcome = machine.runs(Here::Neither).outcome();
    says(&outcome, &[&[no_alpha], no_beta]);
    assert_eq!(outcome.stderr.matches("; chain `").count(), 1, "{}", outcome.stderr);

    for here in [Here::Beta, Here::Neither] {
        let (code, said) = machine.runs(here).argument("--strict").refuses();
        assert!(
            code == 3 && said.contains("error: ") && said.contains("no shim is named `alpha`"),
            "{code} {said}"
        );
        assert!(!said.contains("fallback:"), "{said}");
    }
    // A chip that is present but refuses is skipped like a missing one.
    machine.alpha.behaves_as("unsupported");
    machine.beta.behaves_as("broken");
    let moved_on: &[&str] = &["chain `primary` does not run here", "the chip's compiler has moved on"];
    let no_library: &[&str] = &["chain `beta` does not run here", "libchip.so", "; chain `cpu` runs"];
    says(&machine.runs(Here::Both).outcome(), &[moved_on, no_library]);
    let (code, said) = machine.runs(Here::Both).argument("--strict").refuses();
    assert!(code == 6 && said.contains("the chip's compiler has moved on"), "{code} {said}");
    machine.alpha.fails_in("nothing", 0);
    machine.beta.fails_in("nothing", 0);
}

/// All three chains have the same formats here, so a session that is moved generates the same text
/// as an undisturbed one.
#[test]
fn a_session_that_loses_a_device_twice_goes_on_with_its_tokens() {
    let machine = Machine::of(&json!({ "fallback": ["beta"] }));
    machine.compiles("alpha", &["--formats", "stored"]).succeeds();
    let checkpoint = tree::root().join(CHECKPOINT);
    let just_in_time = || {
        let run = machine.generates(Here::Both, &checkpoint);
        run.arguments(["--soc", "alpha", "--formats", "stored", "--context", "64"])
    };
    let bundled = || machine.runs(Here::Both);
    let expected = bundled().succeeds();
    assert_eq!(just_in_time().succeeds(), expected);
    let lost = |on: &str, to: &str| {
        [format!("failed on {on}"), format!("resumed on {to}"), "fell off its bus".to_owned()]
    };
    let [first, second] = [lost("alpha", "beta"), lost("beta", "cpu")];
    let [first, second] = [&first, &second].map(|words| words.iter().map(String::as_str).collect::<Vec<_>>());
    for (early, late, run) in [(1, 1, bundled()), (5, 4, just_in_time()), (9, 2, bundled())] {
        machine.alpha.fails_in("lost", early);
        machine.beta.fails_in("lost", late);
        let outcome = run.outcome();
        assert_eq!(outcome.stdout, expected, "{early} {late}: {}", outcome.stderr);
        says(&outcome, &[&first, &second]);
    }
    // Only the first chip fails. The session stays on the next one.
    machine.beta.fails_in("nothing", 0);
    says(&bundled().outcome(), &[&first]);
    // A chip that is already broken when the session moves to it is skipped like one that does not
    // open.
    machine.beta.behaves_as("broken");
    let passed: &[&str] = &["failed on alpha", "resumed on cpu", "chain `beta`", "libchip.so"];
    says(&bundled().outcome(), &[passed]);
    for run in [bundled(), just_in_time()] {
        machine.beta.fails_in("nothing", 0);
        let (code, said) = run.argument("--strict").refuses();
        assert!(code == 8 && said.contains("error: ") && said.contains("alpha"), "{code} {said}");
        assert!(!said.contains("resumed on"), "{said}");
    }
}

#[test]
fn a_fallback_that_cannot_be_made_is_said_and_the_others_are() {
    let machine = Machine::new();
    machine.beta.fails_in("refuses", 3);
    let outcome = machine.compiles("alpha", &[]).outcome();
    let words: &[&str] = &["the plan falls back to chain `beta`, which was not compiled", "linear"];
    says(&outcome, &[words]);
    assert!(outcome.stdout.contains("chains primary, cpu"), "{}", outcome.stdout);
    machine.beta.fails_in("nothing", 0);
    // The bundle reports the missing chain. That alone is not a fallback.
    let outcome = machine.runs(Here::Both).argument("--strict").outcome();
    says(&outcome, &[]);
    let note = "note: the plan falls back to chain `beta`, which was not compiled";
    assert!(outcome.stderr.contains(note), "{}", outcome.stderr);

    // A chip that cannot be compiled for here is left out of the plan.
    let shims = program::folder().join("shims");
    let profiles = machine.beta.shims().with_file_name("profiles");
    let run = shardwright(["compile", CHECKPOINT, "--context", "64", "--soc", "alpha", "-o"]);
    let run =
        machine.alpha.found_by(run.argument(machine.bundle())).argument("--profiles").argument(profiles);
    let outcome = run.argument("--shims").argument(shims).outcome();
    says(&outcome, &[]);
    assert!(outcome.stderr.contains("not used as a fallback"), "{}", outcome.stderr);
    assert!(outcome.stdout.contains("chains primary, cpu"), "{}", outcome.stdout);
}

#[test]
fn a_profile_that_falls_back_to_nothing_sensible_is_refused() {
    let chip = TestChip::named("alpha", &json!({ "fallback": ["gamma"] }));
    let into = chip.shims().with_file_name("bundle");
    let run = chip.planned_by(shardwright(["compile", CHECKPOINT]));
    let (code, said) = run.argument("-o").argument(into).refuses();
    assert!(code == 3 && said.contains("fallback `gamma`"), "{code} {said}");
    assert!(said.contains("no profile for SoC `gamma`") && said.contains("alpha.json"), "{said}");
}

/// With several variants in the bundle, chips of the machine come before the variant for any
/// machine.
#[test]
fn another_chip_of_the_machine_runs_before_what_is_for_any_machine() {
    let machine = Machine::new();
    machine.compiles("alpha,generic", &[]).succeeds();
    let explained = |here: Here| {
        let report = machine.with(here, shardwright(["explain"]).argument(machine.bundle())).json();
        let candidates = report["candidates"].as_array().expect("candidates").clone();
        let text = |candidate: &Value, name: &str| candidate[name].as_str().expect("a text").to_owned();
        let shown = candidates.iter().map(|one| [text(one, "soc"), text(one, "name"), text(one, "tier")]);
        shown.collect::<Vec<_>>()
    };
    let line = |soc: &str, name: &str, tier: &str| [soc, name, tier].map(str::to_owned);
    let any = line("generic", "primary", "general");
    let later = [line("alpha", "beta", "fallback"), line("alpha", "cpu", "fallback")];
    let [beta, cpu] = later;
    let why: &[&str] = &["chain `beta` of the variant for alpha runs: alpha primary shard", "`alpha`"];
    says(&machine.runs(Here::Both).outcome(), &[]);
    says(&machine.runs(Here::Beta).outcome(), &[why]);
    let (code, said) = machine.runs(Here::Beta).argument("--strict").refuses();
    assert!(code == 9 && said.contains(why[0]), "{code} {said}");
    says(&machine.runs(Here::Neither).outcome(), &[]);
    // The order of variants in the manifest has no effect.
    for _ in 0..2 {
        let own = line("alpha", "primary", "own");
        assert_eq!(explained(Here::Both), [own, beta.clone(), cpu.clone(), any.clone()]);
        assert_eq!(explained(Here::Beta), [beta.clone(), cpu.clone(), any.clone()]);
        let elsewhere = line("alpha", "cpu", "elsewhere");
        assert_eq!(explained(Here::Neither), [any.clone(), elsewhere]);
        machine.rewrites(|manifest| manifest.variants.rotate_left(1));
    }
    // Within a variant, the order of chains is the order of tries.
    machine.rewrites(|manifest| {
        let mut variants = manifest.variants.iter_mut();
        variants.find(|variant| variant.soc == "alpha").expect("a variant").chains[1..].reverse();
    });
    assert_eq!(explained(Here::Beta), [cpu, beta, any]);
}

fn seen(model: &Model) -> shardwright::Result<(String, Vec<String>)> {
    let goldens = Goldens::read();
    let pixels: Vec<u8> = goldens.integers("p1.image_rgb").into_iter().map(|value| value as u8).collect();
    let mut session = model.session()?;
    (session.options.sampling.do_sample, session.options.max_tokens) = (false, Some(12));
    let picture = ChatPart::PictureRgb8 { width: 50, height: 38, stride: 150, pixels };
    let text = session.chat_parts([picture, "What is this?".into()])?.text()?;
    Ok((text, model.report().notices_of_towers.into_iter().map(|notice| notice.text).collect()))
}

#[test]
fn a_tower_falls_back_as_the_text_does() {
    let machine = Machine::of(&json!({ "fallback": ["beta"] }));
    let mut path = machine.alpha.search_path();
    path.shims.insert(1, machine.beta.shims());
    path.profiles.insert(1, machine.beta.shims().with_file_name("profiles"));
    let stored = || "stored".parse().expect("a choice");
    let options = OpenOptions::new()
        .search_path(path.clone())
        .soc("alpha")
        .isolation(Isolation::Off)
        .formats(stored())
        .tower_formats(stored());
    let checkpoint = tree::root().join(MULTIMODAL_FIXTURE);
    let report = options.compile(&checkpoint, machine.bundle(), &mut ());
    let report = report.unwrap_or_else(|error| panic!("{error}"));
    let chains = &report.variants[0].chains;
    for name in ["primary", "beta", "cpu", "picture", "picture.beta", "picture.cpu"] {
        assert!(chains.iter().any(|chain| chain == name), "no `{name}` in {chains:?}");
    }
    let of_bundle = BundleOptions::new().search_path(path).isolation(Isolation::Off);
    let open = || {
        [
            options.open(&checkpoint).unwrap_or_else(|error| panic!("{error}")),
            of_bundle.open(machine.bundle()).unwrap_or_else(|error| panic!("{error}")),
        ]
    };
    let undisturbed = seen(&options.open(&checkpoint).expect("opened")).expect("a reply").0;
    let opened = open();
    // Applies to instances opened from now on, so only to the towers.
    machine.alpha.fails_in("lost", 1);
    machine.beta.fails_in("lost", 1);
    for model in opened {
        let (text, said) = seen(&model).expect("a reply");
        assert_eq!(text, undisturbed);
        for to in ["resumed on beta", "resumed on cpu"] {
            assert!(said.iter().any(|line| line.contains(to)), "no `{to}` in {said:?}");
        }
    }
}
