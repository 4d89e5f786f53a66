//! Directories, caches and variables that this program reads.

use std::path::{Path, PathBuf};

use serde::Serialize;
use shardwright_files::eviction;
use shardwright_planning::registry::{PlannerFile, PlannerRegistry};
use shardwright_vocabulary::Error;

use crate::report::Problem;
use shardwright::SearchPath;

/// Maximum number of cache entries to count. A larger cache is reported as partial.
const CACHE_ENTRIES_MAX: usize = 100_000;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SearchedPlace {
    /// What to find there: `shims`, `planners`, `profiles`.
    pub what: String,
    pub path: String,
    pub exists: bool,
}

/// A file found in a directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FoundFile {
    pub name: String,
    /// One of `built-in`, `component` or `pack`.
    pub kind: String,
    /// Path of the file, or `None` if built in.
    pub path: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct CacheReport {
    /// Content of the cache.
    pub what: String,
    pub path: String,
    pub exists: bool,
    /// Number of files in the cache.
    pub files: u64,
    /// Total size of the files in bytes.
    pub bytes: u64,
    /// Whether the cache has more files than were counted.
    pub partial: bool,
}

/// An environment variable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct VariableReport {
    pub name: String,
    /// Value of the variable, if it is set.
    pub value: Option<String>,
    /// Effect of the variable.
    pub meaning: String,
}

pub(crate) fn searched(search: &SearchPath) -> Vec<SearchedPlace> {
    let lists = [("shims", &search.shims), ("planners", &search.planners), ("profiles", &search.profiles)];
    let of = |(what, paths): (&str, &Vec<PathBuf>)| -> Vec<SearchedPlace> {
        let place = |path: &PathBuf| SearchedPlace {
            what: what.to_owned(),
            path: path.display().to_string(),
            exists: path.is_dir(),
        };
        paths.iter().map(place).collect()
    };
    lists.into_iter().flat_map(of).collect()
}

/// Returns the built-in planner and the planners in the directories.
pub(crate) fn planners(directories: &[PathBuf], problems: &mut Vec<Problem>) -> Vec<FoundFile> {
    let mut found = vec![FoundFile { name: "generic".to_owned(), kind: "built-in".to_owned(), path: None }];
    let registry =
        directories.iter().fold(PlannerRegistry::new(), |registry, path| registry.with_directory(path));
    let mut problem = |error: Error| problems.push(Problem::of(&error, error.help().map(str::to_owned)));
    match registry.list() {
        Ok(entries) => {
            entries.iter().filter_map(|entry| entry.expect_pack().err()).for_each(problem);
            found.extend(entries.into_iter().map(|entry| {
                FoundFile {
                    name: entry.name,
                    kind: match entry.file {
                        PlannerFile::Wasm => "component",
                        PlannerFile::Pack => "pack",
                    }
                    .to_owned(),
                    path: Some(entry.path.display().to_string()),
                }
            }));
        }
        Err(error) => problem(error),
    }
    found
}

/// Returns the total size of the folders of [`eviction::EVICTED`], with their limit.
fn bounded(cache: &Path, reports: &[CacheReport]) -> Option<CacheReport> {
    let of = || reports.iter().filter(|report| eviction::EVICTED.contains(&report.what.as_str()));
    of().next()?;
    Some(CacheReport {
        what: format!("bounded, at most {} GiB", eviction::CACHE_BYTES_MAX >> 30),
        exists: true,
        path: cache.display().to_string(),
        files: of().map(|report| report.files).sum(),
        bytes: of().map(|report| report.bytes).sum(),
        partial: of().any(|report| report.partial),
    })
}

/// Returns the folders of the user's cache, and the folder of temporary files.
pub(crate) fn caches() -> Vec<CacheReport> {
    let mut reports = Vec::new();
    if let Some(cache) = shardwright::user_cache_directory() {
        let mut folders: Vec<PathBuf> = std::fs::read_dir(&cache)
            .map(|entries| entries.filter_map(|entry| Some(entry.ok()?.path())).collect())
            .unwrap_or_default();
        folders.retain(|path| path.is_dir());
        folders.truncate(CACHE_ENTRIES_MAX);
        folders.sort();
        if folders.is_empty() {
            reports.push(cache_report("cache, still empty", &cache));
        }
        for folder in folders {
            let name = folder.file_name().unwrap_or_default().to_string_lossy().into_owned();
            reports.push(cache_report(&name, &folder));
        }
        reports.extend(bounded(&cache, &reports));
    }
    let temporary = std::env::temp_dir();
    reports.push(CacheReport {
        what: "temporary files: work orders, uncached artefacts".to_owned(),
        exists: temporary.is_dir(),
        path: temporary.display().to_string(),
        files: 0,
        bytes: 0,
        partial: false,
    });
    reports
}

fn cache_report(what: &str, path: &Path) -> CacheReport {
    let mut report = CacheReport {
        what: what.to_owned(),
        path: path.display().to_string(),
        exists: path.is_dir(),
        files: 0,
        bytes: 0,
        partial: false,
    };
    let mut folders = vec![path.to_owned()];
    let mut seen = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
            seen += 1;
            if seen > CACHE_ENTRIES_MAX {
                report.partial = true;
                return report;
            }
            // Count links as themselves, as their targets are not in the cache.
            match entry.metadata() {
                Ok(metadata) if metadata.is_dir() => folders.push(entry.path()),
                Ok(metadata) => {
                    report.files += 1;
                    report.bytes = report.bytes.saturating_add(metadata.len());
                }
                Err(_) => report.partial = true,
            }
        }
    }
    report
}

/// Variables that this program, its worker or a vendor's library reads.
const VARIABLES: [(&str, &str); 15] = [
    ("SHARDWRIGHT_SHIM_PATH", "directories of shims, searched before the program's own"),
    ("SHARDWRIGHT_PLANNER_PATH", "directories of planners"),
    ("SHARDWRIGHT_PROFILE_PATH", "directories of SoC profiles"),
    ("SHARDWRIGHT_WORKER", "the worker program"),
    ("SHARDWRIGHT_WORKER_MEMORY", "memory limit of a worker, such as `20GiB`"),
    ("SHARDWRIGHT_WORKER_RUN_SECONDS", "time limit of a run in a worker, in seconds (default: 120)"),
    (
        "SHARDWRIGHT_QNN_LIB",
        "Qualcomm's library for the shim `qnn`, a file or a folder (default: next to the shim, then the \
         loader's path)",
    ),
    (
        "SHARDWRIGHT_NEURON_LIB",
        "MediaTek's library, or a simulator of it, for the shim `neuron`, a file or a folder (default: next \
         to the shim, then the loader's path)",
    ),
    ("SHARDWRIGHT_NEURON_LOWERING", "default of the option `lowering` of the shim `neuron`"),
    ("SHARDWRIGHT_NEURON_SIMULATOR", "configuration of the simulator of MediaTek's library"),
    ("SHARDWRIGHT_LOG", "log filter without `-v`"),
    ("XDG_CACHE_HOME", "location of the cache"),
    ("TMPDIR", "location of temporary files"),
    ("LD_LIBRARY_PATH", "search path for vendors' libraries"),
    ("ADSP_LIBRARY_PATH", "search path of a Hexagon for its libraries"),
];

pub(crate) fn environment() -> Vec<VariableReport> {
    let of = |(name, meaning): (&str, &str)| VariableReport {
        name: name.to_owned(),
        value: std::env::var_os(name).map(|value| value.to_string_lossy().into_owned()),
        meaning: meaning.to_owned(),
    };
    VARIABLES.into_iter().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cache_is_counted_without_following_links() {
        let root = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(root.path().join("a/b")).unwrap();
        std::fs::write(root.path().join("a/b/c"), [0; 100]).unwrap();
        std::fs::write(root.path().join("d"), [0; 20]).unwrap();
        std::os::unix::fs::symlink("/", root.path().join("everything")).unwrap();
        let found = cache_report("x", root.path());
        assert_eq!((found.files, found.exists, found.partial), (3, true, false));
        assert!((120..200).contains(&found.bytes), "{}", found.bytes);
        let none = cache_report("x", &root.path().join("none"));
        assert_eq!((none.files, none.bytes, none.exists), (0, 0, false));
    }

    #[test]
    fn a_directory_of_planners_that_holds_one_twice_is_a_problem_not_the_end() {
        let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        for folder in [&first, &second] {
            std::fs::write(folder.path().join("even.wasm"), b"").unwrap();
        }
        let mut problems = Vec::new();
        let found = planners(&[first.path().into(), second.path().into()], &mut problems);
        assert_eq!((found.len(), problems.len()), (1, 1));
        assert!(problems[0].what.contains("even") && problems[0].help.is_some());
    }

    #[test]
    fn a_pack_that_its_name_does_not_load_is_a_problem() {
        let folder = tempfile::tempdir().unwrap();
        let whole = shardwright_planning::builtin::PACK;
        for (name, bytes) in
            [("generic", whole), ("renamed", whole), ("cut", &whole[..999]), ("text", b"a planner")]
        {
            std::fs::write(folder.path().join(format!("{name}.pack")), bytes).unwrap();
        }
        let mut problems = Vec::new();
        let found = planners(&[folder.path().into()], &mut problems);
        assert_eq!((found.len(), problems.len()), (5, 3), "{problems:?}");
        let words =
            ["cut.pack: ", "contains planner `generic`, not `renamed`", "text.pack: not a planner pack"];
        for (problem, words) in problems.iter().zip(words) {
            assert!(problem.what.contains(words) && problem.help.is_some(), "{problem:?}");
        }
    }
}
