//! Requests for names: LOOKUP, creation, removal, RENAME, and listings.

use std::time::Duration;

use f2fs::{
    engine::{DirEntry, Stat},
    format::{FileType, inode::DeviceNumber},
    units::Ino,
};
use fuse_protocol::{
    Errno, Output, Request,
    abi::{self, opcode},
    decode_device, dirent_bytes, put_dirent,
};
use posix::{OpenFor, Result};
use rustix::fs::RenameFlags;

use super::{Adapter, attributes::attr, caller_of, content::open_mode};
use crate::cache::{BeforeWrite, ReadFrom, VALIDITY};

impl Adapter {
    pub(super) fn make_node(&self, request: &mut Request<'_>, output: &mut Output) -> Result<()> {
        let (dir, caller) = (self.ino(request.header.node), caller_of(request.header));
        let abi::MknodIn { mode, rdev, umask, .. } = request.arguments.take()?;
        let (major, minor) = decode_device(rdev);
        let (name, device) = (request.arguments.name()?, Some(DeviceNumber { major, minor }));
        let from = self.cache.now();
        let made = self.fs.create(caller, dir, name, mode as u16, umask as u16, device)?;
        self.put_entry(dir, &made, from, output);
        Ok(())
    }

    pub(super) fn make_dir(&self, request: &mut Request<'_>, output: &mut Output) -> Result<()> {
        let (dir, caller) = (self.ino(request.header.node), caller_of(request.header));
        let abi::MkdirIn { mode, umask } = request.arguments.take()?;
        let mode = FileType::Directory.mode_bits() | mode as u16 & 0o7777;
        let from = self.cache.now();
        let made = self.fs.create(caller, dir, request.arguments.name()?, mode, umask as u16, None)?;
        self.put_entry(dir, &made, from, output);
        Ok(())
    }

    pub(super) fn symlink(&self, request: &mut Request<'_>, output: &mut Output) -> Result<()> {
        let (dir, caller) = (self.ino(request.header.node), caller_of(request.header));
        let (name, target) = (request.arguments.name()?, request.arguments.name()?);
        let from = self.cache.now();
        self.put_entry(dir, &self.fs.symlink(caller, dir, name, target)?, from, output);
        Ok(())
    }

    pub(super) fn link(&self, request: &mut Request<'_>, output: &mut Output) -> Result<()> {
        let (dir, caller) = (self.ino(request.header.node), caller_of(request.header));
        let old = self.ino(request.arguments.take::<abi::LinkIn>()?.old_node);
        let from = self.cache.now();
        self.put_entry(dir, &self.fs.link(caller, old, dir, request.arguments.name()?)?, from, output);
        Ok(())
    }

    /// Creates and opens a file, with a name or without.
    pub(super) fn create(&self, request: &mut Request<'_>, output: &mut Output) -> Result<()> {
        let (dir, caller) = (self.ino(request.header.node), caller_of(request.header));
        let abi::CreateIn { flags, mode, umask, open_flags } = request.arguments.take()?;
        let open_for = open_mode(flags, open_flags).open_for;
        let (mode, umask) = (FileType::Regular.mode_bits() | mode as u16 & 0o7777, umask as u16);
        let from = self.cache.now();
        let made = match request.header.opcode {
            opcode::CREATE => {
                self.fs.create_open(caller, (dir, request.arguments.name()?), mode, umask, open_for)?
            }
            _ => self.fs.create_nameless(caller, dir, mode, umask, open_for)?,
        };
        self.cache.note_opened(made.ino);
        // A process that creates a file for writing is the known writer, so it need not ask before
        // its first write.
        let before_write =
            (open_for == OpenFor::Writing).then(|| self.cache.about_to_write(caller, made.ino));
        let validity = match before_write {
            Some(BeforeWrite::Accept(validity)) => validity,
            _ => self.cache.attr_validity(&made, from),
        };
        output.put(&self.entry(&made, self.cache.name_validity(dir), validity));
        output.put(&self.opened(open_for));
        Ok(())
    }

    pub(super) fn rename(&self, request: &mut Request<'_>) -> Result<()> {
        let (dir, caller) = (self.ino(request.header.node), caller_of(request.header));
        let arguments = &mut request.arguments;
        let (new_dir, flags) = match request.header.opcode {
            opcode::RENAME => (arguments.take::<abi::RenameIn>()?.new_dir, 0),
            _ => arguments.take().map(|abi::Rename2In { new_dir, flags, .. }| (new_dir, flags))?,
        };
        let (from, to) = (arguments.name()?, arguments.name()?);
        let flags = RenameFlags::from_bits_retain(flags);
        self.fs.rename(caller, (dir, from), (self.ino(new_dir), to), flags)
    }

    pub(super) fn lookup(&self, request: &mut Request<'_>, out: &mut Output) -> Result<()> {
        let (dir, name) = (self.ino(request.header.node), request.arguments.name()?);
        let from = self.cache.now();
        match self.fs.lookup(dir, name) {
            Err(Errno::NOENT) if self.fs.negative_entries_last() => {
                // Node 0 is a negative entry: the kernel may cache that the name does not exist.
                out.put(&abi::EntryOut { name_valid_s: VALIDITY.as_secs(), ..Default::default() });
            }
            found => self.put_entry(dir, &found?, from, out),
        }
        Ok(())
    }

    pub(super) fn list(&self, request: &mut Request<'_>, out: &mut Output) -> Result<()> {
        let dir = self.ino(request.header.node);
        let abi::ReadIn { offset, size, .. } = request.arguments.take()?;
        let room = size as usize;
        self.fs.list(dir, offset, |volume, entry| {
            // The kind is all that a listing needs of the inode, so a damaged inode does not hide its entry.
            let kind = entry.kind.or_else(|| volume.inode(entry.ino).ok().map(|inode| inode.file_type()));
            let fits = out.bytes().len() + dirent_bytes(&entry.name) <= room;
            if fits {
                put_dirent(out, entry.ino.0.into(), entry.next_cookie, kind_code(kind), &entry.name);
            }
            Ok(fits)
        })
    }

    pub(super) fn list_with_facts(&self, request: &mut Request<'_>, out: &mut Output) -> Result<()> {
        let dir = self.ino(request.header.node);
        let abi::ReadIn { offset, size, .. } = request.arguments.take()?;
        let mut room = (size as usize).saturating_sub(out.bytes().len());
        let name_validity = self.cache.name_validity(dir);
        let fits = |entry: &DirEntry| {
            let left = room.checked_sub(size_of::<abi::EntryOut>() + dirent_bytes(&entry.name));
            left.map(|left| room = left).is_some()
        };
        self.fs.list_with_facts(dir, offset, fits, |entry, stat| {
            // Without attributes (node 0) the kernel lists only the name, and looks it up when a program asks
            // for more.
            // The volume is locked, so nothing has been written since the attributes were read.
            let attr_validity = |stat| self.cache.attr_validity(stat, self.cache.now());
            let facts = stat.map(|stat| self.entry(stat, name_validity, attr_validity(stat)));
            out.put(&facts.unwrap_or_default());
            let kind = stat.map(|stat| stat.kind).or(entry.kind);
            put_dirent(out, entry.ino.0.into(), entry.next_cookie, kind_code(kind), &entry.name);
        })
    }

    pub(super) fn entry(
        &self,
        stat: &Stat,
        name_validity: Duration,
        attr_validity: Duration,
    ) -> abi::EntryOut {
        abi::EntryOut {
            node: self.node(stat.ino),
            generation: stat.generation.into(),
            name_valid_s: name_validity.as_secs(),
            attr_valid_s: attr_validity.as_secs(),
            attr_valid_ns: attr_validity.subsec_nanos(),
            attr: attr(stat, self.block_bytes),
            ..Default::default()
        }
    }

    /// Answers with an inode whose attributes were read after `from`.
    pub(super) fn put_entry(&self, dir: Ino, stat: &Stat, from: ReadFrom, out: &mut Output) {
        out.put(&self.entry(stat, self.cache.name_validity(dir), self.cache.attr_validity(stat, from)));
    }
}

/// Returns the kind of an entry as readdir(3) has it: the type bits of a mode, or 0 if it is unknown.
fn kind_code(kind: Option<FileType>) -> u32 {
    kind.map_or(0, |kind| u32::from(kind.mode_bits() >> 12))
}
