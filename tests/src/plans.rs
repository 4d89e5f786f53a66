//! Shards of plans and placements, as reports have them in JSON.

use serde_json::Value;

/// Whether a shard computes a part of a component.
pub fn holds(shard: &Value, component: &str) -> bool {
    segments(shard).any(|segment| segment["component"] == component)
}

/// First layer of the decoder in a shard and one past the last.
pub fn layers(shard: &Value) -> Option<(u64, u64)> {
    let decoder = segments(shard).find(|segment| segment["component"] == "decoder")?;
    Some((decoder["layers"][0].as_u64()?, decoder["layers"][1].as_u64()?))
}

fn segments(shard: &Value) -> impl Iterator<Item = &Value> {
    shard["segments"].as_array().into_iter().flatten()
}
