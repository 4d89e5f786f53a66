//! Which way of writing an entry costs least: candidates are compiled for the chip the library has costs of and ranked by simulated cycles.
//!
//! A whole entry takes as long to compile as it takes to compile, so usually one layer of each kind is cut out of it and stands for its like. First the
//! variants are ranked as the compiler schedules unasked, then the best of them with other modes of finalize.

use std::collections::BTreeMap;

use shardwright_shim_abi::EntryView;

use crate::driver::Driver;
use crate::estimate::{cost, part, shape_of, spelled_out};
use crate::flags::{Flags, Search};
use crate::graph::{QnnGraph, QnnNode};
use crate::lower::{self, Rotary, Variants};
use crate::session::GraphOptions;
use crate::soc::Soc;

/// Modes of finalize that are tried beside the library's own choice; mode 1 never won.
const MODES: &[u32] = &[2, 3];
/// Variants that are tried with other modes.
const FINALISTS: usize = 2;

/// How an entry is best written.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// How it is lowered.
    pub variants: Variants,
    /// How hard finalize tries; none for its own choice.
    pub finalize_mode: Option<u32>,
    /// Simulated cycles of the parts that were compared, and of what the rules would have taken; none when nothing was compared.
    pub cycles: Option<(u64, u64)>,
    /// How many ways were compared.
    pub candidates: usize,
}

/// The layer a node of the lowered graph comes from.
fn layer_of(entry: EntryView<'_>, layers: &[Option<u32>], node: &QnnNode) -> Option<u32> {
    debug_assert_eq!(layers.len(), entry.nodes().len());
    node.origin.and_then(|origin| layers.get(origin as usize).copied().flatten())
}

/// One part for each kind of layer, and how often it is there; what belongs to no layer is left out, since variants change none of it.
fn kinds<'w>(entry: EntryView<'_>, graph: &QnnGraph<'w>) -> Vec<(QnnGraph<'w>, u64)> {
    let layers: Vec<Option<u32>> = entry.nodes().map(|node| node.layer()).collect();
    let mut known: Vec<u32> = layers.iter().copied().flatten().collect();
    known.sort_unstable();
    known.dedup();
    let mut kinds: BTreeMap<String, (QnnGraph<'w>, u64)> = BTreeMap::new();
    for layer in known {
        let cut = part(graph, |node| layer_of(entry, &layers, node) == Some(layer));
        if cut.nodes.is_empty() {
            continue;
        }
        kinds.entry(shape_of(&cut)).or_insert((cut, 0)).1 += 1;
    }
    kinds.into_values().collect()
}

/// Cycles of an entry written in one way; none where the library refuses it or has no costs.
fn cycles(
    driver: &Driver,
    soc: &Soc,
    entry: EntryView<'_>,
    variants: Variants,
    options: &GraphOptions,
    search: Search,
) -> Option<u64> {
    let stand_in = Soc::by_id(soc.stand_in().0).ok()?;
    // All candidates pay for what the fused rotary embedding would hide.
    let lowered = lower::lower(entry, stand_in, &spelled_out(variants)).ok()?;
    let parts = match search {
        Search::All => vec![(lowered.graph, 1)],
        _ => kinds(entry, &lowered.graph),
    };
    let one = |(graph, count): &(QnnGraph<'_>, u64)| {
        Some(cost(driver, stand_in.id, graph, options).ok()??.cycles.saturating_mul(*count))
    };
    parts.iter().map(one).try_fold(0u64, |sum, cycles| Some(sum.saturating_add(cycles?)))
}

/// The best way to write an entry, with what flags ask for left as it is. `proceed` is asked between compilations.
///
/// # Errors
///
/// Those of `proceed`.
pub fn search<E>(
    driver: &Driver,
    soc: &Soc,
    entry: EntryView<'_>,
    flags: &Flags,
    mut proceed: impl FnMut() -> Result<(), E>,
) -> Result<Choice, E> {
    let options = flags.graph_options(soc, None);
    let rule = flags.apply(Variants::rules(entry));
    let unsearched =
        Choice { variants: rule, finalize_mode: options.finalize_mode, cycles: None, candidates: 1 };
    if flags.search == Search::Off {
        return Ok(unsearched);
    }
    let mut candidates = vec![rule];
    for variants in Variants::all(entry).into_iter().map(|variants| flags.apply(variants)) {
        // The fused rotary embedding has no cost to compare, so where it is asked for it stays.
        let rotary = if rule.rotary == Rotary::Fused { Rotary::Fused } else { variants.rotary };
        let variants = Variants { rotary, ..variants };
        if !candidates.contains(&variants) {
            candidates.push(variants);
        }
    }
    let mut ranked = Vec::new();
    for variants in candidates {
        proceed()?;
        if let Some(cycles) = cycles(driver, soc, entry, variants, &options, flags.search) {
            ranked.push((cycles, variants, options.finalize_mode));
        }
    }
    let Some(&(of_rule, ..)) = ranked.iter().find(|(_, variants, _)| *variants == rule) else {
        return Ok(unsearched);
    };
    // Stable: among equals the rules' choice stays first.
    ranked.sort_by_key(|(cycles, ..)| *cycles);
    if !flags.has_finalize_mode() {
        let finalists: Vec<Variants> =
            ranked.iter().take(FINALISTS).map(|(_, variants, _)| *variants).collect();
        for variants in finalists {
            for mode in MODES {
                proceed()?;
                let harder = GraphOptions { finalize_mode: Some(*mode), ..options.clone() };
                if let Some(cycles) = cycles(driver, soc, entry, variants, &harder, flags.search) {
                    ranked.push((cycles, variants, Some(*mode)));
                }
            }
        }
        ranked.sort_by_key(|(cycles, ..)| *cycles);
    }
    let candidates = ranked.len();
    Ok(match ranked.first() {
        Some(&(best, variants, finalize_mode)) => {
            Choice { variants, finalize_mode, cycles: Some((best, of_rule)), candidates }
        }
        None => unsearched,
    })
}

impl std::fmt::Display for Choice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Variants { rotary, keys, turned, heads, product, .. } = self.variants;
        let turned = if turned { "turned" } else { "as they lie" };
        write!(f, "rotary {rotary:?}, keys {keys:?} and {turned}, heads {heads:?}, product {product:?}")?;
        match self.finalize_mode {
            Some(mode) => write!(f, ", finalize mode {mode}")?,
            None => f.write_str(", finalize's own mode")?,
        }
        match self.cycles {
            Some((best, rule)) => {
                write!(f, ": {best} simulated cycles, the rules' {rule}, {} ways compared", self.candidates)
            }
            None => f.write_str(": by rule"),
        }
    }
}
