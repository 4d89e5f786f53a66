//! A packed bundle in several volumes equals the original at any location. A missing volume is an
//! error.

use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use shardwright_bundle::{
    Bundle, Examine, FileReference, Kind, Share, Signer, identify, inspect, is_bundle, pack, volume_name,
};
use shardwright_files::Section;
use shardwright_trust::{Policy, SecretKey, Trust};
use shardwright_vocabulary::{Error, ErrorKind};

use crate::shares::for_several;
use crate::support::place;

/// Size for two or three of the artefacts.
const LIMIT: u64 = 300_000;

/// Returns a bundle, its share for a chip, and the paths of the share's volumes in a folder.
fn divided() -> (tempfile::TempDir, Share, Vec<PathBuf>) {
    divided_of(|bundle| bundle)
}

fn divided_of(change: impl FnOnce(Bundle) -> Bundle) -> (tempfile::TempDir, Share, Vec<PathBuf>) {
    let (parent, directory) = place();
    let share = change(for_several(&directory)).share(&["mt6989"]).unwrap();
    let folder = parent.path().join("volumes");
    fs::create_dir(&folder).unwrap();
    let volumes = share.volumes(LIMIT).unwrap();
    let mut paths = Vec::new();
    for (index, volume) in volumes.iter().enumerate() {
        let path = folder.join(volume_name(index + 1));
        let report = share.pack(volume, &path, |_| ControlFlow::Continue(())).unwrap();
        assert!(report.bytes == volume.bytes && report.bytes <= LIMIT, "{report:?}");
        assert_eq!(volume.has_manifest, index == 0);
        paths.push(path);
    }
    (parent, share, paths)
}

fn refused(error: &Error, word: &str) {
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    assert!(error.place().is_some_and(|place| place.ends_with(": offset 0")), "{error}");
    assert!(error.message().contains(word) && error.help().is_some(), "no `{word}`: {error}");
}

#[test]
fn volumes_hold_every_file_once_and_open_in_any_order() {
    let (parent, share, mut paths) = divided();
    assert!(paths.len() >= 3, "{paths:?}");
    let mut files: Vec<FileReference> =
        share.volumes(LIMIT).unwrap().into_iter().flat_map(|volume| volume.files).collect();
    files.sort();
    assert_eq!(files, share.files());
    assert_eq!(share.volumes(LIMIT).unwrap(), share.volumes(LIMIT).unwrap());
    // If one volume is enough, there is only one.
    assert_eq!(share.volumes(u64::MAX).unwrap(), [share.volume()]);

    let folder = paths[0].parent().unwrap().to_owned();
    let expect_whole = |bundle: Bundle| {
        bundle.verify_all(|_| ()).unwrap();
        assert!(bundle.is_packed() && bundle.sha256() == share.sha256());
        for file in share.files() {
            assert_eq!(bundle.map(file).unwrap().len() as u64, file.bytes);
        }
    };
    expect_whole(Bundle::open(&folder).unwrap());
    assert_eq!((identify(&folder).unwrap(), is_bundle(&folder)), (Kind::Bundle, true));
    let inspection = inspect(&folder, Examine::Content, &Trust::off(), |_| ()).unwrap();
    assert!(inspection.intact == Some(true) && inspection.packed && inspection.unreferenced.is_empty());

    paths.reverse();
    expect_whole(Bundle::open_volumes(&paths).unwrap());
    // Each volume is in a separate folder, as for apps.
    let apart: Vec<PathBuf> = paths
        .iter()
        .enumerate()
        .map(|(index, path)| {
            let folder = parent.path().join(index.to_string());
            fs::create_dir(&folder).unwrap();
            let to = folder.join("any-name");
            fs::rename(path, &to).unwrap();
            to
        })
        .collect();
    expect_whole(Bundle::open_volumes(&apart).unwrap());
    let section = |path: &PathBuf| Section::whole(path, fs::File::open(path).unwrap()).unwrap();
    expect_whole(Bundle::open_sections_trusting(apart.iter().map(section).collect(), &Trust::off()).unwrap());
}

#[test]
fn a_missing_volume_and_one_too_many_are_named() {
    let (parent, share, paths) = divided();
    let folder = paths[0].parent().unwrap();
    refused(&Bundle::open_volumes(&paths[1..]).unwrap_err(), "no volume has the manifest");
    refused(&Bundle::open(&paths[1]).unwrap_err(), "not the first volume");
    assert_eq!(identify(&paths[1]).unwrap(), Kind::Bundle);
    refused(&Bundle::open_volumes(&[] as &[&Path]).unwrap_err(), "no volume was given");
    let twice: Vec<&PathBuf> = [&paths[0]].into_iter().chain(&paths).collect();
    refused(&Bundle::open_volumes(&twice).unwrap_err(), "several bundles");
    for left_out in 1..paths.len() {
        let rest = paths.iter().enumerate().filter(|(index, _)| *index != left_out).map(|(_, path)| path);
        let error = Bundle::open_volumes(&rest.collect::<Vec<_>>()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().ends_with("` is missing"), "{error}");
    }
    let error = Bundle::open_volumes(&[&paths[0], &parent.path().join("absent")]).unwrap_err();
    assert!(error.is_not_found(), "{error}");
    fs::write(parent.path().join("words"), "words").unwrap();
    let error = Bundle::open_volumes(&[&paths[0], &parent.path().join("words")]).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().ends_with("got another file"), "{error}");

    // A volume of another bundle, with files that the manifest does not name.
    let other = parent.path().join("other");
    fs::create_dir(&other).unwrap();
    let whole = for_several(&parent.path().join("whole"));
    let of_other = whole.share(&["generic"]).unwrap();
    // The second volume contains artefacts that no other variant has.
    let volume = of_other.volumes(LIMIT).unwrap().swap_remove(1);
    let stray = other.join("volume");
    of_other.pack(&volume, &stray, |_| ControlFlow::Continue(())).unwrap();
    let mut more: Vec<&Path> = paths.iter().map(PathBuf::as_path).collect();
    more.push(&stray);
    refused(&Bundle::open_volumes(&more).unwrap_err(), "does not name");

    // A changed byte in a further volume.
    let last = paths.last().unwrap();
    let mut bytes = fs::read(last).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(last, bytes).unwrap();
    assert!(Bundle::open(folder).and_then(|bundle| bundle.verify_all(|_| ())).is_err());

    // The error names a file that does not fit into a volume, and also a manifest.
    let largest = share.files().iter().max_by_key(|file| file.bytes).unwrap();
    assert_eq!(share.volumes(100_000).unwrap_err().bytes, largest.bytes);
    assert_eq!(share.volumes(0).unwrap_err().sha256, share.sha256());
}

#[test]
fn what_is_packed_of_a_bundle_is_signed_and_opens_where_that_is_asked_for() {
    let key = || SecretKey::from_seed([1; 32]);
    let trust = Trust::new(Policy::Require, [key().public()]);
    let signer = || Signer { name: "demo".to_owned(), release: 3, key: key() };
    let (parent, share, mut paths) = divided_of(|bundle| bundle.signing(signer()));
    assert!(paths.len() >= 3, "{paths:?}");
    let folder = paths[0].parent().unwrap().to_owned();
    paths.reverse();
    for opened in [Bundle::open_trusting(&folder, &trust), Bundle::open_volumes_trusting(&paths, &trust)] {
        let opened = opened.unwrap();
        assert_eq!(opened.signed().unwrap().release, 3);
        assert_eq!(opened.sha256(), share.sha256());
        opened.verify_all(|_| ()).unwrap();
    }
    // Without the volume that has the signature, the others are not examined.
    fs::write(&paths[0], "nonsense, but for the first bytes").unwrap();
    for paths in [&paths[..paths.len() - 1], &paths[..1]] {
        let error = Bundle::open_volumes_trusting(paths, &trust).unwrap_err();
        let told = match error.kind() {
            ErrorKind::Untrusted => error.message().contains("not signed"),
            kind => kind == ErrorKind::Invalid && error.message().ends_with("got another file"),
        };
        assert!(told, "{error}");
    }
    // The whole bundle, signed by another key than before. A share without a signer is unsigned.
    let again = parent.path().join("again.swb");
    let whole = Bundle::open(parent.path().join("demo")).unwrap();
    let signed = whole.clone().signing(signer());
    pack(&signed, &again, |_| ControlFlow::Continue(())).unwrap();
    let opened = Bundle::open_trusting(&again, &trust).unwrap();
    let apart = opened.share(&["generic"]).unwrap();
    apart.pack(&apart.volume(), &again.with_extension("apart"), |_| ControlFlow::Continue(())).unwrap();
    let error = Bundle::open_trusting(again.with_extension("apart"), &trust).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Untrusted);
    assert!(error.message().contains("not signed"), "{error}");
}
