//! Compiles planners, and caches the result in a private directory.

use std::borrow::Cow;
use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::{Duration, Instant};

use sha2::{Digest, Sha256};
use shardwright_files::{private_files, read_from};
use shardwright_vocabulary::{Error, ErrorKind, Result};
use wasmtime::component::Component;
use wasmtime::{CacheStore, Engine, OptLevel};

use super::admission::{self, Effort};
use super::{EngineKind, Planner, Sandbox, garbage, named, sandbox_failed, settings, too_large};
use crate::error::PlannerError;

/// First bytes of a cached file.
const MAGIC: &[u8; 8] = b"SWCACHE1";
/// Bytes of magic, key and hash of the code.
const HEAD_BYTES: usize = 8 + 32 + 32;
/// Maximum size of a cached file. Code within the caps of [`admission`] is smaller.
const COMPILED_BYTES: u64 = 512 << 20;
/// Suffix of a file that is being written.
const PARTIAL: &str = ".partial";
/// An older file with this suffix belongs to a process that was killed.
const PARTIAL_AGE: Duration = Duration::from_secs(600);

/// Cache of compiled planners in a directory, keyed by content, wasmtime version and settings.
///
/// The files contain machine code. The hash in a file only proves that it is complete, not who
/// wrote it. A file is therefore trusted only if it and the directory belong to the effective user
/// and no other user may write to them. Otherwise the planner is compiled again, which
/// [`Planner::load_notice`] reports. A damaged or incomplete file is compiled again silently.
#[derive(Debug, Clone)]
pub struct CompiledCache {
    directory: PathBuf,
}

impl CompiledCache {
    /// Creates a cache in `directory`, which is created on the first write.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// Returns the path of the compiled form of a planner, even if the file does not exist.
    pub fn path(&self, sandbox: &Sandbox, wasm: &[u8]) -> PathBuf {
        self.directory.join(format!("{}.cwasm", shardwright_files::hex::encode(&key(sandbox, wasm))))
    }

    /// Reads the compiled form of a planner. Returns `None` if it is missing or damaged. Fails if
    /// another user can have written it.
    fn read(&self, sandbox: &Sandbox, wasm: &[u8]) -> Result<Option<Vec<u8>>> {
        let file = match private_files::open_file(&self.path(sandbox, wasm)) {
            Ok((file, _)) => file,
            Err(error) if error.kind() == ErrorKind::Invalid => return Err(error),
            // The file is missing or not readable.
            Err(_) => return Ok(None),
        };
        let Ok(mut bytes) = read_from(file, COMPILED_BYTES) else { return Ok(None) };
        let Some((head, code)) = bytes.split_at_checked(HEAD_BYTES) else { return Ok(None) };
        let sound =
            head[..8] == *MAGIC && head[8..40] == key(sandbox, wasm) && head[40..] == *Sha256::digest(code);
        Ok(sound.then(|| bytes.split_off(HEAD_BYTES)))
    }

    /// Writes a file atomically.
    fn write(&self, sandbox: &Sandbox, wasm: &[u8], code: &[u8]) -> Result<()> {
        private_files::create_folder(&self.directory)?;
        // A file in a folder of another user would never be read.
        private_files::expect_folder(&self.directory)?;
        self.sweep();
        let mut partial = tempfile::Builder::new().suffix(PARTIAL).tempfile_in(&self.directory)?;
        partial.write_all(MAGIC)?;
        partial.write_all(&key(sandbox, wasm))?;
        partial.write_all(&Sha256::digest(code))?;
        partial.write_all(code)?;
        partial.persist(self.path(sandbox, wasm)).map_err(|error| error.error)?;
        Ok(())
    }

    /// Removes files left by processes that were killed while writing.
    fn sweep(&self) {
        let Ok(entries) = std::fs::read_dir(&self.directory) else { return };
        for entry in entries.flatten() {
            let partial = entry.file_name().to_string_lossy().ends_with(PARTIAL);
            let modified = || entry.metadata().and_then(|metadata| metadata.modified()).ok();
            let is_old = |time: std::time::SystemTime| time.elapsed().is_ok_and(|age| age > PARTIAL_AGE);
            if partial && modified().is_some_and(is_old) {
                // Ignore the error: another process may have removed it first.
                let _ = std::fs::remove_file(entry.path());
            }
        }
    }
}

fn key(sandbox: &Sandbox, wasm: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(sandbox.settings_id());
    hash.update(Sha256::digest(wasm));
    hash.finalize().into()
}

/// Interval for checking for a cancellation.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Result of looking a planner up in the cache.
enum Cached {
    Loaded(Result<Planner, PlannerError>),
    /// No usable file. If there is one that is not trusted, the notice about it.
    Absent(Option<String>),
}

impl Sandbox {
    /// Compiles a planner, or loads its compiled form from `cache`. `origin` is its name in errors
    /// until its description is known, usually the file name.
    ///
    /// A compilation that exceeds its time limit fails at once. Its thread ends before the compiler
    /// begins another function. If panics abort the program, it continues in the background. Its
    /// memory and work are limited by the caps of [`admission`].
    pub fn load(
        &self,
        origin: &str,
        wasm: &[u8],
        cache: Option<&CompiledCache>,
    ) -> Result<Planner, PlannerError> {
        self.load_until(origin, wasm, cache, &|| false)
    }

    /// Like [`load`](Self::load), but stops compiling once `cancelled` returns true.
    pub fn load_until(
        &self,
        origin: &str,
        wasm: &[u8],
        cache: Option<&CompiledCache>,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Planner, PlannerError> {
        self.admit(wasm).map_err(|error| named(origin, error))?;
        match self.cached(origin, wasm, cache) {
            Cached::Loaded(loaded) => loaded,
            Cached::Absent(notice) => {
                let component = self.compile(wasm, self.bounds().compile_time, cancelled);
                self.compiled(origin, wasm, cache, component.map_err(|error| named(origin, error))?, notice)
            }
        }
    }

    /// Loads a planner that is part of the program, like [`load_until`](Self::load_until) but
    /// without a time limit. If several processes need it at once, one compiles it while the others
    /// wait.
    pub(crate) fn load_trusted(
        &self,
        origin: &str,
        wasm: &[u8],
        cache: Option<&CompiledCache>,
        cancelled: &dyn Fn() -> bool,
    ) -> Result<Planner, PlannerError> {
        if let Cached::Loaded(loaded) = self.cached(origin, wasm, cache) {
            return loaded;
        }
        let file = cache.map(|cache| cache.path(self, wasm).with_extension("lock"));
        let lock = file.map(|file| private_files::lock_until(&file, cancelled));
        if let Some(Ok(None)) = lock {
            return Err(named(origin, Error::cancelled()));
        }
        // The lock is held to the end. If locking failed, several processes do the same work.
        match self.cached(origin, wasm, cache) {
            Cached::Loaded(loaded) => loaded,
            Cached::Absent(notice) => {
                let component = match Compilation::start(self.kind, wasm) {
                    Ok(compilation) => {
                        compilation.within(None, cancelled).and_then(|code| self.component(&code))
                    }
                    // Without a thread, the compilation cannot be stopped.
                    Err(_) => expect_memory().and_then(|()| compile(&self.engine, wasm)),
                };
                self.compiled(origin, wasm, cache, component.map_err(|error| named(origin, error))?, notice)
            }
        }
    }

    fn cached(&self, origin: &str, wasm: &[u8], cache: Option<&CompiledCache>) -> Cached {
        match cache.map_or(Ok(None), |cache| cache.read(self, wasm)) {
            Ok(Some(code)) => {
                // SAFETY: `read` only returns the bytes that `write` stored for this key: it has
                // compared the hash, and only this user can have written the file.
                match unsafe { Component::deserialize(&self.engine, code) } {
                    Ok(component) => Cached::Loaded(self.planner(origin, component)),
                    // Code of another wasmtime version under our key would mean that the key is
                    // incomplete. Compiling again is always correct.
                    Err(_) => Cached::Absent(None),
                }
            }
            Ok(None) => Cached::Absent(None),
            Err(error) => {
                let help = error.help().unwrap_or_default();
                Cached::Absent(Some(format!(
                    "the compiled planner in the cache is not trusted, so it was compiled again: {error}; \
                     {help}"
                )))
            }
        }
    }

    /// Creates the planner from a newly compiled component, and stores it in the cache.
    fn compiled(
        &self,
        origin: &str,
        wasm: &[u8],
        cache: Option<&CompiledCache>,
        component: Component,
        notice: Option<String>,
    ) -> Result<Planner, PlannerError> {
        let mut planner = self.planner(origin, component)?;
        planner.load_notice = notice;
        if let Some(cache) = cache
            && let Ok(code) = planner.component.serialize()
        {
            // Without the file, the next load only takes longer.
            let _ = cache.write(self, wasm, &code);
        }
        Ok(planner)
    }

    /// Checks the size and the first bytes, before a compiler reads the planner.
    fn admit(&self, wasm: &[u8]) -> Result<()> {
        let (bytes, cap) = (wasm.len() as u64, self.bounds().wasm_bytes);
        if bytes > cap {
            return Err(Error::invalid(format!("{bytes} bytes, expected at most {cap}")));
        }
        let Some((head, _)) = wasm.split_at_checked(8) else {
            return Err(garbage("shorter than a header"));
        };
        if head[..4] != *b"\0asm" {
            return Err(garbage("it does not start with the WebAssembly magic number"));
        }
        // Bytes 6 and 7 specify the layer: 0 is a core module, 1 a component.
        match head[6..8] {
            [0, 0] => Err(Error::invalid("a WebAssembly core module, not a component").with_help(
                "wrap it: `shardwright-planner-build MANIFEST OUT.wasm` builds and wraps a planner crate",
            )),
            [1, 0] => Ok(()),
            _ => Err(garbage("unknown kind of WebAssembly")),
        }
    }

    fn compile(&self, wasm: &[u8], limit: Duration, cancelled: &dyn Fn() -> bool) -> Result<Component> {
        let code = Compilation::start(self.kind, wasm)?.within(Some(limit), cancelled)?;
        self.component(&code)
    }

    /// Returns the component of code that a [`Compilation`] returned.
    fn component(&self, code: &[u8]) -> Result<Component> {
        // SAFETY: the code is the unaltered output of `precompile_component`.
        let component = unsafe { Component::deserialize(&self.engine, code) };
        component.map_err(|error| sandbox_failed(&error))
    }
}

fn compile(engine: &Engine, wasm: &[u8]) -> Result<Component> {
    admission::examine(wasm)?;
    Component::from_binary(engine, wasm).map_err(|error| garbage(format!("{error:#}")))
}

/// A compilation in its own thread.
struct Compilation {
    code: mpsc::Receiver<Result<Vec<u8>>>,
    stop: Arc<Stop>,
}

impl Compilation {
    fn start(kind: EngineKind, wasm: &[u8]) -> Result<Compilation> {
        let stop = Arc::new(Stop::default());
        let (sender, code) = mpsc::channel();
        let (stopping, wasm) = (Arc::clone(&stop), wasm.to_vec());
        let thread = std::thread::Builder::new().name("planner-compile".to_owned());
        let spawned = thread.spawn(move || {
            // After the time limit, the receiver is gone.
            let _ = sender.send(code_of(kind, &wasm, stopping));
        });
        match spawned {
            Ok(_) => Ok(Compilation { code, stop }),
            Err(error) => Err(Error::internal(format!("the sandbox cannot start a thread: {error}"))),
        }
    }

    /// Waits for the code. After `limit`, or once `cancelled` returns true, stops the compiler and
    /// fails.
    fn within(self, limit: Option<Duration>, cancelled: &dyn Fn() -> bool) -> Result<Vec<u8>> {
        let begin = Instant::now();
        let error = loop {
            if cancelled() {
                break Error::cancelled();
            }
            let left = limit.map_or(LOOK_AGAIN, |limit| limit.saturating_sub(begin.elapsed()));
            match self.code.recv_timeout(left.min(LOOK_AGAIN)) {
                Ok(code) => return code,
                // The thread ended without an answer: the compiler panicked.
                Err(mpsc::RecvTimeoutError::Disconnected) => return Err(garbage("the compiler panicked")),
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
            if let Some(limit) = limit.filter(|limit| begin.elapsed() >= *limit) {
                break too_large(format!("compiling took longer than {} ms", limit.as_millis()));
            }
        };
        self.stop.now();
        Err(error)
    }
}

/// Compiles a component to code that an engine of this kind loads. Unwinds with [`Stopped`] once
/// `stop` is set.
fn code_of(kind: EngineKind, wasm: &[u8], stop: Arc<Stop>) -> Result<Vec<u8>> {
    expect_memory()?;
    let effort = admission::examine(wasm)?;
    // A store is a setting of an engine, so each compilation has its own.
    let mut config = settings::config(kind).map_err(|error| sandbox_failed(&error))?;
    if effort == Effort::Plain {
        config.cranelift_opt_level(OptLevel::None);
    }
    config.enable_incremental_compilation(stop).map_err(|error| sandbox_failed(&error))?;
    let engine = Engine::new(&config).map_err(|error| sandbox_failed(&error))?;
    engine.precompile_component(wasm).map_err(|error| garbage(format!("{error:#}")))
}

/// Address space that the compiler needs for a planner as large as the built-in one.
const COMPILER_BYTES: usize = 192 << 20;

/// Refuses to compile in too small an address space, because an allocation that fails inside the
/// compiler ends the process. The memory is reserved without being touched.
fn expect_memory() -> Result<()> {
    let mut room: Vec<u8> = Vec::new();
    let reserved = room.try_reserve_exact(COMPILER_BYTES);
    std::hint::black_box(&room);
    reserved.map_err(|error| {
        let message = format!("the system has too little memory to compile a planner: {error}");
        let help = "free memory, or raise the limit of the process: the compiler reserves 192 MiB of address \
                    space";
        Error::new(ErrorKind::Memory, message).with_help(help)
    })
}

/// Stops a compilation. The compiler looks every function up in its store before it compiles it,
/// and has no other point at which it can be stopped. Functions are never stored.
#[derive(Debug, Default)]
struct Stop(AtomicBool);

impl Stop {
    fn now(&self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Payload of a compiler's thread that was stopped.
struct Stopped;

impl CacheStore for Stop {
    fn get(&self, _: &[u8]) -> Option<Cow<'_, [u8]>> {
        // Where panics abort, unwinding would end the program.
        if cfg!(panic = "unwind") && self.0.load(Ordering::Relaxed) {
            std::panic::resume_unwind(Box::new(Stopped));
        }
        None
    }

    fn insert(&self, _: &[u8], _: Vec<u8>) -> bool {
        false
    }
}

impl Planner {
    /// Returns the compiled code, for a pack.
    pub(crate) fn code(&self) -> Result<Vec<u8>, PlannerError> {
        self.component.serialize().map_err(|error| self.error(sandbox_failed(&error)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::builtin;

    #[test]
    fn a_compiler_that_is_stopped_begins_no_further_function() {
        let stop = Arc::new(Stop::default());
        stop.now();
        let stopping = Arc::clone(&stop);
        let wasm = builtin::component().unwrap();
        let thread = std::thread::spawn(move || code_of(EngineKind::Native, wasm, stopping));
        let payload = thread.join().unwrap_err();
        assert!(payload.is::<Stopped>(), "it compiled to the end, or panicked");
        assert_eq!(Arc::strong_count(&stop), 1, "the engine is gone");
    }

    #[test]
    fn a_compilation_beyond_its_time_ends_its_thread() {
        let compilation = Compilation::start(EngineKind::Native, builtin::component().unwrap()).unwrap();
        let stop = Arc::clone(&compilation.stop);
        let error = compilation.within(Some(Duration::ZERO), &|| false).unwrap_err();
        assert_eq!(error.message(), "compiling took longer than 0 ms");
        let begin = Instant::now();
        // The thread's engine holds the other share.
        while Arc::strong_count(&stop) > 1 {
            assert!(begin.elapsed() < Duration::from_secs(60), "the thread goes on");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_compilation_that_is_cancelled_ends_as_such() {
        let sandbox = Sandbox::new(EngineKind::Native).unwrap();
        let wasm = builtin::component().unwrap();
        let folder = tempfile::tempdir().unwrap();
        let cache = CompiledCache::new(folder.path().join("planners"));
        for cancelled in [
            sandbox.load_until("given.wasm", wasm, Some(&cache), &|| true),
            sandbox.load_trusted("built-in", wasm, Some(&cache), &|| true),
        ] {
            let error = cancelled.unwrap_err();
            assert!(error.is_cancelled() && !cache.path(&sandbox, wasm).exists(), "{error}");
        }
        // Another process compiles it.
        let _held = private_files::lock(&cache.path(&sandbox, wasm).with_extension("lock")).unwrap();
        let error = sandbox.load_trusted("built-in", wasm, Some(&cache), &|| true).unwrap_err();
        assert!(error.is_cancelled(), "{error}");
    }

    #[test]
    fn code_of_a_stoppable_compiler_equals_that_of_the_plain_one() {
        let sandbox = Sandbox::new(EngineKind::Pulley).unwrap();
        let wasm = builtin::component().unwrap();
        let plain = compile(&sandbox.engine, wasm).unwrap().serialize().unwrap();
        let hour = Duration::from_secs(3600);
        let stoppable = sandbox.compile(wasm, hour, &|| false).unwrap().serialize().unwrap();
        assert!(plain == stoppable, "{} and {} bytes", plain.len(), stoppable.len());
    }
}
