//! File systems for bare flash, in the guest with the lab's chip: JFFS2 and UBIFS.
//!
//! The chip's driver records each program and each erase. One guest recovers many volumes one after the other: the
//! content of the chip is exchanged while nothing is mounted on it.

use std::{io, ops::Range, sync::Arc};

use ::guest::{Content, Op, Overwrites, overwrite::Course};
use block::{Device, MemoryDevice, Verb};
use flash::profile::Layer;

use super::{
    chip::settle,
    guest::{VOLUMES_A_GUEST, examine, judge, mount_of, note, setting_of},
    log::{Entry, Log},
    script::Script,
    subject::{Aftermath, Recording, Subject, run_steps},
    task::Task,
};
use crate::{
    preset::Preset,
    systems::{ChipRequest, GuestTarget, MOUNT_POINT, Setting, Target},
    vm::Failure,
};

/// File that makes the chip's free space used once before a script, so that sectors are cleaned and erased during it.
const FILLER: &str = "filler";
/// Its share of the chip's size, and that of the bytes written to it at random places afterwards.
const FILLER_SHARE: u64 = 4;
const OVERWRITTEN_SHARE: u64 = 2;
/// Length of one of these writes.
const RECORD_BYTES: u32 = 4096;
/// Number of writes between the first mount and the moment at which unstable bits change.
const USES: u64 = 128;
/// Maximum length of a message about a volume that is not mounted.
const SAID_CHARS: usize = 2000;
/// Time in which threads of the kernel end their work.
const CALM_NS: u64 = 60_000_000_000;

/// A file system for bare flash in the guest.
pub(super) struct BareSubject {
    setting: Setting,
    /// The guest that recovers volumes, and the number of volumes that it has had.
    running: Option<(GuestTarget, u32)>,
    /// State of the running guest's UBI.
    ubi: Ubi,
    /// Erase counts of the sectors when the content was loaded.
    wear: Vec<u32>,
}

/// State of UBI.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ubi {
    Attached,
    Detached,
}

impl BareSubject {
    /// Prepares a task's file system. Nothing is started yet.
    pub(super) fn new(task: &Task) -> BareSubject {
        let preset = if task.card.layer == Layer::Nand { Preset::Nand } else { Preset::Nor };
        let setting = setting_of(task, preset);
        BareSubject { setting, running: None, ubi: Ubi::Detached, wear: Vec::new() }
    }

    /// Boots a guest with an erased chip. Its disk is not used.
    fn boot(&self, setting: &Setting) -> Result<GuestTarget, Failure> {
        GuestTarget::start_on_device(setting, Arc::new(MemoryDevice::new(setting.profile.size_bytes)))
    }

    fn has_ubi(&self) -> bool {
        self.setting.file_system.kind == "ubifs"
    }

    /// Returns the writes at random places of the filler.
    fn overwrites(&self, writes: u64, seed: u64) -> Op {
        let overwrites = Overwrites {
            course: Course::Anywhere { seed },
            file_bytes: self.setting.profile.size_bytes / FILLER_SHARE,
            record_bytes: RECORD_BYTES,
            writes,
            sync: false,
        };
        Op::Overwrite { path: filler(), overwrites }
    }

    /// Uses the space of a new volume once.
    fn age(&self, target: &mut GuestTarget, seed: u64) -> Result<(), Failure> {
        let size_bytes = self.setting.profile.size_bytes;
        let content = Content::Noise { seed, length: size_bytes / FILLER_SHARE };
        target.run(&Op::Write { path: filler(), offset: 0, content })?;
        let writes = size_bytes / OVERWRITTEN_SHARE / u64::from(RECORD_BYTES);
        target.run(&self.overwrites(writes, seed))?;
        target.run(&Op::Sync)?;
        target.run(&Op::Pause { nanoseconds: CALM_NS })?;
        Ok(())
    }

    /// Returns a guest whose chip has this content and is attached to nothing.
    fn guest(&mut self, content: &[u8]) -> Result<&mut GuestTarget, Failure> {
        let kept = self.running.take().filter(|(_, used)| *used < VOLUMES_A_GUEST);
        // A guest that cannot let go of the last volume is of no use.
        let kept =
            kept.and_then(|(mut target, used)| self.release(&mut target).ok().map(|()| (target, used)));
        let (mut target, used) = match kept {
            Some(kept) => kept,
            None => {
                let mut target = self.boot(&self.setting)?;
                self.ubi = if self.has_ubi() { Ubi::Attached } else { Ubi::Detached };
                self.release(&mut target)?;
                (target, 0)
            }
        };
        target.load_chip(content)?;
        self.wear = target.chip_wear()?;
        Ok(&mut self.running.insert((target, used + 1)).0)
    }

    /// Detaches the chip from UBI.
    fn release(&mut self, target: &mut GuestTarget) -> Result<(), Failure> {
        if self.ubi == Ubi::Attached {
            target.detach_ubi()?;
            self.ubi = Ubi::Detached;
        }
        Ok(())
    }

    /// Mounts the volume on the chip. Returns the duration, which includes that of attaching UBI.
    fn mount_content(&mut self, content: &[u8], aftermath: &mut Aftermath) -> Result<u64, Failure> {
        let (mount, has_ubi) = (mount_of(&self.setting), self.has_ubi());
        let target = self.guest(content)?;
        let mut spent_ns = 0;
        if has_ubi {
            let found = target.find_ubi()?;
            spent_ns += found.duration_ns();
            note(&found, aftermath);
            self.ubi = Ubi::Attached;
        }
        let mounted = self.target()?.run(&mount)?;
        note(&mounted, aftermath);
        Ok(spent_ns + mounted.duration_ns())
    }

    fn target(&mut self) -> Result<&mut GuestTarget, Failure> {
        match &mut self.running {
            Some((target, _)) => Ok(target),
            None => Err(io::Error::other("the guest that recovers volumes has ended").into()),
        }
    }

    /// Uses the volume, unmounts it, and changes the unstable bits that were not erased. Returns the content.
    fn use_and_settle(&mut self, unstable: &[Range<u64>]) -> Result<Vec<u8>, Failure> {
        let sector = u64::from(self.setting.profile.flash.block_bytes);
        let writes = self.overwrites(USES, unstable.iter().map(|range| range.start).sum());
        let has_ubi = self.has_ubi();
        let target = self.target()?;
        // A volume may refuse writes after its recovery; what it has then is judged.
        for op in [writes, Op::Sync, Op::Pause { nanoseconds: CALM_NS }] {
            match target.run(&op) {
                Ok(_) | Err(Failure::Refused { .. }) => {}
                Err(failure) => return Err(failure),
            }
        }
        target.run(&Op::Unmount { dir: MOUNT_POINT.into() })?;
        if has_ubi {
            target.detach_ubi()?;
        }
        let wear = target.chip_wear()?;
        let mut content = target.chip_content()?;
        self.ubi = Ubi::Detached;
        for range in unstable {
            let number = (range.start / sector) as usize;
            if wear.get(number) == self.wear.get(number) {
                settle(&mut content, range);
            }
        }
        Ok(content)
    }

    /// Mounts, examines and unmounts the volume.
    fn look(
        &mut self,
        content: &[u8],
        unstable: &[Range<u64>],
        aftermath: &mut Aftermath,
    ) -> Result<(), Failure> {
        let spent_ns = self.mount_content(content, aftermath)?;
        if !unstable.is_empty() {
            // A guest in which the volume may still be mounted is of no use.
            let changed = self.use_and_settle(unstable);
            if let Err(Failure::Refused { .. }) = changed {
                self.running = None;
            }
            let changed = changed?;
            self.mount_content(&changed, aftermath)?;
        }
        aftermath.recovered_ns = Some(spent_ns);
        let target = self.target()?;
        examine(target, aftermath)?;
        note(&target.run(&Op::Unmount { dir: MOUNT_POINT.into() })?, aftermath);
        target.run(&Op::DropCaches)?;
        Ok(())
    }
}

fn filler() -> ::guest::Bytes {
    format!("{MOUNT_POINT}/{FILLER}").as_str().into()
}

impl Subject for BareSubject {
    fn record(&mut self, script: Script, seed: u64) -> Result<Recording, Failure> {
        let mut target = self.boot(&Setting { traced: true, seed, ..self.setting.clone() })?;
        target.run(&mount_of(&self.setting))?;
        self.age(&mut target, seed)?;
        target.forget_records()?;
        let start = device_of(&target.chip_content()?)?;
        let first = target.requests();
        let run = |target: &mut GuestTarget, number: usize| target.run(&script.steps[number].op).map(drop);
        let requests = |target: &GuestTarget| target.requests() - first;
        let (before_step, refused) = run_steps(&script, &mut target, requests, run)?;
        let entries: Vec<Entry> = target.records()?.into_iter().map(entry).collect();
        let last = before_step.last().copied().unwrap_or(0);
        if entries.len() < last {
            let what = format!("the chip recorded {} of {last} programs and erases", entries.len());
            return Err(io::Error::other(what).into());
        }
        // The guest is killed without an unmount: the power is cut.
        Ok(Recording { script, start, log: Log { entries }, before_step, refused })
    }

    fn recover(&mut self, device: Arc<MemoryDevice>, unstable: &[Range<u64>]) -> Result<Aftermath, Failure> {
        let mut aftermath = Aftermath::default();
        let mut content = vec![0; self.setting.profile.size_bytes as usize];
        device.read(0, &mut content)?;
        let looked = self.look(&content, unstable, &mut aftermath);
        judge(looked, brief, &mut self.running, aftermath)
    }
}

/// Returns the start of a message: a kernel that does not mount prints the flash.
fn brief(failure: &Failure) -> String {
    failure.to_string().chars().take(SAID_CHARS).collect()
}

fn entry(request: ChipRequest) -> Entry {
    let ChipRequest { data, offset_bytes, length_bytes, at_ns, done_ns } = request;
    let verb = if data.is_some() { Verb::Write } else { Verb::Discard };
    Entry { verb, offset_bytes, length_bytes, data: data.unwrap_or_default().into(), at_ns, done_ns }
}

/// Returns a device with this content.
fn device_of(content: &[u8]) -> io::Result<MemoryDevice> {
    let device = MemoryDevice::new(content.len() as u64);
    device.write(0, content)?;
    Ok(device)
}
