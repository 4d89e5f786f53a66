//! Checks whether added-up losses rank mixtures of formats like measured losses do.
//!
//! ```text
//! cargo test -p shardwright-tests --bench ranks -- [--rows 32] [--compensated]
//! ```
//!
//! Runs ten random mixtures of the demo model, with a format for every layer and role and equal
//! bytes to within two hundredths. The loss of each on held-out rows is compared with two sums of
//! the losses of its single changes: losses measured on the text that comes with the program, and
//! losses expected from the second moments of the inputs of weights. Prints Spearman's rank
//! correlation of both sums with the loss.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use shardwright::{FormatChoice, LossRow, OpenOptions, SensitivityReport, WeightFormat, WeightRounding};
use shardwright_bundle::Digest;
use shardwright_graph::{ConstantFormat, WeightId};
use shardwright_quantisation::{Baseline, MatrixInputs, Moments, Recipe, places};
use shardwright_tests::checkpoints::DEMO_MODEL;
use shardwright_tests::formats::{held_out, moment_texts};
use shardwright_tests::{chain, program, tree};

/// Number of mixtures, and the largest distance of their bytes from the mean of the narrowest and
/// the widest, in hundredths.
const MIXTURES: usize = 10;
const APART: u64 = 2;

/// Smallest allowed correlations.
const MEASURED: f64 = 0.9;
const EXPECTED: f64 = 0.6;

/// Formats of mixtures. `None` leaves weights as stored.
const FORMATS: [Option<WeightFormat>; 3] =
    [None, Some(WeightFormat::W8PerChannel), Some(WeightFormat::W4Block32)];

fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let option = |name: &str| arguments.iter().position(|argument| argument == name);
    let rows = option("--rows").and_then(|at| arguments.get(at + 1));
    let rows: usize = rows.map_or(32, |rows| rows.parse().expect("a number of rows"));
    let is_compensated = option("--compensated").is_some();
    let cache = tempfile::tempdir().expect("a temporary folder");
    let formats = FORMATS.iter().flatten().map(|format| format.name());
    let options = OpenOptions::new().search_path(program::search_path()).cache_directory(cache.path());
    let options = formats
        .fold(options, |options, formats| options.formats(formats.parse::<FormatChoice>().expect("formats")));
    let options = match is_compensated {
        true => options.rounding(WeightRounding::Compensated),
        false => options,
    };
    let checkpoint = tree::root().join(DEMO_MODEL);
    let report = |time: Option<Duration>| -> SensitivityReport {
        options.measure_sensitivities(&checkpoint, time, &mut ()).expect("it is measured").0
    };
    let expected = report(Some(Duration::ZERO));
    assert_eq!(expected.measured, 0);
    let measured = report(None);
    assert_eq!(measured.measured, measured.of);

    let graph = chain::committed(DEMO_MODEL);
    let all = held_out();
    let step = (all.len() / rows.min(all.len())).max(1);
    let sequences: Vec<Vec<u32>> =
        all.into_iter().step_by(step).take(rows).map(|row| row[..row.len().min(128)].to_vec()).collect();
    let baseline = Baseline::of(&graph, &sequences).expect("the reference runs it");
    let moments = is_compensated.then(|| {
        let checkpoint = shardwright_checkpoints::open_checkpoint(&checkpoint).expect("it opens");
        // The moments that the losses were measured with.
        let identity = Moments::identity_of(checkpoint.content_hash(), &moment_texts()[0].clone());
        let folder = cache.path().join("moments").join(Digest::from(identity).to_string());
        Arc::new(Moments::in_folder(identity, MatrixInputs::new(&graph).expect("matrices"), folder))
    });

    let places: Vec<(Place, Vec<WeightId>)> = places(&graph)
        .into_iter()
        .map(|((component, layer, role), weights)| {
            ((component.to_string(), layer, role.name().to_owned()), weights)
        })
        .collect();
    let bytes = |place: usize, format: Option<WeightFormat>| -> u64 {
        let weights = places[place].1.iter().map(|id| &graph.weights[id.0 as usize]);
        let bytes = weights.map(|weight| match format {
            Some(format) => weight.planned(format).expect("a matrix in any format").bytes(),
            None => weight.bytes(),
        });
        bytes.sum()
    };
    let all_in = |format| (0..places.len()).map(|place| bytes(place, format)).sum::<u64>();
    let target = (all_in(FORMATS[0]) + all_in(FORMATS[2])) / 2;
    let [expected, measured] = [&expected, &measured].map(|report| by_place(&report.losses));
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    let mut table = Vec::new();
    while table.len() < MIXTURES {
        let mixture: Vec<Option<WeightFormat>> =
            places.iter().map(|_| FORMATS[(next(&mut state) % 3) as usize]).collect();
        let own: u64 = mixture.iter().enumerate().map(|(place, format)| bytes(place, *format)).sum();
        if own.abs_diff(target) * 100 > target * APART {
            continue;
        }
        let sum = |losses: &BTreeMap<(Place, String), f64>| -> f64 {
            let of = |((place, _), format): (&(Place, Vec<WeightId>), &Option<WeightFormat>)| {
                format.map_or(0.0, |format| losses[&(place.clone(), format.name().to_owned())])
            };
            places.iter().zip(&mixture).map(of).sum()
        };
        let mut weights = vec![ConstantFormat::Stored; graph.weights.len()];
        for ((_, ids), format) in places.iter().zip(&mixture) {
            for id in ids {
                weights[id.0 as usize] = format.map_or(ConstantFormat::Stored, ConstantFormat::Matrix);
            }
        }
        let recipe = Recipe { weights, moments: moments.clone(), ..Recipe::default() };
        let rows = baseline.divergences(&recipe).expect("the reference runs it");
        let (lost, count) = rows.iter().fold((0.0, 0), |all, own| (all.0 + own.0, all.1 + own.1));
        table.push([1e3 * lost / count as f64, sum(&measured) / 1e3, sum(&expected) / 1e3, own as f64]);
        let [lost, measured, expected, bytes] = table[table.len() - 1];
        println!("{lost:.2} millinats lost, {measured:.2} measured, {expected:.2} expected, {bytes} bytes");
    }
    let column = |index: usize| table.iter().map(|row| row[index]).collect::<Vec<f64>>();
    let measured = correlation(&column(0), &column(1));
    let expected = correlation(&column(0), &column(2));
    println!("rank correlation: {measured:.3} measured, {expected:.3} expected");
    assert!(measured >= MEASURED, "{measured} of {MEASURED}");
    assert!(expected >= EXPECTED, "{expected} of {EXPECTED}");
}

/// Component, layer and role.
type Place = (String, u32, String);

/// Returns losses in millionths of a nat, by place and format.
fn by_place(losses: &[LossRow]) -> BTreeMap<(Place, String), f64> {
    let row = |row: &LossRow| {
        let place = (row.component.clone()?, row.layer.unwrap_or(0), row.what.clone());
        Some(((place, row.format.clone()), row.micronats?))
    };
    losses.iter().filter_map(row).collect()
}

/// Computes Spearman's rank correlation of numbers without ties.
fn correlation(left: &[f64], right: &[f64]) -> f64 {
    let ranks = |values: &[f64]| -> Vec<f64> {
        let below = |value: &f64| values.iter().filter(|other| *other < value).count() as f64;
        values.iter().map(below).collect()
    };
    let (left, right) = (ranks(left), ranks(right));
    let squares: f64 = left.iter().zip(&right).map(|(a, b)| (a - b).powi(2)).sum();
    let count = left.len() as f64;
    1.0 - 6.0 * squares / (count * (count * count - 1.0))
}

/// Returns pseudo-random numbers, the same in every run.
fn next(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state >> 8
}
