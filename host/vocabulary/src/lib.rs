//! Plain data about targets that all crates share: descriptions, limits, costs and errors.
//!
//! **Job.** The types of plans, profiles, shims, bundles and reports: formats, encodings, entry
//! points, limits, flags and their verdicts, costs and error classes. It also has the records of
//! builds and runs: identities, flags, placements, rewrites, notices, tables and the origin of
//! shards. [`Watch`] observes long work, and [`UniqueKeys`] checks JSON. A *target* is one device
//! of one shim, such as the HTP of a phone, or the CPU engine loaded under some name.
//!
//! **Not its job.** This crate makes no decisions and does not talk to devices. Profiles fill these
//! types, shims report them, planners read them, and the plan check compares a plan with them. It
//! depends only on serde and `shardwright-amounts`, so that every crate may use it, shims included.
//!
//! Every name is written in kebab-case and is stable: it appears in profiles, requests, bundles and
//! on the command line. `Display` writes that name, and `FromStr` and serde read it:
//!
//! ```
//! use shardwright_vocabulary::{FormatTuple, WeightFormat, WeightRole};
//!
//! let formats: FormatTuple = "w4-block32[head=w8-per-channel]/a16/a8".parse()?;
//! assert_eq!(formats.weight(WeightRole::Head), WeightFormat::W8PerChannel);
//! assert_eq!(formats.weights.to_string(), "w4-block32");
//! # Ok::<(), shardwright_vocabulary::UnknownName>(())
//! ```

#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod cost;
mod dtype;
mod encoding;
mod entry;
mod error;
mod error_class;
mod flag;
mod format;
mod lesson;
mod limit;
mod lora;
mod names;
mod needs;
mod op;
mod overhead;
mod plain_name;
mod provenance;
mod record;
mod segment;
mod shim;
mod shortage;
mod speculation;
mod table;
mod target;
mod unique_keys;
pub mod units;
mod watch;

#[cfg(test)]
mod tests;

pub use cost::{CostRow, GoalVerdict, Legality, TimeCost};
pub use dtype::DType;
pub use encoding::{Affine, Encoding, ScaleBits};
pub use entry::{EntryKind, EntryName};
pub use error::{At, Error, ErrorKind, Result};
pub use error_class::ErrorClass;
pub use flag::{Flag, FlagSchema, FlagStage, FlagType, FlagVerdict};
pub use format::{
    ActivationFormat, AttentionFormat, FormatTuple, Granularity, RoleFormat, SegmentFormats, ShardFormats,
    SoftcapPlace, StateFormat, ValueFormat, WeightFormat, WeightLayout, WeightRole, scale_count,
};
pub use lesson::Lesson;
pub use limit::{Limit, Relief, limit_names};
pub use lora::{Lora, LoraScale};
pub use names::UnknownName;
pub use needs::{AndroidNeeds, BroughtBy, NeededLibrary, ShimNeeds, VersionRange};
pub use op::{AttributeKind, OpAttribute, OpKind};
pub use overhead::{Overhead, overhead_names};
pub use plain_name::PlainName;
pub use provenance::Provenance;
pub use record::{
    Beforehand, CompiledHere, FlagRecord, Ignored, NodePlacement, Notice, NoticeKind, PassedOver, Place,
    PlannerIdentity, ProcessPlacement, Rewrite, RewriteKind, ShardOrigin, ShimIdentity,
};
pub use segment::{ComponentKind, Pass, Segment, Segments};
pub use shim::{Compatibility, Description, Device, DeviceKind, Estimate, MemoryKinds};
pub use shortage::Shortage;
pub use speculation::ChosenSpeculation;
pub use table::{Quantisation, Table};
pub use target::{Target, TargetKind};
pub use unique_keys::UniqueKeys;
pub use watch::{Part, Watch};
