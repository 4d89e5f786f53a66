//! Tests of the fallbacks that a placement record reports.

use crate::support::{Plan, graph, parts};
use shardwright_runtime::PlacementRecord;
use shardwright_test_checkpoints::Spec;
use shardwright_vocabulary::{
    Flag, FlagRecord, FlagVerdict, FormatTuple, NodePlacement, Rewrite, RewriteKind, Target, TargetKind,
};
use shardwright_vocabulary::{ProcessPlacement, ShardOrigin};

fn record(change: impl Fn(&mut ShardOrigin), emulated_on: Option<&str>) -> PlacementRecord {
    let mut parts = parts(&graph(&Spec::gemma3()), &Plan::default());
    parts.description.emulated_on = emulated_on.map(str::to_owned);
    let origin = &mut parts.description.shards[1].origin;
    origin.requested = Some(Target {
        name: "chip".to_owned(),
        shim: "plain".to_owned(),
        device: "sm8750".to_owned(),
        kind: TargetKind::Npu,
    });
    origin.formats = Some(FormatTuple::F32.into());
    change(origin);
    parts.chain().unwrap().session().unwrap().placement()
}

fn found(change: impl Fn(&mut ShardOrigin), emulated_on: Option<&str>) -> Vec<String> {
    record(change, emulated_on).fallbacks().iter().map(ToString::to_string).collect()
}

fn flag(name: &str, verdict: FlagVerdict) -> FlagRecord {
    let flag = Flag { name: name.to_owned(), value: "3".to_owned() };
    FlagRecord { flag, verdict, reason: "so it said".to_owned() }
}

fn node(place: &str) -> NodePlacement {
    NodePlacement {
        entry: "decode_1@96".parse().unwrap(),
        node: "layer.1.rope".to_owned(),
        place: place.to_owned(),
        reason: String::new(),
    }
}

#[test]
fn a_shard_as_requested_is_no_fallback() {
    let as_asked = |origin: &mut ShardOrigin| {
        origin.flags = vec![
            flag("a", FlagVerdict::Applied { evidence: "e".to_owned() }),
            flag("b", FlagVerdict::Recorded),
            flag("c", FlagVerdict::Inert),
        ];
        origin.placements = ["npu", "fused", "none"].map(node).into();
        origin.rewritten = vec![Rewrite {
            entry: "decode_1@96".parse().unwrap(),
            name: "layer.1.norm".to_owned(),
            rewrite: RewriteKind::Decomposed,
            reason: "too wide".to_owned(),
        }];
    };
    assert!(found(as_asked, None).is_empty());
    let record = record(as_asked, None);
    let shard = &record.shards[1];
    assert_eq!(shard.origin.rewritten[0].reason, "too wide");
    assert_eq!(shard.process, ProcessPlacement::InProcess);
    let json = serde_json::to_value(&record).unwrap();
    assert_eq!(json["shards"][1]["process"], "in-process");
    assert_eq!(json["shards"][1]["origin"]["flags"][2]["verdict"]["verdict"], "inert");
    assert!(json["shards"][0].get("origin").is_none() && json.get("emulated_on").is_none());
    let worker = serde_json::to_value(ProcessPlacement::Worker { pid: Some(7) }).unwrap();
    assert_eq!(worker, serde_json::json!({"process": "worker", "pid": 7}));
}

#[test]
fn the_reason_of_a_node_at_its_requested_place_is_a_remark() {
    let said = |place: &str, reason: &str| NodePlacement { reason: reason.to_owned(), ..node(place) };
    let relaxed = said("npu", "its floats are computed in 16 bits");
    let origin = ShardOrigin {
        placements: vec![
            said("npu", ""),
            relaxed.clone(),
            said("fused", "into a norm"),
            said("cpu", "too wide"),
        ],
        ..ShardOrigin::default()
    };
    assert_eq!(origin.remarks().collect::<Vec<_>>(), [&relaxed]);
}

#[test]
fn shards_nodes_and_flags_elsewhere_are_reported() {
    let elsewhere = |origin: &mut ShardOrigin| {
        origin.requested.as_mut().unwrap().shim = "chips".to_owned();
        origin.placements = vec![node("fused"), node("cpu")];
        origin.flags = vec![flag("a", FlagVerdict::Refused), flag("b", FlagVerdict::Unknown)];
    };
    let place = "a (plain on evaluator)";
    assert_eq!(
        found(elsewhere, None),
        [
            &format!("decoder.0-4: planned for chip (shim `chips`), runs on {place}: no reason was given"),
            "decoder.0-4: decode_1@96: `layer.1.rope` runs on cpu",
            "decoder.0-4: flag a=3 is refused: so it said",
            "decoder.0-4: flag b=3 is unknown: so it said",
        ]
    );
    // With emulation, place and flags differ from the plan, and the heading reports it.
    assert_eq!(found(elsewhere, Some("cpu")), ["decoder.0-4: decode_1@96: `layer.1.rope` runs on cpu"]);
    let explained = |origin: &mut ShardOrigin| {
        elsewhere(origin);
        origin.placements.clear();
        origin.flags.clear();
        origin.fallback = Some("the chip was not found".to_owned());
    };
    assert_eq!(
        found(explained, None),
        [format!("decoder.0-4: planned for chip (shim `chips`), runs on {place}: the chip was not found")]
    );
    assert_eq!(
        found(explained, Some("cpu")),
        [format!("decoder.0-4: runs on {place}: the chip was not found")]
    );
}
