//! A bundle in one file: an uncompressed ZIP archive of the files of its directory.
//!
//! ```text
//! 0            local header of bundle.json.sig, padded, if it is signed
//! 64 KiB       bundle.json.sig
//!              local header of bundle.json, padded
//! n · 64 KiB   bundle.json
//!              local header of files/<sha256>, padded
//! n · 64 KiB   its bytes
//!              … in the order of the names
//!              central directory, its end
//! ```
//!
//! Every part begins at a multiple of 64 KiB, so that what begins at a page in the directory does
//! so here, whatever size pages have. The names and lengths of its parts determine every byte that
//! is not theirs: a reader computes those bytes anew and compares them, and so refuses entries that
//! overlap, repeat, are compressed, are links or lead out of the folder without knowing of any of
//! these. Any program that reads ZIP archives can unpack one, and has the directory then.
//!
//! A bundle too large for one file lies in several *volumes*: each is such an archive, with some of
//! the files, and the first has the manifest.
//!
//! Source of the layout: PKWARE, APPNOTE.TXT 6.3.10, sections 4.3 and 4.5.3.

pub(crate) mod container;
pub(crate) mod embedded;
mod layout;
mod read;
mod signed;
mod volumes;
pub(crate) mod write;

pub use volumes::volume_name;
pub use write::PackReport;

pub(crate) use volumes::{Volumes, section};
pub(crate) use write::packed_bytes;
