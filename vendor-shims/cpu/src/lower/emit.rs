//! What the lowering of operations has in common: operands, counts and the steps so far.

use std::collections::HashSet;

use shardwright_shim_abi::{Error, WeightView};

use super::graph::{Graph, Source};
use super::rows::Rows;
use super::storage::Storage;
use super::weights::Weights;
use crate::ops::operation::{Home, Operation};
use crate::program::{Extent, Operand, Step, step};

/// The lowering of an entry.
pub struct Emit<'e, 'a> {
    pub graph: &'e Graph<'a>,
    pub rows: &'e Rows,
    pub storage: &'e Storage,
    pub weights: &'e mut Weights<'a>,
    pub steps: Vec<Step>,
    /// Roots that are padded with zeros.
    pub cleaned: HashSet<usize>,
}

/// The node that is lowered, and the place of its result.
#[derive(Clone, Copy)]
pub struct Site<'e> {
    /// Index of the node.
    pub node: usize,
    /// First operand.
    pub x: u32,
    pub x_shape: &'e [usize],
    /// Result.
    pub output: u32,
    pub out_shape: &'e [usize],
    pub out: Operand,
}

impl Site<'_> {
    /// Returns the last extent of the first operand.
    pub fn last(&self) -> usize {
        self.x_shape.last().copied().unwrap_or(1)
    }

    /// Returns how often the last axis of the first operand is repeated.
    pub fn groups(&self) -> usize {
        self.x_shape.iter().product::<usize>() / self.last().max(1)
    }
}

impl<'e, 'a> Emit<'e, 'a> {
    /// Returns the operand with a tensor's values. A weight is widened to f32.
    pub fn operand(&mut self, tensor: u32) -> Result<Operand, Error> {
        if let Some(operand) = self.storage.operand(self.graph, tensor) {
            return Ok(operand);
        }
        match self.graph.tensors[tensor as usize].source {
            Source::Constant(weight) => self.weights.wide(weight),
            _ => {
                Err(self
                    .missing(format!("tensor `{}` has no place", self.graph.tensors[tensor as usize].name)))
            }
        }
    }

    pub fn missing(&self, reason: String) -> Error {
        Error::invalid_graph(self.graph.entry.name(), reason)
    }

    pub fn input(&mut self, node: usize, place: usize) -> Result<Operand, Error> {
        match self.graph.nodes[node].optional_input(place) {
            Some(tensor) => self.operand(tensor),
            None => {
                Err(self.missing(format!("node `{}` has no input {place}", self.graph.nodes[node].name())))
            }
        }
    }

    pub fn optional(&mut self, node: usize, place: usize) -> Result<Option<Operand>, Error> {
        self.graph.nodes[node].optional_input(place).map(|tensor| self.operand(tensor)).transpose()
    }

    /// Returns `units`. If the tensor follows rows, limits them to the valid rows.
    pub fn extent(&self, tensor: u32, units: usize) -> Extent {
        match self.rows.follows[tensor as usize] {
            true => self.following(tensor, units),
            false => Extent::Fixed(units as u64),
        }
    }

    /// Returns as many of `units` as the valid rows of a tensor need.
    pub fn following(&self, tensor: u32, units: usize) -> Extent {
        let (rows, shape) = (self.graph.rows(), &self.graph.tensors[tensor as usize].shape);
        let first = shape.first().copied().unwrap_or(1);
        match first.is_multiple_of(rows) {
            true => Extent::PerRow((units / rows) as u64),
            false => Extent::PerRows { rows: (rows / first) as u64, count: (units / first) as u64 },
        }
    }

    /// Decodes the encoded tensors whose values this node reads first.
    pub fn decode(&mut self, node: usize, crossed_roots: &HashSet<usize>) {
        for &(reader, tensor, root) in &self.storage.decodes {
            let Some(source) = self.storage.stored(self.graph, tensor).filter(|_| reader == node) else {
                continue;
            };
            let out = self.storage.whole(root);
            let count = self.extent(tensor, out.elements as usize);
            self.steps.push(Step::Decode(step::Decode { source, count, out }));
            if !matches!(count, Extent::Fixed(_)) && crossed_roots.contains(&root) {
                self.cleaned.insert(root);
                self.steps.push(Step::ZeroTail(step::ZeroTail { target: out, valid: count }));
            }
        }
    }

    /// Rounds a computed tensor to the values that its encoding can represent.
    pub fn nearest(&mut self, tensor: u32) {
        let encoding = self.graph.tensors[tensor as usize].encoding.filter(|encoding| !encoding.is_direct());
        if let (Some(encoding), Some(values)) = (encoding, self.storage.operand(self.graph, tensor)) {
            let count = self.extent(tensor, values.elements as usize);
            self.steps.push(Step::Nearest(step::Nearest { encoding, count, values }));
        }
    }

    /// Returns an operand that its step reads in the stored encoding.
    pub fn stored(&mut self, node: usize, place: usize) -> Result<Operand, Error> {
        let tensor = self.graph.nodes[node].optional_input(place);
        match tensor.and_then(|tensor| self.storage.stored(self.graph, tensor)) {
            Some(operand) => Ok(operand),
            None => self.input(node, place),
        }
    }

    /// Returns the weights of a linear map.
    pub fn weight(&self, node: usize) -> Result<WeightView<'a>, Error> {
        match self.graph.input(node, 1).map(|tensor| tensor.source) {
            Some(Source::Constant(weight)) => Ok(weight),
            _ => Err(self.missing(format!("node `{}` has no weights", self.graph.nodes[node].name()))),
        }
    }

    /// Finds the operand and the result of a node.
    pub fn site(&self, index: usize, operation: &Operation) -> Result<Site<'e>, Error> {
        let graph = self.graph;
        let node = graph.nodes[index];
        let (Some(x), Some(&output)) = (node.optional_input(0), node.outputs().first()) else {
            return Err(self.missing(format!("node `{}` has no operand or result", node.name())));
        };
        let [x_shape, out_shape] = [x, output].map(|tensor| &graph.tensors[tensor as usize].shape[..]);
        let state = match operation.home(out_shape) {
            Home::State => self.storage.stored(graph, output),
            _ => None,
        };
        let out = state
            .or_else(|| self.storage.operand(graph, output))
            .ok_or_else(|| self.missing(format!("node `{}` has no place for its result", node.name())))?;
        Ok(Site { node: index, x, x_shape, output, out_shape, out })
    }
}
