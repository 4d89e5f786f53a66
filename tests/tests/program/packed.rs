//! `shardwright pack`, and packed bundles as a user runs them: from a file, and from an app's
//! package at any offset.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::Value;
use shardwright_tests::bundles::{Compiled, contents};
use shardwright_tests::checkpoints::{DEMO_MODEL, TEXT_FIXTURES};
use shardwright_tests::program::{Run, shardwright};

fn shown(path: &Path) -> String {
    path.display().to_string()
}

fn generate(what: &str) -> Run {
    shardwright(["run", what, "--prompt", "And it came to pass", "--max-tokens", "8", "--greedy"])
}

fn pack(bundle: &Path, to: &Path) -> Run {
    shardwright(["pack"]).argument(bundle).argument("-o").argument(to)
}

/// Creates a package in which the file has exactly this alignment.
fn package(folder: &Path, file: &Path, alignment: usize) -> PathBuf {
    let package = folder.join(format!("app-{alignment}.apk"));
    let script = "import sys, zipfile
target, source, alignment = sys.argv[1], sys.argv[2], int(sys.argv[3])
with zipfile.ZipFile(target, 'w') as package:
    package.writestr('classes.dex', b'x' * 1001)
    entry = zipfile.ZipInfo('assets/demo.swb')
    begin = package.fp.tell() + 30 + len(entry.filename)
    while (begin + len(entry.extra)) % (2 * alignment) != alignment:
        entry.extra += b'\\0'
    with open(source, 'rb') as content:
        package.writestr(entry, content.read())";
    let mut run = Command::new("python3");
    run.args(["-c", script]).arg(&package).arg(file).arg(alignment.to_string());
    assert!(run.status().expect("python3").success());
    package
}

#[test]
fn a_packed_bundle_answers_as_its_directory_does() {
    let bundle = Compiled::from(DEMO_MODEL, ["--soc", "mt6989", "--limit", "ops=400", "--on", "cpu"]);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let packed = folder.path().join("demo.swb");
    let report = pack(&bundle.path(), &packed).json();
    assert_eq!(report["bytes"], fs::metadata(&packed).expect("written").len(), "{report}");
    let text = pack(&bundle.path(), &folder.path().join("again.swb")).succeeds();
    let bytes = fs::read(&packed).expect("read");
    assert!(bytes == fs::read(folder.path().join("again.swb")).expect("read"), "equal bytes");
    assert!(text.contains(report["bundle"].as_str().expect("a hash")), "{text}");

    let (directory, file) = (shown(&bundle.path()), shown(&packed));
    let expected = generate(&directory).succeeds();
    let strict = ["--strict", "--threads", "1", "--isolation", "process"];
    assert_eq!(generate(&file).arguments(strict).succeeds(), expected);
    let inspected = shardwright(["inspect", &file, "--verify"]).json();
    assert_eq!((&inspected["packed"], &inspected["intact"]), (&true.into(), &true.into()));
    let doctor = shardwright(["doctor", &file]).json();
    assert_eq!(doctor["bundle"]["would_run"]["chain"], "primary", "{doctor}");
    assert_eq!(doctor["bundle"]["copied_bytes"], Value::Null, "mapped");

    // A read-only file, as from another user, next to which no file can be written.
    let mut permissions = fs::metadata(&packed).expect("there").permissions();
    permissions.set_readonly(true);
    fs::set_permissions(&packed, permissions).expect("set");
    assert_eq!(generate(&file).succeeds(), expected);
}

#[test]
fn it_runs_from_a_package_and_copies_only_the_variant_that_runs_and_says_so() {
    let bundle = Compiled::from(TEXT_FIXTURES[3], ["--soc", "mt6989,sm8750,generic", "--on", "cpu"]);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let packed = folder.path().join("demo.swb");
    pack(&bundle.path(), &packed).succeeds();
    let manifest = bundle.manifest_json();
    let artefacts = |variant: &Value, chain: &Value| -> u64 {
        let variants = manifest["variants"].as_array().expect("variants").iter();
        let chosen = variants.filter(|entry| variant.is_null() || entry["soc"] == *variant);
        let chains = chosen.flat_map(|entry| entry["chains"].as_array().expect("chains"));
        let chains = chains.filter(|entry| chain.is_null() || entry["name"] == *chain);
        let shards = chains.flat_map(|entry| entry["shards"].as_array().expect("shards"));
        shards.map(|shard| shard["artefact"]["bytes"].as_u64().expect("a length")).sum()
    };
    let expected = generate(&shown(&bundle.path())).succeeds();
    for (alignment, isolation) in [(4, "process"), (64, "off"), (4096, "process"), (16_384, "off")] {
        let within = format!("{}!/assets/demo.swb", shown(&package(folder.path(), &packed, alignment)));
        let outcome = generate(&within).arguments(["--isolation", isolation]).outcome();
        assert_eq!((outcome.code, &outcome.stdout), (Some(0), &expected), "{}", outcome.stderr);
        let doctor = shardwright(["doctor", &within]).json();
        let copied = doctor["bundle"]["copied_bytes"].as_u64();
        let said = outcome.stderr.split_once(" bytes of artefacts were copied into memory");
        let is_copied = alignment < 4096;
        assert_eq!((copied > Some(0), said.is_some()), (is_copied, is_copied), "{doctor} {}", outcome.stderr);
        let problems = doctor["problems"].to_string();
        assert_eq!(problems.contains("not start at a multiple of 4096"), is_copied, "{problems}");
        if let (Some(copied), Some((before, _))) = (copied, said) {
            assert_eq!(before.rsplit(' ').next(), Some(&*copied.to_string()), "{before}");
            let would_run = &doctor["bundle"]["would_run"];
            let chosen = artefacts(&would_run["soc"], &would_run["chain"]);
            assert!(copied <= chosen, "{copied} of {chosen}: {doctor}");
            assert!(chosen < artefacts(&Value::Null, &Value::Null), "the other variants have artefacts too");
        }
    }
}

#[test]
fn a_killed_packing_leaves_the_file_as_it_was_and_the_next_one_completes() {
    let bundle = Compiled::of(DEMO_MODEL);
    let folder = tempfile::tempdir().expect("a temporary folder");
    let packed = folder.path().join("demo.swb");
    pack(&bundle.path(), &packed).succeeds();
    let before = fs::read(&packed).expect("read");
    let mut killed = 0;
    for moment in 0..10 {
        let to = if moment % 2 == 0 { packed.clone() } else { folder.path().join("new.swb") };
        let was_killed = !pack(&bundle.path(), &to).killed_after(Duration::from_millis(10 * moment));
        killed += u32::from(was_killed);
        assert!(before == fs::read(&packed).expect("read"), "at {moment}");
        if was_killed && moment % 2 == 1 && to.exists() {
            assert!(before == fs::read(&to).expect("read"), "whole or not at all, at {moment}");
        }
    }
    assert!(killed > 0, "none was killed");
    let new = folder.path().join("new.swb");
    pack(&bundle.path(), &new).succeeds();
    assert!(before == fs::read(&new).expect("read"));
    let left: Vec<_> = contents(folder.path()).into_keys().collect();
    let partial = |name: &&PathBuf| name.to_string_lossy().ends_with(".partial");
    assert!(left.iter().filter(partial).count() <= 1, "{left:?}");
}

#[test]
fn what_cannot_be_packed_is_refused_with_help() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let to = folder.path().join("to.swb");
    let compiled = Compiled::of(TEXT_FIXTURES[3]);
    let bundle = compiled.path();
    for (what, to, code, word) in [
        (Path::new(TEXT_FIXTURES[3]), &*to, 3, "bundle.json"),
        (Path::new("no/such/folder"), &to, 3, "No such file"),
        (Path::new("README.md"), &to, 4, "another file"),
        (&bundle, folder.path(), 2, "got a directory"),
        (&bundle, Path::new("no/such/folder/to.swb"), 3, "no/such/folder"),
    ] {
        let (actual, said) = pack(what, to).refuses();
        assert!(actual == code && said.contains(word), "{}: {actual} {said}", what.display());
    }
    assert!(!to.exists());
}
