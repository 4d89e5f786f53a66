//! Conversion between our own types and the types of interface version 0.2, in both directions. A
//! later version of the interface gets a module like this one, and no other code changes.

use shardwright_vocabulary::{self as own, ComponentKind, Error, Pass, Result};

use crate::bindings::wit;
use crate::check::{fault_in, invalid_encoding};
use crate::feedback::{Attempt, Feedback};
use crate::plan::{
    Boundary, BuildTime, Cause, Fallback, Plan, PlannedSegment, PlannedSpeculation, Reason, Shard,
};
use crate::request::{Body, BoundaryRange, DraftEstimate, Goals, PrefillPart, Request, TargetFact};

/// Defines conversions between two enums with the same cases.
macro_rules! same_cases {
    ($to_guest:ident, $to_host:ident, $own:path, $guest:path { $($own_case:ident = $guest_case:ident,)+ }) => {
        fn $to_guest(value: $own) -> $guest {
            use $own as Own;
            use $guest as Guest;
            match value {
                $(Own::$own_case => Guest::$guest_case,)+
            }
        }

        #[allow(dead_code, reason = "every closed list is converted both ways, whichever direction is in use today")]
        fn $to_host(value: $guest) -> $own {
            use $own as Own;
            use $guest as Guest;
            match value {
                $(Guest::$guest_case => Own::$own_case,)+
            }
        }
    };
}

same_cases!(guest_provenance, host_provenance, own::Provenance, wit::Provenance {
    Declared = Declared,
    Reported = Reported,
    Probed = Probed,
    Learned = Learned,
    User = User,
    Measured = Measured,
    Simulated = Simulated,
    Modelled = Modelled,
});
same_cases!(guest_softcap_place, host_softcap_place, own::SoftcapPlace, wit::SoftcapPlace {
    Graph = Graph,
    Runtime = Runtime,
});
/// Returns `None` for indices and packed weights, which encodings cannot have.
fn guest_element(dtype: own::DType) -> Option<wit::ElementType> {
    Some(match dtype {
        own::DType::F32 => wit::ElementType::Fp32,
        own::DType::F16 => wit::ElementType::Fp16,
        own::DType::Bf16 => wit::ElementType::Bf16,
        own::DType::U16 => wit::ElementType::Uint16,
        own::DType::I16 => wit::ElementType::Int16,
        own::DType::U8 => wit::ElementType::Uint8,
        own::DType::I8 => wit::ElementType::Int8,
        own::DType::I32 | own::DType::I64 | own::DType::I4 | own::DType::I2 => return None,
    })
}

fn host_element(element: wit::ElementType) -> own::DType {
    match element {
        wit::ElementType::Fp32 => own::DType::F32,
        wit::ElementType::Fp16 => own::DType::F16,
        wit::ElementType::Bf16 => own::DType::Bf16,
        wit::ElementType::Uint16 => own::DType::U16,
        wit::ElementType::Int16 => own::DType::I16,
        wit::ElementType::Uint8 => own::DType::U8,
        wit::ElementType::Int8 => own::DType::I8,
    }
}

same_cases!(guest_entry_kind, host_entry_kind, own::EntryKind, wit::EntryKind {
    Prefill = Prefill,
    Decode = Decode,
    Encode = Encode,
});
same_cases!(guest_error_class, host_error_class, own::ErrorClass, wit::ErrorClass {
    UnsupportedOp = UnsupportedOp,
    Unmappable = Unmappable,
    ResourceLimit = ResourceLimit,
    IncompatibleArtefact = IncompatibleArtefact,
    CorruptArtefact = CorruptArtefact,
    DeviceLost = DeviceLost,
    Deadline = Deadline,
    StateLost = StateLost,
    InvalidArgument = InvalidArgument,
    Internal = Internal,
});
same_cases!(guest_prefill_part, host_prefill_part, PrefillPart, wit::PrefillPart {
    Full = Full,
    StatesOnly = StatesOnly,
    None = None,
});
same_cases!(guest_build_time, host_build_time, BuildTime, wit::BuildTime {
    Ahead = Ahead,
    JustInTime = JustInTime,
});

fn guest_entry(entry: own::EntryName) -> wit::Entry {
    wit::Entry { kind: guest_entry_kind(entry.kind), rows: entry.rows, context: entry.context }
}

fn host_entry(entry: wit::Entry) -> own::EntryName {
    own::EntryName { kind: host_entry_kind(entry.kind), rows: entry.rows, context: entry.context }
}

fn guest_fallback(chain: &Fallback) -> wit::Fallback {
    wit::Fallback { target: chain.target, formats: chain.formats.clone(), limits: chain.limits.clone() }
}

fn guest_draft(draft: &DraftEstimate) -> wit::Draft {
    wit::Draft {
        name: draft.name.clone(),
        silent_steps: draft.silent_steps,
        accepted_steps: draft.accepted_steps.clone(),
        provenance: guest_provenance(draft.provenance),
        token_time: guest_time(draft.token_time),
        memory_bytes: draft.memory_bytes,
        row_bytes: draft.row_bytes,
    }
}

fn guest_speculation(speculation: &PlannedSpeculation) -> wit::Speculation {
    wit::Speculation {
        draft: speculation.draft.clone(),
        rows: speculation.rows,
        gain_thousandths: speculation.gain_thousandths,
    }
}

fn host_speculation(speculation: wit::Speculation) -> PlannedSpeculation {
    PlannedSpeculation {
        draft: speculation.draft,
        rows: speculation.rows,
        gain_thousandths: speculation.gain_thousandths,
    }
}

fn guest_limit(limit: &own::Limit) -> wit::Limit {
    wit::Limit {
        name: limit.name.clone(),
        value: limit.value,
        provenance: guest_provenance(limit.provenance),
        note: limit.note.clone(),
        relief: limit.relief.iter().map(guest_relief).collect(),
    }
}

fn guest_relief(relief: &own::Relief) -> wit::Relief {
    wit::Relief { flag: guest_flag(&relief.flag), value: relief.value, note: relief.note.clone() }
}

fn guest_flag(flag: &own::Flag) -> wit::Flag {
    wit::Flag { name: flag.name.clone(), value: flag.value.clone() }
}

fn guest_schema(schema: &own::FlagSchema) -> wit::FlagSchema {
    let values = match &schema.values {
        own::FlagType::Switch => wit::FlagType::Switch,
        own::FlagType::Integer { min, max } => {
            wit::FlagType::Integer(wit::IntegerRange { min: *min, max: *max })
        }
        own::FlagType::Choice { values } => wit::FlagType::Choice(values.clone()),
        own::FlagType::Text { max_bytes } => wit::FlagType::Text(*max_bytes),
    };
    wit::FlagSchema {
        name: schema.name.clone(),
        values,
        default: schema.default.clone(),
        description: schema.description.clone(),
        stage: schema.stage.name().to_owned(),
    }
}

fn guest_weight_format(format: own::WeightFormat) -> wit::Format {
    // For weights in several block formats: a type that covers the integers of all.
    const MIXED: own::WeightLayout = (own::DType::I8, Some((own::Granularity::blocks(32), own::DType::F32)));
    let (dtype, quantised) = format.layout().unwrap_or(MIXED);
    let quantisation = quantised.map(|(granularity, scale)| wit::Quantisation {
        granularity: match granularity {
            own::Granularity::PerTensor => wit::Granularity::Tensor,
            own::Granularity::PerChannel => wit::Granularity::Channel,
            own::Granularity::PerBlock { size, .. } => wit::Granularity::Block(size),
        },
        scale: match (format, scale) {
            (own::WeightFormat::W4Block32Stepped, _) => wit::ScaleType::Stepped(STEPS),
            (_, own::DType::F16) => wit::ScaleType::Fp16,
            _ => wit::ScaleType::Fp32,
        },
        symmetric: format != own::WeightFormat::AsStored,
        dynamic: false,
    });
    guest_format(format.name(), dtype, quantisation)
}

/// The largest multiple of the channel's scale that a stepped scale can be.
const STEPS: u32 = 16;

/// Describes a stored format of activations or states. Integers with one scale per tensor have
/// calibrated ranges. The scales of other integers are computed at run time.
fn guest_values(
    name: &'static str,
    dtype: own::DType,
    symmetric: bool,
    granularity: wit::Granularity,
) -> wit::Format {
    let is_float = matches!(dtype, own::DType::F32 | own::DType::F16);
    let dynamic = !matches!(granularity, wit::Granularity::Tensor);
    let quantisation = wit::Quantisation { granularity, scale: wit::ScaleType::Fp32, symmetric, dynamic };
    guest_format(name, dtype, (!is_float).then_some(quantisation))
}

fn guest_activations(format: own::ActivationFormat) -> wit::Format {
    use own::{ActivationFormat as Activations, DType};
    let granularity = match format.dynamic_block() {
        None => wit::Granularity::Tensor,
        Some(0) => wit::Granularity::Channel,
        Some(size) => wit::Granularity::Block(size),
    };
    let (dtype, symmetric) = match format {
        Activations::F32 => (DType::F32, true),
        Activations::F16 => (DType::F16, true),
        Activations::A16 | Activations::A16F16Stream => (DType::U16, false),
        Activations::A16Symmetric | Activations::A16SymmetricF16Stream => (DType::I16, true),
        Activations::A8Dynamic | Activations::A8DynamicBlock32 => (DType::I8, true),
    };
    guest_values(format.name(), dtype, symmetric, granularity)
}

fn guest_states(format: own::StateFormat) -> wit::Format {
    use own::{DType, StateFormat as States};
    let dtype = match format {
        States::F32 => DType::F32,
        States::F16 => DType::F16,
        States::A16 => DType::U16,
        States::A8 => DType::U8,
    };
    guest_values(format.name(), dtype, false, wit::Granularity::Tensor)
}

/// Describes a format of states together with the format in which attention multiplies them, under
/// the name that both have in a tuple: `f16/attention-bf16`. Planners therefore distinguish tuples
/// that differ in attention alone, and a shard has one of them.
fn guest_states_read(format: StatesRead) -> wit::Format {
    let (states, attention) = format;
    let guest = guest_states(states);
    match attention.is_rounded() {
        true => wit::Format { name: format!("{states}/attention-{attention}"), ..guest },
        false => guest,
    }
}

fn guest_format(name: &str, dtype: own::DType, quantisation: Option<wit::Quantisation>) -> wit::Format {
    let numbers = match dtype {
        own::DType::F32 | own::DType::F16 | own::DType::Bf16 => wit::NumberKind::Float,
        own::DType::U8 | own::DType::U16 => wit::NumberKind::Unsigned,
        _ => wit::NumberKind::Signed,
    };
    let bits = u32::try_from(dtype.bits()).unwrap_or(u32::MAX);
    wit::Format { name: name.to_owned(), numbers, bits, quantisation }
}

/// Format of states, and of the attention that reads them.
type StatesRead = (own::StateFormat, own::AttentionFormat);

/// The formats of a request without duplicates, in order of first use in its tuples. Tuples refer
/// to them by index.
struct FormatLists {
    weights: Vec<own::WeightFormat>,
    activations: Vec<own::ActivationFormat>,
    states: Vec<StatesRead>,
}

impl FormatLists {
    fn of(request: &Request) -> Self {
        let mut lists = Self { weights: vec![], activations: vec![], states: vec![] };
        for tuple in &request.formats {
            index_of(&mut lists.weights, tuple.weights);
            for entry in &tuple.roles {
                index_of(&mut lists.weights, entry.format);
            }
            index_of(&mut lists.activations, tuple.activations);
            index_of(&mut lists.states, (tuple.states, tuple.attention));
        }
        for row in &request.sensitivities {
            index_of(&mut lists.weights, row.format);
        }
        lists
    }

    fn tuple(&mut self, tuple: &own::FormatTuple) -> wit::FormatTuple {
        let role = |entry: &own::RoleFormat| wit::RoleFormat {
            role: entry.role.name().to_owned(),
            format: index_of(&mut self.weights, entry.format),
        };
        wit::FormatTuple {
            roles: tuple.roles.iter().map(role).collect(),
            weights: index_of(&mut self.weights, tuple.weights),
            activations: index_of(&mut self.activations, tuple.activations),
            states: index_of(&mut self.states, (tuple.states, tuple.attention)),
        }
    }

    /// Converts the losses of values. A loss of states or of attention applies to every entry of
    /// the list of states with that format, so a planner adds both.
    fn value_sensitivities(
        &mut self,
        rows: &[crate::request::ValueSensitivity],
    ) -> Vec<wit::ValueSensitivity> {
        for row in rows {
            match row.format {
                own::ValueFormat::Activations(format) => index_of(&mut self.activations, format),
                own::ValueFormat::States(format) if self.states.iter().all(|(own, _)| *own != format) => {
                    index_of(&mut self.states, (format, own::AttentionFormat::F32))
                }
                own::ValueFormat::States(_) | own::ValueFormat::Attention(_) => continue,
            };
        }
        let has = |format: own::ValueFormat, place: usize| match format {
            own::ValueFormat::Activations(format) => self.activations.get(place) == Some(&format),
            own::ValueFormat::States(format) => self.states.get(place).is_some_and(|own| own.0 == format),
            own::ValueFormat::Attention(format) => self.states.get(place).is_some_and(|own| own.1 == format),
        };
        let guest = |row: &crate::request::ValueSensitivity| {
            let (values, count) = match row.format {
                own::ValueFormat::Activations(_) => ("activations", self.activations.len()),
                own::ValueFormat::States(_) | own::ValueFormat::Attention(_) => ("states", self.states.len()),
            };
            let places = (0..count).filter(|place| has(row.format, *place));
            let guest = |place: usize| wit::ValueSensitivity {
                component: row.component,
                layer: row.layer,
                values: values.to_owned(),
                format: u32::try_from(place).unwrap_or(u32::MAX),
                micronats: row.micronats,
                provenance: guest_provenance(row.provenance),
            };
            places.map(guest).collect::<Vec<_>>()
        };
        rows.iter().flat_map(guest).collect()
    }
}

/// Returns the index of an item in a list. Adds the item if it is missing.
fn index_of<T: Copy + PartialEq>(list: &mut Vec<T>, item: T) -> u32 {
    let place = list.iter().position(|known| *known == item).unwrap_or_else(|| {
        list.push(item);
        list.len() - 1
    });
    u32::try_from(place).unwrap_or(u32::MAX)
}

/// The reader of gathered rows, as named in a request.
const GATHERED_BY_THE_RUNTIME: &str = "runtime";

fn guest_table(table: &crate::request::GatheredTable) -> wit::GatheredTable {
    let format = |own: &crate::request::TableFormat| wit::TableFormat {
        format: guest_weight_format(own.format),
        place: GATHERED_BY_THE_RUNTIME.to_owned(),
        bytes: own.bytes,
        micronats: own.micronats,
        provenance: guest_provenance(own.provenance),
    };
    wit::GatheredTable { name: table.name.clone(), formats: table.formats.iter().map(format).collect() }
}

fn guest_overhead(overhead: &own::Overhead) -> wit::Overhead {
    let time = overhead.time();
    wit::Overhead {
        name: overhead.name.clone(),
        low: time.low,
        value: time.microseconds,
        high: time.high,
        provenance: guest_provenance(overhead.provenance),
        note: overhead.note.clone(),
    }
}

fn guest_fact(fact: &TargetFact) -> wit::Fact {
    let provenance = guest_provenance(fact.provenance);
    wit::Fact { name: fact.name.clone(), value: fact.value.clone(), provenance }
}

fn guest_range(range: &BoundaryRange) -> wit::BoundaryRange {
    wit::BoundaryRange {
        name: range.name.clone(),
        component: range.component,
        layer: range.layer,
        minimum_bits: range.minimum_bits,
        maximum_bits: range.maximum_bits,
    }
}

fn guest_time(time: own::TimeCost) -> wit::TimeCost {
    wit::TimeCost {
        low: time.low,
        likely: time.microseconds,
        high: time.high,
        provenance: guest_provenance(time.provenance),
    }
}

fn guest_cost(row: &own::CostRow) -> wit::Cost {
    wit::Cost {
        kind: row.kind,
        target: row.target,
        formats: row.formats,
        entry: guest_entry(row.entry),
        ops: row.ops,
        weight_bytes: row.weight_bytes,
        artefact_bytes: row.artefact_bytes,
        artefact_provenance: guest_provenance(row.artefact_provenance),
        state_bytes: row.state_bytes,
        support: match (&row.legality, row.time) {
            (own::Legality::Illegal(why), _) => wit::Support::Illegal(why.clone()),
            (own::Legality::Legal, Some(time)) => wit::Support::Legal(guest_time(time)),
            // A validated request has no such row.
            (own::Legality::Legal, None) => wit::Support::Illegal("its time is unknown".to_owned()),
        },
    }
}

fn guest_goals(goals: &Goals) -> wit::Goals {
    let bounds = [
        goals.quality_micronats.map(wit::Goal::QualityMicronats),
        goals.memory_bytes.map(wit::Goal::MemoryBytes),
        goals.size_bytes.map(wit::Goal::SizeBytes),
        goals.token_microseconds.map(wit::Goal::TokenMicroseconds),
        goals.first_token_microseconds.map(wit::Goal::FirstTokenMicroseconds),
    ];
    wit::Goals {
        bounds: bounds.into_iter().flatten().collect(),
        least_loss: goals.least_loss,
        context: goals.context,
        max_prefill_rows: goals.max_prefill_rows,
        prompt_tokens: goals.prompt_tokens,
        answer_tokens: goals.answer_tokens,
    }
}

fn guest_lesson(lesson: &own::Lesson) -> wit::Lesson {
    wit::Lesson {
        target: lesson.target,
        limit: lesson.limit.clone(),
        value: lesson.value,
        because: lesson.because.clone(),
    }
}

/// Converts the lessons of a guest's plan or refusal. They are not checked yet.
pub(crate) fn host_lessons(lessons: Vec<wit::Lesson>) -> Vec<own::Lesson> {
    let lesson = |lesson: wit::Lesson| own::Lesson {
        target: lesson.target,
        limit: lesson.limit,
        value: lesson.value,
        because: lesson.because,
    };
    lessons.into_iter().map(lesson).collect()
}

/// Name of the extension of a request with its usual formats: their indices, separated by commas.
const USUAL_FORMATS: &str = "usual-formats";

/// Returns the extension of a request whose formats are others than without goals.
fn usual_formats(request: &Request) -> Option<wit::Extension> {
    let indices: Vec<String> = request.usual_formats.iter().map(u32::to_string).collect();
    let (name, value) = (USUAL_FORMATS.to_owned(), indices.join(","));
    (!indices.is_empty()).then_some(wit::Extension { name, value })
}

/// Returns the name of a component's pass: every step, or the input of its tower.
fn runs_for(component: &str) -> &'static str {
    ComponentKind::from_name(component).map_or(Pass::Step, ComponentKind::pass).name()
}

impl From<&Request> for wit::Request {
    fn from(request: &Request) -> Self {
        let component = |component: &crate::request::Component| wit::Component {
            name: component.name.clone(),
            runs: runs_for(&component.name).to_owned(),
            body: match &component.body {
                Body::Whole(kind) => wit::Body::Whole(*kind),
                Body::Layers(layers) => wit::Body::Layers(
                    layers
                        .iter()
                        .map(|layer| wit::Layer {
                            kind: layer.kind,
                            donor: layer.donor,
                            writes_state: layer.writes_state,
                        })
                        .collect(),
                ),
            },
            softcap: component.softcap.as_ref().map(|softcap| wit::Softcap {
                kind_without: softcap.kind_without,
                runtime: guest_time(softcap.runtime),
            }),
            inputs: component.inputs.clone(),
            outputs: component.outputs.clone(),
        };
        let target = |summary: &crate::request::TargetSummary| wit::Target {
            name: summary.target.name.clone(),
            shim: summary.target.shim.clone(),
            device: summary.target.device.clone(),
            kind: summary.target.kind.name().to_owned(),
            limits: summary.limits.iter().map(guest_limit).collect(),
            overheads: summary.overheads.iter().map(guest_overhead).collect(),
            facts: summary.facts.iter().map(guest_fact).collect(),
            schema: summary.schema.iter().map(guest_schema).collect(),
            recommended: summary.recommended.iter().map(guest_flag).collect(),
            device_memory: summary.device_memory,
            extensions: vec![],
        };
        let mut lists = FormatLists::of(request);
        let formats = request.formats.iter().map(|tuple| lists.tuple(tuple)).collect();
        let sensitivities = request
            .sensitivities
            .iter()
            .map(|row| wit::Sensitivity {
                component: row.component,
                layer: row.layer,
                role: row.role.name().to_owned(),
                format: index_of(&mut lists.weights, row.format),
                micronats: row.micronats,
                provenance: guest_provenance(row.provenance),
            })
            .collect();
        let value_sensitivities = lists.value_sensitivities(&request.value_sensitivities);
        wit::Request {
            model: wit::Model {
                name: request.model.name.clone(),
                family: request.model.family.clone(),
                hidden: request.model.hidden,
                max_context: request.model.max_context,
                heads: request.model.heads,
                towers: request.model.towers.iter().map(|pass| pass.name().to_owned()).collect(),
                components: request.model.components.iter().map(component).collect(),
            },
            kinds: request
                .kinds
                .iter()
                .map(|kind| wit::LayerKind {
                    name: kind.name.clone(),
                    prefill: guest_prefill_part(kind.prefill),
                })
                .collect(),
            targets: request.targets.iter().map(target).collect(),
            weight_formats: lists.weights.iter().copied().map(guest_weight_format).collect(),
            activation_formats: lists.activations.iter().copied().map(guest_activations).collect(),
            state_formats: lists.states.iter().copied().map(guest_states_read).collect(),
            formats,
            entries: request.entries.iter().copied().map(guest_entry).collect(),
            costs: request.costs.iter().map(guest_cost).collect(),
            sensitivities,
            value_sensitivities,
            tables: request.tables.iter().map(guest_table).collect(),
            ranges: request.ranges.iter().map(guest_range).collect(),
            boundary_nanoseconds: request.boundary_nanoseconds,
            transfer_nanoseconds: request.transfer_nanoseconds,
            goals: guest_goals(&request.goals),
            prompts: request
                .prompts
                .iter()
                .map(|prompt| wit::PromptLength { tokens: prompt.tokens, count: prompt.count })
                .collect(),
            drafts: request.drafts.iter().map(guest_draft).collect(),
            options: request
                .options
                .iter()
                .map(|option| (option.name.clone(), option.value.clone()))
                .collect(),
            extensions: usual_formats(request).into_iter().collect(),
        }
    }
}

fn guest_boundary(shard: u32, boundary: &Boundary) -> Result<wit::Boundary> {
    let name = boundary.name.clone();
    let encoding = match boundary.encoding {
        None => None,
        Some(encoding) => match guest_element(encoding.element) {
            Some(element) => Some(wit::Encoding {
                element,
                scale_bits: encoding.scale.bits(),
                zero_point: encoding.zero_point,
            }),
            None => return Err(invalid_encoding(shard, &name, encoding)),
        },
    };
    Ok(wit::Boundary { name, encoding })
}

/// Fails for an encoding of an element type that cannot be encoded. A checked plan has none.
impl TryFrom<&Plan> for wit::Plan {
    type Error = Error;

    fn try_from(plan: &Plan) -> Result<Self> {
        let boundaries = |index: u32, list: &[Boundary]| -> Result<Vec<wit::Boundary>> {
            list.iter().map(|boundary| guest_boundary(index, boundary)).collect()
        };
        let shard = |(index, shard): (u32, &Shard)| -> Result<wit::Shard> {
            let segment = |segment: &PlannedSegment| wit::Segment {
                component: segment.component,
                first: segment.first,
                end: segment.end,
                formats: segment.formats.clone(),
            };
            Ok(wit::Shard {
                segments: shard.segments.iter().map(segment).collect(),
                target: shard.target,
                context: shard.context,
                entries: shard.entries.iter().copied().map(guest_entry).collect(),
                inputs: boundaries(index, &shard.inputs)?,
                outputs: boundaries(index, &shard.outputs)?,
                softcap: shard.softcap.map(guest_softcap_place),
                flags: shard.flags.iter().map(guest_flag).collect(),
                build: guest_build_time(shard.build),
                extensions: vec![],
            })
        };
        let reason = |reason: &Reason| wit::Reason {
            shard: reason.shard,
            choice: reason.choice.clone(),
            because: reason.because.clone(),
            cause: match &reason.cause {
                Cause::Limit(name) => wit::Cause::Limit(name.clone()),
                Cause::Cost(name) => wit::Cause::Cost(name.clone()),
                Cause::Goal(name) => wit::Cause::Goal(name.clone()),
                Cause::Feedback(name) => wit::Cause::Feedback(name.clone()),
                Cause::Preference(name) => wit::Cause::Preference(name.clone()),
            },
        };
        Ok(wit::Plan {
            shards: (0..).zip(&plan.shards).map(shard).collect::<Result<_, _>>()?,
            tables: plan.tables.clone(),
            fallback: plan.fallback.iter().map(guest_fallback).collect(),
            speculation: plan.speculation.as_ref().map(guest_speculation),
            reasons: plan.reasons.iter().map(reason).collect(),
            lessons: plan.lessons.iter().map(guest_lesson).collect(),
            extensions: vec![],
        })
    }
}

/// Converts a guest's plan. Only scales can fail to convert. The check judges everything else.
impl TryFrom<wit::Plan> for Plan {
    type Error = Error;

    fn try_from(plan: wit::Plan) -> Result<Self> {
        let mut shards = Vec::new();
        for (shard, position) in plan.shards.into_iter().zip(0_u32..) {
            let boundaries = |boundaries: Vec<wit::Boundary>| {
                let boundary = |boundary: wit::Boundary| {
                    let encoding = match boundary.encoding {
                        None => None,
                        Some(encoding) => match own::ScaleBits::from_bits(encoding.scale_bits) {
                            Some(scale) => Some(own::Encoding {
                                element: host_element(encoding.element),
                                scale,
                                zero_point: encoding.zero_point,
                            }),
                            None => {
                                let (name, bits) = (boundary.name, encoding.scale_bits);
                                let expected = format!("expected a finite scale above zero for `{name}`");
                                return Err(fault_in(position, format!("{expected}, got bits {bits:#010x}")));
                            }
                        },
                    };
                    Ok(Boundary { name: boundary.name, encoding })
                };
                boundaries.into_iter().map(boundary).collect::<Result<Vec<_>, _>>()
            };
            let segment = |segment: wit::Segment| PlannedSegment {
                component: segment.component,
                first: segment.first,
                end: segment.end,
                formats: segment.formats,
            };
            shards.push(Shard {
                segments: shard.segments.into_iter().map(segment).collect(),
                target: shard.target,
                context: shard.context,
                entries: shard.entries.into_iter().map(host_entry).collect(),
                inputs: boundaries(shard.inputs)?,
                outputs: boundaries(shard.outputs)?,
                softcap: shard.softcap.map(host_softcap_place),
                flags: shard
                    .flags
                    .into_iter()
                    .map(|flag| own::Flag { name: flag.name, value: flag.value })
                    .collect(),
                build: host_build_time(shard.build),
            });
        }
        let reason = |reason: wit::Reason| Reason {
            shard: reason.shard,
            choice: reason.choice,
            because: reason.because,
            cause: match reason.cause {
                wit::Cause::Limit(name) => Cause::Limit(name),
                wit::Cause::Cost(name) => Cause::Cost(name),
                wit::Cause::Goal(name) => Cause::Goal(name),
                wit::Cause::Feedback(name) => Cause::Feedback(name),
                wit::Cause::Preference(name) => Cause::Preference(name),
            },
        };
        let reasons = plan.reasons.into_iter().map(reason).collect();
        let fallback = |chain: wit::Fallback| {
            let wit::Fallback { target, formats, limits } = chain;
            Fallback { target, formats, limits }
        };
        let fallback = plan.fallback.into_iter().map(fallback).collect();
        let speculation = plan.speculation.map(host_speculation);
        let lessons = host_lessons(plan.lessons);
        Ok(Plan { shards, tables: plan.tables, fallback, speculation, reasons, lessons })
    }
}

impl From<&Feedback> for wit::Feedback {
    fn from(feedback: &Feedback) -> Self {
        wit::Feedback {
            shard: feedback.shard,
            class: feedback.class.map(guest_error_class),
            message: feedback.message.clone(),
            details: feedback
                .details
                .iter()
                .map(|detail| (detail.name.clone(), detail.value.clone()))
                .collect(),
            times: feedback
                .times
                .iter()
                .map(|time| wit::MeasuredTime {
                    entry: guest_entry(time.entry),
                    microseconds: time.microseconds,
                })
                .collect(),
            drift_per_mille: feedback.drift_per_mille,
            extensions: vec![],
        }
    }
}

impl TryFrom<&Attempt> for wit::Attempt {
    type Error = Error;

    fn try_from(attempt: &Attempt) -> Result<Self> {
        Ok(wit::Attempt {
            plan: (&attempt.plan).try_into()?,
            feedback: attempt.feedback.iter().map(wit::Feedback::from).collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planners_learn_which_activations_share_a_scale_that_is_found_at_run_time() {
        let of = |format| guest_activations(format).quantisation.map(|how| (how.dynamic, how.granularity));
        use own::ActivationFormat as Activations;
        for (format, dynamic) in
            [(Activations::A16, false), (Activations::A8Dynamic, true), (Activations::A8DynamicBlock32, true)]
        {
            let Some((told, granularity)) = of(format) else { panic!("{format} is a format of integers") };
            assert_eq!(told, dynamic, "{format}");
            match format {
                Activations::A16 => assert!(matches!(granularity, wit::Granularity::Tensor)),
                Activations::A8Dynamic => assert!(matches!(granularity, wit::Granularity::Channel)),
                _ => assert!(matches!(granularity, wit::Granularity::Block(32))),
            }
        }
        assert!(of(Activations::F16).is_none());
    }

    #[test]
    fn planners_see_attention_in_16_bits_as_another_format_of_states() {
        let tuples = ["f32/f32/f16", "f32/f32/f16/attention-bf16", "f32/f32/f32/attention-bf16"];
        let mut lists = FormatLists { weights: vec![], activations: vec![], states: vec![] };
        let guests: Vec<u32> = tuples.iter().map(|text| lists.tuple(&text.parse().unwrap()).states).collect();
        assert_eq!(guests, [0, 1, 2]);
        let names: Vec<String> = lists.states.iter().map(|format| guest_states_read(*format).name).collect();
        assert_eq!(names, ["f16", "f16/attention-bf16", "f32/attention-bf16"]);
        let row = |format: own::ValueFormat, micronats: u32| crate::request::ValueSensitivity {
            component: 1,
            layer: 2,
            format,
            micronats,
            provenance: own::Provenance::Modelled,
        };
        let rows = [
            row(own::ValueFormat::States(own::StateFormat::F16), 3),
            row(own::ValueFormat::Attention(own::AttentionFormat::Bf16), 50),
            row(own::ValueFormat::Activations(own::ActivationFormat::F16), 7),
            row(own::ValueFormat::States(own::StateFormat::A8), 11),
            // No tuple has it.
            row(own::ValueFormat::Attention(own::AttentionFormat::F16), 13),
        ];
        let found: Vec<(String, u32, u32)> = lists
            .value_sensitivities(&rows)
            .into_iter()
            .map(|row| (row.values, row.format, row.micronats))
            .collect();
        let states = |format, micronats| ("states".to_owned(), format, micronats);
        let activations = ("activations".to_owned(), 1, 7);
        assert_eq!(
            found,
            [states(0, 3), states(1, 3), states(1, 50), states(2, 50), activations, states(3, 11)]
        );
        // The sum of the rows of a tuple is its loss.
        let of_tuple = |place: u32| -> u32 {
            found
                .iter()
                .filter(|(what, format, _)| what == "states" && *format == place)
                .map(|row| row.2)
                .sum()
        };
        assert_eq!([of_tuple(0), of_tuple(1), of_tuple(2)], [3, 53, 50]);
    }
}
