//! Memory behind descriptors: imported memory is aligned for the hardware, or refused for that
//! reason.

use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use serde_json::json;
use shardwright_shim_abi::{Buffer, Error, ErrorClass};
use shardwright_shim_neuron::SharedBuffer;
use shardwright_shim_neuron::library::{Library, LibraryChoice};

use crate::support::{Simulator, simulator};

const LENGTH: u64 = 3 * 4096;

fn memfd() -> OwnedFd {
    // SAFETY: a name that ends with a zero byte. The descriptor belongs to this test.
    let fd = unsafe { libc::memfd_create(c"shardwright".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0, "{}", std::io::Error::last_os_error());
    // SAFETY: just created, without another owner.
    let fd = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: a descriptor of this test's own.
    assert_eq!(unsafe { libc::ftruncate(fd.as_raw_fd(), LENGTH as i64) }, 0);
    fd
}

#[repr(C)]
struct HeapAllocation {
    length: u64,
    fd: u32,
    fd_flags: u32,
    heap_flags: u64,
}

/// Allocates memory of the system's dma-buf heap, if this machine has a heap that may be used.
fn dma_heap() -> Option<OwnedFd> {
    const ALLOCATE: u64 = 0xc018_4800;
    let heap = std::fs::File::options().read(true).write(true).open("/dev/dma_heap/system").ok()?;
    let flags = (libc::O_RDWR | libc::O_CLOEXEC) as u32;
    let mut asked = HeapAllocation { length: LENGTH, fd: 0, fd_flags: flags, heap_flags: 0 };
    // SAFETY: an open heap, and the struct that its only request expects.
    let answered = unsafe { libc::ioctl(heap.as_raw_fd(), ALLOCATE as _, &mut asked) };
    // SAFETY: the kernel created a descriptor for this process.
    (answered == 0).then(|| unsafe { OwnedFd::from_raw_fd(asked.fd as i32) })
}

#[test]
fn imported_memory_is_aligned_or_refused_by_that_name() {
    let _held = Simulator::with(json!({}));
    let choice = LibraryChoice { option: Some(simulator()), ..LibraryChoice::default() };
    let library = Library::open(&choice).expect("the simulator");
    let import = |fd: i32, offset, length| SharedBuffer::import(&library, fd, offset, length);
    let mut kinds = vec![("a memfd", memfd())];
    match dma_heap() {
        Some(heap) => kinds.push(("a dma-buf heap", heap)),
        None => eprintln!("SKIPPED: memory of a dma-buf heap, which this machine has none of"),
    }
    for (kind, fd) in &kinds {
        for (offset, length) in [(0, LENGTH), (64, 100), (4096, 4096), (4160, 64)] {
            let buffer = import(fd.as_raw_fd(), offset, length)
                .unwrap_or_else(|error| panic!("{kind} from {offset}: {error}"));
            assert_eq!(buffer.length() as u64, length);
            assert!((buffer.pointer() as usize).is_multiple_of(64), "{kind} from {offset}");
            // SAFETY: the buffer has these bytes, and no one else uses it.
            unsafe { buffer.pointer().write(7) };
        }
        for offset in [1, 32, 63, 65] {
            let error: Error = import(fd.as_raw_fd(), offset, 64).err().expect("refused");
            assert_eq!(error.class, ErrorClass::InvalidArgument);
            let text = error.message;
            assert!(text.contains("multiple of 64") && text.contains(&offset.to_string()), "{kind}: {text}");
        }
    }
    let fd = kinds[0].1.as_raw_fd();
    for (offset, length, part) in
        [(0, 0, "invalid"), (0, LENGTH + 1, "expected"), (u64::MAX - 63, 64, "invalid")]
    {
        let error = import(fd, offset, length).err().expect("refused");
        assert!(error.message.contains(part), "{}", error.message);
    }
    assert!(import(-1, 0, 64).is_err());
}
