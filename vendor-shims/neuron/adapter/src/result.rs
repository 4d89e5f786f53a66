//! Result codes of every function that is not `void`.
//!
//! Those from 11 on are Android's (A), each one more than there (I): Android has no `BAD_VERSION`,
//! and has 6 and 7 the other way round.

/// The call succeeded. (M, R)
pub const NO_ERROR: i32 = 0;
/// (M)
pub const OUT_OF_MEMORY: i32 = 1;
/// (M)
pub const INCOMPLETE: i32 = 2;
/// A pointer that may not be null was. (M)
pub const UNEXPECTED_NULL: i32 = 3;
/// Arguments or bytes the library does not accept. Restoring returns it for another version's blob
/// and for a damaged one alike; `setOperand…QuantParams` for an operand type without channels. (M;
/// meanings reported)
pub const BAD_DATA: i32 = 4;
/// (M)
pub const OP_FAILED: i32 = 5;
/// The compiler found no way to run the graph. Reported where a graph has too many operations. (M;
/// meaning reported)
pub const UNMAPPABLE: i32 = 6;
/// The call came at the wrong time: a finished model changed, an unfinished compilation stored. (M)
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
/// The driver's process behind the library died. (I)
pub const DEAD_OBJECT: i32 = 15;

/// Codes and names as logs show them, in order of the code.
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

/// The name of a code; `None` for an undocumented one.
pub fn name(code: i32) -> Option<&'static str> {
    usize::try_from(code).ok().and_then(|at| NAMES.get(at)).copied()
}
