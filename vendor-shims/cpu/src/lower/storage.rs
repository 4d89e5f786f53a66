//! Storage of each tensor: bound memory, a weight, or a planned place in the arena.
//!
//! The arena stores f32. An encoded bound tensor gets a place there when a node first reads its
//! values. States that are only updated and attended to never get one.

use std::collections::HashMap;

use shardwright_shim_abi::raw::SW_ROLE_STATE;
use shardwright_shim_abi::{Error, PortView};

use super::fuse::Fused;
use super::graph::{Graph, Source, Tensor};
use super::memory::{Life, plan};
use super::rows::Rows;
use crate::error::unsupported;
use crate::kernels::encoding::ElementEncoding;
use crate::ops::operation::{Home, Operation};
use crate::program::{Operand, OperandPlace, Port, PortDirection};

/// A piece of memory that several tensors may share by aliasing.
#[derive(Clone, Copy, Debug)]
pub struct Root {
    /// Place, once known. An arena root gets its offset by planning.
    pub place: OperandPlace,
    /// Index of the first value.
    pub offset: u64,
    /// Number of values.
    pub elements: u64,
    first: usize,
    last: usize,
}

/// Position of a tensor within a root.
#[derive(Clone, Copy, Debug)]
struct View {
    root: usize,
    offset: u64,
}

pub struct Storage {
    pub ports: Vec<Port>,
    roots: Vec<Root>,
    views: Vec<Option<View>>,
    /// For each tensor, the binding that stores it encoded.
    stored: Vec<Option<u32>>,
    /// Encoded tensors whose values are read: the first node that reads them, the tensor, and the
    /// root of its decoded values.
    pub decodes: Vec<(usize, u32, usize)>,
    /// Inputs that are read across rows: the port, and the root that contains its copy.
    pub copies: Vec<(usize, usize)>,
    /// Outputs that are not computed in place: the tensor and its port.
    pub finals: Vec<(u32, usize)>,
    /// Roots of cosines and sines for each table.
    pub tables: HashMap<TableKey, [usize; 2]>,
    /// Size of the arena in values.
    pub arena: u64,
}

/// Key of a rotary table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TableKey {
    /// Tensor with the positions.
    pub positions: u32,
    /// Values per head.
    pub head_dim: usize,
    /// Bits of the base frequency.
    pub theta: u32,
    /// Pairs that are rotated.
    pub pairs: usize,
    /// Bits of the frequencies' divisor.
    pub factor: u32,
    /// Whether only valid rows are computed.
    pub follows: bool,
}

impl TableKey {
    /// Returns the tables of a rotary node, one for each operand with positions.
    pub fn of(graph: &Graph<'_>, node: usize, operation: &Operation, rows: &Rows) -> Vec<TableKey> {
        let (head_dim, theta, pairs, factor, operands) = match *operation {
            Operation::Rope { head_dim, theta, pairs, factor } => (head_dim, theta, pairs, factor, 1..2),
            // Each half of a head rotates like a separate head.
            Operation::AxialRope { head_dim, theta } => (head_dim / 2, theta, head_dim / 4, 1.0, 1..3),
            _ => return Vec::new(),
        };
        let node = graph.nodes[node];
        let follows = node.optional_input(0).is_some_and(|x| rows.follows[x as usize]);
        let positions = operands.filter_map(|place| node.optional_input(place));
        let key = |positions| TableKey {
            positions,
            head_dim,
            theta: theta.to_bits(),
            pairs,
            factor: factor.to_bits(),
            follows,
        };
        positions.map(key).collect()
    }
}

impl Storage {
    /// Chooses storage for all live tensors.
    pub fn choose(
        graph: &Graph<'_>,
        operations: &[Option<Operation>],
        rows: &Rows,
        fused: &Fused,
    ) -> Result<Storage, Error> {
        let mut storage = Storage {
            ports: Vec::new(),
            roots: Vec::new(),
            views: vec![None; graph.tensors.len()],
            stored: vec![None; graph.tensors.len()],
            decodes: Vec::new(),
            copies: Vec::new(),
            finals: Vec::new(),
            tables: HashMap::new(),
            arena: 0,
        };
        storage.inputs(graph)?;
        for (index, operation) in operations.iter().enumerate() {
            if let Some(operation) = operation {
                storage.node(graph, index, operation)?;
            }
        }
        storage.check_updates(graph, operations)?;
        storage.outputs(graph)?;
        storage.copy_crossed_inputs(graph, rows);
        storage.add_tables(graph, operations, rows);
        storage.extend_lives(graph, operations, fused);
        storage.place();
        Ok(storage)
    }

    /// Adds the entry's inputs. An encoded one has no values until a node reads them.
    fn inputs(&mut self, graph: &Graph<'_>) -> Result<(), Error> {
        for port in graph.entry.inputs() {
            let tensor = &graph.tensors[port.tensor() as usize];
            let encoding = binding_encoding(&port, "input", tensor)?;
            let direction =
                if port.role() == SW_ROLE_STATE { PortDirection::StateRead } else { PortDirection::Input };
            let number = self.ports.len() as u32;
            if encoding.is_direct() {
                let root = self.root(OperandPlace::Bound(number), tensor.elements() as u64, 0);
                self.views[port.tensor() as usize] = Some(View { root, offset: 0 });
            } else {
                self.stored[port.tensor() as usize] = Some(number);
            }
            self.port(&port, direction, encoding, tensor);
        }
        Ok(())
    }

    /// Adds the entry's outputs. An output is computed in place if its tensor has its own root.
    fn outputs(&mut self, graph: &Graph<'_>) -> Result<(), Error> {
        let invalid = |reason: String| Error::invalid_graph(graph.entry.name(), reason);
        let end = graph.nodes.len();
        for port in graph.entry.outputs() {
            let index = port.tensor();
            let tensor = &graph.tensors[index as usize];
            let encoding = binding_encoding(&port, "output", tensor)?;
            if port.role() == SW_ROLE_STATE {
                let existing = match (self.stored[index as usize], self.views[index as usize]) {
                    (Some(number), _) => Some(number),
                    (None, Some(View { root, offset: 0 })) => match self.roots[root].place {
                        OperandPlace::Bound(number) => Some(number),
                        _ => None,
                    },
                    _ => None,
                };
                let existing = existing.map(|number| &self.ports[number as usize]);
                if existing.is_none_or(|existing| {
                    existing.direction != PortDirection::State || existing.name != port.name()
                }) {
                    return Err(invalid(format!(
                        "state `{}` is not an update of the input of that name",
                        port.name()
                    )));
                }
                continue;
            }
            self.want_values(graph, index, end);
            let Some(view) = self.views[index as usize] else {
                if tensor.weight().is_some() {
                    return Err(invalid(format!("output `{}` is a weight", port.name())));
                }
                return Err(invalid(format!("output `{}` is not computed", port.name())));
            };
            let number = self.ports.len();
            self.port(&port, PortDirection::Output, encoding, tensor);
            let root = &mut self.roots[view.root];
            root.last = end;
            let whole = view.offset == 0 && root.elements == tensor.elements() as u64;
            if root.place == OperandPlace::Arena && whole && encoding.is_direct() {
                root.place = OperandPlace::Bound(number as u32);
            } else {
                self.finals.push((index, number));
            }
        }
        let outputs: Vec<&str> = graph
            .entry
            .outputs()
            .filter(|port| port.role() == SW_ROLE_STATE)
            .map(|port| port.name())
            .collect();
        for port in &self.ports {
            if port.direction == PortDirection::State && !outputs.contains(&port.name.as_str()) {
                return Err(invalid(format!("state `{}` is updated but not an output", port.name)));
            }
        }
        Ok(())
    }

    /// Gives every root of the arena its offset.
    fn place(&mut self) {
        let arena: Vec<usize> =
            (0..self.roots.len()).filter(|root| self.roots[*root].place == OperandPlace::Arena).collect();
        let lives: Vec<Life> = arena
            .iter()
            .map(|&root| {
                let Root { elements, first, last, .. } = self.roots[root];
                Life { elements, first, last }
            })
            .collect();
        let (offsets, total) = plan(&lives);
        for (root, offset) in arena.into_iter().zip(offsets) {
            self.roots[root].offset = offset;
        }
        self.arena = total;
    }

    fn root(&mut self, place: OperandPlace, elements: u64, first: usize) -> usize {
        self.roots.push(Root { place, offset: 0, elements, first, last: first });
        self.roots.len() - 1
    }

    fn port(
        &mut self,
        port: &PortView<'_>,
        direction: PortDirection,
        encoding: ElementEncoding,
        tensor: &Tensor<'_>,
    ) {
        self.ports.push(Port {
            name: port.name().to_owned(),
            direction,
            role: port.role(),
            encoding,
            shape: tensor.shape.iter().map(|extent| *extent as u64).collect(),
        });
    }

    /// Ensures that the values of an encoded tensor are decoded when node `reader` runs.
    fn want_values(&mut self, graph: &Graph<'_>, tensor: u32, reader: usize) {
        if self.stored[tensor as usize].is_some() && self.views[tensor as usize].is_none() {
            let elements = graph.tensors[tensor as usize].elements() as u64;
            let root = self.root(OperandPlace::Arena, elements, reader);
            self.views[tensor as usize] = Some(View { root, offset: 0 });
            self.decodes.push((reader, tensor, root));
        }
    }

    fn node(&mut self, graph: &Graph<'_>, index: usize, operation: &Operation) -> Result<(), Error> {
        let node = graph.nodes[index];
        let Some(&output) = node.outputs().first() else { return Ok(()) };
        for (place, input) in node.inputs().enumerate() {
            if let Some(input) = input
                && !operation.reads_stored(place)
            {
                self.want_values(graph, input, index);
            }
        }
        let result = &graph.tensors[output as usize];
        let source = node.optional_input(0).and_then(|input| self.views[input as usize]);
        let view = match (operation.home(&result.shape), source) {
            (Home::State, _) => return self.state_update(graph, index, output),
            (Home::View { offset }, Some(view)) => View { root: view.root, offset: view.offset + offset },
            _ => View { root: self.root(OperandPlace::Arena, result.elements() as u64, index), offset: 0 },
        };
        self.views[output as usize] = Some(view);
        Ok(())
    }

    /// Adds a state update. Its result is the bound state, in any encoding.
    fn state_update(&mut self, graph: &Graph<'_>, index: usize, output: u32) -> Result<(), Error> {
        let node = graph.nodes[index];
        let state = node.optional_input(0).unwrap_or(output) as usize;
        let view = self.views[state].filter(|_| self.stored[state].is_none());
        let bound = self.stored[state].or_else(|| match self.roots[view?.root].place {
            OperandPlace::Bound(port) if view?.offset == 0 => Some(port),
            _ => None,
        });
        let Some(port) = bound.filter(|port| self.ports[*port as usize].role == SW_ROLE_STATE) else {
            let reason = format!("node `{}` updates a value that is not a bound state", node.name());
            return Err(Error::invalid_graph(graph.entry.name(), reason));
        };
        self.ports[port as usize].direction = PortDirection::State;
        self.stored[output as usize] = self.stored[state];
        self.views[output as usize] = view;
        Ok(())
    }

    /// Checks that no node reads the old contents of a state after its update in place.
    fn check_updates(&self, graph: &Graph<'_>, operations: &[Option<Operation>]) -> Result<(), Error> {
        // Identifies the memory of a tensor: its binding if it is encoded there, otherwise its
        // root.
        let home = |tensor: u32| match (self.stored[tensor as usize], self.views[tensor as usize]) {
            (Some(port), _) => Some((true, port as usize)),
            (None, view) => view.map(|view| (false, view.root)),
        };
        let mut newest: HashMap<(bool, usize), u32> = HashMap::new();
        for (index, operation) in operations.iter().enumerate() {
            let Some(operation) = operation else { continue };
            let node = graph.nodes[index];
            for input in node.inputs().flatten() {
                let Some(current) = home(input).and_then(|home| newest.get(&home).copied()) else { continue };
                if current != input && !self.derives(graph, input, current) {
                    let reason = format!("node `{}` reads a state as it was before its update", node.name());
                    return Err(Error::invalid_graph(graph.entry.name(), reason));
                }
            }
            if let (Operation::StateUpdate, Some(&output)) = (operation, node.outputs().first())
                && let Some(home) = home(output)
            {
                newest.insert(home, output);
            }
        }
        Ok(())
    }

    /// Checks whether `tensor` is a view of `of`.
    fn derives(&self, graph: &Graph<'_>, mut tensor: u32, of: u32) -> bool {
        while tensor != of {
            match graph.tensors[tensor as usize].source {
                // Views come from earlier nodes, so this loop ends.
                Source::Node(node) => match graph.nodes[node].optional_input(0) {
                    Some(input) => tensor = input,
                    None => return false,
                },
                _ => return false,
            }
        }
        true
    }

    fn copy_crossed_inputs(&mut self, graph: &Graph<'_>, rows: &Rows) {
        for port in 0..graph.entry.inputs().len() {
            let existing = self.roots.iter().position(|root| root.place == OperandPlace::Bound(port as u32));
            let Some(existing) = existing.filter(|_| self.ports[port].encoding.is_direct()) else { continue };
            let crossed = (0..self.views.len()).any(|tensor| {
                rows.crossed[tensor] && self.views[tensor].is_some_and(|view| view.root == existing)
            });
            if crossed {
                let elements = self.roots[existing].elements;
                let last = self.roots[existing].last;
                let copy = self.root(OperandPlace::Arena, elements, 0);
                self.roots[copy].last = last;
                for view in self.views.iter_mut().flatten().filter(|view| view.root == existing) {
                    view.root = copy;
                }
                self.copies.push((port, copy));
            }
        }
    }

    fn add_tables(&mut self, graph: &Graph<'_>, operations: &[Option<Operation>], rows: &Rows) {
        for (index, operation) in operations.iter().enumerate() {
            let Some(operation) = operation else { continue };
            for key in TableKey::of(graph, index, operation, rows) {
                let roots = match self.tables.get(&key) {
                    Some(roots) => *roots,
                    None => {
                        let rows = graph.tensors[key.positions as usize].elements();
                        let elements = rows as u64 * key.pairs as u64;
                        let roots = [(); 2].map(|()| self.root(OperandPlace::Arena, elements, index));
                        self.tables.insert(key, roots);
                        roots
                    }
                };
                for root in roots {
                    self.roots[root].last = index;
                }
            }
        }
    }

    fn extend_lives(&mut self, graph: &Graph<'_>, operations: &[Option<Operation>], fused: &Fused) {
        for (index, operation) in operations.iter().enumerate() {
            if operation.is_none() {
                continue;
            }
            // The fusing node reads the operands of a fused node, whose result is never stored.
            let reader = fused.taken[index].unwrap_or(index);
            if let (Some(_), Some(&output)) = (fused.taken[index], graph.nodes[index].outputs().first())
                && let Some(view) = self.views[output as usize]
            {
                self.roots[view.root].elements = 0;
            }
            for input in graph.nodes[index].inputs().flatten() {
                if let Some(view) = self.views[input as usize] {
                    let last = &mut self.roots[view.root].last;
                    *last = reader.max(*last);
                }
            }
        }
    }

    /// Returns the place of a tensor, or `None` for a weight.
    pub fn operand(&self, graph: &Graph<'_>, tensor: u32) -> Option<Operand> {
        let view = self.views[tensor as usize]?;
        let root = self.roots[view.root];
        Some(Operand {
            place: root.place,
            offset: root.offset + view.offset,
            elements: graph.tensors[tensor as usize].elements() as u64,
        })
    }

    /// Returns the encoded elements of a tensor that is stored in a binding.
    pub fn stored(&self, graph: &Graph<'_>, tensor: u32) -> Option<Operand> {
        let port = self.stored[tensor as usize]?;
        let elements = graph.tensors[tensor as usize].elements() as u64;
        Some(Operand { place: OperandPlace::Bound(port), offset: 0, elements })
    }

    /// Returns the whole of a root as an operand.
    pub fn whole(&self, root: usize) -> Operand {
        let Root { place, offset, elements, .. } = self.roots[root];
        Operand { place, offset, elements }
    }

    /// Returns the root of a tensor.
    pub fn root_of(&self, tensor: u32) -> Option<usize> {
        self.views[tensor as usize].map(|view| view.root)
    }
}

/// Returns the encoding of a binding, which must equal the encoding of its tensor.
fn binding_encoding(
    port: &PortView<'_>,
    what: &'static str,
    tensor: &Tensor<'_>,
) -> Result<ElementEncoding, Error> {
    let unsupported = |reason: String| unsupported(what, port.name(), reason);
    let Some(encoding) = tensor.encoding else {
        if tensor.weight().is_some() {
            // `recognise` rejects it with a better reason.
            return Ok(ElementEncoding::F32);
        }
        return Err(unsupported(format!(
            "element type {} without one valid scale cannot be bound",
            tensor.dtype
        )));
    };
    let (scale, zero_point) = (f64::from(encoding.scale), i64::from(encoding.zero_point));
    let reported = (port.dtype(), port.scale(), port.zero_point());
    if reported != (encoding.element.dtype(), scale, zero_point) {
        return Err(unsupported(format!(
            "encoded as element type {}, scale {}, zero point {}, but its tensor has {}, {scale}, {zero_point}",
            reported.0,
            reported.1,
            reported.2,
            encoding.element.dtype()
        )));
    }
    Ok(encoding)
}
