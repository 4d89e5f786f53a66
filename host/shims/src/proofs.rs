//! Which files were proved to be what they say, so that gigabytes are not hashed at every start.
//!
//! A file is known by its device, number, length and the times of its last changes; any write to it changes one of them. A file that
//! changed within the last seconds is not remembered: another change in the same tick of the clock would not show. What is remembered is
//! an aid, never needed, and no protection from somebody who may write both the file and this directory.

use std::fs::{File, Metadata};
use std::io::Read;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use crate::container::hexadecimal;

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

    /// Whether this open file was proved to have this hash, and did not change since.
    pub(crate) fn hold(&self, file: &File, hash: &[u8; 32]) -> bool {
        let known = file.metadata().ok().and_then(|metadata| known(&metadata, hash));
        let Some(known) = known.filter(|known| known.settled) else { return false };
        let mut note = String::new();
        let read = File::open(self.directory.join(&known.name))
            .and_then(|file| file.take(LONGEST).read_to_string(&mut note));
        read.is_ok() && note == known.note
    }

    /// Notes that this open file has this hash. `before` is what it was before it was read. Failing to note costs time, nothing else.
    pub(crate) fn note(&self, before: &Metadata, file: &File, hash: &[u8; 32]) {
        let after = file.metadata().ok().and_then(|metadata| known(&metadata, hash));
        let (Some(before), Some(after)) = (known(before, hash), after) else { return };
        if !before.settled || before.note != after.note {
            return;
        }
        let written = std::fs::create_dir_all(&self.directory).and_then(|()| {
            // Under a passing name first, so that nobody reads half a note.
            let mut note = tempfile::NamedTempFile::new_in(&self.directory)?;
            std::io::Write::write_all(&mut note, after.note.as_bytes())?;
            note.persist(self.directory.join(&after.name)).map_err(|error| error.error)
        });
        if let Err(error) = written {
            tracing::debug!(directory = %self.directory.display(), %error, "a proof was not noted");
        }
    }
}

#[cfg(unix)]
fn known(metadata: &Metadata, hash: &[u8; 32]) -> Option<Known> {
    use std::os::unix::fs::MetadataExt;
    let changed = u64::try_from(metadata.ctime()).ok().map(Duration::from_secs)?;
    let age = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH + changed).ok()?;
    Some(Known {
        name: format!("{:x}-{:x}", metadata.dev(), metadata.ino()),
        note: format!(
            "{} {}.{:09} {}.{:09} {}\n",
            metadata.len(),
            metadata.mtime(),
            metadata.mtime_nsec(),
            metadata.ctime(),
            metadata.ctime_nsec(),
            hexadecimal(hash)
        ),
        settled: age > SETTLED,
    })
}

/// Files are known nowhere else.
#[cfg(not(unix))]
fn known(_: &Metadata, _: &[u8; 32]) -> Option<Known> {
    None
}

#[cfg(all(test, unix))]
mod tests {
    use std::io::{Seek, SeekFrom, Write};

    use super::*;

    /// A file whose last change the notes take for settled.
    fn settled(directory: &std::path::Path) -> File {
        let path = directory.join("file");
        std::fs::write(&path, b"content").unwrap();
        std::thread::sleep(SETTLED + Duration::from_secs(2));
        File::options().read(true).write(true).open(path).unwrap()
    }

    #[test]
    fn a_file_is_remembered_until_it_changes() {
        let directory = tempfile::tempdir().unwrap();
        let proofs = Proofs::kept_in(directory.path().join("proofs"));
        let mut file = settled(directory.path());
        let hash = [7; 32];
        assert!(!proofs.hold(&file, &hash), "nothing was noted");
        proofs.note(&file.metadata().unwrap(), &file, &hash);
        assert!(proofs.hold(&file, &hash));
        assert!(!proofs.hold(&file, &[8; 32]), "another hash");
        let modified = file.metadata().unwrap().modified().unwrap();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.write_all(b"c").unwrap();
        file.set_modified(modified).unwrap();
        assert!(!proofs.hold(&file, &hash), "written to, with its old time put back");
        proofs.note(&file.metadata().unwrap(), &file, &hash);
        assert!(!proofs.hold(&file, &hash), "changed too lately to be known");
    }

    #[test]
    fn notes_that_are_not_there_or_damaged_prove_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let proofs = Proofs::kept_in(directory.path().join("proofs"));
        let file = settled(directory.path());
        let metadata = file.metadata().unwrap();
        proofs.note(&metadata, &file, &[1; 32]);
        let name = directory.path().join("proofs").join(known(&metadata, &[1; 32]).unwrap().name);
        for damage in [&b""[..], b"7 1.0 1.0 00\n", &[0xff; 4096]] {
            std::fs::write(&name, damage).unwrap();
            assert!(!proofs.hold(&file, &[1; 32]));
        }
        // Where no directory can be made nothing is noted, and nothing fails.
        let nowhere = Proofs::kept_in(directory.path().join("file").join("proofs"));
        nowhere.note(&metadata, &file, &[1; 32]);
        assert!(!nowhere.hold(&file, &[1; 32]));
    }
}
