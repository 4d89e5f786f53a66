//! What a model said to a fixed text when it was compiled, by which another machine can tell
//! whether it says the same.
//!
//! Formats differ from chip to chip, so that bits do not agree; distributions do. A row keeps its
//! most probable tokens, and two rows are compared by the KL divergence over those and the rest
//! taken together. Formats of four bits cost some tenths of a nat, nonsense costs several.

use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};

use crate::{Chain, SessionError};

/// Version of this form.
const VERSION: u32 = 1;

/// Most probable tokens that a row keeps.
const LARGEST: usize = 16;

/// Most tokens of a text.
const TOKENS_MAX: usize = 256;

/// What a model said to a text.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Goldens {
    goldens: u32,
    /// Tokens of the text.
    ids: Vec<u32>,
    /// What followed each of the last tokens.
    rows: Vec<GoldenRow>,
}

/// The distribution after one token.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct GoldenRow {
    /// The most probable tokens, each with its negative logarithm of probability in thousandths of
    /// a nat: coarse enough that processors which add in other orders agree on it.
    largest: Vec<(u32, u32)>,
}

/// How a chain compares with goldens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Likeness {
    /// Mean KL divergence of a row, in nats; infinite where something is no number.
    pub divergence: f64,
    /// Rows whose most probable token is the same.
    pub same: usize,
    /// Rows compared.
    pub rows: usize,
}

impl Likeness {
    /// Most nats at which a model is taken for the same.
    pub const LIMIT: f64 = 1.0;

    /// Whether it says the same.
    pub fn holds(&self) -> bool {
        self.divergence <= Self::LIMIT
    }
}

impl std::fmt::Display for Likeness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Likeness { divergence, same, rows } = self;
        write!(f, "{divergence:.3} nats of KL divergence, {same} of {rows} most probable tokens the same")
    }
}

impl Goldens {
    /// Records what `chain` says to the first 256 of `ids`: a row for each of the last half. `None`
    /// for less than two tokens.
    ///
    /// # Errors
    ///
    /// Those of running it.
    pub fn record(chain: &Chain, ids: &[u32]) -> Result<Option<Goldens>, SessionError> {
        let ids = &ids[..ids.len().min(TOKENS_MAX)];
        if ids.len() < 2 {
            return Ok(None);
        }
        let mut rows = Vec::new();
        let go_on = &mut || ControlFlow::Continue(());
        said(chain, ids, ids.len() - ids.len() / 2, go_on, &mut |logits| rows.push(GoldenRow::of(logits)))?;
        Ok(Some(Goldens { goldens: VERSION, ids: ids.to_vec(), rows }))
    }

    /// Compares what `chain` says to the same text. `go_on` is asked before each of its runs;
    /// `None` where it ended them.
    ///
    /// # Errors
    ///
    /// Those of running it.
    pub fn compare(
        &self,
        chain: &Chain,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Option<Likeness>, SessionError> {
        let (mut sum, mut same, mut rows) = (0.0, 0, self.rows.iter());
        let first = self.ids.len() - self.rows.len();
        let whole = said(chain, &self.ids, first, go_on, &mut |logits| {
            if let Some(row) = rows.next() {
                let (divergence, is_same) = row.compare(logits);
                sum += divergence;
                same += usize::from(is_same);
            }
        })?;
        let rows = self.rows.len();
        let likeness = Likeness { divergence: sum / rows.max(1) as f64, same, rows };
        Ok(whole.then_some(likeness))
    }

    /// Reads them from a bundle's file.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn read(bytes: &[u8]) -> Result<Goldens, String> {
        let read: Goldens = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let Goldens { goldens, ids, rows } = &read;
        if *goldens != VERSION {
            return Err(format!("they are version {goldens}, this host reads {VERSION}"));
        }
        if rows.is_empty() || rows.len() >= ids.len() || ids.len() > TOKENS_MAX {
            return Err(format!("{} rows after {} tokens", rows.len(), ids.len()));
        }
        if rows.iter().any(|row| row.largest.is_empty() || row.largest.len() > LARGEST) {
            return Err(format!("a row keeps 1 to {LARGEST} tokens"));
        }
        Ok(read)
    }

    /// The bytes of a bundle's file.
    ///
    /// # Errors
    ///
    /// Why they are no JSON.
    pub fn to_bytes(&self) -> Result<Vec<u8>, String> {
        serde_json::to_vec(self).map_err(|error| error.to_string())
    }
}

/// Runs a text, unless `go_on` ends it between two runs, and gives whether it ran to its end; `row`
/// gets the logits after each of its tokens but the first `before`.
fn said(
    chain: &Chain,
    ids: &[u32],
    before: usize,
    go_on: &mut dyn FnMut() -> ControlFlow<()>,
    row: &mut dyn FnMut(&[f32]),
) -> Result<bool, SessionError> {
    let mut session = chain.session()?;
    let (before, after) = ids.split_at(before);
    for (index, run) in std::iter::once(before).chain(after.chunks(1)).enumerate() {
        if go_on().is_break() {
            return Ok(false);
        }
        session.append(run)?;
        if index > 0 {
            session.logits().into_iter().for_each(&mut *row);
        }
    }
    Ok(true)
}

impl GoldenRow {
    fn of(logits: &[f32]) -> GoldenRow {
        let norm = norm(logits);
        let mut order: Vec<usize> = (0..logits.len()).collect();
        let kept = LARGEST.min(order.len());
        let by_size =
            |one: &usize, other: &usize| logits[*other].total_cmp(&logits[*one]).then(one.cmp(other));
        if kept > 0 && kept < order.len() {
            order.select_nth_unstable_by(kept - 1, by_size);
        }
        order.truncate(kept);
        order.sort_by(by_size);
        let thousandths = |at: &usize| ((norm - f64::from(logits[*at])) * 1000.0).round() as u32;
        GoldenRow { largest: order.iter().map(|at| (*at as u32, thousandths(at))).collect() }
    }

    /// The KL divergence from this row to these logits, and whether the most probable token is the
    /// same.
    fn compare(&self, logits: &[f32]) -> (f64, bool) {
        let norm = norm(logits);
        let (mut divergence, mut mass, mut theirs) = (0.0, 0.0, 0.0);
        for &(id, thousandths) in &self.largest {
            let Some(logit) = logits.get(id as usize) else { return (f64::INFINITY, false) };
            let own = -f64::from(thousandths) / 1000.0;
            let other = f64::from(*logit) - norm;
            divergence += own.exp() * (own - other);
            mass += own.exp();
            theirs += other.exp();
        }
        // What is left may be a rounding error on either side.
        const LEAST: f64 = 1e-6;
        let (rest, other) = ((1.0 - mass).max(LEAST), (1.0 - theirs).max(LEAST));
        divergence += rest * (rest / other).ln();
        let first = self.largest.first().and_then(|(id, _)| logits.get(*id as usize));
        let is_same = first.is_some_and(|first| logits.iter().all(|logit| logit <= first));
        // Also what is no number.
        if divergence.is_finite() { (divergence.max(0.0), is_same) } else { (f64::INFINITY, false) }
    }
}

/// The logarithm of the sum of exponentials.
fn norm(logits: &[f32]) -> f64 {
    let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let sum: f64 = logits.iter().map(|logit| f64::from(logit - largest).exp()).sum();
    f64::from(largest) + sum.ln()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logits(seed: u32) -> Vec<f32> {
        (0..500_u32).map(|index| ((index * 37 + seed * 11) % 101) as f32 / 10.0).collect()
    }

    #[test]
    fn a_row_is_like_itself_and_unlike_others() {
        let row = GoldenRow::of(&logits(1));
        assert_eq!(row.largest.len(), LARGEST);
        assert!(row.largest.is_sorted_by_key(|(_, thousandths)| *thousandths));
        let (divergence, same) = row.compare(&logits(1));
        assert!(divergence < 1e-4 && same, "{divergence}");
        let near: Vec<f32> = logits(1).iter().map(|logit| logit * 1.05).collect();
        let (divergence, same) = row.compare(&near);
        assert!(divergence > 1e-4 && divergence < 0.1 && same, "{divergence}");
        let (divergence, same) = row.compare(&logits(50));
        assert!(divergence > Likeness::LIMIT && !same, "{divergence}");
    }

    #[test]
    fn what_is_no_number_is_like_nothing() {
        let row = GoldenRow::of(&logits(1));
        for wrong in [f32::NAN, f32::INFINITY] {
            let mut changed = logits(1);
            changed[7] = wrong;
            assert_eq!(row.compare(&changed).0, f64::INFINITY);
        }
        assert_eq!(row.compare(&logits(1)[..3]).0, f64::INFINITY, "another vocabulary");
        assert!(row.compare(&[]).0.is_infinite());
        let all_the_same = GoldenRow::of(&[0.0; 4]);
        assert!(all_the_same.compare(&[0.0; 4]).0 < 1e-3);
    }

    #[test]
    fn goldens_are_read_back_and_anything_else_is_refused() {
        let goldens =
            Goldens { goldens: VERSION, ids: vec![1, 2, 3], rows: vec![GoldenRow::of(&logits(1)); 2] };
        assert_eq!(Goldens::read(&goldens.to_bytes().unwrap()).unwrap(), goldens);
        for (wrong, word) in [
            (r#"{"goldens":2,"ids":[1],"rows":[{"largest":[[1,2]]}]}"#, "version 2"),
            (r#"{"goldens":1,"ids":[1,2],"rows":[]}"#, "0 rows"),
            (r#"{"goldens":1,"ids":[1],"rows":[{"largest":[[1,2]]}]}"#, "1 rows"),
            (r#"{"goldens":1,"ids":[1,2],"rows":[{"largest":[]}]}"#, "1 to 16"),
            (r#"{"goldens":1}"#, "missing field"),
            ("", "EOF"),
        ] {
            let error = Goldens::read(wrong.as_bytes()).unwrap_err();
            assert!(error.contains(word), "{error}");
        }
    }
}
