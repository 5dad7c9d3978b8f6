//! Work outside requests: periodic checkpoints, cleaning in idle times, discards, and log messages about
//! damage and failed writes.

use std::{
    os::unix::net::UnixDatagram,
    path::PathBuf,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use fuse_protocol::contain;
use posix::FileSystem;

use crate::{BackgroundGc, MountOptions, OnError};

/// Interval between checks for work to do.
const TICK: Duration = Duration::from_secs(1);
/// Number of ticks without a request after which the volume is idle.
const IDLE_TICKS: u32 = 5;
/// Socket of the system log (syslog(3)).
const LOG: &str = "/dev/log";
/// Prefix of a log message: facility daemon, severity warning (syslog(3): 3 * 8 + 4).
const WARNING: &str = "<28>";

/// Number of discards issued in a row, and the pause after them, in which the device serves other requests
/// (Linux, `DEF_MAX_DISCARD_REQUEST`, `DEF_MIN_DISCARD_ISSUE_TIME`).
const DISCARDS_AT_ONCE: u32 = 8;
const BETWEEN_DISCARDS: Duration = Duration::from_millis(50);

/// The background threads. Dropping it stops and joins them.
pub struct Background {
    stop: Vec<mpsc::Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Background {
    /// Starts the threads. `image` is the name that messages use.
    pub fn start(fs: Arc<FileSystem>, options: &MountOptions, image: PathBuf) -> Background {
        let (stop, stopped) = mpsc::channel();
        let (stop_discards, discards_stopped) = mpsc::channel();
        let options = options.clone();
        let discards = thread::spawn({
            let fs = fs.clone();
            move || {
                // The other thread reports it. Discards can be left out.
                let worked = contain(|| discard(&fs, &discards_stopped));
                worked.unwrap_or_else(|fault| fs.record_fault(fault));
            }
        });
        let thread = thread::spawn(move || {
            let image = image.display();
            let (mut told, mut told_of_failure) = (false, fs.failure().is_some());
            let mut told_of_fault = false;
            let mut look = || {
                if !told && fs.met_damage() {
                    told = true;
                    let advice = format!("unmount it and run fsck.f2fs -f {image}");
                    tell(&format!("{image}: found damage and left it unchanged; {advice}"));
                }
                if let (false, Some(fault)) = (told_of_fault, fs.fault()) {
                    told_of_fault = true;
                    tell(&format!("{image}: a request failed because of an internal error: {fault}"));
                }
                if let (false, Some(reason)) = (told_of_failure, fs.failure()) {
                    told_of_failure = true;
                    tell(&format!(
                        "{image}: writing has stopped, and changes that were not synced are lost: {reason}"
                    ));
                }
            };
            // The thread survives a panic, because it still has to report it.
            let worked = contain(|| work(&fs, &options, &stopped, &mut look));
            worked.unwrap_or_else(|fault| fs.record_fault(fault));
            // `work` returns early if the volume is read-only; from then on only reporting is left.
            while let Err(mpsc::RecvTimeoutError::Timeout) = stopped.recv_timeout(TICK) {
                look();
            }
            look();
        });
        Background { stop: vec![stop, stop_discards], threads: vec![thread, discards] }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.stop.clear();
        for thread in self.threads.drain(..) {
            // The thread ends at its next tick.
            let _ = thread.join();
        }
    }
}

/// Issues pending discards, a few at a time.
fn discard(fs: &FileSystem, stopped: &mpsc::Receiver<()>) {
    let mut pause = TICK;
    while let Err(mpsc::RecvTimeoutError::Timeout) = stopped.recv_timeout(pause) {
        pause = if fs.issue_discards(DISCARDS_AT_ONCE) { BETWEEN_DISCARDS } else { TICK };
    }
}

fn work(fs: &FileSystem, options: &MountOptions, stopped: &mpsc::Receiver<()>, look: &mut dyn FnMut()) {
    if !fs.is_writable() {
        return;
    }
    let mut last_checkpoint = Instant::now();
    let (mut seen, mut idle_ticks) = (fs.requests(), 0);
    while let Err(mpsc::RecvTimeoutError::Timeout) = stopped.recv_timeout(TICK) {
        look();
        if fs.failure().is_some() {
            if options.on_error == OnError::Panic {
                eprintln!("flashkit: writing metadata failed, and errors=panic ends the mount");
                std::process::abort();
            }
            return;
        }
        if last_checkpoint.elapsed() >= options.checkpoint_interval {
            // An error here recurs in the next request, which has a caller to report it to.
            let _ = fs.sync();
            last_checkpoint = Instant::now();
        }
        // An error here recurs as well.
        let _ = fs.apply_pending_atimes_in_background();
        let requests = fs.requests();
        idle_ticks = if requests == seen { idle_ticks + 1 } else { 0 };
        if idle_ticks >= IDLE_TICKS && options.background_gc == BackgroundGc::On {
            let _ = fs.clean_in_idle_time();
        }
        seen = fs.requests();
    }
}

/// Writes a message to standard error and to the system log. Programs get only an errno; the message names
/// the cause and the remedy.
fn tell(what: &str) {
    eprintln!("flashkit: {what}");
    let line = format!("{WARNING}flashkit[{}]: {what}", std::process::id());
    // A machine without a system log is fine.
    let _ = UnixDatagram::unbound().and_then(|log| log.send_to(line.as_bytes(), LOG));
}
