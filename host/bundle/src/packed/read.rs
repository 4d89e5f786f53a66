//! Opens a packed bundle.

use std::collections::HashMap;

use shardwright_files::Section;
use shardwright_trust::ENVELOPE_BYTES;
use shardwright_vocabulary::Result;

use super::container::{self, END_64_BYTES, END_BYTES, End, Fields, LOCATOR_64_BYTES};
use super::layout::{self, Part, PartLocation};
use crate::Digest;
use crate::error::{beyond, io_at, not_packed};
use crate::layout::{FILES, Layout, MANIFEST, SIGNATURE};

/// Maximum size of a central directory in bytes: some hundred thousand parts.
const DIRECTORY_BYTES: u64 = 16 << 20;

/// A packed bundle, or a volume of one. All bytes outside of its parts are verified, except for
/// padding.
#[derive(Debug)]
pub(crate) struct Packed {
    section: Section,
    /// Set in the first volume, if it is signed.
    signature: Option<Section>,
    /// Set in the first volume.
    manifest: Option<Section>,
    files: HashMap<Digest, Section>,
    parts: Vec<(Part, PartLocation)>,
    /// Offset of the central directory.
    directory: u64,
}

impl Packed {
    /// Reads the central directory and the headers.
    pub(crate) fn open(section: Section) -> Result<Packed> {
        let fault = |offset, reason: &str| not_packed(section.path(), offset, reason);
        let end = end_of(&section)?;
        if end.length > DIRECTORY_BYTES {
            let field = "bytes of the central directory";
            return Err(beyond(section.path(), field, end.length, DIRECTORY_BYTES));
        }
        let rest = section.length().checked_sub(end.offset).filter(|rest| *rest >= end.length);
        // The directory and the records that may follow it.
        let most = end.length + END_64_BYTES + LOCATOR_64_BYTES + END_BYTES;
        let rest = rest.filter(|rest| *rest <= most).ok_or_else(|| {
            fault(
                section.length().saturating_sub(END_BYTES),
                "the central directory does not end at the end of the file",
            )
        })?;
        let mut found = vec![0; rest as usize];
        section.read_exact_at(&mut found, end.offset).map_err(io_at(section.path()))?;

        let parts = parts(&found[..end.length as usize])
            .ok_or_else(|| fault(end.offset, "the central directory does not belong to a packed bundle"))?;
        let overflow = || fault(end.offset, "the parts are too long for a file");
        let (places, offset) = layout::places(&parts).ok_or_else(overflow)?;
        let expected = layout::directory(&parts, &places, offset);
        if offset != end.offset || expected != found {
            let equal = expected.iter().zip(&found).take_while(|(one, other)| one == other).count();
            let at = end.offset + if offset == end.offset { equal as u64 } else { 0 };
            return Err(fault(at, "the central directory does not match the parts and their offsets"));
        }
        let parts: Vec<(Part, PartLocation)> = parts.into_iter().zip(places).collect();
        for (part, place) in &parts {
            let expected = layout::local(part, *place);
            let mut found = vec![0; expected.len()];
            section.read_exact_at(&mut found, place.header).map_err(io_at(section.path()))?;
            if found != expected {
                return Err(fault(place.header, "a local header does not match its part"));
            }
        }

        let mut signature = None;
        let mut manifest = None;
        let mut files = HashMap::new();
        for (part, place) in &parts {
            let whole = section.path().join(&part.name);
            // The directory begins after every part, and was read.
            let bytes = section.part(whole, place.data, part.length).ok_or_else(overflow)?;
            if part.name == SIGNATURE {
                if part.length != ENVELOPE_BYTES as u64 {
                    return Err(fault(place.header, "the signature has a wrong length"));
                }
                signature = Some(bytes);
                continue;
            }
            if part.name == MANIFEST {
                manifest = Some(bytes);
                continue;
            }
            let known = part.name.rsplit('/').next().and_then(|name| name.parse::<Digest>().ok());
            let sha256 = known.filter(|known| Layout::name_of(*known) == part.name);
            let sha256 = sha256.ok_or_else(|| fault(place.header, "a part has a wrong name"))?;
            files.insert(sha256, bytes);
        }
        Ok(Packed { signature, manifest, files, parts, directory: end.offset, section })
    }

    /// Returns the section of the whole file.
    pub(crate) fn section(&self) -> &Section {
        &self.section
    }

    /// Returns the bytes of the signature, if there is one.
    pub(crate) fn signature(&self) -> Result<Option<Vec<u8>>> {
        let Some(section) = &self.signature else { return Ok(None) };
        let mut bytes = vec![0; ENVELOPE_BYTES];
        section.read_exact_at(&mut bytes, 0).map_err(io_at(section.path()))?;
        Ok(Some(bytes))
    }

    pub(crate) fn manifest(&self) -> Option<&Section> {
        self.manifest.as_ref()
    }

    pub(crate) fn file(&self, sha256: Digest) -> Option<&Section> {
        self.files.get(&sha256)
    }

    /// Returns the hash and length of each file.
    pub(crate) fn files(&self) -> impl Iterator<Item = (Digest, u64)> {
        self.files.iter().map(|(sha256, section)| (*sha256, section.length()))
    }

    /// Checks that all bytes between headers and parts are zeros. Opening does not read these
    /// bytes.
    pub(crate) fn check_padding(&self) -> Result<()> {
        let mut gaps = Vec::with_capacity(2 * self.parts.len() + 1);
        let mut end = 0;
        for (part, place) in &self.parts {
            let header = layout::local(part, *place).len() as u64;
            gaps.extend([(end, place.header), (place.header + header, place.data)]);
            end = place.data + part.length;
        }
        gaps.push((end, self.directory));
        for (from, to) in gaps {
            let mut padding = vec![0; (to - from) as usize];
            self.section.read_exact_at(&mut padding, from).map_err(io_at(self.section.path()))?;
            if let Some(at) = padding.iter().position(|byte| *byte != 0) {
                let offset = from + at as u64;
                return Err(not_packed(self.section.path(), offset, "the padding is not zero"));
            }
        }
        Ok(())
    }
}

/// Finds the central directory from the end of the file.
fn end_of(section: &Section) -> Result<End> {
    let fault = |reason: &str| not_packed(section.path(), section.length().saturating_sub(END_BYTES), reason);
    let read = |before_end: u64, length: u64| -> Result<Vec<u8>> {
        let at = section.length().checked_sub(before_end).ok_or_else(|| fault("the file is truncated"))?;
        let mut bytes = vec![0; length as usize];
        section.read_exact_at(&mut bytes, at).map_err(io_at(section.path()))?;
        Ok(bytes)
    };
    let (short, is_large) = container::end(&read(END_BYTES, END_BYTES)?)
        .ok_or_else(|| fault("the file does not end like a ZIP archive"))?;
    if !is_large {
        return Ok(short);
    }
    // The locator's offset is determined by the rest, and compared with it.
    let large = read(END_BYTES + LOCATOR_64_BYTES + END_64_BYTES, END_64_BYTES)?;
    container::end_64(&large).ok_or_else(|| fault("the file does not end like a large archive"))
}

/// Parses the parts in a central directory: `bundle.json`, which further volumes lack, and then
/// files in the order of their names. Returns `None` for any other directory.
fn parts(directory: &[u8]) -> Option<Vec<Part>> {
    let mut fields = Fields::new(directory);
    let mut parts: Vec<Part> = Vec::new();
    while !fields.is_empty() {
        let entry = container::entry(&mut fields)?;
        let name = std::str::from_utf8(entry.name).ok()?;
        let is_file = name.strip_prefix(FILES).is_some_and(|name| name.starts_with('/'));
        let is_next = match parts.last() {
            None => is_file || [SIGNATURE, MANIFEST].contains(&name),
            Some(last) if last.name == SIGNATURE => name == MANIFEST,
            Some(last) => is_file && (last.name == MANIFEST || name > last.name.as_str()),
        };
        if !is_next {
            return None;
        }
        parts.push(Part { name: name.to_owned(), length: entry.length, crc: entry.crc });
    }
    Some(parts)
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::ErrorKind;

    use super::*;
    use crate::packed::container::{CENTRAL_BYTES, END_BYTES};

    const HASH: &str = "files/e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";

    fn part(name: &str, length: u64) -> Part {
        Part { name: name.to_owned(), length, crc: 0 }
    }

    /// Returns an archive of parts without content, at the given places.
    fn archive(parts: &[Part], change: impl FnOnce(&mut Vec<PartLocation>, &mut u64)) -> Vec<u8> {
        let (mut places, mut offset) = layout::places(parts).unwrap();
        change(&mut places, &mut offset);
        let directory = layout::directory(parts, &places, offset);
        let mut bytes = vec![0; offset as usize];
        for (part, place) in parts.iter().zip(&places) {
            let header = layout::local(part, *place);
            let end = (place.header as usize + header.len()).min(bytes.len());
            let length = end.saturating_sub(place.header as usize);
            bytes[end - length..end].copy_from_slice(&header[..length]);
        }
        bytes.extend(directory);
        bytes
    }

    fn open(bytes: &[u8]) -> Result<Packed> {
        use std::io::Write;
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(bytes).unwrap();
        Packed::open(Section::whole("made.swb", file).unwrap())
    }

    fn refused(bytes: &[u8], word: &str) {
        let error = open(bytes).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.place().is_some_and(|place| place.starts_with("made.swb: offset ")), "{error}");
        assert!(error.message().contains(word) && error.help().is_some(), "{error}");
    }

    #[test]
    fn parts_of_the_right_names_in_the_right_places_are_taken() {
        let parts = [part("bundle.json", 7), part(HASH, 0)];
        let packed = open(&archive(&parts, |_, _| ())).unwrap();
        assert_eq!((packed.manifest().unwrap().length(), packed.files().count()), (7, 1));
        packed.check_padding().unwrap();
        assert!(packed.file(Digest::of(b"")).is_some() && packed.file(Digest::of(b"other")).is_none());
    }

    #[test]
    fn names_that_lead_elsewhere_repeat_or_are_out_of_order_are_refused() {
        let none = "does not belong to a packed bundle";
        for (names, word) in [
            (&["bundle.json", "bundle.json"][..], none),
            (&["bundle.json", "bundle.json.sig"], none),
            (&["bundle.json.sig", HASH], none),
            (&["bundle.json.sig", "bundle.json.sig"], none),
            (&["bundle.json.sig", "bundle.json"], "wrong length"),
            (&["bundle.json.sig"], "wrong length"),
            (&[HASH, "bundle.json"], none),
            (&[HASH, "bundle.json.sig"], none),
            (&["bundle.json", HASH, HASH], none),
            (&["bundle.json", HASH, "files/0"], none),
            (&["bundle.json", "../files/x"], none),
            (&["bundle.json", "/etc/passwd"], none),
            (&["bundle.json", "files/../x"], "wrong name"),
            (&["bundle.json", "files/"], "wrong name"),
            (&["bundle.json", "files"], none),
            (&["bundle.json", &HASH.to_uppercase().replace("FILES", "files")], "wrong name"),
        ] {
            let parts: Vec<Part> = names.iter().map(|name| part(name, 3)).collect();
            refused(&archive(&parts, |_, _| ()), word);
        }
        // A volume without parts has no files.
        assert!(open(&archive(&[], |_, _| ())).unwrap().files().next().is_none());
    }

    #[test]
    fn parts_that_overlap_or_lie_elsewhere_are_refused() {
        let parts = [part("bundle.json", 70_000), part(HASH, 70_000)];
        let word = "does not match the parts";
        refused(&archive(&parts, |places, _| places[1].header = places[0].header), word);
        refused(&archive(&parts, |places, _| places.swap(0, 1)), word);
        refused(&archive(&parts, |places, _| places[1].header += 64), word);
        refused(&archive(&parts, |_, offset| *offset += 64), word);
        refused(&archive(&parts, |_, offset| *offset -= 64), word);
    }

    #[test]
    fn what_is_compressed_encrypted_or_a_link_is_refused() {
        let parts = [part("bundle.json", 7), part(HASH, 0)];
        let whole = archive(&parts, |_, _| ());
        let directory = layout::places(&parts).unwrap().1 as usize;
        // Flags, method, time, attributes of the first entry of the directory, and a comment's
        // length.
        for at in [8, 10, 12, 32, 38, 41] {
            let mut changed = whole.clone();
            changed[directory + at] ^= 1;
            assert!(open(&changed).is_err(), "{at}");
        }
        for at in [4, 6, 8, 10, 14, 18, 26, 28, 30] {
            let mut changed = whole.clone();
            changed[at] ^= 1;
            refused(&changed, "local header");
        }
    }

    #[test]
    fn lengths_beyond_the_file_are_refused_before_anything_is_reserved() {
        let parts = [part("bundle.json", 7), part(HASH, 0)];
        let whole = archive(&parts, |_, _| ());
        let end = whole.len() - END_BYTES as usize;
        let directory = layout::places(&parts).unwrap().1 as usize;
        for (at, value) in [(end + 12, u32::MAX - 1), (end + 16, u32::MAX - 1), (end + 12, 0), (end + 16, 0)]
        {
            let mut changed = whole.clone();
            changed[at..at + 4].copy_from_slice(&value.to_le_bytes());
            assert!(open(&changed).is_err(), "{at} {value}");
        }
        // A part of four gigabytes, and one whose large length is expected to follow.
        for value in [u32::MAX - 1, u32::MAX] {
            let mut changed = whole.clone();
            for at in [20, 24] {
                changed[directory + at..directory + at + 4].copy_from_slice(&value.to_le_bytes());
            }
            assert!(open(&changed).is_err(), "{value}");
        }
        let mut many = whole.clone();
        many[end + 8..end + 12].copy_from_slice(&[0xff; 4]);
        refused(&many, "large archive");
        assert!(CENTRAL_BYTES < whole.len() - directory);
    }
}
