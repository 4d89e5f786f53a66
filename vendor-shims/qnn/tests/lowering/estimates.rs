//! Which variant the vendor's scheduler likes: where the table of rules comes from. Takes minutes,
//! so it is run by hand.

use shardwright_shim_abi::raw::*;
use shardwright_shim_qnn::lower::Variants;

use super::layers::Layer;
use super::shapes::lowered;
use super::vendor::{device, estimate};

/// `SHARDWRIGHT_QNN_ESTIMATES=sliding,64` chooses among the layers: every word must occur in a
/// name.
fn is_wanted(layer: &str) -> bool {
    let chosen = std::env::var("SHARDWRIGHT_QNN_ESTIMATES").unwrap_or_default();
    chosen.split(',').all(|word| layer.contains(word))
}

#[test]
#[ignore = "compiles hundreds of layers; `cargo test -p shardwright-shim-qnn --test lowering -- --ignored` runs it"]
fn variants_of_gemma4_e2b_layers() {
    let Some(device) = device("variants_of_gemma4_e2b_layers", 72) else { return };
    for (kind, make) in [("sliding", Layer::sliding as fn(u64, u32) -> Layer), ("full", Layer::full)] {
        for rows in [1, 64] {
            for (weights, dtype) in [("w8", SW_DTYPE_I8), ("w4", SW_DTYPE_I4)] {
                let name = format!("{kind} {rows} {weights}");
                if !is_wanted(&name) {
                    continue;
                }
                let tables = make(rows, dtype).tables(true);
                for variants in Variants::all(tables.view()) {
                    for mode in [Some(3), None] {
                        let lowered = lowered(&tables, &variants);
                        match estimate(&device, &lowered.graph, mode) {
                            Ok(profile) => println!(
                                "{name}: {} cycles, {} us, {} read, {} uncosted, mode {mode:?}, {variants:?}",
                                profile.cycles.unwrap_or(0),
                                profile.microseconds.unwrap_or(0),
                                profile.read_bytes.unwrap_or(0),
                                profile.uncosted_count
                            ),
                            Err(error) => println!("{name}: {variants:?}: {error}"),
                        }
                    }
                }
            }
        }
    }
}
