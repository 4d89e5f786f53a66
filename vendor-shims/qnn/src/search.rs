//! Which way of writing an entry costs least: candidates are compiled for the chip the library has
//! costs of and ranked by simulated cycles.
//!
//! A whole entry takes as long to compile as it takes to compile, so usually one layer of each kind
//! is cut out of it and stands for its like. First the variants are ranked in the mode of finalize
//! that is compiled by default, then the best of them in others.
//!
//! The compiler was seen to take minutes for a variant whose likes take seconds. So each trial is
//! made in a child of this process, which is killed when its time is over; what is abandoned so is
//! said and not chosen.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::time::Duration;

use shardwright_shim_abi::EntryView;

use crate::driver::Driver;
use crate::estimate::{Within, costs_within, part, shape_of, spelled_out};
use crate::flags::{self, Flags, Search};
use crate::graph::{QnnGraph, QnnNode};
use crate::lower::{self, Rotary, Variants};
use crate::recognise::recognise;
use crate::rules;
use crate::session::GraphOptions;
use crate::soc::Soc;

/// Modes of finalize that are tried beside the one that is compiled by default: the library's own
/// choice, which mode 2 made the same code as, and 3. Mode 1 never won.
const MODES: &[Option<u32>] = &[None, Some(3)];
/// Variants that are tried with other modes.
const FINALISTS: usize = 2;

/// How an entry is best written.
#[derive(Clone, Debug, PartialEq)]
pub struct Choice {
    /// How it is lowered.
    pub variants: Variants,
    /// How hard finalize tries; none for its own choice.
    pub finalize_mode: Option<u32>,
    /// Simulated cycles of the parts that were compared, and of what the rules would have taken;
    /// none when nothing was compared.
    pub cycles: Option<(u64, u64)>,
    /// How many ways were compared.
    pub candidates: usize,
    /// What the compiler did not come to an end with in time.
    pub abandoned: Vec<Way>,
    /// How long each trial had.
    pub time: Duration,
    /// What the rules would have taken.
    rule: Variants,
}

/// A way to write an entry.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Way {
    /// How it is lowered.
    pub variants: Variants,
    /// Mode of finalize; none for the library's own choice.
    pub mode: Option<u32>,
}

/// What came of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trial {
    /// Simulated cycles.
    Cycles(u64),
    /// The library refuses it, or has no costs of it.
    Refused,
    /// It did not end in time.
    Abandoned,
}

/// The layer a node of the lowered graph comes from.
fn layer_of(entry: EntryView<'_>, layers: &[Option<u32>], node: &QnnNode) -> Option<u32> {
    debug_assert_eq!(layers.len(), entry.nodes().len());
    node.origin.and_then(|origin| layers.get(origin as usize).copied().flatten())
}

/// One part for each kind of layer, and how often it is there; what belongs to no layer is left
/// out, since variants change none of it.
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

/// Tries one way to write an entry.
fn trial<E>(
    driver: &Driver,
    soc: &Soc,
    entry: EntryView<'_>,
    way: Way,
    (flags, options): (&Flags, &GraphOptions),
    proceed: impl FnMut() -> Result<(), E>,
) -> Result<Trial, E> {
    let Some(stand_in) = soc.stand_in else { return Ok(Trial::Refused) };
    // All candidates pay for what the fused rotary embedding would hide.
    let Ok(lowered) = lower::lower(entry, soc, &spelled_out(way.variants)) else {
        return Ok(Trial::Refused);
    };
    let parts = match flags.search {
        Search::All => vec![(lowered.graph, 1)],
        _ => kinds(entry, &lowered.graph),
    };
    let graphs: Vec<&QnnGraph<'_>> = parts.iter().map(|(graph, _)| graph).collect();
    let options = GraphOptions { finalize_mode: way.mode, ..options.clone() };
    let costs = match costs_within(driver, stand_in, &graphs, &options, flags.search_time(), proceed) {
        Ok(Ok(Within::Costs(costs))) => costs,
        Ok(Ok(Within::Abandoned)) => return Ok(Trial::Abandoned),
        Ok(Err(error)) => return Err(error),
        Err(_) => return Ok(Trial::Refused),
    };
    let one = |(cost, (_, count)): (&Option<crate::estimate::Cost>, &(QnnGraph<'_>, u64))| {
        Some(cost.as_ref()?.cycles.saturating_mul(*count))
    };
    let whole =
        costs.iter().zip(&parts).map(one).try_fold(0u64, |sum, cycles| Some(sum.saturating_add(cycles?)));
    Ok(whole.map_or(Trial::Refused, Trial::Cycles))
}

/// The best way to write an entry, with what flags ask for left as it is. `proceed` is asked all
/// the while.
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
    let rule = flags.apply(rules::of(entry, &options));
    if flags.search == Search::Off {
        return match choose(&[rule], options.finalize_mode, &[], flags.search_time(), |_| Ok(Trial::Refused))
        {
            Ok(choice) => Ok(choice),
            Err::<_, Infallible>(never) => match never {},
        };
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
    // What a mode is worth differs between architectures, of which one alone is costed here.
    let is_alike = recognise(driver, soc).is_ok_and(|known| known.stand_in_is_alike == Some(true));
    let modes = if flags.has_finalize_mode() || !is_alike { &[] } else { MODES };
    choose(&candidates, options.finalize_mode, modes, flags.search_time(), |way| {
        proceed()?;
        trial(driver, soc, entry, way, (flags, &options), &mut proceed)
    })
}

/// The best of the candidates, the rules' first, in this mode, and of the best of them in other
/// modes.
fn choose<E>(
    candidates: &[Variants],
    mode: Option<u32>,
    modes: &[Option<u32>],
    time: Duration,
    mut trial: impl FnMut(Way) -> Result<Trial, E>,
) -> Result<Choice, E> {
    let rule = candidates[0];
    let mut choice = Choice {
        variants: rule,
        finalize_mode: mode,
        cycles: None,
        candidates: 1,
        abandoned: Vec::new(),
        time,
        rule,
    };
    let mut ranked: Vec<(u64, Way)> = Vec::new();
    let mut tried = |way: Way, ranked: &mut Vec<(u64, Way)>, abandoned: &mut Vec<Way>| -> Result<(), E> {
        match trial(way)? {
            Trial::Cycles(cycles) => ranked.push((cycles, way)),
            Trial::Refused => {}
            Trial::Abandoned => abandoned.push(way),
        }
        Ok(())
    };
    for variants in candidates {
        tried(Way { variants: *variants, mode }, &mut ranked, &mut choice.abandoned)?;
        // Without what the rules cost there is nothing to be better than, and what they take is
        // what is compiled.
        if ranked.is_empty() {
            return Ok(choice);
        }
    }
    let of_rule = ranked[0].0;
    // Stable: among equals the rules' choice stays first.
    ranked.sort_by_key(|(cycles, _)| *cycles);
    let finalists: Vec<Variants> = ranked.iter().take(FINALISTS).map(|(_, way)| way.variants).collect();
    for variants in finalists {
        for other in modes.iter().filter(|other| **other != mode) {
            tried(Way { variants, mode: *other }, &mut ranked, &mut choice.abandoned)?;
        }
    }
    ranked.sort_by_key(|(cycles, _)| *cycles);
    choice.candidates = ranked.len();
    if let Some((best, way)) = ranked.first() {
        choice.variants = way.variants;
        choice.finalize_mode = way.mode;
        choice.cycles = Some((*best, of_rule));
    }
    Ok(choice)
}

impl std::fmt::Display for Choice {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let mode = |mode: Option<u32>| match mode {
            Some(mode) => format!("finalize mode {mode}"),
            None => "finalize's own mode".to_owned(),
        };
        write!(f, "{}, {}", flags::words(&self.variants, &self.rule), mode(self.finalize_mode))?;
        match self.cycles {
            Some((best, rule)) => {
                write!(f, ": {best} simulated cycles, the rules' {rule}, {} ways compared", self.candidates)?;
            }
            None => f.write_str(": by rule")?,
        }
        if self.abandoned.is_empty() {
            return Ok(());
        }
        let seconds = self.time.as_secs();
        write!(f, "; {} abandoned after {seconds} s each: ", self.abandoned.len())?;
        for (index, way) in self.abandoned.iter().enumerate() {
            let comma = if index == 0 { "" } else { "; " };
            write!(f, "{comma}{}, {}", flags::words(&way.variants, &self.rule), mode(way.mode))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lower::Heads;

    const TIME: Duration = Duration::from_secs(7);

    fn candidates() -> [Variants; 3] {
        let rule = Variants::default();
        [rule, Variants { heads: Heads::Grouped, ..rule }, Variants { turned: false, ..rule }]
    }

    fn chosen(trial: impl Fn(Way) -> Trial) -> Choice {
        choose::<Infallible>(&candidates(), Some(3), MODES, TIME, |way| Ok(trial(way))).expect("chosen")
    }

    #[test]
    fn the_fewest_cycles_are_chosen_and_the_rules_among_equals() {
        let [rule, grouped, turned] = candidates();
        let best = chosen(|way| Trial::Cycles(if way.variants == grouped { 9 } else { 10 }));
        assert_eq!((best.variants, best.finalize_mode, best.cycles), (grouped, Some(3), Some((9, 10))));
        // Three in the default mode, the best two in the library's own.
        assert_eq!((best.candidates, best.abandoned.len()), (5, 0));
        let best =
            chosen(|way| Trial::Cycles(if way.mode.is_none() && way.variants == rule { 9 } else { 10 }));
        assert_eq!((best.variants, best.finalize_mode, best.cycles), (rule, None, Some((9, 10))));
        let best = chosen(|way| if way.variants == turned { Trial::Refused } else { Trial::Cycles(10) });
        assert_eq!((best.variants, best.finalize_mode, best.candidates), (rule, Some(3), 4));
        assert_eq!(
            best.to_string(),
            "as the rules have it, finalize mode 3: 10 simulated cycles, the rules' 10, 4 ways compared"
        );
    }

    #[test]
    fn what_was_abandoned_is_said_and_not_chosen() {
        let [rule, grouped, _] = candidates();
        let best = chosen(|way| if way.variants == grouped { Trial::Abandoned } else { Trial::Cycles(10) });
        assert_eq!((best.variants, best.candidates), (rule, 4));
        assert_eq!(best.abandoned, [Way { variants: grouped, mode: Some(3) }]);
        let said = best.to_string();
        assert!(said.contains("1 abandoned after 7 s each: heads grouped, finalize mode 3"), "{said}");
        // Nothing to compare with: the rules decide, and nothing else is tried.
        let best = chosen(|way| if way.variants == rule { Trial::Abandoned } else { Trial::Cycles(1) });
        assert_eq!((best.variants, best.cycles, best.abandoned.len()), (rule, None, 1));
        assert!(best.to_string().contains("by rule; 1 abandoned"), "{best}");
    }
}
