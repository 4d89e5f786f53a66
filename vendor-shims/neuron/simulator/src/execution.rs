//! Executions: buffers bound to the inputs and outputs of a network, and the run.

use std::collections::HashMap;
use std::sync::Arc;

use shardwright_neuron_adapter::result::{BAD_DATA, BAD_STATE, OUTPUT_INSUFFICIENT_SIZE, UNEXPECTED_NULL};
use shardwright_neuron_adapter::setting::{LARGEST_BOOST, MEMORY_ALIGNMENT};

use crate::arithmetic::tensor::{Elements, Layout, Tensor};
use crate::call::{Refused, refuse};
use crate::compilation::{Code, Compilation};
use crate::handles::{Dependence, Shared};
use crate::memory::Memory;

/// Bytes that a caller lends for runs.
#[derive(Debug, Clone)]
struct Binding {
    address: usize,
    length: usize,
    _memory: Option<Dependence>,
}

/// An execution of compiled code.
pub struct Execution {
    compilation: Shared<Compilation>,
    _compilation: Dependence,
    pub code: Arc<Code>,
    inputs: Vec<Option<Binding>>,
    outputs: Vec<Option<Binding>>,
    padded_to: usize,
}

/// Returns the dimensions of an input or output in the hardware's layout, where the last dimension
/// is rounded up.
pub fn padded_dimensions(layout: &Layout, padded_to: usize) -> Vec<usize> {
    let mut dimensions = layout.dimensions.clone();
    if let Some(last) = dimensions.last_mut() {
        *last = last.next_multiple_of(padded_to);
    }
    dimensions
}

/// Returns the size in bytes of an input or output in the hardware's layout.
pub fn padded_bytes(layout: &Layout, padded_to: usize) -> usize {
    padded_dimensions(layout, padded_to).iter().product::<usize>() * layout.element_bytes()
}

/// Returns the bytes of a row of an input or output, without and with padding.
fn rows(layout: &Layout, padded_to: usize) -> (usize, usize) {
    let last = layout.dimensions.last().copied().unwrap_or(1);
    (last * layout.element_bytes(), last.next_multiple_of(padded_to) * layout.element_bytes())
}

impl Execution {
    /// Creates an execution of a finished compilation.
    pub fn new(compilation: &Shared<Compilation>, padded_to: u32) -> Result<Execution, Refused> {
        let code = compilation.lock().finished()?.clone();
        let (inputs, outputs) = (code.network().inputs.len(), code.network().outputs.len());
        Ok(Execution {
            _compilation: compilation.dependence(),
            compilation: compilation.clone(),
            code,
            inputs: vec![None; inputs],
            outputs: vec![None; outputs],
            padded_to: padded_to as usize,
        })
    }

    fn bind(&mut self, input: bool, index: usize, binding: Binding) -> Result<(), Refused> {
        let what = if input { "input" } else { "output" };
        let Some(layout) = self.code.end(input, index) else {
            let count = if input { self.inputs.len() } else { self.outputs.len() };
            return refuse(BAD_DATA, format!("{what} {index} of {count}"));
        };
        let needed = padded_bytes(layout, self.padded_to);
        if binding.length < needed {
            let code = if input { BAD_DATA } else { OUTPUT_INSUFFICIENT_SIZE };
            return refuse(code, format!("{what} {index} has {needed} bytes, not {}", binding.length));
        }
        let list = if input { &mut self.inputs } else { &mut self.outputs };
        list[index] = Some(binding);
        Ok(())
    }

    /// Binds the caller's memory, which must stay valid until all runs have ended.
    pub fn bind_pointer(
        &mut self,
        input: bool,
        index: i32,
        address: usize,
        length: usize,
    ) -> Result<(), Refused> {
        if address == 0 {
            return refuse(UNEXPECTED_NULL, "the buffer is null");
        }
        match usize::try_from(index) {
            Ok(index) => self.bind(input, index, Binding { address, length, _memory: None }),
            Err(_) => refuse(BAD_DATA, format!("index {index}")),
        }
    }

    /// Binds shared memory.
    pub fn bind_memory(
        &mut self,
        input: bool,
        index: u32,
        memory: &Shared<Memory>,
        offset: usize,
        length: usize,
    ) -> Result<(), Refused> {
        let found = memory.lock();
        if !offset.is_multiple_of(MEMORY_ALIGNMENT) {
            return refuse(BAD_DATA, format!("the offset {offset} is not a multiple of {MEMORY_ALIGNMENT}"));
        }
        if offset.checked_add(length).is_none_or(|end| end > found.length) {
            return refuse(BAD_DATA, format!("{length} bytes from {offset} of a memory of {}", found.length));
        }
        if !input && !found.writable {
            return refuse(BAD_DATA, "the memory of an output cannot be written");
        }
        let binding =
            Binding { address: found.address() + offset, length, _memory: Some(memory.dependence()) };
        drop(found);
        self.bind(input, index as usize, binding)
    }

    /// Checks the boost that `setBoostHint` passes. A valid boost has no effect.
    pub fn set_boost(&self, boost: u8) -> Result<(), Refused> {
        if boost > LARGEST_BOOST {
            return refuse(BAD_DATA, format!("a boost of {boost}"));
        }
        Ok(())
    }

    /// Runs the code on the bound buffers.
    ///
    /// # Safety
    /// Every bound buffer still exists, inputs are readable and outputs writable, and no other code
    /// writes to any of them meanwhile.
    pub unsafe fn compute(&mut self) -> Result<(), Refused> {
        let unbound = |list: &[Option<Binding>]| list.iter().position(Option::is_none);
        if let Some(index) = unbound(&self.inputs) {
            return refuse(BAD_STATE, format!("input {index} has no buffer"));
        }
        if let Some(index) = unbound(&self.outputs) {
            return refuse(BAD_STATE, format!("output {index} has no buffer"));
        }
        self.compilation.lock().executed = true;
        let mut inputs = Vec::with_capacity(self.inputs.len());
        for (index, binding) in self.inputs.iter().flatten().enumerate() {
            let Some(layout) = self.code.end(true, index) else { continue };
            // SAFETY: guaranteed by the caller. The length was checked when the buffer was bound.
            let bytes = unsafe { std::slice::from_raw_parts(binding.address as *const u8, binding.length) };
            let (dense, padded) = rows(layout, self.padded_to);
            let count = layout.bytes() / dense.max(1);
            let elements = if dense == padded {
                Elements::of(layout.kind, &bytes[..layout.bytes()])
            } else {
                let packed: Vec<u8> =
                    (0..count).flat_map(|row| &bytes[row * padded..][..dense]).copied().collect();
                Elements::of(layout.kind, &packed).into_owned()
            };
            inputs.push(elements);
        }
        let outputs = run(&self.code, inputs);
        for (index, (binding, elements)) in self.outputs.iter().flatten().zip(outputs).enumerate() {
            let Some(layout) = self.code.end(false, index) else { continue };
            // SAFETY: guaranteed by the caller. The length was checked when the buffer was bound.
            let target =
                unsafe { std::slice::from_raw_parts_mut(binding.address as *mut u8, binding.length) };
            let (dense, padded) = rows(layout, self.padded_to);
            for (row, bytes) in elements.bytes().chunks_exact(dense.max(1)).enumerate() {
                target[row * padded..][..dense].copy_from_slice(bytes);
                target[row * padded + dense..][..padded - dense].fill(0);
            }
        }
        Ok(())
    }
}

/// Runs the steps of a network. A result is dropped after its last reader.
pub fn run(code: &Code, inputs: Vec<Elements<'_>>) -> Vec<Elements<'static>> {
    let network = code.network();
    let mut readers: HashMap<u32, usize> = HashMap::new();
    for operation in &network.operations {
        for input in &operation.inputs {
            *readers.entry(*input).or_default() += 1;
        }
    }
    for output in &network.outputs {
        *readers.entry(*output).or_default() += 1;
    }
    let mut values: HashMap<u32, Elements<'_>> = network.inputs.iter().copied().zip(inputs).collect();
    for (index, step) in &code.steps {
        let operation = &network.operations[*index];
        let layouts: Vec<&Layout> =
            operation.outputs.iter().map(|output| &network.operands[*output as usize].layout).collect();
        let found = {
            let tensors: Vec<Tensor<'_>> = operation
                .inputs
                .iter()
                .map(|input| {
                    let layout = &network.operands[*input as usize].layout;
                    let elements = match (values.get(input), network.constant(*input)) {
                        (Some(elements), _) => borrowed(elements),
                        (None, bytes) => Elements::of(layout.kind, bytes.unwrap_or_default()),
                    };
                    Tensor { layout, elements }
                })
                .collect();
            step.run(&tensors, &layouts, network.relaxed)
        };
        for input in &operation.inputs {
            if let Some(count) = readers.get_mut(input) {
                *count -= 1;
                if *count == 0 {
                    values.remove(input);
                }
            }
        }
        for (output, elements) in operation.outputs.iter().zip(found) {
            if readers.get(output).is_some_and(|count| *count > 0) {
                values.insert(*output, elements);
            }
        }
    }
    network
        .outputs
        .iter()
        .map(|output| {
            let layout = &network.operands[*output as usize].layout;
            match (values.get(output), network.constant(*output)) {
                (Some(elements), _) => elements.clone().into_owned(),
                (None, bytes) => Elements::of(layout.kind, bytes.unwrap_or_default()).into_owned(),
            }
        })
        .collect()
}

/// Borrows elements without copying them.
fn borrowed<'a>(elements: &'a Elements<'_>) -> Elements<'a> {
    use std::borrow::Cow;
    match elements {
        Elements::I8(found) => Elements::I8(Cow::Borrowed(found)),
        Elements::U8(found) => Elements::U8(Cow::Borrowed(found)),
        Elements::I16(found) => Elements::I16(Cow::Borrowed(found)),
        Elements::U16(found) => Elements::U16(Cow::Borrowed(found)),
        Elements::I32(found) => Elements::I32(Cow::Borrowed(found)),
        Elements::F32(found) => Elements::F32(Cow::Borrowed(found)),
        Elements::F16(found) => Elements::F16(Cow::Borrowed(found)),
    }
}
