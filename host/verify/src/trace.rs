//! The reference's own run over a prompt, which gives inputs and expected results of shards.

use shardwright_graph::{Asset, Graph, Role, StateId};
use shardwright_reference::step::{Features, Step, feature_input, step_input, with_soft_rows};
use shardwright_reference::{Arrangement, Array, ReferenceModel, Sequence};
use shardwright_vocabulary::Result;

use crate::recorded_rows::PlacedRows;

/// Largest number of logits that the reference computes at once: 64 MiB. Models with large
/// vocabularies run fewer rows at a time.
const LOGITS_AT_ONCE: u64 = 16 << 20;
/// Minimum rows at a time, even if the logits then exceed [`LOGITS_AT_ONCE`].
const ROWS_MIN: u64 = 16;

/// The input of a model.
#[derive(Clone, Copy)]
pub(crate) enum Given<'p> {
    /// The tokens of a text, and the soft rows that replace some of them.
    Tokens { ids: &'p [u32], soft: &'p PlacedRows },
    /// A front end's features of a picture or a clip.
    Features(Features<'p>),
}

impl Given<'_> {
    /// Returns the number of rows in the model.
    pub(crate) fn rows(&self, graph: &Graph) -> usize {
        match self {
            Given::Tokens { ids, .. } => ids.len(),
            Given::Features(features) => features.rows(graph) as usize,
        }
    }
}

/// A prompt on its way through the reference, some rows at a time.
pub(crate) struct Trace<'p, 'g> {
    graph: &'g Graph,
    given: Given<'p>,
    all: usize,
    reference: ReferenceModel<'g>,
    rows: usize,
    sequence: Sequence,
    position: usize,
    /// For each state the rows of all positions so far, `[position, width]`.
    states: Vec<Vec<f32>>,
}

/// The reference's results for consecutive rows.
pub(crate) struct Chunk {
    /// Position of the first row.
    pub(crate) first: usize,
    pub(crate) rows: usize,
    /// For each cut `[rows, H]`: the input of layer n, and at the end the output of the last layer.
    pub(crate) hidden: Vec<Vec<f32>>,
    /// `[layers, rows, P]`. Empty if the model has no per-layer inputs.
    pub(crate) per_layer: Vec<f32>,
    /// `[rows, V]`. Empty for encoders.
    pub(crate) logits: Vec<f32>,
    /// A sentence vector. Empty for generative models.
    pub(crate) embedding: Vec<f32>,
    /// The output of a tower. Empty for texts.
    pub(crate) soft_rows: Vec<f32>,
}

impl<'p, 'g> Trace<'p, 'g> {
    /// Starts before the first row of `given`, which must not be empty. Runs at most `rows` rows at
    /// a time, or all rows of an encoder.
    pub(crate) fn new(graph: &'g Graph, given: Given<'p>, rows: u64) -> Result<Self> {
        let all = given.rows(graph).max(1) as u64;
        let rows = match graph.is_generative() {
            true => rows.min((LOGITS_AT_ONCE / graph.vocabulary.max(1)).max(ROWS_MIN)).clamp(1, all),
            false => all,
        };
        let arrangement = Arrangement { rows, ..Arrangement::whole(all) };
        let reference = ReferenceModel::new(graph, arrangement)?;
        let mut sequence = reference.start();
        if let Given::Tokens { soft, .. } = given {
            sequence.soft.clone_from(soft);
        }
        Ok(Trace {
            graph,
            given,
            all: given.rows(graph),
            rows: rows as usize,
            sequence,
            reference,
            position: 0,
            states: vec![Vec::new(); graph.states.len()],
        })
    }

    /// Returns the tensor of a step input for a run from row `first` on, or `None` for roles that
    /// are not step inputs.
    pub(crate) fn step_input(&self, role: &Role, step: Step, assets: &[Asset]) -> Result<Option<Array>> {
        match self.given {
            Given::Tokens { ids, soft } => {
                let rows = step.first as usize..(step.first + step.rows) as usize;
                let given = step_input(role, step, ids.get(rows).unwrap_or_default(), assets)?;
                given.map(|given| with_soft_rows(role, step, given, soft)).transpose()
            }
            Given::Features(features) => {
                feature_input(role, step, self.graph.features_to_a_row(), &features, assets)
            }
        }
    }

    /// Returns the rows of a state from position `start` to before `end`. These positions must have
    /// been run.
    pub(crate) fn state_rows(&self, state: StateId, start: usize, end: usize) -> &[f32] {
        let index = state.0 as usize;
        let width = self.graph.states.get(index).map_or(0, |state| state.width as usize);
        self.states.get(index).and_then(|rows| rows.get(start * width..end * width)).unwrap_or_default()
    }

    /// Runs the next rows. Returns `None` after the last.
    pub(crate) fn next(&mut self) -> Result<Option<Chunk>> {
        let (first, end) = (self.position, (self.position + self.rows).min(self.all));
        if first == end {
            return Ok(None);
        }
        let trace = match self.given {
            Given::Tokens { ids, .. } if self.graph.is_generative() => {
                self.reference.decode(&mut self.sequence, &ids[first..end], true)?
            }
            Given::Tokens { ids, .. } => self.reference.encode(&ids[first..end], true)?,
            Given::Features(features) => self.reference.soft_rows(&features, true)?,
        };
        self.position = end;
        for (index, rows) in self.states.iter_mut().enumerate() {
            let Some(existing) = self.sequence.states.get(StateId(index as u32)) else { continue };
            let (capacity, width) = (existing.shape()[0].max(1), existing.shape()[1]);
            let values = existing.floats();
            for position in first..self.position {
                let slot = position % capacity;
                rows.extend_from_slice(&values[slot * width..(slot + 1) * width]);
            }
        }
        let values = |array: Option<Array>| array.map(Array::into_floats).unwrap_or_default();
        Ok(Some(Chunk {
            first,
            rows: end - first,
            hidden: trace.hidden.into_iter().map(Array::into_floats).collect(),
            per_layer: values(trace.per_layer),
            logits: values(trace.logits),
            embedding: values(trace.embedding),
            soft_rows: values(trace.soft_rows),
        }))
    }
}

impl Chunk {
    /// Returns the rows of a cut from `offset` within the chunk on.
    pub(crate) fn hidden_rows(&self, cut: usize, offset: usize, rows: usize) -> &[f32] {
        self.hidden.get(cut).map_or(&[], |values| part(values, self.rows, offset, rows))
    }

    /// Returns the rows of the per-layer inputs of one layer.
    pub(crate) fn per_layer_rows(&self, layer: usize, layers: usize, offset: usize, rows: usize) -> &[f32] {
        let length = self.per_layer.len() / layers.max(1);
        let of_layer = self.per_layer.get(layer * length..(layer + 1) * length).unwrap_or_default();
        part(of_layer, self.rows, offset, rows)
    }

    /// Returns the rows of the logits.
    pub(crate) fn logits_rows(&self, offset: usize, rows: usize) -> &[f32] {
        part(&self.logits, self.rows, offset, rows)
    }
}

/// Returns some of the `all` rows in `values`, or an empty slice if they are out of range.
fn part(values: &[f32], all: usize, offset: usize, rows: usize) -> &[f32] {
    let width = values.len() / all.max(1);
    values.get(offset * width..(offset + rows) * width).unwrap_or_default()
}
