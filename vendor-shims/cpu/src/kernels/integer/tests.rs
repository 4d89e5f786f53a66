use proptest::prelude::*;
use shardwright_shim_testing::bits;

use super::*;
use crate::kernels::linear::Maps;
use crate::simd::{narrow_f16, widen_f16};

fn values(count: usize, seed: u64) -> Vec<f32> {
    shardwright_shim_testing::values(count, seed, 2.0)
}

const KINDS: [IntegerType; 3] = [IntegerType::I8, IntegerType::I4, IntegerType::I2];

/// Integers of the whole range of a type, with their packed form.
struct Integers {
    raw: Vec<i8>,
    packed: Vec<u8>,
}

impl Integers {
    fn new(kind: IntegerType, geometry: Geometry, outputs: usize, seed: u64) -> Integers {
        let span = 1 << kind.bits();
        let of = |value: &f32| (((value + 2.0) * 1e4) as i32 % span - span / 2) as i8;
        let raw: Vec<i8> = values(geometry.inputs * outputs, seed).iter().map(of).collect();
        let bytes = geometry.panel_bytes(kind);
        let mut packed = vec![0xff; outputs.div_ceil(LANES) * bytes];
        for (panel, target) in packed.chunks_mut(bytes.max(1)).enumerate() {
            let rows = panel * LANES * geometry.inputs..((panel + 1) * LANES).min(outputs) * geometry.inputs;
            pack_tiles(kind, geometry, &raw[rows], target);
        }
        Integers { raw, packed }
    }
}

/// An affine map for each output and block: scale and minimum.
struct Affine {
    blocks: usize,
    minimum: bool,
    maps: Vec<[f32; 2]>,
}

impl Affine {
    /// Creates maps whose numbers are exact in binary16 if `half` is true.
    fn new(outputs: usize, blocks: usize, (minimum, half): (bool, bool), seed: u64) -> Affine {
        let exact = |number: f32| if half { widen_f16(narrow_f16(number)) } else { number };
        let numbers = values(2 * outputs * blocks, seed);
        let pairs = numbers.as_chunks::<2>().0.iter();
        let maps = pairs.map(|[scale, low]| [exact(*scale), if minimum { exact(*low) } else { 0.0 }]);
        Affine { blocks, minimum, maps: maps.collect() }
    }

    fn of(&self, output: usize, block: usize) -> [f32; 2] {
        self.maps[output * self.blocks + block]
    }

    /// Returns the numbers in the order in which kernels read them.
    fn packed(&self) -> Vec<[f32; LANES]> {
        let (outputs, numbers) = (self.maps.len() / self.blocks, if self.minimum { 2 } else { 1 });
        let vector = |at: usize| {
            let (block, which) = (at / numbers % self.blocks, at % numbers);
            std::array::from_fn(|lane| match at / numbers / self.blocks * LANES + lane {
                output if output < outputs => self.of(output, block)[which],
                _ => 0.0,
            })
        };
        (0..outputs.div_ceil(LANES) * self.blocks * numbers).map(vector).collect()
    }
}

/// Quantises by definition. Returns scale and integers of each row, or of each block of `inputs`
/// values.
fn quantised(x: &[f32], inputs: usize) -> Vec<(f32, Vec<i64>)> {
    x.chunks(inputs)
        .map(|row| {
            let largest = row.iter().fold(1e-30f32, |largest, value| largest.max(value.abs()));
            let scale = largest * (1.0 / 127.0);
            (scale, row.iter().map(|value| (value / scale).round_ties_even() as i64).collect())
        })
        .collect()
}

/// Returns the results at every level and thread count.
fn everywhere(
    x: &[f32],
    block: Option<usize>,
    tiles: Tiles<'_>,
    bias: Option<&[f32]>,
    rows: usize,
) -> Vec<(String, Vec<f32>)> {
    let geometry = tiles.rows(block).expect("blocks that suit the weights");
    let mut all = Vec::new();
    // Several rows are always read in the same way.
    let ways = |dot| if rows == 1 { Streams::of(dot) } else { &Streams::ALL[..1] };
    for dot in DotLevel::available() {
        for (threads, streams) in [1, 3].into_iter().flat_map(|n| ways(dot).iter().map(move |s| (n, *s))) {
            let mut out = vec![f32::NAN; rows * tiles.outputs];
            let mut scratch = vec![f32::NAN; scratch_values(geometry, rows, threads).expect("small")];
            let pool = Pool::eager(threads);
            let map = Map { weights: tiles, bias, bounds: None, out: &mut out };
            integer_linear(Level::detect(), dot, streams, &pool, x, block, [Some(map)], rows, &mut scratch);
            // Bounds give the same bits as a clamp afterwards.
            let mut held = vec![f32::NAN; out.len()];
            let map = Map { weights: tiles, bias, bounds: Some([-0.5, 0.75]), out: &mut held };
            integer_linear(Level::detect(), dot, streams, &pool, x, block, [Some(map)], rows, &mut scratch);
            for (held, value) in held.iter().zip(&out) {
                assert_eq!(held.to_bits(), value.clamp(-0.5, 0.75).to_bits(), "{}", dot.name());
            }
            all.push((format!("{} with {threads} threads, {streams:?}", dot.name()), out));
        }
    }
    all
}

fn same(
    x: &[f32],
    block: Option<usize>,
    tiles: Tiles<'_>,
    bias: Option<&[f32]>,
    rows: usize,
    expected: &[f32],
) -> Result<(), TestCaseError> {
    for (how, out) in everywhere(x, block, tiles, bias, rows) {
        prop_assert_eq!(bits(&out), bits(expected), "{:?}, {}", tiles.kind, how);
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, ..ProptestConfig::default() })]
    #[test]
    fn a_scale_per_output_gives_the_bits_of_the_definition(
        rows in 1usize..30, inputs in 1usize..700, outputs in 1usize..150, seed: u64, with_bias: bool,
    ) {
        let x = values(rows * inputs, seed);
        let bias = with_bias.then(|| values(outputs, seed ^ 0xaa));
        let scales: Vec<f32> = values(outputs, seed ^ 7).iter().map(|scale| scale / 100.0).collect();
        for kind in KINDS {
            let integers = Integers::new(kind, Geometry::new(inputs, None), outputs, seed ^ 0x55);
            let mut expected = Vec::new();
            for (scale, q) in quantised(&x, inputs) {
                for (output, existing) in scales.iter().enumerate() {
                    let w = &integers.raw[output * inputs..][..inputs];
                    let sum: i64 = q.iter().zip(w).map(|(q, w)| q * i64::from(*w)).sum();
                    let bias = bias.as_ref().map_or(0.0, |bias| f64::from(bias[output]));
                    expected.push((sum as f64 * (f64::from(scale) * f64::from(*existing)) + bias) as f32);
                }
            }
            let tiles = Tiles { kind, data: &integers.packed, scales: Scales::PerOutput(&scales), inputs, outputs };
            same(&x, None, tiles, bias.as_deref(), rows, &expected)?;
        }
    }

    #[test]
    fn scales_per_block_give_the_bits_of_the_twin_within_the_bound_of_the_definition(
        rows in 1usize..30, inputs in 1usize..700, outputs in 1usize..150, block in 1usize..70, seed: u64, with_bias: bool,
    ) {
        let x = values(rows * inputs, seed);
        let bias = with_bias.then(|| values(outputs, seed ^ 0xaa));
        let geometry = Geometry::new(inputs, Some(block));
        let blocks = geometry.blocks;
        let halves: Vec<u16> = (0..outputs * blocks).map(|i| (i as u64 * 40503 % 0x4800) as u16 | ((i as u16 & 1) << 15)).collect();
        let lying: Vec<[u16; LANES]> = (0..outputs.div_ceil(LANES) * blocks).map(|at| std::array::from_fn(|lane| {
            halves.get((at / blocks * LANES + lane) * blocks + at % blocks).copied().unwrap_or(0)
        })).collect();
        for kind in KINDS {
            let integers = Integers::new(kind, geometry, outputs, seed ^ 0x33);
            let (mut twin, mut definition) = (Vec::new(), Vec::new());
            for (scale, q) in quantised(&x, inputs) {
                for output in 0..outputs {
                    let w = &integers.raw[output * inputs..][..inputs];
                    let (mut near, mut exact, mut size) = (0.0f32, 0.0f64, 0.0f64);
                    for (index, (q, w)) in q.chunks(geometry.block).zip(w.chunks(geometry.block)).enumerate() {
                        let part: i64 = q.iter().zip(w).map(|(q, w)| q * i64::from(*w)).sum();
                        let existing = widen_f16(halves[output * blocks + index]);
                        near = (part as f32).mul_add(existing, near);
                        exact += part as f64 * f64::from(existing);
                        size += (part as f64 * f64::from(existing)).abs();
                    }
                    let added = bias.as_ref().map_or(0.0, |bias| bias[output]);
                    twin.push(if bias.is_some() { near.mul_add(scale, added) } else { near * scale });
                    let exact = exact * f64::from(scale) + f64::from(added);
                    let bound = (blocks + 2) as f64 / f64::from(1 << 24);
                    definition.push((exact, bound * (size * f64::from(scale) + exact.abs()) + 1e-30));
                }
            }
            for (near, (exact, bound)) in twin.iter().zip(&definition) {
                prop_assert!((f64::from(*near) - exact).abs() <= *bound, "{near} for {exact}, at most {bound} apart");
            }
            let scales = Scales::PerBlock { size: block, values: &lying };
            let tiles = Tiles { kind, data: &integers.packed, scales, inputs, outputs };
            same(&x, None, tiles, bias.as_deref(), rows, &twin)?;
        }
    }

    #[test]
    fn affine_blocks_give_the_bits_of_the_twin_within_the_bound_of_the_definition(
        rows in 1usize..30, inputs in 1usize..500, outputs in 1usize..100, block in 1usize..70,
        form in 0usize..4, seed: u64, with_bias: bool,
    ) {
        let x = values(rows * inputs, seed);
        let bias = with_bias.then(|| values(outputs, seed ^ 0xaa));
        let forms = [(0, false, false), (-8, true, false), (-8, true, true), (3, false, true)];
        let (zero, minimum, half) = forms[form];
        // Blocks of rows with a scale require blocks of weights that are multiples of them.
        for (size, of_rows) in [(block, None), (block.next_multiple_of(32), Some(32))] {
            let affine = Affine::new(outputs, inputs.div_ceil(size), (minimum, half), seed ^ 0x77);
            let wide = affine.packed();
            let narrow: Vec<[u16; LANES]> = wide.iter().map(|vector| vector.map(narrow_f16)).collect();
            let maps = if half { Maps::F16(&narrow) } else { Maps::F32(&wide) };
            let step = of_rows.unwrap_or(size);
            for kind in KINDS {
                let integers = Integers::new(kind, Geometry::new(inputs, Some(size)), outputs, seed ^ 0x33);
                let (mut twin, mut definition) = (Vec::new(), Vec::new());
                for row in x.chunks(inputs) {
                    let parts = quantised(row, of_rows.unwrap_or(inputs));
                    let q: Vec<i64> = parts.iter().flat_map(|(_, q)| q.clone()).collect();
                    for output in 0..outputs {
                        let w = &integers.raw[output * inputs..][..inputs];
                        let (mut near, mut exact, mut size_of) = (0.0f32, 0.0f64, 0.0f64);
                        for (index, (q, w)) in q.chunks(step).zip(w.chunks(step)).enumerate() {
                            let of_row = if of_rows.is_some() { parts[index].0 } else { 1.0 };
                            let [scale, low] = affine.of(output, index * step / size);
                            let of = |(q, w): (&i64, &i8)| q * i64::from(i32::from(*w) - zero);
                            let (sum, total) = (q.iter().zip(w).map(of).sum::<i64>(), q.iter().sum::<i64>());
                            near = (sum as f32).mul_add(of_row * scale, near);
                            if minimum {
                                near = (total as f32).mul_add(-(of_row * low), near);
                            }
                            for term in [sum as f64 * f64::from(scale), -(total as f64 * f64::from(low))] {
                                exact += f64::from(of_row) * term;
                                size_of += f64::from(of_row) * term.abs();
                            }
                        }
                        let of_row = if of_rows.is_some() { 1.0 } else { parts[0].0 };
                        let added = bias.as_ref().map(|bias| bias[output]);
                        twin.push(match (of_rows, added) {
                            (None, Some(added)) => near.mul_add(of_row, added),
                            (None, None) => near * of_row,
                            (Some(_), Some(added)) => near + added,
                            (Some(_), None) => near,
                        });
                        let exact = exact * f64::from(of_row) + f64::from(added.unwrap_or(0.0));
                        let bound = (2 * inputs.div_ceil(step) + 3) as f64 / f64::from(1 << 24);
                        definition.push((exact, bound * (size_of * f64::from(of_row) + exact.abs()) + 1e-30));
                    }
                }
                for (near, (exact, bound)) in twin.iter().zip(&definition) {
                    let apart = (f64::from(*near) - exact).abs();
                    prop_assert!(apart <= *bound, "{near} for {exact}, at most {bound} apart");
                }
                let scales = Scales::Affine { size, zero, minimum, values: maps };
                let tiles = Tiles { kind, data: &integers.packed, scales, inputs, outputs };
                same(&x, of_rows, tiles, bias.as_deref(), rows, &twin)?;
            }
        }
    }

    #[test]
    fn scales_per_block_of_rows_give_the_bits_of_the_twin_within_the_bound_of_the_definition(
        rows in 1usize..30, inputs in 1usize..700, outputs in 1usize..150, times in 0usize..4, seed: u64, with_bias: bool,
    ) {
        let mut x = values(rows * inputs, seed);
        // Neighbouring blocks have different magnitudes, so that a neighbour's scale would be far
        // off.
        x.iter_mut().enumerate().for_each(|(at, x)| *x *= [1.0, 40.0, 0.02, 7.0, 0.3][at % inputs / 32 % 5]);
        let bias = with_bias.then(|| values(outputs, seed ^ 0xaa));
        // Weights have a scale per output, or blocks as long as the blocks of the rows or several
        // times as long.
        let size = (times > 0).then_some(32 * times);
        let geometry = Geometry::new(inputs, size);
        let blocks = inputs.div_ceil(size.unwrap_or(inputs));
        let factor = |output: usize, index: usize| {
            let factor = [0.01, 0.4, 0.03][(output + index) % 3] + (output * blocks + index) as f32 * 1e-4;
            if index % 2 == 1 { -factor } else { factor }
        };
        let halves: Vec<[u16; LANES]> = (0..outputs.div_ceil(LANES) * blocks).map(|at| std::array::from_fn(|lane| {
            narrow_f16(factor(at / blocks * LANES + lane, at % blocks))
        })).collect();
        let per_output: Vec<f32> = (0..outputs).map(|output| factor(output, 0)).collect();
        let scale = |output: usize, k: usize| match size {
            Some(size) => widen_f16(halves[output / LANES * blocks + k / size][output % LANES]),
            None => per_output[output],
        };
        for kind in KINDS {
            let integers = Integers::new(kind, geometry, outputs, seed ^ 0x33);
            let (mut twin, mut definition) = (Vec::new(), Vec::new());
            for row in x.chunks(inputs) {
                let parts = quantised(row, 32);
                for output in 0..outputs {
                    let w = &integers.raw[output * inputs..][..inputs];
                    let (mut near, mut exact, mut size_of) = (0.0f32, 0.0f64, 0.0f64);
                    for (index, ((of_row, q), w)) in parts.iter().zip(w.chunks(32)).enumerate() {
                        let sum: i64 = q.iter().zip(w).map(|(q, w)| q * i64::from(*w)).sum();
                        let of_weight = scale(output, index * 32);
                        let both = if size.is_some() { of_row * of_weight } else { *of_row };
                        near = (sum as f32).mul_add(both, near);
                        let term = sum as f64 * f64::from(*of_row) * f64::from(of_weight);
                        exact += term;
                        size_of += term.abs();
                    }
                    let added = bias.as_ref().map(|bias| bias[output]);
                    twin.push(match (size, added) {
                        (None, Some(added)) => near.mul_add(per_output[output], added),
                        (None, None) => near * per_output[output],
                        (Some(_), added) => near + added.unwrap_or(0.0),
                    });
                    let exact = exact + f64::from(added.unwrap_or(0.0));
                    let bound = (parts.len() + 3) as f64 / f64::from(1 << 24);
                    definition.push((exact, bound * (size_of + exact.abs()) + 1e-30));
                }
            }
            for (near, (exact, bound)) in twin.iter().zip(&definition) {
                prop_assert!((f64::from(*near) - exact).abs() <= *bound, "{near} for {exact}, at most {bound} apart");
            }
            let scales = match size {
                Some(size) => Scales::PerBlock { size, values: &halves },
                None => Scales::PerOutput(&per_output),
            };
            let tiles = Tiles { kind, data: &integers.packed, scales, inputs, outputs };
            same(&x, Some(32), tiles, bias.as_deref(), rows, &twin)?;
        }
    }
}

#[test]
fn a_row_alone_equals_the_row_among_many() {
    let (rows, inputs, outputs) = (131, 320, 75);
    let x = values(rows * inputs, 3);
    let scales = values(outputs, 4);
    let blocks = vec![[0x2c01u16; LANES]; outputs.div_ceil(LANES) * 10];
    for kind in KINDS {
        for (per_block, block) in [(false, None), (true, None), (false, Some(32)), (true, Some(32))] {
            let geometry = Geometry::new(inputs, per_block.then_some(32));
            let integers = Integers::new(kind, geometry, outputs, 9);
            let scales = match per_block {
                true => Scales::PerBlock { size: 32, values: &blocks },
                false => Scales::PerOutput(&scales),
            };
            let tiles = Tiles { kind, data: &integers.packed, scales, inputs, outputs };
            let all = everywhere(&x, block, tiles, None, rows);
            for row in [0, 5, 6, 47, 48, 95, 96, 130] {
                for count in [1, 3, 6] {
                    let count = count.min(rows - row);
                    for (some, all) in
                        everywhere(&x[row * inputs..], block, tiles, None, count).iter().zip(&all)
                    {
                        assert_eq!(
                            bits(&some.1),
                            bits(&all.1[row * outputs..(row + count) * outputs]),
                            "{}",
                            some.0
                        );
                    }
                }
            }
        }
    }
}

/// Few rows share tiles, and each level has other tiles.
#[test]
fn every_number_of_rows_gives_each_row_the_bits_it_has_alone() {
    let (most, inputs, outputs) = (MANY_SINGLE + 1, 150, 37);
    let x = values(most * inputs, 21);
    let (scales, bias) = (values(outputs, 22), values(outputs, 23));
    let halves: Vec<[u16; LANES]> = (0..outputs.div_ceil(LANES) * inputs.div_ceil(32))
        .map(|at| std::array::from_fn(|lane| 0x2c01 + ((at * LANES + lane) * 7 % 0x400) as u16))
        .collect();
    let maps = Affine::new(outputs, inputs.div_ceil(32), (true, false), 25).packed();
    let affine = Scales::Affine { size: 32, zero: -8, minimum: true, values: Maps::F32(&maps) };
    for kind in KINDS {
        let ways = [Scales::PerOutput(&scales), Scales::PerBlock { size: 32, values: &halves }, affine];
        for (scales, block) in ways.into_iter().flat_map(|way| [(way, None), (way, Some(32))]) {
            let integers = Integers::new(kind, Geometry::new(inputs, scales.block()), outputs, 24);
            let tiles = Tiles { kind, data: &integers.packed, scales, inputs, outputs };
            let alone: Vec<f32> = (0..most)
                .flat_map(|row| everywhere(&x[row * inputs..], block, tiles, Some(&bias), 1).swap_remove(0).1)
                .collect();
            for rows in 1..=most {
                for (how, out) in everywhere(&x, block, tiles, Some(&bias), rows) {
                    assert_eq!(bits(&out), bits(&alone[..rows * outputs]), "{kind:?}, {rows} rows, {how}");
                }
            }
        }
    }
}

/// The edge cases of products of several rows by several outputs: rows that do not fill pairs and
/// groups, outputs that do not fill a panel, inputs and blocks that do not fill a step.
#[test]
fn many_rows_of_odd_shapes_are_those_of_the_scalar_twin() {
    let outputs = 83;
    for rows in [9, 11, 14, 17, 53] {
        for (inputs, block) in
            [(1, 1), (7, 3), (12, 12), (36, 32), (50, 20), (65, 48), (100, 32), (141, 141), (200, 64)]
        {
            let x = values(rows * inputs, (rows * inputs) as u64);
            let bias = values(outputs, 5);
            let per_output = values(outputs, 6);
            let blocks = inputs.div_ceil(block);
            let halves: Vec<[u16; LANES]> = (0..outputs.div_ceil(LANES) * blocks)
                .map(|at| std::array::from_fn(|lane| 0x2c01 + ((at * LANES + lane) * 7 % 0x400) as u16))
                .collect();
            let maps = Affine::new(outputs, blocks, (true, false), 7).packed();
            let affine = Scales::Affine { size: block, zero: -8, minimum: true, values: Maps::F32(&maps) };
            for kind in KINDS {
                let ways = [
                    Scales::PerOutput(&per_output),
                    Scales::PerBlock { size: block, values: &halves },
                    affine,
                ];
                for (scales, of_rows) in ways.into_iter().flat_map(|way| [(way, None), (way, Some(32))]) {
                    let integers = Integers::new(kind, Geometry::new(inputs, scales.block()), outputs, 9);
                    let tiles = Tiles { kind, data: &integers.packed, scales, inputs, outputs };
                    if tiles.rows(of_rows).is_none() {
                        continue;
                    }
                    let all = everywhere(&x, of_rows, tiles, Some(&bias), rows);
                    // The scalar twin comes first.
                    for (how, out) in &all[1..] {
                        assert_eq!(bits(out), bits(&all[0].1), "{kind:?}, {rows} by {inputs}, {how}");
                    }
                }
            }
        }
    }
}

#[test]
fn the_longest_sums_are_exact() {
    // The largest products of one sign, whose sum exceeds 32 bits.
    for inputs in [pack::LONGEST, 3 * pack::LONGEST + 5] {
        let outputs = 17;
        let geometry = Geometry::new(inputs, None);
        let mut packed = vec![0u8; 2 * geometry.panel_bytes(IntegerType::I8)];
        for (panel, target) in packed.chunks_mut(geometry.panel_bytes(IntegerType::I8)).enumerate() {
            pack_tiles(
                IntegerType::I8,
                geometry,
                &vec![-128i8; if panel == 0 { LANES } else { 1 } * inputs],
                target,
            );
        }
        let mut x = vec![127.0; inputs];
        x[inputs - 1] = 126.0;
        let scales = vec![1.0; outputs];
        let tiles = Tiles {
            kind: IntegerType::I8,
            data: &packed,
            scales: Scales::PerOutput(&scales),
            inputs,
            outputs,
        };
        let row_scale = f64::from(127.0f32 * (1.0 / 127.0));
        let exact = (-128.0 * (127.0 * inputs as f64 - 1.0) * row_scale) as f32;
        same(&x, None, tiles, None, 1, &vec![exact; outputs]).unwrap();
        for rows in [3, MANY, MANY_SINGLE] {
            same(&x.repeat(rows), None, tiles, None, rows, &vec![exact; rows * outputs]).unwrap();
        }
    }
}

#[test]
fn rows_of_zeros_without_inputs_and_of_nans() {
    let scales = [0.5; 3];
    let geometry = Geometry::new(4, None);
    let mut packed = vec![0u8; geometry.panel_bytes(IntegerType::I8)];
    pack_tiles(IntegerType::I8, geometry, &[7; 12], &mut packed);
    let tiles = Tiles {
        kind: IntegerType::I8,
        data: &packed,
        scales: Scales::PerOutput(&scales),
        inputs: 4,
        outputs: 3,
    };
    let bias = [1.0, 2.0, 3.0];
    for (rows, block) in [2, 9, 18].into_iter().flat_map(|rows| [(rows, None), (rows, Some(32))]) {
        let expected = bias.repeat(rows);
        same(&vec![0.0; 4 * rows], block, tiles, Some(&bias), rows, &expected).unwrap();
        let none = Tiles { data: &[], inputs: 0, ..tiles };
        same(&[], block, none, Some(&bias), rows, &expected).unwrap();
        let no_results = Tiles { outputs: 0, ..tiles };
        same(&vec![0.0; 4 * rows], block, no_results, Some(&bias), rows, &[]).unwrap();
        let mut x = vec![1.0; 4 * rows];
        x[5] = f32::NAN;
        for (how, out) in everywhere(&x, block, tiles, None, rows) {
            assert!(out[3..6].iter().all(|value| value.is_nan()), "{how}");
            assert!(out.iter().enumerate().all(|(at, value)| at / 3 == 1 || value.is_finite()), "{how}");
        }
    }
}

#[test]
fn scratch_memory_beyond_any_machine_is_none() {
    assert_eq!(scratch_values(Geometry::new(1 << 20, None), usize::MAX / 4, 1), None);
    assert_eq!(scratch_values(Geometry::new(640, None), 1, 64), Some(160 + 16 + 16));
    let scaled = Geometry::scaled(640, 32, None).expect("whole steps");
    assert_eq!(scratch_values(scaled, 1, 64), Some(160 + 32 + 32), "a sum and a scale per block");
}

#[test]
fn maps_of_the_same_rows_give_what_each_gives_alone() {
    let (inputs, widths) = (96, [40, 16, 7]);
    for (rows, block) in [1, 5, 70].into_iter().flat_map(|rows| [(rows, None), (rows, Some(32))]) {
        let x = values(rows * inputs, 11);
        for kind in KINDS {
            let geometry = Geometry::new(inputs, None);
            // The maps of rows with a scale per block may have different scales of weights.
            let halves = vec![[0x2c01u16; LANES]; inputs / 32];
            let integers = widths.map(|outputs| Integers::new(kind, geometry, outputs, outputs as u64));
            let scales = values(widths[0], 12);
            let bias = values(widths[0], 13);
            let tiles = |at: usize| Tiles {
                kind,
                data: &integers[at].packed,
                scales: match (at, block) {
                    (2, Some(_)) => Scales::PerBlock { size: 32, values: &halves },
                    _ => Scales::PerOutput(&scales),
                },
                inputs,
                outputs: widths[at],
            };
            for dot in DotLevel::available() {
                for threads in [1, 3] {
                    let pool = Pool::eager(threads);
                    let cut = tiles(0).rows(block).expect("blocks that suit");
                    let mut scratch = vec![f32::NAN; scratch_values(cut, rows, threads).expect("small")];
                    let alone = [0, 1, 2].map(|at| {
                        let mut out = vec![f32::NAN; rows * widths[at]];
                        let map = Map {
                            weights: tiles(at),
                            bias: (at == 1).then_some(&bias),
                            bounds: None,
                            out: &mut out,
                        };
                        integer_linear(
                            Level::detect(),
                            dot,
                            Streams::Four,
                            &pool,
                            &x,
                            block,
                            [Some(map)],
                            rows,
                            &mut scratch,
                        );
                        out
                    });
                    let mut outs = widths.map(|outputs| vec![f32::NAN; rows * outputs]);
                    let [a, b, c] = &mut outs;
                    let map = |at, bias, out| Some(Map { weights: tiles(at), bias, bounds: None, out });
                    let maps = [map(0, None, a), map(1, Some(&bias[..]), b), map(2, None, c), None];
                    integer_linear(
                        Level::detect(),
                        dot,
                        Streams::Eight,
                        &pool,
                        &x,
                        block,
                        maps,
                        rows,
                        &mut scratch,
                    );
                    for (alone, together) in alone.iter().zip(&outs) {
                        assert_eq!(bits(alone), bits(together), "{} with {threads} threads", dot.name());
                    }
                }
            }
        }
    }
}

/// Only meaningful without optimisation, as in `cargo xtask kernels`.
#[test]
fn every_kernel_fits_half_of_the_stack() {
    crate::pool::on_half_of_a_stack(|| {
        let (inputs, outputs) = (70_usize, 130_usize);
        let blocks = vec![[0x2c01_u16; LANES]; outputs.div_ceil(LANES) * inputs.div_ceil(32)];
        let scales = values(outputs, 4);
        let maps = Affine::new(outputs, inputs.div_ceil(32), (true, false), 5).packed();
        let affine = Scales::Affine { size: 32, zero: -8, minimum: true, values: Maps::F32(&maps) };
        let ways = [Scales::PerOutput(&scales), Scales::PerBlock { size: 32, values: &blocks }, affine];
        for kind in KINDS {
            for (scales, block) in ways.into_iter().flat_map(|way| [(way, None), (way, Some(32))]) {
                let integers = Integers::new(kind, Geometry::new(inputs, scales.block()), outputs, 9);
                let tiles = Tiles { kind, data: &integers.packed, scales, inputs, outputs };
                for rows in [1, 3, 40] {
                    let all = everywhere(&values(rows * inputs, 3), block, tiles, None, rows);
                    assert!(all.iter().flat_map(|(_, out)| out).all(|value| !value.is_nan()));
                }
            }
        }
    });
}
