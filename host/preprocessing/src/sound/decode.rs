//! Decoders for files of sounds.

use std::io::{self, Cursor};

use claxon::{FlacReader, FlacReaderOptions};

use super::Mixer;
use crate::{PreprocessingError, Result, SoundSettings, file};

#[cfg(feature = "mp3-ogg")]
mod compressed;
mod wav;

/// Decodes a file of the type that its first bytes indicate.
pub(super) fn decode<'a>(bytes: &[u8], origin: &'a str, settings: &'a SoundSettings) -> Result<Mixer<'a>> {
    match file::look(bytes) {
        "a WAV sound" => wav::decode(bytes, origin, settings),
        "a FLAC sound" => flac(bytes, origin, settings),
        #[cfg(feature = "mp3-ogg")]
        "an MP3 sound" | "an Ogg sound" => compressed::decode(bytes, origin, settings),
        found => Err(PreprocessingError::UnknownType {
            origin: origin.to_owned(),
            found,
            understood: if cfg!(feature = "mp3-ogg") { "WAV, FLAC, MP3, Ogg Vorbis" } else { "WAV, FLAC" }
                .into(),
        }),
    }
}

fn damaged(origin: &str, reason: impl ToString) -> PreprocessingError {
    PreprocessingError::Damaged { origin: origin.to_owned(), reason: reason.to_string() }
}

fn unsupported(origin: &str, what: impl ToString) -> PreprocessingError {
    PreprocessingError::UnsupportedCoding { origin: origin.to_owned(), what: what.to_string() }
}

/// Converts a read error. The bytes are in memory, so reading fails only at their end.
fn unread(origin: &str, error: &io::Error) -> PreprocessingError {
    PreprocessingError::Truncated { origin: origin.to_owned(), reason: error.to_string() }
}

/// Returns the factor that scales integers of that many bits to -1 to 1.
fn scale(bits: u32) -> f64 {
    0.5f64.powi(bits.saturating_sub(1) as i32)
}

fn flac<'a>(bytes: &[u8], origin: &'a str, settings: &'a SoundSettings) -> Result<Mixer<'a>> {
    let wrong = |error: claxon::Error| match error {
        claxon::Error::IoError(error) => unread(origin, &error),
        claxon::Error::FormatError(reason) => damaged(origin, reason),
        claxon::Error::Unsupported(what) => unsupported(origin, format!("a FLAC sound with a {what}")),
    };
    // Comments may claim megabytes and are irrelevant to the sound.
    let options = FlacReaderOptions { metadata_only: false, read_vorbis_comment: false };
    let mut reader = FlacReader::new_ext(Cursor::new(bytes), options).map_err(wrong)?;
    let info = reader.streaminfo();
    let mut mixer = Mixer::new(origin, info.sample_rate, info.channels, settings)?;
    mixer.expect_no_longer(info.samples.unwrap_or(0))?;
    let scale = scale(info.bits_per_sample);
    let mut blocks = reader.blocks();
    let mut buffer = Vec::new();
    let mut decoded = 0;
    while let Some(block) = blocks.read_next_or_eof(buffer).map_err(wrong)? {
        if block.channels() != info.channels {
            return Err(damaged(origin, "a block of other channels"));
        }
        for moment in 0..block.duration() {
            for channel in 0..block.channels() {
                mixer.push((f64::from(block.sample(channel, moment)) * scale) as f32)?;
            }
        }
        decoded += u64::from(block.duration());
        buffer = block.into_buffer();
    }
    match info.samples {
        // None and 0 mean that the encoder did not know.
        Some(claimed) if claimed > decoded => Err(PreprocessingError::Truncated {
            origin: origin.to_owned(),
            reason: format!("{decoded} samples of {claimed}"),
        }),
        _ => Ok(mixer),
    }
}
