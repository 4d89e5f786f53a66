//! Where the shards of models run.

use serde_json::{Value, json};
use shardwright::tools::ModelTools;
use shardwright::{Model, Notice};

use crate::models::{Entry, Models};

/// Describes all models for `/v1/placement`.
pub(crate) fn report(models: &Models) -> Value {
    let models: Vec<Value> = models.entries().iter().map(|entry| describe(entry)).collect();
    json!({ "models": models })
}

fn describe(entry: &Entry) -> Value {
    let listed = |notices: Vec<Notice>| -> Vec<Value> {
        let one = |notice: Notice| json!({ "kind": notice.kind, "text": notice.text });
        notices.into_iter().map(one).collect()
    };
    let Some(loaded) = entry.loaded() else {
        return json!({ "id": entry.id, "loaded": false, "plan": null, "chain": null, "shards": [],
            "moves": entry.moves(), "notices": listed(entry.losses()) });
    };
    let model = &loaded.model;
    let report = model.report();
    let mut notices = model.notices();
    notices.extend(entry.losses());
    json!({
        "id": entry.id,
        "loaded": true,
        "plan": model.plan_id(),
        "chain": report.bundle_chain,
        "variant": report.bundle_variant,
        "emulated_on": model.chain().description().emulated_on,
        "context": model.chain().context(),
        "shards": shards(model),
        "moves": entry.moves(),
        "notices": listed(notices),
    })
}

fn shards(model: &Model) -> Vec<Value> {
    let description = model.chain().description();
    let bytes = model.chain().artefact_bytes();
    let emulated = description.emulated_on.is_some();
    let mut shards = Vec::new();
    for (index, shard) in description.shards.iter().enumerate() {
        let fallbacks = shard.origin.fallbacks(&shard.place, emulated);
        let fallbacks: Vec<Value> = fallbacks
            .into_iter()
            .map(|(what, because)| json!({ "what": what, "because": because }))
            .collect();
        let layers = Some(shard.segments.layers()).filter(|(first, end)| first < end);
        shards.push(json!({
            "name": shard.name,
            "target": shard.place.to_string(),
            "layers": layers.map(|(first, end)| [first, end - 1]),
            "segments": shard.segments.to_string(),
            "bytes": bytes.as_ref().and_then(|bytes| bytes.get(index)),
            "fallback": !fallbacks.is_empty(),
            "fallbacks": fallbacks,
        }));
    }
    shards
}

/// Returns the number of deviations of a model's chain from its plan.
pub(crate) fn fallbacks(model: &Model) -> usize {
    let description = model.chain().description();
    let emulated = description.emulated_on.is_some();
    description.shards.iter().map(|shard| shard.origin.fallbacks(&shard.place, emulated).len()).sum()
}
