//! Hexadecimal digits of bytes, such as hashes and keys, written in lower case.

/// Returns two lower-case digits per byte.
pub fn encode(bytes: &[u8]) -> String {
    let digit = |value: u8| char::from(b"0123456789abcdef"[usize::from(value)]);
    bytes.iter().flat_map(|byte| [digit(byte >> 4), digit(byte & 15)]).collect()
}

/// Parses exactly `N` bytes from digits of either case. Returns `None` for any other text.
pub fn decode<const N: usize>(text: &str) -> Option<[u8; N]> {
    let (pairs, rest) = text.as_bytes().as_chunks::<2>();
    if pairs.len() != N || !rest.is_empty() {
        return None;
    }
    let digit = |byte: u8| char::from(byte).to_digit(16).map(|digit| digit as u8);
    let mut bytes = [0; N];
    for (byte, &[high, low]) in bytes.iter_mut().zip(pairs) {
        *byte = digit(high)? << 4 | digit(low)?;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read() {
        let all: [u8; 256] = std::array::from_fn(|value| value as u8);
        let text = encode(&all);
        assert!(text.starts_with("000102") && text.ends_with("fdfeff"));
        assert_eq!(decode(&text), Some(all));
        assert_eq!(decode(&text.to_uppercase()), Some(all));
        for wrong in ["", "0", "000", "0g", "+1", "é"] {
            assert_eq!(decode::<1>(wrong), None, "{wrong}");
        }
    }
}
