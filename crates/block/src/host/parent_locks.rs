//! Locks on block devices that a parent process holds for the tools that it starts. systemd's convention asks programs
//! to lock a device (`flock`) while they change it (<https://systemd.io/BLOCK_DEVICE_LOCKING>), and systemd-repart and
//! `udevadm lock` do so while mkfs runs.

use std::{
    fs::{self, File},
    os::unix::fs::{FileTypeExt, MetadataExt},
    process,
};

use rustix::fs::Dev;

use super::locks::{self, Access, Kind, locks_in};

/// Maximum number of parents that are examined, because processes can change while they are read.
const PARENTS_MAX: usize = 64;
/// The first process of a host or container. Every process descends from it.
const INIT: u32 = 1;

/// Returns true if the file is a block device that a parent of this process, or a parent of that one, has locked
/// exclusively. A regular file is not locked for children: a program that writes an image itself locks it, too.
pub(crate) fn is_locked_by_parent(file: &File) -> bool {
    let Ok(facts) = file.metadata() else { return false };
    if !facts.file_type().is_block_device() {
        return false;
    }
    let owners = owners_in(&locks::table(), facts.dev(), facts.ino());
    !owners.is_empty() && parents().any(|parent| owners.contains(&parent))
}

/// Returns the processes that have locked a file exclusively by `flock`, by the text of `/proc/locks` (proc_locks(5)).
fn owners_in(table: &str, device: Dev, inode: u64) -> Vec<u32> {
    let locks = locks_in(table, device, inode);
    let exclusive = locks.filter(|lock| (lock.kind, lock.access) == (Kind::Whole, Access::Exclusive));
    exclusive.filter_map(|lock| lock.process).collect()
}

/// The parents of this process, the nearest first, without [`INIT`].
fn parents() -> impl Iterator<Item = u32> {
    let parent = |pid: &u32| parent_in(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?);
    std::iter::successors(Some(process::id()), parent).skip(1).take_while(|pid| *pid > INIT).take(PARENTS_MAX)
}

/// Returns the parent in the text of `/proc/PID/stat` (proc_pid_stat(5)). The name before it may hold any characters.
fn parent_in(stat: &str) -> Option<u32> {
    stat.rsplit_once(')')?.1.split_whitespace().nth(1)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use rustix::fs::makedev;

    use super::*;

    #[test]
    fn only_exclusive_locks_of_the_device_have_an_owner() {
        let table = "1: FLOCK  ADVISORY  WRITE 77 00:05:93 0 EOF\n\
                     2: FLOCK  ADVISORY  READ 78 00:05:93 0 EOF\n\
                     3: FLOCK  ADVISORY  WRITE 79 00:05:94 0 EOF\n\
                     4: POSIX  ADVISORY  WRITE 80 00:05:93 0 EOF\n\
                     1: -> FLOCK  ADVISORY  WRITE 81 00:05:93 0 EOF\n";
        assert_eq!(owners_in(table, makedev(0, 5), 93), [77]);
    }

    #[test]
    fn a_parent_is_found_behind_any_name() {
        assert_eq!(parent_in("4242 (a) S 7 (b) R 41 4242 0"), Some(41));
        assert_eq!(parent_in("no process"), None);
        assert_eq!(parents().next(), Some(std::os::unix::process::parent_id()));
    }
}
