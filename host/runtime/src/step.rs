//! Step inputs: values that depend only on positions and token ids, computed once per step.

mod attention_mask;
mod rotary;

use bytemuck::{cast_slice, cast_slice_mut};
use shardwright_graph::{Asset, AssetId, AxialRope, GridAxis, Role, not_finite};
use shardwright_vocabulary::DType;

use crate::error::{SessionError, undecodable};
use crate::features::Features;
use crate::soft_rows::SoftParts;
use crate::storage::Storage;

use rotary::RotaryTables;

/// Memory that steps reuse, so that no step allocates.
#[derive(Debug, Default)]
pub(crate) struct Workspace {
    rotary: RotaryTables,
    /// A stored row of a table with its scales.
    row: Vec<u8>,
}

/// Rows and positions of one step.
#[derive(Clone, Copy)]
pub(crate) struct Step<'a> {
    /// Position of the first row.
    pub position: u64,
    /// Number of valid rows.
    pub valid: u64,
    /// Number of rows of the entry, at least the number of valid rows.
    pub rows: u64,
    /// Source of the valid rows.
    pub given: Given<'a>,
}

/// Source of a step's rows.
#[derive(Clone, Copy)]
pub(crate) enum Given<'a> {
    /// A token for each row. Positions with soft rows have placeholders.
    Tokens { ids: &'a [u32], soft: &'a SoftParts },
    /// Features that a front end computed from a picture or clip, `to_a_row` of them for each row.
    Features { features: &'a Features<'a>, to_a_row: u64 },
}

impl<'a> Step<'a> {
    fn valid(&self) -> u64 {
        self.valid
    }

    /// Returns a coordinate of each valid patch, or an empty slice for tokens.
    fn along(&self, axis: GridAxis) -> &'a [i32] {
        match (self.given, axis) {
            (Given::Features { features, .. }, GridAxis::Column) => features.columns,
            (Given::Features { features, .. }, GridAxis::Row) => features.rows,
            (Given::Tokens { .. }, _) => &[],
        }
    }
}

/// Returns the type in which the values of a step input are computed. They may be stored in another
/// type.
pub(crate) fn natural_storage(role: &Role) -> Storage {
    match role {
        Role::Positions | Role::Slots { .. } | Role::Grid { .. } => Storage::plain(DType::I32),
        _ => Storage::F32,
    }
}

/// Returns the shape of a step input in an entry of `rows` rows. Returns `None` for roles that are
/// not step inputs, or if the asset does not exist.
pub(crate) fn natural_shape(role: &Role, rows: u64, assets: &[u64]) -> Option<Vec<u64>> {
    Some(match role {
        Role::Positions | Role::Slots { .. } | Role::Grid { .. } => vec![rows],
        Role::RotaryCos(rope) | Role::RotarySin(rope) => vec![rows, u64::from(rope.head_dim) / 2],
        Role::Mask(mask) => vec![rows, attention_mask::width(mask, rows)],
        Role::Pooling => vec![1, rows],
        Role::Gathered { asset } | Role::GatheredByGrid { asset, .. } => {
            vec![rows, *assets.get(asset.0 as usize)?]
        }
        Role::Valid { rate } => vec![rows.saturating_mul((*rate).into()), 1],
        Role::AxialCos(rope) | Role::AxialSin(rope) => {
            vec![rows.saturating_mul(2), u64::from(rope.head_dim) / 4]
        }
        _ => return None,
    })
}

/// Writes the values of a step input as 32-bit words, i32 or f32 according to [`natural_storage`].
///
/// Tokens must have been checked against the assets, and positions and capacities against
/// [`POSITION_LIMIT`].
pub(crate) fn fill(
    role: &Role,
    step: Step<'_>,
    assets: &[Asset],
    workspace: &mut Workspace,
    words: &mut [u32],
) -> Result<(), SessionError> {
    let Workspace { rotary, row } = workspace;
    match role {
        Role::Positions => positions(step, cast_slice_mut(words)),
        Role::Slots { capacity } => slots(step, *capacity, cast_slice_mut(words)),
        Role::RotaryCos(rope) => rotary.fill(rope, step.position, f64::cos, cast_slice_mut(words)),
        Role::RotarySin(rope) => rotary.fill(rope, step.position, f64::sin, cast_slice_mut(words)),
        Role::Mask(mask) => attention_mask::fill(mask, step, cast_slice_mut(words)),
        Role::Pooling => pooling(step, cast_slice_mut(words)),
        Role::Gathered { asset } => return gather(*asset, assets, step, row, cast_slice_mut(words)),
        Role::Grid { axis } => {
            let along = step.along(*axis).iter().chain(std::iter::repeat(&-1));
            cast_slice_mut(words).iter_mut().zip(along).for_each(|(value, &at)| *value = at);
        }
        Role::Valid { rate } => valid_rows(step, *rate, cast_slice_mut(words)),
        Role::AxialCos(rope) => axial(rope, step, f64::cos, cast_slice_mut(words)),
        Role::AxialSin(rope) => axial(rope, step, f64::sin, cast_slice_mut(words)),
        Role::GatheredByGrid { asset, axis } => {
            return gather_by_grid(&assets[asset.0 as usize], step.along(*axis), cast_slice_mut(words));
        }
        _ => {}
    }
    Ok(())
}

/// Largest position and capacity, because the contract passes both as i32.
pub(crate) const POSITION_LIMIT: u64 = i32::MAX as u64;

fn positions(step: Step<'_>, values: &mut [i32]) {
    for (row, value) in values.iter_mut().enumerate() {
        *value = position(step.position + row as u64);
    }
}

/// Converts a position to i32. Rows beyond the valid ones may exceed the largest position and are
/// clamped.
fn position(position: u64) -> i32 {
    i32::try_from(position).unwrap_or(i32::MAX)
}

fn slots(step: Step<'_>, capacity: u64, values: &mut [i32]) {
    for (row, value) in values.iter_mut().enumerate() {
        let row = row as u64;
        *value = if row < step.valid() { ((step.position + row) % capacity) as i32 } else { -1 };
    }
}

fn pooling(step: Step<'_>, values: &mut [f32]) {
    let share = 1.0 / step.valid() as f32;
    for (row, value) in values.iter_mut().enumerate() {
        *value = if (row as u64) < step.valid() { share } else { 0.0 };
    }
}

/// The table whose rows soft rows replace: the embedding.
const EMBEDDING: AssetId = AssetId(0);

/// Gathers rows of a table. Rows beyond the valid ones are zero.
///
/// Rows are read from the table's file instead of a mapping of it. The table may be larger than
/// memory, and touched pages would stay in this process's memory (two megabytes each if Linux, from
/// 6.18 on, caches a file in such chunks). Mapping and releasing the pages of a hundred rows also
/// costs a twentieth of a prompt's time.
fn gather(
    id: AssetId,
    assets: &[Asset],
    step: Step<'_>,
    buffer: &mut Vec<u8>,
    values: &mut [f32],
) -> Result<(), SessionError> {
    let asset = &assets[id.0 as usize];
    let Given::Tokens { ids, soft } = step.given else {
        values.fill(0.0);
        return Ok(());
    };
    for (row, values) in values.chunks_exact_mut(asset.width() as usize).enumerate() {
        let Some(&token) = ids.get(row) else {
            values.fill(0.0);
            continue;
        };
        if let Some(soft) = soft.row(step.position as usize + row).filter(|_| id == EMBEDDING) {
            values.copy_from_slice(soft);
            continue;
        }
        let read = asset.row_of(token);
        if !asset.table.read_row(read as usize, buffer, values) {
            return Err(undecodable(token, read, &asset.name));
        }
        expect_finite(asset, read as usize, values)?;
    }
    Ok(())
}

/// Checks the decoded row of a table. Its values must be finite.
fn expect_finite(asset: &Asset, row: usize, values: &[f32]) -> Result<(), SessionError> {
    // Without a branch for each value, a compiler checks several at once.
    if values.iter().fold(true, |all, value| all & value.is_finite()) {
        return Ok(());
    }
    let column = values.iter().position(|value| !value.is_finite()).unwrap_or_default();
    let place = row * values.len() + column;
    Err(not_finite(&asset.table.name, values.len(), place, values[column]).into())
}

/// Gathers rows of a table by a coordinate, which must have been checked against the table.
fn gather_by_grid(asset: &Asset, along: &[i32], values: &mut [f32]) -> Result<(), SessionError> {
    for (row, values) in values.chunks_exact_mut(asset.width() as usize).enumerate() {
        let Some(&at) = along.get(row) else {
            values.fill(0.0);
            continue;
        };
        if !asset.table.decode_row(at as usize, values) {
            return Err(undecodable(at as u32, at as u32, &asset.name));
        }
        expect_finite(asset, at as usize, values)?;
    }
    Ok(())
}

/// Writes 1 for valid rows and 0 beyond. There are `rate` values per row of the entry.
fn valid_rows(step: Step<'_>, rate: u32, values: &mut [f32]) {
    let rate = u64::from(rate);
    let valid = match step.given {
        Given::Features { features, to_a_row } => (features.count as u64 * rate).div_ceil(to_a_row),
        Given::Tokens { .. } => step.valid() * rate,
    };
    for (row, value) in values.iter_mut().enumerate() {
        *value = if (row as u64) < valid { 1.0 } else { 0.0 };
    }
}

/// Writes values for the columns of all rows, then for their rows on the grid.
fn axial(rope: &AxialRope, step: Step<'_>, of: fn(f64) -> f64, values: &mut [f32]) {
    let half = rope.half();
    let frequencies: Vec<f32> = rotary::frequencies(&half);
    let per_axis = step.rows as usize * frequencies.len();
    for (values, axis) in values.chunks_exact_mut(per_axis).zip([GridAxis::Column, GridAxis::Row]) {
        let along = step.along(axis).iter().chain(std::iter::repeat(&-1));
        for (values, &at) in values.chunks_exact_mut(frequencies.len()).zip(along) {
            for (value, frequency) in values.iter_mut().zip(&frequencies) {
                *value = of(f64::from(at as f32 * frequency)) as f32;
            }
        }
    }
}

/// Returns the words as stored bytes.
pub(crate) fn bytes_of(words: &[u32]) -> &[u8] {
    cast_slice(words)
}

/// Creates a step over tokens alone.
#[cfg(test)]
pub(crate) fn of_tokens(position: u64, ids: &[u32], rows: u64) -> Step<'_> {
    static NONE: std::sync::OnceLock<SoftParts> = std::sync::OnceLock::new();
    let soft = NONE.get_or_init(SoftParts::default);
    Step { position, valid: ids.len() as u64, rows, given: Given::Tokens { ids, soft } }
}

#[cfg(test)]
mod tests {
    use super::*;
    use shardwright_graph::{AssetId, Weight, WeightData};
    use shardwright_vocabulary::ErrorKind;

    fn filled(role: &Role, position: u64, tokens: &[u32], rows: u64, assets: &[Asset]) -> Vec<u32> {
        let widths: Vec<u64> = assets.iter().map(Asset::width).collect();
        let shape = natural_shape(role, rows, &widths).unwrap();
        let mut words = vec![0xdead_beef; shape.iter().product::<u64>() as usize];
        let step = of_tokens(position, tokens, rows);
        fill(role, step, assets, &mut Workspace::default(), &mut words).unwrap();
        words
    }

    #[test]
    fn positions_go_on_and_slots_stop() {
        let tokens = [5, 6, 7];
        assert_eq!(filled(&Role::Positions, 10, &tokens, 5, &[]), [10, 11, 12, 13, 14]);
        let slots = filled(&Role::Slots { capacity: 12 }, 10, &tokens, 5, &[]);
        assert_eq!(slots.map_signed(), [10, 11, 0, -1, -1]);
        let far = filled(&Role::Positions, POSITION_LIMIT, &[1], 2, &[]);
        assert_eq!(far.map_signed(), [i32::MAX, i32::MAX]);
    }

    trait Signed {
        fn map_signed(&self) -> Vec<i32>;
        fn map_real(&self) -> Vec<f32>;
    }

    impl Signed for Vec<u32> {
        fn map_signed(&self) -> Vec<i32> {
            self.iter().map(|&word| word as i32).collect()
        }

        fn map_real(&self) -> Vec<f32> {
            self.iter().map(|&word| f32::from_bits(word)).collect()
        }
    }

    #[test]
    fn pooling_shares_one_among_the_valid_rows() {
        assert_eq!(filled(&Role::Pooling, 0, &[1, 2], 4, &[]).map_real(), [0.5, 0.5, 0.0, 0.0]);
    }

    #[test]
    fn rows_are_gathered_widened_and_redirected() {
        let table = |dtype, bytes| Asset {
            name: "embedding".to_owned(),
            table: Weight {
                name: "embed.weight".to_owned(),
                part: "embedding",
                shape: vec![3, 2],
                dtype,
                data: WeightData::from_vec(bytes),
                quantisation: None,
            },
            redirect: vec![(9, 0)],
        };
        let values = [0.5, 1.5, 2.5, 3.5, 4.5, 5.5_f32];
        for dtype in [DType::F32, DType::F16, DType::Bf16] {
            let mut bytes = vec![0; values.len() * dtype.bytes() as usize];
            crate::storage::narrow(Storage::plain(dtype), &values, &mut bytes);
            let role = Role::Gathered { asset: AssetId(0) };
            let gathered = filled(&role, 4, &[2, 9, 1], 4, &[table(dtype, bytes)]);
            assert_eq!(gathered.map_real(), [4.5, 5.5, 0.5, 1.5, 2.5, 3.5, 0.0, 0.0], "{dtype}");
        }
    }

    /// Zeros would look like the row of some token, and the resulting text would still be fluent.
    #[test]
    fn a_row_that_cannot_be_decoded_is_an_error() {
        let table = |dtype, bytes| Asset {
            name: "embedding".to_owned(),
            table: Weight {
                name: "embed.weight".to_owned(),
                part: "embedding",
                shape: vec![2, 2],
                dtype,
                data: WeightData::from_vec(bytes),
                quantisation: None,
            },
            redirect: vec![(9, 1)],
        };
        // Only the bytes of the first row exist, and the integers have no scale.
        for (table, token, row) in
            [(table(DType::F32, vec![0; 8]), 9, 1), (table(DType::I8, vec![1; 4]), 0, 0)]
        {
            let role = Role::Gathered { asset: AssetId(0) };
            let tokens = [token];
            let step = of_tokens(0, &tokens, 1);
            let error = fill(&role, step, &[table], &mut Workspace::default(), &mut [0; 2]).unwrap_err();
            let expected = format!("row {row} of `embedding`, which cannot be decoded");
            assert!(error.to_string().ends_with(&expected), "{error}");
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(error.help().is_some());
        }
    }

    /// The oracle's plain functions must compute exactly the same bits.
    #[test]
    fn every_step_input_is_the_oracles() {
        use shardwright_graph::{Keys, Mask, Rope};
        use shardwright_reference::step::{Step as PlainStep, step_input};

        let bytes = (0..96).flat_map(|value| ((value as f32).sin()).to_le_bytes()).collect();
        let table = Asset {
            name: "embedding".to_owned(),
            table: Weight {
                name: "embed.weight".to_owned(),
                part: "embedding",
                shape: vec![24, 4],
                dtype: DType::F32,
                data: WeightData::from_vec(bytes),
                quantisation: None,
            },
            redirect: vec![(23, 0)],
        };
        let assets = [table];
        let rope = Rope {
            head_dim: 32,
            theta: 1e6,
            rotated_pairs: 16,
            factor: 1.0,
            divisors: Vec::new(),
            magnitude: 1.0,
        };
        let other = Rope {
            rotated_pairs: 5,
            factor: 8.0,
            theta: 1e4,
            divisors: (1..=16).map(|pair| pair as f32 / 3.0).collect(),
            magnitude: 1.19,
            ..rope.clone()
        };
        let mask = |keys, window, causal| Role::Mask(Mask { keys, window, causal });
        let roles = [
            Role::Positions,
            Role::Slots { capacity: 11 },
            Role::Pooling,
            Role::Gathered { asset: AssetId(0) },
            Role::RotaryCos(rope.clone()),
            Role::RotarySin(rope.clone()),
            Role::RotaryCos(other.clone()),
            Role::RotarySin(other),
            mask(Keys::State { capacity: 11 }, 6, true),
            mask(Keys::State { capacity: 70_000 }, 0, true),
            mask(Keys::StateAndRows { capacity: 11 }, 6, true),
            mask(Keys::StateAndRows { capacity: 70_000 }, 0, true),
            mask(Keys::Rows, 3, false),
            mask(Keys::Rows, 0, false),
        ];
        for role in &roles {
            for (position, valid, rows) in [
                (0, 1, 1),
                (0, 3, 5),
                (4, 5, 5),
                (9, 1, 5),
                (10, 2, 5),
                (23, 5, 5),
                (40, 4, 5),
                (65_530, 5, 5),
            ] {
                let tokens: Vec<u32> = (0..valid).map(|row| (position as u32 + row * 7) % 24).collect();
                let actual = filled(role, position, &tokens, rows, &assets);
                let step = PlainStep { first: position, rows: u64::from(valid), of: rows };
                let plain = step_input(role, step, &tokens, &assets).unwrap().unwrap();
                let expected: Vec<u32> = match plain.dtype() {
                    DType::I32 => plain.integers().iter().map(|&value| value as u32).collect(),
                    _ => plain.floats().iter().map(|value| value.to_bits()).collect(),
                };
                assert_eq!(actual, expected, "{role:?} at {position}, {valid} of {rows}");
            }
        }
    }
}
