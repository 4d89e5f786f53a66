//! Identification of paths.

use std::fs;

use shardwright_bundle::{BundleWriter, Kind, identify};
use shardwright_vocabulary::ErrorKind;

use crate::support::{RECIPE, checkpoint, place, write};

#[test]
fn files_are_identified_by_their_first_bytes() {
    let (parent, _) = place();
    let path = parent.path().join("file");
    for (bytes, kind) in [
        (&b"SWARTEF\0\x01\0\0\0"[..], Kind::Artefact),
        (b"SWORDER\0", Kind::WorkOrder),
        (b"SWPACK\0\x01more", Kind::PlannerPack),
        (b"\0asm\x0d\0\x01\0", Kind::Planner),
        (b"{\"shardwright-bundle\":1,", Kind::Bundle),
        (b"SWORDER", Kind::Unknown),
        (b"", Kind::Unknown),
        (b"{\"model\":1}", Kind::Unknown),
    ] {
        fs::write(&path, bytes).unwrap();
        let found = identify(&path).unwrap();
        assert_eq!(found, kind, "{}", String::from_utf8_lossy(bytes));
        assert_eq!(serde_json::to_value(found).unwrap(), found.name());
        assert_eq!(found.to_string(), found.name());
    }
    assert!(identify(parent.path().join("nothing")).unwrap_err().is_not_found());
}

#[test]
fn directories_are_identified_by_their_content() {
    let (parent, directory) = place();
    assert_eq!(identify(parent.path()).unwrap(), Kind::Unknown);
    BundleWriter::create(&directory).unwrap().add_bytes(b"unfinished").unwrap();
    assert_eq!(identify(&directory).unwrap(), Kind::UnfinishedBundle);
    write(&directory, RECIPE).unwrap();
    assert_eq!(identify(&directory).unwrap(), Kind::Bundle);
    assert_eq!(identify(directory.join("bundle.json")).unwrap(), Kind::Bundle);
    fs::write(directory.join("bundle.json"), "{\"name\":\"webpack\"}").unwrap();
    assert_eq!(identify(&directory).unwrap(), Kind::Unknown);

    let model = parent.path().join("model");
    checkpoint(&model);
    assert_eq!(identify(&model).unwrap(), Kind::Checkpoint);
    fs::remove_file(model.join("model.safetensors")).unwrap();
    assert_eq!(identify(&model).unwrap(), Kind::Unknown);
}

#[cfg(unix)]
#[test]
fn a_pipe_is_unknown_and_not_waited_for() {
    let (parent, _) = place();
    let pipe = parent.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    assert_eq!(identify(&pipe).unwrap(), Kind::Unknown);
    assert_eq!(identify("/dev/zero").unwrap(), Kind::Unknown);
    let circle = parent.path().join("circle");
    std::os::unix::fs::symlink(&circle, &circle).unwrap();
    assert_eq!(identify(&circle).unwrap_err().kind(), ErrorKind::Missing);
}
