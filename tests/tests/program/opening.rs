//! Hashing when a bundle is opened, and its reports. A user's bundle is hashed once, and every time
//! if proofs cannot be stored. Also tests progress, cancellation, and which chains may take over.

use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use shardwright::tools::ModelTools;
use shardwright::{BundleOptions, ErrorKind, FallbackPolicy, Isolation, Model, Section, Verified};
use shardwright_bundle::{Bundle, pack};
use shardwright_tests::bundles::{Compiled, contents, damage, logits, some_tokens, write_contents};
use shardwright_tests::checkpoints::{DEMO_MODEL, TEXT_FIXTURES};
use shardwright_tests::chip::TestChip;
use shardwright_tests::program::{self, shardwright};
use shardwright_tests::skipped;

use crate::bundle::for_the_chip;
use crate::watched::Seen;

/// Waits until files are old enough for proofs.
fn settle() {
    std::thread::sleep(Duration::from_secs(5));
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

fn output(model: &Model) -> Vec<Vec<u32>> {
    let ids = some_tokens(model, 12);
    logits(model, &ids[..8], &ids[8..])
}

#[test]
fn an_opening_hashes_once_with_progress_and_is_cancelled_wherever_it_is() {
    let compiled = Compiled::of(DEMO_MODEL);
    let folder = tempfile::tempdir().expect("a temporary folder");
    settle();
    is_cancelled_wherever_it_is_and_remembers_nothing_half(&compiled.path(), folder.path());
    hashes_with_progress_and_the_next_hashes_nothing(&compiled.path(), folder.path());
}

/// Uses one bundle, because its files must be some seconds old.
#[test]
fn what_is_hashed_is_remembered_where_that_is_believed() {
    let compiled = Compiled::of(TEXT_FIXTURES[3]);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let packed = folder.path().join("demo.swb");
    let bundle = Bundle::open(compiled.path()).expect("a bundle");
    pack(&bundle, &packed, |_| ControlFlow::Continue(())).expect("packed");
    drop(bundle);
    settle();
    a_section_opens_with_progress_and_is_remembered(&packed, folder.path());
    without_a_place_for_proofs_it_says_how_to_name_one(&compiled.path(), folder.path());
    it_opens_from_a_file_system_that_is_only_read(&compiled.path(), folder.path());
    proofs_of_another_user_are_not_believed(&compiled.path(), folder.path());
}

fn hashes_with_progress_and_the_next_hashes_nothing(bundle: &Path, folder: &Path) {
    let options = options(&folder.join("proofs"));
    let mut seen = Seen::default();
    let model = options.open_watched(bundle, &mut seen).expect("opened");
    assert!(seen.places.is_sorted() && seen.places.last() == Some(&1000), "{:?}", seen.places);
    assert!(seen.places.len() > 8 && seen.hashes(), "{:?}", seen.stages);
    assert!(seen.stages.iter().any(|stage| stage.starts_with("loading")), "{:?}", seen.stages);
    let first = verified(&model);
    assert_eq!(first.hashed.bytes, used_bytes(&model));
    assert!(first.hashed.bytes_per_second() > 0.0 && first.to_string().contains("B/s; "), "{first}");
    let expected = output(&model);
    drop(model);
    if let Some(why) = &first.again {
        assert!(first.to_string().contains(why), "{first}");
        return skipped(&format!("opening again without hashing: {why}"));
    }
    assert!(first.to_string().contains("remembered in"), "{first}");

    let mut seen = Seen::default();
    let model = options.open_watched(bundle, &mut seen).expect("opened");
    let again = verified(&model);
    assert_eq!((again.hashed.bytes, &again.again), (0, &None), "{again}");
    assert!(again.to_string().contains("no file was hashed"), "{again}");
    assert!(!seen.hashes() && seen.places.is_sorted(), "{:?}", seen.stages);
    assert_eq!(output(&model), expected);
    drop(model);

    // A moved bundle has the same files, a copied one has others, and a changed one is refused.
    let elsewhere = folder.join("moved");
    fs::rename(bundle, &elsewhere).expect("moved");
    assert_eq!(verified(&open(&options, &elsewhere)).hashed.bytes, 0);
    let copied = folder.join("copied");
    write_contents(&contents(&elsewhere), &copied);
    let of_copy = verified(&open(&options, &copied));
    assert_eq!(of_copy.hashed.bytes, first.hashed.bytes);
    assert!(of_copy.to_string().contains("written just now"), "{of_copy}");
    assert_eq!(verified(&open(&options.clone().verify_all(true), &elsewhere)).proofs, None);
    let model = open(&options, &elsewhere);
    let artefact = model.bundle().expect("a bundle").variant().chains[0].shards[0].artefact.sha256;
    drop(model);
    damage(&elsewhere.join("files").join(artefact.to_string()));
    let error = options.open(&elsewhere).err().expect("damaged");
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}

/// As an app opens an asset: by a descriptor and a place.
fn a_section_opens_with_progress_and_is_remembered(packed: &Path, folder: &Path) {
    let options = options(&folder.join("sections"));
    let whole = |path: &Path| Section::whole(path, fs::File::open(path).expect("open")).expect("its length");
    let mut seen = Seen::default();
    let model = options.open_watched(whole(packed), &mut seen).expect("opened");
    let first = verified(&model);
    assert!(seen.hashes() && first.hashed.bytes > 0, "{first}");
    let expected = output(&model);
    drop(model);
    if first.again.is_none() {
        assert_eq!(verified(&open(&options, packed)).hashed.bytes, 0);
    }
    let mut seen = Seen::patient("", 0);
    let error = options.open_watched(whole(packed), &mut seen).err().expect("cancelled");
    assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}");

    let bytes = fs::read(packed).expect("read");
    let larger = folder.join("larger");
    fs::write(&larger, [&[7; 16_384][..], &bytes, b"and more"].concat()).expect("written");
    let part = whole(&larger).part("asset", 16_384, bytes.len() as u64).expect("within");
    assert_eq!(output(&options.open(part).expect("opened")), expected);
    let error = options.open(whole(&larger)).err().expect("something before it");
    assert!(error.to_string().contains("another file") && error.help().is_some(), "{error}");
}

fn is_cancelled_wherever_it_is_and_remembers_nothing_half(bundle: &Path, folder: &Path) {
    let whole = used_bytes(&open(&options(&folder.join("whole")), bundle));
    let mut cancelled = 0;
    for patience in 0..1000 {
        let proofs = folder.join(format!("proofs-{patience}"));
        let options = options(&proofs);
        let mut seen = Seen::patient("", patience);
        match options.open_watched(bundle, &mut seen) {
            Ok(_) => break,
            Err(error) => assert_eq!(error.kind(), ErrorKind::Cancelled, "{error}"),
        }
        cancelled += 1;
        assert!(seen.places.is_sorted() && seen.places.last() != Some(&1000), "{:?}", seen.places);
        // Only files that were hashed to their ends have proofs. The rest is hashed now.
        let notes = if proofs.exists() { contents(&proofs).len() } else { 0 };
        let hashed = verified(&open(&options, bundle)).hashed.bytes;
        assert!(hashed <= whole && (notes > 0) == (hashed < whole), "{notes} notes, {hashed} of {whole}");
    }
    assert!(cancelled > 10, "cancelled {cancelled} times");
    // Cancelling also works if every file is verified.
    let mut seen = Seen::patient("", 2);
    let error = options(folder).verify_all(true).open_watched(bundle, &mut seen);
    assert_eq!(error.err().expect("cancelled").kind(), ErrorKind::Cancelled);
    assert!(seen.stages.iter().all(|stage| stage == "verifying every file"), "{:?}", seen.stages);
}

fn without_a_place_for_proofs_it_says_how_to_name_one(bundle: &Path, folder: &Path) {
    // Root may write anywhere, but cannot use a file as a folder.
    let file = folder.join("file");
    fs::write(&file, b"").expect("written");
    let nowhere = options(&file).remember_no_proofs();
    for options in [options(&file.join("proofs")), nowhere] {
        for _ in 0..2 {
            let said = verified(&open(&options, bundle));
            assert!(said.hashed.bytes > 0 && said.again.is_some(), "{said}");
            assert!(said.to_string().contains("the next opening hashes them again: "), "{said}");
        }
    }
    let run = |home: &Path, cache: &Path| {
        let run = shardwright(["run", "--prompt", "a", "-n", "1", "--greedy"]).argument(bundle);
        let outcome = run.environment("HOME", home).environment("XDG_CACHE_HOME", cache).outcome();
        assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
        let hashed = |line: &&str| line.starts_with("note: ") && line.contains(" were hashed in ");
        outcome.stderr.lines().find(hashed).map(str::to_owned)
    };
    for (cache, words) in [(Path::new(""), "XDG_CACHE_HOME"), (&file, "cannot store proofs in")] {
        let said = run(Path::new(""), cache).expect("it is said");
        assert!(said.contains("again") && said.contains(words), "{said}");
    }
    let cache = folder.join("cache");
    let said = run(Path::new(""), &cache).expect("it is said");
    match said.contains("again") {
        true => skipped(&said),
        false => assert_eq!(run(Path::new(""), &cache), None, "{said}"),
    }
}

/// Runs in a namespace in which the folder is mounted read-only.
fn it_opens_from_a_file_system_that_is_only_read(bundle: &Path, folder: &Path) {
    let cache = folder.join("cache of what is only read");
    let script = "mount --bind \"$1\" \"$1\" && mount -o remount,bind,ro \"$1\" || exit 99
if touch \"$1/file\" 2>/dev/null; then exit 98; fi
shift; exec \"$@\"";
    let run = || {
        let mut command = Command::new("unshare");
        command.args(["-rm", "sh", "-c", script, "sh"]).arg(bundle).arg(program::executable());
        command.arg("run").arg(bundle).args(["--prompt", "a", "-n", "4", "--greedy"]);
        command.env("XDG_CACHE_HOME", &cache);
        program::finished(command)
    };
    let expected = shardwright(["run", "--prompt", "a", "-n", "4", "--greedy"]).argument(bundle).succeeds();
    let first = run();
    if matches!(first.code, None | Some(1 | 99)) {
        return skipped(&format!("no name space with a mount of its own: {}", first.stderr));
    }
    assert_eq!((first.code, &first.stdout), (Some(0), &expected), "{}", first.stderr);
    assert!(first.stderr.contains(" were hashed in "), "{}", first.stderr);
    let second = run();
    assert_eq!((second.code, &second.stdout), (Some(0), &expected), "{}", second.stderr);
}

/// Runs as another user, who does not trust the proofs of the first. That is reported.
fn proofs_of_another_user_are_not_believed(bundle: &Path, folder: &Path) {
    let proofs = folder.join("proofs");
    let first = verified(&open(&options(&proofs), bundle));
    if first.again.is_some() || !proofs.exists() {
        return skipped(&first.to_string());
    }
    if std::os::unix::fs::chown(&proofs, Some(12_345), None).is_err() {
        return skipped("only root can give a folder away");
    }
    for _ in 0..2 {
        let model = open(&options(&proofs), bundle);
        let said = verified(&model);
        assert_eq!(said.hashed.bytes, first.hashed.bytes);
        assert!(said.to_string().contains("were rejected"), "{said}");
        let notices = model.report().notices_of_opening;
        let notice = notices.iter().find(|notice| notice.text.contains("belongs to user"));
        assert!(notice.is_some(), "{notices:?}");
    }
}

#[test]
fn a_policy_says_which_chains_may_take_over() {
    let chip = TestChip::new();
    let (_folder, bundle) = for_the_chip(&chip, false);
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
    damage(&bundle.file(&artefacts("generic")[0]));
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
