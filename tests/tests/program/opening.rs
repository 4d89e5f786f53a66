//! Hashing when a bundle is opened, and its reports. A user's bundle is hashed once, and every time
//! if proofs cannot be stored. Also tests progress, cancellation, and which chains may take over.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use shardwright::tools::ModelTools;
use shardwright::{
    BundleOptions, ErrorKind, FallbackPolicy, Isolation, Model, OpenOptions, Section, Verified, Watch,
};
use shardwright_tests::bundles::{Compiled, contents, logits, some_tokens};
use shardwright_tests::checkpoints::{DEMO_MODEL, TEXT_FIXTURES};
use shardwright_tests::chip::{CHIP, Chip};
use shardwright_tests::program::{self, shardwright};
use shardwright_tests::{skipped, tree};
use tempfile::TempDir;

/// Compiles a bundle and waits until its files are old enough for proofs. Returns it with a folder
/// for proofs.
fn settled(checkpoint: &str) -> (Compiled, TempDir) {
    let compiled = Compiled::from(checkpoint, [] as [&str; 0]);
    std::thread::sleep(Duration::from_secs(5));
    (compiled, tempfile::tempdir().expect("a temporary folder"))
}

fn options(proofs: &Path) -> BundleOptions {
    BundleOptions::new().search_path(program::search_path()).threads(2).remember_proofs(proofs)
}

fn open(options: &BundleOptions, bundle: &Path) -> Model {
    options.open(bundle).unwrap_or_else(|error| panic!("{}: {error}", bundle.display()))
}

fn verified(model: &Model) -> Verified {
    model.report().verified.expect("of a bundle").clone()
}

/// Returns the bytes of the files that opening the whole bundle uses, each counted once.
fn used_bytes(model: &Model) -> u64 {
    let bundle = model.bundle().expect("a bundle");
    let variant = bundle.variant();
    let mut files: Vec<_> = variant.chains[0].shards.iter().map(|shard| shard.artefact).collect();
    for asset in &variant.assets {
        files.push(asset.table);
        files.extend(asset.quantisation.as_ref().map(|quantisation| quantisation.scales));
    }
    files.extend(bundle.manifest().tokenizer_index);
    files.sort();
    files.dedup();
    files.iter().map(|file| file.bytes).sum()
}

/// A watcher that records progress.
#[derive(Default)]
struct Seen {
    places: Vec<u32>,
    stages: Vec<String>,
    /// How many more queries it answers before it requests a stop. `None` never stops.
    patience: Option<std::cell::Cell<u32>>,
}

impl Watch for Seen {
    fn progress(&mut self, per_mille: u32, stage: &str) {
        self.places.push(per_mille);
        self.stages.push(stage.to_owned());
    }

    fn cancelled(&self) -> bool {
        let Some(patience) = &self.patience else { return false };
        let left = patience.get();
        patience.set(left.saturating_sub(1));
        left == 0
    }
}

impl Seen {
    fn hashes(&self) -> bool {
        self.stages.iter().any(|stage| stage.starts_with("hashing"))
    }
}

#[test]
fn the_first_opening_hashes_with_progress_and_the_next_hashes_nothing() {
    let (compiled, proofs) = settled(DEMO_MODEL);
    let options = options(&proofs.path().join("proofs"));
    let mut seen = Seen::default();
    let model = options.open_watched(compiled.path(), &mut seen).expect("opened");
    assert!(seen.places.is_sorted() && seen.places.last() == Some(&1000), "{:?}", seen.places);
    assert!(seen.places.len() > 8 && seen.hashes(), "{:?}", seen.stages);
    assert!(seen.stages.iter().any(|stage| stage.starts_with("loading")), "{:?}", seen.stages);
    let first = verified(&model);
    assert_eq!(first.hashed.bytes, used_bytes(&model));
    assert!(first.hashed.bytes_per_second() > 0.0 && first.to_string().contains("B/s; "), "{first}");
    let ids = some_tokens(&model, 8);
    let expected = logits(&model, &ids[..4], &ids[4..]);
    drop(model);
    if let Some(why) = &first.again {
        assert!(first.to_string().contains(why), "{first}");
        return skipped(&format!("opening again without hashing: {why}"));
    }
    assert!(first.to_string().contains("remembered in"), "{first}");

    let mut seen = Seen::default();
    let model = options.open_watched(compiled.path(), &mut seen).expect("opened");
    let again = verified(&model);
    assert_eq!((again.hashed.bytes, &again.again), (0, &None), "{again}");
    assert!(again.to_string().contains("no file was hashed"), "{again}");
    assert!(!seen.hashes() && seen.places.is_sorted(), "{:?}", seen.stages);
    assert_eq!(logits(&model, &ids[..4], &ids[4..]), expected);
    drop(model);

    // A moved bundle has the same files, a copied one has others, and a changed one is refused.
    let elsewhere = proofs.path().join("moved");
    fs::rename(compiled.path(), &elsewhere).expect("moved");
    assert_eq!(verified(&open(&options, &elsewhere)).hashed.bytes, 0);
    let copied = proofs.path().join("copied");
    for (path, bytes) in contents(&elsewhere) {
        let to = copied.join(path);
        fs::create_dir_all(to.parent().expect("a folder")).expect("made");
        fs::write(to, bytes).expect("written");
    }
    let of_copy = verified(&open(&options, &copied));
    assert_eq!(of_copy.hashed.bytes, first.hashed.bytes);
    assert!(of_copy.to_string().contains("written just now"), "{of_copy}");
    assert_eq!(verified(&open(&options.clone().verify_all(true), &elsewhere)).proofs, None);
    let model = open(&options, &elsewhere);
    let artefact = model.bundle().expect("a bundle").variant().chains[0].shards[0].artefact.sha256;
    drop(model);
    let path = elsewhere.join("files").join(artefact.to_string());
    let mut bytes = fs::read(&path).expect("read");
    *bytes.last_mut().expect("not empty") ^= 1;
    fs::write(&path, bytes).expect("written");
    let error = options.open(&elsewhere).err().expect("damaged");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

#[test]
fn a_section_opens_with_progress_and_is_remembered() {
    let (compiled, folder) = settled(TEXT_FIXTURES[3]);
    let packed = folder.path().join("demo.swb");
    shardwright(["pack"]).argument(compiled.path()).argument("-o").argument(&packed).succeeds();
    std::thread::sleep(Duration::from_secs(5));
    let options = options(&folder.path().join("proofs"));
    let section = || {
        let file = fs::File::open(&packed).expect("open");
        Section::whole(&packed, file).expect("its length")
    };
    let mut seen = Seen::default();
    let first = verified(&options.open_watched(section(), &mut seen).expect("opened"));
    assert!(seen.hashes() && first.hashed.bytes > 0, "{first}");
    if first.again.is_none() {
        assert_eq!(verified(&open(&options, &packed)).hashed.bytes, 0);
    }
    let mut seen = Seen { patience: Some(0.into()), ..Seen::default() };
    let error = options.open_watched(section(), &mut seen).err().expect("cancelled");
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");
}

#[test]
fn an_opening_is_cancelled_wherever_it_is_and_remembers_nothing_half() {
    let (compiled, folder) = settled(DEMO_MODEL);
    let whole = {
        let options = options(&folder.path().join("whole"));
        let model = open(&options, &compiled.path());
        used_bytes(&model)
    };
    let mut cancelled = 0;
    for patience in 0..1000 {
        let proofs = folder.path().join(format!("proofs-{patience}"));
        let options = options(&proofs);
        let mut seen = Seen { patience: Some(patience.into()), ..Seen::default() };
        match options.open_watched(compiled.path(), &mut seen) {
            Ok(_) => break,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}"),
        }
        cancelled += 1;
        assert!(seen.places.is_sorted() && seen.places.last() != Some(&1000), "{:?}", seen.places);
        // Only files that were hashed to their ends have proofs. The rest is hashed now.
        let notes = if proofs.exists() { contents(&proofs).len() } else { 0 };
        let model = open(&options, &compiled.path());
        let hashed = verified(&model).hashed.bytes;
        assert!(hashed <= whole && (notes > 0) == (hashed < whole), "{notes} notes, {hashed} of {whole}");
    }
    assert!(cancelled > 10, "cancelled {cancelled} times");
    // Cancelling also works if every file is verified.
    let mut seen = Seen { patience: Some(2.into()), ..Seen::default() };
    let error = options(folder.path()).verify_all(true).open_watched(compiled.path(), &mut seen);
    assert_eq!(error.err().expect("cancelled").kind(), ErrorKind::Cancelled);
    assert!(seen.stages.iter().all(|stage| stage == "verifying every file"), "{:?}", seen.stages);
}

#[test]
fn without_a_place_for_proofs_every_opening_hashes_and_says_how_to_name_one() {
    let (compiled, folder) = settled(TEXT_FIXTURES[3]);
    // Root may write anywhere, but cannot use a file as a folder.
    let file = folder.path().join("file");
    fs::write(&file, b"").expect("written");
    let nowhere = options(&file).remember_no_proofs();
    for options in [options(&file.join("proofs")), nowhere] {
        for _ in 0..2 {
            let said = verified(&open(&options, &compiled.path()));
            assert!(said.hashed.bytes > 0 && said.again.is_some(), "{said}");
            assert!(said.to_string().contains("the next opening hashes them again: "), "{said}");
        }
    }
    let run = |home: &Path, cache: &Path| {
        let run = shardwright(["run"]).argument(compiled.path());
        let run = run.arguments(["--prompt", "a", "-n", "1", "--greedy"]);
        let outcome = run.environment("HOME", home).environment("XDG_CACHE_HOME", cache).outcome();
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        let hashed = |line: &&str| line.starts_with("note: ") && line.contains(" were hashed in ");
        outcome.stderr.lines().find(hashed).map(str::to_owned)
    };
    for _ in 0..2 {
        let said = run(Path::new(""), Path::new("")).expect("it is said");
        assert!(said.contains("again") && said.contains("XDG_CACHE_HOME"), "{said}");
        let said = run(Path::new(""), &file).expect("it is said");
        assert!(said.contains("again") && said.contains("cannot be kept in"), "{said}");
    }
    let cache = folder.path().join("cache");
    let said = run(Path::new(""), &cache).expect("it is said");
    match said.contains("again") {
        true => skipped(&said),
        false => assert_eq!(run(Path::new(""), &cache), None, "{said}"),
    }
}

/// Runs in a namespace in which the folder is mounted read-only.
#[test]
fn it_opens_from_a_file_system_that_is_only_read() {
    let (compiled, folder) = settled(TEXT_FIXTURES[3]);
    let script = "mount --bind \"$1\" \"$1\" && mount -o remount,bind,ro \"$1\" || exit 99
if touch \"$1/file\" 2>/dev/null; then exit 98; fi
shift; exec \"$@\"";
    let run = |cache: &Path| {
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-c", script, "sh"]).arg(compiled.path()).arg(program::executable());
        command.arg("run").arg(compiled.path()).args(["--prompt", "a", "-n", "4", "--greedy"]);
        command.env("XDG_CACHE_HOME", cache);
        program::finished(command)
    };
    let expected = shardwright(["run"]).argument(compiled.path());
    let expected = expected.arguments(["--prompt", "a", "-n", "4", "--greedy"]).succeeds();
    let first = run(&folder.path().join("cache"));
    if matches!(first.code, None | Some(1 | 99)) {
        return skipped(&format!("no name space with a mount of its own: {}", first.stderr));
    }
    assert_eq!((first.code, &first.stdout), (Some(0), &expected), "{}", first.stderr);
    assert!(first.stderr.contains(" were hashed in "), "{}", first.stderr);
    let second = run(&folder.path().join("cache"));
    assert_eq!((second.code, &second.stdout), (Some(0), &expected), "{}", second.stderr);
}

/// Runs as another user, who does not trust the proofs of the first. That is reported.
#[test]
fn proofs_of_another_user_are_not_believed() {
    let (compiled, folder) = settled(TEXT_FIXTURES[3]);
    let proofs = folder.path().join("proofs");
    let first = verified(&open(&options(&proofs), &compiled.path()));
    if first.again.is_some() || !proofs.exists() {
        return skipped(&first.to_string());
    }
    if std::os::unix::fs::chown(&proofs, Some(12_345), None).is_err() {
        return skipped("only root can give a folder away");
    }
    for _ in 0..2 {
        let model = open(&options(&proofs), &compiled.path());
        let said = verified(&model);
        assert_eq!(said.hashed.bytes, first.hashed.bytes);
        assert!(said.to_string().contains("were rejected"), "{said}");
        let notices = model.report().notices_of_opening;
        let notice = notices.iter().find(|notice| notice.text.contains("belongs to user"));
        assert!(notice.is_some(), "{notices:?}");
    }
}

/// Compiles a bundle for a chip with a second chain for the CPU.
fn for_the_chip(chip: &Chip) -> (TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let bundle = folder.path().join("bundle");
    let options = OpenOptions::new().search_path(chip.search_path()).soc(CHIP).isolation(Isolation::Off);
    let made = options.compile(tree::root().join(TEXT_FIXTURES[3]), &bundle, &mut ());
    made.unwrap_or_else(|error| panic!("{error}"));
    (folder, bundle)
}

#[test]
fn a_policy_says_which_chains_may_take_over() {
    let chip = Chip::new();
    let (_folder, bundle) = for_the_chip(&chip);
    let only = |names: &[&str]| FallbackPolicy::Only(names.iter().map(|&name| name.to_owned()).collect());
    let policies = [
        // Whether it opens on a machine without the chip, and whether a session continues when the
        // chip is lost.
        (FallbackPolicy::Allow, true, true),
        (FallbackPolicy::AtOpening, true, false),
        (only(&["cpu"]), true, true),
        (only(&[]), false, false),
        (only(&["primary"]), false, false),
        (FallbackPolicy::Refuse, false, false),
    ];
    let options = |policy: &FallbackPolicy| {
        let options = BundleOptions::new().search_path(chip.search_path()).isolation(Isolation::Off);
        options.remember_no_proofs().fallback(policy.clone())
    };
    for (policy, opens, goes_on) in policies {
        chip.behaves_as("broken");
        let opened = options(&policy).open(&bundle);
        assert_eq!(opened.is_ok(), opens, "{policy:?}: {:?}", opened.err());
        match opened {
            Ok(model) => {
                assert_eq!(model.report().bundle_chain, Some("cpu"));
                assert_eq!(model.report().fallback_policy, Some(&policy));
            }
            Err(error) if policy != FallbackPolicy::Refuse => {
                assert!(error.to_string().contains("the fallback policy excludes `cpu`"), "{error}");
            }
            Err(_) => {}
        }
        chip.fails_in("lost", 3);
        let model = open(&options(&policy), &bundle);
        assert_eq!(model.report().bundle_chain, Some("primary"));
        let mut session = model.session().expect("a session");
        session.options.max_tokens = Some(8);
        let reply = session.complete("and so it goes").expect("a reply").text();
        assert_eq!(reply.is_ok(), goes_on, "{policy:?}: {:?}", reply.err());
        assert_eq!(session.placement().moves.len(), usize::from(goes_on), "{policy:?}");
    }
    chip.fails_in("nothing", 0);
    let error = options(&only(&["gpu"])).open(&bundle).err().expect("no such chain");
    assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
    assert!(error.help().is_some_and(|help| help.contains("cpu, primary")), "{:?}", error.help());
    let strict = options(&FallbackPolicy::Allow).strict(true);
    assert_eq!(open(&strict, &bundle).report().fallback_policy, Some(&FallbackPolicy::Refuse));
}

#[test]
fn a_chain_beyond_the_budget_is_passed_over_before_it_is_read() {
    let chips = ["--soc", "mt6989,generic", "--on", "cpu", "--context", "256"];
    let bundle = Compiled::from(DEMO_MODEL, chips);
    let variants = bundle.manifest_json()["variants"].as_array().expect("variants").clone();
    let artefacts = |soc: &str| {
        let variant = variants.iter().find(|variant| variant["soc"] == soc).expect("its variant");
        let shards = variant["chains"][0]["shards"].as_array().expect("shards").clone();
        shards.iter().map(|shard| shard["artefact"].clone()).collect::<Vec<_>>()
    };
    let bytes = |soc: &str| -> u64 {
        artefacts(soc).iter().map(|artefact| artefact["bytes"].as_u64().expect("bytes")).sum()
    };
    let (large, small) = (bytes("generic"), bytes("mt6989"));
    assert!(small + (1 << 20) < large, "{small} and {large} bytes");
    let options = BundleOptions::new().search_path(program::search_path()).remember_no_proofs();
    let model = open(&options, &bundle.path());
    assert_eq!((model.report().bundle_variant, model.memory().weights), (Some("generic"), large));
    drop(model);

    // Neither variant fits, and the memory that the smaller one needs is reported.
    let error = options.clone().memory_budget(1).open(bundle.path()).err().expect("nothing fits");
    assert_eq!(error.kind(), ErrorKind::Memory, "{error}");
    let said = error.to_string();
    let least = "of the variant for mt6989 needs the least: ";
    assert!(said.contains(least) && said.contains("are mapped and not counted"), "{said}");
    let strict = options.clone().memory_budget(1).strict(true).open(bundle.path()).err().expect("strict");
    assert_eq!(strict.kind(), ErrorKind::Memory, "{strict}");
    // The program does the same. A model that fits runs as it does without a budget.
    let run =
        |command: &[&str], budget: &[&str]| shardwright(command).argument(bundle.path()).arguments(budget);
    let generate = ["run", "--prompt", "In the beginning", "--max-tokens", "8", "--greedy"];
    let measure = ["bench", "-p", "4", "-n", "2", "-r", "1"];
    for command in [&generate[..], &measure] {
        let (code, said) = run(command, &["--memory-budget", "1kB"]).refuses();
        let names = [least, "the memory budget is 1000 bytes", "raise the budget"];
        assert!(code == 11 && names.iter().all(|name| said.contains(name)), "{code} {said}");
    }
    let expected = run(&generate, &[]).succeeds();
    assert_eq!(run(&generate, &["--memory-budget", "3GB", "--strict"]).succeeds(), expected);
    let smaller = run(&generate, &["--memory-budget", &large.to_string()]).outcome();
    assert_eq!(smaller.code, Some(0), "{}", smaller.stderr);
    assert!(smaller.stderr.contains("fallback: ") && smaller.stderr.contains("the memory budget is"));
    // A skipped chain is not even read, so damage to it is not detected.
    let path = bundle.file(&artefacts("generic")[0]);
    let mut content = fs::read(&path).expect("read");
    let middle = content.len() / 2;
    content[middle] ^= 1;
    fs::write(&path, content).expect("written");
    let model = open(&options.clone().memory_budget(large), &bundle.path());
    assert_eq!((model.report().bundle_variant, model.memory().weights), (Some("mt6989"), small));
    let said = |text: &str| text.contains("does not run here") && text.contains("the memory budget is");
    let notices = model.report().notices_of_opening;
    assert!(notices.iter().any(|notice| said(&notice.text)), "{notices:?}");
    let placement = model.session().expect("a session").placement();
    assert_eq!(placement.beforehand.passed_over[0].kind, "memory");
    let error = options.open(bundle.path()).err().expect("damaged");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}
