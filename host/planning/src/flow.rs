//! Boundary tensors that pass between the shards of a plan.

use std::collections::BTreeMap;

use crate::plan::{Plan, PlannedSegment};
use crate::request::{Component, Request};

/// The boundaries of one shard, without duplicates, in the order in which its components list them.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct ShardBoundaries<'request> {
    /// Tensors that its segments read and that no earlier segment of it wrote.
    pub inputs: Vec<&'request str>,
    /// Tensors that its segments write and that a later shard or no segment at all reads.
    pub outputs: Vec<&'request str>,
}

/// Returns the boundaries of every shard. A segment reads a tensor from the nearest earlier segment
/// that wrote its name. Segments of unknown components have no boundaries.
pub fn boundaries<'request>(plan: &Plan, request: &'request Request) -> Vec<ShardBoundaries<'request>> {
    let mut found = vec![ShardBoundaries::default(); plan.shards.len()];
    // For each name, the shard that wrote it last, and whether it was read since.
    let mut written: BTreeMap<&str, (usize, bool)> = BTreeMap::new();
    let leave = |found: &mut Vec<ShardBoundaries<'request>>, shard: usize, name: &'request str| {
        if !found[shard].outputs.contains(&name) {
            found[shard].outputs.push(name);
        }
    };
    for (shard, planned) in plan.shards.iter().enumerate() {
        for component in planned.segments.iter().filter_map(|segment| component(request, segment)) {
            for name in component.inputs.iter().map(String::as_str) {
                // The runtime supplies tensors that no earlier segment wrote.
                if let Some((writer, read)) = written.get_mut(name) {
                    *read = true;
                    let writer = *writer;
                    if writer == shard {
                        continue;
                    }
                    leave(&mut found, writer, name);
                }
                if !found[shard].inputs.contains(&name) {
                    found[shard].inputs.push(name);
                }
            }
            for name in component.outputs.iter().map(String::as_str) {
                if let Some((writer, false)) = written.insert(name, (shard, false)) {
                    leave(&mut found, writer, name);
                }
            }
        }
    }
    for (name, (writer, read)) in written {
        if !read {
            leave(&mut found, writer, name);
        }
    }
    found
}

fn component<'request>(request: &'request Request, segment: &PlannedSegment) -> Option<&'request Component> {
    request.model.components.get(segment.component as usize)
}
