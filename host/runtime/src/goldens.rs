//! What a model said and made when it was compiled, by which another machine can tell whether it
//! does the same.
//!
//! Formats differ from chip to chip, so that bits do not agree; distributions and directions do. A
//! row of a model that generates keeps its most probable tokens, and two rows are compared by the
//! KL divergence over those and the rest taken together: formats of four bits cost some tenths of a
//! nat, nonsense costs several. Of a vector, and of the rows that a tower makes of a fixed picture
//! or clip, some values are kept, and compared by their cosine distance and their length.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use serde::{Deserialize, Serialize};
use shardwright_vocabulary::Pass;

use self::near::GoldenVector;
use self::sample::Sample;
use self::text::{GoldenRow, LARGEST};
use crate::{Chain, SessionError, SoftRows};

mod near;
mod sample;
mod text;

/// Version of this form.
const VERSION: u32 = 2;

/// Most tokens of a text.
const TOKENS_MAX: usize = 256;

/// Most vectors of a text or tower.
const VECTORS_MAX: usize = 16;

/// What a model said to a text, and what its towers made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Goldens {
    goldens: u32,
    /// Tokens of the text; none for towers alone.
    ids: Vec<u32>,
    /// What followed each of the last tokens; of a model that generates.
    rows: Vec<GoldenRow>,
    /// The vectors of the text, its first and its second half; of a model that embeds.
    vectors: Vec<GoldenVector>,
    /// The first rows that each tower made of the fixed picture or clip.
    towers: BTreeMap<Pass, Vec<GoldenVector>>,
}

/// Only the version.
#[derive(Deserialize)]
struct Versioned {
    goldens: u32,
}

/// How a chain compares with goldens.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Likeness {
    /// What it says.
    Said {
        /// Mean KL divergence of a row, in nats; infinite where something is no number.
        divergence: f64,
        /// Rows whose most probable token is the same.
        same: usize,
        /// Rows compared.
        rows: usize,
    },
    /// What it makes: a vector, or the rows of a tower.
    Made {
        /// Mean cosine distance of a row; infinite where something is no number.
        distance: f64,
        /// How many times as long the longer of two rows is, at most.
        longer: f64,
        /// Rows compared.
        rows: usize,
    },
}

impl Likeness {
    /// Most nats at which a model is taken for the same.
    pub const LIMIT: f64 = 1.0;

    /// Most cosine distance of vectors and soft rows at which it is: formats of four bits cost up
    /// to 0.14 where weights are random, nonsense costs about 1.
    pub const DISTANCE: f64 = 0.25;

    /// How many times as long a row may be.
    pub const LONGER: f64 = 2.0;

    /// Whether it does the same.
    pub fn holds(&self) -> bool {
        match self {
            Likeness::Said { divergence, .. } => *divergence <= Self::LIMIT,
            Likeness::Made { distance, longer, .. } => *distance <= Self::DISTANCE && *longer <= Self::LONGER,
        }
    }

    /// What it must not exceed, in words.
    pub fn bound(&self) -> String {
        match self {
            Likeness::Said { .. } => format!("at most {} nats", Self::LIMIT),
            Likeness::Made { .. } => format!("at most {}, and {} times", Self::DISTANCE, Self::LONGER),
        }
    }
}

impl std::fmt::Display for Likeness {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Likeness::Said { divergence, same, rows } => {
                write!(
                    f,
                    "{divergence:.3} nats of KL divergence, {same} of {rows} most probable tokens the same"
                )
            }
            Likeness::Made { distance, longer, rows } => {
                write!(f, "{distance:.4} of cosine distance, {longer:.2} times as long, of {rows} rows")
            }
        }
    }
}

/// What came of comparing a chain with goldens.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Compared {
    /// How it compares.
    Likeness(Likeness),
    /// Nothing of what it does was recorded.
    NothingRecorded,
    /// It was ended before all was run.
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
    /// Whether there is nothing to compare with.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty() && self.vectors.is_empty() && self.towers.is_empty()
    }

    /// Records what the chain of a text says to the first 256 of `ids`: a row for each of the last
    /// half, or the vectors of one that embeds. Nothing for less than two tokens.
    ///
    /// # Errors
    ///
    /// Those of running it.
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

    /// Records what the chain of a tower makes of the fixed picture or clip.
    ///
    /// # Errors
    ///
    /// Those of running it.
    pub fn record_tower(&mut self, pass: Pass, chain: &Chain) -> Result<(), SessionError> {
        let rows = soft_rows(pass, chain)?;
        let rows = (0..VECTORS_MAX).map_while(|index| rows.row(index));
        self.towers.insert(pass, rows.map(GoldenVector::of).collect());
        Ok(())
    }

    /// Compares what the chain of a pass does with the same input. `go_on` is asked before each of
    /// its runs.
    ///
    /// # Errors
    ///
    /// Those of running it.
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
                Err(SessionError::SoftRowsNotFinite { .. }) => Ok(Compared::Likeness(near.likeness())),
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
                    Ok(true) | Err(SessionError::EmbeddingNotFinite { .. }) => {
                        Ok(Compared::Likeness(near.likeness()))
                    }
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

    /// Reads them from a bundle's file.
    ///
    /// # Errors
    ///
    /// What is wrong with it.
    pub fn read(bytes: &[u8]) -> Result<Goldens, String> {
        let Versioned { goldens } = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        if goldens != VERSION {
            return Err(format!("they are version {goldens}, this host reads {VERSION}"));
        }
        let read: Goldens = serde_json::from_slice(bytes).map_err(|error| error.to_string())?;
        let Goldens { ids, rows, vectors, towers, .. } = &read;
        let is_text = !rows.is_empty() || !vectors.is_empty();
        if ids.len() > TOKENS_MAX || (is_text && rows.len() >= ids.len()) || read.is_empty() {
            return Err(format!("{} rows after {} tokens", rows.len(), ids.len()));
        }
        if rows.iter().any(|row| row.largest.is_empty() || row.largest.len() > LARGEST) {
            return Err(format!("a row keeps 1 to {LARGEST} tokens"));
        }
        let all = std::iter::once(vectors).filter(|_| !vectors.is_empty()).chain(towers.values());
        for vectors in all {
            let is_valid = (1..=VECTORS_MAX).contains(&vectors.len());
            if !is_valid || !vectors.iter().all(GoldenVector::is_valid) {
                return Err(format!("a text or tower has 1 to {VECTORS_MAX} vectors of their values"));
            }
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

/// Embeds a text and each half of it, unless `go_on` ends it in between, and gives whether it did.
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

/// Ends nothing.
fn to_the_end() -> ControlFlow<()> {
    ControlFlow::Continue(())
}

/// What a tower makes of the fixed picture or clip.
fn soft_rows(pass: Pass, chain: &Chain) -> Result<SoftRows, SessionError> {
    let mut tower = chain.tower()?;
    Sample::for_tower(pass, &tower).with(|features| tower.encode(features, [0; 32]))
}

/// Rows compared with golden ones, in their order.
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

    /// Of rows that are not there nothing is like the golden ones.
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
            (r#"{"goldens":1,"ids":[1],"rows":[{"largest":[[1,2]]}]}"#.to_owned(), "version 1"),
            (r#"{"goldens":7}"#.to_owned(), "version 7"),
            (with(r#""rows":[],"vectors":[],"towers":{}"#), "0 rows"),
            (with(r#""rows":[{"largest":[[1,2]]},{"largest":[[1,2]]}],"vectors":[],"towers":{}"#), "2 rows"),
            (with(r#""rows":[{"largest":[]}],"vectors":[],"towers":{}"#), "1 to 16 tokens"),
            (tower(""), "1 to 16 vectors"),
            (tower(&vec![vector(64); 17].join(",")), "1 to 16 vectors"),
            (tower(&vector(63)), "1 to 16 vectors"),
            (tower(&vector(65)), "1 to 16 vectors"),
            (r#"{"goldens":2}"#.to_owned(), "missing field"),
            (String::new(), "EOF"),
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
