use std::collections::BTreeSet;

use serde_json::{Value, json};

use super::*;

/// A text that tries to break out of any place of a page.
const HOSTILE: &str =
    "\"'><img src=x onerror=alert(1)></style></script><script>alert(1)</script>\u{202e}&lt;";

/// Returns a time within half and twice its likely value.
fn time(microseconds: u64) -> Value {
    json!({
        "low": microseconds / 2, "microseconds": microseconds, "high": microseconds * 2,
        "provenance": "simulated",
    })
}

fn entry(name: &str, ops: u64, time: Value) -> Value {
    json!({ "entry": name, "ops": ops, "time": time, "uncosted_ops": 0 })
}

fn layer(component: &str, layer: Option<u32>, formats: &str, loss: Value) -> Value {
    json!({
        "component": component,
        "layer": layer,
        "kind": "sliding",
        "formats": formats,
        "ops": 30,
        "weight_bytes": 4096,
        "artefact_bytes": 5000,
        "state_bytes": 128,
        "entries": [
            entry("prefill_8@64", 0, time(0)),
            entry("decode_1@64", 30, time(1200)),
        ],
        "loss": loss,
    })
}

fn shard(index: usize, target: &str, layers: Vec<Value>) -> Value {
    json!({
        "index": index,
        "segments": [{ "component": "decoder", "layers": [0, 1] }],
        "target": target,
        "formats": "w8-per-channel/f32/f32",
        "ops": 90,
        "weight_bytes": 12288,
        "artefact_bytes": 15000,
        "state_bytes": 384,
        "context": 64,
        "entries": [entry("decode_1@64", 90, time(3600))],
        "inputs": [{ "name": "hidden", "encoding": null }],
        "outputs": [],
        "softcap": "runtime",
        "flags": [{ "name": "power", "value": "burst" }],
        "build": "ahead",
        "limits": [{
            "name": "ops", "used": 90, "limit": 100, "thousandths": 900, "provenance": "reported",
        }],
        "by_layer": layers,
        "reasons": [
            { "choice": "cut", "because": "it fits", "cause": { "limit": "ops" } },
            { "choice": "build", "because": "why not", "cause": { "preference": "build" } },
            { "choice": "power=burst", "because": "it fits", "cause": { "limit": "ops" } },
        ],
    })
}

fn predicted(microseconds: u64) -> Value {
    let mut predicted = time(microseconds);
    predicted["uncosted_ops"] = 0.into();
    predicted
}

/// Returns a plan of two targets, whose second shard spans two components.
fn plan() -> Value {
    let measured = || json!({ "known": "measured", "micronats": 1500 });
    let decoder = |number, formats| layer("decoder", Some(number), formats, measured());
    let whole = |component| layer(component, None, "f32/f32/f32", json!({ "known": "none" }));
    json!({
        "model": "a model",
        "family": "a family",
        "soc": "a chip",
        "soc_title": "a name of it",
        "planner": { "name": "generic", "version": "1.0.0", "built_in": true },
        "refused_plans": 2,
        "limits": [
            {
                "target": "npu", "name": "ops", "value": 100, "provenance": "reported", "note": "seen once",
                "relief": [{ "flag": { "name": "large", "value": "true" }, "value": 200, "note": "tried" }],
            },
            { "target": "npu", "name": "odd", "value": 7, "provenance": "learned" },
            { "target": "idle", "name": "ops", "value": 7, "provenance": "user" },
        ],
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
                "goal": "token", "asked": 10, "low": 1800, "predicted": 3600, "high": 7200,
                "provenance": "modelled", "verdict": "missed",
            },
            {
                "goal": "first-token", "asked": 20_000, "low": 8000, "predicted": 26_000, "high": 70_000,
                "provenance": "modelled", "verdict": "unlikely",
            },
            {
                "goal": "memory", "asked": 10, "low": null, "predicted": null, "high": null,
                "provenance": null, "verdict": null,
            },
        ],
        "shards": [
            shard(0, "npu", vec![whole("embed"), decoder(0, "w8-per-channel/f32/f32")]),
            shard(1, "cpu", vec![decoder(1, "w4-block32/f32/f32"), decoder(2, "w8-per-channel/f32/f32"), whole("head")]),
        ],
        "totals": {
            "weight_bytes": 24576,
            "artefacts": { "bytes": 30000, "provenance": "modelled" },
            "state_bytes": 768,
            "times": [
                {
                    "entry": "prefill_8@64", "time": time(900), "uncosted_ops": 0, "calls": time(0),
                    "hand_off_nanoseconds": 0, "shares": [],
                },
                {
                    "entry": "decode_1@64", "time": time(3600), "uncosted_ops": 3, "calls": time(300),
                    "hand_off_nanoseconds": 1176,
                    "shares": [{ "provenance": "simulated", "places": 5, "microseconds": 3599 }],
                },
            ],
            "loss": { "known": "measured", "micronats": 4500 },
        },
        "measured": { "micronats": 4800, "error_micronats": 300, "tokens": 256, "text": "a text" },
        "forecast": {
            "verdict": {
                "fits": "whole", "elsewhere": [], "largest": "decode", "held_bytes": 30768, "mapped_bytes": 0,
                "asked_bytes": null, "device_bytes": 40960, "too_slow": true,
            },
            "download": { "bytes": 8000, "rests_on": "headers" },
            "memory": [{
                "phase": "decode", "held_bytes": 30768, "provenance": "modelled", "mapped_bytes": 500,
                "parts": [
                    { "name": "artefacts", "rests_on": "estimated", "bytes": 30000, "provenance": "modelled" },
                    { "name": "KV cache", "rests_on": "counted", "bytes": 768 },
                    { "name": "table embedding", "rests_on": "mapped", "bytes": 500 },
                ],
            }],
            "speed": {
                "of": "tokens", "prompt_tokens": 64, "first": predicted(26_000), "each": predicted(3600),
                "per_1000_seconds": 277_777,
            },
        },
        "fallback": [{ "target": "cpu", "formats": ["f32/f32/f32"] }],
        "speculation": { "draft": "lookup", "rows": 4, "gain_thousandths": 1180, "provenance": "modelled" },
        "reasons": [{ "choice": "formats", "because": "the fastest", "cause": { "goal": "quality" } }],
        "notices": [
            { "kind": "fallback", "text": "something fell back" },
            { "kind": "note", "text": "something else" },
        ],
        "emulated_on": "cpu",
    })
}

fn page_of(plan: Value) -> String {
    page(&serde_json::from_value(plan).expect("a plan"))
}

fn count(page: &str, part: &str) -> usize {
    page.matches(part).count()
}

#[test]
fn every_layer_is_on_the_page_once_in_the_strip_and_once_in_the_table() {
    let page = page_of(plan());
    for index in 0..5 {
        assert_eq!(count(&page, &format!("data-layer=\"{index}\"")), 1, "{index}");
        assert_eq!(count(&page, &format!("href=\"#layer-{index}\"")), 1, "{index}");
        assert_eq!(count(&page, &format!("<tr id=\"layer-{index}\">")), 1, "{index}");
    }
    assert_eq!(count(&page, "class=\"cell\""), 5);
    // A shard shows its layers, of however many components.
    assert!(page.contains("Shard 0: embed, decoder 0 ") && page.contains("Shard 1: decoder 1-2, head "));
    // Each set of formats has its letter wherever it appears: legend, strip and table.
    assert_eq!(count(&page, "swatch p1\">B<"), 1 + 2 + 2);
    assert_eq!(count(&page, "swatch p2\">C<"), 1 + 1 + 1);
}

#[test]
fn numbers_reasons_and_what_they_rest_on_are_there() {
    let page = page_of(plan());
    let wanted = [
        "<h1>a model <span class=\"on\">for</span> a name of it <span class=\"on\">a chip</span></h1>",
        "<p class=\"verdict\">fits a chip, too slow: decode needs 30.0 KiB of memory (modelled), of 40.0 \
         KiB that an app can use</p>",
        "<p>first token about 26 ms (13 to 52; simulated) after a prompt of 64; each further token about \
         3.6 ms (1.8 to 7.2; simulated), about 280 tokens/s (140 to 560)</p>",
        "<div><dt>download</dt><dd>7.8 KiB <small>7.8 KiB of weight files (counted in their headers)</small>",
        "2 earlier plans were refused and revised",
        "emulated on cpu",
        "proposed tokens are verified: lookup, up to 3 tokens a step, 1.18x expected (modelled)</p>",
        "<b>fallback:</b> something fell back",
        "<b>note:</b> something else",
        "about 3.6 ms (1.8 to 7.2) <small>simulated, 3 operations estimated by share; 300 µs of it \
         calls</small>",
        "4.5 millinats <small>the sum of measured losses</small>",
        "4.8 millinats <small>± 0.3 millinats, over 256 tokens of a text</small>",
        // Goals, with the used part of the budget.
        "at most 5 millinats</span><span class=\"bar near\" role=\"img\" aria-label=\"90 % spent\">",
        "<b class=\"met\">met</b>",
        "about 3.6 ms (1.8 to 7.2; modelled)</span> <b class=\"missed\">missed</b>",
        "about 26 ms (8 to 70; modelled)</span> <b class=\"unlikely\">unlikely</b>",
        "at most 10 B</span><span class=\"value\">not known</span>",
        // Limits, and how close each shard comes.
        "npu: ops ≤ 100 <small>reported</small>",
        "seen once",
        "with large=true: 200; tried",
        "aria-label=\"90 % of the limit\"><span style=\"width:90.0%\">",
        "npu: odd ≤ 7 <small>learned</small></h3>\n<p>Cannot be counted before compiling.",
        "No shard is planned for this target.",
        "<code>power=burst</code>",
        "<li><b>cut</b>, <b>power=burst</b>: it fits <small>limit ops</small></li>\n<li><b>build</b>: why not",
        "<b>formats</b>: the fastest <small>goal quality</small>",
        "<td class=\"number\">not used</td>",
        "<dt>artefact</dt><dd>14.6 KiB (modelled)</dd>",
        "<th scope=\"col\">artefact (modelled)</th>",
        "about 1.2 ms (0.6 to 2.4) <small>simulated</small>",
        "<dt>simulated</dt><dd>a vendor&#39;s simulator computed it: calls of shards, times of entry points \
         (2), times of layers (5)",
        "if a target is lost, cpu takes over",
    ];
    for wanted in wanted {
        assert!(page.contains(wanted), "no `{wanted}` in\n{page}");
    }
}

#[test]
fn what_is_not_known_is_said() {
    let mut plan = plan();
    for shard in plan["shards"].as_array_mut().expect("shards") {
        for layer in shard["by_layer"].as_array_mut().expect("layers") {
            layer["loss"] = json!({ "known": "not-measured", "places": 1 });
        }
    }
    plan["totals"]["loss"] = json!({ "known": "not-measured", "places": 5 });
    plan["goals"] = json!([]);
    plan["limits"] = json!([]);
    plan["forecast"]["verdict"]["fits"] = "unknown".into();
    plan["forecast"]["verdict"]["device_bytes"] = Value::Null;
    let page = page_of(plan);
    let wanted = [
        "<p class=\"verdict\">a chip, too slow: decode needs 30.0 KiB of memory (modelled); memory unknown \
         for this chip, <code>--device-memory</code> sets it</p>",
        "<b>loss</b>, not measured",
        "in 5 places; --quality measures it",
        "<p>None was set.</p>",
        "<p>None is known.</p>",
    ];
    for wanted in wanted {
        assert!(page.contains(wanted), "no `{wanted}` in\n{page}");
    }
    // The loss of each of five layers.
    assert_eq!(count(&page, "<span class=\"track\">?</span>"), 5);
}

/// A large head does not make the bars of layers invisible.
#[test]
fn components_without_layers_have_a_scale_of_their_own() {
    let mut plan = plan();
    plan["shards"][1]["by_layer"][2]["weight_bytes"] = 409_600.into();
    let page = page_of(plan);
    // The bytes of `embed` next to those of `head`.
    assert_eq!(count(&page, "height:1.0%"), 1);
    let own = "Components without layers have a scale of their own: <b>time</b> of decode_1@64, about \
               1.2 ms (0.6 to 2.4); \
               <b>bytes</b> of weights, 400.0 KiB; <b>loss</b>, none.";
    assert!(
        page.contains("<b>bytes</b> of weights, 4.0 KiB; <b>loss</b>, 1.5 millinats") && page.contains(own)
    );
}

#[test]
fn the_strip_has_the_closest_limit_of_each_shard() {
    let mut plan = plan();
    let limits = json!([
        { "name": "ops", "used": 90, "limit": 100, "thousandths": 900, "provenance": "reported" },
        { "name": "odd", "used": 19, "limit": 20, "thousandths": 950, "provenance": "reported" },
    ]);
    plan["shards"][0]["limits"] = limits;
    plan["shards"][1]["limits"] = json!([]);
    let page = page_of(plan);
    assert_eq!(count(&page, "<br><small>odd: 95 % of the limit</small><span class=\"bar near\""), 1);
    assert_eq!(count(&page, "<br><small>"), 1);
}

#[test]
fn a_component_without_weights_has_no_weight_format() {
    let mut plan = plan();
    plan["shards"][1]["by_layer"][0]["weight_bytes"] = 0.into();
    let page = page_of(plan);
    assert!(!page.contains("w4-block32"), "{page}");
    assert_eq!(count(&page, "<code>no weights/f32/f32</code>"), 1);
}

#[test]
fn phases_with_equal_memory_share_a_card() {
    let mut plan = plan();
    let mut prefill = plan["forecast"]["memory"][0].clone();
    prefill["phase"] = "prefill".into();
    let mut load = prefill.clone();
    (load["phase"], load["held_bytes"]) = ("load".into(), 1.into());
    plan["forecast"]["memory"].as_array_mut().expect("phases").extend([prefill, load]);
    let page = page_of(plan);
    assert_eq!(count(&page, "<dt>memory, "), 2);
    assert!(
        page.contains("<dt>memory, decode, prefill</dt><dd>30.0 KiB <small>modelled; 500 B mapped</small>")
    );
}

#[test]
fn names_in_backticks_are_code() {
    let mut plan = plan();
    plan["notices"][0]["text"] = "shim `qnn` fell back".into();
    plan["reasons"][0]["because"] = "`cpu` is faster".into();
    plan["limits"][0]["note"] = "seen with `opt`".into();
    let page = page_of(plan);
    for code in ["shim <code>qnn</code> fell", "<code>cpu</code> is faster", "with <code>opt</code></p>"] {
        assert!(page.contains(code), "no `{code}` in\n{page}");
    }
}

#[test]
fn a_plan_without_shards_is_a_page_too() {
    let mut plan = plan();
    plan["shards"] = json!([]);
    plan["totals"]["times"] = json!([]);
    assert!(page_of(plan).contains("no <b>time</b>"));
}

#[test]
fn the_page_needs_and_permits_nothing_from_outside() {
    let page = page_of(plan());
    for outside in ["http:", "https:", "//", "src=", "url(", "@import", "<link", "<img", "innerHTML"] {
        // The comment of the script is the only place where two slashes are allowed.
        let page = page.replace(SCRIPT, &SCRIPT.replace("// ", ""));
        assert!(!page.contains(outside), "{outside}");
    }
    let policy = format!("script-src 'sha256-{}'", page::sha256_base64(SCRIPT));
    let policy = format!("content=\"default-src 'none'; style-src 'unsafe-inline'; {policy};");
    assert!(page.contains(&policy), "{policy}");
    assert_eq!((count(&page, "<script"), count(&page, "<style")), (1, 1));
    // The script on the page is the one that was hashed, and it ends where it should.
    assert!(!SCRIPT.contains("</") && !STYLE.contains("</"));
}

/// Any text of a plan may come from an untrusted source. None of them becomes markup.
#[test]
fn hostile_texts_stay_text() {
    fn spoil(value: &mut Value, key: &str, spoiled: &mut BTreeSet<String>) {
        // Words from closed lists cannot be replaced by another text.
        let closed = [
            "entry",
            "provenance",
            "softcap",
            "kind",
            "goal",
            "known",
            "component",
            "rests_on",
            "fits",
            "phase",
            "largest",
            "of",
            "verdict",
        ];
        match value {
            Value::Object(members) => {
                members.iter_mut().for_each(|(key, value)| spoil(value, key, spoiled));
            }
            Value::Array(items) => items.iter_mut().for_each(|item| spoil(item, key, spoiled)),
            // A layer's kind is free text, a notice's kind is not.
            Value::String(text) if !closed.contains(&key) || text == "sliding" => {
                text.push_str(HOSTILE);
                spoiled.insert(key.to_owned());
            }
            _ => {}
        }
    }
    let mut spoiled_plan = plan();
    let mut spoiled = BTreeSet::new();
    spoil(&mut spoiled_plan, "", &mut spoiled);
    for key in [
        "model",
        "soc",
        "soc_title",
        "value",
        "because",
        "choice",
        "note",
        "text",
        "target",
        "formats",
        "name",
    ] {
        assert!(spoiled.contains(key), "{key}");
    }
    let page = page_of(spoiled_plan);
    let clean = page_of(plan());
    for tag in ["<script", "</script", "</style", "<img", "\u{202e}"] {
        assert_eq!(count(&page, tag), count(&clean, tag), "{tag}");
    }
    assert!(!page.contains(HOSTILE) && page.contains("&quot;&#39;&gt;&lt;img src=x"));
    // The elements are the same as without the hostile text: it opened or closed none.
    for mark in ["<", ">", "\""] {
        assert_eq!(count(&page, mark), count(&clean, mark), "{mark}");
    }
}
