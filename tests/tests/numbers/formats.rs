//! Bounds on the quality cost of formats for the demo model on the CPU shim, on a part of the
//! held-out rows. `benches/formats.rs` uses all of them.

use std::collections::BTreeSet;

use shardwright::WeightFormat;
use shardwright_tests::cache::Cache;
use shardwright_tests::formats::{
    AgainstReference, CASES, Case, Cost, Effort, Recorded, W4_BLOCK32_LOSS_MAX, W8_PER_CHANNEL_LOSS_MAX,
    calibration, held_out, loss_text, moment_texts, open, weight_error,
};

/// Returns the case with these formats and tables as stored.
fn case(formats: &str) -> Case {
    let plain = |case: &&Case| case.formats == formats && case.tables() == "stored";
    *CASES.iter().find(plain).unwrap_or_else(|| panic!("no case {formats}"))
}

#[test]
fn formats_cost_what_they_may() {
    let cache = Cache::for_test();
    // Two prompts, so that 128 tokens are chosen, and every tenth row of prose and chat.
    let part = Recorded::some(2, 10, 96);
    let effort = Effort { rows: 12, steps: 12, greedy: 64 };
    let cost = |formats: &str| Cost::of(case(formats), &part, effort, cache.path());

    let stored = cost("stored");
    assert_eq!((stored.chosen, stored.as_float), (128, 128), "{stored:?}");
    assert!(stored.predicted > 900 && stored.worst_layer().is_none(), "{stored:?}");
    let w8 = cost("w8-per-channel/f32/f32");
    let w8_tensor = cost("w8-per-tensor/f32/f32");
    let w4 = cost("w4-block32/f32/f32");
    let w4_channel = cost("w4-per-channel/f32/f32");
    let w2 = cost("w2-per-channel/f32/f32");
    let a16 = cost("w8-per-channel/a16/a8");
    let a8 = cost("w8-per-channel/a8-dynamic/f32");
    let a8_blocks = cost("w8-per-channel/a8-dynamic-block32/f32");
    let f16 = cost("bf16/f16/f32");
    let all = [&w8, &w8_tensor, &w4, &w4_channel, &w2, &a16, &a8, &a8_blocks, &f16];

    let loss = |cost: &Cost| cost.loss(&stored);
    let losses: Vec<_> = all.iter().map(|cost| (cost.case.formats, loss(cost))).collect();
    println!("{losses:#?}");
    assert!(all.iter().all(|cost| cost.nll.is_finite()), "{losses:?}");
    // Bounded in both directions, because a likelihood that rises by more than that is a fault too.
    assert!(loss(&w8).abs() <= W8_PER_CHANNEL_LOSS_MAX, "{losses:?}");
    assert!(loss(&w4).abs() <= W4_BLOCK32_LOSS_MAX, "{losses:?}");
    assert!(loss(&f16).abs() <= 0.1 && loss(&a16).abs() <= 2.0 && loss(&a8).abs() <= 1.0, "{losses:?}");
    // This short text distinguishes two bits from four. Differences between kinds of scales show
    // only in the errors of single layers.
    assert!(loss(&w4) < loss(&w2) && loss(&w4_channel) < loss(&w2), "{losses:?}");
    let worst = |cost: &Cost| cost.worst_layer().map_or(0.0, |(_, error)| error);
    let errors = [&w8, &w8_tensor, &w4, &w4_channel, &w2].map(worst);
    assert!(errors.is_sorted() && errors[0] > 0.0, "{errors:?}");
    // One scale per block rounds activations less than one scale per row.
    let errors = [&w8, &a8_blocks, &a8].map(worst);
    assert!(errors.is_sorted() && loss(&a8_blocks).abs() <= 0.2, "{errors:?} {losses:?}");
    assert!(w8.as_float > 120 && w4.as_float > 96 && w2.as_float < 64, "{w8:?} {w4:?} {w2:?}");

    // Text outside the calibration set is not clipped.
    let a16_alone = cost("bf16/a16/f32");
    assert!(worst(&a16_alone) < 4e-3, "{a16_alone:?}");

    // Fewer bits need fewer bytes.
    let bytes = [&stored, &w8, &w4, &w4_channel, &w2].map(|cost| cost.weight_bytes);
    assert!(bytes.is_sorted_by(|a, b| a > b), "{bytes:?}");
    assert_eq!(a16.state_bytes * 4, stored.state_bytes);
    assert!(all.iter().all(|cost| cost.table_bytes == stored.table_bytes));

    // The running model agrees with the reference on the same graph.
    for cost in all {
        // Sums of blocks are rounded to f32, so the next product may round a value to the
        // neighbouring step. That changes a row by as much as quantising rows does.
        let bound = if cost.case == a8_blocks.case { 2e-2 } else { 1e-2 };
        assert!(cost.off_reference.1 < bound, "{cost:?}");
    }
    for cost in [&stored, &w8, &w8_tensor, &w4, &w4_channel, &w2] {
        assert!(cost.off_reference.0 < 1e-5, "{cost:?}");
    }
}

/// Error of each format for normally distributed numbers with the best scales. A separate program
/// found them by a fine search over 2,000 rows of 256, with either sign for the scales of blocks.
const NORMAL: [(WeightFormat, f64); 7] = [
    (WeightFormat::W8PerChannel, 0.006_98),
    (WeightFormat::W8PerTensor, 0.009_37),
    (WeightFormat::W4Block32, 0.0808),
    (WeightFormat::W4Block32Stepped, 0.0868),
    (WeightFormat::W4PerChannel, 0.1047),
    (WeightFormat::W4PerTensor, 0.1091),
    (WeightFormat::W2PerChannel, 0.3844),
];

#[test]
fn scales_are_as_good_as_scales_can_be() {
    for (format, best) in NORMAL {
        let error = weight_error(format);
        println!("{format} {error}");
        // The model's matrices are close to normal. A single scale for a whole matrix depends on
        // its largest value.
        assert!((0.98..1.08).contains(&(error / best)), "{format}: {error} of {best}");
    }
}

#[test]
fn the_reference_finds_the_same_likelihood_in_the_same_formats() {
    let cache = Cache::for_test();
    let part = Recorded::some(1, 60, 40);
    let tabled =
        CASES.iter().find(|case| case.embedding == "w8-per-channel" && case.per_layer == "w4-block32");
    // A value near the middle between two steps may be rounded to either side. Everything that
    // depends on it then differs as much as after another rounding. Over some eighty tokens that
    // equals the cost of the format itself. With 65,536 steps the effect is small.
    const EIGHT_BITS: f64 = 1e-2;
    const SIXTEEN_BITS: f64 = 1e-3;
    let cases = [
        (case("stored"), 1e-6),
        (case("w4-block32/f32/f32"), 1e-6),
        (case("w8-per-channel/a16/a16"), SIXTEEN_BITS),
        (case("w8-per-channel/a16/a8"), EIGHT_BITS),
        (case("w8-per-channel/a8-dynamic/f32"), EIGHT_BITS),
        (case("w8-per-channel/a8-dynamic-block32/f32"), EIGHT_BITS),
        (case("w4-block32/a8-dynamic-block32/f32"), EIGHT_BITS),
        (*tabled.expect("a combination with tables"), EIGHT_BITS),
    ];
    let found = AgainstReference::of(&cases.map(|(case, _)| case), &part, cache.path());
    for ((case, bound), both) in cases.iter().zip(found) {
        println!("{} {:?} {:e}", case.formats, both, both.difference());
        assert!(both.difference() <= *bound, "{case:?}: {both:?}");
    }
}

/// Number of consecutive ids that no calibration text shares with an evaluation row.
const WINDOW: usize = 16;

#[test]
fn calibration_and_evaluation_share_no_text() {
    // Only a new calibration is reported.
    let cache = tempfile::tempdir().expect("a temporary folder");
    let model = open(&case("bf16/a16/f32"), cache.path());
    let (calibration, evaluation) = (calibration(), held_out());

    // The model was calibrated on these texts.
    let tokens: usize = calibration.iter().map(Vec::len).sum();
    assert!(calibration.len() > 10 && tokens > 2000 && evaluation.len() == 111);
    let notice_text = format!("calibrated on {tokens} tokens");
    let plan = model.plan().expect("a built model has a plan");
    assert!(
        plan.notices.iter().any(|notice| notice.text.contains(&notice_text)),
        "{notice_text}: {:?}",
        plan.notices
    );

    let moments = moment_texts();
    assert!(moments.iter().all(|text| text.iter().map(Vec::len).sum::<usize>() > 4000));
    let losses = loss_text();
    assert!(losses.iter().map(Vec::len).sum::<usize>() >= 96);
    let texts = || calibration.iter().chain(moments.iter().flatten()).chain(&losses);
    let windows: BTreeSet<&[u32]> = texts().flat_map(|ids| ids.windows(WINDOW)).collect();
    for row in &evaluation {
        assert!(texts().all(|text| text != row));
        assert!(row.windows(WINDOW).all(|window| !windows.contains(window)), "{row:?}");
    }
}
