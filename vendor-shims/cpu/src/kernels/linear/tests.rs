use proptest::prelude::*;

use super::*;
use crate::simd::Level;

/// The meaning: one accumulator, k in order, bias last.
fn twin(x: &[f32], w: &[f32], bias: Option<&[f32]>, rows: usize, inputs: usize, outputs: usize) -> Vec<f32> {
    let mut out = vec![0.0f32; rows * outputs];
    for r in 0..rows {
        for n in 0..outputs {
            let mut sum = 0.0f32;
            for k in 0..inputs {
                sum = x[r * inputs + k].mul_add(w[n * inputs + k], sum);
            }
            out[r * outputs + n] = sum + bias.map_or(0.0, |bias| bias[n]);
            if bias.is_none() {
                out[r * outputs + n] = sum;
            }
        }
    }
    out
}

fn pack<T: Copy + Default>(w: &[T], inputs: usize, outputs: usize) -> Vec<T> {
    let mut packed = vec![T::default(); packed_elements(inputs, outputs)];
    for (panel, target) in packed.chunks_exact_mut(inputs * LANES).enumerate() {
        pack_from_rows(w, inputs, outputs, panel, target);
    }
    packed
}

fn values(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed | 1;
    (0..count)
        .map(|_| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            ((state >> 40) as f32 / (1 << 23) as f32 - 1.0) * 2.0
        })
        .collect()
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 60, ..ProptestConfig::default() })]
    #[test]
    fn every_level_type_and_thread_count_gives_the_bits_of_the_twin(
        rows in 1usize..40, inputs in 1usize..600, outputs in 1usize..200, seed: u64, with_bias: bool,
    ) {
        let x = values(rows * inputs, seed);
        let wide = values(outputs * inputs, seed ^ 0x55);
        let bias = with_bias.then(|| values(outputs, seed ^ 0xaa));
        let bf16: Vec<u16> = wide.iter().map(|v| (v.to_bits() >> 16) as u16).collect();
        let f16: Vec<u16> = (0..wide.len()).map(|i| (i as u64 * 40503 % 0x7800) as u16 | ((i as u16 & 1) << 15)).collect();
        let bf16_wide: Vec<f32> = bf16.iter().map(|&b| f32::from_bits(u32::from(b) << 16)).collect();
        let f16_wide: Vec<f32> = f16.iter().map(|&b| crate::simd::widen_f16(b)).collect();
        let (p32, pb, ph) = (pack(&wide, inputs, outputs), pack(&bf16, inputs, outputs), pack(&f16, inputs, outputs));
        let forms = [(PanelData::F32(&p32), &wide), (PanelData::Bf16(&pb), &bf16_wide), (PanelData::F16(&ph), &f16_wide)];
        for (form, (data, w)) in forms.into_iter().enumerate() {
            let expected = bits(&twin(&x, w, bias.as_deref(), rows, inputs, outputs));
            for level in Level::available() {
                for threads in [1, 3] {
                    let pool = Pool::eager(threads);
                    let mut out = vec![f32::NAN; rows * outputs];
                    linear(level, &pool, &x, Panels { data, inputs, outputs }, bias.as_deref(), rows, &mut out);
                    prop_assert_eq!(&bits(&out), &expected, "{} form {} threads {}", level.name(), form, threads);
                }
            }
        }
    }
}

#[test]
fn a_row_alone_equals_the_row_among_many() {
    let (rows, inputs, outputs) = (130, 300, 75);
    let x = values(rows * inputs, 3);
    let w = values(outputs * inputs, 4);
    let packed = pack(&w, inputs, outputs);
    let weights = Panels { data: PanelData::F32(&packed), inputs, outputs };
    let pool = Pool::eager(2);
    for level in Level::available() {
        let mut all = vec![0.0; rows * outputs];
        linear(level, &pool, &x, weights, None, rows, &mut all);
        for row in [0, 5, 95, 96, 129] {
            let mut one = vec![0.0; outputs];
            linear(level, &pool, &x[row * inputs..], weights, None, 1, &mut one);
            assert_eq!(bits(&one), bits(&all[row * outputs..(row + 1) * outputs]));
        }
    }
}

#[test]
fn zero_inputs_give_the_bias() {
    for rows in [1, 2, 20] {
        let mut out = vec![9.0; rows * 3];
        let weights = Panels { data: PanelData::Bf16(&[]), inputs: 0, outputs: 3 };
        linear(Level::detect(), &Pool::eager(1), &[], weights, Some(&[1.0, 2.0, 3.0]), rows, &mut out);
        assert_eq!(out, [1.0, 2.0, 3.0].repeat(rows));
    }
}
