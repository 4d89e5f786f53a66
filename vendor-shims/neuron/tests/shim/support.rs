//! The simulator, configured for one test at a time.

use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use serde_json::Value;
use shardwright_shim_neuron::shim_entry;
use shardwright_shim_testing::Host;

/// Device that most tests use.
pub const DEVICE: &str = "mt6989.simulated";

/// Returns the simulator's file: from the variable, or next to this program.
pub fn simulator() -> PathBuf {
    if let Some(path) = std::env::var_os("SHARDWRIGHT_NEURON_LIB").filter(|path| !path.is_empty()) {
        return PathBuf::from(path);
    }
    let program = std::env::current_exe().expect("a program");
    let folders = program.ancestors().skip(1).take(2);
    let found = folders.map(|folder| folder.join("libneuron_adapter.so")).find(|file| file.is_file());
    found.expect("the simulator: `cargo build -p shardwright-neuron-simulator` builds it")
}

/// The simulator under one configuration. The whole process has one configuration file, so only one
/// test at a time can use it.
pub struct Simulator {
    _one: MutexGuard<'static, ()>,
    file: PathBuf,
}

impl Simulator {
    /// Applies the default configuration with these members set.
    pub fn with(members: Value) -> Simulator {
        static ONE: Mutex<()> = Mutex::new(());
        static FOLDER: OnceLock<tempfile::TempDir> = OnceLock::new();
        let one = ONE.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = FOLDER.get_or_init(|| tempfile::tempdir().expect("a folder"));
        let simulator = Simulator { _one: one, file: folder.path().join("simulator.json") };
        simulator.set(members);
        // SAFETY: tests that read the variable own the lock above.
        unsafe { std::env::set_var("SHARDWRIGHT_NEURON_SIMULATOR", &simulator.file) };
        simulator
    }

    /// Changes the configuration from now on.
    pub fn set(&self, members: Value) {
        // The file is renamed into place, so that readers always see it whole. Its length differs
        // each time, because file times are coarse.
        static TIMES: AtomicUsize = AtomicUsize::new(0);
        let length = 4096 + TIMES.fetch_add(1, Ordering::Relaxed);
        let new = self.file.with_extension("new");
        std::fs::write(&new, format!("{:length$}", members.to_string())).expect("written");
        std::fs::rename(&new, &self.file).expect("in its place");
    }

    /// Opens an instance of the shim with the simulator.
    pub fn host(&self, device: &str, lowering: &str) -> Host {
        let library = simulator().display().to_string();
        let options = [("library", library.as_str()), ("lowering", lowering)];
        let host = Host::open(shim_entry(), device, &options).expect("an instance");
        for name in ["mt6989", "mt6991", "mt6993"] {
            crate::chips::make_known(&host, name);
        }
        host
    }
}
