//! Tests of sessions over chains of shards: numbers, tables, errors, failover, bundles.

#[path = "../support/mod.rs"]
mod support;

mod bundled;
mod exactness;
mod failover;
mod generation;
mod largest_logits;
mod placement;
mod refusals;
mod released;
mod saved;
mod sessions;
mod speculation;
mod storages;
#[cfg(feature = "constraint")]
mod structured;
mod tables;
