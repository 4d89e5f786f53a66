//! The project rules that can be checked in the files: first lines, how-to pages, unsafe code,
//! stray paths, big files, errors that no test raises. Each scan reads text and reports its
//! findings with their places. No scan parses Rust.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use shardwright_tests::rust_source::{code_only, has_word, public_enums, test_part};
use shardwright_tests::{skipped, tree};

/// Returns the project's files. Without git, reports a skipped test and returns none.
fn files() -> Vec<PathBuf> {
    tree::files().unwrap_or_else(|| {
        skipped("project rules: no git repository to list the project's files");
        Vec::new()
    })
}

fn rust_files() -> Vec<PathBuf> {
    tree::rust_files().unwrap_or_else(|| {
        skipped("project rules: no git repository to list the project's files");
        Vec::new()
    })
}

fn assert_none(what: &str, found: &[String]) {
    assert!(found.is_empty(), "{what}:\n  {}", found.join("\n  "));
}

#[test]
fn every_crate_begins_with_its_job_and_what_is_not_its_job() {
    let mut silent = Vec::new();
    for path in rust_files() {
        // A program with a library next to it is the library's front end, and the library documents
        // both.
        let is_root = path.ends_with("src/lib.rs")
            || path.ends_with("src/main.rs") && !tree::root().join(path.with_file_name("lib.rs")).is_file();
        // A crate has its manifest two folders up. Fixtures for the tests of a crate are not
        // crates.
        let is_crate = path
            .parent()
            .and_then(Path::parent)
            .is_some_and(|folder| tree::root().join(folder).join("Cargo.toml").is_file());
        if !is_root || !is_crate || path.to_string_lossy().contains("/tests/") {
            continue;
        }
        let source = tree::read(&path);
        let opening: String = source.lines().take_while(|line| line.starts_with("//!")).collect();
        if !["**Not its job.**", "**not**"].iter().any(|words| opening.contains(words)) {
            silent.push(format!("{}: its first lines do not say what is **not** its job", path.display()));
        }
    }
    assert_none("crates that do not introduce themselves", &silent);
}

/// Pages on extending the project, with the subject of each.
const HOW_TO_PAGES: &[(&str, &str)] = &[
    ("plugins/README.md", "a SoC or a planner"),
    ("plugins/javascript/README.md", "a planner in JavaScript"),
    ("vendor-shims/README.md", "a shim"),
    ("host/models/README.md", "a model family"),
    ("host/graph/README.md", "an operation"),
    ("docs/how-to/integrate.md", "an application"),
    ("docs/how-to/serve.md", "a client of the server"),
];

#[test]
fn the_how_to_pages_are_numbered_lists() {
    let mut wrong = Vec::new();
    for (page, what) in HOW_TO_PAGES {
        let Ok(text) = fs::read_to_string(tree::root().join(page)) else {
            wrong.push(format!("{page} (adding {what}) does not exist"));
            continue;
        };
        let steps = text.lines().filter(|line| is_step(line)).count();
        if steps < 3 {
            wrong.push(format!("{page}: {steps} numbered steps"));
        }
    }
    assert_none("how-to pages", &wrong);
}

/// A page that was written together with its model. Its paths refer to the machine where the model
/// was trained.
const FOREIGN_PAGES: &str = "demo-model";

#[test]
fn what_a_page_names_exists() {
    let mut wrong = Vec::new();
    for page in files() {
        let is_page = page.extension().is_some_and(|extension| extension == "md");
        if !is_page || page.starts_with(FOREIGN_PAGES) {
            continue;
        }
        let text = tree::read(&page);
        let folder = page.parent().unwrap_or(Path::new(""));
        // A page may name files relative to the root, to its own folder, to its crate or to the
        // crate's sources.
        let crate_folder = crate_of(&page);
        let bases = [PathBuf::new(), folder.to_owned(), crate_folder.clone(), crate_folder.join("src")];
        for named in paths_named_in(&text) {
            if !bases.iter().any(|base| tree::root().join(base).join(&named).exists()) {
                wrong.push(format!("{}: `{named}` does not exist", page.display()));
            }
        }
        for link in links_in(&text) {
            if !tree::root().join(folder).join(link).exists() {
                wrong.push(format!("{}: the link to {link} leads nowhere", page.display()));
            }
        }
    }
    assert_none("pages", &wrong);
}

/// Returns the files that a page links to, without links to web pages and within the page.
fn links_in(text: &str) -> impl Iterator<Item = &str> {
    text.split("](").skip(1).filter_map(|rest| rest.split(')').next()).filter_map(|link| {
        let file = link.split('#').next().unwrap_or_default();
        (!file.is_empty() && !file.contains("://")).then_some(file)
    })
}

/// Checks whether a line is a numbered step such as `3. Do something`.
fn is_step(line: &str) -> bool {
    let number = line.chars().take_while(char::is_ascii_digit).count();
    number > 0 && line[number..].starts_with(". ")
}

/// Returns texts in backticks that look like paths of the tree: a slash between names and no blank.
/// Placeholders (`<name>`, `*`, `…`, `my-…`), commands, build outputs (`target/`) and places on the
/// reader's machine are omitted.
fn paths_named_in(text: &str) -> Vec<String> {
    let mut fenced = false;
    let mut paths = Vec::new();
    for line in text.lines() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        for piece in line.split('`').skip(1).step_by(2) {
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
            let looks = piece.contains('/') && piece.chars().all(plain) && !piece.contains("//");
            let foreign = ["/", "target/", "my-", "~"].iter().any(|start| piece.starts_with(start))
                || piece.contains("/my-");
            if looks && !foreign && piece.chars().any(|c| c.is_ascii_alphabetic()) {
                paths.push(piece.trim_end_matches('/').to_owned());
            }
        }
    }
    paths
}

/// Where unsafe code is allowed, and why.
const UNSAFE_ALLOWED: &[(&str, &str)] = &[
    ("vendor-shims/abi/", "the contract is a C ABI"),
    ("vendor-shims/cpu/", "SIMD kernels"),
    ("vendor-shims/npu/", "opening a vendor's library"),
    ("vendor-shims/qnn/", "calling the vendor's library"),
    ("vendor-shims/neuron/", "calling the vendor's library, and the simulator's C ABI"),
    ("vendor-shims/template/", "the exported symbol"),
    ("host/shims/", "loading dylibs and calling through the C ABI"),
    ("host/worker/", "memory that two processes map, the worker's signal handler"),
    ("host/files/", "mapping files and parts of them, and settings of the allocator"),
    ("host/cli/", "a look at standard output before the runtime replaces it"),
    ("host/bundle/", "asking the system who writes a file"),
    ("host/runtime/", "mapping the tables that rows are gathered from"),
    ("host/planning/", "deserialising a planner pack whose signature was verified"),
    ("bindings/c/", "the C interface for applications"),
    ("planner/", "the exports wit-bindgen generates"),
    ("plugins/", "the exports wit-bindgen generates"),
];

#[test]
fn unsafe_code_is_only_where_allowed_and_has_a_reason() {
    let mut wrong = Vec::new();
    for path in rust_files() {
        let source = tree::read(&path);
        let code = code_only(&source);
        let allowed = UNSAFE_ALLOWED.iter().any(|(folder, _)| path.starts_with(folder));
        for (number, line) in code.lines().enumerate() {
            if !has_word(line, "unsafe") {
                continue;
            }
            let place = format!("{}:{}", path.display(), number + 1);
            if !allowed {
                wrong.push(format!("{place}: unsafe outside the crates that may use it"));
            } else if line.contains("unsafe {") && !has_reason(&source, number) {
                wrong.push(format!("{place}: an unsafe block without a SAFETY reason above it"));
            }
        }
    }
    assert_none("unsafe code", &wrong);
}

/// Checks whether a `SAFETY:` comment is on the line, or above it within the same statement and its
/// comment.
fn has_reason(source: &str, number: usize) -> bool {
    /// Lines to search upwards. A reason may be a paragraph, and the block may end a long
    /// statement.
    const REACH: usize = 16;
    let lines: Vec<_> = source.lines().take(number + 1).collect();
    lines.iter().rev().take(REACH).any(|line| line.contains("SAFETY:"))
}

#[test]
fn no_file_names_a_place_on_somebodys_machine() {
    // Assembled here, so that this file does not contain them.
    let places = ["work", "root", "tmp", "home", "Users"].map(|folder| format!("/{folder}/"));
    let mut wrong = Vec::new();
    for path in files() {
        let bytes = fs::read(tree::root().join(&path)).unwrap_or_default();
        let Ok(text) = String::from_utf8(bytes) else { continue };
        for (number, line) in text.lines().enumerate() {
            for place in &places {
                // Only at the start of a path: `<work>/…` and `demo/work/…` are relative.
                let absolute = line.match_indices(place.as_str()).any(|(at, _)| {
                    !line[..at].ends_with(|c: char| c.is_alphanumeric() || "._-/>})]".contains(c))
                });
                if absolute {
                    wrong.push(format!("{}:{}: {place}", path.display(), number + 1));
                }
            }
        }
    }
    assert_none("absolute paths of a machine", &wrong);
}

/// The largest file allowed in the tree, so that cloning stays quick.
const LARGEST_FILE_BYTES: u64 = 4 << 20;

/// The one exception: trained weights, which cannot be regenerated bit for bit.
const LARGE_FILE: &str = "demo-model/model.safetensors";

#[test]
fn no_file_is_large_but_the_demo_models_weights() {
    let mut large = Vec::new();
    for path in files() {
        let bytes = fs::metadata(tree::root().join(&path)).map_or(0, |metadata| metadata.len());
        if bytes > LARGEST_FILE_BYTES && path != Path::new(LARGE_FILE) {
            large.push(format!("{}: {bytes} bytes", path.display()));
        }
    }
    assert_none("files beyond 4 MiB", &large);
}

/// A variant counts as raised if its name occurs in a test of its own crate or in the tests of the
/// project. That is weak evidence, but all that a text scan can give: it finds forgotten variants,
/// not wrong tests.
#[test]
fn every_error_has_a_test_that_names_it() {
    let mut tests: BTreeMap<PathBuf, String> = BTreeMap::new();
    let mut enums = Vec::new();
    for path in rust_files() {
        let source = tree::read(&path);
        let crate_folder = crate_of(&path);
        let test = if is_test_file(&path) { source.as_str() } else { test_part(&source) };
        tests.entry(crate_folder.clone()).or_default().push_str(test);
        if !is_test_file(&path) {
            enums.extend(
                public_enums(&source, "Error")
                    .into_iter()
                    .map(|found| (crate_folder.clone(), path.clone(), found)),
            );
        }
    }
    let of_the_project = tests.get(Path::new("tests")).cloned().unwrap_or_default();

    let mut unraised = Vec::new();
    for (crate_folder, path, found) in &enums {
        let own = tests.get(crate_folder).map_or("", String::as_str);
        for variant in &found.variants {
            if !has_word(own, variant) && !has_word(&of_the_project, variant) {
                unraised.push(format!("{}: {}::{variant}", path.display(), found.name));
            }
        }
    }
    assert_none("errors that no test names", &unraised);
}

/// Returns the folder of the nearest manifest.
pub fn crate_of(path: &Path) -> PathBuf {
    path.ancestors()
        .skip(1)
        .find(|folder| tree::root().join(folder).join("Cargo.toml").is_file())
        .unwrap_or(Path::new(""))
        .to_owned()
}

fn is_test_file(path: &Path) -> bool {
    path.starts_with("tests")
        || path.components().any(|part| part.as_os_str() == "tests")
        || path.file_name().is_some_and(|name| name == "tests.rs")
}

#[test]
fn the_scans_read_what_they_should() {
    let steps = ["1. Copy", "12. Load", "1) no", "a. no", "3.no"].map(is_step);
    assert_eq!(steps, [true, true, false, false, false]);

    let text = "Copy `vendor-shims/template/c` to `my-shim/x.c`, see `host/graph/src/op.rs`; `Op::Linear`, \
                `cargo run a/b`, `target/debug/shims`, `plugins/<name>/x`, `a / b`.\n```\n`x/y`\n```\n";
    assert_eq!(paths_named_in(text), ["vendor-shims/template/c", "host/graph/src/op.rs"]);

    let links: Vec<_> = links_in("[a](b/c.md), [d](https://e), [f](#g), [h](i#j)").collect();
    assert_eq!(links, ["b/c.md", "i"]);

    assert!(has_reason("// SAFETY: checked\nlet a =\n    unsafe { f() };", 2));
    assert!(!has_reason("let a = unsafe { f() };\n// SAFETY: late", 0));
}

/// A manifest may disable the empty test programs of its library, which saves compiling it twice.
/// The library must then contain no tests or doc tests.
#[test]
fn tests_are_switched_off_only_where_there_are_none() {
    let mut lost = Vec::new();
    for manifest in files().iter().filter(|path| path.ends_with("Cargo.toml")) {
        let text = tree::read(manifest);
        let (no_tests, no_examples) = (says(&text, "test = false"), says(&text, "doctest = false"));
        let sources = manifest.with_file_name("src");
        for path in rust_files().iter().filter(|path| path.starts_with(&sources)) {
            let source = tree::read(path);
            // A program next to the library has a section of its own.
            let is_program =
                path.ends_with("main.rs") || path.components().any(|part| part.as_os_str() == "bin");
            if no_tests && !is_program && code_only(&source).contains("#[test]") {
                lost.push(format!("{}: has tests, and {} runs none", path.display(), manifest.display()));
            }
            if no_examples && has_example(&source) {
                lost.push(format!(
                    "{}: has an example, and {} runs none",
                    path.display(),
                    manifest.display()
                ));
            }
        }
    }
    assert_none("tests that nothing runs", &lost);
}

/// Checks whether the library section of the manifest has the setting.
fn says(manifest: &str, setting: &str) -> bool {
    let library = manifest.split("\n[").find(|section| section.starts_with("lib]"));
    library.is_some_and(|section| section.lines().any(|line| line.trim() == setting))
}

/// Checks whether a doc comment has a block of Rust that `rustdoc` would compile.
fn has_example(source: &str) -> bool {
    let fences = source.lines().filter_map(|line| {
        let line = line.trim_start();
        let comment = line.strip_prefix("///").or_else(|| line.strip_prefix("//!"))?;
        comment.trim_start().strip_prefix("```")
    });
    // Every other fence closes a block.
    fences.step_by(2).any(|tag| !["text", "json", "sh", "toml", "c", "wit", "ignore"].contains(&tag.trim()))
}

#[test]
fn examples_and_settings_are_seen() {
    assert!(has_example("/// ```\n/// let a = 1;\n/// ```\n"));
    assert!(has_example("//! ```text\n//! a\n//! ```\n//!\n//! ```no_run\n//! ```\n"));
    assert!(!has_example("//! ```text\n//! let a = 1;\n//! ```\n"));
    let manifest = "[package]\nname = \"a\"\n\n[lib]\ntest = false\n\n[[bin]]\ndoctest = false\n";
    assert!(says(manifest, "test = false") && !says(manifest, "doctest = false"));
}

/// Files that may write to standard error directly: the one place that escapes its output, and a
/// prompt without foreign text.
const SAYS_ITSELF: [(&str, &str); 2] =
    [("host/cli/src/views.rs", "eprintln!"), ("host/cli/src/commands/run.rs", "eprint!")];

#[test]
fn the_program_says_everything_through_one_place() {
    let mut found = Vec::new();
    for path in rust_files().into_iter().filter(|path| path.starts_with("host/cli/src")) {
        let code = code_only(&tree::read(&path));
        for macro_name in ["eprintln!", "eprint!", "println!", "print!", "dbg!"] {
            let word = |at: usize| !code[..at].ends_with(|c: char| c.is_alphanumeric() || c == '_');
            for (at, _) in code.match_indices(macro_name).filter(|(at, _)| word(*at)) {
                let line = code[..at].lines().count();
                let allowed =
                    SAYS_ITSELF.iter().any(|(file, name)| path == Path::new(file) && *name == macro_name);
                if !allowed {
                    found.push(format!("{}:{line}: {macro_name}", path.display()));
                }
            }
        }
    }
    assert_none("what a terminal would obey", &found);
}

/// Maximum width of a comment or prose line, in columns.
const WIDTH: usize = 100;

/// Rust comments and the prose of pages have the same width. Tables, code, links and bench output
/// may be wider.
#[test]
fn comments_and_prose_are_at_most_a_hundred_columns_wide() {
    let mut found = Vec::new();
    for path in files() {
        let is_page = path.extension().is_some_and(|extension| extension == "md");
        let is_rust = path.extension().is_some_and(|extension| extension == "rs");
        if !(is_page || is_rust) || path.components().any(|part| part.as_os_str() == "results") {
            continue;
        }
        let text = fs::read_to_string(tree::root().join(&path)).expect("a text");
        for (number, line) in too_wide(&text, is_page) {
            found.push(format!("{}:{number}: {line}", path.display()));
        }
    }
    assert_none("lines wider than 100 columns", &found);
}

/// Returns lines of prose that are too wide, with their numbers.
fn too_wide(text: &str, is_page: bool) -> Vec<(usize, &str)> {
    let mut in_fence = false;
    let mut found = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let Some(prose) = (if is_page { Some(line) } else { line.trim_start().strip_prefix("//") }) else {
            in_fence = false;
            continue;
        };
        let prose = prose.trim_start_matches(['/', '!']).trim_start();
        if prose.starts_with("```") {
            in_fence = !in_fence;
            continue;
        }
        let exempt = in_fence || prose.starts_with('|') || prose.contains("](") || prose.contains("://");
        if !exempt && line.chars().count() > WIDTH {
            found.push((index + 1, line));
        }
    }
    found
}

#[test]
fn wide_lines_are_seen_and_tables_are_not() {
    let wide = "word ".repeat(30);
    assert_eq!(too_wide(&format!("short\n{wide}\n| {wide}|\n```text\n{wide}\n```\n"), true).len(), 1);
    let source = format!("/// {wide}\nlet text = \"{wide}\";\n// ```\n// {wide}\n// ```\n//! {wide}\n");
    let numbers: Vec<usize> = too_wide(&source, false).iter().map(|(number, _)| *number).collect();
    assert_eq!(numbers, [1, 6]);
}
