//! Parts of a turn: text, pictures and sounds, and the properties of each that are known before a
//! shard runs.

use std::cell::Cell;
use std::path::PathBuf;
use std::sync::Arc;

use shardwright_bundle::Digest;
#[cfg(feature = "sounds")]
use shardwright_preprocessing::Sound;
#[cfg(feature = "pictures")]
use shardwright_preprocessing::{Grid, Picture};
use shardwright_preprocessing::{PictureSettings, ProcessorSettings, SoundSettings};
use shardwright_runtime::{Features, SoftRows};
use shardwright_vocabulary::Pass;

use crate::{Error, ErrorKind, Result};

/// A part of a user's turn.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub enum ChatPart {
    /// Plain text.
    Text(String),
    /// A PNG, JPEG, WebP, GIF, BMP or TIFF file, recognised by its content. Uses the first frame of
    /// a GIF and the first page of a TIFF.
    PictureFile(PathBuf),
    /// The bytes of a picture file, see `PictureFile`.
    PictureBytes(Vec<u8>),
    /// Rows of pixels, three bytes each (red, green, blue).
    PictureRgb8 {
        /// Pixels per row.
        width: u32,
        /// Number of rows.
        height: u32,
        /// Bytes from one row to the next.
        stride: usize,
        /// Pixels of all rows.
        pixels: Vec<u8>,
    },
    /// Patches of a picture that the app computed itself, row by row, like the checkpoint's
    /// processor.
    Patches {
        /// Values of the patches: `[patches, patch² · 3]`.
        values: Vec<f32>,
        /// Column and row of each patch. −1 for padding.
        positions: Vec<[i32; 2]>,
    },
    /// A WAV or FLAC file, recognised by its content. With the feature `mp3-ogg` also MP3 and OGG.
    SoundFile(PathBuf),
    /// The bytes of a sound file, see `SoundFile`.
    SoundBytes(Vec<u8>),
    /// Samples of one channel, −1 to 1.
    SoundSamples {
        /// Samples per second.
        rate: u32,
        /// Values of the samples.
        samples: Vec<f32>,
    },
    /// Mel frames of a sound that the app computed itself, like the checkpoint's processor.
    Frames(Vec<f32>),
    /// A picture or sound in a turn of a restored session, which only that session has.
    Restored(RestoredPart),
}

/// A picture or sound of a [restored](crate::Model::restore) session. Only its rows in the prompt
/// are known, not its content.
#[derive(Clone, Debug)]
pub struct RestoredPart {
    sense: Sense,
    rows: Arc<SoftRows>,
}

impl RestoredPart {
    pub(crate) fn new(sense: Sense, rows: Arc<SoftRows>) -> Self {
        RestoredPart { sense, rows }
    }
}

impl PartialEq for RestoredPart {
    fn eq(&self, other: &Self) -> bool {
        self.sense == other.sense && self.rows.origin() == other.rows.origin()
    }
}

impl ChatPart {
    /// Returns the sense of the part, or `None` for text.
    pub(crate) fn sense(&self) -> Option<Sense> {
        match self {
            ChatPart::Text(_) => None,
            ChatPart::Restored(part) => Some(part.sense),
            ChatPart::PictureFile(_)
            | ChatPart::PictureBytes(_)
            | ChatPart::PictureRgb8 { .. }
            | ChatPart::Patches { .. } => Some(Sense::Picture),
            ChatPart::SoundFile(_)
            | ChatPart::SoundBytes(_)
            | ChatPart::SoundSamples { .. }
            | ChatPart::Frames(_) => Some(Sense::Sound),
        }
    }
}

impl From<&str> for ChatPart {
    fn from(text: &str) -> Self {
        ChatPart::Text(text.to_owned())
    }
}

impl From<String> for ChatPart {
    fn from(text: String) -> Self {
        ChatPart::Text(text)
    }
}

/// The kind of tower that a part needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Sense {
    Picture,
    Sound,
}

impl Sense {
    /// Returns the noun for reports.
    pub const fn noun(self) -> &'static str {
        match self {
            Sense::Picture => "picture",
            Sense::Sound => "sound",
        }
    }

    /// Returns the pass in which its tower runs.
    pub const fn pass(self) -> Pass {
        match self {
            Sense::Picture => Pass::Picture,
            Sense::Sound => Pass::Clip,
        }
    }

    /// Returns the kind of the part in a chat template.
    pub(crate) const fn kind(self) -> &'static str {
        match self {
            Sense::Picture => "image",
            Sense::Sound => "audio",
        }
    }
}

/// A part that was read and measured. Its number of positions is known, but its tower has not run.
pub(crate) struct Prepared {
    pub sense: Sense,
    pub soft_tokens: usize,
    /// Maximum soft tokens per picture that the tower must support. 0 for sounds, which have one
    /// maximum length.
    pub budget: u32,
    /// Hash of the part's content. Parts with equal hashes have equal rows.
    pub origin: [u8; 32],
    /// Number of values per patch or frame.
    pub width: usize,
    count: usize,
    columns: Vec<i32>,
    rows: Vec<i32>,
    values: Values,
}

enum Values {
    #[cfg(feature = "pictures")]
    Picture(Box<Picture>, Grid),
    #[cfg(feature = "sounds")]
    Sound(Sound),
    Ready(Vec<f32>),
    /// Rows that a tower already computed.
    Known(Arc<SoftRows>),
}

/// Explanation of a mismatch between a processor and a tower.
pub(crate) const OTHER_MODEL: &str = "config.json and processor_config.json belong to different models";

/// Reads and measures a picture or a sound. `None` for text.
pub(crate) fn prepare(
    part: &ChatPart,
    processor: &ProcessorSettings,
    soft_tokens: Option<u32>,
) -> Result<Option<Prepared>> {
    let pictures = || {
        let settings = processor.picture.as_ref().ok_or_else(|| blind(Sense::Picture))?;
        Ok::<_, Error>((settings, soft_tokens.unwrap_or(settings.soft_tokens)))
    };
    let sounds = || processor.sound.as_ref().ok_or_else(|| blind(Sense::Sound));
    let prepared = match part {
        ChatPart::Text(_) => return Ok(None),
        ChatPart::Restored(part) => known(part),
        #[cfg(feature = "pictures")]
        ChatPart::PictureFile(path) => picture(Picture::from_path(path)?, pictures()?)?,
        #[cfg(feature = "pictures")]
        ChatPart::PictureBytes(bytes) => picture(Picture::from_bytes(bytes)?, pictures()?)?,
        #[cfg(feature = "pictures")]
        ChatPart::PictureRgb8 { width, height, stride, pixels } => {
            picture(Picture::from_rgb8(*width, *height, *stride, pixels)?, pictures()?)?
        }
        #[cfg(feature = "sounds")]
        ChatPart::SoundFile(path) => sound(Sound::from_path(path, sounds()?)?, sounds()?),
        #[cfg(feature = "sounds")]
        ChatPart::SoundBytes(bytes) => sound(Sound::from_bytes(bytes, sounds()?)?, sounds()?),
        #[cfg(feature = "sounds")]
        ChatPart::SoundSamples { rate, samples } => {
            sound(Sound::from_samples(*rate, samples, sounds()?)?, sounds()?)
        }
        ChatPart::Patches { values, positions } => patches(values, positions, pictures()?)?,
        ChatPart::Frames(values) => frames(values.clone(), sounds()?)?,
        #[cfg(not(feature = "pictures"))]
        ChatPart::PictureFile(_) | ChatPart::PictureBytes(_) | ChatPart::PictureRgb8 { .. } => {
            return Err(unread(Sense::Picture, "pictures", "patches"));
        }
        #[cfg(not(feature = "sounds"))]
        ChatPart::SoundFile(_) | ChatPart::SoundBytes(_) | ChatPart::SoundSamples { .. } => {
            return Err(unread(Sense::Sound, "sounds", "frames"));
        }
    };
    Ok(Some(prepared))
}

/// Returns the error that the checkpoint's processor does not support this sense.
fn blind(sense: Sense) -> Error {
    let what = format!("the model's processor does not support {}s", sense.noun());
    Error::new(ErrorKind::Unsupported, what)
        .with_help("use a checkpoint with settings for it in `processor_config.json`")
}

#[cfg(not(all(feature = "pictures", feature = "sounds")))]
fn unread(sense: Sense, feature: &str, ready: &str) -> Error {
    let what = format!("this program was built without support for {}s", sense.noun());
    Error::new(ErrorKind::Unsupported, what)
        .with_help(format!("build it with the feature `{feature}`, or pass {ready}"))
}

#[cfg(feature = "pictures")]
fn picture(picture: Picture, (settings, budget): (&PictureSettings, u32)) -> Result<Prepared> {
    let (width, height) = picture.size();
    let grid = settings.grid(width, height, budget)?;
    let (columns, rows) = places(&grid);
    let mut origin = picture.content_hash();
    // The rows of one picture depend on the budget.
    origin.iter_mut().zip(budget.to_le_bytes()).for_each(|(byte, with)| *byte ^= with);
    Ok(Prepared {
        sense: Sense::Picture,
        budget,
        soft_tokens: grid.soft_tokens(),
        origin,
        width: settings.patch_values(),
        count: grid.patches(),
        columns,
        rows,
        values: Values::Picture(Box::new(picture), grid),
    })
}

#[cfg(feature = "pictures")]
fn places(grid: &Grid) -> (Vec<i32>, Vec<i32>) {
    // Both are far below 2³¹: a budget bounds their product.
    grid.positions().map(|(column, row)| (column as i32, row as i32)).unzip()
}

#[cfg(feature = "sounds")]
fn sound(sound: Sound, settings: &SoundSettings) -> Prepared {
    Prepared {
        sense: Sense::Sound,
        budget: 0,
        soft_tokens: sound.soft_tokens(),
        origin: sound.content_hash(),
        width: settings.bins as usize,
        count: sound.valid_frames(),
        columns: Vec::new(),
        rows: Vec::new(),
        values: Values::Sound(sound),
    }
}

fn patches(
    given: &[f32],
    positions: &[[i32; 2]],
    (settings, budget): (&PictureSettings, u32),
) -> Result<Prepared> {
    let mut values = vec![0.0; given.len()];
    let (mut columns, mut rows) = (vec![0; positions.len()], vec![0; positions.len()]);
    let grid = settings.reorder_patches(given, positions, &mut values, &mut columns, &mut rows)?;
    let (count, soft_tokens) = (grid.patches(), grid.soft_tokens());
    if soft_tokens > budget as usize {
        let what = format!("{count} patches become {soft_tokens} soft tokens, more than {budget}");
        return Err(Error::new(ErrorKind::Argument, what).with_help("use a larger budget of soft tokens"));
    }
    columns.truncate(count);
    rows.truncate(count);
    let mut known_by = bytes_of(&values);
    known_by.extend(columns.iter().chain(&rows).flat_map(|place| place.to_le_bytes()));
    let origin = *Digest::of(&known_by).bytes();
    let (width, values) = (settings.patch_values(), Values::Ready(values));
    Ok(Prepared { sense: Sense::Picture, budget, soft_tokens, origin, width, count, columns, rows, values })
}

fn frames(values: Vec<f32>, settings: &SoundSettings) -> Result<Prepared> {
    let count = settings.check_frames(&values)?;
    let origin = *Digest::of(&bytes_of(&values)).bytes();
    let (columns, rows) = (Vec::new(), Vec::new());
    let (soft_tokens, width) = (settings.soft_tokens(count), settings.bins as usize);
    let values = Values::Ready(values);
    Ok(Prepared { sense: Sense::Sound, budget: 0, soft_tokens, origin, width, count, columns, rows, values })
}

fn known(part: &RestoredPart) -> Prepared {
    Prepared {
        sense: part.sense,
        budget: 0,
        soft_tokens: part.rows.rows(),
        origin: part.rows.origin(),
        width: 0,
        count: 0,
        columns: Vec::new(),
        rows: Vec::new(),
        values: Values::Known(Arc::clone(&part.rows)),
    }
}

fn bytes_of(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|value| value.to_le_bytes()).collect()
}

impl Prepared {
    /// Returns the rows, if no tower has to compute them.
    pub fn known(&self) -> Option<Arc<SoftRows>> {
        match &self.values {
            Values::Known(rows) => Some(Arc::clone(rows)),
            _ => None,
        }
    }

    /// Calls `run` to run a tower over the part. The tower reads `width` values per patch or frame.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Incompatible`] if the part has another width, and the errors of `run`.
    pub fn with_features<T>(
        &self,
        width: usize,
        run: impl FnOnce(Features<'_>) -> std::result::Result<T, shardwright_runtime::SessionError>,
    ) -> Result<T> {
        if self.width != width {
            let (noun, found) = (self.sense.noun(), self.width);
            let what = format!("the {noun} processor returns {found} values, but its tower expects {width}");
            return Err(Error::new(ErrorKind::Incompatible, what).with_help(OTHER_MODEL));
        }
        let refused = Cell::new(None::<Error>);
        let write = |into: &mut [f32]| {
            let written = match &self.values {
                #[cfg(feature = "pictures")]
                Values::Picture(picture, grid) => {
                    let (mut columns, mut rows) = (vec![0; self.count], vec![0; self.count]);
                    picture.write_patches(grid, into, &mut columns, &mut rows)
                }
                #[cfg(feature = "sounds")]
                Values::Sound(sound) => sound.write_frames(into).map(drop),
                // No tower runs for known rows.
                Values::Known(_) => Ok(()),
                // Padding added by the application follows the patches.
                Values::Ready(values) => {
                    into.copy_from_slice(&values[..into.len()]);
                    Ok(())
                }
            };
            refused.set(written.err());
        };
        let given = Features { count: self.count, columns: &self.columns, rows: &self.rows, write: &write };
        let found = run(given);
        match refused.into_inner() {
            Some(error) => Err(error),
            None => Ok(found?),
        }
    }
}
