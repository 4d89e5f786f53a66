//! Fetches a model.
//!
//! The crate `hf-hub` is not used: its version 1 needs tokio, reqwest and a second protocol, and
//! its version 0.5 neither checks hashes nor limits what a server sends. The remaining work is
//! requests (`ureq`) and the layout of the cache.

mod blob;
mod http;
mod listing;
mod snapshot;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use serde::Serialize;
use shardwright_vocabulary::{Error, ErrorKind, Result};

use self::http::{Cause, Client, Failed, unlike_a_hub};
use self::listing::{Entry, Listing};
use crate::cache::path_of;
use crate::choice::nothing;
use crate::{Cache, HubId, Listed, Settings, choose, name};

/// Interval for checking for the user's interrupt.
const INTERVAL: Duration = Duration::from_millis(50);

/// Observes a pull, and may stop it.
pub trait PullWatch: Sync {
    /// Reports that `done` of `total` bytes are available and `file` is being fetched.
    fn progress(&self, done: u64, total: u64, file: &str) {
        let _ = (done, total, file);
    }

    /// Receives a message to show immediately.
    fn note(&self, text: &str) {
        let _ = text;
    }

    /// Returns whether to stop. Called often, from another thread.
    fn cancelled(&self) -> bool {
        false
    }
}

impl PullWatch for () {}

/// The files of a model on a hub, and the hub's information about it.
#[derive(Debug)]
pub struct Repository {
    client: Client,
    cache: Cache,
    id: HubId,
    listing: Listing,
    /// The files to fetch.
    chosen: Vec<Entry>,
}

/// A pulled file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Pulled {
    /// Path in the repository.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
    /// `sha256:…`, or `git:…` for git's SHA-1 of a small file.
    pub hash: String,
    /// Whether bytes of the file were fetched. Otherwise it was in the cache.
    pub fetched: bool,
}

/// A pulled model.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct PullReport {
    /// The model as `OWNER/NAME`.
    pub id: String,
    /// The requested revision, or `main`.
    pub revision: String,
    pub commit: String,
    /// The folder of the snapshot.
    pub snapshot: PathBuf,
    /// The path for opening the model: the snapshot, or a GGUF file in it.
    pub path: PathBuf,
    /// The licence in the model card.
    pub licence: Option<String>,
    /// The way access is granted (`auto`, `manual`), for a model whose terms must be accepted.
    pub gated: Option<String>,
    pub files: Vec<Pulled>,
}

/// Lists a model's files and chooses which to fetch: the files that match `wanted`, or the file of
/// the id, or all that the model needs. Does not write any file.
///
/// # Errors
/// If [`Settings::offline`] is set, the errors of [`choose`], and the errors of requests.
pub fn open(
    settings: &Settings,
    id: &HubId,
    wanted: Option<&str>,
    watch: &dyn PullWatch,
) -> Result<Repository> {
    if settings.offline {
        return Err(Error::missing(format!("{} cannot be fetched: HF_HUB_OFFLINE is set", id.repository()))
            .with_help("unset HF_HUB_OFFLINE to use the network"));
    }
    Ok(listed(settings, id, wanted, watch)?)
}

/// Like [`open`], but returns `None` if [`Settings::offline`] is set, if the hub has no such model,
/// or if the hub cannot be reached.
///
/// # Errors
/// The other errors of [`open`].
pub fn open_if_available(
    settings: &Settings,
    id: &HubId,
    wanted: Option<&str>,
    watch: &dyn PullWatch,
) -> Result<Option<Repository>> {
    if settings.offline {
        return Ok(None);
    }
    match listed(settings, id, wanted, watch) {
        Ok(repository) => Ok(Some(repository)),
        Err(Failed { cause: Cause::NotFound | Cause::Network, .. }) => Ok(None),
        Err(failed) => Err(failed.error),
    }
}

fn listed(
    settings: &Settings,
    id: &HubId,
    wanted: Option<&str>,
    watch: &dyn PullWatch,
) -> Result<Repository, Failed> {
    let client = Client::new(settings)?;
    let (listing, chosen) = watched(&client, id, watch, || -> Result<_, Failed> {
        let listing = listing::fetch(&client, id, watch)?;
        let files: Vec<Listed> = listing
            .entries
            .iter()
            .map(|entry| Listed { name: entry.name.clone(), bytes: entry.bytes })
            .collect();
        let names = choose(id, &files, wanted.or(id.file.as_deref()))?;
        let mut chosen: Vec<Entry> = Vec::new();
        for name in &names {
            let entry = listing.entries.iter().find(|entry| entry.name == *name);
            let entry = entry.ok_or_else(|| nothing(id))?;
            let is_listed_twice = chosen.iter().any(|other| other.name == *name);
            let fault = if is_listed_twice { Err("it is listed twice") } else { name::check(name) };
            fault.map_err(|reason| unlike_a_hub(format!("the hub lists the file {name:?}: {reason}")))?;
            chosen.push(listing::identified(&client, id, &listing.commit, entry, watch)?);
        }
        Ok((listing, chosen))
    })?;
    Ok(Repository { client, cache: settings.cache.clone(), id: id.clone(), listing, chosen })
}

impl Repository {
    /// Returns the size of all files in bytes.
    pub fn bytes(&self) -> u64 {
        self.chosen.iter().map(Entry::size).fold(0, u64::saturating_add)
    }

    /// Fetches the files that are not in the cache, and adds the snapshot once all are available.
    ///
    /// # Errors
    /// Errors of requests, [`ErrorKind::Invalid`] for other bytes than the hub listed, errors of
    /// files in the cache, and [`ErrorKind::Cancelled`]. Fetched bytes are kept.
    pub fn pull(&self, watch: &dyn PullWatch) -> Result<PullReport> {
        watched(&self.client, &self.id, watch, || self.fetch(watch))
    }

    fn fetch(&self, watch: &dyn PullWatch) -> Result<PullReport> {
        let repository = self.cache.folder().join(self.id.folder());
        let locks = self.cache.folder().join(".locks").join(self.id.folder());
        let (mut before, total) = (0_u64, self.bytes());
        let mut files = Vec::new();
        for entry in &self.chosen {
            let wanted = blob::Wanted {
                url: self.client.file(&self.id, &self.listing.commit, &entry.name),
                name: &entry.name,
                hash: entry.hash()?,
                bytes: entry.size(),
            };
            let progress = |done: u64| watch.progress(before.saturating_add(done), total, &entry.name);
            let places = blob::Places { blobs: &repository.join("blobs"), locks: &locks };
            let fetched = blob::fetch(&self.client, &wanted, &places, watch, &progress)?;
            before = before.saturating_add(entry.size());
            let hash = wanted.hash.described();
            files.push(Pulled { name: entry.name.clone(), bytes: entry.size(), hash, fetched });
        }
        let snapshot = repository.join("snapshots").join(&self.listing.commit);
        for entry in &self.chosen {
            snapshot::link(&snapshot, &entry.name, &entry.hash()?.digits())?;
        }
        snapshot::refer(&repository, self.id.revision(), &self.listing.commit)?;
        let names: Vec<String> = files.iter().map(|file| file.name.clone()).collect();
        Ok(PullReport {
            id: self.id.repository(),
            revision: self.id.revision().to_owned(),
            commit: self.listing.commit.clone(),
            path: path_of(&snapshot, &names),
            snapshot,
            licence: self.listing.licence.clone(),
            gated: self.listing.gated.clone(),
            files,
        })
    }
}

/// Does work that an interrupt ends immediately, even while it waits for a server.
fn watched<T, E: From<Error>>(
    client: &Client,
    id: &HubId,
    watch: &dyn PullWatch,
    work: impl FnOnce() -> Result<T, E>,
) -> Result<T, E> {
    let ended = AtomicBool::new(false);
    let result = thread::scope(|scope| {
        // Without a watcher, an interrupt takes effect between two files.
        let watcher = thread::Builder::new().spawn_scoped(scope, || {
            while !ended.load(Ordering::Acquire) {
                if watch.cancelled() {
                    client.shut_down();
                    break;
                }
                thread::park_timeout(INTERVAL);
            }
        });
        let result = work();
        ended.store(true, Ordering::Release);
        if let Ok(watcher) = watcher {
            watcher.thread().unpark();
        }
        result
    });
    match result {
        // The failure is a consequence of shutting down the connection.
        Err(_) if watch.cancelled() => {
            let what = format!("fetching {} was interrupted", id.repository());
            let error = Error::new(ErrorKind::Cancelled, what);
            Err(error.with_help("pull again to resume where it stopped").into())
        }
        result => result,
    }
}
