//! Smaller models as drafts: measurements of them, kept in the cache, and estimates for plans.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use shardwright_build::{
    DraftTimes, PlanOptions, RecordedOptions, Speed, StatedDraft, TowerOptions, row_bytes,
};
use shardwright_bundle::{Bundle, Digest, is_bundle};
use shardwright_files::{private_files, shell_quoted};
use shardwright_models::Checkpoint;
use shardwright_planning::request::DraftEstimate;
use shardwright_vocabulary::{Notice, Provenance, Result, TimeCost};

use super::path::{open_checkpoint, plan_checkpoint};

/// Folder of measurements of drafts in the cache directory.
pub const DRAFTS: &str = "drafts";

/// Version of the files. A file of another version counts as missing.
const VERSION: u32 = 1;

/// Largest number of bytes read from a file, which contains a histogram and a handful of names.
const FILE_BYTES: u64 = 64 << 10;

/// The identity of a draft model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct DraftIdentity {
    /// The draft's name in plans.
    pub name: String,
    /// Hash of the draft's checkpoint.
    pub checkpoint: Digest,
}

impl DraftIdentity {
    /// Identifies a checkpoint or a bundle. Reads all weights of a checkpoint.
    ///
    /// # Errors
    ///
    /// Fails if it cannot be opened.
    pub fn of(path: &Path, options: &PlanOptions) -> Result<DraftIdentity> {
        if is_bundle(path) {
            let bundle = Bundle::open_trusting(path, &options.rules()?)?;
            let model = &bundle.manifest().model;
            return Ok(DraftIdentity { name: model.name.clone(), checkpoint: model.checkpoint });
        }
        let checkpoint = open_checkpoint(path)?;
        Ok(DraftIdentity {
            name: checkpoint.facts().name.clone(),
            checkpoint: checkpoint.content_hash().into(),
        })
    }
}

/// Measurements of a draft: how often it proposes the tokens that its model chooses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MeasuredDraft {
    pub draft: DraftIdentity,
    /// Hash of the checkpoint of the model that it drafts for.
    pub model: Digest,
    /// Name of the text with the prompts.
    pub text: String,
    /// Number of steps without a proposal.
    pub silent_steps: u32,
    /// Numbers of the other steps, by how many tokens of the proposal were right: 0, 1, 2, …
    pub accepted_steps: Vec<u32>,
    /// Times of the devices that really ran both models, by the profile of the chip that the model
    /// was planned for. `generic` if it was planned for none.
    pub times: BTreeMap<String, DraftTimes>,
    /// Bytes of memory that the draft needs in addition to the model's shards.
    pub memory_bytes: u64,
}

/// A file, with the hash of its contents.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Kept {
    version: u32,
    measured: MeasuredDraft,
    check: Digest,
}

impl Kept {
    fn of(measured: MeasuredDraft) -> std::io::Result<Self> {
        let check = Digest::of(&serde_json::to_vec(&(VERSION, &measured))?);
        Ok(Kept { version: VERSION, measured, check })
    }
}

/// Measurements of drafts, in a cache directory or not stored.
#[derive(Clone, Debug)]
pub struct DraftRecords {
    folder: Option<PathBuf>,
}

impl DraftRecords {
    /// Opens the measurements in a cache directory. Without one, it stores none.
    pub fn of_cache(cache: Option<&Path>) -> Self {
        DraftRecords { folder: cache.map(|cache| cache.join(DRAFTS)) }
    }

    /// Returns the folder, if measurements are stored.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    fn path(&self, model: Digest, draft: Digest) -> Option<PathBuf> {
        let name = Digest::of(format!("{draft} for {model}").as_bytes());
        Some(self.folder.as_ref()?.join(format!("{name}.json")))
    }

    /// Returns the measurement of a draft for a model, or `None` if it was not measured. Fails with
    /// a message if the file is damaged or another user may have written it.
    pub fn recall(&self, model: Digest, draft: Digest) -> std::result::Result<Option<MeasuredDraft>, String> {
        let Some(path) = self.path(model, draft) else { return Ok(None) };
        let fault = |what: &dyn std::fmt::Display| format!("{}: {what}", path.display());
        let Some(bytes) = private_files::read(&path, FILE_BYTES).map_err(|error| fault(&error))? else {
            return Ok(None);
        };
        let kept: Kept = serde_json::from_slice(&bytes).map_err(|_| fault(&"is damaged"))?;
        if kept.version != VERSION {
            return Ok(None);
        }
        let check = Kept::of(kept.measured.clone()).map_err(|error| fault(&error))?.check;
        let measured = kept.measured;
        if kept.check != check || (measured.model, measured.draft.checkpoint) != (model, draft) {
            return Err(fault(&"is damaged"));
        }
        Ok(Some(measured))
    }

    /// Stores a measurement, together with the stored times of other chips. Returns everything that
    /// is stored then.
    ///
    /// # Errors
    ///
    /// Fails if the file cannot be written, or if the folder is not the user's own.
    pub fn keep(&self, mut measured: MeasuredDraft) -> Result<MeasuredDraft> {
        let Some(path) = self.path(measured.model, measured.draft.checkpoint) else { return Ok(measured) };
        if let Ok(Some(before)) = self.recall(measured.model, measured.draft.checkpoint) {
            for (soc, times) in before.times {
                measured.times.entry(soc).or_insert(times);
            }
        }
        let content = serde_json::to_vec(&Kept::of(measured.clone())?).map_err(std::io::Error::from)?;
        private_files::write(&path, &content)?;
        Ok(measured)
    }
}

/// Returns estimates of the smaller models that the options name, for a plan of a checkpoint for
/// the chip of a profile in a context. Also returns notices about models that were not measured.
pub(super) fn stated(
    checkpoint: &Checkpoint,
    options: &PlanOptions,
    soc: &str,
    context: u32,
) -> Result<(Vec<StatedDraft>, Vec<Notice>)> {
    let (mut stated, mut notices) = (Vec::new(), Vec::new());
    if options.draft_models.is_empty() {
        return Ok((stated, notices));
    }
    let model: Digest = checkpoint.content_hash().into();
    let records = DraftRecords::of_cache(options.cache.as_deref());
    for path in &options.draft_models {
        let identity = DraftIdentity::of(path, options)?;
        let recalled = records.recall(model, identity.checkpoint).unwrap_or_else(|fault| {
            notices.push(Notice::note(format!("draft {}: {fault}; the file is ignored", identity.name)));
            None
        });
        let Some(measured) = recalled else {
            notices.push(Notice::note(format!(
                "draft {name} was not measured, so the plan does not rely on it; measure it with \
                 `shardwright tune --draft {path}` and the same model",
                name = identity.name,
                path = shell_quoted(path)
            )));
            stated.push(StatedDraft::unknown(identity.name));
            continue;
        };
        let estimate = |token_time: TimeCost| DraftEstimate {
            name: identity.name.clone(),
            silent_steps: measured.silent_steps,
            accepted_steps: measured.accepted_steps.clone(),
            provenance: Provenance::Measured,
            token_time,
            memory_bytes: measured.memory_bytes,
            row_bytes: row_bytes(checkpoint.graph()),
        };
        if let Some(times) = measured.times.get(soc).filter(|_| !options.elsewhere) {
            let microseconds = times.proposed_nanoseconds.div_ceil(1000);
            let estimate = estimate(TimeCost::exact(microseconds, Provenance::Measured));
            stated.push(StatedDraft { estimate, times: Some(times.clone()) });
            continue;
        }
        match planned_time(path, options, context)? {
            Some(time) => stated.push(StatedDraft { estimate: estimate(time), times: None }),
            None => {
                notices.push(Notice::note(format!(
                    "the time of draft {} on {soc} is unknown, so the plan does not rely on it",
                    identity.name
                )));
                stated.push(StatedDraft::unknown(identity.name));
            }
        }
    }
    Ok((stated, notices))
}

/// Returns the time of a drafted token that the draft's own plan for the same chip predicts, or
/// `None` if the draft is not a checkpoint of a generative model.
fn planned_time(path: &Path, options: &PlanOptions, context: u32) -> Result<Option<TimeCost>> {
    if is_bundle(path) {
        return Ok(None);
    }
    // The smaller model may have a smaller context.
    let context = u64::from(context).min(open_checkpoint(path)?.facts().context);
    let own = options_of_a_draft(options, u32::try_from(context).unwrap_or(u32::MAX));
    let planned = plan_checkpoint(path, &own, &mut ())
        .map_err(|error| error.at(format!("the draft {}", path.display())).or_help("drop `--draft`"))?;
    Ok(match planned.report.forecast.speed {
        Speed::Tokens { each, .. } => Some(each.time()),
        // An embedding model cannot be measured as a draft.
        Speed::Vector { .. } => None,
    })
}

/// Returns the options for a draft model of a model that is planned with `options`: the same chip,
/// a context of at most `context`, and defaults for all goals.
fn options_of_a_draft(options: &PlanOptions, context: u32) -> PlanOptions {
    PlanOptions {
        shims: options.shims.clone(),
        planners: options.planners.clone(),
        profiles: options.profiles.clone(),
        isolation: options.isolation,
        strict: options.strict,
        threads: options.threads,
        cache: options.cache.clone(),
        trust: options.trust.clone(),
        soc: options.soc.clone(),
        elsewhere: options.elsewhere,
        recorded: RecordedOptions {
            on: options.recorded.on,
            context: Some(context),
            towers: TowerOptions { passes: Some(Vec::new()), ..TowerOptions::default() },
            ..RecordedOptions::default()
        },
        drafts: Some(Vec::new()),
        ..PlanOptions::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(times: &[(&str, u64)]) -> BTreeMap<String, DraftTimes> {
        let own = |nanoseconds: u64| DraftTimes {
            proposed_nanoseconds: nanoseconds,
            model_nanoseconds: 40_000,
            formats: "bf16/f32/f32".to_owned(),
        };
        times.iter().map(|(soc, time)| ((*soc).to_owned(), own(*time))).collect()
    }

    fn measured() -> MeasuredDraft {
        MeasuredDraft {
            draft: DraftIdentity { name: "small".to_owned(), checkpoint: Digest::of(b"small") },
            model: Digest::of(b"large"),
            text: "conversations".to_owned(),
            silent_steps: 1,
            accepted_steps: vec![4, 3, 2],
            times: times(&[("generic", 7000)]),
            memory_bytes: 1 << 20,
        }
    }

    #[test]
    fn what_was_kept_is_recalled_and_what_is_damaged_is_not() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let records = DraftRecords::of_cache(Some(folder.path()));
        let (model, draft) = (measured().model, measured().draft.checkpoint);
        assert_eq!(records.recall(model, draft), Ok(None));
        assert_eq!(records.keep(measured()).expect("kept"), measured());
        assert_eq!(records.recall(model, draft), Ok(Some(measured())));
        assert_eq!(records.recall(draft, model), Ok(None), "the other way round");
        // Times of another chip stay. Times of the same chip are replaced.
        let other = MeasuredDraft { times: times(&[("chip", 5)]), ..measured() };
        let both = records.keep(other).expect("kept");
        assert_eq!(both.times, times(&[("chip", 5), ("generic", 7000)]));
        assert_eq!(records.recall(model, draft), Ok(Some(both)));
        let path = records.path(model, draft).expect("it is kept");
        let whole = std::fs::read_to_string(&path).expect("read");
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).expect("written");
            assert!(records.recall(model, draft).is_err(), "{length}");
        }
        std::fs::write(&path, whole.replace("[4,3,2]", "[4,3,9]")).expect("written");
        assert!(records.recall(model, draft).is_err());
        std::fs::write(&path, whole.replacen("\"version\":1", "\"version\":2", 1)).expect("written");
        assert_eq!(records.recall(model, draft), Ok(None));
        let nowhere = DraftRecords::of_cache(None);
        assert_eq!((nowhere.keep(measured()).ok(), nowhere.folder()), (Some(measured()), None));
        assert_eq!(nowhere.recall(model, draft), Ok(None));
    }
}
