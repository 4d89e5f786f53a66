//! Creates and shows keys, signatures and lists of revocations.

use std::io::Write;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};

use serde::Serialize;
use shardwright::Watch;
use shardwright_bundle::{Bundle, Examine, Signer};
use shardwright_files::output::OutputKind;
use shardwright_files::{kind_name, private_files, read_from, read_named};
use shardwright_planning::profile;
use shardwright_shims::{MANIFEST_SUFFIX, Manifest};
use shardwright_trust::{
    ENVELOPE_BYTES, Envelope, Kind, LeastRelease, PublicKey, REVOCATIONS_BYTES, Revocations, SecretKey,
    Statement, Trust, path_of_signature, unbound, unsigned,
};
use shardwright_vocabulary::{At, Error, ErrorKind, Result};
use zeroize::Zeroizing;

/// Maximum length of a key file in bytes: 64 digits and some blanks.
const KEY_BYTES_MAX: u64 = 256;

/// Maximum size in bytes of a file with a separate signature: the limit for a planner's component.
const FILE_BYTES_MAX: u64 = 128 << 20;

/// A signature next to the signed file.
const SIGNATURE: OutputKind = OutputKind {
    name: "a signature",
    is_earlier: |begin| Envelope::begins(begin) && begin.len() == ENVELOPE_BYTES,
};

/// A list of revocations, which has a signature at its beginning.
const LIST: OutputKind = OutputKind {
    name: "a list of revocations",
    is_earlier: |begin| Envelope::begins(begin) && begin.len() > ENVELOPE_BYTES,
};

/// A signature that was created or read.
#[derive(Clone, Debug, Serialize)]
pub struct SignatureReport {
    /// The file with the signature, which is the bundle itself if it is packed.
    pub path: PathBuf,
    /// The key that the signature names.
    pub key: PublicKey,
    /// The signed statement.
    #[serde(flatten)]
    pub statement: Statement,
    /// Whether that key signed exactly these bytes.
    pub holds: bool,
    /// The revocations, if the file is a list of revocations.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revokes: Option<Revocations>,
}

/// Creates a random signing key in a new file that only this user may read. Returns the public key,
/// which hosts can be configured to trust.
///
/// # Errors
///
/// If the file exists (the message then includes its public key), or cannot be written.
pub fn make_key(file: &Path) -> Result<String> {
    let help = "name a new file in an existing folder";
    let failed = |error: std::io::Error| {
        let found = file.symlink_metadata().map(|metadata| metadata.file_type());
        match found.ok().filter(|_| error.kind() == std::io::ErrorKind::AlreadyExists) {
            Some(found) => {
                let what = match read_key(file) {
                    Ok(key) => format!("already a key, with the public key {}", key.public()),
                    Err(_) => format!("{}, expected no file", kind_name(found)),
                };
                Error::new(ErrorKind::Argument, format!("`{}` is {what}", file.display())).with_help(help)
            }
            None => Error::from(error).at(file.display()).or_help(help),
        }
    };
    let key = SecretKey::generate().map_err(failed)?;
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let text = Zeroizing::new(key.to_hex());
    let mut opened = options.open(file).map_err(failed)?;
    let written = opened.write_all(text.as_bytes()).and_then(|()| opened.sync_all());
    written.map_err(|error| {
        // Without it, the next attempt can use the name.
        let _ = std::fs::remove_file(file);
        failed(error)
    })?;
    Ok(key.public().to_string())
}

/// Reads the key in a file that only its owner may read. The bytes read are wiped from memory.
pub(crate) fn read_key(path: &Path) -> Result<SecretKey> {
    let read = private_files::open_secret(path).and_then(|file| read_from(file, KEY_BYTES_MAX));
    let text = Zeroizing::new(read.at(path.display())?);
    let key = std::str::from_utf8(&text).unwrap_or_default().parse::<SecretKey>();
    key.map_err(|error| {
        let help = "use a file with 64 hexadecimal digits, as created by `shardwright trust key FILE`";
        error.with_kind(ErrorKind::Invalid).at(path.display()).with_help(help)
    })
}

/// Signs a bundle, a shim's manifest, a planner's component or a profile as a release. `name`
/// applies to bundles, with the model's name as the default. All other files have their own names.
///
/// # Errors
///
/// If the file has none of these kinds or is invalid, if a name is given for a file with its own
/// name, or if others may read the key file.
pub fn sign(
    path: &Path,
    (name, release): (Option<&str>, u64),
    key: &Path,
    watch: &mut dyn Watch,
) -> Result<SignatureReport> {
    let key = read_key(key)?;
    if shardwright::is_bundle(path) {
        let name = release_name(&Bundle::open(path)?, name);
        let statement = shardwright_bundle::sign(path, (&name, release), &key, |progress| {
            let done = u128::from(progress.done) * 1000 / u128::from(progress.total.max(1));
            watch.progress(done as u32, "copying");
            if watch.cancelled() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        let file = if path.is_dir() { path_of_signature(&path.join("bundle.json")) } else { path.to_owned() };
        return Ok(SignatureReport { path: file, key: key.public(), statement, holds: true, revokes: None });
    }
    let bytes = read_named(path, FILE_BYTES_MAX).map_err(|error| match error.help() {
        Some(_) => error,
        None => error.with_help("check the path and its permissions"),
    })?;
    let (kind, own_name) = named(path, &bytes)?;
    if name.is_some_and(|name| name != own_name) {
        let what = format!("{} is signed as `{own_name}`, and cannot have another name", path.display());
        let help = "drop `--name`, which is only for bundles";
        return Err(Error::new(ErrorKind::Argument, what).with_help(help));
    }
    let statement = Statement::of(kind, &own_name, release, &bytes)?;
    let to = path_of_signature(path);
    SIGNATURE.write(&to, &Envelope::sign(&statement, &key).to_bytes())?;
    Ok(SignatureReport { path: to, key: key.public(), statement, holds: true, revokes: None })
}

/// Returns the given name, or the model's.
fn release_name(bundle: &Bundle, name: Option<&str>) -> String {
    name.map_or_else(|| bundle.manifest().model.name.to_lowercase(), str::to_owned)
}

/// Returns a signer for packed forms of a bundle, with the key in a file.
///
/// # Errors
///
/// If others may read the key file.
pub fn signer(bundle: &Bundle, (name, release): (Option<&str>, u64), key: &Path) -> Result<Signer> {
    Ok(Signer { name: release_name(bundle, name), release, key: read_key(key)? })
}

/// Returns the kind of a file, and the name of its content.
fn named(path: &Path, bytes: &[u8]) -> Result<(Kind, String)> {
    let file = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    if file.ends_with(MANIFEST_SUFFIX) {
        let manifest = Manifest::parse(path, bytes)?;
        if manifest.sha256.is_none() {
            return Err(unbound(path));
        }
        return Ok((Kind::Shim, manifest.name));
    }
    let stem = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
    match path.extension().and_then(|extension| extension.to_str()) {
        Some("json") => Ok((Kind::Profile, profile::read(path)?.profile.name)),
        Some("wasm") => Ok((Kind::Planner, stem)),
        Some("pack") => {
            let what = format!("{} is a planner pack, which has its own signature", path.display());
            Err(Error::new(ErrorKind::Argument, what).with_help("sign it with `shardwright planner pack`"))
        }
        _ => {
            let what = format!("{} cannot be signed", path.display());
            Err(Error::new(ErrorKind::Argument, what)
                .with_help("name a bundle, a `.shim.json`, a planner's `.wasm` or a profile's `.json`"))
        }
    }
}

/// Writes a signed list of revocations.
///
/// # Errors
///
/// If others may read the key file, if the name is invalid, or if the file cannot be written.
pub fn revoke(
    name: &str,
    sequence: u64,
    keys: &[PublicKey],
    least: &[LeastRelease],
    key: &Path,
    output: &Path,
) -> Result<SignatureReport> {
    let bytes = Revocations::sign(name, sequence, keys, least, &read_key(key)?)?;
    LIST.write(output, &bytes)?;
    show_signature(output)
}

/// Reads a signature of any kind: of a bundle, of a file with a signature next to it, a separate
/// signature file, or a list of revocations. The host decides whether its key is trusted.
///
/// # Errors
///
/// If the file has no signature.
pub fn show_signature(path: &Path) -> Result<SignatureReport> {
    if shardwright::is_bundle(path) {
        let inspection = shardwright_bundle::inspect(path, Examine::Presence, &Trust::off(), |_| ())?;
        let found = inspection.signature.ok_or_else(|| unsigned(path))?;
        let shardwright_bundle::SignatureReport { key, statement, holds } = found;
        return Ok(SignatureReport { path: path.to_owned(), key, statement, holds, revokes: None });
    }
    let beside = path_of_signature(path);
    if beside.is_file() {
        let envelope = Envelope::parse(path, &read_named(&beside, ENVELOPE_BYTES as u64)?)?;
        let signed = read_named(path, FILE_BYTES_MAX)?;
        let holds = envelope.is_signed() && envelope.statement().is_about(&signed);
        let (key, statement) = (envelope.key(), envelope.statement().clone());
        return Ok(SignatureReport { path: beside, key, statement, holds, revokes: None });
    }
    let bytes = read_named(path, REVOCATIONS_BYTES)?;
    if bytes.len() < ENVELOPE_BYTES {
        return Err(unsigned(path));
    }
    let envelope = Envelope::parse(path, &bytes[..ENVELOPE_BYTES]).map_err(|_| unsigned(path))?;
    let (key, statement) = (envelope.key(), envelope.statement().clone());
    let (revokes, holds) = Revocations::inspect(path, &bytes)?;
    Ok(SignatureReport { path: path.to_owned(), key, statement, holds, revokes: Some(revokes) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_and_is_secret() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("key");
        let public = make_key(&file).expect("a key");
        assert_eq!(read_key(&file).expect("it is read").public().to_string(), public);
        let error = make_key(&file).expect_err("it is there");
        assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
        assert!(error.to_string().ends_with(&format!("is already a key, with the public key {public}")));
        for (other, found) in [(Path::new("/dev/null"), "a device"), (folder.path(), "a directory")] {
            let error = make_key(other).expect_err("it is no key");
            assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
            assert_eq!(error.to_string(), format!("`{}` is {found}, expected no file", other.display()));
        }
        let error = make_key(&folder.path().join("none/key")).expect_err("no folder");
        assert_eq!(error.kind(), ErrorKind::Missing, "{error}");
    }

    #[test]
    fn each_kind_is_signed_under_its_own_name_and_nothing_else_is() {
        let folder = tempfile::tempdir().expect("a folder");
        let at = |name: &str| folder.path().join(name);
        let key = at("key");
        make_key(&key).expect("a key");
        let put = |name: &str, text: &str| std::fs::write(at(name), text).expect("written");
        let signs = |name: &str, asked| sign(&at(name), (asked, 2), &key, &mut ());
        put("own.wasm", "anything");
        let signed = signs("own.wasm", None).expect("signed");
        assert_eq!((signed.statement.kind, signed.statement.name.as_str()), (Kind::Planner, "own"));
        let shown = show_signature(&at("own.wasm")).expect("shown");
        assert!(shown.holds && shown.statement == signed.statement && shown.path == at("own.wasm.sig"));
        put("own.wasm", "another");
        assert!(!show_signature(&at("own.wasm")).expect("shown").holds);
        let hash = "0".repeat(64);
        let shim = |hash: &str| {
            format!(
                r#"{{"manifest":1,"name":"x","vendor":"y","abi":{{"min":"0.1","max":"0.1"}},"library":"z"{hash}}}"#
            )
        };
        put("x.shim.json", &shim(&format!(r#","sha256":"{hash}""#)));
        assert_eq!(signs("x.shim.json", Some("x")).expect("signed").statement.kind, Kind::Shim);
        put("x.shim.json", &shim(""));
        put("x.json", "{}");
        put("x.pack", "");
        put("x.txt", "");
        for (name, asked, kind) in [
            ("own.wasm", Some("other"), ErrorKind::Argument),
            ("x.shim.json", None, ErrorKind::Untrusted),
            ("x.json", None, ErrorKind::Missing),
            ("x.pack", None, ErrorKind::Argument),
            ("x.txt", None, ErrorKind::Argument),
            ("none.wasm", None, ErrorKind::Missing),
        ] {
            let error = signs(name, asked).expect_err(name);
            assert!(error.kind() == kind && error.help().is_some(), "{name}: {error}");
        }
        put("own.wasm.sig", "not a signature");
        let error = signs("own.wasm", None).expect_err("another file");
        assert!(
            error.to_string().contains("own.wasm.sig: the file exists and is not a signature"),
            "{error}"
        );
        assert_eq!(error.kind(), ErrorKind::Argument);
        let list = at("list");
        let stranger = SecretKey::from_seed([3; 32]).public();
        let least = [LeastRelease { kind: Kind::Bundle, name: "gemma".to_owned(), release: 4 }];
        let made = revoke("acme", 7, &[stranger], &least, &key, &list).expect("a list");
        assert!(made.holds && made.statement.release == 7);
        assert_eq!(made.revokes.expect("a list").keys, [stranger]);
        revoke("acme", 8, &[stranger], &least, &key, &list).expect("a later list");
        put("thesis", "mine");
        let error = revoke("acme", 9, &[], &[], &key, &at("thesis")).expect_err("another file");
        assert!(error.to_string().contains("is not a list of revocations"), "{error}");
        for name in ["x.txt", "x.json"] {
            assert_eq!(show_signature(&at(name)).expect_err(name).kind(), ErrorKind::Untrusted);
        }
    }
}
