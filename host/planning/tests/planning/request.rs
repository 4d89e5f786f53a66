//! Invalid requests, each refused with a message that names the place.

use shardwright_planning::request::{
    Body, BoundaryRange, DraftEstimate, GatheredTable, PlannerOption, Request, RequestFault, Sensitivity,
    Softcap, TableFormat, TargetFact, ValueSensitivity, caps,
};
use shardwright_vocabulary::{
    Flag, FlagSchema, FlagStage, FlagType, Overhead, Provenance, StateFormat, TimeCost, ValueFormat,
    WeightFormat, WeightRole,
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
        token_microseconds: 0,
        memory_bytes: 0,
        row_bytes: 0,
    }
}

type Change = fn(&mut Request);

const CASES: &[(&str, Change)] = &[
    ("TooMany", |request| request.costs = vec![request.costs[0].clone(); caps::COSTS + 1]),
    ("TooMany", |request| {
        if let Body::Layers(layers) = &mut request.model.components[1].body {
            *layers = vec![layers[0].clone(); caps::LAYERS + 1];
        }
    }),
    ("TooMany", |request| request.tables = vec![table("same", 1); caps::TABLES + 1]),
    ("TooMany", |request| request.tables = vec![table("one", caps::TABLE_FORMATS + 1)]),
    ("TooMany", |request| {
        request.drafts = (0..=caps::DRAFTS).map(|index| draft(&index.to_string(), 1)).collect();
    }),
    ("TooMany", |request| request.drafts = vec![draft("long", caps::ACCEPTED + 1)]),
    ("Repeated", |request| request.drafts = vec![draft("same", 1); 2]),
    ("Empty", |request| request.tables = vec![table("one", 0)]),
    ("Index", |request| request.value_sensitivities = vec![values(3, 0)]),
    ("Index", |request| request.value_sensitivities = vec![values(1, 4)]),
    ("Repeated", |request| request.value_sensitivities = vec![values(1, 0); 2]),
    ("Repeated", |request| request.tables = vec![table("same", 1); 2]),
    ("Repeated", |request| request.tables = vec![table("one", 2)]),
    ("Empty", |request| request.targets.clear()),
    ("Empty", |request| request.costs.clear()),
    ("Empty", |request| request.model.components[1].body = Body::Layers(vec![])),
    ("Index", |request| request.model.components[0].body = Body::Whole(99)),
    ("Index", |request| {
        if let Body::Layers(layers) = &mut request.model.components[1].body {
            layers[2].kind = 99;
        }
    }),
    ("Index", |request| request.costs[0].kind = 3),
    ("Index", |request| request.costs[0].target = 2),
    ("Index", |request| request.costs[0].formats = 1),
    ("Index", |request| request.sensitivities = vec![sensitivity(3, 0)]),
    ("Index", |request| request.sensitivities = vec![sensitivity(1, 4)]),
    ("Repeated", |request| request.model.components[2].name = "embed".to_owned()),
    ("UnknownComponent", |request| request.model.components[2].name = "tail".to_owned()),
    ("Repeated", |request| request.model.components[1].inputs = vec!["hidden".to_owned(); 2]),
    ("Repeated", |request| request.targets[1].target.name = "npu".to_owned()),
    ("Repeated", |request| request.entries.push(request.entries[0])),
    ("Repeated", |request| request.costs.push(request.costs[0].clone())),
    ("Repeated", |request| request.sensitivities = vec![sensitivity(1, 0); 2]),
    ("Repeated", |request| {
        let overhead = Overhead {
            name: "call-microseconds".to_owned(),
            value: 1,
            provenance: Provenance::Reported,
            note: String::new(),
        };
        request.targets[0].overheads = vec![overhead; 2];
    }),
    ("Repeated", |request| request.targets[0].facts = vec![fact("soc-id"); 2]),
    ("TooMany", |request| {
        request.targets[0].facts = (0..=caps::KNOWN).map(|index| fact(&index.to_string())).collect();
    }),
    ("Repeated", |request| request.ranges = vec![range(1, 2, -1.0, 1.0); 2]),
    ("Index", |request| request.ranges = vec![range(1, 4, -1.0, 1.0)]),
    ("Index", |request| request.ranges = vec![range(9, 0, -1.0, 1.0)]),
    ("Range", |request| request.ranges = vec![range(1, 2, 1.0, -1.0)]),
    ("Range", |request| request.ranges = vec![range(1, 2, f32::NAN, 1.0)]),
    ("Range", |request| request.ranges = vec![range(1, 2, 0.0, f32::INFINITY)]),
    ("Repeated", |request| {
        request.options = vec![PlannerOption { name: "balance".to_owned(), value: String::new() }; 2];
    }),
    ("Donor", |request| donor(request, 1, 1)),
    ("Donor", |request| donor(request, 1, 3)),
    ("Donor", |request| {
        donor(request, 1, 0);
        donor(request, 2, 1);
    }),
    ("Index", |request| softcap(request, 2, 9)),
    ("Softcap", |request| softcap(request, 1, 0)),
    ("Softcap", |request| softcap(request, 2, 1)),
    ("Entries", |request| request.entries.push("encode_8".parse().unwrap())),
    ("Entries", |request| request.model.max_context = 0),
    ("Entries", |request| request.model.max_context = 256),
    ("Entries", |request| request.entries.retain(|entry| entry.rows > 1)),
    ("Entries", |request| request.costs[0].entry = "decode_7@512".parse().unwrap()),
    ("Flag", |request| request.targets[0].recommended = vec![flag("opt", "3")]),
    ("Flag", |request| {
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
    let runtime = TimeCost { microseconds: 1, provenance: Provenance::Modelled };
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
        let fault: RequestFault = request.validate().expect_err(expected);
        let name = format!("{fault:?}");
        assert_eq!(name.split([' ', '{']).next(), Some(*expected), "case {position}: {fault}");
    }
}

#[test]
fn a_request_file_with_an_unknown_field_is_refused() {
    let text = String::from_utf8(request(2).canonical_bytes()).unwrap();
    assert!(serde_json::from_str::<Request>(&text).is_ok());
    let unknown = text.replacen("\"model\"", "\"colour\":1,\"model\"", 1);
    assert!(serde_json::from_str::<Request>(&unknown).is_err());
}
