//! Laying a bundle out for the ways in which models reach phones.
//!
//! **Job.** Folders for a channel: AI packs of Google Play ([`ai_packs`]), a folder that a script
//! pushes over `adb` ([`adb_folder`]), a folder for a hub of models with its card ([`hub_folder`]).
//! Each channel's rules are checked, with a page and a date for each. And the list of what a bundle
//! needs beside itself: vendors' libraries, their versions and terms, what an app declares
//! ([`needs`]).
//!
//! **Not its job.** It compiles, loads and runs nothing, opens no shim, reads no profile and sends
//! nothing anywhere: what shims need and how Android names chips comes from the caller. The bytes
//! of a bundle are the bundle crate's.
//!
//! Every folder appears whole or not at all, and is the same for the same bundle.

#![forbid(unsafe_code)]

mod adb;
mod code;
mod error;
mod folder;
mod hub;
mod needs;
mod play;

pub use adb::{AdbReport, adb_folder};
pub use error::DeliveryError;
pub use hub::{Card, HubFile, HubReport, hub_folder};
pub use needs::{Declaration, LibraryNeed, NeedsReport, ShimNeed, VariantNeeds, needs};
pub use play::{
    AiPackReport, Audience, AudienceReport, ChipName, DeliveryMode, PackContent, PlayOptions, PlayPack,
    ai_packs,
};
