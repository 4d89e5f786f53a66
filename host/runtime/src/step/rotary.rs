use shardwright_graph::Rotary;

/// Rotary tables by kind. Frequencies are cached. Sines and cosines are computed in each step,
/// since a table for every position of a long context would cost more than it saves.
#[derive(Debug, Default)]
pub(crate) struct RotaryTables {
    frequencies: Vec<(Rotary, Vec<f32>)>,
}

impl RotaryTables {
    /// Computes `turn` (sine or cosine) of `position · frequency` for each row and pair, multiplied
    /// by the magnitude for rotated pairs. The angle is rounded to f32, as in the training of the
    /// checkpoints. Its sine or cosine is only rounded at the end.
    pub(crate) fn fill(&mut self, rope: &Rotary, position: u64, turn: fn(f64) -> f64, values: &mut [f32]) {
        let frequencies = self.frequencies(rope);
        let turning = rope.rotated_pairs as usize;
        for (row, values) in values.chunks_exact_mut(frequencies.len().max(1)).enumerate() {
            let position = super::position(position + row as u64) as f32;
            for (value, frequency) in values.iter_mut().zip(frequencies) {
                *value = turn(f64::from(position * frequency)) as f32;
            }
            values.iter_mut().take(turning).for_each(|value| *value *= rope.magnitude);
        }
    }

    fn frequencies(&mut self, rope: &Rotary) -> &[f32] {
        let index = match self.frequencies.iter().position(|(kind, _)| kind == rope) {
            Some(index) => index,
            None => {
                self.frequencies.push((rope.clone(), frequencies(rope)));
                self.frequencies.len() - 1
            }
        };
        &self.frequencies[index].1
    }
}

/// Returns the radians per position of each pair. Pairs that are not rotated have 0, which gives
/// cosine 1 and sine 0.
pub(super) fn frequencies(rope: &Rotary) -> Vec<f32> {
    (0..rope.head_dim / 2)
        .map(|pair| {
            if pair < rope.rotated_pairs {
                let exponent = (2 * pair) as f32 / rope.head_dim as f32;
                let power = f64::from(rope.theta).powf(f64::from(exponent)) as f32;
                1.0 / power / rope.divisor(pair)
            } else {
                0.0
            }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unrotated_pairs_stay_and_the_first_turns_by_the_position() {
        let rope = Rotary {
            head_dim: 8,
            theta: 10_000.0,
            rotated_pairs: 2,
            factor: 1.0,
            divisors: Vec::new(),
            magnitude: 1.0,
        };
        let mut tables = RotaryTables::default();
        let (mut cos, mut sin) = ([9.0; 8], [9.0; 8]);
        tables.fill(&rope, 3, f64::cos, &mut cos);
        tables.fill(&rope, 3, f64::sin, &mut sin);
        let turned = |turn: fn(f64) -> f64| {
            [3_f32, 0.1_f32 * 3.0, 4.0, 0.1_f32 * 4.0].map(|angle| turn(f64::from(angle)) as f32)
        };
        let [a, b, c, d] = turned(f64::cos);
        assert_eq!(cos, [a, b, 1.0, 1.0, c, d, 1.0, 1.0]);
        let [a, b, c, d] = turned(f64::sin);
        assert_eq!(sin, [a, b, 0.0, 0.0, c, d, 0.0, 0.0]);
        assert_eq!(tables.frequencies.len(), 1);
    }

    #[test]
    fn a_factor_divides_every_frequency_and_a_divisor_its_own() {
        let rope = Rotary {
            head_dim: 4,
            theta: 1e6,
            rotated_pairs: 2,
            factor: 8.0,
            divisors: Vec::new(),
            magnitude: 1.0,
        };
        let plain = frequencies(&Rotary { factor: 1.0, ..rope.clone() });
        let divided = |divisors: &[f32]| -> Vec<f32> {
            plain.iter().zip(divisors).map(|(frequency, divisor)| frequency / divisor).collect()
        };
        assert_eq!(frequencies(&rope), divided(&[8.0, 8.0]));
        let each = Rotary { divisors: vec![1.0, 2.5], ..rope };
        assert_eq!(frequencies(&each), divided(&[8.0, 20.0]));
    }
}
