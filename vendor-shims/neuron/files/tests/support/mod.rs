//! Writes test files: FlatBuffers, FlexBuffers, and the containers built from them.

#![allow(dead_code, reason = "each test uses some of it")]

pub mod flatbuffer;
pub mod samples;

use flatbuffer::{Field, Table, buffer};
use shardwright_neuron_adapter::RuntimeVersion;
use shardwright_neuron_files::record::{self, Compiler};
use shardwright_neuron_files::simulated::{self, Head};

pub const IDENTIFIER: &str = "123e4567-e89b-12d3-a456-426614174000";

/// Writes the three texts near the end of compiled code.
pub fn trailer(record: &str, options: &str) -> Vec<u8> {
    record::texts(&[IDENTIFIER, record, options])
}

/// Writes the record of a version, in the spelling of its major version.
pub fn record(name: &str, version: [u8; 3]) -> String {
    let build = if version[0] < 9 { "2a9fa22c08" } else { "b3a8289961" };
    Compiler::write(name, numbered(version), build)
}

fn numbered([major, minor, patch]: [u8; 3]) -> RuntimeVersion {
    RuntimeVersion::new(major, minor, patch)
}

/// Writes a DLA around code and trailer.
pub fn dla(code: &[u8], trailer: &[u8]) -> Vec<u8> {
    let length = (16 + code.len() + trailer.len()) as u32;
    let mut bytes: Vec<u8> =
        [length - 4, 12, 8, 0x3852_fd1a].iter().flat_map(|word| word.to_le_bytes()).collect();
    bytes.extend(code);
    bytes.extend(trailer);
    bytes
}

/// Writes an adapter cache around a DLA.
pub fn adapter_cache(dla: &[u8]) -> Vec<u8> {
    let mut bytes = 212_205u32.to_le_bytes().to_vec();
    bytes.extend(608u32.to_le_bytes());
    bytes.resize(678, 0x11);
    bytes.extend(dla);
    bytes
}

/// Writes code in the simulator's format.
pub fn simulated(version: [u8; 3], soc: &str, code: &[u8], options: &str) -> Vec<u8> {
    let code_at = simulated::HEAD + 24;
    let trailer = trailer(&record("shardwright-simulator", version), options);
    let mut bytes = [&[7u8; simulated::HEAD + 24][..], code, &trailer].concat();
    let code = code_at..code_at + code.len();
    Head { version: numbered(version), soc: soc.to_owned(), code, operations: 17 }.write(&mut bytes);
    bytes
}

/// Writes a container of bytecode. Each part has a name, a declared kind and its code.
pub fn neuron_schema(sdk: Option<[u32; 3]>, parts: &[(&str, i8, &[u8])]) -> Vec<u8> {
    let subgraph = |(index, (name, kind, _)): (usize, &(&str, i8, &[u8]))| {
        Table(vec![
            Field::Text((*name).to_owned()),
            Field::I8(*kind),
            Field::U8(1),
            Field::Table(Table(vec![Field::I32(index as i32)])),
        ])
    };
    let data = |(_, _, bytes): &(&str, i8, &[u8])| Table(vec![Field::None, Field::Bytes(bytes.to_vec())]);
    let sdk = sdk.map_or(Field::None, |sdk| {
        Field::Inline(sdk.iter().flat_map(|number| number.to_le_bytes()).collect())
    });
    buffer(
        None,
        &Table(vec![
            Field::I16(1),
            Field::Tables(parts.iter().enumerate().map(subgraph).collect()),
            Field::Tables(parts.iter().map(data).collect()),
            Field::None,
            sdk,
        ]),
    )
}

/// A value of a FlexBuffer.
#[derive(Clone, Debug)]
pub enum Flex {
    Number(u64),
    Text(String),
}

/// Writes a FlexBuffer with a map. Offsets and numbers have `width` bytes each (1, 2, 4 or 8), into
/// which they must fit.
pub fn flexbuffer(width: usize, entries: &[(&str, Flex)]) -> Vec<u8> {
    let packed = width.trailing_zeros() as u8;
    let mut bytes = Vec::new();
    let number = |bytes: &mut Vec<u8>, value: usize| {
        assert!(width == 8 || value >> (8 * width) == 0, "{value} does not fit {width} bytes");
        bytes.extend(&(value as u64).to_le_bytes()[..width]);
    };
    let mut keys = Vec::new();
    let mut texts = Vec::new();
    for (key, value) in entries {
        keys.push(bytes.len());
        bytes.extend(key.as_bytes());
        bytes.push(0);
        texts.push(match value {
            Flex::Number(_) => 0,
            Flex::Text(text) => {
                number(&mut bytes, text.len());
                let at = bytes.len();
                bytes.extend(text.as_bytes());
                bytes.push(0);
                at
            }
        });
    }
    number(&mut bytes, entries.len());
    let key_vector = bytes.len();
    for key in keys {
        let here = bytes.len();
        number(&mut bytes, here - key);
    }
    let here = bytes.len();
    number(&mut bytes, here - key_vector);
    number(&mut bytes, width);
    number(&mut bytes, entries.len());
    let values = bytes.len();
    for ((_, value), text) in entries.iter().zip(&texts) {
        let here = bytes.len();
        match value {
            Flex::Number(value) => number(&mut bytes, *value as usize),
            Flex::Text(_) => number(&mut bytes, here - text),
        }
    }
    for (_, value) in entries {
        let kind = match value {
            Flex::Number(_) => 2,
            Flex::Text(_) => 5,
        };
        bytes.push(kind << 2 | packed);
    }
    let here = bytes.len();
    number(&mut bytes, here - values);
    bytes.extend([9 << 2 | packed, width as u8]);
    bytes
}

/// A model to write.
#[derive(Clone, Debug, Default)]
pub struct Model {
    pub stamp: Option<(String, String)>,
    /// For each function, the names of dispatched partitions and the built-in operations that stay
    /// outside.
    pub functions: Vec<(Vec<String>, Vec<i32>)>,
    /// The container of bytecode.
    pub container: Vec<u8>,
}

/// Writes the 250 bytes of a stamp.
pub fn stamp(maker: &str, soc: &str) -> Vec<u8> {
    let mut bytes = maker.as_bytes().to_vec();
    bytes.resize(125, 0);
    bytes.extend(soc.as_bytes());
    bytes.resize(250, 0);
    bytes
}

impl Model {
    /// Writes the model: the FlatBuffer, zeros up to a multiple of 16, and the container.
    pub fn bytes(&self) -> Vec<u8> {
        // The model contains the container's offset, which always has four bytes.
        let length = self.flatbuffer(0).len();
        let offset = length.next_multiple_of(16);
        let mut bytes = self.flatbuffer(offset);
        assert_eq!(bytes.len(), length);
        if !self.container.is_empty() {
            bytes.resize(offset, 0);
            bytes.extend(&self.container);
        }
        bytes
    }

    fn flatbuffer(&self, offset: usize) -> Vec<u8> {
        let mut kinds = vec![Table(vec![
            Field::I8(32),
            Field::Text("DISPATCH_OP".to_owned()),
            Field::I32(1),
            Field::I32(32),
        ])];
        let mut codes = Vec::new();
        let functions = self.functions.iter().enumerate().map(|(position, (dispatched, outside))| {
            let mut operations = Vec::new();
            for name in dispatched {
                let options = flexbuffer(
                    4,
                    &[
                        ("bytecode_offset", Flex::Number(offset as u64)),
                        ("bytecode_size", Flex::Number(self.container.len() as u64)),
                        ("name", Flex::Text(name.clone())),
                    ],
                );
                let empty = || Field::None;
                operations.push(Table(vec![
                    Field::U32(0),
                    empty(),
                    empty(),
                    empty(),
                    empty(),
                    Field::Bytes(options),
                ]));
            }
            for code in outside {
                let index = codes.iter().position(|known| known == code).unwrap_or_else(|| {
                    codes.push(*code);
                    let old = i8::try_from(*code).unwrap_or(127);
                    kinds.push(Table(vec![Field::I8(old), Field::None, Field::I32(1), Field::I32(*code)]));
                    codes.len() - 1
                });
                operations.push(Table(vec![Field::U32(index as u32 + 1)]));
            }
            Table(vec![
                Field::None,
                Field::None,
                Field::None,
                Field::Tables(operations),
                Field::Text(format!("main_{position}")),
            ])
        });
        let functions = functions.collect();
        let mut buffers = vec![Table(vec![])];
        let mut metadata = Vec::new();
        if let Some((maker, soc)) = &self.stamp {
            buffers.push(Table(vec![Field::Bytes(stamp(maker, soc))]));
            metadata.push(Table(vec![Field::Text("LiteRtStamp".to_owned()), Field::U32(1)]));
        }
        buffer(
            Some(b"TFL3"),
            &Table(vec![
                Field::U32(3),
                Field::Tables(kinds),
                Field::Tables(functions),
                Field::Text("written by a test".to_owned()),
                Field::Tables(buffers),
                Field::None,
                Field::Tables(metadata),
            ]),
        )
    }
}

/// A section of a `.litertlm`: the number of its kind, keys with texts, and bytes.
pub type Section<'a> = (u8, Vec<(&'a str, &'a str)>, Vec<u8>);

/// Writes a `.litertlm`.
pub fn litertlm(sections: &[Section<'_>]) -> Vec<u8> {
    litertlm_with(1, 16 << 10, sections)
}

/// Writes a `.litertlm` of a major version, with sections at multiples of `alignment`.
pub fn litertlm_with(major: u32, alignment: usize, sections: &[Section<'_>]) -> Vec<u8> {
    let header = |places: &[(usize, usize)]| {
        let item = |(key, value): &(&str, &str)| {
            Table(vec![
                Field::Text((*key).to_owned()),
                Field::U8(9),
                Field::Table(Table(vec![Field::Text((*value).to_owned())])),
            ])
        };
        let object = |((kind, items, _), (begin, end)): (&Section<'_>, &(usize, usize))| {
            Table(vec![
                Field::Tables(items.iter().map(item).collect()),
                Field::U64(*begin as u64),
                Field::U64(*end as u64),
                Field::U8(*kind),
            ])
        };
        buffer(
            None,
            &Table(vec![
                Field::Table(Table(vec![Field::Tables(vec![
                    item(&("uuid", IDENTIFIER)),
                    Table(vec![
                        Field::Text("creation_timestamp".to_owned()),
                        Field::U8(10),
                        Field::Table(Table(vec![Field::U64(0)])),
                    ]),
                ])])),
                Field::Table(Table(vec![Field::Tables(sections.iter().zip(places).map(object).collect())])),
            ]),
        )
    };
    let mut places = vec![(0, 0); sections.len()];
    let end = 32 + header(&places).len();
    let mut at = end;
    for (place, (_, _, bytes)) in places.iter_mut().zip(sections) {
        at = at.next_multiple_of(alignment);
        *place = (at, at + bytes.len());
        at += bytes.len();
    }
    let mut file = b"LITERTLM".to_vec();
    for number in [major, 7, 0, 0] {
        file.extend(number.to_le_bytes());
    }
    file.extend((end as u64).to_le_bytes());
    file.extend(header(&places));
    for ((begin, _), (_, _, bytes)) in places.iter().zip(sections) {
        file.resize(*begin, 0);
        file.extend(bytes);
    }
    file
}

/// Writes ExecuTorch's payload.
pub fn executorch(inputs: u32, outputs: u32, code: &[u8]) -> Vec<u8> {
    let mut bytes = vec![1];
    for number in [inputs, outputs, code.len() as u32] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(code);
    bytes
}
