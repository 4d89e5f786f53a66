//! Gemma 4 E2B's decoder layers through our lowering, in the vendor's simulated cycles of SoC id 72: our side of `cargo xtask bench qnn`.
//!
//! ```text
//! cargo bench -p shardwright-shim-qnn --bench qnn_layers -- [sliding|full …] [w8|w4 …] [1|64 …]
//! ```
//!
//! The layers are those that the head of `tests/benches/qnn_peer.py` defines: same inputs, outputs, types and context. Every variant of the
//! lowering is compiled in every mode of finalize with a rotary embedding that has a cost, as a search before compiling does. The answer
//! on stdout is one JSON document; each trial is a line on stderr.

// Both hold more than this program uses: they belong to the tests.
#[path = "../tests/lowering/layers.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod layers;
#[path = "../tests/lowering/tables.rs"]
#[allow(dead_code, reason = "the tests use the rest")]
mod tables;

use std::process::ExitCode;

use serde_json::{Value, json};
use shardwright_shim_abi::raw::{SW_DTYPE_I4, SW_DTYPE_I8};
use shardwright_shim_qnn::estimate::{Cost, cost};
use shardwright_shim_qnn::library::{LibraryChoice, VARIABLE};
use shardwright_shim_qnn::lower::{Rotary, Variants, lower};
use shardwright_shim_qnn::session::GraphOptions;
use shardwright_shim_qnn::soc::{STAND_IN, Soc};
use shardwright_shim_qnn::{Driver, Settings};

use layers::Layer;

/// Modes of finalize; none is the library's own choice. Mode 2 made the same code as that, mode 1 was never the best.
const MODES: [Option<u32>; 2] = [Some(3), None];
/// What the peer is given, too.
const VTCM_MEGABYTES: u32 = 8;

fn main() -> ExitCode {
    let words: Vec<String> = std::env::args().skip(1).filter(|word| !word.starts_with('-')).collect();
    let wanted = |kind: &[&str], word: &str| {
        let given: Vec<&String> = words.iter().filter(|word| kind.contains(&word.as_str())).collect();
        given.is_empty() || given.iter().any(|given| *given == word)
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
    let mut cells = Vec::new();
    for name in ["sliding", "full"] {
        for rows in [1, 64] {
            for (weights, dtype) in [("w8", SW_DTYPE_I8), ("w4", SW_DTYPE_I4)] {
                let chosen = wanted(&["sliding", "full"], name)
                    && wanted(&["1", "64"], &rows.to_string())
                    && wanted(&["w8", "w4"], weights);
                if chosen {
                    let layer =
                        if name == "full" { Layer::full(rows, dtype) } else { Layer::sliding(rows, dtype) };
                    let Some(best) = best(&driver, &layer, &format!("{name:7} {rows:3} {weights}")) else {
                        eprintln!("error: no variant of {name} {rows} {weights} has an estimate");
                        return ExitCode::FAILURE;
                    };
                    cells.push(cell(name, rows, weights, &best));
                }
            }
        }
    }
    println!("{:#}", json!({ "cells": cells }));
    ExitCode::SUCCESS
}

struct Best {
    cost: Cost,
    variants: Variants,
    mode: Option<u32>,
    tried: usize,
}

fn cell(layer: &str, rows: u64, weights: &str, best: &Best) -> Value {
    json!({
        "layer": layer,
        "rows": rows,
        "weights": weights,
        "cycles": best.cost.cycles,
        "microseconds": best.cost.microseconds,
        "read_bytes": best.cost.bytes_moved,
        "uncosted": best.cost.uncosted.len(),
        "variant": format!("{}, best of {}", shown(&best.variants, best.mode), best.tried),
    })
}

/// The variant in the words of the flags.
fn shown(variants: &Variants, mode: Option<u32>) -> String {
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

/// The best variant all of whose operations have a cost.
fn best(driver: &Driver, layer: &Layer, cell: &str) -> Option<Best> {
    let tables = layer.tables(true);
    let entry = tables.view();
    let soc = Soc::by_id(STAND_IN).ok()?;
    let mut candidates: Vec<Variants> = Vec::new();
    for variants in Variants::all(entry) {
        let spelled = match variants.rotary {
            Rotary::Fused => vec![Rotary::Pairs, Rotary::Exchanged],
            costed => vec![costed],
        };
        for rotary in spelled {
            let variants = Variants { rotary, ..variants };
            if !candidates.contains(&variants) {
                candidates.push(variants);
            }
        }
    }
    let tried = candidates.len() * MODES.len();
    let mut best: Option<Best> = None;
    for variants in candidates {
        let lowered = match lower(entry, soc, &variants) {
            Ok(lowered) => lowered,
            Err(error) => {
                eprintln!("{cell} {}: {error}", shown(&variants, None));
                continue;
            }
        };
        for mode in MODES {
            let options = GraphOptions {
                vtcm_megabytes: Some(VTCM_MEGABYTES),
                finalize_mode: mode,
                ..GraphOptions::default()
            };
            let found = match cost(driver, STAND_IN, &lowered.graph, &options) {
                Ok(Some(found)) => found,
                Ok(None) => continue,
                Err(error) => {
                    eprintln!("{cell} {}: {error}", shown(&variants, mode));
                    continue;
                }
            };
            let uncosted = match found.uncosted.len() {
                0 => String::new(),
                count => format!(", {count} without a cost: {}", found.uncosted.join(", ")),
            };
            eprintln!("{cell} {:>9}  {}{uncosted}", found.cycles, shown(&variants, mode));
            // An estimate that leaves operations out would win for nothing.
            if found.uncosted.is_empty() && best.as_ref().is_none_or(|best| found.cycles < best.cost.cycles) {
                best = Some(Best { cost: found, variants, mode, tried });
            }
        }
    }
    best
}
