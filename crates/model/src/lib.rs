//! Development only: random operations, a model of a file system, and a comparison of a volume with it.
//!
//! The operations are those that drive the kernel in the judge's machine ([`guest::Op`]). [`generator`] makes
//! them. [`model`] defines their effect. [`perform`] applies them to a volume, which [`subject`] keeps in use.
//! [`difference`] compares, [`sequence`] runs and shrinks, [`tally`] counts, [`power_cut`] cuts the power,
//! [`fsck`] judges, and [`setup`] has a volume of every kind.

pub mod cut_case;
pub mod difference;
pub mod fsck;
pub mod generator;
pub mod manifest;
pub mod model;
pub mod perform;
pub mod power_cut;
pub mod sequence;
pub mod setup;
pub mod subject;
pub mod tally;

pub use cut_case::Case;
pub use generator::{Generator, HANDLES, Mix};
pub use model::{Model, Rules};
pub use power_cut::{Mode, Record};
pub use sequence::{Failure, Pair};
pub use setup::Setup;
pub use subject::{Settings, StepClock, Subject};
pub use tally::{Outcome, Tally};
