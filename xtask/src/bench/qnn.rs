//! Decoder layers through our Qualcomm lowering and through ONNX Runtime's provider, with the same
//! library in one run.
//!
//! The results are committed. They do not depend on time, so a difference is caused by the library,
//! the provider or our code.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::error::Error;
use crate::workspace::{self, Workspace};
use crate::{process, vendor};

/// The bench target with our side of the comparison.
pub const OURS: &str = "qnn_layers";
/// The package of the bench target.
const PACKAGE: &str = "shardwright-shim-qnn";

/// Runs both sides and writes their figures and the table to `tests/benches/results`.
pub fn compare(workspace: &Workspace) -> Result<(), Error> {
    vendor::qnn_for_tests()?;
    let benches = workspace.root.join("tests/benches");
    let results = benches.join("results");
    fs::create_dir_all(&results).map_err(|source| Error::File { path: results.clone(), source })?;
    let python = python(&benches.join("qnn_peer.requirements.txt"))?;
    let script = |arguments: &[&Path]| {
        let mut command = Command::new(&python);
        vendor::offer(&mut command);
        command.arg(benches.join("qnn_peer.py")).args(arguments);
        command
    };

    let (peer, ours) = (results.join("qnn_peer.json"), results.join("qnn_layers.json"));
    process::run(&mut script(&["--out".as_ref(), &peer]))?;

    let mut command = workspace.cargo();
    command.args(["bench", "--quiet", "--package", PACKAGE, "--bench", OURS]);
    vendor::offer(&mut command);
    process::announce(&command);
    let answer = process::output(&mut command)?;
    let figures: Value = serde_json::from_str(&answer)
        .map_err(|error| Error::Answer { command: process::shown(&command), problem: error.to_string() })?;
    workspace::replace(&ours, format!("{figures:#}\n").as_bytes())?;

    let table = process::output(&mut script(&["--table".as_ref(), &peer, &ours]))?;
    print!("{table}");
    workspace::replace(&results.join("qnn_layers.md"), table.as_bytes())
}

/// Returns the interpreter of an environment with the peer's dependencies, which is created once
/// per list of requirements.
fn python(requirements: &Path) -> Result<PathBuf, Error> {
    let wanted = workspace::read(requirements)?;
    let folder = vendor::cache_folder()?.join("bench/qnn-peer");
    let python = folder.join("bin/python");
    // Written last, so that an incomplete environment is created again.
    let made = folder.join("requirements-installed.txt");
    if fs::read(&made).is_ok_and(|installed| installed == wanted) {
        return Ok(python);
    }
    process::run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&folder))?;
    process::run(
        Command::new(&python)
            .args(["-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-cache-dir"])
            .arg("--requirement")
            .arg(requirements),
    )?;
    workspace::replace(&made, &wanted)?;
    Ok(python)
}
