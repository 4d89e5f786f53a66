//! Numbers that are arguments of operations or settings of models, compilations and executions.

/// Activations an operation applies to its result (an `INT32` scalar operand). (M)
pub mod fuse {
    /// None.
    pub const NONE: i32 = 0;
    /// `max(x, 0)`.
    pub const RELU: i32 = 1;
    /// `clamp(x, -1, 1)`.
    pub const RELU1: i32 = 2;
    /// `clamp(x, 0, 6)`.
    pub const RELU6: i32 = 3;
}

/// Implicit padding of convolutions and pools. (A; `SAME` also R)
pub mod padding {
    /// The output is as large as the input over the stride, rounded up.
    pub const SAME: i32 = 1;
    /// Only where the whole window lies inside.
    pub const VALID: i32 = 2;
}

/// `NeuronCompilation_setPreference`. (M, R)
pub mod preference {
    /// As little power as possible.
    pub const LOW_POWER: i32 = 0;
    /// One answer as soon as possible.
    pub const FAST_SINGLE_ANSWER: i32 = 1;
    /// Many inferences in a row: the default of Google's clients.
    pub const SUSTAINED_SPEED: i32 = 2;
    /// As fast as possible at any cost.
    pub const TURBO_BOOST: i32 = 3;
}

/// `NeuronCompilation_setPriority`. (M, R)
pub mod priority {
    /// Below others.
    pub const LOW: i32 = 90;
    /// The default of a compilation.
    pub const MEDIUM: i32 = 100;
    /// Above others.
    pub const HIGH: i32 = 110;
}

/// Bits of `NeuronCompilation_setOptimizationHint`. (M, R)
pub mod hint {
    /// None.
    pub const NORMAL: u32 = 0;
    /// One input over all cores.
    pub const LOW_LATENCY: u32 = 1;
    /// Operations run through layers tile by tile.
    pub const DEEP_FUSION: u32 = 2;
    /// Several inputs, one on each core.
    pub const BATCH_PROCESSING: u32 = 4;
}

/// The largest boost of `NeuronExecution_setBoostHint`. (M)
pub const LARGEST_BOOST: u8 = 100;
/// Bytes of the token of `NeuronCompilation_setCaching`. (M)
pub const CACHE_TOKEN_BYTES: usize = 32;
/// Values of operands up to this length are copied inside `NeuronModel_setOperandValue`; longer
/// ones may be read until `NeuronCompilation_finish` returns, so they must stay and not change
/// until then. (R: Google's plugin reuses the memory of short values at once)
pub const COPIED_AT_ONCE: usize = 128;
/// Entries the getters of padded dimensions write, whatever the rank. (L)
pub const PADDED_DIMENSIONS: usize = 4;
/// Required alignment of addresses and offsets of memory that the hardware reads.
pub const MEMORY_ALIGNMENT: usize = 64;
/// Set by clients before compiling: the processor, in lower case. (R)
pub const PLATFORM_VARIABLE: &str = "MTKNN_ADAPTER_DLA_PLATFORM";
/// Set by clients: a folder for the compiler's intermediate files. Google's plugin removes it again
/// before it compiles. (R)
pub const FOLDER_VARIABLE: &str = "MTKNN_ADAPTER_DLA_DIR";
