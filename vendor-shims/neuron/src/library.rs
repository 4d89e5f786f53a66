//! Chooses the library to open by one rule. Every step is logged, and the first match is used.
//!
//! 1. The option `library`, if set: that file, or `libneuron_adapter.so` in that folder. No other
//!    place is tried.
//! 2. The variable `SHARDWRIGHT_NEURON_LIB`, if set, in the same way.
//! 3. The option `stand-in`, if set: that file, or `libneuron_adapter.so` in that folder, relative
//!    to the shim's own folder. It is used only if it exists and is a simulator. The host sets it
//!    if a simulator is requested. So a simulator that a build puts next to the program is never
//!    mistaken for a device.
//! 4. `libneuron_adapter.so` next to the shim's own file, if it exists.
//! 5. The platform's names ([`PLATFORM_NAMES`]) in the loader's search path, in order. The first
//!    library that loads is used and no other is tried. Simulators are skipped here: they are used
//!    only if a user put them next to the shim or named them.
//!
//! Other clients open every name they know and keep the last one. In that way an older system
//! library takes precedence over an application's own copy. An opened library is never closed,
//! because its threads outlive its handles.
//!
//! Functions are bound one by one. A missing function causes an error with its name when it is
//! needed ([`NeuronError::FunctionMissing`]).

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use libloading::os::unix::Library as Dynamic;
use serde::{Deserialize, Serialize};
use shardwright_neuron_adapter::{Functions, RuntimeVersion, result, setting};
use shardwright_shim_abi::ErrorClass;
use shardwright_shim_npu::library::{Search, Steps, load_file, own_folder, text, variable};

use crate::failure::{CallFailure, NeuronError, Result, class_of};
use crate::soc::Soc;
use crate::trail;

/// Variable by which a user names the library: a file or a folder.
pub const VARIABLE: &str = "SHARDWRIGHT_NEURON_LIB";
/// Name of the file in folders and next to the shim.
pub const FILE: &str = "libneuron_adapter.so";
/// Names of the library on phones. Libraries that an application bundles, or that the system
/// provides under the newer name, precede the older ones.
pub const PLATFORM_NAMES: [&str; 6] = [
    "libneuronusdk_adapter.mtk.so",
    "libneuronusdk_adapter.10.mtk.so",
    "libneuronusdk_adapter.9.mtk.so",
    "libneuronusdk_adapter.so",
    "libneuron_adapter_mgvi.so",
    FILE,
];

/// Symbol with which a simulator identifies itself, by a description in JSON.
const SIMULATOR_SYMBOL: &CStr = c"ShardwrightNeuronSimulator_describe";
/// Symbol that returns the simulator's last message on this thread.
const MESSAGE_SYMBOL: &CStr = c"ShardwrightNeuronSimulator_lastMessage";

/// Symbol that makes a simulator emulate a processor, given as a C string, and a version of the
/// library, which may be null.
const PLAY_SYMBOL: &CStr = c"ShardwrightNeuronSimulator_play";

/// The places to search.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LibraryChoice {
    /// Value of the option `library`.
    pub option: Option<PathBuf>,
    /// Value of the variable [`VARIABLE`].
    pub variable: Option<PathBuf>,
    /// Value of the option `stand-in`.
    pub stand_in: Option<PathBuf>,
    /// The folder of the shim.
    pub beside: Option<PathBuf>,
    /// Names to look up in the loader's search path.
    pub names: Vec<String>,
}

impl LibraryChoice {
    /// Reads the settings of this process.
    pub fn here(option: Option<PathBuf>, stand_in: Option<PathBuf>) -> LibraryChoice {
        LibraryChoice {
            option,
            variable: variable(VARIABLE),
            stand_in,
            beside: own_folder(),
            names: PLATFORM_NAMES.map(str::to_owned).to_vec(),
        }
    }
}

impl LibraryChoice {
    /// Opens the stand-in if no library is named, and if the stand-in exists and is a simulator.
    fn stand_in(&self, steps: &mut Steps) -> Result<Option<(PathBuf, Dynamic)>> {
        let named = self.option.is_some() || self.variable.is_some();
        let Some(path) = self.stand_in.as_ref().filter(|_| !named) else { return Ok(None) };
        let path = self.beside.as_ref().map_or_else(|| path.clone(), |folder| folder.join(path));
        let path = if path.is_dir() { path.join(FILE) } else { path };
        if !path.is_file() {
            steps.say(format!("option `stand-in`: {} is not a file", path.display()));
            return Ok(None);
        }
        let found = load_file(&path)?;
        if !is_simulator(&found) {
            steps.say(format!("option `stand-in`: {} is not a simulator", path.display()));
            return Ok(None);
        }
        steps.say(format!("option `stand-in`: {}", path.display()));
        Ok(Some((path, found)))
    }
}

/// A simulator's description of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SimulatorDescription {
    #[serde(default)]
    pub name: String,
    /// The adapter version that it emulates.
    #[serde(default)]
    pub version: String,
    /// The chip that it emulates.
    #[serde(default)]
    pub soc: String,
}

type TextFunction = unsafe extern "C" fn() -> *const c_char;
type PlayFunction = unsafe extern "C" fn(*const c_char, *const RuntimeVersion);

/// An opened library. It is never closed.
#[derive(Clone, Debug)]
pub struct Library {
    path: PathBuf,
    steps: Vec<String>,
    functions: Functions,
    version: RuntimeVersion,
    magic: Option<i32>,
    simulator: Option<SimulatorDescription>,
    message: Option<TextFunction>,
    play: Option<PlayFunction>,
}

impl Library {
    /// Opens the library by the rule of [this module](self).
    ///
    /// # Errors
    /// [`LibraryError::NotFound`](crate::failure::LibraryError::NotFound) with every place tried,
    /// or the reason why the library that was found cannot be used.
    pub fn open(choice: &LibraryChoice) -> Result<Arc<Library>> {
        let mut steps = Steps::new(|text| {
            shardwright_shim_abi::log(
                shardwright_shim_abi::raw::SW_LOG_INFO,
                &format!("neuron library: {text}"),
            );
        });
        let names: Vec<&str> = choice.names.iter().map(String::as_str).collect();
        let search = Search {
            given: [("option `library`", choice.option.as_deref()), (VARIABLE, choice.variable.as_deref())],
            file: FILE,
            beside: choice.beside.as_deref(),
            names: &names,
        };
        let (path, dynamic) = match choice.stand_in(&mut steps)? {
            Some(found) => found,
            None => search.find(&mut steps, |found| match is_simulator(found) {
                true => Err("is a simulator, which is used only if it is named explicitly".to_owned()),
                false => Ok(()),
            })?,
        };
        let symbol = |name: &CStr| -> *mut c_void {
            // SAFETY: the pointer is only inspected here, and null is allowed.
            unsafe { dynamic.get::<*mut c_void>(name.to_bytes_with_nul()) }
                .map_or(std::ptr::null_mut(), |found| *found)
        };
        // SAFETY: a library that exports these names implements these functions, by the interface's
        // tables. It stays loaded, see below.
        let functions = unsafe { Functions::bind(symbol) };
        let version = reported_version(&functions, &path)?;
        let magic = functions.get_magic_number.and_then(|function| {
            let mut number = 0;
            // SAFETY: the number outlives the call.
            (unsafe { function(&mut number) } == result::NO_ERROR).then_some(number)
        });
        let text_function = |name: &CStr| -> Option<TextFunction> {
            let found = symbol(name);
            // SAFETY: the simulator's own symbols are functions of this type. No other library
            // exports them.
            (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, TextFunction>(found) })
        };
        let simulator = text_function(SIMULATOR_SYMBOL).map(|function| {
            // SAFETY: the function has no arguments.
            let reported = unsafe { text(function()) }.unwrap_or_default();
            // The symbol alone identifies a simulator. An unreadable description does not change
            // that.
            serde_json::from_str(&reported).unwrap_or(SimulatorDescription {
                name: reported,
                version: version.to_string(),
                soc: String::new(),
            })
        });
        let message = text_function(MESSAGE_SYMBOL);
        let found = symbol(PLAY_SYMBOL);
        // SAFETY: as above, with this type.
        let play =
            (!found.is_null()).then(|| unsafe { std::mem::transmute::<*mut c_void, PlayFunction>(found) });
        steps.say(format!(
            "{} is version {version}, magic number {}{}",
            path.display(),
            magic.map_or("not reported".to_owned(), |magic| magic.to_string()),
            if simulator.is_some() { ", a simulator" } else { "" }
        ));
        std::mem::forget(dynamic);
        Ok(Arc::new(Library {
            path,
            steps: steps.into_said(),
            functions,
            version,
            magic,
            simulator,
            message,
            play,
        }))
    }

    /// Returns the file from which the library was loaded, or the name passed to the loader.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the steps of the search.
    pub fn steps(&self) -> &[String] {
        &self.steps
    }

    /// Returns the version that the library reports.
    pub fn version(&self) -> RuntimeVersion {
        self.version
    }

    /// Returns the firmware's magic number, if reported.
    pub fn magic(&self) -> Option<i32> {
        self.magic
    }

    /// Returns the simulator's description, or `None` for the vendor's library.
    pub fn simulator(&self) -> Option<&SimulatorDescription> {
        self.simulator.as_ref()
    }

    /// Makes a simulator emulate this chip on this thread from now on, with the adapter version
    /// that the chip's profile names. The simulator's configuration may name others, which take
    /// precedence. Returns the library with the version that it then reports. The vendor's library
    /// is returned unchanged.
    ///
    /// # Errors
    /// If the library does not report its version.
    pub fn playing(self: &Arc<Library>, soc: &Soc) -> Result<Arc<Library>> {
        let (Some(play), Ok(platform)) = (self.play, CString::new(soc.platform.as_str())) else {
            return Ok(self.clone());
        };
        let version = soc.simulated_adapter.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        // SAFETY: the text and the version outlive the call.
        unsafe { play(platform.as_ptr(), version) }
        let version = reported_version(&self.functions, &self.path)?;
        Ok(match version == self.version {
            true => self.clone(),
            false => Arc::new(Library { version, ..Library::clone(self) }),
        })
    }

    /// Describes the library for people: version, magic number, and whether it is a simulator.
    pub fn describe(&self) -> String {
        let magic = self.magic.map_or(String::new(), |magic| format!(" (magic number {magic})"));
        match &self.simulator {
            Some(simulator) => {
                format!(
                    "{}, a simulator of adapter {}{magic}, not MediaTek's",
                    named(&simulator.name),
                    self.version
                )
            }
            None => format!("Neuron adapter {}{magic}", self.version),
        }
    }

    pub(crate) fn functions(&self) -> &Functions {
        &self.functions
    }

    /// Returns a required function.
    pub(crate) fn need<F>(&self, bound: Option<F>, function: &'static str) -> Result<F> {
        bound.ok_or_else(|| NeuronError::FunctionMissing {
            path: self.path.clone(),
            version: self.version,
            function,
        })
    }

    /// Returns an optional function, if the library has it.
    pub(crate) fn offers<F>(&self, bound: Option<F>, function: &'static str) -> Option<F> {
        self.need(bound, function).ok()
    }

    /// Checks the return code of a function.
    pub(crate) fn answered(
        &self,
        function: &'static str,
        code: c_int,
        subject: impl FnOnce() -> Option<String>,
    ) -> Result<()> {
        trail::note(function, code);
        if code == result::NO_ERROR {
            return Ok(());
        }
        Err(NeuronError::Call(Box::new(CallFailure {
            class: class_of(function, code),
            function,
            code,
            version: self.version,
            subject: subject(),
            message: self.last_message(),
            log: trail::tail(),
            details: Vec::new(),
        })))
    }

    /// Creates the error for a function that reported success but returned a null pointer.
    pub(crate) fn gave_null(&self, function: &'static str) -> NeuronError {
        NeuronError::Call(Box::new(CallFailure {
            class: ErrorClass::Internal,
            function,
            code: result::NO_ERROR,
            version: self.version,
            subject: Some("which returned a null pointer".to_owned()),
            message: self.last_message(),
            log: trail::tail(),
            details: Vec::new(),
        }))
    }

    /// Returns a simulator's last message on this thread. Empty for the vendor's library.
    fn last_message(&self) -> String {
        // SAFETY: the function has no arguments, and the text is copied before the next call.
        self.message.and_then(|function| unsafe { text(function()) }).unwrap_or_default()
    }

    /// Returns the kilobytes of the memory closest to the multipliers, if the library reports them.
    pub fn l1_kilobytes(&self) -> Option<u32> {
        let function = self.offers(self.functions.get_l1_memory_size_kb, "Neuron_getL1MemorySizeKb")?;
        let mut kilobytes = 0;
        // SAFETY: the number outlives the call.
        let code = unsafe { function(&mut kilobytes) };
        trail::note("Neuron_getL1MemorySizeKb", code);
        (code == result::NO_ERROR && kilobytes > 0).then_some(kilobytes)
    }
}

fn named(name: &str) -> &str {
    if name.is_empty() { "a library without a name" } else { name }
}

/// Returns the version that a library reports.
fn reported_version(functions: &Functions, path: &Path) -> Result<RuntimeVersion> {
    let Some(get_version) = functions.get_version else {
        return Err(NeuronError::NotAnAdapter { path: path.to_owned(), symbol: "Neuron_getVersion" });
    };
    let mut version = RuntimeVersion::default();
    // SAFETY: the struct outlives the call.
    let code = unsafe { get_version(&mut version) };
    if code == result::NO_ERROR {
        return Ok(version);
    }
    Err(NeuronError::Call(Box::new(CallFailure {
        class: ErrorClass::Internal,
        function: "Neuron_getVersion",
        code,
        version,
        subject: Some(path.display().to_string()),
        message: String::new(),
        log: String::new(),
        details: Vec::new(),
    })))
}

/// Sets the chip to compile for, in the environment variable that the library reads. Does not write
/// the variable if it already has this value.
pub(crate) fn set_platform(soc: &str) {
    static ONE: Mutex<()> = Mutex::new(());
    let _one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
    if std::env::var_os(setting::PLATFORM_VARIABLE).is_some_and(|existing| existing == soc) {
        return;
    }
    // SAFETY: only the library reads this variable, during calls from this shim. The host makes one
    // call at a time per instance, and compilations run in a process of their own.
    unsafe { std::env::set_var(setting::PLATFORM_VARIABLE, soc) };
}

fn is_simulator(library: &Dynamic) -> bool {
    // SAFETY: only the presence of the symbol is checked. Its pointer is not read.
    unsafe { library.get::<*mut c_void>(SIMULATOR_SYMBOL.to_bytes_with_nul()) }.is_ok()
}

/// Calls a function of the library by its field and symbol. A missing function and any code except
/// 0 are errors. The caller explains why the call is sound.
macro_rules! call {
    ($library:expr, $field:ident = $symbol:literal, ($($argument:expr),* $(,)?), $subject:expr) => {{
        let library: &$crate::library::Library = &$library;
        let function = library.need(library.functions().$field, $symbol)?;
        let code = function($($argument),*);
        library.answered($symbol, code, || $subject)
    }};
}
pub(crate) use call;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::failure::LibraryError;

    fn made(version: RuntimeVersion, functions: Functions) -> Library {
        Library {
            path: PathBuf::from("/x/libneuron_adapter.so"),
            steps: Vec::new(),
            functions,
            version,
            magic: Some(300),
            simulator: None,
            message: None,
            play: None,
        }
    }

    #[test]
    fn what_is_missing_is_named_when_it_is_needed() {
        let library = made(RuntimeVersion::new(5, 0, 0), Functions::default());
        let missing = library.need(library.functions().model_finish, "NeuronModel_finish");
        assert!(matches!(missing, Err(NeuronError::FunctionMissing { function: "NeuronModel_finish", .. })));
        let name = "NeuronModel_setOperandPerChannelQuantParams";
        let newer = made(RuntimeVersion::new(6, 0, 0), Functions::default());
        assert_eq!(newer.need(Some(7), name), Ok(7));
        assert_eq!(newer.offers(None::<()>, name), None);
        assert_eq!(newer.l1_kilobytes(), None);
        assert!(newer.describe().contains("6.0.0") && newer.describe().contains("300"));
    }

    #[test]
    fn a_name_nobody_has_ends_with_every_place() {
        let nowhere =
            LibraryChoice { names: vec!["libneuron-nowhere.so".to_owned()], ..LibraryChoice::default() };
        match Library::open(&nowhere) {
            Err(NeuronError::Library(LibraryError::NotFound { tried })) => {
                assert_eq!(tried.len(), 4, "{tried:?}");
                assert!(tried[3].contains("libneuron-nowhere.so"));
            }
            other => panic!("{:?}", other.map(|library| library.path().to_owned())),
        }
        let missing = LibraryChoice { option: Some(PathBuf::from("/nowhere/at/all.so")), ..nowhere };
        match Library::open(&missing) {
            Err(NeuronError::Library(LibraryError::NotFound { tried })) => {
                assert_eq!(tried.len(), 1, "{tried:?}")
            }
            other => panic!("{:?}", other.map(|library| library.path().to_owned())),
        }
    }
    #[test]
    fn a_stand_in_is_looked_for_where_nothing_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let with = |stand_in: &str| LibraryChoice {
            stand_in: Some(PathBuf::from(stand_in)),
            beside: Some(folder.path().join("shims")),
            names: vec!["libneuron-nowhere.so".to_owned()],
            ..LibraryChoice::default()
        };
        let tried = |choice: &LibraryChoice| match Library::open(choice) {
            Err(NeuronError::Library(LibraryError::NotFound { tried })) => tried,
            other => panic!("{:?}", other.map(|library| library.path().to_owned())),
        };
        let absent = tried(&with("../absent.so"));
        assert!(
            absent[0].starts_with("option `stand-in`") && absent[0].ends_with("is not a file"),
            "{absent:?}"
        );
        assert_eq!(absent.len(), 5, "{absent:?}");
        // Only the named library is tried.
        let named = LibraryChoice { option: Some(PathBuf::from("/nowhere/at/all.so")), ..with("..") };
        assert_eq!(tried(&named).len(), 1);
    }
}
