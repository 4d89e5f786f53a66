//! Selects variants of a bundle as a separate bundle, and distributes its files among volumes.

use std::ops::ControlFlow;
use std::path::Path;

use shardwright_trust::{Envelope, Kind, SecretKey, Statement};
use shardwright_vocabulary::Result;

use crate::bundle::uses_of;
use crate::error::no_variant;
use crate::layout::{Layout, MANIFEST, SIGNATURE};
use crate::packed::write::{Content, pack_content};
use crate::packed::{PackReport, packed_bytes};
use crate::signer::Signer;
use crate::{Bundle, Digest, FileProgress, FileReference, Manifest, manifest};

/// Packs a bundle, with its signature, into the file `to`, and verifies every byte. Equal bundles
/// give equal files. The file is created atomically. A killed process leaves `<to>.partial`, which
/// the next call for `to` replaces. `progress` is called repeatedly and may stop it.
///
/// # Errors
///
/// An error of the kind [`Cancelled`] if `progress` stopped it.
///
/// [`Cancelled`]: shardwright_vocabulary::ErrorKind::Cancelled
pub fn pack(
    bundle: &Bundle,
    to: &Path,
    progress: impl FnMut(FileProgress) -> ControlFlow<()>,
) -> Result<PackReport> {
    if let Some(signature) = bundle.signature().filter(|_| bundle.signer().is_none()) {
        Envelope::parse(bundle.path(), signature)?;
    }
    let share = Share::whole(bundle)?;
    share.pack(&share.volume(), to, progress)
}

/// Some variants of a bundle, as a bundle that can be packed. It has fewer files and its own
/// manifest. Equal bundles and equal variants give equal bytes.
#[derive(Clone, Debug)]
pub struct Share {
    bundle: Bundle,
    manifest: Manifest,
    /// The bytes of `bundle.json`.
    pub(crate) bytes: Vec<u8>,
    sha256: Digest,
    /// Signature of the manifest's bytes.
    signature: Option<Vec<u8>>,
    /// Each content once, in the order of their hashes.
    files: Vec<FileReference>,
}

/// Files of a share that are packed together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Volume {
    /// Whether the manifest is included, as in the first volume.
    pub has_manifest: bool,
    /// The other files, in the order of their hashes.
    pub files: Vec<FileReference>,
    /// Size of the packed file in bytes.
    pub bytes: u64,
}

impl Bundle {
    /// Selects variants by any name of their chips.
    ///
    /// # Errors
    ///
    /// If there is no such variant, or no chip is given.
    pub fn share(&self, socs: &[&str]) -> Result<Share> {
        let there = self.manifest().variants.iter();
        let wanted = there.filter(|variant| socs.iter().any(|soc| variant.is_for(soc)));
        let variants: Vec<_> = wanted.cloned().collect();
        let is_there = |soc: &&&str| !variants.iter().any(|variant| variant.is_for(soc));
        if variants.is_empty() || socs.iter().any(|soc| is_there(&soc)) {
            let missing = socs.iter().find(is_there).copied();
            return Err(no_variant(self.path(), missing, self.manifest()));
        }
        Share::of(self, Manifest { variants, ..self.manifest().clone() })
    }
}

impl Share {
    /// Selects the whole bundle.
    pub(crate) fn whole(bundle: &Bundle) -> Result<Share> {
        let share = Share::of(bundle, bundle.manifest().clone())?;
        let own = || bundle.signature().map(<[u8]>::to_vec);
        Ok(Share { signature: share.signature.or_else(own), ..share })
    }

    /// Signs the share as release `release` of `name`.
    ///
    /// # Errors
    ///
    /// If the name is invalid.
    pub fn signed(self, (name, release): (&str, u64), key: &SecretKey) -> Result<Share> {
        let statement = Statement::of(Kind::Bundle, name, release, &self.bytes)?;
        let signature = Some(Envelope::sign(&statement, key).to_bytes().to_vec());
        Ok(Share { signature, ..self })
    }

    fn of(bundle: &Bundle, manifest: Manifest) -> Result<Share> {
        let (bytes, sha256) = manifest::canonical(bundle.path(), &manifest)?;
        let files = uses_of(&manifest).into_keys().collect();
        let share = Share { bundle: bundle.clone(), manifest, bytes, sha256, signature: None, files };
        match bundle.signer() {
            Some(Signer { name, release, key }) => share.signed((name, *release), key),
            None => Ok(share),
        }
    }

    pub fn manifest(&self) -> &Manifest {
        &self.manifest
    }

    /// Returns the identity of the share.
    pub fn sha256(&self) -> Digest {
        self.sha256
    }

    /// Returns all files except the manifest, each content once, in the order of their hashes.
    pub fn files(&self) -> &[FileReference] {
        &self.files
    }

    /// Returns a single volume with everything.
    pub fn volume(&self) -> Volume {
        let files = self.files.clone();
        Volume { has_manifest: true, bytes: self.packed_bytes(true, &files), files }
    }

    /// Distributes the files among volumes of at most `limit` bytes, large files first. The result
    /// is the same for the same files.
    ///
    /// # Errors
    ///
    /// The file, or the manifest, that is too large for any volume. A file is never split, since it
    /// is mapped directly.
    pub fn volumes(&self, limit: u64) -> Result<Vec<Volume>, FileReference> {
        let manifest = FileReference { sha256: self.sha256, bytes: self.bytes.len() as u64 };
        let mut volumes = vec![Volume { has_manifest: true, files: Vec::new(), bytes: 0 }];
        if self.packed_bytes(true, &[]) > limit {
            return Err(manifest);
        }
        let mut largest_first = self.files.clone();
        largest_first.sort_by_key(|file| (u64::MAX - file.bytes, file.sha256));
        for file in largest_first {
            if self.packed_bytes(false, &[file]) > limit {
                return Err(file);
            }
            let with = |volume: &Volume| {
                let mut files = volume.files.clone();
                files.push(file);
                files.sort();
                files
            };
            let fits = volumes
                .iter()
                .position(|volume| self.packed_bytes(volume.has_manifest, &with(volume)) <= limit);
            match fits.and_then(|at| volumes.get_mut(at)) {
                Some(volume) => volume.files = with(volume),
                None => volumes.push(Volume { has_manifest: false, files: vec![file], bytes: 0 }),
            }
        }
        for volume in &mut volumes {
            volume.bytes = self.packed_bytes(volume.has_manifest, &volume.files);
        }
        Ok(volumes)
    }

    /// Packs a volume into the file `to`, like [`pack`](crate::pack) for a whole bundle.
    ///
    /// # Errors
    ///
    /// An error of the kind [`Cancelled`] if `progress` stopped it.
    ///
    /// [`Cancelled`]: shardwright_vocabulary::ErrorKind::Cancelled
    pub fn pack(
        &self,
        volume: &Volume,
        to: &Path,
        progress: impl FnMut(FileProgress) -> ControlFlow<()>,
    ) -> Result<PackReport> {
        let content = Content {
            bundle: &self.bundle,
            signature: self.signature.as_deref().filter(|_| volume.has_manifest),
            manifest: volume.has_manifest.then_some(&self.bytes),
            files: &volume.files,
            identity: self.sha256,
        };
        pack_content(content, to, progress)
    }

    /// Returns the size of a packed file, or `u64::MAX` if the lengths overflow.
    fn packed_bytes(&self, has_manifest: bool, files: &[FileReference]) -> u64 {
        let signature = self.signature.as_ref().map(|bytes| (SIGNATURE.to_owned(), bytes.len() as u64));
        let manifest = (MANIFEST.to_owned(), self.bytes.len() as u64);
        let first = signature.into_iter().chain([manifest]).filter(|_| has_manifest);
        let files = files.iter().map(|file| (Layout::name_of(file.sha256), file.bytes));
        packed_bytes(first.chain(files)).unwrap_or(u64::MAX)
    }
}
