//! Memory by descriptor, padded inputs and outputs, and runs that are started and waited for.

use std::os::fd::{AsRawFd, OwnedFd};
use std::ptr;

use neuron_adapter::*;
use shardwright_neuron_adapter::operand::{self as raw, TENSOR_FLOAT32};
use shardwright_neuron_adapter::result::{
    BAD_DATA, BAD_STATE, NO_ERROR, OUT_OF_MEMORY, OUTPUT_INSUFFICIENT_SIZE,
};
use shardwright_neuron_adapter::{operation as op, setting};

use crate::child;
use crate::client::{Compiled, Kind, Model, last_message, run, tensor};

fn f32s(dimensions: &[u32]) -> Kind {
    tensor(TENSOR_FLOAT32, dimensions, 0.0, 0)
}

/// Compiles x + x over [2, 3].
fn doubling() -> Compiled {
    let mut model = Model::new();
    let (x, none, out) = (model.operand(&f32s(&[2, 3])), model.int(0), model.operand(&f32s(&[2, 3])));
    model.operation(op::ADD, &[x, x, none], &[out]);
    model.compile(&[x], &[out])
}

fn file_of(bytes: u64) -> OwnedFd {
    let file = tempfile::tempfile().expect("a file");
    file.set_len(bytes).expect("longer");
    file.into()
}

const BOTH: i32 = libc::PROT_READ | libc::PROT_WRITE;

fn memory(
    file: &OwnedFd,
    length: usize,
    protection: i32,
    offset: usize,
) -> Result<*mut raw::Memory, (i32, String)> {
    let mut handle = ptr::null_mut();
    // SAFETY: the handle is writable, and the descriptor is open.
    match unsafe { NeuronMemory_createFromFd(length, protection, file.as_raw_fd(), offset, &raw mut handle) }
    {
        NO_ERROR => Ok(handle),
        code => Err((code, last_message())),
    }
}

#[test]
fn runs_read_and_write_shared_memory() {
    use std::os::unix::fs::FileExt;
    let compiled = doubling();
    let file = file_of(8192);
    let shared = memory(&file, 4096, BOTH, 4096).expect("mapped");
    let file = std::fs::File::from(file);
    let bytes = f32s(&[6]).encode(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]);
    file.write_all_at(&bytes, 4096 + 64).expect("written");
    let mut execution = ptr::null_mut();
    // SAFETY: the memory stays alive until the execution is freed.
    unsafe {
        assert_eq!(NeuronExecution_create(compiled.handle, &raw mut execution), NO_ERROR);
        assert_eq!(NeuronExecution_setInputFromMemory(execution, 0, ptr::null(), shared, 64, 24), NO_ERROR);
        assert_eq!(NeuronExecution_setOutputFromMemory(execution, 0, ptr::null(), shared, 128, 24), NO_ERROR);
        assert_eq!(NeuronExecution_compute(execution), NO_ERROR, "{}", last_message());
        // The library refuses this call, because the memory is still in use.
        NeuronMemory_free(shared);
        NeuronExecution_free(execution);
        NeuronMemory_free(shared);
    }
    let mut found = [0; 24];
    file.read_exact_at(&mut found, 4096 + 128).expect("read");
    assert_eq!(f32s(&[6]).decode(&found), [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]);
}

#[test]
fn memory_that_does_not_fit_is_refused_by_what_is_wrong() {
    let file = file_of(4096);
    for (length, protection, offset, problem) in [
        (64, BOTH, 32, "the offset 32 is not a multiple of 64"),
        (0, BOTH, 0, "no bytes"),
        (4096, BOTH, 64, "4096 bytes from 64"),
        (usize::MAX, BOTH, 64, "which has 4096"),
        (64, libc::PROT_WRITE, 0, "the protection"),
    ] {
        let (code, message) = memory(&file, length, protection, offset).expect_err(problem);
        assert_eq!(code, BAD_DATA);
        assert!(message.contains(problem), "{message}");
    }
    let mut handle = ptr::null_mut();
    // SAFETY: the handle is writable. The descriptor does not exist.
    assert_eq!(unsafe { NeuronMemory_createFromFd(64, BOTH, -1, 0, &raw mut handle) }, BAD_DATA);
    // SAFETY: the call does not read any memory.
    assert_eq!(unsafe { NeuronMemory_createFromAHardwareBuffer(ptr::null(), &raw mut handle) }, BAD_STATE);

    let compiled = doubling();
    let shared = memory(&file, 4096, libc::PROT_READ, 0).expect("mapped");
    let mut execution = ptr::null_mut();
    let mut small = [0u8; 20];
    // SAFETY: buffers stay alive until the execution is freed.
    unsafe {
        assert_eq!(NeuronExecution_create(compiled.handle, &raw mut execution), NO_ERROR);
        assert_eq!(NeuronExecution_setInputFromMemory(execution, 0, ptr::null(), shared, 4, 24), BAD_DATA);
        assert!(last_message().contains("the offset 4 is not a multiple of 64"), "{}", last_message());
        assert_eq!(NeuronExecution_setInputFromMemory(execution, 0, ptr::null(), shared, 4096, 24), BAD_DATA);
        assert_eq!(NeuronExecution_setInputFromMemory(execution, 1, ptr::null(), shared, 0, 24), BAD_DATA);
        assert_eq!(NeuronExecution_setOutputFromMemory(execution, 0, ptr::null(), shared, 0, 24), BAD_DATA);
        assert!(last_message().contains("cannot be written"), "{}", last_message());
        assert_eq!(
            NeuronExecution_setOutput(execution, 0, ptr::null(), small.as_mut_ptr().cast(), 20),
            OUTPUT_INSUFFICIENT_SIZE
        );
        assert_eq!(NeuronExecution_setInput(execution, -1, ptr::null(), small.as_ptr().cast(), 20), BAD_DATA);
        assert_eq!(NeuronExecution_setBoostHint(execution, setting::LARGEST_BOOST + 1), BAD_DATA);
        NeuronExecution_free(execution);
        NeuronMemory_free(shared);
    }
}

#[test]
fn the_address_space_is_full_at_a_configured_size() {
    child::alone(r#"{"most_device_bytes": 6000}"#, || {
        let file = file_of(8192);
        let first = memory(&file, 4096, BOTH, 0).expect("there is room for one");
        let (code, message) = memory(&file, 4096, BOTH, 4096).expect_err("and not for two");
        assert_eq!(code, OUT_OF_MEMORY);
        assert!(message.contains("4096 bytes, 1904 left"), "{message}");
        // SAFETY: no other object uses it.
        unsafe { NeuronMemory_free(first) };
        memory(&file, 4096, BOTH, 4096).expect("it was returned");
    });
}

#[test]
fn ends_are_padded_as_configured() {
    child::alone(r#"{"padded_to": 8}"#, || {
        let compiled = doubling();
        let (mut bytes, mut dimensions) = (0usize, [0u32; 4]);
        // SAFETY: four entries are written.
        unsafe {
            assert_eq!(NeuronCompilation_getInputPaddedSize(compiled.handle, 0, &raw mut bytes), NO_ERROR);
            assert_eq!(
                NeuronCompilation_getOutputPaddedDimensions(compiled.handle, 0, dimensions.as_mut_ptr()),
                NO_ERROR
            );
        }
        assert_eq!((bytes, dimensions), (64, [2, 8, 1, 1]));
        let padded =
            |rows: [[f64; 3]; 2], padding: f64| rows.map(|row| [&row[..], &[padding; 5]].concat()).concat();
        let rows = f32s(&[16]).encode(&padded([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]], 9.0));
        let found = f32s(&[16]).decode(&run(compiled.handle, &[rows], &[64])[0]);
        assert_eq!(found, padded([[2.0, 4.0, 6.0], [8.0, 10.0, 12.0]], 0.0));
    });
}

#[test]
fn runs_are_started_and_waited_for() {
    let compiled = doubling();
    let input = f32s(&[6]).encode(&[1.0; 6]);
    let mut output = vec![0u8; 24];
    let (mut execution, mut event, mut next, mut fence) =
        (ptr::null_mut(), ptr::null_mut(), ptr::null_mut(), ptr::null_mut());
    let (mut rank, mut dimensions, mut descriptor) = (0u32, [0u32; 2], 0);
    // A pipe whose other end is closed is readable at once.
    let mut ends = [0; 2];
    // SAFETY: buffers stay alive until the execution is freed. Descriptors are closed once.
    unsafe {
        assert_eq!(libc::pipe(ends.as_mut_ptr()), 0);
        libc::close(ends[1]);
        assert_eq!(NeuronEvent_createFromSyncFenceFd(ends[0], &raw mut fence), NO_ERROR);
        libc::close(ends[0]);
        assert_eq!(NeuronExecution_create(compiled.handle, &raw mut execution), NO_ERROR);
        // No buffer is bound, so the run fails, and its event reports it.
        assert_eq!(
            NeuronExecution_startComputeWithDependencies(execution, ptr::null(), 0, 0, &raw mut event),
            NO_ERROR
        );
        assert_eq!(NeuronEvent_wait(event), BAD_STATE);
        NeuronEvent_free(event);
        assert_eq!(NeuronExecution_setInput(execution, 0, ptr::null(), input.as_ptr().cast(), 24), NO_ERROR);
        assert_eq!(
            NeuronExecution_setOutput(execution, 0, ptr::null(), output.as_mut_ptr().cast(), 24),
            NO_ERROR
        );
        let before = [fence.cast_const()];
        assert_eq!(
            NeuronExecution_startComputeWithDependencies(execution, before.as_ptr(), 1, 0, &raw mut next),
            NO_ERROR
        );
        assert_eq!(NeuronEvent_wait(next), NO_ERROR);
        assert_eq!(NeuronEvent_getSyncFenceFd(next, &raw mut descriptor), BAD_DATA);
        assert_eq!(descriptor, -1);
        assert_eq!(NeuronEvent_getSyncFenceFd(fence, &raw mut descriptor), NO_ERROR);
        assert_eq!(libc::close(descriptor), 0);
        assert_eq!(NeuronExecution_getOutputOperandRank(execution, 0, &raw mut rank), NO_ERROR);
        assert_eq!(
            NeuronExecution_getOutputOperandDimensions(execution, 0, dimensions.as_mut_ptr()),
            NO_ERROR
        );
        NeuronEvent_free(next);
        NeuronEvent_free(fence);
        NeuronExecution_free(execution);
    }
    assert_eq!((rank, dimensions), (2, [2, 3]));
    assert_eq!(f32s(&[6]).decode(&output), [2.0; 6]);
}
