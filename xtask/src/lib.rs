//! Development only: builds, judges and measures flashkit, and is never shipped.
//!
//! [`judge`] is Debian's stock kernel in a virtual machine: it mounts an image and reports the manifest that it
//! sees. [`trial`] tests the engine for any time, beside a model and beside Linux. [`study`] runs the
//! experiments and builds the kernel of the lab's guest.

pub mod bench;
pub mod flashbench;
pub mod golden;
pub mod interrupt;
pub mod judge;
pub mod lock;
pub mod spec;
pub mod step;
pub mod study;
pub mod trial;
pub mod workspace;

pub use guest;
pub use judge::{
    Image, Judge, Verdict,
    kernel::Machine,
    vm::{Disk, Vm},
};
