//! The entry point that verifies proposed tokens, through vendors' compilers. The rows of one step
//! must give the results of single-row steps.

use std::path::Path;
use std::sync::PoisonError;

use shardwright::tools::ModelTools;
use shardwright::{Executor, FormatChoice, OpenOptions, SearchPath};
use shardwright_runtime::{Session, StepView};
use shardwright_tests::cache::Cache;
use shardwright_tests::checkpoints::DEMO_MODEL;
use shardwright_tests::neuron::{A16W8, Shim};
use shardwright_tests::qnn::{COSINE, ROW_P95, library};
use shardwright_tests::{program, tree};

use crate::neuron::PROCESSOR;

/// Rows of the verifying entry point on a chip.
const ROWS: usize = 16;
/// Positions of the context, which is short because a simulator computes every masked one.
const CONTEXT: u32 = 64;

/// Returns options for the demo model on a chip's simulator alone. The planner would place such a
/// small model on the CPU. Whether verifying is worth it does not matter here.
fn options(soc: &str, formats: &str, path: SearchPath, cache: &Path) -> OpenOptions {
    let formats: FormatChoice = formats.parse().expect("formats");
    let options = OpenOptions::new()
        .search_path(path)
        .cache_directory(cache)
        .soc(soc)
        .on(Executor::Simulator)
        .context(CONTEXT)
        .formats(formats)
        .strict(true)
        .planner_option("speculation", ROWS.to_string());
    let components = ["embed", "decoder", "head"].map(|component| format!("place.{component}"));
    components.into_iter().fold(options, |options, place| options.planner_option(place, soc))
}

/// Returns the logits after each token, with the entry points that computed them.
fn scored(session: &mut Session, ids: &[u32], at_once: usize) -> (Vec<Vec<f32>>, Vec<String>) {
    let (mut rows, mut entries) = (Vec::new(), Vec::new());
    for ids in ids.chunks(at_once) {
        let mut visit = |step: &mut StepView<'_>| {
            entries.push(step.entry().to_owned());
            rows.extend((0..step.rows()).map(|row| step.logits(row).expect("logits").to_vec()));
        };
        session.score(ids, &mut visit).expect("scored");
    }
    (rows, entries)
}

fn norm(values: impl Iterator<Item = f32>) -> f64 {
    values.map(|value| f64::from(value).powi(2)).sum::<f64>().sqrt()
}

fn rows_of_one_step_are_those_of_several(options: &OpenOptions) {
    let model = options.open(tree::root().join(DEMO_MODEL)).unwrap_or_else(|error| panic!("{error}"));
    let plan = model.plan().expect("it was planned");
    let speculation = plan.speculation.as_ref().expect("it was asked for");
    assert_eq!((speculation.draft.as_str(), speculation.rows), ("lookup", ROWS as u32));
    assert_eq!(plan.emulated_on, None);
    let ids: Vec<u32> = (0..2 * ROWS as u32).map(|index| 5 + 11 * index % 90).collect();
    let mut session = model.chain().session().expect("a session");
    let (one, entries) = scored(&mut session, &ids, 1);
    assert!(entries.iter().all(|entry| *entry == format!("decode_1@{CONTEXT}")), "{entries:?}");
    session.clear();
    // The second step begins in the middle of a context.
    let (several, entries) = scored(&mut session, &ids, ROWS);
    assert_eq!(entries, vec![format!("decode_{ROWS}@{CONTEXT}"); 2]);
    assert_eq!((one.len(), several.len()), (ids.len(), ids.len()));
    for (row, (one, several)) in one.iter().zip(&several).enumerate() {
        let difference = norm(one.iter().zip(several).map(|(one, several)| one - several));
        let (length, other) = (norm(one.iter().copied()), norm(several.iter().copied()));
        let product: f64 = one.iter().zip(several).map(|(one, other)| f64::from(one * other)).sum();
        let (error, cosine) = (difference / length, product / (length * other));
        assert!(error <= ROW_P95 && cosine >= COSINE, "row {row}: {error} {cosine}");
    }
}

#[test]
fn qualcomm_s_compiler_gives_the_rows_of_one_step_what_several_give() {
    if !library() {
        return;
    }
    let cache = Cache::for_test();
    let options = options("sm8850", "w8-per-channel/a16/a16", program::search_path(), cache.path());
    rows_of_one_step_are_those_of_several(&options);
}

#[test]
fn mediatek_s_compiler_gives_the_rows_of_one_step_what_several_give() {
    let cache = Cache::for_test();
    let shim = Shim::with("lean");
    let mut path = program::search_path();
    path.shims.insert(0, shim.folder());
    let _usual = PROCESSOR.read().unwrap_or_else(PoisonError::into_inner);
    rows_of_one_step_are_those_of_several(&options("mt6989", A16W8, path, cache.path()));
}
