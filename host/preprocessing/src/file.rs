//! Reads whole files of limited size, and has the errors that pictures and sounds share.

#[cfg(any(feature = "pictures", feature = "sounds"))]
use std::fmt::Display;
use std::path::Path;

#[cfg(any(feature = "pictures", feature = "sounds"))]
use shardwright_vocabulary::Error;
use shardwright_vocabulary::Result;

/// Reads a regular file of at most `max` bytes.
pub(crate) fn read(path: &Path, max: u64) -> Result<Vec<u8>> {
    shardwright_files::read_named(path, max)
        .map_err(|error| error.or_help("check that the file exists and can be read"))
}

/// Refuses more than `max` bytes, like [`read`] does for a file.
#[cfg(any(feature = "pictures", feature = "sounds"))]
pub(crate) fn expect_at_most(bytes: &[u8], max: u64, origin: &str) -> Result<()> {
    if bytes.len() as u64 > max {
        return Err(Error::invalid(format!("more than {max} bytes, which is the limit"))
            .at(origin)
            .with_help("check which file this is"));
    }
    Ok(())
}

/// Runs a decoder of another crate. If it panics on hostile bytes, the file counts as damaged, and
/// the program continues.
#[cfg(any(feature = "pictures", feature = "sounds"))]
pub(crate) fn guarded<T>(origin: &str, decode: impl FnOnce() -> Result<T>) -> Result<T> {
    // If a decoder panics, its state is dropped with it.
    std::panic::catch_unwind(std::panic::AssertUnwindSafe(decode))
        .unwrap_or_else(|_| Err(damaged(origin, "the decoder gave up")))
}

/// Returns the error of content that contradicts its own format.
#[cfg(any(feature = "pictures", feature = "sounds"))]
pub(crate) fn damaged(origin: &str, reason: impl Display) -> Error {
    Error::invalid(format!("damaged: {reason}")).at(origin).with_help("fetch or save the file again")
}

/// Returns the error of content that ends too early.
#[cfg(any(feature = "pictures", feature = "sounds"))]
pub(crate) fn truncated(origin: &str, reason: impl Display) -> Error {
    Error::invalid(format!("truncated: {reason}")).at(origin).with_help("fetch or save the file again")
}

/// Returns the error of content of a known type whose variant is not supported.
#[cfg(any(feature = "pictures", feature = "sounds"))]
pub(crate) fn unsupported(origin: &str, what: impl Display) -> Error {
    Error::unsupported(format!("unsupported: {what}"))
        .at(origin)
        .with_help("save it again: pictures in RGB, sounds as plain PCM")
}

/// Returns the error of a type that this build does not decode.
#[cfg(any(feature = "pictures", feature = "sounds"))]
pub(crate) fn unknown_type(origin: &str, found: &str, supported: &str) -> Error {
    Error::unsupported(format!("{found}, expected one of {supported}"))
        .at(origin)
        .with_help(format!("convert it to one of {supported}"))
}

/// Returns the type of file that the first bytes suggest, for messages.
#[cfg(any(feature = "pictures", feature = "sounds"))]
pub(crate) fn look(bytes: &[u8]) -> &'static str {
    const SIGNS: &[(usize, &[u8], &str)] = &[
        (0, b"\x89PNG\r\n\x1a\n", "a PNG picture"),
        (0, b"\xff\xd8\xff", "a JPEG picture"),
        (0, b"GIF8", "a GIF picture"),
        (8, b"WEBP", "a WebP picture"),
        (8, b"WAVE", "a WAV sound"),
        (8, b"AVI ", "an AVI film"),
        (0, b"BM", "a BMP picture"),
        (0, b"II*\0", "a TIFF picture"),
        (0, b"MM\0*", "a TIFF picture"),
        (4, b"ftyphei", "a HEIC picture"),
        (4, b"ftypmif1", "a HEIC picture"),
        (4, b"ftypavif", "an AVIF picture"),
        (4, b"ftypM4A", "an M4A sound"),
        (4, b"ftyp", "an MP4 film or sound"),
        (0, b"\x1aE\xdf\xa3", "a Matroska or WebM film"),
        (0, b"fLaC", "a FLAC sound"),
        (0, b"OggS", "an Ogg sound"),
        (0, b"ID3", "an MP3 sound"),
        (0, b"RF64", "an RF64 sound"),
        (0, b"FORM", "an AIFF sound"),
        (0, b"caff", "a CAF sound"),
        (0, b"%PDF", "a PDF document"),
        (0, b"PK\x03\x04", "a ZIP archive"),
        (0, b"\x1f\x8b", "a gzip archive"),
        (0, b"<svg", "an SVG drawing"),
    ];
    let sign =
        |(at, sign, _): &&(usize, &[u8], &str)| bytes.get(*at..).is_some_and(|rest| rest.starts_with(sign));
    if let Some((_, _, name)) = SIGNS.iter().find(sign) {
        return name;
    }
    let head = &bytes[..bytes.len().min(256)];
    // Eleven bits of a frame's head. Checked last, since the other types have different first
    // bytes.
    if matches!(head, [0xff, second, ..] if second & 0xe0 == 0xe0) {
        return "an MP3 sound";
    }
    match head {
        [] => "empty",
        _ if head.iter().all(|byte| (0x20..0x7f).contains(byte) || byte.is_ascii_whitespace()) => "text",
        _ => "of an unknown type",
    }
}
