//! The CPU engine compared with popular engines, on random weights in published shapes: llama.cpp
//! in pairs, LiteRT-LM as far as it runs without published weights.
//!
//! Large files are in the cache folder and made once: checkpoints, GGUF files, bundles, the peers
//! themselves. An interrupted command can be repeated and continues where it stopped.

mod growth;
mod litert;
mod llama;
mod llama_bench;
mod lookup;
mod pairs;
mod quality;
mod table;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use shardwright_measure::Prober;

use self::llama_bench::LlamaBench;
pub use self::lookup::compare as compare_lookup;
use self::pairs::{Bounds, Turn, Work};
pub use self::quality::{NAME as QUALITY, compare as compare_quality};
use crate::build::Scope;
use crate::error::Error;
use crate::workspace::{self, Profile, Workspace};
use crate::{build, process, setup, vendor};

/// Subcommand for this comparison.
pub const NAME: &str = "peers";
/// Subcommand for pairs of a bundle and a GGUF file.
pub const PAIR: &str = "pair";
/// Subcommand for prompt lookup compared with the peer's.
pub const LOOKUP: &str = "lookup";
/// Subcommand for the growth of work.
pub const GROWTH: &str = "growth";

/// The package that writes checkpoints, and its program for that.
const WRITER: [&str; 4] = ["--package", "shardwright-test-checkpoints", "--example", "real_checkpoint"];

/// Variable with a folder of the program and its files, to skip building it first.
const BUILT_VARIABLE: &str = "SHARDWRIGHT_BIN_DIR";

/// Variable with the number of pairs of each measurement.
const PAIRS_VARIABLE: &str = "SHARDWRIGHT_PEER_PAIRS";

/// Default number of pairs, of which some are discarded.
const PAIRS: usize = 7;

/// Time without changes after which a file counts as unchanged.
const SETTLED: Duration = Duration::from_secs(4);

/// Threads of the figures in a line. Most small machines have two cores.
const THREADS: &str = "2";
const THREAD_COUNT: usize = 2;

/// Mebibytes to read for measuring memory bandwidth, more than the caches can store.
const PROBE_MEBIBYTES: u32 = 1024;

/// One bundle compared with one file of the peer.
struct Case {
    model: &'static str,
    /// Value of the planner's option.
    format: &'static str,
    /// File type for `llama-quantize`.
    peer: &'static str,
    /// Arguments other than the repetitions and threads.
    work: &'static [&'static str],
    /// Context of the bundle.
    context: &'static str,
}

const SMALLEST: &str = "gemma3-270m";
const USUAL_CONTEXT: &str = "1024";
const INT8: &str = "w8-per-channel/a8-dynamic";
const INT4: &str = "w4-block32/a8-dynamic";

/// Prompts and generation, as `llama-bench` measures by default. Generation requests only the
/// largest logit.
const USUAL: &[&str] = &["-p", "512,128", "-n", "128"];
/// Generation with all logits, as `llama-bench` computes them. A four-bit head is read completely
/// in both cases.
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

/// Cases in the order of measurement, small ones first.
const CASES: [Case; 14] = [
    case(SMALLEST, INT8, "Q8_0", USUAL, USUAL_CONTEXT),
    case(SMALLEST, INT8, "Q8_0", WHOLE, USUAL_CONTEXT),
    case(SMALLEST, INT4, "Q4_0", USUAL, USUAL_CONTEXT),
    case("qwen3-0.6b", INT8, "Q8_0", USUAL, USUAL_CONTEXT),
    case("qwen3-0.6b", INT8, "Q8_0", WHOLE, USUAL_CONTEXT),
    case("qwen3-0.6b", INT4, "Q4_0", USUAL, USUAL_CONTEXT),
    case("gemma3-1b", INT8, "Q8_0", USUAL, USUAL_CONTEXT),
    case("gemma3-1b", INT8, "Q8_0", WHOLE, USUAL_CONTEXT),
    case("gemma3-1b", INT4, "Q4_0", USUAL, USUAL_CONTEXT),
    case("gemma3-1b", INT8, "Q8_0", LONG, "8448"),
    case("gemma4-e2b", INT4, "Q4_0", USUAL, USUAL_CONTEXT),
    case("gemma4-e2b", INT8, "Q8_0", USUAL, USUAL_CONTEXT),
    case("gemma4-e2b", INT8, "Q8_0", WHOLE, USUAL_CONTEXT),
    case("gemma4-e4b", INT4, "Q4_0", USUAL, USUAL_CONTEXT),
];

/// Measures the cases whose model contains one of `models`, or all without a name. Writes their
/// figures and the table to `tests/benches/results`.
pub fn compare(workspace: &Workspace, models: &[String]) -> Result<(), Error> {
    let wanted: Vec<&Case> = CASES
        .iter()
        .filter(|case| models.is_empty() || models.iter().any(|model| case.model.contains(model.as_str())))
        .collect();
    let turns = Turns::new()?;
    let folder = folder()?;
    let llama = llama::provide(&folder)?;
    eprintln!("the peer: {}", llama.bench.display());
    let workshop = Workshop::new(workspace, folder)?;

    let mut reports = Vec::new();
    for case in wanted {
        let gguf = workshop.gguf(case, &llama)?;
        let bundle = workshop.bundle(case.model, case.format, case.context)?;
        let report = turns.beside_llama(&workshop, &bundle, case.work, &llama, &gguf)?;
        reports.push(json!({ "case": case.name(), "peer": case.peer, "report": report }));
    }
    let litert = litert::measure(&workshop, &turns)?;
    reports.extend(litert["report"].is_object().then(|| litert.clone()));

    let figures = json!({
        "threads": THREADS,
        "llama_cpp": { "source": llama::SOURCE, "built": llama.built },
        "litert_lm": { "package": litert["package"], "skipped": litert["skipped"] },
        "cases": reports,
    });
    keep(workspace, NAME, &figures, &table::markdown(&figures))
}

/// Compares a bundle with a file of llama.cpp and prints the table.
pub fn pair(workspace: &Workspace, bundle: &Path, gguf: &Path) -> Result<(), Error> {
    for path in [bundle, gguf] {
        fs::metadata(path).map_err(|source| Error::File { path: path.to_owned(), source })?;
    }
    let turns = Turns::new()?;
    let folder = folder()?;
    let llama = llama::provide(&folder)?;
    let report = turns.beside_llama(&Workshop::new(workspace, folder)?, bundle, USUAL, &llama, gguf)?;
    let peer = &report["pairs"]["peer"]["model_type"];
    let case = json!({ "case": report["model"], "peer": peer, "report": report });
    let llama = json!({ "source": llama::SOURCE, "built": llama.built });
    print!("{}", table::markdown(&json!({ "threads": THREADS, "llama_cpp": llama, "cases": [case] })));
    Ok(())
}

/// Measures how the work of one model grows, and writes figures, table and picture to
/// `tests/benches/results`.
pub fn grow(workspace: &Workspace) -> Result<(), Error> {
    let figures = growth::measure(&Workshop::new(workspace, folder()?)?)?;
    keep(workspace, GROWTH, &figures, &growth::markdown(&figures))
}

/// Returns the folder of the large files.
fn folder() -> Result<PathBuf, Error> {
    let folder = vendor::cache_folder()?.join("bench").join(NAME);
    make_folder(&folder)?;
    Ok(folder)
}

fn keep(workspace: &Workspace, name: &str, figures: &Value, page: &str) -> Result<(), Error> {
    let results = workspace.root.join("tests/benches/results");
    make_folder(&results)?;
    workspace::replace(&results.join(format!("{name}.json")), format!("{figures:#}\n").as_bytes())?;
    print!("{page}");
    workspace::replace(&results.join(format!("{name}.md")), page.as_bytes())
}

/// Parses the number of pairs from the content of the variable.
fn pairs(said: Option<&OsStr>) -> Result<usize, Error> {
    let Some(said) = said.filter(|said| !said.is_empty()) else { return Ok(PAIRS) };
    let count = said.to_str().and_then(|said| said.parse().ok()).filter(|pairs| *pairs > 0);
    count.ok_or_else(|| Error::Variable {
        name: PAIRS_VARIABLE,
        value: said.to_string_lossy().into_owned(),
        expected: "a count of pairs of at least 1",
    })
}

/// Parameters shared by all comparisons.
struct Turns {
    count: usize,
    bounds: Bounds,
    prober: Prober,
}

impl Turns {
    fn new() -> Result<Turns, Error> {
        let count = pairs(std::env::var_os(PAIRS_VARIABLE).as_deref())?;
        Ok(Turns { count, bounds: Bounds::wanted()?, prober: prober(PROBE_MEBIBYTES)? })
    }

    /// Returns the report of a bundle with the pairs in it.
    fn beside(
        &self,
        workshop: &Workshop<'_>,
        bundle: &Path,
        work: &[&str],
        theirs: Turn<'_, Vec<f64>>,
    ) -> Result<Value, Error> {
        let mut report = workshop.measure(bundle, &[work, &["-t", THREADS, "-r", "1"]].concat())?;
        let mut ours = |work: &Work| {
            let sizes = work.sizes().into_iter().filter(|(name, size)| *name == "-d" || *size > 0);
            let mut command = workshop.command(bundle);
            for (name, size) in sizes.chain([("-t", THREAD_COUNT as u64), ("-r", 1)]) {
                command.arg(name).arg(size.to_string());
            }
            command.args((work.generated > 0 && work.all_logits).then_some("--all-logits"));
            let answer = answer(&mut command)?;
            let speed = answer["results"][0]["tokens_per_second"]["median"].as_f64();
            speed.ok_or_else(|| Error::Answer {
                command: process::shown(&command),
                problem: "no speed".to_owned(),
            })
        };
        let (works, read) = (Work::of(&report), report["memory"]["weight_bytes"].as_u64());
        report["pairs"] =
            pairs::pairs(&works, self.count, self.bounds, &self.prober, read, &mut ours, theirs)?;
        Ok(report)
    }

    fn beside_llama(
        &self,
        workshop: &Workshop<'_>,
        bundle: &Path,
        work: &[&str],
        llama: &llama::Llama,
        gguf: &Path,
    ) -> Result<Value, Error> {
        let mut peer = LlamaBench::new(&llama.bench, gguf, THREAD_COUNT);
        let mut report = self.beside(workshop, bundle, work, &mut |work| peer.measure(work))?;
        report["pairs"]["peer"] = peer.facts;
        Ok(report)
    }
}

fn prober(mebibytes: u32) -> Result<Prober, Error> {
    Prober::new(mebibytes).map_err(|error| Error::Memory {
        what: format!("{mebibytes} MiB to see how fast memory is"),
        problem: error.to_string(),
    })
}

impl Case {
    /// Returns a name such as `gemma3-270m, w8-per-channel/a8-dynamic`.
    fn name(&self) -> String {
        format!("{}, {}", self.model, self.format)
    }
}

/// The measured program, and the folder of its inputs, which are made unless they exist.
struct Workshop<'w> {
    workspace: &'w Workspace,
    folder: PathBuf,
    program: PathBuf,
}

impl<'w> Workshop<'w> {
    /// Builds the program, unless a variable names one.
    fn new(workspace: &'w Workspace, folder: PathBuf) -> Result<Workshop<'w>, Error> {
        let program = match std::env::var_os(BUILT_VARIABLE).filter(|said| !said.is_empty()) {
            Some(built) => PathBuf::from(built).join(format!("shardwright{}", std::env::consts::EXE_SUFFIX)),
            None => {
                setup::prepare(workspace)?;
                build::build(workspace, Profile::Release, Scope::Program)?
            }
        };
        Ok(Workshop { workspace, folder, program })
    }

    fn place(&self, kind: &str, name: &str) -> Result<PathBuf, Error> {
        let folder = self.folder.join(kind);
        make_folder(&folder)?;
        Ok(folder.join(name))
    }

    /// Makes the checkpoint and, if `float` is set, the same numbers in the peer's format.
    fn checkpoint(&self, model: &str, float: Option<&Path>) -> Result<PathBuf, Error> {
        let checkpoint = self.place("checkpoints", model)?;
        if float.is_some() || !checkpoint.join("config.json").is_file() {
            let mut write = self.workspace.cargo();
            write.args(["run", "--quiet", "--release"]).args(WRITER).arg("--");
            process::run(write.arg(model).arg(&checkpoint).args(float))?;
        }
        Ok(checkpoint)
    }

    /// Makes the peer's file of a case.
    fn gguf(&self, case: &Case, llama: &llama::Llama) -> Result<PathBuf, Error> {
        let named = |peer: &str| self.place("gguf", &format!("{}-{peer}.gguf", case.model));
        let (gguf, float, partial) =
            (named(case.peer)?, named("F16")?, self.place("gguf", "quantising.partial")?);
        if gguf.is_file() {
            return Ok(gguf);
        }
        if !float.is_file() {
            self.checkpoint(case.model, Some(&float))?;
        }
        process::run(Command::new(&llama.quantize).arg(&float).arg(&partial).args([case.peer, THREADS]))?;
        fs::rename(&partial, &gguf).map_err(|source| Error::File { path: gguf.clone(), source })?;
        // The file is large, and needed until every other file of this model is made from it.
        let mut others = CASES.iter().filter(|other| other.model == case.model);
        if others.all(|other| named(other.peer).is_ok_and(|made| made.is_file())) {
            fs::remove_file(&float).map_err(|source| Error::File { path: float.clone(), source })?;
        }
        Ok(gguf)
    }

    /// Compiles the bundle every time, because it must match this shim. That is cheap if the shim
    /// did not change.
    fn bundle(&self, model: &str, format: &str, context: &str) -> Result<PathBuf, Error> {
        let checkpoint = self.checkpoint(model, None)?;
        let bundle = self.place("bundles", &format!("{model}-{}-{context}", format.replace('/', "-")))?;
        let mut compile = Command::new(&self.program);
        compile.arg("compile").arg(checkpoint).arg("--planner-option").arg(format!("format={format}"));
        compile.args(["--context", context, "--output"]).arg(&bundle);
        process::run(compile.stdout(std::process::Stdio::null()))?;
        // Run it once more to store its proof, which requires files that have not changed for a
        // while.
        std::thread::sleep(SETTLED);
        self.measure(&bundle, &["-n", "1", "-r", "1"])?;
        Ok(bundle)
    }

    /// Returns the report of `shardwright bench`.
    fn measure(&self, bundle: &Path, arguments: &[&str]) -> Result<Value, Error> {
        let mut command = self.command(bundle);
        process::announce(command.args(arguments));
        answer(&mut command)
    }

    fn command(&self, bundle: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["--format", "json", "bench"]).arg(bundle);
        command
    }
}

/// Runs our program and returns the report that it prints.
fn answer(command: &mut Command) -> Result<Value, Error> {
    let answer = process::output(command)?;
    serde_json::from_str(&answer)
        .map_err(|error| Error::Answer { command: process::shown(command), problem: error.to_string() })
}

fn make_folder(folder: &Path) -> Result<(), Error> {
    fs::create_dir_all(folder).map_err(|source| Error::File { path: folder.to_owned(), source })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pairs_are_counted_as_a_variable_says_or_refused() {
        assert_eq!((pairs(None).unwrap(), pairs(Some(OsStr::new(""))).unwrap()), (PAIRS, PAIRS));
        assert_eq!(pairs(Some(OsStr::new("3"))).unwrap(), 3);
        for wrong in ["0", "-1", "many", "3 "] {
            let error = pairs(Some(OsStr::new(wrong))).unwrap_err();
            assert!(matches!(&error, Error::Variable { name: PAIRS_VARIABLE, value, .. } if value == wrong));
            assert!(error.help().is_some(), "{error}");
        }
    }

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        let error = prober(u32::MAX).err().expect("four pebibytes");
        assert!(matches!(&error, Error::Memory { .. }) && error.help().is_some(), "{error}");
    }
}
