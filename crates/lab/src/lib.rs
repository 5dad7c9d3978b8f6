//! The lab: experiments on file systems, on modelled flash.
//!
//! *Invariant*: every figure names its clock. The [`guest`] measures device time, which is the modelled
//! card's own clock: exact, and equal on every machine. A [`bench`] measures wall time: repeated, with a
//! confidence interval.

pub mod advise;
pub mod bench;
pub mod bundle;
pub mod check;
pub mod circumstances;
pub mod cost;
pub mod expected;
pub mod experiment;
pub mod fio;
pub mod live;
pub mod matrix;
pub mod patience;
pub mod plan;
pub mod preset;
pub mod programs;
pub mod progress;
pub mod promises;
pub mod published;
pub mod record;
pub mod report;
pub mod rivals;
pub mod sample;
pub mod scale;
pub mod stop;
pub mod study;
pub mod systems;
pub mod tune;
pub mod vm;
pub mod wear;
