//! Memory that the tasks of a job write together.

use std::marker::PhantomData;

/// An output that several tasks write, each to its own elements.
pub struct SharedOutput<'a, T> {
    pointer: *mut T,
    length: usize,
    lifetime: PhantomData<&'a mut [T]>,
}

impl<T> Clone for SharedOutput<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for SharedOutput<'_, T> {}

// SAFETY: the holder promises at every access that no other task touches the same elements.
unsafe impl<T: Send> Send for SharedOutput<'_, T> {}
// SAFETY: as above.
unsafe impl<T: Send> Sync for SharedOutput<'_, T> {}

impl<'a, T> SharedOutput<'a, T> {
    /// Shares a slice for the duration of its borrow.
    pub fn new(slice: &'a mut [T]) -> Self {
        SharedOutput { pointer: slice.as_mut_ptr(), length: slice.len(), lifetime: PhantomData }
    }

    /// Returns the address of the first element.
    pub fn pointer(&self) -> *mut T {
        self.pointer
    }

    /// Returns the address of a part that other tasks may also read.
    ///
    /// # Panics
    /// When the part is not within the output.
    pub fn address(&self, start: usize, length: usize) -> *mut T {
        assert!(start.checked_add(length).is_some_and(|end| end <= self.length), "part outside the output");
        // SAFETY: within the slice by the assertion.
        unsafe { self.pointer.add(start) }
    }

    /// Returns a part of the output.
    ///
    /// # Safety
    /// No other task may access `start..start + length` while the result is in use.
    ///
    /// # Panics
    /// When the part is not within the output.
    #[allow(clippy::mut_from_ref, reason = "disjointness is the caller's promise")]
    pub unsafe fn part(&self, start: usize, length: usize) -> &'a mut [T] {
        assert!(start.checked_add(length).is_some_and(|end| end <= self.length), "part outside the output");
        // SAFETY: within the slice by the assertion, and exclusive as guaranteed by the caller.
        unsafe { std::slice::from_raw_parts_mut(self.pointer.add(start), length) }
    }
}
