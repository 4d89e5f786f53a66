//! Linux calls for worker and host that the standard library lacks. All functions of this module
//! are safe.

use std::io::{self, IoSlice, IoSliceMut};
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::time::Duration;

use rustix::cmsg_space;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::{MemfdFlags, SealFlags};
use rustix::io::Errno;
use rustix::mm::{self, MapFlags, ProtFlags};
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags,
};
use rustix::process::{Pid, Resource, Rlimit, Signal};

pub(crate) use rustix::param::page_size as page;

/// Creates shared memory that is sealed against resizing, so a process that maps it is safe from
/// truncation by the other.
pub(crate) fn shared_memory(length: usize) -> io::Result<OwnedFd> {
    let fd = rustix::fs::memfd_create("shardwright", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    rustix::fs::ftruncate(&fd, length as u64)?;
    rustix::fs::fcntl_add_seals(&fd, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Ok(fd)
}

/// Returns the size of shared memory in bytes. Fails unless it is sealed against shrinking.
pub(crate) fn sealed_length(fd: BorrowedFd<'_>) -> io::Result<usize> {
    if !rustix::fs::fcntl_get_seals(fd)?.contains(SealFlags::SHRINK) {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the memory could shrink"));
    }
    usize::try_from(rustix::fs::fstat(fd)?.st_size).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
}

/// Shared memory, mapped for reading and writing, with a guard page on either side that faults on
/// access.
#[derive(Debug)]
pub(crate) struct Region {
    reserved: *mut u8,
    reserved_length: usize,
    data: *mut u8,
    length: usize,
}

// SAFETY: an owned range of addresses. Its users synchronise reads and writes, as with any shared
// memory.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `length` bytes (a multiple of the page size) of `fd`. The first byte is aligned to
    /// `alignment`, a power of two.
    pub(crate) fn map(fd: BorrowedFd<'_>, length: usize, alignment: usize) -> io::Result<Region> {
        let page = page();
        let alignment = alignment.max(page);
        if length == 0 || !length.is_multiple_of(page) || !alignment.is_power_of_two() {
            return Err(io::Error::from(io::ErrorKind::InvalidInput));
        }
        let too_large = || io::Error::from(io::ErrorKind::OutOfMemory);
        let reserved_length = length
            .checked_add(2 * page)
            .and_then(|sum| sum.checked_add(alignment - page))
            .ok_or_else(too_large)?;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a fresh range at any address, without access.
        let reserved =
            unsafe { mm::mmap_anonymous(ptr::null_mut(), reserved_length, ProtFlags::empty(), flags)? };
        let start = (reserved as usize + page).next_multiple_of(alignment);
        let mut region = Region { reserved: reserved.cast(), reserved_length, data: ptr::null_mut(), length };
        let (access, flags) = (ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED | MapFlags::FIXED);
        // SAFETY: this is within the range just reserved, which has no other user. The guards
        // before and after it stay.
        region.data =
            unsafe { mm::mmap(ptr::without_provenance_mut(start), length, access, flags, fd, 0)? }.cast();
        Ok(region)
    }

    /// Returns the address of the first byte after the leading guard.
    pub(crate) fn data(&self) -> *mut u8 {
        self.data
    }

    /// Returns the number of bytes between the guards.
    pub(crate) fn length(&self) -> usize {
        self.length
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: this is the range that `map` reserved, unmapped once.
        let _ = unsafe { mm::munmap(self.reserved.cast(), self.reserved_length) };
    }
}

/// Creates a [`poll`] entry that waits until the descriptor is readable.
pub(crate) fn readable(fd: &impl AsFd) -> PollFd<'_> {
    PollFd::new(fd, PollFlags::IN)
}

/// Returns whether there is data to read or the end of the stream.
pub(crate) fn is_readable(waiting: &PollFd<'_>) -> bool {
    !waiting.revents().difference(PollFlags::OUT).is_empty()
}

/// Waits until a descriptor is ready or the time has passed. An interrupted wait counts as timed
/// out.
pub(crate) fn poll(waiting: &mut [PollFd<'_>], time: Duration) -> io::Result<()> {
    // A time too long for the system means no timeout.
    match rustix::event::poll(waiting, Timespec::try_from(time).ok().as_ref()) {
        Err(error) if error != Errno::INTR => Err(error.into()),
        _ => Ok(()),
    }
}

fn process(pid: u32) -> io::Result<Pid> {
    let pid = i32::try_from(pid).ok().and_then(Pid::from_raw);
    pid.ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))
}

/// Opens a descriptor that becomes readable when the process has ended, even if other processes
/// still have its files open.
#[cfg(not(target_os = "android"))]
pub(crate) fn process_descriptor(pid: u32) -> io::Result<OwnedFd> {
    Ok(rustix::process::pidfd_open(process(pid)?, rustix::process::PidfdFlags::empty())?)
}

/// Opens a process descriptor on Android. Its kernels have the call, but rustix does not provide it
/// there.
#[cfg(target_os = "android")]
pub(crate) fn process_descriptor(pid: u32) -> io::Result<OwnedFd> {
    use std::os::fd::FromRawFd;
    let pid = process(pid)?.as_raw_nonzero().get();
    // SAFETY: the call's arguments are two numbers, and it returns a new descriptor or -1.
    let descriptor = unsafe { libc::syscall(libc::SYS_pidfd_open, pid, 0) };
    match i32::try_from(descriptor) {
        // SAFETY: the kernel just created it for this process.
        Ok(descriptor) if descriptor >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(descriptor) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Kills a process and everything in the group it leads, immediately. Callers pass an unreaped
/// child or themselves, so the process id cannot have been reused.
pub(crate) fn kill_group(pid: u32) {
    if let Ok(pid) = process(pid) {
        let _ = rustix::process::kill_process_group(pid, Signal::KILL);
        let _ = rustix::process::kill_process(pid, Signal::KILL);
    }
}

/// The way in which a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// Exit code, if it exited by itself.
    pub(crate) code: Option<i32>,
    /// Signal that ended it.
    pub(crate) signal: Option<i32>,
    /// Peak resident memory in bytes.
    pub(crate) peak_memory_bytes: u64,
}

/// Reaps a child that has ended or is certain to end. `rustix` does not report its resource usage.
pub(crate) fn wait_for(pid: u32) -> io::Result<Ended> {
    let mut status = 0;
    // SAFETY: plain data that wait4 fills.
    let mut usage: libc::rusage = unsafe { zeroed() };
    loop {
        // SAFETY: both pointers are valid for the call.
        if unsafe { libc::wait4(pid as libc::pid_t, &mut status, 0, &mut usage) } >= 0 {
            break;
        }
        let error = io::Error::last_os_error();
        if error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
    }
    let exited = libc::WIFEXITED(status);
    Ok(Ended {
        code: exited.then(|| libc::WEXITSTATUS(status)),
        signal: (!exited).then(|| libc::WTERMSIG(status)),
        // Linux reports kilobytes.
        peak_memory_bytes: u64::try_from(usage.ru_maxrss).unwrap_or(0).saturating_mul(1024),
    })
}

/// Limits this process to `memory_bytes` of private memory and disables core dumps. Mapped files
/// and shared memory do not count.
pub(crate) fn limit_self(memory_bytes: u64) -> io::Result<()> {
    let set = |what, value: u64| {
        // A lower existing limit cannot be raised.
        let most = Some(rustix::process::getrlimit(what).maximum.map_or(value, |most| most.min(value)));
        rustix::process::setrlimit(what, Rlimit { current: most, maximum: most })
    };
    // Not 0: if cores are piped to a collector, the limit is ignored except for 1, which disables
    // them.
    set(Resource::Core, 1)?;
    Ok(set(Resource::Data, memory_bytes)?)
}

/// Returns the memory of the machine in bytes.
pub(crate) fn memory_bytes() -> u64 {
    let system = rustix::system::sysinfo();
    system.totalram.saturating_mul(u64::from(system.mem_unit))
}

/// Moves the descriptor to a high number that programs hardly ever reach by counting up or
/// guessing.
pub(crate) fn move_high(fd: OwnedFd) -> OwnedFd {
    // If fewer descriptors are allowed, it keeps its number.
    rustix::io::fcntl_dupfd_cloexec(&fd, 700).unwrap_or(fd)
}

/// Maximum number of descriptors in one message.
const DESCRIPTOR_LIMIT: usize = 4;

/// Sends bytes, with descriptors attached to the first one. Returns the number of bytes sent.
pub(crate) fn send(
    socket: BorrowedFd<'_>,
    bytes: &[u8],
    descriptors: &[BorrowedFd<'_>],
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTOR_LIMIT))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() && !control.push(SendAncillaryMessage::ScmRights(descriptors)) {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    Ok(rustix::net::sendmsg(socket, &[IoSlice::new(bytes)], &mut control, SendFlags::NOSIGNAL)?)
}

/// Receives bytes and attached descriptors. Returns the number of bytes received, or 0 at the end.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut space = [MaybeUninit::uninit(); cmsg_space!(ScmRights(DESCRIPTOR_LIMIT))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut vector = [IoSliceMut::new(bytes)];
    let received = rustix::net::recvmsg(socket, &mut vector, &mut control, RecvFlags::CMSG_CLOEXEC)?.bytes;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(sent) = message {
            descriptors.extend(sent);
        }
    }
    Ok(received)
}

/// Returns the name of a signal.
pub(crate) fn signal_name(signal: i32) -> Option<&'static str> {
    Some(match signal {
        libc::SIGABRT => "SIGABRT",
        libc::SIGBUS => "SIGBUS",
        libc::SIGFPE => "SIGFPE",
        libc::SIGILL => "SIGILL",
        libc::SIGKILL => "SIGKILL",
        libc::SIGPIPE => "SIGPIPE",
        libc::SIGSEGV => "SIGSEGV",
        libc::SIGSYS => "SIGSYS",
        libc::SIGTERM => "SIGTERM",
        libc::SIGTRAP => "SIGTRAP",
        libc::SIGXCPU => "SIGXCPU",
        _ => return None,
    })
}
