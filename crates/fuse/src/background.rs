//! The threads beside requests: the work of idle times, discards, and reports of damage and failed writes.

use std::{
    io,
    path::PathBuf,
    sync::{Arc, mpsc},
    time::Duration,
};

use fuse_protocol::{ReadyThreads, Worker, contain};
use posix::{FileSystem, IdleWork};

use crate::{
    MountOptions, OnError,
    event::{Event, Report},
};

/// Interval between checks for work to do.
const TICK: Duration = Duration::from_secs(1);

/// Number of discards issued in a row, and the pause after them, in which the device serves other requests
/// (Linux, `DEF_MAX_DISCARD_REQUEST`, `DEF_MIN_DISCARD_ISSUE_TIME`).
const DISCARDS_AT_ONCE: u32 = 8;
const BETWEEN_DISCARDS: Duration = Duration::from_millis(50);

/// The background threads. Dropping it stops and joins them.
pub struct Background {
    threads: Vec<Stoppable>,
}

/// A thread that ends at its next tick once the sender is dropped.
type Stoppable = (mpsc::Sender<()>, Worker);

impl Background {
    /// Number of its threads.
    pub const THREADS: usize = 2;

    /// Starts the threads, `ready` ones first. `image` is the name that events use.
    ///
    /// # Errors
    /// That of the host if it refuses a thread.
    pub fn start(
        ready: &ReadyThreads,
        fs: Arc<FileSystem>,
        options: &MountOptions,
        image: PathBuf,
        report: Arc<Report>,
    ) -> io::Result<Background> {
        let (stop, stopped) = mpsc::channel();
        let (stop_discards, discards_stopped) = mpsc::channel();
        let options = options.clone();
        let discards = ready.run({
            let fs = fs.clone();
            move || {
                // The other thread reports it. Discards can be left out.
                let worked = contain(|| discard(&fs, &discards_stopped));
                worked.unwrap_or_else(|fault| fs.record_fault(fault));
                Ok(())
            }
        })?;
        let thread = ready.run(move || {
            let mut reporter = Reporter::new(&fs, image, report);
            // The thread survives a panic, because it still has to report it.
            let worked = contain(|| work(&fs, &options, &stopped, &mut reporter));
            worked.unwrap_or_else(|fault| fs.record_fault(fault));
            // `work` returns early if the volume is read-only; from then on only reporting is left.
            while let Err(mpsc::RecvTimeoutError::Timeout) = stopped.recv_timeout(TICK) {
                reporter.report_new(&fs);
            }
            reporter.report_new(&fs);
            Ok(())
        })?;
        Ok(Background { threads: vec![(stop, thread), (stop_discards, discards)] })
    }

    /// Stops all threads but the one that reports.
    pub fn stop_helpers(&mut self) {
        end(self.threads.drain(1..));
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        end(self.threads.drain(..));
    }
}

/// Stops threads, all at the same time, and joins them.
fn end(threads: impl Iterator<Item = Stoppable>) {
    let stopped: Vec<Worker> = threads.map(|(_stop, thread)| thread).collect();
    for thread in stopped {
        let _ = thread.join();
    }
}

/// Reports each kind of event once.
struct Reporter {
    image: String,
    report: Arc<Report>,
    has_reported_damage: bool,
    has_reported_fault: bool,
    has_reported_failure: bool,
}

impl Reporter {
    /// A failure that is there already is known to the caller of the mount.
    fn new(fs: &FileSystem, image: PathBuf, report: Arc<Report>) -> Reporter {
        Reporter {
            image: image.display().to_string(),
            report,
            has_reported_damage: false,
            has_reported_fault: false,
            has_reported_failure: fs.failure().is_some(),
        }
    }

    fn report_new(&mut self, fs: &FileSystem) {
        if !self.has_reported_damage && fs.met_damage() {
            self.has_reported_damage = true;
            (self.report)(&Event::Damage { image: self.image.clone() });
        }
        if let (false, Some(fault)) = (self.has_reported_fault, fs.fault()) {
            self.has_reported_fault = true;
            (self.report)(&Event::InternalError(fault.to_string()));
        }
        if let (false, Some(reason)) = (self.has_reported_failure, fs.failure()) {
            self.has_reported_failure = true;
            (self.report)(&Event::WritingStopped(reason));
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

fn work(fs: &FileSystem, options: &MountOptions, stopped: &mpsc::Receiver<()>, reporter: &mut Reporter) {
    if !fs.is_writable() {
        return;
    }
    let mut idle_work = IdleWork::new(fs, options.checkpoint_interval, options.background_gc);
    while let Err(mpsc::RecvTimeoutError::Timeout) = stopped.recv_timeout(TICK) {
        reporter.report_new(fs);
        if fs.failure().is_some() {
            if options.on_error == OnError::Panic {
                (reporter.report)(&Event::MustAbort);
            }
            return;
        }
        idle_work.tick(fs);
    }
}
