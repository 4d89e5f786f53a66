//! How rows differ: relative error and cosine, row by row.

use crate::report::RowComparison;
use crate::thresholds::Thresholds;

/// Share of the rows that the p95 bounds cover (nearest rank); the worst row has its own bound.
const PERCENTILE: f64 = 0.95;

/// Differences of rows, gathered over runs. Sixteen bytes a row.
#[derive(Debug)]
pub(crate) struct RowErrors {
    errors: Vec<f64>,
    cosines: Vec<f64>,
    worst: f64,
    /// Prompt, position and block of the worst row.
    worst_at: Option<(String, usize, usize)>,
}

impl Default for RowErrors {
    fn default() -> Self {
        RowErrors { errors: Vec::new(), cosines: Vec::new(), worst: 0.0, worst_at: None }
    }
}

impl RowErrors {
    /// Enters one row; `at` gives its prompt, position and block when it is the worst so far.
    pub(crate) fn add(&mut self, got: &[f32], wanted: &[f32], at: impl FnOnce() -> (String, usize, usize)) {
        let (error, cosine) = difference(got, wanted);
        self.errors.push(error);
        self.cosines.push(cosine);
        if error > self.worst || self.worst_at.is_none() {
            self.worst = error;
            self.worst_at = Some(at());
        }
    }

    /// The summary, judged.
    pub(crate) fn compare(
        mut self,
        what: String,
        layer: Option<u32>,
        after: Option<String>,
        thresholds: &Thresholds,
    ) -> RowComparison {
        self.errors.sort_by(f64::total_cmp);
        self.cosines.sort_by(|one, other| other.total_cmp(one));
        let rows = self.errors.len();
        let rank = (rows as f64 * PERCENTILE).ceil() as usize;
        let relative_p95 = self.errors.get(rank.saturating_sub(1)).copied().unwrap_or(0.0);
        let cosine_p95 = self.cosines.get(rank.saturating_sub(1)).copied().unwrap_or(1.0);
        RowComparison {
            passed: relative_p95 <= thresholds.row_p95
                && self.worst <= thresholds.row_worst
                && cosine_p95 >= thresholds.cosine,
            what,
            layer,
            after,
            rows: rows as u64,
            relative_p95,
            relative_worst: self.worst,
            worst_at: match &self.worst_at {
                None => String::new(),
                Some((prompt, position, 0)) => format!("{prompt} position {position}"),
                Some((prompt, position, block)) => format!("{prompt} position {position} block {block}"),
            },
            worst_place: self.worst_at.map(|(prompt, position, _)| (prompt, position)),
            cosine_mean: if rows == 0 { 1.0 } else { self.cosines.iter().sum::<f64>() / rows as f64 },
            cosine_p95,
            cosine_worst: self.cosines.last().copied().unwrap_or(1.0),
        }
    }
}

/// Length of the difference over length of the wanted row, and the cosine of the angle between the
/// two. A NaN differs without bound, and so does a row of another length; two rows of zeros are
/// equal.
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
        // One of the two is a row of zeros: no angle.
        false if cosine.is_nan() => (error, 0.0),
        false => (error, cosine.clamp(-1.0, 1.0)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
