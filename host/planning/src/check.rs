//! Checks a plan against its request. This is the only way from a [`Plan`], which an untrusted
//! guest wrote, to a [`CheckedPlan`], which a compiler may see. It checks everything a compiler or
//! the runtime relies on and judges nothing else (a slow plan passes).
//!
//! Never panics and takes time and memory in proportion to plan and request; every count and string
//! of a plan has a cap below.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use shardwright_graph::ComponentKind;
use shardwright_vocabulary::{
    EntryKind, EntryName, Flag, FormatTuple, Limit, ShardFormats, Target, WeightFormat, limit_names,
};

use crate::cost::{CostFault, CostTable, ShardCost};
use crate::plan::{Plan, Shard};
use crate::request::{Body, Component, PrefillPart, Request};

mod fault;
#[cfg(test)]
mod tests;

pub use fault::{Direction, PlanFault};

/// Caps on a plan. Each is far above what any model of 8 billion parameters needs and small enough
/// that checking, printing and storing a plan stays trivial.
pub mod caps {
    /// One shard per layer for 200 layers, and the components around them.
    pub const SHARDS: usize = 256;
    /// Layers of one shard, as many as a request may have.
    pub const LAYERS: usize = crate::request::caps::LAYERS;
    /// Entry points of one shard.
    pub const ENTRIES: usize = 16;
    /// Boundary tensors a shard reads, and writes.
    pub const BOUNDARIES: usize = 16;
    /// Flags of one shard.
    pub const FLAGS: usize = 128;
    /// Targets to fall back to.
    pub const FALLBACKS: usize = 16;
    /// Reasons of one plan.
    pub const REASONS: usize = 1024;
    /// Bytes of a name (boundary, flag, cause).
    pub const NAME_BYTES: usize = 128;
    /// Bytes of a text (flag value, choice, reason).
    pub const TEXT_BYTES: usize = 4096;
}

/// A plan that was checked against its request, with the costs of its shards.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedPlan {
    plan: Plan,
    shards: Vec<CheckedShard>,
    loss: Loss,
}

/// A shard of a checked plan: the meaning of its indices, and its cost.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckedShard {
    /// `decoder.0-12`, `head`
    pub name: String,
    /// Its component.
    pub component: ComponentKind,
    /// Its layers; `None` for a component that is never cut.
    pub layers: Option<Range<u32>>,
    /// The target it runs on.
    pub target: Target,
    /// Formats of weights, activations and states.
    pub formats: ShardFormats,
    /// The shard as the plan has it.
    pub planned: Shard,
    /// What it costs.
    pub cost: ShardCost,
}

/// Quality a plan loses by the formats of its weights. Activations and states are not counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Loss {
    /// Measured part: KL divergence in millionths of a nat per token.
    pub micronats: u64,
    /// Number of layers, and of components without layers, whose weight formats lose quality.
    pub lossy: u64,
    /// Number of those whose loss was not measured.
    pub unmeasured: u64,
}

impl CheckedPlan {
    /// The plan.
    pub fn plan(&self) -> &Plan {
        &self.plan
    }

    /// The shards in order of execution.
    pub fn shards(&self) -> &[CheckedShard] {
        &self.shards
    }

    /// Rows of the largest entry point of all shards.
    pub fn largest_rows(&self) -> u32 {
        self.plan.shards.iter().flat_map(|shard| &shard.entries).map(|entry| entry.rows).max().unwrap_or(1)
    }

    /// Predicted loss of quality.
    pub fn loss(&self) -> Loss {
        self.loss
    }

    /// The plan without the proof of its check.
    pub fn into_plan(self) -> Plan {
        self.plan
    }
}

/// Checks `plan` against `request`.
///
/// Returns the first fault found; faults that make later checks meaningless (counts, indices,
/// coverage) come first.
pub fn check(plan: Plan, request: &Request) -> Result<CheckedPlan, PlanFault> {
    counts_and_texts(&plan)?;
    coverage(&plan, request)?;
    let resolved = resolved(&plan, request)?;
    donors(&plan, request)?;
    entries(&plan, request)?;
    boundaries(&plan, request)?;
    softcaps(&plan, request)?;
    flags(&plan, request)?;
    fallback(&plan, request)?;
    let costs = costs(&plan, request)?;
    limits(&plan, request, &costs)?;
    let loss = quality(&plan, request, &costs)?;
    let with_cost = |(shard, cost)| CheckedShard { cost, ..shard };
    Ok(CheckedPlan { shards: resolved.into_iter().zip(costs).map(with_cost).collect(), plan, loss })
}

/// Index as a plan spells it. Counts are capped before any index is made.
fn index(position: usize) -> u32 {
    u32::try_from(position).unwrap_or(u32::MAX)
}

fn shards(plan: &Plan) -> impl Iterator<Item = (u32, &Shard)> {
    plan.shards.iter().enumerate().map(|(position, shard)| (index(position), shard))
}

fn counts_and_texts(plan: &Plan) -> Result<(), PlanFault> {
    let count = |what, count: usize, cap: usize| {
        if count > cap { Err(PlanFault::TooMany { what, count, cap }) } else { Ok(()) }
    };
    let text = |what, text: &str, cap: usize| {
        if text.len() > cap { Err(PlanFault::TextTooLong { what, bytes: text.len(), cap }) } else { Ok(()) }
    };
    count("shards", plan.shards.len(), caps::SHARDS)?;
    count("fallback targets", plan.fallback.len(), caps::FALLBACKS)?;
    count("reasons", plan.reasons.len(), caps::REASONS)?;
    for shard in &plan.shards {
        count("format tuples", shard.formats.len(), caps::LAYERS)?;
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
    for reason in &plan.reasons {
        use crate::plan::Cause::{Cost, Feedback, Goal, Limit, Preference};
        text("choice", &reason.choice, caps::TEXT_BYTES)?;
        text("reason", &reason.because, caps::TEXT_BYTES)?;
        let (Limit(name) | Cost(name) | Goal(name) | Feedback(name) | Preference(name)) = &reason.cause;
        text("cause", name, caps::NAME_BYTES)?;
        if let Some(shard) = reason.shard
            && shard as usize >= plan.shards.len()
        {
            return Err(PlanFault::UnknownReasonShard { shard });
        }
    }
    Ok(())
}

fn component<'request>(request: &'request Request, shard: &Shard) -> Option<&'request Component> {
    request.model.components.get(shard.component as usize)
}

/// The meaning of each shard's indices; costs follow.
fn resolved(plan: &Plan, request: &Request) -> Result<Vec<CheckedShard>, PlanFault> {
    let resolve = |(position, planned): (u32, &Shard)| {
        let unknown = || PlanFault::UnknownComponent { shard: position, component: planned.component };
        let existing = component(request, planned).ok_or_else(unknown)?;
        let target = request.targets.get(planned.target as usize);
        let layers = (existing.layer_count() > 0).then_some(planned.first..planned.end);
        Ok(CheckedShard {
            name: match &layers {
                Some(layers) => format!("{}.{}-{}", existing.name, layers.start, layers.end),
                None => existing.name.clone(),
            },
            component: ComponentKind::from_name(&existing.name).ok_or_else(unknown)?,
            layers,
            target: target
                .map(|target| target.target.clone())
                .ok_or(PlanFault::UnknownTarget { shard: position, target: planned.target })?,
            formats: shard_formats(position, planned, request)?,
            planned: planned.clone(),
            cost: ShardCost::default(),
        })
    };
    shards(plan).map(resolve).collect()
}

/// The formats of a shard's layers: one tuple each, alike in activations and states.
fn shard_formats(shard: u32, planned: &Shard, request: &Request) -> Result<ShardFormats, PlanFault> {
    let (found, expected) =
        (planned.formats.len(), planned.end.saturating_sub(planned.first).max(1) as usize);
    if found != expected {
        return Err(PlanFault::FormatsCount { shard, found, expected });
    }
    let tuple = |&formats: &u32| {
        let known = request.formats.get(formats as usize);
        known.ok_or(PlanFault::UnknownFormats { shard, formats })
    };
    let tuples = planned.formats.iter().map(tuple).collect::<Result<Vec<&FormatTuple>, _>>()?;
    ShardFormats::of_layers(planned.first, tuples.iter().copied()).ok_or_else(|| {
        let values = |tuple: &FormatTuple| (tuple.activations, tuple.states);
        let differs = tuples.iter().position(|tuple| values(tuple) != values(tuples[0])).unwrap_or(0);
        let layer = planned.first.saturating_add(index(differs));
        PlanFault::FormatsDiffer { shard, layer, formats: tuples[differs].to_string() }
    })
}

/// Every component in order, every layer exactly once and in order.
fn coverage(plan: &Plan, request: &Request) -> Result<(), PlanFault> {
    // Progress of each component: `None` before its first shard, then the number of layers covered.
    let mut covered: Vec<Option<u32>> = vec![None; request.model.components.len()];
    let mut current = 0_u32;
    for (position, shard) in shards(plan) {
        if shard.component < current {
            return Err(PlanFault::ComponentOrder { shard: position, component: shard.component });
        }
        current = shard.component;
        let (Some(component), Some(done)) =
            (component(request, shard), covered.get_mut(shard.component as usize))
        else {
            return Err(PlanFault::UnknownComponent { shard: position, component: shard.component });
        };
        let (first, end, layers) = (shard.first, shard.end, component.layer_count());
        match &component.body {
            Body::Whole(_) => {
                if (first, end) != (0, 0) {
                    return Err(PlanFault::LayerRange { shard: position, first, end, layers });
                }
                if done.replace(0).is_some() {
                    return Err(PlanFault::ComponentRepeated {
                        shard: position,
                        component: component.name.clone(),
                    });
                }
            }
            Body::Layers(_) => {
                let expected = done.unwrap_or(0);
                if first >= end || end > layers {
                    return Err(PlanFault::LayerRange { shard: position, first, end, layers });
                }
                if first < expected {
                    return Err(PlanFault::LayerRepeated { shard: position, layer: first });
                }
                if first > expected {
                    return Err(PlanFault::LayerSkipped {
                        component: component.name.clone(),
                        layer: expected,
                    });
                }
                *done = Some(end);
            }
        }
    }
    for (component, done) in request.model.components.iter().zip(covered) {
        match done {
            None => return Err(PlanFault::ComponentMissing { component: component.name.clone() }),
            Some(end) if end < component.layer_count() => {
                return Err(PlanFault::LayerSkipped { component: component.name.clone(), layer: end });
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// A layer that reads a donor's state must be on the donor's shim and device.
fn donors(plan: &Plan, request: &Request) -> Result<(), PlanFault> {
    let mut home: BTreeMap<(u32, u32), u32> = BTreeMap::new();
    for (position, shard) in shards(plan) {
        for layer in shard.first..shard.end {
            home.insert((shard.component, layer), position);
        }
    }
    let place = |position: u32| {
        let target = plan.shards.get(position as usize)?.target;
        let target = &request.targets.get(target as usize)?.target;
        Some((target.shim.as_str(), target.device.as_str()))
    };
    for (position, shard) in shards(plan) {
        let Some(Component { body: Body::Layers(layers), .. }) = component(request, shard) else { continue };
        for layer in shard.first..shard.end {
            let Some(donor) = layers.get(layer as usize).and_then(|layer| layer.donor) else { continue };
            let donor_shard = home.get(&(shard.component, donor)).copied();
            if donor_shard.is_none_or(|donor_shard| place(donor_shard) != place(position)) {
                return Err(PlanFault::StateNotShareable {
                    shard: position,
                    layer,
                    donor,
                    donor_shard: donor_shard.unwrap_or(position),
                });
            }
        }
    }
    Ok(())
}

/// Entry points and context: known, complete, and the same along the chain.
fn entries(plan: &Plan, request: &Request) -> Result<(), PlanFault> {
    let known: BTreeSet<EntryName> = request.entries.iter().copied().collect();
    let has_states = request.entries.iter().any(|entry| entry.kind != EntryKind::Encode);
    // The entry points every shard must have: for each kind, those of its first shard that has any.
    let mut chain: BTreeMap<EntryKind, (u32, BTreeSet<EntryName>)> = BTreeMap::new();
    let mut chain_context: Option<u32> = None;
    for (position, shard) in shards(plan) {
        let context = shard.context;
        if has_states {
            if context < request.goals.context {
                let goal = request.goals.context;
                return Err(PlanFault::ContextTooSmall { shard: position, context, goal });
            }
            if context > request.model.max_context {
                let max = request.model.max_context;
                return Err(PlanFault::ContextTooLarge { shard: position, context, max });
            }
        } else if context != 0 {
            return Err(PlanFault::ContextTooLarge { shard: position, context, max: 0 });
        }
        let expected = *chain_context.get_or_insert(context);
        if expected != context {
            return Err(PlanFault::ContextDiffers { shard: position, context, expected });
        }

        let mut own: BTreeMap<EntryKind, BTreeSet<EntryName>> = BTreeMap::new();
        for &entry in &shard.entries {
            if !known.contains(&entry) {
                return Err(PlanFault::UnknownEntry { shard: position, entry });
            }
            let expected_context = if entry.kind == EntryKind::Encode { 0 } else { context };
            if entry.context != expected_context {
                return Err(PlanFault::EntryContext { shard: position, entry, context });
            }
            if entry.kind != EntryKind::Decode && entry.rows > request.goals.max_prefill_rows {
                let max = request.goals.max_prefill_rows;
                return Err(PlanFault::EntryTooLarge { shard: position, entry, max });
            }
            if !own.entry(entry.kind).or_default().insert(entry) {
                return Err(PlanFault::EntryRepeated { shard: position, entry });
            }
        }

        let kinds = component(request, shard)
            .and_then(|component| component.shard_kinds(shard.first, shard.end, shard.softcap))
            .unwrap_or_default();
        let prefills = kinds.iter().any(|&kind| {
            request.kinds.get(kind as usize).is_some_and(|kind| kind.prefill != PrefillPart::None)
        });
        let unexpected = |kind: EntryKind| own.get(&kind).and_then(|entries| entries.first()).copied();
        let missing = |needed| PlanFault::EntryMissing { shard: position, needed };
        if has_states {
            if let Some(entry) = unexpected(EntryKind::Encode) {
                return Err(PlanFault::UnexpectedEntry { shard: position, entry });
            }
            let decodes = own.get(&EntryKind::Decode);
            if !decodes.is_some_and(|decodes| decodes.iter().any(|entry| entry.rows == 1)) {
                return Err(missing("decode_1"));
            }
            match (prefills, unexpected(EntryKind::Prefill)) {
                (false, Some(entry)) => {
                    return Err(PlanFault::UnexpectedEntry { shard: position, entry });
                }
                (true, None) => return Err(missing("prefill")),
                _ => {}
            }
        } else if !own.contains_key(&EntryKind::Encode) {
            return Err(missing("encode"));
        }
        for (kind, entries) in own {
            let (other, expected) = chain.entry(kind).or_insert_with(|| (position, entries.clone()));
            if *expected != entries {
                return Err(PlanFault::EntriesDiffer { shard: position, other: *other, kind });
            }
        }
    }
    Ok(())
}

/// Boundaries: exactly those of the component, sound encodings, reader equal to writer.
fn boundaries(plan: &Plan, request: &Request) -> Result<(), PlanFault> {
    let mut written = BTreeMap::new();
    for (position, shard) in shards(plan) {
        let Some(component) = component(request, shard) else { continue };
        let sides = [
            (Direction::Input, &shard.inputs, &component.inputs),
            (Direction::Output, &shard.outputs, &component.outputs),
        ];
        for (direction, actual, expected) in sides {
            let mut seen = BTreeSet::new();
            for boundary in actual {
                let name = boundary.name.clone();
                if !expected.contains(&boundary.name) {
                    return Err(PlanFault::UnknownBoundary { shard: position, direction, name });
                }
                if !seen.insert(&boundary.name) {
                    return Err(PlanFault::BoundaryRepeated { shard: position, direction, name });
                }
                if let Some(encoding) = boundary.encoding.filter(|encoding| !encoding.is_consistent()) {
                    return Err(PlanFault::EncodingInvalid { shard: position, name, encoding });
                }
            }
            if let Some(name) = expected.iter().find(|name| !seen.contains(name)) {
                let name = name.clone();
                return Err(PlanFault::BoundaryMissing { shard: position, direction, name });
            }
        }
        for boundary in &shard.inputs {
            // Nothing before the first shard writes; such inputs come from the runtime and may have
            // any encoding. A side without an encoding adopts the other's, or is converted.
            if let Some(&(writer, Some(encoding))) = written.get(boundary.name.as_str())
                && let Some(read) = boundary.encoding
                && encoding != read
            {
                return Err(PlanFault::EncodingMismatch {
                    name: boundary.name.clone(),
                    writer,
                    written: encoding,
                    reader: position,
                    read,
                });
            }
        }
        for boundary in &shard.outputs {
            written.insert(boundary.name.as_str(), (position, boundary.encoding));
        }
    }
    Ok(())
}

/// The soft-cap place of every component that has a soft-cap, and of no other.
fn softcaps(plan: &Plan, request: &Request) -> Result<(), PlanFault> {
    for (position, shard) in shards(plan) {
        let Some(component) = component(request, shard) else { continue };
        match (&component.softcap, shard.softcap) {
            (None, Some(place)) => {
                let component = component.name.clone();
                return Err(PlanFault::NoSoftcap { shard: position, component, place });
            }
            (Some(_), None) => {
                let component = component.name.clone();
                return Err(PlanFault::SoftcapMissing { shard: position, component });
            }
            _ => {}
        }
    }
    Ok(())
}

fn flags(plan: &Plan, request: &Request) -> Result<(), PlanFault> {
    for (position, shard) in shards(plan) {
        let Some(target) = request.targets.get(shard.target as usize) else { continue };
        let mut seen = BTreeSet::new();
        for flag in &shard.flags {
            let Some(schema) = target.schema.iter().find(|schema| schema.name == flag.name) else {
                return Err(PlanFault::UnknownFlag {
                    shard: position,
                    flag: flag.name.clone(),
                    target: target.target.name.clone(),
                });
            };
            if let Err(expected) = schema.accepts(&flag.value) {
                return Err(PlanFault::FlagValue { shard: position, flag: flag.clone(), expected });
            }
            if !seen.insert(&flag.name) {
                return Err(PlanFault::FlagRepeated { shard: position, flag: flag.name.clone() });
            }
        }
    }
    Ok(())
}

fn fallback(plan: &Plan, request: &Request) -> Result<(), PlanFault> {
    let mut seen = BTreeSet::new();
    for &target in &plan.fallback {
        if target as usize >= request.targets.len() {
            return Err(PlanFault::UnknownFallback { target });
        }
        if !seen.insert(target) {
            return Err(PlanFault::FallbackRepeated { target });
        }
    }
    Ok(())
}

fn costs(plan: &Plan, request: &Request) -> Result<Vec<ShardCost>, PlanFault> {
    let table = CostTable::new(request);
    let mut costs = Vec::with_capacity(plan.shards.len());
    for (position, shard) in shards(plan) {
        let kinds = component(request, shard)
            .and_then(|component| component.shard_kinds(shard.first, shard.end, shard.softcap))
            .unwrap_or_default();
        let cost =
            table.shard(&kinds, shard.target, &shard.formats, &shard.entries).map_err(
                |fault| match fault {
                    CostFault::Overflow => PlanFault::CostOverflow { shard: position },
                    CostFault::Illegal { kind, formats, entry, why } => PlanFault::IllegalFormats {
                        shard: position,
                        kind: request
                            .kinds
                            .get(kind as usize)
                            .map_or_else(String::new, |kind| kind.name.clone()),
                        target: request
                            .targets
                            .get(shard.target as usize)
                            .map_or_else(String::new, |target| target.target.name.clone()),
                        formats: request
                            .formats
                            .get(formats as usize)
                            .map_or_else(String::new, ToString::to_string),
                        entry,
                        why,
                    },
                },
            )?;
        costs.push(cost);
    }
    Ok(costs)
}

/// The binding limit of this name under these flags, if the target has one: the smallest, with the
/// value that the flags give it.
fn limit(limits: &[Limit], name: &str, flags: &[Flag]) -> Option<Limit> {
    let named = limits.iter().filter(|limit| limit.name == name);
    let limit = named.min_by_key(|limit| limit.under(flags))?;
    Some(Limit { value: limit.under(flags), ..limit.clone() })
}

fn limits(plan: &Plan, request: &Request, costs: &[ShardCost]) -> Result<(), PlanFault> {
    let mut total = 0_u64;
    let mut per_target: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for ((position, shard), cost) in shards(plan).zip(costs) {
        let Some(target) = request.targets.get(shard.target as usize) else { continue };
        let values = [
            (limit_names::OPS, cost.ops),
            (limit_names::WEIGHT_BYTES, cost.weight_bytes),
            (limit_names::ARTEFACT_BYTES, cost.artefact_bytes),
            (limit_names::CONTEXT_BYTES, cost.context_bytes()),
        ];
        for (name, value) in values {
            if let Some(limit) = limit(&target.limits, name, &shard.flags)
                && value > limit.value
            {
                return Err(PlanFault::OverLimit { shard: position, value, limit });
            }
        }
        let overflow = || PlanFault::CostOverflow { shard: position };
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
                let target = target.target.name.clone();
                return Err(PlanFault::OverTargetLimit { target, value, limit });
            }
        }
    }
    match request.goals.memory_bytes {
        Some(max) if total > max => Err(PlanFault::OverMemory { value: total, max }),
        _ => Ok(()),
    }
}

/// Whether weights in this format equal the checkpoint's up to float rounding, so that no loss is
/// counted.
fn is_lossless(format: WeightFormat) -> bool {
    matches!(format, WeightFormat::F32 | WeightFormat::F16 | WeightFormat::Bf16)
}

fn quality(plan: &Plan, request: &Request, costs: &[ShardCost]) -> Result<Loss, PlanFault> {
    let mut measured: BTreeMap<(u32, u32), Vec<_>> = BTreeMap::new();
    for sensitivity in &request.sensitivities {
        measured.entry((sensitivity.component, sensitivity.layer)).or_default().push(sensitivity);
    }
    let mut loss = Loss::default();
    for ((position, shard), cost) in shards(plan).zip(costs) {
        // A component without weights loses nothing.
        if cost.weight_bytes == 0 {
            continue;
        }
        for (layer, &formats) in (shard.first..).zip(&shard.formats) {
            let Some(tuple) = request.formats.get(formats as usize) else { continue };
            if is_lossless(tuple.weights) && tuple.roles.iter().all(|entry| is_lossless(entry.format)) {
                continue;
            }
            let mut known = false;
            for sensitivity in measured.get(&(shard.component, layer)).into_iter().flatten() {
                if tuple.weight(sensitivity.role) == sensitivity.format {
                    known = true;
                    loss.micronats = loss.micronats.saturating_add(sensitivity.micronats.into());
                }
            }
            loss.lossy += 1;
            loss.unmeasured += u64::from(!known);
            if !known && request.goals.quality_micronats.is_some() {
                let formats = tuple.to_string();
                return Err(PlanFault::UnmeasuredQuality { shard: position, layer, formats });
            }
        }
    }
    match request.goals.quality_micronats {
        Some(max) if loss.micronats > max => Err(PlanFault::OverQuality { value: loss.micronats, max }),
        _ => Ok(loss),
    }
}
