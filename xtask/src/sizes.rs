//! `cargo xtask sizes`: the files an application ships, with two profiles, and the code sizes of
//! their crates.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Error;
use crate::process;
use crate::workspace::{self, Workspace};

/// A shipped file: its name in the table, cargo's arguments, and its path below the profile's
/// folder.
struct Shipped {
    name: &'static str,
    build: &'static [&'static str],
    file: fn() -> String,
}

const SHIPPED: [Shipped; 4] = [
    Shipped {
        name: "program, `runtime`",
        build: &["--package", "shardwright", "--example", "run_bundle"],
        file: || "examples/run_bundle".to_owned(),
    },
    Shipped {
        name: "program, `static-cpu`",
        build: &["--package", "shardwright", "--features", "static-cpu", "--example", "run_bundle"],
        file: || "examples/run_bundle".to_owned(),
    },
    Shipped {
        name: "CPU shim",
        build: &["--package", "shardwright-shim-cpu-library"],
        file: || workspace::library_file("shardwright_shim_cpu"),
    },
    Shipped {
        name: "worker",
        build: &["--package", "shardwright-worker"],
        file: || "shardwright-worker".to_owned(),
    },
];

/// Profiles to build with. The second is meant for shipping.
const PROFILES: [&str; 2] = ["release", "small"];

/// Number of crates listed by size.
const HEAVIEST: usize = 12;

/// Builds the shipped files and prints the tables, in the form of the documentation page.
pub fn run(workspace: &Workspace) -> Result<(), Error> {
    let mut weights = BTreeMap::new();
    let mut rows = Vec::new();
    for shipped in &SHIPPED {
        let mut row = format!("| {} |", shipped.name);
        for profile in PROFILES {
            let mut command = workspace.cargo();
            process::run(command.args(["build", "--profile", profile]).args(shipped.build))?;
            let built = workspace.target.join(profile).join((shipped.file)());
            if weights.is_empty() {
                weights = weights_of(&built)?;
            }
            row.push_str(&format!(" {:.1} |", stripped_bytes(&built)? as f64 / f64::from(1 << 20)));
        }
        rows.push(row);
    }
    println!("| MiB, stripped | `release` | `small` |\n|---|---|---|");
    rows.iter().for_each(|row| println!("{row}"));
    let all: u64 = weights.values().sum();
    let mut heaviest: Vec<(&String, &u64)> = weights.iter().collect();
    heaviest.sort_by_key(|(name, bytes)| (std::cmp::Reverse(**bytes), (*name).clone()));
    println!("\n| crate | KiB of code in the first | share |\n|---|---|---|");
    for (name, bytes) in heaviest.into_iter().take(HEAVIEST) {
        println!("| `{name}` | {} | {} % |", bytes / 1024, bytes * 100 / all.max(1));
    }
    Ok(())
}

/// Returns the bytes of a program or library without its symbols.
fn stripped_bytes(built: &Path) -> Result<u64, Error> {
    let copy: PathBuf = built.with_extension("stripped");
    process::run(Command::new("strip").arg("-o").arg(&copy).arg(built))?;
    let length = fs::metadata(&copy).map(|metadata| metadata.len());
    let removed = fs::remove_file(&copy);
    length.and_then(|length| removed.map(|()| length)).map_err(|source| Error::File { path: copy, source })
}

/// Returns the bytes of functions and constants by crate.
fn weights_of(program: &Path) -> Result<BTreeMap<String, u64>, Error> {
    let symbols = process::output(
        Command::new("nm").args(["--print-size", "--demangle", "--defined-only"]).arg(program),
    )?;
    let mut weights = BTreeMap::new();
    for line in symbols.lines() {
        let mut words = line.splitn(4, ' ');
        let (Some(_), Some(size), Some(_), Some(name)) =
            (words.next(), words.next(), words.next(), words.next())
        else {
            continue;
        };
        let Ok(bytes) = u64::from_str_radix(size, 16) else { continue };
        *weights.entry(crate_of(name)).or_insert(0) += bytes;
    }
    Ok(weights)
}

/// Returns the crate of a demangled name. For a method, it is the crate of its type. `C` for names
/// without a crate.
fn crate_of(name: &str) -> String {
    let plain = name
        .trim_start_matches(['<', '&', '*', '[', '('])
        .trim_start_matches("dyn ")
        .trim_start_matches("mut ");
    let first: String = plain.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
    match plain[first.len()..].starts_with("::") {
        true => first,
        false => "C".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_of_their_crates() {
        for (name, of) in [
            ("tokenizers::models::bpe::load", "tokenizers"),
            ("<regex_automata::dfa::Dfa as core::fmt::Debug>::fmt", "regex_automata"),
            ("<&mut serde_json::de::Deserializer<R> as serde::Deserializer>::x", "serde_json"),
            ("memcpy", "C"),
            ("main", "C"),
        ] {
            assert_eq!(crate_of(name), of, "{name}");
        }
    }
}
