//! Tests of shims with and without signed manifests.

use std::fs;
use std::path::Path;

use sha2::{Digest, Sha256};
use shardwright_shims::ShimRegistry;
use shardwright_trust::{Envelope, Kind, Policy, SecretKey, Statement, Trust, path_of_signature};

use crate::common::Shims;

fn key() -> SecretKey {
    SecretKey::from_seed([1; 32])
}

fn signs(manifest: &Path, name: &str) {
    let statement = Statement::of(Kind::Shim, name, 1, &fs::read(manifest).unwrap()).unwrap();
    fs::write(path_of_signature(manifest), Envelope::sign(&statement, &key()).to_bytes()).unwrap();
}

#[test]
fn a_shim_is_opened_only_if_its_manifest_is_signed_and_names_its_library() {
    let shims = Shims::new();
    let library = shims.template();
    let manifest = shims.path().join("template_c.shim.json");
    let trust = Trust::new(Policy::Require, [key().public()]);
    let finds =
        |trust: &Trust| ShimRegistry::builder().directory(shims.path()).trusting(trust.clone()).build();
    let refused = || {
        let found = finds(&trust);
        assert!(found.shims().is_empty());
        match found.skipped() {
            [skipped] => {
                let error = &skipped.error;
                assert!(error.help().is_some() && error.reason() == "untrusted");
                assert_eq!(error.place(), manifest.to_str());
                error.to_string()
            }
            other => panic!("{other:?}"),
        }
    };
    let refuses = |text: &str| assert!(refused().contains(text), "{}", refused());
    refuses("not signed");
    signs(&manifest, "template-c");
    refuses("does not have the hash");
    let warned = Trust::new(Policy::Warn, [key().public()]);
    assert_eq!(finds(&warned).shims().len(), 1);
    let warnings = warned.take_warnings();
    assert!(matches!(&*warnings, [one] if one.message().contains("does not have the hash")), "{warnings:?}");

    let hash = shardwright_files::hex::encode(&Sha256::digest(fs::read(&library).unwrap()));
    let mut with_hash: serde_json::Value = serde_json::from_slice(&fs::read(&manifest).unwrap()).unwrap();
    with_hash["sha256"] = hash.into();
    fs::write(&manifest, with_hash.to_string()).unwrap();
    refuses("or the signature belongs to another file");
    signs(&manifest, "another");
    refuses("the signature is for `another`, not for `template-c`");
    signs(&manifest, "template-c");
    assert_eq!(finds(&trust).shims().len(), 1);
    assert!(trust.take_warnings().is_empty());

    // The signature is checked before the manifest is parsed, even if it is not a manifest.
    fs::write(&manifest, "nonsense").unwrap();
    refuses("or the signature belongs to another file");
    // A text passed by the program is part of the program.
    let described =
        ShimRegistry::builder().described(&library, with_hash.to_string()).trusting(trust.clone());
    assert_eq!(described.build().shims().len(), 1);
}
