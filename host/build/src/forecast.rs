//! What a plan asks of a device before anything is downloaded or compiled: the memory of each phase
//! in named parts, the size of the download, the times of a first and of each further token, and
//! whether the model fits.

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
use crate::{Making, PlanSource, stored_formats};

/// Tokens of the prompt that the first token is predicted for where the request says none, if the
/// context holds as many.
const PROMPT_TOKENS: u32 = 512;

/// What a forecast needs of a model beside its graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Weighed {
    /// Constants and tables as stored.
    stored_bytes: u64,
    /// The formats of a shard whose constants are not made but stored.
    stored: FormatTuple,
    making: Making,
    download: Option<Download>,
}

impl Weighed {
    /// Weighs a model.
    pub fn of(source: &dyn PlanSource) -> Self {
        let graph = source.graph();
        Weighed {
            stored_bytes: stored_bytes(graph),
            stored: stored_formats(graph),
            making: source.making(),
            download: source.download(),
        }
    }
}

/// Bytes of all constants and tables of a graph; what a head shares with the embedding counts once.
pub(crate) fn stored_bytes(graph: &Graph) -> u64 {
    let tables = graph.assets.iter().map(|asset| &asset.table);
    let tensors: BTreeMap<&str, u64> = graph
        .weights
        .iter()
        .chain(tables)
        .map(|weight: &Weight| (weight.name.as_str(), weight.bytes()))
        .collect();
    tensors.into_values().fold(0, u64::saturating_add)
}

/// Predicts what a plan asks for. `graph` is the model in any formats.
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

/// What the host does not see.
const DRIVER: &str = "the driver, for itself";

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
            Making::InMemory => part("weights in their formats", Figure::Counted { bytes: made }),
            Making::InFiles => mapped("weights in their formats", made),
        });
    }
    compile.push(mapped("work order of the largest shard", largest));
    compile.push(mapped("artefacts, written to files", totals.artefacts.bytes));
    compile.push(part("the compiler, for itself", Figure::Unknown));

    let load = vec![
        artefacts(),
        mapped("files of artefacts", totals.artefacts.bytes),
        part(DRIVER, Figure::Unknown),
    ];

    let buffers = match buffer_bytes(plan, graph) {
        // Stored as f32 unless the plan encodes them; padding is the driver's.
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
    // The runtime's own copy of the rows that are sampled from, as f32.
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

/// Bytes that a session sets aside for what a step computes and what shards hand over: entry points
/// share them, so the largest counts. `None` if an entry point cannot be made.
fn buffer_bytes(plan: &CheckedPlan, graph: &Graph) -> Option<u64> {
    // What a step computes is there once for each target, what a shard gives once for each shard.
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

/// Whose buffer it is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Owner {
    /// A target's: what every step computes for it.
    Step(u32),
    /// A shard's that gives it.
    Given(usize),
    /// A shard's that takes it from another target.
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

/// How long loading all shards takes, one after the other; `None` where nothing is known of a
/// target. The fixed part counts where it is known.
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

/// The entry point that takes one token through the model.
fn single_decode(times: &[EntryTime]) -> Option<&EntryTime> {
    times.iter().filter(|time| time.entry.kind == EntryKind::Decode).min_by_key(|time| time.entry.rows)
}

/// The entry points that read a prompt, each with its number of runs: prefill for all tokens but
/// the last, decode for that, and for all of them where nothing is filled ahead.
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
    // The chip is the first target that is no CPU; a plan for a CPU alone has none.
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

    /// As `Session::append` runs it.
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
        // 511 = 3 × 128 + 7 × 16 + 15, and the rest takes the smallest, which it does not fill.
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
