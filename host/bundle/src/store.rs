//! Storage of a bundle's files: a directory, one file, or several volumes.

use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use shardwright_files::Section;
use shardwright_trust::{ENVELOPE_BYTES, Kind, Statement, Trust};
use shardwright_vocabulary::{Error, Result};

use crate::bundle::Stray;
use crate::error::{damaged, io_at, other_kind, printable};
use crate::layout::Layout;
use crate::manifest::{FileReference, MANIFEST_BYTES, Manifest};
use crate::packed::{self, Volumes, embedded};
use crate::{Digest, file, manifest};

/// First bytes of a packed bundle, as of any ZIP archive.
pub(crate) const ARCHIVE_MAGIC: &[u8] = b"PK\x03\x04";

/// The storage of a bundle, possibly empty.
#[derive(Debug)]
pub(crate) enum Store {
    Directory(Layout),
    Packed(Box<Volumes>),
}

/// A checked manifest with its signature.
pub(crate) struct Checked {
    pub(crate) manifest: Manifest,
    pub(crate) sha256: Digest,
    /// Not trusted unless there is a statement.
    pub(crate) signature: Option<Vec<u8>>,
    pub(crate) signed: Option<Statement>,
}

impl Store {
    /// Opens a directory, a packed bundle, a folder of volumes, or `archive!/entry`, a packed
    /// bundle stored uncompressed in a ZIP archive.
    pub(crate) fn open(path: &Path, trust: &Trust) -> Result<Store> {
        let is_file = fs::metadata(path).is_ok_and(|metadata| !metadata.is_dir());
        if is_file || embedded::split(path).is_some_and(|_| !path.exists()) {
            return Store::packed(vec![packed::section(path)?], trust);
        }
        let layout = Layout::of(path);
        if fs::symlink_metadata(layout.manifest()).is_err()
            && let Some(volumes) = Volumes::in_folder(path, trust)?
        {
            return Ok(Store::Packed(Box::new(volumes)));
        }
        Ok(Store::Directory(layout))
    }

    /// Opens a packed bundle within a file, or its volumes within several files.
    pub(crate) fn packed(sections: Vec<Section>, trust: &Trust) -> Result<Store> {
        for section in &sections {
            let mut begin = [0; ARCHIVE_MAGIC.len()];
            let is_archive = section.read_exact_at(&mut begin, 0).is_ok() && begin == ARCHIVE_MAGIC;
            if !is_archive {
                let expected = "the directory of a bundle, or a packed bundle";
                return Err(other_kind(section.path(), expected, "another file"));
            }
        }
        Ok(Store::Packed(Box::new(Volumes::open(sections, trust)?)))
    }

    /// Returns the path of the whole bundle, for messages.
    pub(crate) fn path(&self) -> &Path {
        match self {
            Store::Directory(layout) => &layout.directory,
            Store::Packed(packed) => packed.path(),
        }
    }

    /// Returns the path of the manifest, for messages.
    pub(crate) fn manifest_path(&self) -> PathBuf {
        Layout::of(self.path()).manifest()
    }

    /// Returns the bytes of the manifest.
    pub(crate) fn manifest(&self) -> Result<Section> {
        let layout = match self {
            Store::Packed(packed) => return Ok(packed.manifest().clone()),
            Store::Directory(layout) => layout,
        };
        let path = layout.manifest();
        match file::open(&path) {
            Ok((opened, _)) => Section::whole(&path, opened).map_err(io_at(&path)),
            Err(error) if error.is_not_found() => {
                // Report a missing directory differently from a directory without a bundle.
                fs::metadata(&layout.directory).map_err(io_at(&layout.directory))?;
                let (problem, help) = if fs::symlink_metadata(layout.journal()).is_ok() {
                    ("not finished", "run the same `shardwright compile` again: it resumes where it stopped")
                } else if layout.has_files() {
                    ("incomplete copy of a bundle", "copy the whole bundle again from its source")
                } else {
                    ("not a bundle", "`shardwright compile <checkpoint> -o DIR` makes a bundle")
                };
                Err(Error::missing(format!("{problem}: `bundle.json` is missing"))
                    .at(layout.directory.display())
                    .with_help(help))
            }
            Err(error) => Err(error),
        }
    }

    /// Reads and checks the manifest, after checking the signature by the rules of `trust`.
    pub(crate) fn read_manifest(&self, trust: &Trust) -> Result<Checked> {
        let section = self.manifest()?;
        let bytes = file::read_capped(section.path(), section.reader(), MANIFEST_BYTES)?;
        let signature = self.signature()?;
        let signed = trust.expect(self.path(), Kind::Bundle, signature.as_deref(), &bytes)?;
        let (manifest, sha256) = manifest::parse(section.path(), &bytes)?;
        Ok(Checked { manifest, sha256, signature, signed })
    }

    /// Returns the bytes of the signature, if there is one.
    pub(crate) fn signature(&self) -> Result<Option<Vec<u8>>> {
        match self {
            Store::Packed(packed) => packed.signature(),
            Store::Directory(layout) => {
                // Read one byte more to detect a longer file, which is not a signature.
                match file::begin_of(&layout.signature(), ENVELOPE_BYTES as u64 + 1) {
                    Ok(bytes) => Ok(Some(bytes)),
                    Err(error) if error.is_not_found() => Ok(None),
                    Err(error) => Err(error),
                }
            }
        }
    }

    /// Returns a file of the manifest, which `used_as` names. Checks that it is a regular file with
    /// the right length, and the right hash if `content`.
    pub(crate) fn file(
        &self,
        reference: FileReference,
        used_as: &[String],
        content: bool,
    ) -> Result<Section> {
        let missing = |path: &Path| {
            let used_as = used_as.first().map_or("", String::as_str);
            damaged(format!("the file for `{used_as}` is missing")).at(path.display())
        };
        let section = match self {
            Store::Directory(layout) => {
                let path = layout.file(reference.sha256);
                // If the folder were a link, others could change its files.
                let opened = file::expect_directory(&layout.files()).and_then(|()| file::open(&path));
                let (opened, _) =
                    opened.map_err(|error| if error.is_not_found() { missing(&path) } else { error })?;
                Section::whole(&path, opened).map_err(io_at(&path))?
            }
            Store::Packed(packed) => match packed.file(reference.sha256) {
                Some(section) => section.clone(),
                None => return Err(missing(&packed.path_of(reference.sha256))),
            },
        };
        file::expect(&section, reference, content)?;
        Ok(section)
    }

    /// Lists entries that the manifest does not name.
    pub(crate) fn unreferenced(&self, manifest: &Manifest) -> Result<Vec<Stray>> {
        let kept: HashSet<Digest> =
            manifest.references().into_iter().map(|(_, reference)| reference.sha256).collect();
        let layout = match self {
            Store::Directory(layout) => layout,
            Store::Packed(packed) => {
                let others = packed.files().filter(|(sha256, _)| !kept.contains(sha256));
                let stray = |(sha256, bytes)| Stray { name: Layout::name_of(sha256), bytes, is_file: true };
                let mut found: Vec<Stray> = others.map(stray).collect();
                found.sort();
                return Ok(found);
            }
        };
        let mut found = list(&layout.directory, Layout::is_part)?;
        let inside = strays(layout, &kept)?;
        let within = |stray: Stray| Stray { name: Layout::within_files(&stray.name), ..stray };
        found.extend(inside.into_iter().map(within));
        found.sort();
        Ok(found)
    }

    /// Checks the bytes between the parts.
    pub(crate) fn check_rest(&self) -> Result<()> {
        match self {
            Store::Directory(_) => Ok(()),
            Store::Packed(packed) => packed.check_padding(),
        }
    }
}

/// Lists entries of the folder of files that are not in `kept`, sorted by name.
pub(crate) fn strays(layout: &Layout, kept: &HashSet<Digest>) -> Result<Vec<Stray>> {
    list(&layout.files(), |name| name.parse().is_ok_and(|sha256| kept.contains(&sha256)))
}

fn list(directory: &Path, is_kept: impl Fn(&str) -> bool) -> Result<Vec<Stray>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(directory).map_err(io_at(directory))? {
        let entry = entry.map_err(io_at(directory))?;
        let name = entry.file_name();
        if name.to_str().is_some_and(&is_kept) {
            continue;
        }
        let metadata = match entry.metadata() {
            Ok(metadata) => metadata,
            // The entry was removed meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            Err(error) => return Err(io_at(&entry.path())(error)),
        };
        let is_file = metadata.is_file();
        let name = printable(&name.to_string_lossy());
        found.push(Stray { name, bytes: if is_file { metadata.len() } else { 0 }, is_file });
    }
    found.sort();
    Ok(found)
}
