//! An entry's nodes in the adapter's operations, node by node; attention as a whole where the lean lowering recognises it.

use shardwright_neuron_adapter::operation;
use shardwright_shim_abi::{NodeView, raw};

use super::attention::{self, Attention};
use super::draft::{Act, ActKind, Constant, Draft, ValueId, ValueKind, moves_only_ones};
use super::encoding::{Encoding, Family};
use super::error::LowerError;
use super::source::{Origin, Source};
use super::weights::{encoded, matrix, matrix_form, number, small};
use super::{Lowering, Target, gelu, island};

/// Cosines and sines of half a head, and the layer that reads them.
type HalfTables = (ValueId, ValueId, Option<u32>);

/// Builds a draft of an entry that passed `check`.
pub(super) struct Importer<'s, 'w> {
    pub source: &'s Source<'w>,
    pub target: &'s Target<'s>,
    pub lowering: Lowering,
    pub draft: Draft<'w>,
    /// Per tensor of the entry its value.
    map: Vec<Option<ValueId>>,
    /// The node at work.
    node: usize,
    steps: usize,
    /// Rotary tables of whole heads, by the values they come of and the layer.
    tables: Vec<(HalfTables, (ValueId, ValueId))>,
}

/// The draft of an entry that passed `check`.
pub(super) fn import<'w>(
    source: &Source<'w>,
    target: &Target<'_>,
    lowering: Lowering,
) -> Result<Draft<'w>, LowerError> {
    let mut importer = Importer {
        source,
        target,
        lowering,
        draft: Draft::default(),
        map: vec![None; source.tensors.len()],
        node: 0,
        steps: 0,
        tables: Vec::new(),
    };
    for port in source.entry.inputs() {
        let tensor = source.tensor(port.tensor());
        let encoding = importer.encoding(port.tensor())?;
        let shape = port_shape(port.role(), tensor.shape, lowering);
        let value = importer.draft.value(tensor.name, shape, ValueKind::Input(encoding));
        importer.map[port.tensor() as usize] = Some(value);
        importer.draft.inputs.push(value);
    }
    let attentions = match lowering {
        Lowering::Lean => attention::recognise(source),
        Lowering::Plain => Vec::new(),
    };
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
    importer.leave();
    Ok(importer.draft)
}

/// Step inputs are declared in the extents their readers want: memory is dense, so that costs nothing, and a reshape for each layer would.
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
    fn invalid(&self, reason: String) -> LowerError {
        LowerError::InvalidGraph { entry: self.source.entry.name().to_owned(), reason }
    }

    /// What `check` looked at turned out otherwise.
    pub fn refused(&self, reason: String) -> LowerError {
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
        let node = self.source.nodes.get(self.node);
        let name = node.map_or("", |node| node.name());
        let name = if self.steps == 1 { name.to_owned() } else { format!("{name}.{}", self.steps) };
        let output = self.draft.value(name.clone(), shape, ValueKind::Computed(encoding));
        self.draft.nodes.push(Act {
            kind,
            inputs: inputs.to_vec(),
            output,
            origin: Some(self.node as u32),
            layer: node.and_then(|node| node.layer()),
            name,
        });
        output
    }

    /// The value of a tensor of the entry that is no constant, in the extents it is held in.
    pub fn held(&self, tensor: u32) -> Result<ValueId, LowerError> {
        self.map[tensor as usize].ok_or_else(|| {
            self.invalid(format!("`{}` is read before it is there", self.source.tensor(tensor).name))
        })
    }

    /// The same in the extents of the entry.
    pub fn value(&mut self, tensor: u32) -> Result<ValueId, LowerError> {
        let value = self.held(tensor)?;
        Ok(self.reshape(value, self.source.tensor(tensor).shape))
    }

    /// Encoding of a value that is no constant.
    pub fn encoding_of(&self, value: ValueId) -> Encoding {
        self.draft.encoding(value).unwrap_or(Encoding::Half)
    }

    /// Family of a value that is no constant.
    pub fn family_of(&self, value: ValueId) -> Family {
        self.encoding_of(value).family().unwrap_or(Family::Half)
    }

    /// Encoding of a tensor of the entry that passed `check`.
    pub fn encoding(&self, tensor: u32) -> Result<Encoding, LowerError> {
        let tensor = self.source.tensor(tensor);
        tensor.encoding.clone().map_err(|reason| self.invalid(format!("`{}`: {reason}", tensor.name)))
    }

    pub fn constant(&mut self, constant: Constant<'w>) -> ValueId {
        self.draft.constant(constant)
    }

    /// One number that is broadcast.
    pub fn number(&mut self, value: f32, family: Family) -> ValueId {
        self.constant(number(value, family))
    }

    /// Binds a value as the result of the node at work, in the encoding the entry gives it.
    fn deliver(&mut self, tensor: u32, value: ValueId) -> Result<(), LowerError> {
        let encoding = self.encoding(tensor)?;
        let value = self.convert(value, encoding);
        self.map[tensor as usize] = Some(value);
        Ok(())
    }

    /// The same values in another encoding.
    pub fn convert(&mut self, value: ValueId, encoding: Encoding) -> ValueId {
        let from = self.encoding_of(value);
        if from == encoding {
            return value;
        }
        let shape = self.draft.shape(value).to_vec();
        let kind = match (from.is_fixed(), encoding.is_fixed()) {
            (_, true) => operation::QUANTIZE,
            (true, false) => operation::DEQUANTIZE,
            (false, false) => operation::CAST,
        };
        self.act(ActKind::Unary(kind), &[value], shape, encoding)
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
        if self.lowering == Lowering::Lean && moves_only_ones(perm, from) {
            return self.reshape(value, &shape);
        }
        let encoding = self.encoding_of(value);
        self.act(ActKind::Transpose(perm.to_vec()), &[value], shape, encoding)
    }

    /// Always an operation, also of a whole axis: a layer's part of what all layers bind together is that where the layer stands alone.
    fn slice(&mut self, value: ValueId, axis: usize, start: u64, end: u64) -> ValueId {
        let mut shape = self.draft.shape(value).to_vec();
        shape[axis] = end - start;
        let encoding = self.encoding_of(value);
        self.act(ActKind::Slice { axis, start, end }, &[value], shape, encoding)
    }

    fn concat(&mut self, values: &[ValueId], axis: usize) -> ValueId {
        if let [one] = values {
            return *one;
        }
        let mut shape = self.draft.shape(values[0]).to_vec();
        shape[axis] = values.iter().map(|value| self.draft.shape(*value)[axis]).sum();
        let encoding = self.encoding_of(values[0]);
        self.act(ActKind::Concat(axis), values, shape, encoding)
    }

    pub fn unary(&mut self, kind: i32, x: ValueId, encoding: Encoding) -> ValueId {
        let shape = self.draft.shape(x).to_vec();
        self.act(ActKind::Unary(kind), &[x], shape, encoding)
    }

    /// Value by value with broadcasting.
    pub fn binary(&mut self, kind: i32, a: ValueId, b: ValueId, encoding: Encoding) -> ValueId {
        let (left, right) = (self.draft.shape(a), self.draft.shape(b));
        let rank = left.len().max(right.len());
        let at =
            |shape: &[u64], axis: usize| (axis + shape.len()).checked_sub(rank).map_or(1, |axis| shape[axis]);
        let shape = (0..rank).map(|axis| at(left, axis).max(at(right, axis))).collect();
        let kind = match kind {
            operation::MAXIMUM => ActKind::Binary(kind),
            _ => ActKind::Fused(kind),
        };
        self.act(kind, &[a, b], shape, encoding)
    }

    /// `[R, heads · width]` with its heads apart: `[1, R, heads, width]`.
    pub fn apart(&mut self, value: ValueId, width: u64) -> ValueId {
        let [rows, all] = *self.draft.shape(value) else { return value };
        self.reshape(value, &[1, rows, all / width, width])
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
                        let (a, b) = (self.value(first)?, self.value(second)?);
                        let product = self.mat_mul(a, b, transposed, target);
                        self.reshape(product, &shape)
                    }
                }
            }
            raw::SW_OP_RMS_NORM => self.rms_norm(node, first, target)?,
            raw::SW_OP_ROTATE => self.rotate(node, first, target)?,
            raw::SW_OP_SOFTMAX => {
                let x = self.value(first)?;
                let tensor = self.source.tensor(out);
                let is_product = |reader: &usize| self.source.nodes[*reader].op() == raw::SW_OP_MAT_MUL;
                let is_inside = !tensor.is_output && tensor.readers.iter().all(is_product);
                let softmax = self.softmax(x);
                if is_inside {
                    self.map[out as usize] = Some(softmax);
                    return Ok(());
                }
                softmax
            }
            raw::SW_OP_L2_NORMALIZE => {
                let x = self.value(first)?;
                island::l2_normalize(self, x, target)
            }
            raw::SW_OP_ADD | raw::SW_OP_SUB | raw::SW_OP_MUL => {
                let kind = match node.op() {
                    raw::SW_OP_ADD => operation::ADD,
                    raw::SW_OP_SUB => operation::SUB,
                    _ => operation::MUL,
                };
                let second = self.read(node.input(1))?;
                let family = target.family().unwrap_or(Family::Half);
                let [a, b] = [self.operand(first, family)?, self.operand(second, family)?];
                self.binary(kind, a, b, target)
            }
            raw::SW_OP_DIV => {
                let second = self.read(node.input(1))?;
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
                let x = self.value(first)?;
                island::reduce(self, kind, x, target)
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
                let x = self.value(first)?;
                self.pointwise(node, x, target)?
            }
        };
        self.deliver(out, result)
    }

    /// An operand of an operation value by value.
    fn operand(&mut self, tensor: u32, family: Family) -> Result<ValueId, LowerError> {
        if let Origin::Constant(weight) = self.source.tensor(tensor).origin {
            let constant = small(weight, family, 0.0).map_err(|reason| self.bad_weight(tensor, reason))?;
            return Ok(self.constant(constant));
        }
        self.value(tensor)
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
                Lowering::Lean => {
                    let shape = self.draft.shape(x).to_vec();
                    self.act(ActKind::Gelu, &[x], shape, target)
                }
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
                let cap = self.read(node.attribute_f32("cap"))?;
                let inner = self.scaled(x, cap.recip());
                let bounded = self.unary(operation::TANH, inner, fraction);
                let cap = self.number(cap, family);
                self.binary(operation::MUL, bounded, cap, target)
            }
            raw::SW_OP_MAX_SCALAR => {
                let value = self.read(node.attribute_f32("value"))?;
                island::maximum(self, x, value, target)
            }
            op @ (raw::SW_OP_MUL_SCALAR | raw::SW_OP_ADD_SCALAR) => {
                let value = self.read(node.attribute_f32("value"))?;
                let value = self.number(value, family);
                let kind = if op == raw::SW_OP_MUL_SCALAR { operation::MUL } else { operation::ADD };
                self.binary(kind, x, value, target)
            }
            other => return Err(self.refused(format!("operation {other} is not known here"))),
        })
    }

    /// `x · factor`, a factor above zero, in the encoding that keeps the stored values.
    pub fn scaled(&mut self, x: ValueId, factor: f32) -> ValueId {
        let encoding = match self.encoding_of(x) {
            Encoding::Fixed(scale) => Encoding::Fixed((scale * factor).max(f32::MIN_POSITIVE)),
            other => other,
        };
        let number = self.number(factor, self.family_of(x));
        self.binary(operation::MUL, x, number, encoding)
    }

    /// In floats: the tables of 16-bit integers are right to four steps of 1/32768, which is per cents of a weight among many keys.
    pub fn softmax(&mut self, x: ValueId) -> ValueId {
        let encoding = self.encoding_of(x);
        let shape = self.draft.shape(x).to_vec();
        if !encoding.is_fixed() {
            return self.act(ActKind::Softmax, &[x], shape, encoding);
        }
        let x = self.convert(x, Encoding::Single);
        let weights = self.act(ActKind::Softmax, &[x], shape, Encoding::Single);
        self.convert(weights, Encoding::FRACTION)
    }

    pub fn mat_mul(&mut self, a: ValueId, b: ValueId, transpose_second: bool, encoding: Encoding) -> ValueId {
        let rank = self.draft.shape(a).len().max(self.draft.shape(b).len());
        let full = |shape: &[u64]| [vec![1; rank - shape.len()], shape.to_vec()].concat();
        let (left, right) = (full(self.draft.shape(a)), full(self.draft.shape(b)));
        let (a, b) = (self.reshape(a, &left), self.reshape(b, &right));
        let batch = rank.saturating_sub(2);
        let mut shape: Vec<u64> = left.iter().zip(&right).take(batch).map(|(a, b)| *a.max(b)).collect();
        shape.extend([left[batch], right[if transpose_second { batch } else { batch + 1 }]]);
        self.act(ActKind::BatchMatMul { transpose_second }, &[a, b], shape, encoding)
    }

    /// x `[.., K]` by a constant `[N, K]`.
    fn product(&mut self, x: u32, weight: u32, out: u32) -> Result<ValueId, LowerError> {
        let target = self.encoding(out)?;
        let value = self.value(x)?;
        let Some(constant) = self.source.weight(weight) else {
            return Err(self.refused(format!("`{}` is no constant", self.source.tensor(weight).name)));
        };
        let form = matrix_form(&constant, self.encoding_of(value), self.target)
            .map_err(|reason| self.refused(reason))?;
        let matrix = matrix(constant, form).map_err(|reason| self.bad_weight(weight, reason))?;
        let matrix = self.constant(matrix);
        let product = self.fully_connected(value, matrix, target);
        Ok(self.reshape(product, self.source.tensor(out).shape))
    }

    fn fully_connected(&mut self, value: ValueId, matrix: ValueId, target: Encoding) -> ValueId {
        let inner = self.draft.shape(value).last().copied().unwrap_or(1);
        let rows = self.draft.shape(value).iter().product::<u64>() / inner;
        let outputs = self.draft.shape(matrix)[0];
        let value = self.reshape(value, &[rows, inner]);
        self.act(ActKind::FullyConnected, &[value, matrix], vec![rows, outputs], target)
    }

    fn rms_norm(&mut self, node: NodeView<'w>, x: u32, target: Encoding) -> Result<ValueId, LowerError> {
        let width = self.read(node.attribute_usize("width"))? as u64;
        let eps = self.read(node.attribute_f32("eps"))?;
        let offset = self.read(node.attribute_f32("weight_offset"))?;
        let weight = match node.optional_input(1) {
            Some(tensor) => match self.source.weight(tensor) {
                Some(weight) => Some((tensor, weight)),
                None => {
                    return Err(self.refused(format!("`{}` is no constant", self.source.tensor(tensor).name)));
                }
            },
            None => None,
        };
        let value = self.value(x)?;
        let family = match self.lowering {
            Lowering::Lean => self.family_of(value),
            Lowering::Plain => island::family(self.encoding_of(value)),
        };
        let gamma = match weight {
            Some((tensor, weight)) => {
                Some(small(weight, family, offset).map_err(|reason| self.bad_weight(tensor, reason))?)
            }
            // Without a scale the extension's operation takes ones.
            None if self.lowering == Lowering::Lean => {
                let ones = vec![1.0; width as usize];
                Some(encoded(format!("ones.{width}.{family:?}").to_lowercase(), vec![width], &ones, family))
            }
            None => None,
        };
        let gamma = gamma.map(|gamma| self.constant(gamma));
        let whole = self.draft.shape(value).to_vec();
        let grouped = match self.source.tensor(x).last() == width {
            true => value,
            false if whole.len() == 2 => self.apart(value, width),
            false => {
                let mut shape = whole.clone();
                let last = shape.pop().unwrap_or(1);
                shape.extend([last / width, width]);
                self.reshape(value, &shape)
            }
        };
        let normed = match (self.lowering, gamma) {
            (Lowering::Lean, Some(gamma)) => {
                let shape = self.draft.shape(grouped).to_vec();
                self.act(ActKind::RmsNorm(eps.to_bits()), &[grouped, gamma], shape, target)
            }
            (_, gamma) => island::rms_norm(self, grouped, gamma, eps, target),
        };
        Ok(self.reshape(normed, &whole))
    }

    fn rotate(&mut self, node: NodeView<'w>, x: u32, target: Encoding) -> Result<ValueId, LowerError> {
        let head = self.read(node.attribute_usize("head_dim"))? as u64;
        let [cos, sin] = [self.read(node.input(1))?, self.read(node.input(2))?];
        let value = self.value(x)?;
        let whole = self.draft.shape(value).to_vec();
        let heads = self.apart(value, head);
        let turned = match self.lowering {
            Lowering::Lean => {
                let (cos, sin) = self.whole_tables(cos, sin, head, node.layer())?;
                let shape = self.draft.shape(heads).to_vec();
                let encoding = self.encoding_of(heads);
                // The other half of each head with the sign it gets: a product with ones, exact.
                let turn = turn(head, self.family_of(heads));
                let turn = self.constant(turn);
                let exchanged = self.fully_connected(heads, turn, encoding);
                let exchanged = self.reshape(exchanged, &shape);
                let straight = self.binary(operation::MUL, heads, cos, encoding);
                let crossed = self.binary(operation::MUL, exchanged, sin, encoding);
                self.binary(operation::ADD, straight, crossed, target)
            }
            Lowering::Plain => {
                let half = head / 2;
                let rows = whole[0];
                let [cos, sin] = [self.value(cos)?, self.value(sin)?];
                let table = [1, rows, 1, half];
                let [cos, sin] = [self.reshape(cos, &table), self.reshape(sin, &table)];
                let encoding = self.encoding_of(heads);
                let (first, second) = (self.slice(heads, 3, 0, half), self.slice(heads, 3, half, head));
                let mut times = |a, b| self.binary(operation::MUL, a, b, encoding);
                let (first_cos, second_sin) = (times(first, cos), times(second, sin));
                let (second_cos, first_sin) = (times(second, cos), times(first, sin));
                let first = self.binary(operation::SUB, first_cos, second_sin, target);
                let second = self.binary(operation::ADD, second_cos, first_sin, target);
                self.concat(&[first, second], 3)
            }
        };
        Ok(self.reshape(turned, &whole))
    }

    /// Tables for both halves of a head, `[1, R, 1, head]`; once a layer.
    fn whole_tables(
        &mut self,
        cos: u32,
        sin: u32,
        head: u64,
        layer: Option<u32>,
    ) -> Result<(ValueId, ValueId), LowerError> {
        let (cos, sin) = (self.held(cos)?, self.held(sin)?);
        let key = (cos, sin, layer);
        if let Some((_, tables)) = self.tables.iter().find(|(held, _)| *held == key) {
            return Ok(*tables);
        }
        let rows = self.draft.shape(cos).iter().product::<u64>() / (head / 2);
        let mut whole = |half: ValueId| {
            let half = self.reshape(half, &[1, rows, 1, head / 2]);
            self.concat(&[half, half], 3)
        };
        let tables = (whole(cos), whole(sin));
        self.tables.push((key, tables));
        Ok(tables)
    }

    fn attention(&mut self, found: &Attention) -> Result<(), LowerError> {
        let value = attention::write(self, found)?;
        self.deliver(found.output, value)
    }

    /// Gives every output port an operand of its own that an operation writes.
    fn leave(&mut self) {
        let mut left: Vec<ValueId> = Vec::new();
        for port in 0..self.draft.outputs.len() {
            let value = self.draft.outputs[port];
            let is_computed = matches!(self.draft.values[value.0].kind, ValueKind::Computed(_));
            if is_computed && !left.contains(&value) {
                left.push(value);
                continue;
            }
            let (shape, encoding) = (self.draft.shape(value).to_vec(), self.encoding_of(value));
            // All of it: a copy.
            let moved =
                self.act(ActKind::Slice { axis: 0, start: 0, end: shape[0] }, &[value], shape, encoding);
            left.push(moved);
            self.draft.outputs[port] = moved;
        }
    }
}

/// The matrix that exchanges the halves of a head and turns the sign of the first result.
fn turn<'w>(head: u64, family: Family) -> Constant<'w> {
    use shardwright_neuron_adapter::operand;

    use crate::graph::Value;
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
        Family::Fixed => Constant {
            name,
            dims,
            kind: operand::TENSOR_QUANT8_SYMM,
            scale: 1.0,
            channels: None,
            value: Value::Owned(values.map(|value| value as i8 as u8).collect()),
        },
        family => encoded(name, dims, &values.collect::<Vec<f32>>(), family),
    }
}
