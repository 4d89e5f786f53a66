//! What the worker and its host ask of Linux beyond the standard library. Everything here is safe to call; the
//! system calls stay in this file and in the worker's signal handler.

use std::io;
use std::mem::{MaybeUninit, zeroed};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::ptr;
use std::sync::OnceLock;
use std::time::Duration;

fn checked(result: libc::c_int) -> io::Result<libc::c_int> {
    if result < 0 { Err(io::Error::last_os_error()) } else { Ok(result) }
}

/// Bytes of a page.
pub(crate) fn page() -> usize {
    static PAGE: OnceLock<usize> = OnceLock::new();
    *PAGE.get_or_init(|| {
        // SAFETY: a plain query.
        usize::try_from(unsafe { libc::sysconf(libc::_SC_PAGESIZE) }).unwrap_or(4096)
    })
}

/// Shared memory of a size that nobody can change any more: a process that maps it is safe from the other's truncation.
pub(crate) fn shared_memory(length: usize) -> io::Result<OwnedFd> {
    let length = libc::off_t::try_from(length).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let flags = libc::MFD_CLOEXEC | libc::MFD_ALLOW_SEALING;
    // SAFETY: the name is a C string.
    let fd = checked(unsafe { libc::memfd_create(c"shardwright".as_ptr(), flags) })?;
    // SAFETY: just made, owned by nobody else.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: plain calls on an open descriptor.
    unsafe {
        checked(libc::ftruncate(fd.as_raw_fd(), length))?;
        let seals = libc::F_SEAL_SHRINK | libc::F_SEAL_GROW | libc::F_SEAL_SEAL;
        checked(libc::fcntl(fd.as_raw_fd(), libc::F_ADD_SEALS, seals))?;
    }
    Ok(fd)
}

/// Bytes of a shared memory, which must be sealed against shrinking.
pub(crate) fn sealed_length(fd: BorrowedFd<'_>) -> io::Result<usize> {
    // SAFETY: a plain query of an open descriptor.
    let seals = checked(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GET_SEALS) })?;
    if seals & libc::F_SEAL_SHRINK == 0 {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "memory that could shrink"));
    }
    // SAFETY: `stat` is plain data that fstat fills.
    let size = unsafe {
        let mut stat: libc::stat = zeroed();
        checked(libc::fstat(fd.as_raw_fd(), &mut stat))?;
        stat.st_size
    };
    usize::try_from(size).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))
}

/// Shared memory, mapped for reading and writing with a page on either side that faults when touched.
#[derive(Debug)]
pub(crate) struct Region {
    reserved: *mut u8,
    reserved_length: usize,
    data: *mut u8,
    length: usize,
}

// SAFETY: an owned range of addresses; who reads and writes through it is up to its users, as with any shared memory.
unsafe impl Send for Region {}
// SAFETY: as above.
unsafe impl Sync for Region {}

impl Region {
    /// Maps `length` bytes (a multiple of the page) of `fd`, the first byte aligned to `alignment`, a power of two.
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
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a fresh range anywhere, without access.
        let reserved = unsafe { libc::mmap(ptr::null_mut(), reserved_length, libc::PROT_NONE, flags, -1, 0) };
        if reserved == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let start = (reserved as usize + page).next_multiple_of(alignment);
        let mut region = Region { reserved: reserved.cast(), reserved_length, data: ptr::null_mut(), length };
        // SAFETY: lies within the range just reserved, which nobody else knows; the guards before and behind stay.
        let data = unsafe {
            libc::mmap(
                start as *mut libc::c_void,
                length,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED | libc::MAP_FIXED,
                fd.as_raw_fd(),
                0,
            )
        };
        if data == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        region.data = data.cast();
        Ok(region)
    }

    /// First byte that is not a guard.
    pub(crate) fn data(&self) -> *mut u8 {
        self.data
    }

    /// Bytes between the guards.
    pub(crate) fn length(&self) -> usize {
        self.length
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the range that `map` reserved, given back once.
        unsafe { libc::munmap(self.reserved.cast(), self.reserved_length) };
    }
}

/// What [`poll`] waits for on one descriptor, and what it found.
#[repr(transparent)]
pub(crate) struct Waiting(libc::pollfd);

impl Waiting {
    /// A negative descriptor is never ready.
    pub(crate) fn readable(fd: RawFd) -> Waiting {
        Waiting(libc::pollfd { fd, events: libc::POLLIN, revents: 0 })
    }

    /// Readable, or with `write` also writable.
    pub(crate) fn both(fd: RawFd, write: bool) -> Waiting {
        let events = libc::POLLIN | if write { libc::POLLOUT } else { 0 };
        Waiting(libc::pollfd { fd, events, revents: 0 })
    }

    /// Something to read, or an end to see.
    pub(crate) fn is_readable(&self) -> bool {
        self.0.revents & !libc::POLLOUT != 0
    }
}

/// Waits until one is ready or the time is over; an interrupted wait counts as over.
pub(crate) fn poll(waiting: &mut [Waiting], time: Duration) -> io::Result<()> {
    // Rounded up: a wait of less than a millisecond must not spin.
    let milliseconds = i32::try_from(time.as_nanos().div_ceil(1_000_000)).unwrap_or(i32::MAX);
    // SAFETY: `Waiting` is laid out as a `pollfd`, and the slice is as long as said.
    let result =
        unsafe { libc::poll(waiting.as_mut_ptr().cast(), waiting.len() as libc::nfds_t, milliseconds) };
    match checked(result) {
        Err(error) if error.kind() != io::ErrorKind::Interrupted => Err(error),
        _ => Ok(()),
    }
}

/// A descriptor that becomes readable when the process has ended, whoever holds what it had open.
pub(crate) fn process_descriptor(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: a system call with plain numbers.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
    let fd = RawFd::try_from(fd).map_err(|_| io::Error::from(io::ErrorKind::InvalidData))?;
    checked(fd)?;
    // SAFETY: just made, owned by nobody else.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// Ends a process and everything in the group it leads, at once.
pub(crate) fn kill_group(pid: u32) {
    // SAFETY: plain system calls; the callers hold an unreaped child, so the number is not another process's.
    unsafe {
        libc::kill(-(pid as libc::pid_t), libc::SIGKILL);
        libc::kill(pid as libc::pid_t, libc::SIGKILL);
    }
}

/// How a child ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ended {
    /// Exit code, when it exited by itself.
    pub(crate) code: Option<i32>,
    /// Signal that ended it.
    pub(crate) signal: Option<i32>,
    /// Most memory it had resident.
    pub(crate) peak_memory_bytes: u64,
}

/// Takes the end of a child, which must be certain to come.
pub(crate) fn wait_for(pid: u32) -> io::Result<Ended> {
    let mut status = 0;
    // SAFETY: plain data that wait4 fills.
    let mut usage: libc::rusage = unsafe { zeroed() };
    loop {
        // SAFETY: both pointers are valid for the call.
        match checked(unsafe { libc::wait4(pid as libc::pid_t, &mut status, 0, &mut usage) }) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
            Ok(_) => break,
        }
    }
    let exited = libc::WIFEXITED(status);
    Ok(Ended {
        code: exited.then(|| libc::WEXITSTATUS(status)),
        signal: (!exited).then(|| libc::WTERMSIG(status)),
        // In kilobytes on Linux.
        peak_memory_bytes: u64::try_from(usage.ru_maxrss).unwrap_or(0).saturating_mul(1024),
    })
}

/// Limits this process to so much private memory and no core dumps. Mapped files and shared memory do not count.
pub(crate) fn limit_self(memory_bytes: u64) -> io::Result<()> {
    let set = |what, value: u64| {
        // SAFETY: plain data that getrlimit fills.
        let mut limit: libc::rlimit = unsafe { zeroed() };
        // SAFETY: the pointer is valid for both calls.
        unsafe {
            checked(libc::getrlimit(what, &mut limit))?;
            // A limit that is lower already cannot be raised.
            limit.rlim_max = limit.rlim_max.min(value);
            limit.rlim_cur = limit.rlim_max;
            checked(libc::setrlimit(what, &limit)).map(drop)
        }
    };
    // Not 0: a core that is piped to a collector is not held to its limit, but 1 means none at all.
    set(libc::RLIMIT_CORE, 1)?;
    set(libc::RLIMIT_DATA, memory_bytes)
}

/// Memory of the machine; 0 where that is not known.
pub(crate) fn memory_bytes() -> u64 {
    // SAFETY: plain calls.
    let (pages, page) = unsafe { (libc::sysconf(libc::_SC_PHYS_PAGES), libc::sysconf(libc::_SC_PAGESIZE)) };
    u64::try_from(pages).unwrap_or(0).saturating_mul(u64::try_from(page).unwrap_or(0))
}

/// The descriptor under a number that programs hardly ever get to by counting up or by guessing.
pub(crate) fn move_high(fd: OwnedFd) -> io::Result<OwnedFd> {
    const LEAST: libc::c_int = 700;
    // SAFETY: a plain call on an open descriptor.
    let moved = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_DUPFD_CLOEXEC, LEAST) };
    match checked(moved) {
        // SAFETY: just made, owned by nobody else.
        Ok(moved) => Ok(unsafe { OwnedFd::from_raw_fd(moved) }),
        // Fewer descriptors are allowed here.
        Err(_) => Ok(fd),
    }
}

/// Puts a copy of `fd` under another number; what that was is closed.
pub(crate) fn replace(fd: BorrowedFd<'_>, number: RawFd) -> io::Result<()> {
    // SAFETY: a plain call; the callers replace standard streams only.
    checked(unsafe { libc::dup2(fd.as_raw_fd(), number) }).map(drop)
}

/// Reads and writes of this descriptor return instead of waiting.
pub(crate) fn never_block(fd: BorrowedFd<'_>) -> io::Result<()> {
    // SAFETY: plain calls on an open descriptor.
    unsafe {
        let flags = checked(libc::fcntl(fd.as_raw_fd(), libc::F_GETFL))?;
        checked(libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK)).map(drop)
    }
}

/// Most descriptors in one message.
pub(crate) const DESCRIPTOR_LIMIT: usize = 4;

/// Space for [`DESCRIPTOR_LIMIT`] descriptors, aligned as the system wants it.
#[repr(C, align(8))]
struct Control([u8; 64]);

/// Sends bytes, and descriptors with the first of them. Gives the bytes sent.
pub(crate) fn send(socket: BorrowedFd<'_>, bytes: &[u8], descriptors: &[RawFd]) -> io::Result<usize> {
    if descriptors.len() > DESCRIPTOR_LIMIT {
        return Err(io::Error::from(io::ErrorKind::InvalidInput));
    }
    let mut vector = libc::iovec { iov_base: bytes.as_ptr().cast_mut().cast(), iov_len: bytes.len() };
    let mut control = Control([0; 64]);
    // SAFETY: plain data; all pointers set below are valid for the call.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &mut vector;
    message.msg_iovlen = 1;
    if !descriptors.is_empty() {
        let length = size_of_val(descriptors) as libc::c_uint;
        message.msg_control = (&raw mut control).cast();
        // SAFETY: computes sizes only; four descriptors take 32 bytes of the 64.
        unsafe {
            message.msg_controllen = libc::CMSG_SPACE(length) as _;
            let header = libc::CMSG_FIRSTHDR(&message);
            (*header).cmsg_level = libc::SOL_SOCKET;
            (*header).cmsg_type = libc::SCM_RIGHTS;
            (*header).cmsg_len = libc::CMSG_LEN(length) as _;
            ptr::copy_nonoverlapping(
                descriptors.as_ptr().cast::<u8>(),
                libc::CMSG_DATA(header),
                length as usize,
            );
        }
    }
    // SAFETY: the message is as the call wants it.
    let sent = unsafe { libc::sendmsg(socket.as_raw_fd(), &message, libc::MSG_NOSIGNAL) };
    usize::try_from(sent).map_err(|_| io::Error::last_os_error())
}

/// Receives bytes, and descriptors that came with them. Gives the bytes received, 0 at the end.
pub(crate) fn receive(
    socket: BorrowedFd<'_>,
    bytes: &mut [u8],
    descriptors: &mut Vec<OwnedFd>,
) -> io::Result<usize> {
    let mut vector = libc::iovec { iov_base: bytes.as_mut_ptr().cast(), iov_len: bytes.len() };
    let mut control = MaybeUninit::<Control>::zeroed();
    // SAFETY: plain data; all pointers set below are valid for the call.
    let mut message: libc::msghdr = unsafe { zeroed() };
    message.msg_iov = &mut vector;
    message.msg_iovlen = 1;
    message.msg_control = control.as_mut_ptr().cast();
    message.msg_controllen = size_of::<Control>() as _;
    // SAFETY: the message is as the call wants it.
    let received = unsafe { libc::recvmsg(socket.as_raw_fd(), &mut message, libc::MSG_CMSG_CLOEXEC) };
    let received = usize::try_from(received).map_err(|_| io::Error::last_os_error())?;
    // SAFETY: the headers lie in `control`, as long as the system said; descriptors in them are ours.
    unsafe {
        let mut header = libc::CMSG_FIRSTHDR(&message);
        while !header.is_null() {
            if (*header).cmsg_level == libc::SOL_SOCKET && (*header).cmsg_type == libc::SCM_RIGHTS {
                let length = (*header).cmsg_len as usize - libc::CMSG_LEN(0) as usize;
                let data = libc::CMSG_DATA(header).cast::<RawFd>();
                for index in 0..length / size_of::<RawFd>() {
                    descriptors.push(OwnedFd::from_raw_fd(data.add(index).read_unaligned()));
                }
            }
            header = libc::CMSG_NXTHDR(&message, header);
        }
    }
    Ok(received)
}

/// Reads what is there.
pub(crate) fn read(fd: BorrowedFd<'_>, bytes: &mut [u8]) -> io::Result<usize> {
    // SAFETY: the slice is valid for the call.
    let count = unsafe { libc::read(fd.as_raw_fd(), bytes.as_mut_ptr().cast(), bytes.len()) };
    usize::try_from(count).map_err(|_| io::Error::last_os_error())
}

/// What is known of a signal by its number.
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
