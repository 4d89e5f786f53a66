//! Helpers shared by the tests of this crate: requests, and planners built from source.

#![allow(dead_code, reason = "each test program uses a part of it")]

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

use shardwright_planning::request::{
    Body, Component, Goals, Layer, LayerKind, ModelSummary, PlannerOption, PrefillPart, Request,
    TargetSummary,
};
use shardwright_vocabulary::{
    CostRow, EntryName, FormatTuple, Legality, Limit, Provenance, Target, TargetKind, TimeCost,
};

/// Creates a request with a decoder of `layers` layers between `embed` and `head`, on an NPU and a
/// CPU that support all layers as 32-bit float. A layer has 100 operations (60 in prefill) and 1000
/// weight bytes. Times on the CPU are equal but less certain, so that planners prefer the NPU.
pub fn request(layers: u32) -> Request {
    let prefill: EntryName = "prefill_64@512".parse().unwrap();
    let decode: EntryName = "decode_1@512".parse().unwrap();
    let component = |name: &str, body, inputs: &[&str], outputs: &[&str]| Component {
        name: name.to_owned(),
        body,
        softcap: None,
        inputs: inputs.iter().map(|&name| name.to_owned()).collect(),
        outputs: outputs.iter().map(|&name| name.to_owned()).collect(),
    };
    let kind = |name: &str, prefill| LayerKind { name: name.to_owned(), prefill };
    let target = |name: &str, kind| TargetSummary {
        target: Target { name: name.to_owned(), shim: format!("{name}-shim"), device: "0".to_owned(), kind },
        limits: vec![],
        overheads: vec![],
        facts: vec![],
        schema: vec![],
        recommended: vec![],
        device_memory: None,
    };
    let layer = |_| Layer { kind: 2, donor: None, writes_state: true };
    let mut costs = vec![];
    let certain = TimeCost::exact(10, Provenance::Modelled);
    for (target, time) in [(0, certain), (1, TimeCost { low: 5, high: 20, ..certain })] {
        for (kind, entry, ops, weight_bytes, state_bytes) in [
            (0, prefill, 1, 10, 0),
            (0, decode, 1, 10, 0),
            (1, decode, 2, 4000, 0),
            (2, prefill, 60, 1000, 50),
            (2, decode, 100, 1000, 50),
        ] {
            costs.push(CostRow {
                kind,
                target,
                formats: 0,
                entry,
                ops,
                weight_bytes,
                artefact_bytes: 10,
                artefact_provenance: Provenance::Modelled,
                state_bytes,
                legality: Legality::Legal,
                time: Some(time),
                uncosted_ops: 0,
            });
        }
    }
    Request {
        model: ModelSummary {
            name: "sample".to_owned(),
            family: "sample".to_owned(),
            hidden: 8,
            max_context: 4096,
            heads: 0,
            towers: vec![],
            components: vec![
                component("embed", Body::Whole(0), &[], &["hidden"]),
                component(
                    "decoder",
                    Body::Layers((0..layers).map(layer).collect()),
                    &["hidden"],
                    &["hidden"],
                ),
                component("head", Body::Whole(1), &["hidden"], &["logits"]),
            ],
        },
        kinds: vec![
            kind("embed", PrefillPart::Full),
            kind("head", PrefillPart::None),
            kind("layer", PrefillPart::Full),
        ],
        targets: vec![target("npu", TargetKind::Npu), target("cpu", TargetKind::Cpu)],
        formats: vec![FormatTuple::F32],
        usual_formats: vec![],
        entries: vec![prefill, decode],
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
        drafts: vec![],
        options: vec![],
    }
}

/// Adds an option to the request.
pub fn with_option(mut request: Request, name: &str, value: &str) -> Request {
    request.options.push(PlannerOption { name: name.to_owned(), value: value.to_owned() });
    request
}

/// Adds a limit to the first target of the request.
pub fn with_limit(mut request: Request, name: &str, value: u64) -> Request {
    request.targets[0].limits.push(Limit::new(name, value, Provenance::Reported));
    request
}

/// Sets a time for every row of the request: `npu` and `cpu` microseconds.
pub fn with_times(mut request: Request, npu: u64, cpu: u64) -> Request {
    for row in &mut request.costs {
        let microseconds = if row.target == 0 { npu } else { cpu };
        row.time = Some(TimeCost::exact(microseconds, Provenance::Simulated));
    }
    request
}

/// Returns the layer ranges of the decoder's shards.
pub fn cuts(plan: &shardwright_planning::plan::Plan) -> Vec<(u32, u32)> {
    let segments = plan.shards.iter().flat_map(|shard| &shard.segments);
    segments.filter(|segment| segment.component == 1).map(|segment| (segment.first, segment.end)).collect()
}

pub fn workspace() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Builds a planner of this workspace as a component, once for all test programs.
fn planner(manifest: &str) -> Vec<u8> {
    // Next to the profiles of the surrounding build, where `cargo xtask build` puts its planners.
    let planners = Path::new(env!("CARGO_TARGET_TMPDIR")).parent().unwrap().join("planners");
    match shardwright_planner_build::build(&workspace().join(manifest), &planners) {
        Ok(component) => component,
        Err(error) => panic!("{error}; help: {:?}", error.help()),
    }
}

/// Returns the planner that misbehaves.
pub fn hostile() -> &'static [u8] {
    static WASM: OnceLock<Vec<u8>> = OnceLock::new();
    WASM.get_or_init(|| planner("host/planning/tests/guests/hostile/Cargo.toml"))
}

/// Returns the built-in planner, built from source.
pub fn generic() -> &'static [u8] {
    static WASM: OnceLock<Vec<u8>> = OnceLock::new();
    WASM.get_or_init(|| planner("plugins/generic/Cargo.toml"))
}

/// Returns the planner for MediaTek's chips, built from source.
pub fn mediatek() -> &'static [u8] {
    static WASM: OnceLock<Vec<u8>> = OnceLock::new();
    WASM.get_or_init(|| planner("plugins/mediatek/Cargo.toml"))
}

/// Returns the planner for Qualcomm's chips, built from source.
pub fn qualcomm() -> &'static [u8] {
    static WASM: OnceLock<Vec<u8>> = OnceLock::new();
    WASM.get_or_init(|| planner("plugins/qualcomm/Cargo.toml"))
}

/// Returns the example planner.
pub fn even() -> &'static [u8] {
    static WASM: OnceLock<Vec<u8>> = OnceLock::new();
    WASM.get_or_init(|| planner("plugins/example-even/Cargo.toml"))
}

/// Returns the example policy, which authors can copy.
pub fn policy() -> &'static [u8] {
    static WASM: OnceLock<Vec<u8>> = OnceLock::new();
    WASM.get_or_init(|| planner("plugins/example-policy/Cargo.toml"))
}

/// Returns a cache that all test programs share, so that each planner is compiled once.
#[cfg(feature = "compiler")]
pub fn cache() -> shardwright_planning::sandbox::CompiledCache {
    shardwright_planning::sandbox::CompiledCache::new(
        Path::new(env!("CARGO_TARGET_TMPDIR")).join("compiled-planners"),
    )
}
