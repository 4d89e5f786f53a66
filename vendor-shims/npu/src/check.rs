//! Decides which operations are supported, and why others are not.
//!
//! This module checks operands, shapes and attributes, which mean the same to every compiler.
//! Further restrictions of a compiler are its [`Rules`].

use shardwright_shim_abi::{EntryView, Error, NodeView, Verdict, WeightView, raw};

use crate::constant::check_small;
use crate::error::unsupported;
use crate::{Encoding, Source};

/// Restrictions of one vendor's compiler. Reasons are shown to users after the name of a node.
pub trait Rules {
    /// The compiler's encodings of activations.
    type Encoding: Encoding;

    /// Maximum rank of a tensor that is bound or used in an operation.
    const MAX_RANK: usize;
    /// Operations that are refused regardless of their operands, with the reason.
    const REFUSED: &'static [(u32, &'static str)];
    /// Why a product cannot have a bias.
    const BIAS: &'static str;

    /// Checks whether the compiler can compute with values in this encoding.
    ///
    /// # Errors
    ///
    /// The encoding and the reason why not.
    fn computes(&self, encoding: Self::Encoding) -> Result<(), String>;

    /// Checks whether one operation supports all of these encodings together, for operands and
    /// result.
    ///
    /// # Errors
    ///
    /// The two encodings that cannot be combined.
    fn together(&self, encodings: &[Self::Encoding]) -> Result<(), String>;

    /// Checks whether an elementwise operation supports an operand with this encoding.
    ///
    /// # Errors
    ///
    /// The fault that the result would have.
    fn pointwise(&self, op: u32, x: Self::Encoding) -> Result<(), String>;

    /// Checks whether a product of values with the encoding `x` and this constant matrix is
    /// supported. The bytes of the matrix's scales may be missing.
    ///
    /// # Errors
    ///
    /// The property of the matrix that is not supported.
    fn matrix(&self, weight: &WeightView<'_>, x: Self::Encoding) -> Result<(), String>;

    /// Checks whether a convolution over values with the encoding `x` supports this constant,
    /// `[O, C · kernel²]`.
    ///
    /// # Errors
    ///
    /// The reason why the convolution is not supported as one operation.
    fn convolution(&self, weight: &WeightView<'_>, x: Self::Encoding) -> Result<(), String>;
}

type Checked<T = ()> = Result<T, String>;

/// Returns one verdict per node, in order. If an entry contradicts itself, all its nodes are
/// refused for that reason.
pub fn verdicts<R: Rules>(entry: EntryView<'_>, rules: &R) -> Vec<Verdict> {
    match Source::<R::Encoding>::read(entry) {
        Ok(source) => (0..source.nodes.len())
            .map(|node| match check_node(&source, rules, node) {
                Ok(()) => Verdict::Taken,
                Err(reason) => Verdict::Refused(reason),
            })
            .collect(),
        Err(error) => entry.nodes().map(|_| Verdict::Refused(error.to_string())).collect(),
    }
}

/// Checks that the whole entry is supported, including its ports.
///
/// # Errors
///
/// The first refusal, with the class `ErrorClass::UnsupportedOp`.
pub fn check_all<R: Rules>(source: &Source<'_, R::Encoding>, rules: &R) -> Result<(), Error> {
    for (index, node) in source.nodes.iter().enumerate() {
        check_node(source, rules, index).map_err(|reason| unsupported(*node, &reason))?;
    }
    for port in source.entry.inputs().chain(source.entry.outputs()) {
        let tensor = source.tensor(port.tensor());
        let reason = match &tensor.encoding {
            Err(reason) => reason.clone(),
            Ok(encoding) if encoding.is_index() => {
                "no operation of this shim reads positions or slots".to_owned()
            }
            Ok(_) if tensor.shape.len() > R::MAX_RANK || tensor.shape.is_empty() => {
                format!("{:?} must have 1 to {} axes", tensor.shape, R::MAX_RANK)
            }
            Ok(_) => continue,
        };
        return Err(Error::unsupported("port", port.name(), reason)
            .help("decomposed attention and rotary embedding read tables instead of positions"));
    }
    Ok(())
}

/// A node that is being checked.
struct Case<'s, 'a, R: Rules> {
    source: &'s Source<'a, R::Encoding>,
    rules: &'s R,
    node: NodeView<'a>,
}

fn check_node<R: Rules>(source: &Source<'_, R::Encoding>, rules: &R, index: usize) -> Checked {
    Case { source, rules, node: source.nodes[index] }.check()
}

impl<'a, R: Rules> Case<'_, 'a, R> {
    fn input(&self, place: usize) -> Checked<u32> {
        self.node.input(place).map_err(|error| error.message)
    }

    fn inputs(&self, least: usize, most: usize) -> Checked {
        let count = self.node.inputs().len();
        match (least..=most).contains(&count) && self.node.inputs().take(least).all(|input| input.is_some()) {
            true => Ok(()),
            false => Err(format!("it has {count} operands, expected {least} to {most}")),
        }
    }

    fn output(&self) -> Checked<u32> {
        self.node.output().map_err(|error| error.message)
    }

    fn shape(&self, tensor: u32) -> &'a [u64] {
        self.source.tensor(tensor).shape
    }

    fn name(&self, tensor: u32) -> &'a str {
        self.source.tensor(tensor).name
    }

    fn rank(&self, tensor: u32) -> Checked {
        let shape = self.shape(tensor);
        match (1..=R::MAX_RANK).contains(&shape.len()) {
            true => Ok(()),
            false => Err(format!(
                "`{}` {shape:?} has rank {}; operations support 1 to {} axes",
                self.name(tensor),
                shape.len(),
                R::MAX_RANK
            )),
        }
    }

    /// Checks an activation that an operation computes with, and returns its encoding.
    fn value(&self, tensor: u32) -> Checked<R::Encoding> {
        self.rank(tensor)?;
        let name = self.name(tensor);
        if let Some(weight) = self.source.weight(tensor) {
            return Err(format!("`{name}` is the constant `{}`; constants are not computed", weight.name()));
        }
        match &self.source.tensor(tensor).encoding {
            Ok(encoding) if encoding.is_index() => {
                Err(format!("`{name}` is i32; no operation of this shim reads positions or slots"))
            }
            Ok(encoding) => match self.rules.computes(*encoding) {
                Ok(()) => Ok(*encoding),
                Err(reason) => Err(format!("`{name}` is {reason}")),
            },
            Err(reason) => Err(format!("`{name}`: {reason}")),
        }
    }

    fn expect(&self, tensor: u32, shape: &[u64]) -> Checked {
        match self.shape(tensor) == shape {
            true => Ok(()),
            false => Err(format!("`{}` is {:?}, not {shape:?}", self.name(tensor), self.shape(tensor))),
        }
    }

    /// Checks an operation with one activation as operand and one as result. `result` computes the
    /// result's shape.
    fn unary(&self, result: impl FnOnce(&[u64]) -> Checked<Vec<u64>>) -> Checked<R::Encoding> {
        self.inputs(1, 1)?;
        let (x, out) = (self.input(0)?, self.output()?);
        let encoding = self.value(x)?;
        self.rules.together(&[encoding, self.value(out)?])?;
        self.expect(out, &result(self.shape(x))?)?;
        Ok(encoding)
    }

    fn pointwise(&self) -> Checked<R::Encoding> {
        self.unary(|shape| Ok(shape.to_vec()))
    }

    fn number(&self, attribute: &str) -> Checked<f32> {
        let value = self.node.attribute_f32(attribute).map_err(|error| error.message)?;
        match value.is_finite() {
            true => Ok(value),
            false => Err(format!("attribute `{attribute}` is {value}")),
        }
    }

    fn count(&self, attribute: &str) -> Checked<u64> {
        self.node.attribute_usize(attribute).map(|value| value as u64).map_err(|error| error.message)
    }

    fn check(&self) -> Checked {
        // Checked first, because the reason applies to every version.
        if let Some((_, reason)) = R::REFUSED.iter().find(|(op, _)| *op == self.node.op()) {
            return Err((*reason).to_owned());
        }
        if self.node.op_version() != 1 {
            return Err(format!("version {} of the operation is unknown", self.node.op_version()));
        }
        match self.node.op() {
            raw::SW_OP_LINEAR => self.linear(),
            raw::SW_OP_RMS_NORM => self.rms_norm(),
            raw::SW_OP_ROTATE => self.rotate(),
            raw::SW_OP_ROPE => {
                Err("it computes tables from positions; only tables as inputs are supported".to_owned())
            }
            raw::SW_OP_ATTENTION => {
                Err("it computes a mask from positions; only products with a mask as an input are supported"
                    .to_owned())
            }
            raw::SW_OP_STATE_UPDATE => {
                Err("a graph cannot write into its inputs; the runtime stores the new rows".to_owned())
            }
            op @ (raw::SW_OP_GELU
            | raw::SW_OP_SILU
            | raw::SW_OP_SIGMOID
            | raw::SW_OP_TANH
            | raw::SW_OP_EXP
            | raw::SW_OP_NEG
            | raw::SW_OP_SQRT
            | raw::SW_OP_RSQRT
            | raw::SW_OP_RECIPROCAL) => self.rules.pointwise(op, self.pointwise()?),
            raw::SW_OP_SOFTCAP => {
                self.pointwise()?;
                match self.number("cap")? {
                    cap if cap > 0.0 => Ok(()),
                    cap => Err(format!("a bound of {cap}")),
                }
            }
            raw::SW_OP_ADD_SCALAR | raw::SW_OP_MUL_SCALAR | raw::SW_OP_MAX_SCALAR => {
                self.number("value")?;
                self.pointwise().map(drop)
            }
            raw::SW_OP_SOFTMAX | raw::SW_OP_L2_NORMALIZE => self.pointwise().map(drop),
            raw::SW_OP_ADD
            | raw::SW_OP_SUB
            | raw::SW_OP_MUL
            | raw::SW_OP_DIV
            | raw::SW_OP_MAX
            | raw::SW_OP_MIN => self.binary(),
            raw::SW_OP_CLAMP => self.clamp(),
            raw::SW_OP_CONVOLUTION => self.convolution(),
            raw::SW_OP_REDUCE_SUM | raw::SW_OP_REDUCE_MEAN | raw::SW_OP_REDUCE_MAX => self
                .unary(|shape| {
                    let mut shape = shape.to_vec();
                    shape.last_mut().into_iter().for_each(|last| *last = 1);
                    Ok(shape)
                })
                .map(drop),
            raw::SW_OP_MAT_MUL => self.mat_mul(),
            raw::SW_OP_RESHAPE | raw::SW_OP_TRANSPOSE | raw::SW_OP_SLICE => self.movement(),
            raw::SW_OP_CONCAT => self.concat(),
            raw::SW_OP_CONVERT => self.convert(),
            other => Err(format!("operation {other} is unknown to this shim")),
        }
    }

    fn linear(&self) -> Checked {
        self.inputs(2, 3)?;
        if self.node.optional_input(2).is_some() {
            return Err(R::BIAS.to_owned());
        }
        self.product(self.input(0)?, self.input(1)?)
    }

    /// Checks a product of x `[.., K]` and a constant `[N, K]`.
    fn product(&self, x: u32, weight: u32) -> Checked {
        let out = self.output()?;
        let encoding = self.value(x)?;
        self.rules.together(&[encoding, self.value(out)?])?;
        let Some(constant) = self.source.weight(weight) else {
            return Err(format!("`{}` is not a constant", self.name(weight)));
        };
        self.rules.matrix(&constant, encoding)?;
        let (left, right) = (self.shape(x), self.shape(weight));
        let (Some((inner, rows)), [outputs, inputs]) = (left.split_last(), right) else {
            return Err(format!("{left:?} cannot be multiplied by {right:?}"));
        };
        if inner != inputs || rows.is_empty() {
            return Err(format!("{left:?} cannot be multiplied by {right:?} stored as [out, in]"));
        }
        self.expect(out, &[rows, &[*outputs]].concat())
    }

    fn mat_mul(&self) -> Checked {
        self.inputs(2, 2)?;
        let (a, b, out) = (self.input(0)?, self.input(1)?, self.output()?);
        let transposed = match self.node.attribute_i64("transpose_b").map_err(|error| error.message)? {
            0 => false,
            1 => true,
            other => return Err(format!("attribute `transpose_b` is {other}")),
        };
        if self.source.weight(b).is_some() {
            if !transposed {
                return Err(format!("`{}` is a constant that is not stored as [out, in]", self.name(b)));
            }
            return self.product(a, b);
        }
        let encodings = [self.value(a)?, self.value(b)?, self.value(out)?];
        self.rules.together(&encodings)?;
        let (left, right) = (self.shape(a), self.shape(b));
        let [.., rows, inner] = left else { return Err(format!("{left:?} has fewer than two axes")) };
        let [.., first, second] = right else { return Err(format!("{right:?} has fewer than two axes")) };
        let (other, columns) = if transposed { (second, first) } else { (first, second) };
        if inner != other {
            return Err(format!("{left:?} cannot be multiplied by {right:?}"));
        }
        if left.len().max(right.len()) > 4 {
            return Err(format!("{left:?} by {right:?} has more than 4 axes"));
        }
        let mut shape = broadcast(&left[..left.len() - 2], &right[..right.len() - 2])?;
        shape.extend([rows, columns]);
        self.expect(out, &shape)
    }

    fn rms_norm(&self) -> Checked {
        self.inputs(1, 2)?;
        let (x, out) = (self.input(0)?, self.output()?);
        self.rules.together(&[self.value(x)?, self.value(out)?])?;
        let (shape, width) = (self.shape(x), self.count("width")?);
        self.expect(out, shape)?;
        let last = shape.last().copied().unwrap_or(1);
        if width == 0 || last % width != 0 {
            return Err(format!("groups of {width} do not divide the last axis of {shape:?}"));
        }
        if last != width && shape.len() >= 4 {
            return Err(format!("{shape:?} leaves no axis for groups of {width}"));
        }
        if shape.len() > 4 {
            return Err(format!("{shape:?} has more than 4 axes"));
        }
        let eps = self.number("eps")?;
        if eps < 0.0 {
            return Err(format!("attribute `eps` is {eps}"));
        }
        self.number("weight_offset")?;
        let Some(weight) = self.node.optional_input(1) else { return Ok(()) };
        let Some(constant) = self.source.weight(weight) else {
            return Err(format!("`{}` is not a constant", self.name(weight)));
        };
        self.expect(weight, &[width])?;
        check_small(&constant)
    }

    fn rotate(&self) -> Checked {
        self.inputs(3, 3)?;
        let (x, cos, sin, out) = (self.input(0)?, self.input(1)?, self.input(2)?, self.output()?);
        self.rules.together(&[self.value(x)?, self.value(cos)?, self.value(sin)?, self.value(out)?])?;
        let head = self.count("head_dim")?;
        let shape = self.shape(x);
        let [rows, width] = *shape else { return Err(format!("{shape:?} is not [rows, heads · {head}]")) };
        if head == 0 || head % 2 != 0 || width % head != 0 {
            return Err(format!("{shape:?} is not [rows, heads · {head}] with an even head"));
        }
        self.expect(cos, &[rows, head / 2])?;
        self.expect(sin, &[rows, head / 2])?;
        self.expect(out, shape)
    }

    fn binary(&self) -> Checked {
        self.inputs(2, 2)?;
        let (a, b, out) = (self.input(0)?, self.input(1)?, self.output()?);
        let mut encodings = vec![self.value(out)?];
        let mut constants = 0;
        for operand in [a, b] {
            match self.source.weight(operand) {
                Some(constant) => {
                    constants += 1;
                    self.rank(operand)?;
                    check_small(&constant)?;
                }
                None => encodings.push(self.value(operand)?),
            }
        }
        if constants == 2 {
            return Err("both operands are constants; constants are not computed".to_owned());
        }
        self.rules.together(&encodings)?;
        self.expect(out, &broadcast(self.shape(a), self.shape(b))?)
    }

    /// Checks a convolution of x `[H, W, C]` with a constant `[O, C · kernel²]`.
    fn convolution(&self) -> Checked {
        self.inputs(2, 2)?;
        let (x, weight, out) = (self.input(0)?, self.input(1)?, self.output()?);
        let encoding = self.value(x)?;
        self.rules.together(&[encoding, self.value(out)?])?;
        let Some(constant) = self.source.weight(weight) else {
            return Err(format!("`{}` is not a constant", self.name(weight)));
        };
        self.rules.convolution(&constant, encoding)?;
        let [kernel, stride, padding] =
            [self.count("kernel")?, self.count("stride")?, self.count("padding")?];
        let (&[height, width, channels], &[outputs, columns]) = (self.shape(x), self.shape(weight)) else {
            return Err(format!(
                "{:?} and {:?} are not a plane and its kernels",
                self.shape(x),
                self.shape(weight)
            ));
        };
        let square = kernel.checked_mul(kernel).and_then(|square| square.checked_mul(channels));
        if kernel == 0 || stride == 0 || square != Some(columns) {
            return Err(format!("kernels of {kernel} by steps of {stride} do not fit {columns} columns"));
        }
        let along = |extent: u64| {
            let room = extent.checked_add(padding.checked_mul(2)?)?.checked_sub(kernel)?;
            Some(room / stride + 1)
        };
        match (along(height), along(width)) {
            (Some(height), Some(width)) => self.expect(out, &[height, width, outputs]),
            _ => Err(format!("{:?} is smaller than a kernel of {kernel}", self.shape(x))),
        }
    }

    /// Checks a clamp of x between two constants.
    fn clamp(&self) -> Checked {
        self.inputs(3, 3)?;
        let (x, out) = (self.input(0)?, self.output()?);
        self.rules.together(&[self.value(x)?, self.value(out)?])?;
        for bound in [self.input(1)?, self.input(2)?] {
            let Some(constant) = self.source.weight(bound) else {
                return Err(format!("`{}` is not a constant", self.name(bound)));
            };
            self.expect(bound, &[1])?;
            check_small(&constant)?;
        }
        self.expect(out, self.shape(x))
    }

    fn movement(&self) -> Checked {
        self.inputs(1, 1)?;
        let (x, out) = (self.input(0)?, self.output()?);
        self.moved(x, out)?;
        let shape = self.shape(x);
        let list = |attribute| self.node.attribute_list(attribute).map_err(|error| error.message);
        match self.node.op() {
            raw::SW_OP_RESHAPE => {
                let wanted: Vec<u64> = list("shape")?.iter().map(|extent| *extent as u64).collect();
                if elements(&wanted) != elements(shape) {
                    return Err(format!("{shape:?} cannot be reshaped to {wanted:?}"));
                }
                self.expect(out, &wanted)
            }
            raw::SW_OP_TRANSPOSE => {
                let perm = list("perm")?;
                let mut seen = vec![false; shape.len()];
                let valid = perm.len() == shape.len()
                    && perm.iter().all(|axis| {
                        let slot = usize::try_from(*axis).ok().and_then(|axis| seen.get_mut(axis));
                        slot.is_some_and(|slot| !std::mem::replace(slot, true))
                    });
                if !valid {
                    return Err(format!("{perm:?} is not an order of the axes of {shape:?}"));
                }
                self.expect(out, &perm.iter().map(|axis| shape[*axis as usize]).collect::<Vec<u64>>())
            }
            _ => {
                let (axis, start, end) = (self.count("axis")?, self.count("start")?, self.count("end")?);
                let extent = shape.get(axis as usize).copied().unwrap_or(0);
                if start >= end || end > extent {
                    return Err(format!("{start}..{end} is not a range of axis {axis} of {shape:?}"));
                }
                let mut wanted = shape.to_vec();
                wanted[axis as usize] = end - start;
                self.expect(out, &wanted)
            }
        }
    }

    /// Checks that operand and result are activations with equal encodings.
    fn moved(&self, x: u32, out: u32) -> Checked {
        let (from, to) = (self.value(x)?, self.value(out)?);
        match from == to {
            true => Ok(()),
            false => Err(format!(
                "`{}` is {} and `{}` {}; moved values keep their encoding",
                self.name(x),
                from.describe(),
                self.name(out),
                to.describe()
            )),
        }
    }

    fn concat(&self) -> Checked {
        let out = self.output()?;
        let axis = self.count("axis")? as usize;
        let mut total = 0u64;
        for (place, input) in self.node.inputs().enumerate() {
            let input = input.ok_or_else(|| format!("operand {place} is missing"))?;
            self.moved(input, out)?;
            let (shape, whole) = (self.shape(input), self.shape(out));
            let fits = shape.len() == whole.len()
                && shape.iter().zip(whole).enumerate().all(|(index, (a, b))| index == axis || a == b);
            if axis >= shape.len() || !fits {
                return Err(format!("{shape:?} cannot be joined to {whole:?} along axis {axis}"));
            }
            total = total.saturating_add(shape[axis]);
        }
        match self.shape(out).get(axis) {
            Some(extent) if *extent == total => Ok(()),
            _ => Err(format!("its operands cannot be joined to {:?} along axis {axis}", self.shape(out))),
        }
    }

    fn convert(&self) -> Checked {
        self.inputs(1, 1)?;
        let (x, out) = (self.input(0)?, self.output()?);
        self.expect(out, self.shape(x))?;
        self.rank(x)?;
        if let Some(weight) = self.source.weight(x) {
            return Err(format!("`{}` is the constant `{}`", self.name(x), weight.name()));
        }
        for tensor in [x, out] {
            match &self.source.tensor(tensor).encoding {
                Err(reason) => return Err(format!("`{}`: {reason}", self.name(tensor))),
                Ok(encoding) if encoding.is_index() => return Err(format!("`{}` is i32", self.name(tensor))),
                Ok(_) => {}
            }
        }
        Ok(())
    }
}

fn elements(shape: &[u64]) -> Option<u64> {
    shape.iter().try_fold(1u64, |product, extent| product.checked_mul(*extent))
}

/// Computes the result shape of an elementwise operation, by NumPy's broadcasting rule.
///
/// # Errors
///
/// The shapes that do not broadcast.
pub fn broadcast(a: &[u64], b: &[u64]) -> Result<Vec<u64>, String> {
    let rank = a.len().max(b.len());
    let extent =
        |shape: &[u64], axis: usize| (axis + shape.len()).checked_sub(rank).map_or(1, |axis| shape[axis]);
    (0..rank)
        .map(|axis| match (extent(a, axis), extent(b, axis)) {
            (x, y) if x == y || y == 1 => Ok(x),
            (1, y) => Ok(y),
            _ => Err(format!("{a:?} and {b:?} do not broadcast")),
        })
        .collect()
}
