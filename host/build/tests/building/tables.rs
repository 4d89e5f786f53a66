//! The planner's request: the sums that a planner may rely on, and the description of each layer.

use shardwright_build::{
    ArtefactCost, Costing, EntryMenu, Judge, PrimitiveCount, PromptLength, stored_formats,
};
use shardwright_graph::{
    ComponentKind, ConstantFormat, Encodings, EntryGraph, EntryOptions, Graph, Legalised, WeightData,
    WeightQuantisation,
};
use shardwright_planning::request::{Component, PrefillPart, Request};
use shardwright_test_checkpoints::{Fill, Spec};
use shardwright_vocabulary::{
    DType, EntryKind, EntryName, FormatTuple, Granularity, Legality, Provenance, TimeCost, Watch,
    WeightFormat,
};

use crate::common::{
    TEXT_FIXTURES, checked, fixture, made, offer, plan, request, try_request, watched_request,
};

/// Returns a menu small enough to instantiate every shard at every entry.
fn menu(context: u32) -> EntryMenu {
    let name = |kind, rows| EntryName { kind, rows, context };
    let entries = vec![name(EntryKind::Prefill, 8), name(EntryKind::Prefill, 3), name(EntryKind::Decode, 1)];
    EntryMenu { context, entries }
}

fn decoder(request: &Request) -> &Component {
    request.model.components.iter().find(|component| component.layer_count() > 0).unwrap()
}

/// Returns the sums of the rows of layers `first..end` at an entry: operations, weight bytes, state
/// bytes.
fn added_up(request: &Request, first: u32, end: u32, entry: EntryName) -> (u64, u64, u64) {
    let kinds = decoder(request).kinds(first, end).unwrap();
    kinds.iter().fold((0, 0, 0), |sum, &kind| {
        let mut rows = request.costs.iter().filter(|row| row.kind == kind && row.entry == entry);
        let row = rows.next().unwrap();
        assert!(rows.next().is_none(), "one row per kind, target, formats and entry");
        assert_eq!(row.legality, Legality::Legal);
        (sum.0 + row.ops, sum.1 + row.weight_bytes, sum.2 + row.state_bytes)
    })
}

/// A watcher that records the stages.
#[derive(Default)]
struct Stages(Vec<String>);

impl Watch for Stages {
    fn progress(&mut self, _per_mille: u32, stage: &str) {
        self.0.push(stage.to_owned());
    }
}

/// A vendor's compiler may need minutes for a row, so each row is reported with its number.
#[test]
fn the_rows_of_the_cost_table_are_counted_as_they_are_made() {
    let graph = fixture(TEXT_FIXTURES[0]);
    let offers = ["chip", "cpu"].map(|name| offer(name, PrimitiveCount::default()));
    let mut stages = Stages::default();
    let request = watched_request(&graph, &offers, &menu(64), &mut stages).unwrap();
    let rows = request.costs.len();
    assert_eq!(stages.0.len(), rows);
    for (number, (stage, row)) in stages.0.iter().zip(&request.costs).enumerate() {
        let kind = &request.kinds[row.kind as usize].name;
        let target = &request.targets[row.target as usize].target.name;
        assert_eq!(*stage, format!("costs {} of {rows}: {kind} at {} on {target}", number + 1, row.entry));
    }
}

/// A planner adds rows, but a compiler gets the shard. Both must have the same cost for every range
/// of layers, not only for the ranges of some plan.
#[test]
fn every_range_of_layers_costs_what_its_rows_add_up_to() {
    for name in TEXT_FIXTURES {
        let graph = fixture(name);
        let menu = menu(64);
        let request = request(&graph, &[offer("chip", PrimitiveCount::default())], &menu);
        for first in 0..graph.layers() {
            for end in first + 1..=graph.layers() {
                for &entry in &menu.entries {
                    let point = menu.point(entry);
                    let shard = graph
                        .entry(ComponentKind::Decoder, first..end, point, EntryOptions::default())
                        .unwrap();
                    let found = shard.map_or((0, 0, 0), |shard| {
                        let legal = PrimitiveCount::default()
                            .legalise(&graph, &shard, &Encodings::counting(&FormatTuple::F32))
                            .unwrap()
                            .graph;
                        (legal.nodes.len() as u64, legal.weight_bytes(), legal.written_state_bytes())
                    });
                    let promised = added_up(&request, first, end, entry);
                    assert_eq!(promised, found, "{name}, layers {first}..{end} at {entry}");
                }
            }
        }
    }
}

/// Returns the part of each layer in prefill: all of it, only its keys and values, or none.
fn parts(graph: &Graph) -> String {
    let request = request(graph, &[offer("chip", PrimitiveCount::default())], &EntryMenu::usual(graph, 64));
    let component = decoder(&request);
    let kinds = component.kinds(0, component.layer_count()).unwrap();
    let part = |kind: u32| match request.kinds[kind as usize].prefill {
        PrefillPart::Full => 'F',
        PrefillPart::StatesOnly => 'S',
        PrefillPart::None => '-',
    };
    kinds.into_iter().map(part).collect()
}

#[test]
fn prefill_ends_at_the_last_state_that_is_written() {
    for (name, expected) in [
        ("gemma3_text", "FFFFFFS"),
        ("gemma4_text", "FFFFFS----"),
        ("gemma4_mm", "FFFS--"),
        ("qwen3", "FFFFFS"),
    ] {
        assert_eq!(parts(&fixture(name)), expected, "{name}");
    }
    // The real shape of the model that shares most states: 15 of 35 layers write states.
    assert_eq!(parts(&made(&Spec::e2b())), format!("{}S{}", "F".repeat(14), "-".repeat(20)));
    let alone = Spec { layers: "F".to_owned(), ..Spec::qwen3() };
    assert_eq!(parts(&made(&alone)), "S");
}

#[test]
fn components_around_the_decoder_have_a_kind_each() {
    let graph = fixture("gemma4_text");
    let request = request(&graph, &[offer("chip", PrimitiveCount::default())], &menu(64));
    let whole = |name: &str| request.kinds.iter().find(|kind| kind.name == name).unwrap().prefill;
    assert_eq!(whole("embed"), PrefillPart::Full);
    assert_eq!(whole("per-layer-input"), PrefillPart::Full);
    assert_eq!(whole("head"), PrefillPart::None, "no logit is wanted in prefill");
    let names: Vec<_> = request.model.components.iter().map(|part| part.name.as_str()).collect();
    assert_eq!(names, ["embed", "per-layer-input", "decoder", "head"]);
    let ports = |index: usize| {
        let component = &request.model.components[index];
        (component.inputs.join(" "), component.outputs.join(" "))
    };
    let port = |inputs: &str, outputs: &str| (inputs.to_owned(), outputs.to_owned());
    assert_eq!(ports(0), port("", "hidden"));
    assert_eq!(ports(1), port("hidden", "per-layer"));
    assert_eq!(ports(2), port("hidden per-layer", "hidden"));
    assert_eq!(ports(3), port("hidden", "logits"));
}

#[test]
fn readers_know_their_donors() {
    let graph = fixture("gemma4_text");
    let request = request(&graph, &[offer("chip", PrimitiveCount::default())], &menu(64));
    let shardwright_planning::request::Body::Layers(layers) = &decoder(&request).body else {
        panic!("the decoder has layers")
    };
    for (layer, layer_facts) in layers.iter().enumerate() {
        assert_eq!(layer_facts.writes_state, layer < 6, "layer {layer}");
        // Of the layers that write, 4 is the last sliding one, and 5 the last full one.
        let donor = (layer >= 6).then_some(if layer == 9 { 5 } else { 4 });
        assert_eq!(layer_facts.donor, donor, "layer {layer}");
    }
    assert!(request.kinds.len() < graph.layers() as usize + 3, "layers of a kind share one");
}

/// Down to a context of one token, every number of rows is at most the context, no entry is
/// repeated, and the request is valid.
#[test]
fn menus_of_small_contexts_are_small() {
    let graph = fixture("gemma4_text");
    for (context, expected) in [
        (0, "prefill_1@1 decode_1@1"),
        (1, "prefill_1@1 decode_1@1"),
        (2, "prefill_2@2 decode_1@2 decode_2@2"),
        (16, "prefill_16@16 decode_1@16 decode_4@16 decode_16@16"),
        (17, "prefill_17@17 prefill_16@17 decode_1@17 decode_4@17 decode_16@17"),
        (2048, "prefill_128@2048 prefill_16@2048 decode_1@2048 decode_4@2048 decode_16@2048"),
    ] {
        let menu = EntryMenu::usual(&graph, context);
        let names: Vec<_> = menu.entries.iter().map(ToString::to_string).collect();
        assert_eq!(names.join(" "), expected);
        assert_eq!(menu.context, context.max(1));
        let request = request(&graph, &[offer("chip", PrimitiveCount::default())], &menu);
        checked(&request, plan(&request, &[3]));
    }
    let encoder = fixture("embeddinggemma");
    let menu = EntryMenu::usual(&encoder, 32);
    assert_eq!(menu.entries.len(), 1);
    assert_eq!((menu.entries[0].kind, menu.largest_rows()), (EntryKind::Encode, 32));
    let request = request(&encoder, &[offer("chip", PrimitiveCount::default())], &menu);
    checked(&request, plan(&request, &[]));
}

/// If the lengths of prompts are known, there are prefills up to the longest prompt.
#[test]
fn menus_for_prompts_hold_the_longest() {
    let graph = fixture("gemma4_text");
    let menu = |context: u32, lengths: &[u32]| {
        let prompts: Vec<_> = lengths.iter().map(|&tokens| PromptLength { tokens, count: 1 }).collect();
        EntryMenu::for_prompts(&graph, context, &prompts)
    };
    assert_eq!(menu(2048, &[]), EntryMenu::usual(&graph, 2048));
    for (context, lengths, expected) in [
        (2048, &[1][..], "prefill_16"),
        (2048, &[17], "prefill_16"),
        (2048, &[18, 3], "prefill_32 prefill_16"),
        (2048, &[5000], "prefill_256 prefill_128 prefill_64 prefill_32 prefill_16"),
        (100, &[100], "prefill_100 prefill_64 prefill_32 prefill_16"),
        (8, &[8], "prefill_8"),
    ] {
        let menu = menu(context, lengths);
        let prefills = menu.entries.iter().filter(|entry| entry.kind == EntryKind::Prefill);
        let names: Vec<_> = prefills.map(|entry| format!("prefill_{}", entry.rows)).collect();
        assert_eq!(names.join(" "), expected, "{lengths:?} at {context}");
        let request = request(&graph, &[offer("chip", PrimitiveCount::default())], &menu);
        checked(&request, plan(&request, &[3]));
    }
    let encoder = fixture("embeddinggemma");
    let prompts = [PromptLength { tokens: 9, count: 1 }];
    assert_eq!(EntryMenu::for_prompts(&encoder, 32, &prompts), EntryMenu::usual(&encoder, 32));
}

#[test]
fn formats_are_named_after_what_most_bytes_are_stored_in() {
    for (name, expected) in [
        ("gemma3_text", WeightFormat::F32),
        ("gemma4_text", WeightFormat::Bf16),
        ("qwen3", WeightFormat::Bf16),
        ("embeddinggemma", WeightFormat::F32),
    ] {
        assert_eq!(stored_formats(&fixture(name)).weights, expected, "{name}");
    }
    let half = Spec { dtype: "F16", fill: Fill::Sparse, ..Spec::gemma3() };
    assert_eq!(stored_formats(&made(&half)).weights, WeightFormat::F16);

    // One large weight outweighs many small ones.
    let mut mixed = fixture("gemma4_text");
    let total: u64 = mixed.weights.iter().map(|weight| weight.bytes()).sum();
    let first = &mut mixed.weights[0];
    first.dtype = DType::F32;
    first.shape = vec![total, 1];
    first.data = WeightData::from_vec(vec![0; 4 * total as usize]);
    assert_eq!(stored_formats(&mixed).weights, WeightFormat::F32);
    // Integers in blocks of 32 are a format. Other block sizes have no name of their own.
    for (size, expected) in [(32, WeightFormat::W4Block32), (64, WeightFormat::AsStored)] {
        let first = &mut mixed.weights[0];
        (first.dtype, first.shape) = (DType::I4, vec![total, 64]);
        first.data = WeightData::planned(32 * total as usize);
        first.quantisation = Some(WeightQuantisation {
            granularity: Granularity::blocks(size),
            scale_dtype: DType::F16,
            scales: WeightData::planned((total * 128 / u64::from(size)) as usize),
            zero_point: 0,
        });
        assert_eq!(stored_formats(&mixed).weights, expected);
    }
    // Quantised layers determine the model's formats, whatever format its head is stored in.
    let mut quantised = made(&half);
    let layers = ["q", "k", "v", "gate", "up", "down"];
    for weight in quantised.weights.iter_mut().filter(|weight| layers.contains(&weight.part)) {
        *weight = weight.planned(WeightFormat::W8PerChannel).unwrap();
    }
    let tuple = stored_formats(&quantised);
    assert_eq!(tuple.to_string(), "w8-per-channel[attention-output=f16][head=f16]/f32/f32");
    let kept = quantised.constant_formats(&tuple);
    let o = quantised.weights.iter().position(|weight| weight.part == "o").unwrap();
    assert_eq!(kept[o], ConstantFormat::Stored);
    mixed.weights.clear();
    assert_eq!(stored_formats(&mixed).weights, WeightFormat::F32, "nothing is stored: any name will do");
}

/// Judge that refuses formats, or every graph, or estimates.
struct Moody {
    takes: bool,
    legal: bool,
}

impl Judge for Moody {
    fn legalise(
        &self,
        graph: &Graph,
        entry: &EntryGraph,
        encodings: &Encodings<'_>,
    ) -> Result<Legalised, String> {
        if self.legal {
            PrimitiveCount::default().legalise(graph, entry, encodings)
        } else {
            Err("not today".to_owned())
        }
    }

    fn estimate(&self, _graph: &Graph, entry: &EntryGraph, _watch: &dyn Watch) -> Option<Costing> {
        let provenance = shardwright_vocabulary::Provenance::Probed;
        let time = Some(TimeCost::exact(entry.nodes.len() as u64, provenance));
        Some(Costing { time, uncosted: 2, operations: Some(3 * entry.nodes.len() as u64), artefact: None })
    }

    fn takes(&self, _formats: &FormatTuple) -> Result<(), String> {
        if self.takes { Ok(()) } else { Err("not in this format".to_owned()) }
    }

    fn describe(&self) -> String {
        "moody".to_owned()
    }
}

#[test]
fn the_rows_contain_the_answers_of_the_judge() {
    let graph = fixture("qwen3");
    let menu = menu(64);
    let offers = [
        offer("formats", Moody { takes: false, legal: true }),
        offer("graphs", Moody { takes: true, legal: false }),
        offer("timed", Moody { takes: true, legal: true }),
        offer("plain", PrimitiveCount::default()),
    ];
    let request = request(&graph, &offers, &menu);
    assert_eq!(request.costs.len(), request.kinds.len() * offers.len() * menu.entries.len());
    for row in &request.costs {
        let part = request.kinds[row.kind as usize].prefill;
        let takes_part = row.entry.kind != EntryKind::Prefill || part != PrefillPart::None;
        match row.target {
            0 => assert_eq!(row.legality, Legality::Illegal("not in this format".to_owned())),
            _ if !takes_part => {
                let none = (&Legality::Legal, 0, Some(TimeCost::ZERO));
                assert_eq!((&row.legality, row.ops, row.time), none);
            }
            1 => assert_eq!(row.legality, Legality::Illegal("not today".to_owned())),
            2 => {
                assert_eq!(row.ops % 3, 0, "the compiler's operations, not nodes");
                let (nodes, time) = (row.ops / 3, row.time.unwrap());
                let source = (time.provenance, row.uncosted_ops);
                if nodes <= 2 {
                    // The estimate leaves out every operation, so the rates of the target decide.
                    assert_eq!(source, (Provenance::Modelled, 0));
                } else {
                    assert_eq!(time.microseconds, (nodes * nodes).div_ceil(nodes - 2));
                    assert!(time.low < nodes && time.high > time.microseconds, "{time:?}");
                    assert_eq!(source, (Provenance::Probed, 2));
                }
            }
            _ => {
                let time = row.time.unwrap();
                assert!(time.is_ordered() && time.high > time.low, "{time:?}");
                assert_eq!((time.provenance, row.uncosted_ops), (Provenance::Modelled, 0));
            }
        }
    }
}

/// Judge that reports for every entry point its share of an artefact, and the part of it that entry
/// points share.
struct Sizing {
    shared_bytes: u64,
}

impl Judge for Sizing {
    fn legalise(
        &self,
        graph: &Graph,
        entry: &EntryGraph,
        encodings: &Encodings<'_>,
    ) -> Result<Legalised, String> {
        PrimitiveCount::default().legalise(graph, entry, encodings)
    }

    fn estimate(&self, _graph: &Graph, entry: &EntryGraph, _watch: &dyn Watch) -> Option<Costing> {
        let bytes = entry.weight_bytes() + 1000;
        let shared_bytes = self.shared_bytes.min(entry.weight_bytes());
        let artefact = Some(ArtefactCost { bytes, shared_bytes, provenance: Provenance::Declared });
        Some(Costing { artefact, ..Costing::default() })
    }

    fn takes(&self, _formats: &FormatTuple) -> Result<(), String> {
        Ok(())
    }

    fn describe(&self) -> String {
        "sizing".to_owned()
    }
}

/// The rows of a shard add up to the bytes of its artefact: weights count once if entry points
/// share them, or else once for each.
#[test]
fn rows_add_up_to_artefacts_with_weights_once_or_once_for_every_entry_point() {
    let graph = fixture("gemma4_text");
    let menu = menu(64);
    let offers = [
        offer("sharing", Sizing { shared_bytes: u64::MAX }),
        offer("alone", Sizing { shared_bytes: 0 }),
        offer("silent", PrimitiveCount::default()),
    ];
    let request = request(&graph, &offers, &menu);
    let cost = |target: u32| {
        let mut plan = plan(&request, &[]);
        plan.shards.iter_mut().for_each(|shard| shard.target = target);
        checked(&request, plan).shards()[2].cost.clone()
    };
    // One decode and two prefills, of ten layers. Four of the layers have no work in prefill.
    let (decode, prefill) = (10, 2 * 6);
    let sharing = cost(0);
    assert_eq!(sharing.artefact_bytes, sharing.weight_bytes + 1000 * (decode + prefill));
    assert_eq!(sharing.artefact_provenance, Some(Provenance::Declared));
    let kinds = decoder(&request).kinds(0, 10).unwrap();
    let again: u64 = request
        .costs
        .iter()
        .filter(|row| row.target == 1 && row.entry.kind == EntryKind::Prefill)
        .flat_map(|row| kinds.iter().filter(move |&&kind| kind == row.kind).map(|_| row.weight_bytes))
        .sum();
    let alone = cost(1);
    assert!(again > alone.weight_bytes / 2, "{again}");
    assert_eq!(alone.artefact_bytes, alone.weight_bytes + again + 1000 * (decode + prefill));
    let silent = cost(2);
    assert_eq!(silent.artefact_provenance, Some(Provenance::Modelled));
    let ops: u64 = silent.entries.iter().map(|entry| entry.ops).sum();
    assert_eq!(silent.artefact_bytes, silent.weight_bytes + 1024 * ops);
}

#[test]
fn a_menu_the_graph_cannot_have_is_an_error() {
    let graph = fixture("qwen3");
    let encode = EntryName { kind: EntryKind::Encode, rows: 4, context: 0 };
    let menu = EntryMenu { context: 4, entries: vec![encode] };
    let error = try_request(&graph, &[offer("chip", PrimitiveCount::default())], &menu).unwrap_err();
    assert!(!error.to_string().is_empty());
}
