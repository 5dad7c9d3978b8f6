//! The process that ends a mount whose serving process was killed; see [`Watched`](fuse::Watched).

use std::{
    fs, io,
    os::{
        fd::AsFd,
        unix::process::{CommandExt, parent_id},
    },
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use fuse::Watched;
use rustix::process::{Signal, set_parent_process_death_signal};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2, SIGXCPU},
    iterator::Signals,
};

/// Time within which a thread that is ending has ended, and the interval of the checks.
const END_TIMEOUT: Duration = Duration::from_secs(1);
const END_POLL_INTERVAL: Duration = Duration::from_millis(5);

/// A process that watches the thread which started it. On drop it ends, and the mount stays as it is.
pub struct Watcher(Child);

impl Watcher {
    /// Starts the process for the mount of an image on a directory, an absolute path. The names only show what it is for.
    pub fn start(image: &Path, dir: &Path, watched: Watched) -> io::Result<Watcher> {
        let own = std::process::id().to_string();
        let (file, word) = watched.into_parts();
        let mut command = Command::new(std::env::current_exe()?);
        command.arg0("flashkit").args(["mount", "--watches", &own, &word, "--"]).args([image, dir]);
        command.current_dir("/").stdin(file).stdout(Stdio::null()).stderr(Stdio::null());
        // Keys of the terminal, such as Ctrl-\, are for the group of the mount.
        command.process_group(0);
        command.spawn().map(Watcher)
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        // It may have been killed.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Waits until the thread that started this process ends, the first of the process `parent`, and ends the connection of the
/// mount that standard input and `word` stand for.
pub fn watch(word: &str, parent: u32) -> io::Result<()> {
    // Those who end a service or a session tell all of its processes; the parent then unmounts.
    for signal in [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR2, SIGXCPU] {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    let file = io::stdin().as_fd().try_clone_to_owned()?;
    let watched = Watched::from_parts(file, word).ok_or(io::ErrorKind::InvalidInput)?;
    let mut signals = Signals::new([SIGUSR1])?;
    set_parent_process_death_signal(Some(Signal::USR1))?;
    // The parent may have ended before it was watched, and others may send the signal, too.
    if !has_ended(parent) {
        signals.forever().find(|_| ends(parent));
    }
    watched.abort()
}

/// Returns true if the first thread of the parent has ended, or ends soon.
fn ends(parent: u32) -> bool {
    let until = Instant::now() + END_TIMEOUT;
    while !has_ended(parent) {
        if Instant::now() > until {
            return false;
        }
        thread::sleep(END_POLL_INTERVAL);
    }
    true
}

/// Returns true if the first thread of the parent has ended. Others of its threads may remain; then it is still the parent.
fn has_ended(parent: u32) -> bool {
    // "PID (NAME) STATE ..." (proc(5)). A name may hold anything.
    let Ok(stat) = fs::read_to_string(format!("/proc/{parent}/stat")) else { return true };
    let state = stat.rsplit(") ").next().and_then(|rest| rest.chars().next());
    parent_id() != parent || matches!(state, Some('Z' | 'X'))
}
