//! Checks that sizes in hostile headers are not allocated. This is a separate program, since it
//! measures its own memory.

#![cfg(all(target_os = "linux", feature = "pictures", feature = "sounds"))]

use std::fs;
use std::path::Path;

use shardwright_preprocessing::{Picture, PictureSettings, Sound, SoundSettings};

/// Memory for decoders, tables and this test. Each hostile header claims hundreds of megabytes or
/// more.
const MEGABYTES: u64 = 32;

/// Returns the peak memory of this process, in kilobytes.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("the kernel's file");
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).expect("the peak");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

#[test]
fn claims_cost_nothing() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/preprocessing/files");
    let read = |name: &str| fs::read(folder.join(name)).expect("a file");
    let before = peak();

    // 65,535 by 65,535 pixels.
    let mut jpeg = read("smooth.jpg");
    let frame = jpeg.windows(2).position(|pair| pair == [0xff, 0xc0]).expect("a frame");
    jpeg[frame + 5..frame + 9].fill(0xff);
    assert!(Picture::from_bytes(&jpeg).is_err());

    // Screens and frames of 65,535 by 65,535 pixels.
    let gif = read("still.gif");
    let frame = gif.windows(4).position(|four| four == [0x2c, 0, 0, 0]).expect("a frame");
    for place in [6, frame + 5] {
        let mut gif = gif.clone();
        gif[place..place + 4].fill(0xff);
        assert!(Picture::from_bytes(&gif).is_err());
    }

    // Sides of two thousand million in the header of a BMP, and in that of a TIFF.
    let mut bmp = read("smooth.bmp");
    bmp[18..26].copy_from_slice(&[0xff, 0xff, 0xff, 0x7f, 0xff, 0xff, 0xff, 0x7f]);
    assert!(Picture::from_bytes(&bmp).is_err());
    let tiff = read("smooth.tiff");
    for tag in [0x100u16, 0x101, 0x111, 0x116, 0x117] {
        let mut tiff = tiff.clone();
        let directory = u32::from_le_bytes(tiff[4..8].try_into().expect("a place")) as usize + 2;
        let entry = tiff[directory..].chunks(12).position(|entry| entry.starts_with(&tag.to_le_bytes()));
        let value = directory + entry.expect("the tag") * 12 + 4;
        // The largest possible number of values, or the largest value.
        tiff[value..value + 8].fill(0x7f);
        assert!(Picture::from_bytes(&tiff).is_err(), "{tag:#x}");
    }

    // Nearly 2³⁶ samples.
    let mut flac = read("sine_16k.flac");
    flac[21] |= 0x0f;
    flac[22..26].fill(0xff);
    assert!(Sound::from_bytes(&flac, &SoundSettings::default()).is_err());

    // Two thousand million bytes of samples.
    let mut wav = read("tone.wav");
    let data = wav.windows(4).position(|four| four == b"data").expect("the samples");
    wav[data + 4..data + 8].copy_from_slice(&2_000_000_001u32.to_le_bytes());
    assert!(Sound::from_bytes(&wav, &SoundSettings::default()).is_err());

    // A block of metadata of 16 MB that does not exist.
    let mut flac = read("sine_16k.flac");
    flac[43..46].fill(0xff);
    assert!(Sound::from_bytes(&flac, &SoundSettings::default()).is_err());

    let grown = (peak() - before) / 1024;
    assert!(grown < MEGABYTES, "{grown} MB more");
    pictures_cost_their_pixels_and_their_patches();
}

/// The narrowest and the widest pictures that are resized, for as many patches as a tower accepts.
fn pictures_cost_their_pixels_and_their_patches() {
    let settings = PictureSettings::default();
    for (width, height) in [(1, 1_398_000), (1 << 24, 1), (2, 1 << 19)] {
        let pixels = vec![0; (width * height) as usize * 3];
        let picture = Picture::from_rgb8(width, height, width as usize * 3, &pixels).expect("a picture");
        drop(pixels);
        let grid = settings.grid(width, height, 280).expect("a grid");
        let patches = grid.patches();
        let (mut values, mut columns, mut rows) =
            (vec![0.0; patches * settings.patch_values()], vec![0; patches], vec![0; patches]);
        // Measures the peak from here on, which the copy of the pixels would otherwise hide.
        fs::write("/proc/self/clear_refs", "5").expect("the kernel's file");
        let before = peak();
        picture.write_patches(&grid, &mut values, &mut columns, &mut rows).expect("patches");
        let grown = (peak() - before) / 1024;
        assert!(grown < MEGABYTES, "{width} by {height}: {grown} MB more");
    }
}
