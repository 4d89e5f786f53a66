//! Estimates the time of a step by its number of rows, measured while text is generated.

use std::time::Duration;

use crate::draft::DRAFTED_MAX;

const ROWS_MAX: usize = DRAFTED_MAX + 1;

/// Assumed relative cost of an additional row, until there is a measurement. It is small since the
/// weights, which dominate the time, are read only once.
const ADDED_BY_A_ROW: f64 = 0.06;

/// Weight of a new time in an estimate, once there are several.
const NEW_PART: f64 = 0.2;

/// Limit for a time as a multiple of the expected one, since a step may have waited for something
/// else.
const OUTLIER: f64 = 1.5;

/// Number of steps after which a time of several rows is measured again.
const KEPT_STEPS: u64 = 512;

#[derive(Clone, Copy, Debug)]
struct Measured {
    nanoseconds: f64,
    count: u32,
    at: u64,
}

/// Times of steps of 1 to 16 rows.
#[derive(Clone, Debug, Default)]
pub(crate) struct StepTimes {
    by_rows: [Option<Measured>; ROWS_MAX],
    steps: u64,
}

impl StepTimes {
    pub(crate) fn record(&mut self, rows: usize, time: Duration) {
        self.steps += 1;
        let steps = self.steps;
        let Some(slot) = rows.checked_sub(1).and_then(|index| self.by_rows.get_mut(index)) else { return };
        let time = time.as_secs_f64() * 1e9;
        *slot = Some(match *slot {
            None => Measured { nanoseconds: time, count: 1, at: steps },
            // The first run is slower, as it touches memory for the first time.
            Some(Measured { nanoseconds, count: 1, .. }) => {
                Measured { nanoseconds: nanoseconds.min(time), count: 2, at: steps }
            }
            Some(Measured { nanoseconds, count, .. }) => {
                let part = NEW_PART.max(1.0 / f64::from(count));
                let time = time.min(OUTLIER * nanoseconds);
                let nanoseconds = nanoseconds + part * (time - nanoseconds);
                Measured { nanoseconds, count: count.saturating_add(1), at: steps }
            }
        });
        for (rows, slot) in self.by_rows.iter_mut().enumerate() {
            if rows > 0 && slot.is_some_and(|measured| steps - measured.at > KEPT_STEPS) {
                *slot = None;
            }
        }
    }

    /// Returns the expected time of a step with this number of rows in nanoseconds, or `None`
    /// before the first step.
    pub(crate) fn expected(&self, rows: usize) -> Option<f64> {
        let of = |rows: usize| Some((rows, self.by_rows.get(rows.checked_sub(1)?)?.as_ref()?.nanoseconds));
        let below = (1..=rows).rev().find_map(of);
        let above = (rows..=ROWS_MAX).find_map(of);
        let modelled = |rows: usize| 1.0 + ADDED_BY_A_ROW * (rows as f64 - 1.0);
        let scaled = |(at, time): (usize, f64)| time / modelled(at) * modelled(rows);
        match (below, above) {
            (Some((low, one)), Some((high, other))) if low < high => {
                Some(one + (other - one) * (rows - low) as f64 / (high - low) as f64)
            }
            (Some(at), _) | (None, Some(at)) => Some(scaled(at)),
            (None, None) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: f64 = 1e6;

    fn measured(times: &[(usize, u64)]) -> StepTimes {
        let mut all = StepTimes::default();
        times.iter().for_each(|&(rows, ms)| all.record(rows, Duration::from_millis(ms)));
        all
    }

    #[test]
    fn what_was_not_measured_follows_from_what_was() {
        assert_eq!(StepTimes::default().expected(1), None);
        assert_eq!(measured(&[(1, 100)]).expected(16), Some(190.0 * MS));
        let two = measured(&[(1, 100), (9, 300)]);
        assert_eq!((two.expected(1), two.expected(9)), (Some(100.0 * MS), Some(300.0 * MS)));
        assert_eq!(two.expected(5), Some(200.0 * MS));
        assert!(two.expected(16).unwrap() > 300.0 * MS);
        assert!(measured(&[(9, 300)]).expected(1).unwrap() < 300.0 * MS);
        // More rows than a step can have, and zero rows.
        assert!(two.expected(17).is_some() && two.expected(0).is_some());
        assert_eq!(measured(&[(17, 1), (0, 1)]).expected(1), None);
    }

    #[test]
    fn a_time_follows_what_changes_and_not_a_single_delay() {
        let mut times = measured(&[(1, 900), (1, 100)]);
        assert_eq!(times.expected(1), Some(100.0 * MS));
        times.record(1, Duration::from_secs(60));
        assert!(times.expected(1).unwrap() <= 150.0 * MS);
        for _ in 0..60 {
            times.record(1, Duration::from_millis(200));
        }
        assert!((times.expected(1).unwrap() / MS - 200.0).abs() < 5.0);
    }

    #[test]
    fn old_times_of_several_rows_are_forgotten() {
        let mut times = measured(&[(1, 100), (4, 1000)]);
        for _ in 0..=KEPT_STEPS {
            times.record(1, Duration::from_millis(100));
        }
        assert!(times.expected(4).unwrap() < 200.0 * MS);
    }
}
