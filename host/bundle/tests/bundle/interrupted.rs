//! Writers that die. Whatever moment they die at, what they leave is no bundle or a complete one,
//! and the next writer ends with the bytes of one that was never disturbed.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use shardwright_bundle::{Bundle, BundleError, BundleWriter, Kind, identify};

use crate::support::{RECIPE, Recipe, fill, place, snapshot, write};

/// Names the directory for the child; without it the child is an empty test.
const DIRECTORY: &str = "SHARDWRIGHT_BUNDLE_TEST_DIRECTORY";

/// Enough files that a kill falls between them.
const LARGE: Recipe = Recipe { seed: 5, layers: 12, fallback: true };

/// Not a test of its own: the process that the tests below start and kill.
#[test]
fn the_writer_that_is_killed() {
    if let Some(directory) = std::env::var_os(DIRECTORY) {
        write(Path::new(&directory), LARGE).unwrap();
    }
}

fn writer_process(directory: &Path) -> std::process::Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "interrupted::the_writer_that_is_killed", "--test-threads=1"])
        .env(DIRECTORY, directory)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// No bundle, or one of `complete`, every byte of it.
fn expect_nothing_or_all(directory: &Path, complete: &[shardwright_bundle::Digest]) {
    match Bundle::open(directory) {
        Ok(bundle) => {
            assert!(complete.contains(&bundle.sha256()));
            bundle.verify_all(|_| ()).unwrap();
            assert_eq!(identify(directory).unwrap(), Kind::Bundle);
        }
        Err(BundleError::Io { .. }) => assert!(!directory.exists()),
        Err(BundleError::NoManifest { unfinished, .. }) => {
            let kind = if unfinished { Kind::UnfinishedBundle } else { Kind::Unknown };
            assert_eq!(identify(directory).unwrap(), kind);
            let empty = fs::read_dir(directory).unwrap().next().is_none();
            assert_eq!(unfinished, !empty, "a directory is ours from its first file on");
        }
        Err(error) => panic!("{error}"),
    }
}

#[test]
fn a_killed_writer_leaves_nothing_or_all_and_the_next_one_completes_it() {
    let (_parent, whole) = place();
    let identity = write(&whole, LARGE).unwrap().sha256();
    let expected = snapshot(&whole);

    let (_other, directory) = place();
    let start = Instant::now();
    assert!(writer_process(&directory).wait().unwrap().success());
    let duration = start.elapsed();
    assert_eq!(snapshot(&directory), expected);

    // Moments spread over the run; the state of the machine makes them random. Every third time the
    // ruins are cleared away, else the next writer goes on in them.
    const KILLS: u32 = 24;
    let mut interrupted = 0;
    for kill in 0..KILLS {
        if kill % 3 == 0 {
            fs::remove_dir_all(&directory).unwrap();
        }
        let mut child = writer_process(&directory);
        std::thread::sleep(
            duration * (kill * 7 % KILLS) / KILLS + Duration::from_micros(u64::from(kill) * 97),
        );
        child.kill().unwrap();
        let status = child.wait().unwrap();
        interrupted += u32::from(!status.success());
        expect_nothing_or_all(&directory, &[identity]);
    }
    assert!(interrupted > 0, "no kill came in time");
    write(&directory, LARGE).unwrap();
    assert_eq!(snapshot(&directory), expected);
}

#[test]
fn a_writer_killed_over_a_bundle_leaves_the_old_or_the_new_one() {
    let (_parent, directory) = place();
    let (_other, whole) = place();
    let new = write(&whole, LARGE).unwrap().sha256();
    let expected = snapshot(&whole);
    let start = Instant::now();
    fs::remove_dir_all(&whole).unwrap();
    assert!(writer_process(&whole).wait().unwrap().success());
    let duration = start.elapsed();
    for kill in 0..8 {
        let old = write(&directory, RECIPE).unwrap().sha256();
        let mut child = writer_process(&directory);
        std::thread::sleep(duration * kill / 8);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(identify(&directory).unwrap(), Kind::Bundle, "there is a bundle at every moment");
        expect_nothing_or_all(&directory, &[old, new]);
    }
    write(&directory, LARGE).unwrap();
    assert_eq!(snapshot(&directory), expected);
}

/// The states between two system calls that a kill meets too rarely, made by hand.
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
