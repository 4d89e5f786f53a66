//! The corpus of the fuzz targets: the files of the tests, and inputs that the targets once found.
//! Every target is run over all of it: whole, truncated, and damaged.

#![cfg(all(feature = "pictures", feature = "sounds"))]

use std::path::{Path, PathBuf};

use crate::support::{file, fixture};
use crate::targets::TARGETS;

/// Largest corpus of a target in bytes, so that cloning stays quick.
const LARGEST: usize = 60_000;
/// File name prefix of inputs that are not files of the tests.
const FOUND: &str = "found-";
/// Number of damaged copies of each file.
const DAMAGED: u64 = 150;

const PICTURES: &[&str] = &[
    "grey.jpg",
    "moving.gif",
    "moving.png",
    "moving.webp",
    "palette.png",
    "print.jpg",
    "progressive.jpg",
    "smooth.jpg",
    "smooth.webp",
    "turned.png",
];
const SOUNDS: &[&str] =
    &["sine_16k.flac", "sine_44k.mp3", "sine_44k.ogg", "sine_48k.opus", "stereo_48k.flac", "tone.wav"];

fn corpus(target: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus").join(target)
}

/// Run with `SHARDWRIGHT_WRITE_CORPUS=1` to rewrite the corpus.
#[test]
fn the_corpus_is_the_files_of_the_tests() {
    let writes = std::env::var_os("SHARDWRIGHT_WRITE_CORPUS").is_some();
    let settings = std::fs::read(fixture().join("processor_config.json")).expect("settings");
    let named = |target: &'static str, names: &[&str]| {
        names.iter().map(|name| (corpus(target).join(name), file(name))).collect::<Vec<_>>()
    };
    let mut expected = [named("picture", PICTURES), named("sound", SOUNDS)].concat();
    expected.push((corpus("settings").join("processor_config.json"), settings));
    for (path, bytes) in &expected {
        if writes {
            std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
            std::fs::write(path, bytes).expect("written");
        }
        let stored = std::fs::read(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert!(stored == *bytes, "{}: differs from the file of the tests", path.display());
    }
    for (target, _) in TARGETS {
        let mut length = 0;
        for file in std::fs::read_dir(corpus(target)).expect("a folder").flatten() {
            let known = expected.iter().any(|(path, _)| *path == file.path())
                || file.file_name().to_string_lossy().starts_with(FOUND);
            assert!(known, "{}: no file of the tests", file.path().display());
            length += file.metadata().expect("a file").len() as usize;
        }
        assert!(length <= LARGEST, "{target}: {length} bytes");
    }
}

#[test]
fn no_target_fails_on_damage() {
    let mut random = fastrand::Rng::with_seed(11);
    for (name, target) in TARGETS {
        let mut paths: Vec<_> =
            std::fs::read_dir(corpus(name)).expect("a folder").flatten().map(|file| file.path()).collect();
        paths.sort();
        for file in paths.iter().map(|path| std::fs::read(path).expect("a file")) {
            target(&file);
            let step = (file.len() / 200).max(1);
            for length in (0..file.len().min(100)).chain((100..file.len()).step_by(step)) {
                target(&file[..length]);
            }
            for _ in 0..DAMAGED {
                let mut damaged = file.clone();
                for _ in 0..=random.usize(..3) {
                    let at = random.usize(..damaged.len());
                    match random.u8(..4) {
                        0 => damaged[at] ^= 1 << random.u8(..8),
                        1 => damaged[at] = [0, 1, 0x7f, 0x80, 0xff][random.usize(..5)],
                        2 => damaged[at] = damaged[at].wrapping_add(1),
                        _ => {
                            let from = random.usize(..damaged.len());
                            let length = (damaged.len() - at.max(from)).min(8);
                            damaged.copy_within(from..from + length, at);
                        }
                    }
                }
                target(&damaged);
            }
        }
    }
}
