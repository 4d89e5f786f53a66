//! State that an instance of a shim keeps between calls: the known chips, and resources that are
//! opened on first use.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Suffix of the name of a simulated device.
pub const SIMULATED: &str = ".simulated";

/// A device that was found by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named<S> {
    pub soc: Arc<S>,
    /// Whether the device is simulated.
    pub is_simulated: bool,
}

/// The chips that the host passed, by the names of their profiles.
#[derive(Debug)]
pub struct Chips<S>(Mutex<Vec<(String, Arc<S>)>>);

impl<S> Default for Chips<S> {
    fn default() -> Self {
        Chips(Mutex::default())
    }
}

impl<S> Chips<S> {
    fn lock(&self) -> MutexGuard<'_, Vec<(String, Arc<S>)>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a chip. Replaces a chip with the same name.
    pub fn add(&self, name: &str, soc: S) {
        let mut chips = self.lock();
        chips.retain(|(known, _)| known != name);
        chips.push((name.to_owned(), Arc::new(soc)));
    }

    /// Returns all chips.
    pub fn all(&self) -> Vec<Arc<S>> {
        self.lock().iter().map(|(_, soc)| soc.clone()).collect()
    }

    /// Returns the chip with this name.
    pub fn get(&self, name: &str) -> Option<Arc<S>> {
        self.lock().iter().find(|(known, _)| known == name).map(|(_, soc)| soc.clone())
    }

    /// Returns the device with this name, which may end in [`SIMULATED`].
    pub fn named(&self, name: &str) -> Option<Named<S>> {
        let (soc, is_simulated) = match name.strip_suffix(SIMULATED) {
            Some(soc) => (soc, true),
            None => (name, false),
        };
        Some(Named { soc: self.get(soc)?, is_simulated })
    }
}

/// A resource that is opened on first use and then kept.
#[derive(Debug)]
pub struct Lazy<T>(Mutex<Option<Arc<T>>>);

impl<T> Default for Lazy<T> {
    fn default() -> Self {
        Lazy(Mutex::default())
    }
}

impl<T> Lazy<T> {
    /// Returns the open resource. Opens it first if necessary.
    ///
    /// # Errors
    ///
    /// The errors of `open`.
    pub fn get<E>(&self, open: impl FnOnce() -> Result<Arc<T>, E>) -> Result<Arc<T>, E> {
        let mut existing = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(open) = &*existing {
            return Ok(open.clone());
        }
        let opened = open()?;
        *existing = Some(opened.clone());
        Ok(opened)
    }
}
