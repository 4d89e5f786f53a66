//! A bundle in one file equals the original bundle at any location, and any other file is rejected.

use std::fs;
use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::process::Command;

use proptest::prelude::*;
use shardwright_bundle::{
    Bundle, Examine, Kind, PackReport, Proofs, TINY_FILE_BYTES, identify, inspect, is_bundle, pack,
};
use shardwright_files::Section;
use shardwright_trust::Trust;
use shardwright_vocabulary::ErrorKind;

use crate::support::{RECIPE, place, write};

fn packed(bundle: &Bundle, to: &Path) -> PackReport {
    pack(bundle, to, |_| ControlFlow::Continue(())).unwrap()
}

/// Returns a bundle, its packed form and a folder for more.
fn both() -> (tempfile::TempDir, Bundle, PathBuf) {
    let (parent, directory) = place();
    let bundle = write(&directory, RECIPE).unwrap();
    let to = parent.path().join("demo.swb");
    packed(&bundle, &to);
    (parent, bundle, to)
}

/// Returns the whole content of a bundle, read in every supported way.
fn contents(bundle: &Bundle) -> Vec<Vec<u8>> {
    bundle.verify_all(|_| ()).unwrap();
    let read = |file| {
        let bytes = bundle.read(&file).unwrap();
        assert!(bundle.map(&file).unwrap()[..] == bytes[..]);
        let section = bundle.proved(&file).unwrap();
        assert_eq!(section.length(), file.bytes);
        bytes
    };
    bundle.files().into_iter().map(read).collect()
}

#[test]
fn a_packed_bundle_is_the_same_bundle() {
    let (parent, bundle, path) = both();
    let opened = Bundle::open(&path).unwrap();
    assert_eq!((opened.sha256(), opened.manifest()), (bundle.sha256(), bundle.manifest()));
    assert!(opened.is_packed() && !bundle.is_packed());
    assert_eq!(contents(&opened), contents(&bundle));
    assert_eq!(opened.assets_of(&opened.variant().assets).unwrap().len(), 2);
    assert_eq!((identify(&path).unwrap(), is_bundle(&path)), (Kind::Bundle, true));
    let inspection = inspect(&path, Examine::Content, &Trust::off(), |_| ()).unwrap();
    assert!(inspection.packed && inspection.intact == Some(true) && inspection.unreferenced.is_empty());

    // Packing either form gives equal bytes.
    let again = parent.path().join("again.swb");
    let report = packed(&opened, &again);
    let bytes = fs::read(&path).unwrap();
    assert!(bytes == fs::read(&again).unwrap());
    assert_eq!(report.bytes, bytes.len() as u64);
    assert_eq!(report.parts, bundle.files().len() + 1);
    assert!(report.bytes <= report.part_bytes + (64 << 10) * (report.parts as u64 + 1), "{report:?}");
}

#[test]
fn any_program_unpacks_it_and_has_the_directory() {
    let (parent, bundle, path) = both();
    let python = |arguments: &[&str]| {
        let run = Command::new("python3").args(["-m", "zipfile"]).args(arguments).output().unwrap();
        assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
        String::from_utf8(run.stdout).unwrap()
    };
    let path = path.to_str().unwrap();
    assert!(python(&["-t", path]).contains("Done testing"));
    let unpacked = parent.path().join("unpacked");
    python(&["-e", path, unpacked.to_str().unwrap()]);
    let opened = Bundle::open(&unpacked).unwrap();
    assert_eq!((opened.sha256(), contents(&opened)), (bundle.sha256(), contents(&bundle)));
    assert!(opened.unreferenced().unwrap().is_empty());
}

#[test]
fn it_opens_at_any_place_of_a_larger_file() {
    let (parent, bundle, path) = both();
    let bytes = fs::read(&path).unwrap();
    let expected = contents(&bundle);
    for base in [0_u64, 4, 64, 4096, 16_384, 65_540] {
        let larger = parent.path().join(format!("larger-{base}"));
        let mut file = fs::File::create(&larger).unwrap();
        file.write_all(&vec![7; base as usize]).unwrap();
        file.write_all(&bytes).unwrap();
        file.write_all(b"and what follows").unwrap();
        let whole = Section::whole(&larger, fs::File::open(&larger).unwrap()).unwrap();
        let section = whole.part(&larger, base, bytes.len() as u64).unwrap();
        let opened = Bundle::open_section(section).unwrap();
        assert_eq!((opened.sha256(), &contents(&opened)), (bundle.sha256(), &expected), "at {base}");
        for file in opened.files() {
            let section = opened.proved(&file).unwrap();
            assert!((section.offset() - base).is_multiple_of(64 << 10), "at {base}");
            // Like on a phone with 16 KiB pages.
            let map = section.map_at_multiples(16 << 10).unwrap();
            assert!(map[..] == opened.read(&file).unwrap()[..], "at {base}");
        }
        // With one byte more or less it is another file.
        for (offset, length) in [(base + 1, bytes.len() as u64 - 1), (base, bytes.len() as u64 - 1)] {
            let cut = whole.part(&larger, offset, length).unwrap();
            assert!(Bundle::open_section(cut).is_err(), "{offset} {length}");
        }
    }
}

#[test]
fn it_opens_within_a_package_that_stores_it_uncompressed() {
    let (parent, bundle, path) = both();
    let make = |name: &str, method: &str| {
        let package = parent.path().join(name);
        let script = "import sys, zipfile
with zipfile.ZipFile(sys.argv[1], 'w') as package:
    package.writestr('classes.dex', b'x' * 12345, zipfile.ZIP_DEFLATED)
    package.write(sys.argv[2], 'assets/demo.swb', getattr(zipfile, sys.argv[3]))
    package.comment = b'PK\\x05\\x06 and other words'";
        let mut run = Command::new("python3");
        run.args(["-c", script]).arg(&package).arg(&path).arg(method);
        assert!(run.status().unwrap().success());
        package
    };
    let within = |package: &Path, entry: &str| PathBuf::from(format!("{}!/{entry}", package.display()));
    let stored = make("stored.apk", "ZIP_STORED");
    let opened = Bundle::open(within(&stored, "assets/demo.swb")).unwrap();
    assert_eq!((opened.sha256(), contents(&opened)), (bundle.sha256(), contents(&bundle)));
    assert_eq!(identify(within(&stored, "assets/demo.swb")).unwrap(), Kind::Bundle);

    let refused = |path: PathBuf, word: &str| {
        let error = Bundle::open(path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.place().is_some_and(|place| place.contains(": offset ")), "{error}");
        assert!(error.message().contains(word) && error.help().is_some(), "{error}");
    };
    refused(within(&make("deflated.apk", "ZIP_DEFLATED"), "assets/demo.swb"), "compressed");
    refused(within(&stored, "assets/other.swb"), "no entry");
    refused(within(&stored, "classes.dex"), "compressed");
    let mut bytes = fs::read(&stored).unwrap();
    let last = bytes.windows(4).rposition(|window| window == b"PK\x01\x02").unwrap();
    bytes[last] ^= 1;
    let damaged = parent.path().join("damaged.apk");
    fs::write(&damaged, bytes).unwrap();
    refused(within(&damaged, "assets/demo.swb"), "damaged");
    let no_archive = parent.path().join("words");
    fs::write(&no_archive, "words").unwrap();
    refused(within(&no_archive, "assets/demo.swb"), "not a ZIP archive");
    let error = Bundle::open(&no_archive).unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.help().is_some());
    assert!(error.message().ends_with("got another file"), "{error}");
}

#[test]
fn packing_replaces_a_file_whole_or_not_at_all() {
    let (parent, bundle, path) = both();
    let before = fs::read(&path).unwrap();
    let partial = path.with_extension("swb.partial");
    for stop in 0..8 {
        let mut calls = 0;
        let stopped = pack(&bundle, &path, |progress| {
            assert!(progress.done <= progress.total && progress.total > bundle.total_bytes());
            calls += 1;
            if calls > stop { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let error = stopped.unwrap_err();
        assert!(error.kind() == ErrorKind::Cancelled && error.help().is_none(), "{error}");
        assert!(before == fs::read(&path).unwrap() && !partial.exists());
    }
    packed(&bundle, &path);
    assert!(before == fs::read(&path).unwrap() && !partial.exists());

    // A concurrent writer, something else with the same name, a damaged source.
    let other = fs::File::create(&partial).unwrap();
    other.lock().unwrap();
    let error = pack(&bundle, &path, |_| ControlFlow::Continue(())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Argument);
    assert!(error.message().contains("being written by another process"), "{error}");
    drop(other);
    fs::remove_file(&partial).unwrap();
    fs::create_dir(&partial).unwrap();
    for to in [&path, &partial] {
        let error = pack(&bundle, to, |_| ControlFlow::Continue(())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Argument);
        assert!(error.message().contains("got a directory"), "{error}");
    }
    fs::remove_dir(&partial).unwrap();
    let archive = [b"PK\x03\x04".as_slice(), &[0; 1 << 17]].concat();
    let cut = &before[..1000];
    for other in [b"a thesis".as_slice(), &archive, cut] {
        let path = parent.path().join("thesis");
        fs::write(&path, other).unwrap();
        let error = pack(&bundle, &path, |_| ControlFlow::Continue(())).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Argument);
        assert!(error.to_string().contains("is not a packed bundle") && error.help().is_some(), "{error}");
        assert_eq!(fs::read(&path).unwrap(), other);
    }
    let file = bundle.files()[0];
    let damaged = bundle.place(&file).unwrap().path;
    let mut bytes = fs::read(&damaged).unwrap();
    bytes[0] ^= 1;
    fs::write(&damaged, bytes).unwrap();
    let error = pack(&bundle, &parent.path().join("bad"), |_| ControlFlow::Continue(())).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().contains("SHA-256"), "{error}");
    assert!(!parent.path().join("bad").exists());
}

#[test]
fn what_was_verified_of_a_packed_bundle_is_remembered_by_its_place() {
    let (parent, _, path) = both();
    let proofs = parent.path().join("proofs");
    let opened = || Bundle::open(&path).unwrap().remembering(Some(Proofs::kept_in(&proofs)));
    std::thread::sleep(std::time::Duration::from_secs(5));
    let files = opened().files();
    for file in &files {
        opened().proved(file).unwrap();
    }
    let notes = fs::read_dir(&proofs).map_or(0, Iterator::count);
    // Some file systems do not support proofs.
    assert!([0, files.len()].contains(&notes), "{notes} of {}", files.len());
    // A change is detected despite the proof, since it changes the times of the file. Short files
    // are always read when opening.
    let long = *files.iter().find(|file| file.bytes > TINY_FILE_BYTES).unwrap();
    let short = *files.iter().find(|file| file.bytes <= TINY_FILE_BYTES).unwrap();
    let place = opened().place(&long).unwrap();
    let mut bytes = fs::read(&path).unwrap();
    bytes[place.offset as usize] ^= 1;
    fs::write(&path, bytes).unwrap();
    let error = opened().proved(&long).unwrap_err();
    assert!(error.message().contains("SHA-256"), "{error}");
    opened().proved(&short).unwrap();
}

#[test]
fn no_changed_bit_of_the_rest_is_taken_and_none_crashes() {
    let (parent, bundle, path) = both();
    let bytes = fs::read(&path).unwrap();
    let of_a_part: Vec<(u64, u64)> = {
        let packed = Bundle::open(&path).unwrap();
        let places = packed.files().into_iter().map(|file| (packed.place(&file).unwrap().offset, file.bytes));
        places.map(|(offset, bytes)| (offset, offset + bytes)).collect()
    };
    let changed = parent.path().join("changed.swb");
    let expect_refused = |bytes: &[u8], what: &str| {
        fs::write(&changed, bytes).unwrap();
        let error = match Bundle::open(&changed) {
            Ok(opened) => opened.verify_all(|_| ()).expect_err(what),
            Err(error) => error,
        };
        let named = changed.file_name().unwrap().to_str().unwrap();
        assert!(error.to_string().contains(named) && error.help().is_some(), "{what}: {error}");
    };
    // Every byte of headers and of the directory, and some of the padding.
    let rest = (0..bytes.len())
        .filter(|at| !of_a_part.iter().any(|(from, to)| (*from..*to).contains(&(*at as u64))));
    let is_zero_run = |at: usize| bytes[at..(at + 8).min(bytes.len())].iter().all(|byte| *byte == 0);
    let mut count = 0;
    for at in rest.filter(|at| !is_zero_run(*at) || at % 4099 == 0) {
        let mut mutated = bytes.clone();
        mutated[at] ^= 1 << (at % 8);
        expect_refused(&mutated, &format!("a changed bit at {at}"));
        count += 1;
    }
    assert!(count > 1000, "{count} bytes");
    for cut in [0, 1, 3, 4, 21, 22, 100, bytes.len() / 2, bytes.len() - 22, bytes.len() - 1] {
        expect_refused(&bytes[..cut], &format!("cut at {cut}"));
    }
    expect_refused(&[&bytes[..], b"\0"].concat(), "a byte more");
    assert_eq!(Bundle::open(&path).unwrap().sha256(), bundle.sha256());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Any bytes after the first ones of an archive result in a bundle or an error.
    #[test]
    fn any_bytes_give_an_error(tail in proptest::collection::vec(any::<u8>(), 0..400)) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("any.swb");
        fs::write(&path, [&b"PK\x03\x04"[..], &tail].concat()).unwrap();
        let error = Bundle::open(&path).unwrap_err();
        prop_assert!(error.help().is_some());
    }
}
