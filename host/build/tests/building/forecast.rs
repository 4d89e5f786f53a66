//! The demands of a plan on a device: the parts of each phase, the times of a token, the verdict.

use shardwright_build::{
    Download, DownloadBasis, EntryMenu, Figure, Fits, Forecast, Phase, PhaseMemory, Predicted,
    PrimitiveCount, Speed,
};
use shardwright_graph::Graph;
use shardwright_planning::plan::{Plan, PlannedSpeculation};
use shardwright_planning::request::{DraftEstimate, Request};
use shardwright_vocabulary::{Overhead, Provenance, TargetKind, TimeCost, overhead_names};

use crate::common::{DOWNLOAD, checked, fixture, offer, plan, request, weighed};

fn forecast(graph: &Graph, request: &Request, plan: Plan) -> Forecast {
    shardwright_build::forecast(request, &checked(request, plan), graph, &weighed(graph))
}

fn asked(graph: &Graph) -> Request {
    request(graph, &[offer("chip", PrimitiveCount::default())], &EntryMenu::usual(graph, 64))
}

fn phase(forecast: &Forecast, phase: Phase) -> &PhaseMemory {
    forecast.memory.iter().find(|memory| memory.phase == phase).unwrap()
}

fn part(memory: &PhaseMemory, name: &str) -> Figure {
    let found = memory.parts.iter().find(|part| part.name == name);
    found.unwrap_or_else(|| panic!("{}: no {name}: {memory:?}", memory.phase.name())).figure
}

#[test]
fn verifying_holds_its_rows_of_logits_and_the_draft() {
    let graph = fixture("gemma4_text");
    let mut request = asked(&graph);
    request.drafts = vec![DraftEstimate {
        name: "lookup".to_owned(),
        silent_steps: 1,
        accepted_steps: vec![1, 1],
        provenance: Provenance::Measured,
        token_time: TimeCost::ZERO,
        memory_bytes: 12_345,
        row_bytes: 0,
    }];
    let without = forecast(&graph, &request, plan(&request, &[6]));
    let mut verifying = plan(&request, &[6]);
    let speculation = PlannedSpeculation { draft: "lookup".to_owned(), rows: 4, gain_thousandths: None };
    verifying.speculation = Some(speculation);
    let with = forecast(&graph, &request, verifying);
    let (without, with) = (phase(&without, Phase::Decode), phase(&with, Phase::Decode));
    assert_eq!(part(with, "logits"), Figure::Counted { bytes: 4 * graph.vocabulary * 4 });
    let draft = Figure::Estimated { bytes: 12_345, provenance: Provenance::Modelled };
    assert_eq!(part(with, "draft lookup"), draft);
    assert_eq!(with.held_bytes - without.held_bytes, 3 * graph.vocabulary * 4 + 12_345);
    assert!(without.parts.iter().all(|part| !part.name.starts_with("draft")));
}

#[test]
fn each_phase_is_the_sum_of_its_named_parts() {
    let graph = fixture("gemma4_text");
    let request = asked(&graph);
    let costs = checked(&request, plan(&request, &[6]));
    let artefacts: u64 = costs.shards().iter().map(|shard| shard.cost.artefact_bytes).sum();
    let states: u64 = costs.shards().iter().map(|shard| shard.cost.state_bytes).sum();
    let forecast = forecast(&graph, &request, plan(&request, &[6]));
    assert_eq!(forecast.download, Some(Download { bytes: DOWNLOAD, rests_on: DownloadBasis::Headers }));

    let modelled = |bytes| Figure::Estimated { bytes, provenance: Provenance::Modelled };
    let decode = phase(&forecast, Phase::Decode);
    assert_eq!(part(decode, "artefacts"), modelled(artefacts));
    assert_eq!(part(decode, "KV cache"), Figure::Counted { bytes: states });
    assert_eq!(part(decode, "logits"), Figure::Counted { bytes: graph.vocabulary * 4 });
    for asset in &graph.assets {
        let mapped = Figure::Mapped { bytes: asset.table.bytes() };
        assert_eq!(part(decode, &format!("table {}", asset.name)), mapped);
    }
    assert_eq!(decode.unknown().collect::<Vec<_>>(), ["driver overhead"]);
    let Figure::Estimated { bytes: buffers, .. } = part(decode, "inputs and boundaries") else {
        panic!("{decode:?}")
    };
    // At least the residual stream between five shards at 64 rows, the per-layer inputs of ten
    // layers, and the logits of 16 rows.
    let values = 4 * 64 * graph.hidden + 64 * 10 * graph.per_layer_width + 16 * graph.vocabulary;
    assert!(buffers > values * 4 && buffers < values * 40, "{buffers}, {values} values");
    assert_eq!(decode.held_bytes, artefacts + states + buffers + graph.vocabulary * 4);
    assert_eq!(decode.provenance, Some(Provenance::Modelled));
    let tables: u64 = graph.assets.iter().map(|asset| asset.table.bytes()).sum();
    assert_eq!(decode.mapped_bytes, tables);

    let prefill = phase(&forecast, Phase::Prefill);
    assert_eq!(prefill.held_bytes, artefacts + states + buffers);
    let load = phase(&forecast, Phase::Load);
    assert_eq!((load.held_bytes, load.mapped_bytes), (artefacts, artefacts));

    // The formats are the stored ones, so compiling reads the checkpoint and writes files. The head
    // shares the embedding.
    let compile = phase(&forecast, Phase::Compile);
    assert_eq!((compile.held_bytes, compile.provenance), (0, None));
    let twice = graph.weights.iter().map(|weight| weight.bytes()).sum::<u64>() + tables;
    let head = graph.weights.iter().find(|weight| weight.part == "head").unwrap().bytes();
    assert_eq!(part(compile, "checkpoint"), Figure::Mapped { bytes: twice - head });
    assert!(compile.unknown().eq(["compiler overhead"]));

    let verdict = &forecast.verdict;
    assert_eq!((verdict.fits, verdict.largest), (Fits::Unknown, Some(Phase::Decode)));
    assert_eq!((verdict.held_bytes, verdict.mapped_bytes), (decode.held_bytes, tables));
    assert!(verdict.device_bytes.is_none() && verdict.elsewhere.is_empty() && !verdict.too_slow);
}

#[test]
fn weights_in_other_formats_are_held_while_they_are_compiled() {
    let graph = fixture("qwen3");
    let mut request = asked(&graph);
    // Activations that are rounded at run time convert no weight.
    request.formats = vec!["bf16/a8-dynamic-block32/f16".parse().unwrap()];
    let rounded = forecast(&graph, &request, plan(&request, &[]));
    assert_eq!(phase(&rounded, Phase::Compile).held_bytes, 0);
    request.formats = vec!["w8-per-channel".parse().unwrap()];
    let weights: u64 =
        checked(&request, plan(&request, &[])).shards().iter().map(|shard| shard.cost.weight_bytes).sum();
    let forecast = forecast(&graph, &request, plan(&request, &[]));
    let compile = phase(&forecast, Phase::Compile);
    assert_eq!(part(compile, "converted weights"), Figure::Counted { bytes: weights });
    assert_eq!(compile.held_bytes, weights);
    // A device that compiles needs no more for that than for loading.
    assert!(phase(&forecast, Phase::Load).held_bytes >= weights);
}

#[test]
fn the_times_of_tokens_are_those_of_the_entry_points_they_run() {
    let graph = fixture("gemma4_text");
    let mut request = asked(&graph);
    for row in &mut request.costs {
        let microseconds = if row.entry.rows == 64 { 50 } else { 1000 };
        let time = TimeCost::within(microseconds / 2, microseconds, 3 * microseconds, Provenance::Simulated);
        row.time = Some(time);
    }
    let timed = forecast(&graph, &request, plan(&request, &[]));
    // A decode is 13 kinds of 1 ms. A prompt of 64 is three prefills of 16 and one for the rest, of
    // 8 kinds each, and a decode. A step hands over four times. A prefill leaves out the head.
    let handing = 4 * 588_u64;
    let filling = 3 * 588_u64;
    let predicted = |low, computed: u64, high, handed: u64| {
        let (down, up) = (handed / 1000, handed.div_ceil(1000));
        let time = TimeCost::within(low + down, computed + up, high + up, Provenance::Simulated);
        Predicted::of(time, 0)
    };
    let each = predicted(6_500, 13_000, 39_000, handing);
    let expected = Speed::Tokens {
        prompt_tokens: 64,
        first: Some(predicted(22_500, 45_000, 135_000, 4 * filling + handing)),
        each,
        per_1000_seconds: Some(1_000_000_000 / each.microseconds),
    };
    assert_eq!(timed.speed, expected);

    // The forecast reports operations that are estimated by share: an operation of each of eight
    // kinds of a prefill.
    for row in request.costs.iter_mut().filter(|row| row.entry.to_string() == "prefill_16@64") {
        row.uncosted_ops = 1;
    }
    let partial = forecast(&graph, &request, plan(&request, &[]));
    let Speed::Tokens { first: Some(first), each, .. } = partial.speed else { panic!("{:?}", partial.speed) };
    assert_eq!((first.uncosted_ops, each.uncosted_ops), (8, 0));
}

#[test]
fn loading_takes_what_each_shard_and_each_byte_of_it_takes() {
    let graph = fixture("gemma4_text");
    let mut request = asked(&graph);
    let loading = |request: &Request| forecast(&graph, request, plan(request, &[6])).loading;
    assert_eq!(loading(&request), None);
    let overhead = |name: &str, value, provenance| Overhead {
        name: name.to_owned(),
        low: None,
        value,
        high: None,
        provenance,
        note: String::new(),
    };
    // The fixed part alone is not enough for the whole.
    let fixed = overhead(overhead_names::LOAD, 7, Provenance::Reported);
    request.targets[0].overheads = vec![fixed.clone()];
    assert_eq!(loading(&request), None);
    let rate = overhead(overhead_names::LOAD_PER_MEBIBYTE, 1 << 20, Provenance::Measured);
    request.targets[0].overheads = vec![rate.clone()];
    let artefacts: u64 =
        checked(&request, plan(&request, &[6])).shards().iter().map(|shard| shard.cost.artefact_bytes).sum();
    let of = |microseconds, provenance| Some(Predicted::of(TimeCost::exact(microseconds, provenance), 0));
    assert_eq!(loading(&request), of(artefacts, Provenance::Measured));
    request.targets[0].overheads = vec![fixed, rate];
    assert_eq!(loading(&request), of(artefacts + 5 * 7, Provenance::Reported));
    request.targets[0].overheads[0].high = Some(20);
    let slowest = loading(&request).map(|time| time.high);
    assert_eq!(slowest, Some(artefacts + 5 * 20));
}

#[test]
fn a_model_that_embeds_has_one_time_and_one_phase_of_running() {
    let graph = fixture("embeddinggemma");
    let mut request = asked(&graph);
    for row in &mut request.costs {
        row.time = Some(TimeCost::exact(10, Provenance::Measured));
    }
    let forecast = forecast(&graph, &request, plan(&request, &[]));
    let Speed::Vector { tokens: 64, each: time } = forecast.speed else { panic!("{:?}", forecast.speed) };
    assert_eq!(time.provenance, Provenance::Measured);
    let phases: Vec<_> = forecast.memory.iter().map(|memory| memory.phase).collect();
    assert_eq!(phases, [Phase::Compile, Phase::Load, Phase::Encode]);
    assert!(phase(&forecast, Phase::Encode).parts.iter().all(|part| part.name != "KV cache"));
}

#[test]
fn a_verdict_says_what_runs_elsewhere_and_what_exceeds_the_memory_of_the_device() {
    let graph = fixture("qwen3");
    let mut offers = [offer("chip", PrimitiveCount::default()), offer("cpu", PrimitiveCount::default())];
    offers[0].summary.device_memory = Some(1 << 40);
    offers[1].summary.target.kind = TargetKind::Cpu;
    let mut request = request(&graph, &offers, &EntryMenu::usual(&graph, 64));
    let mut cut = plan(&request, &[]);
    cut.shards.last_mut().unwrap().target = 1;
    let split = forecast(&graph, &request, cut.clone());
    assert_eq!(split.verdict.fits, Fits::InPart);
    assert_eq!(split.verdict.elsewhere, [("head".to_owned(), "cpu".to_owned())]);
    assert_eq!(split.verdict.device_bytes, Some(1 << 40));
    // The head's input is written on another target than the head's, so it is copied.
    let buffers = |forecast: &Forecast| match part(phase(forecast, Phase::Decode), "inputs and boundaries") {
        Figure::Estimated { bytes, .. } => bytes,
        other => panic!("{other:?}"),
    };
    let whole = forecast(&graph, &request, plan(&request, &[]));
    assert_eq!(whole.verdict.fits, Fits::Whole);
    assert!(buffers(&split) >= buffers(&whole) + 16 * graph.hidden * 4);

    // The plan is within the goal, which does not bound buffers and logits.
    let shards = checked(&request, plan(&request, &[]));
    let planned: u64 = shards.shards().iter().map(|shard| shard.cost.context_bytes()).sum();
    request.goals.memory_bytes = Some(planned);
    let bounded = forecast(&graph, &request, plan(&request, &[])).verdict;
    assert_eq!((bounded.fits, bounded.asked_bytes), (Fits::Whole, Some(planned)));
    assert!(bounded.held_bytes > planned, "{bounded:?}");
    // The device bounds them.
    request.targets[0].device_memory = Some(whole.verdict.held_bytes - 1);
    assert_eq!(forecast(&graph, &request, plan(&request, &[])).verdict.fits, Fits::No);
    request.targets[0].device_memory = None;
    assert_eq!(forecast(&graph, &request, plan(&request, &[])).verdict.fits, Fits::Unknown);
}
