//! The trained demo model in other formats, run by the reference implementation on a sample of its
//! held-out rows. `examples/format_table.rs` uses all rows.

use std::collections::BTreeSet;
use std::ops::ControlFlow;

use shardwright_graph::{Graph, Ranges, WeightData};
use shardwright_quantisation::{Candidate, IntegerBits, RangeMethod, evaluate, priors};
use shardwright_vocabulary::{ActivationFormat, StateFormat, WeightFormat, WeightRole};

use crate::demo_model::{calibrate, candidate, graph, moments, rows, special};

#[test]
fn calibration_and_evaluation_share_no_row() {
    let (calibration, evaluation) = rows();
    assert_eq!((calibration.len(), evaluation.len()), (12, 99));
    let mut seen: BTreeSet<&[u32]> = BTreeSet::new();
    assert!(calibration.iter().all(|row| seen.insert(row)));
    assert!(evaluation.iter().all(|row| seen.insert(row)));
    assert!(seen.insert(&special()));
    // Not even 32 consecutive ids of a row occur in the other set.
    let windows: BTreeSet<&[u32]> = calibration.iter().flat_map(|row| row.windows(32)).collect();
    assert!(evaluation.iter().flat_map(|row| row.windows(32)).all(|window| !windows.contains(window)));
    // The calibration includes all special ids, and some prose and chat.
    let ids: BTreeSet<u32> = calibration.iter().flatten().copied().chain(special()).collect();
    assert!((7..24).all(|id| ids.contains(&id)));
    assert!(calibration.iter().filter(|row| row.contains(&15)).count() > 3);
}

/// Uses the text that the moments are computed from. Gains on other text are in the benchmarks.
#[test]
fn errors_that_make_up_for_each_other_cost_less() {
    use WeightFormat::{Bf16, W4PerChannel};
    let graph = graph();
    let rows: Vec<Vec<u32>> = rows().0.iter().map(|row| row[..row.len().min(96)].to_vec()).collect();
    let nearest = candidate(W4PerChannel, W4PerChannel, ActivationFormat::F32, StateFormat::F32, Bf16);
    let compensated = Candidate { moments: Some(moments(&graph, &rows)), ..nearest.clone() };
    let candidates = [nearest, compensated];
    let mut on = |_: u64, _: u64| ControlFlow::Continue(());
    let table = evaluate(&graph, &candidates, &Ranges::new(), &rows[..4], &mut on).unwrap();
    let [nearest, compensated] = [0, 1].map(|at| table.rows[at].divergence);
    assert!(compensated < 0.85 * nearest, "{compensated} of {nearest}");
    assert_eq!(table.rows[0].weight_bytes, table.rows[1].weight_bytes);
}

#[test]
fn the_demo_model_keeps_its_likelihood() {
    use ActivationFormat::{A8Dynamic, A16, F32};
    use WeightFormat::{Bf16, W4Block32, W8PerChannel};
    let graph = graph();
    let (calibration, evaluation) = rows();
    // Prose and chat. Only the first 64 ids of each, to limit the time of the test.
    let first = |rows: &[Vec<u32>], every: usize, length: usize| -> Vec<Vec<u32>> {
        rows.iter().step_by(every).map(|row| row[..row.len().min(length)].to_vec()).collect()
    };
    let calibration = calibrate(&graph, &first(&calibration, 4, 64));
    let evaluation = first(&evaluation, 14, 64);
    assert!(evaluation.iter().all(|row| !calibration.has_seen(row)));
    let ranges = calibration.ranges(RangeMethod::MinMax, IntegerBits::Sixteen).unwrap();

    let candidates = [
        candidate(W8PerChannel, W8PerChannel, F32, StateFormat::F32, Bf16),
        candidate(W4Block32, W4Block32, F32, StateFormat::F32, Bf16),
        candidate(Bf16, Bf16, A16, StateFormat::A16, Bf16),
        candidate(W8PerChannel, W8PerChannel, A8Dynamic, StateFormat::F16, W8PerChannel),
    ];
    let table =
        evaluate(&graph, &candidates, &ranges, &evaluation, &mut |_, _| ControlFlow::Continue(())).unwrap();
    let losses: Vec<f64> = table.rows.iter().map(|row| row.loss_per_mille).collect();
    let limits = [5.0, 30.0, 5.0, 10.0];
    for (row, limit) in table.rows.iter().zip(limits) {
        assert!(
            row.loss_per_mille <= limit,
            "{} loses {} of at most {limit} per mille",
            row.formats,
            row.loss_per_mille
        );
    }
    let divergence: Vec<f64> = table.rows.iter().map(|row| row.divergence).collect();
    assert!(divergence[0] < 0.01 && divergence[2] < 0.01, "{losses:?} {divergence:?}");
    assert!(divergence[1] < 0.3, "{losses:?} {divergence:?}");
    let bytes = |at: usize| table.rows[at].weight_bytes + table.rows[at].table_bytes;
    assert!(bytes(3) < table.stored_bytes * 53 / 100, "{} of {}", bytes(3), table.stored_bytes);
}

#[test]
fn priors_are_near_what_was_measured() {
    /// The priors are fitted to published models, which lose this many times as much as the demo
    /// model.
    const PUBLISHED: f64 = 2.5;
    use WeightFormat::{W2PerChannel, W4Block32, W4PerChannel, W8PerChannel};
    use WeightRole::{AttentionInput, AttentionOutput, Head, MlpInput, MlpOutput, PerLayer};
    // Sums over the layers, as measured by `format_table -- 24 --places`.
    let measured = [
        (AttentionInput, [250, 33_990, 59_285]),
        (AttentionOutput, [94, 15_485, 23_702]),
        (Head, [112, 15_251, 25_279]),
        (MlpInput, [318, 43_060, 70_998]),
        (MlpOutput, [178, 20_159, 34_952]),
        (PerLayer, [81, 15_917, 20_208]),
    ];
    let formats = [W8PerChannel, W4Block32, W4PerChannel];
    let graph = graph();
    let expected = priors(&graph, &formats, None).unwrap();
    assert_eq!(expected, priors(&graph, &formats, None).unwrap());
    for (role, losses) in measured {
        for (format, measured) in formats.into_iter().zip(losses) {
            let own = expected.iter().filter(|row| (row.role, row.format) == (role, format));
            let sum: u64 = own.map(|row| row.micronats).sum();
            assert!(
                (sum as f64 / PUBLISHED / f64::from(measured) - 1.0).abs() < 0.2,
                "{role} {format}: {sum} {measured}"
            );
        }
    }
    // Weights without bytes give the same estimates within a half, and narrower formats lose more.
    let formats = [W8PerChannel, W4Block32, W4PerChannel, W2PerChannel];
    let sums = |graph: &Graph| {
        let rows = priors(graph, &formats, None).unwrap();
        formats.map(|format| -> u64 {
            rows.iter().filter(|row| row.format == format).map(|row| row.micronats).sum()
        })
    };
    let mut without = graph.clone();
    for weight in &mut without.weights {
        weight.data = WeightData::planned(weight.data.length());
    }
    let (own, drawn) = (sums(&graph), sums(&without));
    assert!(own.is_sorted() && drawn.is_sorted(), "{own:?} {drawn:?}");
    for (own, drawn) in own.into_iter().zip(drawn) {
        assert!(drawn * 2 > own && drawn * 2 < own * 3, "{own} {drawn}");
    }
}
