//! The bytes of a packed bundle outside of its parts.

use super::container::{
    CENTRAL, CENTRAL_BYTES, END, END_64, END_64_BYTES, EXTRA_64, LARGE, LOCAL, LOCAL_BYTES, LOCATOR_64, MANY,
};

/// Alignment of parts in bytes. No system has larger pages.
pub(crate) const PART: u64 = 64 << 10;

/// Alignment of headers in bytes. It limits the padding of a header to the maximum of an extra
/// field.
const HEADER: u64 = 64;

/// Extra field for padding, as Android's `zipalign` writes it: the alignment, then zeros.
const EXTRA_PADDING: u16 = 0xd935;

/// Required version of the format, without and with large numbers.
const VERSION: u16 = 20;
const VERSION_64: u16 = 45;

/// 1 January 1980, the earliest supported date.
const TIME_AND_DATE: u32 = 0x0021_0000;

/// Origin and permissions: Unix, and a regular file that its owner may write.
const MADE_BY_UNIX: u16 = 3 << 8;
const PERMISSIONS: u32 = 0o100_644 << 16;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) length: u64,
    pub(crate) crc: u32,
}

/// Location of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct PartLocation {
    pub(crate) header: u64,
    pub(crate) data: u64,
}

fn needs_64(part: &Part) -> bool {
    part.length >= LARGE
}

/// Computes the places of parts and the offset of the central directory. Returns `None` on
/// overflow.
pub(crate) fn places(parts: &[Part]) -> Option<(Vec<PartLocation>, u64)> {
    let mut places = Vec::with_capacity(parts.len());
    let mut end = 0_u64;
    for part in parts {
        let header = end.checked_next_multiple_of(HEADER)?;
        let least = header + LOCAL_BYTES + part.name.len() as u64 + least_extra(part);
        let data = least.checked_next_multiple_of(PART)?;
        end = data.checked_add(part.length)?;
        places.push(PartLocation { header, data });
    }
    Some((places, end.checked_next_multiple_of(HEADER)?))
}

fn least_extra(part: &Part) -> u64 {
    let padding = 6;
    if needs_64(part) { padding + 20 } else { padding }
}

/// Returns the local header of a part without the zeros at the end of its padding.
pub(crate) fn local(part: &Part, place: PartLocation) -> Vec<u8> {
    let extra = place.data - place.header - LOCAL_BYTES - part.name.len() as u64;
    let mut to = Vec::new();
    put_u32(&mut to, LOCAL);
    common(&mut to, part);
    put_u16(&mut to, part.name.len() as u16);
    put_u16(&mut to, extra as u16);
    to.extend_from_slice(part.name.as_bytes());
    if needs_64(part) {
        put_u16(&mut to, EXTRA_64);
        put_u16(&mut to, 16);
        put_u64(&mut to, part.length);
        put_u64(&mut to, part.length);
    }
    let padding = extra - (least_extra(part) - 2);
    put_u16(&mut to, EXTRA_PADDING);
    put_u16(&mut to, padding as u16);
    // The alignment exceeds the range of this field, so store the largest power of two.
    put_u16(&mut to, 1 << 15);
    to
}

/// Writes the fields from the version to the lengths, which local headers and directory entries
/// share.
fn common(to: &mut Vec<u8>, part: &Part) {
    put_u16(to, if needs_64(part) { VERSION_64 } else { VERSION });
    // No flags, method stored.
    put_u32(to, 0);
    put_u32(to, TIME_AND_DATE);
    put_u32(to, part.crc);
    let length = part.length.min(LARGE) as u32;
    put_u32(to, length);
    put_u32(to, length);
}

/// Returns the central directory and its end, for the offset `offset`.
pub(crate) fn directory(parts: &[Part], places: &[PartLocation], offset: u64) -> Vec<u8> {
    let mut to = Vec::with_capacity(parts.len() * (CENTRAL_BYTES + 100));
    for (part, place) in parts.iter().zip(places) {
        entry(&mut to, part, *place);
    }
    let (length, entries) = (to.len() as u64, parts.len() as u64);
    if entries >= MANY || length >= LARGE || offset >= LARGE {
        put_u32(&mut to, END_64);
        put_u64(&mut to, END_64_BYTES - 12);
        put_u16(&mut to, MADE_BY_UNIX | VERSION_64);
        put_u16(&mut to, VERSION_64);
        put_u64(&mut to, 0);
        for number in [entries, entries, length, offset] {
            put_u64(&mut to, number);
        }
        put_u32(&mut to, LOCATOR_64);
        put_u32(&mut to, 0);
        put_u64(&mut to, offset + length);
        put_u32(&mut to, 1);
    }
    put_u32(&mut to, END);
    put_u32(&mut to, 0);
    for _ in 0..2 {
        put_u16(&mut to, entries.min(MANY) as u16);
    }
    put_u32(&mut to, length.min(LARGE) as u32);
    put_u32(&mut to, offset.min(LARGE) as u32);
    put_u16(&mut to, 0);
    to
}

fn entry(to: &mut Vec<u8>, part: &Part, place: PartLocation) {
    let mut large = Vec::new();
    if needs_64(part) {
        put_u64(&mut large, part.length);
        put_u64(&mut large, part.length);
    }
    if place.header >= LARGE {
        put_u64(&mut large, place.header);
    }
    put_u32(to, CENTRAL);
    put_u16(to, MADE_BY_UNIX | VERSION_64);
    common(to, part);
    put_u16(to, part.name.len() as u16);
    put_u16(to, if large.is_empty() { 0 } else { large.len() as u16 + 4 });
    // No comment, first disk, not a text file.
    put_u16(to, 0);
    put_u32(to, 0);
    put_u32(to, PERMISSIONS);
    put_u32(to, place.header.min(LARGE) as u32);
    to.extend_from_slice(part.name.as_bytes());
    if !large.is_empty() {
        put_u16(to, EXTRA_64);
        put_u16(to, large.len() as u16);
        to.extend_from_slice(&large);
    }
}

fn put_u16(to: &mut Vec<u8>, number: u16) {
    to.extend_from_slice(&number.to_le_bytes());
}

fn put_u32(to: &mut Vec<u8>, number: u32) {
    to.extend_from_slice(&number.to_le_bytes());
}

fn put_u64(to: &mut Vec<u8>, number: u64) {
    to.extend_from_slice(&number.to_le_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::packed::container::{self, END_BYTES, Fields, LOCATOR_64_BYTES};

    fn part(name: &str, length: u64) -> Part {
        Part { name: name.to_owned(), length, crc: 7 }
    }

    #[test]
    fn every_part_begins_at_its_multiple_and_padding_fits_its_field() {
        let name = format!("files/{}", "a".repeat(64));
        for length in (0..3 * PART).step_by(7).chain([LARGE - 1, LARGE, LARGE + 1, 1 << 40]) {
            let parts = [part("bundle.json", 1000), part(&name, length), part(&name, LARGE), part(&name, 5)];
            let (places, directory) = places(&parts).unwrap();
            let mut end = 0;
            for (part, place) in parts.iter().zip(&places) {
                assert!(place.header >= end && place.header < end + HEADER, "{length}");
                let header = local(part, *place);
                let name = part.name.len() as u64;
                let extra = u16::from_le_bytes(header[28..30].try_into().unwrap());
                assert_eq!(place.header + LOCAL_BYTES + name + u64::from(extra), place.data, "{length}");
                assert!(place.data.is_multiple_of(PART) && place.header + header.len() as u64 <= place.data);
                end = place.data + part.length;
            }
            assert!(directory >= end);
        }
        assert_eq!(places(&[part("a", u64::MAX)]), None);
    }

    #[test]
    fn a_directory_reads_as_what_it_was_made_of() {
        for (count, length) in [(3, 10), (2, LARGE), (2, LARGE - 1), (70_000, 1)] {
            let parts: Vec<Part> = (0..count).map(|index| part(&format!("{index:06}"), length)).collect();
            let (places, offset) = places(&parts).unwrap();
            let bytes = directory(&parts, &places, offset);
            let (short, is_large) = container::end(&bytes[bytes.len() - END_BYTES as usize..]).unwrap();
            let end = match is_large {
                false => short,
                true => {
                    let before = bytes.len() - (END_BYTES + LOCATOR_64_BYTES + END_64_BYTES) as usize;
                    container::end_64(&bytes[before..before + END_64_BYTES as usize]).unwrap()
                }
            };
            assert_eq!((end.entries, end.offset), (count, offset));
            let mut fields = Fields::new(&bytes[..end.length as usize]);
            for (part, place) in parts.iter().zip(&places) {
                let entry = container::entry(&mut fields).unwrap();
                assert_eq!((entry.name, entry.crc), (part.name.as_bytes(), part.crc));
                assert_eq!((entry.length, entry.stored, entry.offset), (length, length, place.header));
                assert_eq!((entry.method, entry.flags), (0, 0));
            }
            assert!(fields.is_empty());
        }
    }
}
