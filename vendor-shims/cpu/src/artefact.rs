//! The layout of a compiled artefact.
//!
//! ```text
//! 0   magic        8 bytes `SWCPUART`
//! 8   format       u32, then a u32 of zero
//! 16  length       u64, of the whole artefact
//! 24  program      u64, bytes from 64 on
//! 32  weights at   u64, a multiple of 4096
//! 40  weights      u64, bytes
//! 48  checksum     u64, over bytes 0 to 48 and the program
//! 56  zero         u64
//! 64  program, zeros, weights
//! end checksum of the weights u64, magic `SWCPUEND`
//! ```
//!
//! All numbers are little-endian. The layout does not depend on the instruction set: every kernel
//! reads the same tiles and panels unchanged. The program is verified at every load. The weights
//! are mapped and may be large, so they are verified only on request.

use std::collections::BTreeSet;
use std::fmt::Display;

use shardwright_shim_abi::{Error, ErrorClass};

use crate::error::limit;
use crate::program::{PackedScales, Program, Step, decode, encode};

const MAGIC: &[u8; 8] = b"SWCPUART";
const END: &[u8; 8] = b"SWCPUEND";
/// Version of the layout and of the program's encoding.
pub const FORMAT: u32 = 14;
const HEADER: u64 = 64;
const TRAILER: u64 = 16;
const PAGE: u64 = 4096;
/// Largest size of a program in bytes. A decomposed model of a hundred layers has about 20 000
/// steps of 70 bytes. In memory a step needs up to forty times its encoded size.
const MAX_PROGRAM: u64 = 12 << 20;
/// First line of a head.
const HEAD: &str = "shardwright-cpu-artefact";

/// A checksum that changes with any single bit and any swap. It does not protect against deliberate
/// changes.
#[derive(Clone, Debug)]
pub struct Checksum {
    state: u64,
    pending: [u8; 8],
    count: usize,
    length: u64,
}

impl Default for Checksum {
    fn default() -> Self {
        Checksum { state: 0x243f_6a88_85a3_08d3, pending: [0; 8], count: 0, length: 0 }
    }
}

impl Checksum {
    /// Adds bytes. The split into calls has no effect on the result.
    pub fn add(&mut self, mut bytes: &[u8]) {
        self.length += bytes.len() as u64;
        while self.count > 0 && self.count < 8 && !bytes.is_empty() {
            self.pending[self.count] = bytes[0];
            self.count += 1;
            bytes = &bytes[1..];
        }
        if self.count == 8 {
            self.mix(u64::from_le_bytes(self.pending));
            self.count = 0;
        }
        let (words, rest) = bytes.as_chunks::<8>();
        for word in words {
            self.mix(u64::from_le_bytes(*word));
        }
        if !rest.is_empty() {
            self.pending[..rest.len()].copy_from_slice(rest);
            self.count = rest.len();
        }
    }

    fn mix(&mut self, word: u64) {
        // Both steps are invertible, so two different words never lead to the same state.
        self.state = (self.state ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        self.state ^= self.state >> 32;
    }

    /// Returns the checksum.
    pub fn finish(mut self) -> u64 {
        self.pending[self.count..].fill(0);
        self.mix(u64::from_le_bytes(self.pending));
        self.mix(self.length);
        self.state
    }
}

fn checksum(parts: &[&[u8]]) -> u64 {
    let mut sum = Checksum::default();
    parts.iter().for_each(|part| sum.add(part));
    sum.finish()
}

/// Writes an artefact. The `weights` callback streams the weight section of `length` bytes into the
/// function it receives.
pub fn write<E: From<Error>>(
    program: &Program,
    length: u64,
    mut sink: impl FnMut(&[u8]) -> Result<(), E>,
    weights: impl FnOnce(&mut dyn FnMut(&[u8]) -> Result<(), E>) -> Result<(), E>,
) -> Result<(), E> {
    let bytes = encode(program);
    let program_length = bytes.len() as u64;
    if program_length > MAX_PROGRAM {
        return Err(limit("program-bytes", program_length, MAX_PROGRAM).into());
    }
    let weights_at = (HEADER + program_length).next_multiple_of(PAGE);
    let mut header = Vec::with_capacity(HEADER as usize);
    header.extend_from_slice(MAGIC);
    header.extend_from_slice(&FORMAT.to_le_bytes());
    header.extend_from_slice(&[0; 4]);
    for number in [weights_at + length + TRAILER, program_length, weights_at, length] {
        header.extend_from_slice(&number.to_le_bytes());
    }
    let sum = checksum(&[&header, &bytes]);
    header.extend_from_slice(&sum.to_le_bytes());
    header.extend_from_slice(&[0; 8]);
    sink(&header)?;
    sink(&bytes)?;
    sink(&vec![0; (weights_at - HEADER - program_length) as usize])?;
    let mut sum = Checksum::default();
    weights(&mut |bytes| {
        sum.add(bytes);
        sink(bytes)
    })?;
    sink(&sum.finish().to_le_bytes())?;
    sink(END)
}

/// An artefact whose program is verified and proved to stay in bounds.
#[derive(Debug)]
pub struct Artefact<'m> {
    pub program: Program,
    pub weights: &'m [u8],
    sum: u64,
}

fn corrupt(offset: u64, reason: impl Display) -> Error {
    Error::corrupt_at(offset, reason)
}

impl<'m> Artefact<'m> {
    /// Parses and verifies untrusted bytes.
    pub fn read(bytes: &'m [u8]) -> Result<Artefact<'m>, Error> {
        let total = bytes.len() as u64;
        let part = |offset: u64, length: u64, what: &str| {
            let end = offset.checked_add(length).filter(|end| *end <= total);
            let end = end.ok_or_else(|| {
                corrupt(offset, format!("{what} of {length} bytes exceeds the artefact of {total}"))
            })?;
            Ok::<&'m [u8], Error>(&bytes[offset as usize..end as usize])
        };
        let number = |offset: u64| {
            let mut word = [0; 8];
            word.copy_from_slice(part(offset, 8, "a number")?);
            Ok::<u64, Error>(u64::from_le_bytes(word))
        };
        if part(0, 8, "a magic number")? != MAGIC {
            return Err(corrupt(0, "not an artefact of the CPU shim"));
        }
        let format = number(8)?;
        let found = format as u32;
        if format >> 32 != 0 {
            return Err(corrupt(12, "reserved bytes are set"));
        }
        if found != FORMAT {
            let message = format!("artefact format {found}, expected {FORMAT}");
            return Err(Error::new(ErrorClass::IncompatibleArtefact, message)
                .help("compile the work order again with this shim"));
        }
        let [length, program_length, weights_at, weights_length] =
            [number(16)?, number(24)?, number(32)?, number(40)?];
        if length != total {
            return Err(corrupt(16, format!("{total} bytes, expected {length} as in the header")));
        }
        if number(56)? != 0 {
            return Err(corrupt(56, "reserved bytes are set"));
        }
        if program_length > MAX_PROGRAM {
            return Err(corrupt(24, format!("invalid length of the program: {program_length} bytes")));
        }
        let program = part(HEADER, program_length, "a program")?;
        if checksum(&[&bytes[..48], program]) != number(48)? {
            return Err(corrupt(48, "header or program do not match their checksum"));
        }
        if weights_at != (HEADER + program_length).next_multiple_of(PAGE) {
            return Err(corrupt(32, format!("invalid offset of the weights: {weights_at}")));
        }
        let weights = part(weights_at, weights_length, "a weight section")?;
        // No overflow: the section is inside the artefact.
        let end = weights_at + weights_length;
        if total - end != TRAILER || part(end + 8, 8, "an end")? != END {
            return Err(corrupt(end, "the artefact does not end after the weights"));
        }
        let sum = number(end)?;
        let program = decode(program, HEADER)?;
        program.check(weights_length).map_err(|reason| corrupt(HEADER, reason))?;
        Ok(Artefact { program, weights, sum })
    }

    /// Reads all weights and compares their checksum.
    pub fn verify_weights(&self) -> Result<(), Error> {
        if checksum(&[self.weights]) == self.sum {
            return Ok(());
        }
        Err(corrupt(0, "the weights do not match their checksum"))
    }
}

/// Returns the head that is stored next to an artefact: format, version, types of the weights, and
/// encodings of the bindings.
pub fn head(program: &Program) -> Vec<u8> {
    let mut weights = BTreeSet::new();
    for step in program.entries.iter().flat_map(|entry| &entry.steps) {
        let lying: Vec<(&str, PackedScales, &str)> = match step {
            Step::Linear(step) => vec![(step.weights.kind.name(), step.weights.scales, "")],
            Step::SplitLinear(step) => {
                vec![("i8", PackedScales::PerOutput { offset: step.weights.scales }, "-split")]
            }
            Step::DynamicLinear(step) => {
                step.maps.iter().map(|map| (map.weights.kind.name(), map.weights.scales, "-tiles")).collect()
            }
            _ => continue,
        };
        for (name, scales, lying) in lying {
            let scales = match scales {
                PackedScales::None => String::new(),
                PackedScales::PerOutput { .. } => "-per-output".to_owned(),
                PackedScales::Blocks { size, minimum, form, .. } => {
                    let minimum = if minimum { "-minimum" } else { "" };
                    format!("-block-{size}-{}{minimum}", form.name())
                }
            };
            weights.insert(format!("{name}{scales}{lying}"));
        }
    }
    let ports = program.entries.iter().flat_map(|entry| &entry.ports);
    let bindings: BTreeSet<&str> = ports.map(|port| port.encoding.element.name()).collect();
    let (weights, bindings) = (joined(weights), joined(bindings));
    let version = env!("CARGO_PKG_VERSION");
    format!("{HEAD}\nformat={FORMAT}\nversion={version}\nweights={weights}\nbindings={bindings}\n")
        .into_bytes()
}

fn joined(words: BTreeSet<impl AsRef<str>>) -> String {
    words.iter().map(AsRef::as_ref).collect::<Vec<&str>>().join(",")
}

/// Returns the format in a head, or `None` if the head is not from this shim.
pub fn format_of(head: &[u8]) -> Option<u32> {
    let text = std::str::from_utf8(head).ok()?;
    let mut lines = text.lines();
    if lines.next() != Some(HEAD) {
        return None;
    }
    lines.find_map(|line| line.strip_prefix("format="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn heads_name_their_format() {
        let program = Program { threads: 0, entries: Vec::new() };
        assert_eq!(format_of(&head(&program)), Some(FORMAT));
        for foreign in [&b""[..], b"qnn\nformat=1\n", b"shardwright-cpu-artefact\nformat=x", &[0xff, 0xfe]] {
            assert_eq!(format_of(foreign), None);
        }
    }

    #[test]
    fn checksums_do_not_depend_on_pieces_but_on_every_bit() {
        let bytes: Vec<u8> = (0..203).map(|i| (i * 7) as u8).collect();
        let whole = checksum(&[&bytes]);
        for cut in [0, 1, 7, 8, 9, 100, 203] {
            assert_eq!(checksum(&[&bytes[..cut], &bytes[cut..]]), whole);
        }
        let pieces: Vec<&[u8]> = bytes.chunks(3).collect();
        assert_eq!(checksum(&pieces), whole);
        for bit in 0..bytes.len() * 8 {
            let mut flipped = bytes.clone();
            flipped[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(checksum(&[&flipped]), whole);
        }
        assert_ne!(checksum(&[&[0; 8]]), checksum(&[&[0; 9]]));
    }
}
