//! Directories whose flag of case folding contradicts the hashes of their names: the flag decides how names are hashed, so one
//! wrong bit makes most hashes wrong.

use std::sync::Arc;

use f2fs::{
    Place,
    format::{
        dentry::{Dentries, Dentry},
        hash::name_hash,
        inode::flag,
        node::NodeBlock,
        superblock::Features,
    },
};

use crate::{
    Certainty, Finding, Fix, Kind, Slot,
    checker::Checker,
    inodes::FLAGS,
    names::{Naming, encrypted_hash, is_dot, is_plain},
    table::fact,
};

/// Areas of a directory whose names are compared with its flag.
const AREAS_MAX: usize = 64;
/// Names that fit the flag, more than those that do not, after which it counts as right.
const LEAD_MAX: usize = 8;

impl Checker<'_> {
    /// The naming of a directory. If the hashes of most names fit the other value of the flag, has the flag restored.
    pub fn naming_of(&mut self, inode: &Arc<NodeBlock>) -> Naming {
        let stored = Naming::of(inode);
        if !self.format.features.has(Features::CASEFOLD) {
            return stored;
        }
        let (own, other) = self.count_hashes(inode, stored);
        if other <= own {
            return stored;
        }
        let ino = inode.ino();
        let folds = inode.has_flag(flag::CASEFOLD);
        let known = match folds {
            true => {
                format!("it folds case by its flags; {other} names have the hash without, and {own} with it")
            }
            false => {
                format!(
                    "it does not fold case by its flags; {other} names have the hash with, and {own} without it"
                )
            }
        };
        // Names that were made after the damage fit the wrong flag, and a right checksum confirms it.
        let entry = self.table.find(ino.into());
        let is_sealed = self.format.features.has(Features::INODE_CHECKSUM)
            && entry.is_none_or(|entry| !self.table.has(entry, fact::UNSEALED));
        let certainty = match own == 0 && other > 1 && !is_sealed {
            true => Certainty::Certain,
            false => Certainty::Unclear,
        };
        let repair = if folds { "clear the flag" } else { "set the flag" };
        let finding = Finding::new(Kind::InodeInvalid, Place::Inode(ino), known).repaired_by(repair);
        self.report.add(finding.with_certainty(certainty));
        let flags = inode.head().flags.get() ^ flag::CASEFOLD;
        self.fix(Fix::Node(Slot { nid: ino.into(), at: FLAGS }, flags.to_le_bytes().to_vec()));
        stored.refolded()
    }

    /// Counts the names with hashes that fit the stored naming of a directory alone, and those that fit only the other value
    /// of its flag.
    fn count_hashes(&mut self, inode: &Arc<NodeBlock>, stored: Naming) -> (usize, usize) {
        let (mut own, mut other) = (0, 0);
        for held in self.areas_of(inode).into_iter().take(AREAS_MAX) {
            let Some(area) = self.stored_area(inode, held) else { continue };
            for entry in Dentries::new(&area[..], Place::Volume).entries().flatten() {
                match self.naming_by_hash(stored, &entry) {
                    Some(naming) if naming == stored => own += 1,
                    Some(_) => other += 1,
                    None => {}
                }
            }
            if own >= other + LEAD_MAX {
                break;
            }
        }
        (own, other)
    }

    /// The naming that the hash of a name confirms, if the flag of the directory makes a difference for the name.
    fn naming_by_hash(&mut self, stored: Naming, entry: &Dentry<'_>) -> Option<Naming> {
        let (name, hash) = (entry.name, entry.hash);
        if is_dot(name) || stored.is_encrypted() && is_plain(name) {
            return None;
        }
        let plain = name_hash(name);
        if stored.is_encrypted() {
            if hash == plain {
                return Some(Naming::Encrypted);
            }
            let inode = self.inode_of(entry.ino).filter(|inode| inode.last_name() == name)?;
            let is_own = encrypted_hash(Naming::EncryptedFolded, &inode) == Some(hash);
            return is_own.then_some(Naming::EncryptedFolded);
        }
        let folded = Naming::Folded.hash(name, !plain);
        let naming = match (hash == plain, hash == folded) {
            // A directory that folds case may have it, too.
            (true, false) if name.is_ascii() => Naming::Plain,
            (false, true) => Naming::Folded,
            _ => return None,
        };
        // Otherwise the name is damaged.
        let is_whole = naming == stored
            || self.inode_of(entry.ino).is_none_or(|inode| {
                inode.last_name() == name || stored.hash(inode.last_name(), !hash) != hash
            });
        is_whole.then_some(naming)
    }
}
