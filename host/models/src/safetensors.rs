//! A safetensors file: mapped, its header parsed and checked before it is used.
//!
//! The `safetensors` crate is not used for reading, because its header type silently drops the
//! first of two tensors with the same name and its errors do not locate a fault. A test compares
//! the two readers.

use std::fmt;
use std::path::Path;

use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use shardwright_graph::WeightBytes;
use shardwright_vocabulary::{DType, Error, Result, UniqueKeys};

use crate::weight_file::{Content, Mapped, StoredTensor, StoredType, WeightFile};
use crate::{json, limits};

/// Bytes of the header's length field at the start of a file.
const LENGTH_BYTES: u64 = 8;

/// An element type of the format.
struct Type {
    stored: StoredType,
    bits: u64,
}

const TYPES: &[Type] = &{
    const fn stored(name: &'static str, bits: u64, weight: Option<DType>) -> Type {
        let content = match weight {
            Some(dtype) => Content::Float(dtype),
            None => Content::Other,
        };
        Type { stored: StoredType { name, content }, bits }
    }
    [
        stored("F32", 32, Some(DType::F32)),
        stored("F16", 16, Some(DType::F16)),
        stored("BF16", 16, Some(DType::Bf16)),
        stored("F64", 64, None),
        stored("C64", 64, None),
        stored("I64", 64, None),
        stored("U64", 64, None),
        stored("I32", 32, None),
        stored("U32", 32, None),
        stored("I16", 16, None),
        stored("U16", 16, None),
        stored("I8", 8, None),
        stored("U8", 8, None),
        stored("BOOL", 8, None),
        stored("F8_E5M2", 8, None),
        stored("F8_E4M3", 8, None),
        stored("F8_E5M2FNUZ", 8, None),
        stored("F8_E4M3FNUZ", 8, None),
        stored("F8_E8M0", 8, None),
        stored("F6_E2M3", 6, None),
        stored("F6_E3M2", 6, None),
        stored("F4", 4, None),
    ]
};

/// Maps the file and checks its header: every tensor is within the file, has the length of its
/// shape and type, and overlaps no other, and no byte is left over. If the file ends after its
/// header, the header is checked against the length that it implies.
pub(crate) fn open(path: &Path) -> Result<WeightFile> {
    let (file, length) = json::open_file(path)?;
    let truncated = |what: &str, needed| truncated(path, what, needed, length);
    if length < LENGTH_BYTES {
        return Err(truncated("the header's length", LENGTH_BYTES));
    }
    let mapped = Mapped::of(path, &file)?;
    let mapping = mapped.bytes();
    let available = mapping.len() as u64;
    let header = mapping
        .first_chunk::<8>()
        .map(|bytes| u64::from_le_bytes(*bytes))
        .ok_or_else(|| truncated("the header's length", LENGTH_BYTES))?;
    if header > limits::HEADER_BYTES {
        let message = format!("a header of {header} bytes, more than {}", limits::HEADER_BYTES);
        return Err(Error::invalid(message).at(path.display()).with_help(
            "this is not a safetensors file; a pointer that Git LFS leaves in place of a large file looks like this",
        ));
    }
    let data = LENGTH_BYTES + header;
    let text =
        mapping.get(LENGTH_BYTES as usize..data as usize).ok_or_else(|| truncated("the header", data))?;
    let text = std::str::from_utf8(text)
        .map_err(|error| json::not_utf8(path, LENGTH_BYTES + error.valid_up_to() as u64))?;
    let Header(entries) = serde_json::from_str(text)
        .map_err(|error| Error::invalid(error.to_string()).at("header").at(path.display()))?;
    let announced = entries.iter().map(|(_, entry)| entry.data_offsets.1).max().unwrap_or(0);
    let announced = data.saturating_add(announced);
    let length = if available == data { announced } else { available };
    if length > available && length > limits::WEIGHT_FILE_BYTES {
        return Err(json::too_large(path, length, limits::WEIGHT_FILE_BYTES));
    }
    let tensors = check(path, entries, data, length)?;
    Ok(WeightFile::new(path, tensors, mapped, data, length))
}

/// Returns the error of a file that ends before the header or a tensor.
fn truncated(path: &Path, what: &str, needed: u64, available: u64) -> Error {
    Error::invalid(format!("{what} ends at byte {needed}, but the file has {available}"))
        .at(path.display())
        .with_help("the download is incomplete or mixed with another one; fetch the file again")
}

/// Turns header entries into tensors in the order of their data. `data` is the offset of the first
/// byte after the header. `available` is the length of the whole file.
fn check(path: &Path, entries: Vec<(String, Entry)>, data: u64, available: u64) -> Result<Vec<StoredTensor>> {
    let mut names = std::collections::HashSet::new();
    let mut tensors = Vec::with_capacity(entries.len());
    for (name, entry) in &entries {
        if !names.insert(name.as_str()) {
            return Err(Error::invalid(format!("a second tensor `{name}`")).at(path.display()));
        }
        let (begin, end) = entry.data_offsets;
        let offset = data.saturating_add(begin);
        let invalid = |reason: String| {
            Error::invalid(reason).at(format_args!("tensor `{name}` at byte {offset}")).at(path.display())
        };
        if begin > end {
            return Err(invalid(format!("ends at {end}, before it begins at {begin}")));
        }
        let Some(Type { stored, bits }) = TYPES.iter().find(|known| known.stored.name == entry.dtype) else {
            return Err(invalid(format!("element type `{}` is not one of the format", entry.dtype)));
        };
        let bits = entry.shape.0.iter().try_fold(*bits, |bits, &extent| bits.checked_mul(extent));
        match bits {
            Some(bits) if bits % 8 == 0 && bits / 8 == end - begin => {}
            Some(bits) => {
                return Err(invalid(format!(
                    "{} values {:?} take {} bytes, but {} are set aside",
                    stored.name,
                    entry.shape.0,
                    bits.div_ceil(8),
                    end - begin
                )));
            }
            None => {
                return Err(invalid(format!("the product of its shape {:?} overflows", entry.shape.0)));
            }
        }
        match data.checked_add(end) {
            Some(last) if last <= available => {}
            last => {
                let needed = last.unwrap_or(u64::MAX);
                return Err(truncated(path, &format!("tensor `{name}`"), needed, available));
            }
        }
        tensors.push(StoredTensor {
            name: name.clone(),
            alias: None,
            dtype: *stored,
            shape: entry.shape.0.clone(),
            begin: offset,
            length: end - begin,
            paired_heads: None,
        });
    }
    tensors.sort_by_key(|tensor| (tensor.begin, tensor.length));
    let mut last: Option<&StoredTensor> = None;
    let mut position = data;
    let unclaimed = |offset: u64, end: u64| {
        let message = format!("{} bytes at byte {offset} belong to no tensor", end - offset);
        Error::invalid(message).at(path.display())
    };
    for tensor in tensors.iter().filter(|tensor| tensor.length > 0) {
        if tensor.begin < position {
            let first = last.map_or("", |tensor| tensor.name.as_str());
            let message = format!("tensors `{first}` and `{}` overlap at byte {}", tensor.name, tensor.begin);
            return Err(Error::invalid(message).at(path.display()));
        }
        if tensor.begin > position {
            return Err(unclaimed(position, tensor.begin));
        }
        position = tensor.begin + tensor.length;
        last = Some(tensor);
    }
    if position != available {
        return Err(unclaimed(position, available));
    }
    Ok(tensors)
}

/// Key of a header that describes the file. Its texts are not used.
const METADATA: &str = "__metadata__";

/// The header's tensors in file order, including duplicates.
struct Header(Vec<(String, Entry)>);

/// Description of one tensor.
#[derive(serde::Deserialize)]
struct Entry {
    dtype: String,
    shape: Shape,
    /// Offsets from the end of the header.
    data_offsets: (u64, u64),
}

/// A shape of limited rank, however long the list in the file is.
struct Shape(Vec<u64>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let (mut entries, mut has_metadata) = (Vec::new(), false);
                while let Some(name) = map.next_key::<String>()? {
                    if name == METADATA {
                        if std::mem::replace(&mut has_metadata, true) {
                            return Err(A::Error::custom(format!("a second key `{METADATA}`")));
                        }
                        map.next_value::<UniqueKeys>()?;
                        continue;
                    }
                    if entries.len() == limits::TENSORS {
                        return Err(A::Error::custom(format!("more than {} tensors", limits::TENSORS)));
                    }
                    entries.push((name, map.next_value()?));
                }
                Ok(Header(entries))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

impl<'de> Deserialize<'de> for Shape {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Extents;
        impl<'de> Visitor<'de> for Extents {
            type Value = Shape;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of extents")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Shape, A::Error> {
                let mut extents = Vec::new();
                while let Some(extent) = list.next_element()? {
                    if extents.len() == limits::TENSOR_RANK {
                        return Err(A::Error::custom(format!(
                            "a shape of more than {} axes",
                            limits::TENSOR_RANK
                        )));
                    }
                    extents.push(extent);
                }
                Ok(Shape(extents))
            }
        }
        deserializer.deserialize_seq(Extents)
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn file(header: &[u8], data: &[u8]) -> tempfile::NamedTempFile {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(&(header.len() as u64).to_le_bytes()).unwrap();
        file.write_all(header).unwrap();
        file.write_all(data).unwrap();
        file
    }

    /// Name, type, shape and bytes of each tensor, as the `safetensors` crate reads them.
    type Found = Vec<(String, String, Vec<u64>, Vec<u8>)>;

    fn by_their_reader(bytes: &[u8]) -> Option<Found> {
        let file = ::safetensors::SafeTensors::deserialize(bytes).ok()?;
        let mut found: Found = file
            .iter()
            .map(|(name, view)| {
                let shape = view.shape().iter().map(|&extent| extent as u64).collect();
                (name.to_owned(), format!("{:?}", view.dtype()), shape, view.data().to_vec())
            })
            .collect();
        found.sort();
        Some(found)
    }

    fn by_this_reader(path: &Path) -> Option<Found> {
        let file = open(path).ok()?;
        let bytes = file.weights()?.bytes();
        let mut found: Found = file
            .tensors
            .iter()
            .map(|tensor| {
                let data = bytes[tensor.begin as usize..][..tensor.length as usize].to_vec();
                (tensor.name.clone(), tensor.dtype.name.to_owned(), tensor.shape.clone(), data)
            })
            .collect();
        found.sort();
        Some(found)
    }

    #[test]
    fn both_readers_agree_on_every_element_type() {
        for Type { stored, bits } in TYPES {
            let header = json!({
                "a": {"dtype": stored.name, "shape": [2, 4], "data_offsets": [0, bits]},
                "none": {"dtype": "F32", "shape": [0, 3], "data_offsets": [0, 0]},
            });
            let data: Vec<u8> = (0..*bits as u8).collect();
            let file = file(header.to_string().as_bytes(), &data);
            let theirs = by_their_reader(&std::fs::read(file.path()).unwrap());
            let ours = by_this_reader(file.path());
            assert!(ours.is_some(), "{}", stored.name);
            // The crate spells type names like Rust types, without underscores.
            let plain = |found: Option<Found>| {
                found.map(|found| {
                    found
                        .into_iter()
                        .map(|(name, dtype, shape, data)| {
                            (name, dtype.replace('_', "").to_uppercase(), shape, data)
                        })
                        .collect::<Vec<_>>()
                })
            };
            assert_eq!(plain(ours), plain(theirs), "{}", stored.name);
        }
    }

    #[test]
    fn a_second_key_of_a_header_is_named() {
        let tensor = r#"{"dtype": "U8", "shape": [], "data_offsets": [0, 1]}"#;
        let text = r#"{"format": "pt"}"#;
        let sound = format!(r#"{{"__metadata__": {text}, "a": {tensor}}}"#);
        open(file(sound.as_bytes(), &[7]).path()).unwrap();
        for (header, words) in [
            (format!(r#"{{"a": {tensor}, "a": {tensor}}}"#), "a second tensor `a`"),
            (
                format!(r#"{{"__metadata__": {text}, "a": {tensor}, "__metadata__": {text}}}"#),
                "`__metadata__`",
            ),
            (sound.replace(text, r#"{"format": "pt", "format": "np"}"#), "a second key `format`"),
            (sound.replace("\"shape\": []", "\"shape\": [], \"shape\": []"), "duplicate field `shape`"),
        ] {
            let file = file(header.as_bytes(), &[7]);
            let error = open(file.path()).map(drop).unwrap_err();
            let text = error.to_string();
            assert!(text.contains(&file.path().display().to_string()) && text.contains(words), "{text}");
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 2048, failure_persistence: None, ..ProptestConfig::default() })]

        /// Changes some bytes of a header. Reading must not panic, and must not accept a file that
        /// the `safetensors` crate refuses or reads differently.
        #[test]
        fn nothing_is_accepted_that_the_formats_own_reader_refuses(
            changes in proptest::collection::vec((any::<prop::sample::Index>(), 0_u8..128), 0..4),
            length_change in prop_oneof![4 => Just(0_i64), 1 => -3_i64..4],
            tail in prop_oneof![4 => Just(33_usize), 1 => 0_usize..40],
        ) {
            let header = json!({
                "a.weight": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
                "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
                "c": {"dtype": "U8", "shape": [], "data_offsets": [32, 33]},
            });
            let mut bytes = header.to_string().into_bytes();
            for (place, value) in changes {
                let place = place.index(bytes.len());
                bytes[place] = value;
            }
            let mut whole = (bytes.len() as i64 + length_change).to_le_bytes().to_vec();
            whole.extend_from_slice(&bytes);
            whole.extend((0..tail as u8).rev());
            let mut file = tempfile::NamedTempFile::new().unwrap();
            file.write_all(&whole).unwrap();
            if let Some(ours) = by_this_reader(file.path()) {
                let theirs = by_their_reader(&whole);
                prop_assert!(theirs.is_some());
                let names = |found: &Found| found.iter().map(|f| (f.0.clone(), f.2.clone(), f.3.clone())).collect::<Vec<_>>();
                prop_assert_eq!(names(&ours), names(&theirs.unwrap()));
            }
        }
    }
}
