//! Caps on what a picture, a sound or a settings file may claim. Each is far above what a phone
//! records and low enough that a hostile file costs little before it is refused.

use std::ops::RangeInclusive;

/// Bytes of `processor_config.json` or `preprocessor_config.json`. Published ones hold a few
/// kilobytes.
pub const SETTINGS_BYTES: u64 = 4 << 20;

/// Bytes of a picture's file.
pub const PICTURE_FILE_BYTES: u64 = 256 << 20;

/// Pixels of a picture. A picture of that many takes 192 MiB, and twice that while it is turned
/// upright; decoding holds at most [`DECODED_BYTES`] beside it.
pub const PIXELS: u64 = 64 << 20;

/// Pixels of a picture once it is as wide as its patches and still as high as it was: the work of
/// resizing. Only pictures some ten thousand times higher than wide have more.
pub const WIDENED_PIXELS: u64 = 64 << 20;

/// Bytes of the pixels as a file stores them, which may have 16 bits and transparency, and of the
/// tables that a decoder keeps. A progressive JPEG holds twice as much again in coefficients.
pub const DECODED_BYTES: u64 = 256 << 20;

/// Bytes of a sound's file: a minute of two channels of 96 kHz, uncompressed, takes 46 MB.
pub const SOUND_FILE_BYTES: u64 = 64 << 20;

/// Samples per second of a sound that is given.
pub const RATE: RangeInclusive<u32> = 4_000..=384_000;

/// Channels of a sound that is given.
pub const CHANNELS: RangeInclusive<u32> = 1..=64;

/// Pixels of a side of a patch.
pub const PATCH: RangeInclusive<u32> = 1..=64;

/// Patches of a side of a soft token.
pub const POOL: RangeInclusive<u32> = 1..=16;

/// Soft tokens of a picture: the most that a Gemma 4 tower was trained with.
pub const SOFT_TOKENS: RangeInclusive<u32> = 1..=1120;

/// Samples per second that features are computed at.
pub const FEATURE_RATE: RangeInclusive<u32> = 4_000..=96_000;

/// Samples of a frame, and between frames.
pub const FRAME: RangeInclusive<u32> = 2..=1 << 14;

/// Samples of a Fourier transform.
pub const TRANSFORM: RangeInclusive<u32> = 2..=1 << 15;

/// Mel bins of a frame.
pub const BINS: RangeInclusive<u32> = 1..=1024;

/// Samples of the longest clip: ten minutes at the highest rate of features.
pub const CLIP: RangeInclusive<u32> = 1..=57_600_000;
