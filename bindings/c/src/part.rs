//! Turns and their parts.

use std::ffi::{c_char, c_void};

use shardwright_bindings_core::{Error, Part, Result, Role, Turn};

use crate::memory::{Plain, TERMINATED, array, counted_path, counted_text, optional_text, text, values};

/// The author of a turn.
pub type sw_role = i32;
/// Instructions.
pub const SW_ROLE_SYSTEM: sw_role = 0;
/// The user.
pub const SW_ROLE_USER: sw_role = 1;
/// The model.
pub const SW_ROLE_ASSISTANT: sw_role = 2;
/// The application, with results of calls.
pub const SW_ROLE_TOOL: sw_role = 3;

/// Kind of a part.
pub type sw_part_kind = i32;
/// Text: `data` with `count` bytes.
pub const SW_PART_TEXT: sw_part_kind = 0;
/// A thought of the model: `data` with `count` bytes.
pub const SW_PART_THOUGHT: sw_part_kind = 1;
/// A call of a tool by the model: `id`, `name`, and `data` with `count` bytes of JSON.
pub const SW_PART_TOOL_CALL: sw_part_kind = 2;
/// The result of a call: `id`, and `data` with `count` bytes of text.
pub const SW_PART_TOOL_RESULT: sw_part_kind = 3;
/// A PNG, JPEG, WebP, GIF, BMP or TIFF file: `data` is its path with `count` bytes.
pub const SW_PART_PICTURE_FILE: sw_part_kind = 4;
/// The content of a picture file: `data` with `count` bytes.
pub const SW_PART_PICTURE_BYTES: sw_part_kind = 5;
/// Rows of pixels, three bytes each (red, green, blue): `data` with `count` bytes, `width`,
/// `height`, `stride`.
pub const SW_PART_PICTURE_PIXELS: sw_part_kind = 6;
/// Patches that the app computed itself: `data` with `count` floats, and `positions`.
pub const SW_PART_PICTURE_PATCHES: sw_part_kind = 7;
/// A WAV or FLAC file: `data` is its path with `count` bytes.
pub const SW_PART_SOUND_FILE: sw_part_kind = 8;
/// The content of a sound file: `data` with `count` bytes.
pub const SW_PART_SOUND_BYTES: sw_part_kind = 9;
/// Samples of one channel, -1 to 1: `data` with `count` floats, and `rate`.
pub const SW_PART_SOUND_SAMPLES: sw_part_kind = 10;
/// Mel frames that the app computed itself: `data` with `count` floats.
pub const SW_PART_SOUND_FRAMES: sw_part_kind = 11;

/// A part of a turn. Fields that its kind does not name are ignored.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sw_part {
    /// Size of this struct.
    pub size: usize,
    /// A `SW_PART_` constant.
    pub kind: sw_part_kind,
    /// Samples per second.
    pub rate: u32,
    /// The content.
    pub data: *const c_void,
    /// Number of bytes or floats. `SIZE_MAX` for a text or path that ends with a 0 byte.
    pub count: usize,
    /// Pixels of a row.
    pub width: u32,
    /// Number of rows.
    pub height: u32,
    /// Bytes from one row to the next.
    pub stride: usize,
    /// Column and row of each patch, one after the other. -1 for padding.
    pub positions: *const i32,
    /// Number of patches, half as many as the numbers of `positions`.
    pub position_count: usize,
    /// Id of a call.
    pub id: *const c_char,
    /// Name of a tool.
    pub name: *const c_char,
}

// SAFETY: all fields are numbers and pointers, for which any bits are valid.
unsafe impl Plain for sw_part {
    const FIRST_SIZE: usize = size_of::<Self>();
}

/// A turn of a conversation.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sw_turn {
    /// Size of this struct.
    pub size: usize,
    /// A `SW_ROLE_` constant.
    pub role: sw_role,
    /// 0.
    pub reserved: i32,
    /// The content in order.
    pub parts: *const sw_part,
    /// Number of parts.
    pub part_count: usize,
}

// SAFETY: all fields are numbers and pointers, for which any bits are valid.
unsafe impl Plain for sw_turn {
    const FIRST_SIZE: usize = size_of::<Self>();
}

/// Reads parts.
pub(crate) fn parts(pointer: *const sw_part, count: usize) -> Result<Vec<Part>> {
    array(pointer, count, "parts")?.iter().map(part).collect()
}

/// Reads turns.
pub(crate) fn turns(pointer: *const sw_turn, count: usize) -> Result<Vec<Turn>> {
    let turn = |turn: &sw_turn| {
        let role = match turn.role {
            SW_ROLE_SYSTEM => Role::System,
            SW_ROLE_USER => Role::User,
            SW_ROLE_ASSISTANT => Role::Assistant,
            SW_ROLE_TOOL => Role::Tool,
            other => {
                let what = format!("the role of a turn is {other}");
                return Err(Error::argument(what, "use a `SW_ROLE_` constant"));
            }
        };
        Ok(Turn { role, parts: parts(turn.parts, turn.part_count)? })
    };
    array(pointer, count, "turns")?.iter().map(turn).collect()
}

fn part(part: &sw_part) -> Result<Part> {
    let said = |what: &str| counted_text(part.data.cast(), part.count, what);
    let file = |what: &str| counted_path(part.data.cast(), part.count, what);
    let bytes = |what: &str| values::<u8>(part.data.cast(), data_count(part)?, what);
    let floats = |what: &str| values::<f32>(part.data.cast(), data_count(part)?, what);
    let id = || text(part.id, "`id` of a part");
    Ok(match part.kind {
        SW_PART_TEXT => Part::Text { text: said("a text")? },
        SW_PART_THOUGHT => Part::Thought { text: said("a thought")? },
        SW_PART_TOOL_CALL => Part::ToolCall {
            id: id()?,
            name: optional_text(part.name, "`name` of a part")?.unwrap_or_default(),
            arguments: said("the arguments of a call")?,
        },
        SW_PART_TOOL_RESULT => Part::ToolResult { id: id()?, content: said("the result of a call")? },
        SW_PART_PICTURE_FILE => Part::PictureFile { path: file("the path of a picture")? },
        SW_PART_PICTURE_BYTES => Part::PictureBytes { bytes: bytes("a picture")? },
        SW_PART_PICTURE_PIXELS => Part::PicturePixels {
            width: part.width,
            height: part.height,
            stride: part.stride as u64,
            pixels: bytes("the pixels of a picture")?,
        },
        SW_PART_PICTURE_PATCHES => {
            let numbers = part.position_count.saturating_mul(2);
            Part::PicturePatches {
                values: floats("the patches of a picture")?,
                positions: values(part.positions, numbers, "the positions of patches")?,
            }
        }
        SW_PART_SOUND_FILE => Part::SoundFile { path: file("the path of a sound")? },
        SW_PART_SOUND_BYTES => Part::SoundBytes { bytes: bytes("a sound")? },
        SW_PART_SOUND_SAMPLES => {
            Part::SoundSamples { rate: part.rate, samples: floats("the samples of a sound")? }
        }
        SW_PART_SOUND_FRAMES => Part::SoundFrames { values: floats("the frames of a sound")? },
        other => {
            let what = format!("the kind of a part is {other}");
            return Err(Error::argument(what, "use a `SW_PART_` constant"));
        }
    })
}

/// Returns the number of bytes or floats of a part, which is not `SIZE_MAX`.
fn data_count(part: &sw_part) -> Result<usize> {
    if part.count == TERMINATED {
        let what = "a part without text has the count `SIZE_MAX`";
        return Err(Error::argument(what, "set `count` to the number of bytes or floats"));
    }
    Ok(part.count)
}
