//! Helpers that the tests share.

use std::path::PathBuf;

use shardwright_vocabulary::{Error, ErrorKind, Result};

/// Reads a file from the folder of the tests.
#[cfg_attr(not(any(feature = "pictures", feature = "sounds")), expect(dead_code, reason = "files of both"))]
pub fn file(name: &str) -> Vec<u8> {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/preprocessing/files").join(name);
    std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns the path of the checkpoint with towers.
pub fn fixture() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/gemma4_mm")
}

/// Returns the error. Asserts that it has a message and help.
#[track_caller]
pub fn refused<T: std::fmt::Debug>(result: Result<T>) -> Error {
    let error = result.expect_err("a refusal");
    assert!(!error.message().is_empty() && error.help().is_some_and(|help| !help.is_empty()));
    error
}

/// Returns the error. Asserts its kind and a part of its text.
#[track_caller]
pub fn assert_refused<T: std::fmt::Debug>(result: Result<T>, kind: ErrorKind, words: &str) -> Error {
    let error = refused(result);
    assert!(error.kind() == kind && error.to_string().contains(words), "{error:?}");
    error
}
