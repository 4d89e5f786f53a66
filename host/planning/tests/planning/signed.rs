//! Planners and profiles with separate signature files, and packs of revoked keys.

use std::fs;
use std::path::Path;

use shardwright_planning::error::PlannerErrorKind;
use shardwright_planning::pack;
use shardwright_planning::profile::{ProfileError, ProfileRegistry};
use shardwright_planning::registry::PlannerEntry;
use shardwright_planning::sandbox::{EngineKind, Sandbox};
use shardwright_trust::{
    Envelope, Kind, Policy, Revocations, SecretKey, Statement, Trust, TrustError, path_of_signature,
};

use crate::common::even;

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
        PlannerErrorKind::Trust(error) => *error,
        other => panic!("{other}"),
    };
    assert!(matches!(refused(), TrustError::Unsigned { .. }));
    signs(&path, Kind::Planner, "odd");
    assert!(matches!(refused(), TrustError::OtherName { .. }));
    signs(&path, Kind::Profile, "even");
    assert!(matches!(refused(), TrustError::OtherKind { .. }));
    signs(&path, Kind::Planner, "even");
    loads(&requiring()).unwrap();
    // A file that is not a component is not parsed.
    fs::write(&path, "nonsense").unwrap();
    let error = loads(&requiring()).map(drop).unwrap_err();
    assert!(error.help().is_some() && error.to_string().contains("even.wasm"), "{error}");
    assert!(matches!(refused(), TrustError::Altered { .. }));
    let warned = Trust::new(Policy::Warn, []);
    let garbage = loads(&warned).map(drop).unwrap_err().kind;
    assert!(matches!(garbage, PlannerErrorKind::Garbage { .. }), "{garbage}");
    assert!(matches!(warned.take_warnings().as_slice(), [TrustError::UntrustedKey { .. }]));
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
    assert!(matches!(**revoked, TrustError::RevokedKey { .. }));
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
    let refused = || match finds(&requiring()) {
        Err(error @ ProfileError::Trust { .. }) => {
            assert!(error.help().is_some() && error.to_string().contains("mine.json"), "{error}");
            error
        }
        other => panic!("{other:?}"),
    };
    refused();
    signs(&path, Kind::Profile, "mine");
    assert_eq!(finds(&requiring()).unwrap(), "mine");
    signs(&path, Kind::Profile, "generic");
    refused();
    signs(&path, Kind::Profile, "mine");
    fs::write(&path, text.replacen('{', "{ ", 1)).unwrap();
    refused();
    let warned = Trust::new(Policy::Warn, [key().public()]);
    assert_eq!(finds(&warned).unwrap(), "mine");
    assert!(matches!(warned.take_warnings().as_slice(), [TrustError::Altered { .. }]));
}
