//! Forward and backward passes of a whole model on a shim, one layer at a time, to inspect its
//! values.
//!
//! **Job.** Runs token sequences through a model with the weights of its graph, float or in any
//! format ([`Pass`]). Every component and every layer is compiled, loaded, run over all sequences
//! and dropped again, so that only one layer's weights are in memory. Between layers it keeps the
//! residual streams, per-layer inputs and the states that later layers read. Any tensor of a layer
//! can be shown ([`Looked`]). A caller who runs a part many times keeps it ([`Loaded`]), with its
//! activations and states in any format, and a clone of the pass before it. A recorded pass can be
//! run backwards ([`Backward`]), for the derivatives of a loss by any tensor.
//!
//! **Not its job.** It does not generate text, keep sessions or artefacts, or choose formats. The
//! caller knows the use of the numbers. Values between layers are f32.
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
