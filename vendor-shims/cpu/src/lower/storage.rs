//! Where each tensor lives: bound memory, a weight, or a planned place in the arena.

use std::collections::HashMap;

use shardwright_shim_abi::raw::{SW_DTYPE_F32, SW_DTYPE_I32, SW_ROLE_STATE};

use super::graph::{Graph, Source};
use super::memory::{Life, plan};
use super::recognise::Operation;
use super::rows::Rows;
use crate::error::CpuError;
use crate::program::{Operand, Place, Port, PortDirection};

/// A piece of memory that tensors share by aliasing.
#[derive(Clone, Copy, Debug)]
pub struct Root {
    /// Place, once known; an arena root has its offset after planning.
    pub place: Place,
    /// First value there.
    pub offset: u64,
    /// Values.
    pub elements: u64,
    first: usize,
    last: usize,
}

/// A tensor within a root.
#[derive(Clone, Copy, Debug)]
struct View {
    root: usize,
    offset: u64,
}

/// Storage of an entry.
pub struct Storage {
    /// What a run binds.
    pub ports: Vec<Port>,
    roots: Vec<Root>,
    views: Vec<Option<View>>,
    /// Inputs read across rows: port, and the root that holds its copy.
    pub copies: Vec<(usize, usize)>,
    /// Outputs that are not computed in place: tensor and port.
    pub finals: Vec<(u32, usize)>,
    /// Cosine and sine roots by table.
    pub tables: HashMap<TableKey, [usize; 2]>,
    /// Values of the arena.
    pub arena: u64,
}

/// What distinguishes rotary tables.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TableKey {
    /// The positions.
    pub positions: u32,
    /// Values per head.
    pub head_dim: usize,
    /// Bits of the base.
    pub theta: u32,
    /// Turning pairs.
    pub pairs: usize,
    /// Bits of the divisor.
    pub factor: u32,
    /// Whether only valid rows are computed.
    pub follows: bool,
}

impl TableKey {
    /// The table of a rotary node.
    pub fn of(graph: &Graph<'_>, node: usize, operation: &Operation, rows: &Rows) -> Option<TableKey> {
        let &Operation::Rope { head_dim, theta, pairs, factor } = operation else { return None };
        let node = graph.nodes[node];
        let (x, positions) = (node.optional_input(0)?, node.optional_input(1)?);
        Some(TableKey {
            positions,
            head_dim,
            theta: theta.to_bits(),
            pairs,
            factor: factor.to_bits(),
            follows: rows.follows[x as usize],
        })
    }
}

impl Storage {
    /// Chooses storage for all live tensors.
    pub fn choose(
        graph: &Graph<'_>,
        operations: &[Option<Operation>],
        rows: &Rows,
    ) -> Result<Storage, CpuError> {
        let invalid =
            |reason: String| CpuError::InvalidGraph { entry: graph.entry.name().to_owned(), reason };
        let mut storage = Storage {
            ports: Vec::new(),
            roots: Vec::new(),
            views: vec![None; graph.tensors.len()],
            copies: Vec::new(),
            finals: Vec::new(),
            tables: HashMap::new(),
            arena: 0,
        };
        for port in graph.entry.inputs() {
            let tensor = &graph.tensors[port.tensor() as usize];
            encoded(port.name(), "input", port.dtype(), tensor.dtype, tensor.quantised)?;
            let direction =
                if port.role() == SW_ROLE_STATE { PortDirection::StateRead } else { PortDirection::Input };
            let root = storage.root(Place::Bound(storage.ports.len() as u32), tensor.elements() as u64, 0);
            storage.views[port.tensor() as usize] = Some(View { root, offset: 0 });
            storage.port(port.name(), direction, port.role(), tensor);
        }
        for (index, operation) in operations.iter().enumerate() {
            if let Some(operation) = operation {
                storage.node(graph, index, operation)?;
            }
        }
        storage.check_updates(graph, operations)?;
        let end = graph.nodes.len();
        for port in graph.entry.outputs() {
            let index = port.tensor();
            let tensor = &graph.tensors[index as usize];
            encoded(port.name(), "output", port.dtype(), tensor.dtype, tensor.quantised)?;
            let Some(view) = storage.views[index as usize] else {
                if tensor.weight().is_some() {
                    return Err(invalid(format!("output `{}` is a weight", port.name())));
                }
                return Err(invalid(format!("output `{}` is not computed", port.name())));
            };
            if port.role() == SW_ROLE_STATE {
                let bound = match storage.roots[view.root].place {
                    Place::Bound(bound) => &storage.ports[bound as usize],
                    _ => return Err(invalid(format!("state `{}` is not an updated input", port.name()))),
                };
                if bound.direction != PortDirection::State || bound.name != port.name() || view.offset != 0 {
                    return Err(invalid(format!(
                        "state `{}` is not an update of the input of that name",
                        port.name()
                    )));
                }
                continue;
            }
            let number = storage.ports.len();
            storage.port(port.name(), PortDirection::Output, port.role(), tensor);
            let root = &mut storage.roots[view.root];
            root.last = end;
            let whole = view.offset == 0 && root.elements == tensor.elements() as u64;
            if root.place == Place::Arena && whole {
                root.place = Place::Bound(number as u32);
            } else {
                storage.finals.push((index, number));
            }
        }
        let outputs: Vec<&str> = graph
            .entry
            .outputs()
            .filter(|port| port.role() == SW_ROLE_STATE)
            .map(|port| port.name())
            .collect();
        for port in &storage.ports {
            if port.direction == PortDirection::State && !outputs.contains(&port.name.as_str()) {
                return Err(invalid(format!("state `{}` is updated but no output", port.name)));
            }
        }
        storage.copy_crossed_inputs(graph, rows);
        storage.add_tables(graph, operations, rows);
        storage.extend_lives(graph, operations);
        let arena: Vec<usize> =
            (0..storage.roots.len()).filter(|root| storage.roots[*root].place == Place::Arena).collect();
        let lives: Vec<Life> = arena
            .iter()
            .map(|&root| {
                let Root { elements, first, last, .. } = storage.roots[root];
                Life { elements, first, last }
            })
            .collect();
        let (offsets, total) = plan(&lives);
        for (root, offset) in arena.into_iter().zip(offsets) {
            storage.roots[root].offset = offset;
        }
        storage.arena = total;
        Ok(storage)
    }

    fn root(&mut self, place: Place, elements: u64, first: usize) -> usize {
        self.roots.push(Root { place, offset: 0, elements, first, last: first });
        self.roots.len() - 1
    }

    fn port(&mut self, name: &str, direction: PortDirection, role: u32, tensor: &super::Tensor<'_>) {
        self.ports.push(Port {
            name: name.to_owned(),
            direction,
            role,
            dtype: tensor.dtype,
            shape: tensor.shape.iter().map(|extent| *extent as u64).collect(),
        });
    }

    fn node(&mut self, graph: &Graph<'_>, index: usize, operation: &Operation) -> Result<(), CpuError> {
        let node = graph.nodes[index];
        let Some(&output) = node.outputs().first() else { return Ok(()) };
        let elements = graph.tensors[output as usize].elements() as u64;
        let alias = match operation {
            Operation::Reshape => Some(0),
            // Part of the outermost axis lies in one piece.
            Operation::Slice { axis: 0, start } => {
                let extent = graph.tensors[output as usize].shape[0].max(1) as u64;
                Some(*start as u64 * (elements / extent))
            }
            Operation::StateUpdate => Some(0),
            _ => None,
        };
        let source = node.optional_input(0).and_then(|input| self.views[input as usize]);
        let view = match (alias, source) {
            (Some(offset), Some(view)) => View { root: view.root, offset: view.offset + offset },
            _ => View { root: self.root(Place::Arena, elements, index), offset: 0 },
        };
        if matches!(operation, Operation::StateUpdate) {
            let invalid =
                |reason: String| CpuError::InvalidGraph { entry: graph.entry.name().to_owned(), reason };
            match self.roots[view.root].place {
                Place::Bound(port) if self.ports[port as usize].role == SW_ROLE_STATE && view.offset == 0 => {
                    self.ports[port as usize].direction = PortDirection::State;
                }
                _ => {
                    return Err(invalid(format!("node `{}` updates what is not a bound state", node.name())));
                }
            }
        }
        self.views[output as usize] = Some(view);
        Ok(())
    }

    /// A state that was updated in place must not be read in its old form.
    fn check_updates(&self, graph: &Graph<'_>, operations: &[Option<Operation>]) -> Result<(), CpuError> {
        let mut newest: HashMap<usize, u32> = HashMap::new();
        for (index, operation) in operations.iter().enumerate() {
            let Some(operation) = operation else { continue };
            let node = graph.nodes[index];
            for input in node.inputs().flatten() {
                let Some(view) = self.views[input as usize] else { continue };
                let Some(&current) = newest.get(&view.root) else { continue };
                if current != input && !self.derives(graph, input, current) {
                    return Err(CpuError::InvalidGraph {
                        entry: graph.entry.name().to_owned(),
                        reason: format!("node `{}` reads a state as it was before its update", node.name()),
                    });
                }
            }
            if let (Operation::StateUpdate, Some(&output)) = (operation, node.outputs().first())
                && let Some(view) = self.views[output as usize]
            {
                newest.insert(view.root, output);
            }
        }
        Ok(())
    }

    /// Whether `tensor` is a view of `of`.
    fn derives(&self, graph: &Graph<'_>, mut tensor: u32, of: u32) -> bool {
        while tensor != of {
            match graph.tensors[tensor as usize].source {
                // Views come from earlier nodes, so this ends.
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
            let crossed = (0..self.views.len()).any(|tensor| {
                rows.crossed[tensor] && self.views[tensor].is_some_and(|view| view.root == port)
            });
            if crossed {
                // The roots of inputs come first, in the order of their ports.
                let elements = self.roots[port].elements;
                let last = self.roots[port].last;
                let copy = self.root(Place::Arena, elements, 0);
                self.roots[copy].last = last;
                for view in self.views.iter_mut().flatten().filter(|view| view.root == port) {
                    view.root = copy;
                }
                self.copies.push((port, copy));
            }
        }
    }

    fn add_tables(&mut self, graph: &Graph<'_>, operations: &[Option<Operation>], rows: &Rows) {
        for (index, operation) in operations.iter().enumerate() {
            let Some(key) =
                operation.as_ref().and_then(|operation| TableKey::of(graph, index, operation, rows))
            else {
                continue;
            };
            let roots = match self.tables.get(&key) {
                Some(roots) => *roots,
                None => {
                    let rows = graph.tensors[key.positions as usize].elements();
                    let elements = rows as u64 * key.pairs as u64;
                    let roots = [(); 2].map(|()| self.root(Place::Arena, elements, index));
                    self.tables.insert(key, roots);
                    roots
                }
            };
            for root in roots {
                self.roots[root].last = index;
            }
        }
    }

    fn extend_lives(&mut self, graph: &Graph<'_>, operations: &[Option<Operation>]) {
        for (index, operation) in operations.iter().enumerate() {
            if operation.is_none() {
                continue;
            }
            for input in graph.nodes[index].inputs().flatten() {
                if let Some(view) = self.views[input as usize] {
                    let last = &mut self.roots[view.root].last;
                    *last = index.max(*last);
                }
            }
        }
    }

    /// Where a tensor lies; `None` for a weight.
    pub fn operand(&self, graph: &Graph<'_>, tensor: u32) -> Option<Operand> {
        let view = self.views[tensor as usize]?;
        let root = self.roots[view.root];
        Some(Operand {
            place: root.place,
            offset: root.offset + view.offset,
            elements: graph.tensors[tensor as usize].elements() as u64,
        })
    }

    /// The whole of a root.
    pub fn whole(&self, root: usize) -> Operand {
        let Root { place, offset, elements, .. } = self.roots[root];
        Operand { place, offset, elements }
    }

    /// The root of a tensor.
    pub fn root_of(&self, tensor: u32) -> Option<usize> {
        self.views[tensor as usize].map(|view| view.root)
    }
}

/// Bound memory is f32, or i32 for positions and slots.
fn encoded(name: &str, what: &'static str, port: u32, tensor: u32, quantised: bool) -> Result<(), CpuError> {
    if port == tensor && matches!(port, SW_DTYPE_F32 | SW_DTYPE_I32) && !quantised {
        return Ok(());
    }
    Err(CpuError::Unsupported {
        what,
        name: name.to_owned(),
        reason: format!("encoded as element type {port}, this shim binds f32 and i32"),
        layer: None,
    })
}
