//! (room under construction)
fn main() {}
