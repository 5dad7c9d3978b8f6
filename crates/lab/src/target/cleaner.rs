//! nilfs2's cleaner: a program, which mount(8) starts with the mount.
//!
//! It has a configuration of its own. By default it skips segments younger than an hour, and cleans a few
//! segments every few seconds: on a small card that is written without a pause it would never clean.

use std::io;

use guest::{Op, op::Answer};

use crate::guest::{EventModel, Failure, Uml, host_program};

/// The program.
const PROGRAM: &str = "/sbin/nilfs_cleanerd";
const CONFIGURATION: &str = "/nilfs_cleanerd.conf";
/// It locks itself with a semaphore, which the C library keeps there.
const SHARED_MEMORY: &str = "/dev/shm";
/// Line that it prints when it goes into the background.
const PROCESS: &str = "NILFS_CLEANERD_PID=";

/// Those that are the program's default are not said: it begins when less than a tenth of the segments is clean, and ends
/// with a fifth. Checkpoints are given up at once; it looks every tenth of a second, and cleans without pauses, but no
/// segment of which less than a tenth can be freed.
const SETTINGS: &str = "protection_period 0
clean_check_interval 0.1
cleaning_interval 0
mc_cleaning_interval 0
mc_min_reclaimable_blocks 10%
retry_interval 1
use_set_suinfo
use_mmap
";

/// Prepares the files that the program needs; called once for a guest that sees the host's files.
pub(super) fn prepare<M: EventModel>(uml: &mut Uml<M>) -> Result<(), Failure> {
    uml.run(&Op::Mount {
        source: "shm".into(),
        dir: SHARED_MEMORY.into(),
        fs: "tmpfs".into(),
        options: String::new(),
        read_only: false,
    })?;
    let content = guest::Content::Bytes(SETTINGS.into());
    uml.run(&Op::Write { path: CONFIGURATION.into(), offset: 0, content })?;
    Ok(())
}

/// Starts it on the mounted volume; returns its process, which runs in the background.
pub(super) fn start<M: EventModel>(uml: &mut Uml<M>, source: &str, dir: &str) -> Result<u32, Failure> {
    let program = host_program(PROGRAM, &["-c", CONFIGURATION, source, dir])?;
    match uml.run(&program)?.answer {
        Some(Answer::Output { stdout, stderr, .. }) => {
            let said = String::from_utf8_lossy(&stdout.0).into_owned();
            let process = said.lines().find_map(|line| line.strip_prefix(PROCESS)?.parse().ok());
            let why = || io::Error::other(format!("{PROGRAM}: {}", String::from_utf8_lossy(&stderr.0)));
            Ok(process.ok_or_else(why)?)
        }
        other => Err(io::Error::other(format!("{PROGRAM} ended with {other:?}")).into()),
    }
}

/// Ends it, or the volume could not be unmounted.
pub(super) fn end<M: EventModel>(uml: &mut Uml<M>, process: u32) -> Result<(), Failure> {
    uml.run(&Op::End { process })?;
    Ok(())
}
