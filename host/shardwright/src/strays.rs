//! Entries of a bundle's folder that do not belong to the bundle. They are never read.

use shardwright_bundle::{Bundle, Stray};
use shardwright_vocabulary::{Notice, NoticeKind};

use crate::{Error, ErrorKind, Result};

/// Files that systems create in every folder, in addition to hidden files.
const OF_SYSTEMS: [&str; 2] = ["Thumbs.db", "desktop.ini"];

/// Returns notices about the entries of a bundle's folder that do not belong to it: a fallback for
/// files that someone may expect to be used, and a note for hidden files, backups and files of
/// systems.
pub fn stray_notices(bundle: &Bundle) -> Vec<Notice> {
    let strays = match bundle.unreferenced() {
        Ok(strays) => strays,
        // The files of the bundle are found by name all the same.
        Err(error) => {
            return vec![Notice::fallback(format!("{error}; the folder is not checked for other files"))];
        }
    };
    let (harmless, others): (Vec<Stray>, Vec<Stray>) = strays.into_iter().partition(is_harmless);
    let fallback = text(bundle, &others).map(Notice::fallback);
    fallback.into_iter().chain(text(bundle, &harmless).map(Notice::note)).collect()
}

/// Rejects a bundle whose folder has files that someone may expect to be used, for callers under
/// `strict`.
///
/// # Errors
///
/// [`ErrorKind::Strict`] with the first of these files.
pub fn expect_no_strays(bundle: &Bundle) -> Result<()> {
    let mut notices = stray_notices(bundle).into_iter();
    match notices.find(|notice| notice.kind == NoticeKind::Fallback) {
        None => Ok(()),
        Some(notice) => Err(Error::new(ErrorKind::Strict, notice.text)
            .with_help("move it out of the folder, or leave `--strict` out")),
    }
}

/// Returns whether systems and editors create such files by themselves.
fn is_harmless(stray: &Stray) -> bool {
    let name = stray.name.rsplit('/').next().unwrap_or_default();
    name.starts_with('.') || name.ends_with('~') || OF_SYSTEMS.contains(&name)
}

fn text(bundle: &Bundle, strays: &[Stray]) -> Option<String> {
    let first = bundle.path().join(&strays.first()?.name);
    let first = first.display();
    Some(match strays.len() - 1 {
        0 => format!("{first} is ignored: it is not part of the bundle"),
        more => format!("{first} and {more} more entries are ignored: they are not part of the bundle"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_systems_and_editors_are_harmless() {
        let is = |name: &str| is_harmless(&Stray { name: name.to_owned(), bytes: 0, is_file: true });
        for name in [".DS_Store", "files/.notes.swp", "bundle.json~", "Thumbs.db", "files/desktop.ini"] {
            assert!(is(name), "{name}");
        }
        for name in ["extra.bin", "files/0", "DS_Store", "db"] {
            assert!(!is(name), "{name}");
        }
    }
}
