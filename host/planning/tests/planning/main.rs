//! Tests of requests, the planner sandbox, planning sessions, and a host without a compiler.

#[path = "../common/mod.rs"]
mod common;

mod conformance;
mod floor;
mod request;
mod runtime_only;
mod sandbox;
mod session;
mod signed;
