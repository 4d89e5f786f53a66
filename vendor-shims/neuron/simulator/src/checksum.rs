//! A checksum of bytes.

/// Computes a fast 64-bit checksum, which is not cryptographic.
pub fn sum(bytes: &[u8]) -> u64 {
    const FACTOR: u64 = 0x9E37_79B9_7F4A_7C15;
    let mut sum = (bytes.len() as u64).wrapping_mul(FACTOR) ^ 0x5348_4152_4457_5254;
    let eights = bytes.chunks_exact(8);
    let mut last = [0u8; 8];
    last[..eights.remainder().len()].copy_from_slice(eights.remainder());
    for eight in eights.chain(std::iter::once(&last[..])) {
        let word = u64::from_le_bytes([
            eight[0], eight[1], eight[2], eight[3], eight[4], eight[5], eight[6], eight[7],
        ]);
        sum = (sum ^ word).wrapping_mul(FACTOR);
        sum ^= sum >> 29;
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_changes_the_sum() {
        let bytes: Vec<u8> = (0..45).collect();
        let whole = sum(&bytes);
        for at in 0..bytes.len() {
            let mut changed = bytes.clone();
            changed[at] ^= 1;
            assert_ne!(sum(&changed), whole);
        }
        assert_ne!(sum(&bytes[..44]), whole);
    }
}
