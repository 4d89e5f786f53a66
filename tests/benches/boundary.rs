//! Host overhead of one more shard: the same model in one shard and in one per layer, alternately,
//! one token at a time. The difference between the fastest steps is divided by the number of added
//! boundaries. It includes all costs of a boundary: binding, the call through the C interface, and
//! starting a run in the shim.

use std::time::{Duration, Instant};

use shardwright::tools::ModelTools;
use shardwright::{Executor, Model, OpenOptions};
use shardwright_tests::measure::{row, shown};
use shardwright_tests::{program, tree};

/// Steps timed per model. The fastest one counts, to exclude other load of the machine.
const STEPS: usize = 400;

/// A fixture so small that a step is mostly overhead.
const MODEL: &str = "tests/fixtures/qwen3";

fn main() {
    let model = |pieces: &str| {
        OpenOptions::new()
            .soc("generic")
            .on(Executor::Cpu)
            .threads(1)
            .context(STEPS as u32 + 8)
            .search_path(program::search_path())
            .planner("even")
            .planner_option("pieces", pieces)
            .strict(true)
            .open(tree::root().join(MODEL))
            .expect("the fixture opens")
    };
    let (whole, cut) = (model("1"), model("6"));
    let boundaries = cut.chain().description().shards.len() - whole.chain().description().shards.len();
    assert!(boundaries >= 4, "the cut model must have more shards");

    let (quickest_whole, quickest_cut) = steps(&whole, &cut);
    let added = quickest_cut.saturating_sub(quickest_whole);
    println!("shard boundary ({MODEL}, 1 thread, decode, {STEPS} steps each in turns)");
    row(&format!("step, {} shards", whole.chain().description().shards.len()), shown(quickest_whole));
    row(&format!("step, {} shards", cut.chain().description().shards.len()), shown(quickest_cut));
    row("host overhead per boundary", format_args!("{} ns", added.as_nanos() / boundaries as u128));
}

/// Returns the fastest step of each model. Both must give the same logits at every step.
fn steps(whole: &Model, cut: &Model) -> (Duration, Duration) {
    let mut sessions = [whole, cut].map(|model| model.chain().session().expect("a session"));
    let mut quickest = [Duration::MAX; 2];
    for step in 0..STEPS as u32 {
        for (session, quickest) in sessions.iter_mut().zip(&mut quickest) {
            let start = Instant::now();
            session.append(&[5 + step % 600]).expect("a step");
            *quickest = start.elapsed().min(*quickest);
        }
        let [whole, cut] = sessions.each_ref().map(|session| session.logits().expect("logits"));
        assert!(whole == cut, "cuts must not change a bit");
    }
    (quickest[0], quickest[1])
}
