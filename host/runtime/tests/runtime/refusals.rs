//! Tests all ways in which shards can fail to form a chain.

use crate::support::{self, Parts, Plan, graph, parts, place};
use shardwright_graph::{
    AssetId, ComponentKind, Graph, Role, Segment, StateId, Weight, WeightData, WeightQuantisation,
};
use shardwright_runtime::{ASSETS_MAX, ChainDescription, ENTRIES_MAX, PORTS_MAX, SHARDS_MAX, STATES_MAX};
use shardwright_shims::{
    Binding, Bound, Buffer, Canceller, Direction, EntryInterface, LoadedEntry, LoadedShard, Port, RunOptions,
    Shard, ShimError,
};
use shardwright_test_checkpoints::Spec;
use shardwright_vocabulary::{
    DType, Encoding, EntryKind, Error, ErrorKind, Granularity, Place, ScaleBits, WeightFormat,
};

fn gemma4() -> Graph {
    graph(&Spec::gemma4())
}

fn plan() -> Plan {
    Plan { cuts: vec![3], decode: vec![1, 4], ..Plan::default() }
}

/// Returns the error of a changed description with the unchanged executors.
fn refused(graph: &Graph, plan: &Plan, change: impl FnOnce(&mut Parts)) -> Error {
    let mut parts = parts(graph, plan);
    change(&mut parts);
    let error = parts.chain().expect_err("a refusal");
    assert!(!error.to_string().is_empty());
    assert!(!matches!(error.help(), Some("")));
    error
}

/// Changes both the description and the loaded entry, and returns the error.
fn both(graph: &Graph, plan: &Plan, shard: usize, change: impl Fn(&mut EntryInterface)) -> Error {
    refused(graph, plan, |parts| {
        for entry in &mut parts.description.shards[shard].entries {
            change(entry);
        }
        let inner = &parts.executors[shard];
        let entries = inner.entries().iter().map(|entry| {
            let mut entry = entry.clone();
            change(&mut entry.interface);
            let ports = entry.interface.ports.clone();
            entry.bindings.retain(|binding| ports.iter().any(|port| port.name == binding.port.name));
            for binding in &mut entry.bindings {
                let port = ports.iter().find(|port| port.name == binding.port.name).unwrap();
                binding.dtype = port.dtype;
                binding.port = port.clone();
            }
            entry
        });
        let entries = entries.collect();
        parts.executors[shard] = Idle::loaded(inner.place(), entries);
    })
}

/// Changes only the loaded entries, and returns the error.
fn loaded(graph: &Graph, shard: usize, change: impl Fn(&mut Vec<LoadedEntry>)) -> Error {
    refused(graph, &plan(), |parts| {
        let inner = &parts.executors[shard];
        let mut entries = inner.entries().to_vec();
        change(&mut entries);
        parts.executors[shard] = Idle::loaded(inner.place(), entries);
    })
}

/// A shard that never runs.
struct Idle;

impl Idle {
    fn loaded(place: &Place, entries: Vec<LoadedEntry>) -> LoadedShard {
        LoadedShard::new(Box::new(Idle), place.clone(), entries)
    }
}

impl Shard for Idle {
    fn allocate(&self, _: u64, _: u64) -> Result<Buffer, ShimError> {
        unreachable!()
    }

    fn run(
        &mut self,
        _: usize,
        _: u64,
        _: &[Binding],
        _: &mut [Bound<'_>],
        _: RunOptions,
    ) -> Result<(), ShimError> {
        unreachable!()
    }

    fn canceller(&self) -> Canceller {
        Canceller::new(|| false)
    }
}

/// Checks the kind of an error, and that it has all of these texts.
fn is(error: Error, texts: &[&str]) {
    assert_eq!(error.kind(), ErrorKind::Incompatible);
    let text = error.to_string();
    assert!(texts.iter().all(|expected| text.contains(expected)), "no {texts:?}: {text}");
}

// The shards are: embed 0, per-layer-input 1, decoder 0-3 2, decoder 3-6 3, head 4.
const FIRST: usize = 2;
const SECOND: usize = 3;

#[test]
fn more_than_any_model_has() {
    let graph = gemma4();
    let many =
        |change: fn(&mut ChainDescription)| refused(&graph, &plan(), |parts| change(&mut parts.description));
    is(
        many(|d| d.shards = vec![d.shards[0].clone(); SHARDS_MAX as usize + 1]),
        &[" shards, expected at most"],
    );
    is(
        many(|d| d.structure.states = vec![d.structure.states[0].clone(); STATES_MAX as usize + 1]),
        &[" states, expected at most"],
    );
    is(
        many(|d| d.assets = vec![d.assets[0].clone(); ASSETS_MAX as usize + 1]),
        &[" assets, expected at most"],
    );
    is(
        many(|d| d.shards[0].entries = vec![d.shards[0].entries[0].clone(); ENTRIES_MAX as usize + 1]),
        &[" entry points in a shard, expected at most"],
    );
    is(
        many(|d| {
            let entry = &mut d.shards[0].entries[0];
            entry.ports = vec![entry.ports[0].clone(); PORTS_MAX as usize + 1];
        }),
        &[" ports in an entry, expected at most"],
    );
    is(
        many(|d| d.shards[0].entries[0].point.context = 1 << 40),
        &[" positions in a context, expected at most"],
    );
}

#[test]
fn components_and_layers_once_and_in_order() {
    let graph = gemma4();
    let with = |change: fn(&mut Parts)| refused(&graph, &plan(), change);
    let drop = |parts: &mut Parts, shard: usize| {
        parts.description.shards.remove(shard);
        parts.executors.remove(shard);
    };
    is(
        with(|parts| {
            parts.executors.pop();
        }),
        &["5 shards are described, but 4 are loaded"],
    );
    is(refused(&graph, &plan(), |parts| drop(parts, 4)), &["no shard has the component `head`"]);
    is(refused(&graph, &plan(), |parts| drop(parts, FIRST)), &["expected layers from 0 of 6, got 3..6"]);
    is(refused(&graph, &plan(), |parts| drop(parts, SECOND)), &["no shard has the layers 3..6"]);
    is(
        with(|parts| parts.description.shards[SECOND].segments = Segment::decoder(2, 6).into()),
        &["expected layers from 3 of 6, got 2..6"],
    );
    is(
        with(|parts| parts.description.shards[SECOND].segments = Segment::decoder(3, 7).into()),
        &["expected layers from 3 of 6, got 3..7"],
    );
    is(
        with(|parts| parts.description.shards[0].segments.0[0].layers = (0, 1)),
        &["expected layers from 0 of 6, got 0..1"],
    );
    is(with(|parts| parts.description.shards[SECOND].segments.0.clear()), &["no segments"]);
    is(
        with(|parts| parts.description.shards[FIRST].segments.0.push(Segment::decoder(3, 4))),
        &["`decoder` is already provided"],
    );
    is(with(|parts| parts.description.shards.swap(0, 1)), &["comes after `per-layer-input`"]);
    is(
        with(|parts| parts.description.shards[1].segments = Segment::whole(ComponentKind::Embed).into()),
        &["`embed` is already provided"],
    );
    is(
        with(|parts| parts.description.shards[4].segments = Segment::whole(ComponentKind::Pooling).into()),
        &["`pooling` is already provided, or is not part of this model"],
    );
    is(
        with(|parts| parts.description.shards[SECOND].name = "embed".to_owned()),
        &["two shards are named `embed`"],
    );
    is(
        with(|parts| parts.description.shards[FIRST].place = place("elsewhere")),
        &["described for ", "but loaded on "],
    );
    is(
        with(|parts| parts.description.shards[FIRST].logits_softcap = Some(30.0)),
        &["cannot be applied to its logits"],
    );
    for cap in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        let capped = refused(&graph, &plan(), |parts| {
            let shards = &mut parts.description.shards;
            let head = shards.iter_mut().find(|shard| shard.segments.has(ComponentKind::Head));
            head.unwrap().logits_softcap = Some(cap);
        });
        is(capped, &["cannot be applied to its logits"]);
    }
}

#[test]
fn entry_points_agree() {
    let graph = gemma4();
    let described =
        |change: fn(&mut ChainDescription)| refused(&graph, &plan(), |parts| change(&mut parts.description));
    is(
        described(|d| {
            let entry = d.shards[0].entries[0].clone();
            d.shards[0].entries.push(entry);
        }),
        &["shard `embed`: ", "@96 occurs twice"],
    );
    is(described(|d| d.shards[FIRST].entries[0].name = "prefill_9@96".to_owned()), &[": the name is "]);
    is(
        described(|d| d.shards[FIRST].entries[0].segments = Segment::decoder(0, 2).into()),
        &[": the list of segments is "],
    );
    for rows in [0, 97] {
        is(
            both(&graph, &plan(), 0, move |entry| {
                if entry.point.kind == EntryKind::Prefill {
                    entry.point.rows = rows;
                    entry.name = entry.point.name().to_string();
                }
            }),
            &[": the row count is "],
        );
    }
    is(
        both(&graph, &plan(), FIRST, |entry| {
            entry.point.context = 95;
            entry.name = entry.point.name().to_string();
        }),
        &[": the context is "],
    );
    is(both(&graph, &plan(), FIRST, |entry| entry.point.largest_rows = 4), &[": the largest row count is "]);
    is(
        both(&graph, &plan(), SECOND, |entry| entry.point.largest_rows = 16),
        &[": the largest row count is "],
    );
    is(
        both(&graph, &plan(), SECOND, |entry| {
            entry.point.kind = EntryKind::Encode;
            entry.point.context = entry.point.rows;
            entry.name = entry.point.name().to_string();
        }),
        &[": the kind is "],
    );
    is(
        both(&graph, &plan(), SECOND, |entry| {
            entry.point.kind = EntryKind::Encode;
            entry.name = entry.point.name().to_string();
        }),
        &[": the context is "],
    );
    let without = |shard: usize, kind: EntryKind, rows: u64| {
        refused(&graph, &plan(), move |parts| {
            parts.description.shards[shard]
                .entries
                .retain(|entry| (entry.point.kind, entry.point.rows) != (kind, rows));
        })
    };
    is(without(4, EntryKind::Decode, 4), &["which every shard needs"]);
    // The second shard writes states of layer 3.
    is(without(SECOND, EntryKind::Prefill, 8), &["which must fill `", "layer.3"]);
    is(without(0, EntryKind::Prefill, 8), &["no earlier shard returns `"]);
    is(without(FIRST, EntryKind::Prefill, 8), &["no earlier shard returns `"]);
    is(
        refused(&graph, &plan(), |parts| {
            for shard in &mut parts.description.shards {
                shard.entries.retain(|entry| entry.point.kind == EntryKind::Prefill);
            }
        }),
        &["no decode entry point"],
    );
    is(
        refused(&support::graph(&Spec::embeddinggemma()), &Plan::default(), |parts| {
            for shard in &mut parts.description.shards {
                shard.entries.clear();
            }
        }),
        &["no encode entry point"],
    );
    is(
        both(&graph, &plan(), 4, |entry| entry.ports.retain(|port| port.role != Role::Logits)),
        &["does not return logits"],
    );
}

#[test]
fn artefacts_bind_what_is_described() {
    let graph = gemma4();
    is(
        loaded(&graph, FIRST, |entries| {
            entries.pop();
        }),
        &["the loaded artefact lacks this entry point; available: "],
    );
    is(loaded(&graph, FIRST, Vec::clear), &["available: none"]);
    is(loaded(&graph, FIRST, |entries| entries[0].interface.point.rows = 7), &[": the loaded entry is "]);
    is(
        loaded(&graph, FIRST, |entries| entries[0].bindings[0].port.name = "other".to_owned()),
        &["the loaded artefact has an undescribed binding `other`"],
    );
    is(
        loaded(&graph, FIRST, |entries| {
            let first = entries[0].bindings[0].clone();
            entries[0].bindings.push(first);
        }),
        &["the loaded artefact has two bindings `"],
    );
    is(
        loaded(&graph, FIRST, |entries| {
            entries[0]
                .bindings
                .retain(|b| b.port.role != Role::Hidden || b.port.direction == Direction::Input)
        }),
        &["the loaded artefact has no binding `"],
    );
    let binding = |what: &'static str, change: fn(&mut shardwright_shims::Binding)| {
        let error = loaded(&graph, FIRST, |entries| change(&mut entries[0].bindings[0]));
        is(error, &[&format!(": {what} of the loaded artefact is ")]);
    };
    binding("the direction", |binding| binding.port.direction = Direction::StateRead);
    binding("the role", |binding| binding.port.role = Role::Logits);
    binding("the shape", |binding| binding.port.shape.push(1));
    binding("the storage", |binding| binding.port.dtype = DType::F16);
    binding("the storage", |binding| binding.dtype = DType::I8);
    binding("the order", |binding| binding.strides = Some(vec![1]));
    binding("the size", |binding| binding.bytes -= 1);
    binding("the size", |binding| binding.bytes = u64::MAX);
    binding("the alignment", |binding| binding.alignment = 3);
}

#[test]
fn padding_and_unbound_inputs_are_fine() {
    let graph = gemma4();
    let mut parts = parts(&graph, &plan());
    for shard in 0..parts.executors.len() {
        let inner = &parts.executors[shard];
        let mut entries = inner.entries().to_vec();
        for entry in &mut entries {
            entry.bindings.retain(|binding| {
                binding.port.direction != Direction::Input || binding.port.role != Role::Positions
            });
            for binding in &mut entry.bindings {
                binding.bytes += 128;
                binding.alignment = 0;
            }
        }
        parts.executors[shard] = Idle::loaded(inner.place(), entries);
    }
    parts.chain().unwrap();
}

#[test]
fn a_description_survives_its_file() {
    for spec in [Spec::gemma3(), Spec::gemma4(), Spec::qwen3(), Spec::embeddinggemma()] {
        let graph = graph(&spec);
        for form in [support::Form::Semantic, support::Form::Decomposed, support::Form::ByRuntime] {
            let mut parts =
                parts(&graph, &Plan { form, storages: support::hidden(Encoding::F16), taps: true, ..plan() });
            let text = serde_json::to_string(&parts.description).unwrap();
            let read: ChainDescription = serde_json::from_str(&text).unwrap();
            assert_eq!(read, parts.description);
            parts.description = read;
            parts.chain().unwrap();
        }
    }
}

fn edit(role: Role, change: impl Fn(&mut Port)) -> impl Fn(&mut EntryInterface) {
    move |entry| entry.ports.iter_mut().filter(|port| port.role == role).for_each(&change)
}

#[test]
fn ports_are_what_their_roles_say() {
    let graph = gemma4();
    let plan = plan();
    is(
        both(&graph, &plan, 0, edit(Role::Hidden, |port| port.role = Role::Positions)),
        &["cannot be Output with the role"],
    );
    is(
        both(&graph, &plan, FIRST, edit(Role::Positions, |port| port.role = Role::Logits)),
        &["cannot be Input with the role"],
    );
    let whole = Role::PerLayer { first: 0, layers: 6 };
    is(
        both(
            &graph,
            &plan,
            1,
            edit(whole.clone(), |port| port.role = Role::PerLayer { first: 1, layers: 5 }),
        ),
        &["cannot be ", " with the role "],
    );
    let slice = Role::PerLayer { first: 0, layers: 3 };
    is(
        both(
            &graph,
            &plan,
            FIRST,
            edit(slice, |port| port.role = Role::PerLayer { first: u32::MAX, layers: 3 }),
        ),
        &["cannot be ", " with the role "],
    );
    is(
        both(&graph, &plan, FIRST, edit(Role::Positions, |port| port.name = "hidden".to_owned())),
        &["` occurs twice"],
    );
    is(
        both(&graph, &plan, FIRST, |entry| {
            let mut second = entry.ports[0].clone();
            second.name = "again".to_owned();
            entry.ports.push(second);
        }),
        &["` occurs twice"],
    );
    is(both(&graph, &plan, FIRST, edit(Role::Hidden, |port| port.shape = vec![1, 25])), &["has the shape "]);
    is(
        both(&graph, &plan, 4, |entry| {
            entry.ports.push(Port {
                name: "tap".to_owned(),
                direction: Direction::Output,
                role: Role::Tap { name: "tap".to_owned() },
                shape: vec![u64::MAX, 2],
                dtype: DType::F32,
                encoding: None,
                unit: None,
            });
        }),
        &["has the shape "],
    );
    is(
        both(&graph, &plan, FIRST, edit(Role::Positions, |port| port.dtype = DType::F32)),
        &["cannot be stored as "],
    );
    is(
        both(&graph, &plan, FIRST, edit(Role::Hidden, |port| port.dtype = DType::I32)),
        &["cannot be stored as "],
    );
    let impossible = Encoding { element: DType::I8, scale: ScaleBits::ONE, zero_point: 1 << 20 };
    is(
        both(&graph, &plan, FIRST, edit(Role::Hidden, move |port| port.encoding = Some(impossible))),
        &["cannot be stored as "],
    );
    let half = Encoding { element: DType::I16, ..Encoding::F16 };
    is(
        both(&graph, &plan, FIRST, edit(Role::Hidden, move |port| port.encoding = Some(half))),
        &["cannot be stored as "],
    );
    // These integers have no encoding.
    is(
        both(&graph, &plan, FIRST, edit(Role::Hidden, |port| port.dtype = DType::U16)),
        &["cannot be stored as "],
    );
    is(
        both(
            &graph,
            &plan,
            0,
            edit(Role::Gathered { asset: AssetId(0) }, |port| {
                port.role = Role::Gathered { asset: AssetId(9) };
            }),
        ),
        &["unknown asset 9; the chain has 2 assets"],
    );
}

#[test]
fn tables_are_those_described() {
    let graph = gemma4();
    let asset = |what: &'static str, change: fn(&mut Parts)| {
        is(refused(&graph, &plan(), change), &["asset `", &format!(": {what} is ")]);
    };
    asset("the table", |parts| {
        parts.assets.pop();
    });
    asset("the name", |parts| parts.assets[0].name = "other".to_owned());
    asset("the shape", |parts| parts.assets[0].table.shape = vec![96, 25]);
    asset("the shape", |parts| parts.assets[0].table.shape = vec![96]);
    asset("the format", |parts| parts.assets[0].table.dtype = DType::F32);
    // Description and table agree, but the table is invalid.
    let alike = |what: &'static str, change: fn(&mut shardwright_graph::Weight)| {
        let error = refused(&graph, &plan(), |parts| {
            change(&mut parts.assets[0].table);
            parts.description.assets[0] = parts.assets[0].to_table().described();
        });
        is(error, &["asset `", &format!(": {what} is ")]);
    };
    alike("the format", |table| table.dtype = DType::I8);
    alike("the format", |table| {
        *table = table
            .planned(WeightFormat::W8PerChannel)
            .map(|planned| Weight { dtype: DType::F32, ..planned })
            .unwrap()
    });
    let quantised = |table: &Weight, change: fn(&mut WeightQuantisation)| {
        let mut planned = table.planned(WeightFormat::W8PerChannel).unwrap();
        let quant = planned.quantisation.as_mut().unwrap();
        quant.scales = WeightData::from_vec(vec![0; quant.scales.length()]);
        change(quant);
        Weight { data: WeightData::from_vec(vec![0; planned.data.length()]), ..planned }
    };
    let quantised_to = |what: &'static str, change: fn(&mut WeightQuantisation)| {
        let mut parts = parts(&graph, &plan());
        parts.assets[0].table = quantised(&parts.assets[0].table, change);
        parts.description.assets[0] = parts.assets[0].to_table().described();
        match (parts.chain(), what) {
            (Ok(_), "") => {}
            (result, _) => is(result.unwrap_err(), &["asset `", &format!(": {what} is ")]),
        }
    };
    quantised_to("", |_| {});
    quantised_to("the format", |quant| quant.zero_point = 128);
    quantised_to("the format", |quant| quant.scale_dtype = DType::Bf16);
    quantised_to("the format", |quant| quant.granularity = Granularity::blocks(0));
    quantised_to("the size of the scales", |quant| quant.granularity = Granularity::PerTensor);
    quantised_to("the size of the scales", |quant| quant.scales = WeightData::planned(quant.scales.length()));
    // The table is only planned, without bytes.
    alike("the size", |table| table.data = WeightData::planned(table.data.length()));
    asset("the size", |parts| {
        parts.assets[0].table.data = shardwright_graph::WeightData::from_vec(vec![0; 5]);
    });
}

#[test]
fn states_have_one_writer_before_their_readers_on_one_place() {
    let graph = gemma4();
    let plan = plan();
    let states = |change: fn(&mut EntryInterface)| both(&graph, &plan, FIRST, change);
    is(states(|entry| entry.states[0].id = StateId(99)), &["state 99 is not declared"]);
    is(states(|entry| entry.states[0].state.width += 1), &["differs from its declaration"]);
    is(states(|entry| entry.states[0].capacity += 1), &["has a size that differs from its declaration"]);
    is(states(|entry| entry.states.push(entry.states[0].clone())), &["is listed twice"]);
    is(
        states(|entry| entry.states[0].written = false),
        &["is not returned exactly once by an entry that writes it"],
    );
    is(states(|entry| entry.states.clear()), &["is not listed among the entry's states"]);
    // The second shard claims a state of the first.
    is(
        both(&graph, &plan, SECOND, |entry| {
            if let Some(port) = entry.states.iter_mut().find(|port| port.state.layer < 3) {
                port.written = true;
            } else {
                entry.states[0].state.layer = 0;
            }
        }),
        &[": state "],
    );
    is(
        refused(&graph, &plan, |parts| {
            let state = parts.description.structure.states[0].clone();
            parts.description.structure.states.push(state);
        }),
        &["no shard writes the state `", "in any entry"],
    );
    is(
        refused(&graph, &Plan { decoders: vec!["a", "b"], cuts: vec![4], ..plan.clone() }, |_| {}),
        &["is written by `decoder.0-4` on ", "read by `decoder.4-6` on "],
    );
}

/// Two shards of a model without shared states. One of them claims a state that the other writes.
#[test]
fn stolen_states_are_noticed() {
    let graph = support::graph(&Spec::qwen3());
    let plan = Plan { cuts: vec![2], ..Plan::default() };
    // The shards are embed, decoder 0-2, decoder 2-4, head. The second decoder reads one of its own
    // states, which no shard writes.
    is(
        both(&graph, &plan, 2, |entry| {
            entry.states[0].written = false;
            let name = entry.states[0].state.name.clone();
            for port in entry.ports.iter_mut().filter(|port| port.name == name) {
                port.direction = Direction::StateRead;
            }
        }),
        &["no shard writes the state `"],
    );
    // The first decoder reads a state that the second writes.
    let mut parts = parts(&graph, &plan);
    let late = parts.description.shards[2].entries[0].states[0].clone();
    let port = parts.description.shards[2].entries[0].port(&late.state.name).unwrap().clone();
    for entry in &mut parts.description.shards[1].entries {
        entry.states.push(shardwright_graph::StatePort { written: false, ..late.clone() });
        entry.ports.push(Port { direction: Direction::StateRead, ..port.clone() });
    }
    is(parts.chain().unwrap_err(), &["is read by `decoder.0-2`, which runs before its writer `decoder.2-4`"]);
    // This prefill skips a state that decode writes.
    is(
        both(&graph, &plan, 2, |entry| {
            if entry.point.kind == EntryKind::Prefill {
                let name = entry.states.pop().unwrap().state.name;
                entry.ports.retain(|port| port.name != name);
            }
        }),
        &["no shard writes the state `", "` in prefill"],
    );
}

#[test]
fn a_state_is_written_in_its_own_layer() {
    let mut graph = support::graph(&Spec::qwen3());
    graph.states[0].layer = 2;
    is(
        refused(&graph, &Plan { cuts: vec![2], ..Plan::default() }, |_| {}),
        &["state 0 is written outside its layer"],
    );
}

#[test]
fn neighbours_agree() {
    let graph = gemma4();
    // The cut detects a shard whose layers do not begin at the stream's boundary. The reader
    // detects a stream that ends.
    is(
        both(&graph, &plan(), FIRST, |entry| {
            entry.ports.retain(|port| port.direction == Direction::Input || port.role != Role::Hidden);
        }),
        &["shard `decoder.3-6`, ", "no earlier shard returns `"],
    );
    // A state cannot have two storages.
    let reader = Plan { cuts: vec![4], ..plan() };
    is(
        both(&graph, &reader, SECOND, |entry| {
            for port in entry.ports.iter_mut().filter(|port| port.direction == Direction::StateRead) {
                port.dtype = DType::F16;
            }
        }),
        &["for `decoder.0-4` and ", "for `decoder.4-6`"],
    );
    // A state cannot have two zero points either.
    let stored = |zero_point| {
        move |entry: &mut EntryInterface| {
            for port in entry.ports.iter_mut().filter(|port| matches!(port.role, Role::State { .. })) {
                port.dtype = DType::U16;
                port.encoding = Some(Encoding { element: DType::U16, scale: ScaleBits::ONE, zero_point });
            }
        }
    };
    is(
        refused(&graph, &reader, |parts| {
            for shard in [FIRST, SECOND] {
                let change = stored(if shard == FIRST { 7 } else { 8 });
                parts.description.shards[shard].entries.iter_mut().for_each(&change);
                let inner = &parts.executors[shard];
                let mut entries = inner.entries().to_vec();
                for entry in &mut entries {
                    change(&mut entry.interface);
                    for binding in &mut entry.bindings {
                        binding.port = entry.interface.port(&binding.port.name).unwrap().clone();
                        binding.dtype = binding.port.dtype;
                    }
                }
                parts.executors[shard] = Idle::loaded(inner.place(), entries);
            }
        }),
        &["zero 7) for `", "zero 8) for `"],
    );
}
