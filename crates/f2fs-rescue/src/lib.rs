//! Rescue of the files of a damaged F2FS volume.
//!
//! Every node block of F2FS carries its number, its owner, its offset in the file and the version of the
//! checkpoint before it; every inode carries its name and its directory. So the tree of a volume can be
//! rebuilt from the blocks of the main area alone. [`rescue`] scans a device for nodes and selects the newest
//! version of each; a [`Rescue`] is the tree of the selected inodes. [`RescueSource`] gives it to
//! [`f2fs_tree::export`], with a [`Certainty`] for each file.
//!
//! Checkpoint, NAT (node address table), SIT and SSA (segment summary area) are evidence where they are
//! readable. They decide between versions, but no file is lost because they are damaged.
//!
//! The steps, in their order: the geometry ([`shape`]), the checkpoint packs ([`packs`]), the scan ([`scan`]),
//! the evidence of NAT and fsync chain ([`evidence`], [`chain`]), nodes of an older volume ([`volumes`]), the owner of each block ([`claims`]), the
//! names ([`tree`], [`disputed`]), removed files ([`removed`]), and then one file after the other ([`walk`], [`source`]).
//!
//! *Invariants*: the crate writes nothing to the device, prints nothing, spawns nothing and does not read the
//! clock; it has no `unsafe`. It does not use the engine, which needs a checkpoint. Memory is bounded by the
//! size of the device: 32 bytes for each node version, up to 20 more for those of nodes with many versions,
//! four bits for each block, and the names of the directories on one path. Work is bounded: a block belongs to one file only, so that a hostile image
//! cannot be larger as a tree than as an image, apart from its compressed clusters.

#![forbid(unsafe_code)]

mod bitmap;
mod certainty;
mod chain;
mod checksum;
mod claims;
mod content;
mod directory;
mod disputed;
mod evidence;
mod facts;
mod inference;
mod join;
mod judge;
mod lookup;
mod map;
mod masked;
mod mended;
mod named_nodes;
mod nodes;
mod packs;
mod pieces;
mod progress;
mod raw_node;
mod removed;
mod rescue;
mod scan;
mod shape;
mod size;
mod source;
mod summaries;
mod tree;
mod versions;
mod view;
mod volumes;
mod walk;

pub use certainty::{Certainty, Choice, Grade};
pub use facts::Facts;
pub use join::{Joined, join};
pub use map::{Map, Origin, Status};
pub use masked::Masked;
pub use progress::{Progress, Stage};
pub use rescue::{Options, RemovedFiles, Rescue, rescue};
pub use source::RescueSource;
pub use walk::{Found, Selection};
