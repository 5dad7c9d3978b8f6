//! Requests for attributes: GETATTR, SETATTR, STATX, STATFS.

use std::time::Duration;

use f2fs::{
    engine::{SetAttr, Stat},
    format::inode::DeviceNumber,
    units::{Ino, Time},
};
use fuse_protocol::{
    Errno, Output, Request, Response, WhenCrowded,
    abi::{self, valid},
    encode_device,
};
use posix::{Change, Credentials, FileSystem, Result, TimesFrom};

use super::{Adapter, WriteCaching, caller_of};
use crate::cache::{BeforeWrite, NO_VALIDITY, is_known_to_read};

impl Adapter {
    pub(super) fn get_attr(&self, request: &mut Request<'_>, response: &mut Response) -> Result<()> {
        let (ino, caller) = (self.ino(request.header.node), caller_of(request.header));
        let abi::GetattrIn { getattr_flags, handle, .. } = request.arguments.take()?;
        // A process that has the file open for writing may be about to write.
        let writes = getattr_flags & abi::GETATTR_HANDLE != 0 && handle != 0;
        let before_write = writes.then(|| self.cache.about_to_write(caller, ino));
        let Some(before_write) = before_write else {
            let from = self.cache.now();
            let stat = self.fs.stat(ino)?;
            let validity = self.cache.attr_validity(&stat, from);
            put_attr(&stat, self.block_bytes, validity, &mut response.output);
            return Ok(());
        };
        let (fs, caching, block_bytes) = (self.fs.clone(), self.caching, self.block_bytes);
        let answer = move |validity: Duration, output: &mut Output| {
            put_attr(&stat_before_write(&fs, caching, caller, ino)?, block_bytes, validity, output);
            Ok(())
        };
        match before_write {
            BeforeWrite::Accept(validity) => answer(validity, &mut response.output)?,
            BeforeWrite::WriteBack => {
                let (cache, files) = (self.cache.clone(), self.cache.to_write_back(ino));
                self.after_write_back_for_space(files, response, move |files, output| {
                    cache.written_back(ino, files)?;
                    answer(NO_VALIDITY, output)
                });
            }
            // The queue is that of the request to wait for.
            BeforeWrite::Wait => {
                let reply = response.defer();
                // If it cannot wait, fsync(2) and close(2) report that the write came too late.
                self.kernel_write_back.then(Vec::new(), reply, WhenCrowded::AnswerAtOnce, move |output| {
                    answer(NO_VALIDITY, output)
                });
            }
        }
        Ok(())
    }

    pub(super) fn set_attr(&self, request: &mut Request<'_>, output: &mut Output) -> Result<()> {
        let change = change(&request.arguments.take()?);
        let from = self.cache.now();
        let stat = self.fs.change(caller_of(request.header), self.ino(request.header.node), &change)?;
        put_attr(&stat, self.block_bytes, self.cache.validity_after_change(&stat, from), output);
        Ok(())
    }

    pub(super) fn statx(&self, request: &Request<'_>, output: &mut Output) -> Result<()> {
        let from = self.cache.now();
        let stat = &self.fs.stat(self.ino(request.header.node))?;
        let time =
            |time: Time| abi::StatxTime { seconds: time.seconds, nanoseconds: time.nanoseconds, reserved: 0 };
        let device = stat.device.unwrap_or(DeviceNumber { major: 0, minor: 0 });
        let basic = attr(stat, self.block_bytes);
        output.put(&abi::StatxOut {
            attr_valid_s: self.cache.attr_validity(stat, from).as_secs(),
            mask: abi::STATX_BASIC | if stat.crtime.is_some() { abi::STATX_BTIME } else { 0 },
            block_bytes: basic.block_bytes,
            links: basic.links,
            uid: basic.uid,
            gid: basic.gid,
            mode: stat.mode,
            ino: basic.ino,
            size: basic.size,
            blocks: basic.blocks,
            atime: time(stat.atime),
            btime: time(stat.crtime.unwrap_or_default()),
            ctime: time(stat.ctime),
            mtime: time(stat.mtime),
            rdev_major: device.major,
            rdev_minor: device.minor,
            ..Default::default()
        });
        Ok(())
    }

    pub(super) fn stat_fs(&self, output: &mut Output) -> Result<()> {
        let (space, bytes) = self.fs.space()?;
        output.put(&abi::StatfsOut {
            blocks: space.blocks,
            free: space.free_blocks,
            available: space.free_blocks,
            inodes: space.inodes,
            free_inodes: space.free_inodes,
            block_bytes: bytes,
            name_bytes: 255,
            fragment_bytes: bytes,
            ..Default::default()
        });
        Ok(())
    }
}

/// Returns the attributes of a file to a process that may be about to write to it. If the kernel keeps dirty pages, it
/// accepts the data next, so a file that refuses writes refuses them here.
fn stat_before_write(fs: &FileSystem, caching: WriteCaching, caller: Credentials, ino: Ino) -> Result<Stat> {
    let stat = fs.stat(ino)?;
    let accepted = caching == WriteCaching::Bypassed || FileSystem::accepts_writes(&stat);
    // A read at the end of a file and a seek to its end send the same request.
    if accepted || is_known_to_read(caller.pid) { Ok(stat) } else { Err(Errno::PERM) }
}

fn put_attr(stat: &Stat, block_bytes: u32, validity: Duration, output: &mut Output) {
    let (attr_valid_s, attr_valid_ns) = (validity.as_secs(), validity.subsec_nanos());
    let attr = attr(stat, block_bytes);
    output.put(&abi::AttrOut { attr_valid_s, attr_valid_ns, attr, ..Default::default() });
}

fn change(asked: &abi::SetattrIn) -> Change {
    let has = |bit: u32| asked.valid & bit != 0;
    let time = |given: u32, now: u32, seconds: i64, nanoseconds: u32| match (has(given), has(now)) {
        (_, true) => Some(crate::clock::now()),
        (true, false) => Some(Time { seconds, nanoseconds }),
        (false, false) => None,
    };
    let set = SetAttr {
        permissions: has(valid::MODE).then_some(asked.mode as u16 & 0o7777),
        uid: has(valid::UID).then_some(asked.uid),
        gid: has(valid::GID).then_some(asked.gid),
        atime: time(valid::ATIME, valid::ATIME_NOW, asked.atime, asked.atime_nanoseconds),
        mtime: time(valid::MTIME, valid::MTIME_NOW, asked.mtime, asked.mtime_nanoseconds),
        ctime: time(valid::CTIME, 0, asked.ctime, asked.ctime_nanoseconds),
        ..SetAttr::default()
    };
    Change {
        size: has(valid::SIZE).then_some(asked.size),
        drops_privilege: has(valid::KILL_SUIDGID),
        times: times_from(asked),
        set,
    }
}

/// Returns the origin of the times of a SETATTR. With WRITEBACK_CACHE the kernel maintains the times of
/// regular files and sends explicit values even for "now"; in that case all of them are equal.
fn times_from(asked: &abi::SetattrIn) -> TimesFrom {
    let has = |bits: u32| asked.valid & bits == bits;
    let is_status = asked.mtime == asked.ctime && asked.mtime_nanoseconds == asked.ctime_nanoseconds;
    let mtime_is_now = has(valid::MTIME | valid::MTIME_NOW) || has(valid::MTIME | valid::CTIME) && is_status;
    match (has(valid::ATIME), has(valid::ATIME_NOW)) {
        (true, true) if mtime_is_now => TimesFrom::Now,
        (true, _) => TimesFrom::Caller,
        (false, _) if !has(valid::MTIME) || has(valid::SIZE) => TimesFrom::Elsewhere,
        // The kernel flushes times through a handle open for writing (`fuse_write_inode`); no system call
        // that sets times does.
        (false, _) if has(valid::CTIME | valid::HANDLE) => TimesFrom::Elsewhere,
        (false, _) if has(valid::CTIME) => TimesFrom::CallerOrCache,
        (false, _) => TimesFrom::Caller,
    }
}

pub fn attr(stat: &Stat, block_bytes: u32) -> abi::Attr {
    abi::Attr {
        ino: stat.ino.0.into(),
        size: stat.size,
        blocks: stat.sectors,
        atime: stat.atime.seconds,
        mtime: stat.mtime.seconds,
        ctime: stat.ctime.seconds,
        atime_nanoseconds: stat.atime.nanoseconds,
        mtime_nanoseconds: stat.mtime.nanoseconds,
        ctime_nanoseconds: stat.ctime.nanoseconds,
        mode: stat.mode.into(),
        links: stat.links,
        uid: stat.uid,
        gid: stat.gid,
        rdev: stat.device.map_or(0, |device| encode_device((device.major, device.minor))),
        block_bytes,
        flags: 0,
    }
}
