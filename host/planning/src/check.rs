//! Checks a plan against its request. This is the only way from a [`Plan`], which an untrusted
//! guest wrote, to a [`CheckedPlan`], which a compiler may use. The check covers everything that a
//! compiler or the runtime relies on, but not quality: a slow plan passes.
//!
//! The check never panics, and its time and memory are proportional to plan and request. Every
//! count and string of a plan has a cap below.

use std::collections::{BTreeMap, BTreeSet};

use shardwright_vocabulary::{
    ChosenSpeculation, ComponentKind, Encoding, EntryKind, EntryName, Error, ErrorKind, Flag, FormatTuple,
    GoalVerdict, Limit, Provenance, Result, ScaleBits, Segment, Segments, ShardFormats, StateFormat,
    limit_names,
};

pub use crate::checked_plan::{CheckedPlan, CheckedShard, CheckedTable, Loss};
use crate::cost::{CostFault, CostTable, ShardCost};
use crate::flow;
use crate::hedge;
use crate::lessons;
use crate::losses::{Losses, UnitLoss};
use crate::plan::{Fallback, Plan, PlannedSegment, Shard};
use crate::request::{Body, Component, GatheredTable, PrefillPart, Request};
use crate::times::{PlanTimes, plan_times};

#[cfg(test)]
mod tests;

/// Caps on a plan. Each is far above the needs of any model of 8 billion parameters, and small
/// enough that checking, printing and storing a plan is cheap.
pub mod caps {
    /// One shard per layer for 200 layers, and the components around them.
    pub const SHARDS: usize = 256;
    /// Segments of one shard: one of each component.
    pub const SEGMENTS: usize = crate::request::caps::COMPONENTS;
    /// Layers of one segment, as many as a request may have.
    pub const LAYERS: usize = crate::request::caps::LAYERS;
    /// Maximum entry points of one shard.
    pub const ENTRIES: usize = 16;
    /// Maximum boundary tensors that a shard reads, and that it writes.
    pub const BOUNDARIES: usize = 16;
    /// Maximum flags of one shard.
    pub const FLAGS: usize = 128;
    /// Maximum fallback chains.
    pub const FALLBACKS: usize = 16;
    /// Maximum reasons of one plan.
    pub const REASONS: usize = 1024;
    /// Bytes of a name (boundary, flag, cause).
    pub const NAME_BYTES: usize = 128;
    /// Bytes of a text (flag value, choice, reason).
    pub const TEXT_BYTES: usize = 4096;
}

/// Checks `plan` against `request`.
///
/// Faults that make later checks meaningless (counts, indices, coverage) are found first.
///
/// # Errors
///
/// Returns the first fault found. Its place is a shard, counted from zero in the plan's order, or
/// another part of the plan.
pub fn check(plan: Plan, request: &Request) -> Result<CheckedPlan> {
    counts_and_texts(&plan, request)?;
    coverage(&plan, request)?;
    let resolved = resolved(&plan, request)?;
    donors(&plan, request)?;
    entries(&plan, request)?;
    let speculation = speculation(&plan, request)?;
    boundaries(&plan, request)?;
    softcaps(&plan, request)?;
    flags(&plan, request)?;
    let tables = tables(&plan, request)?;
    let costs = costs(&plan, request)?;
    fallback(&plan, request, &costs)?;
    limits(&plan, request, &costs, &tables)?;
    let loss = quality(&plan, request, &tables)?;
    let with_cost = |(shard, cost)| CheckedShard { cost, ..shard };
    let shards = resolved.into_iter().zip(costs).map(with_cost).collect();
    let checked = CheckedPlan { shards, tables, speculation, plan, loss };
    times(request, &checked)?;
    Ok(checked)
}

/// Creates the error of an invalid plan. The default help blames the planner.
pub(crate) fn fault(message: impl Into<String>) -> Error {
    let help = "report this to the planner's author, or use the built-in planner `generic`";
    Error::new(ErrorKind::Planning, message).with_help(help)
}

/// Like [`fault`], with a shard as the place.
pub(crate) fn fault_in(shard: u32, message: impl Into<String>) -> Error {
    fault(message).at(format!("shard {shard}"))
}

/// Creates the error of an encoding that its element type does not support.
pub(crate) fn invalid_encoding(shard: u32, name: &str, encoding: Encoding) -> Error {
    fault_in(shard, format!("encoding {encoding} of `{name}` does not fit its element type"))
}

/// Creates the error of a limit that is exceeded.
fn over_limit(value: u64, limit: &Limit) -> Error {
    let Limit { name, value: max, provenance, .. } = limit;
    let help = "the planner must cut into smaller shards; if the limit is wrong, replace it with \
                `--limit NAME=VALUE`";
    fault(format!("{name} is {value}, the limit is {max} ({provenance})")).with_help(help)
}

/// Advice for an unknown loss and a quality goal.
const MEASURE: &str = "measure the losses with `shardwright sensitivity`, or drop the quality goal";

/// Converts a position to the index type of plans. Counts are capped before any index is made.
fn index(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}

fn shards(plan: &Plan) -> impl Iterator<Item = (u32, &Shard)> {
    plan.shards.iter().enumerate().map(|(position, shard)| (index(position), shard))
}

fn counts_and_texts(plan: &Plan, request: &Request) -> Result<()> {
    let count = |what: &str, count: usize, cap: usize| match count <= cap {
        true => Ok(()),
        false => Err(fault(format!("the plan has {count} {what}, expected at most {cap}"))),
    };
    let text = |what: &str, text: &str, cap: usize| match text.len() {
        bytes if bytes <= cap => Ok(()),
        bytes => Err(fault(format!("a {what} of the plan has {bytes} bytes, expected at most {cap}"))),
    };
    count("shards", plan.shards.len(), caps::SHARDS)?;
    count("table formats", plan.tables.len(), crate::request::caps::TABLES)?;
    count("fallback chains", plan.fallback.len(), caps::FALLBACKS)?;
    count("reasons", plan.reasons.len(), caps::REASONS)?;
    for shard in &plan.shards {
        count("segments", shard.segments.len(), caps::SEGMENTS)?;
        for segment in &shard.segments {
            count("format tuples", segment.formats.len(), caps::LAYERS)?;
        }
        count("entry points", shard.entries.len(), caps::ENTRIES)?;
        count("boundaries", shard.inputs.len().max(shard.outputs.len()), caps::BOUNDARIES)?;
        count("flags", shard.flags.len(), caps::FLAGS)?;
        for boundary in shard.inputs.iter().chain(&shard.outputs) {
            text("boundary name", &boundary.name, caps::NAME_BYTES)?;
        }
        for flag in &shard.flags {
            text("flag name", &flag.name, caps::NAME_BYTES)?;
            text("flag value", &flag.value, caps::TEXT_BYTES)?;
        }
    }
    for chain in &plan.fallback {
        count("limits of a fallback chain", chain.limits.len(), limit_names::ALL.len())?;
    }
    if let Some(speculation) = &plan.speculation {
        text("draft", &speculation.draft, caps::NAME_BYTES)?;
    }
    for reason in &plan.reasons {
        use crate::plan::Cause::{Cost, Feedback, Goal, Limit, Preference};
        text("choice", &reason.choice, caps::TEXT_BYTES)?;
        text("reason", &reason.because, caps::TEXT_BYTES)?;
        let (Limit(name) | Cost(name) | Goal(name) | Feedback(name) | Preference(name)) = &reason.cause;
        text("cause", name, caps::NAME_BYTES)?;
        if let Some(shard) = reason.shard
            && shard as usize >= plan.shards.len()
        {
            return Err(fault(format!("a reason names shard {shard}, which is not in the plan")));
        }
    }
    lessons::fault(&plan.lessons, request).map_or(Ok(()), |message| Err(fault(message)))
}

fn component<'request>(request: &'request Request, segment: &PlannedSegment) -> Option<&'request Component> {
    request.model.components.get(segment.component as usize)
}

/// Returns the kinds of the units of a shard, in the order of its format tuples. A segment that is
/// not in the request has no units. [`coverage`] refuses such segments.
fn kinds(request: &Request, shard: &Shard) -> Vec<u32> {
    let of = |segment: &PlannedSegment| {
        component(request, segment)
            .and_then(|component| component.shard_kinds(segment.first, segment.end, shard.softcap))
            .unwrap_or_default()
    };
    shard.segments.iter().flat_map(of).collect()
}

/// Resolves the indices of each shard. Costs are filled in later.
fn resolved(plan: &Plan, request: &Request) -> Result<Vec<CheckedShard>> {
    let table = CostTable::new(request);
    let resolve = |(position, planned): (u32, &Shard)| {
        let segment = |planned: &PlannedSegment| -> Result<Segment> {
            let unknown = || unknown_component(position, planned.component);
            let existing = component(request, planned).ok_or_else(unknown)?;
            let component = ComponentKind::from_name(&existing.name).ok_or_else(unknown)?;
            Ok(Segment { component, layers: (planned.first, planned.end) })
        };
        let segments = Segments(planned.segments.iter().map(segment).collect::<Result<_, _>>()?);
        let target = request.targets.get(planned.target as usize);
        Ok(CheckedShard {
            name: segments.to_string(),
            target: target
                .map(|target| target.target.clone())
                .ok_or_else(|| fault_in(position, format!("the request has no target {}", planned.target)))?,
            formats: shard_formats(position, planned, &segments, &table, request)?,
            segments,
            planned: planned.clone(),
            cost: ShardCost::default(),
        })
    };
    shards(plan).map(resolve).collect()
}

/// Returns the formats of a shard: one tuple for each layer, and for each component without layers.
/// All must agree in activations, states and attention. A component without weights gets the tuple
/// of a unit that has weights.
fn shard_formats(
    shard: u32,
    planned: &Shard,
    segments: &Segments,
    table: &CostTable<'_>,
    request: &Request,
) -> Result<ShardFormats> {
    let mut units: Vec<(Segment, &FormatTuple)> = Vec::new();
    let weighs = |kind: u32, formats: u32| {
        let row = |&entry: &EntryName| table.row(kind, planned.target, formats, entry);
        planned.entries.iter().filter_map(row).any(|row| row.weight_bytes > 0)
    };
    let weighing: Vec<bool> =
        kinds(request, planned).iter().zip(planned.formats()).map(|(&kind, own)| weighs(kind, own)).collect();
    for (planned, segment) in planned.segments.iter().zip(segments.iter()) {
        let (first, end) = segment.layers;
        let (found, expected) = (planned.formats.len(), end.saturating_sub(first).max(1) as usize);
        if found != expected {
            let component = segment.component;
            let message = format!(
                "expected a format tuple for each of {expected} layers of `{component}`, got {found}"
            );
            return Err(fault_in(shard, message));
        }
        for (&formats, layer) in planned.formats.iter().zip(first..) {
            let tuple = request.formats.get(formats as usize);
            let unknown = || fault_in(shard, format!("the request has no format tuple {formats}"));
            let tuple = tuple.ok_or_else(unknown)?;
            let layers = if end == 0 { (0, 0) } else { (layer, layer.saturating_add(1)) };
            units.push((Segment { layers, ..segment }, tuple));
        }
    }
    let values = FormatTuple::values;
    let alike = units.iter().all(|(_, tuple)| values(tuple) == values(units[0].1));
    let with_weights = units.iter().zip(&weighing).find(|(_, weighs)| **weighs).map(|((_, tuple), _)| *tuple);
    if let (true, Some(tuple)) = (alike, with_weights) {
        let weightless = units.iter_mut().zip(&weighing).filter(|(_, weighs)| !**weighs);
        weightless.for_each(|((_, own), _)| *own = tuple);
    }
    ShardFormats::of(units.iter().copied()).ok_or_else(|| {
        let first = units.first().map(|(_, tuple)| values(tuple));
        match units.iter().find(|(_, tuple)| Some(values(tuple)) != first) {
            Some((part, formats)) => {
                let expected = "expected the same activations, states and attention in the whole shard";
                fault_in(shard, format!("{part} has formats {formats}, {expected}"))
            }
            None => fault_in(shard, "no segments"),
        }
    })
}

fn unknown_component(shard: u32, component: u32) -> Error {
    fault_in(shard, format!("the model has no component {component}"))
}

fn invalid_range(shard: u32, segment: &PlannedSegment, layers: u32) -> Error {
    let (first, end) = (segment.first, segment.end);
    fault_in(shard, format!("expected layers within 0..{layers}, got {first}..{end}"))
}

fn layer_skipped(component: &str, layer: u32) -> Error {
    fault("not in any shard").at(format!("layer {layer} of component `{component}`"))
}

/// Checks that every component is present in order and every layer exactly once and in order. A
/// shard may have at most one segment of each component.
fn coverage(plan: &Plan, request: &Request) -> Result<()> {
    // Progress of each component: `None` before its first shard, then the number of layers covered.
    let mut covered: Vec<Option<u32>> = vec![None; request.model.components.len()];
    let mut current = 0_u32;
    for (position, shard) in shards(plan) {
        if shard.segments.is_empty() {
            return Err(fault_in(position, "no segments"));
        }
        for (place, segment) in shard.segments.iter().enumerate() {
            if segment.component < current {
                let message = format!("component {} is out of order", segment.component);
                return Err(fault_in(position, message));
            }
            current = segment.component;
            let (Some(component), Some(done)) =
                (component(request, segment), covered.get_mut(segment.component as usize))
            else {
                return Err(unknown_component(position, segment.component));
            };
            let name = &component.name;
            let repeated = || fault_in(position, format!("component `{name}` was already placed"));
            if shard.segments[..place].iter().any(|before| before.component == segment.component) {
                return Err(repeated());
            }
            let (first, end, layers) = (segment.first, segment.end, component.layer_count());
            match &component.body {
                Body::Whole(_) => {
                    if (first, end) != (0, 0) {
                        return Err(invalid_range(position, segment, layers));
                    }
                    if done.replace(0).is_some() {
                        return Err(repeated());
                    }
                }
                Body::Layers(_) => {
                    let expected = done.unwrap_or(0);
                    if first >= end || end > layers {
                        return Err(invalid_range(position, segment, layers));
                    }
                    if first < expected {
                        return Err(fault_in(position, format!("layer {first} was already placed")));
                    }
                    if first > expected {
                        return Err(layer_skipped(&component.name, expected));
                    }
                    *done = Some(end);
                }
            }
        }
    }
    for (component, done) in request.model.components.iter().zip(covered) {
        match done {
            None => {
                let place = format!("component `{}`", component.name);
                return Err(fault("no shard has this component").at(place));
            }
            Some(end) if end < component.layer_count() => {
                return Err(layer_skipped(&component.name, end));
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// Checks that every layer that reads a donor's state is on the donor's shim and device, and has
/// states in the donor's format.
fn donors(plan: &Plan, request: &Request) -> Result<()> {
    let mut home: BTreeMap<(u32, u32), (u32, Option<StateFormat>)> = BTreeMap::new();
    let states = |segment: &PlannedSegment, layer: u32| {
        let formats = segment.formats.get(layer.saturating_sub(segment.first) as usize)?;
        request.formats.get(*formats as usize).map(|tuple| tuple.states)
    };
    for (position, segment) in segments(plan) {
        for layer in segment.first..segment.end {
            home.insert((segment.component, layer), (position, states(segment, layer)));
        }
    }
    let place = |position: u32| {
        let target = plan.shards.get(position as usize)?.target;
        let target = &request.targets.get(target as usize)?.target;
        Some((target.shim.as_str(), target.device.as_str()))
    };
    for (position, segment) in segments(plan) {
        let Some(Component { body: Body::Layers(layers), .. }) = component(request, segment) else {
            continue;
        };
        for layer in segment.first..segment.end {
            let Some(donor) = layers.get(layer as usize).and_then(|layer| layer.donor) else { continue };
            let donor_shard = home.get(&(segment.component, donor)).map(|(position, _)| *position);
            if donor_shard.is_none_or(|donor_shard| place(donor_shard) != place(position)) {
                let donor_shard = donor_shard.unwrap_or(position);
                let message = format!(
                    "layer {layer} reads the state of layer {donor} in shard {donor_shard}, which is on \
                     another shim or device (state-not-shareable)"
                );
                return Err(
                    fault_in(position, message).with_help("layers that share a state must be on one device")
                );
            }
            let written = home.get(&(segment.component, donor)).and_then(|(_, states)| *states);
            if let (Some(read), Some(written)) = (states(segment, layer), written)
                && read != written
            {
                let message = format!(
                    "layer {layer} reads the state of layer {donor} as {read}, which is written as {written}"
                );
                return Err(fault_in(position, message));
            }
        }
    }
    Ok(())
}

/// Iterates over all segments, each with the position of its shard.
fn segments(plan: &Plan) -> impl Iterator<Item = (u32, &PlannedSegment)> {
    shards(plan).flat_map(|(position, shard)| shard.segments.iter().map(move |segment| (position, segment)))
}

/// Checks entry points and context: known, complete, and equal in all shards.
fn entries(plan: &Plan, request: &Request) -> Result<()> {
    let known: BTreeSet<EntryName> = request.entries.iter().copied().collect();
    let has_states = request.entries.iter().any(|entry| entry.kind != EntryKind::Encode);
    // The entry points that every shard must have: for each kind, the entry points of the first
    // shard that has any of that kind.
    let mut chain: BTreeMap<EntryKind, (u32, BTreeSet<EntryName>)> = BTreeMap::new();
    let mut chain_context: Option<u32> = None;
    for (position, shard) in shards(plan) {
        let context = shard.context;
        let (goal, max) = match has_states {
            true => (request.goals.context, request.model.max_context),
            false => (0, 0),
        };
        if context < goal {
            return Err(fault_in(position, format!("context {context} is below the requested {goal}")));
        }
        if context > max {
            return Err(fault_in(position, format!("context {context} is above the model's {max}"))
                .with_help("request less context"));
        }
        let expected = *chain_context.get_or_insert(context);
        if expected != context {
            let message = format!("context {context} differs from {expected} of the shards before");
            return Err(fault_in(position, message));
        }

        let mut own: BTreeMap<EntryKind, BTreeSet<EntryName>> = BTreeMap::new();
        for &entry in &shard.entries {
            if !known.contains(&entry) {
                return Err(fault_in(position, format!("the request does not offer {entry}")));
            }
            let expected_context = if entry.kind == EntryKind::Encode { 0 } else { context };
            if entry.context != expected_context {
                let message = format!("{entry} does not have the shard's context {context}");
                return Err(fault_in(position, message));
            }
            if entry.kind != EntryKind::Decode && entry.rows > request.goals.max_prefill_rows {
                let max = request.goals.max_prefill_rows;
                return Err(fault_in(position, format!("{entry} has more than {max} rows")));
            }
            if !own.entry(entry.kind).or_default().insert(entry) {
                return Err(fault_in(position, format!("{entry} is listed twice")));
            }
        }

        let prefills = kinds(request, shard).iter().any(|&kind| {
            request.kinds.get(kind as usize).is_some_and(|kind| kind.prefill != PrefillPart::None)
        });
        let unexpected = |kind: EntryKind| own.get(&kind).and_then(|entries| entries.first()).copied();
        let missing = |needed: &str| fault_in(position, format!("no {needed} entry point"));
        let idle = |entry: EntryName| fault_in(position, format!("no layer runs in {entry}"));
        if has_states {
            if let Some(entry) = unexpected(EntryKind::Encode) {
                return Err(idle(entry));
            }
            let decodes = own.get(&EntryKind::Decode);
            if !decodes.is_some_and(|decodes| decodes.iter().any(|entry| entry.rows == 1)) {
                return Err(missing("decode_1"));
            }
            match (prefills, unexpected(EntryKind::Prefill)) {
                (false, Some(entry)) => return Err(idle(entry)),
                (true, None) => return Err(missing("prefill")),
                _ => {}
            }
        } else if !own.contains_key(&EntryKind::Encode) {
            return Err(missing("encode"));
        }
        for (kind, entries) in own {
            let (other, expected) = chain.entry(kind).or_insert_with(|| (position, entries.clone()));
            if *expected != entries {
                let message = format!("the {kind} entry points differ from those of shard {other}");
                return Err(fault_in(position, message));
            }
        }
    }
    Ok(())
}

/// Checks that the draft is in the request and that every shard has the entry point that verifies
/// it.
fn speculation(plan: &Plan, request: &Request) -> Result<Option<ChosenSpeculation>> {
    let Some(planned) = &plan.speculation else { return Ok(None) };
    let rows = planned.rows;
    let Some(draft) = request.drafts.iter().find(|draft| draft.name == planned.draft) else {
        let draft = &planned.draft;
        let message = format!("the plan verifies proposals of `{draft}`, which the request does not offer");
        return Err(fault(message));
    };
    if rows < 2 {
        return Err(fault(format!("expected at least 2 rows to verify proposals, got {rows}")));
    }
    let verifies = |entry: &EntryName| entry.kind == EntryKind::Decode && entry.rows == rows;
    match shards(plan).find(|(_, shard)| !shard.entries.iter().any(verifies)) {
        Some((shard, _)) => Err(fault_in(shard, format!("no decode_{rows} entry point to verify proposals"))),
        None => Ok(Some(ChosenSpeculation {
            draft: planned.draft.clone(),
            rows,
            gain_thousandths: planned.gain_thousandths,
            provenance: draft.provenance,
            accepted_steps: match draft.name.as_str() {
                ChosenSpeculation::LOOKUP => Vec::new(),
                _ => draft.accepted_steps.clone(),
            },
        })),
    }
}

/// Checks boundaries: exactly the tensors that pass between this shard and others, with valid
/// encodings, and equal encodings at reader and writer.
fn boundaries(plan: &Plan, request: &Request) -> Result<()> {
    let mut written = BTreeMap::new();
    let flows = flow::boundaries(plan, request);
    for ((position, shard), flow) in shards(plan).zip(&flows) {
        let sides = [("input", &shard.inputs, &flow.inputs), ("output", &shard.outputs, &flow.outputs)];
        for (direction, actual, expected) in sides {
            let mut seen = BTreeSet::new();
            for boundary in actual {
                let name = boundary.name.as_str();
                if !expected.contains(&name) {
                    return Err(fault_in(position, format!("the component has no {direction} `{name}`")));
                }
                if !seen.insert(name) {
                    return Err(fault_in(position, format!("{direction} `{name}` is listed twice")));
                }
                // The scale of floats is chosen by the host.
                let is_legal = |encoding: &Encoding| {
                    encoding.is_consistent()
                        && (!encoding.element.is_float() || encoding.scale == ScaleBits::ONE)
                };
                if let Some(encoding) = boundary.encoding.filter(|encoding| !is_legal(encoding)) {
                    return Err(invalid_encoding(position, name, encoding));
                }
            }
            if let Some(&name) = expected.iter().find(|name| !seen.contains(*name)) {
                return Err(fault_in(position, format!("{direction} `{name}` is missing")));
            }
        }
        for boundary in &shard.inputs {
            // Inputs that no shard writes come from the runtime and may have any encoding. A side
            // without an encoding adopts the other's, or the tensor is converted.
            if let Some(&(writer, Some(encoding))) = written.get(boundary.name.as_str())
                && let Some(read) = boundary.encoding
                && encoding != read
            {
                let name = &boundary.name;
                let written = format!("shard {writer} writes it as {encoding}");
                return Err(fault_in(position, format!("reads `{name}` as {read}, but {written}")));
            }
        }
        for boundary in &shard.outputs {
            written.insert(boundary.name.as_str(), (position, boundary.encoding));
        }
    }
    Ok(())
}

/// Checks that a shard specifies a soft-cap place if and only if it has a component with a
/// soft-cap.
fn softcaps(plan: &Plan, request: &Request) -> Result<()> {
    for (position, shard) in shards(plan) {
        let mut components = shard.segments.iter().filter_map(|segment| component(request, segment));
        let capped = components.find(|component| component.softcap.is_some());
        match (capped, shard.softcap) {
            (None, Some(place)) => {
                let last = shard.segments.last().and_then(|segment| component(request, segment));
                let component = last.map_or("", |component| component.name.as_str());
                let message = format!("component `{component}` has no soft-cap for the {place} to compute");
                return Err(fault_in(position, message));
            }
            (Some(component), None) => {
                let component = &component.name;
                let message = format!(
                    "the plan does not specify where to compute the soft-cap of component `{component}`"
                );
                return Err(fault_in(position, message));
            }
            _ => {}
        }
    }
    Ok(())
}

fn flags(plan: &Plan, request: &Request) -> Result<()> {
    for (position, shard) in shards(plan) {
        let Some(target) = request.targets.get(shard.target as usize) else { continue };
        let mut seen = BTreeSet::new();
        for flag in &shard.flags {
            let Some(schema) = target.schema.iter().find(|schema| schema.name == flag.name) else {
                let message = format!("`{}` has no flag `{}`", target.target.name, flag.name);
                let help = "use a flag that the request lists for this target";
                return Err(fault_in(position, message).with_help(help));
            };
            if let Err(expected) = schema.accepts(&flag.value) {
                return Err(fault_in(position, format!("flag `{flag}`: expected {expected}")));
            }
            if !seen.insert(&flag.name) {
                return Err(fault_in(position, format!("flag `{}` is listed twice", flag.name)));
            }
        }
    }
    Ok(())
}

fn fallback(plan: &Plan, request: &Request, costs: &[ShardCost]) -> Result<()> {
    let table = CostTable::new(request);
    let main = hedge::main_target(plan);
    let mut seen = BTreeSet::new();
    for chain in &plan.fallback {
        let &Fallback { target, ref formats, ref limits } = chain;
        let Some(summary) = request.targets.get(target as usize) else {
            return Err(fault(format!("the request has no target {target} to fall back to")));
        };
        if !seen.insert((target, limits.iter().collect::<BTreeSet<_>>())) {
            let same = if limits.is_empty() { "" } else { ", with the same limits" };
            return Err(fault(format!("target {target} is listed twice as a fallback{same}")));
        }
        let mut known = BTreeSet::new();
        for &formats in formats {
            let tuple = request.formats.get(formats as usize).filter(|_| known.insert(formats));
            let Some(tuple) = tuple else {
                let message = format!("format tuple {formats} is unknown or listed twice");
                return Err(fault(message).at(format!("fallback to target {target}")));
            };
            if let Some(why) = takes_nothing(plan, request, &table, target, formats) {
                return Err(fault(format!("no part of the model is supported as {tuple}: {why}"))
                    .at(format!("fallback to `{}`", summary.target.name)));
            }
        }
        if let Some(why) = hedge::fault(chain, plan, costs, main) {
            return Err(fault(why).at(format!("fallback to `{}`", summary.target.name)));
        }
        if chain.is_hedge() && hedge::least_bytes(request, plan, chain).is_none() {
            return Err(fault("its target does not support the whole model in these formats")
                .at(format!("fallback to `{}`", summary.target.name)));
        }
    }
    Ok(())
}

/// Returns why a target supports no layer kind in these formats, or `None` if it supports one.
/// Checks the entry points of the plan, except for those that verify proposed tokens: a fallback
/// chain does not need them.
fn takes_nothing(
    plan: &Plan,
    request: &Request,
    table: &CostTable<'_>,
    target: u32,
    formats: u32,
) -> Option<String> {
    let verifies = |entry: &EntryName| entry.kind == EntryKind::Decode && entry.rows > 1;
    let entries = plan.shards.iter().flat_map(|shard| &shard.entries).filter(|entry| !verifies(entry));
    let entries: Vec<EntryName> = entries.copied().collect();
    let mut first = None;
    for kind in 0..u32::try_from(request.kinds.len()).unwrap_or(u32::MAX) {
        match table.shard(&[kind], target, &[formats], &entries) {
            Err(CostFault::Illegal { why, .. }) => first = first.or(Some(why)),
            Ok(_) | Err(CostFault::Overflow) => return None,
        }
    }
    first
}

/// Checks that the plan has one known format for each table.
fn tables(plan: &Plan, request: &Request) -> Result<Vec<CheckedTable>> {
    let (found, expected) = (plan.tables.len(), request.tables.len());
    if found != expected {
        return Err(fault(format!("{expected} gathered tables need {expected} formats, got {found}")));
    }
    let chosen =
        |(table, &format): (&GatheredTable, &u32)| {
            let name = table.name.clone();
            match table.formats.get(format as usize) {
                Some(chosen) => Ok(CheckedTable { name, chosen: chosen.clone() }),
                None => Err(fault(format!("the request does not offer format {format}"))
                    .at(format!("table `{name}`"))),
            }
        };
    request.tables.iter().zip(&plan.tables).map(chosen).collect()
}

fn costs(plan: &Plan, request: &Request) -> Result<Vec<ShardCost>> {
    let table = CostTable::new(request);
    let mut costs = Vec::with_capacity(plan.shards.len());
    for (position, shard) in shards(plan) {
        let formats: Vec<u32> = shard.formats().collect();
        let cost = table.shard(&kinds(request, shard), shard.target, &formats, &shard.entries);
        let illegal = |fault: CostFault| match fault {
            CostFault::Overflow => cost_overflow(position),
            CostFault::Illegal { kind, formats, entry, why } => {
                let kind = request.kinds.get(kind as usize).map_or("", |kind| kind.name.as_str());
                let target = request.targets.get(shard.target as usize);
                let target = target.map_or("", |target| target.target.name.as_str());
                let formats = request.formats.get(formats as usize);
                let formats = formats.map_or_else(String::new, ToString::to_string);
                let what = format!("`{kind}` as {formats} at {entry}");
                fault_in(position, format!("`{target}` does not support {what}: {why}"))
            }
        };
        costs.push(cost.map_err(illegal)?);
    }
    Ok(costs)
}

fn cost_overflow(shard: u32) -> Error {
    fault_in(shard, "the costs do not fit in 64 bits")
}

/// Returns the binding limit of this name under these flags, if the target has one. This is the
/// smallest, with the value that the flags give it.
fn limit(limits: &[Limit], name: &str, flags: &[Flag]) -> Option<Limit> {
    let named = limits.iter().filter(|limit| limit.name == name);
    let limit = named.min_by_key(|limit| limit.under(flags))?;
    Some(Limit { value: limit.under(flags), ..limit.clone() })
}

fn limits(plan: &Plan, request: &Request, costs: &[ShardCost], tables: &[CheckedTable]) -> Result<()> {
    let held = plan.speculation.as_ref().and_then(|speculation| {
        let draft = request.drafts.iter().find(|draft| draft.name == speculation.draft)?;
        Some(draft.held_bytes(speculation.rows))
    });
    let mut total = held.unwrap_or(0);
    let mut per_target: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for ((position, shard), cost) in shards(plan).zip(costs) {
        let Some(target) = request.targets.get(shard.target as usize) else { continue };
        let values = [
            (limit_names::OPS, cost.ops),
            (limit_names::WEIGHT_BYTES, cost.weight_bytes),
            (limit_names::ARTEFACT_BYTES, cost.artefact_bytes),
            (limit_names::CONTEXT_BYTES, cost.context_bytes()),
            (limit_names::CALL_MICROSECONDS, cost.call_microseconds()),
        ];
        for (name, value) in values {
            if let Some(limit) = limit(&target.limits, name, &shard.flags)
                && value > limit.value
            {
                return Err(over_limit(value, &limit).at(format!("shard {position}")));
            }
        }
        let overflow = || cost_overflow(position);
        total = total.checked_add(cost.context_bytes()).ok_or_else(overflow)?;
        let (count, bytes) = per_target.entry(shard.target).or_default();
        *count += 1;
        *bytes = bytes.checked_add(cost.context_bytes()).ok_or_else(overflow)?;
    }
    for (target, (count, bytes)) in per_target {
        let Some(target) = request.targets.get(target as usize) else { continue };
        for (name, value) in [(limit_names::SHARDS, count), (limit_names::MEMORY_BYTES, bytes)] {
            if let Some(limit) = limit(&target.limits, name, &[])
                && value > limit.value
            {
                return Err(over_limit(value, &limit).at(format!("target `{}`", target.target.name)));
            }
        }
    }
    if let Some(max) = request.goals.memory_bytes.filter(|max| total > *max) {
        return Err(fault(format!("the plan needs {total} bytes of memory, the goal is {max}"))
            .with_help("allow more memory, or less context"));
    }
    let parts = costs.iter().map(|cost| cost.artefact_bytes);
    let parts = parts.chain(tables.iter().map(|table| table.chosen.bytes));
    let size = parts.fold(0_u64, u64::saturating_add);
    let Some(max) = request.goals.size_bytes else { return Ok(()) };
    // A device stores hedges too.
    let (parts, size) = match hedge::bytes(request, plan) {
        0 => ("artefacts and tables", size),
        hedges => ("artefacts, tables and hedges", size.saturating_add(hedges)),
    };
    match size > max {
        true => Err(fault(format!("{parts} together have {size} bytes, the goal is {max}"))
            .with_help("allow more bytes, or offer narrower weight formats")),
        false => Ok(()),
    }
}

/// Checks the goals for times. A goal is missed only if the lowest time exceeds it.
fn times(request: &Request, plan: &CheckedPlan) -> Result<()> {
    let PlanTimes { token, first_token } = plan_times(request, plan);
    let goals = &request.goals;
    for (what, time, max) in [
        ("a token", Some(token), goals.token_microseconds),
        ("the first token", first_token, goals.first_token_microseconds),
    ] {
        if let (Some(time), Some(max)) = (time, max)
            && time.verdict(max) == GoalVerdict::Missed
        {
            let low = time.low;
            return Err(fault(format!("{what} needs at least {low} µs, the goal is {max} µs"))
                .with_help("allow more time, or offer faster formats"));
        }
    }
    Ok(())
}

fn quality(plan: &Plan, request: &Request, tables: &[CheckedTable]) -> Result<Loss> {
    let losses = Losses::new(request);
    let table = CostTable::new(request);
    let mut loss = Loss::default();
    for (position, shard) in shards(plan) {
        let units = shard.segments.iter().flat_map(|segment| {
            (segment.first..).zip(&segment.formats).map(move |(layer, &formats)| (segment, layer, formats))
        });
        for (kind, (segment, layer, formats)) in kinds(request, shard).into_iter().zip(units) {
            let Some(tuple) = request.formats.get(formats as usize) else { continue };
            // A component without weights has no loss.
            let row = |&entry: &EntryName| table.row(kind, shard.target, formats, entry);
            if !shard.entries.iter().filter_map(row).any(|row| row.weight_bytes > 0) {
                continue;
            }
            match losses.of(segment.component, layer, tuple) {
                UnitLoss::None => continue,
                UnitLoss::Known { micronats, measured, modelled } => {
                    loss.micronats = loss.micronats.saturating_add(micronats);
                    loss.measured = loss.measured.saturating_add(measured);
                    loss.modelled += u64::from(modelled);
                }
                UnitLoss::UnknownValues { micronats, measured } => {
                    loss.micronats = loss.micronats.saturating_add(micronats);
                    loss.measured = loss.measured.saturating_add(measured);
                    loss.unmeasured += 1;
                }
                UnitLoss::Unknown if request.goals.quality_micronats.is_some() => {
                    let name = component(request, segment).map_or("?", |known| known.name.as_str());
                    let part = if segment.end == 0 { name.to_owned() } else { format!("layer {layer}") };
                    let message = format!(
                        "the loss of {part} in {tuple} was not measured, but there is a quality goal"
                    );
                    return Err(fault_in(position, message).with_help(MEASURE));
                }
                UnitLoss::Unknown => loss.unmeasured += 1,
            }
            loss.lossy += 1;
        }
    }
    for CheckedTable { name, chosen } in tables {
        if chosen.micronats == Some(0) {
            continue;
        }
        loss.lossy += 1;
        match chosen.micronats {
            Some(micronats) => {
                loss.micronats = loss.micronats.saturating_add(micronats.into());
                match chosen.provenance {
                    Provenance::Measured => loss.measured = loss.measured.saturating_add(micronats.into()),
                    _ => loss.modelled += 1,
                }
            }
            None if request.goals.quality_micronats.is_some() => {
                let message =
                    format!("no loss is known for format {}, and there is a quality goal", chosen.format);
                return Err(fault(message).at(format!("table `{name}`")).with_help(MEASURE));
            }
            None => loss.unmeasured += 1,
        }
    }
    match request.goals.quality_micronats {
        Some(max) if loss.micronats > max => {
            let value = loss.micronats;
            Err(fault(format!("the quality loss is {value} millionths of a nat, the goal is {max}"))
                .with_help("allow a larger loss, or wider weight formats"))
        }
        _ => Ok(loss),
    }
}
