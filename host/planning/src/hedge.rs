//! Hedges: chains of a plan on one of its own targets within tighter limits, for a device that
//! cannot load the plan itself.

use shardwright_vocabulary::{EntryKind, EntryName, limit_names};

use crate::cost::{CostTable, ShardCost};
use crate::plan::{Fallback, Plan};
use crate::request::{Body, Component, Request};

/// Name and value of the option with which a planner that has it plans no hedges.
pub const OFF: (&str, &str) = ("hedge", "off");

/// Note of the limits of a hedge.
pub const NOTE: &str = "hedge of the main chain";

/// Returns the target of most layers and components without layers, the first one if there are
/// several. `None` for a plan without shards.
pub(crate) fn main_target(plan: &Plan) -> Option<u32> {
    let units = |target: u32| -> usize {
        let own = plan.shards.iter().filter(|shard| shard.target == target);
        own.map(|shard| shard.formats().count()).sum()
    };
    let targets = plan.shards.iter().map(|shard| shard.target);
    targets.max_by_key(|&target| (units(target), std::cmp::Reverse(target)))
}

/// Returns the first fault of a chain's limits, if there is one. `costs` has the cost of each shard
/// of the plan, and `main` is its main target.
pub(crate) fn fault(chain: &Fallback, plan: &Plan, costs: &[ShardCost], main: Option<u32>) -> Option<String> {
    if chain.limits.is_empty() {
        let most = "expected a limit, because this target has most of the plan";
        return (main == Some(chain.target)).then(|| most.to_owned());
    }
    let mut known: Vec<&str> = Vec::new();
    chain.limits.iter().find_map(|(name, value)| {
        let Some(&limit) = limit_names::ALL.iter().find(|limit| *limit == name) else {
            let name: String = name.chars().take(64).collect();
            return Some(format!("unknown limit `{name}`, expected one of {}", limit_names::ALL.join(", ")));
        };
        if known.contains(&limit) {
            return Some(format!("limit `{limit}` is listed twice"));
        }
        known.push(limit);
        match used(plan, costs, chain.target, limit) {
            None => Some("limits are for targets of the plan, and it has no shard there".to_owned()),
            Some(_) if *value == 0 => Some(format!("{limit} ≤ 0 does not allow any shard")),
            Some(used) if *value >= used => {
                Some(format!("{limit} ≤ {value} is not below the plan's own {limit} {used}"))
            }
            Some(_) => None,
        }
    })
}

/// Returns a plan's use of a limit of a target, or `None` if it has no shard there.
fn used(plan: &Plan, costs: &[ShardCost], target: u32, limit: &str) -> Option<u64> {
    let own = plan.shards.iter().zip(costs).filter(|(shard, _)| shard.target == target);
    let own: Vec<&ShardCost> = own.map(|(_, cost)| cost).collect();
    if own.is_empty() {
        return None;
    }
    Some(match limit {
        limit_names::SHARDS => own.len() as u64,
        limit_names::MEMORY_BYTES => own.iter().map(|cost| cost.context_bytes()).fold(0, u64::saturating_add),
        limit => own.iter().filter_map(|cost| cost.used(limit)).max().unwrap_or(0),
    })
}

/// Returns the least bytes that the artefacts of a fallback chain need in its formats. Cuts do not
/// change them. `None` if its target does not support the whole model in any of its formats.
pub fn least_bytes(request: &Request, plan: &Plan, chain: &Fallback) -> Option<u64> {
    Need::of(request, plan).bytes(chain)
}

/// Returns the bytes that the artefacts of all hedges need, in addition to the plan's own.
pub fn bytes(request: &Request, plan: &Plan) -> u64 {
    let need = Need::of(request, plan);
    let hedges = plan.fallback.iter().filter(|chain| chain.is_hedge());
    hedges.filter_map(|chain| need.bytes(chain)).fold(0, u64::saturating_add)
}

/// The whole model, as a chain needs it.
struct Need<'r> {
    table: CostTable<'r>,
    formats: u32,
    /// The kinds of each unit, of which one is needed.
    kinds: Vec<Vec<u32>>,
    entries: Vec<EntryName>,
}

impl<'r> Need<'r> {
    fn of(request: &'r Request, plan: &Plan) -> Self {
        let mut entries: Vec<EntryName> = Vec::new();
        for entry in plan.shards.iter().flat_map(|shard| &shard.entries) {
            // Each chain decides for itself whether to verify proposals.
            let verifies = entry.kind == EntryKind::Decode && entry.rows > 1;
            if !verifies && !entries.contains(entry) {
                entries.push(*entry);
            }
        }
        let components = request.model.components.iter();
        Need {
            table: CostTable::new(request),
            formats: u32::try_from(request.formats.len()).unwrap_or(u32::MAX),
            kinds: components.flat_map(alternatives).collect(),
            entries,
        }
    }

    /// Returns the sum of the least bytes of each unit, whose formats may differ.
    fn bytes(&self, chain: &Fallback) -> Option<u64> {
        let all: Vec<u32> = (0..self.formats).collect();
        let formats = if chain.formats.is_empty() { &all } else { &chain.formats };
        let cost = |kind: u32, formats: u32| {
            let cost = self.table.shard(&[kind], chain.target, &[formats], &self.entries).ok()?;
            Some(cost.artefact_bytes)
        };
        let least = |kinds: &Vec<u32>| {
            kinds.iter().flat_map(|kind| formats.iter().filter_map(|own| cost(*kind, *own))).min()
        };
        self.kinds.iter().try_fold(0_u64, |sum, unit| Some(sum.saturating_add(least(unit)?)))
    }
}

/// Returns the kinds of each unit of a component: with the soft-cap in the graph, and without it if
/// the component has one.
fn alternatives(component: &Component) -> Vec<Vec<u32>> {
    let without = component.softcap.as_ref().map(|softcap| softcap.kind_without);
    kinds(&component.body).into_iter().map(|kind| [kind].into_iter().chain(without).collect()).collect()
}

fn kinds(body: &Body) -> Vec<u32> {
    match body {
        Body::Whole(kind) => vec![*kind],
        Body::Layers(layers) => layers.iter().map(|layer| layer.kind).collect(),
    }
}
