//! Files with false statements: each fault has its own error, which names the file and the place.

use std::path::Path;

use shardwright_gguf::{Head, Part, limits, model_at};
use shardwright_vocabulary::{Error, ErrorKind};

/// A file, assembled part by part.
#[derive(Clone, Default)]
struct File {
    tensors: u64,
    entries: u64,
    body: Vec<u8>,
}

impl File {
    fn new() -> Self {
        File::default().key("general.architecture", 8).text(b"x")
    }

    fn text(mut self, text: &[u8]) -> Self {
        self.body.extend((text.len() as u64).to_le_bytes());
        self.body.extend(text);
        self
    }

    fn number(mut self, number: u32) -> Self {
        self.body.extend(number.to_le_bytes());
        self
    }

    fn key(mut self, key: &str, kind: u32) -> Self {
        self.entries += 1;
        self.text(key.as_bytes()).number(kind)
    }

    fn tensor(mut self, name: &str, values: u64, kind: u32, offset: u64) -> Self {
        self.tensors += 1;
        let mut file = self.text(name.as_bytes()).number(1);
        file.body.extend(values.to_le_bytes());
        file = file.number(kind);
        file.body.extend(offset.to_le_bytes());
        file
    }

    /// Returns the file's bytes, with `data` bytes of tensor data.
    fn bytes(&self, data: usize) -> Vec<u8> {
        let mut file = b"GGUF\x03\0\0\0".to_vec();
        file.extend(self.tensors.to_le_bytes());
        file.extend(self.entries.to_le_bytes());
        file.extend(&self.body);
        file.resize(file.len().next_multiple_of(32) + data, 0);
        file
    }

    fn error(&self, data: usize) -> Error {
        Head::read(Path::new("m.gguf"), &self.bytes(data)).expect_err("a fault")
    }
}

#[test]
fn every_fault_of_a_head_is_an_error_of_its_own() {
    let file = File::new();
    assert!(Head::read(Path::new("m.gguf"), &file.bytes(0)).is_ok());
    let error = Head::read(Path::new("m.gguf"), b"GGUF").expect_err("no head");
    assert_eq!(error.to_string(), "m.gguf: the head ends at byte 24, but the file has 4");
    assert!(error.kind() == ErrorKind::Invalid && error.help().is_some(), "{error:?}");
    let mut other = file.bytes(0);
    other[4] = 9;
    let error = Head::read(Path::new("m.gguf"), &other).expect_err("another version");
    assert_eq!(error.to_string(), "m.gguf: GGUF version 9 is not supported");
    assert!(error.kind() == ErrorKind::Unsupported && error.help().is_some(), "{error:?}");
    let part = |number| file.clone().key("split.count", 4).number(2).key("split.no", 4).number(number);
    let place = Head::read(Path::new("m.gguf"), &part(1).bytes(0)).expect("a part").part;
    assert_eq!(place, Some(Part { number: 1, count: 2 }));
    let text = vec![0; limits::HEAD_BYTES as usize];
    let first_without_architecture =
        File::default().key("split.no", 4).number(0).key("split.count", 4).number(2);
    for (file, data, kind, words) in [
        (file.clone().key("b", 7).number(2), 64, ErrorKind::Invalid, "a flag is neither 0 nor 1"),
        (
            File { tensors: u64::MAX, ..file.clone() },
            0,
            ErrorKind::Invalid,
            "m.gguf: 18446744073709551615 tensors, more than 1048576",
        ),
        (
            file.clone().key("general.alignment", 4).number(3),
            0,
            ErrorKind::Invalid,
            "m.gguf: metadata `general.alignment` is 3, expected a power of two",
        ),
        (part(2), 0, ErrorKind::Invalid, "metadata `split.no` is 2, expected a number below `split.count`"),
        (
            file.clone().key("split.count", 4).number(2),
            0,
            ErrorKind::Missing,
            "m.gguf: metadata has no `split.no`",
        ),
        (
            file.clone().key("split.no", 4).number(1),
            0,
            ErrorKind::Missing,
            "m.gguf: metadata has no `split.count`",
        ),
        (
            first_without_architecture,
            0,
            ErrorKind::Invalid,
            "m.gguf: at byte 0: metadata has no `general.architecture`",
        ),
        (
            file.clone().tensor("a", 8, 0, 0).tensor("a", 8, 0, 32),
            64,
            ErrorKind::Invalid,
            "m.gguf: a second tensor `a`",
        ),
        (
            file.clone().tensor("a", 8, 99, 0),
            64,
            ErrorKind::Invalid,
            "m.gguf: tensor `a` at byte 65: element type 99 is not one of the format",
        ),
        (
            file.clone().tensor("a", 16, 0, 0).tensor("b", 8, 0, 32),
            64,
            ErrorKind::Invalid,
            "m.gguf: tensors `a` and `b` overlap at byte",
        ),
        (file.clone().tensor("a", 8, 0, 0), 64, ErrorKind::Invalid, "m.gguf: 32 bytes at byte"),
        (
            File { entries: 1, ..File::default() }.text(b"\xff"),
            64,
            ErrorKind::Invalid,
            "m.gguf: not UTF-8 at byte 32",
        ),
        (file.clone().key("long", 8).text(&text), 0, ErrorKind::Invalid, "m.gguf: a head of 268435"),
    ] {
        let error = file.error(data);
        assert_eq!(error.kind(), kind, "{error}");
        assert!(error.to_string().contains(words), "no `{words}` in {error}");
        assert!(error.place().is_some_and(|place| place.starts_with("m.gguf")), "{error}");
    }
}

#[test]
fn metadata_are_read_by_kind() {
    let file = File::new().key("number", 4).number(7).key("list", 9).number(8);
    let mut file = file;
    file.body.extend(2_u64.to_le_bytes());
    let bytes = file.text(b"a").text(b"b").bytes(0);
    let head = Head::read(Path::new("m.gguf"), &bytes).expect("a head");
    let metadata = &head.metadata;
    assert_eq!(metadata.whole("number").expect("a number"), Some(7));
    assert_eq!(metadata.number("number").expect("a number"), Some(7.0));
    assert_eq!(metadata.text("none").expect("absent"), None);
    for (error, expected) in [
        (metadata.flag("number").expect_err("a number"), "true or false"),
        (metadata.list("number").expect_err("a number"), "a list"),
    ] {
        assert_eq!(error.message(), format!("metadata `number` is 7, expected {expected}"));
        assert!(error.kind() == ErrorKind::Invalid && error.help().is_some(), "{error:?}");
    }
    let missing = metadata.missing("none");
    assert_eq!((missing.kind(), missing.message()), (ErrorKind::Missing, "metadata has no `none`"));
    let list = metadata.list("list").expect("a list").expect("there");
    assert_eq!(list.texts().expect("strings").collect::<Vec<_>>(), [b"a", b"b"]);
    assert!(list.numbers().is_none() && list.len() == 2 && !list.is_empty());
}

#[test]
fn a_folder_with_several_models_is_not_one() {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["a.gguf", "b.gguf", "mmproj-a.gguf"] {
        std::fs::write(folder.path().join(name), File::new().bytes(0)).expect("written");
    }
    let error = model_at(folder.path()).expect_err("two models");
    assert_eq!(error.message(), "has 2 models: a.gguf, b.gguf");
    assert!(error.kind() == ErrorKind::Unsupported && error.place() == folder.path().to_str(), "{error}");
    assert!(error.help().is_some());
    std::fs::remove_file(folder.path().join("b.gguf")).expect("removed");
    let files = model_at(folder.path()).expect("one model").expect("a model");
    assert_eq!(files, [folder.path().join("a.gguf")]);
    std::fs::write(folder.path().join("config.json"), "{}").expect("written");
    assert_eq!(model_at(folder.path()).expect("a folder"), None);
    assert!(matches!(model_at(Path::new("none-there")), Ok(None)));
}

#[test]
fn lists_types_and_places_that_lie_cost_nothing() {
    let file = File::new();
    let wide = |mut file: File, number: u64| {
        file.body.extend(number.to_le_bytes());
        file
    };
    let list = |kind: u32, count: u64| wide(file.clone().key("list", 9).number(kind), count);
    // A nesting of lists, five deep.
    let nested = (0..5).fold(file.clone().key("list", 9), |file, _| wide(file.number(9), 1));
    let mut twice = file.clone().key("a", 0);
    twice.body.push(1);
    let twice = twice.key("a", 0);
    let shaped = file.clone().tensor("a", u64::MAX, 0, 0);
    for (error, words) in [
        (nested.error(64), "lists are nested deeper than 4"),
        (list(13, 1).error(64), "value type 13 is not one of the format"),
        (file.clone().key("x", 99).error(64), "value type 99 is not one of the format"),
        (twice.error(64), "metadata has a second"),
        (shaped.error(64), "overflows"),
    ] {
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error:?}");
        assert!(error.to_string().contains(words), "{error} lacks {words}");
    }
    // Lists of numbers, of strings and of lists, and a tensor, that end beyond the file.
    for file in [list(12, u64::MAX), list(8, u64::MAX), list(9, u64::MAX), file.tensor("a", 8, 0, 1 << 40)] {
        let error = file.error(64);
        assert!(error.kind() == ErrorKind::Invalid && error.message().contains("ends at byte"), "{error:?}");
    }
}
