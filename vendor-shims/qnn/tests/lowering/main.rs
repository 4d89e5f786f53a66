//! Entries as graphs of the compiler: what is taken and what not, what a graph looks like, and
//! whether the vendor's library computes what the contract says.

#[path = "../../benches/candidates/mod.rs"]
mod candidates;
#[path = "../chips/mod.rs"]
mod chips;
mod compiler_refusals;
mod halves;
mod layers;
mod layout;
mod odd;
mod operations;
mod refusals;
mod shapes;
mod tables;
mod vendor;
