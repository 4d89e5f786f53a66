//! An entry that is being lowered to a draft: the current node, the values of the entry's tensors,
//! and the data movements, which every compiler has.

use shardwright_shim_abi::{Error, NodeView, PortView, raw};

use crate::draft::moves_only_ones;
use crate::error::{of_layer, unsupported};
use crate::{Constant, Encoding, GraphDraft, Kind, NodeRef, Source, ValueId, ValueKind};

/// Which data movements without an effect are still added to the draft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Movements {
    /// Whether to keep transposes that move only axes of extent 1. Otherwise they become reshapes.
    pub idle_transposes: bool,
    /// Whether to keep slices of a whole axis. Otherwise they are dropped.
    pub whole_slices: bool,
}

/// An entry that passed `check`, and the draft that it becomes.
pub struct Work<'s, 'w, E, C, K> {
    pub source: &'s Source<'w, E>,
    pub draft: GraphDraft<E, C, K>,
    movements: Movements,
    /// The value of each tensor of the entry.
    values: Vec<Option<ValueId>>,
    /// The current node. `acts` is the number of operations that it has become so far.
    node: usize,
    acts: usize,
}

impl<'s, 'w, E: Encoding, C, K> Work<'s, 'w, E, C, K> {
    /// Starts with an empty draft. `port_shape` returns the extents of each input port. The values
    /// and their order stay the same.
    ///
    /// # Errors
    ///
    /// `ErrorClass::InvalidArgument` for a port without an encoding.
    pub fn new(
        source: &'s Source<'w, E>,
        movements: Movements,
        port_shape: impl Fn(&PortView<'w>, &[u64]) -> Vec<u64>,
    ) -> Result<Self, Error> {
        let values = vec![None; source.tensors.len()];
        let mut work = Work { source, draft: GraphDraft::default(), movements, values, node: 0, acts: 0 };
        for port in source.entry.inputs() {
            let tensor = source.tensor(port.tensor());
            let encoding = work.encoding(port.tensor())?;
            let shape = port_shape(&port, tensor.shape);
            let value = work.draft.value(tensor.name, shape, ValueKind::Input(encoding));
            work.bind(port.tensor(), value);
            work.draft.inputs.push(value);
        }
        Ok(work)
    }

    /// Makes a node the current one.
    pub fn begin(&mut self, node: usize) -> NodeView<'w> {
        (self.node, self.acts) = (node, 0);
        self.source.nodes[node]
    }

    /// Binds the entry's output ports and returns the draft.
    ///
    /// # Errors
    ///
    /// `ErrorClass::InvalidArgument` for an output without a value.
    pub fn finish(mut self) -> Result<GraphDraft<E, C, K>, Error> {
        for port in self.source.entry.outputs() {
            let value = self.value(port.tensor())?;
            self.draft.outputs.push(value);
        }
        Ok(self.draft)
    }

    fn invalid(&self, reason: String) -> Error {
        Error::invalid_graph(self.source.entry.name(), reason)
    }

    /// Creates the error that the current node violates a condition of `check`.
    pub fn refused(&self, reason: String) -> Error {
        unsupported(self.source.nodes[self.node], &reason)
    }

    /// Creates the error that the bytes of a weight violate the promise of its type.
    pub fn bad_weight(&self, tensor: u32, reason: String) -> Error {
        let weight =
            self.source.weight(tensor).map_or(self.source.tensor(tensor).name, |weight| weight.name());
        let layer = self.source.nodes[self.node].layer();
        of_layer(Error::invalid_weight(weight, reason), layer).help("quantise the weight again")
    }

    /// Unwraps an attribute that was read from the current node.
    ///
    /// # Errors
    ///
    /// `ErrorClass::UnsupportedOp` if it is missing.
    pub fn read<T>(&self, attribute: shardwright_shim_abi::Result<T>) -> Result<T, Error> {
        attribute.map_err(|error| self.refused(error.message))
    }

    /// Returns the weight behind a tensor of the current node.
    ///
    /// # Errors
    ///
    /// `ErrorClass::UnsupportedOp` if the tensor is not a weight.
    pub fn weight(&self, tensor: u32) -> Result<shardwright_shim_abi::WeightView<'w>, Error> {
        let none = || self.refused(format!("`{}` is not a constant", self.source.tensor(tensor).name));
        self.source.weight(tensor).ok_or_else(none)
    }

    /// Adds an operation of the current node.
    pub fn act(
        &mut self,
        kind: impl Into<Kind<K>>,
        inputs: &[ValueId],
        shape: Vec<u64>,
        encoding: E,
    ) -> ValueId {
        self.acts += 1;
        let node = &self.source.nodes[self.node];
        let name = match self.acts {
            1 => node.name().to_owned(),
            number => format!("{}.{number}", node.name()),
        };
        let origin = NodeRef { node: self.node as u32, layer: node.layer() };
        self.draft.act(kind, inputs, (shape, encoding), &name, Some(origin))
    }

    /// Adds an operation on one value whose result has the same shape.
    pub fn act_like(&mut self, kind: impl Into<Kind<K>>, x: ValueId, encoding: E) -> ValueId {
        let shape = self.draft.shape(x).to_vec();
        self.act(kind, &[x], shape, encoding)
    }

    /// Adds an operation on one value that reduces the last axis to extent 1.
    pub fn act_reduced(&mut self, kind: impl Into<Kind<K>>, x: ValueId, encoding: E) -> ValueId {
        let mut shape = self.draft.shape(x).to_vec();
        shape.last_mut().into_iter().for_each(|last| *last = 1);
        self.act(kind, &[x], shape, encoding)
    }

    /// Adds an elementwise operation on two values that broadcast.
    pub fn act_broadcast(
        &mut self,
        kind: impl Into<Kind<K>>,
        a: ValueId,
        b: ValueId,
        encoding: E,
    ) -> ValueId {
        let (left, right) = (self.draft.shape(a), self.draft.shape(b));
        let rank = left.len().max(right.len());
        let at =
            |shape: &[u64], axis: usize| (axis + shape.len()).checked_sub(rank).map_or(1, |axis| shape[axis]);
        let shape = (0..rank).map(|axis| at(left, axis).max(at(right, axis))).collect();
        self.act(kind, &[a, b], shape, encoding)
    }

    /// Sets the value of a tensor of the entry.
    pub fn bind(&mut self, tensor: u32, value: ValueId) {
        self.values[tensor as usize] = Some(value);
    }

    /// Returns the value of a non-constant tensor of the entry, with the extents in which it is
    /// stored.
    ///
    /// # Errors
    ///
    /// `ErrorClass::InvalidArgument` if it does not have a value yet.
    pub fn stored(&self, tensor: u32) -> Result<ValueId, Error> {
        self.values[tensor as usize].ok_or_else(|| {
            self.invalid(format!("`{}` is read before it is written", self.source.tensor(tensor).name))
        })
    }

    /// Returns the value of a non-constant tensor, with the extents of the entry.
    ///
    /// # Errors
    ///
    /// The errors of [`Work::stored`].
    pub fn value(&mut self, tensor: u32) -> Result<ValueId, Error> {
        let value = self.stored(tensor)?;
        Ok(self.reshape(value, self.source.tensor(tensor).shape))
    }

    /// Returns the encoding of a value that is not a constant.
    pub fn encoding_of(&self, value: ValueId) -> E {
        self.draft.encoding(value).unwrap_or(E::HALF)
    }

    /// Returns the encoding of a tensor of the entry.
    ///
    /// # Errors
    ///
    /// `ErrorClass::InvalidArgument` if the encoding is not supported, which `check` refuses.
    pub fn encoding(&self, tensor: u32) -> Result<E, Error> {
        let tensor = self.source.tensor(tensor);
        tensor.encoding.clone().map_err(|reason| self.invalid(format!("`{}`: {reason}", tensor.name)))
    }

    /// Adds a constant.
    pub fn constant(&mut self, constant: Constant<C>) -> ValueId {
        self.draft.constant(constant)
    }

    /// Reshapes a value, if its extents differ.
    pub fn reshape(&mut self, value: ValueId, shape: &[u64]) -> ValueId {
        if self.draft.shape(value) == shape {
            return value;
        }
        let encoding = self.encoding_of(value);
        self.act(Kind::Reshape, &[value], shape.to_vec(), encoding)
    }

    /// Permutes the axes of a value.
    pub fn transpose(&mut self, value: ValueId, perm: &[u32]) -> ValueId {
        let from = self.draft.shape(value);
        let shape: Vec<u64> = perm.iter().map(|axis| from[*axis as usize]).collect();
        if !self.movements.idle_transposes && moves_only_ones(perm, from) {
            return self.reshape(value, &shape);
        }
        let encoding = self.encoding_of(value);
        self.act(Kind::Transpose(perm.to_vec()), &[value], shape, encoding)
    }

    /// Slices a range of one axis.
    pub fn slice(&mut self, value: ValueId, axis: usize, start: u64, end: u64) -> ValueId {
        let mut shape = self.draft.shape(value).to_vec();
        if !self.movements.whole_slices && (start, end) == (0, shape[axis]) {
            return value;
        }
        shape[axis] = end - start;
        let encoding = self.encoding_of(value);
        self.act(Kind::Slice { axis, start, end }, &[value], shape, encoding)
    }

    /// Concatenates values along an axis.
    pub fn concat(&mut self, values: &[ValueId], axis: usize) -> ValueId {
        if let [one] = values {
            return *one;
        }
        let mut shape = self.draft.shape(values[0]).to_vec();
        shape[axis] = values.iter().map(|value| self.draft.shape(*value)[axis]).sum();
        let encoding = self.encoding_of(values[0]);
        self.act(Kind::Concat(axis), values, shape, encoding)
    }

    /// Splits the heads of `[R, heads · width]` to `[1, R, heads, width]`. Returns values of
    /// another rank unchanged.
    pub fn apart(&mut self, value: ValueId, width: u64) -> ValueId {
        let [rows, all] = *self.draft.shape(value) else { return value };
        self.reshape(value, &[1, rows, all / width, width])
    }

    /// Splits the last axis into groups of `width` values on an axis of their own.
    pub fn grouped(&mut self, value: ValueId, width: u64) -> ValueId {
        let mut shape = self.draft.shape(value).to_vec();
        let last = shape.pop().unwrap_or(1);
        shape.extend([last / width, width]);
        self.reshape(value, &shape)
    }

    /// Adds a product over the two innermost axes, for compilers that require operands of equal
    /// rank. With `transpose_second`, the second operand is `[.., N, K]`.
    pub fn mat_mul(
        &mut self,
        kind: impl Into<Kind<K>>,
        a: ValueId,
        b: ValueId,
        transpose_second: bool,
        encoding: E,
    ) -> ValueId {
        let rank = self.draft.shape(a).len().max(self.draft.shape(b).len());
        let full = |shape: &[u64]| [vec![1; rank - shape.len()], shape.to_vec()].concat();
        let (left, right) = (full(self.draft.shape(a)), full(self.draft.shape(b)));
        let (a, b) = (self.reshape(a, &left), self.reshape(b, &right));
        let batch = rank.saturating_sub(2);
        let mut shape: Vec<u64> = left.iter().zip(&right).take(batch).map(|(a, b)| *a.max(b)).collect();
        shape.extend([left[batch], right[if transpose_second { batch } else { batch + 1 }]]);
        self.act(kind, &[a, b], shape, encoding)
    }

    /// Lowers a node that only moves values. Returns `None` for any other node.
    ///
    /// # Errors
    ///
    /// Fails for missing operands and attributes.
    pub fn movement(&mut self, node: NodeView<'w>) -> Result<Option<ValueId>, Error> {
        let first = self.read(node.input(0))?;
        Ok(Some(match node.op() {
            raw::SW_OP_RESHAPE => {
                let out = self.read(node.output())?;
                let x = self.value(first)?;
                self.reshape(x, self.source.tensor(out).shape)
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
            // The caller that binds the result assigns its encoding.
            raw::SW_OP_CONVERT => self.value(first)?,
            _ => return Ok(None),
        }))
    }
}
