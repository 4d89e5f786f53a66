//! Towers of a model, each opened when the first picture or sound needs it.

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
#[cfg(feature = "build")]
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use shardwright_bundle::{Bundle, TextFile};
use shardwright_preprocessing::{ProcessorSettings, SoundSettings};
use shardwright_runtime::{CancelHandle, Chain, NextChain, SoftRows, Tower, TowerMove};
use shardwright_vocabulary::{EntryName, Notice, Part, Pass, Watch};

use crate::ignored_fields::notice_of;
use crate::parts::{OTHER_MODEL, Prepared, Sense};
use crate::verified_files::Verified;
use crate::{Error, ErrorKind, Result};

/// Opens the tower of a sense. The number is the soft tokens of the picture that needs it.
type Open = dyn Fn(Sense, &ProcessorSettings, u32, &mut dyn Watch) -> Result<Opened> + Send + Sync;

/// A tower that was opened.
pub(crate) struct Opened {
    pub chain: Chain,
    /// Maximum soft tokens of a picture that the tower supports.
    pub picture_tokens: u32,
    pub notices: Vec<Notice>,
    /// Files that were hashed, for a tower of a bundle.
    pub verified: Option<Verified>,
    /// Fallbacks for the case that the tower is lost.
    pub next: Option<Box<dyn NextChain>>,
}

/// A tower of a bundle.
pub(crate) struct LoadedTower {
    pub chain: Chain,
    pub notices: Vec<Notice>,
    pub verified: Verified,
    pub next: Option<Box<dyn NextChain>>,
}

/// Progress when a tower is open but has not run, in thousandths.
const OPENED: u32 = 900;

/// Number of recent pictures and sounds whose rows are kept, so that an equal one is not run again.
const RECENT: usize = 8;

/// Location of the settings of front ends.
enum Settings {
    /// In the files of a checkpoint.
    #[cfg(feature = "build")]
    Checkpoint(PathBuf),
    /// In a bundle, whose towers limit the settings.
    Bundle(Arc<Bundle>),
}

impl Settings {
    fn bundle(&self) -> Option<&Bundle> {
        match self {
            #[cfg(feature = "build")]
            Settings::Checkpoint(_) => None,
            Settings::Bundle(bundle) => Some(bundle),
        }
    }
}

/// State of one model's towers, shared by its sessions.
pub(crate) struct Towers {
    settings: Settings,
    open: Box<Open>,
    /// Each tower with the number of soft tokens per picture that it supports.
    opened: Mutex<BTreeMap<Sense, (u32, Tower)>>,
    recent: Mutex<VecDeque<(Sense, Arc<SoftRows>)>>,
    notices: Mutex<Vec<Notice>>,
    verified: Mutex<Vec<(Pass, Verified)>>,
    /// Whether settings with fields that have no effect are rejected.
    strict: bool,
}

impl Towers {
    fn new(settings: Settings, open: Box<Open>) -> Self {
        Towers {
            settings,
            open,
            opened: Mutex::default(),
            recent: Mutex::default(),
            notices: Mutex::default(),
            verified: Mutex::default(),
            strict: false,
        }
    }

    /// Sets whether settings with fields that have no effect are rejected when they are needed.
    pub fn strict(self, strict: bool) -> Self {
        Towers { strict, ..self }
    }

    /// Returns the towers of a bundle. `load` loads the tower of a pass.
    pub fn of_bundle(
        bundle: Arc<Bundle>,
        load: impl Fn(Pass, &mut dyn Watch) -> Result<LoadedTower> + Send + Sync + 'static,
    ) -> Self {
        let settings = Settings::Bundle(Arc::clone(&bundle));
        let open = move |sense: Sense, processor: &ProcessorSettings, _: u32, watch: &mut dyn Watch| {
            let most = largest_picture(&bundle, processor).unwrap_or(0);
            let LoadedTower { chain, notices, verified, next } = load(sense.pass(), watch)?;
            Ok(Opened { chain, picture_tokens: most, notices, verified: Some(verified), next })
        };
        Towers::new(settings, Box::new(open))
    }

    /// Returns no towers, for a text chain that was loaded separately.
    #[cfg(feature = "build")]
    pub fn absent(bundle: Arc<Bundle>) -> Self {
        let refuse = |_: Sense, _: &ProcessorSettings, _: u32, _: &mut dyn Watch| {
            Err(Error::new(ErrorKind::Unsupported, "towers were not loaded with this chain")
                .with_help("open the bundle itself"))
        };
        Towers::new(Settings::Bundle(bundle), Box::new(refuse))
    }

    /// Returns the notices of the towers opened so far, in the order of opening.
    pub fn notices(&self) -> Vec<Notice> {
        self.notices.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the hashed files of each tower opened so far, in that order. Towers of a checkpoint
    /// have no entry.
    pub fn verified(&self) -> Vec<(Pass, Verified)> {
        self.verified.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the settings that convert pictures and sounds to the towers' inputs, for a bundle
    /// limited to the inputs that its towers support. Adds a notice for each of their fields that
    /// has no effect.
    pub fn processor(&self) -> Result<ProcessorSettings> {
        let settings = self.read_processor()?;
        if let Some(field) = settings.ignored.first().filter(|_| self.strict) {
            return Err(Error::new(ErrorKind::Strict, field.to_string()));
        }
        let mut notices = self.notices.lock().unwrap_or_else(PoisonError::into_inner);
        for notice in settings.ignored.iter().map(notice_of) {
            // The settings are read for every turn with a picture or a sound.
            if !notices.contains(&notice) {
                notices.push(notice);
            }
        }
        drop(notices);
        Ok(settings)
    }

    fn read_processor(&self) -> Result<ProcessorSettings> {
        let missing = |directory: &Path, help: &str| {
            Error::unsupported("no such file, so the model does not support pictures or sounds")
                .at(directory.join(TextFile::Processor.name()).display())
                .with_help(help)
        };
        match &self.settings {
            #[cfg(feature = "build")]
            Settings::Checkpoint(directory) => {
                let help = "download that file too: models for pictures or sounds are published with it";
                ProcessorSettings::read(directory)?.ok_or_else(|| missing(directory, help))
            }
            Settings::Bundle(bundle) => {
                let directory = bundle.path();
                if bundle.variant().towers.is_empty() {
                    let directory = directory.display();
                    let what = format!("{directory}: the bundle has no tower for pictures or sounds");
                    return Err(Error::new(ErrorKind::Unsupported, what)
                        .with_help("compile the checkpoint with its towers, or open the checkpoint itself"));
                }
                let settings = processor_of(bundle)?;
                let mut settings =
                    settings.ok_or_else(|| missing(directory, "compile the checkpoint again"))?;
                bound(&mut settings, bundle);
                Ok(settings)
            }
        }
    }

    /// Checks that a bundle has a tower for parts of this sense. For a checkpoint, the processor's
    /// settings decide.
    pub fn expect(&self, sense: Sense) -> Result<()> {
        let Some(bundle) = self.settings.bundle() else { return Ok(()) };
        if bundle.variant().model_of(sense.pass()).is_some() {
            return Ok(());
        }
        let (directory, noun) = (bundle.path().display(), sense.noun());
        let what = format!("{directory}: the bundle has no tower for a {noun}");
        Err(Error::new(ErrorKind::Unsupported, what)
            .with_help("compile the checkpoint with that tower, or open the checkpoint itself"))
    }

    /// Checks that the tower of a bundle supports a part. The tower of a checkpoint is built to
    /// fit.
    pub fn expect_room(&self, prepared: &Prepared, processor: &ProcessorSettings) -> Result<()> {
        let Some(bundle) = self.settings.bundle() else { return Ok(()) };
        let most = largest_picture(bundle, processor).unwrap_or(0);
        if prepared.sense == Sense::Sound || prepared.budget <= most {
            return Ok(());
        }
        let (directory, soft_tokens) = (bundle.path().display(), prepared.budget);
        let what = format!(
            "a picture of {soft_tokens} soft tokens: the tower of {directory} supports at most {most}"
        );
        let help = "compile the checkpoint with `--picture-sizes`, or use fewer soft tokens";
        Err(Error::new(ErrorKind::Argument, what).with_help(help))
    }

    /// Computes the rows of a picture or sound. `cancel` stops opening and running the tower,
    /// `watch` stops opening it.
    pub fn encode(
        &self,
        prepared: &Prepared,
        processor: &ProcessorSettings,
        cancel: &CancelHandle,
        watch: &mut dyn Watch,
    ) -> Result<Arc<SoftRows>> {
        if let Some(known) = prepared.known().or_else(|| self.known(prepared)) {
            return Ok(known);
        }
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        let enough = opened.get(&prepared.sense).is_some_and(|(most, _)| *most >= prepared.budget);
        if !enough {
            // Free the smaller tower before the larger one allocates memory.
            opened.remove(&prepared.sense);
            let until = &mut Until { cancel, watch: Part::new(watch, 0..OPENED) };
            let found = (self.open)(prepared.sense, processor, prepared.budget, until);
            let Opened { chain, picture_tokens, notices, verified, next } =
                found.inspect_err(|error| consume(error, cancel))?;
            let mut tower = chain.tower()?;
            tower.set_next_chain(next);
            opened.insert(prepared.sense, (picture_tokens, tower));
            self.notices.lock().unwrap_or_else(PoisonError::into_inner).extend(notices);
            let verified = verified.map(|verified| (prepared.sense.pass(), verified));
            self.verified.lock().unwrap_or_else(PoisonError::into_inner).extend(verified);
        }
        watch.progress(OPENED, &format!("reading a {}", prepared.sense.noun()));
        let Some((_, tower)) = opened.get_mut(&prepared.sense) else {
            return Err(Error::new(ErrorKind::Internal, "an opened tower is missing"));
        };
        tower.set_cancel_handle(cancel.clone());
        let width = tower.feature_width();
        let moved = tower.moves().len();
        let rows = prepared.with_features(width, |features| tower.encode(features, prepared.origin))?;
        let moves = tower.moves()[moved..].iter().map(|moved| notice_of_move(prepared.sense, moved));
        self.notices.lock().unwrap_or_else(PoisonError::into_inner).extend(moves);
        if rows.rows() != prepared.soft_tokens {
            let (found, wanted) = (rows.rows(), prepared.soft_tokens);
            let what = format!("the tower returned {found} rows, but the processor expects {wanted}");
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

/// Returns the notice of a tower that was lost and resumed elsewhere.
fn notice_of_move(sense: Sense, moved: &TowerMove) -> Notice {
    let to = moved.to.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
    let passed = moved.passed_over.iter().map(|reason| format!("; passed over: {reason}"));
    let passed: String = passed.collect();
    let noun = sense.noun();
    Notice::fallback(format!("the tower of a {noun} was lost and resumed on {to}: {}{passed}", moved.lost))
}

/// Reads the settings from a bundle's files, if it has any.
fn processor_of(bundle: &Bundle) -> Result<Option<ProcessorSettings>> {
    let mut files = BTreeMap::new();
    for file in [TextFile::Processor, TextFile::Preprocessor] {
        files.extend(bundle.text(file)?.map(|bytes| (file.name(), bytes)));
    }
    ProcessorSettings::from_files(bundle.path(), |name| Ok(files.get(name).cloned()))
}

/// Returns the rows of the largest entry point of a tower, or `None` if the bundle does not contain
/// the tower.
fn largest_rows(bundle: &Bundle, pass: Pass) -> Option<u32> {
    let model = bundle.variant().model_of(pass)?;
    let entries = &model.chains.first()?.shards.first()?.entries;
    entries.iter().map(|entry: &EntryName| entry.rows).max()
}

/// Returns the maximum soft tokens of a picture that a bundle's tower supports.
fn largest_picture(bundle: &Bundle, processor: &ProcessorSettings) -> Option<u32> {
    let patches = u32::try_from(processor.picture.as_ref()?.patches(1)).ok()?;
    largest_rows(bundle, Pass::Picture)?.checked_div(patches)
}

/// Removes settings for which the bundle has no tower, and limits the others to its towers.
fn bound(settings: &mut ProcessorSettings, bundle: &Bundle) {
    let most = largest_picture(bundle, settings);
    settings.picture = settings.picture.take().zip(most).map(|(mut picture, most)| {
        picture.soft_tokens = picture.soft_tokens.min(most);
        picture
    });
    let rows = largest_rows(bundle, Pass::Clip);
    settings.sound = settings.sound.take().zip(rows).map(|(mut sound, rows)| {
        let frames = rows.saturating_mul(SoundSettings::FRAMES_PER_SOFT_TOKEN as u32);
        sound.longest = sound.longest.min(frames.saturating_mul(sound.hop));
        sound
    });
}

/// Returns the towers of a checkpoint, which are planned, compiled and loaded on the same targets
/// as its text.
#[cfg(feature = "build")]
pub(crate) fn of_checkpoint(directory: &Path, options: shardwright_build::PlanOptions) -> Towers {
    use shardwright_checkpoints::{Builder, LoadedChain, TowerScope, open_adapted};
    use shardwright_vocabulary::Beforehand;

    use crate::fallback_chains::on_demand;

    let (from, strict) = (directory.to_owned(), options.strict);
    let open = move |sense: Sense, processor: &ProcessorSettings, soft_tokens: u32, watch: &mut dyn Watch| {
        let pass = sense.pass();
        let checkpoint = open_adapted(&from, &[Pass::Step, pass], &options)?;
        let usual = processor.picture.as_ref().map_or(0, |picture| picture.soft_tokens);
        let asked = &options.recorded.towers.picture_tokens;
        let picture_tokens = asked.iter().copied().fold(soft_tokens.max(usual), u32::max);
        let sizes = match sense {
            Sense::Picture => [asked.clone(), vec![picture_tokens]].concat(),
            Sense::Sound => options.recorded.towers.clip_seconds.clone(),
        };
        let scope = TowerScope::new(pass, processor, &sizes)?;
        let options = scope.options(&options);
        let builder = Builder::new(&checkpoint, Some(&scope));
        let LoadedChain { settled, keeping, parts, .. } = builder.loaded_chain(&options, watch)?;
        let times = settled.times;
        let mut notices = settled.report_now().notices;
        notices.extend(keeping.notice(times.planning + times.quantising + times.compiling));
        let emulated_on = settled.report.emulated_on.clone();
        let chain = crate::join(parts, &settled.graph, emulated_on, Beforehand::default())?;
        let chains = settled.takeovers(&options);
        let next = (!chains.is_empty()).then(|| on_demand(&from, Some(scope), chains));
        Ok(Opened { chain, picture_tokens, notices, verified: None, next })
    };
    Towers::new(Settings::Checkpoint(directory.to_owned()), Box::new(open)).strict(strict)
}

/// Watches work until its session or its watcher requests to stop.
struct Until<'u> {
    cancel: &'u CancelHandle,
    watch: Part<'u>,
}

impl Watch for Until<'_> {
    fn progress(&mut self, per_mille: u32, stage: &str) {
        self.watch.progress(per_mille, stage);
    }

    fn note(&mut self, text: &str) {
        self.watch.note(text);
    }

    fn cancelled(&self) -> bool {
        self.cancel.is_requested() || self.watch.cancelled()
    }
}

/// Resets a cancellation that ended this work, so that it does not end later work.
pub(crate) fn consume(error: &Error, cancel: &CancelHandle) {
    if error.kind() == ErrorKind::Cancelled {
        cancel.reset();
    }
}
