//! The guest's disk on which a golden image is made, and short forms of the operations on it.

use std::{ops::Range, path::PathBuf};

use anyhow::{Result, bail};
use guest::{Bytes, Content, Op, op::Allocate};

use crate::judge::vm::Vm;

/// Linux's answer if no section is worth cleaning.
const ENODATA: i32 = 61;

/// The disk of one recipe. Paths of its operations are below the mount point.
#[derive(Debug)]
pub struct Stage<'a> {
    vm: &'a mut Vm,
    disk: usize,
    dir: String,
    block: u64,
    after_cut: PathBuf,
    cut: bool,
}

impl<'a> Stage<'a> {
    /// Uses disk `disk` of a machine, with blocks of the machine's size. A power cut leaves the disk's image
    /// at `after_cut`.
    pub fn new(vm: &'a mut Vm, disk: usize, after_cut: PathBuf) -> Stage<'a> {
        let block = vm.machine().block_bytes();
        Stage { vm, disk, dir: format!("/mnt/{disk}"), block, after_cut, cut: false }
    }

    /// Mounts the volume with `options`.
    pub fn mount(&mut self, options: &str) -> Result<()> {
        self.run([Op::Mount {
            source: format!("/disk/{}", self.disk).into(),
            dir: self.dir.clone().into(),
            fs: "f2fs".into(),
            options: options.into(),
            read_only: false,
        }])
    }

    /// Unmounts the volume.
    pub fn unmount(&mut self) -> Result<()> {
        self.run([Op::Unmount { dir: self.dir.clone().into() }])
    }

    /// Cuts the power: later writes do not reach the image. Then closes the files open in the guest and
    /// unmounts the volume, on a disk that is discarded.
    pub fn cut(&mut self) -> Result<()> {
        self.cut_with_open(0..8)
    }

    /// Cuts the power with files open under the numbers `handles`.
    pub fn cut_with_open(&mut self, handles: Range<u32>) -> Result<()> {
        self.vm.cut(self.disk, std::slice::from_ref(&self.after_cut))?;
        self.cut = true;
        self.run(handles.map(|handle| Op::Close { handle }))?;
        self.unmount()
    }

    /// Returns true if the power was cut.
    pub fn was_cut(&self) -> bool {
        self.cut
    }

    /// Executes operations, all of which must succeed.
    pub fn run(&mut self, ops: impl IntoIterator<Item = Op>) -> Result<()> {
        self.vm.run_all(ops).map(drop)
    }

    /// Cleans one section, if one is worth cleaning.
    pub fn collect(&mut self) -> Result<()> {
        let path = format!("{}/.", self.dir).into();
        match self.vm.attempt(Op::Collect { path })? {
            Err(refusal) if refusal.errno != ENODATA => bail!("cleaning: {}", refusal.error),
            _ => Ok(()),
        }
    }

    /// Returns a maker of operations on this stage.
    pub fn at(&self) -> At {
        At { dir: self.dir.clone(), block: self.block }
    }
}

/// A maker of operations below a directory.
#[derive(Debug, Clone)]
pub struct At {
    dir: String,
    block: u64,
}

#[allow(missing_docs)] // each method performs the operation of its name
impl At {
    /// Makes operations from the root.
    pub fn root() -> At {
        At { dir: String::new(), block: 4096 }
    }

    /// Makes operations for a volume with another block size.
    pub fn with_block(self, bytes: u64) -> At {
        At { block: bytes, ..self }
    }

    /// Returns the block size in bytes.
    pub fn block(&self) -> u64 {
        self.block
    }

    /// Returns the whole path of `name`, which may contain any bytes.
    pub fn path(&self, name: impl AsRef<[u8]>) -> Bytes {
        Bytes([self.dir.as_bytes(), b"/", name.as_ref()].concat())
    }

    /// Returns a maker of operations below a subdirectory.
    pub fn below(&self, dir: &str) -> At {
        At { dir: format!("{}/{dir}", self.dir), block: self.block }
    }

    pub fn mkdir(&self, name: impl AsRef<[u8]>) -> Op {
        Op::Mkdir { path: self.path(name), mode: 0o755 }
    }

    pub fn write(&self, name: impl AsRef<[u8]>, offset: u64, content: Content) -> Op {
        Op::Write { path: self.path(name), offset, content }
    }

    pub fn text(&self, name: impl AsRef<[u8]>, text: &str) -> Op {
        self.write(name, 0, Content::Bytes(text.into()))
    }

    pub fn prose(&self, name: impl AsRef<[u8]>, length: u64) -> Op {
        self.write(name, 0, Content::Prose { seed: length, length })
    }

    pub fn noise(&self, name: impl AsRef<[u8]>, length: u64) -> Op {
        self.write(name, 0, Content::Noise { seed: length, length })
    }

    pub fn truncate(&self, name: &str, size: u64) -> Op {
        Op::Truncate { path: self.path(name), size }
    }

    pub fn allocate(&self, name: &str, how: Allocate, offset: u64, length: u64) -> Op {
        Op::Allocate { path: self.path(name), how, offset, length }
    }

    pub fn symlink(&self, target: impl Into<Bytes>, name: impl AsRef<[u8]>) -> Op {
        Op::Symlink { target: target.into(), path: self.path(name) }
    }

    pub fn link(&self, from: &str, to: &str) -> Op {
        Op::Link { from: self.path(from), to: self.path(to) }
    }

    pub fn rename(&self, from: &str, to: &str) -> Op {
        Op::Rename { from: self.path(from), to: self.path(to) }
    }

    pub fn unlink(&self, name: &str) -> Op {
        Op::Unlink { path: self.path(name) }
    }

    pub fn rmdir(&self, name: &str) -> Op {
        Op::Rmdir { path: self.path(name) }
    }

    pub fn mknod(&self, name: &str, mode: u32, major: u32, minor: u32) -> Op {
        Op::Mknod { path: self.path(name), mode, major, minor }
    }

    pub fn xattr(&self, name: &str, attribute: &str, value: Content) -> Op {
        Op::SetXattr { path: self.path(name), name: attribute.into(), value }
    }

    pub fn user(&self, name: &str, attribute: &str, value: &str) -> Op {
        self.xattr(name, attribute, Content::Bytes(value.into()))
    }

    pub fn chmod(&self, name: &str, mode: u32) -> Op {
        Op::Chmod { path: self.path(name), mode }
    }

    pub fn chown(&self, name: &str, uid: u32, gid: u32) -> Op {
        Op::Chown { path: self.path(name), uid, gid }
    }

    pub fn times(&self, name: &str, atime: (i64, u32), mtime: (i64, u32)) -> Op {
        Op::Times { path: self.path(name), atime, mtime }
    }

    pub fn fsync(&self, name: &str) -> Op {
        Op::Fsync { path: self.path(name), data_only: false }
    }

    pub fn datasync(&self, name: &str) -> Op {
        Op::Fsync { path: self.path(name), data_only: true }
    }

    pub fn checkpoint(&self) -> Op {
        Op::Checkpoint { path: self.path(".") }
    }

    pub fn open(&self, name: &str, handle: u32) -> Op {
        Op::Open { path: self.path(name), handle }
    }

    pub fn flags(&self, name: &str, set: u32, clear: u32) -> Op {
        Op::Flags { path: self.path(name), set, clear }
    }

    pub fn project(&self, name: &str, id: u32) -> Op {
        Op::Project { path: self.path(name), id, inherit: false }
    }
}
