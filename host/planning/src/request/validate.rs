//! Validation of a request: the guarantees that every planner and the check of its plan rely on. A
//! request is written by our own `build` crate, or read from a file attached to a bug report.

use std::collections::BTreeSet;

use shardwright_graph::ComponentKind;
use shardwright_vocabulary::{EntryKind, EntryName};

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
}

/// Faults of a request.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestFault {
    /// A list is longer than in any real request.
    #[error("request has {count} {what}, at most {cap} are taken")]
    TooMany {
        /// The items that there are too many of.
        what: &'static str,
        count: usize,
        cap: usize,
    },
    /// A list must not be empty.
    #[error("request has no {what}")]
    Empty {
        /// The missing items.
        what: &'static str,
    },
    /// An index is out of range.
    #[error("{place} names {what} {index}, which the request does not have")]
    Index {
        /// Location of the index.
        place: String,
        /// The kind of item that the index refers to.
        what: &'static str,
        index: u32,
    },
    /// An item is listed twice.
    #[error("{what} `{name}` is listed twice")]
    Repeated {
        /// The kind of item.
        what: &'static str,
        name: String,
    },
    /// The name of a component is unknown.
    #[error("component `{name}` is none that models have")]
    UnknownComponent { name: String },
    /// A donor is not an earlier layer with a state.
    #[error(
        "layer {layer} of `{component}` reads the state of layer {donor}, which is no earlier layer that writes one"
    )]
    Donor {
        component: String,
        /// The layer that reads the state.
        layer: u32,
        /// The layer that should write the state.
        donor: u32,
    },
    /// A soft-cap is at the end of a component that may be cut, or omitting it does not change the
    /// kind.
    #[error("the soft-cap of `{component}` cannot be left out: {why}")]
    Softcap { component: String, why: &'static str },
    /// The entry points do not fit the model. A model with states needs decode and prefill, one
    /// without states needs encode.
    #[error("entry points do not fit the model: {why}")]
    Entries { why: String },
    /// A range is empty or not finite.
    #[error("the range of {place} is from {least} to {most}")]
    Range {
        /// The tensor and its place.
        place: String,
        least: f32,
        most: f32,
    },
    /// A recommended flag is not in the schema, or its value is not supported.
    #[error("target `{target}` recommends `{flag}`: {why}")]
    Flag { target: String, flag: String, why: String },
}

pub(super) fn validate(request: &Request) -> Result<(), RequestFault> {
    counts(request)?;
    model(request)?;
    entries(request)?;
    tables(request)?;
    gathered_tables(request)?;
    ranges(request)?;
    targets(request)
}

fn counts(request: &Request) -> Result<(), RequestFault> {
    let lists = [
        ("components", request.model.components.len(), caps::COMPONENTS, true),
        ("layer kinds", request.kinds.len(), caps::KINDS, true),
        ("targets", request.targets.len(), caps::TARGETS, true),
        ("format tuples", request.formats.len(), caps::FORMATS, true),
        ("entry points", request.entries.len(), caps::ENTRIES, true),
        ("cost rows", request.costs.len(), caps::COSTS, true),
        ("value sensitivities", request.value_sensitivities.len(), caps::SENSITIVITIES, false),
        ("gathered tables", request.tables.len(), caps::TABLES, false),
        ("ranges of boundaries", request.ranges.len(), caps::RANGES, false),
        ("lengths of prompts", request.prompts.len(), caps::PROMPTS, false),
        ("drafts", request.drafts.len(), caps::DRAFTS, false),
        ("sensitivities", request.sensitivities.len(), caps::SENSITIVITIES, false),
    ];
    for (what, count, cap, needed) in lists {
        if count > cap {
            return Err(RequestFault::TooMany { what, count, cap });
        }
        if needed && count == 0 {
            return Err(RequestFault::Empty { what });
        }
    }
    for draft in &request.drafts {
        let (count, cap) = (draft.accepted_steps.len(), caps::ACCEPTED);
        if count > cap {
            return Err(RequestFault::TooMany { what: "numbers of accepted tokens of a draft", count, cap });
        }
    }
    for component in &request.model.components {
        if let Body::Layers(layers) = &component.body {
            if layers.len() > caps::LAYERS {
                let (count, cap) = (layers.len(), caps::LAYERS);
                return Err(RequestFault::TooMany { what: "layers", count, cap });
            }
            if layers.is_empty() {
                return Err(RequestFault::Empty { what: "layers" });
            }
        }
    }
    Ok(())
}

fn index(
    place: impl Fn() -> String,
    what: &'static str,
    index: u32,
    length: usize,
) -> Result<(), RequestFault> {
    if (index as usize) < length { Ok(()) } else { Err(RequestFault::Index { place: place(), what, index }) }
}

fn unique<'name>(what: &'static str, names: impl Iterator<Item = &'name str>) -> Result<(), RequestFault> {
    let mut seen = BTreeSet::new();
    for name in names {
        if !seen.insert(name) {
            return Err(RequestFault::Repeated { what, name: name.to_owned() });
        }
    }
    Ok(())
}

fn model(request: &Request) -> Result<(), RequestFault> {
    unique("component", request.model.components.iter().map(|component| component.name.as_str()))?;
    for component in &request.model.components {
        if ComponentKind::from_name(&component.name).is_none() {
            return Err(RequestFault::UnknownComponent { name: component.name.clone() });
        }
        unique("input", component.inputs.iter().map(String::as_str))?;
        unique("output", component.outputs.iter().map(String::as_str))?;
        if let Some(softcap) = &component.softcap {
            let place = || format!("the soft-cap of `{}`", component.name);
            index(place, "layer kind", softcap.kind_without, request.kinds.len())?;
            let fault = |why| RequestFault::Softcap { component: component.name.clone(), why };
            match component.body {
                Body::Layers(_) => return Err(fault("the component may be cut")),
                Body::Whole(kind) if kind == softcap.kind_without => {
                    return Err(fault("the kind without it is the kind with it"));
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
                            return Err(RequestFault::Donor {
                                component: component.name.clone(),
                                layer: u32::try_from(position).unwrap_or(u32::MAX),
                                donor,
                            });
                        }
                    }
                }
            }
        }
    }
    Ok(())
}

fn entries(request: &Request) -> Result<(), RequestFault> {
    unique("draft", request.drafts.iter().map(|draft| draft.name.as_str()))?;
    let names: Vec<String> = request.entries.iter().map(EntryName::to_string).collect();
    unique("entry point", names.iter().map(String::as_str))?;
    let count = |kind| request.entries.iter().filter(|entry| entry.kind == kind).count();
    let (encode, decode) = (count(EntryKind::Encode), count(EntryKind::Decode));
    let fault = |why: String| Err(RequestFault::Entries { why });
    if request.model.max_context == 0 {
        if encode == 0 || encode != request.entries.len() {
            return fault("a model without states has encode entry points only".to_owned());
        }
        return Ok(());
    }
    if encode > 0 || decode == 0 {
        return fault("a model with states has decode and prefill entry points only".to_owned());
    }
    for entry in &request.entries {
        if entry.context == 0 || entry.context > request.model.max_context || entry.rows > entry.context {
            return fault(format!("{entry} in a model with a context of {}", request.model.max_context));
        }
    }
    Ok(())
}

fn tables(request: &Request) -> Result<(), RequestFault> {
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
            return Err(RequestFault::Entries { why: format!("cost row {position} is for {}", row.entry) });
        }
        if !keys.insert((row.kind, row.target, row.formats, row.entry)) {
            return Err(RequestFault::Repeated { what: "cost row", name: name() });
        }
    }
    let mut keys = BTreeSet::new();
    for (position, row) in request.value_sensitivities.iter().enumerate() {
        let place = || format!("value sensitivity {position}");
        index(place, "component", row.component, request.model.components.len())?;
        let layers = request.model.components[row.component as usize].layer_count().max(1);
        index(place, "layer", row.layer, layers as usize)?;
        if !keys.insert((row.component, row.layer, row.format)) {
            let name = format!("component {}, layer {}, {:?}", row.component, row.layer, row.format);
            return Err(RequestFault::Repeated { what: "value sensitivity", name });
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
            return Err(RequestFault::Repeated { what: "sensitivity", name });
        }
    }
    Ok(())
}

fn ranges(request: &Request) -> Result<(), RequestFault> {
    let mut keys = BTreeSet::new();
    for (position, range) in request.ranges.iter().enumerate() {
        let place = || format!("range {position}");
        index(place, "component", range.component, request.model.components.len())?;
        let layers = request.model.components[range.component as usize].layer_count().max(1);
        index(place, "layer", range.layer, layers as usize)?;
        let name = || format!("{}, component {}, layer {}", range.name, range.component, range.layer);
        if !keys.insert((&range.name, range.component, range.layer)) {
            return Err(RequestFault::Repeated { what: "range", name: name() });
        }
        let [least, most] = [range.minimum_bits, range.maximum_bits].map(f32::from_bits);
        // Written so that it also rejects NaN.
        if !(least.is_finite() && most.is_finite() && least <= most) {
            return Err(RequestFault::Range { place: name(), least, most });
        }
    }
    Ok(())
}

fn gathered_tables(request: &Request) -> Result<(), RequestFault> {
    unique("gathered table", request.tables.iter().map(|table| table.name.as_str()))?;
    for table in &request.tables {
        let (what, count, cap) = ("formats of a gathered table", table.formats.len(), caps::TABLE_FORMATS);
        if count > cap {
            return Err(RequestFault::TooMany { what, count, cap });
        }
        if count == 0 {
            return Err(RequestFault::Empty { what });
        }
        unique("format of a gathered table", table.formats.iter().map(|own| own.format.name()))?;
    }
    Ok(())
}

fn targets(request: &Request) -> Result<(), RequestFault> {
    unique("target", request.targets.iter().map(|target| target.target.name.as_str()))?;
    for target in &request.targets {
        unique("flag", target.schema.iter().map(|schema| schema.name.as_str()))?;
        for (what, count) in [("overheads", target.overheads.len()), ("facts", target.facts.len())] {
            if count > caps::KNOWN {
                return Err(RequestFault::TooMany { what, count, cap: caps::KNOWN });
            }
        }
        unique("overhead", target.overheads.iter().map(|overhead| overhead.name.as_str()))?;
        unique("fact", target.facts.iter().map(|fact| fact.name.as_str()))?;
        unique("recommended flag", target.recommended.iter().map(|flag| flag.name.as_str()))?;
        for flag in &target.recommended {
            let fault = |why: String| RequestFault::Flag {
                target: target.target.name.clone(),
                flag: flag.to_string(),
                why,
            };
            let schema = target.schema.iter().find(|schema| schema.name == flag.name);
            let schema = schema.ok_or_else(|| fault("the shim knows no such flag".to_owned()))?;
            schema.accepts(&flag.value).map_err(|expected| fault(format!("it takes {expected}")))?;
        }
    }
    unique("option", request.options.iter().map(|option| option.name.as_str()))
}
