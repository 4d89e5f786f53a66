//! Shims: a dylib and a manifest beside it, the same for one built by cargo and one built by the C compiler.
//!
//! A shim's folder under `vendor-shims/` holds its manifest as `<name>.shim.json`. The one laid out beside the dylib
//! is the same with the hash of the library that was built.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;
use sha2::{Digest, Sha256};

use crate::error::Error;
use crate::process;
use crate::workspace::{self, Package, Profile, Workspace};

/// What a manifest's file name ends with.
const MANIFEST_SUFFIX: &str = ".shim.json";

/// Lays out the dylib and the manifest of a shim that cargo has built; nothing for a package that is none.
pub fn lay_out(workspace: &Workspace, package: &Package, profile: Profile) -> Result<Vec<PathBuf>, Error> {
    let Some(library) = &package.library else { return Ok(Vec::new()) };
    let built = workspace.output(profile).join(library);
    install(&package.folder, &workspace::read(&built)?, library, &workspace.output(profile).join("shims"))
}

/// Compiles the C shim in `folder` and lays it out; nothing if the folder has no C source.
pub fn compile_c(workspace: &Workspace, folder: &Path, profile: Profile) -> Result<Vec<PathBuf>, Error> {
    let sources: Vec<_> = workspace::files_of(folder)?
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .collect();
    let (Some(first), Some((_, manifest))) = (sources.first(), manifest_of(folder)?) else {
        return Ok(Vec::new());
    };
    let library = manifest["library"].as_str().map_or_else(
        || workspace::library_file(&first.file_stem().unwrap_or_default().to_string_lossy()),
        str::to_owned,
    );
    let scratch = workspace.output(profile).join("build-c");
    std::fs::create_dir_all(&scratch).map_err(|source| Error::File { path: scratch.clone(), source })?;
    let built = scratch.join(&library);
    process::run(
        Command::new("cc")
            .current_dir(&workspace.root)
            .args(["-std=c11", "-O2", "-Wall", "-Wextra", "-Werror", "-fPIC", "-shared", "-I"])
            .arg(workspace.root.join("vendor-shims/abi/include"))
            .arg("-o")
            .arg(&built)
            .args(&sources)
            .arg("-lm"),
    )?;
    install(folder, &workspace::read(&built)?, &library, &workspace.output(profile).join("shims"))
}

fn install(folder: &Path, library: &[u8], name: &str, shims: &Path) -> Result<Vec<PathBuf>, Error> {
    let Some((source, mut manifest)) = manifest_of(folder)? else { return Ok(Vec::new()) };
    if manifest["library"].as_str().is_some_and(|said| said != name) {
        let problem = format!("`library` is {}, but the build makes `{name}`", manifest["library"]);
        return Err(Error::Unexpected { path: source, problem });
    }
    manifest["library"] = name.into();
    manifest["sha256"] = hexadecimal(library).into();
    let mut text = serde_json::to_string_pretty(&manifest)
        .map_err(|error| Error::Unexpected { path: source.clone(), problem: error.to_string() })?;
    text.push('\n');

    let laid_out = shims.join(source.file_name().unwrap_or_default());
    let library_path = shims.join(name);
    workspace::replace(&library_path, library)?;
    workspace::replace(&laid_out, text.as_bytes())?;
    Ok(vec![library_path, laid_out])
}

/// The one manifest of a shim's folder; `None` for a folder that has none and so is no shim.
fn manifest_of(folder: &Path) -> Result<Option<(PathBuf, Value)>, Error> {
    let mut manifests = workspace::files_of(folder)?
        .into_iter()
        .filter(|path| path.to_string_lossy().ends_with(MANIFEST_SUFFIX));
    let Some(path) = manifests.next() else { return Ok(None) };
    if let Some(second) = manifests.next() {
        return Err(Error::Unexpected {
            path: second,
            problem: "a second manifest in one folder".to_owned(),
        });
    }
    let unexpected = |problem: String| Error::Unexpected { path: path.clone(), problem };
    let manifest: Value =
        serde_json::from_slice(&workspace::read(&path)?).map_err(|error| unexpected(error.to_string()))?;
    if !manifest.is_object() {
        return Err(unexpected("not a JSON object".to_owned()));
    }
    Ok(Some((path, manifest)))
}

fn hexadecimal(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
