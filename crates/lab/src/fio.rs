//! fio in the guest: an independent check of our own workloads, and whatever jobs people have.

use std::{io, path::Path};

use guest::{Op, op::Answer};

use crate::{
    guest::{Failure, Measured, host_files, host_program},
    target::{GuestTarget, MOUNT_POINT, Setting, Target},
};

/// Path of fio on the host.
const PROGRAM: &str = "/usr/bin/fio";
/// Arguments of every run. The guest's own clock is virtual, the processor's counter is not; and no state is
/// kept outside the volume.
const ALWAYS: [&str; 3] = ["--clocksource=clock_gettime", "--verify_state_save=0", "--directory=/mnt"];

/// The result of a run of fio.
#[derive(Debug, Clone)]
pub struct Run {
    /// Duration, and requests that reached the card.
    pub measured: Measured,
    /// Its exit code.
    pub code: i32,
    /// Its output. Its times are the guest's, which are the card's.
    pub printed: String,
}

/// Runs fio with these arguments in a guest, on a new volume.
///
/// # Errors
/// There is no fio, the volume cannot be made or mounted, or the guest fails; that fio itself fails is no error.
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

/// Lets a guest see the host's files, as [`on`] needs it.
///
/// # Errors
/// The guest's.
pub fn see_host(target: &mut GuestTarget) -> Result<(), Failure> {
    match target.run(&host_files()) {
        // The driver of bare flash was taken from there.
        Err(Failure::Refused { errno: EBUSY, .. }) | Ok(_) => Ok(()),
        Err(failure) => Err(failure),
    }
}

const EBUSY: i32 = 16;

/// Runs fio on the mounted volume in a guest that sees the host's files.
///
/// # Errors
/// There is no fio, or the guest fails.
pub fn on(target: &mut GuestTarget, arguments: &[&str]) -> Result<Run, Failure> {
    let all: Vec<&str> = ALWAYS.iter().chain(arguments).copied().collect();
    let mut measured = target.run(&host_program(PROGRAM, &all)?)?;
    match measured.answer.take() {
        Some(Answer::Output { code, stdout, stderr }) => {
            let printed = String::from_utf8_lossy(&[stdout.0, stderr.0].concat()).into_owned();
            Ok(Run { measured, code, printed })
        }
        other => Err(io::Error::other(format!("fio ended with {other:?}")).into()),
    }
}
