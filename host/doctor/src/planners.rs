//! Planners: what one says of itself, whether it keeps the rules, what it makes of a request; keys
//! and packs.

use std::path::Path;

use serde::Serialize;
use shardwright_build::{PlannerTools, find_planner};
use shardwright_files::{own, read_from, read_named};
use shardwright_planning::pack::{self, KeyError, SecretKey};
use shardwright_planning::sandbox::Planner;
use shardwright_vocabulary::{Error, ErrorKind, Result};
use zeroize::Zeroizing;

mod checked;
mod replayed;

pub use checked::{CheckReport, check_planner};
pub use replayed::{AskedShardReport, LogReport, ReplayReport, replay_request};

/// Longest key file read: its 64 digits and some blanks.
const KEY_BYTES_MAX: u64 = 256;

/// A planner's description, and what was done with it.
#[derive(Clone, Debug, Serialize)]
pub struct PlannerReport {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// One sentence.
    pub summary: String,
    /// Options it takes.
    pub options: Vec<PlannerOptionReport>,
    /// Notices about loading it.
    pub notices: Vec<String>,
    /// What was done, in one line; `None` if it was only loaded.
    pub outcome: Option<String>,
}

/// One option of a planner.
#[derive(Clone, Debug, Serialize)]
pub struct PlannerOptionReport {
    /// Its name.
    pub name: String,
    /// Legal values.
    pub values: String,
    /// One sentence.
    pub summary: String,
}

/// Makes a random signing key in a new file that only this user may read, and returns the public
/// half, which hosts are configured to trust.
///
/// Errors: the file is there already, or cannot be written.
pub fn make_planner_key(file: &Path) -> Result<String> {
    let failed = |error: std::io::Error| {
        let kind = match error.kind() {
            std::io::ErrorKind::AlreadyExists => ErrorKind::Argument,
            _ => ErrorKind::Missing,
        };
        Error::new(kind, format!("{}: {error}", file.display()))
            .with_help("name a file that is not there yet, in a folder that is")
    };
    let key = SecretKey::generate().map_err(failed)?;
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let text = Zeroizing::new(key.to_hex());
    let mut written = options.open(file).map_err(failed)?;
    std::io::Write::write_all(&mut written, text.as_bytes()).map_err(failed)?;
    written.sync_all().map_err(failed)?;
    Ok(key.public().to_string())
}

/// Compiles a planner for the portable interpreter and writes it as a signed pack.
///
/// Errors: a key file that others may read; whatever the sandbox refuses.
pub fn pack_planner(planner: &Path, key: &Path, output: &Path) -> Result<PlannerReport> {
    let missing = |path: &Path, error: std::io::Error| {
        Error::new(ErrorKind::Missing, format!("{}: {error}", path.display()))
    };
    let seed = read_key(key)?;
    let tools = PlannerTools::new(shardwright::user_cache_directory().as_deref(), &[])?;
    let loaded = tools.load(&find_planner(&planner.display().to_string(), &[])?)?;
    let wasm = read_named(planner, tools.sandbox.bounds().wasm_bytes)?;
    let packed = pack::write(&planner.display().to_string(), &wasm, &seed)?;
    std::fs::write(output, &packed).map_err(|error| missing(output, error))?;
    let outcome = format!("{} bytes in {}, signed by {}", packed.len(), output.display(), seed.public());
    Ok(report(&loaded, Some(outcome)))
}

/// The key in a file that only its owner may read. The bytes read are wiped.
fn read_key(path: &Path) -> Result<SecretKey> {
    let read = own::open_secret(path).and_then(|file| read_from(file, KEY_BYTES_MAX));
    let text = Zeroizing::new(read.map_err(|error| error.about(path))?);
    let key = std::str::from_utf8(&text).unwrap_or_default().parse();
    key.map_err(|error: KeyError| {
        let what = format!("{}: {error}", path.display());
        Error::new(ErrorKind::Argument, what)
            .with_help("64 hexadecimal digits are a key; `shardwright planner key FILE` makes one")
    })
}

fn report(planner: &Planner, outcome: Option<String>) -> PlannerReport {
    let described = planner.description();
    PlannerReport {
        name: described.name.clone(),
        version: described.version.clone(),
        summary: described.summary.clone(),
        options: described
            .options
            .iter()
            .map(|option| PlannerOptionReport {
                name: option.name.clone(),
                values: option.values.clone(),
                summary: option.summary.clone(),
            })
            .collect(),
        notices: planner.disbelieved().into_iter().map(str::to_owned).collect(),
        outcome,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_and_is_secret() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("key");
        let public = make_planner_key(&file).expect("a key");
        assert_eq!(read_key(&file).expect("it is read").public().to_string(), public);
        let error = make_planner_key(&file).expect_err("it is there");
        assert_eq!(error.kind(), ErrorKind::Argument, "{error}");
        let error = make_planner_key(&folder.path().join("none/key")).expect_err("no folder");
        assert_eq!(error.kind(), ErrorKind::Missing, "{error}");
    }
}
