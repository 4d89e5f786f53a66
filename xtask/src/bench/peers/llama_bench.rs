//! llama.cpp's `llama-bench` at its best: its threads pinned, flash attention off and on, and one
//! repetition of one work at a time.

use std::path::Path;
use std::process::Command;

use serde_json::{Value, json};

use super::pairs::Work;
use crate::error::Error;
use crate::process;

/// The program with a model.
pub struct LlamaBench<'a> {
    pub program: &'a Path,
    pub model: &'a Path,
    pub threads: usize,
    /// The processors that its threads are pinned to. Empty if the system does not list them.
    processors: Vec<u32>,
    /// Whether `taskset` is available, which restricts a program to some processors.
    taskset: bool,
    /// Facts that the program reports about itself, after its first run.
    pub facts: Value,
}

impl<'a> LlamaBench<'a> {
    pub fn new(program: &'a Path, model: &'a Path, threads: usize) -> LlamaBench<'a> {
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mut processors = allowed_processors(&status);
        processors.truncate(threads);
        let taskset = process::succeeds(Command::new("taskset").arg("--version"));
        LlamaBench { program, model, threads, processors, taskset, facts: Value::Null }
    }

    /// Returns tokens per second without flash attention and with it.
    pub fn measure(&mut self, work: &Work) -> Result<Vec<f64>, Error> {
        let mut command = self.command(work);
        let wrong = |problem: String| Error::Answer { command: process::shown(&self.command(work)), problem };
        let answer = process::output(&mut command)?;
        let rows: Vec<Value> = serde_json::from_str(&answer).map_err(|error| wrong(error.to_string()))?;
        let sizes = [("n_prompt", work.prompt), ("n_gen", work.generated), ("n_depth", work.depth)];
        // Older programs have no depth.
        let of_work =
            |row: &&Value| sizes.iter().all(|(name, size)| row[*name].as_u64().unwrap_or(0) == *size);
        let rows: Vec<&Value> = rows.iter().filter(of_work).collect();
        let speeds = [false, true].into_iter().map(|flash| {
            let row = rows.iter().find(|row| is_set(&row["flash_attn"]) == flash);
            let row =
                row.ok_or_else(|| wrong(format!("no row for {}, flash attention {flash}", work.test)))?;
            let speed = row["samples_ts"][0].as_f64().filter(|speed| speed.is_finite() && *speed > 0.0);
            speed.ok_or_else(|| wrong("no speed".to_owned()))
        });
        let speeds = speeds.collect::<Result<_, _>>()?;
        let row = rows[0];
        let facts = json!({
            // The path is omitted, because it only applies to this machine.
            "program": self.program.file_name().map(|name| name.to_string_lossy()),
            "model": self.model.file_name().map(|name| name.to_string_lossy()),
            "model_type": row["model_type"],
            "model_bytes": row["model_size"],
            "build": row["build_commit"],
            "backends": row["backends"],
            "processor": row["cpu_info"],
            "threads": self.threads,
            "pinning": self.pinning(),
        });
        self.facts = facts;
        Ok(speeds)
    }

    fn command(&self, work: &Work) -> Command {
        let mut command = match self.taskset && !self.processors.is_empty() {
            true => {
                let mut command = Command::new("taskset");
                command.arg("-c").arg(listed(&self.processors, ",")).arg(self.program);
                command
            }
            false => Command::new(self.program),
        };
        if !self.processors.is_empty() {
            // One thread for each processor, if it is built with GNU OpenMP.
            command.env("GOMP_CPU_AFFINITY", listed(&self.processors, " "));
        }
        command.arg("-m").arg(self.model).arg("-t").arg(self.threads.to_string());
        for (name, value) in work.sizes() {
            command.arg(name).arg(value.to_string());
        }
        command.args(["-r", "1", "-fa", "0,1", "-o", "json"]);
        command
    }

    fn pinning(&self) -> String {
        let list = listed(&self.processors, ",");
        match (self.processors.is_empty(), self.taskset) {
            (true, _) => "none: this system does not say which processors there are".to_owned(),
            (false, true) => format!("taskset -c {list}, GOMP_CPU_AFFINITY"),
            (false, false) => format!("GOMP_CPU_AFFINITY={list}; there is no taskset"),
        }
    }
}

/// Checks a flag, which is a boolean or a number depending on the version.
fn is_set(flag: &Value) -> bool {
    flag.as_bool().unwrap_or_else(|| flag.as_i64().is_some_and(|number| number > 0))
}

fn listed(processors: &[u32], between: &str) -> String {
    processors.iter().map(u32::to_string).collect::<Vec<_>>().join(between)
}

/// Parses the processors that Linux lets this process run on: `Cpus_allowed_list: 0-1,4`.
fn allowed_processors(status: &str) -> Vec<u32> {
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap_or_default();
    let range = |part: &str| -> Option<std::ops::RangeInclusive<u32>> {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        // Larger numbers exceed the size of any machine, so the list is invalid.
        (last < 1 << 16).then_some(first..=last)
    };
    line.split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    fn work(prompt: u64, generated: u64, depth: u64) -> Work {
        Work { test: "a test".to_owned(), prompt, generated, depth, all_logits: true }
    }

    #[test]
    fn processors_are_read_from_ranges() {
        let of = |list: &str| allowed_processors(&format!("Name: x\nCpus_allowed_list:\t{list}\n"));
        assert_eq!(of("0-3,8"), [0, 1, 2, 3, 8]);
        assert_eq!(of("5"), [5]);
        assert!(of("").is_empty() && of("none").is_empty() && of("0-4000000000").is_empty());
    }

    #[test]
    fn the_peer_is_asked_for_one_work_with_and_without_flash_attention() {
        let mut peer = LlamaBench::new(Path::new("llama-bench"), Path::new("m.gguf"), 2);
        (peer.processors, peer.taskset) = (vec![0, 1], true);
        let command = peer.command(&work(0, 128, 64));
        let wanted = "taskset -c 0,1 llama-bench -m m.gguf -t 2 -p 0 -n 128 -d 64 -r 1 -fa 0,1 -o json";
        assert_eq!(process::shown(&command), wanted);
        assert!(peer.pinning().contains("taskset -c 0,1"));
    }

    /// Runs a measurement with a script in place of the program.
    #[cfg(unix)]
    fn asked(answer: &str, ends_with: u8) -> Result<(Vec<f64>, Value), Error> {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let program = folder.path().join("llama-bench");
        fs::write(&program, format!("#!/bin/sh\ncat <<'END'\n{answer}\nEND\nexit {ends_with}\n")).unwrap();
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
        let mut peer = LlamaBench::new(&program, Path::new("/there/m.gguf"), 1);
        Ok((peer.measure(&work(8, 0, 0))?, peer.facts))
    }

    #[test]
    #[cfg(unix)]
    fn both_settings_and_what_it_says_of_itself_are_read() {
        // Flash attention is a boolean or a number, depending on the version.
        for (off, on) in [("false", "true"), ("0", "1"), ("-1", "1")] {
            let row = |flash: &str, speed: f64| {
                format!(
                    r#"{{"n_prompt": 8, "n_gen": 0, "flash_attn": {flash}, "samples_ts": [{speed}], "build_commit": "abc"}}"#
                )
            };
            let other = r#"{"n_prompt": 9, "n_gen": 0, "flash_attn": false, "samples_ts": [1]}"#;
            let (speeds, facts) =
                asked(&format!("[{other}, {}, {}]", row(on, 7.0), row(off, 9.5)), 0).unwrap();
            assert_eq!(speeds, [9.5, 7.0]);
            let said = |name: &str| facts[name].as_str().unwrap_or_default().to_owned();
            assert_eq!(
                (said("program"), said("model"), said("build")),
                ("llama-bench".into(), "m.gguf".into(), "abc".into())
            );
        }
    }

    #[test]
    #[cfg(unix)]
    fn a_peer_that_fails_is_named_with_why() {
        for (answer, ends_with, says) in [
            ("[]", 3, "failed"),
            ("[]", 0, "no row"),
            ("{", 0, "unreadable"),
            (r#"[{"n_prompt": 8, "n_gen": 0, "flash_attn": 0, "samples_ts": []}]"#, 0, "no speed"),
        ] {
            let said = asked(answer, ends_with).unwrap_err().to_string();
            assert!(said.contains(says) && said.contains("llama-bench"), "{answer}: {said}");
        }
    }
}
