//! Planners and profiles with separate signature files, and packs of revoked keys.

use std::fs;
use std::path::Path;

use shardwright_planning::error::PlannerErrorKind;
use shardwright_planning::pack;
use shardwright_planning::profile::ProfileRegistry;
use shardwright_planning::registry::PlannerEntry;
use shardwright_planning::sandbox::{EngineKind, Sandbox};
use shardwright_trust::{
    Envelope, Kind, Policy, Revocations, SecretKey, Statement, Trust, path_of_signature,
};
use shardwright_vocabulary::{Error, ErrorKind};

use crate::common::even;

/// Words for a file without a signature.
const UNSIGNED: &str = "not signed";
/// Words for a file that was changed after it was signed.
const ALTERED: &str = "changed after";

fn expect(error: &Error, words: &str) {
    assert_eq!(error.kind(), ErrorKind::Untrusted, "{error}");
    assert!(error.message().contains(words), "{words}: {error}");
}

fn key() -> SecretKey {
    SecretKey::from_seed([1; 32])
}

fn requiring() -> Trust {
    Trust::new(Policy::Require, [key().public()])
}

fn signs(path: &Path, kind: Kind, name: &str) {
    let statement = Statement::of(kind, name, 1, &fs::read(path).unwrap()).unwrap();
    fs::write(path_of_signature(path), Envelope::sign(&statement, &key()).to_bytes()).unwrap();
}

#[test]
fn a_planner_runs_only_if_it_is_signed_under_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("even.wasm");
    fs::write(&path, even()).unwrap();
    let sandbox = Sandbox::new(EngineKind::Native).unwrap();
    let loads = |trust: &Trust| PlannerEntry::from_path(&path).load(&sandbox, None, trust);
    let refused = || match loads(&requiring()).map(drop).unwrap_err().kind {
        PlannerErrorKind::Trust(error) => error,
        other => panic!("{other}"),
    };
    expect(&refused(), UNSIGNED);
    signs(&path, Kind::Planner, "odd");
    expect(&refused(), "for `odd`, not for `even`");
    signs(&path, Kind::Profile, "even");
    expect(&refused(), "for a profile, not for a planner");
    signs(&path, Kind::Planner, "even");
    loads(&requiring()).unwrap();
    // A file that is not a component is not parsed.
    fs::write(&path, "nonsense").unwrap();
    let error = loads(&requiring()).map(drop).unwrap_err();
    assert!(error.help().is_some() && error.to_string().contains("even.wasm"), "{error}");
    expect(&refused(), ALTERED);
    let warned = Trust::new(Policy::Warn, []);
    let error = loads(&warned).map(drop).unwrap_err();
    let PlannerErrorKind::Other(garbage) = &error.kind else { panic!("{error}") };
    assert_eq!(garbage.kind(), ErrorKind::Invalid);
    assert!(garbage.message().starts_with("not a WebAssembly component"), "{garbage}");
    let warnings = warned.take_warnings();
    assert_eq!(warnings.len(), 1);
    expect(&warnings[0], "not a trusted key");
}

#[test]
fn a_pack_of_a_revoked_key_does_not_run() {
    let folder = tempfile::tempdir().unwrap();
    let other = SecretKey::from_seed([2; 32]);
    let path = folder.path().join("even.pack");
    fs::write(&path, pack::write("even.wasm", even(), &key()).unwrap()).unwrap();
    let list = folder.path().join("list");
    fs::write(&list, Revocations::sign("acme", 1, &[key().public()], &[], &other).unwrap()).unwrap();
    let trust = Trust::new(Policy::Off, [key().public(), other.public()]);
    PlannerEntry::from_path(&path).open(&trust).unwrap();
    let trust = trust.with_lists(&[list], None).unwrap();
    let error = PlannerEntry::from_path(&path).open(&trust).unwrap_err();
    let PlannerErrorKind::Trust(revoked) = &error.kind else { panic!("{error}") };
    expect(revoked, "which was revoked");
    assert!(error.to_string().contains("revoked"), "{error}");
}

#[test]
fn a_profile_counts_only_if_it_is_signed_under_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mine.json");
    let built_in = include_str!("../../../../plugins/profiles/generic.json");
    let text = built_in.replacen("\"generic\"", "\"mine\"", 1);
    fs::write(&path, &text).unwrap();
    let finds = |trust: &Trust| {
        let registry = ProfileRegistry::new().with_directory(folder.path()).trusting(trust.clone());
        assert_eq!(registry.find("mt6989").unwrap().profile.name, "mt6989", "built in");
        registry.find("mine").map(|found| found.profile.name)
    };
    finds(&Trust::off()).unwrap();
    let refused = |words: &str| {
        let error = finds(&requiring()).unwrap_err();
        assert!(error.help().is_some() && error.to_string().contains("mine.json"), "{error}");
        expect(&error, words);
    };
    refused(UNSIGNED);
    signs(&path, Kind::Profile, "mine");
    assert_eq!(finds(&requiring()).unwrap(), "mine");
    signs(&path, Kind::Profile, "generic");
    refused("for `generic`, not for `mine`");
    signs(&path, Kind::Profile, "mine");
    fs::write(&path, text.replacen('{', "{ ", 1)).unwrap();
    refused(ALTERED);
    let warned = Trust::new(Policy::Warn, [key().public()]);
    assert_eq!(finds(&warned).unwrap(), "mine");
    let warnings = warned.take_warnings();
    assert_eq!(warnings.len(), 1);
    expect(&warnings[0], ALTERED);
}
