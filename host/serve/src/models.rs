//! The models of a server: opened on demand, and released least recently used first if the memory
//! budget is short.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use axum::http::StatusCode;
use shardwright::{Error, ErrorKind, Model, Notice, PrefixCache, Result, Session};

use crate::fields::shortened;
use crate::keys::KeyIndex;
use crate::metrics::{ModelMetrics, ModelState};
use crate::refusal::Refusal;
use crate::step_queue::StepQueue;

/// Most moves of sessions, and most losses, that a model remembers for reports.
const MOVES_MAX: usize = 32;

/// Opens a model within the memory budget of the server in bytes, if there is one.
pub type Open = Box<dyn Fn(Option<u64>) -> Result<Model> + Send + Sync>;

/// A model to serve: its id in requests, and how it is opened.
pub struct ServedModel {
    id: String,
    open: Open,
}

impl std::fmt::Debug for ServedModel {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ServedModel").field("id", &self.id).finish_non_exhaustive()
    }
}

impl ServedModel {
    /// Creates a model that `open` opens when a request needs it, possibly several times. The
    /// argument of `open` is the memory budget of all models together, in bytes. The server keeps
    /// their sum within it.
    pub fn new(
        id: impl Into<String>,
        open: impl Fn(Option<u64>) -> Result<Model> + Send + Sync + 'static,
    ) -> Self {
        ServedModel { id: id.into(), open: Box::new(open) }
    }

    /// Returns the id in requests.
    pub fn id(&self) -> &str {
        &self.id
    }
}

/// A model with its state in the server.
pub(crate) struct Entry {
    pub id: String,
    open: Open,
    pub turns: Arc<StepQueue>,
    pub metrics: ModelMetrics,
    /// Seconds since 1970 when the server started.
    pub created: u64,
    /// Moves of sessions to other chains, the latest last.
    moves: Mutex<VecDeque<serde_json::Value>>,
    /// Losses of the model's device or worker, the latest last.
    losses: Mutex<VecDeque<Notice>>,
    /// Bytes of the model with one session, or 0 before it was opened.
    needs: AtomicU64,
    slot: Mutex<Slot>,
}

#[derive(Default)]
struct Slot {
    loaded: Option<Arc<Loaded>>,
    /// Whether the model was lost since it was last opened.
    is_lost: bool,
    /// Openings that failed with the loss of a device, and the last of these errors.
    failures: u64,
    failure: Option<Error>,
    /// Time of the last use, in uses of all models.
    used: u64,
}

/// An open model.
pub(crate) struct Loaded {
    pub model: Model,
    /// Number of leases. It grows only under the lock of the slot.
    uses: AtomicU64,
    /// Number of leases with a session.
    sessions: AtomicU64,
    caches: Mutex<BTreeMap<KeyIndex, PrefixCache>>,
    token_bytes: OnceLock<Result<Vec<Vec<u8>>>>,
}

impl Loaded {
    /// Returns the bytes of all tokens.
    pub fn token_bytes(&self) -> Result<&[Vec<u8>]> {
        let bytes = self.token_bytes.get_or_init(|| self.model.tokenizer()?.token_bytes());
        bytes.as_deref().map_err(Clone::clone)
    }
}

/// The use of an open model by a request. A model in use is not released.
pub(crate) struct Lease {
    pub entry: Arc<Entry>,
    pub loaded: Arc<Loaded>,
    has_session: AtomicBool,
}

impl Lease {
    fn new(entry: &Arc<Entry>, loaded: Arc<Loaded>) -> Self {
        Lease { entry: Arc::clone(entry), loaded, has_session: AtomicBool::new(false) }
    }

    /// Counts the session of the lease, once.
    fn count_session(&self) {
        if !self.has_session.swap(true, Ordering::Relaxed) {
            self.loaded.sessions.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        if *self.has_session.get_mut() {
            self.loaded.sessions.fetch_sub(1, Ordering::Relaxed);
        }
        self.loaded.uses.fetch_sub(1, Ordering::Release);
    }
}

/// All models.
pub(crate) struct Models {
    entries: Vec<Arc<Entry>>,
    budget: Option<u64>,
    /// Bytes of the prefix cache of each key.
    cache_bytes: u64,
    clock: AtomicU64,
    /// Held while a model is opened, so that no two openings share the same free memory.
    opening: Mutex<()>,
    /// Held while a session is created, for the same reason.
    starting: Mutex<()>,
}

fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Models {
    pub fn new(models: Vec<ServedModel>, budget: Option<u64>, cache_bytes: u64, created: u64) -> Self {
        let entry = |model: ServedModel| {
            Arc::new(Entry {
                id: model.id,
                open: model.open,
                turns: Arc::default(),
                metrics: ModelMetrics::default(),
                created,
                moves: Mutex::default(),
                losses: Mutex::default(),
                needs: AtomicU64::new(0),
                slot: Mutex::default(),
            })
        };
        let entries = models.into_iter().map(entry).collect();
        let clock = AtomicU64::new(0);
        Models { entries, budget, cache_bytes, clock, opening: Mutex::default(), starting: Mutex::default() }
    }

    pub fn entries(&self) -> &[Arc<Entry>] {
        &self.entries
    }

    pub fn budget(&self) -> Option<u64> {
        self.budget
    }

    /// Returns the number of uses of all models so far.
    pub fn uses(&self) -> u64 {
        self.clock.load(Ordering::Relaxed)
    }

    /// Opens each model once, so that errors appear before the server accepts requests.
    pub fn open_all(&self) -> Result<()> {
        self.entries.iter().try_for_each(|entry| self.lease(entry).map(drop))
    }

    /// Finds a model by its id.
    pub fn find(&self, id: &str) -> std::result::Result<&Arc<Entry>, Refusal> {
        self.entries.iter().find(|entry| entry.id == id).ok_or_else(|| {
            let known: Vec<String> = self.entries.iter().map(|entry| format!("`{}`", entry.id)).collect();
            let what = format!("unknown model `{}`", shortened(id));
            let help = format!("use {}", known.join(" or "));
            Refusal::new(StatusCode::NOT_FOUND, "model_not_found", what, help).at("model")
        })
    }

    /// Starts a session. If memory is short, prefix caches are emptied and idle models released.
    pub fn session(&self, lease: &Lease) -> Result<Session> {
        self.start(lease, Model::session)
    }

    /// Counts a session that the server does not create itself, once, and frees memory for it.
    pub fn hold_session(&self, lease: &Lease) -> Result<()> {
        match lease.has_session.load(Ordering::Relaxed) {
            true => Ok(()),
            false => self.start(lease, |_| Ok(())),
        }
    }

    fn start<T>(&self, lease: &Lease, create: impl Fn(&Model) -> Result<T>) -> Result<T> {
        let _starting = locked(&self.starting);
        let model = &lease.loaded.model;
        loop {
            let used = self.used().saturating_add(model.memory().session.bytes());
            let short = match self.budget {
                Some(budget) if used > budget => no_room(&lease.entry.id, used, budget),
                _ => match create(model) {
                    Ok(created) => {
                        lease.count_session();
                        return Ok(created);
                    }
                    Err(error) if is_shortage(&error) => error,
                    Err(error) => return Err(error),
                },
            };
            if !self.free_some(&lease.entry) {
                return Err(short);
            }
        }
    }

    /// Empties prefix caches or releases an idle model other than `wanted`. Returns `false` if
    /// there is neither.
    fn free_some(&self, wanted: &Arc<Entry>) -> bool {
        self.empty_caches() || self.release_one(wanted)
    }

    /// Empties all prefix caches. Returns `false` if they are empty already.
    fn empty_caches(&self) -> bool {
        let mut found = false;
        for loaded in self.entries.iter().filter_map(|entry| entry.loaded()) {
            let caches = locked(&loaded.caches).clone();
            for cache in caches.values().filter(|cache| cache.statistics().bytes > 0) {
                cache.clear();
                found = true;
            }
        }
        found
    }

    /// Returns the prefix cache of a key, if there are prefix caches.
    pub fn cache(&self, lease: &Lease, key: KeyIndex) -> Option<PrefixCache> {
        (self.cache_bytes > 0).then(|| {
            let mut caches = locked(&lease.loaded.caches);
            caches.entry(key).or_insert_with(|| PrefixCache::new(self.cache_bytes)).clone()
        })
    }

    fn touch(&self, entry: &Arc<Entry>) -> Option<Lease> {
        let mut slot = locked(&entry.slot);
        slot.used = self.clock.fetch_add(1, Ordering::Relaxed) + 1;
        let loaded = slot.loaded.clone()?;
        loaded.uses.fetch_add(1, Ordering::Acquire);
        Some(Lease::new(entry, loaded))
    }

    /// Returns an open model, and opens it if needed.
    pub fn lease(&self, entry: &Arc<Entry>) -> Result<Lease> {
        if let Some(lease) = self.touch(entry) {
            return Ok(lease);
        }
        let failures = locked(&entry.slot).failures;
        let _opening = locked(&self.opening);
        // Another request may have opened it meanwhile, or failed to.
        if let Some(lease) = self.touch(entry) {
            return Ok(lease);
        }
        if let Some(failure) = entry.failed_since(failures) {
            return Err(failure);
        }
        let model = self.open(entry).map_err(|error| entry.not_opened(error))?;
        let loaded = Arc::new(Loaded {
            model,
            uses: AtomicU64::new(1),
            sessions: AtomicU64::new(0),
            caches: Mutex::default(),
            token_bytes: OnceLock::new(),
        });
        let mut slot = locked(&entry.slot);
        slot.loaded = Some(Arc::clone(&loaded));
        (slot.is_lost, slot.failure) = (false, None);
        drop(slot);
        entry.metrics.openings.fetch_add(1, Ordering::Relaxed);
        tracing::info!(model = entry.id, "opened");
        Ok(Lease::new(entry, loaded))
    }

    /// Drops an open model whose device was lost, so that the next request opens it again. Returns
    /// `false` if another request has dropped it already.
    pub fn lose(&self, lease: &Lease, error: &Error) -> bool {
        let Lease { entry, loaded, .. } = lease;
        let mut slot = locked(&entry.slot);
        if slot.loaded.as_ref().is_none_or(|current| !Arc::ptr_eq(current, loaded)) {
            return false;
        }
        // The lease keeps the model until its session has moved.
        (slot.loaded, slot.is_lost) = (None, true);
        drop(slot);
        entry.was_lost(error);
        true
    }

    /// Opens a model that fits the budget next to the others.
    fn open(&self, entry: &Arc<Entry>) -> Result<Model> {
        self.make_room(entry)?;
        let model = loop {
            match (entry.open)(self.budget) {
                Err(error) if is_shortage(&error) && self.free_some(entry) => {}
                done => break done?,
            }
        };
        // Later openings free this room first.
        entry.needs.store(footprint(&model, 1), Ordering::Relaxed);
        self.make_room(entry)?;
        Ok(model)
    }

    /// Frees memory until a model fits, as far as its size is known.
    fn make_room(&self, entry: &Arc<Entry>) -> Result<()> {
        let needs = entry.needs.load(Ordering::Relaxed);
        while let Some(room) = self.room().filter(|room| *room < needs) {
            if !self.free_some(entry) {
                return Err(too_large(&entry.id, needs, room));
            }
        }
        Ok(())
    }

    /// Returns the bytes that the budget leaves.
    fn room(&self) -> Option<u64> {
        self.budget.map(|budget| budget.saturating_sub(self.used()))
    }

    fn used(&self) -> u64 {
        self.entries.iter().map(|entry| entry.bytes()).fold(0, u64::saturating_add)
    }

    /// Releases the least recently used idle model other than `wanted`. Returns `false` if there
    /// is none.
    fn release_one(&self, wanted: &Arc<Entry>) -> bool {
        let mut others: Vec<&Arc<Entry>> =
            self.entries.iter().filter(|entry| !Arc::ptr_eq(entry, wanted)).collect();
        others.sort_by_key(|entry| locked(&entry.slot).used);
        others.into_iter().any(|entry| {
            let mut slot = locked(&entry.slot);
            if slot.loaded.as_ref().is_none_or(|loaded| loaded.uses.load(Ordering::Acquire) != 0) {
                return false;
            }
            tracing::info!(model = entry.id, "released, because memory is short");
            let released = slot.loaded.take();
            drop(slot);
            drop(released);
            true
        })
    }
}

impl Entry {
    /// Returns the model if it is open.
    pub fn loaded(&self) -> Option<Arc<Loaded>> {
        locked(&self.slot).loaded.clone()
    }

    /// Returns the bytes of the model, its sessions and its prefix caches.
    fn bytes(&self) -> u64 {
        let Some(loaded) = self.loaded() else { return 0 };
        let sessions = loaded.sessions.load(Ordering::Relaxed);
        let counted = loaded.model.memory().used;
        match counted {
            0 => footprint(&loaded.model, sessions).saturating_add(loaded.cache_bytes()),
            counted => counted,
        }
    }

    /// Returns the error if an opening failed with the loss of a device since there were `failures`
    /// such openings.
    fn failed_since(&self, failures: u64) -> Option<Error> {
        let slot = locked(&self.slot);
        slot.failure.clone().filter(|_| slot.failures != failures)
    }

    /// Returns the error of an opening. After a loss, a failure of a shim, or of every plan for it,
    /// is the same loss.
    fn not_opened(&self, error: Error) -> Error {
        let mut slot = locked(&self.slot);
        let is_of_shim = matches!(error.kind(), ErrorKind::Shim | ErrorKind::Planning);
        let error = if slot.is_lost && is_of_shim { error.of_lost_device() } else { error };
        if error.is_device_lost() {
            slot.failures += 1;
            slot.failure = Some(error.clone());
        }
        error
    }

    /// Remembers, counts and logs a loss.
    fn was_lost(&self, error: &Error) {
        let text = format!("model `{}` lost its device or worker and is opened again: {error}", self.id);
        tracing::warn!(model = self.id, "{text}");
        self.metrics.losses.fetch_add(1, Ordering::Relaxed);
        remember(&mut locked(&self.losses), Notice::note(text));
    }

    /// Returns notices about losses.
    pub fn losses(&self) -> Vec<Notice> {
        locked(&self.losses).iter().cloned().collect()
    }

    /// Remembers moves of a session to another chain.
    pub fn moved(&self, moves: impl IntoIterator<Item = serde_json::Value>) {
        let mut known = locked(&self.moves);
        for moved in moves {
            self.metrics.moves.fetch_add(1, Ordering::Relaxed);
            remember(&mut known, moved);
        }
    }

    pub fn moves(&self) -> Vec<serde_json::Value> {
        locked(&self.moves).iter().cloned().collect()
    }

    /// Returns the state for a report.
    pub fn state(&self) -> ModelState {
        let Some(loaded) = self.loaded() else { return ModelState::default() };
        let caches = locked(&loaded.caches).clone();
        let statistics = caches.values().map(PrefixCache::statistics);
        let mut state = ModelState {
            is_loaded: true,
            waiting: self.turns.waiting(),
            memory_bytes: self.bytes(),
            fallbacks: crate::placement::fallbacks(&loaded.model),
            ..ModelState::default()
        };
        for cache in statistics {
            state.prefix_cache_bytes += cache.bytes;
            state.prefix_cache_hits += cache.hits;
            state.prefix_cache_misses += cache.misses;
        }
        state
    }
}

impl Loaded {
    fn cache_bytes(&self) -> u64 {
        locked(&self.caches).values().map(|cache| cache.statistics().bytes).sum()
    }
}

/// Adds an event, in place of the oldest one if there are many.
fn remember<T>(events: &mut VecDeque<T>, event: T) {
    if events.len() == MOVES_MAX {
        events.pop_front();
    }
    events.push_back(event);
}

/// Returns the bytes of a model with this number of sessions. The opener of a checkpoint does not
/// count them.
fn footprint(model: &Model, sessions: u64) -> u64 {
    let memory = model.memory();
    memory.weights.saturating_add(memory.session.bytes().saturating_mul(sessions))
}

fn is_shortage(error: &Error) -> bool {
    error.kind() == ErrorKind::Memory
}

fn too_large(id: &str, bytes: u64, room: u64) -> Error {
    let what = format!("model `{id}` and a session need {bytes} bytes, more than the {room} that are free");
    Error::new(ErrorKind::Memory, what).with_help("raise `--memory-budget`, or serve fewer models")
}

fn no_room(id: &str, used: u64, budget: u64) -> Error {
    let what =
        format!("with a session of model `{id}`, {used} bytes are used, more than the budget of {budget}");
    Error::new(ErrorKind::Memory, what).with_help("retry later, or raise `--memory-budget`")
}
