//! Records of the ZIP format, as bytes.

/// Signature of an entry's local header.
pub(crate) const LOCAL: u32 = 0x0403_4b50;
/// Signature of an entry of the central directory.
pub(crate) const CENTRAL: u32 = 0x0201_4b50;
/// Signature of the end of the central directory.
pub(crate) const END: u32 = 0x0605_4b50;
/// Signatures of the end record for large archives, and of its locator.
pub(crate) const END_64: u32 = 0x0606_4b50;
pub(crate) const LOCATOR_64: u32 = 0x0706_4b50;

/// Sizes of the records in bytes, without names and extra fields.
pub(crate) const LOCAL_BYTES: u64 = 30;
pub(crate) const CENTRAL_BYTES: usize = 46;
pub(crate) const END_BYTES: u64 = 22;
pub(crate) const END_64_BYTES: u64 = 56;
pub(crate) const LOCATOR_64_BYTES: u64 = 20;

/// Numbers from this value on are stored in the fields for large archives.
pub(crate) const LARGE: u64 = 0xffff_ffff;
/// Numbers of entries from this value on are stored in the fields for large archives.
pub(crate) const MANY: u64 = 0xffff;

/// Extra field with large lengths and offsets.
pub(crate) const EXTRA_64: u16 = 0x0001;

/// A reader for consecutive fields.
pub(crate) struct Fields<'b> {
    bytes: &'b [u8],
}

impl<'b> Fields<'b> {
    pub(crate) fn new(bytes: &'b [u8]) -> Self {
        Fields { bytes }
    }

    pub(crate) fn take(&mut self, length: usize) -> Option<&'b [u8]> {
        let (taken, rest) = self.bytes.split_at_checked(length)?;
        self.bytes = rest;
        Some(taken)
    }

    pub(crate) fn u16(&mut self) -> Option<u16> {
        Some(u16::from_le_bytes(self.take(2)?.try_into().ok()?))
    }

    pub(crate) fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    pub(crate) fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }
}

/// An entry of a central directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry<'b> {
    pub(crate) name: &'b [u8],
    /// Compression method. 0 means stored.
    pub(crate) method: u16,
    /// Bit 0 means encrypted.
    pub(crate) flags: u16,
    pub(crate) crc: u32,
    pub(crate) stored: u64,
    pub(crate) length: u64,
    /// Offset of the local header.
    pub(crate) offset: u64,
}

/// Reads the next entry of a central directory. Returns `None` for anything else.
pub(crate) fn entry<'b>(fields: &mut Fields<'b>) -> Option<Entry<'b>> {
    if fields.u32()? != CENTRAL {
        return None;
    }
    let (_made_by, _needed) = (fields.u16()?, fields.u16()?);
    let (flags, method) = (fields.u16()?, fields.u16()?);
    let _time_and_date = fields.u32()?;
    let crc = fields.u32()?;
    let (stored, length) = (fields.u32()?, fields.u32()?);
    let (name, extra, comment) = (fields.u16()?, fields.u16()?, fields.u16()?);
    let (_disk, _internal, _external) = (fields.u16()?, fields.u16()?, fields.u32()?);
    let offset = fields.u32()?;
    let name = fields.take(name.into())?;
    let mut large = large(fields.take(extra.into())?);
    fields.take(comment.into())?;
    // In this order, and each only if the short field refers to it.
    let mut wide = |short: u32| match u64::from(short) {
        LARGE => large.u64(),
        short => Some(short),
    };
    let (length, stored, offset) = (wide(length)?, wide(stored)?, wide(offset)?);
    Some(Entry { name, method, flags, crc, stored, length, offset })
}

/// Returns the large numbers among extra fields. Empty if the extra field is missing.
fn large(extra: &[u8]) -> Fields<'_> {
    let mut fields = Fields::new(extra);
    while let (Some(id), Some(length)) = (fields.u16(), fields.u16()) {
        match fields.take(length.into()) {
            Some(found) if id == EXTRA_64 => return Fields::new(found),
            Some(_) => {}
            None => break,
        }
    }
    Fields::new(&[])
}

/// Location of a central directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct End {
    pub(crate) entries: u64,
    pub(crate) length: u64,
    pub(crate) offset: u64,
}

/// Parses the record at the end, and returns whether its numbers are in the record for large
/// archives.
pub(crate) fn end(bytes: &[u8]) -> Option<(End, bool)> {
    let mut fields = Fields::new(bytes);
    if fields.u32()? != END || fields.u32()? != 0 {
        return None;
    }
    let (here, all) = (fields.u16()?, fields.u16()?);
    let (length, offset) = (fields.u32()?, fields.u32()?);
    if here != all {
        return None;
    }
    let end = End { entries: all.into(), length: length.into(), offset: offset.into() };
    Some((end, end.entries == MANY || end.length == LARGE || end.offset == LARGE))
}

/// Parses the end record of a large archive.
pub(crate) fn end_64(bytes: &[u8]) -> Option<End> {
    let mut fields = Fields::new(bytes);
    if fields.u32()? != END_64 || fields.u64()? != END_64_BYTES - 12 {
        return None;
    }
    let _versions = fields.u32()?;
    let _disks = fields.u64()?;
    let (here, entries) = (fields.u64()?, fields.u64()?);
    let (length, offset) = (fields.u64()?, fields.u64()?);
    (here == entries).then_some(End { entries, length, offset })
}
