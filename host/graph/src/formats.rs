//! Which format each constant of a model takes under a format tuple.

use shardwright_vocabulary::{ActivationFormat, FormatTuple, WeightFormat, WeightRole};

use crate::{Graph, GraphError, Op, ValueSource, Weight, WeightId};

/// The target format of a constant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConstantFormat {
    /// Kept as stored.
    Stored,
    /// A matrix in one of the weight formats.
    Matrix(WeightFormat),
    /// Encoded like an activation: `U16` per tensor with a zero point. Norm scales and the like,
    /// where activations are 16-bit integers.
    Activation,
}

impl Graph {
    /// Which weights are matrices of a product, by [`WeightId`]: weight formats apply to these
    /// alone.
    pub fn matrices(&self) -> Vec<bool> {
        self.second_operands(|op| matches!(op, Op::Linear | Op::DynamicLinear))
    }

    /// Which weights are the second operand of such an operation.
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

    /// The target format of each weight under `formats`, by [`WeightId`].
    ///
    /// A matrix has the format of its role; one already stored in it stays as it is. Other
    /// constants follow the activations: encoded if those are static integers, `f16` if those are,
    /// else as stored. Beside static integers the kernels of a convolution have eight bits, since
    /// compilers take no wider ones there.
    pub fn constant_formats(&self, formats: &FormatTuple) -> Vec<ConstantFormat> {
        let matrices = self.matrices();
        let kernels = self.second_operands(|op| matches!(op, Op::Convolution { .. }));
        let of = |((weight, is_matrix), is_kernel): ((&Weight, &bool), &bool)| {
            let format = match (is_matrix, formats.activations) {
                (true, _) => formats.weight(WeightRole::of_part(weight.part)),
                (false, ActivationFormat::A16 | ActivationFormat::A16Symmetric) if *is_kernel => {
                    WeightFormat::W8PerChannel
                }
                (false, ActivationFormat::A16 | ActivationFormat::A16Symmetric) => {
                    return ConstantFormat::Activation;
                }
                (false, ActivationFormat::F16) => WeightFormat::F16,
                (false, ActivationFormat::F32 | ActivationFormat::A8Dynamic) => {
                    return ConstantFormat::Stored;
                }
            };
            match weight.is_in(format) {
                true => ConstantFormat::Stored,
                false => ConstantFormat::Matrix(format),
            }
        };
        self.weights.iter().zip(&matrices).zip(&kernels).map(of).collect()
    }

    /// This model with its constants in `formats`, counted but not quantised: what planning and
    /// `check` use.
    pub fn planned(&self, formats: &FormatTuple) -> Result<Graph, GraphError> {
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
