//! Ranges and moments from running a model, and their file formats.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use shardwright_graph::{Encodings, Graph};
use shardwright_models::Checkpoint;
use shardwright_quantisation::{
    Calibration, Calibrator, IntegerBits, MatrixInputs, MomentSums, Moments, RangeMethod, Recipe,
    SecondMoments, Store, TableFormats, content_hash, quantise,
};
use shardwright_reference::{Arrangement, ReferenceModel};
use shardwright_test_checkpoints::{Random, Spec};
use shardwright_vocabulary::{ActivationFormat, Error, ErrorKind, FormatTuple, StateFormat, WeightFormat};
use tempfile::TempDir;

use crate::support::weight;

/// Checks that data are invalid for this reason, with help.
pub fn expect_invalid(error: &Error, reason: &str) {
    assert!(error.kind() == ErrorKind::Invalid && error.help().is_some(), "{error:?}");
    assert!(error.message().contains(reason), "no `{reason}` in {error}");
}

pub fn graph_of(spec: &Spec) -> Graph {
    let directory = TempDir::new().unwrap();
    spec.write(directory.path()).unwrap();
    Checkpoint::open(directory.path()).unwrap().into_graph()
}

pub fn sequences(count: usize, length: u32) -> Vec<Vec<u32>> {
    (0..count as u32)
        .map(|first| (0..length).map(|index| 24 + (first * 31 + index * 7) % 70).collect())
        .collect()
}

fn calibrate(graph: &Graph, checkpoint: [u8; 32], sequences: &[Vec<u32>]) -> Calibration {
    let mut calibrator = Calibrator::new(graph, checkpoint).unwrap();
    sequences.iter().for_each(|ids| calibrator.add(ids).unwrap());
    calibrator.finish().unwrap()
}

#[test]
fn every_family_is_calibrated_whole() {
    for spec in [Spec::gemma3(), Spec::gemma4(), Spec::qwen3(), Spec::embeddinggemma()] {
        let graph = graph_of(&spec);
        let sequences = sequences(2, 12);
        let calibration = calibrate(&graph, [7; 32], &sequences);
        assert_eq!(
            (calibration.sequences(), calibration.tokens(), calibration.checkpoint()),
            (2, 24, [7; 32])
        );
        assert!(calibration.has_seen(&sequences[1]) && !calibration.has_seen(&sequences[1][1..]));
        for (method, bits) in methods() {
            let ranges = calibration.ranges(method, bits).unwrap();
            for activations in [ActivationFormat::A16, ActivationFormat::A16Symmetric] {
                let formats = FormatTuple::uniform(WeightFormat::W8PerChannel, activations, StateFormat::A16);
                let recipe = Recipe::new(&graph, &formats, TableFormats::default());
                let made = quantise(&graph, &recipe, &mut (), &mut Vec::new()).unwrap();
                // Every tensor that needs a range has one.
                let encodings = Encodings::of(&formats, &ranges);
                let model = ReferenceModel::new_encoded(&made, Arrangement::whole(12), encodings).unwrap();
                model.trace(&sequences[0]).unwrap();
            }
        }
    }
}

fn methods() -> [(RangeMethod, IntegerBits); 4] {
    [
        (RangeMethod::MinMax, IntegerBits::Sixteen),
        (RangeMethod::Percentile(0.999), IntegerBits::Eight),
        (RangeMethod::MeanSquaredError, IntegerBits::Eight),
        (RangeMethod::MeanSquaredError, IntegerBits::Sixteen),
    ]
}

#[test]
fn ranges_are_what_was_seen() {
    let graph = graph_of(&Spec::gemma4());
    let sequences = sequences(3, 10);
    let calibration = calibrate(&graph, [0; 32], &sequences);
    let ranges = calibration.ranges(RangeMethod::MinMax, IntegerBits::Sixteen).unwrap();
    let model = ReferenceModel::new(&graph, Arrangement::whole(10)).unwrap();
    let (mut low, mut high) = (f32::INFINITY, f32::NEG_INFINITY);
    for ids in &sequences {
        let trace = model.trace(ids).unwrap();
        for value in trace.hidden[2].floats().iter() {
            (low, high) = (low.min(*value), high.max(*value));
        }
    }
    let range = ranges["hidden@2"];
    // The observed form is decomposed, which rounds slightly differently.
    let close = |a: f32, b: f32| (a - b).abs() <= 1e-4 * (high - low);
    assert!(close(range.low, low) && close(range.high, high), "{range:?} {low} {high}");
    assert!(ranges.values().any(|range| range.masked) && ranges.values().any(|range| !range.masked));
    for (method, bits) in methods() {
        for (key, range) in calibration.ranges(method, bits).unwrap() {
            let seen = ranges[&key];
            assert!(range.low >= seen.low && range.high <= seen.high && range.masked == seen.masked, "{key}");
        }
    }
    for (key, range) in calibration.ranges(RangeMethod::Ample, IntegerBits::Sixteen).unwrap() {
        let seen = ranges[&key];
        assert_eq!(
            (range.low, range.high, range.masked),
            (2.0 * seen.low, 2.0 * seen.high, seen.masked),
            "{key}"
        );
    }
    let narrow = calibration.ranges(RangeMethod::Percentile(0.9), IntegerBits::Sixteen).unwrap();
    assert!(narrow["hidden@2"].high < range.high && narrow["hidden@2"].low > range.low);
    for share in [0.5, -1.0, 1.1, f64::NAN] {
        let error = calibration.ranges(RangeMethod::Percentile(share), IntegerBits::Eight).unwrap_err();
        expect_invalid(&error, &format!("at most 1, got {share}"));
    }
}

#[test]
fn order_grouping_and_threads_change_no_bit() {
    let graph = graph_of(&Spec::gemma4());
    let sequences = sequences(4, 9);
    let whole = calibrate(&graph, [1; 32], &sequences);
    let reversed: Vec<_> = sequences.iter().rev().cloned().collect();
    let pool = rayon::ThreadPoolBuilder::new().num_threads(7).build().unwrap();
    assert!(pool.install(|| calibrate(&graph, [1; 32], &reversed)) == whole);
    let mut first = calibrate(&graph, [1; 32], &sequences[..1]);
    let second = calibrate(&graph, [1; 32], &sequences[1..]);
    let mut turned = second.clone();
    turned.merge(first.clone()).unwrap();
    first.merge(second).unwrap();
    assert!(first == whole && turned == whole);
    assert_eq!(first.ids_hash(), whole.ids_hash());
    let mut other = calibrate(&graph, [2; 32], &sequences[..1]);
    expect_invalid(&other.merge(whole).unwrap_err(), "different models");
    assert_ne!(other.ids_hash(), first.ids_hash());
}

#[test]
fn moments_are_of_what_matrices_are_multiplied_with() {
    for spec in [Spec::gemma3(), Spec::gemma4(), Spec::qwen3(), Spec::embeddinggemma()] {
        let graph = graph_of(&spec);
        let moments = Moments::by_reference(&graph, [0; 32], &sequences(2, 11)).unwrap();
        for (weight, matrix) in graph.weights.iter().zip(graph.matrices()) {
            let factors = moments.factors(&weight.name).unwrap();
            assert_eq!(factors.is_some(), matrix, "{:?} {}", spec.family, weight.name);
            assert!(factors.is_none_or(|factors| factors.columns.width() == weight.row_width()));
        }
        // These weights share their input.
        let of = |part: &str| {
            let weight = graph.weights.iter().find(|weight| weight.part == part).unwrap();
            moments.factors(&weight.name).unwrap()
        };
        assert_eq!(of("q"), of("k"));
        assert_ne!(of("q"), of("o"));
        let other = Moments::by_reference(&graph, [0; 32], &sequences(1, 11)).unwrap();
        assert_ne!(other.identity(), moments.identity());
        assert!(other != moments && format!("{moments:?}").contains("tensors"));
    }
    let graph = graph_of(&Spec::qwen3());
    let error = Moments::by_reference(&graph, [0; 32], &[]).unwrap_err();
    expect_invalid(&error, "no token sequences");
}

#[test]
fn moments_survive_their_files_and_hostile_ones_are_refused() {
    let graph = graph_of(&Spec::gemma3());
    let sequences = sequences(2, 20);
    let inputs = MatrixInputs { gradients: BTreeMap::new(), ..MatrixInputs::new(&graph).unwrap() };
    let in_memory = Moments::by_reference(&graph, [1; 32], &sequences).unwrap();
    let directory = TempDir::new().unwrap();
    let mut sums: BTreeMap<&str, MomentSums> =
        inputs.widths.iter().map(|(key, &width)| (key.as_str(), MomentSums::new(width))).collect();
    let model = ReferenceModel::new(&graph, Arrangement::whole(1)).unwrap();
    for ids in &sequences {
        model
            .observe(ids, &mut |key, values| sums.get_mut(key).into_iter().for_each(|s| s.add(values)))
            .unwrap();
    }
    for (key, sums) in sums {
        sums.finish().write(SecondMoments::path(directory.path(), key)).unwrap();
    }
    let in_folder = Moments::in_folder(in_memory.identity(), inputs.clone(), directory.path());
    for weight in inputs.of.keys() {
        let factors = in_folder.factors(weight).unwrap();
        assert!(factors.is_some() && factors == in_memory.factors(weight).unwrap(), "{weight}");
    }
    let (key, &width) = inputs.widths.first_key_value().unwrap();
    let path = SecondMoments::path(directory.path(), key);
    let sound = fs::read(&path).unwrap();
    let read = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        SecondMoments::read(&path, width)
    };
    let mut random = Random::new(4, "bits");
    for _ in 0..200 {
        let mut bytes = sound.clone();
        bytes[random.below(sound.len() as u64) as usize] ^= 1 << random.below(8);
        let error = read(&bytes).unwrap_err();
        assert!(error.help().is_some(), "{error}");
    }
    for content in [&sound[52..60], &sound[52..sound.len() - 4], &sound[52..sound.len() - 1]] {
        let error = read(&sealed(&sound, content)).unwrap_err();
        expect_invalid(&error, "damaged: ");
    }
    fs::write(&path, &sound).unwrap();
    let error = SecondMoments::read(&path, width + 1).unwrap_err();
    assert!(error.to_string().contains("columns"), "{error}");
    fs::remove_file(&path).unwrap();
    let weight = inputs.of.iter().find(|(_, of)| *of == key).unwrap().0;
    let error = in_folder.factors(weight).unwrap_err();
    assert!(error.is_not_found() && error.place() == path.to_str(), "{error}");
    assert!(error.help().is_some_and(|help| help.contains("next run")), "{error}");
}

#[test]
fn a_matrix_too_wide_for_moments_is_refused() {
    let graph = graph_of(&Spec { intermediate: 30_016, ..Spec::qwen3() });
    let error = MatrixInputs::new(&graph).unwrap_err();
    expect_invalid(&error, "moments of 30016 columns are not supported, at most 30000");
    assert!(error.place().is_some_and(|place| place.starts_with("weight `")), "{error}");
}

#[test]
fn a_recipe_with_moments_makes_other_integers_of_matrices_alone() {
    let graph = graph_of(&Spec::gemma4());
    let formats = FormatTuple::uniform(WeightFormat::W4PerChannel, ActivationFormat::F32, StateFormat::F32);
    let tables = TableFormats { embedding: Some(WeightFormat::W4PerChannel), per_layer: None };
    let recipe = Recipe::new(&graph, &formats, tables);
    let nearest = quantise(&graph, &recipe, &mut (), &mut Vec::new()).unwrap();
    let moments = Arc::new(Moments::by_reference(&graph, [0; 32], &sequences(4, 40)).unwrap());
    let with = recipe.with_moments(Some(moments));
    let compensated = quantise(&graph, &with, &mut (), &mut Vec::new()).unwrap();
    for ((a, b), matrix) in nearest.weights.iter().zip(&compensated.weights).zip(graph.matrices()) {
        assert_eq!(a.data.bytes() != b.data.bytes(), matrix, "{}", a.name);
    }
    for (a, b) in nearest.assets.iter().zip(&compensated.assets) {
        assert_eq!(a.table.data.bytes(), b.table.data.bytes(), "tables are read, not multiplied");
    }
    // The store gives the same result.
    let directory = TempDir::new().unwrap();
    let store = Store::open(directory.path()).unwrap();
    let stored = store.graph(&graph, &with, &mut (), &mut Vec::new()).unwrap();
    for (a, b) in stored.weights.iter().zip(&compensated.weights) {
        assert_eq!(a.data.bytes(), b.data.bytes(), "{}", a.name);
    }
}

#[test]
fn a_calibration_survives_its_file_and_belongs_to_its_checkpoint() {
    let graph = graph_of(&Spec::gemma4());
    let calibration = calibrate(&graph, [3; 32], &sequences(2, 8));
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("a.calibration");
    calibration.write(&path).unwrap();
    assert!(Calibration::read(&path, [3; 32]).unwrap() == calibration);
    let first = fs::read(&path).unwrap();
    calibration.write(&path).unwrap();
    assert!(fs::read(&path).unwrap() == first);
    let error = Calibration::read(&path, [4; 32]).unwrap_err();
    expect_invalid(&error, "measured on checkpoint 0303");
    expect_invalid(&error, "not on 0404");
    assert_eq!(error.place(), path.to_str());
}

#[test]
fn hostile_calibrations_are_refused() {
    let graph = graph_of(&Spec { layers: "SF".to_owned(), kv_shared: 0, ..Spec::gemma4() });
    let calibration = calibrate(&graph, [3; 32], &sequences(1, 5));
    let directory = TempDir::new().unwrap();
    let path = directory.path().join("calibration");
    calibration.write(&path).unwrap();
    let sound = fs::read(&path).unwrap();
    let read = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        Calibration::read(&path, [3; 32])
    };
    let mut random = Random::new(9, "bits");
    let samples: Vec<_> = (0..300).map(|_| 52 + random.below(sound.len() as u64 - 52) as usize).collect();
    for at in (0..52).chain(samples) {
        let mut bytes = sound.clone();
        bytes[at] ^= 1 << random.below(8);
        assert!(read(&bytes).is_err(), "byte {at}");
    }
    for length in [0, 7, 51, 52, 80, sound.len() - 1] {
        assert!(read(&sound[..length]).is_err());
    }
    let longer: Vec<u8> = sound.iter().copied().chain([0]).collect();
    expect_invalid(&read(&longer).unwrap_err(), "damaged: the length");
    expect_invalid(&read(b"short").unwrap_err(), "expected calibration, got another kind of file");
    let with = |at: usize, value: &[u8]| {
        let mut bytes = sound.clone();
        bytes[at..at + value.len()].copy_from_slice(value);
        bytes
    };
    let error = read(&with(8, &[1])).unwrap_err();
    expect_invalid(&error, "version 1 of the format, this program reads version 3");
    expect_invalid(&read(&with(12, &[0xFF; 8])).unwrap_err(), "expected at most 536870912 bytes");
    // Even with a matching hash, the content is validated.
    let content = &sound[52..];
    for _ in 0..700 {
        let mut content = content.to_vec();
        match random.below(4) {
            0 => content.truncate(random.below(content.len() as u64) as usize),
            1 => {
                let at = random.below(content.len() as u64) as usize;
                content.insert(at, random.bits() as u8);
            }
            _ => {
                for _ in 0..=random.below(3) {
                    let at = random.below(content.len().min(4000) as u64) as usize;
                    content[at] = random.bits() as u8;
                }
            }
        }
        // Any result except a panic. Accepted files have finite ranges.
        if let Ok(calibration) = read(&sealed(&sound, &content)) {
            let ranges = calibration.ranges(RangeMethod::Percentile(0.99), IntegerBits::Eight).unwrap();
            assert!(ranges.values().all(|range| range.low.is_finite() && range.high.is_finite()));
        }
    }
    let error = read(&sealed(&sound, &[0xFF; 100])).unwrap_err();
    expect_invalid(&error, "damaged: ");
    assert!(error.place().is_some_and(|place| place.contains(": byte ")), "{error}");
    fs::remove_file(&path).unwrap();
    let error = Calibration::read(&path, [3; 32]).unwrap_err();
    let help = error.help().unwrap();
    assert!(error.is_not_found() && error.place() == path.to_str() && help.contains("path"), "{error}");
    let nowhere = Path::new("no/such/folder/calibration");
    let error = calibration.write(nowhere).unwrap_err();
    assert!(error.is_not_found() && error.place() == nowhere.to_str(), "{error}");
}

/// Returns a file with that content and a matching hash.
pub fn sealed(like: &[u8], content: &[u8]) -> Vec<u8> {
    use sha2::{Digest, Sha256};
    let mut bytes = like[..12].to_vec();
    bytes.extend((content.len() as u64).to_le_bytes());
    bytes.extend(Sha256::digest(content));
    bytes.extend(content);
    bytes
}

#[test]
fn what_cannot_be_calibrated_says_why() {
    let graph = graph_of(&Spec::gemma3());
    let calibrator = Calibrator::new(&graph, [0; 32]).unwrap();
    let error = calibrator.finish().unwrap_err();
    expect_invalid(&error, "no token sequences");
    let mut calibrator = Calibrator::new(&graph, [0; 32]).unwrap();
    // A run ends at the next tensor.
    let calls = std::cell::Cell::new(0);
    let third = || {
        calls.set(calls.get() + 1);
        calls.get() == 3
    };
    let error = calibrator.add_until(&[1, 2], &third).unwrap_err();
    assert_eq!((error.kind(), calls.get()), (ErrorKind::Cancelled, 3));
    let error = calibrator.add(&[]).unwrap_err();
    assert!(error.to_string().contains("no tokens"), "{error}");
    let error = calibrator.add(&[1 << 20]).unwrap_err();
    assert!(error.to_string().contains("1048576") && error.help().is_some(), "{error}");
    // An error leaves no partial results.
    expect_invalid(&calibrator.finish().unwrap_err(), "no token sequences");

    let mut broken = graph.clone();
    let norm = broken.weights.iter_mut().find(|weight| weight.part == "norm").unwrap();
    let values = vec![f32::NAN; norm.row_width()];
    *norm = shardwright_graph::Weight {
        name: norm.name.clone(),
        part: "norm",
        ..weight(&norm.shape, norm.dtype, &values)
    };
    let mut calibrator = Calibrator::new(&broken, [0; 32]).unwrap();
    let error = calibrator.add(&[30, 31]).unwrap_err();
    expect_invalid(&error, "expected a finite value, got NaN");
    assert!(error.place().is_some_and(|place| place.starts_with('`')), "{error}");
}

#[test]
fn the_content_hash_sees_every_value() {
    let spec = Spec::gemma4();
    let graph = graph_of(&spec);
    let hash = content_hash(&graph).unwrap();
    assert_eq!(hash, content_hash(&graph_of(&spec)).unwrap());
    assert_ne!(hash, content_hash(&graph_of(&Spec { seed: 2, ..spec })).unwrap());
    let mut changed = graph.clone();
    let table = &mut changed.assets[1].table;
    let mut bytes = table.data.bytes().to_vec();
    *bytes.last_mut().unwrap() ^= 1;
    table.data = shardwright_graph::WeightData::from_vec(bytes);
    assert_ne!(hash, content_hash(&changed).unwrap());
}
