//! Raw flash in the guest: our own driver, which keeps the chip's data in the guest's memory and takes its
//! timing from the profile.

use std::{io, path::Path};

use flash::{Profile, counters::Counters, profile::Layer};
use guest::{Op, op::Answer};
use serde::Deserialize;

use super::{CHIP, GET_KERNEL, UBI_VOLUME};
use crate::vm::{EventModel, Failure, Totals, Uml, host_file, host_files};

/// Module file of the driver, beside the lab's kernel.
const MODULE: &str = "lab_flash.ko";
/// File with the driver's counters.
const TOLD: &str = "/proc/flash";

/// Counters of the driver.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
pub(super) struct Told {
    reads: u64,
    read_bytes: u64,
    read_ns: u64,
    programs: u64,
    program_bytes: u64,
    program_ns: u64,
    erases: u64,
    erase_ns: u64,
    /// Erase count of each sector.
    pub wear: Vec<u32>,
}

/// Loads the driver for a chip of this profile.
pub(super) fn plug<M: EventModel>(uml: &mut Uml<M>, kernel: &Path, profile: &Profile) -> Result<(), Failure> {
    let module = kernel.with_file_name(MODULE);
    if !module.is_file() {
        let what = format!("{}: the guest's kernel has no such module; {GET_KERNEL}", module.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, what).into());
    }
    uml.run(&host_files())?;
    let in_guest = host_file(&module)?;
    uml.run(&Op::LoadModule { path: in_guest.as_str().into(), parameters: parameters(profile) })?;
    Ok(())
}

/// Reads the driver's counters.
pub(super) fn told<M: EventModel>(uml: &mut Uml<M>) -> Result<Told, Failure> {
    match uml.run(&Op::Read { path: TOLD.into() })?.answer {
        Some(Answer::Content(text)) => Ok(serde_json::from_slice(&text.0).map_err(io::Error::other)?),
        other => Err(io::Error::other(format!("{TOLD} has {other:?}")).into()),
    }
}

/// Creates one UBI volume on the whole chip.
pub(super) fn attach_ubi<M: EventModel>(uml: &mut Uml<M>) -> Result<(), Failure> {
    let (_, flash) = CHIP.split_once(':').expect("it has a kind and a name");
    let (_, volume) = UBI_VOLUME.split_once(':').expect("it has a device and a name");
    uml.run(&Op::UbiAttach { flash: flash.into(), volume: volume.into() })?;
    Ok(())
}

/// Returns the chip's timing as module parameters. NOR is programmed by bytes, so the cost of a page is
/// divided by its bytes.
fn parameters(profile: &Profile) -> String {
    let Profile { time, flash, .. } = profile;
    let ps_a_byte = |bytes_per_s: u64| 1_000_000_000_000_u64.checked_div(bytes_per_s).unwrap_or(0);
    let times = match profile.layer {
        Layer::Nand => format!(
            "page_bytes={} read_page_ns={} program_page_ns={} program_ps_per_byte={}",
            flash.page_bytes,
            time.read_page_ns,
            time.program_page_ns,
            ps_a_byte(time.write_bytes_per_s)
        ),
        _ => {
            format!("program_ps_per_byte={}", time.program_page_ns * 1000 / u64::from(flash.page_bytes))
        }
    };
    format!(
        "size_bytes={} sector_bytes={} command_ns={} read_ps_per_byte={} erase_ns={} {times}",
        profile.size_bytes,
        flash.block_bytes,
        time.write_command_ns,
        ps_a_byte(time.read_bytes_per_s),
        time.erase_block_ns
    )
}

impl Told {
    /// Converts to the counters of a modelled card.
    pub(super) fn counters(&self, profile: &Profile) -> Counters {
        let pages = |bytes: u64| bytes / u64::from(profile.flash.page_bytes);
        let mut counters = Counters::default();
        (counters.host.reads, counters.host.read_bytes) = (self.reads, self.read_bytes);
        (counters.host.writes, counters.host.written_bytes) = (self.programs, self.program_bytes);
        counters.flash.page_programs = pages(self.program_bytes);
        counters.flash.page_reads = pages(self.read_bytes);
        counters.flash.block_erases = self.erases;
        counters.time_ns.page_read = self.read_ns;
        counters.time_ns.page_program = self.program_ns;
        counters.time_ns.merge = self.erase_ns;
        counters
    }

    /// Converts to the counters of the guest's disks.
    pub(super) fn totals(&self) -> Totals {
        Totals {
            reads: self.reads,
            read_bytes: self.read_bytes,
            writes: self.programs,
            written_bytes: self.program_bytes,
            discards: self.erases,
            busy_ns: self.read_ns + self.program_ns + self.erase_ns,
            ..Totals::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_figures_of_the_driver_match_the_profile() {
        let profile = Profile::named("nor-2003").unwrap();
        assert_eq!(
            parameters(&profile),
            "size_bytes=67108864 sector_bytes=131072 command_ns=2000 read_ps_per_byte=125000 erase_ns=1000000000 \
             program_ps_per_byte=17000000"
        );
        let profile = Profile::named("nand-2003").unwrap();
        assert_eq!(
            parameters(&profile),
            "size_bytes=67108864 sector_bytes=16384 command_ns=10000 read_ps_per_byte=50000 erase_ns=2000000 \
             page_bytes=512 read_page_ns=12000 program_page_ns=200000 program_ps_per_byte=50000"
        );
    }
}
