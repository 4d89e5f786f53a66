//! The test programs of the workspace, found through cargo and run several at a time.
//!
//! `cargo test` runs one after the other, and many end in a single slow test or wait for a disk.
//! Two at a time keep two cores at work.

use std::ffi::OsString;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::build;
use crate::error::Error;
use crate::process;
use crate::workspace::{Profile, Workspace};

/// Number of programs to run at a time. Each uses a thread per core, so more programs would need
/// memory without saving time.
pub const AT_A_TIME: usize = 2;

/// A test program, or all tests of the documentation.
#[derive(Debug, PartialEq, Eq)]
pub struct Program {
    /// Its name in reports: its file without cargo's hash, and its source.
    pub name: String,
    /// The file. `None` for the documentation, whose tests cargo builds and runs.
    file: Option<PathBuf>,
    /// The folder of its package, in which cargo would run it.
    folder: PathBuf,
}

/// The result of a program.
#[derive(Debug)]
pub struct Ended {
    /// The program's [`Program::name`].
    pub name: String,
    pub command: String,
    /// Time that it ran.
    pub took: Duration,
    /// Its output, both streams in the order of writing.
    pub output: Vec<u8>,
    pub status: ExitStatus,
}

/// Builds the test programs of all packages except `left_out`, and returns them with the slow ones
/// first: the documentation's, for which cargo works in one thread, then the largest, which contain
/// most of the system.
pub fn find(workspace: &Workspace, left_out: &[&str]) -> Result<Vec<Program>, Error> {
    let mut command = workspace.cargo();
    command.args(["test", "--no-run", "--message-format", "json-render-diagnostics"]);
    command.args(build::WORKSPACE);
    command.args(left_out.iter().flat_map(|package| ["--exclude", package]));
    let answer = process::output(&mut command)?;
    let found = from_messages(&answer, &workspace.root)
        .map_err(|problem| Error::Answer { command: process::shown(&command), problem })?;
    let size = |program: &Program| {
        let file = program.file.as_ref()?;
        file.metadata().ok().map(|metadata| metadata.len())
    };
    let mut programs =
        vec![Program { name: "doc tests".to_owned(), file: None, folder: workspace.root.clone() }];
    programs.extend(found);
    programs.sort_by_cached_key(|program| std::cmp::Reverse(size(program).unwrap_or(u64::MAX)));
    Ok(programs)
}

/// Returns the test programs listed in cargo's messages, one JSON object per line.
fn from_messages(messages: &str, root: &Path) -> Result<Vec<Program>, String> {
    let mut programs = Vec::new();
    for line in messages.lines().filter(|line| line.starts_with('{')) {
        let message: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
        let is_test = message["profile"]["test"].as_bool() == Some(true);
        let Some(file) = message["executable"].as_str().filter(|_| is_test) else { continue };
        let text = |value: &Value, what: &str| {
            value.as_str().map(PathBuf::from).ok_or_else(|| format!("{file}: no {what}"))
        };
        let source = text(&message["target"]["src_path"], "source")?;
        let manifest = text(&message["manifest_path"], "manifest")?;
        let folder = manifest.parent().ok_or_else(|| format!("{file}: no folder"))?.to_owned();
        let source = source.strip_prefix(root).unwrap_or(&source).display().to_string();
        let stem = Path::new(file).file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let stem = stem.rsplit_once('-').map_or(stem.as_str(), |(stem, _)| stem);
        programs.push(Program { name: format!("{stem} ({source})"), file: Some(file.into()), folder });
    }
    Ok(programs)
}

impl Program {
    /// Returns the command that runs the tests selected by these arguments of the harness.
    fn command(&self, workspace: &Workspace, arguments: &[OsString]) -> Command {
        let mut command = match &self.file {
            None => {
                let mut command = workspace.cargo();
                command.args(["test", "--doc", "--quiet", "--no-fail-fast"]).args(build::WORKSPACE).arg("--");
                command
            }
            Some(file) => {
                let mut command = Command::new(file);
                process::without_this_package(&mut command);
                // Some tests compile crates of users, which must not be linted.
                command.env_remove("RUSTC_WORKSPACE_WRAPPER").env_remove("CLIPPY_ARGS");
                crate::vendor::offer(&mut command);
                crate::javascript::offer(workspace, &mut command);
                crate::clients::offer(workspace, &mut command);
                command.env("CARGO_MANIFEST_DIR", &self.folder);
                command
            }
        };
        command.current_dir(&self.folder).args(arguments);
        command.env("SHARDWRIGHT_BIN_DIR", workspace.output(Profile::Dev));
        super::runtime_only::offer(workspace, &mut command);
        super::ten_lines::offer(workspace, &mut command);
        // One cache for all programs, in which a planner is compiled once. The user's cache stays
        // unchanged.
        command.env("XDG_CACHE_HOME", workspace.target.join("cache-of-tests"));
        command
    }
}

/// Runs all programs and reports each start and each end, on the caller's thread.
pub fn run(
    workspace: &Workspace,
    programs: &[Program],
    arguments: &[OsString],
    mut started: impl FnMut(&str),
    mut ended: impl FnMut(Ended),
) -> Result<(), Error> {
    enum Event {
        Started(String),
        Ended(Result<Ended, Error>),
    }
    let next = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        let (sender, events) = mpsc::channel();
        for _ in 0..AT_A_TIME {
            let (sender, next) = (sender.clone(), &next);
            scope.spawn(move || {
                while let Some(program) = programs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let mut command = program.command(workspace, arguments);
                    let _ = sender.send(Event::Started(program.name.clone()));
                    if sender.send(Event::Ended(to_its_end(&program.name, &mut command))).is_err() {
                        break;
                    }
                }
            });
        }
        drop(sender);
        for event in events {
            match event {
                Event::Started(name) => started(&name),
                Event::Ended(result) => ended(result?),
            }
        }
        Ok(())
    })
}

fn to_its_end(name: &str, command: &mut Command) -> Result<Ended, Error> {
    let begun = Instant::now();
    let failed = |source| Error::File { path: name.into(), source };
    let (mut reader, writer) = io::pipe().map_err(failed)?;
    let errors = writer.try_clone().map_err(failed)?;
    let shown = process::shown(command);
    let mut child = command
        .stdin(Stdio::null())
        .stdout(writer)
        .stderr(errors)
        .spawn()
        .map_err(|source| process::not_started(command, source))?;
    // The command has the writing end, which would keep the pipe open.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut output = Vec::new();
    io::Read::read_to_end(&mut reader, &mut output).map_err(failed)?;
    let status = child.wait().map_err(failed)?;
    Ok(Ended { name: name.to_owned(), command: shown, took: begun.elapsed(), output, status })
}

/// Returns the lines of an output in their original form, without invalid UTF-8.
pub fn lines(output: &[u8]) -> impl Iterator<Item = String> + '_ {
    BufReader::new(output)
        .split(b'\n')
        .map_while(Result::ok)
        .map(|line| String::from_utf8_lossy(&line).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn test_programs_are_found_in_cargos_messages() {
        let messages = r#"{"reason":"compiler-artifact","manifest_path":"/w/host/graph/Cargo.toml","target":{"src_path":"/w/host/graph/src/lib.rs"},"profile":{"test":true},"executable":"/w/target/debug/deps/shardwright_graph-0a1b"}
{"reason":"compiler-artifact","manifest_path":"/w/host/cli/Cargo.toml","target":{"src_path":"/w/host/cli/src/main.rs"},"profile":{"test":false},"executable":"/w/target/debug/shardwright"}
{"reason":"compiler-artifact","manifest_path":"/w/host/graph/Cargo.toml","target":{"src_path":"/w/host/graph/src/lib.rs"},"profile":{"test":true},"executable":null}
{"reason":"build-finished","success":true}
"#;
        let found = from_messages(messages, Path::new("/w")).expect("cargo's messages");
        let graph = Program {
            name: "shardwright_graph (host/graph/src/lib.rs)".to_owned(),
            file: Some("/w/target/debug/deps/shardwright_graph-0a1b".into()),
            folder: "/w/host/graph".into(),
        };
        assert_eq!(found, [graph]);
        for (messages, problem) in
            [("{", "EOF"), (r#"{"profile":{"test":true},"executable":"/w/a-1"}"#, "/w/a-1: no source")]
        {
            let error = from_messages(messages, Path::new("/w")).expect_err(problem);
            assert!(error.contains(problem), "{error}");
        }
    }

    #[test]
    fn both_streams_are_kept_in_their_order() {
        let mut command = Command::new("sh");
        command.args(["-c", "echo one; echo two >&2; echo three; exit 3"]);
        let ended = to_its_end("a shell", &mut command).expect("it starts");
        assert_eq!(lines(&ended.output).collect::<Vec<_>>(), ["one", "two", "three"]);
        assert_eq!(ended.status.code(), Some(3));
    }
}
