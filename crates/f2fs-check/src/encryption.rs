//! Marks of encryption and of fs-verity in inodes.
//!
//! The mark, a bit of i_advise, and the context, an extended attribute, come and go together (Linux,
//! `f2fs_set_context`). With the mark alone, no key opens the inode: its content is readable only without the mark. The same
//! holds for a file that is marked as sealed (fs-verity) and has no attribute with the place of its descriptor.

use f2fs::{
    Place,
    format::{FileType, inode::advise, node::NodeBlock, superblock::Features},
    units::Ino,
};

use crate::{
    Certainty, Finding, Fix, Kind, Slot,
    checker::{Checker, ODD_MAX},
    inodes::ADVISE,
};

/// An attribute among the extended attributes of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attribute {
    /// There is one.
    Present,
    /// There is none.
    Absent,
}

impl Checker<'_> {
    /// Compares the mark of encryption in an inode with its attributes, which can all be read.
    pub fn check_mark(&mut self, inode: &NodeBlock, context: Attribute) {
        let is_marked = inode.has_advise(advise::ENCRYPT);
        let has_feature = self.format.features.has(Features::ENCRYPT);
        let at = Place::Inode(inode.ino());
        let finding = |known: &str| Finding::new(Kind::Encryption, at, known.to_owned());
        match (is_marked, context, has_feature) {
            (true, Attribute::Absent, false) => {
                let known =
                    "it is marked as encrypted; it has no context, and the volume not the feature encrypt";
                self.clear_mark(inode, finding(known).with_certainty(Certainty::Certain));
            }
            (true, Attribute::Absent, true) if self.without_context.len() < ODD_MAX => {
                // Its names and its parent decide.
                self.without_context.insert(inode.ino());
            }
            (true, Attribute::Present, false) => {
                let known =
                    "it is marked as encrypted and has a context; the volume has not the feature encrypt";
                let finding = finding(known)
                    .repaired_by("none: flashkit tune -O encrypt sets the feature, if the volume had it");
                self.report.add(finding.with_certainty(Certainty::Unclear));
            }
            (false, Attribute::Present, true) => {
                let known = "it has an encryption context, and no mark of encryption";
                self.report.add(finding(known).repaired_by("set the mark"));
                self.put_advise(inode, inode.head().advise | advise::ENCRYPT);
            }
            _ => {}
        }
    }

    /// Compares the mark of fs-verity in an inode with its attributes, which can all be read.
    pub fn check_seal(&mut self, inode: &NodeBlock, descriptor: Attribute) {
        if !inode.has_advise(advise::VERITY) || descriptor == Attribute::Present {
            return;
        }
        let (known, certainty) = match self.format.features.has(Features::VERITY) {
            false => (
                "it is marked as sealed; it has no verity descriptor, and the volume not the feature verity",
                Certainty::Certain,
            ),
            true => (
                "it is marked as sealed and has no verity descriptor: without the mark it is read unchecked",
                Certainty::Likely,
            ),
        };
        let finding = Finding::new(Kind::Verity, Place::Inode(inode.ino()), known);
        self.report.add(finding.with_certainty(certainty));
        self.put_advise(inode, inode.head().advise & !advise::VERITY);
    }

    fn clear_mark(&mut self, inode: &NodeBlock, finding: Finding) {
        self.report.add(finding.repaired_by("clear the mark"));
        self.put_advise(inode, inode.head().advise & !advise::ENCRYPT);
    }

    fn put_advise(&mut self, inode: &NodeBlock, advise: u8) {
        self.fix(Fix::Node(Slot { nid: inode.nid(), at: ADVISE }, vec![advise]));
    }

    /// Decides on inodes with the mark and without a context. The mark is wrong if the content is readable without it: the
    /// names of a directory are plain, or a file belongs to a directory that is not encrypted.
    pub fn conclude_marks(&mut self) {
        let mut inodes: Vec<Ino> = self.without_context.iter().copied().collect();
        inodes.sort_unstable();
        for ino in inodes {
            let Some(inode) = self.inode_of(ino) else { continue };
            let is_plain = match inode.file_type() {
                FileType::Directory => !self.encrypted_names.contains(&ino),
                FileType::Regular | FileType::Symlink => self.has_plain_parent(&inode),
                _ => true,
            };
            let finding = |known: &str| Finding::new(Kind::Encryption, Place::Inode(ino), known.to_owned());
            match is_plain {
                true => {
                    let known =
                        "it is marked as encrypted and has no context; it is readable without the mark";
                    self.clear_mark(&inode, finding(known));
                }
                false => {
                    let known = "it is encrypted, and its context is lost";
                    let finding = finding(known).repaired_by("none: nothing tells its key");
                    self.report.add(finding.with_certainty(Certainty::Unclear));
                }
            }
        }
    }

    /// Returns true if the directory that an inode names is not encrypted. Linux makes encrypted files only in encrypted
    /// directories.
    fn has_plain_parent(&mut self, inode: &NodeBlock) -> bool {
        let parent = Ino(inode.head().pino.get());
        let Some(parent) = self.inode_of(parent).filter(|parent| parent.is_directory()) else { return false };
        let is_wrong =
            self.without_context.contains(&parent.ino()) && !self.encrypted_names.contains(&parent.ino());
        !parent.has_advise(advise::ENCRYPT) || is_wrong
    }
}
