//! Hundreds of ended workers leave this process unchanged. The test is alone in its program, since
//! it counts the resources of the whole process.

mod common;

use common::{Shims, doubling, f32_bytes, isolation};
use shardwright_shims::{
    Artefact, ArtefactDestination, Bound, RunOptions, ShimError, ShimInstance, ShimRegistry, WorkOrder,
    WorkOrderBuilder,
};
use shardwright_test_checkpoints::cases;
use shardwright_worker::{WorkerEnd, WorkerFailure};

/// Resources that could leak.
#[derive(Debug, PartialEq, Eq)]
struct Holdings {
    descriptors: usize,
    threads: usize,
    children: usize,
    shared_mappings: usize,
    files: usize,
}

fn entries(directory: &str) -> usize {
    std::fs::read_dir(directory).unwrap().count()
}

fn holdings(directory: &std::path::Path) -> Holdings {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let children = tasks
        .filter_map(|task| std::fs::read_to_string(task.ok()?.path().join("children")).ok())
        .map(|children| children.split_whitespace().count())
        .sum();
    Holdings {
        descriptors: entries("/proc/self/fd"),
        threads: entries("/proc/self/task"),
        children,
        // The allocator's mappings vary.
        shared_mappings: maps.lines().filter(|line| line.contains("memfd:") || line.contains(".sw")).count(),
        files: entries(&directory.display().to_string()),
    }
}

fn mappings() -> usize {
    std::fs::read_to_string("/proc/self/maps").unwrap().lines().count()
}

struct Bench {
    registry: ShimRegistry,
    order: WorkOrder,
    artefact: Artefact,
    directory: tempfile::TempDir,
    _shims: Shims,
}

impl Bench {
    /// Makes one call that ends the worker.
    fn die(&self, instance: &ShimInstance, place: &str) -> ShimError {
        let buffer = || instance.allocate("npu", 16, 16);
        match place {
            "devices" => instance.devices(None).unwrap_err(),
            "check" => instance.check("npu", &doubling(), &[]).unwrap_err(),
            "compile-half" => {
                let place = ArtefactDestination::Directory(self.directory.path());
                instance.compile("npu", &self.order, place, &mut ()).unwrap_err()
            }
            "load" => instance.load("npu", &self.artefact, &[]).unwrap_err(),
            _ => {
                let mut shard = instance.load("npu", &self.artefact, &[]).unwrap();
                let (x, y) = (buffer().unwrap(), buffer().unwrap());
                x.write().unwrap().copy_from_slice(&f32_bytes(&[1.0; 4]));
                let mut plain = [0; 16];
                shard
                    .run(0, 4, &mut [Bound::Buffer(&x), Bound::Write(&mut plain)], RunOptions::default())
                    .unwrap_err();
                shard
                    .run(0, 4, &mut [Bound::Buffer(&x), Bound::Buffer(&y)], RunOptions::default())
                    .unwrap_err()
            }
        }
    }

    fn deaths(&self, count: usize) {
        const PLACES: [&str; 5] = ["devices", "check", "compile-half", "load", "run"];
        const HOWS: [&str; 6] = ["abort", "segv", "exit", "exit-3", "fork-exit", "babble"];
        for number in 0..count / 2 {
            let (place, how) = (PLACES[number % PLACES.len()], HOWS[number / PLACES.len() % HOWS.len()]);
            let options = [("die".to_owned(), format!("{place}:{how}"))];
            let instance = self.registry.open_isolated("dying", "one", &options, &isolation()).unwrap();
            // And once more in the new worker of the same instance.
            for _ in 0..2 {
                let error = self.die(&instance, place);
                let failure = WorkerFailure::of(&error).unwrap_or_else(|| panic!("{place}:{how}: {error:?}"));
                let never = matches!(failure.end, WorkerEnd::OverTime { .. } | WorkerEnd::Start { .. });
                assert!(!never, "{place}:{how}: {error}");
            }
        }
    }
}

#[test]
fn hundreds_of_deaths_leave_nothing_behind() {
    let shims = Shims::new();
    shims.dying(None);
    let registry = ShimRegistry::builder().isolated(isolation()).directory(shims.path()).build();
    let order = WorkOrderBuilder::new(&[]).entry(&doubling()).unwrap().temporary().unwrap();
    let healthy = registry.open_isolated("dying", "healthy", &[], &isolation()).unwrap();
    let artefact = healthy.compile("npu", &order, ArtefactDestination::Temporary, &mut ()).unwrap();
    let bench = Bench { registry, order, artefact, directory: tempfile::tempdir().unwrap(), _shims: shims };
    bench.deaths(60);
    let before = (holdings(bench.directory.path()), mappings());
    // Each place and each kind of end occurs within thirty cases.
    bench.deaths(cases(120, 1000));
    let after = (holdings(bench.directory.path()), mappings());
    assert_eq!(before.0, after.0);
    assert_eq!(after.0.children, 1, "the healthy one");
    // Arenas of the allocator may differ by a few.
    assert!(after.1 <= before.1 + 8, "{} mappings, then {}", before.1, after.1);
    assert_eq!(healthy.devices(None).unwrap().len(), 1);
    drop(healthy);
    assert_eq!(holdings(bench.directory.path()).children, 0);
}
