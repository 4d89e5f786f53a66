//! Values in the encoding of a port.

use half::{bf16, f16};
use shardwright_graph::nearest_bound_value;
use shardwright_shims::Port;
use shardwright_vocabulary::{DType, Encoding};

/// The value bound to a port: numbers that it encodes, or indices.
pub(crate) enum Input {
    Floats(Vec<f32>),
    Indices(Vec<i32>),
}

/// Returns how a port stores numbers, or `None` for indices.
pub(crate) fn encoding_of(port: &Port) -> Option<Encoding> {
    port.values()
}

/// Returns the bytes of a port, or `None` if a port of numbers is bound to indices, or a port of
/// indices to numbers.
pub(crate) fn encode(port: &Port, input: &Input) -> Option<Vec<u8>> {
    Some(match (encoding_of(port), input) {
        (Some(encoding), Input::Floats(values)) => encode_floats(encoding, values)?,
        (None, Input::Indices(values)) if port.dtype == DType::I32 => {
            values.iter().flat_map(|value| value.to_le_bytes()).collect()
        }
        (None, Input::Indices(values)) if port.dtype == DType::I64 => {
            values.iter().flat_map(|&value| i64::from(value).to_le_bytes()).collect()
        }
        _ => return None,
    })
}

/// Encodes values as little-endian elements. Returns `None` for a type without an encoding.
pub(crate) fn encode_floats(encoding: Encoding, values: &[f32]) -> Option<Vec<u8>> {
    fn each<const N: usize>(values: &[f32], element: impl Fn(f32) -> [u8; N]) -> Vec<u8> {
        values.iter().flat_map(|&value| element(value)).collect()
    }
    // The runtime stores the same values. They are exact in the type, and so is the quotient by a
    // power of two.
    let raw = |value: f32| nearest_bound_value(&encoding, value) / encoding.scale.get();
    Some(match encoding.element {
        DType::F32 => each(values, |value| raw(value).to_le_bytes()),
        DType::F16 => each(values, |value| f16::from_f32(raw(value)).to_le_bytes()),
        DType::Bf16 => each(values, |value| bf16::from_f32(raw(value)).to_le_bytes()),
        DType::U16 => each(values, |value| (encoding.raw(value) as u16).to_le_bytes()),
        DType::I16 => each(values, |value| (encoding.raw(value) as i16).to_le_bytes()),
        DType::U8 => each(values, |value| [encoding.raw(value) as u8]),
        DType::I8 => each(values, |value| (encoding.raw(value) as i8).to_le_bytes()),
        DType::I32 | DType::I64 | DType::I4 | DType::I2 => return None,
    })
}

/// Decodes elements to values. Trailing bytes shorter than an element are ignored. Returns `None`
/// for a type without an encoding.
pub(crate) fn decode(encoding: Encoding, bytes: &[u8]) -> Option<Vec<f32>> {
    fn each<const N: usize>(bytes: &[u8], value: impl Fn([u8; N]) -> f32) -> Vec<f32> {
        bytes.as_chunks::<N>().0.iter().map(|&element| value(element)).collect()
    }
    let unit = encoding.scale.get();
    Some(match encoding.element {
        DType::F32 => each(bytes, |element| f32::from_le_bytes(element) * unit),
        DType::F16 => each(bytes, |element| f16::from_le_bytes(element).to_f32() * unit),
        DType::Bf16 => each(bytes, |element| bf16::from_le_bytes(element).to_f32() * unit),
        DType::U16 => each(bytes, |element| encoding.value(u16::from_le_bytes(element).into())),
        DType::I16 => each(bytes, |element| encoding.value(i16::from_le_bytes(element).into())),
        DType::U8 => each(bytes, |[element]| encoding.value(element.into())),
        DType::I8 => each(bytes, |[element]| encoding.value((element as i8).into())),
        DType::I32 | DType::I64 | DType::I4 | DType::I2 => return None,
    })
}

#[cfg(test)]
mod tests {
    use shardwright_graph::Role;
    use shardwright_shims::Direction;

    use super::*;

    fn port(dtype: DType, encoding: Option<Encoding>) -> Port {
        Port {
            name: "x".to_owned(),
            direction: Direction::Input,
            role: Role::Hidden,
            shape: vec![1, 6],
            dtype,
            encoding,
            unit: None,
        }
    }

    #[test]
    fn every_encoding_gives_back_the_nearest_it_holds() {
        let encodings = [
            Encoding::F32,
            Encoding::F16,
            Encoding::of(DType::Bf16, None).unwrap(),
            Encoding::affine_over(-3.0, 5.0, 16),
            Encoding::symmetric_over(-3.0, 5.0, 16),
            Encoding::affine_over(-3.0, 5.0, 8),
            Encoding::symmetric_over(-3.0, 5.0, 8),
        ];
        let values = [0.0_f32, 1.0 / 3.0, -2.9, 4.99, 1e9, -1e30];
        for encoding in encodings {
            let bytes = encode_floats(encoding, &values).unwrap();
            assert_eq!(bytes.len() as u64, values.len() as u64 * encoding.element.bytes(), "{encoding}");
            assert_eq!(
                decode(encoding, &bytes).unwrap(),
                values.map(|value| nearest_bound_value(&encoding, value)),
                "{encoding}"
            );
        }
    }

    #[test]
    fn indices_and_packed_weights_are_no_encoded_numbers() {
        for element in [DType::I32, DType::I64, DType::I4, DType::I2] {
            let encoding = Encoding { element, ..Encoding::F32 };
            assert_eq!((encode_floats(encoding, &[1.0]), decode(encoding, &[0; 8])), (None, None));
        }
    }

    #[test]
    fn ports_of_numbers_take_no_indices_and_the_other_way_round() {
        let (floats, indices) = (Input::Floats(vec![1.5]), Input::Indices(vec![-1, 7]));
        let affine = Some(Encoding::affine_over(-3.0, 5.0, 16));
        assert_eq!(encode(&port(DType::F32, None), &floats), Some(1.5_f32.to_le_bytes().to_vec()));
        assert_eq!(encode(&port(DType::U16, affine), &floats).map(|bytes| bytes.len()), Some(2));
        assert_eq!(encode(&port(DType::I32, None), &indices), Some(vec![255, 255, 255, 255, 7, 0, 0, 0]));
        assert_eq!(encode(&port(DType::I64, None), &indices).map(|bytes| bytes.len()), Some(16));
        assert_eq!(encode(&port(DType::F32, None), &indices), None);
        assert_eq!(encode(&port(DType::I32, None), &floats), None);
    }
}
