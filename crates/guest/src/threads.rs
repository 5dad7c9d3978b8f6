//! Threads of the kernel, such as those that clean in the background, and programs by their names.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use rustix::{
    param::clock_ticks_per_second,
    process::{Pid, Signal, kill_process},
};

/// Stops all threads whose name begins so, or lets them go on.
///
/// # Errors
/// There are none, or they take no signals.
pub fn tell(name: &str, go_on: bool) -> io::Result<()> {
    let mut found = false;
    for (id, _) in called(|it| it.starts_with(name))? {
        kill_process(id, if go_on { Signal::CONT } else { Signal::STOP })?;
        found = true;
    }
    match found {
        true => Ok(()),
        false => Err(io::Error::new(io::ErrorKind::NotFound, format!("no thread is called {name}"))),
    }
}

/// What all programs of this name have used: nanoseconds of a processor in the programs themselves, and bytes of
/// memory that hold no pages of files.
///
/// # Errors
/// The kernel does not tell.
pub fn usage(name: &str) -> io::Result<(u64, u64)> {
    let (mut user_ns, mut memory_bytes) = (0, 0);
    for (_, dir) in called(|it| it == name)? {
        // One that ends meanwhile has used nothing any more.
        let read = |file| fs::read_to_string(dir.join(file)).unwrap_or_default();
        user_ns += user_ticks(&read("stat")).unwrap_or(0) * 1_000_000_000 / clock_ticks_per_second();
        memory_bytes += own_bytes(&read("status")).unwrap_or(0);
    }
    Ok((user_ns, memory_bytes))
}

/// The processes of a name, and where the kernel tells about them.
fn called(is_meant: impl Fn(&str) -> bool) -> io::Result<Vec<(Pid, PathBuf)>> {
    let mut found = Vec::new();
    for process in fs::read_dir("/proc")? {
        let process = process?;
        let number = process.file_name().to_str().and_then(|text| text.parse().ok());
        let Some(id) = number.and_then(Pid::from_raw) else { continue };
        // One that ends meanwhile has no name any more.
        let Ok(name) = fs::read_to_string(process.path().join("comm")) else { continue };
        if is_meant(name.trim_end()) {
            found.push((id, Path::new("/proc").join(process.file_name())));
        }
    }
    Ok(found)
}

/// proc(5), /proc/PID/stat: the 14th field, where the name in brackets may have blanks.
fn user_ticks(stat: &str) -> Option<u64> {
    stat.rsplit_once(") ")?.1.split(' ').nth(11)?.parse().ok()
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
    fn a_thread_that_is_not_there_is_not_found() {
        assert_eq!(tell("no such thread", true).unwrap_err().kind(), io::ErrorKind::NotFound);
        assert_eq!(usage("no such program").unwrap(), (0, 0));
    }

    #[test]
    fn this_program_has_used_something() {
        // A name of proc(5) ends after 15 characters.
        let name = fs::read_to_string("/proc/self/comm").unwrap();
        assert!(usage(name.trim_end()).unwrap().1 > 0);
        assert_eq!(user_ticks("7 (a) b) S 1 7 7 0 -1 4 10 0 3 0 250 40 0 0"), Some(250));
    }
}
