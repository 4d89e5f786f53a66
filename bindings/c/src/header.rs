//! The committed header is the one that the sources make.

use std::path::{Path, PathBuf};

use shardwright_bindings_core::version;

use crate::{SW_VERSION, sw_version};

fn folder() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| env!("CARGO_MANIFEST_DIR").into(), PathBuf::from)
}

/// Writes the header that the sources make.
fn generated(folder: &Path) -> String {
    let config = cbindgen::Config::from_file(folder.join("cbindgen.toml")).expect("settings");
    let bindings = cbindgen::Builder::new().with_config(config).with_src(folder.join("src/lib.rs"));
    let mut text = Vec::new();
    bindings.generate().expect("the sources are parsed").write(&mut text);
    String::from_utf8(text).expect("UTF-8")
}

#[test]
fn the_header_is_the_one_that_the_sources_make() {
    let folder = folder();
    let header = folder.join("include/shardwright.h");
    let expected = generated(&folder);
    if std::env::var_os("SHARDWRIGHT_WRITE_HEADER").is_some() {
        std::fs::write(&header, &expected).expect("written");
    }
    let committed = std::fs::read_to_string(&header).expect("the header");
    let differs = committed.lines().zip(expected.lines()).position(|(one, other)| one != other);
    let line = differs.unwrap_or(committed.lines().count().min(expected.lines().count())) + 1;
    assert!(
        committed == expected,
        "include/shardwright.h differs from the sources at line {line}: run \
         `SHARDWRIGHT_WRITE_HEADER=1 cargo test -p shardwright-bindings-c header`"
    );
}

#[test]
fn every_function_of_the_sources_is_in_the_header() {
    let folder = folder();
    let header = std::fs::read_to_string(folder.join("include/shardwright.h")).expect("the header");
    let mut functions = 0;
    for file in std::fs::read_dir(folder.join("src")).expect("the sources") {
        let source = std::fs::read_to_string(file.expect("a file").path()).expect("a source");
        for exported in source.split("#[unsafe(no_mangle)]\n").skip(1) {
            let name =
                exported.split_once(" fn ").and_then(|(_, rest)| rest.split_once('(')).expect("a function");
            assert!(header.contains(&format!("{}(", name.0)), "{} is missing", name.0);
            functions += 1;
        }
    }
    assert!(functions > 40, "{functions} functions");
}

#[test]
fn the_version_is_the_one_of_the_library() {
    let numbers: Vec<u32> = version().split('.').map(|number| number.parse().expect("a number")).collect();
    let expected = numbers.iter().fold(0, |sum, number| sum * 1000 + number);
    assert_eq!((SW_VERSION, sw_version()), (expected, expected));
}
