//! Tests the real library's result for each operation in each type. The table shows whether a new
//! library changes a result.
//!
//! Every cell is a graph of one operation on small shapes. It is validated, compiled, executed and
//! compared with a computation in f64. `expected.txt` contains the table, and each difference is
//! printed cell by cell. Child processes of this program run the cells, because some cells crash.
//! The cell that was running during a crash is retried alone. If it crashes again, it is the cause.
//!
//! | Outcome | The library |
//! |---|---|
//! | `V` | validates it and computes it correctly |
//! | `v!` | refuses to validate it, but compiles it and computes it correctly |
//! | `V wrong`, `v! wrong` | compiles it and computes a wrong result |
//! | `V F`, `F` | fails to compile it after validating it or not |
//! | `X` | does not support a tensor of that type |
//! | `crash` | ends the process |
//! | `hang` | does not finish, or uses all memory |
//!
//! `expected.txt` has a comment where an outcome differs from earlier notes about the same library
//! (facts of section 8).

#[path = "../cases/mod.rs"]
mod cases;
mod table;

use cases::*;
use shardwright_shim_qnn::session::{Device, GraphOptions, QnnError};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;
use table::Cell;

/// Environment variable of a child with the chip and a range of cells, such as `69 17 400`.
const CHILD: &str = "SHARDWRIGHT_QNN_CELLS";
/// Prefix of a line with a cell's outcome.
const OUTCOME: &str = "cell> ";
/// Timeout of a cell, which needs about 20 ms on an idle machine.
const PATIENCE: Duration = Duration::from_secs(120);
/// Address space of a child. The library maps half of it.
const MEMORY: u64 = 12 << 30;

/// Runs one cell and returns its outcome.
fn outcome(cell: &Cell, device: &Arc<Device>) -> String {
    let case = &cell.case;
    let validated = case.validate(device).is_ok();
    let options = GraphOptions { vtcm_megabytes: Some(8), unvalidated: true, ..GraphOptions::default() };
    let v = if validated { "V" } else { "v!" };
    match case.run_with(device, &options) {
        Ok(outputs) => {
            let error = outputs
                .iter()
                .zip(&cell.expected)
                .map(|(found, plain)| relative(found, plain))
                .fold(0.0, f64::max);
            // A NaN is wrong, too.
            if error <= 0.03 { v.to_owned() } else { format!("{v} wrong") }
        }
        Err(QnnError::Call(failure)) => match failure.function {
            "tensorCreateGraphTensor" => "X".to_owned(),
            "graphAddNode" | "graphFinalize" if validated => "V F".to_owned(),
            "graphAddNode" | "graphFinalize" => "F".to_owned(),
            function => format!("{v} {function} {}", failure.code),
        },
        Err(error) => format!("not run: {error}"),
    }
}

/// Returns the root mean square of the differences relative to the correct values'.
fn relative(found: &[f64], plain: &[f64]) -> f64 {
    assert_eq!(found.len(), plain.len(), "the cell's own computation has another size");
    let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|value| value * value).sum::<f64>();
    let difference = squares(&mut found.iter().zip(plain).map(|(a, b)| a - b));
    (difference / squares(&mut plain.iter().copied()).max(1e-30)).sqrt()
}

#[test]
fn cells_of_a_child() {
    let Some(task) = std::env::var_os(CHILD) else { return };
    let task: Vec<usize> =
        task.to_string_lossy().split(' ').map(|number| number.parse().expect("a number")).collect();
    let limit = libc::rlimit { rlim_cur: MEMORY, rlim_max: MEMORY };
    let no_core = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: structs that outlive the calls, which bind only this process.
    unsafe {
        libc::setrlimit(libc::RLIMIT_AS, &limit);
        libc::setrlimit(libc::RLIMIT_CORE, &no_core);
    }
    let device = device(&library().expect("the parent has it"), task[0] as u32);
    for (index, cell) in table::cells().iter().enumerate().take(task[2]).skip(task[1]) {
        println!("\n{OUTCOME}{index} {}", outcome(cell, &device));
    }
    println!("\n{OUTCOME}end");
}

/// Runs cells in a child. Returns their outcomes in order, and the reason if it stopped before the
/// end.
fn run_child(soc: u32, first: usize, end: usize) -> (Vec<String>, Option<&'static str>) {
    let mut child = Command::new(std::env::current_exe().expect("a name"))
        .args(["--exact", "cells_of_a_child", "--nocapture", "--test-threads=1"])
        .env(CHILD, format!("{soc} {first} {end}"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .expect("this program starts");
    let (send, receive) = channel();
    let stdout = child.stdout.take().expect("a pipe");
    let reader = std::thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if let Some(reported) = line.strip_prefix(OUTCOME)
                && send.send(reported.to_owned()).is_err()
            {
                return;
            }
        }
    });
    let mut outcomes = Vec::new();
    let stopped = loop {
        match receive.recv_timeout(PATIENCE) {
            Ok(reported) if reported == "end" => break None,
            Ok(reported) => {
                outcomes.push(reported.split_once(' ').expect("a number and an outcome").1.to_owned())
            }
            Err(RecvTimeoutError::Timeout) => break Some("hang"),
            Err(RecvTimeoutError::Disconnected) => break Some("crash"),
        }
    };
    let _ = child.kill();
    let _ = child.wait();
    let _ = reader.join();
    (outcomes, stopped)
}

/// Returns the outcomes of all cells.
fn outcomes(soc: u32) -> Vec<String> {
    let count = table::cells().len();
    let mut all: Vec<String> = Vec::new();
    while all.len() < count {
        let (some, stopped) = run_child(soc, all.len(), count);
        let progressed = !some.is_empty();
        all.extend(some);
        if stopped.is_none() || all.len() == count {
            break;
        }
        let at = all.len();
        // An earlier cell may be the cause, unless the cell was the child's first.
        let (alone, stopped) = if progressed { run_child(soc, at, at + 1) } else { (Vec::new(), stopped) };
        all.push(alone.into_iter().next().unwrap_or_else(|| stopped.unwrap_or("crash").to_owned()));
    }
    all
}

/// Reads the cells and outcomes for one chip from the table in the tree.
fn expected(soc: u32) -> BTreeMap<String, String> {
    let mut table = BTreeMap::new();
    let lines = include_str!("expected.txt").lines().map(str::trim);
    for line in lines.filter(|line| !line.is_empty() && !line.starts_with('#')) {
        let (cell, outcome) = line.split_once(" = ").unwrap_or_else(|| panic!("no outcome in {line:?}"));
        // `cell @43 = …` is valid only for that chip.
        match cell.split_once(" @") {
            None => drop(table.entry(cell.to_owned()).or_insert(outcome.to_owned())),
            Some((cell, only)) if only == soc.to_string() => {
                drop(table.insert(cell.to_owned(), outcome.to_owned()))
            }
            Some(_) => {}
        }
    }
    table
}

fn compare(soc: u32) {
    if library_file().is_none() {
        return;
    }
    if !cfg!(target_arch = "x86_64") {
        return skipped("nothing is simulated here");
    }
    let mut expected = expected(soc);
    let found = outcomes(soc);
    let mut differences = Vec::new();
    for (cell, outcome) in table::cells().iter().zip(&found) {
        match expected.remove(&cell.name) {
            Some(known) if known.split(" | ").any(|known| known == outcome) => {}
            known => differences.push(format!(
                "{} = {outcome}   # was {}",
                cell.name,
                known.as_deref().unwrap_or("nothing")
            )),
        }
    }
    differences.extend(expected.keys().map(|cell| format!("{cell}: there is no such cell any more")));
    println!("{} cells on chip {soc}, {} differ", found.len(), differences.len());
    assert!(
        differences.is_empty(),
        "the library does otherwise than tests/operations/expected.txt:\n{}",
        differences.join("\n")
    );
}

#[test]
fn operations_are_as_expected_on_v79() {
    compare(69);
}

#[test]
#[ignore = "the table once more, for another processor; `cargo test -p shardwright-shim-qnn --test operations -- --ignored` runs it"]
fn operations_are_as_expected_on_v73() {
    compare(43);
}

#[test]
#[ignore = "the table once more, for another processor; `cargo test -p shardwright-shim-qnn --test operations -- --ignored` runs it"]
fn operations_are_as_expected_on_v81() {
    compare(87);
}
