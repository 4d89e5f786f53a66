//! Makes and decodes every format: bounds, exactness, layout, threads, and rejected inputs.

use proptest::prelude::*;
use shardwright_graph::{ConstantFormat, Graph, Weight, WeightData, nearest_value};
use shardwright_models::Checkpoint;
use shardwright_quantisation::{
    Factors, MomentSums, Recipe, Rounding, RowSource, SecondMoments, TableFormats, quantise,
    quantise_constant, quantise_weight,
};
use shardwright_test_checkpoints::Spec;
use shardwright_vocabulary::{
    ActivationFormat, DType, Encoding, ErrorKind, FormatTuple, Granularity, RoleFormat, StateFormat, Watch,
    WeightFormat, WeightRole,
};

use crate::calibration::expect_invalid;
use crate::support::{decoded, values, weight};

fn made(source: &dyn RowSource, format: WeightFormat) -> Weight {
    quantise_weight(source, format, Rounding::Nearest, &mut ()).unwrap()
}

fn threads<T: Send>(count: usize, work: impl FnOnce() -> T + Send) -> T {
    rayon::ThreadPoolBuilder::new().num_threads(count).build().unwrap().install(work)
}

pub fn same(a: &Weight, b: &Weight) -> bool {
    let scales = |weight: &Weight| {
        weight.quantisation.as_ref().map(|quantisation| quantisation.scales.bytes().to_vec())
    };
    a.name == b.name
        && a.shape == b.shape
        && a.dtype == b.dtype
        && a.data.bytes() == b.data.bytes()
        && scales(a) == scales(b)
}

/// Checks that the root mean square error of a group with a shared scale is at most half a step of
/// its max-abs scale.
fn assert_close(source: &Weight, made: &Weight) {
    let (before, after) = (decoded(source), decoded(made));
    let width = source.row_width();
    let limit = match made.dtype {
        DType::I8 => 127.0,
        DType::I4 => 7.0,
        _ => 1.0,
    };
    let group = match made.quantisation.as_ref().unwrap().granularity {
        Granularity::PerTensor => before.len(),
        Granularity::PerChannel if source.shape.len() == 1 => 1,
        Granularity::PerChannel => before.len() / source.shape[0] as usize,
        Granularity::PerBlock { size, .. } => size as usize,
    };
    let largest_of = |values: &[f32]| values.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    let rows = before.chunks(width.max(group)).zip(after.chunks(width.max(group)));
    let stepped = made.format() == Some(WeightFormat::W4Block32Stepped);
    let blocks = rows.flat_map(|(before, after)| {
        // Stepped scales add up to one step of the row's scale, a sixteenth of its largest block's.
        let more = if stepped { largest_of(before) / 16.0 * 1.03 } else { 0.0 };
        before.chunks(group).zip(after.chunks(group)).map(move |(before, after)| (before, after, more))
    });
    for (before, after, more) in blocks {
        let largest = largest_of(before) + more;
        let error: f64 = before.iter().zip(after).map(|(a, b)| (f64::from(*a) - f64::from(*b)).powi(2)).sum();
        // An f16 scale is off by at most one part in 2,048. For the largest value this error counts
        // in full.
        let bound = f64::from(largest) / limit * 0.5 + f64::from(largest) / 2048.0 + 1e-7;
        let root = (error / before.len() as f64).sqrt();
        assert!(root <= bound, "{root} > {bound}");
    }
}

#[test]
fn every_format_keeps_values_within_half_a_step() {
    for (shape, seed) in
        [(vec![1, 1], 1), (vec![5, 33], 2), (vec![64, 256], 3), (vec![3, 4, 37], 4), (vec![70], 5)]
    {
        let count = shape.iter().product::<u64>() as usize;
        for dtype in [DType::F32, DType::F16, DType::Bf16] {
            let source = weight(&shape, dtype, &values(count, seed));
            for &format in WeightFormat::MADE {
                let made = made(&source, format);
                assert_eq!(made.format(), Some(format));
                assert_eq!(made.bytes(), source.planned(format).unwrap().bytes());
                assert!(made.data.is_present());
                match format.is_quantised() {
                    true => assert_close(&source, &made),
                    false => {
                        let bound = if format == WeightFormat::Bf16 { 1.0 / 256.0 } else { 1.0 / 2048.0 };
                        for (a, b) in decoded(&source).iter().zip(decoded(&made)) {
                            assert!((a - b).abs() <= a.abs() * bound + 1e-7, "{a} {b} {format}");
                        }
                    }
                }
                if format.layout().is_some_and(|(stored, _)| stored == dtype) {
                    assert!(same(&source, &made));
                }
            }
        }
    }
}

#[test]
fn integers_are_within_their_range_and_hold_zero() {
    let mut of = values(40 * 64, 9);
    of[64..128].fill(0.0);
    let source = weight(&[40, 64], DType::F32, &of);
    for (format, range) in [
        (WeightFormat::W8PerChannel, -127..=127),
        (WeightFormat::W8PerTensor, -127..=127),
        (WeightFormat::W8Block32, -127..=127),
        (WeightFormat::W4PerChannel, -8..=7),
        (WeightFormat::W4PerTensor, -8..=7),
        (WeightFormat::W4Block32, -8..=7),
        (WeightFormat::W4Block32Stepped, -8..=7),
        (WeightFormat::W2PerChannel, -2..=1),
    ] {
        let made = made(&source, format);
        let all = || (0..40).flat_map(|row| made.raw_row(row).unwrap());
        assert!(all().all(|raw| range.contains(&raw)), "{format}");
        // With eight bits per tensor, the largest value may be on either side.
        let largest = all().map(i32::abs).max().unwrap();
        assert!([*range.end(), -range.start()].contains(&largest), "{format}: {largest}");
        assert!(made.raw_row(1).unwrap().all(|raw| raw == 0));
        assert!(decoded(&made)[64..128].iter().all(|value| *value == 0.0));
    }
}

#[test]
fn making_again_what_was_made_changes_nothing() {
    let source = weight(&[20, 96], DType::F32, &values(20 * 96, 11));
    // Stepped scales are excluded, as not every one is tried: if the largest integer of a block is
    // 6, its scale is not found again.
    let found_again = |format: &&WeightFormat| **format != WeightFormat::W4Block32Stepped;
    for &format in WeightFormat::MADE.iter().filter(found_again) {
        let once = made(&source, format);
        let twice = made(&once, format);
        // Equal except for the last bit of a scale.
        let same = |a: f32, b: f32| (a - b).abs() <= 2e-7 * a.abs();
        assert!(decoded(&once).iter().zip(decoded(&twice)).all(|(a, b)| same(*a, b)), "{format}");
    }
}

#[test]
fn blocks_are_better_than_channels_and_channels_than_the_tensor() {
    let mut of = values(64 * 256, 5);
    of.chunks_mut(256)
        .enumerate()
        .for_each(|(row, values)| values.iter_mut().for_each(|v| *v *= 1.0 + row as f32));
    let source = weight(&[64, 256], DType::F32, &of);
    let error = |format| -> f64 {
        let made = decoded(&made(&source, format));
        of.iter().zip(made).map(|(a, b)| f64::from(a - b).powi(2)).sum()
    };
    let order = [
        WeightFormat::F32,
        WeightFormat::W8PerChannel,
        WeightFormat::W4Block32,
        WeightFormat::W4Block32Stepped,
        WeightFormat::W4PerChannel,
        WeightFormat::W4PerTensor,
    ];
    let errors = order.map(error);
    assert!(errors.is_sorted() && errors[0] == 0.0, "{errors:?}");
    assert!(error(WeightFormat::W8PerTensor) > 2.0 * errors[1]);
    assert!(error(WeightFormat::W2PerChannel) > errors[3]);
}

/// If blocks are alike, sixteen scales per row are nearly as good as free ones. Free scales also
/// have a sign, which saves a seventh of the error. A reader can recover the row's scale.
#[test]
fn stepped_scales_are_multiples_of_one_and_cost_little() {
    let source = weight(&[48, 300], DType::F32, &values(48 * 300, 17));
    let stepped = made(&source, WeightFormat::W4Block32Stepped);
    let layout = stepped.quantisation.as_ref().unwrap();
    assert_eq!((layout.granularity, layout.scale_dtype), (Granularity::blocks(32), DType::F32));
    for row in 0..48 {
        let scales: Vec<f32> = (0..10).map(|block| stepped.scale(row, block * 32).unwrap()).collect();
        let largest = scales.iter().copied().fold(0.0, f32::max);
        let channel = (1..=16_u8).map(|multiple| largest / f32::from(multiple)).find(|channel| {
            scales.iter().all(|scale| {
                let multiple = (scale / channel).round();
                (1.0..=16.0).contains(&multiple) && multiple * channel == *scale
            })
        });
        assert!(channel.is_some(), "row {row}: {scales:?}");
        assert!(scales.iter().all(|&scale| half::f16::from_f32(scale).to_f32() == scale));
    }
    let error = |made: &Weight| -> f64 {
        let both = decoded(&source).into_iter().zip(decoded(made));
        both.map(|(a, b)| f64::from(a - b).powi(2)).sum()
    };
    let (free, stepped) = (error(&made(&source, WeightFormat::W4Block32)), error(&stepped));
    assert!(stepped <= 1.05 * 1.15 * free, "{stepped} beside {free}");
}

/// Returns moments of rows with correlated columns.
fn moments(width: usize) -> SecondMoments {
    let rows = values(400 * (width + 1), 5);
    let mut sums = MomentSums::new(width);
    for row in rows.chunks_exact(width + 1) {
        let mixed: Vec<f32> = row[1..].iter().map(|value| row[0] + 0.5 * value).collect();
        sums.add(&mixed);
    }
    sums.finish()
}

#[test]
fn errors_make_up_for_each_other_in_every_format() {
    let source = weight(&[24, 96], DType::F32, &values(24 * 96, 21));
    let moments = moments(96);
    let factors = Factors::of(&moments).unwrap();
    let loss = |made: &Weight| -> f64 {
        let off: Vec<f64> =
            decoded(&source).iter().zip(decoded(made)).map(|(a, b)| f64::from(a - b)).collect();
        let of_row = |row: &[f64]| -> f64 {
            let pairs = (0..96).flat_map(|i| (0..96).map(move |j| (i, j)));
            pairs.map(|(i, j)| row[i] * f64::from(moments.at(i, j)) * row[j]).sum()
        };
        off.chunks(96).map(of_row).sum()
    };
    for &format in WeightFormat::MADE {
        let nearest = made(&source, format);
        let rounding = Rounding::Compensated { columns: &factors, rows: None };
        let compensated = quantise_weight(&source, format, rounding, &mut ()).unwrap();
        assert_eq!(compensated.format(), Some(format));
        match format.is_quantised() {
            true => {
                let (ours, theirs) = (loss(&compensated), loss(&nearest));
                assert!(ours < 0.5 * theirs, "{format}: {ours} of {theirs}");
            }
            false => assert_eq!(compensated.data.bytes(), nearest.data.bytes(), "{format}"),
        }
        // Threads and chunks change no byte.
        let pool = rayon::ThreadPoolBuilder::new().num_threads(3).build().unwrap();
        let again = pool.install(|| quantise_weight(&source, format, rounding, &mut ()).unwrap());
        assert_eq!(again.data.bytes(), compensated.data.bytes(), "{format}");
    }
    // Errors of values this large overflow when they are passed on.
    let mut large = values(3 * 96, 8);
    large[96..192].iter_mut().for_each(|value| *value = f32::MAX * value.signum());
    let large = weight(&[3, 96], DType::F32, &large);
    let rounding = Rounding::Compensated { columns: &factors, rows: None };
    let rounded = quantise_weight(&large, WeightFormat::W4PerChannel, rounding, &mut ()).unwrap();
    let off = decoded(&large)[96..192].iter().zip(&decoded(&rounded)[96..192]).any(|(a, b)| a * b <= 0.0);
    assert!(!off, "a sign was lost");
    // Vectors have no correlated columns.
    let vector = weight(&[96], DType::F32, &values(96, 3));
    let rounding = Rounding::Compensated { columns: &factors, rows: None };
    let rounded = quantise_weight(&vector, WeightFormat::W8PerTensor, rounding, &mut ()).unwrap();
    assert_eq!(rounded.data.bytes(), made(&vector, WeightFormat::W8PerTensor).data.bytes());
}

#[test]
fn constants_like_activations_hold_zero_and_both_ends() {
    for (values, seen) in
        [(vec![0.5, 1.0, 2.0], 0.0..2.0), (vec![-3.0, 1.0, 0.0], -3.0..1.0), (vec![0.0; 4], 0.0..0.0)]
    {
        let source = weight(&[values.len() as u64], DType::Bf16, &values);
        let made = quantise_constant(&source, &mut ()).unwrap();
        let layout = made.quantisation.as_ref().unwrap();
        assert_eq!((made.dtype, layout.granularity), (DType::U16, Granularity::PerTensor));
        let encoding = Encoding::affine_over(seen.start, seen.end, 16);
        assert_eq!(layout.zero_point, encoding.zero_point);
        for (value, made) in values.iter().zip(decoded(&made)) {
            assert_eq!(made, nearest_value(&encoding, *value));
            assert!((value - made).abs() <= encoding.scale.get() * 0.51);
        }
    }
}

#[test]
fn threads_change_no_byte() {
    // Several chunks, the last of them shorter.
    let source = weight(&[700, 1024], DType::Bf16, &values(700 * 1024, 3));
    for &format in WeightFormat::MADE {
        let of = |count| threads(count, || made(&source, format));
        let one = of(1);
        for count in [2, 5, 16] {
            assert!(same(&one, &of(count)), "{format} with {count} threads");
        }
    }
    let constant = |count| threads(count, || quantise_constant(&source, &mut ()).unwrap());
    assert!(same(&constant(1), &constant(7)));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]
    #[test]
    fn never_worse_than_max_abs_scaling(
        rows in 1_u64..6,
        width in 1_u64..90,
        seed in any::<u64>(),
        power in -14_i32..6,
    ) {
        let of: Vec<f32> =
            values((rows * width) as usize, seed).iter().map(|v| v * 2.0_f32.powi(power)).collect();
        let source = weight(&[rows, width], DType::F32, &of);
        // Stepped scales have their own bound, tested next to the code that chooses them.
        let free = |format: &&WeightFormat| format.is_quantised() && **format != WeightFormat::W4Block32Stepped;
        for &format in WeightFormat::MADE.iter().filter(free) {
            let (dtype, scales) = format.layout().unwrap();
            let (granularity, scale_dtype) = scales.unwrap();
            let limit = if dtype == DType::I8 { 127.0 } else if dtype == DType::I4 { 7.0 } else { 1.0_f32 };
            let group = match granularity {
                Granularity::PerTensor => rows * width,
                Granularity::PerChannel => width,
                Granularity::PerBlock { size, .. } => u64::from(size),
            } as usize;
            let plain: f64 = of
                .chunks(if granularity == Granularity::PerTensor { of.len() } else { width as usize })
                .flat_map(|row| row.chunks(group))
                .map(|values| {
                    let scale = values.iter().fold(0.0_f32, |a, b| a.max(b.abs())) / limit;
                    let scale = match scale_dtype {
                        DType::F16 => half::f16::from_f32(scale).to_f32().max(1.0 / 16_777_216.0),
                        _ => scale,
                    };
                    let q = |v: f32| if scale > 0.0 { (v / scale).round().clamp(-limit, limit) * scale } else { 0.0 };
                    values.iter().map(|&v| f64::from(v - q(v)).powi(2)).sum::<f64>()
                })
                .sum();
            let ours: f64 =
                of.iter().zip(decoded(&made(&source, format))).map(|(a, b)| f64::from(a - b).powi(2)).sum();
            // Errors are summed in f32 steps. If a scale is nearly exact, the compared sums are off
            // by the last bits of the values.
            let squares: f64 = of.iter().map(|v| f64::from(*v).powi(2)).sum();
            prop_assert!(ours <= plain * 1.0001 + squares * 1e-8, "{format}: {ours} > {plain}");
        }
    }
}

fn demo() -> Graph {
    let directory = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../demo-model");
    Checkpoint::open(directory).unwrap().into_graph()
}

#[test]
fn a_graph_is_made_as_its_formats_say() {
    let graph = demo();
    let formats = FormatTuple {
        weights: WeightFormat::W4Block32,
        roles: vec![RoleFormat { role: WeightRole::Head, format: WeightFormat::W8PerChannel }],
        activations: ActivationFormat::A16,
        states: StateFormat::F16,
        ..FormatTuple::F32
    };
    let tables = TableFormats {
        embedding: Some(WeightFormat::W8PerTensor),
        per_layer: Some(WeightFormat::W2PerChannel),
    };
    let recipe = Recipe::new(&graph, &formats, tables);
    let mut counted = Counted::default();
    let made = quantise(&graph, &recipe, &mut counted, &mut Vec::new()).unwrap();
    let planned = graph.planned(&formats).unwrap();
    for (made, planned) in made.weights.iter().zip(&planned.weights) {
        assert_eq!((made.dtype, &made.shape, made.bytes()), (planned.dtype, &planned.shape, planned.bytes()));
        assert!(made.data.is_present());
    }
    let head = made.weights.iter().find(|weight| weight.part == "head").unwrap();
    assert_eq!(head.format(), Some(WeightFormat::W8PerChannel));
    let tables = made.assets.iter().map(|asset| asset.table.format().unwrap());
    assert_eq!(tables.collect::<Vec<_>>(), [WeightFormat::W8PerTensor, WeightFormat::W2PerChannel]);
    assert_eq!(counted.done, 1000);

    let as_stored = FormatTuple::uniform(WeightFormat::Bf16, ActivationFormat::F32, StateFormat::F32);
    let same_recipe = Recipe::new(&graph, &as_stored, TableFormats::default());
    assert!(same_recipe.weights.iter().all(|format| *format == ConstantFormat::Stored));
    let shared = quantise(&graph, &same_recipe, &mut (), &mut Vec::new()).unwrap();
    assert!(
        shared
            .weights
            .iter()
            .zip(&graph.weights)
            .all(|(a, b)| a.data.bytes().as_ptr() == b.data.bytes().as_ptr())
    );
}

#[derive(Default)]
struct Counted {
    /// Progress in thousandths.
    done: u32,
    stop_at: Option<u32>,
}

impl Watch for Counted {
    fn progress(&mut self, per_mille: u32, _: &str) {
        assert!(per_mille >= self.done && per_mille <= 1000);
        self.done = per_mille;
    }

    fn cancelled(&self) -> bool {
        self.stop_at.is_some_and(|stop| self.done >= stop)
    }
}

#[test]
fn what_cannot_be_made_says_why() {
    let mut of = values(4 * 40, 2);
    of[2 * 40 + 7] = f32::NEG_INFINITY;
    let broken = weight(&[4, 40], DType::F32, &of);
    for &format in WeightFormat::MADE {
        let error = quantise_weight(&broken, format, Rounding::Nearest, &mut ()).unwrap_err();
        expect_invalid(&error, "expected a finite value, got -inf");
        assert_eq!(error.place(), Some("weight `w`: row 2, column 7"));
    }
    expect_invalid(&quantise_constant(&broken, &mut ()).unwrap_err(), "expected a finite value");

    let planned = weight(&[4, 40], DType::F32, &values(160, 1)).planned(WeightFormat::F32).unwrap();
    let error =
        quantise_weight(&planned, WeightFormat::W8PerChannel, Rounding::Nearest, &mut ()).unwrap_err();
    expect_invalid(&error, "the weight has only 0 bytes");
    assert_eq!(error.place(), Some("weight `w`: row 0"));

    let kept = quantise_weight(&broken, WeightFormat::AsStored, Rounding::Nearest, &mut ());
    expect_invalid(&kept.unwrap_err(), "`as-stored`");

    let wide = Weight {
        shape: vec![1, 1 << 29],
        data: WeightData::planned(1 << 31),
        ..weight(&[1], DType::F32, &[0.0])
    };
    let error = quantise_weight(&wide, WeightFormat::W8PerChannel, Rounding::Nearest, &mut ()).unwrap_err();
    expect_invalid(&error, "values in one channel, got 536870912");
    let endless = Weight { shape: vec![1 << 40, 1 << 40], ..wide };
    let error = quantise_weight(&endless, WeightFormat::F16, Rounding::Nearest, &mut ()).unwrap_err();
    assert!(error.message().contains("too large to be stored"), "{error}");

    let sound = weight(&[4, 40], DType::F32, &values(160, 1));
    let factors = Factors::of(&moments(39)).unwrap();
    let rounding = Rounding::Compensated { columns: &factors, rows: None };
    let error = quantise_weight(&sound, WeightFormat::W4Block32, rounding, &mut ()).unwrap_err();
    expect_invalid(&error, "expected moments for 40 columns, got moments for 39");

    let graph = demo();
    let error = quantise(&graph, &Recipe::default(), &mut (), &mut Vec::new()).unwrap_err();
    expect_invalid(&error, "the recipe is for 0 weights");
    let formats = FormatTuple::uniform(WeightFormat::W8PerTensor, ActivationFormat::F32, StateFormat::F32);
    let recipe = Recipe::new(&graph, &formats, TableFormats::default());
    let mut counted = Counted { stop_at: Some(1), ..Counted::default() };
    let error = quantise(&graph, &recipe, &mut counted, &mut Vec::new()).unwrap_err();
    assert!(error.kind() == ErrorKind::Cancelled && error.help().is_some(), "{error}");
    assert!(counted.done < 1000);
}

#[test]
fn every_family_takes_every_format() {
    for spec in [Spec::gemma3(), Spec::gemma4(), Spec::qwen3(), Spec::embeddinggemma()] {
        let directory = tempfile::tempdir().unwrap();
        spec.write(directory.path()).unwrap();
        let graph = Checkpoint::open(directory.path()).unwrap().into_graph();
        for &format in WeightFormat::MADE {
            let formats = FormatTuple::uniform(format, ActivationFormat::A8Dynamic, StateFormat::F32);
            let tables = TableFormats { embedding: Some(format), per_layer: Some(format) };
            let recipe = Recipe::new(&graph, &formats, tables);
            let made = quantise(&graph, &recipe, &mut (), &mut Vec::new()).unwrap();
            assert!(made.assets.iter().all(|asset| asset.table.format() == Some(format)));
        }
    }
}
