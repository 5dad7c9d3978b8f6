//! Facts of a Linux host about its devices: mounts, loop devices, the bytes behind a path, and their users.

pub(crate) mod backing;
pub(crate) mod claim;
mod locks;
pub(crate) mod loop_device;
pub(crate) mod mounts;
mod parent_locks;
mod record_locks;
pub(crate) mod users;
