//! The process that ends a mount whose serving process was killed; see [`Watched`](fuse::Watched).

use std::{
    io,
    os::unix::process::CommandExt,
    path::Path,
    process::{Child, Command, Stdio},
    sync::Arc,
};

use fuse::Watched;
use rustix::process::{Signal, getppid, set_parent_process_death_signal};
use signal_hook::{
    consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1, SIGXCPU},
    iterator::Signals,
};

/// A process that watches the thread which started it. On drop it ends, and the mount stays as it is.
pub struct Watcher(Child);

impl Watcher {
    /// Starts the process for the mount of an image on a directory, an absolute path.
    pub fn start(image: &Path, dir: &Path) -> io::Result<Watcher> {
        let own = std::process::id().to_string();
        let mut command = Command::new(std::env::current_exe()?);
        command.arg0("flashkit").args(["mount", "--watches", &own, "--"]).args([image, dir]).current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
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

/// Waits until the thread that started this process ends, and ends the connection of the mount on `dir`.
pub fn watch(dir: &Path, parent: u32) -> io::Result<()> {
    // Those who end a service or a session tell all of its processes; the parent then unmounts.
    for signal in [SIGHUP, SIGINT, SIGTERM, SIGXCPU] {
        signal_hook::flag::register(signal, Arc::default())?;
    }
    let mut signals = Signals::new([SIGUSR1])?;
    set_parent_process_death_signal(Some(Signal::USR1))?;
    let mount = Watched::on(dir)?;
    // The parent may have ended before it was watched.
    let is_there = getppid().is_some_and(|pid| pid.as_raw_pid() as u32 == parent);
    if is_there {
        signals.forever().next();
    }
    mount.abort()
}
