//! Compares the first page's promises of `cargo xtask demo` with its output.

use std::path::{Path, PathBuf};

use shardwright_tests::{skipped, tree};

/// The paragraph of the first page about the demo, in one line.
fn promise() -> String {
    let page = tree::read(Path::new("README.md"));
    let section = page.split("\n## ").find(|section| section.starts_with("Try it")).expect("a section");
    let paragraph =
        section.split("\n\n").find(|text| text.starts_with("The first command")).expect("a paragraph");
    paragraph.replace('\n', " ")
}

/// Both streams of `cargo xtask demo`, which `.ci/run` recorded in the file that
/// `SHARDWRIGHT_DEMO_OUTPUT` names. The command cannot run here: it builds the program that other
/// tests start.
fn output() -> Option<String> {
    let file = std::env::var_os("SHARDWRIGHT_DEMO_OUTPUT").map(PathBuf::from)?;
    Some(std::fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display())))
}

#[test]
fn the_demo_does_what_the_first_page_promises() {
    let Some(output) = output() else {
        skipped("the demo: SHARDWRIGHT_DEMO_OUTPUT does not name its output, as `.ci/run` does");
        return;
    };
    let promise = promise();
    let numbers = ["one", "two", "three", "four", "five"];
    let promised = numbers.iter().position(|number| promise.contains(&format!(" {number} shards")));
    let promised = promised.unwrap_or_else(|| panic!("no number of shards: {promise}")) + 1;
    // Rows of the table of shards begin with the number of the shard.
    let table = output.split("\n\n").find(|part| part.starts_with("shard ")).expect("a table of shards");
    let rows = table.lines().skip(1).take_while(|row| row.starts_with(|c: char| c.is_ascii_digit()));
    assert_eq!(rows.count(), promised, "{output}");
    assert!(promise.contains("*emulated on cpu*"), "{promise}");
    for words in [
        "demo-model (gemma4) for mt6989",
        "*emulated on cpu*",
        "An unwanted and unintended property of a program",
    ] {
        assert!(output.contains(words), "no `{words}` in {output}");
    }
}
