//! Records a crash. Before a signal ends the process, the handler writes its number, the address
//! and whether memory could be allocated to the page shared with the host. It uses only plain
//! stores and system calls, as the process state is unreliable by then.

use std::io;
use std::mem::zeroed;
use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicUsize, Ordering};

use crate::board::{Board, BoardPage};

/// The page to write to, or null before installation.
static BOARD: AtomicPtr<Board> = AtomicPtr::new(ptr::null_mut());

/// Number of bytes to request from the system to test whether memory is left.
static PROBE: AtomicUsize = AtomicUsize::new(0);

const CRASHES: [libc::c_int; 6] =
    [libc::SIGABRT, libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGSEGV, libc::SIGSYS];

pub(super) fn install(board: BoardPage, memory_bytes: u64) -> io::Result<()> {
    // Map it permanently, as a crash can happen at any time.
    let board: &'static BoardPage = Box::leak(Box::new(board));
    BOARD.store(ptr::from_ref(board.board()).cast_mut(), Ordering::Release);
    // The size of the shim's failed allocation is unknown. An eighth of its limit is large for a
    // request and small for a remainder.
    let probe = usize::try_from(memory_bytes / 8).unwrap_or(usize::MAX).clamp(1 << 20, 1 << 30);
    PROBE.store(probe, Ordering::Release);
    for signal in CRASHES {
        // SAFETY: plain data, filled below.
        let mut action: libc::sigaction = unsafe { zeroed() };
        action.sa_sigaction = handle as *const () as libc::sighandler_t;
        // Reset on entry, so that a fault in the handler ends the process. Use a separate stack,
        // because the normal one may be exhausted.
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESETHAND | libc::SA_NODEFER;
        // SAFETY: the action is complete and the handler has the matching signature.
        if unsafe { libc::sigaction(signal, &action, ptr::null_mut()) } != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    Ok(())
}

extern "C" fn handle(signal: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    let board = BOARD.load(Ordering::Acquire);
    if !board.is_null() {
        // SAFETY: mapped permanently, and only atomics are accessed.
        let board = unsafe { &*board };
        let of_memory = matches!(signal, libc::SIGSEGV | libc::SIGBUS);
        if of_memory && !info.is_null() {
            // SAFETY: the system passes it, and such signals have an address.
            board.address.store(unsafe { (*info).si_addr() } as u64, Ordering::Relaxed);
            board.has_address.store(1, Ordering::Relaxed);
        }
        let probe = PROBE.load(Ordering::Relaxed);
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a fresh range without users, and a plain system call.
        let found =
            unsafe { libc::mmap(ptr::null_mut(), probe, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        board.exhausted.store(u32::from(found == libc::MAP_FAILED), Ordering::Relaxed);
        board.signal.store(signal.unsigned_abs(), Ordering::Release);
    }
    // SAFETY: the handler was reset when it was entered, so this ends the process.
    unsafe { libc::raise(signal) };
}
