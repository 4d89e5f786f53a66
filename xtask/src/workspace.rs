//! Paths of the project: the workspace, its target directory, and the layout next to the program.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use crate::error::Error;
use crate::{process, vendor};

/// A profile of cargo. Both share everything else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// For the demo and tests: dependencies are optimised, the workspace lightly.
    Dev,
    /// For `cargo xtask run` and `bench`.
    Release,
}

impl Profile {
    /// Returns the profile that a `--release` flag selects.
    pub fn of_release_flag(release: bool) -> Self {
        if release { Self::Release } else { Self::Dev }
    }

    /// Returns the profile's folder in the target directory.
    pub fn folder(self) -> &'static str {
        match self {
            Self::Dev => "debug",
            Self::Release => "release",
        }
    }

    /// Returns cargo's arguments for the profile.
    pub fn flags(self) -> &'static [&'static str] {
        match self {
            Self::Dev => &[],
            Self::Release => &["--release"],
        }
    }
}

/// A package of the workspace, with the properties that the builds need.
#[derive(Debug, Clone)]
pub struct Package {
    pub name: String,
    /// The folder of its manifest.
    pub folder: PathBuf,
    /// The file name of its dynamic library, if it has one.
    pub library: Option<String>,
    /// Names of the bench targets.
    pub benches: Vec<String>,
}

/// The workspace this program belongs to.
#[derive(Debug, Clone)]
pub struct Workspace {
    /// The folder of the root manifest.
    pub root: PathBuf,
    /// Cargo's target directory, as set by the environment.
    pub target: PathBuf,
    /// The member packages.
    pub packages: Vec<Package>,
}

impl Workspace {
    /// Finds the workspace with `cargo metadata`.
    pub fn locate() -> Result<Self, Error> {
        let manifest_folder = std::env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let mut command = process::cargo();
        command
            .args(["metadata", "--format-version", "1", "--no-deps", "--manifest-path"])
            .arg(manifest_folder.join("Cargo.toml"));
        let answer = process::output(&mut command)?;
        Self::from_metadata(&answer)
            .map_err(|problem| Error::Answer { command: process::shown(&command), problem })
    }

    fn from_metadata(answer: &str) -> Result<Self, String> {
        let metadata: Value = serde_json::from_str(answer).map_err(|error| error.to_string())?;
        let path = |name: &str| {
            metadata[name].as_str().map(PathBuf::from).ok_or_else(|| format!("no text `{name}`"))
        };
        let packages = metadata["packages"].as_array().ok_or("no list `packages`")?;
        Ok(Self {
            root: path("workspace_root")?,
            target: path("target_directory")?,
            packages: packages.iter().map(package).collect::<Result<_, _>>()?,
        })
    }

    /// Returns the folder of the program and of everything laid out next to it.
    pub fn output(&self, profile: Profile) -> PathBuf {
        self.target.join(profile.folder())
    }

    /// Returns the path of the program `shardwright`.
    pub fn program(&self, profile: Profile) -> PathBuf {
        self.output(profile).join(format!("shardwright{}", std::env::consts::EXE_SUFFIX))
    }

    /// Returns the members whose folder is below `folder`, which is relative to the root.
    pub fn packages_under(&self, folder: &str) -> impl Iterator<Item = &Package> {
        let folder = self.root.join(folder);
        self.packages.iter().filter(move |package| package.folder.starts_with(&folder))
    }

    /// Returns a `cargo` command that starts in the root.
    pub fn cargo(&self) -> Command {
        let mut command = process::cargo();
        command.current_dir(&self.root);
        vendor::offer(&mut command);
        command
    }
}

fn package(value: &Value) -> Result<Package, String> {
    let name = value["name"].as_str().ok_or("a package without a name")?;
    let manifest = value["manifest_path"].as_str().ok_or_else(|| format!("{name}: no manifest path"))?;
    let folder = Path::new(manifest).parent().ok_or_else(|| format!("{name}: no folder"))?;
    let targets = value["targets"].as_array().ok_or_else(|| format!("{name}: no targets"))?;
    let has = |target: &Value, key: &str, wanted: &[&str]| {
        target[key].as_array().is_some_and(|kinds| {
            kinds.iter().any(|kind| kind.as_str().is_some_and(|kind| wanted.contains(&kind)))
        })
    };
    let library = targets.iter().find(|target| has(target, "crate_types", &["cdylib", "dylib"]));
    Ok(Package {
        name: name.to_owned(),
        folder: folder.to_owned(),
        library: library
            .and_then(|target| target["name"].as_str())
            .map(|name| library_file(&name.replace('-', "_"))),
        benches: targets
            .iter()
            .filter(|target| has(target, "kind", &["bench"]))
            .filter_map(|target| target["name"].as_str().map(str::to_owned))
            .collect(),
    })
}

/// Returns the file name of a dynamic library on this system.
pub fn library_file(name: &str) -> String {
    format!("{}{name}{}", std::env::consts::DLL_PREFIX, std::env::consts::DLL_SUFFIX)
}

/// Returns the files of a folder, sorted by name. Empty if there is no such folder.
pub fn files_of(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(source) => return Err(Error::File { path: folder.to_owned(), source }),
    };
    let mut paths = Vec::new();
    for entry in entries {
        let entry = entry.map_err(|source| Error::File { path: folder.to_owned(), source })?;
        paths.push(entry.path());
    }
    paths.sort();
    Ok(paths)
}

/// Reads a whole file.
pub fn read(path: &Path) -> Result<Vec<u8>, Error> {
    fs::read(path).map_err(|source| Error::File { path: path.to_owned(), source })
}

/// Writes a file by renaming, so that a program that has mapped the old file keeps it intact. A
/// file that already has these bytes is not changed, so that its time stamp shows its last real
/// change.
pub fn replace(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    if fs::read(path).is_ok_and(|old| old == bytes) {
        return Ok(());
    }
    let failed = |source| Error::File { path: path.to_owned(), source };
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    let mut beside = path.as_os_str().to_owned();
    beside.push(format!(".{}.new", std::process::id()));
    let beside = PathBuf::from(beside);
    let mut file = fs::File::create(&beside).map_err(failed)?;
    file.write_all(bytes).map_err(failed)?;
    drop(file);
    fs::rename(&beside, path).map_err(failed)
}

/// Links a file to `place`, or copies it on file systems without hard links.
pub fn link(file: &Path, place: &Path) -> Result<(), Error> {
    let failed = |source| Error::File { path: place.to_owned(), source };
    if let Some(folder) = place.parent() {
        fs::create_dir_all(folder).map_err(failed)?;
    }
    match fs::remove_file(place) {
        Err(source) if source.kind() != std::io::ErrorKind::NotFound => return Err(failed(source)),
        _ => {}
    }
    fs::hard_link(file, place).or_else(|_| fs::copy(file, place).map(|_| ())).map_err(failed)
}

/// Sets the permission bits of a file, for example `0o755`. Has no effect on systems without them.
pub fn permit(path: &Path, mode: u32) -> Result<(), Error> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let permissions = fs::Permissions::from_mode(mode);
        fs::set_permissions(path, permissions).map_err(|source| Error::File { path: path.to_owned(), source })
    }
    #[cfg(not(unix))]
    {
        let _ = (path, mode);
        Ok(())
    }
}

/// File with the names, one per line, of the files that a build laid out in a folder. Other files
/// there belong to the user.
const LAID_OUT: &str = ".laid-out";

/// Records the files that this build laid out in a folder, and removes files that only an earlier
/// build laid out. A planner or shim deleted from the tree must not stay next to the program. Files
/// from other sources stay.
pub fn settle(folder: &Path, laid_out: &[PathBuf]) -> Result<(), Error> {
    let name_of = |path: &PathBuf| Some(path.file_name()?.to_string_lossy().into_owned());
    let names: Vec<_> = laid_out.iter().filter_map(name_of).collect();
    let list = folder.join(LAID_OUT);
    let earlier = fs::read_to_string(&list).unwrap_or_default();
    // A name, not a path: whatever the list contains, files outside the folder are not removed.
    let gone =
        earlier.lines().filter(|name| !name.contains(['/', '\\']) && !names.iter().any(|new| new == name));
    for path in gone.map(|name| folder.join(name)).filter(|path| path.is_file()) {
        fs::remove_file(&path).map_err(|source| Error::File { path, source })?;
    }
    replace(&list, (names.join("\n") + "\n").as_bytes())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_workspace_knows_itself() {
        let workspace = Workspace::locate().expect("cargo metadata");
        assert!(workspace.root.join("rust-toolchain.toml").is_file());
        assert!(workspace.packages.iter().any(|package| package.name == "xtask"));
        assert!(workspace.packages_under("vendor-shims").count() >= 2);
    }

    #[test]
    fn a_file_is_replaced_only_by_other_bytes_and_leftovers_go() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (kept, left) = (folder.path().join("kept"), folder.path().join("left"));
        replace(&kept, b"one").expect("written");
        replace(&left, b"two").expect("written");
        let written = fs::metadata(&kept).and_then(|metadata| metadata.modified()).expect("a time");
        replace(&kept, b"one").expect("left alone");
        assert_eq!(fs::metadata(&kept).and_then(|metadata| metadata.modified()).expect("a time"), written);
        replace(&kept, b"three").expect("replaced");
        assert_eq!(read(&kept).expect("there"), b"three");
        settle(folder.path(), &[kept.clone(), left.clone()]).expect("settled");
        let dropped = folder.path().join("dropped by somebody");
        replace(&dropped, b"theirs").expect("written");
        settle(folder.path(), std::slice::from_ref(&kept)).expect("settled");
        assert_eq!(files_of(folder.path()).expect("a folder"), [folder.path().join(LAID_OUT), dropped, kept]);
        assert!(matches!(read(&left), Err(Error::File { .. })));
    }

    #[test]
    fn unreadable_metadata_is_an_error_with_a_reason() {
        for (answer, reason) in [
            ("", "EOF"),
            ("{}", "packages"),
            (r#"{"packages": [{}], "workspace_root": "/", "target_directory": "/"}"#, "without a name"),
            (r#"{"packages": []}"#, "workspace_root"),
        ] {
            let problem = Workspace::from_metadata(answer).expect_err(answer);
            assert!(problem.contains(reason), "{answer}: {problem}");
        }
    }
}
