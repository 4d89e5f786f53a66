//! Written bundles are read back, and every byte can be verified.

use std::fs;
use std::ops::ControlFlow;
use std::thread;

use shardwright_bundle::{
    Bundle, Digest, Examine, FileReference, FileState, Forgotten, Hashed, Proofs, TINY_FILE_BYTES, TextFile,
    inspect,
};
use shardwright_trust::Trust;
use shardwright_vocabulary::ErrorKind;

use crate::support::{RECIPE, checkpoint, files, place, tables, write};

#[test]
fn a_bundle_returns_the_content_that_was_added() {
    let (parent, directory) = place();
    let written = write(&directory, RECIPE).unwrap();
    let bundle = Bundle::open(&directory).unwrap();
    assert_eq!(bundle.manifest(), written.manifest());
    assert_eq!(bundle.sha256(), written.sha256());
    assert_eq!(bundle.path(), directory);
    assert!(bundle.unreferenced().unwrap().is_empty(), "nothing is left behind");

    let source = parent.path().join("checkpoint");
    checkpoint(&source);
    for &text in TextFile::ALL {
        let expected = fs::read(source.join(text.name())).ok();
        assert_eq!(bundle.text(text).unwrap(), expected, "{text}");
    }
    assert_eq!(bundle.manifest().texts.len(), 4, "weights and pages stay behind");

    let chain = bundle.variant().chain("cpu").unwrap();
    assert_eq!(bundle.read(&chain.plan).unwrap(), b"{\"plan\":\"cpu\"}");
    for shard in &chain.shards {
        assert_eq!(bundle.read(&shard.head).unwrap(), format!("head of {}", shard.name).into_bytes());
        let path = bundle.place(&shard.artefact).unwrap().path;
        assert_eq!(fs::read(path).unwrap(), bundle.read(&shard.artefact).unwrap());
    }
    assert!(bundle.variant().chain("gpu").is_none());
}

#[test]
fn tables_come_back_as_tables() {
    let (_parent, directory) = place();
    let bundle = write(&directory, RECIPE).unwrap();
    let read = bundle.assets_of(&bundle.variant().assets).unwrap();
    assert_eq!(read.len(), 2);
    for (read, made) in read.iter().zip(&tables()) {
        assert_eq!(
            (&read.name, &read.table.shape, read.table.dtype),
            (&made.name, &made.table.shape, made.table.dtype)
        );
        assert_eq!(read.table.data.bytes().as_ptr() as usize % 4096, 0, "tables begin on a page");
        for token in 0..6 {
            assert_eq!(read.row_of(token), made.row_of(token));
        }
        let width = made.table.row_width();
        for row in 0..made.table.rows() {
            let mut values = [vec![f32::NAN; width], vec![f32::NAN; width]];
            assert!(read.table.decode_row(row, &mut values[0]) && made.table.decode_row(row, &mut values[1]));
            assert_eq!(
                values[0].iter().map(|v| v.to_bits()).collect::<Vec<_>>(),
                values[1].iter().map(|v| v.to_bits()).collect::<Vec<_>>()
            );
        }
    }
}

#[test]
fn mappings_are_shared_while_they_live() {
    let (_parent, directory) = place();
    let bundle = write(&directory, RECIPE).unwrap();
    let reference = bundle.variant().chains[0].shards[0].artefact;
    let first = bundle.map(&reference).unwrap();
    let second = bundle.map(&reference).unwrap();
    assert_eq!(first.as_ptr(), second.as_ptr());
    let pages: Vec<_> = thread::scope(|scope| {
        let map = || bundle.map(&reference).unwrap().as_ptr() as usize;
        let threads: Vec<_> = (0..4).map(|_| scope.spawn(map)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    assert!(pages.iter().all(|page| *page == first.as_ptr() as usize));
    // A mapping outlives the bundle, and even the file.
    let bytes = bundle.read(&reference).unwrap();
    drop(bundle);
    fs::remove_dir_all(&directory).unwrap();
    assert_eq!(&first[..], bytes);
}

#[test]
fn what_is_hashed_is_counted_and_stopped_between_blocks() {
    let (parent, directory) = place();
    let bundle = write(&directory, RECIPE).unwrap();
    let artefact = bundle.variant().chains[0].shards[0].artefact;
    assert_eq!(bundle.hashed(), Hashed::default());
    let mut seen = Vec::new();
    let mut watch = |bytes| {
        seen.push(bytes);
        ControlFlow::Continue(())
    };
    bundle.proved_watched(&artefact, &mut watch).unwrap();
    assert_eq!((seen.first(), seen.last()), (Some(&0), Some(&artefact.bytes)));
    assert_eq!(bundle.hashed().bytes, artefact.bytes);
    assert_eq!(bundle.hashed().forgotten, Some(Forgotten::NoPlace));

    // If stopped, a file is neither counted nor recorded.
    let proofs = parent.path().join("proofs");
    let bundle = Bundle::open(&directory).unwrap().remembering(Some(Proofs::kept_in(&proofs)));
    let mut stop = |_| ControlFlow::Break(());
    let stopped = bundle.map_watched(&artefact, &mut stop).unwrap_err();
    assert_eq!(stopped.kind(), ErrorKind::Cancelled, "{stopped}");
    assert!(bundle.hashed() == Hashed::default() && !proofs.exists());
    let stopped = bundle.verify_all_watched(|_| ControlFlow::Break(())).unwrap_err();
    assert_eq!(stopped.kind(), ErrorKind::Cancelled, "{stopped}");
    // While a mapping exists, its file is not hashed again, not even by a clone.
    let map = bundle.map(&artefact).unwrap();
    bundle.clone().map_watched(&artefact, &mut stop).unwrap();
    assert_eq!(bundle.hashed().bytes, artefact.bytes);
    // The file was written just now, or the file system does not report writers.
    let forgotten = bundle.hashed().forgotten.unwrap();
    assert!(matches!(forgotten, Forgotten::Lately | Forgotten::Unknown), "{forgotten}");
    drop(map);
    bundle.verify_all(|_| ()).unwrap();
    assert_eq!(bundle.hashed().bytes, artefact.bytes + bundle.total_bytes());
}

#[test]
fn a_changed_bit_in_any_file_is_found() {
    let (_parent, directory) = place();
    let bundle = write(&directory, RECIPE).unwrap();
    let mut looked_at = 0;
    let mut last = 0;
    bundle
        .verify_all(|progress| {
            assert!(progress.done >= last && progress.total == bundle.total_bytes());
            (looked_at, last) = (looked_at + 1, progress.done);
        })
        .unwrap();
    let files = files(&directory);
    assert_eq!(looked_at, files.len());
    for path in files {
        let bytes = fs::read(&path).unwrap();
        let reference = FileReference { sha256: Digest::of(&bytes), bytes: bytes.len() as u64 };
        // Both ends, and some offsets in between.
        for step in 0..=16 {
            let offset = (bytes.len() - 1) * step / 16;
            let mut changed = bytes.clone();
            changed[offset] ^= 1 << (step % 8);
            fs::write(&path, &changed).unwrap();
            // Opening checks short files, and using a file checks all of it.
            let opened = Bundle::open(&directory);
            assert_eq!(opened.is_ok(), reference.bytes > TINY_FILE_BYTES);
            for error in [
                bundle.verify_all(|_| ()).unwrap_err(),
                bundle.read(&reference).unwrap_err(),
                bundle.map(&reference).unwrap_err(),
                bundle.proved(&reference).unwrap_err(),
            ] {
                assert_eq!((error.kind(), error.place()), (ErrorKind::Invalid, path.to_str()));
                let expected = format!("damaged: expected SHA-256 {}, got ", reference.sha256);
                assert!(error.message().starts_with(&expected) && error.help().is_some(), "{error}");
            }
            let glance = inspect(&directory, Examine::Presence, &Trust::off(), |_| ()).unwrap();
            // Long files are not hashed at a glance, so their bytes are unknown.
            assert_eq!((glance.intact, glance.verified), (opened.is_err().then_some(false), false));
            let inspection = inspect(&directory, Examine::Content, &Trust::off(), |_| ()).unwrap();
            assert_eq!((inspection.intact, inspection.verified), (Some(false), true));
            let damaged = |state: &FileState| match state {
                FileState::Damaged { reason, help } => reason.contains("SHA-256") && help.is_some(),
                _ => false,
            };
            let found: Vec<_> = inspection.files.iter().filter(|file| damaged(&file.state)).collect();
            assert_eq!(found.len(), 1);
            assert_eq!(found[0].file, reference);
        }
        fs::write(&path, &bytes).unwrap();
    }
    bundle.verify_all(|_| ()).unwrap();
}

#[test]
fn a_changed_bit_of_the_manifest_is_refused() {
    let (_parent, directory) = place();
    write(&directory, RECIPE).unwrap();
    let path = directory.join("bundle.json");
    let bytes = fs::read(&path).unwrap();
    // The tests of the manifest change every bit in memory. This test changes a sample on disk.
    for offset in (0..bytes.len()).step_by(11) {
        let mut changed = bytes.clone();
        changed[offset] ^= 1 << (offset % 8);
        fs::write(&path, &changed).unwrap();
        let error = Bundle::open(&directory).unwrap_err();
        let words = ["wrong first bytes", "of the format", "SHA-256"];
        assert!(words.iter().any(|words| error.message().contains(words)), "{error}");
        assert!(inspect(&directory, Examine::Presence, &Trust::off(), |_| ()).is_err());
    }
    fs::write(&path, &bytes).unwrap();
    Bundle::open(&directory).unwrap();
}

/// Long files are hashed too, as the length alone proves nothing. This file is sparse.
#[test]
fn a_long_file_is_hashed_like_any_other() {
    const LONG: u64 = (64 << 20) + 1;
    let (_parent, directory) = place();
    let mut writer = shardwright_bundle::BundleWriter::create(&directory).unwrap();
    let mut manifest = crate::support::fill(&mut writer, RECIPE).unwrap();
    let long = writer.staging().unwrap().join("long");
    fs::File::create(&long).unwrap().set_len(LONG).unwrap();
    let reference = writer.adopt(&long).unwrap();
    manifest.variants[0].chains[0].shards[0].artefact = reference;
    let bundle = writer.finish(&manifest).unwrap();
    let section = bundle.proved(&reference).unwrap();
    let path = section.path().to_owned();
    assert_eq!(section.length(), LONG);

    fs::remove_file(&path).unwrap();
    fs::write(&path, b"another").unwrap();
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(reference.bytes).unwrap();
    let bundle = Bundle::open(&directory).unwrap();
    for error in [
        bundle.map(&reference).unwrap_err(),
        bundle.proved(&reference).unwrap_err(),
        bundle.verify_all(|_| ()).unwrap_err(),
    ] {
        assert!(error.message().contains("SHA-256"), "{error}");
    }
    // The verified file is not the one at the path now.
    let mut begin = [1; 7];
    section.read_exact_at(&mut begin, 0).unwrap();
    assert_eq!(begin, [1; 7].map(|_| 0), "a handle reads on from what was proved");
}

/// A recorded proof covers the whole file against the manifest, and ends with the first change.
#[test]
fn a_remembered_proof_is_of_every_byte() {
    let (parent, directory) = place();
    let notes = parent.path().join("proofs");
    let written = write(&directory, RECIPE).unwrap();
    let reference = written.variant().chains[0].shards[0].artefact;
    // Its last change must be some seconds old to be distinguished from a later one.
    thread::sleep(std::time::Duration::from_secs(5));
    let opened = || Bundle::open(&directory).unwrap().remembering(Some(Proofs::kept_in(&notes)));
    let bundle = opened();
    assert!(bundle.proofs().is_some());
    bundle.proved(&reference).unwrap();
    bundle.assets_of(&bundle.variant().assets).unwrap();
    let recorded = fs::read_dir(&notes).map_or(0, Iterator::count);
    let tables = bundle.variant().assets.iter().map(|asset| {
        1 + asset.quantisation.as_ref().map_or(0, |scheme| usize::from(scheme.scales != asset.table))
    });
    // Some file systems do not support proofs.
    let expected = 1 + tables.sum::<usize>();
    assert!(recorded == 0 || recorded == expected, "{recorded} of {expected}");
    println!("{recorded} proofs remembered");
    opened().proved(&reference).unwrap();
    opened().assets_of(&bundle.variant().assets).unwrap();

    let path = bundle.place(&reference).unwrap().path;
    let mut bytes = fs::read(&path).unwrap();
    bytes[0] ^= 1;
    let modified = fs::metadata(&path).unwrap().modified().unwrap();
    fs::write(&path, &bytes).unwrap();
    fs::File::options().write(true).open(&path).unwrap().set_modified(modified).unwrap();
    let error = opened().proved(&reference).unwrap_err();
    assert!(error.message().contains("SHA-256"), "{error}");
}

#[test]
fn lengths_at_the_ends_of_the_scale() {
    let (_parent, directory) = place();
    let mut writer = shardwright_bundle::BundleWriter::create(&directory).unwrap();
    let mut manifest = crate::support::fill(&mut writer, RECIPE).unwrap();
    let empty = writer.add_bytes(b"").unwrap();
    manifest.variants[0].chains[0].shards[0].head = empty;
    let huge = writer.staging().unwrap().join("huge");
    fs::File::create(&huge).unwrap().set_len((256 << 20) + 1).unwrap();
    let huge = writer.adopt(&huge).unwrap();
    manifest.variants[0].chains[0].shards[0].artefact = huge;
    let bundle = writer.finish(&manifest).unwrap();
    assert!(bundle.read(&empty).unwrap().is_empty());
    assert!(bundle.map(&empty).unwrap().is_empty());
    let error = bundle.read(&huge).unwrap_err();
    assert!(error.place().is_some_and(|place| place.ends_with(": bytes to read at once")), "{error}");
    assert_eq!(bundle.map(&huge).unwrap().len() as u64, huge.bytes);
}

#[test]
fn an_inspection_says_what_is_there_and_has_a_json_twin() {
    let (_parent, directory) = place();
    let bundle = write(&directory, RECIPE).unwrap();
    fs::write(directory.join("notes.txt"), "mine").unwrap();
    fs::write(directory.join("files/notes\u{1b}.txt"), "mine too").unwrap();
    fs::create_dir(directory.join("files/folder")).unwrap();
    let mut heard = 0;
    let found = inspect(&directory, Examine::Presence, &Trust::off(), |_| heard += 1).unwrap();
    assert_eq!(heard, found.files.len());
    // The JSON does not claim that unread bytes are intact.
    assert_eq!((found.intact, found.verified), (None, false));
    let json = serde_json::to_value(&found).unwrap();
    assert_eq!((&json["intact"], &json["verified"]), (&serde_json::Value::Null, &false.into()));
    for file in &found.files {
        let long = file.file.bytes > TINY_FILE_BYTES;
        assert_eq!(file.state, if long { FileState::Present } else { FileState::Verified });
    }
    assert_eq!(found.total_bytes, bundle.total_bytes());
    assert_eq!((found.sha256, &found.manifest), (bundle.sha256(), bundle.manifest()));
    let strays: Vec<_> =
        found.unreferenced.iter().map(|stray| (stray.name.as_str(), stray.bytes, stray.is_file)).collect();
    assert_eq!(
        strays,
        [("files/folder", 0, false), ("files/notes\\u{1b}.txt", 8, true), ("notes.txt", 4, true)]
    );
    assert_eq!(found.unreferenced, bundle.unreferenced().unwrap());

    // One content is used twice: two chains have the same request.
    let request = bundle.variant().chains[0].request;
    let entry = found.files.iter().find(|file| file.file == request).unwrap();
    assert_eq!(entry.used_as, ["variants[0].chains[0].request", "variants[0].chains[1].request"]);

    let verified = inspect(&directory, Examine::Content, &Trust::off(), |_| ()).unwrap();
    assert!(verified.files.iter().all(|file| file.state == FileState::Verified));
    assert_eq!((verified.intact, verified.verified), (Some(true), true));
    let json = serde_json::to_value(&verified).unwrap();
    assert_eq!(json["format"], 4);
    assert_eq!(json["files"][0]["state"], "verified");
    assert_eq!(json["files"][0]["sha256"], found.files[0].file.sha256.to_string());
    assert_eq!(
        json["manifest"]["variants"][0]["chains"][0]["shards"][0]["flags"][0]["verdict"]["verdict"],
        "inert"
    );

    fs::remove_dir_all(directory.join("files")).unwrap();
    let empty = inspect(&directory, Examine::Content, &Trust::off(), |_| ()).unwrap();
    assert_eq!(empty.intact, Some(false));
    let missing = |state: &FileState| match state {
        FileState::Damaged { reason, .. } => reason.contains("is missing"),
        _ => false,
    };
    assert!(empty.files.iter().all(|file| missing(&file.state)));
}
