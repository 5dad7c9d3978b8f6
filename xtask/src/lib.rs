//! Development only: what builds, judges and measures flashkit and is never shipped.
//!
//! The judge is Debian's stock kernel in a virtual machine: [`kernel`] finds it, [`initramfs`] gives it our
//! init, [`vm`] boots it, [`judge`] asks it what it thinks of an image. [`uml_kernel`] builds the kernel of the
//! other guest, the lab's.
//!
//! The engine stands trial in [`hunt`] (beside a model, and with power cuts), [`agreement`] (beside Linux), [`ping_pong`]
//! (in turns with Linux) and [`soak`].

pub mod agreement;
pub mod apt;
pub mod bench;
pub mod cost;
pub mod engine;
pub mod filling;
pub mod flashbench;
pub mod golden;
pub mod hunt;
pub mod initramfs;
pub mod interrupt;
pub mod judge;
pub mod kernel;
pub mod kernel_log;
pub mod linux_source;
pub mod lock;
pub mod measure;
pub mod modules;
pub mod ping_pong;
pub mod real_tree;
pub mod soak;
pub mod spec;
pub mod step;
pub mod stock_guest;
pub mod study;
pub mod uml_kernel;
pub mod vm;
pub mod workspace;

pub use guest;
pub use judge::{Image, Judge, Verdict};
pub use kernel::Machine;
pub use vm::{Disk, Vm};
