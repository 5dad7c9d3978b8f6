//! Running in the background: the program starts itself again, and the new process reports when it is ready.
//!
//! Forking would need `unsafe`, and a process with threads must not fork without exec anyway.

use std::{
    ffi::OsStr,
    fs::File,
    io::{self, Read, Write},
    os::unix::process::CommandExt,
    process::{Command, ExitStatus, Stdio},
};

/// Line that the background process prints when it is ready.
const READY: &[u8] = b"ready\n";

/// Starts this program in the background with other arguments and waits until it is [ready](Ready::announce).
/// If it exits before that, the inner `Err` holds its exit status. Until then messages of the background
/// process appear on our standard error. It gets `input` on its standard input.
pub fn spawn_daemon<S: AsRef<OsStr>>(
    arguments: impl IntoIterator<Item = S>,
    input: &[u8],
) -> io::Result<Result<(), ExitStatus>> {
    let mut child = Command::new(std::env::current_exe()?)
        // A copy of the program may have a name under which it takes other arguments.
        .arg0("flashkit")
        .args(arguments)
        .stdin(if input.is_empty() { Stdio::from(null()?) } else { Stdio::piped() })
        .stdout(Stdio::piped())
        .spawn()?;
    if let Some(mut pipe) = child.stdin.take() {
        match pipe.write_all(input) {
            // The process has ended already, and has printed the reason.
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => {}
            written => written?,
        }
    }
    let mut said = Vec::new();
    let mut output = child.stdout.take().expect("it was piped");
    output.read_to_end(&mut said)?;
    if said == READY { Ok(Ok(())) } else { child.wait().map(Err) }
}

/// Opens `/dev/null`. A chroot may lack it, so the error names it.
fn null() -> io::Result<File> {
    const PATH: &str = "/dev/null";
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{PATH}: {error}"));
    File::options().read(true).write(true).open(PATH).map_err(named)
}

/// The background process's end of the handshake.
pub struct Ready {
    null: File,
}

impl Ready {
    /// Starts a new session, so that signals of the terminal do not reach us, and opens what [`announce`](Self::announce)
    /// needs.
    pub fn detach() -> io::Result<Ready> {
        // It fails if we are a process-group leader already; then there is no terminal to leave.
        let _ = rustix::process::setsid();
        Ok(Ready { null: null()? })
    }

    /// Releases the working directory and the standard streams, and reports readiness to the parent process, which can be
    /// told nothing after that.
    pub fn announce(self) -> io::Result<()> {
        std::env::set_current_dir("/")?;
        let mut output = io::stdout();
        output.write_all(READY)?;
        output.flush()?;
        // These descriptors exist, so no limit refuses them.
        rustix::stdio::dup2_stdin(&self.null)?;
        rustix::stdio::dup2_stdout(&self.null)?;
        Ok(rustix::stdio::dup2_stderr(&self.null)?)
    }
}
