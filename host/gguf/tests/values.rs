//! Compares values of blocks with the reference implementation, bit by bit.

use serde::Deserialize;
use shardwright_gguf::TensorType;

#[derive(Deserialize)]
struct Case {
    #[serde(rename = "type")]
    name: String,
    blocks: String,
    values: String,
}

fn bytes(digits: &str) -> Vec<u8> {
    let digit = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("two hexadecimal digits");
    (0..digits.len() / 2).map(|byte| digit(2 * byte)).collect()
}

#[test]
fn values_equal_those_of_the_reference_bit_for_bit() {
    let cases: Vec<Case> = serde_json::from_str(include_str!("blocks/blocks.json")).expect("cases");
    let with_blocks: Vec<&str> =
        TensorType::ALL.iter().filter(|kind| kind.grouping().is_some()).map(|kind| kind.name()).collect();
    assert_eq!(with_blocks.len(), cases.len());
    for case in cases {
        let kind = TensorType::ALL.iter().find(|kind| kind.name() == case.name).expect("a type");
        assert!(kind.is_read() && with_blocks.contains(&kind.name()));
        let blocks = bytes(&case.blocks);
        let values = kind.values(&blocks).expect("a type with values");
        let found: Vec<u8> = values.iter().flat_map(|value| value.to_le_bytes()).collect();
        let expected = bytes(&case.values);
        let differs = found.chunks(4).zip(expected.chunks(4)).position(|(one, other)| one != other);
        assert_eq!((found.len(), differs), (expected.len(), None), "{}", case.name);
        // An incomplete block has no values.
        let (of_block, length) = kind.block();
        let incomplete = kind.values(&blocks[..length as usize + 1]).expect("values");
        assert_eq!(incomplete.len() as u64, of_block);
        let grouping = kind.grouping().expect("blocks");
        let levels = kind.levels(&blocks).expect("levels");
        assert_eq!(levels.scales.len() * grouping.group, levels.levels.len());
        assert_eq!(levels.minimums.is_empty(), !grouping.minimum);
    }
}

#[test]
fn floats_are_widened_exactly() {
    let f32s = [0x00, 0x00, 0x80, 0x3f, 0xff, 0xff, 0x7f, 0x7f];
    assert_eq!(TensorType::F32.values(&f32s), Some(vec![1.0, f32::MAX]));
    assert_eq!(TensorType::F16.values(&[0x01, 0x00, 0x00, 0x3c]), Some(vec![2.0_f32.powi(-24), 1.0]));
    assert_eq!(TensorType::BF16.values(&[0x80, 0x3f]), Some(vec![1.0]));
}
