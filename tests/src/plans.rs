//! Shards of plans and placements in JSON reports.

use serde_json::Value;

/// Checks whether a shard computes a part of a component.
pub fn holds(shard: &Value, component: &str) -> bool {
    segments(shard).any(|segment| segment["component"] == component)
}

/// Returns the first decoder layer in a shard and the end, exclusive.
pub fn layers(shard: &Value) -> Option<(u64, u64)> {
    let decoder = segments(shard).find(|segment| segment["component"] == "decoder")?;
    Some((decoder["layers"][0].as_u64()?, decoder["layers"][1].as_u64()?))
}

fn segments(shard: &Value) -> impl Iterator<Item = &Value> {
    shard["segments"].as_array().into_iter().flatten()
}
