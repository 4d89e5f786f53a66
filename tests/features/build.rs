//! An empty build script. It makes cargo compile the build dependencies, whose features procedural
//! macros and build scripts share.

fn main() {}
