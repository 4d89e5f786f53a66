use super::tensor::TensorParts;
use super::{ContextHandle, Memory, Preparation, TensorDescription, checked};
use crate::failure::{QnnError, Result};
use crate::ffi::{self, Handle, number};
use crate::log;
use crate::simulation::Confined;
use std::ffi::CString;
use std::ptr::null_mut;
use std::sync::Arc;

/// Tensors of one direction with their memory.
fn bound(
    graph: &str,
    what: &'static str,
    kind: u32,
    tensors: &[TensorDescription],
    memory: &[Memory<'_>],
) -> Result<Vec<TensorParts>> {
    if tensors.len() != memory.len() {
        return Err(QnnError::MemoryCount {
            graph: graph.to_owned(),
            what,
            expected: tensors.len(),
            found: memory.len(),
        });
    }
    let both = tensors.iter().zip(memory);
    both.map(|(tensor, memory)| {
        // A tensor whose size is not known fits no memory.
        let expected = tensor.bytes().filter(|bytes| u32::try_from(*bytes).is_ok());
        if expected != Some(memory.bytes()) {
            return Err(QnnError::MemorySize {
                graph: graph.to_owned(),
                tensor: tensor.name.clone(),
                expected: expected.unwrap_or(0),
                found: memory.bytes(),
            });
        }
        let name = CString::new(tensor.name.as_str()).map_err(|_| QnnError::GraphInvalid {
            graph: graph.to_owned(),
            place: format!("tensor `{}`", tensor.name),
            problem: "the name has a null character".to_owned(),
        })?;
        let mut parts =
            TensorParts::new(tensor.id, name, kind, tensor.data_type, &tensor.dims, &tensor.encoding());
        memory.bind(&mut parts.tensor);
        Ok(parts)
    })
    .collect()
}

/// Runs a graph once.
///
/// # Safety
/// `handle` is a live graph of the context whose tensors are these. Raw memory is readable (inputs) or writable (outputs) for its length and used by
/// nobody else until this returns.
pub(crate) unsafe fn execute(
    context: &Arc<ContextHandle>,
    handle: Handle,
    graph: &str,
    (inputs, input_memory): (&[TensorDescription], &[Memory<'_>]),
    (outputs, output_memory): (&[TensorDescription], &[Memory<'_>]),
) -> Result<()> {
    let inputs = bound(graph, "inputs", number::APP_WRITE, inputs, input_memory)?;
    let outputs = bound(graph, "outputs", number::APP_READ, outputs, output_memory)?;
    let input_tensors: Vec<ffi::Tensor> = inputs.iter().map(|parts| parts.tensor).collect();
    let mut output_tensors: Vec<ffi::Tensor> = outputs.iter().map(|parts| parts.tensor).collect();
    let library = context.library();
    // The simulation has one fast memory for all: a graph that must yield it to another that runs or is compiled meanwhile does not survive.
    let _alone = cfg!(target_arch = "x86_64").then(Preparation::begin);
    let mark = log::mark();
    let _confined = Confined::new();
    // SAFETY: the graph is live; tensors and all they point to outlive the call; memory as the caller promises; no profile, no signal.
    let code = unsafe {
        (library.functions().graph_execute)(
            handle,
            input_tensors.as_ptr(),
            input_tensors.len() as u32,
            output_tensors.as_mut_ptr(),
            output_tensors.len() as u32,
            null_mut(),
            null_mut(),
        )
    };
    checked(library, "graphExecute", code, mark)
}

/// Runs a graph once on borrowed bytes.
pub(crate) fn execute_bytes(
    context: &Arc<ContextHandle>,
    handle: Handle,
    graph: &str,
    (inputs, input_bytes): (&[TensorDescription], &[&[u8]]),
    (outputs, output_bytes): (&[TensorDescription], &mut [&mut [u8]]),
) -> Result<()> {
    let raw = |data: *mut u8, bytes: usize| Memory::Raw { data, bytes: bytes as u64 };
    let input_memory: Vec<_> =
        input_bytes.iter().map(|bytes| raw(bytes.as_ptr().cast_mut(), bytes.len())).collect();
    let output_memory: Vec<_> =
        output_bytes.iter_mut().map(|bytes| raw(bytes.as_mut_ptr(), bytes.len())).collect();
    // SAFETY: inputs are borrowed and only read, outputs are borrowed alone; the lengths are theirs.
    unsafe { execute(context, handle, graph, (inputs, &input_memory), (outputs, &output_memory)) }
}
