//! Tests of the functions, each case in its own process: which lines are written, and that a broken
//! rule ends the process.

use std::ffi::c_void;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, Output};
use std::ptr::{null, null_mut};

use shardwright_neuron_adapter::operand::{Compilation, Execution, Memory, Model, TENSOR_QUANT16_SYMM};
use shardwright_neuron_adapter::{OperandType, operation, result};
use shardwright_neuron_recorder::exports::*;

/// Variable that names the case to run in a child process.
const CASE: &str = "SHARDWRIGHT_NEURON_RECORDER_CASE";

/// Returns a compiled network with an input of 64 bytes and an output of 128 bytes.
fn network() -> Vec<u8> {
    // SAFETY: every pointer is to a variable of this function, and outlives its call.
    unsafe {
        let mut model: *mut Model = null_mut();
        assert_eq!(NeuronModel_create(&mut model), result::NO_ERROR);
        for dimensions in [[1_u32, 32], [1, 64]] {
            let kind = OperandType {
                kind: TENSOR_QUANT16_SYMM,
                dimension_count: 2,
                dimensions: dimensions.as_ptr(),
                scale: 1.0,
                zero_point: 0,
            };
            assert_eq!(NeuronModel_addOperand(model, &kind), result::NO_ERROR);
        }
        NeuronModel_identifyInputsAndOutputs(model, 1, &0, 1, &1);
        NeuronModel_addOperation(model, operation::ADD, 1, &0, 1, &1);
        NeuronModel_finish(model);
        let mut compilation: *mut Compilation = null_mut();
        NeuronCompilation_createWithOptions(model, &mut compilation, c"--opt 3".as_ptr());
        NeuronCompilation_setPriority(compilation, 110);
        NeuronCompilation_finish(compilation);
        let mut length = 0;
        NeuronCompilation_getCompiledNetworkSize(compilation, &mut length);
        let mut bytes = vec![0_u8; length];
        NeuronCompilation_storeCompiledNetwork(compilation, bytes.as_mut_ptr().cast(), length);
        NeuronCompilation_free(compilation);
        NeuronModel_free(model);
        bytes
    }
}

struct Restored {
    model: *mut Model,
    compilation: *mut Compilation,
    execution: *mut Execution,
}

fn restored() -> Restored {
    let bytes = network();
    let (mut model, mut compilation, mut execution) = (null_mut(), null_mut(), null_mut());
    // SAFETY: as in `network`.
    unsafe {
        let code = NeuronModel_restoreFromCompiledNetwork(
            &mut model,
            &mut compilation,
            bytes.as_ptr().cast(),
            bytes.len(),
        );
        assert_eq!(code, result::NO_ERROR);
        NeuronExecution_create(compilation, &mut execution);
    }
    Restored { model, compilation, execution }
}

fn shared(bytes: u64) -> OwnedFd {
    // SAFETY: a string, and no flags.
    let descriptor = unsafe { libc::memfd_create(c"shared".as_ptr(), 0) };
    assert!(descriptor >= 0);
    // SAFETY: new, and without another owner.
    let descriptor = unsafe { OwnedFd::from_raw_fd(descriptor) };
    // SAFETY: a descriptor of this function.
    assert_eq!(unsafe { libc::ftruncate(descriptor.as_raw_fd(), bytes as i64) }, 0);
    descriptor
}

fn memory(length: usize, descriptor: &impl AsRawFd, offset: usize) -> *mut Memory {
    let mut memory = null_mut();
    let protection = libc::PROT_READ | libc::PROT_WRITE;
    // SAFETY: a variable of this function.
    unsafe { NeuronMemory_createFromFd(length, protection, descriptor.as_raw_fd(), offset, &mut memory) };
    memory
}

/// Binds the output to the caller's memory and runs.
fn runs_into(restored: &Restored, output: &mut [u8; 128]) {
    // SAFETY: the output outlives the run.
    unsafe {
        NeuronExecution_setOutput(restored.execution, 0, null(), output.as_mut_ptr().cast(), 128);
        NeuronExecution_compute(restored.execution);
    }
}

/// Runs a case in the child process.
fn act(case: &str) {
    let mut output = [7; 128];
    // SAFETY: some cases use freed handles and memory on purpose. The library detects them and does
    // not dereference them.
    unsafe {
        match case {
            "sound" => {
                let one = restored();
                let descriptor = shared(4096);
                let (mut bytes, mut dimensions) = (0, [0; 4]);
                NeuronExecution_setBoostHint(one.execution, 100);
                NeuronCompilation_getInputPaddedSize(one.compilation, 0, &mut bytes);
                NeuronCompilation_getInputPaddedDimensions(one.compilation, 0, dimensions.as_mut_ptr());
                assert_eq!((bytes, dimensions), (64, [1, 32, 1, 1]));
                let input = memory(4096, &descriptor, 0);
                NeuronExecution_setInputFromMemory(one.execution, 0, null(), input, 128, 64);
                runs_into(&one, &mut output);
                assert_eq!(output, [0; 128]);
                NeuronExecution_free(one.execution);
                NeuronMemory_free(input);
                assert_eq!(ShardwrightNeuronRecorder_left(), 2);
                NeuronCompilation_free(one.compilation);
                NeuronModel_free(one.model);
                assert_eq!(ShardwrightNeuronRecorder_left(), 0);
            }
            "strangers" => {
                let (mut model, mut compilation) = (null_mut(), null_mut());
                let code = NeuronModel_restoreFromCompiledNetwork(
                    &mut model,
                    &mut compilation,
                    c"no network".as_ptr().cast(),
                    10,
                );
                assert_eq!((code, model.is_null()), (result::BAD_DATA, true));
                let bytes = network();
                std::env::set_var("SHARDWRIGHT_NEURON_RECORDER_VERSION", "9.2.0");
                let code = NeuronModel_restoreFromCompiledNetwork(
                    &mut model,
                    &mut compilation,
                    bytes.as_ptr().cast(),
                    bytes.len(),
                );
                assert_eq!((code, model.is_null()), (result::BAD_DATA, true));
            }
            "freed-too-early" => NeuronModel_free(restored().model),
            "use-after-free" => {
                let one = restored();
                NeuronExecution_free(one.execution);
                NeuronExecution_compute(one.execution);
            }
            "null" => {
                NeuronModel_create(null_mut());
            }
            "unknown-handle" => {
                NeuronModel_finish(std::ptr::without_provenance_mut(0x5000));
            }
            "index" => {
                NeuronExecution_setInput(restored().execution, -1, null(), output.as_ptr().cast(), 64);
            }
            "length" => {
                NeuronExecution_setInput(restored().execution, 0, null(), output.as_ptr().cast(), 63);
            }
            "alignment" => {
                memory(64, &shared(4096), 32);
            }
            "range" => {
                NeuronExecution_setBoostHint(restored().execution, 101);
            }
            "unbound" => runs_into(&restored(), &mut output),
            "buffer-gone" => {
                let one = restored();
                let protection = libc::PROT_READ | libc::PROT_WRITE;
                let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
                let page: *mut c_void = libc::mmap(null_mut(), 4096, protection, flags, -1, 0);
                NeuronExecution_setInput(one.execution, 0, null(), page, 64);
                libc::munmap(page, 4096);
                runs_into(&one, &mut output);
            }
            "descriptor" => {
                let one = restored();
                let descriptor = shared(4096);
                let input = memory(4096, &descriptor, 0);
                NeuronExecution_setInputFromMemory(one.execution, 0, null(), input, 0, 64);
                drop(descriptor);
                runs_into(&one, &mut output);
            }
            other => panic!("no case {other}"),
        }
    }
}

/// Runs a case in its own process. Returns how the process ended and the record that it wrote.
fn child(case: &str) -> (Output, String) {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let record = folder.path().join("record");
    let output = Command::new(std::env::current_exe().expect("this program"))
        .args(["--exact", "the_child", "--nocapture"])
        .env(CASE, case)
        .env("SHARDWRIGHT_NEURON_RECORDER", &record)
        .output()
        .expect("it runs");
    (output, std::fs::read_to_string(record).unwrap_or_default())
}

/// Not a test: the process that the other tests start.
#[test]
fn the_child() {
    if let Ok(case) = std::env::var(CASE) {
        act(&case);
    }
}

#[test]
fn a_sound_run_is_written_down_call_by_call() {
    let (output, record) = child("sound");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let run = record.lines().skip_while(|line| !line.starts_with("NeuronModel_restore"));
    let wanted = [
        "NeuronModel_restoreFromCompiledNetwork length=154 model=3 compilation=4 -> 0",
        "NeuronExecution_create compilation=4 execution=5 -> 0",
        "NeuronExecution_setBoostHint execution=5 boost=100 -> 0",
        "NeuronCompilation_getInputPaddedSize compilation=4 index=0 bytes=64 -> 0",
        "NeuronCompilation_getInputPaddedDimensions compilation=4 index=0 dimensions=[1, 32, 1, 1] -> 0",
        "NeuronMemory_createFromFd length=4096 protection=3 offset=0 memory=6 -> 0",
        "NeuronExecution_setInputFromMemory execution=5 index=0 memory=6 offset=128 length=64 -> 0",
        "NeuronExecution_setOutput execution=5 index=0 length=128 -> 0",
        "NeuronExecution_compute execution=5 -> 0",
        "NeuronExecution_free execution=5 -> 0",
        "NeuronMemory_free memory=6 -> 0",
        "LEFT model 3",
        "LEFT compilation 4",
        "NeuronCompilation_free compilation=4 -> 0",
        "NeuronModel_free model=3 -> 0",
    ];
    assert_eq!(run.collect::<Vec<_>>(), wanted, "{record}");
    assert!(
        record.contains("NeuronCompilation_createWithOptions model=1 options=\"--opt 3\" compilation=2 -> 0")
    );
}

#[test]
fn what_it_did_not_store_is_refused_like_another_versions_code() {
    let (output, record) = child("strangers");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(record.lines().filter(|line| line.ends_with("-> 4")).count(), 2, "{record}");
}

#[test]
fn a_broken_rule_is_written_and_ends_the_process() {
    let cases = [
        ("freed-too-early", "NeuronModel_free model=3: model 3 is freed before compilation 4"),
        ("use-after-free", "NeuronExecution_compute execution=5: execution 5"),
        ("null", "NeuronModel_create: model"),
        ("unknown-handle", "NeuronModel_finish"),
        ("index", "NeuronExecution_setInput execution=5 index=-1 length=64: input -1 of 1"),
        ("length", "63 bytes for an operand of 64"),
        ("alignment", "offset 32 is not a multiple of 64"),
        ("range", "boost 101 of at most 100"),
        ("unbound", "input 0"),
        ("buffer-gone", "cannot be read"),
        ("descriptor", "was closed"),
    ];
    for (case, words) in cases {
        let (output, record) = child(case);
        assert_eq!(output.status.signal(), Some(libc::SIGABRT), "{case}: {record}");
        let last = record.lines().last().unwrap_or_default();
        assert!(last.starts_with(&format!("VIOLATION {case} in ")), "{case}: {last}");
        assert!(last.contains(words), "{case}: {last}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(last), "{case}");
    }
}
