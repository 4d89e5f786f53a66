//! Describing bytes that nobody vouches for.
//!
//! The system library follows the offsets it finds in a binary's head without looking where they lead: a flipped bit there is a fault that would end the
//! process. So strange bytes are described in a forked child, which writes the description into a pipe, within a time and with little memory more than it
//! was born with; what happens to it is an error of the bytes.

use super::BinaryDescription;
use super::describe::{describe_trusted, invalid};
use crate::failure::{QnnError, Result};
use crate::library::System;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// A description takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(20);
/// More than any description needs: its counts are capped.
const MEMORY: u64 = 2 << 30;
/// A description longer than this is none.
const MOST_BYTES: usize = 64 << 20;

/// No other thread of ours is inside the system library while a child is born, so the child finds no lock of it held.
static ALONE: Mutex<()> = Mutex::new(());

/// Holds other descriptions off.
pub(super) fn alone() -> std::sync::MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What the child says.
#[derive(serde::Serialize, serde::Deserialize)]
enum Answer {
    Description(BinaryDescription),
    Invalid(String),
}

/// A child that is waited for, killed first if need be.
struct Child {
    pid: libc::pid_t,
    is_over: bool,
}

impl Child {
    /// Ends it if it still runs, and tells how it ended.
    fn end(&mut self) -> libc::c_int {
        let mut status = 0;
        let interrupted = || std::io::Error::last_os_error().kind() == std::io::ErrorKind::Interrupted;
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

/// Describes strange bytes in a child.
pub(super) fn describe(system: &System, bytes: &[u8]) -> Result<BinaryDescription> {
    let not_guarded = |what: &str| QnnError::NotOffered {
        what: "a child to read strange bytes in",
        reason: format!("{what}: {}", std::io::Error::last_os_error()),
    };
    let mut ends = [0 as RawFd; 2];
    // SAFETY: room for two descriptors.
    if unsafe { libc::pipe(ends.as_mut_ptr()) } != 0 {
        return Err(not_guarded("pipe"));
    }
    // SAFETY: both were just made and belong to nobody else.
    let (reader, writer) = unsafe { (OwnedFd::from_raw_fd(ends[0]), OwnedFd::from_raw_fd(ends[1])) };
    let guard = alone();
    // SAFETY: the child calls the system library, which no other thread is in, and the allocator, which is usable after a fork; it leaves with `_exit`.
    let pid = unsafe { libc::fork() };
    match pid {
        0 => {
            drop(reader);
            bound_self();
            let answer = match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                describe_trusted(system, bytes)
            })) {
                Ok(Ok(description)) => Answer::Description(description),
                Ok(Err(QnnError::BinaryInvalid { reason })) => Answer::Invalid(reason),
                Ok(Err(error)) => Answer::Invalid(error.to_string()),
                Err(_) => Answer::Invalid("reading it failed".to_owned()),
            };
            let text = serde_json::to_vec(&answer).unwrap_or_default();
            let mut rest = text.as_slice();
            while !rest.is_empty() {
                // SAFETY: the descriptor is open, the bytes are there.
                let written = unsafe { libc::write(writer.as_raw_fd(), rest.as_ptr().cast(), rest.len()) };
                match usize::try_from(written) {
                    Ok(written) if written > 0 => rest = &rest[written..],
                    _ => break,
                }
            }
            // SAFETY: ends the child without running what the parent registered for its end.
            unsafe { libc::_exit(0) }
        }
        pid if pid < 0 => Err(not_guarded("fork")),
        pid => {
            drop(guard);
            drop(writer);
            let mut child = Child { pid, is_over: false };
            let text = read_until(reader, Instant::now() + PATIENCE)?;
            let status = child.end();
            match serde_json::from_slice(&text) {
                Ok(Answer::Description(description)) => Ok(description),
                Ok(Answer::Invalid(reason)) => Err(invalid(reason)),
                Err(_) if libc::WIFSIGNALED(status) && libc::WTERMSIG(status) != libc::SIGKILL => {
                    Err(invalid(format!(
                        "the system library dies of it with signal {}: its head is damaged",
                        libc::WTERMSIG(status)
                    )))
                }
                Err(_) => Err(invalid("the system library gives no sensible description of it")),
            }
        }
    }
}

/// Little more memory than there is, no core file, and no last words on the parent's standard error.
fn bound_self() {
    // SAFETY: a path ended by a null; descriptors of this process alone.
    unsafe {
        let nowhere = libc::open(c"/dev/null".as_ptr(), libc::O_WRONLY);
        if nowhere >= 0 {
            libc::dup2(nowhere, 2);
        }
    }
    let pages: u64 = std::fs::read_to_string("/proc/self/statm")
        .ok()
        .and_then(|text| text.split(' ').next()?.parse().ok())
        .unwrap_or(0);
    // SAFETY: asks for a number.
    let page = u64::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096);
    let limits =
        [(libc::RLIMIT_CORE, 0), (libc::RLIMIT_AS, pages.saturating_mul(page).saturating_add(MEMORY))];
    for (what, most) in limits {
        if what == libc::RLIMIT_AS && pages == 0 {
            continue;
        }
        let limit = libc::rlimit { rlim_cur: most, rlim_max: most };
        // SAFETY: a struct that outlives the call; only this process is bound.
        unsafe { libc::setrlimit(what, &limit) };
    }
}

/// What comes out of the pipe until its other end is closed.
fn read_until(reader: OwnedFd, end: Instant) -> Result<Vec<u8>> {
    let mut file = std::fs::File::from(reader);
    let mut text = Vec::new();
    let mut chunk = vec![0u8; 64 << 10];
    loop {
        let left = end.saturating_duration_since(Instant::now());
        let mut poll = libc::pollfd { fd: file.as_raw_fd(), events: libc::POLLIN, revents: 0 };
        let milliseconds = libc::c_int::try_from(left.as_millis()).unwrap_or(libc::c_int::MAX);
        // SAFETY: one descriptor, open.
        let ready = unsafe { libc::poll(&mut poll, 1, milliseconds) };
        if ready == 0 || left.is_zero() {
            return Err(invalid("the system library does not come to an end with it"));
        }
        match file.read(&mut chunk) {
            Ok(0) => return Ok(text),
            Ok(read) => text.extend_from_slice(&chunk[..read]),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(invalid(format!("its description cannot be read: {error}"))),
        }
        if text.len() > MOST_BYTES {
            return Err(invalid(format!("its description is longer than {MOST_BYTES} bytes")));
        }
    }
}
