//! Directories of a Windows host.
//!
//! Windows has no owners, modes and nodes of Linux. A source gives everything to root, with common permissions, which
//! a [`Transform`](crate::Transform) replaces; a sink leaves them out.

// The rules of names are the same everywhere, so that their tests run on every host.
mod name;
#[cfg(windows)]
mod sink;
#[cfg(windows)]
mod source;

#[cfg(windows)]
pub use sink::DirSink;
#[cfg(windows)]
pub use source::DirSource;
