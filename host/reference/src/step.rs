//! Step inputs: all inputs that depend only on positions and token ids, as plain functions of the
//! step.
//!
//! A runtime computes the same tables in its own way. These functions define their content.

use std::collections::BTreeMap;

use shardwright_graph::{Asset, AssetId, AxialRope, Graph, GridAxis, INVISIBLE, Keys, Mask, Role, Rope};
use shardwright_vocabulary::{Error, Result};

use crate::Array;
use crate::weights::check_layout;

/// One run of an entry point: the position of its rows in the sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Step {
    /// Position of row 0.
    pub first: u64,
    /// Number of valid rows.
    pub rows: u64,
    /// Number of rows of the entry point. Rows beyond `rows` may have any finite values.
    pub of: u64,
}

impl Step {
    /// Returns the position of a row. Rows beyond the valid ones continue the count.
    fn position(&self, row: u64) -> i64 {
        (self.first + row) as i64
    }
}

/// A front end's features of one picture or clip.
#[derive(Clone, Copy, Debug)]
pub struct Features<'f> {
    /// `[F, width]`: patches or frames, all valid.
    pub values: &'f Array,
    /// For patches: the column of each. Empty for frames.
    pub columns: &'f [i32],
    /// For patches: the row of each. Empty for frames.
    pub rows: &'f [i32],
}

impl Features<'_> {
    /// Returns the number of valid rows of a run over the features.
    pub fn rows(&self, graph: &Graph) -> u64 {
        (self.values.shape()[0] as u64).div_ceil(graph.features_to_a_row())
    }

    fn along(&self, axis: GridAxis) -> &[i32] {
        match axis {
            GridAxis::Column => self.columns,
            GridAxis::Row => self.rows,
        }
    }
}

/// Returns the tensor of a step input of a tower. `None` for roles that are not step inputs. There
/// are `to_a_row` features per row.
pub fn feature_input(
    role: &Role,
    step: Step,
    to_a_row: u64,
    features: &Features<'_>,
    assets: &[Asset],
) -> Result<Option<Array>> {
    let rows = step.of;
    let array = match role {
        Role::Features => {
            let width = features.values.shape()[1];
            let mut values = features.values.floats().into_owned();
            values.resize((rows * to_a_row) as usize * width, 0.0);
            Array::floats_of(&[rows * to_a_row, width as u64], values)
        }
        Role::Grid { axis } => Array::integers_of(&[rows], on_grid(step, features.along(*axis))),
        Role::Valid { rate } => {
            let valid = features.values.shape()[0] as u64 * u64::from(*rate);
            let values = valid_rows(rows * u64::from(*rate), valid.div_ceil(to_a_row));
            Array::floats_of(&[rows * u64::from(*rate), 1], values)
        }
        Role::AxialCos(rope) => axial(step, rope, features).map(|tables| tables.0),
        Role::AxialSin(rope) => axial(step, rope, features).map(|tables| tables.1),
        Role::GatheredByGrid { asset, axis } => {
            let table = table(assets, *asset)?;
            let indices: Vec<u32> = features.along(*axis).iter().map(|&index| index as u32).collect();
            Array::floats_of(&[rows, table.width()], gathered(step, table, &indices)?)
        }
        _ => return step_input(role, step, &[], assets),
    };
    array.map(Some)
}

/// Returns a step input with the rows of `soft`, by position, instead of the rows of the embedding
/// table. Other inputs are not changed.
///
/// # Errors
///
/// Returns an error if a row has another width.
pub fn with_soft_rows(
    role: &Role,
    step: Step,
    given: Array,
    soft: &BTreeMap<u64, Vec<f32>>,
) -> Result<Array> {
    let Role::Gathered { asset: AssetId(0) } = role else { return Ok(given) };
    let (mut values, width) = (given.floats().into_owned(), given.shape()[1]);
    for (&position, row) in soft.range(step.first..step.first + step.rows) {
        if row.len() != width {
            let found = row.len();
            return Err(Error::argument(format!(
                "expected a soft row of {width} values at position {position}, got {found}"
            )));
        }
        let at = (position - step.first) as usize * width;
        values[at..at + width].copy_from_slice(row);
    }
    Array::floats_of(&[step.of, width as u64], values)
}

/// Returns `i32 [R]`: a coordinate of each valid row, −1 beyond.
fn on_grid(step: Step, along: &[i32]) -> Vec<i32> {
    let beyond = std::iter::repeat(&-1);
    along.iter().chain(beyond).copied().take(step.of as usize).collect()
}

/// Returns `f32 [rows, 1]`: 1 for the valid rows, 0 beyond.
fn valid_rows(rows: u64, valid: u64) -> Vec<f32> {
    (0..rows).map(|row| if row < valid { 1.0 } else { 0.0 }).collect()
}

/// Returns `f32 [2·R, head_dim/4]` twice: cosines and sines by columns, then by rows.
fn axial(step: Step, rope: &AxialRope, features: &Features<'_>) -> Result<(Array, Array)> {
    let half = rope.half();
    let along = [GridAxis::Column, GridAxis::Row].into_iter();
    let positions = along.flat_map(|axis| on_grid(step, features.along(axis)));
    let (cos, sin) = positions.flat_map(|position| rotary_angles(&half, position)).unzip();
    let shape = [2 * step.of, u64::from(half.head_dim / 2)];
    Ok((Array::floats_of(&shape, cos)?, Array::floats_of(&shape, sin)?))
}

/// Returns the tensor of a step input. `None` for roles that are not step inputs.
///
/// `tokens` are the ids of the valid rows, for [`Role::Gathered`].
pub fn step_input(role: &Role, step: Step, tokens: &[u32], assets: &[Asset]) -> Result<Option<Array>> {
    let rows = step.of;
    let array = match role {
        Role::Positions => Array::integers_of(&[rows], positions(step)),
        Role::Slots { capacity } => Array::integers_of(&[rows], slots(step, *capacity)),
        Role::RotaryCos(rope) => {
            Array::floats_of(&[rows, u64::from(rope.head_dim / 2)], rotary(step, rope).0)
        }
        Role::RotarySin(rope) => {
            Array::floats_of(&[rows, u64::from(rope.head_dim / 2)], rotary(step, rope).1)
        }
        Role::Mask(kind) => {
            let values = mask(step, kind);
            Array::floats_of(&[rows, values.len() as u64 / rows], values)
        }
        Role::Pooling => Array::floats_of(&[1, rows], pooling(step)),
        Role::Gathered { asset } => {
            let table = table(assets, *asset)?;
            Array::floats_of(&[rows, table.width()], gathered(step, table, tokens)?)
        }
        _ => return Ok(None),
    };
    array.map(Some)
}

/// Returns `i32 [R]`: the position of each row.
pub fn positions(step: Step) -> Vec<i32> {
    (0..step.of).map(|row| step.position(row) as i32).collect()
}

/// Returns `i32 [R]`: the state row that each valid row is written to, −1 beyond.
pub fn slots(step: Step, capacity: u64) -> Vec<i32> {
    (0..step.of)
        .map(|row| if row < step.rows { ((step.first + row) % capacity) as i32 } else { -1 })
        .collect()
}

/// Returns `f32 [R, head_dim/2]` twice: cosines and sines.
pub fn rotary(step: Step, rope: &Rope) -> (Vec<f32>, Vec<f32>) {
    positions(step).into_iter().flat_map(|position| rotary_angles(rope, position)).unzip()
}

/// Returns the cosine and sine of each pair at one position. Pairs without rotation have 1 and 0.
///
/// Frequencies and angles are rounded to f32 at every step, as in the training of the models:
/// `theta^(2i/d)`, its reciprocal, the division by the pair's divisor, and `position · frequency`.
/// In f64 the angles of late positions would differ visibly.
pub fn rotary_angles(rope: &Rope, position: i32) -> Vec<(f32, f32)> {
    (0..rope.head_dim / 2)
        .map(|pair| {
            if pair >= rope.rotated_pairs {
                return (1.0, 0.0);
            }
            let exponent = (2 * pair) as f32 / rope.head_dim as f32;
            let power = f64::from(rope.theta).powf(f64::from(exponent)) as f32;
            let angle = f64::from(position as f32 * (1.0 / power / rope.divisor(pair)));
            (angle.cos() as f32 * rope.magnitude, angle.sin() as f32 * rope.magnitude)
        })
        .collect()
}

/// Returns `f32 [R, keys]`: 0 where row r sees the key, [`INVISIBLE`] elsewhere.
pub fn mask(step: Step, mask: &Mask) -> Vec<f32> {
    let mut values = Vec::new();
    for row in 0..step.of {
        let query = step.position(row);
        let own_rows = |causal| {
            (0..step.of).map(move |key| {
                row_is_visible(row as usize, key as usize, step.rows as usize, mask.window, causal)
            })
        };
        let row: Vec<bool> = match mask.keys {
            Keys::State { capacity } => (0..capacity as usize)
                .map(|slot| slot_is_visible(query as i32, slot, capacity as usize, mask.window))
                .collect(),
            Keys::StateAndRows { capacity } => (0..capacity)
                .map(|slot| earlier_slot_is_visible(query, slot, capacity, mask.window, step.position(0)))
                .chain(own_rows(true))
                .collect(),
            Keys::Rows => own_rows(mask.causal).collect(),
        };
        values.extend(row.into_iter().map(|visible| if visible { 0.0 } else { INVISIBLE }));
    }
    values
}

/// Checks whether a query at `position` sees `slot` of a state of `capacity` rows. The state
/// already contains the row at `position`.
///
/// The slot contains the latest position up to the query's that maps to it.
pub fn slot_is_visible(position: i32, slot: usize, capacity: usize, window: u32) -> bool {
    let stored = latest_position(position, slot, capacity);
    stored >= 0 && within(i64::from(position), stored, window)
}

/// Returns the position of a visible row of a state, as in [`slot_is_visible`].
pub(crate) fn stored_position(position: i32, slot: usize, capacity: usize) -> u64 {
    latest_position(position, slot, capacity).max(0) as u64
}

fn latest_position(position: i32, slot: usize, capacity: usize) -> i64 {
    let (position, slot, capacity) = (i64::from(position), slot as i64, capacity as i64);
    position - (position - slot).rem_euclid(capacity)
}

/// Like [`slot_is_visible`], but for a state that contains only the rows before the run, which
/// begins at `first`.
pub fn earlier_slot_is_visible(position: i64, slot: u64, capacity: u64, window: u32, first: i64) -> bool {
    let last = first - 1;
    let stored = last - (last - slot as i64).rem_euclid(capacity as i64);
    stored >= 0 && within(position, stored, window)
}

/// Checks whether row `row` of an entry sees row `key` of the same entry, which has `rows` valid
/// rows.
///
/// Without `causal`, a window extends to both sides.
pub fn row_is_visible(row: usize, key: usize, rows: usize, window: u32, causal: bool) -> bool {
    key < rows && (!causal || key <= row) && (window == 0 || row.abs_diff(key) < window as usize)
}

fn within(position: i64, key: i64, window: u32) -> bool {
    window == 0 || key > position - i64::from(window)
}

/// Returns `f32 [1, R]`: the factors that compute the mean over the valid rows as a product.
pub fn pooling(step: Step) -> Vec<f32> {
    (0..step.of).map(|row| if row < step.rows { 1.0 / step.rows as f32 } else { 0.0 }).collect()
}

fn table(assets: &[Asset], asset: AssetId) -> Result<&Asset> {
    assets.get(asset.0 as usize).ok_or_else(|| {
        Error::invalid(format!("expected one of {} gathered tables, got table {}", assets.len(), asset.0))
    })
}

pub(crate) fn unfit_rows(rows: u64, limit: u64) -> Error {
    Error::argument(format!("expected 1 to {limit} valid rows, got {rows}"))
        .with_help("split the rows into chunks of at most the entry's rows")
}

/// Returns `f32 [R, width]`: the rows of a table that the tokens read, decoded exactly. Zeros
/// beyond the valid rows.
pub fn gathered(step: Step, asset: &Asset, tokens: &[u32]) -> Result<Vec<f32>> {
    let width = asset.width() as usize;
    check_layout(&asset.table)?;
    if tokens.len() as u64 != step.rows || step.rows > step.of {
        return Err(unfit_rows(tokens.len() as u64, step.of));
    }
    let mut values = vec![0.0; step.of as usize * width];
    for (&token, values) in tokens.iter().zip(values.chunks_exact_mut(width)) {
        let row = asset.row_of(token);
        if u64::from(row) >= asset.entries() {
            let (name, entries) = (&asset.name, asset.entries());
            let message = format!("token {token} needs row {row} of `{name}`, which has {entries} rows");
            return Err(
                Error::invalid(message).with_help("the tokenizer and the checkpoint do not belong together")
            );
        }
        asset.table.decode_row(row as usize, values);
    }
    Ok(values)
}
