//! Execution of operations.

use std::{
    collections::HashMap,
    fs::{self, File, OpenOptions},
    io::{self, Read as _, Write as _},
    os::{
        fd::{AsFd, AsRawFd},
        unix::{
            fs::{FileExt, OpenOptionsExt},
            process::ExitStatusExt,
        },
    },
    path::{Path, PathBuf},
    process::{Command, ExitStatus},
    time::Duration,
};

use rustix::{
    fs::{
        AtFlags, CWD, FallocateFlags, FileType, Gid, Mode, OFlags, RenameFlags, Timespec, Timestamps, Uid,
        XattrFlags,
    },
    io::Errno,
    mount::{MountFlags, UnmountFlags},
    thread::CapabilitySet,
};

use crate::{
    Bytes, Entry, Manifest, Op, examine, ioctl, manifest, mount, nbd,
    op::{Allocate, Answer},
    room, threads, tree, ubi, workload,
};

/// Runs operations one after the other, and holds the open files.
#[derive(Debug, Default)]
pub struct Runner {
    root: PathBuf,
    open: HashMap<u32, File>,
}

impl Runner {
    /// Makes a runner that puts `root` before every path.
    pub fn new(root: impl Into<PathBuf>) -> Runner {
        Runner { root: root.into(), open: HashMap::new() }
    }

    /// Executes `op`, by its theme. Passes the entries of a manifest to `entries`.
    pub fn run(
        &mut self,
        op: &Op,
        entries: &mut dyn FnMut(Entry) -> io::Result<()>,
    ) -> io::Result<Option<Answer>> {
        match op {
            Op::Manifest { .. }
            | Op::Read { .. }
            | Op::Measure { .. }
            | Op::Examine { .. }
            | Op::Space { .. }
            | Op::Release { .. }
            | Op::Reserve { .. }
            | Op::Pattern { .. }
            | Op::Overwrite { .. }
            | Op::Plant { .. }
            | Op::Workload { .. }
            | Op::Steps { .. }
            | Op::Memory { .. }
            | Op::NbdAttach { .. }
            | Op::Execute { .. } => return self.answer(op, entries).map(Some),
            Op::Mkdir { .. }
            | Op::Rmdir { .. }
            | Op::RemoveTree { .. }
            | Op::Rename { .. }
            | Op::RenameNew { .. }
            | Op::Exchange { .. }
            | Op::Link { .. }
            | Op::Symlink { .. }
            | Op::Unlink { .. }
            | Op::Mknod { .. } => self.change_names(op),
            Op::Write { .. }
            | Op::WriteSync { .. }
            | Op::Truncate { .. }
            | Op::Allocate { .. }
            | Op::Tune { .. }
            | Op::Copy { .. }
            | Op::Fsync { .. } => self.change_content(op),
            Op::SetXattr { .. }
            | Op::RemoveXattr { .. }
            | Op::Chmod { .. }
            | Op::Chown { .. }
            | Op::Times { .. }
            | Op::Flags { .. }
            | Op::Project { .. } => self.change_attributes(op),
            Op::Open { .. }
            | Op::OpenNameless { .. }
            | Op::LinkOpen { .. }
            | Op::WriteOpen { .. }
            | Op::FsyncOpen { .. }
            | Op::Atomic { .. }
            | Op::Close { .. } => self.use_open_file(op),
            Op::Compression { .. }
            | Op::Compress { .. }
            | Op::Pin { .. }
            | Op::Collect { .. }
            | Op::Checkpoint { .. }
            | Op::Verity { .. }
            | Op::Encrypt { .. } => self.control_file(op),
            Op::Mount { .. }
            | Op::Unmount { .. }
            | Op::Sync
            | Op::DropCaches
            | Op::Pause { .. }
            | Op::KeepToLimits
            | Op::WaitForRoom
            | Op::LoadModule { .. }
            | Op::Threads { .. }
            | Op::UbiAttach { .. }
            | Op::UbiFind { .. }
            | Op::UbiDetach { .. }
            | Op::NbdDetach { .. }
            | Op::End { .. } => self.control_kernel(op),
        }
        .map(|()| None)
    }

    /// Executes operations that have an answer.
    fn answer(&self, op: &Op, entries: &mut dyn FnMut(Entry) -> io::Result<()>) -> io::Result<Answer> {
        Ok(match op {
            Op::Manifest { dir } => {
                let dir = self.at(dir);
                manifest::walk(&dir, entries)?;
                Answer::Manifest(Manifest::head(&dir)?)
            }
            Op::Read { path } => {
                let mut content = Vec::new();
                self.readable(path)?.take(1 << 20).read_to_end(&mut content)?;
                Answer::Content(Bytes(content))
            }
            Op::Measure { path } => {
                Answer::Content(Bytes(ioctl::measure_verity(self.readable(path)?)?.into_bytes()))
            }
            Op::Examine { dir } => {
                Answer::Examined(examine::examine(&mut examine::MountedTree(self.at(dir))))
            }
            Op::Space { dir } => space(&self.at(dir))?,
            Op::Release { path } => Answer::Blocks(ioctl::release_compressed_blocks(self.writable(path)?)?),
            Op::Reserve { path } => Answer::Blocks(ioctl::reserve_compressed_blocks(self.writable(path)?)?),
            Op::Pattern { path, pattern } => Answer::Records(pattern.run(&self.at(path))?),
            Op::Overwrite { path, overwrites } => Answer::Times(overwrites.run(&self.at(path))?),
            Op::Plant { dir, tree } => Answer::Records(tree.plant(&mut tree::Dir(self.at(dir)))?),
            Op::Workload { dir, workload, stage } => {
                let mut dir = workload::Dir::new(self.at(dir));
                Answer::Times(workload.run_on(*stage, &mut dir)?)
            }
            Op::Steps { dir, list, stage } => {
                let mut dir = workload::Dir::new(self.at(dir));
                Answer::Times(workload::StepList::read(list.as_path())?.run_on(*stage, &mut dir)?)
            }
            Op::Memory { name } => Answer::Memory(threads::memory(name)?),
            Op::NbdAttach { server, device } => Answer::Blocks(nbd::attach(server, device.as_path())? / 512),
            Op::Execute { program, arguments } => execute(&self.at(program), arguments)?,
            other => unreachable!("{other:?} has no answer"),
        })
    }

    /// Executes operations on names.
    fn change_names(&mut self, op: &Op) -> io::Result<()> {
        match op {
            Op::Mkdir { path, mode } => {
                let (path, mode) = (self.at(path), Mode::from_raw_mode(*mode));
                room::wait_for(|| Ok(rustix::fs::mkdir(&path, mode)?))?;
            }
            Op::Rmdir { path } => fs::remove_dir(self.at(path))?,
            Op::RemoveTree { dir } => fs::remove_dir_all(self.at(dir))?,
            Op::Rename { from, to } => fs::rename(self.at(from), self.at(to))?,
            Op::RenameNew { from, to } => {
                let (from, to) = (self.at(from), self.at(to));
                rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE)?;
            }
            Op::Exchange { from, to } => {
                let (from, to) = (self.at(from), self.at(to));
                rustix::fs::renameat_with(CWD, from, CWD, to, RenameFlags::EXCHANGE)?;
            }
            Op::Link { from, to } => fs::hard_link(self.at(from), self.at(to))?,
            Op::Symlink { target, path } => {
                std::os::unix::fs::symlink(target.as_path(), self.at(path))?;
            }
            Op::Unlink { path } => fs::remove_file(self.at(path))?,
            Op::Mknod { path, mode, major, minor } => {
                let device = rustix::fs::makedev(*major, *minor);
                let (kind, mode) = (FileType::from_raw_mode(*mode), Mode::from_raw_mode(*mode));
                rustix::fs::mknodat(CWD, self.at(path), kind, mode, device)?;
            }
            other => unreachable!("{other:?} has another theme"),
        }
        Ok(())
    }

    /// Executes operations on the content of files.
    fn change_content(&mut self, op: &Op) -> io::Result<()> {
        match op {
            Op::Write { path, offset, content } => {
                let file = OpenOptions::new().write(true).create(true).truncate(false).open(self.at(path))?;
                file.write_all_at(&content.to_vec(), *offset)
            }
            Op::WriteSync { path, offset, content } => {
                let mut options = OpenOptions::new();
                options.write(true).create(true).truncate(false).custom_flags(OFlags::SYNC.bits() as i32);
                options.open(self.at(path))?.write_all_at(&content.to_vec(), *offset)
            }
            Op::Truncate { path, size } => self.writable(path)?.set_len(*size),
            Op::Allocate { path, how, offset, length } => {
                let flags = match how {
                    Allocate::Extend => FallocateFlags::empty(),
                    Allocate::KeepSize => FallocateFlags::KEEP_SIZE,
                    Allocate::Punch => FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
                    Allocate::Zero => FallocateFlags::ZERO_RANGE,
                    Allocate::Collapse => FallocateFlags::COLLAPSE_RANGE,
                    Allocate::Insert => FallocateFlags::INSERT_RANGE,
                };
                Ok(rustix::fs::fallocate(self.writable(path)?, flags, *offset, *length)?)
            }
            Op::Tune { path, value } => fs::write(self.at(path), &value.0),
            Op::Copy { from, to } => {
                // The size of a file in /proc is not known before it is read.
                let mut content = Vec::new();
                self.readable(from)?.read_to_end(&mut content)?;
                let mut to = OpenOptions::new().write(true).create(true).truncate(false).open(self.at(to))?;
                to.write_all(&content)
            }
            Op::Fsync { path, data_only: false } => self.readable(path)?.sync_all(),
            Op::Fsync { path, data_only: true } => self.readable(path)?.sync_data(),
            other => unreachable!("{other:?} has another theme"),
        }
    }

    /// Executes operations on attributes.
    fn change_attributes(&mut self, op: &Op) -> io::Result<()> {
        match op {
            Op::SetXattr { path, name, value } => {
                let (name, value) = (&name.0[..], value.to_vec());
                rustix::fs::lsetxattr(self.at(path), name, &value, XattrFlags::empty())?;
            }
            Op::RemoveXattr { path, name } => rustix::fs::lremovexattr(self.at(path), &name.0[..])?,
            Op::Chmod { path, mode } => {
                rustix::fs::chmod(self.at(path), Mode::from_raw_mode(*mode))?;
            }
            Op::Chown { path, uid, gid } => {
                let (uid, gid) = (Uid::from_raw(*uid), Gid::from_raw(*gid));
                rustix::fs::chownat(CWD, self.at(path), Some(uid), Some(gid), AtFlags::SYMLINK_NOFOLLOW)?;
            }
            Op::Times { path, atime, mtime } => {
                let time = |t: &(i64, u32)| Timespec { tv_sec: t.0, tv_nsec: t.1.into() };
                let times = Timestamps { last_access: time(atime), last_modification: time(mtime) };
                rustix::fs::utimensat(CWD, self.at(path), &times, AtFlags::SYMLINK_NOFOLLOW)?;
            }
            Op::Flags { path, set, clear } => {
                let file = self.readable(path)?;
                let flags = (ioctl::flags(&file)? | set) & !clear;
                ioctl::set_flags(&file, flags)?;
            }
            Op::Project { path, id, inherit: false } => ioctl::set_project(self.readable(path)?, *id)?,
            Op::Project { path, id, inherit: true } => {
                ioctl::set_inherited_project(self.readable(path)?, *id)?;
            }
            other => unreachable!("{other:?} has another theme"),
        }
        Ok(())
    }

    /// Executes operations on open files.
    fn use_open_file(&mut self, op: &Op) -> io::Result<()> {
        match op {
            Op::Open { path, handle } => {
                let file = OpenOptions::new().read(true).write(true).open(self.at(path))?;
                self.open.insert(*handle, file);
            }
            Op::OpenNameless { dir, mode, handle } => {
                let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
                let file = rustix::fs::open(self.at(dir), flags, Mode::from_raw_mode(*mode))?;
                self.open.insert(*handle, file.into());
            }
            Op::LinkOpen { handle, to } => {
                let from = format!("/proc/self/fd/{}", self.opened(*handle)?.as_raw_fd());
                rustix::fs::linkat(CWD, from, CWD, self.at(to), AtFlags::SYMLINK_FOLLOW)?;
            }
            Op::WriteOpen { handle, offset, content } => {
                self.opened(*handle)?.write_all_at(&content.to_vec(), *offset)?;
            }
            Op::FsyncOpen { handle } => self.opened(*handle)?.sync_all()?,
            Op::Atomic { handle, commit: false } => ioctl::start_atomic_write(self.opened(*handle)?)?,
            Op::Atomic { handle, commit: true } => ioctl::commit_atomic_write(self.opened(*handle)?)?,
            Op::Close { handle } => drop(self.open.remove(handle)),
            other => unreachable!("{other:?} has another theme"),
        }
        Ok(())
    }

    /// Executes ioctls of f2fs, fs-verity and fscrypt.
    fn control_file(&self, op: &Op) -> io::Result<()> {
        match op {
            Op::Compression { path, algorithm, log_cluster } => {
                ioctl::set_compression(self.writable(path)?, *algorithm, *log_cluster)?;
            }
            Op::Compress { path } => ioctl::compress_file(self.writable(path)?)?,
            Op::Pin { path, pinned: true } => ioctl::pin(self.writable(path)?)?,
            Op::Pin { path, pinned: false } => ioctl::unpin(self.writable(path)?)?,
            Op::Collect { path } => ioctl::collect_garbage(self.readable(path)?)?,
            Op::Checkpoint { path } => ioctl::write_checkpoint(self.readable(path)?)?,
            Op::Verity { path } => ioctl::enable_verity(self.readable(path)?)?,
            Op::Encrypt { dir, byte, policy } => {
                let dir = self.readable(dir)?;
                let key = ioctl::add_encryption_key(dir.as_fd(), &policy.key(*byte), policy.descriptor)?;
                ioctl::set_encryption_policy(dir.as_fd(), policy, &key)?;
            }
            other => unreachable!("{other:?} has another theme"),
        }
        Ok(())
    }

    /// Executes operations on mounts, processes and devices of the kernel.
    fn control_kernel(&self, op: &Op) -> io::Result<()> {
        match op {
            Op::Mount { source, dir, fs, options, read_only } => {
                let flags = if *read_only { MountFlags::RDONLY } else { MountFlags::empty() };
                mount::mount(source.as_path(), &self.at(dir), fs, options, flags)?;
            }
            Op::Unmount { dir } => rustix::mount::unmount(self.at(dir), UnmountFlags::empty())?,
            Op::Sync => rustix::fs::sync(),
            Op::Pause { nanoseconds } => std::thread::sleep(Duration::from_nanos(*nanoseconds)),
            Op::DropCaches => fs::write("/proc/sys/vm/drop_caches", "3")?,
            Op::KeepToLimits => {
                let mut sets = rustix::thread::capabilities(None)?;
                sets.effective.remove(CapabilitySet::SYS_RESOURCE);
                rustix::thread::set_capabilities(None, sets)?;
            }
            Op::WaitForRoom => room::is_made(),
            Op::LoadModule { path, parameters } => {
                let module = File::open(self.at(path))?;
                let parameters = std::ffi::CString::new(parameters.as_str())?;
                rustix::system::finit_module(&module, &parameters, 0)?;
            }
            Op::Threads { name, go_on: false } => threads::stop(name)?,
            Op::Threads { name, go_on: true } => threads::resume(name)?,
            Op::UbiAttach { flash, volume } => ubi::attach(flash, volume)?,
            Op::UbiFind { flash } => ubi::find(flash).map(drop)?,
            Op::UbiDetach { flash } => ubi::detach(flash)?,
            Op::NbdDetach { device } => nbd::detach(device.as_path())?,
            Op::End { process } => threads::end(*process)?,
            other => unreachable!("{other:?} has another theme"),
        }
        Ok(())
    }

    /// Returns the host path of an operation's path.
    pub fn at(&self, path: &Bytes) -> PathBuf {
        let below = path.as_path();
        if self.root == Path::new("") {
            return below.to_owned();
        }
        self.root.join(below.strip_prefix("/").unwrap_or(below))
    }

    fn readable(&self, path: &Bytes) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        Ok(rustix::fs::open(self.at(path), flags, Mode::empty())?.into())
    }

    fn writable(&self, path: &Bytes) -> io::Result<File> {
        OpenOptions::new().write(true).open(self.at(path))
    }

    fn opened(&self, handle: u32) -> io::Result<&File> {
        self.open.get(&handle).ok_or_else(|| Errno::BADF.into())
    }
}

/// Returns the space of the file system that is mounted at `dir`.
fn space(dir: &Path) -> io::Result<Answer> {
    let space = rustix::fs::statvfs(dir)?;
    let bytes = |blocks: u64| blocks.saturating_mul(space.f_frsize);
    Ok(Answer::Space { total_bytes: bytes(space.f_blocks), free_bytes: bytes(space.f_bavail) })
}

/// Runs a program to its end.
fn execute(program: &Path, arguments: &[Bytes]) -> io::Result<Answer> {
    let arguments = arguments.iter().map(Bytes::as_path);
    // Also writable: flashbench, made for a terminal, uses its standard input as an output.
    let null = OpenOptions::new().read(true).write(true).open("/dev/null")?;
    let output = Command::new(program).args(arguments).stdin(null).output()?;
    Ok(Answer::Output {
        code: exit_code(output.status),
        stdout: Bytes(output.stdout),
        stderr: Bytes(output.stderr),
    })
}

/// As in shells: 128 plus the signal's number.
fn exit_code(status: ExitStatus) -> i32 {
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).unwrap_or(-1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Content;

    #[test]
    fn operations_have_their_effects() {
        let dir = tempfile::tempdir().expect("a directory");
        let mut runner = Runner::new(dir.path());
        let mut run = |op: Op| runner.run(&op, &mut |_| Ok(()));
        let path = |name: &str| Bytes::from(name);
        run(Op::Mkdir { path: path("/d"), mode: 0o750 }).expect("mkdir");
        let content = Content::Fill { byte: b'x', length: 5 };
        run(Op::Write { path: path("/d/f"), offset: 3, content }).expect("write");
        run(Op::Truncate { path: path("/d/f"), size: 6 }).expect("truncate");
        run(Op::Rename { from: path("/d/f"), to: path("/g") }).expect("rename");
        run(Op::Link { from: path("/g"), to: path("/d/h") }).expect("link");
        run(Op::Open { path: path("/g"), handle: 1 }).expect("open");
        run(Op::Unlink { path: path("/g") }).expect("unlink");
        let content = Content::Bytes("y".into());
        run(Op::WriteOpen { handle: 1, offset: 0, content }).expect("write to an open file");
        run(Op::Close { handle: 1 }).expect("close");
        // Not every file system of the host supports files without a name.
        if run(Op::OpenNameless { dir: path("/d"), mode: 0o600, handle: 2 }).is_ok() {
            run(Op::LinkOpen { handle: 2, to: path("/d/named") }).expect("linkat");
            run(Op::Close { handle: 2 }).expect("close");
            run(Op::Unlink { path: path("/d/named") }).expect("it has a name");
        }
        run(Op::Times { path: path("/d/h"), atime: (5, 6), mtime: (-7, 8) }).expect("utimens");
        let refused = run(Op::FsyncOpen { handle: 1 }).expect_err("closed");
        assert_eq!(Errno::from_io_error(&refused), Some(Errno::BADF));

        assert_eq!(fs::read(dir.path().join("d/h")).expect("read"), b"y\0\0xxx");
        let seen = Manifest::of_tree(dir.path()).expect("a manifest");
        let file = seen.get("d/h").expect("the file");
        assert_eq!((file.nlink, file.mtime), (1, (-7, 8)));
        assert_eq!(seen.entries.len(), 3);
    }
}
