//! Sessions over chains of shards: numbers, tables, refusals, fallbacks, bundles.

#[path = "../support/mod.rs"]
mod support;

mod bundled;
mod exactness;
mod generation;
mod going_on;
mod largest_logits;
mod placement;
mod refusals;
mod sessions;
mod storages;
mod tables;
