//! Shards in worker processes, through the whole project. The bits are the same as in this process,
//! and when a worker dies, the history of tokens suffices to continue.

use std::process::Command;

use shardwright_runtime::{Session, SessionError};
use shardwright_shims::{Running, ShimInstance};
use shardwright_tests::chain::{Bench, Cut, committed, isolated_shims, menu, tokens};
use shardwright_tests::checkpoints::TEXT_FIXTURES;
use shardwright_vocabulary::ErrorClass;
use shardwright_worker::{WorkerEnd, WorkerFailure};

fn logits(session: &mut Session, ids: &[u32]) -> Vec<u32> {
    session.append(ids).unwrap_or_else(|error| panic!("{error}"));
    session.logits().expect("logits follow an append").iter().map(|value| value.to_bits()).collect()
}

fn worker_of(instance: &ShimInstance) -> u32 {
    match instance.running() {
        Running::Worker(report) => report.pid.expect("a worker"),
        Running::InProcess => panic!("not isolated"),
    }
}

#[test]
fn a_model_in_workers_gives_the_same_bits_and_survives_one() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (registry, isolation) = isolated_shims(folder.path());
    let threads = [("threads".to_owned(), "1".to_owned())];
    let local = registry.open("cpu", "here", &threads).expect("the CPU shim opens");
    let isolated = |name: &str| {
        registry.open_isolated("cpu", name, &threads, &isolation).unwrap_or_else(|error| panic!("{error}"))
    };
    for fixture in TEXT_FIXTURES {
        let graph = committed(fixture);
        let menu = menu(96, &[16, 4], &[1, 16]);
        let ids = tokens(&graph, 60);
        let cut =
            Cut { before: vec![1, graph.layers() - 1], around: 0, decoders: vec![0, 1, 0], ..Cut::default() };
        let walk = |session: &mut Session| -> Vec<Vec<u32>> {
            ids.chunks(20).chain([&ids[..1]]).map(|chunk| logits(session, chunk)).collect()
        };
        let here = Bench::over(&graph, &menu, vec![local.clone()]);
        let chain = here.chain(&Cut { decoders: vec![], ..cut.clone() });
        let expected = walk(&mut chain.session().expect("a session"));

        // Three shards of the decoder in two workers. If a shared state does not allow that, the
        // cut differs.
        let instances = [isolated("first"), isolated("second")];
        let bench = Bench::over(&graph, &menu, instances.to_vec());
        let cut = match bench.check(&cut) {
            Ok(_) => cut,
            Err(_) => Cut { decoders: vec![], ..cut },
        };
        let chain = bench.chain(&cut);
        let mut session = chain.session().expect("a session");
        assert!(walk(&mut session) == expected, "{fixture}");

        // The worker of the first shard is killed between two steps, as a dead driver would.
        let dead = worker_of(&instances[0]);
        assert!(
            Command::new("kill").args(["-KILL", &dead.to_string()]).status().expect("kill starts").success()
        );
        let error = session.append(&ids[..1]).expect_err("its worker is dead");
        let SessionError::Run { source, .. } = &error else { panic!("{error:?}") };
        assert_eq!(source.class(), Some(ErrorClass::DeviceLost), "{error}");
        let end = &WorkerFailure::of(source).expect("a worker's end").end;
        assert!(matches!(end, WorkerEnd::Signal { signal: 9, .. }), "{error}");

        // Recovers on the same instances, from the tokens passed to the session.
        instances[0].recover("cpu").unwrap_or_else(|error| panic!("{error}"));
        assert_ne!(worker_of(&instances[0]), dead);
        let again = bench.chain(&cut);
        assert!(walk(&mut again.session().expect("a session")) == expected, "{fixture}: after the loss");
    }
}
