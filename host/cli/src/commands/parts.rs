//! Pictures and sounds of a turn: files, or the content of standard input or of a pipe.

use std::io::Read;
use std::path::Path;

use shardwright::ChatPart;

use super::too_long;
use crate::arguments::{PromptPart, RunArguments};
use crate::interrupt;
use crate::outcome::{Failure, io};

/// Largest number of bytes that are read from standard input or a pipe: the cap of a picture's
/// file. The cap of sounds is lower, and is checked when they are decoded.
const BYTES_MAX: u64 = 256 << 20;

/// Rejects arguments that read standard input more than once.
pub fn expect_one_input(arguments: &RunArguments) -> Result<(), Failure> {
    let files = arguments.image.iter().chain(&arguments.audio);
    if files.filter(|path| is_input(path)).count() > 1 {
        let what = "`-` is named twice, and standard input can have only one picture or sound";
        return Err(Failure::Arguments(what.to_owned()));
    }
    Ok(())
}

/// Returns the parts of the prompt in the order of the command line. Reads standard input and pipes
/// to their end.
pub fn parts(arguments: &RunArguments) -> Result<Vec<ChatPart>, Failure> {
    let part = |part: &PromptPart| {
        Ok(match part {
            PromptPart::Text(text) => ChatPart::Text(text.clone()),
            PromptPart::Picture(path) => match piped(path)? {
                Some(bytes) => ChatPart::PictureBytes(bytes),
                None => ChatPart::PictureFile(path.clone()),
            },
            PromptPart::Sound(path) => match piped(path)? {
                Some(bytes) => ChatPart::SoundBytes(bytes),
                None => ChatPart::SoundFile(path.clone()),
            },
        })
    };
    arguments.parts.iter().map(part).collect()
}

fn is_input(path: &Path) -> bool {
    path == Path::new("-")
}

/// Reads standard input or a pipe. Returns `None` for other paths.
fn piped(path: &Path) -> Result<Option<Vec<u8>>, Failure> {
    if is_input(path) {
        return read("standard input", std::io::stdin().lock()).map(Some);
    }
    if !is_pipe(path) {
        return Ok(None);
    }
    let what = path.display().to_string();
    // Opening a pipe waits for its writer.
    let pipe = interrupt::while_waiting(|| std::fs::File::open(path)).map_err(io(what.clone()))?;
    read(&what, pipe).map(Some)
}

fn read(what: &str, input: impl Read) -> Result<Vec<u8>, Failure> {
    let mut bytes = Vec::new();
    let read = interrupt::while_waiting(|| input.take(BYTES_MAX + 1).read_to_end(&mut bytes));
    read.map_err(io(what))?;
    if bytes.len() as u64 > BYTES_MAX {
        return Err(too_long(what, BYTES_MAX));
    }
    Ok(bytes)
}

#[cfg(unix)]
fn is_pipe(path: &Path) -> bool {
    use std::os::unix::fs::FileTypeExt;

    std::fs::metadata(path).is_ok_and(|metadata| metadata.file_type().is_fifo())
}

#[cfg(not(unix))]
fn is_pipe(_: &Path) -> bool {
    false
}
