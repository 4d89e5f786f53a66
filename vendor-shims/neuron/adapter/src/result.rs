//! Result codes of every function that is not `void`.
//!
//! Codes from 11 are Android's codes (A) plus one (I), because Android has no `BAD_VERSION`.
//! Android also has 6 and 7 in the opposite order.

/// The call succeeded. (M, R)
pub const NO_ERROR: i32 = 0;
/// (M)
pub const OUT_OF_MEMORY: i32 = 1;
/// (M)
pub const INCOMPLETE: i32 = 2;
/// A required pointer was null. (M)
pub const UNEXPECTED_NULL: i32 = 3;
/// The library does not accept the arguments or bytes. Restoring returns it both for another
/// version's blob and for a damaged blob. `setOperand…QuantParams` returns it for an operand type
/// without channels. (M, meanings reported)
pub const BAD_DATA: i32 = 4;
/// (M)
pub const OP_FAILED: i32 = 5;
/// The compiler found no way to run the graph. Reported for graphs with too many operations. (M,
/// meaning reported)
pub const UNMAPPABLE: i32 = 6;
/// The call came at the wrong time, for example to change a finished model or to store an
/// unfinished compilation. (M)
pub const BAD_STATE: i32 = 7;
/// (M)
pub const BAD_VERSION: i32 = 8;
/// (M)
pub const OUTPUT_INSUFFICIENT_SIZE: i32 = 9;
/// (M)
pub const UNAVAILABLE_DEVICE: i32 = 10;
/// (I)
pub const MISSED_DEADLINE_TRANSIENT: i32 = 11;
/// (I)
pub const MISSED_DEADLINE_PERSISTENT: i32 = 12;
/// (I)
pub const RESOURCE_EXHAUSTED_TRANSIENT: i32 = 13;
/// (I)
pub const RESOURCE_EXHAUSTED_PERSISTENT: i32 = 14;
/// The process of the driver behind the library died. (I)
pub const DEAD_OBJECT: i32 = 15;

/// Names of the codes as they appear in logs, in order of the code.
pub const NAMES: [&str; 16] = [
    "NEURON_NO_ERROR",
    "NEURON_OUT_OF_MEMORY",
    "NEURON_INCOMPLETE",
    "NEURON_UNEXPECTED_NULL",
    "NEURON_BAD_DATA",
    "NEURON_OP_FAILED",
    "NEURON_UNMAPPABLE",
    "NEURON_BAD_STATE",
    "NEURON_BAD_VERSION",
    "NEURON_OUTPUT_INSUFFICIENT_SIZE",
    "NEURON_UNAVAILABLE_DEVICE",
    "NEURON_MISSED_DEADLINE_TRANSIENT",
    "NEURON_MISSED_DEADLINE_PERSISTENT",
    "NEURON_RESOURCE_EXHAUSTED_TRANSIENT",
    "NEURON_RESOURCE_EXHAUSTED_PERSISTENT",
    "NEURON_DEAD_OBJECT",
];

/// Returns the name of a code, or `None` for an undocumented code.
pub fn name(code: i32) -> Option<&'static str> {
    usize::try_from(code).ok().and_then(|at| NAMES.get(at)).copied()
}
