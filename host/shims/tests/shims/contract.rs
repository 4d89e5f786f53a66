//! Tests of violations and failures. A violation of the contract is reported with the function and
//! the reason. A failure of the shim is reported completely.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use crate::common::{Builder, Shims, doubling, f32_bytes, f32_values};
use shardwright_graph::{Op, Role};
use shardwright_shims::{
    Artefact, ArtefactDestination, Bound, Heads, RunOptions, ShimError, ShimInstance, ShimRegistry,
    WorkOrder, WorkOrderBuilder,
};
use shardwright_vocabulary::{
    Compatibility, DType, DeviceKind, EntryKind, ErrorClass, Flag, FlagStage, FlagType, FlagVerdict,
    Provenance, Watch,
};

struct Fixture {
    _shims: Shims,
    registry: ShimRegistry,
}

impl Fixture {
    fn new() -> Fixture {
        let shims = Shims::new();
        shims.faulty();
        Fixture { registry: shims.registry(), _shims: shims }
    }

    fn open(&self, fault: &str) -> ShimInstance {
        self.registry.open("faulty", fault, &[("fault".to_owned(), fault.to_owned())]).unwrap()
    }
}

fn order() -> WorkOrder {
    let flag = |name: &str| Flag { name: name.to_owned(), value: "3".to_owned() };
    WorkOrderBuilder::new(&[])
        .entry(&doubling())
        .unwrap()
        .flag(flag("opt"))
        .flag(flag("unheard-of"))
        .temporary()
        .unwrap()
}

fn compile(instance: &ShimInstance) -> Result<Artefact, ShimError> {
    instance.compile("npu", &order(), ArtefactDestination::Temporary, &mut ())
}

fn broken<T: std::fmt::Debug>(result: Result<T, ShimError>, function: &str, text: &str) {
    match result {
        Err(ShimError::Contract { function: named, reason, shim }) => {
            assert_eq!(named, function, "{reason}");
            assert!(reason.contains(text), "{shim}: {reason}");
        }
        other => panic!("{text}: {other:?}"),
    }
}

#[test]
fn answers_against_the_contract_are_caught() {
    let fixture = Fixture::new();
    let two = {
        let mut b = Builder::new(EntryKind::Encode, 1, 1, 1);
        let x = b.input("x", &[1, 1], DType::F32, Role::Hidden);
        let y = b.node("a", Op::Neg, &[x], &[1, 1]);
        let z = b.node("b", Op::Neg, &[y], &[1, 1]);
        b.entry.outputs.push((z, Role::Hidden));
        b.entry
    };
    broken(
        fixture.registry.open("faulty", "x", &[("fault".to_owned(), "open-null".to_owned())]),
        "open",
        "without an instance",
    );
    for (fault, text) in
        [("device-kind", "device kind 77"), ("device-name", "a string is null"), ("device-size", "16 bytes")]
    {
        broken(fixture.open(fault).devices(None), "devices", text);
    }
    broken(fixture.open("limit-provenance").limits("npu"), "limits", "provenance 99");
    broken(fixture.open("flag-kind").flags("npu"), "flags", "flag kind 42");
    broken(fixture.open("flag-stage").flags("npu"), "flags", "flag stage 7");
    for (fault, text) in [
        ("verdict-node", "node 2"),
        ("verdict-twice", "two verdicts on node 0"),
        ("verdict-kind", "verdict 9"),
        ("verdict-reason", "a string is null"),
        ("error-size", ""),
    ] {
        if fault != "error-size" {
            broken(fixture.open(fault).check("npu", &two, &[]), "check", text);
        }
    }
    broken(fixture.open("error-size").check("npu", &two, &[]), "check", "invalid error object");
    let partial = fixture.open("verdict-missing").check("npu", &two, &[]).unwrap();
    assert!(partial[0].accepted && !partial[1].accepted);
    assert!(partial[1].reason.contains("did not report a verdict"), "{}", partial[1].reason);
    broken(fixture.open("estimate-node").estimate("npu", &two, &[]), "estimate", "uncosted node 2");
    broken(fixture.open("estimate-twice").estimate("npu", &two, &[]), "estimate", "more than one");
    assert_eq!(fixture.open("estimate-none").estimate("npu", &two, &[]).unwrap(), None);
    for (fault, text) in [
        ("write-null", "the bytes are null"),
        ("head-none", "without a head"),
        ("head-long", "a head of 65537 bytes"),
        ("head-twice", "not the first"),
        ("write-nothing", "success without any code"),
        ("flag-verdict", "flag verdict 50"),
        ("flag-null", "no evidence for the verdict on flag `opt`"),
        ("flag-unproved", "no evidence for the verdict on flag `opt`"),
        ("flag-blank", "flag `opt` is reported as applied without evidence"),
        ("flag-twice", "two verdicts on flag `opt`"),
        ("placement-node", "a node that does not exist"),
    ] {
        broken(compile(&fixture.open(fault)), "compile", text);
    }
    let artefact = compile(&fixture.open("")).unwrap();
    broken(
        fixture.open("compatibility").compatibility("npu", &Heads::of(&artefact)),
        "compatibility",
        "answer 12",
    );
    broken(
        fixture.open("compatibility-none").compatibility("npu", &Heads::of(&artefact)),
        "compatibility",
        "exactly one",
    );
    broken(fixture.open("load-null").load("npu", &artefact, &[]), "load", "without a shard");
    for (fault, text) in [
        ("entry-index", "entry 5 is reported at position 0"),
        ("entry-name", "`encode_5`, which the artefact does not list"),
        ("entry-rows", "reported 5 rows for `"),
        ("entry-count", "declared 3 bindings for `encode_4`, but reported 2"),
        ("entry-none", "did not report entry `encode_4`"),
    ] {
        broken(fixture.open(fault).load("npu", &artefact, &[]), "entries", text);
    }
    for (fault, text) in [("load-verdict", "flag verdict 50"), ("load-verdict-size", "8 bytes")] {
        let flags = [Flag { name: "power".to_owned(), value: "LTS".to_owned() }];
        let loaded = fixture.open(fault).load_with("npu", &artefact, &[], &flags);
        broken(loaded, "flag_verdicts", text);
    }
    for (fault, text) in [
        ("binding-index", "binding 1 is reported at position 0"),
        ("binding-name", "`z` is not in the graph"),
        ("binding-direction", "direction 3"),
        ("binding-role", "role 18"),
        ("binding-dtype", "type 2"),
        ("binding-scale", "scale 0.5"),
        ("binding-shape", "[4, 2]"),
        ("binding-bytes", "12 bytes"),
        ("binding-strides", "16 bytes"),
        ("binding-alignment", "alignment 3"),
        ("binding-update", "update 9"),
        ("binding-twice", "is reported twice"),
        ("binding-missing", "no binding for the result `y`"),
    ] {
        broken(fixture.open(fault).load("npu", &artefact, &[]), "bindings", text);
    }
    broken(fixture.open("buffer-null").allocate("npu", 64, 16), "buffer_allocate", "without a buffer");
    broken(fixture.open("map-null").allocate("npu", 64, 16), "buffer_map", "without a pointer");
}

/// Creates a file with these bytes.
fn file(content: &[u8]) -> std::fs::File {
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, content).unwrap();
    file
}

#[test]
fn a_file_is_shown_to_a_shim_and_what_it_says_is_checked() {
    let fixture = Fixture::new();
    assert!(fixture.registry.get("faulty").unwrap().inspects());
    let mine = file(b"....FAULTY and more");
    let found = fixture.open("").inspect(&mine, 4..19).unwrap().unwrap();
    assert_eq!((found.format.as_str(), found.document), ("faulty-file", serde_json::json!({"graphs": []})));
    // Not recognised from its first byte on. An empty part is not recognised either.
    assert_eq!(fixture.open("").inspect(&mine, 0..19).unwrap(), None);
    assert_eq!(fixture.open("").inspect(&mine, 4..4).unwrap(), None);
    for (fault, text) in [
        ("inspect-format", "the format must be"),
        ("inspect-null", "a string is null"),
        ("inspect-text", "not JSON"),
        ("inspect-list", "not a JSON object"),
        ("inspect-long", "more than 4194304 bytes"),
        ("inspect-twice", "more than one"),
    ] {
        broken(fixture.open(fault).inspect(&mine, 4..19), "inspect", text);
    }
    let failed = fixture.open("inspect-fails").inspect(&mine, 4..19).unwrap_err();
    assert_eq!(failed.class(), Some(ErrorClass::CorruptArtefact));
    #[expect(clippy::reversed_empty_ranges, reason = "what must be refused")]
    for part in [4..20, 19..4, 0..u64::MAX] {
        let refused = fixture.open("").inspect(&mine, part);
        assert!(matches!(refused, Err(ShimError::Argument(_))), "{refused:?}");
    }
    // A shim without the function cannot identify files.
    let shims = Shims::new();
    shims.template();
    let instance = shims.registry().open("template-c", "x", &[]).unwrap();
    assert!(!instance.shim().inspects());
    assert_eq!(instance.inspect(&mine, 4..19).unwrap(), None);
}

#[test]
fn a_manifest_has_options_for_every_instance_and_a_caller_wins() {
    let shims = Shims::new();
    shims.faulty();
    shims.manifest("faulty", "faulty", |manifest| {
        manifest["options"] = serde_json::json!({"fault": "open-null", "library": "/a/b.so"});
    });
    let registry = shims.registry();
    broken(registry.open("faulty", "x", &[]), "open", "without an instance");
    registry.open("faulty", "x", &[("fault".to_owned(), String::new())]).unwrap();
}

#[test]
fn every_report_of_a_shim_arrives_complete() {
    let fixture = Fixture::new();
    let instance = fixture.open("");
    let offline = instance.devices(Some("mt6989")).unwrap().remove(0);
    assert_eq!((offline.kind, offline.soc.as_deref()), (DeviceKind::Offline, Some("mt6989")));
    let limit = instance.limits("npu").unwrap().remove(0);
    assert_eq!(
        (limit.value, limit.provenance, limit.note.as_str()),
        (4000, Provenance::Probed, "by bisection")
    );
    let flags = instance.flags("npu").unwrap();
    assert_eq!(flags[0].values, FlagType::Integer { min: 0, max: 3 });
    assert_eq!(flags[0].default.as_deref(), Some("2"));
    let choice = FlagType::Choice { values: vec!["LTS".to_owned(), "Inception".to_owned()] };
    assert_eq!((&flags[1].values, &flags[1].default), (&choice, &None));
    let stages: Vec<FlagStage> = flags.iter().map(|flag| flag.stage).collect();
    assert_eq!(stages, [FlagStage::Compile, FlagStage::Compile, FlagStage::Load]);
    let estimate = instance.estimate("npu", &doubling(), &[]).unwrap().unwrap();
    assert_eq!((estimate.time_microseconds, estimate.provenance), (14_300, Provenance::Simulated));
    assert_eq!(estimate.uncosted, [0]);

    let artefact = compile(&instance).unwrap();
    let head = artefact.head();
    assert_eq!(
        (head.shim.as_str(), head.device.as_str(), head.work_order.clone()),
        ("faulty", "npu", order().name())
    );
    assert_eq!(artefact.payload(), order().name().as_bytes());
    assert_eq!(artefact.shim_head().len(), 4);
    let evidence = "kernel count fell from 40 to 31".to_owned();
    assert_eq!(head.flags[0].verdict, FlagVerdict::Applied { evidence });
    assert_eq!(head.flags[1].verdict, FlagVerdict::Unknown);
    assert_eq!(head.flags[1].reason, "the shim did not report it");
    let placement = &head.placements[0];
    assert_eq!((placement.node.as_str(), placement.place.as_str()), ("double", "cpu"));
    let answer = instance.compatibility("npu", &Heads::of(&artefact)).unwrap();
    assert_eq!(answer, Compatibility::Recompile("driver is newer".to_owned()));
    instance.recover("npu").unwrap();
    assert_eq!(
        fixture.open("recover-fails").recover("npu").unwrap_err().class(),
        Some(ErrorClass::DeviceLost)
    );
    assert!(matches!(
        instance.import_dma_buf("npu", std::fs::File::open("/dev/null").unwrap().into(), 0, 1),
        Err(ShimError::Missing { function, .. }) if function == "buffer_import"
    ));
}

#[test]
fn failures_are_reported_in_full() {
    let fixture = Fixture::new();
    let error = fixture.open("unmappable").check("npu", &doubling(), &[]).unwrap_err();
    assert_eq!(error.class(), Some(ErrorClass::Unmappable));
    let details = [("limit", "ops"), ("value", "4821"), ("max", "4000")];
    assert_eq!(error.details(), details.map(|(key, value)| (key.to_owned(), value.to_owned())));
    assert_eq!(error.to_string(), "shim `unmappable`, check: the compiler found no execution plan");
    assert!(error.help().unwrap().contains("plan again"));
    let ShimError::Failed(failure) = error else { panic!("{error}") };
    assert_eq!(failure.vendor_code, 6);
    // Vendors' logs are not always text.
    assert_eq!(failure.log_tail.as_deref(), Some("NoExecPlan\n\u{fffd}"));

    let place = tempfile::tempdir().unwrap();
    let failed = fixture.open("compile-fails").compile(
        "npu",
        &order(),
        ArtefactDestination::Directory(place.path()),
        &mut (),
    );
    assert_eq!(failed.unwrap_err().class(), Some(ErrorClass::ResourceLimit));
    assert_eq!(std::fs::read_dir(place.path()).unwrap().count(), 0, "half an artefact was left");
    let gone = place.path().join("gone");
    let nowhere = fixture.open("").compile("npu", &order(), ArtefactDestination::Directory(&gone), &mut ());
    assert!(matches!(nowhere, Err(ShimError::Other(ErrorClass::CorruptArtefact, _))), "{nowhere:?}");
    let kept = fixture
        .open("")
        .compile("npu", &order(), ArtefactDestination::Directory(place.path()), &mut ())
        .unwrap();
    assert_eq!(kept.path(), place.path().join(format!("{}.swa", kept.name())));
    assert_eq!(Artefact::open(kept.path()).unwrap().head(), kept.head());
}

/// Cancels, or panics, at a step.
struct At {
    step: u32,
    seen: AtomicU32,
    panic: bool,
}

impl Watch for At {
    fn progress(&mut self, per_mille: u32, stage: &str) {
        assert_eq!(stage, "searching");
        self.seen.store(per_mille, Ordering::Relaxed);
        assert!(!(self.panic && per_mille == self.step), "the watcher fell over");
    }

    fn cancelled(&self) -> bool {
        !self.panic && self.seen.load(Ordering::Relaxed) >= self.step
    }
}

#[test]
fn a_compilation_is_watched_and_cancelled() {
    let fixture = Fixture::new();
    let instance = fixture.open("compile-long");
    let at = |step, panic| At { step, seen: AtomicU32::new(0), panic };
    let mut watch = at(300, false);
    let error = instance.compile("npu", &order(), ArtefactDestination::Temporary, &mut watch).unwrap_err();
    assert!(error.is_cancelled() && error.class().is_none(), "{error}");
    assert_eq!(watch.seen.load(Ordering::Relaxed), 300);
    // A cancelled compilation is reported as cancelled, even if the shim fails because its bytes
    // were rejected.
    let failing = fixture.open("compile-fails");
    let error =
        failing.compile("npu", &order(), ArtefactDestination::Temporary, &mut at(0, false)).unwrap_err();
    assert!(error.is_cancelled() && error.class().is_none(), "{error}");
    // A panic of the watcher does not unwind through the shim, but still reaches the caller.
    let mut watch = at(200, true);
    let caught = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        instance.compile("npu", &order(), ArtefactDestination::Temporary, &mut watch)
    }));
    assert_eq!(caught.unwrap_err().downcast_ref::<&str>(), Some(&"the watcher fell over"));
    assert!(instance.compile("npu", &order(), ArtefactDestination::Temporary, &mut at(2000, false)).is_ok());
}

#[test]
fn runs_bind_buffers_and_refuse_what_does_not_fit() {
    let fixture = Fixture::new();
    let instance = fixture.open("");
    let artefact = compile(&instance).unwrap();
    let mut shard = instance.load("npu", &artefact, &[]).unwrap();
    assert_eq!(shard.entry("encode_4"), Some(0));
    assert_eq!(shard.entries()[0].binding("y"), Some(1));
    let x = instance.allocate("npu", 16, 16).unwrap();
    let y = instance.allocate("npu", 48, 16).unwrap();
    x.write().unwrap().copy_from_slice(&f32_bytes(&[1.0, 2.0, 3.0, 4.0]));
    shard.run(0, 3, &mut [Bound::Buffer(&x), Bound::BufferAt(&y, 32)], RunOptions::default()).unwrap();
    assert_eq!(f32_values(&y.read().unwrap()[32..]), [2.0, 4.0, 6.0, 0.0]);

    let argument = |result: Result<(), ShimError>, text: &str| match result {
        Err(ShimError::Argument(reason)) => assert!(reason.contains(text), "{reason}"),
        other => panic!("{text}: {other:?}"),
    };
    let both = || [Bound::Buffer(&x), Bound::Buffer(&y)];
    argument(shard.run(1, 1, &mut both(), RunOptions::default()), "no entry 1: the shard has 1");
    argument(shard.run(0, 0, &mut both(), RunOptions::default()), "for `encode_4`, got 0");
    argument(shard.run(0, 5, &mut both(), RunOptions::default()), "for `encode_4`, got 5");
    argument(shard.run(0, 1, &mut [Bound::Buffer(&x)], RunOptions::default()), "expected 2 bindings");
    argument(
        shard.run(0, 1, &mut [Bound::BufferAt(&x, 8), Bound::Buffer(&y)], RunOptions::default()),
        "expected 16 bytes, got 8",
    );
    argument(
        shard.run(0, 1, &mut [Bound::BufferAt(&x, 99), Bound::Buffer(&y)], RunOptions::default()),
        "offset 99",
    );
    let plain = [0_u8; 16];
    argument(
        shard.run(0, 1, &mut [Bound::Read(&plain), Bound::Buffer(&y)], RunOptions::default()),
        "does not accept plain memory",
    );
    argument(
        shard.run(0, 1, &mut [Bound::Buffer(&x), Bound::Read(&plain)], RunOptions::default()),
        "bound for reading",
    );
    // A buffer of another instance of the same shim does not belong to this device.
    let foreign = fixture.open("").allocate("npu", 16, 16).unwrap();
    argument(
        shard.run(0, 1, &mut [Bound::Buffer(&foreign), Bound::Buffer(&y)], RunOptions::default()),
        "cannot access this buffer",
    );

    // One writer or many readers are allowed, also within one run.
    let busy = |result: Result<(), ShimError>| match result {
        Err(error @ ShimError::Other(ErrorClass::InvalidArgument, _)) => {
            assert!(error.to_string().contains("while it is being ") && error.help().is_some(), "{error}");
        }
        other => panic!("{other:?}"),
    };
    busy(shard.run(0, 1, &mut [Bound::Buffer(&y), Bound::Buffer(&y)], RunOptions::default()));
    let reading = y.read().unwrap();
    busy(shard.run(0, 1, &mut both(), RunOptions::default()));
    busy(y.write().map(|_| ()));
    drop(reading);
    let writing = x.write().unwrap();
    busy(shard.run(0, 1, &mut both(), RunOptions::default()));
    drop(writing);
    shard.run(0, 4, &mut both(), RunOptions::default()).unwrap();
    assert!(y.same(&y.clone()) && !y.same(&x));

    // The shard keeps its instance and mapping alive.
    drop((instance, artefact));
    shard.run(0, 4, &mut both(), RunOptions::default()).unwrap();

    let lost = fixture.open("run-lost");
    let mut shard = lost.load("npu", &compile(&lost).unwrap(), &[]).unwrap();
    let (x, y) = (lost.allocate("npu", 16, 16).unwrap(), lost.allocate("npu", 16, 16).unwrap());
    let error =
        shard.run(0, 1, &mut [Bound::Buffer(&x), Bound::Buffer(&y)], RunOptions::default()).unwrap_err();
    assert_eq!(error.class(), Some(ErrorClass::DeviceLost));
    assert!(error.help().unwrap().contains("recover"));
    // A failed run releases its buffers.
    drop((x.write().unwrap(), y.write().unwrap()));
}

#[test]
fn buffers_that_cannot_be_had_or_seen_say_so() {
    let fixture = Fixture::new();
    let full = fixture.open("buffer-full").allocate("npu", 64, 16).unwrap_err();
    assert_eq!(full.class(), Some(ErrorClass::ResourceLimit));
    let opaque = fixture.open("map-refused").allocate("npu", 64, 16).unwrap();
    assert!(!opaque.is_mapped());
    assert!(matches!(opaque.read().map(|_| ()), Err(ShimError::Argument(_))));
    let stale = fixture.open("sync-fails").allocate("npu", 64, 16).unwrap();
    assert_eq!(stale.read().map(|_| ()).unwrap_err().class(), Some(ErrorClass::DeviceLost));
    assert_eq!(stale.read().map(|_| ()).unwrap_err().class(), Some(ErrorClass::DeviceLost));
}

#[test]
fn a_run_is_cancelled_from_another_thread() {
    let fixture = Fixture::new();
    let instance = fixture.open("run-long");
    let mut shard = instance.load("npu", &compile(&instance).unwrap(), &[]).unwrap();
    let canceller = shard.canceller();
    let (x, y) = (instance.allocate("npu", 16, 16).unwrap(), instance.allocate("npu", 16, 16).unwrap());
    let done = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            // Cancelling has no effect before the run has begun, so it is repeated.
            while !done.load(Ordering::Relaxed) {
                assert!(canceller.cancel());
                std::thread::sleep(Duration::from_millis(1));
            }
        });
        let error =
            shard.run(0, 1, &mut [Bound::Buffer(&x), Bound::Buffer(&y)], RunOptions::default()).unwrap_err();
        done.store(true, Ordering::Relaxed);
        assert!(error.is_cancelled(), "{error}");
    });
    drop(shard);
    assert!(!canceller.cancel());
}

#[test]
fn loaded_things_can_be_sent() {
    fn is_send<T: Send>() {}
    fn is_sync<T: Sync>() {}
    is_send::<shardwright_shims::LoadedShard>();
    is_send::<ShimInstance>();
    is_sync::<ShimInstance>();
    is_send::<shardwright_shims::Buffer>();
    is_sync::<shardwright_shims::Buffer>();
    is_send::<Artefact>();
    is_sync::<Artefact>();
    is_send::<WorkOrder>();
    is_send::<ShimRegistry>();
    is_sync::<shardwright_shims::Canceller>();
}
