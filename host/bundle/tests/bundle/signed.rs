//! Signed bundles in both forms: changed, renamed, downgraded.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use shardwright_bundle::{Bundle, BundleWriter, Examine, identify, inspect, pack, sign};
use shardwright_trust::{Envelope, Kind, Policy, Revocations, SecretKey, Statement, Trust};
use shardwright_vocabulary::{Error, ErrorKind};

use crate::support::{RECIPE, place, write};

fn key() -> SecretKey {
    SecretKey::from_seed([1; 32])
}

fn requiring() -> Trust {
    Trust::new(Policy::Require, [key().public()])
}

fn signs(path: &Path) {
    sign(path, ("demo", 3), &key(), |_| ControlFlow::Continue(())).unwrap();
}

/// Returns an unsigned bundle in both forms.
fn both() -> (tempfile::TempDir, PathBuf, PathBuf) {
    let (parent, directory) = place();
    let bundle = write(&directory, RECIPE).unwrap();
    let file = parent.path().join("demo.swb");
    pack(&bundle, &file, |_| ControlFlow::Continue(())).unwrap();
    (parent, directory, file)
}

const UNSIGNED: &str = "not signed";
const ALTERED: &str = "changed after";

/// Checks that the bundle is untrusted for the reason in `words`.
fn refused(path: &Path, trust: &Trust, words: &str) {
    let error = Bundle::open_trusting(path, trust).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Untrusted, "{error}");
    assert!(error.message().contains(words), "no `{words}`: {error}");
}

#[test]
fn a_signed_bundle_opens_in_both_forms_with_equal_bytes() {
    let (parent, directory, file) = both();
    for path in [&directory, &file] {
        refused(path, &requiring(), UNSIGNED);
        let warned = Trust::new(Policy::Warn, [key().public()]);
        assert!(Bundle::open_trusting(path, &warned).unwrap().signed().is_none());
        let warnings = warned.take_warnings();
        assert!(warnings.len() == 1 && warnings[0].message().contains(UNSIGNED), "{warnings:?}");
        assert_eq!(inspect(path, Examine::Content, &Trust::off(), |_| ()).unwrap().signature, None);
        signs(path);
        let opened = Bundle::open_trusting(path, &requiring()).unwrap();
        let signed = opened.signed().unwrap();
        assert_eq!((signed.kind, signed.name.as_str(), signed.release), (Kind::Bundle, "demo", 3));
        opened.verify_all(|_| ()).unwrap();
        assert!(opened.unreferenced().unwrap().is_empty());
        let inspection = inspect(path, Examine::Content, &Trust::off(), |_| ()).unwrap();
        let signature = inspection.signature.unwrap();
        assert!(signature.holds && signature.key == key().public() && inspection.intact == Some(true));
        assert_eq!(identify(path).unwrap(), shardwright_bundle::Kind::Bundle);
    }
    // Packing with the signature and signing the packed form give the same bytes.
    let again = parent.path().join("again.swb");
    pack(&Bundle::open(&directory).unwrap(), &again, |_| ControlFlow::Continue(())).unwrap();
    assert!(fs::read(&again).unwrap() == fs::read(&file).unwrap());
    // Signing again replaces the signature.
    sign(&file, ("demo", 4), &key(), |_| ControlFlow::Continue(())).unwrap();
    assert_eq!(Bundle::open_trusting(&file, &requiring()).unwrap().signed().unwrap().release, 4);
    let stopped = sign(&file, ("demo", 5), &key(), |_| ControlFlow::Break(()));
    assert_eq!(stopped.unwrap_err().kind(), ErrorKind::Cancelled);
    assert_eq!(Bundle::open_trusting(&file, &requiring()).unwrap().signed().unwrap().release, 4);
}

#[test]
fn under_require_nothing_is_parsed_that_is_not_signed() {
    let (parent, directory, file) = both();
    // Neither is a bundle at all, but the error reports that it is not signed.
    fs::write(directory.join("bundle.json"), "nonsense").unwrap();
    let mut bytes = fs::read(&file).unwrap();
    let length = bytes.len();
    bytes[length - 1000..].fill(0xff);
    fs::write(&file, &bytes).unwrap();
    for path in [&directory, &file] {
        refused(path, &requiring(), UNSIGNED);
        assert_ne!(Bundle::open(path).unwrap_err().kind(), ErrorKind::Untrusted);
    }
    // The signature of another bundle in front of nonsense.
    let (_other, signed, packed) = both();
    signs(&signed);
    signs(&packed);
    fs::copy(signed.join("bundle.json.sig"), directory.join("bundle.json.sig")).unwrap();
    refused(&directory, &requiring(), ALTERED);
    let mut bytes = fs::read(&packed).unwrap();
    let manifest = fs::read(signed.join("bundle.json")).unwrap();
    let at = bytes.windows(manifest.len()).position(|window| window == manifest).unwrap();
    bytes[at + 100] ^= 1;
    let altered = parent.path().join("altered.swb");
    fs::write(&altered, &bytes).unwrap();
    refused(&altered, &requiring(), ALTERED);
    // The file is cut off after its signature.
    fs::write(&altered, &bytes[..128 << 10]).unwrap();
    refused(&altered, &requiring(), UNSIGNED);
}

const DAMAGED: (ErrorKind, &str) = (ErrorKind::Invalid, "the signature is damaged");

/// Returns which of the expected errors of a changed signature this is.
fn reason(error: &Error) -> (ErrorKind, &'static str) {
    let reasons =
        [DAMAGED, (ErrorKind::Untrusted, "was not made by"), (ErrorKind::Untrusted, "not a trusted key")];
    let is_it = |(kind, words): &(ErrorKind, &str)| error.kind() == *kind && error.message().contains(words);
    reasons.into_iter().find(is_it).unwrap_or_else(|| panic!("{error}"))
}

#[test]
fn every_bit_of_a_signature_counts_and_none_crashes() {
    let (parent, directory, file) = both();
    signs(&directory);
    signs(&file);
    let signature = fs::read(directory.join("bundle.json.sig")).unwrap();
    let packed = fs::read(&file).unwrap();
    let at = packed.windows(signature.len()).position(|window| window == signature).unwrap();
    assert_eq!(at, 64 << 10);
    let changed = parent.path().join("changed.swb");
    for bit in (0..8 * signature.len()).step_by(5) {
        let mut bytes = signature.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(directory.join("bundle.json.sig"), &bytes).unwrap();
        let told = Bundle::open_trusting(&directory, &requiring()).unwrap_err();
        let expected = reason(&told);
        let mut bytes = packed.clone();
        bytes[at + bit / 8] ^= 1 << (bit % 8);
        fs::write(&changed, &bytes).unwrap();
        let told = Bundle::open_trusting(&changed, &requiring()).unwrap_err();
        assert_eq!(reason(&told), expected, "{bit}");
    }
    // A longer file is not a signature, and is not packed as one.
    fs::write(directory.join("bundle.json.sig"), vec![0; 300]).unwrap();
    let error = Bundle::open_trusting(&directory, &requiring()).unwrap_err();
    assert_eq!(reason(&error), DAMAGED);
    let unsigned = Bundle::open(&directory).unwrap();
    let error = pack(&unsigned, &changed, |_| ControlFlow::Continue(())).unwrap_err();
    assert!(reason(&error) == DAMAGED && error.help().is_some(), "{error}");
}

#[test]
fn another_s_signature_and_withdrawn_releases_are_refused() {
    let (parent, directory, _) = both();
    signs(&directory);
    let stranger = SecretKey::from_seed([9; 32]);
    let trust = Trust::new(Policy::Require, [stranger.public()]);
    refused(&directory, &trust, "not a trusted key");
    let least = shardwright_trust::LeastRelease { kind: Kind::Bundle, name: "demo".to_owned(), release: 4 };
    let list = parent.path().join("list");
    fs::write(&list, Revocations::sign("acme", 1, &[], &[least], &key()).unwrap()).unwrap();
    let trust = requiring().with_lists(&[&list], None).unwrap();
    refused(&directory, &trust, "release 3 of bundle `demo` was withdrawn, expected release 4");
    // Signed as another kind.
    let manifest = fs::read(directory.join("bundle.json")).unwrap();
    let statement = Statement::of(Kind::Profile, "demo", 9, &manifest).unwrap();
    let envelope = Envelope::sign(&statement, &key()).to_bytes();
    fs::write(directory.join("bundle.json.sig"), envelope).unwrap();
    refused(&directory, &requiring(), "is for a profile, not for a bundle");
    assert!(!inspect(&directory, Examine::Presence, &Trust::off(), |_| ()).unwrap().signature.unwrap().holds);
}

#[test]
fn a_writer_removes_the_signature_of_another_manifest_alone() {
    let (_parent, directory, _) = both();
    signs(&directory);
    let writer = BundleWriter::create(&directory).unwrap();
    let mut manifest = writer.previous().cloned().unwrap();
    writer.finish(&manifest).unwrap();
    Bundle::open_trusting(&directory, &requiring()).unwrap();
    let writer = BundleWriter::create(&directory).unwrap();
    manifest.variants[0].options.insert("another".to_owned(), "one".into());
    writer.finish(&manifest).unwrap();
    refused(&directory, &requiring(), UNSIGNED);
}
