//! Gemma 4 E2B at its real shapes for mt6989, through MediaTek's shim and the simulator of its
//! library. The simulator has the limit on operations that was reported for Dimensity 9300. Covers
//! everything from a checkpoint to a refused plan, a cut, a bundle and a step, in both lowerings.
//!
//! ```text
//! cargo bench -p shardwright-tests --bench neuron_shapes -- [e2b|toy] [plain|lean] [--into FOLDER]
//! ```
//!
//! Weights are random numbers, written piece by piece into a temporary checkpoint (22 GB of disk
//! for `e2b`). The table of per-layer embeddings, which no shard contains, reads as zeros. Each
//! case runs in child processes of this program, whose memory is measured. With `--into`, the
//! tables are also written into a folder, as Markdown and as JSON.

use std::fs::{self, File};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use shardwright::tools::ModelTools;
use shardwright::{BundleOptions, Executor, FormatChoice, OpenOptions, PlanReport, Watch};
use shardwright_test_checkpoints::{Part, Random, Spec, TensorSpec};
use shardwright_tests::{plans, program, tree};

/// The operations limit reported for Dimensity 9300.
const CEILING: u64 = 2600;
const SOC: &str = "mt6989";
const FORMATS: &str = "w8-per-channel/a16-symmetric/a16";
/// Formats with half the bytes of weights, which reports of users tried first.
const HALVED: &str = "w4-per-tensor/a16-symmetric/a16";
const CONTEXT: u32 = 512;
/// Number of timed steps of one row.
const STEPS: usize = 3;

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).filter(|word| word != "--bench").collect();
    match &arguments[..] {
        [task, folder, lowering] if task == "compile" => return compile(Path::new(folder), lowering),
        [task, folder] if task == "run" => return run(Path::new(folder)),
        _ => {}
    }
    let has = |word: &str| arguments.iter().any(|argument| argument == word);
    let model = if has("toy") { "toy" } else { "e2b" };
    let asked: Vec<&str> = ["plain", "lean"].into_iter().filter(|name| has(name)).collect();
    let lowerings = if asked.is_empty() { vec!["plain", "lean"] } else { asked };
    let into = arguments.iter().position(|word| word == "--into").and_then(|at| arguments.get(at + 1));

    let folder = tempfile::tempdir().expect("a temporary folder");
    checkpoint(model, folder.path());
    let cases: Vec<Value> = lowerings.iter().map(|lowering| case(model, lowering, folder.path())).collect();
    let text = tables(&cases);
    println!("{text}");
    if let Some(into) = into {
        let into = Path::new(into);
        fs::write(into.join("neuron_shapes.md"), &text).expect("written");
        fs::write(into.join("neuron_shapes.json"), format!("{:#}\n", Value::from(cases))).expect("written");
    }
}

/// Writes a checkpoint of that model, and the files it is used with.
fn checkpoint(model: &str, folder: &Path) {
    let spec = match model {
        "e2b" => Spec::e2b(),
        // For testing this program: enough layers to be cut.
        _ => Spec {
            vocabulary: 1024,
            hidden: 64,
            intermediate: 96,
            heads: 8,
            head_dim: 16,
            global_head_dim: 32,
            window: 64,
            per_layer: 16,
            context: 4096,
            ..Spec::e2b()
        },
    };
    let path = folder.join("checkpoint");
    fs::create_dir(&path).expect("made");
    let fixture = tree::root().join("tests/fixtures/gemma4_text");
    for file in ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"] {
        fs::copy(fixture.join(file), path.join(file)).expect("copied");
    }
    spec.write(&path).expect("written");
    fill(&spec, &path.join("model.safetensors")).expect("filled");
    fs::write(folder.join("text"), "hello world\n").expect("written");
    fs::write(
        folder.join("simulator.json"),
        json!({"soc": SOC, "most_operations": CEILING, "messages": true}).to_string(),
    )
    .expect("written");
}

/// Number of random numbers, which tensors repeat. It is prime, so that rows of any width differ.
const NUMBERS: usize = 1_048_573;

/// Writes random content into a checkpoint's file, which already has its full length.
fn fill(spec: &Spec, path: &Path) -> io::Result<()> {
    let mut file = File::options().read(true).write(true).open(path)?;
    let mut length = [0; 8];
    file.read_exact(&mut length)?;
    let mut offset = 8 + u64::from_le_bytes(length);
    let mut random = Random::new(1, "numbers");
    let numbers: Vec<f32> = (0..NUMBERS).map(|_| random.normal() as f32).collect();
    assert_eq!(spec.dtype, "BF16");
    for tensor in spec.tensors() {
        let count = tensor.shape.iter().product::<u64>() as usize;
        if !matches!(tensor.part, Part::PerLayerEmbedding | Part::Tower) {
            file.seek(SeekFrom::Start(offset))?;
            let from = Random::new(2, &tensor.name).below(NUMBERS as u64) as usize;
            let value = |number: f32| scaled(spec, &tensor, number);
            let bytes: Vec<u8> = (0..count.min(NUMBERS))
                .flat_map(|index| brain(value(numbers[(from + index) % NUMBERS])))
                .collect();
            let mut left = 2 * count;
            while left > 0 {
                let piece = left.min(bytes.len());
                file.write_all(&bytes[..piece])?;
                left -= piece;
            }
        }
        offset += 2 * count as u64;
    }
    Ok(())
}

/// Scales a random number so that the residual stream stays near 1.
fn scaled(spec: &Spec, tensor: &TensorSpec, number: f32) -> f32 {
    let root = |extent: u64| (extent as f32).sqrt();
    match tensor.part {
        Part::Embedding => number / root(spec.hidden),
        Part::Matrix => 1.5 * number / root(tensor.shape[1]),
        Part::Norm => 1.0 + 0.25 * number,
        Part::HeadNorm => 0.8 * (1.0 + 0.25 * number),
        Part::FinalNorm => 12.0 * number.signum() * (1.0 + 0.25 * number.abs()),
        Part::Scalar => 0.8,
        Part::PerLayerEmbedding | Part::Tower | Part::Least | Part::Most => 0.0,
    }
}

/// Truncates a number to bfloat16.
fn brain(value: f32) -> [u8; 2] {
    ((value.to_bits() >> 16) as u16).to_le_bytes()
}

/// Plans, refuses, cuts, compiles and runs one lowering.
fn case(model: &str, lowering: &str, folder: &Path) -> Value {
    let bundle = folder.join("bundle");
    let _ = fs::remove_dir_all(&bundle);
    let shown = folder.display().to_string();
    let (compiled, compile_peaks) = child(folder, lowering, &["compile", &shown, lowering]);
    let (ran, run_peaks) = child(folder, lowering, &["run", &shown]);
    let command = one_command(folder, &bundle);
    fs::remove_dir_all(&bundle).expect("removed");
    json!({
        "model": model,
        "soc": SOC,
        "lowering": lowering,
        "ceiling": CEILING,
        "context": CONTEXT,
        "compiled": compiled,
        "compile_peak_bytes": { "program": compile_peaks.0, "worker": compile_peaks.1 },
        "run": ran,
        "run_peak_bytes": run_peaks.0,
        "one_command": command,
    })
}

/// Prepares a child process: this program or another, with the same environment.
fn surrounded(program: &Path, folder: &Path, lowering: Option<&str>) -> Command {
    let beside = program::folder();
    let mut command = Command::new(program);
    command
        .env("SHARDWRIGHT_BIN_DIR", beside)
        .env("SHARDWRIGHT_WORKER", beside.join("shardwright-worker"))
        .env("SHARDWRIGHT_NEURON_SIMULATOR", folder.join("simulator.json"))
        .env("SHARDWRIGHT_NEURON_LIB", beside.join("libneuron_adapter.so"))
        .env("TMPDIR", folder)
        .stderr(Stdio::inherit())
        .stdout(Stdio::piped());
    if let Some(lowering) = lowering {
        command.env("SHARDWRIGHT_NEURON_LOWERING", lowering);
    }
    command
}

/// Runs a child of this program. Returns its output, and the peak resident memory of the child and
/// of any process it starts.
fn child(folder: &Path, lowering: &str, arguments: &[&str]) -> (Value, (u64, u64)) {
    let this = std::env::current_exe().expect("this program");
    let child = surrounded(&this, folder, Some(lowering)).args(arguments).spawn().expect("it starts");
    let (output, peaks) = watched(child, arguments[0]);
    (serde_json::from_str(&output).expect("what this program prints"), peaks)
}

/// Waits for a child. Returns its output, and memory peaks like [`child`].
fn watched(mut child: Child, what: &str) -> (String, (u64, u64)) {
    let mut pipe = child.stdout.take().expect("piped");
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        pipe.read_to_string(&mut text).expect("text");
        text
    });
    let mut peaks = (0, 0);
    let status = loop {
        let (own, below) = resident(child.id());
        peaks = (peaks.0.max(own), peaks.1.max(below));
        match child.try_wait().expect("a child") {
            Some(status) => break status,
            None => std::thread::sleep(Duration::from_millis(50)),
        }
    };
    assert!(status.success(), "{what}: {status}");
    (reader.join().expect("read"), peaks)
}

/// Returns the peak resident memory of a process, and the largest of its children, in bytes. Mapped
/// files count.
fn resident(process: u32) -> (u64, u64) {
    let field = |status: &str, name: &str| {
        let line = status.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    let peak = |status: &str| field(status, "VmHWM:").unwrap_or(0) * 1024;
    let own = fs::read_to_string(format!("/proc/{process}/status")).map_or(0, |status| peak(&status));
    let Ok(processes) = fs::read_dir("/proc") else { return (own, 0) };
    let statuses =
        processes.flatten().filter_map(|entry| fs::read_to_string(entry.path().join("status")).ok());
    let children = statuses.filter(|status| field(status, "PPid:") == Some(process.into()));
    (own, children.map(|status| peak(&status)).max().unwrap_or(0))
}

fn options(folder: &Path) -> OpenOptions {
    let choice = |name: &str| name.parse::<FormatChoice>().expect("formats");
    OpenOptions::new()
        .search_path(program::search_path())
        .cache_directory(folder.join("cache"))
        .soc(SOC)
        .on(Executor::Simulator)
        .formats(choice(FORMATS))
        .formats(choice(HALVED))
        .calibration_text(folder.join("text"))
        .context(CONTEXT)
        // Do not compile a second chain for the CPU.
        .strict(true)
}

/// Plans without a known limit, compiles, and plans again. Prints the results.
fn compile(folder: &Path, lowering: &str) {
    let checkpoint = folder.join("checkpoint");
    let layers = operations_of_layers(&options(folder), &checkpoint);
    // Override the reported limit, so that a single shard is planned.
    let open = options(folder).limit("ops", 1_000_000);
    let wanted = open.plan(&checkpoint).expect("the plan").report;
    // The reported limit applies to graphs of this kind. Here the first plan must find it out by
    // itself. The lean lowering is planned as for a user.
    let open = if lowering == "plain" { open } else { options(folder) };
    let mut stages = Stages::default();
    let report = open.compile(&checkpoint, folder.join("bundle"), &mut stages).expect("compiled");
    stages.end();
    let next = options(folder).plan(&checkpoint).expect("the next plan").report;
    let plan = &report.variants[0].plan;
    // Replace the temporary path.
    let place = folder.display().to_string();
    println!(
        "{}",
        json!({
            "operations_of_layers": layers,
            "whole": { "shards": decoder(&wanted).len(), "operations": decoder(&wanted).iter().map(|shard| shard.2).sum::<u64>() },
            "refused_plans": plan.refused_plans,
            "notices": plan.notices.iter().map(|notice| notice.text.replace(&place, "FOLDER")).collect::<Vec<_>>(),
            "reasons": plan.reasons.iter().map(|reason| format!("{}: {}", reason.choice, reason.because)).collect::<Vec<_>>(),
            "shards": plan.shards.iter().map(|shard| json!({
                "segments": shard.segments,
                "target": shard.target,
                "formats": shard.formats,
                "entries": shard.entries.iter().filter(|entry| entry.ops > 0).map(|entry| json!({
                    "entry": entry.entry.to_string(), "operations": entry.ops
                })).collect::<Vec<_>>(),
                "operations": shard.ops,
                "weight_bytes": shard.weight_bytes,
            })).collect::<Vec<_>>(),
            "artefacts": artefacts(&folder.join("bundle")),
            "bundle_bytes": report.bytes,
            "seconds": stages.seconds(),
            "next_plan": { "shards": decoder(&next).len(), "refused_plans": next.refused_plans, "same_cut": decoder(&next) == decoder(plan) },
        })
    );
}

/// Returns the first layer, the end (exclusive) and the operations of the largest entry point of
/// every decoder shard.
fn decoder(plan: &PlanReport) -> Vec<(u32, u32, u64)> {
    let shards = plan.shards.iter();
    let layers = shards.map(|shard| (shard.segments.layers(), shard.ops));
    layers.filter(|((_, end), _)| *end > 0).map(|((first, end), ops)| (first, end, ops)).collect()
}

/// Returns the number of operations of each layer in a step of one row.
fn operations_of_layers(open: &OpenOptions, checkpoint: &Path) -> Vec<u64> {
    let open = open.clone().planner("even").planner_option("pieces", "35");
    let plan = open.limit("ops", 1_000_000).plan(checkpoint).expect("a plan of single layers").report;
    let steps = plan.shards.iter().filter(|shard| shard.segments.layers().1 > 0).map(|shard| {
        let step = shard.entries.iter().find(|entry| entry.entry.to_string().starts_with("decode_1@"));
        step.expect("a step of one row").ops
    });
    steps.collect()
}

/// Returns the bytes of the artefacts of a bundle's first chain, by shard.
fn artefacts(bundle: &Path) -> Value {
    let text = fs::read(bundle.join("bundle.json")).expect("a manifest");
    let whole: Value = serde_json::from_slice(&text).expect("JSON");
    let shards = whole["manifest"]["variants"][0]["chains"][0]["shards"].as_array().expect("shards").iter();
    let sized = shards.map(|shard| json!({ "shard": shard["name"], "bytes": shard["artefact"]["bytes"] }));
    sized.collect()
}

/// Seconds per stage that a build reports.
#[derive(Default)]
struct Stages {
    seen: Vec<(String, Duration)>,
    now: Option<(String, Instant)>,
}

impl Stages {
    fn end(&mut self) {
        let Some((stage, since)) = self.now.take() else { return };
        let took = since.elapsed();
        match self.seen.iter_mut().find(|(name, _)| *name == stage) {
            Some((_, total)) => *total += took,
            None => self.seen.push((stage, took)),
        }
    }

    fn seconds(&self) -> Value {
        self.seen
            .iter()
            .map(|(stage, took)| json!({ "stage": stage, "seconds": took.as_secs_f64() }))
            .collect()
    }
}

impl Watch for Stages {
    fn progress(&mut self, _: u32, stage: &str) {
        // The stage without the name of an entry point.
        let stage = stage.split('`').next().unwrap_or_default().trim().to_owned();
        if self.now.as_ref().is_none_or(|(name, _)| *name != stage) {
            self.end();
            eprintln!("{stage} …");
            self.now = Some((stage, Instant::now()));
        }
    }

    fn cancelled(&self) -> bool {
        false
    }
}

/// Loads the bundle and runs single steps. Prints their times and the memory that shards share.
fn run(folder: &Path) {
    let started = Instant::now();
    let open = BundleOptions::new().search_path(program::search_path()).strict(true);
    let model = open.open(folder.join("bundle")).expect("the bundle opens");
    let loaded = started.elapsed();
    let mut session = model.chain().session().expect("a session");
    let mut steps = Vec::new();
    for step in 0..STEPS {
        let started = Instant::now();
        session.append(&[5 + step as u32]).expect("a step");
        steps.push(started.elapsed().as_secs_f64());
    }
    let logits = session.logits().expect("logits");
    assert!(logits.iter().all(|value| value.is_finite()) && logits.iter().any(|value| *value != logits[0]));
    let record = session.placement();
    let shared = record.states.iter().filter(|state| !state.readers.is_empty());
    let shared: Vec<Value> = shared
        .map(|state| json!({ "state": state.state, "writer": state.writer, "readers": state.readers }))
        .collect();
    let shards: Vec<Value> = record
        .shards
        .iter()
        .map(|shard| {
            json!({
                "shard": shard.shard,
                "place": shard.place.to_string(),
                "milliseconds": shard.nanoseconds as f64 / 1e6 / shard.runs.max(1) as f64,
            })
        })
        .collect();
    let entries: Vec<Value> =
        record.entries.iter().filter(|entry| entry.steps > 0).map(|entry| json!(entry.entry)).collect();
    println!(
        "{}",
        json!({
            "load_seconds": loaded.as_secs_f64(),
            "step_seconds": steps,
            "entries": entries,
            "shards": shards,
            "states_read_by_other_shards": shared,
        })
    );
}

/// Runs `shardwright run BUNDLE` for one token.
fn one_command(folder: &Path, bundle: &Path) -> Value {
    let started = Instant::now();
    let mut command = surrounded(&program::executable(), folder, None);
    command.arg("run").arg(bundle).args(["--prompt", "a", "--max-tokens", "1", "--greedy", "--strict"]);
    let (text, (peak, _)) = watched(command.spawn().expect("the program starts"), "shardwright run");
    json!({ "seconds": started.elapsed().as_secs_f64(), "text": text.trim_end(), "peak_bytes": peak })
}

fn gigabytes(bytes: &Value) -> String {
    format!("{:.3} GB", bytes.as_f64().unwrap_or(f64::NAN) / 1e9)
}

/// Formats the cases as Markdown tables.
fn tables(cases: &[Value]) -> String {
    let mut text = String::from(
        "| lowering | shard | layers | entry points (operations) | weights | artefact | a step of one row |\n|---|---|---|---|---:|---:|---:|\n",
    );
    let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
    for case in cases {
        let lowering = case["lowering"].as_str().unwrap_or_default();
        let compiled = &case["compiled"];
        for (index, shard) in list(&compiled["shards"]).iter().enumerate() {
            let entries: Vec<String> = list(&shard["entries"])
                .iter()
                .map(|entry| {
                    format!("{} ({})", entry["entry"].as_str().unwrap_or_default(), entry["operations"])
                })
                .collect();
            let layers = plans::layers(shard);
            let layers = layers.map_or_else(String::new, |(first, end)| format!("[{first}, {end})"));
            let segments = list(&shard["segments"]);
            let components = segments.iter().filter_map(|part| part["component"].as_str());
            text += &format!(
                "| {lowering} | {} | {layers} | {} | {} | {} | {:.0} ms |\n",
                components.collect::<Vec<_>>().join(", "),
                entries.join(", "),
                gigabytes(&shard["weight_bytes"]),
                gigabytes(&compiled["artefacts"][index]["bytes"]),
                case["run"]["shards"][index]["milliseconds"].as_f64().unwrap_or(f64::NAN),
            );
        }
    }
    text += "\n| | ";
    text += &cases
        .iter()
        .map(|case| format!("{} | ", case["lowering"].as_str().unwrap_or_default()))
        .collect::<String>();
    text += "\n|---|";
    text += &"---|".repeat(cases.len());
    text.push('\n');
    let mut row = |name: &str, value: &dyn Fn(&Value) -> String| {
        let values: Vec<String> = cases.iter().map(value).collect();
        text += &format!("| {name} | {} |\n", values.join(" | "));
    };
    row("operations of the decoder, largest entry point", &|case| {
        case["compiled"]["whole"]["operations"].to_string()
    });
    row("of a layer, in a step of one row", &|case| {
        let mut counts: Vec<(u64, usize)> = Vec::new();
        for count in list(&case["compiled"]["operations_of_layers"]).iter().filter_map(Value::as_u64) {
            match counts.iter_mut().find(|(seen, _)| *seen == count) {
                Some((_, times)) => *times += 1,
                None => counts.push((count, 1)),
            }
        }
        let shown: Vec<String> =
            counts.iter().map(|(count, times)| format!("{count} ({times} layers)")).collect();
        shown.join(", ")
    });
    row(&format!("plans refused at {CEILING}"), &|case| case["compiled"]["refused_plans"].to_string());
    row("decoder shards", &|case| {
        let shards = list(&case["compiled"]["shards"]);
        shards.iter().filter(|shard| plans::layers(shard).is_some()).count().to_string()
    });
    row("the next plan", &|case| {
        let next = &case["compiled"]["next_plan"];
        let same = if next["same_cut"] == true { "the same cut" } else { "another cut" };
        format!("{same}, {} refused", next["refused_plans"])
    });
    let seconds = |case: &Value, stage: &str| -> f64 {
        let stages = list(&case["compiled"]["seconds"]);
        let named =
            stages.iter().filter(|entry| entry["stage"].as_str().is_some_and(|name| name.starts_with(stage)));
        named.filter_map(|entry| entry["seconds"].as_f64()).sum()
    };
    row("quantising", &|case| format!("{:.0} s", seconds(case, "quantising")));
    row("lowering, compiling and storing", &|case| {
        let all: f64 =
            ["lowering", "compiling", "writing", "storing"].iter().map(|stage| seconds(case, stage)).sum();
        format!("{all:.0} s")
    });
    row("checking the effect of flags", &|case| {
        format!("{:.0} s", seconds(case, "checking the effect of flags"))
    });
    row("peak memory of the worker that compiles", &|case| gigabytes(&case["compile_peak_bytes"]["worker"]));
    row("of the program beside it", &|case| gigabytes(&case["compile_peak_bytes"]["program"]));
    row("bundle, with the tables", &|case| gigabytes(&case["compiled"]["bundle_bytes"]));
    row("loading the bundle", &|case| {
        format!("{:.1} s", case["run"]["load_seconds"].as_f64().unwrap_or(f64::NAN))
    });
    row("a step of one row, simulated", &|case| {
        let steps = list(&case["run"]["step_seconds"]);
        let steps: Vec<String> =
            steps.iter().filter_map(Value::as_f64).map(|step| format!("{step:.2} s")).collect();
        steps.join(", ")
    });
    row("peak memory of running", &|case| gigabytes(&case["run_peak_bytes"]));
    row("keys and values read by another shard than their writer", &|case| {
        list(&case["run"]["states_read_by_other_shards"]).len().to_string()
    });
    row("`shardwright run BUNDLE`, to its first token", &|case| {
        format!("{:.1} s", case["one_command"]["seconds"].as_f64().unwrap_or(f64::NAN))
    });
    text
}
