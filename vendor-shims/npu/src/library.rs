//! Finds a vendor's library with one search rule for all shims, and records every step.
//!
//! 1. The path that the user sets with an option, or else with an environment variable. It is the
//!    file, or a folder that contains the vendor's file. If it is set, no other place is tried.
//! 2. The vendor's file next to the shim's own file, if it exists.
//! 3. Names in the loader's search path, in order. The first library that loads and passes the
//!    check is used. A missing library is distinguished from a library that exists but does not
//!    load.

use std::ffi::{CStr, OsStr, c_char, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library as Dynamic, RTLD_LOCAL, RTLD_NOW};

/// The reason why no library was opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LibraryError {
    /// No library was found in any place.
    #[error("no library was found; looked at {}", tried.join(", "))]
    NotFound {
        /// Every place that was tried, with the result.
        tried: Vec<String>,
    },
    /// The file exists, but the loader rejects it.
    #[error("{} exists but cannot be loaded: {reason}", path.display())]
    NotLoadable {
        /// The file, or the name by which the loader found it.
        path: PathBuf,
        reason: String,
    },
}

impl LibraryError {
    /// Returns the help text for a user. If the library that the user named was not found, the text
    /// explains what is wrong with that name, because no other place is tried. Otherwise it is
    /// `how`, which explains how to name a library.
    pub fn of_vendor(&self, vendor: &str, how: &str) -> String {
        let LibraryError::NotFound { tried } = self else { return self.to_string() };
        let by_name = tried.len() <= Search::GIVEN;
        let remedy = tried.last().filter(|last| by_name && !last.ends_with(NOT_GIVEN));
        format!("no {vendor} library was found: {}", remedy.map_or(how, String::as_str))
    }
}

/// Suffix of a step whose option or variable is not set.
const NOT_GIVEN: &str = ": not set";

/// Collects the steps of a search.
pub struct Steps {
    said: Vec<String>,
    say: fn(&str),
}

impl Steps {
    /// Starts an empty list. Each step is also passed to the log function `say`.
    pub fn new(say: fn(&str)) -> Steps {
        Steps { said: Vec::new(), say }
    }

    /// Adds a step.
    pub fn say(&mut self, text: String) {
        (self.say)(&text);
        self.said.push(text);
    }

    /// Returns all steps.
    pub fn into_said(self) -> Vec<String> {
        self.said
    }
}

/// The places to search.
#[derive(Clone, Copy, Debug)]
pub struct Search<'a> {
    /// Settings by which users name a library, in order of precedence, with their values.
    pub given: [(&'a str, Option<&'a Path>); Search::GIVEN],
    /// Name of the vendor's file, which is looked for in folders.
    pub file: &'a str,
    /// The folder of the shim.
    pub beside: Option<&'a Path>,
    /// Names to look up in the loader's search path.
    pub names: &'a [&'a str],
}

impl Search<'_> {
    /// Number of settings by which a user can name a library.
    pub const GIVEN: usize = 2;

    /// Runs the search. `passes` returns the reason if a library found by name is rejected.
    ///
    /// # Errors
    ///
    /// [`LibraryError`] if no library was opened.
    pub fn find(
        &self,
        steps: &mut Steps,
        passes: impl Fn(&Dynamic) -> Result<(), String>,
    ) -> Result<(PathBuf, Dynamic), LibraryError> {
        for (place, path) in self.given {
            let Some(path) = path else {
                steps.say(format!("{place}: not set"));
                continue;
            };
            let path = if path.is_dir() { path.join(self.file) } else { path.to_owned() };
            if !path.is_file() {
                steps.say(format!("{place}: {} is not a file", path.display()));
                return Err(LibraryError::NotFound { tried: steps.said.clone() });
            }
            steps.say(format!("{place}: {}", path.display()));
            return Ok((path.clone(), load_file(&path)?));
        }
        match self.beside.map(|folder| folder.join(self.file)) {
            Some(path) if path.is_file() => {
                steps.say(format!("next to the shim: {}", path.display()));
                return Ok((path.clone(), load_file(&path)?));
            }
            Some(path) => steps.say(format!("next to the shim: {} is not a file", path.display())),
            None => steps.say("next to the shim: the loader does not report where the shim is".to_owned()),
        }
        let mut unloadable = None;
        for name in self.names {
            match open(Path::new(name)) {
                Ok(found) => match passes(&found) {
                    Ok(()) => {
                        steps.say(format!("the loader's path: {name} opens, so later names are not tried"));
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

/// Returns whether the loader reports that no library with this name exists, in the wording of
/// glibc, musl or Android. With any other message, the loader found a library. If only a dependency
/// is missing, the message names the dependency.
fn is_missing(name: &str, reason: &str) -> bool {
    let glibc = reason.starts_with(&format!("{name}: cannot open shared object file"));
    let musl = reason.starts_with(&format!("Error loading shared library {name}:"));
    let android = reason.contains(&format!("library \"{name}\" not found")) && !reason.contains("needed by");
    (glibc || musl) && reason.contains("No such file or directory") || android
}

/// Opens a library file.
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
            Err(LibraryError::NotFound { tried: vec![format!("{name} is not a file")] })
        }
        Err(reason) if is_name && is_missing(&name, &reason) => {
            Err(LibraryError::NotFound { tried: vec![format!("the loader's path: it has no {name}")] })
        }
        Err(reason) => Err(LibraryError::NotLoadable { path: path.to_owned(), reason }),
    }
}

fn open(path: &Path) -> Result<Dynamic, String> {
    // SAFETY: the file is the vendor's library that the user named or installed. Its initialisers
    // run.
    let opened = unsafe { Dynamic::open(Some(path), RTLD_NOW | RTLD_LOCAL) };
    // The loader's own message is the source of the error.
    opened.map_err(|error| {
        std::error::Error::source(&error).map_or_else(|| error.to_string(), ToString::to_string)
    })
}

/// Returns the folder of the file from which this code was loaded: the shim, or the program into
/// which the shim is linked.
pub fn own_folder() -> Option<PathBuf> {
    // SAFETY: all zeros is a valid value of a struct of pointers.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr accepts any address, and the struct outlives the call.
    let found = unsafe { libc::dladdr(own_folder as *const c_void, &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: not null. The loader keeps the name as long as the file is loaded, which is the case
    // while this code runs.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    let name = Path::new(OsStr::from_bytes(name.to_bytes()));
    // A host that has hashed the file opens it through that file's descriptor.
    let file = match name.starts_with("/proc/self/fd") {
        true => std::fs::read_link(name).ok()?,
        false => name.to_owned(),
    };
    Some(file.parent()?.to_owned())
}

/// Returns the path in an environment variable, or `None` if unset or empty.
pub fn variable(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from)
}

/// Copies a text of a library. Returns `None` if it is null.
///
/// # Safety
/// `pointer` is null or a text that ends with a zero byte.
pub unsafe fn text(pointer: *const c_char) -> Option<String> {
    if pointer.is_null() {
        return None;
    }
    // SAFETY: not null, and the caller guarantees the rest.
    Some(unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned())
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

    /// The loader reads its search path when a program starts, so a child process performs the
    /// search.
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
