//! Which variant and which chain of a bundle runs on a machine, and why the others do not.
//!
//! **Job.** Asks the shims of a machine about every chain of every variant ([`Machine`]), and
//! orders them ([`select`]): the chip's own variant before one of the same architecture, both
//! before a fallback, and that before a variant for no chip in particular. The answer does not
//! depend on the order of variants in the bundle. Towers of the variant that was chosen are asked
//! about in the same way ([`select_of`]).
//!
//! **Not its job.** It loads and runs nothing, compiles nothing and reads no profile: what a chip
//! is called and what is known of it comes from the caller, from the heads of artefacts and from
//! shims. It opens no artefact.

mod compiled_for;
mod machine;
mod order;
mod standing;

pub use compiled_for::{devices_for, heads_of, know_chip, only_compiled_for, only_compiles};
pub use machine::{Machine, OpenShims};
pub use order::{Candidate, Passed, Selection, Tier, select, select_of};
pub use standing::{ShardStanding, Standing};
