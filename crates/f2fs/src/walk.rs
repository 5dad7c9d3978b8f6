//! A walk of a volume's directories, depth first, the names of each in byte order. All walks share it as
//! their only guard against damaged or hostile directories.
//!
//! *Invariants*: every directory is entered once, so a walk ends even if directories contain one another.
//! Each name of a directory is given once. It is never `.`, `..` or empty, and contains no slash. Memory is
//! linear in the number of names in the open directories and in the number of directories; no level keeps a
//! path.

use std::collections::{HashMap, HashSet};

use crate::{
    Error, Place, Result,
    engine::{Caller, DirEntry, Engine},
    format::FileType,
    units::Ino,
};

/// Maximum number of damaged parts of one directory that are reported one by one.
const DAMAGE_MAX: usize = 64;
/// Maximum number of nested directories. It bounds the length of paths.
pub const DEPTH_MAX: usize = 16_384;

/// A walk of directories. See the module. It holds no volume, so the caller can change the volume between
/// steps.
#[derive(Default)]
pub struct Walk {
    /// Path from the start to the last step.
    path: Vec<u8>,
    /// The directories on the path to the last step, the start first.
    levels: Vec<Level>,
    entered: HashSet<Ino>,
    /// Names and parents of remembered directories and of all directories above them.
    named: HashMap<Ino, (Ino, Box<[u8]>)>,
}

/// A directory that was entered and not yet left.
struct Level {
    dir: Ino,
    /// Length of its path in bytes.
    path_bytes: usize,
    /// The remaining names.
    names: std::vec::IntoIter<DirEntry>,
}

/// One step of a [`Walk`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Step {
    /// A name. If it is a directory's, [`Walk::enter`] descends into it.
    Name(Found),
    /// The end of a directory that was entered before.
    Left(Found),
}

/// A name found by a walk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Directory that contains the name.
    pub dir: Ino,
    /// The name.
    pub name: Vec<u8>,
    /// Its inode.
    pub ino: Ino,
    /// Kind of the file according to the directory entry.
    pub kind: Option<FileType>,
}

impl Walk {
    /// Returns the path from the start to the last step; empty at the start.
    #[must_use]
    pub fn path(&self) -> &[u8] {
        &self.path
    }

    /// Returns a flag for each directory on the path to the last step: true if no further name follows there.
    pub fn lasts(&self) -> impl Iterator<Item = bool> + '_ {
        self.levels.iter().map(|level| level.names.len() == 0)
    }

    /// Enters a directory: the start, or the last step. Returns the damage that hides some of its names.
    ///
    /// # Errors
    /// The directory was entered before, or nothing of it can be read.
    pub fn enter(&mut self, volume: &Engine, dir: Ino) -> Result<Vec<Error>> {
        if self.entered.contains(&dir) {
            let is_inside = self.levels.iter().any(|level| level.dir == dir);
            let what =
                if is_inside { "the directory contains itself" } else { "the directory has two names" };
            return Err(Error::corrupt(Place::Inode(dir), what));
        }
        if self.levels.len() == DEPTH_MAX {
            let what = format!("more than {DEPTH_MAX} nested directories");
            return Err(Error::Unsupported(what.into()));
        }
        let (names, damage) = names(volume, dir)?;
        self.entered.insert(dir);
        self.levels.push(Level { dir, path_bytes: self.path.len(), names: names.into_iter() });
        Ok(damage)
    }

    /// Enters a directory like [`enter`](Self::enter), but fails on any damage.
    ///
    /// # Errors
    /// Those of [`enter`](Self::enter), and the first damage of the directory.
    pub fn enter_whole(&mut self, volume: &Engine, dir: Ino) -> Result<()> {
        self.enter(volume, dir)?.into_iter().next().map_or(Ok(()), Err)
    }

    /// Enters a directory like [`enter_whole`](Self::enter_whole), for walks that change the volume. Also
    /// fails if the directory's `..` names another parent: then the name is damaged, and the real one may lie
    /// outside the walk.
    ///
    /// # Errors
    /// Those of [`enter_whole`](Self::enter_whole), and [`Error::Corrupt`] for a directory that belongs elsewhere.
    pub fn enter_own(&mut self, volume: &Engine, found: &Found) -> Result<()> {
        self.enter_whole(volume, found.ino)?;
        let parent = volume.lookup(found.ino, b"..")?;
        if parent != found.dir {
            let what = format!("the directory has a name in {}, but its parent is {parent}", found.dir);
            return Err(Error::corrupt(Place::Inode(found.ino), what));
        }
        Ok(())
    }

    /// Removes a directory, which has `name` in `dir`, with everything in it. The walk must be new. After an error,
    /// [`path`](Self::path) names the entry that is in the way, and is empty for the directory itself.
    ///
    /// # Errors
    /// Those of [`enter_own`](Self::enter_own), and those of removing each entry. Entries that were removed before the
    /// error stay removed.
    pub fn remove(&mut self, volume: &mut Engine, dir: Ino, name: &[u8]) -> Result<()> {
        let ino = volume.lookup(dir, name)?;
        self.enter_own(volume, &Found { dir, name: name.to_vec(), ino, kind: None })?;
        while let Some(step) = self.next() {
            match step {
                Step::Name(found) => match volume.stat(found.ino)?.kind {
                    FileType::Directory => self.enter_own(volume, &found)?,
                    _ => volume.begin(Caller::ADMIN).unlink(found.dir, &found.name)?,
                },
                Step::Left(found) => volume.begin(Caller::ADMIN).remove_dir(found.dir, &found.name)?,
            }
        }
        volume.begin(Caller::ADMIN).remove_dir(dir, name)
    }

    /// Remembers the directories on the path to the last step for [`path_of`](Self::path_of). Each directory
    /// is stored once, however many remembered steps it leads to.
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

    /// Returns the path of a name in the directory of a remembered step.
    #[must_use]
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

    /// Goes to a remembered step, which becomes the last step. Everything else must have been walked before.
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

/// Reads the names of a directory without `.` and `..`, each once and in byte order, and the damage that
/// hides others.
fn names(volume: &Engine, dir: Ino) -> Result<(Vec<DirEntry>, Vec<Error>)> {
    let (mut names, mut damage, mut further) = (Vec::new(), Vec::new(), 0u64);
    for entry in volume.entries(dir, 0)? {
        match entry {
            Ok(entry) if matches!(&*entry.name, b"." | b"..") => {}
            Ok(entry) => names.push(entry),
            // The other names are rubbish as well.
            Err(error @ Error::UnusableKey(_)) => return Err(error),
            Err(error) if damage.len() < DAMAGE_MAX => damage.push(error),
            Err(_) => further += 1,
        }
    }
    for entry in names.iter().filter(|entry| entry.has_other_hash()) {
        match damage.len() < DAMAGE_MAX {
            true => damage.push(Error::lost(&entry.name, misnamed(volume, dir, entry.ino))),
            false => further += 1,
        }
    }
    // The sort is stable: duplicate names keep the directory's order.
    names.sort_by(|a, b| a.name.cmp(&b.name));
    let mut kept: Vec<DirEntry> = Vec::with_capacity(names.len());
    for entry in names {
        let Some(last) = kept.last_mut().filter(|last| last.name == entry.name) else {
            kept.push(entry);
            continue;
        };
        // The name whose inode confirms it wins, otherwise the one that a mount shows, or the first one.
        let is_better = match (belongs(volume, dir, last.ino), belongs(volume, dir, entry.ino)) {
            (true, false) => false,
            (false, true) => true,
            // A lookup may read the whole directory.
            _ if damage.len() < DAMAGE_MAX => {
                volume.lookup(dir, &entry.name).is_ok_and(|ino| ino == entry.ino)
            }
            _ => false,
        };
        let refused = if is_better { std::mem::replace(last, entry) } else { entry };
        let what = format!("the directory has the name twice; the entry of {} is left out", refused.ino);
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

/// The damage of an entry whose hash is that of another name.
fn misnamed(volume: &Engine, dir: Ino, ino: Ino) -> Error {
    let own = volume.inode(ino).ok().filter(|inode| inode.head().pino.get() == dir.0);
    let own = own.map(|inode| inode.last_name().escape_ascii().to_string());
    let what = match own.filter(|own| !own.is_empty()) {
        Some(own) => format!("the name has the hash of another one; {ino} was entered as \"{own}\""),
        None => format!("the name of {ino} has the hash of another one"),
    };
    Error::corrupt(Place::Inode(dir), what)
}

/// Returns true if an inode confirms that it has a name in this directory.
fn belongs(volume: &Engine, dir: Ino, ino: Ino) -> bool {
    let Ok(inode) = volume.inode(ino) else { return false };
    // Old kernels do not keep a directory's parent field up to date.
    inode.head().pino.get() == dir.0
        || inode.is_directory() && volume.lookup(ino, b"..").is_ok_and(|parent| parent == dir)
}
