//! Opens a library, finds its entry function, and checks the table before any member of it is used.

use std::collections::BTreeMap;
use std::ffi::{c_char, c_void};
use std::fs::File;
use std::io::{self, Read};
use std::mem::ManuallyDrop;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, OnceLock, PoisonError};

use sha2::{Digest, Sha256};
use shardwright_files::hex;
use shardwright_shim_abi::raw::*;
use shardwright_shim_abi::version_text;

use crate::call::{self, Table};
use crate::error::LoadError;
use crate::layout::{self, LayoutCheck};
use crate::manifest::{HOST_VERSIONS, check_range};

struct Host(SwHost);

// SAFETY: it contains only pointers to statics.
unsafe impl Sync for Host {}

static HOST: Host = Host(SwHost {
    size: size_of::<SwHost>() as u64,
    version_min: HOST_VERSIONS.0,
    version_max: HOST_VERSIONS.1,
    name: concat!("shardwright ", env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast(),
    log: Some(log),
    log_context: std::ptr::null_mut(),
});

pub(crate) fn host() -> *const SwHost {
    &HOST.0
}

/// Receiver of the log lines of shims, instead of this process's own log.
static LOG: OnceLock<fn(u32, &str)> = OnceLock::new();

/// Redirects the log lines of shims permanently.
pub fn send_log_to(log: fn(u32, &str)) {
    let _ = LOG.set(log);
}

unsafe extern "C" fn log(_context: *mut c_void, level: u32, message: *const c_char) {
    // SAFETY: the contract specifies that `message` is a string.
    let Ok(message) = (unsafe { call::text(message) }) else { return };
    match LOG.get() {
        Some(log) => log(level, &message),
        None => log_line(level, "", &message),
    }
}

/// Logs a line of a shim. `worker` is the name of the instance whose worker forwarded it.
pub fn log_line(level: u32, worker: &str, message: &str) {
    match level {
        SW_LOG_ERROR => tracing::error!(target: "shim", worker, "{message}"),
        SW_LOG_WARNING => tracing::warn!(target: "shim", worker, "{message}"),
        SW_LOG_INFO => tracing::info!(target: "shim", worker, "{message}"),
        _ => tracing::debug!(target: "shim", worker, "{message}"),
    }
}

/// Results of the libraries that were opened, by the addresses of their entry functions. A library
/// is never unloaded, so an address belongs to one library. A process that opens many models would
/// otherwise compare layouts and keep a table again for each of them.
static OPENED: Mutex<BTreeMap<usize, (Table, LayoutCheck)>> = Mutex::new(BTreeMap::new());

/// Opens the library permanently and calls its entry function, once for each library. With a
/// SHA-256 from its manifest, the hashed file itself is opened, if the system allows that, even if
/// another file has replaced it at the path.
pub(crate) fn open(path: &Path, expected: Option<&str>) -> Result<(Table, LayoutCheck), LoadError> {
    let place = match expected {
        Some(expected) => hashed(path, expected)?,
        None => path.to_owned(),
    };
    let refused = |error: libloading::Error| {
        let reason: String = loader_message(&error).chars().take(400).collect();
        LoadError::new("not-a-library", path, format!("cannot be opened as a library: {reason}"))
    };
    #[cfg(unix)]
    // SAFETY: a shim is trusted code. Its manifest was read and its hash checked.
    let library = unsafe {
        use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
        libloading::Library::from(Library::open(Some(&place), RTLD_NOW | RTLD_LOCAL).map_err(refused)?)
    };
    #[cfg(not(unix))]
    // SAFETY: as above.
    let library = unsafe { libloading::Library::new(&place) }.map_err(refused)?;
    // Never unloaded: tables, refusals and running threads of the shim point into it.
    let library = ManuallyDrop::new(library);
    // SAFETY: the contract specifies this type of the symbol.
    let entry = unsafe { library.get::<SwEntryFunction>(SW_ENTRY_SYMBOL.to_bytes_with_nul()) };
    let entry = *entry.map_err(|_| {
        LoadError::new("not-a-shim", path, "not a shim: it does not export `shardwright_shim_entry`")
    })?;
    // Locked until the result is known, so that threads that open one library keep one table.
    let mut opened = OPENED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(known) = opened.get(&(entry as usize)) {
        return Ok(known.clone());
    }
    let layout = layout::compare(path, &place)?;
    let found = (enter(path, entry)?, layout);
    opened.insert(entry as usize, found.clone());
    Ok(found)
}

/// Returns the loader's message, for example about an undefined symbol or a missing library. Only
/// the error's source contains it.
fn loader_message(error: &libloading::Error) -> String {
    std::error::Error::source(error).map_or_else(|| error.to_string(), ToString::to_string)
}

/// Computes the SHA-256 of a library in lower-case hex.
pub(crate) fn hash(mut file: &File) -> io::Result<String> {
    let mut sum = Sha256::new();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match file.read(&mut buffer)? {
            0 => return Ok(hex::encode(&sum.finalize())),
            count => sum.update(&buffer[..count]),
        }
    }
}

/// Checks the file at `path` against its hash, and returns the path by which to open it. This is
/// the path of the descriptor that was hashed. The descriptor stays open like the library, because
/// the loader identifies libraries by such names.
fn hashed(path: &Path, expected: &str) -> Result<PathBuf, LoadError> {
    let failed = |error: io::Error| LoadError::unreadable(path, error);
    let file = File::open(path).map_err(failed)?;
    let found = hash(&file).map_err(failed)?;
    if found != expected {
        let message = format!("expected SHA-256 {expected} as in its manifest, got {found}");
        return Err(LoadError::new("hash-mismatch", path, message));
    }
    #[cfg(any(target_os = "linux", target_os = "android"))]
    {
        use std::os::fd::{AsRawFd, IntoRawFd};
        use std::os::unix::fs::MetadataExt;
        /// Descriptors that stay open, by device, inode and hash of their files. An open file keeps
        /// its inode, so an equal one is the same file.
        static KEPT: Mutex<BTreeMap<(u64, u64, String), PathBuf>> = Mutex::new(BTreeMap::new());
        let status = file.metadata().map_err(failed)?;
        let mut kept = KEPT.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (status.dev(), status.ino(), found);
        if let Some(place) = kept.get(&key) {
            return Ok(place.clone());
        }
        let place = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
        if place.exists() {
            let _kept_open = file.into_raw_fd();
            kept.insert(key, place.clone());
            return Ok(place);
        }
    }
    Ok(path.to_owned())
}

/// Calls the entry function and checks its result. `path` is for messages.
pub(crate) fn enter(path: &Path, entry: SwEntryFunction) -> Result<Table, LoadError> {
    let mut answer = SwAnswer {
        size: size_of::<SwAnswer>() as u64,
        version_min: 0,
        version_max: 0,
        version: 0,
        reserved: 0,
        table: std::ptr::null(),
        refusal: std::ptr::null(),
    };
    // SAFETY: both pointers are as the contract specifies. The host's struct is static.
    unsafe { entry(host(), &mut answer) };
    let wrong = |reason: String| {
        LoadError::new("answer-invalid", path, format!("the entry function violated the contract: {reason}"))
    };
    if answer.table.is_null() {
        check_range(path, (answer.version_min, answer.version_max))?;
        // SAFETY: the contract specifies that it is a string or null.
        return Err(match unsafe { call::text(answer.refusal) } {
            Ok(reason) => LoadError::new("refused", path, format!("the shim refused this host: {reason}")),
            Err(_) => wrong("it returned neither a table nor a refusal".to_owned()),
        });
    }
    if !answer.refusal.is_null() {
        return Err(wrong("it returned a table and a refusal".to_owned()));
    }
    if !(HOST_VERSIONS.0..=HOST_VERSIONS.1).contains(&answer.version) {
        let version = version_text(answer.version);
        return Err(wrong(format!("the shim chose version {version}, which the host does not offer")));
    }
    // SAFETY: every struct of the contract starts with its u64 size. Only this size is read before
    // it is compared.
    let size = unsafe { answer.table.cast::<u64>().read() };
    let expected = u64::from(SW_MINIMUM_TABLE);
    if size < expected {
        let version = version_text(answer.version);
        let message =
            format!("expected a table of at least {expected} bytes for version {version}, got {size}");
        return Err(LoadError::new("table-too-small", path, message));
    }
    // Copied, because a shim of another minor version has more functions, or fewer, in which case
    // the missing ones are null. Never freed, like the library. SAFETY: the contract specifies that
    // the table is static, and it has the size that it reports.
    let table =
        unsafe { call::value(answer.table) }.map_err(|reason| wrong(format!("invalid table: {reason}")))?;
    let table: &'static SwTable = Box::leak(Box::new(table));
    if table.version != answer.version {
        return Err(wrong(format!(
            "the table has version {}, but the answer has version {}",
            version_text(table.version),
            version_text(answer.version)
        )));
    }
    if table.draft != SW_DRAFT {
        let (found, version) = (table.draft, version_text(answer.version));
        let message = format!(
            "the shim has draft {found:08x} of version {version}, but the host has draft {SW_DRAFT:08x}"
        );
        return Err(LoadError::new("other-draft", path, message));
    }
    check_functions(path, table)?;
    Ok(Table(table))
}

fn check_functions(path: &Path, table: &SwTable) -> Result<(), LoadError> {
    let loads = table.load.is_some();
    let buffers = table.buffer_allocate.is_some() || table.buffer_import.is_some();
    let required = [
        ("describe", table.describe.is_some()),
        ("open", table.open.is_some()),
        ("close", table.close.is_some()),
        ("devices", table.devices.is_some()),
        ("check", table.check.is_some()),
        ("compatibility", table.compatibility.is_some()),
        ("unload", table.unload.is_some() || !loads),
        ("entries", table.entries.is_some() || !loads),
        ("bindings", table.bindings.is_some() || !loads),
        ("run", table.run.is_some() || !loads),
        ("buffer_free", table.buffer_free.is_some() || !buffers),
    ];
    match required.into_iter().find(|(_, present)| !present) {
        None => Ok(()),
        Some((function, _)) => {
            let message = format!("the required function `{function}` is missing");
            Err(LoadError::new("function-missing", path, message))
        }
    }
}
