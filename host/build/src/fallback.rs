//! The chains that a plan falls back to, each with the whole model on a target of its own.

use shardwright_planning::plan::Fallback;
use shardwright_vocabulary::TargetKind;

use crate::{FormatChoice, PlanOptions, Settled, TableFormats};

/// A chain that a plan falls back to, to be planned and compiled.
#[derive(Clone, Debug)]
pub struct FallbackChain {
    /// The name of its target; unique among them.
    pub name: String,
    /// The options that it is planned and compiled with: those of the first chain for its target
    /// alone, in the formats that the plan has for it.
    pub options: PlanOptions,
}

impl Settled {
    /// The chains that its plan falls back to, in order. None under `strict`, where every one of
    /// them would be an error. `options` are those that it was settled with.
    pub fn fallbacks(&self, options: &PlanOptions) -> Vec<FallbackChain> {
        let chains = self.plan.plan().fallback.iter().filter(|_| !options.strict);
        chains.filter_map(|chain| self.fallback(chain, options)).collect()
    }

    fn fallback(&self, chain: &Fallback, options: &PlanOptions) -> Option<FallbackChain> {
        let request = &self.request;
        let target = &request.targets.get(chain.target as usize)?.target;
        let tuples = chain.formats.iter().filter_map(|index| request.formats.get(*index as usize));
        let named = tuples.map(|tuple| FormatChoice::Tuple(tuple.clone()));
        let own = match target.kind {
            TargetKind::Cpu => options.without_a_chip(),
            // A target other than the CPU has the name of its profile.
            _ => options.on_another(&target.name),
        };
        let options = PlanOptions {
            formats: named.chain([FormatChoice::Stored]).collect(),
            // All chains gather from the same tables.
            tables: TableFormats::planned(&self.graph, &self.plan),
            ..own
        };
        Some(FallbackChain { name: target.name.clone(), options })
    }
}
