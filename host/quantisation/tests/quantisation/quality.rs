//! The loss of formats, by combination, and by layer and role.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use shardwright_graph::{ComponentKind, ConstantFormat, Ranges};
use shardwright_quantisation::{
    Calibrator, Candidate, Change, Compensated, ExpectedLosses, IntegerBits, Loss, MatrixInputs, MomentSums,
    Moments, RangeMethod, TableFormats, evaluate, losses_identity, moment_priors, places, priors,
    weights_read,
};
use shardwright_test_checkpoints::Spec;
use shardwright_vocabulary::{
    ActivationFormat, ErrorKind, FormatTuple, StateFormat, ValueFormat, WeightFormat, WeightRole,
};
use tempfile::TempDir;

use crate::calibration::{expect_invalid, graph_of, sealed, sequences};

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
    expect_invalid(&of(&[]), "no token sequences");
    expect_invalid(&of(&[vec![30]]), "no sequence has two tokens");
    let error = evaluate(&graph, &none, &Ranges::new(), &[vec![30, 31]], &mut |_, _| ControlFlow::Break(()));
    assert_eq!(error.unwrap_err().kind(), ErrorKind::Cancelled);
    let a16 = [candidate(WeightFormat::W8PerChannel, ActivationFormat::A16, StateFormat::F32)];
    let error = evaluate(&graph, &a16, &Ranges::new(), &[vec![30, 31]], &mut on).unwrap_err();
    assert!(error.to_string().contains("no range of") && error.help().is_some(), "{error}");
}

/// Returns one change of each kind.
fn changes() -> [Change; 4] {
    let (component, layer) = (ComponentKind::Decoder, 1);
    let format = WeightFormat::W4Block32;
    [
        Change::Weights { component, layer, role: WeightRole::MlpInput, format },
        Change::Values { component, layer, format: ValueFormat::Activations(ActivationFormat::A16) },
        Change::Values { component, layer, format: ValueFormat::States(StateFormat::A16) },
        Change::Table { table: 1, format },
    ]
}

#[test]
fn a_change_is_one_place_in_another_format() {
    let graph = graph_of(&Spec { layers: "SFSF".to_owned(), kv_shared: 1, ..Spec::gemma4() });
    // Five roles in each of four layers, the projection to per-layer inputs, the head.
    assert_eq!(places(&graph).len(), 4 * 5 + 2);
    let [weights, activations, states, table] = changes();
    let recipe = weights.recipe(&graph);
    let changed: Vec<&str> = recipe
        .weights
        .iter()
        .zip(&graph.weights)
        .filter(|(format, _)| **format == ConstantFormat::Matrix(WeightFormat::W4Block32))
        .map(|(_, weight)| &*weight.name)
        .collect();
    assert!(changed.len() == 2 && changed.iter().all(|name| name.contains("layers.1.mlp.")), "{changed:?}");
    assert!(recipe.weights.iter().filter(|format| **format != ConstantFormat::Stored).count() == 2);
    assert_eq!(table.recipe(&graph).tables, TableFormats::one(1, WeightFormat::W4Block32));
    for values in [activations, states] {
        assert!(values.recipe(&graph).weights.iter().all(|format| *format == ConstantFormat::Stored));
        assert!(values.needs_ranges() && !weights.needs_ranges() && !table.needs_ranges());
    }
    // The weights read by a layer include all its matrices.
    let read = weights_read(&graph);
    for ((component, layer, _), weights) in places(&graph) {
        assert!(weights.iter().all(|weight| read[&(component, layer)].contains(weight)));
    }
}

#[test]
fn losses_survive_their_files_and_nothing_else_does() {
    let directory = TempDir::new().unwrap();
    let folder = directory.path();
    for (index, change) in changes().into_iter().enumerate() {
        // Losses are rounded up.
        let loss = Loss::of(change, 1e-9 * (index as f64 - 0.5).max(0.0));
        loss.write(folder).unwrap();
        assert_eq!(Loss::read(folder, &change).unwrap(), loss);
        assert_eq!(loss.nanonats, index as u64);
    }
    let nanonats = |nats| Loss::of(changes()[0], nats).nanonats;
    // A divergence that is not finite is the largest loss.
    assert_eq!((nanonats(f64::NAN), nanonats(1e-15)), (u64::MAX, 1));
    let [weights, _, _, table] = changes();
    let path = Loss::path(folder, &weights);
    let sound = std::fs::read(&path).unwrap();
    std::fs::write(Loss::path(folder, &table), &sound).unwrap();
    let error = Loss::read(folder, &table).unwrap_err();
    expect_invalid(&error, "damaged: the change");
    for at in (0..sound.len()).step_by(7) {
        let mut bytes = sound.clone();
        bytes[at] ^= 4;
        std::fs::write(&path, bytes).unwrap();
        assert!(Loss::read(folder, &weights).is_err(), "byte {at}");
    }
    let text = String::from_utf8(sound[52..].to_vec()).unwrap();
    for (from, to) in [("\"nanonats\":", "\"nanonats\":-"), ("mlp-input", "mlp-middle"), ("}", "")] {
        std::fs::write(&path, sealed(&sound, text.replace(from, to).as_bytes())).unwrap();
        let error = Loss::read(folder, &weights).unwrap_err();
        expect_invalid(&error, "damaged: ");
    }
    std::fs::write(&path, sealed(&sound, &[b' '; 1 << 13])).unwrap();
    let error = Loss::read(folder, &weights).unwrap_err();
    expect_invalid(&error, "expected at most 4096 bytes, got 8192");

    let format = WeightFormat::W4Block32;
    let losses = priors(&graph_of(&Spec::gemma3()), &[format], None).unwrap();
    let expected = ExpectedLosses { format, losses };
    expected.write(folder).unwrap();
    assert_eq!(ExpectedLosses::read(folder, format).unwrap(), expected);
    let other = ExpectedLosses::path(folder, WeightFormat::W2PerChannel);
    std::fs::copy(ExpectedLosses::path(folder, format), other).unwrap();
    let error = ExpectedLosses::read(folder, WeightFormat::W2PerChannel).unwrap_err();
    expect_invalid(&error, "damaged: the format");
}

#[test]
fn losses_of_other_content_are_others() {
    let sequences = [vec![1, 2], vec![3]];
    let of = losses_identity([5; 32], &sequences, None);
    assert_eq!(of, losses_identity([5; 32], &sequences, None));
    for other in [
        losses_identity([6; 32], &sequences, None),
        losses_identity([5; 32], &[vec![1], vec![2, 3]], None),
        losses_identity([5; 32], &sequences, Some([0; 32])),
    ] {
        assert_ne!(of, other);
    }
}

/// If all columns are alike and uncorrelated, products are off as much as values are, so both
/// estimates must agree up to a constant.
#[test]
fn expectations_by_moments_are_those_by_values_where_columns_are_alike() {
    let graph = graph_of(&Spec::gemma4());
    let formats = [WeightFormat::W8PerChannel, WeightFormat::W4Block32];
    let inputs = MatrixInputs::new(&graph).unwrap();
    let alike = |width: usize| {
        let mut sums = MomentSums::new(width);
        for column in 0..width {
            let mut row = vec![0.0; width];
            row[column] = 2.0;
            sums.add(&row);
        }
        sums.finish()
    };
    let taken = inputs.widths.iter().map(|(key, &width)| (key.clone(), alike(width))).collect();
    let moments = Moments::new([1; 32], inputs.clone(), taken);
    let (plain, own) =
        (priors(&graph, &formats, None).unwrap(), moment_priors(&graph, &formats, &moments, None).unwrap());
    assert_eq!(plain.len(), own.len());
    // Only the constant of the role differs.
    let mut quotients: BTreeMap<WeightRole, f64> = BTreeMap::new();
    for (plain, own) in plain.iter().zip(&own) {
        assert_eq!(plain.change(), own.change());
        if plain.micronats > 1000 {
            let quotient = own.micronats as f64 / plain.micronats as f64;
            let of_role = quotients.entry(plain.role).or_insert(quotient);
            assert!((quotient / *of_role - 1.0).abs() < 0.01, "{plain:?} {own:?}");
        }
    }
    assert!(quotients.len() >= 5, "{quotients:?}");
    // A matrix without moments uses its values.
    let none = Moments::new([2; 32], inputs, BTreeMap::new());
    assert_eq!(moment_priors(&graph, &formats, &none, Some(Compensated::All)).unwrap(), own);
    let encoder = graph_of(&Spec::embeddinggemma());
    assert!(moment_priors(&encoder, &formats, &none, None).unwrap().is_empty());
}
