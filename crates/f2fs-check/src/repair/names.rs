//! Changes of names and quota files, by the engine over an overlay.

use std::sync::Arc;

use block::Device;
use f2fs::{
    Error, Result,
    engine::{Caller, Engine, NewNode, Options},
    format::{FileType, NAME_MAX, inode::advise, quota::QuotaKind},
    units::{Ino, Time},
};

use crate::Fix;

/// Directory for inodes without a name.
const LOST_FOUND: &[u8] = b"lost+found";
/// Permissions of the directory, if it is made.
const LOST_FOUND_MODE: u16 = 0o700;
/// Permissions of the root directory, if it is made.
const ROOT_MODE: u16 = 0o755;
/// Permissions of a quota file.
const QUOTA_MODE: u16 = 0o600;
/// Maximum number of parents that are followed.
const DEPTH_MAX: usize = 4096;

/// Returns true if a fix is a change of this module.
pub fn is_change(fix: &Fix) -> bool {
    matches!(fix, Fix::Root | Fix::Attach(_) | Fix::Enter { .. } | Fix::Quota { .. })
}

/// Opens the volume over a state, makes the changes of names and quota files, and unmounts it. A change that is
/// impossible does not keep the others from being made; its finding stays.
///
/// # Errors
/// Errors of the engine: the volume cannot be changed yet, or is full.
pub fn apply(state: Arc<dyn Device>, fixes: &[Fix], now: Time) -> Result<()> {
    let mut volume = Engine::open(state, Options::new(move || now))?;
    if let Some(reason) = volume.read_only_reason() {
        return Err(Error::ReadOnly(reason.to_owned().into()));
    }
    if fixes.contains(&Fix::Root) {
        volume.begin(Caller::ADMIN).make_root(&NewNode::new(ROOT_MODE))?;
    }
    for fix in fixes {
        let done = match fix {
            Fix::Enter { dir, name, ino } => enter(&mut volume, *dir, name, *ino),
            Fix::Attach(ino) => attach(&mut volume, *ino),
            Fix::Quota { kind, content } => replace_quota(&mut volume, *kind, content),
            _ => Ok(()),
        };
        if let (Err(error), Some(_)) = (done, volume.read_only_reason()) {
            return Err(error);
        }
    }
    volume.unmount()
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

/// Enters a name; with a suffix, if the directory has it already.
fn enter(volume: &mut Engine, dir: Ino, name: &[u8], ino: Ino) -> Result<()> {
    let mut suffix = 0u32;
    let mut wanted = name.to_vec();
    while volume.find_entry(dir, &wanted)?.is_some() {
        suffix += 1;
        let tail = format!("~{suffix}");
        wanted = name[..name.len().min(NAME_MAX - tail.len())].to_vec();
        wanted.extend(tail.as_bytes());
    }
    volume.begin(Caller::ADMIN).enter_inode(dir, &wanted, ino)
}

/// Enters an inode under its own name: into its own directory if that is certain, else into lost+found.
fn attach(volume: &mut Engine, ino: Ino) -> Result<()> {
    let inode = volume.inode(ino)?;
    let name = inode.last_name().to_vec();
    let is_name = !name.is_empty() && !name.iter().any(|byte| matches!(byte, b'/' | 0)) && !is_dot(&name);
    let has_name = is_name && !inode.has_advise(advise::ENC_NAME | advise::ENCRYPT);
    let parent = Ino(inode.head().pino.get());
    let is_only = inode.is_directory() || inode.head().links.get() == 1;
    let is_sure = has_name && is_only && !inode.has_advise(advise::LOST_PINO);
    if is_sure && leads_to_root(volume, parent, ino) && matches!(volume.find_entry(parent, &name), Ok(None)) {
        let entered = volume.begin(Caller::ADMIN).enter_inode(parent, &name, ino);
        // The directory may be damaged, or encrypted.
        if entered.is_ok() || volume.read_only_reason().is_some() {
            return entered;
        }
    }
    let dir = lost_found(volume)?;
    let name = if has_name { name } else { format!("#{}", ino.0).into_bytes() };
    enter(volume, dir, &name, ino)
}

fn is_dot(name: &[u8]) -> bool {
    name == b"." || name == b".."
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
        apply(device.clone(), &[Fix::Attach(ino)], NOW).unwrap();
        let volume = Engine::open(device, Options::read_only()).unwrap();
        assert!(volume.find_entry(dir, b"file").is_err(), "the directory is damaged");
        assert_eq!(volume.resolve(b"/lost+found/file", FinalSymlink::NoFollow).unwrap(), ino);
    }
}
