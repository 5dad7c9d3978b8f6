//! fio in the guest: an independent check of our own workloads, and a way to run arbitrary jobs.

use std::{io, path::Path};

use guest::{Op, op::Answer};

use crate::{
    systems::{GuestTarget, MOUNT_POINT, Setting, Target},
    vm::{Failure, Measured, host_files, host_program},
};

/// Path of fio on the host.
const PROGRAM: &str = "/usr/bin/fio";
/// Arguments of every run. fio must use the guest's clock, which is virtual, and not the processor's cycle
/// counter, which is not. No state is kept outside the volume.
const ALWAYS: [&str; 3] = ["--clocksource=clock_gettime", "--verify_state_save=0", "--directory=/mnt"];

/// The result of a run of fio.
#[derive(Debug, Clone)]
pub struct Run {
    /// Duration, and requests that reached the card.
    pub measured: Measured,
    /// Exit code.
    pub code: i32,
    /// Output. Its times are guest times, which are the card's.
    pub printed: String,
}

/// Runs fio with these arguments in a guest, on a new volume.
///
/// # Errors
/// fio is not installed, the volume cannot be created or mounted, or the guest fails. A failure of fio itself
/// is not an error.
pub fn run(setting: &Setting, image: &Path, arguments: &[&str]) -> Result<Run, Failure> {
    let mut target = GuestTarget::start(setting, image)?;
    target.run(&Op::Mount {
        source: setting.file_system.source().into(),
        dir: MOUNT_POINT.into(),
        fs: setting.file_system.kind.clone(),
        options: setting.file_system.mount.clone(),
        read_only: false,
    })?;
    see_host(&mut target)?;
    let run = on(&mut target, arguments)?;
    target.run(&Op::Unmount { dir: MOUNT_POINT.into() })?;
    Ok(run)
}

/// Mounts the host's files in a guest, as [`on`] requires.
///
/// # Errors
/// The mount fails.
pub fn see_host(target: &mut dyn Target) -> Result<(), Failure> {
    match target.run(&host_files()) {
        // They are mounted already if the driver of raw flash was loaded from there.
        Err(Failure::Refused { errno: EBUSY, .. }) | Ok(_) => Ok(()),
        Err(failure) => Err(failure),
    }
}

const EBUSY: i32 = 16;

/// Returns the operation that runs fio with these arguments.
///
/// # Errors
/// fio is not installed.
pub fn op(arguments: &[&str]) -> io::Result<Op> {
    let all: Vec<&str> = ALWAYS.iter().chain(arguments).copied().collect();
    host_program(PROGRAM, &all)
}

/// Runs fio on the mounted volume in a guest that has the host's files mounted.
///
/// # Errors
/// fio is not installed, or the guest fails.
pub fn on(target: &mut GuestTarget, arguments: &[&str]) -> Result<Run, Failure> {
    let mut measured = target.run(&op(arguments)?)?;
    match measured.answer.take() {
        Some(Answer::Output { code, stdout, stderr }) => {
            let printed = String::from_utf8_lossy(&[stdout.0, stderr.0].concat()).into_owned();
            Ok(Run { measured, code, printed })
        }
        other => Err(io::Error::other(format!("fio ended with {other:?}")).into()),
    }
}
