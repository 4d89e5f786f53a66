//! Numbers that are arguments of operations or settings of models, compilations and executions.

/// Activations that an operation applies to its result (an `INT32` scalar operand). (M)
pub mod fuse {
    /// No activation.
    pub const NONE: i32 = 0;
    /// `max(x, 0)`.
    pub const RELU: i32 = 1;
    /// `clamp(x, -1, 1)`.
    pub const RELU1: i32 = 2;
    /// `clamp(x, 0, 6)`.
    pub const RELU6: i32 = 3;
}

/// Implicit padding of convolutions and pools. (A, `SAME` also R)
pub mod padding {
    /// The output size is the input size divided by the stride, rounded up.
    pub const SAME: i32 = 1;
    /// Only positions for which the whole window is inside the input.
    pub const VALID: i32 = 2;
}

/// Values of `NeuronCompilation_setPreference`. (M, R)
pub mod preference {
    /// Lowest power.
    pub const LOW_POWER: i32 = 0;
    /// A single result as soon as possible.
    pub const FAST_SINGLE_ANSWER: i32 = 1;
    /// Many inferences in a row. Default of Google's clients.
    pub const SUSTAINED_SPEED: i32 = 2;
    /// Highest speed at any cost.
    pub const TURBO_BOOST: i32 = 3;
}

/// Values of `NeuronCompilation_setPriority`. (M, R)
pub mod priority {
    /// Below other compilations.
    pub const LOW: i32 = 90;
    /// Default of a compilation.
    pub const MEDIUM: i32 = 100;
    /// Above other compilations.
    pub const HIGH: i32 = 110;
}

/// Bits of `NeuronCompilation_setOptimizationHint`. (M, R)
pub mod hint {
    /// No hint.
    pub const NORMAL: u32 = 0;
    /// One input is spread over all cores.
    pub const LOW_LATENCY: u32 = 1;
    /// Operations of several layers run tile by tile.
    pub const DEEP_FUSION: u32 = 2;
    /// Several inputs, one on each core.
    pub const BATCH_PROCESSING: u32 = 4;
}

/// Largest value of `NeuronExecution_setBoostHint`. (M)
pub const LARGEST_BOOST: u8 = 100;
/// Bytes of the token for `NeuronCompilation_setCaching`. (M)
pub const CACHE_TOKEN_BYTES: usize = 32;
/// Values of operands up to this length in bytes are copied in `NeuronModel_setOperandValue`.
/// Longer values may be read until `NeuronCompilation_finish` returns. Until then they must stay in
/// place and must not change. (R: Google's plugin reuses the memory of short values at once)
pub const COPIED_AT_ONCE: usize = 128;
/// Number of entries that the getters of padded dimensions write, regardless of the rank. (L)
pub const PADDED_DIMENSIONS: usize = 4;
/// Required alignment of addresses and offsets of memory that the hardware reads.
pub const MEMORY_ALIGNMENT: usize = 64;
/// Variable that clients set before compiling: the processor, in lower case. (R)
pub const PLATFORM_VARIABLE: &str = "MTKNN_ADAPTER_DLA_PLATFORM";
/// Variable that clients set: a folder for the compiler's intermediate files. Google's plugin
/// removes the variable before it compiles. (R)
pub const FOLDER_VARIABLE: &str = "MTKNN_ADAPTER_DLA_DIR";
