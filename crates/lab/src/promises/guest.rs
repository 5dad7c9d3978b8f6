//! File systems that are mounted in the guest: the kernel's, and ours through FUSE.
//!
//! One guest recovers many volumes one after the other: the data of its card is exchanged between an unmount
//! and the next mount, when the kernel holds none of it.

use std::{
    io,
    ops::Range,
    sync::{Arc, Mutex, PoisonError},
};

use ::guest::{
    Op,
    op::{Answer, Message},
};
use block::{
    Device, DiscardUnit, FileDevice, Geometry, MemoryDevice, OpenOptions, Recording as Recorder, Verb,
};
use flash::{Command, Pace, Trace};

use super::{
    log::{Entry, Log, copy},
    script::Script,
    subject::{Aftermath, Recording, Subject, run_steps},
    task::Task,
};
use crate::{
    preset::Preset,
    scale::Scale,
    systems::{GuestTarget, MOUNT_POINT, Setting, Target, engine},
    vm::{Failure, Measured},
};

/// Number of volumes that one guest recovers.
pub(super) const VOLUMES_A_GUEST: u32 = 200;
/// Size of the buffered file that determines the guest's memory and its limits of dirty data.
pub(super) const SCALE_BYTES: u64 = 16 << 20;
/// Lines of the kernel's log that are kept of a recovery.
const LINES: usize = 8;
/// Severity up to which they are kept: errors.
const LEVEL: u8 = 3;
/// Duration between two looks at the end of our mount's process, and number of looks.
const LOOK_NS: u64 = 1_000_000;
const LOOKS: u32 = 10_000;

/// A file system in the guest.
pub struct GuestSubject {
    setting: Setting,
    work: std::path::PathBuf,
    /// The guest that recovers volumes, its card's data, and the number of volumes that it has had.
    running: Option<(GuestTarget, Arc<Slot>, u32)>,
}

impl GuestSubject {
    /// Prepares a task's file system. Nothing is started yet.
    pub fn new(task: &Task) -> GuestSubject {
        GuestSubject { setting: setting_of(task, Preset::Card), work: task.work.clone(), running: None }
    }

    /// Makes a volume.
    fn make(&self) -> Result<MemoryDevice, Failure> {
        let work = tempfile::tempdir_in(&self.work)?;
        let image = work.path().join("card");
        let Setting { file_system, profile, .. } = &self.setting;
        match file_system.is_ours() {
            true => drop(engine::make(&self.setting, &image)?),
            false => file_system.format(&image, profile.size_bytes)?,
        }
        let file = FileDevice::open(&image, OpenOptions::default())?;
        let device = MemoryDevice::new(profile.size_bytes);
        let mut piece = vec![0; 1 << 20];
        for at in (0..profile.size_bytes).step_by(piece.len()) {
            let length = (profile.size_bytes - at).min(piece.len() as u64) as usize;
            file.read(at, &mut piece[..length])?;
            device.write(at, &piece[..length])?;
        }
        Ok(device)
    }

    /// Returns a guest whose card has this content.
    fn guest(&mut self, content: Arc<MemoryDevice>) -> Result<&mut GuestTarget, Failure> {
        match self.running.take() {
            Some((target, slot, used)) if used < VOLUMES_A_GUEST => {
                slot.set(content);
                self.running = Some((target, slot, used + 1));
            }
            _ => {
                let slot = Arc::new(Slot::new(content));
                let target = GuestTarget::start_on_device(&self.setting, slot.clone())?;
                self.running = Some((target, slot, 1));
            }
        }
        Ok(&mut self.running.as_mut().expect("it was just put there").0)
    }

    /// Mounts, examines and unmounts the volume on the card.
    fn look(&mut self, content: Arc<MemoryDevice>, aftermath: &mut Aftermath) -> Result<(), Failure> {
        let mount = mount_of(&self.setting);
        let is_through_fuse = self.setting.file_system.is_ours();
        let target = self.guest(content)?;
        let mounted = target.run(&mount)?;
        aftermath.recovered_ns = Some(mounted.duration_ns());
        note(&mounted, aftermath);
        examine(target, aftermath)?;
        note(&target.run(&Op::Unmount { dir: MOUNT_POINT.into() })?, aftermath);
        if is_through_fuse {
            wait_for_end(target)?;
        }
        target.run(&Op::DropCaches)?;
        Ok(())
    }
}

/// Returns the setting of a task's guests.
pub(super) fn setting_of(task: &Task, preset: Preset) -> Setting {
    Setting {
        file_system: task.file_system.clone(),
        preset,
        profile: task.card.clone(),
        scale: Scale::of_file(SCALE_BYTES),
        programs: task.programs.clone(),
        pace: Pace::Virtual,
        traced: false,
        cleaned: false,
        seed: task.seed,
        stop: task.stop.clone(),
    }
}

/// Returns the mount of a setting's file system.
pub(super) fn mount_of(setting: &Setting) -> Op {
    Op::Mount {
        source: setting.file_system.source().into(),
        dir: MOUNT_POINT.into(),
        fs: setting.file_system.kind.clone(),
        options: setting.file_system.mount.clone(),
        read_only: false,
    }
}

/// Examines the mounted volume.
pub(super) fn examine(target: &mut GuestTarget, aftermath: &mut Aftermath) -> Result<(), Failure> {
    let mut examined = target.run(&Op::Examine { dir: MOUNT_POINT.into() })?;
    note(&examined, aftermath);
    match examined.answer.take() {
        Some(Answer::Examined(found)) => aftermath.found = found,
        other => {
            let what = format!("unexpected answer to an examination: {other:?}");
            return Err(io::Error::other(what).into());
        }
    }
    Ok(())
}

/// Returns the aftermath of a look at a volume, with the text of its failure. Ends the running guest if it died, or if the
/// volume may still be mounted there.
pub(super) fn judge<G>(
    looked: Result<(), Failure>,
    text: impl Fn(&Failure) -> String,
    running: &mut Option<G>,
    mut aftermath: Aftermath,
) -> Result<Aftermath, Failure> {
    match looked {
        Ok(()) => {}
        Err(Failure::Stopped) => return Err(Failure::Stopped),
        Err(failure @ Failure::Refused { .. }) => {
            aftermath.said.push(text(&failure));
            // A volume that could not be mounted leaves the guest usable; others may still be mounted.
            if aftermath.recovered_ns.is_some() {
                *running = None;
            }
        }
        // Without any guest there is nothing to judge.
        Err(failure) if running.is_none() => return Err(failure),
        Err(failure) => {
            *running = None;
            aftermath.has_died = true;
            aftermath.said.push(text(&failure));
        }
    }
    Ok(aftermath)
}

/// Waits until the process of our mount has written everything and ended.
fn wait_for_end(target: &mut GuestTarget) -> Result<(), Failure> {
    for _ in 0..LOOKS {
        if target.daemon_bytes()? == 0 {
            return Ok(());
        }
        target.run(&Op::Pause { nanoseconds: LOOK_NS })?;
    }
    Err(io::Error::other("the program that serves the mount does not end after the unmount").into())
}

/// Keeps the errors that the kernel logged.
pub(super) fn note(measured: &Measured, aftermath: &mut Aftermath) {
    let errors = measured.log.iter().filter(|message: &&Message| message.level <= LEVEL);
    let room = LINES.saturating_sub(aftermath.said.len());
    aftermath.said.extend(errors.take(room).map(|message| message.text.clone()));
}

impl Subject for GuestSubject {
    fn record(&mut self, script: Script, seed: u64) -> Result<Recording, Failure> {
        let start = self.make()?;
        let recorder = Arc::new(Recorder::with_data(copy(&start)?));
        let setting = Setting { traced: true, seed, ..self.setting.clone() };
        let mut target = GuestTarget::start_on_device(&setting, recorder.clone())?;
        target.run(&mount_of(&self.setting))?;
        let is_through_fuse = self.setting.file_system.is_ours();
        let run = |target: &mut GuestTarget, number: usize| {
            target.run(&script.steps[number].op)?;
            // Before Linux 6.18, sync(2) does not reach a FUSE file system, so each change is synced by itself.
            if is_through_fuse && script.steps[number].op == Op::Sync {
                script.syncs_instead(number).iter().try_for_each(|op| target.run(op).map(drop))?;
            }
            Ok(())
        };
        let (mut before_step, refused) = run_steps(&script, &mut target, GuestTarget::requests, run)?;
        let trace = target.trace().unwrap_or_default();
        // The guest is killed without an unmount: the power is cut.
        drop(target);
        let places = places_of_changes(&trace);
        before_step.iter_mut().for_each(|place| *place = places[*place]);
        let log = log_of(&trace, &recorder)?;
        Ok(Recording { script, start, log, before_step, refused })
    }

    fn recover(
        &mut self,
        content: Arc<MemoryDevice>,
        _unstable: &[Range<u64>],
    ) -> Result<Aftermath, Failure> {
        let mut aftermath = Aftermath::default();
        let looked = self.look(content, &mut aftermath);
        judge(looked, Failure::to_string, &mut self.running, aftermath)
    }
}

/// Returns for each number of requests the number of those among them that are no reads.
fn places_of_changes(trace: &Trace) -> Vec<usize> {
    let mut places = vec![0];
    for entry in &trace.entries {
        let change = usize::from(entry.op.command != Command::Read);
        places.push(places.last().expect("it has one at least") + change);
    }
    places
}

/// Joins the times of the requests with the data of the writes, which were recorded in the same order.
fn log_of(trace: &Trace, recorder: &Recorder<MemoryDevice>) -> io::Result<Log> {
    let mut changes =
        recorder.take_trace().into_iter().filter(|it| [Verb::Write, Verb::Discard].contains(&it.verb));
    let mut entries = Vec::new();
    for entry in &trace.entries {
        let verb = match entry.op.command {
            Command::Read => continue,
            Command::Write => Verb::Write,
            Command::Flush => Verb::Flush,
            Command::Discard => Verb::Discard,
        };
        let data = match verb {
            Verb::Write | Verb::Discard => {
                let change = changes.next().filter(|it| {
                    (it.verb, it.offset_bytes, it.length_bytes)
                        == (verb, entry.op.offset_bytes, entry.op.length_bytes)
                });
                let change =
                    change.ok_or_else(|| io::Error::other("the card's trace and its data do not match"))?;
                change.data.unwrap_or_else(|| Arc::from([]))
            }
            _ => Arc::from([]),
        };
        let (offset_bytes, length_bytes) = (entry.op.offset_bytes, entry.op.length_bytes);
        let (at_ns, done_ns) = (entry.at_ns, entry.done_ns);
        entries.push(Entry { verb, offset_bytes, length_bytes, data, at_ns, done_ns });
    }
    Ok(Log { entries })
}

/// A device whose content is exchanged.
struct Slot(Mutex<Arc<MemoryDevice>>);

impl Slot {
    fn new(content: Arc<MemoryDevice>) -> Slot {
        Slot(Mutex::new(content))
    }

    fn set(&self, content: Arc<MemoryDevice>) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = content;
    }

    fn get(&self) -> Arc<MemoryDevice> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

impl Device for Slot {
    fn geometry(&self) -> Geometry {
        self.get().geometry()
    }

    fn read(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.get().read(offset_bytes, buf)
    }

    fn write(&self, offset_bytes: u64, buf: &[u8]) -> io::Result<()> {
        self.get().write(offset_bytes, buf)
    }

    fn flush(&self) -> io::Result<()> {
        self.get().flush()
    }

    fn discard(&self, offset_bytes: u64, length_bytes: u64) -> io::Result<()> {
        self.get().discard(offset_bytes, length_bytes)
    }

    fn discard_unit(&self) -> Option<DiscardUnit> {
        self.get().discard_unit()
    }
}
