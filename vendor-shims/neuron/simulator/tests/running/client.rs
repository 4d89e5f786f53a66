//! A small client of the C interface. Its buffers live as long as the library may read them.

use std::ffi::CString;
use std::ptr;

use neuron_adapter::*;
use shardwright_neuron_adapter::operand::{
    self as raw, OperandType, PerChannelQuantParams, SymmPerChannelQuantParams,
};
use shardwright_neuron_adapter::setting::COPIED_AT_ONCE;
use shardwright_neuron_adapter::{extension, operand as kind};

/// Type of an operand.
#[derive(Clone, Debug)]
pub struct Kind {
    pub of: i32,
    pub dimensions: Vec<u32>,
    pub scale: f32,
    pub zero: i32,
}

pub fn tensor(of: i32, dimensions: &[u32], scale: f32, zero: i32) -> Kind {
    Kind { of, dimensions: dimensions.to_vec(), scale, zero }
}

impl Kind {
    pub fn elements(&self) -> usize {
        self.dimensions.iter().map(|length| *length as usize).product()
    }

    fn range(&self) -> (f64, f64) {
        match self.of {
            kind::TENSOR_QUANT16_SYMM | kind::EXT_TENSOR_QUANT16_ASYMM_SIGNED => (-32768.0, 32767.0),
            kind::TENSOR_QUANT8_ASYMM => (0.0, 255.0),
            kind::EXT_TENSOR_QUANT4_SYMM | kind::EXT_TENSOR_QUANT4_ASYMM_SIGNED => (-8.0, 7.0),
            _ => (-128.0, 127.0),
        }
    }

    pub fn is_quantised(&self) -> bool {
        kind::is_per_tensor(self.of) || kind::is_per_channel(self.of)
    }

    /// Encodes real numbers as the nearest stored values.
    pub fn encode(&self, reals: &[f64]) -> Vec<u8> {
        reals
            .iter()
            .flat_map(|real| {
                let (low, high) = self.range();
                let stored = if self.is_quantised() {
                    ((real / f64::from(self.scale)).round() + f64::from(self.zero)).clamp(low, high)
                } else {
                    *real
                };
                match (self.of, kind::element_bytes(self.of).unwrap_or(1)) {
                    (kind::TENSOR_FLOAT32 | kind::FLOAT32, _) => (stored as f32).to_le_bytes().to_vec(),
                    (kind::TENSOR_FLOAT16, _) => half::f16::from_f64(stored).to_le_bytes().to_vec(),
                    (_, 4) => (stored as i32).to_le_bytes().to_vec(),
                    (_, 2) => (stored as i16).to_le_bytes().to_vec(),
                    (kind::TENSOR_QUANT8_ASYMM | kind::TENSOR_BOOL8, _) => vec![stored as u8],
                    _ => vec![stored as i8 as u8],
                }
            })
            .collect()
    }

    /// Returns the real numbers that bytes encode.
    pub fn decode(&self, bytes: &[u8]) -> Vec<f64> {
        let width = kind::element_bytes(self.of).unwrap_or(1);
        bytes
            .chunks_exact(width)
            .map(|bytes| {
                let stored = match (self.of, bytes) {
                    (kind::TENSOR_FLOAT32 | kind::FLOAT32, _) => {
                        f64::from(f32::from_le_bytes(bytes.try_into().expect("four")))
                    }
                    (kind::TENSOR_FLOAT16, _) => {
                        half::f16::from_le_bytes(bytes.try_into().expect("two")).to_f64()
                    }
                    (kind::TENSOR_QUANT8_ASYMM | kind::TENSOR_BOOL8, _) => f64::from(bytes[0]),
                    (_, [a]) => f64::from(*a as i8),
                    (_, [a, b]) => f64::from(i16::from_le_bytes([*a, *b])),
                    _ => f64::from(i32::from_le_bytes(bytes.try_into().expect("four"))),
                };
                if self.is_quantised() {
                    (stored - f64::from(self.zero)) * f64::from(self.scale)
                } else {
                    stored
                }
            })
            .collect()
    }
}

/// A model under construction.
pub struct Model {
    pub handle: *mut raw::Model,
    count: u32,
    kept: Vec<Vec<u8>>,
}

/// A finished compilation and its model.
pub struct Compiled {
    pub model: *mut raw::Model,
    pub handle: *mut raw::Compilation,
    _kept: Vec<Vec<u8>>,
}

/// Returns the message of the last refusal on this thread.
pub fn last_message() -> String {
    // SAFETY: the text stays valid until the next refusal on this thread.
    unsafe { std::ffi::CStr::from_ptr(ShardwrightNeuronSimulator_lastMessage()) }
        .to_string_lossy()
        .into_owned()
}

fn fine(code: i32) {
    assert_eq!(code, 0, "{}", last_message());
}

impl Model {
    pub fn new() -> Model {
        let mut handle = ptr::null_mut();
        // SAFETY: the handle is writable.
        fine(unsafe { NeuronModel_create(&raw mut handle) });
        Model { handle, count: 0, kept: Vec::new() }
    }

    /// Adds an operand and returns the result code. If it is 0, the operand's index is the previous
    /// count.
    pub fn try_operand(&mut self, kind: &Kind) -> i32 {
        let kind = OperandType {
            kind: kind.of,
            dimension_count: kind.dimensions.len() as u32,
            dimensions: kind.dimensions.as_ptr(),
            scale: kind.scale,
            zero_point: kind.zero,
        };
        // SAFETY: the dimensions stay alive for the call.
        let code = unsafe { NeuronModel_addOperand(self.handle, &raw const kind) };
        self.count += u32::from(code == 0);
        code
    }

    pub fn operand(&mut self, kind: &Kind) -> u32 {
        fine(self.try_operand(kind));
        self.count - 1
    }

    pub fn constant(&mut self, kind: &Kind, bytes: Vec<u8>) -> u32 {
        let index = self.operand(kind);
        // SAFETY: the bytes are kept until the compilation is dropped. Moving their owner does not
        // move them.
        fine(unsafe {
            NeuronModel_setOperandValue(self.handle, index as i32, bytes.as_ptr().cast(), bytes.len())
        });
        self.kept.push(bytes);
        index
    }

    /// Sets a value that is short enough to be copied within the call, and returns the result code.
    pub fn short_value(&mut self, index: u32, bytes: &[u8]) -> i32 {
        assert!(bytes.len() <= COPIED_AT_ONCE);
        // SAFETY: the bytes stay alive for the call, and the library does not keep values of this
        // length.
        unsafe { NeuronModel_setOperandValue(self.handle, index as i32, bytes.as_ptr().cast(), bytes.len()) }
    }

    /// Returns the lent values, in the order in which they were set.
    pub fn kept(&mut self) -> &mut Vec<Vec<u8>> {
        &mut self.kept
    }

    pub fn symmetric_channels(&mut self, index: u32, axis: u32, scales: &[f32]) -> i32 {
        let parameters = SymmPerChannelQuantParams {
            channel_dimension: axis,
            scale_count: scales.len() as u32,
            scales: scales.as_ptr(),
        };
        // SAFETY: the scales stay alive for the call.
        unsafe {
            NeuronModel_setOperandSymmPerChannelQuantParams(self.handle, index as i32, &raw const parameters)
        }
    }

    pub fn channels(&mut self, index: u32, axis: u32, scales: &[f32], zeros: &[i32]) -> i32 {
        let parameters = PerChannelQuantParams {
            channel_dimension: axis,
            scale_count: scales.len() as u32,
            scales: scales.as_ptr(),
            zero_point_count: zeros.len() as u32,
            zero_points: zeros.as_ptr(),
        };
        // SAFETY: scales and zero points stay alive for the call.
        unsafe {
            NeuronModel_setOperandPerChannelQuantParams(self.handle, index as i32, &raw const parameters)
        }
    }

    pub fn int(&mut self, value: i32) -> u32 {
        self.constant(&tensor(kind::INT32, &[], 0.0, 0), value.to_le_bytes().to_vec())
    }

    pub fn real(&mut self, value: f32) -> u32 {
        self.constant(&tensor(kind::FLOAT32, &[], 0.0, 0), value.to_le_bytes().to_vec())
    }

    pub fn truth(&mut self, value: bool) -> u32 {
        self.constant(&tensor(kind::BOOL, &[], 0.0, 0), vec![u8::from(value)])
    }

    pub fn ints(&mut self, values: &[i32]) -> u32 {
        let bytes = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        self.constant(&tensor(kind::TENSOR_INT32, &[values.len() as u32], 0.0, 0), bytes)
    }

    /// Returns the name operand of an extension's operation, and the number of the operation.
    pub fn extension(&mut self, name: &str) -> (u32, i32) {
        let general = CString::new(extension::GENERAL_OPERATION).expect("no zeros");
        let (mut operand, mut operation) = (0, 0);
        // SAFETY: the text and the results stay alive for the calls.
        unsafe {
            fine(NeuronModel_getExtensionOperandType(
                self.handle,
                general.as_ptr(),
                extension::GENERAL_OPERAND_CODE,
                &raw mut operand,
            ));
            fine(NeuronModel_getExtensionOperationType(
                self.handle,
                general.as_ptr(),
                extension::GENERAL_OPERATION_CODE,
                &raw mut operation,
            ));
        }
        let bytes = extension::string_operand(name).expect("short");
        (self.constant(&tensor(operand, &[bytes.len() as u32], 0.0, 0), bytes), operation)
    }

    pub fn try_operation(&mut self, code: i32, inputs: &[u32], outputs: &[u32]) -> i32 {
        // SAFETY: the lists stay alive for the call.
        unsafe {
            NeuronModel_addOperation(
                self.handle,
                code,
                inputs.len() as u32,
                inputs.as_ptr(),
                outputs.len() as u32,
                outputs.as_ptr(),
            )
        }
    }

    pub fn operation(&mut self, code: i32, inputs: &[u32], outputs: &[u32]) {
        fine(self.try_operation(code, inputs, outputs));
    }

    pub fn try_finish(&mut self, inputs: &[u32], outputs: &[u32]) -> i32 {
        // SAFETY: the lists stay alive for the call.
        unsafe {
            fine(NeuronModel_identifyInputsAndOutputs(
                self.handle,
                inputs.len() as u32,
                inputs.as_ptr(),
                outputs.len() as u32,
                outputs.as_ptr(),
            ));
            NeuronModel_finish(self.handle)
        }
    }

    pub fn relax(&mut self) {
        // SAFETY: the model is alive.
        fine(unsafe { NeuronModel_relaxComputationFloat32toFloat16(self.handle, 1) });
    }

    /// Creates a compilation of the finished model without finishing it.
    pub fn compilation(&mut self, options: &str) -> *mut raw::Compilation {
        let options = CString::new(options).expect("no zeros");
        let mut handle = ptr::null_mut();
        // SAFETY: the text and the result stay alive for the call.
        fine(unsafe { NeuronCompilation_createWithOptions(self.handle, &raw mut handle, options.as_ptr()) });
        handle
    }

    /// Compiles the finished model, or returns the code and message of the refusal.
    pub fn try_compile(mut self, options: &str) -> Result<Compiled, (i32, String)> {
        let handle = self.compilation(options);
        // SAFETY: the compilation and all lent bytes are alive.
        let code = unsafe { NeuronCompilation_finish(handle) };
        if code != 0 {
            return Err((code, last_message()));
        }
        Ok(Compiled { model: self.handle, handle, _kept: std::mem::take(&mut self.kept) })
    }

    pub fn compile(mut self, inputs: &[u32], outputs: &[u32]) -> Compiled {
        fine(self.try_finish(inputs, outputs));
        self.try_compile("").unwrap_or_else(|(code, message)| panic!("{code}: {message}"))
    }
}

impl Compiled {
    pub fn run(&self, inputs: &[Vec<u8>], outputs: &[usize]) -> Vec<Vec<u8>> {
        run(self.handle, inputs, outputs)
    }

    pub fn stored(&self) -> Vec<u8> {
        let mut size = 0;
        // SAFETY: the compilation is alive, and the buffer has the reported size.
        unsafe {
            fine(NeuronCompilation_getCompiledNetworkSize(self.handle, &raw mut size));
            let mut blob = vec![0u8; size];
            fine(NeuronCompilation_storeCompiledNetwork(self.handle, blob.as_mut_ptr().cast(), size));
            blob
        }
    }
}

impl Drop for Compiled {
    fn drop(&mut self) {
        // SAFETY: both are alive, and no other object depends on the compilation any more.
        unsafe {
            NeuronCompilation_free(self.handle);
            NeuronModel_free(self.model);
        }
    }
}

/// Runs a compilation on inputs. `outputs` are the lengths of the outputs in bytes.
pub fn run(compilation: *mut raw::Compilation, inputs: &[Vec<u8>], outputs: &[usize]) -> Vec<Vec<u8>> {
    let mut found: Vec<Vec<u8>> = outputs.iter().map(|length| vec![0xA5; *length]).collect();
    let mut execution = ptr::null_mut();
    // SAFETY: all buffers stay alive until the execution is freed.
    unsafe {
        fine(NeuronExecution_create(compilation, &raw mut execution));
        for (index, input) in inputs.iter().enumerate() {
            fine(NeuronExecution_setInput(
                execution,
                index as i32,
                ptr::null(),
                input.as_ptr().cast(),
                input.len(),
            ));
        }
        for (index, output) in found.iter_mut().enumerate() {
            fine(NeuronExecution_setOutput(
                execution,
                index as i32,
                ptr::null(),
                output.as_mut_ptr().cast(),
                output.len(),
            ));
        }
        fine(NeuronExecution_setBoostHint(execution, 100));
        fine(NeuronExecution_compute(execution));
        NeuronExecution_free(execution);
    }
    found
}

/// Restores a blob, or returns the code and message of the refusal.
pub fn restore(blob: &[u8]) -> Result<Compiled, (i32, String)> {
    let (mut model, mut handle) = (ptr::null_mut(), ptr::null_mut());
    // SAFETY: the bytes and the results stay alive for the call.
    let code = unsafe {
        NeuronModel_restoreFromCompiledNetwork(
            &raw mut model,
            &raw mut handle,
            blob.as_ptr().cast(),
            blob.len(),
        )
    };
    if code != 0 {
        return Err((code, last_message()));
    }
    Ok(Compiled { model, handle, _kept: Vec::new() })
}

/// Returns pseudo-random numbers in [-bound, bound], which depend only on `seed`.
pub fn numbers(count: usize, bound: f64, seed: u64) -> Vec<f64> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            ((state >> 33) as f64 / f64::from(1u32 << 31) * 2.0 - 1.0) * bound
        })
        .collect()
}
