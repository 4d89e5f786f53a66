use proptest::prelude::*;
use shardwright_shim_testing::bits;

use super::*;

fn close(got: &[f32], exact: &[f64], what: &str) {
    for (index, (got, exact)) in got.iter().zip(exact).enumerate() {
        let error = (f64::from(*got) - exact).abs();
        assert!(error <= 3e-6 * exact.abs().max(0.1), "{what}[{index}] is {got}, exactly {exact}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]
    #[test]
    fn agree_with_the_definition_at_every_level(
        width in 1usize..200, groups in 1usize..9, offset in 0u8..2, with_weight: bool,
        raw in prop::collection::vec(-4.0f32..4.0, 200 * 9 + 200),
    ) {
        let (x, weight) = (&raw[..width * groups], &raw[200 * 9..200 * 9 + width]);
        let norm = RmsNorm { width, eps: 1e-6, offset: f32::from(offset) };
        let wide = |x: &[f32]| x.iter().map(|v| f64::from(*v)).collect::<Vec<f64>>();
        let mut exact = [Vec::new(), Vec::new(), Vec::new()];
        for group in wide(x).chunks(width) {
            let squares: f64 = group.iter().map(|v| v * v).sum();
            let root = (squares / width as f64 + f64::from(norm.eps)).sqrt();
            let largest = group.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let sum: f64 = group.iter().map(|v| (v - largest).exp()).sum();
            for (index, v) in group.iter().enumerate() {
                let factor = if with_weight { f64::from(weight[index]) + f64::from(norm.offset) } else { 1.0 };
                exact[0].push(v / root * factor);
                exact[1].push(v / squares.sqrt().max(1e-12));
                exact[2].push((v - largest).exp() / sum);
            }
        }
        let run = |level, threads| {
            let pool = Pool::eager(threads);
            let mut out = vec![vec![f32::NAN; x.len()]; 3];
            rms_norm(level, &pool, norm, x, with_weight.then_some(weight), None, groups, &mut out[0]);
            // A residual is added to the result without it.
            let residual: Vec<f32> = x.iter().rev().copied().collect();
            let mut added = vec![0.0; out[0].len()];
            let weight = with_weight.then_some(weight);
            rms_norm(level, &pool, norm, x, weight, Some(&residual), groups, &mut added);
            for ((added, plain), residual) in added.iter().zip(&out[0]).zip(&residual) {
                assert_eq!(added.to_bits(), (residual + plain).to_bits());
            }
            l2_normalize(level, &pool, x, width, groups, &mut out[1]);
            softmax(level, &pool, x, width, groups, &mut out[2]);
            out
        };
        let expected = run(Level::Scalar, 1);
        for (kind, what) in ["rms", "l2", "softmax"].into_iter().enumerate() {
            close(&expected[kind], &exact[kind], what);
        }
        for level in Level::available() {
            for threads in [1, 3] {
                for (got, expected) in run(level, threads).iter().zip(&expected) {
                    prop_assert_eq!(bits(got), bits(expected), "{} on {} threads", level.name(), threads);
                }
            }
        }
    }
}

#[test]
fn a_zero_vector_stays_zero() {
    let mut out = [1.0f32; 4];
    l2_normalize(Level::detect(), &Pool::eager(1), &[0.0; 4], 4, 1, &mut out);
    assert_eq!(out, [0.0; 4]);
}
