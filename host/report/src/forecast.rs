//! Predicts the demands of a plan on a device before anything is downloaded or compiled: the memory
//! of each phase in named parts, the size of the download, the time to the first token and of each
//! further token, and whether the model fits.

use std::collections::BTreeMap;

use shardwright_graph::{EntryOptions, EntryPoint, Graph, Role, Weight};
use shardwright_planning::check::{CheckedPlan, CheckedShard};
use shardwright_planning::cost::{prompt_runs, weakest};
use shardwright_planning::request::{DraftEstimate, Request};
use shardwright_vocabulary::{EntryKind, FormatTuple, Provenance, TargetKind, limit_names, overhead_names};

use crate::report::{
    Download, EntryTime, Figure, Fits, Forecast, MemoryPart, Phase, PhaseMemory, PlanTotals, Predicted,
    Speed, Verdict, handing_over, totals,
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
    let memory = memory(request, plan, graph, weighed, totals);
    Forecast {
        verdict: verdict(request, plan, &memory),
        download: weighed.download,
        speed: speed(request, plan, totals),
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

    let is_made = |shard: &&CheckedShard| shard.formats.tuples().any(|tuple| *tuple != weighed.stored);
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

fn speed(request: &Request, plan: &CheckedPlan, totals: &PlanTotals) -> Speed {
    let timed = |steps: &[(&EntryTime, u64)]| -> Option<Predicted> {
        let (mut nanoseconds, mut provenance, mut uncosted_ops) = (0_u64, None, 0_u64);
        for (entry, runs) in steps {
            let time = entry.time?;
            let handed_over = handing_over(request, plan, Some(entry.entry));
            let once = time.microseconds.saturating_mul(1000).saturating_add(handed_over);
            nanoseconds = nanoseconds.saturating_add(once.saturating_mul(*runs));
            provenance = Some(provenance.map_or(time.provenance, |known| weakest(known, time.provenance)));
        }
        for entry in &totals.times {
            if steps.iter().any(|(run, _)| run.entry == entry.entry) {
                uncosted_ops = uncosted_ops.saturating_add(entry.uncosted_ops);
            }
        }
        Some(Predicted { microseconds: nanoseconds.div_ceil(1000), provenance: provenance?, uncosted_ops })
    };
    let encode = totals.times.iter().find(|entry| entry.entry.kind == EntryKind::Encode);
    if let Some(encode) = encode {
        return Speed::Vector { tokens: encode.entry.rows, each: timed(&[(encode, 1)]) };
    }
    let context = plan.shards().iter().map(|shard| shard.planned.context).max().unwrap_or(0);
    let context = if context == 0 { request.goals.context } else { context };
    let prompt_tokens = match request.goals.prompt_tokens {
        0 => PROMPT_TOKENS.min(context),
        asked => asked,
    };
    let each = single_decode(&totals.times).and_then(|entry| timed(&[(entry, 1)]));
    let first = prompt_steps(&totals.times, prompt_tokens).and_then(|steps| timed(&steps));
    let per_1000_seconds = each.and_then(|time| 1_000_000_000_u64.checked_div(time.microseconds));
    Speed::Tokens { prompt_tokens, first, each, per_1000_seconds }
}

/// Predicts the time of loading all shards one after the other. Returns `None` if the loading rate
/// of a target is unknown. Fixed parts count only where they are known.
fn loading(request: &Request, plan: &CheckedPlan) -> Option<Predicted> {
    let mut all = Predicted { microseconds: 0, provenance: Provenance::Measured, uncosted_ops: 0 };
    for shard in plan.shards() {
        let target = request.targets.get(shard.planned.target as usize)?;
        let rate = target.overhead(overhead_names::LOAD_PER_MEBIBYTE)?;
        let bytes = u128::from(shard.cost.artefact_bytes).saturating_mul(rate.value.into());
        let by_size = u64::try_from(bytes / MEBIBYTE).unwrap_or(u64::MAX);
        let fixed = target.overhead(overhead_names::LOAD);
        let own = by_size.saturating_add(fixed.map_or(0, |fixed| fixed.value));
        all.microseconds = all.microseconds.saturating_add(own);
        for part in std::iter::once(rate).chain(fixed) {
            all.provenance = weakest(all.provenance, part.provenance);
        }
    }
    Some(all)
}

const MEBIBYTE: u128 = 1 << 20;

/// Returns the entry point that runs a single token through the model.
fn single_decode(times: &[EntryTime]) -> Option<&EntryTime> {
    times.iter().filter(|time| time.entry.kind == EntryKind::Decode).min_by_key(|time| time.entry.rows)
}

/// Returns the entry points that read a prompt, each with its number of runs. Prefill reads all
/// tokens but the last, decode reads the last. Without prefill entry points, decode reads all
/// tokens.
fn prompt_steps(times: &[EntryTime], tokens: u32) -> Option<Vec<(&EntryTime, u64)>> {
    let of_kind = |kind: EntryKind| {
        times.iter().filter(|time| time.entry.kind == kind).map(|time| time.entry).collect::<Vec<_>>()
    };
    let mut readers = of_kind(EntryKind::Prefill);
    if readers.is_empty() {
        readers = of_kind(EntryKind::Decode);
    }
    let time = |(entry, runs)| Some((times.iter().find(|time| time.entry == entry)?, runs));
    let mut steps = prompt_runs(&readers, tokens).into_iter().map(time).collect::<Option<Vec<_>>>()?;
    steps.push((single_decode(times)?, 1));
    Some(steps)
}

fn verdict(request: &Request, plan: &CheckedPlan, memory: &[PhaseMemory]) -> Verdict {
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
    let on_device = memory.iter().filter(|phase| phase.phase != Phase::Compile);
    let largest = on_device.max_by_key(|phase| phase.held_bytes);
    let held_bytes = largest.map_or(0, |phase| phase.held_bytes);
    let asked_bytes = request.goals.memory_bytes;
    let of_memory = [limit_names::MEMORY_BYTES, limit_names::CONTEXT_BYTES];
    Verdict {
        fits: match (asked_bytes.is_some_and(|asked| held_bytes > asked), elsewhere.is_empty()) {
            (true, _) => Fits::No,
            (false, true) => Fits::Whole,
            (false, false) => Fits::InPart,
        },
        elsewhere,
        largest: largest.map(|phase| phase.phase),
        held_bytes,
        mapped_bytes: largest.map_or(0, |phase| phase.mapped_bytes),
        asked_bytes,
        memory_limit_known: chip
            .is_some_and(|chip| chip.limits.iter().any(|limit| of_memory.contains(&limit.name.as_str()))),
    }
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::{EntryName, TimeCost};

    use super::*;

    fn entry(kind: EntryKind, rows: u32) -> EntryTime {
        let time = TimeCost { microseconds: u64::from(rows), provenance: Provenance::Modelled };
        let entry = EntryName { kind, rows, context: 4096 };
        EntryTime { entry, time: Some(time), uncosted_ops: 0, calls: None, shares: Vec::new() }
    }

    fn steps(times: &[EntryTime], tokens: u32) -> Option<Vec<(String, u64)>> {
        let steps = prompt_steps(times, tokens)?;
        Some(steps.into_iter().map(|(time, runs)| (time.entry.to_string(), runs)).collect())
    }

    /// `Session::append` runs the same steps.
    #[test]
    fn a_prompt_takes_the_largest_filled_entry_points_and_a_decode() {
        let menu = [
            entry(EntryKind::Prefill, 128),
            entry(EntryKind::Prefill, 16),
            entry(EntryKind::Decode, 1),
            entry(EntryKind::Decode, 16),
        ];
        let named = |steps: &[(&str, u64)]| {
            Some(steps.iter().map(|(name, runs)| ((*name).to_owned(), *runs)).collect::<Vec<_>>())
        };
        let [wide, short, one] = ["prefill_128@4096", "prefill_16@4096", "decode_1@4096"];
        // 511 = 3 × 128 + 7 × 16 + 15. The smallest entry point reads the rest without being
        // filled.
        assert_eq!(steps(&menu, 512), named(&[(wide, 3), (short, 8), (one, 1)]));
        assert_eq!(steps(&menu, 129), named(&[(wide, 1), (one, 1)]));
        assert_eq!(steps(&menu, 2), named(&[(short, 1), (one, 1)]));
        assert_eq!(steps(&menu, 1), named(&[(one, 1)]));
        // Without prefill, decode reads the prompt too.
        assert_eq!(steps(&menu[2..3], 9), named(&[(one, 8), (one, 1)]));
        assert_eq!(steps(&menu[..2], 9), None);
        assert_eq!(steps(&[], 1), None);
    }
}
