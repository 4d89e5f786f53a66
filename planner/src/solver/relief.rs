//! Flags that raise a limit, tried before a cut at that limit.

use super::Solution;
use super::bounds::{Bound, TargetBounds};
use crate::table::{CostTable, Prefix};
use crate::{Flag, Request};

/// Returns the request with flags added to the recommended flags of its targets.
pub(super) fn with_flags(request: &Request, flags: &[(u32, Flag)]) -> Request {
    let mut request = request.clone();
    for (target, flag) in flags {
        request.targets[*target as usize].recommended.push(flag.clone());
    }
    request
}

/// Returns flags worth trying: supported by the compiler, not set to another value, and known to
/// raise a limit that made `solution` cut a component, or, without a solution, any limit.
pub(super) fn candidates(request: &Request, solution: Option<&Solution>) -> Vec<(u32, Flag)> {
    let mut found: Vec<(u32, Flag)> = Vec::new();
    for (target, index) in request.targets.iter().zip(0_u32..) {
        let bounds = TargetBounds::new(target, &[]);
        for limit in &target.limits {
            if solution.is_some_and(|solution| !cuts(request, solution, index, &bounds, &limit.name)) {
                continue;
            }
            for relief in &limit.relief {
                let flag = &relief.flag;
                let known = target.schema.iter().any(|schema| schema.name == flag.name);
                let decided = target.recommended.iter().any(|existing| existing.name == flag.name)
                    || found.iter().any(|(existing, other)| *existing == index && other.name == flag.name);
                if known && !decided && relief.value.is_some_and(|value| value > limit.value) {
                    found.push((index, flag.clone()));
                }
            }
        }
    }
    found
}

/// Returns whether a component with layers was cut on that target because of that limit.
fn cuts(request: &Request, solution: &Solution, target: u32, bounds: &TargetBounds<'_>, name: &str) -> bool {
    binding(request, solution, target, bounds).iter().any(|(_, bound, _)| bound.limit.name == name)
}

/// Returns the components with layers that were cut on that target, each with the bounds that all
/// its layers together would exceed there, and by how much.
pub(super) fn binding<'request>(
    request: &Request,
    solution: &Solution,
    target: u32,
    bounds: &TargetBounds<'request>,
) -> Vec<(u32, Bound<'request>, u64)> {
    let table = CostTable::new(request);
    let mut found = Vec::new();
    for (component, index) in request.model.components.iter().zip(0_u32..) {
        let parts = || {
            let shards = solution.shards.iter();
            shards.filter_map(|shard| Some((shard.target, shard.segment(index)?)))
        };
        let Some((_, first)) = parts().find(|(of, _)| *of == target) else { continue };
        if component.layer_count() == 0 || parts().count() < 2 {
            continue;
        }
        let prefix = Prefix::new(request, &table, component, target, first.formats[0], &solution.entries);
        let Some(whole) = prefix.range(0, component.layer_count() as usize) else { continue };
        let over = bounds.on_shards(&whole).filter(|(bound, value)| *value > bound.value);
        found.extend(over.map(|(bound, value)| (index, bound, value)));
    }
    found
}
