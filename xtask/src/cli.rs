//! The command line of `cargo xtask`.

use std::ffi::OsString;

use clap::{Parser, Subcommand};

/// `cargo xtask …`
#[derive(Debug, Parser)]
#[command(
    name = "cargo xtask",
    bin_name = "cargo xtask",
    about = "Set up, build, try, test and measure Shardwright"
)]
pub struct Arguments {
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub enum Command {
    /// Prepare a fresh machine: the WebAssembly target of the pinned toolchain, a check of the C compiler
    Setup,
    /// Build the program, every shim and every planner, and lay them out beside the program
    Build {
        /// Build with the release profile
        #[arg(long)]
        release: bool,
    },
    /// Build (release), then run `shardwright ARGS`
    #[command(disable_help_flag = true)]
    Run {
        /// Handed to `shardwright` as they are
        #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "ARGS")]
        arguments: Vec<OsString>,
    },
    /// Plan and run the demo model, cut for a phone and emulated on the CPU
    Demo,
    /// Set up, build and run every test of the workspace
    Test {
        /// Fail when anything had to be skipped
        #[arg(long)]
        ci: bool,
        /// Only tests whose name contains one of these
        filters: Vec<String>,
    },
    /// Measure planning, shard boundaries, tokenizer and generation (release)
    Bench {
        /// Only benches whose name contains one of these; `peers`, and after it models: the CPU engine beside llama.cpp, in pairs
        filters: Vec<String>,
    },
    /// Run the kernels' tests as programs for 64-bit ARM, emulated where the machine is none
    Aarch64,
    /// Fetch what a vendor publishes into the user's cache folder, and print where it is
    Vendor {
        /// Whose.
        #[command(subcommand)]
        what: Vendor,
    },
}

/// What can be fetched.
#[derive(Debug, Clone, Copy, Subcommand)]
pub enum Vendor {
    /// Qualcomm's compiler and simulator for x86-64 Linux, with pip, from the wheel onnxruntime-qnn
    Qnn,
    /// Google's compiler plugin for MediaTek's chips and the tool that drives it, for x86-64 Linux, with pip, from the wheel ai-edge-litert
    Litert,
}
