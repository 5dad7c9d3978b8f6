//! Development only.
fn main() {}
