//! Errors that several files of this crate return.

use std::fmt::Display;
use std::io;
use std::path::Path;

use shardwright_vocabulary::{Error, ErrorKind};

use crate::{Digest, Manifest};

/// Help for a manifest that this program would not write.
pub(crate) const FOREIGN: &str = "the bundle was not written by this program; compile it again";

/// Help for entries other than regular files.
const PLAIN_FILES: &str = "a bundle consists of regular files; copy it again without links";

/// Adds the path to an error of the operating system.
pub(crate) fn io_at(path: &Path) -> impl Fn(io::Error) -> Error + Copy {
    move |error| file_at(path, error.into())
}

/// Adds the path to an error of opening or reading a file.
pub(crate) fn file_at(path: &Path, error: Error) -> Error {
    let error = error.at(path.display());
    match error.kind() {
        ErrorKind::Invalid => error.with_help(PLAIN_FILES),
        _ if error.is_not_found() => error.or_help("check the path"),
        _ => error.or_help("check the path, the permissions and the free space"),
    }
}

/// The path is not a regular file or directory as expected.
pub(crate) fn other_kind(path: &Path, expected: &str, found: &str) -> Error {
    Error::invalid(format!("expected {expected}, got {found}")).at(path.display()).with_help(PLAIN_FILES)
}

/// A value exceeds the limits of this host.
pub(crate) fn beyond(path: &Path, field: &str, value: u64, limit: u64) -> Error {
    inconsistent(path, field, too_large(value, limit))
}

pub(crate) fn too_large(value: u64, limit: u64) -> String {
    format!("expected at most {limit}, got {value}")
}

/// A field of the manifest contradicts itself or another.
pub(crate) fn inconsistent(path: &Path, field: impl Display, reason: impl Into<String>) -> Error {
    Error::invalid(reason).at(field).at(path.display()).with_help(FOREIGN)
}

/// The bytes changed after they were written.
pub(crate) fn damaged(message: impl Into<String>) -> Error {
    Error::invalid(message)
        .with_help("copy the bundle again from its source, or compile it again into the same directory")
}

pub(crate) fn wrong_length(path: &Path, expected: u64, found: u64) -> Error {
    damaged(format!("expected {expected} bytes, got {found}")).at(path.display())
}

pub(crate) fn wrong_hash(expected: Digest, found: Digest) -> Error {
    damaged(format!("damaged: expected SHA-256 {expected}, got {found}"))
}

/// The file does not have the layout of a packed bundle.
pub(crate) fn not_packed(path: &Path, offset: u64, reason: impl Into<String>) -> Error {
    Error::invalid(reason).at(format_args!("offset {offset}")).at(path.display()).with_help(
        "copy the file again from its source, or pack the bundle again; in an app's package store it \
         uncompressed",
    )
}

/// The file is not part of this bundle.
pub(crate) fn unknown_file(sha256: Digest, bytes: u64) -> Error {
    Error::internal(format!("the bundle has no file {sha256} of {bytes} bytes"))
        .with_help("report this: a file was requested that was never added")
}

/// The requested variant is missing, or none was requested and there are several.
pub(crate) fn no_variant(path: &Path, requested: Option<&str>, manifest: &Manifest) -> Error {
    let socs: Vec<&str> = manifest.variants.iter().map(|variant| variant.soc.as_str()).collect();
    let problem = match requested {
        Some(soc) => format!("no variant for `{soc}`"),
        None => "several variants, but no chip was named".to_owned(),
    };
    Error::argument(format!("{problem}; the variants are for {}", socs.join(", ")))
        .at(path.display())
        .with_help("name the chip with `--soc`")
}

/// Another process is writing at this path.
pub(crate) fn busy(path: &Path) -> Error {
    Error::argument("being written by another process")
        .at(path.display())
        .with_help("wait until the other process is done, or name another path")
}

/// Escapes control characters of text from a file or a directory, since such names could overwrite
/// the terminal.
pub(crate) fn printable(text: &str) -> String {
    let mut shown = String::with_capacity(text.len());
    for character in text.chars() {
        match character.is_control() {
            true => shown.extend(character.escape_debug()),
            false => shown.push(character),
        }
    }
    shown
}
