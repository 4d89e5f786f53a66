//! An entry's nodes in the adapter's operations, node by node; attention as a whole where the lean
//! lowering recognises it.

use shardwright_neuron_adapter::{operand, operation};
use shardwright_shim_abi::{NodeView, raw};
use shardwright_shim_npu::attention::{Attention, Step, recognise, steps};
use shardwright_shim_npu::{LowerError, Movements, ValueId};

use super::draft::{Compute, Constant, Content, Draft, Source, Work};
use super::encoding::{Encoding, Family};
use super::weights::{encoded, matrix, matrix_form, number, small};
use super::{Lowering, Target, attention, gelu, island};
use crate::graph::Value;

/// Cosines and sines of half a head, and the layer that reads them.
type HalfTables = (ValueId, ValueId, Option<u32>);

/// Builds a draft of an entry that passed `check`.
pub(super) struct Importer<'s, 'w> {
    pub work: Work<'s, 'w>,
    pub target: &'s Target<'s>,
    pub lowering: Lowering,
    /// Rotary tables of whole heads, by the values they come of and the layer.
    tables: Vec<(HalfTables, (ValueId, ValueId))>,
}

/// The draft of an entry that passed `check`.
pub(super) fn import<'w>(
    source: &Source<'w>,
    target: &Target<'_>,
    lowering: Lowering,
) -> Result<Draft<'w>, LowerError> {
    // A layer's part of what all layers bind together is a slice also where the layer stands alone:
    // operations of layers add up.
    let movements = Movements { idle_transposes: lowering == Lowering::Plain, whole_slices: true };
    let work = Work::new(source, movements, |port, shape| port_shape(port.role(), shape, lowering))?;
    let mut importer = Importer { work, target, lowering, tables: Vec::new() };
    let attentions = match lowering {
        Lowering::Lean => recognise(source),
        Lowering::Plain => Vec::new(),
    };
    for (index, step) in steps(source, &attentions) {
        let node = importer.work.begin(index);
        match step {
            Step::Node => importer.node(node)?,
            Step::Attention(found) => importer.attention(found)?,
        }
    }
    importer.work.finish()
}

/// Step inputs are declared in the extents their readers want: memory is dense, so that costs
/// nothing, and a reshape for each layer would.
fn port_shape(role: u32, shape: &[u64], lowering: Lowering) -> Vec<u64> {
    match (role, shape, lowering) {
        (
            raw::SW_ROLE_MASK | raw::SW_ROLE_ROTARY_COS | raw::SW_ROLE_ROTARY_SIN,
            [rows, width],
            Lowering::Lean,
        ) => {
            vec![1, *rows, 1, *width]
        }
        _ => shape.to_vec(),
    }
}

impl<'w> Importer<'_, 'w> {
    /// Family of a value that is no constant.
    pub fn family_of(&self, value: ValueId) -> Family {
        self.work.encoding_of(value).family().unwrap_or(Family::Half)
    }

    /// One number that is broadcast.
    pub fn number(&mut self, value: f32, family: Family) -> ValueId {
        self.work.constant(number(value, family))
    }

    /// Binds a value as the result of the node at work, in the encoding the entry gives it.
    fn deliver(&mut self, tensor: u32, value: ValueId) -> Result<(), LowerError> {
        let encoding = self.work.encoding(tensor)?;
        let value = self.convert(value, encoding);
        self.work.bind(tensor, value);
        Ok(())
    }

    /// The same values in another encoding.
    pub fn convert(&mut self, value: ValueId, encoding: Encoding) -> ValueId {
        let from = self.work.encoding_of(value);
        if from == encoding {
            return value;
        }
        let kind = match (from.is_fixed(), encoding.is_fixed()) {
            (_, true) => operation::QUANTIZE,
            (true, false) => operation::DEQUANTIZE,
            (false, false) => operation::CAST,
        };
        self.work.act_like(Compute::Unary(kind), value, encoding)
    }

    pub fn unary(&mut self, kind: i32, x: ValueId, encoding: Encoding) -> ValueId {
        self.work.act_like(Compute::Unary(kind), x, encoding)
    }

    /// Value by value with broadcasting.
    pub fn binary(&mut self, kind: i32, a: ValueId, b: ValueId, encoding: Encoding) -> ValueId {
        let kind = match kind {
            operation::MAXIMUM => Compute::Binary(kind),
            _ => Compute::Fused(kind),
        };
        self.work.act_broadcast(kind, a, b, encoding)
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
                        let (a, b) = (self.work.value(first)?, self.work.value(second)?);
                        let product = self.mat_mul(a, b, transposed, target);
                        self.work.reshape(product, &shape)
                    }
                }
            }
            raw::SW_OP_RMS_NORM => self.rms_norm(node, first, target)?,
            raw::SW_OP_ROTATE => self.rotate(node, first, target)?,
            raw::SW_OP_SOFTMAX => {
                let x = self.work.value(first)?;
                let tensor = self.work.source.tensor(out);
                let is_product = |reader: &usize| self.work.source.nodes[*reader].op() == raw::SW_OP_MAT_MUL;
                let is_inside = !tensor.is_output && tensor.readers.iter().all(is_product);
                let softmax = self.softmax(x);
                if is_inside {
                    self.work.bind(out, softmax);
                    return Ok(());
                }
                softmax
            }
            raw::SW_OP_L2_NORMALIZE => {
                let x = self.work.value(first)?;
                island::l2_normalize(self, x, target)
            }
            raw::SW_OP_ADD | raw::SW_OP_SUB | raw::SW_OP_MUL => {
                let kind = match node.op() {
                    raw::SW_OP_ADD => operation::ADD,
                    raw::SW_OP_SUB => operation::SUB,
                    _ => operation::MUL,
                };
                let second = self.work.read(node.input(1))?;
                let family = target.family().unwrap_or(Family::Half);
                let [a, b] = [self.operand(first, family)?, self.operand(second, family)?];
                self.binary(kind, a, b, target)
            }
            raw::SW_OP_DIV => {
                let second = self.work.read(node.input(1))?;
                let family = island::family(target);
                let [a, b] = [self.operand(first, family)?, self.operand(second, family)?];
                island::divide(self, a, b, target)
            }
            raw::SW_OP_REDUCE_SUM | raw::SW_OP_REDUCE_MEAN | raw::SW_OP_REDUCE_MAX => {
                let kind = match node.op() {
                    raw::SW_OP_REDUCE_SUM => operation::REDUCE_SUM,
                    raw::SW_OP_REDUCE_MEAN => operation::MEAN,
                    _ => operation::REDUCE_MAX,
                };
                let x = self.work.value(first)?;
                island::reduce(self, kind, x, target)
            }
            _ => {
                let x = self.work.value(first)?;
                self.pointwise(node, x, target)?
            }
        };
        self.deliver(out, result)
    }

    /// An operand of an operation value by value.
    fn operand(&mut self, tensor: u32, family: Family) -> Result<ValueId, LowerError> {
        if let Some(weight) = self.work.source.weight(tensor) {
            let constant =
                small(weight, family, 0.0).map_err(|reason| self.work.bad_weight(tensor, reason))?;
            return Ok(self.work.constant(constant));
        }
        self.work.value(tensor)
    }

    /// An operation value by value with one operand, on a value of any shape.
    pub fn pointwise(
        &mut self,
        node: NodeView<'w>,
        x: ValueId,
        target: Encoding,
    ) -> Result<ValueId, LowerError> {
        let family = target.family().unwrap_or(Family::Half);
        let fraction = if target.is_fixed() { Encoding::FRACTION } else { target };
        Ok(match node.op() {
            raw::SW_OP_GELU => match self.lowering {
                Lowering::Lean => self.work.act_like(Compute::Gelu, x, target),
                Lowering::Plain => gelu::spelled_out(self, x, target),
            },
            raw::SW_OP_TANH => self.unary(operation::TANH, x, fraction),
            raw::SW_OP_EXP => island::unary(self, operation::EXP, x, target),
            raw::SW_OP_SQRT => island::unary(self, operation::SQRT, x, target),
            raw::SW_OP_RSQRT => island::unary(self, operation::RSQRT, x, target),
            raw::SW_OP_RECIPROCAL => {
                let one = self.number(1.0, island::family(target));
                island::divide(self, one, x, target)
            }
            raw::SW_OP_NEG => {
                let minus = self.number(-1.0, family);
                self.binary(operation::MUL, x, minus, target)
            }
            raw::SW_OP_SILU => {
                let gate = self.unary(operation::LOGISTIC, x, fraction);
                self.binary(operation::MUL, x, gate, target)
            }
            raw::SW_OP_SOFTCAP => {
                let cap = self.work.read(node.attribute_f32("cap"))?;
                let inner = self.scaled(x, cap.recip());
                let bounded = self.unary(operation::TANH, inner, fraction);
                let cap = self.number(cap, family);
                self.binary(operation::MUL, bounded, cap, target)
            }
            raw::SW_OP_MAX_SCALAR => {
                let value = self.work.read(node.attribute_f32("value"))?;
                island::maximum(self, x, value, target)
            }
            op @ (raw::SW_OP_MUL_SCALAR | raw::SW_OP_ADD_SCALAR) => {
                let value = self.work.read(node.attribute_f32("value"))?;
                let value = self.number(value, family);
                let kind = if op == raw::SW_OP_MUL_SCALAR { operation::MUL } else { operation::ADD };
                self.binary(kind, x, value, target)
            }
            other => return Err(self.work.refused(format!("operation {other} is not known here"))),
        })
    }

    /// `x · factor`, a factor above zero, in the encoding that keeps the stored values.
    pub fn scaled(&mut self, x: ValueId, factor: f32) -> ValueId {
        let encoding = match self.work.encoding_of(x) {
            Encoding::Fixed(scale) => Encoding::Fixed((scale * factor).max(f32::MIN_POSITIVE)),
            other => other,
        };
        let number = self.number(factor, self.family_of(x));
        self.binary(operation::MUL, x, number, encoding)
    }

    /// In floats: the tables of 16-bit integers are right to four steps of 1/32768, which is per
    /// cents of a weight among many keys.
    pub fn softmax(&mut self, x: ValueId) -> ValueId {
        let encoding = self.work.encoding_of(x);
        if !encoding.is_fixed() {
            return self.work.act_like(Compute::Softmax, x, encoding);
        }
        let x = self.convert(x, Encoding::Single);
        let weights = self.work.act_like(Compute::Softmax, x, Encoding::Single);
        self.convert(weights, Encoding::FRACTION)
    }

    pub fn mat_mul(&mut self, a: ValueId, b: ValueId, transpose_second: bool, encoding: Encoding) -> ValueId {
        let kind = Compute::BatchMatMul { transpose_second };
        self.work.mat_mul(kind, a, b, transpose_second, encoding)
    }

    /// x `[.., K]` by a constant `[N, K]`.
    fn product(&mut self, x: u32, weight: u32, out: u32) -> Result<ValueId, LowerError> {
        let target = self.work.encoding(out)?;
        let value = self.work.value(x)?;
        let constant = self.work.weight(weight)?;
        let form = matrix_form(&constant, self.work.encoding_of(value), self.target)
            .map_err(|reason| self.work.refused(reason))?;
        let matrix = matrix(constant, form).map_err(|reason| self.work.bad_weight(weight, reason))?;
        let matrix = self.work.constant(matrix);
        let product = self.fully_connected(value, matrix, target);
        Ok(self.work.reshape(product, self.work.source.tensor(out).shape))
    }

    fn fully_connected(&mut self, value: ValueId, matrix: ValueId, target: Encoding) -> ValueId {
        let inner = self.work.draft.shape(value).last().copied().unwrap_or(1);
        let rows = self.work.draft.shape(value).iter().product::<u64>() / inner;
        let outputs = self.work.draft.shape(matrix)[0];
        let value = self.work.reshape(value, &[rows, inner]);
        self.work.act(Compute::FullyConnected, &[value, matrix], vec![rows, outputs], target)
    }

    fn rms_norm(&mut self, node: NodeView<'w>, x: u32, target: Encoding) -> Result<ValueId, LowerError> {
        let width = self.work.read(node.attribute_usize("width"))? as u64;
        let eps = self.work.read(node.attribute_f32("eps"))?;
        let offset = self.work.read(node.attribute_f32("weight_offset"))?;
        let weight = match node.optional_input(1) {
            Some(tensor) => Some((tensor, self.work.weight(tensor)?)),
            None => None,
        };
        let value = self.work.value(x)?;
        let family = match self.lowering {
            Lowering::Lean => self.family_of(value),
            Lowering::Plain => island::family(self.work.encoding_of(value)),
        };
        let gamma = match weight {
            Some((tensor, weight)) => {
                Some(small(weight, family, offset).map_err(|reason| self.work.bad_weight(tensor, reason))?)
            }
            // Without a scale the extension's operation takes ones.
            None if self.lowering == Lowering::Lean => {
                let ones = vec![1.0; width as usize];
                Some(encoded(format!("ones.{width}.{family:?}").to_lowercase(), vec![width], &ones, family))
            }
            None => None,
        };
        let gamma = gamma.map(|gamma| self.work.constant(gamma));
        let whole = self.work.draft.shape(value).to_vec();
        let grouped = match self.work.source.tensor(x).last() == width {
            true => value,
            false if whole.len() == 2 => self.work.apart(value, width),
            false => self.work.grouped(value, width),
        };
        let normed = match (self.lowering, gamma) {
            (Lowering::Lean, Some(gamma)) => {
                let shape = self.work.draft.shape(grouped).to_vec();
                self.work.act(Compute::RmsNorm(eps.to_bits()), &[grouped, gamma], shape, target)
            }
            (_, gamma) => island::rms_norm(self, grouped, gamma, eps, target),
        };
        Ok(self.work.reshape(normed, &whole))
    }

    fn rotate(&mut self, node: NodeView<'w>, x: u32, target: Encoding) -> Result<ValueId, LowerError> {
        let head = self.work.read(node.attribute_usize("head_dim"))? as u64;
        let [cos, sin] = [self.work.read(node.input(1))?, self.work.read(node.input(2))?];
        let value = self.work.value(x)?;
        let whole = self.work.draft.shape(value).to_vec();
        let heads = self.work.apart(value, head);
        let turned = match self.lowering {
            Lowering::Lean => {
                let (cos, sin) = self.whole_tables(cos, sin, head, node.layer())?;
                let shape = self.work.draft.shape(heads).to_vec();
                let encoding = self.work.encoding_of(heads);
                // The other half of each head with the sign it gets: a product with ones, exact.
                let turn = turn(head, self.family_of(heads));
                let turn = self.work.constant(turn);
                let exchanged = self.fully_connected(heads, turn, encoding);
                let exchanged = self.work.reshape(exchanged, &shape);
                let straight = self.binary(operation::MUL, heads, cos, encoding);
                let crossed = self.binary(operation::MUL, exchanged, sin, encoding);
                self.binary(operation::ADD, straight, crossed, target)
            }
            Lowering::Plain => {
                let half = head / 2;
                let rows = whole[0];
                let [cos, sin] = [self.work.value(cos)?, self.work.value(sin)?];
                let table = [1, rows, 1, half];
                let [cos, sin] = [self.work.reshape(cos, &table), self.work.reshape(sin, &table)];
                let encoding = self.work.encoding_of(heads);
                let (first, second) =
                    (self.work.slice(heads, 3, 0, half), self.work.slice(heads, 3, half, head));
                let mut times = |a, b| self.binary(operation::MUL, a, b, encoding);
                let (first_cos, second_sin) = (times(first, cos), times(second, sin));
                let (second_cos, first_sin) = (times(second, cos), times(first, sin));
                let first = self.binary(operation::SUB, first_cos, second_sin, target);
                let second = self.binary(operation::ADD, second_cos, first_sin, target);
                self.work.concat(&[first, second], 3)
            }
        };
        Ok(self.work.reshape(turned, &whole))
    }

    /// Tables for both halves of a head, `[1, R, 1, head]`; once a layer.
    fn whole_tables(
        &mut self,
        cos: u32,
        sin: u32,
        head: u64,
        layer: Option<u32>,
    ) -> Result<(ValueId, ValueId), LowerError> {
        let (cos, sin) = (self.work.held(cos)?, self.work.held(sin)?);
        let key = (cos, sin, layer);
        if let Some((_, tables)) = self.tables.iter().find(|(held, _)| *held == key) {
            return Ok(*tables);
        }
        let rows = self.work.draft.shape(cos).iter().product::<u64>() / (head / 2);
        let mut whole = |half: ValueId| {
            let half = self.work.reshape(half, &[1, rows, 1, head / 2]);
            self.work.concat(&[half, half], 3)
        };
        let tables = (whole(cos), whole(sin));
        self.tables.push((key, tables));
        Ok(tables)
    }

    fn attention(&mut self, found: &Attention) -> Result<(), LowerError> {
        let value = attention::write(self, found)?;
        self.deliver(found.output, value)
    }
}

/// The matrix that exchanges the halves of a head and turns the sign of the first result.
fn turn<'w>(head: u64, family: Family) -> Constant<'w> {
    let (size, half) = (head as usize, head as usize / 2);
    let name = format!("turn.{head}.{family:?}").to_lowercase();
    let dims = vec![head, head];
    let at = |index: usize| match (index / size, index % size) {
        (row, column) if row < half && column == row + half => -1.0f32,
        (row, column) if row >= half && column == row - half => 1.0,
        _ => 0.0,
    };
    let values = (0..size * size).map(at);
    match family {
        Family::Fixed => {
            let value = Value::Owned(values.map(|value| value as i8 as u8).collect());
            let content = Content { kind: operand::TENSOR_QUANT8_SYMM, scale: 1.0, channels: None, value };
            Constant { name, dims, content }
        }
        family => encoded(name, dims, &values.collect::<Vec<f32>>(), family),
    }
}
