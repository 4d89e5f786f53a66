//! Lowers an entry's nodes to the adapter's operations. The lean lowering lowers a recognised
//! attention as a whole.

use shardwright_neuron_adapter::{operand, operation};
use shardwright_shim_abi::{Error, WeightView, raw};
use shardwright_shim_npu as npu;
use shardwright_shim_npu::attention::{Attention, recognise};
use shardwright_shim_npu::lowering::{Binary, Convolution, Reduction, RmsNorm, Rotation, Unary};
use shardwright_shim_npu::{Encoding as _, Lowering as _, Movements, ValueId};

use super::draft::{Compute, Constant, Content, GraphDraft, Source, Work};
use super::encoding::{Family, OperandEncoding};
use super::weights::{encoded, matrix, matrix_form, number, small};
use super::{Lowering, Target, attention, gelu, island};
use crate::graph::Value;

/// Cosines and sines of half a head, and the layer that reads them.
type HalfTables = (ValueId, ValueId, Option<u32>);

/// Builder of the draft of an entry that passed `check`.
pub(super) struct Importer<'s, 'w> {
    pub work: Work<'s, 'w>,
    pub target: &'s Target<'s>,
    pub lowering: Lowering,
    /// Rotary tables for whole heads, by the values from which they are built and the layer.
    tables: Vec<(HalfTables, (ValueId, ValueId))>,
}

/// Builds the draft of an entry that passed `check`.
pub(super) fn import<'w>(
    source: &Source<'w>,
    target: &Target<'_>,
    lowering: Lowering,
) -> Result<GraphDraft<'w>, Error> {
    // A layer's part of an input that all layers share stays a slice even if the layer is compiled
    // alone, so that the operations of layers add up.
    let movements = Movements { idle_transposes: lowering == Lowering::Plain, whole_slices: true };
    let work = Work::new(source, movements, |port, shape| port_shape(port.role(), shape, lowering))?;
    let mut importer = Importer { work, target, lowering, tables: Vec::new() };
    let attentions = match lowering {
        Lowering::Lean => recognise(source),
        Lowering::Plain => Vec::new(),
    };
    importer.import(&attentions)?;
    importer.work.finish()
}

/// Returns the shape in which a port is declared. Step inputs are declared in the shape that their
/// readers need. This has no cost because memory is dense, whereas a reshape in each layer would.
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

impl<'s, 'w> npu::Lowering<'s, 'w> for Importer<'s, 'w> {
    type Encoding = OperandEncoding;
    type Content = Content<'w>;
    type Compute = Compute;

    const EQUAL_RANKS: bool = false;

    fn work(&mut self) -> &mut Work<'s, 'w> {
        &mut self.work
    }

    fn conversion(from: OperandEncoding, to: OperandEncoding) -> Compute {
        Compute::Unary(match (from.is_fixed(), to.is_fixed()) {
            (_, true) => operation::QUANTIZE,
            (true, false) => operation::DEQUANTIZE,
            (false, false) => operation::CAST,
        })
    }

    fn mat_mul_of(transpose_second: bool) -> Compute {
        Compute::BatchMatMul { transpose_second }
    }

    fn small(weight: WeightView<'w>, beside: OperandEncoding, offset: f32) -> Result<Constant<'w>, String> {
        small(weight, family(beside), offset)
    }

    fn scalar(value: f32, beside: OperandEncoding) -> Constant<'w> {
        number(value, family(beside))
    }

    fn beside(op: Binary, target: OperandEncoding) -> OperandEncoding {
        match op {
            Binary::Divide | Binary::Maximum | Binary::Minimum => island::inside(target),
            Binary::Add | Binary::Subtract | Binary::Multiply => target,
        }
    }

    fn unary(&mut self, op: Unary, x: ValueId, target: OperandEncoding) -> ValueId {
        let fraction = if target.is_fixed() { OperandEncoding::FRACTION } else { target };
        let (kind, encoding) = match op {
            Unary::Gelu if self.lowering == Lowering::Plain => return gelu::spelled_out(self, x, target),
            Unary::Gelu => (Compute::Gelu, target),
            Unary::Tanh => (Compute::Unary(operation::TANH), fraction),
            Unary::Sigmoid => (Compute::Unary(operation::LOGISTIC), fraction),
            Unary::Exp => return island::unary(self, operation::EXP, x, target),
            Unary::Root => return island::unary(self, operation::SQRT, x, target),
            Unary::ReciprocalRoot => return island::unary(self, operation::RSQRT, x, target),
            Unary::Negate => {
                let minus = self.number(-1.0, target);
                return self.binary(Binary::Multiply, x, minus, target);
            }
        };
        self.work.act_like(kind, x, encoding)
    }

    fn binary(&mut self, op: Binary, a: ValueId, b: ValueId, target: OperandEncoding) -> ValueId {
        let kind = match op {
            Binary::Add => operation::ADD,
            Binary::Subtract => operation::SUB,
            Binary::Multiply => operation::MUL,
            Binary::Divide => return island::binary(self, Compute::Fused(operation::DIV), a, b, target),
            Binary::Maximum => {
                return island::binary(self, Compute::Binary(operation::MAXIMUM), a, b, target);
            }
            Binary::Minimum => {
                return island::binary(self, Compute::Binary(operation::MINIMUM), a, b, target);
            }
        };
        self.work.act_broadcast(Compute::Fused(kind), a, b, target)
    }

    fn reduce(&mut self, op: Reduction, x: ValueId, target: OperandEncoding) -> ValueId {
        let kind = match op {
            Reduction::Sum => operation::REDUCE_SUM,
            Reduction::Mean => operation::MEAN,
            Reduction::Maximum => operation::REDUCE_MAX,
        };
        island::reduce(self, kind, x, target)
    }

    /// Adds a softmax, computed in floats for integer values. The tables for 16-bit integers are
    /// accurate to four steps of 1/32768. Among many keys, this is several per cent of a weight.
    fn softmax(&mut self, x: ValueId) -> ValueId {
        let encoding = self.work.encoding_of(x);
        if !encoding.is_fixed() {
            return self.work.act_like(Compute::Softmax, x, encoding);
        }
        let x = self.convert(x, OperandEncoding::Single);
        let weights = self.work.act_like(Compute::Softmax, x, OperandEncoding::Single);
        self.convert(weights, OperandEncoding::FRACTION)
    }

    fn l2_normalize(&mut self, x: ValueId, target: OperandEncoding) -> ValueId {
        island::l2_normalize(self, x, target)
    }

    fn product(&mut self, x: u32, weight: u32, out: u32) -> Result<ValueId, Error> {
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

    fn convolution(&mut self, _: Convolution) -> Result<ValueId, Error> {
        Err(self.work.refused("a convolution is not supported as a whole".to_owned()))
    }

    fn rms_norm(&mut self, norm: RmsNorm, target: OperandEncoding) -> Result<ValueId, Error> {
        let RmsNorm { x, width, eps, weight } = norm;
        let value = self.value(x)?;
        let encoding = self.work.encoding_of(value);
        let beside = match self.lowering {
            Lowering::Lean => encoding,
            Lowering::Plain => island::inside(encoding),
        };
        let gamma = match weight {
            Some((tensor, offset)) => Some(self.constant(tensor, beside, offset)?),
            // The extension's operation requires a scale, so a missing one is replaced by ones.
            None if self.lowering == Lowering::Lean => {
                let (ones, family) = (vec![1.0; width as usize], family(beside));
                let name = format!("ones.{width}.{family:?}").to_lowercase();
                Some(self.work.constant(encoded(name, vec![width], &ones, family)))
            }
            None => None,
        };
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

    fn rotate(&mut self, rotation: Rotation, target: OperandEncoding) -> Result<ValueId, Error> {
        let Rotation { x, head, cos, sin, layer } = rotation;
        let value = self.value(x)?;
        let whole = self.work.draft.shape(value).to_vec();
        let heads = self.work.apart(value, head);
        let turned = match self.lowering {
            Lowering::Lean => {
                let (cos, sin) = self.whole_tables(cos, sin, head, layer)?;
                let shape = self.work.draft.shape(heads).to_vec();
                let encoding = self.work.encoding_of(heads);
                // Exchanges the halves of each head with the right signs, by an exact product with
                // ones and minus ones.
                let turn = turn(head, family(encoding));
                let turn = self.work.constant(turn);
                let exchanged = self.fully_connected(heads, turn, encoding);
                let exchanged = self.work.reshape(exchanged, &shape);
                let straight = self.binary(Binary::Multiply, heads, cos, encoding);
                let crossed = self.binary(Binary::Multiply, exchanged, sin, encoding);
                self.binary(Binary::Add, straight, crossed, target)
            }
            Lowering::Plain => {
                let table = [1, whole[0], 1, head / 2];
                let [cos, sin] = [self.value(cos)?, self.value(sin)?];
                let [cos, sin] = [self.work.reshape(cos, &table), self.work.reshape(sin, &table)];
                let encoding = self.work.encoding_of(heads);
                self.rotated_in_halves(heads, (cos, sin), encoding, target)
            }
        };
        Ok(self.work.reshape(turned, &whole))
    }

    fn attention(&mut self, found: &Attention) -> Result<ValueId, Error> {
        attention::write(self, found)
    }
}

impl Importer<'_, '_> {
    fn fully_connected(&mut self, value: ValueId, matrix: ValueId, target: OperandEncoding) -> ValueId {
        let inner = self.work.draft.shape(value).last().copied().unwrap_or(1);
        let rows = self.work.draft.shape(value).iter().product::<u64>() / inner;
        let outputs = self.work.draft.shape(matrix)[0];
        let value = self.work.reshape(value, &[rows, inner]);
        self.work.act(Compute::FullyConnected, &[value, matrix], vec![rows, outputs], target)
    }

    /// Returns the tables for both halves of a head, `[1, R, 1, head]`, built once per layer.
    fn whole_tables(
        &mut self,
        cos: u32,
        sin: u32,
        head: u64,
        layer: Option<u32>,
    ) -> Result<(ValueId, ValueId), Error> {
        let (cos, sin) = (self.work.stored(cos)?, self.work.stored(sin)?);
        let key = (cos, sin, layer);
        if let Some((_, tables)) = self.tables.iter().find(|(existing, _)| *existing == key) {
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
}

/// Returns the family of constants for use with values of an encoding.
fn family(encoding: OperandEncoding) -> Family {
    encoding.family().unwrap_or(Family::Half)
}

/// Returns the matrix that exchanges the halves of a head and negates the first half of the result.
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
