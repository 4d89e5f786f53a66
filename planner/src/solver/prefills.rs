//! Choice of prefill entry points of a chain: the largest, or, if the usual lengths of prompts are
//! known, the set with the least time for them.

use std::collections::{BTreeMap, BTreeSet};

use crate::table::{CostTable, prefill_runs, takes_part, unit_kinds};
use crate::{Cause, Cost, Entry, EntryKind, Reason, Request, names};

/// Maximum prefill entry points of a chain. Each is one more graph to compile and to load.
const MOST: usize = 3;

/// Maximum number of sizes that are combined, the largest ones.
const COMBINED: usize = 8;

/// Returns sets of prefill entry points to try, best first. `prefills` is sorted from the largest
/// down.
///
/// The time of a prompt is the likely time of its runs with the whole model, on the first targets
/// and in the first formats that support it. Each entry point adds a hundredth, because estimates
/// are not more precise. Without lengths of prompts, the largest is best.
pub(super) fn sets(request: &Request, prefills: &[Entry]) -> Vec<Vec<Entry>> {
    let alone = || prefills.iter().map(|entry| vec![*entry]);
    let Some(times) = whole_times(request, prefills) else { return alone().collect() };
    let combined: Vec<Entry> = times.iter().map(|(entry, _)| *entry).take(COMBINED).collect();
    let mut best: Vec<Option<(u128, Vec<Entry>)>> = vec![None; MOST];
    for chosen in 1..1_u32 << combined.len() {
        let size = chosen.count_ones() as usize;
        if size > MOST {
            continue;
        }
        let of = |(index, entry): (usize, &Entry)| (chosen >> index & 1 == 1).then_some(*entry);
        let set: Vec<Entry> = combined.iter().enumerate().filter_map(of).collect();
        let time = time_of(request, &set, &times).saturating_mul(100 + size as u128);
        let own = &mut best[size - 1];
        if own.as_ref().is_none_or(|(least, _)| time < *least) {
            *own = Some((time, set));
        }
    }
    let mut sets: Vec<(u128, Vec<Entry>)> = best.into_iter().flatten().collect();
    sets.sort_by_key(|(time, set)| (*time, set.len()));
    let mut sets: Vec<Vec<Entry>> = sets.into_iter().map(|(_, set)| set).collect();
    // An entry point with fewer rows may fit limits better.
    for set in alone() {
        if !sets.contains(&set) {
            sets.push(set);
        }
    }
    sets
}

/// Returns the total microseconds of all usual prompts.
fn time_of(request: &Request, set: &[Entry], times: &[(Entry, u64)]) -> u128 {
    let once = |entry: &Entry| times.iter().find(|(of, _)| of == entry).map_or(0, |(_, time)| *time);
    let of_prompt = |tokens: u32| {
        let runs = prefill_runs(set, tokens);
        let times = set.iter().zip(runs).map(|(entry, runs)| u128::from(once(entry)) * u128::from(runs));
        times.fold(0_u128, u128::saturating_add)
    };
    let of = |prompt: &crate::PromptLength| of_prompt(prompt.tokens).saturating_mul(prompt.count.into());
    request.prompts.iter().map(of).fold(0, u128::saturating_add)
}

/// Returns the likely microseconds of one run of the whole model at each of these entry points that
/// some target supports in some formats, in order. Returns `None` if lengths of prompts were not
/// specified, or no target supports a part at all of them.
fn whole_times(request: &Request, prefills: &[Entry]) -> Option<Vec<(Entry, u64)>> {
    if request.prompts.is_empty() {
        return None;
    }
    let table = CostTable::new(request);
    let units: Vec<u32> = request.model.components.iter().flat_map(unit_kinds).collect();
    let works = |kind: u32| prefills.iter().any(|&entry| takes_part(request, kind, entry));
    let kinds: BTreeSet<u32> = units.iter().copied().filter(|&kind| works(kind)).collect();
    let is_legal = |entry: Entry| {
        let row = |kind, (target, formats)| table.row(kind, target, formats, entry);
        let is_taken = |kind| places(request).any(|place| row(kind, place).and_then(Cost::time).is_some());
        kinds.iter().all(|&kind| is_taken(kind))
    };
    let prefills: Vec<Entry> = prefills.iter().copied().filter(|entry| is_legal(*entry)).collect();
    let times = kinds.iter().map(|&kind| Some((kind, times_of(request, &table, kind, &prefills)?)));
    let times = times.collect::<Option<BTreeMap<u32, Vec<u64>>>>()?;
    let sum = |index: usize| {
        let own = units.iter().filter_map(|kind| times.get(kind)).map(|times| times[index]);
        own.fold(0, u64::saturating_add)
    };
    Some(prefills.iter().enumerate().map(|(index, entry)| (*entry, sum(index))).collect())
}

/// Iterates over pairs of target and format tuple, in order of preference.
fn places(request: &Request) -> impl Iterator<Item = (u32, u32)> {
    let count = |length: usize| 0..u32::try_from(length).unwrap_or(u32::MAX);
    let formats = count(request.formats.len());
    count(request.targets.len()).flat_map(move |target| formats.clone().map(move |formats| (target, formats)))
}

/// Returns the likely microseconds of one layer of a kind at each of these entry points, on the
/// first target and in the first formats that are legal at all of them.
fn times_of(request: &Request, table: &CostTable<'_>, kind: u32, prefills: &[Entry]) -> Option<Vec<u64>> {
    places(request).find_map(|(target, formats)| {
        let at = |&entry| Some(table.row(kind, target, formats, entry)?.time()?.likely);
        prefills.iter().map(at).collect()
    })
}

/// Explains the prefill entry points of the chain. Returns `None` if they were not chosen for the
/// usual prompts.
pub(super) fn explain(request: &Request, entries: &[Entry]) -> Option<Reason> {
    let is_prefill = |entry: &Entry| entry.kind == EntryKind::Prefill;
    let chosen: Vec<Entry> = entries.iter().copied().filter(is_prefill).collect();
    let context = chosen.first()?.context;
    let offered = |entry: &Entry| {
        is_prefill(entry) && entry.context == context && entry.rows <= request.goals.max_prefill_rows
    };
    let offered: Vec<Entry> = request.entries.iter().copied().filter(offered).collect();
    let prompts: u128 = request.prompts.iter().map(|prompt| u128::from(prompt.count)).sum();
    let times = whole_times(request, &offered)?;
    let mean = |set: &[Entry]| {
        let mean = time_of(request, set, &times).checked_div(prompts)?;
        Some(u64::try_from(mean).unwrap_or(u64::MAX))
    };
    let largest = times.iter().map(|(entry, _)| *entry).max_by_key(|entry| entry.rows)?;
    let named: Vec<String> = chosen.iter().map(|entry| names::entry(*entry)).collect();
    let [own, alone] = names::apart("microseconds", [mean(&chosen)?, mean(&[largest])?]);
    let mut because = format!("the prefill of a usual prompt takes {own}");
    if chosen != [largest] {
        because.push_str(&format!(", instead of {alone} with {} alone", names::entry(largest)));
    }
    Some(Reason {
        shard: None,
        choice: named.join(" and "),
        because,
        cause: Cause::Goal("usual-prompt".to_owned()),
    })
}

#[cfg(test)]
mod tests {
    use super::super::{Settings, solve};
    use crate::testing::RequestBuilder;
    use crate::{Cause, Cost, Entry, EntryKind, Goal, PromptLength, Provenance, Request, Support, TimeCost};

    const SIZES: [u32; 5] = [16, 32, 64, 128, 256];

    /// Creates a request of two layers with prefills of all sizes. One run has `time` microseconds
    /// per layer.
    fn request(time: impl Fn(u32) -> u64, prompts: &[(u32, u32)]) -> Request {
        RequestBuilder::decoder(2)
            .times(0, 100)
            .change(|request| {
                let prefill = |rows| Entry { kind: EntryKind::Prefill, rows, context: 512 };
                let rows: Vec<Cost> =
                    request.costs.iter().filter(|cost| cost.entry == prefill(128)).cloned().collect();
                request.entries.retain(|entry| entry.kind != EntryKind::Prefill);
                request.entries.extend(SIZES.map(prefill));
                request.costs.retain(|cost| cost.entry.kind != EntryKind::Prefill);
                for (row, size) in rows.iter().flat_map(|row| SIZES.map(|size| (row, size))) {
                    let time = if row.kind == 0 { 0 } else { time(size) };
                    let support = Support::Legal(TimeCost::exact(time, Provenance::Simulated));
                    request.costs.push(Cost { entry: prefill(size), support, ..row.clone() });
                }
                let prompts = prompts.iter().map(|&(tokens, count)| PromptLength { tokens, count });
                request.prompts = prompts.collect();
                request.goals.max_prefill_rows = 256;
            })
            .build()
    }

    fn chosen(request: &Request) -> Vec<u32> {
        let entries = solve(request, &Settings::default()).unwrap().entries;
        let prefills = entries.iter().filter(|entry| entry.kind == EntryKind::Prefill);
        prefills.map(|entry| entry.rows).collect()
    }

    /// Returns the microseconds of a prompt, computed step by step as a session reads it.
    fn stepped(sizes: &[u32], tokens: u32, time: impl Fn(u32) -> u64) -> u64 {
        let (mut left, mut total) = (tokens.saturating_sub(1), 0);
        while left > 0 {
            let filled = sizes.iter().copied().filter(|size| *size <= left).max();
            let rows = filled.or(sizes.iter().copied().min()).unwrap();
            total += 2 * time(rows);
            left = left.saturating_sub(rows);
        }
        total
    }

    #[test]
    fn no_other_sizes_read_the_usual_prompts_faster() {
        let times: [fn(u32) -> u64; 3] = [
            |rows| 2000 + 10 * u64::from(rows),
            |rows| 40 * u64::from(rows),
            |rows| 500 + u64::from(rows).pow(2),
        ];
        let prompts: [&[(u32, u32)]; 5] = [
            &[(12, 1)],
            &[(20, 5), (300, 2), (500, 1)],
            &[(129, 1)],
            &[(512, 3), (40, 90)],
            &[(257, 1), (2, 1)],
        ];
        for time in times {
            for prompts in prompts {
                let mean = |sizes: &[u32]| {
                    let of = |(tokens, count): &(u32, u32)| stepped(sizes, *tokens, time) * u64::from(*count);
                    prompts.iter().map(of).sum::<u64>() * (100 + sizes.len() as u64)
                };
                let found = chosen(&request(time, prompts));
                for mask in 1..1_u32 << SIZES.len() {
                    let of = |(index, size): (usize, &u32)| (mask >> index & 1 == 1).then_some(*size);
                    let other: Vec<u32> = SIZES.iter().enumerate().filter_map(of).collect();
                    let better = other.len() <= super::MOST && mean(&other) < mean(&found);
                    assert!(!better, "{prompts:?}: {other:?} takes less than {found:?}");
                }
            }
        }
    }

    #[test]
    fn prompts_choose_between_few_runs_and_few_rows() {
        // If every run has the same cost, fewest runs win. If every row has the same cost, least
        // padding wins.
        assert_eq!(chosen(&request(|_| 1000, &[(200, 1)])), [256]);
        assert_eq!(chosen(&request(u64::from, &[(65, 1)])), [64]);
        let both = request(|rows| 1000 + 20 * u64::from(rows), &[(17, 9), (257, 1)]);
        assert_eq!(chosen(&both), [256, 16]);
        let plan = solve(&both, &Settings::default()).unwrap().into_plan(&both);
        let said = plan.reasons.iter().find(|reason| reason.cause == Cause::Goal("usual-prompt".to_owned()));
        let said = said.unwrap();
        assert_eq!(said.choice, "prefill_256@512 and prefill_16@512");
        let because =
            "the prefill of a usual prompt takes 3.6 ms, instead of 12.2 ms with prefill_256@512 alone";
        assert_eq!(said.because, because);
    }

    #[test]
    fn without_prompts_the_largest_is_chosen() {
        assert_eq!(chosen(&request(u64::from, &[])), [256]);
    }

    #[test]
    fn what_does_not_fit_gives_way_to_fewer_rows() {
        let mut request = request(|rows| 1000 + 20 * u64::from(rows), &[(17, 9), (257, 1)]);
        for cost in request.costs.iter_mut().filter(|cost| cost.entry.rows > 32) {
            cost.support = Support::Illegal("too many rows".to_owned());
        }
        assert_eq!(chosen(&request), [32, 16]);
        // A limit leaves room for one entry point.
        let mut request = self::request(|rows| 1000 + 20 * u64::from(rows), &[(17, 9), (257, 1)]);
        let own: u64 = solve(&request, &Settings::default()).unwrap().shards[0].cost.artefact_bytes;
        request.goals.set(Goal::SizeBytes(own - 1));
        assert_eq!(chosen(&request).len(), 1);
    }
}
