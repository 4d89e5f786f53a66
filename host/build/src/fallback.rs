//! The chains that a plan falls back to, each with the whole model on its own target.

use shardwright_graph::Graph;
use shardwright_planning::check::{CheckedPlan, Loss};
use shardwright_planning::cost::CostTable;
use shardwright_planning::plan::Fallback;
use shardwright_planning::profile::Preference;
use shardwright_planning::request::{Body, Request};
use shardwright_vocabulary::{EntryKind, EntryName, TargetKind};

use crate::options::{NEAR_LOSSLESS, SMALL, USUAL_QUALITY, USUAL_QUALITY_OPTION};
use crate::{FormatChoice, PlanOptions, RecordedOptions, Settled, TableFormats};

/// A fallback chain of a plan, to be planned and compiled.
#[derive(Clone, Debug)]
pub struct FallbackChain {
    /// The name of its target, which is unique among the chains.
    pub name: String,
    /// The options for planning and compiling the chain: the options of the first chain with only
    /// this target, the formats that the plan has for it, and the bytes that a size goal leaves.
    /// Goals for the speed do not apply.
    pub options: PlanOptions,
}

impl Settled {
    /// Returns the fallback chains of the plan, in order. `options` are the options that the plan
    /// was settled with. Returns an empty list under `strict`, where every fallback would be an
    /// error.
    pub fn fallbacks(&self, options: &PlanOptions) -> Vec<FallbackChain> {
        fallbacks(&self.request, &self.plan, &self.graph, options)
    }
}

/// Returns the fallback chains of a plan. `graph` is the model in any formats.
pub(crate) fn fallbacks(
    request: &Request,
    plan: &CheckedPlan,
    graph: &Graph,
    options: &PlanOptions,
) -> Vec<FallbackChain> {
    if options.strict {
        return Vec::new();
    }
    let chains = &plan.plan().fallback;
    let mut sizes = Sizes::left(request, plan, chains);
    let chain = |chain: &Fallback| {
        let target = &request.targets.get(chain.target as usize)?.target;
        let size_bytes = sizes.next();
        let named = chain.formats.iter().filter_map(|index| request.formats.get(*index as usize));
        let named: Vec<FormatChoice> = named.map(|tuple| FormatChoice::Tuple(tuple.clone())).collect();
        let own = match target.kind {
            TargetKind::Cpu => options.without_a_chip(),
            // A target other than the CPU has the name of its profile.
            _ => options.on_another(&target.name),
        };
        // All chains gather from the same tables.
        let tables = TableFormats::planned(graph, plan);
        let own = PlanOptions {
            recorded: RecordedOptions { tables, ..own.recorded },
            size_bytes,
            token_microseconds: None,
            first_token_microseconds: None,
            ..own
        };
        let options = match named.is_empty() && target.kind == TargetKind::Cpu && graph.is_generative() {
            true => in_formats_of_its_own(own, plan.loss()),
            false => {
                PlanOptions { formats: named.into_iter().chain([FormatChoice::Stored]).collect(), ..own }
            }
        };
        Some(FallbackChain { name: target.name.clone(), options })
    };
    chains.iter().filter_map(chain).collect()
}

/// Lets the CPU's chain choose from all formats of its profile, unless the user named some. The
/// chain gets as few bytes as possible with no more expected loss than the first chain. That loss
/// is rounded up to a named goal, so that chips of a kind share a fallback.
fn in_formats_of_its_own(mut options: PlanOptions, first: Loss) -> PlanOptions {
    if !options.formats.is_empty() || options.quality_micronats.is_some() {
        return options;
    }
    let first = match first.unmeasured {
        0 => first.micronats.div_ceil(1000),
        _ => USUAL_QUALITY.into(),
    };
    let named = [NEAR_LOSSLESS, USUAL_QUALITY, SMALL].map(u64::from);
    let most = named.into_iter().find(|named| first <= *named).unwrap_or(first);
    options.recorded.planner_options.push((USUAL_QUALITY_OPTION.to_owned(), most.to_string()));
    PlanOptions { prefers: Some(Preference::Speed), ..options }
}

/// Shares of a size goal for the chains, tables included. Each chain gets the least bytes that its
/// formats need. The first one also gets all remaining bytes.
struct Sizes {
    /// Least bytes of each chain. Empty without a goal.
    least: std::vec::IntoIter<u64>,
    spare: u64,
    tables: u64,
}

impl Sizes {
    fn left(request: &Request, plan: &CheckedPlan, chains: &[Fallback]) -> Sizes {
        let sum = |bytes: &mut dyn Iterator<Item = u64>| bytes.fold(0, u64::saturating_add);
        let tables = sum(&mut plan.tables().iter().map(|table| table.chosen.bytes));
        let Some(goal) = request.goals.size_bytes else {
            return Sizes { least: Vec::new().into_iter(), spare: 0, tables };
        };
        let table = CostTable::new(request);
        let mut entries: Vec<EntryName> = Vec::new();
        for entry in plan.plan().shards.iter().flat_map(|shard| &shard.entries) {
            // Each chain decides for itself whether to verify proposals.
            let verifies = entry.kind == EntryKind::Decode && entry.rows > 1;
            if !verifies && !entries.contains(entry) {
                entries.push(*entry);
            }
        }
        let kinds: Vec<u32> =
            request.model.components.iter().flat_map(|component| kinds(&component.body)).collect();
        let least = |chain: &Fallback| {
            let bytes = |formats: &u32| {
                let all = vec![*formats; kinds.len()];
                table.shard(&kinds, chain.target, &all, &entries).ok().map(|cost| cost.artefact_bytes)
            };
            chain.formats.iter().filter_map(bytes).min().unwrap_or(0)
        };
        let least: Vec<u64> = chains.iter().map(least).collect();
        let first = sum(&mut plan.shards().iter().map(|shard| shard.cost.artefact_bytes));
        let held = sum(&mut least.iter().copied().chain([first, tables]));
        Sizes { least: least.into_iter(), spare: goal.saturating_sub(held), tables }
    }

    /// Returns the bytes for the next chain, or `None` without a goal.
    fn next(&mut self) -> Option<u64> {
        let least = self.least.next()?;
        let spare = std::mem::take(&mut self.spare);
        Some(least.saturating_add(spare).saturating_add(self.tables))
    }
}

fn kinds(body: &Body) -> Vec<u32> {
    match body {
        Body::Whole(kind) => vec![*kind],
        Body::Layers(layers) => layers.iter().map(|layer| layer.kind).collect(),
    }
}
