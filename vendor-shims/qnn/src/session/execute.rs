use super::tensor::TensorParts;
use super::{ContextHandle, Memory, Preparation, TensorDescription, checked};
use crate::failure::{QnnError, Result};
use crate::ffi::{self, Handle, number};
use crate::log;
use std::ffi::CString;
use std::ptr::null_mut;
use std::sync::Arc;

/// Binds memory to the tensors of one direction.
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
        // No memory fits a tensor of unknown size.
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

/// A graph that is ready to run, either composed and finalized or loaded from a binary.
#[derive(Debug)]
pub struct RunnableGraph {
    pub(super) context: Arc<ContextHandle>,
    pub(super) handle: Handle,
    pub(super) name: String,
    pub(super) inputs: Vec<TensorDescription>,
    pub(super) outputs: Vec<TensorDescription>,
}

// SAFETY: as for `ContextHandle`, which it contains.
unsafe impl Send for RunnableGraph {}
// SAFETY: as above.
unsafe impl Sync for RunnableGraph {}

impl RunnableGraph {
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns its inputs, in the order of the graph or binary.
    pub fn inputs(&self) -> &[TensorDescription] {
        &self.inputs
    }

    /// Returns its outputs, in the order of the graph or binary.
    pub fn outputs(&self) -> &[TensorDescription] {
        &self.outputs
    }

    /// Runs it once. Reads the bytes of the inputs and writes the bytes of the outputs, in the
    /// order of [`inputs`](Self::inputs) and [`outputs`](Self::outputs).
    ///
    /// # Errors
    /// Returns an error if memory has a wrong length, and errors of the library.
    pub fn execute(&self, inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> Result<()> {
        let raw = |data: *mut u8, bytes: usize| Memory::Raw { data, bytes: bytes as u64 };
        let inputs: Vec<_> = inputs.iter().map(|bytes| raw(bytes.as_ptr().cast_mut(), bytes.len())).collect();
        let outputs: Vec<_> = outputs.iter_mut().map(|bytes| raw(bytes.as_mut_ptr(), bytes.len())).collect();
        // SAFETY: inputs are borrowed and only read, outputs are borrowed exclusively. The lengths
        // are correct.
        unsafe { self.execute_in(&inputs, &outputs) }
    }

    /// Runs it once in the caller's memory.
    ///
    /// # Safety
    /// Raw memory is readable (inputs) or writable (outputs) for its length. No other code accesses
    /// it until this returns.
    ///
    /// # Errors
    /// As for [`execute`](Self::execute).
    pub unsafe fn execute_in(&self, inputs: &[Memory<'_>], outputs: &[Memory<'_>]) -> Result<()> {
        let inputs = bound(&self.name, "inputs", number::APP_WRITE, &self.inputs, inputs)?;
        let outputs = bound(&self.name, "outputs", number::APP_READ, &self.outputs, outputs)?;
        let input_tensors: Vec<ffi::Tensor> = inputs.iter().map(|parts| parts.tensor).collect();
        let mut output_tensors: Vec<ffi::Tensor> = outputs.iter().map(|parts| parts.tensor).collect();
        let library = self.context.library();
        // The simulation has one fast memory for all contexts. A graph becomes invalid if another
        // one is run or compiled meanwhile and needs the fast memory.
        let _alone = cfg!(target_arch = "x86_64").then(Preparation::begin);
        let mark = log::mark();
        // SAFETY: the graph is live. Tensors and all they point to outlive the call. Memory is as
        // the caller promises. There is no profile and no signal.
        let code = unsafe {
            (library.functions().graph_execute)(
                self.handle,
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
}
