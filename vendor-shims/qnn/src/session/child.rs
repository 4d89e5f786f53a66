//! Runs work in a forked child of this process. Work that hangs or crashes on its input can thus be
//! ended without affecting this process.
//!
//! A call into a library cannot be cancelled, and a thread cannot be killed. A child can be killed,
//! and all its resources are freed with it. It has a copy of this process's memory and one thread.
//! It may call a library that no thread is inside at the fork, and the allocator, which is usable
//! after a fork. It ends with the thread that waits for it.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::time::{Duration, Instant};

/// Maximum bytes of a child's output. Further output is not read.
const MOST_BYTES: usize = 64 << 20;

/// Limits of a child.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Time from the fork to the end of its output.
    pub(crate) patience: Duration,
    /// Address space in addition to that at the fork, bytes.
    pub(crate) memory: Option<u64>,
}

/// The end of a child.
#[derive(Debug)]
pub(crate) enum Ended {
    Answer(Vec<u8>),
    /// It ended by a signal or without an answer.
    Died(Option<libc::c_int>),
    /// It ran past its time limit and was killed.
    Late,
}

/// A child that is reaped on drop, and killed first if necessary.
struct Child {
    pid: libc::pid_t,
    is_over: bool,
}

impl Child {
    /// Kills it if it is still running, and returns its status.
    fn end(&mut self) -> libc::c_int {
        let mut status = 0;
        let interrupted = || io::Error::last_os_error().kind() == io::ErrorKind::Interrupted;
        // SAFETY: the process is a child of this one that was not waited for.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            while libc::waitpid(self.pid, &mut status, 0) < 0 && interrupted() {}
        }
        self.is_over = true;
        status
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        if !self.is_over {
            self.end();
        }
    }
}

/// Runs `work` in a child and returns its answer. `locks` keeps other threads out of the libraries
/// that the child will call. It is dropped on both sides after the fork.
///
/// # Errors
///
/// Returns an error if no child can be created.
pub(crate) fn in_child(
    bounds: Bounds,
    locks: impl Sized,
    work: impl FnOnce() -> Vec<u8>,
) -> io::Result<Ended> {
    let mut ends = [0 as RawFd; 2];
    // SAFETY: room for two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: both were just created and have no other owner.
    let (reader, writer) = unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
    // SAFETY: a plain call.
    let parent = unsafe { libc::getpid() };
    // SAFETY: the child calls only functions that no other thread is inside, as the caller ensures,
    // and the allocator, which is usable after a fork. It leaves with `_exit`.
    let pid = unsafe { libc::fork() };
    drop(locks);
    match pid {
        0 => {
            drop(reader);
            bound_self(bounds, parent);
            // After a panic the answer is empty.
            let answer = std::panic::catch_unwind(std::panic::AssertUnwindSafe(work)).unwrap_or_default();
            let mut rest = answer.as_slice();
            while !rest.is_empty() {
                // SAFETY: the descriptor is open, the bytes are there.
                let written = unsafe { libc::write(writer.as_raw_fd(), rest.as_ptr().cast(), rest.len()) };
                match usize::try_from(written) {
                    Ok(written) if written > 0 => rest = &rest[written..],
                    _ => break,
                }
            }
            // SAFETY: ends the child without running the parent's exit handlers.
            unsafe { libc::_exit(0) }
        }
        pid if pid < 0 => Err(io::Error::last_os_error()),
        pid => {
            drop(writer);
            let mut child = Child { pid, is_over: false };
            let mut answer = Vec::new();
            if !read(&reader, &mut answer, Instant::now() + bounds.patience)? {
                return Ok(Ended::Late);
            }
            let status = child.end();
            let killed = libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status));
            Ok(match answer.is_empty() || answer.len() > MOST_BYTES {
                // The pipe closed without an answer. If the child had not ended yet, we killed it.
                true => Ended::Died(killed.filter(|signal| *signal != libc::SIGKILL)),
                false => Ended::Answer(answer),
            })
        }
    }
}

/// Runs `work` in a child like [`in_child`], and in a second one if the first does not finish.
///
/// A child that starts threads may wait forever, whatever it computes. If a lock of the C library
/// is locked at the fork, for example because another thread is being started, it stays locked in
/// the child. No lock of ours prevents that. If the second fork has the same problem, the work does
/// not finish.
///
/// # Errors
///
/// Returns an error if no child can be created.
pub(crate) fn in_child_again<L>(
    bounds: Bounds,
    locks: impl Fn() -> L,
    work: impl Fn() -> Vec<u8>,
) -> io::Result<Ended> {
    match in_child(bounds, locks(), &work)? {
        Ended::Late => in_child(bounds, locks(), work),
        ended => Ok(ended),
    }
}

/// Reads the pipe to its end or beyond the limit. Returns whether that happened in time.
fn read(reader: &OwnedFd, answer: &mut Vec<u8>, end: Instant) -> io::Result<bool> {
    let mut chunk = [0u8; 64 << 10];
    while answer.len() <= MOST_BYTES {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(false);
        }
        let mut poll = libc::pollfd { fd: reader.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let milliseconds = libc::c_int::try_from(left.as_millis().max(1)).unwrap_or(libc::c_int::MAX);
        // SAFETY: one descriptor, open.
        if unsafe { libc::poll(&mut poll, 1, milliseconds) } <= 0 {
            continue;
        }
        // SAFETY: the descriptor is open, the space is there.
        let read = unsafe { libc::read(reader.as_raw_fd(), chunk.as_mut_ptr().cast(), chunk.len()) };
        match usize::try_from(read) {
            Ok(0) => break,
            Ok(read) => answer.extend_from_slice(&chunk[..read]),
            Err(_) => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err(error);
                }
            }
        }
    }
    Ok(true)
}

/// Applies the limits, disables core files, output on the parent's standard error and the parent's
/// signal handlers. Makes the child end with the thread that waits for it.
fn bound_self(bounds: Bounds, parent: libc::pid_t) {
    // SAFETY: plain calls, a path ended by a null, and descriptors of this process only.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL as libc::c_ulong);
        if libc::getppid() != parent {
            libc::_exit(1);
        }
        for fatal in [
            libc::SIGSEGV,
            libc::SIGBUS,
            libc::SIGFPE,
            libc::SIGILL,
            libc::SIGABRT,
            libc::SIGTRAP,
            libc::SIGSYS,
        ] {
            libc::signal(fatal, libc::SIG_DFL);
        }
        let nowhere = libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY);
        if nowhere >= 0 {
            libc::dup2(nowhere, 2);
        }
    }
    let limit = |what, most: u64| {
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: a struct that outlives the call. Only this process is bound.
        unsafe { libc::setrlimit(what, &limit) };
    };
    limit(libc::RLIMIT_CORE, 0);
    let Some(memory) = bounds.memory else { return };
    let pages: u64 = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split(' ').next()?.parse().ok())
        .unwrap_or(0);
    // SAFETY: queries a number.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    if pages > 0 {
        limit(libc::RLIMIT_AS, pages.saturating_mul(page).saturating_add(memory));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const AMPLE: Bounds = Bounds { patience: Duration::from_secs(120), memory: None };

    /// Runs work in a child. This process has threads that may own the lock of standard output, so
    /// children of tests must not print.
    fn ended(bounds: Bounds, work: impl FnOnce() -> Vec<u8>) -> Ended {
        in_child(bounds, (), work).expect("a child")
    }

    #[test]
    fn an_answer_comes_back_whole() {
        let long = vec![7u8; 1 << 20];
        assert!(matches!(ended(AMPLE, || long.clone()), Ended::Answer(answer) if answer == long));
    }

    #[test]
    fn a_child_past_its_time_limit_is_killed_and_reaped() {
        let before = Instant::now();
        let bounds = Bounds { patience: Duration::from_millis(200), memory: None };
        let forever = || loop {
            std::hint::spin_loop();
        };
        assert!(matches!(ended(bounds, forever), Ended::Late));
        assert!(before.elapsed() >= bounds.patience);
        // SAFETY: a plain call. This thread's children are waited for by number, so none may be
        // left that would answer.
        let left = unsafe { libc::waitpid(0, std::ptr::null_mut(), libc::WNOHANG | libc::__WNOTHREAD) };
        assert!(left < 0, "a child was left behind");
    }

    #[test]
    fn work_that_only_hangs_once_is_done_by_a_second_child() {
        let folder = tempfile::tempdir().unwrap();
        let forked = folder.path().join("forked");
        let bounds = Bounds { patience: Duration::from_secs(2), memory: None };
        let hangs_once = || {
            while std::fs::create_dir(&forked).is_ok() {
                std::thread::sleep(Duration::from_secs(60));
            }
            vec![1]
        };
        let ended = in_child_again(bounds, || (), hangs_once).expect("two children");
        assert!(matches!(&ended, Ended::Answer(answer) if *answer == [1]), "{ended:?}");
        let hangs = || loop {
            std::thread::sleep(Duration::from_secs(60));
        };
        let bounds = Bounds { patience: Duration::from_millis(100), memory: None };
        assert!(matches!(in_child_again(bounds, || (), hangs).expect("two children"), Ended::Late));
    }

    #[test]
    fn crashes_are_reported() {
        // SAFETY: ends the child.
        let died = ended(AMPLE, || unsafe {
            libc::raise(libc::SIGFPE);
            Vec::new()
        });
        assert!(matches!(died, Ended::Died(Some(libc::SIGFPE))), "{died:?}");
        assert!(matches!(ended(AMPLE, Vec::new), Ended::Died(None)));
    }
}
