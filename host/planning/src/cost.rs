//! Adding up the cost table: what a shard costs, exactly as the request promises it. Decides
//! nothing.

use std::collections::HashMap;

use shardwright_vocabulary::{CostRow, EntryKind, EntryName, Legality, Provenance, TimeCost, overhead_names};

use crate::request::{PrefillPart, Request};

/// The entry points that read a prompt before the token whose logits are wanted, each with its
/// number of runs, as a session runs them: of `prefills` the largest that is completely filled, and
/// for what is left the smallest. Empty without any.
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
    /// The entry point.
    pub entry: EntryName,
    /// Operations after legalisation.
    pub ops: u64,
    /// Time of one run with the weakest provenance of its parts; `None` unless every part is known.
    pub time: Option<TimeCost>,
    /// The known part of it, in microseconds.
    pub known_microseconds: u64,
    /// Operations the time does not cover.
    pub uncosted_ops: u64,
}

/// Cost of one shard.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ShardCost {
    /// Per entry point, in the order asked for.
    pub entries: Vec<EntryCost>,
    /// Operations of the largest entry point.
    pub ops: u64,
    /// Weight bytes; entry points share them.
    pub weight_bytes: u64,
    /// Weights and what each entry point adds.
    pub artefact_bytes: u64,
    /// The weakest provenance of its parts; `None` for a shard without entry points.
    pub artefact_provenance: Option<Provenance>,
    /// States at the largest entry point.
    pub state_bytes: u64,
    /// What each run takes beside the computation, where it is known.
    pub call: Option<TimeCost>,
}

impl ShardCost {
    /// Bytes the loaded shard occupies: artefact and states. Cannot overflow: both were summed with
    /// a check that includes this sum.
    pub fn context_bytes(&self) -> u64 {
        self.artefact_bytes.saturating_add(self.state_bytes)
    }

    /// Microseconds of one run of its slowest entry point, as far as times are known.
    pub fn call_microseconds(&self) -> u64 {
        self.entries.iter().map(|entry| entry.known_microseconds).max().unwrap_or(0)
    }
}

/// Why a shard has no cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CostFault {
    /// The target does not take a kind at an entry point, or the table has no row for it.
    Illegal {
        /// Kind index.
        kind: u32,
        /// Format tuple index.
        formats: u32,
        /// Entry point.
        entry: EntryName,
        /// The target's reason, or that there is no row.
        why: String,
    },
    /// The sums leave 64 bits.
    Overflow,
}

/// The cost table of a request, indexed.
#[derive(Debug)]
pub struct CostTable<'request> {
    request: &'request Request,
    rows: HashMap<(u32, u32, u32, EntryName), &'request CostRow>,
}

impl<'request> CostTable<'request> {
    /// Index the table of `request`. Of two rows with one key the first counts;
    /// [`Request::validate`] refuses that.
    pub fn new(request: &'request Request) -> Self {
        let mut rows = HashMap::with_capacity(request.costs.len());
        for row in &request.costs {
            rows.entry((row.kind, row.target, row.formats, row.entry)).or_insert(row);
        }
        Self { request, rows }
    }

    /// The row of one kind.
    pub fn row(&self, kind: u32, target: u32, formats: u32, entry: EntryName) -> Option<&'request CostRow> {
        self.rows.get(&(kind, target, formats, entry)).copied()
    }

    /// Whether a kind has anything to do at an entry point. If not, it costs nothing there and
    /// needs no row.
    pub fn takes_part(&self, kind: u32, entry: EntryName) -> bool {
        let part = self.request.kinds.get(kind as usize).map(|kind| kind.prefill);
        entry.kind != EntryKind::Prefill || part.is_some_and(|part| part != PrefillPart::None)
    }

    /// Cost of a shard that consists of layers of these kinds, each in its format tuple.
    pub fn shard(
        &self,
        kinds: &[u32],
        target: u32,
        formats: &[u32],
        entries: &[EntryName],
    ) -> Result<ShardCost, CostFault> {
        let summary = self.request.targets.get(target as usize);
        let call = summary.and_then(|target| target.overhead(overhead_names::CALL));
        let call = call.map(|call| TimeCost { microseconds: call.value, provenance: call.provenance });
        let mut cost = ShardCost { call, ..ShardCost::default() };
        // Weights per layer are the largest over the entry points, then summed over the layers.
        let mut weights = vec![0_u64; kinds.len()];
        let mut entry_bytes = 0_u64;
        let overflow = || CostFault::Overflow;
        for &entry in entries {
            let mut total =
                EntryCost { entry, ops: 0, time: Some(NO_TIME), known_microseconds: 0, uncosted_ops: 0 };
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
                let known = row.time.map_or(0, |time| time.microseconds);
                total.known_microseconds =
                    total.known_microseconds.checked_add(known).ok_or_else(overflow)?;
                total.time = match (total.time, row.time) {
                    (Some(sum), Some(time)) => Some(TimeCost {
                        microseconds: sum.microseconds.checked_add(time.microseconds).ok_or_else(overflow)?,
                        provenance: weakest(sum.provenance, time.provenance),
                    }),
                    _ => None,
                };
                states = states.checked_add(row.state_bytes).ok_or_else(overflow)?;
                entry_bytes = entry_bytes.checked_add(row.artefact_bytes).ok_or_else(overflow)?;
                let known = cost.artefact_provenance.unwrap_or(row.artefact_provenance);
                cost.artefact_provenance = Some(weakest(known, row.artefact_provenance));
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

/// A sum of no times: measured, since nothing in it is a guess.
const NO_TIME: TimeCost = TimeCost { microseconds: 0, provenance: Provenance::Measured };

/// The less trustworthy of two provenances of a number.
pub fn weakest(left: Provenance, right: Provenance) -> Provenance {
    let rank = |provenance| match provenance {
        Provenance::Measured => 0,
        Provenance::Probed => 1,
        Provenance::Declared => 2,
        Provenance::Simulated => 3,
        Provenance::Learned => 4,
        Provenance::Reported => 5,
        Provenance::User => 6,
        Provenance::Modelled => 7,
    };
    if rank(left) >= rank(right) { left } else { right }
}
