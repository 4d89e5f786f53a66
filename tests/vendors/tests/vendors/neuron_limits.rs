//! A common refusal on MediaTek's chips, from beginning to end on the simulator. A decoder with the
//! structure of Gemma 4 E2B is refused for its number of operations, cut, compiled, chained and
//! run. Later plans are right the first time. With the lean lowering the decoder may fit uncut.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use shardwright_test_checkpoints::Spec;
use shardwright_tests::program::{self, Run, shardwright};
use shardwright_tests::{plans, tree};
use tempfile::TempDir;

/// The limit reported for Dimensity 9300.
const CEILING: u64 = 2600;
/// Number of layers of E2B.
const LAYERS: u64 = 35;
const FORMATS: &str = "w8-per-channel/a16-symmetric/a16";
/// Formats with half the bytes of weights.
const HALVED: &str = "w4-per-tensor/a16-symmetric/a16";

/// A checkpoint with narrow layers in the structure of E2B, in a folder with all files that the
/// program stores and reads.
struct Bench {
    folder: TempDir,
}

impl Bench {
    fn new() -> Bench {
        let bench = Bench { folder: tempfile::tempdir().expect("a temporary folder") };
        let fixture = tree::root().join("tests/fixtures/gemma4_text");
        fs::create_dir(bench.checkpoint()).expect("made");
        for file in
            ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"]
        {
            fs::copy(fixture.join(file), bench.checkpoint().join(file)).expect("copied");
        }
        // Five sliding layers per full one, twenty layers that read the keys of others, per-layer
        // inputs, feed-forwards of two widths.
        let spec = Spec {
            layers: "SSSSF".repeat(7),
            vocabulary: 768,
            hidden: 32,
            intermediate: 48,
            heads: 8,
            kv_heads: 1,
            head_dim: 8,
            global_head_dim: 16,
            window: 16,
            per_layer: 8,
            kv_shared: 20,
            double_wide: true,
            ..Spec::gemma4()
        };
        assert_eq!(spec.depth() as u64, LAYERS);
        spec.write(&bench.checkpoint()).expect("written");
        let text = "hello world\nthe quick brown fox\n";
        fs::write(bench.folder.path().join("text"), text).expect("written");
        bench.ceiling(Some(CEILING));
        bench
    }

    fn checkpoint(&self) -> PathBuf {
        self.folder.path().join("e2b-like")
    }

    fn bundle(&self) -> PathBuf {
        self.folder.path().join("bundle")
    }

    /// Sets the simulator's limit on operations per compilation.
    fn ceiling(&self, most: Option<u64>) {
        let configuration = json!({"soc": "mt6989", "most_operations": most, "messages": true});
        fs::write(self.simulator(), configuration.to_string()).expect("written");
    }

    fn simulator(&self) -> PathBuf {
        self.folder.path().join("simulator.json")
    }

    /// Prepares a run of the program with this lowering.
    fn runs(&self, lowering: &str, command: &str, what: &Path) -> Run {
        shardwright([command])
            .argument(what)
            .environment("XDG_CACHE_HOME", self.folder.path().join("cache"))
            .environment("SHARDWRIGHT_NEURON_LOWERING", lowering)
            .environment("SHARDWRIGHT_NEURON_SIMULATOR", self.simulator())
            .environment("SHARDWRIGHT_NEURON_LIB", program::folder().join("libneuron_adapter.so"))
    }

    /// Prepares a run of the program with the checkpoint, for the chip.
    fn plans(&self, lowering: &str, command: &str) -> Run {
        self.runs(lowering, command, &self.checkpoint())
            .arguments(["--soc", "mt6989", "--formats", FORMATS, "--formats", HALVED, "--context", "64"])
            .arguments(["--on", "simulator", "--calibration-text"])
            .argument(self.folder.path().join("text"))
    }
}

/// Returns the decoder shards, each with its layers and the operations of its largest entry point.
fn decoder(plan: &Value) -> Vec<(u64, u64, u64)> {
    let shards = plan["shards"].as_array().expect("shards").iter();
    let decoder = shards.filter_map(|shard| Some((shard, plans::layers(shard)?)));
    decoder
        .map(|(shard, (first, end))| {
            assert_eq!(shard["target"], "mt6989", "{shard}");
            (first, end, shard["ops"].as_u64().expect("operations"))
        })
        .collect()
}

/// Checks whether a reason of the plan contains all these words.
fn says(plan: &Value, words: &[&str]) -> bool {
    let of_shards =
        plan["shards"].as_array().expect("shards").iter().flat_map(|shard| reasons(&shard["reasons"]));
    let said: Vec<String> = reasons(&plan["reasons"]).chain(of_shards).collect();
    said.iter().any(|reason| words.iter().all(|word| reason.contains(word)))
}

fn reasons(list: &Value) -> impl Iterator<Item = String> {
    let list = list.as_array().expect("reasons").iter();
    list.map(|reason| format!("{}: {}", reason["choice"], reason["because"]))
}

fn limits<'plan>(plan: &'plan Value, provenance: &str) -> Vec<&'plan Value> {
    let all = plan["limits"].as_array().expect("limits").iter();
    all.filter(|limit| limit["provenance"] == provenance && limit["name"] == "ops").collect()
}

#[test]
fn a_decoder_refused_for_its_operations_is_cut_runs_and_is_right_first_time_afterwards() {
    let bench = Bench::new();
    // The reported limit is overridden, so that a single shard is planned.
    let unlimited = |command: &str| bench.plans("plain", command).arguments(["--limit", "ops=1000000"]);
    let plan = unlimited("plan").json();
    let [(0, LAYERS, whole)] = decoder(&plan)[..] else { panic!("one shard: {plan}") };
    assert!(whole > CEILING, "{whole} operations in {LAYERS} layers");

    let report = unlimited("compile").argument("-o").argument(bench.bundle()).json();
    let plan = &report["variants"][0]["plan"];
    let cut = decoder(plan);
    assert!(plan["refused_plans"].as_u64() >= Some(1), "{plan}");
    assert!(cut.len() >= 2 && cut.iter().all(|(_, _, ops)| *ops <= CEILING), "{cut:?}");
    let notices = plan["notices"].to_string();
    for words in ["refused and revised", "UNMAPPABLE", "ops ≤ 2600 was learned"] {
        assert!(notices.contains(words), "no `{words}` in {notices}");
    }
    let max = format!("the maximum is {CEILING}");
    assert!(says(plan, &[&format!("ops ≤ {CEILING} (learned)"), &max]), "{plan}");
    // Neither half the bytes nor more cores would have helped.
    assert!(says(plan, &["narrower weights", "width of weights does not change", HALVED]), "{plan}");
    assert!(
        says(plan, &["cut although num-mdla=4 is set", "a shard that was compiled with it was refused"]),
        "{plan}"
    );
    assert!(decoder_formats(plan).all(|formats| formats == FORMATS), "{plan}");

    // One bundle and one command. Every shard runs on the simulator, and readers get the keys of
    // their donors.
    let run = bench.runs("plain", "run", &bench.bundle());
    let outcome = run.arguments(["--greedy", "-n", "3", "--prompt", "hello world", "--strict"]).outcome();
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(!outcome.stdout.trim().is_empty(), "{}", outcome.stderr);

    // Later plans are not refused: the learned limit replaces the reported one.
    let plan = bench.plans("plain", "plan").json();
    assert_eq!(decoder(&plan), cut, "{plan}");
    assert_eq!((limits(&plan, "learned").len(), limits(&plan, "reported").len()), (1, 0), "{plan}");
    assert_eq!(limits(&plan, "learned")[0]["value"], CEILING, "{plan}");
    let again = bench.folder.path().join("again");
    let report = bench.plans("plain", "compile").argument("-o").argument(again).json();
    assert_eq!(report["variants"][0]["plan"]["refused_plans"], 0, "{report}");
    assert_eq!(decoder(&report["variants"][0]["plan"]), cut);

    // The limit was not learned for the other lowering.
    let lean = bench.plans("lean", "plan").json();
    assert_eq!(limits(&lean, "learned").len(), 0, "{lean}");
}

fn decoder_formats(plan: &Value) -> impl Iterator<Item = &str> {
    let shards = plan["shards"].as_array().expect("shards").iter();
    shards.filter(|shard| plans::holds(shard, "decoder")).filter_map(|shard| shard["formats"].as_str())
}

/// Uses the real shapes, which suffice for planning.
#[test]
fn written_leanly_the_decoder_has_far_fewer_operations_and_the_plan_says_what_that_means() {
    let bench = Bench::new();
    let real = bench.folder.path().join("e2b");
    fs::create_dir(&real).expect("made");
    Spec::e2b().write(&real).expect("written");
    let plan = |lowering: &str, more: &[&str]| {
        let run = bench.runs(lowering, "plan", &real).arguments(["--soc", "mt6989", "--on", "simulator"]);
        run.arguments(["--formats", FORMATS, "--context", "4096"]).arguments(more).json()
    };
    let counts = |lowering: &str| {
        let plan = plan(lowering, &["--limit", "ops=1000000"]);
        let [(0, LAYERS, ops)] = decoder(&plan)[..] else { panic!("one shard: {plan}") };
        ops
    };
    let (plain, lean) = (counts("plain"), counts("lean"));
    println!(
        "E2B: {plain} operations plain ({} a layer), {lean} lean ({} a layer)",
        plain / LAYERS,
        lean / LAYERS
    );
    assert!(lean < plain && plain > CEILING);
    let cut = decoder(&plan("plain", &[]));
    assert!(cut.len() >= 2, "{cut:?}");
    let plan = plan("lean", &[]);
    assert_eq!(limits(&plan, "reported").len(), 1, "{plan}");
    let verdict = if lean <= CEILING { "within 2600" } else { "more than 2600" };
    assert!(says(&plan, &["ops ≤ 2600 (reported)", verdict, "so the limit may not apply"]), "{plan}");
    assert_eq!(decoder(&plan).len() == 1, lean <= CEILING, "{plan}");
    // The plan's prediction agrees with the simulator's limit.
    let report = bench.plans("lean", "compile").argument("-o").argument(bench.bundle()).json();
    assert_eq!(report["variants"][0]["plan"]["refused_plans"], 0, "{report}");
}
