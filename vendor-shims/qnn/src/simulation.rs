//! Workarounds that the vendor's library needs without a Hexagon processor.
//!
//! On x86-64 the library runs a graph on threads of its own that spin while they wait for each
//! other. With fewer free processors than threads they spin through each other's time slices, which
//! turns seconds into minutes. On a single processor they yield at once. So loading and running are
//! [`Confined`] to one processor, the same for the whole process. Threads that the library starts
//! meanwhile inherit it. On another processor they would spin against the confined ones.
//!
//! When it is opened, the library also prints a remark to standard output, which belongs to the
//! program. [`Quiet`] redirects it.

/// Confines the calling thread to one processor until dropped.
pub(crate) struct Confined {
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    before: Option<libc::cpu_set_t>,
}

/// Redirects standard output to standard error until dropped.
pub(crate) struct Quiet {
    #[cfg(all(target_os = "linux", target_arch = "x86_64"))]
    output: Option<std::os::fd::OwnedFd>,
}

#[cfg(not(all(target_os = "linux", target_arch = "x86_64")))]
mod elsewhere {
    use super::{Confined, Quiet};

    impl Confined {
        /// Does nothing, because a real processor runs the graph.
        pub(crate) fn new() -> Confined {
            Confined {}
        }
    }

    impl Quiet {
        /// Does nothing, because the library prints no remark on this platform.
        pub(crate) fn new() -> Quiet {
            Quiet {}
        }
    }
}

#[cfg(all(target_os = "linux", target_arch = "x86_64"))]
mod simulated {
    use super::{Confined, Quiet};
    use std::os::fd::{AsFd, AsRawFd};
    use std::sync::OnceLock;

    /// The processor that was free for the first thread.
    static HERE: OnceLock<usize> = OnceLock::new();

    impl Confined {
        /// Confines the calling thread until dropped. Has no effect if the system does not permit
        /// it.
        pub(crate) fn new() -> Confined {
            // SAFETY: a set of bits, for which all zeros is empty. The sets outlive the calls,
            // which concern only the calling thread.
            let before = unsafe {
                let mut before: libc::cpu_set_t = std::mem::zeroed();
                let mut one: libc::cpu_set_t = std::mem::zeroed();
                let here = *HERE.get_or_init(|| usize::try_from(libc::sched_getcpu()).unwrap_or(usize::MAX));
                let known = libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut before) == 0;
                if known && here < libc::CPU_SETSIZE as usize {
                    libc::CPU_SET(here, &mut one);
                    (libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &one) == 0).then_some(before)
                } else {
                    None
                }
            };
            Confined { before }
        }
    }

    impl Drop for Confined {
        fn drop(&mut self) {
            if let Some(before) = &self.before {
                // SAFETY: the set outlives the call, which changes only the calling thread.
                unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), before) };
            }
        }
    }

    impl Quiet {
        /// Redirects standard output until dropped. Output of other threads is redirected too, so
        /// use it only around calls that are made once.
        pub(crate) fn new() -> Quiet {
            let output = std::io::stdout().as_fd().try_clone_to_owned().ok();
            if output.is_some() {
                // The buffers of C's streams contain the program's own output, which is flushed to
                // its original target. SAFETY: both descriptors belong to the process. Flushing all
                // streams is always allowed.
                unsafe {
                    libc::fflush(std::ptr::null_mut());
                    libc::dup2(std::io::stderr().as_raw_fd(), std::io::stdout().as_raw_fd());
                }
            }
            Quiet { output }
        }
    }

    impl Drop for Quiet {
        fn drop(&mut self) {
            if let Some(output) = &self.output {
                // SAFETY: the library writes through C's streams, which are flushed before the
                // saved descriptor is restored.
                unsafe {
                    libc::fflush(std::ptr::null_mut());
                    libc::dup2(output.as_raw_fd(), std::io::stdout().as_raw_fd());
                }
            }
        }
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        fn allowed() -> usize {
            // SAFETY: as in `Confined::new`.
            unsafe {
                let mut set: libc::cpu_set_t = std::mem::zeroed();
                assert_eq!(libc::sched_getaffinity(0, size_of::<libc::cpu_set_t>(), &mut set), 0);
                libc::CPU_COUNT(&set) as usize
            }
        }

        #[test]
        fn a_run_has_one_processor_and_the_thread_gets_its_own_back() {
            let before = allowed();
            let confined = Confined::new();
            assert_eq!(allowed(), 1);
            assert_eq!(std::thread::spawn(allowed).join().unwrap(), 1);
            drop(confined);
            assert_eq!(allowed(), before);
        }
    }
}
