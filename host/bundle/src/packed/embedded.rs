//! A packed bundle that is an uncompressed entry of a larger ZIP archive, such as an app's package.

use std::path::{Path, PathBuf};

use shardwright_files::{Links, Section};
use shardwright_vocabulary::Result;

use super::container::{self, END_64_BYTES, END_BYTES, End, Fields, LOCAL, LOCAL_BYTES, LOCATOR_64_BYTES};
use crate::error::{file_at, io_at, not_packed};

/// Separator of an archive's path and the name of its entry: `app.apk!/assets/gemma.bundle`.
const SEPARATOR: &str = "!/";

/// Maximum size of a package's central directory in bytes: some hundred thousand entries.
const DIRECTORY_BYTES: u64 = 64 << 20;

/// Maximum size of the comment at the end of an archive in bytes.
const COMMENT_BYTES: u64 = 0xffff;

/// Splits a path into archive and entry, if the archive exists.
pub(crate) fn split(path: &Path) -> Option<(PathBuf, String)> {
    let text = path.to_str()?;
    let mut places = text.match_indices(SEPARATOR);
    places.find_map(|(at, _)| {
        let archive = PathBuf::from(&text[..at]);
        archive.is_file().then(|| (archive, text[at + SEPARATOR.len()..].to_owned()))
    })
}

/// Returns the bytes of an entry.
pub(crate) fn entry(archive: &Path, name: &str) -> Result<Section> {
    let opened = shardwright_files::open(archive, Links::Followed);
    let (file, _) = opened.map_err(|error| file_at(archive, error))?;
    let whole = Section::whole(archive, file).map_err(io_at(archive))?;
    let fault = |offset: u64, reason: String| not_packed(archive, offset, reason);
    let end = end_of(&whole)?.ok_or_else(|| fault(0, "not a ZIP archive".to_owned()))?;
    let directory = whole
        .part(archive, end.offset, end.length)
        .filter(|_| end.length <= DIRECTORY_BYTES)
        .ok_or_else(|| fault(end.offset, "the central directory is beyond the end of the file".to_owned()))?;
    let mut bytes = vec![0; end.length as usize];
    directory.read_exact_at(&mut bytes, 0).map_err(io_at(archive))?;
    let mut fields = Fields::new(&bytes);
    while let Some(entry) = container::entry(&mut fields) {
        if entry.name != name.as_bytes() {
            continue;
        }
        if entry.method != 0 || entry.flags & 1 != 0 || entry.stored != entry.length {
            let reason = format!("`{name}` is compressed or encrypted, and cannot be mapped");
            return Err(fault(entry.offset, reason));
        }
        let beyond = || fault(entry.offset, format!("`{name}` is beyond the end of the file"));
        let mut header = [0; LOCAL_BYTES as usize];
        whole.read_exact_at(&mut header, entry.offset).map_err(|_| beyond())?;
        let mut fields = Fields::new(&header);
        let is_local = fields.u32() == Some(LOCAL);
        let lengths = fields.take(22).and_then(|_| Some(u64::from(fields.u16()?) + u64::from(fields.u16()?)));
        let data = lengths
            .filter(|_| is_local)
            .and_then(|lengths| entry.offset.checked_add(LOCAL_BYTES)?.checked_add(lengths));
        let path = PathBuf::from(format!("{}{SEPARATOR}{name}", archive.display()));
        return data.and_then(|data| whole.part(path, data, entry.length)).ok_or_else(beyond);
    }
    match fields.is_empty() {
        true => Err(fault(end.offset, format!("no entry `{name}`"))),
        false => {
            Err(fault(end.offset, format!("the central directory is damaged before any entry `{name}`")))
        }
    }
}

/// Finds the central directory by the last end record that is followed only by a comment.
fn end_of(whole: &Section) -> Result<Option<End>> {
    let length = (END_BYTES + COMMENT_BYTES).min(whole.length());
    let start = whole.length() - length;
    let mut bytes = vec![0; length as usize];
    whole.read_exact_at(&mut bytes, start).map_err(io_at(whole.path()))?;
    let is_end = |at: &usize| {
        let comment = bytes.get(at + END_BYTES as usize - 2..at + END_BYTES as usize);
        let comment = comment.and_then(|two| two.try_into().ok()).map(u16::from_le_bytes);
        comment.is_some_and(|comment| at + END_BYTES as usize + usize::from(comment) == bytes.len())
            && container::end(&bytes[*at..]).is_some()
    };
    let Some(at) = (0..bytes.len().saturating_sub(END_BYTES as usize - 1)).rev().find(is_end) else {
        return Ok(None);
    };
    let Some((short, is_large)) = container::end(&bytes[at..]) else { return Ok(None) };
    if !is_large {
        return Ok(Some(short));
    }
    let before = (start + at as u64).checked_sub(LOCATOR_64_BYTES + END_64_BYTES);
    let mut record = [0; END_64_BYTES as usize];
    match before.map(|before| whole.read_exact_at(&mut record, before)) {
        Some(Ok(())) => Ok(container::end_64(&record)),
        _ => Ok(None),
    }
}
