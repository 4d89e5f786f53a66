//! Lays a bundle out for the ways in which models reach phones.
//!
//! **Job.** Writes folders for a channel: AI packs of Google Play ([`ai_packs`]), a folder that a
//! script pushes over `adb` ([`adb_folder`]), and a folder for a hub of models with its card
//! ([`hub_folder`]). The rules of each channel are checked, and each rule names its page and date.
//! Also lists other needs of a bundle: vendors' libraries, their versions and licences, and
//! declarations of an app ([`needs`]).
//!
//! **Not its job.** It does not compile, load or run models, open shims, read profiles or send
//! data. The caller provides the needs of shims and Android's names of chips. The bundle crate
//! handles the bytes of a bundle.
//!
//! Every folder appears complete or not at all, and is identical for the same bundle.

#![forbid(unsafe_code)]

mod adb;
mod code;
mod folder;
mod hub;
mod needs;
mod play;

pub use adb::{AdbReport, adb_folder};
pub use hub::{Card, HubFile, HubReport, hub_folder};
pub use needs::{Declaration, LibraryNeed, NeedsReport, ShimNeed, VariantNeeds, needs};
pub use play::{
    AiPackReport, Audience, AudienceReport, ChipName, DeliveryMode, PackContent, PlayOptions, PlayPack,
    ai_packs,
};
