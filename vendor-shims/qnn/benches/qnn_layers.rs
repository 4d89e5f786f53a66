//! Gemma 4 E2B's decoder layers through our lowering, in the vendor's simulated cycles of SoC id
//! 72: our side of `cargo xtask bench qnn`.
//!
//! ```text
//! cargo bench -p shardwright-shim-qnn --bench qnn_layers -- [sliding|full …] [w8|w4 …] [1|64 …]
//! cargo bench -p shardwright-shim-qnn --bench qnn_layers -- states
//! ```
//!
//! The layers are those defined at the top of `tests/benches/qnn_peer.py`: same inputs, outputs,
//! types and context. Each is compiled by the rules, which is the default for users, and then
//! searched: all candidates in the finalize mode of the rules, the best of them in the others, with
//! a rotary embedding that has a cost. The result on stdout is one JSON document. Each trial is one
//! line on stderr.
//!
//! The compiler occasionally needs minutes for a form whose variants need seconds, and a
//! compilation cannot be cancelled. So each trial of a search runs in a process of its own,
//! `trial sliding 64 w8 …`, which is killed after a timeout.
//!
//! `states` compares the two places where new keys and values can be written: by the runtime, after
//! the run, or in the graph by ScatterNd.

#[path = "candidates/mod.rs"]
mod candidates;
// These modules contain more than this program uses. They belong to the tests.
#[path = "../tests/chips/mod.rs"]
mod chips;
#[path = "../tests/lowering/layers.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod layers;
#[path = "../tests/lowering/tables.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod tables;

use std::io::Read;
use std::process::{Command, ExitCode, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use shardwright_shim_abi::raw::{SW_DTYPE_I4, SW_DTYPE_I8};
use shardwright_shim_qnn::estimate::{Cost, cost, spelled_out};
use shardwright_shim_qnn::graph::{
    DataType, Param, QnnEncoding, QnnGraph, QnnNode, QnnTensor, TensorIndex, TensorKind,
};
use shardwright_shim_qnn::library::{LibraryChoice, VARIABLE};
use shardwright_shim_qnn::lower::{Variants, lower};
use shardwright_shim_qnn::session::GraphOptions;
use shardwright_shim_qnn::soc::SocId;
use shardwright_shim_qnn::{Driver, Settings};

use layers::Layer;

/// Finalize modes to try in addition to the mode of the rules. `None` is the library's default,
/// which produces the same code as mode 2. Mode 1 was never the fastest.
const MODES: [Option<u32>; 1] = [None];
/// The chip whose cycles are compared.
const STAND_IN: SocId = SocId(72);
/// Number of variants tried in those modes.
const FINALISTS: usize = 2;
/// Fast memory, megabytes. The peer uses the same size.
const VTCM_MEGABYTES: u32 = 8;
/// Timeout of one trial. Whole decoder layers compile in seconds.
const PATIENCE: Duration = Duration::from_secs(120);
/// First argument of a process that runs one trial.
const TRIAL: &str = "trial";

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let wanted = |kind: &[&str], word: &str| {
        let selected: Vec<&String> = words.iter().filter(|word| kind.contains(&word.as_str())).collect();
        selected.is_empty() || selected.iter().any(|selected| *selected == word)
    };
    let library = match std::env::var_os(VARIABLE) {
        Some(_) => None,
        None => LibraryChoice::vendored().filter(|library| library.exists()),
    };
    let driver = match Driver::open(&Settings { library, ..Settings::default() }) {
        Ok(driver) => driver,
        Err(error) => {
            eprintln!("error: {error}\nhelp: `cargo xtask vendor qnn` fetches the library");
            return ExitCode::FAILURE;
        }
    };
    match words.split_first() {
        Some((word, way)) if word == TRIAL => return trial(&driver, way),
        _ if words.iter().any(|word| word == "states") => return states(&driver),
        _ => {}
    }
    let mut cells = Vec::new();
    for name in ["sliding", "full"] {
        for rows in [1, 64] {
            for weights in ["w8", "w4"] {
                let chosen = wanted(&["sliding", "full"], name)
                    && wanted(&["1", "64"], &rows.to_string())
                    && wanted(&["w8", "w4"], weights);
                if chosen {
                    let Some((unasked, best, tried)) = measured(name, rows, weights) else {
                        eprintln!("error: the rules' form of {name} {rows} {weights} has no estimate");
                        return ExitCode::FAILURE;
                    };
                    let mut cell = shown(&unasked);
                    let searched = shown(&best);
                    if let Value::Object(cell) = &mut cell {
                        cell.extend([
                            ("layer".to_owned(), name.into()),
                            ("rows".to_owned(), rows.into()),
                            ("weights".to_owned(), weights.into()),
                            ("tried".to_owned(), tried.into()),
                            ("searched".to_owned(), searched),
                        ]);
                    }
                    cells.push(cell);
                }
            }
        }
    }
    println!("{:#}", json!({ "cells": cells }));
    ExitCode::SUCCESS
}

/// A way to compile a layer, and its cost.
#[derive(Clone)]
struct Trial {
    cost: Cost,
    variants: Variants,
    mode: Option<u32>,
}

/// Creates a layer from its command-line names.
fn layer(name: &str, rows: u64, weights: &str) -> Layer {
    let dtype = if weights == "w4" { SW_DTYPE_I4 } else { SW_DTYPE_I8 };
    if name == "full" { Layer::full(rows, dtype) } else { Layer::sliding(rows, dtype) }
}

/// Compiles a layer in one way and prints its cost. The arguments are layer, rows, weights, mode
/// and variants.
fn trial(driver: &Driver, way: &[String]) -> ExitCode {
    let [name, rows, weights, mode, variants] = way else { return ExitCode::FAILURE };
    let (Ok(rows), Ok(mode), Ok(variants)) =
        (rows.parse(), mode.parse::<u32>(), serde_json::from_str::<Variants>(variants))
    else {
        return ExitCode::FAILURE;
    };
    let tables = layer(name, rows, weights).tables(true);
    let options = GraphOptions {
        vtcm_megabytes: Some(VTCM_MEGABYTES),
        finalize_mode: Some(mode).filter(|mode| *mode > 0),
        ..GraphOptions::default()
    };
    let cost = lower(tables.view(), &chips::soc("soc-72"), &variants)
        .and_then(|lowered| Ok(cost(driver, STAND_IN, &lowered.graph, &options)?));
    match cost {
        Ok(cost) => println!("{}", json!(cost)),
        Err(error) => eprintln!("{error}"),
    }
    ExitCode::SUCCESS
}

/// Measures the cost of one way in a separate process. Returns `None` if it does not finish in
/// time.
fn cost_of(layer: [&str; 3], variants: &Variants, mode: Option<u32>) -> Option<Cost> {
    let mode = mode.unwrap_or(0).to_string();
    let mut child = Command::new(std::env::current_exe().ok()?)
        .arg(TRIAL)
        .args(layer)
        .args([mode, serde_json::to_string(variants).ok()?])
        .stdout(Stdio::piped())
        .spawn()
        .ok()?;
    let end = Instant::now() + PATIENCE;
    while child.try_wait().ok()?.is_none() {
        if Instant::now() > end {
            eprintln!("abandoned after {} s", PATIENCE.as_secs());
            child.kill().and_then(|()| child.wait()).ok()?;
            return None;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    let mut answer = String::new();
    child.stdout.take()?.read_to_string(&mut answer).ok()?;
    serde_json::from_str(answer.lines().last()?).ok()?
}

fn shown(trial: &Trial) -> Value {
    json!({
        "cycles": trial.cost.cycles,
        "microseconds": trial.cost.microseconds,
        "read_bytes": trial.cost.bytes_moved,
        "uncosted": trial.cost.uncosted.len(),
        "variant": words(&trial.variants, trial.mode),
    })
}

/// Formats the variants with the names of the compiler flags.
fn words(variants: &Variants, mode: Option<u32>) -> String {
    let words = match serde_json::to_value(variants) {
        Ok(Value::Object(members)) => members
            .iter()
            .filter(|(name, _)| *name != "widest")
            .map(|(name, value)| {
                format!("{name} {}", value.as_str().map_or(value.to_string(), str::to_owned))
            })
            .collect::<Vec<_>>()
            .join(", "),
        _ => format!("{variants:?}"),
    };
    format!("{words}, mode {}", mode.unwrap_or(0))
}

/// Searches the candidates for a layer. Returns the rules' result, the best result, and the number
/// of ways tried.
fn measured(name: &str, rows: u64, weights: &str) -> Option<(Trial, Trial, usize)> {
    let label = format!("{name:7} {rows:3} {weights}");
    let trial = |variants: Variants, mode: Option<u32>| -> Option<Trial> {
        let shown = words(&variants, mode);
        let Some(cost) = cost_of([name, &rows.to_string(), weights], &variants, mode) else {
            eprintln!("{label}: no estimate of {shown}");
            return None;
        };
        eprintln!("{label} {:>9}  {shown}", cost.cycles);
        // An estimate that omits operations would win unfairly.
        if !cost.uncosted.is_empty() {
            eprintln!("{label}: without a cost: {}", cost.uncosted.join(", "));
            return None;
        }
        Some(Trial { cost, variants, mode })
    };
    let mode = chips::soc("soc-72").finalize_mode;
    let mut candidates = Vec::new();
    for variants in candidates::candidates(layer(name, rows, weights).tables(true).view()) {
        let variants = spelled_out(variants);
        if !candidates.contains(&variants) {
            candidates.push(variants);
        }
    }
    let (rule, rest) = candidates.split_first()?;
    let unasked = trial(*rule, mode)?;
    let mut found = vec![unasked.clone()];
    found.extend(rest.iter().filter_map(|variants| trial(*variants, mode)));
    found.sort_by_key(|trial| trial.cost.cycles);
    let finalists: Vec<Variants> = found.iter().take(FINALISTS).map(|trial| trial.variants).collect();
    for variants in finalists {
        found.extend(MODES.iter().filter_map(|mode| trial(variants, *mode)));
    }
    let tried = found.len();
    let best = found.into_iter().min_by_key(|trial| trial.cost.cycles)?;
    Some((unasked, best, tried))
}

/// Compares the cycles of two graphs: one outputs new keys and values separately, the other writes
/// them into the state.
fn states(driver: &Driver) -> ExitCode {
    let soc = &chips::soc("soc-72");
    let options = GraphOptions {
        vtcm_megabytes: Some(VTCM_MEGABYTES),
        finalize_mode: soc.finalize_mode,
        ..GraphOptions::default()
    };
    let mut cells = Vec::new();
    for rows in [1, 64] {
        let tables = Layer::sliding(rows, SW_DTYPE_I8).tables(true);
        let lowered = match lower(tables.view(), soc, &Variants::rules(tables.view())) {
            Ok(lowered) => lowered.graph,
            Err(error) => {
                eprintln!("error: {error}");
                return ExitCode::FAILURE;
            }
        };
        let written = written_inside(&lowered, rows as u32);
        for (place, graph) in [("runtime", &lowered), ("graph", &written)] {
            match cost(driver, STAND_IN, graph, &options) {
                Ok(Some(cost)) => cells.push(json!({
                    "rows": rows,
                    "written_by": place,
                    "cycles": cost.cycles,
                    "microseconds": cost.microseconds,
                    "moved_bytes": cost.bytes_moved,
                    "uncosted": cost.uncosted,
                })),
                Ok(None) => eprintln!("{rows} rows, written by the {place}: no estimate"),
                Err(error) => eprintln!("{rows} rows, written by the {place}: {error}"),
            }
        }
    }
    println!("{:#}", json!({ "states": cells }));
    ExitCode::SUCCESS
}

/// Returns the layer with ScatterNd where states and new rows are joined. Then the whole states are
/// outputs, and attention reads only their rows.
fn written_inside<'w>(graph: &QnnGraph<'w>, rows: u32) -> QnnGraph<'w> {
    let mut graph = graph.clone();
    let is_joining = |graph: &QnnGraph<'_>, node: &QnnNode| {
        let first = &graph.tensors[node.inputs[0].0 as usize];
        node.op == "Concat" && first.name.starts_with("state.") && first.dims.len() == 2
    };
    let joining = graph.nodes.iter().find(|node| is_joining(&graph, node));
    let Some(context) = joining.map(|node| graph.tensors[node.inputs[0].0 as usize].dims[0]) else {
        return graph;
    };
    for tensor in &mut graph.tensors {
        tensor
            .dims
            .iter_mut()
            .filter(|extent| **extent == context + rows)
            .for_each(|extent| *extent = context);
    }
    let slots = TensorIndex(graph.tensors.len() as u32);
    graph.tensors.push(QnnTensor {
        name: "slots".to_owned(),
        kind: TensorKind::Input,
        dtype: DataType::Int32,
        dims: vec![rows, 1],
        encoding: QnnEncoding::None,
    });
    for index in 0..graph.nodes.len() {
        if !is_joining(&graph, &graph.nodes[index]) {
            continue;
        }
        let node = &mut graph.nodes[index];
        let (state, new) = (node.inputs[0], node.inputs[1]);
        node.op = "ScatterNd";
        node.params = vec![("reduction", Param::U32(0))];
        node.inputs = vec![state, slots, new];
        let updated = node.outputs[0];
        graph.tensors[updated.0 as usize].kind = TensorKind::Output;
        graph.tensors[new.0 as usize].kind = TensorKind::Native;
    }
    graph
}
