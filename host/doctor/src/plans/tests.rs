use std::fs;

use serde_json::{Value, json};
use shardwright_build::PlanReport;
use shardwright_trust::Trust;
use shardwright_vocabulary::ErrorKind;

use super::*;

fn entry() -> Value {
    json!({
        "entry": "decode_1@64", "ops": 30, "uncosted_ops": 1,
        "time": { "low": 900, "microseconds": 1200, "high": 1900, "provenance": "simulated" },
    })
}

fn layer(component: &str, layer: Option<u32>) -> Value {
    json!({
        "component": component, "layer": layer, "kind": "sliding", "formats": "w8-per-channel/f32/f32",
        "ops": 30, "weight_bytes": 4096, "artefact_bytes": 5000, "state_bytes": 128, "entries": [entry()],
        "loss": { "known": "measured", "micronats": 1500 },
    })
}

fn shard(index: u32, first: u32, end: u32) -> Value {
    json!({
        "index": index, "segments": [{ "component": "decoder", "layers": [first, end] }], "target": "npu",
        "formats": "w8-per-channel/f32/f32", "ops": 90, "weight_bytes": 12288, "artefact_bytes": 15000,
        "state_bytes": 384, "context": 64, "entries": [entry()],
        "inputs": [{ "name": "hidden", "encoding": null }],
        "outputs": [{ "name": "hidden", "encoding": { "element": "u16", "scale": 1065353216, "zero_point": 3 } }],
        "softcap": "runtime",
        "flags": [{ "name": "power", "value": "burst" }],
        "build": "ahead",
        "limits": [{ "name": "ops", "used": 90, "limit": 100, "thousandths": 900, "provenance": "reported" }],
        "by_layer": (first..end).map(|number| layer("decoder", Some(number))).collect::<Vec<_>>(),
        "reasons": [{ "choice": "cut", "because": "it fits", "cause": { "limit": "ops" } }],
    })
}

fn predicted(microseconds: u64) -> Value {
    json!({
        "low": microseconds / 2, "microseconds": microseconds, "high": microseconds * 2,
        "provenance": "simulated", "uncosted_ops": 3,
    })
}

/// Returns a plan with a value in every field.
fn plan() -> Value {
    let mut embed = shard(0, 0, 0);
    embed["segments"] = json!([{ "component": "embed" }]);
    embed["by_layer"] = json!([layer("embed", None)]);
    embed["outputs"] = json!([{ "name": "hidden", "encoding": null }]);
    json!({
        "model": "a model", "family": "a family", "soc": "a chip",
        "planner": { "name": "generic", "version": "1.0.0", "built_in": true },
        "refused_plans": 2,
        "limits": [{
            "target": "npu", "name": "ops", "value": 100, "provenance": "reported", "note": "seen once",
            "relief": [{ "flag": { "name": "large", "value": "true" }, "value": 200, "note": "tried" }],
        }],
        "shared_limits": [{
            "target": "npu", "name": "shards", "used": 1, "limit": 4, "thousandths": 250,
            "provenance": "declared",
        }],
        "goals": [
            {
                "goal": "quality", "asked": 5000, "low": 4500, "predicted": 4500, "high": 4500,
                "provenance": "measured", "verdict": "met",
            },
            {
                "goal": "token", "asked": 3000, "low": 2000, "predicted": 3600, "high": 9000,
                "provenance": "simulated", "verdict": "unlikely",
            },
        ],
        "shards": [embed, shard(1, 0, 3), shard(2, 3, 5)],
        "totals": {
            "weight_bytes": 24576,
            "artefacts": { "bytes": 30000, "provenance": "modelled" },
            "state_bytes": 768,
            "times": [{
                "entry": "decode_1@64", "uncosted_ops": 3,
                "time": { "low": 2000, "microseconds": 3600, "high": 9000, "provenance": "simulated" },
                "calls": { "low": 100, "microseconds": 300, "high": 400, "provenance": "reported" },
                "hand_off_nanoseconds": 1176,
                "shares": [{ "provenance": "simulated", "places": 6, "microseconds": 3299 }],
            }],
            "loss": { "known": "measured", "micronats": 4500 },
        },
        "forecast": {
            "verdict": {
                "fits": "whole", "elsewhere": [], "largest": "decode", "held_bytes": 30768, "mapped_bytes": 0,
                "asked_bytes": 70000, "device_bytes": 80000, "too_slow": true,
            },
            "download": null,
            "memory": [{
                "phase": "decode", "held_bytes": 30768, "provenance": "modelled", "mapped_bytes": 500,
                "parts": [
                    { "name": "artefacts", "rests_on": "estimated", "bytes": 30000, "provenance": "modelled" },
                    { "name": "KV cache", "rests_on": "counted", "bytes": 768 },
                    { "name": "table embedding", "rests_on": "mapped", "bytes": 500 },
                ],
            }],
            "speed": {
                "of": "tokens", "prompt_tokens": 64, "first": predicted(8000),
                "each": predicted(3600), "per_1000_seconds": 277_777,
            },
            "loading": predicted(50_000),
        },
        "fallback": [{ "target": "cpu", "formats": ["f32/f32/f32"] }],
        "speculation": { "draft": "lookup", "rows": 4, "gain_thousandths": 1180, "provenance": "modelled" },
        "reasons": [{ "choice": "formats", "because": "the fastest", "cause": { "goal": "quality" } }],
        "notices": [{ "kind": "fallback", "text": "something fell back" }],
        "emulated_on": "cpu",
    })
}

fn read_plan(plan: &Value) -> serde_json::Result<PlanReport> {
    serde_json::from_value(plan.clone())
}

fn changes(before: &Value, after: &Value) -> Vec<PlanChange> {
    let read = |plan| read_plan(plan).unwrap_or_else(|error| panic!("{error}"));
    difference::between(&read(before), &read(after))
}

/// Returns the only change, as topic, place, what, before and after.
fn only(before: &Value, after: &Value) -> (PlanTopic, String, String, Value, Value) {
    let found = changes(before, after);
    let [change] = found.as_slice() else { panic!("{found:#?}") };
    let value = |value: &Option<PlanValue>| serde_json::to_value(value).unwrap();
    (change.topic, change.place.clone(), change.what.clone(), value(&change.before), value(&change.after))
}

/// Collects the paths of all leaves.
fn leaves(value: &Value, path: &str, found: &mut Vec<String>) {
    let mut each = |key: &str, value: &Value| leaves(value, &format!("{path}/{key}"), found);
    match value {
        Value::Object(members) => members.iter().for_each(|(key, value)| each(key, value)),
        Value::Array(items) => {
            items.iter().enumerate().for_each(|(index, value)| each(&index.to_string(), value));
        }
        _ => found.push(path.to_owned()),
    }
}

/// Returns other values that may be valid in place of this one.
fn others(value: &Value) -> Vec<Value> {
    match value {
        Value::Number(number) => vec![json!(number.as_u64().unwrap() + 1)],
        Value::Bool(truth) => vec![json!(!truth)],
        Value::String(text) => {
            let words = [
                "user",
                "decode_2@64",
                "graph",
                "note",
                "context",
                "u8",
                "per-channel",
                "not-measured",
                "none",
            ];
            words.iter().map(|word| json!(word)).chain([json!(format!("{text} other"))]).collect()
        }
        _ => vec![json!([0, 1]), json!({ "element": "u16", "scale": 1065353216, "zero_point": 3 })],
    }
}

/// An incomplete comparison is worse than none, so every change of a plan must be reported.
#[test]
fn no_change_is_overlooked() {
    // Derived from other values: the place in the list, and the quotient of use and limit.
    let derived = ["/index", "/thousandths"];
    let before = plan();
    let mut all = Vec::new();
    leaves(&before, "", &mut all);
    let mut tried = 0;
    for path in &all {
        if derived.iter().any(|end| path.ends_with(end)) {
            continue;
        }
        let mut valid = 0;
        for other in others(before.pointer(path).unwrap()) {
            let mut after = before.clone();
            *after.pointer_mut(path).unwrap() = other.clone();
            let Ok(read) = read_plan(&after) else { continue };
            if read == read_plan(&before).unwrap() {
                continue;
            }
            valid += 1;
            assert!(!changes(&before, &after).is_empty(), "{path} became {other} unnoticed");
            assert!(!changes(&after, &before).is_empty(), "{path} was {other} unnoticed");
        }
        tried += usize::from(valid > 0);
    }
    // Some words, such as the tag of a loss that requires a number next to it, have no alternative.
    assert!(tried + 30 > all.len() && tried > 100, "{tried} of {}", all.len());
    // Items of a list may also be removed or reordered.
    for list in ["limits", "shared_limits", "goals", "shards", "fallback", "reasons", "notices"] {
        let mut after = before.clone();
        after[list].as_array_mut().unwrap().pop();
        assert!(!changes(&before, &after).is_empty(), "{list}");
    }
    for list in ["entries", "inputs", "outputs", "flags", "limits", "by_layer", "reasons"] {
        let mut after = before.clone();
        after["shards"][1][list].as_array_mut().unwrap().pop();
        assert!(!changes(&before, &after).is_empty(), "{list}");
    }
    let mut swapped = before.clone();
    swapped["shards"].as_array_mut().unwrap().swap(1, 2);
    assert!(!changes(&before, &swapped).is_empty());
}

#[test]
fn equal_plans_differ_in_nothing() {
    assert_eq!(changes(&plan(), &plan()), []);
    // Two items with the same name are distinguished by their order.
    let mut twice = plan();
    let shard = twice["shards"][1].clone();
    twice["shards"].as_array_mut().unwrap().push(shard);
    assert_eq!(changes(&twice, &twice), []);
    assert!(!changes(&plan(), &twice).is_empty());
}

#[test]
fn layers_that_changed_alike_are_one_change() {
    let mut after = plan();
    for (shard, layer) in [(1, 0), (1, 1), (1, 2), (2, 0)] {
        after["shards"][shard]["by_layer"][layer]["formats"] = "w4-block32/f32/f32".into();
    }
    let (topic, place, what, before, now) = only(&plan(), &after);
    assert_eq!((topic, place.as_str(), what.as_str()), (PlanTopic::Layers, "decoder 0-3", "formats"));
    assert_eq!((before, now), (json!("w8-per-channel/f32/f32"), json!("w4-block32/f32/f32")));
    // A layer in between that did not change, or changed differently, ends a run.
    after["shards"][1]["by_layer"][1]["formats"] = "w8-per-channel/f32/f32".into();
    let places: Vec<_> = changes(&plan(), &after).into_iter().map(|change| change.place).collect();
    assert_eq!(places, ["decoder 0", "decoder 2-3"]);
}

#[test]
fn changes_have_names_values_and_units() {
    let mut after = plan();
    after["totals"]["weight_bytes"] = 1.into();
    let found = changes(&plan(), &after);
    assert_eq!(found[0].unit, PlanUnit::Bytes);
    let expected = (PlanTopic::Totals, String::new(), "weights".to_owned(), json!(24576), json!(1));
    assert_eq!(only(&plan(), &after), expected);

    let mut after = plan();
    after["shards"][1]["flags"] = json!([]);
    let place = "decoder.0-3".to_owned();
    let expected = (PlanTopic::Shards, place, "flag power".to_owned(), json!("burst"), Value::Null);
    assert_eq!(only(&plan(), &after), expected);

    let mut after = plan();
    after["limits"][0]["value"] = 50.into();
    let expected = (PlanTopic::Limits, "npu ops".to_owned(), "value".to_owned(), json!(100), json!(50));
    assert_eq!(only(&plan(), &after), expected);

    let mut after = plan();
    after["limits"] = json!([]);
    let expected = (PlanTopic::Limits, "npu ops".to_owned(), String::new(), json!("there"), Value::Null);
    assert_eq!(only(&plan(), &after), expected);

    // Another cut is a change of the plan, with removed and added shards.
    let mut after = plan();
    (after["shards"][1], after["shards"][2]) = (shard(1, 0, 2), shard(2, 2, 5));
    let found = changes(&plan(), &after);
    let cut = found.iter().find(|change| change.what == "cut").unwrap();
    assert_eq!(cut.after, Some(PlanValue::Text("embed | decoder.0-2 | decoder.2-5".to_owned())));
    let shards = found.iter().filter(|change| change.topic == PlanTopic::Shards);
    let shards: Vec<_> = shards.map(|change| (change.place.as_str(), change.after.is_some())).collect();
    let expected =
        [("decoder.0-3", false), ("decoder.3-5", false), ("decoder.0-2", true), ("decoder.2-5", true)];
    assert_eq!(shards, expected);
    assert!(found.is_sorted_by_key(|change| change.topic));
}

#[test]
fn files_that_are_no_plans_are_refused_by_name() {
    let folder = tempfile::tempdir().unwrap();
    let written = |name: &str, bytes: &[u8]| {
        let path = folder.path().join(name);
        fs::write(&path, bytes).unwrap();
        path
    };
    let good = written("good.json", plan().to_string().as_bytes());
    let same = compare_plans(&good, &good, &Trust::off()).unwrap();
    assert!(same.same && same.changes.is_empty() && same.before.path.ends_with("good.json"));
    assert_eq!((same.after.model.as_str(), same.after.soc.as_str()), ("a model", "a chip"));

    let mut older = plan();
    older["shards"][0].as_object_mut().unwrap().remove("by_layer");
    let long = folder.path().join("long.json");
    fs::File::create(&long).unwrap().set_len(REPORT_BYTES_MAX + 1).unwrap();
    let cases = [
        (written("empty.json", b""), ErrorKind::Invalid, "not a plan"),
        (written("list.json", b"[]"), ErrorKind::Invalid, "not a plan"),
        (written("deep.json", "[".repeat(1 << 20).as_bytes()), ErrorKind::Invalid, "not a plan"),
        (written("bytes.json", b"\xff\xfe"), ErrorKind::Invalid, "not a plan"),
        (
            written("twice.json", br#"{"model":"a","more":{"b":1,"b":2}}"#),
            ErrorKind::Invalid,
            "a second key `b`",
        ),
        (written("older.json", older.to_string().as_bytes()), ErrorKind::Invalid, "by_layer"),
        (long, ErrorKind::Invalid, "which is the limit"),
        (folder.path().join("none.json"), ErrorKind::Missing, "none.json"),
        (folder.path().to_owned(), ErrorKind::Invalid, "regular file"),
    ];
    for (path, kind, says) in cases {
        let name = path.display().to_string();
        for (before, after) in [(&good, &path), (&path, &good)] {
            let error = compare_plans(before, after, &Trust::off()).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.to_string().contains(&name) && error.to_string().contains(says), "{error}");
            assert!(kind == ErrorKind::Missing || error.help().is_some(), "{error}");
        }
    }
}
