//! The functions of the C interface. They read arguments and check for null. Other modules do the
//! work.

#![expect(clippy::missing_safety_doc, reason = "the interface's crate documents the obligations of callers")]

use std::cell::RefCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};

use shardwright_neuron_adapter::functions::{self as types, Bool};
use shardwright_neuron_adapter::operand::{
    self as raw, OperandType, PerChannelQuantParams, SymmPerChannelQuantParams,
};
use shardwright_neuron_adapter::result::{BAD_DATA, BAD_STATE, UNEXPECTED_NULL};
use shardwright_neuron_adapter::setting::{CACHE_TOKEN_BYTES, PADDED_DIMENSIONS};
use shardwright_neuron_adapter::{RuntimeVersion, extension};
use shardwright_neuron_files::options::MAX_BYTES;

use crate::call::{Line, Refused, call, call_void, last_message, refuse};
use crate::compilation::Compilation;
use crate::configuration::{self, Configuration, How};
use crate::execution::{Execution, padded_bytes, padded_dimensions};
use crate::handles::Registry;
use crate::memory::Memory;
use crate::model::{MOST_OF_AN_OPERATION, Model};
use crate::network::MOST_OPERANDS;
use crate::target::{
    COMPILED_NETWORK_OPERAND, COMPILED_NETWORK_OPERATION, GENERAL_OPERAND, GENERAL_OPERATION,
};

static MODELS: Registry<Model> = Registry::new("model");
static COMPILATIONS: Registry<Compilation> = Registry::new("compilation");
static EXECUTIONS: Registry<Execution> = Registry::new("execution");
static MEMORIES: Registry<Memory> = Registry::new("memory");
static EVENTS: Registry<Event> = Registry::new("event");

/// The result of a run, or a fence.
struct Event {
    code: i32,
    fence: Option<std::os::fd::OwnedFd>,
}

/// Declares functions and checks their signatures against the interface's types.
macro_rules! exports {
    ($($kind:ident $name:ident($($argument:ident: $type:ty),*) |$configuration:ident, $line:ident| $body:block)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "` of the interface.")]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($($argument: $type),*) -> c_int {
                call(stringify!($name), |$configuration: &Configuration, $line: &mut Line| $body)
            }
            const _: types::$kind = $name;
        )*
    };
}

/// Writes a result.
///
/// # Safety
/// `out` is null or writable.
unsafe fn give<T>(out: *mut T, value: T) -> Result<(), Refused> {
    if out.is_null() {
        return refuse(UNEXPECTED_NULL, "the place for the result is null");
    }
    // SAFETY: not null, so it is writable.
    unsafe { out.write_unaligned(value) };
    Ok(())
}

/// Returns the elements that a caller passes, or an empty slice for a count of 0.
///
/// # Safety
/// `count` elements are readable at `from` unless it is null.
unsafe fn many<'a, T>(from: *const T, count: u32, most: usize) -> Result<&'a [T], Refused> {
    if count == 0 {
        return Ok(&[]);
    }
    if from.is_null() {
        return refuse(UNEXPECTED_NULL, format!("{count} elements at null"));
    }
    if count as usize > most || !from.is_aligned() {
        return refuse(BAD_DATA, format!("{count} elements at {from:p}"));
    }
    // SAFETY: not null and aligned, and guaranteed by the caller to be valid.
    Ok(unsafe { std::slice::from_raw_parts(from, count as usize) })
}

/// Returns the text that a caller passes.
///
/// # Safety
/// `from` is null or a text that ends with a zero byte.
unsafe fn text<'a>(from: *const c_char) -> Result<&'a str, Refused> {
    if from.is_null() {
        return refuse(UNEXPECTED_NULL, "a text is null");
    }
    // SAFETY: not null, and guaranteed by the caller to be valid.
    let text = unsafe { CStr::from_ptr(from) };
    if text.count_bytes() > MAX_BYTES {
        return refuse(BAD_DATA, format!("a text of {} bytes", text.count_bytes()));
    }
    text.to_str().or_else(|_| refuse(BAD_DATA, "a text is not UTF-8"))
}

fn needs_bytes(from: *const c_void) -> Result<(), Refused> {
    if from.is_null() { refuse(UNEXPECTED_NULL, "the bytes are null") } else { Ok(()) }
}

fn give_supported(supported: &[bool], out: *mut Bool, count: u32, line: &mut Line) -> Result<(), Refused> {
    if out.is_null() {
        return refuse(UNEXPECTED_NULL, "the place for the result is null");
    }
    if count as usize != supported.len() {
        return refuse(BAD_DATA, format!("{count} answers for {} operations", supported.len()));
    }
    let answers = supported.iter().map(|supported| match line.how() {
        Some(How::AllTrue) => true,
        Some(How::AllFalse) => false,
        _ => *supported,
    });
    let answers: Vec<bool> = answers.collect();
    line.say("count", count);
    line.say("supported", answers.iter().map(|answer| if *answer { '1' } else { '0' }).collect::<String>());
    for (at, answer) in answers.into_iter().enumerate() {
        // SAFETY: not null, and the caller has room for as many answers as it counts.
        unsafe { out.add(at).write(Bool::from(answer)) };
    }
    Ok(())
}

exports! {
    GetVersion Neuron_getVersion(version: *mut RuntimeVersion) |configuration, line| {
        line.say("version", configuration.runtime_version());
        // SAFETY: guaranteed by the caller.
        unsafe { give(version, configuration.runtime_version()) }
    }
    GetL1MemorySizeKb Neuron_getL1MemorySizeKb(kilobytes: *mut u32) |configuration, line| {
        line.say("kilobytes", configuration.l1_kilobytes);
        // SAFETY: guaranteed by the caller.
        unsafe { give(kilobytes, configuration.l1_kilobytes) }
    }
    GetMagicNumber Neuron_getNeuroPilotMagicNumber(number: *mut i32) |configuration, line| {
        line.say("number", configuration.magic_number);
        // SAFETY: guaranteed by the caller.
        unsafe { give(number, configuration.magic_number) }
    }
    GetDeviceCount Neuron_getDeviceCount(count: *mut u32) |_configuration, _line| {
        // SAFETY: guaranteed by the caller.
        unsafe { give(count, 1) }
    }
    GetDevice Neuron_getDevice(index: u32, device: *mut *mut raw::Device) |_configuration, line| {
        line.say("index", index);
        if index != 0 {
            return refuse(BAD_DATA, format!("device {index} of 1"));
        }
        // SAFETY: guaranteed by the caller.
        unsafe { give(device, DEVICE as *mut raw::Device) }
    }
    DeviceGetName NeuronDevice_getName(device: *const raw::Device, name: *mut *const c_char) |_configuration, _line| {
        check_device(device)?;
        // SAFETY: guaranteed by the caller.
        unsafe { give(name, c"mtk-neuron_shardwright-simulator".as_ptr()) }
    }
    DeviceGetDescription NeuronDevice_getDescription(device: *const raw::Device, description: *mut *const c_char) |_configuration, _line| {
        check_device(device)?;
        // SAFETY: guaranteed by the caller.
        unsafe { give(description, c"a simulator, not a device of MediaTek".as_ptr()) }
    }
    DeviceGetExtensionSupport NeuronDevice_getExtensionSupport(name: *const c_char, supported: *mut Bool) |_configuration, line| {
        // SAFETY: guaranteed by the caller.
        let name = unsafe { text(name) }?;
        line.say("name", name);
        // SAFETY: guaranteed by the caller.
        unsafe { give(supported, Bool::from([extension::GENERAL_OPERATION, extension::COMPILED_NETWORK].contains(&name))) }
    }

    ModelCreate NeuronModel_create(model: *mut *mut raw::Model) |_configuration, _line| {
        if model.is_null() {
            return refuse(UNEXPECTED_NULL, "the place for the model is null");
        }
        // SAFETY: guaranteed by the caller.
        unsafe { give(model, MODELS.add(Model::default())) }
    }
    ModelFinish NeuronModel_finish(model: *mut raw::Model) |configuration, line| {
        let shared = MODELS.get(model)?;
        let mut model = shared.lock();
        line.say("operands", model.network.operands.len());
        line.say("operations", model.network.operations.len());
        model.finish(&configuration.target())
    }
    ModelSetName NeuronModel_setName(model: *mut raw::Model, name: *const c_char) |_configuration, line| {
        let shared = MODELS.get(model)?;
        // SAFETY: guaranteed by the caller.
        let name = unsafe { text(name) }?;
        line.say("name", format_args!("{name:?}"));
        shared.lock().name = name.to_owned();
        Ok(())
    }
    ModelAddOperand NeuronModel_addOperand(model: *mut raw::Model, kind: *const OperandType) |configuration, line| {
        let shared = MODELS.get(model)?;
        if kind.is_null() {
            return refuse(UNEXPECTED_NULL, "the operand type is null");
        }
        // SAFETY: not null, and guaranteed by the caller to be valid.
        let kind = unsafe { kind.read_unaligned() };
        // SAFETY: guaranteed by the caller.
        let dimensions = unsafe { many(kind.dimensions, kind.dimension_count, 64) }?;
        let mut model = shared.lock();
        line.say("index", model.network.operands.len());
        line.say("type", kind.kind);
        line.say("dimensions", list(dimensions));
        line.say("scale", kind.scale);
        line.say("zero_point", kind.zero_point);
        model.add_operand(kind.kind, dimensions, kind.scale, kind.zero_point, &configuration.target()).map(|_| ())
    }
    ModelSetOperandValue NeuronModel_setOperandValue(model: *mut raw::Model, index: i32, value: *const c_void, length: usize) |configuration, line| {
        let shared = MODELS.get(model)?;
        line.say("index", index);
        line.say("bytes", length);
        needs_bytes(value)?;
        if length <= 8 {
            // SAFETY: the caller guarantees `length` readable bytes.
            let bytes = unsafe { std::slice::from_raw_parts(value.cast::<u8>(), length) };
            line.say("value", bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>());
        }
        // SAFETY: guaranteed by the caller, as the interface requires.
        unsafe { shared.lock().set_value(index, value.cast(), length, configuration.strict) }
    }
    ModelSetOperandSymmPerChannel NeuronModel_setOperandSymmPerChannelQuantParams(model: *mut raw::Model, index: i32, parameters: *const SymmPerChannelQuantParams)
        |_configuration, line| {
        let shared = MODELS.get(model)?;
        line.say("index", index);
        if parameters.is_null() {
            return refuse(UNEXPECTED_NULL, "the parameters are null");
        }
        // SAFETY: not null, and guaranteed by the caller to be valid.
        let parameters = unsafe { parameters.read_unaligned() };
        line.say("dimension", parameters.channel_dimension);
        line.say("scales", parameters.scale_count);
        // SAFETY: guaranteed by the caller.
        let scales = unsafe { many(parameters.scales, parameters.scale_count, MOST_OPERANDS) }?;
        shared.lock().set_channels(index, parameters.channel_dimension, scales, &[])
    }
    ModelSetOperandPerChannel NeuronModel_setOperandPerChannelQuantParams(model: *mut raw::Model, index: i32, parameters: *const PerChannelQuantParams)
        |_configuration, line| {
        let shared = MODELS.get(model)?;
        line.say("index", index);
        if parameters.is_null() {
            return refuse(UNEXPECTED_NULL, "the parameters are null");
        }
        // SAFETY: not null, and guaranteed by the caller to be valid.
        let parameters = unsafe { parameters.read_unaligned() };
        line.say("dimension", parameters.channel_dimension);
        line.say("scales", parameters.scale_count);
        line.say("zero_points", parameters.zero_point_count);
        // SAFETY: guaranteed by the caller.
        let scales = unsafe { many(parameters.scales, parameters.scale_count, MOST_OPERANDS) }?;
        // SAFETY: guaranteed by the caller.
        let zero_points = unsafe { many(parameters.zero_points, parameters.zero_point_count, MOST_OPERANDS) }?;
        if zero_points.len() != scales.len() {
            return refuse(BAD_DATA, format!("{} zero points for {} scales", zero_points.len(), scales.len()));
        }
        shared.lock().set_channels(index, parameters.channel_dimension, scales, zero_points)
    }
    ModelSetOperandExtensionData NeuronModel_setOperandExtensionData(model: *mut raw::Model, index: i32, data: *const c_void, length: usize)
        |_configuration, line| {
        MODELS.get(model)?;
        line.say("index", index);
        line.say("bytes", length);
        needs_bytes(data)?;
        refuse(BAD_DATA, "no extension here has data in addition to its operands")
    }
    ModelAddOperation NeuronModel_addOperation(model: *mut raw::Model, operation: c_int, input_count: u32, inputs: *const u32, output_count: u32, outputs: *const u32)
        |_configuration, line| {
        let shared = MODELS.get(model)?;
        // SAFETY: guaranteed by the caller.
        let inputs = unsafe { many(inputs, input_count, MOST_OF_AN_OPERATION) }?;
        // SAFETY: guaranteed by the caller.
        let outputs = unsafe { many(outputs, output_count, MOST_OF_AN_OPERATION) }?;
        line.say("type", operation);
        line.say("inputs", list(inputs));
        line.say("outputs", list(outputs));
        shared.lock().add_operation(operation, inputs, outputs)
    }
    ModelIdentify NeuronModel_identifyInputsAndOutputs(model: *mut raw::Model, input_count: u32, inputs: *const u32, output_count: u32, outputs: *const u32)
        |_configuration, line| {
        let shared = MODELS.get(model)?;
        // SAFETY: guaranteed by the caller.
        let inputs = unsafe { many(inputs, input_count, MOST_OPERANDS) }?;
        // SAFETY: guaranteed by the caller.
        let outputs = unsafe { many(outputs, output_count, MOST_OPERANDS) }?;
        line.say("inputs", list(inputs));
        line.say("outputs", list(outputs));
        shared.lock().identify(inputs, outputs)
    }
    ModelRelax NeuronModel_relaxComputationFloat32toFloat16(model: *mut raw::Model, allowed: Bool) |_configuration, line| {
        line.say("allowed", allowed);
        // This is allowed on a finished model too, because Google's client calls it there.
        MODELS.get(model)?.lock().network.relaxed = allowed != 0;
        Ok(())
    }
    ModelGetSupportedOperations NeuronModel_getSupportedOperations(model: *mut raw::Model, supported: *mut Bool, count: u32) |configuration, line| {
        let shared = MODELS.get(model)?;
        let model = shared.lock();
        if model.order.is_none() {
            return refuse(BAD_STATE, "the model is not finished");
        }
        give_supported(&model.supported(&configuration.target()), supported, count, line)
    }
    ModelGetExtensionOperandType NeuronModel_getExtensionOperandType(model: *mut raw::Model, name: *const c_char, code: u16, kind: *mut i32) |_configuration, line| {
        MODELS.get(model)?;
        // SAFETY: guaranteed by the caller.
        let name = unsafe { text(name) }?;
        line.say("name", name);
        line.say("code", code);
        let found = match (name, code) {
            (extension::GENERAL_OPERATION, extension::GENERAL_OPERAND_CODE) => GENERAL_OPERAND,
            (extension::COMPILED_NETWORK, extension::COMPILED_NETWORK_OPERAND_CODE | extension::COMPILED_NETWORK_OPERAND_CODE_8) => {
                COMPILED_NETWORK_OPERAND | i32::from(code)
            }
            _ => return refuse(BAD_DATA, format!("the extension `{name}` has no operand {code:#x} here")),
        };
        // SAFETY: guaranteed by the caller.
        unsafe { give(kind, found) }
    }
    ModelGetExtensionOperationType NeuronModel_getExtensionOperationType(model: *mut raw::Model, name: *const c_char, code: u16, kind: *mut i32)
        |_configuration, line| {
        MODELS.get(model)?;
        // SAFETY: guaranteed by the caller.
        let name = unsafe { text(name) }?;
        line.say("name", name);
        line.say("code", code);
        let found = match (name, code) {
            (extension::GENERAL_OPERATION, extension::GENERAL_OPERATION_CODE) => GENERAL_OPERATION,
            (extension::COMPILED_NETWORK, extension::COMPILED_NETWORK_OPERATION_CODE) => COMPILED_NETWORK_OPERATION,
            _ => return refuse(BAD_DATA, format!("the extension `{name}` has no operation {code:#x} here")),
        };
        // SAFETY: guaranteed by the caller.
        unsafe { give(kind, found) }
    }
    ModelRestore NeuronModel_restoreFromCompiledNetwork(model: *mut *mut raw::Model, compilation: *mut *mut raw::Compilation, blob: *const c_void, length: usize)
        |configuration, line| {
        line.say("bytes", length);
        needs_bytes(blob)?;
        if model.is_null() || compilation.is_null() {
            return refuse(UNEXPECTED_NULL, "a place for the result is null");
        }
        // SAFETY: not null, and guaranteed by the caller to be valid.
        let bytes = unsafe { std::slice::from_raw_parts(blob.cast::<u8>(), length) };
        let handle: *mut raw::Model = MODELS.add(Model::default());
        let restored = MODELS.get(handle).and_then(|shared| Compilation::restored(&shared, bytes, configuration));
        match restored {
            Ok(restored) => {
                // SAFETY: not null, and guaranteed by the caller to be valid.
                unsafe { give(model, handle) }?;
                // SAFETY: not null, and guaranteed by the caller to be valid.
                unsafe { give(compilation, COMPILATIONS.add(restored)) }
            }
            Err(refused) => {
                MODELS.free(handle)?;
                Err(refused)
            }
        }
    }

    CompilationCreate NeuronCompilation_create(model: *mut raw::Model, compilation: *mut *mut raw::Compilation) |configuration, _line| {
        create(model, compilation, "", configuration)
    }
    CompilationCreateWithOptions NeuronCompilation_createWithOptions(model: *mut raw::Model, compilation: *mut *mut raw::Compilation, options: *const c_char)
        |configuration, line| {
        // SAFETY: guaranteed by the caller.
        let options = unsafe { text(options) }?;
        line.say("options", format_args!("{options:?}"));
        create(model, compilation, options, configuration)
    }
    CompilationCreateForDevices NeuronCompilation_createForDevices(model: *mut raw::Model, devices: *const *const raw::Device, count: u32, compilation: *mut *mut raw::Compilation)
        |configuration, line| {
        line.say("count", count);
        // SAFETY: guaranteed by the caller.
        let devices = unsafe { many(devices, count, 64) }?;
        if devices.is_empty() {
            return refuse(BAD_DATA, "no devices");
        }
        devices.iter().try_for_each(|device| check_device(*device))?;
        create(model, compilation, "", configuration)
    }
    CompilationFinish NeuronCompilation_finish(compilation: *mut raw::Compilation) |configuration, _line| {
        COMPILATIONS.get(compilation)?.lock().finish(configuration)
    }
    CompilationGetSupportedOperations NeuronCompilation_getSupportedOperations(compilation: *mut raw::Compilation, count: u32, supported: *mut Bool)
        |configuration, line| {
        let found = COMPILATIONS.get(compilation)?.lock().supported(configuration)?;
        give_supported(&found, supported, count, line)
    }
    CompilationSetCaching NeuronCompilation_setCaching(compilation: *mut raw::Compilation, folder: *const c_char, token: *const u8) |_configuration, line| {
        COMPILATIONS.get(compilation)?;
        // SAFETY: guaranteed by the caller.
        let folder = unsafe { text(folder) }?;
        // SAFETY: guaranteed by the caller.
        unsafe { many(token, CACHE_TOKEN_BYTES as u32, CACHE_TOKEN_BYTES) }?;
        line.say("folder", format_args!("{folder:?}"));
        // A cache never changes a result, so this library does not keep one.
        Ok(())
    }
    CompilationSetPreference NeuronCompilation_setPreference(compilation: *mut raw::Compilation, preference: i32) |_configuration, line| {
        line.say("preference", preference);
        COMPILATIONS.get(compilation)?.lock().set_preference(preference)
    }
    CompilationSetPriority NeuronCompilation_setPriority(compilation: *mut raw::Compilation, priority: c_int) |_configuration, line| {
        line.say("priority", priority);
        COMPILATIONS.get(compilation)?.lock().set_priority(priority)
    }
    CompilationSetL1MemorySizeKb NeuronCompilation_setL1MemorySizeKb(compilation: *mut raw::Compilation, kilobytes: u32) |configuration, line| {
        line.say("kilobytes", kilobytes);
        COMPILATIONS.get(compilation)?.lock().set_l1(kilobytes, configuration)
    }
    CompilationSetOptimizationHint NeuronCompilation_setOptimizationHint(compilation: *mut raw::Compilation, bits: u32) |_configuration, line| {
        line.say("bits", bits);
        COMPILATIONS.get(compilation)?.lock().set_hint(bits)
    }
    CompilationSetOptimizationString NeuronCompilation_setOptimizationString(compilation: *mut raw::Compilation, options: *const c_char) |configuration, line| {
        // SAFETY: guaranteed by the caller.
        let options = unsafe { text(options) }?;
        line.say("options", format_args!("{options:?}"));
        COMPILATIONS.get(compilation)?.lock().set_options(options, configuration)
    }
    CompilationGetInputPaddedDimensions NeuronCompilation_getInputPaddedDimensions(compilation: *mut raw::Compilation, index: i32, dimensions: *mut u32)
        |configuration, line| {
        line.say("index", index);
        give_dimensions(compilation, true, index, dimensions, configuration)
    }
    CompilationGetOutputPaddedDimensions NeuronCompilation_getOutputPaddedDimensions(compilation: *mut raw::Compilation, index: i32, dimensions: *mut u32)
        |configuration, line| {
        line.say("index", index);
        give_dimensions(compilation, false, index, dimensions, configuration)
    }
    CompilationGetInputPaddedSize NeuronCompilation_getInputPaddedSize(compilation: *mut raw::Compilation, index: i32, bytes: *mut usize) |configuration, line| {
        line.say("index", index);
        give_size(compilation, true, index, bytes, configuration)
    }
    CompilationGetOutputPaddedSize NeuronCompilation_getOutputPaddedSize(compilation: *mut raw::Compilation, index: i32, bytes: *mut usize) |configuration, line| {
        line.say("index", index);
        give_size(compilation, false, index, bytes, configuration)
    }
    CompilationGetCompiledNetworkSize NeuronCompilation_getCompiledNetworkSize(compilation: *mut raw::Compilation, bytes: *mut usize) |configuration, line| {
        let shared = COMPILATIONS.get(compilation)?;
        let size = shared.lock().stored(configuration)?.len();
        let size = if line.how() == Some(How::Empty) { 0 } else { size };
        line.say("bytes", size);
        // SAFETY: guaranteed by the caller.
        unsafe { give(bytes, size) }
    }
    CompilationStoreCompiledNetwork NeuronCompilation_storeCompiledNetwork(compilation: *mut raw::Compilation, blob: *mut c_void, length: usize)
        |configuration, line| {
        line.say("bytes", length);
        let shared = COMPILATIONS.get(compilation)?;
        let compilation = shared.lock();
        let bytes = compilation.stored(configuration)?;
        // A client that received size 0 for a network fetches it with an empty buffer.
        if length == 0 && configuration.failures.iter().any(|failure| failure.how == How::Empty) {
            return Ok(());
        }
        needs_bytes(blob)?;
        if length < bytes.len() {
            return refuse(BAD_DATA, format!("{length} bytes for a compiled network of {}", bytes.len()));
        }
        // SAFETY: not null. The caller has room for `length` bytes, at least as many as the blob,
        // and the buffer does not overlap the blob.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), blob.cast::<u8>(), bytes.len()) };
        Ok(())
    }

    ExecutionCreate NeuronExecution_create(compilation: *mut raw::Compilation, execution: *mut *mut raw::Execution) |configuration, _line| {
        let created = Execution::new(&COMPILATIONS.get(compilation)?, configuration.padded_to)?;
        if execution.is_null() {
            return refuse(UNEXPECTED_NULL, "the place for the execution is null");
        }
        // SAFETY: not null, and guaranteed by the caller to be valid.
        unsafe { give(execution, EXECUTIONS.add(created)) }
    }
    ExecutionCompute NeuronExecution_compute(execution: *mut raw::Execution) |_configuration, _line| {
        let shared = EXECUTIONS.get(execution)?;
        let mut execution = shared.lock();
        // SAFETY: guaranteed by the caller, as the interface requires: buffers outlive the
        // execution and are left alone while it runs.
        unsafe { execution.compute() }
    }
    ExecutionSetInput NeuronExecution_setInput(execution: *mut raw::Execution, index: i32, kind: *const OperandType, buffer: *const c_void, length: usize)
        |_configuration, line| {
        line.say("index", index);
        line.say("bytes", length);
        without_type(kind)?;
        EXECUTIONS.get(execution)?.lock().bind_pointer(true, index, buffer as usize, length)
    }
    ExecutionSetOutput NeuronExecution_setOutput(execution: *mut raw::Execution, index: i32, kind: *const OperandType, buffer: *mut c_void, length: usize)
        |_configuration, line| {
        line.say("index", index);
        line.say("bytes", length);
        without_type(kind)?;
        EXECUTIONS.get(execution)?.lock().bind_pointer(false, index, buffer as usize, length)
    }
    ExecutionSetInputFromMemory NeuronExecution_setInputFromMemory(execution: *mut raw::Execution, index: u32, kind: *const OperandType, memory: *const raw::Memory, offset: usize, length: usize)
        |_configuration, line| {
        line.say("index", index);
        line.say("offset", offset);
        line.say("bytes", length);
        without_type(kind)?;
        EXECUTIONS.get(execution)?.lock().bind_memory(true, index, &MEMORIES.get(memory)?, offset, length)
    }
    ExecutionSetOutputFromMemory NeuronExecution_setOutputFromMemory(execution: *mut raw::Execution, index: u32, kind: *const OperandType, memory: *const raw::Memory, offset: usize, length: usize)
        |_configuration, line| {
        line.say("index", index);
        line.say("offset", offset);
        line.say("bytes", length);
        without_type(kind)?;
        EXECUTIONS.get(execution)?.lock().bind_memory(false, index, &MEMORIES.get(memory)?, offset, length)
    }
    ExecutionSetBoostHint NeuronExecution_setBoostHint(execution: *mut raw::Execution, boost: u8) |_configuration, line| {
        line.say("boost", boost);
        EXECUTIONS.get(execution)?.lock().set_boost(boost)
    }
    ExecutionSetLoopTimeout NeuronExecution_setLoopTimeout(execution: *mut raw::Execution, nanoseconds: u64) |_configuration, line| {
        line.say("nanoseconds", nanoseconds);
        // Loops are not supported, so the timeout has no effect.
        EXECUTIONS.get(execution).map(|_| ())
    }
    ExecutionStartCompute NeuronExecution_startComputeWithDependencies(execution: *mut raw::Execution, events: *const *const raw::Event, count: u32, _duration: u64, event: *mut *mut raw::Event)
        |_configuration, line| {
        line.say("count", count);
        let shared = EXECUTIONS.get(execution)?;
        if event.is_null() {
            return refuse(UNEXPECTED_NULL, "the place for the event is null");
        }
        // SAFETY: guaranteed by the caller.
        for before in unsafe { many(events, count, 1 << 10) }? {
            wait(&EVENTS.get(*before)?.lock())?;
        }
        // SAFETY: as for `compute`. The run has ended when this function returns, which a client
        // has to allow for.
        let code = match unsafe { shared.lock().compute() } {
            Ok(()) => 0,
            Err(refused) => refused.code,
        };
        // SAFETY: not null, and guaranteed by the caller to be valid.
        unsafe { give(event, EVENTS.add(Event { code, fence: None })) }
    }
    ExecutionGetOutputRank NeuronExecution_getOutputOperandRank(execution: *mut raw::Execution, index: i32, rank: *mut u32) |_configuration, line| {
        line.say("index", index);
        let dimensions = output_dimensions(execution, index)?;
        // SAFETY: guaranteed by the caller.
        unsafe { give(rank, dimensions.len() as u32) }
    }
    ExecutionGetOutputDimensions NeuronExecution_getOutputOperandDimensions(execution: *mut raw::Execution, index: i32, dimensions: *mut u32) |_configuration, line| {
        line.say("index", index);
        for (at, length) in output_dimensions(execution, index)?.into_iter().enumerate() {
            // SAFETY: the caller has room for as many values as the rank, unless it passed null,
            // and null is not written to.
            unsafe { give(if dimensions.is_null() { dimensions } else { dimensions.add(at) }, length) }?;
        }
        Ok(())
    }

    EventWait NeuronEvent_wait(event: *mut raw::Event) |_configuration, _line| {
        wait(&EVENTS.get(event)?.lock())
    }
    EventCreateFromFence NeuronEvent_createFromSyncFenceFd(fence: c_int, event: *mut *mut raw::Event) |_configuration, _line| {
        if event.is_null() {
            return refuse(UNEXPECTED_NULL, "the place for the event is null");
        }
        let fence = Some(duplicate(fence)?);
        // SAFETY: not null, and guaranteed by the caller to be valid.
        unsafe { give(event, EVENTS.add(Event { code: 0, fence })) }
    }
    EventGetFence NeuronEvent_getSyncFenceFd(event: *const raw::Event, fence: *mut c_int) |_configuration, _line| {
        use std::os::fd::{AsRawFd, IntoRawFd};
        let shared = EVENTS.get(event)?;
        let own = shared.lock().fence.as_ref().map(AsRawFd::as_raw_fd);
        match own {
            // SAFETY: guaranteed by the caller.
            Some(own) => unsafe { give(fence, duplicate(own)?.into_raw_fd()) },
            None => {
                // SAFETY: guaranteed by the caller.
                unsafe { give(fence, -1) }?;
                refuse(BAD_DATA, "the event has no fence")
            }
        }
    }

    MemoryCreateFromFd NeuronMemory_createFromFd(length: usize, protection: c_int, descriptor: c_int, offset: usize, memory: *mut *mut raw::Memory)
        |configuration, line| {
        line.say("bytes", length);
        line.say("protection", protection);
        line.say("offset", offset);
        if memory.is_null() {
            return refuse(UNEXPECTED_NULL, "the place for the memory is null");
        }
        let mapped = Memory::map(length, protection, descriptor, offset, configuration)?;
        // SAFETY: not null, and guaranteed by the caller to be valid.
        unsafe { give(memory, MEMORIES.add(mapped)) }
    }
    MemoryCreateFromAHardwareBuffer NeuronMemory_createFromAHardwareBuffer(_buffer: *const raw::AHardwareBuffer, _memory: *mut *mut raw::Memory)
        |_configuration, _line| {
        refuse(BAD_STATE, "Android's buffers exist only on Android")
    }
}

/// The handle of the only device, which differs from the handles of all other objects.
const DEVICE: usize = 64;

fn check_device(device: *const raw::Device) -> Result<(), Refused> {
    match device as usize {
        0 => refuse(UNEXPECTED_NULL, "the device is null"),
        DEVICE => Ok(()),
        _ => refuse(BAD_DATA, "there is no such device"),
    }
}

fn list(values: &[u32]) -> String {
    format!("[{}]", values.iter().map(u32::to_string).collect::<Vec<_>>().join(","))
}

fn create(
    model: *mut raw::Model,
    compilation: *mut *mut raw::Compilation,
    options: &str,
    configuration: &Configuration,
) -> Result<(), Refused> {
    let created = Compilation::new(&MODELS.get(model)?, options, configuration)?;
    if compilation.is_null() {
        return refuse(UNEXPECTED_NULL, "the place for the compilation is null");
    }
    // SAFETY: not null, and guaranteed by the caller to be valid.
    unsafe { give(compilation, COMPILATIONS.add(created)) }
}

fn without_type(kind: *const OperandType) -> Result<(), Refused> {
    if kind.is_null() { Ok(()) } else { refuse(BAD_DATA, "the type of an operand must be null here") }
}

fn end_of<T>(
    compilation: *mut raw::Compilation,
    input: bool,
    index: i32,
    found: impl FnOnce(&crate::arithmetic::tensor::Layout) -> T,
) -> Result<T, Refused> {
    let shared = COMPILATIONS.get(compilation)?;
    let compilation = shared.lock();
    let code = compilation.finished()?;
    match usize::try_from(index).ok().and_then(|index| code.end(input, index)) {
        Some(layout) => Ok(found(layout)),
        None => refuse(BAD_DATA, format!("index {index}")),
    }
}

fn give_dimensions(
    compilation: *mut raw::Compilation,
    input: bool,
    index: i32,
    out: *mut u32,
    configuration: &Configuration,
) -> Result<(), Refused> {
    let padded = end_of(compilation, input, index, |layout| {
        padded_dimensions(layout, configuration.padded_to as usize)
    })?;
    if padded.len() > PADDED_DIMENSIONS {
        return refuse(BAD_DATA, format!("rank {} has no padded dimensions", padded.len()));
    }
    for at in 0..PADDED_DIMENSIONS {
        // SAFETY: the caller has room for four values, unless it passed null, and null is not
        // written to.
        unsafe {
            give(
                if out.is_null() { out } else { out.add(at) },
                padded.get(at).map_or(1, |length| *length as u32),
            )
        }?;
    }
    Ok(())
}

fn give_size(
    compilation: *mut raw::Compilation,
    input: bool,
    index: i32,
    out: *mut usize,
    configuration: &Configuration,
) -> Result<(), Refused> {
    let size =
        end_of(compilation, input, index, |layout| padded_bytes(layout, configuration.padded_to as usize))?;
    // SAFETY: guaranteed by the caller.
    unsafe { give(out, size) }
}

fn output_dimensions(execution: *mut raw::Execution, index: i32) -> Result<Vec<u32>, Refused> {
    let shared = EXECUTIONS.get(execution)?;
    let execution = shared.lock();
    match usize::try_from(index).ok().and_then(|index| execution.code.end(false, index)) {
        Some(layout) => Ok(layout.dimensions.iter().map(|length| *length as u32).collect()),
        None => refuse(BAD_DATA, format!("index {index}")),
    }
}

fn duplicate(descriptor: c_int) -> Result<std::os::fd::OwnedFd, Refused> {
    use std::os::fd::FromRawFd;
    // SAFETY: duplicating an invalid descriptor fails without other effects.
    let copy = unsafe { libc::fcntl(descriptor, libc::F_DUPFD_CLOEXEC, 0) };
    if copy < 0 {
        return refuse(BAD_DATA, format!("descriptor {descriptor} is invalid"));
    }
    // SAFETY: the descriptor was created here and has no other owner.
    Ok(unsafe { std::os::fd::OwnedFd::from_raw_fd(copy) })
}

fn wait(event: &Event) -> Result<(), Refused> {
    use std::os::fd::AsRawFd;
    if let Some(fence) = &event.fence {
        let mut polled = libc::pollfd { fd: fence.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        // SAFETY: one entry with a live descriptor.
        unsafe { libc::poll(&raw mut polled, 1, -1) };
    }
    if event.code == 0 { Ok(()) } else { refuse(event.code, "the run behind the event failed") }
}

macro_rules! frees {
    ($($kind:ident $name:ident($handle:ident: $type:ty) $registry:ident)*) => {
        $(
            #[doc = concat!("`", stringify!($name), "` of the interface. Null is nothing; what others depend on stays.")]
            #[unsafe(no_mangle)]
            pub unsafe extern "C" fn $name($handle: $type) {
                call_void(stringify!($name), || $registry.free($handle));
            }
            const _: types::$kind = $name;
        )*
    };
}

frees! {
    ModelFree NeuronModel_free(model: *mut raw::Model) MODELS
    CompilationFree NeuronCompilation_free(compilation: *mut raw::Compilation) COMPILATIONS
    ExecutionFree NeuronExecution_free(execution: *mut raw::Execution) EXECUTIONS
    MemoryFree NeuronMemory_free(memory: *mut raw::Memory) MEMORIES
    EventFree NeuronEvent_free(event: *mut raw::Event) EVENTS
}

thread_local! {
    static DESCRIPTION: RefCell<CString> = RefCell::default();
}

/// Describes the library in JSON: `{"name", "version", "soc"}`. The presence of this function
/// identifies a simulator. The text stays valid until the next call of this function on the thread.
#[unsafe(no_mangle)]
pub extern "C" fn ShardwrightNeuronSimulator_describe() -> *const c_char {
    let text = match configuration::current() {
        Ok(found) => serde_json::json!({
            "name": "shardwright-simulator",
            "version": found.runtime_version().to_string(),
            "soc": found.target().soc,
        }),
        Err(problem) => serde_json::json!({ "name": "shardwright-simulator", "problem": problem }),
    };
    DESCRIPTION.with_borrow_mut(|description| {
        *description = CString::new(text.to_string()).unwrap_or_default();
        description.as_ptr()
    })
}

/// Emulates a processor and a version of the library from now on, unless a configuration file or
/// the client's variable names others. The call is ignored if `soc` is null or not UTF-8. If
/// `version` is null, the default version applies.
///
/// # Safety
/// `soc` is null or a C string. `version` is null or points to a version.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn ShardwrightNeuronSimulator_play(soc: *const c_char, version: *const RuntimeVersion) {
    if soc.is_null() {
        return;
    }
    // SAFETY: the caller guarantees null or a valid version.
    let version = unsafe { version.as_ref() }.copied();
    // SAFETY: not null, and guaranteed by the caller to be a C string.
    if let Ok(soc) = unsafe { CStr::from_ptr(soc) }.to_str() {
        configuration::play(soc, version);
    }
}

/// Returns the reason of the last refused call on this thread, which is empty before the first
/// refusal. The text stays valid until another call is refused on the thread.
#[unsafe(no_mangle)]
pub extern "C" fn ShardwrightNeuronSimulator_lastMessage() -> *const c_char {
    last_message()
}
