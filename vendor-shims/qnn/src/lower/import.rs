//! An entry's nodes in the processor's operations, node by node; attention as a whole where it is
//! recognised.

use shardwright_shim_abi::{NodeView, raw};

use shardwright_shim_npu::attention::{Attention, Step, recognise, steps};
use shardwright_shim_npu::{LowerError, Movements, ValueId};

use super::attention;
use super::draft::{Compute, Draft, Source, Work, binary};
use super::encoding::{Affine, Encoding};
use super::variants::{Heads, Product, Rotary, Variants};
use super::weights::{MatrixForm, MatrixLayout, matrix, matrix_form, scalar, small};

/// Where the heads of `[rows, heads · d]` stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// `[1, R, H, d]`: no value moves.
    Rows,
    /// `[1, H, R, d]`.
    Heads,
}

impl Variants {
    fn norm_layout(&self, heads: u64) -> Layout {
        match self.heads {
            // One head stands before its rows without moving.
            _ if heads == 1 => Layout::Heads,
            Heads::BeforeNorm => Layout::Heads,
            _ => Layout::Rows,
        }
    }

    fn rotary_layout(&self, heads: u64, width: u64) -> Layout {
        match (self.rotary.of(width), self.heads) {
            _ if heads == 1 => Layout::Heads,
            // The library's own operation has rows inside heads.
            (Rotary::Fused, _) | (_, Heads::BeforeNorm | Heads::AfterNorm) => Layout::Heads,
            _ => Layout::Rows,
        }
    }
}

/// Builds a draft of an entry that passed `check`.
pub(super) struct Importer<'s, 'w> {
    pub work: Work<'s, 'w>,
    pub variants: &'s Variants,
    /// Bytes of the largest mask that was to be written out for its heads and is not, being too
    /// large.
    pub broadcast_mask: Option<u64>,
}

/// The draft of an entry that passed `check`, and the bytes of the largest mask that was to be
/// written out for its heads and is too large for it.
pub(super) fn import<'w>(
    source: &Source<'w>,
    variants: &Variants,
) -> Result<(Draft<'w>, Option<u64>), LowerError> {
    let movements = Movements { idle_transposes: false, whole_slices: false };
    let work = Work::new(source, movements, |_, shape| shape.to_vec())?;
    let mut importer = Importer { work, variants, broadcast_mask: None };
    for (index, step) in steps(source, &recognise(source)) {
        let node = importer.work.begin(index);
        match step {
            Step::Node => importer.node(node)?,
            Step::Attention(found) => importer.attention(found)?,
        }
    }
    let broadcast_mask = importer.broadcast_mask;
    Ok((importer.work.finish()?, broadcast_mask))
}

impl<'w> Importer<'_, 'w> {
    /// The same with values of 8 bits in 16, which hold them exactly.
    pub fn wide(&mut self, tensor: u32) -> Result<ValueId, LowerError> {
        let value = self.work.value(tensor)?;
        let encoding = self.work.encoding_of(value);
        Ok(self.convert(value, encoding.widened()))
    }

    /// The second operand of a product, which lies around its middle: the library refuses others of
    /// 16 bits, and those of 8 it rounds a second time.
    pub fn second(&mut self, tensor: u32) -> Result<ValueId, LowerError> {
        let value = self.work.value(tensor)?;
        match self.work.encoding_of(value) {
            Encoding::Fixed8(affine) if (127..=129).contains(&affine.zero) => Ok(value),
            encoding => Ok(self.convert(value, encoding.centred())),
        }
    }

    /// One number that is broadcast, read beside `family`.
    fn number(&mut self, value: f32, family: Encoding) -> ValueId {
        self.work.constant(scalar(value, 1, family))
    }

    /// Binds a value as the result of the node at work, in the encoding the entry gives it.
    fn deliver(&mut self, tensor: u32, value: ValueId) -> Result<(), LowerError> {
        let encoding = self.work.encoding(tensor)?;
        let value = self.convert(value, encoding);
        if self.work.draft.is_computed(value) {
            self.work.draft.values[value.0].name = self.work.source.tensor(tensor).name.to_owned();
        }
        self.work.bind(tensor, value);
        Ok(())
    }

    /// The same values in another encoding.
    pub fn convert(&mut self, value: ValueId, encoding: Encoding) -> ValueId {
        match self.work.draft.encoding(value) == Some(encoding) {
            true => value,
            false => self.work.act_like(Compute::Convert, value, encoding),
        }
    }

    fn unary(&mut self, op: &'static str, x: ValueId, encoding: Encoding) -> ValueId {
        self.work.act_like(Compute::Unary(op), x, encoding)
    }

    pub fn binary(&mut self, op: &'static str, a: ValueId, b: ValueId, encoding: Encoding) -> ValueId {
        self.work.act_broadcast(Compute::Binary(op), a, b, encoding)
    }

    /// `[R, heads · width]` with its heads apart.
    pub fn apart(&mut self, value: ValueId, width: u64, layout: Layout) -> ValueId {
        match (self.work.draft.shape(value).len(), self.work.apart(value, width), layout) {
            (2, value, Layout::Heads) => self.work.transpose(value, &[0, 2, 1, 3]),
            (_, value, _) => value,
        }
    }

    /// The reverse of [`Importer::apart`].
    pub fn together(&mut self, value: ValueId, layout: Layout) -> ValueId {
        let value = match layout {
            Layout::Rows => value,
            Layout::Heads => self.work.transpose(value, &[0, 2, 1, 3]),
        };
        let [_, rows, heads, width] = *self.work.draft.shape(value) else { return value };
        self.work.reshape(value, &[rows, heads * width])
    }

    fn node(&mut self, node: NodeView<'w>) -> Result<(), LowerError> {
        let out = self.work.read(node.output())?;
        let first = self.work.read(node.input(0))?;
        let target = self.work.encoding(out)?;
        let shape = self.work.source.tensor(out).shape.to_vec();
        if let Some(moved) = self.work.movement(node)? {
            return self.deliver(out, moved);
        }
        let result = match node.op() {
            raw::SW_OP_LINEAR => {
                let weight = self.work.read(node.input(1))?;
                self.product(first, weight, out)?
            }
            raw::SW_OP_MAT_MUL => {
                let second = self.work.read(node.input(1))?;
                let transposed = self.work.read(node.attribute_i64("transpose_b"))? == 1;
                match self.work.source.weight(second) {
                    Some(_) => self.product(first, second, out)?,
                    None => {
                        let (a, b) = (self.wide(first)?, self.second(second)?);
                        let product = self.mat_mul(a, b, transposed, target.computed());
                        self.work.reshape(product, &shape)
                    }
                }
            }
            raw::SW_OP_RMS_NORM => self.rms_norm(node, first, target.computed())?,
            raw::SW_OP_ROTATE => self.rotate(node, first, target.computed())?,
            raw::SW_OP_SOFTMAX => {
                let x = self.wide(first)?;
                let tensor = self.work.source.tensor(out);
                let is_product = |reader: &usize| self.work.source.nodes[*reader].op() == raw::SW_OP_MAT_MUL;
                let is_inside = !tensor.is_output && tensor.readers.iter().all(is_product);
                let softmax = self.softmax(x);
                if is_inside {
                    self.work.bind(out, softmax);
                    return Ok(());
                }
                self.convert(softmax, target.computed())
            }
            raw::SW_OP_L2_NORMALIZE => {
                let x = self.wide(first)?;
                self.work.act_like(Compute::L2Norm, x, target.computed())
            }
            raw::SW_OP_ADD | raw::SW_OP_SUB | raw::SW_OP_MUL | raw::SW_OP_DIV => {
                let op = match node.op() {
                    raw::SW_OP_ADD => binary::ADD,
                    raw::SW_OP_SUB => binary::SUBTRACT,
                    raw::SW_OP_MUL => binary::MULTIPLY,
                    _ => binary::DIVIDE,
                };
                let second = self.work.read(node.input(1))?;
                let rank = shape.len();
                let [a, b] = [self.operand(first, target, rank)?, self.operand(second, target, rank)?];
                self.binary(op, a, b, target.computed())
            }
            raw::SW_OP_REDUCE_SUM | raw::SW_OP_REDUCE_MEAN | raw::SW_OP_REDUCE_MAX => {
                let op = match node.op() {
                    raw::SW_OP_REDUCE_SUM => "ReduceSum",
                    raw::SW_OP_REDUCE_MEAN => "ReduceMean",
                    _ => "ReduceMax",
                };
                let x = self.wide(first)?;
                self.work.act(Compute::Reduce(op), &[x], shape, target.computed())
            }
            _ => {
                let x = self.wide(first)?;
                self.pointwise(node, x, target.computed())?
            }
        };
        self.deliver(out, result)
    }

    /// An operand of an operation value by value whose result has `rank` axes.
    fn operand(&mut self, tensor: u32, family: Encoding, rank: usize) -> Result<ValueId, LowerError> {
        if let Some(weight) = self.work.source.weight(tensor) {
            let constant =
                small(weight, family, 0.0).map_err(|reason| self.work.bad_weight(tensor, reason))?;
            return Ok(self.work.constant(constant));
        }
        let value = self.wide(tensor)?;
        let shape = self.work.draft.shape(value);
        // The library's rule of broadcasting is only known for equal ranks.
        let mut full = vec![1; rank.saturating_sub(shape.len())];
        full.extend(shape);
        Ok(self.work.reshape(value, &full))
    }

    /// An operation value by value with one operand, on a value of any shape.
    pub fn pointwise(
        &mut self,
        node: NodeView<'w>,
        x: ValueId,
        target: Encoding,
    ) -> Result<ValueId, LowerError> {
        let fraction = |encoding| if target.is_fixed() { encoding } else { target };
        Ok(match node.op() {
            raw::SW_OP_GELU => self.unary("Gelu", x, target),
            raw::SW_OP_TANH => self.unary("Tanh", x, target),
            raw::SW_OP_EXP => self.unary("ElementWiseExp", x, target),
            raw::SW_OP_NEG => self.unary("ElementWiseNeg", x, target),
            raw::SW_OP_SQRT => self.unary("ElementWiseSquareRoot", x, target),
            raw::SW_OP_RSQRT => self.unary("ElementWiseRsqrt", x, target),
            raw::SW_OP_RECIPROCAL => {
                let one = self.number(1.0, target);
                self.binary(binary::DIVIDE, one, x, target)
            }
            raw::SW_OP_SILU => {
                let gate = self.unary("Sigmoid", x, fraction(Encoding::FRACTION));
                self.binary(binary::MULTIPLY, x, gate, target)
            }
            raw::SW_OP_SOFTCAP => {
                let cap = self.work.read(node.attribute_f32("cap"))?;
                let inner = self.scaled(x, cap.recip());
                let bounded = self.unary("Tanh", inner, fraction(Encoding::SIGNED_FRACTION));
                let cap = self.number(cap, target);
                self.binary(binary::MULTIPLY, bounded, cap, target)
            }
            op @ (raw::SW_OP_MUL_SCALAR | raw::SW_OP_ADD_SCALAR | raw::SW_OP_MAX_SCALAR) => {
                let value = self.work.read(node.attribute_f32("value"))?;
                let value = self.number(value, target);
                let name = match op {
                    raw::SW_OP_MUL_SCALAR => binary::MULTIPLY,
                    raw::SW_OP_ADD_SCALAR => binary::ADD,
                    _ => binary::MAXIMUM,
                };
                self.binary(name, x, value, target)
            }
            other => return Err(self.work.refused(format!("operation {other} is not known here"))),
        })
    }

    /// `x · factor`, a factor above zero, in the encoding that keeps the stored values.
    fn scaled(&mut self, x: ValueId, factor: f32) -> ValueId {
        let encoding = match self.work.encoding_of(x) {
            Encoding::Fixed16(affine) => {
                let scale = (affine.scale * factor).max(f32::MIN_POSITIVE);
                Encoding::Fixed16(Affine { scale, zero: affine.zero })
            }
            other => other,
        };
        let number = self.number(factor, encoding);
        self.binary(binary::MULTIPLY, x, number, encoding)
    }

    pub fn softmax(&mut self, x: ValueId) -> ValueId {
        let encoding = if self.work.encoding_of(x).is_fixed() { Encoding::FRACTION } else { Encoding::Half };
        self.work.act_like(Compute::Softmax, x, encoding)
    }

    pub fn mat_mul(&mut self, a: ValueId, b: ValueId, transpose_second: bool, encoding: Encoding) -> ValueId {
        let kind = Compute::MatMul { transpose_second };
        self.work.mat_mul(kind, a, b, transpose_second, encoding)
    }

    /// x `[.., K]` by a constant `[N, K]`, in blocks of outputs where there are too many.
    fn product(&mut self, x: u32, weight: u32, out: u32) -> Result<ValueId, LowerError> {
        let target = self.work.encoding(out)?.computed();
        let value = self.wide(x)?;
        let constant = self.work.weight(weight)?;
        let form = matrix_form(&constant, self.work.encoding_of(value))
            .map_err(|reason| self.work.refused(reason))?;
        let inner = self.work.source.tensor(x).last();
        let rows = self.work.draft.shape(value).iter().product::<u64>() / inner;
        let outputs = self.work.source.tensor(out).last();
        let layout = match (form, self.variants.product) {
            // As FullyConnected the library prepares blocks for some shapes only.
            (MatrixForm::Blocks, _) => MatrixLayout::Pixel,
            (MatrixForm::Half, _) | (_, Product::FullyConnected) => MatrixLayout::Stored,
            (_, Product::Convolution) => MatrixLayout::Pixel,
            (_, Product::MatMul) => MatrixLayout::Columns,
        };
        let (flat, kind) = match layout {
            MatrixLayout::Stored => (vec![rows, inner], Compute::FullyConnected),
            MatrixLayout::Columns => (vec![rows, inner], Compute::MatMul { transpose_second: false }),
            MatrixLayout::Pixel => (vec![1, 1, rows, inner], Compute::Pixel),
        };
        let value = self.work.reshape(value, &flat);
        let axis = flat.len() - 1;
        let widest = self.variants.widest.max(1);
        let mut parts = Vec::new();
        let mut start = 0;
        while start < outputs {
            let end = outputs.min(start.saturating_add(widest));
            let block = matrix(constant, form, layout, start..end)
                .map_err(|reason| self.work.bad_weight(weight, reason))?;
            let block = self.work.constant(block);
            let mut shape = flat.clone();
            shape[axis] = end - start;
            parts.push(self.work.act(kind.clone(), &[value, block], shape, target));
            start = end;
        }
        let joined = self.work.concat(&parts, axis);
        Ok(self.work.reshape(joined, self.work.source.tensor(out).shape))
    }

    fn rms_norm(&mut self, node: NodeView<'w>, x: u32, target: Encoding) -> Result<ValueId, LowerError> {
        let width = self.work.read(node.attribute_usize("width"))? as u64;
        let eps = self.work.read(node.attribute_f32("eps"))?;
        let offset = self.work.read(node.attribute_f32("weight_offset"))?;
        let gamma = match node.optional_input(1) {
            Some(tensor) => {
                let weight = self.work.weight(tensor)?;
                small(weight, target, offset).map_err(|reason| self.work.bad_weight(tensor, reason))?
            }
            None => scalar(1.0, width, target),
        };
        let gamma = self.work.constant(gamma);
        let value = self.wide(x)?;
        let whole = self.work.draft.shape(value).to_vec();
        let kind = Compute::RmsNorm(eps.to_bits());
        let (groups, layout) = match self.work.source.tensor(x).last() == width {
            true => (value, None),
            false if whole.len() == 2 => {
                let layout = self.variants.norm_layout(whole[1] / width);
                (self.apart(value, width, layout), Some(layout))
            }
            false => (self.work.grouped(value, width), None),
        };
        let apart = self.work.draft.shape(groups).to_vec();
        // Of f16 the library takes rows and heads as axes of their own, and computes most such
        // extents wrongly.
        let shape = match target {
            Encoding::Half => vec![apart.iter().product::<u64>() / width, width],
            _ => apart.clone(),
        };
        let groups = self.work.reshape(groups, &shape);
        let normed = self.work.act(kind, &[groups, gamma], shape, target);
        let normed = self.work.reshape(normed, &apart);
        Ok(match layout {
            Some(layout) => self.together(normed, layout),
            None => self.work.reshape(normed, &whole),
        })
    }

    fn rotate(&mut self, node: NodeView<'w>, x: u32, target: Encoding) -> Result<ValueId, LowerError> {
        let head = self.work.read(node.attribute_usize("head_dim"))? as u64;
        let [cos, sin] = [self.work.read(node.input(1))?, self.work.read(node.input(2))?];
        let [x, cos, sin] = [self.wide(x)?, self.wide(cos)?, self.wide(sin)?];
        let count = self.work.draft.shape(x).get(1).map_or(1, |all| all / head);
        let layout = self.variants.rotary_layout(count, head);
        let form = self.variants.rotary.of(head);
        let heads = self.apart(x, head, layout);
        let shape = self.work.draft.shape(heads).to_vec();
        let rows = self.work.draft.shape(cos)[0];
        let half = head / 2;
        let table = match (form, layout) {
            (Rotary::Fused, _) => vec![1, rows, half],
            (_, Layout::Rows) => vec![1, rows, 1, half],
            (_, Layout::Heads) => vec![1, 1, rows, half],
        };
        let [cos, sin] = [self.work.reshape(cos, &table), self.work.reshape(sin, &table)];
        let product = self.work.encoding_of(heads).turned();
        let turned = match form {
            Rotary::Fused => self.work.act(Compute::Rotary, &[heads, cos, sin], shape, target),
            Rotary::Pairs => {
                let (first, second) =
                    (self.work.slice(heads, 3, 0, half), self.work.slice(heads, 3, half, head));
                let mut times = |a, b| self.binary(binary::MULTIPLY, a, b, product);
                let (first_cos, second_sin) = (times(first, cos), times(second, sin));
                let (second_cos, first_sin) = (times(second, cos), times(first, sin));
                let first = self.binary(binary::SUBTRACT, first_cos, second_sin, target);
                let second = self.binary(binary::ADD, second_cos, first_sin, target);
                self.work.concat(&[first, second], 3)
            }
            Rotary::Exchanged | Rotary::Negated | Rotary::ByWidth => {
                let (first, second) =
                    (self.work.slice(heads, 3, 0, half), self.work.slice(heads, 3, half, head));
                let cos = self.work.concat(&[cos, cos], 3);
                let (exchanged, sin) = match form {
                    Rotary::Exchanged => (self.work.concat(&[second, first], 3), self.opposite(sin, sin)),
                    _ => (self.opposite(second, first), self.work.concat(&[sin, sin], 3)),
                };
                let straight = self.binary(binary::MULTIPLY, heads, cos, product);
                let crossed = self.binary(binary::MULTIPLY, exchanged, sin, product);
                self.binary(binary::ADD, straight, crossed, target)
            }
        };
        Ok(self.together(turned, layout))
    }

    /// The first operand negated, then the second, which is stored like it.
    fn opposite(&mut self, negated: ValueId, plain: ValueId) -> ValueId {
        let encoding = self.work.encoding_of(negated).turned();
        let (minus, plus) = (self.unary("ElementWiseNeg", negated, encoding), self.convert(plain, encoding));
        self.work.concat(&[minus, plus], 3)
    }

    fn attention(&mut self, found: &Attention) -> Result<(), LowerError> {
        let value = attention::write(self, found)?;
        self.deliver(found.output, value)
    }
}
