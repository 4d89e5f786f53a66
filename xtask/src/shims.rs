//! Shims: a dylib with a manifest next to it, whether cargo or the C compiler built it.
//!
//! The folder of the crate that makes the dylib contains its manifest as `<name>.shim.json`. The
//! manifest laid out next to the dylib is named after it, as the host expects. It contains no hash,
//! because stripping the library, as packagers do, would invalidate it. `shardwright shim hash`
//! adds the hash after that.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::error::Error;
use crate::process;
use crate::workspace::{self, Package, Profile, Workspace};

/// Suffix of a manifest's file name.
const MANIFEST_SUFFIX: &str = ".shim.json";

/// Lays out the dylib and the manifest of a shim that cargo has built. Ignores other packages.
pub fn lay_out(workspace: &Workspace, package: &Package, profile: Profile) -> Result<Vec<PathBuf>, Error> {
    let Some(library) = &package.library else { return Ok(Vec::new()) };
    let built = workspace.output(profile).join(library);
    install(&package.folder, &workspace::read(&built)?, library, &workspace.output(profile).join("shims"))
}

/// Compiles the C shim in `folder` and lays it out. Returns an empty list if the folder has no C
/// source.
pub fn compile_c(workspace: &Workspace, folder: &Path, profile: Profile) -> Result<Vec<PathBuf>, Error> {
    let sources: Vec<_> = workspace::files_of(folder)?
        .into_iter()
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .collect();
    let (Some(first), Some((_, manifest))) = (sources.first(), manifest_of(folder)?) else {
        return Ok(Vec::new());
    };
    let library = file_named(&manifest)
        .unwrap_or_else(|| workspace::library_file(&first.file_stem().unwrap_or_default().to_string_lossy()));
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
    if file_named(&manifest).is_some_and(|said| said != name) {
        let problem = format!("`library` is {}, but the build makes `{name}`", manifest["library"]);
        return Err(Error::Unexpected { path: source, problem });
    }
    manifest["library"] = name.into();
    let mut text = serde_json::to_string_pretty(&manifest)
        .map_err(|error| Error::Unexpected { path: source.clone(), problem: error.to_string() })?;
    text.push('\n');

    let [library_path, laid_out] = files(shims, name);
    workspace::replace(&library_path, library)?;
    workspace::replace(&laid_out, text.as_bytes())?;
    Ok(vec![library_path, laid_out])
}

/// Returns the files of a shim that was laid out: its library and its manifest.
pub fn files(shims: &Path, library: &str) -> [PathBuf; 2] {
    let library = shims.join(library);
    let mut manifest = library.file_stem().unwrap_or_default().to_owned();
    manifest.push(MANIFEST_SUFFIX);
    [library, shims.join(manifest)]
}

/// Returns the only manifest of a shim's folder, or `None` if there is none, so that the folder is
/// not a shim.
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

/// Returns the file that a manifest's `library` refers to. A name without a dot gets this system's
/// prefix and suffix.
fn file_named(manifest: &Value) -> Option<String> {
    let said = manifest["library"].as_str()?;
    Some(if said.contains('.') { said.to_owned() } else { workspace::library_file(said) })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn shim_folder(manifests: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a temporary folder");
        for (name, text) in manifests {
            fs::write(folder.path().join(name), text).expect("writable");
        }
        folder
    }

    #[test]
    fn a_shim_is_laid_out_without_a_hash() {
        let folder = shim_folder(&[("a.shim.json", r#"{"name": "a", "library": "a"}"#)]);
        let shims = folder.path().join("shims");
        let library = workspace::library_file("a");
        let laid_out = install(folder.path(), b"abc", &library, &shims).expect("a good manifest");
        assert_eq!(laid_out[0], shims.join(&library));
        let manifest: Value =
            serde_json::from_slice(&fs::read(&laid_out[1]).expect("laid out")).expect("JSON");
        assert_eq!(manifest["library"], library.as_str());
        assert!(manifest.get("sha256").is_none(), "{manifest}");
    }

    #[test]
    fn faults_of_a_shims_folder_are_named() {
        let library = workspace::library_file("a");
        for (manifests, problem) in [
            (&[("a.shim.json", r#"{"library": "b"}"#)][..], "the build makes"),
            (&[("a.shim.json", "{}"), ("b.shim.json", "{}")], "second manifest"),
            (&[("a.shim.json", "[]")], "not a JSON object"),
            (&[("a.shim.json", "{")], "EOF"),
        ] {
            let folder = shim_folder(manifests);
            let error = install(folder.path(), b"", &library, folder.path()).expect_err(problem);
            assert!(matches!(error, Error::Unexpected { .. }), "{error:?}");
            let text = error.to_string();
            assert!(text.contains(problem) && text.contains(".shim.json"), "{text}");
        }
        let none = shim_folder(&[]);
        assert!(install(none.path(), b"", &library, none.path()).expect("no shim, no fault").is_empty());
    }
}
