//! `shardwright-planner-build MANIFEST OUT.wasm`: builds a planner crate into a component.
//!
//! A thin front end of the library of the same name.

use std::path::PathBuf;
use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [manifest, out] = arguments.as_slice() else {
        eprintln!("usage: shardwright-planner-build MANIFEST OUT.wasm");
        return ExitCode::from(2);
    };
    let target_dir =
        std::env::var_os("CARGO_TARGET_DIR").map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let built = shardwright_planner_build::build(manifest, &target_dir.join("planners"));
    match built {
        Ok(component) => match std::fs::write(out, &component) {
            Ok(()) => {
                eprintln!("{}: {} bytes", out.display(), component.len());
                ExitCode::SUCCESS
            }
            Err(error) => {
                eprintln!("error: cannot write {}: {error}", out.display());
                ExitCode::FAILURE
            }
        },
        Err(error) => {
            eprintln!("error: {error}");
            if let Some(help) = error.help() {
                eprintln!("help: {help}");
            }
            ExitCode::FAILURE
        }
    }
}
