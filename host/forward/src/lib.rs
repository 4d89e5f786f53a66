//! Forward and backward passes of a whole model on a shim, a layer at a time, to look into it.
//!
//! **Job.** Runs token sequences through a model as its graph stands, float or with weights in any
//! format ([`Pass`]): every component and every layer is compiled, loaded, run over all sequences
//! and dropped again, so that only one layer's weights are in memory. Between them it holds the
//! residual streams, per-layer inputs and the states that later layers read. Any tensor of a layer
//! can be looked at on its way ([`Looked`]). A caller who runs a part many times keeps it
//! ([`Loaded`]), with its activations and states in any format, and a clone of the pass before it.
//! A pass that was recorded can be gone back ([`Backward`]), for the derivatives of a loss by any
//! tensor.
//!
//! **Not its job.** It generates nothing, keeps no session and no artefact, and chooses no format:
//! what the numbers are for is the caller's to know. Values between layers are f32.
//!
//! ```no_run
//! use shardwright_forward::{Engine, Pass};
//! use shardwright_graph::Graph;
//! use shardwright_shims::ShimInstance;
//! use shardwright_vocabulary::Result;
//!
//! /// The last row of logits of each sequence.
//! fn last_rows(graph: &Graph, cpu: ShimInstance, sequences: &[Vec<u32>]) -> Result<Vec<Vec<f32>>> {
//!     let engine = Engine::new(cpu, "cpu");
//!     let mut pass = Pass::new(graph, &engine, sequences)?;
//!     let mut rows = vec![Vec::new(); sequences.len()];
//!     for part in pass.parts() {
//!         pass.run(&part, graph, &|_, _| false, &mut |seen| {
//!             if seen.is_logits() {
//!                 rows[seen.sequence] = seen.rows().last().unwrap_or_default().to_vec();
//!             }
//!         }, &mut ())?;
//!     }
//!     Ok(rows)
//! }
//! ```

#![forbid(unsafe_code)]

mod backward;
mod engine;
mod part;
mod pass;

pub use backward::{Backward, BackwardLook, LogitRows, Shown};
pub use engine::Engine;
pub use pass::{Loaded, Looked, Pass};
