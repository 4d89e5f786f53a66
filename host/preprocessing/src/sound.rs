//! Sounds: decoded, mixed down, resampled, and as frames of features.

use std::fmt;
use std::path::Path;

use sha2::{Digest, Sha256};
use shardwright_vocabulary::{Error, ErrorKind, Result};

use crate::settings::{not_finite, wrong_length};
use crate::{SoundSettings, file, limits};

mod decode;
mod mel;
mod resample;

/// Name in errors of sounds that are not from a file.
const UNNAMED: &str = "the sound";

/// A sound: one channel at the rate of its settings, with at least one frame and at most the
/// longest clip.
#[derive(Clone, PartialEq)]
pub struct Sound {
    /// Samples, about -1 to 1.
    samples: Vec<f32>,
    settings: SoundSettings,
}

impl Sound {
    /// Reads a WAV or FLAC file, with the feature `mp3-ogg` also MP3 and Ogg Vorbis. The type
    /// follows from the content, not from the name. Channels are mixed down to their mean and the
    /// sound is resampled to the rate of the settings. One channel at that rate stays unchanged,
    /// bit for bit.
    ///
    /// # Errors
    ///
    /// The errors of reading the file, and of [`from_bytes`](Self::from_bytes) with the name of the
    /// file.
    pub fn from_path(path: impl AsRef<Path>, settings: &SoundSettings) -> Result<Self> {
        settings.check()?;
        let path = path.as_ref();
        let bytes = file::read(path, limits::SOUND_FILE_BYTES)?;
        let origin = path.display().to_string();
        Self::decode(&bytes, &origin, settings).map_err(|error| match error.kind() {
            // The file has values that an application may not pass.
            ErrorKind::Argument => file::damaged(&origin, error.message()),
            _ => error,
        })
    }

    /// Decodes the bytes of such a file.
    ///
    /// # Errors
    ///
    /// * If the type or the coding is not supported.
    /// * If the content is damaged or truncated.
    /// * If the sound is longer than the longest clip, according to the header or to the samples
    ///   decoded so far.
    /// * The errors of [`from_samples`](Self::from_samples).
    pub fn from_bytes(bytes: &[u8], settings: &SoundSettings) -> Result<Self> {
        file::expect_at_most(bytes, limits::SOUND_FILE_BYTES, UNNAMED)?;
        Self::decode(bytes, UNNAMED, settings)
    }

    /// Creates a sound from samples of one channel, `rate` per second, from -1 to 1.
    ///
    /// # Errors
    ///
    /// If the sound is shorter than one frame or longer than the longest clip, a sample is not
    /// finite, the rate is not supported, or a setting is out of range.
    pub fn from_samples(rate: u32, samples: &[f32], settings: &SoundSettings) -> Result<Self> {
        Self::from_interleaved(rate, 1, samples, settings)
    }

    /// Creates a sound from samples of several alternating channels: the first sample of each, then
    /// the second of each.
    ///
    /// # Errors
    ///
    /// If the channels do not divide the samples, and the errors of
    /// [`from_samples`](Self::from_samples).
    pub fn from_interleaved(
        rate: u32,
        channels: u32,
        samples: &[f32],
        settings: &SoundSettings,
    ) -> Result<Self> {
        let mut mixer = Mixer::new(UNNAMED, rate, channels, settings)?;
        let length = samples.len();
        if !length.is_multiple_of(channels as usize) {
            return Err(wrong_channels(UNNAMED, format!("{length} samples cannot be {channels} channels")));
        }
        mixer.expect_no_longer(length as u64 / u64::from(channels))?;
        for sample in samples {
            mixer.push(*sample)?;
        }
        mixer.finish()
    }

    fn decode(bytes: &[u8], origin: &str, settings: &SoundSettings) -> Result<Self> {
        settings.check()?;
        file::guarded(origin, || decode::decode(bytes, origin, settings))?.finish()
    }

    /// Returns the samples, at the rate of the settings.
    pub fn samples(&self) -> &[f32] {
        &self.samples
    }

    /// Returns the settings that the sound was made for.
    pub fn settings(&self) -> &SoundSettings {
        &self.settings
    }

    /// Returns the number of frames, including frames at the end that the sound does not fill.
    pub fn frames(&self) -> usize {
        self.settings.frames(self.samples.len())
    }

    /// Returns the number of frames that contain sound, which [`write_frames`](Self::write_frames)
    /// counts.
    pub fn valid_frames(&self) -> usize {
        self.settings.valid_frames(self.samples.len())
    }

    /// Returns the number of soft tokens: placeholders in a prompt.
    pub fn soft_tokens(&self) -> usize {
        self.settings.soft_tokens(self.valid_frames())
    }

    /// Returns a hash of rate and samples. Equal sounds have equal hashes, regardless of their
    /// files.
    pub fn content_hash(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(b"shardwright sound f32");
        hash.update(self.settings.rate.to_le_bytes());
        hash.update((self.samples.len() as u64).to_le_bytes());
        for sample in &self.samples {
            hash.update(sample.to_le_bytes());
        }
        hash.finalize().into()
    }

    /// Writes logarithmic mel features, with a row of `bins` values per frame, and returns the
    /// number of valid frames. Rows after these are filled with zeros. There may be more rows than
    /// frames.
    ///
    /// # Errors
    ///
    /// If `frames` is not a whole number of rows, or has fewer rows than valid frames.
    pub fn write_frames(&self, frames: &mut [f32]) -> Result<usize> {
        let (bins, valid) = (self.settings.bins as usize, self.valid_frames());
        if !frames.len().is_multiple_of(bins) || frames.len() < valid * bins {
            let needed = format!("a multiple of {bins}, {} or more", valid * bins);
            return Err(wrong_length("the array of frames", &needed, frames.len()));
        }
        let (sound, rest) = frames.split_at_mut(valid * bins);
        mel::write(&self.samples, &self.settings, sound);
        rest.fill(0.0);
        Ok(valid)
    }
}

fn wrong_channels(origin: &str, what: String) -> Error {
    Error::argument(what).at(origin).with_help("mix the sound down to one channel")
}

/// Prints the length only, since samples would fill the screen.
impl fmt::Debug for Sound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Sound")
            .field("samples", &self.samples.len())
            .field("rate", &self.settings.rate)
            .finish()
    }
}

/// Receives samples one by one, mixes their channels, and stops at the longest clip, regardless of
/// the header.
struct Mixer<'a> {
    origin: &'a str,
    rate: u32,
    channels: u32,
    settings: &'a SoundSettings,
    mixed: Vec<f32>,
    /// Sum of the channels at the current moment, as far as they were pushed.
    sum: f64,
    pushed: usize,
}

impl<'a> Mixer<'a> {
    fn new(origin: &'a str, rate: u32, channels: u32, settings: &'a SoundSettings) -> Result<Self> {
        settings.check()?;
        if !limits::RATE.contains(&rate) {
            let (min, max) = (limits::RATE.start(), limits::RATE.end());
            return Err(Error::unsupported(format!(
                "{rate} samples per second; {min} to {max} are supported"
            ))
            .at(origin)
            .with_help(format!(
                "convert the sound to a rate from {min} to {max} Hz, best to that of the model"
            )));
        }
        if !limits::CHANNELS.contains(&channels) {
            let (min, max) = (limits::CHANNELS.start(), limits::CHANNELS.end());
            return Err(wrong_channels(origin, format!("{channels} channels, expected {min} to {max}")));
        }
        Ok(Mixer { origin, rate, channels, settings, mixed: Vec::new(), sum: 0.0, pushed: 0 })
    }

    /// Refuses more moments than the longest clip has.
    fn expect_no_longer(&self, moments: u64) -> Result<()> {
        let longest = u64::from(self.settings.longest) * u64::from(self.rate) / u64::from(self.settings.rate);
        if moments > longest {
            let longest = self.settings.longest_seconds();
            return Err(Error::invalid(format!("longer than {longest} s, the longest clip of the model"))
                .at(self.origin)
                .with_help("cut the sound into shorter parts"));
        }
        Ok(())
    }

    fn push(&mut self, sample: f32) -> Result<()> {
        if !sample.is_finite() {
            return Err(not_finite(self.origin, self.pushed, sample));
        }
        self.pushed += 1;
        self.sum += f64::from(sample);
        if self.pushed.is_multiple_of(self.channels as usize) {
            self.expect_no_longer(self.mixed.len() as u64 + 1)?;
            // A mean of finite samples is finite. With one channel it is the sample itself.
            self.mixed.push((self.sum / f64::from(self.channels)) as f32);
            self.sum = 0.0;
        }
        Ok(())
    }

    fn finish(self) -> Result<Sound> {
        let too_short =
            |what: String| Error::invalid(what).at(self.origin).with_help("record a longer sound");
        if self.mixed.is_empty() {
            return Err(too_short("no samples".to_owned()));
        }
        let rate = self.settings.rate;
        let samples = if self.rate == rate {
            self.mixed
        } else {
            resample::resample(&self.mixed, self.rate, rate).map_err(|reason| {
                let what = format!("resampling from {} to {rate} Hz ({reason})", self.rate);
                file::unsupported(self.origin, what)
            })?
        };
        // Half a frame of zeros precedes the sound, and one sample follows the frame.
        let needed = self.settings.frame as usize - self.settings.frame as usize / 2 + 1;
        if self.settings.valid_frames(samples.len()) == 0 {
            let samples = samples.len();
            return Err(too_short(format!("{samples} samples at {rate} Hz; one frame needs {needed}")));
        }
        Ok(Sound { samples, settings: self.settings.clone() })
    }
}
