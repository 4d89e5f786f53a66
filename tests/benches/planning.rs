//! Cost of a plan: the planner compiled and called for the first time, loaded from the private
//! cache, and called again, with the compiler and with the interpreter; also everything from the
//! checkpoint's folder to the plan.

use shardwright::OpenOptions;
use shardwright_planning::builtin;
use shardwright_planning::request::Request;
use shardwright_planning::sandbox::{CompiledCache, EngineKind, Sandbox};
use shardwright_tests::measure::{row, timed};
use shardwright_tests::{program, tree};

fn main() {
    let checkpoint = tree::root().join("demo-model");
    let options = OpenOptions::new().soc("mt6989").limit("ops", 400).search_path(program::search_path());
    let planned = options.plan(&checkpoint).expect("the demo model can be planned");
    let request: Request = serde_json::from_slice(&planned.request).expect("a request of our own");

    println!("planning (demo model, {} bytes of request)", planned.request.len());
    row("checkpoint folder to checked plan", timed(5, || options.plan(&checkpoint).expect("plans")));
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
        let cached = timed(21, || {
            let planner = builtin::load(&sandbox, Some(&cache)).expect("the built-in planner");
            planner.make_plan(&request).plan.expect("a plan")
        });
        row(&format!("{name}: load from the cache and plan (cold)"), cached);

        let planner = builtin::load(&sandbox, Some(&cache)).expect("the built-in planner");
        row(&format!("{name}: plan (warm)"), timed(51, || planner.make_plan(&request).plan.expect("a plan")));
        plans.push(planner.make_plan(&request).plan.expect("a plan").canonical_bytes());
    }
    assert!(plans.windows(2).all(|pair| pair[0] == pair[1]), "both engines must give the same bytes");
}
