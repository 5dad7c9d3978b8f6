//! Work outside requests: checkpoints at an interval, pending access times at every tick, and cleaning in idle
//! times.

use std::time::{Duration, Instant};

use crate::FileSystem;

/// Number of ticks without a request after which the volume is idle: about 5 seconds.
const IDLE_TICKS: u32 = 5;

/// When segments are cleaned although space is not needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BackgroundGc {
    /// While the volume is idle.
    #[default]
    On,
    /// Never.
    Off,
}

/// The work outside requests. The front end calls [`tick`](Self::tick) about once a second.
pub struct IdleWork {
    checkpoint_interval: Duration,
    cleaning: BackgroundGc,
    last_checkpoint: Instant,
    /// Number of requests at the last tick, and number of ticks since it changed.
    requests: u64,
    idle_ticks: u32,
}

impl IdleWork {
    /// Creates the work for a file system. While there are changes, a checkpoint is written once in
    /// `checkpoint_interval`.
    pub fn new(fs: &FileSystem, checkpoint_interval: Duration, cleaning: BackgroundGc) -> IdleWork {
        let (last_checkpoint, requests) = (Instant::now(), fs.requests());
        IdleWork { checkpoint_interval, cleaning, last_checkpoint, requests, idle_ticks: 0 }
    }

    /// Does the work that is due. Its errors recur in the next request, which has a caller to report them to.
    pub fn tick(&mut self, fs: &FileSystem) {
        // The checkpoint below counts as a request itself.
        self.idle_ticks = if fs.requests() == self.requests { self.idle_ticks + 1 } else { 0 };
        // At rest only a request can have changed something: one that freed a removed file.
        let has_left_rest = fs.is_resting() && self.idle_ticks == 0;
        if has_left_rest || self.last_checkpoint.elapsed() >= self.checkpoint_interval {
            let _ = fs.sync();
            self.last_checkpoint = Instant::now();
        }
        let _ = fs.apply_pending_atimes_in_background();
        if self.idle_ticks >= IDLE_TICKS && self.cleaning == BackgroundGc::On {
            let _ = fs.clean_in_idle_time();
        }
        self.requests = fs.requests();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use block::MemoryDevice;

    use super::*;
    use crate::{
        Credentials, WriteMode,
        file_system::tests::{format, mounted},
    };

    #[test]
    fn an_idle_volume_is_cleaned_although_checkpoints_are_frequent() {
        const USER: Credentials = Credentials { uid: 0, gid: 0, pid: 0 };
        const PUNCH_HOLE_AND_KEEP_SIZE: u32 = 3;
        let fs = mounted(format(&Arc::new(MemoryDevice::new(256 << 20)), ""));
        let ino = fs.create(USER, fs.root().unwrap(), b"file", 0o100_644, 0, None).unwrap().ino;
        let write = |n: u64| fs.write(USER, ino, n << 20, &vec![1; 1 << 20], WriteMode::default());
        let end = (0..).find(|n| write(*n).is_err()).unwrap() << 20;
        for hole in (0..end).step_by(128 << 10) {
            fs.allocate(USER, ino, hole, 64 << 10, PUNCH_HOLE_AND_KEEP_SIZE).unwrap();
        }
        fs.sync().unwrap();
        let free = || fs.read_lock().unwrap().last_checkpoint().free_segments;
        let before = free();
        let mut work = IdleWork::new(&fs, Duration::ZERO, BackgroundGc::On);
        (0..3 * IDLE_TICKS).for_each(|_| work.tick(&fs));
        assert!(free() > before, "{} free segments, {before} before", free());
    }
}
