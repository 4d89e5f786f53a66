//! The files of a packed bundle: one, or several volumes with some of its parts each.

use std::fs;
use std::path::{Path, PathBuf};

use shardwright_files::{Links, Section};
use shardwright_trust::Trust;
use shardwright_vocabulary::Result;

use super::embedded;
use super::read::Packed;
use super::signed;
use crate::Digest;
use crate::error::{file_at, io_at, not_packed};

/// Maximum number of volumes to search for. Four gigabytes need three of the largest files that
/// Google Play accepts.
const VOLUMES: usize = 100;

/// Returns the name of a volume in a folder. `number` counts from one.
pub fn volume_name(number: usize) -> String {
    format!("volume-{number}.swb")
}

/// An open packed bundle.
#[derive(Debug)]
pub(crate) struct Volumes {
    /// The volume with the manifest, then the others.
    volumes: Vec<Packed>,
    manifest: Section,
}

impl Volumes {
    /// Opens volumes in any order, after checking the signature by the rules of `trust`. The volume
    /// with the manifest has the signature.
    pub(crate) fn open(sections: Vec<Section>, trust: &Trust) -> Result<Volumes> {
        if let Some(section) = sections.iter().find(|section| signed::is_signed(section)).or(sections.first())
        {
            signed::expect(section, trust)?;
        }
        let fault = |path: &Path, reason: &str| not_packed(path, 0, reason);
        let mut volumes = sections.into_iter().map(Packed::open).collect::<Result<Vec<Packed>, _>>()?;
        let Some(at) = volumes.iter().position(|volume| volume.manifest().is_some()) else {
            let named = volumes.first().map_or(Path::new(""), |volume| volume.section().path());
            return Err(match volumes.len() {
                0 => fault(named, "no volume was given"),
                1 => fault(named, "the manifest is missing: this is not the first volume of a bundle"),
                _ => fault(named, "no volume has the manifest"),
            });
        };
        volumes.swap(0, at);
        if let Some(second) = volumes.iter().skip(1).find(|volume| volume.manifest().is_some()) {
            return Err(fault(second.section().path(), "a second manifest: volumes of several bundles"));
        }
        let manifest = volumes.first().and_then(|volume| volume.manifest().cloned());
        let manifest = manifest.ok_or_else(|| fault(Path::new(""), "no volume was given"))?;
        Ok(Volumes { volumes, manifest })
    }

    /// Opens the volumes of a folder, starting with the first. Returns `None` if the first is
    /// missing.
    pub(crate) fn in_folder(folder: &Path, trust: &Trust) -> Result<Option<Volumes>> {
        let paths = (1..=VOLUMES).map(|number| folder.join(volume_name(number)));
        let sections = paths.take_while(|path| path.exists()).map(|path| section(&path));
        let sections = sections.collect::<Result<Vec<Section>>>()?;
        if sections.is_empty() { Ok(None) } else { Volumes::open(sections, trust).map(Some) }
    }

    /// Returns the path of the volume with the manifest.
    pub(crate) fn path(&self) -> &Path {
        self.volumes.first().map_or(Path::new(""), |volume| volume.section().path())
    }

    /// Returns the bytes of the signature, if there is one.
    pub(crate) fn signature(&self) -> Result<Option<Vec<u8>>> {
        self.volumes.first().map_or(Ok(None), Packed::signature)
    }

    pub(crate) fn manifest(&self) -> &Section {
        &self.manifest
    }

    pub(crate) fn file(&self, sha256: Digest) -> Option<&Section> {
        self.volumes.iter().find_map(|volume| volume.file(sha256))
    }

    /// Returns the hash and length of each file.
    pub(crate) fn files(&self) -> impl Iterator<Item = (Digest, u64)> {
        self.volumes.iter().flat_map(Packed::files)
    }

    /// Returns the path of a file, for messages.
    pub(crate) fn path_of(&self, sha256: Digest) -> PathBuf {
        crate::layout::Layout::of(self.path()).file(sha256)
    }

    pub(crate) fn check_padding(&self) -> Result<()> {
        self.volumes.iter().try_for_each(Packed::check_padding)
    }
}

/// Opens a file, or an uncompressed entry `archive!/entry`.
pub(crate) fn section(path: &Path) -> Result<Section> {
    if let Some((archive, entry)) = embedded::split(path).filter(|_| fs::metadata(path).is_err()) {
        return embedded::entry(&archive, &entry);
    }
    let opened = shardwright_files::open(path, Links::Followed);
    let (file, _) = opened.map_err(|error| file_at(path, error))?;
    Section::whole(path, file).map_err(io_at(path))
}
