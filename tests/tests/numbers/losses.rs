//! Losses measured on the engine, one change at a time, equal the reference's.

use shardwright::{OpenOptions, WeightRounding};
use shardwright_checkpoints::{SensitivityReport, open_checkpoint, sensitivity_text};
use shardwright_graph::ComponentKind;
use shardwright_quantisation::{Baseline, Change, places, table_pairs};
use shardwright_tests::checkpoints::{EMBEDDING_FIXTURE, TEXT_FIXTURES};
use shardwright_tests::{program, tree};
use shardwright_vocabulary::WeightFormat;

/// Relative difference of a loss that the order of sums may cause, and nats per token below which
/// float rounding dominates.
const TOLERANCE: f64 = 0.01;
const NOISE: f64 = 2e-8;

fn measured(checkpoint: &str, formats: &[&str]) -> SensitivityReport {
    let cache = tempfile::tempdir().expect("a temporary folder");
    let options = OpenOptions::new().search_path(program::search_path()).cache_directory(cache.path());
    let options = options.rounding(WeightRounding::Nearest);
    let named = formats.iter().map(|formats| formats.parse().expect("formats"));
    let options = named.fold(options, OpenOptions::formats);
    let report = options.measure_sensitivities(tree::root().join(checkpoint), None, &mut ());
    report.unwrap_or_else(|error| panic!("{error} ({:?})", error.help())).0
}

/// Returns the loss of a row in nats per token.
fn loss(report: &SensitivityReport, place: (Option<ComponentKind>, u32), what: &str, format: &str) -> f64 {
    let is_it = |row: &&shardwright_checkpoints::LossRow| {
        row.component == place.0.map(|kind| kind.to_string())
            && row.layer.unwrap_or(0) == place.1
            && (row.what.as_str(), row.format.as_str()) == (what, format)
    };
    let row = report.losses.iter().find(is_it);
    row.and_then(|row| row.micronats).unwrap_or_else(|| panic!("no {place:?} {what} {format}")) / 1e6
}

#[test]
fn losses_are_those_of_the_reference() {
    let formats = [WeightFormat::W8PerChannel, WeightFormat::W4Block32];
    for fixture in [TEXT_FIXTURES[1], TEXT_FIXTURES[3], EMBEDDING_FIXTURE] {
        let report = measured(fixture, &formats.map(|format| format.name()));
        let checkpoint = open_checkpoint(&tree::root().join(fixture)).expect("it opens");
        let graph = checkpoint.graph();
        let sequences = sensitivity_text(&checkpoint, &Default::default()).expect("a text");
        let baseline = Baseline::of(graph, &sequences).expect("the reference runs it");
        let of = |change: Change| {
            let rows = baseline.divergences(&change.recipe(graph)).expect("the reference runs it");
            let (sum, count) = rows.iter().fold((0.0, 0), |all, own| (all.0 + own.0, all.1 + own.1));
            (sum / count as f64).max(0.0)
        };
        let near = |found: f64, wanted: f64, what: String| {
            let apart = (found - wanted).abs();
            assert!(apart <= NOISE + TOLERANCE * wanted, "{fixture} {what}: {found:e} {wanted:e}");
        };
        for (component, layer, role) in places(graph).into_keys() {
            for format in formats {
                let wanted = of(Change::Weights { component, layer, role, format });
                let found = loss(&report, (Some(component), layer), role.name(), format.name());
                near(found, wanted, format!("{component} {layer} {role} {format}"));
            }
        }
        for (table, format) in table_pairs(graph, &formats) {
            let wanted = of(Change::Table { table: table as u32, format });
            let name = &graph.assets[table].name;
            near(loss(&report, (None, 0), name, format.name()), wanted, format!("{name} {format}"));
        }
    }
}

/// Values in fewer bits lose more, wherever they are. None of them loses as much as all weights in
/// 4 bits.
#[test]
fn values_lose_more_in_fewer_bits() {
    let report = measured(TEXT_FIXTURES[1], &["bf16/a16/a16", "w4-block32/a8-dynamic/a8"]);
    let of = |what: &str, format: &str| -> Vec<f64> {
        let rows = report.losses.iter().filter(|row| (&*row.what, &*row.format) == (what, format));
        rows.filter_map(|row| row.micronats).collect()
    };
    for (what, wide, narrow) in [("activations", "a16", "a8-dynamic"), ("states", "a16", "a8")] {
        let (wide, narrow) = (of(what, wide), of(what, narrow));
        assert!(wide.len() > 2 && wide.len() == narrow.len(), "{what}: {wide:?} {narrow:?}");
        assert!(narrow.iter().all(|loss| *loss > 0.0), "{what}: {narrow:?}");
        assert!(wide.iter().sum::<f64>() < narrow.iter().sum::<f64>(), "{what}: {wide:?} {narrow:?}");
        assert!(narrow.iter().all(|loss| *loss < report.formats[0].micronats.expect("known")));
    }
}
