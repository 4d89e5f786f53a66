//! Gemma 4 E2B at its real shapes through MediaTek's shim and the simulator of its library. The
//! results are committed.

use std::fs;
use std::process::Command;

use crate::build::WORKSPACE;
use crate::error::Error;
use crate::process;
use crate::workspace::{Profile, Workspace};

/// Name of the bench target.
pub const SHAPES: &str = "neuron_shapes";

/// Runs the bench and writes its tables to `tests/benches/results`.
pub fn shapes(workspace: &Workspace) -> Result<(), Error> {
    let results = workspace.root.join("tests/benches/results");
    fs::create_dir_all(&results).map_err(|source| Error::File { path: results.clone(), source })?;
    let mut command: Command = workspace.cargo();
    command
        .args(["bench", "--quiet", "--bench", SHAPES])
        // Selects the same packages as the build before, so that features match and no crate is
        // compiled twice.
        .args(WORKSPACE)
        .args(["--", "--into"])
        .arg(&results)
        .env("SHARDWRIGHT_BIN_DIR", workspace.output(Profile::Release));
    process::run(&mut command)
}
