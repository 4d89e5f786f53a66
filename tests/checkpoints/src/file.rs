use std::fs::File;
use std::io::{self, BufWriter, Seek as _, SeekFrom, Write as _};
use std::path::Path;

use serde_json::{Map, Value, json};

/// A tensor of a safetensors file.
#[derive(Clone, Debug)]
pub struct StoredTensor {
    /// Name of the tensor.
    pub name: String,
    /// Element type as spelled in the format.
    pub dtype: String,
    /// Extents, outermost first.
    pub shape: Vec<u64>,
}

/// Writes a safetensors file, tensor after tensor. `content` returns the bytes of the tensor with
/// that index, or `None` to leave a hole that reads as zeros.
pub fn write_safetensors(
    path: &Path,
    tensors: &[StoredTensor],
    mut content: impl FnMut(usize) -> Option<Vec<u8>>,
) -> io::Result<()> {
    let (head, lengths) = header(tensors);
    let mut file = BufWriter::new(File::create(path)?);
    file.write_all(&head)?;
    for (index, &length) in lengths.iter().enumerate() {
        match content(index) {
            Some(bytes) => {
                assert_eq!(bytes.len() as u64, length, "content of `{}`", tensors[index].name);
                file.write_all(&bytes)?;
            }
            None => {
                file.seek(SeekFrom::Current(length as i64))?;
            }
        }
    }
    let file = file.into_inner().map_err(io::IntoInnerError::into_error)?;
    file.set_len(head.len() as u64 + lengths.iter().sum::<u64>())
}

/// Returns the beginning of a safetensors file of these tensors, including its length, and the
/// number of bytes of each tensor.
pub(crate) fn header(tensors: &[StoredTensor]) -> (Vec<u8>, Vec<u64>) {
    let mut header = Map::new();
    header.insert("__metadata__".to_owned(), json!({"format": "pt"}));
    let mut offset = 0;
    let mut lengths = Vec::with_capacity(tensors.len());
    for tensor in tensors {
        let size = match tensor.dtype.as_str() {
            "F64" | "I64" => 8,
            "F32" | "I32" => 4,
            "F16" | "BF16" | "I16" => 2,
            "I8" | "U8" | "BOOL" => 1,
            other => panic!("element type {other}"),
        };
        let length = tensor.shape.iter().product::<u64>() * size;
        let entry =
            json!({"dtype": tensor.dtype, "shape": tensor.shape, "data_offsets": [offset, offset + length]});
        assert!(header.insert(tensor.name.clone(), entry).is_none(), "two tensors `{}`", tensor.name);
        offset += length;
        lengths.push(length);
    }
    let mut header = Value::Object(header).to_string().into_bytes();
    // Padded, so that the data are aligned for mapping.
    header.resize(header.len().next_multiple_of(8), b' ');
    let mut head = (header.len() as u64).to_le_bytes().to_vec();
    head.extend(header);
    (head, lengths)
}

/// Returns the bytes of a file with exactly this header, correct or not, and these data.
pub fn raw_safetensors(header: &str, data: &[u8]) -> Vec<u8> {
    let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
    bytes.extend_from_slice(header.as_bytes());
    bytes.extend_from_slice(data);
    bytes
}
