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
    /// Bytes at a multiple of 16.
    Aligned(Vec<u8>),
    Ints(Vec<i32>),
    Longs(Vec<i64>),
    Floats(Vec<f32>),
    Table(Table),
    Tables(Vec<Table>),
}

/// A table with its fields by number.
#[derive(Clone, Debug, Default)]
pub struct Table(pub Vec<Field>);

impl Table {
    pub fn new() -> Table {
        Table::default()
    }

    pub fn with(mut self, number: usize, field: Field) -> Table {
        self.0.resize(self.0.len().max(number + 1), Field::None);
        self.0[number] = field;
        self
    }
}

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

/// Returns the bytes of a field that is stored in its table, and their alignment. Returns `None`
/// for an object to which the table points.
fn stored(field: &Field) -> Option<(Vec<u8>, usize)> {
    let number = |bytes: &[u8]| Some((bytes.to_vec(), bytes.len()));
    match field {
        Field::None => Some((Vec::new(), 1)),
        Field::U8(value) => number(&value.to_le_bytes()),
        Field::I8(value) => number(&value.to_le_bytes()),
        Field::I16(value) => number(&value.to_le_bytes()),
        Field::U32(value) => number(&value.to_le_bytes()),
        Field::I32(value) => number(&value.to_le_bytes()),
        Field::U64(value) => number(&value.to_le_bytes()),
        Field::Inline(bytes) => Some((bytes.clone(), 4)),
        _ => None,
    }
}

/// Writes a table and the objects to which it points. Returns the table's offset.
fn write(bytes: &mut Vec<u8>, Table(fields): &Table) -> usize {
    let mut offsets = Vec::new();
    let mut end = 4;
    for field in fields {
        let (length, alignment) = stored(field).map_or((4, 4), |(bytes, alignment)| (bytes.len(), alignment));
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
        let value = match stored(field) {
            Some((value, _)) => value,
            None => ((object(bytes, field) - at) as u32).to_le_bytes().to_vec(),
        };
        bytes[at..at + value.len()].copy_from_slice(&value);
    }
    table
}

/// Writes an object to which a table points. Returns its offset.
fn object(bytes: &mut Vec<u8>, field: &Field) -> usize {
    match field {
        Field::Text(text) => {
            let at = vector(bytes, 4, text.bytes().map(|byte| [byte]));
            bytes.push(0);
            at
        }
        Field::Bytes(data) => vector(bytes, 4, data.iter().map(|byte| [*byte])),
        Field::Aligned(data) => vector(bytes, 16, data.iter().map(|byte| [*byte])),
        Field::Ints(values) => vector(bytes, 4, values.iter().map(|value| value.to_le_bytes())),
        Field::Longs(values) => vector(bytes, 8, values.iter().map(|value| value.to_le_bytes())),
        Field::Floats(values) => vector(bytes, 4, values.iter().map(|value| value.to_le_bytes())),
        Field::Table(inner) => write(bytes, inner),
        Field::Tables(inner) => {
            let at = vector(bytes, 4, inner.iter().map(|_| [0; 4]));
            for (index, table) in inner.iter().enumerate() {
                let here = at + 4 + 4 * index;
                let to = write(bytes, table);
                bytes[here..here + 4].copy_from_slice(&((to - here) as u32).to_le_bytes());
            }
            at
        }
        stored => unreachable!("{stored:?} is in the table"),
    }
}

/// Writes a vector whose items are at a multiple of `alignment`. Returns its offset.
fn vector<const N: usize>(
    bytes: &mut Vec<u8>,
    alignment: usize,
    items: impl ExactSizeIterator<Item = [u8; N]>,
) -> usize {
    // The count is directly before the items.
    let at = (bytes.len() + 4).next_multiple_of(alignment) - 4;
    bytes.resize(at, 0);
    bytes.extend((items.len() as u32).to_le_bytes());
    bytes.extend(items.flatten());
    at
}
