//! Makes checkpoints, requests and plans without a planner.

use std::path::{Path, PathBuf};

use shardwright_build::{
    Download, DownloadBasis, EntryMenu, Judge, Making, ModelFormats, ModelName, Question, TargetOffer,
    Weighed, make_request, stored_formats,
};
use shardwright_graph::Graph;
use shardwright_models::Checkpoint;
use shardwright_planning::check::{CheckedPlan, check};
use shardwright_planning::plan::{Boundary, BuildTime, Plan, PlannedSegment, Shard};
use shardwright_planning::request::{Goals, PrefillPart, Request, TargetSummary};
use shardwright_test_checkpoints::Spec;
use shardwright_vocabulary::{
    EntryKind, EntryName, Result as Answer, SoftcapPlace, Target, TargetKind, Watch,
};

/// The committed fixtures that generate text.
pub const TEXT_FIXTURES: [&str; 7] =
    ["gemma3_text", "gemma4_text", "gemma4_mm", "llama3", "ministral", "qwen2", "qwen3"];

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Returns the graph of a committed fixture.
pub fn fixture(name: &str) -> Graph {
    let checkpoint = Checkpoint::open(root().join("tests/fixtures").join(name));
    checkpoint.unwrap_or_else(|error| panic!("{name}: {error}")).into_graph()
}

/// Returns the graph of a generated checkpoint.
pub fn made(spec: &Spec) -> Graph {
    let folder = tempfile::tempdir().unwrap();
    spec.write(folder.path()).unwrap();
    // Mapped files stay readable after they are deleted.
    Checkpoint::open(folder.path()).unwrap_or_else(|error| panic!("{spec:?}: {error}")).into_graph()
}

/// Returns a target with a judge, without limits and flags.
pub fn offer(name: &str, judge: impl Judge + 'static) -> TargetOffer {
    let target = Target {
        name: name.to_owned(),
        shim: name.to_owned(),
        device: "cpu".to_owned(),
        kind: TargetKind::Npu,
    };
    TargetOffer::new(TargetSummary::of(target), Box::new(judge))
}

pub fn try_request(graph: &Graph, offers: &[TargetOffer], menu: &EntryMenu) -> Answer<Request> {
    watched_request(graph, offers, menu, &mut ())
}

/// Returns the request, and reports progress to `watch`.
pub fn watched_request(
    graph: &Graph,
    offers: &[TargetOffer],
    menu: &EntryMenu,
    watch: &mut dyn Watch,
) -> Answer<Request> {
    let model = ModelName { name: "a model".to_owned(), family: "a family".to_owned(), towers: Vec::new() };
    let goals = Goals {
        quality_micronats: None,
        least_loss: false,
        memory_bytes: None,
        context: if graph.is_generative() { menu.context } else { 0 },
        max_prefill_rows: menu.largest_rows(),
        size_bytes: None,
        token_microseconds: None,
        first_token_microseconds: None,
        prompt_tokens: 0,
        answer_tokens: 0,
    };
    let question =
        Question { model: &model, menu, goals, prompts: Vec::new(), drafts: Vec::new(), options: Vec::new() };
    make_request(graph, offers, &ModelFormats::stored(graph), question, watch)
}

/// Returns the request after checking that it is valid.
pub fn request(graph: &Graph, offers: &[TargetOffer], menu: &EntryMenu) -> Request {
    let request = try_request(graph, offers, menu).unwrap();
    request.validate().unwrap_or_else(|fault| panic!("{}: {fault}", graph.name));
    request
}

/// Returns the plan that cuts the decoder before these layers, all on the first target.
pub fn plan(request: &Request, cuts: &[u32]) -> Plan {
    let mut shards = Vec::new();
    for (index, component) in request.model.components.iter().enumerate() {
        let layers = component.layer_count();
        let ends = if layers == 0 { vec![0] } else { cuts.iter().copied().chain([layers]).collect() };
        let mut first = 0;
        for end in ends {
            shards.push(shard(request, index, first, end));
            first = end;
        }
    }
    Plan {
        shards,
        tables: vec![0; request.tables.len()],
        fallback: Vec::new(),
        speculation: None,
        reasons: Vec::new(),
        lessons: Vec::new(),
    }
}

fn shard(request: &Request, index: usize, first: u32, end: u32) -> Shard {
    let component = &request.model.components[index];
    let kinds = component.kinds(first, end).unwrap_or_default();
    let prefills = kinds.iter().any(|&kind| request.kinds[kind as usize].prefill != PrefillPart::None);
    let takes = |entry: &&EntryName| prefills || entry.kind != EntryKind::Prefill;
    let plain =
        |names: &[String]| names.iter().map(|name| Boundary { name: name.clone(), encoding: None }).collect();
    Shard {
        segments: vec![PlannedSegment {
            component: index as u32,
            first,
            end,
            formats: vec![0; (end - first).max(1) as usize],
        }],
        target: 0,
        context: request.goals.context,
        entries: request.entries.iter().filter(takes).copied().collect(),
        inputs: plain(&component.inputs),
        outputs: plain(&component.outputs),
        softcap: component.softcap.is_some().then_some(SoftcapPlace::Graph),
        flags: Vec::new(),
        build: BuildTime::Ahead,
    }
}

/// Checks the plan against its request.
pub fn checked(request: &Request, plan: Plan) -> CheckedPlan {
    check(plan, request).unwrap_or_else(|fault| panic!("{fault}"))
}

/// Bytes of the download of [`weighed`].
pub const DOWNLOAD: u64 = 1_234_567;

/// Returns the properties for a forecast of a graph whose tables stay as stored.
pub fn weighed(graph: &Graph) -> Weighed {
    let download = Download { bytes: DOWNLOAD, rests_on: DownloadBasis::Headers };
    Weighed::of(graph, stored_formats(graph), Making::InMemory, Some(download))
}
