use shardwright_shim_abi::raw;
use shardwright_shim_abi::{Error, NodeView};

use super::constant::{Constant, Scaling};
use super::graph::{Graph, Source, Tensor};
use crate::kernels::attention::Heads;
use crate::kernels::convolution::Plane;
use crate::kernels::elementwise::{Binary, Broadcast, Unary};
use crate::kernels::encoding::{Element, Encoding};
use crate::kernels::linear::PanelType;
use crate::kernels::reduce::Reduction;
use crate::kernels::relative::Relative;

/// Values of a row that share a scale computed at run time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Rounding {
    /// Rows are not quantised.
    None,
    /// All values.
    Rows,
    /// This many consecutive values.
    Blocks(u32),
}

/// A supported node with its attributes.
#[derive(Clone, Debug, PartialEq)]
pub enum Operation {
    /// Linear map with constant weights.
    Linear {
        /// Quantisation of rows at run time.
        rounding: Rounding,
    },
    /// Root mean square norm.
    RmsNorm {
        /// Values per group.
        width: usize,
        /// Value added under the root.
        eps: f32,
        /// Value added to the weight.
        offset: f32,
    },
    /// Rotary embedding.
    Rope {
        /// Values per head.
        head_dim: usize,
        theta: f32,
        /// Pairs that are rotated.
        pairs: usize,
        /// Divisor of the frequencies.
        factor: f32,
    },
    /// Rotary embedding of all pairs, with cosines and sines as inputs.
    Rotate {
        /// Values per head.
        head_dim: usize,
    },
    Attention {
        heads: Heads,
        /// Visible distance.
        window: u64,
        /// Whether later keys are hidden.
        causal: bool,
        /// Whether the keys are a state.
        state: bool,
    },
    /// Normalisation to mean 0 and variance 1.
    LayerNorm {
        /// Value added under the root.
        eps: f32,
    },
    /// Rotary embedding by two coordinates.
    AxialRope {
        /// Values per head.
        head_dim: usize,
        theta: f32,
    },
    /// Attention with a vector for each distance.
    RelativeAttention(Relative),
    /// Convolution over a plane.
    Convolution(Plane),
    /// Convolution along rows, channel by channel.
    Depthwise {
        /// Rows of the kernel.
        kernel: usize,
    },
    /// Clamp between two constants.
    Clamp,
    /// Halves of the last axis, one gated by the other.
    Glu,
    /// Means of consecutive rows.
    MeanRows { rows: usize },
    /// Copy of rows to slots of a state.
    StateUpdate,
    /// Function of one value.
    Unary(Unary),
    /// Function of two values.
    Binary(Binary),
    /// Softmax over the last axis.
    Softmax,
    /// L2 normalisation over the last axis.
    L2Normalize,
    /// Reduction of the last axis.
    Reduce(Reduction),
    MatMul {
        /// Whether the right matrix is transposed.
        transpose_b: bool,
    },
    /// Same values with another shape.
    Reshape,
    /// Permutation of axes.
    Transpose(Vec<usize>),
    /// Part of an axis.
    Slice { axis: usize, start: usize },
    /// Concatenation along an axis.
    Concat { axis: usize },
}

impl Operation {
    /// Checks whether the operation only moves stored elements. Its result then needs no rounding
    /// to its encoding.
    pub fn moves(&self) -> bool {
        matches!(
            self,
            Operation::Reshape
                | Operation::Transpose(_)
                | Operation::Slice { .. }
                | Operation::Concat { .. }
                | Operation::StateUpdate
        )
    }

    /// Checks whether the operation reads the elements of input `place` as stored, in any encoding.
    pub fn reads_stored(&self, place: usize) -> bool {
        match self {
            Operation::StateUpdate => place == 0,
            Operation::Attention { state: true, .. } => matches!(place, 1 | 2),
            _ => false,
        }
    }
}

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

type Recognised<T> = Result<T, Refusal>;

fn invalid<T>(reason: impl Into<String>) -> Recognised<T> {
    Err(Refusal::Invalid(reason.into()))
}

fn unsupported<T>(reason: impl Into<String>) -> Recognised<T> {
    Err(Refusal::Unsupported(reason.into()))
}

/// A node in its graph.
struct Here<'g, 'a> {
    graph: &'g Graph<'a>,
    index: usize,
    node: NodeView<'a>,
}

impl<'g, 'a> Here<'g, 'a> {
    fn operands(&self, least: usize, most: usize) -> Recognised<()> {
        let count = self.node.inputs().len();
        if count < least || count > most {
            return invalid(format!("{count} inputs, {least} to {most} expected"));
        }
        for place in 0..least {
            self.node.input(place)?;
        }
        Ok(())
    }

    fn any(&self, place: usize) -> Recognised<&'g Tensor<'a>> {
        self.graph
            .input(self.index, place)
            .ok_or_else(|| Refusal::Invalid(format!("input {place} is missing")))
    }

    /// Returns an operand whose values this shim reads: an activation, or a constant that can be
    /// decoded.
    fn float(&self, place: usize) -> Recognised<&'g Tensor<'a>> {
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

    fn refused(&self, place: usize, tensor: &Tensor<'_>, reason: &str) -> Refusal {
        Refusal::Unsupported(format!("input {place} `{}`: {reason}", tensor.name))
    }

    /// Returns a constant that this shim packs as the matrix of a product, and the type of its
    /// panels.
    fn weights(&self, place: usize, by_rows: bool) -> Recognised<(&'g Tensor<'a>, PanelType)> {
        let tensor = self.any(place)?;
        let Some(weight) = tensor.weight() else {
            return unsupported(format!(
                "the weights `{}` are computed; as a matrix product they can be run",
                tensor.name
            ));
        };
        let kind = Constant::of(weight).and_then(|constant| constant.matrix(by_rows));
        kind.map(|kind| (tensor, kind)).map_err(|reason| self.refused(place, tensor, &reason))
    }

    /// Returns a constant that this shim packs as the matrix of an integer product.
    fn integers(&self, place: usize) -> Recognised<&'g Tensor<'a>> {
        let tensor = self.any(place)?;
        let Some(weight) = tensor.weight() else {
            return unsupported(format!("the weights `{}` are computed", tensor.name));
        };
        let kind = Constant::of(weight).and_then(|constant| constant.integers());
        kind.map(|_| tensor).map_err(|reason| self.refused(place, tensor, &reason))
    }

    fn index_vector(&self, place: usize, length: usize) -> Recognised<()> {
        let tensor = self.any(place)?;
        if !tensor.is_index() || !matches!(tensor.source, Source::Input) {
            return unsupported(format!("input {place} `{}` is not a bound i32 tensor", tensor.name));
        }
        expect(&tensor.shape, &[length], place)
    }

    fn output(&self) -> Recognised<&'g Tensor<'a>> {
        let tensor = &self.graph.tensors[self.node.output()? as usize];
        if tensor.is_value() {
            return Ok(tensor);
        }
        unsupported(format!("output `{}` {}", tensor.name, no_value(tensor)))
    }

    /// Checks that operands whose stored elements are moved have the encoding of the result. A
    /// constant that is stored as floats widens to f32 exactly.
    fn same_encoding(&self, places: std::ops::Range<usize>) -> Recognised<()> {
        let output = self.output()?;
        for place in places {
            let tensor = self.any(place)?;
            let existing = match tensor.weight() {
                Some(weight) if weight.quantisation().is_none() => Some(Encoding::F32),
                _ => tensor.encoding,
            };
            if existing != output.encoding {
                return invalid(format!("moves input {place} `{}` into another encoding", tensor.name));
            }
        }
        Ok(())
    }

    fn output_shape(&self, shape: &[usize]) -> Recognised<()> {
        let output = self.output()?;
        if output.shape == shape {
            Ok(())
        } else {
            invalid(format!(
                "output `{}` is {:?}, {shape:?} follows from the inputs",
                output.name, output.shape
            ))
        }
    }

    fn last_axis(&self) -> Recognised<()> {
        self.operands(1, 1)?;
        let x = self.float(0)?;
        if x.shape.is_empty() {
            return invalid("a scalar has no last axis");
        }
        self.output_shape(&x.shape)
    }

    fn finite(&self, name: &str) -> Recognised<f32> {
        let value = self.node.attribute_f32(name)?;
        if value.is_finite() { Ok(value) } else { invalid(format!("attribute `{name}` is {value}")) }
    }

    fn truth(&self, name: &str) -> Recognised<bool> {
        match self.node.attribute_i64(name)? {
            0 => Ok(false),
            1 => Ok(true),
            other => invalid(format!("attribute `{name}` is {other}, 0 or 1 expected")),
        }
    }

    fn positive(&self, name: &str) -> Recognised<usize> {
        match self.node.attribute_usize(name)? {
            0 => invalid(format!("attribute `{name}` is 0")),
            value if value > u32::MAX as usize => invalid(format!("attribute `{name}` is {value}")),
            value => Ok(value),
        }
    }

    fn axis(&self, rank: usize) -> Recognised<usize> {
        let axis = self.node.attribute_usize("axis")?;
        if axis < rank { Ok(axis) } else { invalid(format!("axis {axis} of rank {rank}")) }
    }
}

/// Explains why a tensor does not contain values.
fn no_value(tensor: &Tensor<'_>) -> String {
    match Element::of(tensor.dtype) {
        Some(element) if element.range().is_some() => {
            format!("is of element type {} without one legal scale for all of it", tensor.dtype)
        }
        _ => format!("is of element type {}, which holds no values here", tensor.dtype),
    }
}

fn expect(shape: &[usize], expected: &[usize], place: usize) -> Recognised<()> {
    if shape == expected {
        Ok(())
    } else {
        invalid(format!("input {place} is {shape:?}, expected {expected:?}"))
    }
}

/// Returns rows and columns of a matrix.
fn matrix(tensor: &Tensor<'_>, place: usize) -> Recognised<[usize; 2]> {
    match tensor.shape[..] {
        [rows, columns] => Ok([rows, columns]),
        _ => invalid(format!("input {place} `{}` is {:?}, a matrix expected", tensor.name, tensor.shape)),
    }
}

/// Recognises node `index`, or returns the reason why it cannot run.
pub fn recognise(graph: &Graph<'_>, index: usize) -> Recognised<Operation> {
    let here = Here { graph, index, node: graph.nodes[index] };
    let known = if here.node.op() == raw::SW_OP_DYNAMIC_LINEAR { 2 } else { 1 };
    if !(1..=known).contains(&here.node.op_version()) {
        return unsupported(format!(
            "version {} of op {}, {known} is known",
            here.node.op_version(),
            here.node.op()
        ));
    }
    let unary = |kind: Unary| {
        here.operands(1, 1)?;
        let x = here.float(0)?;
        here.output_shape(&x.shape)?;
        Ok(Operation::Unary(kind))
    };
    match here.node.op() {
        raw::SW_OP_LINEAR => linear(&here, Rounding::None),
        raw::SW_OP_DYNAMIC_LINEAR => linear(&here, rounding(&here)?),
        raw::SW_OP_RMS_NORM => rms_norm(&here),
        raw::SW_OP_ROPE => rope(&here),
        raw::SW_OP_ROTATE => rotate(&here),
        raw::SW_OP_ATTENTION => attention(&here),
        raw::SW_OP_STATE_UPDATE => state_update(&here),
        raw::SW_OP_GELU => unary(Unary::Gelu),
        raw::SW_OP_SILU => unary(Unary::Silu),
        raw::SW_OP_SOFTCAP => {
            let cap = here.finite("cap")?;
            if cap <= 0.0 {
                return invalid(format!("attribute `cap` is {cap}"));
            }
            unary(Unary::Softcap(cap))
        }
        raw::SW_OP_LAYER_NORM => layer_norm(&here),
        raw::SW_OP_AXIAL_ROPE => axial_rope(&here),
        raw::SW_OP_RELATIVE_ATTENTION => relative_attention(&here),
        raw::SW_OP_CONVOLUTION => convolution(&here),
        raw::SW_OP_DEPTHWISE_CONVOLUTION => depthwise(&here),
        raw::SW_OP_CLAMP => clamp(&here),
        raw::SW_OP_SIGMOID => unary(Unary::Sigmoid),
        raw::SW_OP_GLU => glu(&here),
        raw::SW_OP_MEAN_ROWS => mean_rows(&here),
        raw::SW_OP_SOFTMAX => here.last_axis().map(|()| Operation::Softmax),
        raw::SW_OP_L2_NORMALIZE => here.last_axis().map(|()| Operation::L2Normalize),
        raw::SW_OP_ADD => binary(&here, Binary::Add),
        raw::SW_OP_SUB => binary(&here, Binary::Sub),
        raw::SW_OP_MUL => binary(&here, Binary::Mul),
        raw::SW_OP_DIV => binary(&here, Binary::Div),
        raw::SW_OP_MAX => binary(&here, Binary::Max),
        raw::SW_OP_MIN => binary(&here, Binary::Min),
        raw::SW_OP_ADD_SCALAR => unary(Unary::Add(here.node.attribute_f32("value")?)),
        raw::SW_OP_MUL_SCALAR => unary(Unary::Mul(here.node.attribute_f32("value")?)),
        raw::SW_OP_MAX_SCALAR => unary(Unary::Max(here.node.attribute_f32("value")?)),
        raw::SW_OP_NEG => unary(Unary::Neg),
        raw::SW_OP_EXP => unary(Unary::Exp),
        raw::SW_OP_TANH => unary(Unary::Tanh),
        raw::SW_OP_SQRT => unary(Unary::Sqrt),
        raw::SW_OP_RSQRT => unary(Unary::Rsqrt),
        raw::SW_OP_RECIPROCAL => unary(Unary::Reciprocal),
        raw::SW_OP_ROUND => unary(Unary::Round),
        raw::SW_OP_CONVERT => unary(Unary::Copy),
        raw::SW_OP_REDUCE_SUM => reduce(&here, Reduction::Sum),
        raw::SW_OP_REDUCE_MEAN => reduce(&here, Reduction::Mean),
        raw::SW_OP_REDUCE_MAX => reduce(&here, Reduction::Max),
        raw::SW_OP_MAT_MUL => mat_mul(&here),
        raw::SW_OP_RESHAPE => reshape(&here),
        raw::SW_OP_TRANSPOSE => transpose(&here),
        raw::SW_OP_SLICE => slice(&here),
        raw::SW_OP_CONCAT => concat(&here),
        other => unsupported(format!("op {other} is not known")),
    }
}

/// Returns how the rows of a `dynamic-linear` are quantised. Only version 2 has blocks.
fn rounding(here: &Here<'_, '_>) -> Recognised<Rounding> {
    if here.node.op_version() == 1 {
        return Ok(Rounding::Rows);
    }
    match here.node.attribute_usize("block")? {
        0 => Ok(Rounding::Rows),
        BLOCK => Ok(Rounding::Blocks(BLOCK as u32)),
        size => unsupported(format!("rows are quantised in blocks of {size}, only {BLOCK} is supported")),
    }
}

/// Number of values of a row that share a scale in [`Rounding::Blocks`].
const BLOCK: usize = 32;

fn linear(here: &Here<'_, '_>, rounding: Rounding) -> Recognised<Operation> {
    here.operands(2, 3)?;
    let x = here.float(0)?;
    let w = match rounding {
        Rounding::None => here.weights(1, true)?.0,
        Rounding::Rows | Rounding::Blocks(_) => here.integers(1)?,
    };
    let [outputs, inputs] = matrix(w, 1)?;
    let Some((&last, leading)) = x.shape.split_last() else { return invalid("input 0 is a scalar") };
    if last != inputs {
        return invalid(format!("input 0 is {:?}, the weights {:?}", x.shape, w.shape));
    }
    if here.node.optional_input(2).is_some() {
        expect(&here.float(2)?.shape, &[outputs], 2)?;
    }
    here.output_shape(&[leading, &[outputs]].concat())?;
    if let (Rounding::Blocks(rows), Some(Scaling::Block { size, .. })) = (rounding, scaling(w))
        && size < inputs as u64
        && !size.is_multiple_of(rows.into())
    {
        let reason = format!("blocks of {size} weights, which end within blocks of {rows} activations");
        return Err(here.refused(1, w, &reason));
    }
    Ok(Operation::Linear { rounding })
}

/// Returns which values of a constant share a scale.
fn scaling(tensor: &Tensor<'_>) -> Option<Scaling> {
    Constant::of(tensor.weight()?).ok()?.scaling()
}

fn rms_norm(here: &Here<'_, '_>) -> Recognised<Operation> {
    here.operands(1, 2)?;
    let x = here.float(0)?;
    let width = here.positive("width")?;
    let eps = here.finite("eps")?;
    let offset = here.finite("weight_offset")?;
    match x.shape.last() {
        Some(last) if last % width == 0 => {}
        _ => return invalid(format!("input 0 is {:?}, groups are {width} wide", x.shape)),
    }
    if here.node.optional_input(1).is_some() {
        expect(&here.float(1)?.shape, &[width], 1)?;
    }
    here.output_shape(&x.shape)?;
    Ok(Operation::RmsNorm { width, eps, offset })
}

fn rope(here: &Here<'_, '_>) -> Recognised<Operation> {
    here.operands(2, 2)?;
    let x = here.float(0)?;
    let [rows, width] = matrix(x, 0)?;
    let head_dim = here.positive("head_dim")?;
    let pairs = here.node.attribute_usize("rotated_pairs")?;
    let (theta, factor) = (here.finite("theta")?, here.finite("factor")?);
    if head_dim % 2 != 0 || width % head_dim != 0 || pairs > head_dim / 2 {
        return invalid(format!("{pairs} pairs of heads of {head_dim} in rows of {width}"));
    }
    if theta <= 0.0 || factor <= 0.0 {
        return invalid(format!("theta {theta}, factor {factor}"));
    }
    here.index_vector(1, rows)?;
    here.output_shape(&x.shape)?;
    Ok(Operation::Rope { head_dim, theta, pairs, factor })
}

fn rotate(here: &Here<'_, '_>) -> Recognised<Operation> {
    here.operands(3, 3)?;
    let x = here.float(0)?;
    let [rows, width] = matrix(x, 0)?;
    let head_dim = here.positive("head_dim")?;
    if head_dim % 2 != 0 || width % head_dim != 0 {
        return invalid(format!("heads of {head_dim} in rows of {width}"));
    }
    for table in 1..3 {
        expect(&here.float(table)?.shape, &[rows, head_dim / 2], table)?;
    }
    here.output_shape(&x.shape)?;
    Ok(Operation::Rotate { head_dim })
}

fn attention(here: &Here<'_, '_>) -> Recognised<Operation> {
    here.operands(4, 4)?;
    let (q, k, v) = (here.float(0)?, here.float(1)?, here.float(2)?);
    let heads = Heads {
        heads: here.positive("heads")?,
        kv_heads: here.positive("kv_heads")?,
        head_dim: here.positive("head_dim")?,
        scale: here.finite("scale")?,
        softcap: here.finite("softcap")?,
    };
    let window = here.node.attribute_usize("window")? as u64;
    let causal = here.truth("causal")?;
    let [rows, width] = matrix(q, 0)?;
    let [keys, kv_width] = matrix(k, 1)?;
    let product = |count: usize| count.checked_mul(heads.head_dim);
    if !heads.heads.is_multiple_of(heads.kv_heads)
        || product(heads.heads) != Some(width)
        || product(heads.kv_heads) != Some(kv_width)
    {
        return invalid(format!("{heads:?} with queries {:?} and keys {:?}", q.shape, k.shape));
    }
    if heads.softcap < 0.0 {
        return invalid(format!("attribute `softcap` is {}", heads.softcap));
    }
    expect(&v.shape, &[keys, kv_width], 2)?;
    here.index_vector(3, rows)?;
    here.output_shape(&q.shape)?;
    let state = match here.node.attribute_text("keys")? {
        "state" if causal => true,
        "state" => return invalid("keys of a state are always causal"),
        "rows" if keys == rows => false,
        "rows" => return invalid(format!("{rows} rows of queries and {keys} of keys")),
        other => return unsupported(format!("keys from `{other}`")),
    };
    Ok(Operation::Attention { heads, window, causal, state })
}

fn layer_norm(here: &Here<'_, '_>) -> Recognised<Operation> {
    here.operands(1, 3)?;
    let x = here.float(0)?;
    let eps = here.finite("eps")?;
    let Some(&width) = x.shape.last() else { return invalid("a scalar has no last axis") };
    for place in 1..3 {
        if here.node.optional_input(place).is_some() {
            expect(&here.float(place)?.shape, &[width], place)?;
        }
    }
    here.output_shape(&x.shape)?;
    Ok(Operation::LayerNorm { eps })
}

fn axial_rope(here: &Here<'_, '_>) -> Recognised<Operation> {
    here.operands(3, 3)?;
    let x = here.float(0)?;
    let [rows, width] = matrix(x, 0)?;
    let head_dim = here.positive("head_dim")?;
    let theta = here.finite("theta")?;
    if !head_dim.is_multiple_of(4) || width % head_dim != 0 || theta <= 0.0 {
        return invalid(format!("heads of {head_dim} in rows of {width}, theta {theta}"));
    }
    for coordinate in 1..3 {
        here.index_vector(coordinate, rows)?;
    }
    here.output_shape(&x.shape)?;
    Ok(Operation::AxialRope { head_dim, theta })
}

fn relative_attention(here: &Here<'_, '_>) -> Recognised<Operation> {
    here.operands(4, 4)?;
    let (q, by_distance) = (here.float(0)?, here.float(3)?);
    let (heads, head_dim) = (here.positive("heads")?, here.positive("head_dim")?);
    let softcap = here.finite("softcap")?;
    let [rows, width] = matrix(q, 0)?;
    if heads.checked_mul(head_dim) != Some(width) || softcap < 0.0 {
        return invalid(format!("{heads} heads of {head_dim} in rows of {width}, capped at {softcap}"));
    }
    for place in 1..3 {
        expect(&here.float(place)?.shape, &[rows, width], place)?;
    }
    let [of, all] = matrix(by_distance, 3)?;
    let window = all / heads;
    if window == 0 {
        return invalid(format!("{all} scores by distance for {heads} heads"));
    }
    expect(&[of, all], &[rows, heads * window], 3)?;
    here.output_shape(&q.shape)?;
    Ok(Operation::RelativeAttention(Relative { heads, head_dim, window, softcap }))
}

fn convolution(here: &Here<'_, '_>) -> Recognised<Operation> {
    here.operands(2, 2)?;
    let x = here.float(0)?;
    let [outputs, inputs] = matrix(here.weights(1, true)?.0, 1)?;
    let [height, width, channels] = x.shape[..] else {
        return invalid(format!("input 0 `{}` is {:?}, a plane expected", x.name, x.shape));
    };
    let (kernel, stride) = (here.positive("kernel")?, here.positive("stride")?);
    let padding = here.node.attribute_usize("padding")?;
    let plane = Plane { width, channels, kernel, stride, padding };
    if !plane.is_possible() {
        return unsupported(format!("a kernel of {kernel} with stride {stride} and padding {padding}"));
    }
    match (plane.results(height), plane.results(width)) {
        (Some(rows), Some(columns)) if plane.inputs() == Some(inputs) => {
            here.output_shape(&[rows, columns, outputs])?;
        }
        _ => return invalid(format!("{plane:?} over {:?}, the weights {outputs} by {inputs}", x.shape)),
    }
    Ok(Operation::Convolution(plane))
}

fn depthwise(here: &Here<'_, '_>) -> Recognised<Operation> {
    here.operands(2, 2)?;
    let x = here.float(0)?;
    let [_, channels] = matrix(x, 0)?;
    let [of, kernel] = matrix(here.float(1)?, 1)?;
    expect(&[of, kernel], &[channels, kernel], 1)?;
    here.output_shape(&x.shape)?;
    Ok(Operation::Depthwise { kernel })
}

fn clamp(here: &Here<'_, '_>) -> Recognised<Operation> {
    here.operands(3, 3)?;
    let x = here.float(0)?;
    for bound in 1..3 {
        let tensor = here.float(bound)?;
        expect(&tensor.shape, &[1], bound)?;
        if tensor.weight().is_none() {
            return unsupported(format!(
                "the bound `{}` is computed; as the larger and the smaller it can be run",
                tensor.name
            ));
        }
    }
    here.output_shape(&x.shape)?;
    Ok(Operation::Clamp)
}

fn glu(here: &Here<'_, '_>) -> Recognised<Operation> {
    here.operands(1, 1)?;
    let x = here.float(0)?;
    match x.shape.split_last() {
        Some((&last, leading)) if last % 2 == 0 => here.output_shape(&[leading, &[last / 2]].concat())?,
        _ => return invalid(format!("the last axis of {:?} has no halves", x.shape)),
    }
    Ok(Operation::Glu)
}

fn mean_rows(here: &Here<'_, '_>) -> Recognised<Operation> {
    here.operands(1, 1)?;
    let x = here.float(0)?;
    let [all, width] = matrix(x, 0)?;
    let rows = here.positive("rows")?;
    if all % rows != 0 {
        return invalid(format!("means of {rows} of {all} rows"));
    }
    here.output_shape(&[all / rows, width])?;
    Ok(Operation::MeanRows { rows })
}

fn state_update(here: &Here<'_, '_>) -> Recognised<Operation> {
    here.operands(3, 3)?;
    let (state, new) = (here.float(0)?, here.float(1)?);
    let [_, width] = matrix(state, 0)?;
    let [rows, new_width] = matrix(new, 1)?;
    if width != new_width || rows != here.graph.rows() {
        return invalid(format!(
            "rows {:?} for a state {:?} in an entry of {} rows",
            new.shape,
            state.shape,
            here.graph.rows()
        ));
    }
    here.index_vector(2, rows)?;
    here.output_shape(&state.shape)?;
    here.same_encoding(0..2)?;
    Ok(Operation::StateUpdate)
}

fn binary(here: &Here<'_, '_>, kind: Binary) -> Recognised<Operation> {
    here.operands(2, 2)?;
    let (a, b) = (here.float(0)?, here.float(1)?);
    let Some(broadcast) = Broadcast::of(&a.shape, &b.shape) else {
        return invalid(format!("{:?} and {:?} do not broadcast", a.shape, b.shape));
    };
    if a.shape.is_empty() && b.shape.is_empty() {
        here.output_shape(&[])?;
    } else {
        here.output_shape(&broadcast.shape)?;
    }
    Ok(Operation::Binary(kind))
}

fn reduce(here: &Here<'_, '_>, kind: Reduction) -> Recognised<Operation> {
    here.operands(1, 1)?;
    let x = here.float(0)?;
    let Some((_, leading)) = x.shape.split_last() else { return invalid("a scalar has no last axis") };
    here.output_shape(&[leading, &[1]].concat())?;
    Ok(Operation::Reduce(kind))
}

fn mat_mul(here: &Here<'_, '_>) -> Recognised<Operation> {
    here.operands(2, 2)?;
    let transpose_b = here.truth("transpose_b")?;
    let a = here.float(0)?;
    // A constant matrix is packed, so its type may be unsupported elsewhere.
    let b = match here.any(1)? {
        tensor if tensor.weight().is_some() && tensor.shape.len() == 2 => here.weights(1, transpose_b)?.0,
        _ => here.float(1)?,
    };
    let (rank_a, rank_b) = (a.shape.len(), b.shape.len());
    if rank_a < 2 || rank_b < 2 {
        return invalid(format!("{:?} and {:?} are no matrices", a.shape, b.shape));
    }
    let (m, k) = (a.shape[rank_a - 2], a.shape[rank_a - 1]);
    let (inner, n) = match transpose_b {
        true => (b.shape[rank_b - 1], b.shape[rank_b - 2]),
        false => (b.shape[rank_b - 2], b.shape[rank_b - 1]),
    };
    let Some(batch) = Broadcast::of(&a.shape[..rank_a - 2], &b.shape[..rank_b - 2]) else {
        return invalid(format!("the batches of {:?} and {:?} do not broadcast", a.shape, b.shape));
    };
    if k != inner {
        return invalid(format!("{:?} times {:?}, transpose_b {transpose_b}", a.shape, b.shape));
    }
    let leading = if rank_a.max(rank_b) == 2 { Vec::new() } else { batch.shape };
    here.output_shape(&[&leading[..], &[m, n]].concat())?;
    Ok(Operation::MatMul { transpose_b })
}

fn reshape(here: &Here<'_, '_>) -> Recognised<Operation> {
    here.operands(1, 1)?;
    let x = here.float(0)?;
    let output = here.output()?;
    let shape = here.node.attribute_list("shape")?;
    let same = shape.len() == output.shape.len()
        && shape.iter().zip(&output.shape).all(|(asked, actual)| usize::try_from(*asked) == Ok(*actual));
    if !same || output.elements() != x.elements() {
        return invalid(format!("{:?} to {shape:?}, the output is {:?}", x.shape, output.shape));
    }
    here.same_encoding(0..1)?;
    Ok(Operation::Reshape)
}

fn transpose(here: &Here<'_, '_>) -> Recognised<Operation> {
    here.operands(1, 1)?;
    let x = here.float(0)?;
    let rank = x.shape.len();
    let mut seen = vec![false; rank];
    let mut perm = Vec::with_capacity(rank);
    for &axis in here.node.attribute_list("perm")? {
        match usize::try_from(axis).ok().filter(|axis| *axis < rank && !seen[*axis]) {
            Some(axis) => {
                seen[axis] = true;
                perm.push(axis);
            }
            None => return invalid(format!("axis {axis} in a permutation of {rank}")),
        }
    }
    if perm.len() != rank {
        return invalid(format!("a permutation of {} for rank {rank}", perm.len()));
    }
    here.output_shape(&perm.iter().map(|axis| x.shape[*axis]).collect::<Vec<usize>>())?;
    here.same_encoding(0..1)?;
    Ok(Operation::Transpose(perm))
}

fn slice(here: &Here<'_, '_>) -> Recognised<Operation> {
    here.operands(1, 1)?;
    let x = here.float(0)?;
    let axis = here.axis(x.shape.len())?;
    let (start, end) = (here.node.attribute_usize("start")?, here.node.attribute_usize("end")?);
    if start >= end || end > x.shape[axis] {
        return invalid(format!("{start}..{end} of an axis of {}", x.shape[axis]));
    }
    let mut shape = x.shape.clone();
    shape[axis] = end - start;
    here.output_shape(&shape)?;
    here.same_encoding(0..1)?;
    Ok(Operation::Slice { axis, start })
}

fn concat(here: &Here<'_, '_>) -> Recognised<Operation> {
    let count = here.node.inputs().len();
    here.operands(1, count.max(1))?;
    let first = here.float(0)?;
    let axis = here.axis(first.shape.len())?;
    let mut shape = first.shape.clone();
    shape[axis] = 0;
    for place in 0..count {
        let part = here.float(place)?;
        let fits = part.shape.len() == shape.len()
            && part.shape.iter().enumerate().all(|(at, extent)| at == axis || *extent == first.shape[at]);
        if !fits {
            return invalid(format!("{:?} beside {:?} along axis {axis}", part.shape, first.shape));
        }
        shape[axis] += part.shape[axis];
    }
    here.output_shape(&shape)?;
    here.same_encoding(0..count)?;
    Ok(Operation::Concat { axis })
}
