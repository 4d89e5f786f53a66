//! Finds the fault in a shard that is out of bounds: by its own values, or by parts of it.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};

use shardwright_build::{BuildError, BuiltShard, Candidate, LoadedPart};
use shardwright_graph::{Asset, Graph, Role, Segment, Segments};
use shardwright_runtime::ShardDescription;
use shardwright_shims::LoadedShard;
use shardwright_vocabulary::{EntryKind, Error, ErrorKind, Part, Result, Watch};

use super::FaultyPlace;
use crate::boundaries::{BoundaryCheck, Prompt, Shards, pieces};
use crate::progress::{PartProgress, reference_fault};
use crate::report::{RowComparison, ShardVerification};
use crate::rows::RowErrors;
use crate::shard_run::{Feed, Own, ShardMemory, Twin};
use crate::thresholds::Thresholds;
use crate::trace::{Given, Trace};

/// Share of the largest own error that another error must reach to count as a separate fault.
/// Rounding errors are far below overflows.
const OF_THE_LARGEST: f64 = 0.1;

/// Largest number of places from one search of a shard.
const PLACES: usize = 8;

/// Search in a shard that is out of bounds.
pub(super) struct Search<'s> {
    /// The model in the checkpoint.
    pub(super) graph: &'s Graph,
    /// The prompts that the shard was run over.
    pub(super) prompts: &'s [Prompt<'s>],
    pub(super) exact: bool,
    pub(super) thresholds: Thresholds,
    pub(super) index: usize,
    /// The verification of the shard.
    pub(super) failed: &'s ShardVerification,
}

impl<'s> Search<'s> {
    /// Returns the faulty places, at least one.
    pub(super) fn run(
        &self,
        candidate: &mut Candidate<'_>,
        watch: &mut dyn Watch,
    ) -> Result<Vec<FaultyPlace>> {
        let mut all = Part::new(watch, 0..1000);
        let case = self.case()?;
        let own = match candidate.tapped(self.index, &mut all.then(200)) {
            Ok(tapped) => self.own(candidate, &tapped, &case, &mut all.then(400))?,
            // The shim does not support further outputs.
            Err(BuildError::Refused(_)) => Vec::new(),
            Err(error) => return Err(error.into()),
        };
        match own.is_empty() {
            false => Ok(own),
            true => Ok(vec![self.narrowed(candidate, &case, &mut all)?]),
        }
    }

    fn outputs(&self) -> impl Iterator<Item = &RowComparison> {
        self.failed.entries.iter().flat_map(|entry| &entry.outputs)
    }

    /// Returns the prompt for the search, up to the row of the worst result.
    fn case(&self) -> Result<Prompt<'s>> {
        let failed = self.outputs().filter(|output| !output.passed);
        let worst = failed.max_by(|one, other| one.relative_worst.total_cmp(&other.relative_worst));
        let place = worst.and_then(|worst| {
            let (prompt, position) = worst.worst_place.as_ref()?;
            let prompt = self.prompts.iter().find(|known| known.name == *prompt)?;
            Some(match prompt.given {
                Given::Tokens { ids, soft } if self.graph.is_generative() => {
                    let given = Given::Tokens { ids: ids.get(..=*position)?, soft };
                    Prompt { given, ..prompt.clone() }
                }
                _ => prompt.clone(),
            })
        });
        place.ok_or_else(|| {
            let what = format!("shard {} failed, but none of its rows differs", self.failed.shard);
            Error::new(ErrorKind::Internal, what).with_help("report this as a bug")
        })
    }

    /// Returns the places whose value is wrong although the device read correct inputs for it.
    fn own(
        &self,
        candidate: &Candidate<'_>,
        tapped: &BuiltShard,
        case: &Prompt<'_>,
        watch: &mut dyn Watch,
    ) -> Result<Vec<FaultyPlace>> {
        let mut progress = PartProgress(Part::new(watch, 0..1000));
        let mut part = candidate.load(tapped).map_err(Error::from)?;
        let mut memory = ShardMemory::new(&part.shard)?;
        let twin = Twin::new(&tapped.compiled).map_err(reference_fault)?;
        let graph = self.uncapped(tapped);
        let (graph, assets) = (graph.as_ref().unwrap_or(self.graph), &candidate.graph().assets);
        let all = case.given.rows(graph);
        // The faulty row.
        let last = BTreeSet::from([all.saturating_sub(1)]);
        let entries = memory.entries.iter().map(|entry| entry.interface.point.rows);
        let mut trace = Trace::new(graph, case.given, entries.max().unwrap_or(1)).map_err(reference_fault)?;
        let mut found: Vec<(Role, RowErrors)> = Vec::new();
        while let Some(chunk) = trace.next().map_err(reference_fault)? {
            progress.step(chunk.first as f64 / all.max(1) as f64, || {
                format!("comparing every operation of {}", tapped.name)
            })?;
            let uncapped = tapped.logits_softcap.is_some();
            let feed = Feed { graph, assets, trace: &trace, chunk: &chunk, twin: Some(&twin), uncapped };
            for entry in 0..memory.entries.len() {
                let point = memory.entries[entry].interface.point;
                // Entry points that only fill states do not show the values in between.
                if point.kind == EntryKind::Prefill {
                    continue;
                }
                for rows in pieces(point.kind, point.rows as usize, &chunk, &last) {
                    progress.check()?;
                    enter(&mut found, memory.run_own(&mut part.shard, entry, &feed, rows)?);
                }
            }
        }
        let graph = graph.with_operation_taps();
        let mut faults: Vec<(f64, Role)> = Vec::new();
        for (role, errors) in found {
            let compared = errors.compare(String::new(), None, None, &self.thresholds);
            if !compared.passed {
                faults.push((compared.relative_worst, role));
            }
        }
        let largest = faults.iter().map(|(error, _)| *error).fold(0.0, f64::max);
        let of_the_largest = largest * OF_THE_LARGEST;
        let mut places: Vec<FaultyPlace> = Vec::new();
        for (error, role) in faults.into_iter().filter(|(error, _)| *error >= of_the_largest) {
            let place = FaultyPlace::value(&tapped.name, &tapped.segments, &graph, &role, error);
            let known = |place: &FaultyPlace| {
                let of = |place: &FaultyPlace| (place.layer, place.role.clone(), place.values.clone());
                places.iter().any(|known| of(known) == of(place))
            };
            if let Some(place) = place.filter(|place| !known(place)) {
                places.push(place);
            }
        }
        places.truncate(PLACES);
        Ok(places)
    }

    /// Returns the graph without the soft-cap, if the runtime caps the logits.
    fn uncapped(&self, shard: &BuiltShard) -> Option<Graph> {
        shard.logits_softcap.map(|_| self.graph.without_logits_softcap())
    }

    /// Finds the first unit with which the shard is out of bounds, by compiling shorter and shorter
    /// parts of it.
    fn narrowed(
        &self,
        candidate: &mut Candidate<'_>,
        case: &Prompt<'_>,
        watch: &mut dyn Watch,
    ) -> Result<FaultyPlace> {
        let mut all = Part::new(watch, 0..1000);
        let shard = &candidate.shards()[self.index];
        let units = units(&shard.segments);
        let error = self.outputs().map(|output| output.relative_worst).fold(0.0, f64::max);
        let whole = || Ok(FaultyPlace::whole(&shard.name, error));
        let (mut first, mut end) = self.bounds(&units);
        let mut seen = false;
        while end - first > 1 {
            let middle = first + (end - first) / 2;
            let range = joined(&units[first..middle]);
            match self.is_off(candidate, &range, case, &mut all.most_of_the_rest())? {
                Some(true) => (end, seen) = (middle, true),
                Some(false) => first = middle,
                None => return whole(),
            }
        }
        // If every compiled part was correct, the last unit remains, and it may be correct too.
        let last = joined(&units[first..end]);
        if !seen && units.len() > 1 && self.is_off(candidate, &last, case, &mut all)? != Some(true) {
            return whole();
        }
        let unit = units[first];
        let layer = (unit.layers.1 > 0).then_some(unit.layers.0);
        Ok(FaultyPlace::part(&shard.name, unit.component, layer, error))
    }

    /// Returns the range of units that contains the fault, according to layer outputs and states.
    /// The fault is in the first layer whose results are wrong, or before it. A layer with correct
    /// states read a correct stream.
    fn bounds(&self, units: &[Segment]) -> (usize, usize) {
        let at = |layer: u32| units.iter().position(|unit| unit.layers == (layer, layer + 1));
        let off = self.outputs().filter(|output| !output.passed).filter_map(|output| output.layer).min();
        let end = off.and_then(at).map_or(units.len(), |unit| unit + 1);
        let mut right: BTreeMap<u32, bool> = BTreeMap::new();
        for output in self.outputs().filter(|output| output.what.starts_with("state ")) {
            if let Some(layer) = output.layer {
                *right.entry(layer).or_insert(true) &= output.passed;
            }
        }
        let before = right.into_iter().filter(|(_, right)| *right).map(|(layer, _)| layer);
        let first = before.filter_map(at).filter(|unit| *unit < end).max().unwrap_or(0);
        (first, end)
    }

    /// Checks whether a part of the shard, compiled alone, is out of bounds. Returns `None` if the
    /// shim refuses to compile it.
    fn is_off(
        &self,
        candidate: &mut Candidate<'_>,
        segments: &Segments,
        case: &Prompt<'_>,
        watch: &mut dyn Watch,
    ) -> Result<Option<bool>> {
        let mut all = Part::new(watch, 0..1000);
        let built = match candidate.part(self.index, segments, &mut all.then(500)) {
            Ok(built) => built,
            Err(BuildError::Refused(_)) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let part = candidate.load(&built).map_err(Error::from)?;
        let context = candidate.plan().plan().shards[self.index].context;
        let assets: &[Asset] = &candidate.graph().assets;
        let rows = case.given.rows(self.graph);
        let alone = Alone::new(part, u64::from(context).max(rows as u64))?;
        let graph = self.uncapped(&built);
        let compiled = [built.compiled];
        let check = BoundaryCheck {
            shards: &alone,
            graph: graph.as_ref().unwrap_or(self.graph),
            assets,
            compiled: &compiled,
            exact: self.exact,
            formats: vec![built.formats.to_string()],
            thresholds: self.thresholds,
            rows,
            steps: 1,
        };
        let found = check.run(std::slice::from_ref(case), &mut PartProgress(all))?;
        Ok(Some(found.iter().any(|boundaries| boundaries.judged && !boundaries.passed)))
    }
}

/// Enters the values of a run in the order in which they are computed, up to the first one with a
/// number that is not finite. Values after it are meaningless.
fn enter(found: &mut Vec<(Role, RowErrors)>, run: Vec<Own>) {
    for Own { role, width, got, computed } in run {
        let index = match found.iter().position(|(known, _)| *known == role) {
            Some(index) => index,
            None => {
                found.push((role, RowErrors::default()));
                found.len() - 1
            }
        };
        for (got, computed) in got.chunks(width.max(1)).zip(computed.chunks(width.max(1))) {
            found[index].1.add(got, computed, || (String::new(), 0, 0));
        }
        if !got.iter().all(|value| value.is_finite()) {
            break;
        }
    }
}

/// Splits segments into single layers and components without layers.
fn units(segments: &Segments) -> Vec<Segment> {
    let each = segments.iter().flat_map(|segment| match segment.layers {
        (0, 0) => vec![segment],
        (first, end) => (first..end).map(|layer| Segment { layers: (layer, layer + 1), ..segment }).collect(),
    });
    each.collect()
}

/// Joins adjacent units into segments.
fn joined(units: &[Segment]) -> Segments {
    let mut segments: Vec<Segment> = Vec::new();
    for unit in units {
        match segments.last_mut() {
            Some(last) if last.component == unit.component => last.layers.1 = unit.layers.1,
            _ => segments.push(*unit),
        }
    }
    Segments(segments)
}

/// A part of a shard, loaded separately.
struct Alone {
    description: [ShardDescription; 1],
    shard: RefCell<LoadedShard>,
    context: u64,
}

impl Alone {
    fn new(part: LoadedPart, context: u64) -> Result<Self> {
        let LoadedPart { name, shard, origin, logits_softcap } = part;
        let empty = || Error::new(ErrorKind::Internal, format!("a part of shard {name} has no entry point"));
        let description = ShardDescription::of(&name, &shard).ok_or_else(empty)?;
        let description = [ShardDescription { origin, logits_softcap, ..description }];
        Ok(Alone { description, shard: RefCell::new(shard), context })
    }
}

impl Shards for Alone {
    fn descriptions(&self) -> &[ShardDescription] {
        &self.description
    }

    fn context(&self) -> u64 {
        self.context
    }

    fn lend(&self, shard: usize, borrow: &mut dyn FnMut(&mut LoadedShard)) -> bool {
        if shard == 0 {
            borrow(&mut self.shard.borrow_mut());
        }
        shard == 0
    }
}

#[cfg(test)]
mod tests {
    use shardwright_graph::ComponentKind;

    use super::*;

    #[test]
    fn segments_are_taken_apart_and_joined_again() {
        let of = |component, layers| Segment { component, layers };
        let whole = Segments(vec![
            of(ComponentKind::Embed, (0, 0)),
            of(ComponentKind::Decoder, (3, 6)),
            of(ComponentKind::Head, (0, 0)),
        ]);
        let units = units(&whole);
        assert_eq!(units.len(), 5);
        assert_eq!(units[2], of(ComponentKind::Decoder, (4, 5)));
        assert_eq!(joined(&units), whole);
        assert_eq!(joined(&units[1..3]), Segments::one(of(ComponentKind::Decoder, (3, 5))));
    }

    #[test]
    fn what_follows_from_no_number_is_no_fault() {
        let own = |role: Role, got: f32| Own { role, width: 2, got: vec![got, 1.0], computed: vec![1.0; 2] };
        let mut found = Vec::new();
        let tap = |name: &str| Role::Tap { name: name.to_owned() };
        enter(&mut found, vec![own(tap("a"), 1.0), own(tap("b"), f32::INFINITY), own(Role::Hidden, 2.0)]);
        let passed = found.into_iter().map(|(role, errors)| {
            (role, errors.compare(String::new(), None, None, &Thresholds::VENDOR).passed)
        });
        assert_eq!(passed.collect::<Vec<_>>(), [(tap("a"), true), (tap("b"), false)]);
    }
}
