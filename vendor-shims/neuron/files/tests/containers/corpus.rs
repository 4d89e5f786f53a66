//! Generates the committed corpus of the fuzz targets (`SHARDWRIGHT_WRITE_CORPUS=1` rewrites it).
//! Runs every target over the corpus: over whole, truncated and damaged files.

#[path = "../../fuzz/src/lib.rs"]
mod targets;

use crate::support;
use std::path::Path;

use targets::TARGETS;

#[test]
fn the_corpus_is_what_is_written_here() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let writes = std::env::var_os("SHARDWRIGHT_WRITE_CORPUS").is_some();
    let mut expected = Vec::new();
    for (target, name, bytes) in support::samples::all() {
        let path = root.join(target).join(name);
        if writes {
            std::fs::create_dir_all(root.join(target)).expect("a folder");
            std::fs::write(&path, &bytes).expect("written");
        }
        let existing = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
        assert_eq!(existing, bytes, "{}", path.display());
        expected.push(path);
    }
    for folder in std::fs::read_dir(&root).expect("a corpus").flatten() {
        for file in std::fs::read_dir(folder.path()).expect("a folder").flatten() {
            assert!(expected.contains(&file.path()), "{}: not written by this test", file.path().display());
        }
    }
}

/// Number of damaged copies of each file.
const DAMAGED: u64 = 200;

/// Returns the corpus files of a target. If the target has none, returns the files of all targets.
fn corpus(target: &str) -> Vec<Vec<u8>> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/corpus");
    let mut folders: Vec<_> = std::fs::read_dir(&root).expect("a corpus").flatten().collect();
    folders.sort_by_key(std::fs::DirEntry::file_name);
    if root.join(target).is_dir() {
        folders.retain(|folder| folder.file_name() == target);
    }
    let mut files = Vec::new();
    for folder in folders {
        let mut paths: Vec<_> =
            std::fs::read_dir(folder.path()).expect("a folder").flatten().map(|file| file.path()).collect();
        paths.sort();
        files.extend(paths.into_iter().map(|path| std::fs::read(path).expect("a file")));
    }
    assert!(!files.is_empty(), "{target}");
    files
}

/// Returns the next number of a sequence that is the same in every run.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

#[test]
fn no_target_minds_damage() {
    let mut state = 0x9e37_79b9_7f4a_7c15;
    for (name, target) in TARGETS {
        for file in corpus(name) {
            target(&file);
            // Every length within the heads, and a few hundred longer ones.
            let step = (file.len() / 512).max(1);
            for length in (0..file.len().min(256)).chain((256..file.len()).step_by(step)) {
                target(&file[..length]);
            }
            for _ in 0..DAMAGED {
                let mut damaged = file.clone();
                for _ in 0..=next(&mut state) % 4 {
                    if damaged.is_empty() {
                        continue;
                    }
                    let at = (next(&mut state) % damaged.len() as u64) as usize;
                    match next(&mut state) % 4 {
                        0 => damaged[at] ^= 1 << (next(&mut state) % 8),
                        1 => damaged[at] = [0, 1, 0x7f, 0x80, 0xff][(next(&mut state) % 5) as usize],
                        2 => damaged.truncate(at),
                        _ => {
                            let from = (next(&mut state) % damaged.len() as u64) as usize;
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
