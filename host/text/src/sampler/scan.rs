//! Scans of a whole row of logits.

/// Number of logits that are scanned together, without a branch. A piece is scanned one by one only
/// if the first scan found something in it.
pub(super) const PIECE: usize = 256;

/// Returns the lowest id with a NaN or infinite logit.
pub(super) fn first_not_finite(logits: &[f32]) -> Option<usize> {
    const EXPONENT: u32 = f32::INFINITY.to_bits();
    let found = |logit: &f32| logit.to_bits() & EXPONENT == EXPONENT;
    let mut pieces = logits.chunks(PIECE);
    let piece = pieces.position(|piece| piece.iter().fold(false, |any, logit| any | found(logit)))?;
    let start = piece * PIECE;
    logits[start..].iter().position(found).map(|id| start + id)
}

/// Returns the lowest id with the largest logit.
pub(crate) fn largest(logits: &[f32]) -> u32 {
    let (mut best, mut start) = (f32::NEG_INFINITY, 0);
    for (piece, logits) in logits.chunks(PIECE).enumerate() {
        let largest = largest_of(logits);
        if largest > best {
            (best, start) = (largest, piece * PIECE);
        }
    }
    // Zeros are equal regardless of their sign.
    let id = logits[start..].iter().position(|logit| *logit == best);
    (start + id.unwrap_or(0)) as u32
}

/// Returns the largest of finite numbers. If it is zero, the sign is arbitrary.
pub(super) fn largest_of(logits: &[f32]) -> f32 {
    // A compiler cannot reorder a sequential maximum of floating-point numbers. These lanes are
    // independent.
    let mut lanes = [f32::NEG_INFINITY; 16];
    let larger = |one: f32, other: f32| if one > other { one } else { other };
    let (rows, rest) = logits.as_chunks::<16>();
    for row in rows {
        for (lane, logit) in lanes.iter_mut().zip(row) {
            *lane = larger(*logit, *lane);
        }
    }
    lanes.into_iter().chain(rest.iter().copied()).fold(f32::NEG_INFINITY, larger)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pieces_are_scanned_as_one_row() {
        for count in [1, 15, 16, 17, PIECE - 1, PIECE, PIECE + 1, 3 * PIECE + 5] {
            let mut row = vec![f32::MIN; count];
            assert_eq!((largest(&row), first_not_finite(&row)), (0, None));
            for at in (0..count).step_by(7).chain([count - 1]) {
                // Equal logits with higher ids, in the same piece and in a later one.
                row[at..].fill(-0.0);
                row[count - 1] = 0.0;
                assert_eq!(largest(&row), at as u32, "{at} of {count}");
                for bad in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                    let mut row = row.clone();
                    row[count - 1] = f32::NAN;
                    row[at] = bad;
                    assert_eq!(first_not_finite(&row), Some(at), "{at} of {count}");
                }
                row.fill(f32::MIN);
            }
        }
    }
}
