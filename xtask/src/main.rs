//! The project's own tool: `cargo xtask <command>`.
//!
//! **Job.** Everything between a fresh clone and a running program: the set-up of a machine, the
//! builds that one `cargo build` cannot express (planners for WebAssembly, the shim written in C,
//! manifests next to the dylibs), the demo, the tests, the benches.
//!
//! **Not its job.** Features for users of the finished program. No command here plans, compiles or
//! runs a model. Commands only start `shardwright`. It installs only the WebAssembly target of the
//! pinned toolchain. Files from vendors are stored in the user's cache folder.

mod aarch64;
mod bench;
mod build;
mod cli;
mod clients;
mod demo;
mod error;
mod javascript;
mod kernels;
mod models;
mod platforms;
mod process;
mod setup;
mod shims;
mod sizes;
mod templates;
mod testing;
mod vendor;
mod workspace;

use std::process::ExitCode;

use crate::build::Scope;
use crate::cli::{Command, Vendor};
use crate::error::Error;
use crate::workspace::{Profile, Workspace};

fn main() -> ExitCode {
    match cli::parse(std::env::args_os().skip(1)).and_then(dispatch) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error}");
            if let Some(help) = error.help() {
                eprintln!("help: {help}");
            }
            ExitCode::from(error.exit_code())
        }
    }
}

fn dispatch(command: Command) -> Result<(), Error> {
    if command == Command::Help {
        print!("{}", cli::HELP);
        return Ok(());
    }
    let workspace = Workspace::locate()?;
    match command {
        Command::Help => Ok(()),
        Command::Setup => setup::prepare(&workspace),
        Command::Build { release } => {
            setup::prepare(&workspace)?;
            let program = build::build(&workspace, Profile::of_release_flag(release), Scope::Program)?;
            let folder = program.parent().unwrap_or(&program).display();
            eprintln!(
                "\nlaid out in {folder}: shardwright, shardwright-worker, shims/, planners/, profiles/"
            );
            eprintln!("copy these together, or put that folder on the path");
            Ok(())
        }
        Command::Run { arguments } => demo::run(&workspace, &arguments),
        Command::Demo { model: None } => demo::demo(&workspace),
        Command::Demo { model: Some(name) } => demo::published(&workspace, &name),
        Command::Test { ci, filters } => testing::run(&workspace, ci, &filters),
        Command::Bench { filters } => bench::run(&workspace, &filters),
        Command::Sizes => sizes::run(&workspace),
        Command::Pack => {
            setup::prepare(&workspace)?;
            build::pack(&workspace)
        }
        Command::Kernels { ci } => kernels::test(&workspace, ci),
        Command::Aarch64 { instructions: true, .. } => aarch64::instructions(&workspace),
        Command::Aarch64 { ci, .. } => aarch64::test(&workspace, ci),
        Command::Platforms { ci } => platforms::check(&workspace, ci),
        Command::Vendor { what: Vendor::Qnn } => vendor::qnn(),
        Command::Vendor { what: Vendor::Litert } => vendor::litert(),
        Command::Vendor { what: Vendor::Models } => models::models(&workspace),
        Command::Vendor { what: Vendor::Templates } => templates::templates(),
        Command::Vendor { what: Vendor::Clients } => clients::clients(&workspace),
    }
}
