use shardwright_shim_abi::raw::SW_QUANTISATION_PER_TENSOR;
use shardwright_shim_abi::{EntryView, Error, NodeView, TensorView, WeightView};

use crate::error::limit;
use crate::kernels::encoding::{Element, ElementEncoding};
use crate::program::{MAX_PORTS, MAX_RANK, MAX_STEPS, MAX_VALUES};

/// An entry in which every tensor is defined exactly once, before its first use.
pub struct Graph<'a> {
    pub entry: EntryView<'a>,
    pub nodes: Vec<NodeView<'a>>,
    pub tensors: Vec<Tensor<'a>>,
}

/// A tensor with its origin.
#[derive(Clone)]
pub struct Tensor<'a> {
    pub name: &'a str,
    pub shape: Vec<usize>,
    /// `SW_DTYPE_…`
    pub dtype: u32,
    /// Encoding of the elements, or `None` for constants and unsupported encodings.
    pub encoding: Option<ElementEncoding>,
    pub source: Source<'a>,
}

/// Origin of a tensor.
#[derive(Clone, Copy)]
pub enum Source<'a> {
    /// Not referenced.
    Unused,
    /// Bound before a run.
    Input,
    /// A weight.
    Constant(WeightView<'a>),
    /// Result of a node.
    Node(usize),
}

impl Tensor<'_> {
    /// Returns the number of values, which [`MAX_VALUES`] limits.
    pub fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    /// Checks whether the tensor is an activation with values.
    pub fn is_value(&self) -> bool {
        self.encoding.is_some_and(|encoding| encoding.element != Element::I32)
    }

    /// Checks whether the tensor contains positions or slots.
    pub fn is_index(&self) -> bool {
        self.encoding.is_some_and(|encoding| encoding.element == Element::I32)
    }

    /// Returns the weight if the tensor is a constant.
    pub fn weight(&self) -> Option<WeightView<'_>> {
        match self.source {
            Source::Constant(weight) => Some(weight),
            _ => None,
        }
    }
}

/// Returns the encoding of an activation's elements if this shim supports it.
fn encoding(tensor: &TensorView<'_>) -> Option<ElementEncoding> {
    let element = Element::of(tensor.dtype())?;
    let encoding = match tensor.quantisation() {
        None => ElementEncoding::plain(element),
        Some(quantisation) if quantisation.kind() == SW_QUANTISATION_PER_TENSOR => ElementEncoding {
            element,
            scale: *quantisation.scale_values().ok()?.first()?,
            zero_point: quantisation.zero_points().ok()?.first().copied().unwrap_or(0),
        },
        Some(_) => return None,
    };
    // Integers without a scale do not represent values.
    (encoding.is_consistent() && (element.range().is_none() || tensor.quantisation().is_some()))
        .then_some(encoding)
}

impl<'a> Graph<'a> {
    /// Checks an entry as a whole. Individual nodes may still be unsupported.
    pub fn read(entry: EntryView<'a>) -> Result<Graph<'a>, Error> {
        let invalid = |reason: String| Error::invalid_graph(entry.name(), reason);
        let within = |name, value: usize, max: u64| {
            if value as u64 > max { Err(limit(name, value as u64, max)) } else { Ok(()) }
        };
        within("ops", entry.nodes().len(), MAX_STEPS)?;
        within("tensors", entry.tensors().len(), 4 * MAX_STEPS)?;
        within("bindings", entry.inputs().len().saturating_add(entry.outputs().len()), MAX_PORTS)?;
        if entry.rows() == 0 || entry.rows() > u64::from(u32::MAX) {
            return Err(invalid(format!("{} rows", entry.rows())));
        }
        let mut tensors = Vec::with_capacity(entry.tensors().len());
        for tensor in entry.tensors() {
            let elements = tensor.elements();
            if elements > MAX_VALUES {
                return Err(limit("tensor-values", elements, MAX_VALUES));
            }
            if tensor.shape().len() > MAX_RANK {
                return Err(invalid(format!("tensor `{}` has rank {}", tensor.name(), tensor.shape().len())));
            }
            if elements == 0 {
                return Err(invalid(format!("tensor `{}` is empty: {:?}", tensor.name(), tensor.shape())));
            }
            tensors.push(Tensor {
                name: tensor.name(),
                shape: tensor.shape().iter().map(|extent| *extent as usize).collect(),
                dtype: tensor.dtype(),
                encoding: encoding(&tensor),
                source: Source::Unused,
            });
        }
        let define = |tensors: &mut Vec<Tensor<'a>>, index: u32, source: Source<'a>| {
            let Some(tensor) = tensors.get_mut(index as usize) else {
                return Err(invalid(format!("no tensor {index}")));
            };
            if !matches!(tensor.source, Source::Unused) {
                return Err(invalid(format!("tensor `{}` is defined twice", tensor.name)));
            }
            tensor.source = source;
            Ok(())
        };
        for view in entry.inputs() {
            define(&mut tensors, view.tensor(), Source::Input)?;
        }
        for (index, weight) in entry.constants() {
            define(&mut tensors, index, Source::Constant(weight))?;
            let tensor = &tensors[index as usize];
            let shape: Vec<u64> = tensor.shape.iter().map(|extent| *extent as u64).collect();
            if weight.shape() != shape || weight.dtype() != tensor.dtype {
                return Err(invalid(format!(
                    "tensor `{}` {shape:?} of type {} does not match weight `{}` {:?} of type {}",
                    tensor.name,
                    tensor.dtype,
                    weight.name(),
                    weight.shape(),
                    weight.dtype()
                )));
            }
            tensors[index as usize].encoding = None;
        }
        let nodes: Vec<NodeView<'a>> = entry.nodes().collect();
        for (index, node) in nodes.iter().enumerate() {
            for input in node.inputs().flatten() {
                match tensors.get(input as usize) {
                    None => {
                        return Err(invalid(format!(
                            "node `{}` reads tensor {input}, which does not exist",
                            node.name()
                        )));
                    }
                    Some(Tensor { source: Source::Unused, name, .. }) => {
                        return Err(invalid(format!(
                            "node `{}` reads `{name}` before it exists",
                            node.name()
                        )));
                    }
                    Some(_) => {}
                }
            }
            for &output in node.outputs() {
                define(&mut tensors, output, Source::Node(index))?;
            }
        }
        for port in entry.outputs() {
            match tensors.get(port.tensor() as usize) {
                None => {
                    return Err(invalid(format!(
                        "output `{}` is tensor {}, which does not exist",
                        port.name(),
                        port.tensor()
                    )));
                }
                Some(Tensor { source: Source::Unused, name, .. }) => {
                    return Err(invalid(format!(
                        "output `{}` is `{name}`, which no node computes",
                        port.name()
                    )));
                }
                Some(_) => {}
            }
        }
        Ok(Graph { entry, nodes, tensors })
    }

    /// Returns the tensor of a node's input.
    pub fn input(&self, node: usize, place: usize) -> Option<&Tensor<'a>> {
        self.nodes[node].optional_input(place).map(|index| &self.tensors[index as usize])
    }

    /// Returns the number of static rows.
    pub fn rows(&self) -> usize {
        self.entry.rows() as usize
    }
}
