//! The suites that `.ci/run` may leave out: tests of vendors' libraries, of their simulators, of a
//! processor that this machine emulates, and of the kernels in further builds.
//!
//! **Rule.** A suite runs if a file of its `cargo tree` changed since the base, or a file that
//! every build uses ([`EVERYTHING`]). It also runs if there is no base, and always with
//! `SHARDWRIGHT_THOROUGH=1`. The base is the commit in `SHARDWRIGHT_BASE`, otherwise the commit in
//! `.ci/base`: the last landing. Only `--ci` applies the rule. Without it, all suites run.

use std::collections::BTreeSet;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::error::Error;
use crate::process;
use crate::workspace::Workspace;

/// Variable with the commit that changes are counted from, for example `HEAD~1`.
const BASE_VARIABLE: &str = "SHARDWRIGHT_BASE";

/// File with that commit, used if the variable is not set.
const BASE_FILE: &str = ".ci/base";

/// Variable that makes all suites run, with all cases of their sweeps.
pub const THOROUGH: &str = "SHARDWRIGHT_THOROUGH";

/// Files and folders outside the crates that every suite depends on: profiles of cargo, versions,
/// profiles of chips, this rule, and the fetched libraries.
const EVERYTHING: [&str; 7] =
    ["Cargo.toml", "Cargo.lock", "rust-toolchain.toml", ".cargo", ".ci/run", "plugins/profiles", "xtask"];

/// Packages whose tests run together or not at all.
#[derive(Debug, PartialEq, Eq)]
pub struct Suite {
    /// Its name in the messages.
    pub name: &'static str,
    /// The packages with the tests.
    pub packages: &'static [&'static str],
    /// Packages of programs and libraries that the tests start or load.
    starts: &'static [&'static str],
    /// Files and folders that the tests read outside their packages.
    reads: &'static [&'static str],
}

/// Qualcomm's shim on Qualcomm's library.
const QUALCOMM: Suite =
    Suite { name: "qualcomm", packages: &["shardwright-shim-qnn"], starts: &[], reads: &[] };

/// MediaTek's shim on its simulator, at real shapes, and the simulator under Google's client.
const MEDIATEK: Suite = Suite {
    name: "mediatek",
    packages: &[
        "shardwright-shim-neuron",
        "shardwright-neuron-adapter",
        "shardwright-neuron-files",
        "shardwright-neuron-recorder",
        "shardwright-neuron-simulator",
    ],
    starts: &[],
    reads: &[],
};

/// Whole models through both shims, with the program.
const VENDORS: Suite = Suite {
    name: "vendors",
    packages: &["shardwright-vendor-tests"],
    starts: &[
        "shardwright-cli",
        "shardwright-worker",
        "shardwright-shim-cpu-library",
        "shardwright-shim-neuron-library",
        "shardwright-shim-qnn-library",
        "shardwright-neuron-simulator",
        "shardwright-planner-generic",
        "shardwright-planner-mediatek",
        "shardwright-planner-qualcomm",
    ],
    reads: &["demo-model", "wit"],
};

/// A plan by a host without a compiler, emulated. See `cargo xtask aarch64`.
pub const ARM_PLANS: Suite = Suite {
    name: "plans on ARM",
    packages: &["shardwright-planning-runtime-only"],
    starts: &["shardwright-cli", "shardwright-planner-generic"],
    reads: &["demo-model", "wit"],
};

/// The CPU shim's own tests in further builds: with assertions, and for ARM.
pub const KERNELS: Suite =
    Suite { name: "kernels in further builds", packages: &["shardwright-shim-cpu"], starts: &[], reads: &[] };

/// The code that applications link, compiled for other systems. See `cargo xtask platforms`.
pub const PLATFORMS: Suite = Suite {
    name: "other platforms",
    packages: &["shardwright-runtime"],
    starts: &[
        "shardwright-worker",
        "shardwright-shim-cpu",
        "shardwright-shim-qnn",
        "shardwright-shim-neuron",
    ],
    reads: &[],
};

/// The suites of `cargo xtask test`.
const SUITES: [Suite; 3] = [QUALCOMM, MEDIATEK, VENDORS];

/// Whether a suite runs, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// The suite runs, for this reason.
    Runs(String),
    /// The suite is left out, for this reason.
    LeftOut(String),
}

impl fmt::Display for Decision {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Runs(why) => write!(formatter, "runs: {why}"),
            Self::LeftOut(why) => write!(formatter, "left out: {why}"),
        }
    }
}

/// Returns whether all suites run, with all cases of their sweeps.
pub fn is_thorough() -> bool {
    std::env::var_os(THOROUGH).is_some_and(|value| value == "1")
}

/// Decides about the suites of `cargo xtask test`, prints each decision, and returns the packages
/// whose tests are left out.
pub fn left_out(workspace: &Workspace) -> Result<Vec<&'static str>, Error> {
    let changes = Changes::find(workspace);
    let mut packages = Vec::new();
    for suite in &SUITES {
        if let Decision::LeftOut(_) = announced(workspace, suite, &changes)? {
            packages.extend(suite.packages);
        }
    }
    Ok(packages)
}

/// Decides about one suite and prints the decision.
pub fn runs(workspace: &Workspace, suite: &Suite) -> Result<bool, Error> {
    let decision = announced(workspace, suite, &Changes::find(workspace))?;
    Ok(matches!(decision, Decision::Runs(_)))
}

fn announced(workspace: &Workspace, suite: &Suite, changes: &Changes) -> Result<Decision, Error> {
    let decision = match changes {
        Changes::Unknown(why) => Decision::Runs(why.clone()),
        Changes::Since { base, files } => {
            let mut watched = folders_of(workspace, suite)?;
            watched.extend(EVERYTHING.iter().chain(suite.reads).map(PathBuf::from));
            decide(base, files, &watched)
        }
    };
    eprintln!("suite {}: {decision}", suite.name);
    Ok(decision)
}

fn decide(base: &str, files: &[PathBuf], watched: &BTreeSet<PathBuf>) -> Decision {
    let changed = files.iter().find(|file| watched.iter().any(|folder| file.starts_with(folder)));
    match changed {
        Some(file) => Decision::Runs(format!("{} changed since {base}", file.display())),
        None => Decision::LeftOut(format!(
            "none of its {} folders and files changed since {base}; {THOROUGH}=1 runs it",
            watched.len()
        )),
    }
}

/// The files that changed since the base.
#[derive(Debug, PartialEq, Eq)]
enum Changes {
    /// Paths relative to the root, in the order of git.
    Since { base: String, files: Vec<PathBuf> },
    /// No suite may be left out, for this reason.
    Unknown(String),
}

impl Changes {
    fn find(workspace: &Workspace) -> Self {
        if is_thorough() {
            return Self::Unknown(format!("{THOROUGH}=1"));
        }
        let named = match std::env::var(BASE_VARIABLE) {
            Ok(named) if !named.is_empty() => Ok(named),
            _ => std::fs::read_to_string(workspace.root.join(BASE_FILE)),
        };
        match named {
            Ok(named) => Self::since(&workspace.root, named.trim()),
            Err(error) => Self::Unknown(format!(
                "no base to compare with: {BASE_VARIABLE} is not set, and {BASE_FILE}: {error}"
            )),
        }
    }

    fn since(root: &Path, named: &str) -> Self {
        let git = |arguments: &[&str]| {
            let mut command = Command::new("git");
            command.current_dir(root).args(arguments).stderr(std::process::Stdio::null());
            command.output().ok().filter(|output| output.status.success()).map(|output| output.stdout)
        };
        // `--end-of-options`: a name that looks like an option is still a name.
        let commit = git(&[
            "rev-parse",
            "--verify",
            "--quiet",
            "--short",
            "--end-of-options",
            &format!("{named}^{{commit}}"),
        ]);
        let Some(commit) = commit.map(|commit| String::from_utf8_lossy(&commit).trim().to_owned()) else {
            return Self::Unknown(format!("the base {named:?} is not a commit of this repository"));
        };
        if git(&["merge-base", "--is-ancestor", &commit, "HEAD"]).is_none() {
            return Self::Unknown(format!("the base {commit} is not an ancestor of HEAD"));
        }
        // Without renames, because both names of a renamed file changed.
        let tracked = git(&["diff", "-z", "--name-only", "--no-renames", &commit]);
        let new = git(&["ls-files", "-z", "--others", "--exclude-standard"]);
        let (Some(tracked), Some(new)) = (tracked, new) else {
            return Self::Unknown(format!("git cannot list the changes since {commit}"));
        };
        let names = |bytes: Vec<u8>| {
            let names = String::from_utf8_lossy(&bytes).into_owned();
            names.split('\0').filter(|name| !name.is_empty()).map(PathBuf::from).collect::<Vec<_>>()
        };
        Self::Since { base: commit, files: [names(tracked), names(new)].concat() }
    }
}

/// Returns the folders of the workspace's packages in the `cargo tree` of a suite, relative to the
/// root.
fn folders_of(workspace: &Workspace, suite: &Suite) -> Result<BTreeSet<PathBuf>, Error> {
    let mut command = workspace.cargo();
    command.args(["tree", "--quiet", "--locked", "--edges", "normal,build,dev", "--prefix", "none"]);
    command.args(["--format", "{p}"]);
    for package in suite.packages.iter().chain(suite.starts) {
        command.args(["--package", package]);
    }
    let folders = folders_in(&process::output(&mut command)?, &workspace.root);
    // The list must contain at least the packages themselves. A listing in another format must not
    // leave a suite out.
    if folders.len() < suite.packages.len() + suite.starts.len() {
        let problem = format!("{} folders of packages", folders.len());
        return Err(Error::Answer { command: process::shown(&command), problem });
    }
    Ok(folders)
}

/// Returns the folders below the root in the lines `NAME VERSION (FOLDER)` of a listing. Packages
/// of the registry have no folder.
fn folders_in(listing: &str, root: &Path) -> BTreeSet<PathBuf> {
    listing
        .lines()
        .flat_map(|line| line.split_once(" (").into_iter().flat_map(|(_, rest)| rest.split(" (")))
        .filter_map(|part| Path::new(part.split(')').next()?).strip_prefix(root).ok())
        .map(Path::to_owned)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_are_read_from_the_listing_of_cargo() {
        let listing = "\
            shardwright-shim-qnn v0.1.0 (/w/vendor-shims/qnn)\n\
            half v2.7.1\n\
            shardwright-derive v0.1.0 (proc-macro) (/w/host/derive) (*)\n\
            elsewhere v1.0.0 (/else/where)\n";
        let folders = folders_in(listing, Path::new("/w"));
        assert_eq!(folders, ["host/derive", "vendor-shims/qnn"].map(PathBuf::from).into());
    }

    #[test]
    fn a_suite_is_left_out_if_none_of_its_files_changed() {
        let watched = ["vendor-shims/qnn", "Cargo.lock"].map(PathBuf::from).into();
        let decided = |file: &str| decide("0a1b2c3", &[PathBuf::from("README.md"), file.into()], &watched);
        for file in ["vendor-shims/qnn/src/lib.rs", "Cargo.lock"] {
            assert_eq!(decided(file), Decision::Runs(format!("{file} changed since 0a1b2c3")));
        }
        for file in ["vendor-shims/qnn-two/src/lib.rs", "host/text/Cargo.lock", "README.md"] {
            let Decision::LeftOut(why) = decided(file) else { panic!("{file} is of no suite") };
            assert!(why.contains("since 0a1b2c3") && why.contains(THOROUGH), "{why}");
        }
    }

    /// Creates a repository with two commits and an uncommitted file.
    fn repository() -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let script = "git init -q . && git config user.name n && git config user.email e \
            && echo 1 > a && git add a && git commit -qm one && git checkout -qb side && git commit -qm side --allow-empty \
            && git checkout -q - && mkdir d && git mv a d/b && git commit -qm two && echo 2 > new";
        process::run(Command::new("sh").current_dir(folder.path()).args(["-c", script])).expect("git works");
        folder
    }

    #[test]
    fn changes_are_those_since_an_ancestor() {
        let repository = repository();
        let since = |base: &str| Changes::since(repository.path(), base);
        let Changes::Since { files, .. } = since("HEAD~1") else { panic!("{:?}", since("HEAD~1")) };
        assert_eq!(files, ["a", "d/b", "new"].map(PathBuf::from));
        let Changes::Since { files, .. } = since("HEAD") else { panic!("{:?}", since("HEAD")) };
        assert_eq!(files, [PathBuf::from("new")]);
        for (base, reason) in [
            ("gone", "not a commit"),
            ("--all", "not a commit"),
            ("side", "not an ancestor"),
            ("", "not a commit"),
        ] {
            let Changes::Unknown(why) = since(base) else { panic!("{base:?} is no base") };
            assert!(why.contains(reason), "{why}");
        }
    }

    #[test]
    fn every_suite_watches_its_own_packages_and_their_dependencies() {
        let workspace = Workspace::locate().expect("cargo metadata");
        for suite in SUITES.iter().chain([&ARM_PLANS, &KERNELS]) {
            let folders = folders_of(&workspace, suite).expect("cargo tree");
            for name in suite.packages.iter().chain(suite.starts) {
                let package = workspace.packages.iter().find(|package| package.name == *name).expect(name);
                let folder = package.folder.strip_prefix(&workspace.root).expect("below the root");
                assert!(folders.contains(folder), "{}: {folders:?}", suite.name);
            }
        }
        let folders = folders_of(&workspace, &QUALCOMM).expect("cargo tree");
        for folder in ["vendor-shims/npu", "vendor-shims/abi", "host/vocabulary"] {
            assert!(folders.contains(Path::new(folder)), "{folders:?}");
        }
        assert!(!folders.contains(Path::new("host/text")), "{folders:?}");
        for file in EVERYTHING {
            assert!(workspace.root.join(file).exists(), "{file}");
        }
    }
}
