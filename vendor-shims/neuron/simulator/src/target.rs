//! Support by a library version on a processor: operand types and where they may be used, as tables
//! that name the source of each rule.

use shardwright_neuron_adapter::operand as kind;
use shardwright_neuron_adapter::{RuntimeVersion, operation as op, version};

use crate::arithmetic::tensor::Layout;
use crate::network::Operation;
use crate::step::Refusal;

/// The operand type that this library assigns to the string operand of the general extension.
pub const GENERAL_OPERAND: i32 = 0x0001_0100;
/// The operation that this library assigns to the general extension.
pub const GENERAL_OPERATION: i32 = 0x0001_0000;
/// Upper 16 bits of operand types of the extension for compiled networks. The lower bits are the
/// extension's own code.
pub const COMPILED_NETWORK_OPERAND: i32 = 0x0002_0000;
/// The operation that this library assigns to the extension for compiled networks.
pub const COMPILED_NETWORK_OPERATION: i32 = 0x0002_0000;

/// The emulated version and processor, with the configured limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Target {
    /// Emulated version.
    pub version: RuntimeVersion,
    /// Emulated processor, in lower case.
    pub soc: String,
    /// Maximum rank of a tensor.
    pub rank: usize,
    /// Refused operations, in addition to the tables of this module.
    pub denied_operations: Vec<i32>,
    /// Refused operand types, in addition to the tables of this module.
    pub denied_types: Vec<i32>,
}

/// Types that need [`version::FOUR_BITS_PER_CHANNEL`]. Google's client sends other types to older
/// versions.
const SINCE_FOUR_BITS: [i32; 3] = [
    kind::EXT_TENSOR_QUANT4_SYMM_PER_CHANNEL,
    kind::TENSOR_QUANT4_ASYMM_SIGNED_PER_CHANNEL,
    kind::EXT_TENSOR_INT32_SYMM_PER_CHANNEL,
];

/// Types of 4-bit weights with per-channel scales.
const FOUR_BITS_PER_CHANNEL: [i32; 2] =
    [kind::EXT_TENSOR_QUANT4_SYMM_PER_CHANNEL, kind::TENSOR_QUANT4_ASYMM_SIGNED_PER_CHANNEL];

/// Processors whose compiler was reported to refuse 4-bit per-channel weights of any size, in any
/// version.
const WITHOUT_FOUR_BITS_PER_CHANNEL: [&str; 1] = ["mt6989"];

/// Operations whose weight and bias may have per-channel scales, according to MediaTek's public
/// guideline for MDLA 3.0.
const WITH_CHANNELS: [i32; 5] =
    [op::CONV_2D, op::DEPTHWISE_CONV_2D, op::TRANSPOSE_CONV_2D, op::FULLY_CONNECTED, op::PRELU];

/// Returns the reason if a version does not support an operand type at all.
pub fn refused_type(of: i32, target: &Target) -> Option<String> {
    let known = kind::name(of).is_some() || of == GENERAL_OPERAND || of & !0xFFFF == COMPILED_NETWORK_OPERAND;
    if !known {
        return Some(format!("unknown operand type {of}"));
    }
    if SINCE_FOUR_BITS.contains(&of) && target.version < version::FOUR_BITS_PER_CHANNEL {
        return Some(format!(
            "type {of} ({}) needs version {}, but this is {}",
            kind::name(of).unwrap_or("?"),
            version::FOUR_BITS_PER_CHANNEL,
            target.version
        ));
    }
    None
}

/// Refuses an operation because of its code, or the types, ranks and scales of its operands.
pub fn judge(
    inputs: &[&Layout],
    outputs: &[&Layout],
    operation: &Operation,
    target: &Target,
) -> Result<(), Refusal> {
    let unsupported = |why: String| Err(Refusal::Unsupported(why));
    if target.denied_operations.contains(&operation.code) {
        return unsupported(format!("operation {} is denied on {}", operation.code, target.soc));
    }
    for (place, layout) in inputs.iter().chain(outputs).enumerate() {
        let of = layout.kind;
        if target.denied_types.contains(&of) {
            return unsupported(format!("type {of} is denied on {}", target.soc));
        }
        if layout.dimensions.len() > target.rank {
            return unsupported(format!(
                "rank {}, at most {} is supported",
                layout.dimensions.len(),
                target.rank
            ));
        }
        if FOUR_BITS_PER_CHANNEL.contains(&of) && WITHOUT_FOUR_BITS_PER_CHANNEL.contains(&target.soc.as_str())
        {
            return unsupported(format!("4-bit weights with scales per channel on {}", target.soc));
        }
        if kind::is_per_channel(of) {
            if layout.channels.is_none() {
                return unsupported(format!("type {of} without its scales"));
            }
            let weight_or_bias = WITH_CHANNELS.contains(&operation.code) && (1..=2).contains(&place);
            if !weight_or_bias {
                return unsupported(format!(
                    "scales per channel at place {place} of operation {}",
                    operation.code
                ));
            }
        }
        // Google's client sends this for 4-bit per-channel weights if the version has no type for
        // them. The scales are lost.
        if kind::is_per_tensor(of) && !(layout.scale.is_finite() && layout.scale > 0.0) {
            return unsupported(format!("type {of} with a scale of {}: its scales were lost", layout.scale));
        }
        if !kind::is_scalar(of) && kind::element_bytes(of).is_some() && layout.dimensions.is_empty() {
            return unsupported(format!("a tensor of type {of} of unknown rank"));
        }
    }
    Ok(())
}
