//! The names in a directory, as far as its blocks can be read.

use f2fs::{
    Place,
    format::{
        dentry::Dentries,
        hash::name_hash,
        inode::{advise, flag, inline},
    },
    units::Ino,
};

use crate::{
    content::Content,
    judge::Judge,
    nodes::Inode,
    pieces::{Piece, pieces},
};

/// A name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Name {
    pub(crate) name: Vec<u8>,
    pub(crate) ino: Ino,
}

/// The names in a directory without "." and "..".
#[derive(Debug, Default)]
pub(crate) struct Listing {
    pub(crate) names: Vec<Name>,
    /// True if a part of the directory is lost.
    pub(crate) is_damaged: bool,
}

impl Listing {
    /// Reads a directory.
    pub(crate) fn read(judge: Judge<'_>, inode: &Inode) -> Listing {
        let mut listing = Listing::default();
        let naming = Naming::of(inode);
        let content = Content { judge, inode };
        if inode.node.has_inline(inline::DENTRY) {
            listing.take(&content, 0, inode.node.inline_area(), naming);
            return listing;
        }
        let mut block_bytes = vec![0; judge.nodes.shape.block_size().bytes()];
        let content_pieces = pieces(judge.nodes, inode);
        // An older node has the names of an earlier time.
        listing.is_damaged |= content_pieces.outdated_nodes > 0;
        for piece in content_pieces.all {
            let Piece::Data { block, addrs, nid, index } = piece else {
                listing.is_damaged = true;
                continue;
            };
            for ((addr, index), block) in addrs.zip(index..).zip(block..) {
                match content.read_run(block, addr..addr + 1, nid, index, &mut block_bytes) {
                    Ok(_) => listing.take(&content, block, &block_bytes, naming),
                    Err(_) => listing.is_damaged = true,
                }
            }
        }
        listing
    }

    fn take(&mut self, content: &Content<'_>, block: u64, area: &[u8], naming: Naming) {
        let inode = content.inode;
        let area = Dentries::new(area, Place::Dir(inode.ino(), block));
        let entries: Vec<_> = area.entries().collect();
        let fits = |hash: u32, name: &[u8]| naming != Naming::Plain || hash == name_hash(name);
        let good = entries.iter().flatten();
        // A block with other content has no right hash, except by chance. A block without entries is freed
        // with its last one, so one that is in use has lost them.
        if !good.clone().any(|entry| fits(entry.hash, entry.name)) {
            self.is_damaged = true;
            return;
        }
        // The first block begins with the entry of the directory itself.
        self.is_damaged |= block == 0 && !good.clone().any(|entry| entry.name == b".");
        for entry in good.filter(|entry| entry.name != b"." && entry.name != b"..") {
            let name = match naming {
                // The ciphertext of a name may contain any byte.
                Naming::Encrypted => nameless(entry.ino),
                _ => match sound_name(entry.name) {
                    Some(name) if fits(entry.hash, &name) => name,
                    name => own_name_of(content, entry.ino)
                        .filter(|own| name.is_none() || fits(entry.hash, own))
                        .or(name)
                        .unwrap_or_else(|| nameless(entry.ino)),
                },
            };
            self.names.push(Name { name, ino: entry.ino });
        }
        self.is_damaged |= entries.iter().any(Result::is_err);
    }
}

/// Returns the name that an inode carries for this directory, in place of a damaged one.
fn own_name_of(dir: &Content<'_>, ino: Ino) -> Option<Vec<u8>> {
    let inode = dir.judge.nodes.current(ino).ok()?;
    let is_here = inode.node.head().pino.get() == dir.inode.ino().0;
    let name = is_here && !inode.node.has_advise(advise::ENC_NAME);
    name.then(|| sound_name(inode.node.last_name())).flatten()
}

/// Form of the names in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Naming {
    /// Hashed as they are.
    Plain,
    /// Hashed in another form.
    Casefolded,
    Encrypted,
}

impl Naming {
    fn of(inode: &Inode) -> Naming {
        match inode {
            inode if inode.node.has_advise(advise::ENCRYPT) => Naming::Encrypted,
            inode if inode.node.has_flag(flag::CASEFOLD) => Naming::Casefolded,
            _ => Naming::Plain,
        }
    }
}

/// The name of an inode whose name is lost.
pub(crate) fn nameless(ino: Ino) -> Vec<u8> {
    format!("inode-{}", ino.0).into_bytes()
}

/// Returns a name that can be a component of a path.
pub(crate) fn sound_name(name: &[u8]) -> Option<Vec<u8>> {
    let is_sound =
        !name.is_empty() && name != b"." && name != b".." && !name.iter().any(|b| *b == 0 || *b == b'/');
    is_sound.then(|| name.to_vec())
}

/// The name that an inode carries: that of its newest directory entry.
pub(crate) fn own_name(inode: &Inode) -> Vec<u8> {
    let is_encrypted = inode.node.has_advise(advise::ENC_NAME);
    let name = Some(inode.node.last_name()).filter(|_| !is_encrypted);
    name.and_then(sound_name).unwrap_or_else(|| nameless(inode.ino()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_leads_elsewhere_is_not_sound() {
        for bad in [&b""[..], b".", b"..", b"a/b", b"a\0"] {
            assert_eq!(sound_name(bad), None);
        }
        assert_eq!(sound_name(b"...").as_deref(), Some(&b"..."[..]));
        assert_eq!(nameless(Ino(7)), b"inode-7");
    }
}
