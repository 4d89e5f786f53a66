//! Sums of the cost table: the exact cost of a shard according to the request. Makes no decisions.

use std::collections::HashMap;

use shardwright_vocabulary::{
    CostRow, EntryKind, EntryName, Legality, Overhead, Provenance, TimeCost, limit_names, overhead_names,
};

use crate::request::{PrefillPart, Request};

/// Returns the entry points that a session runs to read a prompt before the token whose logits are
/// wanted, each with its number of runs. Every entry point but the smallest of `prefills` runs only
/// with all rows filled, the largest first. The smallest reads the rest. Empty if `prefills` is
/// empty.
pub fn prompt_runs(prefills: &[EntryName], tokens: u32) -> Vec<(EntryName, u64)> {
    let mut sizes = prefills.to_vec();
    sizes.sort_by_key(|entry| std::cmp::Reverse(entry.rows));
    sizes.dedup_by_key(|entry| entry.rows);
    let mut left = tokens.saturating_sub(1);
    let mut runs = Vec::new();
    for (index, entry) in sizes.iter().enumerate() {
        let rows = entry.rows.max(1);
        let own = if index + 1 == sizes.len() { left.div_ceil(rows) } else { left / rows };
        left = left.saturating_sub(own.saturating_mul(rows));
        if own > 0 {
            runs.push((*entry, u64::from(own)));
        }
    }
    runs
}

/// Cost of one shard at one entry point.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EntryCost {
    pub entry: EntryName,
    pub ops: u64,
    /// Time of one run, with the weakest provenance of its parts.
    pub time: TimeCost,
    /// Number of operations whose part of the time is estimated by their share.
    pub uncosted_ops: u64,
}

/// Cost of one shard.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ShardCost {
    /// Costs by entry point, in the requested order.
    pub entries: Vec<EntryCost>,
    /// Operations of the largest entry point.
    pub ops: u64,
    /// Weight bytes, which entry points share.
    pub weight_bytes: u64,
    /// Bytes of the artefact: the weights and the additions of each entry point.
    pub artefact_bytes: u64,
    /// The weakest provenance of the artefact's parts. `None` for a shard without entry points.
    pub artefact_provenance: Option<Provenance>,
    /// Bytes of states at the largest entry point.
    pub state_bytes: u64,
    /// Overhead of each run in addition to the computation. Zero if the target does not specify it.
    pub call: TimeCost,
}

impl ShardCost {
    /// Returns the bytes that the loaded shard occupies: artefact and states. Cannot overflow,
    /// because [`CostTable::shard`] checks this sum.
    pub fn context_bytes(&self) -> u64 {
        self.artefact_bytes.saturating_add(self.state_bytes)
    }

    /// Returns the likely microseconds of one run at its slowest entry point.
    pub fn call_microseconds(&self) -> u64 {
        self.entries.iter().map(|entry| entry.time.microseconds).max().unwrap_or(0)
    }

    /// Returns the shard's use of the limit with this name, or `None` if the limit does not apply
    /// to single shards.
    pub fn used(&self, limit: &str) -> Option<u64> {
        match limit {
            limit_names::OPS => Some(self.ops),
            limit_names::WEIGHT_BYTES => Some(self.weight_bytes),
            limit_names::ARTEFACT_BYTES => Some(self.artefact_bytes),
            limit_names::CONTEXT_BYTES => Some(self.context_bytes()),
            limit_names::CALL_MICROSECONDS => Some(self.call_microseconds()),
            _ => None,
        }
    }
}

/// Why a shard has no cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CostFault {
    /// The target does not support a kind at an entry point, or the table has no row for it.
    Illegal {
        /// Index of the layer kind.
        kind: u32,
        /// Index of the format tuple.
        formats: u32,
        entry: EntryName,
        /// The target's reason, or that the row is missing.
        why: String,
    },
    /// The sums exceed 64 bits.
    Overflow,
}

/// The cost table of a request, indexed.
#[derive(Debug)]
pub struct CostTable<'request> {
    request: &'request Request,
    rows: HashMap<(u32, u32, u32, EntryName), &'request CostRow>,
}

impl<'request> CostTable<'request> {
    /// Indexes the table of `request`. If two rows have the same key, the first one counts, but
    /// [`Request::validate`] refuses such requests.
    pub fn new(request: &'request Request) -> Self {
        let mut rows = HashMap::with_capacity(request.costs.len());
        for row in &request.costs {
            rows.entry((row.kind, row.target, row.formats, row.entry)).or_insert(row);
        }
        Self { request, rows }
    }

    /// Returns the row of one kind.
    pub fn row(&self, kind: u32, target: u32, formats: u32, entry: EntryName) -> Option<&'request CostRow> {
        self.rows.get(&(kind, target, formats, entry)).copied()
    }

    /// Returns whether a kind runs at an entry point. If not, it costs nothing there and needs no
    /// row.
    pub fn takes_part(&self, kind: u32, entry: EntryName) -> bool {
        let part = self.request.kinds.get(kind as usize).map(|kind| kind.prefill);
        entry.kind != EntryKind::Prefill || part.is_some_and(|part| part != PrefillPart::None)
    }

    /// Computes the cost of a shard that consists of layers of these kinds, each in its format
    /// tuple.
    pub fn shard(
        &self,
        kinds: &[u32],
        target: u32,
        formats: &[u32],
        entries: &[EntryName],
    ) -> Result<ShardCost, CostFault> {
        let summary = self.request.targets.get(target as usize);
        let call = summary.and_then(|target| target.overhead(overhead_names::CALL));
        let call = call.map_or(TimeCost::ZERO, Overhead::time);
        let mut cost = ShardCost { call, ..ShardCost::default() };
        // The weights of a layer are the maximum over the entry points, and then summed over the
        // layers.
        let mut weights = vec![0_u64; kinds.len()];
        let mut entry_bytes = 0_u64;
        let overflow = || CostFault::Overflow;
        for &entry in entries {
            let mut total = EntryCost { entry, ops: 0, time: TimeCost::ZERO, uncosted_ops: 0 };
            let mut states = 0_u64;
            for ((&kind, &formats), weight) in kinds.iter().zip(formats).zip(&mut weights) {
                if !self.takes_part(kind, entry) {
                    continue;
                }
                let illegal = |why: &str| CostFault::Illegal { kind, formats, entry, why: why.to_owned() };
                let row = self
                    .row(kind, target, formats, entry)
                    .ok_or_else(|| illegal("the cost table has no row"))?;
                if let Legality::Illegal(why) = &row.legality {
                    return Err(illegal(why));
                }
                *weight = (*weight).max(row.weight_bytes);
                total.ops = total.ops.checked_add(row.ops).ok_or_else(overflow)?;
                total.uncosted_ops = total.uncosted_ops.checked_add(row.uncosted_ops).ok_or_else(overflow)?;
                let time = row.time.ok_or_else(|| illegal("the cost table has no time for it"))?;
                total.time = total.time.checked_add(time).ok_or_else(overflow)?;
                states = states.checked_add(row.state_bytes).ok_or_else(overflow)?;
                entry_bytes = entry_bytes.checked_add(row.artefact_bytes).ok_or_else(overflow)?;
                let known = cost.artefact_provenance.unwrap_or(row.artefact_provenance);
                cost.artefact_provenance = Some(known.weaker(row.artefact_provenance));
            }
            cost.ops = cost.ops.max(total.ops);
            cost.state_bytes = cost.state_bytes.max(states);
            cost.entries.push(total);
        }
        for weight in weights {
            cost.weight_bytes = cost.weight_bytes.checked_add(weight).ok_or_else(overflow)?;
        }
        cost.artefact_bytes = cost.weight_bytes.checked_add(entry_bytes).ok_or_else(overflow)?;
        cost.artefact_bytes.checked_add(cost.state_bytes).ok_or_else(overflow)?;
        Ok(cost)
    }
}
