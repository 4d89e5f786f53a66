//! The fallback chains of a plan, each with the whole model on one target.

use shardwright_graph::Graph;
use shardwright_planning::check::{CheckedPlan, Loss};
use shardwright_planning::hedge;
use shardwright_planning::plan::Fallback;
use shardwright_planning::profile::Preference;
use shardwright_planning::request::Request;
use shardwright_vocabulary::{Pass, TargetKind};

use crate::options::{NEAR_LOSSLESS, SMALL, USUAL_QUALITY, USUAL_QUALITY_OPTION};
use crate::{FormatChoice, PlanOptions, RecordedOptions, Settled, TableFormats};

/// The name of the first chain of a model's text in a bundle. The first chain of a tower has the
/// name of its pass.
pub const PRIMARY_CHAIN: &str = "primary";

/// A fallback chain of a plan, to be planned and compiled.
#[derive(Clone, Debug)]
pub struct FallbackChain {
    /// The name of the chain in a bundle. A chain for another target has the name of that target,
    /// and a hedge is called `primary-within-ops`.
    pub name: String,
    /// The options for planning and compiling the chain: the options of the first chain with only
    /// this target, the formats that the plan has for it, and the bytes that a size goal leaves.
    /// Goals for the speed do not apply.
    pub options: PlanOptions,
}

impl FallbackChain {
    /// Returns whether the chain is a hedge: on a target of the plan itself, within tighter limits.
    pub fn is_hedge(&self) -> bool {
        !self.options.within.is_empty()
    }
}

impl Settled {
    /// Returns the fallback chains of the plan, in order. `options` are the options that the plan
    /// was settled with. Returns an empty list under `strict`, where every fallback would be an
    /// error.
    pub fn fallbacks(&self, options: &PlanOptions) -> Vec<FallbackChain> {
        fallbacks(&self.request, &self.plan, &self.graph, options)
    }

    /// Returns the fallback chains on other targets, for a session that loses its target. A plan
    /// whose shards cannot be loaded is revised, so that hedges are not needed.
    pub fn takeovers(&self, options: &PlanOptions) -> Vec<FallbackChain> {
        self.fallbacks(options).into_iter().filter(|chain| !chain.is_hedge()).collect()
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
    let mut names: Vec<String> = Vec::new();
    let chain = |chain: &Fallback| {
        let target = &request.targets.get(chain.target as usize)?.target;
        let size_bytes = sizes.next();
        let named = chain.formats.iter().filter_map(|index| request.formats.get(*index as usize));
        let named: Vec<FormatChoice> = named.map(|tuple| FormatChoice::Tuple(tuple.clone())).collect();
        let own = match target.kind {
            TargetKind::Cpu => options.without_a_chip(),
            // A target other than the CPU has the name of its profile.
            _ if chain.is_hedge() => options.hedged(&target.name),
            _ => options.on_another(&target.name),
        };
        // All chains gather from the same tables.
        let tables = TableFormats::planned(graph, plan);
        let own = PlanOptions {
            recorded: RecordedOptions { tables, ..own.recorded },
            size_bytes,
            token_microseconds: None,
            first_token_microseconds: None,
            unhedged: true,
            within: chain.limits.clone(),
            ..own
        };
        let options = match named.is_empty() {
            true if chain.is_hedge() => own,
            true if target.kind == TargetKind::Cpu && graph.is_generative() => {
                in_formats_of_its_own(own, plan.loss())
            }
            _ => PlanOptions { formats: named.into_iter().chain([FormatChoice::Stored]).collect(), ..own },
        };
        let name = chain_name(graph.pass, &target.name, &chain.limits, &names);
        names.push(name.clone());
        Some(FallbackChain { name, options })
    };
    chains.iter().filter_map(chain).collect()
}

/// Returns the name of a fallback chain in a bundle, which is not one of `taken`.
fn chain_name(pass: Pass, target: &str, within: &[(String, u64)], taken: &[String]) -> String {
    let first = if pass == Pass::Step { PRIMARY_CHAIN } else { pass.name() };
    let limits: Vec<&str> = within.iter().map(|(name, _)| name.as_str()).collect();
    let name = match (limits.is_empty(), pass) {
        (true, Pass::Step) => target.to_owned(),
        (true, pass) => format!("{pass}.{target}"),
        (false, _) => format!("{first}-within-{}", limits.join("-")),
    };
    let numbered = (2_u32..).map(|number| format!("{name}-{number}"));
    let mut names = std::iter::once(name.clone()).chain(numbered);
    names.find(|name| !taken.contains(name)).unwrap_or_default()
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
        let least = chains.iter().map(|chain| match chain.formats.is_empty() && !chain.is_hedge() {
            true => 0,
            false => hedge::least_bytes(request, plan.plan(), chain).unwrap_or(0),
        });
        let least: Vec<u64> = least.collect();
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chains_are_named_by_their_target_or_their_limits() {
        let ops = [("ops".to_owned(), 2600)];
        let both = [("ops".to_owned(), 2600), ("weight-bytes".to_owned(), 7)];
        let none = &[][..];
        assert_eq!(chain_name(Pass::Step, "cpu", &[], none), "cpu");
        assert_eq!(chain_name(Pass::Picture, "cpu", &[], none), "picture.cpu");
        assert_eq!(chain_name(Pass::Step, "mt6989", &ops, none), "primary-within-ops");
        assert_eq!(chain_name(Pass::Clip, "mt6989", &both, none), "clip-within-ops-weight-bytes");
        let mut taken = vec!["primary-within-ops".to_owned()];
        for number in 2..4 {
            let name = chain_name(Pass::Step, "mt6989", &ops, &taken);
            assert_eq!(name, format!("primary-within-ops-{number}"));
            taken.push(name);
        }
    }
}
