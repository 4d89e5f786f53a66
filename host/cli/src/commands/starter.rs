//! `shim new` and `planner new`: starter folders outside this tree, in which everything builds and
//! works as it is.

use std::fs;
use std::path::{Path, PathBuf};

use serde::Serialize;
use shardwright::ErrorKind;
use shardwright_files::shell_quoted;

use super::print;
use crate::arguments::{Format, Language};
use crate::outcome::{Failure, Outcome, io};

include!(concat!(env!("OUT_DIR"), "/starter.rs"));

const SHIM_IN_C_README: &str = include_str!("starter/shim_in_c.txt");
const SHIM_IN_C_BUILD: &str = include_str!("starter/shim_in_c.sh");
const SHIM_IN_RUST_README: &str = include_str!("starter/shim_in_rust.txt");
const SHIM_IN_RUST_BUILD: &str = include_str!("starter/shim_in_rust.sh");
const SHIM_IN_RUST_MANIFEST: &str = include_str!("starter/shim_in_rust.toml");
const PROFILE: &str = include_str!("starter/profile.json");
const PLANNER_README: &str = include_str!("starter/planner.txt");
const PLANNER_MANIFEST: &str = include_str!("starter/planner.toml");

/// Longest name. A shim's name may have up to 64 letters.
const NAME_MOST: usize = 40;

/// The written folder.
#[derive(Serialize)]
struct Begun {
    folder: PathBuf,
    /// Files, by path in the folder.
    files: Vec<String>,
    /// Commands for the next steps.
    next: Vec<String>,
}

impl Begun {
    fn view(&self) -> String {
        let mut text = format!("{} files in {}; next:\n", self.files.len(), self.folder.display());
        self.next.iter().for_each(|command| text.push_str(&format!("  {command}\n")));
        text
    }
}

/// Writes the starter folder of a shim called `name` within `within`.
pub fn shim(name: &str, language: Language, within: &Path, format: Format) -> Result<Outcome, Failure> {
    let name = Name::new(name)?;
    let stem = name.stem();
    let mut files = match language {
        Language::C => name.of(SHIM_IN_C, "template-c"),
        Language::Rust => name.of(SHIM_IN_RUST, "template-rust"),
    };
    // The example's own manifest names a library in this tree.
    files.retain(|(path, _)| !path.ends_with(".shim.json"));
    let manifest = serde_json::json!({
        "manifest": 1,
        "name": name.0,
        "vendor": name.title(),
        "abi": { "min": "0.1", "max": "0.1" },
        "library": stem,
    });
    files.push((format!("{stem}.shim.json"), format!("{manifest:#}\n")));
    let written: &[(&str, &str)] = match language {
        Language::C => &[("README.md", SHIM_IN_C_README), ("build.sh", SHIM_IN_C_BUILD)],
        Language::Rust => &[
            ("README.md", SHIM_IN_RUST_README),
            ("build.sh", SHIM_IN_RUST_BUILD),
            ("Cargo.toml", SHIM_IN_RUST_MANIFEST),
        ],
    };
    files.extend(name.filled(written));
    files.extend(name.filled(&[("profiles/NAME-1.json", PROFILE)]));
    let folder = name.folder(within);
    let next = vec![
        format!("sh {}", shell_quoted(folder.join("build.sh"))),
        format!("shardwright shim list --shims {}", shell_quoted(folder.join("shims"))),
    ];
    print(format, &write(folder, files, next)?, Begun::view)
}

/// Writes the starter folder of a planner called `name` within `within`.
pub fn planner(name: &str, within: &Path, format: Format) -> Result<Outcome, Failure> {
    let name = Name::new(name)?;
    let mut files = name.of(PLANNER, "example-policy");
    files.extend(name.filled(&[("README.md", PLANNER_README), ("Cargo.toml", PLANNER_MANIFEST)]));
    let folder = name.folder(within);
    let shown = shell_quoted(&folder);
    let next = vec![
        format!("shardwright planner build {shown} -o {}.wasm", name.0),
        format!("shardwright planner check {}.wasm", name.0),
    ];
    print(format, &write(folder, files, next)?, Begun::view)
}

/// A name for a shim, a planner, their package and library.
struct Name(String);

impl Name {
    fn new(name: &str) -> Result<Self, Failure> {
        let letter = |byte: u8| byte.is_ascii_lowercase();
        let legal = name.len() <= NAME_MOST
            && name.bytes().next().is_some_and(letter)
            && name.bytes().all(|byte| letter(byte) || byte.is_ascii_digit() || byte == b'-');
        match legal {
            true => Ok(Name(name.to_owned())),
            false => Err(Failure::Arguments(format!(
                "invalid name `{name}`: expected a letter a-z, then letters, digits and `-`, at most {NAME_MOST} characters"
            ))),
        }
    }

    /// Returns the folder to write.
    fn folder(&self, within: &Path) -> PathBuf {
        if within == Path::new(".") { PathBuf::from(&self.0) } else { within.join(&self.0) }
    }

    /// Returns the name of a library: `acme_npu`.
    fn stem(&self) -> String {
        self.0.replace('-', "_")
    }

    /// Returns a placeholder for the vendor's own spelling: `Acme-npu`.
    fn title(&self) -> String {
        let (first, rest) = self.0.split_at(1);
        format!("{}{rest}", first.to_ascii_uppercase())
    }

    /// Returns the files of an example, under this name.
    fn of(&self, files: &[(&str, &str)], example: &str) -> Vec<(String, String)> {
        let vendor = format!("\"{}\"", self.title());
        let soc = format!("SOC: Option<&str> = Some(\"{}-1\")", self.0);
        let named = |text: &str| {
            let text = text.replace(example, &self.0).replace("\"Shardwright\"", &vendor);
            text.replace("SOC: Option<&str> = None", &soc)
        };
        files.iter().map(|(path, text)| ((*path).to_owned(), named(text))).collect()
    }

    /// Fills the name into texts that were written as templates, in the places of NAME, STEM and
    /// TITLE.
    fn filled(&self, files: &[(&str, &str)]) -> Vec<(String, String)> {
        let fill = |text: &str| {
            text.replace("NAME", &self.0).replace("STEM", &self.stem()).replace("TITLE", &self.title())
        };
        files.iter().map(|(path, text)| (fill(path), fill(text))).collect()
    }
}

/// Writes a folder that does not exist yet.
fn write(folder: PathBuf, mut files: Vec<(String, String)>, next: Vec<String>) -> Result<Begun, Failure> {
    let failed = |path: &Path| io(path.display().to_string());
    if folder.symlink_metadata().is_ok() {
        return Err(Failure::Refused {
            kind: ErrorKind::Argument,
            message: format!("{} already exists", folder.display()),
            help: "choose another name, or another folder with `--within`".to_owned(),
        });
    }
    if let Some(within) = folder.parent() {
        fs::create_dir_all(within).map_err(failed(within))?;
    }
    fs::create_dir(&folder).map_err(failed(&folder))?;
    files.sort();
    let written = files.iter().try_for_each(|(path, text)| {
        let path = folder.join(path);
        let parent = path.parent().unwrap_or(&folder);
        fs::create_dir_all(parent).map_err(failed(parent))?;
        fs::write(&path, text).map_err(failed(&path))
    });
    if written.is_err() {
        // Without the folder, the next attempt can use the name.
        let _ = fs::remove_dir_all(&folder);
    }
    written?;
    let files = files.into_iter().map(|(path, _)| path).collect();
    Ok(Begun { folder, files, next })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_packages_and_libraries() {
        for name in ["acme", "acme-npu-2"] {
            assert!(Name::new(name).is_ok(), "{name}");
        }
        for name in ["", "2acme", "Acme", "acme_npu", "../acme", "a b", &"a".repeat(41)] {
            assert!(Name::new(name).is_err(), "{name}");
        }
    }

    #[test]
    fn nothing_of_an_example_s_name_is_left() {
        let name = Name("acme-npu".to_owned());
        for (example, files) in [("template-c", SHIM_IN_C), ("template-rust", SHIM_IN_RUST)] {
            let files = name.of(files, example);
            assert!(files.len() > 5, "{example}");
            assert!(files.iter().any(|(_, text)| text.contains("acme-npu")), "{example}");
            let left = files.iter().find(|(_, text)| text.contains(example));
            assert!(left.is_none(), "{example}: {:?}", left.map(|(path, _)| path));
            if example == "template-rust" {
                assert!(files.iter().any(|(_, text)| text.contains("Some(\"acme-npu-1\")")), "{example}");
            }
        }
        let written = name.filled(&[("README.md", SHIM_IN_C_README), ("p", PROFILE), ("b", SHIM_IN_C_BUILD)]);
        for (path, text) in written {
            assert!(!["NAME", "STEM", "TITLE"].iter().any(|word| text.contains(word)), "{path}: {text}");
        }
    }

    #[test]
    fn readmes_of_shims_name_the_option_that_contains_their_faults() {
        let page = include_str!("../../../../vendor-shims/README.md");
        for readme in [SHIM_IN_C_README, SHIM_IN_RUST_README, page] {
            assert!(readme.contains("`--isolation process`"), "{readme}");
        }
    }

    #[test]
    fn crates_that_are_copied_inherit_nothing() {
        let manifests: Vec<&(&str, &str)> =
            SHIM_IN_RUST.iter().chain(PLANNER).filter(|(path, _)| path.ends_with("Cargo.toml")).collect();
        assert_eq!(manifests.len(), 5);
        for (path, text) in manifests {
            assert!(!text.contains("workspace") && text.contains("version = "), "{path}: {text}");
            assert!(!text.contains("dev-dependencies"), "{path}: {text}");
        }
    }
}
