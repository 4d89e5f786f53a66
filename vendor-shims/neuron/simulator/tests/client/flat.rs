//! A writer of FlatBuffers from front to back: a table is written before the objects that it refers
//! to.

/// Value of a field.
pub enum Value {
    U8(u8),
    I32(i32),
    U32(u32),
    Text(String),
    Bytes(Vec<u8>),
    Ints(Vec<i32>),
    Longs(Vec<i64>),
    Floats(Vec<f32>),
    Table(Table),
    Tables(Vec<Table>),
}

/// A table, as values with their field numbers.
#[derive(Default)]
pub struct Table(Vec<(usize, Value)>);

impl Table {
    pub fn new() -> Table {
        Table::default()
    }

    pub fn with(mut self, field: usize, value: Value) -> Table {
        self.0.push((field, value));
        self
    }
}

/// Returns the bytes of a file with a root table and a file identifier.
pub fn file(root: &Table, identifier: &[u8; 4]) -> Vec<u8> {
    let mut out = vec![0; 4];
    out.extend_from_slice(identifier);
    let place = table(&mut out, root);
    out[..4].copy_from_slice(&(place as u32).to_le_bytes());
    out
}

fn align(out: &mut Vec<u8>, step: usize) {
    out.resize(out.len().next_multiple_of(step), 0);
}

fn table(out: &mut Vec<u8>, table: &Table) -> usize {
    let fields = table.0.iter().map(|(field, _)| field + 1).max().unwrap_or(0);
    let mut places = vec![0u16; fields];
    let mut size = 4usize;
    for (field, value) in &table.0 {
        let bytes = if matches!(value, Value::U8(_)) { 1 } else { 4 };
        size = size.next_multiple_of(bytes);
        places[*field] = size as u16;
        size += bytes;
    }
    let vtable = 4 + 2 * fields;
    // The table begins at a multiple of 8, directly after its vtable.
    while !(out.len() + vtable).is_multiple_of(8) {
        out.push(0);
    }
    out.extend_from_slice(&(vtable as u16).to_le_bytes());
    out.extend_from_slice(&(size as u16).to_le_bytes());
    for place in &places {
        out.extend_from_slice(&place.to_le_bytes());
    }
    let start = out.len();
    out.extend_from_slice(&(vtable as i32).to_le_bytes());
    out.resize(start + size, 0);
    for (field, value) in &table.0 {
        let place = start + usize::from(places[*field]);
        match value {
            Value::U8(value) => out[place] = *value,
            Value::I32(value) => out[place..place + 4].copy_from_slice(&value.to_le_bytes()),
            Value::U32(value) => out[place..place + 4].copy_from_slice(&value.to_le_bytes()),
            _ => {
                let target = child(out, value);
                out[place..place + 4].copy_from_slice(&((target - place) as u32).to_le_bytes());
            }
        }
    }
    start
}

fn child(out: &mut Vec<u8>, value: &Value) -> usize {
    fn vector<const N: usize>(
        out: &mut Vec<u8>,
        step: usize,
        items: impl ExactSizeIterator<Item = [u8; N]>,
    ) -> usize {
        // The count directly precedes the items, which are aligned.
        while !(out.len() + 4).is_multiple_of(step.max(4)) {
            out.push(0);
        }
        let start = out.len();
        out.extend_from_slice(&(items.len() as u32).to_le_bytes());
        for item in items {
            out.extend_from_slice(&item);
        }
        start
    }
    align(out, 4);
    match value {
        Value::Text(text) => {
            let start = vector(out, 4, text.bytes().map(|byte| [byte]));
            out.push(0);
            start
        }
        Value::Bytes(bytes) => vector(out, 16, bytes.iter().map(|byte| [*byte])),
        Value::Ints(values) => vector(out, 4, values.iter().map(|value| value.to_le_bytes())),
        Value::Floats(values) => vector(out, 4, values.iter().map(|value| value.to_le_bytes())),
        Value::Longs(values) => vector(out, 8, values.iter().map(|value| value.to_le_bytes())),
        Value::Table(inner) => table(out, inner),
        Value::Tables(tables) => {
            let start = vector(out, 4, tables.iter().map(|_| [0; 4]));
            for (index, inner) in tables.iter().enumerate() {
                let place = start + 4 + 4 * index;
                let target = table(out, inner);
                out[place..place + 4].copy_from_slice(&((target - place) as u32).to_le_bytes());
            }
            start
        }
        Value::U8(_) | Value::I32(_) | Value::U32(_) => unreachable!("lies in the table"),
    }
}
