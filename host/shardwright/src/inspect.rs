//! What a file or directory of ours is, and what it says of itself.

use std::path::Path;

use serde::Serialize;
use shardwright_build::bundle::{Examine, Inspection, Kind, Progress, identify, inspect as inspect_bundle};
use shardwright_build::graph::target::Flag;
use shardwright_build::shims::{Artefact, ArtefactHead, WorkOrder};

use crate::{Error, ErrorKind, Result, ShowReport};

/// What makes a directory one that wants to be a bundle.
const MANIFEST_FILE: &str = "bundle.json";

/// A file or directory that was recognised.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "kebab-case", tag = "kind")]
#[expect(clippy::large_enum_variant, reason = "made once per call")]
pub enum Inspected {
    /// A bundle, damaged or not.
    Bundle(Inspection),
    /// What a shim's compile gave; its hash was checked.
    Artefact(ArtefactReport),
    /// What a shim's compile was given; its hash was checked.
    WorkOrder(WorkOrderReport),
    /// A checkpoint.
    Checkpoint(ShowReport),
}

/// An artefact's own words.
#[derive(Clone, Debug, Serialize)]
pub struct ArtefactReport {
    /// SHA-256 of its content.
    pub sha256: String,
    /// Who made it, for what, with which interface and flags.
    #[serde(flatten)]
    pub head: ArtefactHead,
}

/// A work order's own words.
#[derive(Clone, Debug, Serialize)]
pub struct WorkOrderReport {
    /// SHA-256 of its content.
    pub sha256: String,
    /// Its entry points.
    pub entries: Vec<WorkOrderEntry>,
    /// Number of weights.
    pub weights: usize,
    /// Bytes of weights, without scales.
    pub weight_bytes: u64,
    /// Flags for the vendor's compiler.
    pub flags: Vec<Flag>,
}

/// One entry point of a work order.
#[derive(Clone, Debug, Serialize)]
pub struct WorkOrderEntry {
    /// `decode_1@512`
    pub name: String,
    /// Which component.
    pub component: String,
    /// First layer and one past the last.
    pub layers: (u32, u32),
    /// Operations.
    pub operations: usize,
}

/// Looks at a file or directory. With `content`, every byte of a bundle is proved; `progress` hears of each file.
pub fn inspect(path: impl AsRef<Path>, content: bool, progress: impl FnMut(Progress)) -> Result<Inspected> {
    let path = bundle_folder(path.as_ref());
    let examine = if content { Examine::Content } else { Examine::Presence };
    match identify(path)? {
        Kind::Bundle => Ok(Inspected::Bundle(inspect_bundle(path, examine, progress)?)),
        Kind::Artefact => {
            let artefact =
                Artefact::open(path).map_err(|error| invalid(error.help().map(str::to_owned), error))?;
            Ok(Inspected::Artefact(ArtefactReport { sha256: artefact.name(), head: artefact.head().clone() }))
        }
        Kind::WorkOrder => {
            let order =
                WorkOrder::open(path).map_err(|error| invalid(error.help().map(str::to_owned), error))?;
            let head = order.head();
            let entries = head.entries.iter().map(|entry| WorkOrderEntry {
                name: entry.point.name(),
                component: entry.component.to_string(),
                layers: entry.layers,
                operations: entry.nodes.len(),
            });
            Ok(Inspected::WorkOrder(WorkOrderReport {
                sha256: order.name(),
                entries: entries.collect(),
                weights: head.weights.len(),
                weight_bytes: head.weights.iter().map(|weight| weight.length).sum(),
                flags: head.flags.clone(),
            }))
        }
        Kind::Checkpoint => Ok(Inspected::Checkpoint(crate::show(path)?)),
        kind @ (Kind::Planner | Kind::PlannerPack) => {
            Err(Error::new(ErrorKind::Unsupported, format!("{}: a {kind}", path.display()))
                .with_help("`shardwright planner check` shows what a planner says of itself"))
        }
        Kind::UnfinishedBundle => {
            Err(Error::new(ErrorKind::Invalid, format!("{}: a bundle that was not finished", path.display()))
                .with_help("run the same `shardwright compile` again: it goes on where it stopped"))
        }
        Kind::Unknown => {
            Err(Error::new(ErrorKind::Unsupported, format!("{}: nothing this program knows", path.display()))
                .with_help("bundles, artefacts, work orders and checkpoints can be inspected"))
        }
    }
}

/// Whether `path` is a bundle, or wants to be one: whoever opens that as a bundle is told what is wrong with it.
pub fn is_bundle(path: impl AsRef<Path>) -> bool {
    let path = path.as_ref();
    let recognised = matches!(identify(path), Ok(Kind::Bundle | Kind::UnfinishedBundle));
    recognised || path.join(MANIFEST_FILE).is_file()
}

/// The folder of a bundle that was named by its manifest.
fn bundle_folder(path: &Path) -> &Path {
    match path.file_name().filter(|name| *name == MANIFEST_FILE).and(path.parent()) {
        Some(folder) if path.is_file() && folder.as_os_str().is_empty() => Path::new("."),
        Some(folder) if path.is_file() => folder,
        _ => path,
    }
}

fn invalid(help: Option<String>, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::from_room(ErrorKind::Invalid, error, help)
}
