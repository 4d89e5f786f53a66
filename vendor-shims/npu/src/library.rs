//! Finds a vendor's library: one search rule for all shims, with every step recorded.
//!
//! 1. The path that the user sets by an option, otherwise by an environment variable: that file, or
//!    the vendor's file in that folder. Nothing else is tried.
//! 2. The vendor's file beside the shim's own, if it exists.
//! 3. Names in the loader's search path, in order: the first that loads and passes. A missing
//!    library is distinguished from one that exists but does not load.

use std::ffi::{CStr, OsStr, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library as Dynamic, RTLD_LOCAL, RTLD_NOW};

/// Why no library was opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// No library where the rule looks.
    #[error("no library was found; looked at {}", tried.join(", "))]
    NotFound {
        /// Every place tried, with the result.
        tried: Vec<String>,
    },
    /// The file exists, but the loader rejects it.
    #[error("{} is there and cannot be loaded: {reason}", path.display())]
    NotLoadable {
        /// The file, or the name by which the loader found it.
        path: PathBuf,
        /// The loader's message.
        reason: String,
    },
}

impl LibraryError {
    /// Help text for a user. If the library the user named was not found, what is wrong with that
    /// name (nothing else is tried after it); otherwise `how`, which says how to name one.
    pub fn of_vendor(&self, vendor: &str, how: &str) -> String {
        let LibraryError::NotFound { tried } = self else { return self.to_string() };
        let by_name = tried.len() <= Search::GIVEN;
        let remedy = tried.last().filter(|last| by_name && !last.ends_with(NOT_GIVEN));
        format!("no {vendor} library was found: {}", remedy.map_or(how, String::as_str))
    }
}

/// End of a step whose option or variable is not set.
const NOT_GIVEN: &str = ": not given";

/// Collects the steps of a search.
pub struct Steps {
    said: Vec<String>,
    say: fn(&str),
}

impl Steps {
    /// No steps yet; each step also goes to a log.
    pub fn new(say: fn(&str)) -> Steps {
        Steps { said: Vec::new(), say }
    }

    /// One more step.
    pub fn say(&mut self, text: String) {
        (self.say)(&text);
        self.said.push(text);
    }

    /// All of them.
    pub fn into_said(self) -> Vec<String> {
        self.said
    }
}

/// Where to look.
#[derive(Clone, Copy, Debug)]
pub struct Search<'a> {
    /// Settings by which users name a library, in order of precedence, with their values.
    pub given: [(&'a str, Option<&'a Path>); Search::GIVEN],
    /// The vendor's file, looked for in folders.
    pub file: &'a str,
    /// The folder of the shim.
    pub beside: Option<&'a Path>,
    /// Names for the loader's path.
    pub names: &'a [&'a str],
}

impl Search<'_> {
    /// In how many ways a user names one.
    pub const GIVEN: usize = 2;

    /// Runs the search. `passes` returns why a library found by name is rejected.
    ///
    /// # Errors
    ///
    /// [`LibraryError`].
    pub fn find(
        &self,
        steps: &mut Steps,
        passes: impl Fn(&Dynamic) -> Result<(), String>,
    ) -> Result<(PathBuf, Dynamic), LibraryError> {
        for (place, path) in self.given {
            let Some(path) = path else {
                steps.say(format!("{place}: not given"));
                continue;
            };
            let path = if path.is_dir() { path.join(self.file) } else { path.to_owned() };
            if !path.is_file() {
                steps.say(format!("{place}: {} is no file", path.display()));
                return Err(LibraryError::NotFound { tried: steps.said.clone() });
            }
            steps.say(format!("{place}: {}", path.display()));
            return Ok((path.clone(), load_file(&path)?));
        }
        match self.beside.map(|folder| folder.join(self.file)) {
            Some(path) if path.is_file() => {
                steps.say(format!("beside the shim: {}", path.display()));
                return Ok((path.clone(), load_file(&path)?));
            }
            Some(path) => steps.say(format!("beside the shim: {} is no file", path.display())),
            None => steps.say("beside the shim: the loader does not report where the shim is".to_owned()),
        }
        let mut unloadable = None;
        for name in self.names {
            match open(Path::new(name)) {
                Ok(found) => match passes(&found) {
                    Ok(()) => {
                        steps.say(format!("the loader's path: {name} opens, later names are not tried"));
                        return Ok((PathBuf::from(name), found));
                    }
                    Err(reason) => steps.say(format!("the loader's path: {name} {reason}")),
                },
                Err(reason) if is_missing(name, &reason) => {
                    steps.say(format!("the loader's path: it has no {name}"));
                }
                Err(reason) => {
                    let error = LibraryError::NotLoadable { path: PathBuf::from(name), reason };
                    steps.say(format!("the loader's path: {error}"));
                    unloadable.get_or_insert(error);
                }
            }
        }
        Err(unloadable.unwrap_or_else(|| LibraryError::NotFound { tried: steps.said.clone() }))
    }
}

/// Whether the loader reports that no library of that name exists, in the wording of glibc, musl or
/// Android; with any other message it found one. If a library exists but one of its dependencies
/// does not, the message names the dependency.
fn is_missing(name: &str, reason: &str) -> bool {
    let glibc = reason.starts_with(&format!("{name}: cannot open shared object file"));
    let musl = reason.starts_with(&format!("Error loading shared library {name}:"));
    let android = reason.contains(&format!("library \"{name}\" not found")) && !reason.contains("needed by");
    (glibc || musl) && reason.contains("No such file or directory") || android
}

/// Opens a file.
///
/// # Errors
///
/// [`LibraryError::NotFound`] if a path with a folder does not exist, [`LibraryError::NotLoadable`]
/// for any other loader error.
pub fn load_file(path: &Path) -> Result<Dynamic, LibraryError> {
    let name = path.to_string_lossy();
    let is_name = path.components().count() == 1;
    match open(path) {
        Ok(dynamic) => Ok(dynamic),
        Err(_) if !is_name && !path.is_file() => {
            Err(LibraryError::NotFound { tried: vec![format!("{name} is no file")] })
        }
        Err(reason) if is_name && is_missing(&name, &reason) => {
            Err(LibraryError::NotFound { tried: vec![format!("the loader's path: it has no {name}")] })
        }
        Err(reason) => Err(LibraryError::NotLoadable { path: path.to_owned(), reason }),
    }
}

fn open(path: &Path) -> Result<Dynamic, String> {
    // SAFETY: the file is the vendor's library that the user named or installed; its initialisers
    // run.
    let opened = unsafe { Dynamic::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
    // The loader's message is the error's source.
    opened.map_err(|error| {
        std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string)
    })
}

/// The folder of the file this code was loaded from: the shim's, or the program's that the shim is
/// linked into.
pub fn own_folder() -> Option<PathBuf> {
    // SAFETY: all zeros is a valid value of a struct of pointers.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr accepts any address; the struct outlives the call.
    let found = unsafe { libc::dladdr(own_folder as *const c_void, &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: not null, and the loader keeps the name as long as the file is loaded, which it is
    // while this runs.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    let name = Path::new(OsStr::from_bytes(name.to_bytes()));
    // A host that hashed the file opened it by that descriptor.
    let file = match name.starts_with("/proc/self/fd") {
        true => std::fs::read_link(name).ok()?,
        false => name.to_owned(),
    };
    Some(file.parent()?.to_owned())
}

/// The path in an environment variable; `None` if unset or empty.
pub fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    fn search<'a>(names: &'a [&'a str]) -> Search<'a> {
        Search {
            given: [("option `library`", None), ("VARIABLE", None)],
            file: "libx.so",
            beside: None,
            names,
        }
    }

    fn found(search: &Search<'_>) -> Result<PathBuf, LibraryError> {
        let mut steps = Steps::new(|_| ());
        search.find(&mut steps, |_| Ok(())).map(|(path, _)| path)
    }

    #[test]
    fn a_name_that_nobody_has_is_not_said_to_be_there() {
        match found(&search(&["libshardwright-nowhere.so"])) {
            Err(LibraryError::NotFound { tried }) => {
                assert_eq!(tried.len(), 4, "{tried:?}");
                assert_eq!(tried[3], "the loader's path: it has no libshardwright-nowhere.so");
            }
            other => panic!("{other:?}"),
        }
        let absent = load_file(Path::new("libshardwright-nowhere.so")).map(drop);
        assert!(matches!(absent, Err(LibraryError::NotFound { .. })), "{absent:?}");
        let absent = load_file(Path::new("/nowhere/at/all.so")).map(drop);
        assert!(matches!(absent, Err(LibraryError::NotFound { .. })), "{absent:?}");
    }

    /// The loader reads its path when a program starts, so a second one looks.
    const CHILD: &str = "SHARDWRIGHT_TEST_LOADER_CHILD";

    #[test]
    fn what_the_loader_finds_and_does_not_take_is_told_from_what_it_does_not_find() {
        let name = "libshardwright-broken.so";
        if std::env::var_os(CHILD).is_some() {
            match found(&search(&["libshardwright-nowhere.so", name])) {
                Err(LibraryError::NotLoadable { path, reason }) => {
                    assert_eq!(path, Path::new(name));
                    assert!(reason.contains(name), "{reason}");
                }
                other => panic!("{other:?}"),
            }
            return;
        }
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join(name), "no library").expect("written");
        let here =
            "library::tests::what_the_loader_finds_and_does_not_take_is_told_from_what_it_does_not_find";
        let reported = Command::new(std::env::current_exe().expect("a program"))
            .args([here, "--exact"])
            .env("LD_LIBRARY_PATH", folder.path())
            .env(CHILD, "1")
            .output()
            .expect("started");
        let text = String::from_utf8_lossy(&reported.stdout);
        assert!(reported.status.success() && text.contains("1 passed"), "{text}");
    }

    #[test]
    fn a_file_that_is_no_library_is_there() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("libx.so");
        let beside = Search { beside: Some(folder.path()), ..search(&[]) };
        assert!(matches!(found(&beside), Err(LibraryError::NotFound { tried }) if tried.len() == 3));
        std::fs::write(&file, "no library").expect("written");
        assert!(matches!(found(&beside), Err(LibraryError::NotLoadable { path, .. }) if path == file));
        let folder_given =
            Search { given: [("option `library`", Some(folder.path())), ("V", None)], ..search(&[]) };
        assert!(matches!(found(&folder_given), Err(LibraryError::NotLoadable { .. })));
        let absent =
            Search { given: [("option `library`", Some(Path::new("/nowhere"))), ("V", None)], ..search(&[]) };
        assert!(matches!(found(&absent), Err(LibraryError::NotFound { tried }) if tried.len() == 1));
    }

    #[test]
    fn loaders_words_for_what_is_missing_are_known() {
        for (reason, missing) in [
            ("libx.so: cannot open shared object file: No such file or directory", true),
            ("liby.so: cannot open shared object file: No such file or directory", false),
            ("libx.so: cannot open shared object file: Permission denied", false),
            ("/a/libx.so: invalid ELF header", false),
            ("dlopen failed: library \"libx.so\" not found", true),
            ("dlopen failed: library \"liby.so\" not found: needed by /a/libx.so in namespace d", false),
            ("dlopen failed: \"/a/libx.so\" has unexpected e_machine: 62", false),
            ("Error loading shared library libx.so: No such file or directory", true),
            ("Error loading shared library liby.so: No such file or directory (needed by /a/libx.so)", false),
        ] {
            assert_eq!(is_missing("libx.so", reason), missing, "{reason}");
        }
    }
}
