//! Identifies a path by its first bytes. Files are not parsed, not even a manifest.

use std::fmt;
use std::fs;
use std::io;
use std::path::Path;

use serde::{Deserialize, Serialize};
use shardwright_vocabulary::Result;

use crate::error::io_at;
use crate::layout::{FILES, Layout, MANIFEST};
use crate::packed::{embedded, volume_name};
use crate::store::ARCHIVE_MAGIC;
use crate::{envelope, file};

/// Types of files and directories that this project uses.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A directory with a bundle (even if its manifest is missing), its manifest, a packed bundle,
    /// or volumes of one.
    Bundle,
    /// A directory with an unfinished bundle.
    UnfinishedBundle,
    /// The output of a shim's compiler.
    Artefact,
    /// The input of a shim's compiler.
    WorkOrder,
    /// A compiled and signed planner.
    PlannerPack,
    /// An unpacked planner: a WebAssembly component or module.
    Planner,
    /// A directory with a published model, or a GGUF file.
    Checkpoint,
    Unknown,
}

impl Kind {
    /// Returns the kebab-case name, as in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Kind::Bundle => "bundle",
            Kind::UnfinishedBundle => "unfinished-bundle",
            Kind::Artefact => "artefact",
            Kind::WorkOrder => "work-order",
            Kind::PlannerPack => "planner-pack",
            Kind::Planner => "planner",
            Kind::Checkpoint => "checkpoint",
            Kind::Unknown => "unknown",
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The first bytes of each file type, as defined in its own crate.
const MAGICS: &[(&[u8], Kind)] = &[
    (envelope::MAGIC, Kind::Bundle),
    (b"SWARTEF\0", Kind::Artefact),
    (b"SWORDER\0", Kind::WorkOrder),
    (b"SWPACK\0", Kind::PlannerPack),
    (b"\0asm", Kind::Planner),
    (b"GGUF", Kind::Checkpoint),
];

/// Offset of the first entry's name in a packed bundle.
const PACKED_NAME_AT: usize = 30;

/// Number of digits of the first file's hash that identify a further volume.
const HASH_SHOWN: usize = 16;

/// Length of the longest prefix.
const LONGEST: u64 = 64;

/// Identifies `path`. Links are followed, since the path comes from the user. Pipes and devices are
/// unknown and not opened.
///
/// # Errors
///
/// If the path does not exist or is not accessible.
pub fn identify(path: impl AsRef<Path>) -> Result<Kind> {
    let path = path.as_ref();
    if let Some((archive, entry)) = embedded::split(path).filter(|_| !path.exists()) {
        let section = embedded::entry(&archive, &entry)?;
        let mut begin = vec![0; LONGEST.min(section.length()) as usize];
        section.read_exact_at(&mut begin, 0).map_err(io_at(section.path()))?;
        return Ok(known(&begin));
    }
    let path = &path.canonicalize().map_err(io_at(path))?;
    let metadata = fs::metadata(path).map_err(io_at(path))?;
    if metadata.is_dir() {
        return Ok(identify_directory(path));
    }
    if !metadata.is_file() {
        return Ok(Kind::Unknown);
    }
    let begin = file::begin_of(path, LONGEST)?;
    Ok(known(&begin))
}

/// Returns the type with this beginning.
fn known(begin: &[u8]) -> Kind {
    // A further volume has no manifest. Opening it reports that.
    let is_ours = |name: &[u8]| {
        let is_file = name.strip_prefix(FILES.as_bytes()).and_then(|rest| rest.strip_prefix(b"/"));
        name.starts_with(MANIFEST.as_bytes())
            || is_file.is_some_and(|hash| hash.len() >= HASH_SHOWN)
                && is_file.is_some_and(|hash| hash.iter().take(HASH_SHOWN).all(u8::is_ascii_hexdigit))
    };
    let is_packed = begin.starts_with(ARCHIVE_MAGIC) && begin.get(PACKED_NAME_AT..).is_some_and(is_ours);
    let known = MAGICS.iter().find(|(magic, _)| begin.starts_with(magic));
    if is_packed { Kind::Bundle } else { known.map_or(Kind::Unknown, |(_, kind)| *kind) }
}

fn identify_directory(directory: &Path) -> Kind {
    let layout = Layout::of(directory);
    let exists = |path: &Path| fs::symlink_metadata(path).is_ok();
    if exists(&layout.manifest()) {
        let ours =
            file::begin_of(&layout.manifest(), LONGEST).is_ok_and(|begin| begin.starts_with(envelope::MAGIC));
        return if ours { Kind::Bundle } else { Kind::Unknown };
    }
    if file::begin_of_foreign(&directory.join(volume_name(1)), LONGEST)
        .is_ok_and(|begin| known(&begin) == Kind::Bundle)
    {
        return Kind::Bundle;
    }
    if exists(&layout.journal()) {
        return Kind::UnfinishedBundle;
    }
    if layout.has_files() {
        return Kind::Bundle;
    }
    let holds = |extension| holds_weights(directory, extension).unwrap_or(false);
    // A GGUF file includes the configuration.
    if holds("gguf") || (directory.join("config.json").is_file() && holds("safetensors")) {
        return Kind::Checkpoint;
    }
    Kind::Unknown
}

/// Returns whether one of the first files has the given extension of weights.
fn holds_weights(directory: &Path, wanted: &str) -> io::Result<bool> {
    const LOOKED_AT: usize = 4096;
    for entry in fs::read_dir(directory)?.take(LOOKED_AT) {
        if Path::new(&entry?.file_name()).extension().is_some_and(|extension| extension == wanted) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Returns whether `path` is a bundle, possibly unfinished or damaged. Opening it as a bundle
/// reports the problem.
pub fn is_bundle(path: impl AsRef<Path>) -> bool {
    let path = path.as_ref();
    let recognised = matches!(identify(path), Ok(Kind::Bundle | Kind::UnfinishedBundle));
    recognised || Layout::of(path).manifest().is_file()
}
