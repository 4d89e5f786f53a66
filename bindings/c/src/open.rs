//! Opening of models.

use std::ffi::{c_char, c_int, c_void};

use shardwright_bindings_core::{
    Cancel, Chip, Error, Fallback, FileSection, Isolation, Model, OpenOptions, Progress, Proofs, Result,
    ShimLibrary, Signatures, Source,
};

use crate::cancel::{CANCELS, sw_cancel};
use crate::memory::{Out, Plain, named_values, optional, optional_text, path, paths, terminated, texts};
use crate::model::{MODELS, sw_model};
use crate::status::{guard, sw_status};

/// Receives the progress of a call, 0 to 1000, and the current stage, which is valid during the
/// callback. Returns 0 to continue, and any other number to stop with `SW_CANCELLED`.
pub type sw_progress_fn =
    Option<unsafe extern "C" fn(user: *mut c_void, per_mille: u32, stage: *const c_char) -> i32>;

/// Handling of files without a signature of a trusted key.
pub type sw_signatures = i32;
/// The file is used, and signatures are not checked.
pub const SW_SIGNATURES_OFF: sw_signatures = 0;
/// The file is used, with a notice.
pub const SW_SIGNATURES_WARN: sw_signatures = 1;
/// The file is refused before parsing.
pub const SW_SIGNATURES_REQUIRE: sw_signatures = 2;

/// Which chains of a bundle may run if the first one cannot.
pub type sw_fallback = i32;
/// Any later chain, when the bundle is opened and when a device is lost during a session.
pub const SW_FALLBACK_ANY: sw_fallback = 0;
/// Any later chain when the bundle is opened. In a session, the loss of a device is an error.
pub const SW_FALLBACK_AT_OPENING: sw_fallback = 1;
/// Only the chains in `fallback_chains`, at both times.
pub const SW_FALLBACK_ONLY: sw_fallback = 2;
/// None. Every fallback is an error.
pub const SW_FALLBACK_REFUSE: sw_fallback = 3;

/// Which work of shims runs in a separate process.
pub type sw_isolation = i32;
/// Queries and compiling, if the worker program is found.
pub const SW_ISOLATION_AUTOMATIC: sw_isolation = 0;
/// None.
pub const SW_ISOLATION_OFF: sw_isolation = 1;
/// Queries and compiling. A missing worker program is an error.
pub const SW_ISOLATION_COMPILE: sw_isolation = 2;
/// All work. A missing worker program is an error.
pub const SW_ISOLATION_PROCESS: sw_isolation = 3;

/// Options to open a model. 0 and NULL are the defaults.
#[repr(C)]
#[derive(Clone, Copy)]
pub struct sw_open_options {
    /// Size of this struct.
    pub size: usize,
    /// Receives the progress on the thread of the call.
    pub progress: sw_progress_fn,
    /// First argument of `progress`.
    pub progress_user: *mut c_void,
    /// Cancels the call from any thread.
    pub cancel: *const sw_cancel,
    /// Most bytes of the model and its sessions together. 0 for no limit.
    pub memory_budget: u64,
    /// Number of threads of the CPU engine. 0 for the number of cores.
    pub threads: u32,
    /// Context capacity of a checkpoint in tokens. 0 for the default. The context of a bundle is
    /// fixed.
    pub context: u32,
    /// Whether every fallback, and every part of the model without effect, is an error.
    pub strict: i32,
    /// Whether every byte of a bundle is verified before any of it is used.
    pub verify_all: i32,
    /// Whether no proofs of verification are stored.
    pub no_proofs: i32,
    /// A `SW_SIGNATURES_` constant.
    pub signatures: sw_signatures,
    /// A `SW_FALLBACK_` constant.
    pub fallback: sw_fallback,
    /// A `SW_ISOLATION_` constant.
    pub isolation: sw_isolation,
    /// Public keys that are trusted, in hexadecimal.
    pub trust_keys: *const *const c_char,
    /// Paths of lists of revoked keys and releases.
    pub revocations: *const *const c_char,
    /// Name that a trusted key must have signed the bundle under.
    pub expected_name: *const c_char,
    /// Name of the chip to use instead of the one that shims find. For a checkpoint, the chip to
    /// plan for.
    pub chip: *const c_char,
    /// Name of the shim that supports the chip.
    pub chip_shim: *const c_char,
    /// Facts of the chip that its shim reads, as `name=value`.
    pub chip_facts: *const *const c_char,
    /// Flags of shims, as `name=value`.
    pub flags: *const *const c_char,
    /// Names of chains for `SW_FALLBACK_ONLY`.
    pub fallback_chains: *const *const c_char,
    /// Directory for proofs of verification, which only this user can write. Default: in the cache
    /// directory of the user.
    pub proofs_directory: *const c_char,
    /// Directories of shims, searched before the standard ones.
    pub shim_directories: *const *const c_char,
    /// Paths of single shims.
    pub shim_libraries: *const *const c_char,
    /// Texts of the manifests of `shim_libraries`, as many and in the same order.
    pub shim_manifests: *const *const c_char,
    /// Directories of planners, searched before the standard ones.
    pub planner_directories: *const *const c_char,
    /// Directories of profiles, searched before the standard ones.
    pub profile_directories: *const *const c_char,
}

// SAFETY: all fields are numbers, pointers and functions that may be NULL, for which any bits are
// valid.
unsafe impl Plain for sw_open_options {
    const FIRST_SIZE: usize = size_of::<Self>();
}

/// A callback of the caller. It is only used during the call that it was passed to, on the same
/// thread.
pub(crate) struct Listener {
    call: unsafe extern "C" fn(*mut c_void, u32, *const c_char) -> i32,
    user: *mut c_void,
}

impl Listener {
    pub(crate) fn new(call: sw_progress_fn, user: *mut c_void) -> Option<Listener> {
        call.map(|call| Listener { call, user })
    }
}

// SAFETY: the core reports progress on the thread of the call only, so the pointer stays on its
// thread.
unsafe impl Send for Listener {}
// SAFETY: as above.
unsafe impl Sync for Listener {}

impl Progress for Listener {
    fn progress(&self, per_mille: u32, stage: &str) -> bool {
        let stage = terminated(stage.to_owned());
        // SAFETY: the caller passes a function of this type, and the text ends with a 0 byte.
        unsafe { (self.call)(self.user, per_mille, stage.as_ptr().cast()) == 0 }
    }
}

/// The options of a call.
#[derive(Default)]
struct Opening {
    options: OpenOptions,
    listener: Option<Listener>,
    cancel: Option<Cancel>,
}

impl Opening {
    fn read(options: *const sw_open_options) -> Result<Opening> {
        let Some(given) = optional(options, "the options")? else { return Ok(Opening::default()) };
        Ok(Opening {
            options: open_options(&given)?,
            listener: Listener::new(given.progress, given.progress_user),
            cancel: if given.cancel.is_null() { None } else { Some(CANCELS.get(given.cancel)?) },
        })
    }

    fn open(&self, source: &Source, model: &Out<*mut sw_model>) -> Result<()> {
        let listener = self.listener.as_ref().map(|listener| listener as &dyn Progress);
        let opened = Model::open(source, &self.options, listener, self.cancel.as_ref())?;
        model.set(MODELS.add(opened));
        Ok(())
    }
}

fn unknown(what: &str, value: i32, names: &str) -> Error {
    Error::argument(format!("{what} is {value}"), format!("use a `{names}` constant"))
}

fn open_options(given: &sw_open_options) -> Result<OpenOptions> {
    let positive = |number: u32| Some(number).filter(|number| *number > 0);
    Ok(OpenOptions {
        memory_budget: Some(given.memory_budget).filter(|bytes| *bytes > 0),
        threads: positive(given.threads),
        context: positive(given.context),
        strict: given.strict != 0,
        isolation: match given.isolation {
            SW_ISOLATION_AUTOMATIC => Isolation::Automatic,
            SW_ISOLATION_OFF => Isolation::Off,
            SW_ISOLATION_COMPILE => Isolation::Compile,
            SW_ISOLATION_PROCESS => Isolation::Process,
            other => return Err(unknown("`isolation`", other, "SW_ISOLATION_")),
        },
        trust_keys: texts(given.trust_keys, "`trust_keys`")?,
        signatures: match given.signatures {
            SW_SIGNATURES_OFF => Signatures::Off,
            SW_SIGNATURES_WARN => Signatures::Warn,
            SW_SIGNATURES_REQUIRE => Signatures::Require,
            other => return Err(unknown("`signatures`", other, "SW_SIGNATURES_")),
        },
        revocations: paths(given.revocations, "`revocations`")?,
        expected_name: optional_text(given.expected_name, "`expected_name`")?,
        chip: chip(given)?,
        flags: named_values(given.flags, "`flags`")?,
        fallback: fallback(given)?,
        verify_all: given.verify_all != 0,
        proofs: proofs(given)?,
        shim_directories: paths(given.shim_directories, "`shim_directories`")?,
        shim_libraries: shim_libraries(given)?,
        planner_directories: paths(given.planner_directories, "`planner_directories`")?,
        profile_directories: paths(given.profile_directories, "`profile_directories`")?,
    })
}

fn chip(given: &sw_open_options) -> Result<Option<Chip>> {
    let shim = optional_text(given.chip_shim, "`chip_shim`")?;
    let facts = named_values(given.chip_facts, "`chip_facts`")?;
    match optional_text(given.chip, "`chip`")? {
        Some(name) => Ok(Some(Chip { name, shim, facts })),
        None if shim.is_none() && facts.is_empty() => Ok(None),
        None => Err(Error::argument("`chip_shim` or `chip_facts` without `chip`", "set `chip` to its name")),
    }
}

fn fallback(given: &sw_open_options) -> Result<Fallback> {
    let names = texts(given.fallback_chains, "`fallback_chains`")?;
    Ok(match given.fallback {
        SW_FALLBACK_ONLY => Fallback::Only { names },
        _ if !names.is_empty() => {
            let what = "`fallback_chains` without `SW_FALLBACK_ONLY`";
            return Err(Error::argument(what, "set `fallback` to `SW_FALLBACK_ONLY`"));
        }
        SW_FALLBACK_ANY => Fallback::Any,
        SW_FALLBACK_AT_OPENING => Fallback::AtOpening,
        SW_FALLBACK_REFUSE => Fallback::Refuse,
        other => return Err(unknown("`fallback`", other, "SW_FALLBACK_")),
    })
}

fn proofs(given: &sw_open_options) -> Result<Proofs> {
    match (given.no_proofs != 0, given.proofs_directory.is_null()) {
        (true, true) => Ok(Proofs::Nowhere),
        (false, true) => Ok(Proofs::Cache),
        (false, false) => Ok(Proofs::Directory { path: path(given.proofs_directory, "`proofs_directory`")? }),
        (true, false) => {
            Err(Error::argument("both `no_proofs` and `proofs_directory` are set", "set one of them"))
        }
    }
}

fn shim_libraries(given: &sw_open_options) -> Result<Vec<ShimLibrary>> {
    let libraries = paths(given.shim_libraries, "`shim_libraries`")?;
    let manifests = texts(given.shim_manifests, "`shim_manifests`")?;
    if libraries.len() != manifests.len() {
        let what = format!("{} shim libraries have {} manifests", libraries.len(), manifests.len());
        return Err(Error::argument(what, "pass the text of one manifest for each library"));
    }
    let both = libraries.into_iter().zip(manifests);
    Ok(both.map(|(library, manifest)| ShimLibrary { library, manifest }).collect())
}

fn place(model: *mut *mut sw_model) -> Result<Out<*mut sw_model>> {
    Out::new(model, std::ptr::null_mut(), "the place for the model")
}

/// Opens a bundle: a directory, a packed file, or an entry `archive!/entry` that is stored
/// uncompressed. `options` may be NULL. A library with the feature `build` opens checkpoints too.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_model_open(
    path: *const c_char,
    options: *const sw_open_options,
    model: *mut *mut sw_model,
) -> sw_status {
    guard(|| {
        let model = place(model)?;
        let source = Source::Path { path: crate::memory::path(path, "the path of the model")? };
        Opening::read(options)?.open(&source, &model)
    })
}

/// Opens all volumes of a packed bundle, in any order.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_model_open_volumes(
    volumes: *const *const c_char,
    options: *const sw_open_options,
    model: *mut *mut sw_model,
) -> sw_status {
    guard(|| {
        let model = place(model)?;
        let source = Source::Volumes { paths: paths(volumes, "the list of volumes")? };
        Opening::read(options)?.open(&source, &model)
    })
}

/// Opens a packed bundle within an open file: `length` bytes from `offset` on, or all of them if
/// `length` is `UINT64_MAX`. The descriptor is duplicated and stays open.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sw_model_open_descriptor(
    descriptor: c_int,
    offset: u64,
    length: u64,
    options: *const sw_open_options,
    model: *mut *mut sw_model,
) -> sw_status {
    guard(|| {
        let model = place(model)?;
        let name = format!("descriptor {descriptor}");
        let length = Some(length).filter(|length| *length != u64::MAX);
        let section = FileSection::new(name, duplicate(descriptor)?, offset, length)?;
        Opening::read(options)?.open(&Source::Sections { sections: vec![section] }, &model)
    })
}

#[cfg(unix)]
fn duplicate(descriptor: c_int) -> Result<std::fs::File> {
    use shardwright_bindings_core::ErrorKind;
    use std::os::fd::BorrowedFd;

    const HELP: &str = "pass a descriptor of a regular file that is open for reading";
    if descriptor < 0 {
        return Err(Error::argument(format!("{descriptor} is not a file descriptor"), HELP));
    }
    // SAFETY: the caller keeps the descriptor open during the call. The system refuses to duplicate
    // one that is not open.
    let copy = unsafe { BorrowedFd::borrow_raw(descriptor) }.try_clone_to_owned();
    copy.map(std::fs::File::from).map_err(|error| {
        Error::new(ErrorKind::Missing, format!("the file descriptor {descriptor}: {error}"), HELP)
    })
}

#[cfg(not(unix))]
fn duplicate(_: c_int) -> Result<std::fs::File> {
    let kind = shardwright_bindings_core::ErrorKind::Unsupported;
    Err(Error::new(kind, "this system has no file descriptors", "open the file by its path"))
}
