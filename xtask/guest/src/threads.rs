//! Threads of the kernel, such as those that clean in the background.

use std::{fs, io};

use rustix::process::{Pid, Signal, kill_process};

/// Stops all threads whose name begins so, or lets them go on.
///
/// # Errors
/// There are none, or they take no signals.
pub fn tell(name: &str, go_on: bool) -> io::Result<()> {
    let mut found = false;
    for process in fs::read_dir("/proc")? {
        let process = process?;
        let number = process.file_name().to_str().and_then(|text| text.parse().ok());
        let Some(id) = number.and_then(Pid::from_raw) else { continue };
        // One that ends meanwhile has no name any more.
        let Ok(is_called) = fs::read_to_string(process.path().join("comm")) else { continue };
        if is_called.starts_with(name) {
            kill_process(id, if go_on { Signal::CONT } else { Signal::STOP })?;
            found = true;
        }
    }
    match found {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::NotFound, format!("no thread is called {name}"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_that_is_not_there_is_not_found() {
        assert_eq!(tell("no such thread", true).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
