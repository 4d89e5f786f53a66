//! Decoder layers through our Qualcomm lowering and through ONNX Runtime's provider, with the same
//! library in one run.
//!
//! The results are committed. They do not depend on time, so a difference is caused by the library,
//! the provider or our code.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::Value;

use super::python;
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
    let python = python::interpreter("qnn-peer", &benches.join("qnn_peer.requirements.txt"))?;
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
