//! Operations without a number: named by a string operand, through an extension whose types the
//! library hands out.

/// The extension of operations without a number. (L, R)
pub const GENERAL_OPERATION: &str = "com.mediatek.general_operation";
/// Code of its string operand in [`GENERAL_OPERATION`]. (L, R)
pub const GENERAL_OPERAND_CODE: u16 = 0x0100;
/// Code of its operation. (L, R)
pub const GENERAL_OPERATION_CODE: u16 = 0x0000;

/// The extension that runs a compiled network as the one operation of a model: inputs and outputs
/// are operands of rank 0, the blob is the last input. (L, E)
pub const COMPILED_NETWORK: &str = "com.mediatek.compiled_network";
/// Code of the blob operand below major 8, and of ExecuTorch always. (L, E)
pub const COMPILED_NETWORK_OPERAND_CODE: u16 = 0x0100;
/// Code of the blob operand from major 8 on, for LiteRT. (L)
pub const COMPILED_NETWORK_OPERAND_CODE_8: u16 = 0x0200;
/// Code of its operation. (L, E)
pub const COMPILED_NETWORK_OPERATION_CODE: u16 = 0x0000;

/// Root mean square normalisation: x, axis (i32 tensor), gamma, beta, epsilon (f32), this name. (L,
/// R)
pub const RMS_NORMALIZATION: &str = "MTKEXT_RMS_NORMALIZATION";
/// Layer normalisation; its operands are assumed to be those of [`RMS_NORMALIZATION`]. (name R,
/// operands I)
pub const LAYER_NORMALIZATION: &str = "MTKEXT_LAYER_NORMALIZATION";
/// `(a - b)²`: a, b, this name. (L, R)
pub const SQUARED_DIFFERENCE: &str = "MTKEXT_SQUARED_DIFFERENCE";
/// Unstacks an axis: x, settings, this name. (L, R)
pub const UNPACK: &str = "unpackmtk";

/// The longest name, so that the whole operand is copied at once. (L)
pub const LONGEST_NAME: usize = 100;

/// Start of a string operand: the length of the word, and the word. (L, R)
const HEAD: [u8; 7] = *b"\x06string";

/// The bytes of the string operand of a name: a byte 6, `string`, the length as u32, the text,
/// zeros. Its length, which is the operand's one dimension, is that of the text and 22. `None`
/// beyond [`LONGEST_NAME`]. (L, R)
pub fn string_operand(name: &str) -> Option<Vec<u8>> {
    if name.len() > LONGEST_NAME {
        return None;
    }
    let length = u32::try_from(name.len()).ok()?;
    let mut bytes = Vec::with_capacity(name.len() + 22);
    bytes.extend_from_slice(&HEAD);
    bytes.extend_from_slice(&length.to_le_bytes());
    bytes.extend_from_slice(name.as_bytes());
    bytes.resize(name.len() + 22, 0);
    Some(bytes)
}

/// Reads the name from a string operand; `None` for any other bytes.
pub fn string_of(operand: &[u8]) -> Option<&str> {
    let rest = operand.strip_prefix(&HEAD)?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let length =
        usize::try_from(u32::from_le_bytes(*length)).ok().filter(|length| *length <= LONGEST_NAME)?;
    std::str::from_utf8(rest.get(..length)?).ok()
}
