//! Record locks (fcntl) of other programs, which `flock` does not meet.
//!
//! QEMU locks single bytes of each image that it has open (QEMU, block/file-posix.c): byte 100 + n if it uses permission n
//! of include/block/block-common.h, and byte 200 + n if it lets no other program use that permission.

use std::{io, ops::RangeInclusive, process};

use rustix::fs::Dev;

use super::{
    locks::{self, Access, Kind, Lock, locks_in},
    users::patiently,
};
use crate::InUse;

/// The byte that QEMU locks in an image that it writes, and the bytes of all permissions that it uses.
const QEMU_WRITES: u64 = 101;
const QEMU_USES: RangeInclusive<u64> = 100..=199;

/// Returns the user that has a record lock in a file. `None` without `/proc`. A writer that looks for record locks has one
/// for a moment, so that it is not taken for a user.
pub(crate) fn user(device: Dev, inode: u64) -> Option<InUse> {
    let look = || match user_in(&locks::table(), device, inode) {
        Some(InUse::Writer) => Err(io::Error::from(io::ErrorKind::ResourceBusy)),
        other => Ok(other),
    };
    patiently(look).unwrap_or(Some(InUse::Writer))
}

/// Returns the most serious user in the text of `/proc/locks` (proc_locks(5)).
fn user_in(table: &str, device: Dev, inode: u64) -> Option<InUse> {
    let own = Some(process::id());
    let records = locks_in(table, device, inode).filter(|lock| lock.kind == Kind::Record);
    let users = records.filter(|lock| lock.process != own).map(|Lock { access, bytes, .. }| match access {
        Access::Exclusive => InUse::Writer,
        // The kernel joins adjacent locks of one program.
        Access::Shared if QEMU_USES.contains(bytes.start()) && QEMU_USES.contains(bytes.end()) => {
            if bytes.contains(&QEMU_WRITES) { InUse::Writer } else { InUse::Reader }
        }
        Access::Shared => InUse::Reader,
    });
    users.min_by_key(|user| !user.writes())
}

#[cfg(test)]
mod tests {
    use rustix::fs::makedev;

    use super::*;

    #[test]
    fn locks_of_qemu_tell_writers_from_readers() {
        let of = |locks: &[&str]| {
            let lines = locks.iter().zip(1..).map(|(lock, n)| format!("{n}: {lock}\n"));
            user_in(&lines.collect::<String>(), makedev(0xfe, 1), 77)
        };
        let (reads, writes) =
            ("OFDLCK ADVISORY  READ -1 fe:01:77 100 100", "OFDLCK ADVISORY  READ -1 fe:01:77 100 101");
        let shares = "OFDLCK ADVISORY  READ -1 fe:01:77 201 201";
        let exclusive = "POSIX  ADVISORY  WRITE 4000000000 fe:01:77 0 EOF";
        let own = format!("POSIX  ADVISORY  WRITE {} fe:01:77 0 EOF", process::id());
        assert_eq!(of(&[reads, shares]), Some(InUse::Reader));
        assert_eq!(of(&[shares, writes]), Some(InUse::Writer));
        assert_eq!(of(&[shares, exclusive]), Some(InUse::Writer));
        assert_eq!(of(&["POSIX  ADVISORY  READ 4000000000 fe:01:77 0 EOF"]), Some(InUse::Reader));
        let others = [
            "FLOCK  ADVISORY  WRITE 1 fe:01:77 0 EOF",
            "OFDLCK ADVISORY  WRITE -1 fe:01:78 0 EOF",
            &own,
            "-> POSIX",
        ];
        assert_eq!(of(&others), None);
    }
}
