//! Threads of the kernel, such as background cleaners, and programs by name.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rustix::process::{Pid, Signal, WaitOptions, kill_process, waitpid};

/// Stops all threads whose name starts with `name`.
///
/// # Errors
/// There are none, or they accept no signals.
pub fn stop(name: &str) -> io::Result<()> {
    send(name, Signal::STOP)
}

/// Lets all threads whose name starts with `name` run again.
///
/// # Errors
/// There are none, or they accept no signals.
pub fn resume(name: &str) -> io::Result<()> {
    send(name, Signal::CONT)
}

fn send(name: &str, signal: Signal) -> io::Result<()> {
    let mut found = false;
    for (id, _) in called(|it| it.starts_with(name))? {
        kill_process(id, signal)?;
        found = true;
    }
    match found {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::NotFound, format!("no thread has the name {name}"))),
    }
}

/// Terminates a process and waits for its end. The process is a child of this one, because orphans become
/// children of init.
///
/// # Errors
/// It is not a child, or it had ended by itself.
pub fn end(process: u32) -> io::Result<()> {
    let id = i32::try_from(process).ok().and_then(Pid::from_raw).ok_or(io::ErrorKind::InvalidInput)?;
    if let Some((_, status)) = waitpid(Some(id), WaitOptions::NOHANG)? {
        return Err(io::Error::other(format!(
            "process {process} had ended before it was asked to: {status:?}"
        )));
    }
    kill_process(id, Signal::TERM)?;
    waitpid(Some(id), WaitOptions::empty())?;
    Ok(())
}

/// Returns the memory of all programs of this name in bytes, without pages of files.
///
/// # Errors
/// The kernel does not report it.
pub fn memory(name: &str) -> io::Result<u64> {
    let processes = called(|it| it == name)?;
    // A process that ends meanwhile has none.
    let status = |dir: &Path| fs::read_to_string(dir.join("status")).unwrap_or_default();
    Ok(processes.iter().filter_map(|(_, dir)| own_bytes(&status(dir))).sum())
}

/// Returns the processes of a name, with their directories in /proc.
fn called(is_meant: impl Fn(&str) -> bool) -> io::Result<Vec<(Pid, PathBuf)>> {
    let mut found = Vec::new();
    for process in fs::read_dir("/proc")? {
        let process = process?;
        let number = process.file_name().to_str().and_then(|text| text.parse().ok());
        let Some(id) = number.and_then(Pid::from_raw) else { continue };
        // A process that ends meanwhile has no name.
        let Ok(name) = fs::read_to_string(process.path().join("comm")) else { continue };
        if is_meant(name.trim_end()) {
            found.push((id, Path::new("/proc").join(process.file_name())));
        }
    }
    Ok(found)
}

/// proc(5), /proc/PID/status.
fn own_bytes(status: &str) -> Option<u64> {
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:"))?;
    Some(line.trim().strip_suffix(" kB")?.parse::<u64>().ok()? << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_thread_is_not_found() {
        assert_eq!(resume("no such thread").unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(memory("no such program").unwrap(), 0);
    }

    #[test]
    #[allow(clippy::zombie_processes, reason = "the tested function waits for the process that it ends")]
    fn a_process_ends_once_and_reports_if_it_had_ended_before() {
        let shell = |script: &str| {
            let child = std::process::Command::new("/bin/sh").args(["-c", script]).spawn().unwrap();
            Pid::from_child(&child)
        };
        let id = shell("while :; do sleep 1; done").as_raw_nonzero().get() as u32;
        end(id).unwrap();
        assert!(end(id).is_err(), "it is gone");
        let short = shell("exit 7");
        // It stays a child until it is waited for. Its end is visible in its state.
        let stat = format!("/proc/{}/stat", short.as_raw_nonzero());
        while !fs::read_to_string(&stat).unwrap().contains(") Z ") {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        let said = end(short.as_raw_nonzero().get() as u32).unwrap_err().to_string();
        assert!(said.contains("had ended before"), "{said}");
    }

    #[test]
    fn this_program_has_memory() {
        // A name in proc(5) is cut off after 15 characters.
        let name = fs::read_to_string("/proc/self/comm").unwrap();
        assert!(memory(name.trim_end()).unwrap() > 0);
    }
}
