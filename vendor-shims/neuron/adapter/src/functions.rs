//! The functions: names, signatures, known users. Functions that no openly licensed client names
//! are left out, and so is the version that introduced each: no open source states it.
//!
//! All return a result code unless they return nothing. Pointers are read or written only inside
//! the call, unless noted otherwise.

use std::ffi::{CStr, c_char, c_int, c_void};

use crate::operand::{
    AHardwareBuffer, Compilation, Device, Event, Execution, Memory, Model, OperandType,
    PerChannelQuantParams, SymmPerChannelQuantParams,
};
use crate::version::RuntimeVersion;

/// One byte, 0 or 1. Declared as a number, because another library's bytes are not trusted to be
/// one of the two.
pub type Bool = u8;

/// One function of the library.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Function {
    /// The symbol.
    pub name: &'static str,
    /// Known users, a letter each: P bound by Google's compiler plugin, X called by it, E called by
    /// ExecuTorch's runtime, D by Google's dispatcher on phones, M described by the MIT delegate.
    /// Empty for one that E names and no client uses.
    pub known: &'static str,
}

impl Function {
    /// Whether a client not written by us is known to use it: a simulator must have these, and a
    /// shim may rely on them.
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

        /// Every function, in the order of [`Functions`]' fields.
        pub const FUNCTIONS: &[Function] = &[$(Function {
            name: $symbol,
            known: $known,
        }),*];

        /// A library's functions, as far as it has them.
        #[derive(Debug, Clone, Copy, Default)]
        pub struct Functions {
            $(#[doc = concat!("`", $symbol, "`, if the library has it.")] pub $field: Option<$kind>,)*
        }

        impl Functions {
            /// Binds the functions that `lookup` finds; it returns null for a missing one.
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
                        // SAFETY: null becomes `None`; anything else is such a function, as the
                        // caller promised.
                        unsafe { std::mem::transmute::<*mut c_void, Option<$kind>>(lookup(NAME)) }
                    },)*
                }
            }

            /// Which functions are bound, in the order of [`FUNCTIONS`].
            pub fn bound(&self) -> Vec<bool> {
                vec![$(self.$field.is_some()),*]
            }
        }
    };
}

functions! {
    /// The version of the library.
    get_version GetVersion = "Neuron_getVersion" "PXDM" (version: *mut RuntimeVersion) -> c_int;
    /// Kilobytes of the memory nearest to the multipliers.
    get_l1_memory_size_kb GetL1MemorySizeKb = "Neuron_getL1MemorySizeKb" "PXM" (kilobytes: *mut u32) -> c_int;
    /// The magic number of the firmware. (named in E)
    get_magic_number GetMagicNumber = "Neuron_getNeuroPilotMagicNumber" "" (number: *mut i32) -> c_int;
    /// Number of devices. No known client enumerates them.
    get_device_count GetDeviceCount = "Neuron_getDeviceCount" "M" (count: *mut u32) -> c_int;
    /// A device by index; the library's own.
    get_device GetDevice = "Neuron_getDevice" "M" (index: u32, device: *mut *mut Device) -> c_int;
    /// Its name, such as `mtk-mdla`; the library's own text.
    device_get_name DeviceGetName = "NeuronDevice_getName" "M" (device: *const Device, name: *mut *const c_char) -> c_int;
    /// Its description; the library's own text.
    device_get_description DeviceGetDescription = "NeuronDevice_getDescription" "M" (device: *const Device, description: *mut *const c_char) -> c_int;
    /// Whether an extension is known by name.
    device_get_extension_support DeviceGetExtensionSupport = "NeuronDevice_getExtensionSupport" "M" (extension: *const c_char, supported: *mut Bool) -> c_int;

    /// An empty model.
    model_create ModelCreate = "NeuronModel_create" "PXEDM" (model: *mut *mut Model) -> c_int;
    /// Frees a model, once its compilations are freed.
    model_free ModelFree = "NeuronModel_free" "PXEDM" (model: *mut Model);
    /// Closes a model: from here on it cannot be changed.
    model_finish ModelFinish = "NeuronModel_finish" "PXEDM" (model: *mut Model) -> c_int;
    /// A name for logs.
    model_set_name ModelSetName = "NeuronModel_setName" "PX" (model: *mut Model, name: *const c_char) -> c_int;
    /// Adds an operand; its index is the number of calls before.
    model_add_operand ModelAddOperand = "NeuronModel_addOperand" "PXEDM" (model: *mut Model, kind: *const OperandType) -> c_int;
    /// Makes an operand constant. Up to [`COPIED_AT_ONCE`](crate::setting::COPIED_AT_ONCE) bytes
    /// are copied; more are read until compilations are finished.
    model_set_operand_value ModelSetOperandValue = "NeuronModel_setOperandValue" "PXEDM" (model: *mut Model, index: i32, value: *const c_void, length: usize) -> c_int;
    /// Scales per channel.
    model_set_operand_symm_per_channel ModelSetOperandSymmPerChannel = "NeuronModel_setOperandSymmPerChannelQuantParams" "PXM" (model: *mut Model, index: i32, parameters: *const SymmPerChannelQuantParams) -> c_int;
    /// Scales and zero points per channel.
    model_set_operand_per_channel ModelSetOperandPerChannel = "NeuronModel_setOperandPerChannelQuantParams" "PX" (model: *mut Model, index: i32, parameters: *const PerChannelQuantParams) -> c_int;
    /// Bytes beside an extension's operand.
    model_set_operand_extension_data ModelSetOperandExtensionData = "NeuronModel_setOperandExtensionData" "M" (model: *mut Model, index: i32, data: *const c_void, length: usize) -> c_int;
    /// Adds an operation.
    model_add_operation ModelAddOperation = "NeuronModel_addOperation" "PXEDM" (model: *mut Model, operation: c_int, input_count: u32, inputs: *const u32, output_count: u32, outputs: *const u32) -> c_int;
    /// Sets which operands are inputs and outputs. Google's client calls it before it adds
    /// operations.
    model_identify ModelIdentify = "NeuronModel_identifyInputsAndOutputs" "PXEDM" (model: *mut Model, input_count: u32, inputs: *const u32, output_count: u32, outputs: *const u32) -> c_int;
    /// Lets f32 be computed in f16. Google's client calls it on a finished model.
    model_relax ModelRelax = "NeuronModel_relaxComputationFloat32toFloat16" "PXM" (model: *mut Model, allowed: Bool) -> c_int;
    /// A boolean an operation of a finished model: the older form.
    model_get_supported_operations ModelGetSupportedOperations = "NeuronModel_getSupportedOperations" "M" (model: *mut Model, supported: *mut Bool, count: u32) -> c_int;
    /// The operand type an extension's code has in this model.
    model_get_extension_operand_type ModelGetExtensionOperandType = "NeuronModel_getExtensionOperandType" "PXEDM" (model: *mut Model, extension: *const c_char, code: u16, kind: *mut i32) -> c_int;
    /// The operation an extension's code has in this model.
    model_get_extension_operation_type ModelGetExtensionOperationType = "NeuronModel_getExtensionOperationType" "PXEDM" (model: *mut Model, extension: *const c_char, code: u16, kind: *mut i32) -> c_int;
    /// Restores a model and a finished compilation from stored bytes.
    model_restore ModelRestore = "NeuronModel_restoreFromCompiledNetwork" "PD" (model: *mut *mut Model, compilation: *mut *mut Compilation, blob: *const c_void, length: usize) -> c_int;

    /// A compilation of a finished model.
    compilation_create CompilationCreate = "NeuronCompilation_create" "PDM" (model: *mut Model, compilation: *mut *mut Compilation) -> c_int;
    /// The same with options as text.
    compilation_create_with_options CompilationCreateWithOptions = "NeuronCompilation_createWithOptions" "PXE" (model: *mut Model, compilation: *mut *mut Compilation, options: *const c_char) -> c_int;
    /// For some of the devices.
    compilation_create_for_devices CompilationCreateForDevices = "NeuronCompilation_createForDevices" "M" (model: *mut Model, devices: *const *const Device, count: u32, compilation: *mut *mut Compilation) -> c_int;
    /// Frees a compilation, once its executions are freed.
    compilation_free CompilationFree = "NeuronCompilation_free" "PXEDM" (compilation: *mut Compilation);
    /// Compiles, once.
    compilation_finish CompilationFinish = "NeuronCompilation_finish" "PXEDM" (compilation: *mut Compilation) -> c_int;
    /// A boolean an operation, before `finish`.
    compilation_get_supported_operations CompilationGetSupportedOperations = "NeuronCompilation_getSupportedOperations" "PX" (compilation: *mut Compilation, count: u32, supported: *mut Bool) -> c_int;
    /// A folder for compiled code, and 32 bytes to find it again.
    compilation_set_caching CompilationSetCaching = "NeuronCompilation_setCaching" "M" (compilation: *mut Compilation, folder: *const c_char, token: *const u8) -> c_int;
    /// One of [`preference`](crate::setting::preference).
    compilation_set_preference CompilationSetPreference = "NeuronCompilation_setPreference" "PXEDM" (compilation: *mut Compilation, preference: i32) -> c_int;
    /// One of [`priority`](crate::setting::priority).
    compilation_set_priority CompilationSetPriority = "NeuronCompilation_setPriority" "PXEDM" (compilation: *mut Compilation, priority: c_int) -> c_int;
    /// How much of the nearest memory it may use.
    compilation_set_l1_memory_size_kb CompilationSetL1MemorySizeKb = "NeuronCompilation_setL1MemorySizeKb" "PXM" (compilation: *mut Compilation, kilobytes: u32) -> c_int;
    /// Bits of [`hint`](crate::setting::hint).
    compilation_set_optimization_hint CompilationSetOptimizationHint = "NeuronCompilation_setOptimizationHint" "PXM" (compilation: *mut Compilation, bits: u32) -> c_int;
    /// Options as text; whether they add to those of `createWithOptions` or replace them is not
    /// known.
    compilation_set_optimization_string CompilationSetOptimizationString = "NeuronCompilation_setOptimizationString" "PXDM" (compilation: *mut Compilation, options: *const c_char) -> c_int;
    /// The dimensions of an input in the hardware's layout: 4 entries are written whatever the
    /// rank.
    compilation_get_input_padded_dimensions CompilationGetInputPaddedDimensions = "NeuronCompilation_getInputPaddedDimensions" "PD" (compilation: *mut Compilation, index: i32, dimensions: *mut u32) -> c_int;
    /// The dimensions of an output in the hardware's layout: 4 entries are written whatever the
    /// rank.
    compilation_get_output_padded_dimensions CompilationGetOutputPaddedDimensions = "NeuronCompilation_getOutputPaddedDimensions" "PD" (compilation: *mut Compilation, index: i32, dimensions: *mut u32) -> c_int;
    /// Bytes of an input in the hardware's layout.
    compilation_get_input_padded_size CompilationGetInputPaddedSize = "NeuronCompilation_getInputPaddedSize" "PED" (compilation: *mut Compilation, index: i32, bytes: *mut usize) -> c_int;
    /// Bytes of an output in the hardware's layout.
    compilation_get_output_padded_size CompilationGetOutputPaddedSize = "NeuronCompilation_getOutputPaddedSize" "PED" (compilation: *mut Compilation, index: i32, bytes: *mut usize) -> c_int;
    /// Bytes `storeCompiledNetwork` needs.
    compilation_get_compiled_network_size CompilationGetCompiledNetworkSize = "NeuronCompilation_getCompiledNetworkSize" "PXM" (compilation: *mut Compilation, bytes: *mut usize) -> c_int;
    /// The code, after `finish` and before any execution.
    compilation_store_compiled_network CompilationStoreCompiledNetwork = "NeuronCompilation_storeCompiledNetwork" "PX" (compilation: *mut Compilation, blob: *mut c_void, length: usize) -> c_int;

    /// Buffers for a finished compilation.
    execution_create ExecutionCreate = "NeuronExecution_create" "PEDM" (compilation: *mut Compilation, execution: *mut *mut Execution) -> c_int;
    /// Frees an execution.
    execution_free ExecutionFree = "NeuronExecution_free" "PEDM" (execution: *mut Execution);
    /// Runs and waits.
    execution_compute ExecutionCompute = "NeuronExecution_compute" "PEDM" (execution: *mut Execution) -> c_int;
    /// An input from the caller's memory, which is read when it runs. The index is signed here.
    execution_set_input ExecutionSetInput = "NeuronExecution_setInput" "EM" (execution: *mut Execution, index: i32, kind: *const OperandType, buffer: *const c_void, length: usize) -> c_int;
    /// An output into the caller's memory. The index is signed here.
    execution_set_output ExecutionSetOutput = "NeuronExecution_setOutput" "EM" (execution: *mut Execution, index: i32, kind: *const OperandType, buffer: *mut c_void, length: usize) -> c_int;
    /// An input from shared memory. The index is **unsigned** here.
    execution_set_input_from_memory ExecutionSetInputFromMemory = "NeuronExecution_setInputFromMemory" "PEDM" (execution: *mut Execution, index: u32, kind: *const OperandType, memory: *const Memory, offset: usize, length: usize) -> c_int;
    /// An output into shared memory. The index is **unsigned** here.
    execution_set_output_from_memory ExecutionSetOutputFromMemory = "NeuronExecution_setOutputFromMemory" "PEDM" (execution: *mut Execution, index: u32, kind: *const OperandType, memory: *const Memory, offset: usize, length: usize) -> c_int;
    /// How hard to drive the hardware, 0 to 100.
    execution_set_boost_hint ExecutionSetBoostHint = "NeuronExecution_setBoostHint" "PDM" (execution: *mut Execution, boost: u8) -> c_int;
    /// The longest a loop may run, in nanoseconds.
    execution_set_loop_timeout ExecutionSetLoopTimeout = "NeuronExecution_setLoopTimeout" "M" (execution: *mut Execution, nanoseconds: u64) -> c_int;
    /// Starts a run after events; the duration is not used.
    execution_start_compute ExecutionStartCompute = "NeuronExecution_startComputeWithDependencies" "M" (execution: *mut Execution, events: *const *const Event, count: u32, duration: u64, event: *mut *mut Event) -> c_int;
    /// The rank of an output.
    execution_get_output_rank ExecutionGetOutputRank = "NeuronExecution_getOutputOperandRank" "M" (execution: *mut Execution, index: i32, rank: *mut u32) -> c_int;
    /// The dimensions of an output, as many as its rank.
    execution_get_output_dimensions ExecutionGetOutputDimensions = "NeuronExecution_getOutputOperandDimensions" "M" (execution: *mut Execution, index: i32, dimensions: *mut u32) -> c_int;

    /// Waits for the end of a run.
    event_wait EventWait = "NeuronEvent_wait" "M" (event: *mut Event) -> c_int;
    /// Frees an event.
    event_free EventFree = "NeuronEvent_free" "M" (event: *mut Event);
    /// An event from a fence, whose descriptor is duplicated. (A)
    event_create_from_fence EventCreateFromFence = "NeuronEvent_createFromSyncFenceFd" "M" (fence: c_int, event: *mut *mut Event) -> c_int;
    /// The fence of an event, for the caller to close; -1 and `BAD_DATA` if it has none. (A)
    event_get_fence EventGetFence = "NeuronEvent_getSyncFenceFd" "M" (event: *const Event, fence: *mut c_int) -> c_int;

    /// Memory from a descriptor; Google's dispatcher requests read and write access. Whether the
    /// library duplicates the descriptor is unknown: the caller keeps it open.
    memory_create_from_fd MemoryCreateFromFd = "NeuronMemory_createFromFd" "PDM" (length: usize, protection: c_int, descriptor: c_int, offset: usize, memory: *mut *mut Memory) -> c_int;
    /// Memory from one of Android's buffers.
    memory_create_from_a_hardware_buffer MemoryCreateFromAHardwareBuffer = "NeuronMemory_createFromAHardwareBuffer" "PEDM" (buffer: *const AHardwareBuffer, memory: *mut *mut Memory) -> c_int;
    /// Frees memory, once no execution uses it.
    memory_free MemoryFree = "NeuronMemory_free" "PEDM" (memory: *mut Memory);
}

/// Bound by Google's compiler plugin; only its name is known. Compiling works without it. (R)
pub const WITHOUT_SIGNATURE: &str = "NeuronExecution_setConfig";
