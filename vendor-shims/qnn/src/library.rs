//! Finds and opens the vendor's library. Every step of the search is logged.
//!
//! 1. The option `library`, if set: that file, or `libQnnHtp.so` in that folder. No other place is
//!    searched.
//! 2. The variable `SHARDWRIGHT_QNN_LIB`, if set: that file or folder, in the same way.
//! 3. `libQnnHtp.so` next to the shim's own file, if it exists.
//! 4. `libQnnHtp.so` by name through the loader's path.
//!
//! The system library is opened from the same folder, or by name after step 4. An opened library
//! stays loaded, because it starts threads that outlive its handles.

use crate::failure::{QnnError, Result};
use crate::ffi::{self, ApiVersion, Functions, SystemFunctions, Version, number};
use crate::log;
use libloading::os::unix::Library as Dynamic;
use shardwright_shim_npu::library::{Search, Steps, load_file, own_folder, text};
use std::ffi::c_void;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Environment variable for the library: a file or a folder.
pub const VARIABLE: &str = "SHARDWRIGHT_QNN_LIB";
/// File name of the backend.
pub const FILE: &str = "libQnnHtp.so";
/// File name of the system library.
pub const SYSTEM_FILE: &str = "libQnnSystem.so";

/// Supported major version of the core interface.
pub const CORE_MAJOR: u32 = 2;
/// Lowest supported minor version, the oldest with known layouts.
pub const CORE_MINOR: u32 = 32;
/// Supported major version of the system library's interface.
pub const SYSTEM_MAJOR: u32 = 1;
/// Lowest supported minor version. From this version on, binaries are described by the third
/// version of the struct.
pub const SYSTEM_MINOR: u32 = 5;

/// Backend versions from which the device config is 16 bytes. 5.43 has 12 and 5.51 has 16 bytes.
/// The exact version of the change is unknown. A wrong guess is detected, because `session` finds a
/// binary for another architecture.
const LONG_DEVICE_CONFIG: (u32, u32) = (5, 44);

/// Sanity limit on the number of providers.
const MAX_PROVIDERS: u32 = 16;

/// The places to search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LibraryChoice {
    pub option: Option<PathBuf>,
    pub variable: Option<PathBuf>,
    /// The folder of the shim's own file.
    pub beside: Option<PathBuf>,
}

impl LibraryChoice {
    /// Creates the rule from this process's environment.
    pub fn new(option: Option<PathBuf>) -> LibraryChoice {
        let variable = shardwright_shim_npu::library::variable(VARIABLE);
        LibraryChoice { option, variable, beside: own_folder() }
    }

    /// Returns the path to which `cargo xtask vendor qnn` unpacks the library. It is not part of
    /// the search and only tests use it.
    pub fn vendored() -> Option<PathBuf> {
        let cache = shardwright_shim_npu::library::variable("XDG_CACHE_HOME")
            .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cache")))?;
        Some(cache.join("shardwright/vendor/onnxruntime-qnn-2.7.0/onnxruntime_qnn").join(FILE))
    }
}

/// An opened library. It is never closed.
#[derive(Debug)]
pub struct Library {
    path: PathBuf,
    steps: Vec<String>,
    functions: Functions,
    api: ApiVersion,
    build_id: String,
    system: std::result::Result<Arc<System>, QnnError>,
}

impl std::fmt::Debug for Functions {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("Functions")
    }
}

/// The opened system library, which reads binaries.
pub struct System {
    path: PathBuf,
    functions: SystemFunctions,
    version: Version,
}

impl std::fmt::Debug for System {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(formatter, "System({}, {})", self.path.display(), self.version)
    }
}

impl Library {
    /// Opens the library by the search order of [this module](self).
    ///
    /// # Errors
    /// [`LibraryError::NotFound`](crate::failure::LibraryError::NotFound) with every place tried, or
    /// an error about the library that was found.
    pub fn open(choice: &LibraryChoice) -> Result<Arc<Library>> {
        let mut steps = Steps::new(|text| log::note(format!("library: {text}")));
        let search = Search {
            given: [("option `library`", choice.option.as_deref()), (VARIABLE, choice.variable.as_deref())],
            file: FILE,
            beside: choice.beside.as_deref(),
            names: &[FILE],
        };
        let (path, dynamic) = {
            let _quiet = crate::simulation::Quiet::new();
            search.find(&mut steps, |_| Ok(()))?
        };
        let provider = backend_provider(&path, &dynamic)?;
        // SAFETY: the library stays loaded, and a provider is a struct it hands out for good.
        let (api, functions) = unsafe { accept(&path, provider) }?;
        steps.say(format!("{} has core interface {} and backend {}", path.display(), api.core, api.backend));
        let mut build = std::ptr::null();
        // SAFETY: the library writes a pointer to text of its own.
        let code = unsafe { (functions.backend_get_build_id)(&mut build) };
        // SAFETY: the library reported a text and keeps it.
        let build_id = (code == 0).then(|| unsafe { text(build) }).flatten().unwrap_or_default();
        steps.say(format!("build {build_id}"));
        std::mem::forget(dynamic);
        let system = System::open(&path, &mut steps);
        Ok(Arc::new(Library { path, steps: steps.into_said(), functions, api, build_id, system }))
    }

    /// Returns the file it was loaded from, or the name passed to the loader.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the steps of the search that found it.
    pub fn steps(&self) -> &[String] {
        &self.steps
    }

    /// Returns the versions of its interfaces.
    pub fn api(&self) -> ApiVersion {
        self.api
    }

    /// Returns its build, such as `v2.51.0.…`. Every binary it writes contains it.
    pub fn build_id(&self) -> &str {
        &self.build_id
    }

    /// Returns the library that reads binaries.
    ///
    /// # Errors
    /// Returns an error if it could not be opened next to this library.
    pub fn system(&self) -> Result<&Arc<System>> {
        self.system.as_ref().map_err(Clone::clone)
    }

    /// Returns the library's name for a return code.
    pub fn code_name(&self, code: u64) -> String {
        let mut name = std::ptr::null();
        // SAFETY: the library writes a pointer to text of its own.
        let asked = unsafe { (self.functions.error_get_message)(code, &mut name) };
        // SAFETY: the library reported a text and keeps it.
        let name = (asked == 0).then(|| unsafe { text(name) }).flatten();
        name.map_or_else(|| "no name".to_owned(), |name| name.trim().to_owned())
    }

    pub(crate) fn functions(&self) -> &Functions {
        &self.functions
    }

    /// Checks whether the vendor's device options have the longer layout.
    pub(crate) fn has_long_device_config(&self) -> bool {
        (self.api.backend.major, self.api.backend.minor) >= LONG_DEVICE_CONFIG
    }
}

/// Returns versions and functions of a provider if its layouts are known.
///
/// # Safety
/// `provider` points to a provider whose table has as many slots as its version specifies.
unsafe fn accept(path: &Path, provider: *const ffi::Provider) -> Result<(ApiVersion, Functions)> {
    // SAFETY: as the caller promises.
    let (api, table) = unsafe { ((*provider).api, (&raw const (*provider).table).cast::<*const c_void>()) };
    if api.core.major != CORE_MAJOR || api.core.minor < CORE_MINOR {
        return Err(QnnError::VersionOutOfRange {
            path: path.to_owned(),
            interface: "core",
            found: api.core,
            major: CORE_MAJOR,
            at_least: CORE_MINOR,
        });
    }
    // SAFETY: from the least version on the table has all slots that are read, with these types.
    match unsafe { Functions::read(table) } {
        Ok(functions) => Ok((api, functions)),
        Err((slot, function)) => Err(QnnError::FunctionMissing { path: path.to_owned(), function, slot }),
    }
}

/// Returns the list of providers behind one symbol.
fn providers<T>(path: &Path, dynamic: &Dynamic, symbol: &'static str) -> Result<Vec<*const T>> {
    type GetProviders<T> = unsafe extern "C" fn(*mut *const *const T, *mut u32) -> u64;
    // SAFETY: libraries of this kind export that function with this type.
    let function = unsafe { dynamic.get::<GetProviders<T>>(symbol.as_bytes()) }
        .map_err(|_| QnnError::NotAQnnLibrary { path: path.to_owned(), symbol })?;
    let mut list = std::ptr::null();
    let mut count = 0;
    // SAFETY: both places outlive the call.
    let code = unsafe { function(&mut list, &mut count) };
    if code != 0 || list.is_null() {
        return Ok(Vec::new());
    }
    // SAFETY: the library reports that many pointers, and keeps them.
    let pointers = (0..count.min(MAX_PROVIDERS)).map(|index| unsafe { list.add(index as usize).read() });
    Ok(pointers.filter(|pointer| !pointer.is_null()).collect())
}

fn backend_provider(path: &Path, dynamic: &Dynamic) -> Result<*const ffi::Provider> {
    let mut found = Vec::new();
    for provider in providers::<ffi::Provider>(path, dynamic, "QnnInterface_getProviders")? {
        // SAFETY: not null, and points to a struct of the library that begins with these fields.
        let (id, name) = unsafe { ((*provider).backend_id, text((*provider).name).unwrap_or_default()) };
        if id == number::BACKEND_HTP && name.starts_with("HTP") {
            return Ok(provider);
        }
        found.push(format!("{name} ({id})"));
    }
    if found.is_empty() {
        found.push("none".to_owned());
    }
    Err(QnnError::NoHtpProvider { path: path.to_owned(), found })
}

impl System {
    fn open(backend: &Path, steps: &mut Steps) -> Result<Arc<System>> {
        let path = match backend.parent() {
            Some(folder) if folder.as_os_str().is_empty() => PathBuf::from(SYSTEM_FILE),
            Some(folder) => folder.join(SYSTEM_FILE),
            None => PathBuf::from(SYSTEM_FILE),
        };
        let opened = System::open_file(path);
        match &opened {
            Ok(system) => {
                steps.say(format!("{} has system interface {}", system.path.display(), system.version));
            }
            Err(error) => steps.say(format!("{SYSTEM_FILE}: {error}")),
        }
        opened
    }

    /// Opens a system library by its file.
    ///
    /// # Errors
    /// Returns an error if the file is not a supported system library.
    pub fn open_file(path: PathBuf) -> Result<Arc<System>> {
        let dynamic = {
            let _quiet = crate::simulation::Quiet::new();
            load_file(&path)?
        };
        let list = providers::<ffi::SystemProvider>(&path, &dynamic, "QnnSystemInterface_getProviders")?;
        let Some(&provider) = list.first() else {
            return Err(QnnError::NoHtpProvider { path, found: vec!["none".to_owned()] });
        };
        // SAFETY: not null. The library stays loaded, and a provider is a struct that it never
        // frees.
        let (version, table) =
            unsafe { ((*provider).version, (&raw const (*provider).table).cast::<*const c_void>()) };
        if version.major != SYSTEM_MAJOR || version.minor < SYSTEM_MINOR {
            return Err(QnnError::VersionOutOfRange {
                path,
                interface: "system",
                found: version,
                major: SYSTEM_MAJOR,
                at_least: SYSTEM_MINOR,
            });
        }
        // SAFETY: from the least version on the table has all slots that are read, with these
        // types.
        let functions = unsafe { SystemFunctions::read(table) }
            .map_err(|(slot, function)| QnnError::FunctionMissing { path: path.clone(), function, slot })?;
        std::mem::forget(dynamic);
        Ok(Arc::new(System { path, functions, version }))
    }

    /// Returns the file it was loaded from.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the version of its interface.
    pub fn version(&self) -> Version {
        self.version
    }

    pub(crate) fn functions(&self) -> &SystemFunctions {
        &self.functions
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_manifest_states_the_versions_that_are_taken() {
        let manifest: serde_json::Value =
            serde_json::from_str(include_str!("../library/libshardwright_shim_qnn.shim.json")).unwrap();
        for (file, major, minor) in
            [(FILE, CORE_MAJOR, CORE_MINOR), (SYSTEM_FILE, SYSTEM_MAJOR, SYSTEM_MINOR)]
        {
            let needs = manifest["needs"].as_array().unwrap();
            let versions = &needs.iter().find(|needed| needed["file"] == file).unwrap()["versions"];
            assert_eq!(versions["min"], format!("{major}.{minor}"), "{file}");
            assert_eq!(versions["below"], format!("{}.0", major + 1), "{file}");
        }
    }

    /// A provider as a library returns it, with all slots filled but one.
    #[repr(C)]
    struct Made {
        provider: ffi::Provider,
        more: [*const c_void; 80],
    }

    fn made(core: (u32, u32), without: Option<usize>) -> Made {
        extern "C" fn nothing() -> u64 {
            0
        }
        let version = |major, minor| Version { major, minor, patch: 0 };
        let api = ApiVersion { core: version(core.0, core.1), backend: version(5, 51) };
        let slot = |slot| if without == Some(slot) { std::ptr::null() } else { nothing as *const c_void };
        let provider = ffi::Provider { backend_id: 6, name: c"HTP".as_ptr(), api, table: [slot(0)] };
        Made { provider, more: std::array::from_fn(|index| slot(index + 1)) }
    }

    fn accepted(made: &Made) -> Result<(ApiVersion, Functions)> {
        assert!(made.more.len() > Functions::SLOTS.iter().map(|(slot, _)| *slot).max().unwrap());
        // SAFETY: the provider is followed by more slots than are read.
        unsafe { accept(Path::new("libQnnHtp.so"), std::ptr::from_ref(made).cast()) }
    }

    #[test]
    fn versions_outside_the_range_are_refused_and_both_named() {
        for (core, taken) in [
            ((2, 32), true),
            ((2, 40), true),
            ((2, 99), true),
            ((2, 31), false),
            ((1, 40), false),
            ((3, 0), false),
        ] {
            match accepted(&made(core, None)) {
                Ok(_) => assert!(taken, "{core:?}"),
                Err(error @ QnnError::VersionOutOfRange { .. }) => {
                    assert!(!taken, "{error}");
                    let text = error.to_string();
                    let found = format!("{}.{}.0", core.0, core.1);
                    assert!(text.contains(&found) && text.contains("2.32"), "{text}");
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    #[test]
    fn a_missing_function_is_named_with_its_slot() {
        for (slot, name) in Functions::SLOTS {
            match accepted(&made((2, 40), Some(*slot))) {
                Err(QnnError::FunctionMissing { function, slot: at, .. }) => {
                    assert_eq!((function, at), (*name, *slot));
                }
                other => panic!("{name}: {:?}", other.map(|(api, _)| api)),
            }
        }
    }
}
