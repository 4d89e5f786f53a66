//! Programs with fewer features than the whole workspace. Tests inspect and start them. They are
//! compiled once here, by the alias `runtime-only` of `.cargo/config.toml`, and not in the tests.

use std::path::PathBuf;
use std::process::Command;

use serde_json::Value;

use crate::error::Error;
use crate::process;
use crate::workspace::{self, Workspace};

/// Variable with the folder of the programs, for tests.
const VARIABLE: &str = "SHARDWRIGHT_RUNTIME_ONLY_DIR";

fn folder(workspace: &Workspace) -> PathBuf {
    workspace.target.join("runtime-only")
}

/// Passes the folder to a command.
pub fn offer(workspace: &Workspace, command: &mut Command) {
    command.env(VARIABLE, folder(workspace));
}

/// Builds the programs and copies them into their folder, because another build of the same
/// examples replaces cargo's output. Fails if the compiler warns, because fewer features may leave
/// code unused.
pub fn build(workspace: &Workspace) -> Result<(), Error> {
    let mut command = workspace.cargo();
    command.args(["runtime-only", "--message-format", "json"]);
    process::announce(&command);
    let answer = process::output(&mut command)?;
    let Built { programs, warnings } = from_messages(&answer);
    if programs.is_empty() || !warnings.is_empty() {
        let problem = format!("{} programs, and warnings:\n{}", programs.len(), warnings.join("\n"));
        return Err(Error::Answer { command: process::shown(&command), problem });
    }
    for program in programs {
        let name = program.file_name().unwrap_or_default();
        let copy = folder(workspace).join(name);
        workspace::replace(&copy, &workspace::read(&program)?)?;
        workspace::permit(&copy, 0o755)?;
    }
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
struct Built {
    programs: Vec<PathBuf>,
    warnings: Vec<String>,
}

/// Reads the programs and warnings from cargo's messages, one JSON object per line.
fn from_messages(messages: &str) -> Built {
    let mut built = Built { programs: Vec::new(), warnings: Vec::new() };
    for message in messages.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok()) {
        built.programs.extend(message["executable"].as_str().map(PathBuf::from));
        built.warnings.extend(message["message"]["rendered"].as_str().map(str::to_owned));
    }
    built
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_and_warnings_are_read_from_cargos_messages() {
        let messages = r#"{"reason":"compiler-artifact","executable":"/w/target/debug/examples/run_bundle"}
{"reason":"compiler-artifact","executable":null}
{"reason":"compiler-message","message":{"level":"warning","rendered":"warning: unused"}}
{"reason":"build-finished","success":true}
"#;
        let expected = Built {
            programs: vec!["/w/target/debug/examples/run_bundle".into()],
            warnings: vec!["warning: unused".to_owned()],
        };
        assert_eq!(from_messages(messages), expected);
    }
}
