use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Read as _, Seek as _, SeekFrom, Write};
use std::path::{Path, PathBuf};

/// Number of bytes in which the beginning of a file is compared at once.
const PIECE_BYTES: usize = 1 << 16;

/// Writes a file that consists of a head and of parts of known lengths, continuing where an
/// interrupted call with the same head stopped. Until it is complete, its name ends with
/// `.partial`. `content` writes the part with that index.
pub(crate) fn write(
    path: &Path,
    head: &[u8],
    lengths: &[u64],
    mut content: impl FnMut(usize, &mut dyn Write) -> io::Result<()>,
) -> io::Result<()> {
    let whole = head.len() as u64 + lengths.iter().sum::<u64>();
    if length(path)? == Some(whole) && begins(&mut File::open(path)?, head)? {
        return Ok(());
    }
    let partial = partial(path);
    let mut file = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&partial)?;
    let length = file.metadata()?.len();
    let mut done = 0;
    let mut end = head.len() as u64;
    if begins(&mut file, head)? {
        while done < lengths.len() && end + lengths[done] <= length {
            end += lengths[done];
            done += 1;
        }
    } else {
        file.rewind()?;
        file.write_all(head)?;
    }
    // A partially written part is discarded.
    file.set_len(end)?;
    file.seek(SeekFrom::Start(end))?;
    let mut file = BufWriter::with_capacity(1 << 20, file);
    for (index, &length) in lengths.iter().enumerate().skip(done) {
        content(index, &mut file)?;
        end += length;
        assert_eq!(file.stream_position()?, end, "part {index} of {}", path.display());
    }
    file.into_inner().map_err(io::IntoInnerError::into_error)?.sync_all()?;
    std::fs::rename(&partial, path)
}

fn partial(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".partial");
    PathBuf::from(name)
}

fn length(path: &Path) -> io::Result<Option<u64>> {
    match std::fs::metadata(path) {
        Ok(found) => Ok(Some(found.len())),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Checks whether the file starts with these bytes.
fn begins(file: &mut File, head: &[u8]) -> io::Result<bool> {
    file.rewind()?;
    let mut piece = vec![0; PIECE_BYTES];
    for wanted in head.chunks(PIECE_BYTES) {
        let actual = &mut piece[..wanted.len()];
        match file.read_exact(actual) {
            Ok(()) if actual == wanted => {}
            Ok(()) => return Ok(false),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(false),
            Err(error) => return Err(error),
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupted_file_goes_on_at_the_part_it_was_at() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("file");
        let lengths = [3, 5, 2];
        let part = |index: usize, to: &mut dyn Write| {
            to.write_all(&vec![b'a' + index as u8; lengths[index] as usize])
        };
        let error = write(&path, b"head", &lengths, |index, to| match index {
            2 => Err(io::Error::other("interrupted")),
            index => part(index, to),
        });
        assert!(error.is_err() && !path.exists());
        // The beginning of a further part, as if the process had been killed there.
        let partial = partial(&path);
        let mut bytes = std::fs::read(&partial).unwrap();
        bytes.push(b'x');
        std::fs::write(&partial, bytes).unwrap();
        let mut written = Vec::new();
        let again = |path: &Path, head: &[u8], written: &mut Vec<usize>| {
            write(path, head, &lengths, |index, to| {
                written.push(index);
                part(index, to)
            })
            .unwrap();
        };
        again(&path, b"head", &mut written);
        assert_eq!((&written[..], std::fs::read(&path).unwrap()), (&[2][..], b"headaaabbbbbcc".to_vec()));
        again(&path, b"head", &mut written);
        assert_eq!(written, [2], "a whole file is left alone");
        again(&path, b"neck", &mut written);
        assert_eq!(
            (&written[..], std::fs::read(&path).unwrap()),
            (&[2, 0, 1, 2][..], b"neckaaabbbbbcc".to_vec())
        );
    }
}
