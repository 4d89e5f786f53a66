//! Lowers an entry's nodes to a vendor's operations, node by node. A recognised attention is
//! lowered as a whole.

use shardwright_shim_abi::{Error, NodeView, WeightView, raw};

use crate::attention::{Attention, Step, steps};
use crate::constant::small_values;
use crate::{Constant, Encoding, ValueId, Work};

/// An elementwise operation with one operand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unary {
    /// GELU in the tanh form.
    Gelu,
    Tanh,
    Sigmoid,
    Exp,
    Negate,
    Root,
    ReciprocalRoot,
}

/// An elementwise operation with two operands that broadcast.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Binary {
    Add,
    Subtract,
    Multiply,
    Divide,
    Maximum,
    Minimum,
}

/// A reduction of the last axis, which is kept with extent 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reduction {
    Sum,
    Mean,
    Maximum,
}

/// A root mean square norm.
#[derive(Clone, Copy, Debug)]
pub struct RmsNorm {
    /// Operand, a tensor of the entry.
    pub x: u32,
    /// Number of values that are normalised together.
    pub width: u64,
    /// Number added to the mean of squares.
    pub eps: f32,
    /// Weight, a tensor of the entry, and the number added to each of its values.
    pub weight: Option<(u32, f32)>,
}

/// A rotary embedding of tensors of the entry.
#[derive(Clone, Copy, Debug)]
pub struct Rotation {
    pub x: u32,
    /// Number of values per head.
    pub head: u64,
    /// Cosines, for half a head.
    pub cos: u32,
    /// Sines, for half a head.
    pub sin: u32,
    pub layer: Option<u32>,
}

/// A 2-D convolution of tensors of the entry.
#[derive(Clone, Copy, Debug)]
pub struct Convolution {
    /// Operand `[H, W, C]`.
    pub x: u32,
    /// Kernels `[O, C · kernel²]`, with columns ordered by channel, then row, then column.
    pub weight: u32,
    /// Result `[H', W', O]`.
    pub out: u32,
    /// Number of rows and of columns of the kernel.
    pub kernel: u64,
    /// Distance between neighbouring results.
    pub stride: u64,
    /// Number of zeros on each side.
    pub padding: u64,
}

/// Lowers the nodes of an entry that passed `check` to the operations of one vendor's compiler. The
/// trait provides the walk over the nodes. The implementation provides the operations.
///
/// # Errors
///
/// All methods fail for weights whose bytes violate the promise of their type, and for everything
/// that `check` refuses.
pub trait Lowering<'s, 'w: 's>: Sized + 's {
    /// The vendor's encodings of activations.
    type Encoding: Encoding + 's;
    /// The vendor's content of constants.
    type Content: 's;
    /// The vendor's computing operations.
    type Compute: 's;

    /// Whether both operands of an elementwise operation must have the rank of the result.
    const EQUAL_RANKS: bool;

    /// Returns the entry that is being lowered.
    fn work(&mut self) -> &mut Work<'s, 'w, Self::Encoding, Self::Content, Self::Compute>;

    /// Returns the operation that converts one encoding to another.
    fn conversion(from: Self::Encoding, to: Self::Encoding) -> Self::Compute;

    /// Returns the operation for a product over the two innermost axes.
    fn mat_mul_of(transpose_second: bool) -> Self::Compute;

    /// Encodes a constant that is not a matrix, for use with activations in the encoding `beside`.
    /// `offset` is added to every value.
    fn small(
        weight: WeightView<'w>,
        beside: Self::Encoding,
        offset: f32,
    ) -> Result<Constant<Self::Content>, String>;

    /// Encodes a number that is broadcast, for use with activations in the encoding `beside`.
    fn scalar(value: f32, beside: Self::Encoding) -> Constant<Self::Content>;

    /// Returns the encoding of an operation's constant operands, for a result in the encoding
    /// `target`.
    fn beside(_: Binary, target: Self::Encoding) -> Self::Encoding {
        target
    }

    /// Adds an elementwise operation with one operand.
    fn unary(&mut self, op: Unary, x: ValueId, target: Self::Encoding) -> ValueId;

    /// Adds an elementwise operation with two operands.
    fn binary(&mut self, op: Binary, a: ValueId, b: ValueId, target: Self::Encoding) -> ValueId;

    /// Adds a reduction of the last axis.
    fn reduce(&mut self, op: Reduction, x: ValueId, target: Self::Encoding) -> ValueId;

    /// Adds a softmax over the last axis. The softmax chooses the encoding of its result.
    fn softmax(&mut self, x: ValueId) -> ValueId;

    /// Adds an L2 normalisation along the last axis.
    fn l2_normalize(&mut self, x: ValueId, target: Self::Encoding) -> ValueId;

    /// Adds a product of x `[.., K]` and a constant `[N, K]`. All three are tensors of the entry.
    fn product(&mut self, x: u32, weight: u32, out: u32) -> Result<ValueId, Error>;

    /// Adds a convolution that [`Rules::convolution`](crate::check::Rules::convolution) accepted.
    fn convolution(&mut self, convolution: Convolution) -> Result<ValueId, Error>;

    /// Adds an RMS norm.
    fn rms_norm(&mut self, norm: RmsNorm, target: Self::Encoding) -> Result<ValueId, Error>;

    /// Adds a rotary embedding.
    fn rotate(&mut self, rotation: Rotation, target: Self::Encoding) -> Result<ValueId, Error>;

    /// Adds an attention and returns its result `[R, kv · group · d]`.
    fn attention(&mut self, found: &Attention) -> Result<ValueId, Error>;

    /// Returns a tensor of the entry as operations read it.
    fn value(&mut self, tensor: u32) -> Result<ValueId, Error> {
        self.work().value(tensor)
    }

    /// Returns a tensor of the entry as the second operand of a product.
    fn second(&mut self, tensor: u32) -> Result<ValueId, Error> {
        self.value(tensor)
    }

    /// Called for each value that becomes the result of a node.
    fn delivered(&mut self, _tensor: u32, _value: ValueId) {}

    /// Lowers all nodes, with each of `attentions` as a whole.
    fn import(&mut self, attentions: &[Attention]) -> Result<(), Error> {
        for (index, step) in steps(self.work().source, attentions) {
            let node = self.work().begin(index);
            match step {
                Step::Node => self.node(node)?,
                Step::Attention(found) => {
                    let value = self.attention(found)?;
                    self.deliver(found.output, value)?;
                }
            }
        }
        Ok(())
    }

    /// Binds a value as the result of the current node, in the encoding that the entry specifies.
    fn deliver(&mut self, tensor: u32, value: ValueId) -> Result<(), Error> {
        let encoding = self.work().encoding(tensor)?;
        let value = self.convert(value, encoding);
        self.delivered(tensor, value);
        self.work().bind(tensor, value);
        Ok(())
    }

    /// Converts a value to another encoding, if it does not have that encoding yet.
    fn convert(&mut self, value: ValueId, encoding: Self::Encoding) -> ValueId {
        let work = self.work();
        if work.draft.encoding(value) == Some(encoding) {
            return value;
        }
        let from = work.encoding_of(value);
        work.act_like(Self::conversion(from, encoding), value, encoding)
    }

    /// Adds a number that is broadcast.
    fn number(&mut self, value: f32, beside: Self::Encoding) -> ValueId {
        self.work().constant(Self::scalar(value, beside))
    }

    /// Adds a weight that is not a matrix.
    fn constant(&mut self, tensor: u32, beside: Self::Encoding, offset: f32) -> Result<ValueId, Error> {
        let weight = self.work().weight(tensor)?;
        let constant =
            Self::small(weight, beside, offset).map_err(|reason| self.work().bad_weight(tensor, reason))?;
        Ok(self.work().constant(constant))
    }

    /// Returns an operand of an elementwise operation whose result has `rank` axes.
    fn operand(&mut self, tensor: u32, beside: Self::Encoding, rank: usize) -> Result<ValueId, Error> {
        if self.work().source.weight(tensor).is_some() {
            return self.constant(tensor, beside, 0.0);
        }
        let value = self.value(tensor)?;
        if !Self::EQUAL_RANKS {
            return Ok(value);
        }
        let shape = self.work().draft.shape(value);
        let mut full = vec![1; rank.saturating_sub(shape.len())];
        full.extend(shape);
        Ok(self.work().reshape(value, &full))
    }

    /// Adds a product over the two innermost axes.
    fn mat_mul(
        &mut self,
        a: ValueId,
        b: ValueId,
        transpose_second: bool,
        encoding: Self::Encoding,
    ) -> ValueId {
        self.work().mat_mul(Self::mat_mul_of(transpose_second), a, b, transpose_second, encoding)
    }

    /// Lowers a single node.
    fn node(&mut self, node: NodeView<'w>) -> Result<(), Error> {
        let work = self.work();
        let source = work.source;
        let out = work.read(node.output())?;
        let first = work.read(node.input(0))?;
        let target = work.encoding(out)?.computed();
        if let Some(moved) = work.movement(node)? {
            return self.deliver(out, moved);
        }
        let shape = source.tensor(out).shape;
        let result = match node.op() {
            raw::SW_OP_LINEAR => {
                let weight = self.work().read(node.input(1))?;
                self.product(first, weight, out)?
            }
            raw::SW_OP_MAT_MUL => {
                let second = self.work().read(node.input(1))?;
                let transposed = self.work().read(node.attribute_i64("transpose_b"))? == 1;
                match source.weight(second) {
                    Some(_) => self.product(first, second, out)?,
                    None => {
                        let (a, b) = (self.value(first)?, self.second(second)?);
                        let product = self.mat_mul(a, b, transposed, target);
                        self.work().reshape(product, shape)
                    }
                }
            }
            raw::SW_OP_CONVOLUTION => {
                let work = self.work();
                let weight = work.read(node.input(1))?;
                let [kernel, stride, padding] = ["kernel", "stride", "padding"]
                    .map(|name| work.read(node.attribute_usize(name)).map(|value| value as u64));
                let (kernel, stride, padding) = (kernel?, stride?, padding?);
                self.convolution(Convolution { x: first, weight, out, kernel, stride, padding })?
            }
            raw::SW_OP_RMS_NORM => {
                let work = self.work();
                let width = work.read(node.attribute_usize("width"))? as u64;
                let eps = work.read(node.attribute_f32("eps"))?;
                let offset = work.read(node.attribute_f32("weight_offset"))?;
                let weight = node.optional_input(1).map(|weight| (weight, offset));
                self.rms_norm(RmsNorm { x: first, width, eps, weight }, target)?
            }
            raw::SW_OP_ROTATE => {
                let work = self.work();
                let head = work.read(node.attribute_usize("head_dim"))? as u64;
                let (cos, sin) = (work.read(node.input(1))?, work.read(node.input(2))?);
                self.rotate(Rotation { x: first, head, cos, sin, layer: node.layer() }, target)?
            }
            raw::SW_OP_SOFTMAX => {
                let x = self.value(first)?;
                let tensor = source.tensor(out);
                let is_product = |reader: &usize| source.nodes[*reader].op() == raw::SW_OP_MAT_MUL;
                let is_inside = !tensor.is_output && tensor.readers.iter().all(is_product);
                let softmax = self.softmax(x);
                if is_inside {
                    self.work().bind(out, softmax);
                    return Ok(());
                }
                self.convert(softmax, target)
            }
            raw::SW_OP_L2_NORMALIZE => {
                let x = self.value(first)?;
                self.l2_normalize(x, target)
            }
            raw::SW_OP_CLAMP => {
                let work = self.work();
                let (low, high) = (work.read(node.input(1))?, work.read(node.input(2))?);
                self.clamp(first, (low, high), target)?
            }
            raw::SW_OP_ADD
            | raw::SW_OP_SUB
            | raw::SW_OP_MUL
            | raw::SW_OP_DIV
            | raw::SW_OP_MAX
            | raw::SW_OP_MIN => {
                let op = match node.op() {
                    raw::SW_OP_ADD => Binary::Add,
                    raw::SW_OP_SUB => Binary::Subtract,
                    raw::SW_OP_MUL => Binary::Multiply,
                    raw::SW_OP_DIV => Binary::Divide,
                    raw::SW_OP_MAX => Binary::Maximum,
                    _ => Binary::Minimum,
                };
                let second = self.work().read(node.input(1))?;
                let (beside, rank) = (Self::beside(op, target), shape.len());
                let (a, b) = (self.operand(first, beside, rank)?, self.operand(second, beside, rank)?);
                self.binary(op, a, b, target)
            }
            raw::SW_OP_REDUCE_SUM | raw::SW_OP_REDUCE_MEAN | raw::SW_OP_REDUCE_MAX => {
                let op = match node.op() {
                    raw::SW_OP_REDUCE_SUM => Reduction::Sum,
                    raw::SW_OP_REDUCE_MEAN => Reduction::Mean,
                    _ => Reduction::Maximum,
                };
                let x = self.value(first)?;
                self.reduce(op, x, target)
            }
            _ => {
                let x = self.value(first)?;
                self.pointwise(node, x, target)?
            }
        };
        self.deliver(out, result)
    }

    /// Limits a value to the range between two constants. Integers saturate at the ends of their
    /// encoding, so a bound at or beyond these ends needs no operation.
    fn clamp(&mut self, x: u32, (low, high): (u32, u32), target: Self::Encoding) -> Result<ValueId, Error> {
        let mut value = self.value(x)?;
        let ends = self.work().encoding_of(value).ends();
        for (op, bound) in [(Binary::Maximum, low), (Binary::Minimum, high)] {
            let number = self.small_number(bound)?;
            let is_within = match (op, ends, number) {
                (_, _, None) | (_, None, _) => true,
                (Binary::Maximum, Some((least, _)), Some(low)) => low > least,
                (_, Some((_, most)), Some(high)) => high < most,
            };
            if is_within {
                let bound = self.operand(bound, Self::beside(op, target), 1)?;
                value = self.binary(op, value, bound, target);
            }
        }
        Ok(value)
    }

    /// Returns the value of a constant of one number, or `None` if its bytes are missing.
    fn small_number(&mut self, tensor: u32) -> Result<Option<f32>, Error> {
        let weight = self.work().weight(tensor)?;
        let values = small_values(&weight).map_err(|reason| self.work().bad_weight(tensor, reason))?;
        Ok(values.and_then(|values| values.first().copied()))
    }

    /// Adds an elementwise operation with one operand, for a value of any shape.
    fn pointwise(
        &mut self,
        node: NodeView<'w>,
        x: ValueId,
        target: Self::Encoding,
    ) -> Result<ValueId, Error> {
        let fraction = |encoding| if target.is_fixed() { encoding } else { target };
        Ok(match node.op() {
            raw::SW_OP_GELU => self.unary(Unary::Gelu, x, target),
            raw::SW_OP_TANH => self.unary(Unary::Tanh, x, target),
            raw::SW_OP_SIGMOID => self.unary(Unary::Sigmoid, x, fraction(Self::Encoding::FRACTION)),
            raw::SW_OP_EXP => self.unary(Unary::Exp, x, target),
            raw::SW_OP_NEG => self.unary(Unary::Negate, x, target),
            raw::SW_OP_SQRT => self.unary(Unary::Root, x, target),
            raw::SW_OP_RSQRT => self.unary(Unary::ReciprocalRoot, x, target),
            raw::SW_OP_RECIPROCAL => {
                let one = self.number(1.0, Self::beside(Binary::Divide, target));
                self.binary(Binary::Divide, one, x, target)
            }
            raw::SW_OP_SILU => {
                let gate = self.unary(Unary::Sigmoid, x, fraction(Self::Encoding::FRACTION));
                self.binary(Binary::Multiply, x, gate, target)
            }
            raw::SW_OP_SOFTCAP => {
                let cap = self.work().read(node.attribute_f32("cap"))?;
                let inner = self.scaled(x, cap.recip());
                let bounded = self.unary(Unary::Tanh, inner, fraction(Self::Encoding::SIGNED_FRACTION));
                let cap = self.number(cap, target);
                self.binary(Binary::Multiply, bounded, cap, target)
            }
            op @ (raw::SW_OP_MUL_SCALAR | raw::SW_OP_ADD_SCALAR | raw::SW_OP_MAX_SCALAR) => {
                let value = self.work().read(node.attribute_f32("value"))?;
                let op = match op {
                    raw::SW_OP_MUL_SCALAR => Binary::Multiply,
                    raw::SW_OP_ADD_SCALAR => Binary::Add,
                    _ => Binary::Maximum,
                };
                let value = self.number(value, Self::beside(op, target));
                self.binary(op, x, value, target)
            }
            other => return Err(self.work().refused(format!("operation {other} is unknown to this shim"))),
        })
    }

    /// Adds `x · factor`, for a positive factor, in the encoding that keeps the stored integers.
    fn scaled(&mut self, x: ValueId, factor: f32) -> ValueId {
        let encoding = self.work().encoding_of(x).scaled(factor);
        let number = self.number(factor, encoding);
        self.binary(Binary::Multiply, x, number, encoding)
    }

    /// Applies the operations between the first product and the mask to the scores of an attention.
    fn between(&mut self, found: &Attention, mut scores: ValueId) -> Result<ValueId, Error> {
        for &node in &found.between {
            let work = self.work();
            let node = work.source.nodes[node];
            let out = work.read(node.output())?;
            let target = work.encoding(out)?.computed();
            scores = self.pointwise(node, scores, target)?;
        }
        Ok(scores)
    }

    /// Adds a rotary embedding as four products of half heads. The values of a head are the last of
    /// four axes.
    fn rotated_in_halves(
        &mut self,
        heads: ValueId,
        (cos, sin): (ValueId, ValueId),
        product: Self::Encoding,
        target: Self::Encoding,
    ) -> ValueId {
        let work = self.work();
        let head = work.draft.shape(heads)[3];
        let (first, second) = (work.slice(heads, 3, 0, head / 2), work.slice(heads, 3, head / 2, head));
        let mut times = |a, b| self.binary(Binary::Multiply, a, b, product);
        let (first_cos, second_sin) = (times(first, cos), times(second, sin));
        let (second_cos, first_sin) = (times(second, cos), times(first, sin));
        let first = self.binary(Binary::Subtract, first_cos, second_sin, target);
        let second = self.binary(Binary::Add, second_cos, first_sin, target);
        self.work().concat(&[first, second], 3)
    }
}
