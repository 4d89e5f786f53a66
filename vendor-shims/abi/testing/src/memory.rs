//! Memory that tests pass to a shim: pages for an artefact, and the values or bytes behind a
//! binding.

use std::ffi::c_void;

use crate::encoding::{TableEncoding, bits_of};

/// Page-aligned bytes, like a file mapping.
pub struct Region {
    pages: Vec<Page>,
    length: usize,
}

#[derive(Clone, Copy)]
#[repr(C, align(4096))]
struct Page([u8; 4096]);

impl Region {
    /// Copies bytes into new pages.
    pub fn new(bytes: &[u8]) -> Region {
        let mut pages = vec![Page([0; 4096]); bytes.len().div_ceil(4096)];
        for (page, chunk) in pages.iter_mut().zip(bytes.chunks(4096)) {
            page.0[..chunk.len()].copy_from_slice(chunk);
        }
        Region { pages, length: bytes.len() }
    }

    /// Returns the bytes, without the padding of the last page.
    pub fn bytes(&self) -> &[u8] {
        // SAFETY: pages are plain bytes, `length` of which were copied in.
        unsafe { std::slice::from_raw_parts(self.pages.as_ptr().cast(), self.length) }
    }

    /// Returns the bytes mutably, so that a test can damage them.
    pub fn bytes_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above.
        unsafe { std::slice::from_raw_parts_mut(self.pages.as_mut_ptr().cast(), self.length) }
    }
}

/// Memory that a test binds: typed values or plain bytes.
pub trait Memory {
    /// Creates memory of `bytes` bytes with arbitrary content, for an output.
    fn poison(dtype: u32, bytes: u64) -> Self;

    /// Returns the address and the length in bytes. Both are valid until the memory is accessed in
    /// another way.
    fn place(&mut self) -> (*mut c_void, u64);
}

impl Memory for Vec<u8> {
    fn poison(_: u32, bytes: u64) -> Vec<u8> {
        vec![0x5a; bytes as usize]
    }

    fn place(&mut self) -> (*mut c_void, u64) {
        (self.as_mut_ptr().cast(), self.len() as u64)
    }
}

impl Memory for Region {
    fn poison(_: u32, bytes: u64) -> Region {
        Region::new(&vec![0x5a; bytes as usize])
    }

    fn place(&mut self) -> (*mut c_void, u64) {
        let bytes = self.bytes_mut();
        (bytes.as_mut_ptr().cast(), bytes.len() as u64)
    }
}

/// Values for one binding, aligned to their type.
#[derive(Clone, Debug, PartialEq)]
pub enum Bound {
    F32(Vec<f32>),
    I32(Vec<i32>),
    /// Bits of any type of two bytes.
    U16(Vec<u16>),
    /// Bits of any type of one byte.
    U8(Vec<u8>),
}

impl Bound {
    /// Returns the floats.
    ///
    /// # Panics
    ///
    /// If the values are not floats.
    pub fn f32(&self) -> &[f32] {
        match self {
            Bound::F32(values) => values,
            _ => panic!("integers"),
        }
    }

    /// Encodes values as bound memory.
    pub fn store(encoding: TableEncoding, values: &[f32]) -> Bound {
        if encoding == TableEncoding::F32 {
            return Bound::F32(values.to_vec());
        }
        let values: Vec<f64> = values.iter().map(|value| f64::from(*value)).collect();
        let bytes = encoding.encode(&values);
        match bits_of(encoding.dtype) {
            16 => Bound::U16(bytes.as_chunks::<2>().0.iter().map(|two| u16::from_le_bytes(*two)).collect()),
            8 => Bound::U8(bytes),
            _ => Bound::I32(values.iter().map(|value| *value as i32).collect()),
        }
    }

    /// Decodes the values.
    pub fn read(&self, encoding: TableEncoding) -> Vec<f64> {
        match self {
            Bound::F32(values) => values.iter().map(|value| f64::from(*value)).collect(),
            Bound::I32(values) => values.iter().map(|value| f64::from(*value)).collect(),
            Bound::U16(bits) => {
                encoding.decode(&bits.iter().flat_map(|bits| bits.to_le_bytes()).collect::<Vec<u8>>())
            }
            Bound::U8(bytes) => encoding.decode(bytes),
        }
    }
}

impl Memory for Bound {
    fn poison(dtype: u32, bytes: u64) -> Bound {
        let bytes = bytes as usize;
        match bits_of(dtype) {
            32 => Bound::F32(vec![f32::NAN; bytes / 4]),
            16 => Bound::U16(vec![0x7e11; bytes / 2]),
            _ => Bound::U8(vec![0x5a; bytes]),
        }
    }

    fn place(&mut self) -> (*mut c_void, u64) {
        match self {
            Bound::F32(values) => (values.as_mut_ptr().cast(), values.len() as u64 * 4),
            Bound::I32(values) => (values.as_mut_ptr().cast(), values.len() as u64 * 4),
            Bound::U16(values) => (values.as_mut_ptr().cast(), values.len() as u64 * 2),
            Bound::U8(values) => (values.as_mut_ptr().cast(), values.len() as u64),
        }
    }
}
