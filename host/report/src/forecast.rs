//! Predicts the demands of a plan on a device before anything is downloaded or compiled: the memory
//! of each phase in named parts, the size of the download, the time to the first token and of each
//! further token, and whether the model fits.

use std::collections::BTreeMap;

use shardwright_graph::{EntryOptions, EntryPoint, Graph, Role, Weight};
use shardwright_planning::check::{CheckedPlan, CheckedShard};
use shardwright_planning::cost::prompt_runs;
use shardwright_planning::request::{DraftEstimate, Request};
use shardwright_planning::times::{PlanTimes, first_token, plan_times};
use shardwright_vocabulary::{
    EntryKind, EntryName, FormatTuple, GoalVerdict, Overhead, Provenance, TargetKind, TimeCost,
    overhead_names,
};

use crate::report::{
    Download, EntryTime, Figure, Fits, Forecast, ForecastVerdict, MemoryPart, Phase, PhaseMemory, PlanTotals,
    Predicted, Speed, totals,
};

/// Length of the prompt for which the time to the first token is predicted, in tokens, if the
/// request does not specify one. Limited to the context.
const PROMPT_TOKENS: u32 = 512;

/// Storage of converted constants until they are compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Making {
    /// In memory, all at once.
    InMemory,
    /// In files that are mapped.
    InFiles,
}

/// Properties of a model that a forecast needs in addition to its graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weighed {
    /// Bytes of constants and tables as stored.
    stored_bytes: u64,
    /// The formats of a shard whose constants are used as stored.
    stored: FormatTuple,
    making: Making,
    download: Option<Download>,
}

impl Weighed {
    /// Collects the properties of a model as stored, in the formats `stored`.
    pub fn of(graph: &Graph, stored: FormatTuple, making: Making, download: Option<Download>) -> Self {
        Weighed { stored_bytes: stored_bytes(graph), stored, making, download }
    }

    /// Returns whether a shard in these formats uses its constants as stored. Activations that are
    /// rounded at run time convert none.
    fn keeps(&self, formats: &FormatTuple) -> bool {
        let activations = formats.activations;
        (formats.weights, &formats.roles) == (self.stored.weights, &self.stored.roles)
            && (activations == self.stored.activations || activations.dynamic_block().is_some())
    }
}

/// Returns the bytes of all constants and tables of a graph. A tensor that a head shares with the
/// embedding counts once.
pub fn stored_bytes(graph: &Graph) -> u64 {
    let tables = graph.assets.iter().map(|asset| &asset.table);
    let tensors: BTreeMap<&str, u64> = graph
        .weights
        .iter()
        .chain(tables)
        .map(|weight: &Weight| (weight.name.as_str(), weight.bytes()))
        .collect();
    tensors.into_values().fold(0, u64::saturating_add)
}

/// Predicts the demands of a plan. `graph` is the model in any formats.
pub fn forecast(request: &Request, plan: &CheckedPlan, graph: &Graph, weighed: &Weighed) -> Forecast {
    let totals = &totals(request, plan);
    let times = &plan_times(request, plan);
    let memory = memory(request, plan, graph, weighed, totals);
    Forecast {
        verdict: verdict(request, plan, &memory, times),
        download: weighed.download,
        speed: speed(request, plan, totals, times),
        loading: loading(request, plan),
        memory,
    }
}

fn part(name: impl Into<String>, figure: Figure) -> MemoryPart {
    MemoryPart { name: name.into(), figure }
}

/// Name of the memory that the driver allocates, which the host cannot measure.
const DRIVER: &str = "driver overhead";

fn memory(
    request: &Request,
    plan: &CheckedPlan,
    graph: &Graph,
    weighed: &Weighed,
    totals: &PlanTotals,
) -> Vec<PhaseMemory> {
    let artefacts = || {
        let (bytes, provenance) = (totals.artefacts.bytes, totals.artefacts.provenance);
        part("artefacts", Figure::Estimated { bytes, provenance })
    };
    let mapped = |name: &str, bytes| part(name, Figure::Mapped { bytes });

    let is_made = |shard: &&CheckedShard| !shard.formats.tuples().all(|tuple| weighed.keeps(tuple));
    let made = plan.shards().iter().filter(is_made).map(|shard| shard.cost.weight_bytes);
    let made = made.fold(0, u64::saturating_add);
    let largest = plan.shards().iter().map(|shard| shard.cost.weight_bytes).max().unwrap_or(0);
    let mut compile = vec![mapped("checkpoint", weighed.stored_bytes)];
    if made > 0 {
        compile.push(match weighed.making {
            Making::InMemory => part("converted weights", Figure::Counted { bytes: made }),
            Making::InFiles => mapped("converted weights", made),
        });
    }
    compile.push(mapped("work order of the largest shard", largest));
    compile.push(mapped("artefacts, written to files", totals.artefacts.bytes));
    compile.push(part("compiler overhead", Figure::Unknown));

    let load =
        vec![artefacts(), mapped("artefact files", totals.artefacts.bytes), part(DRIVER, Figure::Unknown)];

    let buffers = match buffer_bytes(plan, graph) {
        // Stored as f32 unless the plan encodes them. The driver decides about padding.
        Some(bytes) => Figure::Estimated { bytes, provenance: Provenance::Modelled },
        None => Figure::Unknown,
    };
    let running = || {
        let mut parts = vec![artefacts()];
        if totals.state_bytes > 0 {
            parts.push(part("KV cache", Figure::Counted { bytes: totals.state_bytes }));
        }
        parts.push(part("inputs and boundaries", buffers));
        let tables = plan.tables().iter();
        parts.extend(tables.map(|table| mapped(&format!("table {}", table.name), table.chosen.bytes)));
        parts.push(part(DRIVER, Figure::Unknown));
        parts
    };
    let mut phases = vec![PhaseMemory::of(Phase::Compile, compile), PhaseMemory::of(Phase::Load, load)];
    if !graph.is_generative() {
        phases.push(PhaseMemory::of(Phase::Encode, running()));
        return phases;
    }
    phases.push(PhaseMemory::of(Phase::Prefill, running()));
    let mut decode = running();
    // The runtime's own copy of the rows that it samples from, as f32.
    let rows = plan.speculation().map_or(1, |speculation| speculation.rows.into());
    let bytes = graph.vocabulary.saturating_mul(4).saturating_mul(rows);
    decode.insert(decode.len().saturating_sub(1), part("logits", Figure::Counted { bytes }));
    let proposes = |draft: &&DraftEstimate| plan.speculation().is_some_and(|own| own.draft == draft.name);
    if let Some(draft) = request.drafts.iter().find(proposes) {
        let figure = Figure::Estimated { bytes: draft.memory_bytes, provenance: Provenance::Modelled };
        decode.insert(decode.len().saturating_sub(1), part(format!("draft {}", draft.name), figure));
    }
    phases.push(PhaseMemory::of(Phase::Decode, decode));
    phases
}

/// Returns the bytes that a session allocates for computed inputs of a step and for values that
/// shards hand over. Entry points share the buffers, so the largest counts. Returns `None` if an
/// entry point cannot be made.
fn buffer_bytes(plan: &CheckedPlan, graph: &Graph) -> Option<u64> {
    // Computed inputs exist once for each target, outputs of a shard once for each shard.
    let mut buffers: BTreeMap<(Owner, String), u64> = BTreeMap::new();
    let mut given: Vec<(String, u32)> = Vec::new();
    for (index, shard) in plan.shards().iter().enumerate() {
        let target = shard.planned.target;
        let mut outputs = Vec::new();
        for entry in &shard.planned.entries {
            let point = EntryPoint::of(*entry, plan.largest_rows());
            let made = graph.entry_of(&shard.segments, point, EntryOptions::default()).ok()?;
            let Some(entry) = made else { continue };
            let mut keep = |owner, name: String, bytes: u64| {
                let largest = buffers.entry((owner, name)).or_default();
                *largest = bytes.max(*largest);
            };
            for (tensor, role) in &entry.inputs {
                let bytes = entry.tensor(*tensor).bytes();
                match role {
                    Role::State { .. } => {}
                    Role::Hidden | Role::PerLayer { .. } => {
                        // Bound in place, unless it was written on another target.
                        let writer = given.iter().rev().find(|(name, _)| name == role.name());
                        if writer.is_some_and(|(_, from)| *from != target) {
                            keep(Owner::Copied(index), role.name().to_owned(), bytes);
                        }
                    }
                    role => keep(Owner::Step(target), format!("{role:?}"), bytes),
                }
            }
            for (tensor, role) in &entry.outputs {
                if !matches!(role, Role::State { .. }) {
                    keep(Owner::Given(index), format!("{role:?}"), entry.tensor(*tensor).bytes());
                    outputs.push((role.name().to_owned(), target));
                }
            }
        }
        given.extend(outputs);
    }
    Some(buffers.into_values().fold(0, u64::saturating_add))
}

/// The owner of a buffer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    /// A target, for the inputs that every step computes for it.
    Step(u32),
    /// The shard that outputs the value.
    Given(usize),
    /// The shard that reads the value from another target.
    Copied(usize),
}

fn speed(request: &Request, plan: &CheckedPlan, totals: &PlanTotals, times: &PlanTimes) -> Speed {
    let encodes = totals.times.iter().filter(|time| time.entry.kind == EntryKind::Encode);
    if let Some(encode) = encodes.max_by_key(|time| time.entry.rows) {
        return Speed::Vector {
            tokens: encode.entry.rows,
            each: Predicted::of(times.token, encode.uncosted_ops),
        };
    }
    let context = plan.shards().iter().map(|shard| shard.planned.context).max().unwrap_or(0);
    let context = if context == 0 { request.goals.context } else { context };
    let prompt_tokens = match request.goals.prompt_tokens {
        0 => PROMPT_TOKENS.min(context),
        asked => asked,
    };
    let uncosted = |run: &[EntryName]| {
        let run = totals.times.iter().filter(|time| run.contains(&time.entry));
        run.map(|time| time.uncosted_ops).fold(0, u64::saturating_add)
    };
    let step: Vec<EntryName> = single_decode(&totals.times).into_iter().collect();
    let prompt = [prompt_entries(&totals.times, prompt_tokens), step.clone()].concat();
    let first = first_token(request, plan, prompt_tokens);
    Speed::Tokens {
        prompt_tokens,
        first: first.map(|first| Predicted::of(first, uncosted(&prompt))),
        each: Predicted::of(times.token, uncosted(&step)),
        per_1000_seconds: 1_000_000_000_u64.checked_div(times.token.microseconds),
    }
}

/// Predicts the time of loading all shards one after the other. Returns `None` if the loading rate
/// of a target is unknown. Fixed parts count only where they are known.
fn loading(request: &Request, plan: &CheckedPlan) -> Option<Predicted> {
    let mut all = TimeCost::ZERO;
    for shard in plan.shards() {
        let target = request.targets.get(shard.planned.target as usize)?;
        let rate = target.overhead(overhead_names::LOAD_PER_MEBIBYTE)?.time();
        let by_size = |rate: u64| {
            let bytes = u128::from(shard.cost.artefact_bytes).saturating_mul(rate.into());
            u64::try_from(bytes / MEBIBYTE).unwrap_or(u64::MAX)
        };
        let [low, likely, high] = [rate.low, rate.microseconds, rate.high].map(by_size);
        let fixed = target.overhead(overhead_names::LOAD).map_or(TimeCost::ZERO, Overhead::time);
        let own = TimeCost::within(low, likely, high, rate.provenance);
        all = all.saturating_add(own).saturating_add(fixed);
    }
    Some(Predicted::of(all, 0))
}

const MEBIBYTE: u128 = 1 << 20;

/// Returns the entry point that runs a single token through the model.
fn single_decode(times: &[EntryTime]) -> Option<EntryName> {
    let decodes = times.iter().map(|time| time.entry).filter(|entry| entry.kind == EntryKind::Decode);
    decodes.min_by_key(|entry| entry.rows)
}

/// Returns the entry points that read a prompt up to its last token, which decode reads.
fn prompt_entries(times: &[EntryTime], tokens: u32) -> Vec<EntryName> {
    let entries = times.iter().map(|time| time.entry);
    let prefills: Vec<EntryName> = entries.filter(|entry| entry.kind == EntryKind::Prefill).collect();
    prompt_runs(&prefills, tokens).into_iter().map(|(entry, _)| entry).collect()
}

fn verdict(
    request: &Request,
    plan: &CheckedPlan,
    memory: &[PhaseMemory],
    times: &PlanTimes,
) -> ForecastVerdict {
    // The chip is the first target that is not a CPU. If all targets are CPUs, the first one
    // counts.
    let chip = request.targets.iter().find(|target| target.target.kind != TargetKind::Cpu);
    let chip = chip.or(request.targets.first());
    let is_elsewhere = |shard: &&CheckedShard| {
        chip.is_some_and(|chip| chip.target.kind != TargetKind::Cpu) && shard.target.kind == TargetKind::Cpu
    };
    let elsewhere: Vec<(String, String)> = plan
        .shards()
        .iter()
        .filter(is_elsewhere)
        .map(|shard| (shard.name.clone(), shard.target.name.clone()))
        .collect();
    // Memory of the compiler is unknown, and left out. The converted weights are a part of the
    // artefacts.
    let on_device = memory.iter().filter(|phase| phase.phase != Phase::Compile);
    let largest = on_device.max_by_key(|phase| phase.held_bytes);
    let held_bytes = largest.map_or(0, |phase| phase.held_bytes);
    let device_bytes = chip.and_then(|chip| chip.device_memory);
    let is_slow = |time: TimeCost, most: Option<u64>| {
        let verdict = most.map(|most| time.verdict(most));
        matches!(verdict, Some(GoalVerdict::Unlikely | GoalVerdict::Missed))
    };
    let goals = &request.goals;
    ForecastVerdict {
        fits: match device_bytes {
            None => Fits::Unknown,
            Some(most) if held_bytes > most => Fits::No,
            Some(_) if elsewhere.is_empty() => Fits::Whole,
            Some(_) => Fits::InPart,
        },
        elsewhere,
        too_slow: is_slow(times.token, goals.token_microseconds)
            || times.first_token.is_some_and(|first| is_slow(first, goals.first_token_microseconds)),
        largest: largest.map(|phase| phase.phase),
        held_bytes,
        mapped_bytes: largest.map_or(0, |phase| phase.mapped_bytes),
        asked_bytes: goals.memory_bytes,
        device_bytes,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entry(kind: EntryKind, rows: u32) -> EntryTime {
        let entry = EntryName { kind, rows, context: 4096 };
        EntryTime {
            entry,
            time: TimeCost::exact(rows.into(), Provenance::Modelled),
            uncosted_ops: 0,
            calls: TimeCost::ZERO,
            hand_off_nanoseconds: 0,
            shares: Vec::new(),
        }
    }

    /// `Session::append` runs the same entry points.
    #[test]
    fn a_prompt_takes_the_largest_filled_entry_points() {
        let menu = [
            entry(EntryKind::Prefill, 128),
            entry(EntryKind::Prefill, 16),
            entry(EntryKind::Decode, 16),
            entry(EntryKind::Decode, 1),
        ];
        let of = |tokens| prompt_entries(&menu, tokens).iter().map(ToString::to_string).collect::<Vec<_>>();
        let [wide, short] = ["prefill_128@4096", "prefill_16@4096"];
        // 511 = 3 × 128 + 7 × 16 + 15. The smallest entry point reads the rest without being
        // filled.
        assert_eq!(of(512), [wide, short]);
        let runs = prompt_runs(&[menu[0].entry, menu[1].entry], 512);
        assert_eq!(runs.into_iter().map(|(_, runs)| runs).collect::<Vec<_>>(), [3, 8]);
        assert_eq!((of(129), of(2)), (vec![wide.to_owned()], vec![short.to_owned()]));
        assert!(of(1).is_empty() && prompt_entries(&menu[2..], 9).is_empty());
        assert_eq!(single_decode(&menu), Some(menu[3].entry));
        assert_eq!(single_decode(&menu[..2]), None);
    }
}
