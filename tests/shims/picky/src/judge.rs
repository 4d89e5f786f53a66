//! Decides which nodes are accepted, with reasons for the others.

use shardwright_shim_abi::raw::*;
use shardwright_shim_abi::{
    EntryView, Error, NodeView, PortView, QuantisationView, Result, TensorIndex, WeightView,
};

use crate::step::{moves, numbers, op_name, op_named};

/// Options that restrict the shim further.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Options {
    /// `ops-limit`: the largest number of nodes in an entry that compiles.
    pub(crate) ops_limit: Option<u64>,
    /// `rank-limit`: the largest number of axes of a tensor.
    rank_limit: Option<usize>,
    /// `no-op`: an unsupported operation.
    missing: Option<u32>,
}

impl Options {
    pub(crate) fn read(options: &shardwright_shim_abi::Options<'_>) -> Result<Options> {
        options.only(&["ops-limit", "rank-limit", "no-op"])?;
        let missing = options.get("no-op").map(|name| {
            op_named(name).ok_or_else(|| {
                Error::invalid_argument(format!("option `no-op`: there is no operation `{name}`"))
                    .detail("option", "no-op")
            })
        });
        Ok(Options {
            ops_limit: options.number("ops-limit")?,
            rank_limit: options.number("rank-limit")?,
            missing: missing.transpose()?,
        })
    }

    pub(crate) fn judge(self, entry: EntryView<'_>) -> Judge<'_> {
        let mut weights = vec![None; entry.tensors().len()];
        for (tensor, weight) in entry.constants() {
            weights[tensor as usize] = Some(weight);
        }
        Judge { options: self, entry, weights }
    }
}

/// Judges the nodes of one entry.
pub(crate) struct Judge<'a> {
    options: Options,
    entry: EntryView<'a>,
    /// Weights by index of their tensor.
    weights: Vec<Option<WeightView<'a>>>,
}

fn type_name(dtype: u32) -> &'static str {
    const NAMES: [&str; 12] = ["?", "f32", "f16", "bf16", "i32", "i16", "u16", "i8", "u8", "i64", "i4", "i2"];
    NAMES.get(dtype as usize).copied().unwrap_or("?")
}

/// Checks whether one f32 scale applies to the whole tensor.
fn is_per_tensor(quantisation: QuantisationView<'_>) -> bool {
    quantisation.kind() == SW_QUANTISATION_PER_TENSOR && quantisation.scale_dtype() == SW_DTYPE_F32
}

impl Judge<'_> {
    /// Returns why a node is refused, or `None` if it is accepted.
    pub(crate) fn node(&self, node: NodeView<'_>) -> Option<String> {
        let name = op_name(node.op());
        if node.op() == SW_OP_STATE_UPDATE {
            return Some("states are only read; new rows must be outputs".to_owned());
        }
        if node.op() < SW_OP_ADD {
            return Some(format!("{name} is not a primitive"));
        }
        if self.options.missing == Some(node.op()) {
            return Some(format!("this chip has no {name}"));
        }
        let numbers = match numbers(node) {
            Ok(numbers) => numbers,
            Err(error) => return Some(error.message),
        };
        let is_map = node.op() == SW_OP_MAT_MUL && numbers != [[0]];
        let output = match node.output() {
            Ok(output) => output,
            Err(error) => return Some(error.message),
        };
        for (place, operand) in node.inputs().enumerate() {
            let Some(operand) = operand else { return Some(format!("operand {place} is missing")) };
            let refusal = match self.weights[operand as usize] {
                Some(weight) => self.constant(operand, weight, is_map && place == 1),
                None => self.activation(operand),
            };
            if refusal.is_some() {
                return refusal;
            }
        }
        let refusal = self.activation(output);
        if refusal.is_some() {
            return refusal;
        }
        if moves(node.op()) {
            return self.moved(node, output);
        }
        None
    }

    fn rank(&self, tensor: TensorIndex) -> Option<String> {
        let tensor = self.entry.tensor(tensor);
        let (rank, limit) = (tensor.shape().len(), self.options.rank_limit?);
        (rank > limit).then(|| format!("`{}` has {rank} axes, at most {limit} are supported", tensor.name()))
    }

    fn activation(&self, index: TensorIndex) -> Option<String> {
        let tensor = self.entry.tensor(index);
        if tensor.dtype() != SW_DTYPE_U16 {
            return Some(format!("`{}` is {}, not u16", tensor.name(), type_name(tensor.dtype())));
        }
        match tensor.quantisation() {
            Some(found) if is_per_tensor(found) => self.rank(index),
            _ => Some(format!("`{}` does not have exactly one scale", tensor.name())),
        }
    }

    /// Checks a constant. Its scales and bytes may be missing.
    fn constant(&self, index: TensorIndex, weight: WeightView<'_>, is_matrix: bool) -> Option<String> {
        let name = weight.name();
        let (wanted, words) = if is_matrix { (SW_DTYPE_I8, "i8") } else { (SW_DTYPE_U16, "u16") };
        if weight.dtype() != wanted {
            return Some(format!("constant `{name}` is {}, not {words}", type_name(weight.dtype())));
        }
        let fits = weight.quantisation().is_some_and(|found| match is_matrix {
            true => {
                let plain = found.zero_points().is_ok_and(|zeros| zeros.iter().all(|&zero| zero == 0));
                found.kind() == SW_QUANTISATION_PER_CHANNEL
                    && found.axis() == 0
                    && found.scale_dtype() == SW_DTYPE_F32
                    && plain
            }
            false => is_per_tensor(found),
        });
        let scales = if is_matrix { "one f32 scale per output channel" } else { "one f32 scale" };
        if !fits {
            return Some(format!("constant `{name}` must have {scales}"));
        }
        if is_matrix && weight.shape().len() != 2 {
            return Some(format!("constant `{name}` {:?} is not a matrix", weight.shape()));
        }
        self.rank(index)
    }

    /// Checks that an operation that only moves values has the same encoding before and after.
    fn moved(&self, node: NodeView<'_>, output: TensorIndex) -> Option<String> {
        let encoding = |index: TensorIndex| {
            let found = self.entry.tensor(index).quantisation()?;
            Some((found.scales().ok()?.to_vec(), found.zero_points().ok()?.first().copied().unwrap_or(0)))
        };
        let result = encoding(output);
        let other = node.inputs().flatten().find(|&operand| {
            self.weights[operand as usize].is_some() || encoding(operand) != result || result.is_none()
        })?;
        Some(format!("`{}` does not have the encoding of the result", self.entry.tensor(other).name()))
    }

    /// Refuses an entry that binds anything but 16-bit integers, or writes a state.
    pub(crate) fn ports(&self) -> Result<()> {
        let refused = |port: PortView<'_>, reason: String| {
            Err(Error::unsupported_op(format!("port `{}`: {reason}", port.name()))
                .detail("port", port.name())
                .detail("entry", self.entry.name()))
        };
        for port in self.entry.inputs().chain(self.entry.outputs()) {
            if let Some(reason) = self.activation(port.tensor()) {
                return refused(port, reason);
            }
            if self.weights[port.tensor() as usize].is_some() {
                return refused(port, "a constant cannot be bound".to_owned());
            }
        }
        match self.entry.outputs().find(|port| port.role() == SW_ROLE_STATE) {
            Some(port) => refused(port, "states are only read".to_owned()),
            None => Ok(()),
        }
    }
}
