//! Selects which variant and which chain of a bundle runs on a machine, with reasons for the
//! others.
//!
//! **Job.** Queries the shims of a machine about every chain of every variant ([`Machine`]), and
//! orders the chains ([`select`]): the chip's own variant before one of the same architecture, both
//! before a fallback, and that before a variant for any machine. The answer does not depend on the
//! order of variants in the bundle. Towers of the selected variant are handled in the same way
//! ([`select_of`]). [`load_trial`] identifies the driver that loads a chain, for the memory of
//! chains that could not be loaded.
//!
//! **Not its job.** It does not load, run or compile models, read profiles or open artefacts. The
//! names and facts of a chip come from the caller, from the heads of artefacts and from shims.

mod compiled_for;
mod machine;
mod order;
mod shard_standing;
mod trial;

pub use compiled_for::{devices_for, heads_of, know_chip, only_compiled_for, only_compiles};
pub use machine::{Machine, OpenShims};
pub use order::{Candidate, Passed, Selection, Tier, select, select_of};
pub use shard_standing::{ShardStanding, Standing};
pub use trial::load_trial;
