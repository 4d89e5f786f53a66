//! Converts measured times of shards to times of rows in the cost table.

use std::collections::{BTreeMap, HashMap};

use shardwright_bundle::Digest;
use shardwright_measure::median;
use shardwright_planning::check::CheckedPlan;
use shardwright_planning::cost::CostTable;
use shardwright_planning::request::Request;
use shardwright_vocabulary::{EntryName, Provenance, TimeCost};

use crate::spread::Spread;
use crate::trial::Trial;

/// The request without measured times, and the keys for storing times of its rows.
pub struct Base {
    pub request: Request,
    pub keys: Vec<Option<Digest>>,
}

/// A shard at an entry point, with the rows that the planner adds up for it.
pub struct ShardRows {
    /// Index of the shard in the plan.
    pub shard: usize,
    pub entry: EntryName,
    pub rows: Vec<u32>,
    /// Likely nanoseconds that the plan adds to the rows for the call itself.
    pub call: u64,
}

impl Base {
    /// Computes the identity of the combination whose trials belong together. It covers the inputs
    /// of the times and everything in the request except limits, which are learned during tuning.
    pub fn question(&self) -> Digest {
        let Request { model, kinds, formats, entries, goals, prompts, drafts, options, .. } = &self.request;
        let costs: Vec<_> = self.request.costs.iter().map(|row| row.time).collect();
        let all = ((model, kinds, formats, entries), (goals, prompts, drafts, options), (costs, &self.keys));
        Digest::of(&serde_json::to_vec(&all).unwrap_or_default())
    }

    /// Returns the rows of every shard of a plan at each of its entry points.
    pub fn rows_of(&self, plan: &CheckedPlan) -> Vec<ShardRows> {
        let table = CostTable::new(&self.request);
        let places: HashMap<_, u32> = (0..)
            .zip(&self.request.costs)
            .map(|(index, row)| ((row.kind, row.target, row.formats, row.entry), index))
            .collect();
        let mut found = Vec::new();
        for (index, shard) in plan.shards().iter().enumerate() {
            let planned = &shard.planned;
            let components = &self.request.model.components;
            let units: Vec<(u32, u32)> = planned
                .segments
                .iter()
                .filter_map(|segment| {
                    let component = components.get(segment.component as usize)?;
                    let kinds = component.shard_kinds(segment.first, segment.end, planned.softcap)?;
                    Some(kinds.into_iter().zip(segment.formats.iter().copied()))
                })
                .flatten()
                .collect();
            for &entry in &planned.entries {
                let parts = units.iter().filter(|(kind, _)| table.takes_part(*kind, entry));
                let place =
                    |(kind, formats): &(u32, u32)| places.get(&(*kind, planned.target, *formats, entry));
                let Some(rows) = parts.map(|unit| place(unit).copied()).collect::<Option<Vec<u32>>>() else {
                    continue;
                };
                let call = shard.cost.call.microseconds.saturating_mul(1000);
                found.push(ShardRows { shard: index, entry, rows, call });
            }
        }
        found
    }

    /// Computes the time of every measured row, by its key: the median, between both quartiles. The
    /// result is the same for the same trials.
    ///
    /// A shard's time is divided among its rows in proportion to their estimates, or to their bytes
    /// of weights if a row has no estimate. A row in several shards gets the median. `trials`
    /// begins with the trial of the default plan. The times of other trials are scaled to the
    /// machine's speed in that trial.
    pub fn times(&self, trials: &[Trial]) -> BTreeMap<Digest, TimeCost> {
        let reference = trials.first().and_then(Trial::baseline_token).map(|token| token.median);
        let mut seen: BTreeMap<u32, Vec<[f64; 3]>> = BTreeMap::new();
        for trial in trials {
            let beside = trial.baseline_token().map(|token| token.median.max(1.0));
            let drift = reference.zip(beside).map_or(1.0, |(reference, beside)| reference / beside);
            for part in &trial.parts {
                let nanoseconds = part.nanoseconds.iter().map(|time| *time as f64);
                let Some(Spread { low, median, high, .. }) = Spread::of(nanoseconds) else { continue };
                for (row, share) in part.rows.iter().zip(self.shares(&part.rows)) {
                    let own = [low, median, high].map(|time| time * drift / 1000.0 * share);
                    seen.entry(*row).or_default().push(own);
                }
            }
        }
        let time = |(row, values): (u32, Vec<[f64; 3]>)| {
            let key = self.keys.get(row as usize).copied().flatten()?;
            let of = |place: usize| median(&values.iter().map(|own| own[place]).collect::<Vec<f64>>());
            let bounds = [of(0).floor(), of(1).round(), of(2).ceil()];
            let [low, likely, high] = bounds.map(|time| time.max(1.0) as u64);
            Some((key, TimeCost::within(low, likely, high, Provenance::Measured)))
        };
        seen.into_iter().filter_map(time).collect()
    }

    /// Returns the share of each row in a shard's time.
    fn shares(&self, rows: &[u32]) -> Vec<f64> {
        let costs: Vec<_> = rows.iter().filter_map(|row| self.request.costs.get(*row as usize)).collect();
        let estimates: Option<Vec<u64>> =
            costs.iter().map(|row| row.time.map(|time| time.microseconds)).collect();
        let by = estimates
            .filter(|estimates| estimates.iter().any(|time| *time > 0))
            .unwrap_or_else(|| costs.iter().map(|row| row.weight_bytes.saturating_add(row.ops)).collect());
        let sum: f64 = by.iter().map(|part| *part as f64).sum::<f64>().max(1.0);
        by.iter().map(|part| *part as f64 / sum).collect()
    }
}
