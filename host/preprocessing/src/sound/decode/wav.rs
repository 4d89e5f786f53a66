//! WAV: chunks of a RIFF file, and samples of plain numbers.

use shardwright_vocabulary::{Error, Result};

use super::scale;
use crate::SoundSettings;
use crate::file::{damaged, truncated, unsupported};
use crate::sound::Mixer;

/// Sizes from this number on mean that the size is unknown. Programs that write into a pipe use one
/// of the largest numbers (`ffmpeg` 0xFFFFFFFF, `arecord` 0x7FFFFF00, `sox` 0x7FFFF000).
const UNKNOWN_SIZE: usize = 0x7fff_0000;

/// Codings of samples: integers, floats, or a coding that a longer format chunk specifies.
const INTEGERS: u16 = 1;
const FLOATS: u16 = 3;
const EXTENSIBLE: u16 = 0xfffe;

/// The content of the format chunk.
struct Format {
    coding: u16,
    channels: u16,
    rate: u32,
    bits: u16,
}

pub(super) fn decode<'a>(bytes: &[u8], origin: &'a str, settings: &'a SoundSettings) -> Result<Mixer<'a>> {
    if !bytes.starts_with(b"RIFF") {
        let kind = String::from_utf8_lossy(&bytes[..4]).into_owned();
        return Err(unsupported(origin, format!("a WAV sound in a file of type {kind:?}")));
    }
    let (format, data, is_open) = chunks(bytes, origin)?;
    let width = usize::from(format.bits / 8);
    let is_known = match format.coding {
        INTEGERS => (1..=4).contains(&width),
        FLOATS => width == 4,
        _ => return Err(unsupported(origin, format!("a WAV sound of coding {:#06x}", format.coding))),
    };
    if !is_known || !format.bits.is_multiple_of(8) {
        let kind = if format.coding == FLOATS { "floats" } else { "integers" };
        return Err(unsupported(origin, format!("a WAV sound of {} bits in {kind}", format.bits)));
    }
    let mut mixer = Mixer::new(origin, format.rate, format.channels.into(), settings)?;
    let block = width * usize::from(format.channels);
    let stated = if is_open { data.len() - data.len() % block } else { data.stated };
    mixer.expect_no_longer((stated / block) as u64)?;
    if stated > data.len() {
        return Err(truncated(origin, format!("{} bytes of samples of {stated}", data.len())));
    }
    if !stated.is_multiple_of(block) {
        return Err(damaged(origin, format!("{stated} bytes are not a whole number of samples of {block}")));
    }
    let scale = scale(format.bits.into());
    for sample in data.bytes[..stated].chunks_exact(width) {
        mixer.push(match *sample {
            [a, b, c, d] if format.coding == FLOATS => f32::from_le_bytes([a, b, c, d]),
            [a, b, c, d] => (f64::from(i32::from_le_bytes([a, b, c, d])) * scale) as f32,
            [a, b, c] => (f64::from(i32::from_le_bytes([0, a, b, c]) >> 8) * scale) as f32,
            [a, b] => (f64::from(i16::from_le_bytes([a, b])) * scale) as f32,
            // Samples of one byte are unsigned.
            [a] => (f64::from(i16::from(a) - 128) * scale) as f32,
            _ => 0.0,
        })?;
    }
    Ok(mixer)
}

/// The bytes of samples in the file, and the number of bytes that the file specifies.
struct Data<'a> {
    bytes: &'a [u8],
    stated: usize,
}

impl Data<'_> {
    fn len(&self) -> usize {
        self.bytes.len()
    }
}

/// Skips chunks up to the samples. Returns the format, the samples, and whether the samples extend
/// to the end of the file because their size was unknown when it was written.
fn chunks<'a>(bytes: &'a [u8], origin: &str) -> Result<(Format, Data<'a>, bool)> {
    // The file itself begins like a chunk.
    let riff_end = Chunk::first(bytes).map_or(0, |whole| whole.size.saturating_add(8));
    let mut format = None;
    // After the name and the size of the file, and its type.
    let mut left = bytes.get(12..).unwrap_or_default();
    loop {
        let chunk = Chunk::first(left).ok_or_else(|| truncated(origin, "it ends before its samples"))?;
        let Chunk { size, rest, .. } = chunk;
        match &chunk.name {
            b"fmt " if format.is_some() => return Err(second(origin, &chunk)),
            b"fmt " => {
                let body = rest.get(..size).ok_or_else(|| truncated(origin, "it ends within its format"))?;
                format = Some(Format::read(body).ok_or_else(|| damaged(origin, "its format is too short"))?);
            }
            b"data" => {
                let format = format.ok_or_else(|| damaged(origin, "its samples precede their format"))?;
                let is_open = size >= UNKNOWN_SIZE || (size == 0 && !are_chunks(rest));
                if !is_open {
                    expect_no_second(chunk.after(), origin)?;
                    return Ok((format, Data { bytes: &rest[..size.min(rest.len())], stated: size }, false));
                }
                // The file may state its own size nevertheless. Then chunks follow it.
                let until_end = riff_end.saturating_sub(bytes.len() - rest.len());
                let is_stated = (1..rest.len()).contains(&until_end) && are_chunks(&rest[until_end..]);
                let length = if is_stated { until_end } else { rest.len() };
                expect_no_second(&rest[length..], origin)?;
                return Ok((format, Data { bytes: &rest[..length], stated: size }, true));
            }
            _ => {}
        }
        left = chunk.after();
    }
}

/// A chunk of a file.
#[derive(Clone, Copy)]
struct Chunk<'a> {
    name: [u8; 4],
    /// Bytes of its content, according to the file.
    size: usize,
    /// All bytes of the file after the name and the size.
    rest: &'a [u8],
}

impl<'a> Chunk<'a> {
    /// Returns the chunk at the beginning of bytes. `None` if they end within its name or size.
    fn first(bytes: &'a [u8]) -> Option<Self> {
        let (name, rest) = bytes.split_first_chunk::<4>()?;
        let (size, rest) = rest.split_first_chunk::<4>()?;
        Some(Chunk { name: *name, size: u32::from_le_bytes(*size) as usize, rest })
    }

    /// Returns the bytes after its content. A byte of padding follows an odd size.
    fn after(&self) -> &'a [u8] {
        self.rest.get(self.size.saturating_add(self.size % 2)..).unwrap_or_default()
    }
}

/// Checks whether bytes are chunks with names, from the first to the last byte.
fn are_chunks(mut bytes: &[u8]) -> bool {
    while let Some(chunk) = Chunk::first(bytes) {
        let is_name = chunk.name.iter().all(|byte| (b' '..=b'~').contains(byte));
        if !is_name || chunk.size > chunk.rest.len() {
            return false;
        }
        bytes = chunk.after();
    }
    bytes.is_empty()
}

/// Refuses a second format, second samples or a second file after the samples.
fn expect_no_second(mut bytes: &[u8], origin: &str) -> Result<()> {
    while let Some(chunk) = Chunk::first(bytes) {
        if [b"fmt ", b"data", b"RIFF"].contains(&&chunk.name) {
            return Err(second(origin, &chunk));
        }
        bytes = chunk.after();
    }
    Ok(())
}

fn second(origin: &str, chunk: &Chunk<'_>) -> Error {
    let name = String::from_utf8_lossy(&chunk.name);
    unsupported(origin, format!("a WAV sound with a second chunk `{name}`"))
}

impl Format {
    fn read(body: &[u8]) -> Option<Format> {
        let number = |at: usize| body.get(at..at + 2).map(|two| u16::from_le_bytes([two[0], two[1]]));
        let coding = match number(0)? {
            // The coding is the beginning of an identifier.
            EXTENSIBLE => number(24)?,
            coding => coding,
        };
        let rate = u32::from(number(4)?) | u32::from(number(6)?) << 16;
        Some(Format { coding, channels: number(2)?, rate, bits: number(14)? })
    }
}
