//! Directories that other programs wrote or changed.

use std::fs;
use std::path::Path;

use shardwright_bundle::{
    Bundle, BundleWriter, Digest, Examine, FileReference, FileState, Kind, TextFile, identify, inspect,
    is_bundle,
};
use shardwright_trust::Trust;
use shardwright_vocabulary::{Error, ErrorKind};

use crate::support::{RECIPE, checkpoint, files, place, write};

/// Returns the error of opening. The inspection must report the same error for the file.
fn refusal(directory: &Path) -> Error {
    let error = Bundle::open(directory).unwrap_err();
    assert!(error.help().is_some(), "{error}");
    let inspection = inspect(directory, Examine::Presence, &Trust::off(), |_| ()).unwrap();
    let said = inspection
        .files
        .iter()
        .any(|file| matches!(&file.state, FileState::Damaged { reason, .. } if *reason == error.to_string()));
    assert!(said && inspection.intact == Some(false), "{error}");
    error
}

/// Checks that `error` reports that `found` is in the place of another kind of file.
fn expect_other_kind(error: &Error, found: &str) {
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let (message, got) = (error.message(), format!("got {found}"));
    assert!(message.ends_with(&got) || message.starts_with(&format!("{found}, not a")), "{error}");
}

#[test]
fn missing_and_cut_and_longer_files_are_refused() {
    let (_parent, directory) = place();
    write(&directory, RECIPE).unwrap();
    for path in files(&directory) {
        let bytes = fs::read(&path).unwrap();
        fs::remove_file(&path).unwrap();
        let error = refusal(&directory);
        assert_eq!((error.kind(), error.place()), (ErrorKind::Invalid, path.to_str()));
        let used_as = error.message().strip_prefix("the file for `");
        let used_as = used_as.and_then(|rest| rest.strip_suffix("` is missing"));
        assert!(used_as.is_some_and(|used_as| !used_as.is_empty()), "{error}");

        for length in [0, bytes.len() - 1, bytes.len() + 1] {
            let mut changed = bytes.clone();
            changed.resize(length, 0);
            fs::write(&path, &changed).unwrap();
            let error = refusal(&directory);
            assert_eq!((error.kind(), error.place()), (ErrorKind::Invalid, path.to_str()));
            assert_eq!(error.message(), format!("expected {} bytes, got {length}", bytes.len()));
        }
        fs::write(&path, &bytes).unwrap();
    }
    fs::remove_dir_all(directory.join("files")).unwrap();
    assert!(refusal(&directory).message().ends_with("` is missing"));
    fs::write(directory.join("files"), "no folder").unwrap();
    expect_other_kind(&refusal(&directory), "a regular file");
}

#[test]
fn anything_but_a_regular_file_is_refused_and_nothing_hangs() {
    let (_parent, directory) = place();
    write(&directory, RECIPE).unwrap();
    let path = files(&directory).remove(0);
    let bytes = fs::read(&path).unwrap();
    let expect = |found: &str| {
        let error = refusal(&directory);
        assert_eq!(error.place(), path.to_str());
        expect_other_kind(&error, found);
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
        assert_eq!(refusal(&directory).message(), "expected a directory, got a symbolic link");
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
    assert!(open().is_not_found(), "a directory that is not there");
    assert!(BundleWriter::create(directory.join("deeper")).unwrap_err().is_not_found());
    fs::create_dir(&directory).unwrap();
    let error = open();
    assert_eq!(error.kind(), ErrorKind::Missing);
    assert_eq!(error.message(), "not a bundle: `bundle.json` is missing");
    assert!(error.help().unwrap().contains("compile"));
    // A copy of a bundle without its manifest.
    fs::create_dir(directory.join("files")).unwrap();
    let part = directory.join("files").join(Digest::of(b"part").to_string());
    fs::write(&part, "part").unwrap();
    let error = open();
    assert!(error.kind() == ErrorKind::Missing && error.help().is_some());
    assert_eq!(error.message(), "incomplete copy of a bundle: `bundle.json` is missing");
    assert!(identify(&directory).unwrap() == Kind::Bundle && is_bundle(&directory));
    fs::remove_dir_all(directory.join("files")).unwrap();

    let path = directory.join("bundle.json");
    for (bytes, offset) in [(&b""[..], 0), (b"{}", 1), (b"{\"shardwright-bundle\":\"1\"}", 22)] {
        fs::write(&path, bytes).unwrap();
        let error = open();
        assert_eq!((error.kind(), error.place()), (ErrorKind::Invalid, path.to_str()));
        assert!(error.message().ends_with(&format!("wrong first bytes at offset {offset}")), "{error}");
    }
    fs::write(&path, b"{\"shardwright-bundle\":7,").unwrap();
    assert!(open().kind() == ErrorKind::Incompatible && open().message().ends_with("got 7"), "{}", open());
    // Larger than the memory of this machine, but sparse.
    fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(1 << 40).unwrap();
    assert!(open().kind() == ErrorKind::Invalid && open().message().contains("more than"), "{}", open());
    fs::remove_file(&path).unwrap();

    fs::create_dir(&path).unwrap();
    expect_other_kind(&open(), "a directory");
    fs::remove_dir(&path).unwrap();
    #[cfg(unix)]
    {
        pipe(&path);
        expect_other_kind(&open(), "a pipe");
        fs::remove_file(&path).unwrap();
        for target in ["bundle.json", "/dev/zero", "nowhere"] {
            std::os::unix::fs::symlink(target, &path).unwrap();
            expect_other_kind(&open(), "a symbolic link");
            fs::remove_file(&path).unwrap();
        }
    }
    let file = directory.join("file");
    fs::write(&file, "x").unwrap();
    expect_other_kind(&Bundle::open(&file).unwrap_err(), "another file");
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
            assert!(error.kind() == ErrorKind::Internal && error.help().is_some(), "{error}");
        }
    }
    // A file was removed after opening.
    fs::remove_file(bundle.place(&known).unwrap().path).unwrap();
    let error = bundle.read(&known).unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.message().ends_with("` is missing"), "{error}");
}

#[test]
fn a_directory_of_another_program_is_not_written_to() {
    for name in ["notes.txt", ".git", "files", "model.safetensors", "bundle.json.bak", "\u{1b}[2J"] {
        let (_parent, directory) = place();
        fs::create_dir(&directory).unwrap();
        fs::create_dir(directory.join(name)).unwrap();
        let error = BundleWriter::create(&directory).unwrap_err();
        assert!(error.kind() == ErrorKind::Argument && error.help().is_some(), "{error}");
        assert!(error.message().starts_with("neither empty nor a bundle"), "{error}");
        assert!(!error.to_string().contains('\u{1b}'));
        assert_eq!(fs::read_dir(&directory).unwrap().count(), 1, "nothing is added");
    }
    let (_parent, directory) = place();
    fs::create_dir(&directory).unwrap();
    fs::write(directory.join("bundle.json"), "{\"name\":\"webpack\"}").unwrap();
    let error = BundleWriter::create(&directory).unwrap_err();
    assert!(error.message().ends_with("wrong first bytes at offset 0"), "{error}");
    assert_eq!(fs::read_dir(&directory).unwrap().count(), 1);

    let file = directory.join("bundle.json");
    let error = BundleWriter::create(&file).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Argument);
    assert!(error.message().contains("got a regular file"), "{error}");
    assert!(error.help().is_some_and(|help| help.contains("no file")), "{error}");
    assert_eq!(fs::read(&file).unwrap(), b"{\"name\":\"webpack\"}");
}

#[cfg(unix)]
#[test]
fn links_and_pipes_in_the_way_of_a_writer_are_refused_and_left_alone() {
    use std::os::unix::fs::symlink;
    for name in ["files", ".staging", ".unfinished", "bundle.json"] {
        let (parent, directory) = place();
        BundleWriter::create(&directory).unwrap().add_bytes(b"unfinished").unwrap();
        let other = parent.path().join("other");
        fs::create_dir(&other).unwrap();
        fs::write(other.join(".writing-mine"), "mine").unwrap();
        let path = directory.join(name);
        match name {
            "files" => fs::remove_dir_all(&path).unwrap(),
            ".unfinished" => fs::remove_file(&path).unwrap(),
            _ => {}
        }
        symlink(&other, &path).unwrap();
        let error = BundleWriter::create(&directory).unwrap_err();
        let is_occupied = error.message().starts_with("neither empty nor a bundle");
        assert!(is_occupied || error.message().contains("a symbolic link"), "{name}: {error}");
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
    assert_eq!(error.kind(), ErrorKind::Argument);
    assert!(error.message().contains("got a symbolic link"), "{error}");
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
    expect_other_kind(&writer.add_texts(&source).unwrap_err(), "a pipe");
    expect_other_kind(&writer.add_path(&path).unwrap_err(), "a pipe");
    expect_other_kind(&writer.add_path("/dev/zero").unwrap_err(), "a device");
    fs::remove_file(&path).unwrap();
    fs::File::create(&path).unwrap().set_len(1 << 40).unwrap();
    let error = writer.add_texts(&source).unwrap_err();
    assert!(error.kind() == ErrorKind::Invalid && error.message().contains("more than"), "{error}");
}
