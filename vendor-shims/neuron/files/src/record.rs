//! The Neuron compiler's record near the end of its code: an identifier, a record as JSON, and its
//! options.
//!
//! Observed in three published files and in reports: three texts, each after its length as a 32-bit
//! number and four zero bytes. The record has two spellings: `{"Compiler": "adapter 8.2.28", …}` up
//! to major version 8, and `{"CompilerName": "adapter", "CompilerVersion": "9.2.1", …}` in major
//! version 9. The offset of the texts is not recorded, so the end of the code is searched for the
//! record's first characters.

use std::collections::BTreeMap;

use serde::Serialize;
use shardwright_neuron_adapter::RuntimeVersion;

use crate::Result;
use crate::budget::Budget;
use crate::bytes::Bytes;
use crate::options::{OptionString, OptionsError};

/// Number of bytes at the end of a piece of code that are searched.
pub const SEARCHED: usize = 1 << 20;
/// Maximum length of a record in bytes. Observed records have fewer than a hundred.
const MAX_RECORD: usize = 4096;
/// Maximum number of bytes skipped between texts, because texts may not be aligned.
const MAX_GAP: usize = 16;
/// Maximum length of an option string in bytes.
const MAX_OPTIONS: usize = crate::options::MAX_BYTES;
/// Bytes of the length before a text.
const PREFIX: usize = 8;
/// First characters of the record, in both spellings.
const OPENING: &[u8] = b"{\"Compiler";

/// The compiler's record about itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Compiler {
    /// Name, for example `adapter`.
    pub name: Option<String>,
    /// Version, for example `8.2.28`.
    pub version: Option<String>,
    /// Value of the field `Neuron SHA1`.
    pub build: Option<String>,
    /// Other members of the record. Texts are unchanged, and other values are JSON.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub further: BTreeMap<String, String>,
}

impl Compiler {
    /// Parses the version as three numbers.
    pub fn parsed_version(&self) -> Option<RuntimeVersion> {
        RuntimeVersion::parse(self.version.as_deref()?)
    }

    /// Writes a record in the spelling of the major version.
    pub fn write(name: &str, version: RuntimeVersion, build: &str) -> String {
        match version.major {
            0..9 => format!(r#"{{"Compiler": "{name} {version}", "Neuron SHA1": "{build}"}}"#),
            _ => format!(
                r#"{{"CompilerName": "{name}", "CompilerVersion": "{version}", "Neuron SHA1": "{build}"}}"#
            ),
        }
    }

    /// Parses a record in either spelling. Returns `None` if it is not a JSON object.
    pub fn read(text: &str) -> Option<Compiler> {
        let members: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text).ok()?;
        let mut further: BTreeMap<String, String> = members
            .into_iter()
            .map(|(name, value)| match value {
                serde_json::Value::String(text) => (name, text),
                other => (name, other.to_string()),
            })
            .collect();
        let (mut name, mut version) = (further.remove("CompilerName"), further.remove("CompilerVersion"));
        if let Some(both) = further.remove("Compiler") {
            let (first, second) = match both.split_once(' ') {
                Some((first, second)) => (first.to_owned(), Some(second.to_owned())),
                None => (both, None),
            };
            name.get_or_insert(first);
            if version.is_none() {
                version = second;
            }
        }
        Some(Compiler { name, version, build: further.remove("Neuron SHA1"), further })
    }
}

/// The texts near the end of a piece of code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Trailer {
    /// Offset in the code: of the identifier's length, or of the record's.
    pub start: usize,
    /// Offset of the end in the code.
    pub end: usize,
    /// Identifier, a UUID.
    pub identifier: Option<String>,
    /// The record, or `None` if it is not JSON.
    pub compiler: Option<Compiler>,
    /// The unparsed options.
    pub options: Option<String>,
    /// Number of records. More than one is an anomaly, and the last one is read.
    pub records: usize,
}

impl Trailer {
    /// Parses the options.
    pub fn parsed_options(&self) -> Option<Result<OptionString, OptionsError>> {
        self.options.as_deref().map(OptionString::parse)
    }
}

/// Writes texts, each after its length and four zero bytes.
pub fn texts(texts: &[&str]) -> Vec<u8> {
    let one = |text: &&str| [&(text.len() as u64).to_le_bytes(), text.as_bytes()].concat();
    texts.iter().flat_map(one).collect()
}

/// Searches the end of a piece of code. Returns `None` if there is no record.
///
/// # Errors
///
/// For a file whose search budget is used up.
pub fn search(code: Bytes<'_>, budget: &mut Budget) -> Result<Option<Trailer>> {
    let bytes = code.get();
    let first = bytes.len().saturating_sub(SEARCHED);
    budget.searched((bytes.len() - first) as u64, code.offset(first))?;
    let found = openings(&bytes[first..]);
    let Some(at) = found.last().map(|at| first + at) else { return Ok(None) };
    let window = &bytes[at..bytes.len().min(at + MAX_RECORD)];
    let Some(length) = window.iter().position(|byte| *byte == b'}').map(|last| last + 1) else {
        return Ok(None);
    };
    let compiler = std::str::from_utf8(&window[..length]).ok().and_then(Compiler::read);
    let end = at + length;
    let has_length = prefixed(bytes, at.saturating_sub(PREFIX)) == Some(length) && at >= PREFIX;
    let start = if has_length { at - PREFIX } else { at };
    let mut trailer = Trailer { start, end, identifier: None, compiler, options: None, records: found.len() };
    if let Some((at, text)) = identifier_before(bytes, start) {
        (trailer.start, trailer.identifier) = (at, Some(text));
    }
    if let Some((end, text)) = text_after(bytes, end) {
        (trailer.end, trailer.options) = (end, Some(text));
    }
    Ok(Some(trailer))
}

fn openings(bytes: &[u8]) -> Vec<usize> {
    let mut found = Vec::new();
    let mut from = 0;
    while let Some(at) = bytes[from..].iter().position(|byte| *byte == OPENING[0]) {
        let at = from + at;
        if bytes[at..].starts_with(OPENING) {
            found.push(at);
        }
        from = at + 1;
    }
    found
}

/// Reads the length at `at`, which includes four zero bytes.
fn prefixed(bytes: &[u8], at: usize) -> Option<usize> {
    let prefix: [u8; PREFIX] = bytes.get(at..at.checked_add(PREFIX)?)?.try_into().ok()?;
    let length = u64::from_le_bytes(prefix);
    u32::try_from(length).ok().map(|length| length as usize)
}

/// Returns the offset and text of a UUID with its length. It must end at most [`MAX_GAP`] bytes
/// before `end`.
fn identifier_before(bytes: &[u8], end: usize) -> Option<(usize, String)> {
    const LENGTH: usize = 36;
    (0..=MAX_GAP).find_map(|gap| {
        let start = end.checked_sub(gap + LENGTH + PREFIX)?;
        let text = bytes.get(start + PREFIX..start + PREFIX + LENGTH)?;
        let is_uuid = text.iter().enumerate().all(|(index, byte)| match index {
            8 | 13 | 18 | 23 => *byte == b'-',
            _ => byte.is_ascii_hexdigit(),
        });
        let text = std::str::from_utf8(text).ok()?;
        (prefixed(bytes, start) == Some(LENGTH) && is_uuid).then(|| (start, text.to_owned()))
    })
}

/// Returns the end and content of a printable text with its length. It must start at most
/// [`MAX_GAP`] bytes after `from`.
fn text_after(bytes: &[u8], from: usize) -> Option<(usize, String)> {
    (0..=MAX_GAP).find_map(|gap| {
        let at = from.checked_add(gap)?;
        // Skipped bytes must be zero padding. The first byte of the length is then not one of them,
        // unless the text is empty.
        if gap > 0 && bytes.get(at - 1) != Some(&0) {
            return None;
        }
        let length = prefixed(bytes, at).filter(|length| *length <= MAX_OPTIONS)?;
        let start = at + PREFIX;
        let text = bytes.get(start..start.checked_add(length)?)?;
        let is_printable = text.iter().all(|byte| (0x20..0x7f).contains(byte));
        let is_text = is_printable && (gap == 0 || length > 0);
        is_text.then(|| (start + length, String::from_utf8_lossy(text).into_owned()))
    })
}

/// Lists options whose values are paths, and so reveal the machine on which the code was compiled.
pub fn paths(options: &OptionString) -> Vec<String> {
    let is_path = |value: &str| value.starts_with('/') || value.contains(":\\");
    let found = options.0.iter().filter(|option| is_path(&option.value));
    found.map(|option| format!("--{} {}", option.name, option.value)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn searched(bytes: &[u8]) -> Option<Trailer> {
        search(Bytes::new(bytes), &mut Budget::of(bytes.len())).expect("little to search")
    }

    const IDENTIFIER: &str = "123e4567-e89b-12d3-a456-426614174000";

    #[test]
    fn both_spellings_say_the_same() {
        let old =
            Compiler::read(r#"{"Compiler": "adapter 8.2.28", "Neuron SHA1": "2a9fa22c08"}"#).expect("read");
        let new = Compiler::read(
            r#"{"CompilerName": "adapter", "CompilerVersion": "8.2.28", "Neuron SHA1": "2a9fa22c08"}"#,
        )
        .expect("read");
        assert_eq!(old, new);
        assert_eq!(old.parsed_version(), Some(RuntimeVersion::new(8, 2, 28)));
        assert_eq!((old.name.as_deref(), old.build.as_deref()), (Some("adapter"), Some("2a9fa22c08")));
        let odd = Compiler::read(r#"{"Compiler": "mystery", "Date": 3}"#).expect("read");
        assert_eq!((odd.version, odd.further["Date"].as_str()), (None, "3"));
        assert_eq!(Compiler::read("{\"Compiler"), None);
        assert_eq!(Compiler::read("[1]"), None);
    }

    #[test]
    fn the_three_texts_are_found_whatever_stands_around_them() {
        let record = r#"{"Compiler": "adapter 7.3.15", "Neuron SHA1": "00"}"#;
        for (before, gap, after) in [(0, 0, 0), (100, 0, 3), (5000, 3, 100), (3, 7, 0)] {
            let mut bytes = vec![0x5a; before];
            let start = bytes.len();
            bytes.extend(texts(&[IDENTIFIER]));
            bytes.extend(vec![0; gap]);
            bytes.extend(texts(&[record]));
            bytes.extend(vec![0; gap]);
            bytes.extend(texts(&["--relax-fp32 --dla-file a/b.dla"]));
            let end = bytes.len();
            bytes.extend(vec![0x5a; after]);
            let found = searched(&bytes).expect("found");
            assert_eq!((found.start, found.end, found.records), (start, end, 1), "{before} {gap} {after}");
            assert_eq!(found.identifier.as_deref(), Some(IDENTIFIER));
            assert_eq!(found.options.as_deref(), Some("--relax-fp32 --dla-file a/b.dla"));
            assert_eq!(
                found.compiler.and_then(|compiler| compiler.parsed_version()),
                Some(RuntimeVersion::new(7, 3, 15))
            );
        }
    }

    #[test]
    fn empty_options_are_options_and_missing_ones_are_not() {
        let record = r#"{"Compiler": "a 1.2.3"}"#;
        assert_eq!(searched(&texts(&[record, ""])).expect("found").options.as_deref(), Some(""));
        assert_eq!(searched(&texts(&[record])).expect("found").options, None);
        assert_eq!(searched(b"{\"Compiler\": no end"), None);
        assert_eq!(searched(b""), None);
        let no_json = searched(b"{\"Compiler\": no json}").expect("found");
        assert_eq!((no_json.compiler, no_json.start), (None, 0));
    }

    #[test]
    fn the_last_of_many_records_is_read() {
        let bytes = texts(&[r#"{"Compiler": "a 1.0.0"}"#, r#"{"Compiler": "a 2.0.0"}"#, "--x"]);
        let found = searched(&bytes).expect("found");
        assert_eq!((found.records, found.options.as_deref()), (2, Some("--x")));
        assert_eq!(found.compiler.and_then(|compiler| compiler.version).as_deref(), Some("2.0.0"));
    }

    #[test]
    fn paths_of_the_build_machine_are_named() {
        let options = OptionString::parse("--relax-fp32 --dla-file /srv/x/y.dla --gno LTS/x").expect("legal");
        assert_eq!(paths(&options), ["--dla-file /srv/x/y.dla"]);
    }
}
