//! The floor: a plan without search and preferences, used if no planner has an answer.
//!
//! Components are placed in order. Each layer is placed on the first target that supports it in the
//! first format tuple, and joins the previous shard until a limit is reached. Nothing is tried
//! twice: to meet a goal, the minimum needs of all following layers are reserved. The time is
//! linear in the layers, with one look at the possibilities of each layer's kind.

use shardwright_vocabulary::{
    At, EntryKind, EntryName, FormatTuple, Legality, Result, SoftcapPlace, limit_names,
};

use crate::check::{CheckedPlan, caps, check};
use crate::cost::CostTable;
use crate::losses::{Losses, UnitLoss};
use crate::plan::{Boundary, BuildTime, Cause, Plan, PlannedSegment, Reason, Shard};
use crate::request::{Body, Request, TableFormat, TargetSummary};

mod refusal;

use refusal::Obstacle;

/// Name of the floor in reports, in place of a planner's.
pub const NAME: &str = "floor";

/// Returns the first plan that `request` allows, checked.
///
/// # Errors
///
/// Fails with the obstacle for the first layer that could not be placed, which is the place of the
/// error. A plan may still exist, but only planners search for it.
pub fn floor(request: &Request) -> Result<CheckedPlan> {
    let (context, entries) = entries(request)?;
    let table = CostTable::new(request);
    let kinds = 0..u32::try_from(request.kinds.len()).unwrap_or(u32::MAX);
    let devices = devices(request);
    let ways: Vec<Vec<Way>> = kinds.map(|kind| ways(request, &table, &entries, &devices, kind)).collect();
    let mut targets: Vec<Used> = request.targets.iter().map(Used::none).collect();
    let (mut shards, mut reasons, mut homes) = (Vec::<Shard>::new(), vec![no_search()], Vec::new());
    let Tables { formats: tables, mut lost, bytes: mut size } = tables(request)?;
    // Location and format of a state. They must be equal for a reader and its donor.
    let home = |way: &Way| {
        let states = request.formats.get(way.formats as usize).map(|tuple| tuple.states);
        (way.device, states)
    };
    // Sums of the last shard, and the bytes of all shards.
    let (mut open, mut bytes) = (Sums::default(), 0_u64);
    for unit in units(request, &ways) {
        let mut obstacle = None;
        let fits = unit.ways.iter().find_map(|&(kind, softcap, way)| {
            let used = targets.get(way.target as usize)?;
            let join = shards.last().is_some_and(|shard| joins(request, shard, &unit, way));
            let fit = |before: Sums, shards: u64| {
                let after = before.plus(way.sums);
                let grown = after.context().saturating_sub(before.context());
                used.within(way.target, after, shards, grown)?;
                let least = bytes.saturating_add(grown).saturating_add(unit.rest.bytes);
                within_goal("memory", least, request.goals.memory_bytes)?;
                Ok((after, grown))
            };
            let placed = || {
                if unit.devices & way.device == 0 {
                    return Err(Obstacle::Readers);
                }
                if unit.donor.is_some_and(|donor| homes.get(donor) != Some(&home(way))) {
                    return Err(Obstacle::Donor);
                }
                let loss = unit.loss(way).ok_or(Obstacle::Unmeasured { formats: way.formats })?;
                let least = lost.saturating_add(loss).saturating_add(unit.rest.loss);
                within_goal("quality", least, request.goals.quality_micronats)?;
                let least = size.saturating_add(way.sums.artefact).saturating_add(unit.rest.artefact);
                within_goal("size", least, request.goals.size_bytes)?;
                let joined = join.then(|| fit(open, 0));
                if let Some(Ok((after, grown))) = joined {
                    return Ok((true, None, after, grown, loss));
                }
                let (after, grown) = fit(Sums::default(), 1)?;
                Ok((false, joined.and_then(Result::err), after, grown, loss))
            };
            match placed() {
                Ok(placed) => Some((kind, softcap, way, placed)),
                Err(found) => {
                    obstacle.get_or_insert(found);
                    None
                }
            }
        });
        let Some((kind, softcap, way, (join, cut, after, grown, loss))) = fits else {
            return Err(refusal::of(request, &table, &entries, &unit, obstacle));
        };
        if !join {
            let position = u32::try_from(shards.len()).unwrap_or(u32::MAX);
            if shards.len() == caps::SHARDS {
                let message = format!("expected at most {} shards, got more", caps::SHARDS);
                return Err(refusal::refused(&unit.name(request), message, refusal::REPLACE_LIMIT));
            }
            reasons.extend(cut.map(|cut| cut.reason(position, "a new shard")));
            let elsewhere = format!("target {} of the request", way.target);
            let other = obstacle.filter(|_| way.target > 0);
            reasons.extend(other.map(|other| other.reason(position, &elsewhere)));
            shards.push(shard(request, &unit, way, softcap, context));
        }
        if let Some(shard) = shards.last_mut() {
            if let Some(segment) = shard.segments.last_mut() {
                segment.end = unit.layer.map_or(0, |layer| layer.saturating_add(1));
                segment.formats.push(way.formats);
            }
            for &entry in &entries {
                if table.takes_part(kind, entry) && !shard.entries.contains(&entry) {
                    shard.entries.push(entry);
                }
            }
        }
        if let Some(used) = targets.get_mut(way.target as usize) {
            used.shards = used.shards.saturating_add(u64::from(!join));
            used.bytes = used.bytes.saturating_add(grown);
        }
        (open, bytes, lost) = (after, bytes.saturating_add(grown), lost.saturating_add(loss));
        size = size.saturating_add(way.sums.artefact);
        homes.push(home(way));
    }
    let plan = Plan { shards, tables, fallback: vec![], speculation: None, reasons, lessons: vec![] };
    check(plan, request).at("plan")
}

fn no_search() -> Reason {
    Reason {
        shard: None,
        choice: "no search".to_owned(),
        because: "the first supported target and formats, and a new shard at each limit".to_owned(),
        cause: Cause::Preference(NAME.to_owned()),
    }
}

/// The formats of all tables, with their total loss and size.
#[derive(Default)]
struct Tables {
    formats: Vec<u32>,
    lost: u64,
    bytes: u64,
}

/// Chooses the format of each table: the first one, or the smallest one if there is a size goal. If
/// there is a quality goal, only formats with known losses are considered.
fn tables(request: &Request) -> Result<Tables> {
    let goals = &request.goals;
    let mut all = Tables::default();
    for table in &request.tables {
        let known = |(_, format): &(u32, &TableFormat)| {
            format.micronats.is_some() || goals.quality_micronats.is_none()
        };
        let mut formats = (0_u32..).zip(&table.formats).filter(known);
        let chosen = match goals.size_bytes {
            Some(_) => formats.min_by_key(|(place, format)| (format.bytes, *place)),
            None => formats.next(),
        };
        let Some((place, format)) = chosen else {
            let formats = table.formats.first().map_or_else(String::new, |format| format.format.to_string());
            return Err(refusal::unmeasured(&format!("table `{}`", table.name), &formats));
        };
        all.formats.push(place);
        all.lost = all.lost.saturating_add(format.micronats.unwrap_or(0).into());
        all.bytes = all.bytes.saturating_add(format.bytes);
    }
    match goals.quality_micronats {
        Some(max) if all.lost > max => Err(refusal::over_goal("gathered tables", "quality", all.lost, max)),
        _ => Ok(all),
    }
}

/// Returns whether a unit can be added to the shard. A shard has one target and one format of
/// activations, states and attention.
fn joins(request: &Request, shard: &Shard, unit: &Unit<'_>, way: &Way) -> bool {
    let values = |formats: Option<u32>| {
        let tuple = request.formats.get(formats? as usize)?;
        Some(tuple.values())
    };
    let of_component = shard.segments.last().is_some_and(|segment| segment.component == unit.component);
    of_component && shard.target == way.target && values(shard.formats().last()) == values(Some(way.formats))
}

/// Begins a shard. Its layers, their formats and its entry points are added later. A shard of the
/// floor has one component.
fn shard(
    request: &Request,
    unit: &Unit<'_>,
    way: &Way,
    softcap: Option<SoftcapPlace>,
    context: u32,
) -> Shard {
    let first = unit.layer.unwrap_or(0);
    let component = request.model.components.get(unit.component as usize);
    let boundaries = |names: Option<&Vec<String>>| {
        let names = names.into_iter().flatten();
        names.map(|name| Boundary { name: name.clone(), encoding: None }).collect()
    };
    Shard {
        segments: vec![PlannedSegment { component: unit.component, first, end: first, formats: vec![] }],
        target: way.target,
        context,
        entries: vec![],
        inputs: boundaries(component.map(|component| &component.inputs)),
        outputs: boundaries(component.map(|component| &component.outputs)),
        softcap,
        flags: request
            .targets
            .get(way.target as usize)
            .map_or_else(Vec::new, |target| target.recommended.clone()),
        build: BuildTime::Ahead,
    }
}

/// Returns the context and the entry points of every shard. The context is the smallest that the
/// goal allows. Entry points are one row of decode and the most rows of prefill, or the most rows
/// of encode. The entry point that all layers take part in comes first.
fn entries(request: &Request) -> Result<(u32, Vec<EntryName>)> {
    let goals = &request.goals;
    let missing = |needed| refusal::no_entry(needed, goals.context, goals.max_prefill_rows);
    let largest = |kind: EntryKind, context: u32| {
        let fits = |entry: &&EntryName| {
            (entry.kind, entry.context) == (kind, context) && entry.rows <= goals.max_prefill_rows
        };
        request.entries.iter().filter(fits).max_by_key(|entry| entry.rows).copied()
    };
    if request.entries.iter().all(|entry| entry.kind == EntryKind::Encode) {
        let encode = largest(EntryKind::Encode, 0).ok_or_else(|| missing("encode"))?;
        return Ok((0, vec![encode]));
    }
    let fits = |entry: &&EntryName| {
        entry.kind == EntryKind::Decode && entry.rows == 1 && entry.context >= goals.context
    };
    let mut decodes: Vec<EntryName> = request.entries.iter().filter(fits).copied().collect();
    decodes.sort_by_key(|entry| entry.context);
    let least = *decodes.first().ok_or_else(|| missing("decode_1"))?;
    let both = decodes.into_iter().find_map(|decode| {
        Some((decode.context, vec![decode, largest(EntryKind::Prefill, decode.context)?]))
    });
    let prefills = request.kinds.iter().any(|kind| kind.prefill != crate::request::PrefillPart::None);
    match both {
        Some(both) => Ok(both),
        None if prefills => Err(missing("prefill")),
        None => Ok((least.context, vec![least])),
    }
}

/// Cost of a run of layers on a target, added up as [`CostTable`] does. Sums that exceed 64 bits
/// saturate, and the check of the plan refuses them.
#[derive(Debug, Clone, Copy, Default)]
struct Sums {
    ops: [u64; 2],
    states: [u64; 2],
    times: [u64; 2],
    weights: u64,
    artefact: u64,
}

impl Sums {
    fn plus(self, other: Sums) -> Sums {
        let add = |[a, b]: [u64; 2], [c, d]: [u64; 2]| [a.saturating_add(c), b.saturating_add(d)];
        Sums {
            ops: add(self.ops, other.ops),
            states: add(self.states, other.states),
            times: add(self.times, other.times),
            weights: self.weights.saturating_add(other.weights),
            artefact: self.artefact.saturating_add(other.artefact),
        }
    }

    /// Returns the bytes that the loaded shard occupies.
    fn context(self) -> u64 {
        self.artefact.saturating_add(self.states.into_iter().fold(0, u64::max))
    }
}

/// A way to run a kind of layers: a target that supports it, a format tuple, and the cost.
#[derive(Debug, Clone, Copy)]
struct Way {
    target: u32,
    /// Bit of the target's device.
    device: u64,
    formats: u32,
    sums: Sums,
}

/// Returns all ways to run a kind, ordered by target and then by tuple.
fn ways(
    request: &Request,
    table: &CostTable<'_>,
    entries: &[EntryName],
    devices: &[u64],
    kind: u32,
) -> Vec<Way> {
    let tuples = 0..u32::try_from(request.formats.len()).unwrap_or(u32::MAX);
    let all = (0_u32..).zip(devices).flat_map(|target| tuples.clone().map(move |formats| (target, formats)));
    let way = |((target, &device), formats)| {
        let mut sums = Sums::default();
        let counts = sums.ops.iter_mut().zip(&mut sums.states).zip(&mut sums.times);
        for (&entry, ((ops, states), time)) in entries.iter().zip(counts) {
            if !table.takes_part(kind, entry) {
                continue;
            }
            let row = table.row(kind, target, formats, entry)?;
            if row.legality != Legality::Legal {
                return None;
            }
            (*ops, *states, *time) = (row.ops, row.state_bytes, row.time?.microseconds);
            sums.weights = sums.weights.max(row.weight_bytes);
            sums.artefact = sums.artefact.saturating_add(row.artefact_bytes);
        }
        sums.artefact = sums.artefact.saturating_add(sums.weights);
        Some(Way { target, device, formats, sums })
    };
    all.filter_map(way).collect()
}

/// A unit of placement: a layer, or a component that cannot be cut.
struct Unit<'ways> {
    component: u32,
    /// Index of the layer. `None` for a component that cannot be cut.
    layer: Option<u32>,
    /// Kind, including the soft-cap if there is one.
    kind: u32,
    /// Kind, place of the soft-cap, and way. Ways with the soft-cap in the graph come first.
    ways: Vec<(u32, Option<SoftcapPlace>, &'ways Way)>,
    /// Loss in each tuple. `None` if there is a quality goal and the loss was not measured.
    losses: Vec<Option<u64>>,
    /// Index of the unit whose state it reads.
    donor: Option<usize>,
    /// Bit set of the devices that support the unit and all readers of its state.
    devices: u64,
    /// Minimum needs of all following units.
    rest: Rest,
}

/// Minimum needs of units.
#[derive(Debug, Clone, Copy, Default)]
struct Rest {
    /// Bytes of artefacts and states.
    bytes: u64,
    /// Bytes of artefacts.
    artefact: u64,
    loss: u64,
}

impl Unit<'_> {
    /// Returns the loss of the unit in a way. A component without weights has no loss. A layer
    /// always counts, even without weights.
    fn loss(&self, way: &Way) -> Option<u64> {
        let weightless = self.layer.is_none() && way.sums.weights == 0;
        if weightless { Some(0) } else { self.losses.get(way.formats as usize).copied().flatten() }
    }

    fn name(&self, request: &Request) -> String {
        let component = request.model.components.get(self.component as usize);
        let component = component.map_or("", |component| component.name.as_str());
        match self.layer {
            Some(layer) => format!("layer {layer} of `{component}`"),
            None => format!("`{component}`"),
        }
    }
}

fn units<'ways>(request: &Request, ways: &'ways [Vec<Way>]) -> Vec<Unit<'ways>> {
    let known = Losses::new(request);
    let mut units: Vec<Unit<'ways>> = Vec::new();
    for (index, component) in (0_u32..).zip(&request.model.components) {
        let begin = units.len();
        let unit = |layer: Option<u32>, donor: Option<u32>, kinds: &[(u32, Option<SoftcapPlace>)]| {
            let of_kind = |&(kind, softcap): &(u32, Option<SoftcapPlace>)| {
                let ways = ways.get(kind as usize).into_iter().flatten();
                ways.map(move |way| (kind, softcap, way))
            };
            let ways: Vec<_> = kinds.iter().flat_map(of_kind).collect();
            let place = (index, layer.unwrap_or(0));
            let losses = request.formats.iter().map(|tuple| loss(request, &known, place, tuple)).collect();
            let donor = donor.map(|donor| begin.saturating_add(donor as usize));
            let devices = ways.iter().fold(0, |all, (_, _, way)| all | way.device);
            let kind = kinds.first().map_or(u32::MAX, |(kind, _)| *kind);
            Unit { component: index, layer, kind, ways, losses, donor, devices, rest: Rest::default() }
        };
        match (&component.body, &component.softcap) {
            (Body::Whole(kind), None) => units.push(unit(None, None, &[(*kind, None)])),
            (Body::Whole(kind), Some(softcap)) => {
                let without = (softcap.kind_without, Some(SoftcapPlace::Runtime));
                units.push(unit(None, None, &[(*kind, Some(SoftcapPlace::Graph)), without]));
            }
            (Body::Layers(layers), _) => {
                let layers = (0_u32..).zip(layers);
                units.extend(layers.map(|(at, layer)| unit(Some(at), layer.donor, &[(layer.kind, None)])));
            }
        }
    }
    let mut rest = Rest::default();
    for position in (0..units.len()).rev() {
        let Some(unit) = units.get_mut(position) else { continue };
        unit.rest = rest;
        // Only the largest entry point's states count in a shard, so the first one's are a lower
        // bound.
        let ways = || unit.ways.iter().map(|(_, _, way)| *way);
        let bytes = ways().map(|way| way.sums.artefact.saturating_add(way.sums.states[0])).min();
        let artefact = ways().map(|way| way.sums.artefact).min();
        let loss = ways().filter_map(|way| unit.loss(way)).min();
        rest.bytes = rest.bytes.saturating_add(bytes.unwrap_or(0));
        rest.artefact = rest.artefact.saturating_add(artefact.unwrap_or(0));
        rest.loss = rest.loss.saturating_add(loss.unwrap_or(0));
        let (devices, donor) = (unit.devices, unit.donor);
        if let Some(donor) = donor.and_then(|donor| units.get_mut(donor)) {
            donor.devices &= devices;
        }
    }
    units
}

/// Returns the loss of a layer in a tuple, 0 if there is no quality goal.
fn loss(
    request: &Request,
    losses: &Losses<'_>,
    (component, layer): (u32, u32),
    tuple: &FormatTuple,
) -> Option<u64> {
    match losses.of(component, layer, tuple) {
        _ if request.goals.quality_micronats.is_none() => Some(0),
        // Counted as planners do.
        UnitLoss::None => Some(0),
        UnitLoss::Known { micronats, .. } | UnitLoss::UnknownValues { micronats, .. } => Some(micronats),
        UnitLoss::Unknown => None,
    }
}

/// Returns a bit for the device of each target. Targets of one shim and device share a bit.
fn devices(request: &Request) -> Vec<u64> {
    let place = |target: &TargetSummary| (target.target.shim.clone(), target.target.device.clone());
    let places: Vec<_> = request.targets.iter().map(place).collect();
    let bit = |own| {
        let first = places.iter().position(|place| place == own)?;
        1_u64.checked_shl(u32::try_from(first).ok()?)
    };
    places.iter().map(|own| bit(own).unwrap_or(0)).collect()
}

/// Use of a target so far, and its limits. A missing limit is `u64::MAX`.
struct Used {
    shards: u64,
    bytes: u64,
    limits: [(&'static str, u64); 7],
}

impl Used {
    fn none(target: &TargetSummary) -> Used {
        // Flags raise the limits of a shard, but not the limits of all shards together.
        let of_shard = &target.recommended[..];
        let limits = [
            (limit_names::OPS, of_shard),
            (limit_names::WEIGHT_BYTES, of_shard),
            (limit_names::ARTEFACT_BYTES, of_shard),
            (limit_names::CONTEXT_BYTES, of_shard),
            (limit_names::CALL_MICROSECONDS, of_shard),
            (limit_names::SHARDS, &[]),
            (limit_names::MEMORY_BYTES, &[]),
        ];
        let limits = limits.map(|(name, flags)| {
            let named = target.limits.iter().filter(|limit| limit.name == name);
            (name, named.map(|limit| limit.under(flags)).min().unwrap_or(u64::MAX))
        });
        Used { shards: 0, bytes: 0, limits }
    }

    /// Checks the limits for a shard of that cost. `shards` and `bytes` are the additions to the
    /// use so far.
    fn within(&self, target: u32, cost: Sums, shards: u64, bytes: u64) -> Result<(), Obstacle> {
        let [ops, call] = [cost.ops, cost.times].map(|of| of.into_iter().fold(0, u64::max));
        let (shards, bytes) = (self.shards.saturating_add(shards), self.bytes.saturating_add(bytes));
        let values = [ops, cost.weights, cost.artefact, cost.context(), call, shards, bytes];
        match self.limits.into_iter().zip(values).find(|((_, max), value)| value > max) {
            Some(((name, max), value)) => Err(Obstacle::Limit { target, name, value, max }),
            None => Ok(()),
        }
    }
}

fn within_goal(name: &'static str, value: u64, max: Option<u64>) -> Result<(), Obstacle> {
    match max {
        Some(max) if value > max => Err(Obstacle::Goal { name, value, max }),
        _ => Ok(()),
    }
}
