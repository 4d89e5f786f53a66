//! How close a plan comes to the limits that the host can count.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use shardwright_planning::check::{CheckedPlan, CheckedShard};
use shardwright_planning::request::Request;
use shardwright_vocabulary::{Flag, Limit, Provenance, limit_names};

/// A limit and its use.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LimitUse {
    /// Name of the limit.
    pub name: String,
    pub used: u64,
    /// The limit under the flags of the shard.
    pub limit: u64,
    /// `used` in thousandths of `limit`, rounded down. 1000 is the whole limit.
    pub thousandths: u64,
    /// Where the limit comes from.
    pub provenance: Provenance,
}

/// The use of a limit by all shards on a target together.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TargetLimitUse {
    /// Name of the target.
    pub target: String,
    /// The limit and its use.
    #[serde(flatten)]
    pub limit: LimitUse,
}

/// Returns the limits that apply to one shard.
pub(super) fn of_shard(request: &Request, shard: &CheckedShard) -> Vec<LimitUse> {
    let limits = request.targets.get(shard.planned.target as usize);
    let cost = &shard.cost;
    let used = [
        (limit_names::OPS, cost.ops),
        (limit_names::WEIGHT_BYTES, cost.weight_bytes),
        (limit_names::ARTEFACT_BYTES, cost.artefact_bytes),
        (limit_names::CONTEXT_BYTES, cost.context_bytes()),
        (limit_names::CALL_MICROSECONDS, cost.call_microseconds()),
    ];
    let limits = limits.map_or(&[][..], |target| &target.limits);
    used.iter().filter_map(|&(name, used)| of(limits, name, used, &shard.planned.flags)).collect()
}

/// Returns the limits that apply to all shards of a target together.
pub(super) fn of_targets(request: &Request, plan: &CheckedPlan) -> Vec<TargetLimitUse> {
    let mut totals: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for shard in plan.shards() {
        let (count, bytes) = totals.entry(shard.planned.target).or_default();
        *count += 1;
        *bytes = bytes.saturating_add(shard.cost.context_bytes());
    }
    let mut found = Vec::new();
    for (target, (count, bytes)) in totals {
        let Some(target) = request.targets.get(target as usize) else { continue };
        for (name, used) in [(limit_names::SHARDS, count), (limit_names::MEMORY_BYTES, bytes)] {
            found.extend(
                of(&target.limits, name, used, &[])
                    .map(|limit| TargetLimitUse { target: target.target.name.clone(), limit }),
            );
        }
    }
    found
}

/// Returns the use of the limit of this name that is smallest under these flags.
fn of(limits: &[Limit], name: &str, used: u64, flags: &[Flag]) -> Option<LimitUse> {
    let named = limits.iter().filter(|limit| limit.name == name);
    let binding = named.min_by_key(|limit| limit.under(flags))?;
    let limit = binding.under(flags);
    let thousandths = match limit {
        0 => 1000,
        limit => u128::from(used) * 1000 / u128::from(limit),
    };
    Some(LimitUse {
        name: name.to_owned(),
        used,
        limit,
        thousandths: u64::try_from(thousandths).unwrap_or(u64::MAX),
        provenance: binding.provenance,
    })
}
