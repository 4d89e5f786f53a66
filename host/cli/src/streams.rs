//! Standard output that is missing. Rust's runtime opens `/dev/null` in its place before `main`,
//! and ignores a descriptor that cannot be written to, so that the output would be lost silently.

use shardwright::ErrorKind;

use crate::outcome::Failure;

/// Refuses to start if standard output is closed, or open for reading only.
pub fn expect_output() -> Result<(), Failure> {
    let problem = match (at_start::was_closed(), is_only_read()) {
        (true, _) => "closed",
        (false, true) => "open for reading only",
        (false, false) => return Ok(()),
    };
    Err(Failure::Refused {
        kind: ErrorKind::Resource,
        message: format!("standard output is {problem}, so the output would be lost"),
        help: "redirect it to a file, or to `/dev/null` to discard it".to_owned(),
    })
}

#[cfg(unix)]
fn is_only_read() -> bool {
    use rustix::fs::OFlags;
    rustix::fs::fcntl_getfl(std::io::stdout()).is_ok_and(|flags| flags & OFlags::RWMODE == OFlags::RDONLY)
}

/// This system reports no such flag.
#[cfg(not(unix))]
fn is_only_read() -> bool {
    false
}

/// A look at the descriptor before the runtime replaces it.
#[cfg(any(target_os = "linux", target_os = "android"))]
mod at_start {
    use std::fs::symlink_metadata;
    use std::sync::atomic::{AtomicBool, Ordering};

    static CLOSED: AtomicBool = AtomicBool::new(false);

    pub fn was_closed() -> bool {
        CLOSED.load(Ordering::Relaxed)
    }

    extern "C" fn look() {
        let exists = |path: &str| symlink_metadata(path).is_ok();
        // Without the first folder, no descriptor is listed.
        CLOSED.store(exists("/proc/self/fd") && !exists("/proc/self/fd/1"), Ordering::Relaxed);
    }

    // SAFETY: the loader calls the functions of this section, which have this type, once before
    // `main`. The function calls only the system and needs no part of the runtime.
    #[used]
    #[unsafe(link_section = ".init_array")]
    static LOOK: extern "C" fn() = look;
}

/// On other systems, a closed descriptor looks like `/dev/null`.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod at_start {
    pub fn was_closed() -> bool {
        false
    }
}
