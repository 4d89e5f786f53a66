//! Compares pictures and sounds with the library's own numbers. Also tests files of every kind, and
//! hostile ones.

mod support;

mod corpus;
mod grids;
mod settings;

#[cfg(all(feature = "pictures", feature = "sounds"))]
mod goldens;
#[cfg(feature = "pictures")]
mod pictures;
#[cfg(feature = "sounds")]
mod sounds;

#[cfg(all(feature = "pictures", feature = "sounds"))]
#[path = "../../fuzz/src/lib.rs"]
mod targets;
