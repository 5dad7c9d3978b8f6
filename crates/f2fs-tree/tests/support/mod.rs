//! Helpers of the integration tests: the engine's own, a source of given entries, and a tree on the host.

#![allow(dead_code, unused_imports)] // each test file uses its own part

#[path = "../../../f2fs/tests/support/mod.rs"]
mod engine;
pub mod given;
pub mod tree;

pub use engine::*;
