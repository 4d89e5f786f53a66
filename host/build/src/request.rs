//! Makes the planner's request: a graph and its targets as tables.

use std::collections::BTreeSet;
use std::ops::Range;

use shardwright_bundle::Digest;
use shardwright_graph::{
    ComponentKind, EntryGraph, EntryOptions, EntryPoint, Graph, Op, Role, Weight, layer_kinds,
};
use shardwright_planning::request::{
    Body, Component, DraftEstimate, Goals, Layer, LayerKind, ModelSummary, PlannerOption, PrefillPart,
    PromptLength, Request, Softcap, TargetSummary,
};
use shardwright_vocabulary::{
    ActivationFormat, CostRow, EntryKind, EntryName, FormatTuple, Legality, Pass, Provenance, RoleFormat,
    StateFormat, TimeCost, Watch, WeightFormat, WeightRole,
};

use crate::compile::cancelled;
use crate::roofline::{TimeModel, Work};
use crate::tables::gathered_tables;
use crate::times::time_key;
use crate::{ArtefactCost, EntryMenu, Judge, ModelFormats, Result, TableFormats};

/// A target that a plan may use.
pub struct TargetOffer {
    /// The target as the planner sees it.
    pub summary: TargetSummary,
    /// Decides which graphs the target supports and estimates their costs.
    pub judge: Box<dyn Judge>,
    /// Turns the judge's estimates into times.
    pub times: TimeModel,
}

impl TargetOffer {
    /// Creates the offer of a target without a profile.
    pub fn new(summary: TargetSummary, judge: Box<dyn Judge>) -> TargetOffer {
        let times = TimeModel::usual(summary.target.kind);
        TargetOffer { summary, judge, times }
    }
}

/// Name of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ModelName {
    /// Name shown in reports.
    pub name: String,
    /// Family, as in `config.json`.
    pub family: String,
    /// Passes of the towers that are planned with it.
    pub towers: Vec<Pass>,
}

/// Returns the formats of a checkpoint that is built without converting any weight.
///
/// The tuple is named after the format that most weight bytes are stored in. The f32 norms of a
/// model with bf16 projections stay f32. If matrices are stored quantised, roles whose bytes are
/// mostly stored in another format are named too. If that does not name every quantised matrix, all
/// weights are [`WeightFormat::AsStored`].
pub fn stored_formats(graph: &Graph) -> FormatTuple {
    let role = |weight: &Weight| WeightRole::of_part(weight.part);
    let all = || graph.weights.iter();
    let most = most_bytes(all()).unwrap_or(WeightFormat::F32);
    // A head in floats may be larger than the quantised layers of a model.
    let layers = most_bytes(all().filter(|weight| role(weight) != WeightRole::Head));
    let weights = layers.filter(|format| format.is_quantised()).unwrap_or(most);
    let mut tuple = FormatTuple::uniform(weights, ActivationFormat::F32, StateFormat::F32);
    for &of in WeightRole::ALL {
        let stored = most_bytes(all().filter(|weight| weight.shape.len() == 2 && role(weight) == of));
        if let Some(format) = stored.filter(|format| *format != weights)
            && (format.is_quantised() || weights.is_quantised())
        {
            tuple.roles.push(RoleFormat { role: of, format });
        }
    }
    tuple.roles.sort();
    let is_named = |weight: &Weight| weight.format() == Some(tuple.weight(role(weight)));
    let mut quantised = all().filter(|weight| weight.shape.len() == 2 && weight.quantisation.is_some());
    match quantised.all(is_named) {
        true => tuple,
        false => FormatTuple::uniform(WeightFormat::AsStored, ActivationFormat::F32, StateFormat::F32),
    }
}

/// Returns the format of most bytes, or `None` if no weight has a format.
fn most_bytes<'g>(weights: impl Iterator<Item = &'g Weight> + Clone) -> Option<WeightFormat> {
    let stored = |format: WeightFormat| {
        let stored_so = weights.clone().filter(|weight| weight.format() == Some(format));
        stored_so.map(|weight| weight.bytes()).sum::<u64>()
    };
    // Of formats with as many bytes, the last one counts. Floats come last.
    let floats = [WeightFormat::Bf16, WeightFormat::F16, WeightFormat::F32];
    let quantised = WeightFormat::ALL.iter().copied().filter(|format| format.is_quantised());
    let (format, bytes) =
        quantised.chain(floats).map(|format| (format, stored(format))).max_by_key(|(_, bytes)| *bytes)?;
    (bytes > 0).then_some(format)
}

/// Everything in a request except the graph and its targets.
#[derive(Clone, Debug)]
pub struct Question<'q> {
    pub model: &'q ModelName,
    /// The entry points to choose from.
    pub menu: &'q EntryMenu,
    pub goals: Goals,
    /// Usual lengths of prompts. Empty if they are not specified.
    pub prompts: Vec<PromptLength>,
    /// Drafts that may propose tokens.
    pub drafts: Vec<DraftEstimate>,
    /// Settings of the planner.
    pub options: Vec<PlannerOption>,
}

/// Builds the request: the model's components and layers, and one cost row per kind, target, format
/// tuple and entry point.
///
/// Rows come from the graphs themselves, legalised by the target's judge, with one representative
/// layer per kind. Layers of a kind have equal costs, so a planner can add up any cut exactly. A
/// vendor's compiler may need seconds per row: `watch` gets progress for each and may cancel.
///
/// Gathered tables are listed as stored, and losses are unknown.
pub fn make_request(
    graph: &Graph,
    offers: &[TargetOffer],
    formats: &ModelFormats,
    question: Question<'_>,
    watch: &mut dyn Watch,
) -> Result<Request> {
    make_keyed_request(graph, offers, formats, question, &[], watch).map(|(request, _)| request)
}

/// Makes a request like [`make_request`], and returns for each row of the cost table the key of its
/// measured time. `timers` identifies the executor of each target whose times are measured.
pub(crate) fn make_keyed_request(
    graph: &Graph,
    offers: &[TargetOffer],
    formats: &ModelFormats,
    question: Question<'_>,
    timers: &[Option<Digest>],
    watch: &mut dyn Watch,
) -> Result<(Request, Vec<Option<Digest>>)> {
    let Question { model, menu, goals, prompts, drafts, options } = question;
    let decoder_kinds = layer_kinds(graph)?;
    let mut kinds = Vec::new();
    let mut representatives: Vec<(ComponentKind, Range<u32>, Logits)> = Vec::new();
    let mut components = Vec::new();
    for component in &graph.components {
        let (inputs, outputs) = boundaries(graph, component.kind);
        let first_kind = kinds.len() as u32;
        let body = if component.layers > 0 {
            for (index, &layer) in decoder_kinds.representative.iter().enumerate() {
                let prefill = prefill_part(graph, component.kind, layer..layer + 1)?;
                kinds.push(LayerKind { name: format!("{}.{index}", component.kind), prefill });
                representatives.push((component.kind, layer..layer + 1, Logits::AsTheyAre));
            }
            let layers = (0..component.layers).map(|layer| Layer {
                kind: first_kind + decoder_kinds.of_layer[layer as usize],
                donor: graph.donor_of(layer),
                writes_state: graph.writes_states(layer..layer + 1),
            });
            Body::Layers(layers.collect())
        } else {
            let prefill = prefill_part(graph, component.kind, 0..0)?;
            kinds.push(LayerKind { name: component.kind.name().to_owned(), prefill });
            representatives.push((component.kind, 0..0, Logits::AsTheyAre));
            Body::Whole(first_kind)
        };
        let mut softcap = None;
        if component.kind == ComponentKind::Head && graph.logits_softcap().is_some() {
            softcap = Some(Softcap { kind_without: kinds.len() as u32, runtime: softcap_time(graph) });
            let prefill = prefill_part(graph, component.kind, 0..0)?;
            kinds.push(LayerKind { name: format!("{}.uncapped", component.kind), prefill });
            representatives.push((component.kind, 0..0, Logits::BeforeSoftcap));
        }
        let name = component.kind.name().to_owned();
        components.push(Component { name, body, softcap, inputs, outputs });
    }

    let rows = representatives.len() * menu.entries.len() * offers.len() * formats.tuples().len();
    let mut costs = Vec::with_capacity(rows);
    let mut keys = Vec::with_capacity(rows);
    for (kind, (component, layers, logits)) in representatives.iter().enumerate() {
        for &entry in &menu.entries {
            let point = menu.point(entry);
            let instance = |graph: &Graph| {
                let entry =
                    |graph: &Graph| graph.entry(*component, layers.clone(), point, EntryOptions::default());
                match logits {
                    Logits::AsTheyAre => entry(graph),
                    Logits::BeforeSoftcap => entry(&graph.without_logits_softcap()),
                }
            };
            let instances: Vec<_> = (0..formats.tuples().len())
                .map(|format| instance(formats.graph(format)))
                .collect::<Result<_, _>>()?;
            for (target, offer) in offers.iter().enumerate() {
                for (format, instance) in instances.iter().enumerate() {
                    if watch.cancelled() {
                        return Err(cancelled());
                    }
                    let (row, name, on) = (costs.len() + 1, &kinds[kind].name, &offer.summary.target.name);
                    let stage = format!("costs {row} of {rows}: {name} at {entry} on {on}");
                    watch.progress((costs.len() * 1000 / rows.max(1)) as u32, &stage);
                    let place = CostPlace { kind, target, format, entry };
                    let timer = timers.get(target).copied().flatten();
                    let (row, key) = cost_row(formats, instance.as_ref(), offer, place, timer, watch);
                    costs.push(row);
                    keys.push(key);
                }
            }
        }
    }

    let request = Request {
        model: ModelSummary {
            name: model.name.clone(),
            family: model.family.clone(),
            hidden: graph.hidden as u32,
            max_context: if graph.is_generative() {
                graph.context.min(u64::from(u32::MAX)) as u32
            } else {
                0
            },
            heads: heads(graph),
            towers: model.towers.clone(),
            components,
        },
        kinds,
        targets: offers.iter().map(|offer| offer.summary.clone()).collect(),
        formats: formats.tuples().to_vec(),
        usual_formats: Vec::new(),
        entries: menu.entries.clone(),
        costs,
        sensitivities: Vec::new(),
        value_sensitivities: Vec::new(),
        tables: gathered_tables(graph, TableFormats::default(), false, &[])?,
        ranges: Vec::new(),
        boundary_nanoseconds: BOUNDARY_NANOSECONDS,
        transfer_nanoseconds: graph.hidden.saturating_mul(TRANSFER_PICOSECONDS) / 1000,
        goals,
        prompts,
        drafts,
        options,
    };
    Ok((request, keys))
}

/// Returns the largest number of query heads of a layer, or 0 without attention.
fn heads(graph: &Graph) -> u32 {
    let nodes = graph.components.iter().flat_map(|component| &component.nodes);
    let heads = nodes.filter_map(|node| match &node.op {
        Op::Attention(attention) => Some(attention.heads),
        Op::RelativeAttention(attention) => Some(attention.heads),
        _ => None,
    });
    heads.max().unwrap_or(0)
}

/// Assumed bytes of an operation in an artefact in addition to its weights, if the judge reports
/// none. Three compilers use half a kilobyte to one and a half.
const OPERATION_BYTES: u64 = 1024;

/// Returns the bytes that an entry point adds to an artefact in addition to one set of weights, and
/// their provenance.
///
/// The set of weights is counted with the entry point that every shard has. If an artefact stores
/// weights separately for each entry point, the others add their own.
fn artefact_bytes(row: &CostRow, reported: Option<ArtefactCost>) -> (u64, Provenance) {
    let Some(reported) = reported else {
        return (row.ops.saturating_mul(OPERATION_BYTES), Provenance::Modelled);
    };
    let has_the_weights = match row.entry.kind {
        EntryKind::Decode => row.entry.rows == 1,
        EntryKind::Encode => true,
        EntryKind::Prefill => false,
    };
    let counted = if has_the_weights { row.weight_bytes } else { reported.shared_bytes };
    (reported.bytes.saturating_sub(counted), reported.provenance)
}

/// Nanoseconds of host time that one more shard costs in a step: measured at 588 on a server
/// (`tests/benches/boundary.rs`). No phone was measured.
const BOUNDARY_NANOSECONDS: u64 = 588;

/// Picoseconds for converting one value for another target: measured at 1,500 on a server for
/// rounding floats to 16-bit integers. The way back needs a twentieth of that. No phone was
/// measured.
const TRANSFER_PICOSECONDS: u64 = 1_500;

/// The logits that a head returns.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Logits {
    AsTheyAre,
    BeforeSoftcap,
}

/// Picoseconds of the runtime per logit on one core: measured at 2,900 to 3,500 on a loaded server.
/// No phone was measured, so a core may be twice as fast or five times as slow.
const SOFTCAP_PICOSECONDS: [u64; 3] = [1_500, 3_000, 15_000];

/// Returns the time of the runtime for the soft-cap of one row of logits.
fn softcap_time(graph: &Graph) -> TimeCost {
    let time = |picoseconds| graph.vocabulary.saturating_mul(picoseconds).div_ceil(1_000_000);
    let [low, likely, high] = SOFTCAP_PICOSECONDS.map(time);
    TimeCost::within(low, likely, high, Provenance::Modelled)
}

/// Returns the names of the boundary tensors that a component reads and writes.
fn boundaries(graph: &Graph, kind: ComponentKind) -> (Vec<String>, Vec<String>) {
    let name = |role: &Role| role.name().to_owned();
    let hidden = name(&Role::Hidden);
    let per_layer = name(&Role::PerLayer { first: 0, layers: 0 });
    match kind {
        ComponentKind::Embed => (vec![], vec![hidden]),
        ComponentKind::PerLayerInput => (vec![hidden], vec![per_layer]),
        ComponentKind::Decoder if graph.has(ComponentKind::PerLayerInput) => {
            (vec![hidden.clone(), per_layer], vec![hidden])
        }
        ComponentKind::Decoder => (vec![hidden.clone()], vec![hidden]),
        ComponentKind::Head => (vec![hidden], vec![name(&Role::Logits)]),
        ComponentKind::Pooling => (vec![hidden], vec![name(&Role::Embedding)]),
        ComponentKind::VisionEmbed | ComponentKind::AudioEmbed => (vec![], vec![hidden]),
        ComponentKind::VisionTower | ComponentKind::AudioTower => (vec![hidden.clone()], vec![hidden]),
        ComponentKind::VisionProjector | ComponentKind::AudioProjector => {
            (vec![hidden], vec![name(&Role::SoftRows)])
        }
    }
}

fn prefill_part(graph: &Graph, kind: ComponentKind, layers: Range<u32>) -> Result<PrefillPart> {
    if !graph.is_generative() {
        return Ok(PrefillPart::None);
    }
    let point = EntryPoint::of(EntryName { kind: EntryKind::Prefill, rows: 1, context: 2 }, 1);
    let entry = graph.entry(kind, layers, point, EntryOptions::default())?;
    Ok(match entry {
        None => PrefillPart::None,
        Some(entry) if entry.outputs.iter().any(|(_, role)| !matches!(role, Role::State { .. })) => {
            PrefillPart::Full
        }
        Some(_) => PrefillPart::StatesOnly,
    })
}

struct CostPlace {
    kind: usize,
    target: usize,
    format: usize,
    entry: EntryName,
}

fn cost_row(
    formats: &ModelFormats,
    instance: Option<&EntryGraph>,
    offer: &TargetOffer,
    place: CostPlace,
    timer: Option<Digest>,
    watch: &dyn Watch,
) -> (CostRow, Option<Digest>) {
    let mut row = CostRow {
        kind: place.kind as u32,
        target: place.target as u32,
        formats: place.format as u32,
        entry: place.entry,
        ops: 0,
        weight_bytes: 0,
        artefact_bytes: 0,
        artefact_provenance: Provenance::Modelled,
        state_bytes: 0,
        legality: Legality::Legal,
        time: None,
        uncosted_ops: 0,
    };
    if let Err(reason) = offer.judge.takes(&formats.tuples()[place.format]) {
        row.legality = Legality::Illegal(reason);
        return (row, None);
    }
    // A kind without work in the entry point has no cost there, and is legal.
    let Some(entry) = instance else {
        row.time = Some(TimeCost::ZERO);
        return (row, None);
    };
    let graph = formats.graph(place.format);
    let mut key = None;
    match offer.judge.legalise(graph, entry, &formats.encodings(place.format)) {
        Ok(legal) => {
            let weights: BTreeSet<_> = legal.graph.constants().map(|(_, weight)| weight).collect();
            key = timer.and_then(|timer| time_key(timer, &legal.graph, &graph.weights));
            row.ops = legal.graph.nodes.len() as u64;
            row.weight_bytes = weights.into_iter().map(|weight| graph.weight(weight).bytes()).sum();
            row.state_bytes = legal.graph.written_state_bytes();
            let costing = offer.judge.estimate(graph, &legal.graph, watch).unwrap_or_default();
            let (nodes, work) = (row.ops, Work::of(&legal.graph, row.weight_bytes));
            let (time, shared) = offer.times.time(costing.time, work, nodes, costing.uncosted);
            (row.time, row.uncosted_ops) = (Some(time), shared);
            row.ops = costing.operations.unwrap_or(row.ops);
            (row.artefact_bytes, row.artefact_provenance) = artefact_bytes(&row, costing.artefact);
        }
        Err(reason) => row.legality = Legality::Illegal(reason),
    }
    (row, key)
}
