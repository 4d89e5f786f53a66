//! Directories that other programs wrote or changed.

use std::fs;
use std::path::Path;

use shardwright_bundle::{
    Bundle, BundleError, BundleWriter, Digest, Examine, FileReference, FileState, Kind, TextFile, identify,
    inspect, is_bundle,
};
use shardwright_files::output::OutputError;
use shardwright_trust::Trust;

use crate::support::{RECIPE, checkpoint, files, place, write};

/// Returns the error of opening. The inspection must report the same error for the file.
fn refusal(directory: &Path) -> BundleError {
    let error = Bundle::open(directory).unwrap_err();
    assert!(error.help().is_some(), "{error}");
    let inspection = inspect(directory, Examine::Presence, &Trust::off(), |_| ()).unwrap();
    let said = inspection
        .files
        .iter()
        .any(|file| matches!(&file.state, FileState::Damaged { reason } if *reason == error.to_string()));
    assert!(said && !inspection.intact, "{error}");
    error
}

#[test]
fn missing_and_cut_and_longer_files_are_refused() {
    let (_parent, directory) = place();
    write(&directory, RECIPE).unwrap();
    for path in files(&directory) {
        let bytes = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let error = refusal(&directory);
        let BundleError::Missing { path: found, used_as } = &error else { panic!("{error}") };
        assert!(*found == path && !used_as.is_empty() && error.is_damage());

        for length in [0, bytes.len() - 1, bytes.len() + 1] {
            let mut changed = bytes.clone();
            changed.resize(length, 0);
            fs::write(&path, &changed).unwrap();
            let error = refusal(&directory);
            let BundleError::Length { path: at, expected, found } = &error else { panic!("{error}") };
            assert_eq!((at, *expected, *found), (&path, bytes.len() as u64, length as u64));
        }
        fs::write(&path, &bytes).unwrap();
    }
    fs::remove_dir_all(directory.join("files")).unwrap();
    assert!(matches!(refusal(&directory), BundleError::Missing { .. }));
    fs::write(directory.join("files"), "no folder").unwrap();
    assert!(matches!(refusal(&directory), BundleError::Kind { found: "a regular file", .. }));
}

#[test]
fn anything_but_a_regular_file_is_refused_and_nothing_hangs() {
    let (_parent, directory) = place();
    write(&directory, RECIPE).unwrap();
    let path = files(&directory).remove(0);
    let bytes = fs::read(&path).unwrap();
    let expect = |found: &str| {
        let error = refusal(&directory);
        let BundleError::Kind { path: at, found: kind, .. } = &error else { panic!("{error}") };
        assert_eq!((at.as_path(), *kind), (path.as_path(), found));
    };
    fs::remove_file(&path).unwrap();
    fs::create_dir(&path).unwrap();
    expect("a directory");
    fs::remove_dir(&path).unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::symlink;
        use std::os::unix::net::UnixListener;

        // Even a link to the right bytes is rejected: a bundle consists of the files in its
        // directory.
        let elsewhere = directory.with_file_name("elsewhere");
        fs::write(&elsewhere, &bytes).unwrap();
        for target in [elsewhere.as_path(), path.as_path(), Path::new("nowhere"), Path::new("/dev/zero")] {
            symlink(target, &path).unwrap();
            expect("a symbolic link");
            fs::remove_file(&path).unwrap();
        }
        pipe(&path);
        expect("a pipe");
        fs::remove_file(&path).unwrap();
        // Socket paths must be short, so it is renamed afterwards.
        let short = tempfile::tempdir().unwrap();
        let socket = UnixListener::bind(short.path().join("s")).unwrap();
        if fs::rename(short.path().join("s"), &path).is_ok() {
            expect("a socket");
            fs::remove_file(&path).unwrap();
        }
        drop(socket);

        fs::write(&path, &bytes).unwrap();
        Bundle::open(&directory).unwrap();
        let folder = directory.join("files");
        let other = directory.with_file_name("other");
        fs::rename(&folder, &other).unwrap();
        symlink(&other, &folder).unwrap();
        assert!(matches!(
            refusal(&directory),
            BundleError::Kind { expected: "a directory", found: "a symbolic link", .. }
        ));
    }
}

#[cfg(unix)]
fn pipe(path: &Path) {
    assert!(std::process::Command::new("mkfifo").arg(path).status().unwrap().success());
}

#[test]
fn an_invalid_manifest_is_refused() {
    let (_parent, directory) = place();
    let open = || Bundle::open(&directory).unwrap_err();
    assert!(matches!(open(), BundleError::Io { .. }), "a directory that is not there");
    assert!(matches!(BundleWriter::create(directory.join("deeper")), Err(BundleError::Io { .. })));
    fs::create_dir(&directory).unwrap();
    let error = open();
    assert!(matches!(&error, BundleError::NoManifest { unfinished: false, .. }), "{error}");
    assert!(error.help().unwrap().contains("compile"));
    // A copy of a bundle without its manifest.
    fs::create_dir(directory.join("files")).unwrap();
    let part = directory.join("files").join(Digest::of(b"part").to_string());
    fs::write(&part, "part").unwrap();
    let error = open();
    assert!(matches!(&error, BundleError::LostManifest { .. }), "{error}");
    assert!(error.to_string().contains("`bundle.json` is missing") && error.help().is_some(), "{error}");
    assert!(identify(&directory).unwrap() == Kind::Bundle && is_bundle(&directory));
    fs::remove_dir_all(directory.join("files")).unwrap();

    let path = directory.join("bundle.json");
    for (bytes, offset) in [(&b""[..], 0), (b"{}", 1), (b"{\"shardwright-bundle\":\"1\"}", 22)] {
        fs::write(&path, bytes).unwrap();
        let BundleError::Magic { offset: found, .. } = open() else { panic!("{}", open()) };
        assert_eq!(found, offset);
    }
    fs::write(&path, b"{\"shardwright-bundle\":7,").unwrap();
    assert!(matches!(open(), BundleError::Version { version: 7, .. }));
    // Larger than the memory of this machine, but sparse.
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
    assert!(matches!(open(), BundleError::Limit { .. }));
    fs::remove_file(&path).unwrap();

    fs::create_dir(&path).unwrap();
    assert!(matches!(open(), BundleError::Kind { found: "a directory", .. }));
    fs::remove_dir(&path).unwrap();
    #[cfg(unix)]
    {
        pipe(&path);
        assert!(matches!(open(), BundleError::Kind { found: "a pipe", .. }));
        fs::remove_file(&path).unwrap();
        for target in ["bundle.json", "/dev/zero", "nowhere"] {
            std::os::unix::fs::symlink(target, &path).unwrap();
            assert!(matches!(open(), BundleError::Kind { found: "a symbolic link", .. }));
            fs::remove_file(&path).unwrap();
        }
    }
    let file = directory.join("file");
    fs::write(&file, "x").unwrap();
    assert!(matches!(Bundle::open(&file), Err(BundleError::Kind { .. })), "a file in place of a directory");
}

#[test]
fn only_files_of_the_bundle_are_returned() {
    let (_parent, directory) = place();
    let bundle = write(&directory, RECIPE).unwrap();
    fs::write(directory.join("files").join(Digest::of(b"stray").to_string()), "stray").unwrap();
    let stray = FileReference { sha256: Digest::of(b"stray"), bytes: 5 };
    let known = bundle.variant().chains[0].plan;
    for reference in [stray, FileReference { bytes: known.bytes + 1, ..known }] {
        for error in [
            bundle.read(&reference).unwrap_err(),
            bundle.place(&reference).unwrap_err(),
            bundle.map(&reference).unwrap_err(),
        ] {
            assert!(matches!(&error, BundleError::Reference { .. }) && error.help().is_some(), "{error}");
        }
    }
    // A file was removed after opening.
    fs::remove_file(bundle.place(&known).unwrap().path).unwrap();
    assert!(matches!(bundle.read(&known), Err(BundleError::Missing { .. })));
}

#[test]
fn a_directory_of_another_program_is_not_written_to() {
    for name in ["notes.txt", ".git", "files", "model.safetensors", "bundle.json.bak", "\u{1b}[2J"] {
        let (_parent, directory) = place();
        fs::create_dir(&directory).unwrap();
        fs::create_dir(directory.join(name)).unwrap();
        let error = BundleWriter::create(&directory).unwrap_err();
        assert!(matches!(&error, BundleError::Occupied { .. }) && error.help().is_some(), "{error}");
        assert!(!error.to_string().contains('\u{1b}'));
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "nothing is added");
    }
    let (_parent, directory) = place();
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("bundle.json"), "{\"name\":\"webpack\"}").unwrap();
    assert!(matches!(BundleWriter::create(&directory), Err(BundleError::Magic { .. })));
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);

    let file = directory.join("bundle.json");
    let error = BundleWriter::create(&file).unwrap_err();
    assert!(
        matches!(error, BundleError::Output(OutputError::Kind { found: "a regular file", .. })),
        "{error}"
    );
    assert!(error.help().is_some_and(|help| help.contains("no file")), "{error}");
    assert_eq!(fs::read(&file).unwrap(), b"{\"name\":\"webpack\"}");
}

#[cfg(unix)]
#[test]
fn links_and_pipes_in_the_way_of_a_writer_are_refused_and_left_alone() {
    use std::os::unix::fs::symlink;
    for name in ["files", ".staging", ".unfinished", "bundle.json"] {
        let (parent, directory) = place();
        drop(BundleWriter::create(&directory).unwrap());
        let other = parent.path().join("other");
        fs::create_dir(&other).unwrap();
        fs::write(other.join(".writing-mine"), "mine").unwrap();
        let path = directory.join(name);
        match name {
            "files" => fs::remove_dir(&path).unwrap(),
            ".unfinished" => fs::remove_file(&path).unwrap(),
            _ => {}
        }
        symlink(&other, &path).unwrap();
        let error = BundleWriter::create(&directory).unwrap_err();
        assert!(matches!(&error, BundleError::Kind { .. } | BundleError::Occupied { .. }), "{name}: {error}");
        assert_eq!(fs::read(other.join(".writing-mine")).unwrap(), b"mine");
        fs::remove_file(&path).unwrap();
        pipe(&path);
        assert!(BundleWriter::create(&directory).is_err());
    }
    // The directory itself may be reached through the user's link.
    let (parent, directory) = place();
    fs::create_dir(&directory).unwrap();
    let link = parent.path().join("link");
    symlink(&directory, &link).unwrap();
    write(&link, RECIPE).unwrap();
    Bundle::open(&directory).unwrap();
    Bundle::open(&link).unwrap();
    let dangling = parent.path().join("dangling");
    symlink(parent.path().join("absent"), &dangling).unwrap();
    let error = BundleWriter::create(&dangling).unwrap_err();
    assert!(
        matches!(error, BundleError::Output(OutputError::Kind { found: "a symbolic link", .. })),
        "{error}"
    );
}

#[cfg(unix)]
#[test]
fn only_finite_regular_files_are_added() {
    let (parent, directory) = place();
    let mut writer = BundleWriter::create(&directory).unwrap();
    let source = parent.path().join("checkpoint");
    checkpoint(&source);
    // Download caches use links.
    std::os::unix::fs::symlink(source.join("README.md"), source.join("generation_config.json")).unwrap();
    let texts = writer.add_texts(&source).unwrap();
    assert_eq!(texts[&TextFile::GenerationConfig].sha256, Digest::of(b"words"));

    let path = source.join("tokenizer.json");
    fs::remove_file(&path).unwrap();
    pipe(&path);
    assert!(matches!(writer.add_texts(&source), Err(BundleError::Kind { found: "a pipe", .. })));
    assert!(matches!(writer.add_path(&path), Err(BundleError::Kind { found: "a pipe", .. })));
    assert!(matches!(writer.add_path("/dev/zero"), Err(BundleError::Kind { found: "a device", .. })));
    fs::remove_file(&path).unwrap();
    fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
    assert!(matches!(writer.add_texts(&source), Err(BundleError::Limit { .. })));
}
