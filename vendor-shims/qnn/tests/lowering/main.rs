//! Tests of entries as graphs of the compiler: which are supported, the form of a graph, and
//! whether the vendor's library computes the operations of the contract.

#[path = "../../benches/candidates/mod.rs"]
mod candidates;
#[path = "../chips/mod.rs"]
mod chips;
mod compiler_refusals;
#[path = "../found/mod.rs"]
mod found;
mod halves;
mod layers;
mod layout;
mod odd;
mod operations;
mod refusals;
mod shapes;
mod tables;
mod vendor;
