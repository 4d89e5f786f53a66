//! `shardwright compile`, `run DIR`, `embed DIR` and `inspect` as a user runs them. A bundle
//! answers as its checkpoint does, and damaged or contradictory input is refused.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;
use shardwright_bundle::{Bundle, BundleWriter, Digest, TextFile};
use shardwright_graph::{ComponentKind, EntryOptions};
use shardwright_shims::WorkOrderBuilder;
use shardwright_tests::bundles::{Compiled, contents, damage, write_contents};
use shardwright_tests::chain::{committed, menu};
use shardwright_tests::checkpoints::{Copy, DEMO_MODEL, EMBEDDING_FIXTURE, TEXT_FIXTURES};
use shardwright_tests::chip::{CHIP, TestChip};
use shardwright_tests::program::{self, Run, shardwright};
use shardwright_tests::tree;
use shardwright_vocabulary::{Notice, NoticeKind};

use crate::trust::refused;

/// The target of the README's demo.
const DEMO_TARGET: [&str; 6] = ["--soc", "mt6989", "--limit", "ops=400", "--on", "cpu"];

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn generate(what: &str) -> Run {
    shardwright(["run", what, "--prompt", "And it came to pass", "--max-tokens", "16", "--greedy"])
}

#[test]
fn a_bundle_embeds_what_its_checkpoint_embeds() {
    let bundle = Compiled::of(EMBEDDING_FIXTURE);
    let embed = |what: &str, more: &[&str]| shardwright(["embed", what, "a text"]).arguments(more).succeeds();
    let both = |more: &[&str]| {
        let expected = embed(EMBEDDING_FIXTURE, more);
        assert_eq!(embed(&shown(&bundle.path()), more), expected, "{more:?}");
        expected
    };
    both(&["another", "--dimensions", "8"]);
    let json = ["--format", "json"];
    let expected = both(&json);

    // So does a file of another format.
    const FILE: &str = "tests/fixtures/gguf/embeddinggemma.gguf";
    let vector = |text: &str| -> Vec<f64> {
        let document: Value = serde_json::from_str(text).expect("JSON");
        let values = document[0]["embedding"].as_array().expect("a vector").iter();
        values.map(|value| value.as_f64().expect("a number")).collect()
    };
    let (found, expected) = (vector(&embed(FILE, &json)), vector(&expected));
    assert_eq!(found.len(), expected.len());
    let farthest = found.iter().zip(&expected).map(|(one, other)| (one - other).abs()).fold(0.0, f64::max);
    // The file stores norms plus one, rounded to 32 bits.
    assert!(farthest < 1e-5, "{farthest}");
    let shown = shardwright(["show", FILE]).succeeds();
    assert!(shown.contains("assumed: vectors divided by their length"), "{shown}");
}

#[test]
fn the_demo_model_answers_from_its_bundle_and_says_where() {
    let bundle = Compiled::from(DEMO_MODEL, DEMO_TARGET);
    let ask = |what: &str| {
        let run = shardwright(["run", what, "--chat", "--greedy", "--stop", "malfunction"]);
        run.arguments(["--prompt", "What does bug mean?"])
    };
    let from_bundle = ask(&shown(&bundle.path())).outcome();
    let from_checkpoint = ask(DEMO_MODEL).arguments(DEMO_TARGET).outcome();
    assert_eq!((from_bundle.code, from_checkpoint.code), (Some(0), Some(0)), "{}", from_bundle.stderr);
    assert_eq!(from_bundle.stdout, from_checkpoint.stdout);
    assert!(from_bundle.stderr.contains("*emulated on cpu*"), "{}", from_bundle.stderr);
    // The bundle has the notes of the compilation, except notes about the libraries of that
    // machine, and about a slow start from a checkpoint.
    let passing = |line: &&str| line.contains("cannot be used") || line.contains("prepared in");
    let lasting = |line: &&str| line.starts_with("note:") && !passing(line);
    let inspected = shardwright(["inspect"]).argument(bundle.path()).succeeds();
    for line in from_checkpoint.stderr.lines().filter(lasting) {
        let note = line.trim_start_matches("note: ");
        let is_known = inspected.contains(note) || from_bundle.stderr.contains(note);
        assert!(is_known, "`{line}` is not in {inspected} or {}", from_bundle.stderr);
    }
    // Notes about how it was made are not repeated when it runs.
    let variant = bundle.variant_json();
    let notices = variant["notices"].as_array().expect("notices");
    assert!(notices.iter().any(|notice| notice["kind"] == "making"), "{variant}");
    for notice in notices {
        let text = notice["text"].as_str().expect("a text");
        assert!(inspected.contains(text), "`{text}` is not in {inspected}");
        let is_repeated = from_bundle.stderr.contains(text);
        assert_eq!(is_repeated, notice["kind"] != "making", "`{text}`: {}", from_bundle.stderr);
    }
}

#[test]
fn a_bundle_has_the_index_of_its_tokenizer() {
    let compiled = Compiled::from(TEXT_FIXTURES[0], ["--context", "64"]);
    let bundle = Bundle::open(compiled.path()).expect("a bundle");
    let source = *bundle.manifest().texts[&TextFile::Tokenizer].sha256.bytes();
    let index = bundle.tokenizer_index().expect("its index").expect("there is one");
    assert!(shardwright_text::is_index_of(&index, source));
    fs::remove_file(bundle.place(&bundle.manifest().tokenizer_index.expect("named")).expect("its path").path)
        .expect("removed");
    let words = ["the file for `tokenizer_index` is missing"];
    refused(shardwright(["run", "--prompt", "a"]).argument(compiled.path()), 4, &words);
}

#[test]
fn it_needs_neither_its_checkpoint_nor_a_certain_folder() {
    let copy = Copy::of(TEXT_FIXTURES[3]);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let checkpoint = shown(copy.path());
    shardwright(["compile", &checkpoint, "-o", "bundle"]).within(folder.path()).succeeds();
    let expected = generate(&checkpoint).succeeds();
    drop(copy);
    assert_eq!(generate("bundle").within(folder.path()).succeeds(), expected);
    assert_eq!(generate(".").within(folder.path().join("bundle")).succeeds(), expected);
    refused(generate("nothing").within(folder.path()), 3, &["nothing"]);
    // Another folder, which is not writable.
    assert_eq!(generate(&shown(&folder.path().join("bundle"))).within("/proc").succeeds(), expected);
}

#[test]
fn compiling_twice_gives_the_same_bytes_wherever() {
    let one = Compiled::from(DEMO_MODEL, DEMO_TARGET);
    let expected = contents(&one.path());
    let compile = |into: &Path, within: &Path| {
        let run = shardwright(["compile", DEMO_MODEL, "-o"]).argument(into).arguments(DEMO_TARGET);
        run.within(within).json()
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    // A model is named after its folder.
    let root = tree::root();
    write_contents(&contents(&root.join(DEMO_MODEL)), &folder.path().join(DEMO_MODEL));
    let other = folder.path().join("other");
    let elsewhere = compile(&other, folder.path());
    assert!(contents(&other) == expected);

    // Compiling into the bundle's own folder changes no file. Compiling into another model's bundle
    // replaces it.
    let again = compile(&one.path(), &root);
    assert_eq!((&again["bundle"], &again["bytes"]), (&elsewhere["bundle"], &elsewhere["bytes"]));
    assert!(contents(&one.path()) == expected);
    shardwright(["compile", TEXT_FIXTURES[3], "-o"]).argument(one.path()).succeeds();
    assert!(contents(&one.path()) == contents(&Compiled::of(TEXT_FIXTURES[3]).path()));
}

#[test]
fn two_compilations_into_one_folder_do_not_mix() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bundle = folder.path().join("bundle");
    let start = || {
        let mut command = Command::new(program::executable());
        command.current_dir(tree::root()).args(["compile", TEXT_FIXTURES[0], "--context", "64", "-o"]);
        command.arg(&bundle).stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts")
    };
    let children = [start(), start()];
    let outcomes = children.map(|child| child.wait_with_output().expect("it ends"));
    let good = outcomes.iter().filter(|outcome| outcome.status.success()).count();
    assert!(good >= 1, "{outcomes:?}");
    for outcome in outcomes.iter().filter(|outcome| !outcome.status.success()) {
        let stderr = String::from_utf8_lossy(&outcome.stderr);
        assert!(stderr.contains("being written by another process"), "{stderr}");
    }
    let expected = Compiled::from(TEXT_FIXTURES[0], ["--context", "64"]);
    assert!(contents(&bundle) == contents(&expected.path()));
}

#[test]
fn a_folder_with_other_things_is_left_alone() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    fs::write(folder.path().join("thesis.txt"), "irreplaceable").expect("written");
    refused(shardwright(["compile", TEXT_FIXTURES[3], "-o", &shown(folder.path())]), 2, &["thesis.txt"]);
    assert_eq!(contents(folder.path()).len(), 1);
    let file = folder.path().join("thesis.txt");
    let (code, _) = shardwright(["compile", TEXT_FIXTURES[3], "-o", &shown(&file)]).refuses();
    assert!((2..=5).contains(&code), "{code}");
    let nowhere = folder.path().join("no/such/folder");
    let (code, _) = shardwright(["compile", TEXT_FIXTURES[3], "-o", &shown(&nowhere)]).refuses();
    assert_eq!(code, 3);
    assert_eq!(fs::read_to_string(&file).expect("still there"), "irreplaceable");
}

#[test]
fn a_dry_run_says_what_each_chip_would_get_and_makes_nothing() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let place = shown(&folder.path().join("bundle"));
    let socs = ["compile", DEMO_MODEL, "--soc", "mt6989,sm8750,generic", "--dry-run", "--on", "cpu"];
    let run = || shardwright(socs);
    let report = run().argument("-o").argument(&place).json();
    assert!(!Path::new(&place).exists(), "nothing was made");
    let plans = report["variants"].as_array().expect("plans");
    let named: Vec<&str> = plans.iter().map(|plan| plan["soc"].as_str().expect("a chip")).collect();
    assert_eq!(named, ["mt6989", "sm8750", "generic"]);
    for plan in plans {
        assert!(plan["totals"]["artefacts"]["bytes"].as_u64() > Some(0), "{plan}");
        assert!(plan["forecast"]["verdict"]["held_bytes"].as_u64() > Some(0), "{plan}");
    }
    let text = run().succeeds();
    for word in ["mt6989", "sm8750", "generic", "tokens/s", "No artefact was compiled"] {
        assert!(text.contains(word), "no `{word}` in {text}");
    }
    // An unknown chip is reported, and the others are still planned. If no chip is left, or there
    // is no output path, it is an error.
    let outcome = shardwright(["compile", DEMO_MODEL, "--soc", "mt1,generic", "--dry-run"]).outcome();
    assert_eq!(outcome.code, Some(1), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("not compiled for mt1") && outcome.stderr.contains("help: "));
    refused(shardwright(["compile", DEMO_MODEL, "--soc", "mt1", "--dry-run"]), 3, &["mt1"]);
    refused(shardwright(["compile", DEMO_MODEL]), 2, &["--output"]);
    // A plan that does not fit is refused before compiling.
    let small = ["compile", DEMO_MODEL, "--size", "100KB", "--dry-run"];
    refused(shardwright(small), 7, &["bytes"]);
}

/// `cli_options` tests every refused option.
#[test]
fn what_is_of_this_machine_is_an_argument_of_a_bundle_too() {
    let bundle = Compiled::of(TEXT_FIXTURES[3]);
    let path = shown(&bundle.path());
    refused(shardwright(["embed", &path, "a text", "--soc", "mt6988"]), 3, &["mt6988"]);
    // Options of this machine still work.
    let expected = generate(&path).succeeds();
    // A bundle for any machine runs on a chip with a name.
    for arguments in [
        &["--threads", "1", "--isolation", "off"][..],
        &["--isolation", "process", "--strict"],
        &["--soc", "mt6989"],
    ] {
        assert_eq!(generate(&path).arguments(arguments).succeeds(), expected, "{arguments:?}");
    }
    refused(shardwright(["embed", &path, "a text"]), 5, &["cannot embed"]);
}

/// Control sequences for a terminal, and a line that imitates one of the program's.
const FORGED: &str = "harmless\r\u{1b}[2K\u{9b}31mnothing\nfallback: forged\u{202e}";

/// Checks that the text contains these characters only in escaped form.
fn is_disarmed(text: &str) -> bool {
    let acts = |c: char| c.is_control() && c != '\n' || c == '\u{202e}';
    !text.contains(acts) && !text.lines().any(|line| line.starts_with("fallback: forged"))
}

#[test]
fn what_a_bundle_says_is_shown_and_not_obeyed() {
    let bundle = Compiled::of(TEXT_FIXTURES[3]);
    let writer = BundleWriter::create(bundle.path()).expect("a bundle");
    let mut manifest = writer.previous().cloned().expect("a manifest");
    // Bundles of earlier versions have notes of the first kind about how they were made.
    for kind in [NoticeKind::Note, NoticeKind::Making, NoticeKind::Fallback] {
        manifest.variants[0].notices.push(Notice { kind, text: FORGED.to_owned() });
    }
    writer.finish(&manifest).expect("written");
    let path = shown(&bundle.path());
    let outcome = generate(&path).outcome();
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert_eq!(outcome.stderr.matches("harmless").count(), 2, "{}", outcome.stderr);
    let strict = generate(&path).argument("--strict").outcome();
    assert_eq!(strict.code, Some(9), "{}", strict.stderr);
    assert!(strict.stderr.contains("error: harmless"), "{}", strict.stderr);
    let inspected = shardwright(["inspect", &path]).outcome();
    let looked_at = shardwright(["doctor", &path]).outcome();
    for text in [&outcome.stderr, &strict.stderr, &inspected.stdout, &looked_at.stdout] {
        assert!(is_disarmed(text), "{text:?}");
    }
}

/// Writes a work order as it is passed to a shim's compile.
fn work_order(folder: &Path) -> PathBuf {
    let graph = committed(TEXT_FIXTURES[3]);
    let menu = menu(64, &[16], &[1]);
    let mut order = WorkOrderBuilder::new(&graph.weights);
    for &entry in &menu.entries {
        let point = menu.point(entry);
        let made =
            graph.entry(ComponentKind::Decoder, 0..1, point, EntryOptions::default()).expect("an entry");
        order = order.entry(&made.expect("it takes part")).expect("an order");
    }
    order.write(folder).expect("written").path().to_owned()
}

#[test]
fn inspect_knows_everything_that_is_ours() {
    let bundle = Compiled::from(TEXT_FIXTURES[1], DEMO_TARGET);
    let manifest = bundle.variant_json();
    let artefact = shown(&bundle.file(&manifest["chains"][0]["shards"][0]["artefact"]));
    let folder = tempfile::tempdir().expect("a temporary folder");
    let order = shown(&work_order(folder.path()));
    let path = shown(&bundle.path());
    let manifest_file = shown(&bundle.path().join("bundle.json"));
    for (what, kind, words) in [
        (path.as_str(), "bundle", &["mt6989", "primary", "decoder", "cpu"][..]),
        (&manifest_file, "bundle", &["mt6989"]),
        (&artefact, "artefact", &["cpu", "decode_1@"]),
        (&order, "work-order", &["decode_1@64", "prefill_16@64"]),
        (TEXT_FIXTURES[1], "checkpoint", &["gemma4"]),
    ] {
        let text = shardwright(["inspect", what]).succeeds();
        for word in words {
            assert!(text.contains(word), "{kind}: no `{word}` in\n{text}");
        }
        let json = shardwright(["inspect", what]).json();
        assert_eq!(json["kind"], kind, "{json}");
    }
    let report = shardwright(["inspect", &path, "--verify"]).json();
    assert_eq!(report["intact"], true, "{report}");
    let proved = shardwright(["inspect", &path, "--verify"]).succeeds();
    let files = report["files"].as_array().expect("files").len();
    assert!(proved.contains(&format!("verified byte by byte: all {files} files")), "{proved}");

    let unknown = folder.path().join("unknown");
    fs::write(&unknown, "nothing in particular").expect("written");
    refused(shardwright(["inspect", &shown(&unknown)]), 5, &["unknown"]);
    refused(shardwright(["inspect", "/dev/null"]), 5, &["/dev/null"]);
    refused(shardwright(["inspect", &shown(&folder.path().join("absent"))]), 3, &["absent"]);
    let planner = shown(&program::folder().join("planners/generic.wasm"));
    refused(shardwright(["inspect", &planner]), 5, &["planner check"]);

    // Damaged files of each kind.
    damage(Path::new(&artefact));
    refused(shardwright(["inspect", &artefact]), 4, &["damaged"]);
    fs::File::options().write(true).open(&order).and_then(|file| file.set_len(40)).expect("shortened");
    refused(shardwright(["inspect", &order]), 4, &["expected 64 bytes, got 40"]);
}

#[test]
fn inspect_of_a_damaged_bundle_names_the_file_and_exits_with_4() {
    let bundle = Compiled::of(TEXT_FIXTURES[3]);
    let path = shown(&bundle.path());
    let manifest = bundle.variant_json();
    let artefact = bundle.file(&manifest["chains"][0]["shards"][0]["artefact"]);
    let table = bundle.file(&manifest["assets"][0]["table"]);
    let name = table.file_name().expect("a name").to_string_lossy().into_owned();
    let inspected = |more: &[&str]| {
        let outcome = shardwright(["inspect", &path]).arguments(more).outcome();
        (outcome.code, outcome.stdout)
    };

    // `explain` reads the heads of artefacts without the artefacts, and reports that.
    let explain = || shardwright(["explain", &path]).succeeds();
    let before = explain();
    assert!(before.contains("not checked: the content of artefacts"), "{before}");
    damage(&artefact);
    assert_eq!(explain(), before);
    damage(&artefact);

    // All bytes are read only on request.
    damage(&table);
    let report = shardwright(["inspect", &path]).json();
    assert_eq!((&report["intact"], &report["verified"]), (&Value::Null, &false.into()), "{report}");
    let of_table = |report: &Value| {
        let mut files = report["files"].as_array().expect("files").iter();
        files.find(|file| file["sha256"] == *name).expect("the table").clone()
    };
    assert_eq!(of_table(&report)["state"], "present", "{report}");
    let (code, text) = inspected(&[]);
    assert!(code == Some(0) && text.contains("`--verify` hashes them"), "{code:?} {text}");
    let (code, text) = inspected(&["--verify"]);
    assert!(code == Some(4) && text.contains(&name[..12]), "{code:?} {text}");
    let (code, text) = inspected(&["--verify", "--format", "json"]);
    let report: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!((code, &report["intact"]), (Some(4), &false.into()), "{report}");
    assert_eq!((&report["verified"], &of_table(&report)["state"]), (&true.into(), &"damaged".into()));
    assert!(of_table(&report)["help"].is_string(), "{report}");
    // `doctor` hashes what runs.
    let outcome = shardwright(["doctor", &path]).outcome();
    assert!(outcome.code == Some(4) && outcome.stdout.contains("the bundle cannot run here"));

    // The error and the help follow the report, in text and in JSON.
    fs::remove_file(&table).expect("removed");
    let help = "copy the bundle again from its source";
    refused(shardwright(["inspect", &path]), 4, &[&name, help]);
    let outcome = shardwright(["inspect", &path, "--format", "json"]).outcome();
    let failure: Value = serde_json::from_str(&outcome.stderr).expect("JSON");
    assert!(failure["error"]["help"].as_str().is_some_and(|text| text.starts_with(help)), "{failure}");
    refused(generate(&path), 4, &[&name]);

    // Without its manifest it is still not taken for a checkpoint.
    fs::remove_file(bundle.manifest()).expect("removed");
    for run in [generate(&path), shardwright(["inspect", &path])] {
        refused(run, 3, &["incomplete copy of a bundle: `bundle.json` is missing"]);
    }
    refused(shardwright(["show", &path]), 2, &["is a bundle, not a checkpoint"]);
}

/// The hash of an artefact is checked before its shim reads it. The other parts are shown.
#[test]
fn inspect_of_a_damaged_artefact_shows_the_rest_and_exits_with_4() {
    let chip = TestChip::new();
    let bundle = Compiled::by(chip.planned_by(shardwright(["compile", TEXT_FIXTURES[3]])));
    let inspect = || chip.found_by(shardwright(["inspect"]).argument(bundle.path()));
    let manifest = bundle.variant_json();
    let shards = manifest["chains"][0]["shards"].as_array().expect("shards");
    let shard =
        shards.iter().find(|shard| shard["compiled_by"]["shim"] == CHIP).expect("a shard of the chip");
    damage(&bundle.file(&shard["artefact"]));
    let outcome = inspect().outcome();
    assert_eq!(outcome.code, Some(4), "{}{}", outcome.stdout, outcome.stderr);
    for words in ["primary", "shim testchip cannot describe it", ": damaged: "] {
        assert!(outcome.stdout.contains(words), "no `{words}` in {}", outcome.stdout);
    }
    let outcome = inspect().arguments(["--format", "json"]).outcome();
    assert_eq!(outcome.code, Some(4), "{}", outcome.stderr);
    let report: Value = serde_json::from_str(&outcome.stdout).expect("JSON");
    let told = report["artefacts"].as_array().expect("answers of shims");
    assert!(told.iter().any(|told| told["damaged"] == true), "{report}");
}

/// Returns the longest artefact of a bundle of the trained model. It is too long to be hashed at
/// every use.
fn long_artefact(bundle: &Compiled) -> PathBuf {
    let manifest = bundle.variant_json();
    let shards = manifest["chains"][0]["shards"].as_array().expect("shards");
    let files = shards.iter().map(|shard| bundle.file(&shard["artefact"]));
    let length = |file: &PathBuf| fs::metadata(file).expect("a file").len();
    let file = files.max_by_key(length).expect("an artefact");
    assert!(length(&file) > 1 << 20, "{} bytes", length(&file));
    file
}

/// Facts about a bundle that are cached between starts become invalid with the first change to it.
/// An attacker who changes an artefact can correct the hash it contains. The manifest's hash covers
/// the whole file.
#[test]
fn a_file_changed_and_mended_is_not_used_although_it_was_proved_before() {
    let bundle = Compiled::of(DEMO_MODEL);
    let path = shown(&bundle.path());
    let cache = tempfile::tempdir().expect("a temporary folder");
    let with_proofs = |run: Run| run.environment("XDG_CACHE_HOME", cache.path());
    let run = || with_proofs(generate(&path));
    // A file's time stamp is trusted only if the file was unchanged for some seconds before.
    std::thread::sleep(std::time::Duration::from_secs(5));
    let expected = run().succeeds();
    assert_eq!(run().succeeds(), expected);
    let proofs = cache.path().join("shardwright/proofs");
    println!("{} proofs remembered", fs::read_dir(&proofs).map_or(0, Iterator::count));
    let table = bundle.file(&bundle.variant_json()["assets"][0]["table"]);
    for (file, is_artefact) in [(long_artefact(&bundle), true), (table, false)] {
        let good = fs::read(&file).expect("read");
        let modified = fs::metadata(&file).and_then(|metadata| metadata.modified()).expect("a time");
        damage(&file);
        if is_artefact {
            let mut bytes = fs::read(&file).expect("read");
            let mended = *Digest::of(&bytes[64..]).bytes();
            bytes[32..64].copy_from_slice(&mended);
            fs::write(&file, &bytes).expect("written");
            shardwright(["inspect"]).argument(&file).succeeds();
        }
        let changed = fs::File::options().write(true).open(&file);
        changed.and_then(|file| file.set_modified(modified)).expect("set");
        let name = shown(&file);
        refused(run(), 4, &[&name]);
        if is_artefact {
            refused(run().arguments(["--isolation", "off"]), 4, &[&name]);
            refused(with_proofs(shardwright(["doctor", &path])), 4, &["runs here", &name]);
            refused(with_proofs(shardwright(["bench", &path])), 4, &[&name]);
        }
        fs::write(&file, &good).expect("written");
    }
    assert_eq!(run().succeeds(), expected);

    // Proofs that other users may have written are not trusted, and that is reported.
    fs::create_dir_all(&proofs).expect("made");
    fs::set_permissions(&proofs, fs::Permissions::from_mode(0o777)).expect("set");
    let outcome = run().outcome();
    assert_eq!((outcome.code, outcome.stdout), (Some(0), expected), "{}", outcome.stderr);
    let said = |line: &str| line.starts_with("note:") && line.contains("proofs were rejected");
    assert!(outcome.stderr.lines().any(said), "{}", outcome.stderr);
}

#[test]
fn strict_refuses_what_a_bundle_says_was_done_otherwise() {
    // The example planner drops all flags.
    let target = ["--soc", "mt6989", "--on", "cpu", "--planner", "even", "--flag", "opt=1"];
    let bundle = Compiled::from(TEXT_FIXTURES[3], target);
    let path = shown(&bundle.path());
    let outcome = generate(&path).outcome();
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(outcome.stderr.lines().any(|line| line.starts_with("fallback:") && line.contains("opt=1")));
    refused(generate(&path).argument("--strict"), 9, &["opt=1"]);
    refused(shardwright(["inspect", &path, "--strict"]), 9, &["opt=1"]);
}

/// Entries of a bundle's folder that do not belong to it are never read. Files that systems and
/// editors create do not matter to `--strict`.
#[test]
fn foreign_files_in_a_bundle_are_reported_once_and_refused_under_strict() {
    let bundle = Compiled::of(TEXT_FIXTURES[3]);
    let (path, folder) = (shown(&bundle.path()), tempfile::tempdir().expect("a temporary folder"));
    let packed = || shardwright(["pack", &path, "-o"]).argument(folder.path().join("packed.swb"));
    let commands = || [generate(&path), shardwright(["bench", &path, "-p", "4", "-n", "2", "-r", "1"])];
    let reported = |name: &str, begin: &str| {
        let [run, bench] = commands();
        for run in [run, bench, packed()] {
            let outcome = run.outcome();
            let lines: Vec<&str> = outcome.stderr.lines().filter(|line| line.contains(name)).collect();
            assert!(outcome.code == Some(0) && lines.len() == 1, "{name}: {}", outcome.stderr);
            assert!(lines[0].starts_with(begin) && lines[0].contains("part of the bundle"), "{lines:?}");
        }
        for list in ["inspect", "doctor"] {
            let text = shardwright([list, &path]).succeeds();
            assert!(text.contains(name), "{list}: {text}");
        }
    };
    fs::write(bundle.path().join(".DS_Store"), "a view").expect("written");
    reported(".DS_Store", "note: ");
    for run in commands().into_iter().chain([shardwright(["inspect", &path])]) {
        run.argument("--strict").succeeds();
    }
    fs::write(bundle.path().join("files/extra.bin"), "a part").expect("written");
    reported("files/extra.bin", "fallback: ");
    for run in commands().into_iter().chain([shardwright(["inspect", &path])]) {
        refused(run.argument("--strict"), 9, &["files/extra.bin is ignored: it is not part of the bundle"]);
    }
    let verify = ["verify", TEXT_FIXTURES[3], "--bundle", &path, "--strict"];
    refused(shardwright(verify), 9, &["files/extra.bin"]);
}

/// A closed terminal also interrupts the compilation, and its output has no reader any more.
#[test]
fn compiling_survives_readers_that_go_away() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bundle = folder.path().join("bundle");
    let mut child = Command::new(program::executable())
        .current_dir(tree::root())
        .args(["compile", TEXT_FIXTURES[3], "-o", &shown(&bundle)])
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("it starts");
    drop(child.stdout.take());
    let status = child.wait().expect("it ends");
    assert!(status.success(), "{status}");
    Bundle::open(&bundle).and_then(|bundle| bundle.verify_all(|_| ())).expect("a complete bundle");
}

/// Covers every way in which a plan can deviate from the request, from `plan`, `run` and `compile`
/// to the bundle.
#[test]
fn a_shard_that_left_its_chip_is_refused_under_strict_everywhere() {
    let chip = TestChip::new();
    let of_chip = |run: Run| chip.planned_by(run).arguments(["--limit", "ops=3"]);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bundle = shown(&folder.path().join("bundle"));
    let compile = || of_chip(shardwright(["compile", TEXT_FIXTURES[3], "-o", &bundle]));
    let plan = || of_chip(shardwright(["plan", TEXT_FIXTURES[3]]));
    let run = || of_chip(generate(TEXT_FIXTURES[3]));

    for strict in [plan(), run(), compile()] {
        refused(strict.argument("--strict"), 9, &[" on the CPU, not on testchip"]);
    }
    assert!(!Path::new(&bundle).join("bundle.json").exists());
    let said = |run: Run| {
        let outcome = run.outcome();
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        let mut lines = outcome.stderr.lines().chain(outcome.stdout.lines());
        assert!(lines.any(|line| line.contains("not on testchip")), "{}{}", outcome.stdout, outcome.stderr);
    };
    said(plan());
    said(run());
    said(compile());
    said(chip.found_by(generate(&bundle)));
    refused(chip.found_by(generate(&bundle)).argument("--strict"), 9, &["not on testchip"]);

    // An explicit request for the CPU is not a fallback.
    let asked =
        || chip.planned_by(generate(TEXT_FIXTURES[3])).arguments(["--planner-option", "place.head=cpu"]);
    asked().argument("--strict").succeeds();
}
