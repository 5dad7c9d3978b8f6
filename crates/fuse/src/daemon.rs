//! Going to the background: the program starts itself once more, and that one says when it is ready.
//!
//! Forking would need `unsafe`, and a process with threads must not fork without exec anyway.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read, Write},
    process::{Command, ExitStatus, Stdio},
};

/// What the background process says once it is ready.
const READY: &[u8] = b"ready\n";

/// Starts this program in the background with other arguments and waits until it is
/// [ready](Ready::announce); `Err` holds how it ended instead. Messages of the background process appear on our
/// standard error until then.
pub fn spawn_daemon<S: AsRef<OsStr>>(
    arguments: impl IntoIterator<Item = S>,
) -> io::Result<Result<(), ExitStatus>> {
    let mut child = Command::new(std::env::current_exe()?)
        .args(arguments)
        .stdin(null()?)
        .stdout(Stdio::piped())
        .spawn()?;
    let mut said = Vec::new();
    let mut output = child.stdout.take().expect("it was piped");
    output.read_to_end(&mut said)?;
    if said == READY { Ok(Ok(())) } else { child.wait().map(Err) }
}

/// Where nothing is read from and nothing is written to; a chroot may lack it.
fn null() -> io::Result<File> {
    const PATH: &str = "/dev/null";
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{PATH}: {error}"));
    File::options().read(true).write(true).open(PATH).map_err(named)
}

/// The background process's side.
pub struct Ready(());

impl Ready {
    /// Leaves the terminal's session, so that what ends there does not end us.
    pub fn detach() -> Ready {
        // It fails where we lead a group already: then there is no terminal to leave.
        let _ = rustix::process::setsid();
        Ready(())
    }

    /// Tells whoever started us, and lets go of the standard streams and the working directory.
    pub fn announce(self) -> io::Result<()> {
        let mut output = io::stdout();
        output.write_all(READY)?;
        output.flush()?;
        let null = null()?;
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)?;
        std::env::set_current_dir("/")
    }
}
