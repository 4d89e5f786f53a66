//! The functions with their names, signatures and known users. Functions that no openly licensed
//! client names are left out. The version that introduced each function is also left out, because
//! no open source states it.
//!
//! All functions return a result code, or no value. They read or write pointers only during the
//! call, unless noted otherwise.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::operand::{
    AHardwareBuffer, Compilation, Device, Event, Execution, Memory, Model, OperandType,
    PerChannelQuantParams, SymmPerChannelQuantParams,
};
use crate::version::RuntimeVersion;

/// One byte, 0 or 1. Declared as a number, because another library may pass other values.
pub type Bool = u8;

/// One function of the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Function {
    /// Name of the symbol.
    pub name: &'static str,
    /// Known users, one letter each. P: bound by Google's compiler plugin. X: called by it. E:
    /// called by ExecuTorch's runtime. D: called by Google's dispatcher on phones. M: described by
    /// the MIT delegate. Empty for a function that E names but no client uses.
    pub known: &'static str,
}

impl Function {
    /// Returns whether a third-party client is known to use the function. A simulator must
    /// implement such functions, and a shim may rely on them.
    pub fn is_used(&self) -> bool {
        !self.known.is_empty()
    }
}

macro_rules! functions {
    ($($(#[$doc:meta])* $field:ident $kind:ident = $symbol:literal $known:literal
        ($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)?;)*) => {
        $(
            $(#[$doc])*
            #[doc = concat!("\n\n`", $symbol, "(", $(stringify!($argument), ", ",)* ")`")]
            pub type $kind = unsafe extern "C" fn($($argument: $type),*) $(-> $result)?;
        )*

        /// Every function, in the order of the fields of [`Functions`].
        pub const FUNCTIONS: &[Function] = &[$(Function {
            name: $symbol,
            known: $known,
        }),*];

        /// The functions of a library, as far as it has them.
        #[derive(Debug, Clone, Copy, Default)]
        pub struct Functions {
            $(#[doc = concat!("`", $symbol, "`, if the library has it.")] pub $field: Option<$kind>,)*
        }

        impl Functions {
            /// Binds the functions that `lookup` finds. `lookup` returns null for a missing
            /// function.
            ///
            /// # Safety
            /// `lookup` returns null or a function of that name with the signature declared here,
            /// in a library that stays loaded.
            pub unsafe fn bind(mut lookup: impl FnMut(&'static CStr) -> *mut c_void) -> Functions {
                Functions {
                    $($field: {
                        const NAME: &CStr = match CStr::from_bytes_with_nul(concat!($symbol, "\0").as_bytes()) {
                            Ok(name) => name,
                            Err(_) => panic!("a name without zero bytes"),
                        };
                        // SAFETY: null becomes `None`. Any other pointer is such a function, as the
                        // caller guaranteed.
                        unsafe { std::mem::transmute::<*mut c_void, Option<$kind>>(lookup(NAME)) }
                    },)*
                }
            }

            /// Returns which functions are bound, in the order of [`FUNCTIONS`].
            pub fn bound(&self) -> Vec<bool> {
                vec![$(self.$field.is_some()),*]
            }
        }
    };
}

functions! {
    /// Reports the version of the library.
    get_version GetVersion = "Neuron_getVersion" "PXDM" (version: *mut RuntimeVersion) -> c_int;
    /// Reports the kilobytes of the memory closest to the multipliers.
    get_l1_memory_size_kb GetL1MemorySizeKb = "Neuron_getL1MemorySizeKb" "PXM" (kilobytes: *mut u32) -> c_int;
    /// Reports the magic number of the firmware. (named in E)
    get_magic_number GetMagicNumber = "Neuron_getNeuroPilotMagicNumber" "" (number: *mut i32) -> c_int;
    /// Reports the number of devices. No known client enumerates them.
    get_device_count GetDeviceCount = "Neuron_getDeviceCount" "M" (count: *mut u32) -> c_int;
    /// Returns a device by index. The library owns it.
    get_device GetDevice = "Neuron_getDevice" "M" (index: u32, device: *mut *mut Device) -> c_int;
    /// Returns the name of a device, such as `mtk-mdla`. The library owns the text.
    device_get_name DeviceGetName = "NeuronDevice_getName" "M" (device: *const Device, name: *mut *const c_char) -> c_int;
    /// Returns the description of a device. The library owns the text.
    device_get_description DeviceGetDescription = "NeuronDevice_getDescription" "M" (device: *const Device, description: *mut *const c_char) -> c_int;
    /// Reports whether the library knows an extension by name.
    device_get_extension_support DeviceGetExtensionSupport = "NeuronDevice_getExtensionSupport" "M" (extension: *const c_char, supported: *mut Bool) -> c_int;

    /// Creates an empty model.
    model_create ModelCreate = "NeuronModel_create" "PXEDM" (model: *mut *mut Model) -> c_int;
    /// Frees a model after its compilations were freed.
    model_free ModelFree = "NeuronModel_free" "PXEDM" (model: *mut Model);
    /// Finishes a model, which cannot be changed afterwards.
    model_finish ModelFinish = "NeuronModel_finish" "PXEDM" (model: *mut Model) -> c_int;
    /// Sets a name for logs.
    model_set_name ModelSetName = "NeuronModel_setName" "PX" (model: *mut Model, name: *const c_char) -> c_int;
    /// Adds an operand. Its index is the number of earlier calls.
    model_add_operand ModelAddOperand = "NeuronModel_addOperand" "PXEDM" (model: *mut Model, kind: *const OperandType) -> c_int;
    /// Makes an operand constant. Up to [`COPIED_AT_ONCE`](crate::setting::COPIED_AT_ONCE) bytes
    /// are copied. Longer values are read until compilations are finished.
    model_set_operand_value ModelSetOperandValue = "NeuronModel_setOperandValue" "PXEDM" (model: *mut Model, index: i32, value: *const c_void, length: usize) -> c_int;
    /// Sets scales per channel.
    model_set_operand_symm_per_channel ModelSetOperandSymmPerChannel = "NeuronModel_setOperandSymmPerChannelQuantParams" "PXM" (model: *mut Model, index: i32, parameters: *const SymmPerChannelQuantParams) -> c_int;
    /// Sets scales and zero points per channel.
    model_set_operand_per_channel ModelSetOperandPerChannel = "NeuronModel_setOperandPerChannelQuantParams" "PX" (model: *mut Model, index: i32, parameters: *const PerChannelQuantParams) -> c_int;
    /// Sets bytes in addition to an extension's operand.
    model_set_operand_extension_data ModelSetOperandExtensionData = "NeuronModel_setOperandExtensionData" "M" (model: *mut Model, index: i32, data: *const c_void, length: usize) -> c_int;
    /// Adds an operation.
    model_add_operation ModelAddOperation = "NeuronModel_addOperation" "PXEDM" (model: *mut Model, operation: c_int, input_count: u32, inputs: *const u32, output_count: u32, outputs: *const u32) -> c_int;
    /// Sets which operands are inputs and outputs. Google's client calls it before it adds
    /// operations.
    model_identify ModelIdentify = "NeuronModel_identifyInputsAndOutputs" "PXEDM" (model: *mut Model, input_count: u32, inputs: *const u32, output_count: u32, outputs: *const u32) -> c_int;
    /// Allows computing f32 in f16. Google's client calls it on a finished model.
    model_relax ModelRelax = "NeuronModel_relaxComputationFloat32toFloat16" "PXM" (model: *mut Model, allowed: Bool) -> c_int;
    /// Writes one boolean per operation of a finished model: the older form of this query.
    model_get_supported_operations ModelGetSupportedOperations = "NeuronModel_getSupportedOperations" "M" (model: *mut Model, supported: *mut Bool, count: u32) -> c_int;
    /// Returns the operand type for an extension's code in this model.
    model_get_extension_operand_type ModelGetExtensionOperandType = "NeuronModel_getExtensionOperandType" "PXEDM" (model: *mut Model, extension: *const c_char, code: u16, kind: *mut i32) -> c_int;
    /// Returns the operation for an extension's code in this model.
    model_get_extension_operation_type ModelGetExtensionOperationType = "NeuronModel_getExtensionOperationType" "PXEDM" (model: *mut Model, extension: *const c_char, code: u16, kind: *mut i32) -> c_int;
    /// Restores a model and a finished compilation from stored bytes.
    model_restore ModelRestore = "NeuronModel_restoreFromCompiledNetwork" "PD" (model: *mut *mut Model, compilation: *mut *mut Compilation, blob: *const c_void, length: usize) -> c_int;

    /// Creates a compilation of a finished model.
    compilation_create CompilationCreate = "NeuronCompilation_create" "PDM" (model: *mut Model, compilation: *mut *mut Compilation) -> c_int;
    /// Creates a compilation of a finished model with options as text.
    compilation_create_with_options CompilationCreateWithOptions = "NeuronCompilation_createWithOptions" "PXE" (model: *mut Model, compilation: *mut *mut Compilation, options: *const c_char) -> c_int;
    /// Creates a compilation of a finished model for some of the devices.
    compilation_create_for_devices CompilationCreateForDevices = "NeuronCompilation_createForDevices" "M" (model: *mut Model, devices: *const *const Device, count: u32, compilation: *mut *mut Compilation) -> c_int;
    /// Frees a compilation after its executions were freed.
    compilation_free CompilationFree = "NeuronCompilation_free" "PXEDM" (compilation: *mut Compilation);
    /// Compiles. May be called once per compilation.
    compilation_finish CompilationFinish = "NeuronCompilation_finish" "PXEDM" (compilation: *mut Compilation) -> c_int;
    /// Writes one boolean per operation, before `finish`.
    compilation_get_supported_operations CompilationGetSupportedOperations = "NeuronCompilation_getSupportedOperations" "PX" (compilation: *mut Compilation, count: u32, supported: *mut Bool) -> c_int;
    /// Sets a folder for compiled code, and 32 bytes to find the code again.
    compilation_set_caching CompilationSetCaching = "NeuronCompilation_setCaching" "M" (compilation: *mut Compilation, folder: *const c_char, token: *const u8) -> c_int;
    /// Sets one of [`preference`](crate::setting::preference).
    compilation_set_preference CompilationSetPreference = "NeuronCompilation_setPreference" "PXEDM" (compilation: *mut Compilation, preference: i32) -> c_int;
    /// Sets one of [`priority`](crate::setting::priority).
    compilation_set_priority CompilationSetPriority = "NeuronCompilation_setPriority" "PXEDM" (compilation: *mut Compilation, priority: c_int) -> c_int;
    /// Sets how much of the memory closest to the multipliers the compilation may use.
    compilation_set_l1_memory_size_kb CompilationSetL1MemorySizeKb = "NeuronCompilation_setL1MemorySizeKb" "PXM" (compilation: *mut Compilation, kilobytes: u32) -> c_int;
    /// Sets bits of [`hint`](crate::setting::hint).
    compilation_set_optimization_hint CompilationSetOptimizationHint = "NeuronCompilation_setOptimizationHint" "PXM" (compilation: *mut Compilation, bits: u32) -> c_int;
    /// Sets options as text. It is unknown whether they add to the options of `createWithOptions`
    /// or replace them.
    compilation_set_optimization_string CompilationSetOptimizationString = "NeuronCompilation_setOptimizationString" "PXDM" (compilation: *mut Compilation, options: *const c_char) -> c_int;
    /// Writes the dimensions of an input in the hardware's layout. Always writes 4 entries,
    /// regardless of the rank.
    compilation_get_input_padded_dimensions CompilationGetInputPaddedDimensions = "NeuronCompilation_getInputPaddedDimensions" "PD" (compilation: *mut Compilation, index: i32, dimensions: *mut u32) -> c_int;
    /// Writes the dimensions of an output in the hardware's layout. Always writes 4 entries,
    /// regardless of the rank.
    compilation_get_output_padded_dimensions CompilationGetOutputPaddedDimensions = "NeuronCompilation_getOutputPaddedDimensions" "PD" (compilation: *mut Compilation, index: i32, dimensions: *mut u32) -> c_int;
    /// Reports the bytes of an input in the hardware's layout.
    compilation_get_input_padded_size CompilationGetInputPaddedSize = "NeuronCompilation_getInputPaddedSize" "PED" (compilation: *mut Compilation, index: i32, bytes: *mut usize) -> c_int;
    /// Reports the bytes of an output in the hardware's layout.
    compilation_get_output_padded_size CompilationGetOutputPaddedSize = "NeuronCompilation_getOutputPaddedSize" "PED" (compilation: *mut Compilation, index: i32, bytes: *mut usize) -> c_int;
    /// Reports the bytes that `storeCompiledNetwork` needs.
    compilation_get_compiled_network_size CompilationGetCompiledNetworkSize = "NeuronCompilation_getCompiledNetworkSize" "PXM" (compilation: *mut Compilation, bytes: *mut usize) -> c_int;
    /// Writes the compiled code, after `finish` and before any execution.
    compilation_store_compiled_network CompilationStoreCompiledNetwork = "NeuronCompilation_storeCompiledNetwork" "PX" (compilation: *mut Compilation, blob: *mut c_void, length: usize) -> c_int;

    /// Creates the buffers for a finished compilation.
    execution_create ExecutionCreate = "NeuronExecution_create" "PEDM" (compilation: *mut Compilation, execution: *mut *mut Execution) -> c_int;
    /// Frees an execution.
    execution_free ExecutionFree = "NeuronExecution_free" "PEDM" (execution: *mut Execution);
    /// Runs and waits for the end.
    execution_compute ExecutionCompute = "NeuronExecution_compute" "PEDM" (execution: *mut Execution) -> c_int;
    /// Binds an input to the caller's memory, which is read during the run. The index is signed
    /// here.
    execution_set_input ExecutionSetInput = "NeuronExecution_setInput" "EM" (execution: *mut Execution, index: i32, kind: *const OperandType, buffer: *const c_void, length: usize) -> c_int;
    /// Binds an output to the caller's memory. The index is signed here.
    execution_set_output ExecutionSetOutput = "NeuronExecution_setOutput" "EM" (execution: *mut Execution, index: i32, kind: *const OperandType, buffer: *mut c_void, length: usize) -> c_int;
    /// Binds an input to shared memory. The index is **unsigned** here.
    execution_set_input_from_memory ExecutionSetInputFromMemory = "NeuronExecution_setInputFromMemory" "PEDM" (execution: *mut Execution, index: u32, kind: *const OperandType, memory: *const Memory, offset: usize, length: usize) -> c_int;
    /// Binds an output to shared memory. The index is **unsigned** here.
    execution_set_output_from_memory ExecutionSetOutputFromMemory = "NeuronExecution_setOutputFromMemory" "PEDM" (execution: *mut Execution, index: u32, kind: *const OperandType, memory: *const Memory, offset: usize, length: usize) -> c_int;
    /// Sets the performance level of the hardware, 0 to 100.
    execution_set_boost_hint ExecutionSetBoostHint = "NeuronExecution_setBoostHint" "PDM" (execution: *mut Execution, boost: u8) -> c_int;
    /// Sets the longest time that a loop may run, in nanoseconds.
    execution_set_loop_timeout ExecutionSetLoopTimeout = "NeuronExecution_setLoopTimeout" "M" (execution: *mut Execution, nanoseconds: u64) -> c_int;
    /// Starts a run after the given events. The duration is not used.
    execution_start_compute ExecutionStartCompute = "NeuronExecution_startComputeWithDependencies" "M" (execution: *mut Execution, events: *const *const Event, count: u32, duration: u64, event: *mut *mut Event) -> c_int;
    /// Reports the rank of an output.
    execution_get_output_rank ExecutionGetOutputRank = "NeuronExecution_getOutputOperandRank" "M" (execution: *mut Execution, index: i32, rank: *mut u32) -> c_int;
    /// Reports the dimensions of an output, as many as its rank.
    execution_get_output_dimensions ExecutionGetOutputDimensions = "NeuronExecution_getOutputOperandDimensions" "M" (execution: *mut Execution, index: i32, dimensions: *mut u32) -> c_int;

    /// Waits for the end of a run.
    event_wait EventWait = "NeuronEvent_wait" "M" (event: *mut Event) -> c_int;
    /// Frees an event.
    event_free EventFree = "NeuronEvent_free" "M" (event: *mut Event);
    /// Creates an event from a fence, whose descriptor is duplicated. (A)
    event_create_from_fence EventCreateFromFence = "NeuronEvent_createFromSyncFenceFd" "M" (fence: c_int, event: *mut *mut Event) -> c_int;
    /// Returns the fence of an event, which the caller closes. Returns -1 and `BAD_DATA` if the
    /// event has no fence. (A)
    event_get_fence EventGetFence = "NeuronEvent_getSyncFenceFd" "M" (event: *const Event, fence: *mut c_int) -> c_int;

    /// Creates memory from a descriptor. Google's dispatcher requests read and write access. It is
    /// unknown whether the library duplicates the descriptor, so the caller keeps it open.
    memory_create_from_fd MemoryCreateFromFd = "NeuronMemory_createFromFd" "PDM" (length: usize, protection: c_int, descriptor: c_int, offset: usize, memory: *mut *mut Memory) -> c_int;
    /// Creates memory from an `AHardwareBuffer`.
    memory_create_from_a_hardware_buffer MemoryCreateFromAHardwareBuffer = "NeuronMemory_createFromAHardwareBuffer" "PEDM" (buffer: *const AHardwareBuffer, memory: *mut *mut Memory) -> c_int;
    /// Frees memory after all executions that use it.
    memory_free MemoryFree = "NeuronMemory_free" "PEDM" (memory: *mut Memory);
}

/// A symbol that Google's compiler plugin binds. Only its name is known. Compiling works without
/// it. (R)
pub const WITHOUT_SIGNATURE: &str = "NeuronExecution_setConfig";
