//! Forms in which lost inodes come back: their kinds, and signs of encryption.
//!
//! The encryption context of an inode is lost with it. So its content stays ciphertext, and so do the names in a directory.
//! A directory whose names are encrypted, or that an encrypted one names, is not made anew: people would take it for the
//! encrypted one, and what they put there would be readable.

use std::ops::ControlFlow;

use f2fs::{
    Place,
    format::{
        FileType, NAME_MAX,
        dentry::{Dentries, Dentry},
        superblock::Features,
    },
    units::{BlockAddr, Ino, Nid},
};
use rustc_hash::FxHashMap;

use crate::{
    Loss,
    checker::{Checker, ODD_MAX},
    ciphertext,
    names::{is_dot, is_plain},
    reader::read_block,
    remake::{Named, Remains},
};

/// End of the name of a file with ciphertext.
const ENCRYPTED: &[u8] = b".encrypted";
/// Maximum number of blocks of a file that are tested for ciphertext.
const TESTED: usize = 16;

/// The form in which a lost inode comes back.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Form {
    /// An inode of this kind.
    Plain(FileType),
    /// A symbolic link with this size in bytes.
    Symlink(u64),
    /// A regular file with ciphertext, in lost+found under this name. In its directory, everybody would take it for the file.
    Ciphertext(Vec<u8>),
    /// It does not come back.
    Freed(Freed),
}

/// The reason why a lost inode does not come back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Freed {
    /// Nothing is left of it.
    Nothing,
    /// It was an encrypted directory.
    EncryptedDirectory,
    /// It was a symbolic link, whose target is lost, or is ciphertext.
    Target,
    /// It was a device node, whose number is lost.
    Device,
}

impl Freed {
    /// The end of the text of a finding, and the loss.
    pub fn told(self) -> (&'static str, Option<Loss>) {
        match self {
            Freed::Nothing => ("", None),
            Freed::EncryptedDirectory => (
                "; it was an encrypted directory: its encryption context is lost with it, and with it the names in it",
                Some(Loss::EncryptedDirectory),
            ),
            Freed::Target => {
                ("; it was a symbolic link, and its target is lost with it", Some(Loss::Special))
            }
            Freed::Device => ("; it was a device node, and its number is lost with it", Some(Loss::Special)),
        }
    }
}

impl Checker<'_> {
    /// The form in which a lost inode comes back. Its names tell the kind, or else its content: nothing that is left is deleted
    /// because its directory is lost or doubtful.
    pub fn form(&mut self, ino: Ino, remains: &Remains) -> Form {
        let kind = match self.named_kind(ino) {
            None if !self.has_blocks(remains) => return Form::Freed(Freed::Nothing),
            None => FileType::Regular,
            Some(kind) => kind,
        };
        match kind {
            FileType::Directory if self.was_encrypted(ino, remains) => Form::Freed(Freed::EncryptedDirectory),
            FileType::Regular => {
                self.encrypted_name(ino, remains).map_or(Form::Plain(kind), Form::Ciphertext)
            }
            FileType::Symlink => {
                self.target_bytes(ino, remains).map_or(Form::Freed(Freed::Target), Form::Symlink)
            }
            FileType::CharDevice | FileType::BlockDevice => Form::Freed(Freed::Device),
            FileType::Directory | FileType::Fifo | FileType::Socket => Form::Plain(kind),
        }
    }

    /// Returns true if the volume has encrypted files.
    pub fn has_encryption(&self) -> bool {
        self.format.features.has(Features::ENCRYPT)
    }

    /// Returns true if an encrypted directory names a lost inode.
    fn is_in_encrypted(&self, ino: Ino) -> bool {
        self.named.get(&ino).is_some_and(|named| named.is_in_encrypted)
    }

    /// Returns true if a lost directory was encrypted: the directory above it, its children, or the names in its blocks tell.
    fn was_encrypted(&mut self, ino: Ino, remains: &Remains) -> bool {
        if !self.has_encryption() || self.parents.plain.contains(&ino) {
            return false;
        }
        self.is_in_encrypted(ino)
            || self.parents.encrypted.contains(&ino)
            || self.visit_names(remains, |_, entry| match is_plain(entry.name) {
                true => ControlFlow::Continue(()),
                false => ControlFlow::Break(()),
            }) == ControlFlow::Break(())
    }

    /// The size of the target of a lost symbolic link, which lies in a block: the zeroes behind it tell.
    fn target_bytes(&mut self, ino: Ino, remains: &Remains) -> Option<u64> {
        let addr = remains.only_block().filter(|_| !self.is_in_encrypted(ino))?;
        let block = read_block(&self.io, addr).ok()?;
        let end = block.iter().position(|byte| *byte == 0)?;
        let is_target = end > 0 && block[end..].iter().all(|byte| *byte == 0);
        // The target of an encrypted link begins with its length.
        let is_text =
            || std::str::from_utf8(&block[..end]).is_ok_and(|text| !text.contains(char::is_control));
        (is_target && (!self.has_encryption() || is_text())).then_some(end as u64)
    }

    /// The name in lost+found of a lost file that was encrypted: an encrypted directory names it, or all of its blocks that are
    /// tested look so. An encrypted file can be renamed into a plain directory. `None` for other files.
    fn encrypted_name(&mut self, ino: Ino, remains: &Remains) -> Option<Vec<u8>> {
        if !self.has_encryption() || !self.is_in_encrypted(ino) && !self.looks_encrypted(remains) {
            return None;
        }
        let name = self.named.get(&ino).and_then(|named| named.name.clone());
        let mut name = name.map_or_else(|| format!("#{}", ino.0).into_bytes(), <[u8]>::into_vec);
        name.truncate(NAME_MAX - ENCRYPTED.len());
        name.extend_from_slice(ENCRYPTED);
        Some(name)
    }

    /// Returns true if blocks over the whole of a file may be ciphertext, and the file is none of a known compressed format.
    fn looks_encrypted(&mut self, remains: &Remains) -> bool {
        let blocks = self.blocks_of(remains, self.volume_blocks());
        let step = blocks.len().div_ceil(TESTED).max(1);
        let first = remains.first_block();
        !blocks.is_empty()
            && blocks.iter().step_by(step).all(|addr| {
                let block = read_block(&self.io, *addr);
                block.is_ok_and(|block| {
                    let is_compressed = Some(*addr) == first && ciphertext::begins_like_compressed(&block);
                    !is_compressed && ciphertext::may_be_ciphertext(&block)
                })
            })
    }

    /// Returns true if blocks of a lost inode are in use and belong to nothing else. Nodes alone do not count: an old block of
    /// the NAT has those of removed files.
    fn has_blocks(&mut self, remains: &Remains) -> bool {
        let blocks = self.blocks_of(remains, self.volume_blocks());
        blocks.iter().any(|addr| self.segments.is_marked(*addr) && !self.shared.contains(*addr))
    }

    /// Takes the kinds of lost inodes from the entries in the blocks of lost directories, from the top of the tree down.
    pub fn name_by_remains(&mut self, remains: &FxHashMap<Nid, Remains>) {
        let mut directories: Vec<Nid> = Vec::new();
        for (nid, remains) in remains {
            let ino = Ino::from(*nid);
            let first: Option<BlockAddr> = remains.first_block();
            let is_unnamed = self.named_kind(ino).is_none() && self.named.len() < ODD_MAX;
            if is_unnamed && first.is_some_and(|first| self.is_first_of_directory(first, ino)) {
                let kind = FileType::Directory;
                self.named.insert(ino, Named { kind, dir: None, name: None, is_in_encrypted: false });
            }
            if self.named_kind(ino) == Some(FileType::Directory) {
                directories.push(*nid);
            }
        }
        directories.sort_unstable();
        while let Some(directory) = directories.pop() {
            let is_in_encrypted = self.was_encrypted(directory.into(), &remains[&directory]);
            let _ = self.visit_names(&remains[&directory], |checker, entry| {
                if checker.named.len() >= ODD_MAX {
                    return ControlFlow::Break(());
                }
                let is_new =
                    remains.contains_key(&entry.ino.into()) && checker.named_kind(entry.ino).is_none();
                if let Some(kind) = entry.kind.filter(|_| is_new) {
                    let name = (!is_in_encrypted).then(|| entry.name.into());
                    checker.named.insert(entry.ino, Named { kind, dir: None, name, is_in_encrypted });
                    if kind == FileType::Directory {
                        directories.push(entry.ino.into());
                    }
                }
                ControlFlow::Continue(())
            });
        }
    }

    /// Calls `each` with the entries in the blocks of a lost directory, except the dots, until it breaks off.
    fn visit_names(
        &mut self,
        remains: &Remains,
        mut each: impl FnMut(&mut Self, &Dentry<'_>) -> ControlFlow<()>,
    ) -> ControlFlow<()> {
        for addr in self.blocks_of(remains, self.dir_budget) {
            if self.dir_budget == 0 {
                break;
            }
            self.dir_budget -= 1;
            let Ok(bytes) = read_block(&self.io, addr) else { continue };
            for entry in Dentries::new(&*bytes, Place::Block(addr)).entries().flatten() {
                if !is_dot(entry.name) {
                    each(self, &entry)?;
                }
            }
        }
        ControlFlow::Continue(())
    }
}
