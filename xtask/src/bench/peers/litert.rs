//! LiteRT-LM in turns with this engine. It reads `.litertlm` files alone; what makes those from a
//! checkpoint (`litert-torch`, with gigabytes of what it needs) is not installed here, so whoever
//! has such a file names it. `docs/benchmarks/cpu.md` says how one is made.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::error::Error;
use crate::process;

/// Names a `.litertlm` file of Gemma 3 270M to measure.
const MODEL_VARIABLE: &str = "SHARDWRIGHT_LITERT_LM_MODEL";

/// What is installed to run it.
const PACKAGE: &str = "litert-lm==0.18.1";

/// As its own tool measures: a prompt of 512 tokens, 128 generated, on two threads, weights packed
/// once and kept beside the model. It runs each once unmeasured. The tool has no option that pins
/// its threads.
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
const OUR_WORK: [&str; 10] = ["-p", "512", "-n", "128", "-t", "2", "-r", "1", "--format", "json"];

/// Measures our program with a bundle, which `ours` gives, and the file that is named in so many
/// turns; says why not where none is named.
pub fn measure(
    folder: &Path,
    pairs: usize,
    ours: impl FnOnce() -> Result<(PathBuf, PathBuf), Error>,
) -> Result<Value, Error> {
    let Some(model) = std::env::var_os(MODEL_VARIABLE).filter(|said| !said.is_empty()).map(PathBuf::from)
    else {
        let why = format!(
            "not measured: it runs `.litertlm` files alone, and none is made here from random weights (that is litert-torch's work); {MODEL_VARIABLE} names one"
        );
        eprintln!("LiteRT-LM: {why}");
        return Ok(json!({ "package": PACKAGE, "skipped": why }));
    };
    let program = program(folder)?;
    let mut theirs = Command::new(&program);
    theirs.arg("benchmark").arg(&model).args(WORK);
    let (ours, bundle) = ours()?;
    let mut our_turn = Command::new(ours);
    our_turn.arg("bench").arg(bundle).args(OUR_WORK);
    process::announce(&theirs);
    // Packs its weights, where that was not done before.
    process::output(&mut theirs)?;
    let mut samples = Vec::new();
    for pair in 0..pairs {
        let mut our_speeds = || told(&mut our_turn, our_speeds);
        let mut their_speeds = || told(&mut theirs, speeds);
        // Who is first changes from pair to pair.
        samples.push(if pair % 2 == 0 {
            let ours = our_speeds()?;
            [ours, their_speeds()?]
        } else {
            let peer = their_speeds()?;
            [our_speeds()?, peer]
        });
    }
    let name = model.file_name().map(|name| name.to_string_lossy().into_owned());
    let works = ["pp512", "tg128"].iter().enumerate().map(|(work, test)| {
        let of = |who: usize| samples.iter().map(|pair| pair[who][work]).collect::<Vec<_>>();
        let ratios: Vec<f64> = samples.iter().map(|pair| pair[0][work] / pair[1][work]).collect();
        json!({
            "test": test,
            "ours": median(of(0)),
            "peer": median(of(1)),
            "ratio": median(of(0)) / median(of(1)),
            "least_ratio": ratios.iter().copied().fold(f64::INFINITY, f64::min),
            "largest_ratio": ratios.iter().copied().fold(0.0, f64::max),
            "samples": { "ours": of(0), "peer": of(1) },
        })
    });
    Ok(json!({ "package": PACKAGE, "model": name, "pairs": pairs, "works": works.collect::<Vec<_>>() }))
}

/// Runs a command and reads the speeds that it tells.
fn told(command: &mut Command, read: fn(&str) -> Option<[f64; 2]>) -> Result<[f64; 2], Error> {
    read(&process::output(command)?).ok_or_else(|| Error::Answer {
        command: process::shown(command),
        problem: "it tells no speeds of prompt and generation".to_owned(),
    })
}

/// Tokens a second of prompt and generation, as its tool tells them.
fn speeds(told: &str) -> Option<[f64; 2]> {
    let of = |name: &str| {
        let rest = told.split(name).nth(1)?;
        rest.split_whitespace().next()?.parse::<f64>().ok()
    };
    Some([of("Prefill speed:")?, of("Decode speed:")?])
}

/// The same of a report of ours.
fn our_speeds(told: &str) -> Option<[f64; 2]> {
    let report: Value = serde_json::from_str(told).ok()?;
    let of = |index: usize| report["results"][index]["tokens_per_second"]["median"].as_f64();
    Some([of(0)?, of(1)?])
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    let (low, high) = (values.len().saturating_sub(1) / 2, values.len() / 2);
    match (values.get(low), values.get(high)) {
        (Some(low), Some(high)) => (low + high) / 2.0,
        _ => f64::NAN,
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_read_from_what_both_tell() {
        let told = "Max number of tokens : 1024\nPrefill speed: 309.63 tokens/s\nDecode speed: 9.67 tokens/s\nInit time: 0.9706 s\n";
        assert_eq!(speeds(told), Some([309.63, 9.67]));
        assert_eq!(speeds("Prefill speed: none"), None);
        let report = r#"{ "results": [{ "tokens_per_second": { "median": 3.0 } }, { "tokens_per_second": { "median": 2.5 } }] }"#;
        assert_eq!(our_speeds(report), Some([3.0, 2.5]));
        assert_eq!(our_speeds("{}"), None);
    }

    #[test]
    fn a_command_that_tells_no_speeds_is_named() {
        let mut silent = Command::new("true");
        let error = told(&mut silent, speeds).unwrap_err();
        assert!(matches!(&error, Error::Answer { command, .. } if command == "true"), "{error}");
    }

    #[test]
    fn the_median_is_the_middle_one_or_between_two() {
        assert_eq!((median(vec![3.0, 1.0, 2.0]), median(vec![4.0, 1.0, 2.0, 3.0])), (2.0, 2.5));
        assert!(median(Vec::new()).is_nan());
    }
}
