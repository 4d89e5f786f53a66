//! Environments of Python with pinned packages, for scripts of benches.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Error;
use crate::{process, vendor, workspace};

/// Returns the interpreter of an environment with the packages of a list, which is created once per
/// list. `name` is the name of its folder.
pub fn interpreter(name: &str, requirements: &Path) -> Result<PathBuf, Error> {
    let wanted = workspace::read(requirements)?;
    let folder = vendor::cache_folder()?.join("bench").join(name);
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
