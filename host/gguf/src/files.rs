//! The files of a model: a single file, or the parts of a split model.

use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use shardwright_vocabulary::{At, Error, Result};

use crate::{Head, limits};

/// Settings file of a Hugging Face folder. A folder with this file counts as one, regardless of its
/// other files.
const CONFIG: &str = "config.json";

/// Returns the files of the model at a path, if it is a GGUF model: a file, or a folder that
/// contains such a file and no `config.json`. The file with the metadata is first. Projectors of
/// pictures and sounds (`mmproj-*.gguf`) are left out.
///
/// ```
/// let demo = concat!(env!("CARGO_MANIFEST_DIR"), "/../../demo-model");
/// assert_eq!(shardwright_gguf::model_at(demo.as_ref()).unwrap(), None);
/// ```
///
/// # Errors
/// If a folder has more than one model or cannot be read, and the errors of [`files_of`].
pub fn model_at(path: &Path) -> Result<Option<Vec<PathBuf>>> {
    if path.is_file() {
        return if is_gguf(path) { files_of(path).map(Some) } else { Ok(None) };
    }
    if !path.is_dir() || path.join(CONFIG).exists() {
        return Ok(None);
    }
    let mut found = Vec::new();
    for entry in std::fs::read_dir(path).at(path.display())? {
        let file = entry.at(path.display())?.path();
        let name = file.file_name().and_then(|name| name.to_str()).unwrap_or_default();
        let later = part_of(name).is_some_and(|_| !name.contains("-00001-of-"));
        if name.ends_with(".gguf") && !name.starts_with("mmproj") && !later {
            found.push(file);
        }
        limits::expect_at_most(limits::FILES, "files", found.len() as u64, path)?;
    }
    found.sort();
    match found.as_slice() {
        [] => Ok(None),
        [file] => files_of(file).map(Some),
        _ => {
            let name = |file: &PathBuf| file.file_name().unwrap_or_default().to_string_lossy().into_owned();
            let names: Vec<String> = found.iter().map(name).collect();
            let message = format!("has {} models: {}", names.len(), names.join(", "));
            let help = "name the file of the model instead of the folder";
            Err(Error::unsupported(message).at(path.display()).with_help(help))
        }
    }
}

/// Checks whether the file begins with the magic bytes of the format.
pub fn is_gguf(path: &Path) -> bool {
    let mut begin = [0; 4];
    File::open(path).and_then(|mut file| file.read_exact(&mut begin)).is_ok() && begin == *b"GGUF"
}

/// Returns all files of the model that a file belongs to. The file with the metadata is first.
///
/// The parts of a split model are named `NAME-00001-of-00005.gguf`, as `llama-gguf-split` does.
/// `path` may be any of them.
///
/// # Errors
/// If a part is missing, or there are more than [`limits::FILES`].
pub fn files_of(path: &Path) -> Result<Vec<PathBuf>> {
    let Some((stem, count)) = path.file_name().and_then(|name| name.to_str()).and_then(part_of) else {
        return Ok(vec![path.to_owned()]);
    };
    limits::expect_at_most(limits::FILES, "files", count, path)?;
    let parts = (1..=count).map(|part| path.with_file_name(format!("{stem}-{part:05}-of-{count:05}.gguf")));
    let parts: Vec<PathBuf> = parts.collect();
    match parts.iter().find(|part| !part.exists()) {
        Some(missing) => Err(wrong_split(missing, format!("this part of {count} is missing"))),
        None => Ok(parts),
    }
}

/// Checks that files are all parts of one split model, in order, or that none of them is a part.
/// Files may be renamed or mixed up, so their names prove neither.
///
/// # Errors
/// If a part is missing, is there twice or belongs to another split.
pub fn check_parts<'h, 'f: 'h>(heads: impl IntoIterator<Item = &'h Head<'f>>) -> Result<()> {
    let heads: Vec<&Head<'_>> = heads.into_iter().collect();
    let files = heads.len() as u64;
    let Some(count) = heads.iter().find_map(|head| head.part).map(|part| part.count) else { return Ok(()) };
    for (index, head) in heads.iter().enumerate() {
        let found = match head.part {
            Some(part) if part.number == index as u64 && part.count == count && count == files => continue,
            Some(part) => format!("part {} of {}", part.number + 1, part.count),
            None => "a file that is not a part of a split model".to_owned(),
        };
        let reason = format!("expected part {} of {files}, got {found}", index + 1);
        return Err(wrong_split(head.metadata.path(), reason));
    }
    Ok(())
}

fn wrong_split(path: &Path, reason: String) -> Error {
    Error::missing(reason)
        .at(path.display())
        .with_help("put all parts of the model into one folder, under the names they were published with")
}

/// Parses a file name as one part of a split model, and returns the model's name and its number of
/// parts.
fn part_of(name: &str) -> Option<(&str, u64)> {
    let (rest, count) = name.strip_suffix(".gguf")?.rsplit_once("-of-")?;
    let (stem, part) = rest.rsplit_once('-')?;
    let number = |digits: &str| {
        (digits.len() == 5 && digits.bytes().all(|digit| digit.is_ascii_digit()))
            .then(|| digits.parse::<u64>().ok())?
    };
    let (part, count) = (number(part)?, number(count)?);
    (part >= 1 && part <= count).then_some((stem, count))
}

#[cfg(test)]
mod tests {
    use shardwright_vocabulary::ErrorKind;

    use super::*;

    #[test]
    fn parts_are_found_from_any_of_them() {
        let folder = tempfile::tempdir().expect("a folder");
        let names: Vec<PathBuf> =
            (1..=3).map(|part| folder.path().join(format!("m-0000{part}-of-00003.gguf"))).collect();
        for name in &names[..2] {
            std::fs::write(name, b"GGUF").expect("written");
        }
        let error = files_of(&names[1]).expect_err("the third is missing");
        assert_eq!((error.kind(), error.place()), (ErrorKind::Missing, names[2].to_str()), "{error}");
        assert!(error.message() == "this part of 3 is missing" && error.help().is_some(), "{error:?}");
        std::fs::write(&names[2], b"GGML").expect("written");
        assert_eq!(files_of(&names[1]).expect("all there"), names);
        assert!(is_gguf(&names[0]) && !is_gguf(&names[2]) && !is_gguf(folder.path()));
        let huge = folder.path().join("m-00001-of-99999.gguf");
        let error = files_of(&huge).expect_err("too many files");
        assert_eq!((error.kind(), error.message()), (ErrorKind::Invalid, "99999 files, more than 1024"));
    }

    #[test]
    fn other_names_are_one_file() {
        for name in
            ["m.gguf", "m-1-of-2.gguf", "m-00003-of-00002.gguf", "m-00000-of-00002.gguf", "a-of-b.gguf"]
        {
            assert_eq!(files_of(Path::new(name)).expect("one file"), [PathBuf::from(name)], "{name}");
        }
    }
}
