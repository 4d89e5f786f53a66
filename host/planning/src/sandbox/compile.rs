//! Compiling planners, with a private cache of the result.

use std::path::{Path, PathBuf};
use std::sync::mpsc;

use sha2::{Digest, Sha256};
use wasmtime::component::Component;

use super::{Planner, Sandbox, named};
use crate::error::{PlannerError, PlannerErrorKind};

/// First bytes of a cached file.
const MAGIC: &[u8; 8] = b"SWCACHE1";
/// Magic, key, hash of the code.
const HEAD_BYTES: usize = 8 + 32 + 32;

/// Compiled planners in a directory, keyed by content, wasmtime version and settings.
///
/// The directory must be private to the application: the files hold machine code. A file that was damaged or left half
/// written is noticed by its hash and compiled anew; a hash does not help against someone who may write there.
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
        self.directory.join(format!("{}.cwasm", crate::hex(&key(sandbox, wasm))))
    }

    fn read(&self, sandbox: &Sandbox, wasm: &[u8]) -> Option<Vec<u8>> {
        let bytes = std::fs::read(self.path(sandbox, wasm)).ok()?;
        let (head, code) = bytes.split_at_checked(HEAD_BYTES)?;
        let sound =
            head[..8] == *MAGIC && head[8..40] == key(sandbox, wasm) && head[40..] == *Sha256::digest(code);
        sound.then(|| code.to_vec())
    }

    /// Write atomically. A cache that cannot be written costs time, not correctness, so failures are not reported.
    fn write(&self, sandbox: &Sandbox, wasm: &[u8], code: &[u8]) {
        let path = self.path(sandbox, wasm);
        let _ = create_private(&self.directory).and_then(|()| {
            let mut bytes = Vec::with_capacity(HEAD_BYTES + code.len());
            bytes.extend_from_slice(MAGIC);
            bytes.extend_from_slice(&key(sandbox, wasm));
            bytes.extend_from_slice(&Sha256::digest(code));
            bytes.extend_from_slice(code);
            // One name per process: two that write at once leave one whole file.
            let partial = path.with_extension(format!("{}.partial", std::process::id()));
            std::fs::write(&partial, bytes)?;
            std::fs::rename(&partial, &path).inspect_err(|_| {
                let _ = std::fs::remove_file(&partial);
            })
        });
    }
}

#[cfg(unix)]
fn create_private(directory: &Path) -> std::io::Result<()> {
    use std::os::unix::fs::DirBuilderExt;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(directory)
}

#[cfg(not(unix))]
fn create_private(directory: &Path) -> std::io::Result<()> {
    std::fs::create_dir_all(directory)
}

fn key(sandbox: &Sandbox, wasm: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(sandbox.settings_id());
    hash.update(Sha256::digest(wasm));
    hash.finalize().into()
}

impl Sandbox {
    /// Compile a planner, or take its compiled form from `cache`. `origin` names it in errors until it has said who it is,
    /// usually the file name.
    ///
    /// A compilation that exceeds its time cannot be stopped; it ends in the background, bounded by the size cap.
    pub fn load(
        &self,
        origin: &str,
        wasm: &[u8],
        cache: Option<&CompiledCache>,
    ) -> Result<Planner, PlannerError> {
        let fail = |kind| named(origin, kind);
        self.admit(wasm).map_err(fail)?;
        if let Some(code) = cache.and_then(|cache| cache.read(self, wasm)) {
            // SAFETY: `read` returns only what `write` stored for this key: its hash was compared, and the directory is
            // private to the application by the contract of `CompiledCache`.
            let loaded = unsafe { self.deserialize(origin, &code) };
            // Code of another wasmtime under our key means a faulty key; compiling anew is always right.
            if !matches!(&loaded, Err(error) if matches!(error.kind, PlannerErrorKind::Garbage { .. })) {
                return loaded;
            }
        }
        let component = self.compile(wasm).map_err(fail)?;
        let planner = self.planner(origin, component)?;
        if let Some(cache) = cache
            && let Ok(code) = planner.component.serialize()
        {
            cache.write(self, wasm, &code);
        }
        Ok(planner)
    }

    /// Read and compile the planner in a file.
    pub fn load_file(&self, path: &Path, cache: Option<&CompiledCache>) -> Result<Planner, PlannerError> {
        let origin = crate::file_name(path);
        let wasm = crate::read_capped(path, self.bounds().wasm_bytes).map_err(|kind| named(&origin, kind))?;
        self.load(&origin, &wasm, cache)
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

    fn compile(&self, wasm: &[u8]) -> Result<Component, PlannerErrorKind> {
        let limit = self.bounds().compile_time;
        let (sender, receiver) = mpsc::channel();
        let engine = self.engine.clone();
        let wasm = wasm.to_vec();
        let worker = std::thread::Builder::new().name("planner-compile".to_owned());
        let spawned = worker.spawn(move || {
            // Nobody listens any more if the time is up.
            let _ = sender.send(Component::from_binary(&engine, &wasm));
        });
        if let Err(error) = spawned {
            return Err(PlannerErrorKind::Sandbox { reason: format!("cannot start a thread: {error}") });
        }
        match receiver.recv_timeout(limit) {
            Ok(Ok(component)) => Ok(component),
            Ok(Err(error)) => Err(PlannerErrorKind::Garbage { reason: format!("{error:#}") }),
            Err(mpsc::RecvTimeoutError::Timeout) => Err(PlannerErrorKind::SlowToCompile { limit }),
            // The thread is gone without an answer: the compiler panicked.
            Err(mpsc::RecvTimeoutError::Disconnected) => {
                Err(PlannerErrorKind::Garbage { reason: "the compiler gave up on it".to_owned() })
            }
        }
    }
}

impl Planner {
    /// The compiled code, for a pack.
    pub(crate) fn code(&self) -> Result<Vec<u8>, PlannerError> {
        self.component
            .serialize()
            .map_err(|error| self.error(PlannerErrorKind::Sandbox { reason: format!("{error:#}") }))
    }
}
