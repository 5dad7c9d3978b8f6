//! Raw flash in the guest: our own driver, which keeps the chip's data in the guest's memory and takes its
//! timing from the profile.

use std::{fs, io, path::Path};

use flash::{Profile, counters::Counters, profile::Layer};
use guest::{Bytes, Op, op::Answer};
use serde::Deserialize;

use super::{CHIP, GET_KERNEL, UBI_VOLUME};
use crate::vm::{EventModel, Failure, Measured, Totals, Uml, host_file, host_files};

/// Module file of the driver, beside the lab's kernel.
const MODULE: &str = "lab_flash.ko";
/// File with the driver's counters.
const TOLD: &str = "/proc/flash";
/// Files with the chip's content, and with the records of its programs and erases.
const IMAGE: &str = "/proc/flash_image";
const LOG: &str = "/proc/flash_log";
/// Room for these records. A driver whose room is exhausted refuses to show them.
pub(super) const LOG_BYTES: u64 = 32 << 20;
/// File, in the directory that the host shares with the guest, for the data of both.
const SHARED: &str = "flash";
/// Fields of a record before the data: the times of its start and end, its place, its length and its kind.
const HEAD_BYTES: usize = 32;
const PROGRAM: u32 = 0;
const ERASE: u32 = 1;

/// Recording of programs and erases by the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Records {
    /// None are kept.
    None,
    /// Each is kept with its data.
    Kept,
}

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
pub(super) fn plug<M: EventModel>(
    uml: &mut Uml<M>,
    kernel: &Path,
    profile: &Profile,
    records: Records,
) -> Result<(), Failure> {
    let module = kernel.with_file_name(MODULE);
    if !module.is_file() {
        let what = format!("{}: the guest's kernel has no such module; {GET_KERNEL}", module.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, what).into());
    }
    uml.run(&host_files())?;
    let in_guest = host_file(&module)?;
    let log = match records {
        Records::None => String::new(),
        Records::Kept => format!(" log_bytes={LOG_BYTES}"),
    };
    let parameters = parameters(profile) + &log;
    uml.run(&Op::LoadModule { path: in_guest.as_str().into(), parameters })?;
    Ok(())
}

/// Replaces the content of the chip, which nothing uses.
pub(super) fn load<M: EventModel>(uml: &mut Uml<M>, content: &[u8]) -> Result<(), Failure> {
    fs::write(uml.shared(SHARED), content)?;
    let in_guest: Bytes = format!("/{SHARED}").as_str().into();
    uml.run(&Op::Copy { from: in_guest.clone(), to: IMAGE.into() })?;
    // By the guest, so that it keeps no pages of the file.
    uml.run(&Op::Unlink { path: in_guest })?;
    Ok(())
}

/// Returns the content of the chip.
pub(super) fn content<M: EventModel>(uml: &mut Uml<M>) -> Result<Vec<u8>, Failure> {
    fetch(uml, IMAGE)
}

/// Returns a file of the driver.
fn fetch<M: EventModel>(uml: &mut Uml<M>, file: &str) -> Result<Vec<u8>, Failure> {
    let in_guest: Bytes = format!("/{SHARED}").as_str().into();
    uml.run(&Op::Copy { from: file.into(), to: in_guest.clone() })?;
    let content = fs::read(uml.shared(SHARED))?;
    uml.run(&Op::Unlink { path: in_guest })?;
    Ok(content)
}

/// Begins the records anew.
pub(super) fn forget_records<M: EventModel>(uml: &mut Uml<M>) -> Result<(), Failure> {
    uml.run(&Op::Tune { path: LOG.into(), value: "0".into() })?;
    Ok(())
}

/// Returns the programs and erases since the records began anew, in the order in which they took effect.
pub(super) fn records<M: EventModel>(uml: &mut Uml<M>) -> Result<Vec<ChipRequest>, Failure> {
    Ok(parse(&fetch(uml, LOG)?)?)
}

/// A program or an erase.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ChipRequest {
    /// The data that was programmed; `None` for an erase.
    pub data: Option<Vec<u8>>,
    /// Offset in bytes.
    pub offset_bytes: u64,
    /// Length in bytes.
    pub length_bytes: u64,
    /// Time of its start.
    pub at_ns: u64,
    /// Time of its end.
    pub done_ns: u64,
}

fn parse(mut bytes: &[u8]) -> io::Result<Vec<ChipRequest>> {
    let wrong = || io::Error::new(io::ErrorKind::InvalidData, format!("{LOG}: not a record of the driver"));
    let mut requests = Vec::new();
    while !bytes.is_empty() {
        let (head, rest) = bytes.split_at_checked(HEAD_BYTES).ok_or_else(wrong)?;
        let word = |at: usize| u64::from_le_bytes(head[at..at + 8].try_into().expect("eight bytes"));
        let half = |at: usize| u32::from_le_bytes(head[at..at + 4].try_into().expect("four bytes"));
        let length_bytes = u64::from(half(24));
        let (data, rest) = match half(28) {
            PROGRAM => {
                let (data, rest) = rest.split_at_checked(length_bytes as usize).ok_or_else(wrong)?;
                (Some(data.to_vec()), rest)
            }
            ERASE => (None, rest),
            _ => return Err(wrong()),
        };
        let (at_ns, done_ns, offset_bytes) = (word(0), word(8), word(16));
        requests.push(ChipRequest { data, offset_bytes, length_bytes, at_ns, done_ns });
        bytes = rest;
    }
    Ok(requests)
}

/// Attaches the chip to UBI with the volumes that are on it.
pub(super) fn find_ubi<M: EventModel>(uml: &mut Uml<M>) -> Result<Measured, Failure> {
    let (_, flash) = CHIP.split_once(':').expect("it has a kind and a name");
    uml.run(&Op::UbiFind { flash: flash.into() })
}

/// Detaches the chip from UBI.
pub(super) fn detach_ubi<M: EventModel>(uml: &mut Uml<M>) -> Result<(), Failure> {
    let (_, flash) = CHIP.split_once(':').expect("it has a kind and a name");
    uml.run(&Op::UbiDetach { flash: flash.into() })?;
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
    /// Number of programs and erases.
    pub(super) fn changes(&self) -> u64 {
        self.programs + self.erases
    }

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
    fn the_drivers_records_are_read_and_a_cut_one_is_an_error() {
        let mut bytes = Vec::new();
        for (verb, data) in [(PROGRAM, &b"abc"[..]), (ERASE, &[])] {
            for word in [5_u64, 9, 4096] {
                bytes.extend(word.to_le_bytes());
            }
            for half in [3, verb] {
                bytes.extend(half.to_le_bytes());
            }
            bytes.extend(data);
        }
        let request = |data: Option<&[u8]>| ChipRequest {
            data: data.map(<[u8]>::to_vec),
            offset_bytes: 4096,
            length_bytes: 3,
            at_ns: 5,
            done_ns: 9,
        };
        assert_eq!(parse(&bytes).unwrap(), [request(Some(b"abc")), request(None)]);
        for length in [1, HEAD_BYTES, bytes.len() - 1] {
            assert!(parse(&bytes[..length]).is_err(), "{length}");
        }
    }

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
