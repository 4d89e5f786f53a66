//! One valid plan, and for every fault a change that causes exactly this fault.

use proptest::prelude::*;
use shardwright_vocabulary::{
    ActivationFormat, CostRow, DType, Encoding, Flag, FlagSchema, FlagStage, FlagType, FormatTuple, Legality,
    Lesson, Overhead, Provenance, RoleFormat, ScaleBits, SoftcapPlace, StateFormat, Target, TargetKind,
    TimeCost, ValueFormat, WeightFormat, WeightRole, overhead_names,
};

use super::*;
use crate::cost::prompt_runs;
use crate::plan::{Boundary, BuildTime, Cause, Fallback, PlannedSpeculation, Reason};
use crate::request::{
    DraftEstimate, Goals, Layer, LayerKind, ModelSummary, Sensitivity, Softcap, TableFormat, TargetSummary,
    ValueSensitivity,
};
use crate::times::entry_time;

const PREFILL: &str = "prefill_64@512";
const DECODE: &str = "decode_1@512";
const WIDE: &str = "decode_4@512";
const LONG_PREFILL: &str = "prefill_256@512";
const OTHER_CONTEXT: &str = "decode_1@1024";

fn entry(name: &str) -> EntryName {
    name.parse().unwrap()
}

/// Creates a request with `embed`, a decoder of six layers and a head. The last two layers read
/// layer 3's state and do not run in prefill. There are two targets on different shims, and a third
/// that shares the first one's device.
fn request() -> Request {
    let component = |name: &str, body, inputs: &[&str], outputs: &[&str]| Component {
        name: name.to_owned(),
        body,
        softcap: None,
        inputs: inputs.iter().map(|&name| name.to_owned()).collect(),
        outputs: outputs.iter().map(|&name| name.to_owned()).collect(),
    };
    let kind = |name: &str, prefill| LayerKind { name: name.to_owned(), prefill };
    let target = |name: &str, shim: &str, kind| TargetSummary {
        target: Target { name: name.to_owned(), shim: shim.to_owned(), device: "0".to_owned(), kind },
        limits: vec![],
        overheads: vec![],
        facts: vec![],
        schema: vec![FlagSchema {
            name: "opt".to_owned(),
            values: FlagType::Integer { min: 0, max: 3 },
            default: None,
            description: String::new(),
            stage: FlagStage::Compile,
        }],
        recommended: vec![],
        device_memory: None,
    };
    let layer = |layer: u32| match layer {
        0..4 => Layer { kind: 2, donor: None, writes_state: true },
        _ => Layer { kind: 3, donor: Some(3), writes_state: false },
    };
    let quantised = FormatTuple {
        weights: WeightFormat::W8PerChannel,
        roles: vec![RoleFormat { role: WeightRole::Head, format: WeightFormat::F32 }],
        ..FormatTuple::F32
    };
    let mut costs = vec![];
    for target in 0..3 {
        for formats in 0..2 {
            for (kind, name, ops) in [
                (0, PREFILL, 1),
                (0, LONG_PREFILL, 1),
                (0, DECODE, 1),
                (0, WIDE, 1),
                (0, OTHER_CONTEXT, 1),
                (1, DECODE, 2),
                (1, WIDE, 2),
                (1, OTHER_CONTEXT, 2),
                (2, PREFILL, 60),
                (2, LONG_PREFILL, 60),
                (2, DECODE, 100),
                (2, WIDE, 100),
                (2, OTHER_CONTEXT, 100),
                (3, DECODE, 80),
                (3, WIDE, 80),
                (3, OTHER_CONTEXT, 80),
            ] {
                costs.push(CostRow {
                    kind,
                    target,
                    formats,
                    entry: entry(name),
                    ops,
                    weight_bytes: 1000,
                    artefact_bytes: 10,
                    artefact_provenance: Provenance::Modelled,
                    state_bytes: if kind == 2 { 50 } else { 0 },
                    legality: Legality::Legal,
                    time: Some(TimeCost::ZERO),
                    uncosted_ops: 0,
                });
            }
        }
    }
    Request {
        model: ModelSummary {
            name: "sample".to_owned(),
            family: "sample".to_owned(),
            hidden: 8,
            max_context: 1024,
            heads: 0,
            towers: vec![],
            components: vec![
                component("embed", Body::Whole(0), &[], &["hidden"]),
                component("decoder", Body::Layers((0..6).map(layer).collect()), &["hidden"], &["hidden"]),
                component("head", Body::Whole(1), &["hidden"], &["logits"]),
            ],
        },
        kinds: vec![
            kind("embed", PrefillPart::Full),
            kind("head", PrefillPart::None),
            kind("writer", PrefillPart::Full),
            kind("reader", PrefillPart::None),
        ],
        targets: vec![
            target("npu", "vendor", TargetKind::Npu),
            target("cpu", "cpu", TargetKind::Cpu),
            target("npu-again", "vendor", TargetKind::Npu),
        ],
        formats: vec![FormatTuple::F32, quantised],
        usual_formats: vec![],
        entries: [PREFILL, LONG_PREFILL, DECODE, WIDE, OTHER_CONTEXT].into_iter().map(entry).collect(),
        costs,
        sensitivities: vec![],
        value_sensitivities: vec![],
        tables: vec![],
        ranges: vec![],
        boundary_nanoseconds: 0,
        transfer_nanoseconds: 0,
        goals: Goals {
            quality_micronats: None,
            least_loss: false,
            memory_bytes: None,
            context: 512,
            max_prefill_rows: 64,
            size_bytes: None,
            token_microseconds: None,
            first_token_microseconds: None,
            prompt_tokens: 0,
            answer_tokens: 0,
        },
        prompts: vec![],
        drafts: vec![DraftEstimate {
            name: "lookup".to_owned(),
            silent_steps: 9,
            accepted_steps: vec![0, 1],
            provenance: Provenance::Measured,
            token_time: TimeCost::ZERO,
            memory_bytes: 5,
            row_bytes: 100,
        }],
        options: vec![],
    }
}

/// Ends the head with a soft-cap. The head without it is kind 4, with one operation less.
fn cap_head(request: &mut Request) {
    let runtime = TimeCost::exact(7, Provenance::Modelled);
    request.model.components[2].softcap = Some(Softcap { kind_without: 4, runtime });
    request.kinds.push(LayerKind { name: "head without".to_owned(), prefill: PrefillPart::None });
    let head: Vec<CostRow> = request.costs.iter().filter(|row| row.kind == 1).cloned().collect();
    request.costs.extend(head.into_iter().map(|row| CostRow { kind: 4, ops: row.ops - 1, ..row }));
}

fn shard(component: u32, layers: (u32, u32), entries: &[&str], inputs: &[&str], outputs: &[&str]) -> Shard {
    let boundary = |name: &&str| Boundary { name: (*name).to_owned(), encoding: Some(Encoding::F32) };
    let formats = vec![0; (layers.1 - layers.0).max(1) as usize];
    Shard {
        segments: vec![PlannedSegment { component, first: layers.0, end: layers.1, formats }],
        target: 0,
        context: 512,
        entries: entries.iter().map(|name| entry(name)).collect(),
        inputs: inputs.iter().map(boundary).collect(),
        outputs: outputs.iter().map(boundary).collect(),
        softcap: None,
        flags: vec![],
        build: BuildTime::Ahead,
    }
}

/// Creates a plan with the shards `embed`, layers 0..3, layers 3..5, layer 5 (which does not run in
/// prefill), and the head.
fn plan() -> Plan {
    let both = &[PREFILL, DECODE][..];
    Plan {
        shards: vec![
            shard(0, (0, 0), both, &[], &["hidden"]),
            shard(1, (0, 3), both, &["hidden"], &["hidden"]),
            shard(1, (3, 5), both, &["hidden"], &["hidden"]),
            shard(1, (5, 6), &[DECODE], &["hidden"], &["hidden"]),
            shard(2, (0, 0), &[DECODE], &["hidden"], &["logits"]),
        ],
        tables: vec![],
        fallback: vec![Fallback { target: 1, formats: vec![0], limits: vec![] }],
        speculation: None,
        reasons: vec![Reason {
            shard: Some(1),
            choice: "layers 0..3".to_owned(),
            because: "that many fit".to_owned(),
            cause: Cause::Limit("ops".to_owned()),
        }],
        lessons: vec![],
    }
}

#[test]
fn a_shard_whose_soft_cap_the_runtime_computes_costs_what_is_left() {
    let mut request = request();
    cap_head(&mut request);
    request.validate().unwrap();
    for (place, ops) in [(SoftcapPlace::Graph, 2), (SoftcapPlace::Runtime, 1)] {
        let mut plan = plan();
        plan.shards[4].softcap = Some(place);
        assert_eq!(check(plan, &request).unwrap().shards()[4].cost.ops, ops, "{place}");
    }
}

#[test]
fn a_sound_plan_passes_with_its_costs() {
    let request = request();
    request.validate().unwrap();
    let checked = check(plan(), &request).unwrap();
    assert_eq!(checked.plan(), &plan());
    let costs: Vec<_> = checked
        .shards()
        .iter()
        .map(|shard| &shard.cost)
        .map(|cost| (cost.ops, cost.weight_bytes, cost.state_bytes))
        .collect();
    assert_eq!(costs, [(1, 1000, 0), (300, 3000, 150), (180, 2000, 50), (80, 1000, 0), (2, 1000, 0)]);
    // The weights count once, additions of entry points once per entry point and layer.
    assert_eq!(checked.shards()[1].cost.artefact_bytes, 3000 + 2 * 3 * 10);
    assert_eq!(checked.shards()[2].cost.artefact_bytes, 2000 + 2 * 10 + 10);
    assert_eq!(checked.loss(), Loss::default());
    assert_eq!(checked.into_plan(), plan());
}

#[test]
fn states_may_be_shared_between_targets_on_one_device() {
    let mut plan = plan();
    plan.shards[3].target = 2;
    check(plan, &request()).unwrap();
}

type Change = fn(&mut Plan, &mut Request);

fn fallback_to(target: u32) -> Fallback {
    Fallback { target, formats: vec![], limits: vec![] }
}

/// Creates a chain on a target within these limits.
fn hedge(target: u32, limits: &[(&str, u64)]) -> Fallback {
    let limits = limits.iter().map(|(name, value)| ((*name).to_owned(), *value)).collect();
    Fallback { limits, ..fallback_to(target) }
}

fn verified(rows: u32) -> PlannedSpeculation {
    PlannedSpeculation { draft: "lookup".to_owned(), rows, gain_thousandths: Some(1500) }
}

/// Makes the plan verify proposals of the lookup, with four rows of every shard.
fn speculate(plan: &mut Plan) {
    plan.shards.iter_mut().for_each(|shard| shard.entries.push(entry(WIDE)));
    plan.speculation = Some(verified(4));
}

#[test]
fn proposals_are_verified_at_an_entry_point_of_every_shard() {
    let (mut plan, mut request) = (plan(), request());
    request.validate().unwrap();
    assert_eq!(check(plan.clone(), &request).unwrap().speculation(), None);
    let held = |plan: &Plan, request: &Request| {
        let checked = check(plan.clone(), request).unwrap();
        checked.shards().iter().map(|shard| shard.cost.context_bytes()).sum::<u64>()
    };
    // The entry point is allowed even without a draft.
    plan.shards.iter_mut().for_each(|shard| shard.entries.push(entry(WIDE)));
    let without = held(&plan, &request);
    plan.speculation = Some(verified(4));
    let speculation = check(plan.clone(), &request).unwrap().speculation().cloned();
    let expected = ChosenSpeculation {
        draft: "lookup".to_owned(),
        rows: 4,
        gain_thousandths: Some(1500),
        provenance: Provenance::Measured,
        accepted_steps: Vec::new(),
    };
    assert_eq!(speculation, Some(expected));
    // For a smaller model, the histogram of accepted tokens is passed on.
    let mut model = request.clone();
    model.drafts[0].name = "small".to_owned();
    let draft = "small".to_owned();
    let small = Plan { speculation: Some(PlannedSpeculation { draft, ..verified(4) }), ..plan.clone() };
    let told = check(small, &model).unwrap().speculation().unwrap().accepted_steps.clone();
    assert_eq!(told, model.drafts[0].accepted_steps);
    assert!(!told.is_empty());
    // Memory that the draft needs in addition to the shards counts towards the goal.
    let held = without + 5 + 4 * 100;
    request.goals.memory_bytes = Some(held);
    check(plan.clone(), &request).unwrap();
    request.goals.memory_bytes = Some(held - 1);
    let fault = check(plan, &request).unwrap_err();
    let expected = format!("the plan needs {held} bytes of memory, the goal is {}", held - 1);
    assert_eq!(fault.to_string(), expected);
}

/// Words of the fault, which no other fault has, and the change that causes it.
const CASES: &[(&str, Change)] = &[
    ("shards, expected at most", |plan, _| plan.shards = vec![plan.shards[0].clone(); caps::SHARDS + 1]),
    ("fallback chains, expected at most", |plan, _| {
        plan.fallback = vec![fallback_to(0); caps::FALLBACKS + 1]
    }),
    ("limits of a fallback chain, expected at most", |plan, _| {
        plan.fallback = vec![hedge(0, &[("ops", 1); 99])]
    }),
    ("reasons, expected at most", |plan, _| plan.reasons = vec![plan.reasons[0].clone(); caps::REASONS + 1]),
    ("entry points, expected at most", |plan, _| {
        plan.shards[0].entries = vec![entry(DECODE); caps::ENTRIES + 1]
    }),
    ("boundaries, expected at most", |plan, _| {
        plan.shards[1].inputs = vec![plan.shards[1].inputs[0].clone(); caps::BOUNDARIES + 1];
    }),
    ("boundaries, expected at most", |plan, _| {
        plan.shards[1].outputs = vec![plan.shards[1].outputs[0].clone(); caps::BOUNDARIES + 1];
    }),
    ("flags, expected at most", |plan, _| {
        plan.shards[1].flags = vec![Flag { name: "opt".to_owned(), value: "1".to_owned() }; caps::FLAGS + 1];
    }),
    ("a draft of the plan has", |plan, _| {
        speculate(plan);
        plan.speculation.as_mut().unwrap().draft = "x".repeat(caps::NAME_BYTES + 1);
    }),
    ("which the request does not offer", |plan, request| {
        speculate(plan);
        request.drafts.clear();
    }),
    ("rows to verify proposals, got 1", |plan, _| {
        speculate(plan);
        plan.speculation = Some(verified(1));
    }),
    (" entry point to verify proposals", |plan, _| {
        speculate(plan);
        plan.shards.iter_mut().for_each(|shard| _ = shard.entries.pop());
    }),
    (" entry point to verify proposals", |plan, _| plan.speculation = Some(verified(u32::MAX))),
    ("a reason of the plan has", |plan, _| plan.reasons[0].because = "x".repeat(caps::TEXT_BYTES + 1)),
    ("a choice of the plan has", |plan, _| plan.reasons[0].choice = "x".repeat(caps::TEXT_BYTES + 1)),
    ("a cause of the plan has", |plan, _| {
        plan.reasons[0].cause = Cause::Goal("x".repeat(caps::NAME_BYTES + 1))
    }),
    ("a boundary name of the plan has", |plan, _| {
        plan.shards[1].inputs[0].name = "x".repeat(caps::NAME_BYTES + 1)
    }),
    ("a flag name of the plan has", |plan, _| {
        plan.shards[1].flags = vec![Flag { name: "x".repeat(caps::NAME_BYTES + 1), value: String::new() }];
    }),
    ("a flag value of the plan has", |plan, _| {
        plan.shards[1].flags = vec![Flag { name: "opt".to_owned(), value: "x".repeat(caps::TEXT_BYTES + 1) }];
    }),
    ("which is not in the plan", |plan, _| plan.reasons[0].shard = Some(5)),
    ("lessons, expected at most", |plan, _| plan.lessons = vec![lesson(0, "ops"); 257]),
    ("a lesson is about target 3, which the request does not have", |plan, _| {
        plan.lessons = vec![lesson(0, "ops"), lesson(3, "ops")]
    }),
    ("a lesson is about limit `colour`, expected one of", |plan, _| plan.lessons = vec![lesson(0, "colour")]),
    ("the reason of a lesson has", |plan, _| {
        plan.lessons = vec![Lesson { because: "x".repeat(5000), ..lesson(0, "ops") }]
    }),
    ("the model has no component 3", |plan, _| part(plan, 4).component = 3),
    (": the request has no target 3", |plan, _| plan.shards[4].target = 3),
    ("the request has no format tuple", |plan, _| part(plan, 4).formats = vec![u32::MAX]),
    ("format tuples, expected at most", |plan, _| part(plan, 4).formats = vec![0; caps::LAYERS + 1]),
    ("expected a format tuple for each", |plan, _| part(plan, 4).formats = vec![0, 0]),
    ("expected a format tuple for each", |plan, _| part(plan, 1).formats.truncate(2)),
    ("expected the same activations, states and attention", |plan, request| {
        request.formats[1].activations = ActivationFormat::A16;
        part(plan, 1).formats[1] = 1;
    }),
    ("no segments", |plan, _| plan.shards[1].segments.clear()),
    ("segments, expected at most", |plan, _| {
        plan.shards[1].segments = vec![plan.shards[1].segments[0].clone(); caps::SEGMENTS + 1]
    }),
    ("is out of order", |plan, _| plan.shards.swap(0, 1)),
    ("is out of order", |plan, _| {
        let head = part(plan, 4).clone();
        plan.shards[0].segments.insert(0, head);
    }),
    ("` was already placed", |plan, _| {
        let next = plan.shards.remove(2).segments;
        plan.shards[1].segments.extend(next);
    }),
    ("expected the same activations, states and attention", |plan, request| {
        request.formats[1].activations = ActivationFormat::A16;
        join(plan, 0, 1);
        part(plan, 0).formats = vec![1];
    }),
    ("` is missing", |plan, _| {
        join(plan, 0, 1);
        plan.shards[0].outputs.clear();
    }),
    ("the component has no input", |plan, _| {
        let hidden = plan.shards[1].inputs.clone();
        join(plan, 0, 1);
        plan.shards[0].inputs = hidden;
    }),
    ("` was already placed", |plan, _| plan.shards.insert(0, plan.shards[0].clone())),
    ("no shard has this component", |plan, _| drop(plan.shards.remove(0))),
    ("no shard has this component", |plan, _| {
        plan.shards.retain(|shard| shard.segments[0].component != 1);
        plan.reasons.clear();
    }),
    ("no shard has this component", |plan, _| {
        plan.shards.clear();
        plan.reasons.clear();
    }),
    ("expected layers within", |plan, _| part(plan, 1).end = 0),
    ("expected layers within", |plan, _| part(plan, 3).end = 7),
    ("expected layers within", |plan, _| part(plan, 3).end = u32::MAX),
    ("expected layers within", |plan, _| {
        let part = part(plan, 1);
        (part.first, part.end) = (5, 2)
    }),
    ("expected layers within", |plan, _| part(plan, 4).end = 1),
    ("layer 2 was already placed", |plan, _| part(plan, 2).first = 2),
    ("layer 0 was already placed", |plan, _| plan.shards.insert(2, plan.shards[1].clone())),
    ("not in any shard", |plan, _| part(plan, 1).first = 1),
    ("not in any shard", |plan, _| part(plan, 1).end = 2),
    ("not in any shard", |plan, _| drop(plan.shards.remove(3))),
    ("state-not-shareable", |plan, _| plan.shards[3].target = 1),
    ("state-not-shareable", |_, request| {
        if let Body::Layers(layers) = &mut request.model.components[1].body {
            layers[4].donor = Some(99);
        }
    }),
    ("` does not support `", |_, request| request.costs.retain(|row| row.kind != 1)),
    ("` does not support `", |_, request| request.costs.iter_mut().for_each(|row| row.time = None)),
    ("` does not support `", |_, request| {
        request.costs.iter_mut().for_each(|row| row.legality = Legality::Illegal("too wide".to_owned()));
    }),
    ("shard 1: ops is", |_, request| limit_first(request, limit_names::OPS, 299)),
    ("shard 1: weight-bytes is", |_, request| limit_first(request, limit_names::WEIGHT_BYTES, 2999)),
    ("shard 1: artefact-bytes is", |_, request| limit_first(request, limit_names::ARTEFACT_BYTES, 3059)),
    ("shard 1: context-bytes is", |_, request| limit_first(request, limit_names::CONTEXT_BYTES, 3209)),
    ("target `npu`: shards is", |_, request| limit_first(request, limit_names::SHARDS, 4)),
    ("target `npu`: memory-bytes is", |_, request| limit_first(request, limit_names::MEMORY_BYTES, 8000)),
    ("bytes of memory, the goal is", |_, request| request.goals.memory_bytes = Some(8000)),
    ("artefacts and tables together have", |_, request| request.goals.size_bytes = Some(5000)),
    ("shard 1: call-microseconds is", |_, request| {
        timed(request);
        limit_first(request, limit_names::CALL_MICROSECONDS, 1);
    }),
    ("a token needs at least", |_, request| {
        timed(request);
        request.goals.token_microseconds = Some(7);
    }),
    ("a token needs at least", |_, request| {
        timed(request);
        called(request, 3);
        request.goals.token_microseconds = Some(22);
    }),
    ("the first token needs at least", |_, request| {
        timed(request);
        request.goals.prompt_tokens = 129;
        request.goals.first_token_microseconds = Some(17);
    }),
    ("millionths of a nat, the goal is", |plan, request| {
        quantise(plan, request);
        request.goals.quality_micronats = Some(3);
    }),
    ("was not measured, but there is a quality goal", |plan, request| {
        quantise(plan, request);
        request.goals.quality_micronats = Some(100);
        request.sensitivities.pop();
    }),
    ("which is written as", |plan, request| {
        // Layer 4 reads the state of layer 1, which is in the next shard.
        if let Body::Layers(layers) = &mut request.model.components[1].body {
            layers[4].donor = Some(1);
        }
        request.formats[1].states = StateFormat::F16;
        part(plan, 1).formats.fill(1);
    }),
    ("gathered tables need", |plan, _| plan.tables = vec![0]),
    ("gathered tables need", |_, request| request.tables.push(table(Some(1)))),
    ("table formats, expected at most", |plan, _| plan.tables = vec![0; crate::request::caps::TABLES + 1]),
    ("table `embedding`: the request does not offer format 2", |plan, request| {
        request.tables.push(table(None));
        plan.tables = vec![2];
    }),
    ("no loss is known for format", |plan, request| {
        request.tables.push(table(None));
        plan.tables = vec![1];
        request.goals.quality_micronats = Some(100);
    }),
    ("millionths of a nat, the goal is", |plan, request| {
        request.tables.push(table(Some(101)));
        plan.tables = vec![1];
        request.goals.quality_micronats = Some(100);
    }),
    // All artefacts together have 8130 bytes.
    ("artefacts and tables together have", |plan, request| {
        request.tables.push(table(None));
        plan.tables = vec![0];
        request.goals.size_bytes = Some(8130 + 799);
    }),
    ("do not fit in 64 bits", |_, request| {
        request.costs.iter_mut().for_each(|row| row.weight_bytes = u64::MAX / 2)
    }),
    ("do not fit in 64 bits", |_, request| request.costs.iter_mut().for_each(|row| row.ops = u64::MAX / 2)),
    ("do not fit in 64 bits", |_, request| {
        request.costs.iter_mut().for_each(|row| row.state_bytes = u64::MAX / 4)
    }),
    ("do not fit in 64 bits", |_, request| {
        request.costs.iter_mut().for_each(|row| row.weight_bytes = u64::MAX / 5)
    }),
    ("has no soft-cap for the", |plan, _| plan.shards[4].softcap = Some(SoftcapPlace::Runtime)),
    ("has no soft-cap for the", |plan, _| plan.shards[1].softcap = Some(SoftcapPlace::Graph)),
    ("does not specify where to compute the soft-cap", |_, request| cap_head(request)),
    ("` does not support `", |plan, request| {
        // Only the kind without the soft-cap is illegal. A plan uses it if the runtime computes the
        // soft-cap.
        cap_head(request);
        plan.shards[4].softcap = Some(SoftcapPlace::Runtime);
        let without = request.costs.iter_mut().filter(|row| row.kind == 4);
        without.for_each(|row| row.legality = Legality::Illegal("too wide".to_owned()));
    }),
    ("has no flag `fast`", |plan, _| {
        plan.shards[1].flags = vec![Flag { name: "fast".to_owned(), value: "true".to_owned() }];
    }),
    ("flag `opt=9`: expected an integer", |plan, _| {
        plan.shards[1].flags = vec![Flag { name: "opt".to_owned(), value: "9".to_owned() }]
    }),
    ("flag `opt` is listed twice", |plan, _| {
        plan.shards[1].flags = vec![Flag { name: "opt".to_owned(), value: "1".to_owned() }; 2];
    }),
    ("the component has no input", |plan, _| plan.shards[1].inputs[0].name = "logits".to_owned()),
    ("output `hidden` is listed twice", |plan, _| {
        let copy = plan.shards[1].outputs[0].clone();
        plan.shards[1].outputs.push(copy);
    }),
    ("` is missing", |plan, _| plan.shards[1].inputs.clear()),
    ("` is missing", |plan, _| plan.shards[4].outputs.clear()),
    ("does not fit its element type", |plan, _| {
        plan.shards[1].inputs[0].encoding = Some(Encoding { zero_point: 1, ..Encoding::F32 })
    }),
    ("writes it as", |plan, _| plan.shards[1].inputs[0].encoding = Some(Encoding::F16)),
    ("writes it as", |plan, _| {
        let scale = ScaleBits::new(0.5).unwrap();
        plan.shards[2].outputs[0].encoding = Some(Encoding { element: DType::U16, scale, zero_point: 3 });
    }),
    ("the request does not offer decode_2@512", |plan, _| plan.shards[1].entries.push(entry("decode_2@512"))),
    ("does not have the shard's context", |plan, _| plan.shards[1].entries.push(entry(OTHER_CONTEXT))),
    ("decode_1@512 is listed twice", |plan, _| plan.shards[1].entries.push(entry(DECODE))),
    ("has more than 64 rows", |plan, _| plan.shards[1].entries.push(entry(LONG_PREFILL))),
    ("no decode_1 entry point", |plan, _| plan.shards[1].entries = vec![entry(PREFILL)]),
    ("no prefill entry point", |plan, _| plan.shards[1].entries = vec![entry(DECODE)]),
    ("no decode_1 entry point", |plan, _| plan.shards[1].entries = vec![entry(PREFILL), entry(WIDE)]),
    ("no layer runs in", |plan, _| plan.shards[3].entries.push(entry(PREFILL))),
    ("no layer runs in", |plan, request| {
        request.entries.push(entry("encode_8"));
        plan.shards[3].entries.push(entry("encode_8"));
    }),
    ("differ from those of shard", |plan, _| plan.shards[2].entries.push(entry(WIDE))),
    ("is below the requested 513", |_, request| request.goals.context = 513),
    ("is above the model's", |plan, _| plan.shards.iter_mut().for_each(|shard| shard.context = 2048)),
    ("of the shards before", |plan, _| {
        plan.shards[4].context = 1024;
        plan.shards[4].entries = vec![entry(OTHER_CONTEXT)];
    }),
    ("to fall back to", |plan, _| plan.fallback.push(fallback_to(3))),
    ("twice as a fallback", |plan, _| plan.fallback.push(fallback_to(1))),
    ("fallback to target 1: format tuple", |plan, _| plan.fallback[0].formats = vec![2]),
    ("fallback to target 1: format tuple", |plan, _| plan.fallback[0].formats = vec![1, 1]),
    ("fallback to `npu`: no part of the model", |plan, request| {
        plan.fallback[0] = Fallback { formats: vec![1], ..fallback_to(0) };
        let rows = request.costs.iter_mut().filter(|row| (row.target, row.formats) == (0, 1));
        rows.for_each(|row| row.legality = Legality::Illegal("not here".to_owned()));
    }),
    ("fallback to `npu`: expected a limit", |plan, _| plan.fallback.push(fallback_to(0))),
    ("fallback to `cpu`: expected a limit", |plan, _| {
        plan.shards.iter_mut().for_each(|shard| shard.target = 1)
    }),
    ("twice as a fallback", |plan, _| {
        plan.fallback.push(hedge(0, &[("ops", 9), ("shards", 2)]));
        plan.fallback.push(hedge(0, &[("shards", 2), ("ops", 9)]));
    }),
    ("fallback to `npu`: unknown limit `colour`", |plan, _| plan.fallback.push(hedge(0, &[("colour", 1)]))),
    ("limit `ops` is listed twice", |plan, _| plan.fallback.push(hedge(0, &[("ops", 9), ("ops", 8)]))),
    ("it has no shard there", |plan, _| plan.fallback.push(hedge(1, &[("ops", 9)]))),
    ("does not allow any shard", |plan, _| plan.fallback.push(hedge(0, &[("ops", 0)]))),
    ("ops ≤ 300 is not below the plan's own ops 300", |plan, _| {
        plan.fallback.push(hedge(0, &[("ops", 300)]));
    }),
    ("shards ≤ 5 is not below the plan's own shards 5", |plan, _| {
        plan.fallback.push(hedge(0, &[("ops", 299), ("shards", 5)]));
    }),
    ("memory-bytes ≤ 8330 is not below the plan's own memory-bytes 8330", |plan, _| {
        plan.fallback.push(hedge(0, &[("memory-bytes", 8330)]));
    }),
    ("artefacts, tables and hedges together have 16260 bytes", |plan, request| {
        plan.fallback.push(hedge(0, &[("ops", 299)]));
        request.goals.size_bytes = Some(16_259);
    }),
];

/// A hedge stays on the plan's own target. Its artefacts count towards a size goal, whatever its
/// cuts.
#[test]
fn a_hedge_is_within_less_than_the_plan_uses() {
    let (mut plan, mut request) = (plan(), request());
    let all = [("ops", 299), ("weight-bytes", 2999), ("artefact-bytes", 3059), ("context-bytes", 3209)];
    plan.fallback = vec![hedge(0, &all), hedge(0, &[("shards", 4), ("memory-bytes", 8329)])];
    plan.fallback.push(fallback_to(1));
    assert_eq!(plan.fallback.iter().map(Fallback::is_hedge).collect::<Vec<_>>(), [true, true, false]);
    check(plan.clone(), &request).unwrap();
    plan.fallback.remove(1);
    assert_eq!(crate::hedge::bytes(&request, &plan), 8130);
    assert_eq!(crate::hedge::least_bytes(&request, &plan, &plan.fallback[1]), Some(8130));
    request.goals.size_bytes = Some(2 * 8130);
    check(plan.clone(), &request).unwrap();
    // Of several formats, the smallest counts.
    let halved = request.costs.iter_mut().filter(|row| (row.target, row.formats) == (0, 1));
    halved.for_each(|row| row.weight_bytes = 500);
    assert_eq!(crate::hedge::bytes(&request, &plan), 4130);
    plan.fallback[0].formats = vec![0];
    assert_eq!(crate::hedge::bytes(&request, &plan), 8130);
    // Each unit has the smallest of the formats that it supports.
    plan.fallback[0].formats = vec![0, 1];
    let refused = |row: &&mut CostRow| row.target == 0 && (row.kind == 0) == (row.formats == 1);
    let refused = request.costs.iter_mut().filter(refused);
    refused.for_each(|row| row.legality = Legality::Illegal("too wide".to_owned()));
    let mixed = crate::hedge::bytes(&request, &plan);
    assert!((4130..8130).contains(&mixed), "{mixed}");
    plan.fallback[0].formats = vec![1];
    assert_eq!(crate::hedge::least_bytes(&request, &plan, &plan.fallback[0]), None);
    // Plans without hedges are stored as before.
    plan.fallback.remove(0);
    let text = String::from_utf8(plan.canonical_bytes()).unwrap();
    assert!(text.contains(r#""fallback":[{"target":1,"formats":[]}]"#), "{text}");
}

/// Sets a time of 1 µs for every row. Decode runs the embedding, six layers and the head. Prefill
/// does not run the last two layers and the head.
fn timed(request: &mut Request) {
    for row in &mut request.costs {
        row.time = Some(TimeCost::exact(1, Provenance::Simulated));
    }
}

#[test]
fn goals_in_time_are_missed_only_by_the_lowest_time() {
    let mut request = request();
    timed(&mut request);
    (request.goals.token_microseconds, request.goals.first_token_microseconds) = (Some(8), Some(18));
    // 128 rows in two runs of 64, 5 µs each. The readers of states do not run.
    request.goals.prompt_tokens = 129;
    check(plan(), &request).unwrap();
    request.goals.token_microseconds = Some(7);
    let fault = |request: &Request| check(plan(), request).unwrap_err().to_string();
    assert_eq!(fault(&request), "a token needs at least 8 µs, the goal is 7 µs");
    called(&mut request, 3);
    (request.goals.token_microseconds, request.goals.first_token_microseconds) = (Some(23), None);
    check(plan(), &request).unwrap();
    request.goals.token_microseconds = Some(22);
    assert_eq!(fault(&request), "a token needs at least 23 µs, the goal is 22 µs");
    // Likely times above the goal do not matter to the check.
    let wide = TimeCost::within(1, 100, 1000, Provenance::Modelled);
    request.costs.iter_mut().for_each(|row| row.time = Some(wide));
    request.targets[0].overheads[0].high = Some(5000);
    assert_eq!(fault(&request), "a token needs at least 23 µs, the goal is 22 µs");
    request.goals.token_microseconds = Some(23);
    let checked = check(plan(), &request).unwrap();
    let PlanTimes { token, first_token } = plan_times(&request, &checked);
    assert_eq!(token, TimeCost::within(23, 815, 8 * 1000 + 5 * 5000, Provenance::Modelled));
    // Two runs of prefill, in three shards.
    let prefill = TimeCost::within(2 * 14, 2 * 509, 2 * (5 * 1000 + 3 * 5000), Provenance::Modelled);
    assert_eq!(first_token, Some(token.saturating_add(prefill)));
}

#[test]
fn the_time_of_a_step_counts_soft_caps_and_hand_offs() {
    let (mut plan, mut request) = (plan(), request());
    timed(&mut request);
    cap_head(&mut request);
    (request.boundary_nanoseconds, request.transfer_nanoseconds) = (588, 1500);
    request.goals.prompt_tokens = 129;
    plan.shards[4].softcap = Some(SoftcapPlace::Graph);
    let times = |plan: &Plan| plan_times(&request, &check(plan.clone(), &request).unwrap());
    // 5 shards of 588 ns together are 2.94 µs.
    assert_eq!(times(&plan).token, TimeCost::within(10, 11, 11, Provenance::Simulated));
    plan.shards[4].softcap = Some(SoftcapPlace::Runtime);
    assert_eq!(times(&plan).token, TimeCost::within(17, 18, 18, Provenance::Modelled));
    // The head follows a shard on another device: 4.44 µs.
    plan.shards[4].target = 1;
    let moved = times(&plan);
    assert_eq!(moved.token, TimeCost::within(19, 20, 20, Provenance::Modelled));
    // Two runs of prefill, 5 µs and 3 shards each, add 3.528 µs of hand-offs.
    assert_eq!(moved.first_token, Some(TimeCost::within(32, 33, 33, Provenance::Modelled)));
    // Each row of a step is capped and converted: 4 × 7 µs, and 5 × 588 + 4 × 1500 ns.
    plan.shards.iter_mut().for_each(|shard| shard.entries.push(entry(WIDE)));
    let checked = check(plan.clone(), &request).unwrap();
    let wide = entry_time(&request, &checked, entry(WIDE));
    assert_eq!(wide, TimeCost::within(44, 45, 45, Provenance::Modelled));
    assert_eq!(plan_times(&request, &checked), moved);
    assert_eq!(entry_time(&request, &checked, entry(LONG_PREFILL)), TimeCost::ZERO);
}

/// Saturated sums stay in order, so that a verdict on them has a meaning.
#[test]
fn times_of_any_size_have_a_sum() {
    let mut request = request();
    timed(&mut request);
    (request.boundary_nanoseconds, request.transfer_nanoseconds) = (u64::MAX, u64::MAX);
    request.goals.prompt_tokens = u32::MAX;
    called(&mut request, u64::MAX / 2);
    let PlanTimes { token, first_token } = plan_times(&request, &check(plan(), &request).unwrap());
    assert!(token.is_ordered() && first_token.unwrap().is_ordered());
    assert_eq!((token.low, first_token.unwrap().low), (u64::MAX, u64::MAX));
}

/// A prompt runs the largest prefill that it fills, and the smallest for the rest.
#[test]
fn a_prompt_is_read_by_the_entry_points_that_it_fills() {
    let sizes = |rows: &[u32]| {
        let of = |&rows: &u32| EntryName { kind: EntryKind::Prefill, rows, context: 512 };
        rows.iter().map(of).collect::<Vec<_>>()
    };
    let runs = |rows: &[u32], tokens: u32| {
        let runs = prompt_runs(&sizes(rows), tokens).into_iter();
        runs.map(|(entry, runs)| (entry.rows, runs)).collect::<Vec<_>>()
    };
    assert_eq!(runs(&[16, 128, 64], 512), [(128, 3), (64, 1), (16, 4)]);
    assert_eq!(runs(&[128, 16], 129), [(128, 1)]);
    assert_eq!(runs(&[128, 16], 18), [(16, 2)]);
    assert_eq!(runs(&[64], 66), [(64, 2)]);
    assert_eq!((runs(&[64], 1), runs(&[], 100)), (vec![], vec![]));
    assert_eq!(runs(&[0, u32::MAX], u32::MAX), [(0, 4_294_967_294)], "a run of no rows counts as one");

    let mut request = request();
    timed(&mut request);
    let small = sizes(&[16])[0];
    let own: Vec<_> = request.costs.iter().filter(|row| row.entry == sizes(&[64])[0]).cloned().collect();
    request.entries.push(small);
    request.costs.extend(own.into_iter().map(|row| CostRow { entry: small, ..row }));
    let mut plan = plan();
    for shard in &mut plan.shards {
        if shard.entries.contains(&sizes(&[64])[0]) {
            shard.entries.push(small);
        }
    }
    // 84 rows in one run of 64 and two of 16, 5 µs each, and a token of 8 µs.
    request.goals.prompt_tokens = 85;
    request.goals.first_token_microseconds = Some(23);
    check(plan.clone(), &request).unwrap();
    request.goals.first_token_microseconds = Some(22);
    let fault = check(plan, &request).unwrap_err();
    assert_eq!(fault.to_string(), "the first token needs at least 23 µs, the goal is 22 µs");
}

/// Returns the segment of a shard of [`plan`].
fn part(plan: &mut Plan, shard: usize) -> &mut PlannedSegment {
    &mut plan.shards[shard].segments[0]
}

fn lesson(target: u32, limit: &str) -> Lesson {
    Lesson { target, limit: limit.to_owned(), value: 1, because: "2 was refused".to_owned() }
}

/// Adds this many microseconds to each run of a shard.
fn called(request: &mut Request, microseconds: u64) {
    for target in &mut request.targets {
        target.overheads.push(Overhead {
            name: overhead_names::CALL.to_owned(),
            low: None,
            value: microseconds,
            high: None,
            provenance: Provenance::Reported,
            note: String::new(),
        });
    }
}

fn limit_first(request: &mut Request, name: &str, value: u64) {
    request.targets[0].limits.push(Limit::new(name, u64::MAX, Provenance::Declared));
    request.targets[0].limits.push(Limit::new(name, value, Provenance::Reported));
}

/// Joins a shard with the one after it.
fn join(plan: &mut Plan, first: usize, second: usize) {
    let next = plan.shards.remove(second);
    let shard = &mut plan.shards[first];
    shard.segments.extend(next.segments);
    shard.outputs = next.outputs;
    plan.reasons.clear();
}

#[test]
fn shards_of_several_components_add_up() {
    let request = request();
    let apart = check(plan(), &request).unwrap();
    let mut joined = plan();
    join(&mut joined, 0, 1);
    let joined = check(joined, &request).unwrap();
    let names: Vec<&str> = joined.shards().iter().map(|shard| shard.name.as_str()).collect();
    assert_eq!(names, ["embed+decoder.0-3", "decoder.3-5", "decoder.5-6", "head"]);
    let (first, second) = (&apart.shards()[0].cost, &apart.shards()[1].cost);
    let cost = &joined.shards()[0].cost;
    assert_eq!(cost.ops, first.ops + second.ops);
    assert_eq!(cost.weight_bytes, first.weight_bytes + second.weight_bytes);
    assert_eq!(cost.context_bytes(), first.context_bytes() + second.context_bytes());
    assert_eq!(joined.shards()[0].segments.to_string(), names[0]);

    // A component without weights gets the formats of a unit with weights.
    let mut request = request;
    request.costs.iter_mut().filter(|row| row.kind == 0).for_each(|row| row.weight_bytes = 0);
    let mut mixed = plan();
    join(&mut mixed, 0, 1);
    mixed.shards[0].segments[1].formats.fill(1);
    let checked = check(mixed, &request).unwrap();
    let shard = &checked.shards()[0];
    assert_eq!(shard.formats.uniform(), Some(&request.formats[1]));
}

/// Creates a table of 800 bytes, or of 400 bytes with this loss.
fn table(micronats: Option<u32>) -> GatheredTable {
    let of =
        |format, bytes, micronats| TableFormat { format, bytes, micronats, provenance: Provenance::Modelled };
    let formats = vec![of(WeightFormat::Bf16, 800, Some(0)), of(WeightFormat::W8PerChannel, 400, micronats)];
    GatheredTable { name: "embedding".to_owned(), formats }
}

#[test]
fn tables_count_for_size_and_loss() {
    let mut request = request();
    request.tables.push(table(Some(7)));
    request.validate().unwrap();
    for (format, micronats, bytes) in [(0, 0, 800), (1, 7, 400)] {
        request.goals.size_bytes = Some(8130 + bytes);
        let checked = check(Plan { tables: vec![format], ..plan() }, &request).unwrap();
        let own = &checked.tables()[0];
        assert_eq!((own.name.as_str(), own.chosen.bytes), ("embedding", bytes));
        assert_eq!(checked.loss().micronats, micronats);
        assert_eq!(checked.loss().modelled, u64::from(micronats > 0));
    }
}

/// Losses of activations and states count for any weight format. Rows for other formats are
/// ignored.
#[test]
fn activations_and_states_count_for_the_loss() {
    let mut request = request();
    let tuple = request.formats[0].clone();
    let other = ValueFormat::States(StateFormat::A8);
    for (layer, format, micronats) in [
        (0, ValueFormat::Activations(tuple.activations), 3),
        (0, ValueFormat::States(tuple.states), 4),
        (1, ValueFormat::States(tuple.states), 5),
        (1, other, 100),
    ] {
        let provenance = Provenance::Modelled;
        let row = ValueSensitivity { component: 1, layer, format, micronats, provenance };
        request.value_sensitivities.push(row);
    }
    request.validate().unwrap();
    let loss = check(plan(), &request).unwrap().loss();
    assert_eq!(loss, Loss { micronats: 12, measured: 0, lossy: 2, unmeasured: 0, modelled: 2 });
    request.goals.quality_micronats = Some(11);
    let fault = check(plan(), &request).unwrap_err();
    assert_eq!(fault.to_string(), "the quality loss is 12 millionths of a nat, the goal is 11");
    // These losses are added to the losses of weights.
    let (mut both, mut with_weights) = (plan(), request);
    quantise(&mut both, &mut with_weights);
    with_weights.goals.quality_micronats = None;
    let same = with_weights.formats[1].activations == with_weights.formats[0].activations
        && with_weights.formats[1].states == with_weights.formats[0].states;
    let expected = 3 * 2 + if same { 12 } else { 0 };
    assert_eq!(check(both, &with_weights).unwrap().loss().micronats, expected);
}

/// Rounded floats have a loss, whether or not it is known.
#[test]
fn nothing_is_lost_only_where_values_have_32_bits() {
    let mut request = request();
    let half = FormatTuple { activations: ActivationFormat::F16, ..FormatTuple::F32 };
    assert_eq!(check(plan(), &request).unwrap().loss(), Loss::default());
    request.formats[0] = half;
    let unknown = check(plan(), &request).unwrap().loss();
    assert!(unknown.lossy > 0 && unknown.unmeasured == unknown.lossy, "{unknown:?}");
    let row = |micronats, provenance| ValueSensitivity {
        component: 1,
        layer: 0,
        format: ValueFormat::Activations(ActivationFormat::F16),
        micronats,
        provenance,
    };
    // Layers without a row are covered by the rows of others.
    for (provenance, modelled) in [(Provenance::Modelled, unknown.lossy), (Provenance::Measured, 0)] {
        request.value_sensitivities = vec![row(0, provenance)];
        let loss = check(plan(), &request).unwrap().loss();
        assert_eq!((loss.unmeasured, loss.modelled, loss.micronats), (0, modelled, 0), "{loss:?}");
        assert_eq!(loss.lossy, unknown.lossy);
    }
}

/// The loss of a value format was never measured, but the loss of the integer weights was.
#[test]
fn unknown_values_keep_the_known_loss_of_weights_as_a_floor() {
    let (mut plan, mut request) = (plan(), request());
    quantise(&mut plan, &mut request);
    request.formats[1].activations = ActivationFormat::A16;
    let loss = check(plan.clone(), &request).unwrap().loss();
    assert_eq!(loss, Loss { micronats: 6, measured: 6, lossy: 3, unmeasured: 3, modelled: 0 });
    request.goals.quality_micronats = Some(6);
    check(plan.clone(), &request).unwrap();
    request.goals.quality_micronats = Some(5);
    let fault = check(plan.clone(), &request).unwrap_err();
    assert_eq!(fault.to_string(), "the quality loss is 6 millionths of a nat, the goal is 5");
    // One measured row makes the format known. States remain unknown.
    request.goals.quality_micronats = None;
    let (format, provenance) = (ValueFormat::Activations(ActivationFormat::A16), Provenance::Measured);
    request.value_sensitivities =
        vec![ValueSensitivity { component: 1, layer: 0, format, micronats: 4, provenance }];
    let known = Loss { micronats: 10, measured: 10, lossy: 3, unmeasured: 0, modelled: 0 };
    assert_eq!(check(plan.clone(), &request).unwrap().loss(), known);
    request.formats[1].states = StateFormat::F16;
    assert_eq!(check(plan, &request).unwrap().loss(), Loss { unmeasured: 3, ..known });
}

/// The format of states is irrelevant to encoders. The loss of their activations has no default.
#[test]
fn states_lose_nothing_in_a_model_without_them() {
    let mut request = request();
    let states = FormatTuple { states: StateFormat::F16, ..FormatTuple::F32 };
    assert!(matches!(Losses::new(&request).of(1, 0, &states), UnitLoss::UnknownValues { .. }));
    request.model.max_context = 0;
    let losses = Losses::new(&request);
    assert_eq!(losses.of(1, 0, &states), UnitLoss::None);
    let unknown = UnitLoss::UnknownValues { micronats: 0, measured: 0 };
    assert_eq!(losses.of(1, 0, &FormatTuple { activations: ActivationFormat::A16, ..states }), unknown);
}

fn quantise(plan: &mut Plan, request: &mut Request) {
    part(plan, 1).formats.fill(1);
    for layer in 0..3 {
        request.sensitivities.push(Sensitivity {
            component: 1,
            layer,
            role: WeightRole::MlpInput,
            format: WeightFormat::W8PerChannel,
            micronats: 2,
            provenance: Provenance::Measured,
        });
    }
}

#[test]
fn every_fault_is_found_and_named() {
    for (position, (expected, change)) in CASES.iter().enumerate() {
        let (mut plan, mut request) = (plan(), request());
        change(&mut plan, &mut request);
        let fault = check(plan, &request).expect_err(expected);
        let text = fault.to_string();
        let found: BTreeSet<&str> =
            CASES.iter().map(|(words, _)| *words).filter(|words| text.contains(*words)).collect();
        assert_eq!(found, BTreeSet::from([*expected]), "case {position}: {text}");
        assert!(fault.kind() == ErrorKind::Planning && fault.help().is_some(), "{fault:?}");
        assert!(text.len() < 1000);
    }
}

#[test]
fn quality_within_the_goal_passes() {
    let (mut plan, mut request) = (plan(), request());
    quantise(&mut plan, &mut request);
    request.goals.quality_micronats = Some(6);
    let loss = Loss { micronats: 6, measured: 6, lossy: 3, unmeasured: 0, modelled: 0 };
    assert_eq!(check(plan.clone(), &request).unwrap().loss(), loss);
    // Without a goal, losses need not be measured, and the number of unknown losses is reported.
    request.goals.quality_micronats = None;
    request.sensitivities.truncate(1);
    assert_eq!(
        check(plan, &request).unwrap().loss(),
        Loss { micronats: 2, measured: 2, lossy: 3, unmeasured: 2, modelled: 0 }
    );
}

#[test]
fn a_model_without_states_has_encode_entries_only() {
    let mut request = request();
    request.model.max_context = 0;
    request.goals.context = 0;
    request.entries = vec![entry("encode_64")];
    request.kinds.iter_mut().for_each(|kind| kind.prefill = PrefillPart::None);
    let rows: Vec<_> = request
        .costs
        .iter()
        .filter(|row| row.entry == entry(DECODE))
        .map(|row| CostRow { entry: entry("encode_64"), ..row.clone() })
        .collect();
    request.costs = rows;
    request.validate().unwrap();
    let mut plan = plan();
    for shard in &mut plan.shards {
        shard.context = 0;
        shard.entries = vec![entry("encode_64")];
    }
    // It generates no tokens, so a goal for the first one does not apply.
    request.goals.first_token_microseconds = Some(0);
    request.costs.iter_mut().for_each(|row| row.time = Some(TimeCost::exact(3, Provenance::Modelled)));
    let times = plan_times(&request, &check(plan.clone(), &request).unwrap());
    let vector = TimeCost::exact(8 * 3, Provenance::Modelled);
    assert_eq!(times, PlanTimes { token: vector, first_token: None });

    let mut with_context = plan.clone();
    with_context.shards[0].context = 1;
    let fault = check(with_context, &request).unwrap_err();
    assert_eq!(fault.to_string(), "shard 0: context 1 is above the model's 0");
    plan.shards[0].entries.clear();
    let fault = check(plan, &request).unwrap_err();
    assert_eq!(fault.to_string(), "shard 0: no encode entry point");
}

/// Generates a number that is usually small enough to be an index, but sometimes absurdly large.
fn index() -> impl Strategy<Value = u32> {
    prop_oneof![8 => 0_u32..8, 1 => any::<u32>()]
}

fn any_entry() -> impl Strategy<Value = EntryName> {
    let kinds = prop_oneof![Just(EntryKind::Prefill), Just(EntryKind::Decode), Just(EntryKind::Encode)];
    (kinds, prop_oneof![Just(1_u32), Just(64), any::<u32>()], prop_oneof![Just(512_u32), any::<u32>()])
        .prop_map(|(kind, rows, context)| EntryName { kind, rows, context })
}

fn any_boundary() -> impl Strategy<Value = Boundary> {
    let element = proptest::sample::select(DType::ALL);
    (prop_oneof!["hidden", "logits", ".{0,8}"], element, any::<u32>(), any::<i32>()).prop_map(
        |(name, element, bits, zero_point)| Boundary {
            name,
            encoding: (bits % 4 != 0).then_some(Encoding {
                element,
                scale: ScaleBits::from_bits(bits).unwrap_or(ScaleBits::ONE),
                zero_point,
            }),
        },
    )
}

prop_compose! {
    fn any_shard()(
        numbers in (index(), index(), index(), index(), prop_oneof![Just(512), any::<u32>()]),
        formats in prop::collection::vec(index(), 0..5),
        entries in prop::collection::vec(any_entry(), 0..4),
        inputs in prop::collection::vec(any_boundary(), 0..3),
        outputs in prop::collection::vec(any_boundary(), 0..3),
        softcap in proptest::option::of(proptest::sample::select(SoftcapPlace::ALL)),
        flags in prop::collection::vec((prop_oneof!["opt", ".{0,8}"], ".{0,8}"), 0..3),
    ) -> Shard {
        let (component, first, end, target, context) = numbers;
        let segments = vec![PlannedSegment { component, first, end, formats }; usize::from(context % 3 < 2) + usize::from(end % 5 == 0)];
        let flags = flags.into_iter().map(|(name, value)| Flag { name, value }).collect();
        Shard {
            segments, target, context, entries, inputs, outputs, softcap, flags,
            build: BuildTime::JustInTime,
        }
    }
}

prop_compose! {
    fn any_fallback()(
        target in index(),
        formats in prop::collection::vec(index(), 0..3),
        limits in prop::collection::vec((prop_oneof!["ops", "shards", ".{0,8}"], any::<u64>()), 0..3),
    ) -> Fallback {
        Fallback { target, formats, limits }
    }
}

proptest! {
    #[test]
    fn no_plan_whatsoever_panics(
        shards in prop::collection::vec(any_shard(), 0..8),
        fallback in prop::collection::vec(any_fallback(), 0..4),
        reason_shard in proptest::option::of(index()),
        rows in index(),
    ) {
        let reasons = vec![Reason {
            shard: reason_shard,
            choice: String::new(),
            because: String::new(),
            cause: Cause::Cost("time".to_owned()),
        }];
        let speculation = Some(verified(rows));
        let lessons = vec![lesson(rows, "ops")];
        let plan = Plan { shards, tables: Vec::new(), fallback, speculation, reasons, lessons };
        let _ = check(plan, &request());
    }

    /// Damage to one shard of a valid plan reaches the later checks.
    #[test]
    fn no_nearly_sound_plan_panics(position in 0_usize..5, replacement in any_shard()) {
        let mut plan = plan();
        plan.shards[position] = replacement;
        let _ = check(plan, &request());
    }

    /// A plan for an invalid request does not panic either.
    #[test]
    fn no_request_panics(shards in prop::collection::vec(any_shard(), 0..4), donor in index(), kind in index()) {
        let mut request = request();
        if let Body::Layers(layers) = &mut request.model.components[1].body {
            layers[1].donor = Some(donor);
            layers[2].kind = kind;
        }
        let _ = request.validate();
        let mut plan = plan();
        let _ = check(plan.clone(), &request);
        plan.shards.extend(shards);
        let _ = check(plan, &request);
    }
}
