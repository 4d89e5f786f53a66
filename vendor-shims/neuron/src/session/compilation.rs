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

/// Settings of a compilation, in addition to its option string.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CompileSettings {
    /// A preference of the interface.
    pub preference: i32,
    /// A priority of the interface.
    pub priority: i32,
    /// Bits of the interface's hints.
    pub hint: u32,
    /// Kilobytes to use of the memory closest to the multipliers. `None` lets the library decide.
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

/// A finished compilation with its model.
#[derive(Debug)]
pub struct Compilation<'w> {
    raw: NonNull<RawCompilation>,
    // Freed after the compilation, because `drop` runs before fields are dropped.
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
    /// Compiles a model. An `UNMAPPABLE` error includes the number of operations sent, because this
    /// number is reported to decide it.
    ///
    /// # Errors
    /// The library's errors.
    pub fn finish(model: Model<'w>, options: &str, settings: &CompileSettings) -> Result<Compilation<'w>> {
        let library = model.library.clone();
        library.need(library.functions().compilation_free, "NeuronCompilation_free")?;
        let text = CString::new(options).map_err(|_| NeuronError::Impossible {
            what: "the option string".to_owned(),
            reason: "it contains a zero byte".to_owned(),
        })?;
        let subject = format!("graph `{}` of {} operations", model.name, model.operations);
        let mut raw = null_mut();
        // SAFETY: a finished model. The place and the text outlive the call.
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
        // SAFETY: a live compilation that is not finished, for all of these calls.
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
            // The options were passed on creation. Google's client also sets them again. That would
            // repeat them in the artefact, and it is unknown whether they add up or replace each
            // other.
            call!(library, compilation_finish = "NeuronCompilation_finish", (raw), Some(subject.clone()))
        }
        .map_err(|error| counted(error, compilation.model.operations))?;
        Ok(compilation)
    }

    /// Returns the bytes of the compiled network.
    ///
    /// # Errors
    /// The library's errors, and [`NeuronError::EmptyNetwork`] if the network is empty.
    pub fn store(&self) -> Result<Vec<u8>> {
        let library = &self.model.library;
        let subject = || Some(format!("graph `{}`", self.model.name));
        let raw = self.raw.as_ptr();
        let mut bytes = 0usize;
        // SAFETY: a finished compilation, and a place that outlives the call.
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
            reason: format!("the library reports {bytes} bytes"),
        })?;
        blob.resize(bytes, 0u8);
        // SAFETY: a finished compilation, and a place of that many bytes.
        unsafe {
            call!(
                library,
                compilation_store_compiled_network = "NeuronCompilation_storeCompiledNetwork",
                (raw, blob.as_mut_ptr().cast(), bytes),
                subject()
            )
        }?;
        match blob.iter().all(|byte| *byte == 0) {
            // The library reported success but did not write.
            true => Err(empty()),
            false => Ok(blob),
        }
    }
}

/// Adds the number of operations to an error that depends on it.
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

/// Parses the limit from the library's message, if it states one (`most=2600`).
fn reported_limit(message: &str) -> Option<u64> {
    let (_, rest) = message.split_once("most=")?;
    let digits: String = rest.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// The side of a network on which a port is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PaddedSide {
    Input,
    Output,
}

/// A network that was restored from stored bytes. One call creates its model and compilation. They
/// are freed in the right order.
#[derive(Debug)]
pub struct Network {
    pub(super) library: Arc<Library>,
    model: NonNull<RawModel>,
    pub(super) compilation: NonNull<RawCompilation>,
}

// SAFETY: the objects belong to the library and are used by one thread at a time. A network belongs
// to one loaded entry, which runs one call at a time.
unsafe impl Send for Network {}

impl Drop for Network {
    fn drop(&mut self) {
        let functions = self.library.functions();
        if let (Some(free_compilation), Some(free_model)) = (functions.compilation_free, functions.model_free)
        {
            // SAFETY: both were created by this library and are freed once, the compilation before
            // its model. Executions own the network, so none of them exists any more.
            unsafe {
                free_compilation(self.compilation.as_ptr());
                free_model(self.model.as_ptr());
            }
        }
    }
}

impl Network {
    /// Restores a network, without a fallback. The caller reports the library's error.
    ///
    /// # Errors
    /// The library's errors.
    pub fn restore(library: &Arc<Library>, blob: &[u8]) -> Result<Network> {
        library.need(library.functions().model_free, "NeuronModel_free")?;
        library.need(library.functions().compilation_free, "NeuronCompilation_free")?;
        let (mut model, mut compilation) = (null_mut(), null_mut());
        // SAFETY: both places and the bytes outlive the call.
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

    /// Returns the bytes that the hardware requires for an input or output. Also returns the padded
    /// dimensions, unless the rank is above four: the getter always writes four dimensions.
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
        // SAFETY: a finished compilation, a place for one number, and a place for the four numbers
        // that are always written.
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
