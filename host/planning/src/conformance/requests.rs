//! Requests for conformance tests, derived from a recorded one. All pass [`Request::validate`],
//! even absurd ones.

use shardwright_vocabulary::{
    EntryKind, Limit, Overhead, Provenance, TimeCost, WeightFormat, limit_names, overhead_names,
};

use crate::hedge;
use crate::request::{
    Body, DraftEstimate, GatheredTable, Layer, PlannerOption, PromptLength, Request, TableFormat,
    ValueSensitivity, caps,
};

/// A request with a name for reports.
#[derive(Debug, Clone)]
pub struct Case {
    /// Name, a few words.
    pub name: &'static str,
    pub request: Request,
}

/// Returns the request of the demo model on a chip with a low limit on operations, in two formats,
/// and the CPU.
///
/// Fails only if the built-in JSON is not a valid request.
pub fn recorded() -> Result<Request, serde_json::Error> {
    serde_json::from_str(include_str!("sample_request.json"))
}

fn case(base: &Request, name: &'static str, change: impl FnOnce(&mut Request)) -> Case {
    let mut request = base.clone();
    change(&mut request);
    Case { name, request }
}

/// Returns the request unchanged.
pub fn plain(base: &Request) -> Case {
    case(base, "plain", |_| {})
}

/// Sets the number of layers of its layered component to `count`: the layers that write a state,
/// repeated, and then the others, which read the last states.
pub fn layers(base: &Request, count: u32) -> Case {
    let name = if count == 1 { "one layer" } else { "many layers" };
    case(base, name, |request| {
        let bodies = request.model.components.iter_mut().map(|component| &mut component.body);
        for body in bodies {
            let Body::Layers(layers) = body else { continue };
            let own = |layer: &&Layer| layer.donor.is_none() && layer.writes_state;
            let writers: Vec<Layer> = layers.iter().filter(own).cloned().collect();
            let mut readers: Vec<Layer> =
                layers.iter().filter(|layer| layer.donor.is_some()).cloned().collect();
            readers.truncate(count.saturating_sub(1) as usize);
            let written = (count as usize).saturating_sub(readers.len());
            let begin = layers.iter().take_while(|layer| layer.donor.is_none()).count();
            for donor in readers.iter_mut().filter_map(|layer| layer.donor.as_mut()) {
                // Keeps the distance to the end of the writers.
                let back = begin.saturating_sub(*donor as usize).max(1);
                *donor = u32::try_from(written.saturating_sub(back)).unwrap_or(0);
            }
            let repeated: Vec<Layer> = writers.into_iter().cycle().take(written).collect();
            *layers = repeated.into_iter().chain(readers).collect();
        }
    })
}

/// Returns the kind of the first layer of the layered component.
fn kind(request: &Request) -> Option<u32> {
    let mut bodies = request.model.components.iter().map(|component| &component.body);
    bodies.find_map(|body| match body {
        Body::Layers(layers) => layers.first().map(|layer| layer.kind),
        Body::Whole(_) => None,
    })
}

/// Removes cost rows of the first layer's kind.
pub fn without_rows(base: &Request) -> Vec<Case> {
    let gone = kind(base);
    vec![
        case(base, "no rows on the first target", |request| {
            request.costs.retain(|row| Some(row.kind) != gone || row.target != 0);
        }),
        case(base, "no rows of one token on the first target", |request| {
            request.costs.retain(|row| {
                Some(row.kind) != gone
                    || row.target != 0
                    || (row.entry.kind, row.entry.rows) != (EntryKind::Decode, 1)
            });
        }),
        case(base, "no rows on any target", |request| request.costs.retain(|row| Some(row.kind) != gone)),
    ]
}

/// Makes all times very uncertain: a run may be a thousand times faster or slower than is likely.
pub fn with_wide_times(base: &Request) -> Case {
    case(base, "wide times", |request| {
        for time in request.costs.iter_mut().filter_map(|row| row.time.as_mut()) {
            let likely = time.microseconds.min(caps::MICROSECONDS / 1000);
            *time = TimeCost::within(likely.div_ceil(1000), likely, likely * 1000, Provenance::Modelled);
        }
    })
}

/// Returns requests that no plan can meet.
pub fn contradictory(base: &Request) -> Vec<Case> {
    vec![
        case(base, "one byte of memory", |request| request.goals.memory_bytes = Some(1)),
        case(base, "no loss in lossy formats", |request| {
            request.goals.quality_micronats = Some(0);
            request.sensitivities.clear();
        }),
        case(base, "one operation at a time", |request| {
            for target in &mut request.targets {
                target.limits.push(Limit::new(limit_names::OPS, 1, Provenance::User));
            }
        }),
        case(base, "a token in no time", |request| request.goals.token_microseconds = Some(0)),
        case(base, "a first token in no time", |request| {
            request.goals.first_token_microseconds = Some(0);
        }),
        case(base, "more context than any entry point", |request| {
            request.goals.context = u32::MAX;
            request.model.max_context = u32::MAX;
        }),
    ]
}

/// Adds an option that no planner supports.
pub fn with_unknown_option(base: &Request) -> Case {
    case(base, "an unknown option", |request| {
        let (name, value) = ("no-such-option".to_owned(), "1".to_owned());
        request.options.push(PlannerOption { name, value });
    })
}

/// Creates the request for a hedge: the first target alone, within this number of operations. `off`
/// sets the option against hedges.
pub fn hedge(base: &Request, ops: u64, off: bool) -> Case {
    case(base, "a hedge", |request| {
        request.targets.truncate(1);
        request.costs.retain(|row| row.target == 0);
        for target in &mut request.targets {
            target.limits.retain(|limit| limit.name != limit_names::OPS);
            let limit = Limit::new(limit_names::OPS, ops, Provenance::Learned);
            target.limits.push(limit.with_note(hedge::NOTE));
        }
        let (name, value) = hedge::OFF;
        let option = PlannerOption { name: name.to_owned(), value: value.to_owned() };
        request.options.extend(off.then_some(option));
    })
}

fn endless(name: &str) -> Overhead {
    let (provenance, note) = (Provenance::Modelled, String::new());
    Overhead { name: name.to_owned(), low: None, value: caps::MICROSECONDS, high: None, provenance, note }
}

/// Returns requests with extreme numbers and names.
pub fn extreme(base: &Request) -> Vec<Case> {
    let text = "\u{1b}[2J\u{202e}é\n".repeat(100);
    vec![
        case(base, "costs of 64 bits", |request| {
            for row in &mut request.costs {
                (row.ops, row.weight_bytes, row.artefact_bytes, row.state_bytes, row.uncosted_ops) =
                    (u64::MAX, u64::MAX, u64::MAX, u64::MAX, u64::MAX);
                row.time = Some(TimeCost::exact(caps::MICROSECONDS, Provenance::Measured));
            }
            (request.boundary_nanoseconds, request.transfer_nanoseconds) = (u64::MAX, u64::MAX);
            for target in &mut request.targets {
                target.overheads = overhead_names::ALL.iter().map(|name| endless(name)).collect();
            }
        }),
        case(base, "costs of zero", |request| {
            for row in &mut request.costs {
                (row.ops, row.weight_bytes, row.artefact_bytes, row.state_bytes, row.uncosted_ops) =
                    (0, 0, 0, 0, 0);
                row.time = Some(TimeCost::ZERO);
            }
        }),
        case(base, "limits of zero", |request| {
            for limit in request.targets.iter_mut().flat_map(|target| &mut target.limits) {
                limit.value = 0;
            }
        }),
        case(base, "unlimited goals", |request| {
            request.goals.memory_bytes = Some(u64::MAX);
            request.goals.size_bytes = Some(u64::MAX);
            request.goals.token_microseconds = Some(u64::MAX);
            request.goals.first_token_microseconds = Some(u64::MAX);
            (request.goals.prompt_tokens, request.goals.answer_tokens) = (u32::MAX, u32::MAX);
            request.goals.max_prefill_rows = u32::MAX;
        }),
        case(base, "tables of extreme sizes", |request| {
            let table = |name: &str, bytes: u64, micronats: Option<u32>| GatheredTable {
                name: name.to_owned(),
                formats: [WeightFormat::Bf16, WeightFormat::W8PerChannel]
                    .map(|format| TableFormat { format, bytes, micronats, provenance: Provenance::Modelled })
                    .to_vec(),
            };
            request.tables = vec![table("empty", 0, None), table("all", u64::MAX, Some(u32::MAX))];
        }),
        case(base, "activations and states with extreme losses", |request| {
            let Some(format) = request.formats.first().cloned() else { return };
            let all = format.values();
            for (component, own) in (0..).zip(&request.model.components) {
                for (layer, format) in
                    (0..own.layer_count().max(1)).flat_map(|layer| all.map(|format| (layer, format)))
                {
                    let (micronats, provenance) = (u32::MAX, Provenance::Modelled);
                    let row = ValueSensitivity { component, layer, format, micronats, provenance };
                    request.value_sensitivities.push(row);
                }
            }
            request.goals.quality_micronats = Some(1);
        }),
        case(base, "prompts of extreme lengths", |request| {
            let lengths = [0, 1, 2, u32::MAX].into_iter();
            let prompts =
                lengths.flat_map(|tokens| [0, u32::MAX].map(|count| PromptLength { tokens, count }));
            request.prompts = prompts.collect();
        }),
        case(base, "drafts with extreme numbers", |request| {
            let draft = |name: &str, steps: u32, bytes: u64| DraftEstimate {
                name: name.to_owned(),
                silent_steps: steps,
                accepted_steps: vec![steps; 64],
                provenance: Provenance::Measured,
                token_time: TimeCost::exact(bytes.min(caps::MICROSECONDS), Provenance::Modelled),
                memory_bytes: bytes,
                row_bytes: bytes,
            };
            request.drafts = vec![draft("none", 0, 0), draft("all", u32::MAX, 0), draft("", 1, u64::MAX)];
        }),
        case(base, "names of a thousand bytes", |request| {
            request.model.name.clone_from(&text);
            request.model.family.clone_from(&text);
            request.kinds.iter_mut().for_each(|kind| kind.name.clone_from(&text));
            for (target, digit) in request.targets.iter_mut().zip('0'..) {
                target.target.name = format!("{text}{digit}");
            }
        }),
        case(base, "empty names", |request| {
            request.model.name.clear();
            request.kinds.iter_mut().for_each(|kind| kind.name.clear());
        }),
    ]
}
