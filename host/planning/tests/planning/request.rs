//! Invalid requests, each refused with a message that names the place.

use shardwright_planning::request::{
    Body, BoundaryRange, DraftEstimate, GatheredTable, PlannerOption, RecordedRequest, Request, Sensitivity,
    Softcap, TableFormat, TargetFact, ValueSensitivity, caps,
};
use shardwright_vocabulary::{
    ErrorKind, Flag, FlagSchema, FlagStage, FlagType, Legality, Overhead, Pass, Provenance, StateFormat,
    TimeCost, ValueFormat, WeightFormat, WeightRole,
};

use crate::common::request;

fn values(component: u32, layer: u32) -> ValueSensitivity {
    let format = ValueFormat::States(StateFormat::A8);
    ValueSensitivity { component, layer, format, micronats: 1, provenance: Provenance::Modelled }
}

/// Creates a table that lists one format `formats` times.
fn table(name: &str, formats: usize) -> GatheredTable {
    let (format, micronats) = (WeightFormat::Bf16, Some(0));
    let format = TableFormat { format, bytes: 1, micronats, provenance: Provenance::Measured };
    GatheredTable { name: name.to_owned(), formats: vec![format; formats] }
}

fn draft(name: &str, accepted: usize) -> DraftEstimate {
    DraftEstimate {
        name: name.to_owned(),
        silent_steps: 1,
        accepted_steps: vec![1; accepted],
        provenance: Provenance::Modelled,
        token_time: TimeCost::ZERO,
        memory_bytes: 0,
        row_bytes: 0,
    }
}

type Change = fn(&mut Request);

const CASES: &[(&str, Change)] = &[
    ("cost rows, expected at most", |request| {
        request.costs = vec![request.costs[0].clone(); caps::COSTS + 1]
    }),
    ("layers, expected at most", |request| {
        if let Body::Layers(layers) = &mut request.model.components[1].body {
            *layers = vec![layers[0].clone(); caps::LAYERS + 1];
        }
    }),
    ("gathered tables, expected at most", |request| {
        request.tables = vec![table("same", 1); caps::TABLES + 1]
    }),
    ("formats of a gathered table, expected at most", |request| {
        request.tables = vec![table("one", caps::TABLE_FORMATS + 1)]
    }),
    ("drafts, expected at most", |request| {
        request.drafts = (0..=caps::DRAFTS).map(|index| draft(&index.to_string(), 1)).collect();
    }),
    ("entries of a draft's histogram, expected at most", |request| {
        request.drafts = vec![draft("long", caps::ACCEPTED + 1)]
    }),
    ("request: draft `same` is listed twice", |request| request.drafts = vec![draft("same", 1); 2]),
    ("request: no formats of a gathered table", |request| request.tables = vec![table("one", 0)]),
    ("request: value sensitivity 0: unknown component 3", |request| {
        request.value_sensitivities = vec![values(3, 0)]
    }),
    ("request: value sensitivity 0: unknown layer 4", |request| {
        request.value_sensitivities = vec![values(1, 4)]
    }),
    ("request: value sensitivity `component 1, layer 0", |request| {
        request.value_sensitivities = vec![values(1, 0); 2]
    }),
    ("request: gathered table `same` is listed twice", |request| request.tables = vec![table("same", 1); 2]),
    ("request: format of a gathered table `bf16` is listed twice", |request| {
        request.tables = vec![table("one", 2)]
    }),
    ("request: no targets", |request| request.targets.clear()),
    ("request: no cost rows", |request| request.costs.clear()),
    ("request: no layers", |request| request.model.components[1].body = Body::Layers(vec![])),
    ("request: component `embed`: unknown layer kind 99", |request| {
        request.model.components[0].body = Body::Whole(99)
    }),
    ("request: layer 2 of `decoder`: unknown layer kind 99", |request| {
        if let Body::Layers(layers) = &mut request.model.components[1].body {
            layers[2].kind = 99;
        }
    }),
    ("request: cost row 0: unknown layer kind 3", |request| request.costs[0].kind = 3),
    ("request: cost row 0: unknown target 2", |request| request.costs[0].target = 2),
    ("request: cost row 0: unknown format tuple 1", |request| request.costs[0].formats = 1),
    ("request: usual format 1: unknown format tuple 1", |request| request.usual_formats = vec![0, 1]),
    ("request: sensitivity 0: unknown component 3", |request| {
        request.sensitivities = vec![sensitivity(3, 0)]
    }),
    ("request: sensitivity 0: unknown layer 4", |request| request.sensitivities = vec![sensitivity(1, 4)]),
    ("request: component `embed` is listed twice", |request| {
        request.model.components[2].name = "embed".to_owned()
    }),
    ("request: tower `clip` is listed twice", |request| request.model.towers = vec![Pass::Clip; 2]),
    ("request: unknown component `tail`", |request| request.model.components[2].name = "tail".to_owned()),
    ("request: input `hidden` is listed twice", |request| {
        request.model.components[1].inputs = vec!["hidden".to_owned(); 2]
    }),
    ("request: target `npu` is listed twice", |request| request.targets[1].target.name = "npu".to_owned()),
    ("request: entry point `prefill_64@512` is listed twice", |request| {
        request.entries.push(request.entries[0])
    }),
    ("request: cost row `kind 0, target 0", |request| request.costs.push(request.costs[0].clone())),
    ("request: sensitivity `component 1, layer 0", |request| {
        request.sensitivities = vec![sensitivity(1, 0); 2]
    }),
    ("request: overhead `call-microseconds` is listed twice", |request| {
        let overhead = Overhead {
            name: "call-microseconds".to_owned(),
            low: None,
            value: 1,
            high: None,
            provenance: Provenance::Reported,
            note: String::new(),
        };
        request.targets[0].overheads = vec![overhead; 2];
    }),
    ("request: cost row 3: a supported row has no time", |request| request.costs[3].time = None),
    ("request: cost row 0: expected low ≤ likely ≤ high, got 9, 5, 1", |request| {
        row_time(request, 9, 5, 1)
    }),
    ("request: cost row 0: expected low ≤ likely ≤ high, got 6, 5, 9", |request| {
        row_time(request, 6, 5, 9)
    }),
    ("request: cost row 0: expected low ≤ likely ≤ high, got 1, 10, 9", |request| {
        row_time(request, 1, 10, 9)
    }),
    ("request: cost row 0: expected a time of at most 3600000000000, got 18446744073709551615", |request| {
        row_time(request, u64::MAX, u64::MAX, u64::MAX)
    }),
    ("request: cost row 0: expected a time of at most 3600000000000, got 3600000000001", |request| {
        row_time(request, 1, 2, caps::MICROSECONDS + 1)
    }),
    ("expected a longest time of at most 1000000 times the shortest, got 2 to 2000001", |request| {
        row_time(request, 2, 3, 2 * caps::WIDTH + 1)
    }),
    ("expected a longest time of at most 1000000 times the shortest, got 0 to 1000001", |request| {
        row_time(request, 0, 1, caps::WIDTH + 1)
    }),
    ("request: overhead `call-microseconds` of target `cpu`: expected low ≤ likely ≤ high", |request| {
        call(request, 4100, 300, 100)
    }),
    (
        "request: overhead `call-microseconds` of target `cpu`: expected a longest time of at most",
        |request| call(request, 1, 300, caps::WIDTH + 1),
    ),
    ("request: soft-cap of `head`: expected low ≤ likely ≤ high, got 3, 2, 1", |request| {
        softcap_time(request, 3, 2, 1)
    }),
    ("request: soft-cap of `head`: expected a longest time of at most", |request| {
        softcap_time(request, 0, 2, caps::MICROSECONDS)
    }),
    ("request: draft `small`: expected a time of at most", |request| {
        draft_time(request, u64::MAX, u64::MAX, u64::MAX)
    }),
    ("request: draft `small`: expected low ≤ likely ≤ high, got 5, 9, 8", |request| {
        draft_time(request, 5, 9, 8)
    }),
    ("request: fact `soc-id` is listed twice", |request| request.targets[0].facts = vec![fact("soc-id"); 2]),
    ("facts, expected at most", |request| {
        request.targets[0].facts = (0..=caps::KNOWN).map(|index| fact(&index.to_string())).collect();
    }),
    ("request: range `hidden, component 1, layer 2` is listed twice", |request| {
        request.ranges = vec![range(1, 2, -1.0, 1.0); 2]
    }),
    ("request: range 0: unknown layer 4", |request| request.ranges = vec![range(1, 4, -1.0, 1.0)]),
    ("request: range 0: unknown component 9", |request| request.ranges = vec![range(9, 0, -1.0, 1.0)]),
    ("expected a finite range, got 1 to -1", |request| request.ranges = vec![range(1, 2, 1.0, -1.0)]),
    ("expected a finite range, got NaN to 1", |request| request.ranges = vec![range(1, 2, f32::NAN, 1.0)]),
    ("expected a finite range, got 0 to inf", |request| {
        request.ranges = vec![range(1, 2, 0.0, f32::INFINITY)]
    }),
    ("request: option `balance` is listed twice", |request| {
        request.options = vec![PlannerOption { name: "balance".to_owned(), value: String::new() }; 2];
    }),
    ("request: layer 1 of `decoder`: reads the state of layer 1", |request| donor(request, 1, 1)),
    ("request: layer 1 of `decoder`: reads the state of layer 3", |request| donor(request, 1, 3)),
    ("request: layer 2 of `decoder`: reads the state of layer 1", |request| {
        donor(request, 1, 0);
        donor(request, 2, 1);
    }),
    ("request: soft-cap of `head`: unknown layer kind 9", |request| softcap(request, 2, 9)),
    ("request: soft-cap of `decoder`: it cannot be left out: the component may be cut", |request| {
        softcap(request, 1, 0)
    }),
    ("request: soft-cap of `head`: it cannot be left out: the component has the same kind", |request| {
        softcap(request, 2, 1)
    }),
    ("request: entry points do not fit the model: a model with states has", |request| {
        request.entries.push("encode_8".parse().unwrap())
    }),
    ("request: entry points do not fit the model: a model without states has", |request| {
        request.model.max_context = 0
    }),
    ("request: entry points do not fit the model: prefill_64@512 in a model", |request| {
        request.model.max_context = 256
    }),
    ("request: entry points do not fit the model: a model with states has", |request| {
        request.entries.retain(|entry| entry.rows > 1)
    }),
    ("request: entry points do not fit the model: cost row 0 is for decode_7@512", |request| {
        request.costs[0].entry = "decode_7@512".parse().unwrap()
    }),
    ("request: target `npu`: recommended flag `opt=3`: the shim has no such flag", |request| {
        request.targets[0].recommended = vec![flag("opt", "3")]
    }),
    ("request: target `npu`: recommended flag `opt=3`: expected an integer", |request| {
        request.targets[0].schema = vec![FlagSchema {
            name: "opt".to_owned(),
            values: FlagType::Integer { min: 0, max: 2 },
            default: None,
            description: String::new(),
            stage: FlagStage::Compile,
        }];
        request.targets[0].recommended = vec![flag("opt", "3")];
    }),
];

/// Sets the time of the first row.
fn row_time(request: &mut Request, low: u64, likely: u64, high: u64) {
    request.costs[0].time = Some(TimeCost::within(low, likely, high, Provenance::Modelled));
}

/// Sets the overhead of a call of the second target.
fn call(request: &mut Request, low: u64, value: u64, high: u64) {
    let (name, note) = ("call-microseconds".to_owned(), String::new());
    let (low, high, provenance) = (Some(low), Some(high), Provenance::Reported);
    request.targets[1].overheads = vec![Overhead { name, low, value, high, provenance, note }];
}

fn softcap_time(request: &mut Request, low: u64, likely: u64, high: u64) {
    softcap(request, 2, 0);
    let runtime = TimeCost::within(low, likely, high, Provenance::Modelled);
    request.model.components[2].softcap.as_mut().unwrap().runtime = runtime;
}

fn draft_time(request: &mut Request, low: u64, likely: u64, high: u64) {
    let token_time = TimeCost::within(low, likely, high, Provenance::Modelled);
    request.drafts = vec![DraftEstimate { token_time, ..draft("small", 1) }];
}

fn fact(name: &str) -> TargetFact {
    TargetFact { name: name.to_owned(), value: String::new(), provenance: Provenance::Declared }
}

fn range(component: u32, layer: u32, least: f32, most: f32) -> BoundaryRange {
    let [minimum_bits, maximum_bits] = [least, most].map(f32::to_bits);
    BoundaryRange { name: "hidden".to_owned(), component, layer, minimum_bits, maximum_bits }
}

fn flag(name: &str, value: &str) -> Flag {
    Flag { name: name.to_owned(), value: value.to_owned() }
}

fn sensitivity(component: u32, layer: u32) -> Sensitivity {
    let (role, format) = (WeightRole::Head, WeightFormat::W8PerTensor);
    Sensitivity { component, layer, role, format, micronats: 1, provenance: Provenance::Measured }
}

fn softcap(request: &mut Request, component: usize, kind_without: u32) {
    let runtime = TimeCost::exact(1, Provenance::Modelled);
    request.model.components[component].softcap = Some(Softcap { kind_without, runtime });
}

fn donor(request: &mut Request, reader: usize, donor: u32) {
    if let Body::Layers(layers) = &mut request.model.components[1].body {
        layers[reader].donor = Some(donor);
        layers[reader].writes_state = false;
    }
}

#[test]
fn every_fault_of_a_request_is_found_and_named() {
    request(4).validate().unwrap();
    for (position, (expected, change)) in CASES.iter().enumerate() {
        let mut request = request(4);
        change(&mut request);
        let fault = request.validate().expect_err(expected);
        assert_eq!(fault.kind(), ErrorKind::Planning);
        assert!(fault.place().is_some_and(|place| place.starts_with("request")), "{fault}");
        assert!(fault.to_string().contains(expected), "case {position}, {expected}: {fault}");
    }
}

/// The longest and the widest time that is accepted, and rows that need no time.
#[test]
fn extreme_times_are_accepted() {
    let mut request = request(4);
    for (low, likely, high) in
        [(0, 0, 0), (0, 1, caps::WIDTH), (caps::MICROSECONDS, caps::MICROSECONDS, caps::MICROSECONDS)]
    {
        row_time(&mut request, low, likely, high);
        request.validate().unwrap();
    }
    request.costs[0].legality = Legality::Illegal("not here".to_owned());
    for time in [None, Some(TimeCost::exact(1, Provenance::Modelled))] {
        request.costs[0].time = time;
        request.validate().unwrap();
    }
}

#[test]
fn a_request_file_with_an_unknown_field_is_refused() {
    let text = String::from_utf8(request(2).canonical_bytes()).unwrap();
    assert!(serde_json::from_str::<Request>(&text).is_ok());
    let unknown = text.replacen("\"model\"", "\"colour\":1,\"model\"", 1);
    assert!(serde_json::from_str::<Request>(&unknown).is_err());
    assert!(serde_json::from_str::<RecordedRequest>(&unknown).is_err());
    let twice = text.replacen("\"kinds\"", "\"kinds\":[],\"kinds\"", 1);
    assert!(serde_json::from_str::<RecordedRequest>(&twice).is_err());
}

#[test]
fn a_recorded_request_names_its_planner_and_need_not() {
    let request = request(2);
    let plain = request.canonical_bytes();
    let read = |bytes: &[u8]| serde_json::from_slice::<RecordedRequest>(bytes).unwrap();
    let unnamed = RecordedRequest { request: request.clone(), planner: None };
    assert_eq!(unnamed.canonical_bytes(), plain, "as earlier versions wrote it");
    assert_eq!(read(&plain), unnamed);
    let named = RecordedRequest { request, planner: Some("even".to_owned()) };
    let bytes = named.canonical_bytes();
    assert!(bytes.starts_with(&plain[..plain.len() - 1]) && bytes.ends_with(b",\"planner\":\"even\"}"));
    assert_eq!(read(&bytes), named);
}
