//! Signs a bundle, and reports on signatures.

use std::fs;
use std::io::{self, Write};
use std::ops::ControlFlow;
use std::path::Path;

use serde::Serialize;
use shardwright_trust::{Envelope, Kind, PublicKey, SecretKey, Statement};
use shardwright_vocabulary::Result;

use crate::error::{io_at, other_kind};
use crate::layout::Layout;
use crate::store::Store;
use crate::writer::{sync_directory, temporary};
use crate::{Bundle, FileProgress, Share, file, manifest};

/// A signature, and whether it belongs to this bundle.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SignatureReport {
    /// The key that the signature names.
    pub key: PublicKey,
    #[serde(flatten)]
    pub statement: Statement,
    /// Whether that key signed exactly this bundle. The host decides whether the key is trusted.
    pub holds: bool,
}

impl SignatureReport {
    pub(crate) fn of(store: &Store, signature: &[u8]) -> Result<SignatureReport> {
        let envelope = Envelope::parse(store.path(), signature)?;
        let section = store.manifest()?;
        let bytes = file::read_capped(section.path(), section.reader(), manifest::MANIFEST_BYTES)?;
        let statement = envelope.statement().clone();
        let holds = envelope.is_signed() && statement.kind == Kind::Bundle && statement.is_about(&bytes);
        Ok(SignatureReport { key: envelope.key(), statement, holds })
    }
}

/// Signs a bundle as release `release` of `name`, and replaces an existing signature. In a
/// directory the signature is a separate file. A packed bundle is packed again. `progress` is
/// called repeatedly and may stop it.
///
/// # Errors
///
/// If the bundle cannot be opened, if a packed bundle's bytes do not match its manifest, if the
/// name is invalid, and an error of the kind [`Cancelled`] if `progress` stopped it.
///
/// [`Cancelled`]: shardwright_vocabulary::ErrorKind::Cancelled
pub fn sign(
    path: &Path,
    (name, release): (&str, u64),
    key: &SecretKey,
    progress: impl FnMut(FileProgress) -> ControlFlow<()>,
) -> Result<Statement> {
    let bundle = Bundle::open(path)?;
    let share = Share::whole(&bundle)?;
    let statement = Statement::of(Kind::Bundle, name, release, &share.bytes)?;
    if bundle.is_packed() {
        let share = share.signed((name, release), key)?;
        share.pack(&share.volume(), path, progress)?;
        return Ok(statement);
    }
    let envelope = Envelope::sign(&statement, key).to_bytes();
    let layout = Layout::of(path);
    let to = layout.signature();
    let write = || -> io::Result<()> {
        let mut temporary = temporary(path)?;
        temporary.write_all(&envelope)?;
        temporary.as_file().sync_all()?;
        temporary.persist(&to).map_err(|error| error.error)?;
        Ok(())
    };
    if fs::symlink_metadata(&to).is_ok_and(|metadata| metadata.is_dir()) {
        return Err(other_kind(&to, "a regular file", "a directory"));
    }
    write().map_err(io_at(&to))?;
    sync_directory(path)?;
    Ok(statement)
}
