//! An entry that is checked and indexed for all later steps.

use shardwright_shim_abi::{EntryView, Error, NodeView, WeightView};

use crate::Encoding;
use crate::error::too_large;

/// Maximum number of nodes of an entry: ten times the number in the largest known decoder.
pub const MAX_NODES: u64 = 1 << 16;
/// Maximum number of inputs and outputs of an entry.
pub const MAX_PORTS: u64 = 4096;
/// Maximum number of values of a tensor. No real embedding table is larger.
pub const MAX_VALUES: u64 = 1 << 32;

/// An entry in which every tensor is defined exactly once, before its first use.
pub struct Source<'a, E> {
    pub entry: EntryView<'a>,
    pub nodes: Vec<NodeView<'a>>,
    pub tensors: Vec<SourceTensor<'a, E>>,
}

/// A tensor of an entry and its origin.
pub struct SourceTensor<'a, E> {
    /// Name in the entry.
    pub name: &'a str,
    /// Extents, none of which is 0. Their product is at most [`MAX_VALUES`].
    pub shape: &'a [u64],
    /// Encoding of an activation, or the reason why it is not supported.
    pub encoding: Result<E, String>,
    pub origin: Origin<'a>,
    /// Nodes that read the tensor, in order.
    pub readers: Vec<usize>,
    /// Whether the tensor is an output of the entry.
    pub is_output: bool,
}

/// Origin of a tensor.
#[derive(Clone, Copy)]
pub enum Origin<'a> {
    /// Not defined.
    Unused,
    /// Bound before a run.
    Input,
    Constant(WeightView<'a>),
    /// Computed by the node with this index.
    Node(usize),
}

impl<E> SourceTensor<'_, E> {
    /// Returns the extent of the last axis, or 1 for a tensor without axes.
    pub fn last(&self) -> u64 {
        self.shape.last().copied().unwrap_or(1)
    }
}

impl<'a, E: Encoding> Source<'a, E> {
    /// Checks an entry as a whole. Single nodes may still be refused.
    ///
    /// # Errors
    ///
    /// `ErrorClass::InvalidArgument` for an entry that contradicts itself,
    /// `ErrorClass::ResourceLimit` for an entry that exceeds a limit of this module.
    pub fn read(entry: EntryView<'a>) -> Result<Source<'a, E>, Error> {
        let invalid = |reason: String| Error::invalid_graph(entry.name(), reason);
        let limit = |limit, value: u64, max| match value > max {
            true => Err(too_large(limit, value, max)),
            false => Ok(()),
        };
        limit("ops", entry.nodes().len() as u64, MAX_NODES)?;
        limit("tensors", entry.tensors().len() as u64, 4 * MAX_NODES)?;
        limit("ports", entry.inputs().len().saturating_add(entry.outputs().len()) as u64, MAX_PORTS)?;
        let mut tensors = Vec::with_capacity(entry.tensors().len());
        for tensor in entry.tensors() {
            let name = tensor.name();
            limit("tensor-values", tensor.elements(), MAX_VALUES)?;
            if tensor.elements() == 0 {
                return Err(invalid(format!("tensor `{name}` is empty: {:?}", tensor.shape())));
            }
            tensors.push(SourceTensor {
                name,
                shape: tensor.shape(),
                encoding: E::of(&tensor),
                origin: Origin::Unused,
                readers: Vec::new(),
                is_output: false,
            });
        }
        let define = |tensors: &mut Vec<SourceTensor<'a, E>>, index: u32, origin: Origin<'a>| {
            let Some(tensor) = tensors.get_mut(index as usize) else {
                return Err(invalid(format!("there is no tensor {index}")));
            };
            if !matches!(tensor.origin, Origin::Unused) {
                return Err(invalid(format!("tensor `{}` is defined twice", tensor.name)));
            }
            tensor.origin = origin;
            Ok(())
        };
        for port in entry.inputs() {
            define(&mut tensors, port.tensor(), Origin::Input)?;
        }
        for (index, weight) in entry.constants() {
            define(&mut tensors, index, Origin::Constant(weight))?;
            let (tensor, dtype) = (&tensors[index as usize], entry.tensor(index).dtype());
            if weight.shape() != tensor.shape || weight.dtype() != dtype {
                return Err(invalid(format!(
                    "tensor `{}` {:?} of type {dtype} does not match weight `{}` {:?} of type {}",
                    tensor.name,
                    tensor.shape,
                    weight.name(),
                    weight.shape(),
                    weight.dtype()
                )));
            }
        }
        let nodes: Vec<NodeView<'a>> = entry.nodes().collect();
        for (index, node) in nodes.iter().enumerate() {
            for input in node.inputs().flatten() {
                match tensors.get_mut(input as usize) {
                    None => return Err(invalid(format!("there is no tensor {input}"))),
                    Some(SourceTensor { origin: Origin::Unused, name, .. }) => {
                        return Err(invalid(format!("`{}` reads `{name}` before it exists", node.name())));
                    }
                    Some(tensor) => {
                        if tensor.readers.last() != Some(&index) {
                            tensor.readers.push(index);
                        }
                    }
                }
            }
            for &output in node.outputs() {
                define(&mut tensors, output, Origin::Node(index))?;
            }
        }
        for port in entry.outputs() {
            match tensors.get_mut(port.tensor() as usize) {
                None => return Err(invalid(format!("there is no tensor {}", port.tensor()))),
                Some(SourceTensor { origin: Origin::Unused, name, .. }) => {
                    return Err(invalid(format!(
                        "output `{}` is `{name}`, which no operation computes",
                        port.name()
                    )));
                }
                Some(tensor) => tensor.is_output = true,
            }
        }
        Ok(Source { entry, nodes, tensors })
    }

    /// Returns the tensor with this index.
    pub fn tensor(&self, index: u32) -> &SourceTensor<'a, E> {
        &self.tensors[index as usize]
    }

    /// Returns the weight behind a tensor, if it is a constant.
    pub fn weight(&self, index: u32) -> Option<WeightView<'a>> {
        match self.tensor(index).origin {
            Origin::Constant(weight) => Some(weight),
            _ => None,
        }
    }

    /// Returns the node that computes a tensor, if any.
    pub fn producer(&self, index: u32) -> Option<usize> {
        match self.tensor(index).origin {
            Origin::Node(node) => Some(node),
            _ => None,
        }
    }
}
