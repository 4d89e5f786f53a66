use proptest::prelude::*;
use shardwright_shim_testing::bits;

use super::*;
use crate::simd::{Level, narrow_f16, widen_f16};

/// Computes the definition: one accumulator, k in order, bias last.
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
    shardwright_shim_testing::values(count, seed, 2.0)
}

fn float_panels<'a>(data: PanelData<'a>, inputs: usize, outputs: usize) -> Panels<'a> {
    Panels { data, scales: Scales::None, zero: 0, inputs, outputs }
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
        let f16_wide: Vec<f32> = f16.iter().map(|&b| widen_f16(b)).collect();
        let (p32, pb, ph) = (pack(&wide, inputs, outputs), pack(&bf16, inputs, outputs), pack(&f16, inputs, outputs));
        let forms = [
            (PanelData::F32(p32.as_chunks().0), &wide),
            (PanelData::Bf16(pb.as_chunks().0), &bf16_wide),
            (PanelData::F16(ph.as_chunks().0), &f16_wide),
        ];
        for (form, (data, w)) in forms.into_iter().enumerate() {
            let expected = bits(&twin(&x, w, bias.as_deref(), rows, inputs, outputs));
            for level in Level::available() {
                for threads in [1, 3] {
                    let pool = Pool::eager(threads);
                    let mut out = vec![f32::NAN; rows * outputs];
                    linear(level, &pool, &x, float_panels(data, inputs, outputs), Finish::biased(bias.as_deref()), rows, &mut out);
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
    let weights = float_panels(PanelData::F32(packed.as_chunks().0), inputs, outputs);
    let pool = Pool::eager(2);
    for level in Level::available() {
        let mut all = vec![0.0; rows * outputs];
        linear(level, &pool, &x, weights, Finish::default(), rows, &mut all);
        for row in [0, 5, 95, 96, 129] {
            let mut one = vec![0.0; outputs];
            linear(level, &pool, &x[row * inputs..], weights, Finish::default(), 1, &mut one);
            assert_eq!(bits(&one), bits(&all[row * outputs..(row + 1) * outputs]));
        }
    }
}

#[test]
fn zero_inputs_give_the_bias() {
    for rows in [1, 2, 20] {
        let mut out = vec![9.0; rows * 3];
        let weights = float_panels(PanelData::Bf16(&[]), 0, 3);
        linear(
            Level::detect(),
            &Pool::eager(1),
            &[],
            weights,
            Finish::biased(Some(&[1.0, 2.0, 3.0])),
            rows,
            &mut out,
        );
        assert_eq!(out, [1.0, 2.0, 3.0].repeat(rows));
    }
}

/// Integers of the whole range of a type, with their packed form.
struct Integers {
    kind: PanelType,
    raw: Vec<i8>,
    packed: Vec<u8>,
}

impl Integers {
    fn new(kind: PanelType, inputs: usize, outputs: usize, seed: u64) -> Integers {
        let span = 1 << kind.bits();
        let of = |value: &f32| (((value + 2.0) * 1e4) as i32 % span + kind.least()) as i8;
        let raw: Vec<i8> = values(inputs * outputs, seed).iter().map(of).collect();
        let step = kind.step_bytes() * inputs;
        let mut packed = vec![0xff; outputs.div_ceil(LANES) * step];
        for (panel, target) in packed.chunks_mut(step).enumerate() {
            let rows = panel * LANES * inputs..((panel + 1) * LANES).min(outputs) * inputs;
            pack_integers(kind, &raw[rows], inputs, target);
        }
        Integers { kind, raw, packed }
    }

    fn bytes(&self) -> Vec<i8> {
        self.packed.iter().map(|byte| *byte as i8).collect()
    }

    fn data<'a>(&'a self, bytes: &'a [i8]) -> PanelData<'a> {
        match self.kind {
            PanelType::I8 => PanelData::I8(bytes.as_chunks().0),
            PanelType::I4 => PanelData::I4(self.packed.as_chunks().0),
            _ => PanelData::I2(self.packed.as_chunks().0),
        }
    }
}

/// Converts block scales to panel layout.
fn block_panels(scales: &[u16], blocks: usize, outputs: usize) -> Vec<[u16; LANES]> {
    let panel_block =
        (0..outputs.div_ceil(LANES)).flat_map(|panel| (0..blocks).map(move |block| (panel, block)));
    panel_block
        .map(|(panel, block)| {
            std::array::from_fn(|lane| {
                scales.get((panel * LANES + lane) * blocks + block).copied().unwrap_or(0)
            })
        })
        .collect()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    #[test]
    fn integers_give_the_bits_of_the_twin_at_every_level(
        rows in 1usize..30, inputs in 1usize..500, outputs in 1usize..150, block in 1usize..70, seed: u64, with_bias: bool,
    ) {
        let x = values(rows * inputs, seed);
        let bias = with_bias.then(|| values(outputs, seed ^ 0xaa));
        let scales: Vec<f32> = values(outputs, seed ^ 7).iter().map(|scale| scale / 100.0).collect();
        for kind in [PanelType::I8, PanelType::I4, PanelType::I2] {
            let integers = Integers::new(kind, inputs, outputs, seed ^ 0x55);
            let bytes = integers.bytes();
            let data = integers.data(&bytes);
            let wide: Vec<f32> = integers.raw.iter().map(|raw| f32::from(*raw)).collect();
            let mut expected = twin(&x, &wide, None, rows, inputs, outputs);
            for (index, sum) in expected.iter_mut().enumerate() {
                let scale = scales[index % outputs];
                *sum = bias.as_ref().map_or(*sum * scale, |bias| sum.mul_add(scale, bias[index % outputs]));
            }
            let panels = Panels { data, scales: Scales::PerOutput(&scales), zero: 0, inputs, outputs };
            same_everywhere(&x, panels, bias.as_deref(), rows, &expected)?;
        }
        // With scales per block, the result has the bits of the decoded weights.
        for kind in [PanelType::I8, PanelType::I4] {
            let integers = Integers::new(kind, inputs, outputs, seed ^ 0x33);
            let bytes = integers.bytes();
            let blocks = inputs.div_ceil(block);
            let scales: Vec<u16> = (0..outputs * blocks).map(|i| (i as u64 * 40503 % 0x4800) as u16 | ((i as u16 & 1) << 15)).collect();
            let decoded: Vec<f32> = (0..inputs * outputs).map(|at| {
                let scale = scales[at / inputs * blocks + at % inputs / block];
                f32::from(integers.raw[at]) * widen_f16(scale)
            }).collect();
            let expected = twin(&x, &decoded, bias.as_deref(), rows, inputs, outputs);
            let scales = block_panels(&scales, blocks, outputs);
            let scales = Scales::Blocks { size: block, minimum: false, numbers: Numbers::F16(&scales) };
            let panels = Panels { data: integers.data(&bytes), scales, zero: 0, inputs, outputs };
            same_everywhere(&x, panels, bias.as_deref(), rows, &expected)?;
            // Affine maps give the same bits too.
            for (zero, minimum, half) in [(0, false, false), (-8, true, false), (-8, true, true), (3, false, true)] {
                let mut maps = values(2 * outputs * blocks, seed ^ 0x77);
                if half {
                    maps.iter_mut().for_each(|number| *number = widen_f16(narrow_f16(*number)));
                }
                let of = |output: usize, block: usize| {
                    let [scale, low] = [0, 1].map(|which| maps[2 * (output * blocks + block) + which]);
                    [scale, if minimum { low } else { 0.0 }]
                };
                let decoded: Vec<f32> = (0..inputs * outputs).map(|at| {
                    let [scale, minimum] = of(at / inputs, at % inputs / block);
                    (i32::from(integers.raw[at]) - zero) as f32 * scale - minimum
                }).collect();
                let expected = twin(&x, &decoded, bias.as_deref(), rows, inputs, outputs);
                let numbers = if minimum { 2 } else { 1 };
                let lying: Vec<[f32; LANES]> = (0..outputs.div_ceil(LANES) * blocks * numbers).map(|at| {
                    let (panel, block, which) = (at / numbers / blocks, at / numbers % blocks, at % numbers);
                    std::array::from_fn(|lane| match panel * LANES + lane {
                        output if output < outputs => of(output, block)[which],
                        _ => 0.0,
                    })
                }).collect();
                let narrow: Vec<[u16; LANES]> = lying.iter().map(|vector| vector.map(narrow_f16)).collect();
                let numbers = if half { Numbers::F16(&narrow) } else { Numbers::F32(&lying) };
                let scales = Scales::Blocks { size: block, minimum, numbers };
                let panels = Panels { data: integers.data(&bytes), scales, zero, inputs, outputs };
                same_everywhere(&x, panels, bias.as_deref(), rows, &expected)?;
            }
        }
    }
}

fn same_everywhere(
    x: &[f32],
    panels: Panels<'_>,
    bias: Option<&[f32]>,
    rows: usize,
    expected: &[f32],
) -> Result<(), TestCaseError> {
    for level in Level::available() {
        for threads in [1, 3] {
            let mut out = vec![f32::NAN; rows * panels.outputs];
            linear(level, &Pool::eager(threads), x, panels, Finish::biased(bias), rows, &mut out);
            // Bounds give the same bits as a clamp afterwards.
            let mut held = vec![f32::NAN; out.len()];
            let finish = Finish { bias, bounds: Some([-0.5, 0.75]) };
            linear(level, &Pool::eager(threads), x, panels, finish, rows, &mut held);
            for (held, value) in held.iter().zip(&out) {
                prop_assert_eq!(held.to_bits(), value.clamp(-0.5, 0.75).to_bits());
            }
            prop_assert_eq!(bits(&out), bits(expected), "{} with {} threads", level.name(), threads);
        }
    }
    Ok(())
}

/// Only meaningful without optimisation, as in `cargo xtask kernels`.
#[test]
fn every_kernel_fits_half_of_the_stack() {
    crate::pool::on_half_of_a_stack(|| {
        let (inputs, outputs, block) = (70_usize, 130, 32);
        let blocks = inputs.div_ceil(block);
        let wide = values(inputs * outputs, 1);
        let narrow: Vec<u16> = wide.iter().map(|value| narrow_f16(*value)).collect();
        let (p32, p16) = (pack(&wide, inputs, outputs), pack(&narrow, inputs, outputs));
        let (scales, halves) = (vec![0.5; outputs], vec![0; outputs * blocks]);
        let block_scales = block_panels(&halves, blocks, outputs);
        let [i8s, i4s, i2s] =
            [PanelType::I8, PanelType::I4, PanelType::I2].map(|kind| Integers::new(kind, inputs, outputs, 2));
        let bytes = [&i8s, &i4s, &i2s].map(Integers::bytes);
        let numbers = Numbers::F16(&block_scales);
        let (of_output, of_block) =
            (Scales::PerOutput(&scales), Scales::Blocks { size: block, minimum: false, numbers });
        // Blocks with a zero point have kernels of their own.
        let all = [
            (PanelData::F32(p32.as_chunks().0), Scales::None, 0),
            (PanelData::Bf16(p16.as_chunks().0), Scales::None, 0),
            (PanelData::F16(p16.as_chunks().0), Scales::None, 0),
            (i8s.data(&bytes[0]), of_output, 0),
            (i8s.data(&bytes[0]), of_block, 0),
            (i8s.data(&bytes[0]), of_block, 3),
            (i4s.data(&bytes[1]), of_output, 0),
            (i4s.data(&bytes[1]), of_block, 0),
            (i4s.data(&bytes[1]), of_block, 3),
            (i2s.data(&bytes[2]), of_output, 0),
        ];
        for (data, scales, zero) in all {
            for rows in [1, 7, 20] {
                let x = values(rows * inputs, 3);
                for level in Level::available() {
                    let mut out = vec![f32::NAN; rows * outputs];
                    let panels = Panels { data, scales, zero, inputs, outputs };
                    linear(level, &Pool::eager(1), &x, panels, Finish::default(), rows, &mut out);
                    assert!(out.iter().all(|value| !value.is_nan()), "{}", level.name());
                }
            }
        }
    });
}
