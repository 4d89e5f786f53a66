//! Quantises one weight to one format, chunk by chunk. A chunk's result depends only on its values,
//! so order, threads and interruptions change no byte.

use std::collections::VecDeque;
use std::ops::Range;

use half::f16;
use rayon::prelude::*;
use shardwright_graph::{ConstantFormat, Weight, WeightData, not_finite};
use shardwright_vocabulary::{DType, Encoding, Error, Granularity, Result, WeightFormat};

use crate::compensation::{Factors, MatrixFactors, PassedOn, Rounded, Rows, Sweeps};
use crate::multiples::{best_multiples, row_scale};
use crate::recipe::cancelled;
use crate::scale::{Steps, Sums, best_scale, largest, nearest, sums};
use crate::{RowSource, pack};

/// Version of the arithmetic that determines a weight's bytes. Bytes and losses from another
/// version may differ from current ones.
pub(crate) const ARITHMETIC: u32 = 2;

/// Values per chunk, unless one row is longer: a megabyte as f32.
const CHUNK_VALUES: usize = 1 << 18;
/// Values per chunk with error compensation. It is larger because every chunk reads all factors.
const COMPENSATED_VALUES: usize = 1 << 20;
/// Minimum number of chunks for a small matrix with error compensation, and minimum number of rows
/// of each chunk and of each task.
const COMPENSATED_CHUNKS: usize = 8;
const COMPENSATED_ROWS: usize = 16;
/// Chunks made in parallel, per thread and in total. The total bounds memory to 32 chunks of values
/// and results, 100 MB at most.
const CHUNKS_PER_THREAD: usize = 2;
const CHUNKS_AT_A_TIME: usize = 32;
/// Largest number of values that share a channel's scale: a gigabyte as f32, a hundred times the
/// longest row of any published model.
pub(crate) const CHANNEL_LIMIT: u64 = 1 << 28;

/// Stored bytes of one chunk.
pub(crate) struct Chunk {
    pub data: Vec<u8>,
    pub scales: Vec<u8>,
}

/// The target format of a weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Target {
    /// One of the weight formats.
    Matrix(WeightFormat),
    /// `U16` per tensor with a zero point.
    Activation,
}

impl Target {
    /// Returns the target for a format, or `None` for the format that leaves a weight as stored.
    pub fn matrix(format: WeightFormat) -> Option<Target> {
        (format != WeightFormat::AsStored).then_some(Target::Matrix(format))
    }

    /// Returns the target for a format, or `None` for a weight that stays as stored.
    pub fn of(format: ConstantFormat) -> Option<Target> {
        match format {
            ConstantFormat::Stored => None,
            ConstantFormat::Matrix(format) => Target::matrix(format),
            ConstantFormat::Activation => Some(Target::Activation),
        }
    }

    /// Returns whether values become integers of a weight format.
    pub fn is_rounded(self) -> bool {
        matches!(self, Target::Matrix(format) if format.is_quantised())
    }
}

/// Properties of the whole tensor that its chunks depend on.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Whole {
    pub scale: f32,
    pub zero_point: i32,
}

/// How values are rounded to integers.
#[derive(Clone, Copy, Debug)]
pub enum Rounding<'f> {
    /// Each value is rounded to the nearest integer.
    Nearest,
    /// Errors within a row are compensated. With factors of rows, errors across rows are
    /// compensated too, see [`Factors`].
    Compensated {
        /// Factors with the width of the matrix.
        columns: &'f Factors,
        /// Factors whose width is the number of rows of the matrix.
        rows: Option<&'f Factors>,
    },
}

impl<'f> Rounding<'f> {
    /// Returns compensated rounding with these factors, or rounding to the nearest without factors.
    pub fn by(factors: Option<&'f MatrixFactors>) -> Self {
        let of = |factors: &'f MatrixFactors| Rounding::Compensated {
            columns: &factors.columns,
            rows: factors.rows.as_deref(),
        };
        factors.map_or(Rounding::Nearest, of)
    }
}

impl PassedOn {
    fn by(rounding: Rounding<'_>) -> Self {
        match rounding {
            Rounding::Nearest => PassedOn::Nowhere,
            Rounding::Compensated { rows: None, .. } => PassedOn::ToColumns,
            Rounding::Compensated { rows: Some(_), .. } => PassedOn::ToRows,
        }
    }
}

/// The quantisation of one weight.
pub(crate) struct Job<'s> {
    source: &'s dyn RowSource,
    passed_on: PassedOn,
    factors: Option<(&'s Factors, Option<&'s Factors>)>,
    /// The target weight with its sizes, but without data.
    planned: Weight,
    rows: usize,
    width: usize,
    /// Number of rows that share a scale.
    unit: usize,
    units_per_chunk: usize,
    /// Whether the scales of blocks are multiples of one scale per row.
    stepped: bool,
}

impl<'s> Job<'s> {
    /// Creates a job. Call [`Job::by`] to set the factors, otherwise each value is rounded to the
    /// nearest. `passed_on` applies only to matrices in integer formats.
    pub fn new(source: &'s dyn RowSource, target: Target, passed_on: PassedOn) -> Result<Self> {
        let float = Weight {
            name: source.name().to_owned(),
            part: source.part(),
            shape: source.shape().to_vec(),
            dtype: DType::F32,
            data: WeightData::planned(0),
            quantisation: None,
        };
        let planned = match target {
            Target::Matrix(WeightFormat::AsStored) => {
                return Err(Error::invalid("`as-stored` is not a format to convert to")
                    .at(format!("weight `{}`", float.name))
                    .with_help("keep the weight, or choose another format"));
            }
            Target::Matrix(format) => float.planned(format)?,
            Target::Activation => float.planned_constant()?,
        };
        let (rows, width) = (planned.rows(), planned.row_width());
        let granularity = planned.quantisation.as_ref().map(|existing| existing.granularity);
        let channels = planned.shape.first().map_or(1, |&extent| extent as usize).max(1);
        let unit = match granularity {
            Some(Granularity::PerChannel) if planned.shape.len() > 1 => (rows / channels).max(1),
            _ => 1,
        };
        let values = (unit as u64).saturating_mul(width as u64);
        if values > CHANNEL_LIMIT {
            let what = format!("expected at most {CHANNEL_LIMIT} values in one channel, got {values}");
            return Err(Error::invalid(what)
                .at(format!("weight `{}`", planned.name))
                .with_help("choose a format with a scale per tensor or block"));
        }
        let is_matrix = target.is_rounded() && planned.shape.len() == 2;
        let passed_on = if is_matrix { passed_on } else { PassedOn::Nowhere };
        let fit = |most: usize| (most / (values as usize).max(1)).max(1);
        let units_per_chunk = match passed_on {
            PassedOn::Nowhere => fit(CHUNK_VALUES),
            // The error of one row is passed on to all other rows.
            PassedOn::ToRows => (rows / unit).max(1),
            PassedOn::ToColumns => {
                let few = (rows / unit).div_ceil(COMPENSATED_CHUNKS).max(COMPENSATED_ROWS.div_ceil(unit));
                fit(COMPENSATED_VALUES).min(few).max(1)
            }
        };
        let stepped = target == Target::Matrix(WeightFormat::W4Block32Stepped);
        Ok(Job { source, passed_on, factors: None, planned, rows, width, unit, units_per_chunk, stepped })
    }

    /// Sets the rounding.
    ///
    /// # Errors
    /// If the factors belong to another matrix.
    pub fn by(self, rounding: Rounding<'s>) -> Result<Self> {
        let Rounding::Compensated { columns, rows } = rounding else { return Ok(self) };
        if self.passed_on == PassedOn::Nowhere {
            return Ok(self);
        }
        let sizes = [("columns", self.width, Some(columns)), ("rows", self.rows, rows)];
        for (what, wanted, factors) in sizes {
            if let Some(found) = factors.map(Factors::width).filter(|found| *found != wanted) {
                let what = format!("expected moments for {wanted} {what}, got moments for {found}");
                return Err(Error::invalid(what)
                    .at(format!("weight `{}`", self.planned.name))
                    .with_help("compute the moments of this checkpoint again"));
            }
        }
        Ok(Job { factors: Some((columns, rows)), ..self })
    }

    /// Creates a job with the given rounding.
    pub fn rounded(source: &'s dyn RowSource, target: Target, rounding: Rounding<'s>) -> Result<Self> {
        Job::new(source, target, PassedOn::by(rounding))?.by(rounding)
    }

    /// Returns the target weight with its sizes, but without data.
    pub fn planned(&self) -> &Weight {
        &self.planned
    }

    /// Returns the number of chunks.
    pub fn chunks(&self) -> usize {
        let units = if self.width == 0 { 0 } else { self.rows / self.unit };
        units.div_ceil(self.units_per_chunk)
    }

    fn chunk_rows(&self, chunk: usize) -> Range<usize> {
        let rows = self.units_per_chunk * self.unit;
        (chunk * rows).min(self.rows)..((chunk + 1) * rows).min(self.rows)
    }

    fn row_bytes(&self) -> usize {
        (self.width as u64 * self.planned.dtype.bits()).div_ceil(8) as usize
    }

    /// Returns the number of scale bytes per unit.
    fn unit_scale_bytes(&self) -> usize {
        let Some(existing) = &self.planned.quantisation else { return 0 };
        let scales = match existing.granularity {
            Granularity::PerTensor => 0,
            Granularity::PerChannel if self.planned.shape.len() == 1 => self.width,
            Granularity::PerChannel => 1,
            Granularity::PerBlock { size, .. } => self.width.div_ceil(size.max(1) as usize),
        };
        scales * existing.scale_dtype.bytes() as usize
    }

    /// Returns the byte ranges of a chunk within the data and within the scales.
    pub fn places(&self, chunk: usize) -> (Range<usize>, Range<usize>) {
        let rows = self.chunk_rows(chunk);
        let (row, scale) = (self.row_bytes(), self.unit_scale_bytes());
        let units = rows.start / self.unit..rows.end / self.unit;
        (rows.start * row..rows.end * row, units.start * scale..units.end * scale)
    }

    /// Returns whether chunks depend on a property of the whole tensor.
    pub fn needs_whole(&self) -> bool {
        self.planned
            .quantisation
            .as_ref()
            .is_some_and(|existing| existing.granularity == Granularity::PerTensor)
    }

    /// Computes the properties of the whole tensor in one or two passes. `alive` returns `false` to
    /// cancel.
    pub fn whole(&self, alive: &mut dyn FnMut() -> bool) -> Result<Option<Whole>> {
        if !self.needs_whole() {
            return Ok(None);
        }
        if self.planned.dtype == DType::U16 {
            let ends = |values: &[f32]| {
                values
                    .iter()
                    .fold((0.0_f32, 0.0_f32), |(low, high), &value| (low.min(value), high.max(value)))
            };
            let both = |a: (f32, f32), b: (f32, f32)| (a.0.min(b.0), a.1.max(b.1));
            let (low, high) = self.fold(alive, (0.0, 0.0), ends, both)?;
            let encoding = Encoding::affine_over(low, high, 16);
            return Ok(Some(Whole { scale: encoding.scale.get(), zero_point: encoding.zero_point }));
        }
        let steps = self.steps();
        let largest = self.fold(alive, 0.0, largest, f32::max)?;
        if largest == 0.0 {
            return Ok(Some(Whole { scale: 1.0, zero_point: 0 }));
        }
        let grid: Vec<f32> = steps.grid(largest).collect();
        let of = |values: &[f32]| -> Vec<Sums> {
            let rows = || values.chunks(self.width.max(1));
            let of_scale = |&scale: &f32| {
                rows().map(|row| sums(row, None, scale, steps)).fold(Sums::default(), Sums::plus)
            };
            grid.iter().map(of_scale).collect()
        };
        let add = |a: Vec<Sums>, b: Vec<Sums>| a.into_iter().zip(b).map(|(a, b)| a.plus(b)).collect();
        let all = self.fold(alive, vec![Sums::default(); grid.len()], of, add)?;
        let (mut best, mut error) = (0, f64::INFINITY);
        for (index, (sums, &scale)) in all.iter().zip(&grid).enumerate() {
            if sums.squared_error(scale) < error {
                (best, error) = (index, sums.squared_error(scale));
            }
        }
        // The least-squares scale for the same integers, followed by another rounding, can only
        // reduce the error.
        let scale = all[best].fitted(grid[best], steps).unwrap_or(grid[best]);
        Ok(Some(Whole { scale, zero_point: 0 }))
    }

    /// Makes the chunks, in parallel on all threads, and passes them to `take` in order.
    pub fn make(
        &self,
        wanted: impl Iterator<Item = usize>,
        whole: Option<Whole>,
        mut take: impl FnMut(usize, Chunk) -> Result<()>,
    ) -> Result<()> {
        let mut wanted = wanted.peekable();
        while wanted.peek().is_some() {
            let batch: Vec<usize> = wanted.by_ref().take(at_a_time()).collect();
            let mut made: VecDeque<_> = batch
                .par_iter()
                .map(|&chunk| self.values(chunk).map(|values| self.chunk(chunk, &values, whole)))
                .collect();
            for chunk in batch {
                if let Some(made) = made.pop_front() {
                    take(chunk, made?)?;
                }
            }
        }
        Ok(())
    }

    /// Assembles the finished weight from its data and scales.
    pub fn weight(&self, data: WeightData, scales: Option<WeightData>, whole: Option<Whole>) -> Weight {
        let mut weight = self.planned.clone();
        weight.data = data;
        if let (Some(existing), Some(scales)) = (&mut weight.quantisation, scales) {
            existing.scales = scales;
            existing.zero_point = whole.map_or(0, |whole| whole.zero_point);
        }
        weight
    }

    /// Folds over all chunks in order, independently of the number of threads.
    fn fold<T: Send>(
        &self,
        alive: &mut dyn FnMut() -> bool,
        start: T,
        of: impl Fn(&[f32]) -> T + Sync,
        add: impl Fn(T, T) -> T,
    ) -> Result<T> {
        let mut total = start;
        let chunks: Vec<usize> = (0..self.chunks()).collect();
        for batch in chunks.chunks(at_a_time()) {
            let parts: Vec<Result<T>> =
                batch.par_iter().map(|&chunk| self.values(chunk).map(|values| of(&values))).collect();
            for part in parts {
                total = add(total, part?);
            }
            if !alive() {
                return Err(cancelled(&self.planned.name));
            }
        }
        Ok(total)
    }

    /// Reads the values of a chunk and checks that all are finite.
    fn values(&self, chunk: usize) -> Result<Vec<f32>> {
        let rows = self.chunk_rows(chunk);
        let mut values = vec![0.0; rows.len() * self.width];
        self.source.rows(rows.start, &mut values)?;
        self.source.release(rows.start, rows.len());
        if !values.iter().all(|value| value.is_finite()) {
            let at = values.iter().position(|value| !value.is_finite()).unwrap_or_default();
            let place = rows.start * self.width + at;
            return Err(not_finite(&self.planned.name, self.width, place, values[at]));
        }
        Ok(values)
    }

    fn steps(&self) -> Steps {
        let scale = self.planned.quantisation.as_ref().map_or(DType::F32, |existing| existing.scale_dtype);
        Steps::of(self.planned.dtype, scale)
    }

    fn chunk(&self, chunk: usize, values: &[f32], whole: Option<Whole>) -> Chunk {
        let (data, scales) = self.places(chunk);
        let mut made =
            Chunk { data: Vec::with_capacity(data.len()), scales: Vec::with_capacity(scales.len()) };
        let Some(existing) = &self.planned.quantisation else {
            pack::floats(self.planned.dtype, values, &mut made.data);
            return made;
        };
        if let Some((columns, rows)) = self.factors {
            self.compensated(values, (columns, rows), whole, &mut made);
            return made;
        }
        let mut codes = vec![0_i32; self.width];
        match (existing.granularity, whole) {
            (Granularity::PerTensor, Some(whole)) if self.planned.dtype == DType::U16 => {
                for row in values.chunks(self.width) {
                    let encode = |value: f32| raw(value, whole);
                    codes.iter_mut().zip(row).for_each(|(code, &value)| *code = encode(value));
                    pack::integers(self.planned.dtype, &codes, &mut made.data);
                }
            }
            (Granularity::PerTensor, whole) => {
                let scale = whole.map_or(1.0, |whole| whole.scale);
                for row in values.chunks(self.width) {
                    self.round(row, scale, &mut codes);
                    pack::integers(self.planned.dtype, &codes, &mut made.data);
                }
            }
            (Granularity::PerChannel, _) if self.planned.shape.len() > 1 => {
                self.channels(values, &mut codes, &mut made);
            }
            (Granularity::PerChannel, _) => self.blocks(values, 1, &mut codes, &mut made),
            (Granularity::PerBlock { size, .. }, _) => {
                self.blocks(values, size.max(1) as usize, &mut codes, &mut made);
            }
        }
        made
    }

    /// Quantises with one scale for the rows of each unit.
    fn channels(&self, values: &[f32], codes: &mut [i32], made: &mut Chunk) {
        for channel in values.chunks(self.unit * self.width) {
            let scale = best_scale(channel, None, self.steps());
            self.push_scale(scale, made);
            for row in channel.chunks(self.width) {
                self.round(row, scale, codes);
                pack::integers(self.planned.dtype, codes, &mut made.data);
            }
        }
    }

    /// Quantises with one scale for every `size` consecutive values of a row.
    fn blocks(&self, values: &[f32], size: usize, codes: &mut [i32], made: &mut Chunk) {
        for row in values.chunks(self.width) {
            let scales = self.row_scales(row, size, None).at(1.0, self.steps());
            for ((block, codes), scale) in row.chunks(size).zip(codes.chunks_mut(size)).zip(scales) {
                self.push_scale(scale, made);
                self.round(block, scale, codes);
            }
            pack::integers(self.planned.dtype, codes, &mut made.data);
        }
    }

    /// Returns the scales of a row, one for every `size` consecutive values. They minimise the
    /// squared error weighted by `importance`, which has one value per column.
    fn row_scales(&self, row: &[f32], size: usize, importance: Option<&[f32]>) -> RowScales {
        if self.stepped {
            let (scale, multiples) = best_multiples(row, importance, size, self.steps());
            return RowScales::Stepped { scale, multiples };
        }
        let of_block = |(index, values): (usize, &[f32])| {
            let start = index * size;
            let importance = importance.and_then(|importance| importance.get(start..start + values.len()));
            best_scale(values, importance, self.steps())
        };
        RowScales::Free(row.chunks(size).enumerate().map(of_block).collect())
    }

    /// Quantises rows with error compensation.
    fn compensated(
        &self,
        values: &[f32],
        (columns, rows): (&Factors, Option<&Factors>),
        whole: Option<Whole>,
        made: &mut Chunk,
    ) {
        let size = match self.planned.quantisation.as_ref().map(|existing| existing.granularity) {
            Some(Granularity::PerBlock { size, .. }) => (size as usize).max(1),
            _ => self.width.max(1),
        };
        let (width, steps) = (self.width.max(1), self.steps());
        // Every task packs the factors separately, and rows within a task are independent of each
        // other.
        let task = (values.len() / width).div_ceil(rayon::current_num_threads()).max(COMPENSATED_ROWS);
        let found: Vec<(Vec<RowScales>, Best)> = values
            .par_chunks(task * width)
            .map(|values| self.best_of_rows(values, size, columns, whole))
            .collect();
        let mut factors: Vec<f32> = found.iter().flat_map(|(_, best)| best.factors.iter().copied()).collect();
        let scales: Vec<&RowScales> = found.iter().flat_map(|(scales, _)| scales).collect();
        let at = |factors: &[f32]| -> Vec<Vec<f32>> {
            scales.iter().zip(factors).map(|(scales, &factor)| scales.at(factor, steps)).collect()
        };
        let mut at_now = at(&factors);
        let own = Rows::of(columns, values);
        let step = |row: usize, column: usize| at_now[row][column / size];
        let mut codes = rows
            .and_then(|rows| own.round_together(rows, steps, step))
            .unwrap_or_else(|| found.iter().flat_map(|(_, best)| best.codes.iter().copied()).collect());
        // With 127 steps, few integers would still change, so sweeps gain almost nothing.
        if steps.limit < 16.0 {
            let step = |row: usize, column: usize| at_now[row][column / size];
            let mut sweeps = Sweeps::of(&own, rows, &codes, step);
            // Each row gets one factor for all its scales. Scales of free blocks are excluded
            // because their type is too coarse, and a scale of the whole tensor because no single
            // row may change it.
            let is_fitted = whole.is_none() && (self.stepped || size >= width);
            for sweep in 1..=SWEEPS {
                let step = |row: usize, column: usize| at_now[row][column / size];
                sweeps.sweep(steps, step);
                if sweep <= FITTED && is_fitted {
                    factors.iter_mut().zip(sweeps.fitted()).for_each(|(factor, by)| *factor *= by);
                    let before = std::mem::replace(&mut at_now, at(&factors));
                    let by: Vec<f32> =
                        at_now.iter().zip(&before).map(|(now, before)| now[0] / before[0]).collect();
                    sweeps.rescale(&by);
                }
            }
            codes = sweeps.codes();
        }
        for (codes, at) in codes.chunks(width).zip(&at_now) {
            if whole.is_none() {
                at.iter().for_each(|&scale| self.push_scale(scale, made));
            }
            pack::integers(self.planned.dtype, codes, &mut made.data);
        }
    }

    /// Quantises rows with error compensation within each row, and picks the scales with the least
    /// loss.
    fn best_of_rows(
        &self,
        values: &[f32],
        size: usize,
        factors: &Factors,
        whole: Option<Whole>,
    ) -> (Vec<RowScales>, Best) {
        let scales: Vec<RowScales> = match whole {
            Some(whole) => values.chunks(self.width).map(|_| RowScales::Free(vec![whole.scale])).collect(),
            None => {
                let importance = Some(factors.importance());
                values.chunks(self.width).map(|row| self.row_scales(row, size, importance)).collect()
            }
        };
        let (steps, rows) = (self.steps(), Rows::of(factors, values));
        let mut best = Best::of(scales.len());
        let round = |factors: &[f32], best: &mut Best| {
            let at: Vec<Vec<f32>> =
                scales.iter().zip(factors).map(|(scales, &factor)| scales.at(factor, steps)).collect();
            best.take(factors, &rows.round(steps, |row, column| at[row][column / size]), self.width);
        };
        // No single row may change a scale of the whole tensor, and with 127 steps other scales
        // gain nothing.
        let fixed = whole.is_some() || steps.limit > 16.0;
        let tried: &[f32] = if fixed { &[1.0] } else { &FACTORS };
        for &factor in tried {
            round(&vec![factor; scales.len()], &mut best);
        }
        if !fixed {
            let found = best.factors.clone();
            for beside in [-FINER, FINER] {
                let factors: Vec<f32> = found.iter().map(|factor| factor + beside).collect();
                round(&factors, &mut best);
            }
        }
        // If values are so large that passed-on errors overflow, round each to the nearest.
        for (row, of_row) in values.chunks(self.width).enumerate() {
            if !best.losses[row].is_finite() {
                let codes = &mut best.codes[row * self.width..(row + 1) * self.width];
                let blocks = of_row.chunks(size).zip(codes.chunks_mut(size));
                for ((block, codes), scale) in blocks.zip(scales[row].at(1.0, steps)) {
                    self.round(block, scale, codes);
                }
            }
        }
        (scales, best)
    }

    fn push_scale(&self, scale: f32, made: &mut Chunk) {
        match self.steps().scale {
            DType::F16 => made.scales.extend(f16::from_f32(scale).to_le_bytes()),
            _ => made.scales.extend(scale.to_le_bytes()),
        }
    }

    fn round(&self, values: &[f32], scale: f32, codes: &mut [i32]) {
        let (steps, inverse) = (self.steps(), scale.recip());
        for (code, &value) in codes.iter_mut().zip(values) {
            *code = nearest(value * inverse, steps) as i32;
        }
    }
}

/// Number of sweeps over all values, and number of sweeps that also fit the scales.
const SWEEPS: usize = 6;
const FITTED: usize = 3;

/// Factors applied to a row's scales under error compensation, and the offset of the finer trials
/// around the best factor. Compensation adds the errors of earlier columns to a row before
/// rounding, so the scales of least squared error are not optimal.
const FACTORS: [f32; 5] = [0.75, 0.85, 0.95, 1.05, 1.15];
const FINER: f32 = 0.05;

/// The scales of one row.
enum RowScales {
    /// Independent scales.
    Free(Vec<f32>),
    /// Multiples of one scale.
    Stepped { scale: f32, multiples: Vec<u8> },
}

impl RowScales {
    /// Returns the scales times `factor`, rounded to their type.
    fn at(&self, factor: f32, steps: Steps) -> Vec<f32> {
        match self {
            RowScales::Free(scales) if factor == 1.0 => scales.clone(),
            RowScales::Free(scales) => {
                scales.iter().map(|&scale| steps.scale(f64::from(scale) * f64::from(factor))).collect()
            }
            RowScales::Stepped { scale, multiples } => {
                let scale = row_scale(f64::from(*scale) * f64::from(factor));
                multiples.iter().map(|&multiple| scale * f32::from(multiple)).collect()
            }
        }
    }
}

/// The best result found for each row.
struct Best {
    losses: Vec<f64>,
    factors: Vec<f32>,
    codes: Vec<i32>,
}

impl Best {
    fn of(rows: usize) -> Self {
        Best { losses: vec![f64::INFINITY; rows], factors: vec![1.0; rows], codes: Vec::new() }
    }

    /// Adopts the rows that lose less with these factors.
    fn take(&mut self, factors: &[f32], rounded: &Rounded, width: usize) {
        self.codes.resize(rounded.codes.len(), 0);
        for (row, &loss) in rounded.losses.iter().enumerate() {
            if loss < self.losses[row] {
                self.losses[row] = loss;
                self.factors[row] = factors[row];
                let codes = row * width..(row + 1) * width;
                self.codes[codes.clone()].copy_from_slice(&rounded.codes[codes]);
            }
        }
    }
}

/// Returns the stored integer of a constant that is encoded like an activation, as defined by
/// [`Encoding::raw`].
fn raw(value: f32, whole: Whole) -> i32 {
    let raw = (value / whole.scale).round_ties_even() + whole.zero_point as f32;
    raw.clamp(0.0, f32::from(u16::MAX)) as i32
}

fn at_a_time() -> usize {
    (rayon::current_num_threads() * CHUNKS_PER_THREAD).clamp(1, CHUNKS_AT_A_TIME)
}
