//! Gemma 4 at its real shapes through Qualcomm's compiler: sizes, compile times, peak memory, and
//! the times that a plan predicts, compared with simulated times of each whole shard.
//!
//! ```text
//! cargo bench -p shardwright-tests --bench qnn_shapes -- [e2b|e4b|toy …] [--formats w4] [--pieces 0] [--soc sm8850] [--context 512] [--prompt 65]
//! ```
//!
//! The plan is made from the checkpoint's shapes. Either the built-in planner joins components in
//! as few shards as fit (0 pieces), or the decoder has a number of shards. A plan adds up the
//! estimates of single layers. The last columns show whether the sum is right for the whole shard.
//! Weights are random numbers generated on the fly, one shard at a time: the compiler's work and
//! the artefact's size do not depend on their values, as long as no two are equal. Each shard is
//! compiled in a worker that a child process of this program starts. Its peak memory is the
//! worker's.

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use shardwright::{FormatChoice, OpenOptions};
use shardwright_build::{PlanReport, ShardReport};
use shardwright_graph::{
    ComponentKind, ConstantFormat, Encodings, EntryOptions, EntryPoint, Graph, Segments, Weight, WeightData,
    legalise_encoded,
};
use shardwright_models::Checkpoint;
use shardwright_shims::{ArtefactDestination, ShimRegistry, WorkOrderBuilder};
use shardwright_test_checkpoints::Spec;
use shardwright_tests::{profiles, program};
use shardwright_vocabulary::{DType, EntryKind, EntryName, FormatTuple};
use shardwright_worker::{Caps, Launcher};

/// The cases: the model, its formats, and the number of decoder shards, or 0 to join components.
const CASES: [(&str, &str, u32); 12] = [
    ("e2b", "w4-per-channel[head=w8-per-channel]/a16/a8", 0),
    ("e2b", "w8-per-channel/a16/a8", 0),
    ("e2b", MIX, 0),
    ("e2b", "w4-block32-stepped[head=w8-per-channel]/a16/a8", 0),
    ("e2b", "w8-per-channel/a16/a8", 1),
    ("e2b", "w8-per-channel/a16/a8", 2),
    ("e2b", "w4-per-channel[head=w8-per-channel]/a16/a8", 1),
    ("e2b", "w4-per-channel[head=w8-per-channel]/a16/a8", 2),
    ("e2b", MIX, 1),
    ("e2b", MIX, 2),
    ("e4b", "w8-per-channel/a16/a8", 3),
    ("e4b", "w4-per-channel[head=w8-per-channel]/a16/a8", 3),
];

/// Two bits for most of the bytes, four for the rest, and eight in the head.
const MIX: &str =
    "w4-per-channel[mlp-input=w2-per-channel][mlp-output=w2-per-channel][head=w8-per-channel]/a16/a8";

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    if let [word, task] = &arguments[..]
        && word == "shard"
    {
        return compile_one(&serde_json::from_str(task).expect("a task of our own"));
    }
    let option = |name: &str, default: &str| {
        let place = arguments.iter().position(|word| word == name);
        place.and_then(|place| arguments.get(place + 1)).cloned().unwrap_or_else(|| default.to_owned())
    };
    let soc = option("--soc", "sm8850");
    // Prefix of the formats to run.
    let begins = option("--formats", "");
    let context: u32 = option("--context", "512").parse().expect("a number");
    // Tokens of a usual prompt, for which prefill entry points are chosen. 0 chooses the largest.
    let prompt: u32 = option("--prompt", "0").parse().expect("a number");
    let only: Option<u32> = match option("--pieces", "").as_str() {
        "" => None,
        pieces => Some(pieces.parse().expect("a number")),
    };
    let asked: Vec<&String> =
        arguments.iter().filter(|word| ["e2b", "e4b", "toy"].contains(&word.as_str())).collect();

    println!(
        "| model | formats | shard | entry points | operations | weights | artefact | compile | peak memory | times: predicted, simulated whole |"
    );
    println!("|---|---|---|---|---|---|---|---|---|---|");
    let toy = ("toy", "w8-per-channel/a16/a8", 2);
    for (model, formats, pieces) in CASES.into_iter().chain([toy]) {
        let wanted = match asked.is_empty() {
            true => model != "toy",
            false => asked.iter().any(|word| *word == model),
        };
        if wanted && formats.starts_with(&begins) && only.is_none_or(|only| only == pieces) {
            case((model, formats, pieces), &soc, context, prompt);
        }
    }
}

/// Writes the checkpoint's shapes into a folder, which needs no disk space for weights.
fn checkpoint(model: &str, folder: &Path) -> Graph {
    let spec = match model {
        "e2b" => Spec::e2b(),
        "e4b" => Spec::e4b(),
        // For testing this program.
        _ => Spec { vocabulary: 4096, hidden: 512, context: 4096, ..Spec::gemma4() },
    };
    spec.write(folder).expect("written");
    Checkpoint::open(folder).expect("a checkpoint").into_graph()
}

fn case((model, formats, pieces): (&str, &str, u32), soc: &str, context: u32, prompt: u32) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    checkpoint(model, folder.path());
    let choice: FormatChoice = formats.parse().expect("formats");
    let options = OpenOptions::new().search_path(program::search_path()).soc(soc).formats(choice);
    let options = match pieces {
        0 => options,
        pieces => options.planner("even").planner_option("pieces", pieces.to_string()),
    };
    let options = if prompt > 0 { options.prompt_tokens(prompt) } else { options };
    let planned = options
        .strict(true)
        // Shards that are too large to load according to reports are compiled here too.
        .limit("artefact-bytes", 4_000_000_000)
        .context(context)
        .plan(folder.path())
        .expect("the plan");
    let plan = planned.report;
    let mut total = (0, 0, 0, 0);
    let of_interest = |shard: &&ShardReport| {
        shard.segments.has(ComponentKind::Decoder) || shard.segments.has(ComponentKind::Head)
    };
    for shard in plan.shards.iter().filter(of_interest) {
        let name = shard.segments.to_string();
        let measured = compile_in_child(model, soc, &plan, shard.index);
        let mut times = Vec::new();
        for (part, whole) in shard.entries.iter().zip(measured["times"].as_array().expect("times")) {
            let (whole, predicted) = (whole.as_u64(), part.time.microseconds);
            let shown = |time: Option<u64>| time.map_or("?".to_owned(), milliseconds);
            let off = whole.map_or(String::new(), |whole| {
                format!(" ({:+.1} %)", 100.0 * (predicted as f64 / whole as f64 - 1.0))
            });
            times.push(format!("{}: {}, {}{off}", part.entry, milliseconds(predicted), shown(whole)));
            let sums = if is_decode(part.entry) { (&mut total.1, &mut total.2) } else { continue };
            *sums.0 += predicted;
            *sums.1 += whole.unwrap_or(0);
        }
        total.3 += 1;
        let bytes = measured["bytes"].as_u64().expect("a number");
        total.0 += bytes;
        let entries: Vec<String> = shard.entries.iter().map(|entry| entry.entry.to_string()).collect();
        println!(
            "| {model} | {} | {name} | {} | {} | {} | {} | {:.1} s | {:.2} GB | {} |",
            shard.formats,
            entries.join(", "),
            shard.ops,
            gigabytes(shard.weight_bytes),
            gigabytes(bytes),
            measured["seconds"].as_f64().expect("a number"),
            measured["peak"].as_u64().expect("a number") as f64 / 1e9,
            times.join("; "),
        );
    }
    println!(
        "| {model} | {formats} | {} of {} shards | | | | {} | | | decode_1: {}, {} ({:+.1} %) |",
        total.3,
        plan.shards.len(),
        gigabytes(total.0),
        milliseconds(total.1),
        milliseconds(total.2),
        100.0 * (total.1 as f64 / total.2.max(1) as f64 - 1.0),
    );
}

fn is_decode(entry: EntryName) -> bool {
    entry.kind == EntryKind::Decode && entry.rows == 1
}

fn milliseconds(microseconds: u64) -> String {
    format!("{:.2} ms", microseconds as f64 / 1e3)
}

fn gigabytes(bytes: u64) -> String {
    format!("{:.3} GB", bytes as f64 / 1e9)
}

fn compile_in_child(model: &str, soc: &str, plan: &PlanReport, index: usize) -> Value {
    let shard = &plan.shards[index];
    let largest = plan.shards.iter().flat_map(|shard| &shard.entries).map(|entry| entry.entry.rows).max();
    let task = json!({
        "model": model,
        "soc": soc,
        "segments": shard.segments,
        "formats": shard.formats,
        "entries": shard.entries.iter().map(|entry| entry.entry).collect::<Vec<_>>(),
        "largest": largest,
    });
    let program = std::env::current_exe().expect("this program");
    let output = Command::new(program)
        .args(["shard", &task.to_string()])
        .stderr(Stdio::inherit())
        .output()
        .expect("this program starts");
    assert!(output.status.success(), "shard {index} of {model}: {}", output.status);
    serde_json::from_slice(&output.stdout).expect("what this program prints")
}

/// Compiles one shard and prints its time and memory.
fn compile_one(task: &Value) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let graph = checkpoint(task["model"].as_str().expect("a model"), folder.path());
    let soc = task["soc"].as_str().expect("a chip");
    let of = |name: &str| task[name].clone();
    let formats: FormatTuple = task["formats"].as_str().expect("formats").parse().expect("formats");
    let segments: Segments = serde_json::from_value(of("segments")).expect("segments");
    let entries: Vec<EntryName> = serde_json::from_value(of("entries")).expect("entry points");
    let largest: u32 = serde_json::from_value(of("largest")).expect("rows");

    let mut planned = graph.planned(&formats).expect("a planned model");
    let wanted = graph.constant_formats(&formats);
    let instances: Vec<_> = entries
        .iter()
        .filter_map(|entry| {
            let point = EntryPoint::of(*entry, largest);
            planned.entry_of(&segments, point, EntryOptions::default()).expect("an entry point")
        })
        .collect();
    let mut read: Vec<_> = instances.iter().flat_map(|entry| entry.constants()).map(|(_, id)| id).collect();
    read.sort_unstable();
    read.dedup();
    for id in read {
        let index = id.0 as usize;
        if wanted[index] != ConstantFormat::Stored {
            fill(&mut planned.weights[index], index as u64);
        }
    }

    let beside = program::folder();
    let isolation = Launcher { worker: beside.join("shardwright-worker"), caps: Caps::default() };
    let registry =
        ShimRegistry::builder().isolated(isolation.clone()).directory(beside.join("shims")).build();
    let instance = registry.open_isolated("qnn", "qnn", &[], &isolation).expect("the Qualcomm shim");
    instance.know(&profiles::chip(soc.trim_end_matches(".simulated"))).expect("a profile");
    let mut order = WorkOrderBuilder::new(&planned.weights);
    let mut times = Vec::new();
    for entry in &instances {
        let check = |shown: &_| instance.check(soc, shown, &planned.weights);
        let legal = legalise_encoded(entry, &Encodings::counting(&formats), check).expect("legal");
        // Estimate first: the work order moves the weights from memory to a file.
        let estimate = instance.estimate(soc, &legal.graph, &planned.weights).expect("an estimate");
        times.push(estimate.map(|estimate| estimate.time_microseconds));
        order = order.entry(&legal.graph).expect("an order");
    }
    let order = order.temporary().expect("an order");
    // The order's file now contains all data to compile.
    drop(planned);

    let (peak, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
    let watcher = std::thread::spawn({
        let (peak, stop) = (Arc::clone(&peak), Arc::clone(&stop));
        move || {
            while !stop.load(Ordering::Relaxed) {
                peak.fetch_max(peak_of_children(), Ordering::Relaxed);
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    });
    let started = Instant::now();
    let artefact = instance.compile(soc, &order, ArtefactDestination::Temporary, &mut ()).expect("compiled");
    let seconds = started.elapsed().as_secs_f64();
    // Measured once more before the worker ends.
    peak.fetch_max(peak_of_children(), Ordering::Relaxed);
    stop.store(true, Ordering::Relaxed);
    watcher.join().expect("the watcher ends");
    let peak = peak.load(Ordering::Relaxed);
    println!(
        "{}",
        json!({ "bytes": artefact.payload().len(), "seconds": seconds, "peak": peak, "times": times })
    );
}

/// Returns the peak resident memory of any child of this process, in bytes. Mapped pages of the
/// work order count.
fn peak_of_children() -> u64 {
    let this = format!("{}", std::process::id());
    let Ok(processes) = std::fs::read_dir("/proc") else { return 0 };
    let of = |status: &str, field: &str| {
        let line = status.lines().find(|line| line.starts_with(field))?;
        line.split_whitespace().nth(1).map(str::to_owned)
    };
    let statuses =
        processes.flatten().filter_map(|entry| std::fs::read_to_string(entry.path().join("status")).ok());
    statuses
        .filter(|status| of(status, "PPid:").as_deref() == Some(&this))
        .filter_map(|status| of(&status, "VmHWM:")?.parse::<u64>().ok())
        .map(|kibibytes| kibibytes * 1024)
        .max()
        .unwrap_or(0)
}

/// Fills a planned weight with random values, and with scales like a random matrix's.
fn fill(weight: &mut Weight, seed: u64) {
    let length = weight.data.length();
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
    let mut next = || {
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        mixed ^ (mixed >> 31)
    };
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        bytes.extend_from_slice(&next().to_le_bytes());
    }
    bytes.truncate(length);
    if weight.dtype == DType::I8 {
        // Symmetric weights do not use this value.
        bytes.iter_mut().filter(|byte| **byte == 0x80).for_each(|byte| *byte = 0x81);
    }
    weight.data = WeightData::from_vec(bytes);
    if let Some(quantisation) = &mut weight.quantisation {
        let scale = 1.0 / (64.0 * (weight.shape.last().copied().unwrap_or(1) as f32).sqrt());
        let scales = quantisation.scales.length();
        let mut table = Vec::with_capacity(scales);
        while table.len() < scales {
            let scale = scale * (1.0 + (next() % 64) as f32 / 64.0);
            match quantisation.scale_dtype {
                // Block scales have to be multiples, 1 to 16, of one number.
                DType::F16 => {
                    let scale = STEP * (1 + next() % 16) as f32;
                    table.extend_from_slice(&half_bits(scale).to_le_bytes());
                }
                _ => table.extend_from_slice(&scale.to_le_bytes()),
            }
        }
        quantisation.scales = WeightData::from_vec(table);
    }
    debug_assert!(weight.data.is_present());
}

/// The number that block scales are multiples of, a normal number in half precision.
const STEP: f32 = 1.0 / 4096.0;

/// Rounds a number that is normal in half precision towards zero and returns its bits.
fn half_bits(value: f32) -> u16 {
    let bits = value.to_bits();
    (((bits >> 23) as u16).saturating_sub(112) << 10) | ((bits >> 13) & 0x3ff) as u16
}
