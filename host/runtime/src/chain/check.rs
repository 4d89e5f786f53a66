//! Checks that shards form a chain, as far as each shard can be checked without the data flow
//! between shards.

use std::collections::HashSet;

use shardwright_graph::{Asset, ComponentKind, EntryPoint, Role, StateId};
use shardwright_shims::{Binding, Direction, EntryInterface, LoadedShard, Port};
use shardwright_vocabulary::{EntryKind, Error, Result, Table};

use crate::description::{ChainDescription, ShardDescription};
use crate::error::wrong_count;
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

/// Help for a loaded artefact that differs from the description.
pub(super) const RECOMPILE: &str =
    "the artefact was compiled from another work order than the description; compile again";

/// Help for shards whose entry points differ.
pub(super) const SAME_ENTRIES: &str =
    "every shard needs the same entry points; a prefill may only end where no later shard has states";

pub(super) fn check(
    description: &ChainDescription,
    executors: &[LoadedShard],
    assets: &[Asset],
) -> Result<()> {
    caps(description)?;
    if executors.len() != description.shards.len() {
        return Err(wrong_count(description.shards.len(), executors.len()));
    }
    coverage(description)?;
    check_assets(&description.assets, assets)?;
    let mut names = HashSet::new();
    for (shard, executor) in description.shards.iter().zip(executors) {
        if !names.insert(shard.name.as_str()) {
            return Err(Error::incompatible(format!("two shards are named `{}`", shard.name)));
        }
        if *executor.place() != shard.place {
            let message = format!("described for {}, but loaded on {}", shard.place, executor.place());
            return Err(fault(shard, message).with_help(RECOMPILE));
        }
        if let Some(cap) = shard.logits_softcap
            && !(shard.segments.has(ComponentKind::Head) && cap.is_finite() && cap > 0.0)
        {
            return Err(fault(shard, format!("a soft-cap of {cap} cannot be applied to its logits"))
                .with_help("a soft-cap is a positive number, and only a head returns logits"));
        }
        let mut entries = HashSet::new();
        for entry in &shard.entries {
            if !entries.insert((entry.point.kind, entry.point.rows)) {
                return Err(fault(shard, format!("{} occurs twice", entry.point.name())));
            }
            EntryCheck { description, shard, entry, name: entry.point.name().to_string() }.check(executor)?;
        }
    }
    Ok(())
}

fn fault(shard: &ShardDescription, message: impl Into<String>) -> Error {
    Error::incompatible(message).at(format_args!("shard `{}`", shard.name))
}

fn caps(description: &ChainDescription) -> Result<()> {
    let cap = |what: &str, count: u64, max: u64| {
        if count > max {
            let message = format!("the chain has {count} {what}, expected at most {max}");
            return Err(Error::incompatible(message));
        }
        Ok(())
    };
    cap("shards", description.shards.len() as u64, SHARDS_MAX)?;
    cap("states", description.structure.states.len() as u64, STATES_MAX)?;
    cap("assets", description.assets.len() as u64, ASSETS_MAX)?;
    for shard in &description.shards {
        cap("entry points in a shard", shard.entries.len() as u64, ENTRIES_MAX)?;
        for entry in &shard.entries {
            cap("ports in an entry", entry.ports.len() as u64, PORTS_MAX)?;
            cap("positions in a context", entry.point.context, POSITION_LIMIT)?;
        }
    }
    Ok(())
}

/// Checks that every component occurs once, in the order of a step, and every layer once, in order.
fn coverage(description: &ChainDescription) -> Result<()> {
    let layers = description.structure.layers;
    let mut last: Option<ComponentKind> = None;
    let mut next_layer = 0;
    for shard in &description.shards {
        if shard.segments.0.is_empty() {
            return Err(fault(shard, "no segments"));
        }
        for (place, segment) in shard.segments.iter().enumerate() {
            let component = segment.component;
            // Layers continue from shard to shard. Within a shard they are one segment.
            let repeated = last == Some(component) && (place > 0 || !component.is_layered());
            if repeated || !description.structure.components.contains(&component) {
                let message = format!("`{component}` is already provided, or is not part of this model");
                return Err(fault(shard, message));
            }
            if let Some(before) = last.filter(|&before| before > component) {
                return Err(fault(shard, format!("`{component}` comes after `{before}`")));
            }
            last = Some(component);
            let (start, end) = segment.layers;
            let fits = segment.is_consistent()
                && (!component.is_layered() || (start == next_layer && end <= layers));
            if !fits {
                let message = format!("expected layers from {next_layer} of {layers}, got {start}..{end}");
                return Err(fault(shard, message));
            }
            next_layer = next_layer.max(end);
        }
    }
    for &component in &description.structure.components {
        if !description.shards.iter().any(|shard| shard.segments.has(component)) {
            return Err(Error::incompatible(format!("no shard has the component `{component}`")));
        }
    }
    if next_layer != layers {
        return Err(Error::incompatible(format!("no shard has the layers {next_layer}..{layers}")));
    }
    Ok(())
}

fn check_assets(described: &[Table<()>], actual: &[Asset]) -> Result<()> {
    for (index, described) in described.iter().enumerate() {
        let fault = |what: &str, expected: String, actual: String| {
            Err(Error::incompatible(format!("{what} is {actual}, expected {expected}"))
                .at(format_args!("asset `{}`", described.name))
                .with_help("the tables come from another checkpoint than the description"))
        };
        let Some(asset) = actual.get(index) else {
            return fault("the table", "present".to_owned(), "missing".to_owned());
        };
        let found = asset.to_table().described();
        if found.name != described.name {
            return fault("the name", described.name.clone(), found.name);
        }
        if (found.entries, found.width) != (described.entries, described.width) || described.width == 0 {
            let expected = format!("[{}, {}]", described.entries, described.width);
            return fault("the shape", expected, format!("{:?}", asset.table.shape));
        }
        if (found.dtype, found.quantisation) != (described.dtype, described.quantisation) {
            return fault("the format", described.format(), found.format());
        }
        let Some([values, scales]) = described.sizes() else {
            return fault("the format", "a format for tables".to_owned(), described.format());
        };
        if asset.table.data.available() as u64 != values {
            let actual = asset.table.data.available();
            return fault("the size", format!("{values} bytes"), format!("{actual} bytes"));
        }
        let actual = asset.table.quantisation.as_ref().map_or(0, |existing| existing.scales.available());
        if actual as u64 != scales {
            return fault("the size of the scales", format!("{scales} bytes"), format!("{actual} bytes"));
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
    fn fault(&self, message: impl Into<String>) -> Error {
        Error::incompatible(message).at(format_args!("shard `{}`, {}", self.shard.name, self.name))
    }

    fn check(&self, executor: &LoadedShard) -> Result<()> {
        self.point()?;
        self.states()?;
        self.ports()?;
        self.bindings(executor)
    }

    fn point(&self) -> Result<()> {
        let fault =
            |what: &str, expected: String, actual: u64| self.point_fault(what, expected, actual.to_string());
        let point = self.entry.point;
        if self.entry.name != self.name {
            return self.point_fault("the name", self.name.clone(), self.entry.name.clone());
        }
        if self.entry.segments != self.shard.segments {
            let (expected, found) = (self.shard.segments.to_string(), self.entry.segments.to_string());
            return self.point_fault("the list of segments", expected, found);
        }
        if point.rows == 0 || point.rows > point.context {
            return fault("the row count", format!("1 to {}", point.context), point.rows);
        }
        if point.kind == EntryKind::Encode && point.context != point.rows {
            return fault("the context", point.rows.to_string(), point.context);
        }
        // Rings are sized for the largest entry of the whole plan, on any shard.
        let largest = self.points().map(|other| other.rows).max().unwrap_or(point.rows);
        if point.kind != EntryKind::Encode && point.largest_rows < largest {
            return fault("the largest row count", format!("at least {largest}"), point.largest_rows);
        }
        for other in self.points().filter(|_| point.kind != EntryKind::Encode) {
            if other.context != point.context {
                return fault("the context", other.context.to_string(), point.context);
            }
            if other.largest_rows != point.largest_rows {
                return fault("the largest row count", other.largest_rows.to_string(), point.largest_rows);
            }
        }
        let generative = self.description.structure.is_generative();
        if generative == (point.kind == EntryKind::Encode) {
            let expected = if generative { "prefill or decode" } else { "encode" };
            return self.point_fault("the kind", expected.to_owned(), point.kind.to_string());
        }
        Ok(())
    }

    fn point_fault(&self, what: &str, expected: String, actual: String) -> Result<()> {
        Err(self.fault(format!("{what} is {actual}, expected {expected}")).with_help(SAME_ENTRIES))
    }

    /// Returns the entry points of every shard that share states.
    fn points(&self) -> impl Iterator<Item = EntryPoint> + '_ {
        let entries = self.description.shards.iter().flat_map(|shard| &shard.entries);
        entries.map(|entry| entry.point).filter(|point| point.kind != EntryKind::Encode)
    }

    fn states(&self) -> Result<()> {
        let fault = |state: StateId, reason: &str| Err(self.fault(format!("state {} {reason}", state.0)));
        let point = self.entry.point;
        let mut seen = HashSet::new();
        for port in &self.entry.states {
            let Some(state) = self.description.structure.states.get(port.id.0 as usize) else {
                return fault(port.id, "is not declared");
            };
            if *state != port.state {
                return fault(port.id, "differs from its declaration");
            }
            if port.capacity != state.capacity(point.context, point.largest_rows) || state.width == 0 {
                return fault(port.id, "has a size that differs from its declaration");
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

    fn ports(&self) -> Result<()> {
        let ports = &self.entry.ports;
        let mut names = HashSet::new();
        for (index, port) in ports.iter().enumerate() {
            let side = port.direction.is_written();
            let role_repeated = ports[..index]
                .iter()
                .any(|other| other.role == port.role && other.direction.is_written() == side);
            if !names.insert(port.name.as_str()) || role_repeated {
                return Err(self.fault(format!("`{}` occurs twice", port.name)));
            }
            self.shape(port)?;
            let storage = storage_of(port);
            let natural = natural_storage(&port.role);
            let storable = if natural.is_numeric() { is_storable(port) } else { storage == natural };
            if !storable {
                return Err(self.fault(format!("`{}` cannot be stored as {storage}", port.name)));
            }
        }
        Ok(())
    }

    fn shape(&self, port: &Port) -> Result<()> {
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
                    let available = self.description.assets.len();
                    let message = format!("unknown asset {}; the chain has {available} assets", asset.0);
                    return Err(self.fault(message));
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
            let (direction, role) = (port.direction, port.role.name());
            let message = format!("`{}` cannot be {direction:?} with the role `{role}`", port.name);
            return Err(self.fault(message));
        };
        // No port is empty, and every size fits into an address.
        if port.shape != expected || elements_of(port) == 0 || bytes_of(port) > isize::MAX as u64 {
            let actual = &port.shape;
            let message = format!("`{}` has the shape {actual:?}, expected {expected:?}", port.name);
            return Err(self.fault(message));
        }
        Ok(())
    }

    /// Checks that the loaded entry binds exactly the described ports.
    fn bindings(&self, executor: &LoadedShard) -> Result<()> {
        let Some(loaded) = executor.entries().iter().find(|loaded| loaded.interface.name == self.name) else {
            let available: Vec<&str> =
                executor.entries().iter().map(|entry| entry.interface.name.as_str()).collect();
            let available = if available.is_empty() { "none".to_owned() } else { available.join(", ") };
            let message = format!("the loaded artefact lacks this entry point; available: {available}");
            return Err(self.fault(message).with_help(RECOMPILE));
        };
        if loaded.interface.point != self.entry.point {
            let name = |point: EntryPoint| format!("{} of at most {} rows", point.name(), point.largest_rows);
            return self.point_fault(
                "the loaded entry",
                name(self.entry.point),
                name(loaded.interface.point),
            );
        }
        let set = |binding: &str, fault: &str| {
            let message = format!("the loaded artefact has {fault} `{binding}`");
            Err(self.fault(message).with_help(RECOMPILE))
        };
        let mut bound = HashSet::new();
        for binding in &loaded.bindings {
            let name = binding.port.name.as_str();
            let Some(port) = self.entry.port(name) else {
                return set(name, "an undescribed binding");
            };
            if !bound.insert(name) {
                return set(name, "two bindings");
            }
            self.binding(binding, port)?;
        }
        // An input without any effect need not be bound, but a result must be.
        let results = self.entry.ports.iter().filter(|port| port.direction.is_written());
        if let Some(port) = results.into_iter().find(|port| !bound.contains(port.name.as_str())) {
            return set(&port.name, "no binding");
        }
        Ok(())
    }

    fn binding(&self, binding: &Binding, port: &Port) -> Result<()> {
        let fault = |what: &str, expected: String, actual: String| {
            let name = &binding.port.name;
            let message = format!("`{name}`: {what} of the loaded artefact is {actual}, expected {expected}");
            Err(self.fault(message).with_help(RECOMPILE))
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
