//! Compiling planners, with a private cache of the result.

use std::io::Write;
use std::path::PathBuf;
use std::sync::mpsc;
use std::time::Duration;

use sha2::{Digest, Sha256};
use shardwright_files::{FileError, own, read_from};
use wasmtime::Engine;
use wasmtime::component::Component;

use super::{Planner, Sandbox, admission, named};
use crate::error::{PlannerError, PlannerErrorKind};

/// First bytes of a cached file.
const MAGIC: &[u8; 8] = b"SWCACHE1";
/// Magic, key, hash of the code.
const HEAD_BYTES: usize = 8 + 32 + 32;
/// Longest file of the cache that is read: what the caps of [`admission`] compile to stays below.
const COMPILED_BYTES: u64 = 512 << 20;
/// End of the name of a file in the making.
const PARTIAL: &str = ".partial";
/// A file in the making that is older belongs to a process that was ended.
const PARTIAL_AGE: Duration = Duration::from_secs(600);

/// Compiled planners in a directory, keyed by content, wasmtime version and settings.
///
/// The files contain machine code, and the hash in a file proves only that it is complete, not who
/// wrote it. So a file is trusted only if it and the directory belong to the effective user and
/// nobody else may write them; otherwise the planner is compiled again, which
/// [`Planner::load_notice`] reports. A damaged or incomplete file is compiled again silently.
#[derive(Debug, Clone)]
pub struct CompiledCache {
    directory: PathBuf,
}

impl CompiledCache {
    /// A cache in `directory`, which is created when first written to.
    pub fn new(directory: impl Into<PathBuf>) -> Self {
        Self { directory: directory.into() }
    }

    /// Where the compiled form of a planner lies, whether or not it is there.
    pub fn path(&self, sandbox: &Sandbox, wasm: &[u8]) -> PathBuf {
        self.directory.join(format!("{}.cwasm", shardwright_files::hex::encode(&key(sandbox, wasm))))
    }

    /// What is there for a planner, if it is sound. Errors: somebody else can have written it.
    fn read(&self, sandbox: &Sandbox, wasm: &[u8]) -> Result<Option<Vec<u8>>, FileError> {
        let file = match own::open_file(&self.path(sandbox, wasm)) {
            Ok((file, _)) => file,
            // Nothing is there, or nothing that can be had.
            Err(FileError::Io(_)) => return Ok(None),
            Err(error) => return Err(error),
        };
        let Ok(mut bytes) = read_from(file, COMPILED_BYTES) else { return Ok(None) };
        let Some((head, code)) = bytes.split_at_checked(HEAD_BYTES) else { return Ok(None) };
        let sound =
            head[..8] == *MAGIC && head[8..40] == key(sandbox, wasm) && head[40..] == *Sha256::digest(code);
        Ok(sound.then(|| bytes.split_off(HEAD_BYTES)))
    }

    /// Write atomically. A cache that cannot be written costs time, not correctness, so failures
    /// are not reported.
    fn write(&self, sandbox: &Sandbox, wasm: &[u8], code: &[u8]) {
        let _ = own::create_folder(&self.directory).and_then(|()| {
            // What lies in a folder of somebody else is never read again.
            own::expect_folder(&self.directory)?;
            self.sweep();
            let mut partial = tempfile::Builder::new().suffix(PARTIAL).tempfile_in(&self.directory)?;
            partial.write_all(MAGIC)?;
            partial.write_all(&key(sandbox, wasm))?;
            partial.write_all(&Sha256::digest(code))?;
            partial.write_all(code)?;
            partial.persist(self.path(sandbox, wasm))?;
            Ok(())
        });
    }

    /// Removes what processes left that were killed while they wrote.
    fn sweep(&self) {
        let Ok(entries) = std::fs::read_dir(&self.directory) else { return };
        for entry in entries.flatten() {
            let partial = entry.file_name().to_string_lossy().ends_with(PARTIAL);
            let modified = || entry.metadata().and_then(|metadata| metadata.modified()).ok();
            let is_old = |time: std::time::SystemTime| time.elapsed().is_ok_and(|age| age > PARTIAL_AGE);
            if partial && modified().is_some_and(is_old) {
                // Another process may have been faster.
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

/// What the cache has of a planner.
enum Cached {
    Loaded(Result<Planner, PlannerError>),
    /// With what is to be reported of a file that was not believed.
    Absent(Option<String>),
}

impl Sandbox {
    /// Compile a planner, or take its compiled form from `cache`. `origin` names it in errors until
    /// it has said who it is, usually the file name.
    ///
    /// A compilation that exceeds its time cannot be stopped; it ends in the background. Its memory
    /// and its work are bounded by the caps of [`admission`].
    pub fn load(
        &self,
        origin: &str,
        wasm: &[u8],
        cache: Option<&CompiledCache>,
    ) -> Result<Planner, PlannerError> {
        self.admit(wasm).map_err(|kind| named(origin, kind))?;
        match self.cached(origin, wasm, cache) {
            Cached::Loaded(loaded) => loaded,
            Cached::Absent(notice) => {
                let component = self.compile(wasm, self.bounds().compile_time);
                self.compiled(origin, wasm, cache, component.map_err(|kind| named(origin, kind))?, notice)
            }
        }
    }

    /// Like [`load`](Self::load), but for a planner of the program itself: it has as much time as it
    /// needs, and processes that need it at once wait for the one that compiles it.
    pub(crate) fn load_trusted(
        &self,
        origin: &str,
        wasm: &[u8],
        cache: Option<&CompiledCache>,
    ) -> Result<Planner, PlannerError> {
        if let Cached::Loaded(loaded) = self.cached(origin, wasm, cache) {
            return loaded;
        }
        // Without a lock several processes do the same work.
        let _lock = cache.and_then(|cache| own::lock(&cache.path(self, wasm).with_extension("lock")).ok());
        match self.cached(origin, wasm, cache) {
            Cached::Loaded(loaded) => loaded,
            Cached::Absent(notice) => {
                let component = compile(&self.engine, wasm).map_err(|kind| named(origin, kind))?;
                self.compiled(origin, wasm, cache, component, notice)
            }
        }
    }

    fn cached(&self, origin: &str, wasm: &[u8], cache: Option<&CompiledCache>) -> Cached {
        match cache.map_or(Ok(None), |cache| cache.read(self, wasm)) {
            Ok(Some(code)) => {
                // SAFETY: `read` returns only what `write` stored for this key: its hash was
                // compared, and only this user can have written the file.
                let loaded = unsafe { self.deserialize(origin, &code) };
                // Code of another wasmtime under our key means a faulty key; compiling again is
                // always right.
                match &loaded {
                    Err(error) if matches!(error.kind, PlannerErrorKind::Garbage { .. }) => {
                        Cached::Absent(None)
                    }
                    _ => Cached::Loaded(loaded),
                }
            }
            Ok(None) => Cached::Absent(None),
            Err(error) => {
                let help = error.help().unwrap_or_default();
                Cached::Absent(Some(format!(
                    "the compiled planner in the cache is not believed, so it was compiled anew: {error}; \
                     {help}"
                )))
            }
        }
    }

    /// A planner that was just compiled, which is kept for the next time.
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
            cache.write(self, wasm, &code);
        }
        Ok(planner)
    }

    /// Size and first bytes: what can be refused before a compiler sees it.
    fn admit(&self, wasm: &[u8]) -> Result<(), PlannerErrorKind> {
        let (bytes, cap) = (wasm.len() as u64, self.bounds().wasm_bytes);
        if bytes > cap {
            return Err(PlannerErrorKind::TooBig { bytes, cap });
        }
        let garbage = |reason: &str| Err(PlannerErrorKind::Garbage { reason: reason.to_owned() });
        let Some((head, _)) = wasm.split_at_checked(8) else {
            return garbage("shorter than a header");
        };
        if head[..4] != *b"\0asm" {
            return garbage("it does not start with the WebAssembly magic number");
        }
        // Bytes 6 and 7 tell the layer: 0 a core module, 1 a component.
        match head[6..8] {
            [0, 0] => Err(PlannerErrorKind::CoreModule),
            [1, 0] => Ok(()),
            _ => garbage("an unknown kind of WebAssembly"),
        }
    }

    fn compile(&self, wasm: &[u8], limit: Duration) -> Result<Component, PlannerErrorKind> {
        let (sender, receiver) = mpsc::channel();
        let engine = self.engine.clone();
        let wasm = wasm.to_vec();
        let worker = std::thread::Builder::new().name("planner-compile".to_owned());
        let spawned = worker.spawn(move || {
            // Nobody listens any more if the time is up.
            let _ = sender.send(compile(&engine, &wasm));
        });
        if let Err(error) = spawned {
            return Err(PlannerErrorKind::Sandbox { reason: format!("cannot start a thread: {error}") });
        }
        match receiver.recv_timeout(limit) {
            Ok(compiled) => compiled,
            Err(mpsc::RecvTimeoutError::Timeout) => Err(PlannerErrorKind::SlowToCompile { limit }),
            // The thread is gone without an answer: the compiler panicked.
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                Err(PlannerErrorKind::Garbage { reason: "the compiler gave up on it".to_owned() })
            }
        }
    }
}

fn compile(engine: &Engine, wasm: &[u8]) -> Result<Component, PlannerErrorKind> {
    admission::examine(wasm)?;
    let compiled = Component::from_binary(engine, wasm);
    compiled.map_err(|error| PlannerErrorKind::Garbage { reason: format!("{error:#}") })
}

impl Planner {
    /// The compiled code, for a pack.
    pub(crate) fn code(&self) -> Result<Vec<u8>, PlannerError> {
        self.component
            .serialize()
            .map_err(|error| self.error(PlannerErrorKind::Sandbox { reason: format!("{error:#}") }))
    }
}
