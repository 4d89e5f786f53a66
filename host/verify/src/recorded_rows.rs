//! Recorded rows of pictures and sounds: the rows with which a prompt is run, and the expected rows
//! of a tower.
//!
//! For prompt number k they are `pK.image.soft` and `pK.audio.soft` f32 [S, H], one row for each
//! placeholder in order, multiplied by the scale of the embedding. `pK.audio.mask` u8 [S] marks the
//! valid rows of a sound. A prompt with placeholders but without rows of their kind uses the rows
//! of the last prompt before it that has some.
//!
//! Inputs of the tower may be recorded too: `pK.pixel_values` f32 [N, width] with
//! `pK.image_position_ids` i64 [N, 2] (column and row, −1 for padding), and `pK.input_features` f32
//! [F, bands] with `pK.input_features_mask` u8 [F].

use std::collections::BTreeMap;
use std::sync::Arc;

use shardwright_bundle::Digest;
use shardwright_graph::{ComponentKind, Graph, Op};
use shardwright_models::Checkpoint;
use shardwright_runtime::{Prompt, SoftRows};
use shardwright_text::{PartTokens, PromptTokens};
use shardwright_vocabulary::{Pass, Result};

use crate::goldens::{Floats, Golden};

/// Rows of one prompt by their position, unscaled like rows of the embedding's table.
pub(crate) type PlacedRows = BTreeMap<u64, Vec<f32>>;

/// Recorded data of one kind of part.
#[derive(Clone, Debug)]
pub(crate) struct RecordedPart {
    /// f32 [S, H], valid rows, unscaled like rows of the embedding's table.
    pub(crate) rows: Floats,
    /// Inputs of the tower, if they were recorded.
    pub(crate) features: Option<RecordedFeatures>,
}

/// A front end's features of a picture or a clip.
#[derive(Clone, Debug)]
pub(crate) struct RecordedFeatures {
    /// f32 [F, width], padding included.
    pub(crate) values: Floats,
    /// A column and a row for each patch, or a flag for each frame.
    pub(crate) places: Vec<i64>,
}

/// The valid features. Features of the same soft row are adjacent.
pub(crate) struct ValidFeatures {
    /// f32 [F, width].
    pub(crate) values: Floats,
    /// Column of each patch. Empty for frames.
    pub(crate) columns: Vec<i32>,
    /// Row of each patch. Empty for frames.
    pub(crate) rows: Vec<i32>,
}

impl RecordedFeatures {
    /// Returns the valid features for a tower that pools squares of `pool` patches a side.
    pub(crate) fn valid(&self, pass: Pass, pool: u32) -> ValidFeatures {
        if pass != Pass::Picture {
            let valid = (0..self.places.len()).filter(|&frame| self.places[frame] != 0);
            let values = self.values.rows(valid);
            return ValidFeatures { values, columns: Vec::new(), rows: Vec::new() };
        }
        let number = |value: i64| i32::try_from(value).unwrap_or(-1);
        let places: Vec<(i32, i32)> =
            self.places.chunks_exact(2).map(|place| (number(place[0]), number(place[1]))).collect();
        let side = i32::try_from(pool).unwrap_or(i32::MAX).max(1);
        let mut valid: Vec<usize> = (0..places.len()).filter(|&patch| places[patch].0 >= 0).collect();
        valid.sort_by_key(|&patch| {
            let (column, row) = places[patch];
            (row / side, column / side, row % side, column % side)
        });
        let (columns, rows) = valid.iter().map(|&patch| places[patch]).unzip();
        ValidFeatures { values: self.values.rows(valid), columns, rows }
    }
}

/// A kind of part, with the names of its tensors.
pub(crate) struct Kind {
    pub(crate) pass: Pass,
    /// NAME in `NAME.soft` and `NAME.mask`.
    pub(crate) name: &'static str,
    /// Tensor with the inputs of the tower.
    pub(crate) values: &'static str,
    /// Tensor with the positions or validity of the inputs, and its numbers per input.
    pub(crate) places: (&'static str, usize),
}

/// The kinds, in the order of [`Golden::parts`].
pub(crate) const KINDS: [Kind; 2] = [
    Kind { pass: Pass::Picture, name: "image", values: "pixel_values", places: ("image_position_ids", 2) },
    Kind { pass: Pass::Clip, name: "audio", values: "input_features", places: ("input_features_mask", 1) },
];

/// Places recorded rows at a checkpoint's placeholders.
pub(crate) struct Placing<'c> {
    graph: &'c Graph,
    tokens: [Option<PartTokens>; 2],
    scale: f32,
}

impl<'c> Placing<'c> {
    pub(crate) fn of(checkpoint: &'c Checkpoint) -> Result<Self> {
        let graph = checkpoint.graph();
        let tokens = PromptTokens::from_directory(checkpoint.directory())?;
        Ok(Placing { graph, tokens: [tokens.picture, tokens.sound], scale: embedding_scale(graph) })
    }

    /// Returns the rows of a prompt's placeholders, from the recorded parts in the order of
    /// [`KINDS`].
    ///
    /// # Errors
    ///
    /// Fails with the reason in words if the prompt cannot be run.
    pub(crate) fn rows(
        &self,
        ids: &[u32],
        recorded: &[Option<RecordedPart>; 2],
    ) -> std::result::Result<PlacedRows, String> {
        let stands = |id: u32| self.tokens.iter().flatten().any(|tokens| tokens.placeholder == id);
        if let Some(id) = ids.iter().find(|&&id| self.is_placeholder(id) && !stands(id)) {
            return Err(format!("token {id} is a placeholder that no tower fills"));
        }
        let mut placed = PlacedRows::new();
        for (kind, Kind { pass, name, .. }) in KINDS.iter().enumerate() {
            let token = self.tokens[kind].map(|tokens| tokens.placeholder);
            let is = |(_, id): &(u64, &u32)| Some(**id) == token && self.is_placeholder(**id);
            let places: Vec<u64> = (0..).zip(ids).filter(is).map(|(position, _)| position).collect();
            let rows = recorded[kind].as_ref().map(|part| &part.rows);
            let found = rows.map_or(0, |rows| rows.shape[0]);
            if !places.is_empty() && places.len() != found {
                let places = places.len();
                let what = format!("{places} placeholders of a {pass}, but `{name}.soft` has {found} rows");
                return Err(format!("its prompt has {what}"));
            }
            let rows = rows.into_iter().flat_map(|rows| (0..found).map(|row| rows.part(row).to_vec()));
            placed.extend(places.into_iter().zip(rows));
        }
        Ok(placed)
    }

    /// Divides recorded rows by the scale of the embedding, like rows of the embedding's table.
    pub(crate) fn unscaled(&self, mut rows: Floats) -> Floats {
        rows.values.iter_mut().for_each(|value| *value /= self.scale);
        rows
    }

    /// Returns whether the embedding reads another row for this token.
    fn is_placeholder(&self, id: u32) -> bool {
        self.graph.assets.iter().any(|asset| asset.row_of(id) != id)
    }
}

/// Returns the factor by which a model multiplies the rows of its embedding.
fn embedding_scale(graph: &Graph) -> f32 {
    let embed = graph.component(ComponentKind::Embed).ok();
    let scale = embed.and_then(|embed| {
        embed.nodes.iter().find_map(|node| match node.op {
            Op::MulScalar { value } => Some(value),
            _ => None,
        })
    });
    scale.unwrap_or(1.0)
}

/// Converts recorded ids and rows to a prompt for a session.
pub(crate) fn prompt(golden: &Golden) -> Result<Prompt> {
    let mut prompt = Prompt::new();
    let mut position = 0;
    while position < golden.ids.len() {
        let id = golden.ids[position];
        let of_part =
            |at: &usize| golden.ids.get(*at) == Some(&id) && golden.soft.contains_key(&(*at as u64));
        let end = (position..).find(|at| !of_part(at)).unwrap_or(position);
        if end == position {
            prompt.push_tokens(&[id]);
            position += 1;
            continue;
        }
        let rows = golden.soft.range(position as u64..end as u64).flat_map(|(_, row)| row.clone());
        let values: Vec<f32> = rows.collect();
        let origin = Digest::of(&values.iter().flat_map(|value| value.to_le_bytes()).collect::<Vec<u8>>());
        let width = values.len() / (end - position);
        prompt.push_soft(id, &Arc::new(SoftRows::new(width, values, *origin.bytes())?));
        position = end;
    }
    Ok(prompt)
}
