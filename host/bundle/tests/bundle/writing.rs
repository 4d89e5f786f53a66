//! Writing, resuming, and extending a complete bundle.

use std::fs;
use std::io::{self, Read};

use shardwright_bundle::{Bundle, BundleWriter, Digest, FileReference, Verification};
use shardwright_graph::{Asset, WeightData};
use shardwright_vocabulary::ErrorKind;

use crate::support::{RECIPE, Recipe, fill, noise, place, snapshot, tables, write};

#[test]
fn files_lie_under_their_content_once() {
    let (parent, directory) = place();
    let mut writer = BundleWriter::create(&directory).unwrap();
    let bytes = noise(7, 3 << 20);
    let reference = writer.add_bytes(&bytes).unwrap();
    assert_eq!(reference, FileReference { sha256: Digest::of(&bytes), bytes: bytes.len() as u64 });
    let source = parent.path().join("source");
    fs::write(&source, &bytes).unwrap();
    assert_eq!(writer.add_path(&source).unwrap(), reference);
    // A reader that returns pieces of any size, with interruptions.
    struct Trickle<'a>(&'a [u8], u32);
    impl Read for Trickle<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.1 += 1;
            if self.1.is_multiple_of(3) {
                return Err(io::ErrorKind::Interrupted.into());
            }
            let count = into.len().min(self.0.len()).min(65_537);
            into[..count].copy_from_slice(&self.0[..count]);
            self.0 = &self.0[count..];
            Ok(count)
        }
    }
    assert_eq!(writer.add_reader(Trickle(&bytes, 0)).unwrap(), reference);
    assert_eq!(fs::read(writer.path(&reference)).unwrap(), bytes);
    assert_eq!(fs::read_dir(directory.join("files")).unwrap().count(), 1);
    assert_eq!(fs::read(&source).unwrap(), bytes, "the source is left as it is");

    struct Broken;
    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("the disk is on fire"))
        }
    }
    let error = writer.add_reader((&b"half"[..]).chain(Broken)).unwrap_err();
    assert!(error.kind() == ErrorKind::Missing && error.to_string().contains("on fire"), "{error}");
    assert_eq!(fs::read_dir(directory.join("files")).unwrap().count(), 1, "half a file is no file");
    assert_eq!(writer.add_bytes(b"").unwrap(), FileReference { sha256: Digest::of(b""), bytes: 0 });
}

#[cfg(unix)]
#[test]
fn others_may_read_what_is_written() {
    use std::os::unix::fs::PermissionsExt;
    let (_parent, directory) = place();
    let mut writer = BundleWriter::create(&directory).unwrap();
    let mut manifest = fill(&mut writer, RECIPE).unwrap();
    let private = writer.staging().unwrap().join("private");
    fs::write(&private, "made for oneself").unwrap();
    fs::set_permissions(&private, fs::Permissions::from_mode(0o600)).unwrap();
    manifest.variants[0].chains[0].shards[0].artefact = writer.adopt(&private).unwrap();
    let bundle = writer.finish(&manifest).unwrap();
    // With the permissions of any file of this process.
    let usual = directory.join("usual");
    fs::write(&usual, "").unwrap();
    let mode = |path: &std::path::Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    let chain = &bundle.variant().chains[0];
    let [plan, artefact] =
        [chain.plan, chain.shards[0].artefact].map(|file| bundle.place(&file).unwrap().path);
    for path in [directory.join("bundle.json"), plan, artefact] {
        assert_eq!(mode(&path), mode(&usual), "{}", path.display());
    }
}

#[test]
fn a_damaged_file_is_replaced_by_a_writer_that_adds_it_again() {
    let (_parent, directory) = place();
    let bundle = write(&directory, RECIPE).unwrap();
    let whole = snapshot(&directory);
    for reference in [bundle.variant().chains[0].plan, bundle.variant().chains[0].shards[0].artefact] {
        let path = bundle.place(&reference).unwrap().path;
        for damage in [vec![0; reference.bytes as usize], vec![1, 2, 3]] {
            fs::write(&path, damage).unwrap();
            write(&directory, RECIPE).unwrap();
            assert_eq!(snapshot(&directory), whole);
        }
    }
}

#[test]
fn a_file_recorded_under_a_key_is_found_again_while_it_is_intact() {
    let (_parent, directory) = place();
    let mut writer = BundleWriter::create(&directory).unwrap();
    let reference = writer.add_bytes(b"dear").unwrap();
    writer.remember("the dear thing", reference).unwrap();
    assert_eq!(writer.recall("the dear thing"), Some(reference));
    drop(writer);

    let mut writer = BundleWriter::create(&directory).unwrap();
    assert_eq!(writer.recall("another thing"), None);
    assert_eq!(writer.recall("the dear thing"), Some(reference));
    let path = directory.join("files").join(reference.sha256.to_string());
    fs::write(&path, "DEAR").unwrap();
    assert_eq!(writer.recall("the dear thing"), None, "it was changed");
    fs::remove_file(&path).unwrap();
    assert_eq!(writer.recall("the dear thing"), None, "it is gone");
}

#[test]
fn staging_is_kept_until_the_end_and_adopts_its_own_only() {
    let (parent, directory) = place();
    let mut writer = BundleWriter::create(&directory).unwrap();
    let staging = writer.staging().unwrap();
    fs::write(staging.join("half-way"), "kept").unwrap();
    fs::write(staging.join(".writing-abc"), "half-written").unwrap();
    let outside = parent.path().join("outside");
    fs::write(&outside, "mine").unwrap();
    for path in [outside.clone(), staging.join("../../outside"), directory.join("bundle.json")] {
        let error = writer.adopt(&path).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert_eq!(error.message(), "not in the staging folder");
    }
    assert!(writer.adopt(staging.join("nothing")).unwrap_err().is_not_found());
    drop(writer);

    let mut writer = BundleWriter::create(&directory).unwrap();
    assert_eq!(fs::read(staging.join("half-way")).unwrap(), b"kept");
    assert!(!staging.join(".writing-abc").exists());
    let adopted = writer.adopt(staging.join("half-way")).unwrap();
    assert_eq!(adopted.sha256, Digest::of(b"kept"));
    assert!(!staging.join("half-way").exists(), "it was moved");
    fs::create_dir(staging.join("folder")).unwrap();
    fs::write(staging.join("folder/more"), "scratch").unwrap();
    let manifest = fill(&mut writer, RECIPE).unwrap();
    writer.finish(&manifest).unwrap();
    assert!(!staging.exists());
    assert_eq!(fs::read(&outside).unwrap(), b"mine");
}

#[test]
fn a_writer_without_files_leaves_nothing_behind() {
    let (_parent, directory) = place();
    let writer = || BundleWriter::create(&directory).unwrap();
    for is_there in [false, true] {
        if is_there {
            fs::create_dir(&directory).unwrap();
        }
        writer().staging().unwrap();
        assert_eq!(directory.exists(), is_there, "a directory of the caller stays");
    }
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 0);

    // A file in the staging folder, an added file or a bundle keeps everything.
    let open = writer();
    let scratch = open.staging().unwrap().join("half-way");
    fs::write(&scratch, "kept").unwrap();
    drop(open);
    drop(writer());
    assert_eq!(fs::read(&scratch).unwrap(), b"kept");
    fs::remove_file(&scratch).unwrap();
    writer().add_bytes(b"kept").unwrap();
    drop(writer());
    assert!(directory.join(".unfinished").is_file() && directory.join("files").is_dir());
    write(&directory, RECIPE).unwrap();
    let whole = snapshot(&directory);
    drop(writer());
    let mut after = snapshot(&directory);
    after.remove(std::path::Path::new(".unfinished"));
    assert_eq!(after, whole);
}

#[test]
fn a_directory_has_one_writer_at_a_time() {
    let (_parent, directory) = place();
    let writer = BundleWriter::create(&directory).unwrap();
    let error = BundleWriter::create(&directory).unwrap_err();
    assert!(error.kind() == ErrorKind::Argument && error.help().is_some(), "{error}");
    assert!(error.message().contains("being written by another process"), "{error}");
    drop(writer);
    write(&directory, RECIPE).unwrap();
}

#[test]
fn a_manifest_names_only_files_that_exist() {
    let (_parent, directory) = place();
    let mut writer = BundleWriter::create(&directory).unwrap();
    let mut manifest = fill(&mut writer, RECIPE).unwrap();
    manifest.variants[0].chains[0].plan = FileReference { sha256: Digest::of(b"never added"), bytes: 11 };
    let error = writer.finish(&manifest).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Internal);
    assert!(error.place().is_some_and(|place| place.ends_with(": variants[0].chains[0].plan")), "{error}");
    assert!(error.message().ends_with("of 11 bytes"), "{error}");
    let error = Bundle::open(&directory).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Missing);
    assert!(error.to_string().contains("not finished") && error.help().unwrap().contains("again"));

    // A file with another content or length counts as missing.
    let path = directory.join("files").join(manifest.variants[0].chains[0].plan.sha256.to_string());
    for (bytes, wrong_length) in [("another one", false), ("short", true)] {
        fs::write(&path, bytes).unwrap();
        let error = BundleWriter::create(&directory).unwrap().finish(&manifest).unwrap_err();
        let words = if wrong_length { "expected 11 bytes, got 5" } else { "expected SHA-256" };
        assert!(error.message().contains(words), "{error}");
    }
    // An existing file that this writer has not seen is hashed and accepted.
    fs::write(&path, "never added").unwrap();
    let bundle = BundleWriter::create(&directory).unwrap().finish(&manifest).unwrap();
    bundle.verify_all(|_| ()).unwrap();
}

#[test]
fn a_contradiction_is_not_written() {
    let (_parent, directory) = place();
    let whole = write(&directory, RECIPE).unwrap();
    let before = snapshot(&directory);
    let writer = BundleWriter::create(&directory).unwrap();
    let mut manifest = writer.previous().unwrap().clone();
    manifest.variants[0].chains[0].shards.clear();
    let error = writer.finish(&manifest).unwrap_err();
    assert!(error.place().is_some_and(|place| place.ends_with(": variants[0].chains[0].shards")), "{error}");
    let mut after = snapshot(&directory);
    after.remove(std::path::Path::new(".unfinished")).unwrap();
    assert_eq!(after, before, "the bundle from before is still there");
    assert_eq!(Bundle::open(&directory).unwrap().sha256(), whole.sha256());
}

#[test]
fn a_result_can_be_added_later() {
    let (_parent, directory) = place();
    let before = write(&directory, RECIPE).unwrap();
    let mut writer = BundleWriter::create(&directory).unwrap();
    let mut manifest = writer.previous().unwrap().clone();
    manifest.variants[0].verifications.push(Verification {
        name: "goldens".to_owned(),
        chain: "cpu".to_owned(),
        passed: false,
        summary: "layer 1 differs".to_owned(),
        report: writer.add_bytes(b"{\"layer\":1}").unwrap(),
        twin: None,
    });
    let after = writer.finish(&manifest).unwrap();
    assert_ne!(after.sha256(), before.sha256());
    assert_eq!(after.variant().verifications.len(), 2);
    after.verify_all(|_| ()).unwrap();
    assert!(after.unreferenced().unwrap().is_empty());
}

#[test]
fn unreferenced_files_are_removed_and_those_of_others_are_not() {
    let (_parent, directory) = place();
    write(&directory, RECIPE).unwrap();
    let kept = [directory.join("files/notes.txt"), directory.join("files/folder")];
    fs::write(&kept[0], "mine").unwrap();
    fs::create_dir(&kept[1]).unwrap();
    let other = Recipe { seed: 9, layers: 1, fallback: false };
    let bundle = write(&directory, other).unwrap();
    let strays: Vec<_> = bundle.unreferenced().unwrap().into_iter().map(|stray| stray.name).collect();
    assert_eq!(strays, ["files/folder", "files/notes.txt"]);
    assert!(kept[0].is_file() && kept[1].is_dir());
    fs::remove_file(&kept[0]).unwrap();
    fs::remove_dir(&kept[1]).unwrap();
    let (_second, fresh) = place();
    write(&fresh, other).unwrap();
    assert_eq!(snapshot(&directory), snapshot(&fresh));
}

#[test]
fn a_reader_keeps_what_it_has_mapped_while_the_bundle_is_replaced() {
    let (_parent, directory) = place();
    let bundle = write(&directory, RECIPE).unwrap();
    let shard = bundle.variant().chains[0].shards[0].clone();
    let map = bundle.map(&shard.artefact).unwrap();
    let bytes = map.to_vec();
    write(&directory, Recipe { seed: 9, layers: 1, fallback: false }).unwrap();
    assert_eq!(&map[..], bytes);
    drop(map);
    assert!(bundle.map(&shard.artefact).unwrap_err().message().ends_with("` is missing"));
}

#[test]
fn tables_that_are_no_tables_are_refused() {
    let (_parent, directory) = place();
    let mut writer = BundleWriter::create(&directory).unwrap();
    let [table, _] = tables();
    let mut planned = table.clone();
    planned.table.data = WeightData::planned(18);
    let mut scaleless = table.clone();
    scaleless.table.quantisation.as_mut().unwrap().scales = WeightData::planned(24);
    let mut vector = table;
    vector.table.shape = vec![30];
    for (asset, said) in [(planned, "values"), (scaleless, "scales"), (vector, "two dimensions")] {
        let asset: Asset = asset;
        let error = writer.add_asset(&asset).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.to_string().contains(said) && error.to_string().contains("`embedding`"), "{error}");
    }
}
