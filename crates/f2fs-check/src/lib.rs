//! A checker of F2FS volumes, and their repair.
//!
//! [`check`] reads a volume and compares every structure with the rules of the format and with the other
//! structures. The result is a [`Report`]: findings as data, each with its kind, its place, the facts, the
//! repair and its certainty. [`repair::plan`] makes a [repair](repair) of them.
//!
//! *Invariants*: the crate prints nothing, spawns nothing and does not read the clock; it has no `unsafe`. Only
//! [`Plan::apply`](repair::Plan::apply) and [`Undo::apply`](repair::Undo::apply) write. The check does not use
//! the engine: it reads the tables itself, so that an error of the engine does not hide damage. Memory is bounded:
//! a few bits for each block, 23 bytes for each node, and tables of fixed size. Work is bounded by the size of the
//! volume: no walk follows a pointer that it cannot bound.
//!
//! The checks, in their order: superblocks ([`superblocks`]), checkpoint packs with their journals, summaries
//! and orphans ([`packs`]), NAT ([`nat`]), SIT ([`segments`]), inodes and other nodes in the order of their
//! addresses ([`nodes`]), directories ([`directories`]), names and links ([`links`]), quota files
//! ([`quotas`]), the chain of fsynced nodes ([`chain`]), and last the sums ([`verdict`]).

#![forbid(unsafe_code)]

mod addresses;
mod adopt;
mod areas;
mod bitmap;
mod blank_areas;
mod case_folding;
mod chain;
mod checker;
mod ciphertext;
mod clusters;
mod copied_areas;
mod directories;
mod displaced;
mod doubtful_names;
mod emptied;
mod encryption;
mod entries;
mod files;
mod finding;
mod fix;
mod forms;
mod freed;
mod inodes;
mod invalid;
mod kind;
mod kinds;
mod layouts;
mod links;
mod loss;
mod lost;
mod memory;
mod mend;
mod missing_marks;
mod mixed;
mod names;
mod nat;
mod nodes;
mod outdated;
mod owners;
mod packs;
mod parents;
mod places;
mod progress;
mod quotas;
mod reader;
mod remake;
pub mod repair;
mod report;
mod segments;
mod shared;
mod summaries;
mod superblocks;
mod superseded;
mod swapped;
mod table;
mod verdict;
mod wrong_layouts;
mod xattrs;

pub use checker::{check, check_as_opened};
pub use finding::{Certainty, Finding, Severity};
pub use fix::{Fix, NewBlock, Slot};
pub use kind::Kind;
pub(crate) use loss::Loss;
pub use progress::{Progress, Stage};
pub use report::{Report, Sums};
pub use segments::Content;
