//! Bytes of a file with their offset in it. Every access is checked, and every error states the
//! offset in the whole file.

use crate::{ContainerError, Result};

/// A part of a file.
#[derive(Clone, Copy, Debug)]
pub struct Bytes<'a> {
    bytes: &'a [u8],
    /// Offset of the part in the reported file.
    base: u64,
}

macro_rules! little_endian {
    ($($name:ident $type:ty),+) => {
        $(
            #[doc = concat!("The little-endian `", stringify!($type), "` at `at`.")]
            pub fn $name(self, at: usize, what: &'static str) -> Result<$type> {
                const LENGTH: usize = size_of::<$type>();
                let bytes = self.slice(at, LENGTH, what)?.bytes;
                // The slice has exactly this length.
                Ok(<[u8; LENGTH]>::try_from(bytes).map(<$type>::from_le_bytes).unwrap_or_default())
            }
        )+
    };
}

impl<'a> Bytes<'a> {
    /// Wraps a whole file.
    pub const fn new(bytes: &'a [u8]) -> Self {
        Bytes { bytes, base: 0 }
    }

    /// Returns the bytes.
    pub const fn get(self) -> &'a [u8] {
        self.bytes
    }

    /// Returns the number of bytes.
    pub const fn len(self) -> usize {
        self.bytes.len()
    }

    /// Returns whether the part is empty.
    pub const fn is_empty(self) -> bool {
        self.bytes.is_empty()
    }

    /// Returns the offset in the file of the byte at `at`.
    pub fn offset(self, at: usize) -> u64 {
        self.base.saturating_add(at as u64)
    }

    /// Returns `length` bytes from `at`.
    pub fn slice(self, at: usize, length: usize, what: &'static str) -> Result<Bytes<'a>> {
        let found = at.checked_add(length).and_then(|end| self.bytes.get(at..end));
        found.map(|bytes| Bytes { bytes, base: self.offset(at) }).ok_or_else(|| ContainerError::Truncated {
            what,
            offset: self.offset(at),
            wanted: length as u64,
            available: self.bytes.len().saturating_sub(at) as u64,
        })
    }

    /// Returns `length` bytes from `at`, which are both 64-bit values from a file.
    pub fn slice_u64(self, at: u64, length: u64, what: &'static str) -> Result<Bytes<'a>> {
        match (usize::try_from(at), usize::try_from(length)) {
            (Ok(at), Ok(length)) => self.slice(at, length, what),
            _ => Err(ContainerError::Truncated {
                what,
                offset: self.base.saturating_add(at),
                wanted: length,
                available: (self.bytes.len() as u64).saturating_sub(at),
            }),
        }
    }

    /// Returns all bytes from `at`.
    pub fn from(self, at: usize, what: &'static str) -> Result<Bytes<'a>> {
        self.slice(at, self.bytes.len().saturating_sub(at), what)
    }

    little_endian!(u8 u8, i8 i8, u16 u16, i16 i16, u32 u32, i32 i32, u64 u64, i64 i64, f32 f32, f64 f64);

    /// Creates an error about the value at `at`.
    pub fn malformed(self, at: usize, what: &'static str, reason: impl Into<String>) -> ContainerError {
        ContainerError::Malformed { what, offset: self.offset(at), reason: reason.into() }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn places_are_those_of_the_whole_file() {
        let file = [1, 2, 3, 4, 5, 6];
        let part = Bytes::new(&file).slice(2, 3, "part").expect("within");
        assert_eq!((part.get(), part.offset(1)), (&file[2..5], 3));
        assert_eq!(part.u16(1, "number").expect("within"), 0x0504);
        let error = part.u32(1, "number").expect_err("beyond");
        assert_eq!(error, ContainerError::Truncated { what: "number", offset: 3, wanted: 4, available: 2 });
        assert!(error.to_string().contains("number at offset 3") && error.help().contains("truncated"));
        assert!(part.slice(usize::MAX, 2, "far").is_err());
        assert!(part.slice_u64(u64::MAX, u64::MAX, "far").is_err());
    }

    #[test]
    fn the_check_sum_is_the_well_known_one() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc32(b""), 0);
        assert_eq!(crc32(&[0; 64]), 0x758D_6336);
    }
}
