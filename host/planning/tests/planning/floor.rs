//! The plan without a planner: it is valid, or the reported obstacle is real.

use proptest::prelude::*;
use shardwright_planning::check::{CheckedPlan, caps, check};
use shardwright_planning::cost::CostTable;
use shardwright_planning::floor::floor;
use shardwright_planning::plan::Cause;
use shardwright_planning::request::{
    Body, Component, GatheredTable, Layer, LayerKind, PrefillPart, Request, Sensitivity, Softcap, TableFormat,
};
use shardwright_vocabulary::{
    ActivationFormat, EntryKind, EntryName, Error, ErrorKind, Flag, FlagSchema, FlagStage, FlagType,
    FormatTuple, Legality, Limit, Provenance, Relief, SoftcapPlace, StateFormat, TimeCost, WeightFormat,
    WeightRole, limit_names,
};

use crate::common::{cuts, request, with_limit};

fn planned(request: &Request) -> CheckedPlan {
    request.validate().unwrap();
    floor(request).unwrap_or_else(|refusal| panic!("{refusal}"))
}

fn refused(request: &Request) -> Error {
    request.validate().unwrap();
    let refusal = floor(request).unwrap_err();
    assert!(refusal.kind() == ErrorKind::Planning && refusal.help().is_some(), "{refusal:?}");
    refusal
}

/// A refusal, parsed from its message.
#[derive(Debug, PartialEq)]
enum Obstacle<'a> {
    Entries { needed: &'a str },
    Illegal { target: &'a str, why: &'a str },
    OverLimit { target: &'a str, limit: &'a str, value: u64, max: u64 },
    OverGoal { goal: &'a str, value: u64, max: u64 },
    Unmeasured { formats: &'a str },
    StateNotShareable,
    Other,
}

impl<'a> Obstacle<'a> {
    fn of(refusal: &'a Error) -> Self {
        Self::parse(refusal.message()).unwrap_or(Obstacle::Other)
    }

    fn parse(message: &'a str) -> Option<Self> {
        let number = |text: &str| text.parse::<u64>().unwrap();
        if message.ends_with("together with all layers that share its state") {
            return Some(Obstacle::StateNotShareable);
        }
        if let Some((needed, _)) = message.split_once(" entry point has a context of ") {
            return Some(Obstacle::Entries { needed: needed.strip_prefix("no ")? });
        }
        if let Some(rest) = message.strip_prefix("no target supports it in any format; `") {
            let (target, rest) = rest.split_once("` as ")?;
            return Some(Obstacle::Illegal { target, why: rest.split_once(": ")?.1 });
        }
        if let Some(rest) = message.strip_prefix("no loss is known for ") {
            let formats = rest.strip_suffix(", and there is a quality goal")?;
            return Some(Obstacle::Unmeasured { formats });
        }
        if let Some(rest) = message.strip_prefix("with all later layers, ") {
            let (goal, rest) = rest.split_once(" would be at least ")?;
            let (value, max) = rest.split_once(", the goal is ")?;
            return Some(Obstacle::OverGoal { goal, value: number(value), max: number(max) });
        }
        let (limit, rest) = message.split_once(" of `")?;
        let (target, rest) = rest.split_once("` would be ")?;
        let (value, max) = rest.split_once(", the limit is ")?;
        Some(Obstacle::OverLimit { target, limit, value: number(value), max: number(max) })
    }
}

/// Adds a copy of every row of the first tuple for one more tuple.
fn with_format(mut request: Request, format: WeightFormat, weight_divisor: u64) -> Request {
    let formats = u32::try_from(request.formats.len()).unwrap();
    request.formats.push(FormatTuple::uniform(format, ActivationFormat::F32, StateFormat::F32));
    let rows: Vec<_> = request.costs.iter().filter(|row| row.formats == 0).cloned().collect();
    for mut row in rows {
        row.formats = formats;
        row.weight_bytes /= weight_divisor;
        request.costs.push(row);
    }
    request
}

fn layers(request: &mut Request) -> &mut Vec<Layer> {
    match &mut request.model.components[1].body {
        Body::Layers(layers) => layers,
        Body::Whole(_) => panic!("the decoder has layers"),
    }
}

/// Gives a layer its own kind, with the same rows.
fn alone(request: &mut Request, layer: usize) -> u32 {
    let kind = u32::try_from(request.kinds.len()).unwrap();
    request.kinds.push(LayerKind { name: "odd".to_owned(), prefill: PrefillPart::Full });
    let rows: Vec<_> = request.costs.iter().filter(|row| row.kind == 2).cloned().collect();
    request.costs.extend(rows.into_iter().map(|mut row| {
        row.kind = kind;
        row
    }));
    layers(request)[layer].kind = kind;
    kind
}

fn forbid(request: &mut Request, kind: u32, target: u32) {
    for row in request.costs.iter_mut().filter(|row| (row.kind, row.target) == (kind, target)) {
        row.legality = Legality::Illegal("not in silicon".to_owned());
    }
}

fn targets(plan: &CheckedPlan) -> Vec<(u32, u32, u32)> {
    let shards = plan.plan().shards.iter().map(|shard| (&shard.segments[0], shard.target));
    let decoder = shards.filter(|(segment, _)| segment.component == 1);
    decoder.map(|(segment, target)| (segment.first, segment.end, target)).collect()
}

#[test]
fn shards_grow_until_a_limit_is_reached() {
    let whole = planned(&request(12));
    assert_eq!(cuts(whole.plan()), [(0, 12)]);
    assert_eq!(whole.plan().shards.len(), 3);
    assert!(whole.plan().shards.iter().all(|shard| shard.target == 0));

    let cut = planned(&with_limit(request(12), limit_names::OPS, 550));
    assert_eq!(cuts(cut.plan()), [(0, 5), (5, 10), (10, 12)]);
    let reason = cut.plan().reasons.iter().find(|reason| reason.shard == Some(2)).unwrap();
    assert_eq!(reason.cause, Cause::Limit("ops".to_owned()));
    assert!(reason.because.contains("600") && reason.because.contains("550"), "{}", reason.because);

    let bytes = planned(&with_limit(request(12), limit_names::WEIGHT_BYTES, 4000));
    assert_eq!(cuts(bytes.plan()), [(0, 4), (4, 8), (8, 12)]);
    // A layer has 1000 weight bytes, twice 10 bytes for its entry points, and 50 of state.
    let artefact = planned(&with_limit(request(12), limit_names::ARTEFACT_BYTES, 6119));
    assert_eq!(cuts(artefact.plan()), [(0, 5), (5, 10), (10, 12)]);
    let context = planned(&with_limit(request(12), limit_names::CONTEXT_BYTES, 6420));
    assert_eq!(cuts(context.plan()), [(0, 6), (6, 12)]);
}

#[test]
fn what_a_target_does_not_take_goes_to_the_next() {
    let mut odd = request(5);
    let kind = alone(&mut odd, 2);
    forbid(&mut odd, kind, 0);
    assert_eq!(targets(&planned(&odd)), [(0, 2, 0), (2, 3, 1), (3, 5, 0)]);

    // The embedding and two layers use up the shards of the NPU.
    let few = with_limit(with_limit(request(4), limit_names::OPS, 100), limit_names::SHARDS, 3);
    let few = planned(&few);
    assert_eq!(targets(&few), [(0, 1, 0), (1, 2, 0), (2, 4, 1)]);
    let head = few.plan().shards.len() - 1;
    assert_eq!(few.plan().shards[head].target, 1);
    let reasons = few.plan().reasons.iter().filter(|reason| reason.shard == Some(3));
    assert!(reasons.clone().any(|reason| reason.cause == Cause::Limit("shards".to_owned())));

    let small = planned(&with_limit(request(4), limit_names::MEMORY_BYTES, 2500));
    assert_eq!(targets(&small), [(0, 2, 0), (2, 4, 1)]);
}

#[test]
fn layers_that_share_a_state_stay_on_one_device() {
    let mut shared = request(6);
    let kind = alone(&mut shared, 5);
    forbid(&mut shared, kind, 0);
    layers(&mut shared)[5].donor = Some(3);
    layers(&mut shared)[5].writes_state = false;
    // Layer 3 is placed where its reader can run.
    assert_eq!(targets(&planned(&shared)), [(0, 3, 0), (3, 4, 1), (4, 5, 0), (5, 6, 1)]);

    forbid(&mut shared, kind, 1);
    let refusal = refused(&shared);
    assert_eq!(refusal.place(), Some("layer 3 of `decoder`"));
    assert_eq!(Obstacle::of(&refusal), Obstacle::StateNotShareable);

    // Each target supports one of the two.
    let mut apart = request(6);
    let (donor, reader) = (alone(&mut apart, 3), alone(&mut apart, 5));
    forbid(&mut apart, donor, 1);
    forbid(&mut apart, reader, 0);
    layers(&mut apart)[5].donor = Some(3);
    layers(&mut apart)[5].writes_state = false;
    assert_eq!(Obstacle::of(&refused(&apart)), Obstacle::StateNotShareable);
}

#[test]
fn a_soft_cap_is_in_the_graph_unless_nothing_takes_it_there() {
    let mut capped = request(2);
    let runtime = TimeCost::exact(1, Provenance::Modelled);
    capped.model.components[2].softcap = Some(Softcap { kind_without: 3, runtime });
    capped.kinds.push(LayerKind { name: "uncapped".to_owned(), prefill: PrefillPart::None });
    let rows: Vec<_> = capped.costs.iter().filter(|row| row.kind == 1).cloned().collect();
    capped.costs.extend(rows.into_iter().map(|mut row| {
        row.kind = 3;
        row
    }));
    let place = |request: &Request| {
        let plan = planned(request);
        let head = plan.plan().shards.last().unwrap();
        (head.softcap, head.target)
    };
    assert_eq!(place(&capped), (Some(SoftcapPlace::Graph), 0));
    forbid(&mut capped, 1, 0);
    assert_eq!(place(&capped), (Some(SoftcapPlace::Graph), 1));
    forbid(&mut capped, 1, 1);
    assert_eq!(place(&capped), (Some(SoftcapPlace::Runtime), 0));
}

#[test]
fn recommended_flags_are_set_and_raise_limits() {
    let mut flagged = with_limit(request(4), limit_names::OPS, 100);
    let flag = Flag { name: "wide".to_owned(), value: "true".to_owned() };
    let relief = Relief { flag: flag.clone(), value: Some(200), note: String::new() };
    flagged.targets[0].limits[0].relief = vec![relief];
    assert_eq!(cuts(planned(&flagged).plan()).len(), 4);
    let (name, description) = ("wide".to_owned(), String::new());
    let (values, stage) = (FlagType::Switch, FlagStage::Compile);
    flagged.targets[0].schema = vec![FlagSchema { name, values, default: None, description, stage }];
    flagged.targets[0].recommended = vec![flag.clone()];
    let plan = planned(&flagged);
    assert_eq!(cuts(plan.plan()), [(0, 2), (2, 4)]);
    assert!(plan.plan().shards.iter().all(|shard| shard.flags == [flag.clone()]));
}

#[test]
fn a_memory_goal_holds_back_what_the_layers_that_follow_need() {
    // 10 layers of 1000 or 250 bytes. The first layers get the first format, the rest the second.
    let mut request = with_format(request(10), WeightFormat::W8PerChannel, 4);
    request.goals.memory_bytes = Some(9000);
    let plan = planned(&request);
    let formats: Vec<u32> = plan
        .plan()
        .shards
        .iter()
        .filter(|shard| shard.segments[0].component == 1)
        .flat_map(|shard| shard.formats())
        .collect();
    assert!(formats.contains(&0) && formats.contains(&1), "{formats:?}");
    assert_eq!(plan.plan().shards.len(), 3, "formats of weights cut nothing");
    let total: u64 = plan.shards().iter().map(|shard| shard.cost.context_bytes()).sum();
    assert!(total <= 9000, "{total}");

    request.goals.memory_bytes = Some(100);
    let refusal = refused(&request);
    let Obstacle::OverGoal { goal: "memory", value, max: 100 } = Obstacle::of(&refusal) else {
        panic!("{refusal}")
    };
    assert!(value > 3500, "{refusal}");
}

#[test]
fn a_size_goal_is_kept_by_narrower_formats_or_named() {
    // 10 layers of 1000 or 250 weight bytes, and a table.
    let mut request = with_format(request(10), WeightFormat::W8PerChannel, 4);
    request.tables = vec![table("embedding", &[(WeightFormat::F32, 800, None)])];
    let size = |plan: &CheckedPlan| {
        let artefacts: u64 = plan.shards().iter().map(|shard| shard.cost.artefact_bytes).sum();
        artefacts + plan.tables().iter().map(|table| table.chosen.bytes).sum::<u64>()
    };
    let first = size(&planned(&request));
    request.goals.size_bytes = Some(first);
    assert_eq!(size(&planned(&request)), first);
    request.goals.size_bytes = Some(first - 1);
    let plan = planned(&request);
    assert!(size(&plan) < first && plan.plan().shards.len() == 3, "{plan:?}");

    // The head of 1000 bytes, the embedding of 2, the layers of 250, their entry points, the table.
    let least = 1000 + 2 + 10 * 250 + (10 + 2 * 10 + 10 * 2 * 10) + 800;
    request.goals.size_bytes = Some(least);
    assert_eq!(size(&planned(&request)), least);
    request.goals.size_bytes = Some(least - 1);
    let refusal = refused(&request);
    let Obstacle::OverGoal { goal: "size", value, max } = Obstacle::of(&refusal) else { panic!("{refusal}") };
    assert!(value >= least && max == least - 1, "{refusal}");
    assert!(refusal.help().unwrap().contains("narrower weight formats"), "{refusal:?}");
}

#[test]
fn a_quality_goal_is_kept_or_named() {
    let mut request = request(4);
    request.formats[0] =
        FormatTuple::uniform(WeightFormat::W4PerChannel, ActivationFormat::F32, StateFormat::F32);
    let mut request = with_format(request, WeightFormat::W8PerChannel, 1);
    request.goals.quality_micronats = Some(1000);
    let refusal = refused(&request);
    assert!(matches!(Obstacle::of(&refusal), Obstacle::Unmeasured { .. }), "{refusal}");
    assert_eq!(refusal.place(), Some("`embed`"));

    for (component, layer) in [(0, 0), (1, 0), (1, 1), (1, 2), (1, 3), (2, 0)] {
        for (format, micronats) in [(WeightFormat::W4PerChannel, 400), (WeightFormat::W8PerChannel, 10)] {
            let role = WeightRole::Other;
            request.sensitivities.push(Sensitivity {
                component,
                layer,
                role,
                format,
                micronats,
                provenance: Provenance::Measured,
            });
        }
    }
    let plan = planned(&request);
    assert_eq!(plan.loss().micronats, 2 * 400 + 4 * 10);
    assert_eq!(plan.plan().shards[1].segments[0].formats, [0, 1, 1, 1]);

    request.goals.quality_micronats = Some(59);
    let refusal = refused(&request);
    let Obstacle::OverGoal { goal: "quality", value, max: 59 } = Obstacle::of(&refusal) else {
        panic!("{refusal}")
    };
    assert!(value >= 60);
}

/// Creates a table with these formats: bytes and loss.
fn table(name: &str, formats: &[(WeightFormat, u64, Option<u32>)]) -> GatheredTable {
    let of = |&(format, bytes, micronats): &(WeightFormat, u64, Option<u32>)| TableFormat {
        format,
        bytes,
        micronats,
        provenance: Provenance::Measured,
    };
    GatheredTable { name: name.to_owned(), formats: formats.iter().map(of).collect() }
}

#[test]
fn tables_have_the_first_format_or_under_a_goal_for_the_size_the_smallest() {
    let mut request = request(4);
    let formats = [
        (WeightFormat::F32, 800, None),
        (WeightFormat::W8PerChannel, 200, Some(30)),
        (WeightFormat::W4PerChannel, 100, None),
    ];
    request.tables = vec![table("embedding", &formats)];
    assert_eq!(planned(&request).plan().tables, [0]);
    request.goals.size_bytes = Some(1 << 20);
    assert_eq!(planned(&request).plan().tables, [2]);
    request.goals.quality_micronats = Some(30);
    assert_eq!(planned(&request).plan().tables, [1], "the others' loss is not known");
    request.goals.quality_micronats = Some(29);
    let refusal = refused(&request);
    assert_eq!(Obstacle::of(&refusal), Obstacle::OverGoal { goal: "quality", value: 30, max: 29 });
    assert_eq!(refusal.place(), Some("gathered tables"));
    request.tables = vec![table("odd", &[(WeightFormat::F32, 1, None)])];
    let refusal = refused(&request);
    assert_eq!(Obstacle::of(&refusal), Obstacle::Unmeasured { formats: "f32" });
    assert_eq!(refusal.place(), Some("table `odd`"));
}

#[test]
fn what_is_in_the_way_is_named() {
    let refusal = refused(&with_limit(
        {
            let mut request = request(4);
            request.targets.truncate(1);
            request.costs.retain(|row| row.target == 0);
            request
        },
        limit_names::OPS,
        50,
    ));
    let expected = Obstacle::OverLimit { target: "npu", limit: "ops", value: 100, max: 50 };
    assert_eq!((refusal.place(), Obstacle::of(&refusal)), (Some("layer 0 of `decoder`"), expected));

    let mut nowhere = request(4);
    for target in 0..2 {
        forbid(&mut nowhere, 1, target);
    }
    let refusal = refused(&nowhere);
    let expected = Obstacle::Illegal { target: "npu", why: "not in silicon" };
    assert_eq!((refusal.place(), Obstacle::of(&refusal)), (Some("`head`"), expected));
    nowhere.costs.retain(|row| row.kind != 1);
    let expected = Obstacle::Illegal { target: "npu", why: "the cost table has no row" };
    assert_eq!(Obstacle::of(&refused(&nowhere)), expected);

    let mut early = request(4);
    early.goals.context = 4096;
    let refusal = refused(&early);
    assert_eq!(Obstacle::of(&refusal), Obstacle::Entries { needed: "decode_1" });
    assert!(refusal.message().contains("a context of 4096 tokens"), "{refusal}");
    early.goals.context = 512;
    early.goals.max_prefill_rows = 32;
    let refusal = refused(&early);
    assert_eq!(Obstacle::of(&refusal), Obstacle::Entries { needed: "prefill" });
    assert!(refusal.message().contains("at most 32 rows"), "{refusal}");

    let many = with_limit(request(caps::SHARDS as u32), limit_names::OPS, 100);
    let expected = format!("expected at most {} shards, got more", caps::SHARDS);
    assert_eq!(refused(&many).message(), expected);

    // A request for which no plan can be valid is its own fault, found by the check.
    let mut long = request(1);
    let name = "x".repeat(1000);
    long.model.components[0].outputs.push(name);
    let refusal = refused(&long);
    let expected = "a boundary name of the plan has 1000 bytes, expected at most 128";
    assert_eq!((refusal.place(), refusal.message()), (Some("plan"), expected));
}

#[test]
fn a_model_without_states_has_its_largest_encode() {
    let mut model = request(3);
    let encode: Vec<EntryName> = ["encode_8", "encode_64"].iter().map(|name| name.parse().unwrap()).collect();
    model.model.max_context = 0;
    model.goals.context = 0;
    model.goals.max_prefill_rows = 32;
    let (decode, mut costs) = (model.entries[1], vec![]);
    for &entry in &encode {
        costs.extend(model.costs.iter().filter(|row| row.entry == decode).cloned().map(|mut row| {
            row.entry = entry;
            row
        }));
    }
    (model.entries, model.costs) = (encode.clone(), costs);
    let plan = planned(&model);
    assert!(plan.plan().shards.iter().all(|shard| shard.entries == [encode[0]] && shard.context == 0));
    model.goals.max_prefill_rows = 4;
    assert_eq!(Obstacle::of(&refused(&model)), Obstacle::Entries { needed: "encode" });
}

/// Random numbers that can be reproduced from a seed.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end.max(1)
    }

    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }

    fn pick<T: Copy>(&mut self, all: &[T]) -> T {
        all[self.below(all.len() as u64) as usize]
    }
}

const ENTRIES: [&str; 6] =
    ["prefill_64@512", "prefill_16@512", "decode_1@512", "decode_4@512", "decode_1@1024", "prefill_64@1024"];

/// Generates a request of small numbers in which every feature appears sometimes.
fn random(seed: u64) -> Request {
    let dice = &mut Dice(seed | 1);
    let mut request = request(1);
    let count = 1 + dice.below(10) as u32;
    let kinds = 1 + dice.below(3) as u32;
    let parts = [PrefillPart::Full, PrefillPart::StatesOnly, PrefillPart::None];
    request.kinds.truncate(2);
    for kind in 0..kinds {
        request.kinds.push(LayerKind { name: format!("kind {kind}"), prefill: dice.pick(&parts) });
    }
    let mut layers: Vec<Layer> = vec![];
    for position in 0..count {
        let kind = 2 + dice.below(kinds.into()) as u32;
        let writers: Vec<u32> =
            (0..position).filter(|&earlier| layers[earlier as usize].writes_state).collect();
        let donor = (!writers.is_empty() && dice.one_in(4)).then(|| dice.pick(&writers));
        layers.push(Layer { kind, donor, writes_state: donor.is_none() });
    }
    request.model.components[1].body = Body::Layers(layers);
    if dice.one_in(3) {
        let runtime = TimeCost::exact(1, Provenance::Modelled);
        let kind_without = request.kinds.len() as u32;
        request.kinds.push(LayerKind { name: "uncapped".to_owned(), prefill: PrefillPart::None });
        request.model.components[2].softcap = Some(Softcap { kind_without, runtime });
    }
    if dice.one_in(3) {
        let mut third = request.targets[0].clone();
        third.target.name = "npu-again".to_owned();
        request.targets.push(third);
    }
    let weights = [WeightFormat::F32, WeightFormat::W8PerChannel, WeightFormat::W4PerChannel];
    let activations = [ActivationFormat::F32, ActivationFormat::F16];
    request.formats = (0..1 + dice.below(3))
        .map(|_| FormatTuple::uniform(dice.pick(&weights), dice.pick(&activations), StateFormat::F32))
        .collect();
    request.entries = ENTRIES.iter().map(|entry| entry.parse().unwrap()).collect();
    let (holes, bans) = (8 + dice.below(100), 2 + dice.below(60));
    let sample = request.costs[0].clone();
    request.costs.clear();
    for kind in 0..request.kinds.len() as u32 {
        for target in 0..request.targets.len() as u32 {
            for formats in 0..request.formats.len() as u32 {
                let (weight_bytes, banned) = (1 + dice.below(1000), dice.one_in(bans));
                for &entry in &request.entries {
                    if dice.one_in(holes * 4) {
                        continue;
                    }
                    let mut row = sample.clone();
                    (row.kind, row.target, row.formats, row.entry) = (kind, target, formats, entry);
                    row.ops = dice.below(200);
                    row.weight_bytes = if kind == 0 && formats == 1 { 0 } else { weight_bytes };
                    row.artefact_bytes = dice.below(30);
                    row.state_bytes = dice.below(60);
                    row.legality = match banned {
                        true => Legality::Illegal("not here".to_owned()),
                        false => Legality::Legal,
                    };
                    request.costs.push(row);
                }
            }
        }
    }
    for target in &mut request.targets {
        for (name, least) in limit_names::ALL.iter().zip([150, 600, 700, 800, 2, 2000]) {
            if dice.one_in(3) {
                target.limits.push(Limit::new(*name, least + dice.below(4 * least), Provenance::Reported));
            }
        }
    }
    if dice.one_in(2) {
        request.goals.memory_bytes = Some(500 + dice.below(9000));
    }
    if dice.one_in(3) {
        request.goals.size_bytes = Some(500 + dice.below(9000));
    }
    if dice.one_in(2) {
        request.goals.quality_micronats = Some(dice.below(3000));
        for (component, layer) in (0..count).map(|layer| (1, layer)).chain([(0, 0), (2, 0)]) {
            for format in &weights[1..] {
                if !dice.one_in(20) {
                    let (format, micronats) = (*format, dice.below(400) as u32);
                    let role = dice.pick(&[WeightRole::Other, WeightRole::Head]);
                    request.sensitivities.push(Sensitivity {
                        component,
                        layer,
                        role,
                        format,
                        micronats,
                        provenance: Provenance::Measured,
                    });
                }
            }
        }
    }
    request.goals.context = dice.pick(&[1, 512, 513, 1024]);
    request.goals.max_prefill_rows = dice.pick(&[16, 64, 64, 64]);
    request
}

/// Returns the component and the layer that a refusal names.
fn named<'request>(request: &'request Request, name: &str) -> (&'request Component, Option<u32>) {
    let (layer, component) = match name.strip_prefix("layer ").and_then(|rest| rest.split_once(" of ")) {
        Some((layer, component)) => (Some(layer.parse().unwrap()), component),
        None => (None, name),
    };
    let component = component.trim_matches('`');
    (request.model.components.iter().find(|known| known.name == component).unwrap(), layer)
}

/// Returns the kinds that a layer may be planned as.
fn kinds(component: &Component, layer: Option<u32>) -> Vec<u32> {
    let (first, end) = layer.map_or((0, 0), |layer| (layer, layer + 1));
    let places = component.softcap.as_ref().map(|_| SoftcapPlace::Runtime);
    [None, places].iter().flat_map(|place| component.shard_kinds(first, end, *place).unwrap()).collect()
}

/// Returns the entry points that the goals allow, found by trying every pair.
fn chain(request: &Request) -> Option<(EntryName, EntryName)> {
    let goals = &request.goals;
    let is = |kind: EntryKind| request.entries.iter().filter(move |entry| entry.kind == kind).copied();
    let pairs =
        is(EntryKind::Decode).flat_map(|decode| is(EntryKind::Prefill).map(move |prefill| (decode, prefill)));
    let fit = pairs.filter(|(decode, prefill)| {
        (decode.rows, decode.context) == (1, prefill.context)
            && decode.context >= goals.context
            && prefill.rows <= goals.max_prefill_rows
    });
    fit.min_by_key(|(decode, prefill)| (decode.context, std::cmp::Reverse(prefill.rows)))
}

/// Returns whether the reason of a refusal is true.
fn holds(request: &Request, refusal: &Error) -> bool {
    let obstacle = Obstacle::of(refusal);
    let Some((decode, prefill)) = chain(request) else {
        return matches!(obstacle, Obstacle::Entries { .. });
    };
    let layer = refusal.place().unwrap_or_default();
    let table = CostTable::new(request);
    // Costs of a single layer, in every way.
    let ways = |name: &str, target: Option<u32>| {
        let (component, layer) = named(request, name);
        let mut costs = vec![];
        for kind in kinds(component, layer) {
            for target in
                (0..request.targets.len() as u32).filter(|index| target.is_none_or(|only| only == *index))
            {
                for formats in 0..request.formats.len() as u32 {
                    costs.extend(table.shard(&[kind], target, &[formats], &[decode, prefill]).ok());
                }
            }
        }
        costs
    };
    match obstacle {
        Obstacle::Illegal { .. } => ways(layer, None).is_empty(),
        Obstacle::OverLimit { target, limit, value, max } => {
            let index = request.targets.iter().position(|known| known.target.name == target).unwrap();
            let known = request.targets[index].limits.iter().filter(|known| known.name == limit);
            let alone = ways(layer, Some(index as u32));
            let reached = |cost: &shardwright_planning::cost::ShardCost| match limit {
                limit_names::OPS => cost.ops == value,
                limit_names::WEIGHT_BYTES => cost.weight_bytes == value,
                limit_names::ARTEFACT_BYTES => cost.artefact_bytes == value,
                limit_names::CONTEXT_BYTES => cost.context_bytes() == value,
                // Shards placed earlier count too.
                limit_names::MEMORY_BYTES => cost.context_bytes() <= value,
                _ => true,
            };
            value > max && known.map(|known| known.value).min() == Some(max) && alone.iter().any(reached)
        }
        Obstacle::OverGoal { goal, value, max } => {
            let goals = &request.goals;
            let own = match goal {
                "memory" => goals.memory_bytes,
                "size" => goals.size_bytes,
                _ => goals.quality_micronats,
            };
            value > max && own == Some(max)
        }
        Obstacle::Unmeasured { formats } => {
            let (component, layer) = named(request, layer);
            let index = request.model.components.iter().position(|known| known == component).unwrap();
            let tuple: FormatTuple = formats.parse().unwrap();
            !request.sensitivities.iter().any(|row| {
                (row.component as usize, row.layer) == (index, layer.unwrap_or(0))
                    && tuple.weight(row.role) == row.format
            })
        }
        Obstacle::StateNotShareable => {
            let (component, layer) = named(request, layer);
            let Body::Layers(layers) = &component.body else { return false };
            let layer = layer.unwrap();
            layers[layer as usize].donor.is_some() || layers.iter().any(|other| other.donor == Some(layer))
        }
        // The generated requests do not cause other refusals.
        _ => false,
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn a_plan_of_the_floor_holds_or_its_refusal_does(seed in any::<u64>()) {
        let request = random(seed);
        request.validate().unwrap();
        match floor(&request) {
            Ok(plan) => {
                prop_assert_eq!(&check(plan.plan().clone(), &request).unwrap(), &plan);
                prop_assert_eq!(floor(&request).unwrap(), plan);
            }
            Err(refusal) => prop_assert!(holds(&request, &refusal), "{refusal}: {request:#?}"),
        }
    }
}

/// The generator uses every feature. Half of its requests have a plan, and each refusal appears.
#[test]
fn random_requests_reach_every_outcome() {
    let mut outcomes = std::collections::BTreeMap::<String, u32>::new();
    for seed in 1..4000_u64 {
        let outcome = match floor(&random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15))) {
            Ok(plan) if plan.shards().len() > 4 => "cut".to_owned(),
            Ok(_) => "plan".to_owned(),
            Err(refusal) => {
                let obstacle = format!("{:?}", Obstacle::of(&refusal));
                obstacle.split([' ', '{']).next().unwrap().to_owned()
            }
        };
        *outcomes.entry(outcome).or_default() += 1;
    }
    for (outcome, least) in [
        ("cut", 200),
        ("plan", 200),
        ("Illegal", 10),
        ("OverLimit", 10),
        ("OverGoal", 10),
        ("Unmeasured", 10),
        ("StateNotShareable", 10),
    ] {
        assert!(outcomes.get(outcome).is_some_and(|count| *count >= least), "{outcome}: {outcomes:?}");
    }
}
