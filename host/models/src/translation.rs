//! A graph under construction: weights, tables and states first, then the components that use them.

use std::path::Path;

use shardwright_graph::{
    Asset, AssetId, Component, Graph, Pass, State, StateId, StateKind, Weight, WeightData, WeightId,
};
use shardwright_vocabulary::{DType, Error, Result};

use crate::deferred_bytes::made;
use crate::rows;
use crate::store::TensorStore;
use crate::tensor_names::{EMBEDDING, HEADS, USUAL_PREFIX, prefix_of};

/// A graph without components yet, and the tensors that its weights come from.
pub(crate) struct Translation {
    store: TensorStore,
    prefix: &'static str,
    graph: Graph,
    notes: Vec<String>,
}

impl Translation {
    /// Starts an empty graph over `store`. See [`prefix_of`].
    pub fn new(store: TensorStore, name: String, hidden: u64, context: u64) -> Result<Self> {
        let prefix = prefix_of(&|name| store.has(name));
        let prefix = prefix.ok_or_else(|| store.missing(&format!("{USUAL_PREFIX}{EMBEDDING}")))?;
        Ok(Self::of(store, prefix, Pass::Step, name, hidden, context))
    }

    /// Starts an empty graph for a tower, whose stream is `hidden` wide and whose entry points have
    /// at most `rows` rows.
    pub fn tower(store: TensorStore, pass: Pass, name: &str, hidden: u64, rows: u64) -> Self {
        Self::of(store, "", pass, format!("{name}/{pass}"), hidden, rows)
    }

    fn of(
        store: TensorStore,
        prefix: &'static str,
        pass: Pass,
        name: String,
        hidden: u64,
        context: u64,
    ) -> Self {
        let graph = Graph {
            pass,
            name,
            hidden,
            vocabulary: 0,
            context,
            per_layer_width: 0,
            weights: Vec::new(),
            assets: Vec::new(),
            states: Vec::new(),
            components: Vec::new(),
        };
        Translation { store, prefix, graph, notes: Vec::new() }
    }

    /// Returns the prefix of the text model's tensor names.
    pub fn prefix(&self) -> &'static str {
        self.prefix
    }

    /// Returns the graph so far, which builders of components read.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Opens the tensors of another file, reading as much of it as of this checkpoint.
    pub fn store_beside(&self, path: &Path) -> Result<TensorStore> {
        self.store.open_beside(path)
    }

    /// Adds a tensor of the text model as a weight. `part` is its role in the network, see
    /// [`Weight::part`].
    pub fn weight(&mut self, name: &str, part: &'static str, shape: &[u64]) -> Result<WeightId> {
        let weight = self.store.weight(&format!("{}{name}", self.prefix), part, shape)?;
        Ok(self.push(weight))
    }

    /// Checks whether the store has a tensor of that full name. See [`TensorStore::has`].
    pub fn has(&self, name: &str) -> Option<bool> {
        self.store.has(name)
    }

    /// Returns the error that a tensor of that full name is missing.
    pub fn missing(&self, name: &str) -> Error {
        self.store.missing(name)
    }

    /// Adds a tensor by its full name.
    pub fn whole_name(&mut self, name: &str, part: &'static str, shape: &[u64]) -> Result<WeightId> {
        let weight = self.store.weight(name, part, shape)?;
        Ok(self.push(weight))
    }

    /// Adds a tensor by its full name as a matrix. All axes except the first are merged.
    pub fn flattened(&mut self, name: &str, part: &'static str, shape: &[u64]) -> Result<WeightId> {
        let mut weight = self.store.weight(name, part, shape)?;
        weight.shape = vec![shape[0], shape[1..].iter().product()];
        Ok(self.push(weight))
    }

    /// Adds the matrices that are stacked along the rows of a tensor of the text model. Each has
    /// its role in the network and its number of rows.
    pub fn fused<const N: usize>(
        &mut self,
        name: &str,
        parts: [(&'static str, u64); N],
        inputs: u64,
    ) -> Result<[WeightId; N]> {
        let name = format!("{}{name}", self.prefix);
        let all = parts.iter().map(|(_, rows)| rows).sum();
        let whole = self.store.weight(&name, parts[0].0, &[all, inputs])?;
        let mut ids = [WeightId(0); N];
        let mut first = 0;
        for ((part, rows), id) in parts.into_iter().zip(&mut ids) {
            let weight = rows::part_of(&whole, format!("{name}.{part}"), part, first..first + rows)?;
            *id = self.push(weight);
            first += rows;
        }
        Ok(ids)
    }

    /// Reorders the rows of a weight within blocks. See [`rows::reordered`].
    pub fn reorder(
        &mut self,
        id: WeightId,
        size: usize,
        source: impl Fn(usize) -> usize + Copy + Send + Sync + 'static,
    ) -> Result<()> {
        let weight = &mut self.graph.weights[id.0 as usize];
        *weight = rows::reordered(weight.clone(), size, source)?;
        Ok(())
    }

    /// Adds an f32 weight of shape `gives` that `make` computes from a tensor's values on first
    /// use. It has the tensor's name.
    pub fn derived(
        &mut self,
        name: &str,
        part: &'static str,
        shape: &[u64],
        gives: &[u64],
        make: impl Fn(&[f32]) -> Vec<f32> + Send + Sync + 'static,
    ) -> Result<WeightId> {
        let source = self.store.weight(name, part, shape)?;
        let length = (4 * gives.iter().product::<u64>()) as usize;
        let data = match source.data.is_present() {
            false => WeightData::planned(length),
            true => {
                let from = source.clone();
                made(length, move || {
                    let width = from.shape.last().copied().unwrap_or(1) as usize;
                    let mut values = vec![0.0; from.shape.iter().product::<u64>() as usize];
                    for (row, values) in values.chunks_exact_mut(width).enumerate() {
                        if !from.decode_row(row, values) {
                            // A run refuses results that are not numbers.
                            values.fill(f32::NAN);
                        }
                    }
                    make(&values).into_iter().flat_map(f32::to_le_bytes).collect()
                })?
            }
        };
        Ok(self.push(Weight { shape: gives.to_vec(), dtype: DType::F32, data, quantisation: None, ..source }))
    }

    /// Adds the parts of a tensor `[N, entries, width]` as gathered tables.
    pub fn stacked_tables<const N: usize>(
        &mut self,
        tensor: &str,
        names: [&str; N],
        [entries, width]: [u64; 2],
    ) -> Result<[AssetId; N]> {
        let whole = self.store.weight(tensor, "position", &[N as u64, entries, width])?;
        let bytes = whole.data.length() / N;
        let mut ids = [AssetId(0); N];
        for (index, (name, id)) in names.into_iter().zip(&mut ids).enumerate() {
            let data = whole.data.part(index * bytes..(index + 1) * bytes)?;
            let name_of_part = format!("{tensor}.{index}");
            let table = Weight { name: name_of_part, shape: vec![entries, width], data, ..whole.clone() };
            self.graph.assets.push(Asset { name: name.to_owned(), table, redirect: Vec::new() });
            *id = AssetId(self.graph.assets.len() as u32 - 1);
        }
        Ok(ids)
    }

    /// Adds a weight that was read elsewhere.
    pub fn push(&mut self, weight: Weight) -> WeightId {
        self.graph.weights.push(weight);
        WeightId(self.graph.weights.len() as u32 - 1)
    }

    /// Adds a tensor of the text model as a gathered table.
    pub fn asset(
        &mut self,
        name: &str,
        tensor: &str,
        shape: [u64; 2],
        redirect: Vec<(u32, u32)>,
    ) -> Result<AssetId> {
        let table = self.store.weight(&format!("{}{tensor}", self.prefix), "embedding", &shape)?;
        self.graph.assets.push(Asset { name: name.to_owned(), table, redirect });
        Ok(AssetId(self.graph.assets.len() as u32 - 1))
    }

    /// Adds the embedding table, which is asset 0.
    pub fn embedding(&mut self, vocabulary: u64, redirect: Vec<(u32, u32)>) -> Result<AssetId> {
        let shape = [vocabulary, self.graph.hidden];
        self.asset("embedding", EMBEDDING, shape, redirect)
    }

    /// Adds the output matrix `[vocabulary, hidden]`: a second copy of the embedding if tied, else
    /// a separate tensor.
    ///
    /// A tied model may have such a tensor too. As in transformers, it is used if it differs.
    pub fn head(&mut self, vocabulary: u64, tied: bool) -> Result<WeightId> {
        let shape = [vocabulary, self.graph.hidden];
        let own = HEADS.into_iter().find(|name| self.store.has(name).unwrap_or(!tied));
        if tied {
            self.store.changes().expect_untied(&format!("{}{EMBEDDING}", self.prefix))?;
        }
        let weight = match (tied, own) {
            (false, None) => return Err(self.store.missing(HEADS[0])),
            (false, Some(own)) => self.store.weight(own, "head", &shape)?,
            (true, own) => {
                let table = self.store.weight(&format!("{}{EMBEDDING}", self.prefix), "head", &shape)?;
                self.head_beside(table, own, &shape)?
            }
        };
        self.graph.vocabulary = vocabulary;
        Ok(self.push(weight))
    }

    /// Returns the head of a tied model: its table, or the tensor `own` if that differs.
    fn head_beside(&mut self, table: Weight, own: Option<&'static str>, shape: &[u64]) -> Result<Weight> {
        let Some(name) = own else { return Ok(table) };
        let own = self.store.weight(name, "head", shape)?;
        if !(own.data.is_present() && table.data.is_present()) {
            self.notes.push(format!(
                "`{name}` is stored although `tie_word_embeddings` is set: it counts if it differs from the \
                 embedding, which the weights will show"
            ));
            return Ok(table);
        }
        if is_equal(&own, &table) {
            return Ok(table);
        }
        self.notes.push(format!(
            "`{name}` is the output matrix although `tie_word_embeddings` is set: it differs from the embedding"
        ));
        Ok(own)
    }

    /// Declares a state of `layer`. `word` is `k` or `v`.
    pub fn state(&mut self, layer: u32, word: &str, width: u64, window: u32) -> StateId {
        let kind = if window == 0 { StateKind::Linear } else { StateKind::Ring { window } };
        self.graph.states.push(State { name: format!("layer.{layer}.{word}"), layer, width, kind });
        StateId(self.graph.states.len() as u32 - 1)
    }

    /// Sets the width of the per-layer inputs.
    pub fn set_per_layer_width(&mut self, width: u64) {
        self.graph.per_layer_width = width;
    }

    /// Adds a finished component.
    pub fn component(&mut self, component: Component) {
        self.graph.components.push(component);
    }

    /// Removes and returns the notes about tensors, for a report.
    pub fn take_notes(&mut self) -> Vec<String> {
        std::mem::take(&mut self.notes)
    }

    /// Returns the finished graph, and the tensors with the record of the used ones.
    pub fn finish(self) -> (Graph, TensorStore) {
        (self.graph, self.store)
    }
}

/// Checks whether two weights have the same stored values.
fn is_equal(one: &Weight, other: &Weight) -> bool {
    let scales =
        |weight: &Weight| weight.quantisation.as_ref().map(|quantisation| quantisation.scales.clone());
    let scales_are_equal = match (scales(one), scales(other)) {
        (None, None) => true,
        (Some(one), Some(other)) => one.bytes() == other.bytes(),
        _ => false,
    };
    one.dtype == other.dtype && one.data.bytes() == other.data.bytes() && scales_are_equal
}
