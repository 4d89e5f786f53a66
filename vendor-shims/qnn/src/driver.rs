//! The vendor's library as used by one instance. It is opened on first use, and each device is
//! created once.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use shardwright_shim_abi::raw::{SW_LOG_DEBUG, SW_LOG_ERROR, SW_LOG_INFO, SW_LOG_WARNING};

use crate::artefact::Versions;
use crate::estimate::Cost;
use crate::failure::Result;
use crate::library::{Library, LibraryChoice};
use crate::log::{self, Level};
use crate::probe::Trial;
use crate::recognise::Made;
use crate::session::guarded::alone;
use crate::session::{Backend, Device, Preparation};
use crate::soc::CodeFor;

/// Options that control how the library is opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Settings {
    /// The option `library`.
    pub library: Option<PathBuf>,
    /// The option `log-level`.
    pub log_level: Option<Level>,
}

/// An opened library with its devices.
#[derive(Debug)]
pub struct Driver {
    backend: Arc<Backend>,
    versions: Versions,
    devices: Mutex<HashMap<CodeFor, Arc<Device>>>,
    /// Chips and architectures for which the library generated code, by request.
    pub(crate) made: Mutex<HashMap<CodeFor, Made>>,
    /// Trial compilations of flag probes, by all their inputs.
    pub(crate) trials: Mutex<HashMap<String, Trial>>,
    /// Estimates, by all their inputs.
    pub(crate) costs: Mutex<HashMap<String, Option<Cost>>>,
}

impl Driver {
    /// Finds and opens the library, and starts its backend.
    ///
    /// # Errors
    ///
    /// Returns an error if no library was found or the library is faulty.
    pub fn open(settings: &Settings) -> Result<Arc<Driver>> {
        // A fork copies the loader's lock in its current state, so forks must wait while a library
        // is opened.
        let opening = (Preparation::on_all_processors(), alone());
        // One sink serves all instances: the library's log callback cannot identify an instance.
        log::forward(Some(Arc::new(|line: &log::Line| {
            let level = match line.level {
                Level::Error => SW_LOG_ERROR,
                Level::Warning => SW_LOG_WARNING,
                Level::Info => SW_LOG_INFO,
                Level::Verbose | Level::Debug => SW_LOG_DEBUG,
            };
            shardwright_shim_abi::log(level, &line.text);
        })));
        let library = Library::open(&LibraryChoice::new(settings.library.clone()))?;
        drop(opening);
        let api = library.api();
        let numbers = |version: crate::ffi::Version| [version.major, version.minor, version.patch];
        let versions = Versions {
            build: library.build_id().to_owned(),
            core: numbers(api.core),
            backend: numbers(api.backend),
        };
        let backend = match settings.log_level {
            Some(level) => Backend::with_level(library, level)?,
            None => Backend::new(library)?,
        };
        Ok(Arc::new(Driver {
            backend,
            versions,
            devices: Mutex::default(),
            made: Mutex::default(),
            trials: Mutex::default(),
            costs: Mutex::default(),
        }))
    }

    pub fn backend(&self) -> &Arc<Backend> {
        &self.backend
    }

    pub fn versions(&self) -> &Versions {
        &self.versions
    }

    /// Returns the device that code is generated for, and creates it on first use.
    ///
    /// # Errors
    ///
    /// Returns the library's error if the device cannot be created.
    pub fn device(&self, code: CodeFor) -> Result<Arc<Device>> {
        let mut devices = self.devices.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(device) = devices.get(&code) {
            return Ok(device.clone());
        }
        let device = Device::new(self.backend.clone(), code)?;
        devices.insert(code, device.clone());
        Ok(device)
    }

    /// Drops a device. The next use creates it again.
    pub fn forget(&self, code: CodeFor) {
        self.devices.lock().unwrap_or_else(PoisonError::into_inner).remove(&code);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc::{RecvTimeoutError, channel};
    use std::time::Duration;

    /// The test keeps the locks of a fork locked meanwhile.
    #[test]
    fn a_library_is_not_opened_during_a_fork() {
        let open = || Driver::open(&Settings { library: Some("/no/such/folder".into()), log_level: None });
        let (sender, receiver) = channel();
        let forking = (Preparation::begin(), alone());
        std::thread::scope(|scope| {
            scope.spawn(|| sender.send(open().is_err()));
            assert_eq!(receiver.recv_timeout(Duration::from_millis(300)), Err(RecvTimeoutError::Timeout));
            drop(forking);
            assert_eq!(receiver.recv_timeout(Duration::from_secs(60)), Ok(true));
        });
    }
}
