//! Runs other programs. Each command line is shown before it runs, and a failure preserves its exit
//! code.

use std::ffi::OsStr;
use std::io::{self, IsTerminal};
use std::process::{Command, ExitStatus, Stdio};

use crate::error::Error;

/// Returns a command for the `cargo` of the toolchain that started this program, without the
/// variables that `cargo run` sets about the package `xtask`. Build scripts that watch them would
/// otherwise run again in every mode.
pub fn cargo() -> Command {
    let mut command = Command::new(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()));
    without_this_package(&mut command);
    command
}

/// Removes the variables that `cargo run` sets about the package `xtask` from a command's
/// environment.
pub fn without_this_package(command: &mut Command) {
    for (name, _) in std::env::vars_os() {
        let text = name.to_string_lossy();
        let of_the_package = ["CARGO_PKG_", "CARGO_MANIFEST_", "CARGO_BIN_", "CARGO_CRATE_"];
        if of_the_package.iter().any(|prefix| text.starts_with(prefix)) {
            command.env_remove(&name);
        }
    }
}

/// Formats the command line as a person would type it.
pub fn shown(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program());
    let mut text = program.file_name().unwrap_or(program.as_os_str()).to_string_lossy().into_owned();
    for argument in command.get_args() {
        text.push(' ');
        text.push_str(&quoted(argument));
    }
    text
}

fn quoted(argument: &OsStr) -> String {
    let text = argument.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_=./:,+@%".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.into_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

/// Shows the command line on stderr, runs it with this program's streams, and fails if it fails.
pub fn run(command: &mut Command) -> Result<(), Error> {
    announce(command);
    let status = command.status().map_err(|source| not_started(command, source))?;
    check(command, status)
}

/// Runs silently and returns the program's stdout.
pub fn output(command: &mut Command) -> Result<String, Error> {
    let output = command.stderr(Stdio::inherit()).output().map_err(|source| not_started(command, source))?;
    check(command, output.status)?;
    String::from_utf8(output.stdout)
        .map_err(|error| Error::Answer { command: shown(command), problem: error.to_string() })
}

/// Checks whether the program can be started and succeeds. Its output is dropped.
pub fn succeeds(command: &mut Command) -> bool {
    command
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|s| s.success())
}

/// Shows a command line on stderr.
pub fn announce(command: &Command) {
    let line = shown(command);
    if io::stderr().is_terminal() {
        eprintln!("\x1b[1m$ {line}\x1b[0m");
    } else {
        eprintln!("$ {line}");
    }
}

/// Returns the error for a program that could not be started.
pub fn not_started(command: &Command, source: io::Error) -> Error {
    let program = command.get_program().to_string_lossy().into_owned();
    let help = match program.as_str() {
        "rustup" => {
            Some("install rustup, or add the target wasm32-unknown-unknown to the toolchain by other means")
        }
        "cc" => Some("install a C compiler (Debian: `apt-get install gcc libc6-dev`)"),
        "python3" => Some("install Python 3 with pip (Debian: `apt-get install python3-pip python3-venv`)"),
        "aarch64-linux-gnu-gcc" | "qemu-aarch64" => Some(
            "install a cross compiler and the emulator (Debian: `apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross qemu-user`)",
        ),
        _ => None,
    };
    Error::NotStarted { program, help, source }
}

/// Turns an exit status into a result that preserves the code.
pub fn check(command: &Command, status: ExitStatus) -> Result<(), Error> {
    ended(shown(command), status)
}

/// Like [`check`], for a command line that was already shown.
pub fn ended(command: String, status: ExitStatus) -> Result<(), Error> {
    if status.success() {
        return Ok(());
    }
    let code = status.code().and_then(|code| u8::try_from(code).ok()).filter(|&code| code != 0).unwrap_or(1);
    Err(Error::Failed { command, code, status: status.to_string() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn command_lines_are_shown_as_they_would_be_typed() {
        let mut command = Command::new("/usr/bin/shardwright");
        command.args(["run", "demo-model", "--limit", "ops=400", "--prompt", "What's a bug?", ""]);
        assert_eq!(
            shown(&command),
            r"shardwright run demo-model --limit ops=400 --prompt 'What'\''s a bug?' ''"
        );
    }

    #[test]
    fn exit_codes_are_passed_on() {
        let mut command = Command::new("sh");
        command.args(["-c", "exit 7"]);
        let error = run(&mut command).expect_err("exits with 7");
        assert!(matches!(error, Error::Failed { .. }), "{error:?}");
        assert_eq!(error.exit_code(), 7);
        assert!(error.to_string().contains("sh -c 'exit 7'"), "{error}");
    }

    #[test]
    fn output_that_is_no_text_is_an_error() {
        let mut command = Command::new("printf");
        command.arg(r"\377");
        assert!(matches!(output(&mut command), Err(Error::Answer { .. })));
    }

    #[test]
    fn a_missing_program_is_named() {
        let error = run(&mut Command::new("no-such-program-here")).expect_err("does not exist");
        assert!(matches!(error, Error::NotStarted { .. }), "{error:?}");
        assert!(error.to_string().contains("no-such-program-here"), "{error}");
        assert_eq!(error.exit_code(), 1);
    }
}
