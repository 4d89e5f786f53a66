//! Memory that a chain needs, computed before any of it is loaded.

use std::fmt;

use shardwright_bundle::{ChainEntry, FileReference, Model as ModelEntry};
use shardwright_runtime::MemoryBudget;
use shardwright_vocabulary::StateFormat;

use crate::{Error, ErrorKind};

/// Memory that a chain of a bundle needs with one session, computed from the manifest. It includes
/// the same items as a plan. Buffers between shards are known only after loading, and memory that a
/// driver allocates for itself is never known.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct MemoryEstimate {
    /// Bytes of artefacts.
    pub artefacts: u64,
    /// Bytes of the states of a session.
    pub states: u64,
    /// Bytes of the copy of the logits.
    pub logits: u64,
    /// Bytes of gathered tables. They are mapped, and not counted.
    pub tables: u64,
}

impl MemoryEstimate {
    pub(super) fn of(model: ModelEntry<'_>, entry: &ChainEntry) -> MemoryEstimate {
        let mut files: Vec<FileReference> = entry.shards.iter().map(|shard| shard.artefact).collect();
        files.sort();
        files.dedup();
        let structure = model.structure;
        MemoryEstimate {
            artefacts: sum(files.iter().map(|file| file.bytes)),
            states: states(model, entry),
            logits: if structure.is_generative() { structure.vocabulary.saturating_mul(4) } else { 0 },
            tables: sum(tables(model).map(|file| file.bytes)),
        }
    }

    /// Returns the bytes that count towards a budget.
    pub(super) fn bytes(&self) -> u64 {
        sum([self.artefacts, self.states, self.logits])
    }

    /// Returns the error of a chain that does not fit.
    pub(super) fn exceeds(&self, budget: &MemoryBudget) -> Error {
        let used = match budget.used() {
            0 => String::new(),
            used => format!(", of which {used} are in use"),
        };
        let limit = budget.limit().unwrap_or(u64::MAX);
        let what = format!("it needs {self}; the memory budget is {limit} bytes{used}");
        Error::new(ErrorKind::Memory, what).with_help(
            "raise the budget, or compile the checkpoint with a shorter `--context`, narrower `--formats` or \
             a bound on `--memory`",
        )
    }
}

impl fmt::Display for MemoryEstimate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MemoryEstimate { artefacts, states, logits, tables } = self;
        write!(f, "{} bytes of memory (artefacts {artefacts}", self.bytes())?;
        for (name, bytes) in [("KV cache", states), ("logits", logits)] {
            if *bytes > 0 {
                write!(f, ", {name} {bytes}")?;
            }
        }
        match tables {
            0 => f.write_str(")"),
            tables => write!(f, "; tables of {tables} bytes are mapped and not counted)"),
        }
    }
}

/// Returns the files of the gathered tables.
pub(super) fn tables(model: ModelEntry<'_>) -> impl Iterator<Item = FileReference> {
    let files = model.assets.iter().flat_map(|asset| {
        let scales = asset.quantisation.as_ref().map(|quantisation| quantisation.scales);
        std::iter::once(asset.table).chain(scales)
    });
    let mut files: Vec<FileReference> = files.collect();
    files.sort();
    files.dedup();
    files.into_iter()
}

/// Returns the bytes of the states, in the formats of the shards that contain their layers.
fn states(model: ModelEntry<'_>, entry: &ChainEntry) -> u64 {
    let entries = || entry.shards.iter().flat_map(|shard| &shard.entries);
    let context = entries().map(|entry| u64::from(entry.context)).max().unwrap_or(0);
    let rows = entries().map(|entry| u64::from(entry.rows)).max().unwrap_or(0);
    let bytes_of = |layer: u32| {
        let holds = |shard: &&shardwright_bundle::ShardEntry| {
            let (first, end) = shard.segments.layers();
            (first..end).contains(&layer)
        };
        let shard = entry.shards.iter().find(holds);
        match shard.and_then(|shard| shard.formats.tuples().next()).map(|formats| formats.states) {
            Some(StateFormat::A8) => 1,
            Some(StateFormat::F16 | StateFormat::A16) => 2,
            Some(StateFormat::F32) | None => 4,
        }
    };
    let states = model.structure.states.iter();
    sum(states.map(|state| {
        state.capacity(context, rows).saturating_mul(state.width).saturating_mul(bytes_of(state.layer))
    }))
}

fn sum(bytes: impl IntoIterator<Item = u64>) -> u64 {
    bytes.into_iter().fold(0, u64::saturating_add)
}
