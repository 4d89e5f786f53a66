//! Turns an operation into a step that can run. Operand counts, constants, types and shapes are
//! checked here, so that a step itself needs no checks and cannot fail.

use shardwright_neuron_adapter::operand as kind;
use shardwright_neuron_adapter::setting::{fuse as fuses, padding};
use shardwright_neuron_adapter::{extension, operation as op};

use crate::arithmetic::convert::{cast, converted};
use crate::arithmetic::elementwise::{Binary, Unary, binary, select, unary};
use crate::arithmetic::matrix::{Windows, batch_matmul, convolution, fully_connected};
use crate::arithmetic::movement::{Walk, concatenated, copied, padded, row_major, tiled};
use crate::arithmetic::normalise::{Norm, normalise};
use crate::arithmetic::reduce::{Reduction, reduce};
use crate::arithmetic::softmax::{SCALE_16, softmax};
use crate::arithmetic::tensor::{Class, Elements, Layout, Tensor};
use crate::network::{Network, Operation};
use crate::target::{self, Target};

/// Why an operation cannot become a step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// No hardware could run it: operands are missing or shapes do not fit. Finishing the model
    /// fails.
    Invalid(String),
    /// A type, rank or operation is not supported. The query for supported operations reports
    /// false, and compiling fails.
    Unsupported(String),
}

fn invalid<T>(why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Invalid(why.into()))
}

fn unsupported<T>(why: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::Unsupported(why.into()))
}

/// An operation that can run. The documentation of each variant lists its inputs.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// x, weight and bias.
    FullyConnected {
        /// Fused activation.
        fuse: i32,
    },
    /// x, weight and bias.
    Convolution {
        /// Geometry of the windows.
        windows: Windows,
        /// Fused activation.
        fuse: i32,
    },
    /// a and b.
    BatchMatmul {
        /// Whether the last two dimensions of a are swapped.
        transpose_a: bool,
        /// Whether the last two dimensions of b are swapped.
        transpose_b: bool,
    },
    /// a and b.
    Pair {
        /// The function of two elements.
        binary: Binary,
        /// Fused activation.
        fuse: i32,
    },
    /// condition, a and b.
    Select,
    /// x, to whose elements the function is applied.
    Each(Unary),
    /// x.
    Softmax {
        /// Factor of the exponent.
        beta: f32,
    },
    /// x, unchanged, with another shape.
    Reshape,
    /// x, with one walk for each output.
    Walks(Vec<Walk>),
    /// Any number of tensors.
    Concatenate {
        /// The dimension along which they are joined.
        axis: usize,
    },
    /// x.
    Pad {
        /// Number of padding elements in front, by dimension.
        before: Vec<usize>,
    },
    /// x.
    Tile,
    /// x.
    Reduce {
        /// How elements are combined.
        reduction: Reduction,
        /// Whether each dimension is reduced.
        reduced: Vec<bool>,
    },
    /// x.
    Convert,
    /// x.
    Cast,
    /// x. If gamma and beta are present, their positions among the operation's inputs are given.
    Normalise {
        norm: Norm,
        /// Position of the factors.
        gamma: Option<usize>,
        /// Position of the addends.
        beta: Option<usize>,
    },
}

/// One operation with the layouts of its operands.
struct Case<'a> {
    network: &'a Network,
    operation: &'a Operation,
    inputs: Vec<&'a Layout>,
    outputs: Vec<&'a Layout>,
}

impl<'a> Case<'a> {
    fn new(network: &'a Network, operation: &'a Operation) -> Case<'a> {
        let layouts =
            |list: &[u32]| list.iter().map(|index| &network.operands[*index as usize].layout).collect();
        Case { network, operation, inputs: layouts(&operation.inputs), outputs: layouts(&operation.outputs) }
    }

    fn arity(&self, inputs: std::ops::RangeInclusive<usize>, outputs: usize) -> Result<(), Refusal> {
        if !inputs.contains(&self.inputs.len()) || self.outputs.len() != outputs {
            return invalid(format!(
                "{} inputs and {} outputs; expected {} to {} and {outputs}",
                self.inputs.len(),
                self.outputs.len(),
                inputs.start(),
                inputs.end()
            ));
        }
        Ok(())
    }

    fn constant(&self, place: usize) -> Result<&'a [u8], Refusal> {
        match self.network.constant(self.operation.inputs[place]) {
            Some(bytes) => Ok(bytes),
            None => unsupported(format!("input {place} is not constant")),
        }
    }

    /// Reads a constant 32-bit scalar.
    fn integer(&self, place: usize) -> Result<i32, Refusal> {
        let bytes = self.constant(place)?;
        match (self.inputs[place].kind, bytes) {
            (kind::INT32 | kind::UINT32, [a, b, c, d]) => Ok(i32::from_le_bytes([*a, *b, *c, *d])),
            (other, _) => invalid(format!("input {place} is of type {other}, not an integer scalar")),
        }
    }

    /// Reads a constant truth value, which some clients send as BOOL and others as INT32.
    fn truth(&self, place: usize) -> Result<bool, Refusal> {
        match (self.inputs[place].kind, self.constant(place)?) {
            (kind::BOOL, [byte]) => Ok(*byte != 0),
            (kind::INT32, _) => self.integer(place).map(|value| value != 0),
            (other, _) => invalid(format!("input {place} is of type {other}, not a truth value")),
        }
    }

    fn real(&self, place: usize) -> Result<f32, Refusal> {
        match (self.inputs[place].kind, self.constant(place)?) {
            (kind::FLOAT32 | kind::TENSOR_FLOAT32, [a, b, c, d]) => Ok(f32::from_le_bytes([*a, *b, *c, *d])),
            (kind::FLOAT16 | kind::TENSOR_FLOAT16, [a, b]) => Ok(half::f16::from_le_bytes([*a, *b]).to_f32()),
            (other, _) => invalid(format!("input {place} is of type {other}, not a real scalar")),
        }
    }

    fn integers(&self, place: usize) -> Result<Vec<i32>, Refusal> {
        if self.inputs[place].kind != kind::TENSOR_INT32 {
            return invalid(format!(
                "input {place} is of type {}, not a tensor of integers",
                self.inputs[place].kind
            ));
        }
        let bytes = self.constant(place)?;
        Ok(bytes
            .chunks_exact(4)
            .map(|four| i32::from_le_bytes([four[0], four[1], four[2], four[3]]))
            .collect())
    }

    /// Reads constant integers like [`Case::integers`], one for each dimension of the first input.
    fn per_dimension(&self, place: usize) -> Result<Vec<i32>, Refusal> {
        let found = self.integers(place)?;
        if found.len() != self.inputs[0].dimensions.len() {
            return invalid(format!(
                "input {place} has {} values for rank {}",
                found.len(),
                self.inputs[0].dimensions.len()
            ));
        }
        Ok(found)
    }

    fn fuse(&self, place: usize) -> Result<i32, Refusal> {
        let fuse = self.integer(place)?;
        if !(fuses::NONE..=fuses::RELU6).contains(&fuse) {
            return invalid(format!("activation {fuse}"));
        }
        Ok(fuse)
    }

    fn output_is(&self, dimensions: &[usize]) -> Result<(), Refusal> {
        if self.outputs[0].dimensions != dimensions {
            return invalid(format!(
                "the output is {:?} instead of {dimensions:?}",
                self.outputs[0].dimensions
            ));
        }
        Ok(())
    }

    fn moved(&self) -> Result<(), Refusal> {
        if self.outputs.iter().any(|out| !self.inputs[0].means_the_same(out)) {
            return invalid("input and output differ in type or quantisation");
        }
        Ok(())
    }

    /// Returns the class that these inputs and the output have in common. It is never opaque,
    /// because opaque elements are not computed with.
    fn class_of(&self, inputs: std::ops::Range<usize>) -> Result<Class, Refusal> {
        let class = self.outputs[0].class();
        for place in inputs {
            let layout = self.inputs[place];
            let same = match class {
                Class::Real => layout.kind == self.outputs[0].kind,
                Class::Quantised => {
                    layout.class() == class && layout.element_bytes() == self.outputs[0].element_bytes()
                }
                _ => layout.class() == class,
            };
            if !same || class == Class::Opaque {
                return unsupported(format!(
                    "input {place} of type {} with an output of type {}",
                    layout.kind, self.outputs[0].kind
                ));
            }
        }
        Ok(class)
    }

    fn axis(&self, index: i32, rank: usize) -> Result<usize, Refusal> {
        let axis = if index < 0 { index + rank as i32 } else { index };
        match usize::try_from(axis) {
            Ok(axis) if axis < rank => Ok(axis),
            _ => invalid(format!("dimension {index} of rank {rank}")),
        }
    }
}

/// Returns the broadcast dimensions of two tensors.
fn broadcast(a: &[usize], b: &[usize]) -> Result<Vec<usize>, Refusal> {
    let rank = a.len().max(b.len());
    let at =
        |own: &[usize], place: usize| (place + own.len()).checked_sub(rank).map_or(1, |place| own[place]);
    let mut whole = Vec::with_capacity(rank);
    for place in 0..rank {
        match (at(a, place), at(b, place)) {
            (a, b) if a == b => whole.push(a),
            (1, b) => whole.push(b),
            (a, 1) => whole.push(a),
            _ => return invalid(format!("{a:?} and {b:?} cannot be broadcast")),
        }
    }
    Ok(whole)
}

/// Returns the step of an operation on a target, or why it is refused.
pub fn prepare(network: &Network, operation: &Operation, target: &Target) -> Result<Step, Refusal> {
    let case = Case::new(network, operation);
    target::judge(&case.inputs, &case.outputs, operation, target)?;
    match operation.code {
        op::FULLY_CONNECTED => prepare_fully_connected(&case),
        op::CONV_2D => prepare_convolution(&case),
        op::BATCH_MATMUL => prepare_batch_matmul(&case),
        op::ADD | op::SUB | op::MUL | op::DIV => {
            case.arity(3..=3, 1)?;
            let binary = match operation.code {
                op::ADD => Binary::Add,
                op::SUB => Binary::Subtract,
                op::MUL => Binary::Multiply,
                _ => Binary::Divide,
            };
            prepare_pair(&case, binary, case.fuse(2)?)
        }
        op::MAXIMUM => prepare_plain_pair(&case, Binary::Maximum),
        op::MINIMUM => prepare_plain_pair(&case, Binary::Minimum),
        op::POW => prepare_plain_pair(&case, Binary::Power),
        op::LOGICAL_AND => prepare_plain_pair(&case, Binary::And),
        op::LOGICAL_OR => prepare_plain_pair(&case, Binary::Or),
        op::EQUAL => prepare_comparison(&case, Binary::Equal),
        op::NOT_EQUAL => prepare_comparison(&case, Binary::NotEqual),
        op::GREATER => prepare_comparison(&case, Binary::Greater),
        op::GREATER_EQUAL => prepare_comparison(&case, Binary::GreaterEqual),
        op::LESS => prepare_comparison(&case, Binary::Less),
        op::LESS_EQUAL => prepare_comparison(&case, Binary::LessEqual),
        op::SELECT => prepare_select(&case),
        op::LOGISTIC => prepare_unary(&case, Unary::Logistic, 1),
        op::TANH => prepare_unary(&case, Unary::Tanh, 1),
        op::RELU => prepare_unary(&case, Unary::Relu, 1),
        op::RELU1 => prepare_unary(&case, Unary::Relu1, 1),
        op::RELU6 => prepare_unary(&case, Unary::Relu6, 1),
        op::HARD_SWISH => prepare_unary(&case, Unary::HardSwish, 1),
        op::RSQRT => prepare_unary(&case, Unary::ReciprocalRoot, 1),
        op::SQRT => prepare_unary(&case, Unary::Root, 1),
        op::EXP => prepare_unary(&case, Unary::Exponential, 1),
        op::LOG => prepare_unary(&case, Unary::Logarithm, 1),
        op::ABS => prepare_unary(&case, Unary::Absolute, 1),
        op::NEG => prepare_unary(&case, Unary::Negative, 1),
        op::SIN => prepare_unary(&case, Unary::Sine, 1),
        op::FLOOR => prepare_unary(&case, Unary::Floor, 1),
        op::LOGICAL_NOT => prepare_unary(&case, Unary::Not, 1),
        op::GELU_V2 => {
            case.arity(2..=2, 1)?;
            prepare_unary(&case, Unary::Gelu { approximate: case.integer(1)? != 0 }, 2)
        }
        op::SOFTMAX => prepare_softmax(&case),
        op::RESHAPE | op::SQUEEZE | op::EXPAND_DIMS => prepare_reshape(&case),
        op::TRANSPOSE => prepare_transpose(&case),
        op::SLICE => prepare_slice(&case),
        op::STRIDED_SLICE => prepare_strided_slice(&case),
        op::SPLIT => prepare_split(&case),
        op::CONCATENATION => prepare_concatenation(&case),
        op::PAD => prepare_pad(&case),
        op::TILE => prepare_tile(&case),
        op::MEAN => prepare_reduction(&case, Reduction::Mean),
        op::REDUCE_SUM => prepare_reduction(&case, Reduction::Sum),
        op::REDUCE_MAX => prepare_reduction(&case, Reduction::Maximum),
        op::REDUCE_MIN => prepare_reduction(&case, Reduction::Minimum),
        op::QUANTIZE | op::DEQUANTIZE => prepare_conversion(&case),
        op::CAST => {
            case.arity(1..=1, 1)?;
            case.output_is(&case.inputs[0].dimensions)?;
            if [case.inputs[0].class(), case.outputs[0].class()].contains(&Class::Opaque) {
                return unsupported("bytes of an extension are not numbers");
            }
            Ok(Step::Cast)
        }
        op::L2_NORMALIZATION => {
            case.arity(1..=2, 1)?;
            prepare_norm(&case, Norm::L2, (case.inputs.len() > 1).then_some(1), None)
        }
        target::GENERAL_OPERATION => prepare_named(&case),
        target::COMPILED_NETWORK_OPERATION => {
            unsupported("a compiled network must be the only operation of its model")
        }
        op::UNKNOWN => unsupported("the client could not lower it"),
        other => match op::name(other) {
            Some(name) => unsupported(format!("{name} is not among the operations of this library")),
            None => unsupported("unknown operation"),
        },
    }
}

fn prepare_fully_connected(case: &Case<'_>) -> Result<Step, Refusal> {
    case.arity(4..=4, 1)?;
    let [x, w, bias] = [case.inputs[0], case.inputs[1], case.inputs[2]];
    let out = case.outputs[0];
    let [columns, depth] = w.dimensions[..] else {
        return invalid(format!("a weight of shape {:?}", w.dimensions));
    };
    if x.elements() % depth.max(1) != 0 || x.dimensions.last() != Some(&depth) && x.dimensions.len() < 3 {
        return invalid(format!("{:?} by a weight of {:?}", x.dimensions, w.dimensions));
    }
    let rows = x.elements() / depth.max(1);
    if out.dimensions.last() != Some(&columns) || out.elements() != rows * columns {
        return invalid(format!("an output of {:?} for {rows} rows of {columns}", out.dimensions));
    }
    check_weighted(case, x, w, bias, columns)?;
    Ok(Step::FullyConnected { fuse: case.fuse(3)? })
}

/// Checks types and scales of input, weight, bias and output, for operations that sum weighted
/// inputs.
fn check_weighted(
    case: &Case<'_>,
    x: &Layout,
    w: &Layout,
    bias: &Layout,
    columns: usize,
) -> Result<(), Refusal> {
    let out = case.outputs[0];
    if bias.dimensions != [columns] {
        return invalid(format!("a bias of shape {:?} for {columns} channels", bias.dimensions));
    }
    match (x.class(), w.class(), out.class()) {
        (Class::Real, Class::Real, Class::Real) => {
            if [w.kind, bias.kind, out.kind].iter().any(|kind| *kind != x.kind) {
                return unsupported(format!(
                    "types {}, {}, {} with a bias of {}",
                    x.kind, w.kind, out.kind, bias.kind
                ));
            }
        }
        (Class::Quantised, Class::Quantised, Class::Quantised) => {
            if x.element_bytes() != out.element_bytes() {
                return unsupported(format!(
                    "an input of type {} with an output of type {}",
                    x.kind, out.kind
                ));
            }
            if let Some(channels) = &w.channels
                && channels.axis != 0
            {
                return unsupported(format!("a weight with channels in dimension {}", channels.axis));
            }
            check_bias(x, w, bias, out)?;
        }
        _ => {
            return unsupported(format!(
                "an input of type {} with a weight of type {} and an output of type {}",
                x.kind, w.kind, out.kind
            ));
        }
    }
    Ok(())
}

/// Checks the scale of a bias. A bias is added to accumulators unchanged, so it needs their scale.
/// If the weight has per-channel scales and the bias type has none, the bias has scale 0.
fn check_bias(x: &Layout, w: &Layout, bias: &Layout, out: &Layout) -> Result<(), Refusal> {
    // TensorFlow Lite allows scales to differ by this much (`GetQuantizedConvolutionMultipler`).
    let near = |found: f32, wanted: f32| ((found - wanted).abs() / out.scale) <= 0.02;
    match (bias.kind, &bias.channels, &w.channels) {
        (kind::TENSOR_INT32, None, None) if near(bias.scale, x.scale * w.scale) => Ok(()),
        (kind::TENSOR_INT32, None, None) => {
            invalid(format!("the bias has scale {}, not {} × {}", bias.scale, x.scale, w.scale))
        }
        (kind::TENSOR_INT32, None, Some(_)) if bias.scale == 0.0 => Ok(()),
        (kind::TENSOR_INT32, None, Some(_)) => invalid("the bias has one scale, the weight several"),
        (kind::EXT_TENSOR_INT32_SYMM_PER_CHANNEL, Some(own), Some(channels)) => {
            match own.scales.iter().zip(&channels.scales).find(|(own, scale)| !near(**own, x.scale * **scale))
            {
                Some((own, scale)) => {
                    invalid(format!("a channel's bias has scale {own}, not {} × {scale}", x.scale))
                }
                None => Ok(()),
            }
        }
        _ => unsupported(format!("a bias of type {} with a weight of type {}", bias.kind, w.kind)),
    }
}

fn prepare_convolution(case: &Case<'_>) -> Result<Step, Refusal> {
    case.arity(7..=10, 1)?;
    let count = case.inputs.len();
    if count == 9 || count == 10 && case.inputs[7].kind != kind::BOOL {
        return unsupported("explicit padding");
    }
    if count > 7 && case.truth(7)? {
        return unsupported("channels first");
    }
    let [x, w, bias] = [case.inputs[0], case.inputs[1], case.inputs[2]];
    let out = case.outputs[0];
    let ([batches, height, width, channels], [columns, window_h, window_w, depth]) =
        (&x.dimensions[..], &w.dimensions[..])
    else {
        return invalid(format!("{:?} by a weight of {:?}", x.dimensions, w.dimensions));
    };
    if channels != depth {
        return unsupported("groups");
    }
    let positive = |place: usize| -> Result<usize, Refusal> {
        match usize::try_from(case.integer(place)?) {
            Ok(value) if (1..=1 << 16).contains(&value) => Ok(value),
            _ => invalid(format!("input {place} is not a stride or dilation")),
        }
    };
    let stride = [positive(5)?, positive(4)?];
    let dilation = if count == 10 { [positive(9)?, positive(8)?] } else { [1, 1] };
    let (mut before, mut output) = ([0; 2], [0; 2]);
    let same = match case.integer(3)? {
        padding::SAME => true,
        padding::VALID => false,
        other => return invalid(format!("padding {other}")),
    };
    for (place, (size, window)) in [(*height, *window_h), (*width, *window_w)].into_iter().enumerate() {
        let reach = (window.max(1) - 1) * dilation[place] + 1;
        if same {
            output[place] = size.div_ceil(stride[place]);
            before[place] = ((output[place].max(1) - 1) * stride[place] + reach).saturating_sub(size) / 2;
        } else {
            output[place] = (size + 1).saturating_sub(reach).div_ceil(stride[place]);
        }
    }
    case.output_is(&[*batches, output[0], output[1], *columns])?;
    check_weighted(case, x, w, bias, *columns)?;
    let windows = Windows {
        input: [*batches, *height, *width, *channels],
        window: [*window_h, *window_w],
        stride,
        dilation,
        padding: before,
        output,
    };
    // Every output element reads a window of this size, so the product bounds the size of the
    // unrolled input.
    if out.elements() / (*columns).max(1) > (1 << 34) / (window_h * window_w * depth).max(1) {
        return unsupported("windows too many to lay out");
    }
    Ok(Step::Convolution { windows, fuse: case.fuse(6)? })
}

fn prepare_batch_matmul(case: &Case<'_>) -> Result<Step, Refusal> {
    case.arity(4..=4, 1)?;
    let (transpose_a, transpose_b) = (case.truth(2)?, case.truth(3)?);
    let [a, b] = [case.inputs[0], case.inputs[1]];
    let (Some((a_batch, [a_rows, a_columns])), Some((b_batch, [b_rows, b_columns]))) =
        (a.dimensions.split_last_chunk::<2>(), b.dimensions.split_last_chunk::<2>())
    else {
        return invalid("matrices need at least two dimensions");
    };
    let (rows, depth) = if transpose_a { (a_columns, a_rows) } else { (a_rows, a_columns) };
    let (columns, other) = if transpose_b { (b_rows, b_columns) } else { (b_columns, b_rows) };
    if depth != other {
        return invalid(format!("{:?} by {:?}: {depth} and {other} terms", a.dimensions, b.dimensions));
    }
    let mut whole = broadcast(a_batch, b_batch)?;
    whole.extend([*rows, *columns]);
    case.output_is(&whole)?;
    match case.class_of(0..2)? {
        Class::Real | Class::Quantised => Ok(Step::BatchMatmul { transpose_a, transpose_b }),
        _ => unsupported(format!("matrices of type {}", a.kind)),
    }
}

fn prepare_pair(case: &Case<'_>, binary: Binary, fuse: i32) -> Result<Step, Refusal> {
    let whole = broadcast(&case.inputs[0].dimensions, &case.inputs[1].dimensions)?;
    case.output_is(&whole)?;
    let class = case.class_of(0..2)?;
    let logical = matches!(binary, Binary::And | Binary::Or);
    if logical != (class == Class::Boolean) || class == Class::Integer && fuse != fuses::NONE {
        return unsupported(format!("type {} with this operation", case.inputs[0].kind));
    }
    Ok(Step::Pair { binary, fuse })
}

fn prepare_plain_pair(case: &Case<'_>, binary: Binary) -> Result<Step, Refusal> {
    case.arity(2..=2, 1)?;
    prepare_pair(case, binary, fuses::NONE)
}

fn prepare_comparison(case: &Case<'_>, binary: Binary) -> Result<Step, Refusal> {
    case.arity(2..=2, 1)?;
    case.output_is(&broadcast(&case.inputs[0].dimensions, &case.inputs[1].dimensions)?)?;
    let same = case.inputs[0].class() == case.inputs[1].class() && case.inputs[0].class() != Class::Opaque;
    if !same || case.outputs[0].class() != Class::Boolean {
        return unsupported(format!(
            "types {} and {} compared into {}",
            case.inputs[0].kind, case.inputs[1].kind, case.outputs[0].kind
        ));
    }
    Ok(Step::Pair { binary, fuse: fuses::NONE })
}

fn prepare_select(case: &Case<'_>) -> Result<Step, Refusal> {
    case.arity(3..=3, 1)?;
    let pair = broadcast(&case.inputs[1].dimensions, &case.inputs[2].dimensions)?;
    case.output_is(&broadcast(&case.inputs[0].dimensions, &pair)?)?;
    case.class_of(1..3)?;
    if case.inputs[0].class() != Class::Boolean || pair.len() < case.inputs[0].dimensions.len() {
        return unsupported("the first input is not a truth value for each element");
    }
    Ok(Step::Select)
}

fn prepare_unary(case: &Case<'_>, function: Unary, inputs: usize) -> Result<Step, Refusal> {
    case.arity(inputs..=inputs, 1)?;
    case.output_is(&case.inputs[0].dimensions)?;
    let class = case.class_of(0..1)?;
    if (class == Class::Boolean) != (function == Unary::Not) {
        return unsupported(format!("type {} with this function", case.inputs[0].kind));
    }
    let integral = matches!(
        function,
        Unary::Absolute | Unary::Negative | Unary::Relu | Unary::Relu1 | Unary::Relu6 | Unary::Floor
    );
    if class == Class::Integer && !integral {
        return unsupported("integers that stand for themselves with this function");
    }
    Ok(Step::Each(function))
}

fn prepare_softmax(case: &Case<'_>) -> Result<Step, Refusal> {
    case.arity(2..=2, 1)?;
    case.output_is(&case.inputs[0].dimensions)?;
    let out = case.outputs[0];
    let near = |scale: f32| (out.scale - scale).abs() <= scale / 1000.0;
    match (case.class_of(0..1)?, out.element_bytes()) {
        (Class::Real, _) => {}
        (Class::Quantised, 2) if near(SCALE_16) && out.zero_point == 0 => {}
        (Class::Quantised, 1) if near(1.0 / 256.0) && out.zero_point == out.range().0 => {}
        (Class::Quantised, _) => {
            return invalid(format!(
                "the output has scale {} and zero point {}; expected 1/32768 and 0, or 1/256 and the smallest integer",
                out.scale, out.zero_point
            ));
        }
        _ => return unsupported(format!("type {}", out.kind)),
    }
    let beta = case.real(1)?;
    if !(beta.is_finite() && beta > 0.0) {
        return invalid(format!("a factor of {beta}"));
    }
    Ok(Step::Softmax { beta })
}

fn prepare_reshape(case: &Case<'_>) -> Result<Step, Refusal> {
    case.arity(1..=2, 1)?;
    case.moved()?;
    if case.inputs[0].elements() != case.outputs[0].elements() {
        return invalid(format!("{:?} as {:?}", case.inputs[0].dimensions, case.outputs[0].dimensions));
    }
    // The shape operand is not compared with the output's own shape. Below 8.2.24 Google's client
    // sends FULLY_CONNECTED of rank 3 as rank 2 followed by a RESHAPE. The last length in the shape
    // of that RESHAPE is 1, although the output is right.
    if case.operation.code == op::RESHAPE && case.inputs.len() == 2 {
        case.integers(1)?;
    }
    Ok(Step::Reshape)
}

fn prepare_transpose(case: &Case<'_>) -> Result<Step, Refusal> {
    case.arity(2..=2, 1)?;
    case.moved()?;
    let dimensions = &case.inputs[0].dimensions;
    let mut order = Vec::new();
    for place in case.per_dimension(1)? {
        order.push(case.axis(place, dimensions.len())?);
    }
    let mut sorted = order.clone();
    sorted.sort_unstable();
    if !sorted.iter().enumerate().all(|(place, found)| place == *found) {
        return invalid(format!("{order:?} is not a permutation"));
    }
    let counts: Vec<_> = order.iter().map(|place| dimensions[*place]).collect();
    case.output_is(&counts)?;
    let strides = row_major(dimensions);
    Ok(Step::Walks(vec![Walk {
        start: 0,
        counts,
        strides: order.iter().map(|place| strides[*place] as isize).collect(),
    }]))
}

fn prepare_slice(case: &Case<'_>) -> Result<Step, Refusal> {
    case.arity(3..=3, 1)?;
    case.moved()?;
    let dimensions = &case.inputs[0].dimensions;
    let (begin, size) = (case.per_dimension(1)?, case.per_dimension(2)?);
    let strides = row_major(dimensions);
    let (mut start, mut counts) = (0, Vec::new());
    for place in 0..dimensions.len() {
        let first = usize::try_from(begin[place]).unwrap_or(usize::MAX);
        let length = if size[place] == -1 {
            dimensions[place].saturating_sub(first)
        } else {
            usize::try_from(size[place]).unwrap_or(0)
        };
        if length == 0 || first.checked_add(length).is_none_or(|end| end > dimensions[place]) {
            return invalid(format!("{length} elements from {} of {}", begin[place], dimensions[place]));
        }
        start += first * strides[place];
        counts.push(length);
    }
    case.output_is(&counts)?;
    Ok(Step::Walks(vec![Walk {
        start,
        counts,
        strides: strides.into_iter().map(|stride| stride as isize).collect(),
    }]))
}

fn prepare_strided_slice(case: &Case<'_>) -> Result<Step, Refusal> {
    case.arity(7..=7, 1)?;
    case.moved()?;
    let dimensions = &case.inputs[0].dimensions;
    let (begin, end, steps) = (case.per_dimension(1)?, case.per_dimension(2)?, case.per_dimension(3)?);
    let (begin_mask, end_mask, shrink_mask) = (case.integer(4)?, case.integer(5)?, case.integer(6)?);
    let row_strides = row_major(dimensions);
    let mut walk = Walk { start: 0, counts: Vec::new(), strides: Vec::new() };
    for place in 0..dimensions.len() {
        let (length, step) = (dimensions[place] as i64, i64::from(steps[place]));
        if step == 0 {
            return invalid("a step of 0");
        }
        let set = |mask: i32| mask >> place & 1 == 1;
        let wrapped = |at: i32| if at < 0 { i64::from(at) + length } else { i64::from(at) };
        // A walk may stop one past either end.
        let (low, high) = if step > 0 { (0, length) } else { (-1, length - 1) };
        let first = if set(begin_mask) {
            if step > 0 { 0 } else { length - 1 }
        } else {
            wrapped(begin[place]).clamp(low, high)
        };
        let last = if set(end_mask) {
            if step > 0 { length } else { -1 }
        } else {
            wrapped(end[place]).clamp(low, high)
        };
        let count = if set(shrink_mask) { 1 } else { ((last - first + step - step.signum()) / step).max(0) };
        if count == 0 || first < 0 || first >= length {
            return invalid(format!("dimension {place} would be empty"));
        }
        walk.start += first as usize * row_strides[place];
        if !set(shrink_mask) {
            walk.counts.push(count as usize);
            walk.strides.push(step as isize * row_strides[place] as isize);
        }
    }
    // Clients send a tensor of rank 0 with one dimension of length 1.
    if walk.counts.is_empty() {
        walk.counts.push(1);
        walk.strides.push(1);
    }
    case.output_is(&walk.counts)?;
    Ok(Step::Walks(vec![walk]))
}

fn prepare_split(case: &Case<'_>) -> Result<Step, Refusal> {
    let parts = case.outputs.len();
    case.arity(3..=3, parts)?;
    case.moved()?;
    let dimensions = &case.inputs[0].dimensions;
    let index = if case.inputs[1].kind == kind::INT32 { vec![case.integer(1)?] } else { case.integers(1)? };
    let [index] = index[..] else { return invalid("not one dimension to split") };
    let axis = case.axis(index, dimensions.len())?;
    if usize::try_from(case.integer(2)?) != Ok(parts) || parts == 0 || !dimensions[axis].is_multiple_of(parts)
    {
        return invalid(format!("{} outputs of dimension {axis} of {dimensions:?}", parts));
    }
    let mut counts = dimensions.clone();
    counts[axis] /= parts;
    if case.outputs.iter().any(|out| out.dimensions != counts) {
        return invalid(format!("outputs that are not {counts:?}"));
    }
    let strides = row_major(dimensions);
    let walk = |part: usize| Walk {
        start: part * counts[axis] * strides[axis],
        counts: counts.clone(),
        strides: strides.iter().map(|stride| *stride as isize).collect(),
    };
    Ok(Step::Walks((0..parts).map(walk).collect()))
}

fn prepare_concatenation(case: &Case<'_>) -> Result<Step, Refusal> {
    let tensors = case.inputs.len().saturating_sub(1);
    if tensors == 0 || case.outputs.len() != 1 {
        return invalid("no tensors");
    }
    let axis = case.axis(case.integer(tensors)?, case.inputs[0].dimensions.len())?;
    let mut whole = case.inputs[0].dimensions.clone();
    whole[axis] = 0;
    for layout in &case.inputs[..tensors] {
        if !layout.means_the_same(case.outputs[0]) {
            return invalid("inputs and output differ in type or quantisation");
        }
        let fits = layout.dimensions.len() == whole.len()
            && (0..whole.len()).all(|place| place == axis || layout.dimensions[place] == whole[place]);
        if !fits {
            return invalid(format!("{:?} beside {:?}", layout.dimensions, case.inputs[0].dimensions));
        }
        whole[axis] += layout.dimensions[axis];
    }
    case.output_is(&whole)?;
    Ok(Step::Concatenate { axis })
}

fn prepare_pad(case: &Case<'_>) -> Result<Step, Refusal> {
    case.arity(2..=2, 1)?;
    case.moved()?;
    let dimensions = &case.inputs[0].dimensions;
    let amounts = case.integers(1)?;
    if amounts.len() != 2 * dimensions.len() || amounts.iter().any(|amount| *amount < 0) {
        return invalid(format!("paddings {amounts:?} for rank {}", dimensions.len()));
    }
    let whole: Vec<_> = dimensions
        .iter()
        .zip(amounts.chunks(2))
        .map(|(length, pair)| length + pair[0] as usize + pair[1] as usize)
        .collect();
    case.output_is(&whole)?;
    Ok(Step::Pad { before: amounts.chunks(2).map(|pair| pair[0] as usize).collect() })
}

fn prepare_tile(case: &Case<'_>) -> Result<Step, Refusal> {
    case.arity(2..=2, 1)?;
    case.moved()?;
    let times = case.per_dimension(1)?;
    let whole: Option<Vec<_>> = case.inputs[0]
        .dimensions
        .iter()
        .zip(&times)
        .map(|(length, times)| {
            usize::try_from(*times)
                .ok()
                .filter(|times| *times > 0)
                .and_then(|times| length.checked_mul(times))
        })
        .collect();
    match whole {
        Some(whole) => case.output_is(&whole)?,
        None => return invalid(format!("{times:?} times")),
    }
    Ok(Step::Tile)
}

fn prepare_reduction(case: &Case<'_>, reduction: Reduction) -> Result<Step, Refusal> {
    case.arity(3..=3, 1)?;
    let dimensions = &case.inputs[0].dimensions;
    let mut reduced = vec![false; dimensions.len()];
    for index in case.integers(1)? {
        reduced[case.axis(index, dimensions.len())?] = true;
    }
    let keep = case.truth(2)?;
    let mut whole: Vec<usize> = dimensions
        .iter()
        .zip(&reduced)
        .filter(|(_, reduced)| keep || !**reduced)
        .map(|(length, reduced)| if *reduced { 1 } else { *length })
        .collect();
    if whole.is_empty() {
        whole.push(1);
    }
    case.output_is(&whole)?;
    match case.class_of(0..1)? {
        Class::Boolean | Class::Opaque => unsupported(format!("type {}", case.inputs[0].kind)),
        _ => Ok(Step::Reduce { reduction, reduced }),
    }
}

fn prepare_conversion(case: &Case<'_>) -> Result<Step, Refusal> {
    case.arity(1..=1, 1)?;
    case.output_is(&case.inputs[0].dimensions)?;
    let (from, to) = (case.inputs[0], case.outputs[0]);
    if from.channels.is_some() || to.channels.is_some() {
        return unsupported("scales per channel");
    }
    match (case.operation.code, from.class(), to.class()) {
        (op::QUANTIZE, Class::Real | Class::Quantised, Class::Quantised)
        | (op::DEQUANTIZE, Class::Quantised, Class::Real) => Ok(Step::Convert),
        _ => unsupported(format!("from type {} to {}", from.kind, to.kind)),
    }
}

fn prepare_norm(
    case: &Case<'_>,
    norm: Norm,
    gamma: Option<usize>,
    beta: Option<usize>,
) -> Result<Step, Refusal> {
    case.output_is(&case.inputs[0].dimensions)?;
    let x = case.inputs[0];
    if !matches!(case.class_of(0..1)?, Class::Real | Class::Quantised) {
        return unsupported(format!("type {}", x.kind));
    }
    let Some(width) = x.dimensions.last() else { return invalid("nothing to normalise") };
    for place in [gamma, beta].into_iter().flatten() {
        let layout = case.inputs[place];
        if layout.elements() != *width && layout.elements() != 1 {
            return invalid(format!(
                "input {place} has {} elements for a width of {width}",
                layout.elements()
            ));
        }
        if !matches!(layout.class(), Class::Real | Class::Quantised) || layout.channels.is_some() {
            return unsupported(format!("input {place} of type {}", layout.kind));
        }
    }
    Ok(Step::Normalise { norm, gamma, beta })
}

fn prepare_named(case: &Case<'_>) -> Result<Step, Refusal> {
    let Some(last) = case.inputs.len().checked_sub(1) else {
        return invalid("an extension's operation without its name");
    };
    if case.inputs[last].kind != target::GENERAL_OPERAND {
        return invalid("the last input of an extension's operation is its name");
    }
    let Some(name) = extension::string_of(case.constant(last)?) else {
        return invalid("the operation's name cannot be read");
    };
    match name {
        extension::RMS_NORMALIZATION | extension::LAYER_NORMALIZATION => {
            case.arity(6..=6, 1)?;
            let rank = case.inputs[0].dimensions.len();
            let axes = case.integers(1)?;
            let [axis] = axes[..] else { return unsupported(format!("normalised over {axes:?}")) };
            if case.axis(axis, rank)? + 1 != rank {
                return unsupported(format!("normalised over dimension {axis} of rank {rank}"));
            }
            let epsilon = f64::from(case.real(4)?);
            if !(epsilon.is_finite() && epsilon >= 0.0) {
                return invalid(format!("an epsilon of {epsilon}"));
            }
            let norm = if name == extension::RMS_NORMALIZATION {
                Norm::RootMeanSquare { epsilon }
            } else {
                Norm::Layer { epsilon }
            };
            prepare_norm(case, norm, Some(2), Some(3))
        }
        extension::SQUARED_DIFFERENCE => {
            case.arity(3..=3, 1)?;
            prepare_pair(case, Binary::SquaredDifference, fuses::NONE)
        }
        other => unsupported(format!("the extension has no operation `{other}` here")),
    }
}

impl Step {
    /// Runs the step on the operation's inputs and returns the outputs in order.
    pub fn run(&self, inputs: &[Tensor<'_>], outputs: &[&Layout], relaxed: bool) -> Vec<Elements<'static>> {
        let out = outputs[0];
        let one = match self {
            Step::FullyConnected { fuse } => {
                fully_connected(&inputs[0], &inputs[1], &inputs[2], *fuse, out, relaxed)
            }
            Step::Convolution { windows, fuse } => {
                convolution(&inputs[0], &inputs[1], &inputs[2], windows, *fuse, out, relaxed)
            }
            Step::BatchMatmul { transpose_a, transpose_b } => {
                batch_matmul(&inputs[0], &inputs[1], *transpose_a, *transpose_b, out, relaxed)
            }
            Step::Pair { binary: operation, fuse } => {
                binary(*operation, &inputs[0], &inputs[1], *fuse, out, relaxed)
            }
            Step::Select => select(&inputs[0], &inputs[1], &inputs[2], out),
            Step::Each(function) => unary(*function, &inputs[0], out, relaxed),
            Step::Softmax { beta } => softmax(&inputs[0], *beta, out, relaxed),
            Step::Reshape => copied(&inputs[0]),
            Step::Walks(walks) => return walks.iter().map(|walk| walk.take(&inputs[0])).collect(),
            Step::Concatenate { axis } => concatenated(&inputs[..inputs.len() - 1], *axis),
            Step::Pad { before } => padded(&inputs[0], before, &out.dimensions),
            Step::Tile => tiled(&inputs[0], &out.dimensions),
            Step::Reduce { reduction, reduced } => reduce(*reduction, &inputs[0], reduced, out, relaxed),
            Step::Convert => converted(&inputs[0], out, relaxed),
            Step::Cast => cast(&inputs[0], out, relaxed),
            Step::Normalise { norm, gamma, beta } => normalise(
                *norm,
                &inputs[0],
                gamma.map(|place| &inputs[place]),
                beta.map(|place| &inputs[place]),
                out,
                relaxed,
            ),
        };
        vec![one]
    }
}
