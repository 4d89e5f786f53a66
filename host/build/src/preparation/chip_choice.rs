//! First stage of a preparation: the chip's profile, the options that it completes, and the shims.

use shardwright_graph::Graph;
use shardwright_planning::profile::{FoundProfile, GENERIC, Profile, ProfileRegistry};
use shardwright_planning::request::caps;
use shardwright_trust::Trust;
use shardwright_vocabulary::{Error, ErrorKind, Notice, TargetKind, limit_names};
use shardwright_worker::Shims;

use super::Notices;
use crate::profiles::skipped_profiles;
use crate::{Executor, PlanOptions, PlanSource, Result};

pub(super) struct ChipChoice {
    /// The user's options, completed by the profile.
    pub(super) options: PlanOptions,
    /// The goals that come from the profile, in words.
    pub(super) goals: Vec<String>,
    pub(super) chip: FoundProfile,
    /// The fallbacks of the chip's profile.
    pub(super) further: Vec<FoundProfile>,
    pub(super) shims: Shims,
    pub(super) trust: Trust,
}

impl ChipChoice {
    pub(super) fn of(
        source: &dyn PlanSource,
        options: &PlanOptions,
        notices: &mut Notices,
    ) -> Result<ChipChoice> {
        let trust = options.rules()?;
        let directories = options.profiles.iter();
        let profiles =
            directories.fold(ProfileRegistry::new(), |existing, path| existing.with_directory(path));
        let profiles = profiles.trusting(trust.clone());
        let chip = profiles.find(options.soc.as_deref().unwrap_or(GENERIC))?;
        let further = if options.alone { Vec::new() } else { profiles.fallbacks(&chip)? };
        let (options, goals) = options.completed_by(&chip.profile);
        check(source.graph(), &chip.profile, &options)?;
        let shims = options.shims_by(&trust)?;

        let passing = &mut notices.passing;
        passing.extend(shims.notice.iter().map(Notice::note));
        passing.extend(skipped_profiles(&profiles, options.strict)?);
        let ignored = source.ignored().iter();
        notices.lasting.extend(ignored.map(|field| Notice::fallback(field.to_string())));
        Ok(ChipChoice { options, goals, chip, further, shims, trust })
    }
}

/// Rejects options that do not apply to this model and chip, before any slow step.
fn check(graph: &Graph, profile: &Profile, options: &PlanOptions) -> Result<()> {
    if profile.kind == TargetKind::Cpu && options.recorded.on == Some(Executor::Simulator) {
        let what = format!("profile {} is for a CPU, which has no simulator", profile.name);
        return Err(Error::new(ErrorKind::Argument, what)
            .with_help("name a chip with `--soc`, or drop `--on simulator`"));
    }
    let (count, cap) = (options.prompts.len(), caps::PROMPTS);
    if count > cap {
        let what = format!("{count} usual prompt lengths, expected at most {cap}");
        return Err(Error::new(ErrorKind::Argument, what).with_help("combine similar lengths"));
    }
    // Tables are identified by position: first the embedding, then the per-layer embedding.
    if options.recorded.tables.per_layer.is_some() && graph.assets.len() < 2 {
        return Err(Error::new(ErrorKind::Argument, "this model has no per-layer embedding")
            .with_help("drop `--table per-layer=…`"));
    }
    options.read_calibration_text()?;
    let known = limit_names::ALL;
    // Another planner may support limits that this host does not know.
    let unknown = options.recorded.limits.iter().find(|(name, _)| !known.contains(&name.as_str()));
    match unknown.filter(|_| options.has_usual_planner()) {
        None => Ok(()),
        Some((name, _)) => Err(Error::new(ErrorKind::Argument, format!("unknown limit `{name}`"))
            .with_help(format!("available limits: {}", known.join(", ")))),
    }
}
