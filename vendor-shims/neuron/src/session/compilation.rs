//! Compiles a model, stores the result, and restores a network from stored bytes.

use std::ffi::CString;
use std::ptr::{NonNull, null_mut};
use std::sync::Arc;

use shardwright_neuron_adapter::operand::{Compilation as RawCompilation, Model as RawModel};
use shardwright_neuron_adapter::setting::{PADDED_DIMENSIONS, hint, preference, priority};
use shardwright_shim_abi::ErrorClass;

use super::model::Model;
use crate::failure::{NeuronError, Result};
use crate::library::{Library, call};

/// Settings of a compilation beside its option string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompileSettings {
    /// One of the interface's preferences.
    pub preference: i32,
    /// One of its priorities.
    pub priority: i32,
    /// Bits of its hints.
    pub hint: u32,
    /// Kilobytes of the nearest memory to use; `None` leaves it to the library.
    pub l1_kilobytes: Option<u32>,
}

impl Default for CompileSettings {
    fn default() -> Self {
        CompileSettings {
            preference: preference::SUSTAINED_SPEED,
            priority: priority::HIGH,
            hint: hint::NORMAL,
            l1_kilobytes: None,
        }
    }
}

/// A finished compilation, with its model.
#[derive(Debug)]
pub struct Compilation<'w> {
    raw: NonNull<RawCompilation>,
    // Freed after the compilation, by the order in which `drop` and fields go.
    model: Model<'w>,
}

impl Drop for Compilation<'_> {
    fn drop(&mut self) {
        if let Some(free) = self.model.library.functions().compilation_free {
            // SAFETY: created by this library, freed once, before its model.
            unsafe { free(self.raw.as_ptr()) }
        }
    }
}

impl<'w> Compilation<'w> {
    /// Compiles a model. An `UNMAPPABLE` error includes the number of operations sent, which was
    /// reported to decide it.
    ///
    /// # Errors
    /// The library's errors.
    pub fn finish(model: Model<'w>, options: &str, settings: &CompileSettings) -> Result<Compilation<'w>> {
        let library = model.library.clone();
        library.need(library.functions().compilation_free, "NeuronCompilation_free")?;
        let text = CString::new(options).map_err(|_| NeuronError::Impossible {
            what: "the option string".to_owned(),
            reason: "it holds a zero byte".to_owned(),
        })?;
        let subject = format!("graph `{}` of {} operations", model.name, model.operations);
        let mut raw = null_mut();
        // SAFETY: a finished model, a place and a text that outlive the call.
        unsafe {
            call!(
                library,
                compilation_create_with_options = "NeuronCompilation_createWithOptions",
                (model.raw.as_ptr(), &mut raw, text.as_ptr()),
                Some(format!("options `{options}`"))
            )
        }?;
        let raw =
            NonNull::new(raw).ok_or_else(|| library.gave_null("NeuronCompilation_createWithOptions"))?;
        let compilation = Compilation { raw, model };
        let raw = compilation.raw.as_ptr();
        // SAFETY: a live compilation that is not finished, for all of them.
        unsafe {
            call!(
                library,
                compilation_set_priority = "NeuronCompilation_setPriority",
                (raw, settings.priority),
                None
            )?;
            call!(
                library,
                compilation_set_preference = "NeuronCompilation_setPreference",
                (raw, settings.preference),
                None
            )?;
            if let Some(kilobytes) = settings.l1_kilobytes {
                call!(
                    library,
                    compilation_set_l1_memory_size_kb = "NeuronCompilation_setL1MemorySizeKb",
                    (raw, kilobytes),
                    Some(format!("{kilobytes} KB"))
                )?;
            }
            call!(
                library,
                compilation_set_optimization_hint = "NeuronCompilation_setOptimizationHint",
                (raw, settings.hint),
                None
            )?;
            // The options were passed on creation. Setting them again, as Google's client does,
            // would echo them twice, and it is unknown whether they add up or replace each other.
            call!(library, compilation_finish = "NeuronCompilation_finish", (raw), Some(subject.clone()))
        }
        .map_err(|error| counted(error, compilation.model.operations))?;
        Ok(compilation)
    }

    /// The compiled network's bytes.
    ///
    /// # Errors
    /// The library's errors; [`NeuronError::EmptyNetwork`] if it returns nothing.
    pub fn store(&self) -> Result<Vec<u8>> {
        let library = &self.model.library;
        let subject = || Some(format!("graph `{}`", self.model.name));
        let raw = self.raw.as_ptr();
        let mut bytes = 0usize;
        // SAFETY: a finished compilation and a place that outlives the call.
        unsafe {
            call!(
                library,
                compilation_get_compiled_network_size = "NeuronCompilation_getCompiledNetworkSize",
                (raw, &mut bytes),
                subject()
            )
        }?;
        let empty = || NeuronError::EmptyNetwork {
            version: library.version(),
            graph: self.model.name.clone(),
            bytes: 0,
        };
        if bytes == 0 {
            return Err(empty());
        }
        let mut blob = Vec::new();
        // An impossible size is a library error like any other.
        blob.try_reserve_exact(bytes).map_err(|_| NeuronError::Impossible {
            what: format!("the compiled network of graph `{}`", self.model.name),
            reason: format!("the library says that it has {bytes} bytes"),
        })?;
        blob.resize(bytes, 0u8);
        // SAFETY: a finished compilation and a place of that many bytes.
        unsafe {
            call!(
                library,
                compilation_store_compiled_network = "NeuronCompilation_storeCompiledNetwork",
                (raw, blob.as_mut_ptr().cast(), bytes),
                subject()
            )
        }?;
        match blob.iter().all(|byte| *byte == 0) {
            // It reported success without writing.
            true => Err(empty()),
            false => Ok(blob),
        }
    }
}

/// The number of operations beside an answer that is about them.
fn counted(error: NeuronError, operations: u64) -> NeuronError {
    match error {
        NeuronError::Call(mut failure) if failure.class == ErrorClass::Unmappable => {
            failure.details.push(("limit".to_owned(), "ops".to_owned()));
            failure.details.push(("value".to_owned(), operations.to_string()));
            if let Some(most) = reported_limit(&failure.message) {
                failure.details.push(("max".to_owned(), most.to_string()));
            }
            NeuronError::Call(failure)
        }
        other => other,
    }
}

/// The limit, if the library's message states one (`most=2600`).
fn reported_limit(message: &str) -> Option<u64> {
    let (_, rest) = message.split_once("most=")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// Inputs or outputs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PaddedSide {
    /// Inputs.
    Input,
    /// Outputs.
    Output,
}

/// A network restored from stored bytes: model and compilation, made by one call and freed in the
/// right order.
#[derive(Debug)]
pub struct Network {
    pub(super) library: Arc<Library>,
    model: NonNull<RawModel>,
    pub(super) compilation: NonNull<RawCompilation>,
}

// SAFETY: the objects are the library's own and used by one thread at a time: a network belongs to
// one loaded entry, which runs one call at a time.
unsafe impl Send for Network {}

impl Drop for Network {
    fn drop(&mut self) {
        let functions = self.library.functions();
        if let (Some(free_compilation), Some(free_model)) = (functions.compilation_free, functions.model_free)
        {
            // SAFETY: both made by this library, freed once, the compilation before its model;
            // executions own the network, so none is left.
            unsafe {
                free_compilation(self.compilation.as_ptr());
                free_model(self.model.as_ptr());
            }
        }
    }
}

impl Network {
    /// Restores a network. There is no fallback; the caller reports the library's error.
    ///
    /// # Errors
    /// The library's errors.
    pub fn restore(library: &Arc<Library>, blob: &[u8]) -> Result<Network> {
        library.need(library.functions().model_free, "NeuronModel_free")?;
        library.need(library.functions().compilation_free, "NeuronCompilation_free")?;
        let (mut model, mut compilation) = (null_mut(), null_mut());
        // SAFETY: two places and the bytes outlive the call.
        unsafe {
            call!(
                library,
                model_restore = "NeuronModel_restoreFromCompiledNetwork",
                (&mut model, &mut compilation, blob.as_ptr().cast(), blob.len()),
                Some(format!("a compiled network of {} bytes", blob.len()))
            )
        }?;
        match (NonNull::new(model), NonNull::new(compilation)) {
            (Some(model), Some(compilation)) => Ok(Network { library: library.clone(), model, compilation }),
            _ => Err(library.gave_null("NeuronModel_restoreFromCompiledNetwork")),
        }
    }

    /// Bytes the hardware requires for an input or output, and its padded dimensions, if the rank
    /// has padding: the getter writes four, and supports no higher rank.
    ///
    /// # Errors
    /// The library's errors.
    pub fn padded(&self, side: PaddedSide, index: usize, rank: usize) -> Result<(usize, Option<[u32; 4]>)> {
        let library = &self.library;
        let raw = self.compilation.as_ptr();
        let place = i32::try_from(index).unwrap_or(i32::MAX);
        let mut bytes = 0usize;
        let mut dimensions = [0u32; PADDED_DIMENSIONS];
        let subject = || Some(format!("{side:?} {index}").to_lowercase());
        // SAFETY: a finished compilation; a place for one number, and one for the four that are
        // always written.
        unsafe {
            match side {
                PaddedSide::Input => {
                    call!(
                        library,
                        compilation_get_input_padded_size = "NeuronCompilation_getInputPaddedSize",
                        (raw, place, &mut bytes),
                        subject()
                    )?;
                    if rank <= PADDED_DIMENSIONS {
                        call!(
                            library,
                            compilation_get_input_padded_dimensions =
                                "NeuronCompilation_getInputPaddedDimensions",
                            (raw, place, dimensions.as_mut_ptr()),
                            subject()
                        )?;
                    }
                }
                PaddedSide::Output => {
                    call!(
                        library,
                        compilation_get_output_padded_size = "NeuronCompilation_getOutputPaddedSize",
                        (raw, place, &mut bytes),
                        subject()
                    )?;
                    if rank <= PADDED_DIMENSIONS {
                        call!(
                            library,
                            compilation_get_output_padded_dimensions =
                                "NeuronCompilation_getOutputPaddedDimensions",
                            (raw, place, dimensions.as_mut_ptr()),
                            subject()
                        )?;
                    }
                }
            }
        }
        Ok((bytes, (rank <= PADDED_DIMENSIONS).then_some(dimensions)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ceiling_is_taken_where_the_library_says_one() {
        assert_eq!(reported_limit("operations=4725 most=2600"), Some(2600));
        assert_eq!(reported_limit("no plan"), None);
        assert_eq!(reported_limit("most=many"), None);
    }
}
