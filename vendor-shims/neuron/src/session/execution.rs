//! Runs a network.

use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;

use shardwright_neuron_adapter::operand::Execution as RawExecution;

use super::compilation::Network;
use super::memory::{SharedHandle, aligned};
use crate::failure::{NeuronError, Result};
use crate::library::call;

/// An execution of a network, which it owns. One execution serves all runs, as in the clients on
/// phones.
#[derive(Debug)]
pub struct Execution {
    raw: NonNull<RawExecution>,
    /// Bound shared memory, kept until other memory is bound in its place.
    bound: Vec<Option<Arc<SharedHandle>>>,
    inputs: usize,
    // Freed after the execution, because `drop` runs before fields are dropped.
    network: Network,
}

// SAFETY: used by one thread at a time, like its network.
unsafe impl Send for Execution {}

impl Drop for Execution {
    fn drop(&mut self) {
        if let Some(free) = self.network.library.functions().execution_free {
            // SAFETY: created by this library, freed once, before its network.
            unsafe { free(self.raw.as_ptr()) }
        }
    }
}

impl Execution {
    /// Creates an execution of a network with that many inputs and outputs, at a boost of 0 to 100.
    ///
    /// # Errors
    /// The library's errors.
    pub fn new(network: Network, inputs: usize, outputs: usize, boost: u8) -> Result<Execution> {
        let library = network.library.clone();
        library.need(library.functions().execution_free, "NeuronExecution_free")?;
        let mut raw = null_mut();
        // SAFETY: a finished compilation, and a place that outlives the call.
        unsafe {
            call!(
                library,
                execution_create = "NeuronExecution_create",
                (network.compilation.as_ptr(), &mut raw),
                None
            )
        }?;
        let raw = NonNull::new(raw).ok_or_else(|| library.gave_null("NeuronExecution_create"))?;
        let execution = Execution { raw, bound: vec![None; inputs + outputs], inputs, network };
        // SAFETY: a live execution.
        unsafe {
            call!(
                library,
                execution_set_boost_hint = "NeuronExecution_setBoostHint",
                (execution.raw.as_ptr(), boost),
                Some(format!("a boost of {boost}"))
            )
        }?;
        Ok(execution)
    }

    /// Binds an input to memory of this process.
    ///
    /// # Safety
    /// The memory stays readable and in place until the next [`Execution::compute`] has returned.
    ///
    /// # Errors
    /// [`NeuronError::Misaligned`], and the library's errors.
    pub unsafe fn input(&mut self, index: usize, pointer: *const u8, length: usize) -> Result<()> {
        aligned(&format!("the address of input {index}"), pointer as u64)?;
        let place = i32::try_from(index).unwrap_or(i32::MAX);
        // SAFETY: a live execution. The caller keeps the memory.
        unsafe {
            call!(
                self.network.library,
                execution_set_input = "NeuronExecution_setInput",
                (self.raw.as_ptr(), place, null(), pointer.cast(), length),
                Some(format!("input {index} of {length} bytes"))
            )
        }?;
        self.keep(index, None);
        Ok(())
    }

    /// Binds an output to memory of this process.
    ///
    /// # Safety
    /// Until the next [`Execution::compute`] has returned, the memory stays writable and in place,
    /// and no other code accesses it.
    ///
    /// # Errors
    /// [`NeuronError::Misaligned`], and the library's errors.
    pub unsafe fn output(&mut self, index: usize, pointer: *mut u8, length: usize) -> Result<()> {
        aligned(&format!("the address of output {index}"), pointer as u64)?;
        let place = i32::try_from(index).unwrap_or(i32::MAX);
        // SAFETY: a live execution. The caller keeps the memory.
        unsafe {
            call!(
                self.network.library,
                execution_set_output = "NeuronExecution_setOutput",
                (self.raw.as_ptr(), place, null(), pointer.cast(), length),
                Some(format!("output {index} of {length} bytes"))
            )
        }?;
        self.keep(self.inputs + index, None);
        Ok(())
    }

    /// Binds an input to shared memory. The index is unsigned in this call of the interface, but
    /// signed in the call for plain memory.
    ///
    /// # Errors
    /// [`NeuronError::Misaligned`], and the library's errors.
    pub fn input_from(
        &mut self,
        index: usize,
        memory: &Arc<SharedHandle>,
        offset: usize,
        length: usize,
    ) -> Result<()> {
        self.inside(index, memory, offset, length)?;
        let place = u32::try_from(index).unwrap_or(u32::MAX);
        // SAFETY: a live execution, and memory that the execution keeps.
        unsafe {
            call!(
                self.network.library,
                execution_set_input_from_memory = "NeuronExecution_setInputFromMemory",
                (self.raw.as_ptr(), place, null(), memory.raw(), offset, length),
                Some(format!("input {index} of {length} bytes of shared memory"))
            )
        }?;
        self.keep(index, Some(memory.clone()));
        Ok(())
    }

    /// Binds an output to shared memory.
    ///
    /// # Errors
    /// The errors of [`Execution::input_from`].
    pub fn output_from(
        &mut self,
        index: usize,
        memory: &Arc<SharedHandle>,
        offset: usize,
        length: usize,
    ) -> Result<()> {
        self.inside(index, memory, offset, length)?;
        let place = u32::try_from(index).unwrap_or(u32::MAX);
        // SAFETY: a live execution, and memory that the execution keeps.
        unsafe {
            call!(
                self.network.library,
                execution_set_output_from_memory = "NeuronExecution_setOutputFromMemory",
                (self.raw.as_ptr(), place, null(), memory.raw(), offset, length),
                Some(format!("output {index} of {length} bytes of shared memory"))
            )
        }?;
        self.keep(self.inputs + index, Some(memory.clone()));
        Ok(())
    }

    fn inside(&self, index: usize, memory: &SharedHandle, offset: usize, length: usize) -> Result<()> {
        aligned(&format!("the offset of binding {index}"), offset as u64)?;
        match offset.checked_add(length) {
            Some(end) if end <= memory.length() => Ok(()),
            _ => Err(NeuronError::Impossible {
                what: format!("binding {index}"),
                reason: format!("{length} bytes from {offset} of {} bytes of memory", memory.length()),
            }),
        }
    }

    fn keep(&mut self, place: usize, memory: Option<Arc<SharedHandle>>) {
        if let Some(slot) = self.bound.get_mut(place) {
            *slot = memory;
        }
    }

    /// Runs the network and waits for the result.
    ///
    /// # Safety
    /// Every input and output is bound as [`Execution::input`] and [`Execution::output`] require.
    ///
    /// # Errors
    /// The library's errors.
    pub unsafe fn compute(&mut self) -> Result<()> {
        // SAFETY: a live execution. The caller has bound all inputs and outputs.
        unsafe {
            call!(
                self.network.library,
                execution_compute = "NeuronExecution_compute",
                (self.raw.as_ptr()),
                None
            )
        }
    }
}
