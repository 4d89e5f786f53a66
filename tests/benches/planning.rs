//! Cost of a plan: the planner compiled and called for the first time, loaded from the private
//! cache, and called again, with the compiler and with the interpreter. Also measures everything
//! from the checkpoint's folder to the plan. Covers the demo model, and Gemma 4 E4B in eight
//! formats under a quality goal.

use std::fs;

use shardwright::{FormatChoice, OpenOptions};
use shardwright_planning::builtin;
use shardwright_planning::request::Request;
use shardwright_planning::sandbox::{CompiledCache, EngineKind, Sandbox};
use shardwright_test_checkpoints::Spec;
use shardwright_tests::measure::{row, timed};
use shardwright_tests::neuron::Shim;
use shardwright_tests::{program, tree};

/// Weight formats among the layers of the large model.
const WEIGHTS: [&str; 8] = [
    "w8-per-channel",
    "w8-per-tensor",
    "w4-per-channel[head=w8-per-channel]",
    "w4-per-channel",
    "w4-per-channel[attention-input=w8-per-channel][head=w8-per-channel]",
    "w4-per-channel[mlp-input=w8-per-channel][head=w8-per-channel]",
    "w4-per-channel[mlp-output=w8-per-channel][head=w8-per-channel]",
    "w4-per-channel[per-layer=w8-per-channel][head=w8-per-channel]",
];

fn main() {
    let options = OpenOptions::new().soc("mt6989").limit("ops", 400).search_path(program::search_path());
    let checkpoint = tree::root().join("demo-model");
    let planned = options.plan(&checkpoint).expect("the demo model can be planned");
    row("checkpoint folder to checked plan", timed(5, || options.plan(&checkpoint).expect("plans")));
    planners("demo model", &planned.request);

    let folder = tempfile::tempdir().expect("a temporary folder");
    Spec::e4b().write(folder.path()).expect("written");
    let outline = tempfile::tempdir().expect("a temporary folder");
    fs::copy(folder.path().join("config.json"), outline.path().join("config.json")).expect("copied");
    let formats = WEIGHTS.iter().fold(OpenOptions::new(), |options, weights| {
        let choice: FormatChoice = format!("{weights}/a16-symmetric/a16").parse().expect("formats");
        options.formats(choice)
    });
    let shim = Shim::with("lean");
    let mut path = program::search_path();
    path.shims.insert(0, shim.folder());
    let options = formats.soc("mt6993").quality(150).search_path(path);
    let planned = options.plan(outline.path()).expect("E4B can be planned");
    row("config.json to checked plan, E4B", timed(3, || options.plan(outline.path()).expect("plans")));
    planners("E4B", &planned.request);
}

/// Times the planner alone, on both engines.
fn planners(what: &str, request: &[u8]) {
    let bytes = request.len();
    let request: Request = serde_json::from_slice(request).expect("a request of our own");
    let rows = request.costs.len() as u32;
    println!("planning ({what}, {bytes} bytes of request, {rows} rows of costs)");
    let mut plans = Vec::new();
    for kind in [EngineKind::Native, EngineKind::Pulley] {
        let name = kind.name();
        let sandbox = Sandbox::new(kind).expect("a sandbox");
        let cold = timed(3, || {
            let planner = builtin::load(&sandbox, None).expect("the built-in planner");
            planner.make_plan(&request).plan.expect("a plan")
        });
        row(&format!("{name}: compile and plan"), cold);

        let folder = tempfile::tempdir().expect("a temporary folder");
        let cache = CompiledCache::new(folder.path());
        builtin::load(&sandbox, Some(&cache)).expect("fills the cache");
        let cached = timed(7, || {
            let planner = builtin::load(&sandbox, Some(&cache)).expect("the built-in planner");
            planner.make_plan(&request).plan.expect("a plan")
        });
        row(&format!("{name}: load from the cache and plan (cold)"), cached);

        let planner = builtin::load(&sandbox, Some(&cache)).expect("the built-in planner");
        let warm = timed(21, || planner.make_plan(&request).plan.expect("a plan"));
        row(&format!("{name}: plan (warm)"), warm);
        let answer = planner.make_plan(&request);
        println!(
            "  {name}: {:.2} µs a row, {} of fuel",
            warm.median.as_secs_f64() * 1e6 / f64::from(rows),
            answer.fuel
        );
        plans.push(answer.plan.expect("a plan").canonical_bytes());
    }
    assert!(plans.windows(2).all(|pair| pair[0] == pair[1]), "both engines must give the same bytes");
}
