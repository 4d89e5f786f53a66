//! Handles: numbers in the form of pointers, and the tables that find their objects.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{PoisonError, RwLock};

use shardwright_bindings_core::{Error, ErrorKind, Result};

/// Count of all handles so far, of all types.
static COUNT: AtomicUsize = AtomicUsize::new(0);

/// Returns the bits that all handles of this copy of the library have, and the mask of the count.
///
/// On 64-bit machines they are not an address, so reading through a handle usually faults. A part
/// of the address of the library tells handles of two copies in one process apart.
fn base() -> (usize, usize) {
    if usize::BITS < 64 {
        return (0, usize::MAX);
    }
    let place = ((&raw const COUNT).addr() as u64 >> 12) & 0xff_ffff;
    // The count has 36 bits.
    (((0x5_u64 << 60) | (place << 36)) as usize, ((1_u64 << 36) - 1) as usize)
}

/// The open objects of one type. `H` is the type of its handle.
pub(crate) struct Table<T, H> {
    noun: &'static str,
    open: RwLock<BTreeMap<usize, T>>,
    handle: PhantomData<fn() -> H>,
}

impl<T: Clone, H> Table<T, H> {
    /// Creates an empty table of objects with this noun.
    pub(crate) const fn new(noun: &'static str) -> Self {
        Table { noun, open: RwLock::new(BTreeMap::new()), handle: PhantomData }
    }

    /// Adds an object and returns its handle.
    pub(crate) fn add(&self, object: T) -> *mut H {
        let (base, mask) = base();
        let number = base | (COUNT.fetch_add(1, Ordering::Relaxed).wrapping_add(1) & mask);
        self.open.write().unwrap_or_else(PoisonError::into_inner).insert(number, object);
        std::ptr::without_provenance_mut(number)
    }

    /// Returns the object of a handle.
    ///
    /// # Errors
    ///
    /// [`ErrorKind::Argument`] for NULL and for a pointer that is not a handle,
    /// [`ErrorKind::Closed`] for a handle that was closed or that belongs to another type.
    pub(crate) fn get(&self, handle: *const H) -> Result<T> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.get(&handle.addr()).cloned().ok_or_else(|| self.absent(handle))
    }

    /// Removes the object of a handle and returns it.
    ///
    /// # Errors
    ///
    /// The errors of [`get`](Self::get).
    pub(crate) fn remove(&self, handle: *const H) -> Result<T> {
        let removed = self.open.write().unwrap_or_else(PoisonError::into_inner).remove(&handle.addr());
        removed.ok_or_else(|| self.absent(handle))
    }

    #[cold]
    fn absent(&self, handle: *const H) -> Error {
        let (noun, number, (base, mask)) = (self.noun, handle.addr(), base());
        if handle.is_null() {
            return Error::argument(format!("the {noun} is NULL"), format!("pass the handle of a {noun}"));
        }
        let last = COUNT.load(Ordering::Relaxed) & mask;
        if number & !mask != base || !(1..=last).contains(&(number & mask)) {
            let what = format!("the {noun} is not a handle of this library");
            return Error::argument(what, format!("pass a handle that this library returned for a {noun}"));
        }
        let what = format!("the {noun} is closed, or the handle is not of a {noun}");
        Error::new(ErrorKind::Closed, what, format!("open another {noun}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    enum Cup {}
    enum Plate {}

    #[test]
    fn handles_are_found_until_they_are_closed_and_never_reused() {
        static CUPS: Table<u32, Cup> = Table::new("cup");
        static PLATES: Table<u32, Plate> = Table::new("plate");
        let (cup, plate) = (CUPS.add(7), PLATES.add(8));
        assert_eq!((CUPS.get(cup).unwrap(), PLATES.get(plate).unwrap()), (7, 8));
        let kind = |handle: *const Cup| CUPS.get(handle).unwrap_err().kind;
        assert_eq!(kind(plate.cast()), ErrorKind::Closed);
        assert_eq!(kind(std::ptr::null()), ErrorKind::Argument);
        assert_eq!(kind((&raw const CUPS).cast()), ErrorKind::Argument);
        assert_eq!(CUPS.remove(cup).unwrap(), 7);
        assert_eq!(CUPS.remove(cup).unwrap_err().kind, ErrorKind::Closed);
        let other = CUPS.add(9);
        assert_ne!(other, cup);
        assert_eq!((kind(cup), CUPS.get(other).unwrap()), (ErrorKind::Closed, 9));
        let beyond = other.wrapping_byte_add(1 << 20);
        assert_eq!(kind(beyond), ErrorKind::Argument);
    }
}
