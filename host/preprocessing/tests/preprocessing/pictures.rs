//! Files of pictures, pixels, and hostile ones.

use std::io::Cursor;

use image::codecs::jpeg::JpegEncoder;
use image::codecs::png::PngEncoder;
use image::codecs::tiff::TiffEncoder;
use image::{DynamicImage, ExtendedColorType, ImageEncoder};
use shardwright_preprocessing::*;
use shardwright_vocabulary::ErrorKind;

use crate::support::{assert_refused, file};

fn png(width: u32, height: u32, kind: ExtendedColorType, bytes: &[u8]) -> Vec<u8> {
    let mut file = Vec::new();
    PngEncoder::new(&mut file).write_image(bytes, width, height, kind).expect("encoded");
    file
}

/// Quarters of four colours, so that each corner can be identified after any rotation.
const QUARTERS: [[u8; 3]; 4] = [[250, 10, 10], [10, 250, 10], [10, 10, 250], [240, 240, 240]];

fn quarters(width: usize, height: usize) -> Vec<u8> {
    let colour = |x, y| QUARTERS[(2 * y / height) * 2 + 2 * x / width];
    (0..height).flat_map(|y| (0..width).flat_map(move |x| colour(x, y))).collect()
}

fn corners(picture: &Picture) -> [[u8; 3]; 4] {
    let (width, height) = picture.size();
    let at = |x: u32, y: u32| {
        let start = ((y * width + x) * 3) as usize;
        [0, 1, 2].map(|channel| picture.pixels()[start + channel])
    };
    [at(1, 1), at(width - 2, 1), at(1, height - 2), at(width - 2, height - 2)]
}

/// Returns a JPEG with an EXIF segment that specifies an orientation.
fn jpeg(width: u32, height: u32, orientation: Option<u8>) -> Vec<u8> {
    let mut file = Vec::new();
    let pixels = quarters(width as usize, height as usize);
    JpegEncoder::new_with_quality(&mut file, 100)
        .write_image(&pixels, width, height, ExtendedColorType::Rgb8)
        .expect("encoded");
    if let Some(orientation) = orientation {
        // One entry of the first directory: tag 0x0112, one number of 16 bits.
        let mut exif = b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0".to_vec();
        exif.extend([orientation, 0, 0, 0, 0, 0, 0]);
        let length = (exif.len() as u16 + 2).to_be_bytes();
        let segment = [&[0xff, 0xe1], &length[..], &exif].concat();
        file.splice(2..2, segment);
    }
    file
}

#[test]
fn every_orientation_is_turned_upright() {
    let [a, b, c, d] = [0, 1, 2, 3];
    let turned = [
        [a, b, c, d],
        [b, a, d, c],
        [d, c, b, a],
        [c, d, a, b],
        [a, c, b, d],
        [c, a, d, b],
        [d, b, c, a],
        [b, d, a, c],
    ];
    for (orientation, expected) in (1..=8).zip(turned) {
        let bytes = jpeg(64, 32, Some(orientation));
        let picture = Picture::from_bytes(&bytes).expect("a picture");
        let size = if orientation < 5 { (64, 32) } else { (32, 64) };
        assert_eq!(picture.size(), size, "{orientation}");
        assert_eq!(Picture::measure(&bytes).expect("a size"), size, "{orientation}");
        for (found, quarter) in corners(&picture).iter().zip(expected) {
            let near = found.iter().zip(QUARTERS[quarter]).all(|(found, wanted)| found.abs_diff(wanted) < 12);
            assert!(near, "{orientation}: {found:?} instead of {:?}", QUARTERS[quarter]);
        }
    }
    // No orientation, and meaningless ones.
    for orientation in [None, Some(0), Some(9)] {
        assert_eq!(Picture::from_bytes(&jpeg(64, 32, orientation)).expect("a picture").size(), (64, 32));
    }
    assert_eq!(Picture::from_bytes(&file("turned.png")).expect("a picture").size(), (24, 40));
}

#[test]
fn every_kind_of_png_becomes_rgb() {
    let of = |kind, bytes: &[u8]| {
        Picture::from_bytes(&png(2, 1, kind, bytes)).expect("a picture").pixels().to_vec()
    };
    assert_eq!(of(ExtendedColorType::Rgb8, &[1, 2, 3, 4, 5, 6]), [1, 2, 3, 4, 5, 6]);
    assert_eq!(
        of(ExtendedColorType::Rgba8, &[1, 2, 3, 0, 4, 5, 6, 128]),
        [1, 2, 3, 4, 5, 6],
        "no background"
    );
    assert_eq!(of(ExtendedColorType::L8, &[7, 8]), [7, 7, 7, 8, 8, 8]);
    assert_eq!(of(ExtendedColorType::La8, &[7, 0, 8, 255]), [7, 7, 7, 8, 8, 8]);
    let wide = |values: &[u16]| values.iter().flat_map(|value| value.to_ne_bytes()).collect::<Vec<u8>>();
    assert_eq!(of(ExtendedColorType::L16, &wide(&[0x0007, 0x0800])), [7, 7, 7, 255, 255, 255]);
    assert_eq!(of(ExtendedColorType::La16, &wide(&[0x0701, 0, 0x0800, 9])), [7, 7, 7, 8, 8, 8]);
    let rgb = wide(&[0x0100, 0x02ff, 0x0300, 0x0400, 0x0500, 0xffff]);
    assert_eq!(of(ExtendedColorType::Rgb16, &rgb), [1, 2, 3, 4, 5, 255]);
    let rgba = wide(&[0x0100, 0x0200, 0x0300, 0, 0x0400, 0x0500, 0x0600, 1]);
    assert_eq!(of(ExtendedColorType::Rgba16, &rgba), [1, 2, 3, 4, 5, 6]);
    // A palette of two colours, one bit a pixel.
    let picture = Picture::from_bytes(&file("palette.png")).expect("a picture");
    assert_eq!((picture.size(), picture.pixels()), ((2, 1), &[200, 10, 20, 30, 40, 50][..]));
}

#[test]
fn jpegs_are_decoded_nearly_as_elsewhere() {
    let expected = file("smooth_jpg.rgb");
    for name in ["smooth.jpg", "progressive.jpg"] {
        let picture = Picture::from_bytes(&file(name)).expect("a picture");
        assert_eq!(picture.size(), (40, 24));
        let differences = picture.pixels().iter().zip(&expected).map(|(ours, theirs)| ours.abs_diff(*theirs));
        assert!(differences.max().expect("pixels") <= 3, "{name}");
    }
    let grey = Picture::from_bytes(&file("grey.jpg")).expect("a picture");
    assert!(grey.pixels().chunks_exact(3).all(|pixel| pixel[0] == pixel[1] && pixel[1] == pixel[2]));
}

#[test]
fn every_kind_of_file_is_decoded_as_by_pillow() {
    let mut wrong = Vec::new();
    // Exactly equal, except for files compressed by a transform of reals.
    for (name, apart) in [
        ("still.gif", 0),
        ("masked.gif", 0),
        ("moving.gif", 0),
        ("smooth.bmp", 0),
        ("palette.bmp", 0),
        ("grey.bmp", 0),
        ("two.bmp", 0),
        ("smooth.tiff", 0),
        ("deflate.tiff", 0),
        ("jpeg.tiff", 3),
        ("bits.tiff", 0),
        ("print.tiff", 1),
        ("clear.tiff", 0),
        ("grey16.tiff", 0),
        ("grey16.png", 0),
        ("lossy.webp", 3),
        ("clear.webp", 0),
        ("print.jpg", 4),
        ("dark.jpg", 4),
    ] {
        let picture = Picture::from_bytes(&file(name)).unwrap_or_else(|error| panic!("{name}: {error}"));
        // Lossless files share the expected pixels from Pillow.
        let is_smooth =
            ["smooth.bmp", "smooth.tiff", "deflate.tiff", "clear.tiff", "clear.webp", "print.tiff"]
                .contains(&name);
        let expected = file(&if is_smooth {
            "smooth.rgb".to_owned()
        } else {
            format!("{}.rgb", name.replace('.', "_"))
        });
        assert_eq!(picture.pixels().len(), expected.len(), "{name}");
        assert_eq!(Picture::measure(&file(name)).expect("a size"), picture.size());
        let differences = picture.pixels().iter().zip(&expected).map(|(ours, theirs)| ours.abs_diff(*theirs));
        let found = differences.max().expect("pixels");
        if found > apart {
            wrong.push(format!("{name}: {found}"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:?}");
    let picture = Picture::from_bytes(&file("smooth.webp")).expect("a picture");
    assert_eq!(picture.size(), (40, 24));
    assert_eq!(picture.pixels()[..6], [0, 0, 0, 6, 0, 1]);
    assert_eq!(Picture::from_bytes(&file("turned.tiff")).expect("a picture").size(), (24, 40));
    assert_refused(Picture::from_bytes(&file("moving.webp")), ErrorKind::Unsupported, "an animated WebP, ");
    assert_refused(Picture::from_bytes(&file("palette.tiff")), ErrorKind::Unsupported, "unsupported: ");
    assert_refused(Picture::from_bytes(&file("floats.tiff")), ErrorKind::Unsupported, "unsupported: ");
    let mut floats = Cursor::new(Vec::new());
    let values: Vec<u8> = [0.5f32; 12].iter().flat_map(|value| value.to_ne_bytes()).collect();
    TiffEncoder::new(&mut floats).write_image(&values, 2, 2, ExtendedColorType::Rgb32F).expect("encoded");
    let error =
        assert_refused(Picture::from_bytes(floats.get_ref()), ErrorKind::Unsupported, "unsupported: ");
    assert!(error.to_string().contains("floats"), "{error}");
}

#[test]
fn what_is_not_decoded_is_named() {
    for (bytes, what) in [
        (b"\0\0\0\x20ftypavif".to_vec(), "an AVIF picture"),
        (b"%PDF-1.7 and more".to_vec(), "a PDF document"),
        (b"just some words".to_vec(), "text"),
        (vec![], "empty"),
        (vec![0; 100], "of an unknown type"),
        (file("sine_16k.flac"), "a FLAC sound"),
    ] {
        let error = assert_refused(Picture::from_bytes(&bytes), ErrorKind::Unsupported, ", expected one of ");
        assert!(error.message().starts_with(&format!("{what}, expected one of PNG, JPEG")), "{error}");
    }
    assert_refused(Picture::from_bytes(&file("moving.png")), ErrorKind::Unsupported, "an animated PNG, ");
    assert_refused(Picture::measure(&file("moving.png")), ErrorKind::Unsupported, "an animated ");
}

#[test]
fn the_content_decides_and_errors_name_the_file() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("photo.txt");
    std::fs::write(&path, png(2, 2, ExtendedColorType::Rgb8, &[5; 12])).expect("written");
    assert_eq!(Picture::from_path(&path).expect("a picture").size(), (2, 2));
    let named = folder.path().join("words.png");
    std::fs::write(&named, "words").expect("written");
    let error = assert_refused(Picture::from_path(&named), ErrorKind::Unsupported, ", expected one of ");
    assert!(error.to_string().contains("words.png: text, "), "{error}");
    assert_refused(Picture::from_path(folder.path().join("absent.png")), ErrorKind::Missing, "No such file");
    assert_refused(Picture::from_path(folder.path()), ErrorKind::Invalid, "a directory, not a regular file");
    let long = folder.path().join("long.png");
    std::fs::File::create(&long)
        .and_then(|file| file.set_len(limits::PICTURE_FILE_BYTES + 1))
        .expect("a long file");
    assert_refused(Picture::from_path(&long), ErrorKind::Invalid, "more than 268435456 bytes");
}

#[test]
fn pixels_are_taken_with_any_stride() {
    let tight = Picture::from_rgb8(2, 2, 6, &[1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12]).expect("a picture");
    let loose =
        Picture::from_rgb8(2, 2, 8, &[1, 2, 3, 4, 5, 6, 0, 0, 7, 8, 9, 10, 11, 12]).expect("a picture");
    assert_eq!(tight, loose);
    assert_eq!(tight.content_hash(), loose.content_hash());
    assert_eq!(format!("{tight:?}"), "Picture { width: 2, height: 2 }");
    assert_refused(Picture::from_rgb8(2, 2, 5, &[0; 12]), ErrorKind::Argument, " values; expected ");
    assert_refused(Picture::from_rgb8(2, 2, 8, &[0; 13]), ErrorKind::Argument, " values; expected ");
    assert_refused(
        Picture::from_rgb8(2, 3, usize::MAX / 2, &[0; 13]),
        ErrorKind::Argument,
        " values; expected ",
    );
    assert_refused(Picture::from_rgb8(0, 2, 8, &[]), ErrorKind::Invalid, "expected at least 1 by 1");
    let huge =
        assert_refused(Picture::from_rgb8(60_000, 60_000, 180_000, &[]), ErrorKind::Invalid, " are decoded");
    assert!(huge.to_string().contains("60000 by 60000"), "{huge}");
}

#[test]
fn equal_pictures_have_equal_hashes_whatever_their_file() {
    let pixels = quarters(8, 4);
    let plain = Picture::from_rgb8(8, 4, 24, &pixels).expect("a picture");
    let from_file = Picture::from_bytes(&png(8, 4, ExtendedColorType::Rgb8, &pixels)).expect("a picture");
    assert_eq!(plain.content_hash(), from_file.content_hash());
    let others = [
        Picture::from_rgb8(4, 8, 12, &pixels).expect("other sides"),
        Picture::from_rgb8(8, 4, 24, &pixels.iter().map(|value| value ^ 1).collect::<Vec<_>>())
            .expect("other"),
    ];
    assert!(others.iter().all(|other| other.content_hash() != plain.content_hash()));
}

#[test]
fn destinations_are_checked_and_filled() {
    let settings = PictureSettings { patch: 4, ..PictureSettings::default() };
    let picture = Picture::from_rgb8(30, 20, 90, &quarters(30, 20)).expect("a picture");
    let grid = settings.grid(30, 20, 70).expect("a grid");
    let needed = grid.patches();
    let write = |grid: &Grid, patches: usize, columns: usize, rows: usize| {
        let (mut patches, mut columns, mut rows) = (vec![9.0; patches * 48], vec![9; columns], vec![9; rows]);
        picture.write_patches(grid, &mut patches, &mut columns, &mut rows).map(|()| (patches, columns, rows))
    };
    let (patches, columns, rows) = write(&grid, needed + 4, needed + 4, needed + 4).expect("written");
    assert!(patches[needed * 48..].iter().all(|value| *value == 0.0));
    assert!(columns[needed..].iter().chain(&rows[needed..]).all(|value| *value == -1));
    assert!(patches[..needed * 48].iter().all(|value| (0.0..=1.0).contains(value)));
    for (index, (column, row)) in grid.positions().enumerate() {
        assert_eq!((columns[index], rows[index]), (column as i32, row as i32));
    }
    assert_eq!(write(&grid, needed + 4, needed + 4, needed + 4).expect("again").0, patches);
    assert_refused(
        write(&grid, needed - 1, needed - 1, needed - 1),
        ErrorKind::Argument,
        " values; expected ",
    );
    assert_refused(write(&grid, needed + 1, needed, needed), ErrorKind::Argument, " values; expected ");
    assert_refused(write(&grid, needed, needed, needed + 1), ErrorKind::Argument, " values; expected ");
    let other = settings.grid(31, 20, 70).expect("a grid");
    assert_refused(write(&other, needed, needed, needed), ErrorKind::Argument, "the grid is for ");
}

/// Returns the header of a PNG that claims a size, with a correct checksum.
fn claim(width: u32, height: u32, bits: u8, kind: u8) -> Vec<u8> {
    let mut chunk = b"IHDR".to_vec();
    chunk.extend(width.to_be_bytes());
    chunk.extend(height.to_be_bytes());
    chunk.extend([bits, kind, 0, 0, 0]);
    let mut sum = !0u32;
    for byte in &chunk {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 };
        }
    }
    let mut file = b"\x89PNG\r\n\x1a\n\0\0\0\x0d".to_vec();
    file.extend(&chunk);
    file.extend((!sum).to_be_bytes());
    // The data begin, but none of them is needed to refuse the size.
    file.extend(b"\0\0\0\x02IDAT\x78\x9c");
    file
}

#[test]
fn absurd_sizes_are_refused_from_the_header() {
    let error =
        assert_refused(Picture::from_bytes(&claim(60_000, 60_000, 8, 2)), ErrorKind::Invalid, " are decoded");
    assert!(error.to_string().contains("60000 by 60000 pixels; at most 67108864 pixels"), "{error}");
    // 64 bits a pixel.
    assert_refused(
        Picture::from_bytes(&claim(8_000, 8_000, 16, 6)),
        ErrorKind::Invalid,
        "at most 268435456 bytes are decoded",
    );
    // Sizes that overflow in the decoder, and a line that is longer than its memory.
    let side = i32::MAX as u32;
    let error =
        assert_refused(Picture::from_bytes(&claim(side, side, 8, 6)), ErrorKind::Invalid, " are decoded");
    assert!(error.to_string().contains("2147483647 by 2147483647 pixels; at most 67108864"), "{error}");
    let error = assert_refused(
        Picture::from_bytes(&claim(40_000_000, 1, 16, 6)),
        ErrorKind::Invalid,
        "bytes of memory",
    );
    assert!(error.to_string().contains("more than 268435456 bytes of memory"), "{error}");
    let mut jpeg = jpeg(64, 32, None);
    let frame = jpeg.windows(2).position(|pair| pair == [0xff, 0xc0]).expect("a frame");
    jpeg[frame + 5..frame + 9].fill(0xff);
    assert_refused(Picture::from_bytes(&jpeg), ErrorKind::Invalid, " are decoded");
    assert_refused(Picture::measure(&jpeg), ErrorKind::Invalid, " are decoded");
    let none = crate::support::refused(Picture::from_bytes(&claim(0, 5, 8, 2)));
    let faults = ["damaged: ", "0 by 5 pixels, expected at least 1 by 1"];
    assert_eq!(none.kind(), ErrorKind::Invalid);
    assert!(faults.iter().any(|fault| none.message().starts_with(*fault)), "{none:?}");
}

#[test]
fn broken_files_end_in_errors() {
    let whole = png(9, 7, ExtendedColorType::Rgb8, &quarters(9, 7));
    for length in 0..whole.len() {
        // The end marker is not required.
        if let Err(error) = Picture::from_bytes(&whole[..length]) {
            assert!(error.help().is_some());
        } else {
            assert!(length >= whole.len() - 12, "{length} of {}", whole.len());
        }
    }
    assert_refused(Picture::from_bytes(&whole[..60]), ErrorKind::Invalid, ": truncated: ");
    let mut wrong = whole.clone();
    wrong[20] ^= 1;
    assert_refused(Picture::from_bytes(&wrong), ErrorKind::Invalid, ": damaged: ");

    for name in
        ["still.gif", "smooth.bmp", "palette.bmp", "smooth.tiff", "bits.tiff", "lossy.webp", "clear.webp"]
    {
        let whole = file(name);
        let expected = Picture::from_bytes(&whole).expect("a picture");
        let mut partial = Vec::new();
        for length in 12..whole.len() {
            match Picture::from_bytes(&whole[..length]) {
                // Markers of the end, and tables after the pixels.
                Ok(picture) if picture == expected => {}
                Ok(_) => partial.push(length),
                Err(error) => assert!(error.help().is_some()),
            }
        }
        assert!(partial.is_empty(), "{name} is shown in part from {partial:?} of {}", whole.len());
    }
    for name in ["smooth.jpg", "progressive.jpg", "grey.jpg"] {
        let whole = file(name);
        for length in 3..whole.len() {
            let error = crate::support::refused(Picture::from_bytes(&whole[..length]));
            assert!(error.message().starts_with("truncated: "), "{name}, {length}: {error}");
        }
    }
}

/// Another decoder reads a JPEG of the tests, to check that the tests write valid files.
#[test]
fn our_files_are_pictures_for_others_too() {
    let decoded = image::ImageReader::new(Cursor::new(jpeg(64, 32, Some(6)))).with_guessed_format();
    let decoded: DynamicImage = decoded.expect("a format").decode().expect("a picture");
    assert_eq!((decoded.width(), decoded.height()), (64, 32));
}
