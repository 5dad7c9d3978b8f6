//! What goes on without a request: checkpoints, cleaning when nobody asks for anything, discards, and a word about damage
//! and about what could not be written.

use std::{
    os::unix::net::UnixDatagram,
    path::PathBuf,
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::{BackgroundGc, FileSystem, MountOptions, OnError, fault};

/// How often there is a look at what is to do.
const TICK: Duration = Duration::from_secs(1);
/// The volume is idle after so many looks between which nobody asked for anything.
const IDLE_TICKS: u32 = 5;
/// Where the machine's log takes messages (syslog(3)).
const LOG: &str = "/dev/log";
/// What a message to it begins with: that it is a warning of a daemon's (syslog(3): 3 * 8 + 4).
const WARNING: &str = "<28>";

/// Discards that are issued one after the other, and how long the device then has for other requests (Linux,
/// `DEF_MAX_DISCARD_REQUEST`, `DEF_MIN_DISCARD_ISSUE_TIME`).
const DISCARDS_AT_ONCE: u32 = 8;
const BETWEEN_DISCARDS: Duration = Duration::from_millis(50);

/// The threads that do it; they end when this is dropped.
pub struct Background {
    stop: Vec<mpsc::Sender<()>>,
    threads: Vec<JoinHandle<()>>,
}

impl Background {
    /// Begins. Messages name the image.
    pub fn start(fs: Arc<FileSystem>, options: &MountOptions, image: PathBuf) -> Background {
        let (stop, stopped) = mpsc::channel();
        let (stop_discards, discards_stopped) = mpsc::channel();
        let options = options.clone();
        let discards = thread::spawn({
            let fs = fs.clone();
            move || discard(&fs, &discards_stopped)
        });
        let thread = thread::spawn(move || {
            let image = image.display();
            let (mut told, mut told_of_failure) = (false, fs.failure().is_some());
            let mut told_of_fault = false;
            let mut look = || {
                if !told && fs.met_damage() {
                    told = true;
                    let advice = format!("unmount it and run fsck.f2fs -f {image}");
                    tell(&format!("{image}: damage was met and left alone; {advice}"));
                }
                if let (false, Some(fault)) = (told_of_fault, fs.fault()) {
                    told_of_fault = true;
                    tell(&format!("{image}: a request failed by a fault of this program: {fault}"));
                }
                if let (false, Some(reason)) = (told_of_failure, fs.failure()) {
                    told_of_failure = true;
                    tell(&format!(
                        "{image}: nothing is written any more, and what was not synced is lost: {reason}"
                    ));
                }
            };
            // It looks on after a fault, for somebody has to tell of that.
            let worked = fault::contain(|| work(&fs, &options, &stopped, &mut look));
            worked.unwrap_or_else(|fault| fs.met_fault(fault));
            // Where nothing may be written, nothing else is to do.
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
            // It ends with the next look.
            let _ = thread.join();
        }
    }
}

/// Issues what waits to be discarded, a few at a time.
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
                eprintln!("flashkit: writing metadata failed, and the mount was asked not to go on");
                std::process::abort();
            }
            return;
        }
        if last_checkpoint.elapsed() >= options.checkpoint_interval {
            // What fails here fails for the next request too, and that one has somebody to tell.
            let _ = fs.sync();
            last_checkpoint = Instant::now();
        }
        let requests = fs.requests();
        idle_ticks = if requests == seen { idle_ticks + 1 } else { 0 };
        if idle_ticks >= IDLE_TICKS && options.background_gc == BackgroundGc::On {
            let _ = fs.clean_in_idle_time();
        }
        seen = fs.requests();
    }
}

/// Programs get an errno; what it is about, and what to do, stands in the machine's log, and on the terminal of who mounted
/// it in the foreground.
fn tell(what: &str) {
    eprintln!("flashkit: {what}");
    let line = format!("{WARNING}flashkit[{}]: {what}", std::process::id());
    // Not every machine has a log.
    let _ = UnixDatagram::unbound().and_then(|log| log.send_to(line.as_bytes(), LOG));
}
