//! Facts about an inode as a record, printed by `stat`, `ls` and `tree`.

use f2fs::{
    Result,
    engine::{Engine, Stat},
    format::{FileType, inode::flag},
    units::{Ino, Time},
};
use jiff::Timestamp;
use serde::Serialize;

use crate::render::{Name, keyed};

/// An inode, with the name that led to it.
#[derive(Serialize)]
pub struct Entry {
    /// Name or path.
    #[serde(flatten, serialize_with = "keyed::name")]
    pub name: Name,
    /// Inode number.
    pub inode: u32,
    /// Kind of the file.
    pub kind: &'static str,
    /// Permissions in octal.
    pub mode: String,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names.
    pub links: u32,
    /// Size in bytes.
    pub size_bytes: u64,
    /// Allocated space in bytes.
    pub allocated_bytes: u64,
    /// Last access.
    pub accessed: String,
    /// Last change of the content.
    pub modified: String,
    /// Last change of the inode.
    pub changed: String,
    /// Creation, if the volume records it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created: Option<String>,
    /// Target of a symbolic link.
    #[serde(flatten, serialize_with = "keyed::target")]
    pub target: Option<Name>,
    /// Major and minor number of a device.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub device: Option<(u32, u32)>,
    /// Project id.
    #[serde(skip_serializing_if = "is_zero")]
    pub project: u32,
    /// Flags as named by chattr(1), and other states.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub flags: Vec<&'static str>,
    /// Algorithm and cluster size in blocks of a compressed file.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub compression: Option<String>,
    /// File type and permissions, for a listing like `ls -l`.
    #[serde(skip)]
    pub raw_mode: u16,
}

fn is_zero(n: &u32) -> bool {
    *n == 0
}

impl Entry {
    /// Collects the facts about an inode.
    pub fn of(volume: &Engine, ino: Ino, name: &[u8]) -> Result<Entry> {
        let stat = volume.stat(ino)?;
        let target = match stat.kind {
            FileType::Symlink => Some(Name(volume.read_link(ino)?)),
            _ => None,
        };
        Ok(Entry {
            name: Name(name.to_vec()),
            inode: ino.0,
            kind: stat.kind.name(),
            mode: format!("{:04o}", stat.mode & 0o7777),
            uid: stat.uid,
            gid: stat.gid,
            links: stat.links,
            size_bytes: stat.size,
            allocated_bytes: stat.sectors * 512,
            accessed: time(stat.atime),
            modified: time(stat.mtime),
            changed: time(stat.ctime),
            created: stat.crtime.map(time),
            target,
            device: stat.device.map(|device| (device.major, device.minor)),
            project: stat.project,
            flags: flags(&stat),
            compression: stat.compression.map(|how| {
                format!("{}, clusters of {} blocks", how.algorithm.name(), 1u32 << how.log_cluster_blocks)
            }),
            raw_mode: stat.mode,
        })
    }
}

/// Formats a time in ISO 8601, UTC, with nanoseconds. A time outside the calendar is formatted as seconds.
pub fn time(time: Time) -> String {
    match Timestamp::new(time.seconds, time.nanoseconds as i32) {
        Ok(timestamp) => format!("{timestamp:.9}"),
        Err(_) => format!("{}.{:09} s", time.seconds, time.nanoseconds),
    }
}

fn flags(stat: &Stat) -> Vec<&'static str> {
    let named = [
        (flag::COMPRESS, "compressed"),
        (flag::SYNC, "sync"),
        (flag::IMMUTABLE, "immutable"),
        (flag::APPEND, "append-only"),
        (flag::NODUMP, "no-dump"),
        (flag::NOATIME, "no-atime"),
        (flag::NOCOMPRESS, "no-compression"),
        (flag::DIRSYNC, "dir-sync"),
        (flag::PROJECT_INHERIT, "project-inherit"),
        (flag::CASEFOLD, "casefold"),
    ];
    let mut flags: Vec<_> =
        named.iter().filter(|(bit, _)| stat.flags & bit != 0).map(|(_, name)| *name).collect();
    let states = [
        (stat.encrypted, "encrypted"),
        (stat.sealed, "verity"),
        (stat.pinned, "pinned"),
        (stat.released, "released"),
    ];
    flags.extend(states.iter().filter(|(on, _)| *on).map(|(_, name)| *name));
    flags
}
