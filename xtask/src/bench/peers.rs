//! The CPU engine compared with popular engines, on random weights in published shapes and on
//! published weights: llama.cpp in pairs, LiteRT-LM as far as it runs without published weights.
//!
//! Large files are in the cache folder and made once: checkpoints, GGUF files, bundles, the peers
//! themselves. An interrupted command can be repeated and continues where it stopped.

mod cases;
mod growth;
mod litert;
mod llama;
mod llama_bench;
mod lookup;
mod losses;
mod pairs;
mod quality;
mod server;
mod table;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use serde_json::{Value, json};
use shardwright_measure::Prober;

use self::cases::{Case, File, PUBLISHED_NAME, Pairing, ROUNDED, USUAL, Weights};
use self::llama_bench::LlamaBench;
pub use self::lookup::compare as compare_lookup;
use self::losses::Losses;
pub use self::losses::NAME as QUALITY;
use self::pairs::{Bounds, Run, Turn, Work};
pub use self::quality::compare as compare_quality;
pub use self::server::{NAME as SERVER, compare as compare_server};
use crate::build::Scope;
use crate::error::Error;
use crate::workspace::{self, Profile, Workspace};
use crate::{build, models, process, setup, vendor};

/// Subcommand for this comparison.
pub const NAME: &str = "peers";
/// Subcommand for pairs of a bundle and a GGUF file.
pub const PAIR: &str = "pair";
/// Subcommand for pairs of this program and an earlier one.
pub const VERSIONS: &str = "versions";
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

/// Most runs of a model until no more of it is mapped in huge pages.
const SETTLING_RUNS: usize = 6;

/// Threads if a case does not list any. Most small machines have two cores.
const THREADS: usize = 2;

/// Mebibytes to read for measuring memory bandwidth, more than the caches can store.
const PROBE_MEBIBYTES: u32 = 1024;

/// Measures the cases that `names` select (see [`cases::wanted`]). Writes their figures and the
/// table to `tests/benches/results`.
pub fn compare(workspace: &Workspace, names: &[String]) -> Result<(), Error> {
    let wanted = cases::wanted(names);
    if wanted.is_empty() {
        return Err(Error::Usage(format!("no case has a model called `{}`", names.join("` or `"))));
    }
    let (turns, losses, folder) = (Turns::new()?, Losses::read(workspace)?, folder()?);
    let llama = llama::provide(&folder)?;
    eprintln!("the peer: {}", llama.bench.display());
    let workshop = Workshop::new(workspace, folder)?;

    let mut reports = Vec::new();
    for case in wanted {
        let bundle = workshop.bundle_of(&case, &llama)?;
        for &threads in case.threads {
            let report = match case.pairing {
                Pairing::Formats(_, file) | Pairing::SameFile(file) => {
                    let gguf = workshop.file_of(&case, file, &llama)?;
                    turns.beside_llama(&workshop, &bundle, (case.work, threads), &llama, &gguf)?
                }
                Pairing::Logits(_) => turns.beside_all_logits(&workshop, &bundle, (case.work, threads))?,
            };
            let formats = match report["formats"].as_array().map(Vec::as_slice) {
                Some([formats]) => formats.as_str().unwrap_or_default(),
                _ => "",
            };
            let [ours, peer] = case.losses(&losses, formats);
            reports.push(json!({
                "case": case.name(), "peer": case.peer(), "threads": threads,
                "loss": { "ours": ours, "peer": peer }, "report": report,
            }));
        }
    }
    let name = if names == [PUBLISHED_NAME] { PUBLISHED_NAME } else { NAME };
    let litert = if name == NAME { litert::measure(&workshop, &turns)? } else { Value::Null };
    reports.extend(litert["report"].is_object().then(|| litert.clone()));

    let figures = json!({
        "processor": processor(),
        "llama_cpp": { "source": llama::SOURCE, "built": llama.built },
        "litert_lm": { "package": litert["package"], "skipped": litert["skipped"] },
        "cases": reports,
    });
    keep(workspace, name, &figures, &table::markdown(&figures))
}

/// Compares a bundle with a file of llama.cpp and prints the table.
pub fn pair(workspace: &Workspace, bundle: &Path, gguf: &Path) -> Result<(), Error> {
    for path in [bundle, gguf] {
        fs::metadata(path).map_err(|source| Error::File { path: path.to_owned(), source })?;
    }
    let turns = Turns::new()?;
    let folder = folder()?;
    let llama = llama::provide(&folder)?;
    let workshop = Workshop::new(workspace, folder)?;
    workshop.settle(bundle)?;
    let report = turns.beside_llama(&workshop, bundle, (USUAL, THREADS), &llama, gguf)?;
    let peer = &report["pairs"]["peer"]["model_type"];
    let case = json!({ "case": report["model"], "peer": peer, "threads": THREADS, "report": report });
    let llama = json!({ "source": llama::SOURCE, "built": llama.built });
    let figures = json!({ "processor": processor(), "llama_cpp": llama, "cases": [case] });
    print!("{}", table::markdown(&figures));
    Ok(())
}

/// Compares this program with an earlier one, whose folder is `earlier`, on a model that both open,
/// and prints the table. `options` are of the commands `bench` of both.
pub fn versions(
    workspace: &Workspace,
    model: &Path,
    earlier: &Path,
    options: &[String],
) -> Result<(), Error> {
    let program = program_in(earlier);
    for path in [model, program.as_path()] {
        fs::metadata(path).map_err(|source| Error::File { path: path.to_owned(), source })?;
    }
    let turns = Turns::new()?;
    let workshop = Workshop { options: options.to_vec(), ..Workshop::new(workspace, folder()?)? };
    let earlier = Workshop { workspace, folder: workshop.folder.clone(), program, options: options.to_vec() };
    workshop.settle(model)?;
    let mut theirs = |work: &Work| Ok(vec![earlier.run(model, work, THREADS)?.speed]);
    let report = turns.beside(&workshop, model, (USUAL, THREADS), &mut theirs)?;
    let peer = "the earlier program";
    let case = json!({ "case": report["model"], "peer": peer, "threads": THREADS, "report": report });
    print!("{}", table::markdown(&json!({ "processor": processor(), "cases": [case] })));
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

/// Returns the folder of stored figures.
fn results(workspace: &Workspace) -> PathBuf {
    workspace.root.join("tests/benches/results")
}

fn keep(workspace: &Workspace, name: &str, figures: &Value, page: &str) -> Result<(), Error> {
    let results = results(workspace);
    make_folder(&results)?;
    workspace::replace(&results.join(format!("{name}.json")), format!("{figures:#}\n").as_bytes())?;
    print!("{page}");
    workspace::replace(&results.join(format!("{name}.md")), page.as_bytes())
}

/// Returns the name of the processor (Linux).
fn processor() -> Option<String> {
    let facts = fs::read_to_string("/proc/cpuinfo").ok()?;
    let name = facts.lines().find_map(|line| line.strip_prefix("model name"))?;
    Some(name.trim_start_matches([' ', '\t', ':']).to_owned())
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

    /// Returns the report of a bundle with the pairs in it. `work` has the arguments of its works,
    /// and the number of threads.
    fn beside(
        &self,
        workshop: &Workshop<'_>,
        bundle: &Path,
        (work, threads): (&[&str], usize),
        theirs: Turn<'_, Vec<f64>>,
    ) -> Result<Value, Error> {
        let count = threads.to_string();
        let mut report = workshop.measure(bundle, &[work, &["-t", &count, "-r", "1"]].concat())?;
        let works = Work::of(&report);
        let bytes = |name: &str| report["memory"][name].as_u64();
        // Programs before this figure report only the weights as planned.
        let read = bytes("artefact_bytes").or_else(|| bytes("weight_bytes"));
        let mut ours = |work: &Work| workshop.run(bundle, work, threads);
        report["pairs"] =
            pairs::pairs(&works, self.count, self.bounds, &self.prober, read, &mut ours, theirs)?;
        Ok(report)
    }

    fn beside_llama(
        &self,
        workshop: &Workshop<'_>,
        bundle: &Path,
        work: (&[&str], usize),
        llama: &llama::Llama,
        gguf: &Path,
    ) -> Result<Value, Error> {
        let mut peer = LlamaBench::new(&llama.bench, gguf, work.1);
        let mut report = self.beside(workshop, bundle, work, &mut |work| peer.measure(work))?;
        report["pairs"]["peer"] = peer.facts;
        Ok(report)
    }

    /// Compares generation with the largest logit and with all of them.
    fn beside_all_logits(
        &self,
        workshop: &Workshop<'_>,
        bundle: &Path,
        work: (&[&str], usize),
    ) -> Result<Value, Error> {
        let mut all = |own: &Work| {
            let own = Work { all_logits: true, ..own.clone() };
            Ok(vec![workshop.run(bundle, &own, work.1)?.speed])
        };
        self.beside(workshop, bundle, work, &mut all)
    }
}

fn prober(mebibytes: u32) -> Result<Prober, Error> {
    Prober::new(mebibytes).map_err(|error| Error::Memory {
        what: format!("{mebibytes} MiB to see how fast memory is"),
        problem: error.to_string(),
    })
}

/// Builds the program, unless a variable names the folder of one.
pub fn program(workspace: &Workspace) -> Result<PathBuf, Error> {
    match std::env::var_os(BUILT_VARIABLE).filter(|said| !said.is_empty()) {
        Some(built) => Ok(program_in(Path::new(&built))),
        None => {
            setup::prepare(workspace)?;
            build::build(workspace, Profile::Release, Scope::Program)
        }
    }
}

/// Returns the program in a folder of build outputs.
fn program_in(folder: &Path) -> PathBuf {
    folder.join(format!("shardwright{}", std::env::consts::EXE_SUFFIX))
}

/// The measured program, and the folder of its inputs, which are made unless they exist.
struct Workshop<'w> {
    workspace: &'w Workspace,
    folder: PathBuf,
    program: PathBuf,
    /// Options of every measurement.
    options: Vec<String>,
}

impl<'w> Workshop<'w> {
    fn new(workspace: &'w Workspace, folder: PathBuf) -> Result<Workshop<'w>, Error> {
        Ok(Workshop { workspace, folder, program: program(workspace)?, options: Vec::new() })
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

    /// Makes a file of a published model in 32-bit floats.
    fn published(&self, model: &str, llama: &llama::Llama) -> Result<PathBuf, Error> {
        let (stored, _) = models::one(model)?;
        let float = self.place(QUALITY, &format!("{model}-F32.gguf"))?;
        llama.quantise(&stored, &float, &["--allow-requantize"], "F32")?;
        Ok(float)
    }

    /// Makes a file of a case's weights.
    fn file_of(&self, case: &Case, file: File, llama: &llama::Llama) -> Result<PathBuf, Error> {
        match (file, case.weights) {
            (File::AsPublished, _) => models::one(case.model).map(|(stored, _)| stored),
            (File::Quantised(kind), Weights::Random) => self.random(case.model, kind, llama),
            (File::Quantised(kind), Weights::Published) => {
                let float = self.published(case.model, llama)?;
                let gguf = self.place(QUALITY, &format!("{}-{kind}.gguf", case.model))?;
                llama.quantise(&float, &gguf, &[], kind)?;
                Ok(gguf)
            }
        }
    }

    /// Makes a file of the random weights of a model.
    fn random(&self, model: &str, kind: &str, llama: &llama::Llama) -> Result<PathBuf, Error> {
        let named = |kind: &str| self.place("gguf", &format!("{model}-{kind}.gguf"));
        let (gguf, float) = (named(kind)?, named("F16")?);
        if gguf.is_file() {
            return Ok(gguf);
        }
        if !float.is_file() {
            self.checkpoint(model, Some(&float))?;
        }
        llama.quantise(&float, &gguf, &[], kind)?;
        // The file is large, and needed until every other file of this model is made from it.
        let mut others = cases::random_types(model);
        if others.all(|other| named(other).is_ok_and(|made| made.is_file())) {
            fs::remove_file(&float).map_err(|source| Error::File { path: float.clone(), source })?;
        }
        Ok(gguf)
    }

    /// Compiles the bundle of a case.
    fn bundle_of(&self, case: &Case, llama: &llama::Llama) -> Result<PathBuf, Error> {
        let from = match (case.pairing, case.weights) {
            (Pairing::SameFile(file), _) => self.file_of(case, file, llama)?,
            (_, Weights::Random) => self.checkpoint(case.model, None)?,
            (_, Weights::Published) => self.published(case.model, llama)?,
        };
        match case.pairing {
            Pairing::Formats(formats, _) | Pairing::Logits(formats) => {
                self.compiled(&from, &case.name(), &by_planner(formats), case.context)
            }
            Pairing::SameFile(file) => {
                let name = format!("{} {}", case.name(), file.name());
                self.compiled(&from, &name, &["--formats".to_owned(), ROUNDED.to_owned()], case.context)
            }
        }
    }

    /// Compiles the bundle of a model with random weights.
    fn bundle(&self, model: &str, format: &str, context: &str) -> Result<PathBuf, Error> {
        let checkpoint = self.checkpoint(model, None)?;
        self.compiled(&checkpoint, &format!("{model}, {format}"), &by_planner(format), context)
    }

    /// Compiles a bundle every time, because it must match this shim. That is cheap if the shim did
    /// not change.
    fn compiled(&self, from: &Path, name: &str, options: &[String], context: &str) -> Result<PathBuf, Error> {
        let name = name.replace([' ', ',', '/'], "-");
        let bundle = self.place("bundles", &format!("{name}-{context}"))?;
        let mut compile = Command::new(&self.program);
        compile.arg("compile").arg(from).args(options).args(["--context", context, "--output"]).arg(&bundle);
        process::run(compile.stdout(std::process::Stdio::null()))?;
        self.settle(&bundle)?;
        Ok(bundle)
    }

    /// Runs a model until no more of it is mapped in huge pages. The first run also stores the
    /// proof of a new bundle, which requires files that have not changed for a while.
    fn settle(&self, model: &Path) -> Result<(), Error> {
        if cfg!(target_os = "linux") {
            // Linux moves only pages that are on disk into huge ones.
            write_back(model)?;
        }
        std::thread::sleep(SETTLED);
        let mut huge = None;
        for _ in 0..SETTLING_RUNS {
            let report = self.measure(model, &["-n", "128", "-r", "3"])?;
            let now = report["memory"]["huge_bytes"].as_u64();
            if now <= huge {
                break;
            }
            huge = now;
        }
        Ok(())
    }

    /// Returns the report of `shardwright bench`.
    fn measure(&self, bundle: &Path, arguments: &[&str]) -> Result<Value, Error> {
        let mut command = self.command(bundle);
        process::announce(command.args(arguments));
        answer(&mut command)
    }

    /// Measures a work once.
    fn run(&self, bundle: &Path, work: &Work, threads: usize) -> Result<Run, Error> {
        let sizes = work.sizes().into_iter().filter(|(name, size)| *name == "-d" || *size > 0);
        let mut command = self.command(bundle);
        for (name, size) in sizes.chain([("-t", threads as u64), ("-r", 1)]) {
            command.arg(name).arg(size.to_string());
        }
        command.args((work.generated > 0 && work.all_logits).then_some("--all-logits"));
        let answer = answer(&mut command)?;
        let speed = answer["results"][0]["tokens_per_second"]["median"].as_f64();
        let speed = speed.ok_or_else(|| Error::Answer {
            command: process::shown(&command),
            problem: "no speed".to_owned(),
        })?;
        let bytes = |name: &str| answer["memory"][name].as_f64();
        let huge = bytes("huge_bytes").zip(bytes("artefact_resident_bytes").filter(|bytes| *bytes > 0.0));
        Ok(Run { speed, huge: huge.map(|(huge, all)| huge / all) })
    }

    fn command(&self, bundle: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command.args(["--format", "json", "bench"]).arg(bundle).args(&self.options);
        command
    }
}

/// Returns the options for the first formats of the profile that begin so.
fn by_planner(formats: &str) -> [String; 2] {
    ["--planner-option".to_owned(), format!("format={formats}")]
}

/// Runs our program and returns the report that it prints.
fn answer(command: &mut Command) -> Result<Value, Error> {
    let answer = process::output(command)?;
    serde_json::from_str(&answer)
        .map_err(|error| Error::Answer { command: process::shown(command), problem: error.to_string() })
}

/// Writes the files below a path to disk.
fn write_back(path: &Path) -> Result<(), Error> {
    if path.is_dir() {
        return workspace::files_of(path)?.iter().try_for_each(|file| write_back(file));
    }
    let written = fs::File::open(path).and_then(|file| file.sync_all());
    written.map_err(|source| Error::File { path: path.to_owned(), source })
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
    fn files_of_a_bundle_are_written_back_or_named() {
        let folder = tempfile::tempdir().unwrap();
        fs::create_dir(folder.path().join("shards")).unwrap();
        fs::write(folder.path().join("shards/cpu.bin"), "bytes").unwrap();
        write_back(folder.path()).unwrap();
        let missing = folder.path().join("missing");
        let error = write_back(&missing).unwrap_err();
        assert!(matches!(&error, Error::File { path, .. } if *path == missing), "{error}");
    }

    #[test]
    fn memory_that_is_not_there_is_an_error() {
        let error = prober(u32::MAX).err().expect("four pebibytes");
        assert!(matches!(&error, Error::Memory { .. }) && error.help().is_some(), "{error}");
    }
}
