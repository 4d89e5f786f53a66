//! Planner packs: planners for hosts without a compiler.
//!
//! A pack is one file. It contains the `.wasm` of the planner, its code for Pulley, the wasmtime
//! version and settings that compiled it, and a signature over all of it. Compiled code is as
//! powerful as a shared library. A pack is therefore opened only if a key that the integrator
//! trusts signed it, and run only by the same version of wasmtime.
//!
//! Layout, with little-endian integers: magic (8 bytes), length of the manifest (u32), manifest
//! (JSON), `.wasm`, code, signature (64 bytes, ed25519 over all preceding bytes).

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use shardwright_files::hex;
use shardwright_trust::PublicKey;
#[cfg(feature = "compiler")]
use shardwright_trust::SecretKey;
use shardwright_vocabulary::{Error, ErrorKind, Result};

use crate::error::PlannerError;
use crate::sandbox::{EngineKind, Planner, Sandbox, WASMTIME_VERSION};

const MAGIC: &[u8; 8] = b"SWPACK\x00\x01";
const SIGNATURE_BYTES: usize = 64;
/// Maximum length of a manifest. Ours have less than 1 KiB.
const MANIFEST_BYTES: usize = 64 << 10;
/// Maximum size of a pack: the `.wasm` and code of a Python planner, with room to spare.
pub const PACK_BYTES: u64 = 128 << 20;

/// Manifest of a pack. Trustworthy only after [`open`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PackManifest {
    /// Name of the planner.
    pub planner: String,
    /// Version of the planner.
    pub version: String,
    /// The planner interface that the component exports.
    pub interface: String,
    /// Version of wasmtime that compiled the code.
    pub wasmtime: String,
    /// Identity of the engine settings that the code was compiled with.
    pub settings: String,
    /// Bytes of the `.wasm`.
    pub wasm_bytes: u64,
    /// SHA-256 of the `.wasm`.
    pub wasm_sha256: String,
    /// Bytes of the code.
    pub code_bytes: u64,
    /// SHA-256 of the code.
    pub code_sha256: String,
    /// Public key of the signer.
    pub key: PublicKey,
}

/// Advice for a pack whose bytes are wrong.
const GET_AGAIN: &str = "get the pack again from its source";
/// Advice for a pack that lacks something that this release writes.
const MAKE_AGAIN: &str = "pack the planner again with this release's `shardwright planner pack`";

/// Creates the error of a pack that is not accepted.
fn rejected(message: impl Into<String>, help: &str) -> Error {
    Error::new(ErrorKind::Planning, message).with_help(help)
}

/// Returns whether a file looks like a pack.
pub fn is_pack(bytes: &[u8]) -> bool {
    bytes.starts_with(MAGIC)
}

/// Compiles a planner for Pulley, reads its description, and signs the result.
#[cfg(feature = "compiler")]
pub fn write(origin: &str, wasm: &[u8], key: &SecretKey) -> Result<Vec<u8>, PlannerError> {
    let sandbox = Sandbox::new(EngineKind::Pulley)?;
    let planner = sandbox.load(origin, wasm, None)?;
    let code = planner.code()?;
    let manifest = PackManifest {
        planner: planner.description().name.clone(),
        version: planner.description().version.clone(),
        interface: crate::sandbox::INTERFACE.to_owned(),
        wasmtime: WASMTIME_VERSION.to_owned(),
        settings: sandbox.settings_id(),
        wasm_bytes: wasm.len() as u64,
        wasm_sha256: hex::encode(&Sha256::digest(wasm)),
        code_bytes: code.len() as u64,
        code_sha256: hex::encode(&Sha256::digest(&code)),
        key: key.public(),
    };
    Ok(assemble(&manifest, wasm, &code, key))
}

#[cfg(feature = "compiler")]
fn assemble(manifest: &PackManifest, wasm: &[u8], code: &[u8], key: &SecretKey) -> Vec<u8> {
    let manifest = crate::canonical_json(manifest);
    let mut pack =
        Vec::with_capacity(MAGIC.len() + 4 + manifest.len() + wasm.len() + code.len() + SIGNATURE_BYTES);
    pack.extend_from_slice(MAGIC);
    // A manifest has less than 1 KiB, because the planner's own texts in it are capped.
    pack.extend_from_slice(&u32::try_from(manifest.len()).unwrap_or(u32::MAX).to_le_bytes());
    pack.extend_from_slice(&manifest);
    pack.extend_from_slice(wasm);
    pack.extend_from_slice(code);
    let signature = key.sign(&pack);
    pack.extend_from_slice(&signature);
    pack
}

/// Replaces a text in the manifest of a pack and signs it again, to imitate a pack of an old
/// release. Only for tests.
#[cfg(feature = "compiler")]
#[doc(hidden)]
pub fn resign_for_tests(bytes: &[u8], old: &str, new: &str, key: &SecretKey) -> Vec<u8> {
    let Ok(parts) = take_apart(bytes) else { return vec![] };
    let text = String::from_utf8_lossy(&crate::canonical_json(&parts.manifest)).replace(old, new);
    serde_json::from_str(&text)
        .map_or_else(|_| vec![], |manifest| assemble(&manifest, parts.wasm, parts.code, key))
}

/// The parsed parts of a pack, not yet trusted.
struct Parts<'pack> {
    manifest: PackManifest,
    wasm: &'pack [u8],
    code: &'pack [u8],
    signed: &'pack [u8],
    signature: Option<[u8; SIGNATURE_BYTES]>,
}

fn take_apart(bytes: &[u8]) -> Result<Parts<'_>> {
    let damaged = |offset: usize, reason: &str| {
        let error = Error::invalid(format!("damaged pack: {reason}"));
        error.with_help(GET_AGAIN).at(format!("offset {offset}"))
    };
    let not_a_pack = || Error::invalid("not a planner pack").with_help(GET_AGAIN);
    let rest = bytes.strip_prefix(MAGIC).ok_or_else(not_a_pack)?;
    let offset = MAGIC.len();
    let (length, rest) =
        rest.split_first_chunk::<4>().ok_or_else(|| damaged(offset, "the header is truncated"))?;
    let length = u32::from_le_bytes(*length) as usize;
    if length > MANIFEST_BYTES {
        return Err(damaged(offset, "the manifest is too long"));
    }
    let offset = offset + 4;
    let (manifest, rest) =
        rest.split_at_checked(length).ok_or_else(|| damaged(offset, "the manifest is truncated"))?;
    let manifest: PackManifest = serde_json::from_slice(manifest)
        .map_err(|error| damaged(offset, &format!("invalid manifest: {error}")))?;
    let offset = offset + length;
    let part = |rest: &'_ [u8], bytes: u64| usize::try_from(bytes).ok().filter(|&bytes| bytes <= rest.len());
    let split =
        part(rest, manifest.wasm_bytes).ok_or_else(|| damaged(offset, "the component is truncated"))?;
    let (wasm, rest) = rest.split_at(split);
    let offset = offset + split;
    let split = part(rest, manifest.code_bytes).ok_or_else(|| damaged(offset, "the code is truncated"))?;
    let (code, signature) = rest.split_at(split);
    let offset = offset + split;
    let signature = match signature.len() {
        0 => None,
        SIGNATURE_BYTES => signature.try_into().ok(),
        _ => return Err(damaged(offset, "the signature does not have 64 bytes")),
    };
    Ok(Parts { manifest, wasm, code, signed: &bytes[..offset], signature })
}

/// Returns the manifest of a pack, without verifying anything.
pub fn inspect(bytes: &[u8]) -> Result<PackManifest> {
    take_apart(bytes).map(|parts| parts.manifest)
}

/// Checks that a pack is undamaged, signed by one of `trusted`, and made for this host.
///
/// # Errors
///
/// A damaged pack is [`ErrorKind::Invalid`], whoever signed it. The other errors are
/// [`ErrorKind::Planning`].
pub fn verify(bytes: &[u8], trusted: &[PublicKey]) -> Result<PackManifest> {
    checked(bytes, trusted).map(|parts| parts.manifest)
}

fn checked<'pack>(bytes: &'pack [u8], trusted: &[PublicKey]) -> Result<Parts<'pack>> {
    let parts = take_apart(bytes)?;
    let key = parts.manifest.key;
    let signature = parts.signature.ok_or_else(|| rejected("the pack is not signed", MAKE_AGAIN))?;
    // The key is part of the pack, so damage is noticed whether or not the key is trusted.
    let damaged = || {
        let message = format!("damaged pack: the signature of {key} does not match");
        Error::invalid(message).with_help(GET_AGAIN)
    };
    if !key.has_signed(parts.signed, &signature) {
        return Err(damaged());
    }
    let digests = [
        (hex::encode(&Sha256::digest(parts.wasm)), &parts.manifest.wasm_sha256),
        (hex::encode(&Sha256::digest(parts.code)), &parts.manifest.code_sha256),
    ];
    if digests.iter().any(|(actual, stated)| actual != *stated) {
        return Err(damaged());
    }
    if !trusted.contains(&key) {
        let message = format!("the pack is signed by {key}, which is not a trusted key");
        return Err(rejected(message, "add the key to the trusted keys if you know its owner"));
    }
    expect_current(&parts.manifest)?;
    Ok(parts)
}

/// Refuses code made by another wasmtime version, with other settings or for another interface.
fn expect_current(manifest: &PackManifest) -> Result<()> {
    let sandbox_settings = crate::sandbox::pulley_settings_id();
    let expected = [
        ("wasmtime", &manifest.wasmtime, WASMTIME_VERSION),
        ("settings", &manifest.settings, &sandbox_settings),
        ("interface", &manifest.interface, crate::sandbox::INTERFACE),
    ];
    for (what, found, expected) in expected {
        if found != expected {
            let message = format!("the pack was compiled for {what} {found}, this host has {expected}");
            return Err(rejected(message, MAKE_AGAIN));
        }
    }
    Ok(())
}

/// Opens the planner in a pack. It is run by Pulley.
///
/// # Errors
///
/// Fails unless one of `trusted` signed exactly these bytes and this version of wasmtime compiled
/// them with these settings.
pub fn open(origin: &str, bytes: &[u8], trusted: &[PublicKey]) -> Result<Planner, PlannerError> {
    let parts = checked(bytes, trusted).map_err(|error| refused(origin, bytes, error))?;
    let sandbox = Sandbox::new(EngineKind::Pulley)?;
    // SAFETY: a trusted key signed this code as the output of its compiler. An integrator who
    // trusts a key trusts its owner's code.
    unsafe { sandbox.deserialize(&parts.manifest.planner, parts.code) }
}

/// Opens the planner in a pack that is part of this program or ships with it. It is run by Pulley.
/// The signature is not checked, because the pack is as trusted as the program.
///
/// # Errors
///
/// Fails if the pack is damaged or was compiled by another version of wasmtime.
pub(crate) fn open_embedded(origin: &str, bytes: &[u8]) -> Result<Planner, PlannerError> {
    let refused = |error| refused(origin, bytes, error);
    let parts = take_apart(bytes).map_err(refused)?;
    expect_current(&parts.manifest).map_err(refused)?;
    let sandbox = Sandbox::new(EngineKind::Pulley)?;
    // SAFETY: the pack is a constant of this program, or has a digest that is one, and a test
    // compares its code with the output of the compiler.
    unsafe { sandbox.deserialize(origin, parts.code) }
}

/// Returns the component in a pack that is part of this program or ships with it.
///
/// # Errors
///
/// Fails if the pack is damaged.
pub(crate) fn component<'pack>(origin: &str, bytes: &'pack [u8]) -> Result<&'pack [u8], PlannerError> {
    take_apart(bytes).map(|parts| parts.wasm).map_err(|error| refused(origin, bytes, error))
}

fn refused(origin: &str, bytes: &[u8], error: Error) -> PlannerError {
    // The manifest of a damaged pack may be wrong.
    let manifest = inspect(bytes).ok().filter(|_| error.kind() != ErrorKind::Invalid);
    let (planner, version) = match manifest {
        Some(manifest) => (manifest.planner, Some(manifest.version)),
        None => (origin.to_owned(), None),
    };
    PlannerError { planner, version, kind: error.into() }
}
