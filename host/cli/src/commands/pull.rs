//! Fetches models: the command, and the offer to fetch a missing model.

use std::io::IsTerminal;
use std::path::{Component, Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use shardwright::Watch as _;
use shardwright_hub::{Cache, HubId, PullWatch, Settings, open, open_if_available};

use super::{InputLines, print};
use crate::arguments::{Format, PullArguments};
use crate::outcome::{Failure, Outcome};
use crate::{interrupt, views};

/// Fetches a model and prints the report.
pub fn pull(arguments: &PullArguments, format: Format) -> Result<Outcome, Failure> {
    let mut id = arguments.id.clone();
    if let Some(revision) = &arguments.revision {
        if id.revision.is_some() {
            return Err(Failure::Arguments(format!("{id} and --revision both name a revision")));
        }
        id = id.at(revision)?;
    }
    if arguments.file.is_some() && id.file.is_some() {
        return Err(Failure::Arguments(format!("{id} and --file both name files")));
    }
    let mut settings = Settings::from_environment()?;
    if let Some(hub) = &arguments.hub {
        settings.endpoint.clone_from(hub);
    }
    if let Some(cache) = &arguments.cache {
        settings.cache = Cache::new(cache);
    }
    let shown = Shown::new(&id);
    let report = open(&settings, &id, arguments.file.as_deref(), &shown)?.pull(&shown)?;
    drop(shown);
    print(format, &report, views::pulled)
}

/// Offers to fetch a model if a person uses a terminal. Returns `None` without a terminal, if the
/// hub cannot provide the model, or if the answer is negative.
pub fn offered(id: &HubId, path: &Path, format: Format) -> Result<Option<PathBuf>, Failure> {
    let asks = std::io::stdin().is_terminal() && std::io::stderr().is_terminal();
    // A path below an existing folder is probably mistyped and not an id, so no hub has to be
    // queried.
    let folder = path.components().next().map(Component::as_os_str);
    if !asks || format == Format::Json || folder.is_some_and(|folder| Path::new(folder).exists()) {
        return Ok(None);
    }
    let settings = Settings::from_environment()?;
    let shown = Shown::new(id);
    let Some(repository) = open_if_available(&settings, id, None, &shown)? else { return Ok(None) };
    drop(shown);
    views::say(&format!(
        "{id} was not pulled yet: {} from {}, into {}",
        views::bytes(repository.bytes()),
        settings.endpoint,
        settings.cache.folder().display()
    ));
    views::say("fetch it now? [y/N]");
    let answer = InputLines::default().next()?.transpose()?.unwrap_or_default();
    if !["y", "yes"].contains(&answer.trim().to_ascii_lowercase().as_str()) {
        return Ok(None);
    }
    let shown = Shown::new(id);
    let report = repository.pull(&shown)?;
    drop(shown);
    views::say(&format!("licence: {}", report.licence.as_deref().unwrap_or("not stated in its model card")));
    Ok(Some(report.path))
}

/// Shows the progress of a pull on standard error.
struct Shown(Mutex<views::ProgressLine>);

impl Shown {
    fn new(id: &HubId) -> Shown {
        Shown(Mutex::new(views::ProgressLine::new("fetching", id.repository().as_ref())))
    }

    fn with(&self, show: impl FnOnce(&mut views::ProgressLine)) {
        show(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner));
    }
}

impl PullWatch for Shown {
    fn progress(&self, done: u64, total: u64, file: &str) {
        let per_mille = u128::from(done) * 1000 / u128::from(total.max(1));
        let stage = format!("{} of {}, {file}", views::bytes(done), views::bytes(total));
        self.with(|progress| progress.progress(per_mille.min(1000) as u32, &stage));
    }

    fn note(&self, text: &str) {
        self.with(|progress| progress.note(text));
    }

    fn cancelled(&self) -> bool {
        interrupt::happened()
    }
}
