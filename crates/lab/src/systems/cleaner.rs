//! The nilfs2 cleaner: a user-space program that mount(8) starts with the mount.
//!
//! It has its own configuration. By default it skips segments younger than an hour, and cleans a few segments
//! every few seconds. On a small card under continuous writes it would never clean.

use std::io;

use guest::{Op, op::Answer};

use crate::vm::{EventModel, Failure, Uml, host_program};

/// Path of the program.
const PROGRAM: &str = "/sbin/nilfs_cleanerd";
const CONFIGURATION: &str = "/nilfs_cleanerd.conf";
/// The C library keeps the semaphore there that the program locks.
const SHARED_MEMORY: &str = "/dev/shm";
/// Prefix of the line with the process ID that it prints when it goes into the background.
const PROCESS: &str = "NILFS_CLEANERD_PID=";

/// Settings that differ from the defaults. By default, cleaning starts when less than 10 % of the segments
/// are clean, and stops at 20 %. Here checkpoints are not protected, the program checks every 0.1 s and
/// cleans without pauses, and it skips segments of which less than 10 % can be freed.
const SETTINGS: &str = "protection_period 0
clean_check_interval 0.1
cleaning_interval 0
mc_cleaning_interval 0
mc_min_reclaimable_blocks 10%
retry_interval 1
use_set_suinfo
use_mmap
";

/// Prepares the files that the program needs. Called once for a guest that can access the host's files.
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

/// Starts the program on the mounted volume; returns its process ID.
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

/// Ends the program; otherwise the volume could not be unmounted.
pub(super) fn end<M: EventModel>(uml: &mut Uml<M>, process: u32) -> Result<(), Failure> {
    uml.run(&Op::End { process })?;
    Ok(())
}
