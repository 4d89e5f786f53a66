//! Differences of rows: relative error and cosine, row by row.

use crate::report::RowComparison;
use crate::thresholds::Thresholds;

/// Share of the rows that the p95 bounds cover (nearest rank). The worst row has its own bound.
const PERCENTILE: f64 = 0.95;

/// How far apart two correct results of a row may be, as a multiple of the effect of rounding on
/// that row. Once a value near the middle between two steps is rounded to different sides, each
/// result has this error from the unrounded result, independently of the other, so their squares
/// add up.
const APART: f64 = std::f64::consts::SQRT_2;

/// Collects differences of rows over runs. Needs 40 bytes per row.
#[derive(Debug, Default)]
pub(crate) struct RowErrors {
    rows: Vec<RowError>,
    /// Number of rows with a value that is not finite.
    not_finite: u64,
    worst: f64,
    /// Prompt, position and block of the worst row.
    worst_at: Option<(String, usize, usize)>,
}

#[derive(Clone, Copy, Debug)]
struct RowError {
    error: f64,
    cosine: f64,
    /// Effect of rounding on the row, or 0 if it was not requested.
    rounding: f64,
}

/// Largest error that rounding excuses. A row of zeros has an error of 1 and must never pass.
const MOST_APART: f64 = 0.5;

impl RowError {
    /// Returns the error that rounding excuses. Rounding that is not finite excuses none.
    fn excused(&self) -> f64 {
        if self.rounding.is_finite() { (APART * self.rounding).min(MOST_APART) } else { 0.0 }
    }

    /// Returns the error as a share of the bound or of the excused error, whichever is larger.
    fn share_of(&self, bound: f64) -> f64 {
        self.error / bound.max(self.excused()).max(f64::MIN_POSITIVE)
    }

    /// Returns the turn, 1 − cosine, as a share of the bound or of the turn of the excused error,
    /// whichever is larger.
    fn turn_share_of(&self, bound: f64) -> f64 {
        let excused = 1.0 - (1.0 - self.excused().powi(2)).sqrt();
        (1.0 - self.cosine) / bound.max(excused).max(f64::MIN_POSITIVE)
    }
}

impl RowErrors {
    /// Enters one row. `at` returns its prompt, position and block, and is called if it is the
    /// worst row so far.
    pub(crate) fn add(&mut self, got: &[f32], wanted: &[f32], at: impl FnOnce() -> (String, usize, usize)) {
        self.add_rounded(got, wanted, 0.0, at);
    }

    /// Enters one row on which rounding has an effect of `rounding`, relative to its length.
    pub(crate) fn add_rounded(
        &mut self,
        got: &[f32],
        wanted: &[f32],
        rounding: f64,
        at: impl FnOnce() -> (String, usize, usize),
    ) {
        let (error, cosine) = difference(got, wanted);
        self.not_finite += u64::from(got.iter().chain(wanted).any(|value| !value.is_finite()));
        self.rows.push(RowError { error, cosine, rounding });
        if error > self.worst || self.worst_at.is_none() {
            self.worst = error;
            self.worst_at = Some(at());
        }
    }

    /// Returns the judged summary.
    pub(crate) fn compare(
        self,
        what: String,
        layer: Option<u32>,
        after: Option<String>,
        thresholds: &Thresholds,
    ) -> RowComparison {
        let rows = self.rows.len();
        let rank = ((rows as f64 * PERCENTILE).ceil() as usize).saturating_sub(1);
        let sorted = |of: &dyn Fn(&RowError) -> f64| {
            let mut values: Vec<f64> = self.rows.iter().map(of).collect();
            values.sort_by(f64::total_cmp);
            values
        };
        let at_rank = |values: &[f64], none: f64| values.get(rank).copied().unwrap_or(none);
        let errors = sorted(&|row| row.error);
        // From the largest cosine down.
        let turned = sorted(&|row| -row.cosine);
        let usual = sorted(&|row| row.share_of(thresholds.row_p95));
        let worst = sorted(&|row| row.share_of(thresholds.row_worst));
        let turns = sorted(&|row| row.turn_share_of(1.0 - thresholds.cosine));
        let rounding = sorted(&|row| row.rounding);
        RowComparison {
            passed: at_rank(&usual, 0.0) <= 1.0
                && worst.last().copied().unwrap_or(0.0) <= 1.0
                && at_rank(&turns, 0.0) <= 1.0,
            what,
            layer,
            after,
            rows: rows as u64,
            not_finite: self.not_finite,
            relative_p95: at_rank(&errors, 0.0),
            relative_worst: self.worst,
            rounding_p95: Some(at_rank(&rounding, 0.0)).filter(|rounding| *rounding > 0.0),
            worst_at: match &self.worst_at {
                None => String::new(),
                Some((prompt, position, 0)) => format!("{prompt} position {position}"),
                Some((prompt, position, block)) => format!("{prompt} position {position} block {block}"),
            },
            worst_place: self.worst_at.as_ref().map(|(prompt, position, _)| (prompt.clone(), *position)),
            cosine_mean: match rows {
                0 => 1.0,
                _ => self.rows.iter().map(|row| row.cosine).sum::<f64>() / rows as f64,
            },
            cosine_p95: -at_rank(&turned, -1.0),
            cosine_worst: -turned.last().copied().unwrap_or(-1.0),
        }
    }
}

/// Returns the largest relative error of rows of `width` values: length of the difference over
/// length of the wanted row. The error is infinite if the lengths differ.
pub(crate) fn largest_error(got: &[f32], wanted: &[f32], width: usize) -> f64 {
    match got.len() == wanted.len() {
        true => errors(got, wanted, width).into_iter().fold(0.0, f64::max),
        false => f64::INFINITY,
    }
}

/// Returns the relative error of each row of `width` values.
pub(crate) fn errors(got: &[f32], wanted: &[f32], width: usize) -> Vec<f64> {
    let rows = got.chunks(width.max(1)).zip(wanted.chunks(width.max(1)));
    rows.map(|(got, wanted)| difference(got, wanted).0).collect()
}

/// Returns the length of the difference over the length of the wanted row, and the cosine of the
/// angle between both rows. The error is infinite for NaN and for rows of different lengths. Two
/// rows of zeros are equal.
fn difference(got: &[f32], wanted: &[f32]) -> (f64, f64) {
    if got.len() != wanted.len() {
        return (f64::INFINITY, -1.0);
    }
    let (mut off, mut dot, mut got_length, mut wanted_length) = (0.0_f64, 0.0_f64, 0.0_f64, 0.0_f64);
    for (&got, &wanted) in got.iter().zip(wanted) {
        let (got, wanted) = (f64::from(got), f64::from(wanted));
        off += (got - wanted) * (got - wanted);
        dot += got * wanted;
        got_length += got * got;
        wanted_length += wanted * wanted;
    }
    if off == 0.0 {
        return (0.0, 1.0);
    }
    let error = (off / wanted_length).sqrt();
    let cosine = dot / (got_length * wanted_length).sqrt();
    match error.is_nan() || !off.is_finite() {
        true => (f64::INFINITY, -1.0),
        // One of the rows is zero, so there is no angle.
        false if cosine.is_nan() => (error, 0.0),
        false => (error, cosine.clamp(-1.0, 1.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::report::{EntryVerification, ShardVerification};

    #[test]
    fn rows_differ_by_length_and_angle() {
        let cases: [(&[f32], &[f32], f64, f64); 9] = [
            (&[3.0, 4.0], &[3.0, 4.0], 0.0, 1.0),
            (&[0.0, 0.0], &[0.0, 0.0], 0.0, 1.0),
            (&[6.0, 8.0], &[3.0, 4.0], 1.0, 1.0),
            (&[-3.0, -4.0], &[3.0, 4.0], 2.0, -1.0),
            (&[4.0, -3.0], &[3.0, 4.0], 2.0_f64.sqrt(), 0.0),
            (&[0.0, 0.0], &[3.0, 4.0], 1.0, 0.0),
            (&[1.0, 0.0], &[0.0, 0.0], f64::INFINITY, 0.0),
            (&[f32::NAN, 4.0], &[3.0, 4.0], f64::INFINITY, -1.0),
            (&[3.0], &[3.0, 4.0], f64::INFINITY, -1.0),
        ];
        for (got, wanted, error, cosine) in cases {
            let found = difference(got, wanted);
            let close = |a: f64, b: f64| a == b || (a - b).abs() < 1e-12;
            assert!(close(found.0, error) && close(found.1, cosine), "{got:?} {wanted:?}: {found:?}");
        }
        assert_eq!(difference(&[f32::INFINITY, 0.0], &[1.0, 0.0]), (f64::INFINITY, -1.0));
        // A row's error is relative to that row, however large another one is.
        let (got, wanted) = ([3.0, 4.0, 1e5, 0.0], [3.0, 5.0, 1e5, 1.0]);
        assert!((largest_error(&got, &wanted, 2) - 1.0 / 34.0_f64.sqrt()).abs() < 1e-12);
        assert_eq!(largest_error(&got[..2], &wanted, 2), f64::INFINITY);
    }

    #[test]
    fn rows_that_are_not_finite_are_counted_and_never_pass() {
        let mut errors = RowErrors::default();
        let infinite = f32::INFINITY;
        for (got, wanted) in [(1.0, 1.0), (infinite, 1.0), (infinite, infinite), (1.0, f32::NAN)] {
            errors.add(&[got], &[wanted], || (String::new(), 0, 0));
        }
        let wide = Thresholds { row_p95: 1e9, row_worst: 1e9, cosine: -1.0, ..Thresholds::SAME_FLOATS };
        let found = errors.compare("layer.3".to_owned(), Some(3), None, &wide);
        assert_eq!((found.rows, found.not_finite, found.passed), (4, 3, false));
        let later = RowComparison { layer: Some(4), not_finite: 2, ..found.clone() };
        let finite = RowComparison { layer: Some(0), not_finite: 0, ..found.clone() };
        let head = RowComparison { what: "logits".to_owned(), layer: None, ..found.clone() };
        let of = |outputs: &[&RowComparison]| ShardVerification {
            shard: "decoder".to_owned(),
            layers: None,
            place: String::new(),
            formats: String::new(),
            entries: vec![EntryVerification {
                entry: String::new(),
                runs: 1,
                fastest: None,
                not_run: None,
                outputs: outputs.iter().map(|&output| output.clone()).collect(),
            }],
            first_divergent_layer: None,
            passed: false,
        };
        assert_eq!(of(&[&later, &finite, &found]).not_finite(), Some((5, "layer 3".to_owned())));
        assert_eq!(of(&[&finite, &head]).not_finite(), Some((3, "logits".to_owned())));
        assert_eq!(of(&[&finite]).not_finite(), None);
    }

    #[test]
    fn the_percentile_leaves_out_what_is_rare_and_the_worst_does_not() {
        let mut errors = RowErrors::default();
        for row in 0..100 {
            let off = if row >= 96 { 0.5 } else { row as f32 * 1e-3 };
            errors.add(&[1.0 + off], &[1.0], || ("p0".to_owned(), row, 0));
        }
        let thresholds = Thresholds { row_p95: 0.1, row_worst: 0.1, cosine: 0.9, ..Thresholds::SAME_FLOATS };
        let found = errors.compare("hidden".to_owned(), Some(3), None, &thresholds);
        assert_eq!((found.rows, found.worst_at.as_str(), found.passed), (100, "p0 position 96", false));
        assert!((found.relative_p95 - 0.094).abs() < 1e-6, "{}", found.relative_p95);
        assert!((found.relative_worst - 0.5).abs() < 1e-6, "{}", found.relative_worst);
        assert_eq!((found.cosine_mean, found.cosine_p95, found.cosine_worst), (1.0, 1.0, 1.0));

        let mut turned = RowErrors::default();
        for row in 0..100 {
            turned
                .add(if row < 4 { &[0.0, 1.0] } else { &[1.0, 0.0] }, &[1.0, 0.0], || (String::new(), 0, 0));
        }
        let wide = Thresholds { row_worst: 2.0, ..thresholds };
        let found = turned.compare(String::new(), None, None, &wide);
        assert_eq!((found.cosine_p95, found.cosine_worst, found.passed), (1.0, 0.0, true));
    }

    #[test]
    fn a_row_may_be_off_by_what_rounding_moves_it() {
        let passed = |rounding: &[f64]| {
            let mut errors = RowErrors::default();
            for &rounding in rounding {
                errors.add_rounded(&[1.0, 0.1], &[1.0, 0.0], rounding, || (String::new(), 0, 0));
            }
            let found = errors.compare(String::new(), None, None, &Thresholds::SAME_ENCODED);
            (found.passed, found.rounding_p95)
        };
        // An error of a tenth is either within √2 of the effect of rounding, or not.
        assert_eq!(passed(&[0.08; 30]), (true, Some(0.08)));
        assert_eq!(passed(&[0.06; 30]), (false, Some(0.06)));
        assert_eq!(passed(&[0.0; 30]), (false, None));
        // Rounding never excuses a row that is not finite, or whose error is half its length.
        assert!(!passed(&[f64::INFINITY; 30]).0 && !passed(&[f64::NAN; 30]).0);
        let mut zeros = RowErrors::default();
        zeros.add_rounded(&[0.0, 0.0], &[1.0, 0.0], 9.0, || (String::new(), 0, 0));
        assert!(!zeros.compare(String::new(), None, None, &Thresholds::SAME_ENCODED).passed);
        // Rounding excuses each row separately.
        let mut some = [0.08; 30];
        some[3..6].fill(0.0);
        assert!(!passed(&some).0);
    }

    #[test]
    fn each_bound_decides() {
        let judged = |got: &[f32], thresholds: &Thresholds| {
            let mut errors = RowErrors::default();
            errors.add(got, &[1.0, 0.0], || (String::new(), 0, 0));
            errors.compare(String::new(), None, None, thresholds).passed
        };
        let wide = Thresholds { row_p95: 1.0, row_worst: 1.0, cosine: 0.0, ..Thresholds::SAME_FLOATS };
        assert!(judged(&[1.0, 0.1], &wide));
        for tight in [
            Thresholds { row_p95: 0.05, ..wide },
            Thresholds { row_worst: 0.05, ..wide },
            Thresholds { cosine: 0.999, ..wide },
        ] {
            assert!(!judged(&[1.0, 0.1], &tight), "{tight:?}");
        }
        let nothing = RowErrors::default().compare(String::new(), None, None, &wide);
        assert!(nothing.passed && nothing.rows == 0);
    }
}
