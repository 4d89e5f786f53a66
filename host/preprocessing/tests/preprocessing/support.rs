//! Helpers that the tests share.

use std::path::PathBuf;

use shardwright_preprocessing::PreprocessingError;

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
pub fn refused<T: std::fmt::Debug>(result: Result<T, PreprocessingError>) -> PreprocessingError {
    let error = result.expect_err("a refusal");
    assert!(!error.to_string().is_empty() && !error.help().is_empty());
    error
}

/// Asserts the variant of an error.
macro_rules! assert_refused {
    ($result:expr, $variant:ident $($fields:tt)*) => {{
        let error = crate::support::refused($result);
        assert!(
            matches!(&error, shardwright_preprocessing::PreprocessingError::$variant $($fields)*),
            "{error:?}"
        );
        error
    }};
}
pub(crate) use assert_refused;
