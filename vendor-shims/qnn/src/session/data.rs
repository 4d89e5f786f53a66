//! Converts constants to the library's format: one byte per value, in the order of the declared
//! shape.

use crate::graph::{DataType, QnnTensor, StaticData};

/// Returns the size of a tensor as the library counts it, or `None` if it exceeds 64 bits.
pub(crate) fn declared_bytes(dtype: DataType, dims: &[u32]) -> Option<u64> {
    dims.iter().try_fold(dtype.bytes(), |bytes, extent| bytes.checked_mul(u64::from(*extent)))
}

/// Returns repetitions, rows and columns of a tensor's stored form. If `transposed`, the tensor is
/// stored as `[repetitions, rows, columns]` and declared as `[.., columns, rows]`.
fn stored_shape(dims: &[u32], transposed: bool) -> (u64, u64, u64) {
    let (outer, inner) = dims.split_at(dims.len().saturating_sub(2));
    let repetitions = outer.iter().map(|extent| u64::from(*extent)).product();
    match (inner, transposed) {
        ([columns, rows], true) => (repetitions, u64::from(*rows), u64::from(*columns)),
        ([rows, columns], false) => (repetitions, u64::from(*rows), u64::from(*columns)),
        _ => (1, 1, dims.iter().map(|extent| u64::from(*extent)).product()),
    }
}

/// Returns the length of the stored form, or the reason why the form does not fit the tensor.
pub(crate) fn stored_bytes(tensor: &QnnTensor<'_>, data: &StaticData<'_>) -> Result<Option<u64>, String> {
    let declared = declared_bytes(tensor.dtype, &tensor.dims).ok_or("its size is beyond 64 bits")?;
    Ok(match data {
        StaticData::Bytes(_) => Some(declared),
        StaticData::Stand { .. } => None,
        StaticData::Packed { .. } | StaticData::Transposed(_) if tensor.dtype.bytes() != 1 => {
            return Err("only values of one byte are stored packed or transposed".to_owned());
        }
        StaticData::Packed { bits, .. } if !matches!(bits, 2 | 4) => {
            return Err(format!("values of {bits} bits cannot be packed, only of 2 and 4"));
        }
        StaticData::Packed { transposed: true, .. } | StaticData::Transposed(_) if tensor.dims.len() < 2 => {
            return Err("fewer than two axes cannot be exchanged".to_owned());
        }
        StaticData::Packed { bits, transposed, .. } => {
            let (repetitions, rows, columns) = stored_shape(&tensor.dims, *transposed);
            Some(repetitions * rows * (columns * u64::from(*bits)).div_ceil(8))
        }
        StaticData::Transposed(_) => Some(declared),
    })
}

/// Returns the bytes to pass to the library: the stored ones, or converted ones in `buffer`. The
/// lengths must have been checked with [`stored_bytes`].
pub(crate) fn materialise<'a>(
    tensor: &QnnTensor<'_>,
    data: &'a StaticData<'_>,
    bits: u32,
    buffer: &'a mut Vec<u8>,
) -> &'a [u8] {
    let declared = declared_bytes(tensor.dtype, &tensor.dims).unwrap_or(0) as usize;
    match data {
        StaticData::Bytes(bytes) => return bytes,
        StaticData::Packed { bytes, bits, transposed } => {
            let (_, rows, columns) = stored_shape(&tensor.dims, *transposed);
            widen(bytes, *bits, rows as usize, columns as usize, *transposed, declared, buffer);
        }
        StaticData::Transposed(bytes) => {
            let (_, rows, columns) = stored_shape(&tensor.dims, true);
            buffer.resize(declared, 0);
            let matrix = (rows * columns) as usize;
            for (from, to) in bytes.chunks_exact(matrix.max(1)).zip(buffer.chunks_exact_mut(matrix.max(1))) {
                transpose(from, to, rows as usize, columns as usize);
            }
        }
        StaticData::Stand { seed } => stand(tensor.dtype, bits, *seed, declared, buffer),
    }
    &buffer[..declared]
}

/// Exchanges rows and columns, in tiles that fit the cache.
fn transpose(from: &[u8], to: &mut [u8], rows: usize, columns: usize) {
    const TILE: usize = 64;
    for first_row in (0..rows).step_by(TILE) {
        for first_column in (0..columns).step_by(TILE) {
            for row in first_row..rows.min(first_row + TILE) {
                for column in first_column..columns.min(first_column + TILE) {
                    to[column * rows + row] = from[row * columns + column];
                }
            }
        }
    }
}

/// Widens each packed value to one byte and keeps its sign. Exchanges rows and columns if they are
/// stored exchanged.
fn widen(
    packed: &[u8],
    bits: u32,
    rows: usize,
    columns: usize,
    transposed: bool,
    declared: usize,
    buffer: &mut Vec<u8>,
) {
    buffer.resize(declared, 0);
    let per_byte = (8 / bits) as usize;
    let row_bytes = columns.div_ceil(per_byte);
    let value = |byte: u8, place: usize| -> u8 {
        // Shifted up to the sign bit, and back down with sign extension.
        let up = byte << (8 - bits as usize * (place + 1));
        ((up as i8) >> (8 - bits)) as u8
    };
    let matrices = packed.chunks_exact((rows * row_bytes).max(1));
    for (packed, to) in matrices.zip(buffer.chunks_exact_mut((rows * columns).max(1))) {
        const TILE: usize = 64;
        for first_row in (0..rows).step_by(TILE) {
            for first_byte in (0..row_bytes).step_by(TILE) {
                for row in first_row..rows.min(first_row + TILE) {
                    for index in first_byte..row_bytes.min(first_byte + TILE) {
                        let byte = packed[row * row_bytes + index];
                        let first = index * per_byte;
                        for place in 0..per_byte.min(columns - first) {
                            let column = first + place;
                            let at = if transposed { column * rows + row } else { row * columns + column };
                            to[at] = value(byte, place);
                        }
                    }
                }
            }
        }
    }
}

/// Fills the buffer with numbers determined by a seed: of `bits` bits for integer types, in [-1, 1)
/// for floats.
fn stand(dtype: DataType, bits: u32, seed: u64, declared: usize, buffer: &mut Vec<u8>) {
    buffer.clear();
    buffer.resize(declared.next_multiple_of(8), 0);
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x2545_f491_4f6c_dd1d;
    if state == 0 {
        state = 1;
    }
    for chunk in buffer.chunks_exact_mut(8) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let random = state.wrapping_mul(0x2545_f491_4f6c_dd1d).to_le_bytes();
        chunk.copy_from_slice(&random);
        match dtype {
            DataType::Float16 => {
                for pair in chunk.chunks_exact_mut(2) {
                    let value = i16::from_le_bytes([pair[0], pair[1]]);
                    pair.copy_from_slice(&half::f16::from_f32(f32::from(value) / 32768.0).to_le_bytes());
                }
            }
            DataType::Bfloat16 => {
                for pair in chunk.chunks_exact_mut(2) {
                    let value = i16::from_le_bytes([pair[0], pair[1]]);
                    pair.copy_from_slice(&half::bf16::from_f32(f32::from(value) / 32768.0).to_le_bytes());
                }
            }
            DataType::Float32 => {
                for four in chunk.chunks_exact_mut(4) {
                    let value = i16::from_le_bytes([four[0], four[1]]);
                    four.copy_from_slice(&(f32::from(value) / 32768.0).to_le_bytes());
                }
            }
            DataType::Sfixed8 if bits < 8 => {
                for byte in chunk {
                    *byte = ((*byte as i8) >> (8 - bits)) as u8;
                }
            }
            DataType::Bool8 => {
                for byte in chunk {
                    *byte &= 1;
                }
            }
            // Zero is the only index that is always in range.
            DataType::Int32 | DataType::Uint32 | DataType::Int64 => chunk.fill(0),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{QnnEncoding, TensorKind};

    fn bytes_of(dtype: DataType, dims: &[u32], data: StaticData<'_>, bits: u32) -> Vec<u8> {
        let tensor = QnnTensor {
            name: String::new(),
            kind: TensorKind::Static(data.clone()),
            dtype,
            dims: dims.to_vec(),
            encoding: QnnEncoding::None,
        };
        // The buffer contains more and other bytes from an earlier use.
        let mut buffer = vec![0x55; 1000];
        materialise(&tensor, &data, bits, &mut buffer).to_vec()
    }

    #[test]
    fn packed_values_keep_their_sign_and_rows_begin_anew() {
        // Two rows of three: 1, -8, 7 and -1, 0, -2.
        let bytes = [0x81, 0x07, 0x0f, 0x0e];
        let packed = |transposed| StaticData::Packed { bytes: &bytes, bits: 4, transposed };
        let signed = |values: Vec<u8>| values.into_iter().map(|value| value as i8).collect::<Vec<_>>();
        let straight = bytes_of(DataType::Sfixed8, &[2, 3], packed(false), 4);
        assert_eq!(signed(straight), [1, -8, 7, -1, 0, -2]);
        let exchanged = bytes_of(DataType::Sfixed8, &[1, 3, 2], packed(true), 4);
        assert_eq!(signed(exchanged), [1, -1, -8, 0, 7, -2]);
        // Four to a byte: 1, -2, -1, 0 and 1.
        let two = StaticData::Packed { bytes: &[0b0011_1001, 0b01], bits: 2, transposed: false };
        assert_eq!(signed(bytes_of(DataType::Sfixed8, &[1, 5], two, 2)), [1, -2, -1, 0, 1]);
    }

    #[test]
    fn large_matrices_are_exchanged_in_full() {
        let (rows, columns) = (130usize, 67usize);
        let bytes: Vec<u8> = (0..rows * columns).map(|at| (at * 31 % 251) as u8).collect();
        let dims = [columns as u32, rows as u32];
        let exchanged = bytes_of(DataType::Sfixed8, &dims, StaticData::Transposed(&bytes), 8);
        for row in 0..rows {
            for column in 0..columns {
                assert_eq!(exchanged[column * rows + row], bytes[row * columns + column]);
            }
        }
    }

    #[test]
    fn stand_ins_follow_from_their_seed_and_stay_in_range() {
        let stand = |dtype, bits, seed| bytes_of(dtype, &[7, 9], StaticData::Stand { seed }, bits);
        assert_eq!(stand(DataType::Sfixed8, 8, 1), stand(DataType::Sfixed8, 8, 1));
        assert_ne!(stand(DataType::Sfixed8, 8, 1), stand(DataType::Sfixed8, 8, 2));
        let four = stand(DataType::Sfixed8, 4, 3);
        assert!(four.iter().all(|byte| (-8..8).contains(&(*byte as i8))));
        assert!(four.contains(&(-8i8 as u8)) && four.contains(&7));
        for pair in stand(DataType::Float16, 8, 4).chunks_exact(2) {
            assert!(half::f16::from_le_bytes([pair[0], pair[1]]).to_f32().abs() <= 1.0);
        }
        assert!(stand(DataType::Int32, 8, 5).iter().all(|byte| *byte == 0), "the only index always in range");
    }
}
