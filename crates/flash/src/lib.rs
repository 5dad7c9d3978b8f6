//! Modelled flash (cards, sticks and chips in software), and the probe that finds the properties of a real
//! card.
//!
//! *Invariant*: this crate knows no file system. The [`Model`] is a pure event model, `submit(now, op) ->
//! completion`. A [`Card`] is a model with data and a clock, and a [`block::Device`]. Everything that serves
//! a card (in process, over NBD) is a front end over it.

pub mod array;
mod card;
mod card_file;
mod clock;
mod condition;
pub mod counters;
mod fault;
pub mod fit;
pub mod flashbench;
pub mod latency;
pub mod layer;
mod model;
pub mod op;
pub mod probe;
pub mod profile;
pub mod random_profiles;
pub mod rows;
mod trace;
pub mod verbs;

pub use card::{Card, Pace, ReplayTiming, VIRTUAL_CLOCK, is_refusal, replay};
pub use card_file::{CardError, CardFile};
pub use clock::{Clock, WallClock};
pub use condition::Condition;
pub use fault::FaultPlan;
pub use model::{Model, State};
pub use op::{Command, Completion, Op, Refusal};
pub use profile::{Profile, ProfileError};
pub use trace::{Entry, Trace, TraceError, TraceFormat};
