//! Nothing to do: what it depends on is what procedural macros and build scripts depend on too.

fn main() {}
