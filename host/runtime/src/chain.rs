//! Loaded shards in order, checked against their description.

mod check;
mod identity;
pub(crate) mod layout;

use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use shardwright_graph::Asset;
use shardwright_shims::{Artefact, Canceller, LoadedShard, Measured, MeasuredFlag, Pages, Running};
use shardwright_vocabulary::{EntryKind, Place, ProcessPlacement, Result};

pub use check::{ASSETS_MAX, ENTRIES_MAX, PORTS_MAX, SHARDS_MAX, STATES_MAX};
pub use identity::ChainIdentity;
pub(crate) use identity::ChainMark;
use layout::Layout;

use crate::cancel::CancelHandle;
use crate::description::ChainDescription;
use crate::error::SessionError;
use crate::memory::{MemoryBudget, MemoryShare, SessionMemory};

/// Loaded shards that form a model. Clones are cheap and share the shards.
///
/// Any number of sessions may use a chain, from any threads. A shard runs one step of one session
/// at a time.
#[derive(Clone)]
pub struct Chain {
    shared: Arc<Shared>,
    counted: Option<Counted>,
}

/// Memory accounting of a chain.
#[derive(Clone)]
struct Counted {
    budget: MemoryBudget,
    /// Share for the weights, returned when the last clone of the chain is dropped.
    _weights: Arc<MemoryShare>,
}

struct Shared {
    description: ChainDescription,
    layout: Layout,
    executors: Vec<Mutex<LoadedShard>>,
    cancellers: Vec<Canceller>,
    /// Measurements of the shim at each place.
    measured: Vec<(Place, Measured)>,
    processes: Vec<ProcessPlacement>,
    assets: Vec<Asset>,
    artefacts: Vec<Artefact>,
    /// Version of the shim that runs each shard, empty if the program itself runs it.
    engines: Vec<String>,
    /// See [`Chain::identity`].
    identity: OnceLock<Option<ChainIdentity>>,
}

impl std::fmt::Debug for Chain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Chain")
            .field("model", &self.shared.description.model)
            .field("shards", &self.shared.description.shards.len())
            .finish_non_exhaustive()
    }
}

impl Chain {
    /// Creates a chain from a description, one executor for each described shard in order, and the
    /// gathered tables.
    ///
    /// Checks that they match the description: every component and layer occurs once, all shards
    /// have the same entry points, prefills fill every state, neighbours agree, states are on the
    /// same place as all their readers, and loaded artefacts bind exactly the described ports.
    pub fn new(
        description: ChainDescription,
        executors: Vec<LoadedShard>,
        assets: Vec<Asset>,
    ) -> Result<Chain> {
        check::check(&description, &executors, &assets)?;
        let layout = layout::lay_out(&description, &executors)?;
        let cancellers = executors.iter().map(LoadedShard::canceller).collect();
        let mut measured: Vec<(Place, Measured)> = Vec::new();
        for executor in &executors {
            if measured.iter().all(|(place, _)| place != executor.place()) {
                measured.push((executor.place().clone(), executor.measured()));
            }
        }
        let processes = executors.iter().map(|executor| match executor.running() {
            Running::InProcess => ProcessPlacement::InProcess,
            Running::Worker(worker) => ProcessPlacement::Worker { pid: worker.pid },
        });
        let processes = processes.collect();
        let artefacts = executors.iter().filter_map(LoadedShard::artefact).cloned().collect();
        let version = |shim: &shardwright_shims::Shim| shim.description().version.clone();
        let engines = executors.iter().map(|executor| executor.shim().map(version).unwrap_or_default());
        let engines = engines.collect();
        let executors = executors.into_iter().map(Mutex::new).collect();
        Ok(Chain {
            shared: Arc::new(Shared {
                description,
                layout,
                executors,
                cancellers,
                measured,
                processes,
                assets,
                artefacts,
                engines,
                identity: OnceLock::new(),
            }),
            counted: None,
        })
    }

    /// Returns the chain within a memory budget, which provides the memory for its weights. Each
    /// session reserves its memory when it is created, and fails if too little is left.
    ///
    /// # Errors
    ///
    /// Returns an error if the weights do not fit.
    pub fn within(self, budget: MemoryBudget) -> Result<Chain> {
        let weights = Arc::new(budget.take(self.weight_bytes())?);
        Ok(Chain { counted: Some(Counted { budget, _weights: weights }), ..self })
    }

    /// Returns the memory budget of the chain, if there is one.
    pub fn budget(&self) -> Option<&MemoryBudget> {
        self.counted.as_ref().map(|counted| &counted.budget)
    }

    /// Returns the bytes of the artefacts, regardless of whether a driver copies or maps them.
    pub fn weight_bytes(&self) -> u64 {
        let artefacts = self.shared.artefacts.iter();
        artefacts.map(|artefact| artefact.section().length()).fold(0, u64::saturating_add)
    }

    /// Returns the bytes of each shard's artefact. Returns `None` if a shard has no artefact,
    /// because the program itself runs it.
    pub fn artefact_bytes(&self) -> Option<Vec<u64>> {
        let artefacts = &self.shared.artefacts;
        let is_complete = artefacts.len() == self.shared.executors.len();
        is_complete.then(|| artefacts.iter().map(|artefact| artefact.section().length()).collect())
    }

    /// Returns the pages of the artefacts in this process. Returns `None` if another process uses
    /// one of them, or the system does not report pages.
    pub fn artefact_pages(&self) -> Option<Pages> {
        let is_here = |process: &ProcessPlacement| *process == ProcessPlacement::InProcess;
        if !self.shared.processes.iter().all(is_here) {
            return None;
        }
        self.shared.artefacts.iter().try_fold(Pages::default(), |sum, artefact| {
            let pages = artefact.pages()?;
            Some(Pages { resident: sum.resident + pages.resident, huge: sum.huge + pages.huge })
        })
    }

    /// Returns the bytes of the artefacts on each memory node. Returns `None` if there is only one
    /// node, another process uses one of the artefacts, or the system does not report nodes.
    pub fn artefact_node_bytes(&self) -> Option<Vec<u64>> {
        self.artefact_pages()?;
        self.shared.artefacts.iter().try_fold(Vec::new(), |mut sum: Vec<u64>, artefact| {
            let nodes = artefact.node_bytes()?;
            sum.resize(sum.len().max(nodes.len()), 0);
            sum.iter_mut().zip(nodes).for_each(|(sum, bytes)| *sum += bytes);
            Some(sum)
        })
    }

    /// Returns the memory that each session needs.
    pub fn session_memory(&self) -> SessionMemory {
        let mut memory = SessionMemory::default();
        for plan in &self.layout().memories {
            let bytes = if plan.is_state() { &mut memory.states } else { &mut memory.buffers };
            *bytes = bytes.saturating_add(plan.bytes);
        }
        if self.is_generative() {
            memory.logits = self.description().structure.vocabulary.saturating_mul(4);
        }
        memory
    }

    /// Reserves the memory of a session in the budget.
    pub(crate) fn share_of_a_session(&self) -> Result<Option<MemoryShare>, SessionError> {
        let Some(counted) = &self.counted else { return Ok(None) };
        Ok(Some(counted.budget.take(self.session_memory().bytes())?))
    }

    /// Runs the shards for a token once, in a temporary session. This loads weights into memory and
    /// lets drivers initialise. Other sessions wait meanwhile. `cancel` ends it.
    ///
    /// # Errors
    ///
    /// Returns the errors of creating and running a session.
    pub fn warm_up(&self, cancel: &CancelHandle) -> Result<(), SessionError> {
        let mut session = self.session()?;
        session.set_cancel_handle(cancel.clone());
        // Every table has this row.
        const ID: u32 = 0;
        if !self.is_generative() {
            return session.encode(&[ID]).map(drop);
        }
        // The first token goes through a prefill, if there is one.
        session.append(&vec![ID; 2.min(self.context() as usize)]).map(drop)
    }

    pub fn description(&self) -> &ChainDescription {
        &self.shared.description
    }

    /// Returns the number of positions of a session's context, or for encoders the rows of the
    /// largest encode entry.
    pub fn context(&self) -> u64 {
        self.layout().schedules.iter().map(|schedule| schedule.point.context).max().unwrap_or(0)
    }

    /// Reports whether the chain generates (and returns logits). Otherwise it encodes (and returns
    /// an embedding).
    pub fn is_generative(&self) -> bool {
        self.description().structure.is_generative()
    }

    /// Lends a shard's executor for runs outside any session, for example in a verification.
    /// Sessions wait meanwhile. Returns `None` beyond the last shard.
    pub fn with_executor<R>(&self, shard: usize, borrow: impl FnOnce(&mut LoadedShard) -> R) -> Option<R> {
        (shard < self.shared.executors.len()).then(|| borrow(&mut self.executor(shard)))
    }

    /// Returns the load-time flags of each place whose values the shim measured. Measurements of
    /// earlier processes are included if the shim was opened with them. A shim that does not
    /// answer, for example because it was lost, is omitted.
    pub fn measured(&self) -> Vec<(Place, Vec<MeasuredFlag>)> {
        let ask = |(place, measured): &(Place, Measured)| {
            let flags = measured.flags().inspect_err(|error| tracing::debug!(%place, "not queried: {error}"));
            (place.clone(), flags.unwrap_or_default())
        };
        let asked = self.shared.measured.iter().map(ask);
        asked.filter(|(_, flags)| !flags.is_empty()).collect()
    }

    /// Stores the shims' measurements for later processes.
    pub(crate) fn keep_measured(&self) {
        for (place, measured) in &self.shared.measured {
            if let Err(error) = measured.keep() {
                tracing::debug!(%place, "measurements not stored: {error}");
            }
        }
    }

    pub(crate) fn layout(&self) -> &Layout {
        &self.shared.layout
    }

    /// Returns the gathered tables, indexed by [`AssetId`](shardwright_graph::AssetId).
    pub fn assets(&self) -> &[Asset] {
        &self.shared.assets
    }

    /// Locks a shard's executor. A poisoned lock is ignored, because the chain stores no state in
    /// an executor.
    pub(crate) fn executor(&self, shard: usize) -> MutexGuard<'_, LoadedShard> {
        self.shared.executors[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn canceller(&self, shard: usize) -> Canceller {
        self.shared.cancellers[shard].clone()
    }

    pub(crate) fn process(&self, shard: usize) -> ProcessPlacement {
        self.shared.processes[shard]
    }

    /// Returns the schedules of a kind, fewest rows first.
    pub(crate) fn schedules(&self, kind: EntryKind) -> impl DoubleEndedIterator<Item = usize> + Clone + '_ {
        let schedules = &self.layout().schedules;
        (0..schedules.len()).filter(move |&index| schedules[index].point.kind == kind)
    }

    /// Returns the schedule for the next step over `rows` rows: the largest schedule that is
    /// completely filled, otherwise the smallest.
    pub(crate) fn choose(&self, kind: EntryKind, rows: u64) -> Option<usize> {
        let of = |index: &usize| self.layout().schedules[*index].point.rows;
        let mut schedules = self.schedules(kind);
        schedules.clone().rev().find(|index| of(index) <= rows).or_else(|| schedules.next())
    }
}
