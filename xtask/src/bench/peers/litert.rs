//! LiteRT-LM, alternating with this engine. It reads only `.litertlm` files. The tool that makes
//! them from a checkpoint (`litert-torch`, with gigabytes of dependencies) is not installed here,
//! so the user names such a file. `docs/benchmarks/cpu.md` explains how to make one.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use super::cases::{INT8, SMALLEST, USUAL_CONTEXT};
use super::pairs::Work;
use super::{THREADS, Turns, Workshop};
use crate::error::Error;
use crate::process;

/// Variable with a `.litertlm` file of Gemma 3 270M to measure.
const MODEL_VARIABLE: &str = "SHARDWRIGHT_LITERT_LM_MODEL";

/// The package to install.
const PACKAGE: &str = "litert-lm==0.18.1";

/// Arguments of its own benchmark: a prompt of 512 tokens, 128 generated, on two threads. Weights
/// are packed once and stored next to the model. The tool runs each once unmeasured. It has no
/// option to pin its threads.
const WORK: [&str; 14] = [
    "--backend",
    "cpu",
    "--cpu-thread-count",
    "2",
    "-p",
    "512",
    "-d",
    "128",
    "--runs",
    "1",
    "--cache",
    "disk",
    "--max-num-tokens",
    "1024",
];
const OUR_WORK: [&str; 4] = ["-p", "512", "-n", "128"];

/// Measures the smallest model, alternating with the named file, or reports that no file is named.
pub fn measure(workshop: &Workshop<'_>, turns: &Turns) -> Result<Value, Error> {
    let Some(model) = std::env::var_os(MODEL_VARIABLE).filter(|said| !said.is_empty()).map(PathBuf::from)
    else {
        let why = format!(
            "not measured: it runs `.litertlm` files alone, and none is made here from random weights (that is litert-torch's work); {MODEL_VARIABLE} names one"
        );
        eprintln!("LiteRT-LM: {why}");
        return Ok(json!({ "package": PACKAGE, "skipped": why }));
    };
    let mut theirs = Command::new(program(&workshop.folder)?);
    theirs.arg("benchmark").arg(&model).args(WORK);
    let bundle = workshop.bundle(SMALLEST, INT8, USUAL_CONTEXT)?;
    process::announce(&theirs);
    // Packs its weights, if that was not done before.
    process::output(&mut theirs)?;
    let mut turn = |work: &Work| {
        let [prompt, generated] = reported_speeds(&mut theirs)?;
        Ok(vec![if work.prompt > 0 { prompt } else { generated }])
    };
    let report = turns.beside(workshop, &bundle, (&OUR_WORK, THREADS), &mut turn)?;
    Ok(json!({
        "case": format!("{SMALLEST}, {INT8}"),
        "peer": "LiteRT-LM",
        "threads": THREADS,
        "package": PACKAGE,
        "report": report,
    }))
}

/// Runs the tool and reads the reported throughputs.
fn reported_speeds(command: &mut Command) -> Result<[f64; 2], Error> {
    speeds(&process::output(command)?).ok_or_else(|| Error::Answer {
        command: process::shown(command),
        problem: "its output has no throughput of prompt and generation".to_owned(),
    })
}

/// Reads tokens per second of prompt and generation from the tool's output.
fn speeds(output: &str) -> Option<[f64; 2]> {
    let of = |name: &str| {
        let rest = output.split(name).nth(1)?;
        rest.split_whitespace().next()?.parse::<f64>().ok()
    };
    Some([of("Prefill speed:")?, of("Decode speed:")?])
}

/// Returns its program, in an environment of its own.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_read_from_what_it_tells() {
        let output = "Max number of tokens : 1024\nPrefill speed: 309.63 tokens/s\nDecode speed: 9.67 tokens/s\nInit time: 0.9706 s\n";
        assert_eq!(speeds(output), Some([309.63, 9.67]));
        assert_eq!(speeds("Prefill speed: none"), None);
    }

    #[test]
    fn a_command_that_reports_no_speeds_is_named() {
        let mut silent = Command::new("true");
        let error = reported_speeds(&mut silent).unwrap_err();
        assert!(matches!(&error, Error::Answer { command, .. } if command == "true"), "{error}");
    }
}
