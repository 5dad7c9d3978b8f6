//! A walk of a volume's directories, depth first, the names of each in byte order: the one guard against what a damaged
//! or hostile volume may have, which all walks share.
//!
//! *Invariants*: every directory is entered once, so a walk ends although directories may contain one another. Each
//! name of a directory is given once, and is neither `.` nor `..` nor empty, and has no slash. Memory is linear in the
//! names of the directories that are open and in the number of directories; no level keeps a path.

use std::collections::{HashMap, HashSet};

use crate::{Error, Place, Result, Volume, format::FileType, units::Ino, volume::DirEntry};

/// Damaged parts of one directory that are told one by one.
const DAMAGE_MAX: usize = 64;
/// Directories inside one another that are entered: paths have to be made of their names.
const DEPTH_MAX: usize = 16_384;

/// A walk; see the module. It holds no volume, so that the caller can change one on the way.
#[derive(Default)]
pub struct Walk {
    /// Path from the start to the last step.
    path: Vec<u8>,
    /// The directories on the way there, the start first.
    levels: Vec<Level>,
    entered: HashSet<Ino>,
    /// Names and parents of directories that somebody wants to come back to, and of those above them.
    named: HashMap<Ino, (Ino, Box<[u8]>)>,
}

/// A directory that was entered and not left.
struct Level {
    dir: Ino,
    /// Length of its own path.
    path_bytes: usize,
    /// The names that are still to come.
    names: std::vec::IntoIter<DirEntry>,
}

/// One step of a [`Walk`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// A name. [`Walk::enter`] goes into it.
    Name(Found),
    /// All names in a directory, which was entered before, have been given.
    Left(Found),
}

/// A name that a walk has come to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// The directory that it is in.
    pub dir: Ino,
    /// The name.
    pub name: Vec<u8>,
    /// Its inode.
    pub ino: Ino,
    /// Kind of the file, as far as the entry says.
    pub kind: Option<FileType>,
}

impl Walk {
    /// The path from the start to the last step; empty at the start.
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// For each directory on the way to the last step, whether that way leads through its last name.
    pub fn lasts(&self) -> impl Iterator<Item = bool> + '_ {
        self.levels.iter().map(|level| level.names.len() == 0)
    }

    /// Enters a directory: the start, or the last step. Gives the damage that hides some of its names.
    ///
    /// # Errors
    /// The directory was entered before, or nothing of it can be read.
    pub fn enter(&mut self, volume: &Volume, dir: Ino) -> Result<Vec<Error>> {
        if self.entered.contains(&dir) {
            let is_inside = self.levels.iter().any(|level| level.dir == dir);
            let what =
                if is_inside { "the directory is inside itself" } else { "the directory has two names" };
            return Err(Error::corrupt(Place::Inode(dir), what));
        }
        if self.levels.len() == DEPTH_MAX {
            let what = format!("more than {DEPTH_MAX} directories inside one another");
            return Err(Error::Unsupported(what.into()));
        }
        let (names, damage) = names(volume, dir)?;
        self.entered.insert(dir);
        self.levels.push(Level { dir, path_bytes: self.path.len(), names: names.into_iter() });
        Ok(damage)
    }

    /// As [`enter`](Self::enter); damage is an error.
    pub fn enter_whole(&mut self, volume: &Volume, dir: Ino) -> Result<()> {
        self.enter(volume, dir)?.into_iter().next().map_or(Ok(()), Err)
    }

    /// As [`enter_whole`](Self::enter_whole), for walks that change the volume: a directory that says that it belongs
    /// elsewhere is an error, too. A damaged name leads there, and its true one may lie outside the walk.
    pub fn enter_own(&mut self, volume: &Volume, found: &Found) -> Result<()> {
        self.enter_whole(volume, found.ino)?;
        let parent = volume.lookup(found.ino, b"..")?;
        if parent != found.dir {
            let what = format!("the directory has a name in {}, and belongs to {parent}", found.dir);
            return Err(Error::corrupt(Place::Inode(found.ino), what));
        }
        Ok(())
    }

    /// Remembers the directories on the way to the last step, so that [`path_of`](Self::path_of) finds it later. Each is
    /// kept once, however many steps it leads to.
    pub fn remember(&mut self) {
        for n in (1..self.levels.len()).rev() {
            let (above, level) = (&self.levels[n - 1], &self.levels[n]);
            if self.named.contains_key(&level.dir) {
                break;
            }
            let own = &self.path[above.path_bytes..level.path_bytes];
            let own = own.strip_prefix(b"/").unwrap_or(own);
            self.named.insert(level.dir, (above.dir, own.into()));
        }
    }

    /// The path of a name in a directory that a remembered step was in.
    pub fn path_of(&self, dir: Ino, name: &[u8]) -> Vec<u8> {
        let mut names = vec![name];
        let mut at = dir;
        while let Some((above, own)) = self.named.get(&at) {
            names.push(own);
            at = *above;
        }
        names.reverse();
        names.join(&b'/')
    }

    /// Goes to a remembered step once everything else has been walked: it is the last step then.
    pub fn go_to(&mut self, found: &Found) {
        debug_assert!(self.levels.is_empty());
        self.path = self.path_of(found.dir, &found.name);
        if !self.entered.contains(&found.ino) {
            self.named.insert(found.ino, (found.dir, found.name.as_slice().into()));
        }
    }
}

impl Iterator for Walk {
    type Item = Step;

    fn next(&mut self) -> Option<Step> {
        let level = self.levels.last_mut()?;
        if let Some(DirEntry { name, ino, kind, .. }) = level.names.next() {
            self.path.truncate(level.path_bytes);
            if !self.path.is_empty() {
                self.path.push(b'/');
            }
            self.path.extend_from_slice(&name);
            return Some(Step::Name(Found { dir: level.dir, name, ino, kind }));
        }
        let level = self.levels.pop()?;
        self.path.truncate(level.path_bytes);
        let above = self.levels.last()?;
        let name = self.path[above.path_bytes..].strip_prefix(b"/").unwrap_or(&self.path[above.path_bytes..]);
        let found =
            Found { dir: above.dir, name: name.to_vec(), ino: level.dir, kind: Some(FileType::Directory) };
        Some(Step::Left(found))
    }
}

/// The names of a directory without `.` and `..`, each once and in byte order, and the damage that hides others.
fn names(volume: &Volume, dir: Ino) -> Result<(Vec<DirEntry>, Vec<Error>)> {
    let (mut names, mut damage, mut further) = (Vec::new(), Vec::new(), 0u64);
    for entry in volume.entries(dir, 0)? {
        match entry {
            Ok(entry) if matches!(&*entry.name, b"." | b"..") => {}
            Ok(entry) => names.push(entry),
            Err(error) if damage.len() < DAMAGE_MAX => damage.push(error),
            Err(_) => further += 1,
        }
    }
    // Stable, so that names that are there twice keep the directory's order.
    names.sort_by(|a, b| a.name.cmp(&b.name));
    let mut kept: Vec<DirEntry> = Vec::with_capacity(names.len());
    for entry in names {
        let Some(last) = kept.last_mut().filter(|last| last.name == entry.name) else {
            kept.push(entry);
            continue;
        };
        // The one whose inode says that it belongs there stays, else the one that a mount shows.
        let is_better = match (belongs(volume, dir, last.ino), belongs(volume, dir, entry.ino)) {
            (true, false) => false,
            (false, true) => true,
            _ => volume.lookup(dir, &entry.name).is_ok_and(|ino| ino == entry.ino),
        };
        let refused = if is_better { std::mem::replace(last, entry) } else { entry };
        let what = format!("the name is there twice; the one of {} is left out", refused.ino);
        let error = Error::corrupt(Place::Inode(dir), what);
        match damage.len() < DAMAGE_MAX {
            true => damage.push(Error::lost(&refused.name, error)),
            false => further += 1,
        }
    }
    if further > 0 {
        damage.push(Error::corrupt(Place::Inode(dir), format!("{further} further losses in the directory")));
    }
    Ok((kept, damage))
}

/// Returns true if an inode says that it has a name in a directory.
fn belongs(volume: &Volume, dir: Ino, ino: Ino) -> bool {
    let Ok(inode) = volume.inode(ino) else { return false };
    // Old kernels do not keep a directory's own word for its parent up to date.
    inode.head().pino.get() == dir.0
        || inode.is_directory() && volume.lookup(ino, b"..").is_ok_and(|parent| parent == dir)
}
