//! This library's "compiled" output: a list of inputs and outputs, and a record that identifies the
//! library that wrote it.
//!
//! The output has its own layout and magic. Its end contains the strings that clients look for in
//! artefacts, each after its length in 8 bytes.

use shardwright_neuron_adapter::RuntimeVersion;

use crate::Io;

/// First bytes of the output.
const MAGIC: &[u8; 8] = b"SWRECORD";

/// Writes the network's inputs and outputs, the version and the options as bytes.
pub(crate) fn write(inputs: &[Io], outputs: &[Io], version: RuntimeVersion, options: &str) -> Vec<u8> {
    let mut bytes = MAGIC.to_vec();
    for version in [version.major, version.minor, version.patch] {
        bytes.extend(u32::from(version).to_le_bytes());
    }
    for list in [inputs, outputs] {
        bytes.extend((list.len() as u32).to_le_bytes());
        for io in list {
            bytes.extend((io.bytes as u64).to_le_bytes());
            bytes.extend((io.dimensions.len() as u32).to_le_bytes());
            bytes.extend(io.dimensions.iter().flat_map(|dimension| dimension.to_le_bytes()));
        }
    }
    let record =
        format!(r#"{{"Compiler": "adapter {version}", "Neuron SHA1": "0000000000", "Recorder": true}}"#);
    for text in [record.as_str(), options] {
        bytes.extend((text.len() as u64).to_le_bytes());
        bytes.extend(text.as_bytes());
    }
    bytes
}

/// Reads inputs, outputs and version. Returns `None` for any other bytes.
pub(crate) fn read(bytes: &[u8]) -> Option<(Vec<Io>, Vec<Io>, RuntimeVersion)> {
    let mut rest = bytes.strip_prefix(MAGIC)?;
    let mut number = || {
        let (head, tail) = rest.split_first_chunk::<4>()?;
        rest = tail;
        Some(u32::from_le_bytes(*head))
    };
    let mut part = || u8::try_from(number()?).ok();
    let version = RuntimeVersion::new(part()?, part()?, part()?);
    let mut list = || {
        let count = number()?;
        let mut found = Vec::new();
        for _ in 0..count {
            let (low, high) = (number()?, number()?);
            let bytes = usize::try_from(u64::from(low) | u64::from(high) << 32).ok()?;
            let rank = number()?;
            let dimensions = (0..rank).map(|_| number()).collect::<Option<Vec<u32>>>()?;
            found.push(Io { bytes, dimensions });
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
        assert!(text.contains(r#"{"Compiler": "adapter 8.2.28""#) && text.ends_with("--opt 3"));
    }
}
