//! The cost table, indexed, and sums over ranges of layers in constant time.

use crate::{
    Body, Component, Cost, Entry, EntryKind, PrefillPart, Provenance, Request, Segment, SoftcapPlace,
};

/// Microseconds that each run of a shard takes on a target beside the computation; 0 if that is not
/// known.
pub fn call_of(request: &Request, target: u32) -> u64 {
    let target = request.targets.get(target as usize);
    let mut overheads = target.into_iter().flat_map(|target| &target.overheads);
    overheads.find(|overhead| overhead.name == "call-microseconds").map_or(0, |overhead| overhead.value)
}

/// The rows of the cost table by key.
pub struct CostTable<'request> {
    /// Sorted by key.
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
    /// Weight bytes.
    pub weight_bytes: u64,
    /// Weights, and the bytes each entry point adds.
    pub artefact_bytes: u64,
    /// States at the largest entry point.
    pub state_bytes: u64,
    /// Time of one generated token (or one encode run) in microseconds, if every part is known.
    pub time: Option<u64>,
    /// The same of the parts whose time is known.
    pub known_time: u64,
    /// Known time of all runs of prefill entry points before the first token of an answer, in
    /// microseconds.
    pub known_prefill: u64,
    /// Known time of one run of the slowest entry point, in microseconds.
    pub longest_run: u64,
    /// Runs of prefill entry points before the first token of an answer.
    pub prefill_runs: u64,
    /// What each run of a shard takes beside the computation, in microseconds; it is in the times.
    pub call: u64,
    /// Layers whose time is not known.
    pub untimed: u32,
    /// Operations that time does not cover.
    pub uncosted_ops: u64,
}

impl RangeCost {
    /// Artefact and states.
    pub fn context_bytes(&self) -> u64 {
        self.artefact_bytes.saturating_add(self.state_bytes)
    }

    /// As a shard of its own, each run of which takes so many microseconds beside the computation.
    #[must_use]
    pub fn called(&self, call: u64) -> RangeCost {
        let known_time = self.known_time.saturating_add(call);
        RangeCost {
            time: self.time.map(|_| known_time),
            known_time,
            known_prefill: self.known_prefill.saturating_add(call.saturating_mul(self.prefill_runs)),
            call,
            ..self.clone()
        }
    }

    /// What is computed, without calls.
    #[must_use]
    pub fn computed(&self) -> RangeCost {
        self.joining(self.prefill_runs)
    }

    /// What it adds to a shard that runs prefill entry points so often before the first token of an
    /// answer: runs that both take part in are called once.
    #[must_use]
    pub fn joining(&self, prefill_runs: u64) -> RangeCost {
        let shared = self.call.saturating_mul(self.prefill_runs.min(prefill_runs));
        let known_time = self.known_time.saturating_sub(self.call);
        RangeCost {
            time: self.time.map(|_| known_time),
            known_time,
            known_prefill: self.known_prefill.saturating_sub(shared),
            prefill_runs: self.prefill_runs.saturating_sub(prefill_runs),
            call: 0,
            ..self.clone()
        }
    }

    /// An upper bound on the cost of both in one shard, exact but for operations, states and runs
    /// where their largest entry points differ.
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
            time: self.time.zip(other.time).map(|(own, other)| own.saturating_add(other)),
            known_time: self.known_time.saturating_add(other.known_time),
            known_prefill: self.known_prefill.saturating_add(other.known_prefill),
            untimed: self.untimed.saturating_add(other.untimed),
            uncosted_ops: self.uncosted_ops.saturating_add(other.uncosted_ops),
        }
    }
}

impl<'request> CostTable<'request> {
    /// Index the table.
    pub fn new(request: &'request Request) -> Self {
        let mut rows: Vec<&Cost> = request.costs.iter().collect();
        if !rows.is_sorted_by_key(|row| key(row)) {
            rows.sort_by_key(|row| key(row));
        }
        Self { rows }
    }

    /// One row; of several the last.
    pub fn row(&self, kind: u32, target: u32, formats: u32, entry: Entry) -> Option<&'request Cost> {
        let wanted = (kind, target, formats, entry);
        let after = self.rows.partition_point(|row| key(row) <= wanted);
        self.rows[..after].last().copied().filter(|row| key(row) == wanted)
    }

    /// Why the target does not support a kind at one of these entry points; `None` if it does.
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
            None => Some(format!("no cost for {}", crate::names::entry(entry))),
            Some(row) => row.illegal.clone(),
        })
    }
}

/// How often each entry point runs for the tokens of a prompt before its last, which decode takes:
/// of the prefills the largest that is completely filled, and for what is left the smallest.
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

/// Kind of every cuttable unit of a component: its layers, or the whole.
pub fn unit_kinds(component: &Component) -> Vec<u32> {
    match &component.body {
        Body::Whole(kind) => vec![*kind],
        Body::Layers(layers) => layers.iter().map(|layer| layer.kind).collect(),
    }
}

/// The same with the soft-cap of the component, if it has one, computed at `softcap`.
pub fn unit_kinds_at(component: &Component, softcap: Option<SoftcapPlace>) -> Vec<u32> {
    match (&component.softcap, softcap) {
        (Some(existing), Some(SoftcapPlace::Runtime)) => vec![existing.kind_without],
        _ => unit_kinds(component),
    }
}

/// Kind and format tuple of every unit of a shard with its soft-cap, if it has one, computed at
/// `softcap`. One tuple may stand for all units of a segment. Empty if a segment is no part of the
/// model.
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

/// Microseconds a row that the runtime takes for the soft-cap of a shard, if it computes it.
pub fn runtime_of(request: &Request, segments: &[Segment], softcap: Option<SoftcapPlace>) -> u64 {
    let component = |segment: &Segment| request.model.components.get(segment.component as usize);
    let capped = segments.iter().filter_map(component).find_map(|component| component.softcap.as_ref());
    capped.filter(|_| softcap == Some(SoftcapPlace::Runtime)).map_or(0, |cap| cap.runtime.microseconds)
}

/// Sums over the units of one component on one target in one format tuple, so that any range is
/// added up in constant time. All sums saturate: a saturated sum is above every limit, and the host
/// refuses costs that overflow.
pub struct Prefix {
    entries: Vec<EntryPrefix>,
    weights: Vec<u64>,
    illegal: Vec<u32>,
}

struct EntryPrefix {
    /// Runs before the first token of an answer; 0 of other entry points than prefill.
    runs: u64,
    ops: Vec<u64>,
    time: Vec<u64>,
    untimed: Vec<u32>,
    uncosted: Vec<u64>,
    artefact: Vec<u64>,
    states: Vec<u64>,
    /// Number of units with work in this entry point, cumulative: it is built only for shards that
    /// have some.
    active: Vec<u32>,
}

impl Prefix {
    /// Sums for one component. The first of `entries` is the one whose time counts.
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

    /// The same for units of these kinds, on a target in a format tuple.
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

    /// The same for units of (kind, format tuple), each in its own formats, on a target.
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
                time: vec![0],
                untimed: vec![0],
                uncosted: vec![0],
                artefact: vec![0],
                states: vec![0],
                active: vec![0],
            };
            // Most units are like the one before.
            let mut before = None;
            for (unit, &(kind, formats)) in units.iter().enumerate() {
                let (active, row) = match before {
                    Some((own, found)) if own == (kind, formats) => found,
                    _ => (takes_part(request, kind, entry), table.row(kind, target, formats, entry)),
                };
                before = Some(((kind, formats), (active, row)));
                if active && row.is_none_or(|row| row.illegal.is_some()) {
                    unit_illegal[unit] = true;
                }
                let nothing = Cost {
                    kind,
                    target,
                    formats,
                    entry,
                    ops: 0,
                    weight_bytes: 0,
                    artefact_bytes: 0,
                    artefact_provenance: Provenance::Measured,
                    state_bytes: 0,
                    illegal: None,
                    time: None,
                    uncosted_ops: 0,
                };
                let row = row.filter(|_| active).unwrap_or(&nothing);
                unit_weights[unit] = unit_weights[unit].max(row.weight_bytes);
                push(&mut per_entry.ops, row.ops);
                push(&mut per_entry.time, row.time.map_or(0, |time| time.microseconds));
                push32(&mut per_entry.untimed, active && row.time.is_none());
                push(&mut per_entry.uncosted, row.uncosted_ops);
                push(&mut per_entry.artefact, row.artefact_bytes);
                push(&mut per_entry.states, row.state_bytes);
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

    /// Cost of the units `first..end`; `None` if the target does not support one of them.
    pub fn range(&self, first: usize, end: usize) -> Option<RangeCost> {
        if self.illegal[end] > self.illegal[first] {
            return None;
        }
        Some(self.sum(first, end))
    }

    /// Cost of the units `first..end` whether or not the target supports them; missing rows count
    /// as zero.
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
            let prefill = span(&entry.time).saturating_mul(entry.runs);
            cost.longest_run = cost.longest_run.max(span(&entry.time));
            cost.prefill_runs = cost.prefill_runs.saturating_add(entry.runs);
            cost.known_prefill = cost.known_prefill.saturating_add(prefill);
            if position == 0 {
                cost.uncosted_ops = span(&entry.uncosted);
                cost.untimed = entry.untimed[end] - entry.untimed[first];
                cost.known_time = span(&entry.time);
                cost.time = (cost.untimed == 0).then_some(cost.known_time);
            }
        }
        cost
    }

    /// Whether units `first..end` have anything to do at the entry point of this position.
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

/// Whether a kind has anything to do at an entry point.
pub fn takes_part(request: &Request, kind: u32, entry: Entry) -> bool {
    entry.kind != EntryKind::Prefill
        || request.kinds.get(kind as usize).is_some_and(|kind| kind.prefill != PrefillPart::None)
}
