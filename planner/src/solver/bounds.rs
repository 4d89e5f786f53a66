//! Values of a target's limits with the flags that are set.

use crate::table::RangeCost;
use crate::{Flag, Limit, Target};

/// A limit and its value with the flags in use.
#[derive(Debug, Clone, Copy)]
pub(super) struct Bound<'request> {
    pub(super) limit: &'request Limit,
    pub(super) value: u64,
}

/// The limits of one target that the solver supports, the tightest one for each name.
#[derive(Debug, Default, Clone)]
pub(super) struct TargetBounds<'request> {
    pub(super) ops: Option<Bound<'request>>,
    weight_bytes: Option<Bound<'request>>,
    artefact_bytes: Option<Bound<'request>>,
    context_bytes: Option<Bound<'request>>,
    call_microseconds: Option<Bound<'request>>,
    pub(super) shards: Option<Bound<'request>>,
    pub(super) memory_bytes: Option<Bound<'request>>,
}

impl<'request> TargetBounds<'request> {
    /// Creates the bounds with the flags that are set for the target, and with `more`.
    pub(super) fn new(target: &'request Target, more: &[Flag]) -> Self {
        let under = |limit: &'request Limit| {
            let set = |flag: &Flag| target.recommended.contains(flag) || more.contains(flag);
            let raised = limit.relief.iter().filter(|relief| set(&relief.flag));
            let value = raised.filter_map(|relief| relief.value).fold(limit.value, u64::max);
            Bound { limit, value }
        };
        let tightest = |name: &str| {
            let named = target.limits.iter().filter(|limit| limit.name == name);
            named.map(under).min_by_key(|bound| bound.value)
        };
        Self {
            ops: tightest("ops"),
            weight_bytes: tightest("weight-bytes"),
            artefact_bytes: tightest("artefact-bytes"),
            context_bytes: tightest("context-bytes"),
            call_microseconds: tightest("call-microseconds"),
            shards: tightest("shards"),
            memory_bytes: tightest("memory-bytes"),
        }
    }

    /// Iterates over the bounds on a single shard, each with the shard's value.
    pub(super) fn on_shards(&self, cost: &RangeCost) -> impl Iterator<Item = (Bound<'request>, u64)> {
        let pairs = [
            (self.ops, cost.ops),
            (self.weight_bytes, cost.weight_bytes),
            (self.artefact_bytes, cost.artefact_bytes),
            (self.context_bytes, cost.context_bytes()),
            (self.call_microseconds, cost.longest_run),
        ];
        pairs.into_iter().filter_map(|(bound, value)| Some((bound?, value)))
    }

    /// Returns those amounts of a shard's cost that can still exceed a bound if the shard grows up
    /// to `most`, in a fixed order. An amount that cannot is 0.
    pub(super) fn at_stake(&self, cost: &RangeCost, most: &RangeCost) -> [u64; 5] {
        let amount = |bound: Option<Bound<'_>>, of: fn(&RangeCost) -> u64| match bound {
            Some(bound) if of(most) > bound.value => of(cost),
            _ => 0,
        };
        [
            amount(self.ops, |cost| cost.ops),
            amount(self.weight_bytes, |cost| cost.weight_bytes),
            amount(self.artefact_bytes, |cost| cost.artefact_bytes),
            amount(self.context_bytes, RangeCost::context_bytes),
            amount(self.call_microseconds, |cost| cost.longest_run),
        ]
    }

    /// Returns a shard's amount of the quantity that a limit with this name bounds.
    pub(super) fn value_of(name: &str, cost: &RangeCost) -> Option<u64> {
        match name {
            "ops" => Some(cost.ops),
            "weight-bytes" => Some(cost.weight_bytes),
            "artefact-bytes" => Some(cost.artefact_bytes),
            "context-bytes" => Some(cost.context_bytes()),
            "call-microseconds" => Some(cost.longest_run),
            _ => None,
        }
    }

    /// Returns the first bound that a single shard exceeds, with the shard's value.
    pub(super) fn exceeded(&self, cost: &RangeCost) -> Option<(Bound<'request>, u64)> {
        self.on_shards(cost).find(|(bound, value)| *value > bound.value)
    }
}
