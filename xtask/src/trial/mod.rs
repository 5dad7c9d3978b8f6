//! Trials of the engine: long random runs beside a model, beside Linux, and with power cuts.
//!
//! `make test` runs their first seeds; docs/TESTING.md has the results of the long runs.

pub mod cost;
pub mod engine;
pub mod linux_recovery;
pub mod ping_pong;
pub mod rescue;
pub mod resize;
pub mod soak;
pub mod torture;
