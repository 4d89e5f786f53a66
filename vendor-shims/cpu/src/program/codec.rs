//! Program encoding: postcard over the program's types. The order of fields and variants defines
//! the encoding, and any change to it must increment [`FORMAT`](crate::artefact::FORMAT).

use serde::Deserialize;
use shardwright_shim_abi::Error;

use super::Program;

/// Encodes a program. Equal programs have equal bytes.
pub fn encode(program: &Program) -> Vec<u8> {
    postcard::to_allocvec(program).expect("numbers, texts and lists of known length")
}

/// Decodes the program of `bytes`, which are located at `base` of the artefact. The program is not
/// yet checked: see [`Program::check`].
///
/// A claimed length preallocates at most a mebibyte. Lists only grow with the available bytes.
pub fn decode(bytes: &[u8], base: u64) -> Result<Program, Error> {
    let mut reader = postcard::Deserializer::from_bytes(bytes);
    let program = Program::deserialize(&mut reader);
    let left = reader.finalize().map_or(0, <[u8]>::len);
    let corrupt = |reason: String| Error::corrupt_at(base + (bytes.len() - left) as u64, reason);
    match program {
        Ok(_) if left > 0 => Err(corrupt("bytes after the program".to_owned())),
        program => program.map_err(|error| corrupt(format!("not a program: {error}"))),
    }
}

#[cfg(test)]
mod tests {
    use shardwright_shim_abi::ErrorClass;

    use super::*;
    use crate::program::{Entry, Extent, Operand, OperandPlace, Step, step};

    fn program() -> Program {
        let x = Operand { place: OperandPlace::Arena, offset: 0, elements: 300 };
        let out = Operand { place: OperandPlace::Bound(1), ..x };
        let softmax = step::Softmax { x, width: 3, groups: Extent::PerRow(100), out };
        let steps = vec![Step::Softmax(softmax); 3];
        let entry =
            Entry { name: "entry".to_owned(), rows: 1, context: 7, ports: Vec::new(), arena: 300, steps };
        Program { threads: 2, entries: vec![entry] }
    }

    /// Returns the offset at which reading ended, from the error.
    fn ends(bytes: &[u8]) -> u64 {
        match decode(bytes, 64) {
            Err(error) if error.class == ErrorClass::CorruptArtefact => {
                error.detail_of("offset").and_then(|offset| offset.parse().ok()).expect("an offset")
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn truncated_or_overlong_programs_are_refused_where_they_end() {
        let bytes = encode(&program());
        assert_eq!(decode(&bytes, 64).unwrap(), program());
        for length in 0..bytes.len() {
            assert!(ends(&bytes[..length]) <= 64 + length as u64);
        }
        assert_eq!(ends(&[&bytes[..], &[0]].concat()), 64 + bytes.len() as u64);
    }

    /// Checks the factor that the limit on a program's bytes assumes.
    #[test]
    fn steps_take_up_to_forty_times_their_bytes() {
        let nothing = Operand { place: OperandPlace::Arena, offset: 0, elements: 0 };
        let step = Step::ZeroTail(step::ZeroTail { target: nothing, valid: Extent::Fixed(0) });
        let shortest = postcard::to_allocvec(&step).unwrap();
        assert!(size_of::<Step>() <= 40 * shortest.len(), "{} bytes", size_of::<Step>());
    }

    /// A list that claims the greatest possible length must not be allocated up front.
    #[test]
    fn claimed_list_lengths_are_not_allocated() {
        let most = postcard::to_allocvec(&u64::MAX).unwrap();
        let entry = [&[2, 1, 5], &b"entry"[..], &[1, 7]].concat();
        for before in [&[2][..], &[2, 1], &entry, &[&entry[..], &[0, 0]].concat()] {
            for behind in [0, 100, 1 << 20] {
                let bytes = [before, &most, &vec![1; behind]].concat();
                assert!(ends(&bytes) <= 64 + bytes.len() as u64);
            }
        }
    }
}
