//! Settings for a checkpoint's pictures and sounds.

use std::fmt::Display;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};
use shardwright_vocabulary::{Error, Result};

use crate::limits;

/// Settings for turning a picture into patches.
///
/// This is plain data. Functions that use it check it first. As JSON it has exactly these fields.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PictureSettings {
    /// Pixels along a side of a patch.
    pub patch: u32,
    /// Patches along a side of a soft token.
    pub pool: u32,
    /// The default for the largest number of soft tokens per picture.
    pub soft_tokens: u32,
}

/// The settings of Gemma 4.
impl Default for PictureSettings {
    fn default() -> Self {
        PictureSettings { patch: 16, pool: 3, soft_tokens: 280 }
    }
}

impl PictureSettings {
    /// The numbers of soft tokens that Gemma 4 was trained with. A caller can request these, and
    /// the number in the settings.
    pub const BUDGETS: [u32; 5] = [70, 140, 280, 560, 1120];

    /// Colours of a pixel: red, green, blue.
    pub const CHANNELS: u32 = 3;

    /// Returns the number of values in a patch: rows, then columns, then channels.
    pub fn patch_values(&self) -> usize {
        let side = self.patch as usize;
        side.saturating_mul(side).saturating_mul(Self::CHANNELS as usize)
    }

    /// Returns the largest number of patches of a picture with at most `budget` soft tokens. This
    /// is the number of rows of a tower that accepts any such picture.
    pub fn patches(&self, budget: u32) -> usize {
        let pool = self.pool as usize;
        pool.saturating_mul(pool).saturating_mul(budget as usize)
    }

    /// Checks that the numbers are in range.
    ///
    /// # Errors
    ///
    /// If a field is out of range. The error names the first one.
    pub fn check(&self) -> Result<()> {
        within("patch", self.patch, limits::PATCH)
            .and_then(|()| within("pool", self.pool, limits::POOL))
            .and_then(|()| within("soft_tokens", self.soft_tokens, limits::SOFT_TOKENS))
            .map_err(invalid)
    }
}

/// Settings for turning a sound into frames of logarithmic mel features.
///
/// This is plain data. Functions that use it check it first. As JSON it has exactly these fields.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SoundSettings {
    /// Samples per second.
    pub rate: u32,
    /// Samples per frame.
    pub frame: u32,
    /// Samples from the start of a frame to the start of the next.
    pub hop: u32,
    /// Samples of the Fourier transform of a frame, which is extended with zeros. A power of two.
    pub transform: u32,
    /// Mel bins, which are the values of a frame.
    pub bins: u32,
    /// Frequency in Hz at which the lowest bin begins.
    pub lowest_hertz: f64,
    /// Frequency in Hz at which the highest bin ends.
    pub highest_hertz: f64,
    /// Number added to each bin before the logarithm.
    pub floor: f64,
    /// Samples of the longest clip.
    pub longest: u32,
}

/// The settings of Gemma 4, with clips of 30 s.
impl Default for SoundSettings {
    fn default() -> Self {
        SoundSettings {
            rate: 16_000,
            frame: 320,
            hop: 160,
            transform: 512,
            bins: 128,
            lowest_hertz: 0.0,
            highest_hertz: 8_000.0,
            floor: 1e-3,
            longest: 480_000,
        }
    }
}

impl SoundSettings {
    /// Frames per soft token: a tower halves their number twice.
    pub const FRAMES_PER_SOFT_TOKEN: usize = 4;

    /// A clip is extended with zeros to a multiple of this many samples.
    const PADDING: usize = 128;

    /// Returns the number of frames that begin within a clip of that many samples, after it is
    /// extended with zeros. Only the [valid](Self::valid_frames) ones contain sound. The rest, at
    /// most one, is zeros.
    pub fn frames(&self, samples: usize) -> usize {
        // Settings may be unchecked here, so the arithmetic must not overflow.
        let padded = samples.checked_next_multiple_of(Self::PADDING).unwrap_or(samples);
        let rest = padded.saturating_add(self.frame as usize / 2).checked_sub(self.frame as usize + 1);
        rest.and_then(|rest| rest.checked_div(self.hop as usize)).map_or(0, |further| further + 1)
    }

    /// Returns the number of frames that the sound of a clip of that many samples fills, including
    /// one sample after the frame's end.
    pub fn valid_frames(&self, samples: usize) -> usize {
        // Half a frame of zeros precedes the clip.
        let known = samples.saturating_add(self.frame as usize / 2).saturating_sub(self.frame as usize);
        // With a hop of 0 there are no frames. The minimum ensures that.
        known.div_ceil(self.hop.max(1) as usize).min(self.frames(samples))
    }

    /// Returns the number of soft tokens that a tower makes from that many valid frames.
    pub fn soft_tokens(&self, valid_frames: usize) -> usize {
        valid_frames.div_ceil(2).div_ceil(2)
    }

    /// Returns the largest number of frames of a clip. This is the number of rows of a tower that
    /// accepts any clip.
    pub fn frames_max(&self) -> usize {
        self.frames(self.longest as usize)
    }

    /// Returns the length of the longest clip in seconds.
    pub fn longest_seconds(&self) -> f64 {
        f64::from(self.longest) / f64::from(self.rate)
    }

    /// Checks that the numbers are in range and consistent with each other.
    ///
    /// # Errors
    ///
    /// If a field is invalid. The error names the first one.
    pub fn check(&self) -> Result<()> {
        self.expect_in_range().map_err(invalid)
    }

    /// Like [`check`](Self::check), but returns the field, its allowed values, and its value.
    pub(crate) fn expect_in_range(&self) -> Result<(), Fault> {
        within("rate", self.rate, limits::FEATURE_RATE)?;
        within("frame", self.frame, limits::FRAME)?;
        within("hop", self.hop, limits::FRAME)?;
        within("transform", self.transform, limits::TRANSFORM)?;
        if !self.transform.is_power_of_two() || self.transform < self.frame {
            return Err(setting("transform", "a power of two, at least `frame`", self.transform));
        }
        within("bins", self.bins, limits::BINS)?;
        within("longest", self.longest, limits::CLIP)?;
        let half = f64::from(self.rate) / 2.0;
        if !(self.highest_hertz > 0.0 && self.highest_hertz <= half) {
            return Err(setting("highest_hertz", "above 0, and at most half of `rate`", self.highest_hertz));
        }
        if !(self.lowest_hertz >= 0.0 && self.lowest_hertz < self.highest_hertz) {
            return Err(setting(
                "lowest_hertz",
                "0 or more, and less than `highest_hertz`",
                self.lowest_hertz,
            ));
        }
        // A logarithm of zero is not finite.
        if !(self.floor.is_finite() && self.floor >= 1e-30) {
            return Err(setting("floor", "above 0", self.floor));
        }
        Ok(())
    }

    /// Checks features that an application made itself: whole frames of `bins` values, all finite,
    /// no more than the longest clip has. Returns the number of frames.
    ///
    /// # Errors
    ///
    /// If the number of values is wrong, or a value is not finite.
    pub fn check_frames(&self, values: &[f32]) -> Result<usize> {
        self.check()?;
        let (bins, most) = (self.bins as usize, self.frames_max());
        if values.is_empty() || !values.len().is_multiple_of(bins) || values.len() / bins > most {
            let needed = format!("a multiple of {bins}, at most {}", most * bins);
            return Err(wrong_length("the features", &needed, values.len()));
        }
        expect_finite("the features", values)?;
        Ok(values.len() / bins)
    }
}

/// Refuses NaN and infinities.
pub(crate) fn expect_finite(origin: &str, values: &[f32]) -> Result<()> {
    match values.iter().position(|value| !value.is_finite()) {
        Some(index) => Err(not_finite(origin, index, values[index])),
        None => Ok(()),
    }
}

/// Returns the error of a value that is NaN or infinite. Samples of alternating channels count one
/// by one.
pub(crate) fn not_finite(origin: &str, index: usize, value: f32) -> Error {
    Error::argument(format!("the value at index {index} is {value}"))
        .at(origin)
        .with_help("check how the values were computed")
}

/// Returns the error of an array whose length differs from the length that its sizes imply.
pub(crate) fn wrong_length(what: &str, needed: &str, found: usize) -> Error {
    Error::argument(format!("{what} has {found} values; expected {needed}"))
        .with_help("size the array by the grid or the settings")
}

/// A field out of range, its allowed values, and its value.
pub(crate) type Fault = (&'static str, String, String);

fn invalid((name, expected, found): Fault) -> Error {
    Error::argument(format!("`{name}` should be {expected}, but is {found}"))
        .with_help(format!("set `{name}` to {expected}"))
}

fn setting(name: &'static str, expected: impl Into<String>, found: impl Display) -> Fault {
    (name, expected.into(), found.to_string())
}

fn within(name: &'static str, value: u32, range: RangeInclusive<u32>) -> Result<(), Fault> {
    if range.contains(&value) {
        return Ok(());
    }
    Err(setting(name, format!("{} to {}", range.start(), range.end()), value))
}
