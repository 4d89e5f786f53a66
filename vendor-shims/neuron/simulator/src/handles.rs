//! Handles: numbers that look like pointers and are never dereferenced, so that a freed or foreign
//! one is reported and not read.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use shardwright_neuron_adapter::result;

use crate::call::{Refused, refuse};

static NEXT: AtomicUsize = AtomicUsize::new(0x1000);

/// All living objects of a kind.
pub struct Registry<T> {
    what: &'static str,
    objects: Mutex<Option<HashMap<usize, Shared<T>>>>,
}

/// An object, and a token that everything that depends on it holds as well.
pub struct Shared<T> {
    object: Arc<Mutex<T>>,
    token: Arc<()>,
}

impl<T> Clone for Shared<T> {
    fn clone(&self) -> Shared<T> {
        Shared { object: self.object.clone(), token: self.token.clone() }
    }
}

/// Kept by dependents of an object.
#[derive(Debug, Clone)]
pub struct Dependence(#[expect(dead_code, reason = "kept for its count")] Arc<()>);

impl<T> Shared<T> {
    /// The object, for one at a time.
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.object.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Something that keeps the object from being freed.
    pub fn dependence(&self) -> Dependence {
        Dependence(self.token.clone())
    }
}

impl<T> Registry<T> {
    /// A registry of objects that messages call `what`.
    pub const fn new(what: &'static str) -> Registry<T> {
        Registry { what, objects: Mutex::new(None) }
    }

    fn objects(&self) -> MutexGuard<'_, Option<HashMap<usize, Shared<T>>>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A handle for an object.
    pub fn add<H>(&self, object: T) -> *mut H {
        let handle = NEXT.fetch_add(64, Ordering::Relaxed);
        let shared = Shared { object: Arc::new(Mutex::new(object)), token: Arc::new(()) };
        self.objects().get_or_insert_default().insert(handle, shared);
        handle as *mut H
    }

    /// The object of a handle.
    pub fn get<H>(&self, handle: *const H) -> Result<Shared<T>, Refused> {
        if handle.is_null() {
            return refuse(result::UNEXPECTED_NULL, format!("the {} is null", self.what));
        }
        match self.objects().as_ref().and_then(|objects| objects.get(&(handle as usize))) {
            Some(shared) => Ok(shared.clone()),
            None => refuse(result::BAD_STATE, format!("the {} was freed or never was one", self.what)),
        }
    }

    /// Frees an object unless something depends on it. Null is ignored.
    pub fn free<H>(&self, handle: *mut H) -> Result<(), Refused> {
        if handle.is_null() {
            return Ok(());
        }
        let shared = self.get(handle)?;
        // One in the registry, one here, one for each that depends on it.
        let dependent = Arc::strong_count(&shared.token).saturating_sub(2);
        if dependent > 0 {
            return refuse(
                result::BAD_STATE,
                format!("the {} is freed while {dependent} depend on it; it stays", self.what),
            );
        }
        if let Some(objects) = self.objects().as_mut() {
            objects.remove(&(handle as usize));
        }
        Ok(())
    }
}
