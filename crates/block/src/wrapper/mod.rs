//! Devices around another device: they record, count, fail, call a function, write behind, or restore filled holes.

mod behind;
mod counted;
mod faulty;
mod hooked;
mod power_cut;
mod recording;
mod refillable;

pub use behind::Behind;
pub use counted::{Counted, Counts};
pub use faulty::{Fault, Faulty};
pub use hooked::Hooked;
pub use power_cut::{Survivors, power_cut, replay, unflushed_writes};
pub use recording::{Recording, Request, Verb};
pub use refillable::Refillable;
