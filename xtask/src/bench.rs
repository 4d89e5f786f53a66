//! `cargo xtask bench`: the bench targets of the workspace, release, one after the other.

use crate::build::Scope;
use crate::error::Error;
use crate::workspace::{Profile, Workspace};
use crate::{build, process, setup};

/// Runs every bench target whose name contains one of the filters (all without a filter). Each prints its own table.
pub fn run(workspace: &Workspace, filters: &[String]) -> Result<(), Error> {
    setup::prepare(workspace)?;
    build::build(workspace, Profile::Release, Scope::Workspace)?;
    for package in &workspace.packages {
        for bench in &package.benches {
            if !filters.is_empty() && !filters.iter().any(|filter| bench.contains(filter.as_str())) {
                continue;
            }
            let mut command = workspace.cargo();
            command
                .args(["bench", "--quiet", "--bench", bench])
                // The same selection as the build above: the same features, nothing compiled twice.
                .args(build::WORKSPACE)
                .env("SHARDWRIGHT_BIN_DIR", workspace.output(Profile::Release));
            process::run(&mut command)?;
        }
    }
    Ok(())
}
