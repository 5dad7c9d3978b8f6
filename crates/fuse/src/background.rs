//! What goes on without a request: checkpoints, and cleaning when nobody asks for anything.

use std::{
    sync::{Arc, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::{BackgroundGc, FileSystem, MountOptions, OnError};

/// How often there is a look at what is to do.
const TICK: Duration = Duration::from_secs(1);
/// The volume is idle after so many looks between which nobody asked for anything.
const IDLE_TICKS: u32 = 5;

/// The thread that does it; it ends when this is dropped.
pub struct Background {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Background {
    /// Begins.
    pub fn start(fs: Arc<FileSystem>, options: &MountOptions) -> Background {
        let (stop, stopped) = mpsc::channel();
        let options = options.clone();
        let thread = thread::spawn(move || work(&fs, &options, &stopped));
        Background { stop: Some(stop), thread: Some(thread) }
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // It ends with the next look; had it panicked, the volume's lock says so to everybody.
            let _ = thread.join();
        }
    }
}

fn work(fs: &FileSystem, options: &MountOptions, stopped: &mpsc::Receiver<()>) {
    if !fs.is_writable() {
        return;
    }
    let mut last_checkpoint = Instant::now();
    let (mut seen, mut idle_ticks) = (fs.requests(), 0);
    while let Err(mpsc::RecvTimeoutError::Timeout) = stopped.recv_timeout(TICK) {
        if !fs.is_writable() {
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
