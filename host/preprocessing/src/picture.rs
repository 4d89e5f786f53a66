//! Pictures: decoded, turned upright, resized, cut into patches.

use std::fmt;
use std::io::{self, Cursor};
use std::path::Path;

use image::codecs::bmp::BmpDecoder;
use image::codecs::gif::GifDecoder;
use image::codecs::jpeg::JpegDecoder;
use image::codecs::png::PngDecoder;
use image::codecs::tiff::TiffDecoder;
use image::codecs::webp::WebPDecoder;
use image::metadata::Orientation;
use image::{ColorType, DynamicImage, ImageDecoder, ImageError, Limits, RgbImage};
use sha2::{Digest, Sha256};
use shardwright_vocabulary::{Error, Result};

use crate::file::{damaged, truncated, unsupported};
use crate::grid::expect_pixels;
use crate::resize::resize;
use crate::settings::wrong_length;
use crate::{Grid, PictureSettings, file, limits};

/// Name in errors of pictures that are not from a file.
const UNNAMED: &str = "the picture";
const CHANNELS: usize = PictureSettings::CHANNELS as usize;

/// A decoded picture: red, green and blue of 8 bits, upright.
///
/// The pixels are the same as in Hugging Face's processors, which use Pillow. Transparency is
/// dropped, not painted over a background. Colours of 16 bits keep the upper 8 bits, and grey of 16
/// bits is white from 255 up. Colours for print become red, green and blue without a profile, and
/// other profiles are not applied.
#[derive(Clone, PartialEq, Eq)]
pub struct Picture {
    width: u32,
    height: u32,
    /// Rows of pixels without gaps.
    pixels: Vec<u8>,
}

impl Picture {
    /// Reads a PNG, JPEG, WebP, GIF, BMP or TIFF file. The type follows from the content, not from
    /// the name. The picture is the first frame of a GIF, and the first page of a TIFF. A picture
    /// with an EXIF orientation is turned upright.
    ///
    /// # Errors
    ///
    /// The errors of reading the file, and of [`from_bytes`](Self::from_bytes) with the name of the
    /// file.
    pub fn from_path(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let bytes = file::read(path, limits::PICTURE_FILE_BYTES)?;
        Self::decode(&bytes, &path.display().to_string())
    }

    /// Decodes the bytes of such a file.
    ///
    /// # Errors
    ///
    /// * If the type, the coding or an animation is not supported.
    /// * If the header specifies too many pixels, which are then not allocated.
    /// * If the content is damaged or truncated.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        file::expect_at_most(bytes, limits::PICTURE_FILE_BYTES, UNNAMED)?;
        Self::decode(bytes, UNNAMED)
    }

    /// Reads the upright size of such a file's picture from its header alone, which is enough for
    /// the grid.
    ///
    /// # Errors
    ///
    /// The errors of [`from_bytes`](Self::from_bytes) that the header shows.
    pub fn measure(bytes: &[u8]) -> Result<(u32, u32)> {
        file::expect_at_most(bytes, limits::PICTURE_FILE_BYTES, UNNAMED)?;
        file::guarded(UNNAMED, || {
            let mut decoder = open(bytes, UNNAMED)?;
            let (width, height) = decoder.dimensions();
            Ok(match decoder.orientation().map_err(|error| explain(error, UNNAMED))? {
                Orientation::Rotate90
                | Orientation::Rotate270
                | Orientation::Rotate90FlipH
                | Orientation::Rotate270FlipH => (height, width),
                _ => (width, height),
            })
        })
    }

    /// Creates a picture from decoded pixels: red, green and blue of a byte each, with `stride`
    /// bytes from the start of a row to the start of the next.
    ///
    /// # Errors
    ///
    /// If there are no pixels or too many, if `stride` is less than a row, or if `pixels` is less
    /// than all rows.
    pub fn from_rgb8(width: u32, height: u32, stride: usize, pixels: &[u8]) -> Result<Self> {
        expect_size(width, height, UNNAMED)?;
        let row = width as usize * CHANNELS;
        if stride < row {
            return Err(wrong_length("the stride", &format!("{row} or more"), stride));
        }
        let needed = stride.checked_mul(height as usize - 1).and_then(|above| above.checked_add(row));
        if needed.is_none_or(|needed| pixels.len() < needed) {
            let needed = format!("{stride} for each of {height} rows");
            return Err(wrong_length("the array of pixels", &needed, pixels.len()));
        }
        let rows = pixels.chunks(stride).take(height as usize);
        Ok(Picture { width, height, pixels: rows.flat_map(|line| &line[..row]).copied().collect() })
    }

    /// Returns width and height in pixels, upright.
    pub fn size(&self) -> (u32, u32) {
        (self.width, self.height)
    }

    /// Returns red, green and blue of all pixels, in rows without gaps.
    pub fn pixels(&self) -> &[u8] {
        &self.pixels
    }

    /// Returns a hash of size and pixels. Equal pictures have equal hashes, regardless of their
    /// files.
    pub fn content_hash(&self) -> [u8; 32] {
        let mut hash = Sha256::new();
        hash.update(b"shardwright picture rgb8");
        hash.update(self.width.to_le_bytes());
        hash.update(self.height.to_le_bytes());
        hash.update(&self.pixels);
        hash.finalize().into()
    }

    /// Resizes the picture to a grid and writes its patches. Soft tokens are ordered from left to
    /// right and top to bottom, and so are the patches in each of them. A patch is its rows from
    /// top to bottom, in each row the pixels from left to right, and for each pixel red, green and
    /// blue from 0 to 1. `columns` and `rows` receive the positions of the patches.
    ///
    /// Destinations may have more patches than the grid. The rest is filled with zeros at positions
    /// of -1. The grid must be that of [`PictureSettings::grid`] for this picture.
    ///
    /// # Errors
    ///
    /// If a destination is too short, the lengths do not match, or the grid is for a picture of
    /// another size.
    pub fn write_patches(
        &self,
        grid: &Grid,
        patches: &mut [f32],
        columns: &mut [i32],
        rows: &mut [i32],
    ) -> Result<()> {
        grid.expect_of(self.size())?;
        let patch = grid.patch() as usize;
        let values = patch * patch * CHANNELS;
        grid.prepare(values, patches, columns, rows)?;
        let (width, height) = grid.pixels();
        let to = (width as usize, height as usize);
        let pixels = resize(&self.pixels, (self.width as usize, self.height as usize), to);
        // One rounding of a wider product, as in the library.
        let scaled: [f32; 256] = std::array::from_fn(|value| (value as f64 * (1.0 / 255.0)) as f32);
        let line = to.0 * CHANNELS;
        for ((column, row), destination) in grid.positions().zip(patches.chunks_exact_mut(values)) {
            let corner = row as usize * patch * line + column as usize * patch * CHANNELS;
            for (y, destination) in destination.chunks_exact_mut(patch * CHANNELS).enumerate() {
                let source = &pixels[corner + y * line..][..destination.len()];
                for (to, from) in destination.iter_mut().zip(source) {
                    *to = scaled[usize::from(*from)];
                }
            }
        }
        Ok(())
    }

    fn decode(bytes: &[u8], origin: &str) -> Result<Self> {
        file::guarded(origin, || finish(open(bytes, origin)?, origin))
    }
}

/// Prints the size only, since pixels would fill the screen.
impl fmt::Debug for Picture {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Picture").field("width", &self.width).field("height", &self.height).finish()
    }
}

fn expect_size(width: u32, height: u32, origin: &str) -> Result<()> {
    expect_pixels(width, height, origin)?;
    if u64::from(width) * u64::from(height) > limits::PIXELS {
        return Err(too_many((width, height), &format!("{} pixels", limits::PIXELS), origin));
    }
    Ok(())
}

/// Help for a picture that needs too much memory.
const SHRINK: &str = "make the picture smaller first: a model sees less than two megapixels of it";

fn too_many((width, height): (u32, u32), most: &str, origin: &str) -> Error {
    Error::invalid(format!("{width} by {height} pixels; at most {most} are decoded"))
        .at(origin)
        .with_help(SHRINK)
}

fn animated(format: &str, origin: &str) -> Error {
    Error::unsupported(format!("an animated {format}, but only single pictures are supported"))
        .at(origin)
        .with_help("save one frame as a separate picture")
}

/// Reads the header and refuses unsupported content.
fn open<'a>(bytes: &'a [u8], origin: &str) -> Result<Box<dyn ImageDecoder + 'a>> {
    let wrong = |error| explain(error, origin);
    let decoder: Box<dyn ImageDecoder + 'a> = match file::look(bytes) {
        "a PNG picture" => {
            let mut limits = Limits::no_limits();
            limits.max_alloc = Some(limits::DECODED_BYTES);
            let decoder = PngDecoder::with_limits(Cursor::new(bytes), limits);
            let decoder = decoder.map_err(|error| explain_png(error, bytes, origin))?;
            if decoder.is_apng().map_err(wrong)? {
                return Err(animated("PNG", origin));
            }
            Box::new(decoder)
        }
        "a JPEG picture" => {
            walk_jpeg(bytes, origin)?;
            Box::new(JpegDecoder::new(Cursor::new(bytes)).map_err(wrong)?)
        }
        "a WebP picture" => {
            let decoder = WebPDecoder::new(Cursor::new(bytes)).map_err(wrong)?;
            if decoder.has_animation() {
                return Err(animated("WebP", origin));
            }
            Box::new(decoder)
        }
        "a GIF picture" => limited(GifDecoder::new(Cursor::new(bytes)), origin)?,
        "a BMP picture" => limited(BmpDecoder::new(Cursor::new(bytes)), origin)?,
        "a TIFF picture" => limited(TiffDecoder::new(Cursor::new(bytes)), origin)?,
        found => {
            return Err(file::unknown_type(origin, found, "PNG, JPEG, WebP, GIF, BMP, TIFF"));
        }
    };
    if matches!(decoder.color_type(), ColorType::Rgb32F | ColorType::Rgba32F) {
        return Err(unsupported(origin, "a picture of floats"));
    }
    let (width, height) = decoder.dimensions();
    expect_size(width, height, origin)?;
    if decoder.total_bytes() > limits::DECODED_BYTES {
        return Err(too_many((width, height), &format!("{} bytes", limits::DECODED_BYTES), origin));
    }
    Ok(decoder)
}

/// Like [`explain`], but the decoder reports a huge size as a lack of memory.
fn explain_png(error: ImageError, bytes: &[u8], origin: &str) -> Error {
    let size = png_size(bytes).filter(|_| matches!(error, ImageError::Limits(_)));
    let too_large = size.and_then(|(width, height)| expect_size(width, height, origin).err());
    too_large.unwrap_or_else(|| explain(error, origin))
}

/// Returns width and height from the header of a PNG.
fn png_size(bytes: &[u8]) -> Option<(u32, u32)> {
    const SIGNATURE_AND_LENGTH: usize = 12;
    let header = bytes.get(SIGNATURE_AND_LENGTH..)?.strip_prefix(b"IHDR")?;
    let number = |at: usize| Some(u32::from_be_bytes(header.get(at..at + 4)?.try_into().ok()?));
    Some((number(0)?, number(4)?))
}

/// Limits a decoder's allocations to the pixels of a file.
fn limited<'a>(
    decoder: Result<impl ImageDecoder + 'a, ImageError>,
    origin: &str,
) -> Result<Box<dyn ImageDecoder + 'a>> {
    let wrong = |error| explain(error, origin);
    let mut decoder = decoder.map_err(wrong)?;
    let (width, height) = decoder.dimensions();
    expect_size(width, height, origin)?;
    let mut limits = Limits::no_limits();
    limits.max_alloc = Some(limits::DECODED_BYTES);
    decoder.set_limits(limits).map_err(wrong)?;
    Ok(Box::new(decoder))
}

/// Decodes a picture and turns it upright.
fn finish(mut decoder: Box<dyn ImageDecoder + '_>, origin: &str) -> Result<Picture> {
    let wrong = |error| explain(error, origin);
    let orientation = decoder.orientation().map_err(wrong)?;
    let pixels = rgb(DynamicImage::from_decoder(decoder).map_err(wrong)?);
    let mut upright = DynamicImage::ImageRgb8(pixels);
    upright.apply_orientation(orientation);
    let (width, height) = (upright.width(), upright.height());
    Ok(Picture { width, height, pixels: upright.into_rgb8().into_raw() })
}

fn rgb(decoded: DynamicImage) -> RgbImage {
    let (width, height) = (decoded.width(), decoded.height());
    let upper = |value: u16| (value >> 8) as u8;
    // Pillow stores grey of 16 bits as integers, and clips values above a byte to white.
    let clipped = |value: u16| value.min(255) as u8;
    // Keeps the colours of each pixel, or its grey three times.
    let kept = |pixels: &[u8], channels: usize| -> Vec<u8> {
        let colours = if channels < CHANNELS { [0; CHANNELS] } else { [0, 1, 2] };
        pixels.chunks_exact(channels).flat_map(|pixel| colours.map(|at| pixel[at])).collect()
    };
    let narrow = |pixels: &[u16], channels: usize| -> Vec<u8> {
        let colours = if channels < CHANNELS { [0; CHANNELS] } else { [0, 1, 2] };
        pixels.chunks_exact(channels).flat_map(|pixel| colours.map(|at| upper(pixel[at]))).collect()
    };
    let pixels = match &decoded {
        DynamicImage::ImageLuma8(image) => kept(image.as_raw(), 1),
        DynamicImage::ImageLumaA8(image) => kept(image.as_raw(), 2),
        DynamicImage::ImageRgba8(image) => kept(image.as_raw(), 4),
        DynamicImage::ImageLuma16(image) => image.iter().flat_map(|value| [clipped(*value); 3]).collect(),
        DynamicImage::ImageLumaA16(image) => narrow(image.as_raw(), 2),
        DynamicImage::ImageRgb16(image) => narrow(image.as_raw(), 3),
        DynamicImage::ImageRgba16(image) => narrow(image.as_raw(), 4),
        // Eight bits of three colours, unchanged. The decoders here return no other kinds.
        _ => return decoded.into_rgb8(),
    };
    // The lengths match, so this never becomes the empty default.
    RgbImage::from_raw(width, height, pixels).unwrap_or_default()
}

fn explain(error: ImageError, origin: &str) -> Error {
    let is_end = |error: &io::Error| error.kind() == io::ErrorKind::UnexpectedEof;
    match error {
        ImageError::IoError(error) if is_end(&error) => truncated(origin, error),
        ImageError::Unsupported(error) => unsupported(origin, error),
        ImageError::Limits(_) => {
            let max = limits::DECODED_BYTES;
            let what = format!("decoding needs more than {max} bytes of memory, which is the limit");
            Error::invalid(what).at(origin).with_help(SHRINK)
        }
        error => damaged(origin, error),
    }
}

/// Checks that a JPEG has all segments to its end, since the decoder paints missing parts grey.
fn walk_jpeg(bytes: &[u8], origin: &str) -> Result<()> {
    let truncated = || truncated(origin, "the mark of its end is missing");
    const END: u8 = 0xd9;
    // Skips the marker of the start.
    let mut rest = bytes.get(2..).unwrap_or_default();
    loop {
        let start = rest.iter().position(|byte| *byte == 0xff).ok_or_else(truncated)?;
        rest = &rest[start..];
        let fill = rest.iter().position(|byte| *byte != 0xff).ok_or_else(truncated)?;
        let marker = rest[fill];
        rest = &rest[fill + 1..];
        match marker {
            END => return Ok(()),
            // Bytes of a scan, restarts, and markers without a segment.
            0x00 | 0x01 | 0xd0..=0xd8 => continue,
            _ => {}
        }
        let &[high, low, ..] = rest else { return Err(truncated()) };
        let length = usize::from(u16::from_be_bytes([high, low]));
        rest.get(..length).ok_or_else(truncated)?;
        // The bytes of a scan follow its segment. They are searched like the space between other
        // segments.
        rest = &rest[length.max(2).min(rest.len())..];
    }
}
