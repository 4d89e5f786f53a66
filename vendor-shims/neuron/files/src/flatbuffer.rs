//! Reads FlatBuffers field by field, without a schema compiler. A table lists the offsets of its
//! fields, and each access is checked.
//!
//! Layout: <https://flatbuffers.dev/internals/>. Offsets are unsigned and point forward, except a
//! table's offset to its vtable, which is signed. The buffer is not verified ahead: only accessed
//! parts are checked.

use crate::bytes::Bytes;
use crate::{ContainerError, Result};

/// Maximum length of a text in bytes. Names are short, and descriptions are truncated when they are
/// shown.
const MAX_TEXT: usize = 16 << 10;

/// A table of a FlatBuffer.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    file: Bytes<'a>,
    at: usize,
    vtable: usize,
    fields: u16,
}

/// A vector of elements of equal size.
#[derive(Clone, Copy, Debug)]
pub struct Vector<'a> {
    file: Bytes<'a>,
    /// Offset of the first element.
    at: usize,
    pub len: usize,
}

macro_rules! numbers {
    ($($type:ident),+) => {
        $(
            #[doc = concat!("Returns a field of type `", stringify!($type), "`, or `None` if it is absent.")]
            pub fn $type(&self, slot: u16) -> Result<Option<$type>> {
                let what = concat!(stringify!($type), " field");
                self.field(slot)?.map(|at| self.file.$type(at, what)).transpose()
            }
        )+
    };
}

impl<'a> Table<'a> {
    /// Returns the root table of a buffer that starts at the start of `file`.
    pub fn root(file: Bytes<'a>) -> Result<Table<'a>> {
        let at = file.u32(0, "root offset")? as usize;
        Table::at(file, at)
    }

    fn at(file: Bytes<'a>, at: usize) -> Result<Table<'a>> {
        let back = i64::from(file.i32(at, "table")?);
        let vtable = usize::try_from(at as i64 - back)
            .map_err(|_| file.malformed(at, "table", "its list of fields would be before the file"))?;
        let bytes = file.u16(vtable, "list of fields")?;
        if bytes < 4 || bytes % 2 != 0 {
            return Err(file.malformed(vtable, "list of fields", format!("{bytes} bytes")));
        }
        file.slice(vtable, bytes.into(), "list of fields")?;
        Ok(Table { file, at, vtable, fields: (bytes - 4) / 2 })
    }

    /// Returns the offset of the table in the file.
    pub fn offset(&self) -> u64 {
        self.file.offset(self.at)
    }

    /// Returns the number of fields that the writer knew.
    pub const fn fields(&self) -> u16 {
        self.fields
    }

    /// Returns the offset of a field's value, or `None` if the field is absent.
    fn field(&self, slot: u16) -> Result<Option<usize>> {
        if slot >= self.fields {
            return Ok(None);
        }
        let offset = self.file.u16(self.vtable + 4 + 2 * usize::from(slot), "offset of a field")?;
        Ok((offset != 0).then(|| self.at + usize::from(offset)))
    }

    numbers!(u8, i8, u16, i16, u32, i32, u64, i64, f32, f64);

    /// Returns a struct of `length` bytes that is stored in the table itself.
    pub fn inline(&self, slot: u16, length: usize) -> Result<Option<Bytes<'a>>> {
        self.field(slot)?.map(|at| self.file.slice(at, length, "struct")).transpose()
    }

    /// Returns the offset to which a field points.
    fn target(&self, slot: u16) -> Result<Option<usize>> {
        let Some(at) = self.field(slot)? else { return Ok(None) };
        follow(self.file, at).map(Some)
    }

    /// Returns a field that is a table.
    pub fn table(&self, slot: u16) -> Result<Option<Table<'a>>> {
        self.target(slot)?.map(|at| Table::at(self.file, at)).transpose()
    }

    /// Returns a vector of elements of `element` bytes each, all within the file.
    fn vector(&self, slot: u16, element: usize) -> Result<Option<Vector<'a>>> {
        let Some(at) = self.target(slot)? else { return Ok(None) };
        let len = self.file.u32(at, "length of a vector")? as usize;
        // The product of 32 bits and a few bytes does not overflow.
        self.file.slice(at + 4, len.saturating_mul(element), "elements of a vector")?;
        Ok(Some(Vector { file: self.file, at: at + 4, len }))
    }

    /// Returns a field that is a vector of tables, or `None` if it is absent.
    pub fn tables(&self, slot: u16) -> Result<Option<Vector<'a>>> {
        self.vector(slot, 4)
    }

    /// Returns a field that is a vector of bytes.
    pub fn bytes(&self, slot: u16) -> Result<Option<Bytes<'a>>> {
        let Some(vector) = self.vector(slot, 1)? else { return Ok(None) };
        self.file.slice(vector.at, vector.len, "bytes").map(Some)
    }

    /// Returns a text field, which must be UTF-8 of at most 16 KiB.
    pub fn text(&self, slot: u16) -> Result<Option<&'a str>> {
        let Some(bytes) = self.bytes(slot)? else { return Ok(None) };
        if bytes.len() > MAX_TEXT {
            return Err(ContainerError::TooMany {
                what: "bytes of a text",
                offset: bytes.offset(0),
                count: bytes.len() as u64,
                most: MAX_TEXT as u64,
            });
        }
        let text = std::str::from_utf8(bytes.get());
        text.map(Some).map_err(|error| bytes.malformed(error.valid_up_to(), "text", "it is not UTF-8"))
    }
}

impl<'a> Vector<'a> {
    /// Returns the offset of the elements in the file.
    pub fn offset(&self) -> u64 {
        self.file.offset(self.at)
    }

    /// Returns the table at `index` of a vector of tables.
    pub fn table(&self, index: usize) -> Result<Table<'a>> {
        if index >= self.len {
            let reason = format!("there is no element {index}, only {}", self.len);
            return Err(self.file.malformed(self.at, "vector", reason));
        }
        Table::at(self.file, follow(self.file, self.at + 4 * index)?)
    }

    /// Returns all tables, if there are at most `most`.
    pub fn all(
        self,
        what: &'static str,
        most: usize,
    ) -> Result<impl Iterator<Item = Result<Table<'a>>> + use<'a>> {
        if self.len > most {
            return Err(ContainerError::TooMany {
                what,
                offset: self.offset(),
                count: self.len as u64,
                most: most as u64,
            });
        }
        Ok((0..self.len).map(move |index| self.table(index)))
    }
}

/// Returns the position to which the offset at `at` points.
fn follow(file: Bytes<'_>, at: usize) -> Result<usize> {
    let offset = file.u32(at, "offset")? as usize;
    at.checked_add(offset)
        .filter(|to| *to < file.len())
        .ok_or_else(|| file.malformed(at, "offset", format!("{offset} points beyond the file")))
}
