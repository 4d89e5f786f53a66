//! Writes and reads little-endian values one after another.

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

#[cfg(test)]
mod tests {
    use super::*;

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
