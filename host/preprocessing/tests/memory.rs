//! Checks that sizes in hostile headers are not allocated. This is a separate program, since it
//! measures its own memory.

#![cfg(all(target_os = "linux", feature = "pictures", feature = "sounds"))]

use std::fs;
use std::path::Path;

use image::codecs::png::{CompressionType, FilterType, PngEncoder};
use image::codecs::tiff::TiffEncoder;
use image::{ExtendedColorType, ImageEncoder};
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

/// Measures the peak from here on.
fn forget_peak() {
    fs::write("/proc/self/clear_refs", "5").expect("the kernel's file");
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
    decoding_costs_what_the_page_states();
}

/// The narrowest, the widest and the largest pictures that are resized, for as many patches as a
/// tower accepts.
fn pictures_cost_their_pixels_and_their_patches() {
    let settings = PictureSettings::default();
    for (width, height) in [(1, 1_398_000), (1 << 26, 1), (2, 1 << 19), (8192, 8192)] {
        let pixels = vec![0; (width * height) as usize * 3];
        let picture = Picture::from_rgb8(width, height, width as usize * 3, &pixels).expect("a picture");
        drop(pixels);
        let grid = settings.grid(width, height, 280).expect("a grid");
        let patches = grid.patches();
        let (mut values, mut columns, mut rows) =
            (vec![0.0; patches * settings.patch_values()], vec![0; patches], vec![0; patches]);
        // The copy of the pixels would otherwise hide the peak.
        forget_peak();
        let before = peak();
        picture.write_patches(&grid, &mut values, &mut columns, &mut rows).expect("patches");
        let grown = (peak() - before) / 1024;
        assert!(grown < MEGABYTES, "{width} by {height}: {grown} MB more");
    }
}

/// The types that need the most memory, against the figures in `docs/security.md`.
fn decoding_costs_what_the_page_states() {
    let page = include_str!("../../../docs/security.md");
    for row in [
        "| the pixels as the file stores them | up to 256 MiB |",
        "| their red, green and blue, next to the stored pixels | up to 192 MiB |",
        "| tables of a progressive JPEG | twice the stored pixels |",
        "| tables of a GIF | 1.25 times the stored pixels |",
        "| tables of a TIFF | the stored pixels once more |",
        "| a JPEG | its file once more |",
        "| metadata, such as EXIF | three times their length |",
    ] {
        assert!(page.contains(row), "the page has no row `{row}`");
    }
    let exif = 100u64 << 20;
    let stored = |side: u64, channels: u64| side * side * channels;
    for (what, file, side, bytes) in [
        ("a PNG of the most pixels", png(8192, Vec::new()), 8192, stored(8192, 4) + stored(8192, 3)),
        ("a progressive JPEG", progressive_jpeg(4096), 4096, 3 * stored(4096, 3)),
        ("a GIF", gif(4096), 4096, stored(4096, 4) * 9 / 4),
        ("a TIFF", tiff(4096), 4096, 3 * stored(4096, 3)),
        ("100 MiB of EXIF", png(8, vec![0; exif as usize]), 8, 3 * exif),
    ] {
        forget_peak();
        let before = peak();
        let picture = Picture::from_bytes(&file).expect("a picture");
        let grown = (peak() - before) / 1024;
        assert_eq!(picture.size(), (side, side), "{what}");
        let documented = bytes >> 20;
        assert!(grown < documented + MEGABYTES, "{what}: {grown} MiB instead of {documented} MiB");
    }
}

/// Encodes a black PNG with transparency.
fn png(side: u32, exif: Vec<u8>) -> Vec<u8> {
    let mut file = Vec::new();
    let mut encoder = PngEncoder::new_with_quality(&mut file, CompressionType::Fast, FilterType::NoFilter);
    if !exif.is_empty() {
        encoder.set_exif_metadata(exif).expect("supported");
    }
    let pixels = vec![0; side as usize * side as usize * 4];
    encoder.write_image(&pixels, side, side, ExtendedColorType::Rgba8).expect("encoded");
    file
}

/// Encodes a black TIFF.
fn tiff(side: u32) -> Vec<u8> {
    let mut file = std::io::Cursor::new(Vec::new());
    let pixels = vec![0; side as usize * side as usize * 3];
    let encoder = TiffEncoder::new(&mut file);
    encoder.write_image(&pixels, side, side, ExtendedColorType::Rgb8).expect("encoded");
    file.into_inner()
}

/// Encodes a grey progressive JPEG of three components, with a single scan.
fn progressive_jpeg(side: u16) -> Vec<u8> {
    let mut file = vec![0xff, 0xd8];
    let mut segment = |marker: u8, content: &[u8]| {
        file.extend([0xff, marker]);
        file.extend((content.len() as u16 + 2).to_be_bytes());
        file.extend(content);
    };
    segment(0xdb, &[&[0][..], &[1; 64]].concat());
    let [high, low] = side.to_be_bytes();
    segment(0xc2, &[8, high, low, high, low, 3, 1, 0x11, 0, 2, 0x11, 0, 3, 0x11, 0]);
    // The bit 0 repeats the brightness of the block before, 10 adds a number of seven bits.
    segment(0xc4, &[0, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 7]);
    segment(0xda, &[3, 1, 0, 2, 0, 3, 0, 0, 0, 0]);
    // The first block of each component, 9 bits each, and 5 blocks.
    file.extend([0b1010_0000, 0b0101_0000, 0b0010_1000, 0]);
    let blocks = usize::from(side / 8).pow(2) * 3;
    file.resize(file.len() + (blocks - 8).div_ceil(8), 0);
    file.extend([0xff, 0xd9]);
    file
}

/// Encodes a GIF of one colour whose frame is a pixel narrower than its screen, so that the decoder
/// holds both.
fn gif(side: u16) -> Vec<u8> {
    const CLEAR: u32 = 256;
    const END: u32 = 257;
    let (mut codes, mut pending, mut held) = (Vec::new(), 0u32, 0);
    let mut put = |code: u32, bits: u32| {
        pending |= code << held;
        held += bits;
        while held >= 8 {
            codes.push(pending as u8);
            pending >>= 8;
            held -= 8;
        }
    };
    let mut left = u32::from(side - 1) * u32::from(side);
    let mut bits = 9;
    while left > 0 {
        put(CLEAR, bits);
        bits = 9;
        // Each code is for one pixel more than the code before it, until the table is full.
        for run in 1..3840 {
            let pixels = left.min(run);
            if pixels == 0 {
                break;
            }
            put(if pixels == 1 { 1 } else { CLEAR + pixels }, bits);
            left -= pixels;
            if END + run == 1 << bits && bits < 12 {
                bits += 1;
            }
        }
    }
    put(END, bits);
    put(0, 7);
    let [low, high] = side.to_le_bytes();
    let [narrow_low, narrow_high] = (side - 1).to_le_bytes();
    let mut file = b"GIF89a".to_vec();
    // Two colours: black, and the one of the frame.
    file.extend([low, high, low, high, 0x80, 0, 0, 0, 0, 0, 200, 100, 50]);
    file.extend([0x2c, 0, 0, 0, 0, narrow_low, narrow_high, low, high, 0, 8]);
    for block in codes.chunks(255) {
        file.push(block.len() as u8);
        file.extend(block);
    }
    file.extend([0, b';']);
    file
}
