//! The bytes of `bundle.json`: one line of JSON whose first members have fixed places.
//!
//! ```text
//! {"shardwright-bundle":4,"sha256":"<64 digits>","manifest":{ … }}⏎
//! ```
//!
//! The SHA-256 covers every byte of the file except its own 64 digits.

use shardwright_vocabulary::{Error, Result};

use crate::digest::Hasher;
use crate::error::wrong_hash;
use crate::{Digest, FORMAT_VERSION};

/// The first bytes of every version of the format.
pub(crate) const MAGIC: &[u8] = b"{\"shardwright-bundle\":";
const HASH: &[u8] = b",\"sha256\":\"";
const BODY: &[u8] = b"\",\"manifest\":";
const END: &[u8] = b"}\n";

/// Digits of a SHA-256.
const DIGITS: usize = 64;

/// The file belongs to another program. `offset` is that of the first wrong byte.
pub(crate) fn not_a_manifest(offset: usize) -> Error {
    Error::invalid(format!("not the manifest of a bundle: wrong first bytes at offset {offset}"))
        .with_help("check the path")
}

/// Returns the bytes before the hash.
fn opening() -> Vec<u8> {
    [MAGIC, FORMAT_VERSION.to_string().as_bytes(), HASH].concat()
}

fn hash(before: &[u8], after: &[u8]) -> Digest {
    let mut hasher = Hasher::default();
    hasher.update(before);
    hasher.update(after);
    hasher.finish().0
}

/// Wraps canonical JSON of a manifest, and returns the file with its hash.
pub(crate) fn seal(json: &[u8]) -> (Vec<u8>, Digest) {
    let mut bytes = opening();
    let after = [BODY, json, END].concat();
    let sum = hash(&bytes, &after);
    bytes.extend_from_slice(sum.to_string().as_bytes());
    bytes.extend_from_slice(&after);
    (bytes, sum)
}

/// Unwraps a file after verifying the hash. Returns the JSON, its offset, and the hash.
pub(crate) fn unseal(bytes: &[u8]) -> Result<(&[u8], usize, Digest)> {
    let differs = |start: usize, expected: &[u8]| -> Result<()> {
        let found = bytes.get(start..).unwrap_or_default();
        let equal = expected.iter().zip(found).take_while(|(one, other)| one == other).count();
        if equal == expected.len() { Ok(()) } else { Err(not_a_manifest(start + equal)) }
    };
    differs(0, MAGIC)?;
    // A u32 has at most this many digits. A number in another form is not a version.
    let digits = bytes[MAGIC.len()..].iter().take(10).take_while(|byte| byte.is_ascii_digit()).count();
    let version = std::str::from_utf8(&bytes[MAGIC.len()..MAGIC.len() + digits]).unwrap_or_default();
    let number: u32 = version.parse().map_err(|_| not_a_manifest(MAGIC.len()))?;
    if number.to_string() != version {
        return Err(not_a_manifest(MAGIC.len()));
    }
    if number != FORMAT_VERSION {
        let message = format!("expected version {FORMAT_VERSION} of the format, got {number}");
        let help = "compile it again with this release, or run it with the release that made it";
        return Err(Error::incompatible(message).with_help(help));
    }
    let opening = opening();
    differs(0, &opening)?;
    let start = opening.len();
    let expected = bytes
        .get(start..start + DIGITS)
        .and_then(|digits| std::str::from_utf8(digits).ok())
        .and_then(|digits| digits.parse::<Digest>().ok())
        .ok_or_else(|| not_a_manifest(start))?;
    let after = &bytes[start + DIGITS..];
    let found = hash(&opening, after);
    if expected != found {
        return Err(wrong_hash(expected, found));
    }
    // The hash is right, but the rest may still have another form.
    differs(start + DIGITS, BODY)?;
    let json = start + DIGITS + BODY.len();
    let end = bytes.len().checked_sub(END.len()).filter(|end| *end >= json && bytes[*end..] == *END);
    let end = end.ok_or_else(|| not_a_manifest(bytes.len()))?;
    Ok((&bytes[json..end], json, expected))
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::ErrorKind;

    use super::*;

    #[test]
    fn what_is_sealed_is_unsealed_and_is_json_itself() {
        for json in ["{}", "{\"a\":[1,2]}", "\"}\\n\""] {
            let (bytes, sum) = seal(json.as_bytes());
            let (found, offset, hash) = unseal(&bytes).unwrap();
            assert_eq!((found, hash), (json.as_bytes(), sum));
            assert_eq!(&bytes[offset..offset + json.len()], json.as_bytes());
            let whole: serde_json::Value = serde_json::from_slice(&bytes).unwrap();
            assert_eq!(whole["shardwright-bundle"], FORMAT_VERSION);
            assert_eq!(whole["sha256"], sum.to_string());
        }
    }

    #[test]
    fn every_changed_bit_and_every_cut_is_refused() {
        let (bytes, _) = seal(b"{\"name\":\"demo\"}");
        for offset in 0..bytes.len() {
            for bit in 0..8 {
                let mut changed = bytes.clone();
                changed[offset] ^= 1 << bit;
                assert!(unseal(&changed).is_err(), "bit {bit} of byte {offset}");
            }
            assert!(unseal(&bytes[..offset]).is_err(), "cut at {offset}");
        }
        assert!(unseal(&[&bytes[..], b" "].concat()).is_err());
    }

    #[test]
    fn other_versions_and_other_files_are_distinguished() {
        let text = |version: &str| [MAGIC, version.as_bytes(), HASH].concat();
        let incompatible = |version: u32| (ErrorKind::Incompatible, format!("got {version}"));
        let other = |offset: usize| (ErrorKind::Invalid, format!("wrong first bytes at offset {offset}"));
        let version = MAGIC.len();
        for (bytes, (kind, words)) in [
            (text("1"), incompatible(1)),
            (text("2"), incompatible(2)),
            (text("3"), incompatible(3)),
            (text("5"), incompatible(5)),
            (text("4294967295"), incompatible(u32::MAX)),
            (text("4294967296"), other(version)),
            (text("01"), other(version)),
            (text("-1"), other(version)),
            (text(""), other(version)),
            (b"{\"shard".to_vec(), other(7)),
            (Vec::new(), other(0)),
        ] {
            let error = unseal(&bytes).unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            assert!(error.message().ends_with(&words), "{error}: {}", String::from_utf8_lossy(&bytes));
        }
    }

    #[test]
    fn a_right_hash_over_the_wrong_form_is_refused() {
        for after in [&b"\",\"manifest\":{}"[..], b"\",\"manifest\":", b"\",\"other\":{}}\n", b""] {
            let opening = opening();
            let digits = hash(&opening, after).to_string();
            let bytes = [&opening, digits.as_bytes(), after].concat();
            let error = unseal(&bytes).unwrap_err();
            let shown = String::from_utf8_lossy(after);
            assert!(error.message().contains("wrong first bytes"), "{error}: {shown}");
        }
    }
}
