//! Making volumes: options to a plan, a plan to a superblock.
//!
//! *Invariants*: a [`Plan`] is a pure function of [`Options`] and the sizes of the devices, without I/O. An
//! existing plan is valid: Linux mounts the volume made from it, and its superblock passes
//! [`Superblock::check`](crate::format::superblock::Superblock::check).
//!
//! The geometry is that of mkfs.f2fs as it stands after release 1.16 (2026), so that volumes of both are
//! interchangeable. It differs on purpose in this:
//! - A read-only volume (feature ro) sets no space aside, because it is never cleaned. (mkfs.f2fs 1.16 takes
//!   2 sections, later ones 6; 1.15 none.)
//! - A read-only volume of 16K blocks starts after its two superblocks, at byte 32768, not inside them.
//! - A volume of exactly 16 TiB gives up its last segment, because two of the block addresses in it have a
//!   special meaning in the map of a file.
//! - Casefolding without a named encoding takes UTF-8 12.1. mkfs.f2fs leaves 0 there, which Linux refuses.
//! - Extensions that are too long or too many are an error; mkfs.f2fs drops them.
//! - `-a` (logs at the end of the volume), which mkfs.f2fs has dropped too, has no effect.
//!
//! Against mkfs.f2fs 1.15 and 1.16.0 there are two more differences, and both follow the later tool: the
//! formula for overprovision (see [`overprovision`]) and the size of the SSA, which was one block more than
//! there are segments.

pub(crate) mod areas;
pub(crate) mod extensions;
mod make;
mod options;
pub mod overprovision;
pub(crate) mod plan;

pub(crate) use make::LOST_FOUND;
pub use make::{DeviceContent, NewVolume};
pub use options::{Encoding, Options, parse_features};
pub use overprovision::Overprovision;
pub use plan::{DeviceSize, Logs, Plan};
