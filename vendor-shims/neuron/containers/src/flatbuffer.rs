//! FlatBuffers, read field by field without a schema compiler: a table lists the offsets of its
//! fields, and each access is checked.
//!
//! Layout: <https://flatbuffers.dev/internals/>. Offsets are unsigned and point forward, except a
//! table's offset to its vtable, which is signed. Nothing is verified ahead: only accessed parts
//! are checked.

use crate::bytes::Bytes;
use crate::{ContainerError, Result};

/// Longest text that is read; names are short, and descriptions are cut where they are shown.
const MAX_TEXT: usize = 16 << 10;

/// A table.
#[derive(Clone, Copy, Debug)]
pub struct Table<'a> {
    file: Bytes<'a>,
    at: usize,
    vtable: usize,
    fields: u16,
}

/// Elements of equal size.
#[derive(Clone, Copy, Debug)]
pub struct Vector<'a> {
    file: Bytes<'a>,
    /// Offset of the first element.
    at: usize,
    /// Number of elements.
    pub len: usize,
}

impl<'a> Table<'a> {
    /// The table at the root of a buffer that begins where `file` does.
    pub fn root(file: Bytes<'a>) -> Result<Table<'a>> {
        let at = file.u32(0, "root offset")? as usize;
        Table::at(file, at)
    }

    fn at(file: Bytes<'a>, at: usize) -> Result<Table<'a>> {
        let back = i64::from(file.i32(at, "table")?);
        let vtable = usize::try_from(at as i64 - back)
            .map_err(|_| file.malformed(at, "table", "its list of fields would stand before the file"))?;
        let bytes = file.u16(vtable, "list of fields")?;
        if bytes < 4 || bytes % 2 != 0 {
            return Err(file.malformed(vtable, "list of fields", format!("{bytes} bytes")));
        }
        file.slice(vtable, bytes.into(), "list of fields")?;
        Ok(Table { file, at, vtable, fields: (bytes - 4) / 2 })
    }

    /// Offset of the table in the file.
    pub fn offset(&self) -> u64 {
        self.file.offset(self.at)
    }

    /// Number of the fields that its writer knew.
    pub const fn fields(&self) -> u16 {
        self.fields
    }

    /// Offset of a field's value; `None` if it is absent.
    fn field(&self, slot: u16) -> Result<Option<usize>> {
        if slot >= self.fields {
            return Ok(None);
        }
        let offset = self.file.u16(self.vtable + 4 + 2 * usize::from(slot), "offset of a field")?;
        Ok((offset != 0).then(|| self.at + usize::from(offset)))
    }

    /// A number.
    pub fn u8(&self, slot: u16) -> Result<Option<u8>> {
        self.field(slot)?.map(|at| self.file.u8(at, "8-bit field")).transpose()
    }

    /// A number.
    pub fn i8(&self, slot: u16) -> Result<Option<i8>> {
        self.field(slot)?.map(|at| self.file.i8(at, "8-bit field")).transpose()
    }

    /// A number.
    pub fn u16(&self, slot: u16) -> Result<Option<u16>> {
        self.field(slot)?.map(|at| self.file.u16(at, "16-bit field")).transpose()
    }

    /// A number.
    pub fn i16(&self, slot: u16) -> Result<Option<i16>> {
        self.field(slot)?.map(|at| self.file.i16(at, "16-bit field")).transpose()
    }

    /// A number.
    pub fn u32(&self, slot: u16) -> Result<Option<u32>> {
        self.field(slot)?.map(|at| self.file.u32(at, "32-bit field")).transpose()
    }

    /// A number.
    pub fn i32(&self, slot: u16) -> Result<Option<i32>> {
        self.field(slot)?.map(|at| self.file.i32(at, "32-bit field")).transpose()
    }

    /// A number.
    pub fn u64(&self, slot: u16) -> Result<Option<u64>> {
        self.field(slot)?.map(|at| self.file.u64(at, "64-bit field")).transpose()
    }

    /// A number.
    pub fn i64(&self, slot: u16) -> Result<Option<i64>> {
        self.field(slot)?.map(|at| self.file.i64(at, "64-bit field")).transpose()
    }

    /// A number.
    pub fn f32(&self, slot: u16) -> Result<Option<f32>> {
        self.field(slot)?.map(|at| self.file.f32(at, "32-bit field")).transpose()
    }

    /// A number.
    pub fn f64(&self, slot: u16) -> Result<Option<f64>> {
        self.field(slot)?.map(|at| self.file.f64(at, "64-bit field")).transpose()
    }

    /// A struct of that many bytes inside the table itself.
    pub fn inline(&self, slot: u16, length: usize) -> Result<Option<Bytes<'a>>> {
        self.field(slot)?.map(|at| self.file.slice(at, length, "struct")).transpose()
    }

    /// Where a field points to.
    fn target(&self, slot: u16) -> Result<Option<usize>> {
        let Some(at) = self.field(slot)? else { return Ok(None) };
        follow(self.file, at).map(Some)
    }

    /// Another table.
    pub fn table(&self, slot: u16) -> Result<Option<Table<'a>>> {
        self.target(slot)?.map(|at| Table::at(self.file, at)).transpose()
    }

    /// A vector of elements of that many bytes each, all within the file.
    fn vector(&self, slot: u16, element: usize) -> Result<Option<Vector<'a>>> {
        let Some(at) = self.target(slot)? else { return Ok(None) };
        let len = self.file.u32(at, "length of a vector")? as usize;
        // 32 bits times a few bytes fit: nothing overflows.
        self.file.slice(at + 4, len.saturating_mul(element), "elements of a vector")?;
        Ok(Some(Vector { file: self.file, at: at + 4, len }))
    }

    /// Tables, or `None` if the field is absent.
    pub fn tables(&self, slot: u16) -> Result<Option<Vector<'a>>> {
        self.vector(slot, 4)
    }

    /// Bytes.
    pub fn bytes(&self, slot: u16) -> Result<Option<Bytes<'a>>> {
        let Some(vector) = self.vector(slot, 1)? else { return Ok(None) };
        self.file.slice(vector.at, vector.len, "bytes").map(Some)
    }

    /// A text, which must be UTF-8 of a sensible length.
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
    /// Offset of its elements in the file.
    pub fn offset(&self) -> u64 {
        self.file.offset(self.at)
    }

    /// The table at `index` of a vector of tables.
    pub fn table(&self, index: usize) -> Result<Table<'a>> {
        if index >= self.len {
            let reason = format!("element {index} of {} was asked for", self.len);
            return Err(self.file.malformed(self.at, "vector", reason));
        }
        Table::at(self.file, follow(self.file, self.at + 4 * index)?)
    }

    /// All tables, at most `most` of them.
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

/// Where the offset at `at` points to.
fn follow(file: Bytes<'_>, at: usize) -> Result<usize> {
    let offset = file.u32(at, "offset")? as usize;
    at.checked_add(offset)
        .filter(|to| *to < file.len())
        .ok_or_else(|| file.malformed(at, "offset", format!("{offset} leads beyond the file")))
}
