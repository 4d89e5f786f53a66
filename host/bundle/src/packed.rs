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
//! Every part begins at a multiple of 64 KiB. So parts begin at a page boundary, as in a directory,
//! for any page size. The names and lengths of the parts determine every other byte. A reader
//! computes these bytes again and compares them. This rejects entries that overlap, repeat, are
//! compressed, are links or lead out of the folder, without special checks. Any ZIP program can
//! unpack the archive into the directory form.
//!
//! A bundle too large for one file is split into several *volumes*. Each is such an archive with
//! some of the files, and the first has the manifest.
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
