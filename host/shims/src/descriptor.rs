//! Open files as they are passed to shims: by descriptor, which exists only on Unix.

use std::fs::File;

/// An open file or a dma-buf, closed when dropped.
#[cfg(unix)]
pub use std::os::fd::OwnedFd as Descriptor;

/// Does not exist on this system.
#[cfg(not(unix))]
#[derive(Debug)]
pub enum Descriptor {}

/// Returns the number of a descriptor.
pub(crate) fn number(descriptor: &Descriptor) -> i32 {
    #[cfg(unix)]
    {
        std::os::fd::AsRawFd::as_raw_fd(descriptor)
    }
    #[cfg(not(unix))]
    match *descriptor {}
}

/// Returns the number of a file's descriptor. Returns −1 if the system has no descriptors, which
/// makes shims read bytes instead.
pub(crate) fn of_file(file: &File) -> i32 {
    #[cfg(unix)]
    {
        std::os::fd::AsRawFd::as_raw_fd(file)
    }
    #[cfg(not(unix))]
    {
        let _ = file;
        -1
    }
}
