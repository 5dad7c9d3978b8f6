//! Access times.

use f2fs::{
    engine::{Engine, SetAttr, Stat},
    format::inode::flag,
    units::{Ino, Time},
};

use super::{Atime, FileSystem, Result};
use crate::{pending_atimes, volume_lock::Writing};

/// Age in seconds at which `relatime` renews an access time.
const DAY: i64 = 24 * 60 * 60;

/// Number of pending access times that are applied between two turns of readers.
const TIMES_AT_ONCE: usize = 32;

impl FileSystem {
    /// Renews the access time if the mount options and the inode call for it. Returns true if it was renewed.
    pub(super) fn renew_atime(&self, ino: Ino) -> bool {
        let due = |volume: &Engine| {
            let stat = self.pending_atimes.stat(volume, ino).ok();
            let stat = stat.filter(|_| volume.read_only_reason().is_none())?;
            let now = (volume.options().clock)();
            let wanted = match self.settings.atime {
                Atime::Never => false,
                Atime::Strict => true,
                Atime::Relative => is_relatively_old(&stat, now),
            };
            (wanted && stat.flags & (flag::NOATIME | flag::IMMUTABLE) == 0).then_some(now)
        };
        if self.settings.atime == Atime::Never || self.is_resting() {
            return false;
        }
        let Some(atime) = self.read_lock().ok().and_then(|volume| due(&volume)) else { return false };
        // Access times are best effort: a full volume can still be read. A reader does not wait for a writer
        // unless too many times are pending.
        self.pending_atimes.add(ino, atime)
            || !self.volume.has_writers()
                && self.apply_pending_atimes_in_background().is_ok()
                && self.pending_atimes.add(ino, atime)
    }

    /// Applies the pending access times. Readers may enter during the upkeep that is due before each of them,
    /// and add further times. At most as many times as the table holds are applied, so that a writer does not
    /// wait for readers without end. Later ones are left to the next writer.
    pub(super) fn apply_pending_atimes(&self, volume: &mut Writing<'_>) {
        if volume.read_only_reason().is_some() || self.is_resting() {
            return;
        }
        for number in 1..=pending_atimes::FILES_MAX {
            if self.pending_atimes.is_empty() {
                return;
            }
            if number % TIMES_AT_ONCE == 0 && volume.let_readers_in(|| ()).is_err() {
                return;
            }
            let upkeep = volume.begin_upkeep();
            if self.settle(volume, upkeep).is_err() {
                // The times stay pending. A change that follows meets the same error in its own upkeep.
                return;
            }
            // Taken out only now: readers that entered during the upkeep have seen the pending time.
            let Some((ino, atime)) = self.pending_atimes.take_one() else { return };
            let _ = set_atime(volume, ino, atime);
        }
    }

    /// Applies the pending access times if no writer has done so. The call does not count as a request.
    pub fn apply_pending_atimes_in_background(&self) -> Result<()> {
        if !self.pending_atimes.is_empty() {
            self.apply_pending_atimes(&mut self.quiet_write_lock()?);
        }
        Ok(())
    }
}

/// Sets the access time without a change of the ctime.
pub(super) fn set_atime(volume: &mut Engine, ino: Ino, atime: Time) -> f2fs::Result<()> {
    let ctime = volume.stat(ino)?.ctime;
    volume
        .begin(f2fs::engine::Caller::ADMIN)
        .set_attr(ino, &SetAttr { atime: Some(atime), ctime: Some(ctime), ..SetAttr::default() })
}

/// Returns true if `relatime` renews the access time (Linux, `relatime_need_update`).
fn is_relatively_old(stat: &Stat, now: Time) -> bool {
    let age = now.seconds.saturating_sub(stat.atime.seconds);
    stat.atime <= stat.mtime || stat.atime <= stat.ctime || age >= DAY
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use block::MemoryDevice;

    use super::*;
    use crate::file_system::tests::format;

    #[test]
    fn a_time_before_all_calendars_is_old() {
        let volume = format(&Arc::new(MemoryDevice::new(64 << 20)), "");
        let stat = volume.stat(volume.superblock().root_ino).unwrap();
        let time = |seconds: i64| Time { seconds, nanoseconds: 0 };
        let read = |atime: i64, now: i64| {
            let stat = Stat { atime: time(atime), mtime: time(i64::MIN), ctime: time(i64::MIN), ..stat };
            is_relatively_old(&stat, time(now))
        };
        assert!(read(i64::MIN + 1, 1_700_000_000) && !read(i64::MAX, -1));
        assert!(read(0, DAY) && !read(1, DAY));
    }
}
