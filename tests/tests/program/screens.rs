//! The output on a terminal of 80 columns, compared with files. A changed screen must be reviewed.
//! `SHARDWRIGHT_WRITE_SCREENS=1` rewrites them.

use std::fs;

use shardwright_tests::checkpoints::DEMO_MODEL;
use shardwright_tests::program::{Run, shardwright};
use shardwright_tests::tree;

const COLUMNS: usize = 80;
/// Largest number of lines of a screen, for a tall terminal.
const LINES: usize = 50;

/// Prepares a run in a terminal of that width, on a machine without vendors' libraries.
fn at_a_terminal<'a>(arguments: impl IntoIterator<Item = &'a str>) -> Run {
    let run = shardwright(arguments).environment("COLUMNS", COLUMNS.to_string());
    ["SHARDWRIGHT_QNN_LIB", "SHARDWRIGHT_NEURON_LIB"]
        .into_iter()
        .fold(run, |run, name| run.environment(name, ""))
}

fn assert_fits(screen: &str) {
    for line in screen.lines() {
        assert!(line.chars().count() <= COLUMNS, "{} columns: {line}", line.chars().count());
        assert_eq!(line, line.trim_end(), "something stands behind the last column");
    }
}

fn is_as_recorded(name: &str, screen: &str) {
    assert_fits(screen);
    assert!(screen.lines().count() <= LINES, "{} lines:\n{screen}", screen.lines().count());
    let path = tree::root().join("tests/screens").join(name);
    if std::env::var_os("SHARDWRIGHT_WRITE_SCREENS").is_some() {
        fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        fs::write(&path, screen).expect("written");
    }
    let recorded = fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(screen, recorded, "not as in {}", path.display());
}

#[test]
fn the_list_of_shims_is_a_line_each() {
    let screen = at_a_terminal(["shim", "list"]).succeeds();
    is_as_recorded("shim-list.txt", &screen);
    // `-v` shows their locations and declarations.
    let full = at_a_terminal(["shim", "list", "-v"]).succeeds();
    assert!(full.starts_with(&screen) && full.contains("library:") && full.contains("contract"), "{full}");
}

#[test]
fn the_plan_for_a_chip_is_a_screen() {
    let plan = |soc: &str| at_a_terminal(["plan", DEMO_MODEL, "--soc", soc, "--no-measure"]);
    is_as_recorded("plan-mt6989.txt", &plan("mt6989").succeeds());
    let screen = plan("sm8850").succeeds();
    is_as_recorded("plan-sm8850.txt", &screen);
    let full = plan("sm8850").argument("-v").succeeds();
    assert!(full.lines().count() > screen.lines().count(), "{full}");
}

#[test]
fn a_missing_library_is_a_sentence_and_nothing_where_it_is_not_needed() {
    let run = |further: &[&str]| {
        let run = at_a_terminal(["run", DEMO_MODEL, "--soc", "sm8850", "--prompt", "a", "-n", "2"]);
        run.arguments(further)
    };
    let (_, stderr) = run(&[]).refuses();
    assert!(stderr.contains("set SHARDWRIGHT_QNN_LIB") && !stderr.contains("loader's path"), "{stderr}");
    let (_, searched) = run(&["-v"]).refuses();
    assert!(searched.contains("looked at") && searched.contains("loader's path"), "{searched}");
    let outcome = run(&["--on", "cpu"]).outcome();
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(!outcome.stderr.contains("SHARDWRIGHT_QNN_LIB"), "{}", outcome.stderr);
}

#[test]
fn the_doctor_fits_but_for_paths() {
    let screen = at_a_terminal(["doctor"]).succeeds();
    let text: Vec<&str> = screen.lines().filter(|line| !line.contains('/')).collect();
    assert_fits(&text.join("\n"));
    for word in ["cpu", "mt6989", "worker:", "kernel", "profiles of chips"] {
        assert!(screen.contains(word), "no `{word}` in\n{screen}");
    }
    assert!(screen.ends_with("models can run here\n"), "{screen}");
}
