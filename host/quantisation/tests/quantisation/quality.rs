//! What formats cost: by combination, by layer and role.

use std::ops::ControlFlow;

use shardwright_graph::{ComponentKind, Ranges};
use shardwright_quantisation::{
    CalibrationError, Calibrator, Candidate, IntegerBits, MeasuredError, MeasuredFormats, RangeMethod,
    Sensitivities, TableFormats, evaluate,
};
use shardwright_test_checkpoints::Spec;
use shardwright_vocabulary::{
    ActivationFormat, FormatTuple, StateFormat, ValueFormat, WeightFormat, WeightRole,
};
use tempfile::TempDir;

use crate::calibration::{graph_of, sealed, sequences};

fn on(_: u64, _: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

fn candidate(weights: WeightFormat, activations: ActivationFormat, states: StateFormat) -> Candidate {
    let formats = FormatTuple::uniform(weights, activations, states);
    let tables = TableFormats { embedding: Some(WeightFormat::Bf16), per_layer: None };
    Candidate { formats, tables, moments: None }
}

#[test]
fn fewer_bits_cost_more() {
    let graph = graph_of(&Spec::gemma4());
    let sequences = sequences(3, 14);
    let mut calibrator = Calibrator::new(&graph, [0; 32]).unwrap();
    sequences[..2].iter().for_each(|ids| calibrator.add(ids).unwrap());
    let ranges = calibrator.finish().unwrap().ranges(RangeMethod::MinMax, IntegerBits::Sixteen).unwrap();
    let candidates = [
        candidate(WeightFormat::Bf16, ActivationFormat::F32, StateFormat::F32),
        candidate(WeightFormat::W8PerChannel, ActivationFormat::F32, StateFormat::F32),
        candidate(WeightFormat::W4Block32, ActivationFormat::F32, StateFormat::F32),
        candidate(WeightFormat::W2PerChannel, ActivationFormat::F32, StateFormat::F32),
        candidate(WeightFormat::W8PerChannel, ActivationFormat::A16, StateFormat::A16),
        candidate(WeightFormat::W8PerChannel, ActivationFormat::A8Dynamic, StateFormat::F16),
    ];
    let mut heard = Vec::new();
    let table = evaluate(&graph, &candidates, &ranges, &sequences, &mut |done, total| {
        heard.push((done, total));
        ControlFlow::Continue(())
    })
    .unwrap();
    assert_eq!(heard, (1..=21).map(|done| (done, 21)).collect::<Vec<_>>());
    assert_eq!((table.sequences, table.predictions, table.rows.len()), (3, 39, 6));
    let divergence: Vec<f64> = table.rows.iter().map(|row| row.divergence).collect();
    assert_eq!((divergence[0], table.rows[0].loss_per_mille, table.rows[0].worst_layer), (0.0, 0.0, None));
    assert_eq!(table.rows[0].nll, table.nll);
    assert!(divergence[..4].is_sorted() && divergence[1] > 0.0, "{divergence:?}");
    assert!(divergence[4] < divergence[2] && divergence[5] < divergence[2], "{divergence:?}");
    let bytes: Vec<u64> = table.rows.iter().map(|row| row.weight_bytes).collect();
    assert!(bytes[..4].is_sorted_by(|a, b| a > b), "{bytes:?}");
    assert_eq!(table.stored_bytes, table.rows[0].weight_bytes + table.rows[0].table_bytes);
    for row in &table.rows[1..] {
        let (layer, error) = row.worst_layer.unwrap();
        assert!(layer < 6 && error > 0.0 && error.is_finite());
        assert_eq!(row.tables, "bf16, stored");
    }
    assert_eq!(table.rows[4].formats, "w8-per-channel/a16/a16");
    assert!(serde_json::to_string(&table).unwrap().contains("\"worst_layer\":null"));

    let encoder = graph_of(&Spec::embeddinggemma());
    let table = evaluate(&encoder, &candidates[1..3], &Ranges::new(), &sequences, &mut on).unwrap();
    assert_eq!((table.nll, table.predictions), (None, 0));
    assert!(
        table.rows[0].loss_per_mille > 0.0 && table.rows[0].loss_per_mille < table.rows[1].loss_per_mille
    );
}

#[test]
fn what_cannot_be_evaluated_says_why() {
    let graph = graph_of(&Spec::gemma3());
    let none: [Candidate; 0] = [];
    let of =
        |sequences: &[Vec<u32>]| evaluate(&graph, &none, &Ranges::new(), sequences, &mut on).unwrap_err();
    assert!(matches!(of(&[]), CalibrationError::NoSequences));
    let error = of(&[vec![30]]);
    assert!(matches!(error, CalibrationError::NoPredictions) && error.help().is_some(), "{error}");
    let error = evaluate(&graph, &none, &Ranges::new(), &[vec![30, 31]], &mut |_, _| ControlFlow::Break(()));
    assert!(matches!(error, Err(CalibrationError::Cancelled)));
    let a16 = [candidate(WeightFormat::W8PerChannel, ActivationFormat::A16, StateFormat::F32)];
    let error = evaluate(&graph, &a16, &Ranges::new(), &[vec![30, 31]], &mut on).unwrap_err();
    assert!(matches!(error, CalibrationError::Reference(_)) && error.help().is_some(), "{error}");
}

#[test]
fn sensitivities_cover_every_place_and_survive_their_file() {
    let graph = graph_of(&Spec { layers: "SFSF".to_owned(), kv_shared: 1, ..Spec::gemma4() });
    let formats = [WeightFormat::W8PerChannel, WeightFormat::W2PerChannel];
    let wanted = MeasuredFormats { weights: &formats, ..MeasuredFormats::default() };
    let values = [
        ValueFormat::Activations(ActivationFormat::A16),
        ValueFormat::Activations(ActivationFormat::A8Dynamic),
        ValueFormat::States(StateFormat::A16),
        ValueFormat::States(StateFormat::A8),
    ];
    let sequences = sequences(1, 10);
    let mut last = (0, 0);
    let measured = Sensitivities::measure(
        &graph,
        [5; 32],
        &MeasuredFormats { weights: &formats, tables: &formats, values: &values },
        None,
        &sequences,
        &mut |done, total| {
            last = (done, total);
            ControlFlow::Continue(())
        },
    )
    .unwrap();
    // Five roles in each of four layers, the projection to per-layer inputs, the head.
    assert_eq!(measured.rows().len(), 2 * (4 * 5 + 2));
    assert_eq!((last, measured.tokens()), ((53, 53), 10));
    let tables: Vec<_> = measured.tables().iter().map(|row| (row.table, row.format)).collect();
    assert_eq!(tables, [0, 1].map(|table| formats.map(|format| (table, format))).concat());
    let of_values: Vec<_> = measured.values().iter().map(|row| row.format).collect();
    assert_eq!(of_values, values);
    for pair in measured.values().chunks(2) {
        assert!(pair[0].micronats < pair[1].micronats, "{pair:?}");
    }
    for pair in measured.tables().chunks(2) {
        assert!(0 < pair[0].micronats && pair[0].micronats < pair[1].micronats, "{pair:?}");
    }
    let loss = |component, layer, role, format| {
        let found = measured
            .rows()
            .iter()
            .find(|row| (row.component, row.layer, row.role, row.format) == (component, layer, role, format));
        found.unwrap().micronats
    };
    for row in measured.rows().iter().filter(|row| row.format == WeightFormat::W8PerChannel) {
        let coarse = loss(row.component, row.layer, row.role, WeightFormat::W2PerChannel);
        assert!(row.micronats < coarse, "{row:?} {coarse}");
        assert!(row.micronats > 0, "eight bits lose little, not nothing: {row:?}");
    }
    assert!(loss(ComponentKind::Head, 0, WeightRole::Head, WeightFormat::W2PerChannel) > 0);

    let directory = TempDir::new().unwrap();
    let path = directory.path().join("sensitivities");
    measured.write(&path).unwrap();
    assert_eq!(Sensitivities::read(&path, [5; 32]).unwrap(), measured);
    let error = Sensitivities::read(&path, [6; 32]).unwrap_err();
    assert!(matches!(error, MeasuredError::OtherCheckpoint { .. }), "{error}");
    let sound = std::fs::read(&path).unwrap();
    for at in (0..sound.len()).step_by(37) {
        let mut bytes = sound.clone();
        bytes[at] ^= 4;
        std::fs::write(&path, bytes).unwrap();
        assert!(Sensitivities::read(&path, [5; 32]).is_err(), "byte {at}");
    }
    let text = String::from_utf8(sound[52..].to_vec()).unwrap();
    for (from, to) in
        [("\"micronats\":", "\"micronats\":-"), ("\"role\":\"head\"", "\"role\":\"tail\""), ("}", "")]
    {
        std::fs::write(&path, sealed(&sound, text.replace(from, to).as_bytes())).unwrap();
        let error = Sensitivities::read(&path, [5; 32]).unwrap_err();
        assert!(matches!(error, MeasuredError::Damaged { .. }), "{error}");
    }
    let error = Sensitivities::measure(&graph, [5; 32], &wanted, None, &[], &mut on);
    assert!(matches!(error, Err(CalibrationError::NoSequences)));
    let error = Sensitivities::measure(&graph, [5; 32], &wanted, None, &[vec![30]], &mut on);
    assert!(matches!(error, Err(CalibrationError::NoPredictions)));
    let error =
        Sensitivities::measure(
            &graph,
            [5; 32],
            &wanted,
            None,
            &sequences,
            &mut |_, _| ControlFlow::Break(()),
        );
    assert!(matches!(error, Err(CalibrationError::Cancelled)));
}
