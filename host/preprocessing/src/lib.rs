//! Pictures into patches, sounds into mel frames: the inputs of the towers of a multimodal model.
//!
//! **Job.** Works like Hugging Face's processors of Gemma 4. A [`Picture`] is decoded, turned
//! upright, resized with Pillow's filter and cut into patches. A [`Sound`] is decoded, mixed down,
//! resampled and turned into frames of logarithmic mel features. The settings are read from a
//! checkpoint ([`ProcessorSettings`]). Arrays that an application made itself are checked and
//! ordered.
//!
//! **Not its job.** It knows files, pixels and samples. It does **not** know tensors of a graph,
//! models, shims or tokenizers, and depends on no other crate of the project except `vocabulary`
//! and `files`.
//!
//! All input is treated as hostile. Sizes are capped by named constants in [`limits`] before
//! anything of that size is allocated, and each failure is a [`shardwright_vocabulary::Error`] that
//! names the file and suggests a remedy. The same bytes become the same numbers on every run.
//!
//! # Features
//!
//! | feature | by default | effect |
//! |---|---|---|
//! | `pictures` | yes | [`Picture`] of PNG, JPEG, WebP, GIF, BMP, TIFF or pixels |
//! | `sounds` | yes | [`Sound`] of WAV, FLAC or samples |
//! | `mp3-ogg` | no | sounds in MP3 and Ogg Vorbis, through Symphonia, which is under the MPL-2.0: it is used unchanged, and a program that ships with it must name the place of its sources |
//!
//! Without any feature, settings, grids and checks remain.
//!
//! ```
//! # #[cfg(feature = "pictures")]
//! # fn main() -> shardwright_vocabulary::Result<()> {
//! use shardwright_preprocessing::{Picture, PictureSettings};
//!
//! let settings = PictureSettings::default();
//! let picture = Picture::from_rgb8(640, 480, 640 * 3, &[127; 640 * 480 * 3])?;
//! let grid = settings.grid(640, 480, 70)?;
//! assert_eq!((grid.columns(), grid.rows(), grid.soft_tokens()), (27, 21, 63));
//!
//! let room = settings.patches(70);
//! let mut patches = vec![0.0; room * settings.patch_values()];
//! let (mut columns, mut rows) = (vec![0; room], vec![0; room]);
//! picture.write_patches(&grid, &mut patches, &mut columns, &mut rows)?;
//! assert_eq!((columns[9], rows[9]), (3, 0), "the second soft token begins at its first patch");
//! # Ok(())
//! # }
//! # #[cfg(not(feature = "pictures"))]
//! # fn main() {}
//! ```

#![forbid(unsafe_code)]

mod file;
mod grid;
pub mod limits;
#[cfg(feature = "pictures")]
mod picture;
mod processor;
#[cfg(feature = "pictures")]
mod resize;
mod settings;
#[cfg(feature = "sounds")]
mod sound;

pub use grid::Grid;
#[cfg(feature = "pictures")]
pub use picture::Picture;
pub use processor::ProcessorSettings;
pub use settings::{PictureSettings, SoundSettings};
#[cfg(feature = "sounds")]
pub use sound::Sound;
