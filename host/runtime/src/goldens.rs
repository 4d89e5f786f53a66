//! Reference outputs recorded at compile time, with which another machine can check that it
//! computes the same model.
//!
//! Formats differ between chips, so bits do not agree, but distributions and directions do. For a
//! row of a generating model, the most probable tokens are kept. Two rows are compared by the KL
//! divergence over these tokens and the sum of the rest. Formats of four bits cost some tenths of a
//! nat, and a broken model costs several nats. For a vector, and for the rows that a tower computes
//! from a fixed picture or clip, some values are kept. They are compared by cosine distance and by
//! length.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};
use shardwright_vocabulary::{Pass, UniqueKeys};

use self::golden_vector::GoldenVector;
use self::sample::Sample;
use self::text::{GoldenRow, LARGEST};
use crate::{Chain, SessionError, SoftRows};

mod golden_vector;
mod sample;
mod text;

/// Version of the file format.
const VERSION: u32 = 2;

/// Most tokens of the text.
const TOKENS_MAX: usize = 256;

/// Most vectors of a text or tower.
const VECTORS_MAX: usize = 16;

/// Recorded outputs of a model for a text, and of its towers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Goldens {
    goldens: u32,
    /// Tokens of the text, empty if there are only towers.
    ids: Vec<u32>,
    /// Distributions after each of the last tokens, for a generating model.
    rows: Vec<GoldenRow>,
    /// Vectors of the text, its first half and its second half, for an embedding model.
    vectors: Vec<GoldenVector>,
    /// First rows that each tower computed from the fixed picture or clip.
    towers: BTreeMap<Pass, Vec<GoldenVector>>,
}

/// Parses only the version.
#[derive(Deserialize)]
struct Versioned {
    goldens: u32,
}

/// Result of comparing a chain with goldens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Likeness {
    /// Comparison of predicted distributions.
    Said {
        /// Mean KL divergence of a row in nats, infinite if a value is not finite.
        divergence: f64,
        /// Number of rows with the same most probable token.
        same: usize,
        /// Number of compared rows.
        rows: usize,
    },
    /// Comparison of vectors, or of the rows of a tower.
    Made {
        /// Mean cosine distance of a row, infinite if a value is not finite.
        distance: f64,
        /// Largest length ratio of two compared rows.
        longer: f64,
        /// Number of compared rows.
        rows: usize,
    },
}

impl Likeness {
    /// Largest divergence, in nats, at which a model counts as the same.
    pub const LIMIT: f64 = 1.0;

    /// Largest cosine distance at which vectors and soft rows count as the same. Formats of four
    /// bits cost up to 0.14 with random weights, and a broken model costs about 1.
    pub const DISTANCE: f64 = 0.25;

    /// Largest length ratio at which rows count as the same.
    pub const LONGER: f64 = 2.0;

    /// Checks whether the comparison is within the limits.
    pub fn holds(&self) -> bool {
        match self {
            Likeness::Said { divergence, .. } => *divergence <= Self::LIMIT,
            Likeness::Made { distance, longer, .. } => *distance <= Self::DISTANCE && *longer <= Self::LONGER,
        }
    }

    /// Formats the limits of the comparison.
    pub fn bound(&self) -> String {
        match self {
            Likeness::Said { .. } => format!("at most {} nats", Self::LIMIT),
            Likeness::Made { .. } => {
                format!("a distance of at most {} and a ratio of at most {}", Self::DISTANCE, Self::LONGER)
            }
        }
    }
}

impl std::fmt::Display for Likeness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Likeness::Said { divergence, same, rows } => {
                write!(
                    f,
                    "KL divergence of {divergence:.3} nats, {same} of {rows} most probable tokens equal"
                )
            }
            Likeness::Made { distance, longer, rows } => {
                write!(f, "cosine distance of {distance:.4}, length ratio of {longer:.2}, over {rows} rows")
            }
        }
    }
}

/// Outcome of comparing a chain with goldens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Compared {
    /// The comparison is complete.
    Likeness(Likeness),
    /// The goldens have no record for this chain.
    NothingRecorded,
    /// The comparison was ended before all runs were complete.
    Ended,
}

impl Default for Goldens {
    fn default() -> Self {
        Goldens {
            goldens: VERSION,
            ids: Vec::new(),
            rows: Vec::new(),
            vectors: Vec::new(),
            towers: BTreeMap::new(),
        }
    }
}

impl Goldens {
    /// Checks whether there are no records.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.vectors.is_empty() && self.towers.is_empty()
    }

    /// Records the outputs of a text chain for the first 256 of `ids`: a row for each token of the
    /// last half, or the vectors of an embedding model. Records nothing for fewer than two tokens.
    ///
    /// # Errors
    ///
    /// Returns the errors of running the chain.
    pub fn record(&mut self, chain: &Chain, ids: &[u32]) -> Result<(), SessionError> {
        let ids = &ids[..ids.len().min(TOKENS_MAX)];
        if ids.len() < 2 {
            return Ok(());
        }
        self.ids = ids.to_vec();
        match chain.is_generative() {
            true => {
                let rows = &mut self.rows;
                said(chain, ids, ids.len() - ids.len() / 2, &mut to_the_end, &mut |logits| {
                    rows.push(GoldenRow::of(logits));
                })
            }
            false => {
                made(chain, ids, &mut to_the_end, &mut |vector| self.vectors.push(GoldenVector::of(vector)))
            }
        }
        .map(|_| ())
    }

    /// Records the rows that a tower's chain computes from the fixed picture or clip.
    ///
    /// # Errors
    ///
    /// Returns the errors of running the chain.
    pub fn record_tower(&mut self, pass: Pass, chain: &Chain) -> Result<(), SessionError> {
        let rows = soft_rows(pass, chain)?;
        let rows = (0..VECTORS_MAX).map_while(|index| rows.row(index));
        self.towers.insert(pass, rows.map(GoldenVector::of).collect());
        Ok(())
    }

    /// Compares the outputs of a pass's chain for the same input. `go_on` is called before each run
    /// and may end the comparison.
    ///
    /// # Errors
    ///
    /// Returns the errors of running the chain.
    pub fn compare(
        &self,
        pass: Pass,
        chain: &Chain,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Compared, SessionError> {
        if pass != Pass::Step {
            let Some(golden) = self.towers.get(&pass) else { return Ok(Compared::NothingRecorded) };
            if go_on().is_break() {
                return Ok(Compared::Ended);
            }
            let mut near = Near::to(golden);
            return match soft_rows(pass, chain) {
                Ok(rows) => {
                    (0..VECTORS_MAX).map_while(|index| rows.row(index)).for_each(|row| near.take(row));
                    Ok(Compared::Likeness(near.likeness()))
                }
                Err(SessionError::NotFinite(_)) => Ok(Compared::Likeness(near.likeness())),
                Err(error) => Err(error),
            };
        }
        match chain.is_generative() {
            true if self.rows.is_empty() => Ok(Compared::NothingRecorded),
            true => self.compare_said(chain, go_on),
            false if self.vectors.is_empty() => Ok(Compared::NothingRecorded),
            false => {
                let mut near = Near::to(&self.vectors);
                match made(chain, &self.ids, go_on, &mut |vector| near.take(vector)) {
                    Ok(false) => Ok(Compared::Ended),
                    Ok(true) | Err(SessionError::NotFinite(_)) => Ok(Compared::Likeness(near.likeness())),
                    Err(error) => Err(error),
                }
            }
        }
    }

    fn compare_said(
        &self,
        chain: &Chain,
        go_on: &mut dyn FnMut() -> ControlFlow<()>,
    ) -> Result<Compared, SessionError> {
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
        let likeness = Likeness::Said { divergence: sum / rows.max(1) as f64, same, rows };
        Ok(if whole { Compared::Likeness(likeness) } else { Compared::Ended })
    }

    /// Parses goldens from a bundle's file.
    ///
    /// # Errors
    ///
    /// Returns a description of the fault in the file.
    pub fn read(bytes: &[u8]) -> Result<Goldens, String> {
        let UniqueKeys = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let Versioned { goldens } = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if goldens != VERSION {
            return Err(format!("expected version {VERSION}, got {goldens}"));
        }
        let read: Goldens = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let Goldens { ids, rows, vectors, towers, .. } = &read;
        let is_text = !rows.is_empty() || !vectors.is_empty();
        if ids.len() > TOKENS_MAX || (is_text && rows.len() >= ids.len()) || read.is_empty() {
            return Err(format!("{} rows after {} tokens", rows.len(), ids.len()));
        }
        if rows.iter().any(|row| row.largest.is_empty() || row.largest.len() > LARGEST) {
            return Err(format!("expected 1 to {LARGEST} tokens per row"));
        }
        let all = std::iter::once(vectors).filter(|_| !vectors.is_empty()).chain(towers.values());
        for vectors in all {
            let is_valid = (1..=VECTORS_MAX).contains(&vectors.len());
            if !is_valid || !vectors.iter().all(GoldenVector::is_valid) {
                return Err(format!("expected 1 to {VECTORS_MAX} complete vectors of a text or tower"));
            }
        }
        Ok(read)
    }

    /// Serialises the goldens to the bytes of a bundle's file.
    ///
    /// # Errors
    ///
    /// Returns the error of the JSON serialisation.
    pub fn to_bytes(&self) -> Result<Vec<u8>, String> {
        serde_json::to_vec(self).map_err(|error| error.to_string())
    }
}

/// Runs a text, and returns false if `go_on` ended it between two runs. `row` receives the logits
/// after each token except the first `before` tokens.
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

/// Embeds a text and each half of it. Returns false if `go_on` ended it in between.
fn made(
    chain: &Chain,
    ids: &[u32],
    go_on: &mut dyn FnMut() -> ControlFlow<()>,
    vector: &mut dyn FnMut(&[f32]),
) -> Result<bool, SessionError> {
    let mut session = chain.session()?;
    let (first, second) = ids.split_at(ids.len() / 2);
    for ids in [ids, first, second] {
        if go_on().is_break() {
            return Ok(false);
        }
        vector(&session.encode(ids)?);
    }
    Ok(true)
}

/// Lets every run continue.
fn to_the_end() -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// Computes the rows of a tower for the fixed picture or clip.
fn soft_rows(pass: Pass, chain: &Chain) -> Result<SoftRows, SessionError> {
    let mut tower = chain.tower()?;
    Sample::for_tower(pass, &tower).with(|features| tower.encode(features, [0; 32]))
}

/// Accumulated comparison of rows with golden ones, in order.
struct Near<'g> {
    golden: &'g [GoldenVector],
    distance: f64,
    longer: f64,
    rows: usize,
}

impl<'g> Near<'g> {
    fn to(golden: &'g [GoldenVector]) -> Self {
        Near { golden, distance: 0.0, longer: 1.0, rows: 0 }
    }

    fn take(&mut self, row: &[f32]) {
        let Some(golden) = self.golden.get(self.rows) else { return };
        let (distance, longer) = golden.compare(row);
        self.distance += distance;
        self.longer = self.longer.max(longer);
        self.rows += 1;
    }

    /// Returns the result. Missing rows count as infinitely different.
    fn likeness(self) -> Likeness {
        let rows = self.golden.len();
        match self.rows == rows {
            true => {
                let distance = self.distance / rows.max(1) as f64;
                Likeness::Made { distance, longer: self.longer, rows }
            }
            false => Likeness::Made { distance: f64::INFINITY, longer: f64::INFINITY, rows },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(seed: u32) -> Vec<f32> {
        (0..500_u32).map(|index| ((index * 37 + seed * 11) % 101) as f32 / 10.0).collect()
    }

    #[test]
    fn goldens_are_read_back_and_anything_else_is_refused() {
        let said =
            Goldens { ids: vec![1, 2, 3], rows: vec![GoldenRow::of(&row(1)); 2], ..Goldens::default() };
        let vectors = vec![GoldenVector::of(&row(1)); 3];
        let embedded = Goldens { ids: vec![1, 2], vectors: vectors.clone(), ..Goldens::default() };
        let towers = [(Pass::Picture, vectors.clone()), (Pass::Clip, vectors.clone())].into();
        let seen = Goldens { towers, ..Goldens::default() };
        let all = Goldens { towers: seen.towers.clone(), ..said.clone() };
        for goldens in [&said, &embedded, &seen, &all] {
            assert_eq!(Goldens::read(&goldens.to_bytes().unwrap()).unwrap(), *goldens);
        }
        let with = |rest: &str| format!(r#"{{"goldens":2,"ids":[1,2],{rest}}}"#);
        let vector = |length: usize| format!(r#"{{"width":500,"length":1,"values":{:?}}}"#, vec![1; length]);
        let tower =
            |vectors: &str| with(&format!(r#""rows":[],"vectors":[],"towers":{{"clip":[{vectors}]}}"#));
        for (wrong, word) in [
            (r#"{"goldens":1,"ids":[1],"rows":[{"largest":[[1,2]]}]}"#.to_owned(), "got 1"),
            (r#"{"goldens":7}"#.to_owned(), "got 7"),
            (with(r#""rows":[],"vectors":[],"towers":{}"#), "0 rows"),
            (with(r#""rows":[{"largest":[[1,2]]},{"largest":[[1,2]]}],"vectors":[],"towers":{}"#), "2 rows"),
            (with(r#""rows":[{"largest":[]}],"vectors":[],"towers":{}"#), "1 to 16 tokens per row"),
            (tower(""), "1 to 16 complete vectors"),
            (tower(&vec![vector(64); 17].join(",")), "1 to 16 complete vectors"),
            (tower(&vector(63)), "1 to 16 complete vectors"),
            (tower(&vector(65)), "1 to 16 complete vectors"),
            (r#"{"goldens":2}"#.to_owned(), "missing field"),
            (String::new(), "EOF"),
            (with(r#""ids":[2]"#), "a second key `ids`"),
            (with(r#""rows":[],"vectors":[],"towers":{"clip":[],"clip":[]}"#), "a second key `clip`"),
        ] {
            let error = Goldens::read(wrong.as_bytes()).unwrap_err();
            assert!(error.contains(word), "{wrong}: {error}");
        }
        assert!(Goldens::read(tower(&vector(64)).as_bytes()).is_ok());
    }

    #[test]
    fn rows_that_are_missing_are_like_nothing() {
        let golden = vec![GoldenVector::of(&row(1)); 2];
        let likeness = |rows: usize| {
            let mut near = Near::to(&golden);
            (0..rows).for_each(|_| near.take(&row(1)));
            near.likeness()
        };
        assert!(!likeness(1).holds() && likeness(2).holds() && likeness(3).holds());
        assert!(likeness(1).bound().contains("0.25"), "{}", likeness(1).bound());
    }
}
