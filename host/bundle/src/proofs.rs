//! Records verified files, so that gigabytes are not hashed at every start.
//!
//! A file is identified by its device, inode number, length and the times of its last changes. A
//! part of a packed bundle is also identified by its place in that file. These identify the bytes
//! if three conditions are met, and a proof is recorded only then:
//!
//! * When the file is hashed, no process has it open for writing or mapped writable. The system
//!   confirms that by granting a read lease. A process that has already mapped a page can change it
//!   without changing a time.
//! * Every later writer changes a time with its first byte, even through a mapping. The code lists
//!   the file systems with that property. In-memory file systems lack it, and layered ones do not
//!   see every writer.
//! * The last change was some seconds ago, since another one in the same clock tick would not be
//!   visible.
//!
//! In all other cases, and for files of another user, every start hashes every byte. The records
//! are optional. They are read only if no other user can have written them. They do not protect
//! against anyone who can write both the file and this directory, or the disk below the file
//! system.

use std::fs::{File, Metadata};
use std::io::Read;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
#[cfg(unix)]
use std::time::{Duration, SystemTime};

use shardwright_files::{Section, private_files};
use shardwright_vocabulary::Error;

use crate::Digest;
use crate::digest::Stop;
use crate::hash_statistics::Forgotten;

/// Age of a change that is safe to record. File system clocks tick at least every two seconds.
#[cfg(unix)]
const SETTLED: Duration = Duration::from_secs(3);
/// A length above that of any note.
const LONGEST: u64 = 512;

/// Content of the note for a question that was answered with yes.
const PASSED: &str = "passed\n";

/// Returns the name of the note for a question.
fn passed(question: Digest) -> String {
    format!("passed-{question}")
}

/// A directory of notes, one per verified file and per question.
#[derive(Clone, Debug)]
pub struct Proofs {
    directory: PathBuf,
}

/// Identity of a file.
struct Known {
    name: String,
    note: String,
    settled: bool,
}

/// The way a file's bytes were verified.
pub(crate) enum Proof {
    /// The file was verified before and cannot have changed since.
    Held,
    /// Every byte was hashed. If the next opening must do so again, this includes the reason.
    Hashed(Digest, Option<Forgotten>),
}

impl Proofs {
    /// Creates proofs with notes in `directory`, which is created with the first note.
    pub fn kept_in(directory: impl Into<PathBuf>) -> Proofs {
        Proofs { directory: directory.into() }
    }

    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the reason why notes in the directory are not trusted, if others may write there.
    /// Then every file is hashed.
    pub fn refused(&self) -> Option<Error> {
        private_files::expect_folder(&self.directory).err().filter(|error| !error.is_not_found())
    }

    /// Returns whether a question was answered with yes before. The question's hash must cover
    /// everything that the answer depends on.
    pub fn has_passed(&self, question: Digest) -> bool {
        let mut note = String::new();
        let opened = private_files::open_file(&self.directory.join(passed(question)));
        let read = opened.is_ok_and(|(file, _)| file.take(LONGEST).read_to_string(&mut note).is_ok());
        read && note == PASSED
    }

    /// Records that a question was answered with yes. A failure to record only costs time.
    pub fn pass(&self, question: Digest) {
        let _ = private_files::write(&self.directory.join(passed(question)), PASSED.as_bytes());
    }

    /// Verifies the bytes of a newly opened section. Hashes all of them, unless the section was
    /// verified as `expected` before and no program can have changed it since. `blocks` is called
    /// with the number of bytes hashed so far. It may stop the hashing, and then no proof is
    /// recorded.
    pub(crate) fn digest(
        &self,
        section: &Section,
        expected: Digest,
        blocks: &mut dyn FnMut(u64) -> ControlFlow<()>,
    ) -> Result<Proof, Stop> {
        if self.hold(section, expected) {
            return Ok(Proof::Held);
        }
        // Check the lease first: a write to a page mapped earlier would not be visible between the
        // two checks.
        let file = section.file();
        let before = has_no_writer(file).then(|| file.metadata()).transpose().map_err(Stop::Io)?;
        let (sum, _) = Digest::of_blocks(section.reader(), blocks)?;
        let forgotten = match before.filter(|_| sum == expected) {
            Some(before) => self.note(&before, section, sum).err(),
            None => Some(Forgotten::Unknown),
        };
        Ok(Proof::Hashed(sum, forgotten))
    }

    /// Returns whether this open file is recorded with this hash and has not changed since.
    fn hold(&self, section: &Section, hash: Digest) -> bool {
        let metadata = section.file().metadata().ok();
        let known = metadata.and_then(|metadata| known(&metadata, section, hash));
        let Some(known) = known.filter(|known| known.settled) else { return false };
        let mut note = String::new();
        let opened = private_files::open_file(&self.directory.join(&known.name));
        let read = opened.is_ok_and(|(file, _)| file.take(LONGEST).read_to_string(&mut note).is_ok());
        read && note == known.note
    }

    /// Records that this section has this hash. `before` is the metadata of its file before it was
    /// read. A failure to record only costs time.
    fn note(&self, before: &Metadata, section: &Section, hash: Digest) -> Result<(), Forgotten> {
        let after = section.file().metadata().ok().and_then(|metadata| known(&metadata, section, hash));
        let (Some(before), Some(after)) = (known(before, section, hash), after) else {
            return Err(Forgotten::Unknown);
        };
        if !before.settled || before.note != after.note {
            return Err(Forgotten::Lately);
        }
        private_files::write(&self.directory.join(&after.name), after.note.as_bytes()).map_err(|error| {
            Forgotten::Unwritable { directory: self.directory.clone(), reason: error.to_string() }
        })
    }
}

#[cfg(unix)]
fn known(metadata: &Metadata, section: &Section, hash: Digest) -> Option<Known> {
    use std::os::unix::fs::MetadataExt;
    let changed = u64::try_from(metadata.ctime()).ok().map(Duration::from_secs)?;
    let age = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH + changed).ok()?;
    let mut name = format!("{:x}-{:x}", metadata.dev(), metadata.ino());
    if section.length() != metadata.len() {
        name.push_str(&format!("-{:x}", section.offset()));
    }
    Some(Known {
        name,
        note: format!(
            "{} {} {} {}.{:09} {}.{:09} {hash}\n",
            metadata.len(),
            section.offset(),
            section.length(),
            metadata.mtime(),
            metadata.mtime_nsec(),
            metadata.ctime(),
            metadata.ctime_nsec(),
        ),
        settled: age > SETTLED,
    })
}

/// Returns `None`, as other systems have no file identity.
#[cfg(not(unix))]
fn known(_: &Metadata, _: &Section, _: Digest) -> Option<Known> {
    None
}

/// Returns whether no process can write to the file now, and every later write changes its times.
/// Returns false if that is unknown.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn has_no_writer(file: &File) -> bool {
    use std::os::fd::AsRawFd;

    /// From the system's `asm-generic/fcntl.h`. The `libc` crate lacks it.
    const F_SETSIG: libc::c_int = 10;
    if !shows_writers(file) {
        return false;
    }
    let descriptor = file.as_raw_fd();
    // SAFETY: the descriptor is open while `file` is borrowed, and each of these commands has an
    // integer argument.
    unsafe {
        // If the file is opened for writing during the lease, the system sends a signal. The
        // default signal would end this process. This signal is ignored unless a program handles
        // it. The lease is released immediately.
        libc::fcntl(descriptor, F_SETSIG, libc::SIGURG) == 0
            && libc::fcntl(descriptor, libc::F_SETLEASE, libc::F_RDLCK) == 0
            && libc::fcntl(descriptor, libc::F_SETLEASE, libc::F_UNLCK) == 0
    }
}

/// Returns whether a write to a page mapped after a lease was granted changes the times of the
/// file. This is verified in the Linux sources of these file systems, and tested on the first.
/// tmpfs silently maps a page that was read before as writable.
#[cfg(any(target_os = "linux", target_os = "android"))]
fn shows_writers(file: &File) -> bool {
    /// ext2 to ext4, XFS, btrfs, F2FS.
    const SYSTEMS: [u64; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];
    rustix::fs::fstatfs(file).is_ok_and(|system| SYSTEMS.contains(&(system.f_type as u64 & 0xffff_ffff)))
}

/// Returns false, as leases are not supported on other systems.
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

    /// Waits until the last change of a file is old enough to record.
    fn settle() {
        std::thread::sleep(SETTLED + Duration::from_secs(2));
    }

    fn written(directory: &Path) -> PathBuf {
        let path = directory.join("file");
        fs::write(&path, CONTENT).unwrap();
        path
    }

    fn opened(path: &Path) -> Section {
        Section::whole(path, File::open(path).unwrap()).unwrap()
    }

    /// Returns the current digest of the file, and whether it was recorded.
    fn ask(proofs: &Proofs, path: &Path) -> (Digest, bool) {
        let file = opened(path);
        let existing = proofs.hold(&file, Digest::of(CONTENT));
        let sum = match proofs.digest(&file, Digest::of(CONTENT), &mut |_| ControlFlow::Continue(())).unwrap()
        {
            Proof::Held => Digest::of(CONTENT),
            Proof::Hashed(sum, _) => sum,
        };
        (sum, existing)
    }

    /// Returns whether proofs are recorded for this path. In-memory file systems must record none,
    /// which the tests below check.
    fn remembered(path: &Path) -> bool {
        let remembered = shows_writers(&File::open(path).unwrap());
        if !remembered {
            println!("{}: this file system does not support proofs", path.display());
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
        let file = opened(&path);
        assert!(!proofs.hold(&file, Digest::of(b"another")));

        // The file is written, and its old time restored.
        let modified = file.file().metadata().unwrap().modified().unwrap();
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
            // SAFETY: no code here relies on the bytes of the mapping.
            unsafe { MmapMut::map_mut(&file) }.unwrap()
        };
        let mut early = map();
        early[0] = 7;
        settle();
        // A page that was already changed can change again without changing a time.
        assert_eq!(ask(&proofs, &path), (good, false));
        assert_eq!(ask(&proofs, &path), (good, false), "recorded although it is mapped for writing");
        early[0] = 8;
        assert_ne!(ask(&proofs, &path).0, good);
        early[0] = 7;
        drop(early);
        settle();
        assert_eq!(ask(&proofs, &path), (good, false));
        assert_eq!(ask(&proofs, &path), (good, remembered(&path)));
        // Mapped after verification, and read before it is changed.
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
        let known = known(&metadata, &opened(&path), Digest::of(CONTENT)).unwrap();
        let name = directory.path().join("proofs").join(known.name);
        for (place, mode) in [(directory.path().join("proofs"), 0o777), (name.clone(), 0o666)] {
            if !place.exists() {
                continue;
            }
            let before = fs::metadata(&place).unwrap().permissions();
            fs::set_permissions(&place, Permissions::from_mode(mode)).unwrap();
            assert!(!ask(&proofs, &path).1, "{}", place.display());
            assert_eq!(proofs.refused().is_some(), place.is_dir());
            // A note in the user's own directory is replaced.
            fs::set_permissions(&place, before).unwrap();
            assert_eq!(ask(&proofs, &path).1, remembered(&path));
        }
        private_files::create_folder(&directory.path().join("proofs")).unwrap();
        for damage in [&b""[..], b"7 1.0 1.0 00\n", &[0xff; 4096]] {
            fs::write(&name, damage).unwrap();
            assert!(!ask(&proofs, &path).1);
        }
        // If no directory can be created, proofs are not recorded, but everything else works.
        let nowhere = Proofs::kept_in(path.join("proofs"));
        let proof = nowhere.digest(&opened(&path), Digest::of(CONTENT), &mut |_| ControlFlow::Continue(()));
        let Ok(Proof::Hashed(_, Some(forgotten))) = proof else { panic!("remembered nowhere") };
        let is_of_the_place = matches!(forgotten, Forgotten::Unwritable { .. });
        assert_eq!(is_of_the_place, remembered(&path), "{forgotten}");
        for _ in 0..2 {
            assert_eq!(ask(&nowhere, &path), (Digest::of(CONTENT), false));
        }
    }
}
