//! Tests shims in a worker process. Without faults they behave as in this process. A fault results
//! in a typed error and leaves no resources behind.

mod common;

use std::num::NonZeroUsize;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use common::example::{earlier, later, says_and_runs};
use common::{
    CONTEXT, HIDDEN, KEY, Shims, decoder, decoder_weights, doubling, f32_bytes, f32_values, i32_bytes,
    isolation,
};
use shardwright_graph::WeightId;
use shardwright_shims::{
    Artefact, ArtefactDestination, Bound, Buffer, Chip, Direction, Heads, LoadedShard, RunOptions, Running,
    ShimError, ShimInstance, ShimRegistry, SwEntryFunction, WorkOrder, WorkOrderBuilder, WorkerReport,
};
use shardwright_vocabulary::{
    Compatibility, EntryKind, Error, ErrorClass, ErrorKind, Flag, FlagRecord, FlagVerdict, Watch,
};
use shardwright_worker::{Caps, Launcher, WorkerEnd, WorkerFailure, find_worker};

/// Returns a registry with the dying shim that opens no library in this process.
fn registry() -> &'static ShimRegistry {
    static REGISTRY: OnceLock<(Shims, ShimRegistry)> = OnceLock::new();
    let (_, registry) = REGISTRY.get_or_init(|| {
        let shims = Shims::new();
        shims.dying(None);
        let registry = ShimRegistry::builder().isolated(isolation()).directory(shims.path()).build();
        assert!(registry.skipped().is_empty(), "{:?}", registry.skipped());
        (shims, registry)
    });
    registry
}

fn options(die: &str) -> Vec<(String, String)> {
    let option = (!die.is_empty()).then(|| ("die".to_owned(), die.to_owned()));
    Vec::from_iter(option)
}

fn open_with(die: &str, caps: Caps) -> Result<ShimInstance, ShimError> {
    registry().open_isolated("dying", die, &options(die), &Launcher { caps, ..isolation() })
}

fn open(die: &str) -> ShimInstance {
    open_with(die, Caps::default()).unwrap()
}

/// Long enough for anything that does not hang, even on a busy machine.
const MOMENT_MS: u64 = 900;

/// Returns limits that a hanging shim reaches.
fn short() -> Caps {
    let moment = Duration::from_millis(MOMENT_MS);
    Caps { probe_time: moment, compile_time: moment, run_time: moment, grace: moment, ..Caps::default() }
}

fn order() -> WorkOrder {
    WorkOrderBuilder::new(&[]).entry(&doubling()).unwrap().temporary().unwrap()
}

fn compile(instance: &ShimInstance) -> Result<Artefact, ShimError> {
    instance.compile("npu", &order(), ArtefactDestination::Temporary, &mut ())
}

/// Returns an artefact of a healthy instance.
fn artefact() -> Artefact {
    static ARTEFACT: OnceLock<Artefact> = OnceLock::new();
    ARTEFACT.get_or_init(|| compile(&open("")).unwrap()).clone()
}

fn load(instance: &ShimInstance) -> LoadedShard {
    instance.load("npu", &artefact(), &[]).unwrap()
}

/// Runs the doubling shard on buffers of the instance.
fn run(shard: &mut LoadedShard, values: &[f32]) -> Result<Vec<f32>, ShimError> {
    let (x, y) = (shard.allocate(16, 16)?, shard.allocate(16, 16)?);
    x.write()?.copy_from_slice(&f32_bytes(values));
    shard.run(0, 4, &mut [Bound::Buffer(&x), Bound::Buffer(&y)], RunOptions::default())?;
    Ok(f32_values(&y.read()?))
}

fn pid(instance: &ShimInstance) -> u32 {
    match instance.running() {
        Running::Worker(WorkerReport { pid: Some(pid), .. }) => pid,
        other => panic!("{other:?}"),
    }
}

/// Returns whether there is such a process, running or not yet reaped.
fn exists(pid: u32) -> bool {
    Path::new(&format!("/proc/{pid}")).exists()
}

fn assert_empty(directory: &Path) {
    let left: Vec<_> = std::fs::read_dir(directory).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn a_file_is_inspected_in_the_worker_and_one_that_kills_it_is_an_error() {
    let mut file = tempfile::tempfile().unwrap();
    std::io::Write::write_all(&mut file, b"....DYING file").unwrap();
    let found = open("").inspect(&file, 4..14).unwrap().unwrap();
    assert_eq!((found.format.as_str(), found.document), ("dying-file", serde_json::json!({"graphs": []})));
    assert_eq!(open("").inspect(&file, 5..14).unwrap(), None);
    let dead = open("inspect:abort").inspect(&file, 4..14);
    let dead = dead.unwrap_err();
    assert_eq!(WorkerFailure::of(&dead).map(|failure| failure.function), Some("inspect"), "{dead:?}");
    let slow = open_with("inspect:hang", short()).unwrap().inspect(&file, 4..14);
    assert!(WorkerFailure::of(&slow.unwrap_err()).is_some());
}

#[test]
fn a_healthy_shim_answers_as_in_this_process() {
    let shims = Shims::new();
    shims.dying(None);
    let local = shims.registry().open("dying", "here", &[]).unwrap();
    let remote = open("");
    assert_eq!(local.running(), Running::InProcess);
    assert!(exists(pid(&remote)) && pid(&remote) != std::process::id());
    assert_eq!(local.devices(Some("mt6989")).unwrap(), remote.devices(Some("mt6989")).unwrap());
    assert_eq!(local.devices(None).unwrap(), remote.devices(None).unwrap());
    assert_eq!(local.limits("npu").unwrap(), remote.limits("npu").unwrap());
    assert_eq!(local.flags("npu").unwrap(), remote.flags("npu").unwrap());
    assert_eq!(local.check("npu", &doubling(), &[]).unwrap(), remote.check("npu", &doubling(), &[]).unwrap());
    assert_eq!(
        local.estimate("npu", &doubling(), &[]).unwrap(),
        remote.estimate("npu", &doubling(), &[]).unwrap()
    );
    let (here, there) = (compile(&local).unwrap(), compile(&remote).unwrap());
    assert_eq!((here.name(), here.head()), (there.name(), there.head()));
    assert_eq!(there.head().placements[0].reason, "whole");
    assert_eq!(remote.compatibility("npu", &Heads::of(&here)).unwrap(), Compatibility::Optimal);
    let flag = |name: &str| Flag { name: name.to_owned(), value: "low".to_owned() };
    for instance in [&local, &remote] {
        let asked = [flag("power"), flag("speed")];
        let mut shard = instance.load_with("npu", &here, &[], &asked).unwrap();
        let outcome = |flag: &Flag, verdict, reason: &str| FlagRecord {
            flag: flag.clone(),
            verdict,
            reason: reason.to_owned(),
        };
        let unknown = outcome(&asked[1], FlagVerdict::Unknown, "the shim did not report it");
        assert_eq!(shard.flags(), [outcome(&asked[0], FlagVerdict::Inert, "nothing changes"), unknown]);
        assert_eq!(run(&mut shard, &[1.0, -2.5, 3.0, 0.0]).unwrap(), [2.0, -5.0, 6.0, 0.0]);
    }
    remote.recover("npu").unwrap();
    let times = remote.call_times();
    assert_eq!((times["run"].calls, times["compile"].calls, times["devices"].calls), (1, 1, 2));
    assert!(times["run"].longest <= times["run"].total && !times["run"].total.is_zero());
    let Running::Worker(report) = remote.running() else { panic!() };
    // One worker for queries, which estimated, and one that only compiled.
    assert!(report.started == 2 && report.peak_memory_bytes.is_some_and(|bytes| bytes > 1 << 18));
    let pid = pid(&remote);
    drop(remote);
    assert!(!exists(pid));
}

#[test]
fn quantised_weights_are_shown_to_a_worker_as_here() {
    let shims = Shims::new();
    shims.dying(None);
    let local = shims.registry().open("dying", "here", &options("check-weights:")).unwrap();
    let remote = open("check-weights:");
    // Unused weights are not passed to the shim, and the indices of used ones are arbitrary.
    let weights = [decoder_weights(), common::quantised_weights()].concat();
    let mut entry = common::quantised(EntryKind::Decode, 1, 4);
    for tensor in &mut entry.tensors {
        tensor.weight = tensor.weight.map(|id| WeightId(id.0 + 4));
    }
    let verdicts = remote.check("npu", &entry, &weights).unwrap();
    assert_eq!(verdicts, local.check("npu", &entry, &weights).unwrap());
    assert!(
        verdicts[2]
            .reason
            .starts_with("k k type 10, 4 bytes, rank 2: kind 3 axis 1 block 2, 4 scales of type 2"),
        "{verdicts:?}"
    );
    let missing = remote.check("npu", &entry, &weights[..6]).unwrap_err();
    assert_eq!(missing.class(), Some(ErrorClass::InvalidArgument));
}

/// One layer of a decoder with states, run by the C example.
struct Session {
    shard: LoadedShard,
    states: [Buffer; 2],
}

impl Session {
    fn run(&mut self, entry: &str, position: i32, hidden: &[f32], plain: bool) -> Vec<f32> {
        let entry = self.shard.entry(entry).unwrap();
        let loaded = self.shard.entries()[entry].clone();
        let capacity = loaded.interface.point.rows as usize;
        let rows = hidden.len() / HIDDEN as usize;
        let mut padded = hidden.to_vec();
        padded.resize(capacity * HIDDEN as usize, 1e6);
        let slots: Vec<i32> =
            (0..capacity).map(|row| if row < rows { position + row as i32 } else { -1 }).collect();
        let inputs = [
            ("hidden", f32_bytes(&padded)),
            ("positions", i32_bytes(&(position..).take(capacity).collect::<Vec<_>>())),
            ("slots", i32_bytes(&slots)),
        ];
        let mut output = vec![0; padded.len() * 4];
        let mut result = Some(&mut output[..]);
        // Plain memory or the instance's memory: both are allowed for an input.
        let buffers: Vec<Buffer> = inputs
            .iter()
            .map(|(_, bytes)| {
                let buffer = match plain {
                    true => Buffer::host(bytes.len() as u64, 64).unwrap(),
                    false => self.shard.allocate(bytes.len() as u64, 64).unwrap(),
                };
                buffer.write().unwrap().copy_from_slice(bytes);
                buffer
            })
            .collect();
        let mut bound: Vec<Bound<'_>> = loaded
            .bindings
            .iter()
            .map(|binding| match (binding.port.name.as_str(), binding.port.direction) {
                ("layer.0.k", Direction::State) => Bound::Buffer(&self.states[0]),
                ("layer.0.v", Direction::State) => Bound::Buffer(&self.states[1]),
                (_, Direction::Output) => Bound::Write(result.take().unwrap()),
                (name, _) => {
                    Bound::Buffer(&buffers[inputs.iter().position(|(known, _)| *known == name).unwrap()])
                }
            })
            .collect();
        let deadline = Some(Duration::from_secs(60));
        let options = RunOptions { deadline, ..RunOptions::default() };
        self.shard.run(entry, rows as u64, &mut bound, options).unwrap();
        drop(bound);
        f32_values(&output)[..hidden.len()].to_vec()
    }
}

#[test]
fn a_decoder_gives_the_same_bits_in_a_worker() {
    let shims = Shims::new();
    shims.template();
    let registry = shims.registry();
    let weights = decoder_weights();
    let order = WorkOrderBuilder::new(&weights)
        .entry(&decoder(EntryKind::Prefill, 4, 4))
        .unwrap()
        .entry(&decoder(EntryKind::Decode, 1, 4))
        .unwrap()
        .temporary()
        .unwrap();
    let hidden: Vec<f32> =
        (0..6 * HIDDEN as usize).map(|index| (index * 5 % 13) as f32 / 4.0 - 1.5).collect();
    let walk = |instance: &ShimInstance, artefact: &Artefact, plain: bool| {
        let state = || instance.allocate("cpu", CONTEXT * KEY * 4, 64).unwrap();
        let states = [state(), state()];
        // Two shards alternate on the same states, and each reads what the other wrote.
        let shard = || instance.load("cpu", artefact, &[]).unwrap();
        let mut sessions = [shard(), shard()].map(|shard| Session { shard, states: states.clone() });
        let mut results = sessions[0].run("prefill_4@8", 0, &hidden[..16], plain);
        for (step, row) in hidden[16..].chunks(HIDDEN as usize).enumerate() {
            results.extend(sessions[(step + 1) % 2].run("decode_1@8", 4 + step as i32, row, plain));
        }
        let states = states.map(|state| state.read().unwrap().to_vec());
        (results.iter().map(|value| value.to_bits()).collect::<Vec<_>>(), states)
    };
    let local = registry.open("template-c", "here", &[]).unwrap();
    let remote = registry.open_isolated("template-c", "there", &[], &isolation()).unwrap();
    let entry = decoder(EntryKind::Decode, 1, 4);
    assert_eq!(local.check("cpu", &entry, &weights).unwrap(), remote.check("cpu", &entry, &weights).unwrap());
    assert_eq!(local.limits("cpu").unwrap(), remote.limits("cpu").unwrap());
    let here = local.compile("cpu", &order, ArtefactDestination::Temporary, &mut ()).unwrap();
    let there = remote.compile("cpu", &order, ArtefactDestination::Temporary, &mut ()).unwrap();
    assert_eq!(here.name(), there.name());
    let expected = walk(&local, &here, false);
    assert_eq!(expected.0.len(), 6 * HIDDEN as usize);
    for plain in [false, true] {
        assert!(expected == walk(&remote, &there, plain), "plain memory: {plain}");
    }
    // The shim's refusal is returned unchanged.
    let error = remote.check("npu", &entry, &weights).unwrap_err();
    assert_eq!(
        error.to_string(),
        local.check("npu", &entry, &weights).unwrap_err().to_string().replace("`here`", "`there`")
    );
    assert_eq!(error.class(), Some(ErrorClass::InvalidArgument));
    let refused = remote.load("cpu", &there, &[("speed".to_owned(), "2".to_owned())]).unwrap_err();
    assert!(refused.to_string().contains("unknown option `speed`"), "{refused}");
}

#[test]
fn shims_that_take_only_their_own_memory_are_given_copies() {
    let own = [("memory".to_owned(), "shim".to_owned())];
    let instance = registry().open_isolated("dying", "own", &own, &isolation()).unwrap();
    let mut shard = load(&instance);
    assert!(!shard.entries()[0].bindings[0].memory_kinds.host());
    assert_eq!(run(&mut shard, &[1.0, 2.0, 3.0, 4.0]).unwrap(), [2.0, 4.0, 6.0, 8.0]);
    // Binds one buffer twice. The second run sees changes by the host in between, and changes by a
    // run.
    let (x, y) = (instance.allocate("npu", 32, 16).unwrap(), instance.allocate("npu", 16, 16).unwrap());
    for value in [1.0, 3.0] {
        x.write().unwrap().copy_from_slice(&f32_bytes(&[value; 8]));
        shard.run(0, 4, &mut [Bound::BufferAt(&x, 16), Bound::Buffer(&y)], RunOptions::default()).unwrap();
        shard.run(0, 4, &mut [Bound::Buffer(&y), Bound::Buffer(&x)], RunOptions::default()).unwrap();
        assert_eq!(f32_values(&x.read().unwrap()), [vec![4.0 * value; 4], vec![value; 4]].concat());
    }
    // Plain memory is not accepted, as in process.
    let refused =
        shard.run(0, 4, &mut [Bound::Read(&[0; 16]), Bound::Buffer(&y)], RunOptions::default()).unwrap_err();
    assert!(refused.to_string().contains("does not accept plain memory"), "{refused}");
    let foreign = Buffer::host(16, 16).unwrap();
    let refused = shard
        .run(0, 4, &mut [Bound::Buffer(&foreign), Bound::Buffer(&y)], RunOptions::default())
        .unwrap_err();
    assert!(refused.to_string().contains("cannot access this buffer"), "{refused}");
    let import = instance.import_dma_buf("npu", std::fs::File::open("/dev/null").unwrap().into(), 0, 16);
    assert!(
        matches!(&import, Err(ShimError::Missing { function, .. }) if function == "buffer_import"),
        "{import:?}"
    );
}

#[test]
fn bindings_are_checked_as_in_this_process() {
    let instance = open("");
    let mut shard = load(&instance);
    let (x, y) = (Buffer::host(32, 16).unwrap(), instance.allocate("npu", 16, 16).unwrap());
    let mut refuse = |bound: &mut [Bound<'_>], text: &str| {
        let error = shard.run(0, 4, bound, RunOptions::default()).unwrap_err();
        assert!(error.to_string().contains(text), "{text}: {error}");
    };
    refuse(&mut [Bound::Read(&[0; 8]), Bound::Buffer(&y)], "binding `x`: expected 16 bytes, got 8");
    refuse(&mut [Bound::BufferAt(&x, 8), Bound::Buffer(&y)], "an alignment of 16");
    refuse(&mut [Bound::BufferAt(&x, 64), Bound::Buffer(&y)], "offset 64 is beyond the buffer of 32 bytes");
    refuse(&mut [Bound::Buffer(&x), Bound::Read(&[0; 16])], "writes it, but it is bound for reading");
    refuse(&mut [Bound::Buffer(&y), Bound::Buffer(&y)], "while it is being ");
    refuse(&mut [Bound::Buffer(&x)], "expected 2 bindings");
    let reader = y.read().unwrap();
    let busy = "cannot write a buffer of 16 bytes while it is being read";
    refuse(&mut [Bound::Buffer(&x), Bound::Buffer(&y)], busy);
    drop(reader);
    // Buffers of another worker are shared with this one.
    let other = open("").allocate("npu", 16, 16).unwrap();
    other.write().unwrap().copy_from_slice(&f32_bytes(&[1.0, 2.0, 3.0, 4.0]));
    shard.run(0, 4, &mut [Bound::Buffer(&other), Bound::Buffer(&y)], RunOptions::default()).unwrap();
    assert_eq!(f32_values(&y.read().unwrap()), [2.0, 4.0, 6.0, 8.0]);
    for (length, alignment, text) in
        [(16, 3, "the alignment is not supported"), (u64::MAX, 16, "too large"), (1 << 62, 16, "")]
    {
        let error = instance.allocate("npu", length, alignment).unwrap_err();
        assert!(error.to_string().contains(text), "{error}");
    }
    assert_eq!(instance.allocate("npu", 0, 0).unwrap().read().unwrap().len(), 0);
    let aligned = instance.allocate("npu", 5, 1 << 16).unwrap();
    assert_eq!(aligned.write().unwrap().as_ptr() as usize % (1 << 16), 0);
}

/// A fault of the shim, with the expected error of the call.
struct Death {
    how: &'static str,
    end: fn(&WorkerEnd) -> bool,
    text: &'static str,
}

const DEATHS: &[Death] = &[
    Death {
        how: "abort",
        end: |end| matches!(end, WorkerEnd::Signal { signal: 6, address: None, touched: None }),
        text: "was killed by signal 6 (SIGABRT)",
    },
    Death {
        how: "fpe",
        end: |end| matches!(end, WorkerEnd::Signal { signal: 8, .. }),
        text: "was killed by signal 8 (SIGFPE)",
    },
    Death {
        how: "segv",
        end: |end| matches!(end, WorkerEnd::Signal { signal: 11, address: Some(16), touched: None }),
        text: "was killed by signal 11 (SIGSEGV) at address 0x10",
    },
    Death {
        how: "bus",
        end: |end| matches!(end, WorkerEnd::Signal { signal: 7, .. }),
        text: "was killed by signal 7 (SIGBUS)",
    },
    Death {
        how: "kill",
        end: |end| matches!(end, WorkerEnd::Signal { signal: 9, address: None, .. }),
        text: "was killed by signal 9 (SIGKILL)",
    },
    Death {
        how: "stack",
        end: |end| matches!(end, WorkerEnd::Signal { signal: 11, address: Some(_), .. }),
        text: "(SIGSEGV) at address",
    },
    Death {
        how: "exit",
        end: |end| *end == WorkerEnd::NoAnswer,
        text: "exited with code 0 without an answer",
    },
    Death { how: "exit-3", end: |end| *end == WorkerEnd::Exited { code: 3 }, text: "exited with code 3" },
    Death { how: "close", end: |end| *end == WorkerEnd::Exited { code: 70 }, text: "exited with code 70" },
    Death { how: "fork-exit", end: |end| *end == WorkerEnd::NoAnswer, text: "without an answer" },
    Death {
        how: "noise-abort",
        end: |end| matches!(end, WorkerEnd::Signal { signal: 6, .. }),
        text: "signal 6",
    },
    Death {
        how: "babble",
        end: |end| matches!(end, WorkerEnd::Protocol { .. }),
        text: "violated the protocol: unknown frame kind 255",
    },
    Death {
        how: "hang",
        end: |end| *end == WorkerEnd::OverTime { limit_ms: MOMENT_MS },
        text: "was killed after 900 ms, its time limit",
    },
    Death {
        how: "hang-stubborn",
        end: |end| *end == WorkerEnd::OverTime { limit_ms: MOMENT_MS },
        text: "its time limit",
    },
    Death {
        how: "fork-hang",
        end: |end| *end == WorkerEnd::OverTime { limit_ms: MOMENT_MS },
        text: "its time limit",
    },
];

fn check_death(death: &Death, place: &str, pid: u32, error: &ShimError) {
    let what = format!("{place}:{}: {error}", death.how);
    let failure = WorkerFailure::of(error).unwrap_or_else(|| panic!("{what}: {error:?}"));
    assert!((death.end)(&failure.end), "{what}: {failure:?}");
    assert!(error.to_string().contains(death.text), "{what}");
    assert_eq!((failure.pid, failure.earlier), (pid, false), "{what}");
    assert!(!exists(pid), "{what}: the process is still there");
    let limited = matches!(failure.end, WorkerEnd::OverTime { .. });
    let expected = match (place, failure.function) {
        ("run" | "load", _) => ErrorClass::DeviceLost,
        ("check" | "compile-half", _) if limited => ErrorClass::ResourceLimit,
        ("check" | "compile-half", _) if !matches!(failure.end, WorkerEnd::Protocol { .. }) => {
            ErrorClass::Unmappable
        }
        _ => ErrorClass::Internal,
    };
    assert_eq!(error.class(), Some(expected), "{what}");
    assert!(error.help().is_some() && !error.is_cancelled());
    assert_eq!(error.details()[0].0, "worker");
    assert_eq!(limited, error.details().iter().any(|(key, value)| key == "max" && value == "900"));
    if death.how == "abort" {
        assert_eq!(failure.log_tail.as_deref(), Some("vendor: assertion failed: tiles > 0"), "{what}");
    }
    if death.how == "noise-abort" {
        let tail = failure.log_tail.as_ref().unwrap();
        assert!(tail.len() <= 16 << 10 && tail.ends_with("line 99999 of very many lines"), "{tail}");
    }
}

/// A terminal's interrupt is sent to every process of the host's group, including a newly forked
/// one.
#[test]
fn a_worker_that_is_interrupted_was_cancelled() {
    for place in ["devices", "check"] {
        let instance = open_with(&format!("{place}:interrupt"), Caps::default()).unwrap();
        let error = match place {
            "devices" => instance.devices(None).unwrap_err(),
            _ => instance.check("npu", &doubling(), &[]).unwrap_err(),
        };
        assert_eq!(
            WorkerFailure::of(&error).map(|failure| &failure.end),
            Some(&WorkerEnd::Interrupted),
            "{error}"
        );
        assert!(error.is_cancelled() && error.class().is_none() && error.help().is_none(), "{error}");
        assert!(error.to_string().ends_with("its worker was interrupted"), "{error}");
    }
}

#[test]
fn every_death_is_reported_wherever_it_happens() {
    for death in DEATHS {
        let caps = if death.how.contains("hang") { short() } else { Caps { ..Caps::default() } };
        for place in ["devices", "check", "compile-half", "load", "run"] {
            // Each wait is slow, so only the plain one runs everywhere.
            if death.how.contains("hang") && death.how != "hang" && !matches!(place, "check" | "run") {
                continue;
            }
            let instance = open_with(&format!("{place}:{}", death.how), caps).unwrap();
            let first = pid(&instance);
            let directory = tempfile::tempdir().unwrap();
            let error = match place {
                "devices" => instance.devices(None).unwrap_err(),
                "check" => instance.check("npu", &doubling(), &[]).unwrap_err(),
                "load" => instance.load("npu", &artefact(), &[]).unwrap_err(),
                "run" => run(&mut load(&instance), &[1.0; 4]).unwrap_err(),
                _ => {
                    let place = ArtefactDestination::Directory(directory.path());
                    instance.compile("npu", &order(), place, &mut ()).unwrap_err()
                }
            };
            check_death(death, place, first, &error);
            assert_empty(directory.path());
            // The next query starts another worker.
            assert!(matches!(instance.running(), Running::Worker(WorkerReport { pid: None, .. })));
            assert!(instance.limits("npu").unwrap().is_empty());
            assert_ne!(pid(&instance), first);
        }
    }
}

#[test]
fn a_shim_that_dies_when_it_is_opened_is_skipped_with_that_reason() {
    for (place, how, text) in [
        ("DIE_AT_DOOR", "abort", "signal 6"),
        ("DIE_AT_DESCRIBE", "fpe", "signal 8"),
        ("DIE_AT_DOOR", "exit", "without an answer"),
        ("DIE_AT_DESCRIBE", "hang", "its time limit"),
    ] {
        let shims = Shims::new();
        shims.dying(Some((place, how)));
        let isolation = Launcher { caps: short(), ..isolation() };
        let registry = ShimRegistry::builder().isolated(isolation).directory(shims.path()).build();
        assert!(registry.shims().is_empty());
        let error = &registry.skipped()[0].error;
        assert_eq!(error.reason(), "worker-ended", "{error:?}");
        assert!(error.to_string().contains(text) && error.help().is_some(), "{error}");
    }
    // A library that is not a shim is rejected as in this process.
    let shims = Shims::new();
    shims.manifest("dying", "dying", |_| {});
    std::fs::write(shims.library("dying"), b"not a library").unwrap();
    let registry = ShimRegistry::builder().isolated(isolation()).directory(shims.path()).build();
    let error = &registry.skipped()[0].error;
    assert_eq!((error.reason(), error.help().is_some()), ("not-a-library", true));
    assert!(error.place().is_none() && error.to_string().contains("dying"), "the worker's text: {error:?}");
    // An instance that dies in open, and one with rejected options.
    let error = open_with("open:abort", Caps::default()).unwrap_err();
    assert_eq!(
        (error.class(), WorkerFailure::of(&error).map(|failure| failure.function)),
        (Some(ErrorClass::Internal), Some("open"))
    );
    let error = open_with("nonsense", Caps::default()).unwrap_err();
    assert!(
        matches!(&error, ShimError::Failed(failure) if failure.message == "die=<where>:<how>"),
        "{error:?}"
    );
}

#[test]
fn a_library_that_kills_this_process_can_be_known_and_is_refused_here_later() {
    let shims = Shims::new();
    shims.dying(None);
    let registry = ShimRegistry::builder().isolated(isolation()).directory(shims.path()).build();
    std::fs::write(shims.library("dying"), b"changed since").unwrap();
    let error = registry.open("dying", "here", &[]).unwrap_err();
    assert!(error.to_string().contains("cannot be opened as a library"), "{error:?}");
    assert!(error.help().is_some() && error.class() == Some(ErrorClass::Internal));
    let error = registry.open_isolated("dying", "there", &[], &isolation()).unwrap_err();
    assert!(
        matches!(&WorkerFailure::of(&error).unwrap().end, WorkerEnd::Start { reason, .. } if reason.contains("library")),
        "{error}"
    );
}

#[test]
fn a_program_that_is_not_a_worker_is_an_error_too() {
    let open = |worker: &str| {
        let isolation = Launcher { worker: worker.into(), caps: short() };
        registry().open_isolated("dying", "x", &[], &isolation).unwrap_err()
    };
    let missing = open("/nowhere/shardwright-worker");
    assert!(missing.to_string().contains("not found") && missing.help().is_some(), "{missing}");
    assert_eq!(missing.kind(), ErrorKind::Missing);
    assert_eq!(missing.class(), Some(ErrorClass::InvalidArgument));
    // A program that sends something else on the socket.
    let directory = tempfile::tempdir().unwrap();
    let talker = directory.path().join("talker");
    std::fs::write(&talker, "#!/bin/sh\nprintf 'hello, world' >&0\nsleep 100\n").unwrap();
    std::fs::set_permissions(&talker, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    for (program, text) in [
        ("/bin/true", "exited with code 0 without an answer"),
        ("/bin/false", "exited with code 1"),
        ("/bin/cat", "its time limit"),
        ("/proc/self/status", "could not be started"),
        (&format!("{}/talker", directory.path().display()), "violated the protocol: unknown frame kind 104"),
    ] {
        let error = open(program);
        assert!(error.to_string().contains(text), "{error}");
        assert_eq!(error.class(), Some(ErrorClass::Internal));
    }
    // A worker to which the system refuses a thread reports that by its exit code.
    let refused = directory.path().join("refused");
    std::fs::write(&refused, "#!/bin/sh\nexit 72\n").unwrap();
    std::fs::set_permissions(&refused, std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let error = open(&refused.display().to_string());
    let expected = "could not be started: the system refused to start a thread";
    assert!(error.to_string().contains(expected), "{error}");
    assert!(error.help().is_some_and(|help| help.contains("ulimit -u")), "{error}");
    assert_eq!(Error::from(error).kind(), ErrorKind::Resource);
    let shims = Shims::new();
    shims.dying(None);
    let launcher = Launcher { worker: refused, caps: short() };
    let none = ShimRegistry::builder().isolated(launcher).directory(shims.path()).build();
    let error = Error::from(none.open("dying", "x", &[]).unwrap_err());
    assert!(error.to_string().contains("shim `dying` could not be opened"), "{error}");
    assert_eq!(error.kind(), ErrorKind::Resource);
    assert!(error.help().is_some_and(|help| help.contains("ulimit -u")), "{error:?}");
    // A test program has no worker next to it, and the variable is not set here.
    if std::env::var_os("SHARDWRIGHT_WORKER").is_none() {
        assert!(
            find_worker().is_err_and(|error| error.to_string().contains("shardwright-worker` not found"))
        );
        assert!(Launcher::found().is_err());
    }
    // Started manually, it prints an explanation.
    let worker = Command::new(isolation().worker).stdin(Stdio::null()).output().unwrap();
    assert_eq!(worker.status.code(), Some(64));
    assert!(String::from_utf8_lossy(&worker.stderr).contains("started by Shardwright"));
}

#[test]
fn unbounded_allocation_ends_at_the_cap() {
    let caps = Caps { memory_bytes: 256 << 20, ..Caps::default() };
    for (place, class) in [("check", ErrorClass::ResourceLimit), ("run", ErrorClass::DeviceLost)] {
        let instance = open_with(&format!("{place}:grow"), caps).unwrap();
        let error = match place {
            "check" => instance.check("npu", &doubling(), &[]).unwrap_err(),
            _ => run(&mut load(&instance), &[1.0; 4]).unwrap_err(),
        };
        let failure = WorkerFailure::of(&error).unwrap();
        assert_eq!(failure.end, WorkerEnd::OverMemory { limit_bytes: 256 << 20 }, "{error}");
        assert!(
            failure.peak_memory_bytes > 128 << 20 && failure.peak_memory_bytes < 512 << 20,
            "{failure:?}"
        );
        assert_eq!(error.class(), Some(class));
        assert!(error.to_string().contains("ran out of memory: its limit is 268435456 bytes"), "{error}");
        assert!(error.details().contains(&("limit".to_owned(), "worker-memory-bytes".to_owned())));
    }
}

/// Cancels after a number of polls, and counts the progress reports.
struct Impatient {
    patience: std::cell::Cell<u32>,
    heard: u32,
}

impl Watch for Impatient {
    fn progress(&mut self, per_mille: u32, stage: &str) {
        assert!(per_mille == 500 && !stage.is_empty());
        self.heard += 1;
    }

    fn cancelled(&self) -> bool {
        let left = self.patience.get();
        self.patience.set(left.saturating_sub(1));
        left == 0
    }
}

#[test]
fn a_compilation_is_asked_to_stop_and_then_killed() {
    let directory = tempfile::tempdir().unwrap();
    let place = ArtefactDestination::Directory(directory.path());
    for (die, dies) in [("compile-polite:", false), ("compile-deaf:", true), ("compile:hang", true)] {
        let grace = if dies { Duration::from_millis(200) } else { Duration::from_secs(30) };
        let instance = open_with(die, Caps { grace, ..Caps::default() }).unwrap();
        let first = pid(&instance);
        let mut watch = Impatient { patience: 3.into(), heard: 0 };
        let error = instance.compile("npu", &order(), place, &mut watch).unwrap_err();
        assert!(error.is_cancelled() && error.class().is_none() && error.help().is_none(), "{error:?}");
        assert_eq!(
            WorkerFailure::of(&error).map(|failure| &failure.end),
            dies.then_some(&WorkerEnd::Cancelled)
        );
        assert_eq!(die == "compile:hang", watch.heard == 0);
        assert_eq!(exists(first), !dies);
        assert_empty(directory.path());
        // Only that compilation was stopped, not the next one.
        if !dies {
            let again = instance.check("npu", &doubling(), &[]).unwrap();
            assert!(again[0].accepted);
        }
    }
    // A panic of the caller costs the worker, but not the caller's process.
    struct Panics;
    impl Watch for Panics {
        fn progress(&mut self, _: u32, _: &str) {
            panic!("enough");
        }
    }
    let instance = open("compile-polite:");
    let call = || instance.compile("npu", &order(), place, &mut Panics);
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).is_err());
    assert!(instance.limits("npu").unwrap().is_empty());
    assert_empty(directory.path());
}

#[test]
fn artefacts_appear_complete_or_not_at_all() {
    let directory = tempfile::tempdir().unwrap();
    let place = ArtefactDestination::Directory(directory.path());
    // Three mebibytes in pieces, and all kinds of reports.
    let instance = open("compile-large:");
    let artefact = instance.compile("npu", &order(), place, &mut ()).unwrap();
    assert_eq!(artefact.payload().len(), (3 << 20) + 16);
    assert_eq!(Artefact::open(artefact.path()).unwrap().name(), artefact.name());
    std::fs::remove_file(artefact.path()).unwrap();
    for die in ["compile-half:abort", "compile-headless:exit", "compile-end:segv", "compile-end:exit-3"] {
        let error = open(die).compile("npu", &order(), place, &mut ()).unwrap_err();
        assert!(WorkerFailure::of(&error).is_some(), "{die}: {error:?}");
        assert_empty(directory.path());
    }
    // It is too short, although the shim reports success. Loading it fails as a corrupt artefact.
    let short =
        open("compile-short:").compile("npu", &order(), ArtefactDestination::Temporary, &mut ()).unwrap();
    let error = open("").load("npu", &short, &[]).unwrap_err();
    assert_eq!(error.class(), Some(ErrorClass::CorruptArtefact));
    // A directory without write access is the host's failure, and does not cost the worker.
    let instance = open("");
    let error = instance
        .compile("npu", &order(), ArtefactDestination::Directory(Path::new("/proc")), &mut ())
        .unwrap_err();
    assert!(matches!(error, ShimError::Other(ErrorClass::CorruptArtefact, _)), "{error:?}");
    assert!(exists(pid(&instance)));
}

#[test]
fn writing_beside_a_buffer_is_found() {
    // Writes one byte after, far after or before a buffer. The buffer is an output or an input, and
    // one byte is in a gap left by the alignment.
    for (die, offset, binding) in [
        ("run-behind:16", 16, "y"),
        ("run-behind:4000", 4000, "y"),
        ("run-input:16", 16, "x"),
        ("run-input:31", 31, "x"),
    ] {
        let instance = open(die);
        let mut shard = load(&instance);
        let error = run(&mut shard, &[1.0; 4]).unwrap_err();
        let failure = WorkerFailure::of(&error).unwrap();
        let WorkerEnd::Signal { signal: 11, touched: Some(touched), .. } = &failure.end else {
            panic!("{die}: {failure:?}")
        };
        assert_eq!((touched.offset, touched.length, touched.binding.as_str()), (offset, 16, binding));
        assert_eq!(error.class(), Some(ErrorClass::DeviceLost));
        let text = format!("signal 11 (SIGSEGV) at byte {offset} of the 16 bytes bound as `{binding}`");
        assert!(error.to_string().ends_with(&text), "{error}");
    }
    // Plain memory is copied to such a buffer.
    let instance = open("run-behind:16");
    let mut y = [7; 16];
    let error = load(&instance)
        .run(0, 4, &mut [Bound::Read(&[0; 16]), Bound::Write(&mut y)], RunOptions::default())
        .unwrap_err();
    assert!(error.to_string().contains("byte 16 of the 16 bytes bound as `y`"), "{error}");
    assert_eq!(y, [7; 16]);
    // If the alignment exceeds the length, or before the buffer, the guard page is not adjacent.
    // Then marked bytes detect the write.
    for (die, length, offset) in
        [("run-before:1", 16, -1), ("run-before:40", 16, -40), ("run-behind:20", 20, 20)]
    {
        let instance = open(die);
        let mut shard = load(&instance);
        let (x, y) =
            (instance.allocate("npu", 16, 16).unwrap(), instance.allocate("npu", length, 16).unwrap());
        let error =
            shard.run(0, 4, &mut [Bound::Buffer(&x), Bound::Buffer(&y)], RunOptions::default()).unwrap_err();
        match &WorkerFailure::of(&error).unwrap().end {
            WorkerEnd::Overrun(touched) => {
                assert_eq!((touched.offset, touched.length), (offset, length), "{die}");
            }
            other => panic!("{die}: {other:?}"),
        }
        assert!(
            error.to_string().contains(&format!("it wrote byte {offset} of the {length} bytes")),
            "{error}"
        );
        assert_eq!(error.class(), Some(ErrorClass::DeviceLost));
    }
    // This is within the guard page, wherever in its page the buffer starts. Bytes further away may
    // be mapped.
    let error = run(&mut load(&open("run-before:5000")), &[1.0; 4]).unwrap_err();
    assert!(
        matches!(WorkerFailure::of(&error).unwrap().end, WorkerEnd::Signal { signal: 11, .. }),
        "{error}"
    );
}

#[test]
fn every_handle_of_a_dead_worker_is_dead_and_recovering_starts_a_new_one() {
    let instance = open("run-value:abort");
    let mut shards = [load(&instance), load(&instance)];
    assert_eq!(run(&mut shards[0], &[1.0, 2.0, 3.0, 4.0]).unwrap(), [2.0, 4.0, 6.0, 8.0]);
    let (x, y) = (instance.allocate("npu", 16, 16).unwrap(), instance.allocate("npu", 16, 16).unwrap());
    let first = pid(&instance);
    let error = run(&mut shards[0], &[-1.0; 4]).unwrap_err();
    assert_eq!(
        (error.class(), WorkerFailure::of(&error).unwrap().earlier),
        (Some(ErrorClass::DeviceLost), false)
    );
    for shard in &mut shards {
        let error =
            shard.run(0, 4, &mut [Bound::Buffer(&x), Bound::Buffer(&y)], RunOptions::default()).unwrap_err();
        assert!(
            WorkerFailure::of(&error).unwrap().earlier && error.class() == Some(ErrorClass::DeviceLost),
            "{error}"
        );
        assert!(error.to_string().contains("ended earlier: it was killed by signal 6"), "{error}");
    }
    for dead in [x.read().map(drop), y.write().map(drop)] {
        let error = dead.unwrap_err();
        assert_eq!(
            (error.class(), WorkerFailure::of(&error).unwrap().function),
            (Some(ErrorClass::DeviceLost), "buffer")
        );
    }
    instance.recover("npu").unwrap();
    assert_ne!(pid(&instance), first);
    let mut shard = load(&instance);
    // The new worker rejects objects of the old one.
    let fresh = instance.allocate("npu", 16, 16).unwrap();
    let error =
        shard.run(0, 4, &mut [Bound::Buffer(&x), Bound::Buffer(&fresh)], RunOptions::default()).unwrap_err();
    assert!(WorkerFailure::of(&error).unwrap().earlier, "{error}");
    assert_eq!(run(&mut shard, &[3.0; 4]).unwrap(), [6.0; 4]);
    let Running::Worker(report) = instance.running() else { panic!() };
    assert_eq!(report.started, 2);
    // A recovery that kills a live worker.
    let instance = open("recover:abort");
    assert_eq!(instance.recover("npu").unwrap_err().class(), Some(ErrorClass::Internal));
    instance.recover("npu").unwrap();
}

#[test]
fn a_run_is_cancelled_or_killed() {
    for (die, dies) in [("run-polite:", false), ("run:hang-stubborn", true)] {
        let grace = if dies { Duration::from_millis(200) } else { Duration::from_secs(30) };
        let instance = open_with(die, Caps { grace, ..Caps::default() }).unwrap();
        let mut shard = load(&instance);
        let canceller = shard.canceller();
        let mut cancelled_run = || {
            std::thread::scope(|scope| {
                let thread = scope.spawn(|| run(&mut shard, &[1.0; 4]).unwrap_err());
                // A request before the run starts has no effect, so the caller repeats it until the
                // run ends.
                while !thread.is_finished() {
                    canceller.cancel();
                    std::thread::sleep(Duration::from_millis(5));
                }
                thread.join().unwrap()
            })
        };
        let mut error = cancelled_run();
        // If a request arrives before its run, the run ends before the shim is called, which would
        // not stop.
        for _ in 0..100 {
            if !dies || WorkerFailure::of(&error).is_some() {
                break;
            }
            assert!(error.is_cancelled(), "{error:?}");
            error = cancelled_run();
        }
        assert!(error.is_cancelled(), "{error:?}");
        assert_eq!(WorkerFailure::of(&error).is_some(), dies);
        assert_eq!(exists(pid_of(&instance).unwrap_or(0)), !dies);
        if dies {
            // A later run is not cancelled. It finds its worker dead.
            let later = run(&mut shard, &[1.0; 4]).unwrap_err();
            let is_earlier = WorkerFailure::of(&later).unwrap().earlier;
            assert_eq!((later.class(), is_earlier), (Some(ErrorClass::DeviceLost), true), "{later}");
            assert!(!later.is_cancelled() && later.help().is_some(), "{later}");
        }
        drop(shard);
        assert!(!canceller.cancel());
    }
}

fn pid_of(instance: &ShimInstance) -> Option<u32> {
    match instance.running() {
        Running::Worker(report) => report.pid,
        Running::InProcess => None,
    }
}

#[test]
fn a_shim_receives_the_number_of_top_logits_here_and_in_a_worker() {
    let shims = Shims::new();
    shims.dying(None);
    let local = shims.registry().open("dying", "here", &options("run-largest:")).unwrap();
    for instance in [local, open("run-largest:")] {
        let mut shard = load(&instance);
        let (x, y) = (instance.allocate("npu", 16, 16).unwrap(), instance.allocate("npu", 16, 16).unwrap());
        for asked in [None, Some(1), Some(40), None] {
            let largest_logits = asked.and_then(NonZeroUsize::new);
            let options = RunOptions { largest_logits, ..RunOptions::default() };
            shard.run(0, 4, &mut [Bound::Buffer(&x), Bound::Buffer(&y)], options).unwrap();
            assert_eq!(f32_values(&y.read().unwrap())[0], asked.unwrap_or(0) as f32);
        }
    }
}

#[test]
fn a_run_past_its_deadline_is_ended_after_its_grace() {
    let caps = Caps { grace: Duration::from_millis(100), ..Caps::default() };
    let instance = open_with("run:hang", caps).unwrap();
    let mut shard = load(&instance);
    let (x, y) = (instance.allocate("npu", 16, 16).unwrap(), instance.allocate("npu", 16, 16).unwrap());
    let options = RunOptions { deadline: Some(Duration::from_millis(50)), ..RunOptions::default() };
    let error = shard.run(0, 4, &mut [Bound::Buffer(&x), Bound::Buffer(&y)], options).unwrap_err();
    assert_eq!(WorkerFailure::of(&error).unwrap().end, WorkerEnd::OverTime { limit_ms: 150 });
    assert_eq!(error.class(), Some(ErrorClass::DeviceLost));
}

#[test]
fn the_output_of_a_noisy_shim_is_read_and_blocks_no_call() {
    // Seven megabytes of output before the answer, and endless output from another thread.
    for die in ["devices:noise", "devices:chatter"] {
        let instance = open(die);
        assert_eq!(instance.devices(None).unwrap().len(), 1);
        let mut shard = load(&instance);
        assert_eq!(run(&mut shard, &[1.0; 4]).unwrap(), [2.0; 4]);
    }
    // Its output becomes the log of a failure without one.
    let instance = open("compile-short:");
    let short = instance.compile("npu", &order(), ArtefactDestination::Temporary, &mut ()).unwrap();
    let noisy = open("load:noise");
    let Err(ShimError::Failed(failure)) = noisy.load("npu", &short, &[]) else { panic!() };
    assert!(failure.log_tail.unwrap().ends_with("line 99999 of very many lines"));
}

#[test]
fn a_worker_that_hangs_in_closing_is_not_waited_for() {
    for die in ["close:hang-stubborn", "close:abort", "close:chatter", "unload:exit"] {
        let caps = Caps { grace: Duration::from_millis(200), ..Caps::default() };
        let instance = open_with(die, caps).unwrap();
        let pid = pid(&instance);
        let shard = load(&instance);
        drop(instance);
        drop(shard);
        assert!(!exists(pid), "{die}");
    }
}

#[test]
fn an_answer_that_a_shim_forges_must_have_the_right_type() {
    // It answers `devices` with limits, which is an invalid answer. For `limits` the answer is
    // valid and harmless.
    let error = open_with("devices:lie", short()).unwrap().devices(None).unwrap_err();
    let failure = WorkerFailure::of(&error).unwrap();
    assert!(
        matches!(&failure.end, WorkerEnd::Protocol { reason } if reason.contains("not an answer of `devices`")),
        "{error}"
    );
}

#[test]
fn one_instance_is_used_by_many_threads() {
    let instance = open("");
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let instance = &instance;
            scope.spawn(move || {
                let mut shard = load(instance);
                for round in 0..50 {
                    let value = (thread * 100 + round) as f32;
                    assert_eq!(run(&mut shard, &[value; 4]).unwrap(), [2.0 * value; 4]);
                    if round % 10 == thread {
                        compile(instance).unwrap();
                    }
                }
            });
        }
    });
    assert_eq!(instance.call_times()["run"].calls, 200);
}

#[test]
fn one_death_ends_the_runs_of_every_shard() {
    let instance = open("run-value:abort");
    let mut hanging = load(&open("run:hang"));
    let mut shards = [load(&instance), load(&instance)];
    let [first, second] = &mut shards;
    std::thread::scope(|scope| {
        let long = scope.spawn(|| {
            // Repeat until the other one dies.
            loop {
                if let Err(error) = run(first, &[1.0; 4]) {
                    return error;
                }
            }
        });
        let error = run(second, &[-1.0; 4]).unwrap_err();
        assert!(matches!(WorkerFailure::of(&error).unwrap().end, WorkerEnd::Signal { signal: 6, .. }));
        let error = long.join().unwrap();
        assert_eq!(error.class(), Some(ErrorClass::DeviceLost));
        assert!(
            matches!(WorkerFailure::of(&error).unwrap().end, WorkerEnd::Signal { signal: 6, .. }),
            "{error}"
        );
    });
    // The run of another instance continues.
    let canceller = hanging.canceller();
    std::thread::scope(|scope| {
        let run = scope.spawn(|| run(&mut hanging, &[1.0; 4]).unwrap_err());
        while !run.is_finished() {
            canceller.cancel();
            std::thread::sleep(Duration::from_millis(5));
        }
        // A run that had not begun can end without ending the worker.
        let error = run.join().unwrap();
        assert!(error.is_cancelled(), "{error}");
        assert!(
            WorkerFailure::of(&error).is_none_or(|failure| failure.end == WorkerEnd::Cancelled),
            "{error}"
        );
    });
}

/// A listener that stores the log of its thread.
#[derive(Clone, Default)]
struct Listener(std::sync::Arc<std::sync::Mutex<Vec<String>>>);

impl tracing::field::Visit for Listener {
    fn record_debug(&mut self, _: &tracing::field::Field, value: &dyn std::fmt::Debug) {
        self.0.lock().unwrap().push(format!("{value:?}"));
    }
}

impl tracing::Subscriber for Listener {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "shim"
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut self.clone());
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

/// Runs in a separate process. If another test's thread reaches a log call for the first time just
/// as the listener is set, that log call may stay disabled.
#[test]
fn log_lines_of_a_shim_arrive_in_the_hosts_log() {
    const ALONE: &str = "SHARDWRIGHT_TEST_LOG";
    if std::env::var_os(ALONE).is_none() {
        let mut alone = Command::new(std::env::current_exe().unwrap());
        alone.args(["--exact", "log_lines_of_a_shim_arrive_in_the_hosts_log"]).env(ALONE, "1");
        let output = alone.output().unwrap();
        let said = String::from_utf8_lossy(&output.stdout);
        assert!(
            output.status.success() && said.contains("1 passed"),
            "{}",
            said.chars().take(4000).collect::<String>()
        );
        return;
    }
    let listener = Listener::default();
    let _listening = tracing::subscriber::set_default(listener.clone());
    let instance = open("limits:log");
    instance.limits("npu").unwrap();
    // By the second request there was room for everything.
    instance.devices(None).unwrap();
    drop(instance);
    let heard = listener.0.lock().unwrap();
    let first = &heard[..heard.len().min(20)];
    assert!(heard.iter().any(|line| line == "dying: opened"), "{first:?}");
    assert!(heard.iter().any(|line| line.contains("limits:log")), "the instance is named: {first:?}");
    // Ten thousand lines at once: none is truncated, and dropped ones are counted.
    let lines = heard.iter().filter(|line| line.starts_with("line ")).count();
    let dropped = " log lines were dropped: the shim logs too fast";
    let lost = |line: &String| line.strip_suffix(dropped)?.parse::<usize>().ok();
    let lost: usize = heard.iter().filter_map(lost).sum();
    assert_eq!(lines + lost, 10_000, "{lines} and {lost}");
}

#[test]
fn a_linked_shim_is_opened_by_a_worker_that_has_it() {
    let shims = Shims::new();
    let path = shims.dying(None);
    // SAFETY: the library was built for this test, and is never unloaded.
    let library = Box::leak(Box::new(unsafe { libloading::Library::new(path) }.unwrap()));
    // SAFETY: the contract defines this type for the symbol.
    let entry = unsafe { library.get::<SwEntryFunction>(b"shardwright_shim_entry") }.unwrap();
    let registry = ShimRegistry::builder().linked("part-of-this", *entry).build();
    assert_eq!(registry.open("dying", "here", &[]).unwrap().devices(None).unwrap().len(), 1);
    // The program of this crate has no linked shims.
    let error = registry.open_isolated("dying", "there", &[], &isolation()).unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("could not be started") && text.contains("<linked part-of-this>: not found"),
        "{text}"
    );
}

/// Not a separate test, but the process that the next test kills.
#[test]
fn host_that_is_killed() {
    let Some(report) = std::env::var_os("SHARDWRIGHT_TEST_HOST") else { return };
    let instance = open("check:fork-hang");
    std::fs::write(report, pid(&instance).to_string()).unwrap();
    let _ = instance.check("npu", &doubling(), &[]);
}

#[test]
fn a_worker_ends_with_its_host_whatever_it_is_doing() {
    let directory = tempfile::tempdir().unwrap();
    let report = directory.path().join("pid");
    let mut host = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "host_that_is_killed"])
        .env("SHARDWRIGHT_TEST_HOST", &report)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let wait = |what: &str, done: &dyn Fn() -> bool| {
        let start = Instant::now();
        while !done() {
            assert!(start.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    wait("no worker", &|| std::fs::read_to_string(&report).is_ok_and(|text| !text.is_empty()));
    let worker: u32 = std::fs::read_to_string(&report).unwrap().parse().unwrap();
    // Children belong to the thread that forked.
    let child = || {
        let threads = std::fs::read_dir(format!("/proc/{worker}/task")).ok()?.flatten();
        let mut lists =
            threads.filter_map(|thread| std::fs::read_to_string(thread.path().join("children")).ok());
        lists.find_map(|text| text.trim().parse::<u32>().ok())
    };
    // Once it has a child, it hangs in the shim.
    wait("no grandchild", &|| child().is_some());
    let grandchild = child().unwrap();
    host.kill().unwrap();
    assert_eq!(host.wait().unwrap().signal(), Some(9));
    // They have a new parent now. They are gone or zombies, but not running.
    let running = |pid: u32| {
        std::fs::read_to_string(format!("/proc/{pid}/stat"))
            .is_ok_and(|stat| !stat.rsplit(')').next().unwrap_or("").trim_start().starts_with(['Z', 'X']))
    };
    wait("the worker lives", &|| !running(worker));
    wait("the grandchild lives", &|| !running(grandchild));
}

fn chip(facts: &[(&str, &str)]) -> Chip {
    let facts = facts.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    let (name, aliases) = ("mt1".to_owned(), vec!["One".to_owned()]);
    Chip { name, aliases, facts: facts.collect(), shim: None }
}

/// In this process and in a worker, before and after that worker was lost.
#[test]
fn a_chip_is_announced_by_the_facts_a_shim_declares_and_again_to_every_new_worker() {
    let shims = Shims::new();
    shims.dying(None);
    let local = shims.registry().open("dying", "here", &[]).unwrap();
    let remote = open("devices:abort");
    let declared: Vec<(String, bool)> =
        remote.shim().chip_facts().iter().map(|schema| (schema.fact.name.clone(), schema.required)).collect();
    assert_eq!(declared, [("number".to_owned(), true), ("colour".to_owned(), false)]);
    for instance in [&local, &remote] {
        let known = |facts: &[(&str, &str)]| match instance.know(&chip(facts)) {
            Ok(()) => Ok(()),
            Err(ShimError::Chip(error)) => Err(error),
            Err(other) => panic!("{other}"),
        };
        let missing = known(&[("colour", "red")]).unwrap_err();
        assert_eq!((missing.kind(), missing.place()), (ErrorKind::Invalid, Some("profile `mt1`")));
        assert!(missing.message().contains("no fact `number`"), "{missing}");
        for (facts, fact) in
            [(&[("number", "100")][..], "number"), (&[("number", "7"), ("colour", "blue")], "colour")]
        {
            let wrong = known(facts).unwrap_err();
            assert_eq!(wrong.kind(), ErrorKind::Invalid);
            assert_eq!(wrong.place(), Some(&*format!("profile `mt1`, fact `{fact}`")));
            assert!(wrong.message().starts_with("expected "), "{wrong}");
        }
        for (number, kind) in [("13", ErrorKind::Invalid), ("14", ErrorKind::Unsupported)] {
            let refused = known(&[("number", number)]).unwrap_err();
            assert_eq!((refused.kind(), refused.place()), (kind, Some("profile `mt1`, fact `number`")));
            assert!(refused.message().starts_with("shim `"), "{refused}");
        }
        known(&[("number", "8"), ("smell", "of roses")]).unwrap();
    }
    let detail = |instance: &ShimInstance| instance.devices(Some("mt1")).map(|found| found[0].detail.clone());
    assert_eq!(detail(&local).unwrap().as_deref(), Some("8"));
    let kept = local.chip_of("npu").unwrap();
    assert_eq!(kept, chip(&[("number", "8")]), "of what the shim reads");
    assert!(detail(&remote).is_err(), "the request kills it");
    assert_eq!(local.devices(Some("mt2")).unwrap()[0].detail, None);

    // The artefact records the facts read and the facts read back, in a worker that was restarted
    // for it.
    let steady = open("nowhere:never");
    steady.know(&chip(&[("number", "8")])).unwrap();
    assert_eq!(detail(&steady).unwrap().as_deref(), Some("8"));
    Command::new("kill").args(["-9", &pid(&steady).to_string()]).status().unwrap();
    // A request may arrive before its end is noticed. After that another worker is started.
    let again = (0..100).find_map(|_| detail(&steady).ok());
    assert_eq!(again.flatten().as_deref(), Some("8"));
    compile(&steady).unwrap();
    let made = compile(&steady).unwrap();
    let head = made.head();
    assert_eq!(head.chip, Some(chip(&[("number", "8")])));
    let otherwise: Vec<_> = head.made_otherwise().collect();
    assert_eq!(otherwise, [("number", Some("8"), "7")]);
    steady.know(&chip(&[("number", "7")])).unwrap();
    assert_eq!(compile(&steady).unwrap().head().made_otherwise().count(), 0, "the last word counts");
    let strange = open("compile-strange:never");
    match compile(&strange) {
        Err(ShimError::Contract { function, reason, .. }) if function == "compile" => {
            assert!(reason.contains("fact `weight`"), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn invalid_declarations_of_facts_are_caught() {
    for (define, says) in [("FACT_TWICE", "`colour` is declared twice"), ("NO_CHIP", "without the function")]
    {
        let shims = Shims::new();
        shims.dying_with(define);
        let registry = ShimRegistry::builder().directory(shims.path()).build();
        let skipped = &registry.skipped()[0].error;
        assert_eq!(skipped.reason(), "describe-failed", "{skipped}");
        assert!(skipped.to_string().contains(says), "{skipped}");
    }
}

#[test]
fn violations_of_the_contract_are_reported_by_a_worker_as_in_this_process() {
    let shims = Shims::new();
    shims.faulty();
    let registry = shims.registry();
    for (fault, text) in [("flag-blank", "without evidence"), ("flag-twice", "two verdicts")] {
        let options = [("fault".to_owned(), fault.to_owned())];
        let flag = Flag { name: "opt".to_owned(), value: "3".to_owned() };
        let order = WorkOrderBuilder::new(&[]).entry(&doubling()).unwrap().flag(flag).temporary().unwrap();
        let isolated = registry.open_isolated("faulty", fault, &options, &isolation()).unwrap();
        match isolated.compile("npu", &order, ArtefactDestination::Temporary, &mut ()) {
            Err(ShimError::Contract { function, reason, .. }) => {
                assert!(function == "compile" && reason.contains(text), "{function}: {reason}");
            }
            other => panic!("{other:?}"),
        }
    }
    // This includes options in the manifest.
    shims.manifest("faulty", "faulty", |manifest| {
        manifest["options"] = serde_json::json!({"fault": "open-null", "library": "/a/b.so"});
    });
    match shims.registry().open_isolated("faulty", "x", &[], &isolation()) {
        Err(ShimError::Contract { function, reason, .. }) => {
            assert!(function == "open" && reason.contains("without an instance"), "{function}: {reason}");
        }
        other => panic!("{other:?}"),
    }
}

/// The path leads to another file than the hashed one.
#[test]
fn a_worker_checks_the_hash_of_a_library_again() {
    use sha2::Digest;
    let shims = Shims::new();
    let template = shims.template();
    let content = std::fs::read(&template).unwrap();
    let hash: String = sha2::Sha256::digest(&content).iter().map(|byte| format!("{byte:02x}")).collect();
    shims.manifest("template_c", "template-c", |manifest| manifest["sha256"] = hash.into());
    let registry = shims.registry();
    std::fs::remove_file(&template).unwrap();
    std::fs::write(&template, [content, vec![0]].concat()).unwrap();
    let error = registry.open_isolated("template-c", "there", &[], &isolation()).unwrap_err();
    assert!(error.to_string().contains("SHA-256"), "{error}");
}

#[test]
fn shims_of_an_earlier_and_of_a_later_header_run_in_a_worker_like_todays() {
    let today = Shims::new();
    today.template();
    let expected = says_and_runs(&today.registry().open("template-c", "today", &[]).unwrap());
    for change in [earlier as fn(&str, String) -> String, later] {
        let shims = Shims::new();
        shims.changed_template(change);
        let isolated = shims.registry().open_isolated("template-c", "there", &[], &isolation()).unwrap();
        assert_eq!(says_and_runs(&isolated), expected);
    }
}
