//! Which crate may use which. The table defines the project's structure. Any other arrow fails.

use std::collections::{BTreeMap, BTreeSet};

use cargo_metadata::{DependencyKind, MetadataCommand};
use shardwright_tests::tree;

/// A crate and the crates its library or program may use.
const ARROWS: &[(&str, &[&str])] = &[
    // Only for authors of planners.
    (
        "shardwright-cli",
        &[
            "shardwright",
            "shardwright-trust",
            "shardwright-files",
            "shardwright-verify",
            "shardwright-tune",
            "shardwright-perplexity",
            "shardwright-runtime",
            "shardwright-worker",
            "shardwright-bundle",
            "shardwright-delivery",
            "shardwright-hub",
            "shardwright-planning",
            "shardwright-build",
            "shardwright-checkpoints",
            "shardwright-doctor",
            "shardwright-measure",
            "shardwright-planner-build",
            "shardwright-serve",
        ],
    ),
    // Bindings to other languages: the public crate alone, and the types of the core alone.
    ("shardwright-bindings-core", &["shardwright"]),
    ("shardwright-bindings-c", &["shardwright-bindings-core"]),
    // Serves models over HTTP. The program decides how they are opened.
    ("shardwright-serve", &["shardwright-vocabulary", "shardwright-files", "shardwright"]),
    // Lays a bundle out for a channel. Loads no model.
    ("shardwright-delivery", &["shardwright-bundle", "shardwright-files", "shardwright-vocabulary"]),
    // Finds and fetches models. Does not read them.
    ("shardwright-hub", &["shardwright-files", "shardwright-vocabulary"]),
    // Built on the public crate, for people and tools.
    (
        "shardwright-verify",
        &[
            "shardwright-vocabulary",
            "shardwright-files",
            "shardwright-graph",
            "shardwright-models",
            "shardwright-reference",
            "shardwright-text",
            "shardwright-shims",
            "shardwright-worker",
            "shardwright-bundle",
            "shardwright-selection",
            "shardwright-runtime",
            "shardwright",
            "shardwright-build",
            "shardwright-checkpoints",
        ],
    ),
    (
        "shardwright-tune",
        &[
            "shardwright-vocabulary",
            "shardwright-files",
            "shardwright-planning",
            "shardwright-bundle",
            "shardwright-runtime",
            "shardwright",
            "shardwright-build",
            "shardwright-checkpoints",
            "shardwright-doctor",
            "shardwright-measure",
        ],
    ),
    (
        "shardwright-perplexity",
        &[
            "shardwright-vocabulary",
            "shardwright-files",
            "shardwright-text",
            "shardwright-shims",
            "shardwright-bundle",
            "shardwright-runtime",
            "shardwright",
        ],
    ),
    (
        "shardwright-doctor",
        &[
            "shardwright-vocabulary",
            "shardwright-trust",
            "shardwright-files",
            "shardwright-graph",
            "shardwright-models",
            "shardwright-planning",
            "shardwright-shims",
            "shardwright-worker",
            "shardwright-bundle",
            "shardwright-selection",
            "shardwright-runtime",
            "shardwright",
            "shardwright-build",
            "shardwright-checkpoints",
        ],
    ),
    (
        "shardwright",
        &[
            "shardwright-vocabulary",
            "shardwright-trust",
            "shardwright-files",
            "shardwright-graph",
            "shardwright-models",
            "shardwright-text",
            "shardwright-preprocessing",
            "shardwright-shims",
            "shardwright-bundle",
            "shardwright-worker",
            "shardwright-selection",
            "shardwright-runtime",
            "shardwright-constraint",
            "shardwright-build",
            "shardwright-checkpoints",
        ],
    ),
    // Supplies checkpoints to the loop that plans and compiles, and makes bundles of them.
    (
        "shardwright-checkpoints",
        &[
            "shardwright-vocabulary",
            "shardwright-files",
            "shardwright-gguf",
            "shardwright-graph",
            "shardwright-planning",
            "shardwright-report",
            "shardwright-worker",
            "shardwright-bundle",
            "shardwright-models",
            "shardwright-quantisation",
            "shardwright-forward",
            "shardwright-text",
            "shardwright-drafting",
            "shardwright-preprocessing",
            "shardwright-build",
        ],
    ),
    // Plans and compiles models that others supply. Does not read checkpoints.
    (
        "shardwright-build",
        &[
            "shardwright-vocabulary",
            "shardwright-trust",
            "shardwright-files",
            "shardwright-graph",
            "shardwright-planning",
            "shardwright-report",
            "shardwright-shims",
            "shardwright-worker",
            "shardwright-bundle",
        ],
    ),
    // Data about plans. Makes no plans.
    ("shardwright-report", &["shardwright-graph", "shardwright-planning", "shardwright-vocabulary"]),
    // Runs a model on a shim and observes values inside it for measurements.
    (
        "shardwright-forward",
        &["shardwright-shims", "shardwright-reference", "shardwright-graph", "shardwright-vocabulary"],
    ),
    // Queries shims to select the chain of a bundle to run.
    ("shardwright-selection", &["shardwright-bundle", "shardwright-shims", "shardwright-vocabulary"]),
    (
        "shardwright-runtime",
        &[
            "shardwright-bundle",
            "shardwright-shims",
            "shardwright-text",
            "shardwright-drafting",
            "shardwright-constraint",
            "shardwright-graph",
            "shardwright-vocabulary",
        ],
    ),
    (
        "shardwright-quantisation",
        &["shardwright-reference", "shardwright-graph", "shardwright-files", "shardwright-vocabulary"],
    ),
    ("shardwright-reference", &["shardwright-graph", "shardwright-vocabulary"]),
    (
        "shardwright-models",
        &["shardwright-graph", "shardwright-gguf", "shardwright-files", "shardwright-vocabulary"],
    ),
    // A file format. The crates that read it decide the meaning of its keys and tensors.
    ("shardwright-gguf", &["shardwright-vocabulary"]),
    (
        "shardwright-planning",
        &["shardwright-graph", "shardwright-trust", "shardwright-files", "shardwright-vocabulary"],
    ),
    (
        "shardwright-bundle",
        &["shardwright-graph", "shardwright-trust", "shardwright-files", "shardwright-vocabulary"],
    ),
    (
        "shardwright-shims",
        &[
            "shardwright-graph",
            "shardwright-shim-abi",
            "shardwright-trust",
            "shardwright-files",
            "shardwright-vocabulary",
        ],
    ),
    // Implements the shims' traits from outside, without their crates depending on it.
    (
        "shardwright-worker",
        &["shardwright-shims", "shardwright-graph", "shardwright-shim-abi", "shardwright-vocabulary"],
    ),
    // Keys and signatures, for all crates that read files from untrusted sources.
    ("shardwright-trust", &["shardwright-files", "shardwright-vocabulary"]),
    ("shardwright-text", &["shardwright-gguf", "shardwright-files", "shardwright-vocabulary"]),
    ("shardwright-drafting", &["shardwright-text", "shardwright-vocabulary"]),
    // Knows the tokens that a grammar allows, but no sessions.
    ("shardwright-constraint", &["shardwright-text", "shardwright-vocabulary"]),
    ("shardwright-preprocessing", &["shardwright-files", "shardwright-vocabulary"]),
    // Opens files for all crates that read user-supplied paths.
    ("shardwright-files", &["shardwright-vocabulary"]),
    // Plain data that all other crates share. Shims get it through the contract.
    ("shardwright-vocabulary", &["shardwright-amounts"]),
    ("shardwright-graph", &["shardwright-vocabulary"]),
    // Texts of amounts in reports and reasons.
    ("shardwright-amounts", &[]),
    ("shardwright-planner", &["shardwright-amounts"]),
    ("shardwright-planner-build", &["shardwright-vocabulary"]),
    ("shardwright-planner-generic", &["shardwright-planner"]),
    ("shardwright-planner-mediatek", &["shardwright-planner"]),
    ("shardwright-planner-qualcomm", &["shardwright-planner"]),
    ("shardwright-planner-even", &["shardwright-planner"]),
    ("shardwright-planner-example-policy", &["shardwright-planner"]),
    ("shardwright-shim-abi", &["shardwright-vocabulary"]),
    ("shardwright-neuron-adapter", &[]),
    ("shardwright-neuron-files", &["shardwright-neuron-adapter"]),
    ("shardwright-neuron-simulator", &["shardwright-neuron-adapter", "shardwright-neuron-files"]),
    ("shardwright-neuron-recorder", &["shardwright-neuron-adapter", "shardwright-neuron-files"]),
    // For tests of shims.
    ("shardwright-shim-testing", &["shardwright-shim-abi"]),
    ("shardwright-shim-cpu", &["shardwright-shim-abi"]),
    // Each exports its shim as a shared library.
    ("shardwright-shim-cpu-library", &["shardwright-shim-abi", "shardwright-shim-cpu"]),
    ("shardwright-shim-qnn-library", &["shardwright-shim-abi", "shardwright-shim-qnn"]),
    ("shardwright-shim-neuron-library", &["shardwright-shim-abi", "shardwright-shim-neuron"]),
    // Code shared by the shims of neural processors. Does not know any of them.
    ("shardwright-shim-npu", &["shardwright-shim-abi"]),
    ("shardwright-shim-qnn", &["shardwright-shim-abi", "shardwright-shim-npu"]),
    (
        "shardwright-shim-neuron",
        &[
            "shardwright-shim-abi",
            "shardwright-shim-npu",
            "shardwright-neuron-adapter",
            "shardwright-neuron-files",
        ],
    ),
    ("shardwright-shim-template", &["shardwright-shim-abi"]),
    // A shim for tests.
    (
        "shardwright-shim-picky",
        &["shardwright-shim-abi", "shardwright-shim-testing", "shardwright-vocabulary"],
    ),
    (TESTS[0], &[]),
    (TESTS[1], &[]),
    ("shardwright-test-checkpoints", &[]),
    ("shardwright-test-features", &[]),
    // Programs that the tests of planning build or start.
    ("shardwright-planner-hostile", &["shardwright-planner"]),
    (
        "shardwright-planning-runtime-only",
        &["shardwright-planning", "shardwright-build", "shardwright-trust"],
    ),
    // Shared by `shardwright bench` and the comparison with peers.
    ("shardwright-measure", &[]),
    ("xtask", &["shardwright-measure"]),
];

/// Dependencies behind a feature that is off by default.
const OPTIONAL_ARROWS: &[(&str, &str, &str)] = &[(
    "shardwright",
    "shardwright-shim-cpu",
    "the CPU engine linked in, for programs that cannot load a dylib",
)];

/// Crates that a build script may use in addition to the crate's own arrows.
const BUILD_ARROWS: &[(&str, &str, &str)] = &[];

/// Crates that tests may use in addition to the crate's own arrows.
const TEST_ARROWS: &[(&str, &str, &str)] = &[
    ("shardwright-planning", "shardwright-planner-build", "planners to ask and to be attacked by"),
    ("shardwright-reference", "shardwright-models", "the goldens belong to checkpoints"),
    ("shardwright-models", "shardwright-reference", "what a graph means is what the evaluator makes of it"),
    (
        "shardwright-quantisation",
        "shardwright-models",
        "formats are judged on the demo model and on real shapes",
    ),
    ("shardwright-build", "shardwright-models", "plans are made for the committed fixtures"),
    ("shardwright-build", "shardwright-quantisation", "plans are carried out in quantised formats"),
    ("shardwright-delivery", "shardwright-graph", "segments of bundles that tests write"),
    ("shardwright-runtime", "shardwright-reference", "the oracle of a chain of shards"),
    ("shardwright-runtime", "shardwright-models", "chains of real architectures"),
    ("shardwright-shim-cpu", "shardwright-shim-testing", "tables, the host's side of the door, an evaluator"),
    ("shardwright-shim-npu", "shardwright-shim-testing", "tables of entries to read"),
    ("shardwright-shim-qnn", "shardwright-shim-testing", "tables and the host's side of the door"),
    (
        "shardwright-shim-neuron",
        "shardwright-shim-testing",
        "tables, the host's side of the door, an evaluator",
    ),
    (
        "shardwright-shim-neuron",
        "shardwright-neuron-simulator",
        "the library it calls in tests, opened by its file",
    ),
];

/// Crates that may use any crate. No other crate may use them.
const TESTS: [&str; 2] = ["shardwright-tests", "shardwright-vendor-tests"];

/// Test helper that the tests of any crate may use.
const TEST_HELPER: &str = "shardwright-test-checkpoints";

#[test]
fn every_arrow_between_crates_is_in_the_plan() {
    let metadata = MetadataCommand::new()
        .manifest_path(tree::root().join("Cargo.toml"))
        .no_deps()
        .exec()
        .expect("cargo metadata");
    let plan: BTreeMap<_, BTreeSet<_>> =
        ARROWS.iter().map(|(name, uses)| (*name, uses.iter().copied().collect())).collect();
    let crates: BTreeSet<_> = metadata.packages.iter().map(|package| package.name.as_str()).collect();

    let mut wrong = Vec::new();
    for package in &metadata.packages {
        let name = package.name.as_str();
        let Some(allowed) = plan.get(name) else {
            wrong.push(format!("{name} is a crate that the plan does not list"));
            continue;
        };
        for dependency in &package.dependencies {
            let used = dependency.name.as_str();
            if !crates.contains(used) || allowed.contains(used) || TESTS.contains(&name) {
                continue;
            }
            let (kind, further) = match dependency.kind {
                DependencyKind::Build => ("build script of ", BUILD_ARROWS),
                DependencyKind::Development if used == TEST_HELPER => continue,
                DependencyKind::Development => ("tests of ", TEST_ARROWS),
                _ if dependency.optional => ("optionally ", OPTIONAL_ARROWS),
                _ => ("", [].as_slice()),
            };
            if !further.iter().any(|(from, to, _)| (*from, *to) == (name, used)) {
                wrong.push(format!("{kind}{name} → {used}"));
            }
        }
    }
    for name in plan.keys() {
        if !crates.contains(name) {
            wrong.push(format!("{name} is in the plan and not in the workspace"));
        }
    }
    assert!(wrong.is_empty(), "arrows that are not in the plan:\n  {}", wrong.join("\n  "));
}

#[test]
fn the_plan_has_no_circle() {
    let mut settled = BTreeSet::new();
    while settled.len() < ARROWS.len() {
        let before = settled.len();
        for (name, uses) in ARROWS {
            if uses.iter().all(|used| settled.contains(used)) {
                settled.insert(*name);
            }
        }
        assert!(settled.len() > before, "circle among the crates beyond {settled:?}");
    }
}
