//! An entry's nodes in the processor's operations, node by node; attention as a whole where it is recognised.

use shardwright_shim_abi::{NodeView, raw};

use super::attention::{self, Attention};
use super::draft::{ActKind, Constant, Draft, ValueId, ValueKind, moves_only_ones};
use super::encoding::{Affine, Encoding};
use super::error::LowerError;
use super::source::{Origin, Source};
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
    pub source: &'s Source<'w>,
    pub variants: &'s Variants,
    pub draft: Draft<'w>,
    /// Per tensor of the entry its value.
    map: Vec<Option<ValueId>>,
    /// The node at work.
    node: usize,
    steps: usize,
}

/// The draft of an entry that passed `check`.
pub(super) fn import<'w>(source: &Source<'w>, variants: &Variants) -> Result<Draft<'w>, LowerError> {
    let mut importer = Importer {
        source,
        variants,
        draft: Draft::default(),
        map: vec![None; source.tensors.len()],
        node: 0,
        steps: 0,
    };
    for port in source.entry.inputs() {
        let tensor = source.tensor(port.tensor());
        let encoding = importer.encoding(port.tensor())?;
        let value = importer.draft.value(tensor.name, tensor.shape.to_vec(), ValueKind::Input(encoding));
        importer.map[port.tensor() as usize] = Some(value);
        importer.draft.inputs.push(value);
    }
    let attentions = attention::recognise(source);
    let mut inside = vec![None; source.nodes.len()];
    for (index, found) in attentions.iter().enumerate() {
        found.nodes.iter().for_each(|node| inside[*node] = Some(index));
    }
    for (index, node) in source.nodes.iter().enumerate() {
        (importer.node, importer.steps) = (index, 0);
        match inside[index] {
            Some(found) if attentions[found].last == index => importer.attention(&attentions[found])?,
            Some(_) => {}
            None => importer.node(*node)?,
        }
    }
    for port in source.entry.outputs() {
        let value = importer.value(port.tensor())?;
        importer.draft.outputs.push(value);
    }
    Ok(importer.draft)
}

impl<'w> Importer<'_, 'w> {
    fn invalid(&self, reason: String) -> LowerError {
        LowerError::InvalidGraph { entry: self.source.entry.name().to_owned(), reason }
    }

    /// What `check` looked at turned out otherwise.
    fn refused(&self, reason: String) -> LowerError {
        let node = &self.source.nodes[self.node];
        LowerError::Unsupported { node: node.name().to_owned(), layer: node.layer(), reason }
    }

    fn bad_weight(&self, tensor: u32, reason: String) -> LowerError {
        let weight =
            self.source.weight(tensor).map_or(self.source.tensor(tensor).name, |weight| weight.name());
        let layer = self.source.nodes[self.node].layer();
        LowerError::InvalidEncoding { weight: weight.to_owned(), layer, reason }
    }

    fn read<T>(&self, attribute: shardwright_shim_abi::Result<T>) -> Result<T, LowerError> {
        attribute.map_err(|error| self.refused(error.message))
    }

    /// Adds an operation of the node at work.
    pub fn act(&mut self, kind: ActKind, inputs: &[ValueId], shape: Vec<u64>, encoding: Encoding) -> ValueId {
        self.steps += 1;
        let name = self.source.nodes[self.node].name();
        let name = if self.steps == 1 { name.to_owned() } else { format!("{name}.{}", self.steps) };
        self.draft.act(kind, inputs, (shape, encoding), &name, Some(self.node as u32))
    }

    /// The value of a tensor of the entry that is no constant.
    pub fn value(&self, tensor: u32) -> Result<ValueId, LowerError> {
        self.map[tensor as usize].ok_or_else(|| {
            self.invalid(format!("`{}` is read before it is there", self.source.tensor(tensor).name))
        })
    }

    /// The same with values of 8 bits in 16, which hold them exactly.
    pub fn wide(&mut self, tensor: u32) -> Result<ValueId, LowerError> {
        let value = self.value(tensor)?;
        let encoding = self.encoding_of(value);
        Ok(self.convert(value, encoding.widened()))
    }

    /// The second operand of a product, which lies around its middle: the library refuses others of 16 bits, and those of 8 it rounds a second
    /// time.
    pub fn second(&mut self, tensor: u32) -> Result<ValueId, LowerError> {
        let value = self.value(tensor)?;
        match self.encoding_of(value) {
            Encoding::Fixed8(affine) if (127..=129).contains(&affine.zero) => Ok(value),
            encoding => Ok(self.convert(value, encoding.centred())),
        }
    }

    /// Encoding of a value that is no constant.
    pub fn encoding_of(&self, value: ValueId) -> Encoding {
        self.draft.encoding(value).unwrap_or(Encoding::Half)
    }

    /// Encoding of a tensor of the entry that passed `check`.
    pub fn encoding(&self, tensor: u32) -> Result<Encoding, LowerError> {
        let tensor = self.source.tensor(tensor);
        tensor.encoding.clone().map_err(|reason| self.invalid(format!("`{}`: {reason}", tensor.name)))
    }

    fn constant(&mut self, constant: Constant<'w>) -> ValueId {
        self.draft.constant(constant)
    }

    /// One number that is broadcast, read beside `family`.
    fn number(&mut self, value: f32, family: Encoding) -> ValueId {
        self.constant(scalar(value, 1, family))
    }

    /// Binds a value as the result of the node at work, in the encoding the entry gives it.
    fn deliver(&mut self, tensor: u32, value: ValueId) -> Result<(), LowerError> {
        let encoding = self.encoding(tensor)?;
        let value = self.convert(value, encoding);
        if let ValueKind::Computed(_) = self.draft.values[value.0].kind {
            self.draft.values[value.0].name = self.source.tensor(tensor).name.to_owned();
        }
        self.map[tensor as usize] = Some(value);
        Ok(())
    }

    /// The same values in another encoding.
    pub fn convert(&mut self, value: ValueId, encoding: Encoding) -> ValueId {
        if self.draft.encoding(value) == Some(encoding) {
            return value;
        }
        let shape = self.draft.shape(value).to_vec();
        self.act(ActKind::Convert, &[value], shape, encoding)
    }

    pub fn reshape(&mut self, value: ValueId, shape: &[u64]) -> ValueId {
        if self.draft.shape(value) == shape {
            return value;
        }
        let encoding = self.encoding_of(value);
        self.act(ActKind::Reshape, &[value], shape.to_vec(), encoding)
    }

    pub fn transpose(&mut self, value: ValueId, perm: &[u32]) -> ValueId {
        let from = self.draft.shape(value);
        let shape: Vec<u64> = perm.iter().map(|axis| from[*axis as usize]).collect();
        if moves_only_ones(perm, from) {
            return self.reshape(value, &shape);
        }
        let encoding = self.encoding_of(value);
        self.act(ActKind::Transpose(perm.to_vec()), &[value], shape, encoding)
    }

    pub fn slice(&mut self, value: ValueId, axis: usize, start: u64, end: u64) -> ValueId {
        let mut shape = self.draft.shape(value).to_vec();
        if (start, end) == (0, shape[axis]) {
            return value;
        }
        shape[axis] = end - start;
        let encoding = self.encoding_of(value);
        self.act(ActKind::Slice { axis, start, end }, &[value], shape, encoding)
    }

    pub fn concat(&mut self, values: &[ValueId], axis: usize) -> ValueId {
        if let [one] = values {
            return *one;
        }
        let mut shape = self.draft.shape(values[0]).to_vec();
        shape[axis] = values.iter().map(|value| self.draft.shape(*value)[axis]).sum();
        let encoding = self.encoding_of(values[0]);
        self.act(ActKind::Concat(axis), values, shape, encoding)
    }

    fn unary(&mut self, op: &'static str, x: ValueId, encoding: Encoding) -> ValueId {
        let shape = self.draft.shape(x).to_vec();
        self.act(ActKind::Unary(op), &[x], shape, encoding)
    }

    pub fn binary(&mut self, op: &'static str, a: ValueId, b: ValueId, encoding: Encoding) -> ValueId {
        let (left, right) = (self.draft.shape(a), self.draft.shape(b));
        let rank = left.len().max(right.len());
        let at =
            |shape: &[u64], axis: usize| (axis + shape.len()).checked_sub(rank).map_or(1, |axis| shape[axis]);
        let shape = (0..rank).map(|axis| at(left, axis).max(at(right, axis))).collect();
        self.act(ActKind::Binary(op), &[a, b], shape, encoding)
    }

    /// `[R, heads · width]` with its heads apart.
    pub fn apart(&mut self, value: ValueId, width: u64, layout: Layout) -> ValueId {
        let [rows, all] = *self.draft.shape(value) else { return value };
        let value = self.reshape(value, &[1, rows, all / width, width]);
        match layout {
            Layout::Rows => value,
            Layout::Heads => self.transpose(value, &[0, 2, 1, 3]),
        }
    }

    /// The reverse of [`Importer::apart`].
    pub fn together(&mut self, value: ValueId, layout: Layout) -> ValueId {
        let value = match layout {
            Layout::Rows => value,
            Layout::Heads => self.transpose(value, &[0, 2, 1, 3]),
        };
        let [_, rows, heads, width] = *self.draft.shape(value) else { return value };
        self.reshape(value, &[rows, heads * width])
    }

    fn node(&mut self, node: NodeView<'w>) -> Result<(), LowerError> {
        let out = self.read(node.output())?;
        let first = self.read(node.input(0))?;
        let target = self.encoding(out)?;
        let shape = self.source.tensor(out).shape.to_vec();
        let result = match node.op() {
            raw::SW_OP_LINEAR => {
                let weight = self.read(node.input(1))?;
                self.product(first, weight, out)?
            }
            raw::SW_OP_MAT_MUL => {
                let second = self.read(node.input(1))?;
                let transposed = self.read(node.attribute_i64("transpose_b"))? == 1;
                match self.source.tensor(second).origin {
                    Origin::Constant(_) => self.product(first, second, out)?,
                    _ => {
                        let (a, b) = (self.wide(first)?, self.second(second)?);
                        let product = self.mat_mul(a, b, transposed, target.computed());
                        self.reshape(product, &shape)
                    }
                }
            }
            raw::SW_OP_RMS_NORM => self.rms_norm(node, first, target.computed())?,
            raw::SW_OP_ROTATE => self.rotate(node, first, target.computed())?,
            raw::SW_OP_SOFTMAX => {
                let x = self.wide(first)?;
                let tensor = self.source.tensor(out);
                let is_product = |reader: &usize| self.source.nodes[*reader].op() == raw::SW_OP_MAT_MUL;
                let is_inside = !tensor.is_output && tensor.readers.iter().all(is_product);
                let softmax = self.softmax(x);
                if is_inside {
                    self.map[out as usize] = Some(softmax);
                    return Ok(());
                }
                self.convert(softmax, target.computed())
            }
            raw::SW_OP_L2_NORMALIZE => {
                let x = self.wide(first)?;
                self.act(ActKind::L2Norm, &[x], shape, target.computed())
            }
            raw::SW_OP_ADD | raw::SW_OP_SUB | raw::SW_OP_MUL | raw::SW_OP_DIV => {
                let op = match node.op() {
                    raw::SW_OP_ADD => "ElementWiseAdd",
                    raw::SW_OP_SUB => "ElementWiseSubtract",
                    raw::SW_OP_MUL => "ElementWiseMultiply",
                    _ => "ElementWiseDivide",
                };
                let second = self.read(node.input(1))?;
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
                self.act(ActKind::Reduce(op), &[x], shape, target.computed())
            }
            raw::SW_OP_RESHAPE => {
                let x = self.value(first)?;
                self.reshape(x, &shape)
            }
            raw::SW_OP_TRANSPOSE => {
                let x = self.value(first)?;
                let perm = self.read(node.attribute_list("perm"))?;
                let perm: Vec<u32> = perm.iter().map(|axis| *axis as u32).collect();
                self.transpose(x, &perm)
            }
            raw::SW_OP_SLICE => {
                let [axis, start, end] =
                    ["axis", "start", "end"].map(|name| self.read(node.attribute_usize(name)));
                let x = self.value(first)?;
                self.slice(x, axis?, start? as u64, end? as u64)
            }
            raw::SW_OP_CONCAT => {
                let axis = self.read(node.attribute_usize("axis"))?;
                let values =
                    node.inputs().flatten().map(|input| self.value(input)).collect::<Result<Vec<_>, _>>()?;
                self.concat(&values, axis)
            }
            raw::SW_OP_CONVERT => self.value(first)?,
            _ => {
                let x = self.wide(first)?;
                self.pointwise(node, x, target.computed())?
            }
        };
        self.deliver(out, result)
    }

    /// An operand of an operation value by value whose result has `rank` axes.
    fn operand(&mut self, tensor: u32, family: Encoding, rank: usize) -> Result<ValueId, LowerError> {
        if let Origin::Constant(weight) = self.source.tensor(tensor).origin {
            let constant = small(weight, family, 0.0).map_err(|reason| self.bad_weight(tensor, reason))?;
            return Ok(self.constant(constant));
        }
        let value = self.wide(tensor)?;
        let shape = self.draft.shape(value);
        // The library's rule of broadcasting is only known for equal ranks.
        let mut full = vec![1; rank.saturating_sub(shape.len())];
        full.extend(shape);
        Ok(self.reshape(value, &full))
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
                self.binary("ElementWiseDivide", one, x, target)
            }
            raw::SW_OP_SILU => {
                let gate = self.unary("Sigmoid", x, fraction(Encoding::FRACTION));
                self.binary("ElementWiseMultiply", x, gate, target)
            }
            raw::SW_OP_SOFTCAP => {
                let cap = self.read(node.attribute_f32("cap"))?;
                let inner = self.scaled(x, cap.recip());
                let bounded = self.unary("Tanh", inner, fraction(Encoding::SIGNED_FRACTION));
                let cap = self.number(cap, target);
                self.binary("ElementWiseMultiply", bounded, cap, target)
            }
            op @ (raw::SW_OP_MUL_SCALAR | raw::SW_OP_ADD_SCALAR | raw::SW_OP_MAX_SCALAR) => {
                let value = self.read(node.attribute_f32("value"))?;
                let value = self.number(value, target);
                let name = match op {
                    raw::SW_OP_MUL_SCALAR => "ElementWiseMultiply",
                    raw::SW_OP_ADD_SCALAR => "ElementWiseAdd",
                    _ => "ElementWiseMaximum",
                };
                self.binary(name, x, value, target)
            }
            other => return Err(self.refused(format!("operation {other} is not known here"))),
        })
    }

    /// `x · factor`, a factor above zero, in the encoding that keeps the stored values.
    fn scaled(&mut self, x: ValueId, factor: f32) -> ValueId {
        let encoding = match self.encoding_of(x) {
            Encoding::Fixed16(affine) => {
                let scale = (affine.scale * factor).max(f32::MIN_POSITIVE);
                Encoding::Fixed16(Affine { scale, zero: affine.zero })
            }
            other => other,
        };
        let number = self.number(factor, encoding);
        self.binary("ElementWiseMultiply", x, number, encoding)
    }

    pub fn softmax(&mut self, x: ValueId) -> ValueId {
        let encoding = if self.encoding_of(x).is_fixed() { Encoding::FRACTION } else { Encoding::Half };
        let shape = self.draft.shape(x).to_vec();
        self.act(ActKind::Softmax, &[x], shape, encoding)
    }

    pub fn mat_mul(&mut self, a: ValueId, b: ValueId, transpose_second: bool, encoding: Encoding) -> ValueId {
        let rank = self.draft.shape(a).len().max(self.draft.shape(b).len());
        // The library broadcasts equal ranks.
        let full = |shape: &[u64]| [vec![1; rank - shape.len()], shape.to_vec()].concat();
        let (left, right) = (full(self.draft.shape(a)), full(self.draft.shape(b)));
        let (a, b) = (self.reshape(a, &left), self.reshape(b, &right));
        let batch = rank.saturating_sub(2);
        let mut shape: Vec<u64> = left.iter().zip(&right).take(batch).map(|(a, b)| *a.max(b)).collect();
        shape.extend([left[batch], right[if transpose_second { batch } else { batch + 1 }]]);
        self.act(ActKind::MatMul { transpose_second }, &[a, b], shape, encoding)
    }

    /// x `[.., K]` by a constant `[N, K]`, in blocks of outputs where there are too many.
    fn product(&mut self, x: u32, weight: u32, out: u32) -> Result<ValueId, LowerError> {
        let target = self.encoding(out)?.computed();
        let value = self.wide(x)?;
        let Some(constant) = self.source.weight(weight) else {
            return Err(self.refused(format!("`{}` is no constant", self.source.tensor(weight).name)));
        };
        let form = matrix_form(&constant, self.encoding_of(value)).map_err(|reason| self.refused(reason))?;
        let inner = self.source.tensor(x).last();
        let rows = self.draft.shape(value).iter().product::<u64>() / inner;
        let outputs = self.source.tensor(out).last();
        let layout = match (form, self.variants.product) {
            // As FullyConnected the library prepares blocks for some shapes only.
            (MatrixForm::Blocks, _) => MatrixLayout::Pixel,
            (MatrixForm::Half, _) | (_, Product::FullyConnected) => MatrixLayout::Stored,
            (_, Product::Convolution) => MatrixLayout::Pixel,
            (_, Product::MatMul) => MatrixLayout::Columns,
        };
        let (flat, kind) = match layout {
            MatrixLayout::Stored => (vec![rows, inner], ActKind::FullyConnected),
            MatrixLayout::Columns => (vec![rows, inner], ActKind::MatMul { transpose_second: false }),
            MatrixLayout::Pixel => (vec![1, 1, rows, inner], ActKind::Pixel),
        };
        let value = self.reshape(value, &flat);
        let axis = flat.len() - 1;
        let widest = self.variants.widest.max(1);
        let mut parts = Vec::new();
        let mut start = 0;
        while start < outputs {
            let end = outputs.min(start.saturating_add(widest));
            let block = matrix(constant, form, layout, start..end)
                .map_err(|reason| self.bad_weight(weight, reason))?;
            let block = self.constant(block);
            let mut shape = flat.clone();
            shape[axis] = end - start;
            parts.push(self.act(kind.clone(), &[value, block], shape, target));
            start = end;
        }
        let joined = self.concat(&parts, axis);
        Ok(self.reshape(joined, self.source.tensor(out).shape))
    }

    fn rms_norm(&mut self, node: NodeView<'w>, x: u32, target: Encoding) -> Result<ValueId, LowerError> {
        let width = self.read(node.attribute_usize("width"))? as u64;
        let eps = self.read(node.attribute_f32("eps"))?;
        let offset = self.read(node.attribute_f32("weight_offset"))?;
        let gamma = match node.optional_input(1) {
            Some(tensor) => {
                let Some(weight) = self.source.weight(tensor) else {
                    return Err(self.refused(format!("`{}` is no constant", self.source.tensor(tensor).name)));
                };
                small(weight, target, offset).map_err(|reason| self.bad_weight(tensor, reason))?
            }
            None => scalar(1.0, width, target),
        };
        let gamma = self.constant(gamma);
        let value = self.wide(x)?;
        let whole = self.draft.shape(value).to_vec();
        let kind = ActKind::RmsNorm(eps.to_bits());
        if self.source.tensor(x).last() == width {
            return Ok(self.act(kind, &[value, gamma], whole, target));
        }
        if whole.len() == 2 {
            let layout = self.variants.norm_layout(whole[1] / width);
            let heads = self.apart(value, width, layout);
            let shape = self.draft.shape(heads).to_vec();
            let normed = self.act(kind, &[heads, gamma], shape, target);
            return Ok(self.together(normed, layout));
        }
        let mut grouped = whole.clone();
        let last = grouped.pop().unwrap_or(1);
        grouped.extend([last / width, width]);
        let groups = self.reshape(value, &grouped);
        let normed = self.act(kind, &[groups, gamma], grouped, target);
        Ok(self.reshape(normed, &whole))
    }

    fn rotate(&mut self, node: NodeView<'w>, x: u32, target: Encoding) -> Result<ValueId, LowerError> {
        let head = self.read(node.attribute_usize("head_dim"))? as u64;
        let [cos, sin] = [self.read(node.input(1))?, self.read(node.input(2))?];
        let [x, cos, sin] = [self.wide(x)?, self.wide(cos)?, self.wide(sin)?];
        let count = self.draft.shape(x).get(1).map_or(1, |all| all / head);
        let layout = self.variants.rotary_layout(count, head);
        let form = self.variants.rotary.of(head);
        let heads = self.apart(x, head, layout);
        let shape = self.draft.shape(heads).to_vec();
        let rows = self.draft.shape(cos)[0];
        let half = head / 2;
        let table = match (form, layout) {
            (Rotary::Fused, _) => vec![1, rows, half],
            (_, Layout::Rows) => vec![1, rows, 1, half],
            (_, Layout::Heads) => vec![1, 1, rows, half],
        };
        let [cos, sin] = [self.reshape(cos, &table), self.reshape(sin, &table)];
        let product = self.encoding_of(heads).turned();
        let turned = match form {
            Rotary::Fused => self.act(ActKind::Rotary, &[heads, cos, sin], shape, target),
            Rotary::Pairs => {
                let (first, second) = (self.slice(heads, 3, 0, half), self.slice(heads, 3, half, head));
                let mut times = |a, b| self.binary("ElementWiseMultiply", a, b, product);
                let (first_cos, second_sin) = (times(first, cos), times(second, sin));
                let (second_cos, first_sin) = (times(second, cos), times(first, sin));
                let first = self.binary("ElementWiseSubtract", first_cos, second_sin, target);
                let second = self.binary("ElementWiseAdd", second_cos, first_sin, target);
                self.concat(&[first, second], 3)
            }
            Rotary::Exchanged | Rotary::Negated | Rotary::ByWidth => {
                let (first, second) = (self.slice(heads, 3, 0, half), self.slice(heads, 3, half, head));
                let cos = self.concat(&[cos, cos], 3);
                let (exchanged, sin) = match form {
                    Rotary::Exchanged => (self.concat(&[second, first], 3), self.opposite(sin, sin)),
                    _ => (self.opposite(second, first), self.concat(&[sin, sin], 3)),
                };
                let straight = self.binary("ElementWiseMultiply", heads, cos, product);
                let crossed = self.binary("ElementWiseMultiply", exchanged, sin, product);
                self.binary("ElementWiseAdd", straight, crossed, target)
            }
        };
        Ok(self.together(turned, layout))
    }

    /// The first operand negated, then the second, which is stored like it.
    fn opposite(&mut self, negated: ValueId, plain: ValueId) -> ValueId {
        let encoding = self.encoding_of(negated).turned();
        let (minus, plus) = (self.unary("ElementWiseNeg", negated, encoding), self.convert(plain, encoding));
        self.concat(&[minus, plus], 3)
    }

    fn attention(&mut self, found: &Attention) -> Result<(), LowerError> {
        let value = attention::write(self, found)?;
        self.deliver(found.output, value)
    }
}
