//! The lab: experiments on file systems, on modelled flash.
//!
//! *Invariant*: no figure without the name of its clock. What the [`guest`] measures is device time, the
//! modelled card's own: exact, and the same on every machine.

pub mod format;
pub mod guest;
pub mod jeong;
