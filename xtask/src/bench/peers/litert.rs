//! LiteRT-LM, as far as it runs without published weights: it reads `.litertlm` files alone, and what makes those from a checkpoint
//! (`litert-torch`, with gigabytes of what it needs) is not installed here. Whoever has such a file names it.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::error::Error;
use crate::process;

/// Names a `.litertlm` file of Gemma 3 270M to measure.
const MODEL_VARIABLE: &str = "SHARDWRIGHT_LITERT_LM_MODEL";

/// What is installed to run it.
const PACKAGE: &str = "litert-lm==0.18.1";

/// As its own tool measures: a prompt of 512 tokens, 128 generated, on two threads, weights packed once and kept beside the model.
const WORK: [&str; 12] = [
    "--backend",
    "cpu",
    "--cpu-thread-count",
    "2",
    "-p",
    "512",
    "-d",
    "128",
    "--runs",
    "3",
    "--cache",
    "disk",
];

/// What it says of itself, or why it says nothing.
pub fn measure(folder: &Path) -> Result<Value, Error> {
    let Some(model) = std::env::var_os(MODEL_VARIABLE).filter(|said| !said.is_empty()).map(PathBuf::from)
    else {
        let why = format!(
            "not measured: it runs `.litertlm` files alone, and none is made here from random weights (that is litert-torch's work); {MODEL_VARIABLE} names one"
        );
        eprintln!("LiteRT-LM: {why}");
        return Ok(json!({ "package": PACKAGE, "skipped": why }));
    };
    let program = program(folder)?;
    let mut command = Command::new(&program);
    command.arg("benchmark").arg(&model).args(WORK);
    process::announce(&command);
    let told = process::output(&mut command)?;
    let rates: Vec<&str> = told.lines().filter(|line| line.contains("tok")).map(str::trim).collect();
    let name = model.file_name().map(|name| name.to_string_lossy().into_owned());
    Ok(json!({ "package": PACKAGE, "model": name, "told": rates }))
}

/// Its program, in an environment of its own.
fn program(folder: &Path) -> Result<PathBuf, Error> {
    let environment = folder.join("litert-lm");
    let program = environment.join("bin/litert-lm");
    if !program.is_file() {
        process::run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&environment))?;
        process::run(Command::new(environment.join("bin/python")).args([
            "-m",
            "pip",
            "--disable-pip-version-check",
            "install",
            "--quiet",
            PACKAGE,
        ]))?;
    }
    Ok(program)
}
