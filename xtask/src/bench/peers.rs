//! The CPU engine beside the engines people pick today, on random weights in published shapes: llama.cpp in pairs, LiteRT-LM as far as it runs
//! without published weights.
//!
//! Everything large lies in the cache folder and is made once: checkpoints, GGUF files, bundles, the peers themselves. An interrupted command
//! that is run again goes on where it stopped.

mod litert;
mod llama;
mod table;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};

use crate::build::Scope;
use crate::error::Error;
use crate::workspace::{self, Profile, Workspace};
use crate::{build, process, setup, vendor};

/// The word that asks for this comparison.
pub const NAME: &str = "peers";

/// The package that writes checkpoints, and its program for that.
const WRITER: [&str; 4] = ["--package", "shardwright-test-checkpoints", "--example", "real_checkpoint"];

/// Names a folder with the program and what lies beside it, where it is not to be built first.
const BUILT_VARIABLE: &str = "SHARDWRIGHT_BIN_DIR";

/// Says how many pairs there are of each measurement.
const REPETITIONS_VARIABLE: &str = "SHARDWRIGHT_PEER_PAIRS";

/// Pairs unless told otherwise: some are discarded.
const REPETITIONS: &str = "7";

/// What the figures of one line are measured on: two threads, as most small machines have.
const THREADS: &str = "2";

/// One bundle beside one file of the peer.
struct Case {
    model: &'static str,
    /// As the planner's option takes it.
    format: &'static str,
    /// As `llama-quantize` takes it.
    peer: &'static str,
    /// Besides the repetitions and threads.
    work: &'static [&'static str],
    /// Capacity of the bundle.
    context: &'static str,
}

const INT8: &str = "w8-per-channel/a8-dynamic";
const INT4: &str = "w4-block32/a8-dynamic";

/// Prompts and generation, as `llama-bench` measures by default; of the logits of generation the largest is asked for.
const USUAL: &[&str] = &["-p", "512,128", "-n", "128"];
/// Generation with all logits, which `llama-bench` computes. A head of four bits is read whole either way.
const WHOLE: &[&str] = &["-n", "128", "--all-logits"];
/// Generation after few and after many tokens.
const LONG: &[&str] = &["-n", "32", "-d", "128,8192"];

const fn case(
    model: &'static str,
    format: &'static str,
    peer: &'static str,
    work: &'static [&'static str],
    context: &'static str,
) -> Case {
    Case { model, format, peer, work, context }
}

/// In the order in which they are measured: the small ones first.
const CASES: [Case; 13] = [
    case("gemma3-270m", INT8, "Q8_0", USUAL, "1024"),
    case("gemma3-270m", INT8, "Q8_0", WHOLE, "1024"),
    case("gemma3-270m", INT4, "Q4_0", USUAL, "1024"),
    case("qwen3-0.6b", INT8, "Q8_0", USUAL, "1024"),
    case("qwen3-0.6b", INT8, "Q8_0", WHOLE, "1024"),
    case("qwen3-0.6b", INT4, "Q4_0", USUAL, "1024"),
    case("gemma3-1b", INT8, "Q8_0", USUAL, "1024"),
    case("gemma3-1b", INT8, "Q8_0", WHOLE, "1024"),
    case("gemma3-1b", INT4, "Q4_0", USUAL, "1024"),
    case("gemma3-1b", INT8, "Q8_0", LONG, "8448"),
    case("gemma4-e2b", INT4, "Q4_0", USUAL, "1024"),
    case("gemma4-e2b", INT8, "Q8_0", USUAL, "1024"),
    case("gemma4-e2b", INT8, "Q8_0", WHOLE, "1024"),
];

/// Measures the cases whose model contains one of `models` (without one, all) and writes their figures and the table to `tests/benches/results`.
pub fn compare(workspace: &Workspace, models: &[String]) -> Result<(), Error> {
    let wanted: Vec<&Case> = CASES
        .iter()
        .filter(|case| models.is_empty() || models.iter().any(|model| case.model.contains(model.as_str())))
        .collect();
    let folder = vendor::cache_folder()?.join("bench").join(NAME);
    make_folder(&folder)?;
    let llama = llama::provide(&folder)?;
    eprintln!("the peer: {}", llama.bench.display());
    let program = match std::env::var_os(BUILT_VARIABLE).filter(|said| !said.is_empty()) {
        Some(built) => PathBuf::from(built).join(format!("shardwright{}", std::env::consts::EXE_SUFFIX)),
        None => {
            setup::prepare(workspace)?;
            build::build(workspace, Profile::Release, Scope::Program)?
        }
    };

    let mut reports = Vec::new();
    for case in wanted {
        let made = Made::of(workspace, case, &folder, &program, &llama)?;
        let mut command = Command::new(&program);
        command
            .arg("bench")
            .arg(&made.bundle)
            .args(case.work)
            .args(["-t", THREADS, "-r", &repetitions(), "--format", "json"])
            .arg("--peer-llama-bench")
            .arg(&llama.bench)
            .arg("--peer-model")
            .arg(&made.gguf);
        process::announce(&command);
        let answer = process::output(&mut command)?;
        let mut report: Value = serde_json::from_str(&answer).map_err(|error| Error::Answer {
            command: process::shown(&command),
            problem: error.to_string(),
        })?;
        anonymise(&mut report);
        reports.push(json!({ "case": case.name(), "peer": case.peer, "report": report }));
    }
    let litert = litert::measure(&folder)?;

    let results = workspace.root.join("tests/benches/results");
    make_folder(&results)?;
    let figures = json!({
        "threads": THREADS,
        "llama_cpp": { "source": llama::SOURCE, "built": llama.built },
        "litert_lm": litert,
        "cases": reports,
    });
    workspace::replace(&results.join("peers.json"), format!("{figures:#}\n").as_bytes())?;
    let table = table::markdown(&figures);
    print!("{table}");
    workspace::replace(&results.join("peers.md"), table.as_bytes())
}

fn repetitions() -> String {
    std::env::var(REPETITIONS_VARIABLE).unwrap_or_else(|_| REPETITIONS.to_owned())
}

impl Case {
    /// `gemma3-270m, w8-per-channel/a8-dynamic`
    fn name(&self) -> String {
        format!("{}, {}", self.model, self.format)
    }
}

/// The files of a case.
struct Made {
    bundle: PathBuf,
    gguf: PathBuf,
}

impl Made {
    /// Makes what is not there.
    fn of(
        workspace: &Workspace,
        case: &Case,
        folder: &Path,
        program: &Path,
        llama: &llama::Llama,
    ) -> Result<Made, Error> {
        let (checkpoints, ggufs, bundles) =
            (folder.join("checkpoints"), folder.join("gguf"), folder.join("bundles"));
        for folder in [&checkpoints, &ggufs, &bundles] {
            make_folder(folder)?;
        }
        let checkpoint = checkpoints.join(case.model);
        let float = ggufs.join(format!("{}-F16.gguf", case.model));
        let gguf = ggufs.join(format!("{}-{}.gguf", case.model, case.peer));
        if !gguf.is_file() || !checkpoint.join("config.json").is_file() {
            let mut write = workspace.cargo();
            write.args(["run", "--quiet", "--release"]).args(WRITER).arg("--");
            write.arg(case.model).arg(&checkpoint);
            if !gguf.is_file() {
                write.arg(&float);
            }
            process::run(&mut write)?;
        }
        if !gguf.is_file() {
            let partial = ggufs.join("quantising.partial");
            process::run(Command::new(&llama.quantize).arg(&float).arg(&partial).args([case.peer, THREADS]))?;
            fs::rename(&partial, &gguf).map_err(|source| Error::File { path: gguf.clone(), source })?;
            // It is large, and needed until every other file of this model is made from it.
            let others = CASES.iter().filter(|other| other.model == case.model);
            let all = others.map(|other| ggufs.join(format!("{}-{}.gguf", other.model, other.peer)));
            if all.into_iter().all(|made| made.is_file()) {
                fs::remove_file(&float).map_err(|source| Error::File { path: float.clone(), source })?;
            }
        }
        // Compiled anew every time, which costs little where nothing changed: a bundle must be what this shim makes.
        let bundle =
            bundles.join(format!("{}-{}-{}", case.model, case.format.replace('/', "-"), case.context));
        process::run(
            Command::new(program)
                .arg("compile")
                .arg(&checkpoint)
                .arg("--planner-option")
                .arg(format!("format={}", case.format))
                .args(["--context", case.context, "--output"])
                .arg(&bundle)
                .stdout(std::process::Stdio::null()),
        )?;
        Ok(Made { bundle, gguf })
    }
}

/// Paths of this machine say nothing elsewhere: their last part stays.
fn anonymise(report: &mut Value) {
    for name in ["program", "model"] {
        let path = &mut report["pairs"]["peer"][name];
        let last =
            path.as_str().and_then(|text| Path::new(text).file_name()).map(|name| name.to_string_lossy());
        *path = last.map_or(Value::Null, |last| Value::from(last.into_owned()));
    }
}

fn make_folder(folder: &Path) -> Result<(), Error> {
    fs::create_dir_all(folder).map_err(|source| Error::File { path: folder.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_this_machine_do_not_reach_the_results() {
        let mut report =
            json!({ "pairs": { "peer": { "program": "/a/b/llama-bench", "model": "/c/m.gguf" } } });
        anonymise(&mut report);
        assert_eq!(report["pairs"]["peer"], json!({ "program": "llama-bench", "model": "m.gguf" }));
    }
}
