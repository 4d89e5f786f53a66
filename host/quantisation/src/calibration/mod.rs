//! Value ranges of a model's tensors. They are collected by running the reference implementation on
//! token sequences, stored in a file, and converted to ranges.

mod file;
mod histogram;

use std::collections::BTreeMap;

use sha2::{Digest, Sha256};
use shardwright_reference::step::Features;
use shardwright_reference::{Arrangement, Array, ReferenceModel};

use crate::RowSource;
use histogram::Histogram;
use shardwright_graph::{Graph, Range, Ranges, state_key};
use shardwright_vocabulary::{Error, ErrorKind, FormatTuple, Result, StateFormat};

/// Method for choosing a range from the observed values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum RangeMethod {
    /// From the smallest to the largest value.
    MinMax,
    /// Twice as far from zero as the observed values. Values on new text exceed those seen in
    /// calibration, most of all in squares. Clipping these values costs far more than one of
    /// sixteen bits.
    Ample,
    /// Keeps at least this share of the values at either end: 0.9999 leaves out the outermost
    /// ten-thousandth. Must be greater than 0.5 and at most 1.
    Percentile(f64),
    /// The range with the least expected squared error.
    MeanSquaredError,
}

/// Width of the integers that use the ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum IntegerBits {
    /// For `u8` and `i8`.
    Eight,
    /// For `u16` and `i16`.
    Sixteen,
}

/// Observations of one tensor.
#[derive(Clone, Debug, PartialEq)]
struct Seen {
    /// `None` while only masked values were seen.
    range: Option<(f32, f32)>,
    masked: bool,
    histogram: Histogram,
}

impl Seen {
    fn new() -> Self {
        Seen { range: None, masked: false, histogram: Histogram::default() }
    }

    fn add(&mut self, key: &str, values: &[f32]) -> Result<()> {
        let mut ends: Option<(f32, f32)> = None;
        for &value in values {
            if Range::is_masked(value) {
                self.masked = true;
                continue;
            }
            if !value.is_finite() {
                return Err(Error::invalid(format!("expected a finite value, got {value}"))
                    .at(format!("`{key}`"))
                    .with_help(
                        "the checkpoint is damaged or overflows on this text: fetch it again, or try other text",
                    ));
            }
            ends = Some(ends.map_or((value, value), |(low, high)| (low.min(value), high.max(value))));
        }
        let Some((low, high)) = ends else { return Ok(()) };
        let visible = values.iter().copied().filter(|value| !Range::is_masked(*value));
        self.histogram.add(visible, low.abs().max(high.abs()));
        self.widen(ends);
        Ok(())
    }

    fn widen(&mut self, ends: Option<(f32, f32)>) {
        self.range = match (self.range, ends) {
            (Some(existing), Some(other)) => Some((existing.0.min(other.0), existing.1.max(other.1))),
            (existing, other) => existing.or(other),
        };
    }

    fn merge(&mut self, other: Seen) {
        self.widen(other.range);
        self.masked |= other.masked;
        self.histogram.merge(other.histogram);
    }

    fn range(&self, method: RangeMethod, bits: IntegerBits) -> Option<Range> {
        let (low, high) = self.range?;
        let seen = Range { low, high, masked: self.masked };
        Some(match method {
            RangeMethod::MinMax => seen,
            RangeMethod::Ample => {
                let twice = |end: f32| (2.0 * end).clamp(f32::MIN, f32::MAX);
                Range { low: twice(low), high: twice(high), ..seen }
            }
            RangeMethod::Percentile(share) => self.histogram.percentile(share, seen),
            RangeMethod::MeanSquaredError => {
                let bits = if bits == IntegerBits::Eight { 8 } else { 16 };
                self.histogram.least_squares(bits, seen)
            }
        })
    }
}

/// Features that a front end computed from one picture or clip.
#[derive(Clone, Debug, PartialEq)]
pub struct FeatureSample {
    /// Patches or frames of `width` values each.
    pub values: Vec<f32>,
    /// Number of values of a patch or frame.
    pub width: usize,
    /// The column of each patch. Empty for frames.
    pub columns: Vec<i32>,
    /// The row of each patch. Empty for frames.
    pub rows: Vec<i32>,
    /// A hash of the picture or clip.
    pub origin: [u8; 32],
}

/// Collects the value ranges of a model's tensors.
///
/// The same sequences give the same calibration, bit for bit, in any order and grouping.
pub struct Calibrator<'g> {
    model: ReferenceModel<'g>,
    collected: Calibration,
}

impl<'g> Calibrator<'g> {
    /// Creates a calibrator for a model in its stored formats. `checkpoint` is a hash of the model,
    /// see [`content_hash`].
    pub fn new(graph: &'g Graph, checkpoint: [u8; 32]) -> Result<Self> {
        let collected =
            Calibration { checkpoint, sequences: Vec::new(), tokens: 0, tensors: BTreeMap::new() };
        Ok(Calibrator { model: ReferenceModel::new(graph, Arrangement::whole(1))?, collected })
    }

    /// Runs one token sequence (or the text of an encoder) and collects its ranges. Use the ids of
    /// a real session: apply the chat template, and include special and placeholder ids.
    pub fn add(&mut self, ids: &[u32]) -> Result<()> {
        self.add_until(ids, &|| false)
    }

    /// Like [`Calibrator::add`], but ends once `cancelled` returns true. It is called for every
    /// tensor.
    ///
    /// # Errors
    /// Also [`ErrorKind::Cancelled`].
    pub fn add_until(&mut self, ids: &[u32], cancelled: &dyn Fn() -> bool) -> Result<()> {
        let mut digest = Sha256::new();
        ids.iter().for_each(|id| digest.update(id.to_le_bytes()));
        let origin = digest.finalize().into();
        self.collect(origin, ids.len() as u64, cancelled, |model, observe| model.try_observe(ids, observe))
    }

    /// Runs a tower on one picture or clip like [`Calibrator::add_until`], and collects its ranges.
    /// Its rows count as tokens.
    pub fn add_features(&mut self, sample: &FeatureSample, cancelled: &dyn Fn() -> bool) -> Result<()> {
        let FeatureSample { values, width, columns, rows, origin } = sample;
        let count = (values.len() / width.max(&1)) as u64;
        let values = Array::floats_of(&[count, *width as u64], values.clone())?;
        let features = Features { values: &values, columns, rows };
        let rows = features.rows(self.model.graph());
        self.collect(*origin, rows, cancelled, |model, observe| {
            model.try_observe_features(&features, observe)
        })
    }

    fn collect(
        &mut self,
        origin: [u8; 32],
        tokens: u64,
        cancelled: &dyn Fn() -> bool,
        run: impl FnOnce(&ReferenceModel<'g>, &mut dyn FnMut(&str, &[f32]) -> Result<()>) -> Result<()>,
    ) -> Result<()> {
        // Collect separately, so that an error leaves earlier results unchanged.
        let mut tensors: BTreeMap<String, Seen> = BTreeMap::new();
        run(&self.model, &mut |key, values| {
            if cancelled() {
                return Err(Error::new(ErrorKind::Cancelled, "calibration was cancelled"));
            }
            let seen = match tensors.get_mut(key) {
                Some(seen) => seen,
                None => tensors.entry(key.to_owned()).or_insert_with(Seen::new),
            };
            seen.add(key, values)
        })?;
        let checkpoint = self.collected.checkpoint;
        self.collected.merge(Calibration { checkpoint, sequences: vec![origin], tokens, tensors })
    }

    /// Returns the collected calibration.
    pub fn finish(self) -> Result<Calibration> {
        if self.collected.sequences.is_empty() {
            return Err(no_sequences());
        }
        Ok(self.collected)
    }
}

/// The value ranges of a model's tensors over some token sequences.
#[derive(Clone, Debug, PartialEq)]
pub struct Calibration {
    checkpoint: [u8; 32],
    /// Hashes of the sequences in ascending order.
    sequences: Vec<[u8; 32]>,
    tokens: u64,
    tensors: BTreeMap<String, Seen>,
}

impl Calibration {
    /// Returns the hash of the checkpoint.
    pub fn checkpoint(&self) -> [u8; 32] {
        self.checkpoint
    }

    /// Returns the number of sequences run.
    pub fn sequences(&self) -> usize {
        self.sequences.len()
    }

    /// Returns a hash of the ids of all sequences, independent of their order.
    pub fn ids_hash(&self) -> [u8; 32] {
        let mut digest = Sha256::new();
        self.sequences.iter().for_each(|sequence| digest.update(sequence));
        digest.finalize().into()
    }

    /// Returns whether a sequence with these ids was run.
    pub fn has_seen(&self, ids: &[u32]) -> bool {
        let mut digest = Sha256::new();
        ids.iter().for_each(|id| digest.update(id.to_le_bytes()));
        let hash: [u8; 32] = digest.finalize().into();
        self.sequences.binary_search(&hash).is_ok()
    }

    /// Returns the number of tokens in all sequences.
    pub fn tokens(&self) -> u64 {
        self.tokens
    }

    /// Returns the number of observed tensors.
    pub fn tensors(&self) -> usize {
        self.tensors.len()
    }

    /// Computes the range of every tensor for integers of the given width.
    pub fn ranges(&self, method: RangeMethod, bits: IntegerBits) -> Result<Ranges> {
        match method {
            RangeMethod::Percentile(share) if !(share > 0.5 && share <= 1.0) => {
                let what = format!("expected a share of more than 0.5 and at most 1, got {share}");
                Err(Error::invalid(what).with_help("choose another share: 0.9999 leaves out outliers"))
            }
            _ => Ok(self
                .tensors
                .iter()
                .filter_map(|(key, seen)| Some((key.clone(), seen.range(method, bits)?)))
                .collect()),
        }
    }

    /// Computes the ranges for shards in these formats: ample ranges for 16-bit integers, and
    /// ranges with the least squared error for 8-bit states.
    pub fn ranges_for<'f>(&self, formats: impl IntoIterator<Item = &'f FormatTuple>) -> Result<Ranges> {
        let mut ranges = self.ranges(RangeMethod::Ample, IntegerBits::Sixteen)?;
        if formats.into_iter().any(|tuple| tuple.states == StateFormat::A8) {
            let narrow = self.ranges(RangeMethod::MeanSquaredError, IntegerBits::Eight)?;
            ranges.extend(narrow.into_iter().filter(|(key, _)| key.starts_with(&state_key(""))));
        }
        Ok(ranges)
    }

    /// Adds the calibration of another run of the same model.
    pub fn merge(&mut self, other: Calibration) -> Result<()> {
        if self.checkpoint != other.checkpoint {
            return Err(Error::invalid("the calibrations belong to different models")
                .with_help("merge only calibrations of one checkpoint"));
        }
        self.sequences.extend(other.sequences);
        self.sequences.sort_unstable();
        self.tokens = self.tokens.saturating_add(other.tokens);
        for (key, seen) in other.tensors {
            self.tensors.entry(key).or_insert_with(Seen::new).merge(seen);
        }
        Ok(())
    }
}

pub(crate) fn no_sequences() -> Error {
    Error::invalid("no token sequences were given").with_help("pass at least one sequence of ids")
}

/// Computes a hash over every stored value of a model's weights and tables. Reads all of them once,
/// which takes seconds for ten gigabytes.
pub fn content_hash(graph: &Graph) -> Result<[u8; 32]> {
    let mut digest = Sha256::new();
    let tables = graph.assets.iter().map(|asset| &asset.table);
    let mut known: BTreeMap<(*const u8, usize), [u8; 32]> = BTreeMap::new();
    for weight in graph.weights.iter().chain(tables) {
        // A tied head is the same data as the embedding table.
        let place = (weight.data.bytes().as_ptr(), weight.data.length());
        let identity = match known.get(&place) {
            Some(identity) => *identity,
            None => *known.entry(place).or_insert(weight.identity()?),
        };
        digest.update((weight.name.len() as u64).to_le_bytes());
        digest.update(&weight.name);
        digest.update(identity);
    }
    Ok(digest.finalize().into())
}
