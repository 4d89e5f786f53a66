//! Which files were proved to be what they say, so that gigabytes are not hashed at every start.
//!
//! A file is known by its device, number, length and the times of its last changes. That stands for
//! its bytes where three things hold, and a proof is remembered only where they do:
//!
//! * When the file is hashed nobody holds it open for writing or has it mapped so: the system says
//!   that by granting a read lease. Whoever has mapped a page already can change it without a time
//!   showing it.
//! * Whoever opens it later changes a time with the first byte, also through a mapping. The file
//!   systems that do are listed; those in memory do not, and layers do not see every writer.
//! * Its last change was some seconds ago: another one in the same tick of the clock would not
//!   show.
//!
//! Elsewhere, and for files of another user, every start hashes every byte. What is remembered is
//! an aid, never needed. It is read only where nobody but this user can have written it, and is no
//! protection from who may write both the file and this directory, or the disk behind the file
//! system.

use std::fs::{File, Metadata};
use std::io::{self, Read};
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use shardwright_files::{FileError, own};

use crate::Digest;

/// Clocks of file systems tick in at most two seconds.
const SETTLED: Duration = Duration::from_secs(3);
/// A note is shorter.
const LONGEST: u64 = 512;

/// A directory of notes, one per file that was proved.
#[derive(Clone, Debug)]
pub struct Proofs {
    directory: PathBuf,
}

/// What a file is known by.
struct Known {
    name: String,
    note: String,
    settled: bool,
}

impl Proofs {
    /// Notes in `directory`, which is made when there is something to note.
    pub fn kept_in(directory: impl Into<PathBuf>) -> Proofs {
        Proofs { directory: directory.into() }
    }

    /// Why notes in the directory are not believed, if they are not: others may write there. Every
    /// file is hashed then.
    pub fn refused(&self) -> Option<FileError> {
        own::expect_folder(&self.directory).err().filter(|error| !error.is_missing())
    }

    /// The hash of a file just opened: read from its first byte to its last, or `expected` where it
    /// was proved before and nobody can have changed it since.
    pub(crate) fn digest(&self, file: &File, expected: Digest) -> io::Result<Digest> {
        if self.hold(file, expected) {
            return Ok(expected);
        }
        // The lease first: what is stored into a page mapped earlier would not show between these
        // two looks.
        let before = has_no_writer(file).then(|| file.metadata()).transpose()?;
        let (sum, _) = Digest::of_reader(file)?;
        if let Some(before) = before.filter(|_| sum == expected) {
            self.note(&before, file, sum);
        }
        Ok(sum)
    }

    /// Whether this open file was proved to have this hash, and did not change since.
    fn hold(&self, file: &File, hash: Digest) -> bool {
        let known = file.metadata().ok().and_then(|metadata| known(&metadata, hash));
        let Some(known) = known.filter(|known| known.settled) else { return false };
        let mut note = String::new();
        let opened = own::open_file(&self.directory.join(&known.name));
        let read = opened
            .map_err(io::Error::from)
            .and_then(|(file, _)| file.take(LONGEST).read_to_string(&mut note));
        read.is_ok() && note == known.note
    }

    /// Notes that this open file has this hash. `before` is what it was before it was read. Failing
    /// to note costs time, nothing else.
    fn note(&self, before: &Metadata, file: &File, hash: Digest) {
        let after = file.metadata().ok().and_then(|metadata| known(&metadata, hash));
        let (Some(before), Some(after)) = (known(before, hash), after) else { return };
        if !before.settled || before.note != after.note {
            return;
        }
        let written = own::create_folder(&self.directory)
            .and_then(|()| own::expect_folder(&self.directory).map_err(io::Error::from))
            .and_then(|()| {
                // Under a passing name first, so that nobody reads half a note.
                let mut note = tempfile::NamedTempFile::new_in(&self.directory)?;
                io::Write::write_all(&mut note, after.note.as_bytes())?;
                note.persist(self.directory.join(&after.name)).map_err(|error| error.error)
            });
        // A directory that is not believed is told by `refused`, and one that is full by the time
        // of the next start.
        drop(written);
    }
}

#[cfg(unix)]
fn known(metadata: &Metadata, hash: Digest) -> Option<Known> {
    use std::os::unix::fs::MetadataExt;
    let changed = u64::try_from(metadata.ctime()).ok().map(Duration::from_secs)?;
    let age = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH + changed).ok()?;
    Some(Known {
        name: format!("{:x}-{:x}", metadata.dev(), metadata.ino()),
        note: format!(
            "{} {}.{:09} {}.{:09} {hash}\n",
            metadata.len(),
            metadata.mtime(),
            metadata.mtime_nsec(),
            metadata.ctime(),
            metadata.ctime_nsec(),
        ),
        settled: age > SETTLED,
    })
}

/// Files are known nowhere else.
#[cfg(not(unix))]
fn known(_: &Metadata, _: Digest) -> Option<Known> {
    None
}

/// Whether nobody can write to the file now, and whoever will later shows in its times. False where
/// that cannot be told.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn has_no_writer(file: &File) -> bool {
    use std::os::fd::AsRawFd;

    /// Of the system's `asm-generic/fcntl.h`; the `libc` crate lacks it.
    const F_SETSIG: libc::c_int = 10;
    if !tells_of_writers(file) {
        return false;
    }
    let descriptor = file.as_raw_fd();
    // SAFETY: the descriptor is open while `file` is borrowed, and these commands take an integer
    // each.
    unsafe {
        // Whoever opens the file for writing while the lease is held makes the system send a
        // signal. The usual one would end this process; this one is ignored unless a program asks
        // for it. The lease is given back at once.
        libc::fcntl(descriptor, F_SETSIG, libc::SIGURG) == 0
            && libc::fcntl(descriptor, libc::F_SETLEASE, libc::F_RDLCK) == 0
            && libc::fcntl(descriptor, libc::F_SETLEASE, libc::F_UNLCK) == 0
    }
}

/// Whether a store into a page mapped after a lease was granted changes the times of the file: seen
/// in the sources of these file systems of Linux, and tried on the first. tmpfs maps a page that
/// was read before as writable, without a word.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn tells_of_writers(file: &File) -> bool {
    /// ext2 to ext4, XFS, btrfs, F2FS.
    const SYSTEMS: [u64; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];
    rustix::fs::fstatfs(file).is_ok_and(|system| SYSTEMS.contains(&(system.f_type as u64 & 0xffff_ffff)))
}

/// Nobody is asked elsewhere.
#[cfg(not(any(target_os = "linux", target_os = "android")))]
fn has_no_writer(_: &File) -> bool {
    false
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use std::fs::{self, Permissions};
    use std::io::Write;
    use std::os::unix::fs::PermissionsExt;
    use std::path::Path;

    use memmap2::MmapMut;

    use super::*;

    const CONTENT: &[u8] = &[7; 8192];

    /// Waits until the last change of a file is taken for settled.
    fn settle() {
        std::thread::sleep(SETTLED + Duration::from_secs(2));
    }

    fn written(directory: &Path) -> PathBuf {
        let path = directory.join("file");
        fs::write(&path, CONTENT).unwrap();
        path
    }

    /// What is said of the file now, and whether that was remembered.
    fn ask(proofs: &Proofs, path: &Path) -> (Digest, bool) {
        let file = File::open(path).unwrap();
        let existing = proofs.hold(&file, Digest::of(CONTENT));
        (proofs.digest(&file, Digest::of(CONTENT)).unwrap(), existing)
    }

    /// Where temporary files lie in memory, nothing may be remembered, and the tests below hold the
    /// notes to that.
    fn remembered(path: &Path) -> bool {
        let remembered = tells_of_writers(&File::open(path).unwrap());
        if !remembered {
            println!("{}: of a file system on which no proof is remembered", path.display());
        }
        remembered
    }

    #[test]
    fn a_file_is_remembered_until_it_changes() {
        let directory = tempfile::tempdir().unwrap();
        let proofs = Proofs::kept_in(directory.path().join("proofs"));
        let path = written(directory.path());
        let good = Digest::of(CONTENT);
        assert_eq!(ask(&proofs, &path), (good, false));
        assert_eq!(ask(&proofs, &path), (good, false), "changed too lately to be known");
        settle();
        assert_eq!(ask(&proofs, &path), (good, false), "nothing was noted");
        assert_eq!(ask(&proofs, &path), (good, remembered(&path)));
        let file = File::open(&path).unwrap();
        assert!(!proofs.hold(&file, Digest::of(b"another")));

        // Written to, with its old time put back.
        let modified = file.metadata().unwrap().modified().unwrap();
        let mut file = File::options().write(true).open(&path).unwrap();
        file.write_all(b"c").unwrap();
        file.set_modified(modified).unwrap();
        drop(file);
        let (found, existing) = ask(&proofs, &path);
        assert!(found != good && !existing);
    }

    #[test]
    fn a_store_through_a_mapping_is_seen() {
        let directory = tempfile::tempdir().unwrap();
        let proofs = Proofs::kept_in(directory.path().join("proofs"));
        let path = written(directory.path());
        let good = Digest::of(CONTENT);
        let map = || {
            let file = File::options().read(true).write(true).open(&path).unwrap();
            // SAFETY: nothing here relies on the bytes of the mapping.
            unsafe { MmapMut::map_mut(&file) }.unwrap()
        };
        let mut early = map();
        early[0] = 7;
        settle();
        // A page that is changed already can change again without a time showing it.
        assert_eq!(ask(&proofs, &path), (good, false));
        assert_eq!(ask(&proofs, &path), (good, false), "noted though somebody has it mapped for writing");
        early[0] = 8;
        assert_ne!(ask(&proofs, &path).0, good);
        early[0] = 7;
        drop(early);
        settle();
        assert_eq!(ask(&proofs, &path), (good, false));
        assert_eq!(ask(&proofs, &path), (good, remembered(&path)));
        // Mapped after it was proved, and read before it is changed.
        let mut late = map();
        assert_eq!(late[4096], 7);
        late[4096] = 9;
        let (found, existing) = ask(&proofs, &path);
        assert!(found != good && !existing);
    }

    #[test]
    fn in_memory_nothing_is_remembered() {
        let Ok(directory) = tempfile::tempdir_in("/dev/shm") else {
            println!("no /dev/shm here");
            return;
        };
        let elsewhere = tempfile::tempdir().unwrap();
        let proofs = Proofs::kept_in(elsewhere.path());
        let path = written(directory.path());
        settle();
        for _ in 0..2 {
            assert_eq!(ask(&proofs, &path), (Digest::of(CONTENT), remembered(&path)));
        }
    }

    #[test]
    fn notes_that_are_not_there_or_damaged_or_of_others_prove_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let proofs = Proofs::kept_in(directory.path().join("proofs"));
        let path = written(directory.path());
        settle();
        assert!(proofs.refused().is_none(), "nothing is there yet");
        ask(&proofs, &path);
        assert_eq!(ask(&proofs, &path).1, remembered(&path));
        let metadata = fs::metadata(&path).unwrap();
        let known = known(&metadata, Digest::of(CONTENT)).unwrap();
        let name = directory.path().join("proofs").join(known.name);
        for (place, mode) in [(directory.path().join("proofs"), 0o777), (name.clone(), 0o666)] {
            if !place.exists() {
                continue;
            }
            let before = fs::metadata(&place).unwrap().permissions();
            fs::set_permissions(&place, Permissions::from_mode(mode)).unwrap();
            assert!(!ask(&proofs, &path).1, "{}", place.display());
            assert_eq!(proofs.refused().is_some(), place.is_dir());
            // A note in a directory of one's own is replaced.
            fs::set_permissions(&place, before).unwrap();
            assert_eq!(ask(&proofs, &path).1, remembered(&path));
        }
        own::create_folder(&directory.path().join("proofs")).unwrap();
        for damage in [&b""[..], b"7 1.0 1.0 00\n", &[0xff; 4096]] {
            fs::write(&name, damage).unwrap();
            assert!(!ask(&proofs, &path).1);
        }
        // Where no directory can be made nothing is noted, and nothing fails.
        let nowhere = Proofs::kept_in(path.join("proofs"));
        for _ in 0..2 {
            assert_eq!(ask(&nowhere, &path), (Digest::of(CONTENT), false));
        }
    }
}
