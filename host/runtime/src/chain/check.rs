//! Checks that shards form a chain, as far as each shard can be checked without the data flow
//! between shards.

use std::collections::HashSet;

use shardwright_graph::{Asset, ComponentKind, EntryPoint, Role, StateId};
use shardwright_shims::{Binding, Direction, EntryInterface, LoadedShard, Port};
use shardwright_vocabulary::{EntryKind, Table};

use crate::description::{ChainDescription, ShardDescription};
use crate::error::ChainError;
use crate::step::{POSITION_LIMIT, natural_shape, natural_storage};
use crate::storage::{bytes_of, elements_of, is_storable, storage_of};

/// Most shards of a chain. Even a model of 500 layers with a cut at each layer has far fewer.
pub const SHARDS_MAX: u64 = 1024;
/// Most states of a chain: a key and a value for each of 2048 layers.
pub const STATES_MAX: u64 = 4096;
/// Most gathered tables of a chain. Known models have two.
pub const ASSETS_MAX: u64 = 64;
/// Most entry points of a shard.
pub const ENTRIES_MAX: u64 = 64;
/// Most ports of an entry: states, step inputs, boundaries and taps.
pub const PORTS_MAX: u64 = 16_384;

pub(super) fn check(
    description: &ChainDescription,
    executors: &[LoadedShard],
    assets: &[Asset],
) -> Result<(), ChainError> {
    caps(description)?;
    if executors.len() != description.shards.len() {
        return Err(ChainError::ExecutorCount {
            shards: description.shards.len(),
            executors: executors.len(),
        });
    }
    coverage(description)?;
    check_assets(&description.assets, assets)?;
    let mut names = HashSet::new();
    for (shard, executor) in description.shards.iter().zip(executors) {
        if !names.insert(shard.name.as_str()) {
            return Err(ChainError::ShardRepeated { shard: shard.name.clone() });
        }
        if *executor.place() != shard.place {
            return Err(ChainError::PlaceMismatch {
                shard: shard.name.clone(),
                described: Box::new(shard.place.clone()),
                actual: Box::new(executor.place().clone()),
            });
        }
        if let Some(cap) = shard.logits_softcap
            && !(shard.segments.has(ComponentKind::Head) && cap.is_finite() && cap > 0.0)
        {
            return Err(ChainError::Softcap { shard: shard.name.clone(), cap });
        }
        let mut entries = HashSet::new();
        for entry in &shard.entries {
            if !entries.insert((entry.point.kind, entry.point.rows)) {
                return Err(ChainError::EntryRepeated {
                    shard: shard.name.clone(),
                    entry: entry.point.name().to_string(),
                });
            }
            EntryCheck { description, shard, entry, name: entry.point.name().to_string() }.check(executor)?;
        }
    }
    Ok(())
}

fn caps(description: &ChainDescription) -> Result<(), ChainError> {
    let cap = |what, count: usize, max| {
        if count as u64 > max {
            return Err(ChainError::TooMany { what, count: count as u64, max });
        }
        Ok(())
    };
    cap("shards", description.shards.len(), SHARDS_MAX)?;
    cap("states", description.structure.states.len(), STATES_MAX)?;
    cap("assets", description.assets.len(), ASSETS_MAX)?;
    for shard in &description.shards {
        cap("entry points in a shard", shard.entries.len(), ENTRIES_MAX)?;
        for entry in &shard.entries {
            cap("ports in an entry", entry.ports.len(), PORTS_MAX)?;
            if entry.point.context > POSITION_LIMIT {
                return Err(ChainError::TooMany {
                    what: "positions in a context",
                    count: entry.point.context,
                    max: POSITION_LIMIT,
                });
            }
        }
    }
    Ok(())
}

/// Checks that every component occurs once, in the order of a step, and every layer once, in order.
fn coverage(description: &ChainDescription) -> Result<(), ChainError> {
    let mut last: Option<ComponentKind> = None;
    let mut next_layer = 0;
    for shard in &description.shards {
        if shard.segments.0.is_empty() {
            return Err(ChainError::SegmentsMissing { shard: shard.name.clone() });
        }
        for (place, segment) in shard.segments.iter().enumerate() {
            let component = segment.component;
            // Layers continue from shard to shard. Within a shard they are one segment.
            let repeated = last == Some(component) && (place > 0 || !component.is_layered());
            if repeated || !description.structure.components.contains(&component) {
                return Err(ChainError::ComponentUnexpected { shard: shard.name.clone(), component });
            }
            if let Some(before) = last.filter(|&before| before > component) {
                return Err(ChainError::ComponentOrder { shard: shard.name.clone(), component, before });
            }
            last = Some(component);
            let (start, end) = segment.layers;
            let fits = segment.is_consistent()
                && (!component.is_layered() || (start == next_layer && end <= description.structure.layers));
            if !fits {
                return Err(ChainError::Layers {
                    shard: shard.name.clone(),
                    start,
                    end,
                    expected: next_layer,
                    layers: description.structure.layers,
                });
            }
            next_layer = next_layer.max(end);
        }
    }
    for &component in &description.structure.components {
        if !description.shards.iter().any(|shard| shard.segments.has(component)) {
            return Err(ChainError::ComponentMissing(component));
        }
    }
    if next_layer != description.structure.layers {
        return Err(ChainError::LayersMissing { from: next_layer, layers: description.structure.layers });
    }
    Ok(())
}

fn check_assets(described: &[Table<()>], actual: &[Asset]) -> Result<(), ChainError> {
    for (index, described) in described.iter().enumerate() {
        let fault = |what, expected: String, actual: String| {
            Err(ChainError::Asset { asset: described.name.clone(), what, expected, actual })
        };
        let Some(asset) = actual.get(index) else {
            return fault("the table", "one".to_owned(), "none".to_owned());
        };
        let found = asset.to_table().described();
        if found.name != described.name {
            return fault("its name", described.name.clone(), found.name);
        }
        if (found.entries, found.width) != (described.entries, described.width) || described.width == 0 {
            let expected = format!("[{}, {}]", described.entries, described.width);
            return fault("its shape", expected, format!("{:?}", asset.table.shape));
        }
        if (found.dtype, found.quantisation) != (described.dtype, described.quantisation) {
            return fault("its format", described.format(), found.format());
        }
        let Some([values, scales]) = described.sizes() else {
            return fault("its format", "one that a table can have".to_owned(), described.format());
        };
        if asset.table.data.available() as u64 != values {
            let actual = asset.table.data.available();
            return fault("its size", format!("{values} bytes"), format!("{actual} bytes"));
        }
        let actual = asset.table.quantisation.as_ref().map_or(0, |existing| existing.scales.available());
        if actual as u64 != scales {
            return fault("the size of its scales", format!("{scales} bytes"), format!("{actual} bytes"));
        }
    }
    Ok(())
}

struct EntryCheck<'a> {
    description: &'a ChainDescription,
    shard: &'a ShardDescription,
    entry: &'a EntryInterface,
    name: String,
}

impl EntryCheck<'_> {
    fn check(&self, executor: &LoadedShard) -> Result<(), ChainError> {
        self.point()?;
        self.states()?;
        self.ports()?;
        self.bindings(executor)
    }

    fn point(&self) -> Result<(), ChainError> {
        let fault =
            |what, expected: String, actual: u64| self.point_fault(what, expected, actual.to_string());
        let point = self.entry.point;
        if self.entry.name != self.name {
            return self.point_fault("its name", self.name.clone(), self.entry.name.clone());
        }
        if self.entry.segments != self.shard.segments {
            let (expected, found) = (self.shard.segments.to_string(), self.entry.segments.to_string());
            return self.point_fault("its part", expected, found);
        }
        if point.rows == 0 || point.rows > point.context {
            return fault("its row count", format!("1 to {}", point.context), point.rows);
        }
        if point.kind == EntryKind::Encode && point.context != point.rows {
            return fault("its context", point.rows.to_string(), point.context);
        }
        // Rings are sized for the largest entry of the whole plan, on any shard.
        let largest = self.points().map(|other| other.rows).max().unwrap_or(point.rows);
        if point.kind != EntryKind::Encode && point.largest_rows < largest {
            return fault("the largest row count", format!("at least {largest}"), point.largest_rows);
        }
        for other in self.points().filter(|_| point.kind != EntryKind::Encode) {
            if other.context != point.context {
                return fault("its context", other.context.to_string(), point.context);
            }
            if other.largest_rows != point.largest_rows {
                return fault("the largest row count", other.largest_rows.to_string(), point.largest_rows);
            }
        }
        let generative = self.description.structure.is_generative();
        if generative == (point.kind == EntryKind::Encode) {
            let expected = if generative { "prefill or decode" } else { "encode" };
            return self.point_fault("its kind", expected.to_owned(), point.kind.to_string());
        }
        Ok(())
    }

    fn point_fault(&self, what: &'static str, expected: String, actual: String) -> Result<(), ChainError> {
        Err(ChainError::EntryPoint {
            shard: self.shard.name.clone(),
            entry: self.name.clone(),
            what,
            expected,
            actual,
        })
    }

    /// Returns the entry points of every shard that share states.
    fn points(&self) -> impl Iterator<Item = EntryPoint> + '_ {
        let entries = self.description.shards.iter().flat_map(|shard| &shard.entries);
        entries.map(|entry| entry.point).filter(|point| point.kind != EntryKind::Encode)
    }

    fn states(&self) -> Result<(), ChainError> {
        let fault = |state: StateId, reason| {
            Err(ChainError::StateUndeclared {
                shard: self.shard.name.clone(),
                entry: self.name.clone(),
                state: state.0,
                reason,
            })
        };
        let point = self.entry.point;
        let mut seen = HashSet::new();
        for port in &self.entry.states {
            let Some(state) = self.description.structure.states.get(port.id.0 as usize) else {
                return fault(port.id, "is not declared");
            };
            if *state != port.state {
                return fault(port.id, "is declared otherwise");
            }
            if port.capacity != state.capacity(point.context, point.largest_rows) || state.width == 0 {
                return fault(port.id, "has another size than its declaration gives");
            }
            if !seen.insert(port.id) {
                return fault(port.id, "is listed twice");
            }
            let layers = self.shard.segments.layers();
            if port.written && !(layers.0..layers.1).contains(&state.layer) {
                return fault(port.id, "is written outside its layer");
            }
            let written = self.entry.ports.iter().filter(|existing| {
                existing.direction.is_written()
                    && matches!(existing.role, Role::State { state } | Role::StateRows { state } if state == port.id)
            });
            if written.count() != usize::from(port.written) {
                return fault(port.id, "is not returned exactly once by an entry that writes it");
            }
        }
        for port in &self.entry.ports {
            if let Role::State { state } | Role::StateRows { state } = port.role
                && !seen.contains(&state)
            {
                return fault(state, "is not listed among the entry's states");
            }
        }
        Ok(())
    }

    fn ports(&self) -> Result<(), ChainError> {
        let ports = &self.entry.ports;
        let mut names = HashSet::new();
        for (index, port) in ports.iter().enumerate() {
            let side = port.direction.is_written();
            let role_repeated = ports[..index]
                .iter()
                .any(|other| other.role == port.role && other.direction.is_written() == side);
            if !names.insert(port.name.as_str()) || role_repeated {
                return Err(ChainError::PortRepeated {
                    shard: self.shard.name.clone(),
                    entry: self.name.clone(),
                    port: port.name.clone(),
                });
            }
            self.shape(port)?;
            let storage = storage_of(port);
            let natural = natural_storage(&port.role);
            let storable = if natural.is_numeric() { is_storable(port) } else { storage == natural };
            if !storable {
                return Err(ChainError::PortStorage {
                    shard: self.shard.name.clone(),
                    entry: self.name.clone(),
                    port: port.name.clone(),
                    actual: Box::new(storage),
                });
            }
        }
        Ok(())
    }

    fn shape(&self, port: &Port) -> Result<(), ChainError> {
        let rows = self.entry.point.rows;
        let of_state = |state: StateId| {
            let port = self.entry.states.iter().find(|existing| existing.id == state);
            port.map_or((0, 0), |port| (port.capacity, port.state.width))
        };
        let expected = match (&port.role, port.direction) {
            (role, Direction::Input) if role.is_step_input() => {
                if let Role::Gathered { asset } | Role::GatheredByGrid { asset, .. } = role
                    && asset.0 as usize >= self.description.assets.len()
                {
                    return Err(ChainError::AssetUnknown {
                        shard: self.shard.name.clone(),
                        entry: self.name.clone(),
                        asset: asset.0,
                        available: self.description.assets.len(),
                    });
                }
                let widths: Vec<u64> = self.description.assets.iter().map(|asset| asset.width).collect();
                match role {
                    // Each row has a whole number of features. Any width is valid here, and the
                    // front end must use it.
                    Role::Features => match port.shape[..] {
                        [count, width] if count.is_multiple_of(rows) => Some(vec![count.max(rows), width]),
                        _ => None,
                    },
                    _ => natural_shape(role, rows, &widths),
                }
            }
            (Role::Hidden, Direction::Input | Direction::Output) => {
                Some(vec![rows, self.description.structure.hidden])
            }
            (Role::PerLayer { first, layers }, Direction::Input | Direction::Output) => {
                let existing = match port.direction {
                    Direction::Input => self.shard.segments.layers(),
                    _ => (0, self.description.structure.layers),
                };
                let fits = existing == (*first, first.saturating_add(*layers));
                fits.then(|| vec![u64::from(*layers), rows, self.description.structure.per_layer_width])
            }
            (Role::State { state }, Direction::State | Direction::StateRead) => {
                let (capacity, width) = of_state(*state);
                Some(vec![capacity, width])
            }
            (Role::StateRows { state }, Direction::Output) => Some(vec![rows, of_state(*state).1]),
            (Role::Logits, Direction::Output) => Some(vec![rows, self.description.structure.vocabulary]),
            (Role::Embedding | Role::Tap { .. }, Direction::Output) => Some(port.shape.clone()),
            // One soft row may combine several rows.
            (Role::SoftRows, Direction::Output) => match port.shape[..] {
                [count, width] if count > 0 && rows.is_multiple_of(count) => Some(vec![count, width]),
                _ => None,
            },
            _ => None,
        };
        let Some(expected) = expected else {
            return Err(ChainError::PortRole {
                shard: self.shard.name.clone(),
                entry: self.name.clone(),
                port: port.name.clone(),
                direction: port.direction,
                role: Box::new(port.role.clone()),
            });
        };
        // No port is empty, and every size fits into an address.
        if port.shape != expected || elements_of(port) == 0 || bytes_of(port) > isize::MAX as u64 {
            return Err(ChainError::PortShape {
                shard: self.shard.name.clone(),
                entry: self.name.clone(),
                port: port.name.clone(),
                expected,
                actual: port.shape.clone(),
            });
        }
        Ok(())
    }

    /// Checks that the loaded entry binds exactly the described ports.
    fn bindings(&self, executor: &LoadedShard) -> Result<(), ChainError> {
        let Some(loaded) = executor.entries().iter().find(|loaded| loaded.interface.name == self.name) else {
            let available: Vec<&str> =
                executor.entries().iter().map(|entry| entry.interface.name.as_str()).collect();
            return Err(ChainError::EntryNotLoaded {
                shard: self.shard.name.clone(),
                entry: self.name.clone(),
                available: if available.is_empty() { "none".to_owned() } else { available.join(", ") },
            });
        };
        if loaded.interface.point != self.entry.point {
            let name = |point: EntryPoint| format!("{} of at most {} rows", point.name(), point.largest_rows);
            return self.point_fault(
                "the loaded entry",
                name(self.entry.point),
                name(loaded.interface.point),
            );
        }
        let set = |binding: &str, fault| {
            Err(ChainError::BindingSet {
                shard: self.shard.name.clone(),
                entry: self.name.clone(),
                binding: binding.to_owned(),
                fault,
            })
        };
        let mut bound = HashSet::new();
        for binding in &loaded.bindings {
            let name = binding.port.name.as_str();
            let Some(port) = self.entry.port(name) else {
                return set(name, "also binds");
            };
            if !bound.insert(name) {
                return set(name, "binds twice");
            }
            self.binding(binding, port)?;
        }
        // An input without any effect need not be bound, but a result must be.
        let results = self.entry.ports.iter().filter(|port| port.direction.is_written());
        if let Some(port) = results.into_iter().find(|port| !bound.contains(port.name.as_str())) {
            return set(&port.name, "does not bind");
        }
        Ok(())
    }

    fn binding(&self, binding: &Binding, port: &Port) -> Result<(), ChainError> {
        let fault = |what, expected: String, actual: String| {
            Err(ChainError::Binding {
                shard: self.shard.name.clone(),
                entry: self.name.clone(),
                binding: binding.port.name.as_str().into(),
                what,
                expected: expected.into(),
                actual: actual.into(),
            })
        };
        if binding.port.direction != port.direction {
            let name = |direction: Direction| format!("{direction:?}");
            return fault("the direction", name(port.direction), name(binding.port.direction));
        }
        if binding.port.role != port.role {
            let name = |role: &Role| format!("{role:?}");
            return fault("the role", name(&port.role), name(&binding.port.role));
        }
        if binding.port.shape != port.shape {
            return fault("the shape", format!("{:?}", port.shape), format!("{:?}", binding.port.shape));
        }
        let (expected, actual) = (storage_of(port), storage_of(&binding.port));
        if expected != actual || binding.dtype != actual.dtype {
            return fault("the storage", expected.to_string(), format!("{actual}, as {}", binding.dtype));
        }
        if binding.strides.is_some() {
            return fault("the order", "dense".to_owned(), "strides".to_owned());
        }
        // Bytes beyond the dense size are padding at the end, which only costs memory.
        if binding.bytes < bytes_of(port) || binding.bytes > isize::MAX as u64 {
            return fault("the size", bytes_of(port).to_string(), binding.bytes.to_string());
        }
        if !(binding.alignment == 0 || binding.alignment.is_power_of_two()) {
            return fault("the alignment", "a power of two".to_owned(), binding.alignment.to_string());
        }
        Ok(())
    }
}
