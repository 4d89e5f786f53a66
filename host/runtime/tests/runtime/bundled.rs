//! A chain goes into a bundle and comes back out of it, without the graph it was made of.

use std::collections::BTreeMap;

use crate::support::{Parts, Plan, graph, ids, last_logits, parts};
use shardwright_bundle::{Bundle, BundleWriter, ChainEntry, Digest, Manifest, ModelIdentity, ShardEntry};
use shardwright_graph::{Asset, Graph, Weight, WeightData, WeightQuantisation};
use shardwright_runtime::{Chain, ChainDescription, ChainError, ShardDescription};
use shardwright_test_checkpoints::Spec;
use shardwright_vocabulary::ShardOrigin;
use shardwright_vocabulary::{FormatTuple, PlannerIdentity, ShimIdentity, Target, TargetKind, WeightFormat};

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
        formats: Some(FormatTuple::F32),
        ..ShardOrigin::default()
    }
}

fn write(directory: &std::path::Path, parts: &Parts) -> Bundle {
    let mut writer = BundleWriter::create(directory).unwrap();
    let shards = parts.description.shards.iter().map(|shard| {
        let origin = origin();
        ShardEntry {
            name: shard.name.clone(),
            component: shard.component,
            layers: shard.layers,
            target: origin.requested.unwrap(),
            compiled_by: origin.compiled_by.unwrap(),
            formats: origin.formats.unwrap(),
            entries: shard.entries.iter().map(|entry| entry.point.name()).collect(),
            artefact: writer.add_bytes(format!("artefact of {}", shard.name).as_bytes()).unwrap(),
            head: writer.add_bytes(b"head").unwrap(),
            work_order: Digest::of(shard.name.as_bytes()),
            flags: origin.flags,
            rewritten: origin.rewritten,
            logits_softcap: shard.logits_softcap,
            placements: origin.placements,
        }
    });
    let shards = shards.collect();
    let chain = ChainEntry {
        name: "primary".to_owned(),
        emulated_on: Some("cpu".to_owned()),
        request: writer.add_bytes(b"{}").unwrap(),
        plan: writer.add_bytes(b"{} ").unwrap(),
        report: None,
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
                calibration: None,
            },
            soc: "generic".to_owned(),
            planner: PlannerIdentity { name: "p".to_owned(), version: "1".to_owned(), built_in: true },
            options: BTreeMap::new(),
            structure: parts.description.structure.clone(),
            assets,
            texts: BTreeMap::new(),
            chains: vec![chain],
            verifications: Vec::new(),
            notices: Vec::new(),
        })
        .unwrap()
}

/// The tables in 8 bits, of values as they come.
fn quantised(graph: Graph) -> Graph {
    let assets = graph.assets.iter().map(|asset| {
        let planned = asset.table.planned(WeightFormat::W8PerChannel).unwrap();
        let held = planned.quantisation.clone().unwrap();
        let scales = (0..asset.entries()).flat_map(|row| (0.001 + row as f32 * 1e-4).to_le_bytes()).collect();
        let bytes = (0..planned.data.length()).map(|index| (index * 37 % 251) as u8).collect();
        let quantisation = Some(WeightQuantisation { scales: WeightData::from_vec(scales), ..held });
        let table = Weight { data: WeightData::from_vec(bytes), quantisation, ..planned };
        Asset { table, ..asset.clone() }
    });
    Graph { assets: assets.collect(), ..graph.clone() }
}

#[test]
fn a_chain_survives_its_bundle() {
    for spec in [Spec::gemma3(), Spec::gemma4(), Spec::qwen3()] {
        let graph = quantised(graph(&spec));
        let plan = Plan { cuts: vec![2], around: "b", ..Plan::default() };
        let directory = tempfile::tempdir().unwrap();
        let made = parts(&graph, &plan);
        let bundle = write(&directory.path().join("bundle"), &made);
        assert_eq!(bundle.manifest().structure.context, graph.context);

        // What loading the artefacts gives: shards, and nothing of the graph.
        let mut loaded = parts(&graph, &plan);
        let manifest = bundle.manifest();
        let chain = &manifest.chains[0];
        loaded.description.shards[0].origin.fallback = Some("the worker was not found".to_owned());
        let description =
            ChainDescription::of_bundle(manifest, chain, loaded.description.shards.clone()).unwrap();
        let expected = ChainDescription {
            emulated_on: Some("cpu".to_owned()),
            shards: description.shards.clone(),
            ..made.description.clone()
        };
        assert_eq!(description, expected);
        assert_eq!(description.shards[1].origin, origin());
        let chain = Chain::new(description, loaded.executors, bundle.assets().unwrap()).unwrap();
        let tokens = ids(20, graph.vocabulary);
        assert_eq!(last_logits(&chain, &tokens), last_logits(&made.chain().unwrap(), &tokens));

        let record = chain.session().unwrap().placement();
        assert_eq!(record.emulated_on.as_deref(), Some("cpu"));
        let told: Vec<String> = record.fallbacks().iter().map(ToString::to_string).collect();
        assert_eq!(told, ["embed: runs on b (plain on evaluator): the worker was not found"]);
    }
}

#[test]
fn what_is_loaded_must_be_what_the_manifest_names() {
    let graph = graph(&Spec::gemma4());
    let plan = Plan { cuts: vec![2], ..Plan::default() };
    let directory = tempfile::tempdir().unwrap();
    let made = parts(&graph, &plan);
    let bundle = write(&directory.path().join("bundle"), &made);
    let refused = |change: &dyn Fn(&mut Vec<ShardDescription>)| {
        let mut shards = made.description.shards.clone();
        change(&mut shards);
        let manifest = bundle.manifest();
        ChainDescription::of_bundle(manifest, &manifest.chains[0], shards).unwrap_err()
    };
    let error = refused(&|shards| {
        shards.pop();
    });
    assert!(matches!(error, ChainError::ExecutorCount { .. }), "{error}");
    for (expected, change) in [
        ("its name", (|shard| shard.name = "other".to_owned()) as fn(&mut ShardDescription)),
        ("its part", |shard| shard.layers = (0, 3)),
        ("its list of entry points", |shard| {
            shard.entries.pop();
        }),
        ("its shim", |shard| shard.place.shim = "other".to_owned()),
    ] {
        let error = refused(&|shards| change(&mut shards[2]));
        assert!(matches!(&error, ChainError::Bundled { what, .. } if *what == expected), "{error}");
        assert!(error.help().is_some());
    }
}
