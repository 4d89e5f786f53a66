//! Offers to a planner: targets with their limits and flags, and formats.

use shardwright_graph::{ConstantFormat, Encodings, EntryGraph, Graph, Legalised};
use shardwright_planning::hedge;
use shardwright_planning::profile::{Fact, FoundProfile, Preference, Profile};
use shardwright_planning::request::{TargetFact, TargetSummary};
use shardwright_shims::ShimInstance;
use shardwright_vocabulary::{
    Device, Error, ErrorKind, Flag, FlagSchema, FlagStage, FlagType, FlagVerdict, FormatTuple, Limit, Notice,
    Pass, Provenance, Target, TargetKind, Watch, WeightFormat,
};

use crate::options::{FORMAT_OPTION, LossGoal};
use crate::roofline::overheads;
use crate::{CPU_SHIM, Costing, FormatChoice, Judge, PlanOptions, Result, stored_formats};

/// Returns the formats that a planner may choose from, best first: the formats that the user names,
/// or else the formats that the chip is known to support, then every weight as stored. `asked` is
/// whether a planner option names a format.
///
/// The losses of a tower are unknown, so a chip is offered only formats that keep eight bits of
/// every weight.
///
/// A CPU supports every format, and speed alone is not a reason to quantise weights without a
/// request. Weights stay as stored there, unless losses count or the user states a preference.
/// Integers are then offered after the stored formats. Other floats are not offered, because their
/// rounding is not counted as a loss. Weights that are stored in blocks of integers are multiplied
/// with rounded activations, unless losses count or the user prefers quality.
pub fn offered_formats(
    graph: &Graph,
    profile: &Profile,
    options: &PlanOptions,
    asked: bool,
) -> Vec<FormatTuple> {
    let stored = stored_formats(graph);
    let rounded = rounded_formats(graph, &stored);
    let mut offered: Vec<FormatTuple> = Vec::new();
    // The usual bound counts losses too, and a goal of bytes or times may need these formats.
    let weighed = options.loss_goal(profile, graph) != LossGoal::None
        || (options.bounds_cost() && options.usual_quality(profile, graph).is_some());
    // A user who names a format accepts the loss.
    let mut known: Vec<FormatTuple> = match asked {
        true => profile.legal_formats().cloned().collect(),
        false => profile.offered_formats(weighed).cloned().collect(),
    };
    // So does a user who names the weights of some layers. Other layers prefer the usual offers.
    let weights: Vec<WeightFormat> = options.named_weights().collect();
    let has = |tuple: &&FormatTuple| {
        let roles = tuple.roles.iter().map(|role| role.format);
        roles.chain([tuple.weights]).any(|own| weights.contains(&own))
    };
    known.extend(profile.legal_formats().filter(has).cloned());
    let known = known.into_iter();
    let candidates: Vec<FormatTuple> = match options.formats.as_slice() {
        [] if profile.kind == TargetKind::Cpu && !asked => {
            let in_floats = weighed || options.prefers == Some(Preference::Quality);
            let own = if in_floats { [Some(stored), rounded] } else { [rounded, Some(stored)] };
            let rounds_weights = weighed || !weights.is_empty() || options.prefers.is_some();
            let quantised = known.filter(|tuple| rounds_weights && tuple.weights.is_quantised());
            own.into_iter().flatten().chain(quantised).collect()
        }
        [] if graph.pass != Pass::Step => known
            .filter(|tuple| tuple.roles.iter().map(|role| role.format).chain([tuple.weights]).all(is_wide))
            .chain([stored])
            .collect(),
        [] => known.chain([stored]).collect(),
        named => named
            .iter()
            .map(|choice| match choice {
                FormatChoice::Stored => stored.clone(),
                FormatChoice::Tuple(tuple) => tuple.clone(),
            })
            .collect(),
    };
    for tuple in candidates {
        if !offered.contains(&tuple) {
            offered.push(tuple);
        }
    }
    offered
}

/// Returns the formats of a checkpoint with matrices in blocks of integers, with activations and
/// states rounded as llama.cpp rounds them. Returns `None` if a weight would have to be converted,
/// and for encoders, whose losses cannot be predicted.
fn rounded_formats(graph: &Graph, stored: &FormatTuple) -> Option<FormatTuple> {
    let rounded = stored.rounded().filter(|_| graph.is_generative())?;
    let mut weights = graph.constant_formats(&rounded).into_iter();
    weights.all(|format| format == ConstantFormat::Stored).then_some(rounded)
}

/// Returns the rounded formats that a CPU is offered although the options request neither formats
/// nor a quality.
pub(crate) fn rounded_by_default(
    graph: &Graph,
    profile: &Profile,
    options: &PlanOptions,
) -> Option<FormatTuple> {
    let is_default = profile.kind == TargetKind::Cpu
        && options.formats.is_empty()
        && options.prefers.is_none()
        && options.loss_goal(profile, graph) == LossGoal::None
        && options.recorded.planner_options.iter().all(|(name, _)| name != FORMAT_OPTION);
    rounded_formats(graph, &stored_formats(graph)).filter(|_| is_default)
}

/// Checks whether a format keeps eight bits of a weight, or the weight as stored in the checkpoint.
fn is_wide(format: WeightFormat) -> bool {
    format.layout().is_none_or(|(dtype, _)| dtype.bits() >= 8)
}

/// Returns the formats assumed to be supported by a chip whose shim is not available: the formats
/// in its profile, and other formats that the user names, with a notice.
#[expect(clippy::type_complexity, reason = "the argument of `PrimitiveCount`, and the notices")]
pub(crate) fn known_formats(
    profile: &Profile,
    offered: &[FormatTuple],
    named: &[FormatChoice],
) -> (Vec<(FormatTuple, std::result::Result<(), String>)>, Vec<Notice>) {
    let mut known: Vec<_> = profile
        .formats
        .iter()
        .map(|known| {
            let refused = || Err(format!("profile {} lists it as refused: {}", profile.name, known.note));
            (known.formats.clone(), if known.legal { Ok(()) } else { refused() })
        })
        .collect();
    let mut notices = Vec::new();
    if !named.is_empty() && !known.is_empty() {
        for tuple in offered {
            if known.iter().all(|(existing, _)| existing != tuple) {
                notices.push(Notice::making(format!(
                    "profile {} does not list {tuple}; assuming that the chip supports it, as you named it",
                    profile.name
                )));
                known.push((tuple.clone(), Ok(())));
            }
        }
    }
    (known, notices)
}

/// Returns the formats of a request: the chip's, then formats that only other targets are offered.
/// If the chip's last choice is every weight as stored, it stays last.
pub(crate) fn merged(graph: &Graph, each: &[Vec<FormatTuple>]) -> Vec<FormatTuple> {
    let Some((first, others)) = each.split_first() else { return Vec::new() };
    let mut merged = first.clone();
    let stored = stored_formats(graph);
    let last = merged.pop_if(|last| *last == stored);
    for tuple in others.iter().flatten() {
        if !merged.contains(tuple) && last.as_ref() != Some(tuple) {
            merged.push(tuple.clone());
        }
    }
    merged.extend(last);
    merged
}

/// Returns the targets of a request, each with its profile: the profile's chip, its fallbacks and,
/// unless the chip is a CPU, this machine's CPU. The CPU runs what the others do not support and is
/// the last fallback. It gets the chip's profile.
///
/// `PlanOptions::alone` leaves the CPU out, for a chain of the chip alone.
pub(crate) fn targets<'p>(
    chip: &'p FoundProfile,
    further: &'p [FoundProfile],
    options: &PlanOptions,
) -> Vec<(TargetSummary, &'p FoundProfile)> {
    // All targets share the memory of the device.
    let device_memory = app_memory(&chip.profile, options.recorded.device_memory);
    let named = |name: &str, shim: &str, device: &str, kind| TargetSummary {
        device_memory,
        ..TargetSummary::of(Target {
            name: name.to_owned(),
            shim: shim.to_owned(),
            device: device.to_owned(),
            kind,
        })
    };
    let fact = |fact: &Fact| TargetFact {
        name: fact.name.clone(),
        value: fact.value.clone(),
        provenance: fact.provenance,
    };
    let summary = |found: &'p FoundProfile| {
        let profile = &found.profile;
        let own = match profile.kind {
            TargetKind::Cpu => named(CPU_SHIM, &profile.shim, CPU_SHIM, TargetKind::Cpu),
            kind => named(&profile.name, &profile.shim, &profile.name, kind),
        };
        let summary = TargetSummary {
            limits: profile.limits.clone(),
            overheads: overheads(profile),
            facts: profile.facts.iter().map(fact).collect(),
            ..own
        };
        (summary, found)
    };
    let mut targets: Vec<_> = std::iter::once(chip).chain(further).map(summary).collect();
    if chip.profile.kind != TargetKind::Cpu && !options.alone {
        targets.push((named(CPU_SHIM, CPU_SHIM, CPU_SHIM, TargetKind::Cpu), chip));
    }
    targets
}

/// Part of a device's memory that an app can use if the profile does not state it, in percent.
/// Users accept 60 (the profiles name the reports).
const APP_SHARE_PERCENT: u64 = 60;

/// Returns the bytes of memory that an app can use on a device with the chip of a profile. `stated`
/// is the memory of the user's device. Otherwise the smallest device of the profile counts. Returns
/// `None` if neither is known.
fn app_memory(profile: &Profile, stated: Option<u64>) -> Option<u64> {
    match &profile.memory {
        Some(memory) => Some(memory.app_bytes(stated)),
        None => stated.map(|bytes| bytes / 100 * APP_SHARE_PERCENT),
    }
}

/// A judge of a target that is offered only some of a request's formats.
pub(crate) struct Offered {
    pub(crate) judge: Box<dyn Judge>,
    /// Name of the target's profile.
    pub(crate) profile: String,
    pub(crate) formats: Vec<FormatTuple>,
}

impl Judge for Offered {
    fn legalise(
        &self,
        graph: &Graph,
        entry: &EntryGraph,
        encodings: &Encodings<'_>,
    ) -> std::result::Result<Legalised, String> {
        self.judge.legalise(graph, entry, encodings)
    }

    fn estimate(&self, graph: &Graph, entry: &EntryGraph, watch: &dyn Watch) -> Option<Costing> {
        self.judge.estimate(graph, entry, watch)
    }

    fn operations(&self, graph: &Graph, entry: &EntryGraph) -> Option<u64> {
        self.judge.operations(graph, entry)
    }

    fn takes(&self, formats: &FormatTuple) -> std::result::Result<(), String> {
        match self.formats.contains(formats) {
            true => self.judge.takes(formats),
            false => Err(format!("profile {} does not offer {formats}", self.profile)),
        }
    }

    fn describe(&self) -> String {
        self.judge.describe()
    }
}

/// Completes a target with the answers of its own shim: limits that the profile lacks, and the
/// schema of its flags.
///
/// Profile flags that the shim does not know are left out with a notice. Without the shim they are
/// passed through without validation. Flags set by the user are added to the profile's flags, or
/// replace a flag of the same name. Returns notices.
pub(crate) fn complete(
    summary: &mut TargetSummary,
    own: Option<(&ShimInstance, &Device)>,
    profile: &Profile,
    options: &PlanOptions,
) -> Result<Vec<Notice>> {
    let mut notices = Vec::new();
    if let Some((instance, device)) = own {
        for limit in instance.limits(&device.name)? {
            if summary.limits.iter().all(|existing| existing.name != limit.name) {
                summary.limits.push(limit);
            }
        }
        summary.schema = instance.flags(&device.name)?;
        summary.target.device.clone_from(&device.name);
    }
    if summary.target.shim != profile.shim {
        return Ok(notices);
    }
    let word = |name: &str, description: &str| FlagSchema {
        name: name.to_owned(),
        values: FlagType::Text { max_bytes: 256 },
        default: None,
        description: description.to_owned(),
        stage: FlagStage::Compile,
    };
    for flag in &profile.flags {
        let is_left_out = options.recorded.flags_left_out.contains(&flag.name);
        if own.is_none() {
            summary.schema.push(word(&flag.name, &flag.note));
        } else if !is_left_out && !summary.schema.iter().any(|known| known.name == flag.name) {
            let (flag, name) = (flag.flag(), &profile.name);
            notices.push(Notice::fallback(format!(
                "flag {flag} of profile {name} is left out: shim `{}` does not have it",
                summary.target.shim
            )));
            continue;
        }
        if is_left_out {
            let (flag, name) = (flag.flag(), &profile.name);
            notices.push(Notice::making(format!("flag {flag} of profile {name} is left out, as requested")));
            continue;
        }
        summary.recommended.push(flag.flag());
    }
    for name in &options.recorded.flags_left_out {
        if profile.flags.iter().all(|flag| flag.name != *name) {
            let set: Vec<&str> = profile.flags.iter().map(|flag| flag.name.as_str()).collect();
            let help = match set.as_slice() {
                [] => "the profile sets no flags".to_owned(),
                set => format!("the profile sets {}", set.join(", ")),
            };
            let what = format!("flag {name} cannot be left out: profile {} does not set it", profile.name);
            return Err(Error::new(ErrorKind::Argument, what).with_help(help));
        }
    }
    for (name, value) in &options.recorded.flags {
        let flag = Flag { name: name.clone(), value: value.clone() };
        let refused = |why: String| Error::new(ErrorKind::Argument, format!("flag {flag}: {why}"));
        if own.is_none() && summary.schema.iter().all(|known| known.name != *name) {
            summary.schema.push(word(name, ""));
        }
        let Some(known) = summary.schema.iter().find(|known| known.name == *name) else {
            let why = format!("shim `{}` has no flag `{name}`", summary.target.shim);
            return Err(refused(why).with_help(available(&summary.schema)));
        };
        let takes = |expected: String| {
            refused(format!("expected {expected}")).with_help("`shardwright shim list` lists every flag")
        };
        known.accepts(value).map_err(takes)?;
        match summary.recommended.iter_mut().find(|existing| existing.name == *name) {
            Some(existing) if *existing == flag => {}
            Some(existing) => {
                let name = &profile.name;
                notices.push(Notice::making(format!(
                    "flag {flag} replaces {existing} of profile {name}, as requested"
                )));
                *existing = flag;
            }
            None => {
                let name = &profile.name;
                notices.push(Notice::making(format!(
                    "flag {flag} is added to the flags of profile {name}, as requested"
                )));
                summary.recommended.push(flag);
            }
        }
    }
    Ok(notices)
}

/// Formats the names of a shim's flags.
fn available(schema: &[FlagSchema]) -> String {
    let names: Vec<&str> = schema.iter().map(|known| known.name.as_str()).collect();
    format!("available flags: {}", if names.is_empty() { "none".to_owned() } else { names.join(", ") })
}

/// Returns notices about flags of the user that the target's shim cannot check, because it does not
/// answer for the reason `why`. The simulator that stands in for it has the flags of one version of
/// the vendor's library, so a flag that it does not have is not an error.
pub(crate) fn unchecked_flags(
    target: &Target,
    stand_in: Option<(&ShimInstance, &Device)>,
    why: &str,
    flags: &[(String, String)],
) -> Vec<Notice> {
    let schema = stand_in.and_then(|(instance, device)| instance.flags(&device.name).ok());
    let said = |(name, value): &(String, String)| {
        let flag = Flag { name: name.clone(), value: value.clone() };
        let is = |verdict: &FlagVerdict| format!("flag {flag}, which you set, is {}", verdict.name());
        let Some(schema) = &schema else {
            let is = is(&FlagVerdict::Unknown);
            return Some(Notice::making(format!("{is}: {why}, so the flag cannot be checked")));
        };
        let simulated = format!("shim `{}` with its own simulator", target.shim);
        let text = match schema.iter().find(|known| known.name == *name) {
            Some(known) => {
                let expected = known.accepts(value).err()?;
                format!("{}: {simulated} expects {expected}", is(&FlagVerdict::Refused))
            }
            None => format!("{} to {simulated}; {}", is(&FlagVerdict::Unknown), available(schema)),
        };
        Some(Notice::fallback(text))
    };
    flags.iter().filter_map(said).collect()
}

/// Replaces the profile's limits with the user's, on every accelerator that has a limit of that
/// name. A new limit is added to all accelerators, or to the CPU if there are no accelerators.
pub(crate) fn override_limits(targets: &mut [(TargetSummary, &FoundProfile)], limits: &[(String, u64)]) {
    let accelerated = targets.iter().any(|(target, _)| target.target.kind != TargetKind::Cpu);
    for (name, value) in limits {
        let targets = targets.iter_mut().map(|(target, _)| target);
        for target in targets.filter(|target| !accelerated || target.target.kind != TargetKind::Cpu) {
            let mut limit = Limit::new(name, *value, Provenance::User);
            if let Some(position) = target.limits.iter().position(|existing| existing.name == *name) {
                let existing = target.limits.remove(position);
                limit.note = format!("instead of {} ({})", existing.value, existing.provenance);
                limit.relief = existing.relief;
            }
            target.limits.push(limit);
        }
    }
}

/// Replaces limits of the first target by the limits of a hedge.
pub(crate) fn hedge_limits(targets: &mut [(TargetSummary, &FoundProfile)], within: &[(String, u64)]) {
    let Some((target, _)) = targets.first_mut() else { return };
    for (name, value) in within {
        target.limits.retain(|existing| existing.name != *name);
        target.limits.push(Limit::new(name, *value, Provenance::Learned).with_note(hedge::NOTE));
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use shardwright_models::Checkpoint;
    use shardwright_planning::profile::{GENERIC, ProfileRegistry};

    use super::*;

    /// Returns the graph of a committed checkpoint.
    fn fixture(folder: &str) -> Graph {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures").join(folder);
        Checkpoint::open(path).unwrap_or_else(|error| panic!("{folder}: {error}")).into_graph()
    }

    #[test]
    fn stored_blocks_of_integers_are_multiplied_with_rounded_activations() {
        let generic = ProfileRegistry::new().find(GENERIC).unwrap().profile;
        let offered = |graph: &Graph, options: &PlanOptions| -> Vec<String> {
            let tuples = offered_formats(graph, &generic, options, false);
            let default = rounded_by_default(graph, &generic, options);
            assert!(default.is_none_or(|default| tuples[0] == default));
            tuples.iter().map(ToString::to_string).collect()
        };
        let (plain, blocks) = (PlanOptions::default(), fixture("quantised/gguf_q8_0"));
        let [rounded, floats] = ["w8-block32/a8-dynamic-block32/f16", "w8-block32/f32/f32"];
        assert_eq!(offered(&blocks, &plain), [rounded, floats]);
        assert!(rounded_by_default(&blocks, &generic, &plain).is_some());
        let head = offered(&fixture("quantised/gguf_q4_0"), &plain);
        assert_eq!(head[0], "w4-block32[head=f16]/a8-dynamic-block32/f16");

        // The user decides.
        let stored = PlanOptions { formats: vec![FormatChoice::Stored], ..PlanOptions::default() };
        assert_eq!(offered(&blocks, &stored), [floats]);
        let prefers = |prefers| PlanOptions { prefers: Some(prefers), ..PlanOptions::default() };
        assert_eq!(offered(&blocks, &prefers(Preference::Speed))[..2], [rounded, floats]);
        assert_eq!(offered(&blocks, &prefers(Preference::Quality))[..2], [floats, rounded]);
        let weighed = PlanOptions { quality_micronats: Some(5000), ..PlanOptions::default() };
        let weighed = offered(&blocks, &weighed);
        assert_eq!(weighed[..2], [floats, rounded]);
        assert_eq!(weighed.iter().filter(|tuple| *tuple == rounded).count(), 1, "{weighed:?}");

        // Other checkpoints stay as stored, and so does one with a matrix that would be converted.
        let mut mixed = blocks.clone();
        let k = mixed.weights.iter_mut().find(|weight| weight.part == "k").unwrap();
        *k = k.planned(WeightFormat::Bf16).unwrap();
        assert_eq!(offered(&mixed, &plain), [floats]);
        for folder in ["qwen3", "embeddinggemma", "quantised/gptq4_group128", "quantised/awq_group32"] {
            let graph = fixture(folder);
            assert_eq!(offered(&graph, &plain), [stored_formats(&graph).to_string()], "{folder}");
        }
    }

    #[test]
    fn every_target_has_the_memory_that_an_app_can_use_on_the_device() {
        let find = |name: &str| ProfileRegistry::new().find(name).unwrap();
        let (chip, generic) = (find("sm8850"), find(GENERIC));
        let memory = |chip: &FoundProfile, stated: Option<u64>| {
            let mut options = PlanOptions::default();
            options.recorded.device_memory = stated;
            let targets = targets(chip, &[], &options);
            targets.into_iter().map(|(target, _)| target.device_memory).collect::<Vec<_>>()
        };
        // The smallest device has 12 GiB, 60 % of which an app can use.
        assert_eq!(memory(&chip, None), [Some((12 << 30) * 60 / 100); 2]);
        assert_eq!(memory(&chip, Some(1000)), [Some(600); 2]);
        assert_eq!((memory(&generic, None), memory(&generic, Some(1000))), (vec![None], vec![Some(600)]));
    }

    #[test]
    fn the_limits_of_a_hedge_replace_those_of_the_chip_alone() {
        let chip = ProfileRegistry::new().find("mt6989").unwrap();
        let options = PlanOptions::default();
        let mut targets = targets(&chip, std::slice::from_ref(&chip), &options);
        override_limits(&mut targets, &[("ops".to_owned(), 5000)]);
        let before = targets.clone();
        hedge_limits(&mut targets, &[("ops".to_owned(), 2600), ("weight-bytes".to_owned(), 7)]);
        let own = |name: &str| {
            let limits = targets[0].0.limits.iter().filter(|limit| limit.name == name);
            limits.map(|limit| (limit.value, limit.provenance, limit.note.as_str())).collect::<Vec<_>>()
        };
        assert_eq!(own("ops"), [(2600, Provenance::Learned, hedge::NOTE)]);
        assert_eq!(own("weight-bytes"), [(7, Provenance::Learned, hedge::NOTE)]);
        assert_eq!(targets[1..], before[1..]);
        let others = |targets: &[(TargetSummary, &FoundProfile)]| {
            let limits = targets[0].0.limits.iter().filter(|limit| limit.note != hedge::NOTE);
            limits.filter(|limit| limit.name != "ops").cloned().collect::<Vec<_>>()
        };
        assert_eq!(others(&targets), others(&before));
    }
}
