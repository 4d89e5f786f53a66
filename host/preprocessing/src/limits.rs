//! Caps on the sizes that a picture, a sound or a settings file may specify. Each is far above the
//! recordings of a phone, and low enough that refusing a hostile file costs little.

use std::ops::RangeInclusive;

/// Bytes of `processor_config.json` or `preprocessor_config.json`. Published ones have a few
/// kilobytes.
pub const SETTINGS_BYTES: u64 = 4 << 20;

/// Bytes of a picture's file.
pub const PICTURE_FILE_BYTES: u64 = 256 << 20;

/// Pixels of a picture. A picture of this size needs 192 MiB, and twice that while it is turned
/// upright. In addition, decoding needs at most [`DECODED_BYTES`].
pub const PIXELS: u64 = 64 << 20;

/// Pixels of a picture with the width of its patches and its original height, which determine the
/// cost of resizing. Only pictures about ten thousand times higher than wide have more.
pub const WIDENED_PIXELS: u64 = 64 << 20;

/// Bytes of the pixels as a file stores them, which may have 16 bits and transparency, and of a
/// decoder's tables. For a progressive JPEG, the coefficients need twice as much in addition.
pub const DECODED_BYTES: u64 = 256 << 20;

/// Bytes of a sound's file. A minute of two channels of 96 kHz has 46 MB uncompressed.
pub const SOUND_FILE_BYTES: u64 = 64 << 20;

/// Samples per second of an input sound.
pub const RATE: RangeInclusive<u32> = 4_000..=384_000;

/// Channels of an input sound.
pub const CHANNELS: RangeInclusive<u32> = 1..=64;

/// Pixels along a side of a patch.
pub const PATCH: RangeInclusive<u32> = 1..=64;

/// Patches along a side of a soft token.
pub const POOL: RangeInclusive<u32> = 1..=16;

/// Soft tokens of a picture: the most that a Gemma 4 tower was trained with.
pub const SOFT_TOKENS: RangeInclusive<u32> = 1..=1120;

/// Samples per second at which features are computed.
pub const FEATURE_RATE: RangeInclusive<u32> = 4_000..=96_000;

/// Samples of a frame, and from one frame to the next.
pub const FRAME: RangeInclusive<u32> = 2..=1 << 14;

/// Samples of a Fourier transform.
pub const TRANSFORM: RangeInclusive<u32> = 2..=1 << 15;

/// Mel bins of a frame.
pub const BINS: RangeInclusive<u32> = 1..=1024;

/// Samples of the longest clip: ten minutes at the highest rate of features.
pub const CLIP: RangeInclusive<u32> = 1..=57_600_000;
