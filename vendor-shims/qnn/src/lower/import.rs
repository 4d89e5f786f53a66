//! Converts an entry's nodes to the processor's operations. A recognised attention is converted as
//! a whole.

use shardwright_shim_abi::{Error, WeightView};
use shardwright_shim_npu as npu;
use shardwright_shim_npu::attention::{Attention, recognise};
use shardwright_shim_npu::lowering::{Binary, Convolution, Reduction, RmsNorm, Rotation, Unary};
use shardwright_shim_npu::{Encoding as _, Lowering as _, Movements, ValueId};

use super::attention;
use super::draft::{Compute, Constant, Content, GraphDraft, Source, Work};
use super::encoding::TensorEncoding;
use super::parts::{AttentionParts, Split};
use super::variants::{Heads, Product, Rotary, Variants};
use super::weights::{MatrixForm, MatrixLayout, kernels, matrix, matrix_form, scalar, small};

/// Position of the head axis of `[rows, heads · d]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Layout {
    /// `[1, R, H, d]`, which moves no values.
    Rows,
    /// `[1, H, R, d]`.
    Heads,
}

impl Variants {
    fn norm_layout(&self, heads: u64) -> Layout {
        match self.heads {
            // One head precedes its rows without moving data.
            _ if heads == 1 => Layout::Heads,
            Heads::BeforeNorm => Layout::Heads,
            _ => Layout::Rows,
        }
    }

    fn rotary_layout(&self, heads: u64, width: u64) -> Layout {
        match (self.rotary.of(width), self.heads) {
            _ if heads == 1 => Layout::Heads,
            // The library's own operation requires rows inside heads.
            (Rotary::Fused, _) | (_, Heads::BeforeNorm | Heads::AfterNorm) => Layout::Heads,
            _ => Layout::Rows,
        }
    }
}

/// Builder of a draft for an entry that passed `check`.
pub(super) struct Importer<'s, 'w> {
    pub work: Work<'s, 'w>,
    pub variants: &'s Variants,
    /// Size in bytes of the largest mask that is too large to be repeated for its heads, although
    /// this was requested.
    pub broadcast_mask: Option<u64>,
    /// Parts of the attentions that are converted so far.
    pub attention_parts: AttentionParts,
}

/// Returns the draft of an entry that passed `check`. The second result is the size in bytes of the
/// largest mask that is too large to be repeated for its heads, although this was requested.
pub(super) fn import<'w>(
    source: &Source<'w>,
    variants: &Variants,
) -> Result<(GraphDraft<'w>, Option<u64>), Error> {
    let movements = Movements { idle_transposes: false, whole_slices: false };
    let work = Work::new(source, movements, |_, shape| shape.to_vec())?;
    let attention_parts = AttentionParts::default();
    let mut importer = Importer { work, variants, broadcast_mask: None, attention_parts };
    importer.import(&recognise(source))?;
    let broadcast_mask = importer.broadcast_mask;
    Ok((importer.work.finish()?, broadcast_mask))
}

impl<'s, 'w> npu::Lowering<'s, 'w> for Importer<'s, 'w> {
    type Encoding = TensorEncoding;
    type Content = Content<'w>;
    type Compute = Compute;

    /// The library's broadcasting is only known for operands of equal rank.
    const EQUAL_RANKS: bool = true;

    fn work(&mut self) -> &mut Work<'s, 'w> {
        &mut self.work
    }

    fn conversion(_: TensorEncoding, _: TensorEncoding) -> Compute {
        Compute::Convert
    }

    fn mat_mul_of(transpose_second: bool) -> Compute {
        Compute::MatMul { transpose_second }
    }

    fn small(weight: WeightView<'w>, beside: TensorEncoding, offset: f32) -> Result<Constant<'w>, String> {
        small(weight, beside, offset)
    }

    fn scalar(value: f32, beside: TensorEncoding) -> Constant<'w> {
        scalar(value, 1, beside)
    }

    fn delivered(&mut self, tensor: u32, value: ValueId) {
        if self.work.draft.is_computed(value) {
            self.work.draft.values[value.0].name = self.work.source.tensor(tensor).name.to_owned();
        }
    }

    /// Widens 8-bit values to 16 bits, which represent them exactly.
    fn value(&mut self, tensor: u32) -> Result<ValueId, Error> {
        let value = self.work.value(tensor)?;
        let encoding = self.work.encoding_of(value);
        Ok(self.convert(value, encoding.widened()))
    }

    /// Returns a centred second operand. The library rejects other 16-bit operands, and rounds
    /// 8-bit ones a second time.
    fn second(&mut self, tensor: u32) -> Result<ValueId, Error> {
        let value = self.work.value(tensor)?;
        match self.work.encoding_of(value) {
            TensorEncoding::Fixed8(affine) if (127..=129).contains(&affine.zero) => Ok(value),
            encoding => Ok(self.convert(value, encoding.centred())),
        }
    }

    fn unary(&mut self, op: Unary, x: ValueId, target: TensorEncoding) -> ValueId {
        let name = match op {
            Unary::Gelu => "Gelu",
            Unary::Tanh => "Tanh",
            Unary::Sigmoid => "Sigmoid",
            Unary::Exp => "ElementWiseExp",
            Unary::Negate => "ElementWiseNeg",
            Unary::Root => "ElementWiseSquareRoot",
            Unary::ReciprocalRoot => "ElementWiseRsqrt",
        };
        self.work.act_like(Compute::Unary(name), x, target)
    }

    fn binary(&mut self, op: Binary, a: ValueId, b: ValueId, target: TensorEncoding) -> ValueId {
        let name = match op {
            Binary::Add => "ElementWiseAdd",
            Binary::Subtract => "ElementWiseSubtract",
            Binary::Multiply => "ElementWiseMultiply",
            Binary::Divide => "ElementWiseDivide",
            Binary::Maximum => "ElementWiseMaximum",
            Binary::Minimum => "ElementWiseMinimum",
        };
        self.work.act_broadcast(Compute::Binary(name), a, b, target)
    }

    fn reduce(&mut self, op: Reduction, x: ValueId, target: TensorEncoding) -> ValueId {
        let name = match op {
            Reduction::Sum => "ReduceSum",
            Reduction::Mean => "ReduceMean",
            Reduction::Maximum => "ReduceMax",
        };
        self.work.act_reduced(Compute::Reduce(name), x, target)
    }

    fn softmax(&mut self, x: ValueId) -> ValueId {
        let encoding =
            if self.work.encoding_of(x).is_fixed() { TensorEncoding::FRACTION } else { TensorEncoding::Half };
        self.work.act_like(Compute::Softmax, x, encoding)
    }

    fn l2_normalize(&mut self, x: ValueId, target: TensorEncoding) -> ValueId {
        self.work.act_like(Compute::L2Norm, x, target)
    }

    /// Writes the product in blocks of outputs and rows if there are too many.
    fn product(&mut self, x: u32, weight: u32, out: u32) -> Result<ValueId, Error> {
        let target = self.work.encoding(out)?.computed();
        let value = self.value(x)?;
        let constant = self.work.weight(weight)?;
        let form = matrix_form(&constant, self.work.encoding_of(value))
            .map_err(|reason| self.work.refused(reason))?;
        let inner = self.work.source.tensor(x).last();
        let rows = self.work.draft.shape(value).iter().product::<u64>() / inner;
        let outputs = self.work.source.tensor(out).last();
        let layout = match (form, self.variants.product) {
            // With FullyConnected the library prepares blocks only for some shapes.
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
        let Split { widest, tallest, .. } = Split::of(rows, outputs, self.variants);
        let mut parts = Vec::new();
        let mut start = 0;
        while start < outputs {
            let end = outputs.min(start.saturating_add(widest));
            let block = matrix(constant, form, layout, start..end)
                .map_err(|reason| self.work.bad_weight(weight, reason))?;
            let block = self.work.constant(block);
            let mut blocks = Vec::new();
            let mut first = 0;
            while first < rows {
                let last = rows.min(first.saturating_add(tallest));
                let some = self.work.slice(value, axis - 1, first, last);
                let mut shape = flat.clone();
                (shape[axis - 1], shape[axis]) = (last - first, end - start);
                blocks.push(self.work.act(kind.clone(), &[some, block], shape, target));
                first = last;
            }
            parts.push(self.work.concat(&blocks, axis - 1));
            start = end;
        }
        let joined = self.work.concat(&parts, axis);
        Ok(self.work.reshape(joined, self.work.source.tensor(out).shape))
    }

    fn convolution(&mut self, convolution: Convolution) -> Result<ValueId, Error> {
        let Convolution { x, weight, out, kernel, stride, padding } = convolution;
        let target = self.work.encoding(out)?.computed();
        let value = self.value(x)?;
        let plane = [&[1], self.work.source.tensor(x).shape].concat();
        let value = self.work.reshape(value, &plane);
        let constant = self.work.weight(weight)?;
        let form = matrix_form(&constant, self.work.encoding_of(value))
            .map_err(|reason| self.work.refused(reason))?;
        let kernels =
            kernels(constant, form, kernel).map_err(|reason| self.work.bad_weight(weight, reason))?;
        let kernels = self.work.constant(kernels);
        let kind = Compute::Plane { stride: stride as u32, padding: padding as u32 };
        let shape = self.work.source.tensor(out).shape;
        let result = self.work.act(kind, &[value, kernels], [&[1], shape].concat(), target);
        Ok(self.work.reshape(result, shape))
    }

    fn rms_norm(&mut self, norm: RmsNorm, target: TensorEncoding) -> Result<ValueId, Error> {
        let RmsNorm { x, width, eps, weight } = norm;
        let gamma = match weight {
            Some((tensor, offset)) => self.constant(tensor, target, offset)?,
            None => self.work.constant(scalar(1.0, width, target)),
        };
        let value = self.value(x)?;
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
        // For f16 the library accepts rows and heads as separate axes, but computes most such
        // extents wrongly.
        let shape = match target {
            TensorEncoding::Half => vec![apart.iter().product::<u64>() / width, width],
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

    fn rotate(&mut self, rotation: Rotation, target: TensorEncoding) -> Result<ValueId, Error> {
        let Rotation { x, head, cos, sin, .. } = rotation;
        let [x, cos, sin] = [self.value(x)?, self.value(cos)?, self.value(sin)?];
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
            Rotary::Pairs => self.rotated_in_halves(heads, (cos, sin), product, target),
            Rotary::Exchanged | Rotary::Negated | Rotary::ByWidth => {
                let (first, second) =
                    (self.work.slice(heads, 3, 0, half), self.work.slice(heads, 3, half, head));
                let cos = self.work.concat(&[cos, cos], 3);
                let (exchanged, sin) = match form {
                    Rotary::Exchanged => (self.work.concat(&[second, first], 3), self.opposite(sin, sin)),
                    _ => (self.opposite(second, first), self.work.concat(&[sin, sin], 3)),
                };
                let straight = self.binary(Binary::Multiply, heads, cos, product);
                let crossed = self.binary(Binary::Multiply, exchanged, sin, product);
                self.binary(Binary::Add, straight, crossed, target)
            }
        };
        Ok(self.together(turned, layout))
    }

    fn attention(&mut self, found: &Attention) -> Result<ValueId, Error> {
        attention::write(self, found)
    }
}

impl Importer<'_, '_> {
    /// Splits `[R, heads · width]` into heads.
    pub fn apart(&mut self, value: ValueId, width: u64, layout: Layout) -> ValueId {
        match (self.work.draft.shape(value).len(), self.work.apart(value, width), layout) {
            (2, value, Layout::Heads) => self.work.transpose(value, &[0, 2, 1, 3]),
            (_, value, _) => value,
        }
    }

    /// Joins heads to `[R, heads · width]`, the reverse of [`Importer::apart`].
    pub fn together(&mut self, value: ValueId, layout: Layout) -> ValueId {
        let value = match layout {
            Layout::Rows => value,
            Layout::Heads => self.work.transpose(value, &[0, 2, 1, 3]),
        };
        let [_, rows, heads, width] = *self.work.draft.shape(value) else { return value };
        self.work.reshape(value, &[rows, heads * width])
    }

    /// Negates the first operand and appends the second one, which has the same encoding.
    fn opposite(&mut self, negated: ValueId, plain: ValueId) -> ValueId {
        let encoding = self.work.encoding_of(negated).turned();
        let (minus, plus) = (self.unary(Unary::Negate, negated, encoding), self.convert(plain, encoding));
        self.work.concat(&[minus, plus], 3)
    }
}
