//! Writes FlatBuffers: a table first, then the objects to which it points.

/// A field of a table. Its position in the table is its number.
#[derive(Clone, Debug)]
pub enum Field {
    None,
    U8(u8),
    I8(i8),
    I16(i16),
    U32(u32),
    I32(i32),
    U64(u64),
    Inline(Vec<u8>),
    Text(String),
    Bytes(Vec<u8>),
    Table(Table),
    Tables(Vec<Table>),
}

/// A table with its fields by number.
#[derive(Clone, Debug)]
pub struct Table(pub Vec<Field>);

/// Writes a whole buffer.
pub fn buffer(identifier: Option<&[u8; 4]>, root: &Table) -> Vec<u8> {
    let mut bytes = vec![0; 4];
    bytes.extend(identifier.into_iter().flatten());
    let at = write(&mut bytes, root);
    bytes[..4].copy_from_slice(&(at as u32).to_le_bytes());
    bytes
}

fn pad(bytes: &mut Vec<u8>, to: usize) {
    bytes.resize(bytes.len().next_multiple_of(to), 0);
}

/// Returns the bytes of a field within its table, and their alignment.
fn place(field: &Field) -> (usize, usize) {
    match field {
        Field::None => (0, 1),
        Field::U8(_) | Field::I8(_) => (1, 1),
        Field::I16(_) => (2, 2),
        Field::U64(_) => (8, 8),
        Field::Inline(bytes) => (bytes.len(), 4),
        _ => (4, 4),
    }
}

/// Writes a table and the objects to which it points. Returns the table's offset.
fn write(bytes: &mut Vec<u8>, Table(fields): &Table) -> usize {
    let mut offsets = Vec::new();
    let mut end = 4;
    for field in fields {
        let (length, alignment) = place(field);
        end = usize::next_multiple_of(end, alignment);
        offsets.push(if length == 0 { 0 } else { end });
        end += length;
    }
    pad(bytes, 2);
    let vtable = bytes.len();
    for number in [4 + 2 * fields.len(), end].into_iter().chain(offsets.iter().copied()) {
        bytes.extend((number as u16).to_le_bytes());
    }
    pad(bytes, 8);
    let table = bytes.len();
    bytes.extend(((table - vtable) as i32).to_le_bytes());
    bytes.resize(table + end, 0);
    for (field, offset) in fields.iter().zip(&offsets) {
        let at = table + offset;
        let target = match field {
            Field::None => continue,
            Field::U8(value) => {
                bytes[at] = *value;
                continue;
            }
            Field::I8(value) => {
                bytes[at] = *value as u8;
                continue;
            }
            Field::I16(value) => {
                bytes[at..at + 2].copy_from_slice(&value.to_le_bytes());
                continue;
            }
            Field::U32(value) => {
                bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
                continue;
            }
            Field::I32(value) => {
                bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
                continue;
            }
            Field::U64(value) => {
                bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
                continue;
            }
            Field::Inline(value) => {
                bytes[at..at + value.len()].copy_from_slice(value);
                continue;
            }
            Field::Text(text) => {
                let target = vector(bytes, text.len());
                bytes.extend(text.as_bytes());
                bytes.push(0);
                target
            }
            Field::Bytes(data) => {
                let target = vector(bytes, data.len());
                bytes.extend(data);
                target
            }
            Field::Table(inner) => write(bytes, inner),
            Field::Tables(inner) => {
                let target = vector(bytes, inner.len());
                let first = bytes.len();
                bytes.resize(first + 4 * inner.len(), 0);
                for (index, table) in inner.iter().enumerate() {
                    let here = first + 4 * index;
                    let to = write(bytes, table);
                    bytes[here..here + 4].copy_from_slice(&((to - here) as u32).to_le_bytes());
                }
                target
            }
        };
        bytes[at..at + 4].copy_from_slice(&((target - at) as u32).to_le_bytes());
    }
    table
}

/// Starts a vector and returns its offset.
fn vector(bytes: &mut Vec<u8>, length: usize) -> usize {
    pad(bytes, 4);
    let at = bytes.len();
    bytes.extend((length as u32).to_le_bytes());
    at
}
