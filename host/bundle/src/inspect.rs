//! The output of `shardwright inspect DIR` for a bundle, and its JSON form.

use std::path::{Path, PathBuf};

use serde::Serialize;
use shardwright_trust::Trust;
use shardwright_vocabulary::Result;

use crate::bundle::{TINY_FILE_BYTES, uses_of};
use crate::signed::SignatureReport;
use crate::store::{Checked, Store};
use crate::{Digest, FORMAT_VERSION, FileProgress, FileReference, Manifest, Stray};

/// The level of file checks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Examine {
    /// The checks of opening: all files exist with the right length, and files up to
    /// [`TINY_FILE_BYTES`] have the right content.
    #[default]
    Presence,
    /// Checks every byte.
    Content,
}

/// A bundle on disk, possibly damaged.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct BundleInspection {
    /// Its directory or file.
    pub path: PathBuf,
    /// Whether the bundle is one file.
    pub packed: bool,
    /// Version of the format.
    pub format: u32,
    /// The hash in the manifest, which covers the hash of every file.
    pub sha256: Digest,
    /// Bytes of all files, each content counted once.
    pub total_bytes: u64,
    /// Whether every file was compared with the manifest byte by byte. A file of the right length
    /// may still have other bytes.
    pub verified: bool,
    /// Whether every byte matches the manifest. `None` if no damage was found, but not every byte
    /// was compared.
    pub intact: Option<bool>,
    /// The signature, if there is one.
    pub signature: Option<SignatureReport>,
    /// Every file, in the order of their hashes.
    pub files: Vec<InspectedFile>,
    /// Files in the directory that are not part of the bundle.
    pub unreferenced: Vec<Stray>,
    pub manifest: Manifest,
}

/// One file of a bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct InspectedFile {
    /// Hash and length of the file.
    #[serde(flatten)]
    pub file: FileReference,
    /// The fields of the manifest that name the file.
    pub used_as: Vec<String>,
    #[serde(flatten)]
    pub state: FileState,
}

/// State of a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case", tag = "state")]
pub enum FileState {
    /// The file exists with the right length. It is not hashed.
    Present,
    /// The file exists and its hash is right.
    Verified,
    /// The file is missing or changed.
    Damaged {
        reason: String,
        /// The next step for the user.
        help: Option<String>,
    },
}

/// Inspects a bundle in a directory or packed file, and checks its signature by the rules of
/// `trust`. Damaged files are part of the result, not an error. `progress` is called before each
/// file is checked.
///
/// # Errors
///
/// If the manifest cannot be read, or the signature does not comply with the rules.
pub fn inspect(
    path: impl AsRef<Path>,
    examine: Examine,
    trust: &Trust,
    mut progress: impl FnMut(FileProgress),
) -> Result<BundleInspection> {
    let store = Store::open(path.as_ref(), trust)?;
    let Checked { manifest, sha256, signature, .. } = store.read_manifest(trust)?;
    let signature = match signature {
        Some(signature) => Some(SignatureReport::of(&store, &signature)?),
        None => None,
    };
    let uses = uses_of(&manifest);
    let total = uses.keys().map(|reference| reference.bytes).fold(0, u64::saturating_add);
    let mut files = Vec::with_capacity(uses.len());
    let mut done = 0;
    for (file, used_as) in uses {
        progress(FileProgress { file, done, total });
        let content = examine == Examine::Content || file.bytes <= TINY_FILE_BYTES;
        let state = match store.file(file, &used_as, content) {
            Ok(_) if content => FileState::Verified,
            Ok(_) => FileState::Present,
            Err(error) => {
                FileState::Damaged { reason: error.to_string(), help: error.help().map(str::to_owned) }
            }
        };
        done += file.bytes;
        files.push(InspectedFile { file, used_as, state });
    }
    let verified = !files.iter().any(|file| file.state == FileState::Present);
    let is_damaged = files.iter().any(|file| matches!(file.state, FileState::Damaged { .. }));
    Ok(BundleInspection {
        path: store.path().to_owned(),
        packed: matches!(store, Store::Packed(_)),
        format: FORMAT_VERSION,
        sha256,
        total_bytes: total,
        signature,
        verified,
        intact: if is_damaged { Some(false) } else { verified.then_some(true) },
        files,
        // If the folder cannot be listed, every file was already reported.
        unreferenced: store.unreferenced(&manifest).unwrap_or_default(),
        manifest,
    })
}
