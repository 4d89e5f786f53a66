use fastrand::Rng;
use proptest::prelude::*;
use shardwright_shim_testing::bits;

use super::search::{key, value_of};
use super::*;
use crate::simd::Scalar;

struct Packed {
    raw: Vec<i8>,
    high: Vec<u8>,
    low: Vec<u8>,
    spread: Vec<u8>,
    scales: Vec<f32>,
    inputs: usize,
    outputs: usize,
}

impl Packed {
    fn new(raw: Vec<i8>, scales: Vec<f32>, inputs: usize) -> Packed {
        let outputs = scales.len();
        let bytes = panel_bytes(inputs);
        let mut high = vec![0xff; outputs.div_ceil(LANES) * bytes];
        for (panel, rows) in high.chunks_mut(bytes).zip(raw.chunks(LANES * inputs)) {
            pack_high(rows, inputs, panel);
        }
        let mut low = vec![0xff; outputs * row_bytes(inputs)];
        let rows = raw.chunks(inputs).zip(low.chunks_mut(row_bytes(inputs)));
        let spread = rows.map(|(row, low)| pack_low(row, low)).collect();
        Packed { raw, high, low, spread, scales, inputs, outputs }
    }

    fn split(&self) -> Split<'_> {
        Split {
            high: &self.high,
            low: &self.low,
            spread: &self.spread,
            scales: &self.scales,
            inputs: self.inputs,
            outputs: self.outputs,
        }
    }

    /// Computes all results by definition.
    fn results(&self, x: &[f32], cap: Option<f32>) -> Vec<f32> {
        let largest = x.iter().fold(1e-30f32, |largest, value| largest.max(value.abs()));
        let scale = largest * (1.0 / 127.0);
        let q: Vec<i64> = x.iter().map(|value| (value / scale).round_ties_even() as i64).collect();
        let result = |(row, existing): (&[i8], &f32)| {
            let sum: i64 = q.iter().zip(row).map(|(q, w)| q * i64::from(*w)).sum();
            let result = (sum as f64 * (f64::from(scale) * f64::from(*existing)) + 0.0) as f32;
            cap.map_or(result, |cap| softcap(Scalar, [result; LANES], cap)[0])
        };
        self.raw.chunks(self.inputs).zip(&self.scales).map(result).collect()
    }

    /// Runs [`split_linear`] on all rows of `x`, in every way.
    fn run(&self, dot: DotLevel, threads: usize, x: &[f32], cap: Option<f32>, largest: usize) -> Vec<f32> {
        let (pool, rows) = (Pool::eager(threads), x.len() / self.inputs);
        let mut scratch = vec![f32::NAN; scratch_values(self.inputs, rows, threads).expect("small")];
        let largest = NonZeroUsize::new(largest);
        let mut run = |streams, head| {
            let mut out = vec![f32::NAN; rows * self.outputs];
            let (level, split) = (Level::detect(), self.split());
            let (room, to) = (&mut scratch, &mut out);
            split_linear(level, dot, streams, head, &pool, x, split, cap, largest, rows, room, to);
            out
        };
        let out = run(Streams::One, Head::Bounds);
        // Without a request for the largest results, there is only one way to find them.
        let heads = if largest.is_some() { &Head::ALL[..] } else { &Head::ALL[..1] };
        for head in heads {
            for streams in Streams::of(dot) {
                let same = bits(&run(*streams, *head)) == bits(&out);
                assert!(same, "head {head}, {streams} streams of {}", dot.name());
            }
        }
        out
    }
}

/// Returns the results that remain if only the `wanted` largest are kept.
fn largest_of(results: &[f32], wanted: usize) -> Vec<f32> {
    let mut order: Vec<usize> = (0..results.len()).collect();
    order.sort_by(|a, b| results[*b].partial_cmp(&results[*a]).expect("numbers").then(a.cmp(b)));
    let mut left = vec![f32::MIN; results.len()];
    order[..wanted].iter().for_each(|index| left[*index] = results[*index]);
    left
}

/// Returns a roughly normal value within −1 and 1.
fn value(random: &mut Rng) -> f32 {
    (0..4).map(|_| random.f32() * 2.0 - 1.0).sum::<f32>() / 4.0
}

/// Creates weights of several kinds: roughly normal, of the whole range, few different rows, all
/// rows equal.
fn packed(kind: u8, inputs: usize, outputs: usize, seed: u64) -> Packed {
    let mut random = Rng::with_seed(seed);
    let mut raw: Vec<i8> = (0..inputs * outputs)
        .map(|_| match kind {
            0 => (value(&mut random) * 127.0) as i8,
            1 => random.i8(..),
            _ => random.i8(-1..=1),
        })
        .collect();
    if kind >= 2 {
        // Some results are equal, and the same row appears at a distance.
        for output in 3..outputs {
            raw.copy_within((output % 3) * inputs..(output % 3 + 1) * inputs, output * inputs);
        }
    }
    let scales = (0..outputs)
        .map(|_| match kind {
            0 => 0.01 + value(&mut random).abs() / 1000.0,
            1 => value(&mut random) / 100.0,
            2 => 0.5,
            _ => 0.0,
        })
        .collect();
    Packed::new(raw, scales, inputs)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]
    #[test]
    fn results_are_the_definitions_and_the_largest_are_found(
        kind in 0u8..4, steps in 1usize..8, outputs in 1usize..2500,
        wanted in prop::sample::select(vec![1usize, 2, 7, 40, 64, MOST]), tiny: bool, seed: u64,
        // With the last caps, all results are nearly equal and many are equal.
        cap in prop::sample::select(vec![None, Some(30.0f32), Some(1.0), Some(0.01), Some(1e-30), Some(f32::MAX)]),
    ) {
        let inputs = steps * STEP;
        let mut packed = packed(kind, inputs, outputs, seed);
        let mut random = Rng::with_seed(seed ^ 77);
        let mut x: Vec<f32> = (0..inputs).map(|_| value(&mut random)).collect();
        if tiny {
            // The products of scales are near the lower end of f32.
            packed.scales.iter_mut().for_each(|scale| *scale *= 1e-11);
            x.iter_mut().for_each(|x| *x *= 1e-31);
        }
        let expected = packed.results(&x, cap);
        for dot in DotLevel::available() {
            for threads in [1, 3] {
                let all = packed.run(dot, threads, &x, cap, 0);
                prop_assert_eq!(bits(&all), bits(&expected), "{} with {} threads", dot.name(), threads);
                let some = packed.run(dot, threads, &x, cap, wanted);
                let left = if wanted < outputs { largest_of(&expected, wanted) } else { expected.clone() };
                prop_assert_eq!(bits(&some), bits(&left), "{} of {}, {}", wanted, outputs, dot.name());
            }
        }
    }
}

/// Few rows share tiles, and each level has other tiles. More than [`ROWS`] rows are processed in
/// groups.
#[test]
fn every_number_of_rows_gives_each_row_the_bits_it_has_alone() {
    let (most, inputs, outputs) = (ROWS + 2, STEP, 1100);
    let packed = packed(0, inputs, outputs, 31);
    let mut random = Rng::with_seed(32);
    let mut x: Vec<f32> = (0..most * inputs).map(|_| value(&mut random)).collect();
    x[5 * inputs..6 * inputs].fill(0.0);
    for cap in [None, Some(0.5)] {
        for wanted in [0, 1, 7] {
            let alone: Vec<f32> = x
                .chunks(inputs)
                .flat_map(|x| match (packed.results(x, cap), wanted) {
                    (all, 0) => all,
                    (all, wanted) => largest_of(&all, wanted),
                })
                .collect();
            for dot in DotLevel::available() {
                for (threads, rows) in [1, 3].into_iter().flat_map(|n| (1..=most).map(move |rows| (n, rows)))
                {
                    let out = packed.run(dot, threads, &x[..rows * inputs], cap, wanted);
                    let same = bits(&out) == bits(&alone[..rows * outputs]);
                    assert!(same, "{wanted} of {rows} rows, {threads} threads, {}", dot.name());
                }
            }
        }
    }
}

/// The bound must be valid in the worst case, with second parts aligned with the row.
#[test]
fn rows_whose_second_halves_decide_are_found() {
    let inputs = 3 * STEP;
    let mut random = Rng::with_seed(5);
    let x: Vec<f32> = (0..inputs).map(|_| value(&mut random)).collect();
    let mut raw = Vec::new();
    for output in 0..1500 {
        // All first parts are equal, and only one row has the largest possible second parts.
        raw.extend(x.iter().map(|x| match (output == 1234, *x > 0.0) {
            (true, true) => 47,
            (true, false) => 40,
            _ => 43 + random.i8(-1..=1),
        }));
    }
    let packed = Packed::new(raw, vec![0.01; 1500], inputs);
    let expected = packed.results(&x, None);
    let most = expected.iter().copied().fold(f32::MIN, f32::max);
    assert_eq!(expected[1234], most);
    for dot in DotLevel::available() {
        assert_eq!(bits(&packed.run(dot, 2, &x, None, 1)), bits(&largest_of(&expected, 1)), "{}", dot.name());
    }
}

/// The phases of a search may run in different memory. Both must agree on the output that the first
/// phase computes, or the second one skips another.
#[test]
fn the_memory_of_other_tasks_changes_no_result() {
    let (inputs, outputs, wanted) = (STEP, 5, 4);
    let (scale, streams) = (1e-31, Streams::One);
    for seed in 0..10 {
        let mut packed = packed(0, inputs, outputs, seed);
        // With subnormal products of scales, the bound of a lane beyond the end could be the
        // highest.
        packed.scales.fill(1e-13);
        let mut random = Rng::with_seed(seed ^ 77);
        let q: Vec<i8> = (0..inputs).map(|_| (value(&mut random) * 127.0) as i8).collect();
        let sum = q.iter().map(|q| i32::from(*q)).sum();
        let rows = [Row { split: packed.split(), q: &q, sum, scale, cap: None, streams }];
        let of_row =
            |row: &[i8]| -> i32 { row.iter().zip(&q).map(|(w, q)| i32::from(*w) * i32::from(*q)).sum() };
        let mut expected: Vec<usize> = (0..outputs).collect();
        expected.sort_by_key(|output| -of_row(&packed.raw[output * inputs..][..inputs]));
        let both = [(f32::NAN, 0.0), (0.0, 255.0), (255.0, 0.0), (255.0, f32::NAN)];
        for (dot, (begin, end)) in
            DotLevel::available().into_iter().flat_map(|dot| both.map(|one| (dot, one)))
        {
            let bars = [const { AtomicU32::new(0) }; ROWS];
            let search = Search { rows: &rows, lengths: [length(&rows[0]); ROWS], bars: &bars, wanted };
            let (mut lists, mut out) = (vec![0; LIST], vec![0.0; outputs]);
            let run = Run { first: 0, end: 1 };
            let out = SharedOutput::new(&mut out);
            search_at(dot, &search, Phase::Begin, run, &mut [begin; ROOM], &mut lists, out);
            search_at(dot, &search, Phase::End, run, &mut [end; ROOM], &mut lists, out);
            let best = Best::of(&mut lists, wanted);
            let found: Vec<usize> = best.found().iter().map(|[_, index]| *index as usize).collect();
            assert_eq!(found, expected[..wanted], "{begin} and {end}, {}", dot.name());
        }
    }
}

#[test]
fn a_row_of_zeros_and_one_of_nans() {
    let packed = packed(0, STEP, 300, 9);
    for dot in DotLevel::available() {
        let zeros = packed.run(dot, 2, &[0.0; STEP], None, 3);
        assert_eq!(bits(&zeros), bits(&largest_of(&[0.0; 300], 3)));
        let mut x = [1.0; STEP];
        x[7] = f32::NAN;
        for cap in [None, Some(30.0)] {
            assert!(packed.run(dot, 2, &x, cap, 3).iter().all(|value| value.is_nan()));
            // A second row next to it has the same results as alone.
            let ones = [1.0; STEP];
            for wanted in [0, 1, 3] {
                let both = packed.run(dot, 2, &[x, ones].concat(), cap, wanted);
                assert!(both[..300].iter().all(|value| value.is_nan()));
                assert_eq!(bits(&both[300..]), bits(&packed.run(dot, 2, &ones, cap, wanted)));
            }
        }
    }
}

#[test]
fn a_bound_is_never_below_what_it_bounds() {
    for (row, spread) in [([0i8; 256], 255), ([-1; 256], 255), ([3; 256], 37), ([-8; 256], 255)] {
        let mut low = [0xff; 2 * THIRDS];
        assert_eq!(pack_low(&row, &mut low), spread);
        let part = row[0] as u8 & 7;
        let existing = [[part % 4 * 0x55; 32].as_slice(), &[part / 4 * 0xff; 16]].concat();
        assert_eq!(low.as_slice(), [existing.as_slice(), &existing].concat());
    }
}

/// No value below the returned one reaches the least result that counts, and the margin is small.
#[test]
fn a_cap_leaves_the_order_of_results() {
    let packed = packed(0, STEP, 1, 3);
    let q = [0; STEP];
    let capped = |value: f32, cap: f32| softcap(Scalar, [value; LANES], cap)[0];
    for cap in [30.0f32, 1.0, 1e-20, 1e20] {
        let row =
            Row { split: packed.split(), q: &q, sum: 0, scale: 1.0, cap: Some(cap), streams: Streams::One };
        for part in [
            -20.0f32, -9.0, -3.0, -1.0, -0.1, -1e-12, 0.0, 1e-12, 1e-5, 0.3, 0.62, 0.63, 1.0, 4.0, 8.0, 9.0,
            20.0,
        ] {
            let least = capped(part * cap, cap);
            let below = row.below(least);
            assert!(below <= part * cap, "{below} for {part} of {cap}");
            let near = part * cap - 1e-3 * (part * cap).abs() - 2.0 * f32::MIN_POSITIVE * cap.max(1.0);
            assert!(part.abs() > 3.0 || below >= near, "{below} for {part} of {cap}");
            // If the least result is as low as results can be, no result is excluded.
            for back in [1e-7, 1e-6, 1e-3, 1.0].into_iter().filter(|_| below.is_finite()) {
                let value = below.next_down() - back * below.abs();
                assert!(capped(value, cap) < least, "{value} below {below} for {least}");
            }
        }
    }
    let row = Row { split: packed.split(), q: &q, sum: 0, scale: 1.0, cap: None, streams: Streams::One };
    assert_eq!(row.below(3.5), 3.5);
}

#[test]
fn keys_are_in_the_order_of_values() {
    let values =
        [f32::NEG_INFINITY, f32::MIN, -1.0, -f32::MIN_POSITIVE, 0.0, 1e-40, 1.0, f32::MAX, f32::INFINITY];
    assert!(values.is_sorted_by_key(|value| key(*value)));
    assert!(values.iter().all(|value| value_of(key(*value)) == *value));
    assert_eq!(key(-0.0), key(0.0));
    assert!(key(f32::NAN) > key(f32::INFINITY) && key(-f32::NAN) == key(f32::NAN));
    assert!(value_of(0) < f32::MIN);
}

#[test]
fn scratch_memory_beyond_any_machine_is_none() {
    assert_eq!(scratch_values(LONGEST, 1, usize::MAX / 4), None);
    assert!(scratch_values(640, 1, 2).is_some_and(|values| values < 1 << 16));
}
