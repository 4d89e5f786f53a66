//! Loaded shards must match the manifest of their bundle.

use std::collections::BTreeMap;

use crate::support::{Parts, Plan, graph, parts};
use shardwright_bundle::{
    Bundle, BundleWriter, ChainEntry, Digest, Manifest, ModelIdentity, ShardEntry, Variant,
};
use shardwright_graph::Segment;
use shardwright_runtime::{ChainDescription, ShardDescription};
use shardwright_test_checkpoints::Spec;
use shardwright_vocabulary::{
    ErrorKind, FormatTuple, PlainName, PlannerIdentity, ShardOrigin, ShimIdentity, Target, TargetKind,
};

fn origin() -> ShardOrigin {
    ShardOrigin {
        requested: Some(Target {
            name: "chip".to_owned(),
            shim: "plain".to_owned(),
            device: "evaluator".to_owned(),
            kind: TargetKind::Npu,
        }),
        compiled_by: Some(ShimIdentity {
            shim: "plain".to_owned(),
            version: "1".to_owned(),
            device: "evaluator".to_owned(),
            simulated: false,
        }),
        formats: Some(FormatTuple::F32.into()),
        ..ShardOrigin::default()
    }
}

fn write(directory: &std::path::Path, parts: &Parts) -> Bundle {
    let mut writer = BundleWriter::create(directory).unwrap();
    let shards = parts.description.shards.iter().map(|shard| {
        let origin = origin();
        ShardEntry {
            name: shard.name.clone(),
            segments: shard.segments.clone(),
            target: origin.requested.unwrap(),
            compiled_by: origin.compiled_by.unwrap(),
            formats: origin.formats.unwrap(),
            entries: shard.entries.iter().map(|entry| entry.point.name()).collect(),
            artefact: writer.add_bytes(format!("artefact of {}", shard.name).as_bytes()).unwrap(),
            head: writer.add_bytes(b"head").unwrap(),
            work_order: Digest::of(shard.name.as_bytes()),
            flags: origin.flags,
            load_flags: Vec::new(),
            rewritten: origin.rewritten,
            logits_softcap: shard.logits_softcap,
            placements: origin.placements,
        }
    });
    let shards = shards.collect();
    let chain = ChainEntry {
        name: "primary".to_owned(),
        emulated_on: Some("cpu".to_owned()),
        within: Vec::new(),
        planner: None,
        request: writer.add_bytes(b"{}").unwrap(),
        plan: writer.add_bytes(b"{} ").unwrap(),
        report: None,
        speculation: None,
        shards,
    };
    let assets = parts.assets.iter().map(|asset| writer.add_asset(asset).unwrap()).collect();
    writer
        .finish(&Manifest {
            program: "test 0".to_owned(),
            model: ModelIdentity {
                name: parts.description.model.clone(),
                family: "test".to_owned(),
                checkpoint: Digest::of(b"checkpoint"),
            },
            texts: BTreeMap::new(),
            tokenizer_index: None,
            goldens: None,
            variants: vec![Variant {
                soc: PlainName::new("generic").unwrap(),
                aliases: Vec::new(),
                calibration: None,
                planner: PlannerIdentity { name: "p".to_owned(), version: "1".to_owned(), built_in: true },
                options: BTreeMap::new(),
                structure: parts.description.structure.clone(),
                assets,
                chains: vec![chain],
                towers: Vec::new(),
                verifications: Vec::new(),
                notices: Vec::new(),
            }],
        })
        .unwrap()
}

#[test]
fn loaded_shards_must_be_those_that_the_manifest_names() {
    let graph = graph(&Spec::gemma4());
    let plan = Plan { cuts: vec![2], ..Plan::default() };
    let directory = tempfile::tempdir().unwrap();
    let made = parts(&graph, &plan);
    let bundle = write(&directory.path().join("bundle"), &made);
    let refused = |change: &dyn Fn(&mut Vec<ShardDescription>)| {
        let mut shards = made.description.shards.clone();
        change(&mut shards);
        let text = bundle.variant().models().next().unwrap();
        ChainDescription::of_bundle("demo", text, &text.chains[0], shards).unwrap_err()
    };
    let error = refused(&|shards| {
        shards.pop();
    });
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    assert!(error.to_string().ends_with(" are loaded"), "{error}");
    for (expected, change) in [
        ("the name", (|shard| shard.name = "other".to_owned()) as fn(&mut ShardDescription)),
        ("the segments", |shard| shard.segments = Segment::decoder(0, 3).into()),
        ("the entry points", |shard| {
            shard.entries.pop();
        }),
        ("the shim", |shard| shard.place.shim = "other".to_owned()),
    ] {
        let error = refused(&|shards| change(&mut shards[2]));
        assert!(error.kind() == ErrorKind::Incompatible && error.help().is_some());
        assert!(error.message().starts_with(&format!("the bundle expects {expected} ")), "{error}");
    }
}
