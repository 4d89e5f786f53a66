//! Handles: numbers that look like pointers but are never dereferenced. A freed or foreign handle
//! is therefore reported instead of read.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shardwright_neuron_adapter::result;

use crate::call::{Refused, refuse};

static NEXT: AtomicUsize = AtomicUsize::new(0x1000);

/// All live objects of one kind.
pub struct Registry<T> {
    what: &'static str,
    objects: Mutex<Option<HashMap<usize, Shared<T>>>>,
}

/// An object, and a token of which every dependent keeps a copy.
pub struct Shared<T> {
    object: Arc<Mutex<T>>,
    token: Arc<()>,
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Shared<T> {
        Shared { object: self.object.clone(), token: self.token.clone() }
    }
}

/// A token that a dependent of an object keeps.
#[derive(Debug, Clone)]
pub struct Dependence(#[expect(dead_code, reason = "kept for its count")] Arc<()>);

impl<T> Shared<T> {
    /// Locks the object for one user at a time.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.object.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns a token that prevents the object from being freed.
    pub fn dependence(&self) -> Dependence {
        Dependence(self.token.clone())
    }
}

impl<T> Registry<T> {
    /// Creates a registry. Messages call its objects `what`.
    pub const fn new(what: &'static str) -> Registry<T> {
        Registry { what, objects: Mutex::new(None) }
    }

    fn objects(&self) -> MutexGuard<'_, Option<HashMap<usize, Shared<T>>>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores an object and returns its handle.
    pub fn add<H>(&self, object: T) -> *mut H {
        let handle = NEXT.fetch_add(64, Ordering::Relaxed);
        let shared = Shared { object: Arc::new(Mutex::new(object)), token: Arc::new(()) };
        self.objects().get_or_insert_default().insert(handle, shared);
        handle as *mut H
    }

    /// Returns the object of a handle.
    pub fn get<H>(&self, handle: *const H) -> Result<Shared<T>, Refused> {
        if handle.is_null() {
            return refuse(result::UNEXPECTED_NULL, format!("the {} is null", self.what));
        }
        match self.objects().as_ref().and_then(|objects| objects.get(&(handle as usize))) {
            Some(shared) => Ok(shared.clone()),
            None => refuse(result::BAD_STATE, format!("the {} was freed or is invalid", self.what)),
        }
    }

    /// Frees an object unless something depends on it. Null is ignored.
    pub fn free<H>(&self, handle: *mut H) -> Result<(), Refused> {
        if handle.is_null() {
            return Ok(());
        }
        let shared = self.get(handle)?;
        // The registry has one token, this function one, and every dependent one.
        let dependent = Arc::strong_count(&shared.token).saturating_sub(2);
        if dependent > 0 {
            return refuse(
                result::BAD_STATE,
                format!("the {} was freed while {dependent} others depend on it, so it is kept", self.what),
            );
        }
        if let Some(objects) = self.objects().as_mut() {
            objects.remove(&(handle as usize));
        }
        Ok(())
    }
}
