//! A node whose operation is recognised, and the checks that operations have in common.

use shardwright_shim_abi::{Error, NodeView};

use super::constant::Constant;
use super::graph::{Graph, Source, Tensor};
use crate::kernels::encoding::{Element, ElementEncoding};
use crate::kernels::linear::PanelType;

/// The reason why a node cannot run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// A valid node that this shim does not support.
    Unsupported(String),
    /// A node that contradicts itself.
    Invalid(String),
}

impl Refusal {
    pub fn reason(&self) -> &str {
        match self {
            Refusal::Unsupported(reason) | Refusal::Invalid(reason) => reason,
        }
    }
}

impl From<Error> for Refusal {
    fn from(error: Error) -> Self {
        Refusal::Invalid(error.message)
    }
}

pub type Recognised<T> = Result<T, Refusal>;

pub fn invalid<T>(reason: impl Into<String>) -> Recognised<T> {
    Err(Refusal::Invalid(reason.into()))
}

pub fn unsupported<T>(reason: impl Into<String>) -> Recognised<T> {
    Err(Refusal::Unsupported(reason.into()))
}

/// A node in its graph.
pub struct Here<'g, 'a> {
    pub graph: &'g Graph<'a>,
    pub index: usize,
    pub node: NodeView<'a>,
}

impl<'g, 'a> Here<'g, 'a> {
    pub fn operands(&self, least: usize, most: usize) -> Recognised<()> {
        let count = self.node.inputs().len();
        if count < least || count > most {
            return invalid(format!("{count} inputs, expected {least} to {most}"));
        }
        for place in 0..least {
            self.node.input(place)?;
        }
        Ok(())
    }

    pub fn any(&self, place: usize) -> Recognised<&'g Tensor<'a>> {
        self.graph
            .input(self.index, place)
            .ok_or_else(|| Refusal::Invalid(format!("input {place} is missing")))
    }

    /// Returns an operand whose values this shim reads: an activation, or a constant that can be
    /// decoded.
    pub fn float(&self, place: usize) -> Recognised<&'g Tensor<'a>> {
        let tensor = self.any(place)?;
        if let Some(weight) = tensor.weight() {
            let taken = Constant::of(weight).and_then(|constant| constant.values());
            return taken.map(|()| tensor).map_err(|reason| self.refused(place, tensor, &reason));
        }
        if tensor.is_value() {
            return Ok(tensor);
        }
        unsupported(format!("input {place} `{}` {}", tensor.name, no_value(tensor)))
    }

    pub fn refused(&self, place: usize, tensor: &Tensor<'_>, reason: &str) -> Refusal {
        Refusal::Unsupported(format!("input {place} `{}`: {reason}", tensor.name))
    }

    /// Returns a constant that this shim packs as the matrix of a product, and the type of its
    /// panels.
    pub fn weights(&self, place: usize, by_rows: bool) -> Recognised<(&'g Tensor<'a>, PanelType)> {
        let tensor = self.any(place)?;
        let Some(weight) = tensor.weight() else {
            return unsupported(format!(
                "the weights `{}` are computed; a matrix product supports that",
                tensor.name
            ));
        };
        let kind = Constant::of(weight).and_then(|constant| constant.matrix(by_rows));
        kind.map(|kind| (tensor, kind)).map_err(|reason| self.refused(place, tensor, &reason))
    }

    /// Returns a constant that this shim packs as the matrix of an integer product.
    pub fn integers(&self, place: usize) -> Recognised<&'g Tensor<'a>> {
        let tensor = self.any(place)?;
        let Some(weight) = tensor.weight() else {
            return unsupported(format!("the weights `{}` are computed", tensor.name));
        };
        let kind = Constant::of(weight).and_then(|constant| constant.integers());
        kind.map(|_| tensor).map_err(|reason| self.refused(place, tensor, &reason))
    }

    pub fn index_vector(&self, place: usize, length: usize) -> Recognised<()> {
        let tensor = self.any(place)?;
        if !tensor.is_index() || !matches!(tensor.source, Source::Input) {
            return unsupported(format!("input {place} `{}` is not a bound i32 tensor", tensor.name));
        }
        expect(&tensor.shape, &[length], place)
    }

    pub fn output(&self) -> Recognised<&'g Tensor<'a>> {
        let tensor = &self.graph.tensors[self.node.output()? as usize];
        if tensor.is_value() {
            return Ok(tensor);
        }
        unsupported(format!("output `{}` {}", tensor.name, no_value(tensor)))
    }

    /// Checks that operands whose stored elements are moved have the encoding of the result. A
    /// constant that is stored as floats widens to f32 exactly.
    pub fn same_encoding(&self, places: std::ops::Range<usize>) -> Recognised<()> {
        let output = self.output()?;
        for place in places {
            let tensor = self.any(place)?;
            let existing = match tensor.weight() {
                Some(weight) if weight.quantisation().is_none() => Some(ElementEncoding::F32),
                _ => tensor.encoding,
            };
            if existing != output.encoding {
                return invalid(format!("must keep the encoding of input {place} `{}`", tensor.name));
            }
        }
        Ok(())
    }

    pub fn output_shape(&self, shape: &[usize]) -> Recognised<()> {
        let output = self.output()?;
        if output.shape == shape {
            Ok(())
        } else {
            invalid(format!(
                "output `{}` is {:?}, expected {shape:?} from the inputs",
                output.name, output.shape
            ))
        }
    }

    pub fn last_axis(&self) -> Recognised<()> {
        self.operands(1, 1)?;
        let x = self.float(0)?;
        if x.shape.is_empty() {
            return invalid("a scalar has no last axis");
        }
        self.output_shape(&x.shape)
    }

    pub fn finite(&self, name: &str) -> Recognised<f32> {
        let value = self.node.attribute_f32(name)?;
        if value.is_finite() { Ok(value) } else { invalid(format!("attribute `{name}` is {value}")) }
    }

    pub fn truth(&self, name: &str) -> Recognised<bool> {
        match self.node.attribute_i64(name)? {
            0 => Ok(false),
            1 => Ok(true),
            other => invalid(format!("attribute `{name}` is {other}, expected 0 or 1")),
        }
    }

    pub fn positive(&self, name: &str) -> Recognised<usize> {
        match self.node.attribute_usize(name)? {
            0 => invalid(format!("attribute `{name}` is 0")),
            value if value > u32::MAX as usize => invalid(format!("attribute `{name}` is {value}")),
            value => Ok(value),
        }
    }

    pub fn axis(&self, rank: usize) -> Recognised<usize> {
        let axis = self.node.attribute_usize("axis")?;
        if axis < rank { Ok(axis) } else { invalid(format!("axis {axis} exceeds the rank {rank}")) }
    }
}

/// Explains why a tensor does not contain values.
fn no_value(tensor: &Tensor<'_>) -> String {
    match Element::of(tensor.dtype) {
        Some(element) if element.range().is_some() => {
            format!("is of element type {} without one valid scale", tensor.dtype)
        }
        _ => format!("is of element type {}, which is not supported here", tensor.dtype),
    }
}

pub fn expect(shape: &[usize], expected: &[usize], place: usize) -> Recognised<()> {
    if shape == expected {
        Ok(())
    } else {
        invalid(format!("input {place} is {shape:?}, expected {expected:?}"))
    }
}

/// Returns rows and columns of a matrix.
pub fn matrix(tensor: &Tensor<'_>, place: usize) -> Recognised<[usize; 2]> {
    match tensor.shape[..] {
        [rows, columns] => Ok([rows, columns]),
        _ => invalid(format!("input {place} `{}` is {:?}, expected a matrix", tensor.name, tensor.shape)),
    }
}
