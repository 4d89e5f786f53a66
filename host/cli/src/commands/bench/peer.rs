//! llama.cpp's `llama-bench` at its best: its threads pinned, flash attention off and on, one
//! repetition of one work at a time.

use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use shardwright::ErrorKind;

use super::interrupted;
use super::work::{Kind, Work};
use crate::outcome::Failure;

/// Bytes of an answer that are read at most; a real one has a few thousand.
const ANSWER_BYTES: u64 = 1 << 20;

/// Bytes of what it says on standard error that are shown when it fails.
const TOLD_BYTES: usize = 2000;

/// A program to measure against.
pub struct Peer {
    program: PathBuf,
    model: PathBuf,
    threads: u32,
    deadline: Duration,
    /// The processors its threads are pinned to; empty where the system does not say which there
    /// are.
    processors: Vec<u32>,
    /// Whether there is a program that keeps another one to some processors.
    taskset: bool,
}

/// What is measured against.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
pub struct PeerFacts {
    pub program: String,
    pub model: String,
    /// As it describes it: `gemma3 270M Q8_0`.
    pub model_type: String,
    /// Bytes of its tensors.
    pub model_bytes: u64,
    pub build: String,
    pub backends: String,
    pub processor: String,
    pub threads: u32,
    /// How its threads are kept where they are.
    pub pinning: String,
}

/// One speed of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Side {
    pub flash_attention: bool,
    pub tokens_per_second: f64,
}

/// What one run of it gave.
pub struct Theirs {
    pub sides: Vec<Side>,
    pub facts: PeerFacts,
}

/// A member of the list that `llama-bench -o json` prints, as far as it is read.
#[derive(Debug, Deserialize)]
struct Row {
    n_prompt: u32,
    n_gen: u32,
    #[serde(default)]
    n_depth: u32,
    flash_attn: Flag,
    samples_ts: Vec<f64>,
    #[serde(default)]
    build_commit: String,
    #[serde(default)]
    backends: String,
    #[serde(default)]
    cpu_info: String,
    #[serde(default)]
    model_type: String,
    #[serde(default)]
    model_size: u64,
}

/// Written as a truth value or a number, by version.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(untagged)]
enum Flag {
    Truth(bool),
    Number(i64),
}

impl Flag {
    fn is_set(self) -> bool {
        match self {
            Flag::Truth(set) => set,
            Flag::Number(number) => number > 0,
        }
    }
}

impl Peer {
    /// Errors where one of the files is not there.
    pub fn new(program: &Path, model: &Path, threads: u32, deadline: Duration) -> Result<Self, Failure> {
        for (what, path, help) in [
            ("the peer's program", program, "`cargo xtask bench peers` builds one and prints where it is"),
            ("the peer's model", model, "`cargo xtask bench peers` writes models of the usual shapes"),
        ] {
            if !path.is_file() {
                return Err(Failure::Refused {
                    kind: ErrorKind::Missing,
                    message: format!("{what}, {}, is not there", path.display()),
                    help: help.to_owned(),
                });
            }
        }
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mut processors = allowed_processors(&status);
        processors.truncate(threads as usize);
        let peer = Peer {
            program: program.to_owned(),
            model: model.to_owned(),
            threads,
            deadline,
            processors,
            taskset: std::env::var_os("PATH").is_some_and(|path| {
                std::env::split_paths(&path).any(|folder| folder.join("taskset").is_file())
            }),
        };
        Ok(peer)
    }

    /// One repetition of a work, with flash attention and without.
    pub fn measure(&self, work: &Work) -> Result<Theirs, Failure> {
        let answer = self.answer(work)?;
        let rows: Vec<Row> = serde_json::from_slice(&answer)
            .map_err(|error| self.failed(&format!("its answer is not what `-o json` gives: {error}"), ""))?;
        let (prompt, generated) = sizes(work);
        let wanted = rows
            .iter()
            .filter(|row| (row.n_prompt, row.n_gen, row.n_depth) == (prompt, generated, work.depth));
        let mut sides = Vec::new();
        for row in wanted {
            let speed = row.samples_ts.first().copied().filter(|speed| speed.is_finite() && *speed > 0.0);
            let speed = speed.ok_or_else(|| self.failed("its answer has no speed", ""))?;
            sides.push(Side { flash_attention: row.flash_attn.is_set(), tokens_per_second: speed });
        }
        let Some(row) = rows.first().filter(|_| !sides.is_empty()) else {
            return Err(self.failed(&format!("its answer has no row for {work}"), ""));
        };
        Ok(Theirs { sides, facts: self.facts(row) })
    }

    fn facts(&self, row: &Row) -> PeerFacts {
        PeerFacts {
            program: self.program.display().to_string(),
            model: self.model.display().to_string(),
            model_type: row.model_type.clone(),
            model_bytes: row.model_size,
            build: row.build_commit.clone(),
            backends: row.backends.clone(),
            processor: row.cpu_info.clone(),
            threads: self.threads,
            pinning: self.pinning(),
        }
    }

    fn pinning(&self) -> String {
        let list = listed(&self.processors, ",");
        match (self.processors.is_empty(), self.taskset) {
            (true, _) => "none: this system does not say which processors there are".to_owned(),
            (false, true) => format!("taskset -c {list}, GOMP_CPU_AFFINITY"),
            (false, false) => format!("GOMP_CPU_AFFINITY={list}; there is no taskset"),
        }
    }

    fn command(&self, work: &Work) -> Command {
        let mut command = match self.taskset && !self.processors.is_empty() {
            true => {
                let mut command = Command::new("taskset");
                command.arg("-c").arg(listed(&self.processors, ",")).arg(&self.program);
                command
            }
            false => Command::new(&self.program),
        };
        if !self.processors.is_empty() {
            // One thread for each processor, where it is built with GNU OpenMP.
            command.env("GOMP_CPU_AFFINITY", listed(&self.processors, " "));
        }
        let (prompt, generated) = sizes(work);
        command.arg("-m").arg(&self.model);
        for (name, value) in
            [("-t", self.threads), ("-p", prompt), ("-n", generated), ("-d", work.depth), ("-r", 1)]
        {
            command.arg(name).arg(value.to_string());
        }
        command.args(["-fa", "0,1", "-o", "json"]);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn answer(&self, work: &Work) -> Result<Vec<u8>, Failure> {
        interrupted()?;
        let mut child = self.command(work).spawn().map_err(|error| Failure::Refused {
            kind: ErrorKind::Missing,
            message: format!("{} cannot be started: {error}", self.program.display()),
            help: "name a program that runs here".to_owned(),
        })?;
        let (stdout, stderr) = (collect(child.stdout.take()), collect(child.stderr.take()));
        let ended = wait(&mut child, self.deadline);
        // Threads end with the pipes, and those with the child.
        let (stdout, stderr) = (stdout.join().unwrap_or_default(), stderr.join().unwrap_or_default());
        let told = String::from_utf8_lossy(&stderr);
        match ended? {
            Some(status) if status.success() => Ok(stdout),
            Some(status) => Err(self.failed(&format!("it ended with {status} at {work}"), &told)),
            None => {
                let seconds = self.deadline.as_secs();
                Err(self.failed(&format!("it had not done {work} after {seconds} s (--peer-timeout)"), &told))
            }
        }
    }

    fn failed(&self, what: &str, told: &str) -> Failure {
        let mut message = format!("{}: {what}", self.program.display());
        let last = &told[ceiling(told, told.len().saturating_sub(TOLD_BYTES))..];
        if !last.trim().is_empty() {
            message += &format!("; it said: {}", last.trim());
        }
        Failure::Refused {
            kind: ErrorKind::Invalid,
            message,
            help: format!("run it by hand: {} -m {} -o json", self.program.display(), self.model.display()),
        }
    }
}

/// Prompt and generation as `llama-bench` takes them.
fn sizes(work: &Work) -> (u32, u32) {
    match work.kind {
        Kind::Prompt => (work.tokens, 0),
        Kind::Generation => (0, work.tokens),
    }
}

/// The next start of a character at or after `at`.
fn ceiling(text: &str, at: usize) -> usize {
    (at..=text.len()).find(|&at| text.is_char_boundary(at)).unwrap_or(text.len())
}

fn collect(pipe: Option<impl Read + Send + 'static>) -> JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // What was read until it failed says enough; the rest is thrown away, so that the
            // program does not wait for a reader.
            let _ = pipe.by_ref().take(ANSWER_BYTES).read_to_end(&mut bytes);
            let _ = std::io::copy(&mut pipe, &mut std::io::sink());
        }
        bytes
    })
}

/// How it ended; `None` if it did not in time. It does not outlive this call.
fn wait(child: &mut Child, deadline: Duration) -> Result<Option<ExitStatus>, Failure> {
    let started = Instant::now();
    loop {
        let ended = child.try_wait().map_err(crate::outcome::io("the peer"));
        let stopped = interrupted();
        if let (Ok(None), Ok(()), true) = (&ended, &stopped, started.elapsed() < deadline) {
            std::thread::sleep(Duration::from_millis(5));
            continue;
        }
        if !matches!(ended, Ok(Some(_))) {
            // It may have ended just now.
            let _ = child.kill();
            let _ = child.wait();
        }
        stopped?;
        return ended;
    }
}

fn listed(processors: &[u32], between: &str) -> String {
    processors.iter().map(u32::to_string).collect::<Vec<_>>().join(between)
}

/// The processors that Linux lets this process run on: `Cpus_allowed_list: 0-1,4`.
fn allowed_processors(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or_default();
    let range = |part: &str| -> Option<std::ops::RangeInclusive<u32>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        // Sizes of machines there are; a longer list is no list.
        (last < 1 << 16).then_some(first..=last)
    };
    line.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::super::work::Logits;
    use super::*;

    #[test]
    fn processors_are_read_from_ranges() {
        let of = |list: &str| allowed_processors(&format!("Name: x\nCpus_allowed_list:\t{list}\n"));
        assert_eq!(of("0-3,8"), [0, 1, 2, 3, 8]);
        assert_eq!(of("5"), [5]);
        assert!(of("").is_empty() && of("none").is_empty() && of("0-4000000000").is_empty());
    }

    #[test]
    fn the_peer_is_asked_for_one_work_with_and_without_flash_attention() {
        let peer = Peer {
            program: PathBuf::from("llama-bench"),
            model: PathBuf::from("m.gguf"),
            threads: 2,
            deadline: Duration::from_secs(1),
            processors: vec![0, 1],
            taskset: true,
        };
        let command =
            peer.command(&Work { kind: Kind::Generation, tokens: 128, depth: 64, logits: Logits::All });
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy().into_owned()).collect();
        let wanted = "-c 0,1 llama-bench -m m.gguf -t 2 -p 0 -n 128 -d 64 -r 1 -fa 0,1 -o json";
        assert_eq!(words.join(" "), wanted);
        assert!(peer.pinning().contains("taskset -c 0,1"));
    }

    #[test]
    fn flash_attention_is_a_truth_value_or_a_number() {
        let row = |flash: &str| -> Row {
            let text =
                format!(r#"{{"n_prompt": 1, "n_gen": 0, "flash_attn": {flash}, "samples_ts": [2.5]}}"#);
            serde_json::from_str(&text).unwrap()
        };
        assert!(row("true").flash_attn.is_set() && row("1").flash_attn.is_set());
        assert!(
            !row("false").flash_attn.is_set()
                && !row("0").flash_attn.is_set()
                && !row("-1").flash_attn.is_set()
        );
    }
}
