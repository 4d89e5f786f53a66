//! Reads small untrusted files: a size cap, UTF-8, JSON of limited depth.

use std::path::{Path, PathBuf};

use serde_json::Value;
use shardwright_vocabulary::{Error, Result, UniqueKeys};

use crate::gguf::GgufTexts;

/// Largest configuration file that is read. Published `tokenizer_config.json` files reach a few MB
/// if they list every added token. The others stay below 100 kB.
pub const CONFIG_BYTES_MAX: u64 = 16 << 20;

/// Largest `tokenizer.json` that is read. The largest published ones, with 262,144 tokens and their
/// merges, have 33 MB.
pub const TOKENIZER_BYTES_MAX: u64 = 256 << 20;

/// Deepest JSON that is accepted. Published files stay below ten levels. The limit matters because
/// the parsers are recursive.
pub const JSON_NESTING_MAX: usize = 64;

/// Returns the text in `bytes`, or an error that names `origin` (a file, "the prompt") and the
/// offset of the first invalid byte.
pub fn utf8_text<'bytes>(bytes: &'bytes [u8], origin: &str) -> Result<&'bytes str> {
    std::str::from_utf8(bytes).map_err(|error| {
        let offset = error.valid_up_to();
        Error::invalid(format!("not UTF-8 text: the first bad byte is at offset {offset}"))
            .at(origin)
            .with_help("save the text as UTF-8")
    })
}

/// Reads a file of at most `max` bytes.
pub(crate) fn read_capped(path: &Path, max: u64) -> Result<Vec<u8>> {
    shardwright_files::read(path, max).map_err(|error| unread(error, path))
}

/// Returns the error of a file that could not be opened or read.
pub(crate) fn unread(error: impl Into<Error>, path: &Path) -> Error {
    error.into().at(path.display()).or_help("check that the file exists and can be read")
}

/// Returns the error of a file of more than `max` bytes.
pub(crate) fn too_large(path: &Path, max: u64) -> Error {
    Error::invalid(format!("more than {max} bytes, which is the limit"))
        .at(path.display())
        .with_help("check which file this is")
}

/// Like [`read_capped`], but returns `None` for a missing file.
pub(crate) fn read_optional(path: &Path, max: u64) -> Result<Option<Vec<u8>>> {
    match read_capped(path, max) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.is_not_found() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Help for a file that is not JSON.
const DOWNLOAD_AGAIN: &str =
    "download the file again; it may be truncated, or a pointer to a file in large-file storage";

/// Refuses JSON nested deeper than [`JSON_NESTING_MAX`], without parsing it.
fn check_nesting(bytes: &[u8], path: &Path) -> Result<()> {
    let mut depth = 0usize;
    let mut in_string = false;
    let mut escaped = false;
    for (offset, &byte) in bytes.iter().enumerate() {
        if in_string {
            match byte {
                _ if escaped => escaped = false,
                b'\\' => escaped = true,
                b'"' => in_string = false,
                _ => {}
            }
            continue;
        }
        match byte {
            b'"' => in_string = true,
            b'[' | b'{' => {
                depth += 1;
                if depth > JSON_NESTING_MAX {
                    let deep =
                        format!("JSON nested deeper than {JSON_NESTING_MAX} levels at offset {offset}");
                    return Err(Error::invalid(deep).at(path.display()).with_help(DOWNLOAD_AGAIN));
                }
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    Ok(())
}

/// Parses JSON of bounded depth.
pub(crate) fn parse_json<T: serde::de::DeserializeOwned>(bytes: &[u8], path: &Path) -> Result<T> {
    check_json(bytes, path)?;
    serde_json::from_slice(bytes).map_err(|error| invalid_json(path, &error))
}

/// Checks that a text is JSON of bounded depth and that no object has a key twice.
pub(crate) fn check_json(bytes: &[u8], path: &Path) -> Result<()> {
    utf8_text(bytes, &path.display().to_string())?;
    check_nesting(bytes, path)?;
    match serde_json::from_slice::<UniqueKeys>(bytes) {
        Ok(UniqueKeys) => Ok(()),
        Err(error) if error.is_data() => {
            Err(Error::invalid(error.to_string()).at(path.display()).with_help(UniqueKeys::HELP))
        }
        Err(error) => Err(invalid_json(path, &error)),
    }
}

/// Converts the parser's error, separating its position from its message.
fn invalid_json(path: &Path, error: &serde_json::Error) -> Error {
    let (words, line, column) = (error.to_string(), error.line(), error.column());
    let reason = words.split(" at line ").next().unwrap_or_default();
    Error::invalid(format!("not valid JSON: {reason} at line {line}, column {column}"))
        .at(path.display())
        .with_help(DOWNLOAD_AGAIN)
}

/// Returns the bytes of a file by name, or `None` if it does not exist.
type FileSource<'a> = &'a dyn Fn(&str) -> Option<Vec<u8>>;

/// The source of a checkpoint's text files. Missing files are `None`.
pub(crate) struct Files<'a> {
    /// The folder for messages.
    directory: &'a Path,
    source: Source<'a>,
}

enum Source<'a> {
    /// Files of the directory.
    Folder,
    /// Bytes that the caller already has.
    Caller(FileSource<'a>),
    /// The metadata of a GGUF file.
    Gguf(Box<GgufTexts>),
}

impl<'a> Files<'a> {
    /// Finds the source at `path`: a folder, or a GGUF model.
    pub(crate) fn of(path: &'a Path) -> Result<Self> {
        let source = GgufTexts::at(path)?.map_or(Source::Folder, |texts| Source::Gguf(Box::new(texts)));
        Ok(Files { directory: path, source })
    }

    /// Returns files with contents from the caller. `directory` is for messages.
    pub(crate) const fn from_source(directory: &'a Path, file: FileSource<'a>) -> Self {
        Files { directory, source: Source::Caller(file) }
    }

    /// Returns the path of a file for messages.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        match &self.source {
            Source::Gguf(texts) => texts.path().to_owned(),
            Source::Folder | Source::Caller(_) => self.directory.join(name),
        }
    }

    /// Reads a file of at most `max` bytes.
    pub(crate) fn read(&self, name: &str, max: u64) -> Result<Option<Vec<u8>>> {
        let found = match &self.source {
            Source::Folder => return read_optional(&self.path(name), max),
            Source::Caller(file) => file(name),
            Source::Gguf(texts) => texts.document(name)?,
        };
        match found {
            Some(bytes) if bytes.len() as u64 > max => Err(too_large(&self.path(name), max)),
            bytes => Ok(bytes),
        }
    }

    /// Reads a file that contains a JSON object. Its fields are sorted by name, so that messages do
    /// not depend on their order in the file.
    pub(crate) fn object(&self, name: &str) -> Result<Option<serde_json::Map<String, Value>>> {
        let path = self.path(name);
        let Some(bytes) = self.read(name, CONFIG_BYTES_MAX)? else {
            return Ok(None);
        };
        let mut value: Value = parse_json(&bytes, &path)?;
        value.sort_all_objects();
        match value {
            Value::Object(object) => Ok(Some(object)),
            other => Err(Error::invalid(format!("expected a JSON object, got {}", shown(&other)))
                .at(path.display())
                .with_help(DOWNLOAD_AGAIN)),
        }
    }
}

/// Returns a text file of the checkpoint at `path` by its name in a Hugging Face folder, of at most
/// `max` bytes. It is the file of a folder, or made from a GGUF file's metadata. `None` if the
/// checkpoint has no such file.
///
/// ```
/// use shardwright_text::{CONFIG_BYTES_MAX, text_file};
///
/// let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo-model");
/// assert!(text_file(demo.as_ref(), "tokenizer_config.json", CONFIG_BYTES_MAX)?.is_some());
/// assert!(text_file(demo.as_ref(), "no-such-file.json", CONFIG_BYTES_MAX)?.is_none());
/// # Ok::<(), shardwright_vocabulary::Error>(())
/// ```
pub fn text_file(path: &Path, name: &str, max: u64) -> Result<Option<Vec<u8>>> {
    Files::of(path)?.read(name, max)
}

/// Returns the error of a field of the wrong kind. The value is quoted and truncated for the
/// message.
pub(crate) fn invalid_field(path: &Path, field: &str, expected: &str, found: &Value) -> Error {
    Error::invalid(format!("`{field}` should be {expected}, but is {}", shown(found)))
        .at(path.display())
        .with_help(format!("correct `{field}`, or remove it to use the default"))
}

/// Formats a value for a message, with at most sixty characters and an ellipsis.
fn shown(value: &Value) -> String {
    const SHOWN_CHARACTERS: usize = 60;
    let text = value.to_string();
    let mut shown: String = text.chars().take(SHOWN_CHARACTERS).collect();
    if shown.len() < text.len() {
        shown.push('…');
    }
    shown
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::ErrorKind;

    use super::*;

    #[test]
    fn files_are_capped_and_missing_ones_are_distinguished() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("f");
        assert!(read_optional(&path, 3).unwrap().is_none());
        let error = read_capped(&path, 3).unwrap_err();
        assert_eq!((error.kind(), error.place()), (ErrorKind::Missing, path.to_str()));
        assert!(error.is_not_found() && error.help().is_some(), "{error}");
        std::fs::write(&path, b"abc").unwrap();
        assert_eq!(read_capped(&path, 3).unwrap(), b"abc");
        let error = read_capped(&path, 2).unwrap_err();
        assert_eq!((error.kind(), error.place()), (ErrorKind::Invalid, path.to_str()));
        assert!(error.message().contains("more than 2 bytes"), "{error}");
        assert!(read_optional(folder.path(), 3).is_err(), "a folder is not a file");
    }

    #[test]
    fn json_faults_name_their_place() {
        struct Case {
            bytes: Vec<u8>,
            expected: &'static str,
        }
        let cases = [
            Case { bytes: b"{\n \"a\": }".to_vec(), expected: "expected value at line 2, column 7" },
            Case { bytes: b"{\"a\": 1".to_vec(), expected: "EOF while parsing" },
            Case { bytes: b"{\"a\": \"\xff\"}".to_vec(), expected: "first bad byte is at offset 7" },
            Case { bytes: "[".repeat(65).into_bytes(), expected: "deeper than 64 levels at offset 64" },
            Case { bytes: b"[1e999999]".to_vec(), expected: "number out of range" },
            Case {
                bytes: b"{\"a\": 1,\n \"a\": 2}".to_vec(),
                expected: "x.json: a second key `a` at line 2 column 4",
            },
        ];
        for case in cases {
            let error = parse_json::<Value>(&case.bytes, Path::new("x.json")).unwrap_err();
            assert!(error.to_string().contains(case.expected), "{error} lacks {}", case.expected);
            assert!(error.to_string().contains("x.json"));
            assert!(error.help().is_some());
        }
        let inside = format!("\"{}\\\"[[\"", "[".repeat(100));
        assert!(parse_json::<Value>(inside.as_bytes(), Path::new("x.json")).is_ok(), "brackets in strings");
    }
}
