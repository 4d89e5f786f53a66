use proptest::prelude::*;
use shardwright_shim_testing::bits;

use super::geometry::LONGEST;
use super::*;
use crate::kernels::linear::Numbers;
use crate::simd::{narrow_f16, widen_f16};

fn values(count: usize, seed: u64) -> Vec<f32> {
    shardwright_shim_testing::values(count, seed, 2.0)
}

const KINDS: [IntegerType; 5] =
    [IntegerType::I8, IntegerType::I6, IntegerType::I5, IntegerType::I4, IntegerType::I2];

/// Types that support a scale per output.
const WHOLE_KINDS: [IntegerType; 3] = [IntegerType::I8, IntegerType::I4, IntegerType::I2];

/// Returns the inputs of a step, of which blocks and rows of this type are a multiple.
fn step_of(kind: IntegerType) -> usize {
    [1, 16, 32].into_iter().find(|step| kind.suits(*step, Some(*step))).expect("whole steps") as usize
}

/// Integers of the whole range of a type, with their packed form.
struct Integers {
    raw: Vec<i8>,
    packed: Vec<u8>,
}

impl Integers {
    fn new(kind: IntegerType, geometry: Geometry, outputs: usize, seed: u64) -> Integers {
        let span = 1 << kind.bits();
        let of = |value: &f32| (((value + 2.0) * 1e4) as i32 % span - span / 2) as i8;
        let raw = values(geometry.inputs * outputs, seed).iter().map(of).collect();
        Integers::of(kind, geometry, outputs, raw)
    }

    fn of(kind: IntegerType, geometry: Geometry, outputs: usize, raw: Vec<i8>) -> Integers {
        let bytes = geometry.panel_bytes(kind);
        let mut packed = vec![0xff; outputs.div_ceil(LANES) * bytes];
        for (panel, target) in packed.chunks_mut(bytes.max(1)).enumerate() {
            let rows = panel * LANES * geometry.inputs..((panel + 1) * LANES).min(outputs) * geometry.inputs;
            pack_tiles(kind, kind.low(), geometry, &raw[rows], target);
        }
        Integers { raw, packed }
    }
}

/// Stored form of scales and minimums of blocks.
#[derive(Clone, Copy, Debug, PartialEq)]
enum NumberForm {
    Half,
    Single,
    Small,
}

const NUMBER_FORMS: [NumberForm; 3] = [NumberForm::Half, NumberForm::Single, NumberForm::Small];

/// Form in which rows and weights are stored.
#[derive(Clone, Copy, Debug)]
struct Form {
    kind: IntegerType,
    /// Stored integer that represents zero. Other than 0 only in blocks.
    zero: i32,
    /// Weights that share numbers, or `None` for a scale per output.
    size: Option<usize>,
    minimum: bool,
    numbers: NumberForm,
    /// Activations that share a scale, or `None` for a scale per row.
    block: Option<usize>,
}

impl Form {
    /// A scale per output and a scale per row.
    const fn plain(kind: IntegerType) -> Form {
        Form { kind, zero: 0, size: None, minimum: false, numbers: NumberForm::Half, block: None }
    }

    /// Returns forms of a type with a scale per output and with blocks of `size`, for rows with one
    /// scale and with several.
    fn all(kind: IntegerType, size: usize, inputs: usize) -> Vec<Form> {
        let plain = Form::plain(kind);
        let half = Form { size: Some(size), ..plain };
        let single = Form { minimum: true, numbers: NumberForm::Single, zero: kind.low(), ..half };
        let small = Form { minimum: true, numbers: NumberForm::Small, ..half };
        let of_rows = |form: Form| [form, Form { block: Some(32), ..form }];
        let all = [plain, half, single, small].into_iter().flat_map(of_rows);
        all.filter(|form| form.suits(inputs)).collect()
    }

    /// Checks whether rows of `inputs` inputs may have this form.
    fn suits(&self, inputs: usize) -> bool {
        let Form { kind, size, block, .. } = *self;
        let suits = kind.suits(inputs as u64, size.map(|size| size as u64));
        suits && Geometry::of(inputs, block, size).is_some()
    }
}

/// Replaces numbers by products of the first number of each group and bytes. Returns them packed,
/// by the description of [`Numbers::Small`].
fn small_numbers(pairs: &mut [[f32; 2]], blocks: usize, kinds: usize, group: usize) -> Vec<[u16; LANES / 2]> {
    let panel = kinds * (2 * blocks.div_ceil(group) + blocks);
    let mut bytes = vec![[0u8; LANES]; pairs.len().div_ceil(LANES * blocks) * panel];
    for (output, pairs) in pairs.chunks_mut(blocks).enumerate() {
        let lane = output % LANES;
        for (index, pairs) in pairs.chunks_mut(group).enumerate() {
            let (start, first) = (output / LANES * panel + index * kinds * (2 + group), pairs[0]);
            for kind in 0..kinds {
                let [low, high] = narrow_f16(first[kind]).to_ne_bytes();
                let factors = bytes[start + 2 * kind..][..2].as_flattened_mut();
                (factors[2 * lane], factors[2 * lane + 1]) = (low, high);
                let at = start + 2 * kinds + kind * pairs.len();
                for (block, pair) in pairs.iter_mut().enumerate() {
                    let byte = ((output * 31 + (index * group + block) * 67 + kind * 101) % 256) as u8;
                    bytes[at + block][lane] = byte;
                    pair[kind] = first[kind] * f32::from(byte as i8);
                }
            }
        }
    }
    let piece = |bytes: &[u8; LANES]| -> [u16; LANES / 2] {
        std::array::from_fn(|at| u16::from_ne_bytes([bytes[2 * at], bytes[2 * at + 1]]))
    };
    bytes.iter().map(piece).collect()
}

/// A linear map with its operands.
struct Case {
    form: Form,
    rows: usize,
    inputs: usize,
    outputs: usize,
    x: Vec<f32>,
    integers: Integers,
    /// A scale per output.
    scales: Vec<f32>,
    /// Scale and minimum of each output and block.
    pairs: Vec<[f32; 2]>,
    /// The numbers of blocks in the order in which kernels read them.
    singles: Vec<[f32; LANES]>,
    halves: Vec<[u16; LANES]>,
    pieces: Vec<[u16; LANES / 2]>,
    /// Blocks that share a factor.
    group: usize,
    bias: Option<Vec<f32>>,
}

impl Case {
    fn new(form: Form, [rows, inputs, outputs]: [usize; 3], with_bias: bool, seed: u64) -> Case {
        let mut x = values(rows * inputs, seed);
        // Neighbouring blocks have different magnitudes, so that a neighbour's scale would be far
        // off.
        let magnitude = |at: usize| [1.0, 40.0, 0.02, 7.0, 0.3][at % inputs / 16 % 5];
        x.iter_mut().enumerate().for_each(|(at, x)| *x *= magnitude(at));
        let geometry = Geometry::of(inputs, None, form.size).expect("short blocks");
        let blocks = inputs.div_ceil(form.size.unwrap_or(inputs));
        let exact = |number: &f32| match form.numbers {
            NumberForm::Single => *number,
            NumberForm::Half | NumberForm::Small => widen_f16(narrow_f16(*number)),
        };
        let numbers: Vec<f32> = values(2 * outputs * blocks, seed ^ 0x77).iter().map(exact).collect();
        let mut pairs = numbers.as_chunks::<2>().0.to_vec();
        // Zeros keep their sign.
        pairs.iter_mut().skip(3).step_by(7).for_each(|pair| pair[0] = -0.0);
        let each = if form.minimum { 2 } else { 1 };
        let group = [1, 3, 8, 16][seed as usize % 4];
        let pieces = match form.numbers {
            NumberForm::Small => small_numbers(&mut pairs, blocks, each, group),
            NumberForm::Half | NumberForm::Single => Vec::new(),
        };
        let vector = |at: usize| -> [f32; LANES] {
            let (panel, block, which) = (at / each / blocks, at / each % blocks, at % each);
            let pair = |lane: usize| pairs.get((panel * LANES + lane) * blocks + block);
            std::array::from_fn(|lane| pair(lane).map_or(0.0, |pair| pair[which]))
        };
        let singles: Vec<_> = (0..outputs.div_ceil(LANES) * blocks * each).map(vector).collect();
        Case {
            form,
            rows,
            inputs,
            outputs,
            integers: Integers::new(form.kind, geometry, outputs, seed ^ 0x55),
            scales: values(outputs, seed ^ 7).iter().map(|scale| scale / 100.0).collect(),
            halves: singles.iter().map(|vector| vector.map(narrow_f16)).collect(),
            pieces,
            group,
            bias: with_bias.then(|| values(outputs, seed ^ 0xaa)),
            x,
            pairs,
            singles,
        }
    }

    fn tiles(&self) -> Tiles<'_> {
        let Form { kind, zero, size, minimum, numbers, .. } = self.form;
        let numbers = match numbers {
            NumberForm::Half => Numbers::F16(&self.halves),
            NumberForm::Single => Numbers::F32(&self.singles),
            NumberForm::Small => Numbers::Small { pieces: &self.pieces, group: self.group },
        };
        let scales = match size {
            Some(size) => Scales::Blocks { size, minimum, numbers },
            None => Scales::PerOutput(&self.scales),
        };
        let (inputs, outputs) = (self.inputs, self.outputs);
        Tiles { kind, base: kind.low() - zero, data: &self.integers.packed, scales, inputs, outputs }
    }

    fn map<'a>(&'a self, out: &'a mut [f32]) -> Option<Map<'a>> {
        Some(Map { weights: self.tiles(), bias: self.bias.as_deref(), bounds: None, out })
    }

    /// Computes one result with plain loops, in the order that the first lines of the module
    /// define. Returns it with the exact result and a bound of their difference.
    fn result(&self, row_scales: &[f32], q: &[i64], output: usize) -> (f32, f64, f64) {
        let Form { zero, size, minimum, block, .. } = self.form;
        let inputs = self.inputs;
        let unit = [size, block].into_iter().flatten().min().unwrap_or(inputs);
        let w = &self.integers.raw[output * inputs..][..inputs];
        let (mut upper, mut lower, mut whole) = (0.0f32, 0.0f32, 0i64);
        let (mut exact, mut magnitude) = (0.0f64, 0.0f64);
        for (index, (q, w)) in q.chunks(unit).zip(w.chunks(unit)).enumerate() {
            let sum: i64 = q.iter().zip(w).map(|(q, w)| q * (i64::from(*w) - i64::from(zero))).sum();
            let total: i64 = q.iter().sum();
            let of_row = block.map(|block| row_scales[index * unit / block]);
            let of_block = size.map(|size| self.pairs[output * inputs.div_ceil(size) + index * unit / size]);
            let factor = match (of_row, of_block) {
                (Some(row), Some([scale, _])) => row * scale,
                (Some(factor), None) | (None, Some([factor, _])) => factor,
                (None, None) => 0.0,
            };
            upper = (sum as f32).mul_add(factor, upper);
            let [scale, low] = of_block.unwrap_or([self.scales[output], 0.0]);
            let low = if minimum { low } else { 0.0 };
            if minimum {
                lower = of_row.map_or(total as f32, |row| row * total as f32).mul_add(low, lower);
            }
            whole += sum;
            let of_row = f64::from(of_row.unwrap_or(row_scales[0]));
            for term in [sum as f64 * f64::from(scale), -(total as f64 * f64::from(low))] {
                exact += of_row * term;
                magnitude += (of_row * term).abs();
            }
        }
        let bias = self.bias.as_ref().map(|bias| bias[output]);
        let near = match (block, size) {
            (None, None) => {
                let scale = f64::from(row_scales[0]) * f64::from(self.scales[output]);
                (whole as f64 * scale + f64::from(bias.unwrap_or(0.0))) as f32
            }
            _ => {
                let sum = if minimum { upper - lower } else { upper };
                let factor = match (block, size) {
                    (None, _) => Some(row_scales[0]),
                    (Some(_), None) => Some(self.scales[output]),
                    (Some(_), Some(_)) => None,
                };
                match (factor, bias) {
                    (Some(factor), Some(bias)) => sum.mul_add(factor, bias),
                    (Some(factor), None) => sum * factor,
                    (None, Some(bias)) => sum + bias,
                    (None, None) => sum,
                }
            }
        };
        let exact = exact + f64::from(bias.unwrap_or(0.0));
        let bound = (inputs.div_ceil(unit) + 4) as f64 / f64::from(1 << 24);
        (near, exact, bound * (magnitude + exact.abs()) + 1e-30)
    }

    /// Computes all results with plain loops.
    fn twin(&self) -> Vec<f32> {
        let mut results = Vec::new();
        for x in self.x.chunks_exact(self.inputs) {
            let parts = quantised(x, self.form.block.unwrap_or(self.inputs));
            let scales: Vec<f32> = parts.iter().map(|(scale, _)| *scale).collect();
            let q: Vec<i64> = parts.into_iter().flat_map(|(_, q)| q).collect();
            for output in 0..self.outputs {
                let (near, exact, bound) = self.result(&scales, &q, output);
                let apart = (f64::from(near) - exact).abs();
                assert!(apart <= bound, "{near} for {exact}, at most {bound} apart, {:?}", self.form);
                results.push(near);
            }
        }
        results
    }

    /// Returns the results of the first rows from `row` on, at every level and thread count.
    fn everywhere(&self, row: usize, rows: usize) -> Vec<(String, Vec<f32>)> {
        let x = &self.x[row * self.inputs..];
        everywhere(x, self.form.block, self.tiles(), self.bias.as_deref(), rows)
    }

    /// Checks that every level and thread count gives the bits of the twin.
    fn check(&self) {
        let twin = bits(&self.twin());
        for (how, out) in self.everywhere(0, self.rows) {
            let shape = [self.rows, self.inputs, self.outputs];
            assert!(bits(&out) == twin, "{:?}, {shape:?}, {how}", self.form);
        }
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
    for dot in DotLevel::every() {
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
) {
    for (how, out) in everywhere(x, block, tiles, bias, rows) {
        assert_eq!(bits(&out), bits(expected), "{:?}, {how}", tiles.kind);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 120, ..ProptestConfig::default() })]
    #[test]
    fn results_are_those_of_the_twin_within_the_bound_of_the_definition(
        rows in 1usize..30, inputs in 1usize..700, outputs in 1usize..150,
        kind in prop::sample::select(KINDS.to_vec()), numbers in prop::sample::select(NUMBER_FORMS.to_vec()),
        size in 0usize..70, place in 0i32..3, flags in prop::array::uniform3(any::<bool>()), seed: u64,
    ) {
        let [minimum, in_blocks, with_bias] = flags;
        let step = step_of(kind);
        let inputs = inputs.next_multiple_of(step);
        // A fifth has a scale per output. Blocks of rows require blocks of weights that suit them.
        let size = (size % 5 > 0 || step > 1).then_some(size.max(1).next_multiple_of(step));
        let size = size.map(|size| match in_blocks {
            true if size <= 24 => 16,
            true => size.next_multiple_of(32),
            false => size,
        });
        // The least stored integer, zero, and the largest.
        let least = -(1 << (kind.bits() - 1));
        let zero = if size.is_some() { [least, 0, -least - 1][place as usize] } else { 0 };
        let (minimum, block) = (minimum && size.is_some(), in_blocks.then_some(32));
        let form = Form { kind, zero, size, minimum, numbers, block };
        Case::new(form, [rows, inputs, outputs], with_bias, seed).check();
    }
}

/// Each form is multiplied with a few numbers of rows, which have different tiles at each level.
#[test]
fn every_form_gives_the_bits_of_the_twin() {
    let counts = [1, 2, 3, 5, 8, 17, 48, 97];
    let mut next = 0;
    for (kind, size) in KINDS.into_iter().flat_map(|kind| [16, 32, 64].map(|size| (kind, size))) {
        let plain = Form { size: Some(size), ..Form::plain(kind) };
        // The last block is shorter if the type supports it.
        let Some(inputs) = [101, 96].into_iter().find(|inputs| plain.suits(*inputs)) else { continue };
        for (numbers, minimum) in NUMBER_FORMS.into_iter().flat_map(|form| [(form, false), (form, true)]) {
            for block in [None, Some(32)] {
                let form = Form { zero: next % 3 - 1, minimum, numbers, block, ..plain };
                for _ in 0..3 {
                    let rows = counts[next as usize % counts.len()];
                    Case::new(form, [rows, inputs, 37], next % 2 == 0, next as u64).check();
                    next += 1;
                }
            }
        }
    }
}

/// Weights are stored in several types, and their numbers in several forms.
#[test]
fn repacking_changes_no_bit() {
    let outputs = 5 * LANES + 3;
    for (kind, size, inputs) in
        [(IntegerType::I6, 16, 304), (IntegerType::I5, 32, 288), (IntegerType::I4, 32, 300)]
    {
        for (minimum, block) in [(false, None), (true, None), (false, Some(32)), (true, Some(32))] {
            let plain = Form { size: Some(size), minimum, block, ..Form::plain(kind) };
            let form = Form { zero: -3, numbers: NumberForm::Small, ..plain };
            let case = Case::new(form, [20, inputs, outputs], true, 2 + size as u64);
            let geometry = Geometry::of(inputs, None, Some(size)).expect("short blocks");
            let wide = Integers::of(IntegerType::I8, geometry, outputs, case.integers.raw.clone());
            let scales = Scales::Blocks { size, minimum, numbers: Numbers::F32(&case.singles) };
            let tiles = Tiles { kind: IntegerType::I8, base: 3, data: &wide.packed, scales, ..case.tiles() };
            for rows in [1, 5, 20] {
                let wide = everywhere(&case.x, block, tiles, case.bias.as_deref(), rows);
                for ((how, wide), (_, narrow)) in wide.iter().zip(case.everywhere(0, rows)) {
                    assert!(bits(wide) == bits(&narrow), "{form:?}, {rows} rows, {how}");
                }
            }
        }
    }
}

/// Sums in sixteen bits must not overflow.
#[test]
fn the_largest_products_of_each_type_are_exact() {
    let (inputs, outputs) = (64, 20);
    for form in KINDS.into_iter().flat_map(|kind| Form::all(kind, 32, inputs)) {
        let most = (1 << (form.kind.bits() - 1)) - 1;
        let geometry = Geometry::of(inputs, None, form.size).expect("short blocks");
        for (weight, x) in [(most, 3.0), (most, -3.0), (-most - 1, 3.0), (-most - 1, -3.0)] {
            for rows in [1, 5, 18] {
                let mut case = Case::new(form, [rows, inputs, outputs], false, 1);
                let raw = vec![weight as i8; inputs * outputs];
                case.integers = Integers::of(form.kind, geometry, outputs, raw);
                case.x.fill(x);
                case.check();
            }
        }
    }
}

/// A row's largest number of streams is read only if there are as many panels.
#[test]
fn a_row_by_many_panels_gives_the_bits_of_the_twin() {
    for (kind, size, inputs) in [
        (IntegerType::I8, 16, 208),
        (IntegerType::I6, 16, 272),
        (IntegerType::I5, 32, 320),
        (IntegerType::I4, 32, 208),
        (IntegerType::I2, 64, 208),
    ] {
        for form in Form::all(kind, size, inputs) {
            Case::new(form, [1, inputs, 16 * LANES + 5], true, 17).check();
        }
    }
}

#[test]
fn a_row_alone_equals_the_row_among_many() {
    let (rows, inputs, outputs) = (131, 160, 75);
    for form in KINDS.into_iter().flat_map(|kind| Form::all(kind, 32, inputs)) {
        let case = Case::new(form, [rows, inputs, outputs], false, 3);
        let all = case.everywhere(0, rows);
        for (row, count) in [(0, 1), (5, 6), (6, 3), (47, 1), (48, 6), (95, 3), (95, 1), (96, 3), (130, 1)] {
            let part = row * outputs..(row + count) * outputs;
            for (some, all) in case.everywhere(row, count).iter().zip(&all) {
                assert_eq!(bits(&some.1), bits(&all.1[part.clone()]), "{form:?}, {}", some.0);
            }
        }
    }
}

/// Few rows share tiles, and each level has other tiles.
#[test]
fn every_number_of_rows_gives_each_row_the_bits_it_has_alone() {
    let (most, outputs) = (MANY_SINGLE + 1, 37);
    for (kind, size, inputs) in [
        (IntegerType::I8, 16, 150),
        (IntegerType::I6, 16, 144),
        (IntegerType::I5, 32, 160),
        (IntegerType::I4, 32, 150),
        (IntegerType::I2, 32, 150),
    ] {
        for form in Form::all(kind, size, inputs) {
            let case = Case::new(form, [most, inputs, outputs], true, 21);
            let alone = bits(&case.twin());
            // Blocks with and without minimums have the same tiles.
            let is_tested = |rows: &usize| form.size.is_none() || rows.is_multiple_of(2) == form.minimum;
            for rows in (1..=most).filter(is_tested) {
                for (how, out) in case.everywhere(0, rows) {
                    assert!(bits(&out) == alone[..rows * outputs], "{form:?}, {rows} rows, {how}");
                }
            }
        }
    }
}

/// The edge cases of products of several rows by several outputs: rows that do not fill pairs and
/// groups, outputs that do not fill a panel, inputs and blocks that do not fill a step.
#[test]
fn many_rows_of_odd_shapes_are_those_of_the_twin() {
    let (outputs, mut next) = (83, 0);
    let shapes = [(1, 1), (7, 3), (12, 12), (36, 32), (40, 16), (50, 20), (65, 48), (100, 32), (141, 141)];
    for (inputs, size) in shapes.into_iter().chain([(200, 64), (48, 16), (96, 32), (192, 64)]) {
        for form in KINDS.into_iter().flat_map(|kind| Form::all(kind, size, inputs)) {
            for _ in 0..3 {
                let rows = [9, 11, 14, 17, 53][next % 5];
                Case::new(form, [rows, inputs, outputs], true, (rows * inputs) as u64).check();
                next += 1;
            }
        }
    }
}

/// Rounding would show if units were added in another order, or if minimums were added to the
/// values of scales.
#[test]
fn the_order_of_units_and_of_minimums_is_the_defined_one() {
    // Rows of the largest value, so that every sum of a unit is its scale times a power of two.
    let inputs = 4 * 32;
    let x = vec![127.0f32; inputs];
    let scales = [1.0f32, 1e8, -1e8, 3.0];
    let minimums = [1e8f32, 2.0, -1e8, 5.0];
    let geometry = Geometry::of(inputs, None, Some(32)).expect("short blocks");
    let mut packed = vec![0; geometry.panel_bytes(IntegerType::I8)];
    let mut rows = vec![0i8; LANES * inputs];
    rows.iter_mut().step_by(32).for_each(|w| *w = 1);
    pack_tiles(IntegerType::I8, 0, geometry, &rows, &mut packed);
    let numbers: Vec<[f32; LANES]> =
        scales.iter().zip(&minimums).flat_map(|(scale, low)| [[*scale; LANES], [*low; LANES]]).collect();
    let scale = 127.0f32 * (1.0 / 127.0);
    for (minimum, block) in [(false, None), (true, None), (false, Some(32)), (true, Some(32))] {
        let numbers: Vec<[f32; LANES]> = match minimum {
            true => numbers.clone(),
            false => numbers.iter().step_by(2).copied().collect(),
        };
        let scales_of = Scales::Blocks { size: 32, minimum, numbers: Numbers::F32(&numbers) };
        let (kind, outputs) = (IntegerType::I8, LANES);
        let tiles = Tiles { kind, base: 0, data: &packed, scales: scales_of, inputs, outputs };
        let of_row = if block.is_some() { scale } else { 1.0 };
        let upper = scales.iter().fold(0.0f32, |sum, scale| 127.0f32.mul_add(of_row * scale, sum));
        let total = of_row * (127.0 * 32.0);
        let lower = minimums.iter().fold(0.0f32, |sum, low| total.mul_add(*low, sum));
        let sum = if minimum { upper - lower } else { upper };
        let expected = if block.is_some() { sum } else { sum * scale };
        for rows in [1, 2, 18] {
            same(&x.repeat(rows), block, tiles, None, rows, &vec![expected; rows * LANES]);
        }
    }
}

#[test]
fn the_longest_sums_are_exact() {
    // The largest products of one sign, whose sum exceeds 32 bits.
    for inputs in [LONGEST, 3 * LONGEST + 5] {
        let outputs = 17;
        let geometry = Geometry::of(inputs, None, None).expect("no blocks");
        let mut packed = vec![0u8; 2 * geometry.panel_bytes(IntegerType::I8)];
        for (panel, target) in packed.chunks_mut(geometry.panel_bytes(IntegerType::I8)).enumerate() {
            let rows = vec![-128i8; if panel == 0 { LANES } else { 1 } * inputs];
            pack_tiles(IntegerType::I8, 0, geometry, &rows, target);
        }
        let mut x = vec![127.0; inputs];
        x[inputs - 1] = 126.0;
        let scales = vec![1.0; outputs];
        let tiles = Tiles {
            kind: IntegerType::I8,
            base: 0,
            data: &packed,
            scales: Scales::PerOutput(&scales),
            inputs,
            outputs,
        };
        let row_scale = f64::from(127.0f32 * (1.0 / 127.0));
        let exact = (-128.0 * (127.0 * inputs as f64 - 1.0) * row_scale) as f32;
        same(&x, None, tiles, None, 1, &vec![exact; outputs]);
        for rows in [3, MANY, MANY_SINGLE] {
            same(&x.repeat(rows), None, tiles, None, rows, &vec![exact; rows * outputs]);
        }
    }
}

#[test]
fn rows_of_zeros_without_inputs_and_of_nans() {
    let scales = [0.5; 3];
    let geometry = Geometry::of(4, None, None).expect("no blocks");
    let mut packed = vec![0u8; geometry.panel_bytes(IntegerType::I8)];
    pack_tiles(IntegerType::I8, 0, geometry, &[7; 12], &mut packed);
    let tiles = Tiles {
        kind: IntegerType::I8,
        base: 0,
        data: &packed,
        scales: Scales::PerOutput(&scales),
        inputs: 4,
        outputs: 3,
    };
    let bias = [1.0, 2.0, 3.0];
    for (rows, block) in [2, 9, 18].into_iter().flat_map(|rows| [(rows, None), (rows, Some(32))]) {
        let expected = bias.repeat(rows);
        same(&vec![0.0; 4 * rows], block, tiles, Some(&bias), rows, &expected);
        let none = Tiles { data: &[], inputs: 0, ..tiles };
        same(&[], block, none, Some(&bias), rows, &expected);
        let minimum = Scales::Blocks { size: 32, minimum: true, numbers: Numbers::F16(&[]) };
        same(&[], block, Tiles { scales: minimum, ..none }, Some(&bias), rows, &expected);
        let no_results = Tiles { outputs: 0, ..tiles };
        same(&vec![0.0; 4 * rows], block, no_results, Some(&bias), rows, &[]);
    }
}

#[test]
fn a_value_that_is_not_finite_makes_its_row_nan() {
    let (rows, inputs, outputs) = (18, 48, 19);
    for form in KINDS.into_iter().flat_map(|kind| Form::all(kind, 16, inputs)) {
        let mut case = Case::new(form, [rows, inputs, outputs], true, 5);
        let twin = case.twin();
        case.x[inputs + 40] = f32::NAN;
        case.x[3 * inputs] = f32::INFINITY;
        for (how, out) in [1, 5, rows].into_iter().flat_map(|rows| case.everywhere(0, rows)) {
            for (row, (out, twin)) in out.chunks(outputs).zip(twin.chunks(outputs)).enumerate() {
                let right = match row {
                    1 | 3 => out.iter().all(|value| value.is_nan()),
                    _ => bits(out) == bits(twin),
                };
                assert!(right, "row {row}, {form:?}, {how}");
            }
        }
    }
}

#[test]
fn scratch_memory_beyond_any_machine_is_none() {
    let of = |inputs, block| Geometry::of(inputs, block, None).expect("whole steps");
    assert_eq!(scratch_values(of(1 << 20, None), usize::MAX / 4, 1), None);
    assert_eq!(scratch_values(of(640, None), 1, 64), Some(160 + 16 + 16 + 16));
    let parts = 160 + 32 + 32 + 32;
    assert_eq!(scratch_values(of(640, Some(32)), 1, 64), Some(parts), "sums, scales and totals of units");
}

/// Maps may differ in the type of their weights and in their numbers.
#[test]
fn maps_of_the_same_rows_give_what_each_gives_alone() {
    let (inputs, widths) = (96, [40, 16, 7]);
    let kinds = [[0, 0, 0], [1, 1, 1], [2, 2, 2], [0, 1, 2], [2, 0, 1]];
    let kinds = kinds.map(|of| of.map(|at| WHOLE_KINDS[at]));
    for (kinds, block) in kinds.into_iter().flat_map(|kinds| [(kinds, None), (kinds, Some(32))]) {
        let case = |at: usize, rows: usize| {
            let plain = Form { block, ..Form::plain(kinds[at]) };
            let in_blocks = Form { size: Some(32), minimum: true, ..plain };
            // Only the maps of rows with a scale per block may have blocks and none.
            let form = match (at, block, kinds[at]) {
                (2, Some(_), IntegerType::I4) => {
                    Form { kind: IntegerType::I5, numbers: NumberForm::Small, ..in_blocks }
                }
                (2, Some(_), _) => Form { numbers: NumberForm::Single, ..in_blocks },
                _ => plain,
            };
            Case::new(form, [rows, inputs, widths[at]], at == 1, 11)
        };
        for rows in [1, 5, 70] {
            let cases = [0, 1, 2].map(|at| case(at, rows));
            let alone = cases.each_ref().map(|case| bits(&case.twin()));
            for (dot, threads) in DotLevel::every().into_iter().flat_map(|dot| [(dot, 1), (dot, 3)]) {
                let pool = Pool::eager(threads);
                let cut = cases[0].tiles().rows(block).expect("blocks that suit");
                let mut scratch = vec![f32::NAN; scratch_values(cut, rows, threads).expect("small")];
                let mut outs = widths.map(|outputs| vec![f32::NAN; rows * outputs]);
                let [a, b, c] = &mut outs;
                let maps = [cases[0].map(a), cases[1].map(b), cases[2].map(c), None];
                let (level, x) = (Level::detect(), &cases[0].x);
                integer_linear(level, dot, Streams::Eight, &pool, x, block, maps, rows, &mut scratch);
                for (alone, together) in alone.iter().zip(&outs) {
                    let same = *alone == bits(together);
                    assert!(same, "{kinds:?}, {rows} rows, {} with {threads} threads", dot.name());
                }
            }
        }
    }
}

/// Only meaningful without optimisation, as in `cargo xtask kernels`.
#[test]
fn every_kernel_fits_half_of_the_stack() {
    crate::pool::on_half_of_a_stack(|| {
        let inputs = 96;
        for form in KINDS.into_iter().flat_map(|kind| Form::all(kind, 32, inputs)) {
            let case = Case::new(form, [40, inputs, 130], false, 3);
            for rows in [1, 3, 40] {
                let all = case.everywhere(0, rows);
                assert!(all.iter().flat_map(|(_, out)| out).all(|value| !value.is_nan()));
            }
        }
    });
}
