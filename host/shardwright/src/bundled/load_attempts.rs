//! Chains of a bundle that a hedge can replace. Each is tried once, and later starts skip it.

use shardwright_bundle::{LoadTrial, ShardEntry, Unloaded, UnloadedChain};
use shardwright_selection::load_trial;
use shardwright_shims::ShimError;
use shardwright_vocabulary::{ErrorClass, Notice};

use super::loader::{Choice, Loader, Opening};
use crate::policy::FallbackPolicy;
use crate::{Error, ErrorKind};

/// Returns the class of an error of loading that another start would repeat: the driver refuses the
/// artefact, or its worker ended while loading it.
pub(super) fn lasting_class(error: &ShimError) -> Option<ErrorClass> {
    let refuses = |class: &ErrorClass| match class {
        ErrorClass::Unmappable
        | ErrorClass::ResourceLimit
        | ErrorClass::UnsupportedOp
        | ErrorClass::IncompatibleArtefact => true,
        ErrorClass::DeviceLost => matches!(error, ShimError::Process(_)),
        _ => false,
    };
    error.class().filter(refuses).filter(|_| !error.is_of_shortage())
}

impl Loader {
    /// Returns what the result of loading the first of `choices` depends on, if one of the others
    /// is its hedge. Returns `None` too if its shims do not answer.
    pub(super) fn trial(&self, choices: &[Choice], opening: &mut Opening<'_>) -> Option<LoadTrial> {
        let (choice, later) = choices.split_first()?;
        let (_, entry) = self.model(choice).ok()?;
        let may_run = |name: &str| self.policy == FallbackPolicy::Refuse || self.policy.opens(name);
        let hedges = |other: &Choice| {
            (other.variant, other.pass) == (choice.variant, choice.pass)
                && other.refused.is_none()
                && self.model(other).is_ok_and(|(_, entry)| entry.is_hedge() && may_run(&entry.name))
        };
        let is_hedged = (choice.chain == 0 || entry.is_hedge()) && later.iter().any(hedges);
        if choice.refused.is_some() || !is_hedged {
            return None;
        }
        let open = &mut |shard: &ShardEntry| self.instance(shard, opening);
        let soc = &self.variant(choice.variant).soc;
        load_trial(&self.bundle, soc, entry, &choice.devices, open).ok()
    }
}

/// Chains that an opening could not load, and notices about the files that remember them.
pub(super) struct LoadAttempts<'u> {
    unloaded: Option<&'u Unloaded>,
    failed: Vec<UnloadedChain>,
    said: Vec<Notice>,
}

impl<'u> LoadAttempts<'u> {
    /// Creates an empty list. Without `unloaded`, chains are not remembered.
    pub(super) fn new(unloaded: Option<&'u Unloaded>) -> Self {
        LoadAttempts { unloaded, failed: Vec::new(), said: Vec::new() }
    }

    /// Returns the error of an earlier start that could not load the chain. Its help depends on
    /// whether `policy` allows a hedge.
    pub(super) fn recall(&mut self, trial: &LoadTrial, policy: &FallbackPolicy) -> Option<Error> {
        let unloaded = self.unloaded?;
        match unloaded.find(trial) {
            Ok(known) => known.map(|known| {
                let UnloadedChain { class, message, .. } = &known;
                let file = unloaded.path(trial);
                let what = format!(
                    "an earlier start could not load this chain ({class}): {message}; remove {} to try it \
                     again",
                    file.display()
                );
                let is_old = *class == ErrorClass::IncompatibleArtefact;
                let kind = if is_old { ErrorKind::Incompatible } else { ErrorKind::Shim };
                let again = "remove the file to try the chain again";
                let error = Error::new(kind, what);
                match policy {
                    // Otherwise a notice about the chain has the error.
                    FallbackPolicy::Refuse => error
                        .at(format_args!("chain `{}`", trial.chain))
                        .with_help(format!("leave `--strict` out to run the chain's hedge, or {again}")),
                    _ => error.with_help(again),
                }
            }),
            Err(fault) => {
                let text = format!("{fault}; the file is ignored, and chain `{}` is tried", trial.chain);
                self.said.push(Notice::note(text));
                None
            }
        }
    }

    /// Adds a chain that could not be loaded.
    pub(super) fn fail(&mut self, trial: LoadTrial, class: ErrorClass, error: &Error) {
        self.failed.push(UnloadedChain { trial, class, message: error.to_string() });
    }

    /// Returns the notices. `hedged` is the chip of the variant whose hedge runs, if one does. The
    /// chains that it replaces are remembered. Without a hedge that runs, something else may be
    /// wrong, so they are tried again.
    pub(super) fn notices(mut self, hedged: Option<&str>) -> Vec<Notice> {
        for failed in self.failed.into_iter().filter(|failed| hedged == Some(failed.trial.chip.as_str())) {
            let chain = failed.trial.chain.clone();
            let Some(unloaded) = self.unloaded else { continue };
            self.said.push(Notice::note(match unloaded.keep(failed) {
                Ok(path) => {
                    format!("later starts skip chain `{chain}`; remove {} to try it again", path.display())
                }
                Err(error) => format!("later starts try chain `{chain}` again: cannot write {error}"),
            }));
        }
        self.said
    }
}
