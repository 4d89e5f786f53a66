//! The Rust twin of `include/shim.h`, struct for struct and number for number.
//!
//! The header documents the owner, lifetime and null-ness of every member. This file only repeats
//! the names. A layout test compares the two through a C compiler.

#![allow(missing_docs, reason = "the header documents every member; the text should exist once")]

use std::ffi::{c_char, c_void};

use abi_stable::StableAbi;

pub const SW_VERSION_0_1: u32 = 0x00000001;
pub const SW_DRAFT: u32 = 0xeeb8_2b53;
pub const SW_DTYPE_F32: u32 = 1;
pub const SW_DTYPE_F16: u32 = 2;
pub const SW_DTYPE_BF16: u32 = 3;
pub const SW_DTYPE_I32: u32 = 4;
pub const SW_DTYPE_I16: u32 = 5;
pub const SW_DTYPE_U16: u32 = 6;
pub const SW_DTYPE_I8: u32 = 7;
pub const SW_DTYPE_U8: u32 = 8;
pub const SW_DTYPE_I64: u32 = 9;
pub const SW_DTYPE_I4: u32 = 10;
pub const SW_DTYPE_I2: u32 = 11;

macro_rules! operation_numbers {
    ($($case:ident $constant:ident $number:literal $name:literal [$($operand:literal),*]
        [$($attribute:ident: $kind:ident),*] $meaning:literal;)*) => {
        $(pub const $constant: u32 = $number;)*
    };
}
shardwright_vocabulary::operations!(operation_numbers);

pub const SW_ROLE_POSITIONS: u32 = 1;
pub const SW_ROLE_SLOTS: u32 = 2;
pub const SW_ROLE_ROTARY_COS: u32 = 3;
pub const SW_ROLE_ROTARY_SIN: u32 = 4;
pub const SW_ROLE_MASK: u32 = 5;
pub const SW_ROLE_POOLING: u32 = 6;
pub const SW_ROLE_GATHERED: u32 = 7;
pub const SW_ROLE_FEATURES: u32 = 8;
pub const SW_ROLE_GRID: u32 = 9;
pub const SW_ROLE_VALID: u32 = 10;
pub const SW_ROLE_AXIAL_COS: u32 = 11;
pub const SW_ROLE_AXIAL_SIN: u32 = 12;
pub const SW_ROLE_GATHERED_BY_GRID: u32 = 13;
pub const SW_ROLE_HIDDEN: u32 = 16;
pub const SW_ROLE_PER_LAYER: u32 = 17;
pub const SW_ROLE_LOGITS: u32 = 18;
pub const SW_ROLE_EMBEDDING: u32 = 19;
pub const SW_ROLE_TAP: u32 = 20;
pub const SW_ROLE_SOFT_ROWS: u32 = 21;
pub const SW_ROLE_STATE: u32 = 32;
pub const SW_ROLE_STATE_ROWS: u32 = 33;
pub const SW_ENTRY_PREFILL: u32 = 1;
pub const SW_ENTRY_DECODE: u32 = 2;
pub const SW_ENTRY_ENCODE: u32 = 3;
pub const SW_ATTRIBUTE_INTEGER: u32 = 1;
pub const SW_ATTRIBUTE_FLOAT: u32 = 2;
pub const SW_ATTRIBUTE_INTEGERS: u32 = 3;
pub const SW_ATTRIBUTE_TEXT: u32 = 4;
pub const SW_QUANTISATION_PER_TENSOR: u32 = 1;
pub const SW_QUANTISATION_PER_CHANNEL: u32 = 2;
pub const SW_QUANTISATION_PER_BLOCK: u32 = 3;
pub const SW_QUANTISATION_PER_BLOCK_WITH_MINIMUM: u32 = 4;
pub const SW_ERROR_UNSUPPORTED_OP: u32 = 1;
pub const SW_ERROR_UNMAPPABLE: u32 = 2;
pub const SW_ERROR_RESOURCE_LIMIT: u32 = 3;
pub const SW_ERROR_INCOMPATIBLE_ARTEFACT: u32 = 4;
pub const SW_ERROR_CORRUPT_ARTEFACT: u32 = 5;
pub const SW_ERROR_DEVICE_LOST: u32 = 6;
pub const SW_ERROR_DEADLINE: u32 = 7;
pub const SW_ERROR_STATE_LOST: u32 = 8;
pub const SW_ERROR_INVALID_ARGUMENT: u32 = 9;
pub const SW_ERROR_INTERNAL: u32 = 10;
pub const SW_ERROR_CANCELLED: u32 = 11;
pub const SW_VERDICT_TAKEN: u32 = 1;
pub const SW_VERDICT_REFUSED: u32 = 2;
pub const SW_DEVICE_PRESENT: u32 = 1;
pub const SW_DEVICE_OFFLINE: u32 = 2;
pub const SW_DEVICE_SIMULATED: u32 = 3;
pub const SW_PROVENANCE_DECLARED: u32 = 1;
pub const SW_PROVENANCE_REPORTED: u32 = 2;
pub const SW_PROVENANCE_PROBED: u32 = 3;
pub const SW_PROVENANCE_LEARNED: u32 = 4;
pub const SW_PROVENANCE_USER: u32 = 5;
pub const SW_PROVENANCE_MEASURED: u32 = 16;
pub const SW_PROVENANCE_SIMULATED: u32 = 17;
pub const SW_PROVENANCE_MODELLED: u32 = 18;
pub const SW_FLAG_BOOLEAN: u32 = 1;
pub const SW_FLAG_INTEGER: u32 = 2;
pub const SW_FLAG_FLOAT: u32 = 3;
pub const SW_FLAG_CHOICE: u32 = 4;
pub const SW_FLAG_TEXT: u32 = 5;
pub const SW_FLAG_STAGE_COMPILE: u32 = 0;
pub const SW_FLAG_STAGE_LOAD: u32 = 1;
pub const SW_FLAG_APPLIED: u32 = 1;
pub const SW_FLAG_RECORDED: u32 = 2;
pub const SW_FLAG_INERT: u32 = 3;
pub const SW_FLAG_REFUSED: u32 = 4;
pub const SW_FLAG_UNKNOWN: u32 = 5;
pub const SW_COMPATIBILITY_NOT_MINE: u32 = 1;
pub const SW_COMPATIBILITY_OPTIMAL: u32 = 2;
pub const SW_COMPATIBILITY_RECOMPILE: u32 = 3;
pub const SW_COMPATIBILITY_UNSUPPORTED: u32 = 4;
pub const SW_BINDING_INPUT: u32 = 1;
pub const SW_BINDING_OUTPUT: u32 = 2;
pub const SW_BINDING_STATE: u32 = 3;
pub const SW_BINDING_STATE_READ: u32 = 4;
pub const SW_UPDATE_NONE: u32 = 0;
pub const SW_UPDATE_IN_GRAPH: u32 = 1;
pub const SW_UPDATE_BY_RUNTIME: u32 = 2;
pub const SW_MEMORY_HOST: u32 = 1;
pub const SW_MEMORY_SHIM: u32 = 2;
pub const SW_MEMORY_DMA_BUF: u32 = 4;
pub const SW_MEMORY_HARDWARE_BUFFER: u32 = 8;
pub const SW_SYNC_BEFORE_HOST: u32 = 1;
pub const SW_SYNC_AFTER_HOST: u32 = 2;
pub const SW_LOG_ERROR: u32 = 1;
pub const SW_LOG_WARNING: u32 = 2;
pub const SW_LOG_INFO: u32 = 3;
pub const SW_LOG_DEBUG: u32 = 4;
pub const SW_NO_TENSOR: u32 = 0xffffffff;
pub const SW_HEAD_LIMIT: u32 = 65536;
pub const SW_DOCUMENT_LIMIT: u32 = 4194304;
pub const SW_MINIMUM_DETAIL: u32 = 24;
pub const SW_MINIMUM_ERROR: u32 = 32;
pub const SW_MINIMUM_HOST: u32 = 40;
pub const SW_MINIMUM_ANSWER: u32 = 40;
pub const SW_MINIMUM_OPTION: u32 = 24;
pub const SW_MINIMUM_DESCRIPTION: u32 = 32;
pub const SW_MINIMUM_DEVICE: u32 = 40;
pub const SW_MINIMUM_LIMIT: u32 = 32;
pub const SW_MINIMUM_FLAG: u32 = 72;
pub const SW_MINIMUM_VERDICT: u32 = 32;
pub const SW_MINIMUM_ESTIMATE: u32 = 48;
pub const SW_MINIMUM_FLAG_VERDICT: u32 = 32;
pub const SW_MINIMUM_PLACEMENT: u32 = 32;
pub const SW_MINIMUM_COMPATIBILITY: u32 = 24;
pub const SW_MINIMUM_INSPECTION: u32 = 24;
pub const SW_MINIMUM_LOADED_ENTRY: u32 = 48;
pub const SW_MINIMUM_BINDING: u32 = 104;
pub const SW_MINIMUM_FACT: u32 = 64;
pub const SW_MINIMUM_DESCRIPTION_SINK: u32 = 24;
pub const SW_MINIMUM_DEVICE_SINK: u32 = 24;
pub const SW_MINIMUM_LIMIT_SINK: u32 = 24;
pub const SW_MINIMUM_FLAG_SINK: u32 = 24;
pub const SW_MINIMUM_FLAG_VERDICT_SINK: u32 = 24;
pub const SW_MINIMUM_VERDICT_SINK: u32 = 24;
pub const SW_MINIMUM_ESTIMATE_SINK: u32 = 24;
pub const SW_MINIMUM_COMPATIBILITY_SINK: u32 = 24;
pub const SW_MINIMUM_INSPECTION_SINK: u32 = 24;
pub const SW_MINIMUM_LOADED_ENTRY_SINK: u32 = 24;
pub const SW_MINIMUM_BINDING_SINK: u32 = 24;
pub const SW_MINIMUM_FACT_SINK: u32 = 24;
pub const SW_MINIMUM_CHIP: u32 = 48;
pub const SW_MINIMUM_QUANTISATION: u32 = 64;
pub const SW_MINIMUM_WEIGHT: u32 = 64;
pub const SW_MINIMUM_TENSOR: u32 = 40;
pub const SW_MINIMUM_ATTRIBUTE: u32 = 64;
pub const SW_MINIMUM_NODE: u32 = 80;
pub const SW_MINIMUM_PORT: u32 = 56;
pub const SW_MINIMUM_CONSTANT: u32 = 24;
pub const SW_MINIMUM_ENTRY: u32 = 120;
pub const SW_MINIMUM_WORK_ORDER: u32 = 80;
pub const SW_MINIMUM_COMPILE_OUTPUT: u32 = 72;
pub const SW_MINIMUM_ARTEFACT: u32 = 56;
pub const SW_MINIMUM_IMPORT: u32 = 40;
pub const SW_MINIMUM_BOUND: u32 = 40;
pub const SW_MINIMUM_RUN: u32 = 56;
pub const SW_MINIMUM_TABLE: u32 = 144;
/// The contract version that this crate implements.
pub const SW_VERSION: u32 = SW_VERSION_0_1;

/// Name of the one exported symbol, NUL-terminated.
pub const SW_ENTRY_SYMBOL: &std::ffi::CStr = c"shardwright_shim_entry";

/// `sw_shim`: an open instance of a shim, opaque to the host.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwShim {
    _private: [u8; 0],
}

/// `sw_shard`: a loaded artefact, opaque to the host.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwShard {
    _private: [u8; 0],
}

/// `sw_buffer`: device-visible memory, opaque to the host.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwBuffer {
    _private: [u8; 0],
}

/// `sw_entry_function`: the type of the exported entry function.
pub type SwEntryFunction = unsafe extern "C" fn(host: *const SwHost, answer: *mut SwAnswer);

/// `sw_detail`: one key and value of an error.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwDetail {
    pub size: u64,
    pub key: *const c_char,
    pub value: *const c_char,
}

/// `sw_error`: an error object, made by the shim and freed with `error_free`.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwError {
    pub size: u64,
    pub error_class: u32,
    pub reserved: u32,
    pub vendor_code: i64,
    pub message: *const c_char,
    pub log_tail: *const c_char,
    pub details: *const *const SwDetail,
    pub detail_count: u64,
}

/// `sw_host`: the host's versions, name and log function.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwHost {
    pub size: u64,
    pub version_min: u32,
    pub version_max: u32,
    pub name: *const c_char,
    pub log: Option<unsafe extern "C" fn(context: *mut c_void, level: u32, message: *const c_char)>,
    pub log_context: *mut c_void,
}

/// `sw_answer`: the shim's answer to the entry call, a table or a refusal.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwAnswer {
    pub size: u64,
    pub version_min: u32,
    pub version_max: u32,
    pub version: u32,
    pub reserved: u32,
    pub table: *const SwTable,
    pub refusal: *const c_char,
}

/// `sw_option`: a key and value as text.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwOption {
    pub size: u64,
    pub key: *const c_char,
    pub value: *const c_char,
}

/// `sw_description`: name, vendor and version of a shim.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwDescription {
    pub size: u64,
    pub name: *const c_char,
    pub vendor: *const c_char,
    pub version: *const c_char,
    pub vendor_library: *const c_char,
    pub instance_limit: u64,
}

/// `sw_device`: a device that the shim reports.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwDevice {
    pub size: u64,
    pub name: *const c_char,
    pub soc: *const c_char,
    pub detail: *const c_char,
    pub kind: u32,
    pub memory_kinds: u32,
    pub memory_bytes: u64,
}

/// `sw_limit`: a numeric limit of a device and its provenance.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwLimit {
    pub size: u64,
    pub name: *const c_char,
    pub value: u64,
    pub provenance: u32,
    pub reserved: u32,
    pub note: *const c_char,
}

/// `sw_flag`: a compile-time or load-time flag and its legal values.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwFlag {
    pub size: u64,
    pub name: *const c_char,
    pub description: *const c_char,
    pub kind: u32,
    pub stage: u32,
    pub standard: *const c_char,
    pub choices: *const *const c_char,
    pub choice_count: u64,
    pub minimum: i64,
    pub maximum: i64,
}

/// `sw_verdict`: whether the shim supports a node.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwVerdict {
    pub size: u64,
    pub node: u64,
    pub verdict: u32,
    pub reserved: u32,
    pub reason: *const c_char,
}

/// `sw_estimate`: estimated cost of one run of an entry.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwEstimate {
    pub size: u64,
    pub time_microseconds: u64,
    pub provenance: u32,
    pub reserved: u32,
    pub bytes_moved: u64,
    pub uncosted: *const u64,
    pub uncosted_count: u64,
    pub operations: u64,
    pub artefact_bytes: u64,
    pub shared_bytes: u64,
}

/// `sw_flag_verdict`: outcome of a flag and the evidence for it.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwFlagVerdict {
    pub size: u64,
    pub name: *const c_char,
    pub verdict: u32,
    pub reserved: u32,
    pub evidence: *const c_char,
}

/// `sw_placement`: where a compiled node runs.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwPlacement {
    pub size: u64,
    pub entry: u64,
    pub node: u64,
    pub place: *const c_char,
    pub reason: *const c_char,
}

/// `sw_compatibility`: whether the shim can load an artefact.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwCompatibility {
    pub size: u64,
    pub answer: u32,
    pub reserved: u32,
    pub reason: *const c_char,
}

/// `sw_inspection`: format and JSON document of an identified file.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwInspection {
    pub size: u64,
    pub format: *const c_char,
    pub document: *const c_char,
}

/// `sw_loaded_entry`: an entry that a loaded shard can run.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwLoadedEntry {
    pub size: u64,
    pub index: u64,
    pub name: *const c_char,
    pub rows: u64,
    pub context: u64,
    pub binding_count: u64,
}

/// `sw_binding`: one tensor that a run binds.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwBinding {
    pub size: u64,
    pub index: u64,
    pub name: *const c_char,
    pub direction: u32,
    pub role: u32,
    pub dtype: u32,
    pub update: u32,
    pub shape: *const u64,
    pub strides: *const u64,
    pub rank: u64,
    pub bytes: u64,
    pub alignment: u64,
    pub memory_kinds: u32,
    pub reserved: u32,
    pub scale: f64,
    pub zero_point: i64,
}

/// `sw_fact`: a fact of a chip's profile that the shim reads.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwFact {
    pub size: u64,
    pub name: *const c_char,
    pub description: *const c_char,
    pub kind: u32,
    pub required: u32,
    pub choices: *const *const c_char,
    pub choice_count: u64,
    pub minimum: i64,
    pub maximum: i64,
}

/// `sw_description_sink`: callback that receives a description.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwDescriptionSink {
    pub size: u64,
    pub context: *mut c_void,
    pub item: Option<unsafe extern "C" fn(context: *mut c_void, description: *const SwDescription)>,
}

/// `sw_device_sink`: callback that receives devices.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwDeviceSink {
    pub size: u64,
    pub context: *mut c_void,
    pub item: Option<unsafe extern "C" fn(context: *mut c_void, device: *const SwDevice)>,
}

/// `sw_limit_sink`: callback that receives limits.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwLimitSink {
    pub size: u64,
    pub context: *mut c_void,
    pub item: Option<unsafe extern "C" fn(context: *mut c_void, limit: *const SwLimit)>,
}

/// `sw_flag_sink`: callback that receives flags.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwFlagSink {
    pub size: u64,
    pub context: *mut c_void,
    pub item: Option<unsafe extern "C" fn(context: *mut c_void, flag: *const SwFlag)>,
}

/// `sw_flag_verdict_sink`: callback that receives flag verdicts.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwFlagVerdictSink {
    pub size: u64,
    pub context: *mut c_void,
    pub item: Option<unsafe extern "C" fn(context: *mut c_void, verdict: *const SwFlagVerdict)>,
}

/// `sw_verdict_sink`: callback that receives verdicts on nodes.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwVerdictSink {
    pub size: u64,
    pub context: *mut c_void,
    pub item: Option<unsafe extern "C" fn(context: *mut c_void, verdict: *const SwVerdict)>,
}

/// `sw_estimate_sink`: callback that receives an estimate.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwEstimateSink {
    pub size: u64,
    pub context: *mut c_void,
    pub item: Option<unsafe extern "C" fn(context: *mut c_void, estimate: *const SwEstimate)>,
}

/// `sw_compatibility_sink`: callback that receives a compatibility answer.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwCompatibilitySink {
    pub size: u64,
    pub context: *mut c_void,
    pub item: Option<unsafe extern "C" fn(context: *mut c_void, compatibility: *const SwCompatibility)>,
}

/// `sw_inspection_sink`: callback that receives an inspection.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwInspectionSink {
    pub size: u64,
    pub context: *mut c_void,
    pub item: Option<unsafe extern "C" fn(context: *mut c_void, inspection: *const SwInspection)>,
}

/// `sw_loaded_entry_sink`: callback that receives loaded entries.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwLoadedEntrySink {
    pub size: u64,
    pub context: *mut c_void,
    pub item: Option<unsafe extern "C" fn(context: *mut c_void, entry: *const SwLoadedEntry)>,
}

/// `sw_binding_sink`: callback that receives bindings.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwBindingSink {
    pub size: u64,
    pub context: *mut c_void,
    pub item: Option<unsafe extern "C" fn(context: *mut c_void, binding: *const SwBinding)>,
}

/// `sw_fact_sink`: callback that receives facts.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwFactSink {
    pub size: u64,
    pub context: *mut c_void,
    pub item: Option<unsafe extern "C" fn(context: *mut c_void, fact: *const SwFact)>,
}

/// `sw_chip`: a chip as its profile describes it.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwChip {
    pub size: u64,
    pub name: *const c_char,
    pub aliases: *const *const c_char,
    pub alias_count: u64,
    pub facts: *const *const SwOption,
    pub fact_count: u64,
}

/// `sw_quantisation`: how stored integers encode real values.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwQuantisation {
    pub size: u64,
    pub kind: u32,
    pub axis: u32,
    pub block: u64,
    pub scale_dtype: u32,
    pub bits: u32,
    pub scales: *const c_void,
    pub scale_count: u64,
    pub zero_points: *const i32,
    pub zero_point_count: u64,
}

/// `sw_weight`: a constant tensor of a work order.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwWeight {
    pub size: u64,
    pub name: *const c_char,
    pub part: *const c_char,
    pub data: *const c_void,
    pub length: u64,
    pub dtype: u32,
    pub rank: u32,
    pub shape: *const u64,
    pub quantisation: *const SwQuantisation,
}

/// `sw_tensor`: a tensor of an entry.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwTensor {
    pub size: u64,
    pub name: *const c_char,
    pub dtype: u32,
    pub rank: u32,
    pub shape: *const u64,
    pub quantisation: *const SwQuantisation,
}

/// `sw_attribute`: a named attribute of a node.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwAttribute {
    pub size: u64,
    pub name: *const c_char,
    pub kind: u32,
    pub reserved: u32,
    pub integer: i64,
    pub number: f64,
    pub integers: *const i64,
    pub integer_count: u64,
    pub text: *const c_char,
}

/// `sw_node`: an operation of an entry.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwNode {
    pub size: u64,
    pub op: u32,
    pub op_version: u32,
    pub name: *const c_char,
    pub layer: i64,
    pub inputs: *const u32,
    pub input_count: u64,
    pub outputs: *const u32,
    pub output_count: u64,
    pub attributes: *const *const SwAttribute,
    pub attribute_count: u64,
}

/// `sw_port`: an input or output of an entry.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwPort {
    pub size: u64,
    pub tensor: u32,
    pub role: u32,
    pub name: *const c_char,
    pub index: u64,
    pub dtype: u32,
    pub reserved: u32,
    pub scale: f64,
    pub zero_point: i64,
}

/// `sw_constant`: a tensor of an entry whose values are a weight.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwConstant {
    pub size: u64,
    pub tensor: u32,
    pub reserved: u32,
    pub weight: *const SwWeight,
}

/// `sw_entry`: an entry point of a work order.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwEntry {
    pub size: u64,
    pub name: *const c_char,
    pub kind: u32,
    pub reserved: u32,
    pub rows: u64,
    pub context: u64,
    pub tensors: *const *const SwTensor,
    pub tensor_count: u64,
    pub nodes: *const *const SwNode,
    pub node_count: u64,
    pub inputs: *const *const SwPort,
    pub input_count: u64,
    pub outputs: *const *const SwPort,
    pub output_count: u64,
    pub constants: *const *const SwConstant,
    pub constant_count: u64,
}

/// `sw_work_order`: the entries, weights, flags and options of one compilation.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwWorkOrder {
    pub size: u64,
    pub name: *const c_char,
    pub entries: *const *const SwEntry,
    pub entry_count: u64,
    pub weights: *const *const SwWeight,
    pub weight_count: u64,
    pub flags: *const *const SwOption,
    pub flag_count: u64,
    pub options: *const *const SwOption,
    pub option_count: u64,
}

/// `sw_compile_output`: callbacks of a compilation.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwCompileOutput {
    pub size: u64,
    pub context: *mut c_void,
    pub write: Option<unsafe extern "C" fn(context: *mut c_void, bytes: *const c_void, length: u64) -> u32>,
    pub head: Option<unsafe extern "C" fn(context: *mut c_void, bytes: *const c_void, length: u64) -> u32>,
    pub progress: Option<unsafe extern "C" fn(context: *mut c_void, per_mille: u32, stage: *const c_char)>,
    pub cancelled: Option<unsafe extern "C" fn(context: *mut c_void) -> u32>,
    pub flag: Option<unsafe extern "C" fn(context: *mut c_void, verdict: *const SwFlagVerdict)>,
    pub placement: Option<unsafe extern "C" fn(context: *mut c_void, placement: *const SwPlacement)>,
    pub made_for: Option<unsafe extern "C" fn(context: *mut c_void, fact: *const SwOption)>,
}

/// `sw_artefact`: a mapped compiled artefact.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwArtefact {
    pub size: u64,
    pub head: *const c_void,
    pub head_length: u64,
    pub pointer: *const c_void,
    pub length: u64,
    pub fd: i32,
    pub reserved: u32,
    pub fd_offset: u64,
}

/// `sw_import`: foreign memory to import.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwImport {
    pub size: u64,
    pub kind: u32,
    pub fd: i32,
    pub fd_offset: u64,
    pub handle: *mut c_void,
    pub length: u64,
}

/// `sw_bound`: memory for one binding of a run.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwBound {
    pub size: u64,
    pub buffer: *mut SwBuffer,
    pub pointer: *mut c_void,
    pub offset: u64,
    pub length: u64,
}

/// `sw_run`: arguments of one run.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwRun {
    pub size: u64,
    pub entry: u64,
    pub rows: u64,
    pub bounds: *const *const SwBound,
    pub bound_count: u64,
    pub deadline_nanoseconds: u64,
    pub largest_logits: u64,
}

/// `sw_table`: the functions of a shim.
#[repr(C)]
#[derive(StableAbi)]
pub struct SwTable {
    pub size: u64,
    pub version: u32,
    pub draft: u32,
    pub error_free: Option<unsafe extern "C" fn(error: *mut SwError)>,
    pub describe: Option<unsafe extern "C" fn(sink: *const SwDescriptionSink) -> *mut SwError>,
    pub open: Option<
        unsafe extern "C" fn(
            host: *const SwHost,
            options: *const *const SwOption,
            option_count: u64,
            shim: *mut *mut SwShim,
        ) -> *mut SwError,
    >,
    pub close: Option<unsafe extern "C" fn(shim: *mut SwShim)>,
    pub devices: Option<
        unsafe extern "C" fn(
            shim: *mut SwShim,
            soc: *const c_char,
            sink: *const SwDeviceSink,
        ) -> *mut SwError,
    >,
    pub limits: Option<
        unsafe extern "C" fn(
            shim: *mut SwShim,
            device: *const c_char,
            sink: *const SwLimitSink,
        ) -> *mut SwError,
    >,
    pub flags: Option<
        unsafe extern "C" fn(
            shim: *mut SwShim,
            device: *const c_char,
            sink: *const SwFlagSink,
        ) -> *mut SwError,
    >,
    pub check: Option<
        unsafe extern "C" fn(
            shim: *mut SwShim,
            device: *const c_char,
            entry: *const SwEntry,
            sink: *const SwVerdictSink,
        ) -> *mut SwError,
    >,
    pub estimate: Option<
        unsafe extern "C" fn(
            shim: *mut SwShim,
            device: *const c_char,
            entry: *const SwEntry,
            sink: *const SwEstimateSink,
        ) -> *mut SwError,
    >,
    pub compile: Option<
        unsafe extern "C" fn(
            shim: *mut SwShim,
            device: *const c_char,
            order: *const SwWorkOrder,
            output: *const SwCompileOutput,
        ) -> *mut SwError,
    >,
    pub compatibility: Option<
        unsafe extern "C" fn(
            shim: *mut SwShim,
            device: *const c_char,
            head: *const c_void,
            head_length: u64,
            sink: *const SwCompatibilitySink,
        ) -> *mut SwError,
    >,
    pub load: Option<
        unsafe extern "C" fn(
            shim: *mut SwShim,
            device: *const c_char,
            artefact: *const SwArtefact,
            options: *const *const SwOption,
            option_count: u64,
            shard: *mut *mut SwShard,
        ) -> *mut SwError,
    >,
    pub unload: Option<unsafe extern "C" fn(shard: *mut SwShard)>,
    pub entries:
        Option<unsafe extern "C" fn(shard: *mut SwShard, sink: *const SwLoadedEntrySink) -> *mut SwError>,
    pub bindings: Option<
        unsafe extern "C" fn(shard: *mut SwShard, entry: u64, sink: *const SwBindingSink) -> *mut SwError,
    >,
    pub run: Option<unsafe extern "C" fn(shard: *mut SwShard, run: *const SwRun) -> *mut SwError>,
    pub cancel: Option<unsafe extern "C" fn(shard: *mut SwShard)>,
    pub buffer_allocate: Option<
        unsafe extern "C" fn(
            shim: *mut SwShim,
            device: *const c_char,
            length: u64,
            alignment: u64,
            buffer: *mut *mut SwBuffer,
        ) -> *mut SwError,
    >,
    pub buffer_import: Option<
        unsafe extern "C" fn(
            shim: *mut SwShim,
            device: *const c_char,
            import: *const SwImport,
            buffer: *mut *mut SwBuffer,
        ) -> *mut SwError,
    >,
    pub buffer_free: Option<unsafe extern "C" fn(shim: *mut SwShim, buffer: *mut SwBuffer)>,
    pub buffer_map: Option<
        unsafe extern "C" fn(
            shim: *mut SwShim,
            buffer: *mut SwBuffer,
            pointer: *mut *mut c_void,
        ) -> *mut SwError,
    >,
    pub buffer_sync: Option<
        unsafe extern "C" fn(
            shim: *mut SwShim,
            buffer: *mut SwBuffer,
            offset: u64,
            length: u64,
            direction: u32,
        ) -> *mut SwError,
    >,
    pub recover: Option<unsafe extern "C" fn(shim: *mut SwShim, device: *const c_char) -> *mut SwError>,
    pub inspect: Option<
        unsafe extern "C" fn(
            shim: *mut SwShim,
            bytes: *const c_void,
            length: u64,
            sink: *const SwInspectionSink,
        ) -> *mut SwError,
    >,
    pub facts: Option<unsafe extern "C" fn(sink: *const SwFactSink) -> *mut SwError>,
    pub chip: Option<unsafe extern "C" fn(shim: *mut SwShim, chip: *const SwChip) -> *mut SwError>,
    pub flag_verdicts:
        Option<unsafe extern "C" fn(shard: *mut SwShard, sink: *const SwFlagVerdictSink) -> *mut SwError>,
}
