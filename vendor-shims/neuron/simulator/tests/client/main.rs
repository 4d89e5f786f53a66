//! Runs a third-party client through the simulator: Google's `apply_plugin_main` with its MediaTek
//! plugin, from the wheel `ai-edge-litert`. It compiles small models. Its calls, their order and
//! its reaction to every failure are compared with observations made with a library that only logs.

#[path = "../../../files/tests/support/flatbuffer.rs"]
#[allow(dead_code, reason = "the tests of the files use the rest")]
mod flatbuffer;
mod models;
mod wheel;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

/// Returns the path of the simulator that was built with this test.
fn simulator() -> PathBuf {
    let here = std::env::current_exe().expect("a path");
    let folders = here.ancestors().skip(1).take(2).map(|folder| folder.join("libneuron_adapter.so"));
    let said = std::env::var_os("SHARDWRIGHT_NEURON_LIB").map(PathBuf::from);
    folders.chain(said).find(|path| path.is_file()).expect("the simulator was built beside its tests")
}

/// A folder with a simulator, a model and the output.
struct Bench {
    wheel: PathBuf,
    folder: tempfile::TempDir,
}

struct Outcome {
    status: Option<i32>,
    said: String,
    trace: Vec<String>,
    model: Option<Vec<u8>>,
}

impl Bench {
    fn new(test: &str) -> Option<Bench> {
        let wheel = wheel::with("tools/apply_plugin_main", test)?;
        let folder = tempfile::tempdir().expect("a temporary folder");
        // The library has a folder of its own, because the client opens every library that it finds
        // and keeps the last.
        let libraries = folder.path().join("libraries");
        fs::create_dir(&libraries).expect("made");
        std::os::unix::fs::symlink(simulator(), libraries.join("libneuron_adapter.so")).expect("linked");
        Some(Bench { wheel, folder })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn apply(&self, model: &[u8], configuration: &str, arguments: &[&str]) -> Outcome {
        let (input, output, settings, trace) =
            (self.path("in.tflite"), self.path("out.tflite"), self.path("settings.json"), self.path("trace"));
        for stale in [&output, &trace] {
            let _ = fs::remove_file(stale);
        }
        fs::write(&input, model).expect("written");
        let mut all: serde_json::Value = serde_json::from_str(configuration).expect("JSON");
        all["trace"] = trace.to_string_lossy().as_ref().into();
        all["messages"] = true.into();
        fs::write(&settings, all.to_string()).expect("written");
        let mut command = Command::new(self.wheel.join("tools/apply_plugin_main"));
        command
            .env("LD_LIBRARY_PATH", format!("{}:{}", self.path("libraries").display(), self.wheel.display()))
            .env("SHARDWRIGHT_NEURON_SIMULATOR", &settings)
            .env_remove("MTKNN_ADAPTER_DLA_PLATFORM")
            .arg("--cmd=apply")
            .arg(format!("--model={}", input.display()))
            .arg(format!("--o={}", output.display()))
            .args(["--soc_manufacturer=MediaTek", "--err=--"])
            .arg(format!("--libs={}", self.wheel.join("vendors/mediatek/compiler").display()));
        if !arguments.iter().any(|argument| argument.starts_with("--soc_model")) {
            command.arg("--soc_model=mt6991");
        }
        command.args(arguments);
        let Output { status, stdout, stderr } = command.output().expect("the client starts");
        let trace = fs::read_to_string(&trace).unwrap_or_default();
        Outcome {
            status: status.code(),
            said: format!("{}{}", String::from_utf8_lossy(&stdout), String::from_utf8_lossy(&stderr)),
            trace: trace.lines().map(str::to_owned).collect(),
            model: fs::read(&output).ok(),
        }
    }
}

/// Returns the calls of a pass, from the creation of its model to its end.
fn pass<'a>(trace: &'a [String], name: &str) -> &'a [String] {
    let named = trace
        .iter()
        .position(|line| line.contains(&format!("setName name={name:?}")))
        .expect("the pass took place");
    let start = trace[..named]
        .iter()
        .rposition(|line| line.starts_with("NeuronModel_create"))
        .expect("created before");
    let end =
        trace[named..].iter().position(|line| line.starts_with("NeuronModel_free")).expect("freed after");
    &trace[start..=named + end]
}

fn calls<'a>(trace: &'a [String], function: &str) -> Vec<&'a str> {
    let start = format!("{function} ");
    trace.iter().filter_map(|line| line.strip_prefix(&start)).collect()
}

fn assert_fine(outcome: &Outcome) -> &[u8] {
    assert_eq!(outcome.status, Some(0), "{}", outcome.said);
    for line in &outcome.trace {
        assert!(line.ends_with(" -> 0"), "an unexpected code: {line}\n{}", outcome.said);
    }
    outcome.model.as_deref().expect("a model was written")
}

const CHAIN: &[&str] = &[
    "NeuronModel_create -> 0",
    "NeuronModel_setName name=\"Partition_0\" -> 0",
    "NeuronModel_addOperand index=0 type=3 dimensions=[1,32] scale=0 zero_point=0 -> 0",
    "NeuronModel_addOperand index=1 type=3 dimensions=[1,16] scale=0 zero_point=0 -> 0",
    "NeuronModel_addOperand index=2 type=3 dimensions=[1,16] scale=0 zero_point=0 -> 0",
    "NeuronModel_identifyInputsAndOutputs inputs=[0,1] outputs=[2] -> 0",
    "NeuronModel_addOperand index=3 type=3 dimensions=[16,32] scale=0 zero_point=0 -> 0",
    "NeuronModel_setOperandValue index=3 bytes=2048 -> 0",
    "NeuronModel_addOperand index=4 type=3 dimensions=[16] scale=0 zero_point=0 -> 0",
    "NeuronModel_setOperandValue index=4 bytes=64 -> 0",
    "NeuronModel_addOperand index=5 type=1 dimensions=[] scale=0 zero_point=0 -> 0",
    "NeuronModel_setOperandValue index=5 bytes=4 value=00000000 -> 0",
    "NeuronModel_addOperand index=6 type=3 dimensions=[1,16] scale=0 zero_point=0 -> 0",
    "NeuronModel_addOperation type=9 inputs=[0,3,4,5] outputs=[6] -> 0",
    "NeuronModel_addOperand index=7 type=1 dimensions=[] scale=0 zero_point=0 -> 0",
    "NeuronModel_setOperandValue index=7 bytes=4 value=00000000 -> 0",
    "NeuronModel_addOperation type=0 inputs=[6,1,7] outputs=[2] -> 0",
    "NeuronModel_finish operands=8 operations=2 -> 0",
    "NeuronModel_relaxComputationFloat32toFloat16 allowed=1 -> 0",
    "NeuronCompilation_createWithOptions options=\"--opt-accuracy --opt 3\" -> 0",
    "NeuronCompilation_setPriority priority=110 -> 0",
    "NeuronCompilation_setPreference preference=2 -> 0",
    "NeuronCompilation_setOptimizationHint bits=0 -> 0",
    "NeuronCompilation_setOptimizationString options=\"--opt-accuracy --opt 3\" -> 0",
    "NeuronCompilation_finish -> 0",
];

#[test]
fn the_client_makes_the_calls_that_were_observed() {
    let Some(bench) = Bench::new("the golden trace") else { return };
    for (version, asked) in [
        ("[8, 2, 20]", false),
        ("[8, 2, 23]", false),
        ("[8, 2, 24]", true),
        ("[8, 2, 28]", true),
        ("[9, 0, 3]", true),
    ] {
        let configuration = format!(r#"{{"version": {version}, "strict": true}}"#);
        let outcome = bench.apply(&models::chain(), &configuration, &["--soc_model=mt6989"]);
        let model = assert_fine(&outcome).to_vec();
        let compile = pass(&outcome.trace, "Partition_0");
        assert_eq!(&compile[..CHAIN.len()], CHAIN);
        let rest: Vec<_> = compile[CHAIN.len()..].iter().filter_map(|line| line.split(' ').next()).collect();
        let stored = [
            "NeuronCompilation_getCompiledNetworkSize",
            "NeuronCompilation_storeCompiledNetwork",
            "NeuronCompilation_free",
            "NeuronModel_free",
        ];
        assert_eq!(rest, stored);
        assert_eq!(calls(&outcome.trace, "Neuron_getVersion").len(), 3);
        // The pass that queries support exists since 8.2.24. It differs in its name and in one
        // call.
        let questions = calls(&outcome.trace, "NeuronCompilation_getSupportedOperations");
        assert_eq!(questions.len(), usize::from(asked), "{version}");
        if asked {
            assert_eq!(questions, ["count=2 supported=11 -> 0"]);
            let probe = pass(&outcome.trace, "get supported graph");
            assert_eq!(probe[2..CHAIN.len() - 1], CHAIN[2..CHAIN.len() - 1]);
        }
        if version == "[8, 2, 28]" {
            let kept = include_bytes!("../compiled/chain-mt6989-8.2.28.tflite");
            assert!(model == kept, "the compiled model among the fixtures is another");
        }
        let again = bench.apply(&models::chain(), &configuration, &["--soc_model=mt6989"]);
        assert!(again.model == Some(model), "{version}: the same model twice");
    }
}

#[test]
fn a_decoder_block_is_one_partition_in_the_types_of_the_version() {
    let Some(bench) = Bench::new("a decoder block") else { return };
    // Below 8.2.24 each FULLY_CONNECTED of rank 3 is sent as one of rank 2 and a RESHAPE.
    let plain = [9, 9, 9, 102, 0, 25, 102, 22, 37, 37, 22, 9, 0, 9, 109, 18, 0];
    let reshaped = [9, 22, 9, 22, 9, 22, 102, 0, 25, 102, 22, 37, 37, 22, 9, 22, 0, 9, 22, 109, 18, 0];
    for (version, bias, biases, codes) in [
        ("[8, 2, 20]", "4", 5 + 5 + 3, &reshaped[..]),
        ("[8, 2, 23]", "4", 5 + 5 + 3, &reshaped[..]),
        ("[8, 2, 24]", "4", 5 + 3, &plain[..]),
        ("[8, 2, 28]", "9014", 1, &plain[..]),
        ("[9, 0, 3]", "9014", 1, &plain[..]),
    ] {
        let outcome =
            bench.apply(&models::block(), &format!(r#"{{"version": {version}, "strict": true}}"#), &[]);
        let model = assert_fine(&outcome);
        if version == "[9, 0, 3]" {
            let kept = include_bytes!("../compiled/block-mt6991-9.0.3.tflite");
            assert!(model == kept, "the compiled model among the fixtures is another");
        }
        let compile = pass(&outcome.trace, "Partition_0");
        let kinds: Vec<_> = calls(compile, "NeuronModel_addOperation")
            .iter()
            .map(|line| line.split(' ').next().unwrap_or_default().to_owned())
            .collect();
        let expected: Vec<_> = codes.iter().map(|code| format!("type={code}")).collect();
        assert_eq!(kinds, expected, "{version}");
        let operands = calls(compile, "NeuronModel_addOperand");
        let of = |kind: &str| operands.iter().filter(|line| line.contains(&format!("type={kind} "))).count();
        // Type 4 is also the type of shapes and orders, and of the biases that the client makes.
        assert_eq!((of("11"), of(bias)), (5, biases), "{version}: {operands:#?}");
        assert!(!outcome.trace.iter().any(|line| line.contains("Partition_1")), "one partition");
    }
}

#[test]
fn what_users_ask_for_reaches_the_library() {
    let Some(bench) = Bench::new("options") else { return };
    let arguments = [
        "--mediatek_aot_compilation_options=--opt 2 --num-mdla 4",
        "--mediatek_performance_mode_type=turbo_boost",
        "--mediatek_optimization_hint=deep_fusion",
        "--mediatek_enable_l1_cache_optimizations=true",
    ];
    let outcome = bench.apply(&models::chain(), r#"{"l1_kilobytes": 512}"#, &arguments);
    let with = assert_fine(&outcome).to_vec();
    let compile = pass(&outcome.trace, "Partition_0");
    assert_eq!(
        calls(compile, "NeuronCompilation_createWithOptions"),
        [r#"options="--opt 2 --num-mdla 4" -> 0"#]
    );
    assert_eq!(calls(compile, "NeuronCompilation_setPreference"), ["preference=3 -> 0"]);
    assert_eq!(calls(compile, "NeuronCompilation_setOptimizationHint"), ["bits=2 -> 0"]);
    assert_eq!(calls(compile, "NeuronCompilation_setL1MemorySizeKb"), ["kilobytes=512 -> 0"]);
    // Ignored options are embedded nevertheless.
    let ignoring = bench.apply(&models::chain(), r#"{"l1_kilobytes": 512, "honoured": "none"}"#, &arguments);
    let ignored = assert_fine(&ignoring);
    let has = |model: &[u8]| model.windows(20).any(|window| window == b"--opt 2 --num-mdla 4");
    assert!(has(&with) && has(ignored));
    assert_ne!(with, ignored);
}

#[test]
fn operations_beyond_the_limit_are_unmappable() {
    let Some(bench) = Bench::new("the limit of operations") else { return };
    let outcome = bench.apply(&models::block(), r#"{"most_operations": 16}"#, &[]);
    assert_eq!(outcome.status, Some(3), "{}", outcome.said);
    assert!(outcome.said.contains("operations=17 most=16"), "{}", outcome.said);
    assert_eq!(
        calls(&outcome.trace, "NeuronCompilation_finish"),
        ["-> 6 no execution plan: operations=17 most=16"]
    );
}

/// The functions whose failure ends the client, as observed.
const FATAL: [&str; 18] = [
    "Neuron_getVersion",
    "NeuronModel_create",
    "NeuronModel_setName",
    "NeuronModel_addOperand",
    "NeuronModel_setOperandValue",
    "NeuronModel_addOperation",
    "NeuronModel_identifyInputsAndOutputs",
    "NeuronModel_finish",
    "NeuronModel_relaxComputationFloat32toFloat16",
    "NeuronCompilation_createWithOptions",
    "NeuronCompilation_setPriority",
    "NeuronCompilation_setPreference",
    "NeuronCompilation_setOptimizationHint",
    "NeuronCompilation_setOptimizationString",
    "NeuronCompilation_getSupportedOperations",
    "NeuronCompilation_finish",
    "NeuronCompilation_getCompiledNetworkSize",
    "NeuronCompilation_storeCompiledNetwork",
];

fn fails(bench: &Bench, function: &str) {
    let configuration = format!(r#"{{"failures": [{{"function": "{function}", "how": {{"result": 4}}}}]}}"#);
    let outcome = bench.apply(&models::chain(), &configuration, &[]);
    assert_eq!(outcome.status, Some(3), "{function}: {}", outcome.said);
    assert!(
        outcome.trace.iter().any(|line| line.starts_with(function) && line.ends_with("-> 4 injected")),
        "{function}"
    );
    // Everything that was created is freed.
    for kind in ["NeuronModel", "NeuronCompilation"] {
        let count = |suffix: &str| {
            outcome
                .trace
                .iter()
                .filter(|line| line.starts_with(&format!("{kind}_{suffix}")) && line.ends_with("-> 0"))
                .count()
        };
        assert_eq!(count("create"), count("free"), "{function}: {:#?}", outcome.trace);
    }
}

#[test]
fn failures_end_the_client_as_observed() {
    let Some(bench) = Bench::new("failures") else { return };
    for function in FATAL {
        fails(&bench, function);
    }
    let empty = r#"{"failures": [{"function": "NeuronCompilation_getCompiledNetworkSize", "how": "empty"}]}"#;
    let outcome = bench.apply(&models::chain(), empty, &[]);
    // The client accepts it silently and writes a model with an empty blob.
    assert_eq!(outcome.status, Some(0), "{}", outcome.said);
    assert!(outcome.model.is_some());
    let killed = r#"{"failures": [{"function": "NeuronCompilation_finish", "how": {"signal": 11}}]}"#;
    assert_eq!(bench.apply(&models::chain(), killed, &[]).status, None, "the client dies with the library");
    let gone = r#"{"failures": [{"function": "NeuronCompilation_finish", "how": {"exit": 7}}]}"#;
    assert_eq!(bench.apply(&models::chain(), gone, &[]).status, Some(7));
}

#[test]
fn failures_that_the_client_tolerates_are_tolerated() {
    let Some(bench) = Bench::new("tolerated failures") else { return };
    let symmetric = r#"{"version": [8, 2, 20], "failures": [{"function": "NeuronModel_setOperandSymmPerChannelQuantParams", "how": {"result": 4}}]}"#;
    let outcome = bench.apply(&models::block(), symmetric, &[]);
    assert_eq!(outcome.status, Some(0), "{}", outcome.said);
    assert_eq!(calls(&outcome.trace, "NeuronModel_setOperandPerChannelQuantParams").len(), 5);
    for function in ["Neuron_getL1MemorySizeKb", "NeuronCompilation_setL1MemorySizeKb"] {
        let configuration =
            format!(r#"{{"failures": [{{"function": "{function}", "how": {{"result": 4}}}}]}}"#);
        let outcome =
            bench.apply(&models::chain(), &configuration, &["--mediatek_enable_l1_cache_optimizations=true"]);
        assert_eq!(outcome.status, Some(0), "{function}: {}", outcome.said);
        assert!(!calls(&outcome.trace, function).is_empty());
    }
}

#[test]
fn without_chip_operations_or_library_the_client_ends_as_observed() {
    let Some(bench) = Bench::new("what the client lacks") else { return };
    let unknown = bench.apply(&models::chain(), "{}", &["--soc_model=mt6899"]);
    assert_eq!(unknown.status, Some(161), "{}", unknown.said);
    // No operation can be lowered, so the client queries support and does not compile.
    let denied = bench.apply(&models::chain(), r#"{"denied_operations": [0, 9]}"#, &[]);
    assert_eq!(denied.status, Some(1), "{}", denied.said);
    assert_eq!(
        calls(&denied.trace, "NeuronCompilation_getSupportedOperations"),
        ["count=2 supported=00 -> 0"]
    );
    assert!(calls(&denied.trace, "NeuronCompilation_finish").is_empty());
    fs::remove_file(bench.path("libraries").join("libneuron_adapter.so")).expect("a link");
    let none = bench.apply(&models::chain(), "{}", &[]);
    assert_eq!(none.status, Some(246), "{}", none.said);
    assert!(none.trace.is_empty());
}

/// Writes the client's compiled models to a folder that a variable names. This generates the
/// compiled fixtures.
#[test]
#[ignore = "rewrites fixtures: SHARDWRIGHT_COMPILED_MODELS=FOLDER cargo test -p shardwright-neuron-simulator --test client compiled_models -- --ignored"]
fn compiled_models_are_written() {
    let Some(bench) = Bench::new("compiled models") else { return };
    let Some(folder) = std::env::var_os("SHARDWRIGHT_COMPILED_MODELS").map(PathBuf::from) else { return };
    let write = |name: &str, bytes: &[u8]| fs::write(Path::new(&folder).join(name), bytes).expect("written");
    for (name, model, configuration, soc) in [
        ("chain-mt6989-8.2.28.tflite", models::chain(), r#"{"version": [8, 2, 28]}"#, "mt6989"),
        ("block-mt6991-9.0.3.tflite", models::block(), r#"{"version": [9, 0, 3]}"#, "mt6991"),
    ] {
        let outcome = bench.apply(&model, configuration, &[&format!("--soc_model={soc}")]);
        write(name, assert_fine(&outcome));
    }
}
