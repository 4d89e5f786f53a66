//! Sounds: decoded, mixed down, resampled, and as frames of features.

use std::fmt;
use std::path::Path;

use sha2::{Digest, Sha256};

use crate::{PreprocessingError, Result, SoundSettings, file, limits};

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
        let path = path.as_ref();
        let bytes = file::read(path, limits::SOUND_FILE_BYTES)?;
        Self::decode(&bytes, &path.display().to_string(), settings).map_err(of_file)
    }

    /// Decodes the bytes of such a file.
    ///
    /// # Errors
    ///
    /// * [`PreprocessingError::UnknownType`] and [`PreprocessingError::UnsupportedCoding`] for
    ///   unsupported content.
    /// * [`PreprocessingError::Damaged`] and [`PreprocessingError::Truncated`] for broken content.
    /// * [`PreprocessingError::TooLong`] from the header, or as soon as more than the longest clip
    ///   is decoded.
    /// * The errors of [`from_samples`](Self::from_samples).
    pub fn from_bytes(bytes: &[u8], settings: &SoundSettings) -> Result<Self> {
        file::expect_at_most(bytes, limits::SOUND_FILE_BYTES, UNNAMED)?;
        Self::decode(bytes, UNNAMED, settings)
    }

    /// Creates a sound from samples of one channel, `rate` per second, from -1 to 1.
    ///
    /// # Errors
    ///
    /// [`PreprocessingError::NoSamples`], [`PreprocessingError::TooShort`] for less than one frame,
    /// [`PreprocessingError::TooLong`] for more than the longest clip,
    /// [`PreprocessingError::NotFinite`] with the index, [`PreprocessingError::UnsupportedRate`],
    /// and [`PreprocessingError::InvalidSetting`].
    pub fn from_samples(rate: u32, samples: &[f32], settings: &SoundSettings) -> Result<Self> {
        Self::from_interleaved(rate, 1, samples, settings)
    }

    /// Creates a sound from samples of several alternating channels: the first sample of each, then
    /// the second of each.
    ///
    /// # Errors
    ///
    /// [`PreprocessingError::InvalidChannels`] unless the channels divide the samples, and the
    /// errors of [`from_samples`](Self::from_samples).
    pub fn from_interleaved(
        rate: u32,
        channels: u32,
        samples: &[f32],
        settings: &SoundSettings,
    ) -> Result<Self> {
        let mut mixer = Mixer::new(UNNAMED, rate, channels, settings)?;
        let length = samples.len();
        if !length.is_multiple_of(channels as usize) {
            let origin = UNNAMED.to_owned();
            return Err(PreprocessingError::InvalidChannels { origin, channels, samples: length });
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
    /// [`PreprocessingError::WrongLength`] if `frames` is not a whole number of rows, or has fewer
    /// rows than valid frames.
    pub fn write_frames(&self, frames: &mut [f32]) -> Result<usize> {
        let (bins, valid) = (self.settings.bins as usize, self.valid_frames());
        if !frames.len().is_multiple_of(bins) || frames.len() < valid * bins {
            return Err(PreprocessingError::WrongLength {
                what: "the array of frames",
                needed: format!("a multiple of {bins}, {} or more", valid * bins),
                found: frames.len(),
            });
        }
        let (sound, rest) = frames.split_at_mut(valid * bins);
        mel::write(&self.samples, &self.settings, sound);
        rest.fill(0.0);
        Ok(valid)
    }
}

/// Reports values that an application may not pass as damage of the file that has them.
fn of_file(error: PreprocessingError) -> PreprocessingError {
    let damaged = |origin, reason| PreprocessingError::Damaged { origin, reason };
    match error {
        PreprocessingError::NotFinite { origin, index, value } => {
            damaged(origin, format!("the value at index {index} is {value}"))
        }
        PreprocessingError::InvalidChannels { origin, channels, .. } => {
            damaged(origin, format!("it has {channels} channels"))
        }
        error => error,
    }
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
            return Err(PreprocessingError::UnsupportedRate {
                origin: origin.to_owned(),
                rate,
                min: *limits::RATE.start(),
                max: *limits::RATE.end(),
            });
        }
        if !limits::CHANNELS.contains(&channels) {
            let origin = origin.to_owned();
            return Err(PreprocessingError::InvalidChannels { origin, channels, samples: 0 });
        }
        Ok(Mixer { origin, rate, channels, settings, mixed: Vec::new(), sum: 0.0, pushed: 0 })
    }

    /// Refuses more moments than the longest clip has.
    fn expect_no_longer(&self, moments: u64) -> Result<()> {
        let longest = u64::from(self.settings.longest) * u64::from(self.rate) / u64::from(self.settings.rate);
        if moments > longest {
            return Err(PreprocessingError::TooLong {
                origin: self.origin.to_owned(),
                longest_seconds: self.settings.longest_seconds(),
            });
        }
        Ok(())
    }

    fn push(&mut self, sample: f32) -> Result<()> {
        if !sample.is_finite() {
            let (origin, index) = (self.origin.to_owned(), self.pushed);
            return Err(PreprocessingError::NotFinite { origin, index, value: sample });
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
        let origin = || self.origin.to_owned();
        if self.mixed.is_empty() {
            return Err(PreprocessingError::NoSamples { origin: origin() });
        }
        let rate = self.settings.rate;
        let samples = if self.rate == rate {
            self.mixed
        } else {
            resample::resample(&self.mixed, self.rate, rate).map_err(|reason| {
                let what = format!("resampling from {} to {rate} Hz ({reason})", self.rate);
                PreprocessingError::UnsupportedCoding { origin: origin(), what }
            })?
        };
        // Half a frame of zeros precedes the sound, and one sample follows the frame.
        let needed = self.settings.frame as usize - self.settings.frame as usize / 2 + 1;
        if self.settings.valid_frames(samples.len()) == 0 {
            let samples = samples.len();
            return Err(PreprocessingError::TooShort { origin: origin(), samples, rate, needed });
        }
        Ok(Sound { samples, settings: self.settings.clone() })
    }
}
