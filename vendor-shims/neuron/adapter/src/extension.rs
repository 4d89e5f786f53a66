//! Operations without a number. A string operand names them, through an extension whose types the
//! library assigns.

/// Name of the extension for operations without a number. (L, R)
pub const GENERAL_OPERATION: &str = "com.mediatek.general_operation";
/// Code of the string operand of [`GENERAL_OPERATION`]. (L, R)
pub const GENERAL_OPERAND_CODE: u16 = 0x0100;
/// Code of the operation of [`GENERAL_OPERATION`]. (L, R)
pub const GENERAL_OPERATION_CODE: u16 = 0x0000;

/// Name of the extension that runs a compiled network as the only operation of a model. Inputs and
/// outputs are operands of rank 0, and the blob is the last input. (L, E)
pub const COMPILED_NETWORK: &str = "com.mediatek.compiled_network";
/// Code of the blob operand below major version 8, and always for ExecuTorch. (L, E)
pub const COMPILED_NETWORK_OPERAND_CODE: u16 = 0x0100;
/// Code of the blob operand from major version 8, for LiteRT. (L)
pub const COMPILED_NETWORK_OPERAND_CODE_8: u16 = 0x0200;
/// Code of the operation of [`COMPILED_NETWORK`]. (L, E)
pub const COMPILED_NETWORK_OPERATION_CODE: u16 = 0x0000;

/// Root mean square normalisation. Operands: x, axis (i32 tensor), gamma, beta, epsilon (f32), this
/// name. (L, R)
pub const RMS_NORMALIZATION: &str = "MTKEXT_RMS_NORMALIZATION";
/// Layer normalisation. Its operands are assumed to be the same as for [`RMS_NORMALIZATION`]. (name
/// R, operands I)
pub const LAYER_NORMALIZATION: &str = "MTKEXT_LAYER_NORMALIZATION";
/// Squared difference, `(a - b)²`. Operands: a, b, this name. (L, R)
pub const SQUARED_DIFFERENCE: &str = "MTKEXT_SQUARED_DIFFERENCE";
/// Unstacks an axis. Operands: x, settings, this name. (L, R)
pub const UNPACK: &str = "unpackmtk";

/// Maximum length of a name in bytes, so that the whole operand is copied at once. (L)
pub const LONGEST_NAME: usize = 100;

/// Start of a string operand: the length of the word `string`, and the word. (L, R)
const HEAD: [u8; 7] = *b"\x06string";

/// Returns the string operand of a name: a byte 6, `string`, the length as u32, the text and zeros.
/// Its length, which is the operand's only dimension, is the length of the text plus 22. Returns
/// `None` for names longer than [`LONGEST_NAME`]. (L, R)
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

/// Reads the name from a string operand. Returns `None` for any other bytes.
pub fn string_of(operand: &[u8]) -> Option<&str> {
    let rest = operand.strip_prefix(&HEAD)?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let length =
        usize::try_from(u32::from_le_bytes(*length)).ok().filter(|length| *length <= LONGEST_NAME)?;
    std::str::from_utf8(rest.get(..length)?).ok()
}
