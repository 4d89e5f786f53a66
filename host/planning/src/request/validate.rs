//! Validation of a request: the guarantees that every planner and the check of its plan rely on. A
//! request is written by our own `build` crate, or read from a file attached to a bug report.

use std::collections::BTreeSet;
use std::fmt::Display;

use shardwright_graph::ComponentKind;
use shardwright_vocabulary::{At, EntryKind, EntryName, Error, ErrorKind, Legality, Result, TimeCost};

use super::{Body, Request};

/// Caps on a request, far above the needs of a model of 8 billion parameters on five targets.
pub mod caps {
    use shardwright_vocabulary::ChosenSpeculation;

    pub const COMPONENTS: usize = 32;
    /// Layers of one component.
    pub const LAYERS: usize = 1024;
    pub const KINDS: usize = 1024;
    pub const TARGETS: usize = 32;
    pub const FORMATS: usize = 64;
    pub const ENTRIES: usize = 64;
    /// Rows of the cost table.
    pub const COSTS: usize = 1 << 17;
    pub const TABLES: usize = 8;
    /// Formats of one gathered table.
    pub const TABLE_FORMATS: usize = 16;
    /// Overheads of one target, and also facts of one target.
    pub const KNOWN: usize = 256;
    /// Ranges of boundary tensors.
    pub const RANGES: usize = 1 << 13;
    pub const PROMPTS: usize = 64;
    pub const DRAFTS: usize = 8;
    /// Entries of a draft's histogram of accepted tokens.
    pub const ACCEPTED: usize = ChosenSpeculation::ACCEPTED_MAX;
    pub const SENSITIVITIES: usize = 1 << 17;
    /// Microseconds of any time: a thousand hours. No sum over the cost table exceeds 64 bits.
    pub const MICROSECONDS: u64 = 3_600_000_000_000;
    /// Ratio of the slowest and the fastest run of an interval.
    pub const WIDTH: u64 = 1_000_000;
}

/// Creates the error of an invalid request.
fn fault(message: impl Into<String>) -> Error {
    Error::new(ErrorKind::Planning, message)
}

/// Checks that a list is not longer than in any real request.
fn at_most(cap: usize, what: &str, count: usize) -> Result<()> {
    if count <= cap { Ok(()) } else { Err(fault(format!("{count} {what}, expected at most {cap}"))) }
}

fn at_least_one(what: &str, count: usize) -> Result<()> {
    if count > 0 { Ok(()) } else { Err(fault(format!("no {what}"))) }
}

fn repeated(what: &str, name: &str) -> Error {
    fault(format!("{what} `{name}` is listed twice"))
}

fn misfit(why: impl Display) -> Error {
    fault(format!("entry points do not fit the model: {why}"))
}

pub(super) fn validate(request: &Request) -> Result<()> {
    let checks: [fn(&Request) -> Result<()>; 8] =
        [counts, model, entries, tables, gathered_tables, ranges, targets, times];
    checks.into_iter().try_for_each(|check| check(request)).at("request")
}

fn counts(request: &Request) -> Result<()> {
    let lists = [
        ("components", request.model.components.len(), caps::COMPONENTS, true),
        ("layer kinds", request.kinds.len(), caps::KINDS, true),
        ("targets", request.targets.len(), caps::TARGETS, true),
        ("format tuples", request.formats.len(), caps::FORMATS, true),
        ("usual formats", request.usual_formats.len(), caps::FORMATS, false),
        ("entry points", request.entries.len(), caps::ENTRIES, true),
        ("cost rows", request.costs.len(), caps::COSTS, true),
        ("value sensitivities", request.value_sensitivities.len(), caps::SENSITIVITIES, false),
        ("gathered tables", request.tables.len(), caps::TABLES, false),
        ("boundary ranges", request.ranges.len(), caps::RANGES, false),
        ("prompt lengths", request.prompts.len(), caps::PROMPTS, false),
        ("drafts", request.drafts.len(), caps::DRAFTS, false),
        ("sensitivities", request.sensitivities.len(), caps::SENSITIVITIES, false),
    ];
    for (what, count, cap, needed) in lists {
        at_most(cap, what, count)?;
        if needed {
            at_least_one(what, count)?;
        }
    }
    for draft in &request.drafts {
        at_most(caps::ACCEPTED, "entries of a draft's histogram", draft.accepted_steps.len())?;
    }
    for component in &request.model.components {
        if let Body::Layers(layers) = &component.body {
            at_most(caps::LAYERS, "layers", layers.len())?;
            at_least_one("layers", layers.len())?;
        }
    }
    Ok(())
}

fn index(place: impl Fn() -> String, what: &str, index: u32, length: usize) -> Result<()> {
    match (index as usize) < length {
        true => Ok(()),
        false => Err(fault(format!("unknown {what} {index}")).at(place())),
    }
}

fn unique<'name>(what: &str, names: impl Iterator<Item = &'name str>) -> Result<()> {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(repeated(what, name));
        }
    }
    Ok(())
}

fn model(request: &Request) -> Result<()> {
    unique("tower", request.model.towers.iter().map(|pass| pass.name()))?;
    unique("component", request.model.components.iter().map(|component| component.name.as_str()))?;
    for component in &request.model.components {
        if ComponentKind::from_name(&component.name).is_none() {
            return Err(fault(format!("unknown component `{}`", component.name)));
        }
        unique("input", component.inputs.iter().map(String::as_str))?;
        unique("output", component.outputs.iter().map(String::as_str))?;
        if let Some(softcap) = &component.softcap {
            let place = || format!("soft-cap of `{}`", component.name);
            index(place, "layer kind", softcap.kind_without, request.kinds.len())?;
            let kept = |why: &str| fault(format!("it cannot be left out: {why}")).at(place());
            match component.body {
                Body::Layers(_) => return Err(kept("the component may be cut")),
                Body::Whole(kind) if kind == softcap.kind_without => {
                    return Err(kept("the component has the same kind with and without it"));
                }
                Body::Whole(_) => {}
            }
        }
        match &component.body {
            Body::Whole(kind) => {
                index(
                    || format!("component `{}`", component.name),
                    "layer kind",
                    *kind,
                    request.kinds.len(),
                )?;
            }
            Body::Layers(layers) => {
                for (position, layer) in layers.iter().enumerate() {
                    let place = || format!("layer {position} of `{}`", component.name);
                    index(place, "layer kind", layer.kind, request.kinds.len())?;
                    if let Some(donor) = layer.donor {
                        let writes = layers.get(donor as usize).is_some_and(|donor| donor.writes_state);
                        if donor as usize >= position || !writes {
                            let why = "which is not an earlier layer that writes a state";
                            let message = format!("reads the state of layer {donor}, {why}");
                            return Err(fault(message).at(place()));
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

fn entries(request: &Request) -> Result<()> {
    unique("draft", request.drafts.iter().map(|draft| draft.name.as_str()))?;
    let names: Vec<String> = request.entries.iter().map(EntryName::to_string).collect();
    unique("entry point", names.iter().map(String::as_str))?;
    let count = |kind| request.entries.iter().filter(|entry| entry.kind == kind).count();
    let (encode, decode) = (count(EntryKind::Encode), count(EntryKind::Decode));
    if request.model.max_context == 0 {
        if encode == 0 || encode != request.entries.len() {
            return Err(misfit("a model without states has encode entry points only"));
        }
        return Ok(());
    }
    if encode > 0 || decode == 0 {
        return Err(misfit("a model with states has decode and prefill entry points only"));
    }
    for entry in &request.entries {
        if entry.context == 0 || entry.context > request.model.max_context || entry.rows > entry.context {
            let context = request.model.max_context;
            return Err(misfit(format!("{entry} in a model with a context of {context}")));
        }
    }
    Ok(())
}

fn tables(request: &Request) -> Result<()> {
    let known: BTreeSet<EntryName> = request.entries.iter().copied().collect();
    let mut keys = BTreeSet::new();
    for (position, row) in request.costs.iter().enumerate() {
        let place = || format!("cost row {position}");
        index(place, "layer kind", row.kind, request.kinds.len())?;
        index(place, "target", row.target, request.targets.len())?;
        index(place, "format tuple", row.formats, request.formats.len())?;
        let name =
            || format!("kind {}, target {}, formats {}, {}", row.kind, row.target, row.formats, row.entry);
        if !known.contains(&row.entry) {
            return Err(misfit(format!("cost row {position} is for {}", row.entry)));
        }
        if !keys.insert((row.kind, row.target, row.formats, row.entry)) {
            return Err(repeated("cost row", &name()));
        }
    }
    for (position, tuple) in request.usual_formats.iter().enumerate() {
        index(|| format!("usual format {position}"), "format tuple", *tuple, request.formats.len())?;
    }
    let mut keys = BTreeSet::new();
    for (position, row) in request.value_sensitivities.iter().enumerate() {
        let place = || format!("value sensitivity {position}");
        index(place, "component", row.component, request.model.components.len())?;
        let layers = request.model.components[row.component as usize].layer_count().max(1);
        index(place, "layer", row.layer, layers as usize)?;
        if !keys.insert((row.component, row.layer, row.format)) {
            let name = format!("component {}, layer {}, {:?}", row.component, row.layer, row.format);
            return Err(repeated("value sensitivity", &name));
        }
    }
    let mut keys = BTreeSet::new();
    for (position, row) in request.sensitivities.iter().enumerate() {
        let place = || format!("sensitivity {position}");
        index(place, "component", row.component, request.model.components.len())?;
        let layers = request.model.components[row.component as usize].layer_count().max(1);
        index(place, "layer", row.layer, layers as usize)?;
        if !keys.insert((row.component, row.layer, row.role, row.format)) {
            let name =
                format!("component {}, layer {}, {}, {}", row.component, row.layer, row.role, row.format);
            return Err(repeated("sensitivity", &name));
        }
    }
    Ok(())
}

fn ranges(request: &Request) -> Result<()> {
    let mut keys = BTreeSet::new();
    for (position, range) in request.ranges.iter().enumerate() {
        let place = || format!("range {position}");
        index(place, "component", range.component, request.model.components.len())?;
        let layers = request.model.components[range.component as usize].layer_count().max(1);
        index(place, "layer", range.layer, layers as usize)?;
        let name = || format!("{}, component {}, layer {}", range.name, range.component, range.layer);
        if !keys.insert((&range.name, range.component, range.layer)) {
            return Err(repeated("range", &name()));
        }
        let [least, most] = [range.minimum_bits, range.maximum_bits].map(f32::from_bits);
        // Written so that it also rejects NaN.
        if !(least.is_finite() && most.is_finite() && least <= most) {
            let message = format!("expected a finite range, got {least} to {most}");
            return Err(fault(message).at(format!("range of {}", name())));
        }
    }
    Ok(())
}

fn gathered_tables(request: &Request) -> Result<()> {
    unique("gathered table", request.tables.iter().map(|table| table.name.as_str()))?;
    for table in &request.tables {
        let (what, count) = ("formats of a gathered table", table.formats.len());
        at_most(caps::TABLE_FORMATS, what, count)?;
        at_least_one(what, count)?;
        unique("format of a gathered table", table.formats.iter().map(|own| own.format.name()))?;
    }
    Ok(())
}

fn targets(request: &Request) -> Result<()> {
    unique("target", request.targets.iter().map(|target| target.target.name.as_str()))?;
    for target in &request.targets {
        unique("flag", target.schema.iter().map(|schema| schema.name.as_str()))?;
        for (what, count) in [("overheads", target.overheads.len()), ("facts", target.facts.len())] {
            at_most(caps::KNOWN, what, count)?;
        }
        unique("overhead", target.overheads.iter().map(|overhead| overhead.name.as_str()))?;
        unique("fact", target.facts.iter().map(|fact| fact.name.as_str()))?;
        unique("recommended flag", target.recommended.iter().map(|flag| flag.name.as_str()))?;
        for flag in &target.recommended {
            let name = &target.target.name;
            let wrong =
                |why: &str| fault(format!("recommended flag `{flag}`: {why}")).at(format!("target `{name}`"));
            let schema = target.schema.iter().find(|schema| schema.name == flag.name);
            let schema = schema.ok_or_else(|| wrong("the shim has no such flag"))?;
            schema.accepts(&flag.value).map_err(|expected| wrong(&format!("expected {expected}")))?;
        }
    }
    unique("option", request.options.iter().map(|option| option.name.as_str()))
}

/// Checks that every supported row has a time, and that all times are sensible intervals.
fn times(request: &Request) -> Result<()> {
    for (position, row) in request.costs.iter().enumerate() {
        let place = || format!("cost row {position}");
        match (&row.legality, row.time) {
            (Legality::Illegal(_), _) => {}
            (Legality::Legal, Some(time)) => interval(place, time)?,
            (Legality::Legal, None) => return Err(fault("a supported row has no time").at(place())),
        }
    }
    for target in &request.targets {
        for overhead in &target.overheads {
            let place = || format!("overhead `{}` of target `{}`", overhead.name, target.target.name);
            interval(place, overhead.time())?;
        }
    }
    for component in &request.model.components {
        if let Some(softcap) = &component.softcap {
            interval(|| format!("soft-cap of `{}`", component.name), softcap.runtime)?;
        }
    }
    for draft in &request.drafts {
        interval(|| format!("draft `{}`", draft.name), draft.token_time)?;
    }
    Ok(())
}

fn interval(place: impl Fn() -> String, time: TimeCost) -> Result<()> {
    time_fault(time).map_or(Ok(()), |message| Err(fault(message).at(place())))
}

/// Returns why no request may contain a time: its interval is not in order, absurdly long or
/// absurdly wide. Returns `None` if a request may contain it.
pub fn time_fault(time: TimeCost) -> Option<String> {
    let TimeCost { low, microseconds, high, .. } = time;
    let (longest, width) = (caps::MICROSECONDS, caps::WIDTH);
    Some(if !time.is_ordered() {
        format!("expected low ≤ likely ≤ high, got {low}, {microseconds}, {high}")
    } else if high > longest {
        format!("expected a time of at most {longest}, got {high}")
    } else if high > low.max(1).saturating_mul(width) {
        format!("expected a longest time of at most {width} times the shortest, got {low} to {high}")
    } else {
        return None;
    })
}
