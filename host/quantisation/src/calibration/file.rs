//! The calibration file format. Numbers are little-endian. Counts are variable-length integers,
//! since most bins are empty.

use std::collections::BTreeMap;
use std::path::Path;

use shardwright_files::hex;
use shardwright_vocabulary::{Error, Result};

use super::histogram::{BINS, EXPONENTS, Histogram};
use super::{Calibration, Seen};
use crate::envelope::{HEAD, Kind, damaged};

/// The limit is several times the size of full histograms of 10,000 tensors.
const KIND: Kind = Kind { magic: b"sw-calib", version: 3, name: "calibration", limit: 1 << 29 };
/// Maximum length of a key or a name in bytes.
const NAME_LIMIT: u64 = 4096;

const MASKED: u8 = 1;
const RANGE: u8 = 2;
const VALUES: u8 = 4;
const NEGATIVE: u8 = 8;
const POSITIVE: u8 = 16;

impl Calibration {
    /// Writes the calibration to a file atomically.
    pub fn write(&self, path: impl AsRef<Path>) -> Result<()> {
        let mut out = Vec::new();
        out.extend(self.checkpoint);
        integer(&mut out, self.sequences.len() as u64);
        self.sequences.iter().for_each(|sequence| out.extend(sequence));
        integer(&mut out, self.tokens);
        integer(&mut out, self.tensors.len() as u64);
        for (key, seen) in &self.tensors {
            text(&mut out, key);
            write_seen(&mut out, seen);
        }
        KIND.write(path.as_ref(), &out)
    }

    /// Reads a calibration file and checks that it belongs to `checkpoint`.
    pub fn read(path: impl AsRef<Path>, checkpoint: [u8; 32]) -> Result<Self> {
        let path = path.as_ref();
        let content = KIND.read(path)?;
        let mut reader = Reader { left: &content, length: content.len() };
        let calibration = read(&mut reader).and_then(|calibration| match reader.left.is_empty() {
            true => Ok(calibration),
            false => Err("bytes after the end"),
        });
        let calibration =
            calibration.map_err(|what| damaged(path, HEAD + reader.length - reader.left.len(), what))?;
        if calibration.checkpoint != checkpoint {
            let found = hex::encode(&calibration.checkpoint);
            let what = format!("measured on checkpoint {found}, not on {}", hex::encode(&checkpoint));
            return Err(Error::invalid(what)
                .at(path.display())
                .with_help("measure this checkpoint: values of another one do not apply to it"));
        }
        Ok(calibration)
    }
}

fn integer(out: &mut Vec<u8>, mut value: u64) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

fn text(out: &mut Vec<u8>, text: &str) {
    integer(out, text.len() as u64);
    out.extend(text.as_bytes());
}

fn write_seen(out: &mut Vec<u8>, seen: &Seen) {
    let histogram = &seen.histogram;
    let mut flags = 0;
    let parts = [
        (MASKED, seen.masked),
        (RANGE, seen.range.is_some()),
        (VALUES, histogram.exponent.is_some()),
        (NEGATIVE, !histogram.negative.is_empty()),
        (POSITIVE, !histogram.positive.is_empty()),
    ];
    parts.iter().filter(|(_, present)| *present).for_each(|(flag, _)| flags |= flag);
    out.push(flags);
    if let Some((low, high)) = seen.range {
        out.extend(low.to_le_bytes());
        out.extend(high.to_le_bytes());
    }
    if let Some(exponent) = histogram.exponent {
        out.push(exponent as i8 as u8);
    }
    integer(out, histogram.zeros);
    for side in [&histogram.negative, &histogram.positive].into_iter().filter(|side| !side.is_empty()) {
        let used = side.iter().rposition(|&count| count > 0).map_or(0, |last| last + 1);
        integer(out, used as u64);
        side[..used].iter().for_each(|&count| integer(out, count));
    }
}

struct Reader<'b> {
    left: &'b [u8],
    length: usize,
}

type Part<T> = Result<T, &'static str>;

impl Reader<'_> {
    fn bytes<const N: usize>(&mut self) -> Part<[u8; N]> {
        let (bytes, left) = self.left.split_first_chunk::<N>().ok_or("the content ends early")?;
        self.left = left;
        Ok(*bytes)
    }

    fn integer(&mut self) -> Part<u64> {
        let mut value = 0_u64;
        for shift in (0..64).step_by(7) {
            let [byte] = self.bytes()?;
            let part = u64::from(byte & 0x7F);
            if part << shift >> shift != part || (byte == 0 && shift > 0) {
                return Err("an integer");
            }
            value |= part << shift;
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err("an integer")
    }

    /// Reads a count of items with at least `least_bytes` bytes each. Rejects counts beyond the end
    /// of the file.
    fn count(&mut self, least_bytes: usize) -> Part<usize> {
        let count = self.integer()?;
        match usize::try_from(count) {
            Ok(count) if count <= self.left.len() / least_bytes => Ok(count),
            _ => Err("a count beyond the end of the file"),
        }
    }

    fn text(&mut self) -> Part<String> {
        let length = self.integer()?;
        if length > NAME_LIMIT || length > self.left.len() as u64 {
            return Err("the length of a name");
        }
        let (text, left) = self.left.split_at(length as usize);
        self.left = left;
        String::from_utf8(text.to_vec()).map_err(|_| "a name that is not UTF-8")
    }

    fn float(&mut self) -> Part<f32> {
        let value = f32::from_le_bytes(self.bytes()?);
        if value.is_finite() { Ok(value) } else { Err("a number that is not finite") }
    }
}

/// Reads the next name. Names must be unique and in ascending order, so equal contents give equal
/// files.
fn next_name<T>(reader: &mut Reader<'_>, known: &BTreeMap<String, T>) -> Part<String> {
    let name = reader.text()?;
    match known.last_key_value() {
        Some((last, _)) if *last >= name => Err("names out of order"),
        _ => Ok(name),
    }
}

fn read(reader: &mut Reader<'_>) -> Part<Calibration> {
    let checkpoint = reader.bytes()?;
    let count = reader.count(32)?;
    let mut sequences = Vec::with_capacity(count);
    for _ in 0..count {
        sequences.push(reader.bytes()?);
    }
    if !sequences.is_sorted() || sequences.is_empty() {
        return Err("the sequences");
    }
    let tokens = reader.integer()?;
    let mut tensors = BTreeMap::new();
    for _ in 0..reader.count(3)? {
        let key = next_name(reader, &tensors)?;
        tensors.insert(key, read_seen(reader)?);
    }
    Ok(Calibration { checkpoint, sequences, tokens, tensors })
}

fn read_seen(reader: &mut Reader<'_>) -> Part<Seen> {
    let [flags] = reader.bytes()?;
    if flags >= POSITIVE << 1 {
        return Err("the flags of a tensor");
    }
    let has = |flag: u8| flags & flag != 0;
    let range = match has(RANGE) {
        true => Some((reader.float()?, reader.float()?)).filter(|(low, high)| low <= high),
        false => None,
    };
    if range.is_none() == has(RANGE) {
        return Err("a range whose ends are crossed");
    }
    let exponent = match has(VALUES) {
        true => {
            let [byte] = reader.bytes()?;
            Some(i32::from(byte as i8)).filter(|exponent| EXPONENTS.contains(exponent))
        }
        false => None,
    };
    if exponent.is_none() == has(VALUES) || ((has(NEGATIVE) || has(POSITIVE)) && !has(VALUES)) {
        return Err("the width of bins");
    }
    let zeros = reader.integer()?;
    let mut total = zeros;
    let mut side = |has: bool| -> Part<Vec<u64>> {
        if !has {
            return Ok(Vec::new());
        }
        let used = reader.count(1)?;
        if used > BINS {
            return Err("more bins than there are");
        }
        let mut side = vec![0; BINS];
        for count in &mut side[..used] {
            *count = reader.integer()?;
            total = total.checked_add(*count).ok_or("a count of values")?;
        }
        Ok(side)
    };
    let negative = side(has(NEGATIVE))?;
    let positive = side(has(POSITIVE))?;
    Ok(Seen { range, masked: has(MASKED), histogram: Histogram { exponent, zeros, negative, positive } })
}
