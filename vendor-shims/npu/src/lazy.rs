//! A resource of an instance that is opened on first use and then kept.

use std::sync::{Arc, Mutex, PoisonError};

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
