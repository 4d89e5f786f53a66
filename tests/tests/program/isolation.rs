//! `isolation = process` through the public crate. All work of a shim happens in a worker, and
//! every guarantee of the project is kept: goldens, exact bits, cuts, continued and truncated
//! sessions, and the placement record.
use std::collections::BTreeSet;

use shardwright::NoticeKind;

use shardwright::tools::ModelTools;
use shardwright::{
    BundleOptions, EmbedOptions, ErrorKind, Executor, Isolation, Model, OpenOptions, PlacementRecord,
};
use shardwright_runtime::Truncation;
use shardwright_test_checkpoints::cases;
use shardwright_tests::bundles::{Compiled, contents, logits, some_tokens};
use shardwright_tests::checkpoints::{DEMO_MODEL, EMBEDDING_FIXTURE, TEXT_FIXTURES};
use shardwright_tests::program::{self, shardwright};
use shardwright_tests::{tree, worker};
use shardwright_vocabulary::ProcessPlacement;

/// Returns options in floats, which the chip supports too, because a planner's preferred formats
/// depend on the cuts.
fn with(isolation: Isolation) -> OpenOptions {
    let options = OpenOptions::new().search_path(program::search_path()).isolation(isolation);
    options.formats("f32".parse().expect("a choice"))
}

/// Returns options that cut the model into several shards.
fn cut(isolation: Isolation) -> OpenOptions {
    with(isolation).soc("mt6989").on(Executor::Cpu).limit("ops", 150)
}

fn opened(options: &OpenOptions, checkpoint: &str) -> Model {
    options.open(tree::root().join(checkpoint)).unwrap_or_else(|error| panic!("{checkpoint}: {error}"))
}

fn pids(record: &PlacementRecord) -> BTreeSet<u32> {
    let pid = |process: ProcessPlacement| match process {
        ProcessPlacement::Worker { pid } => pid.expect("a living worker"),
        ProcessPlacement::InProcess => panic!("a shard is not isolated: {record:?}"),
    };
    record.shards.iter().map(|shard| pid(shard.process)).collect()
}

#[test]
fn the_goldens_hold() {
    let run = shardwright(["verify", DEMO_MODEL, "--isolation", "process", "--rows", "16"]);
    let report = run.arguments(["--steps", "2", "--evaluation", cases("8", "111")]).json();
    // By default no weight is rounded.
    assert_eq!((&report["passed"], &report["exact"]), (&true.into(), &true.into()), "{report}");
    shardwright(["verify", TEXT_FIXTURES[1], "--isolation", "process", "--soc", "mt6989", "--on", "cpu"])
        .arguments(["--limit", "ops=400", "--formats", "stored"])
        .succeeds();
}

#[test]
fn workers_give_the_bits_of_this_process() {
    if !worker::is_here("isolation::workers_give_the_bits_of_this_process") {
        return;
    }
    for checkpoint in TEXT_FIXTURES {
        let here = opened(&with(Isolation::Off), checkpoint);
        let there = opened(&cut(Isolation::Process), checkpoint);
        let whole = opened(&with(Isolation::Process), checkpoint);
        let two = opened(&cut(Isolation::Process).planner_option("place.head", "cpu"), checkpoint);
        let ids = some_tokens(&here, 90);
        let expected = logits(&here, &ids[..50], &ids[50..60]);
        for (model, workers) in [(&whole, 1), (&there, 1), (&two, 2)] {
            assert!(logits(model, &ids[..50], &ids[50..60]) == expected, "{checkpoint}: {workers} workers");
            let session = model.chain().session().expect("a session");
            assert_eq!(pids(&session.placement()).len(), workers, "{checkpoint}");
        }
        let shards = [&there, &here].map(|model| model.chain().description().shards.len());
        assert!(shards[0] > shards[1], "{checkpoint}: {shards:?}");
        assert!(walk(&here, &ids) == walk(&there, &ids), "{checkpoint}");
        two_sessions_do_not_disturb_each_other(&here, &there, &ids);
        if checkpoint == TEXT_FIXTURES[1] {
            the_record_names_the_worker(&there, &ids);
        }

        // A worker ends with its model.
        drop((whole, two));
        let mut session = there.chain().session().expect("a session");
        session.append(&ids[..4]).expect("run");
        let workers = pids(&session.placement());
        let alive = |pid: &u32| std::path::Path::new(&format!("/proc/{pid}")).exists();
        assert!(workers.iter().all(alive));
        drop(session);
        drop(there);
        assert!(!workers.iter().any(alive), "{workers:?}");
    }
    let text = |isolation| {
        let model = opened(&with(isolation), EMBEDDING_FIXTURE);
        model.embed("a text", &EmbedOptions::default()).unwrap_or_else(|error| panic!("{error}"))
    };
    assert_eq!(text(Isolation::Process), text(Isolation::Off));
}

/// Continues and truncates a session. Returns the bits of its logits, and whether each truncation
/// was free. In Gemma 4, later layers read the keys of earlier ones. Some layers keep a ring.
fn walk(model: &Model, ids: &[u32]) -> Vec<(Vec<u32>, bool)> {
    let mut session = model.chain().session().unwrap_or_else(|error| panic!("{error}"));
    let steps = [(40, 38), (60, 20), (90, 0), (30, 30)].into_iter();
    let step = |(end, keep): (usize, usize)| {
        let begin = session.tokens().len();
        session.append(&ids[begin.min(end - 1)..end]).unwrap_or_else(|error| panic!("{error}"));
        let logits = session.logits().expect("logits");
        let bits: Vec<u32> = logits.iter().map(|value| value.to_bits()).collect();
        let truncation = session.truncate(keep).unwrap_or_else(|error| panic!("{error}"));
        (bits, matches!(truncation, Truncation::Free))
    };
    steps.map(step).collect()
}

fn two_sessions_do_not_disturb_each_other(here: &Model, there: &Model, ids: &[u32]) {
    let alone = [logits(here, &ids[..10], &ids[10..30]), logits(here, &ids[5..20], &ids[20..40])];
    let both: Vec<_> = std::thread::scope(|scope| {
        let one = scope.spawn(|| logits(there, &ids[..10], &ids[10..30]));
        let other = scope.spawn(|| logits(there, &ids[5..20], &ids[20..40]));
        [one, other].map(|thread| thread.join().expect("no panic")).to_vec()
    });
    assert!(both == alone);
}

/// The record names the worker, and shared memory is not copied.
fn the_record_names_the_worker(model: &Model, ids: &[u32]) {
    let mut session = model.chain().session().expect("a session");
    session.append(&ids[..12]).expect("run");
    let record = session.placement();
    assert!(record.shards.len() > 3, "{record:?}");
    let workers = pids(&record);
    assert!(!workers.contains(&std::process::id()));
    // There is one worker for each target in use.
    let instances: BTreeSet<&str> = record.shards.iter().map(|shard| shard.place.instance.as_str()).collect();
    assert_eq!(workers.len(), instances.len(), "{record:?}");
    for shard in &record.shards {
        assert!(shard.runs > 0, "{shard:?}");
    }
    for boundary in record.boundaries.iter() {
        assert_eq!((boundary.copied_because, boundary.bytes_copied), (None, 0), "{boundary:?}");
    }
    let json = serde_json::to_value(&record).expect("JSON");
    assert_eq!(json["shards"][0]["process"], "worker", "{json}");
    assert!(json["shards"][0]["pid"].is_u64(), "{json}");

    // If only compiling is isolated, the model runs in this process.
    let model = opened(&cut(Isolation::Compile), TEXT_FIXTURES[1]);
    let mut session = model.chain().session().expect("a session");
    session.append(&ids[..12]).expect("run");
    assert!(session.placement().shards.iter().all(|shard| shard.process == ProcessPlacement::InProcess));
}

#[test]
fn a_bundle_runs_in_a_worker_and_is_the_same_bundle_when_made_in_one() {
    if !worker::is_here("isolation::a_bundle_runs_in_a_worker_and_is_the_same_bundle_when_made_in_one") {
        return;
    }
    let arguments = ["--soc", "mt6989", "--on", "cpu", "--limit", "ops=400"];
    let made = |isolation: &str| {
        Compiled::from(TEXT_FIXTURES[1], arguments.into_iter().chain(["--isolation", isolation]))
    };
    let (isolated, local) = (made("process"), made("off"));
    assert!(contents(&isolated.path()) == contents(&local.path()));

    let open = |isolation| {
        let options = BundleOptions::new().search_path(program::search_path()).isolation(isolation);
        options.open(isolated.path()).unwrap_or_else(|error| panic!("{error}"))
    };
    let (here, there) = (open(Isolation::Off), open(Isolation::Process));
    let ids = some_tokens(&here, 40);
    assert!(logits(&here, &ids[..30], &ids[30..]) == logits(&there, &ids[..30], &ids[30..]));
    let mut session = there.chain().session().expect("a session");
    session.append(&ids[..3]).expect("run");
    assert!(!pids(&session.placement()).contains(&std::process::id()));
}

/// This program has no worker in its folder.
#[test]
fn without_a_worker_automatic_says_so_and_process_is_an_error() {
    if std::env::var_os("SHARDWRIGHT_WORKER").is_some() {
        return;
    }
    let model = opened(&with(Isolation::Automatic), TEXT_FIXTURES[3]);
    let plan = model.plan().expect("a plan");
    let said = plan.notices.iter().find(|notice| notice.text.contains("shardwright-worker"));
    let said = said.unwrap_or_else(|| panic!("nothing is said: {:?}", plan.notices));
    assert_eq!(said.kind, NoticeKind::Note);
    assert!(said.text.contains("in this process"), "{}", said.text);

    for isolation in [Isolation::Compile, Isolation::Process] {
        let error = match with(isolation).open(tree::root().join(TEXT_FIXTURES[3])) {
            Ok(_) => panic!("opened"),
            Err(error) => error,
        };
        assert_eq!(error.kind(), ErrorKind::Missing, "{error}");
        assert!(error.to_string().contains("shardwright-worker"), "{error}");
        assert!(error.help().is_some(), "{error}");
    }

    let bundle = Compiled::of(TEXT_FIXTURES[3]);
    let options = |isolation| BundleOptions::new().search_path(program::search_path()).isolation(isolation);
    let model = options(Isolation::Automatic).open(bundle.path()).unwrap_or_else(|error| panic!("{error}"));
    // A bundle compiles no shard and runs in this process even with a worker, so there is no
    // notice.
    assert!(model.report().notices_of_opening.is_empty(), "{:?}", model.report().notices_of_opening);
    let error = match options(Isolation::Process).open(bundle.path()) {
        Ok(_) => panic!("opened"),
        Err(error) => error,
    };
    assert_eq!(error.kind(), ErrorKind::Missing, "{error}");
}

#[test]
fn the_program_says_the_same() {
    let run = |isolation: &str| {
        shardwright(["run", TEXT_FIXTURES[3], "--prompt", "text", "--max-tokens", "4", "--greedy"])
            .arguments(["--isolation", isolation])
            .environment("SHARDWRIGHT_WORKER", "/nowhere/worker")
    };
    let outcome = run("automatic").outcome();
    assert_eq!(outcome.code, Some(0), "{}", outcome.stderr);
    assert!(
        outcome.stderr.contains("note: ") && outcome.stderr.contains("/nowhere/worker"),
        "{}",
        outcome.stderr
    );
    run("process").refuses_with(3, &["/nowhere/worker"]);
    let outcome = run("off").outcome();
    assert!(!outcome.stderr.contains("/nowhere/worker"), "{}", outcome.stderr);
}
