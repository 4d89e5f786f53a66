//! Converts the bytes of `bundle.json` to a consistent manifest, and back.

use std::path::Path;

use shardwright_vocabulary::{At, Error, Result, UniqueKeys};

use super::Manifest;
use crate::error::{FOREIGN, beyond, printable};
use crate::{Digest, envelope};

/// Largest manifest that is read, in bytes. A large decoder whose every operation was decomposed,
/// in four chains of forty shards, needs about 4 MiB. Parsing uses a small multiple of it in
/// memory.
pub(crate) const MANIFEST_BYTES: u64 = 16 << 20;

/// Returns the bytes of a consistent manifest, and their hash. `path` is for messages.
pub(crate) fn canonical(path: &Path, manifest: &Manifest) -> Result<(Vec<u8>, Digest)> {
    manifest.check(path)?;
    let json = to_json(path, manifest)?;
    let (bytes, sum) = envelope::seal(&json);
    let value = bytes.len() as u64;
    if value > MANIFEST_BYTES {
        return Err(beyond(path, "bytes of the manifest", value, MANIFEST_BYTES));
    }
    Ok((bytes, sum))
}

/// Parses and checks the bytes of `bundle.json`. `path` is for messages.
pub(crate) fn parse(path: &Path, bytes: &[u8]) -> Result<(Manifest, Digest)> {
    let (json, start, sum) = envelope::unseal(bytes).at(path.display())?;
    let refused = |error: serde_json::Error| {
        let offset = start + offset_of(json, error.line(), error.column());
        syntax(path, offset, cut(&error.to_string()))
    };
    let manifest: Manifest = serde_json::from_slice(json).map_err(refused)?;
    let canonical = to_json(path, &manifest)?;
    if canonical != json {
        // Maps keep the last of two equal keys, so only the spelling differs.
        let UniqueKeys = serde_json::from_slice(json).map_err(refused)?;
        let equal = canonical.iter().zip(json).take_while(|(one, other)| one == other).count();
        return Err(syntax(path, start + equal, "not in canonical spelling"));
    }
    manifest.check(path)?;
    Ok((manifest, sum))
}

fn to_json(path: &Path, manifest: &Manifest) -> Result<Vec<u8>> {
    serde_json::to_vec(manifest).map_err(|error| syntax(path, 0, error.to_string()))
}

/// The manifest is not JSON of this form.
fn syntax(path: &Path, offset: usize, reason: impl Into<String>) -> Error {
    Error::invalid(reason).at(format_args!("offset {offset}")).at(path.display()).with_help(FOREIGN)
}

/// Converts a line and column, both counted from one, to a byte offset within the text.
fn offset_of(json: &[u8], line: usize, column: usize) -> usize {
    let mut lines = json.iter().enumerate().filter(|(_, byte)| **byte == b'\n').map(|(at, _)| at + 1);
    let start = match line {
        0 | 1 => 0,
        _ => lines.nth(line - 2).unwrap_or(0),
    };
    (start + column.saturating_sub(1)).min(json.len())
}

/// Removes the position from the parser's message, and truncates it, since it may quote a megabyte.
fn cut(message: &str) -> String {
    const QUOTED_CHARS: usize = 200;
    let reason = message.rsplit_once(" at line ").map_or(message, |(reason, _)| reason);
    match reason.char_indices().nth(QUOTED_CHARS) {
        Some((end, _)) => printable(&format!("{} …", &reason[..end])),
        None => printable(reason),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_of_a_parser_become_offsets() {
        for (line, column, offset) in
            [(1, 1, 0), (1, 3, 2), (2, 1, 4), (3, 2, 7), (0, 0, 0), (9, 9, 8), (2, 99, 9)]
        {
            assert_eq!(offset_of(b"abc\nd\nefg", line, column), offset, "{line}:{column}");
        }
    }

    #[test]
    fn a_long_quotation_is_cut() {
        assert!(cut(&"é".repeat(10_000)).len() < 1000);
        assert_eq!(cut("short \u{1b}[2J at line 1 column 7"), "short \\u{1b}[2J");
    }
}
