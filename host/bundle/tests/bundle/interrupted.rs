//! Interrupts writers at every step (`tests/tests/program/interrupted_writes.rs` kills real ones).
//! At any moment there is either no bundle or a complete one, and the next writer produces the same
//! bytes as an undisturbed one.

use std::fs;
use std::path::Path;

use shardwright_bundle::{Bundle, BundleWriter, Kind, identify};

use crate::support::{RECIPE, fill, place, snapshot, write};

/// Checks that there is either no bundle or one of `complete` with every byte.
fn expect_nothing_or_all(directory: &Path, complete: &[shardwright_bundle::Digest]) {
    match Bundle::open(directory) {
        Ok(bundle) => {
            assert!(complete.contains(&bundle.sha256()));
            bundle.verify_all(|_| ()).unwrap();
            assert_eq!(identify(directory).unwrap(), Kind::Bundle);
        }
        Err(error) if error.is_not_found() => assert!(!directory.exists()),
        Err(error) if error.message().ends_with(": `bundle.json` is missing") => {
            let unfinished = error.message().starts_with("not finished");
            let kind = if unfinished { Kind::UnfinishedBundle } else { Kind::Unknown };
            assert_eq!(identify(directory).unwrap(), kind);
            let empty = fs::read_dir(directory).unwrap().next().is_none();
            assert_eq!(unfinished, !empty, "a directory is ours from its first file on");
        }
        Err(error) => panic!("{error}"),
    }
}

/// The states between two system calls, constructed manually.
#[test]
fn every_state_between_two_steps_is_completed() {
    let (_parent, whole) = place();
    let identity = write(&whole, RECIPE).unwrap().sha256();
    let expected = snapshot(&whole);
    let manifest = fs::read(whole.join("bundle.json")).unwrap();
    let filled = |directory: &Path| {
        let mut writer = BundleWriter::create(directory).unwrap();
        fill(&mut writer, RECIPE).unwrap();
    };
    type State<'a> = (&'a str, &'a dyn Fn(&Path));
    let states: [State<'_>; 9] = [
        ("an empty directory", &|directory| fs::create_dir(directory).unwrap()),
        ("an empty journal", &|directory| {
            fs::create_dir(directory).unwrap();
            fs::write(directory.join(".unfinished"), "").unwrap();
        }),
        ("a torn journal", &|directory| {
            filled(directory);
            let path = directory.join(".unfinished");
            let bytes = fs::read(&path).unwrap();
            fs::write(&path, &bytes[..bytes.len() - 5]).unwrap();
        }),
        ("half a file", &|directory| {
            filled(directory);
            fs::write(directory.join("files/.writing-x1"), "half").unwrap();
        }),
        ("a file adopted and not noted", &|directory| {
            filled(directory);
            fs::write(directory.join(".unfinished"), "shardwright-unfinished 1\n").unwrap();
        }),
        ("half a manifest under a temporary name", &|directory| {
            filled(directory);
            fs::write(directory.join(".writing-x2"), &manifest[..manifest.len() / 2]).unwrap();
        }),
        ("the whole manifest under a temporary name", &|directory| {
            filled(directory);
            fs::write(directory.join(".writing-x3"), &manifest).unwrap();
        }),
        ("complete, not tidied", &|directory| {
            filled(directory);
            fs::write(directory.join("bundle.json"), &manifest).unwrap();
            let stray = shardwright_bundle::Digest::of(b"stray").to_string();
            fs::write(directory.join("files").join(stray), "stray").unwrap();
        }),
        ("complete, the journal still there", &|directory| {
            write(directory, RECIPE).unwrap();
            fs::write(directory.join(".unfinished"), "shardwright-unfinished 1\n").unwrap();
        }),
    ];
    for (state, make) in states {
        let (_parent, directory) = place();
        make(&directory);
        expect_nothing_or_all(&directory, &[identity]);
        let complete = state.starts_with("complete");
        assert_eq!(Bundle::open(&directory).is_ok(), complete, "{state}");
        write(&directory, RECIPE).unwrap();
        assert_eq!(snapshot(&directory), expected, "{state}");
    }
}

#[test]
fn a_writer_dropped_after_any_piece_is_completed_by_the_next() {
    let (_parent, whole) = place();
    let identity = write(&whole, RECIPE).unwrap().sha256();
    let expected = snapshot(&whole);
    let pieces: Vec<Vec<u8>> = expected.values().flatten().cloned().collect();
    let (_other, directory) = place();
    for count in 0..pieces.len() {
        let mut writer = BundleWriter::create(&directory).unwrap();
        for piece in &pieces[..count] {
            writer.add_bytes(piece).unwrap();
        }
        drop(writer);
        expect_nothing_or_all(&directory, &[identity]);
    }
    write(&directory, RECIPE).unwrap();
    assert_eq!(snapshot(&directory), expected);
}
