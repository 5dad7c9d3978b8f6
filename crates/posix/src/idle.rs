//! Work outside requests: checkpoints at an interval, pending access times at every tick, and cleaning in idle
//! times.

use std::time::{Duration, Instant};

use crate::FileSystem;

/// Number of ticks without a request after which the volume is idle.
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
        if self.last_checkpoint.elapsed() >= self.checkpoint_interval {
            let _ = fs.sync();
            self.last_checkpoint = Instant::now();
        }
        let _ = fs.apply_pending_atimes_in_background();
        self.idle_ticks = if fs.requests() == self.requests { self.idle_ticks + 1 } else { 0 };
        if self.idle_ticks >= IDLE_TICKS && self.cleaning == BackgroundGc::On {
            let _ = fs.clean_in_idle_time();
        }
        self.requests = fs.requests();
    }
}
