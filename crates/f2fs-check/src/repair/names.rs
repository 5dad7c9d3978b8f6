//! Changes of names and quota files, by the engine over an overlay.

use std::sync::Arc;

use block::Device;
use f2fs::{
    Error, Result,
    engine::{Caller, Engine, NewNode, Options, SetAttr},
    format::{
        FileType, NAME_MAX,
        inode::{advise, flag},
        node::NodeBlock,
        quota::QuotaKind,
    },
    units::{Ino, Time},
};

use rustc_hash::{FxHashMap, FxHashSet};

use crate::{
    Fix,
    names::{Naming, encrypted_hash, is_dot, is_plain},
};

/// Directory for inodes without a name.
const LOST_FOUND: &[u8] = b"lost+found";
/// Permissions of the directory, if it is made.
const LOST_FOUND_MODE: u16 = 0o700;
/// Permissions of the root directory, if it is made.
const ROOT_MODE: u16 = 0o755;
/// Permissions of a quota file.
const QUOTA_MODE: u16 = 0o600;
/// Maximum number of bytes of a suffix: a tilde and a number of 32 bits.
const SUFFIX_MAX: usize = 11;
/// Maximum number of parents that are followed.
const DEPTH_MAX: usize = 4096;

/// Returns true if a fix is a change of this module.
pub fn is_change(fix: &Fix) -> bool {
    matches!(fix, Fix::Root | Fix::Attach(_) | Fix::Enter { .. } | Fix::Quota { .. })
}

/// The result of the changes of names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Renamed {
    /// Number of names that could not be entered: their finding does not stay, because they were taken out before.
    pub refused: u64,
    /// Number of inodes that were entered into lost+found, or into the root of a full volume.
    pub moved: u64,
    /// Number of changes for which the volume has no space.
    pub lacking_space: u64,
}

/// Opens the volume over a state, makes the changes of names and quota files, and unmounts it. A change that is
/// impossible does not keep the others from being made; its finding stays.
pub fn apply(state: Arc<dyn Device>, fixes: &[Fix], now: Time) -> Renamed {
    let enters = || fixes.iter().filter(|fix| matches!(fix, Fix::Enter { .. })).count() as u64;
    // After an error, the changes since the last checkpoint do not count.
    apply_to_volume(state, fixes, now).unwrap_or_else(|_| Renamed { refused: enters(), ..Renamed::default() })
}

fn apply_to_volume(state: Arc<dyn Device>, fixes: &[Fix], now: Time) -> Result<Renamed> {
    let mut volume = Engine::open(state, Options::new(move || now))?;
    if let Some(reason) = volume.read_only_reason() {
        return Err(Error::ReadOnly(reason.to_owned().into()));
    }
    if fixes.contains(&Fix::Root) {
        volume.begin(Caller::ADMIN).make_root(&NewNode::new(ROOT_MODE))?;
    }
    let mut suffixes = Suffixes::default();
    let nameless = fixes.iter().filter_map(|fix| if let Fix::Attach(ino) = fix { Some(*ino) } else { None });
    let mut attaching = Attaching { nameless: nameless.collect(), folders: FxHashMap::default(), moved: 0 };
    let (mut refused, mut lacking_space) = (0, 0);
    for fix in fixes {
        let done = match fix {
            Fix::Enter { dir, name, hash, ino } if is_encrypted(&volume, *dir) => {
                attaching.enter_encrypted(&mut volume, &mut suffixes, (*dir, name, *hash), *ino)
            }
            Fix::Enter { dir, name, ino, .. } => enter(&mut volume, &mut suffixes, *dir, name, *ino),
            Fix::Attach(ino) => attaching.attach_with_parents(&mut volume, &mut suffixes, *ino),
            Fix::Quota { kind, content } => replace_quota(&mut volume, *kind, content),
            _ => Ok(()),
        };
        if let Err(error) = done {
            if volume.read_only_reason().is_some() {
                return Err(error);
            }
            refused += u64::from(matches!(fix, Fix::Enter { .. }));
            lacking_space += u64::from(matches!(error, Error::NoSpace { .. }));
        }
    }
    volume.unmount()?;
    Ok(Renamed { refused, moved: attaching.moved, lacking_space })
}

/// Replaces the content of a quota file, which is made if it is missing.
fn replace_quota(volume: &mut Engine, kind: QuotaKind, content: &[u8]) -> Result<()> {
    let ino = volume.superblock().quota_inos[kind.index()];
    if !volume.is_inode(ino)? {
        let mode = FileType::Regular.mode_bits() | QUOTA_MODE;
        let root = volume.superblock().root_ino;
        volume.begin(Caller::ADMIN).make_inode_at(ino, root, &NewNode::new(mode))?;
    }
    volume.begin(Caller::ADMIN).fill_inode(ino, content)?;
    volume.begin(Caller::ADMIN).truncate(ino, content.len() as u64)
}

/// The last suffix of each name in each directory: a search from the first would make many equal names expensive.
type Suffixes = FxHashMap<(Ino, Vec<u8>), u32>;

/// Enters a name; with a suffix, if the directory has it already for another inode.
fn enter(volume: &mut Engine, suffixes: &mut Suffixes, dir: Ino, name: &[u8], ino: Ino) -> Result<()> {
    let mut wanted = name.to_vec();
    if let Some(found) = volume.find_entry(dir, &wanted)? {
        if found.ino == ino {
            return Ok(());
        }
        // Names that differ only behind their common start get different suffixes.
        let stem = &name[..name.len().min(NAME_MAX - SUFFIX_MAX)];
        let suffix = suffixes.entry((dir, stem.to_vec())).or_default();
        while volume.find_entry(dir, &wanted)?.is_some() {
            *suffix += 1;
            wanted = [stem, format!("~{suffix}").as_bytes()].concat();
        }
    }
    enter_as(volume, dir, NewName::Plain(&wanted), ino)
}

/// Returns true if a directory is encrypted.
fn is_encrypted(volume: &Engine, dir: Ino) -> bool {
    volume.inode(dir).is_ok_and(|inode| inode.has_advise(advise::ENCRYPT))
}

/// A name to enter.
#[derive(Debug, Clone, Copy)]
enum NewName<'n> {
    /// As people read it.
    Plain(&'n [u8]),
    /// As an encrypted directory stores it, with its hash.
    Encrypted(&'n [u8], u32),
}

impl<'n> NewName<'n> {
    /// The name that an inode carries, in the form of its directory; `None` if it has none there.
    fn of(volume: &Engine, inode: &'n NodeBlock) -> Option<NewName<'n>> {
        let name = inode.last_name();
        let parent = volume.inode(Ino(inode.head().pino.get())).ok().filter(|parent| parent.is_directory());
        let hash = parent.and_then(|parent| encrypted_hash(Naming::of(&parent), inode));
        if let Some(hash) = hash {
            return Some(NewName::Encrypted(name, hash));
        }
        let is_possible = !name.is_empty() && Naming::Plain.is_possible(name) && !is_dot(name);
        // The topmost of encrypted directories has a plain name.
        let is_readable =
            !inode.has_advise(advise::ENC_NAME) && (is_plain(name) || !inode.has_advise(advise::ENCRYPT));
        (is_possible && is_readable).then_some(NewName::Plain(name))
    }
}

/// Enters a name that is free, also into an immutable directory, whose flags and time of change stay.
fn enter_as(volume: &mut Engine, dir: Ino, name: NewName<'_>, ino: Ino) -> Result<()> {
    let enter = |volume: &mut Engine| match name {
        NewName::Plain(name) => volume.begin(Caller::ADMIN).enter_inode(dir, name, ino),
        NewName::Encrypted(name, hash) => volume.begin(Caller::ADMIN).enter_stored_name(dir, name, hash, ino),
    };
    let inode = volume.inode(dir)?;
    let (flags, ctime) = (inode.head().flags.get(), inode.ctime());
    drop(inode);
    if flags & flag::IMMUTABLE == 0 {
        return enter(volume);
    }
    let set = |flags| SetAttr { flags: Some(flags), ctime: Some(ctime), ..SetAttr::default() };
    volume.begin(Caller::ADMIN).set_attr(dir, &set(flags & !flag::IMMUTABLE))?;
    let entered = enter(volume);
    volume.begin(Caller::ADMIN).set_attr(dir, &set(flags))?;
    entered
}

/// The inodes without a name, and the directories that are made for them.
struct Attaching {
    /// Those that have no name yet.
    nameless: FxHashSet<Ino>,
    /// The directory in lost+found for the children of each lost directory.
    folders: FxHashMap<Ino, Ino>,
    /// Number of inodes that were entered into lost+found.
    moved: u64,
}

impl Attaching {
    /// Enters an inode, and the directories without a name above it before.
    fn attach_with_parents(&mut self, volume: &mut Engine, suffixes: &mut Suffixes, ino: Ino) -> Result<()> {
        let mut above = Vec::new();
        let mut at = ino;
        while self.nameless.remove(&at) {
            above.push(at);
            at = match volume.inode(at) {
                Ok(inode) => Ino(inode.head().pino.get()),
                Err(_) => break,
            };
        }
        let mut done = Ok(());
        for ino in above.into_iter().rev() {
            let attached = self.attach(volume, suffixes, ino);
            if volume.read_only_reason().is_some() {
                return attached;
            }
            done = done.and(attached);
        }
        done
    }

    /// Enters an inode under its own name: into its own directory if that is certain, else into lost+found. There, the
    /// children of a directory that is lost get a directory with its number.
    fn attach(&mut self, volume: &mut Engine, suffixes: &mut Suffixes, ino: Ino) -> Result<()> {
        let inode = volume.inode(ino)?;
        let own = NewName::of(volume, &inode);
        let parent = Ino(inode.head().pino.get());
        let is_only = inode.is_directory() || inode.head().links.get() == 1;
        let is_sure = is_only && !inode.last_name().is_empty() && !inode.has_advise(advise::LOST_PINO);
        if let Some(name) = own.filter(|_| is_sure && leads_to_root(volume, parent, ino)) {
            let entered = enter_as(volume, parent, name, ino);
            // The directory may have the name, or be damaged.
            if entered.is_ok() || volume.read_only_reason().is_some() {
                return entered;
            }
        }
        let name = match own {
            Some(NewName::Plain(name)) => name.to_vec(),
            _ => nameless(ino),
        };
        let lost = parent != Ino(0) && !volume.is_inode(parent)?;
        self.move_to_lost_found(volume, suffixes, (ino, &name), (is_sure && lost).then_some(parent))
    }

    /// Enters an encrypted name that was taken out of its directory. If the directory has it for another inode, or does not
    /// take the inode, this one comes to lost+found.
    fn enter_encrypted(
        &mut self,
        volume: &mut Engine,
        suffixes: &mut Suffixes,
        (dir, name, hash): (Ino, &[u8], u32),
        ino: Ino,
    ) -> Result<()> {
        match enter_as(volume, dir, NewName::Encrypted(name, hash), ino) {
            Err(_) if volume.read_only_reason().is_none() => {
                self.move_to_lost_found(volume, suffixes, (ino, &nameless(ino)), None)
            }
            entered => entered,
        }
    }

    /// Enters an inode into lost+found, or into the directory there for the children of a lost one. On a full volume, a free
    /// slot of the root takes the name.
    fn move_to_lost_found(
        &mut self,
        volume: &mut Engine,
        suffixes: &mut Suffixes,
        (ino, name): (Ino, &[u8]),
        lost: Option<Ino>,
    ) -> Result<()> {
        let root = volume.superblock().root_ino;
        let mut dir = match lost_found(volume) {
            Err(Error::NoSpace { .. }) => root,
            found => found?,
        };
        if let Some(lost) = lost {
            dir = self.folder(volume, dir, lost).unwrap_or(dir);
        }
        match enter(volume, suffixes, dir, name, ino) {
            Err(Error::NoSpace { .. }) if dir != root => enter(volume, suffixes, root, name, ino)?,
            entered => entered?,
        }
        self.moved += 1;
        Ok(())
    }

    /// The directory in lost+found for the children of a lost one, which is made if it is missing.
    fn folder(&mut self, volume: &mut Engine, lost_found: Ino, lost: Ino) -> Result<Ino> {
        if let Some(folder) = self.folders.get(&lost) {
            return Ok(*folder);
        }
        let mut name = nameless(lost);
        let folder = loop {
            match volume.find_entry(lost_found, &name)? {
                Some(found) if volume.inode(found.ino)?.is_directory() => break found.ino,
                Some(_) => name.push(b'~'),
                None => {
                    let mode = FileType::Directory.mode_bits() | LOST_FOUND_MODE;
                    break volume.begin(Caller::ADMIN).create(lost_found, &name, &NewNode::new(mode))?;
                }
            }
        };
        self.folders.insert(lost, folder);
        Ok(folder)
    }
}

/// The name of an inode that has none.
fn nameless(ino: Ino) -> Vec<u8> {
    format!("#{}", ino.0).into_bytes()
}

/// Returns true if the parents of a directory lead to the root, and not through `ino`.
fn leads_to_root(volume: &Engine, dir: Ino, ino: Ino) -> bool {
    let mut at = dir;
    for _ in 0..DEPTH_MAX {
        if at == ino || !volume.is_inode(at).unwrap_or(false) {
            return false;
        }
        if !volume.inode(at).is_ok_and(|inode| inode.is_directory() && inode.head().links.get() > 0) {
            return false;
        }
        if at == volume.superblock().root_ino {
            return true;
        }
        match volume.lookup(at, b"..") {
            Ok(parent) => at = parent,
            Err(_) => return false,
        }
    }
    false
}

/// The directory lost+found, which is made if it is missing.
fn lost_found(volume: &mut Engine) -> Result<Ino> {
    let root = volume.superblock().root_ino;
    if let Some(found) = volume.find_entry(root, LOST_FOUND)? {
        if volume.inode(found.ino)?.is_directory() {
            return Ok(found.ino);
        }
    }
    let mut name = LOST_FOUND.to_vec();
    while volume.find_entry(root, &name)?.is_some() {
        name.push(b'~');
    }
    let mode = FileType::Directory.mode_bits() | LOST_FOUND_MODE;
    volume.begin(Caller::ADMIN).create(root, &name, &NewNode::new(mode))
}

#[cfg(test)]
mod tests {
    use f2fs::{engine::FinalSymlink, units::BlockAddr};

    use super::*;

    const NOW: Time = Time { seconds: 1_700_000_000, nanoseconds: 0 };
    const DIR: u16 = 0o040_755;
    const FILE: u16 = 0o100_644;
    /// Byte offset of the length of the name in an entry of a directory.
    const NAME_LEN: usize = 8;

    /// Address of an inode and byte offset of the entry of a name in its inline directory.
    fn entry_of(volume: &Engine, dir: Ino, name: &[u8]) -> (BlockAddr, usize) {
        let slot = volume.find_entry(dir, name).unwrap().unwrap().slot;
        let range = volume.inode(dir).unwrap().layout().inline_range();
        let slots = 8 * range.len() / (19 * 8 + 1);
        (volume.nat_entry(dir.into()).unwrap().addr, range.end - slots * 19 + slot * 11)
    }

    #[test]
    fn many_equal_names_are_entered_without_a_search_each() {
        const COUNT: u32 = 20_000;
        let device = Arc::new(model::Setup::named("base").unwrap().make().unwrap());
        let mut volume = Engine::open(device.clone(), Options::new(|| NOW)).unwrap();
        let root = volume.superblock().root_ino;
        let dir = volume.begin(Caller::ADMIN).create(root, b"dir", &NewNode::new(DIR)).unwrap();
        let ino = volume.begin(Caller::ADMIN).create(root, b"a", &NewNode::new(FILE)).unwrap();
        let other = volume.begin(Caller::ADMIN).create(dir, b"a", &NewNode::new(FILE)).unwrap();
        volume.unmount().unwrap();
        // With a search from the first suffix each time, these are 200,000,000 searches.
        let fix = Fix::Enter { dir, name: b"a".to_vec(), hash: 0, ino };
        assert_eq!(apply(device.clone(), &vec![fix; COUNT as usize], NOW), Renamed::default());
        let volume = Engine::open(device, Options::read_only()).unwrap();
        for (name, ino) in [("a", other), ("a~1", ino), ("a~20000", ino)] {
            let found = volume.find_entry(dir, name.as_bytes()).unwrap();
            assert_eq!(found.map(|entry| entry.ino), Some(ino), "{name}");
        }
    }

    #[test]
    fn long_names_with_a_common_start_get_different_suffixes() {
        let device = Arc::new(model::Setup::named("base").unwrap().make().unwrap());
        let mut volume = Engine::open(device.clone(), Options::new(|| NOW)).unwrap();
        let root = volume.superblock().root_ino;
        let ino = volume.begin(Caller::ADMIN).create(root, b"a", &NewNode::new(FILE)).unwrap();
        let other = volume.begin(Caller::ADMIN).create(root, b"b", &NewNode::new(FILE)).unwrap();
        let mut suffixes = Suffixes::default();
        let long = |end: &str| [&[b'x'; 252][..], end.as_bytes()].concat();
        for name in [long("one"), long("two")] {
            // The third name is there already.
            for ino in [ino, other, ino] {
                enter(&mut volume, &mut suffixes, root, &name, ino).unwrap();
            }
        }
        let common = |suffix: &str| [&[b'x'; 244][..], suffix.as_bytes()].concat();
        let expected = [(long("one"), ino), (long("two"), ino), (common("~1"), other), (common("~2"), other)];
        for (name, ino) in expected {
            assert_eq!(volume.find_entry(root, &name).unwrap().map(|entry| entry.ino), Some(ino));
        }
        assert_eq!(volume.find_entry(root, &common("~3")).unwrap(), None);
    }

    #[test]
    fn names_that_a_volume_refuses_are_counted() {
        let device = Arc::new(model::Setup::named("base").unwrap().make().unwrap());
        let volume = Engine::open(device.clone(), Options::read_only()).unwrap();
        let root = volume.superblock().root_ino;
        let enter = |ino| Fix::Enter { dir: root, name: b"a".to_vec(), hash: 0, ino };
        let names = [enter(Ino(60_000)), Fix::Attach(Ino(60_000)), enter(Ino(60_001))];
        let refused = Renamed { refused: 2, ..Renamed::default() };
        assert_eq!(apply(device.clone(), &names, NOW), refused);
        device.write(0, &[0; 8192]).unwrap();
        assert_eq!(apply(device, &names, NOW), refused);
    }

    #[test]
    fn a_name_that_its_damaged_directory_refuses_goes_to_lost_and_found() {
        let device = Arc::new(model::Setup::named("base").unwrap().make().unwrap());
        let mut volume = Engine::open(device.clone(), Options::new(|| NOW)).unwrap();
        let root = volume.superblock().root_ino;
        let dir = volume.begin(Caller::ADMIN).create(root, b"dir", &NewNode::new(DIR)).unwrap();
        let ino = volume.begin(Caller::ADMIN).create(dir, b"file", &NewNode::new(FILE)).unwrap();
        volume.unmount().unwrap();
        let volume = Engine::open(device.clone(), Options::read_only()).unwrap();
        let (addr, at) = entry_of(&volume, dir, b"file");
        device.write((u64::from(addr.0) << 12) + (at + NAME_LEN) as u64, &60_000u16.to_le_bytes()).unwrap();
        assert_eq!(
            apply(device.clone(), &[Fix::Attach(ino)], NOW),
            Renamed { moved: 1, ..Renamed::default() }
        );
        let volume = Engine::open(device, Options::read_only()).unwrap();
        assert!(volume.find_entry(dir, b"file").is_err(), "the directory is damaged");
        assert_eq!(volume.resolve(b"/lost+found/file", FinalSymlink::NoFollow).unwrap(), ino);
    }
}
