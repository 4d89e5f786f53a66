//! This library's "compiled" output: a list of inputs and outputs, and a record that identifies the
//! library that wrote it.
//!
//! The output has its own layout and magic. Its end contains the texts that clients look for in
//! artefacts.

use shardwright_neuron_adapter::RuntimeVersion;
use shardwright_neuron_files::record::{Compiler, texts};
use shardwright_neuron_files::sequence::{Reader, Writer};

use crate::Io;

/// First bytes of the output.
const MAGIC: &[u8; 8] = b"SWRECORD";
/// Maximum number of inputs, outputs or dimensions.
const MOST: usize = 1 << 16;

/// Writes the network's inputs and outputs, the version and the options as bytes.
pub(crate) fn write(inputs: &[Io], outputs: &[Io], version: RuntimeVersion, options: &str) -> Vec<u8> {
    let mut out = Writer::default();
    out.bytes(MAGIC);
    out.bytes(&[version.major, version.minor, version.patch]);
    for list in [inputs, outputs] {
        out.count(list.len());
        for io in list {
            out.u64(io.bytes as u64);
            out.list(&io.dimensions);
        }
    }
    out.bytes(&texts(&[&Compiler::write("shardwright-recorder", version, "0000000000"), options]));
    out.bytes
}

/// Reads inputs, outputs and version. Returns `None` for any other bytes.
pub(crate) fn read(bytes: &[u8]) -> Option<(Vec<Io>, Vec<Io>, RuntimeVersion)> {
    let mut from = Reader::new(bytes.strip_prefix(MAGIC)?);
    let version = RuntimeVersion::new(from.u8()?, from.u8()?, from.u8()?);
    let mut list = || {
        let mut found = Vec::new();
        for _ in 0..from.count(MOST)? {
            let bytes = usize::try_from(from.u64()?).ok()?;
            found.push(Io { bytes, dimensions: from.list(MOST)? });
        }
        Some(found)
    };
    Some((list()?, list()?, version))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_nothing_else() {
        let inputs = [Io { bytes: 64, dimensions: vec![1, 32] }, Io { bytes: 4, dimensions: vec![] }];
        let outputs = [Io { bytes: 1 << 33, dimensions: vec![1, 2, 3, 4] }];
        let version = RuntimeVersion::new(8, 2, 28);
        let bytes = write(&inputs, &outputs, version, "--opt 3");
        assert_eq!(read(&bytes), Some((inputs.to_vec(), outputs.to_vec(), version)));
        assert_eq!(read(&bytes[..40]), None);
        assert_eq!(read(b""), None);
        assert_eq!(read(b"something else"), None);
        let text = String::from_utf8_lossy(&bytes);
        assert!(text.contains(r#"{"Compiler": "shardwright-recorder 8.2.28""#) && text.ends_with("--opt 3"));
    }
}
