//! `cargo xtask bench`: the bench targets of the workspace, in release mode, one after the other.
//! Subcommands:
//!
//! * `peers [MODEL …]`: the CPU engine compared with others. `peers published` runs only the cases
//!   on published weights, and files that both programs read.
//! * `pair BUNDLE GGUF`: a bundle compared with llama.cpp
//! * `versions MODEL FOLDER [-- OPTION …]`: the program compared with an earlier one
//! * `lookup`: prompt lookup compared with llama.cpp's
//! * `server [MODEL]`: the server compared with llama.cpp's
//! * `soak [REQUESTS [MODEL]]`: the server under many clients, some of them unusual
//! * `growth`: how the engine's work grows
//! * `quality TEXT …`: losses of formats compared with llama.cpp's file types

mod chat;
mod http;
mod neuron;
mod peers;
mod python;
mod qnn;
mod served;
mod soak;
mod structured;

use std::process::Command;

use crate::build::Scope;
use crate::error::Error;
use crate::workspace::{Profile, Workspace};
use crate::{build, process, setup};

/// Prefixes of slow benches, which run only when a filter names them.
const LONG: [&str; 3] = ["qnn_", "neuron_", structured::NAME];

/// Runs every bench target whose name contains one of the filters. Without a filter it runs all
/// except the slow ones. Each prints its own table.
pub fn run(workspace: &Workspace, filters: &[String]) -> Result<(), Error> {
    if let Some((peers::NAME, models)) = filters.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        return peers::compare(workspace, models);
    }
    if let [word, paths @ ..] = filters
        && word == peers::PAIR
    {
        let [bundle, gguf] = paths else {
            return Err(Error::Usage("`bench pair` takes a bundle and a GGUF file".to_owned()));
        };
        return peers::pair(workspace, bundle.as_ref(), gguf.as_ref());
    }
    if let [word, rest @ ..] = filters
        && word == peers::VERSIONS
    {
        let [model, earlier, options @ ..] = rest else {
            let what = "`bench versions` takes a bundle or checkpoint and the folder of an earlier program";
            return Err(Error::Usage(what.to_owned()));
        };
        return peers::versions(workspace, model.as_ref(), earlier.as_ref(), options);
    }
    if filters.first().is_some_and(|first| first == peers::LOOKUP) {
        return peers::compare_lookup(workspace);
    }
    if let Some((peers::QUALITY, texts)) = filters.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        return peers::compare_quality(workspace, texts);
    }
    if filters.first().is_some_and(|first| first == peers::GROWTH) {
        return peers::grow(workspace);
    }
    if let Some((peers::SERVER, models)) = filters.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        return peers::compare_server(workspace, models);
    }
    if let Some((soak::NAME, size)) = filters.split_first().map(|(first, rest)| (first.as_str(), rest)) {
        return soak::soak(workspace, size);
    }
    let wanted = |bench: &str| match filters {
        [] => !LONG.iter().any(|long| bench.starts_with(long)),
        filters => filters.iter().any(|filter| bench.contains(filter.as_str())),
    };
    if filters.is_empty() {
        eprintln!(
            "left out: `cargo xtask bench qnn` and `cargo xtask bench peers`, which take hours, `cargo xtask bench growth`, `cargo xtask bench structured`, `cargo xtask bench server`, `cargo xtask bench soak`, and `cargo xtask bench neuron`, which takes much disk"
        );
    }
    let wanted: Vec<&String> = workspace
        .packages
        .iter()
        .flat_map(|package| &package.benches)
        .filter(|bench| wanted(bench.as_str()))
        .collect();
    // The comparison with the peer needs only its own package of the workspace.
    if wanted.iter().any(|bench| *bench != qnn::OURS) {
        setup::prepare(workspace)?;
        build::build(workspace, Profile::Release, Scope::Workspace)?;
    }
    for bench in wanted {
        match bench.as_str() {
            qnn::OURS => qnn::compare(workspace)?,
            neuron::SHAPES => neuron::shapes(workspace)?,
            structured::NAME => structured::run(workspace, &mut target(workspace, bench))?,
            _ => process::run(&mut target(workspace, bench))?,
        }
    }
    Ok(())
}

/// Returns the command for one bench target.
fn target(workspace: &Workspace, bench: &str) -> Command {
    let mut command = workspace.cargo();
    command
        .args(["bench", "--quiet", "--bench", bench])
        // Selects the same packages as the build above, so that features match and no crate is
        // compiled twice.
        .args(build::WORKSPACE)
        .env("SHARDWRIGHT_BIN_DIR", workspace.output(Profile::Release));
    command
}
