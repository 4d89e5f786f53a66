//! Readers and writers of little-endian bytes with bounds checks, and checksums.

/// Appends values to a byte vector.
#[derive(Debug, Default)]
pub struct Writer {
    pub bytes: Vec<u8>,
}

impl Writer {
    pub fn u8(&mut self, value: u8) {
        self.bytes.push(value);
    }

    pub fn u32(&mut self, value: u32) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    pub fn u64(&mut self, value: u64) {
        self.bytes.extend_from_slice(&value.to_le_bytes());
    }

    /// Writes a count as a u32. Every count in a blob is below 2³².
    pub fn count(&mut self, value: usize) {
        self.u32(value as u32);
    }

    pub fn bytes(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// Writes the count of the numbers, then the numbers.
    pub fn list(&mut self, values: &[u32]) {
        self.count(values.len());
        for value in values {
            self.u32(*value);
        }
    }

    /// Appends zeros up to a multiple of `step`.
    pub fn align(&mut self, step: usize) {
        self.bytes.resize(self.bytes.len().next_multiple_of(step), 0);
    }
}

/// A reader of values from the front. Each method returns `None` if there are too few bytes.
#[derive(Debug)]
pub struct Reader<'a> {
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    pub fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { rest: bytes }
    }

    /// Reads `length` bytes.
    pub fn bytes(&mut self, length: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.rest.split_at_checked(length)?;
        self.rest = rest;
        Some(bytes)
    }

    pub fn u8(&mut self) -> Option<u8> {
        self.bytes(1).map(|bytes| bytes[0])
    }

    pub fn u32(&mut self) -> Option<u32> {
        let (bytes, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(u32::from_le_bytes(*bytes))
    }

    pub fn u64(&mut self) -> Option<u64> {
        let (bytes, rest) = self.rest.split_first_chunk()?;
        self.rest = rest;
        Some(u64::from_le_bytes(*bytes))
    }

    /// Reads a count of at most `most`.
    pub fn count(&mut self, most: usize) -> Option<usize> {
        usize::try_from(self.u32()?).ok().filter(|count| *count <= most)
    }

    /// Reads a count of at most `most`, then as many numbers.
    pub fn list(&mut self, most: usize) -> Option<Vec<u32>> {
        let count = self.count(most)?;
        let bytes = self.bytes(count.checked_mul(4)?)?;
        Some(
            bytes
                .chunks_exact(4)
                .map(|four| u32::from_le_bytes([four[0], four[1], four[2], four[3]]))
                .collect(),
        )
    }
}

/// Computes the CRC-32 (IEEE 802.3, reflected, as in zip files), eight bytes a step.
pub fn crc32(bytes: &[u8]) -> u32 {
    const TABLES: [[u32; 256]; 8] = {
        let mut tables = [[0u32; 256]; 8];
        let mut index = 0;
        while index < 256 {
            let mut value = index as u32;
            let mut bit = 0;
            while bit < 8 {
                value = if value & 1 == 1 { (value >> 1) ^ 0xEDB8_8320 } else { value >> 1 };
                bit += 1;
            }
            tables[0][index] = value;
            index += 1;
        }
        let mut table = 1;
        while table < 8 {
            let mut index = 0;
            while index < 256 {
                let before = tables[table - 1][index];
                tables[table][index] = (before >> 8) ^ tables[0][(before & 0xFF) as usize];
                index += 1;
            }
            table += 1;
        }
        tables
    };
    let mut crc = u32::MAX;
    let eights = bytes.chunks_exact(8);
    let rest = eights.remainder();
    for eight in eights {
        let low = u32::from_le_bytes([eight[0], eight[1], eight[2], eight[3]]) ^ crc;
        let [a, b, c, d] = low.to_le_bytes();
        crc = TABLES[7][a as usize]
            ^ TABLES[6][b as usize]
            ^ TABLES[5][c as usize]
            ^ TABLES[4][d as usize]
            ^ TABLES[3][eight[4] as usize]
            ^ TABLES[2][eight[5] as usize]
            ^ TABLES[1][eight[6] as usize]
            ^ TABLES[0][eight[7] as usize];
    }
    for byte in rest {
        crc = (crc >> 8) ^ TABLES[0][((crc ^ u32::from(*byte)) & 0xFF) as usize];
    }
    !crc
}

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
    fn the_checksum_is_the_one_of_zip_files() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
        assert_eq!(crc32(b""), 0);
        assert_eq!(crc32(&[0; 64]), 0x758D_6336);
    }

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

    #[test]
    fn reading_stops_at_the_end() {
        let mut writer = Writer::default();
        writer.list(&[1, 2, 3]);
        writer.align(8);
        let mut reader = Reader::new(&writer.bytes);
        assert_eq!(reader.list(3), Some(vec![1, 2, 3]));
        assert_eq!((reader.u64(), reader.u8()), (None, None));
        assert_eq!(Reader::new(&writer.bytes).list(2), None);
        assert_eq!(Reader::new(&[255, 255, 255, 255]).list(usize::MAX), None);
    }
}
