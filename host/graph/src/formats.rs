//! Selects the format of each constant of a model under a format tuple.

use shardwright_vocabulary::{ActivationFormat, DType, FormatTuple, Result, WeightFormat, WeightRole};

use crate::{Component, Graph, Node, Op, Role, ValueSource, Weight, WeightId, stream};

/// The target format of a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConstantFormat {
    /// Kept as stored.
    Stored,
    /// A matrix in one of the weight formats.
    Matrix(WeightFormat),
    /// Encoded like an activation: `U16` per tensor with a zero point. Used for norm scales and
    /// similar constants if activations are 16-bit integers.
    Activation,
}

impl Graph {
    /// Returns which weights are matrices of a product, by [`WeightId`]. Weight formats apply only
    /// to these.
    pub fn matrices(&self) -> Vec<bool> {
        self.second_operands(|op| matches!(op, Op::Linear | Op::DynamicLinear { .. }))
    }

    /// Returns which weights are the second operand of such an operation.
    fn second_operands(&self, of: impl Fn(&Op) -> bool) -> Vec<bool> {
        let mut found = vec![false; self.weights.len()];
        for component in &self.components {
            for node in component.nodes.iter().filter(|node| of(&node.op)) {
                let value = node.inputs.get(1).and_then(|input| component.values.get(input.0 as usize));
                if let Some(ValueSource::Constant(WeightId(id))) = value.map(|value| &value.source) {
                    found[*id as usize] = true;
                }
            }
        }
        found
    }

    /// Returns, for each weight, whether an operation on the residual stream reads it. See
    /// [`stream::around`].
    fn beside_stream(&self) -> Vec<bool> {
        let mut found = vec![false; self.weights.len()];
        for component in &self.components {
            for id in beside_stream_of(component) {
                found[id.0 as usize] = true;
            }
        }
        found
    }

    /// Returns the target format of each weight under `formats`, by [`WeightId`].
    ///
    /// A matrix has the format of its role, and is kept if it is already stored in that format.
    /// Other constants follow the activations. They are encoded if activations are static integers.
    /// They are `f16` if activations, or the residual stream with which they are read, are `f16`.
    /// Otherwise they are kept as stored. With static integers, kernels of a convolution have eight
    /// bits, since compilers do not support wider ones.
    pub fn constant_formats(&self, formats: &FormatTuple) -> Vec<ConstantFormat> {
        let matrices = self.matrices();
        let kernels = self.second_operands(|op| matches!(op, Op::Convolution { .. }));
        let in_floats = match formats.activations.has_float_stream() {
            true => self.beside_stream(),
            false => vec![false; self.weights.len()],
        };
        let of = |(index, weight): (usize, &Weight)| {
            let activations = formats.activations;
            let format = match matrices[index] {
                true => formats.weight(WeightRole::of_part(weight.part)),
                false if activations == ActivationFormat::F16 || in_floats[index] => WeightFormat::F16,
                false if activations.is_static() && kernels[index] => WeightFormat::W8PerChannel,
                false if activations.is_static() => return ConstantFormat::Activation,
                false => return ConstantFormat::Stored,
            };
            match weight.is_in(format) {
                true => ConstantFormat::Stored,
                false => ConstantFormat::Matrix(format),
            }
        };
        self.weights.iter().enumerate().map(of).collect()
    }

    /// Returns this model with its constants in `formats`, counted but not quantised. Planning and
    /// `check` use it.
    pub fn planned(&self, formats: &FormatTuple) -> Result<Graph> {
        let mut graph = self.clone();
        for (weight, format) in graph.weights.iter_mut().zip(self.constant_formats(formats)) {
            *weight = match format {
                ConstantFormat::Stored => continue,
                ConstantFormat::Matrix(format) => weight.planned(format)?,
                ConstantFormat::Activation => weight.planned_constant()?,
            };
        }
        Ok(graph)
    }
}

/// Lists the constants of a component that operations on its residual stream read.
fn beside_stream_of(component: &Component) -> Vec<WeightId> {
    let mut marked = vec![false; component.values.len()];
    for (value, marked) in component.values.iter().zip(&mut marked) {
        *marked = value.source == ValueSource::Input(Role::Hidden);
    }
    let leaving = component.outputs.iter().filter(|(_, role)| *role == Role::Hidden).map(|(value, _)| value);
    for value in component.cuts.iter().chain(leaving) {
        marked[value.0 as usize] = true;
    }
    let constant = |value: usize| match component.values[value].source {
        ValueSource::Constant(id) => Some(id),
        _ => None,
    };
    let others = || component.nodes.iter().filter(|node| !stream::is_product(&node.op));
    let values_of = |node: &Node| {
        let all = node.inputs.iter().chain([&node.output]).map(|value| value.0 as usize);
        all.filter(|&value| constant(value).is_none() && !is_index(component, value)).collect()
    };
    let operations: Vec<Vec<usize>> = others().map(values_of).collect();
    stream::spread(&mut marked, &operations);
    others()
        .filter(|node| marked[node.output.0 as usize])
        .flat_map(|node| node.inputs.iter().filter_map(|value| constant(value.0 as usize)))
        .collect()
}

fn is_index(component: &Component, value: usize) -> bool {
    matches!(component.values[value].dtype, DType::I32 | DType::I64)
}
