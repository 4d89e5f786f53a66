//! Fuzz targets for the readers of pictures, sounds and their settings.
//!
//! **Job.** Three targets, which must return for any bytes. Accepted input is converted to patches
//! or frames, which must be finite and within their rows. `RUSTC_BOOTSTRAP=1 cargo fuzz run -s none
//! TARGET` runs them from `host/preprocessing`. The crate's ordinary tests run them over the corpus
//! and over damaged copies of it.
//!
//! **Not its job.** It does **not** check that results are right: the tests of the crate do.

use shardwright_preprocessing::{Picture, PictureSettings, ProcessorSettings, Sound, SoundSettings};

/// A target: its name and its function.
pub type Target = (&'static str, fn(&[u8]));

pub const TARGETS: &[Target] = &[("picture", picture), ("sound", sound), ("settings", settings)];

/// Most pixels that are decoded. More would be slow, but not different.
const PIXELS: u64 = 1 << 16;

/// Decodes a file of a picture.
pub fn picture(bytes: &[u8]) {
    let Ok((width, height)) = Picture::measure(bytes) else {
        assert!(Picture::from_bytes(bytes).is_err());
        return;
    };
    if u64::from(width) * u64::from(height) > PIXELS {
        return;
    }
    let Ok(picture) = Picture::from_bytes(bytes) else { return };
    assert_eq!(picture.size(), (width, height));
    let settings = PictureSettings { patch: 2, pool: 2, soft_tokens: 8 };
    let Ok(grid) = settings.grid(width, height, 8) else { panic!("eight soft tokens fit any picture") };
    let room = settings.patches(8);
    let mut patches = vec![f32::NAN; room * settings.patch_values()];
    let (mut columns, mut rows) = (vec![9; room], vec![9; room]);
    let written = picture.write_patches(&grid, &mut patches, &mut columns, &mut rows);
    assert!(written.is_ok() && patches.iter().all(|value| (0.0..=1.0).contains(value)));
}

/// Decodes a file of a sound.
pub fn sound(bytes: &[u8]) {
    // One second at most, at a low rate.
    let settings = SoundSettings {
        rate: 8_000,
        highest_hertz: 4_000.0,
        bins: 16,
        longest: 8_000,
        ..SoundSettings::default()
    };
    let Ok(sound) = Sound::from_bytes(bytes, &settings) else { return };
    let mut frames = vec![f32::NAN; sound.frames() * 16];
    let written = sound.write_frames(&mut frames);
    assert_eq!(written.ok(), Some(sound.valid_frames()));
    assert!(settings.check_frames(&frames).is_ok());
}

/// Reads both files of settings.
pub fn settings(bytes: &[u8]) {
    let folder = tempfile::tempdir().expect("a folder");
    for name in ["processor_config.json", "preprocessor_config.json"] {
        std::fs::write(folder.path().join(name), bytes).expect("written");
        if let Ok(Some(read)) = ProcessorSettings::read(folder.path()) {
            assert!(read.picture.is_none_or(|picture| picture.check().is_ok()));
            assert!(read.sound.is_none_or(|sound| sound.check().is_ok()));
        }
        std::fs::remove_file(folder.path().join(name)).expect("removed");
    }
}
