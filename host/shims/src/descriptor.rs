//! Open files as shims are shown them: by descriptor, which systems other than Unix do not have.

use std::fs::File;

/// An open file or a dma-buf, closed when dropped.
#[cfg(unix)]
pub use std::os::fd::OwnedFd as Descriptor;

/// There are none here.
#[cfg(not(unix))]
#[derive(Debug)]
pub enum Descriptor {}

/// The number of a descriptor.
pub(crate) fn number(descriptor: &Descriptor) -> i32 {
    #[cfg(unix)]
    {
        std::os::fd::AsRawFd::as_raw_fd(descriptor)
    }
    #[cfg(not(unix))]
    match *descriptor {}
}

/// The number of a file's descriptor; −1 where files have none, by which shims read bytes instead.
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
