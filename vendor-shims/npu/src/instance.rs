//! State that an instance of a shim keeps between calls: the known chips, and resources opened on
//! first use.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Ends the name of a device that is simulated.
pub const SIMULATED: &str = ".simulated";

/// A device by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named<S> {
    /// Its chip.
    pub soc: Arc<S>,
    /// Whether that is simulated.
    pub is_simulated: bool,
}

/// Chips that were made known, by the names of their profiles.
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

    /// Makes a chip known, in place of another of its name.
    pub fn add(&self, name: &str, soc: S) {
        let mut chips = self.lock();
        chips.retain(|(known, _)| known != name);
        chips.push((name.to_owned(), Arc::new(soc)));
    }

    /// All of them.
    pub fn all(&self) -> Vec<Arc<S>> {
        self.lock().iter().map(|(_, soc)| soc.clone()).collect()
    }

    /// The chip of that name.
    pub fn get(&self, name: &str) -> Option<Arc<S>> {
        self.lock().iter().find(|(known, _)| known == name).map(|(_, soc)| soc.clone())
    }

    /// The device of that name.
    pub fn named(&self, name: &str) -> Option<Named<S>> {
        let (soc, is_simulated) = match name.strip_suffix(SIMULATED) {
            Some(soc) => (soc, true),
            None => (name, false),
        };
        Some(Named { soc: self.get(soc)?, is_simulated })
    }
}

/// A resource opened on first use, and then kept.
#[derive(Debug)]
pub struct Lazy<T>(Mutex<Option<Arc<T>>>);

impl<T> Default for Lazy<T> {
    fn default() -> Self {
        Lazy(Mutex::default())
    }
}

impl<T> Lazy<T> {
    /// The open one, otherwise a new one.
    ///
    /// # Errors
    ///
    /// Those of `open`.
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
