//! Names of a hostile bundle: nothing outside the output and the cache changes, whichever command
//! writes.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use shardwright_bundle::BundleWriter;
use shardwright_tests::bundles::{Compiled, contents, write_contents};
use shardwright_tests::checkpoints::TEXT_FIXTURES;
use shardwright_tests::program::{shardwright, share_planner};

/// Returns every file and folder below a folder, with the bytes of files.
fn everything(folder: &Path) -> BTreeMap<PathBuf, Option<Vec<u8>>> {
    let (mut found, mut open) = (BTreeMap::new(), vec![folder.to_owned()]);
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(&next).expect("a folder") {
            let path = entry.expect("an entry").path();
            let bytes = if path.is_dir() { None } else { fs::read(&path).ok() };
            if path.is_dir() {
                open.push(path.clone());
            }
            found.insert(path, bytes);
        }
    }
    found
}

const NAMES: [&str; 6] = [
    "../../outside",
    "/outside-of-every-output",
    "a/../../../outside",
    "x`; touch outside #",
    "$(touch outside)",
    "..",
];

/// Commands that write, with the options before the output.
const WRITERS: [&[&str]; 5] = [
    &["pack", "-o"],
    &["pack", "--licence", "mit", "--hf"],
    &["pack", "--adb"],
    &["pack", "--ai-pack"],
    &["doctor", "--report"],
];

/// Commands that write at most into the cache.
const READERS: [&[&str]; 4] =
    [&["run", "--prompt", "a", "-n", "1"], &["explain"], &["needs"], &["inspect", "--verify"]];

/// Writes a bundle whose manifest has this text wherever a name may be any text.
fn hostile_bundle(from: &Path, name: &str, to: &Path) {
    write_contents(&contents(from), to);
    let writer = BundleWriter::create(to).expect("a bundle");
    let mut manifest = writer.previous().cloned().expect("a manifest");
    manifest.program = name.to_owned();
    manifest.model.name = name.to_owned();
    manifest.model.family = name.to_owned();
    for variant in &mut manifest.variants {
        variant.aliases = vec![name.to_owned()];
        variant.planner.name = name.to_owned();
        for shard in variant.chains.iter_mut().flat_map(|chain| &mut chain.shards) {
            shard.target.name = name.to_owned();
            shard.compiled_by.device = name.to_owned();
        }
    }
    writer.finish(&manifest).expect("names are printable");
}

#[test]
fn nothing_outside_the_output_changes() {
    let options = ["--soc", "mt6989,generic", "--on", "cpu", "--context", "64"];
    let compiled = Compiled::from(TEXT_FIXTURES[0], options);
    for name in NAMES {
        let parent = tempfile::tempdir().expect("a folder");
        let place = parent.path().join("in/several/folders");
        fs::create_dir_all(&place).expect("made");
        let (bundle, out, cache) = (place.join("bundle"), place.join("out"), place.join("cache"));
        hostile_bundle(&compiled.path(), name, &bundle);
        share_planner(&cache);
        let outside = || {
            let mut all = everything(parent.path());
            all.retain(|path, _| !path.starts_with(&out) && !path.starts_with(&cache));
            all
        };
        let before = outside();
        let run = |words: &[&str]| {
            let run = shardwright([words[0]]).argument(&bundle).arguments(&words[1..]);
            run.within(&place).environment("XDG_CACHE_HOME", &cache).environment("TMPDIR", &cache)
        };
        for words in WRITERS {
            // Whether a command refuses the bundle does not matter here.
            let outcome = run(words).argument(&out).outcome();
            assert!(outcome.code.is_some_and(|code| code != 101), "{words:?}: {}", outcome.stderr);
            assert!(outside() == before, "{words:?} with {name:?} changed a file or folder outside");
            let _ = fs::remove_dir_all(&out).or_else(|_| fs::remove_file(&out));
        }
        for words in READERS {
            let outcome = run(words).outcome();
            assert!(outcome.code.is_some_and(|code| code != 101), "{words:?}: {}", outcome.stderr);
            assert!(outside() == before, "{words:?} with {name:?} wrote outside of its cache");
        }
        assert!(!Path::new("/outside-of-every-output").exists());
    }
}
