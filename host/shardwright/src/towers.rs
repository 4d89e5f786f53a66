//! The towers of a model: opened when the first picture or sound needs one.

use std::collections::{BTreeMap, VecDeque};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use shardwright_preprocessing::{PreprocessingError, ProcessorSettings};
use shardwright_runtime::{CancelHandle, Chain, SoftRows, Tower};
use shardwright_vocabulary::Notice;

use crate::parts::{OTHER_MODEL, Prepared, Sense};
use crate::{Error, ErrorKind, Result};

/// Opens the tower of a sense, with an entry point for pictures of so many soft tokens at most. A
/// request to cancel ends it. The notices are of what was opened.
type Open =
    dyn Fn(Sense, &ProcessorSettings, u32, &CancelHandle) -> Result<(Chain, Vec<Notice>)> + Send + Sync;

/// Rows of recent pictures and sounds that are kept: an equal one is not run again.
const RECENT: usize = 8;

/// What is opened and kept of the towers of one model. Sessions share it.
pub(crate) struct Towers {
    /// Where the settings of front ends lie.
    directory: PathBuf,
    open: Option<Box<Open>>,
    /// Each with the soft tokens that it was opened for.
    opened: Mutex<BTreeMap<Sense, (u32, Tower)>>,
    recent: Mutex<VecDeque<(Sense, Arc<SoftRows>)>>,
    notices: Mutex<Vec<Notice>>,
}

impl Towers {
    /// Those that `open` opens, with the settings of a directory.
    pub fn new(directory: PathBuf, open: Option<Box<Open>>) -> Self {
        Towers {
            directory,
            open,
            opened: Mutex::default(),
            recent: Mutex::default(),
            notices: Mutex::default(),
        }
    }

    /// What is to be said of the towers opened so far, in the order of their opening.
    pub fn notices(&self) -> Vec<Notice> {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How pictures and sounds become what towers read.
    pub fn processor(&self) -> Result<ProcessorSettings> {
        match self.open {
            Some(_) => ProcessorSettings::read(&self.directory).map_err(|error| match error {
                PreprocessingError::MissingFile { origin } => Error::new(
                    ErrorKind::Unsupported,
                    format!("{origin} is not there: the model reads no pictures or sounds"),
                )
                .with_help("models that see or hear are published with that file; download it too"),
                error => error.into(),
            }),
            None => Err(Error::new(
                ErrorKind::Unsupported,
                format!("{}: it holds no tower for pictures or sounds", self.directory.display()),
            )
            .with_help("open the checkpoint itself: bundles hold what reads and writes text")),
        }
    }

    /// The rows of a picture or sound; `cancel` ends the run.
    pub fn encode(
        &self,
        prepared: &Prepared,
        processor: &ProcessorSettings,
        cancel: &CancelHandle,
    ) -> Result<Arc<SoftRows>> {
        if let Some(known) = self.known(prepared) {
            return Ok(known);
        }
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let enough = opened.get(&prepared.sense).is_some_and(|(most, _)| *most >= prepared.budget);
        if !enough {
            let open = self.open.as_ref().ok_or_else(|| {
                Error::new(ErrorKind::Internal, "a part was prepared for a tower that is not there")
            })?;
            let usual = processor.picture.as_ref().map_or(0, |picture| picture.soft_tokens);
            let most = prepared.budget.max(usual);
            // A smaller one is freed before the larger takes memory.
            opened.remove(&prepared.sense);
            let (chain, said) = open(prepared.sense, processor, most, cancel)?;
            opened.insert(prepared.sense, (most, chain.tower()?));
            self.notices.lock().unwrap_or_else(PoisonError::into_inner).extend(said);
        }
        let Some((_, tower)) = opened.get_mut(&prepared.sense) else {
            return Err(Error::new(ErrorKind::Internal, "a tower that was opened is not there"));
        };
        tower.set_cancel_handle(cancel.clone());
        let width = tower.feature_width();
        let rows = prepared.with_features(width, |features| tower.encode(features, prepared.origin))?;
        if rows.rows() != prepared.soft_tokens {
            let (found, wanted) = (rows.rows(), prepared.soft_tokens);
            let what = format!("the tower gave {found} rows where the processor counts {wanted}");
            return Err(Error::new(ErrorKind::Incompatible, what).with_help(OTHER_MODEL));
        }
        let rows = Arc::new(rows);
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        recent.push_front((prepared.sense, Arc::clone(&rows)));
        recent.truncate(RECENT);
        Ok(rows)
    }

    fn known(&self, prepared: &Prepared) -> Option<Arc<SoftRows>> {
        let mut recent = self.recent.lock().unwrap_or_else(PoisonError::into_inner);
        let same = |(sense, rows): &(Sense, Arc<SoftRows>)| {
            *sense == prepared.sense && rows.origin() == prepared.origin
        };
        let at = recent.iter().position(same)?;
        let found = recent.remove(at)?;
        recent.push_front(found.clone());
        Some(found.1)
    }
}

/// The towers of a checkpoint, planned, compiled and loaded on this machine's CPU.
#[cfg(feature = "build")]
pub(crate) fn of_checkpoint(directory: PathBuf, options: shardwright_build::PlanOptions) -> Towers {
    use shardwright_build::{
        ArtefactStore, KeptArtefacts, NoArtefactStore, Purpose, TowerSource, settle, tower_options,
    };
    use shardwright_graph::Pass;
    use shardwright_models::Checkpoint;
    use shardwright_vocabulary::Beforehand;

    let from = directory.clone();
    let open = move |sense: Sense, processor: &ProcessorSettings, soft_tokens: u32, cancel: &CancelHandle| {
        let pass = match sense {
            Sense::Picture => Pass::Picture,
            Sense::Sound => Pass::Clip,
        };
        let mut notices = Vec::new();
        if let Some(soc) = &options.soc {
            let what = format!("the tower of a {pass} runs on this machine's CPU, not on {soc}");
            if options.strict {
                return Err(Error::new(ErrorKind::Strict, what).with_help("plan for this machine's CPU"));
            }
            notices.push(Notice::fallback(what));
        }
        let checkpoint = Checkpoint::open_for(&from, &[Pass::Step, pass])?;
        let rows = match (sense, &processor.picture, &processor.sound) {
            (Sense::Picture, Some(picture), _) => picture.patches(soft_tokens),
            (Sense::Sound, _, Some(sound)) => sound.soft_tokens(sound.frames_max()),
            _ => return Err(Error::new(ErrorKind::Internal, "a part without settings was prepared")),
        };
        let options = tower_options(&options, u32::try_from(rows).unwrap_or(u32::MAX));
        let mut source = TowerSource::new(&checkpoint, pass)?;
        let mut kept = match checkpoint.graph_of(pass).and_then(|tower| KeptArtefacts::of(&options, tower)) {
            Some(Ok(kept)) => Some(kept),
            Some(Err(why)) => {
                notices.push(why);
                None
            }
            None => None,
        };
        let store: &mut dyn ArtefactStore = match &mut kept {
            Some(kept) => kept,
            None => &mut NoArtefactStore,
        };
        let settled = settle(&mut source, &options, Purpose::Run, store, &mut Until(cancel))
            .inspect_err(|error| consume(error, cancel))?;
        let times = settled.times;
        notices.extend(settled.report_now().notices);
        notices
            .extend(kept.and_then(|kept| kept.notice(times.planning + times.quantising + times.compiling)));
        Ok((crate::load(&settled, Beforehand::default())?, notices))
    };
    Towers::new(directory, Some(Box::new(open)))
}

/// Work that goes on until a session is cancelled.
#[cfg(feature = "build")]
struct Until<'c>(&'c CancelHandle);

#[cfg(feature = "build")]
impl shardwright_shims::Watch for Until<'_> {
    fn cancelled(&self) -> bool {
        self.0.is_requested()
    }
}

/// A request that ended work is done with, and ends no other.
#[cfg(feature = "build")]
fn consume(error: &Error, cancel: &CancelHandle) {
    if error.kind() == ErrorKind::Cancelled {
        cancel.reset();
    }
}
