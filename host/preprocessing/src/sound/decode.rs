//! Decoders for files of sounds.

use std::io::Cursor;

use claxon::{FlacReader, FlacReaderOptions};
use shardwright_vocabulary::Result;

use super::Mixer;
use crate::file::{damaged, truncated, unsupported};
use crate::{SoundSettings, file};

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
        found => {
            let supported =
                if cfg!(feature = "mp3-ogg") { "WAV, FLAC, MP3, Ogg Vorbis" } else { "WAV, FLAC" };
            Err(file::unknown_type(origin, found, supported))
        }
    }
}

/// Returns the factor that scales integers of that many bits to -1 to 1.
fn scale(bits: u32) -> f64 {
    0.5f64.powi(bits.saturating_sub(1) as i32)
}

fn flac<'a>(bytes: &[u8], origin: &'a str, settings: &'a SoundSettings) -> Result<Mixer<'a>> {
    let wrong = |error: claxon::Error| match error {
        // The bytes are in memory, so reading fails only at their end.
        claxon::Error::IoError(error) => truncated(origin, error),
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
        Some(claimed) if claimed > decoded => {
            Err(truncated(origin, format!("{decoded} samples of {claimed}")))
        }
        _ => Ok(mixer),
    }
}
