//! The files that a packed bundle lies in: one, or several volumes, each with some of its parts.

use std::fs;
use std::path::{Path, PathBuf};

use shardwright_files::{Links, Section};
use shardwright_trust::Trust;

use super::embedded;
use super::read::Packed;
use super::signed;
use crate::{BundleError, Digest, file};

/// Most volumes of a bundle that are looked for: four gigabytes need three of the largest that
/// Google Play takes.
const VOLUMES: usize = 100;

/// Name of a volume in a folder of them; `number` counts from one.
pub fn volume_name(number: usize) -> String {
    format!("volume-{number}.swb")
}

/// A packed bundle that is opened.
#[derive(Debug)]
pub(crate) struct Volumes {
    /// The one with the manifest, then the others.
    volumes: Vec<Packed>,
    manifest: Section,
}

impl Volumes {
    /// In whatever order they are named, once the signature is as the rules ask. The one with the
    /// manifest has it.
    pub(crate) fn open(sections: Vec<Section>, trust: &Trust) -> Result<Volumes, BundleError> {
        if let Some(section) = sections.iter().find(|section| signed::is_signed(section)).or(sections.first())
        {
            signed::expect(section, trust)?;
        }
        let fault = |path: &Path, reason: &str| BundleError::Packed {
            path: path.to_owned(),
            offset: 0,
            reason: reason.to_owned(),
        };
        let mut volumes = sections.into_iter().map(Packed::open).collect::<Result<Vec<Packed>, _>>()?;
        let Some(at) = volumes.iter().position(|volume| volume.manifest().is_some()) else {
            let named = volumes.first().map_or(Path::new(""), |volume| volume.section().path());
            return Err(match volumes.len() {
                0 => fault(named, "no volume was named"),
                1 => fault(named, "it has no manifest: it is a further volume of a bundle"),
                _ => fault(named, "no volume has the manifest"),
            });
        };
        volumes.swap(0, at);
        if let Some(second) = volumes.iter().skip(1).find(|volume| volume.manifest().is_some()) {
            return Err(fault(second.section().path(), "it has a manifest too: these are several bundles"));
        }
        let manifest = volumes.first().and_then(|volume| volume.manifest().cloned());
        let manifest = manifest.ok_or_else(|| fault(Path::new(""), "no volume was named"))?;
        Ok(Volumes { volumes, manifest })
    }

    /// The volumes of a folder, from the first on; `None` if there is none.
    pub(crate) fn in_folder(folder: &Path, trust: &Trust) -> Result<Option<Volumes>, BundleError> {
        let paths = (1..=VOLUMES).map(|number| folder.join(volume_name(number)));
        let sections = paths.take_while(|path| path.exists()).map(|path| section(&path));
        let sections = sections.collect::<Result<Vec<Section>, BundleError>>()?;
        if sections.is_empty() { Ok(None) } else { Volumes::open(sections, trust).map(Some) }
    }

    /// Path of the one with the manifest.
    pub(crate) fn path(&self) -> &Path {
        self.volumes.first().map_or(Path::new(""), |volume| volume.section().path())
    }

    /// The bytes of the signature, if there is one.
    pub(crate) fn signature(&self) -> Result<Option<Vec<u8>>, BundleError> {
        self.volumes.first().map_or(Ok(None), Packed::signature)
    }

    pub(crate) fn manifest(&self) -> &Section {
        &self.manifest
    }

    pub(crate) fn file(&self, sha256: Digest) -> Option<&Section> {
        self.volumes.iter().find_map(|volume| volume.file(sha256))
    }

    /// Hashes of its files.
    pub(crate) fn files(&self) -> impl Iterator<Item = (Digest, u64)> {
        self.volumes.iter().flat_map(Packed::files)
    }

    /// Path of a file of it, for messages.
    pub(crate) fn path_of(&self, sha256: Digest) -> PathBuf {
        crate::layout::Layout::of(self.path()).file(sha256)
    }

    pub(crate) fn check_padding(&self) -> Result<(), BundleError> {
        self.volumes.iter().try_for_each(Packed::check_padding)
    }
}

/// The bytes of a file, or of an uncompressed entry `archive!/entry`.
pub(crate) fn section(path: &Path) -> Result<Section, BundleError> {
    if let Some((archive, entry)) = embedded::split(path).filter(|_| fs::metadata(path).is_err()) {
        return embedded::entry(&archive, &entry);
    }
    let opened = shardwright_files::open(path, Links::Followed);
    let (file, _) = opened.map_err(|error| file::open_error(path, error))?;
    Section::whole(path, file).map_err(BundleError::io(path))
}
