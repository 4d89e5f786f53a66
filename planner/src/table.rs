//! The indexed cost table, and sums over ranges of layers in constant time.

use std::fmt;

use crate::{
    Body, Component, Cost, Entry, EntryKind, PrefillPart, Request, Segment, Shard, SoftcapPlace, TimeCost,
    names,
};

/// Microseconds within bounds: `low` ≤ `likely` ≤ `high`. All sums saturate.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Interval {
    /// No run is expected to be faster.
    pub low: u64,
    /// The likely time.
    pub likely: u64,
    /// No run is expected to be slower.
    pub high: u64,
}

impl Interval {
    /// Creates a time that does not vary.
    pub const fn exact(microseconds: u64) -> Self {
        Self { low: microseconds, likely: microseconds, high: microseconds }
    }

    /// Returns the sum of two times.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self {
            low: self.low.saturating_add(other.low),
            likely: self.likely.saturating_add(other.likely),
            high: self.high.saturating_add(other.high),
        }
    }

    /// Returns the rest of this time without a part of it.
    #[must_use]
    pub const fn without(self, part: Self) -> Self {
        Self {
            low: self.low.saturating_sub(part.low),
            likely: self.likely.saturating_sub(part.likely),
            high: self.high.saturating_sub(part.high),
        }
    }

    /// Returns the time of several runs.
    #[must_use]
    pub const fn times(self, runs: u64) -> Self {
        Self {
            low: self.low.saturating_mul(runs),
            likely: self.likely.saturating_mul(runs),
            high: self.high.saturating_mul(runs),
        }
    }

    /// Formats the likely time as `Display` does, without the bounds: `about 52 ms`.
    pub fn figure(&self) -> String {
        names::within([self.low, self.likely, self.high]).0
    }

    /// Returns the significant digits that the error of the time allows.
    pub(crate) fn digits(&self) -> u32 {
        if names::is_narrow(self.low, self.high) { 3 } else { 2 }
    }

    /// Returns whether `high` relative to `low` exceeds that of `other` by more than 5 percent. A
    /// time of 0 is exact.
    pub fn is_wider_than(&self, other: &Self) -> bool {
        let ratio = |of: &Self| if of.high == 0 { (1, 1) } else { (of.high, of.low) };
        let ((high, low), (other_high, other_low)) = (ratio(self), ratio(other));
        let product = |left: u64, right: u64, percent: u64| {
            (u128::from(left) * u128::from(right)).saturating_mul(percent.into())
        };
        product(high, other_low, 100) > product(other_high, low, 105)
    }
}

/// Formats the time as `about 52 ms (20 to 130)`, with the digits that its error allows.
impl fmt::Display for Interval {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match names::within([self.low, self.likely, self.high]) {
            (figure, Some(range)) => write!(formatter, "{figure} ({range})"),
            (figure, None) => formatter.write_str(&figure),
        }
    }
}

impl From<TimeCost> for Interval {
    fn from(time: TimeCost) -> Self {
        Self { low: time.low, likely: time.likely, high: time.high }
    }
}

/// Returns the time that each run of a shard on a target needs in addition to its computation. 0 if
/// the target states none.
pub fn call_of(request: &Request, target: u32) -> Interval {
    let target = request.targets.get(target as usize);
    let mut overheads = target.into_iter().flat_map(|target| &target.overheads);
    let call = overheads.find(|overhead| overhead.name == "call-microseconds");
    call.map_or(Interval::default(), |own| Interval { low: own.low, likely: own.value, high: own.high })
}

/// The rows of the cost table by key.
pub struct CostTable<'request> {
    /// Rows sorted by key.
    rows: Vec<&'request Cost>,
}

/// Kind, target, format tuple and entry point of a row.
type Key = (u32, u32, u32, Entry);

fn key(cost: &Cost) -> Key {
    (cost.kind, cost.target, cost.formats, cost.entry)
}

/// Cost of a run of layers on one target in one format tuple.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct RangeCost {
    /// Operations of the largest entry point.
    pub ops: u64,
    /// Bytes of the weights.
    pub weight_bytes: u64,
    /// Bytes of the artefact: the weights and the additions of each entry point.
    pub artefact_bytes: u64,
    /// Bytes of states at the largest entry point.
    pub state_bytes: u64,
    /// Time of one generated token, or of one encode run.
    pub time: Interval,
    /// Time of all runs of prefill entry points before the first token of an answer.
    pub prefill: Interval,
    /// Likely time of one run of the slowest entry point, in microseconds.
    pub longest_run: u64,
    /// Runs of prefill entry points before the first token of an answer.
    pub prefill_runs: u64,
    /// Overhead of each run of a shard in addition to its computation. It is included in the times.
    pub call: Interval,
}

impl RangeCost {
    /// Returns the bytes of artefact and states.
    pub fn context_bytes(&self) -> u64 {
        self.artefact_bytes.saturating_add(self.state_bytes)
    }

    /// Returns the cost as a separate shard, with an overhead of `call` for each run.
    #[must_use]
    pub fn called(&self, call: Interval) -> RangeCost {
        let prefill = self.prefill.and(call.times(self.prefill_runs));
        RangeCost { time: self.time.and(call), prefill, call, ..self.clone() }
    }

    /// Returns the cost of the computation, without the overhead of calls.
    #[must_use]
    pub fn computed(&self) -> RangeCost {
        self.joining(self.prefill_runs)
    }

    /// Returns the cost that this range adds to a shard with `prefill_runs` runs of prefill entry
    /// points before the first token of an answer. The overhead of runs that both have counts only
    /// once.
    #[must_use]
    pub fn joining(&self, prefill_runs: u64) -> RangeCost {
        let shared = self.call.times(self.prefill_runs.min(prefill_runs));
        RangeCost {
            time: self.time.without(self.call),
            prefill: self.prefill.without(shared),
            prefill_runs: self.prefill_runs.saturating_sub(prefill_runs),
            call: Interval::default(),
            ..self.clone()
        }
    }

    /// Returns an upper bound on the cost of both ranges in one shard. It is exact, except for
    /// operations, states and runs if their largest entry points differ.
    #[must_use]
    pub fn joined(&self, other: &RangeCost) -> RangeCost {
        let other = other.joining(self.prefill_runs);
        RangeCost {
            longest_run: self.longest_run.saturating_add(other.longest_run),
            prefill_runs: self.prefill_runs.saturating_add(other.prefill_runs),
            call: self.call,
            ops: self.ops.saturating_add(other.ops),
            weight_bytes: self.weight_bytes.saturating_add(other.weight_bytes),
            artefact_bytes: self.artefact_bytes.saturating_add(other.artefact_bytes),
            state_bytes: self.state_bytes.saturating_add(other.state_bytes),
            time: self.time.and(other.time),
            prefill: self.prefill.and(other.prefill),
        }
    }
}

impl<'request> CostTable<'request> {
    /// Indexes the table of a request.
    pub fn new(request: &'request Request) -> Self {
        let mut rows: Vec<&Cost> = request.costs.iter().collect();
        if !rows.is_sorted_by_key(|row| key(row)) {
            rows.sort_by_key(|row| key(row));
        }
        Self { rows }
    }

    /// Returns the row with this key, the last one if there are several.
    pub fn row(&self, kind: u32, target: u32, formats: u32, entry: Entry) -> Option<&'request Cost> {
        let wanted = (kind, target, formats, entry);
        let after = self.rows.partition_point(|row| key(row) <= wanted);
        self.rows[..after].last().copied().filter(|row| key(row) == wanted)
    }

    /// Returns why the target does not support a kind at one of these entry points, or `None` if it
    /// supports it at all of them.
    pub fn illegal(
        &self,
        request: &Request,
        kind: u32,
        target: u32,
        formats: u32,
        entries: &[Entry],
    ) -> Option<String> {
        let mut used = entries.iter().filter(|&&entry| takes_part(request, kind, entry));
        used.find_map(|&entry| match self.row(kind, target, formats, entry) {
            None => Some(format!("no cost for {}", names::entry(entry))),
            Some(row) => row.illegal().map(str::to_owned),
        })
    }
}

/// Returns how often each entry point runs for the tokens of a prompt before its last, which decode
/// reads. Every prefill entry point but the smallest runs only with all rows filled, the largest
/// first. The smallest reads the rest.
pub fn prefill_runs(entries: &[Entry], tokens: u32) -> Vec<u64> {
    let is_prefill = |index: &usize| entries[*index].kind == EntryKind::Prefill;
    let mut sizes: Vec<usize> = (0..entries.len()).filter(is_prefill).collect();
    sizes.sort_by_key(|index| std::cmp::Reverse(entries[*index].rows));
    let mut runs = vec![0; entries.len()];
    let mut left = tokens.saturating_sub(1);
    for (position, index) in sizes.iter().enumerate() {
        let rows = entries[*index].rows.max(1);
        let own = if position + 1 == sizes.len() { left.div_ceil(rows) } else { left / rows };
        left = left.saturating_sub(own.saturating_mul(rows));
        runs[*index] = own.into();
    }
    runs
}

/// Returns the kind of every unit of a component: of its layers, or of the whole component.
pub fn unit_kinds(component: &Component) -> Vec<u32> {
    match &component.body {
        Body::Whole(kind) => vec![*kind],
        Body::Layers(layers) => layers.iter().map(|layer| layer.kind).collect(),
    }
}

/// Returns the kinds like [`unit_kinds`], with the component's soft-cap, if any, computed at
/// `softcap`.
pub fn unit_kinds_at(component: &Component, softcap: Option<SoftcapPlace>) -> Vec<u32> {
    match (&component.softcap, softcap) {
        (Some(existing), Some(SoftcapPlace::Runtime)) => vec![existing.kind_without],
        _ => unit_kinds(component),
    }
}

/// Returns the kind and format tuple of every unit of a shard, with its soft-cap, if any, computed
/// at `softcap`. If a segment has fewer tuples than units, its last tuple is repeated. Empty if a
/// segment is not part of the model.
pub fn units_of(request: &Request, segments: &[Segment], softcap: Option<SoftcapPlace>) -> Vec<(u32, u32)> {
    let mut units = Vec::new();
    for segment in segments {
        let Some(component) = request.model.components.get(segment.component as usize) else {
            return Vec::new();
        };
        let kinds = unit_kinds_at(component, softcap);
        let range = match component.layer_count() {
            0 => 0..kinds.len(),
            _ => segment.first as usize..segment.end as usize,
        };
        let (Some(kinds), Some(last)) = (kinds.get(range), segment.formats.last()) else {
            return Vec::new();
        };
        let formats = segment.formats.iter().chain(std::iter::repeat(last));
        units.extend(kinds.iter().copied().zip(formats.copied()));
    }
    units
}

/// Returns the runtime's time for the soft-cap of a shard, per row. 0 if the runtime does not
/// compute it.
pub fn runtime_of(request: &Request, segments: &[Segment], softcap: Option<SoftcapPlace>) -> Interval {
    let component = |segment: &Segment| request.model.components.get(segment.component as usize);
    let capped = segments.iter().filter_map(component).find_map(|component| component.softcap.as_ref());
    let capped = capped.filter(|_| softcap == Some(SoftcapPlace::Runtime));
    capped.map_or(Interval::default(), |cap| cap.runtime.into())
}

/// Returns the cost of a shard of a plan, including the runtime's share and the overhead of calls.
pub fn cost_of(request: &Request, table: &CostTable<'_>, shard: &Shard) -> RangeCost {
    let units = units_of(request, &shard.segments, shard.softcap);
    let prefix = Prefix::of_units(request, table, &units, shard.target, &shard.entries);
    let cost = prefix.sum(0, units.len());
    let runtime = runtime_of(request, &shard.segments, shard.softcap);
    RangeCost { time: cost.time.and(runtime), ..cost }.called(call_of(request, shard.target))
}

/// Cumulative sums over the units of one component on one target, so that the cost of any range is
/// computed in constant time. All sums saturate: a saturated sum is above every limit, and the host
/// refuses costs that overflow.
pub struct Prefix {
    entries: Vec<EntryPrefix>,
    weights: Vec<u64>,
    illegal: Vec<u32>,
}

struct EntryPrefix {
    /// Runs before the first token of an answer. 0 for entry points other than prefill.
    runs: u64,
    ops: Vec<u64>,
    low: Vec<u64>,
    likely: Vec<u64>,
    high: Vec<u64>,
    artefact: Vec<u64>,
    states: Vec<u64>,
    /// Cumulative number of units with work at this entry point. The entry point is built only for
    /// shards that have such units.
    active: Vec<u32>,
}

impl Prefix {
    /// Creates the sums for one component in one format tuple. The first of `entries` is the one
    /// whose time is minimised.
    pub fn new(
        request: &Request,
        table: &CostTable<'_>,
        component: &Component,
        target: u32,
        formats: u32,
        entries: &[Entry],
    ) -> Self {
        Self::of_kinds(request, table, &unit_kinds(component), (target, formats), entries)
    }

    /// Creates the sums like [`Prefix::new`], for units of these kinds.
    pub fn of_kinds(
        request: &Request,
        table: &CostTable<'_>,
        kinds: &[u32],
        (target, formats): (u32, u32),
        entries: &[Entry],
    ) -> Self {
        let units: Vec<(u32, u32)> = kinds.iter().map(|&kind| (kind, formats)).collect();
        Self::of_units(request, table, &units, target, entries)
    }

    /// Creates the sums like [`Prefix::new`], for units given as pairs of kind and format tuple.
    pub fn of_units(
        request: &Request,
        table: &CostTable<'_>,
        units: &[(u32, u32)],
        target: u32,
        entries: &[Entry],
    ) -> Self {
        let sums = || Vec::with_capacity(units.len() + 1);
        let mut prefix = Self { entries: Vec::new(), weights: sums(), illegal: Vec::new() };
        let mut unit_weights = vec![0_u64; units.len()];
        let mut unit_illegal = vec![false; units.len()];
        let runs = prefill_runs(entries, request.goals.prompt_tokens);
        for (&entry, runs) in entries.iter().zip(runs) {
            let mut per_entry = EntryPrefix {
                runs,
                ops: vec![0],
                low: vec![0],
                likely: vec![0],
                high: vec![0],
                artefact: vec![0],
                states: vec![0],
                active: vec![0],
            };
            // Most units equal the one before.
            let mut before = None;
            for (unit, &(kind, formats)) in units.iter().enumerate() {
                let (active, row) = match before {
                    Some((own, found)) if own == (kind, formats) => found,
                    _ => (takes_part(request, kind, entry), table.row(kind, target, formats, entry)),
                };
                before = Some(((kind, formats), (active, row)));
                let row = row.filter(|_| active);
                let time = row.and_then(Cost::time);
                unit_illegal[unit] |= active && time.is_none();
                let of = |amount: fn(&Cost) -> u64| row.map_or(0, amount);
                unit_weights[unit] = unit_weights[unit].max(of(|row| row.weight_bytes));
                push(&mut per_entry.ops, of(|row| row.ops));
                push(&mut per_entry.low, time.map_or(0, |time| time.low));
                push(&mut per_entry.likely, time.map_or(0, |time| time.likely));
                push(&mut per_entry.high, time.map_or(0, |time| time.high));
                push(&mut per_entry.artefact, of(|row| row.artefact_bytes));
                push(&mut per_entry.states, of(|row| row.state_bytes));
                push32(&mut per_entry.active, active);
            }
            prefix.entries.push(per_entry);
        }
        prefix.weights.push(0);
        prefix.illegal.push(0);
        for (weight, illegal) in unit_weights.into_iter().zip(unit_illegal) {
            push(&mut prefix.weights, weight);
            push32(&mut prefix.illegal, illegal);
        }
        prefix
    }

    /// Returns the cost of the units `first..end`, or `None` if the target does not support one of
    /// them.
    pub fn range(&self, first: usize, end: usize) -> Option<RangeCost> {
        if self.illegal[end] > self.illegal[first] {
            return None;
        }
        Some(self.sum(first, end))
    }

    /// Returns the cost of the units `first..end`, even if the target does not support them.
    /// Missing rows count as zero.
    pub fn sum(&self, first: usize, end: usize) -> RangeCost {
        let span = |sums: &[u64]| {
            if sums[end] == u64::MAX { u64::MAX } else { sums[end] - sums[first] }
        };
        let mut cost = RangeCost { weight_bytes: span(&self.weights), ..RangeCost::default() };
        cost.artefact_bytes = cost.weight_bytes;
        for (position, entry) in self.entries.iter().enumerate() {
            if entry.active[end] == entry.active[first] {
                continue;
            }
            cost.ops = cost.ops.max(span(&entry.ops));
            cost.artefact_bytes = cost.artefact_bytes.saturating_add(span(&entry.artefact));
            cost.state_bytes = cost.state_bytes.max(span(&entry.states));
            let time =
                Interval { low: span(&entry.low), likely: span(&entry.likely), high: span(&entry.high) };
            cost.longest_run = cost.longest_run.max(time.likely);
            if position == 0 {
                cost.time = time;
            }
            if entry.runs > 0 {
                cost.prefill_runs = cost.prefill_runs.saturating_add(entry.runs);
                cost.prefill = cost.prefill.and(time.times(entry.runs));
            }
        }
        cost
    }

    /// Returns whether units `first..end` have work at the entry point with this position.
    pub fn active(&self, entry: usize, first: usize, end: usize) -> bool {
        self.entries[entry].active[end] > self.entries[entry].active[first]
    }
}

fn push(sums: &mut Vec<u64>, value: u64) {
    let last = sums.last().copied().unwrap_or(0);
    sums.push(last.saturating_add(value));
}

fn push32(sums: &mut Vec<u32>, condition: bool) {
    let last = sums.last().copied().unwrap_or(0);
    sums.push(last.saturating_add(condition.into()));
}

/// Returns whether a kind has work at an entry point.
pub fn takes_part(request: &Request, kind: u32, entry: Entry) -> bool {
    entry.kind != EntryKind::Prefill
        || request.kinds.get(kind as usize).is_some_and(|kind| kind.prefill != PrefillPart::None)
}
