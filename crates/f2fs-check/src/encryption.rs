//! Marks of encryption and of fs-verity in inodes, and entries between plain and encrypted directories.
//!
//! The mark, a bit of i_advise, and the context, an extended attribute, come and go together (Linux,
//! `f2fs_set_context`). With the mark alone, no key opens the inode: its content is readable only without the mark. The same
//! holds for a file that is marked as sealed (fs-verity) and has no attribute with the place of its descriptor.

use f2fs::{
    Place,
    format::{
        FileType,
        dentry::{Dentries, Dentry, SlotUse, slots_for},
        inode::advise,
        node::NodeBlock,
        superblock::Features,
    },
    units::Ino,
};
use rustc_hash::FxHashSet;

use crate::{
    Certainty, Finding, Fix, Kind, Slot,
    checker::{Checker, ODD_MAX},
    directories::Walk,
    doubtful_names::is_carried,
    inodes::ADVISE,
    names::{has_encrypted_name, is_dot, is_plain},
    table::fact,
};

/// An attribute among the extended attributes of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Attribute {
    /// There is one.
    Present,
    /// There is none.
    Absent,
}

/// The directory whose entries an area has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AreaOwner {
    /// The one that names it.
    Certain,
    /// Another one, for some of them.
    Doubtful,
    /// Another one, for most of them.
    Other,
}

/// Parents of inodes that tell if they are encrypted, on a volume with encryption.
#[derive(Debug, Default)]
pub struct Parents {
    /// Those of inodes without the mark of encryption: they are not encrypted, either. At most [`ODD_MAX`].
    pub plain: FxHashSet<Ino>,
    /// Those of inodes that carry an encrypted name. At most [`ODD_MAX`].
    pub encrypted: FxHashSet<Ino>,
}

/// Inodes whose marks of encryption do not fit their contexts, on a volume with encryption. At most [`ODD_MAX`] of each.
#[derive(Debug, Default)]
pub struct Marks {
    /// Those with the mark and without a context.
    pub without_context: FxHashSet<Ino>,
    /// Directories among them with names that may be encrypted.
    pub encrypted_names: FxHashSet<Ino>,
    /// Those with a context and without the mark, which they get back.
    pub without_mark: FxHashSet<Ino>,
}

impl Checker<'_> {
    /// Tells if entries of an area may be those of another directory, on a volume with encryption: one of them is not where its
    /// hash belongs or not in the form of the directory's names, or the first one is of another directory.
    pub fn owner_of_area(&mut self, walk: &Walk, block: u64, area: &Dentries<&[u8]>) -> AreaOwner {
        if !self.has_encryption() || walk.naming.is_encrypted() && !self.has_ciphertext(walk) {
            return AreaOwner::Certain;
        }
        let entries = || area.entries().flatten().filter(|entry| !is_dot(entry.name));
        let is_strange = |entry: Dentry<'_>| {
            !walk.is_confirmed(&entry)
                || !walk.is_in_place(block, &entry)
                || is_plain(entry.name) == walk.naming.is_encrypted()
        };
        if !entries().any(is_strange) && !entries().next().is_some_and(|first| self.is_foreign(walk, &first))
        {
            return AreaOwner::Certain;
        }
        let foreign = entries().filter(|entry| self.is_foreign(walk, entry)).count();
        if 2 * foreign > entries().count() { AreaOwner::Other } else { AreaOwner::Doubtful }
    }

    /// Returns true if an entry is to be taken out of its area, because it is that of another directory.
    pub fn belongs_elsewhere(&mut self, walk: &Walk, entry: &Dentry<'_>) -> bool {
        match walk.owner {
            AreaOwner::Certain => false,
            AreaOwner::Doubtful => self.is_foreign(walk, entry),
            AreaOwner::Other => {
                self.inode_of(entry.ino).is_some() && !self.carries(entry.ino, entry.name, walk.ino)
            }
        }
    }

    /// Returns true if a directory is encrypted. Where the context is missing, the mark may be wrong.
    pub fn has_ciphertext(&self, walk: &Walk) -> bool {
        walk.naming.is_encrypted() && self.has_encryption() && !self.marks.without_context.contains(&walk.ino)
    }

    /// Returns true if an entry is that of another directory: its inode carries it with that directory, and one of the two is
    /// encrypted, or it is not encrypted as its directory demands. Encrypted names of two directories are never equal.
    fn is_foreign(&mut self, walk: &Walk, entry: &Dentry<'_>) -> bool {
        let is_damaged =
            self.table.find_inode(entry.ino).is_none_or(|found| self.table.has(found, fact::UNSEALED));
        let Some(inode) = self.inode_of(entry.ino).filter(|_| !is_damaged) else { return false };
        let is_refused = walk.naming.is_encrypted()
            && has_content(&inode)
            && !inode.has_advise(advise::ENCRYPT | advise::ENC_NAME)
            && !self.marks.without_mark.contains(&entry.ino)
            && !is_carried(&inode, entry.name, walk.ino);
        is_refused || self.home_of(walk, entry, &inode).is_some()
    }

    /// The other directory with which an inode carries the name of an entry, if one of the two is encrypted.
    fn home_of(&self, walk: &Walk, entry: &Dentry<'_>, inode: &NodeBlock) -> Option<Ino> {
        let home = Ino(inode.head().pino.get());
        let is_carried = (walk.naming.is_encrypted() || has_encrypted_name(inode))
            && !inode.has_advise(advise::LOST_PINO)
            && home != walk.ino
            && inode.last_name() == entry.name;
        let is_directory = || self.directories.binary_search_by_key(&home, |directory| directory.ino).is_ok();
        (is_carried && is_directory()).then_some(home)
    }

    /// Takes the entry of another directory out of an area. Its inode is entered there if that is known.
    pub fn send_home(&mut self, walk: &mut Walk, at: Place, entry: &Dentry<'_>, bytes: &[u8]) {
        let Some(inode) = self.inode_of(entry.ino) else { return };
        let home = self.home_of(walk, entry, &inode);
        let (shown, ino) = (walk.naming.shown(entry.name), entry.ino);
        let known = match home {
            Some(home) => format!("{shown} is the name of {ino} in {home}, and one of the two is encrypted"),
            None => format!(
                "{shown} of {ino} is in a block of another directory, or in one that demands encryption"
            ),
        };
        self.remove_entry(walk, entry, bytes, Finding::new(Kind::DentryPlace, at, known));
        // One without another name is attached.
        let is_link = !inode.is_directory() && inode.head().links.get() > 1;
        if let Some((home, named)) = home.zip(self.table.find_inode(ino)).filter(|_| is_link) {
            self.table.take_links(named, 1);
            self.table.note(named, fact::REACHED);
            self.enter_later(home, entry.name, entry.hash, ino);
        }
    }

    /// Takes an entry out of an area without counting it.
    pub fn remove_entry(&mut self, walk: &mut Walk, entry: &Dentry<'_>, bytes: &[u8], finding: Finding) {
        let repair = "remove the entry; without another name, its inode comes to the place that it names, or to lost+found";
        self.report.add(finding.repaired_by(repair).with_certainty(Certainty::Unclear));
        self.doubt_area(walk.held, walk.ino);
        let slots = entry.slot..entry.slot + slots_for(entry.name.len());
        walk.edit(bytes, |area| slots.for_each(|slot| area.set_use(slot, SlotUse::Free)));
    }

    /// Compares the mark of encryption in an inode with its attributes, which can all be read.
    pub fn check_mark(&mut self, inode: &NodeBlock, context: Attribute) {
        let is_marked = inode.has_advise(advise::ENCRYPT);
        let has_feature = self.has_encryption();
        let at = Place::Inode(inode.ino());
        let finding = |known: &str| Finding::new(Kind::Encryption, at, known.to_owned());
        match (is_marked, context, has_feature) {
            (true, Attribute::Absent, false) => {
                let known =
                    "it is marked as encrypted; it has no context, and the volume not the feature encrypt";
                self.clear_mark(inode, finding(known).with_certainty(Certainty::Certain));
            }
            (true, Attribute::Absent, true) if self.marks.without_context.len() < ODD_MAX => {
                // Its names and its parent decide.
                self.marks.without_context.insert(inode.ino());
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
                if self.marks.without_mark.len() < ODD_MAX {
                    self.marks.without_mark.insert(inode.ino());
                }
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
        let mut inodes: Vec<Ino> = self.marks.without_context.iter().copied().collect();
        inodes.sort_unstable();
        for ino in inodes {
            let Some(inode) = self.inode_of(ino) else { continue };
            let is_plain = match inode.file_type() {
                FileType::Directory => !self.marks.encrypted_names.contains(&ino),
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
                    let known =
                        "it is encrypted, and its context is lost; it stays as it is, and no key opens it";
                    self.report.add(Finding::new(Kind::EncryptionContext, Place::Inode(ino), known));
                }
            }
        }
    }

    /// Returns true if the directory that an inode names is not encrypted. Linux makes encrypted files only in encrypted
    /// directories.
    fn has_plain_parent(&mut self, inode: &NodeBlock) -> bool {
        let parent = Ino(inode.head().pino.get());
        let Some(parent) = self.inode_of(parent).filter(|parent| parent.is_directory()) else { return false };
        let is_wrong = self.marks.without_context.contains(&parent.ino())
            && !self.marks.encrypted_names.contains(&parent.ino());
        !parent.has_advise(advise::ENCRYPT) || is_wrong
    }
}

/// Returns true for the types of files that an encrypted directory has encrypted.
pub fn has_content(inode: &NodeBlock) -> bool {
    matches!(inode.file_type(), FileType::Regular | FileType::Directory | FileType::Symlink)
}
