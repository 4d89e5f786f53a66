//! MP3 and Ogg Vorbis.

use std::io::{self, Cursor};

use shardwright_vocabulary::Result;
use symphonia::core::codecs::audio::AudioDecoderOptions;
use symphonia::core::errors::Error;
use symphonia::core::formats::probe::Hint;
use symphonia::core::formats::{FormatOptions, TrackType};
use symphonia::core::io::{MediaSourceStream, MediaSourceStreamOptions};
use symphonia::core::meta::MetadataOptions;

use crate::SoundSettings;
use crate::file::{damaged, truncated, unsupported};
use crate::sound::Mixer;

/// Decodes every packet. A damaged one is an error, not a gap.
pub(super) fn decode<'a>(bytes: &[u8], origin: &'a str, settings: &'a SoundSettings) -> Result<Mixer<'a>> {
    let wrong = |error: Error| match error {
        // The bytes are in memory, so reading fails only at their end.
        Error::IoError(error) => truncated(origin, error),
        Error::Unsupported(what) => unsupported(origin, what),
        error => damaged(origin, error),
    };
    let options = MediaSourceStreamOptions::default();
    let source = MediaSourceStream::new(Box::new(Cursor::new(bytes.to_vec())), options);
    let mut format = symphonia::default::get_probe()
        .probe(&Hint::new(), source, FormatOptions::default(), MetadataOptions::default())
        .map_err(wrong)?;
    let track = format.default_track(TrackType::Audio).ok_or_else(|| damaged(origin, "no sound in it"))?;
    let wanted = track.id;
    let parameters = track.codec_params.as_ref().and_then(|parameters| parameters.audio());
    let parameters = parameters.ok_or_else(|| unsupported(origin, "its coding"))?;
    let mut decoder = symphonia::default::get_codecs()
        .make_audio_decoder(parameters, &AudioDecoderOptions::default())
        .map_err(wrong)?;
    let mut mixer: Option<Mixer> = None;
    let mut samples: Vec<f32> = Vec::new();
    loop {
        let packet = match format.next_packet() {
            Ok(Some(packet)) => packet,
            Ok(None) => break,
            // The last frame of an MP3 may be incomplete.
            Err(Error::IoError(error)) if error.kind() == io::ErrorKind::UnexpectedEof => break,
            Err(error) => return Err(wrong(error)),
        };
        if packet.track_id != wanted {
            continue;
        }
        let decoded = decoder.decode(&packet).map_err(wrong)?;
        let (rate, channels) = (decoded.spec().rate(), decoded.spec().channels().count() as u32);
        let mixer = match &mut mixer {
            Some(mixer) if (mixer.rate, mixer.channels) != (rate, channels) => {
                return Err(unsupported(origin, "a rate that changes within the sound"));
            }
            Some(mixer) => mixer,
            none => none.insert(Mixer::new(origin, rate, channels, settings)?),
        };
        decoded.copy_to_vec_interleaved(&mut samples);
        for sample in &samples {
            mixer.push(*sample)?;
        }
    }
    mixer.ok_or_else(|| damaged(origin, "no sound in it"))
}
