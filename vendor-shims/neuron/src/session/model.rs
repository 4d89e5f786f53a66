//! Builds a model from a graph.

use std::ffi::{CString, c_void};
use std::ptr::{NonNull, null, null_mut};
use std::sync::Arc;

use shardwright_neuron_adapter::operand::{Model as RawModel, is_scalar};
use shardwright_neuron_adapter::{OperandType, SymmPerChannelQuantParams, extension};

use crate::failure::{NeuronError, Result};
use crate::graph::{NeuronGraph, Operand, OperandKind, OperationKind, Value};
use crate::library::{Library, call};

/// A finished model with the constants that it reads.
#[derive(Debug)]
pub struct Model<'w> {
    pub(super) library: Arc<Library>,
    pub(super) raw: NonNull<RawModel>,
    pub(super) name: String,
    pub(super) operations: u64,
    /// Data passed to the library that is not borrowed from the graph. The library reads it until
    /// compilations are finished.
    _constants: Vec<Vec<u8>>,
    /// The graph's own bytes are borrowed for the same time.
    _borrowed: std::marker::PhantomData<&'w [u8]>,
}

impl Drop for Model<'_> {
    fn drop(&mut self) {
        if let Some(free) = self.library.functions().model_free {
            // SAFETY: created by this library and freed once. Compilations own their model, so none
            // of them exists any more.
            unsafe { free(self.raw.as_ptr()) }
        }
    }
}

/// Types of the extension for operations without a number, in one model.
struct ExtensionTypes {
    operand: i32,
    operation: i32,
}

impl<'w> Model<'w> {
    /// Passes a graph to the library and finishes it.
    ///
    /// # Errors
    /// The library's errors, with the operand or operation, and [`NeuronError::FunctionMissing`].
    pub fn build(library: &Arc<Library>, graph: &NeuronGraph<'w>) -> Result<Model<'w>> {
        // Checked first, so that every created object can be freed.
        library.need(library.functions().model_free, "NeuronModel_free")?;
        let mut raw = null_mut();
        // SAFETY: the place outlives the call.
        unsafe { call!(library, model_create = "NeuronModel_create", (&mut raw), None) }?;
        let raw = NonNull::new(raw).ok_or_else(|| library.gave_null("NeuronModel_create"))?;
        let mut model = Model {
            library: library.clone(),
            raw,
            name: graph.name.clone(),
            operations: graph.operations.len() as u64,
            _constants: Vec::new(),
            _borrowed: std::marker::PhantomData,
        };
        model.fill(graph)?;
        Ok(model)
    }

    /// Returns the number of operations passed to the library.
    pub fn operations(&self) -> u64 {
        self.operations
    }

    fn fill(&mut self, graph: &NeuronGraph<'w>) -> Result<()> {
        let library = self.library.clone();
        let raw = self.raw.as_ptr();
        let name = CString::new(graph.name.as_str()).map_err(|_| NeuronError::Impossible {
            what: format!("the name `{}`", graph.name.escape_debug()),
            reason: "it contains a zero byte".to_owned(),
        })?;
        // SAFETY: a live model and a text that outlives the call.
        unsafe { call!(library, model_set_name = "NeuronModel_setName", (raw, name.as_ptr()), None) }?;
        let is_extended = graph.operations.iter().any(|operation| operation.kind == OperationKind::Extension);
        let types = if is_extended { Some(self.extension_types()?) } else { None };
        for (index, operand) in graph.operands.iter().enumerate() {
            self.operand(index, operand, types.as_ref())?;
        }
        let (inputs, outputs) = (&graph.inputs, &graph.outputs);
        let count = |list: &[u32]| u32::try_from(list.len()).unwrap_or(u32::MAX);
        // SAFETY: a live model. The arrays outlive the call and have these lengths.
        unsafe {
            call!(
                library,
                model_identify = "NeuronModel_identifyInputsAndOutputs",
                (raw, count(inputs), inputs.as_ptr(), count(outputs), outputs.as_ptr()),
                Some(format!("graph `{}`", graph.name))
            )
        }?;
        for operation in &graph.operations {
            let kind = match (operation.kind, &types) {
                (OperationKind::Numbered(kind), _) => kind,
                (OperationKind::Extension, Some(types)) => types.operation,
                (OperationKind::Extension, None) => continue,
            };
            let (inputs, outputs) = (&operation.inputs, &operation.outputs);
            // SAFETY: a live model. The arrays outlive the call and have these lengths.
            unsafe {
                call!(
                    library,
                    model_add_operation = "NeuronModel_addOperation",
                    (raw, kind, count(inputs), inputs.as_ptr(), count(outputs), outputs.as_ptr()),
                    Some(format!("operation `{}` of type {kind}", operation.name))
                )
            }?;
        }
        let subject = || Some(format!("graph `{}` of {} operations", graph.name, graph.operations.len()));
        // SAFETY: a live model.
        unsafe { call!(library, model_finish = "NeuronModel_finish", (raw), subject()) }?;
        if graph.relaxed {
            // SAFETY: a live model, finished, as Google's client calls it.
            unsafe {
                call!(
                    library,
                    model_relax = "NeuronModel_relaxComputationFloat32toFloat16",
                    (raw, 1),
                    subject()
                )
            }?;
        }
        Ok(())
    }

    fn extension_types(&self) -> Result<ExtensionTypes> {
        let library = &self.library;
        let raw = self.raw.as_ptr();
        let name = CString::new(extension::GENERAL_OPERATION).unwrap_or_default();
        let (mut operand, mut operation) = (0, 0);
        // SAFETY: a live model. The text and the numbers outlive the calls.
        unsafe {
            call!(
                library,
                model_get_extension_operand_type = "NeuronModel_getExtensionOperandType",
                (raw, name.as_ptr(), extension::GENERAL_OPERAND_CODE, &mut operand),
                Some(format!("extension `{}`", extension::GENERAL_OPERATION))
            )?;
            call!(
                library,
                model_get_extension_operation_type = "NeuronModel_getExtensionOperationType",
                (raw, name.as_ptr(), extension::GENERAL_OPERATION_CODE, &mut operation),
                Some(format!("extension `{}`", extension::GENERAL_OPERATION))
            )?;
        }
        Ok(ExtensionTypes { operand, operation })
    }

    fn operand(&mut self, index: usize, operand: &Operand<'w>, types: Option<&ExtensionTypes>) -> Result<()> {
        let library = self.library.clone();
        let raw = self.raw.as_ptr();
        let subject = || Some(format!("operand {index} `{}`", operand.name));
        let impossible = |reason: &str| NeuronError::Impossible {
            what: format!("operand {index} `{}`", operand.name),
            reason: reason.to_owned(),
        };
        let place = i32::try_from(index).map_err(|_| impossible("there are too many"))?;
        let kind = match (operand.kind, types) {
            (OperandKind::Numbered(kind), _) => kind,
            (OperandKind::ExtensionName, Some(types)) => types.operand,
            (OperandKind::ExtensionName, None) => return Err(impossible("the model has no extension")),
        };
        let is_scalar = is_scalar(kind);
        let raw_type = OperandType {
            kind,
            dimension_count: if is_scalar { 0 } else { operand.dims.len() as u32 },
            dimensions: if is_scalar { null() } else { operand.dims.as_ptr() },
            scale: operand.scale,
            zero_point: 0,
        };
        // SAFETY: a live model. The struct and its dimensions outlive the call.
        unsafe { call!(library, model_add_operand = "NeuronModel_addOperand", (raw, &raw_type), subject()) }?;
        if let Some(channels) = &operand.channels {
            let parameters = SymmPerChannelQuantParams {
                channel_dimension: channels.dimension,
                scale_count: channels.scales.len() as u32,
                scales: channels.scales.as_ptr(),
            };
            // SAFETY: a live model. The struct and its scales outlive the call.
            unsafe {
                call!(
                    library,
                    model_set_operand_symm_per_channel = "NeuronModel_setOperandSymmPerChannelQuantParams",
                    (raw, place, &parameters),
                    subject()
                )
            }?;
        }
        let (pointer, length): (*const c_void, usize) = match &operand.value {
            None => return Ok(()),
            Some(Value::Borrowed(bytes)) => (bytes.as_ptr().cast(), bytes.len()),
            Some(Value::Owned(bytes)) => self.keep(bytes.clone()),
            Some(Value::Packed { bytes, columns }) => self.keep(Value::unpacked(bytes, *columns)),
            Some(Value::Absent { .. }) => return Err(impossible("its bytes are missing")),
        };
        // SAFETY: a live model. The bytes are the model's, or borrowed as long as it lives.
        unsafe {
            call!(
                library,
                model_set_operand_value = "NeuronModel_setOperandValue",
                (raw, place, pointer, length),
                subject()
            )
        }
    }

    /// Keeps bytes in place as long as the model lives.
    fn keep(&mut self, bytes: Vec<u8>) -> (*const c_void, usize) {
        let place = (bytes.as_ptr().cast(), bytes.len());
        self._constants.push(bytes);
        place
    }
}
